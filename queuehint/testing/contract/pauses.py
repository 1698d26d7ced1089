"""The rules of pauses that end by themselves."""

from __future__ import annotations

import pytest

from queuehint.errors import InvalidJobError
from queuehint.operations import CountPending, ListPauses, Pause
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import job
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import PauseState, ReasonKind


class PausesInTime:
    """A pause may end by itself; what it has put aside goes on then, in order."""

    def test_a_pause_ends_by_itself_and_its_jobs_run_in_their_order(self, store: Store) -> None:
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
        assert store.start() == ["a"]
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

    def test_ends_at_one_time_offer_in_order_and_one_above_goes_on_holding(self, store: Store) -> None:
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
        assert store.apply(CountPending()).moving is True
        assert store.apply(CountPending(("x",))).moving is True
        store.pause("x")
        assert store.why("a").stuck is True
        assert store.why("a").until_ms is None
        assert store.stats().stuck["paused"] == 1
        assert store.apply(CountPending()).moving is False

    def test_pauses_are_listed_as_they_began_with_their_ends(self, store: Store) -> None:
        assert store.apply(ListPauses()).pauses == ()
        store.enqueue(job("a", ["y"]), job("b", ["z"]), job("c", ["z", "1"]))
        store.pause("z")
        store.pause("y", for_ms=1_000)
        store.pause(for_ms=2_000)
        store.resume("z")
        store.pause("z")
        assert store.start() == []
        now_ms = store.clock.now_ms()
        assert store.apply(ListPauses()).pauses == (
            PauseState(filter=RecordFilter(path=("y",)), until_ms=now_ms + 1_000, parked=0),
            PauseState(filter=RecordFilter(path=()), until_ms=now_ms + 2_000, parked=2),
            PauseState(filter=RecordFilter(path=("z",)), until_ms=None, parked=0),
        )

    @pytest.mark.parametrize("for_ms", [0, -1, 10 * 366 * 24 * 3600 * 1000 + 1])
    def test_a_while_out_of_its_range_is_refused(self, store: Store, for_ms: int) -> None:
        with pytest.raises(InvalidJobError, match=f"for_ms.* {for_ms}"):
            store.apply(Pause(("x",), for_ms))
        assert store.apply(ListPauses()).pauses == ()
