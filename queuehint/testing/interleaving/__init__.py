"""Race detection: run handlers in every order that the rules allow."""

from queuehint.testing.interleaving.check import SerialEquivalence, check_serial_equivalence

__all__ = ["SerialEquivalence", "check_serial_equivalence"]
