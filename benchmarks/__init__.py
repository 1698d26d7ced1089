"""Benchmarks: `python -m benchmarks [module ...]`. Figures are reported beside their targets, never asserted."""
