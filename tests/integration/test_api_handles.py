"""Handles of another namespace or store are refused everywhere, and nothing is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuehint import Children, InvalidJobError, JobFailedError, JobHandle, JobState, Scheduler
from queuehint.testing import on_memory
from tests.folders import quick_folder
from tests.schedulers import run
from tests.servers import new_namespace, shared_server


class Shop:
    """A scheduler and its task."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self.sched = Scheduler(url, namespace=namespace)
        self.job = self.sched.job(name="work")(lambda: None)

    def state(self, job_id: str) -> JobState:
        return self.sched.get_sync(job_id).state


Pair = tuple[Shop, Shop, str]


@pytest.fixture(params=["memory", "files", pytest.param("redis", marks=pytest.mark.redis)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Give two shops that have nothing to do with one another, and what is said of that."""
    if request.param == "memory":
        shops = Shop("memory://"), Shop("memory://")
        yield *shops, "is of another store"
    elif request.param == "files":
        with quick_folder() as folder:
            shops = Shop(f"sqlite:///{folder}/a.db"), Shop(f"sqlite:///{folder}/b.db")
            yield *shops, "is of another store"
            for shop in shops:
                shop.sched.close_sync()
    else:
        one, other = new_namespace("one"), new_namespace("other")
        shops = Shop(shared_server().url, one), Shop(f"{shared_server().url}?namespace={other}", one)
        yield *shops, f"is of namespace '{one}', not '{other}'"
        for shop in shops:
            shop.sched.close_sync()


def refused(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(InvalidJobError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_a_handle_of_elsewhere_is_refused_wherever_one_is_taken(pair: Pair) -> None:
    theirs, ours, why = pair
    theirs.job.using(id="x").enqueue_sync()
    ours.job.using(id="x").enqueue_sync()
    ours.job.using(id="y").enqueue_sync()
    meant = theirs.sched.handle("x")
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("ids", lambda: ours.sched.cancel_sync(["y", meant])),
        ("ids", lambda: run(ours.sched.cancel([meant]))),
        ("ids", lambda: ours.sched.dead.redrive_sync(["y", meant])),
        ("ids", lambda: ours.sched.run_now_sync(ids=["y", meant])),
        ("ids", lambda: ours.sched.dead.discard_sync([meant])),
        ("ids", lambda: ours.sched.records.delete_sync([meant])),
        ("ids", lambda: ours.sched.records.list_by_ids_sync([meant])),
        ("id", lambda: ours.sched.records.get_sync(meant)),
        ("id", lambda: ours.sched.records.append_log_sync(meant, "x")),
        ("id", lambda: ours.sched.records.amend_sync(meant, user="ann")),
        ("id", lambda: ours.sched.get_sync(meant)),
        ("id", lambda: ours.sched.handle(meant)),
        ("job", lambda: ours.sched.why_sync(meant)),
        ("job", lambda: run(ours.sched.why(meant))),
        ("after", lambda: ours.job.using(after=[meant]).enqueue_sync()),
    ]
    for parameter, call in calls:
        refused(call, f"{parameter}: job 'x' {why}")
    with ours.sched.flow_sync() as flow:
        refused(lambda: flow.add(ours.job.using(after=[meant])), why)
        refused(lambda: flow.flow("inner", after=[meant]), why)
        flow.add(ours.job)
    assert ours.state("x") is ours.state("y") is theirs.state("x") is JobState.QUEUED
    assert ours.sched.stats_sync().states[JobState.QUEUED] == 3


def test_foreign_or_unsubmitted_node_is_refused(pair: Pair) -> None:
    theirs, ours, why = pair
    with theirs.sched.flow_sync() as flow:
        node = flow.add(theirs.job)
        refused(lambda: theirs.sched.cancel_sync([node]), "is not submitted")
        refused(lambda: theirs.sched.why_sync(node), "is not submitted")
    refused(lambda: ours.sched.cancel_sync([node]), why)
    refused(lambda: ours.job.using(after=[flow]).enqueue_sync(), why)
    assert theirs.sched.cancel_sync([node]) == [True]


def test_a_job_does_not_wait_for_children_of_elsewhere(pair: Pair) -> None:
    theirs, ours, why = pair
    meant = theirs.job.using(id="x").enqueue_sync()
    ours.job.using(id="x", pool="nobody").enqueue_sync()

    @ours.sched.job(max_attempts=3)
    def parent() -> Children:
        return Children(meant)

    handle = parent.enqueue_sync()
    with ours.sched.worker_sync(pools=["default"]), pytest.raises(JobFailedError, match=why):
        handle.result_sync(timeout=60)
    assert handle.record_sync().attempts == 1


@pytest.mark.redis
def test_handle_of_another_scheduler_on_the_store_is_accepted(namespace: str) -> None:
    url = shared_server().url
    one = Shop(url, namespace)
    other = Shop(url.replace("127.0.0.1", "localhost") + f"?namespace={namespace}")
    assert other.sched.namespace == namespace
    handle = one.job.enqueue_sync()
    behind = other.job.using(after=[handle]).enqueue_sync()
    assert [edge.id for edge in behind.record_sync().spec.depends_on] == [handle.id]
    assert other.sched.cancel_sync([handle]) == [True]
    one.sched.close_sync()
    other.sched.close_sync()


def test_handle_stays_with_its_scheduler_after_a_change_of_store() -> None:
    shop = Shop("memory://")
    handle = shop.sched.handle("x")
    with on_memory(shop.sched):
        shop.job.using(id="x").enqueue_sync()
        assert shop.sched.cancel_sync([handle]) == [True]


def test_backend_without_an_identity_is_a_separate_store() -> None:
    class Bare:
        """Has the methods of a backend, and inherits from nothing."""

    one, other = Scheduler("memory://"), Scheduler("memory://")
    one._backend = Bare()  # type: ignore[assignment]
    other._backend = Bare()  # type: ignore[assignment]
    handle: JobHandle[Any] = one.handle("x")
    refused(lambda: handle.id_for(other, "job"), "is of another store")
    other._backend = one._backend
    assert handle.id_for(other, "job") == "x"


def test_the_namespace_of_a_url_is_that_of_its_scheduler() -> None:
    sched = Scheduler("redis://localhost:1?namespace=docs", namespace="default")
    assert sched.namespace == "docs"
    assert "namespace='docs'" in repr(sched)
    refused(lambda: Scheduler("redis://localhost:1?namespace=a%20b"), "namespace in the url must be 1 to 64")
