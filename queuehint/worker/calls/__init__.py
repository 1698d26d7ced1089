"""What a worker does for the code of its jobs: threads for plain functions, steps."""
