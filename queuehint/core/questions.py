"""Questions: what the engine knows, answered without changing anything."""

from __future__ import annotations

from heapq import merge, nsmallest
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

import attrs

from queuehint.core.blockers import JOBS_NAMED_MAX, Blockers
from queuehint.core.structures.job import START_MARK
from queuehint.core.structures.record_index import is_in_time, numbers, passes
from queuehint.core.structures.registry import ActiveExecutions
from queuehint.core.structures.trie import Node, counts
from queuehint.errors import JobNotFoundError
from queuehint.operations import (
    BLOCK_COUNTS_AS,
    BLOCKS_LOOKED_AT_MAX,
    FETCH_BYTES_MAX,
    RECORDS_COUNTED_MAX,
    RECORDS_LOOKED_AT_MAX,
    RECORDS_PER_BLOCK,
    CanDequeue,
    CountEdges,
    CountFlow,
    CountJobs,
    CountPending,
    CountRecords,
    Counts,
    Fetch,
    Fetched,
    Get,
    Got,
    Limits,
    List,
    ListDead,
    Listed,
    ListFlow,
    ListLimits,
    ListUsers,
    ListWeights,
    Page,
    Pending,
    Tree,
    Users,
    Verdict,
    Weights,
    Why,
)
from queuehint.values.event import EventKind
from queuehint.values.hint import Path, is_prefix, key_of
from queuehint.values.records import OVER, JobState
from queuehint.values.report import Delays, EdgeStats, FlowStats, Reason, ReasonKind, Stats, TreeNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from queuehint.core.engine import Engine
    from queuehint.core.jobs.table import Ledger
    from queuehint.core.structures.job import Job
    from queuehint.operations import Position
    from queuehint.values.record_filter import RecordFilter
    from queuehint.values.records import JobRecord

TREE_NODES_MAX = 1000
REASONS_MAX = 100
DEFERRED_LOOKED_AT_MAX = 1000
EDGES_LOOKED_AT_MAX = 4000
ORPHANS_MAX = 100
PENDING_LOOKED_AT_MAX = 1000

_SHARED = "shared"


def get(engine: Engine, question: Get) -> Got:
    """Answer `Get`."""
    jobs = engine.ledger.jobs
    found = [jobs.get(job_id) for job_id in question.ids]
    return Got(tuple([None if job is None or job.gone or job.is_hidden else job.record() for job in found]))


def fetch(engine: Engine, question: Fetch) -> Fetched:
    """Answer `Fetch`."""
    jobs = engine.ledger.jobs
    job = jobs.get(question.job_id)
    if job is None or job.state is not JobState.STARTED or (type(question.token), question.token) != (int, job.token):
        return Fetched(Verdict.LOST, ())
    declared = {job_id for job_id, _ in job.notes.needs} if job.notes is not None else set()
    results: list[tuple[JobState | None, bytes | None]] = []
    size = 0
    for job_id in question.ids:
        found = jobs.get(job_id) if job_id in declared else None
        if found is None or found.gone:
            results.append((None, None))
            continue
        size += len(found.result or b"")
        if results and size > FETCH_BYTES_MAX:
            break
        results.append((found.state, found.result))
    return Fetched(Verdict.DONE, tuple(results))


def list_records(engine: Engine, question: List) -> Page:
    """Answer `List`."""
    if question.filter.path is not None:
        return _page_by_path(engine.ledger, question, question.filter.path)
    return _page_by_number(engine.ledger, question)


def _page_by_number(ledger: Ledger, question: List) -> Page:
    wanted, newest_first = question.filter, question.newest_first
    after = None if question.after is None else question.after[1]
    records: list[JobRecord] = []
    looked_at = edge = 0
    for place, (block, bits) in enumerate(ledger.catalog.blocks(wanted, after, newest_first=newest_first)):
        if place == BLOCKS_LOOKED_AT_MAX or len(records) == question.limit:
            return Page(tuple(records), ("", edge))
        for number in numbers(bits, block.base, newest_first=newest_first):
            if looked_at == RECORDS_LOOKED_AT_MAX or len(records) == question.limit:
                return Page(tuple(records), ("", edge))
            looked_at, edge = looked_at + 1, number
            if is_in_time(wanted, block.jobs[number].enqueued_ms):
                records.append(block.jobs[number].record())
        edge = block.base if newest_first else block.base + RECORDS_PER_BLOCK - 1
    return Page(tuple(records), None)


