"""
Operations as arguments of scripts, replies of scripts as replies: no I/O.

A job's spec travels in two parts. What the rules look at (priority, pool, claims, ...) is a *head*, lines of text that
a script takes apart; the rest is opaque to every script: one line of JSON, then the arguments as they are. Of the
policy the rules see one line, empty for the default policy. A state is one letter, a token ``epoch.count``.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.core.admission import OTHER_FLOW, OTHER_SPEC, WEIGHTS_FULL, check_limits
from queuehint.core.dependencies import needs_of
from queuehint.core.timetable import TOO_MANY
from queuehint.errors import (
    BackendError,
    CorruptStateError,
    CycleError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    JobNotFoundError,
    LeaseLostError,
    PathClosedError,
    QueueFullError,
    ScheduleChangedError,
    ScheduleNotFoundError,
    UnknownDependencyError,
)
from queuehint.events import Event, EventKind
from queuehint.hint import Claim, Path, gate_key, parse_gate_key, queue_key
from queuehint.limits import TOO_MANY_LIMITS, Limit, LimitState, order_of
from queuehint.operations import (
    ANYONE,
    Amend,
    Cancel,
    CancelFlow,
    CancelPath,
    CanDequeue,
    Close,
    Commit,
    Committed,
    CountEdges,
    CountFlow,
    CountJobs,
    CountPending,
    CountRecords,
    Counts,
    Delete,
    Discard,
    Draw,
    Drawn,
    DropLimit,
    DropSchedule,
    DueSchedules,
    Enqueue,
    Enqueued,
    EnqueuedJob,
    Exchange,
    Exchanged,
    Fetch,
    Fetched,
    Firing,
    Follow,
    Followed,
    Get,
    Got,
    Judged,
    Limits,
    List,
    ListDead,
    Listed,
    ListFlow,
    ListLimits,
    ListSchedules,
    ListUsers,
    ListWeights,
    Log,
    Marked,
    Noted,
    Operation,
    Page,
    Pause,
    PauseSchedule,
    Peek,
    Pending,
    Pull,
    Pulled,
    Push,
    Pushed,
    PutSchedule,
    Redrive,
    Renew,
    Renewed,
    Reopen,
    Report,
    Resume,
    ResumeSchedule,
    Schedules,
    SetLimit,
    Swept,
    Tick,
    Ticked,
    Tree,
    Update,
    Users,
    Verdict,
    Weigh,
    Weights,
    Why,
)
from queuehint.policy import DEFAULT_BACKOFF, DEFAULT_POLICY, Backoff, Policy, Retention
from queuehint.records import (
    Dependency,
    Grant,
    JobError,
    JobRecord,
    JobSpec,
    JobState,
    Outcome,
    OutcomeKind,
    Progress,
)
from queuehint.reports import Delays, EdgeStats, FlowStats, Reason, ReasonKind, Stats, TreeNode
from queuehint.schedule import Recurrence, Schedule

from .scripts import LETTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from queuehint.record_filter import RecordFilter

Args = list[Any]
SCHEMA: Final = 3
"""What ``lua/lib/state.lua`` calls SCHEMA_VERSION."""
STATES: Final = {letter: state for state, letter in LETTERS.items()}
_VERDICTS: Final = {
    "D": Verdict.DONE,
    "Q": Verdict.REQUESTED,
    "R": Verdict.REFUSED,
    "U": Verdict.UNKNOWN,
    "L": Verdict.LOST,
    "C": Verdict.CANCELED,
    "T": Verdict.STALE,
}
_SHARED: Final = "shared"
_HEADER = 3
"""How many items every reply to a change begins with: more, now, next."""


@attrs.frozen
class Clocked:
    """What every reply to a change says besides: the store's time, and when something is due next; ms, None never."""

    now_ms: int
    next_ms: int | None
    more: bool


# --- small values --------------------------------------------------------------------------------------------------


def token_text(token: object) -> str:
    """Return a token as scripts know it; what is no token proves nothing."""
    return f"{token >> 32}.{token & 0xFFFFFFFF}" if type(token) is int else "-"


def parse_token(text: str) -> int | None:
    """Return the token of a script, None for none."""
    epoch, dot, count = text.partition(".")
    return (int(epoch) << 32) + int(count) if dot else None


@lru_cache(maxsize=8192)
def claims_text(claims: tuple[Claim, ...]) -> str:
    """Return claims as lines: the mode's first letter (x for exclusive, s for shared) and the gate key."""
    return "\n".join([("s" if claim.mode == _SHARED else "x") + gate_key(claim.path) for claim in claims])


