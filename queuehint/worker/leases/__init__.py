"""Leases: renewal by a thread or by a process beside the worker, and measures while code blocks the loop."""
