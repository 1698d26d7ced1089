"""The PostgreSQL store: tables that keep a journal, led by one process."""
