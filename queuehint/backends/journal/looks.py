"""
When a leader looks into its inbox, while nothing else is asked for.

- A row that is *expected*, because the process that has written it has said so, is noticed after a part of the time
  since that was said.
- A row of which the server notifies the leader is *announced*, and looked for there and then.
- Rows of which nobody has said anything come where such rows came: another one is noticed after a part of the time
  since the last one.
- Else a look is made as often as the journal says.

>>> looks = Looks()
>>> looks.in_s(0.02, now_s=0.0)
0.02
>>> looks.found(now_s=0.0)
>>> [looks.in_s(0.02, now_s) for now_s in (0.0, 0.16, 1.0)]
[0.003, 0.01, 0.02]
"""

from __future__ import annotations

import math
from typing import Final

HASTE_S: Final = 0.002
"""How often to look, at most, while a row is expected."""
LIVELY_S: Final = 0.003
"""How often to look, at most, after a row came that nobody expected."""
LATE_S: Final = 0.1
"""A look that happens to come between a commit and its notification finds a row that is announced within so long."""
HASTE: Final = 16
"""A row is noticed after a part of the time since it was announced, or since the last one: one in so many."""


class Looks:
    """
    The looks of one leader; the times are those of one clock. `expect` and `announce` are for any thread, all else for
    one.

    Attributes:
        seen: the rows of every transaction below this number have taken effect; 0 if that is not known.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._due_s = 0.0
        self._expected, self._expected_s = 0, 0.0
        """A transaction in which rows were written, and when that was last told."""
        self._is_announced = False
        self._found_s = self._found_before_s = -math.inf
        """When rows were last found that were not expected."""

    def is_seen(self, transaction: int) -> bool:
        """Return whether rows of a transaction, and of those before it, are known to have taken effect."""
        return not transaction or transaction < self.seen

    def expect(self, transaction: int, now_s: float) -> bool:
        """Expect rows of a transaction that is to be committed, or was. Return whether the next look comes too late."""
        self._expected, self._expected_s = max(self._expected, transaction), now_s
        return self._due_s > now_s + HASTE_S

    def announce(self) -> None:
        """Record that rows are there: the look is made by who calls this."""
        self._is_announced = True

    def begin(self, usual_s: float, now_s: float) -> bool:
        """Begin a look. Return whether a row is announced, or expected and has not been coming for long."""
        is_announced, self._is_announced = self._is_announced, False
        if is_announced and now_s < self._found_s + LATE_S:
            self._found_s = self._found_before_s
        return is_announced or self._expected_in_s(now_s) < usual_s

    def found(self, now_s: float) -> None:
        """Record that a row was found that was not expected."""
        self._found_before_s, self._found_s = self._found_s, now_s

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to look."""
        return now_s >= self._due_s

    def plan(self, in_s: float, now_s: float) -> None:
        """Set the time of the next look."""
        self._due_s = now_s + in_s

    def in_s(self, usual_s: float, now_s: float) -> float:
        """Return how soon to look again, where it is usual after so long."""
        lively_s = max((now_s - self._found_s) / HASTE, LIVELY_S)
        return min(lively_s, self._expected_in_s(now_s), usual_s)

    def _expected_in_s(self, now_s: float) -> float:
        if self.is_seen(self._expected):
            return math.inf
        return max((now_s - self._expected_s) / HASTE, HASTE_S)
