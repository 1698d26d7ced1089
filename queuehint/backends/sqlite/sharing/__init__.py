"""The socket beside a file: other processes ask the one that has it."""
