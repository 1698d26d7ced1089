"""The rules of revivals: the jobs that a redrive requeues, and statistics of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.record import JobState
from queuehint.values.report import EdgeStats
from queuehint.values.signal import signal_id, signal_spec, wait_id, wait_spec
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Revivals:
    """A redrive downstream requeues the jobs that were canceled because of the redriven one, and no others."""

    def test_downstream_redrive_leaves_jobs_canceled_by_hand(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b"))
        store.enqueue(job("b2", after=["a"], on_dependency_failure="cancel"))
        store.cancel("b2")
        store.start()
        store.fail("a")
        store.redrive("a", downstream=True)
        store.wait(0)
        assert store.state("b2") is CANCELED

    def test_revived_job_without_open_dependencies_takes_its_place_at_once(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("x", max_attempts=1))
        store.enqueue(
            job("b", after=["a", Dependency("x", when="failure")], on_dependency_failure="cancel"),
            job("c", after=["b"], on_dependency_failure="cancel"),
        )
        store.start()
        store.fail("a", final=True)
        store.fail("x", final=True)
        store.redrive("a", downstream=True)
        store.wait(0)
        assert store.states("b", "c") == "DEFERRED DEFERRED"
        assert store.why("b").jobs == ("a",)
        assert store.run() == ["a", "b", "c"]


class EdgesTold:
    """Edges are counted, and the open dependencies of a job are listed."""

    def test_why_names_ten_dependencies_or_the_dead_ones(self, store: Store) -> None:
        ids = [f"a{number:02}" for number in range(15)]
        store.enqueue(*[job(each, max_attempts=1) for each in ids])
        store.enqueue(job("b", after=ids[::-1]))
        assert store.why("b").jobs == tuple(ids[:10])
        assert str(store.why("b")) == "b is DEFERRED: 15 of 15 jobs are still to end"
        store.start()
        store.fail("a14", final=True)
        store.fail("a12", final=True)
        assert (store.why("b").jobs, store.why("b").stuck) == (("a12", "a14"), True)
        assert str(store.why("b")) == "b is DEFERRED: waits for a redrive of a12, a14"

    def test_why_and_record_count_all_open_dependencies(self, store: Store) -> None:
        ids = [f"a{number:02}" for number in range(15)]
        store.enqueue(*[job(each, max_attempts=1) for each in ids])
        store.enqueue(job("b", after=ids), job("later", after=ids[:3], delay_ms=60_000))
        store.stage("S", job("part", after=ids[:2]))
        counted = [store.record(each).open_dependencies for each in ("a00", "b", "later")]
        assert (store.why("b").open_dependencies, counted) == (15, [0, 15, 3])
        assert store.start(3) == ids[:3]
        store.fail("a00", final=True)
        store.finish("a01", "a02")
        store.commit("S")
        assert (store.why("b").jobs, store.why("b").open_dependencies) == (("a00",), 13)
        assert [store.record(each).open_dependencies for each in ("b", "later", "part")] == [13, 1, 1]
        store.cancel("b")
        assert store.record("b").open_dependencies == store.why("b").open_dependencies == 0

    def test_edges_are_counted(self, store: Store) -> None:
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
        assert store.edges() == nothing
        store.enqueue(*[job(each, max_attempts=1) for each in "abc"])
        store.advance(6)
        store.enqueue(job("d", after="abc"), job("e", after="ab"), job("f", after="c"), job("g", after="a", delay_ms=9))
        assert store.edges() == EdgeStats(
            deferred=3,
            open_edges=7,
            oldest_id="d",
            oldest_ms=store.began_ms + 6,
            looked_at=3,
            most_blocked=3,
            most_awaited=3,
            behind_dead=0,
            orphans=(),
        )
        store.start()
        store.fail("c")
        store.finish("a")
        stats = store.edges()
        assert (stats.deferred, stats.open_edges, stats.behind_dead, stats.most_blocked) == (3, 4, 2, 2)

    def test_stats_count_waits_for_signals(self, store: Store) -> None:
        store.enqueue(wait_spec("s", "j", 1000), job("j", after=[wait_id("s", "j")]))
        signal = signal_id("s")
        store.enqueue(job("a"), job("k", after=[signal]), job("l", after=["a"]), job("m", after=[signal, "k"]))
        assert (store.stats().states[DEFERRED], store.stats().waiting_for_signals) == (5, 3)
        store.start()
        store.enqueue_from("a", wait_spec("s", "a", None))
        store.await_children("a", wait_id("s", "a"), again=True)
        assert store.stats().waiting_for_signals == 4
        store.cancel("k")
        store.enqueue(signal_spec("s", b"1", DAY_MS))
        store.wait(0)
        assert (store.stats().states[QUEUED], store.stats().waiting_for_signals) == (3, 0)

    def test_signal_count_covers_only_the_first_waiting_jobs(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.enqueue(*[job(f"b{n}", after=["a"]) for n in range(999)])
        store.enqueue(job("k", after=[signal_id("s")]), job("l", after=[signal_id("s")]))
        assert store.stats().waiting_for_signals == 1
        store.cancel("b0")
        assert store.stats().waiting_for_signals == 2

    def test_signal_count_covers_only_4000_edges(self, store: Store) -> None:
        ids = [str(number) for number in range(1000)]
        store.enqueue(*[job(each) for each in ids])
        for each, after in (("a", ids), ("b", ids), ("c", ids), ("d", ids[2:]), ("e", [*ids[1:], signal_id("s")])):
            store.enqueue(job(each, after=after))
        store.enqueue(*[job(each, after=[signal_id("s")]) for each in "klm"])
        assert store.stats().waiting_for_signals == 2
        store.cancel("a")
        assert store.stats().waiting_for_signals == 3

    def test_dependent_of_a_dead_job_is_pending_and_stalled(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", ["x"], after=["a"]), job("c", ["x"], after=["b"]))
        store.start()
        assert store.pending(("x",)).moving
        store.fail("a")
        for path in (None, ("x",)):
            pending = store.pending(path)
            assert (pending.unfinished, pending.moving, len(pending.reasons)) == (2, False, 2)
        assert store.pending(("x",)).reasons[0] == store.why("b")

    def test_dependent_of_a_delayed_job_is_moving(self, store: Store) -> None:
        store.enqueue(job("a", delay_ms=1000), job("b", ["x"], after=["a"]))
        assert store.pending().moving
        assert store.pending(("x",)).moving

    def test_signal_with_timeout_is_moving_where_times_count(self, store: Store) -> None:
        wait, endless = wait_spec("s", "j", 1000), wait_spec("s", "k", None)
        store.enqueue(job("j", ["x"], after=[wait.id]), wait, job("k", ["y"], after=[endless.id]), endless)
        store.enqueue(job("l", ["z"], after=[signal_id("s")], start_within_ms=1000), job("m", ["x"], after=["j"]))
        store.enqueue(job("a", max_attempts=1), job("n", ["n"], after=["a"], start_within_ms=9000))
        store.start()
        store.fail("a")
        for path, counted in ((None, True), (("x",), True), (("y",), False), (("z",), True), (("n",), False)):
            assert not store.pending(path).moving
            pending = store.pending(path, include_scheduled=True)
            assert (pending.moving, not pending.reasons) == (counted, counted)
        store.wait(1000)
        assert store.states("j", "l") == "QUEUED CANCELED"
        assert store.run() == ["j", "m"]
        assert [store.pending(None, include_scheduled=each).moving for each in (False, True)] == [False, False]