@lru_cache(maxsize=8192)
def parse_claims_text(text: str) -> tuple[Claim, ...]:
    """Return the claims of `claims_text`."""
    return tuple(
        [Claim(parse_gate_key(line[1:]), _SHARED if line[0] == "s" else "exclusive") for line in text.split("\n")]
        if text
        else ()
    )


@lru_cache(maxsize=1024)
def policy_line(policy: Policy) -> str:
    """Return what the rules see of a policy."""
    words = (
        policy.max_attempts,
        policy.max_losses,
        policy.on_retry,
        policy.on_dead,
        policy.max_hold_ms,
        policy.start_within_ms,
        policy.retention_ms,
    )
    return "" if words == _DEFAULT_WORDS else " ".join("-" if word is None else str(word) for word in words)


_DEFAULT_WORDS: Final = (
    DEFAULT_POLICY.max_attempts,
    DEFAULT_POLICY.max_losses,
    DEFAULT_POLICY.on_retry,
    DEFAULT_POLICY.on_dead,
    DEFAULT_POLICY.max_hold_ms,
    None,
    None,
)


@lru_cache(maxsize=1024)
def _rest_of_policy(policy: Policy) -> dict[str, Any]:
    """Return what only workers see of a policy, defaults left out."""
    rest: dict[str, Any] = {}
    if policy.backoff != DEFAULT_BACKOFF:
        rest["backoff"] = [policy.backoff.base, policy.backoff.factor, policy.backoff.cap, policy.backoff.jitter]
    if policy.timeout_ms is not None:
        rest["timeout_ms"] = policy.timeout_ms
    if policy.on_dependency_failure != DEFAULT_POLICY.on_dependency_failure:
        rest["on_dependency_failure"] = policy.on_dependency_failure
    return rest


@lru_cache(maxsize=1024)
def _policy(line: str, backoff: tuple[float, ...] | None, timeout_ms: int | None, on_failure: str | None) -> Policy:
    words = [None if word == "-" else word for word in line.split(" ")] if line else list(_DEFAULT_WORDS)
    attempts, losses, on_retry, on_dead, hold_ms, within_ms, retention_ms = words
    policy = Policy(
        max_attempts=int(attempts or 0),
        max_losses=int(losses or 0),
        backoff=Backoff(*backoff) if backoff else DEFAULT_BACKOFF,
        timeout_ms=timeout_ms,
        on_retry=on_retry,  # type: ignore[arg-type]
        on_dead=on_dead,  # type: ignore[arg-type]
        on_dependency_failure=on_failure or DEFAULT_POLICY.on_dependency_failure,  # type: ignore[arg-type]
        max_hold_ms=int(hold_ms or 0),
        start_within_ms=None if within_ms is None else int(within_ms),
        retention_ms=None if retention_ms is None else int(retention_ms),
    )
    return DEFAULT_POLICY if policy == DEFAULT_POLICY else policy


# --- specs ---------------------------------------------------------------------------------------------------------

_NOTHING_SAID: Final = (None, None, None, None, None, None, None, (), False)
_PLAIN_FACTS: Final = (
    "on_conflict", "delay_ms", "run_at_ms", "name", "flow", "parent", "schedule", "scheduled_ms", "templates",
)  # fmt: skip
_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def spec_head(spec: JobSpec) -> str:
    """Return what the rules see of a spec."""
    return (
        f"{spec.id}\n{spec.priority}\n{spec.pool}\n{spec.user or ''}\n{spec.task}\n{spec.service or ''}\n"
        f"{spec.key or ''}\n{spec.on_conflict}\n"
        f"{_text(spec.delay_ms)}\n{_text(spec.run_at_ms)}\n{_text(spec.presence_ms)}\n{spec.flow or ''}\n"
        f"{policy_line(spec.policy)}\n{claims_text(spec.claims)}"
    )


