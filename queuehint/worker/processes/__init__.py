"""Handlers in processes of their own: the pool of a worker, the process, and the messages between them."""
