"""The journal of a namespace in PostgreSQL, and its inbox."""
