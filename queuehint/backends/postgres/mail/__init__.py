"""The way to the process that leads through the database alone: streams of bytes, carried as mail."""
