"""SQLite backend: jobs in one file."""
