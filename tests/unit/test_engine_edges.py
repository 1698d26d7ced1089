"""The engine: explicit edges, the effect of a dependency's end, and graphs of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import pytest

from queuehint.core.engine import Engine
from queuehint.core.structures.job import Job
from queuehint.errors import DuplicateJobError
from queuehint.operations import Verdict
from queuehint.testing.driver import Queue, job
from queuehint.testing.invariants import check_cycles
from queuehint.values.outcome import OutcomeKind
from queuehint.values.policy import ON_DEPENDENCY_FAILURE
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency, JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DAY_MS = 24 * 3600 * 1000
MINUTE = 60_000


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


# --- shapes ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("budget", [1, 2, 1000])
@pytest.mark.parametrize("kinds", ["fff", "fFf", "FcF", "ccc"])
def test_fan_in_is_queued_once_however_its_parents_end(kinds: str, budget: int) -> None:
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


# --- failure, redrive, release ---------------------------------------------------------------------------------------


def test_expired_dead_record_cancels_its_dependents() -> None:
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
def test_expired_id_is_kept_until_all_dependents_are_canceled(budget: int) -> None:
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


# --- results are kept ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "retention_ms, looks_ms",
    [
        (0, [MINUTE, 2 * MINUTE]),
        (10 * MINUTE, [10 * MINUTE, 20 * MINUTE]),
        (DAY_MS, [DAY_MS, DAY_MS + 60 * MINUTE]),
    ],
)
def test_kept_result_is_rechecked_between_a_minute_and_an_hour(retention_ms: int, looks_ms: list[int]) -> None:
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


def test_discarded_or_expired_dead_dependent_needs_nothing() -> None:
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


# --- cancellation ----------------------------------------------------------------------------------------------------


def test_canceling_one_that_waits_removes_it_from_every_waiting_set() -> None:
    queue = Queue(job("a"), job("b"))
    queue.enqueue(job("c", after=["a", "b"]), job("d", after=["c"]))
    assert queue.cancel("c") == [Verdict.DONE]
    assert queue.engine.table.edges.awaited() == ["c"]
    assert queue.run(9) == ["a", "b", "d"]
    assert queue.is_clean


def test_a_cancellation_goes_on_down_the_graph() -> None:
    ids = [str(number) for number in range(30)]
    queue = Queue(
        *[job(each, after=ids[:at][-1:], on_dependency_failure="cancel") for at, each in enumerate(ids)], budget=5
    )
    queue.cancel("0")
    queue.wait(0)
    assert {queue.state(each) for each in ids} == {CANCELED}
    assert queue.record("29").cause == "dependency 28 was canceled"


# --- keys ------------------------------------------------------------------------------------------------------------


def test_job_waits_for_the_newest_of_its_key_through_changes() -> None:
    for how in ("finished", "failed", "discarded"):
        queue = Queue(job("a", key="k", max_attempts=1))
        queue.start()
        queue.enqueue(job("b", key="k", on_conflict="after", on_dependency_failure="wait"))
        assert queue.why("b").jobs == ("a",)
        end(queue, "a", how)
        assert queue.state("b") is QUEUED
        queue.redrive("a")
        assert queue.state("b") is QUEUED


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


@pytest.mark.parametrize("budget", [1, 2, 1000])
def test_redrive_downstream_revives_canceled_dependents(budget: int) -> None:
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


def test_dependent_of_an_expired_job_stays_canceled_after_redrive() -> None:
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


def test_job_canceled_again_during_a_revival_is_checked_once() -> None:
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


def test_revived_job_takes_a_new_number_and_start_deadline() -> None:
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


def test_job_canceled_for_a_finished_dependency_is_not_revived() -> None:
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
def test_job_is_revived_after_its_end_reached_all_dependents(budget: int, others: int) -> None:
    queue = Queue(budget=budget)
    canceling: dict[str, Any] = {"on_dependency_failure": "cancel"}
    queue.enqueue(job("e"), job("d", max_attempts=1), job("x", after=["d", "e"], **canceling))
    queue.enqueue(*[job(f"o{number}", after=["x"], **canceling) for number in range(others)])
    queue.enqueue(job("c", after=["x"], **canceling))
    assert queue.start() == ["e", "d"]
    queue.fail("d")
    queue.await_children("e", "c")
    queue.redrive("d", downstream=True)
    check_cycles(queue.engine)
    queue.wait(0)
    queue.run()
    queue.wait(0)
    assert not queue.stats().unfinished
    assert queue.is_clean


def test_sweep_of_an_earlier_end_ignores_a_later_one() -> None:
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


def test_edge_statistics_cover_a_thousand_jobs_and_four_thousand_edges() -> None:
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


@pytest.mark.parametrize("budget", [1, 2, 1000])
def test_ended_large_graph_leaves_nothing_after_expiry(budget: int) -> None:
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


def test_a_job_is_revived_once_all_its_portions_are_released() -> None:
    queue = Queue(*[job(each, max_attempts=1) for each in "abcd"], budget=1)
    queue.stage("T", job("t", after=["d"], on_dependency_failure="cancel"))
    for portion, each in enumerate("abc", 1):
        queue.depend("T", "t", portion, each, on_failure="cancel")
    queue.commit("T")
    queue.wait(0)
    assert queue.record("t").open_dependencies == 4
    queue.start()
    queue.fail("a")
    while queue.state("t") is not CANCELED:
        queue.tick()
    # Its edges are still released, one portion at a time, when the redrive begins to revive it.
    queue.redrive("a", downstream=True)
    queue.wait(0)
    assert (queue.state("t"), queue.why("t").jobs) == (DEFERRED, ("a", "b", "c", "d"))
    queue.finish("b", "c", "d")
    queue.wait(0)
    assert queue.state("t") is DEFERRED
    queue.start()
    queue.finish("a")
    queue.wait(0)
    assert queue.run() == ["t"]


def test_revival_waits_for_a_commit_that_is_under_way() -> None:
    queue = Queue(job("dead", max_attempts=1), job("parent"), budget=1)
    queue.enqueue(job("revived", after=["dead", "parent"], on_dependency_failure="cancel"))
    queue.start()
    queue.fail("dead")
    queue.wait(0)
    others = [job(f"other{number}") for number in range(5)]
    queue.stage("T", *others, job("last", after=["revived"], on_dependency_failure="cancel"))
    queue.commit("T")
    queue.redrive("dead", downstream=True)
    # The last job is not released yet: revived before, the other one would wait for the parent of what waits for it.
    queue.settle("parent", OutcomeKind.CHILDREN, children=("last",))
    queue.wait(0)
    check_cycles(queue.engine)
    assert queue.state("last") is CANCELED
    assert queue.record("parent").cause == "child_failed"


def test_job_with_leftovers_of_its_end_is_not_rerun() -> None:
    queue = Queue(job("a", max_attempts=1), budget=1)
    queue.enqueue(*[job(f"b{n}", after=["a"], on_dependency_failure="cancel") for n in range(9)])
    queue.start()
    queue.fail("a")
    assert queue.engine.table.edges.is_resolving(queue.engine.table.jobs["a"])
    assert [str(verdict) for verdict, _ in queue.rerun("a")] == ["refused"]
    for _ in range(99):
        queue.wait(0)
    assert [str(verdict) for verdict, _ in queue.rerun("a")] == ["done"]
