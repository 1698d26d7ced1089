"""What an operation is refused for, as a whole and before anything is changed."""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError as GraphCycleError
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from queuehint.core.structures.job import START_MARK
from queuehint.errors import (
    CycleError,
    DuplicateFlowError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    LeaseLostError,
    PathClosedError,
    QueueFullError,
    UnknownDependencyError,
    shown,
)
from queuehint.operations import (
    ANYONE,
    BYTES_PER_SUBMISSION_MAX,
    EDGES_PER_SUBMISSION_MAX,
    EVENTS_MAX,
    FETCH_MAX,
    GATES_PER_SUBMISSION_MAX,
    GRANTS_MAX,
    IDS_MAX,
    JOBS_PER_SUBMISSION_MAX,
    LEASES_MAX,
    LIST_MAX,
    POOLS_MAX,
    SCHEDULE_LIST_MAX,
    SERVED_MAX,
    SETTLEMENTS_MAX,
    USERS_NAMED_MAX,
    WEIGHT_MAX,
    WEIGHTS_MAX,
    Cancel,
    Delete,
    Discard,
    Draw,
    DueSchedules,
    Enqueue,
    Exchange,
    Fetch,
    Follow,
    Get,
    List,
    ListDead,
    ListFlow,
    ListSchedules,
    ListUsers,
    Operation,
    PutSchedule,
    Redrive,
    Renew,
    SetLimit,
    Update,
    Weigh,
)
from queuehint.operations.fields import check_fields, is_usual, note_usual
from queuehint.values.hint import key_of
from queuehint.values.outcome import RESULT_BYTES_MAX
from queuehint.values.record import JobState
from queuehint.values.schedule import FIRINGS_MAX, SCHEDULE_BYTES_MAX
from queuehint.values.spec import DEPENDENCIES_MAX, JobSpec, check_payload_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from queuehint.core.jobs.table import Ledger
    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Path


OTHER_SPEC = "only the service and the user of a record can be changed"
WEIGHTS_FULL = f"weights: {WEIGHTS_MAX} users have one other than 1, limit {WEIGHTS_MAX}"
OTHER_FLOW = "all parts of one submission belong to one flow"


class Submission:
    """
    What is asked by one `Enqueue`, and what is there of it already.

    ``ids`` holds the ids of its jobs, ``elsewhere`` the jobs of these ids that belong to another submission in parts.
    """

    def __init__(self, ledger: Ledger, closed: Collection[Path], operation: Enqueue) -> None:
        self._ledger = ledger
        self._closed = closed
        self._specs = operation.jobs
        self._parent = operation.parent
        self._staged = operation.staged
        self._flow = operation.flow
        self.elsewhere: list[Job] = []
        self.ids = frozenset([spec.id for spec in self._specs]) if self._has_edges() else frozenset()

    def existing(self, spec: JobSpec) -> Job | None:
        """Return the job that has a spec's id; one of another submission in parts is known to nobody."""
        job = self._ledger.jobs.get(spec.id)
        return job if job is not None and self._is_known(job) else None

    def check(self) -> None:
        """
        Refuse what cannot be enqueued whole.

        Raises:
            LeaseLostError: the parent does not run under this token any more.
            DuplicateJobError: an id is taken by a job of other content; a key is taken.
            DuplicateFlowError: the flow has other jobs.
            PathClosedError: a claim is at or below a closed path.
            UnknownDependencyError: a dependency is not there.
            CycleError: a job waits for its parent.
            FlowNotFoundError: the submission in parts it belongs to was committed, or has expired.
            QueueFullError: more jobs would be unfinished than a limit allows.
        """
        if self._parent is not None:
            self._check_parent(*self._parent)
        if self._staged is not None:
            start = self._ledger.jobs.get(START_MARK + self._staged)
            if start is not None and start.is_over:
                raise FlowNotFoundError(self._staged)
            if start is not None and self._specs and start.spec.flow != self._specs[0].flow:
                raise InvalidJobError(OTHER_FLOW)
        new_keys: dict[str, str] = {}
        seen: set[str] = set()
        jobs, closed = self._ledger.jobs, self._closed
        for spec in self._specs:
            existing = jobs.get(spec.id)
            if existing is not None and not self._is_known(existing):
                self.elsewhere.append(existing)
                existing = None
            if existing is not None:
                if existing.spec != spec and (fields := existing.fields_differing(spec)) is not None:
                    raise DuplicateJobError(spec.id, fields=fields)
                continue
            if closed:
                _check_open(closed, spec)
            if spec.key is not None:
                self._check_key(spec, spec.key, new_keys)
            if spec.depends_on:
                self._check_edges(spec, seen)
        if self._flow is not None:
            self._check_flow(self._flow)
        if self._ledger.limits.max_pending:
            self._check_room()

    def _check_flow(self, flow: str) -> None:
        """Refuse a flow that is there with other jobs; the same jobs again are the same flow."""
        there = self._ledger.flows.visible(flow)
        if not there:
            return
        known = [self.existing(spec) for spec in self._specs]
        kept = sum(job is not None and not job.gone for job in known)
        if None in known or (self._staged is None and kept < there):
            raise DuplicateFlowError(flow)

    def _check_room(self) -> None:
        """Count what is new, job by job."""
        most_of = self._ledger.limits.max_pending
        new: Counter[Path | None] = Counter()
        keys: set[str] = set()
        for spec in self._specs:
            if self.existing(spec) is not None:
                continue
            if spec.key is not None:
                newest = self._ledger.keys.newest(spec.key)
                if spec.key in keys or (newest is not None and newest.is_fresh):
                    continue
                keys.add(spec.key)
            self._count_new(None, new, most_of)
            for claim in spec.claims:
                for depth in range(len(claim.path) + 1):
                    self._count_new(claim.path[:depth], new, most_of)

    def _count_new(self, path: Path | None, new: Counter[Path | None], most_of: Mapping[Path | None, int]) -> None:
        most = most_of.get(path)
        if most is not None:
            new[path] += 1
            pending = self._ledger.unfinished if path is None else self._ledger.paths.watched[path]
            if pending + new[path] > most:
                raise QueueFullError(None if path is None else key_of(path), pending, most)

    def _has_edges(self) -> bool:
        return any(spec.depends_on for spec in self._specs)

    def _is_known(self, job: Job) -> bool:
        if not job.is_hidden:
            return True
        return self._staged is not None and job.note().start is self._ledger.jobs.get(START_MARK + self._staged)

    def _check_parent(self, parent_id: str, token: object) -> None:
        parent = self._ledger.jobs.get(parent_id)
        if parent is None or parent.state is not JobState.STARTED or type(token) is not int or token != parent.token:
            raise LeaseLostError(parent_id, token)  # type: ignore[arg-type]

    def _check_key(self, spec: JobSpec, key: str, new_keys: dict[str, str]) -> None:
        if spec.on_conflict == "reject":
            newest = self._ledger.keys.newest(key)
            owner = newest.id if newest is not None else new_keys.get(key)
            if owner is not None:
                raise DuplicateJobError(owner, key=key)
        new_keys.setdefault(key, spec.id)

    def _check_edges(self, spec: JobSpec, seen: set[str]) -> None:
        jobs = self._ledger.jobs
        for edge in spec.depends_on:
            job = jobs.get(edge.id)
            is_there = job is not None and self._is_known(job)
            if (job is not None and job.gone) or (not is_there and edge.id not in self.ids):
                raise UnknownDependencyError(spec.id, edge.id)
        if self._parent is not None:
            parent_id = self._parent[0]
            if self._ledger.edges.reaches(jobs, [edge.id for edge in spec.depends_on], parent_id, seen):
                raise CycleError([parent_id, spec.id])


