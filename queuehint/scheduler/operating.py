"""Questions and commands of an operator: why, tree, stats, cancel, pause, close, limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from queuehint.backends.steps import Steps, run_steps, run_steps_sync, tick_until_done
from queuehint.client.handle import JobHandle, id_of
from queuehint.client.submission import arrange, check_spec
from queuehint.errors import BackendError, InvalidJobError, InvalidJobTypeError, OutcomeUnknownError, shown
from queuehint.operations import (
    BEFORE_LAST,
    IDS_MAX,
    TALLIES,
    WEIGHT_MAX,
    BeforeLast,
    Cancel,
    CancelPath,
    CanDequeue,
    Close,
    Closing,
    CountEdges,
    CountJobs,
    Counts,
    DropLimit,
    Enqueue,
    ListLimits,
    ListWeights,
    Pause,
    Pull,
    Reopen,
    Resume,
    SetLimit,
    SweptPath,
    Tree,
    Verdict,
    Weigh,
    Why,
)
from queuehint.operations.bounds import check_last
from queuehint.scheduler.base import SchedulerBase
from queuehint.scheduler.event_streams import EventStream, EventStreamSync, event_filter
from queuehint.scheduler.records.bulk import check_choice_of_jobs, checked_filter, order_all
from queuehint.scheduler.records.queries import Filter, asked_for, count
from queuehint.values.checks import check_choice, check_int, check_items, check_name
from queuehint.values.hint import Mode, parse_mode, parse_path
from queuehint.values.limit import LimitState, check_limit
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import EdgeStats, Reason, Stats, TreeNode
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from queuehint.client.flow_handle import FlowHandle
    from queuehint.scheduler.event_streams import Kinds

TREE_DEPTH_MAX = 64


_UNFINISHED = tuple([state for state in JobState if not state.is_over])


class Control(SchedulerBase):
    """The operator's part of `Scheduler`."""

    # --- questions -----------------------------------------------------------------------------------------------

    def handle(self, job_id: str | JobHandle[Any]) -> JobHandle[Any]:
        """Return a handle of any job by its id, without asking whether it exists."""
        return JobHandle(self, id_of(self, job_id))

    async def get(self, job_id: str | JobHandle[Any]) -> JobRecord:
        """
        Return all that is known of a job.

        Raises:
            JobNotFoundError: no such job, or its record has expired.
        """
        return await self.handle(job_id).record()

    def get_sync(self, job_id: str | JobHandle[Any]) -> JobRecord:
        """Like `get`, for code without a loop."""
        return self.handle(job_id).record_sync()

    async def why(self, job: str | JobHandle[Any]) -> Reason:
        """Return what a job waits for and which jobs stand in its way; raises as `get`, and of a handle as `cancel`."""
        return await self.backend.call(Why(id_of(self, job, "job")))

    def why_sync(self, job: str | JobHandle[Any]) -> Reason:
        """Like `why`, for code without a loop."""
        return self.backend.call_sync(Why(id_of(self, job, "job")))

    async def tree(self, path: Sequence[str] = (), depth: int = 1) -> TreeNode:
        """Return live counts at *path* and up to *depth* (0–64) levels below it, at most 1 000 nodes."""
        return await self.backend.call(_tree(path, depth))

    def tree_sync(self, path: Sequence[str] = (), depth: int = 1) -> TreeNode:
        """Like `tree`, for code without a loop."""
        return self.backend.call_sync(_tree(path, depth))

    async def can_dequeue(self, hint: Sequence[str] | None, mode: Mode = "exclusive") -> bool:
        """Return whether nothing that executes now conflicts with *hint*; None conflicts with nothing."""
        question = _can_dequeue(hint, mode)
        return question is None or await self.backend.call(question)

    def can_dequeue_sync(self, hint: Sequence[str] | None, mode: Mode = "exclusive") -> bool:
        """Like `can_dequeue`, for code without a loop."""
        question = _can_dequeue(hint, mode)
        return question is None or self.backend.call_sync(question)

    @overload
    async def stats(self) -> Stats: ...
    @overload
    async def stats(self, **part: Unpack[Filter]) -> Counts: ...
    async def stats(self, **part: Any) -> Stats | Counts:
        """
        Return counts over the whole namespace, or how many records of a part of it there are, by state.

        Args:
            service, user, task, pool, path, state, since, until: which part; as in `RecordStore.count`.
        """
        return await run_steps(self.backend, _counts(part))

    @overload
    def stats_sync(self) -> Stats: ...
    @overload
    def stats_sync(self, **part: Unpack[Filter]) -> Counts: ...
    def stats_sync(self, **part: Any) -> Stats | Counts:
        """Like `stats`, for code without a loop."""
        return run_steps_sync(self.backend, _counts(part))

    def events(
        self,
        kinds: Kinds | None = None,
        *,
        path: Sequence[str] | None = None,
        user: str | None = None,
        flow: str | FlowHandle | None = None,
        after: int | None = None,
    ) -> EventStream:
        """
        Follow the events of jobs, of every process: ``async for event in sched.events(path=["doc1"]): ...``

        An event comes within 1.25 s. While somebody follows the last 10 000 events are kept; who asks for none for a
        minute misses those of that time. What was missed is counted in the stream's ``missed``, and logged as a
        warning. The store passes over events that are not asked for.

        Args:
            kinds: one or several kinds, as `EventKind` or their words; by default all.
            path: of jobs at or below this place; ``[]`` is every job that has one.
            user: of this user's jobs.
            flow: of the jobs of this flow, by its handle or its id.
            after: the number of the last event seen, as in the stream's ``after``, to go on from there; by default it
                begins with what happens from now on.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: one is not a kind of event, or another parameter is
                wrong.
            WouldDeadlockError: while reading, inside a handler that would have to wait.
        """
        return EventStream(self, self._event_readers, event_filter(kinds, path, user, flow), after)

    def events_sync(
        self,
        kinds: Kinds | None = None,
        *,
        path: Sequence[str] | None = None,
        user: str | None = None,
        flow: str | FlowHandle | None = None,
        after: int | None = None,
    ) -> EventStreamSync:
        """Like `events`, for code without a loop: ``for event in sched.events_sync(): ...``."""
        return EventStreamSync(self, self._event_readers, event_filter(kinds, path, user, flow), after)

    async def edges(self) -> EdgeStats:
        """Return how many jobs wait for others, which longest, and whether an edge leads nowhere."""
        return await self.backend.call(CountEdges())

    def edges_sync(self) -> EdgeStats:
        """Like `edges`, for code without a loop."""
        return self.backend.call_sync(CountEdges())

    # --- operators -----------------------------------------------------------------------------------------------

    @overload
    async def cancel(self, ids: Iterable[str | JobHandle[Any]], *, reason: str | None = None) -> list[bool]: ...
    @overload
    async def cancel(
        self,
        ids: None = None,
        *,
        reason: str | None = None,
        all: bool = False,
        limit: int | None = None,
        **part: Unpack[Filter],
    ) -> int: ...
    async def cancel(
        self,
        ids: Any = None,
        *,
        reason: str | None = None,
        all: bool = False,
        limit: int | None = None,
        **part: Any,
    ) -> list[bool] | int:
        """
        Cancel jobs by id, or every unfinished job at or below a path, or that fits a filter.

        Args:
            ids: up to 1 000 ids or handles; or
            part: those that fit a `Filter`: ``cancel(user="ann", task="send")``. With *path* alone (``[]`` is every job
                that has one) all that were enqueued before this call; with more also those that are enqueued before
                it is done; or
            all: every unfinished job of the namespace.
            limit: at most so many of those that fit, in order of enqueue (of a path in order of their places).

        Returns:
            For ids: True for each that is CANCELED now, False for each whose worker has yet to stop it, or that was
            over or unknown. Else how many jobs were canceled or, running, asked to stop, in bounded steps; in a sweep
            of a path those asked before do not count again. If the store fails meanwhile in such a sweep, the number
            is that of those known to be reached by then, and whoever calls next goes on with the rest.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter; also for a handle of another
                namespace or another store.
        """
        return await run_steps(self.backend, self._cancel(ids, reason, all, limit, part))

    @overload
    def cancel_sync(self, ids: Iterable[str | JobHandle[Any]], *, reason: str | None = None) -> list[bool]: ...
    @overload
    def cancel_sync(
        self,
        ids: None = None,
        *,
        reason: str | None = None,
        all: bool = False,
        limit: int | None = None,
        **part: Unpack[Filter],
    ) -> int: ...
    def cancel_sync(
        self,
        ids: Any = None,
        *,
        reason: str | None = None,
        all: bool = False,
        limit: int | None = None,
        **part: Any,
    ) -> list[bool] | int:
        """Like `cancel`, for code without a loop."""
        return run_steps_sync(self.backend, self._cancel(ids, reason, all, limit, part))

    def _cancel(self, ids: Any, reason: Any, every: object, limit: object, part: Any) -> Steps[list[bool] | int]:
        reason = None if reason is None else check_name(reason, parameter="reason")
        check_choice_of_jobs("cancel()", ids, every, limit, part)
        if ids is None and limit is None and part.keys() == {"path"} and part["path"] is not None:
            return (yield from _sweep(CancelPath(parse_path(part["path"]), reason)))
        if ids is None:
            asked = checked_filter("cancel()", part, _UNFINISHED, every=bool(every))
            if any(state.is_over for state in asked.states):
                raise InvalidJobError("cancel(): state must be one of jobs that are not over")
            return (yield from order_all(asked, limit, lambda some: Cancel(some, reason)))
        found = check_items(ids, parameter="ids", most=IDS_MAX)
        reply = yield Cancel(tuple([id_of(self, job, "ids") for job in found]), reason)
        yield from tick_until_done(more=reply.more)
        return [verdict is Verdict.DONE for verdict, _ in reply.verdicts]

    async def pause(self, path: Sequence[str]) -> bool:
        """Stop starts of jobs at or below *path*; they keep their places. False if it was paused already."""
        return (await self.backend.call(Pause(parse_path(path)))).changed

    def pause_sync(self, path: Sequence[str]) -> bool:
        """Like `pause`, for code without a loop."""
        return self.backend.call_sync(Pause(parse_path(path))).changed

    async def resume(self, path: Sequence[str]) -> bool:
        """Undo `pause` of this very path. False if it was not paused."""
        return (await self.backend.call(Resume(parse_path(path)))).changed

    def resume_sync(self, path: Sequence[str]) -> bool:
        """Like `resume`, for code without a loop."""
        return self.backend.call_sync(Resume(parse_path(path))).changed

    async def set_weight(self, user: str | None, weight: int) -> bool:
        """
        Give a user up to *weight* starts a turn, in every pool, until it is set again. False if it was so already.

        Args:
            user: None for jobs without a user.
            weight: 1–100; 1 is everyone's who has no other. Up to 1 000 users may have another.
        """
        return (await self.backend.call(_weigh(user, weight))).changed

    def set_weight_sync(self, user: str | None, weight: int) -> bool:
        """Like `set_weight`, for code without a loop."""
        return self.backend.call_sync(_weigh(user, weight)).changed

    async def weights(self) -> dict[str | None, int]:
        """Return the weights that are not 1, by user; None stands for jobs without a user."""
        return dict((await self.backend.call(ListWeights())).users)

    def weights_sync(self) -> dict[str | None, int]:
        """Like `weights`, for code without a loop."""
        return dict(self.backend.call_sync(ListWeights()).users)

    @overload
    async def close_path(self, path: Sequence[str]) -> bool: ...
    @overload
    async def close_path(
        self, path: Sequence[str], *, last: JobSpec, waiting: BeforeLast = "cancel"
    ) -> JobHandle[Any]: ...
    async def close_path(self, path: Any, *, last: Any = None, waiting: Any = "cancel") -> bool | JobHandle[Any]:
        """
        Refuse new jobs at or below a path; with a last job, enqueue it in the same step and let nothing come behind it.

        With *last* no other job at or below the path takes a place or is redriven either, until `reopen_path`: not one
        that waits for its time, for other jobs, for its next attempt or for the commit of its flow. If the last job
        fails, it is tried again as any other, and the path stays closed.

        Args:
            last: what ``job.spec(...)`` returns: a job with an exclusive claim at the path and no key. It passes what
                is closed at or below the path already, and `max_pending`.
            waiting: what is done with the unfinished jobs at or below the path. ``"cancel"``: they are canceled, as by
                `cancel`, and dead ones that hold a place there are discarded; ``"run"``: those that have a place go
                before the last job.

        Returns:
            False if the path was closed already; with *last* the job's handle. Asked for again with the same id, it
            changes nothing.

        Raises:
            InvalidHintError, InvalidJobError, InvalidJobTypeError: a bad path; the job cannot be the last one there.
            DuplicateJobError: a job of this id is there, and is another one or not the last of this path.
            PathClosedError: a path above is closed, or another one that the job claims.
        """
        if last is None:
            return (await self.backend.call(_close(path, waiting))).changed
        job_id, created = await run_steps(self.backend, _close_with(path, last, waiting))
        return JobHandle(self, job_id, created=created)

    @overload
    def close_path_sync(self, path: Sequence[str]) -> bool: ...
    @overload
    def close_path_sync(
        self, path: Sequence[str], *, last: JobSpec, waiting: BeforeLast = "cancel"
    ) -> JobHandle[Any]: ...
    def close_path_sync(self, path: Any, *, last: Any = None, waiting: Any = "cancel") -> bool | JobHandle[Any]:
        """Like `close_path`, for code without a loop."""
        if last is None:
            return self.backend.call_sync(_close(path, waiting)).changed
        job_id, created = run_steps_sync(self.backend, _close_with(path, last, waiting))
        return JobHandle(self, job_id, created=created)

    async def reopen_path(self, path: Sequence[str]) -> bool:
        """Undo `close_path` of this very path. False if it was not closed."""
        return (await self.backend.call(Reopen(parse_path(path)))).changed

    def reopen_path_sync(self, path: Sequence[str]) -> bool:
        """Like `reopen_path`, for code without a loop."""
        return self.backend.call_sync(Reopen(parse_path(path))).changed

    async def limit(
        self,
        path: Sequence[str] | None,
        most: int | None = None,
        *,
        each: bool = False,
        rate: tuple[int, float | timedelta] | None = None,
        max_pending: int | None = None,
    ) -> bool:
        """
        Limit the running, starting or waiting jobs of a place, replacing its limit; None is unlimited.

        A limit never changes the order of jobs that conflict: it acts on jobs that are ready. What runs goes on: where
        more runs than may, nothing starts until enough has ended.

        Args:
            path: jobs with a claim at or below it; ``[]`` is every job that has a place, ``None`` the whole namespace,
                jobs without a place included, which takes `max_pending` alone.
            most: how many of them run at once, 1–1 000 000.
            each: the same for each child of the path by itself; a job of the path itself counts under no child. It
                takes `most` alone, and stands besides a limit of the path as a whole.
            rate: how many start in a time of up to 24 h, such as ``(100, timedelta(seconds=1))``: a bucket of 100
                tokens, refilled evenly, one a start.
            max_pending: how many may be unfinished, 1–1 000 000 000: a submission that would leave more is refused
                with `QueueFullError`. A job counts once a claim.

        Returns:
            False if the limit was set so already.

        Raises:
            InvalidHintError, InvalidJobError: naming the parameter, the value and the limit; there are 1 000 limits.
        """
        return await run_steps(self.backend, _mark(_limit(path, most, each, rate, max_pending)))

    def limit_sync(
        self,
        path: Sequence[str] | None,
        most: int | None = None,
        *,
        each: bool = False,
        rate: tuple[int, float | timedelta] | None = None,
        max_pending: int | None = None,
    ) -> bool:
        """Like `limit`, for code without a loop."""
        return run_steps_sync(self.backend, _mark(_limit(path, most, each, rate, max_pending)))

    async def unlimit(self, path: Sequence[str] | None) -> bool:
        """Take away all limits of this very path, or with None of the namespace. False if it had none."""
        return await run_steps(self.backend, _mark(_unlimit(path)))

    def unlimit_sync(self, path: Sequence[str] | None) -> bool:
        """Like `unlimit`, for code without a loop."""
        return run_steps_sync(self.backend, _mark(_unlimit(path)))

    async def limits(self) -> Sequence[LimitState]:
        """Return all limits with their present counts: the namespace first, then in order of path."""
        return (await self.backend.call(ListLimits())).limits

    def limits_sync(self) -> Sequence[LimitState]:
        """Like `limits`, for code without a loop."""
        return self.backend.call_sync(ListLimits()).limits


