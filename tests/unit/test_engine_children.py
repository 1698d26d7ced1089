"""The engine: jobs made by a running one, and jobs that are over when their children are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from queuehint.core.structures.edges import REACH_MAX
from queuehint.errors import CycleError, LeaseLostError
from queuehint.operations import FETCH_BYTES_MAX, FETCH_MAX, Enqueue, Exchange, Fetch, Verdict
from queuehint.testing.driver import Queue, job
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind
from queuehint.values.spec import Dependency

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DAY_MS = 24 * 3600 * 1000


def family(*children: str, budget: int = 1000, **fields: Any) -> Queue:
    """Return a queue where `p` runs at ["x"] and has made children at the same place; *fields* as of its policy."""
    queue = Queue(job("p", ["x"], **fields), budget=budget, now_ms=0)
    queue.start()
    queue.enqueue_from("p", *[job(each, ["x"], max_attempts=1, parent="p") for each in children])
    return queue


# --- made by a running job -------------------------------------------------------------------------------------------


def test_only_the_job_that_runs_under_its_token_makes_children() -> None:
    queue = Queue(job("p", ["x"]), job("q", ["x"]), now_ms=0)
    queue.start()
    token = queue.grants["p"].token
    queue.enqueue_from("p", job("a", parent="p"))
    before = queue.everything()
    for parent in [("p", token + 1), ("p", 0), ("q", token), ("nobody", token)]:
        with pytest.raises(LeaseLostError) as caught:
            queue.apply(Enqueue((job("b"),), parent=parent))
        assert (caught.value.job_id, caught.value.token) == parent
    assert queue.everything() == before
    queue.finish("p")
    with pytest.raises(LeaseLostError):
        queue.enqueue_from("p", job("b"))


def test_a_child_cannot_depend_on_its_parent() -> None:
    queue = Queue(job("p"), job("b", after=["p"]), job("c", after=["b"]), job("free"))
    queue.start()
    before = queue.everything()
    for dependency in ("p", "b", "c"):
        with pytest.raises(CycleError) as caught:
            queue.enqueue_from("p", job("ok", after=["free"]), job("child", after=["free", dependency]))
        assert caught.value.cycle == ("p", "child")
    assert queue.everything() == before
    queue.enqueue_from("p", job("child", after=["free"]), job("second", after=["child"]))


def test_a_child_cannot_depend_on_what_a_commit_will_have_wait_for_its_parent() -> None:
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


def test_a_job_that_waits_for_its_children_gives_up_its_lease_and_its_place() -> None:
    queue = family("a", "b")
    assert queue.start() == []
    queue.await_children("p", "a", "b", result=b"1")
    record = queue.record("p")
    assert (record.state, record.worker, record.seq, record.attempts) == (DEFERRED, None, None, 1)
    reason = queue.why("p")
    assert (reason.kind, reason.jobs) == (ReasonKind.DEPENDENCY, ("a", "b"))
    assert queue.renew("p") == [Verdict.LOST]
    assert queue.settle("p") is Verdict.LOST
    assert queue.start() == ["a"]
    queue.wait(30_000)
    assert queue.state("p") is DEFERRED


def test_the_last_child_s_end_makes_it_finished_with_its_result() -> None:
    queue = family("a", "b")
    queue.await_children("p", "a", "b", result=b'{"result":1}')
    queue.now_ms = 500
    assert queue.run() == ["a", "b"]
    record = queue.record("p")
    assert (record.state, record.result, record.ended_ms, record.cause) == (FINISHED, b'{"result":1}', 500, None)
    assert queue.is_clean


def test_what_depends_on_the_parent_waits_for_the_children_too() -> None:
    queue = family("a")
    queue.enqueue(job("after", after=["p"]))
    queue.await_children("p", "a")
    assert queue.run() == ["a", "after"]


@pytest.mark.parametrize("how", [OutcomeKind.FAILED, OutcomeKind.DISCARDED])
def test_a_child_that_fails_makes_its_parent_failed_once_the_others_are_over(how: OutcomeKind) -> None:
    queue = family("a", "b", "c")
    queue.await_children("p", "a", "b", "c", result=b"1")
    queue.start()
    queue.settle("a", how)
    assert (queue.state("p"), queue.why("p").jobs) == (DEFERRED, ("b", "c"))
    queue.start()
    queue.settle("b", OutcomeKind.FAILED)
    queue.run()
    record = queue.record("p")
    state = "FAILED" if how is OutcomeKind.FAILED else "CANCELED"
    assert (record.state, record.cause, record.result) == (FAILED, "child_failed", None)
    assert [(error.type, error.message) for error in record.errors] == [("child_failed", f"child a is {state}")]


def test_a_child_that_fails_is_ignored_if_the_parent_said_so() -> None:
    queue = family("a", "b")
    queue.await_children("p", "a", "b", result=b"1", on_child_failure="ignore")
    queue.start()
    queue.fail("a")
    queue.cancel("b")
    assert (queue.state("p"), queue.record("p").result) == (FINISHED, b"1")


def test_a_child_that_is_retried_is_not_over() -> None:
    queue = Queue(job("p"))
    queue.start()
    queue.enqueue_from("p", job("a", max_attempts=2))
    queue.await_children("p", "a")
    queue.start()
    queue.fail("a")
    assert queue.state("p") is DEFERRED
    queue.run()
    assert queue.state("p") is FINISHED


def test_children_that_are_all_over_end_the_job_at_once() -> None:
    queue = Queue(job("a"), job("p", ["x"]), job("behind", ["x"]))
    queue.start()
    queue.finish("a")
    queue.await_children("p", "a", result=b"1")
    assert (queue.state("p"), queue.record("p").result) == (FINISHED, b"1")
    assert queue.start() == ["behind"]
    queue.await_children("behind")
    assert queue.state("behind") is FINISHED


@pytest.mark.parametrize("on_child_failure, state", [("fail", FAILED), ("ignore", FINISHED)])
def test_a_child_that_has_failed_before_counts(on_child_failure: str, state: JobState) -> None:
    queue = Queue(job("a", max_attempts=1), job("b"), job("p"), job("q"), now_ms=0)
    queue.start()
    queue.fail("a")
    queue.await_children("p", "a", on_child_failure=on_child_failure)
    assert queue.state("p") is state
    queue.await_children("q", "b", "a", on_child_failure=on_child_failure)
    assert queue.why("q").jobs == ("b",)
    queue.finish("b")
    assert queue.state("q") is state
    assert queue.is_clean


def test_a_child_named_twice_is_waited_for_once() -> None:
    queue = family("a")
    queue.await_children("p", "a", "a")
    assert queue.edges().open_edges == 1
    queue.run()
    assert queue.state("p") is FINISHED


def test_any_job_may_be_a_child_of_several() -> None:
    queue = Queue(job("a"), job("p"), job("q"))
    queue.start()
    queue.await_children("p", "a")
    queue.await_children("q", "a")
    queue.finish("a")
    assert queue.states("p", "q") == "FINISHED FINISHED"


def test_children_may_have_children() -> None:
    queue = Queue(job("p"))
    queue.start()
    for parent, child in (("p", "c"), ("c", "g")):
        queue.enqueue_from(parent, job(child))
        queue.await_children(parent, child)
        assert queue.start() == [child]
    assert queue.states("p", "c", "g") == "DEFERRED DEFERRED STARTED"
    queue.finish("g")
    assert queue.states("p", "c", "g") == "FINISHED FINISHED FINISHED"


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


def test_a_child_that_does_not_exist_fails_the_job_for_good() -> None:
    queue = Queue(job("p", ["x"], max_attempts=5), job("a"), now_ms=0)
    queue.start()
    queue.finish("a")
    queue.await_children("p", "a", "nobody", result=b"1")
    record = queue.record("p")
    assert (record.state, record.cause, record.result, record.attempts) == (FAILED, "failed", None, 1)
    error = record.errors[0]
    assert (error.type, error.message) == ("queuehint.errors.UnknownDependencyError", "child nobody does not exist")
    assert queue.is_clean


def test_of_a_child_whose_record_has_expired_it_is_known_how_it_ended_while_its_id_is_kept() -> None:
    queue = Queue(*[job(each, max_attempts=1, retention_ms=0) for each in "afp"], job("q"), job("r"), now_ms=0)
    queue.start()
    queue.finish("a")
    queue.fail("f")
    queue.wait(0)
    assert (queue.find("a"), queue.find("f")) == (None, None)
    queue.await_children("p", "a", result=b"1")
    queue.await_children("q", "a", "f")
    assert queue.record("q").cause == "child_failed"
    queue.renew("r", lease_ms=DAY_MS)
    queue.wait(10 * 60_000)
    queue.await_children("r", "a")
    assert queue.record("r").cause == "failed"


@pytest.mark.parametrize("child", ["p", "b", "c"])
def test_a_child_that_waits_for_the_job_fails_it_for_good(child: str) -> None:
    queue = Queue(job("p"), job("b", after=["p"]), job("c", after=["b"]), job("a"))
    queue.start()
    queue.await_children("p", "a", child)
    record = queue.record("p")
    assert (record.state, record.errors[0].type) == (FAILED, "queuehint.errors.CycleError")
    assert record.errors[0].message == "a child waits for this job"
    assert queue.engine.table.edges.awaited() == ["p", "b"]


def test_a_circle_of_parents_is_found() -> None:
    queue = Queue(job("p"), job("q"))
    queue.start()
    queue.await_children("p", "q")
    queue.await_children("q", "p")
    assert queue.states("p", "q") == "FAILED FAILED"
    assert [queue.record(each).errors[0].type for each in "pq"] == ["child_failed", "queuehint.errors.CycleError"]


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
    f"whether a child waits for this job cannot be told by looking at {REACH_MAX} jobs",
)


@pytest.mark.parametrize(
    "length, error",
    [(REACH_MAX, ("queuehint.errors.CycleError", "a child waits for this job")), (REACH_MAX + 1, UNSEARCHABLE)],
)
def test_a_circle_is_found_or_refused_however_long(length: int, error: tuple[str, str]) -> None:
    queue, chain = chain_after_p(length)
    queue.await_children("p", chain[-1])
    record = queue.record("p")
    assert (record.state, record.errors[0].type, record.errors[0].message) == (FAILED, *error)
    queue.wait(0)
    assert queue.state("c0") is DEFERRED
    queue.redrive("p")
    assert queue.start() == ["p"]


@pytest.mark.parametrize("is_circle", [True, False])
def test_what_is_far_behind_many_others_is_found_from_the_other_end(is_circle: bool) -> None:
    others = range(REACH_MAX - 1)
    queue = Queue(job("p"), job("other"), *[job(f"x{number}") for number in others[1:]], checked=False)
    queue.start()
    queue.enqueue(job("m", after=["p"]), job("n", after=["p"]), job("q", after=["m", "n"]))
    queue.enqueue(*[job(f"y{number}", after=[f"x{number}"]) for number in others[1:]])
    queue.enqueue(job("z", after=[f"y{number}" for number in others[1:]]))
    queue.enqueue(*[job(each, after=[before]) for before, each in pairwise(["p" if is_circle else "other", *"bcdef"])])
    queue.enqueue(job("child", after=["f", "z"]))
    queue.await_children("p", "child")
    record = queue.record("p")
    assert record.state is (FAILED if is_circle else DEFERRED)
    assert [error.type for error in record.errors] == ["queuehint.errors.CycleError"] * is_circle


def test_what_has_many_to_wait_for_is_a_child_as_long_as_few_wait_for_the_job() -> None:
    queue, chain = chain_after_p(REACH_MAX + 1, "other")
    queue.await_children("other", chain[-1])
    assert queue.state("other") is DEFERRED
    queue.finish("p")
    queue.run()
    assert queue.state("other") is FINISHED


def test_a_job_that_many_wait_for_has_no_children_that_wait_for_many() -> None:
    queue, chain = chain_after_p(REACH_MAX + 1, "other")
    queue.enqueue(*[job(f"b{number}", after=["other"]) for number in range(REACH_MAX)])
    queue.enqueue(job("last", after=["other"]))
    queue.await_children("other", chain[-1])
    record = queue.record("other")
    assert (record.state, record.errors[0].type, record.errors[0].message) == (FAILED, *UNSEARCHABLE)


def test_while_a_commit_goes_on_no_search_from_the_other_end_says_that_there_is_no_circle() -> None:
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


def test_no_more_than_a_thousand_children_are_settled_with() -> None:
    queue = Queue(job("p"))
    queue.start()
    with pytest.raises(ValueError, match="children: 1001 in one operation, limit 1000"):
        queue.settle("p", OutcomeKind.CHILDREN, children=("a",) * 1001)
    assert queue.state("p") is STARTED


# --- cancellation, redrive -------------------------------------------------------------------------------------------


def test_a_cancellation_that_was_asked_for_wins() -> None:
    queue = family("a")
    queue.cancel("p")
    queue.await_children("p", "a", result=b"1")
    record = queue.record("p")
    assert (record.state, record.cause, record.result) == (CANCELED, "canceled", None)
    assert queue.run() == ["a"]
    assert queue.is_clean


def test_a_job_that_waits_for_its_children_is_canceled_at_once_and_they_go_on() -> None:
    queue = family("a", "b")
    queue.await_children("p", "a", "b", result=b"1")
    assert queue.cancel("p") == [Verdict.DONE]
    assert (queue.state("p"), queue.record("p").result) == (CANCELED, None)
    assert queue.run() == ["a", "b"]
    assert queue.is_clean


def test_a_redriven_parent_runs_its_handler_again() -> None:
    queue = family("a")
    queue.await_children("p", "a", result=b"1")
    queue.start()
    queue.fail("a")
    assert queue.state("p") is FAILED
    assert queue.redrive("p") == [Verdict.DONE]
    assert queue.start() == ["p"]
    assert (queue.grants["p"].attempt, queue.record("p").result) == (1, None)
    queue.enqueue_from("p", job("b", ["x"]))
    queue.await_children("p", "b", result=b"2")
    queue.run()
    assert (queue.state("p"), queue.record("p").result) == (FINISHED, b"2")


def test_a_parent_that_failed_by_its_child_holds_no_place() -> None:
    for on_dead in ("hold", "cancel_behind"):
        queue = family("a", on_dead=on_dead)
        queue.enqueue(job("behind", ["x"]))
        queue.await_children("p", "a")
        queue.start()
        queue.fail("a")
        assert queue.state("p") is FAILED
        assert queue.start() == ["behind"]


def test_a_parent_whose_children_are_over_with_a_failure_dies_on_its_place() -> None:
    queue = Queue(job("a"), job("p", ["x"], on_dead="hold"), job("behind", ["x"]))
    queue.cancel("a")
    queue.start()
    queue.await_children("p", "a")
    assert queue.state("p") is FAILED
    assert (queue.start(), queue.why("behind").kind) == ([], ReasonKind.DEAD_HOLD)


def test_a_redriven_child_does_not_hold_its_parent_up() -> None:
    queue = family("a", "b")
    queue.await_children("p", "a", "b")
    queue.start()
    queue.fail("a")
    queue.redrive("a")
    assert queue.why("p").jobs == ("b",)
    assert queue.run() == ["b", "a"]
    assert queue.state("p") is FAILED


def test_a_child_may_be_a_dependency_of_its_parent_as_well() -> None:
    queue = Queue(job("x", max_attempts=1), now_ms=0)
    queue.enqueue(job("p", after=["x"], on_dependency_failure="run"))
    queue.start()
    queue.fail("x")
    assert queue.start() == ["p"]
    queue.redrive("x")
    queue.await_children("p", "x")
    queue.start()
    queue.settle("x", result=b"1")
    assert queue.state("p") is FINISHED
    assert queue.is_clean


def test_a_caller_has_no_children() -> None:
    queue = Queue(job("a"), job("c", presence_ms=1000, pool="@c"))
    grant = queue.apply(Exchange("@c", (), ("@c",), 1)).grants[0]
    outcome = Outcome(job_id="c", token=grant.token, kind=OutcomeKind.CHILDREN, children=("a",))
    assert queue.exchange(outcome).verdicts == (Verdict.DONE,)
    assert (queue.state("c"), queue.record("c").cause) == (CANCELED, "waiter_lost")


# --- reading what dependencies have brought --------------------------------------------------------------------------


def fetch(queue: Queue, job_id: str, *ids: str) -> list[tuple[JobState | None, bytes | None]]:
    reply = queue.apply(Fetch(job_id, queue.grants[job_id].token, ids))
    assert reply.verdict is Verdict.DONE
    return list(reply.results)


def test_a_running_job_reads_what_it_depends_on_and_nothing_else() -> None:
    queue = Queue(job("a"), job("f", max_attempts=1), job("c", retention_ms=0), job("stranger"), now_ms=0)
    edges: list[Any] = ["a", Dependency("f", when="done"), Dependency("c", when="done")]
    queue.enqueue(job("d", after=edges))
    queue.cancel("c")
    queue.start()
    queue.settle("a", result=b"1")
    queue.fail("f")
    queue.settle("stranger", result=b"2")
    assert queue.start() == ["d"]
    assert fetch(queue, "d", "f", "a", "c", "stranger", "nobody", "a") == [
        (FAILED, None),
        (FINISHED, b"1"),
        (None, None),
        (None, None),
        (None, None),
        (FINISHED, b"1"),
    ]
    assert fetch(queue, "d") == []


def test_only_who_holds_the_lease_may_read() -> None:
    queue = Queue(job("a"), job("b", after=["a"]), job("c"))
    queue.start(1)
    queue.settle("a", result=b"1")
    queue.start()
    token = queue.grants["b"].token
    for job_id, wrong in [("b", token + 1), ("nobody", token), ("c", token)]:
        reply = queue.apply(Fetch(job_id, wrong, ("a",)))
        assert (reply.verdict, reply.results) == (Verdict.LOST, ())
    queue.finish("b")
    assert queue.apply(Fetch("b", token, ("a",))).verdict is Verdict.LOST


def test_a_job_without_dependencies_reads_nothing() -> None:
    queue = Queue(job("a"), job("b"))
    queue.start()
    queue.settle("a", result=b"1")
    assert fetch(queue, "b", "a") == [(None, None)]


def test_results_that_are_large_together_come_in_several_replies() -> None:
    ids = [f"a{number}" for number in range(6)]
    queue = Queue(*[job(each) for each in ids], checked=False)
    queue.enqueue(job("d", after=ids))
    queue.start()
    for each in ids:
        queue.settle(each, result=b"x" * (FETCH_BYTES_MAX // 4))
    queue.start()
    assert len(fetch(queue, "d", *ids)) == 4
    queue.engine.table.jobs["a0"].result = b"x" * (2 * FETCH_BYTES_MAX)
    assert len(fetch(queue, "d", *ids)) == 1
    with pytest.raises(ValueError, match="ids: 101 in one operation, limit 100"):
        queue.apply(Fetch("d", 1, ("a",) * (FETCH_MAX + 1)))
