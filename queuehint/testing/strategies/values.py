"""Strategies for small values: results of handlers, fields of operations."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from queuehint.handlers.context import Children, Retry, Snooze
from queuehint.testing.strategies.places import PLACES
from queuehint.testing.strategies.recurring import NOW_MS
from queuehint.values.event import EventFilter, EventKind
from queuehint.values.hint import Path
from queuehint.values.limit import Limit
from queuehint.values.outcome import ON_CHILD_FAILURE, JobError, Outcome, OutcomeKind, Progress
from queuehint.values.policy import Retention
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import WHEN, Dependency

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

WAITS_MS = st.sampled_from((0, 1, 60_000, 600_000))
LIVES_MS = st.sampled_from((1, 60_000, 600_000))
_SECONDS = st.integers(0, 3600) | st.timedeltas(timedelta(0), timedelta(hours=1))
BYTES = st.sampled_from((b"1", b"null", b'{"a":[]}'))
REASONS = st.none() | st.just("why")
NAMES = st.sampled_from(("n", "o"))
USERS = st.sampled_from((None, "u"))
FIRST_IDS = ("1", "2", "3")
"""The ids that `jobs` gives first."""
IDS = st.sampled_from(FIRST_IDS)
GRANTS = st.tuples(IDS, st.integers(1, 3))
PATHS: SearchStrategy[Path] = PLACES.map(tuple)


def few(values: SearchStrategy[Any], *, least: int = 0, most: int = 3) -> SearchStrategy[tuple[Any, ...]]:
    """Generate up to three of something."""
    return st.lists(values, min_size=least, max_size=most).map(tuple)


def outcomes(
    *, grants: SearchStrategy[tuple[str, int]] = GRANTS, ids: SearchStrategy[str] = IDS
) -> SearchStrategy[Outcome]:
    """
    Generate reports of attempts. Shrinks towards FINISHED.

    Args:
        grants: ids and tokens of running jobs.
        ids: the children that are waited for.
    """

    def report(kind: OutcomeKind) -> SearchStrategy[Outcome]:
        more: dict[str, SearchStrategy[Any]] = {}
        if kind in {OutcomeKind.FINISHED, OutcomeKind.CHILDREN}:
            more["result"] = st.none() | BYTES
        if kind in {OutcomeKind.FAILED, OutcomeKind.LOST}:
            more["error"] = st.none() | errors()
        if kind in {OutcomeKind.FAILED, OutcomeKind.SNOOZED}:
            more["delay_ms"] = WAITS_MS
        if kind is OutcomeKind.FAILED:
            more["final"] = st.booleans()
        if kind is OutcomeKind.DISCARDED:
            more["reason"] = REASONS
        if kind is OutcomeKind.CHILDREN:
            more |= {"children": few(ids), "on_child_failure": st.sampled_from(ON_CHILD_FAILURE)}
        return st.builds(
            lambda grant, **more: Outcome(job_id=grant[0], token=grant[1], kind=kind, **more), grants, **more
        )

    return st.sampled_from(OutcomeKind).flatmap(report)


def errors() -> SearchStrategy[JobError]:
    """Generate failed attempts."""
    return st.builds(
        JobError,
        type=st.sampled_from(("ValueError", "timeout")),
        message=st.text(max_size=10),
        traceback=st.none() | st.just("in f"),
    )


def progresses() -> SearchStrategy[Progress]:
    """Generate progress reports. Shrinks towards an empty one."""
    amounts = st.none() | st.integers(0, 100).map(float)
    return st.builds(Progress, amounts, amounts, st.none() | st.text(max_size=10))


def dependencies(*, ids: SearchStrategy[str] = IDS) -> SearchStrategy[Dependency]:
    """Generate edges. Shrinks towards success without a result."""
    return st.builds(
        lambda job_id, when, name, data: Dependency(job_id, when, name, data=data and when != "failure"),
        ids,
        st.sampled_from(WHEN),
        st.none() | NAMES,
        st.booleans(),
    )


def retentions() -> SearchStrategy[Retention]:
    """Generate how long records are kept. Shrinks towards not at all."""
    kept = st.integers(0, 3600)
    return st.builds(
        Retention,
        finished=kept,
        failed=kept,
        canceled=kept,
        service=st.none() | kept,
        services=st.dictionaries(NAMES, kept, max_size=1),
    )


# --- answers of handlers ---------------------------------------------------------------------------------------------


def retries() -> SearchStrategy[Retry]:
    """Generate retry replies. Shrinks towards the back-off of the job."""
    return st.builds(Retry, st.none() | _SECONDS)


def snoozes() -> SearchStrategy[Snooze]:
    """Generate answers that put a job off. Shrinks towards no delay."""
    return st.builds(Snooze, _SECONDS)


def children(*, ids: SearchStrategy[str] = IDS) -> SearchStrategy[Children]:
    """Generate answers that wait for other jobs. Shrinks towards all that the attempt has made."""
    return st.builds(
        lambda some, result, on_child_failure: Children(*some, result=result, on_child_failure=on_child_failure),
        few(ids),
        st.none() | st.integers(0, 9),
        st.sampled_from(ON_CHILD_FAILURE),
    )


# --- for operations --------------------------------------------------------------------------------------------------


def limits(*, paths: SearchStrategy[Path] = PATHS) -> SearchStrategy[Limit]:
    """Generate limits on places, tasks and pools. Shrinks towards one for the whole namespace that limits nothing."""
    most = st.none() | st.integers(1, 3)
    timed = st.tuples(st.integers(1, 3), st.sampled_from((1000, 60_000)))
    rate = st.none() | timed
    return st.one_of(
        st.builds(Limit, path=st.none(), max_pending=most),
        st.builds(Limit, path=paths, most=most, rate=rate, max_pending=most),
        st.builds(Limit, path=paths, most=most, rate=rate, max_pending=most, each=st.just(True)),
        st.builds(Limit, path=paths, most=most, rate=timed, burst=st.integers(1, 3), each=st.booleans()),
        st.builds(Limit, task=st.just("task"), most=most, rate=rate),
        st.builds(Limit, pool=st.just("default"), most=most, rate=rate),
        st.builds(Limit, task=st.just("task"), most=most, max_pending=most),
    )


def event_filters(*, paths: SearchStrategy[Path] = PATHS) -> SearchStrategy[EventFilter]:
    """Generate filters of events. Shrinks towards the filter that all events pass."""
    return st.builds(
        lambda **fields: EventFilter(**fields).check(),
        kinds=few(st.sampled_from(EventKind), most=2),
        path=st.none() | paths,
        user=st.none() | st.just("u"),
        flow=st.none() | NAMES,
    )


def record_filters(*, paths: SearchStrategy[Path] = PATHS) -> SearchStrategy[RecordFilter]:
    """Generate filters of records. Shrinks towards the filter that all records pass."""
    since = st.none() | st.integers(NOW_MS - 60_000, NOW_MS)
    until = st.none() | st.integers(NOW_MS, NOW_MS + 60_000)
    return st.builds(
        lambda **fields: RecordFilter(**fields).check(),
        service=st.none() | NAMES,
        user=st.none() | st.just("u"),
        task=st.none() | st.just("task"),
        pool=st.none() | st.just("default"),
        states=few(st.sampled_from(JobState), most=2),
        path=st.none() | paths,
        since_ms=since,
        until_ms=until,
        flow=st.none() | NAMES,
        tag=st.none() | st.just("x"),
        parent=st.none() | NAMES,
        waits_for=st.none() | NAMES,
    )