def _can_dequeue(hint: Any, mode: Any) -> CanDequeue | None:
    mode = parse_mode(mode)
    return None if hint is None else CanDequeue(parse_path(hint), mode)


def _weigh(user: Any, weight: Any) -> Weigh:
    checked = None if user is None else check_name(user, parameter="user")
    return Weigh(checked, check_int(weight, parameter="weight", least=1, most=WEIGHT_MAX))


def _counts(part: Any) -> Steps[Stats | Counts]:
    if part:
        return (yield from count(asked_for(part)))
    stats: Stats = yield CountJobs()
    return stats


def _tree(path: Any, depth: Any) -> Tree:
    return Tree(parse_path(path), check_int(depth, parameter="depth", least=0, most=TREE_DEPTH_MAX))


def _limit(path: Any, most: Any, each: Any, rate: Any, max_pending: Any) -> SetLimit:
    return SetLimit(check_limit(path, most, each=each, rate=rate, max_pending=max_pending))


def _unlimit(path: Any) -> DropLimit:
    return DropLimit(None if path is None else parse_path(path))


def _mark(operation: SetLimit | DropLimit) -> Steps[bool]:
    reply = yield operation
    yield from tick_until_done(more=reply.more)
    return reply.changed  # type: ignore[no-any-return]


def _close(path: Any, waiting: Any) -> Close:
    if waiting != "cancel":
        raise InvalidJobTypeError("close_path() takes waiting with last alone")
    return Close(parse_path(path))


