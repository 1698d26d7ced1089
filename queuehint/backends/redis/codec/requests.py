"""
Operations as names and arguments of scripts. No I/O.

A script has the name of its operation. Where its arguments are not the operation's fields in order, a function marked
with `sends` returns them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from queuehint import operations as op
from queuehint.backends.redis.codec.specs import dump_json, spec_head, spec_rest, text_of, token_text
from queuehint.backends.redis.scripts import LETTERS
from queuehint.core.structures.edges import needs_of, portion_of
from queuehint.schema.compiled import kinds_of
from queuehint.schema.kinds import Choice, Count, Flag, Kind, Label, Many, Optional, PathOf, Proof, Text
from queuehint.values.hint import gate_key
from queuehint.values.outcome import JobError, Outcome, OutcomeKind
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.core.structures.job import Needs
    from queuehint.values.hint import Path
    from queuehint.values.limit import Limit
    from queuehint.values.record_filter import RecordFilter

Args = list[Any]
BY_STATE: Final = "-"
"""In place of how long records of jobs with a service are kept: as their states say."""

REQUESTS: Final[dict[type[Any], tuple[str, Callable[[Any], Args]]]] = {}
"""For each operation the name of its script, and what makes it the script's arguments."""

_Request = TypeVar("_Request", bound="Callable[[Any], Args]")


def sends(operation: type[op.Operation[Any]]) -> Callable[[_Request], _Request]:
    """Return a decorator that registers the encoder of an operation into a script's arguments."""

    def enter(request: _Request) -> _Request:
        assert operation not in REQUESTS
        name = re.sub(r"\B(?=[A-Z])", "_", operation.__name__).lower()
        REQUESTS[operation] = name, request
        return request

    return enter


def _of_all_services(retention: Retention) -> str:
    return BY_STATE if retention.service_ms is None else str(retention.service_ms)


def kept_args(retention: Retention) -> Args:
    """Return how long records are kept, as every script is told: of single services in lines behind that of all."""
    of_services = [f"\n{service}\n{kept_ms}" for service, kept_ms in retention.services_ms.items()]
    return [
        retention.finished_ms,
        retention.failed_ms,
        retention.canceled_ms,
        "".join([_of_all_services(retention), *of_services]),
    ]


def retention_text(retention: Retention) -> str:
    """Return a retention as the store keeps it: four numbers of ms or "-", then lines of services and theirs."""
    (*three, _), services = retention.in_ms()
    four = [*map(str, three), _of_all_services(retention)]
    return "".join([" ".join(four), *[f"\n{service}\n{kept_ms}" for service, kept_ms in services]])


def parse_retention(text: str) -> Retention:
    """
    Return the retention of `retention_text`.

    Raises:
        ValueError: it is none.
    """
    first, *rest = text.split("\n")
    try:
        *three, of_services = first.split(" ")
        finished, failed, canceled = [int(word) for word in three]
        service = None if of_services == BY_STATE else int(of_services)
        services = tuple(zip(rest[::2], [int(word) for word in rest[1::2]], strict=True))
        return Retention.of_ms(((finished, failed, canceled, service), services))
    except OverflowError as error:
        raise ValueError(f"not a retention: {text!r}") from error


def shown_retention(text: str) -> str:
    """Return the text of `retention_text` for people."""
    try:
        return str(parse_retention(text))
    except ValueError:
        return "unreadable"


@sends(op.Enqueue)
def _enqueue(operation: op.Enqueue) -> Args:
    parent_id, token = operation.parent or ("", "")
    origin = "" if operation.firing is None else _firing(operation.firing)
    if operation.closing is not None:
        origin = f"\n{operation.closing.waiting[0]}\n{gate_key(operation.closing.path)}"
    proof = "-" if operation.parent is None else token_text(token)
    flow = operation.flow or ""
    if operation.flow_timeout_ms is not None:
        flow += f"\n{operation.flow_timeout_ms}"
    staged = operation.staged or ""
    if operation.is_further:
        staged += "\n"
    args: Args = [staged, parent_id, proof, origin, flow]
    for spec in operation.jobs:
        needs = _needs_text(needs_of(spec)) if spec.depends_on else ""
        args += (spec_head(spec), spec_rest(spec), needs)
    return args


@sends(op.Depend)
def _depend(operation: op.Depend) -> Args:
    needs = portion_of(operation.edges, operation.on_failure)
    return [operation.staged, operation.job_id, operation.portion, _needs_text(needs)]


@sends(op.Withdraw)
def _withdraw(operation: op.Withdraw) -> Args:
    return [operation.staged]


def _needs_text(needs: Needs) -> str:
    """Return dependencies as lines: the policy of the edge and the id."""
    return "\n".join([f"{policy} {job_id}" for job_id, policy in needs])


def _firing(firing: op.Firing) -> str:
    return f"{firing.name}\n{firing.version}\n{firing.last_ms}\n{text_of(firing.next_ms)}"


@sends(op.SetLimit)
def _set_limit(operation: op.SetLimit) -> Args:
    limit = operation.limit
    tokens, per_ms = limit.rate or (None, None)
    numbers = (limit.most, tokens, per_ms, limit.max_pending, limit.burst)
    return [_limited(limit), *[text_of(number) for number in numbers]]


