"""The rules of pauses that end by themselves, and of pauses by filter."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.errors import InvalidJobError
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import job
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import PauseState, ReasonKind


class PausesInTime:
    """A pause may end at a time. Its parked jobs then continue in order."""

    def test_pause_ends_by_itself_and_its_jobs_run_in_order(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]), job("c", ["x", "1"]), job("d", ["y"]))
        assert store.pause("x", for_ms=1_000) is True
        assert store.run() == ["d"]
        store.enqueue(job("e", ["x"]))
        store.wait(999)
        assert store.run() == []
        store.wait(1)
        assert store.run() == ["a", "b", "c", "e"]
        assert store.resume("x") is False
        assert store.is_clean

    def test_a_claim_after_its_end_needs_no_tick(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.pause("x", for_ms=1_000)
        assert store.start() == []
        store.advance(1_000)
        assert store.start() == ["a"]

    def test_an_end_that_is_given_anew_replaces_the_one_before(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["y"]))
        store.pause("x", for_ms=1_000)
        store.pause("y", for_ms=1_000)
        assert store.pause("y", for_ms=1_000) is False
        assert store.pause("x", for_ms=2_000) is True
        assert store.pause("y") is True
        assert store.pause("y") is False
        assert store.start() == []
        store.wait(1_999)
        assert store.start() == []
        store.wait(1)
        assert store.start(lease_ms=10**6) == ["a"]
        store.wait(60_000)
        assert store.start() == []
        assert store.resume("y") is True
        assert store.start() == ["b"]

    def test_a_pause_that_is_resumed_before_its_end_leaves_nothing(self, store: Store) -> None:
        store.pause("x", for_ms=1_000)
        store.resume("x")
        store.pause("x")
        store.enqueue(job("a", ["x"]))
        store.wait(1_000)
        assert store.start() == []
        store.resume("x")
        assert store.run() == ["a"]
        assert store.is_clean

    def test_simultaneous_ends_of_pauses_offer_in_order_below_another_pause(self, store: Store) -> None:
        store.enqueue(job("a", ["x", "1"]), job("b", ["y"]))
        store.pause("x", "1", for_ms=1_000)
        store.pause("y", for_ms=1_000)
        assert store.start() == []
        store.pause("x")
        store.wait(1_000)
        assert store.start() == ["b"]
        assert store.why("a").path_key == "x"
        store.resume("x")
        assert store.start() == ["a"]

    def test_the_time_of_the_end_is_when_something_is_due(self, store: Store) -> None:
        assert store.tick().next_ms is None
        store.pause("x", for_ms=5_000)
        assert store.tick().next_ms == store.clock.now_ms() + 5_000
        store.resume("x")
        assert store.tick().next_ms is None

    def test_why_and_the_counts_know_that_it_ends_by_itself(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["y"]))
        store.pause("x", for_ms=1_000)
        assert store.start(1) == ["b"]
        store.finish("b")
        assert store.start() == []
        reason = store.why("a")
        end_ms = store.clock.now_ms() + 1_000
        assert (reason.kind, reason.path_key, reason.until_ms, reason.stuck) == (ReasonKind.PAUSED, "x", end_ms, False)
        assert store.stats().stuck["paused"] == 0
        assert store.apply(op.CountPending()).moving is True
        assert store.apply(op.CountPending(("x",))).moving is True
        store.pause("x")
        assert store.why("a").stuck is True
        assert store.why("a").until_ms is None
        assert store.stats().stuck["paused"] == 1
        assert store.apply(op.CountPending()).moving is False

    def test_pauses_are_listed_as_they_began_with_their_ends(self, store: Store) -> None:
        assert store.apply(op.ListPauses()).pauses == ()
        store.enqueue(job("a", ["y"]), job("b", ["z"]), job("c", ["z", "1"]))
        store.pause("z")
        store.pause("y", for_ms=1_000)
        store.pause(for_ms=2_000)
        store.resume("z")
        store.pause("z")
        assert store.start() == []
        now_ms = store.clock.now_ms()
        assert store.apply(op.ListPauses()).pauses == (
            PauseState(filter=RecordFilter(path=("y",)), until_ms=now_ms + 1_000, parked=0),
            PauseState(filter=RecordFilter(path=()), until_ms=now_ms + 2_000, parked=2),
            PauseState(filter=RecordFilter(path=("z",)), until_ms=None, parked=0),
        )

    @pytest.mark.parametrize("for_ms", [0, -1, 10 * 366 * 24 * 3600 * 1000 + 1])
    def test_a_while_out_of_its_range_is_refused(self, store: Store, for_ms: int) -> None:
        with pytest.raises(InvalidJobError, match=f"for_ms.* {for_ms}"):
            store.apply(op.Pause(RecordFilter(path=("x",)), for_ms))
        assert store.apply(op.ListPauses()).pauses == ()


class PausesByFilter:
    """A pause by task, user, service, pool or tag holds back every job that has all of these, without a place too."""

    @pytest.mark.parametrize(
        "words", [{"task": "u"}, {"user": "ann"}, {"service": "web"}, {"pool": "gpu"}, {"tag": "eu"}], ids=str
    )
    def test_jobs_that_a_filter_selects_stop_and_go_on(self, store: Store, words: dict[str, Any]) -> None:
        more = {"tags": ("eu", "x")} if "tag" in words else words
        pools = ("default", "gpu")
        some = [attrs.evolve(each, **more) for each in (job("a"), job("c", ["x"]), job("e"))]
        store.enqueue(some[0], job("b"), some[1], job("d", ["x"]), some[2])
        assert store.pause_jobs(**words) is True
        assert store.pause_jobs(**words) is False
        assert store.start(pools=pools) == ["b"]
        store.finish("b")
        assert store.start(pools=pools) == [], "what is behind a paused job on its path waits for it"
        assert store.why("d").jobs == ("c",)
        assert store.resume_jobs(**words) is True
        assert store.resume_jobs(**words) is False
        assert sorted(store.start(pools=pools)) == ["a", "c", "e"]
        store.finish("a", "c", "e")
        assert store.start() == ["d"]
        store.finish("d")
        assert store.is_clean

    def test_all_conditions_have_to_hold_and_a_path_is_one(self, store: Store) -> None:
        store.enqueue(
            job("both", ["x", "1"], user="ann"), job("user", ["y"], user="ann"), job("path", ["x", "2"]), job("none")
        )
        store.pause_jobs(user="ann", task="other")
        store.pause_jobs(user="ann", path=("x",))
        assert sorted(store.run()) == ["none", "path", "user"]
        store.resume_jobs(user="ann", path=("x",))
        assert store.run() == ["both"]

    def test_it_may_end_by_itself(self, store: Store) -> None:
        store.enqueue(job("a", user="ann"))
        store.pause_jobs(1_000, user="ann")
        assert store.pause_jobs(2_000, user="ann") is True
        assert store.start() == []
        store.wait(1_999)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["a"]
        assert store.apply(op.ListPauses()).pauses == ()

    def test_why_of_a_paused_selection_names_filter_and_way_out(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], user="ann"), job("b", ["x", "1"]))
        store.pause_jobs(user="ann", path=("x",))
        store.start()
        wanted = RecordFilter(user="ann", path=("x",))
        reason = store.why("a")
        assert (reason.kind, reason.selection, reason.path_key) == (ReasonKind.PAUSED, wanted, None)
        assert (reason.until_ms, reason.stuck) == (None, True)
        assert reason.way_out == "resume what is selected: queuehint resume x --user ann"
        assert str(reason) == "a is QUEUED: paused by x --user ann"
        assert store.chain("b")[-1] == reason
        assert store.stats().stuck["paused"] == 1
        assert store.apply(op.CountPending()).moving is False
        store.pause_jobs(60_000, user="ann", path=("x",))
        assert store.why("a").stuck is False
        assert store.apply(op.CountPending()).moving is True
        assert store.apply(op.ListPauses()).pauses == (
            PauseState(filter=wanted, until_ms=store.clock.now_ms() + 60_000, parked=1),
        )

    def test_pauses_of_both_kinds_are_listed_as_they_began(self, store: Store) -> None:
        store.pause_jobs(task="t", tag="eu")
        store.pause("x")
        store.pause_jobs(pool="gpu", service="web")
        assert [state.filter for state in store.apply(op.ListPauses()).pauses] == [
            RecordFilter(task="t", tag="eu"),
            RecordFilter(path=("x",)),
            RecordFilter(pool="gpu", service="web"),
        ]

    def test_one_that_several_pauses_hold_starts_when_the_last_ends(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], user="ann"), job("b", user="ann"))
        store.pause_jobs(task="task")
        store.pause_jobs(user="ann")
        store.pause("x")
        assert store.start() == []
        store.resume_jobs(task="task")
        assert store.start() == []
        store.resume("x")
        assert store.start() == []
        assert store.why("a").selection == RecordFilter(user="ann")
        store.resume_jobs(user="ann")
        assert sorted(store.start()) == ["a", "b"]

    def test_job_with_a_new_user_obeys_its_pause(self, store: Store) -> None:
        store.enqueue(job("a", user="ann"), job("b", user="bob"))
        store.pause_jobs(user="ann")
        assert store.start() == ["b"]
        record = store.record("a")
        store.apply(op.Amend(attrs.evolve(record.spec, user="bob"), record.version))
        assert store.start() == ["a"]
        store.finish("a", "b")
        store.resume_jobs(user="ann")
        assert store.is_clean

    def test_a_job_put_aside_may_be_canceled(self, store: Store) -> None:
        store.enqueue(job("a", user="ann"), job("b", user="ann"))
        store.pause_jobs(user="ann")
        assert store.start() == []
        store.cancel("a")
        store.resume_jobs(user="ann")
        assert store.run() == ["b"]
        assert store.state("a") is JobState.CANCELED

    @pytest.mark.parametrize(
        "words, named",
        [
            ({}, "requires one of path, service, user, task, pool, tag"),
            ({"path": ("x",), "states": (JobState.QUEUED,)}, "not by states"),
            ({"user": "ann", "states": (JobState.QUEUED,)}, "not by states"),
            ({"user": "ann", "since_ms": 5}, "not by since_ms"),
            ({"user": "ann", "flow": "f"}, "not by flow"),
            ({"user": "ann", "parent": "p"}, "not by parent"),
        ],
        ids=str,
    )
    def test_a_filter_that_a_pause_does_not_take_is_refused(
        self, store: Store, words: dict[str, Any], named: str
    ) -> None:
        with pytest.raises(InvalidJobError, match=named):
            store.apply(op.Pause(RecordFilter(**words)))

    def test_there_are_at_most_a_hundred(self, store: Store) -> None:
        for number in range(100):
            assert store.pause_jobs(user=f"u{number}") is True
        with pytest.raises(InvalidJobError, match="at most 10000 pauses, 100 of them by filter"):
            store.pause_jobs(user="one more")
        assert store.pause_jobs(1_000, user="u7") is True
        assert store.pause("x") is True
        store.resume_jobs(user="u5")
        assert store.pause_jobs(user="one more") is True
