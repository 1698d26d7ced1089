"""Answers: what changes nothing. Records and settings, reasons and their chains, blockers, the tree of places."""
