"""The socket beside a file: other processes send requests to the one that owns it."""
