"""The rules of one operation: the order of its work, its refusals, and pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint import operations as op
from queuehint.errors import InvalidJobError
from queuehint.testing.driver import job
from queuehint.values.outcome import OutcomeKind, Progress
from queuehint.values.record import JobState
from queuehint.values.record_filter import DEAD_RECORDS, RecordFilter

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Steps:
    """An operation applies due work, then settles, then claims."""

    def test_an_exchange_with_no_pools_claims_nothing(self, store: Store) -> None:
        store.enqueue(job("a"))
        assert store.start(pools=()) == []
        assert store.start() == ["a"]
        assert store.exchange(store.outcome("a"), pools=(), limit=5).verdicts == (op.Verdict.DONE,)

    def test_settlement_takes_precedence_over_a_lease_that_ends_simultaneously(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.start(lease_ms=1000)
        store.advance(1000)
        assert store.settle("a") is op.Verdict.DONE

    def test_due_job_precedes_jobs_enqueued_in_the_same_step(self, store: Store) -> None:
        store.enqueue(job("due", ["x"], delay_ms=1000))
        store.advance(1000)
        store.enqueue(job("new", ["x"]))
        assert store.run() == ["due", "new"]

    def test_claim_grants_jobs_due_or_reaped_in_the_same_step(self, store: Store) -> None:
        store.enqueue(job("due", delay_ms=1000), job("lost"))
        store.start(lease_ms=1000)
        store.advance(1000)
        assert store.start() == ["due", "lost"]

    def test_cancel_frees_the_place_in_the_same_step(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]))
        store.cancel("a")
        assert store.stats().ready == {"default": 1}

    def test_next_ms_is_the_next_time_something_is_due(self, store: Store) -> None:
        assert store.tick().next_ms is None
        store.enqueue(job("a", ["x"], delay_ms=500), job("b", ["y"], start_within_ms=300))
        assert store.tick().next_ms == store.began_ms + 300
        store.start(lease_ms=400)
        assert store.tick().next_ms == store.began_ms + 400
        store.finish("b")
        assert store.tick().next_ms == store.began_ms + 500

    def test_a_question_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]))
        before = store.everything()
        store.why("b")
        store.pending()
        store.pending(("x",))
        store.apply(op.CountJobs())
        assert store.everything() == before

    def test_the_counts_add_up(self, store: Store) -> None:
        store.enqueue(*[job(f"j{number}", ["a", str(number)], max_attempts=1) for number in range(6)])
        store.enqueue(job("timed", delay_ms=10**6), job("j0", ["a", "0"], max_attempts=1), job("kept", retention_ms=0))
        store.start(5)
        store.finish("j0", "j1")
        store.fail("j2")
        store.settle("j3", OutcomeKind.LOST)
        store.cancel("j5")
        stats = store.stats()
        assert stats.states == {SCHEDULED: 1, DEFERRED: 0, QUEUED: 2, STARTED: 1, FINISHED: 2, FAILED: 1, CANCELED: 1}
        assert (stats.enqueued, stats.started, stats.settled, stats.lost, stats.pruned) == (8, 5, 4, 1, 0)
        assert stats.ready == {"default": 2}
        assert stats.nodes == 3
        store.start()
        store.finish("j3", "kept")
        stats = store.stats()
        assert sum(stats.states.values()) == 7
        store.wait(10**9)
        stats = store.stats()
        assert sum(stats.states.values()) + stats.pruned == stats.enqueued == 8


def ids(count: int) -> tuple[str, ...]:
    return tuple([str(number) for number in range(count)])


class Bounds:
    """An operation that is too large is refused and changes nothing."""

    @pytest.mark.parametrize(
        "operation, text",
        [
            (lambda store: op.Cancel(ids(1001)), "ids: 1001 in one operation, limit 1000"),
            (lambda store: op.Redrive(ids(1001)), "ids: 1001 in one operation, limit 1000"),
            (lambda store: op.Discard(ids(1001)), "ids: 1001 in one operation, limit 1000"),
            (lambda store: op.Get(ids(1001)), "ids: 1001 in one operation, limit 1000"),
            (lambda store: op.Draw(1001), "count must be from 0 to 1000, got 1001"),
            (lambda store: op.Draw(-1), "count must be from 0 to 1000, got -1"),
            (
                lambda store: op.Exchange("w", settle=(store.outcome("a"),) * 1001),
                "settle: 1001 in one operation, limit 1000",
            ),
            (
                lambda store: op.Exchange("w", (store.outcome("a"),), limit=1001),
                "limit must be from 0 to 1000, got 1001",
            ),
            (lambda store: op.Exchange("w", (store.outcome("a"),), limit=-1), "limit must be from 0 to 1000, got -1"),
            (lambda store: op.Exchange("w", (store.outcome("a"),), ids(65), 1), "pools: 65 in one operation, limit 64"),
            (lambda store: op.Renew((("a", 1),) * 16_001), "leases: 16001 in one operation, limit 16000"),
            (lambda store: op.Fetch("a", 1, ids(101)), "ids: 101 in one operation, limit 100"),
            (
                lambda store: op.Exchange("w", settle=(store.outcome("a", OutcomeKind.CHILDREN, children=ids(1001)),)),
                "children: 1001 in one operation, limit 1000",
            ),
            (lambda store: op.List(RecordFilter(flow="f"), limit=201), "limit must be from 1 to 200, got 201"),
            (lambda store: op.List(DEAD_RECORDS, limit=0), "limit must be from 1 to 200, got 0"),
            (lambda store: op.List(DEAD_RECORDS, limit=201), "limit must be from 1 to 200, got 201"),
            (lambda store: op.List(DEAD_RECORDS, limit=-1), "limit must be from 1 to 200, got -1"),
            (
                lambda store: op.Enqueue((job("x", after=["y"], flow="f"), job("y", after=["x"])), staged="S"),
                "all parts of one submission belong to one flow",
            ),
            (lambda store: op.Why("b", 0), "limit must be from 1 to 16, got 0"),
            (lambda store: op.Why("b", op.CHAIN_MAX + 1), "limit must be from 1 to 16, got 17"),
            (lambda store: op.Why(None, 17, ("x",)), "limit must be from 1 to 16, got 17"),
            (lambda store: op.Why(None), "job_id or path, one of the two, must be given, got None and None"),
            (
                lambda store: op.Why("b", 1, ("x",)),
                "job_id or path, one of the two, must be given, got 'b' and ('x',)",
            ),
            (
                lambda store: op.Post((op.Note("a", None, ("line",), Progress(1)),)),
                "token: a note of 'a' has none, so it has lines alone",
            ),
            (
                lambda store: op.Post((op.Note("a", None, result=b"1"),)),
                "token: a note of 'a' has none, so it has lines alone",
            ),
            (
                lambda store: op.ChangeSchedule("s", "resume", next_ms=1),
                "version is required for change 'resume'",
            ),
            (
                lambda store: op.ChangeSchedule("s", "pause", 1),
                "version and next_ms require change 'resume', not 'pause'",
            ),
            (
                lambda store: op.ChangeSchedule("s", "drop", next_ms=1),
                "version and next_ms require change 'resume', not 'drop'",
            ),
        ],
    )
    def test_an_operation_over_its_limit_is_refused_and_changes_nothing(
        self, store: Store, operation: Any, text: str
    ) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]), job("c", delay_ms=1))
        store.start()
        before = store.everything()
        with pytest.raises(InvalidJobError) as caught:
            store.apply(operation(store))
        assert str(caught.value) == text
        assert store.everything() == before

    @pytest.mark.parametrize(
        "operation",
        [
            op.Cancel(ids(1000)),
            op.Redrive(ids(1000)),
            op.Discard(ids(1000)),
            op.Get(ids(1000)),
            op.Draw(1000),
            op.Exchange("w", limit=1000, pools=ids(64)),
            op.Renew((("a", 1),) * 16_000),
            op.Fetch("a", 1, ids(100)),
            op.List(RecordFilter(flow="f"), limit=200),
            op.List(DEAD_RECORDS, limit=200),
            op.List(DEAD_RECORDS, after=("", 10**9)),
        ],
        ids=lambda operation: type(operation).__name__,
    )
    def test_an_operation_at_its_limit_is_done(self, store: Store, operation: op.Operation[object]) -> None:
        store.apply(operation)


class PausedPlaces:
    """A pause holds back all jobs with a place at or below its path until a resume."""

    def test_pause_stops_starts_at_and_below_its_path(self, store: Store) -> None:
        store.enqueue(
            job("at", ["a", "b"]),
            job("below", ["a", "b", "c"]),
            job("part", claims=job("p", ["a", "b", "d"]).claims + job("p", ["z"]).claims),
            job("beside", ["a", "x"]),
            job("like", ["a", "bc"]),
            job("none"),
        )
        assert store.pause("a", "b") is True
        assert store.pause("a", "b") is False
        assert store.start() == ["beside", "like", "none"]
        store.finish("beside", "like", "none")
        store.enqueue(job("above", ["a"]))
        assert store.start() == []
        assert store.resume("a", "b") is True
        assert store.resume("a", "b") is False
        assert store.run() == ["at", "below", "part", "above"]
        assert store.is_clean

    def test_pause_lets_running_jobs_end_and_regain_their_place(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]))
        store.start()
        store.pause("x")
        store.fail("a")
        assert store.start() == []
        store.resume("x")
        assert store.run() == ["a", "b"]

    def test_pause_of_the_root_stops_every_placed_job(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("none"))
        store.pause()
        assert store.run() == ["none"]
        store.resume()
        assert store.run() == ["a"]

    def test_paused_job_may_be_canceled_or_expire(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["y"], start_within_ms=10))
        store.pause()
        assert store.start() == []
        store.cancel("a")
        store.wait(10)
        store.resume()
        assert store.start() == []
        assert store.states("a", "b") == "CANCELED CANCELED"

    def test_a_mark_that_is_set_or_undone_already_is_told(self, store: Store) -> None:
        wanted = RecordFilter(path=("a",))
        marks: list[Any] = [mark(wanted) for mark in (op.Pause, op.Pause, op.Resume, op.Resume)]
        marks += [op.Close(("a",), reopen) for reopen in (False, False, True, True)]
        assert [store.apply(mark).changed for mark in marks] == [True, False] * 4
