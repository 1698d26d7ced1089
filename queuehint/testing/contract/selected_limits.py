"""The rules of limits of all jobs of a task or of a pool."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint.backends.base import Interest
from queuehint.errors import InvalidJobError, QueueFullError
from queuehint.operations import ListLimits, SetLimit
from queuehint.testing.contract.limits import at, limit, started
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import job
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import ReasonKind
from queuehint.values.spec import Dependency, JobSpec


def limit_jobs(store: Store, **kinds: Any) -> bool:
    return store.apply(SetLimit(Limit(**kinds))).changed


def of(task: str, *ids: str, **fields: Any) -> list[JobSpec]:
    return [JobSpec(id=job_id, task=task, **fields) for job_id in ids]


class LimitsOfJobs:
    """A limit of a task or a pool counts all its jobs, with or without a place."""

    def test_no_more_jobs_of_a_task_run_than_its_limit(self, store: Store) -> None:
        placed = [JobSpec(id="m3", task="mail", claims=(Claim(("a", "3")),))]
        store.enqueue(*of("mail", "m1", "m2"), *placed, *of("other", "o1", "o2"))
        assert limit_jobs(store, task="mail", most=2)
        assert store.start() == ["m1", "m2", "o1", "o2"]
        assert started(store) == [2]
        reason = store.why("m3")
        assert (reason.kind, reason.path_key, reason.selection) == (ReasonKind.LIMIT, None, RecordFilter(task="mail"))
        assert not reason.stuck
        store.finish("o1")
        assert store.start() == []
        store.finish("m1")
        assert store.start() == ["m3"]

    def test_pool_rate_bounds_the_starts_of_a_window(self, store: Store) -> None:
        store.enqueue(*of("t", "g1", "g2", "g3", pool="gpu"), *of("t", "d1", "d2"))
        limit_jobs(store, pool="gpu", rate=(2, 1000), burst=2)
        assert sorted(store.start(pools=("gpu", "default"))) == ["d1", "d2", "g1", "g2"]
        reason = store.why("g3")
        assert (reason.kind, reason.path_key, reason.selection) == (ReasonKind.LIMIT, None, RecordFilter(pool="gpu"))
        assert reason.until_ms == store.tick().next_ms == store.clock.now_ms() + 500
        store.wait(499)
        assert store.start(pools=("gpu",)) == []
        store.wait(1)
        store.sleep(Interest(pools=("gpu",)), 30)
        assert store.start(pools=("gpu",)) == ["g3"]

    @pytest.mark.parametrize("kind", ["failed", "snoozed", "released", "lost", "discarded", "unknown_task"])
    def test_slot_of_a_task_is_freed_once_at_any_stop(self, store: Store, kind: str) -> None:
        store.enqueue(*of("mail", "1", "2", "3"))
        limit_jobs(store, task="mail", most=1)
        assert store.start() == ["1"]
        store.settle("1", OutcomeKind(kind), delay_ms=60_000)
        assert started(store) == [0]
        assert len(store.start()) == 1
        assert store.start() == []
        assert started(store) == [1]

    def test_limits_of_path_task_and_pool_apply_together(self, store: Store) -> None:
        mails = [JobSpec(id=f"m{n}", task="mail", pool="gpu", claims=(Claim(("a", str(n))),)) for n in range(9)]
        others = [JobSpec(id=f"o{n}", task="other", pool="gpu", claims=(Claim(("a", f"o{n}")),)) for n in range(4)]
        store.enqueue(*mails, *others, *of("mail", "free1", "free2"))
        limit(store, "a", most=3)
        limit_jobs(store, task="mail", most=2)
        limit_jobs(store, pool="gpu", most=3)
        done: list[str] = []
        store.start(pools=("gpu", "default"))
        while running := [job_id for job_id in store.grants if store.state(job_id) == "STARTED"]:
            mailing = [job_id for job_id in running if job_id[0] != "o"]
            at_gpu = [job_id for job_id in running if not job_id.startswith("free")]
            assert len(mailing) <= 2
            assert len(at_gpu) <= 3
            store.finish(running[0])
            done.append(running[0])
            store.start(pools=("gpu", "default"))
        assert len(done) == 15

    def test_job_blocked_by_its_task_leaves_the_path_slot(self, store: Store) -> None:
        both = JobSpec(id="both", task="mail", claims=(Claim(("a", "0")),))
        store.enqueue(job("a", ["a", "1"]), *of("mail", "m"), both, job("next", ["a", "2"]))
        limit(store, "a", most=1)
        limit(store, most=9)
        limit_jobs(store, task="mail", most=1)
        assert store.start() == ["a", "m"]
        store.finish("a")
        assert store.start() == ["next"]
        store.finish("m")
        assert store.start() == []
        store.finish("next")
        assert store.start() == ["both"]

    def test_conflicting_jobs_keep_their_order_under_a_task_limit(self, store: Store) -> None:
        limit_jobs(store, task="mail", most=1)
        first = JobSpec(id="1", task="mail", claims=(Claim(("x",)),))
        second = JobSpec(id="2", task="other", claims=(Claim(("x", "y")),))
        store.enqueue(*of("mail", "0"), first, second)
        assert store.start() == ["0"]
        assert store.why("2").kind is ReasonKind.PLACE, "one that waits for its task keeps its place"
        store.finish("0")
        assert store.run() == ["1", "2"]

    def test_parked_jobs_of_a_task_leave_by_rank_then_enqueue(self, store: Store) -> None:
        limit_jobs(store, task="mail", most=1)
        store.enqueue(*of("mail", "1", "2", "3"), *of("mail", "4", priority=5))
        assert store.start(limit=1) == ["4"]
        assert store.start() == []
        store.finish("4")
        assert store.run() == ["1", "2", "3"]

    def test_task_limit_counts_running_jobs_and_can_be_changed(self, store: Store) -> None:
        store.enqueue(*of("mail", "1", "2", "3", "4", "5"))
        store.start(limit=3)
        assert limit_jobs(store, task="mail", most=2)
        assert not limit_jobs(store, task="mail", most=2)
        assert started(store) == [3]
        store.finish("1")
        assert store.start() == []
        store.finish("2")
        assert store.start() == ["4"]
        assert limit_jobs(store, task="mail", most=3, rate=(9, 1000))
        assert store.start() == ["5"]
        assert store.unlimit(task="mail")
        assert not store.unlimit(task="mail")
        store.enqueue(*of("mail", "6", "7"))
        assert store.start() == ["6", "7"]

    def test_path_task_and_pool_of_one_name_have_separate_limits(self, store: Store) -> None:
        store.apply(SetLimit(Limit(path=None, max_pending=1)))
        for name in ("a", "t:a"):
            for kinds in ({"pool": name}, {"task": name}, {"path": tuple(name.split(":"))}):
                assert limit_jobs(store, **kinds, most=1)
        with pytest.raises(QueueFullError):
            store.enqueue(job("1"), job("2"))
        limits = [state.limit for state in store.apply(ListLimits()).limits]
        assert [(each.path, each.task, each.pool) for each in limits] == [
            (None, None, None),
            (("a",), None, None),
            (("t", "a"), None, None),
            (None, "a", None),
            (None, "t:a", None),
            (None, None, "a"),
            (None, None, "t:a"),
        ]
        assert store.unlimit(("a",))
        assert store.unlimit(pool="a")
        assert store.unlimit()
        keys = [state.limit.key for state in store.apply(ListLimits()).limits]
        assert keys == [(("t", "a"), False), ("task", "a"), ("task", "t:a"), ("pool", "t:a")]

    def test_job_replaced_at_a_full_limit_waits_as_its_replacement(self, store: Store) -> None:
        limit_jobs(store, pool="p", most=1)
        store.enqueue(*of("t", "1", pool="p"))
        store.enqueue(*of("t", "2", pool="p", key="k", on_conflict="replace"))
        assert store.start(pools=("p", "q")) == ["1"]
        store.enqueue(*of("t", "3", pool="q", key="k", on_conflict="replace"))
        assert store.start(pools=("p", "q")) == ["2"]
        store.enqueue(*of("t", "4", pool="p"))
        store.finish("1")
        assert store.start(pools=("p", "q")) == ["4"]

    @pytest.mark.parametrize("kind", ["task", "pool"])
    def test_max_pending_bounds_unfinished_jobs_of_task_and_pool(self, store: Store, kind: str) -> None:
        store.enqueue(*of("x", "1", pool="x"), *of("other", "o1"))
        assert limit_jobs(store, **{kind: "x"}, max_pending=3)
        placed = JobSpec(id="2", task="x", pool="x", claims=(Claim(("a",)), Claim(("b",))))
        with pytest.raises(QueueFullError) as caught:
            store.enqueue(placed, *of("other", "o2"), *of("x", "3", "4", pool="x"))
        error = caught.value
        assert {"task": error.task, "pool": error.pool} == {"task": None, "pool": None, kind: "x"}
        assert (error.path_key, error.pending, error.limit, error.retry_after_s) == (None, 1, 3, None)
        assert str(error).startswith(f"{kind} 'x' has 1 unfinished jobs and takes at most 3")
        assert store.find("o2") is None, "a submission is taken whole or not at all"
        store.enqueue(placed, *of("x", "3", pool="x", delay_ms=1000))
        store.enqueue(*of("other", "o2", "o3"))
        assert [state.pending for state in store.apply(ListLimits()).limits] == [3]
        store.start(pools=("x",))
        store.advance(4000)
        with pytest.raises(QueueFullError) as caught:
            store.enqueue(*of("x", "4", pool="x"))
        assert caught.value.retry_after_s == 2
        store.finish("1")
        store.enqueue(*of("x", "4", pool="x"))
        assert limit_jobs(store, **{kind: "x"}, max_pending=4)
        store.enqueue(*of("x", "5", pool="x"))
        assert store.unlimit(None, **{kind: "x"})
        store.enqueue(*of("x", "6", "7", pool="x"))

    def test_new_limit_counts_jobs_of_all_states(self, store: Store) -> None:
        store.enqueue(*of("x", *[f"done{at}" for at in range(40)]))
        store.finish(*store.start())
        store.enqueue(*of("x", *[f"runs{at}" for at in range(3)]))
        store.start(3)
        store.enqueue(*of("x", *[f"later{at}" for at in range(40)], delay_ms=1000))
        store.enqueue(*of("x", "waits", depends_on=(Dependency("runs0"),)), *of("x", "ready"), *of("other", "o"))
        limit_jobs(store, task="x", max_pending=1)
        assert [state.pending for state in store.apply(ListLimits()).limits] == [3 + 40 + 2]

    def test_unfinished_jobs_of_a_task_are_counted_through_all_moves(self, store: Store) -> None:
        def pending() -> int | None:
            return store.apply(ListLimits()).limits[0].pending

        store.enqueue(*of("mail", "done", "dead", "waits"), JobSpec(id="later", task="mail", delay_ms=60_000))
        store.start(limit=2)
        store.finish("done")
        assert limit_jobs(store, task="mail", max_pending=100)
        assert pending() == 3, "the first count is of what is unfinished"
        store.fail("dead", final=True)
        assert pending() == 2
        store.redrive("dead")
        assert pending() == 3
        store.start()
        store.settle("waits", OutcomeKind.RELEASED)
        assert pending() == 3
        store.cancel("waits")
        assert pending() == 2
        store.enqueue(*of("mail", "r", key="k", on_conflict="replace", delay_ms=9))
        assert pending() == 3
        store.enqueue(*of("other", "r2", key="k", on_conflict="replace", delay_ms=9))
        assert pending() == 2, "one that is of another task now"
        store.enqueue(*of("mail", "r3", key="k", on_conflict="replace", delay_ms=9))
        assert pending() == 3
        store.enqueue_from("dead", *of("mail", "child1", "child2"))
        store.await_children("dead", "child1", "child2")
        assert pending() == 5
        store.wait(100_000)
        store.finish(*store.start())
        store.finish(*store.start())
        assert pending() == 0
        assert limit_jobs(store, task="mail", most=1, max_pending=100)
        store.enqueue(*of("mail", "a", "b"))
        assert limit_jobs(store, task="mail", most=2, max_pending=100)
        assert pending() == 2, "another number of running jobs changes no count of waiting ones"

    def test_parts_of_a_flow_count_for_their_task_at_once(self, store: Store) -> None:
        def pending() -> int | None:
            return store.apply(ListLimits()).limits[0].pending

        store.stage("S", *of("mail", "1", "2"))
        limit_jobs(store, task="mail", max_pending=4)
        assert pending() == 0, "those that came before count when they are committed"
        store.stage("T", *of("mail", "3", "4"))
        store.stage("S", *of("mail", "5"))
        assert pending() == 3
        with pytest.raises(QueueFullError):
            store.stage("T", *of("mail", "6", "7"))
        store.commit("S")
        store.wait(0)
        assert pending() == 5
        store.wait(3_600_000)
        assert pending() == 3, "a submission that was never committed is dropped"
        store.finish(*store.start())
        assert pending() == 0

    @pytest.mark.parametrize(
        "kinds",
        [
            {"task": "a", "pool": "b", "most": 1},
            {"path": ("x",), "task": "a", "most": 1},
            {"task": "a", "each": True, "most": 1},
            {"pool": "a", "each": True, "max_pending": 1},
        ],
    )
    def test_a_limit_is_of_one_path_task_or_pool(self, store: Store, kinds: dict[str, Any]) -> None:
        with pytest.raises(InvalidJobError):
            limit_jobs(store, **kinds)
        with pytest.raises(InvalidJobError):
            store.unlimit(("x",), task="a")
        assert not store.apply(ListLimits()).limits

    def test_jobs_that_wait_for_a_pool_limit_are_moving(self, store: Store) -> None:
        store.enqueue(*of("t", "1", "2"), *at("a", 2))
        limit_jobs(store, pool="default", rate=(1, 60_000))
        store.finish(*store.start())
        assert store.pending().moving
        assert store.stats().stuck["no_worker"] == 0
