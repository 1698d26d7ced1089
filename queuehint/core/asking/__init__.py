"""Answers, which change nothing: records and settings, reasons and their chains, blockers, the tree of places."""
