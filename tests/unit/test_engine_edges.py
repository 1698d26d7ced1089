"""The engine: explicit edges, what the end of a dependency does, and how graphs of jobs go."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import pytest

from queuehint.core.engine import Engine
from queuehint.core.structures.job import Job
from queuehint.errors import CycleError, DuplicateJobError, InvalidJobError, UnknownDependencyError
from queuehint.operations import EDGES_PER_SUBMISSION_MAX, Verdict
from queuehint.testing.driver import Queue, job
from queuehint.testing.invariants import check_circles
from queuehint.values.outcome import OutcomeKind
from queuehint.values.policy import ON_DEPENDENCY_FAILURE
from queuehint.values.record import JobState
from queuehint.values.report import EdgeStats, ReasonKind
from queuehint.values.spec import Dependency, JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DAY_MS = 24 * 3600 * 1000
MINUTE = 60_000


def ended(how: str, **fields: Any) -> Queue:
    """Return a queue in which `a` has ended so."""
    queue = Queue(job("a", max_attempts=1, **fields))
    end(queue, "a", how)
    return queue


def end(queue: Queue, job_id: str, how: str) -> None:
    if how == "canceled":
        queue.cancel(job_id)
        return
    if queue.state(job_id) is QUEUED:
        queue.start()
    if how == "failed":
        queue.fail(job_id, final=True)
    elif how == "discarded":
        queue.settle(job_id, OutcomeKind.DISCARDED)
    else:
        queue.finish(job_id)


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_job_waits_for_what_it_depends_on_and_then_takes_its_place() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["y"], after=["a"]), now_ms=1000)
    record = queue.record("b")
    assert (record.state, record.seq, record.queued_ms) == (DEFERRED, None, None)
    assert queue.why("b").kind is ReasonKind.DEPENDENCY
    assert queue.start() == ["a"]
    queue.now_ms = 2000
    queue.finish("a")
    assert (queue.state("b"), queue.record("b").queued_ms) == (QUEUED, 2000)
    assert queue.run() == ["b"]
    assert queue.is_clean


def test_a_job_that_waits_for_others_holds_no_place() -> None:
    queue = Queue(job("a", ["elsewhere"]), job("waits", ["x"], after=["a"]), job("newer", ["x"]))
    assert queue.start() == ["a", "newer"]
    queue.finish("a")
    assert queue.start() == []
    queue.finish("newer")
    assert queue.start() == ["waits"]


def test_a_job_may_depend_on_one_that_stands_behind_it_on_its_path() -> None:
    queue = Queue(job("first", ["x"], after=["second"]), job("second", ["x"]))
    assert queue.run() == ["second", "first"]
    assert queue.is_clean


def test_dependents_take_their_places_in_order_of_enqueue() -> None:
    queue = Queue(job("a"))
    queue.enqueue(job("d2", ["x"], after=["a"]), job("d1", ["x"], after=["a"]))
    queue.enqueue(job("d3", ["x"], after=["a"]))
    assert queue.run(10) == ["a", "d2", "d1", "d3"]


def test_a_dependency_named_twice_is_one_edge() -> None:
    queue = Queue(job("a"), job("b"))
    spec = job("c", after=["a", "b", "a", "b", "b"]).check()
    assert [edge.id for edge in spec.depends_on] == ["a", "b"]
    queue.enqueue(spec)
    assert queue.edges().open_edges == 2


@pytest.mark.parametrize("start_first", [False, True])
def test_a_job_that_is_scheduled_and_dependent_waits_for_both(start_first: bool) -> None:
    queue = Queue(job("a"), now_ms=0)
    queue.enqueue(job("b", ["x"], after=["a"], delay_ms=1000))
    assert (queue.state("b"), queue.why("b").kind) == (SCHEDULED, ReasonKind.TIME)
    queue.start()
    if start_first:
        queue.finish("a")
        assert queue.state("b") is SCHEDULED
        queue.wait(1000)
    else:
        queue.wait(1000)
        assert (queue.state("b"), queue.why("b").jobs) == (DEFERRED, ("a",))
        queue.finish("a")
    assert queue.state("b") is QUEUED
    assert queue.run() == ["b"]


def test_a_scheduled_job_is_canceled_by_its_dependency_before_its_time() -> None:
    queue = Queue(job("a", max_attempts=1), now_ms=0)
    queue.enqueue(job("b", after=["a"], delay_ms=1000, on_dependency_failure="cancel"))
    end(queue, "a", "failed")
    assert (queue.state("b"), queue.record("b").cause) == (CANCELED, "dependency a has failed")
    queue.wait(1000)
    assert queue.state("b") is CANCELED


def test_the_time_to_start_within_counts_while_a_job_waits_for_others() -> None:
    queue = Queue(job("a"), now_ms=0)
    queue.enqueue(job("b", after=["a"], start_within_ms=1000), job("c", after=["b"], on_dependency_failure="cancel"))
    queue.start()
    queue.wait(1000)
    assert (queue.record("b").cause, queue.record("c").cause) == ("expired", "dependency b was canceled")
    queue.finish("a")
    assert queue.is_clean


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_a_line_runs_one_after_the_other() -> None:
    ids = [str(number) for number in range(20)]
    queue = Queue(*[job(job_id, after=ids[:number][-1:]) for number, job_id in enumerate(ids)])
    assert queue.run(100) == ids
    assert queue.is_clean


def test_a_diamond_joins_once_both_its_sides_are_over() -> None:
    queue = Queue(job("top"), job("left", after=["top"]), job("right", after=["top"]))
    queue.enqueue(job("bottom", after=["left", "right"]))
    assert queue.start() == ["top"]
    queue.finish("top")
    assert queue.start() == ["left", "right"]
    queue.finish("right")
    assert queue.start() == []
    queue.finish("left")
    assert queue.start() == ["bottom"]


@pytest.mark.parametrize("budget", [1, 7, 1000])
def test_one_end_releases_many_in_order(budget: int) -> None:
    queue = Queue(job("a"), budget=budget)
    queue.enqueue(*[job(f"d{number:02}", [str(number)], after=["a"]) for number in range(50)])
    queue.start()
    queue.finish("a")
    queue.wait(0)
    assert queue.start() == [f"d{number:02}" for number in range(50)]


@pytest.mark.parametrize("budget", [1, 7, 1000])
def test_many_ends_release_one_when_the_last_is_over(budget: int) -> None:
    ids = [f"p{number:02}" for number in range(50)]
    queue = Queue(*[job(job_id) for job_id in ids], budget=budget)
    queue.enqueue(job("d", after=ids))
    queue.start()
    queue.finish(*ids[:-1])
    queue.wait(0)
    assert queue.why("d").jobs == (ids[-1],)
    queue.finish(ids[-1])
    queue.wait(0)
    assert queue.start() == ["d"]


def test_the_complex_case_goes_step_by_step() -> None:
    """D after A, B and C; E after A and B; F after C."""
    queue = Queue(job("A"), job("B"), job("C"))
    queue.enqueue(job("D", after="ABC"), job("E", after="AB"), job("F", after="C"))
    jobs = queue.engine.table.jobs

    def waiting() -> dict[str, str]:
        return {each: "".join(other for other in "DEF" if each in jobs[other].blocked) for each in "ABC"}

    def blocked() -> dict[str, str]:
        return {each: "".join(sorted(jobs[each].blocked)) for each in "DEF"}

    assert waiting() == {"A": "DE", "B": "DE", "C": "DF"}
    assert blocked() == {"D": "ABC", "E": "AB", "F": "C"}
    assert queue.start() == ["A", "B", "C"]
    queue.finish("A")
    assert (waiting(), blocked()) == ({"A": "", "B": "DE", "C": "DF"}, {"D": "BC", "E": "B", "F": "C"})
    assert queue.start() == []
    queue.finish("C")
    assert (waiting(), blocked()) == ({"A": "", "B": "DE", "C": ""}, {"D": "B", "E": "B", "F": ""})
    assert queue.start() == ["F"]
    queue.finish("B")
    assert (waiting(), blocked()) == ({"A": "", "B": "", "C": ""}, {"D": "", "E": "", "F": ""})
    assert queue.start() == ["D", "E"]
    queue.finish("D", "E", "F")
    assert queue.is_clean


# --- a fan-in, however its parents end -------------------------------------------------------------------------------


def groupings(ids: str) -> Iterator[list[str]]:
    """All ways to end jobs in some order, in one or several exchanges."""
    for order in permutations(ids):
        for cuts in product([False, True], repeat=len(ids) - 1):
            groups = [order[0]]
            for job_id, cut in zip(order[1:], cuts, strict=True):
                if cut:
                    groups.append(job_id)
                else:
                    groups[-1] += job_id
            yield groups


def count_places(engine: Engine) -> list[str]:
    """Return a list to which each job is added when it becomes QUEUED."""
    queued: list[str] = []
    become = engine.table.become

    def watched(job: Job, state: JobState) -> None:
        if state is QUEUED:
            queued.append(job.id)
        become(job, state)

    engine.table.become = watched  # type: ignore[method-assign]
    return queued


@pytest.mark.parametrize("budget", [1, 2, 1000])
@pytest.mark.parametrize("kinds", ["fff", "fFf", "FcF", "ccc"])
def test_a_fan_in_is_queued_exactly_once_however_its_parents_end(kinds: str, budget: int) -> None:
    ends = {"f": OutcomeKind.FINISHED, "F": OutcomeKind.FAILED, "c": OutcomeKind.DISCARDED}
    for groups in groupings("abc"):
        queue = Queue(*[job(each, max_attempts=1) for each in "abc"], budget=budget)
        queue.enqueue(job("join", after="abc", on_dependency_failure="run"), job("other", after="ac"))
        queued = count_places(queue.engine)
        queue.start()
        for group in groups:
            queue.exchange(*[queue.outcome(each, ends[kinds["abc".index(each)]]) for each in group])
            assert (queue.state("join") is QUEUED) <= (group is groups[-1])
        queue.wait(0)
        assert queued.count("join") == 1, groups
        assert queue.state("join") is QUEUED


def test_a_fan_in_of_which_some_are_over_waits_for_the_rest() -> None:
    queue = Queue(job("a"), job("b"), job("c"))
    queue.start()
    queue.finish("a", "b")
    queue.enqueue(job("d", after="abc"))
    assert queue.why("d").jobs == ("c",)
    queue.finish("c")
    assert queue.run() == ["d"]


# --- what is over before ---------------------------------------------------------------------------------------------


def test_a_finished_dependency_opens_no_edge() -> None:
    queue = ended("finished")
    reply = queue.enqueue(job("b", after=["a"]))
    assert (reply.jobs[0].state, queue.edges().open_edges) == (QUEUED, 0)


@pytest.mark.parametrize(
    "how, on_failure, state, cause",
    [
        ("failed", "wait", DEFERRED, None),
        ("failed", "cancel", CANCELED, "dependency a has failed"),
        ("failed", "run", QUEUED, None),
        ("canceled", "wait", QUEUED, None),
        ("canceled", "cancel", CANCELED, "dependency a was canceled"),
        ("canceled", "run", QUEUED, None),
    ],
)
def test_one_that_is_over_is_judged_at_enqueue(how: str, on_failure: str, state: JobState, cause: str | None) -> None:
    queue = ended(how)
    reply = queue.enqueue(job("b", ["x"], after=["a"], on_dependency_failure=on_failure))
    assert (reply.jobs[0].state, reply.jobs[0].created) == (state, True)
    assert (queue.state("b"), queue.record("b").cause) == (state, cause)
    assert queue.stats().enqueued == 2


def test_a_job_canceled_at_enqueue_is_over_at_once_with_all_that_depends_on_it() -> None:
    queue = ended("failed")
    queue.enqueue(
        job("c", ["x"], after=["b"], on_dependency_failure="cancel"),
        job("b", ["x"], after=["a"], on_dependency_failure="cancel", key="k", on_conflict="reject"),
        job("d", ["x"], after=["b"], on_dependency_failure="run"),
    )
    queue.wait(0)
    assert queue.states("b", "c", "d") == "CANCELED CANCELED QUEUED"
    assert queue.record("c").cause == "dependency b was canceled"
    assert queue.record("b").ended_ms == queue.now_ms
    assert queue.enqueue(job("e", key="k", on_conflict="reject")).jobs[0].created
    assert queue.run() == ["d", "e"]
    queue.discard("a")
    assert queue.is_clean


def test_the_first_dependency_that_cancels_a_job_is_its_cause() -> None:
    queue = Queue(*[job(each, max_attempts=1) for each in "abc"])
    queue.start()
    queue.finish("a")
    queue.fail("c")
    queue.fail("b")
    queue.enqueue(job("d", after="acb", on_dependency_failure="cancel"))
    assert queue.record("d").cause == "dependency c has failed"


# --- conditions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "edge, how, state, cause",
    [
        (Dependency("a", when="failure"), "finished", CANCELED, "dependency a has finished"),
        (Dependency("a", when="failure"), "failed", QUEUED, None),
        (Dependency("a", when="failure"), "canceled", CANCELED, "dependency a was canceled"),
        (Dependency("a", when="done"), "finished", QUEUED, None),
        (Dependency("a", when="done"), "failed", QUEUED, None),
        (Dependency("a", when="done"), "canceled", QUEUED, None),
        (Dependency("a", data=True), "finished", QUEUED, None),
        (Dependency("a", data=True), "failed", DEFERRED, None),
        (Dependency("a", data=True), "canceled", CANCELED, "dependency a was canceled"),
        (Dependency("a", when="done", data=True), "failed", CANCELED, "dependency a has failed"),
        (Dependency("a", when="done", data=True), "canceled", CANCELED, "dependency a was canceled"),
    ],
)
def test_a_condition_says_which_ends_a_job_runs_after(
    edge: Dependency, how: str, state: JobState, cause: str | None, late: bool
) -> None:
    queue = Queue(job("a", max_attempts=1))
    if late:
        end(queue, "a", how)
    queue.enqueue(job("b", after=[edge]))
    if not late:
        assert queue.state("b") is DEFERRED
        end(queue, "a", how)
    assert (queue.state("b"), queue.record("b").cause) == (state, cause)


def test_an_edge_that_carries_data_is_never_dropped() -> None:
    queue = Queue(job("a", max_attempts=1))
    queue.enqueue(job("b", after=[Dependency("a", data=True)], on_dependency_failure="run"))
    end(queue, "a", "failed")
    assert (queue.state("b"), queue.record("b").cause) == (CANCELED, "dependency a has failed")


def test_a_job_of_many_conditions_runs_when_each_is_met() -> None:
    queue = Queue(*[job(each, max_attempts=1) for each in "abc"])
    edges = [Dependency("a"), Dependency("b", when="failure"), Dependency("c", when="done")]
    queue.enqueue(job("d", after=edges), job("e", after=edges))
    queue.start()
    queue.fail("b")
    queue.settle("c", OutcomeKind.DISCARDED)
    assert queue.why("d").jobs == ("a",)
    queue.finish("a")
    assert queue.states("d", "e") == "QUEUED QUEUED"


# --- every way a dependency ends, every policy, every moment ---------------------------------------------------------

OUTCOMES = ("finished", "failed", "canceled", "reaped", "expired")
AFTER_END = {
    ("finished", "wait"): QUEUED,
    ("finished", "cancel"): QUEUED,
    ("finished", "run"): QUEUED,
    ("failed", "wait"): DEFERRED,
    ("failed", "cancel"): CANCELED,
    ("failed", "run"): QUEUED,
    ("reaped", "wait"): DEFERRED,
    ("reaped", "cancel"): CANCELED,
    ("reaped", "run"): QUEUED,
    ("canceled", "wait"): QUEUED,
    ("canceled", "cancel"): CANCELED,
    ("canceled", "run"): QUEUED,
    ("expired", "wait"): QUEUED,
    ("expired", "cancel"): CANCELED,
    ("expired", "run"): QUEUED,
}


class Cell:
    """One cell of the matrix: a dependency `a` that ends so, beside one that finishes, and a dependent `b`."""

    def __init__(self, how: str, policy: str) -> None:
        self.how = how
        self.queue = Queue(now_ms=0)
        fields: dict[str, Any] = {"max_attempts": 1, "max_losses": 1}
        if how == "expired":
            fields["start_within_ms"] = 1000
        self.queue.enqueue(job("a", ["x"], **fields), job("beside", ["y"]))
        self.spec = job("b", ["z"], after=["a", "beside"], on_dependency_failure=policy)

    def end_both(self) -> None:
        """End the dependency and what is beside it in one exchange."""
        queue = self.queue
        if self.how == "expired":
            queue.pause("x")
        queue.start(lease_ms=30_000)
        settle = []
        if self.how == "reaped":
            queue.renew("beside", lease_ms=120_000)
            queue.now_ms += 30_000
        elif self.how == "expired":
            queue.now_ms += 1000
        elif self.how == "canceled":
            queue.cancel("a")
            settle.append(queue.outcome("a", OutcomeKind.RELEASED))
        else:
            settle.append(queue.outcome("a", OutcomeKind(self.how)))
        queue.exchange(queue.outcome("beside"), *settle)

    def expire_records(self) -> None:
        self.queue.wait(8 * DAY_MS)
        assert (self.queue.find("a") is not None) == (self.how == "finished"), "a result is kept for b"


@pytest.mark.parametrize("policy", ON_DEPENDENCY_FAILURE)
@pytest.mark.parametrize("how", OUTCOMES)
@pytest.mark.parametrize("moment", ["before enqueue", "while DEFERRED", "after record expiry"])
def test_a_dependent_reaches_its_state_whatever_becomes_of_its_dependency(moment: str, how: str, policy: str) -> None:
    cell = Cell(how, policy)
    queue = cell.queue
    if moment != "before enqueue":
        queue.enqueue(cell.spec)
        assert queue.state("b") is DEFERRED
    cell.end_both()
    if moment == "before enqueue":
        queue.enqueue(cell.spec)
    assert queue.state("b") is AFTER_END[how, policy]
    if moment == "after record expiry":
        cell.expire_records()
        if AFTER_END[how, policy] is QUEUED:
            assert queue.run() == ["b"]
            queue.wait(DAY_MS)
        else:
            assert queue.find("b") is None or queue.record("b").cause == "dependency a has expired"
        with pytest.raises(UnknownDependencyError):
            queue.enqueue(job("c", after=["a"], on_dependency_failure=policy))


# --- failure, redrive, release ---------------------------------------------------------------------------------------


def test_a_job_behind_a_dead_one_is_released_by_a_redrive_that_succeeds() -> None:
    queue = Queue(job("a", max_attempts=1), job("b", ["x"], after=["a"]), job("c", ["x"], after=["b"]))
    end(queue, "a", "failed")
    reason = queue.why("b")
    assert (reason.kind, reason.jobs, reason.stuck) == (ReasonKind.DEAD_DEPENDENCY, ("a",), True)
    assert queue.why("c").kind is ReasonKind.DEPENDENCY
    assert queue.stats().stuck["dead_dependency"] == 1
    queue.redrive("a")
    assert (queue.why("b").kind, queue.stats().stuck["dead_dependency"]) == (ReasonKind.DEPENDENCY, 0)
    end(queue, "a", "failed")
    assert queue.state("b") is DEFERRED
    queue.redrive("a")
    assert queue.run() == ["a", "b", "c"]
    assert queue.is_clean


def test_a_dead_job_that_is_discarded_counts_as_canceled() -> None:
    queue = Queue(job("a", max_attempts=1))
    queue.enqueue(job("drops", after=["a"]), job("needs", after=[Dependency("a", data=True)]))
    end(queue, "a", "failed")
    assert queue.states("drops", "needs") == "DEFERRED DEFERRED"
    queue.discard("a")
    assert queue.states("drops", "needs") == "QUEUED CANCELED"
    assert queue.record("needs").cause == "dependency a was canceled"


def test_a_retry_is_no_end() -> None:
    queue = Queue(job("a", max_attempts=2), now_ms=0)
    queue.enqueue(job("b", after=["a"], on_dependency_failure="cancel"))
    queue.start()
    queue.fail("a", delay_ms=1000)
    assert queue.state("b") is DEFERRED
    queue.wait(1000)
    assert queue.run() == ["a", "b"]


def test_when_a_dead_record_expires_those_that_wait_for_it_are_canceled() -> None:
    queue = Queue(job("a", ["x"], max_attempts=1, on_dead="hold"), job("behind", ["x"]), now_ms=0)
    queue.enqueue(job("b", after=["a"]), job("c", after=["b"]), job("d", after=["b"], on_dependency_failure="cancel"))
    end(queue, "a", "failed")
    queue.wait(7 * DAY_MS - 1)
    assert queue.states("b", "c", "d", "behind") == "DEFERRED DEFERRED DEFERRED QUEUED"
    assert queue.start() == []
    queue.wait(1)
    assert queue.find("a") is None
    assert queue.record("b").cause == "dependency a has expired"
    assert queue.record("d").cause == "dependency b was canceled"
    assert queue.start() == ["behind", "c"]
    queue.finish("behind", "c")
    queue.wait(DAY_MS)
    assert queue.engine.table.jobs == {}
    assert queue.is_clean


@pytest.mark.parametrize("budget", [1, 3])
def test_the_id_of_an_expired_job_is_kept_until_all_that_waited_are_canceled(budget: int) -> None:
    queue = Queue(job("a", max_attempts=1, retention_ms=20 * MINUTE), budget=budget, now_ms=0)
    queue.enqueue(*[job(f"b{number}", after=["a"]) for number in range(10)])
    end(queue, "a", "failed")
    while queue.tick().more:
        pass
    queue.now_ms = 20 * MINUTE
    while queue.tick().more:
        assert queue.find("a") is None
        waiting = [f"b{number}" for number in range(10) if queue.state(f"b{number}") is DEFERRED]
        assert not waiting or "a" in queue.engine.table.jobs
    assert {queue.record(f"b{number}").cause for number in range(10)} == {"dependency a has expired"}
    assert "a" not in queue.engine.table.jobs


def test_a_dead_dependent_keeps_what_it_needs_for_its_redrive() -> None:
    queue = Queue(job("a", retention_ms=MINUTE), now_ms=0)
    queue.enqueue(job("b", after=["a"], max_attempts=1))
    queue.start()
    queue.settle("a", result=b"1")
    end(queue, "b", "failed")
    queue.wait(DAY_MS)
    assert (queue.state("a"), queue.record("a").result) == (FINISHED, b"1")
    queue.redrive("b")
    assert queue.run() == ["b"]
    queue.wait(MINUTE)
    assert queue.find("a") is None


# --- results are kept ------------------------------------------------------------------------------------------------


def test_a_result_is_kept_until_the_last_dependent_is_over() -> None:
    queue = Queue(job("a", retention_ms=1000), now_ms=0)
    queue.enqueue(job("b", after=["a"]), job("c", after=["b"]), job("d", after=["a"]))
    queue.start(1)
    queue.settle("a", result=b"1")
    queue.start()
    queue.renew("b", "d", lease_ms=DAY_MS)
    queue.wait(MINUTE)
    queue.finish("b")
    queue.wait(10 * MINUTE)
    assert queue.record("a").result == b"1"
    queue.finish("d")
    queue.wait(MINUTE)
    assert queue.find("a") is None
    assert queue.state("c") is QUEUED


@pytest.mark.parametrize(
    "retention_ms, looks_ms",
    [
        (0, [MINUTE, 2 * MINUTE]),
        (10 * MINUTE, [10 * MINUTE, 20 * MINUTE]),
        (DAY_MS, [DAY_MS, DAY_MS + 60 * MINUTE]),
    ],
)
def test_a_kept_result_is_looked_at_again_after_its_retention_a_minute_at_least_and_an_hour_at_most(
    retention_ms: int, looks_ms: list[int]
) -> None:
    queue = Queue(job("a", retention_ms=retention_ms), job("other", delay_ms=10 * DAY_MS), now_ms=0)
    queue.enqueue(job("b", after=["a", "other"]))
    queue.start()
    queue.finish("a")
    looks = []
    for _ in looks_ms:
        looks.append(queue.engine.next_ms)
        queue.now_ms = queue.engine.next_ms or 0
        queue.tick()
    assert looks == looks_ms
    assert queue.state("a") is FINISHED


def test_a_dead_dependent_that_is_discarded_or_expires_needs_nothing_any_more() -> None:
    for how in ("discard", "expire"):
        queue = Queue(job("a", retention_ms=MINUTE), now_ms=0)
        queue.enqueue(job("b", after=["a"], max_attempts=1, retention_ms=20 * MINUTE))
        queue.start()
        queue.finish("a")
        end(queue, "b", "failed")
        queue.wait(10 * MINUTE)
        assert queue.state("a") is FINISHED
        if how == "discard":
            queue.discard("b")
        else:
            queue.wait(10 * MINUTE)
            assert queue.find("b") is None
        queue.wait(MINUTE)
        assert queue.find("a") is None
        assert queue.engine.table.edges.awaited() == []


def test_a_job_that_is_canceled_needs_nothing_any_more() -> None:
    queue = Queue(job("a", retention_ms=1000), job("other"), now_ms=0)
    queue.enqueue(job("b", after=["a", "other"]))
    queue.start()
    queue.finish("a")
    queue.cancel("b")
    queue.wait(1000)
    assert queue.find("a") is None
    queue.finish("other")
    assert queue.is_clean


def test_failed_and_canceled_records_are_kept_no_longer_for_their_dependents() -> None:
    queue = Queue(job("a", max_attempts=1, retention_ms=1000), job("c", retention_ms=1000), job("other"), now_ms=0)
    queue.enqueue(job("b", after=["a", "c", "other"], on_dependency_failure="run"))
    queue.cancel("c")
    queue.start()
    queue.fail("a")
    queue.wait(1000)
    assert (queue.find("a"), queue.find("c"), queue.state("b")) == (None, None, DEFERRED)
    queue.finish("other")
    assert queue.run() == ["b"]


# --- cancellation ----------------------------------------------------------------------------------------------------


def test_canceling_one_that_waits_removes_it_from_every_waiting_set() -> None:
    queue = Queue(job("a"), job("b"))
    queue.enqueue(job("c", after=["a", "b"]), job("d", after=["c"]))
    assert queue.cancel("c") == [Verdict.DONE]
    assert queue.engine.table.edges.awaited() == ["c"]
    assert queue.run(9) == ["a", "b", "d"]
    assert queue.is_clean


@pytest.mark.parametrize("on_failure, state", [("wait", QUEUED), ("cancel", CANCELED), ("run", QUEUED)])
def test_canceling_what_is_waited_for_does_as_the_policy_says(on_failure: str, state: JobState) -> None:
    queue = Queue(job("a"))
    queue.enqueue(job("b", after=["a"], on_dependency_failure=on_failure))
    queue.cancel("a")
    assert queue.state("b") is state


def test_a_running_job_that_is_asked_to_stop_counts_only_when_it_has_ended() -> None:
    queue = Queue(job("a"), job("b", after=["a"], on_dependency_failure="cancel"))
    queue.start()
    queue.cancel("a")
    assert queue.state("b") is DEFERRED
    queue.settle("a", OutcomeKind.RELEASED)
    assert queue.states("a", "b") == "CANCELED CANCELED"


def test_a_cancellation_goes_on_down_the_graph() -> None:
    ids = [str(number) for number in range(30)]
    queue = Queue(
        *[job(each, after=ids[:at][-1:], on_dependency_failure="cancel") for at, each in enumerate(ids)], budget=5
    )
    queue.cancel("0")
    queue.wait(0)
    assert {queue.state(each) for each in ids} == {CANCELED}
    assert queue.record("29").cause == "dependency 28 was canceled"


def test_canceling_a_path_releases_or_cancels_what_waits_elsewhere() -> None:
    queue = Queue(job("a", ["x", "1"]), job("b", ["x"], after=["a"]))
    queue.enqueue(job("c", ["y"], after=["a"]), job("d", ["y"], after=["b"], on_dependency_failure="cancel"))
    queue.cancel_path("x")
    queue.wait(0)
    assert queue.states("a", "b", "c", "d") == "CANCELED CANCELED QUEUED CANCELED"
    assert queue.record("b").cause == "canceled"


# --- what is refused -------------------------------------------------------------------------------------------------


def test_an_unknown_dependency_refuses_the_whole_submission() -> None:
    queue = Queue(job("a"))
    before = queue.everything()
    with pytest.raises(UnknownDependencyError) as caught:
        queue.enqueue(job("b"), job("c", after=["a", "nobody"]))
    assert (caught.value.job_id, caught.value.dependency) == ("c", "nobody")
    assert queue.everything() == before


def test_one_whose_record_has_expired_is_unknown() -> None:
    queue = Queue(job("a", retention_ms=0))
    queue.run()
    queue.wait(0)
    assert "a" in queue.engine.table.jobs
    for jobs in ([job("b", after=["a"])], [job("a", retention_ms=0), job("b", after=["a"])]):
        with pytest.raises(UnknownDependencyError):
            queue.enqueue(*jobs)


def test_one_whose_record_expires_in_the_same_step_cancels_its_dependent() -> None:
    queue = Queue(job("a", retention_ms=1000), now_ms=0)
    queue.run()
    queue.now_ms = 1000
    reply = queue.enqueue(job("b", after=["a"]))
    assert (reply.jobs[0].state, queue.record("b").cause) == (CANCELED, "dependency a has expired")


def test_one_that_expires_in_the_same_step_and_whose_id_is_kept_does_not_come_again() -> None:
    queue = Queue(job("a", retention_ms=1000), now_ms=0)
    queue.run()
    queue.now_ms = 1000
    reply = queue.enqueue(job("b", after=["a"]), job("a", retention_ms=1000))
    assert [(made.id, made.state, made.created) for made in reply.jobs] == [
        ("b", CANCELED, True),
        ("a", FINISHED, False),
    ]
    assert queue.record("b").cause == "dependency a has expired"


def test_one_that_expires_and_comes_again_in_the_same_step_is_waited_for() -> None:
    queue = Queue(job("a", retention_ms=20 * MINUTE), now_ms=0)
    queue.run()
    queue.now_ms = 20 * MINUTE
    reply = queue.enqueue(job("b", after=["a"]), job("a", retention_ms=20 * MINUTE))
    assert [(made.id, made.state, made.created) for made in reply.jobs] == [("b", DEFERRED, True), ("a", QUEUED, True)]
    assert queue.run() == ["a", "b"]


@pytest.mark.parametrize(
    "edges, cycle",
    [
        ({"a": "a"}, {"a"}),
        ({"a": "b", "b": "a"}, {"a", "b"}),
        ({"a": "c", "b": "a", "c": "b", "d": "a"}, {"a", "b", "c"}),
        ({"a": "", "b": "ac", "c": "bd", "d": ""}, {"b", "c"}),
    ],
)
def test_a_circle_is_refused_naming_just_the_jobs_on_it(edges: dict[str, str], cycle: set[str]) -> None:
    queue = Queue(job("before"))
    before = queue.everything()
    with pytest.raises(CycleError) as caught:
        queue.enqueue(*[job(each, after=others) for each, others in edges.items()])
    assert set(caught.value.cycle) == cycle
    around = [*caught.value.cycle[1:], caught.value.cycle[0]]
    assert all(after in edges[each] for each, after in zip(caught.value.cycle, around, strict=True))
    assert queue.everything() == before


def test_a_chain_of_a_thousand_is_no_circle_and_the_circle_of_a_thousand_is_found() -> None:
    ids = [str(number) for number in range(1000)]
    queue = Queue(checked=False)
    jobs = [job(each, after=[ids[at + 1]] if at < 999 else []) for at, each in enumerate(ids)]
    with pytest.raises(CycleError) as caught:
        queue.enqueue(*jobs[:-1], job("999", after=["0"]))
    assert len(caught.value.cycle) == 1000
    queue.enqueue(*jobs)
    assert queue.run() == ids[::-1]


def test_four_thousand_edges_are_one_submission_and_one_more_is_too_many() -> None:
    firsts = [job(f"a{number}") for number in range(100)]
    ids = [spec.id for spec in firsts]
    dependents = [job(f"b{number}", after=ids) for number in range(EDGES_PER_SUBMISSION_MAX // 100)]
    queue = Queue(checked=False)
    with pytest.raises(InvalidJobError, match="a submission has 4001 edges, limit 4000"):
        queue.enqueue(*firsts, *dependents, job("c", after=["a0"]))
    assert queue.stats().enqueued == 0
    queue.enqueue(*firsts, *dependents)
    assert queue.edges().open_edges == EDGES_PER_SUBMISSION_MAX


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_conflict", ["return", "replace", "after"])
def test_a_job_cannot_depend_on_one_whose_key_may_make_it_another(on_conflict: str) -> None:
    queue = Queue()
    keyed = job("a", key="k", on_conflict=on_conflict)
    with pytest.raises(InvalidJobError, match="job 'b' depends on 'a', which its key may make another job"):
        queue.enqueue(keyed, job("b", after=["a"]))
    queue.enqueue(job("a", key="k", on_conflict="reject"), job("b", after=["a"]))
    assert queue.run() == ["a", "b"]


def test_a_job_waits_for_the_newest_of_its_key_whatever_becomes_of_that_one() -> None:
    for how in ("finished", "failed", "discarded"):
        queue = Queue(job("a", key="k", max_attempts=1))
        queue.start()
        queue.enqueue(job("b", key="k", on_conflict="after", on_dependency_failure="wait"))
        assert queue.why("b").jobs == ("a",)
        end(queue, "a", how)
        assert queue.state("b") is QUEUED
        queue.redrive("a")
        assert queue.state("b") is QUEUED


def test_a_job_waits_for_its_key_and_for_its_dependencies() -> None:
    queue = Queue(job("a", key="k"), job("x"))
    queue.start()
    queue.enqueue(job("b", key="k", on_conflict="after", after=["x"]))
    assert queue.why("b").jobs == ("a", "x")
    queue.finish("x")
    assert queue.why("b").jobs == ("a",)
    queue.finish("a")
    assert queue.run() == ["b"]
    assert queue.is_clean


def test_what_a_job_depends_on_by_an_edge_is_not_waited_for_by_its_key_too() -> None:
    queue = Queue(job("a", key="k", max_attempts=1))
    queue.start()
    queue.enqueue(job("b", key="k", on_conflict="after", after=["a"]))
    assert queue.edges().open_edges == 1
    end(queue, "a", "failed")
    assert queue.why("b").kind is ReasonKind.DEAD_DEPENDENCY


def test_a_job_of_a_key_that_is_replaced_keeps_its_edges() -> None:
    queue = Queue(job("a", max_attempts=1))
    queue.enqueue(job("b", key="k", after=["a"], on_dependency_failure="cancel"))
    queue.enqueue(job("new", key="k", on_conflict="replace", arguments=b'{"n":2}'))
    assert (queue.state("b"), queue.why("b").jobs) == (DEFERRED, ("a",))
    assert queue.record("b").spec.arguments == b'{"n":2}'
    end(queue, "a", "failed")
    assert queue.record("b").cause == "dependency a has failed"


def test_a_dependent_sent_again_is_the_job_that_is_there() -> None:
    queue = Queue(job("a"))
    spec = job("b", after=["a"])
    assert [queue.enqueue(spec).jobs[0].created for _ in "12"] == [True, False]
    with pytest.raises(DuplicateJobError) as caught:
        queue.enqueue(job("b"))
    assert caught.value.fields == ("depends_on",)


# --- downstream ------------------------------------------------------------------------------------------------------


def web() -> Queue:
    """Return a queue where `a` is dead, and because of it `b`, `c` behind `b`, `d` behind `c` and `x` are CANCELED."""
    queue = Queue(job("a", max_attempts=1), job("x", max_attempts=1))
    fields: dict[str, Any] = {"on_dependency_failure": "cancel"}
    queue.enqueue(job("b", ["p"], after=["a"], **fields), job("c", ["p"], after=["b"], **fields))
    queue.enqueue(job("d", after=["c", "a"], **fields), job("e", after=["b", "x"], **fields))
    queue.enqueue(job("other", after=["a"], on_dependency_failure="run"))
    end(queue, "a", "failed")
    assert queue.states("b", "c", "d", "e", "other") == "CANCELED CANCELED CANCELED CANCELED QUEUED"
    return queue


def test_a_redrive_alone_revives_nobody() -> None:
    queue = web()
    assert queue.redrive("a") == [Verdict.DONE]
    queue.wait(0)
    assert queue.states("a", "b", "c", "d", "e") == "QUEUED CANCELED CANCELED CANCELED CANCELED"


@pytest.mark.parametrize("budget", [1, 2, 1000])
def test_a_redrive_downstream_revives_what_was_canceled_because_of_it(budget: int) -> None:
    queue = web()
    queue.engine.state.options = type(queue.engine.state.options)(budget=budget)
    queue.redrive("a", downstream=True)
    queue.wait(0)
    assert queue.states("a", "b", "c", "d", "e") == "QUEUED DEFERRED DEFERRED DEFERRED DEFERRED"
    record = queue.record("b")
    assert (record.cause, record.ended_ms, record.attempts, record.seq) == (None, None, 0, None)
    queue.finish("x")
    order = queue.run()
    queue.wait(0)
    assert sorted(order + queue.run()) == ["a", "b", "c", "d", "e", "other"]
    assert queue.is_clean


def test_what_another_dependency_still_cancels_stays_canceled_until_that_is_redriven() -> None:
    queue = web()
    queue.fail("x", final=True)
    queue.redrive("a", downstream=True)
    queue.wait(0)
    assert queue.states("b", "e") == "DEFERRED CANCELED"
    queue.redrive("x", downstream=True)
    queue.wait(0)
    assert (queue.state("e"), queue.why("e").jobs) == (DEFERRED, ("b", "x"))


def test_what_needs_a_job_that_is_gone_stays_canceled_for_good() -> None:
    queue = Queue(job("a", max_attempts=1), job("gone", retention_ms=1000), now_ms=0)
    queue.enqueue(job("b", after=["a", "gone"], on_dependency_failure="cancel"))
    queue.start()
    queue.finish("gone")
    queue.fail("a")
    queue.wait(1000)
    assert queue.find("gone") is None
    for _ in range(2):
        queue.redrive("a", downstream=True)
        queue.wait(0)
        assert queue.state("b") is CANCELED
        queue.start()
        queue.fail("a", final=True)
    assert queue.engine.table.jobs["b"].need_extras().canceled_by is None


def test_what_was_canceled_by_hand_is_not_revived() -> None:
    queue = Queue(job("a", max_attempts=1), job("b"))
    queue.enqueue(job("b2", after=["a"], on_dependency_failure="cancel"))
    queue.cancel("b2")
    end(queue, "a", "failed")
    queue.redrive("a", downstream=True)
    queue.wait(0)
    assert queue.state("b2") is CANCELED


def test_the_revival_stops_when_the_job_fails_again() -> None:
    queue = Queue(job("a", max_attempts=1), budget=1)
    fields: dict[str, Any] = {"after": ["a"], "on_dependency_failure": "cancel"}
    queue.enqueue(*[job(f"b{number}", **fields) for number in range(6)])
    queue.start()
    queue.fail("a")
    queue.wait(0)
    queue.redrive("a", downstream=True)
    assert queue.start() == ["a"]
    queue.fail("a")
    queue.wait(0)
    assert {queue.state(f"b{number}") for number in range(6)} == {CANCELED}
    queue.redrive("a", downstream=True)
    queue.wait(0)
    assert {queue.state(f"b{number}") for number in range(6)} == {DEFERRED}


def test_one_that_is_canceled_anew_during_the_revival_is_looked_at_once() -> None:
    queue = Queue(job("z", max_attempts=1), budget=1)
    queue.enqueue(job("a", after=["z"], on_dependency_failure="cancel"))
    queue.enqueue(*[job(f"c{number}", after=[Dependency("a", when="failure")]) for number in range(5)])
    queue.start()
    queue.fail("z")
    queue.wait(0)
    queue.redrive("z", downstream=True)
    while queue.tick().more and queue.state("a") is CANCELED:
        pass
    for _ in range(10):
        for job_id in queue.start():
            queue.finish(job_id)
    queue.wait(0)
    assert queue.state("a") is FINISHED
    assert queue.state("c4") is CANCELED
    assert queue.stats().leftovers == 0


def test_a_revived_job_takes_a_new_number_and_has_its_time_to_start_anew() -> None:
    queue = Queue(job("a", max_attempts=1), budget=2, now_ms=0)
    queue.enqueue(
        *[job(f"x{number}", ["x"], delay_ms=99_000) for number in range(9)],
        job("b", ["x"], after=["a"], on_dependency_failure="cancel", start_within_ms=1000, key="k"),
    )
    end(queue, "a", "failed")
    queue.wait(5000)
    queue.cancel_path("x")
    queue.redrive("a", downstream=True)
    queue.wait(0)
    assert queue.states("x8", "b") == "CANCELED DEFERRED", "what was revived after a cancellation is not covered"
    queue.wait(999)
    assert queue.state("b") is DEFERRED
    with pytest.raises(DuplicateJobError):
        queue.enqueue(job("c", key="k", on_conflict="reject"))
    queue.wait(1)
    assert queue.record("b").cause == "expired"


def test_a_revived_job_whose_needs_are_all_over_takes_its_place_at_once() -> None:
    queue = Queue(job("a", max_attempts=1), job("y", ["x"]))
    queue.enqueue(job("b", ["x"], after=[Dependency("a", when="failure")]), job("c", ["x"], after=["b"]))
    queue.cancel("a")
    assert queue.states("b", "c") == "CANCELED QUEUED"
    queue = Queue(job("a", max_attempts=1), job("x", max_attempts=1))
    queue.enqueue(
        job("b", after=["a", Dependency("x", when="failure")], on_dependency_failure="cancel"),
        job("c", after=["b"], on_dependency_failure="cancel"),
    )
    queue.start()
    queue.fail("a", final=True)
    queue.fail("x", final=True)
    queue.redrive("a", downstream=True)
    queue.wait(0)
    assert queue.states("b", "c") == "DEFERRED DEFERRED"
    assert queue.why("b").jobs == ("a",)
    assert queue.run() == ["a", "b", "c"]


def test_one_that_was_canceled_for_a_finished_dependency_is_not_revived_by_others() -> None:
    queue = Queue(job("a", max_attempts=1), job("f"))
    queue.enqueue(job("b", after=["a", Dependency("f", when="failure")], on_dependency_failure="cancel"))
    queue.start()
    queue.fail("a")
    queue.finish("f")
    queue.redrive("a", downstream=True)
    queue.wait(0)
    assert queue.state("b") is CANCELED
    assert queue.engine.table.jobs["b"].need_extras().canceled_by == "f"


@pytest.mark.parametrize("budget, others", [(1, 0), (1, 1), (1, 4), (2, 5), (10, 60)])
def test_a_job_is_revived_once_its_end_is_told_to_all_that_wait_for_it(budget: int, others: int) -> None:
    queue = Queue(budget=budget)
    canceling: dict[str, Any] = {"on_dependency_failure": "cancel"}
    queue.enqueue(job("e"), job("d", max_attempts=1), job("x", after=["d", "e"], **canceling))
    queue.enqueue(*[job(f"o{number}", after=["x"], **canceling) for number in range(others)])
    queue.enqueue(job("c", after=["x"], **canceling))
    assert queue.start() == ["e", "d"]
    queue.fail("d")
    queue.await_children("e", "c")
    queue.redrive("d", downstream=True)
    check_circles(queue.engine)
    queue.wait(0)
    queue.run()
    queue.wait(0)
    assert not queue.stats().unfinished
    assert queue.is_clean


def test_a_sweep_of_an_earlier_end_says_nothing_of_a_later_one() -> None:
    canceling: dict[str, Any] = {"on_dependency_failure": "cancel"}
    queue = Queue(job("a", max_attempts=1), *[job(f"b{number}", after=["a"]) for number in range(4)], budget=1)
    queue.enqueue(job("x", after=["a"], **canceling), job("y", after=["x"], **canceling))
    queue.start()
    queue.fail("a")
    queue.redrive("a")
    queue.start()
    queue.fail("a")
    queue.discard("a")
    queue.wait(0)
    assert queue.states("b0", "x", "y") == "QUEUED CANCELED CANCELED"
    assert not queue.engine.table.leftovers


# --- what is told ----------------------------------------------------------------------------------------------------


def test_why_names_ten_of_those_a_job_waits_for_and_the_dead_ones_if_there_are_any() -> None:
    ids = [f"a{number:02}" for number in range(15)]
    queue = Queue(*[job(each, max_attempts=1) for each in ids])
    queue.enqueue(job("b", after=ids[::-1]))
    assert queue.why("b").jobs == tuple(ids[:10])
    assert str(queue.why("b")).startswith("b is DEFERRED: waits for the end of a00, a01")
    queue.start()
    queue.fail("a14", final=True)
    queue.fail("a12", final=True)
    assert (queue.why("b").jobs, queue.why("b").stuck) == (("a12", "a14"), True)
    assert str(queue.why("b")) == "b is DEFERRED: waits for a redrive of a12, a14"


def test_edges_are_counted() -> None:
    queue = Queue(now_ms=5)
    nothing = EdgeStats(
        deferred=0,
        open_edges=0,
        oldest_id=None,
        oldest_ms=None,
        looked_at=0,
        most_blocked=0,
        most_awaited=0,
        behind_dead=0,
        orphans=(),
    )
    assert queue.edges() == nothing
    queue.enqueue(*[job(each, max_attempts=1) for each in "abc"])
    queue.now_ms = 6
    queue.enqueue(job("d", after="abc"), job("e", after="ab"), job("f", after="c"), job("g", after="a", delay_ms=9))
    assert queue.edges() == EdgeStats(
        deferred=3,
        open_edges=7,
        oldest_id="d",
        oldest_ms=6,
        looked_at=3,
        most_blocked=3,
        most_awaited=3,
        behind_dead=0,
        orphans=(),
    )
    queue.start()
    queue.fail("c")
    queue.finish("a")
    stats = queue.edges()
    assert (stats.deferred, stats.open_edges, stats.behind_dead, stats.most_blocked) == (3, 4, 2, 2)


def test_the_edges_of_the_first_thousand_and_four_thousand_of_theirs_are_looked_at() -> None:
    queue = Queue(job("dead", max_attempts=1), checked=False)
    end(queue, "dead", "failed")
    for batch in range(3):
        queue.enqueue(*[job(f"{batch}-{number}", after=["dead"]) for number in range(500)])
    stats = queue.edges()
    assert (stats.deferred, stats.looked_at, stats.behind_dead, stats.most_awaited) == (1500, 1000, 1000, 1500)
    assert queue.stats().stuck["dead_dependency"] == 1000

    queue = Queue(*[job(f"a{number}") for number in range(900)], checked=False)
    every = [f"a{number}" for number in range(900)]
    for number in range(6):
        queue.enqueue(job(f"b{number}", after=every))
    stats = queue.edges()
    assert (stats.deferred, stats.open_edges, stats.looked_at, stats.most_blocked) == (6, 5400, 5, 900)


def test_an_edge_that_leads_nowhere_is_an_orphan() -> None:
    queue = Queue(job("a"), job("b"), checked=False)
    queue.enqueue(*[job(each, after=["a", "b"]) for each in "cdef"])
    table = queue.engine.table
    table.jobs["c"].blocked.clear()
    table.edges._remove(table.jobs["d"], "a")
    table.jobs["f"].blocked["nobody"] = "dwdk"
    assert queue.edges().orphans == ("c", "d", "f")


def test_at_most_a_hundred_orphans_are_named() -> None:
    queue = Queue(job("a"), checked=False)
    queue.enqueue(*[job(f"b{number}", after=["a"]) for number in range(150)])
    for number in range(150):
        queue.engine.table.jobs[f"b{number}"].blocked.clear()
    assert len(queue.edges().orphans) == 100


def test_what_waits_behind_a_dead_job_is_pending_and_does_not_move() -> None:
    queue = Queue(job("a", max_attempts=1), job("b", ["x"], after=["a"]), job("c", ["x"], after=["b"]))
    queue.start()
    assert queue.pending(("x",)).moving
    queue.fail("a")
    for path in (None, ("x",)):
        pending = queue.pending(path)
        assert (pending.unfinished, pending.moving, len(pending.reasons)) == (2, False, 2)
    assert queue.pending(("x",)).reasons[0] == queue.why("b")


def test_what_waits_for_a_time_through_others_is_moving() -> None:
    queue = Queue(job("a", delay_ms=1000), job("b", ["x"], after=["a"]))
    assert queue.pending().moving
    assert queue.pending(("x",)).moving


@pytest.mark.parametrize("budget", [1, 2, 1000])
def test_nothing_is_left_when_a_large_graph_is_over_and_its_records_have_expired(budget: int) -> None:
    queue = Queue(budget=budget, now_ms=0, checked=budget > 2)
    layers: list[list[str]] = [[f"{layer}-{number}" for number in range(8)] for layer in range(5)]
    specs: list[JobSpec] = []
    for layer, ids in enumerate(layers):
        above = layers[layer - 1] if layer else []
        policy = ON_DEPENDENCY_FAILURE[layer % 3]
        specs += [job(each, [each], after=above, on_dependency_failure=policy, max_attempts=1) for each in ids]
    queue.enqueue(*specs)
    while queue.stats().unfinished:
        for at, job_id in enumerate(queue.start()):
            queue.settle(job_id, OutcomeKind.FAILED if at == 3 else OutcomeKind.FINISHED)
        queue.wait(0)
        if not queue.pending().moving:
            queue.wait(8 * DAY_MS)
    queue.wait(8 * DAY_MS)
    assert queue.engine.table.jobs == {}
    assert queue.is_clean
    assert len(queue.engine.table.edges) == 0
