"""The engine: children enqueued by a running job, and parents that end with their children."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.core.structures.edges import REACH_MAX
from queuehint.errors import CycleError
from queuehint.testing.driver import Queue, job
from queuehint.values.record import JobState

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DAY_MS = 24 * 3600 * 1000


def family(*children: str, budget: int = 1000, **fields: Any) -> Queue:
    """Return a queue where `p` runs at ["x"] and has made children at the same place; *fields* as of its policy."""
    queue = Queue(job("p", ["x"], **fields), budget=budget, now_ms=0)
    queue.start()
    queue.enqueue_from("p", *[job(each, ["x"], max_attempts=1, parent="p") for each in children])
    return queue


# --- made by a running job -------------------------------------------------------------------------------------------


def test_child_cannot_depend_on_a_staged_dependent_of_its_parent() -> None:
    queue = Queue(job("p"), budget=1)
    queue.stage("T", *[job(f"x{number}", pool="other") for number in range(9)], job("b", after=["p"]))
    queue.start(1)
    queue.commit("T")
    assert queue.why("b").jobs == ()
    with pytest.raises(CycleError):
        queue.enqueue_from("p", job("child", after=["b"]))
    queue.await_children("p", "b")
    assert (queue.state("p"), queue.record("p").errors[0].type) == (FAILED, "queuehint.errors.CycleError")


# --- waiting for children --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 3])
def test_a_thousand_children_end_their_parent_once(budget: int) -> None:
    queue = Queue(job("p"), budget=budget, checked=False)
    queue.start()
    ids = [f"c{number}" for number in range(1000)]
    queue.enqueue(*[job(each) for each in ids])
    queue.await_children("p", *ids)
    while queue.start():
        queue.exchange(*[queue.outcome(each) for each in ids if queue.state(each) is STARTED])
    queue.wait(0)
    assert queue.state("p") is FINISHED
    assert queue.is_clean


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("child", ["p", "b", "c"])
def test_child_that_waits_for_its_job_fails_it_for_good(child: str) -> None:
    queue = Queue(job("p"), job("b", after=["p"]), job("c", after=["b"]), job("a"))
    queue.start()
    queue.await_children("p", "a", child)
    record = queue.record("p")
    assert (record.state, record.errors[0].type) == (FAILED, "queuehint.errors.CycleError")
    assert record.errors[0].message == "a child waits for this job"
    assert queue.engine.table.edges.awaited() == ["p", "b"]


def chain_after_p(length: int, *others: str) -> tuple[Queue, list[str]]:
    """Return a queue in which `p` and others run, and a line of jobs of which the first waits for `p`."""
    queue = Queue(job("p"), *map(job, others), checked=False)
    queue.start()
    chain = [f"c{number}" for number in range(length)]
    specs = [job(each, after=[chain[at - 1]] if at else ["p"]) for at, each in enumerate(chain)]
    for at in range(0, length, 1000):
        queue.enqueue(*specs[at : at + 1000])
    return queue, chain


UNSEARCHABLE = (
    "queuehint.errors.DependencyError",
    f"whether a child waits for this job cannot be decided within {REACH_MAX} jobs",
)


@pytest.mark.parametrize(
    "length, error",
    [(REACH_MAX, ("queuehint.errors.CycleError", "a child waits for this job")), (REACH_MAX + 1, UNSEARCHABLE)],
)
def test_a_cycle_is_found_or_refused_however_long(length: int, error: tuple[str, str]) -> None:
    queue, chain = chain_after_p(length)
    queue.await_children("p", chain[-1])
    record = queue.record("p")
    assert (record.state, record.errors[0].type, record.errors[0].message) == (FAILED, *error)
    queue.wait(0)
    assert queue.state("c0") is DEFERRED
    queue.redrive("p")
    assert queue.start() == ["p"]


@pytest.mark.parametrize("is_cycle", [True, False])
def test_cycle_behind_many_dependencies_is_found_from_the_other_end(is_cycle: bool) -> None:
    others = range(REACH_MAX - 1)
    queue = Queue(job("p"), job("other"), *[job(f"x{number}") for number in others[1:]], checked=False)
    queue.start()
    queue.enqueue(job("m", after=["p"]), job("n", after=["p"]), job("q", after=["m", "n"]))
    queue.enqueue(*[job(f"y{number}", after=[f"x{number}"]) for number in others[1:]])
    queue.enqueue(job("z", after=[f"y{number}" for number in others[1:]]))
    queue.enqueue(*[job(each, after=[before]) for before, each in pairwise(["p" if is_cycle else "other", *"bcdef"])])
    queue.enqueue(job("child", after=["f", "z"]))
    queue.await_children("p", "child")
    record = queue.record("p")
    assert record.state is (FAILED if is_cycle else DEFERRED)
    assert [error.type for error in record.errors] == ["queuehint.errors.CycleError"] * is_cycle


def test_child_with_many_dependencies_requires_a_parent_with_few_dependents() -> None:
    queue, chain = chain_after_p(REACH_MAX + 1, "other")
    queue.await_children("other", chain[-1])
    assert queue.state("other") is DEFERRED
    queue.finish("p")
    queue.run()
    assert queue.state("other") is FINISHED


def test_job_with_many_dependents_has_no_child_with_many_dependencies() -> None:
    queue, chain = chain_after_p(REACH_MAX + 1, "other")
    queue.enqueue(*[job(f"b{number}", after=["other"]) for number in range(REACH_MAX)])
    queue.enqueue(job("last", after=["other"]))
    queue.await_children("other", chain[-1])
    record = queue.record("other")
    assert (record.state, record.errors[0].type, record.errors[0].message) == (FAILED, *UNSEARCHABLE)


def test_cycle_search_is_inconclusive_during_a_commit() -> None:
    queue = Queue(job("p"), checked=False)
    queue.start()
    for part in range(4):
        queue.stage("S", *[job(f"{part}-{number}") for number in range(900)])
    queue.stage("S", job("s", after=["p"]))
    queue.commit("S")
    queue.enqueue(*[job(f"c{number}", after=[f"c{number - 1}" if number else "s"]) for number in range(REACH_MAX)])
    queue.enqueue(job("child", after=[f"c{REACH_MAX - 1}"]))
    queue.await_children("p", "child")
    assert queue.record("p").errors[0].message == UNSEARCHABLE[1]


# --- cancellation, redrive -------------------------------------------------------------------------------------------


def test_a_parent_that_failed_by_its_child_holds_no_place() -> None:
    for on_dead in ("hold", "cancel_behind"):
        queue = family("a", on_dead=on_dead)
        queue.enqueue(job("behind", ["x"]))
        queue.await_children("p", "a")
        queue.start()
        queue.fail("a")
        assert queue.state("p") is FAILED
        assert queue.start() == ["behind"]


# --- reading what dependencies have brought --------------------------------------------------------------------------


def fetch(queue: Queue, job_id: str, *ids: str) -> list[tuple[JobState | None, bytes | None]]:
    reply = queue.apply(op.Fetch(job_id, queue.grants[job_id].token, ids))
    assert reply.verdict is op.Verdict.DONE
    return list(reply.results)


def test_results_that_are_large_together_come_in_several_replies() -> None:
    ids = [f"a{number}" for number in range(6)]
    queue = Queue(*[job(each) for each in ids], checked=False)
    queue.enqueue(job("d", after=ids))
    queue.start()
    for each in ids:
        queue.settle(each, result=b"x" * (op.FETCH_BYTES_MAX // 4))
    queue.start()
    assert len(fetch(queue, "d", *ids)) == 4
    queue.engine.table.jobs["a0"].result = b"x" * (2 * op.FETCH_BYTES_MAX)
    assert len(fetch(queue, "d", *ids)) == 1
    with pytest.raises(ValueError, match="ids: 101 in one operation, limit 100"):
        queue.apply(op.Fetch("d", 1, ("a",) * (op.FETCH_MAX + 1)))
