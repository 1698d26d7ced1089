"""The rules of places: concurrency, order, and pauses."""

from __future__ import annotations

from typing import TypeVar

import attrs
import pytest

from queuehint import (
    Claim,
    JobState,
    PathClosedError,
)
from queuehint import operations as op
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import SHARED, job
from queuehint.values.report import ReasonKind

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class SerialPath:
    """Jobs of one path run one at a time, in the order they were queued."""

    def test_jobs_of_one_path_run_one_at_a_time(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]), job("c", ["doc"]))
        for name in "abc":
            assert store.start() == [name]
            assert store.start() == []
            store.finish(name)

    def test_a_job_that_is_started_is_granted_to_nobody_else(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]))
        assert store.start(worker="one") == ["a"]
        assert store.start(worker="two") == []

    def test_next_job_is_granted_in_the_exchange_that_settles(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start()
        reply = store.exchange(store.outcome("a"), limit=1)
        assert reply.verdicts == (op.Verdict.DONE,)
        assert [grant.spec.id for grant in reply.grants] == ["b"]

    def test_shared_jobs_run_together_and_an_exclusive_one_waits(self, store: Store) -> None:
        store.enqueue(
            job("a", claims=(Claim(("doc",), SHARED),)),
            job("b", claims=(Claim(("doc",), SHARED),)),
            job("c", ["doc"]),
            job("d", claims=(Claim(("doc",), SHARED),)),
        )
        assert store.start() == ["a", "b"]
        store.finish("a")
        assert store.start() == []
        store.finish("b")
        assert store.start() == ["c"]
        store.finish("c")
        assert store.start() == ["d"]

    def test_a_job_with_two_places_waits_for_both(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["y"]), job("c", claims=(Claim(("x",)), Claim(("y",)))))
        store.start()
        store.finish("a")
        assert store.start() == []
        store.finish("b")
        assert store.start() == ["c"]

    def test_a_job_never_waits_for_its_own_claims(self, store: Store) -> None:
        store.enqueue(job("a", claims=(Claim(("doc",)), Claim(("doc", "1")), Claim(("doc",), SHARED))).check())
        assert store.start() == ["a"]

    def test_job_that_reads_whole_and_writes_part_is_exclusive(self, store: Store) -> None:
        store.enqueue(
            job("a", claims=(Claim(("doc",), SHARED), Claim(("doc", "1")))).check(),
            job("b", claims=(Claim(("doc", "1"), SHARED),)),
            job("c", claims=(Claim(("doc", "2"), SHARED),)),
        )
        assert store.start() == ["a"]
        store.finish("a")
        assert store.start() == ["b", "c"]

    def test_two_places_whose_names_begin_alike_are_both_taken(self, store: Store) -> None:
        store.enqueue(job("a", claims=(Claim(("doc1",)), Claim(("doc10",)))).check(), job("b", ["doc10"]))
        assert store.start() == ["a"]


