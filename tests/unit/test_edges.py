"""Explicit edges between jobs, stored at both ends, and the effect of a dependency's end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from queuehint.core.structures.edges import (
    AFTER,
    CANCEL,
    DROP,
    NOTE,
    OF_CHILD,
    REACH_MAX,
    WAIT,
    DependencySets,
    cause_of,
    cycles,
    edge_action,
    edge_policy,
    needs_of,
)
from queuehint.core.structures.job import Job
from queuehint.core.structures.leftovers import CommitSweep
from queuehint.testing.driver import Queue, job
from queuehint.values.policy import OnDependencyFailure
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency, When
from tests.each import for_each

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
KEPT = "dwdk"


def jobs(count: int) -> list[Job]:
    return [Job(job(f"j{number}"), number + 1, DEFERRED, 0) for number in range(count)]


def depend(edges: DependencySets, waits: Job, *dependencies: Job, edge: str = KEPT) -> None:
    """Do as the job table does with what a job is told to depend on."""
    extras = waits.need_extras()
    extras.needs, extras.holds = (*extras.needs, *((other.id, edge) for other in dependencies)), True
    for other in dependencies:
        edges.keep(waits, other.id)
        edges.add(waits, other.id, edge)


# --- what an end means -----------------------------------------------------------------------------------------------


@for_each(
    "when, on_failure, data, finished, failed, canceled",
    [
        ("success", "wait", False, DROP, WAIT, DROP),
        ("success", "cancel", False, DROP, CANCEL, CANCEL),
        ("success", "run", False, DROP, DROP, DROP),
        ("success", "wait", True, DROP, WAIT, CANCEL),
        ("success", "cancel", True, DROP, CANCEL, CANCEL),
        ("success", "run", True, DROP, CANCEL, CANCEL),
        ("failure", "wait", False, CANCEL, DROP, CANCEL),
        ("failure", "cancel", False, CANCEL, DROP, CANCEL),
        ("failure", "run", False, CANCEL, DROP, CANCEL),
        ("done", "wait", False, DROP, DROP, DROP),
        ("done", "cancel", False, DROP, DROP, DROP),
        ("done", "run", False, DROP, DROP, DROP),
        ("done", "wait", True, DROP, CANCEL, CANCEL),
        ("done", "cancel", True, DROP, CANCEL, CANCEL),
        ("done", "run", True, DROP, CANCEL, CANCEL),
    ],
)
def test_edge_action_depends_on_condition_policy_and_data(
    when: When, on_failure: OnDependencyFailure, data: bool, finished: str, failed: str, canceled: str
) -> None:
    edge = edge_policy(Dependency("a", when=when, data=data), on_failure)
    assert (edge_action(edge, FINISHED), edge_action(edge, FAILED), edge_action(edge, CANCELED)) == (
        finished,
        failed,
        canceled,
    )


def test_edge_behind_a_key_drops_at_any_end() -> None:
    assert [edge_action(AFTER, state) for state in (FINISHED, FAILED, CANCELED)] == [DROP] * 3


def test_unfinished_child_is_recorded_unless_ignored() -> None:
    assert [edge_action(OF_CHILD["fail"], state) for state in (FINISHED, FAILED, CANCELED)] == [DROP, NOTE, NOTE]
    assert [edge_action(OF_CHILD["ignore"], state) for state in (FINISHED, FAILED, CANCELED)] == [DROP] * 3


def test_dependencies_of_a_spec_keep_their_order() -> None:
    spec = job("x", depends_on=(Dependency("b", when="done"), Dependency("a")), on_dependency_failure="cancel")
    assert needs_of(spec) == (("b", "dddk"), ("a", "dcck"))


def test_a_cause_says_how_the_dependency_ended() -> None:
    assert cause_of("a", FINISHED) == "dependency a has finished"
    assert cause_of("a", FAILED) == "dependency a has failed"
    assert cause_of("a", CANCELED) == "dependency a was canceled"
    assert cause_of("a", None) == "dependency a has expired"


# --- both ends -------------------------------------------------------------------------------------------------------


def test_an_edge_is_known_at_both_ends() -> None:
    edges = DependencySets()
    first, second = jobs(2)
    depend(edges, second, first)
    assert edges.has_dependents("j0") and not edges.has_dependents("j1")
    assert edges.depends(second, "j0") and not edges.depends(first, "j1")
    assert second.blocked == {"j0": KEPT}
    assert (edges.open, edges.count("j0"), edges.count("j1")) == (1, 1, 0)


def test_closed_edge_is_kept_until_its_job_cannot_run() -> None:
    edges = DependencySets()
    first, second = jobs(2)
    depend(edges, second, first)
    edges.close(second, "j0")
    assert (second.blocked, edges.open, edges.has_dependents("j0")) == ({}, 0, True)
    assert edges.release(second) == 1
    assert (edges.has_dependents("j0"), len(edges)) == (False, 0)
    assert edges.release(second) == 0


def test_unkept_edge_is_removed_when_it_closes() -> None:
    edges = DependencySets()
    _, second = jobs(2)
    edges.add(second, "j0", AFTER)
    edges.close(second, "j0")
    assert (second.blocked, edges.open, len(edges)) == ({}, 0, 0)


def test_job_that_cannot_run_again_has_no_edges() -> None:
    edges = DependencySets()
    first, second, _, waits, other = jobs(5)
    depend(edges, waits, first, second)
    edges.add(waits, "j2", AFTER)
    depend(edges, other, second)
    edges.close(waits, "j0")
    assert edges.release(waits) == 3
    assert (waits.blocked, waits.need_extras().holds) == ({}, False)
    assert [edges.count(job_id) for job_id in ("j0", "j1", "j2")] == [0, 1, 0]
    assert edges.open == 1


def test_some_open_names_the_first_portion_with_open_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.core.structures.edges.SORTED_MAX", 2)
    edges = DependencySets()
    *others, waits = jobs(7)
    depend(edges, waits, *others)
    extras = waits.need_extras()
    extras.needs, extras.more_needs = extras.needs[:2], (extras.needs[2:4][::-1], extras.needs[4:])
    assert edges.some_open(waits) == ["j0", "j1"]
    edges.close(waits, "j0")
    edges.close(waits, "j1")
    assert edges.some_open(waits) == ["j2", "j3"]
    edges.close(waits, "j3")
    edges.close(waits, "j4")
    assert edges.some_open(waits) == ["j2", "j5"]


def test_search_stops_at_jobs_with_excess_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.core.structures.edges.REACH_MAX", 3)
    edges = DependencySets()
    *others, waits = jobs(5)
    depend(edges, waits, *others[:3])
    known = {each.id: each for each in (*others, waits)}
    assert edges.reaches(known, [waits.id], {"j0"}, set())
    depend(edges, waits, others[3])
    assert edges.reaches(known, [waits.id], {"j0"}, set()) is None


def test_dependents_come_by_number_or_by_redrive_order() -> None:
    edges = DependencySets()
    first, *others = jobs(5)
    others[1].since = 99
    for other in reversed(others):
        depend(edges, other, first)
    found = [(other.id, number) for number, other in edges.dependents("j0")]
    assert found == [("j1", 2), ("j3", 4), ("j4", 5), ("j2", 99)]
    assert edges.is_since(others[1], "j0", 99)
    assert not edges.is_since(others[1], "j0", 3)
    assert not edges.is_since(first, "j0", 1)
    assert edges.dependents("j1") == []


def test_unordered_dependent_is_inserted_into_sweeps_not_yet_past() -> None:
    edges = DependencySets()
    first, *others = jobs(6)
    for other in (others[0], others[3]):
        depend(edges, other, first)
    sweeps = [CommitSweep(first, 5), CommitSweep(first, 5, at=3)]
    for sweep in sweeps:
        sweep.left = edges.begin_sweep(sweep)
    for other in (others[4], others[2], others[1]):
        depend(edges, other, first)
        edges.insert_late(other, ["j0", "j9"])
    assert [[number for number, _ in sweep.left or ()] for sweep in sweeps] == [[5, 4, 3, 2], [5, 4]]
    edges.end_sweep(sweeps[0])
    edges.end_sweep(sweeps[1])
    edges.insert_late(others[1], ["j0"])
    assert [sweep.left for sweep in sweeps] == [None, None]


# --- those canceled because of another -------------------------------------------------------------------------------


def test_canceled_dependents_of_a_job_are_found_by_number() -> None:
    edges = DependencySets()
    _, *others = jobs(4)
    for other in reversed(others):
        edges.set_canceled_by(other, "j0")
    order = []
    while (fallen := edges.first_canceled_by("j0")) is not None:
        order.append(fallen.id)
        edges.clear_canceled_by(fallen)
    assert order == ["j1", "j2", "j3"]
    assert len(edges) == 0


def test_job_is_canceled_because_of_one_other_at_a_time() -> None:
    edges = DependencySets()
    (fallen,) = jobs(1)
    edges.clear_canceled_by(fallen)
    edges.set_canceled_by(fallen, "a")
    edges.set_canceled_by(fallen, "b")
    assert (edges.first_canceled_by("a"), edges.first_canceled_by("b")) == (None, fallen)
    edges.clear_canceled_by(fallen)
    edges.clear_canceled_by(fallen)
    assert (edges.first_canceled_by("b"), len(edges)) == (None, 0)


# --- cycles ---------------------------------------------------------------------------------------------------------


def test_a_cycle_is_seen_through_any_number_of_jobs() -> None:
    edges = DependencySets()
    chain = jobs(50)
    for before, after in pairwise(chain):
        depend(edges, after, before)
    known = {each.id: each for each in chain}
    assert edges.reaches(known, ["j49"], {"j0"}, set())
    assert edges.reaches(known, ["j7"], {"j7"}, set())
    assert not edges.reaches(known, ["j48"], {"j49"}, set())
    assert not edges.reaches(known, ["nobody"], {"j0"}, set())


def test_ended_job_reaches_no_dependency() -> None:
    edges = DependencySets()
    first, second, third = jobs(3)
    depend(edges, second, first)
    depend(edges, third, second)
    second.state = CANCELED
    assert not edges.reaches({each.id: each for each in (first, second, third)}, ["j2"], {"j0"}, set())


def test_reaches_visits_each_job_once() -> None:
    edges = DependencySets()
    first, second, third, fourth = jobs(4)
    depend(edges, second, first)
    depend(edges, third, first, second)
    depend(edges, fourth, second, third)
    known = {each.id: each for each in (first, second, third, fourth)}
    seen: set[str] = set()
    assert not edges.reaches(known, ["j3"], {"elsewhere"}, seen)
    assert seen == {"j0", "j1", "j2", "j3"}
    assert not edges.reaches(known, ["j3", "j2"], {"j0"}, seen)


def test_no_more_than_a_thousand_jobs_are_looked_at() -> None:
    edges = DependencySets()
    chain = jobs(REACH_MAX + 2)
    for before, after in pairwise(chain):
        depend(edges, after, before)
    known = {each.id: each for each in chain}
    assert edges.reaches(known, [chain[-1].id], {"j0"}, set()) is None
    assert edges.reaches(known, [chain[-2].id], {"j0"}, set())


# --- invariants ------------------------------------------------------------------------------------------------------


def _miscount(queue: Queue) -> None:
    queue.engine.table.edges.open += 1


def _forget_one_end(queue: Queue) -> None:
    del queue.engine.table.edges._waiting["first"]["waits"]


def _forget_the_other_end(queue: Queue) -> None:
    queue.engine.table.jobs["waits"].blocked.clear()


def _forget_a_kept_edge(queue: Queue) -> None:
    del queue.engine.table.edges._waiting["over"]


def _keep_the_edge_of_a_job_that_is_over(queue: Queue) -> None:
    queue.engine.table.edges.keep(queue.engine.table.jobs["over"], "first")


def _keep_the_edge_of_nobody(queue: Queue) -> None:
    queue.engine.table.edges.keep(Job(job("nobody"), 99, DEFERRED, 0), "first")


def _forget_why_one_fell(queue: Queue) -> None:
    extras = queue.engine.table.jobs["fallen"].extras
    assert extras is not None
    extras.canceled_by = None


def _have_one_fall_that_has_not(queue: Queue) -> None:
    queue.engine.table.edges.set_canceled_by(queue.engine.table.jobs["waits"], "first")


def _keep_no_edge(queue: Queue) -> None:
    queue.engine.table.edges._waiting["nobody"] = {}


@pytest.mark.parametrize(
    "harm",
    [
        _miscount,
        _forget_one_end,
        _forget_the_other_end,
        _forget_a_kept_edge,
        _keep_the_edge_of_a_job_that_is_over,
        _keep_the_edge_of_nobody,
        _forget_why_one_fell,
        _have_one_fall_that_has_not,
        _keep_no_edge,
    ],
    ids=lambda harm: harm.__name__.strip("_"),
)
def test_edges_that_disagree_are_found(harm: Callable[[Queue], None]) -> None:
    queue = Queue(job("over"), job("dead", max_attempts=1), job("first", ["x"]))
    queue.start()
    queue.finish("over")
    queue.enqueue(
        job("waits", depends_on=(Dependency("over"), Dependency("first"))),
        job("fallen", depends_on=(Dependency("dead"),), on_dependency_failure="cancel"),
    )
    queue.fail("dead")
    assert queue.states("waits", "fallen") == "DEFERRED CANCELED"
    table = queue.engine.table
    table.edges.check(table.jobs, set())
    harm(queue)
    with pytest.raises((AssertionError, KeyError)):
        table.edges.check(table.jobs, set())


def test_cycles_are_found_once_without_their_dependents() -> None:
    waits = {"a": ["b"], "b": ["c", "x"], "c": ["a"], "d": ["a"], "e": ["f"], "f": ["e"]}
    assert sorted(sorted(cycle) for cycle in cycles(waits)) == [["a", "b", "c"], ["e", "f"]]
    assert all(after in waits[job_id] for cycle in cycles(waits) for job_id, after in pairwise([*cycle, cycle[0]]))
    assert list(cycles({"a": ["b"], "b": []})) == []
