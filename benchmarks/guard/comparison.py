"""Compare the counts stored in the repository with those of this run; read, show and write them."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Table = dict[str, dict[str, float]]
"""Counts by row and column."""

TOLERANCE: Final = 0.03
ROUNDING: Final = 0.005
"""Figures are kept with two decimals."""
OF_PYTHON: Final = frozenset({"Python calls", "turns of the loop"})
"""Columns that another release of Python may change."""


@attrs.frozen
class Numbers:
    """Counts, and the release of Python they were taken on."""

    python: str
    table: Table


@attrs.frozen
class Difference:
    """A count that is not what it was; None where there is none."""

    row: str
    column: str
    before: float | None
    now: float | None

    @property
    def has_grown(self) -> bool:
        """Return whether the count exceeds the tolerance, has not been accepted yet, or is gone."""
        if self.before is None or self.now is None:
            return True
        return self.now > self.before * (1 + TOLERANCE) + ROUNDING

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.row}, {self.column}: not in the file"
        if self.now is None:
            return f"{self.row}, {self.column}: in the file, but not counted any more"
        share = f" ({self.now / self.before - 1:+.1%})" if self.before else ""
        return f"{self.row}, {self.column}: {self.before:,.2f} before, {self.now:,.2f} now{share}"


def counted_here(table: Table) -> Numbers:
    rounded = {row: {column: round(value, 2) for column, value in cells.items()} for row, cells in table.items()}
    return Numbers(".".join(platform.python_version_tuple()[:2]), rounded)


def load(path: Path) -> Numbers:
    kept = json.loads(path.read_text("utf-8"))
    return Numbers(kept["python"], kept["counts"])


def save(path: Path, numbers: Numbers) -> None:
    kept = {"python": numbers.python, "counts": numbers.table}
    path.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")


def differences(before: Numbers, now: Numbers) -> list[Difference]:
    """Return the counts that differ; those of Python's calls only for the same release of Python."""
    return [
        Difference(row, column, old, new)
        for row, column in _cells(before.table, now.table)
        if column not in OF_PYTHON or before.python == now.python
        if (old := before.table.get(row, {}).get(column)) != (new := now.table.get(row, {}).get(column))
    ]


def shown(before: Numbers, now: Numbers) -> Iterator[str]:
    """Yield the lines of a table: for each row and column the number now, or that before and now."""
    heads: tuple[str, ...] = ()
    for row, cells in now.table.items():
        if tuple(cells) != heads:
            heads = tuple(cells)
            yield f"\n{'':<28}" + "".join(f"{head:>26}" for head in heads)
        old = before.table.get(row, {})
        yield f"{row:<28}" + "".join(f"{_cell(old.get(head), cells[head]):>26}" for head in heads)


def beside_free(table: Table) -> Iterator[str]:
    """Yield a line for each row of jobs in lines: how many times the counts of the same row of free jobs it has."""
    for row, cells in table.items():
        free = table.get(row.partition(",")[0], {})
        if row.endswith("lines") and free.keys() == cells.keys() and all(free.values()):
            ratios = [f"{cells[head] / free[head]:.2f} of {head}" for head in ("Lua instructions", "redis.call")]
            yield f"{row}, in order / free: {', '.join(ratios)}"


def _cell(before: float | None, now: float) -> str:
    if before == now:
        return f"{now:,.2f}"
    return f"{'-' if before is None else f'{before:,.2f}'} -> {now:,.2f}"


def _cells(*tables: Table) -> list[tuple[str, str]]:
    """Return row and column of each count in any of some tables, in order."""
    return list(dict.fromkeys((row, column) for table in tables for row, cells in table.items() for column in cells))
