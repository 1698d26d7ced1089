"""
Circles of waits for permits: callers that hold room of limits, and wait for room that another of them holds.

A permit is a job whose parent is what its caller waits in: the job of a handler, or another hold. So a store knows who
waits inside of what. By that, at one moment:

- A job that runs is *stuck* if a caller inside of it waits in vain.
- A caller waits *in vain* if a limit that it asks for has no room for it beside what stuck jobs cost there, or if one
  that has to go first, in a line in order, waits in vain; for a place if a stuck job stands in its way.
- Of all sets of which this holds the greatest counts: each caller is taken to wait in vain until the others show that
  it does not. What only takes time is no reason: jobs that run and are not stuck end, and rates give room again.

A caller is *in a circle* if it waits in vain, and would not if the jobs that it waits in were not stuck. Of those in a
circle the newest gets the error, so that the others go on.

A caller inside of nothing is in no circle and asks nothing. Else it looks once it has to wait, and then at growing
intervals. A look asks some six questions; it sees `LIST_MAX` callers that wait, the oldest first, and eight generations
of what they wait in. Whom a line has go first is asked for `LINES_MAX` of them.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.errors import BackendError, JobNotFoundError, WouldDeadlockError
from queuehint.operations import IDS_MAX, LIST_MAX, Chain, Get, List, ListLimits, Why
from queuehint.values.hint import is_counted, is_prefix, key_of, parse_key
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import JOBS_NAMED_MAX, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from queuehint.backends.base import Backend
    from queuehint.backends.steps import Steps
    from queuehint.values.hint import Path
    from queuehint.values.limit import Key, Limit
    from queuehint.values.record import JobRecord
    from queuehint.values.report import Reason
    from queuehint.values.spec import JobSpec

EXCLUSIVE_TASK: Final = "exclusive"
PERMIT_TASK: Final = "permit"
"""The tasks of the jobs that stand for callers."""
GENERATIONS_MAX: Final = 8
LINES_MAX: Final = 10
LOOK_AFTER_S: Final = 3.0
LOOK_EVERY_MAX_S: Final = 60.0
Place = tuple["Key", "Path"]
"""Where a limit counts."""


@attrs.frozen
class Owner:
    """
    The job or hold inside of which a caller waits.

    Args:
        job_id, token: of the job of its handler, or of that which stands for what it holds.
        is_to_stop: whether that job is to stop, so that the wait has no point.
        is_own: the caller holds it itself; else it is in a task or thread that the holder has started.
    """

    job_id: str
    token: int
    is_to_stop: Callable[[], bool]
    is_own: bool = True


class CircleWatch:
    """
    Watches the wait of a caller for a place or permit.

    Args:
        call: the call that waits, for the error.
        job_id: of the job that stands for what it asks for.
        owner: what it waits in; None for nothing.
        is_bounded: the wait ends by itself, so that it is refused only to the very task or thread that holds what it
            waits in: another one may leave it in time.
    """

    def __init__(
        self, backend: Backend, call: str, job_id: str, owner: Owner | None, *, is_bounded: bool = False
    ) -> None:
        self._backend = backend
        self._call = call
        self._job_id = job_id
        self._is_inside = owner is not None and (owner.is_own or not is_bounded)
        self._pause_s = LOOK_AFTER_S
        self._next_s = 0.0

    @property
    def is_due(self) -> bool:
        """True if a look is due: at once for a caller inside of a job or hold, and again at growing intervals."""
        return self._is_inside and time.monotonic() >= self._next_s

    def look(self) -> Steps[None]:
        """
        Refuse to wait in a circle.

        Raises:
            WouldDeadlockError: naming the jobs in it.
        """
        self._next_s, self._pause_s = time.monotonic() + self._pause_s, min(self._pause_s * 2, LOOK_EVERY_MAX_S)
        with contextlib.suppress(BackendError, JobNotFoundError):
            reason: Reason = (yield Why(self._job_id)).reasons[0]
            if reason.kind in {ReasonKind.LIMIT, ReasonKind.PLACE}:
                waits = yield from read_waits(self._job_id, reason)
                if (circle := waits.circle_of(self._job_id)) is not None:
                    path = key_of(waits.waiting[self._job_id].spec.claims[0].path)
                    raise WouldDeadlockError(self._call, held=path, circle=circle)


def explained(question: Why) -> Steps[Chain]:
    """
    Query why a job waits, or the jobs that wait at a path. Include the permit for which a running job's code waits.

    A running job is asked about by one question more, and by two others if its code waits.
    """
    reply: Chain = yield question
    if not reply.reasons or reply.reasons[-1].kind is not ReasonKind.RUNNING:
        return reply
    *before, last = reply.reasons
    return attrs.evolve(reply, reasons=(*before, (yield from _inside(last))))


def _inside(running: Reason) -> Steps[Reason]:
    """Return why the code of a running job waits, if it waits for a permit."""
    asked = RecordFilter(parent=running.job_id, task=PERMIT_TASK, states=(JobState.QUEUED,))
    records = (yield List(asked, False, None, JOBS_NAMED_MAX)).records
    permit = next((each for each in records if is_counted(each.spec.claims)), None)
    if permit is None:
        return running
    try:
        reason: Reason = (yield Why(permit.id)).reasons[0]
    except JobNotFoundError:
        return running
    if reason.state is not JobState.QUEUED or reason.kind is ReasonKind.CALLER:
        return running
    holders: dict[str, None] = {}
    is_of_limit = reason.kind is ReasonKind.LIMIT and not reason.stuck
    if is_of_limit and reason.until_ms is None:
        place = None if reason.path_key is None else parse_key(reason.path_key)
        there = attrs.evolve(reason.selection or RecordFilter(path=place), states=(JobState.STARTED,))
        for each in (yield List(there, False, None, JOBS_NAMED_MAX)).records:
            holders[(each.spec.parent if is_counted(each.spec.claims) else None) or each.id] = None
    ahead = [each for each in {**holders, **dict.fromkeys(reason.jobs)} if each != running.job_id]
    detail = running.detail if is_of_limit else reason.text
    return attrs.evolve(
        reason,
        job_id=running.job_id,
        state=running.state,
        kind=ReasonKind.PERMIT,
        jobs=tuple(ahead[:JOBS_NAMED_MAX]),
        detail=detail,
        progress=running.progress,
    )


def read_waits(job_id: str | None = None, reason: Reason | None = None, *, held: Collection[str] = ()) -> Steps[Waits]:
    """
    Read which jobs wait inside of which jobs and holds.

    Args:
        job_id: a caller's job that is to be among them, with why it waits.
        held: the ids of jobs that are to be among those that callers wait in.
    """
    found: list[JobRecord | None] = []
    for task in (PERMIT_TASK, EXCLUSIVE_TASK):
        found += (yield List(RecordFilter(task=task, states=(JobState.QUEUED,)), False, None, LIST_MAX)).records
    if job_id is not None and all(record is None or record.id != job_id for record in found):
        found += (yield Get((job_id,))).records
    waiting = {each.id: each for each in found if each is not None and each.spec.presence_ms is not None}
    running: dict[str, JobRecord] = {}
    wanted = {*held, *[each.spec.parent for each in waiting.values()]} if waiting else set()
    for _ in range(GENERATIONS_MAX):
        ids = tuple([each for each in wanted if each is not None and each not in running][:IDS_MAX])
        if not ids:
            break
        records = [each for each in (yield Get(ids)).records if each is not None and each.state is JobState.STARTED]
        running.update({each.id: each for each in records})
        wanted = {each.spec.parent for each in records}
    waits = Waits(waiting, running, (yield from _limits()) if waiting else [])
    if job_id is None or reason is None:
        return waits
    yield from waits.see(job_id, reason)
    # Places and lines of others count only where slots alone explain nothing.
    inside = [each for each in waiting.values() if each.spec.parent is not None and each.id != job_id]
    for each in inside[:LINES_MAX] if waits.circle_of(job_id) is None else ():
        with contextlib.suppress(JobNotFoundError):
            yield from waits.see(each.id, (yield Why(each.id)).reasons[0])
    return waits


def read_held(ids: Iterable[str]) -> Steps[Waits]:
    """Read the room of limits that some jobs hold."""
    records = [each for each in (yield Get(tuple(ids)[:IDS_MAX])).records if each is not None]
    return Waits({}, {each.id: each for each in records}, (yield from _limits()))


def _limits() -> Steps[list[Limit]]:
    return [state.limit for state in (yield ListLimits()).limits if state.limit.most is not None]


class Waits:
    """
    The waits inside of jobs and holds, at one moment.

    Args:
        waiting: the callers' jobs that wait, by id.
        running: the jobs that they wait in, by id, and those that these were made in.
        limits: those that bound how many jobs run at once.
    """

    def __init__(self, waiting: dict[str, JobRecord], running: dict[str, JobRecord], limits: Collection[Limit]) -> None:
        self.waiting = waiting
        self._running = running
        self._limits = limits
        self._ways: dict[str, tuple[str, ...]] = {}
        """What stands in the way of callers that wait for a place, or behind another in the line of a limit."""
        self._first: dict[str, JobRecord] = {}
        """Those which no caller waits for, and that have to go first in a line."""

    def see(self, job_id: str, reason: Reason) -> Steps[None]:
        """Take in why a caller waits."""
        if reason.kind in {ReasonKind.LIMIT, ReasonKind.PLACE}:
            self._ways[job_id] = reason.jobs
            unknown = (
                [each for each in reason.jobs if each not in self.waiting] if reason.kind is ReasonKind.LIMIT else ()
            )
            for record in (yield Get(tuple(unknown))).records if unknown else ():
                if record is not None and record.state is JobState.QUEUED:
                    self._first[record.id] = record

    def circle_of(self, job_id: str) -> tuple[str, ...] | None:
        """
        Return the jobs of the circle in which a caller is the newest. Return None without a circle.

        They are those that the callers in it wait in.
        """
        blocked = self.blocked()
        if not self._is_in_circle(job_id, blocked):
            return None
        mine = self.waiting[job_id]
        members = [each for each in map(self.waiting.__getitem__, blocked) if self._is_in_circle(each.id, blocked)]
        if any(each.number > mine.number for each in members):
            return None
        return tuple(dict.fromkeys([each.spec.parent for each in members if each.spec.parent is not None]))

    def _is_in_circle(self, job_id: str, blocked: Collection[str]) -> bool:
        """Return whether a caller that waits in vain would not if what it waits in went on."""
        inside = self.stuck((job_id,))
        return job_id in blocked and bool(inside) and job_id not in self.blocked(free=inside)

    def blocked(self, *, held: Collection[str] = frozenset(), free: Collection[str] = frozenset()) -> set[str]:
        """
        Return the ids of the callers' jobs that wait in vain.

        Args:
            held: the ids of jobs that are stuck in any case.
            free: the ids of jobs that are not, in any case.
        """
        blocked = set(self.waiting)
        while True:
            stuck = self.stuck(blocked).difference(free).union(held)
            free_now = {each for each in blocked if not self._is_in_vain(self.waiting[each], blocked, stuck)}
            if not free_now:
                return blocked
            blocked -= free_now

    def stuck(self, blocked: Iterable[str]) -> set[str]:
        """Return the ids of the jobs in which these callers wait."""
        stuck: set[str] = set()
        for job_id in blocked:
            parent = self.waiting[job_id].spec.parent
            while parent is not None and parent not in stuck and parent in self._running:
                stuck.add(parent)
                parent = self._running[parent].spec.parent
        return stuck

    def is_full(self, spec: JobSpec, stuck: Collection[str]) -> bool:
        """Return whether a limit has too little room for a job beside what stuck ones cost."""
        cost: Counter[Place] = Counter()
        for job_id in stuck:
            if (record := self._running.get(job_id)) is not None:
                cost.update({place: record.spec.policy.cost for place, _ in self._places_of(record.spec)})
        return any(cost[place] + spec.policy.cost > most for place, most in self._places_of(spec) if cost[place])

    def _is_in_vain(self, record: JobRecord, blocked: Collection[str], stuck: Collection[str]) -> bool:
        ways = self._ways.get(record.id, ())
        if not is_counted(record.spec.claims):
            return any(each in stuck for each in ways)
        if any(each in blocked for each in ways) or self.is_full(record.spec, stuck):
            return True
        return any(each in self._first and self.is_full(self._first[each].spec, stuck) for each in ways)

    def _places_of(self, spec: JobSpec) -> Iterator[tuple[Place, int]]:
        """Yield the places at which a job counts, and the limit at each."""
        for limit in self._limits:
            assert limit.most is not None
            if limit.path is None:
                if spec.task == limit.task or spec.pool == limit.pool:
                    yield (limit.key, ()), limit.most
                continue
            length = len(limit.path) + limit.each
            paths = [claim.path for claim in spec.claims if is_prefix(limit.path, claim.path)]
            for place in {path[:length] for path in paths if len(path) >= length}:
                yield (limit.key, place), limit.most
