"""Commits of submissions in parts, for walks and simulations that know the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.structures.job import START_MARK
from queuehint.operations import Commit

if TYPE_CHECKING:
    from queuehint.core.engine import Engine


def commit_of(engine: Engine, staged: str) -> Commit:
    """Return the commit of all that an engine has of a submission in parts."""
    start = engine.table.jobs.get(START_MARK + staged)
    if start is None:
        return Commit(staged, 0)
    portions = start.extras.portions_added if start.extras is not None else 0
    return Commit(staged, engine.table.edges.count(start.id), portions)