def _close_with(path: Any, last: Any, waiting: Any) -> Steps[tuple[str, bool]]:
    """Close a path with a last job; return its id, and whether it is new."""
    closing = Closing(parse_path(path), check_choice(waiting, BEFORE_LAST, parameter="waiting"))
    if not isinstance(last, JobSpec):
        raise InvalidJobTypeError(
            f"last must be a JobSpec, as job.spec(...) returns it, got {type(last).__name__}: {shown(last)}"
        )
    spec = arrange([check_spec(last, may_lack_id=False)]).parts[0][0]
    check_last(spec, closing.path)
    try:
        enqueued = yield Enqueue((spec,), closing=closing)
    except OutcomeUnknownError as error:
        raise OutcomeUnknownError(error.problem, job_ids=[spec.id]) from error
    yield from tick_until_done(more=enqueued.more)
    return spec.id, enqueued.jobs[0].created


def _sweep(operation: CancelPath) -> Steps[int]:
    reply = yield operation
    yield from tick_until_done(more=reply.more)
    return (yield from _reached(reply))


def _reached(reply: SweptPath) -> Steps[int]:
    """Return how many jobs a sweep has reached that should be over."""
    if reply.number is None:
        return reply.reached
    try:
        tally = (yield Pull(TALLIES, str(reply.number))).value
    except BackendError:
        tally = None
    # It goes on without the caller where a tick failed; what is known then is what it began with.
    return reply.reached if tally is None else int(tally)
