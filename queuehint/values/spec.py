"""Job specs: the task, arguments, claims, options and edges of a job, and their limits."""

from __future__ import annotations

from enum import IntEnum
from itertools import islice
from typing import Annotated, Any, Final, Literal, get_args

import attrs

from queuehint.errors import CycleError, InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.checks import (
    HEADERS_BYTES_MAX,
    TAGS_MAX,
    check_headers,
    check_id,
    check_identity,
    check_instance,
    check_str,
    check_tags,
    count_of,
    encodable,
    sized,
)
from queuehint.schema.compiled import Remembered, asker, maker, normaliser, options_of, taker
from queuehint.schema.kinds import (
    NUMBER_MAX,
    Also,
    AtMost,
    DurationMs,
    JobId,
    MomentMs,
    NameText,
    Parsed,
    Payload,
    TagText,
    Text,
)
from queuehint.values.hint import CLAIMS_MAX, Claim, check_counted, is_counted, key_of, parse_claims
from queuehint.values.policy import DEFAULT_POLICY, Backoff, Policy

PAYLOAD_BYTES_MAX = 1 << 20
CALL_BYTES_MAX = 1 << 30
"""Arguments of all jobs of one call: they are kept until the last was checked."""

SIGNAL_TASK = "queuehint.signal"
"""The task of records that take no place and need no worker: signals that were given, and waits for one."""
CHILDREN_TASK = "queuehint.children"
"""The task of a job that waits for some of the children of another one, which has more than fit one outcome."""
SIGNAL_MARK = "signal:"
"""The beginning of the id of a signal, and of no job's; its name stands behind it."""
WAIT_MARK = "signal-wait:"
"""The beginning of the id of the record of one wait for a signal, and of no job's."""
OF_SIGNALS: Final = (SIGNAL_MARK, WAIT_MARK)
ASKED_MARK = "signal-within:"
"""The beginning of the id in an edge that asks for a wait, and of no record's."""
_RESERVED: Final = (*OF_SIGNALS, ASKED_MARK)

DEPENDENCIES_MAX = 100_000
PORTION_MAX = 1000
"""So many dependencies of a job are told to a store at once; the others follow in portions of as many."""
TEMPLATES_MAX = 1000

OnConflict = Literal["return", "replace", "after", "reject"]
When = Literal["success", "failure", "done", "must"]
ON_CONFLICT: tuple[OnConflict, ...] = get_args(OnConflict)
WHEN: tuple[When, ...] = get_args(When)


HeaderText = Annotated[str, Text(HEADERS_BYTES_MAX)]
DigestText = Annotated[str, Text(64)]
AnyText = Annotated[str, Text(NUMBER_MAX)]


class Priority(IntEnum):
    """
    Urgency among ready jobs, which never overtake a conflicting job.

    Levels 5 to 1 get a head start of a minute each; CRITICAL goes before all levels, first in first out.
    """

    LOWEST = 1
    LOW = 2
    NORMAL = 3
    HIGH = 4
    URGENT = 5
    CRITICAL = 9


_CRITICAL = int(Priority.CRITICAL)


def _check_level(value: object, *, parameter: str) -> int:
    if type(value) is int and value == _CRITICAL:
        return value
    return check_priority(value, parameter=parameter)


def check_own_id(value: object) -> str:
    """Check the id of a user's job, which must not be that of a signal or of a wait for a signal."""
    job_id = check_id(value)
    if job_id.startswith(_RESERVED):
        raise InvalidJobError(f"id {shown(job_id)} begins like that of a signal or of a wait for one, no job's does")
    return job_id


def check_priority(value: object, *, parameter: str = "priority") -> int:
    """Check a priority: 1 to 5 or `Priority.CRITICAL`."""
    if isinstance(value, Priority):
        return int(value)
    if type(value) is not int:
        raise InvalidJobTypeError(f"{parameter} must be int, got {type(value).__name__}: {shown(value)}")
    if not 1 <= value <= 5:
        raise InvalidJobError(f"{parameter} must be 1 to 5 or Priority.CRITICAL, got {shown(value)}")
    return value


