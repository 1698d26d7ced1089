"""What an operation is refused for, as a whole and before anything is changed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from queuehint.errors import DuplicateJobError, InvalidJobError, PathClosedError
from queuehint.hint import queue_key
from queuehint.operations import (
    GATES_PER_SUBMISSION_MAX,
    GRANTS_MAX,
    IDS_MAX,
    JOBS_PER_SUBMISSION_MAX,
    LEASES_MAX,
    LIST_MAX,
    POOLS_MAX,
    SETTLEMENTS_MAX,
    Cancel,
    Discard,
    Draw,
    Enqueue,
    Exchange,
    Get,
    ListDead,
    Operation,
    Redrive,
    Renew,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from queuehint.core.ledger import Ledger
    from queuehint.hint import Path
    from queuehint.records import JobSpec


def check_submission(ledger: Ledger, closed: Collection[Path], specs: tuple[JobSpec, ...]) -> None:
    """
    Refuse a submission that cannot be enqueued whole.

    Raises:
        DuplicateJobError: an id is taken by a job of other content; a key is taken.
        PathClosedError: a claim is at or below a closed path.
    """
    new_keys: dict[str, str] = {}
    for spec in specs:
        existing = ledger.jobs.get(spec.id)
        if existing is not None:
            if existing.spec != spec and (existing.notes is None or existing.notes.asked != spec):
                raise DuplicateJobError(spec.id, fields=existing.spec.differing_fields(spec))
            continue
        if closed:
            _check_open(closed, spec)
        if spec.key is not None:
            if spec.on_conflict == "reject":
                newest = ledger.keys.newest(spec.key)
                owner = newest.id if newest is not None else new_keys.get(spec.key)
                if owner is not None:
                    raise DuplicateJobError(owner, key=spec.key)
            new_keys.setdefault(spec.key, spec.id)


def _check_open(closed: Collection[Path], spec: JobSpec) -> None:
    for claim in spec.claims:
        for depth in range(len(claim.path) + 1):
            if claim.path[:depth] in closed:
                raise PathClosedError(queue_key(claim.path[:depth]))


def check_limits(operation: Operation[Any]) -> None:
    """
    Refuse an operation that carries too much, or one id twice; every backend does this before any I/O.

    Raises:
        InvalidJobError: naming what, how many and the limit.
        DuplicateJobError: an id appears twice in one submission.
    """
    match operation:
        case Enqueue():
            _check_submission_size(operation.jobs)
        case Exchange():
            _check_size("settle", len(operation.settle), SETTLEMENTS_MAX)
            _check_size("limit", operation.limit, GRANTS_MAX)
            _check_size("pools", len(operation.pools), POOLS_MAX)
        case Renew():
            _check_size("leases", len(operation.leases), LEASES_MAX)
        case Cancel() | Redrive() | Discard() | Get():
            _check_size("ids", len(operation.ids), IDS_MAX)
        case Draw():
            _check_size("count", operation.count, JOBS_PER_SUBMISSION_MAX)
        case ListDead():
            if not 1 <= operation.limit <= LIST_MAX:
                raise InvalidJobError(f"limit must be from 1 to {LIST_MAX}, got {operation.limit}")
        case _:
            pass


def _check_submission_size(specs: tuple[JobSpec, ...]) -> None:
    _check_size("jobs", len(specs), JOBS_PER_SUBMISSION_MAX)
    if len({spec.id for spec in specs}) < len(specs):
        raise DuplicateJobError(next(job_id for job_id, n in Counter(spec.id for spec in specs).items() if n > 1))
    gates = 0
    for spec in specs:
        for claim in spec.claims:
            gates += len(claim.path) + 1
    if gates > GATES_PER_SUBMISSION_MAX:
        raise InvalidJobError(
            f"a submission visits {gates} gates (depth + 1 a claim), limit {GATES_PER_SUBMISSION_MAX}"
        )


def _check_size(what: str, size: int, most: int) -> None:
    if not 0 <= size <= most:
        raise InvalidJobError(f"{what}: {size} in one operation, limit {most}")
