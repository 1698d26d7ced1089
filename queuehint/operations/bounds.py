"""
Checks of an operation alone: its fields by their kinds, and the consistency of its fields.

What one field may hold its annotation says; what several may hold together, and all jobs of a submission, is here.
"""

from __future__ import annotations

import graphlib
import heapq
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint import operations as op
from queuehint.errors import CycleError, DuplicateJobError, InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.checks import check_payload_size
from queuehint.schema.compiled import Check, check_of, check_size
from queuehint.values.hint import CLAIMS_MAX, DEPTH_MAX, Path, key_of
from queuehint.values.record_filter import ALL_RECORDS
from queuehint.values.schedule import FIRINGS_MAX, SCHEDULE_BYTES_MAX
from queuehint.values.spec import PAYLOAD_BYTES_MAX, PORTION_MAX, SIGNAL_MARK, JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

OTHER_FLOW = "all parts of one submission belong to one flow"
PARTS_LOST = (
    "no job was enqueued: parts of the submission were lost before its commit, again and again: another enqueue took "
    "their jobs, the store has lost them, or more than ten minutes passed between two requests; submit it again"
)
OTHER_SPEC = "only the service and the user of a record can be changed"
_PAUSED_BY = "path, service, user, task, pool, tag"
WEIGHTS_FULL = f"weights: {op.WEIGHTS_MAX} users have one other than 1, limit {op.WEIGHTS_MAX}"


def check_limits(operation: op.Operation[Any]) -> None:
    """
    Refuse an operation with wrong field types, too many items, or a repeated id.

    Every backend does this before any I/O.

    Raises:
        InvalidJobTypeError, InvalidHintTypeError: as `check_of`.
        InvalidJobError: naming what, how many and the limit.
        PayloadError: a result, or the arguments of a schedule, are too large.
        DuplicateJobError: an id appears twice in one submission.
    """
    LIMITS[type(operation)](operation)


class _Limits(dict[type[Any], Check]):
    def __missing__(self, kind: type[Any]) -> Check:
        if op.Operation not in getattr(kind, "__bases__", ()):
            raise InvalidJobTypeError(f"operation must be one of queuehint.operations, got {kind.__name__}")
        check = self[kind] = check_of(kind, *[_CHECKS[kind]] if kind in _CHECKS else [])
        return check


LIMITS: Final = _Limits()
"""For each operation what `check_limits` does, without a call of a function for those who are asked all the time."""


_FITTING: Final = min(
    op.BYTES_PER_SUBMISSION_MAX // PAYLOAD_BYTES_MAX, op.GATES_PER_SUBMISSION_MAX // (CLAIMS_MAX * (DEPTH_MAX + 1))
)
"""So few jobs never have too many bytes or gates together."""


def _check_enqueue(operation: op.Enqueue) -> None:
    specs = operation.jobs
    count = len(specs)
    if count > _FITTING:
        _check_sizes(specs)
    if count > 1:
        _check_ids(specs)
    if operation.staged is not None:
        _check_part(specs)
    for spec in specs:
        if spec.depends_on:
            _check_edges(specs, is_part=operation.staged is not None)
            break
    if operation.staged is not None:
        if operation.flow_timeout_ms is not None:
            raise InvalidJobError("flow_timeout_ms of a flow in parts must be given at its commit")
    elif operation.is_further:
        raise InvalidJobError("is_further requires staged")
    if operation.flow_timeout_ms is not None:
        _check_flow_timeout(operation)
    if operation.firing is not None:
        check_size("firings", count, FIRINGS_MAX)
    if operation.closing is not None:
        _check_closing(operation, operation.closing)


def _check_sizes(specs: Sequence[JobSpec]) -> None:
    size = gates = 0
    for spec in specs:
        size += len(spec.arguments)
        for claim in spec.claims:
            gates += len(claim.path) + 1
    if size > op.BYTES_PER_SUBMISSION_MAX:
        raise InvalidJobError(f"a submission has {size} bytes of arguments, limit {op.BYTES_PER_SUBMISSION_MAX}")
    if gates > op.GATES_PER_SUBMISSION_MAX:
        raise InvalidJobError(
            f"a submission visits {gates} gates (depth + 1 a claim), limit {op.GATES_PER_SUBMISSION_MAX}"
        )


def _check_flow_timeout(operation: op.Enqueue | op.Commit) -> None:
    if operation.flow_timeout_ms is not None and operation.flow is None:
        raise InvalidJobError(f"flow_timeout_ms is {operation.flow_timeout_ms}, and there is no flow")