@attrs.frozen(weakref_slot=False)
class Dependency:
    """
    One edge to a dependency: another job waits for its end.

    Args:
        id: the job's id; in a `JobSpec` that is about to be submitted also its name in the submission.
        when: ``"success"`` waits for FINISHED, and what another end does is said by the waiting job's
            `on_dependency_failure`; ``"failure"`` runs on FAILED and is canceled otherwise; ``"done"`` runs on any end;
            ``"must"`` waits for FINISHED and is FAILED by any other end.
        name: what templates and `JobContext.results` call the job, besides its id.
        data: the waiting job needs its result; such an edge is never dropped. Set for those a template names.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the field.
    """

    id: JobId
    when: When = "success"
    name: JobId | None = None
    data: bool = False

    def __attrs_post_init__(self) -> None:
        _take_dependency(self)
        if self.data:
            self.check_rules()

    def check_rules(self) -> None:
        """
        Check that the fields are consistent.

        Raises:
            InvalidJobError: it needs the result of a job that has none.
        """
        if self.data and self.when == "failure":
            raise InvalidJobError(f"dependency {shown(self.id)}: a job that FAILED has no result to be named")


_take_dependency: Final = taker(lambda: Dependency, id="dependency")


@attrs.frozen(kw_only=True, weakref_slot=False)
class JobSpec(Remembered):
    """
    Specification of a job: the layer below the decorator, for tools and other languages.

    Args:
        id: 1–128 UTF-8 bytes, no white space or control characters; made by the producer, so that a repeated
            submission is the same job.
        task: the name of the handler.
        claims: normalised claims, at most 64; ``()`` has no place and conflicts with nothing.
        arguments: JSON object of the handler's arguments by name, at most 1 MiB, opaque to every backend.
        headers: what travels with the job and its children, opaque to every backend: names and values, in order of
            name, at most 4 KiB. They do not tell one job from another: the same id with other headers is the same job.
        priority: 1–5 or `Priority.CRITICAL`.
        pool: which workers serve it; never affects order.
        user, service: whose it is, for fairness and look-ups.
        tags: words that its record is found by, at most 8 of 64 bytes, in order.
        key, on_conflict: makes bursts one job, see `Job.using`.
        delay_ms: due this long after it is enqueued; or
        run_at_ms: due at this time. At most one of the two.
        max_delay_ms: the most that replacements by *key* put off the time of a job, counted from its enqueue.
        presence_ms: only for `exclusive`: the caller's presence lease while it waits.
        depends_on: the jobs it waits for, at most 100 000: `Dependency` values, ids, or names of jobs in the same
            submission. A job with more than 1 000 has no key.
        templates: which strings of the arguments are templates, filled from the results of its dependencies when it
            starts: True for all, or JSON pointers (``/rows/0``), at most 1 000.
        name: what others in the same submission call it.
        flow: the id of the flow it belongs to.
        parent: the id of the job whose handler made it.
        schedule, scheduled_ms: the name of the schedule that fired it, and the due time it was fired for.
        policy: retries, timeouts and failure rules.
        identity: at most 4 digests that stand for the arguments where jobs are compared, for a codec may write the same
            ones differently: two jobs have the same arguments if they share a digest. Without digests, the bytes count.
    """

    id: JobId
    task: NameText
    claims: tuple[Claim, ...] = ()
    arguments: Annotated[bytes, Payload(PAYLOAD_BYTES_MAX)] = attrs.field(default=b"{}", repr=sized)
    headers: Annotated[tuple[tuple[HeaderText, HeaderText], ...], Also(check_headers)] = attrs.field(
        default=(), repr=sized
    )
    priority: Annotated[int, Parsed(_check_level, int, Priority, likely="type({x}) is int and 1 <= {x} <= 5")] = 3
    pool: NameText = "default"
    user: NameText | None = None
    service: NameText | None = None
    tags: Annotated[tuple[TagText, ...], AtMost(TAGS_MAX)] = ()
    key: NameText | None = None
    on_conflict: OnConflict = "return"
    delay_ms: DurationMs | None = None
    run_at_ms: MomentMs | None = None
    max_delay_ms: DurationMs | None = None
    presence_ms: DurationMs | None = None
    depends_on: tuple[Dependency, ...] = ()
    templates: bool | Annotated[tuple[AnyText, ...], Also(check_templates)] = False
    name: JobId | None = None
    flow: JobId | None = None
    parent: JobId | None = None
    schedule: JobId | None = None
    scheduled_ms: MomentMs | None = None
    policy: Policy = DEFAULT_POLICY
    identity: Annotated[tuple[DigestText, ...], Also(check_identity)] = attrs.field(default=(), repr=False)

    def check(self) -> JobSpec:
        """
        Return the spec with its claims normalised and its words plain, every field checked against its limits.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError: naming the field.
        """
        changed = _normal_spec(self)
        checked = attrs.evolve(self, **changed) if changed else self
        checked.check_rules()
        if checked.name is not None and any(edge.id == checked.name for edge in checked.depends_on):
            raise CycleError([checked.name])
        return note_checked(checked) if _is_exact(checked) else checked

    def check_rules(self) -> None:
        """
        Check that the fields are consistent, where edges name jobs by their ids.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the fields.
            CycleError: it depends on itself.
        """
        if len(self.claims) > 1:
            self._check_claims()
        elif self.presence_ms is None and is_counted(self.claims):
            path = shown(key_of(self.claims[0].path))
            raise InvalidJobError(
                f"claims: the counted one of {path} is that of a permit: ask for it by Scheduler.permit"
            )
        if self.run_at_ms is not None and self.delay_ms is not None:
            raise InvalidJobTypeError("give delay_ms or run_at_ms, not both")
        replaces = self.key is not None and self.on_conflict == "replace"
        if self.max_delay_ms is not None:
            check_max_delay(self.max_delay_ms, self.delay_ms, replaces=replaces)
        if (self.schedule is None) != (self.scheduled_ms is None):
            raise InvalidJobTypeError("schedule and scheduled_ms must be given together")
        if self.presence_ms is not None:
            for parameter in ("delay_ms", "run_at_ms", "key"):
                if getattr(self, parameter) is not None:
                    raise InvalidJobError(f"presence_ms: its caller waits for the place now, {parameter} must be None")
        if self.depends_on:
            self._check_edges(replaces=replaces)
        if self.task == SIGNAL_TASK:
            self._check_signal()
        elif self.id.startswith(_RESERVED):
            check_own_id(self.id)

    def _check_claims(self) -> None:
        if len(self.claims) > CLAIMS_MAX:
            parse_claims(self.claims)
        check_counted(self.claims)

    def _check_signal(self) -> None:
        """Refuse a signal's spec that is neither a given signal nor a wait for one."""
        named = {field: getattr(self, field) for field in _NOT_OF_SIGNALS}
        if wrong := [field for field, value in named.items() if value != _NOT_OF_SIGNALS[field]]:
            raise InvalidJobError(f"{wrong[0]}: a signal has none, got {shown(named[wrong[0]])}")
        if self.id.startswith(SIGNAL_MARK) and not self.depends_on:
            return
        edges = self.depends_on
        if not self.id.startswith(WAIT_MARK) or len(edges) != 1 or not edges[0].id.startswith(SIGNAL_MARK):
            raise InvalidJobError(
                f"task {shown(self.task)} is that of signals and of waits for one, job {shown(self.id)} is neither"
            )
        if edges[0].when != "success" or self.policy.on_dependency_failure != "wait":
            raise InvalidJobError(f"a wait ends when its signal is given, got when={shown(edges[0].when)}")

    def _check_edges(self, *, replaces: bool) -> None:
        if self.presence_ms is not None:
            raise InvalidJobError("presence_ms: its caller waits for the place now, depends_on must be empty")
        if replaces:
            raise InvalidJobError(
                'on_conflict="replace" gives a job new arguments, not new edges: depends_on must be empty'
            )
        ids = {edge.id for edge in self.depends_on}
        if self.id in ids:
            raise CycleError([self.id])
        for edge in self.depends_on:
            if edge.when == "failure" and edge.id.startswith(SIGNAL_MARK):
                raise InvalidJobError(f"when='failure' is not supported for signal {shown(edge.id)}, which never fails")
        if len(ids) < len(self.depends_on) or len(ids) > DEPENDENCIES_MAX:
            check_dependencies(self.depends_on)

    def at(self, now_ms: int) -> JobSpec:
        """
        Return the spec with a delay that counts from a time instead of its enqueue.

        With `max_delay_ms` it counts from each replacement, and stays as it is.

        >>> spec = JobSpec(id="a", task="save", delay_ms=5)
        >>> spec.at(1_000).run_at_ms, spec.at(1_000).delay_ms
        (1005, None)
        """
        if not self.delay_ms or self.max_delay_ms is not None:
            return self
        return evolved(self, delay_ms=None, run_at_ms=now_ms + self.delay_ms)

    def differing_fields(self, other: JobSpec) -> list[str]:
        """Return the names of the fields that distinguish two specs, never their values."""
        return [
            field.name
            for field in attrs.fields(JobSpec)
            if field.name not in {"headers", "identity"}
            and not (
                self._has_arguments_of(other)
                if field.name == "arguments"
                else getattr(self, field.name) == getattr(other, field.name)
            )
        ]

    def is_alike(self, other: JobSpec) -> bool:
        """Return whether two specs are equivalent, headers included, whatever a codec has made of the arguments."""
        other = check_instance(other, JobSpec, parameter="other")
        return self.headers == other.headers and not self.differing_fields(other)

    def _has_arguments_of(self, other: JobSpec) -> bool:
        if self.identity or other.identity:
            return not frozenset(self.identity).isdisjoint(other.identity)
        return self.arguments == other.arguments


