"""Sessions of a PostgreSQL server, with errors of ours."""
