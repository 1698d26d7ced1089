"""Operations as names and arguments of scripts: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.backends.redis.codec.specs import dump_json, spec_head, spec_rest, text_of, token_text
from queuehint.backends.redis.scripts import LETTERS
from queuehint.core.structures.edges import needs_of
from queuehint.operations import (
    ANYONE,
    Amend,
    Cancel,
    CancelFlow,
    CancelPath,
    CanDequeue,
    Close,
    Commit,
    CountEdges,
    CountFlow,
    CountJobs,
    CountPending,
    CountRecords,
    Delete,
    Discard,
    Draw,
    DropLimit,
    DropSchedule,
    DueSchedules,
    Enqueue,
    Exchange,
    Fetch,
    Firing,
    Follow,
    Get,
    List,
    ListDead,
    ListFlow,
    ListLimits,
    ListSchedules,
    ListUsers,
    ListWeights,
    Log,
    Pause,
    PauseSchedule,
    Peek,
    Pull,
    Push,
    PutSchedule,
    Redrive,
    Renew,
    Reopen,
    Report,
    Resume,
    ResumeSchedule,
    SetLimit,
    Tick,
    Tree,
    Update,
    Weigh,
    Why,
)
from queuehint.values.hint import gate_key
from queuehint.values.outcome import JobError, Outcome, OutcomeKind
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from queuehint.values.record_filter import RecordFilter

Args = list[Any]


def kept_args(retention: Retention) -> Args:
    """Return how long records are kept, as every script is told: of single services in lines behind that of all."""
    of_services = [f"\n{service}\n{kept_ms}" for service, kept_ms in retention.services_ms.items()]
    return [
        retention.finished_ms,
        retention.failed_ms,
        retention.canceled_ms,
        f"{retention.service_ms}{''.join(of_services)}" if of_services else retention.service_ms,
    ]


def retention_text(retention: Retention) -> str:
    """Return a retention as the store keeps it: four numbers of ms, then lines of services and theirs."""
    four, services = retention.in_ms()
    return "".join([" ".join(map(str, four)), *[f"\n{service}\n{kept_ms}" for service, kept_ms in services]])


def parse_retention(text: str) -> Retention:
    """
    Return the retention of `retention_text`.

    Raises:
        ValueError: it is none.
    """
    first, *rest = text.split("\n")
    try:
        finished, failed, canceled, service = [int(word) for word in first.split(" ")]
        services = tuple(zip(rest[::2], [int(word) for word in rest[1::2]], strict=True))
        return Retention.of_ms(((finished, failed, canceled, service), services))
    except OverflowError as error:
        raise ValueError(f"no retention: {text!r}") from error


def _enqueue(operation: Enqueue) -> Args:
    parent_id, token = operation.parent or ("", "")
    firing = "" if operation.firing is None else _firing(operation.firing)
    args: Args = [operation.staged or "", parent_id, token_text(token), firing, operation.flow or ""]
    for spec in operation.jobs:
        needs = "\n".join([f"{policy} {job_id}" for job_id, policy in needs_of(spec)]) if spec.depends_on else ""
        args += (spec_head(spec), spec_rest(spec), needs)
    return args


def _firing(firing: Firing) -> str:
    return f"{firing.name}\n{firing.version}\n{firing.last_ms}\n{text_of(firing.next_ms)}"


def _set_limit(operation: SetLimit) -> Args:
    limit = operation.limit
    field = "-" if limit.path is None else ("/" if limit.each else "=") + gate_key(limit.path)
    tokens, per_ms = limit.rate or (None, None)
    return [field, text_of(limit.most), text_of(tokens), text_of(per_ms), text_of(limit.max_pending)]


def _put_schedule(operation: PutSchedule) -> Args:
    recurrence = dump_json(attrs.asdict(operation.recurrence, filter=lambda _, value: value is not None))
    spec = operation.spec
    return [operation.name, text_of(operation.next_ms), spec_head(spec), spec_rest(spec), recurrence]


def _exchange(operation: Exchange) -> Args:
    pools = operation.pools
    args: Args = [operation.worker, operation.lease_ms, -1 if operation.is_last else operation.limit]
    args += (_users(operation.users or ()), _users(operation.steal), int(operation.announces), len(pools), *pools)
    for outcome in operation.settle:
        args += (outcome.job_id, token_text(outcome.token))
        args += outcome_args(outcome)
    return args


def _users(users: Iterable[str | None]) -> str:
    """Return users as lines behind a sign, empty for jobs without one; nothing for none, and `ANYONE` as it is."""
    if users == ANYONE:
        return ANYONE
    return "=" + "\n".join([user or "" for user in users]) if users else ""


def outcome_args(outcome: Outcome) -> Sequence[Any]:
    """Return an outcome as a letter and as many arguments as go with it."""
    kind = outcome.kind
    if kind is OutcomeKind.FINISHED:
        return _result(outcome.result)
    if kind is OutcomeKind.CHILDREN:
        letter, *result = _result(outcome.result)
        return ("c", letter, *(result or [""]), outcome.on_child_failure[0], "\n".join(outcome.children))
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


def _renew(operation: Renew) -> Args:
    args: Args = [operation.lease_ms, int(operation.begun), operation.blocked_ms]
    for job_id, token in operation.leases:
        args += (job_id, token_text(token))
    return args


def _report(operation: Report) -> Args:
    progress = operation.progress
    packed = dump_json([progress.done, progress.total, progress.note])
    return [operation.job_id, token_text(operation.token), packed]


def _log(operation: Log) -> Args:
    token = "" if operation.token is None else token_text(operation.token)
    return [operation.job_id, token, *operation.lines]


def _update(operation: Update) -> Args:
    result = operation.result
    return [operation.job_id, token_text(operation.token), int(result == b"null"), result]


def _amend(operation: Amend) -> Args:
    return [operation.version, spec_head(operation.spec), spec_rest(operation.spec), ""]


def _delete(operation: Delete) -> Args:
    versions = operation.versions or ("",) * len(operation.ids)
    return [part for item in zip(operation.ids, versions, strict=True) for part in item]


def _filter(wanted: RecordFilter) -> Args:
    return [
        *[name or "" for name in (wanted.user, wanted.service, wanted.task, wanted.pool)],
        "".join([LETTERS[state] for state in wanted.states]),
        "" if wanted.path is None else "/" + gate_key(wanted.path),
        text_of(wanted.since_ms),
        text_of(wanted.until_ms),
    ]


def _list(operation: List) -> Args:
    key, number = operation.after or ("", "")
    return [*_filter(operation.filter), int(operation.newest_first), operation.limit, key, number]


REQUESTS: Final[dict[type[Any], tuple[str, Callable[[Any], Args]]]] = {
    Enqueue: ("enqueue", _enqueue),
    Commit: ("commit", lambda operation: [operation.staged, operation.flow or ""]),
    CancelFlow: ("cancel_flow", lambda operation: [operation.flow, operation.reason or "canceled"]),
    Push: (
        "push",
        lambda operation: [f"{operation.namespace}\0{operation.key}", operation.value, operation.ttl_ms],
    ),
    Pull: ("pull", lambda operation: [f"{operation.namespace}\0{operation.key}"]),
    Fetch: ("fetch", lambda operation: [operation.job_id, token_text(operation.token), *operation.ids]),
    ListFlow: ("list_flow", lambda operation: [operation.flow, operation.cursor, operation.limit]),
    CountFlow: ("count_flow", lambda operation: [operation.flow]),
    CountEdges: ("count_edges", lambda _: []),
    Draw: ("draw", lambda operation: [operation.count]),
    Cancel: ("cancel", lambda operation: [operation.reason or "canceled", *operation.ids]),
    CancelPath: ("cancel_path", lambda operation: [gate_key(operation.path), operation.reason or "canceled"]),
    Redrive: ("redrive", lambda operation: [int(operation.downstream), *operation.ids]),
    Discard: ("discard", lambda operation: list(operation.ids)),
    Exchange: ("exchange", _exchange),
    Renew: ("renew", _renew),
    Report: ("report", _report),
    Log: ("log", _log),
    Update: ("update", _update),
    Amend: ("amend", _amend),
    Delete: ("delete", _delete),
    Peek: ("peek", lambda _: []),
    List: ("list", _list),
    CountRecords: (
        "count_records",
        lambda operation: [*_filter(operation.filter), *(operation.after or ("", ""))],
    ),
    ListUsers: ("list_users", lambda operation: [operation.service, operation.after or "", operation.limit]),
    Tick: ("tick", lambda _: []),
    Pause: ("pause", lambda operation: [gate_key(operation.path)]),
    Resume: ("resume", lambda operation: [gate_key(operation.path)]),
    Close: ("close", lambda operation: [gate_key(operation.path)]),
    Weigh: ("weigh", lambda operation: [operation.user or "", operation.weight]),
    ListWeights: ("list_weights", lambda _: []),
    Reopen: ("reopen", lambda operation: [gate_key(operation.path)]),
    SetLimit: ("set_limit", _set_limit),
    DropLimit: (
        "drop_limit",
        lambda operation: ["-" if operation.path is None else "/" + gate_key(operation.path)],
    ),
    ListLimits: ("list_limits", lambda _: []),
    PutSchedule: ("put_schedule", _put_schedule),
    DropSchedule: ("drop_schedule", lambda operation: [operation.name]),
    PauseSchedule: ("pause_schedule", lambda operation: [operation.name]),
    ResumeSchedule: (
        "resume_schedule",
        lambda operation: [operation.name, operation.version, text_of(operation.next_ms)],
    ),
    ListSchedules: ("list_schedules", lambda operation: [operation.first, operation.limit]),
    DueSchedules: ("due_schedules", lambda operation: [operation.limit, *(operation.after or ("", ""))]),
    Follow: (
        "follow",
        lambda operation: ["" if operation.after is None else operation.after, operation.limit],
    ),
    Get: ("get", lambda operation: list(operation.ids)),
    ListDead: ("list_dead", lambda operation: [operation.cursor, operation.limit]),
    Why: ("why", lambda operation: [operation.job_id]),
    Tree: ("tree", lambda operation: [gate_key(operation.path), operation.depth]),
    CountJobs: ("count_jobs", lambda _: []),
    CanDequeue: ("can_dequeue", lambda operation: [gate_key(operation.path), operation.mode[0]]),
    CountPending: (
        "count_pending",
        lambda operation: [
            "-" if operation.path is None else "/" + gate_key(operation.path),
            int(operation.include_scheduled),
        ],
    ),
}
