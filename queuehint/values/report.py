"""Replies to questions about jobs: reasons, trees of places, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from shlex import quote
from typing import Literal

import attrs

from queuehint.values.hint import key_of
from queuehint.values.outcome import Progress
from queuehint.values.record import OVER, JobState, moment
from queuehint.values.record_filter import RecordFilter
from queuehint.values.signal import name_of


class ReasonKind(StrEnum):
    """Why a job waits."""

    OVER = "over"
    RUNNING = "running"
    OVERDUE = "overdue"
    """Runs past its timeout, or on after a cancellation: its place is free when its code has really ended."""
    PERMIT = "permit"
    """Runs, and its code waits for a permit of `Scheduler.permit`: it goes on by itself."""
    TIME = "time"
    DEPENDENCY = "dependency"
    SIGNAL = "signal"
    """Signals are not given that it waits for."""
    DEAD_DEPENDENCY = "dead_dependency"
    """It depends on a dead job, which is to be redriven or discarded, or to expire."""
    PLACE = "place"
    """Jobs placed before it conflict with it, or stand ahead of it in a line."""
    DEAD_HOLD = "dead_hold"
    """A FAILED job before it holds its place until it is redriven or discarded, or its record expires."""
    BACKOFF = "backoff"
    PAUSED = "paused"
    LIMIT = "limit"
    """Ready: as many jobs of a place run or have started as its limit allows; it goes on by itself."""
    UNKNOWN_TASK = "unknown_task"
    """The workers that took it do not know its task, or an argument of it."""
    NO_WORKER = "no_worker"
    """No worker has asked for jobs of its pool lately."""
    WORKER = "worker"
    """Ready: waits for a free slot of a worker."""
    CALLER = "caller"
    """Ready: the caller of `exclusive` or `permit` is about to take it."""


JOBS_NAMED_MAX = 10
"""How many jobs a reason names."""


@attrs.frozen(kw_only=True)
class Reason:
    """
    The reason of a job's state: the first obstacle that must end before anything else can.

    Args:
        jobs: the ids of up to 10 jobs that stand in the way, in order of their places; of dependencies in order of id;
            of a limit at which jobs wait in order the first of these; of a permit up to 10 that hold the limit, by the
            jobs whose code does, before them.
            For a moment, while a line is about to advance, its head has none, and others are behind the head alone.
        open_dependencies: how many jobs a DEFERRED job still waits for in all, dead ones included; 0 for all others.
        dependencies: how many jobs it was told to depend on, of which these are the open ones; 0 for one that has run
            and waits for its children, and for all that are not DEFERRED.
        path_key: the place where it waits or whose limit it waits for, or the path that is paused.
        until_ms: when the wait ends by time alone; of a pause, when it ends by itself; of a rate limit without a token,
            when it has the next one, which the first of the jobs that wait there takes.
        stuck: only a person or a new worker can end the wait.
        progress: of a running job, as its handler has reported it last.
        selection: the filter by which it is paused, or the task or pool whose limit it waits for, if that is not of a
            path.
    """

    job_id: str
    state: JobState
    kind: ReasonKind
    jobs: tuple[str, ...] = ()
    path_key: str | None = None
    until_ms: int | None = None
    stuck: bool = False
    detail: str | None = None
    open_dependencies: int = 0
    dependencies: int = 0
    progress: Progress | None = None
    selection: RecordFilter | None = None

    @property
    def way_out(self) -> str | None:
        """
        Return the remedy of the wait, with its command; None for an ended job.

        >>> Reason(job_id="a", state=JobState.QUEUED, kind=ReasonKind.PAUSED, path_key="doc 1", stuck=True).way_out
        "resume the path: queuehint resume 'doc 1'"
        """
        if self.kind in {ReasonKind.DEPENDENCY, ReasonKind.PLACE} and not self.jobs:
            return None
        job_id = quote(self.job_id)
        other = quote(self.jobs[0]) if self.jobs else job_id
        if self.kind is ReasonKind.DEAD_DEPENDENCY and len(self.jobs) > 1:
            # One of them alone would leave it waiting.
            return f"redrive them: queuehint dead retry {' '.join(map(quote, self.jobs))}"
        if self.kind is ReasonKind.DEPENDENCY and self.stuck:
            return f"cancel one of those that wait for one another: queuehint cancel {other}"
        if self.selection is not None and self.kind is ReasonKind.PAUSED:
            return f"resume what is selected: queuehint resume {_options(self.selection)}"
        text = _WAYS_OUT.get(self.kind)
        place = quote(self.path_key or "root") if self.selection is None else _options(self.selection)
        signal = quote(next(filter(None, map(name_of, self.jobs)), ""))
        return None if text is None else text.format(id=job_id, other=other, path=place, signal=signal)

    def __str__(self) -> str:
        return f"{self.job_id} is {self.state}: {self.text}"

    @property
    def text(self) -> str:
        """The cause of the wait in words, without the job and its state."""
        if self.kind is ReasonKind.DEPENDENCY and self.open_dependencies > len(self.jobs) > 0:
            return self._still_open() + (f" ({self.detail})" if self.detail else "")
        behind = f" of {', '.join(self.jobs)}" if self.jobs else ""
        if self.kind is ReasonKind.LIMIT and self.jobs:
            behind = f" behind {self.jobs[0]}"
        if self.kind is ReasonKind.PERMIT and self.jobs:
            behind = f", in the way: {', '.join(self.jobs)},"
        if self.kind is ReasonKind.SIGNAL:
            behind = f" {', '.join([name_of(job_id) or job_id for job_id in self.jobs])}"
        at = f" at {self.path_key}" if self.path_key is not None else ""
        until = (
            f" until {moment(self.until_ms).isoformat(timespec='milliseconds')}" if self.until_ms is not None else ""
        )
        is_wide = self.kind is ReasonKind.DEPENDENCY and self.dependencies > JOBS_NAMED_MAX
        rest = f"; {self._still_open()}" if is_wide and self.jobs else ""
        detail = f" ({self.detail})" if self.detail else ""
        done = f", progress {_done(self.progress)}" if self.progress is not None else ""
        said = _SENTENCES[self.kind]
        if self.selection is not None:
            said = f"{'paused by' if self.kind is ReasonKind.PAUSED else f'{said} of'} {_options(self.selection)}"
        return f"{said}{behind}{rest}{at}{until}{detail}{done}"

    def _still_open(self) -> str:
        """Return the numbers of open and of all dependencies. A job may wait for another of its key besides."""
        of = f" of {_grouped(self.dependencies)}" if self.dependencies >= self.open_dependencies else ""
        return f"{_grouped(self.open_dependencies)}{of} jobs are still to end"


def _grouped(number: int) -> str:
    """
    Return a number with its digits in groups.

    >>> _grouped(3412)
    '3 412'
    """
    return f"{number:,}".replace(",", " ")


def _options(selection: RecordFilter) -> str:
    """Return a filter as options of the command line."""
    named = [(name, getattr(selection, name)) for name in ("service", "user", "task", "pool", "tag")]
    at = [] if selection.path is None else [quote(key_of(selection.path))]
    return " ".join([*at, *[f"--{name} {quote(value)}" for name, value in named if value is not None]])


def _done(progress: Progress) -> str:
    counts = "/".join(f"{number:g}" for number in (progress.done, progress.total) if number is not None)
    return " ".join(part for part in (counts, progress.note) if part)


_SENTENCES = {
    ReasonKind.OVER: "over",
    ReasonKind.RUNNING: "running",
    ReasonKind.OVERDUE: "told to stop, its code still runs",
    ReasonKind.PERMIT: "running, its code waits for a permit",
    ReasonKind.TIME: "waits for its time",
    ReasonKind.DEPENDENCY: "waits for the end",
    ReasonKind.SIGNAL: "waits for the signal",
    ReasonKind.DEAD_DEPENDENCY: "waits for a redrive",
    ReasonKind.PLACE: "waits for the place",
    ReasonKind.DEAD_HOLD: "waits behind the dead hold",
    ReasonKind.BACKOFF: "waits for its next attempt",
    ReasonKind.PAUSED: "its path is paused",
    ReasonKind.LIMIT: "ready, waits for a limit",
    ReasonKind.UNKNOWN_TASK: "no release that works here can run it",
    ReasonKind.NO_WORKER: "ready, but no worker serves its pool",
    ReasonKind.WORKER: "ready, waits for a free slot",
    ReasonKind.CALLER: "ready, waits for its caller",
}


_WAYS_OUT = {
    ReasonKind.RUNNING: "it ends by itself, or cancel it: queuehint cancel {id}",
    ReasonKind.OVERDUE: "its code has to end: look at its worker, whose end frees the place too",
    ReasonKind.PERMIT: "it comes by itself, or cancel the job: queuehint cancel {id}",
    ReasonKind.TIME: "it comes by itself, or cancel it: queuehint cancel {id}",
    ReasonKind.DEPENDENCY: "ask on from there: queuehint why --chain {other}",
    ReasonKind.SIGNAL: "give it: queuehint signal {signal}; or cancel the job: queuehint cancel {id}",
    ReasonKind.DEAD_DEPENDENCY: "redrive it: queuehint dead retry {other}",
    ReasonKind.PLACE: "ask on from there: queuehint why --chain {other}",
    ReasonKind.DEAD_HOLD: "redrive it, or give it up: queuehint dead retry {other}, queuehint dead purge {other}",
    ReasonKind.BACKOFF: "it comes by itself, or cancel it: queuehint cancel {id}",
    ReasonKind.PAUSED: "resume the path: queuehint resume {path}",
    ReasonKind.LIMIT: "it comes by itself, or change the limit: queuehint limits set {path}",
    ReasonKind.UNKNOWN_TASK: "deploy the code that has its task, or cancel it: queuehint cancel {id}",
    ReasonKind.NO_WORKER: "run a worker for its pool: queuehint worker MODULE:SCHEDULER --pools ...",
    ReasonKind.WORKER: "it comes by itself, or run more workers for its pool: queuehint worker MODULE:SCHEDULER",
    ReasonKind.CALLER: "its caller takes it, or stops to wait",
}


PAUSES_MAX = 10_000
FILTERED_PAUSES_MAX = 100
TOO_MANY_PAUSES = f"a namespace has at most {PAUSES_MAX} pauses, {FILTERED_PAUSES_MAX} of them by filter"


@attrs.frozen(kw_only=True)
class PauseState:
    """
    A pause in force.

    Args:
        filter: which jobs it holds: those with a claim at or below its `path`, of its service, user, task, pool, tag.
        until_ms: when it ends by itself, ms since the epoch; None if it does not.
        parked: how many ready jobs it has parked so far; others may be ready still, and none of these starts either.

    .. versionadded:: 1.0.0
    """

    filter: RecordFilter
    until_ms: int | None
    parked: int


@attrs.frozen(kw_only=True)
class WorkerInfo:
    """
    A worker as registered in the store: at its start, and every 15 seconds while its loop turns.

    Args:
        name: unique to this run of the worker; the one that `JobRecord.worker` names.
        host, pid: the machine and the process it runs in.
        version: what its application calls this release of itself, None if it does not say.
        pools: which pools it serves, in the order that it was told.
        users: whose jobs it runs, None among them for jobs without a user; None for everyone's.
        steal: whom it helps while these have nothing ready; ``"*"`` for everyone.
        slots: how many jobs it runs at once at most.
        running: how many it ran when it was heard of last.
        since_ms: when the store heard of it first; ms since the epoch.
        seen_ms: when the store heard of it last.
        release: a digest of what its code can run, as of `Exchange`; empty if it does not say.

    .. versionadded:: 1.0.0
    """

    name: str
    host: str
    pid: int
    version: str | None
    pools: tuple[str, ...]
    users: tuple[str | None, ...] | None
    steal: tuple[str | None, ...] | Literal["*"]
    slots: int
    running: int
    since_ms: int
    seen_ms: int
    release: str = ""


WORKERS_NAMED_MAX = 3
"""How many workers a reason names; *SERVED_NAMED_MAX* how many pools or users of each."""
SERVED_NAMED_MAX = 5


def refused_text(task: str, releases: Sequence[str]) -> str:
    """
    Return the detail of a job that the releases of all workers here have refused, by their names or digests.

    >>> refused_text("render", ["1.2", "k3v9q0ab"])
    'task render, unknown to releases 1.2, k3v9q0ab'
    """
    return f"task {task}, unknown to release{'s' if len(releases) > 1 else ''} {', '.join(releases)}"


def unserved_text(job: str, workers: Sequence[WorkerInfo], count: int) -> str:
    """
    Return the detail of a job without a serving worker: its requirements, and the present workers.

    Args:
        job: the pool and the user of the job, as a text.
        workers: the first of them by name, up to `WORKERS_NAMED_MAX`.
        count: how many there are in all.

    >>> unserved_text("pool gpu", [], 0)
    'pool gpu; there are no workers'
    """
    if not count:
        return f"{job}; there are no workers"
    named = [f"{worker.name} ({_served_text(worker)})" for worker in workers]
    none = "the only worker does not serve it" if count == 1 else f"none of {count} workers serves it"
    return f"{job}; {none}: {_listed(named, count)}"


def _served_text(worker: WorkerInfo) -> str:
    pools = _listed(worker.pools[:SERVED_NAMED_MAX], len(worker.pools))
    if worker.users is None or worker.steal == "*":
        return f"pools {pools}"
    users = (*worker.users, *worker.steal)
    named = ["(no user)" if user is None else user for user in users[:SERVED_NAMED_MAX]]
    return f"pools {pools}, users {_listed(named, len(users))}"


def _listed(named: Sequence[str], count: int) -> str:
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return f"{', '.join(named)}{more}"


@attrs.frozen(kw_only=True)
class TreeNode:
    """
    Live counts at one path.

    Args:
        path_key: the place.
        started: STARTED jobs with a claim here; *started_below* with one at or below.
        waiting: claims in line here.
        granted: claims granted here (running, ready, in back-off or on dead hold).
        passing: claims further down that have passed here.
        paused, closed: an operator said so for this very path.
        dead: how many of those granted here are held by dead jobs, until these are redriven or discarded.
        waiting_for_signals: claims here of jobs that wait for a signal, which hold no place meanwhile;
            *waiting_for_signals_below* at or below. Looked at are the jobs that `Stats.waiting_for_signals` counts.
        children: those with anything live, or such jobs, as deep as asked; in order of their names as a path key writes
            them, by code point.
        after: the cursor of the children that were cut, by a limit or the number of nodes: ``tree`` of this place with
            this as ``after`` goes on behind it. ``""``: none is here, begin at the first. None: all are here.
    """

    path_key: str
    started: int
    started_below: int
    waiting: int
    granted: int
    passing: int
    paused: bool
    closed: bool
    dead: int = 0
    waiting_for_signals: int = 0
    waiting_for_signals_below: int = 0
    children: tuple[TreeNode, ...] = ()
    after: str | None = None


@attrs.frozen(kw_only=True)
class Delays:
    """The number of delays, and their sizes: *sum_ms* in all, *max_ms* at most."""

    count: int
    sum_ms: int
    max_ms: int


@attrs.frozen(kw_only=True)
class Stats:
    """
    Counts over the whole namespace. Totals count since the backend began. Permits and holds count as jobs.

    Args:
        states: jobs by state; they always add up to the jobs whose records are kept.
        ready: jobs a worker may start now, by pool.
        oldest_ready_ms: by pool, when the job that has waited longest of these took its place, ms since the epoch.
            Looked at are the next jobs of the pool's first 100 users by name: with more users, or where a user has jobs
            of several priorities or redriven ones, another one may have waited longer.
        stuck: waits that only a person or a new worker can end, by `ReasonKind` value.
        waiting_for_signals: of the DEFERRED jobs those that wait for a signal, without the waits themselves. Looked at
            are the first 1 000 that wait for others, with 4 000 edges in all: beyond that there may be more.
        enqueued, started, settled: totals of jobs taken in, of grants, and of settlements that counted.
        finished, failed, canceled: totals of ends; a dead job that is discarded is CANCELED too.
        retried: total of attempts that failed with another to follow.
        snoozed, released: totals of attempts that were put off, or given back by a worker that stops or does not know
            the task.
        lost: total of attempts whose worker died.
        pruned: total of jobs forgotten for good, with their ids, which stay taken for ten minutes after their ends at
            least. Until then a job without a record is counted neither here nor in `states`.
        dropped: of these, total of those whose records went before their time, because the store was short of memory.
        resolved: jobs that took their places when the last of their dependencies ended, and how long after that end.
        leftovers: pieces of work begun and not ended by the last operation.
        nodes: nodes of the trie, the root not counted.
    """

    states: dict[JobState, int]
    ready: dict[str, int]
    oldest_ready_ms: dict[str, int]
    stuck: dict[str, int]
    enqueued: int
    started: int
    settled: int
    finished: int
    failed: int
    canceled: int
    retried: int
    snoozed: int
    released: int
    lost: int
    pruned: int
    dropped: int = 0
    waiting_for_signals: int = 0
    resolved: Delays
    leftovers: int
    nodes: int

    @property
    def unfinished(self) -> int:
        """The number of unfinished jobs."""
        return sum(count for state, count in self.states.items() if state not in OVER)


@attrs.frozen(kw_only=True)
class FlowStats:
    """
    How far a flow is.

    Args:
        states: its jobs by state, as far as their records are kept.
        held_by: the ids of up to ten dead jobs for which all that is left of it waits; none if any job of it can go on.
            In place of a parent that failed by its children stand those that it has made and that are dead still.
    """

    states: dict[JobState, int]
    held_by: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The number of jobs of the flow."""
        return sum(self.states.values())

    @property
    def unfinished(self) -> int:
        """The unfinished jobs."""
        return sum(count for state, count in self.states.items() if state not in OVER)

    @property
    def stuck(self) -> bool:
        """
        Whether the flow is stalled until somebody redrives or discards a dead job, listed in `held_by`.

        `FlowHandle.state` says STUCK then.
        """
        return bool(self.held_by)


@attrs.frozen(kw_only=True)
class EdgeStats:
    """
    The explicit edges of a namespace.

    Args:
        deferred: jobs that wait for others.
        open_edges: edges to jobs whose end is waited for.
        oldest_id, oldest_ms: the one that was enqueued first, and when; None if there is none.
        looked_at: how many DEFERRED jobs, the oldest first, the rest is about: at most 1 000, with up to 4 000 edges.
        most_blocked: the largest number of jobs one of them waits for.
        most_awaited: the largest number of jobs that depend on one of those they wait for.
        behind_dead: how many of them wait for a job in the dead-letter queue.
        orphans: up to 100 ids of jobs with an edge that leads nowhere, or without one. Must be empty; the doctor mends.
    """

    deferred: int
    open_edges: int
    oldest_id: str | None
    oldest_ms: int | None
    looked_at: int
    most_blocked: int
    most_awaited: int
    behind_dead: int
    orphans: tuple[str, ...]
