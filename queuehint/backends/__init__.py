"""Backends: one protocol, several stores."""
