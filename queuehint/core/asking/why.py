"""
Reasons and counts: why jobs wait, pending work, statistics.

Read-only.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import attrs

from queuehint import operations as op
from queuehint.core.asking.blockers import Blockers
from queuehint.core.state import handles
from queuehint.core.structures.ready_queue import queue_of
from queuehint.values.event import EventKind
from queuehint.values.hint import key_of
from queuehint.values.record import OVER, JobState
from queuehint.values.report import (
    JOBS_NAMED_MAX,
    WORKERS_NAMED_MAX,
    Delays,
    EdgeStats,
    Reason,
    ReasonKind,
    Stats,
    refused_text,
    unserved_text,
)
from queuehint.values.spec import OF_SIGNALS, SIGNAL_MARK, SIGNAL_TASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from queuehint.core.jobs.table import JobTable
    from queuehint.core.state import State
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.limits import PlaceCounter

REASONS_MAX = 100
DEFERRED_LOOKED_AT_MAX = 1000
EDGES_LOOKED_AT_MAX = 4000
ORPHANS_MAX = 100
DRAINED_LOOKED_AT_MAX = 10
PENDING_LOOKED_AT_MAX = 1000
_SHARED = "shared"


@handles(op.CountEdges)
def count_edges(state: State, _question: op.CountEdges) -> EdgeStats:
    """Answer `CountEdges`."""
    table = state.table
    jobs, edges = table.jobs, table.edges
    most_blocked = most_awaited = behind_dead = looked_at = edges_left = 0
    edges_left = EDGES_LOOKED_AT_MAX
    orphans: list[str] = []
    for job in islice(table.deferred.values(), DEFERRED_LOOKED_AT_MAX):
        if edges_left <= 0:
            break
        looked_at += 1
        blocked = edges.some_open(job)[:edges_left]
        edges_left -= len(blocked)
        most_blocked = max(most_blocked, len(job.blocked))
        is_orphan = not blocked
        is_behind_dead = False
        for job_id in blocked:
            other = jobs.get(job_id)
            most_awaited = max(most_awaited, edges.count(job_id))
            is_missing = other is None and not job_id.startswith(SIGNAL_MARK)
            is_orphan = is_orphan or is_missing or not edges.depends(job, job_id)
            is_behind_dead = is_behind_dead or (other is not None and other.state is JobState.FAILED)
        behind_dead += is_behind_dead
        if is_orphan and len(orphans) < ORPHANS_MAX:
            orphans.append(job.id)
    oldest = next(iter(table.deferred.values()), None)
    return EdgeStats(
        deferred=table.counts[JobState.DEFERRED],
        open_edges=edges.open,
        oldest_id=None if oldest is None else oldest.id,
        oldest_ms=None if oldest is None else oldest.enqueued_ms,
        looked_at=looked_at,
        most_blocked=most_blocked,
        most_awaited=most_awaited,
        behind_dead=behind_dead,
        orphans=tuple(orphans),
    )


def waiting_for_signals(table: JobTable) -> Iterator[Job]:
    """Yield the jobs that wait for a signal among the first DEFERRED jobs, jobs with too many edges left out."""
    edges_left = EDGES_LOOKED_AT_MAX
    for job in islice(table.deferred.values(), DEFERRED_LOOKED_AT_MAX):
        if len(job.blocked) <= edges_left:
            edges_left -= len(job.blocked)
            if job.spec.task != SIGNAL_TASK and any(other.startswith(OF_SIGNALS) for other in job.blocked):
                yield job


@handles(op.CanDequeue)
def can_dequeue(state: State, question: op.CanDequeue) -> bool:
    """Answer `CanDequeue`."""
    return state.table.registry.can_dequeue(question.path, shared=question.mode == _SHARED)


CYCLE_EDGES_MAX = 4000
"""How many edges are looked at to find a cycle."""


def cycle_reason(state: State, job: Job, reason: Reason) -> Reason:
    """Return the reason of a job, with the cycle of open edges through it, if any."""
    if reason.kind is ReasonKind.DEPENDENCY and (cycle := _cycle(state.table.jobs, job)):
        return attrs.evolve(reason, stuck=True, detail=_cycle_text(cycle, job.id))
    return reason


def _cycle_text(cycle: list[str], job_id: str) -> str:
    """Return the reason of a job on a cycle, or behind one."""
    who = "they wait" if job_id in cycle else "it waits for jobs that wait"
    named, more = ", ".join(cycle[:JOBS_NAMED_MAX]), len(cycle) - JOBS_NAMED_MAX
    return f"{who} for one another, cancel one: {named}" + (f" and {more} more" if more > 0 else "")


def reason_of(state: State, job: Job, blockers: Blockers) -> Reason:
    """Return the reason of a job in any state."""
    if job.state is JobState.SCHEDULED:
        return Reason(job_id=job.id, state=job.state, kind=ReasonKind.TIME, until_ms=job.due_ms)
    if job.state is JobState.DEFERRED:
        return _reason_deferred(state, job)
    if job.state is JobState.STARTED:
        timeout_ms = job.spec.policy.timeout_ms
        assert job.started_ms is not None
        overdue = timeout_ms is not None and job.started_ms + timeout_ms < state.now_ms
        kind = ReasonKind.OVERDUE if overdue or job.cancel is not None else ReasonKind.RUNNING
        detail = f"worker {job.worker}, attempt {job.attempts}"
        if job.extras is not None and job.extras.loop_blocked_ms is not None:
            detail += blocked_text(state.now_ms - job.extras.loop_blocked_ms)
        progress = None if job.extras is None else job.extras.progress
        return Reason(job_id=job.id, state=job.state, kind=kind, detail=detail, progress=progress)
    if job.state is JobState.QUEUED:
        return _reason_queued(state, job, blockers)
    return Reason(job_id=job.id, state=job.state, kind=ReasonKind.OVER, detail=job.cause)


def blocked_text(blocked_ms: int) -> str:
    """
    Return the detail that `Why` adds when the event loop of the job's worker is blocked.

    >>> blocked_text(12_700)
    ', its event loop blocked for 12 s'
    """
    return f", its event loop blocked for {blocked_ms // 1000} s"


def _reason_deferred(state: State, job: Job) -> Reason:
    known = state.table.jobs
    # A staged job waits for the commit, whose other jobs are not visible.
    jobs = state.table.edges.some_open(job)
    of_commit = job.extras is not None and job.extras.start is not None
    dead = [job_id for job_id in jobs if (other := known.get(job_id)) is not None and other.state is JobState.FAILED]
    kind = ReasonKind.DEAD_DEPENDENCY if dead else ReasonKind.DEPENDENCY
    until_ms = None
    if jobs and all(job_id.startswith(OF_SIGNALS) for job_id in jobs):
        kind = ReasonKind.SIGNAL
        waits = [job, *[known[job_id] for job_id in jobs if job_id in known]]
        until_ms = min([each.expiry[0] for each in waits if each.expiry is not None], default=None)
    return Reason(
        job_id=job.id,
        state=job.state,
        kind=kind,
        jobs=tuple((dead or jobs)[:JOBS_NAMED_MAX]),
        until_ms=until_ms,
        stuck=bool(dead),
        open_dependencies=len(job.blocked) - of_commit,
        dependencies=0 if job.extras is None or job.started_ms is not None else sum(map(len, job.extras.portions)),
    )


def _cycle(jobs: Mapping[str, Job], job: Job) -> list[str]:
    """
    Return a cycle of open edges through a job, from the job on, or nothing.

    None is ever closed; one in a store may be of an earlier release. Up to 4 000 edges are looked at, breadth first.
    """
    before: dict[str, str | None] = {job.id: None}
    todo, looked_at = [job.id], 0
    for job_id in todo:
        here = jobs.get(job_id)
        if here is None or here.is_over:
            continue
        looked_at += len(here.blocked)
        if looked_at > CYCLE_EDGES_MAX:
            break
        for other in sorted(here.blocked):
            if other == job.id:
                cycle, at = [job_id], before[job_id]
                while at is not None:
                    cycle.append(at)
                    at = before[at]
                return cycle[::-1]
            if other not in before:
                before[other] = job_id
                todo.append(other)
    return []


class _Cycles:
    """
    The cycles of open edges behind which jobs wait, searched where no dependency can go on by itself.

    From each job a way leads on to the first DEFERRED one that it waits for; each is looked at once, and 4 000 edges in
    all.
    """

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._found: dict[str, list[str]] = {}
        self._left = CYCLE_EDGES_MAX

    def ahead(self, job: Job) -> list[str]:
        """Return the cycle on which or behind which a job waits, or nothing."""
        way: dict[str, int] = {}
        at: Job | None = job
        while at is not None and at.id not in way and at.id not in self._found:
            way[at.id] = len(way)
            at = self._next(at)
        cycle = [] if at is None else self._found.get(at.id) or list(way)[way.get(at.id, len(way)) :]
        self._found.update(dict.fromkeys(way, cycle))
        return cycle

    def _next(self, job: Job) -> Job | None:
        self._left -= len(job.blocked)
        if self._left < 0:
            return None
        others = (self._jobs.get(job_id) for job_id in sorted(job.blocked))
        return next((other for other in others if other is not None and other.state is JobState.DEFERRED), None)


def _reason_queued(state: State, job: Job, blockers: Blockers) -> Reason:
    table = state.table
    for walk in job.walks:
        if walk.granted:
            continue
        assert walk.node is not None
        ahead = blockers.of(walk)
        is_dead = any(other.state is JobState.FAILED for other in ahead)
        return Reason(
            job_id=job.id,
            state=job.state,
            kind=ReasonKind.DEAD_HOLD if is_dead else ReasonKind.PLACE,
            jobs=tuple([other.id for other in ahead]),
            path_key=key_of(walk.node.path),
            stuck=is_dead,
        )
    if job.ready is None:
        is_unknown = job.id in table.unknown_task_counts
        kind = ReasonKind.UNKNOWN_TASK if is_unknown else ReasonKind.BACKOFF
        detail = f"task {job.spec.task}" if is_unknown else None
        return Reason(job_id=job.id, state=job.state, kind=kind, until_ms=job.due_ms, stuck=is_unknown, detail=detail)
    if table.pauses and (pause := table.pauses.holding(job)) is not None:
        path = pause.filter.path_alone
        return Reason(
            job_id=job.id,
            state=job.state,
            kind=ReasonKind.PAUSED,
            path_key=None if path is None else key_of(path),
            until_ms=pause.until_ms,
            stuck=pause.until_ms is None,
            selection=pause.filter if path is None else None,
        )
    if job.parked is not None and (counter := table.limits.counter_of(job)) is not None:
        is_oversized = job.parked is counter.limiter.oversized
        return Reason(
            job_id=job.id,
            state=job.state,
            kind=ReasonKind.LIMIT,
            jobs=() if is_oversized else _ahead_of(job, counter),
            path_key=None if counter.selection is not None else key_of(counter.path),
            until_ms=None if is_oversized else counter.until_ms(state.now_ms),
            stuck=is_oversized,
            detail=f"its cost of {job.spec.policy.cost} is more than the limit has" if is_oversized else None,
            selection=counter.selection,
        )
    if job.spec.presence_ms is not None:
        return Reason(job_id=job.id, state=job.state, kind=ReasonKind.CALLER)
    if job.extras is not None and job.extras.refused_by and (detail := _refused_by_all(state, job)) is not None:
        return Reason(job_id=job.id, state=job.state, kind=ReasonKind.UNKNOWN_TASK, stuck=True, detail=detail)
    detail = f"pool {job.spec.pool}" if job.spec.user is None else f"pool {job.spec.pool}, user {job.spec.user}"
    if not state.is_served(job.spec.pool, job.spec.user):
        workers = state.live_workers()
        detail = unserved_text(detail, workers[:WORKERS_NAMED_MAX], len(workers))
        return Reason(job_id=job.id, state=job.state, kind=ReasonKind.NO_WORKER, stuck=True, detail=detail)
    return Reason(job_id=job.id, state=job.state, kind=ReasonKind.WORKER, detail=detail)


def _ahead_of(job: Job, counter: PlaceCounter) -> tuple[str, ...]:
    """Return the first job in line at a strict counter; none for the first job itself, or while another is called."""
    first = counter.parked.first() if counter.is_strict and counter.called is None else None
    return () if first is None or first[3] is job else (first[3].id,)


def _refused_by_all(state: State, job: Job) -> str | None:
    """Return which releases have refused a ready job; None if a live worker of another release serves the job."""
    assert job.extras is not None
    users, is_everyone = state.untried(queue_of(job), job.spec.pool)
    if is_everyone or job.spec.user in users:
        return None
    names = {each.release: each.version for each in state.live_workers() if each.version is not None}
    return refused_text(job.spec.task, [names.get(release, release) for release in job.extras.refused_by])


@handles(op.CountJobs)
def count_jobs(state: State, _question: op.CountJobs) -> Stats:
    """Answer `CountJobs`."""
    table = state.table
    ready = table.ready.sizes()
    stuck = {
        ReasonKind.PAUSED.value: table.pauses.count_parked(endless=True),
        ReasonKind.DEAD_HOLD.value: table.holding,
        ReasonKind.DEAD_DEPENDENCY.value: count_edges(state, op.CountEdges()).behind_dead if table.dead else 0,
        ReasonKind.NO_WORKER.value: state.count_unserved(),
        ReasonKind.UNKNOWN_TASK.value: len(table.unknown_task_counts) + state.count_refused(),
    }
    totals, lifecycle = table.journal.totals, state.lifecycle
    return Stats(
        states=dict(table.counts),
        ready=ready,
        oldest_ready_ms={
            pool: min([job.queued_ms for job in jobs if job.queued_ms is not None])
            for pool, jobs in table.ready.firsts().items()
        },
        stuck=stuck,
        enqueued=state.enqueued,
        started=state.started,
        settled=state.settled,
        finished=totals[EventKind.FINISHED],
        failed=totals[EventKind.FAILED],
        canceled=totals[EventKind.CANCELED],
        retried=totals[EventKind.RETRIED],
        snoozed=totals[EventKind.SNOOZED],
        released=totals[EventKind.RELEASED],
        lost=lifecycle.lost,
        pruned=lifecycle.pruned,
        waiting_for_signals=sum(1 for _ in waiting_for_signals(table)),
        resolved=Delays(count=lifecycle.resolved, sum_ms=lifecycle.resolved_sum_ms, max_ms=lifecycle.resolved_max_ms),
        leftovers=len(table.leftovers),
        nodes=table.trie.nodes,
    )


@handles(op.CountPending)
def count_pending(state: State, question: op.CountPending) -> op.Pending:
    """Answer `CountPending`."""
    table = state.table
    blockers = Blockers(table)
    if question.path is None:
        unfinished = _unfinished(table, question)
        if not unfinished or _anything_moves(state, question):
            return op.Pending(unfinished, moving=unfinished > 0, reasons=())
        # Nothing runs, is ready or backs off: whatever is left waits for a person, or for a time that does not count.
        left = islice((job for job in table.jobs.values() if _counts(job, question)), REASONS_MAX)
        return op.Pending(unfinished, moving=False, reasons=_stalled(state, left, blockers, _Cycles(table.jobs)))
    jobs = (job for job in table.paths.below(question.path) if _counts(job, question))
    some = list(islice(jobs, PENDING_LOOKED_AT_MAX))
    known: dict[str, bool] = {}
    cycles = _Cycles(table.jobs)
    moving = any(_moves(state, job, known, question, blockers, cycles) for job in some)
    if len(some) == PENDING_LOOKED_AT_MAX:
        moving = moving or _anything_moves(state, question)
    reasons = () if moving else _stalled(state, some[:REASONS_MAX], blockers, cycles)
    return op.Pending(len(some), moving=moving, reasons=reasons)


def is_drained(state: State, question: op.CountPending) -> bool:
    """
    Return whether a question counts zero. False too where a search of a few jobs gives no proof.

    Complexity: O(1), below a path O(log paths).
    """
    if question.path is None:
        return not _unfinished(state.table, question)
    some = list(islice(state.table.paths.below(question.path), DRAINED_LOOKED_AT_MAX + 1))
    return len(some) <= DRAINED_LOOKED_AT_MAX and not any(_counts(job, question) for job in some)


def _unfinished(table: JobTable, question: op.CountPending) -> int:
    """Return how many jobs of the namespace a question counts."""
    of = table.counts
    scheduled = of[JobState.SCHEDULED] if question.include_scheduled else 0
    return scheduled + of[JobState.DEFERRED] + of[JobState.QUEUED] + of[JobState.STARTED]


def _stalled(state: State, left: Iterable[Job], blockers: Blockers, cycles: _Cycles) -> tuple[Reason, ...]:
    """Return the reasons of stalled jobs, each with the cycle on which or behind which the job waits."""
    reasons = [reason_of(state, job, blockers) for job in left]
    for at, reason in enumerate(reasons):
        if reason.kind is ReasonKind.DEPENDENCY and (cycle := cycles.ahead(state.table.jobs[reason.job_id])):
            reasons[at] = attrs.evolve(reason, stuck=True, detail=_cycle_text(cycle, reason.job_id))
    return tuple(reasons)


def _anything_moves(state: State, question: op.CountPending) -> bool:
    """Return whether any job at all can go on without a person; O(pools, users served and jobs in back-off)."""
    table = state.table
    if table.leftovers or table.counts[JobState.STARTED]:
        return True
    if table.counts[JobState.SCHEDULED] and (question.include_scheduled or table.counts[JobState.DEFERRED]):
        return True
    if question.include_scheduled and any_wait_ends(table):
        return True
    if table.limits.parks_any() or table.pauses.count_parked(endless=False):
        return True
    if sum(table.ready.sizes().values()) > state.count_unserved() + state.count_refused():
        return True
    return any(job_id not in table.unknown_task_counts for job_id in table.backing_off)


def any_wait_ends(table: JobTable) -> bool:
    """Return whether one of the first DEFERRED jobs waits for signals alone, with a timeout."""
    some = islice(table.deferred.values(), DEFERRED_LOOKED_AT_MAX)
    return any(job.expiry is not None and all(each.startswith(OF_SIGNALS) for each in job.blocked) for job in some)


def _counts(job: Job, question: op.CountPending) -> bool:
    if job.state in OVER or job.is_hidden:
        return False
    return question.include_scheduled or job.state is not JobState.SCHEDULED


_WAITS_FOR_JOBS = frozenset({ReasonKind.PLACE, ReasonKind.DEPENDENCY})


def _moves(
    state: State, job: Job, known: dict[str, bool], question: op.CountPending, blockers: Blockers, cycles: _Cycles
) -> bool:
    """Return whether a job can proceed without a person: neither the job nor a named blocker is stuck."""
    seen = {job.id}
    todo = [job]
    all_wait = True
    while todo:
        reason = reason_of(state, todo.pop(), blockers)
        # Without a named blocker, any job that moves may be the one it waits for.
        is_lost = reason.kind is ReasonKind.PLACE and not reason.jobs and not _anything_moves(state, question)
        if reason.kind is ReasonKind.SIGNAL:
            is_lost = not question.include_scheduled or reason.until_ms is None
        if reason.stuck or is_lost or known.get(reason.job_id) is False:
            known[job.id] = False
            return False
        all_wait = all_wait and reason.kind in _WAITS_FOR_JOBS
        if reason.kind in _WAITS_FOR_JOBS:
            for job_id in reason.jobs:
                if job_id not in seen and known.get(job_id) is not True and job_id in state.table.jobs:
                    seen.add(job_id)
                    todo.append(state.table.jobs[job_id])
    if all_wait and cycles.ahead(job):
        known.update(dict.fromkeys(seen, False))
        return False
    known.update(dict.fromkeys(seen, True))
    return True
