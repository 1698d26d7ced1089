"""`FlowHandle`: state, results and drawing of a submitted flow."""

from __future__ import annotations

import math
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn

from queuehint.backends.base import Interest
from queuehint.backends.steps import Steps, Wait, run_steps, run_steps_sync, tick_until_done, was_in_vain
from queuehint.client.flows.children import draw_with_children
from queuehint.client.flows.ends import ends_of, read_over, unfinished, was_not_needed
from queuehint.client.flows.graph import FlowGraph
from queuehint.client.flows.rerun import rerun
from queuehint.client.flows.stuck import find_dead
from queuehint.client.handle import Client, JobHandle, outcome
from queuehint.client.record_reads import read_page
from queuehint.client.stuck import StuckWatch
from queuehint.errors import (
    FlowNotFoundError,
    InvalidJobError,
    JobNotFoundError,
    ResultTimeoutError,
    WouldDeadlockError,
    shown,
    shows_itself,
)
from queuehint.handlers.context import is_in_handler, refuse_to_wait
from queuehint.operations import IDS_MAX, CancelFlow, CountRecords, Get, Position, Redrive, Verdict
from queuehint.schema.checks import check_bool, check_choice, check_id, check_name, check_optional_duration
from queuehint.values.outcome import Progress
from queuehint.values.record import STEPS_CHOICES, JobRecord, JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import FlowStats
from queuehint.values.spec import When

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from datetime import timedelta

    from queuehint.client.handle import InFlow
    from queuehint.values.record import StepsChoice
    from queuehint.values.spec import Dependency

BEGIN: Final = ("", 0)
"""The position before the first job of a flow."""
POLL_MIN_S = 0.02
POLL_MAX_S = 5.0
"""
How often a flow is checked that may have come to a stop, for which there is no notification; for its end there is one.

The pause grows with the wait, so a stop is noticed after half as long again as it took, and within five seconds.
"""
READ_AT_ONCE = 100
READ_EVERY_S = 30.0
"""How often ended jobs of a flow are read: their records may be kept for no longer than a minute."""
_MOVING = (JobState.SCHEDULED, JobState.QUEUED, JobState.STARTED)


class FlowState(StrEnum):
    """State of a flow as a whole."""

    RUNNING = "RUNNING"
    """Some of its jobs are not over."""
    STUCK = "STUCK"
    """Some are not over, and none of these can go on until a dead job is redriven or discarded: `FlowStats.held_by`."""
    FAILED = "FAILED"
    """All are over, at least one FAILED."""
    CANCELED = "CANCELED"
    """All are over, none FAILED, at least one CANCELED."""
    FINISHED = "FINISHED"


def state_of(stats: FlowStats, was_canceled: Callable[[], Steps[bool]]) -> Steps[FlowState]:
    """
    Return the state of a flow.

    Args:
        was_canceled: reads whether a job that was needed is CANCELED. Asked only if some are and none FAILED.
    """
    if stats.unfinished:
        return FlowState.STUCK if stats.stuck else FlowState.RUNNING
    if stats.states.get(JobState.FAILED):
        return FlowState.FAILED
    if stats.states.get(JobState.CANCELED) and (yield from was_canceled()):
        return FlowState.CANCELED
    return FlowState.FINISHED