def _limited(limit: Limit) -> str:
    """Return the field of a limit in the store: of a task, a pool, a path or the namespace."""
    if limit.task is not None:
        return f"t{limit.task}"
    if limit.pool is not None:
        return f"p{limit.pool}"
    return "-" if limit.path is None else ("/" if limit.each else "=") + gate_key(limit.path)


@sends(op.PutSchedule)
def _put_schedule(operation: op.PutSchedule) -> Args:
    recurrence = dump_json(attrs.asdict(operation.recurrence, filter=lambda _, value: value is not None))
    spec = operation.spec
    return [operation.name, text_of(operation.next_ms), spec_head(spec), spec_rest(spec), recurrence]


@sends(op.Exchange)
def _exchange(operation: op.Exchange) -> Args:
    pools = operation.pools
    args: Args = [operation.worker, operation.lease_ms, -1 if operation.is_last else operation.limit]
    args += (_users(operation.users or ()), _users(operation.steal), _announces(operation), len(pools), *pools)
    for outcome in operation.settle:
        args += (outcome.job_id, token_text(outcome.token))
        args += outcome_args(outcome)
    return args


def _announces(operation: op.Exchange) -> str:
    """Return whether a worker announces starts, and its release."""
    return f"{int(operation.announces)}{operation.release}"


def _users(users: Iterable[str | None]) -> str:
    """Return users as lines behind a sign, empty for jobs without one; nothing for none, and `op.ANYONE` as it is."""
    if users == op.ANYONE:
        return op.ANYONE
    return "=" + "\n".join([user or "" for user in users]) if users else ""


def outcome_args(outcome: Outcome) -> Sequence[Any]:
    """Return an outcome as a letter and as many arguments as go with it."""
    kind = outcome.kind
    if kind is OutcomeKind.FINISHED:
        return _result(outcome.result)
    if kind is OutcomeKind.CHILDREN:
        letter, *result = _result(outcome.result)
        then = "a" if outcome.again else outcome.on_child_failure[0]
        return ("c", letter, *(result or [""]), then, "\n".join(outcome.children))
    if kind is OutcomeKind.FAILED:
        return ("x", *_error(outcome.error), outcome.delay_ms, int(outcome.final))
    if kind is OutcomeKind.SNOOZED:
        return ("s", outcome.delay_ms)
    if kind is OutcomeKind.LOST:
        return ("l", *_error(outcome.error))
    if kind is OutcomeKind.DISCARDED:
        return ("d", outcome.reason or "discarded")
    return ("r",) if kind is OutcomeKind.RELEASED else ("u",)


def _result(result: bytes | None) -> Sequence[Any]:
    return ("z",) if result is None else ("n",) if result == b"null" else ("f", result)


def _error(error: JobError | None) -> tuple[str, str, str, str]:
    if error is None:
        return ("", "", "", "")
    return ("e", error.type, error.message, "" if error.traceback is None else f"t{error.traceback}")


@sends(op.Renew)
def _renew(operation: op.Renew) -> Args:
    args: Args = [operation.lease_ms, int(operation.begun), operation.blocked_ms]
    for job_id, token in operation.leases:
        args += (job_id, token_text(token))
    return args


@sends(op.Announce)
def _announce(operation: op.Announce) -> Args:
    told = (operation.host, operation.pid, operation.version_name, operation.pools, operation.users, operation.steal)
    users = None if operation.users is None or operation.steal == op.ANYONE else (*operation.users, *operation.steal)
    args: Args = [operation.worker, dump_json((*told, operation.slots, operation.running)), int(operation.gone)]
    return [*args, operation.release, operation.version_name or "", _users(users or ()), *operation.pools]


@sends(op.Post)
def _post(operation: op.Post) -> Args:
    args: Args = []
    for note in operation.notes:
        args += (note.job_id, _token(note.token))
        args += ("" if note.progress is None else note.progress.as_text(), *_said(note.result))
        args += ("", "") if note.step is None else (note.step.name, note.step.result)
        args += (len(note.lines), *note.lines)
    return args


def _said(result: bytes | None) -> Sequence[Any]:
    """Return the letter of a result and the result: s for one that is stored, n for null, "" for none."""
    return ("", "") if result is None else ("n", "") if result == b"null" else ("s", result)


@sends(op.Amend)
def _amend(operation: op.Amend) -> Args:
    return [operation.version, spec_head(operation.spec), spec_rest(operation.spec), ""]


@sends(op.Delete)
def _delete(operation: op.Delete) -> Args:
    versions = operation.versions or ("",) * len(operation.ids)
    return [part for item in zip(operation.ids, versions, strict=True) for part in item]


def _filter(wanted: RecordFilter) -> Args:
    return [
        *[name or "" for name in (wanted.user, wanted.service, wanted.task, wanted.pool)],
        "".join([LETTERS[state] for state in wanted.states]),
        "" if wanted.path is None else "/" + gate_key(wanted.path),
        text_of(wanted.since_ms),
        text_of(wanted.until_ms),
        wanted.flow or "",
        wanted.tag or "",
        wanted.parent or "",
        wanted.waits_for or "",
    ]


