"""
The rules of places, R1 and R2: conflicts of jobs, and which may start. Start reading here.

A *claim* is a path, such as ``("doc1", "intro")``, and whether it is exclusive or shared. Two jobs *conflict* when
claims of theirs lie on one line of the tree, one at or below the other, and not both are shared. A claim that is only
counted, that of a permit, conflicts with none. Jobs take *places* in
the order in which they become QUEUED. A job has its place until it is over, through starts, retries and back-offs.

- R1, safety: two jobs that conflict never run at once.
- R2, order: a job starts only when no job that conflicts with it has a place before it.

R1 follows from R2: of two jobs in conflict one has the earlier place, and the other starts only when that one has left.
That is all; the other modules say when a job takes its place and when it leaves it.

>>> from queuehint.values.hint import Claim
>>> document, intro, notes = (Claim(("doc",)),), (Claim(("doc", "intro")),), (Claim(("doc", "notes")),)
>>> clash(document, intro), clash(intro, notes)
(True, False)
>>> [job.name for job in ready([Waiting("edit", intro), Waiting("list", notes), Waiting("print", document)])]
['edit', 'list']
>>> [job.name for job in ready([Waiting("list", notes), Waiting("print", document), Waiting("edit", intro)])]
['list']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.values.hint import Claim, Path


def is_at_or_below(path: Path, other: Path) -> bool:
    """Whether *path* begins with *other*: ``("doc", "intro")`` is below ``("doc",)``, and any path is below ``()``."""
    return path[: len(other)] == other


def at_or_below(claims: Iterable[Claim], path: Path) -> bool:
    """Whether one of the claims is at *path* or below it."""
    return any(is_at_or_below(claim.path, path) for claim in claims)


def clash(claims: Iterable[Claim], others: tuple[Claim, ...]) -> bool:
    """Whether two jobs conflict: one path is a prefix of the other, and not both claims are shared."""
    return any(
        (is_at_or_below(one.path, other.path) or is_at_or_below(other.path, one.path))
        and "exclusive" in {one.mode, other.mode}
        and "counted" not in {one.mode, other.mode}
        for one in claims
        for other in others
    )


def takes_place(claims: tuple[Claim, ...]) -> bool:
    """A job of these claims keeps others from a place."""
    return any(claim.mode != "counted" for claim in claims)


class HasPlace(Protocol):
    """A job with a place: its claims, and whether it waits for its turn alone."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of the job, exclusive or shared."""

    @property
    def is_waiting(self) -> bool:
        """Whether the job is QUEUED and in no back-off, neither running nor dead."""


@attrs.frozen
class Waiting:
    """The least there is to a job with a place."""

    name: str
    claims: tuple[Claim, ...]
    is_waiting: bool = True


Job = TypeVar("Job", bound=HasPlace)


def ready(placed: Sequence[Job]) -> list[Job]:
    """
    R2: the waiting jobs without an earlier conflict.

    Args:
        placed: all jobs with a place, in order of place: waiting, running, in back-off, or dead and holding it.

    Complexity: O(n²), by comparing each job with all before it.
    """
    return [
        job
        for index, job in enumerate(placed)
        if job.is_waiting and not any(conflict(other.claims, job.claims) for other in placed[:index])
    ]


def can_start(claim: Claim, running: Iterable[HasPlace]) -> bool:
    """R1 of a claim: no running job conflicts with it."""
    return not any(clash(job.claims, (claim,)) for job in running)


# --- the same, asked often -------------------------------------------------------------------------------------------

_clashes: dict[tuple[int, int], bool] = {}
_shapes: dict[tuple[Claim, ...], tuple[Claim, ...]] = {}


def shape(claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Return the canonical object of equal claims, which lives for ever, so that its `id` is unique."""
    return _shapes.setdefault(claims, claims)


def conflict(claims: tuple[Claim, ...], others: tuple[Claim, ...]) -> bool:
    """`clash`, remembered for two shapes."""
    key = (id(claims), id(others))
    known = _clashes.get(key)
    if known is None:
        known = clash(claims, others)
        if _shapes.get(claims) is claims and _shapes.get(others) is others:
            _clashes[key] = known
    return known
