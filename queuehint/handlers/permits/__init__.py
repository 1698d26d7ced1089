"""Permits of jobs: room of limits for code of a handler."""
