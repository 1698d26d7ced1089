"""Grants that are made again as they were made first, whatever the rules would choose now."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint import operations as op
from queuehint.core.working import NotGrantableError
from queuehint.testing.driver import Driver, Queue, job
from queuehint.values.outcome import Grant


class Again(Driver):
    """Claims that are answered as a journal says."""

    def __init__(self, queue: Queue, token: int, taken: list[tuple[int, bool]]) -> None:
        super().__init__()
        self.queue, self.token, self.taken = queue, token, taken

    def apply(self, operation: op.Operation[Any]) -> Any:
        return self.queue.engine.grant_again(operation, self.queue.now_ms, self.token, self.taken)

    def advance(self, ms: int) -> None:
        raise NotImplementedError


def granted_again(queue: Queue, token: int, *taken: tuple[int, bool], **fields: Any) -> list[Grant]:
    """Claim jobs again; then all invariants hold."""
    found = Again(queue, token, list(taken)).exchange(**{"limit": 9, **fields}).grants
    queue.engine.check()
    return list(found)


def free(*ids: str, **fields: Any) -> Queue:
    """Jobs that wait for none."""
    return Queue(*[job(job_id, [job_id], **fields) for job_id in ids])


def test_jobs_are_granted_by_number_with_their_old_tokens() -> None:
    queue = free("a", "b", "c")
    grants = granted_again(queue, 70, (3, True), (1, True), lease_ms=5)
    assert [(grant.spec.id, grant.token, grant.lease_until_ms) for grant in grants] == [
        ("c", 70, queue.now_ms + 5),
        ("a", 71, queue.now_ms + 5),
    ]
    assert queue.start() == ["b"]
    assert queue.grants["b"].token == 72


def test_no_job_is_granted_where_none_was() -> None:
    queue = free("a")
    assert granted_again(queue, 1) == []
    assert queue.start() == ["a"]


@pytest.mark.parametrize("number", [2, 9])
def test_missing_or_gated_job_is_refused(number: int) -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]))
    with pytest.raises(NotGrantableError, match=f"the job number {number} may not run") as caught:
        granted_again(queue, 1, (number, True))
    assert caught.value.job_id == ("b" if number == 2 else None)


def test_granted_job_is_granted_again_even_if_paused_or_parked() -> None:
    queue = free("a", "b")
    queue.pause("a")
    queue.pause("b")
    assert queue.start(1) == []
    assert [grant.spec.id for grant in granted_again(queue, 1, (1, True), (2, True))] == ["a", "b"]


def test_parked_job_is_parked_again_and_offered_afterwards() -> None:
    queue, twin = free("a", "b", "c"), free("a", "b", "c")
    for each in (queue, twin):
        each.pause("b")
    assert queue.start(2) == ["a", "c"]
    assert queue.engine.state.aside == [(1, 2)]
    granted_again(twin, 1, (1, True), (2, False), (3, True))
    assert twin.engine.state.aside == [(1, 2)]
    assert twin.engine.state.units == queue.engine.state.units
    for each in (queue, twin):
        each.resume("b")
        assert each.start() == ["b"]
        assert each.engine.state.aside == []


def test_a_job_that_is_parked_by_now_stays_so() -> None:
    queue = free("a", "b")
    queue.pause("a")
    assert queue.start() == ["b"]
    assert granted_again(queue, 1, (1, False)) == []
    assert queue.engine.table.jobs["a"].parked is not None
    assert queue.engine.state.aside == []
    assert granted_again(queue, 1, (2, False)) == [], "it is not ready any more"


def test_a_job_that_nothing_stops_now_is_offered_again() -> None:
    queue = free("a", "b")
    assert [grant.spec.id for grant in granted_again(queue, 1, (1, False), (2, True))] == ["b"]
    assert queue.start() == ["a"]


def test_further_jobs_are_granted_when_the_budget_is_used_up() -> None:
    queue = Queue(job("a", ["a"]), job("b", ["b"]), budget=1)
    queue.pause("a")
    assert [grant.spec.id for grant in granted_again(queue, 1, (1, False), (2, True))] == ["b"]