def _check_open(closed: Collection[Path], spec: JobSpec) -> None:
    for claim in spec.claims:
        for depth in range(len(claim.path) + 1):
            if claim.path[:depth] in closed:
                raise PathClosedError(key_of(claim.path[:depth]))


def check_limits(operation: Operation[Any]) -> None:
    """
    Refuse an operation that holds what its fields do not name, carries too much, or one id twice.

    Every backend does this before any I/O.

    Raises:
        InvalidJobTypeError, InvalidHintTypeError: as `check_fields`.
        InvalidJobError: naming what, how many and the limit.
        PayloadError: a result, or the arguments of a schedule, are too large.
        DuplicateJobError: an id appears twice in one submission.
    """
    if type(operation) is Exchange and is_usual(operation):
        return
    check_fields(operation)
    match operation:
        case Enqueue():
            _check_submission_size(operation.jobs)
            _check_edges(operation)
            if operation.firing is not None:
                _check_size("firings", len(operation.jobs), FIRINGS_MAX)
        case Exchange():
            _check_size("settle", len(operation.settle), SETTLEMENTS_MAX)
            for outcome in operation.settle:
                if outcome.children:
                    _check_size("children", len(outcome.children), DEPENDENCIES_MAX)
            _check_size("limit", operation.limit, 0 if operation.is_last else GRANTS_MAX)
            _check_size("pools", len(operation.pools), POOLS_MAX)
            _check_users(operation)
            note_usual(operation)
        case Weigh():
            if not 1 <= operation.weight <= WEIGHT_MAX:
                raise InvalidJobError(f"weight must be from 1 to {WEIGHT_MAX}, got {operation.weight}")
        case Renew():
            _check_size("leases", len(operation.leases), LEASES_MAX)
        case Cancel() | Redrive() | Discard() | Get():
            _check_size("ids", len(operation.ids), IDS_MAX)
        case Draw():
            _check_size("count", operation.count, JOBS_PER_SUBMISSION_MAX)
        case Fetch():
            _check_size("ids", len(operation.ids), FETCH_MAX)
        case Delete():
            _check_size("ids", len(operation.ids), IDS_MAX)
            if operation.versions is not None and len(operation.versions) != len(operation.ids):
                raise InvalidJobError(f"versions: {len(operation.versions)} for {len(operation.ids)} ids")
        case Update():
            check_payload_size(operation.result, parameter="result", bytes_max=RESULT_BYTES_MAX)
        case Follow():
            if not 1 <= operation.limit <= EVENTS_MAX:
                raise InvalidJobError(f"limit must be from 1 to {EVENTS_MAX}, got {operation.limit}")
        case List() | ListDead() | ListFlow() | ListUsers():
            if not 1 <= operation.limit <= LIST_MAX:
                raise InvalidJobError(f"limit must be from 1 to {LIST_MAX}, got {operation.limit}")
        case SetLimit():
            operation.limit.check()
        case ListSchedules() | DueSchedules():
            if not 1 <= operation.limit <= SCHEDULE_LIST_MAX:
                raise InvalidJobError(f"limit must be from 1 to {SCHEDULE_LIST_MAX}, got {operation.limit}")
        case PutSchedule():
            check_payload_size(operation.spec.arguments, parameter="arguments", bytes_max=SCHEDULE_BYTES_MAX)
        case _:
            pass


