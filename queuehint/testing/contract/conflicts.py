"""The rules of conflicts: which claims exclude one another, and that a blocked job never starts."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest

from queuehint.operations import Get, Tree
from queuehint.testing.driver import SHARED, Queue, claim, job
from queuehint.values.hint import normalise
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store
    from queuehint.values.record import JobRecord
    from queuehint.values.report import TreeNode
    from queuehint.values.spec import JobSpec


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

    def test_parent_behind_arriving_children_starts_right_after_the_earlier_ones(self, store: Store) -> None:
        store.enqueue(job("c1", ["a", "1"]), job("c2", ["a", "2"]), job("parent", ["a"]))
        assert store.start() == ["c1", "c2"]
        for number in range(60):
            store.enqueue(job(f"late{number}", ["a", str(number % 7)]))
            assert store.start(1) == []
        store.finish("c1", "c2")
        assert store.start() == ["parent"]

    @pytest.mark.parametrize("mode", ["below", "shared"])
    def test_all_that_jobs_let_through_start_when_these_end_together(self, store: Store, mode: str) -> None:
        store.enqueue(*[job(doc, [doc]) for doc in "ab"])
        behind = [(f"{doc}{number}", [doc]) for number in range(5) for doc in "ab"]
        if mode == "shared":
            store.enqueue(*[job(name, claims=(claim(*path, mode="shared"),)) for name, path in behind])
        else:
            store.enqueue(*[job(name, [*path, name]) for name, path in behind])
        store.enqueue(*[job(f"{doc}-last", [doc]) for doc in "ab"])
        assert store.start() == ["a", "b"]
        store.exchange(store.outcome("a"), store.outcome("b"))
        assert sorted(store.start()) == sorted([name for name, _ in behind])
        store.finish(*[name for name, _ in behind])
        assert store.start() == ["a-last", "b-last"]

    def test_blocked_jobs_never_hide_a_ready_one(self, store: Store) -> None:
        store.enqueue(job("running", ["doc"]))
        store.start()
        claims = (claim("doc"),)
        store.enqueue(*[job(f"j{number}", claims=claims) for number in range(1000)])
        store.enqueue(job("ready", ["other"]))
        assert store.start(1) == ["ready"]
        assert store.start(1) == []

    @pytest.mark.parametrize("seed", range(3))
    def test_gates_equal_a_rebuild_from_unfinished_jobs(self, store: Store, seed: int) -> None:
        """However jobs came, ran and left: once nothing is left over, places have no memory."""
        random = Random(seed)

        def one() -> JobSpec:
            paths = [
                tuple([random.choice("ab") for _ in range(random.randrange(4))]) for _ in range(random.choice([1, 2]))
            ]
            return job(
                "", claims=normalise([claim(*path, mode=random.choice(["exclusive", SHARED])) for path in paths])
            )

        started: list[str] = []
        for number in range(40):
            store.enqueue(attrs.evolve(one(), id=f"j{number:02}"))
            if random.random() < 0.5:
                started += store.start(random.randrange(3))
            if started and random.random() < 0.6:
                store.finish(started.pop(random.randrange(len(started))))
            if random.random() < 0.2:
                store.cancel(f"j{random.randrange(number + 1):02}")
        store.wait(0)
        records = store.apply(Get(tuple([f"j{number:02}" for number in range(40)]))).records
        placed = sorted([record for record in records if record is not None and record.seq is not None], key=_seq)
        anew = Queue(*[job(record.id, claims=record.spec.claims) for record in placed])
        assert _gates(store.apply(Tree((), 4))) == _gates(anew.apply(Tree((), 4)))
        waiting = [record.id for record in placed if store.why(record.id).kind is ReasonKind.PLACE]
        assert waiting, "some are stopped at a gate"
        assert waiting == [record.id for record in placed if anew.why(record.id).kind is ReasonKind.PLACE]
        assert [store.why(job_id) for job_id in waiting] == [anew.why(job_id) for job_id in waiting]


def _seq(record: JobRecord) -> int:
    assert record.seq is not None
    return record.seq


def _gates(node: TreeNode) -> tuple[object, ...]:
    """Return the claims held at and below a node, and the number of waiting jobs."""
    return (node.path_key, node.waiting, node.granted, node.passing, *[_gates(child) for child in node.children])