_NOT_OF_SIGNALS: Final = {
    **dict.fromkeys(("key", "delay_ms", "run_at_ms", "max_delay_ms", "presence_ms")),
    "claims": (),
    "templates": False,
}
new_spec: Final = maker(JobSpec)
ask_spec: Final = asker(lambda: JobSpec)
JOB_OPTIONS = options_of(JobSpec) - {
    *("arguments", "flow", "identity", "parent", "policy", "presence", "schedule", "scheduled", "task", "templates"),
}
"""The options of a job that are fields of it."""


def note_checked(spec: JobSpec) -> JobSpec:
    """Mark a spec as checked, except for an empty id, and return it."""
    object.__setattr__(spec, "_is_checked", True)
    return spec


def is_checked(spec: JobSpec) -> bool:
    """Return whether all fields of a spec are known to be checked, ready to be sent."""
    return getattr(spec, "_is_checked", False) and spec.id != ""


def evolved(spec: JobSpec, **changes: Any) -> JobSpec:
    """Return a spec with some fields replaced by checked values. The others keep their mark."""
    other = attrs.evolve(spec, **changes)
    return note_checked(other) if getattr(spec, "_is_checked", False) else other


def _is_exact(spec: JobSpec) -> bool:
    """Return whether a checked spec and its values are of our classes, not of subclasses."""
    return (
        type(spec) is JobSpec
        and type(spec.policy) is Policy
        and type(spec.policy.backoff) is Backoff
        and all(type(edge) is Dependency for edge in spec.depends_on)
    )


