"""Values of a log of intervals: the times of one job seen by its clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import attrs

from queuehint.errors import shown
from queuehint.testing.trace.lines import ID_MAX
from queuehint.testing.trace.values import InvalidTraceError, without_permits
from queuehint.values.hint import Claim, Mode, parse_claims, parse_hint
from queuehint.values.policy import OnRetry

TIME_MAX = 2**53
"""Milliseconds; beyond, a float is no longer exact to one."""
ON_RETRY: Final = ("hold", "yield")
JOBS_MAX, RUNS_MAX = 1_000_000, 2_000_000
"""Of one log."""


def _check_time(value: object, parameter: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= TIME_MAX:
        raise InvalidTraceError(f"{parameter} must be a number of ms of up to 2**53, got {shown(value)}")


def _check_pair(first: float, last: float | None, names: str) -> None:
    if last is not None and last < first:
        early, late = names.split()
        raise InvalidTraceError(f"{late} must not be before {early}: {last!r} < {first!r}")


@attrs.frozen(kw_only=True)
class RunInterval:
    """
    One run of a job, as seen by its handler.

    Args:
        began_ms: when its code began, by the clock of its machine.
        ended_ms: when its code ended; None if that was not seen, as of a process that was killed.
        failed: it raised an error; only shown.
        worker: where it ran; only shown.

    Raises:
        InvalidTraceError: a time is no number, or the end is before the beginning.

    .. versionadded:: 1.0.0
    """

    began_ms: float
    ended_ms: float | None = None
    failed: bool = False
    worker: str | None = None

    def __attrs_post_init__(self) -> None:
        _check_time(self.began_ms, "began_ms")
        if self.ended_ms is not None:
            _check_time(self.ended_ms, "ended_ms")
            _check_pair(self.began_ms, self.ended_ms, "began_ms ended_ms")
        if not isinstance(self.failed, bool):
            raise InvalidTraceError(f"failed must be a bool, got {shown(self.failed)}")
        _check_name(self.worker, "worker", is_optional=True)

    @property
    def least_ms(self) -> float:
        """The earliest possible time of the end: of a run without a recorded end, its beginning."""
        return self.began_ms if self.ended_ms is None else self.ended_ms


def _check_name(value: object, parameter: str, *, is_optional: bool = False) -> None:
    if value is None and is_optional:
        return
    if not isinstance(value, str) or not 0 < len(value) <= ID_MAX:
        raise InvalidTraceError(f"{parameter} must be a text of 1 to {ID_MAX} characters, got {shown(value)}")


def _claims(value: object) -> tuple[Claim, ...] | None:
    return None if value is None else without_permits(parse_claims(value))


def _runs(value: object) -> tuple[RunInterval, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidTraceError(f"runs must be a list of runs, got {shown(value)}")
    return tuple(_run(each, number) for number, each in enumerate(value))


def _run(value: object, number: int) -> RunInterval:
    if isinstance(value, RunInterval):
        return value
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= 2:
        raise InvalidTraceError(f"runs[{number}] must be a RunInterval or a pair of times, got {shown(value)}")
    began_ms, ended_ms = cast("Any", (*value, None)[:2])
    try:
        return RunInterval(began_ms=began_ms, ended_ms=ended_ms)
    except InvalidTraceError as error:
        raise InvalidTraceError(f"runs[{number}]: {error}") from None


@attrs.frozen(kw_only=True)
class JobIntervals:
    """
    The times of one job seen by its clients, in ms of the wall clocks of their machines.

    Args:
        job: its id.
        claims: its places: `Claim` values, hints, or pairs of a hint and a mode; ``()`` is no place, None not known.
            That of a permit is left out, for it takes no place.
        called_ms: when its enqueue was called; None if that was not seen.
        returned_ms: when that call returned; None if it did not, or with an error.
        runs: `RunInterval` values, or pairs of their beginning and end, in any order.
        canceled_ms: when the queue had confirmed that the job will not begin, or not again.
        on_retry: ``"hold"``: the job keeps its place until its last run has ended; ``"yield"``: a further run takes
            its place behind all others.

    Raises:
        InvalidTraceError: a value is of the wrong type, or two times of one call are in the wrong order.
        InvalidHintError: the claims are none.

    .. versionadded:: 1.0.0
    """

    job: str
    claims: tuple[Claim, ...] | None = attrs.field(default=None, converter=_claims)
    called_ms: float | None = None
    returned_ms: float | None = None
    runs: tuple[RunInterval, ...] = attrs.field(default=(), converter=_runs)
    canceled_ms: float | None = None
    on_retry: OnRetry = "hold"

    def __attrs_post_init__(self) -> None:
        _check_name(self.job, "job")
        for name in ("called_ms", "returned_ms", "canceled_ms"):
            value = getattr(self, name)
            if value is not None:
                _check_time(value, name)
        if self.returned_ms is not None:
            if self.called_ms is None:
                raise InvalidTraceError("returned_ms requires called_ms")
            _check_pair(self.called_ms, self.returned_ms, "called_ms returned_ms")
        if self.on_retry not in ON_RETRY:
            raise InvalidTraceError(f"on_retry must be hold or yield, got {shown(self.on_retry)}")
        if len(self.runs) > 1:
            object.__setattr__(self, "runs", tuple(sorted(self.runs, key=lambda run: (run.began_ms, run.least_ms))))

    @classmethod
    def of(cls, job: str, hint: Iterable[str] | None, *, mode: Mode = "exclusive", **times: Any) -> JobIntervals:
        """
        Return the intervals of a job with one claim.

        Args:
            job: its id.
            hint: its place; None for no place, ``[]`` for the root.
            times: further fields of `JobIntervals`.

        >>> JobIntervals.of("a", ["doc1"], called_ms=0, returned_ms=2, runs=[(5, 9)]).runs[0].ended_ms
        9
        """
        listed = tuple(hint) if isinstance(hint, Iterable) and not isinstance(hint, str) else hint
        path = parse_hint(listed, parameter="hint")
        return cls(job=job, claims=cast("Any", () if path is None else ((path, mode),)), **times)
