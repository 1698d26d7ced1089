"""Flows: many jobs that are submitted, waited for and canceled together."""
