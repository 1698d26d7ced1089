"""Frozen values that all packages share."""
