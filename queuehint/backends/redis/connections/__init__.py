"""Connections to the node that has the namespace: one request, one reply, no automatic retry."""
