"""Subclasses of `str` as arguments, on every store: the checked copy, an exact `str`, is used."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import ANYONE, EventKind, InvalidJobError, JobSpec, JobState, Scheduler, open_backend
from queuehint.backends.base import BackendOptions
from queuehint.handlers.handler import Handler
from queuehint.handlers.placement import Placement
from queuehint.scheduler.event_streams import check_kinds
from tests.schedulers import scheduler
from tests.support import HostileStr


class Env(enum.StrEnum):
    BLUE = "blue"


class Old(str, enum.Enum):  # noqa: UP042 - what is `Old.BLUE` when it is formatted
    BLUE = "blue"


class Liar(str):
    """Has another text wherever it is asked for it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "liar"

    def __format__(self, spec: str) -> str:
        return "liar"

    def __repr__(self) -> str:
        return "liar"


TEXTS: list[Any] = [Env.BLUE, Old.BLUE, Liar("blue"), HostileStr("blue")]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: type(text).__name__)
def test_a_namespace_is_the_text_that_was_checked(text: Any) -> None:
    sched = Scheduler("memory://", namespace=text)
    assert (type(sched.namespace), sched.namespace) == (str, "blue")
    backend: Any = open_backend("redis://localhost:1", BackendOptions(namespace=text))  # it connects on first use
    assert (type(backend.session.namespace), backend.session.namespace) == (str, "blue")


def test_a_url_is_the_text_that_was_checked() -> None:
    sched = Scheduler(Liar("memory://"))
    assert (type(sched.url), sched.url) == (str, "memory://")
    assert sched.stats_sync().enqueued == 0


@pytest.mark.redis
def test_processes_that_mean_one_namespace_meet(redis_url: str, namespace: str) -> None:
    one, other = (Scheduler(redis_url, namespace=each) for each in (Liar(namespace), namespace))
    one.job(name="work")(lambda: None).using(id="x").enqueue_sync()
    assert other.get_sync("x").state is JobState.QUEUED
    one.close_sync()
    other.close_sync()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: type(text).__name__)
def test_reason_of_a_cancellation_is_the_checked_text(url: str, text: Any) -> None:
    with_store = Scheduler(url)
    job = with_store.job(name="job")(lambda: None)
    ways: list[Callable[[Any], Any]] = [
        lambda handle: with_store.cancel_sync([handle], reason=text),
        lambda handle: with_store.cancel_sync(path=["doc"], reason=text),
        lambda handle: handle.cancel_sync(text),
    ]
    for way in ways:
        handle = job.using(queue_hint=["doc"]).enqueue_sync()
        way(handle)
        record = handle.record_sync()
        assert record.state is JobState.CANCELED
        assert (type(record.cause), record.cause) == (str, "blue")
    with with_store.flow_sync("flow") as flow:
        flow.add(job)
    flow.cancel_sync(text)
    (record,) = flow.jobs_sync()
    assert (type(record.cause), record.cause) == (str, "blue")
    with_store.close_sync()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: type(text).__name__)
def test_jobs_in_flows_are_looked_up_by_text(text: Any) -> None:
    sched, _ = scheduler()
    job = sched.job(name="job")(lambda: None)
    with sched.flow_sync("flow") as flow:
        flow.add(job)
        node = flow.add(job.using(name=text))
    assert (type(node.name), node.name) == (str, "blue")
    assert flow[text] is node
    assert sched.get_flow("flow").job_sync(text).id == node.id


def test_kinds_of_events_are_the_texts_that_were_checked() -> None:
    assert check_kinds(Liar("failed")) == check_kinds([HostileStr("failed")]) == {"failed"} == check_kinds("failed")
    assert {type(kind) for kind in check_kinds([EventKind.FAILED, Liar("lost")])} == {str}
    assert check_kinds(Liar("*")) == check_kinds(None) == set(EventKind)
    assert check_kinds("*", also=("missed",)) == {*EventKind, "missed"}


class NotOne:
    """Is equal to nothing by an answer that is neither yes nor no."""

    def __eq__(self, other: object) -> Any:
        return [1, 2]

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Any:
        return iter(["ann"])


def test_a_worker_helps_users_by_their_checked_names() -> None:
    sched, _ = scheduler()
    one = sched.make_worker(users=["ben"], steal=HostileStr(ANYONE))
    assert (type(one._state.empty.steal), one._state.empty.steal) == (str, ANYONE)
    assert sched.make_worker(users=["ben"], steal=NotOne())._state.empty.steal == ("ann",)
    with sched.worker_sync(users=["ben"], steal=HostileStr(ANYONE)):
        pass


def test_a_spec_is_made_of_texts_only() -> None:
    spec = JobSpec(id="x", task="t", depends_on=("blue",), templates=("/a",))  # type: ignore[arg-type]
    odd = JobSpec(id="x", task="t", depends_on=(HostileStr("blue"),), templates=(Liar("/a"),))  # type: ignore[arg-type]
    checked = odd.check()
    assert checked == spec.check()
    assert isinstance(checked.templates, tuple)
    assert [type(pointer) for pointer in checked.templates] == [str]
    again = spec.check().check()
    assert again.check() is again, "what is plain stays the very same"


def test_a_place_is_made_of_the_text_of_an_argument() -> None:
    class Twin(str):
        """Takes itself for another text."""

        __slots__ = ()
        __hash__ = "other".__hash__

        def __eq__(self, other: object) -> bool:
            return other == "other"

    def work(doc: str) -> None: ...

    placement = Placement(["{doc}"], Handler("work", work))
    placement.claims({"doc": "other"}, "exclusive")
    (claim,) = placement.claims({"doc": Twin("mine")}, "exclusive")
    assert claim.path == ("mine",)
    assert type(claim.path[0]) is str


@pytest.mark.parametrize("include", [None, 1, "yes", [], object()])
def test_drain_include_scheduled_requires_a_bool(include: Any) -> None:
    with pytest.raises(InvalidJobError, match="include_scheduled must be bool"):
        scheduler()[0].drain_sync(include_scheduled=include)


class Shifted(dt.datetime):
    """Says that it is another time."""

    def __sub__(self, other: Any) -> Any:
        return dt.timedelta(0)

    def utcoffset(self) -> Any:
        return "none of yours"


class Broken(dt.tzinfo):
    def utcoffset(self, when: Any) -> Any:
        raise RuntimeError("no database of zones")

    dst = tzname = utcoffset


def test_a_time_is_that_of_datetime_whatever_a_subclass_says() -> None:
    at = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    sched, _ = scheduler()
    job = sched.job(name="job")(lambda: None)
    told = [job.using(run_at=each).spec().run_at_ms for each in (at, Shifted(2020, 1, 1, tzinfo=dt.UTC))]
    assert told[0] == told[1]
    with pytest.raises(InvalidJobError, match=r"^run_at has a time zone that fails \(RuntimeError\)$"):
        job.using(run_at=dt.datetime(2020, 1, 1, tzinfo=Broken()))