def spec_rest(spec: JobSpec) -> bytes:
    """Return the rest of a spec, so that equal specs are equal bytes."""
    on_conflict = None if spec.on_conflict == "return" else spec.on_conflict
    said_of = (spec.delay_ms, spec.run_at_ms, spec.name, spec.flow, spec.parent, spec.schedule)
    if spec.policy is DEFAULT_POLICY and (on_conflict, *said_of, spec.depends_on, spec.templates) == _NOTHING_SAID:
        return b"\n" + spec.arguments
    rest = {
        "on_conflict": on_conflict,
        "delay_ms": spec.delay_ms,
        "run_at_ms": spec.run_at_ms,
        "name": spec.name,
        "flow": spec.flow,
        "parent": spec.parent,
        "schedule": spec.schedule,
        "scheduled_ms": spec.scheduled_ms,
        "depends_on": [_edge(edge) for edge in spec.depends_on] or None,
        "templates": spec.templates or None,
        **_rest_of_policy(spec.policy),
    }
    said = {name: value for name, value in rest.items() if value is not None}
    return (_dump(said).encode() if said else b"") + b"\n" + spec.arguments


def _edge(edge: Dependency) -> list[Any]:
    """Return an edge as JSON: id, condition, name, whether its result is needed; what is not said left out."""
    said = [edge.id, edge.when, edge.name, edge.data]
    for default in (False, None, "success"):
        if said[-1] != default:
            break
        said.pop()
    return said


@lru_cache(maxsize=4096)
def _facts(line: bytes, policy_text: str) -> dict[str, Any]:
    """Return what the first line of a rest and a policy's line say, as fields of a spec."""
    said = _checked_facts(json.loads(line)) if line else {}
    backoff = said.pop("backoff", None)
    said["policy"] = _policy(
        policy_text,
        None if backoff is None else tuple(backoff),
        said.pop("timeout_ms", None),
        said.pop("on_dependency_failure", None),
    )
    return said


def _checked_facts(said: Any) -> dict[str, Any]:
    """See that the first line of a rest is one of ours: `JobSpec` itself checks nothing."""
    if type(said) is not dict:
        raise TypeError("no options")
    if "depends_on" in said:
        said["depends_on"] = tuple([Dependency(*edge) for edge in said["depends_on"]])
    if isinstance(said.get("templates"), list):
        said["templates"] = tuple(said["templates"])
    plain = {name: value for name, value in said.items() if name in _PLAIN_FACTS}
    JobSpec(id="any", task="any", **plain).check()
    return said


def parse_spec(job_id: str, lines: Sequence[str], rest: bytes) -> JobSpec:
    """
    Return the spec of an id, a head's other lines and a rest.

    Args:
        lines: priority, pool, user, task, service, key, presence, policy, claims.
    """
    priority, pool, user, task, service, key, presence, policy, claims = lines
    line, newline, arguments = rest.partition(b"\n")
    if not newline:
        raise CorruptStateError(f"the spec of job {job_id!r} is missing or damaged; run `queuehint doctor`")
    return JobSpec(
        id=job_id,
        task=task,
        claims=parse_claims_text(claims),
        arguments=arguments,
        priority=int(priority),
        pool=pool,
        user=user or None,
        service=service or None,
        key=key or None,
        presence_ms=int(presence) if presence else None,
        **_facts(line, policy),
    )


def parse_head(head: str, rest: bytes) -> JobSpec:
    """Return the spec of `spec_head` and `spec_rest`."""
    job_id, *kept, _, _, _, presence, _, policy, claims = head.split("\n", 13)
    return parse_spec(job_id, (*kept, presence, policy, claims), rest)


def decode_spec(job_id: str, reply: list[Any]) -> JobSpec | None:
    """Return the spec that the script `spec` tells; None if there is none."""
    if not reply:
        return None
    *lines, rest = reply
    try:
        return parse_spec(job_id, [line.decode() for line in lines], rest)
    except _DAMAGE as error:
        raise _damaged(error) from error


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _number(text: str) -> int | None:
    return int(text) if text else None


# --- settings --------------------------------------------------------------------------------------------------------


def kept_args(retention: Retention) -> Args:
    """Return how long records are kept, as every script is told: of single services in lines behind that of all."""
    of_services = [f"\n{service}\n{kept_ms}" for service, kept_ms in retention.services_ms.items()]
    return [
        retention.finished_ms,
        retention.failed_ms,
        retention.canceled_ms,
        f"{retention.service_ms}{''.join(of_services)}" if of_services else retention.service_ms,
    ]


# --- requests --------------------------------------------------------------------------------------------------------


def _enqueue(operation: Enqueue) -> Args:
    parent_id, token = operation.parent or ("", "")
    firing = "" if operation.firing is None else _firing(operation.firing)
    args: Args = [operation.staged or "", parent_id, token_text(token), firing]
    for spec in operation.jobs:
        needs = "\n".join([f"{fates} {job_id}" for job_id, fates in needs_of(spec)]) if spec.depends_on else ""
        args += (spec_head(spec), spec_rest(spec), needs)
    return args


