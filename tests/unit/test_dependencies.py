"""Explicit edges between jobs, kept at both ends."""

from __future__ import annotations

from queuehint.core.dependencies import DependencySets
from queuehint.core.job import Job
from queuehint.records import JobState
from tests.support import job


def jobs(count: int) -> list[Job]:
    return [Job(job(f"j{number}"), number, JobState.DEFERRED, 0) for number in range(count)]


def test_an_edge_is_kept_at_both_ends_until_it_is_resolved() -> None:
    edges = DependencySets()
    first, second = jobs(2)
    edges.add(second, first)
    assert edges.has_dependents(first)
    assert not edges.has_dependents(second)
    assert second.blocked == {"j0"}
    assert edges.resolve_one(first) is second
    assert second.blocked == set()
    assert not edges.has_dependents(first)
    assert edges.resolve_one(first) is None
    assert len(edges) == 0


def test_dependents_are_resolved_in_order_of_number() -> None:
    edges = DependencySets()
    first, *others = jobs(5)
    for other in reversed(others):
        edges.add(other, first)
    assert [edges.resolve_one(first) for _ in range(4)] == others


def test_a_job_that_waits_no_more_has_no_edges() -> None:
    edges = DependencySets()
    first, second, third, fourth = jobs(4)
    edges.add(third, first)
    edges.add(third, second)
    edges.add(fourth, second)
    edges.drop(third)
    assert third.blocked == set()
    assert not edges.has_dependents(first)
    assert edges.resolve_one(second) is fourth
    assert len(edges) == 0