@shows_itself
class FlowHandle:
    """
    One flow: its state, its results, its jobs.

    Args:
        id: the flow's id.

    Raises:
        FlowNotFoundError: by each method that asks the store: it knows no job of the flow.
    """

    def __init__(self, client: Client, flow_id: str) -> None:
        self._client = client
        self.id = flow_id
        self._ends: tuple[str, ...] | None = None
        """The ids of the jobs that no other one of the flow depends on, once they are known."""
        self._jobs: tuple[str, ...] = ()
        """The ids of all of them, once they are known."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def __getitem__(self, name: str) -> JobHandle[Any]:
        """
        Return the handle of a job by its name in the flow.

        Raises:
            InvalidJobError: the flow was not built here; `job` asks the store.
        """
        raise InvalidJobError(f"flow {shown(self.id)} was not built here: ask for `await flow.job({shown(name)})`")

    def edges(self, when: When, client: Client, flow: InFlow | None = None) -> Sequence[Dependency]:
        """Refuse the flow as a dependency: its last jobs are known only where the flow was built."""
        raise InvalidJobError(f"after: flow {shown(self.id)} was not built here; give the jobs it ends with")

    # --- what it is ----------------------------------------------------------------------------------------------

    async def stats(self) -> FlowStats:
        """
        Return the jobs of the flow by state, and the dead jobs that hold up a stuck flow.

        Where nothing of it is SCHEDULED or STARTED, up to 1 000 of its jobs that wait for others and up to 1 000 that
        have failed are looked at, and up to 100 that have a place; those beyond count as these. What these wait for is
        followed, through jobs of elsewhere too, by up to 200 questions, each along up to 16 jobs.
        """
        return await run_steps(self._client.backend, self._stats())

    def stats_sync(self) -> FlowStats:
        """Like `stats`, for code without a loop."""
        return run_steps_sync(self._client.backend, self._stats())

    async def state(self) -> FlowState:
        """
        Return the state of the flow as a whole. STUCK is decided as in `stats`.

        A job that was to run only if another one failed, and was not needed, counts for nothing.
        """
        return await run_steps(self._client.backend, self._state())

    def state_sync(self) -> FlowState:
        """Like `state`, for code without a loop."""
        return run_steps_sync(self._client.backend, self._state())

    async def progress(self) -> Progress:
        """Return how many jobs of the flow have ended."""
        stats = await run_steps(self._client.backend, self._count())
        return Progress(done=stats.total - stats.unfinished, total=stats.total)

    def progress_sync(self) -> Progress:
        """Like `progress`, for code without a loop."""
        stats = run_steps_sync(self._client.backend, self._count())
        return Progress(done=stats.total - stats.unfinished, total=stats.total)

    async def jobs(self) -> AsyncIterator[JobRecord]:
        """Yield the records of the jobs of the flow in order of number, a page at a time."""
        after: Position | None = BEGIN
        while after is not None:
            records, after = await run_steps(self._client.backend, self._page(after))
            for record in records:
                yield record

    def jobs_sync(self) -> Iterator[JobRecord]:
        """Like `jobs`, for code without a loop."""
        after: Position | None = BEGIN
        while after is not None:
            records, after = run_steps_sync(self._client.backend, self._page(after))
            yield from records

    async def job(self, name: str) -> JobHandle[Any]:
        """
        Return the handle of a job by its name in the flow.

        Raises:
            JobNotFoundError: it has none of this name, or its record has expired.
        """
        return await run_steps(self._client.backend, self._find(name))

    def job_sync(self, name: str) -> JobHandle[Any]:
        """Like `job`, for code without a loop."""
        return run_steps_sync(self._client.backend, self._find(name))

    async def graph(self) -> FlowGraph:
        """Return the jobs and edges of the flow, for a drawing, with the children of its jobs and theirs."""
        return await run_steps(self._client.backend, self._graph())

    def graph_sync(self) -> FlowGraph:
        """Like `graph`, for code without a loop."""
        return run_steps_sync(self._client.backend, self._graph())

    # --- what becomes of it --------------------------------------------------------------------------------------

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel all unfinished jobs of the flow. Running jobs are requested to stop."""
        await run_steps(self._client.backend, self._cancel(reason))

    def cancel_sync(self, reason: str | None = None) -> None:
        """Like `cancel`, for code without a loop."""
        run_steps_sync(self._client.backend, self._cancel(reason))

    async def redrive(self, *, downstream: bool = True, steps: StepsChoice = "keep") -> int:
        """
        Queue the dead jobs of the flow again, as `DeadLetters.redrive`. Return how many dead jobs there were.

        Args:
            downstream: also revive the jobs that were canceled because of these.
            steps: ``"keep"`` what the steps of the dead jobs have stored, so that they are not made again, or
                ``"drop"`` it; jobs that are revived keep theirs.

        Raises:
            FlowNotFoundError: no such flow, or the records of its jobs have expired.
            InvalidJobError, InvalidJobTypeError: naming the parameter.
        """
        return await run_steps(self._client.backend, self._redrive(downstream, steps))

    def redrive_sync(self, *, downstream: bool = True, steps: StepsChoice = "keep") -> int:
        """Like `redrive`, for code without a loop."""
        return run_steps_sync(self._client.backend, self._redrive(downstream, steps))

    async def rerun(
        self,
        job: str | JobHandle[Any],
        *jobs: str | JobHandle[Any],
        downstream: bool = True,
        version: int | Sequence[int] | None = None,
        steps: StepsChoice = "drop",
    ) -> int:
        """
        Run ended jobs of the flow again, whatever their state, and their dependents.

        They keep ids and history, and wait for what they depend on, as at first. Jobs that are not over are left. Of
        several callers at once one runs a job again. It returns how many were queued again.

        Args:
            job, jobs: names in the flow, ids or handles, up to 1 000; with *downstream* False they are run alone.
            version: of the job's record as it was seen, of several jobs one for each: at another one only what follows
                from it and is older is run again, so that a call may be repeated, whatever became of the one before.
            steps: ``"keep"`` what their steps have stored, or ``"drop"`` it.

        Raises:
            FlowNotFoundError, JobNotFoundError: no such flow, or no such job in it.
            InvalidJobError, InvalidJobTypeError: naming the parameter; or a job that follows from it runs, has a place
                or waits for a time; or one cannot run again. It is named; those before it may run again already.
            StaleRecordError: others change the records all the time.

        .. versionadded:: 1.0.0
        """
        again = rerun(self._client, self._all, Redrive, (job, *jobs), downstream, version, steps)
        return len(await run_steps(self._client.backend, again))

    def rerun_sync(
        self,
        job: str | JobHandle[Any],
        *jobs: str | JobHandle[Any],
        downstream: bool = True,
        version: int | Sequence[int] | None = None,
        steps: StepsChoice = "drop",
    ) -> int:
        """Like `rerun`, for code without a loop."""
        again = rerun(self._client, self._all, Redrive, (job, *jobs), downstream, version, steps)
        return len(run_steps_sync(self._client.backend, again))

    async def result(self, timeout: float | timedelta | None = None) -> dict[str, Any]:
        """
        Wait until the flow is over and return its results.

        Jobs that end during the wait keep their records a minute at least, however short their retention is; those of a
        flow that was not built here from the first look on.

        Args:
            timeout: a timedelta or seconds; None waits for ever.

        Returns:
            The results of the jobs that no other one of the flow depends on, by name, in order of number; those that
            were to run only if another one failed, and were not needed, are left out.

        Raises:
            JobFailedError, JobCanceledError: a job ended so; raised once none of the flow is SCHEDULED, QUEUED or
                STARTED.
            ResultTimeoutError: it is not over in time, and says why; it goes on.
            WouldDeadlockError: called inside a handler, or below an `exclusive` whose place a job of it needs, and the
                flow is not over.
        """
        return await run_steps(self._client.backend, self._result(timeout, "flow.result()"))

    def result_sync(self, timeout: float | timedelta | None = None) -> dict[str, Any]:
        """
        Like `result`, blocking this thread.

        Raises:
            WouldDeadlockError: also on the thread of a loop that runs this scheduler's own workers.
        """
        return run_steps_sync(self._client.backend, self._result(timeout, "flow.result_sync()", blocks=True))

    # --- steps ---------------------------------------------------------------------------------------------------

    def _count(self) -> Steps[FlowStats]:
        counts = yield CountRecords(RecordFilter(flow=self.id))
        if not counts.total:
            raise FlowNotFoundError(self.id)
        return FlowStats(states=counts.states)

    def _stats(self) -> Steps[FlowStats]:
        stats = yield from self._count()
        if not stats.unfinished:
            return stats
        return FlowStats(states=stats.states, held_by=(yield from find_dead(stats.states, RecordFilter(flow=self.id))))

    def _state(self) -> Steps[FlowState]:
        return (yield from state_of((yield from self._stats()), self._was_canceled))

    def _was_canceled(self) -> Steps[bool]:
        return (yield from self._first(JobState.CANCELED)) is not None

    def _page(self, after: Position) -> Steps[tuple[Sequence[JobRecord], Position | None]]:
        page = yield from read_page(RecordFilter(flow=self.id), after)
        if not page.records and after == BEGIN:
            raise FlowNotFoundError(self.id)
        return page.records, page.after

    def _all(self) -> Steps[list[JobRecord]]:
        found: list[JobRecord] = []
        after: Position | None = BEGIN
        while after is not None:
            records, after = yield from self._page(after)
            found += records
        return found

    def _graph(self) -> Steps[FlowGraph]:
        return (yield from draw_with_children(self.id, (yield from self._all())))

    def _find(self, name: str) -> Steps[JobHandle[Any]]:
        name = check_id(name, parameter="name")
        after: Position | None = BEGIN
        while after is not None:
            records, after = yield from self._page(after)
            for record in records:
                if record.spec.name == name:
                    return JobHandle(self._client, record.id)
        raise JobNotFoundError(name)

    def _cancel(self, reason: str | None) -> Steps[None]:
        reason = None if reason is None else check_name(reason, parameter="reason")
        yield from self._count()
        swept = yield CancelFlow(self.id, reason)
        yield from tick_until_done(more=swept.more)

    def _redrive(self, downstream: object, steps: Any) -> Steps[int]:
        revives = check_bool(downstream, parameter="downstream")
        drops = check_choice(steps, STEPS_CHOICES, parameter="steps") == "drop"
        redriven = 0
        after: Position | None = BEGIN
        while after is not None:
            records, after = yield from self._page(after)
            dead = tuple([record.id for record in records if record.state is JobState.FAILED])
            if dead:
                reply = yield Redrive(dead, revives, drop_steps=drops)
                yield from tick_until_done(more=reply.more)
                redriven += sum(verdict is Verdict.DONE for verdict, _ in reply.verdicts)
        return redriven

    def _result(self, timeout: Any, call: str, *, blocks: bool = False) -> Steps[dict[str, Any]]:
        limit_ms = check_optional_duration(timeout, parameter="timeout")
        deadline = math.inf if limit_ms is None else time.monotonic() + limit_ms / 1000
        pause_s = POLL_MIN_S
        awaited: list[str] | None = None
        watch: StuckWatch | None = None
        read: dict[str, JobRecord] = {}
        read_s, read_states = time.monotonic(), None
        may_wait = not is_in_handler() and not (blocks and self._client.runs_workers_here())
        if may_wait:
            yield from self._keep()
        while True:
            asked_s = time.monotonic()
            stats = yield from self._count()
            if not any(stats.states.get(state) for state in _MOVING):
                failed, canceled = (stats.states.get(state, 0) for state in (JobState.FAILED, JobState.CANCELED))
                first = None
                if failed or canceled:
                    first = yield from self._first(JobState.FAILED if failed else JobState.CANCELED)
                if first is not None:
                    _fail(self._client, first)
                # One that had failed may have been redriven meanwhile.
                if not stats.unfinished and not failed:
                    return (yield from self._results(read))
            refuse_to_wait(call)
            if not may_wait:
                raise WouldDeadlockError(call, where="on the thread of the workers' loop")
            if awaited is None:
                are_kept = bool(self._jobs)
                awaited = list(reversed((yield from self._known_ends())))
                if not are_kept:
                    yield from self._keep()
            if awaited and (watch is None or watch.job_id != awaited[-1]):
                # Behind a dead job the others of the flow go on: what that means for it is seen above.
                is_bounded = limit_ms is not None
                watch = StuckWatch(self._client.backend, awaited[-1], call, raises=False, is_bounded=is_bounded)
            if watch is not None:
                yield from watch.look()
            if limit_ms is not None and asked_s >= deadline:
                yield from _drop_over(awaited, read)
                reasons = (yield from watch.reasons()) if watch is not None else ()
                raise ResultTimeoutError(awaited[-1] if awaited else self.id, limit_ms / 1000, reasons)
            yield from _watch(awaited, read, min(deadline, asked_s + pause_s))
            if asked_s - read_s > READ_EVERY_S and stats.states != read_states:
                yield from read_over(awaited, read)
                read_s, read_states = asked_s, stats.states
            pause_s = min(pause_s * 1.5, POLL_MAX_S)

    def _known_ends(self) -> Steps[tuple[str, ...]]:
        if self._ends is None:
            records = yield from self._all()
            self._ends = tuple([record.id for record in ends_of(records)])
            self._jobs = tuple([record.id for record in records])
        return self._ends

    def _keep(self) -> Steps[None]:
        """Keep the records of the jobs until they are read, however short their retention."""
        for begin in range(0, len(self._jobs), IDS_MAX):
            yield Wait(Interest(kept=self._jobs[begin : begin + IDS_MAX]), 0)

    def _results(self, read: dict[str, JobRecord]) -> Steps[dict[str, Any]]:
        """Return the results of a flow whose jobs are all FINISHED. *read* are records that were read before."""
        if self._ends is None:
            records = ends_of((yield from self._all()))
        else:
            left = unfinished(self._ends, read)
            for begin in range(0, len(left), READ_AT_ONCE):
                ids = tuple(left[begin : begin + READ_AT_ONCE])
                for job_id, record in zip(ids, (yield Get(ids)).records, strict=True):
                    if record is not None:
                        read[job_id] = record
                    elif job_id not in read:
                        raise JobNotFoundError(job_id)
            records = [read[job_id] for job_id in self._ends]
            records.sort(key=lambda record: record.number)
        return {
            record.spec.name or record.id: outcome(self._client, record)
            for record in records
            if not was_not_needed(record)
        }

    def _first(self, state: JobState) -> Steps[JobRecord | None]:
        """Return the first job in this state, None without any. Jobs that were not needed are skipped."""
        after: Position | None = BEGIN
        while after is not None:
            records, after = yield from self._page(after)
            for record in records:
                if record.state is state and not was_not_needed(record):
                    return record
        return None


def _watch(awaited: list[str], read: dict[str, JobRecord], until_s: float) -> Steps[None]:
    """
    Wait until jobs have ended, the last of a list first.

    Remove these jobs from the list, and add their records to *read*.

    Returns when the last is over, or at a time: for the standstill of a flow there is no notification, so it has to
    be looked for.
    """
    has_any = bool(awaited)
    while True:
        begun_s = time.monotonic()
        left_s = until_s - begun_s
        if left_s <= 0 or (has_any and not awaited):
            return
        yield Wait(Interest(jobs=awaited[-1:]), left_s)
        if not was_in_vain(begun_s, left_s):
            yield from _drop_over(awaited, read)


def _drop_over(awaited: list[str], read: dict[str, JobRecord]) -> Steps[None]:
    """Remove the ended jobs from the end of a list, with growing batches of reads."""
    count = 1
    while awaited:
        for record in reversed((yield Get(tuple(awaited[-count:]))).records):
            if record is not None and not record.state.is_over:
                return
            awaited.pop()
            if record is not None:
                read[record.id] = record
        count = min(2 * count, READ_AT_ONCE)


def _fail(client: Client, record: JobRecord) -> NoReturn:
    outcome(client, record)
    raise AssertionError(f"{record.id} is {record.state}")
