"""Queries and commands of an operator: why, tree, stats, cancel, close."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args, overload

import attrs

from queuehint.backends.steps import Steps, order_some, run_steps, run_steps_sync, tick_until_done
from queuehint.client.arrangement import arrange
from queuehint.client.circles import explained
from queuehint.client.handle import JobHandle, checked_reason, id_of, reasons_of, why_asked
from queuehint.client.options import bound, check_spec
from queuehint.errors import BackendError, InvalidJobError, InvalidJobTypeError, OutcomeUnknownError, shown
from queuehint.operations import (
    BEFORE_LAST,
    IDS_MAX,
    TALLIES,
    TREE_NODES_MAX,
    BeforeLast,
    Cancel,
    CancelPath,
    CanDequeue,
    Close,
    Closing,
    CountEdges,
    CountJobs,
    Counts,
    Enqueue,
    Lines,
    ListLines,
    PathReasons,
    Pull,
    SweptPath,
    Tree,
    Verdict,
)
from queuehint.operations.bounds import check_last
from queuehint.scheduler.event_streams import EventStream, EventStreamSync, event_filter
from queuehint.scheduler.records.bulk import check_choice_of_jobs, checked_filter, order_all
from queuehint.scheduler.records.due_now import DueNow
from queuehint.scheduler.records.queries import Filter, asked_for, count
from queuehint.schema.checks import check_choice, check_int, check_items, check_str
from queuehint.values.hint import Mode, Path, parse_mode, parse_path
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import EdgeStats, Reason, Stats, TreeNode
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.client.flows.handle import FlowHandle
    from queuehint.handlers.codec import Codec
    from queuehint.scheduler.event_streams import Kinds

TREE_DEPTH_MAX = 64
TreeOrder = Literal["name", "line"]
TREE_ORDERS: tuple[TreeOrder, ...] = get_args(TreeOrder)

_UNFINISHED = tuple([state for state in JobState if not state.is_over])


class Control(DueNow):
    """The operator's part of `Scheduler`."""

    # --- questions -----------------------------------------------------------------------------------------------

    def handle(self, job_id: str | JobHandle[Any]) -> JobHandle[Any]:
        """Return a handle of any job by its id, without a check that the job exists."""
        return JobHandle(self, id_of(self, job_id))

    async def get(self, job_id: str | JobHandle[Any]) -> JobRecord:
        """
        Return the record of a job.

        Raises:
            JobNotFoundError: no such job, or its record has expired.
        """
        return await self.handle(job_id).record()

    def get_sync(self, job_id: str | JobHandle[Any]) -> JobRecord:
        """Like `get`, for code without a loop."""
        return self.handle(job_id).record_sync()

    @overload
    async def why(self, job: str | JobHandle[Any]) -> Reason: ...
    @overload
    async def why(self, job: str | JobHandle[Any], *, chain: Literal[True]) -> tuple[Reason, ...]: ...
    @overload
    async def why(self, *, path: Sequence[str], limit: int = 3) -> PathReasons: ...
    async def why(self, job: Any = None, *, chain: bool = False, path: Any = None, limit: int | None = None) -> Any:
        """
        Return the reason of a job's wait and the jobs in its way. Raises as `get`, and of a handle as `cancel`.

        Or of a *path*, which jobs wait there and what stands in their way, with task, user, place, state and reason of
        each; one question, which looks at 500 claims there at most.

        Args:
            chain: return why the jobs wait that it waits for too, and so on: up to 16 reasons from the job to the root
                cause, a wait that does not end by itself if one is found. `Reason.way_out` of the last says what ends
                it.
            path: the place asked about, with all below it, in place of *job*.
            limit: how many of its oldest jobs are named, and how many of its newest, 1–16.
        """
        reply = await run_steps(self.backend, explained(why_asked(self, job, chain, path, limit)))
        return reply.at_path or reasons_of(reply, chain)

    @overload
    def why_sync(self, job: str | JobHandle[Any]) -> Reason: ...
    @overload
    def why_sync(self, job: str | JobHandle[Any], *, chain: Literal[True]) -> tuple[Reason, ...]: ...
    @overload
    def why_sync(self, *, path: Sequence[str], limit: int = 3) -> PathReasons: ...
    def why_sync(self, job: Any = None, *, chain: bool = False, path: Any = None, limit: int | None = None) -> Any:
        """Like `why`, for code without a loop."""
        reply = run_steps_sync(self.backend, explained(why_asked(self, job, chain, path, limit)))
        return reply.at_path or reasons_of(reply, chain)

    async def tree(
        self,
        path: Sequence[str] = (),
        depth: int = 1,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: TreeOrder = "name",
    ) -> TreeNode:
        """
        Return live counts at *path* and up to *depth* (0–64) levels below it, at most 1 000 nodes besides the first.

        Args:
            after: only the children of *path* behind this name, its last segment: `TreeNode.after` of the page before.
                That a child comes or goes moves no other one: a child that is there all the while is in exactly one
                page. A page may have fewer than *limit* children, even none; the last is the one without a cursor.
            limit: at most so many children, 1–1 000; None for 1 000.
            order: ``"line"`` returns as children the places up to *depth* levels below at which jobs wait, the longest
                lines first, those of one length in order of path key; they have no children of their own, and *after*
                is refused. Each count was right when it was read. Of the root one question tells them, at a bounded
                cost: on Redis the lines of four and more are known by their length, in powers of two, and the first
                1 000 are looked at, so that with more of them a line that is left out is less than twice as long as
                the shortest of these; where they are too few, shorter lines are looked for at 1 000 places. Below a
                path all places there are looked at, on Redis up to 1 000 in one step.

        .. versionadded:: 1.0.0
        """
        return await run_steps(self.backend, _tree(path, depth, after, limit, order))

    def tree_sync(
        self,
        path: Sequence[str] = (),
        depth: int = 1,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: TreeOrder = "name",
    ) -> TreeNode:
        """Like `tree`, for code without a loop."""
        return run_steps_sync(self.backend, _tree(path, depth, after, limit, order))

    async def can_dequeue(self, hint: Sequence[str] | None, mode: Mode = "exclusive") -> bool:
        """Return whether no executing job conflicts with *hint*. None conflicts with nothing."""
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
        Return counts over the whole namespace, or the number of records of a part of the namespace, by state.

        Args:
            service, user, task, pool, tag, path, state, flow, parent, waits_for, since, until: which part; as in
                `RecordStore.count`.
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

        An event comes within 1.25 s. While there is a subscriber, the last 10 000 events, or 16 MiB of them, are kept;
        one that asks for none for a minute misses those of that time. Missed events are counted in the stream's
        ``missed``, and logged as a warning. The store passes over events that are not asked for.

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
        """Return the number of waiting jobs and their edges, and the ids of jobs with a dangling edge."""
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
        Cancel jobs: by id, by a filter, or all unfinished jobs at or below a path.

        Args:
            ids: up to 1 000 ids or handles; or
            part: those that fit a `Filter`: ``cancel(user="ann", task="send")``. With *path* alone (``[]`` is every job
                that has one) all that were enqueued before this call; with more also those that are enqueued before
                it is done; or
            all: every unfinished job of the namespace.
            limit: at most so many of those that fit, in order of enqueue (of a path in order of their places).

        Returns:
            For ids, of which 128 are canceled at a time: True for each that is CANCELED now, False for each whose
            worker has yet to stop it, or that was over or unknown. Else how many jobs were canceled or, running, asked
            to stop, in bounded steps; in a sweep of a path those asked before do not count again. If the store fails
            meanwhile in such a sweep, the number is that of those known to be reached by then, and the next call goes
            on with the rest.

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
        reason = checked_reason(reason)
        check_choice_of_jobs("cancel()", ids, every, limit, part)
        if ids is None and limit is None and part.keys() == {"path"} and part["path"] is not None:
            return (yield from _sweep(CancelPath(parse_path(part["path"]), reason)))
        if ids is None:
            asked = checked_filter("cancel()", part, _UNFINISHED, every=bool(every))
            if any(state.is_over for state in asked.states):
                raise InvalidJobError("cancel(): state must be a state of unfinished jobs")
            return (yield from order_all(asked, limit, lambda some: Cancel(some, reason)))
        found = check_items(ids, parameter="ids", most=IDS_MAX)
        verdicts = yield from order_some(
            [id_of(self, job, "ids") for job in found], lambda some: Cancel(some, reason), first="newest"
        )
        return [verdict is Verdict.DONE for verdict, _ in verdicts]

    @overload
    async def close_path(self, path: Sequence[str]) -> bool: ...
    @overload
    async def close_path(
        self, path: Sequence[str], *, last: JobSpec, waiting: BeforeLast = "cancel"
    ) -> JobHandle[Any]: ...
    async def close_path(self, path: Any, *, last: Any = None, waiting: Any = "cancel") -> bool | JobHandle[Any]:
        """
        Refuse new jobs at or below a path. A last job is enqueued in the same step, and no job follows it.

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
        job_id, created = await run_steps(self.backend, _close_with(path, last, waiting, self.codec))
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
        job_id, created = run_steps_sync(self.backend, _close_with(path, last, waiting, self.codec))
        return JobHandle(self, job_id, created=created)

    async def reopen_path(self, path: Sequence[str]) -> bool:
        """Undo `close_path` of this very path. Return False if the path was open."""
        return (await self.backend.call(Close(parse_path(path), reopen=True))).changed

    def reopen_path_sync(self, path: Sequence[str]) -> bool:
        """Like `reopen_path`, for code without a loop."""
        return self.backend.call_sync(Close(parse_path(path), reopen=True)).changed


def _can_dequeue(hint: Any, mode: Any) -> CanDequeue | None:
    mode = parse_mode(mode)
    return None if hint is None else CanDequeue(parse_path(hint), mode)


def _counts(part: Any) -> Steps[Stats | Counts]:
    if part:
        return (yield from count(asked_for(part)))
    stats: Stats = yield CountJobs()
    return stats


def _tree(path: Any, depth: Any, after: Any, limit: Any, order: Any) -> Steps[TreeNode]:
    path = parse_path(path)
    depth = check_int(depth, parameter="depth", least=0, most=TREE_DEPTH_MAX)
    limit = TREE_NODES_MAX if limit is None else check_int(limit, parameter="limit", least=1, most=TREE_NODES_MAX)
    order = check_choice(order, TREE_ORDERS, parameter="order")
    if after is not None and check_str(after, parameter="after"):
        (after,) = parse_path([after], parameter="after")
    if order == "line":
        if after is not None:
            raise InvalidJobError(
                f"after requires order='name', got {shown(after)}; the longest lines have no pages: "
                f"ask for a higher limit, at most {TREE_NODES_MAX}"
            )
        return (yield from _longest_lines(path, depth, limit))
    node: TreeNode = yield Tree(path, depth, after or None, limit)
    return node


def _longest_lines(path: Path, depth: int, limit: int) -> Steps[TreeNode]:
    """
    Return a place with the longest lines below it as its children.

    Of the root one question tells them. Below a path the pages of all places are merged; each leaves out what is
    shorter than the shortest line so far.
    """
    node: TreeNode = yield Tree(path, 0)
    longest: list[TreeNode] = []
    if depth and not path:
        whole: Lines = yield ListLines(path, depth, limit=limit, longest=True)
        return attrs.evolve(node, children=whole.places)
    after: str | None = None
    while depth:
        longer_than = longest[-1].waiting - 1 if len(longest) == limit else 0
        page: Lines = yield ListLines(path, depth, after, limit, longer_than)
        found = {place.path_key: place for place in (*longest, *page.places)}
        longest = sorted(found.values(), key=lambda place: (-place.waiting, place.path_key))[:limit]
        after = page.after
        if after is None:
            break
    return attrs.evolve(node, children=tuple(longest))


def _close(path: Any, waiting: Any) -> Close:
    if check_choice(waiting, BEFORE_LAST, parameter="waiting") != "cancel":
        raise InvalidJobTypeError("close_path(): waiting requires last")
    return Close(parse_path(path))


def _close_with(path: Any, last: Any, waiting: Any, codec: Codec) -> Steps[tuple[str, bool]]:
    """Close a path with a last job. Return its id, and whether the job is new."""
    closing = Closing(parse_path(path), check_choice(waiting, BEFORE_LAST, parameter="waiting"))
    if not isinstance(last, JobSpec):
        raise InvalidJobTypeError(
            f"last must be a JobSpec, as job.spec(...) returns it, got {type(last).__name__}: {shown(last)}"
        )
    spec = bound(arrange([check_spec(last, may_lack_id=False)], codec=codec).parts[0])[0]
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
    """Return how many of the jobs that a sweep reached should have ended."""
    if reply.number is None:
        return reply.reached
    try:
        tally = (yield Pull(TALLIES, str(reply.number))).value
    except BackendError:
        tally = None
    # It goes on without the caller where a tick failed; what is known then is what it began with.
    return reply.reached if tally is None else int(tally)