def _page_by_path(ledger: Ledger, question: List, path: Path) -> Page:
    records: list[JobRecord] = []
    place: Position = ("", 0)
    entries = _entries(ledger, question.filter, path, question.after, newest_first=question.newest_first)
    for looked_at, (key, number, job) in enumerate(entries):
        if looked_at == RECORDS_LOOKED_AT_MAX or len(records) == question.limit:
            return Page(tuple(records), place)
        place = (key, number)
        if passes(question.filter, job) and _is_first(key, job, path):
            records.append(job.record())
    return Page(tuple(records), None)


def _entries(
    ledger: Ledger, wanted: RecordFilter, path: Path, after: Position | None = None, *, newest_first: bool = False
) -> Iterator[tuple[str, int, Job]]:
    """Yield key, number and job of each claim at or below a path of jobs in states that pass a filter."""
    asked = ((ledger.paths, wanted.is_unfinished), (ledger.past, wanted.is_over))
    return merge(
        *[index.entries(path, after, newest_first=newest_first) for index, is_asked in asked if is_asked],
        key=itemgetter(0, 1),
        reverse=newest_first,
    )


def _is_first(key: str, job: Job, path: Path) -> bool:
    """Say whether a key is the first of a job's claims at or below a path."""
    claims = job.spec.claims
    return len(claims) == 1 or key == min(key_of(claim.path) for claim in claims if is_prefix(path, claim.path))


def count_records(engine: Engine, question: CountRecords) -> Counts:
    """Answer `CountRecords`."""
    states = dict.fromkeys(JobState, 0)
    if question.filter.path is not None:
        return Counts(states, _count_by_path(engine.ledger, question, question.filter.path, states))
    return Counts(states, _count_by_number(engine.ledger, question, states))


def _count_by_number(ledger: Ledger, question: CountRecords, states: dict[JobState, int]) -> Position | None:
    """Count into *states*; return what to go on behind, None at the end."""
    wanted = question.filter
    after = None if question.after is None else question.after[1]
    left, edge = RECORDS_COUNTED_MAX, 0
    for block, bits in ledger.catalog.blocks(wanted, after):
        if left < BLOCK_COUNTS_AS:
            return ("", edge)
        left -= BLOCK_COUNTS_AS
        if is_in_time(wanted, block.first_ms) and is_in_time(wanted, block.last_ms):
            for state, those in block.by_state().items():
                states[state] += (those & bits).bit_count()
        else:
            for number in numbers(bits, block.base):
                if left == 0:
                    return ("", edge)
                left, edge = left - 1, number
                states[block.jobs[number].state] += is_in_time(wanted, block.jobs[number].enqueued_ms)
        edge = block.base + RECORDS_PER_BLOCK - 1
    return None


def _count_by_path(ledger: Ledger, question: CountRecords, path: Path, states: dict[JobState, int]) -> Position | None:
    """Count into *states*; return what to go on behind, None at the end."""
    place: Position = ("", 0)
    for looked_at, (key, number, job) in enumerate(_entries(ledger, question.filter, path, question.after)):
        if looked_at == RECORDS_COUNTED_MAX:
            return place
        place = (key, number)
        states[job.state] += passes(question.filter, job) and _is_first(key, job, path)
    return None


def list_users(engine: Engine, question: ListUsers) -> Users:
    """Answer `ListUsers`."""
    users = engine.ledger.catalog.users.get(question.service, {})
    found = nsmallest(question.limit + 1, [user for user in users if question.after is None or user > question.after])
    page = tuple([(user, users[user]) for user in found[: question.limit]])
    return Users(page, page[-1][0] if len(found) > question.limit else None)


def list_flow(engine: Engine, question: ListFlow) -> Listed:
    """Answer `ListFlow`."""
    jobs = engine.ledger.flows.of(question.flow)
    numbers = list(islice(jobs.irange(question.cursor, inclusive=(False, True)), question.limit + 1))
    page = [jobs[number].record() for number in numbers[: question.limit] if not jobs[number].is_hidden]
    return Listed(tuple(page), numbers[question.limit - 1] if len(numbers) > question.limit else None)


