"""
From which row on a box is read.

Rows that were fetched stay in the index for as long as a transaction may see them, and a look at the whole box reads
them all again: beside a transaction of minutes each look would take longer than the one before. So a look begins above
the rows that were fetched some time ago. A row may have a lower number and be committed later, and all numbers begin
anew after a crash of the server: the whole box is looked at now and then, the less often the longer that takes.
"""

from __future__ import annotations

import math
from typing import Final

SETTLES_S: Final = 0.5
"""After so long a row with a number below those that were fetched is late."""
WHOLE_EVERY_S: Final = 0.5
"""How often the whole box is looked at, at most."""
WHOLE_SHARE: Final = 20
"""A look at the whole box takes one part in so many of the time."""


class Marks:
    """
    What was fetched of a box, and when.

    >>> marks = Marks()
    >>> marks.above(10.0)
    0
    >>> marks.note(0, [7, 8], 10.0, 10.01)
    >>> marks.above(10.1), marks.above(10.6)
    (0, 0)
    >>> marks.note(0, [], 10.6, 10.61)
    >>> marks.above(11.1), marks.above(11.2)
    (8, 0)
    """

    def __init__(self) -> None:
        self._newest = self._settling = self._settled = 0
        self._settled_s = self._whole_s = -math.inf

    def above(self, now_s: float) -> int:
        """Return the number above which rows are to be fetched now; 0 for the whole box."""
        if now_s >= self._settled_s + SETTLES_S:
            self._settled, self._settling, self._settled_s = self._settling, self._newest, now_s
        return 0 if now_s >= self._whole_s else self._settled

    def note(self, above: int, numbers: list[int], began_s: float, now_s: float) -> None:
        """
        Take note of a look.

        Args:
            above: where it began.
            numbers: of the rows that were fetched.
            began_s, now_s: when it began and ended.
        """
        self._newest = max([self._newest, *numbers])
        if above == 0:
            self._whole_s = now_s + max(WHOLE_EVERY_S, WHOLE_SHARE * (now_s - began_s))
