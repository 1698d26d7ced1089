"""Answers that search: chains of reasons, the tree of places, the longest lines."""
