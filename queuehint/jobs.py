"""A function as a job: call it, enqueue it, enqueue it otherwise."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

import attrs

from queuehint.checks import (
    check_choice,
    check_duration,
    check_id,
    check_items,
    check_name,
    check_run_at,
)
from queuehint.errors import InvalidJobTypeError, shown
from queuehint.handler import Handler, Placement
from queuehint.hint import Claim, Mode, Path, parse_claims, parse_hint, parse_mode
from queuehint.ids import new_id
from queuehint.policy import DEFAULT_POLICY, Policy
from queuehint.records import ON_CONFLICT, JobSpec, OnConflict, check_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime, timedelta

    from queuehint.handles import JobHandle
    from queuehint.payload import Codec
    from queuehint.policy import Backoff, OnDead, OnDependencyFailure, OnRetry

P = ParamSpec("P")
R = TypeVar("R")

_POLICY_OPTIONS = frozenset(
    {
        "max_attempts",
        "max_losses",
        "retry",
        "timeout",
        "on_retry",
        "on_dead",
        "on_dependency_failure",
        "max_hold",
        "start_within",
        "retention",
    }
)


class Unset:
    """The type of `UNSET`: an option that was not given, where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@attrs.frozen(kw_only=True)
class Options:
    """All that a job may be told besides its arguments, checked."""

    given: dict[str, Any] = attrs.field(factory=dict)
    """The policy's options as they were given, from which `policy` was made."""
    policy: Policy = DEFAULT_POLICY
    priority: int = 3
    pool: str = "default"
    service: str | None = None
    user: str | None = None
    mode: Mode = "exclusive"
    path: Path | Unset | None = UNSET
    claims: tuple[Claim, ...] | None = None
    id: str | None = None
    key: str | None = None
    on_conflict: OnConflict = "return"
    delay_ms: int | None = None
    run_at_ms: int | None = None

    def changed(self, **options: Any) -> Options:
        """
        Return options with some changed.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the option, its value and the limit.
        """
        changes: dict[str, Any] = {}
        given = dict(self.given)
        for name, value in options.items():
            if name in _POLICY_OPTIONS:
                given[name] = value
                changes["given"] = given
            else:
                changes.update(_CHECKS[name](value))
        if "given" in changes:
            changes["policy"] = Policy.checked(**given)
        if options.get("claims") is not None and "queue_hint" in options:
            raise InvalidJobTypeError("give queue_hint or claims, not both")
        options_new = attrs.evolve(self, **changes)
        if options_new.delay_ms is not None and options_new.run_at_ms is not None:
            if "delay_ms" in changes and "run_at_ms" in changes:
                raise InvalidJobTypeError("give delay or run_at, not both")
            changes["run_at_ms" if "delay_ms" in changes else "delay_ms"] = None
            options_new = attrs.evolve(self, **changes)
        return options_new


