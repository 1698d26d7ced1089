"""
The rules, said once against the operations of a `Backend`; each backend binds them to itself.

A binding is a class that names how to open a store on a clock, and inherits the rules of this module:

    class OnMemory(Binding):
        def open(self, clock: FakeClock) -> Backend: ...

    class TestSerialPath(OnMemory, SerialPath): ...
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from queuehint import (
    Backend,
    Backoff,
    Claim,
    DuplicateJobError,
    FakeClock,
    JobError,
    JobNotFoundError,
    JobState,
    OutcomeKind,
    PathClosedError,
    Policy,
    Progress,
)
from queuehint.backends.base import Interest
from queuehint.operations import (
    Cancel,
    CanDequeue,
    Close,
    Draw,
    Exchange,
    ListDead,
    Log,
    Operation,
    Renew,
    Reopen,
    Report,
    Tree,
    Verdict,
)
from queuehint.reports import ReasonKind
from tests.support import SHARED, Queue, job

if TYPE_CHECKING:
    from collections.abc import Iterator

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DAY_MS = 24 * 3600 * 1000


class Store(Queue):
    """A backend, its clock, and the newest grant of each job; asked through one of its two shells."""

    def __init__(self, backend: Backend, clock: FakeClock, shell: str) -> None:
        super().__init__()
        self.backend = backend
        self.clock = clock
        self.runner = asyncio.Runner() if shell == "async" else None

    def apply(self, operation: Operation[Reply]) -> Reply:
        if self.runner is None:
            return self.backend.call_sync(operation)
        return self.runner.run(self.backend.call(operation))

    def wait(self, ms: int) -> None:
        self.clock.advance(ms=ms)
        while self.tick().more:
            pass

    def sleep(self, interest: Interest, timeout_s: float) -> None:
        if self.runner is None:
            self.backend.wait_sync(interest, timeout_s)
        else:
            self.runner.run(self.backend.wait(interest, timeout_s))

    def close(self) -> None:
        if self.runner is None:
            self.backend.close_sync()
        else:
            self.runner.run(self.backend.close())
            self.runner.close()


class Binding(ABC):
    """How to open a store; a subclass for each backend."""

    @abstractmethod
    def open(self, clock: FakeClock) -> Backend:
        """Return an empty store whose time is *clock*."""

    @pytest.fixture(params=["sync", "async"])
    def store(self, request: pytest.FixtureRequest) -> Iterator[Store]:
        clock = FakeClock()
        store = Store(self.open(clock), clock, request.param)
        yield store
        store.close()


def error(message: str = "no") -> JobError:
    return JobError(type="ValueError", message=message)


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

    def test_the_next_job_is_granted_in_the_exchange_that_settles_the_last(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start()
        reply = store.exchange(store.outcome("a"), limit=1)
        assert reply.verdicts == (Verdict.DONE,)
        assert [grant.spec.id for grant in reply.grants] == ["b"]

    def test_shared_jobs_run_side_by_side_and_an_exclusive_one_waits_for_them_all(self, store: Store) -> None:
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


class Ancestors:
    """A path conflicts with those above and below it."""

    def test_a_whole_waits_for_its_parts_queued_before_and_holds_back_those_queued_after(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("b", ["doc", "2"]), job("whole", ["doc"]), job("c", ["doc", "1"]))
        assert store.start() == ["a", "b"]
        store.finish("b")
        assert store.start() == []
        store.finish("a")
        assert store.start() == ["whole"]
        assert store.start() == []
        store.finish("whole")
        assert store.start() == ["c"]

    def test_a_parent_is_not_starved_by_a_stream_of_children(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("whole", ["doc"]), *[job(f"c{n}", ["doc", str(n)]) for n in range(9)])
        assert store.start() == ["a"]
        store.finish("a")
        assert store.start() == ["whole"]

    def test_a_grandparent_conflicts_too(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1", "x"]), job("b", ["doc"]))
        assert store.start() == ["a"]

    def test_what_executes_is_known_at_every_ancestor(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]))
        assert store.apply(CanDequeue(("doc",)))
        store.start()
        may = {path: store.apply(CanDequeue(path)) for path in [(), ("doc",), ("doc", "1"), ("doc", "1", "x")]}
        assert not any(may.values())
        assert store.apply(CanDequeue(("doc", "2")))
        assert store.apply(CanDequeue(("other",)))


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
    """`[]` conflicts with every job that has a place; no place conflicts with nothing."""

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
    """Ready jobs go in order of arrival; users take turns, and priority chooses among ready jobs only."""

    def test_ready_jobs_go_first_in_first_out(self, store: Store) -> None:
        store.enqueue(*[job(f"j{n:02}") for n in range(20)])
        assert store.run() == [f"j{n:02}" for n in range(20)]

    def test_a_higher_priority_goes_first(self, store: Store) -> None:
        store.enqueue(job("low", priority=1), job("normal"), job("high", priority=5), job("critical", priority=9))
        assert store.run() == ["critical", "high", "normal", "low"]

    def test_priority_never_overtakes_a_job_it_conflicts_with(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], priority=1), job("b", ["doc"], priority=9))
        assert store.run() == ["a", "b"]

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
        firsts = [store.apply(Draw(count)).first for count in (1, 3, 1)]
        assert firsts == [firsts[0], firsts[0] + 1, firsts[0] + 4]


class Leases:
    """A grant is a lease with a token; who does not renew it loses the job, which keeps its place."""

    def test_a_job_whose_lease_expired_is_ready_again_at_its_old_place(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start(lease_ms=30_000)
        store.wait(30_000)
        record = store.record("a")
        assert (record.state, record.losses, record.attempts) == (QUEUED, 1, 0)
        assert store.start() == ["a"]

    def test_a_renewed_lease_lasts(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(lease_ms=30_000)
        store.wait(29_000)
        assert store.renew("a") == [Verdict.DONE]
        store.wait(29_000)
        assert store.state("a") is STARTED

    def test_a_late_settlement_counts_until_the_job_was_reaped(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(lease_ms=30_000)
        store.clock.advance(seconds=60)
        assert store.settle("a") is Verdict.DONE

    def test_a_worker_that_lost_its_lease_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        late = store.outcome("a", result=b"1")
        store.wait(30_000)
        store.start()
        before = store.record("a")
        assert store.exchange(late).verdicts == (Verdict.LOST,)
        assert store.record("a") == before

    def test_every_grant_has_a_greater_token(self, store: Store) -> None:
        tokens = []
        store.enqueue(job("a", max_losses=10), job("b"))
        for _ in range(5):
            store.start()
            tokens.append(store.grants["a"].token)
            store.wait(30_000)
        assert tokens == sorted(set(tokens))

    @pytest.mark.parametrize("token", [0, -1, 10**30, None, "1", b"", "garbage"])
    def test_a_garbage_token_changes_nothing(self, store: Store, token: Any) -> None:
        store.enqueue(job("a"), job("b"))
        store.start()
        before = store.record("a")
        outcome = store.outcome("a")
        object.__setattr__(outcome, "token", token)
        assert store.exchange(outcome).verdicts == (Verdict.LOST,)
        assert store.record("a") == before

    def test_the_token_of_another_job_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.start()
        outcome = store.outcome("a")
        object.__setattr__(outcome, "token", store.grants["b"].token)
        assert store.exchange(outcome).verdicts == (Verdict.LOST,)
        assert store.states("a", "b") == "STARTED STARTED"

    def test_a_settlement_without_a_claim_is_lost(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.start(1)
        outcome = store.outcome("a")
        object.__setattr__(outcome, "job_id", "b")
        assert store.exchange(outcome).verdicts == (Verdict.LOST,)
        assert store.state("b") is QUEUED

    def test_a_repeated_settlement_is_lost_and_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        outcome = store.outcome("a", result=b"1")
        store.exchange(outcome)
        before = store.record("a")
        assert store.exchange(outcome).verdicts == (Verdict.LOST,)
        assert store.record("a") == before

    def test_a_job_that_loses_its_workers_too_often_is_dead(self, store: Store) -> None:
        store.enqueue(job("a", max_losses=2, max_attempts=1))
        for _ in range(2):
            store.start()
            store.wait(30_000)
        record = store.record("a")
        assert (record.state, record.cause, record.losses) == (FAILED, "worker_lost", 2)

    def test_a_released_job_is_ready_at_its_old_place_and_nothing_is_counted(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start()
        store.settle("a", OutcomeKind.RELEASED)
        record = store.record("a")
        assert (record.state, record.attempts, record.losses) == (QUEUED, 0, 0)
        assert store.start() == ["a"]

    def test_a_job_nobody_knows_is_given_back_with_a_growing_pause(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        for pause_ms in (5_000, 10_000, 20_000):
            assert store.start() == ["a"]
            store.settle("a", OutcomeKind.UNKNOWN_TASK)
            assert store.why("a").kind is ReasonKind.UNKNOWN_TASK
            store.wait(pause_ms - 1)
            assert store.start() == []
            store.wait(1)
        assert store.record("a").attempts == 0

    def test_progress_and_log_lines_are_kept_while_the_lease_is_held(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        token = store.grants["a"].token
        assert store.apply(Report("a", token, Progress(1, 2, "half"))).verdict is Verdict.DONE
        assert store.apply(Log("a", token, ("one", "two"))).verdict is Verdict.DONE
        assert store.apply(Log("a", token + 1, ("three",))).verdict is Verdict.LOST
        store.finish("a")
        assert store.apply(Log("a", token, ("four",))).verdict is Verdict.LOST
        record = store.record("a")
        assert record.progress == Progress(1, 2, "half")
        assert (record.logs, record.logs_truncated) == (("one", "two"), False)

    def test_the_last_thousand_log_lines_are_kept(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.apply(Log("a", store.grants["a"].token, tuple(str(n) for n in range(1_001))))
        record = store.record("a")
        assert (record.logs[0], len(record.logs), record.logs_truncated) == ("1", 1_000, True)


class Retries:
    """A failed attempt is tried again, on its place or off it, until none is left."""

    def test_a_failed_attempt_keeps_its_place_while_it_waits(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start()
        store.fail("a", error=error(), delay_ms=1_000)
        assert store.start() == []
        assert (store.why("a").kind, store.why("b").jobs) == (ReasonKind.BACKOFF, ("a",))
        store.wait(1_000)
        assert store.start() == ["a"]
        assert store.grants["a"].attempt == 2

    def test_a_failed_attempt_that_yields_lets_others_pass(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], on_retry="yield"), job("b", ["doc"]))
        store.start()
        store.fail("a", error=error(), delay_ms=1_000)
        assert store.state("a") is SCHEDULED
        assert store.start() == ["b"]
        store.wait(1_000)
        assert store.start() == []
        store.finish("b")
        assert store.start() == ["a"]

    def test_a_place_is_held_no_longer_than_max_hold(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], max_hold_ms=500), job("b", ["doc"]))
        store.start()
        store.fail("a", error=error(), delay_ms=10_000)
        store.wait(499)
        assert store.start() == []
        store.wait(1)
        assert store.state("a") is SCHEDULED
        assert store.start() == ["b"]

    def test_a_snooze_counts_for_nothing(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1))
        for _ in range(3):
            store.start()
            store.settle("a", OutcomeKind.SNOOZED, delay_ms=1_000)
            store.wait(1_000)
        assert (store.state("a"), store.record("a").attempts) == (QUEUED, 0)

    def test_the_last_attempt_leaves_a_dead_job_and_frees_the_path(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], max_attempts=2), job("b", ["doc"]))
        for attempt in (1, 2):
            store.start()
            store.fail("a", error=error(str(attempt)))
        record = store.record("a")
        assert record.state is FAILED
        assert [(e.message, e.attempt) for e in record.errors] == [("1", 1), ("2", 2)]
        assert store.start() == ["b"]

    def test_a_final_failure_leaves_no_attempt(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.fail("a", error=error(), final=True)
        assert store.state("a") is FAILED

    def test_a_job_that_is_due_later_takes_its_place_when_it_is_due(self, store: Store) -> None:
        store.enqueue(job("later", ["doc"], delay_ms=1_000), job("now", ["doc"]))
        assert store.states("later", "now") == "SCHEDULED QUEUED"
        store.wait(1_000)
        assert store.run() == ["now", "later"]

    def test_a_time_in_the_past_is_now(self, store: Store) -> None:
        store.enqueue(job("a", run_at_ms=0))
        assert store.state("a") is QUEUED

    def test_a_job_not_started_in_time_expires(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"], start_within_ms=1_000))
        store.start()
        store.wait(1_000)
        assert (store.state("b"), store.record("b").cause) == (CANCELED, "expired")


class Cancellation:
    """Any unfinished job can be canceled; one that runs is asked to stop."""

    def test_a_waiting_job_leaves_its_place(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]), job("c", ["doc"]))
        assert store.cancel("b") == [Verdict.DONE]
        assert store.run() == ["a", "c"]

    def test_a_running_job_is_asked_and_its_worker_told_once(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(worker="w")
        assert store.cancel("a") == [Verdict.REQUESTED]
        assert store.exchange(worker="other").canceled == ()
        assert store.exchange(worker="w").canceled == ("a",)
        assert store.exchange(worker="w").canceled == ()
        assert (store.state("a"), store.record("a").cancel_requested) == (STARTED, True)

    def test_a_renewal_tells_too(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.cancel("a")
        assert store.renew("a") == [Verdict.CANCELED]

    def test_one_that_finishes_all_the_same_is_finished(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.cancel("a")
        store.finish("a")
        assert store.state("a") is FINISHED

    @pytest.mark.parametrize(
        "kind", [OutcomeKind.FAILED, OutcomeKind.RELEASED, OutcomeKind.SNOOZED, OutcomeKind.LOST, OutcomeKind.DISCARDED]
    )
    def test_any_other_end_makes_it_canceled(self, store: Store, kind: OutcomeKind) -> None:
        store.enqueue(job("a"))
        store.start()
        store.apply(Cancel(("a",), "enough"))
        assert store.settle("a", kind) is Verdict.DONE
        assert (store.state("a"), store.record("a").cause) == (CANCELED, "enough")

    def test_unknown_and_over_jobs_are_named(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        assert store.apply(Cancel(("a", "b"))).verdicts == ((Verdict.REFUSED, FINISHED), (Verdict.UNKNOWN, None))

    def test_a_path_is_canceled_with_all_below_it_and_nothing_enqueued_later(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc", "1"]), job("c", ["other"]), job("d"), job("r", []))
        store.cancel_path("doc")
        store.wait(0)
        store.enqueue(job("e", ["doc"]))
        assert store.states("a", "b", "c", "d", "r", "e") == "CANCELED CANCELED QUEUED QUEUED QUEUED QUEUED"

    def test_a_discarding_handler_cancels_its_job(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.settle("a", OutcomeKind.DISCARDED, reason="moot")
        assert (store.state("a"), store.record("a").cause) == (CANCELED, "moot")


class Dead:
    """Dead jobs lie on a shelf until somebody redrives or discards them."""

    @staticmethod
    def die(store: Store, **fields: Any) -> None:
        store.enqueue(job("a", ["doc"], max_attempts=1, **fields), job("b", ["doc"]), job("c", ["doc", "1"]))
        store.start()
        store.fail("a", error=error())

    def test_a_dead_job_holds_its_place_if_asked_to(self, store: Store) -> None:
        self.die(store, on_dead="hold")
        assert store.start() == []
        assert (store.why("b").kind, store.why("b").jobs) == (ReasonKind.DEAD_HOLD, ("a",))

    def test_a_redriven_job_takes_the_place_it_held(self, store: Store) -> None:
        self.die(store, on_dead="hold")
        assert store.redrive("a") == [Verdict.DONE]
        assert store.start() == ["a"]
        assert store.grants["a"].attempt == 1

    def test_a_redriven_job_that_held_no_place_goes_to_the_end(self, store: Store) -> None:
        self.die(store)
        store.redrive("a")
        assert store.run() == ["b", "c", "a"]

    def test_discarding_a_dead_job_frees_its_place(self, store: Store) -> None:
        self.die(store, on_dead="hold")
        assert store.discard("a") == [Verdict.DONE]
        assert store.state("a") is CANCELED
        assert store.start() == ["b"]

    def test_a_dead_job_cancels_those_behind_it_if_asked_to(self, store: Store) -> None:
        self.die(store, on_dead="cancel_behind")
        store.wait(0)
        assert store.states("b", "c") == "CANCELED CANCELED"

    def test_the_shelf_is_read_in_pages(self, store: Store) -> None:
        store.enqueue(*[job(f"j{n}", max_attempts=1) for n in range(5)])
        for n in store.start():
            store.fail(n)
        page = store.apply(ListDead(0, 3))
        assert [record.id for record in page.records] == ["j0", "j1", "j2"]
        assert page.cursor is not None
        rest = store.apply(ListDead(page.cursor, 3))
        assert ([record.id for record in rest.records], rest.cursor) == (["j3", "j4"], None)

    def test_what_is_not_dead_is_refused(self, store: Store) -> None:
        store.enqueue(job("a"))
        assert store.redrive("a", "b") == [Verdict.REFUSED, Verdict.UNKNOWN]
        assert store.discard("a", "b") == [Verdict.REFUSED, Verdict.UNKNOWN]


class Keys:
    """A key names its newest unfinished job; a burst becomes one job."""

    def test_a_fresh_job_of_the_key_is_returned(self, store: Store) -> None:
        store.enqueue(job("a", key="k"))
        again = store.enqueue(job("b", key="k", arguments=b"[1]")).jobs[0]
        assert (again.id, again.created) == ("a", False)
        assert store.find("b") is None

    def test_a_started_job_is_not_fresh(self, store: Store) -> None:
        store.enqueue(job("a", key="k"))
        store.start()
        assert store.enqueue(job("b", key="k")).jobs[0].id == "b"

    def test_replace_gives_a_fresh_job_new_content_at_its_place(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], key="k"), job("z", ["doc"]))
        store.enqueue(job("b", ["doc"], key="k", on_conflict="replace", arguments=b'{"n":2}'))
        assert store.start() == ["a"]
        assert store.grants["a"].spec.arguments == b'{"n":2}'

    def test_after_waits_for_one_that_was_started(self, store: Store) -> None:
        store.enqueue(job("a", key="k"))
        store.start()
        store.enqueue(job("b", key="k", on_conflict="after"))
        assert (store.state("b"), store.why("b").jobs) == (DEFERRED, ("a",))
        store.finish("a")
        assert store.start() == ["b"]

    def test_reject_refuses_while_one_exists(self, store: Store) -> None:
        store.enqueue(job("a", key="k"))
        with pytest.raises(DuplicateJobError) as caught:
            store.enqueue(job("other"), job("b", key="k", on_conflict="reject"))
        assert (caught.value.key, caught.value.job_id) == ("k", "a")
        assert store.find("other") is None

    def test_the_key_is_free_in_the_step_that_ends_its_job(self, store: Store) -> None:
        store.enqueue(job("a", key="k"))
        store.run()
        assert store.enqueue(job("b", key="k", on_conflict="reject")).jobs[0].created


class Identity:
    """A job is its id: the same again is the same job, another of that id is refused."""

    def test_the_same_submission_again_changes_nothing(self, store: Store) -> None:
        first = store.enqueue(job("a", ["doc"])).jobs[0]
        again = store.enqueue(job("a", ["doc"])).jobs[0]
        assert (first.created, again.created, first.number) == (True, False, again.number)

    def test_the_same_id_is_found_while_it_runs_and_after_its_end(self, store: Store) -> None:
        for state in (QUEUED, STARTED, FINISHED):
            reply = store.enqueue(job("a")).jobs[0]
            assert (reply.created, reply.state) == (state is QUEUED, state)
            if not store.start():
                store.settle("a")

    def test_the_id_is_free_once_its_record_has_expired(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        store.wait(DAY_MS)
        assert store.enqueue(job("a", ["elsewhere"])).jobs[0].created

    def test_other_content_is_refused_naming_the_fields_and_not_their_values(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]))
        with pytest.raises(DuplicateJobError) as caught:
            store.enqueue(job("new"), job("a", ["secret"], arguments=b'{"password":1}'))
        assert caught.value.fields == ("claims", "arguments")
        assert "secret" not in str(caught.value)
        assert "password" not in str(caught.value)
        assert store.find("new") is None

    def test_an_id_twice_in_one_submission_is_refused(self, store: Store) -> None:
        with pytest.raises(DuplicateJobError):
            store.enqueue(job("a"), job("b"), job("a"))
        assert store.stats().unfinished == 0

    @pytest.mark.parametrize("id", ["{}", "*", "meta", "__root__", "id:sequence", "123", "é", "e\u0301", "🙂"])
    def test_an_id_is_literal(self, store: Store, id: str) -> None:
        store.enqueue(job(id), job("x"))
        assert store.run() == [id, "x"]
        assert store.record(id).state is FINISHED

    def test_an_unknown_job_is_not_found(self, store: Store) -> None:
        assert store.find("a") is None
        with pytest.raises(JobNotFoundError):
            store.why("a")


class Pauses:
    """A paused path starts nothing and keeps its places; a closed one takes nothing new."""

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

    def test_a_job_that_runs_goes_on(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]))
        store.start()
        store.pause("doc")
        store.finish("a")

    def test_a_closed_path_refuses_new_jobs_and_runs_the_old(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]))
        assert store.apply(Close(("doc",))).changed
        with pytest.raises(PathClosedError) as caught:
            store.enqueue(job("free"), job("b", ["doc", "2"]))
        assert caught.value.path_key == "doc"
        assert store.find("free") is None
        assert store.run() == ["a"]
        assert store.apply(Reopen(("doc",))).changed
        assert store.enqueue(job("b", ["doc", "2"])).jobs[0].created


class Presence:
    """A job that only its caller may start is there while its caller is."""

    def test_a_caller_that_does_not_renew_while_it_waits_loses_its_place(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]))
        store.start()
        store.enqueue(job("x", ["doc"], presence_ms=10_000, pool="@x"), job("b", ["doc"]))
        store.wait(10_000)
        store.renew("a")
        assert (store.state("x"), store.record("x").cause) == (CANCELED, "waiter_lost")
        store.finish("a")
        assert store.start() == ["b"]

    def test_a_caller_that_renews_keeps_waiting(self, store: Store) -> None:
        token = store.enqueue(job("x", ["doc"], presence_ms=10_000, pool="@x")).jobs[0].presence_token
        assert token is not None
        store.wait(9_000)
        assert store.apply(Renew((("x", token),), 10_000)).verdicts == (Verdict.DONE,)
        store.wait(9_000)
        assert store.state("x") is QUEUED

    def test_a_caller_that_dies_holding_is_canceled_and_never_started_again(self, store: Store) -> None:
        store.enqueue(job("x", ["doc"], presence_ms=10_000, pool="@x"), job("b", ["doc"]))
        assert [g.spec.id for g in store.apply(Exchange("@x", (), ("@x",), 1, 10_000)).grants] == ["x"]
        store.wait(10_000)
        assert (store.state("x"), store.record("x").cause) == (CANCELED, "waiter_lost")
        assert store.start() == ["b"]


class Records:
    """A job is its record, kept for a time after its end."""

    def test_a_record_tells_the_life_of_its_job(self, store: Store) -> None:
        began = store.clock.now_ms()
        store.enqueue(job("a", ["doc", "1"], user="ann", service="s"))
        store.wait(10)
        store.start(worker="w")
        store.wait(10)
        store.settle("a", result=b'{"result":1}')
        record = store.record("a")
        assert (record.state, record.result, record.attempts) == (FINISHED, b'{"result":1}', 1)
        assert (record.enqueued_ms, record.started_ms, record.ended_ms) == (began, began + 10, began + 20)
        assert (record.path, record.queue_keys) == (("doc", "1"), ("doc:1",))
        assert (record.spec.user, record.spec.service) == ("ann", "s")

    @pytest.mark.parametrize("failing, kept_ms", [(False, DAY_MS), (True, 7 * DAY_MS)])
    def test_a_record_expires_after_its_end(self, store: Store, failing: bool, kept_ms: int) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.start()
        store.settle("a", OutcomeKind.FAILED if failing else OutcomeKind.FINISHED)
        store.wait(kept_ms - 1)
        assert store.find("a") is not None
        store.wait(1)
        assert store.find("a") is None
        assert sum(store.stats().states.values()) == 0

    def test_a_jobs_own_retention_wins(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=0))
        store.run()
        store.wait(0)
        assert store.find("a") is None

    def test_counts_add_up(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", ["doc"]), job("c", ["doc"]), job("d", delay_ms=1_000))
        store.start(1)
        stats = store.stats()
        assert stats.states[STARTED] == 1
        assert stats.states[QUEUED] == 2
        assert stats.states[SCHEDULED] == 1
        assert (stats.unfinished, stats.enqueued, stats.started, stats.ready) == (4, 4, 1, {"default": 1})

    def test_the_tree_shows_who_is_where(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("b", ["doc"]))
        store.start()
        doc = store.apply(Tree(("doc",), 1))
        assert (doc.path_key, doc.started, doc.started_below, doc.waiting) == ("doc", 0, 1, 1)
        assert [(child.path_key, child.started) for child in doc.children] == [("doc:1", 1)]

    def test_nothing_is_left_when_all_is_over(self, store: Store) -> None:
        store.enqueue(*[job(f"j{n}", ["doc", str(n % 3)]) for n in range(12)], job("whole", ["doc"]))
        store.run(4)
        assert store.stats().nodes == 0
        store.wait(DAY_MS)
        stats = store.stats()
        assert (sum(stats.states.values()), stats.leftovers, stats.pruned) == (0, 0, 13)

    def test_what_a_job_was_asked_comes_back_as_it_was(self, store: Store) -> None:
        policy = Policy(
            max_attempts=7,
            max_losses=2,
            backoff=Backoff(base=2, factor=3, cap=9, jitter=0.5),
            timeout_ms=5,
            on_retry="yield",
            on_dead="hold",
            on_dependency_failure="run",
            max_hold_ms=6,
            start_within_ms=7,
            retention_ms=8,
        )
        spec = job(
            "a",
            claims=(Claim(("x",), SHARED), Claim(("y", "ü:\\"))),
            arguments='{"é":[1.0,-0.0,18446744073709551616,null,"\\u0000"]}'.encode(),
            priority=9,
            pool="p q",
            user="u:v",
            service="s",
            key="k",
            on_conflict="after",
            run_at_ms=store.clock.now_ms() + 99,
            policy=policy,
        )
        store.enqueue(spec)
        assert store.record("a").spec == spec


class Waiting:
    """Who waits for work or for an end is woken; a wait never outlasts its time."""

    def test_a_wait_for_what_is_there_returns_at_once(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.sleep(Interest(pools=("default",)), 60)
        store.start()
        store.finish("a")
        store.sleep(Interest(jobs=("a",)), 60)
        store.sleep(Interest(jobs=("unknown",)), 60)

    def test_a_wait_for_a_cancellation_that_was_asked_for_returns_at_once(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(worker="w")
        store.cancel("a")
        store.sleep(Interest(worker="w"), 60)

    def test_a_wait_for_nothing_ends(self, store: Store) -> None:
        store.enqueue(job("a", pool="other"))
        store.sleep(Interest(pools=("default",), worker="w", jobs=("a",)), 0.001)
