"""Leases: their renewal by a thread or by a process beside the worker, and what is done while code blocks the loop."""
