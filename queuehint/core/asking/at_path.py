"""
The jobs that wait at a path, and their blockers.

The index of unfinished jobs by path is read from both ends, so that a place with one long line shows its oldest and its
newest jobs; 500 entries are looked at, whatever there is.
"""

from __future__ import annotations

from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from queuehint.core.asking.blockers import Blockers
from queuehint.core.asking.why import reason_of
from queuehint.operations import PathReasons, PlacedJob
from queuehint.values.hint import is_counted, key_of, meet
from queuehint.values.record import JobState
from queuehint.values.report import JOBS_NAMED_MAX, Reason, ReasonKind

if TYPE_CHECKING:
    from queuehint.core.state import State
    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Path

_NUMBER = attrgetter("number")
ENDS_LOOKED_AT_MAX = 250
"""How many entries of the index are looked at from each end."""


def reasons_at(state: State, path: Path, limit: int) -> PathReasons:
    """
    Return the jobs that wait at a path or below it, and their blockers.

    Args:
        limit: how many of the oldest jobs are named, and how many of the newest.
    """
    entries = state.table.paths.entries
    ends = islice(entries(path), ENDS_LOOKED_AT_MAX), islice(entries(path, newest_first=True), ENDS_LOOKED_AT_MAX)
    looked_at = {(key, number): job for key, number, job in chain(*ends)}
    waiting = {job.number: job for job in looked_at.values() if job.state is not JobState.STARTED and not job.is_hidden}
    numbers = sorted(waiting)
    blockers = Blockers(state.table)
    reasons: dict[int, Reason] = {}

    def told(some: list[int]) -> tuple[PlacedJob, ...]:
        for number in some:
            reasons[number] = reason_of(state, waiting[number], blockers)
        return tuple([_placed(waiting[number], path, reasons[number]) for number in some])

    oldest, newest = told(numbers[:limit]), told(numbers[limit:][-limit:][::-1])
    named = [other for reason in reasons.values() for job_id in reason.jobs if (other := state.find(job_id))]
    # A permit takes no place, and is in the way of those alone that wait for a limit.
    is_limited = any(reason.kind is ReasonKind.LIMIT for reason in reasons.values())
    running = [job for job in looked_at.values() if job.state is JobState.STARTED]
    started = sorted([job for job in running if is_limited or not is_counted(job.spec.claims)], key=_NUMBER)
    holding, holders = blockers.against(path)
    ahead = dict.fromkeys([job for job in (*named, *started, *holding) if job.number not in waiting])
    return PathReasons(
        path_key=key_of(path),
        oldest=oldest,
        newest=newest,
        ahead=tuple([_placed(job, path, reason_of(state, job, blockers)) for job in islice(ahead, JOBS_NAMED_MAX)]),
        waiting=len(waiting),
        more_ahead=max(0, len(ahead) - JOBS_NAMED_MAX),
        holders=holders,
        complete=len(looked_at) < 2 * ENDS_LOOKED_AT_MAX,
    )


def _placed(job: Job, path: Path, reason: Reason) -> PlacedJob:
    spec = job.spec
    claims = [claim for claim in spec.claims if meet(claim.path, path)] or spec.claims[:1]
    return PlacedJob(
        id=job.id,
        task=spec.task,
        user=spec.user,
        path_key=key_of(claims[0].path) if claims else None,
        mode=claims[0].mode if claims else None,
        claims=len(spec.claims),
        enqueued_ms=job.enqueued_ms,
        reason=reason,
    )
