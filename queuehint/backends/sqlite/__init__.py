"""Jobs in one file, for one process."""
