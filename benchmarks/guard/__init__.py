"""
Performance guard: counts that depend on no machine and no load, compared with those in ``guard.json``.

``make bench-guard`` runs it, and so does CI. It fails when a count has grown by more than 3 %; ``ARGS=--write`` accepts
the new ones.
"""
