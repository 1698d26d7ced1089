"""Assertions on enqueued jobs: which jobs match, the message where none does, and the time limit."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, date, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import attrs
import pytest

from queuehint import Claim, InvalidHintError, InvalidJobError, InvalidJobTypeError, JobSpec, Scheduler
from queuehint.testing import (
    all_enqueued,
    all_enqueued_sync,
    assert_enqueued,
    assert_enqueued_sync,
    drain_sync,
    refute_enqueued,
    refute_enqueued_sync,
)
from tests.each import for_each
from tests.schedulers import run, scheduler


@attrs.frozen
class Page:
    number: int


def prepared() -> Scheduler:
    """Return a scheduler with four jobs: two pages are rendered, a day is counted, and `other` is not registered."""
    sched, _ = scheduler()

    @sched.job(queue_hint=["{doc}"])
    def render(doc: str, page: Page, *, size: int = 10) -> None: ...

    @sched.job(pool="slow")
    def count(day: date) -> None: ...

    render.using(id="r1", user="ann").enqueue_sync("doc1", Page(1))
    render.using(id="r2", delay=60, key="k").enqueue_sync("doc2", Page(2), size=20)
    count.using(id="c").enqueue_sync(date(2020, 2, 29))
    sched.submit_sync(
        [JobSpec(id="o", task="other", claims=(Claim(("x",)), Claim(("y", "z"))), arguments=b'{"size": 20}')]
    )
    return sched


def found(sched: Scheduler, *args: Any, **wanted: Any) -> str:
    """Return the ids of what is found, by both twins, as one string of words."""
    ids = " ".join(record.id for record in all_enqueued_sync(sched, *args, **wanted))
    assert ids == " ".join([record.id for record in run(all_enqueued(sched, *args, **wanted))])
    if ids:
        assert_enqueued_sync(sched, *args, **wanted)
        with pytest.raises(AssertionError):
            refute_enqueued_sync(sched, *args, **wanted)
    else:
        refute_enqueued_sync(sched, *args, **wanted)
        with pytest.raises(AssertionError):
            assert_enqueued_sync(sched, *args, **wanted)
    return ids


def told(sched: Scheduler, *args: Any, **wanted: Any) -> list[str]:
    """Return the message of an assertion that fails, the same by both twins, as lines."""
    with pytest.raises(AssertionError) as caught:
        assert_enqueued_sync(sched, *args, **wanted)
    with pytest.raises(AssertionError) as again:
        run(assert_enqueued(sched, *args, **wanted))
    assert str(caught.value) == str(again.value)
    return str(caught.value).splitlines()


# --- what fits -------------------------------------------------------------------------------------------------------


def test_anything_fits_if_nothing_is_said() -> None:
    assert found(prepared()) == "r1 r2 c o"
    assert found(scheduler()[0]) == ""


def test_a_task_is_a_name_or_a_job() -> None:
    sched = prepared()
    assert found(sched, "render") == found(sched, sched._jobs["render"]) == "r1 r2"
    assert found(sched, "other") == "o"
    assert found(sched, "nobody") == ""


@for_each(
    "wanted, ids",
    [
        ({"args": ["doc1"]}, "r1"),
        ({"args": ["doc1", Page(1)]}, "r1"),
        ({"args": ("doc1", Page(2))}, ""),
        ({"args": [ANY, {"number": 2}]}, "r2"),
        ({"kwargs": {"page": Page(2)}}, "r2"),
        ({"kwargs": {"size": 20}}, "r2"),
        ({"kwargs": {"size": 10}}, "r1"),
        ({"args": ["doc2"], "kwargs": {"size": ANY}}, "r2"),
        ({"kwargs": {"unknown": ANY}}, ""),
        ({"kwargs": {"page": object()}}, ""),
    ],
)
def test_arguments_match_as_sent_and_as_received(wanted: dict[str, Any], ids: str) -> None:
    assert found(prepared(), "render", **wanted) == ids


def test_arguments_fit_whatever_the_task() -> None:
    assert found(prepared(), kwargs={"size": 20}) == "r2 o"
    assert found(prepared(), "count", kwargs={"day": date(2020, 2, 29)}) == "c"
    assert found(prepared(), "count", kwargs={"day": "2020-02-29"}) == "c"
    assert found(prepared(), "count", kwargs={"day": date(2020, 2, 28)}) == ""


def test_arguments_may_be_compared_by_an_object_of_ones_own() -> None:
    class LeapDay:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, date) and (other.month, other.day) == (2, 29)

        __hash__ = None  # type: ignore[assignment]

    assert found(prepared(), "count", kwargs={"day": LeapDay()}) == "c"


def test_converted_arguments_match_as_they_were_given() -> None:
    sched, _ = scheduler()

    @sched.job
    def work(rows: Any) -> None: ...

    work.using(id="a").enqueue_sync((1, 2))
    assert found(sched, "work", args=[(1, 2)]) == found(sched, "work", args=[[1, 2]]) == "a"
    assert found(sched, "work", args=[(1, 3)]) == ""


def test_hint_matches_one_place_and_none_matches_no_place() -> None:
    sched = prepared()
    assert found(sched, hint=["doc1"]) == "r1"
    assert found(sched, hint=["y", "z"]) == "o"
    assert found(sched, hint=["y"]) == ""
    assert found(sched, hint=None) == "c"


@for_each(
    "wanted, ids",
    [
        ({"user": "ann"}, "r1"),
        ({"user": None}, "r2 c o"),
        ({"pool": "slow"}, "c"),
        ({"key": "k"}, "r2"),
        ({"priority": 3}, "r1 r2 c o"),
        ({"service": "x"}, ""),
        ({"id": "o"}, "o"),
        ({"delay": 60}, "r2"),
        ({"delay": timedelta(minutes=1)}, "r2"),
        ({"delay": None}, "r1 c o"),
        ({"state": "SCHEDULED"}, "r2"),
        ({"state": ["SCHEDULED", "FINISHED"]}, "r2"),
        ({"state": []}, ""),
    ],
)
def test_fields_fit_exactly(wanted: dict[str, Any], ids: str) -> None:
    assert found(prepared(), **wanted) == ids


def test_a_time_counts_as_a_delay() -> None:
    sched, clock = scheduler()
    at = datetime.fromtimestamp(clock.now_ms() / 1000 + 90, tz=UTC)
    sched.job(name="t")(lambda: None).using(run_at=at).enqueue_sync()
    assert_enqueued_sync(sched, "t", delay=90)


def test_jobs_that_are_over_count_only_if_asked_for() -> None:
    sched, _ = scheduler()
    sched.job(name="t")(lambda: None).enqueue_sync()
    drain_sync(sched)
    refute_enqueued_sync(sched, "t")
    assert_enqueued_sync(sched, "t", state="FINISHED")


def test_so_many_are_counted() -> None:
    sched = prepared()
    assert len(assert_enqueued_sync(sched, "render", count=2)) == 2
    assert assert_enqueued_sync(sched, "nobody", count=0) == []
    assert told(sched, "render", count=1)[0].startswith(
        "expected 1 job of task 'render'; of 4 that were enqueued 2 are"
    )
    assert told(sched, count=5)[0].startswith("expected 5 jobs of any task; of 4 that were enqueued 4 are:")


# --- what is told ----------------------------------------------------------------------------------------------------


def test_assert_enqueued_lists_similar_jobs_first_with_differences() -> None:
    lines = told(prepared(), "render", args=["doc1"], kwargs={"size": 20}, user="ann", hint=["doc1"], delay=None)
    assert lines == [
        (
            "expected a job of task 'render' with size=20, doc='doc1', user='ann', place doc1, no delay; "
            "of 4 that were enqueued 0 are:"
        ),
        "  render(doc='doc1', page={'number': 1}, size=10)  at doc1  QUEUED  user='ann'  <- size is 10",
        (
            "  render(doc='doc2', page={'number': 2}, size=20)  at doc2  SCHEDULED  user=None"
            "  <- doc is 'doc2', place is doc2, user is None, its delay is 60 s"
        ),
        (
            "  other(size=20)  at x and y:z  QUEUED  user=None  <- task is 'other', it has no doc, place is x and y:z, "
            "user is None"
        ),
        (
            "  count(day='2020-02-29')  without a place  QUEUED  user=None  <- task is 'count', it has no size, "
            "it has no doc, place is none, user is None"
        ),
    ]


def test_where_nothing_was_enqueued_that_is_told() -> None:
    assert told(scheduler()[0], "t") == ["expected a job of task 't'; none was enqueued at all"]
    assert told(scheduler()[0], hint=None, id="a", state="FAILED", delay=1.5) == [
        "expected a job of any task with no place, id='a', a delay of 1.5 s, state FAILED; none was enqueued at all"
    ]


def test_at_most_twenty_are_listed() -> None:
    sched, _ = scheduler()
    sched.job(name="t")(lambda: None).enqueue_many_sync([()] * 30)
    lines = told(sched, "u")
    assert (len(lines), lines[-1]) == (22, "  ... and 10 more")


def test_refute_enqueued_lists_present_jobs() -> None:
    def refute_async(sched: Scheduler, *args: Any, **wanted: Any) -> None:
        run(refute_enqueued(sched, *args, **wanted))

    for refute in (refute_enqueued_sync, refute_async):
        with pytest.raises(AssertionError) as caught:
            refute(prepared(), "render", user="ann")
        assert str(caught.value).splitlines() == [
            "expected no job of task 'render' with user='ann'; 1 was enqueued:",
            "  render(doc='doc1', page={'number': 1}, size=10)  at doc1  QUEUED  user='ann'",
        ]


# --- how long is waited ----------------------------------------------------------------------------------------------


def test_one_that_comes_in_time_is_found_or_refuted() -> None:
    async def main(sched: Scheduler) -> None:
        def enqueue() -> None:
            sched.submit_sync([JobSpec(id="a", task="t")])

        asyncio.get_running_loop().call_later(0.01, enqueue)
        assert [record.id for record in await assert_enqueued(sched, "t", within=20)] == ["a"]
        asyncio.get_running_loop().call_later(0.01, lambda: sched.submit_sync([JobSpec(id="b", task="u")]))
        with pytest.raises(AssertionError, match="1 was enqueued"):
            await refute_enqueued(sched, "u", within=20)

    run(main(scheduler()[0]))


def test_late_job_of_another_thread_is_found_or_refuted() -> None:
    sched, _ = scheduler()
    threading.Timer(0.01, lambda: sched.submit_sync([JobSpec(id="a", task="t")])).start()
    assert assert_enqueued_sync(sched, "t", within=timedelta(seconds=20))
    threading.Timer(0.01, lambda: sched.submit_sync([JobSpec(id="b", task="u")])).start()
    with pytest.raises(AssertionError, match="1 was enqueued"):
        refute_enqueued_sync(sched, "u", within=20)


def test_a_wait_ends() -> None:
    sched, _ = scheduler()
    refute_enqueued_sync(sched, "t", within=0.01)
    with pytest.raises(AssertionError):
        assert_enqueued_sync(sched, "t", within=0.01)


# --- what makes no sense ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task, wanted, error",
    [
        (5, {}, InvalidJobTypeError),
        ("render", {"args": "doc1"}, InvalidJobTypeError),
        ("render", {"args": [1, 2, 3, 4]}, InvalidJobTypeError),
        ("unknown", {"args": [1]}, InvalidJobError),
        ("render", {"kwargs": ["doc"]}, InvalidJobTypeError),
        ("render", {"hint": "doc1"}, InvalidHintError),
        ("render", {"state": "DONE"}, InvalidJobError),
        ("render", {"users": "ann"}, InvalidJobTypeError),
        ("render", {"delay": -1}, InvalidJobError),
    ],
)
def test_malformed_expectations_are_refused(task: Any, wanted: dict[str, Any], error: type[Exception]) -> None:
    sched = prepared()
    for call in (all_enqueued_sync, assert_enqueued_sync, refute_enqueued_sync):
        with pytest.raises(error):
            call(sched, task, **wanted)
    with pytest.raises(InvalidJobError):
        assert_enqueued_sync(sched, count=-1)