def _firing(firing: Firing) -> str:
    return f"{firing.name}\n{firing.version}\n{firing.last_ms}\n{_text(firing.next_ms)}"


def _set_limit(operation: SetLimit) -> Args:
    limit = operation.limit
    field = "-" if limit.path is None else ("/" if limit.each else "=") + gate_key(limit.path)
    tokens, per_ms = limit.rate or (None, None)
    return [field, _text(limit.most), _text(tokens), _text(per_ms), _text(limit.max_pending)]


def _put_schedule(operation: PutSchedule) -> Args:
    recurrence = _dump(attrs.asdict(operation.recurrence, filter=lambda _, value: value is not None))
    spec = operation.spec
    return [operation.name, _text(operation.next_ms), spec_head(spec), spec_rest(spec), recurrence]


def _exchange(operation: Exchange) -> Args:
    pools = operation.pools
    args: Args = [operation.worker, operation.lease_ms, operation.limit]
    args += (_users(operation.users or ()), _users(operation.steal), len(pools), *pools)
    for outcome in operation.settle:
        args += (outcome.job_id, token_text(outcome.token))
        args += _outcome(outcome)
    return args


def _users(users: Iterable[str | None]) -> str:
    """Return users as lines behind a sign, empty for jobs without one; nothing for none, and `ANYONE` as it is."""
    if users == ANYONE:
        return ANYONE
    return "=" + "\n".join([user or "" for user in users]) if users else ""


def _outcome(outcome: Outcome) -> Sequence[Any]:
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
    args: Args = [operation.lease_ms]
    for job_id, token in operation.leases:
        args += (job_id, token_text(token))
    return args


def _report(operation: Report) -> Args:
    progress = operation.progress
    packed = _dump([progress.done, progress.total, progress.note])
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
        _text(wanted.since_ms),
        _text(wanted.until_ms),
    ]


def _list(operation: List) -> Args:
    key, number = operation.after or ("", "")
    return [*_filter(operation.filter), int(operation.newest_first), operation.limit, key, number]


