"""
Which positions of the inbox to look at.

Rows are asked for above the highest position that was taken, and in the *gaps* below it: positions that were drawn, or
may have been, by transactions whose rows were not visible yet. So rows that were taken are not read again, even if a
long transaction keeps vacuum from removing them, and a row that becomes visible late is not missed.

A gap is forgotten once no transaction can fill it: all that had begun when it was noticed have ended (the oldest one
that runs is younger than the youngest one then), and one and the same snapshot of the database shows that and no row.

>>> positions = Positions()
>>> positions.take([7])
>>> positions.high, positions.ranges(0.0)
(7, ([1], [6]))
>>> positions.saw([], xmin=100, xmax=105, is_whole=True)  # noticed
>>> positions.take([4, 9])
>>> positions.ranges(0.0)
([1, 5, 8], [3, 6, 8])
>>> positions.saw([], xmin=105, xmax=110, is_whole=True)  # what was noticed before is over
>>> positions.ranges(0.0)
([8], [8])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

GAPS_MAX: Final = 1_000
"""More gaps are merged; what lies between two was taken."""
WIDE: Final = 1_000
"""A gap of so many positions may lead past as many rows that were taken,"""
WIDE_EVERY_S: Final = 0.25
"""and is looked at only so often."""


@attrs.define
class _Gap:
    """Positions from *first* to *last*, noticed before transaction *xmax* had begun, None if that is not known yet."""

    first: int
    last: int
    xmax: int | None = None
    is_asked: bool = False


class Positions:
    """
    What of the positions of a namespace was taken.

    Attributes:
        high: the highest position that was taken; 0 before the first one.
    """

    def __init__(self) -> None:
        self.high = 0
        self._gaps: list[_Gap] = []
        self._wide_s = 0.0

    def reset(self) -> None:
        """Begin anew: the server may be another one, which has drawn fewer."""
        self.high, self._gaps, self._wide_s = 0, [], 0.0

    def ranges(self, now_s: float, behind: int = 0) -> tuple[list[int], list[int]]:
        """
        Return the first and the last positions of the gaps to look at now.

        Args:
            behind: a transaction whose rows are looked for, and those of later ones: in wide gaps too, if they may be
                there. A transaction that began after a gap was noticed has drawn a position above it.
        """
        is_wide_due = now_s >= self._wide_s
        if is_wide_due:
            self._wide_s = now_s + WIDE_EVERY_S
        asked = []
        for gap in self._gaps:
            may_have = behind > 0 and (gap.xmax is None or behind < gap.xmax)
            gap.is_asked = is_wide_due or may_have or gap.last - gap.first < WIDE
            if gap.is_asked:
                asked.append(gap)
        return [gap.first for gap in asked], [gap.last for gap in asked]

    @property
    def asks_all(self) -> bool:
        """True if `ranges` has named all gaps."""
        return all(gap.is_asked for gap in self._gaps)

    def take(self, taken: Sequence[int]) -> None:
        """Take note that the rows at these positions were taken, in ascending order."""
        for position in taken:
            if position > self.high:
                if position > self.high + 1:
                    self._gaps.append(_Gap(self.high + 1, position - 1))
                self.high = position
            else:
                self._split(position)
        while len(self._gaps) > GAPS_MAX:
            self._merge()

    def _split(self, position: int) -> None:
        kept = []
        for gap in self._gaps:
            if gap.first <= position <= gap.last:
                if gap.first < position:
                    kept.append(attrs.evolve(gap, last=position - 1))
                if position < gap.last:
                    kept.append(attrs.evolve(gap, first=position + 1))
            else:
                kept.append(gap)
        self._gaps = kept

    def _merge(self) -> None:
        """Make one gap of each two."""
        pairs = [self._gaps[at : at + 2] for at in range(0, len(self._gaps), 2)]
        self._gaps = [
            _Gap(
                pair[0].first,
                pair[-1].last,
                None if any(gap.xmax is None for gap in pair) else max(gap.xmax or 0 for gap in pair),
            )
            for pair in pairs
        ]

    def saw(self, found: Sequence[int], *, xmin: int, xmax: int, is_whole: bool) -> None:
        """
        Take note of what was found in the gaps that `ranges` has named.

        Args:
            found: the positions of all rows that were found.
            xmin: the oldest transaction that ran then.
            xmax: the first one that had not begun.
            is_whole: whether all rows were found, and not only the first ones.
        """
        kept = []
        for gap in self._gaps:
            is_empty = is_whole and gap.is_asked and not any(gap.first <= position <= gap.last for position in found)
            if not (is_empty and gap.xmax is not None and gap.xmax <= xmin):
                gap.xmax = xmax if gap.xmax is None else gap.xmax
                kept.append(gap)
        self._gaps = kept