def check_max_delay(most_ms: int | None, delay_ms: int | None, *, replaces: bool, unit: str = "_ms") -> None:
    """
    Check that a bound of the delays of a key's job has something to bound.

    Args:
        most_ms, delay_ms: the bound, None for none, and the delay.
        replaces: there is a key, with ``on_conflict="replace"``.
        unit: what the names of the parameters end in.

    Raises:
        InvalidJobError: it does not replace, or has no delay, or a longer one.
    """
    if most_ms is None:
        return
    if not replaces or delay_ms is None:
        needed = f'give key, on_conflict="replace" and delay{unit} too'
        raise InvalidJobError(f"max_delay{unit} is {most_ms} ms and bounds how long replacements delay a job: {needed}")
    if most_ms < delay_ms:
        raise InvalidJobError(f"max_delay{unit} must be at least delay{unit}, which is {delay_ms} ms, got {most_ms} ms")


def check_dependencies(value: object) -> tuple[Dependency, ...]:
    """
    Return edges as `Dependency` values, with repeated jobs once.

    Raises:
        InvalidJobTypeError: it is a text, or an item is neither a `Dependency` nor an id.
        InvalidJobError: more than 100 000, or one job with two conditions or two names.
    """
    if value is None:
        return ()
    if isinstance(value, (str, bytes, Dependency)) or not isinstance(value, (list, tuple, set, frozenset)):
        raise InvalidJobTypeError(
            f"depends_on must be a list of ids or Dependency values, got {type(value).__name__}: {shown(value)}"
        )
    items = tuple(islice(value, DEPENDENCIES_MAX + 1))
    if len(items) > DEPENDENCIES_MAX:
        named = count_of(value, DEPENDENCIES_MAX)
        raise InvalidJobError(
            f"depends_on names {named} jobs, limit {DEPENDENCIES_MAX}; let jobs in between wait for a part each"
        )
    if isinstance(value, (set, frozenset)):
        items = tuple(sorted(items, key=lambda item: check_str(getattr(item, "id", item), parameter="depends_on")))
    edges: dict[str, Dependency] = {}
    for item in items:
        edge = item if isinstance(item, Dependency) else Dependency(check_id(item, parameter="depends_on"))
        known = edges.setdefault(edge.id, edge)
        if known != edge:
            if (known.when, known.name or edge.name) != (edge.when, edge.name or known.name):
                raise InvalidJobError(f"depends_on names {shown(edge.id)} twice, with other conditions or names")
            edges[edge.id] = attrs.evolve(known, name=known.name or edge.name, data=known.data or edge.data)
    return tuple(edges.values())