def count_flow(engine: Engine, question: CountFlow) -> FlowStats:
    """Answer `CountFlow`."""
    states = dict.fromkeys(JobState, 0)
    for job in engine.ledger.flows.of(question.flow).values():
        if not job.is_hidden:
            states[job.state] += 1
    return FlowStats(states=states)


def count_edges(engine: Engine, _question: CountEdges) -> EdgeStats:
    """Answer `CountEdges`."""
    ledger = engine.ledger
    jobs, edges = ledger.jobs, ledger.edges
    most_blocked = most_awaited = behind_dead = looked_at = edges_left = 0
    edges_left = EDGES_LOOKED_AT_MAX
    orphans: list[str] = []
    for job in islice(ledger.deferred.values(), DEFERRED_LOOKED_AT_MAX):
        if edges_left <= 0:
            break
        looked_at += 1
        blocked = sorted(job.blocked)[:edges_left]
        edges_left -= len(blocked)
        most_blocked = max(most_blocked, len(job.blocked))
        is_orphan = not blocked
        is_behind_dead = False
        for job_id in blocked:
            other = jobs.get(job_id)
            most_awaited = max(most_awaited, edges.count(job_id))
            is_orphan = is_orphan or other is None or not edges.depends(job, job_id)
            is_behind_dead = is_behind_dead or (other is not None and other.state is JobState.FAILED)
        behind_dead += is_behind_dead
        if is_orphan and len(orphans) < ORPHANS_MAX:
            orphans.append(job.id)
    oldest = next(iter(ledger.deferred.values()), None)
    return EdgeStats(
        deferred=ledger.counts[JobState.DEFERRED],
        open_edges=edges.open,
        oldest_id=None if oldest is None else oldest.id,
        oldest_ms=None if oldest is None else oldest.enqueued_ms,
        looked_at=looked_at,
        most_blocked=most_blocked,
        most_awaited=most_awaited,
        behind_dead=behind_dead,
        orphans=tuple(orphans),
    )


def list_dead(engine: Engine, question: ListDead) -> Listed:
    """Answer `ListDead`."""
    dead = engine.ledger.dead
    numbers = dead.irange(question.cursor, inclusive=(False, True))
    page = [dead[number].record() for number, _ in zip(numbers, range(question.limit + 1), strict=False)]
    more = len(page) > question.limit
    page = page[: question.limit]
    return Listed(tuple(page), page[-1].number if more else None)


def can_dequeue(engine: Engine, question: CanDequeue) -> bool:
    """Answer `CanDequeue`."""
    return engine.ledger.registry.can_dequeue(question.path, shared=question.mode == _SHARED)


CIRCLE_EDGES_MAX = 4000
"""How many edges are looked at to find a circle."""


def why(engine: Engine, question: Why) -> Reason:
    """Answer `Why`."""
    job = engine.ledger.jobs.get(question.job_id)
    if job is None or job.gone or job.is_hidden:
        raise JobNotFoundError(question.job_id)
    reason = _reason(engine, job, Blockers(engine.ledger))
    if reason.kind is ReasonKind.DEPENDENCY and (circle := _circle(engine.ledger.jobs, job)):
        return attrs.evolve(reason, stuck=True, detail=_circle_text(circle, job.id))
    return reason


def _circle_text(circle: list[str], job_id: str) -> str:
    """Return what is said of a job on a circle, or of one that waits for it."""
    who = "they wait" if job_id in circle else "it waits for jobs that wait"
    named, more = ", ".join(circle[:JOBS_NAMED_MAX]), len(circle) - JOBS_NAMED_MAX
    return f"{who} for one another, cancel one: {named}" + (f" and {more} more" if more > 0 else "")


def _reason(engine: Engine, job: Job, blockers: Blockers) -> Reason:
    state = job.state
    if state is JobState.SCHEDULED:
        return Reason(job_id=job.id, state=state, kind=ReasonKind.TIME, until_ms=job.due_ms)
    if state is JobState.DEFERRED:
        return _reason_deferred(engine, job)
    if state is JobState.STARTED:
        timeout_ms = job.spec.policy.timeout_ms
        assert job.started_ms is not None
        overdue = timeout_ms is not None and job.started_ms + timeout_ms < engine.now_ms
        kind = ReasonKind.OVERDUE if overdue or job.cancel is not None else ReasonKind.RUNNING
        detail = f"worker {job.worker}, attempt {job.attempts}"
        if job.notes is not None and job.notes.loop_blocked_ms is not None:
            detail += blocked_text(engine.now_ms - job.notes.loop_blocked_ms)
        return Reason(job_id=job.id, state=state, kind=kind, detail=detail)
    if state is JobState.QUEUED:
        return _reason_queued(engine, job, blockers)
    return Reason(job_id=job.id, state=state, kind=ReasonKind.OVER, detail=job.cause)


