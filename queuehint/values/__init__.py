"""Frozen values that cross rooms, and their checks at the door."""
