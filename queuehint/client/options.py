"""Options of a job besides its arguments, with their checks and defaults, and checks of specs made by hand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from difflib import get_close_matches
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from queuehint.errors import InvalidJobTypeError, shown
from queuehint.handlers.handler import USING
from queuehint.handlers.placement import MODE_OF_NONE, PLACES_TWICE, UserTemplate
from queuehint.operations import JOBS_PER_CALL_MAX
from queuehint.schema.checks import (
    check_bool,
    check_choice,
    check_headers,
    check_id,
    check_items,
    check_name,
    check_run_at,
    check_tags,
    each_item,
    plain_text,
    sized,
)
from queuehint.values.hint import Claim, Mode, Path, parse_hint, parse_mode, parse_places
from queuehint.values.ids import new_id
from queuehint.values.policy import DEFAULT_POLICY, POLICY_OPTIONS, Backoff, Policy
from queuehint.values.spec import (
    DEPENDENCIES_MAX,
    WHEN,
    Dependency,
    JobSpec,
    OnConflict,
    When,
    ask_spec,
    check_call_size,
    check_max_delay,
    check_own_id,
    check_priority,
    evolved,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.client.handle import Client, InFlow


TASKS_MAX = 1000
BOUND_LENGTH = 32
"""The length of a digest of the arguments of one job; longer ones do not depend on the job."""


class Unset:
    """The type of `UNSET`: an option that was not given, if None is a value of the option."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


class Awaited(Protocol):
    """Values that `Job.using(after=...)` takes besides ids and `Dependency`: handles, nodes and flows."""

    def edges(self, when: When, client: Client, flow: InFlow | None = None) -> Sequence[Dependency]:
        """Return the edges of a job of *client*, in *flow* if any, that depends on this object."""


@attrs.frozen(kw_only=True)
class Options:
    """Checked options of a job."""

    given: dict[str, Any] = attrs.field(factory=dict)
    """The policy's options as they were given, from which `policy` was made."""
    policy: Policy = DEFAULT_POLICY
    priority: int = 3
    pool: str = "default"
    service: str | None = None
    tags: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=sized)
    user: str | UserTemplate | None = None
    mode: Mode = "exclusive"
    path: Path | Unset | None = UNSET
    claims: tuple[Claim, ...] | None = None
    id: str | None = None
    key: str | None = None
    on_conflict: OnConflict = "return"
    delay_ms: int | None = None
    run_at_ms: int | None = None
    max_delay_ms: int | None = None
    after: tuple[str | Dependency | Awaited, ...] | None = None
    when: When = "success"
    name: str | None = None
    depends_on: tuple[str, ...] = ()
    check_arguments: bool = True

    def changed(self, **options: Any) -> Options:
        """
        Return options with some changed.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the option, its value and the limit.
        """
        changes: dict[str, Any] = {}
        given = dict(self.given)
        if "retry" in options and "backoff" in options:
            raise InvalidJobTypeError("backoff and retry, another name for it, are mutually exclusive")
        for name, value in options.items():
            if name in _BACKOFF_NAMES:
                given["backoff"] = None if value is None else Backoff.of(value, parameter=name)
                changes["given"] = given
            elif name in POLICY_OPTIONS:
                given[name] = value
                changes["given"] = given
            elif name in _BY_HAND:
                changes.update(_BY_HAND[name](value))
            else:
                field, held = ask_spec(name, value)
                changes[field] = held
        if "given" in changes:
            changes["policy"] = Policy.checked(**given)
        if options.get("claims") is not None and "queue_hint" in options:
            raise InvalidJobTypeError(PLACES_TWICE)
        if "mode" in options and changes.get("claims", self.claims) is not None:
            raise InvalidJobTypeError(MODE_OF_NONE)
        if "when" in options and changes.get("after", self.after) is None:
            raise InvalidJobTypeError("when requires after")
        options_new = attrs.evolve(self, **changes)
        if options_new.delay_ms is not None and options_new.run_at_ms is not None:
            if "delay_ms" in changes and "run_at_ms" in changes:
                raise InvalidJobTypeError("give delay or run_at, not both")
            changes["run_at_ms" if "delay_ms" in changes else "delay_ms"] = None
            options_new = attrs.evolve(self, **changes)
        replaces = options_new.key is not None and options_new.on_conflict == "replace"
        check_max_delay(options_new.max_delay_ms, options_new.delay_ms, replaces=replaces, unit="")
        return options_new