_REQUESTS: Final[dict[type[Any], tuple[str, Callable[[Any], Args]]]] = {
    Enqueue: ("enqueue", _enqueue),
    Commit: ("commit_parts", lambda operation: [operation.staged]),
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
    CountRecords: ("count_records", lambda operation: _filter(operation.filter)),
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
        lambda operation: [operation.name, operation.version, _text(operation.next_ms)],
    ),
    ListSchedules: ("list_schedules", lambda operation: [operation.first, operation.limit]),
    DueSchedules: ("due_schedules", lambda operation: [operation.limit, *(operation.after or ("", ""))]),
    Follow: (
        "follow_events",
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

QUESTIONS: Final = (
    Get, Fetch, Pull, Peek, List, CountRecords, ListUsers, ListDead, ListFlow, CountFlow, CountEdges, Why, Tree,
    CountJobs, CanDequeue, CountPending, ListSchedules, DueSchedules, ListWeights, ListLimits,
)  # fmt: skip
REPEATABLE: Final = (Follow,)
"""Changes that may be made twice: a repeat reads again, so they need no receipt."""


def encode(operation: Operation[Any]) -> tuple[str, Args]:
    """
    Return the name of an operation's script and its own arguments.

    Raises:
        InvalidJobError, DuplicateJobError: it carries too much, or one id twice.
    """
    check_limits(operation)
    name, request = _REQUESTS[type(operation)]
    return name, request(operation)


# --- replies ---------------------------------------------------------------------------------------------------------


def decode(operation: Operation[Any], reply: list[Any]) -> Any:
    """
    Return an operation's typed reply.

    Raises:
        CorruptStateError: what is stored cannot be read.
        JobNotFoundError: as the operation says.
    """
    try:
        return _REPLIES[type(operation)](operation, reply)
    except (CorruptStateError, JobNotFoundError):
        raise
    except _DAMAGE as error:
        raise _damaged(error) from error


def clocked(reply: list[Any]) -> Clocked:
    """Return what the reply to a change says of time."""
    try:
        more, now_ms, next_ms = reply[:_HEADER]
        return Clocked(now_ms + 0, None if next_ms < 0 else next_ms, bool(more))
    except _DAMAGE as error:
        raise _damaged(error) from error


# What taking damaged bytes apart may raise; errors of ours that say a user's value is wrong are ValueErrors too.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def _damaged(error: Exception) -> CorruptStateError:
    return CorruptStateError(f"what is stored cannot be read ({type(error).__name__}); run `queuehint doctor`")


def _enqueued(operation: Enqueue, reply: list[Any]) -> Enqueued:
    jobs = []
    following = reply[3] + 0
    for spec, line in zip(operation.jobs, reply[4].decode().split("\n") if reply[4] else (), strict=True):
        if len(line) == 1:
            jobs.append(EnqueuedJob(spec.id, following, STATES[line], True))
            following += 1
            continue
        job_id, number, state, created, token = line.split(" ")
        jobs.append(EnqueuedJob(job_id, int(number), STATES[state], created == "1", parse_token(token)))
        following += created == "1"
    return Enqueued(tuple(jobs), bool(reply[0]))


def _exchanged(operation: Exchange, reply: list[Any]) -> Exchanged:
    verdicts = tuple([_VERDICTS[letter] for letter in reply[3].decode()])
    canceled = tuple(reply[4].decode().split("\n")) if reply[4] else ()
    count = (len(reply) - 6) // 2
    lease_until_ms = reply[1] + operation.lease_ms
    grants = []
    for head, rest in zip(reply[6 : 6 + count], reply[6 + count :], strict=True):
        job_id, token, attempts, losses, *lines = head.decode().split("\n", 12)
        spec = parse_spec(job_id, lines, rest)
        grants.append(Grant(spec, parse_token(token) or 0, int(attempts), int(losses), lease_until_ms))
    return Exchanged(verdicts, tuple(grants), canceled, bool(reply[0]), bool(reply[5]))


def _judged(_operation: Any, reply: list[Any]) -> Judged:
    text = reply[3].decode()
    verdicts = [(_VERDICTS[text[at]], STATES.get(text[at + 1])) for at in range(0, len(text), 2)]
    return Judged(tuple(verdicts), bool(reply[0]))


def _ticked(_operation: Tick, reply: list[Any]) -> Ticked:
    time = clocked(reply)
    return Ticked(time.more, time.next_ms)


def _marked(_operation: Any, reply: list[Any]) -> Marked:
    return Marked(bool(reply[3]), bool(reply[0]))


def _weights(_operation: ListWeights, reply: list[Any]) -> Weights:
    weights = {user.decode() or None: int(weight) for user, weight in zip(reply[::2], reply[1::2], strict=True)}
    return Weights(tuple(sorted(weights.items(), key=lambda entry: entry[0] or "")))


def _noted(_operation: Any, reply: list[Any]) -> Noted:
    return Noted(_VERDICTS[reply[3].decode()])


def _got(_operation: Get, reply: list[Any]) -> Got:
    return Got(tuple([_record(item) if item else None for item in reply]))


def _listed(operation: ListDead, reply: list[Any]) -> Listed:
    records = [_record(item) for item in reply]
    more = len(records) > operation.limit
    records = records[: operation.limit]
    return Listed(tuple(records), records[-1].number if more else None)


def _listed_of_flow(_operation: ListFlow, reply: list[Any]) -> Listed:
    return Listed(tuple([_record(item) for item in reply[1:]]), reply[0] or None)


def _page(_operation: List, reply: list[Any]) -> Page:
    has_more, key, number, *items = reply
    records = tuple([_record(item) for item in items])
    return Page(records, (key.decode(), int(number)) if has_more else None)


def _counts(_operation: CountRecords, reply: list[Any]) -> Counts:
    return Counts(dict(zip(JobState, reply[1:], strict=True)), bool(reply[0]))


def _users_page(_operation: ListUsers, reply: list[Any]) -> Users:
    users = tuple([(name.decode(), count) for name, count in zip(reply[1::2], reply[2::2], strict=True)])
    return Users(users, users[-1][0] if reply[0] else None)


def _fetched(_operation: Fetch, reply: list[Any]) -> Fetched:
    results: list[tuple[JobState | None, bytes | None]] = []
    for said, result in zip(reply[1::2], reply[2::2], strict=True):
        state, kind = said.decode() or "  "
        results.append((STATES.get(state), b"null" if kind == "n" else result if kind == "s" else None))
    return Fetched(_VERDICTS[reply[0].decode()], tuple(results))


def _edge_stats(_operation: CountEdges, reply: list[Any]) -> EdgeStats:
    deferred, open_edges, oldest_id, oldest_ms, looked_at, most_blocked, most_awaited, behind_dead, orphans = reply
    return EdgeStats(
        deferred=deferred,
        open_edges=open_edges,
        oldest_id=oldest_id.decode() or None,
        oldest_ms=oldest_ms if oldest_id else None,
        looked_at=looked_at,
        most_blocked=most_blocked,
        most_awaited=most_awaited,
        behind_dead=behind_dead,
        orphans=tuple([job_id.decode() for job_id in orphans]),
    )


def _limits(_operation: ListLimits, reply: list[Any]) -> Limits:
    states = []
    for at in range(0, len(reply), 7):
        field = reply[at].decode()
        numbers = [None if item == b"" else item for item in reply[at + 1 : at + 7]]
        most, tokens, per_ms, max_pending, started, pending = numbers
        limit = Limit(
            path=None if field == "-" else parse_gate_key(field[1:]),
            each=field[0] == "/",
            most=most,
            rate=None if tokens is None or per_ms is None else (tokens, per_ms),
            max_pending=max_pending,
        )
        states.append(LimitState(limit=limit, started=started, pending=pending))
    return Limits(tuple(sorted(states, key=lambda state: order_of(state.limit))))


def _schedules(_operation: Any, reply: list[Any]) -> Schedules:
    now_ms, following, *items = reply
    return Schedules(tuple([_schedule(item) for item in items]), now_ms + 0, following.decode() or None)


def _schedule(item: list[Any]) -> Schedule:
    name, version, next_ms, is_paused, last_ms, last_id, head = [field.decode() for field in item[:7]]
    rest, recurrence = item[7:]
    return Schedule(
        name=name,
        spec=parse_head(head, rest),
        recurrence=Recurrence(**json.loads(recurrence)),
        version=int(version),
        next_ms=_number(next_ms),
        is_paused=is_paused == "1",
        last_ms=_number(last_ms),
        last_id=last_id or None,
    )


def _record(item: list[Any]) -> JobRecord:
    """Return the record of a job: its head's fields, its rest, result, progress, errors and log lines."""
    (
        job_id,
        state,
        number,
        seq,
        version,
        attempts,
        losses,
        token,
        worker,
        enqueued,
        due,
        queued,
        started,
        ended,
        cancel,
        cause,
        has_result,
        logs_count,
        level,
        *spec,
    ) = [field.decode() for field in item[:28]]
    rest, result, progress, errors, logs = item[28:]
    job_state = STATES[state]
    return JobRecord(
        id=job_id,
        number=int(number),
        seq=int(seq) or None,
        version=int(version),
        state=job_state,
        spec=parse_spec(job_id, spec, rest),
        attempts=int(attempts),
        losses=int(losses),
        token=parse_token(token),
        worker=worker or None,
        enqueued_ms=int(enqueued),
        due_ms=_number(due),
        queued_ms=_number(queued),
        started_ms=_number(started),
        ended_ms=_number(ended),
        result=None if has_result == "-" else b"null" if has_result == "n" else result,
        errors=tuple([_parse_error(error) for error in errors]),
        cause=(cause or cancel)[1:] or None,
        cancel_requested=bool(cancel) and not job_state.is_over,
        progress=Progress(*json.loads(progress)) if progress else None,
        logs=tuple([line.decode() for line in logs]),
        logs_truncated=int(logs_count) > len(logs),
        level=int(level),
    )


def _parse_error(item: list[Any]) -> JobError:
    attempt, at_ms, kind, message, traceback = item
    return JobError(
        type=kind.decode(),
        message=message.decode(),
        traceback=traceback[1:].decode() if traceback else None,
        attempt=attempt,
        at_ms=at_ms,
    )


def _reason(reply: list[Any]) -> Reason:
    job_id, state, kind, jobs, path, until, stuck, detail = [field.decode() for field in reply[:8]]
    return Reason(
        job_id=job_id,
        state=STATES[state],
        kind=ReasonKind(kind),
        jobs=tuple(jobs.split("\n")) if jobs else (),
        path_key=queue_key(parse_gate_key(path[1:])) if path else None,
        until_ms=_number(until),
        stuck=stuck == "1",
        detail=detail[1:] if detail else None,
    )


def _overdue(reason: Reason, started: bytes, now_ms: bytes, rest: bytes) -> Reason:
    """Say of a running job whether it runs past its timeout, which no script knows."""
    if reason.kind is not ReasonKind.RUNNING:
        return reason
    timeout_ms = _facts(rest.partition(b"\n")[0], "")["policy"].timeout_ms
    overdue = timeout_ms is not None and int(started) + timeout_ms < int(now_ms)
    return attrs.evolve(reason, kind=ReasonKind.OVERDUE) if overdue else reason


def _why(operation: Why, reply: list[Any]) -> Reason:
    if not reply:
        raise JobNotFoundError(operation.job_id)
    return _overdue(_reason(reply), *reply[8:])


def _pending(_operation: CountPending, reply: list[Any]) -> Pending:
    return Pending(reply[0], moving=bool(reply[1]), reasons=tuple([_overdue(_reason(r), *r[8:]) for r in reply[2:]]))


def _tree(operation: Tree, reply: list[Any]) -> TreeNode:
    """Build the tree of a flat list: for each node its gate key and seven counts."""
    found: dict[Path, list[int]] = {}
    for at in range(0, len(reply), 8):
        found[parse_gate_key(reply[at].decode())] = reply[at + 1 : at + 8]
    children: dict[Path, list[Path]] = {}
    for path in sorted(found):
        if len(path) > len(operation.path):
            children.setdefault(path[:-1], []).append(path)

    def node(path: Path) -> TreeNode:
        started, started_below, waiting, granted, passing, paused, closed = found[path]
        return TreeNode(
            path_key=queue_key(path),
            started=started,
            started_below=started_below,
            waiting=waiting,
            granted=granted,
            passing=passing,
            paused=bool(paused),
            closed=bool(closed),
            children=tuple([node(child) for child in children.get(path, ())]),
        )

    return node(operation.path)


_STATS = (
    "enqueued", "started", "settled", "finished", "failed", "canceled", "retried", "snoozed", "released", "lost",
    "pruned", "leftovers", "nodes",
)  # fmt: skip


def _stats(_operation: CountJobs, reply: list[Any]) -> Stats:
    states, totals, stuck, ready, (resolved, sum_ms, max_ms), oldest = reply
    return Stats(
        states=dict(zip(JobState, states, strict=True)),
        ready={ready[at].decode(): ready[at + 1] for at in range(0, len(ready), 2)},
        oldest_ready_ms={oldest[at].decode(): oldest[at + 1] for at in range(0, len(oldest), 2)},
        stuck=dict(
            zip(
                (
                    ReasonKind.PAUSED.value,
                    ReasonKind.DEAD_HOLD.value,
                    ReasonKind.DEAD_DEPENDENCY.value,
                    ReasonKind.NO_WORKER.value,
                    ReasonKind.UNKNOWN_TASK.value,
                ),
                stuck,
                strict=True,
            )
        ),
        resolved=Delays(count=resolved, sum_ms=sum_ms, max_ms=max_ms),
        **dict(zip(_STATS, totals, strict=True)),
    )


def _followed(operation: Follow, reply: list[Any]) -> Followed:
    last, first, missed, *texts = reply[_HEADER:]
    events = tuple([_event(at, text.decode()) for at, text in enumerate(texts, first)])
    after = events[-1].at if events else last
    return Followed(events, after, missed, after < last)


def _event(at: int, text: str) -> Event:
    kind, at_ms, old, new, number, attempt, took_ms, task, pool, user, job_id, cause = text.split("\n", 11)
    return Event(
        at=at,
        at_ms=int(at_ms),
        kind=EventKind(kind),
        id=job_id,
        number=int(number),
        old=STATES.get(old),
        new=STATES.get(new),
        attempt=int(attempt),
        took_ms=_number(took_ms),
        task=task,
        pool=pool,
        user=user or None,
        cause=cause or None,
    )


_REPLIES: Final[dict[type[Any], Callable[[Any, list[Any]], Any]]] = {
    Enqueue: _enqueued,
    Commit: lambda _, reply: Committed(reply[3], bool(reply[0])),
    CancelFlow: lambda _, reply: Swept(bool(reply[0])),
    Push: lambda _, reply: Pushed(bool(reply[3]), bool(reply[0])),
    Pull: lambda _, reply: Pulled(reply[0] if reply else None),
    Fetch: _fetched,
    ListFlow: _listed_of_flow,
    CountFlow: lambda _, reply: FlowStats(states=dict(zip(JobState, reply, strict=True))),
    CountEdges: _edge_stats,
    Draw: lambda _, reply: Drawn(reply[3]),
    Cancel: _judged,
    CancelPath: lambda _, reply: Swept(bool(reply[0])),
    Redrive: _judged,
    Discard: _judged,
    Exchange: _exchanged,
    Renew: lambda _, reply: Renewed(tuple([_VERDICTS[letter] for letter in reply[3].decode()]), bool(reply[0])),
    Report: _noted,
    Log: _noted,
    Update: _noted,
    Amend: _noted,
    Delete: _judged,
    Peek: lambda _, reply: Drawn(reply[0]),
    List: _page,
    CountRecords: _counts,
    ListUsers: _users_page,
    Tick: _ticked,
    Pause: _marked,
    Resume: _marked,
    Close: _marked,
    Reopen: _marked,
    SetLimit: _marked,
    DropLimit: _marked,
    ListLimits: _limits,
    PutSchedule: _marked,
    DropSchedule: _marked,
    PauseSchedule: _marked,
    ResumeSchedule: _marked,
    ListSchedules: _schedules,
    DueSchedules: _schedules,
    Follow: _followed,
    Weigh: _marked,
    ListWeights: _weights,
    Get: _got,
    ListDead: _listed,
    Why: _why,
    Tree: _tree,
    CountJobs: _stats,
    CanDequeue: lambda _, reply: bool(reply[0]),
    CountPending: _pending,
}


# --- refusals --------------------------------------------------------------------------------------------------------


def refusal(operation: Operation[Any], message: str) -> Exception | None:
    """
    Return the error of a script's refusal, None if it is not one of ours.

    Args:
        message: its first word picks the class; what follows names items of the operation by their positions.
    """
    words = message.split()
    code = words[0] if words else ""
    if code == "DUPLICATE_JOB" and isinstance(operation, Enqueue):
        return DuplicateJobError(operation.jobs[int(words[1])].id, fields=("content",))
    if code == "KEY_TAKEN" and isinstance(operation, Enqueue):
        return DuplicateJobError(words[2], key=operation.jobs[int(words[1])].key)
    if code == "UNKNOWN_DEPENDENCY" and isinstance(operation, Enqueue):
        return UnknownDependencyError(operation.jobs[int(words[1])].id, words[2])
    if code == "CYCLE" and isinstance(operation, Enqueue) and operation.parent is not None:
        return CycleError([operation.parent[0], operation.jobs[int(words[1])].id])
    if code == "LEASE_LOST" and isinstance(operation, Enqueue) and operation.parent is not None:
        return LeaseLostError(*operation.parent)
    if code == "FLOW_GONE" and isinstance(operation, (Commit, Enqueue)) and operation.staged is not None:
        return FlowNotFoundError(operation.staged)
    if code == "OTHER_SPEC":
        return InvalidJobError(OTHER_SPEC)
    if code == "OTHER_FLOW":
        return InvalidJobError(OTHER_FLOW)
    if code == "PATH_CLOSED" and isinstance(operation, Enqueue):
        claim = operation.jobs[int(words[1])].claims[int(words[2])]
        return PathClosedError(queue_key(claim.path[: int(words[3])]))
    if code == "QUEUE_FULL" and isinstance(operation, Enqueue):
        index, claim_at, depth, pending, most = map(int, words[1:])
        path = operation.jobs[index].claims[claim_at].path[:depth] if claim_at >= 0 else None
        return QueueFullError(None if path is None else queue_key(path), pending, most)
    if code == "LIMITS_FULL":
        return InvalidJobError(TOO_MANY_LIMITS)
    if code == "SCHEDULE_CHANGED" and isinstance(operation, Enqueue) and operation.firing is not None:
        return ScheduleChangedError(operation.firing.name)
    if code == "NO_SCHEDULE" and isinstance(operation, (PauseSchedule, ResumeSchedule)):
        return ScheduleNotFoundError(operation.name)
    if code == "SCHEDULES_FULL":
        return InvalidJobError(TOO_MANY)
    if code == "WEIGHTS_FULL":
        return InvalidJobError(WEIGHTS_FULL)
    if code == "CORRUPT":
        return CorruptStateError(f"{message.removeprefix('CORRUPT ').split(' script: ')[0]}; run `queuehint doctor`")
    if code == "BAD_SCHEMA":
        return CorruptStateError(
            f"the namespace has schema {words[1]}, this version of queuehint knows schema {SCHEMA}"
        )
    if code == "STALE_REQUEST":
        return BackendError("a request came after a newer one of its session and was refused")
    return None