def check_templates(value: object) -> bool | tuple[str, ...]:
    """
    Return which strings are templates: True, False, or JSON pointers.

    Raises:
        InvalidJobError, InvalidJobTypeError: no pointers, or more than 1 000.
    """
    if isinstance(value, bool):
        return value
    items = tuple(islice(value, TEMPLATES_MAX + 1)) if isinstance(value, (list, tuple)) else (None,)
    if not all(isinstance(item, str) for item in items):
        raise InvalidJobTypeError(
            f"templates must be bool or a list of JSON pointers, got {type(value).__name__}: {shown(value)}"
        )
    if len(items) > TEMPLATES_MAX:
        raise InvalidJobError(f"templates names {count_of(value, TEMPLATES_MAX)} strings, limit {TEMPLATES_MAX}")
    pointers = tuple([str.__str__(pointer) for pointer in items])
    for pointer in pointers:
        if not pointer.startswith("/"):
            raise InvalidJobError(f"templates: {shown(pointer)} is not a JSON pointer, it must begin with /")
        if encodable(pointer) != pointer:
            raise InvalidJobError(f"templates: {shown(pointer)} is not encodable as UTF-8")
    return pointers or False


def _plain_claims(value: Any) -> tuple[Claim, ...]:
    """Return claims normalised. Normalised plain tuples and strings are returned as they are."""
    claims = parse_claims(value)
    is_plain = type(value) is tuple and all(
        (type(claim.path), type(claim.mode)) == (tuple, str) and all(type(segment) is str for segment in claim.path)
        for claim in value
    )
    return value if is_plain and claims == value else claims


_normal_spec: Final = normaliser(lambda: JobSpec, claims=_plain_claims, tags=check_tags, depends_on=check_dependencies)


def check_call_size(size: int, *, parameter: str) -> None:
    """Check the bytes of arguments read in one call so far."""
    if size > CALL_BYTES_MAX:
        raise InvalidJobError(f"{parameter}: more than {CALL_BYTES_MAX} bytes of arguments in one call, the limit")
