"""queuehint: a job scheduler that knows places."""
