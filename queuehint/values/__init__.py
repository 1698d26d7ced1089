"""Frozen values that all rooms share, and the checks of user input."""