def _check_users(operation: Exchange) -> None:
    """Refuse users that make no sense, or too many."""
    users, steal = operation.users, operation.steal
    if users is None:
        if steal:
            raise InvalidJobError("steal: whoever is there for everyone has nobody else to help; name users")
        return
    if not users:
        raise InvalidJobError("users is empty; a worker that names users is there for at least one")
    _check_size("users", len(users), USERS_NAMED_MAX)
    if steal != ANYONE:
        _check_size("steal", len(steal), USERS_NAMED_MAX)
        _check_size("pools times users", len(operation.pools) * (len(users) + len(steal)), SERVED_MAX)


def _check_submission_size(specs: tuple[JobSpec, ...]) -> None:
    _check_size("jobs", len(specs), JOBS_PER_SUBMISSION_MAX)
    if len({spec.id for spec in specs}) < len(specs):
        raise DuplicateJobError(next(job_id for job_id, n in Counter(spec.id for spec in specs).items() if n > 1))
    gates = size = 0
    for spec in specs:
        size += len(spec.arguments)
        for claim in spec.claims:
            gates += len(claim.path) + 1
    if size > BYTES_PER_SUBMISSION_MAX:
        raise InvalidJobError(f"a submission has {size} bytes of arguments, limit {BYTES_PER_SUBMISSION_MAX}")
    if gates > GATES_PER_SUBMISSION_MAX:
        raise InvalidJobError(
            f"a submission visits {gates} gates (depth + 1 a claim), limit {GATES_PER_SUBMISSION_MAX}"
        )


def _check_edges(operation: Enqueue) -> None:
    """Refuse edges that a look at the submission alone shows to be wrong."""
    specs = operation.jobs
    if operation.staged is not None:
        if len({spec.flow for spec in specs}) > 1:
            raise InvalidJobError(OTHER_FLOW)
        for spec in specs:
            if spec.key is not None or spec.presence_ms is not None:
                raise InvalidJobError(f"job {shown(spec.id)}: a submission in parts takes no key and no presence_ms")
    edges = sum([len(spec.depends_on) for spec in specs])
    if not edges:
        return
    if edges > EDGES_PER_SUBMISSION_MAX:
        raise InvalidJobError(f"a submission has {edges} edges, limit {EDGES_PER_SUBMISSION_MAX}")
    by_id = {spec.id: spec for spec in specs}
    for spec in specs:
        for edge in spec.depends_on:
            other = by_id.get(edge.id)
            if other is not None and other.key is not None and other.on_conflict != "reject":
                raise InvalidJobError(
                    f"job {shown(spec.id)} depends on {shown(edge.id)}, which its key may make another job; "
                    'enqueue that one first, or give it on_conflict="reject"'
                )
    in_order({spec.id: [edge.id for edge in spec.depends_on if edge.id in by_id] for spec in specs})


def in_order(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """
    Return the keys of a graph so that each comes after those it depends on; of what may come next, the first given.

    Args:
        edges: for each key those it depends on, keys too.

    Raises:
        CycleError: naming just the keys on one circle, each waiting for the next.

    Complexity: O(E + V log V), without recursion.  Source: Kahn 1962, as in graphlib.

    >>> in_order({"c": ["b"], "a": [], "b": ["a"]})
    ['a', 'b', 'c']
    """
    keys = list(edges)
    place = {key: at for at, key in enumerate(keys)}
    sorter: TopologicalSorter[str] = TopologicalSorter(edges)
    try:
        sorter.prepare()
    except GraphCycleError as error:
        # graphlib names the circle from a dependency to its dependent, with the first once more at the end.
        raise CycleError(error.args[1][:0:-1]) from None
    ready: list[int] = []
    ordered: list[str] = []
    while True:
        for key in sorter.get_ready():
            heappush(ready, place[key])
        if not ready:
            return ordered
        key = keys[heappop(ready)]
        ordered.append(key)
        sorter.done(key)


def _check_size(what: str, size: int, most: int) -> None:
    if not 0 <= size <= most:
        raise InvalidJobError(f"{what}: {size} in one operation, limit {most}")