class Ancestors:
    """A path conflicts with its ancestors and descendants."""

    def test_whole_waits_for_earlier_parts_and_blocks_later_ones(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("b", ["doc", "2"]), job("whole", ["doc"]), job("c", ["doc", "1"]))
        assert store.start() == ["a", "b"]
        store.finish("b")
        assert store.start() == []
        store.finish("a")
        assert store.start() == ["whole"]
        assert store.start() == []
        store.finish("whole")
        assert store.start() == ["c"]

    def test_parts_queued_behind_a_whole_start_when_it_ends(self, store: Store) -> None:
        store.enqueue(job("whole", ["doc"]), *[job(f"c{n}", ["doc", str(n)]) for n in range(9)])
        assert store.start() == ["whole"]
        store.finish("whole")
        assert store.start() == [f"c{n}" for n in range(9)]

    @pytest.mark.parametrize("above, below", [("doc", "doc:1"), ("doc", "doc:1:x"), ("", "doc")])
    def test_shared_job_and_exclusive_one_below_exclude_each_other(self, store: Store, above: str, below: str) -> None:
        whole, part = (tuple(key.split(":")) if key else () for key in (above, below))
        reads, writes = job("reads", claims=(Claim(whole, SHARED),)), job("writes", claims=(Claim(part),))
        for first, second in ((reads, writes), (writes, reads)):
            first, second = attrs.evolve(first, id=f"{first.id}1"), attrs.evolve(second, id=f"{second.id}2")
            store.enqueue(first, second)
            assert store.start() == [first.id]
            store.finish(first.id)
            assert store.run() == [second.id]

    def test_a_parent_is_not_starved_by_a_stream_of_children(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("whole", ["doc"]), *[job(f"c{n}", ["doc", str(n)]) for n in range(9)])
        assert store.start() == ["a"]
        store.finish("a")
        assert store.start() == ["whole"]

    def test_a_grandparent_conflicts_too(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1", "x"]), job("b", ["doc"]))
        assert store.start() == ["a"]

    def test_running_job_blocks_can_dequeue_at_every_ancestor(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]))
        assert store.apply(op.CanDequeue(("doc",)))
        store.start()
        may = {path: store.apply(op.CanDequeue(path)) for path in [(), ("doc",), ("doc", "1"), ("doc", "1", "x")]}
        assert not any(may.values())
        assert store.apply(op.CanDequeue(("doc", "2")))
        assert store.apply(op.CanDequeue(("other",)))


class Siblings:
    """Paths that are no prefix of one another never wait for one another."""

    def test_siblings_run_side_by_side(self, store: Store) -> None:
        store.enqueue(*[job(f"j{n}", ["doc", str(n)]) for n in range(5)])
        assert store.start() == [f"j{n}" for n in range(5)]

    def test_a_name_that_begins_alike_is_another_place(self, store: Store) -> None:
        store.enqueue(job("a", ["doc1"]), job("b", ["doc10"]), job("c", ["doc1", "0"]))
        assert store.start() == ["a", "b"]

    def test_colons_inside_a_segment_make_no_levels(self, store: Store) -> None:
        store.enqueue(job("a", ["a:b"]), job("b", ["a", "b"]), job("c", ["a\\:b"]))
        assert store.start() == ["a", "b", "c"]

    @pytest.mark.parametrize("segment", ["{x}", "{", "}", "*", "?", "[x]", "%", "é", "e\u0301", " a", "..", "\\", "0"])
    def test_any_printable_text_is_a_place_and_only_itself(self, store: Store, segment: str) -> None:
        store.enqueue(job("a", [segment]), job("b", [segment]), job("c", ["plain"]), job("d", [segment, "below"]))
        assert store.start() == ["a", "c"]


class Root:
    """`[]` conflicts with every job that has a place. A job without a place has no conflict."""

    def test_the_root_waits_for_all_and_holds_back_all(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("root", []), job("b", ["y"]))
        assert store.start() == ["a"]
        store.finish("a")
        assert store.start() == ["root"]
        store.finish("root")
        assert store.start() == ["b"]

    def test_a_job_without_a_place_runs_beside_the_root(self, store: Store) -> None:
        store.enqueue(job("root", []), job("free"), job("free2"))
        assert store.start() == ["root", "free", "free2"]

    def test_a_segment_named_root_is_an_ordinary_place(self, store: Store) -> None:
        store.enqueue(job("a", ["root"]), job("b", ["x"]))
        assert store.start() == ["a", "b"]


