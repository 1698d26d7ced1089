"""Snapshots of an engine: what is written down, how, and when."""
