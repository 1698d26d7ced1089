"""Services of a worker for the code of its jobs: threads for plain functions, steps."""
