"""
Outcomes on their way to the store, in batches; one that cannot be sent ends its own job only.

A batch is cut by number and by bytes. One that fails with what is no error of the store is sent again by halves, until
an outcome is alone. If it fails twice, and an exchange without any goes through in between, its job is FAILED; all
others are settled as they ended.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from queuehint.operations import SETTLEMENTS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from queuehint.values.records import Outcome

BYTES_MAX = 4 << 20
"""Results of together more than this go in several batches: one has to be sent within a few seconds."""


class Settlements:
    """Outcomes of one worker, in the order in which they ended."""

    def __init__(self) -> None:
        self._outcomes: deque[Outcome] = deque()
        self._most = SETTLEMENTS_MAX
        self._suspect: Outcome | None = None
        self._replaced: Outcome | None = None

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[Outcome]:
        return iter(list(self._outcomes))

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Take outcomes in."""
        self._outcomes += outcomes

    def batch(self) -> tuple[Outcome, ...]:
        """Return those to be sent next."""
        batch: list[Outcome] = []
        size = 0
        for outcome in self._outcomes:
            size += len(outcome.result or b"")
            if len(batch) == self._most or (batch and size > BYTES_MAX):
                break
            batch.append(outcome)
        return tuple(batch)

    def settled(self, count: int) -> None:
        """Let go of the first ones, which the store has taken."""
        for _ in range(count):
            self._outcomes.popleft()
        if count:
            self._most = min(2 * self._most, SETTLEMENTS_MAX)

    def halve(self, count: int) -> bool:
        """Have fewer sent at once, for so many failed together; return False if it was one."""
        self._most = max(1, count // 2)
        return count > 1

    def is_suspect(self, outcome: Outcome) -> bool:
        """Return whether it has failed alone before, while an exchange without outcomes went through."""
        is_suspect, self._suspect = self._suspect is outcome, outcome
        return is_suspect

    def replace(self, outcome: Outcome) -> Outcome | None:
        """Have another outcome sent for the job of the first one; return the old one if it has been replaced before."""
        old = self._outcomes.popleft()
        if old is self._replaced:
            return old
        self._replaced = outcome
        self._outcomes.appendleft(outcome)
        return None
