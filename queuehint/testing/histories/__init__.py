"""Histories of a queue under test: the calls, the broken rule, and the search for a small failing history."""