def _check_closing(operation: op.Enqueue, closing: op.Closing) -> None:
    """Refuse a closing unless its job is alone in the operation and fit to be the last of a path."""
    if len(operation.jobs) != 1:
        raise InvalidJobError(f"closing: {len(operation.jobs)} jobs in one operation, limit 1")
    if any(other is not None for other in (operation.staged, operation.parent, operation.firing, operation.flow)):
        raise InvalidJobError("closing: the last job of a path must have no flow, no staged submission and no parent")
    check_last(operation.jobs[0], closing.path)


def cost_refusal(spec: JobSpec, most: int, kind: str, place: Path = ()) -> str:
    """Return why a job with a cost above a limit is refused. *kind* is "path" (*place*), "task" or "pool"."""
    name = {"path": key_of(place), "task": spec.task, "pool": spec.pool}[kind]
    return f"job {shown(spec.id)}: cost is {spec.policy.cost}, and the limit of {kind} {shown(name)} has {most}"


def check_last(spec: JobSpec, path: Path) -> None:
    """
    Refuse a job that is not supported as the last one of a path.

    Raises:
        InvalidJobError: it has a key, or waits for its caller; it has no exclusive claim at the path.
    """
    if spec.key is not None or spec.presence_ms is not None:
        raise InvalidJobError(f"last: job {shown(spec.id)} has a key or a presence_ms; the last job of a path has none")
    if not any(claim.path == path and claim.mode == "exclusive" for claim in spec.claims):
        claims = ", ".join([shown(key_of(claim.path)) for claim in spec.claims[:3]]) or "none"
        raise InvalidJobError(
            f"last: job {shown(spec.id)} has no exclusive claim at {shown(key_of(path))}, the path to close; "
            f"its claims are {claims}"
        )


def _check_exchange(operation: op.Exchange) -> None:
    if operation.is_last:
        check_size("limit", operation.limit, 0)
    if operation.users is not None or operation.steal:
        _check_users(operation)


def _check_delete(operation: op.Delete) -> None:
    if operation.versions is not None and len(operation.versions) != len(operation.ids):
        raise InvalidJobError(f"versions: {len(operation.versions)} for {len(operation.ids)} ids")


def _check_redrive(operation: op.Redrive) -> None:
    for name in ("downstream", "drop_steps"):
        if operation.waiting and getattr(operation, name):
            raise InvalidJobError(f"{name} requires dead jobs, not waiting ones")
    if operation.again and operation.waiting:
        raise InvalidJobError("again requires ended jobs, not waiting ones")
    if operation.again and len(operation.again) != len(operation.ids):
        raise InvalidJobError(f"again: {len(operation.again)} versions for {len(operation.ids)} ids")


def _check_post(operation: op.Post) -> None:
    for note in operation.notes:
        if note.token is None and any(held is not None for held in (note.progress, note.result, note.step)):
            raise InvalidJobError(f"token: a note of {shown(note.job_id)} has none, so it has lines alone")


def _check_put_schedule(operation: op.PutSchedule) -> None:
    check_payload_size(operation.spec.arguments, parameter="arguments", bytes_max=SCHEDULE_BYTES_MAX)


def _check_schedule_change(operation: op.ChangeSchedule) -> None:
    if operation.change == "resume":
        if operation.version is None:
            raise InvalidJobError("version is required for change 'resume'")
    elif operation.version is not None or operation.next_ms is not None:
        raise InvalidJobError(f"version and next_ms require change 'resume', not {shown(operation.change)}")


def _check_depend(operation: op.Depend) -> None:
    if any(edge.id == operation.job_id for edge in operation.edges):
        raise CycleError([operation.job_id])


def _check_pause(operation: op.Pause | op.Resume) -> None:
    wanted = operation.filter
    if wanted == ALL_RECORDS:
        raise InvalidJobError(f"filter: a pause requires one of {_PAUSED_BY}, got {shown(wanted)}")
    fields = attrs.fields_dict(type(wanted))
    names = [name for name, field in fields.items() if getattr(wanted, name) != field.default]
    others = [name for name in names if name not in _PAUSED_BY.split(", ")]
    if others:
        raise InvalidJobError(f"filter: a pause selects by {_PAUSED_BY}, not by {others[0]}")


def _check_lines(operation: op.ListLines) -> None:
    if operation.longest and operation.after is not None:
        raise InvalidJobError(f"after is not supported with longest, got {shown(operation.after)}")


