"""Preconditions of a submission: checks against the current state, before any change."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeGuard

from queuehint.core.jobs.closings import closed_above
from queuehint.core.structures.job import START_MARK
from queuehint.core.structures.timers import TimerKind
from queuehint.core.work import is_behind
from queuehint.errors import (
    ConcurrentSubmissionError,
    CycleError,
    DuplicateFlowError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    LeaseLostError,
    PathClosedError,
    QueueFullError,
    UnknownDependencyError,
)
from queuehint.operations import STAGED_FRESH_MS, STAGED_KEPT_MS, Enqueue
from queuehint.operations.bounds import OTHER_FLOW, cost_refusal
from queuehint.values.hint import is_prefix, key_of
from queuehint.values.record import JobState
from queuehint.values.spec import PORTION_MAX, SIGNAL_MARK, SIGNAL_TASK, JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from queuehint.core.jobs.table import JobTable
    from queuehint.core.state import State
    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Path
    from queuehint.values.limit import Key
    from queuehint.values.spec import Dependency

LEASES_LOOKED_AT_MAX, RETRIES_COUNTED_MAX, AGE_MAX_MS = 100, 1000, 3_600_000
RETRY_MIN_MS, RETRY_MAX_MS = 100, 300_000


def is_part(job: Job | None, start: Job) -> TypeGuard[Job]:
    """Return whether a job belongs to an uncommitted submission in parts."""
    return job is not None and job.extras is not None and job.extras.start is start


def check_portion(table: JobTable, job: Job, start: Job, edges: Iterable[Dependency]) -> None:
    """
    Refuse dependencies that are not supported in a submission in parts.

    Raises:
        UnknownDependencyError: one is not there.
        CycleError: one came after the job in the same submission, or with it in a part that is not in order.
    """
    for edge in edges:
        other = table.jobs.get(edge.id)
        if edge.id.startswith(SIGNAL_MARK):
            continue
        if other is None or other.gone or (other.is_hidden and not is_part(other, start)):
            raise UnknownDependencyError(job.id, edge.id)
        if is_part(other, start) and other.need_extras().came >= job.number:
            raise CycleError([job.id, edge.id])


def retry_after_ms(table: JobTable, counts: Callable[[JobSpec], bool], too_many: int) -> int | None:
    """
    Estimate in how many ms so many of the jobs that *counts* selects will have ended; None while none of these runs.

    Of jobs that have run for *d* on average, seen at any time, the rest takes *d* on average too: of *n* such jobs one
    ends each *d* / *n*. The first 100 leases are looked at, and stand for the others.
    """
    leases = table.timers.of(TimerKind.LEASE)
    sample = leases[:LEASES_LOOKED_AT_MAX]
    ages = [
        min(max(table.limits.now_ms - (job.started_ms or 0), 0), AGE_MAX_MS)
        for job in sample
        if job.state is JobState.STARTED and counts(job.spec)
    ]
    if not ages:
        return None
    spent_ms = min(too_many, RETRIES_COUNTED_MAX) * sum(ages) * len(sample)
    wait_ms = -(-spent_ms // (len(ages) ** 2 * len(leases)))
    return min(max(wait_ms, RETRY_MIN_MS), RETRY_MAX_MS)


def _limited_at(spec: JobSpec) -> Iterator[tuple[Key, Path | None]]:
    """Yield each scope of a limit on unfinished jobs that counts a job, with its place."""
    yield (None, False), None
    for claim in spec.claims:
        for depth in range(len(claim.path) + 1):
            place = claim.path[:depth]
            yield (place, False), place
            if depth:
                yield (place[:-1], True), place
    yield ("task", spec.task), None
    yield ("pool", spec.pool), None


def fresh_for_ms(job: Job, now_ms: int) -> int:
    """Return for how long the submission of a hidden job stays under way; 0 or less otherwise."""
    start = job.need_extras().start if job.is_hidden else None
    if start is None or start.is_over or start.expiry is None:
        return 0
    return start.expiry[0] - STAGED_KEPT_MS + STAGED_FRESH_MS - now_ms


class Submission:
    """
    One `Enqueue` and its existing jobs.

    ``ids`` holds the ids of its jobs, ``elsewhere`` the jobs of these ids that belong to another submission in parts.
    """

    def __init__(self, state: State, operation: Enqueue) -> None:
        self._state = state
        self._table = state.table
        self._closing = operation.closing
        self._specs = operation.jobs
        self._parent = operation.parent
        self._is_further = operation.is_further
        self._staged = operation.staged
        self._flow = operation.flow
        self.elsewhere: list[Job] = []
        self.ids = frozenset([spec.id for spec in self._specs]) if self._has_edges() else frozenset()

    def existing(self, spec: JobSpec) -> Job | None:
        """Return the existing job with a spec's id. Staged jobs of other submissions are invisible."""
        job = self._table.jobs.get(spec.id)
        if job is None or not self._is_known(job) or self._is_expired(job):
            return None
        return job

    def _is_expired(self, job: Job) -> bool:
        """Return whether a job is a signal whose time to be kept is over, which may be given anew."""
        if job.spec.task != SIGNAL_TASK or not job.id.startswith(SIGNAL_MARK) or job.timer is None:
            return False
        return job.timer[0] <= self._state.now_ms and not self._table.edges.has_dependents(job.id)

    @property
    def parent(self) -> Job | None:
        """The running job whose handler makes these jobs, if any."""
        return None if self._parent is None else self._table.jobs[self._parent[0]]

    def check(self) -> None:
        """
        Refuse a submission that cannot be enqueued as a whole.

        Raises:
            LeaseLostError: the parent does not run under this token any more.
            DuplicateJobError: an id is taken by a job of other content, or by one that is not the last of the path to
                close; a key is taken.
            DuplicateFlowError: the flow has other jobs.
            PathClosedError: a claim is at or below a closed path.
            UnknownDependencyError: a dependency is not there.
            CycleError: a job waits for its parent.
            ConcurrentSubmissionError: a job of a part is hidden in an older submission that is under way.
            FlowNotFoundError: the submission in parts it belongs to was committed, has expired, or lost a job.
            QueueFullError: more jobs would be unfinished than a limit allows; it says whether work is due.
        """
        if self._parent is not None:
            self._check_parent(*self._parent)
        if self._staged is not None:
            start = self._table.jobs.get(START_MARK + self._staged)
            if start.is_over if start is not None else self._is_further:
                raise FlowNotFoundError(self._staged)
            if start is not None and self._specs and start.spec.flow != self._specs[0].flow:
                raise InvalidJobError(OTHER_FLOW)
        new_keys: dict[str, str] = {}
        seen: set[str] = set()
        jobs, closed, closing = self._table.jobs, self._table.closed, self._closing
        for spec in self._specs:
            existing = jobs.get(spec.id)
            if existing is not None and self._is_expired(existing):
                existing = None
            if existing is not None and not self._is_known(existing):
                if self._staged is not None:
                    self._check_turn(existing)
                self.elsewhere.append(existing)
                existing = None
            if existing is not None:
                if existing.spec != spec and (fields := existing.fields_differing(spec)) is not None:
                    raise DuplicateJobError(spec.id, fields=fields)
                if closing is not None and closed.get(closing.path) != spec.id:
                    raise DuplicateJobError(spec.id, not_last_at=key_of(closing.path))
                continue
            if closed and (path := closed_above(closed, spec, closing)) is not None:
                raise PathClosedError(key_of(path))
            if spec.policy.cost > 1 and (found := self._table.limits.exceeded_by(spec)) is not None:
                limit, place = found
                selected = "pool" if limit.task is None else "task"
                kind = selected if limit.path is None else "path"
                raise InvalidJobError(cost_refusal(spec, limit.costs_max, kind, place))
            if spec.key is not None:
                self._check_key(spec, spec.key, new_keys)
            if spec.depends_on:
                self._check_edges(spec, seen)
        if self._flow is not None:
            self._check_flow(self._flow)
        if self._table.limits.max_pending and closing is None:
            self._check_room()

    def _check_turn(self, job: Job) -> None:
        """
        Refuse a part with a job hidden in an older submission that is under way.

        A younger submission waits for an older one, and an older one takes from a younger: so none waits in a circle,
        and of those that want the same jobs the oldest goes on.
        """
        other, own = job.need_extras().start, self._table.jobs.get(f"{START_MARK}{self._staged}")
        if other is None or (own is not None and own.number < other.number):
            return
        fresh_ms = fresh_for_ms(job, self._state.now_ms)
        if fresh_ms > 0:
            raise ConcurrentSubmissionError(job.id, fresh_ms / 1000)

    def _check_flow(self, flow: str) -> None:
        """Refuse an existing flow id with other jobs. The same jobs again are the same flow."""
        there = self._table.flows.visible(flow)
        if not there:
            return
        known = [self.existing(spec) for spec in self._specs]
        kept = sum(job is not None and not job.gone for job in known)
        if None in known or (self._staged is None and kept < there):
            raise DuplicateFlowError(flow)

    def _check_room(self) -> None:
        """Count new jobs against the limits, job by job. Jobs taken from other submissions make room."""
        limits = self._table.limits
        new: Counter[tuple[Key, Path | None]] = Counter()
        for job in self.elsewhere:
            for key, place in _limited_at(job.spec):
                # Of a task or a pool those count that are younger than the limit.
                new[key, place] -= key not in limits.pending or job.number > limits.since[key]
        keys: set[str] = set()
        for spec in self._specs:
            # A signal is over as soon as it is there.
            if self.existing(spec) is not None or spec.id.startswith(SIGNAL_MARK):
                continue
            if spec.key is not None:
                newest = self._table.keys.newest(spec.key, self._table.journal.now_ms)
                if spec.key in keys or (newest is not None and newest.stands_for_key):
                    continue
                keys.add(spec.key)
            for key, place in _limited_at(spec):
                self._count_new(key, place, new)

    def _count_new(self, key: Key, place: Path | None, new: Counter[tuple[Key, Path | None]]) -> None:
        """Count a new job against the limit of a key, at a place; None for the namespace, a task or a pool."""
        limits = self._table.limits
        most = limits.max_pending.get(key)
        if most is None:
            return
        new[key, place] += 1
        pending = limits.pending.get(key, self._table.unfinished)
        if place is not None:
            pending = self._table.paths.watched[key].get(place, 0)  # type: ignore[index]
        too_many = pending + new[key, place] - most
        if too_many > 0:
            task, pool = (key[1] if key[0] == kind else None for kind in ("task", "pool"))

            def counts(spec: JobSpec) -> bool:
                if place is not None:
                    return any(is_prefix(place, claim.path) for claim in spec.claims)
                return task in {None, spec.task} and pool in {None, spec.pool}

            retry_ms = retry_after_ms(self._table, counts, too_many)
            retry_after_s = None if retry_ms is None else retry_ms / 1000
            path_key = None if place is None else key_of(place)
            more = is_behind(self._state)
            raise QueueFullError(path_key, pending, most, retry_after_s, task=task, pool=pool, more=more)

    def _has_edges(self) -> bool:
        return any(spec.depends_on for spec in self._specs)

    def _is_known(self, job: Job) -> bool:
        if not job.is_hidden:
            return True
        return self._staged is not None and job.need_extras().start is self._table.jobs.get(START_MARK + self._staged)

    def _check_parent(self, parent_id: str, token: object) -> None:
        parent = self._table.jobs.get(parent_id)
        if parent is None or parent.state is not JobState.STARTED or type(token) is not int or token != parent.token:
            raise LeaseLostError(parent_id, token)  # type: ignore[arg-type]

    def _check_key(self, spec: JobSpec, key: str, new_keys: dict[str, str]) -> None:
        if spec.on_conflict == "reject":
            newest = self._table.keys.newest(key, self._table.journal.now_ms)
            owner = newest.id if newest is not None else new_keys.get(key)
            if owner is not None:
                raise DuplicateJobError(owner, key=key)
        new_keys.setdefault(key, spec.id)

    def _check_edges(self, spec: JobSpec, seen: set[str]) -> None:
        jobs = self._table.jobs
        first = spec.depends_on[:PORTION_MAX]
        for edge in first:
            job = jobs.get(edge.id)
            is_there = job is not None and self._is_known(job)
            if edge.id.startswith(SIGNAL_MARK):
                # It may be given later.
                continue
            if (job is not None and job.gone) or (not is_there and edge.id not in self.ids):
                raise UnknownDependencyError(spec.id, edge.id)
        if self._parent is not None:
            parent_id = self._parent[0]
            if self._table.edges.reaches(jobs, [edge.id for edge in first], {parent_id}, seen):
                raise CycleError([parent_id, spec.id])
