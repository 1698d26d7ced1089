"""The engine: submissions in parts, hidden until their commit; and flows."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint.errors import (
    FlowNotFoundError,
    InvalidJobError,
)
from queuehint.operations import (
    STAGED_KEPT_MS,
    Commit,
    Verdict,
)
from queuehint.testing.driver import Queue, job
from queuehint.testing.invariants import check_cycles
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind
from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
MINUTE = 60_000
DAY_MS = 24 * 3600 * 1000


# --- hidden ----------------------------------------------------------------------------------------------------------


def staged(**fields: Any) -> Queue:
    """Return a queue with a part of two jobs, `b` after `a`."""
    queue = Queue(now_ms=0, **fields)
    queue.stage("T", job("a", ["x"], flow="f"), job("b", ["x", "y"], after=["a"], flow="f"))
    return queue


# --- commit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_committed_jobs_are_visible_at_once_and_placed_stepwise(budget: int) -> None:
    queue = Queue(budget=budget)
    for part in range(4):
        ids = [f"{part}-{number}" for number in range(5)]
        queue.stage("T", *[job(each, [each], after=[f"{part - 1}-0"] if part else [], flow="f") for each in ids])
    reply = queue.apply(Commit("T", 20))
    assert (reply.jobs, reply.more) == (20, True)
    stats = queue.stats()
    assert (stats.states[DEFERRED] + stats.states[QUEUED], stats.enqueued) == (20, 20)
    assert queue.flow("f").total == 20
    assert queue.state("3-4") is DEFERRED
    assert (queue.why("3-4").kind, queue.why("3-4").jobs) == (ReasonKind.DEPENDENCY, ())
    queue.wait(0)
    assert queue.why("3-4").jobs == ("2-0",)
    while queue.stats().unfinished:
        queue.run()
        queue.wait(0)
    assert queue.is_clean


@pytest.mark.parametrize("budget", [1, 2, 5])
@pytest.mark.parametrize("how", ["enqueued", "committed"])
def test_late_commit_ignores_jobs_enqueued_after_it(budget: int, how: str) -> None:
    queue = Queue(job("gone", retention_ms=1), budget=budget)
    stage_behind(queue, *[job(f"{number}") for number in range(30)], job("b", after=["gone"]))
    queue.commit("S")
    if how == "enqueued":
        queue.enqueue(job("gone", after=["b"]))
    else:
        queue.enqueue(job("k", after=["b"]))
        queue.stage("T", job("gone", after=["k"]))
        queue.commit("T")
    queue.wait(0)
    check_cycles(queue.engine)
    assert queue.record("b").cause == "dependency gone has expired"
    queue.run()
    queue.wait(0)
    assert not queue.stats().unfinished


def test_cycle_search_follows_edges_of_committed_jobs() -> None:
    queue = Queue(job("gone", retention_ms=1), job("p"), job("q"), budget=1)
    stage_behind(queue, job("a", after=["p"]), job("b", after=["gone", "q"]))
    queue.start()
    queue.commit("S")
    queue.await_children("q", "b")
    queue.await_children("p", "a")
    assert queue.states("p", "q") == "FAILED FAILED"
    queue.wait(0)
    assert queue.record("b").cause == "dependency gone has expired"


def stage_behind(queue: Queue, *jobs: JobSpec) -> None:
    """Stage jobs whose dependency `gone` ends and expires, its id too, before their commit."""
    queue.start(1)
    queue.finish("gone")
    queue.stage("S", *jobs)
    queue.advance(STAGED_KEPT_MS // 2)
    queue.stage("S", job("last"))
    queue.wait(STAGED_KEPT_MS // 2)
    assert "gone" not in queue.engine.table.jobs


def test_late_placed_job_is_due_as_of_its_commit() -> None:
    queue = Queue(budget=1, now_ms=0)
    queue.stage("T", *[job(f"j{number}") for number in range(9)], job("delayed", delay_ms=1000), job("last"))
    queue.commit("T")
    queue.now_ms = 5000
    queue.wait(0)
    assert (queue.record("delayed").enqueued_ms, queue.record("delayed").queued_ms) == (0, 5000)
    assert queue.record("last").queued_ms == 5000


def test_first_canceling_dependency_at_commit_is_the_cause() -> None:
    queue = Queue(*[job(each, max_attempts=1) for each in "abc"])
    queue.stage("T", job("d", after="abc", on_dependency_failure="cancel"))
    queue.start()
    queue.finish("a")
    queue.fail("c")
    queue.fail("b")
    queue.commit("T")
    assert queue.record("d").cause == "dependency b has failed"
    queue.redrive("b", downstream=True)
    queue.wait(0)
    assert queue.engine.table.jobs["d"].need_extras().canceled_by == "c"


def test_job_canceled_before_its_commit_turn_stays_canceled() -> None:
    queue = Queue(budget=1)
    ids = [f"j{number}" for number in range(6)]
    queue.stage("T", *[job(each, after=ids[:at][-1:], flow="f") for at, each in enumerate(ids)])
    queue.commit("T")
    assert queue.cancel("j4") == [Verdict.DONE]
    queue.wait(0)
    assert queue.states(*ids) == "QUEUED DEFERRED DEFERRED DEFERRED CANCELED QUEUED"
    for _ in range(4):
        queue.run()
        queue.wait(0)
    assert queue.is_clean
    queue.wait(2 * DAY_MS)
    assert not queue.engine.table.jobs


def test_a_flow_is_canceled_while_its_commit_goes_on() -> None:
    queue = Queue(budget=1)
    ids = [f"j{number}" for number in range(6)]
    queue.stage("T", *[job(each, ["x"], after=ids[:at][-1:], flow="f") for at, each in enumerate(ids)])
    queue.commit("T")
    queue.cancel_flow("f")
    queue.wait(0)
    assert queue.flow("f").states[CANCELED] == 6
    assert queue.is_clean


def test_a_submission_is_committed_once() -> None:
    queue = staged(budget=1)
    queue.commit("T")
    for _ in range(2):
        with pytest.raises(FlowNotFoundError) as caught:
            queue.commit("T")
        assert caught.value.flow == "T"
        queue.wait(0)
    with pytest.raises(FlowNotFoundError):
        queue.commit("never-begun")


def test_no_part_comes_after_the_commit() -> None:
    queue = Queue(budget=1)
    queue.stage("T", *[job(f"j{number}") for number in range(9)])
    queue.commit("T")
    before = queue.everything()
    with pytest.raises(FlowNotFoundError):
        queue.stage("T", job("late"))
    assert queue.everything() == before


def test_a_submission_without_jobs_is_committed_too() -> None:
    queue = Queue()
    queue.stage("T")
    assert queue.commit("T") == 0
    assert queue.engine.table.jobs == {}


# --- never committed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 1000])
def test_uncommitted_parts_expire_ten_minutes_after_the_last(budget: int) -> None:
    queue = Queue(budget=budget, now_ms=0)
    queue.stage("T", *[job(f"a{number}", ["x"], flow="f") for number in range(5)])
    queue.wait(9 * MINUTE)
    queue.stage("T", job("b", after=["a0"], flow="f"))
    queue.wait(STAGED_KEPT_MS - 1)
    assert queue.engine.next_ms == 9 * MINUTE + STAGED_KEPT_MS
    assert len(queue.engine.table.jobs) == 7
    queue.wait(1)
    assert queue.engine.table.jobs == {}
    assert queue.is_clean
    assert len(queue.engine.table.flows) == len(queue.engine.table.timers) == 0
    with pytest.raises(FlowNotFoundError):
        queue.commit("T")


def test_part_at_the_expiry_time_keeps_the_others() -> None:
    queue = staged(budget=1)
    queue.now_ms = STAGED_KEPT_MS
    queue.stage("T", job("c", after=["a", "b"], flow="f"))
    queue.wait(0)
    assert queue.commit("T") == 3


def test_while_parts_are_dropped_no_other_comes() -> None:
    queue = staged(budget=1)
    queue.now_ms = STAGED_KEPT_MS
    assert queue.tick().more
    with pytest.raises(FlowNotFoundError):
        queue.stage("T", job("c", flow="f"))
    with pytest.raises(FlowNotFoundError):
        queue.commit("T")
    queue.wait(0)
    assert queue.stage("T", job("c")).jobs[0].created


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"key": "k"}, {"key": "k", "on_conflict": "reject"}, {"presence_ms": 1000}])
def test_no_part_takes_a_key_or_a_caller(fields: dict[str, Any]) -> None:
    queue = Queue()
    with pytest.raises(InvalidJobError, match="job 'b': key and presence_ms are not supported in parts"):
        queue.stage("T", job("a"), job("b", **fields))
    assert queue.engine.table.jobs == {}


def test_all_parts_belong_to_one_flow() -> None:
    queue = Queue()
    with pytest.raises(InvalidJobError, match="all parts of one submission belong to one flow"):
        queue.stage("T", job("a", flow="f"), job("b", flow="g"))
    queue.stage("T", job("a", flow="f"))
    for flow in (None, "g"):
        with pytest.raises(InvalidJobError, match="all parts of one submission belong to one flow"):
            queue.stage("T", job("b", flow=flow))
    queue.stage("T")
    queue.stage("T", job("b", flow="f"))
    assert queue.commit("T") == 2


# --- flows -----------------------------------------------------------------------------------------------------------


def test_cancel_of_flow_covers_earlier_jobs_and_notifies_running_ones() -> None:
    queue = Queue(job("a", flow="f"), job("other"), budget=2)
    queue.start()
    queue.enqueue(
        *[job(f"b{number}", after=["a"], flow="f") for number in range(4)],
        job("done", flow="f"),
        job("waits", after=["b1"], on_dependency_failure="cancel"),
    )
    queue.run()
    queue.cancel_flow("f")
    queue.enqueue(job("late", flow="f", pool="p"))
    queue.wait(0)
    assert queue.states("b0", "b1", "b2", "b3", "done", "late") == "CANCELED CANCELED CANCELED CANCELED FINISHED QUEUED"
    assert queue.record("a").cancel_requested
    assert queue.states("other", "waits") == "STARTED CANCELED"
    assert queue.exchange().canceled == ("a",)


def test_job_is_in_progress_while_its_submission_is_fresh() -> None:
    queue = Queue()
    queue.stage("part", job("a", ["p"]))
    queue.enqueue(job("b", ["p"]))

    def is_under_way(*ids: str) -> bool:
        return queue.engine.is_under_way(ids, queue.now_ms)

    assert is_under_way("a")
    assert not is_under_way("b", "nobody")
    queue.advance(5_000)  # `STAGED_FRESH_MS`
    assert not is_under_way("a")


@pytest.mark.parametrize(
    "others, kept_ms, state",
    [((), 0, JobState.QUEUED), (("w",), 5_000, JobState.STARTED), (None, 5_000, JobState.STARTED)],
)
def test_leases_of_possibly_live_workers_survive_a_new_leader(
    others: tuple[str, ...] | None, kept_ms: int, state: JobState
) -> None:
    queue = Queue()
    queue.enqueue(job("a", ["p"]))
    queue.start(lease_ms=1)
    queue.engine.end_leases(queue.now_ms + 1_000, others, kept_ms)
    queue.advance(1_000)
    queue.tick()
    assert queue.engine.table.jobs["a"].state is state