class ArrivalOrder:
    """Ready jobs start in order of arrival. Users take turns, and priority chooses among ready jobs only."""

    def test_ready_jobs_go_first_in_first_out(self, store: Store) -> None:
        store.enqueue(*[job(f"j{n:02}") for n in range(20)])
        assert store.run() == [f"j{n:02}" for n in range(20)]

    def test_next_in_line_and_ready_job_go_in_arrival_order(self, store: Store) -> None:
        def next_of(job_id: str) -> list[str]:
            """Return the jobs granted in the exchange that settles a job."""
            return [grant.spec.id for grant in store.exchange(store.outcome(job_id), limit=1).grants]

        store.enqueue(job("a1", ["a"]), job("free", ["b"]), job("a2", ["a"]))
        assert store.start(1) == ["a1"]
        assert next_of("a1") == ["free"], "a2, which has its place by this, came later"
        assert next_of("free") == ["a2"]
        store.enqueue(job("a3", ["a"]), job("later", ["b"]))
        assert next_of("a2") == ["a3"]
        assert next_of("a3") == ["later"]

    def test_many_that_are_ready_are_granted_at_once(self, store: Store) -> None:
        ids = [f"j{n:03}" for n in range(100)]
        store.enqueue(*[job(job_id) for job_id in ids])
        assert store.start() == ids

    def test_many_users_with_ready_jobs_are_served_at_once(self, store: Store) -> None:
        ids = [f"j{n:03}" for n in range(40)]
        store.enqueue(*[job(job_id, user=f"u{job_id}") for job_id in ids])
        assert store.start() == ids

    def test_a_higher_priority_goes_first(self, store: Store) -> None:
        store.enqueue(job("low", priority=1), job("normal"), job("high", priority=5), job("critical", priority=9))
        assert store.run() == ["critical", "high", "normal", "low"]

    def test_priority_never_overtakes_a_job_it_conflicts_with(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], priority=1), job("b", ["doc"], priority=9))
        assert store.run() == ["a", "b"]

    def test_priority_never_overtakes_in_a_line(self, store: Store) -> None:
        store.enqueue(*[job(name, ["doc"], priority=level) for name, level in zip("abcd", (3, 1, 9, 5), strict=True)])
        assert store.run() == ["a", "b", "c", "d"]

    def test_a_low_priority_ages_into_its_turn(self, store: Store) -> None:
        store.enqueue(job("old", priority=1))
        store.wait(5 * 60_000)
        store.enqueue(job("new", priority=5))
        assert store.run() == ["old", "new"]

    def test_users_take_turns(self, store: Store) -> None:
        store.enqueue(*[job(f"a{n}", user="ann") for n in range(3)], *[job(f"b{n}", user="bob") for n in range(2)])
        assert store.run() == ["a0", "b0", "a1", "b1", "a2"]

    def test_a_worker_gets_jobs_of_its_pools_only(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", pool="gpu"))
        assert store.start(pools=("gpu",)) == ["b"]
        assert store.start() == ["a"]

    def test_numbers_drawn_never_repeat(self, store: Store) -> None:
        firsts = [store.apply(op.Draw(count)).first for count in (1, 3, 1)]
        assert firsts == [firsts[0], firsts[0] + 1, firsts[0] + 4]


class Pauses:
    """A paused path starts no jobs and keeps their places. A closed path refuses new jobs."""

    def test_a_paused_path_starts_nothing_below_it(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("b", ["doc"]), job("c", ["other"]), job("d"))
        assert store.pause("doc")
        assert not store.pause("doc")
        assert store.start() == ["c", "d"]
        reason = store.why("a")
        assert (reason.kind, reason.path_key, reason.stuck) == (ReasonKind.PAUSED, "doc", True)
        assert store.resume("doc")
        assert not store.resume("doc")
        store.wait(0)
        assert store.run() == ["a", "b"]

    def test_a_paused_job_keeps_its_place(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("whole", ["doc"]))
        store.pause("doc", "1")
        assert store.start() == []

    def test_pause_of_a_path_leaves_jobs_above_running(self, store: Store) -> None:
        store.enqueue(job("whole", ["doc"]), job("a", ["doc", "1"]), job("b", ["doc", "2"]))
        store.pause("doc", "1")
        assert store.start() == ["whole"]
        store.finish("whole")
        assert store.start() == ["b"]

    def test_a_job_that_runs_goes_on(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]))
        store.start()
        store.pause("doc")
        store.finish("a")

    def test_a_closed_path_refuses_new_jobs_and_runs_the_old(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]))
        assert store.apply(op.Close(("doc",))).changed
        with pytest.raises(PathClosedError) as caught:
            store.enqueue(job("free"), job("b", ["doc", "2"]))
        assert caught.value.path_key == "doc"
        assert store.find("free") is None
        assert store.run() == ["a"]
        assert store.apply(op.Close(("doc",), reopen=True)).changed
        assert store.enqueue(job("b", ["doc", "2"])).jobs[0].created