def _selection(wanted: RecordFilter) -> str:
    """Return the name of a pause in the store: a gate key if it is of a path alone, else words behind line ends."""
    alone = wanted.path_alone
    if alone is not None:
        return gate_key(alone)
    names = (wanted.service, wanted.user, wanted.task, wanted.pool, wanted.tag)
    path = "" if wanted.path is None else "/" + gate_key(wanted.path)
    return "".join([f"\n{name or ''}" for name in (*names, path)])


@sends(op.Pause)
def _pause(operation: op.Pause) -> Args:
    return [_selection(operation.filter), text_of(operation.for_ms)]


@sends(op.Resume)
def _resume(operation: op.Resume) -> Args:
    return [_selection(operation.filter)]


@sends(op.List)
def _list(operation: op.List) -> Args:
    key, number = operation.after or ("", "")
    return [
        *_filter(operation.filter),
        int(operation.newest_first),
        operation.limit,
        key,
        number,
        int(operation.by_time),
    ]


@sends(op.CountRecords)
def _count_records(operation: op.CountRecords) -> Args:
    return [*_filter(operation.filter), *(operation.after or ("", ""))]


@sends(op.Follow)
def _follow(operation: op.Follow) -> Args:
    args: Args = [text_of(operation.after), operation.limit]
    for wanted in operation.filters:
        path = "" if wanted.path is None else "/" + gate_key(wanted.path)
        args += (" ".join(wanted.kinds), path, wanted.user or "", wanted.flow or "")
    return args


@sends(op.CancelFlow)
def _cancel_flow(operation: op.CancelFlow) -> Args:
    return [operation.flow, operation.reason or "canceled"]


@sends(op.Cancel)
def _cancel(operation: op.Cancel) -> Args:
    return [operation.reason or "canceled", *operation.ids]


@sends(op.CancelPath)
def _cancel_path(operation: op.CancelPath) -> Args:
    return [gate_key(operation.path), operation.reason or "canceled"]


@sends(op.Redrive)
def _redrive(operation: op.Redrive) -> Args:
    if operation.again:
        which = "again downstream" if operation.downstream else "again"
        versions = [part for item in zip(operation.ids, operation.again, strict=True) for part in item]
        return [which, int(operation.drop_steps), *versions]
    which = "waiting" if operation.waiting else "downstream" if operation.downstream else "dead"
    return [which, int(operation.drop_steps), *operation.ids]


@sends(op.Push)
def _push(operation: op.Push) -> Args:
    return [*_pull(operation), operation.value, operation.ttl_ms]


@sends(op.Pull)
def _pull(operation: op.Push | op.Pull) -> Args:
    return [f"{operation.namespace}\0{operation.key}"]


@sends(op.Tree)
def _tree(operation: op.Tree) -> Args:
    after = gate_key((operation.after,)) if operation.after else ""
    return [gate_key(operation.path), operation.depth, after, operation.limit]


@sends(op.CanDequeue)
def _can_dequeue(operation: op.CanDequeue) -> Args:
    return [gate_key(operation.path), operation.mode[0]]


@sends(op.DueSchedules)
def _due_schedules(operation: op.DueSchedules) -> Args:
    return [operation.limit, *(operation.after or ("", ""))]


# --- all others, by the kinds of their fields ------------------------------------------------------------------------


def _writer(kind: Kind) -> Callable[[Any], Any]:
    """Return the function that encodes a field as an argument."""
    if isinstance(kind, Optional):
        inner = kind.kind
        if isinstance(inner, PathOf):
            return _place
        assert isinstance(inner, (Count, Label, Text)), inner
        return _token if isinstance(inner, Proof) else text_of if isinstance(inner, Count) else _text
    if isinstance(kind, Proof):
        return _token
    if isinstance(kind, Flag):
        return int
    if isinstance(kind, PathOf):
        return gate_key
    assert isinstance(kind, (Choice, Count, Label, Text)), kind
    return _itself


def _place(path: Path | None) -> str:
    return "-" if path is None else "/" + gate_key(path)


def _token(token: int | None) -> str:
    return "" if token is None else token_text(token)


def _text(text: str | None) -> str:
    return text or ""


def _itself(value: Any) -> Any:
    return value


def _in_order(operation: type[op.Operation[Any]]) -> Callable[[Any], Args]:
    """Return the function that encodes an operation's fields as arguments in order, with the variadic field last."""
    rows: list[tuple[str, Callable[[Any], Any]]] | None = None
    many: str | None = None

    def request(asked: Any) -> Args:
        nonlocal rows, many
        if rows is None:  # at first use: annotations are looked at then
            kinds = kinds_of(operation)
            many = next((name for name, kind in kinds.items() if isinstance(kind, Many)), None)
            rows = [(name, _writer(kind)) for name, kind in kinds.items() if name != many]
        args = [write(getattr(asked, name)) for name, write in rows]
        return args if many is None else [*args, *getattr(asked, many)]

    return request


for _kind in op.KINDS:
    if _kind not in REQUESTS:
        sends(_kind)(_in_order(_kind))
