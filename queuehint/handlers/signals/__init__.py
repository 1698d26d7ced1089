"""Signals as a running job sees them."""
