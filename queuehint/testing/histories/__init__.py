"""Histories of a queue under test: what happened, the rule that it breaks, and the search for a small one that does."""
