"""The rules: pure, deterministic, without I/O, clock, thread or log."""