def _check_run_at(value: Any) -> dict[str, Any]:
    if value is None:
        return {"run_at_ms": None}
    return {"run_at_ms": check_run_at(value, now_ms=time.time_ns() // 1_000_000)}


def _check_after(value: Any) -> dict[str, Any]:
    if value is None:
        return {"after": None}
    items = check_items(value, parameter="after", most=DEPENDENCIES_MAX)
    if isinstance(value, (set, frozenset)):
        items.sort(key=lambda item: plain_text(item if isinstance(item, str) else getattr(item, "id", "")))
    for index, item in enumerate(items):
        if isinstance(item, str):
            items[index] = check_id(item, parameter=f"after[{index}]")
        elif not isinstance(item, Dependency) and not callable(getattr(item, "edges", None)):
            raise InvalidJobTypeError(
                f"after[{index}] must be a node, a handle, a flow, an id or a Dependency, "
                f"got {type(item).__name__}: {shown(item)}"
            )
    return {"after": tuple(items)}


def _check_tasks(value: Any) -> dict[str, Any]:
    tasks = [] if value is None else check_items(value, parameter="depends_on", most=TASKS_MAX)
    for task in tasks:
        if not isinstance(task, str):
            got = f"{type(task).__name__}: {shown(task)}"
            raise InvalidJobTypeError(f"depends_on must be names of tasks, got {got}; jobs are given as after=[…]")
    return {"depends_on": tuple(dict.fromkeys([check_name(task, parameter="depends_on") for task in tasks]))}


_Check = Callable[[Any], dict[str, Any]]

_BY_HAND: dict[str, _Check] = {
    "id": lambda value: {"id": None if value is None else check_own_id(value)},
    "priority": lambda value: {"priority": check_priority(value)},
    "mode": lambda value: {"mode": parse_mode(value)},
    "tags": lambda value: {"tags": check_tags(value)},
    "headers": lambda value: {"headers": check_headers(value)},
    "depends_on": _check_tasks,
    "check_arguments": lambda value: {"check_arguments": check_bool(value, parameter="check_arguments")},
    "queue_hint": lambda value: {"path": parse_hint(value), "claims": None},
    "claims": lambda value: {"claims": None, "path": UNSET} if value is None else {"claims": parse_places(value)},
    "run_at": _check_run_at,
    "after": _check_after,
    "when": lambda value: {"when": check_choice(value, WHEN, parameter="when")},
}
"""Options that are no fields of a job, or that users pass in another form than their kind says."""
_BACKOFF_NAMES = ("backoff", "retry")
_OF_A_CALL = {"after", "claims", "delay", "id", "key", "max_delay", "name", "on_conflict", "run_at", "user", "when"}
TASK_OPTIONS = (USING - _OF_A_CALL) - {"queue_hint"}
"""Options of `Scheduler.job` besides the place and the name; `Job.using` takes all of them and more."""
_ELSEWHERE: Final = {
    "lock": "queue_hint",
    "max_retries": "max_attempts",
    "max_tries": "max_attempts",
    "queue": "pool",
    "retries": "max_attempts",
    "retry_backoff": "backoff",
    "retry_delay": "backoff",
    "soft_time_limit": "timeout",
    "time_limit": "timeout",
}
"""What other queues call an option, and its name here; see *Migrate from Celery* for where the meanings differ."""


def meant_option(name: str) -> str:
    """
    Return the end of a message about an option that `Scheduler.job` does not have; nothing if none is close.

    >>> meant_option("retries"), meant_option("prioriti"), meant_option("colour")
    ("; did you mean 'max_attempts'?", "; did you mean 'priority'?", '')
    >>> meant_option("delay")
    ': it is one of each call, using(delay=...)'
    """
    if name in _OF_A_CALL:
        return f": it is one of each call, using({name}=...)"
    elsewhere = _ELSEWHERE.get(name)
    close = [elsewhere] if elsewhere else get_close_matches(name, sorted(TASK_OPTIONS), n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else ""


# --- specs ------------------------------------------------------------------------------------------------------------


def checked(specs: Iterable[JobSpec], *, may_lack_id: bool) -> list[JobSpec]:
    """
    Check every spec before the first is sent.

    Args:
        may_lack_id: an empty id is valid: a number is drawn for it later.

    Raises:
        InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError: naming the spec by its index.
    """
    good = []
    size = 0
    for index, spec in enumerate(each_item(specs, parameter="specs", most=JOBS_PER_CALL_MAX)):
        if not isinstance(spec, JobSpec):
            raise InvalidJobTypeError(f"specs[{index}] must be a JobSpec, got {type(spec).__name__}")
        try:
            good.append(check_spec(spec, may_lack_id=may_lack_id))
        except ValueError as error:
            error.args = (f"specs[{index}]: {error}",)
            raise
        size += len(spec.arguments)
        check_call_size(size, parameter="specs")
    return good


def check_spec(spec: JobSpec, *, may_lack_id: bool) -> JobSpec:
    """Check one spec. Everything else is as in `checked`."""
    if may_lack_id and spec.id == "":
        return evolved(attrs.evolve(spec, id=new_id()).check(), id="")
    return spec.check()


_identity_of: Final = attrgetter("identity")


def bound(specs: tuple[JobSpec, ...]) -> tuple[JobSpec, ...]:
    """Return specs with digests bound to task and id, so that equal arguments of two jobs do not show in a store."""
    if not any(map(_identity_of, specs)):
        return specs
    return tuple([evolved(spec, identity=tuple([_bound(spec, each) for each in spec.identity])) for spec in specs])


def _bound(spec: JobSpec, digest: str) -> str:
    if len(digest) == BOUND_LENGTH:
        return digest
    return hashlib.sha256(f"{spec.task}\0{spec.id}\0{digest}".encode()).hexdigest()[:BOUND_LENGTH]
