"""Examination and repair of a store on Redis."""