def blocked_text(blocked_ms: int) -> str:
    """
    Return what `Why` adds to the detail of a job whose worker's event loop is blocked.

    >>> blocked_text(12_700)
    ', its event loop blocked for 12 s'
    """
    return f", its event loop blocked for {blocked_ms // 1000} s"


def _reason_deferred(engine: Engine, job: Job) -> Reason:
    known = engine.ledger.jobs
    # One that is staged waits for what the commit brings, which nobody knows by name.
    jobs = sorted([job_id for job_id in job.blocked if job_id[0] != START_MARK])
    dead = [job_id for job_id in jobs if (other := known.get(job_id)) is not None and other.state is JobState.FAILED]
    return Reason(
        job_id=job.id,
        state=job.state,
        kind=ReasonKind.DEAD_DEPENDENCY if dead else ReasonKind.DEPENDENCY,
        jobs=tuple((dead or jobs)[:JOBS_NAMED_MAX]),
        stuck=bool(dead),
    )


def _circle(jobs: Mapping[str, Job], job: Job) -> list[str]:
    """
    Return a circle of open edges through a job, from the job on; nothing where there is none.

    None is ever closed; one in a store may be of an earlier release. Up to 4 000 edges are looked at, breadth first.
    """
    before: dict[str, str | None] = {job.id: None}
    todo, looked_at = [job.id], 0
    for job_id in todo:
        here = jobs.get(job_id)
        if here is None or here.is_over:
            continue
        looked_at += len(here.blocked)
        if looked_at > CIRCLE_EDGES_MAX:
            break
        for other in sorted(here.blocked):
            if other == job.id:
                circle, at = [job_id], before[job_id]
                while at is not None:
                    circle.append(at)
                    at = before[at]
                return circle[::-1]
            if other not in before:
                before[other] = job_id
                todo.append(other)
    return []


class _Circles:
    """
    The circles of open edges that jobs wait for, where nothing that they wait for goes on by itself.

    From each job a way leads on to the first DEFERRED one that it waits for; each is looked at once, and 4 000 edges in
    all.
    """

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._found: dict[str, list[str]] = {}
        self._left = CIRCLE_EDGES_MAX

    def ahead(self, job: Job) -> list[str]:
        """Return the circle that a job is on or waits for, nothing where none is found."""
        way: dict[str, int] = {}
        at: Job | None = job
        while at is not None and at.id not in way and at.id not in self._found:
            way[at.id] = len(way)
            at = self._next(at)
        circle = [] if at is None else self._found.get(at.id) or list(way)[way.get(at.id, len(way)) :]
        self._found.update(dict.fromkeys(way, circle))
        return circle

    def _next(self, job: Job) -> Job | None:
        self._left -= len(job.blocked)
        if self._left < 0:
            return None
        others = (self._jobs.get(job_id) for job_id in sorted(job.blocked))
        return next((other for other in others if other is not None and other.state is JobState.DEFERRED), None)


def _reason_queued(engine: Engine, job: Job, blockers: Blockers) -> Reason:
    state = job.state
    ledger = engine.ledger
    for walk in job.walks:
        if walk.granted:
            continue
        assert walk.node is not None
        ahead = blockers.of(walk)
        is_dead = any(other.state is JobState.FAILED for other in ahead)
        return Reason(
            job_id=job.id,
            state=state,
            kind=ReasonKind.DEAD_HOLD if is_dead else ReasonKind.PLACE,
            jobs=tuple([other.id for other in ahead]),
            path_key=key_of(walk.node.path),
            stuck=is_dead,
        )
    if job.ready is None:
        stranger = job.id in ledger.strangers
        kind = ReasonKind.UNKNOWN_TASK if stranger else ReasonKind.BACKOFF
        return Reason(job_id=job.id, state=state, kind=kind, until_ms=job.due_ms, stuck=stranger)
    if ledger.parked and (path := ledger.paused_at(job)) is not None:
        return Reason(job_id=job.id, state=state, kind=ReasonKind.PAUSED, path_key=key_of(path), stuck=True)
    if job.parked is not None and (gauge := ledger.limits.gauge_of(job)) is not None:
        return Reason(job_id=job.id, state=state, kind=ReasonKind.LIMIT, path_key=key_of(gauge.path))
    if job.spec.presence_ms is not None:
        return Reason(job_id=job.id, state=state, kind=ReasonKind.CALLER)
    detail = f"pool {job.spec.pool}" if job.spec.user is None else f"pool {job.spec.pool}, user {job.spec.user}"
    if not engine.is_served(job.spec.pool, job.spec.user):
        return Reason(job_id=job.id, state=state, kind=ReasonKind.NO_WORKER, stuck=True, detail=detail)
    return Reason(job_id=job.id, state=state, kind=ReasonKind.WORKER, detail=detail)