def _check_users(operation: op.Exchange | op.Announce) -> None:
    """Refuse inconsistent users, or too many."""
    users, steal = operation.users, operation.steal
    if users is None:
        if steal:
            raise InvalidJobError("steal requires users: a worker without users already serves everyone")
        return
    if not users:
        raise InvalidJobError("users is empty; a worker with users serves at least one")
    check_size("users", len(users), op.USERS_NAMED_MAX)
    if steal != op.ANYONE:
        check_size("steal", len(steal), op.USERS_NAMED_MAX)
        check_size("pools times users", len(operation.pools) * (len(users) + len(steal)), op.SERVED_MAX)


def _check_why(operation: op.Why) -> None:
    if (operation.job_id is None) is (operation.path is None):
        raise InvalidJobError(
            f"job_id or path, one of the two, must be given, got {shown(operation.job_id)} and {shown(operation.path)}"
        )


_CHECKS: Final[dict[type[op.Operation[Any]], Callable[[Any], None]]] = {
    op.ChangeSchedule: _check_schedule_change,
    op.Commit: _check_flow_timeout,
    op.Depend: _check_depend,
    op.Enqueue: _check_enqueue,
    op.Exchange: _check_exchange,
    op.Delete: _check_delete,
    op.Post: _check_post,
    op.PutSchedule: _check_put_schedule,
    op.Redrive: _check_redrive,
    op.Announce: _check_users,
    op.ListLines: _check_lines,
    op.Pause: _check_pause,
    op.Resume: _check_pause,
    op.Why: _check_why,
}
"""Operations of which more is checked than their fields."""


def _check_ids(specs: tuple[JobSpec, ...]) -> None:
    """Refuse two jobs with the same id."""
    if len({spec.id for spec in specs}) < len(specs):
        raise DuplicateJobError(next(job_id for job_id, n in Counter(spec.id for spec in specs).items() if n > 1))


def _check_part(specs: tuple[JobSpec, ...]) -> None:
    """Refuse a part of a submission with jobs that cannot be hidden until its commit."""
    if len({spec.flow for spec in specs}) > 1:
        raise InvalidJobError(OTHER_FLOW)
    for spec in specs:
        if spec.key is not None or spec.presence_ms is not None:
            raise InvalidJobError(f"job {shown(spec.id)}: key and presence_ms are not supported in parts")
        if spec.id.startswith(SIGNAL_MARK):
            raise InvalidJobError(f"job {shown(spec.id)}: a signal is not supported in a submission in parts")


def _check_edges(specs: tuple[JobSpec, ...], *, is_part: bool) -> None:
    """Refuse edges that are invalid within the submission alone."""
    edges = 0
    for spec in specs:
        if len(spec.depends_on) > PORTION_MAX and not is_part:
            number = len(spec.depends_on)
            raise InvalidJobError(f"job {shown(spec.id)} depends on {number} jobs; more than {PORTION_MAX} go in parts")
        edges += min(len(spec.depends_on), PORTION_MAX)
    if edges > op.EDGES_PER_SUBMISSION_MAX:
        raise InvalidJobError(f"a submission has {edges} edges, limit {op.EDGES_PER_SUBMISSION_MAX}")
    place = {spec.id: index for index, spec in enumerate(specs)}
    before: list[list[int]] = []
    for spec in specs:
        inner: list[int] = []
        before.append(inner)
        for edge in spec.depends_on:
            index = place.get(edge.id)
            if index is None:
                continue
            inner.append(index)
            other = specs[index]
            if other.key is not None and other.on_conflict != "reject":
                raise InvalidJobError(
                    f"job {shown(spec.id)} depends on {shown(edge.id)}, whose key may resolve to another job: "
                    'enqueue it first, or give it on_conflict="reject"'
                )
    topological(before, lambda index: specs[index].id)


def topological(before: Sequence[Collection[int]], called: Callable[[int], str]) -> Sequence[int]:
    """
    Return indexes in topological order: each after its predecessors in *before*, the smallest candidate first.

    Args:
        called: what an index is called in an error.

    Raises:
        CycleError: there is no such order; it names just those on a cycle.

    Complexity: O(V + E) for what is in order already, else O(V log V + E).
    Source: Kahn 1962, as in graphlib, with a heap for what is ready.
    """
    for index, inner in enumerate(before):
        if inner and max(inner) >= index:
            break
    else:
        return range(len(before))
    sorter = graphlib.TopologicalSorter(dict(enumerate(before)))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        # Each is waited for by the next; ours is told the other way round, from the smallest.
        cycle = error.args[1][:0:-1]
        first = cycle.index(min(cycle))
        raise CycleError([called(index) for index in cycle[first:] + cycle[:first]]) from None
    ready = list(sorter.get_ready())
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        sorter.done(index)
        for other in sorter.get_ready():
            heapq.heappush(ready, other)
    return order
