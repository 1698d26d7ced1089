"""The rules of conflicts: which claims exclude one another, and that a blocked job never starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint.testing.driver import claim, job
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Conflicts:
    """Two jobs conflict if one's path is a prefix of the other's, segment by segment, and not both only read."""

    @pytest.mark.parametrize(
        "hints",
        [
            [["doc1", "a"], ["doc1", "b"], ["doc1", "c"]],
            [["doc1"], ["doc10"], ["doc"]],
            [["a:b"], ["a", "b"], ["a\\", "b"]],
            [["root"], ["a"], ["\\root"]],
            [[], None, None],
            [["a"], None],
            [None, None],
            [["é"], ["e\u0301"]],
            [["*"], ["a"], ["?"]],
        ],
        ids=str,
    )
    def test_jobs_that_do_not_conflict_start_together(self, store: Store, hints: list[list[str] | None]) -> None:
        store.enqueue(*[job(f"j{number}", hint) for number, hint in enumerate(hints)])
        assert len(store.start()) == len(hints)

    @pytest.mark.parametrize(
        "first, second",
        [
            (["a"], ["a"]),
            (["a"], ["a", "b"]),
            (["a", "b"], ["a"]),
            (["a", "b", "c"], ["a"]),
            ([], ["a"]),
            (["a"], []),
            ([], []),
            ([], ["root"]),
            (["root"], []),
        ],
        ids=str,
    )
    def test_jobs_that_conflict_run_one_at_a_time_in_order(
        self, store: Store, first: list[str], second: list[str]
    ) -> None:
        store.enqueue(job("j1", first), job("j2", second))
        assert store.start() == ["j1"]
        store.finish("j1")
        assert store.start() == ["j2"]
        store.finish("j2")
        assert store.is_clean

    def test_a_parent_behind_ever_arriving_children_starts_right_after_those_before_it(self, store: Store) -> None:
        store.enqueue(job("c1", ["a", "1"]), job("c2", ["a", "2"]), job("parent", ["a"]))
        assert store.start() == ["c1", "c2"]
        for number in range(60):
            store.enqueue(job(f"late{number}", ["a", str(number % 7)]))
            assert store.start(1) == []
        store.finish("c1", "c2")
        assert store.start() == ["parent"]

    def test_a_blocked_job_never_hides_a_ready_one_however_many_stand_before_it(self, store: Store) -> None:
        store.enqueue(job("running", ["doc"]))
        store.start()
        claims = (claim("doc"),)
        store.enqueue(*[job(f"j{number}", claims=claims) for number in range(1000)])
        store.enqueue(job("ready", ["other"]))
        assert store.start(1) == ["ready"]
        assert store.start(1) == []
