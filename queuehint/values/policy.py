"""Policies: retries, timeouts, failures, dead jobs, and how long records are kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import islice
from typing import Annotated, Final, Literal, get_args

import attrs

from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.checks import (
    ATTEMPTS_MAX,
    RETENTION_MAX_MS,
    check_duration,
    check_name,
    check_optional_duration,
    count_of,
)
from queuehint.schema.compiled import asker, options_of, taker
from queuehint.schema.kinds import RULED, AnyNumber, Count, DurationMs, Number, SomeMs

SERVICES_KEPT_MAX = 100
WAITS_MAX = 100
COST_MAX = 1000
OnRetry = Literal["hold", "yield"]
OnDead = Literal["continue", "hold", "cancel_behind"]
OnDependencyFailure = Literal["wait", "cancel", "run"]
ON_RETRY: tuple[OnRetry, ...] = get_args(OnRetry)
ON_DEAD: tuple[OnDead, ...] = get_args(OnDead)
ON_DEPENDENCY_FAILURE: tuple[OnDependencyFailure, ...] = get_args(OnDependencyFailure)


def _base_s(base: float | timedelta) -> float:
    return check_duration(base, parameter="base", least_ms=1) / 1000


def _cap_s(cap: float | timedelta) -> float:
    return check_duration(cap, parameter="cap", least_ms=1) / 1000


def _waits_s(waits: object, parameter: str = "waits") -> tuple[float, ...]:
    if not isinstance(waits, (list, tuple)):
        kind = type(waits).__name__
        raise InvalidJobTypeError(f"{parameter} must be a list of waits, got {kind}: {shown(waits)}")
    if len(waits) > WAITS_MAX:
        raise InvalidJobError(f"{parameter}: {len(waits)} waits, limit {WAITS_MAX}")
    return tuple([check_duration(wait, parameter=f"{parameter}[{at}]") / 1000 for at, wait in enumerate(waits)])


@attrs.frozen
class Backoff:
    """
    The wait before the next attempt of a failed job: ``min(base * factor**(n - 1), cap)`` seconds.

    Or as a list says: ``waits[0]`` after the first attempt, ``waits[1]`` after the second, and so on.

    Args:
        base: seconds before the second attempt, > 0, at most 10 years; a timedelta is accepted, as for *cap*.
        factor: growth from one attempt to the next, 1–100.
        cap: the longest wait, in seconds, at least *base*.
        jitter: the share of the wait that is random, 0–1: the wait is between ``1 - jitter`` of it and all of it.
        waits: the waits themselves, up to 100, each a timedelta or seconds, at most 10 years; the last one is that of
            all later attempts too. With any, *base*, *factor* and *cap* are not looked at.

    Raises:
        InvalidJobError, InvalidJobTypeError: a value out of its range.

    Source: capped exponential back-off with jitter inside the cap ("Exponential Backoff And Jitter", M. Brooker, 2015).
    """

    base: AnyNumber = attrs.field(default=1.0, converter=_base_s)
    factor: Annotated[float, Number(1, 100)] = attrs.field(default=2.0)
    cap: AnyNumber = attrs.field(default=30.0, converter=_cap_s)
    jitter: Annotated[float, Number(0, 1)] = attrs.field(default=0.1)
    waits: tuple[AnyNumber, ...] = attrs.field(default=(), converter=_waits_s)
    base_ms: DurationMs = attrs.field(init=False, eq=False, repr=False)
    cap_ms: DurationMs = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        base_ms, cap_ms = round(self.base * 1000), round(self.cap * 1000)
        if cap_ms < base_ms:
            raise InvalidJobError(f"cap must be at least base, got cap={shown(self.cap)} and base={shown(self.base)}")
        object.__setattr__(self, "base_ms", base_ms)
        object.__setattr__(self, "cap_ms", cap_ms)
        _take_backoff(self)
        # Equal waits are equal values, however they were written.
        object.__setattr__(self, "factor", float(self.factor))
        object.__setattr__(self, "jitter", float(self.jitter) + 0.0)  # no -0.0: equal values, equal bytes

    def __repr__(self) -> str:
        if self.waits:
            return f"Backoff(waits={list(self.waits)}, jitter={self.jitter})"
        return f"Backoff(base={self.base}, factor={self.factor}, cap={self.cap}, jitter={self.jitter})"

    @classmethod
    def of(cls, value: object, *, parameter: str = "backoff") -> Backoff:
        """
        Return the back-off of an option: a `Backoff` itself, or one of exactly the listed waits.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.

        >>> Backoff.of([1, timedelta(minutes=5)])
        Backoff(waits=[1.0, 300.0], jitter=0.0)
        """
        if isinstance(value, Backoff):
            return value
        if not isinstance(value, (list, tuple)):
            kind = type(value).__name__
            raise InvalidJobTypeError(f"{parameter} must be a Backoff or a list of waits, got {kind}: {shown(value)}")
        if not value:
            raise InvalidJobError(f"{parameter} must be a list of 1 to {WAITS_MAX} waits, got []")
        return cls(waits=_waits_s(value, parameter), jitter=0)

    def delay_ms(self, attempt: int, random: float) -> int:
        """
        Return how long to wait after failed attempt number *attempt*, in ms.

        Args:
            attempt: counted from 1.
            random: in [0, 1); takes away up to the share of jitter, so the cap is never exceeded.

        >>> [Backoff(jitter=0).delay_ms(attempt, 0.5) for attempt in (1, 2, 3, 6, 1024)]
        [1000, 2000, 4000, 30000, 30000]
        >>> [Backoff(waits=[5, 60], jitter=0).delay_ms(attempt, 0.5) for attempt in (1, 2, 3)]
        [5000, 60000, 60000]
        """
        longest_ms = self._listed_ms(attempt) if self.waits else self._grown_ms(attempt)
        return int(longest_ms * (1 - self.jitter * random))

    def _listed_ms(self, attempt: int) -> float:
        return round(self.waits[min(attempt, len(self.waits)) - 1] * 1000)

    def _grown_ms(self, attempt: int) -> float:
        # A growth beyond the cap is never computed: factor ** 1023 would overflow.
        wait = float(self.base_ms)
        for _ in range(attempt - 1):
            if wait >= self.cap_ms or self.factor <= 1:
                break
            wait *= self.factor
        return min(wait, self.cap_ms)


_take_backoff: Final = taker(lambda: Backoff)


@attrs.frozen(kw_only=True)
class Policy:
    """
    Retries, timeouts and failure rules of a job. All jobs of a task share one value.

    Raises:
        InvalidJobError, InvalidJobTypeError: a value of the wrong type or out of its range.

    Args:
        max_attempts: counted attempts before the job is FAILED, 1–1 000.
        max_losses: workers it may lose before it is FAILED ``worker_lost``, 1–1 000. The last one counts only
            once the worker has told the store that the code of the job begins.
        backoff: the wait between attempts.
        timeout_ms: how long a handler may run; None is for ever.
        on_retry: ``"hold"`` keeps the place during a back-off, ``"yield"`` gives it up.
        on_dead: ``"continue"`` frees the path, ``"hold"`` keeps it until redrive, discard or expiry,
            ``"cancel_behind"`` cancels the QUEUED jobs behind it at or below its path.
        on_dependency_failure: what a failed dependency does, for the explicit edges.
        max_hold_ms: longest back-off that keeps the place.
        cost: how many slots and how much of a rate it takes of each limit that it counts under, 1–1 000.
        start_within_ms: CANCELED (``expired``) if not started for the first time this long after it was enqueued, or
            due if it has a time; None is never.
        retention_ms: how long the record is kept once the job is over; None is the scheduler's setting.
        key_for_ms: how long after its end a job that was started keeps its `key`: until then a further job of the key
            is this one, see `Job.using`; None gives the key up at the end.
    """

    max_attempts: Annotated[int, Count(1, ATTEMPTS_MAX), RULED] = 5
    max_losses: Annotated[int, Count(1, ATTEMPTS_MAX), RULED] = 3
    backoff: Backoff = attrs.field(factory=Backoff)
    timeout_ms: SomeMs | None = None
    on_retry: Annotated[OnRetry, RULED] = "hold"
    on_dead: Annotated[OnDead, RULED] = "continue"
    on_dependency_failure: OnDependencyFailure = "wait"
    max_hold_ms: Annotated[DurationMs, RULED] = 300_000
    cost: Annotated[int, Count(1, COST_MAX), RULED] = 1
    start_within_ms: Annotated[SomeMs | None, RULED] = None
    retention_ms: Annotated[DurationMs | None, RULED] = None
    key_for_ms: Annotated[SomeMs | None, RULED] = None

    def __attrs_post_init__(self) -> None:
        _take_policy(self)

    @classmethod
    def checked(cls, **options: object) -> Policy:
        """
        Make a policy from user input: durations as timedelta or seconds, words as str, a back-off as `Backoff.of`.

        Args:
            options: those of `POLICY_OPTIONS` that are given; None for *backoff* is the default.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the option, the value and the limit.
        """
        if options.get("backoff", 0) is None:
            del options["backoff"]
        return cls(**dict([_ask_policy(option, value) for option, value in options.items()]))


_take_policy: Final = taker(lambda: Policy)
_ask_policy: Final = asker(lambda: Policy)
DEFAULT_BACKOFF = Backoff()
DEFAULT_POLICY = Policy()
POLICY_OPTIONS = options_of(Policy)
"""The options of a job that make its policy."""


RetentionMs = tuple[tuple[int, int, int, int | None], tuple[tuple[str, int], ...]]
"""A retention in ms: finished, failed, canceled, with a service or None; and by service, in order of name."""


@attrs.frozen(kw_only=True)
class Retention:
    """
    How long records are kept once a job is over, each a timedelta or seconds, at most 10 years.

    Args:
        finished, failed, canceled: by the state the job ended in.
        service: for all jobs with a service, whatever their state; by default as their state says.
        services: for the jobs of single services, by name; up to 100. Takes precedence over *service*.

    Raises:
        InvalidJobError, InvalidJobTypeError: a value out of its range.

    >>> Retention(services={"docs": 60}).of_service_ms("docs")
    60000
    >>> Retention().of_service_ms("docs") is None
    True
    """

    finished: float | timedelta = timedelta(days=1)
    failed: float | timedelta = timedelta(days=7)
    canceled: float | timedelta = timedelta(days=1)
    service: float | timedelta | None = None
    services: Mapping[str, float | timedelta] = attrs.field(factory=dict)
    finished_ms: int = attrs.field(init=False, repr=False)
    failed_ms: int = attrs.field(init=False, repr=False)
    canceled_ms: int = attrs.field(init=False, repr=False)
    service_ms: int | None = attrs.field(init=False, repr=False)
    services_ms: Mapping[str, int] = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        for name in ("finished", "failed", "canceled"):
            duration_ms = check_duration(getattr(self, name), parameter=name, most_ms=RETENTION_MAX_MS)
            object.__setattr__(self, f"{name}_ms", duration_ms)
        of_service_ms = check_optional_duration(self.service, parameter="service", most_ms=RETENTION_MAX_MS)
        object.__setattr__(self, "service_ms", of_service_ms)
        object.__setattr__(self, "services_ms", _check_services(self.services))

    @classmethod
    def audit(cls) -> Retention:
        """
        Return the retention of an audit trail: records of jobs with a service are kept for 90 days, others by state.

        >>> Retention.audit().service
        datetime.timedelta(days=90)
        """
        return cls(service=timedelta(days=90))

    def of_service_ms(self, service: str) -> int | None:
        """Return the retention of the records of a service, in ms; None for the retention by state."""
        return self.services_ms.get(service, self.service_ms)

    def in_ms(self) -> RetentionMs:
        """Return the retention as numbers, equal for equal times in any unit."""
        four = (self.finished_ms, self.failed_ms, self.canceled_ms, self.service_ms)
        return four, tuple(sorted(self.services_ms.items()))

    @classmethod
    def of_ms(cls, numbers: RetentionMs) -> Retention:
        """
        Return the retention of `in_ms`.

        >>> Retention.of_ms(Retention(failed=7).in_ms()).failed_ms
        7000
        """
        finished, failed, canceled = [timedelta(milliseconds=ms) for ms in numbers[0][:3]]
        service = None if numbers[0][3] is None else timedelta(milliseconds=numbers[0][3])
        services = {name: timedelta(milliseconds=ms) for name, ms in numbers[1]}
        return cls(finished=finished, failed=failed, canceled=canceled, service=service, services=services)

    def __str__(self) -> str:
        times = {"finished": self.finished_ms, "failed": self.failed_ms, "canceled": self.canceled_ms}
        times |= {} if self.service_ms is None else {"service": self.service_ms}
        times |= {f"service {shown(name)}": ms for name, ms in self.in_ms()[1]}
        return ", ".join([f"{name} {ms / 1000:.15g} s" for name, ms in times.items()])


def _check_services(services: object) -> dict[str, int]:
    if not isinstance(services, Mapping):
        raise InvalidJobTypeError(f"services must be a dict, got {type(services).__name__}: {shown(services)}")
    named = list(islice(services.items(), SERVICES_KEPT_MAX + 1))
    if len(named) > SERVICES_KEPT_MAX:
        count = count_of(services, SERVICES_KEPT_MAX)
        raise InvalidJobError(f"services names {count} services, limit {SERVICES_KEPT_MAX}")
    return {
        check_name(service, parameter="service"): check_duration(
            kept, parameter=f"services[{shown(service)}]", most_ms=RETENTION_MAX_MS
        )
        for service, kept in named
    }
