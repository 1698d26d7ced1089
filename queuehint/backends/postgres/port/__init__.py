"""The TCP port that an operator opens for guests on other machines: TLS with a pinned key, and a secret."""
