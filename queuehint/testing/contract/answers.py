"""The rules of diagnostic queries: reasons of waits, trees, and progress of pending work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.core.state import POOL_SEEN_MS
from queuehint.errors import JobNotFoundError
from queuehint.testing.contract.trees import spread
from queuehint.testing.driver import SHARED, claim, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import Reason, ReasonKind, TreeNode

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def reason(id: str, state: JobState, kind: ReasonKind, **fields: object) -> Reason:
    return Reason(job_id=id, state=state, kind=kind, **fields)  # type: ignore[arg-type]


class WhyAJobWaits:
    """`Why` names the kind of a wait, and its blockers or its end."""

    def test_why_of_a_job_that_is_over_is_its_cause(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("c", max_attempts=1))
        store.start()
        store.finish("a")
        store.settle("b", OutcomeKind.DISCARDED, reason="gone")
        store.fail("c")
        assert store.why("a") == reason("a", FINISHED, ReasonKind.OVER)
        assert store.why("b") == reason("b", CANCELED, ReasonKind.OVER, detail="gone")
        assert store.why("c") == reason("c", FAILED, ReasonKind.OVER, detail="failed")

    def test_why_of_a_started_job_names_its_worker(self, store: Store) -> None:
        store.enqueue(job("a", timeout_ms=1000))
        store.start()
        store.advance(1000)
        assert store.why("a") == reason("a", STARTED, ReasonKind.RUNNING, detail="worker w, attempt 1")
        store.advance(1001)
        assert store.why("a").kind is ReasonKind.OVERDUE

    def test_why_of_a_stopping_job_is_its_running_code(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        assert store.why("a").kind is ReasonKind.RUNNING
        store.cancel("a")
        assert store.why("a").kind is ReasonKind.OVERDUE

    def test_why_of_a_scheduled_job_is_its_time(self, store: Store) -> None:
        store.enqueue(job("a", delay_ms=500))
        assert store.why("a") == reason("a", SCHEDULED, ReasonKind.TIME, until_ms=store.began_ms + 500)

    def test_why_of_a_deferred_job_names_its_dependencies(self, store: Store) -> None:
        store.enqueue(job("a", key="k"))
        store.start()
        store.enqueue(job("b", key="k", on_conflict="after"))
        assert store.why("b") == reason("b", DEFERRED, ReasonKind.DEPENDENCY, jobs=("a",), open_dependencies=1)

    def test_why_of_a_waiting_job_names_place_and_jobs_ahead(self, store: Store) -> None:
        store.enqueue(job("a", ["x", "1"]), job("b", ["x", "2"]), job("c", ["x"]), job("d", ["x", "3"]))
        store.start()
        assert store.why("c") == reason("c", QUEUED, ReasonKind.PLACE, jobs=("a", "b"), path_key="x")
        assert store.why("d") == reason("d", QUEUED, ReasonKind.PLACE, jobs=("c",), path_key="x")

    def test_why_names_the_first_claim_that_waits(self, store: Store) -> None:
        store.enqueue(job("a", ["y"]), job("both", claims=(claim("x"), claim("y"), claim("z"))))
        assert store.why("both") == reason("both", QUEUED, ReasonKind.PLACE, jobs=("a",), path_key="y")

    def test_why_behind_a_dead_hold_names_it_and_is_stuck(self, store: Store) -> None:
        store.enqueue(job("dead", ["x"], on_dead="hold", max_attempts=1), job("a", ["x"]), job("b", ["x", "y"]))
        store.start()
        store.fail("dead")
        assert store.why("a") == reason("a", QUEUED, ReasonKind.DEAD_HOLD, jobs=("dead",), path_key="x", stuck=True)
        assert store.why("b").kind is ReasonKind.DEAD_HOLD

    def test_why_of_a_job_in_back_off_is_until_when(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.start()
        store.fail("a", delay_ms=700)
        assert store.why("a") == reason("a", QUEUED, ReasonKind.BACKOFF, until_ms=store.began_ms + 700)

    def test_why_of_a_paused_job_names_the_paused_path(self, store: Store) -> None:
        store.enqueue(job("a", ["x", "y"]))
        store.pause("x")
        expected = reason("a", QUEUED, ReasonKind.PAUSED, path_key="x", stuck=True)
        assert store.why("a") == expected
        assert store.start() == []
        assert store.why("a") == expected
        store.resume("x")
        assert store.why("a").kind is ReasonKind.WORKER

    def test_why_of_an_unknown_task_is_the_missing_worker(self, store: Store) -> None:
        store.enqueue(attrs.evolve(job("a"), task="render"))
        store.start()
        store.settle("a", OutcomeKind.UNKNOWN_TASK)
        assert store.why("a") == reason(
            "a", QUEUED, ReasonKind.UNKNOWN_TASK, until_ms=store.began_ms + 5000, stuck=True, detail="task render"
        )
        assert store.stats().stuck["unknown_task"] == 1
        store.wait(5000)
        store.start()
        store.fail("a", delay_ms=100)
        assert store.why("a").kind is ReasonKind.BACKOFF

    def test_why_of_a_ready_job_reports_a_served_pool(self, store: Store) -> None:
        store.enqueue(job("a", pool="p"))
        assert store.why("a") == reason(
            "a", QUEUED, ReasonKind.NO_WORKER, stuck=True, detail="pool p; there are no workers"
        )
        assert store.stats().stuck["no_worker"] == 1
        store.exchange(pools=("p",))
        assert store.why("a") == reason("a", QUEUED, ReasonKind.WORKER, detail="pool p")
        assert store.stats().stuck["no_worker"] == 0

    def test_why_of_a_ready_caller_is_its_imminent_start(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], presence_ms=1000))
        assert store.why("a") == reason("a", QUEUED, ReasonKind.CALLER)

    def test_why_of_no_job_is_an_error(self, store: Store) -> None:
        store.enqueue(job("gone", retention_ms=0))
        store.cancel("gone")
        for job_id in ("nobody", "gone"):
            with pytest.raises(JobNotFoundError, match=f"no job '{job_id}'"):
                store.why(job_id)

    def test_pool_without_requests_for_a_minute_is_unserved(self, store: Store) -> None:
        store.enqueue(job("a", pool="p"))
        store.exchange(pools=("p",))
        store.exchange(pools=("q",))
        store.advance(POOL_SEEN_MS)
        store.exchange(pools=("q",))
        assert store.why("a").kind is ReasonKind.WORKER
        store.advance(1)
        store.exchange(pools=("q",))
        assert store.why("a").kind is ReasonKind.NO_WORKER


class Trees:
    """`Tree` counts the unfinished jobs at each place."""

    def test_tree_counts_live_jobs_of_each_place(self, store: Store) -> None:
        store.enqueue(
            job("a", ["x", "1"]),
            job("b", claims=(claim("x", "2", mode=SHARED),)),
            job("c", claims=(claim("x", "2", mode=SHARED),)),
            job("d", ["x"]),
            job("e", ["x", "3"]),
            job("f", ["y"]),
        )
        store.start(2)
        store.pause("x")
        store.apply(op.Close(("x", "1")))
        one = TreeNode(
            path_key="x:1", started=1, started_below=1, waiting=0, granted=1, passing=0, paused=False, closed=True
        )
        two = TreeNode(
            path_key="x:2", started=1, started_below=1, waiting=0, granted=2, passing=0, paused=False, closed=False
        )
        expected = TreeNode(
            path_key="x",
            started=0,
            started_below=2,
            waiting=2,
            granted=0,
            passing=3,
            paused=True,
            closed=False,
            children=(one, two),
        )
        assert store.apply(op.Tree(("x",))) == expected
        whole = store.apply(op.Tree((), 2))
        assert (whole.path_key, whole.passing, whole.started_below) == ("root", 6, 2)
        assert [child.path_key for child in whole.children] == ["x", "y"]
        assert whole.children[0] == expected
        assert store.apply(op.Tree((), 1)).children[0].children == ()
        assert store.apply(op.Tree((), 0)).children == ()

    def test_tree_of_an_empty_place_has_zeros_and_marks(self, store: Store) -> None:
        store.pause("x", "y")
        node = store.apply(op.Tree(("x", "y"), 3))
        assert node == TreeNode(
            path_key="x:y", started=0, started_below=0, waiting=0, granted=0, passing=0, paused=True, closed=False
        )

    def test_the_tree_counts_the_places_that_dead_jobs_hold(self, store: Store) -> None:
        fields: Any = {"max_attempts": 1, "on_dead": "hold"}
        store.enqueue(
            job("a", ["x"], **fields),
            job("b", claims=(claim("y", "1", mode=SHARED), claim("z")), **fields),
            job("c", claims=(claim("y", "1", mode=SHARED),)),
            job("d", ["y:1"], **fields),
            job("e", ["x"]),
        )
        store.start()
        for dead in ("a", "b", "d"):
            store.fail(dead)
        whole = store.apply(op.Tree((), 2))
        found = {node.path_key: node for node in (whole, *whole.children, *whole.children[1].children)}
        assert {key: (node.dead, node.granted, node.waiting) for key, node in found.items()} == {
            "root": (0, 0, 0),
            "x": (1, 1, 1),
            "y": (0, 0, 0),
            "y:1": (1, 2, 0),
            "y\\:1": (1, 1, 0),
            "z": (1, 1, 0),
        }
        store.apply(op.Discard(("a", "b", "d")))
        assert [store.apply(op.Tree((name,))).dead for name in ("x", "z")] == [0, 0]

    def test_tree_counts_a_dead_job_at_the_root_only_there(self, store: Store) -> None:
        store.enqueue(job("a", [], max_attempts=1, on_dead="hold"))
        store.start()
        store.fail("a")
        store.enqueue(job("b", ["root"]))
        whole = store.apply(op.Tree((), 1))
        assert (whole.dead, [child.dead for child in whole.children]) == (1, [0] * len(whole.children))
        assert store.apply(op.Tree(("root",))).dead == 0

    def test_the_tree_shows_a_thousand_nodes_at_most(self, store: Store) -> None:
        store.enqueue(*spread("a", [(f"{number // 3:04}", str(number % 3)) for number in range(1800)]))

        def size(node: TreeNode) -> int:
            return 1 + sum(size(child) for child in node.children)

        assert size(store.apply(op.Tree((), 64))) == 1001
        assert size(store.apply(op.Tree((), 1))) == 601


class WhatIsLeft:
    """`CountPending` counts the jobs left below a path, and reports whether any of them progresses without help."""

    def test_records_come_in_requested_order_with_none_for_missing(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        records = store.apply(op.Get(("b", "nobody", "a", "b"))).records
        assert [record and record.id for record in records] == ["b", None, "a", "b"]

    def test_an_empty_queue_has_nothing_pending(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.run()
        for path in (None, (), ("x",)):
            pending = store.pending(path)
            assert (pending.unfinished, pending.moving, pending.reasons) == (0, False, ())

    def test_scheduled_jobs_are_pending_only_if_asked_for(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], delay_ms=5), job("b", ["x", "y"], delay_ms=5), job("c", delay_ms=5))
        assert [store.pending(path).unfinished for path in (None, (), ("x",))] == [0, 0, 0]
        paths: list[tuple[str, ...] | None] = [None, (), ("x",), ("y",)]
        assert [store.pending(path, include_scheduled=True).unfinished for path in paths] == [3, 2, 2, 0]
        assert store.pending(include_scheduled=True).moving
        assert store.pending(("x",), include_scheduled=True).moving

    def test_pending_below_a_path_counts_once_a_claim(self, store: Store) -> None:
        store.enqueue(job("a", claims=(claim("x", "1"), claim("x", "2"))))
        assert store.pending(("x",)).unfinished == 2
        assert store.pending(("x", "1")).unfinished == 1
        assert store.pending(("y",)).unfinished == 0

    @pytest.mark.parametrize("path", [None, ("x",)])
    def test_pending_moves_while_jobs_run_or_wait_for_workers(self, store: Store, path: tuple[str, ...] | None) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]), job("c", ["x", "y"]))
        store.exchange()
        assert store.pending(path).moving
        store.start()
        assert store.pending(path).moving
        store.fail("a", delay_ms=1000)
        pending = store.pending(path)
        assert (pending.unfinished, pending.moving, pending.reasons) == (3, True, ())

    def test_pending_job_behind_a_stuck_job_is_stuck_through_others(self, store: Store) -> None:
        store.enqueue(job("dead", ["x"], on_dead="hold", max_attempts=1), job("a", claims=(claim("x"), claim("y"))))
        store.start()
        store.fail("dead")
        store.enqueue(job("b", ["y"], key="k"), job("c", ["y", "z"]))
        assert not store.pending(("y",)).moving
        assert not store.pending(("y", "z")).moving
        assert not store.pending().moving
        store.discard("dead")
        assert store.pending(("y", "z")).moving

    def test_pending_of_a_path_ignores_work_of_other_paths(self, store: Store) -> None:
        store.enqueue(job("stuck", ["x"]), job("runs", ["y"]))
        store.pause("x")
        assert store.start() == ["runs"]
        assert store.pending(("y",)).moving
        assert not store.pending(("x",)).moving
        assert store.pending(("x",)).reasons == (store.why("stuck"),)

    def test_a_dependency_that_moves_makes_its_dependent_move(self, store: Store) -> None:
        store.enqueue(job("a", ["y"], key="k"))
        store.start()
        store.enqueue(job("b", ["x"], key="k", on_conflict="after"))
        assert store.pending(("x",)).moving
        assert store.pending().moving

    def test_path_of_a_thousand_jobs_moves_if_any_does(self, store: Store) -> None:
        store.enqueue(job("other", ["y"]))
        store.pause("x")
        for batch in range(2):
            store.enqueue(*[job(f"{batch}-{number}", ["x"]) for number in range(600)])
        store.start(1)
        store.start(1)
        pending = store.pending(("x",))
        assert (pending.unfinished, pending.moving, pending.reasons) == (1000, True, ())
        store.finish("other")
        pending = store.pending(("x",))
        assert (pending.unfinished, pending.moving, len(pending.reasons)) == (1000, False, 100)
        assert len(store.pending().reasons) == 100