def list_weights(engine: Engine, _question: ListWeights) -> Weights:
    """Answer `ListWeights`."""
    return Weights(tuple(sorted(engine.ledger.ready.weights.items(), key=lambda entry: entry[0] or "")))


def tree(engine: Engine, question: Tree) -> TreeNode:
    """Answer `Tree`."""
    node = engine.ledger.trie.find(question.path)
    if node is None:
        return _tree_node(engine, question.path, Node(None, ""), ())
    room = [TREE_NODES_MAX]
    return _subtree(engine, question.path, node, question.depth, room)


def _subtree(engine: Engine, path: Path, node: Node, depth: int, room: list[int]) -> TreeNode:
    """Describe a node and what is below it, *depth* (at most 64) levels deep, while there is room."""
    children: list[TreeNode] = []
    if depth > 0 and node.children:
        # Sorting a million children would stall whoever asks: only as many as are shown are looked at.
        some = [segment for segment, _ in zip(node.children, range(room[0]), strict=False)]
        for segment in sorted(some):
            if room[0] <= 0:
                break
            room[0] -= 1
            children.append(_subtree(engine, (*path, segment), node.children[segment], depth - 1, room))
    return _tree_node(engine, path, node, tuple(children))


def _tree_node(engine: Engine, path: Path, node: Node, children: tuple[TreeNode, ...]) -> TreeNode:
    shared_passing, passing, shared, exclusive = counts(node.held)
    started, started_below = ActiveExecutions.counts(node)
    return TreeNode(
        path_key=key_of(path),
        started=started,
        started_below=started_below,
        waiting=node.waiting,
        granted=shared + exclusive,
        passing=shared_passing + passing,
        paused=path in engine.ledger.parked,
        closed=path in engine.closed,
        children=children,
    )


def count_jobs(engine: Engine, _question: CountJobs) -> Stats:
    """Answer `CountJobs`."""
    ledger = engine.ledger
    ready = ledger.ready.sizes()
    stuck = {
        ReasonKind.PAUSED.value: sum(len(heap) for heap in ledger.parked.values()),
        ReasonKind.DEAD_HOLD.value: ledger.holding,
        ReasonKind.DEAD_DEPENDENCY.value: count_edges(engine, CountEdges()).behind_dead if ledger.dead else 0,
        ReasonKind.NO_WORKER.value: engine.count_unserved(),
        ReasonKind.UNKNOWN_TASK.value: len(ledger.strangers),
    }
    totals, course = ledger.journal.totals, engine.course
    return Stats(
        states=dict(ledger.counts),
        ready=ready,
        oldest_ready_ms={
            pool: min([job.queued_ms for job in jobs if job.queued_ms is not None])
            for pool, jobs in ledger.ready.firsts().items()
        },
        stuck=stuck,
        enqueued=engine.enqueued,
        started=engine.started,
        settled=engine.settled,
        finished=totals[EventKind.FINISHED],
        failed=totals[EventKind.FAILED],
        canceled=totals[EventKind.CANCELED],
        retried=totals[EventKind.RETRIED],
        snoozed=totals[EventKind.SNOOZED],
        released=totals[EventKind.RELEASED],
        lost=course.lost,
        pruned=course.pruned,
        resolved=Delays(count=course.resolved, sum_ms=course.resolved_sum_ms, max_ms=course.resolved_max_ms),
        leftovers=len(ledger.leftovers),
        nodes=ledger.trie.nodes,
    )