def _check_run_at(value: Any) -> dict[str, Any]:
    if value is None:
        return {"run_at_ms": None}
    return {"run_at_ms": check_run_at(value, now_ms=time.time_ns() // 1_000_000)}


def _optional_name(parameter: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {parameter: None if value is None else check_name(value, parameter=parameter)}


_CHECKS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "queue_hint": lambda value: {"path": parse_hint(value), "claims": None},
    "claims": lambda value: {"claims": None if value is None else parse_claims(value)},
    "mode": lambda value: {"mode": parse_mode(value)},
    "priority": lambda value: {"priority": check_priority(value)},
    "pool": lambda value: {"pool": check_name(value, parameter="pool")},
    "service": _optional_name("service"),
    "user": _optional_name("user"),
    "key": _optional_name("key"),
    "id": lambda value: {"id": None if value is None else check_id(value)},
    "on_conflict": lambda value: {"on_conflict": check_choice(value, ON_CONFLICT, parameter="on_conflict")},
    "delay": lambda value: {"delay_ms": None if value is None else check_duration(value, parameter="delay")},
    "run_at": _check_run_at,
}


class Counter(Protocol):
    """Where jobs are handed in: what they need of the scheduler they come from."""

    codec: Codec

    def make_id(self) -> str:
        """Return an id for a new job."""

    async def hand_in(self, specs: list[JobSpec]) -> list[JobHandle[Any]]:
        """Enqueue jobs whose specs were checked as they were made, in order."""

    def hand_in_sync(self, specs: list[JobSpec]) -> list[JobHandle[Any]]:
        """Like `hand_in`, for code without a loop."""


class Job(Generic[P, R]):
    """
    A task: the function itself when called, and the way to enqueue it.

    Made by `Scheduler.job`; typed like the handler, so that type checkers check the arguments of `enqueue`.
    """

    def __init__(self, scheduler: Counter, handler: Handler, placement: Placement, options: Options) -> None:
        self._scheduler = scheduler
        self._handler = handler
        self._placement = placement
        self._options = options
        self.__name__ = handler.name
        self.__doc__ = handler.function.__doc__
        self.__wrapped__ = handler.function

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    @property
    def name(self) -> str:
        """The task's name."""
        return self._handler.name

    @property
    def given_id(self) -> str | None:
        """The id given by `using`, if there was one."""
        return self._options.id

    @property
    def pool(self) -> str:
        """Which workers serve it."""
        return self._options.pool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now, with nothing queued."""
        return self._handler.function(*args, **kwargs)

    def using(
        self,
        *,
        id: str | Unset | None = UNSET,
        key: str | Unset | None = UNSET,
        on_conflict: OnConflict | Unset = UNSET,
        claims: Sequence[Claim | Sequence[str] | tuple[Sequence[str], Mode]] | Unset | None = UNSET,
        delay: float | timedelta | Unset | None = UNSET,
        run_at: datetime | Unset | None = UNSET,
        user: str | Unset | None = UNSET,
        queue_hint: Sequence[str] | Unset | None = UNSET,
        mode: Mode | Unset = UNSET,
        priority: int | Unset = UNSET,
        pool: str | Unset = UNSET,
        service: str | Unset | None = UNSET,
        max_attempts: int | Unset = UNSET,
        max_losses: int | Unset = UNSET,
        retry: Backoff | Unset = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        on_retry: OnRetry | Unset = UNSET,
        on_dead: OnDead | Unset = UNSET,
        on_dependency_failure: OnDependencyFailure | Unset = UNSET,
        max_hold: float | timedelta | Unset = UNSET,
        start_within: float | timedelta | Unset | None = UNSET,
        retention: float | timedelta | Unset | None = UNSET,
    ) -> Job[P, R]:
        """
        Return this job with other options; the job itself is unchanged.

        Args:
            id: the job's own id; the same id and content again is the same job.
            key: makes bursts one job: the key names its newest unfinished job.
            on_conflict: what a further job of the key does. While that one was never started, ``"return"`` and
                ``"after"`` are that job and ``"replace"`` gives it the new content; once it was started they make a
                new job, with ``"after"`` one that waits for its end. ``"reject"`` raises while there is one.
            claims: several places, in place of *queue_hint*: hints, ``(hint, mode)`` pairs or `Claim` values.
            delay: due this long after the enqueue, a timedelta or seconds, at most 10 years.
            run_at: due at this timezone-aware time.
            user: whose it is; users take turns.
            queue_hint: the place itself, taken literally (no template); None for no place.

        The other options are those of `Scheduler.job`.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the option, its value and the limit.
        """
        options = {name: value for name, value in locals().items() if name != "self" and value is not UNSET}
        return Job(self._scheduler, self._handler, self._placement, self._options.changed(**options))

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec:
        """
        Return what `enqueue` would submit, with an id of its own.

        Raises:
            InvalidJobTypeError: the call does not fit the handler's signature.
            InvalidHintError, PayloadError: the place or an argument is not valid.
        """
        return self._spec(self._handler.bind(args, kwargs), new_id)

    def _spec(self, arguments: dict[str, Any], make_id: Callable[[], str]) -> JobSpec:
        options = self._options
        claims = options.claims
        if claims is None:
            if isinstance(options.path, Unset):
                claims = self._placement.claims(arguments, options.mode)
            else:
                claims = () if options.path is None else (Claim(options.path, options.mode),)
        return JobSpec(
            id=options.id or make_id(),
            task=self._handler.name,
            claims=claims,
            arguments=self._handler.dumps(self._scheduler.codec, arguments),
            priority=options.priority,
            pool=options.pool,
            user=options.user,
            service=options.service,
            key=options.key,
            on_conflict=options.on_conflict,
            delay_ms=options.delay_ms,
            run_at_ms=options.run_at_ms,
            policy=options.policy,
        )

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """
        Enqueue a call of the handler with these arguments.

        Raises:
            InvalidJobTypeError, InvalidHintError, PayloadError: as `spec`.
            DuplicateJobError: the id or the key is taken.
            PathClosedError: the place takes no new jobs.
        """
        return (await self._scheduler.hand_in([self._spec(self._handler.bind(args, kwargs), self._scheduler.make_id)]))[
            0
        ]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Like `enqueue`, for code without a loop."""
        return self._scheduler.hand_in_sync([self._spec(self._handler.bind(args, kwargs), self._scheduler.make_id)])[0]

    async def enqueue_many(self, calls: Iterable[tuple[Any, ...] | dict[str, Any]]) -> list[JobHandle[R]]:
        """
        Enqueue many calls, in order.

        Args:
            calls: each a tuple of positional or a dict of keyword arguments. Up to 1 000 are one submission, all or
                nothing; more are several submissions in order.

        Raises:
            InvalidJobTypeError, InvalidHintError, PayloadError: a call is not valid; it is named by its index and
                nothing at all was enqueued.
            DuplicateJobError, PathClosedError: as `enqueue`; submissions before the refused one went through.
        """
        return await self._scheduler.hand_in(self._specs(calls))

    def enqueue_many_sync(self, calls: Iterable[tuple[Any, ...] | dict[str, Any]]) -> list[JobHandle[R]]:
        """Like `enqueue_many`, for code without a loop."""
        return self._scheduler.hand_in_sync(self._specs(calls))

    def _specs(self, calls: Iterable[tuple[Any, ...] | dict[str, Any]]) -> list[JobSpec]:
        specs = []
        make_id = self._scheduler.make_id
        for index, call in enumerate(check_items(calls, parameter="calls")):
            try:
                if isinstance(call, dict):
                    arguments = self._handler.bind((), call)
                elif isinstance(call, tuple):
                    arguments = self._handler.bind(call, {})
                else:
                    raise InvalidJobTypeError(
                        f"a call must be a tuple of positional or a dict of keyword arguments, got {shown(call)}"
                    )
                specs.append(self._spec(arguments, make_id))
            except ValueError as error:
                error.args = (f"calls[{index}]: {error}",)
                raise
        return specs
