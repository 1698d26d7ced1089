"""Handlers in processes of their own: the pool of a worker, the process, and what they say to each other."""
