"""Simulated histories of the engine alone."""
