"""Strategies for schedules and for when they are due."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import attrs
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from queuehint.schema.checks import TEN_YEARS_MS
from queuehint.testing.strategies.arguments import check_strategy
from queuehint.testing.strategies.specs import JOBS
from queuehint.values.schedule import MISSED, Recurrence, Schedule
from queuehint.worker.schedules.cron_text import plain_cron
from queuehint.worker.schedules.due_times import EVERY_MIN_MS, first_due

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from queuehint.values.spec import JobSpec

NOW_MS = 1_600_000_000_000
"""The time around which times are drawn: that of `queuehint.FakeClock`."""


def recurrences(*, allow_cron: bool | None = None) -> SearchStrategy[Recurrence]:
    """
    Generate recurrences: intervals and cron expressions.

    Shrinks towards every second for ever; then towards every minute of a cron expression, in UTC.

    Args:
        allow_cron: also generate cron expressions; by default if what reads them, ``queuehint[cron]``, is installed.

    Raises:
        InvalidArgument: cron expressions are asked for, and what reads them is not installed.

    .. versionadded:: 1.0.0
    """
    is_readable = find_spec("cronsim") is not None
    if allow_cron and not is_readable:
        raise InvalidArgument("allow_cron=True needs queuehint[cron], which reads cron expressions")
    every = st.fixed_dictionaries({"every_ms": st.integers(EVERY_MIN_MS, TEN_YEARS_MS)})
    cron = st.fixed_dictionaries({"cron": _crons(), "timezone": st.sampled_from(("UTC", "Europe/Berlin"))})
    begin = st.none() | st.integers(NOW_MS - 86_400_000, NOW_MS + 86_400_000)
    return st.builds(
        lambda when, missed, start_ms, lasts_ms: Recurrence(
            **when,
            missed=missed,
            start_ms=start_ms,
            end_ms=None if lasts_ms is None else (NOW_MS if start_ms is None else start_ms) + lasts_ms,
        ),
        when=every if allow_cron is False or not is_readable else every | cron,
        missed=st.sampled_from(MISSED),
        start_ms=begin,
        lasts_ms=st.none() | st.integers(0, 86_400_000),
    )


def _crons() -> SearchStrategy[str]:
    """Generate five fields, without days that some months lack."""

    def field(least: int, most: int) -> SearchStrategy[str]:
        number = st.integers(least, most)
        return st.one_of(
            st.just("*"),
            number.map(str),
            st.integers(2, most - least).map("*/{}".format),
            st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}"),
            st.lists(number, min_size=2, max_size=3, unique=True).map(lambda some: ",".join(map(str, some))),
        )

    return st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)).map(" ".join).map(plain_cron)


RECURRENCES = recurrences()


def schedules(
    *, recurrences: SearchStrategy[Recurrence] = RECURRENCES, jobs: SearchStrategy[JobSpec] = JOBS
) -> SearchStrategy[Schedule]:
    """
    Generate schedules as `queuehint.Scheduler.schedules` lists them, stored at `NOW_MS` and not fired yet.

    Shrinks towards one that is not paused, then as *recurrences* and *jobs* do.

    Args:
        recurrences: when they are due.
        jobs: what they fire.

    Raises:
        InvalidArgument: an argument is of the wrong type.

    .. versionadded:: 1.0.0
    """
    check_strategy("recurrences", recurrences)
    check_strategy("jobs", jobs)
    return st.builds(
        lambda name, spec, recurrence, version, is_paused: Schedule(
            name=name,
            spec=attrs.evolve(spec, id=name),
            recurrence=recurrence,
            version=version,
            next_ms=first_due(recurrence, NOW_MS),
            is_paused=is_paused,
        ),
        name=st.sampled_from(("nightly", "hourly")),
        spec=jobs,
        recurrence=recurrences,
        version=st.integers(1, 1000),
        is_paused=st.booleans(),
    )
