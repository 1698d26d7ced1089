"""Frozen values that all packages share, and the checks of user input."""