def list_limits(engine: Engine, _question: ListLimits) -> Limits:
    """Answer `ListLimits`."""
    return Limits(engine.ledger.limits.states(engine.ledger.unfinished))


def count_pending(engine: Engine, question: CountPending) -> Pending:
    """Answer `CountPending`."""
    ledger = engine.ledger
    blockers = Blockers(ledger)
    if question.path is None:
        unfinished = sum(count for state, count in ledger.counts.items() if state not in OVER)
        if not question.include_scheduled:
            unfinished -= ledger.counts[JobState.SCHEDULED]
        if not unfinished or _anything_moves(engine, question):
            return Pending(unfinished, moving=unfinished > 0, reasons=())
        # Nothing runs, is ready or backs off: whatever is left waits for a person, or for a time that does not count.
        left = islice((job for job in ledger.jobs.values() if _counts(job, question)), REASONS_MAX)
        return Pending(unfinished, moving=False, reasons=_stalled(engine, left, blockers, _Circles(ledger.jobs)))
    jobs = (job for job in ledger.paths.below(question.path) if _counts(job, question))
    some = list(islice(jobs, PENDING_LOOKED_AT_MAX))
    known: dict[str, bool] = {}
    circles = _Circles(ledger.jobs)
    moving = any(_moves(engine, job, known, question, blockers, circles) for job in some)
    if len(some) == PENDING_LOOKED_AT_MAX:
        moving = moving or _anything_moves(engine, question)
    reasons = () if moving else _stalled(engine, some[:REASONS_MAX], blockers, circles)
    return Pending(len(some), moving=moving, reasons=reasons)


def _stalled(engine: Engine, left: Iterable[Job], blockers: Blockers, circles: _Circles) -> tuple[Reason, ...]:
    """Return why jobs cannot move, with the circle that one waits for or is on."""
    reasons = [_reason(engine, job, blockers) for job in left]
    for at, reason in enumerate(reasons):
        if reason.kind is ReasonKind.DEPENDENCY and (circle := circles.ahead(engine.ledger.jobs[reason.job_id])):
            reasons[at] = attrs.evolve(reason, stuck=True, detail=_circle_text(circle, reason.job_id))
    return tuple(reasons)


def _anything_moves(engine: Engine, question: CountPending) -> bool:
    """Say whether any job at all can go on without a person; O(pools, users asked for and jobs in back-off)."""
    ledger = engine.ledger
    if ledger.leftovers or ledger.counts[JobState.STARTED]:
        return True
    if ledger.counts[JobState.SCHEDULED] and (question.include_scheduled or ledger.counts[JobState.DEFERRED]):
        return True
    if ledger.limits.parks_any() or sum(ledger.ready.sizes().values()) > engine.count_unserved():
        return True
    return any(job_id not in ledger.strangers for job_id in ledger.backing_off)


def _counts(job: Job, question: CountPending) -> bool:
    if job.state in OVER or job.is_hidden:
        return False
    return question.include_scheduled or job.state is not JobState.SCHEDULED


_WAITS_FOR_JOBS = frozenset({ReasonKind.PLACE, ReasonKind.DEPENDENCY})


def _moves(
    engine: Engine, job: Job, known: dict[str, bool], question: CountPending, blockers: Blockers, circles: _Circles
) -> bool:
    """Say whether a job can go on without a person: neither it nor what it waits for, as far as named, is stuck."""
    seen = {job.id}
    todo = [job]
    all_wait = True
    while todo:
        reason = _reason(engine, todo.pop(), blockers)
        # Where nobody could be named, whatever moves at all may be what it waits for.
        is_lost = reason.kind is ReasonKind.PLACE and not reason.jobs and not _anything_moves(engine, question)
        if reason.stuck or is_lost or known.get(reason.job_id) is False:
            known[job.id] = False
            return False
        all_wait = all_wait and reason.kind in _WAITS_FOR_JOBS
        if reason.kind in _WAITS_FOR_JOBS:
            for job_id in reason.jobs:
                if job_id not in seen and known.get(job_id) is not True and job_id in engine.ledger.jobs:
                    seen.add(job_id)
                    todo.append(engine.ledger.jobs[job_id])
    if all_wait and circles.ahead(job):
        known.update(dict.fromkeys(seen, False))
        return False
    known.update(dict.fromkeys(seen, True))
    return True
