"""
What befalls each request of a process, and so the process, others and their store.

All of it is drawn when the request is sent, by the seed, by who sends it and how many it has sent: so a fault can be
left out and all others stay where they are.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from queuehint.testing.simulation.faults import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.testing.simulation.faults import FaultPlan

QUICK_MS = 20
"""How long a message takes that is not delayed."""


class Fault(NamedTuple):
    """What befell whom: the request after which, counted by its sender, says when."""

    kind: str
    sender: str
    request: int


class Fortune:
    """
    What befalls whom in one world.

    Args:
        only: the faults that may happen; None for all that are drawn.
    """

    def __init__(self, seed: int, plan: FaultPlan, only: Iterable[Fault] | None) -> None:
        self._seed = seed
        self.plan = plan
        self.only = None if only is None else frozenset(only)
        self.faults: list[Fault] = []
        """What has happened."""

    def of(self, sender: str, request: int) -> Luck:
        """Draw for a request."""
        return Luck(self, sender, request, Random(f"{self._seed}/{sender}/{request}"))


class Luck:
    """What befalls one request; all is drawn, whatever happens, so that what is left out changes nothing else."""

    def __init__(self, fortune: Fortune, sender: str, request: int, random: Random) -> None:
        self._fortune = fortune
        self._sender = sender
        self._request = request
        self.there_ms = random.randrange(1, QUICK_MS)
        self.back_ms = random.randrange(1, QUICK_MS)
        self._rolls = {kind: random.random() for kind in KINDS}
        self.sizes = {kind: random.random() for kind in KINDS}
        """How much of each there is, from 0 to below 1."""

    def has(self, kind: str) -> bool:
        """Say whether a fault happens, and note it if it does."""
        fortune = self._fortune
        if self._rolls[kind] >= getattr(fortune.plan, kind):
            return False
        fault = Fault(kind, self._sender, self._request)
        if fortune.only is not None and fault not in fortune.only:
            return False
        fortune.faults.append(fault)
        return True

    def part(self, kind: str, most: int) -> int:
        """Return as much of *most* as there is of a fault, below it."""
        return int(self.sizes[kind] * most)
