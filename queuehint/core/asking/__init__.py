"""Answers that combine others: chains of reasons."""
