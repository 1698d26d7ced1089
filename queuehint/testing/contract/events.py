"""The rules of events and counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from queuehint import Claim, EventKind, InvalidJobError, JobError, JobState, OutcomeKind, Progress
from queuehint import operations as op
from queuehint.testing.contract.store import error
from queuehint.testing.driver import job
from queuehint.values.event import event_bytes
from queuehint.values.report import Delays

if TYPE_CHECKING:
    from queuehint import Event
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
SECOND, MINUTE, DAY = 1000, 60_000, 86_400_000


class Follower:
    """A reader of events from now on."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.after: int | None = store.apply(op.Follow()).after

    def read(self, limit: int = op.EVENTS_MAX) -> op.Followed:
        followed = self.store.apply(op.Follow(self.after, limit))
        self.after = followed.after
        return followed

    def moves(self) -> list[str]:
        """Return the events since the last call, each as kind and id."""
        return [f"{event.kind} {event.id}" for event in self.read().events]

    def of(self, job_id: str) -> list[Event]:
        return [event for event in self.read().events if event.id == job_id]


class _Followed:
    @pytest.fixture
    def follower(self, store: Store) -> Follower:
        return Follower(store)


class Events(_Followed):
    """Each move of each job is an event, in the order in which the moves were made."""

    def test_a_job_that_succeeds_is_enqueued_started_and_finished(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", ["doc"], user="ann", pool="p"))
        store.wait(5 * SECOND)
        store.start(pools=("p",))
        store.wait(3 * SECOND)
        store.finish("a")
        enqueued, started, finished = follower.read().events
        now_ms = store.clock.now_ms()
        assert (enqueued.kind, enqueued.old, enqueued.new) == (EventKind.ENQUEUED, None, QUEUED)
        assert (started.kind, started.old, started.new) == (EventKind.STARTED, QUEUED, STARTED)
        assert (finished.kind, finished.old, finished.new) == (EventKind.FINISHED, STARTED, FINISHED)
        assert [event.at_ms for event in (enqueued, started, finished)] == [now_ms - 8000, now_ms - 3000, now_ms]
        assert [event.took_ms for event in (enqueued, started, finished)] == [None, 5000, 3000]
        assert [event.attempt for event in (enqueued, started, finished)] == [0, 1, 1]
        assert [event.at for event in (enqueued, started, finished)] == [1, 2, 3]
        for event in (enqueued, started, finished):
            assert (event.id, event.number, event.task, event.pool, event.user) == ("a", 1, "task", "p", "ann")

    def test_delayed_job_emits_scheduled_then_queued(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", delay_ms=SECOND))
        (enqueued,) = follower.of("a")
        assert enqueued.new is SCHEDULED
        store.wait(SECOND)
        (queued,) = follower.of("a")
        assert (queued.kind, queued.old, queued.new) == (EventKind.QUEUED, SCHEDULED, QUEUED)

    def test_dependent_emits_deferred_then_queued(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a"), job("b", after="a"))
        store.start()
        store.finish("a")
        assert follower.moves() == ["enqueued a", "enqueued b", "started a", "finished a", "queued b"]

    def test_due_dependent_emits_deferred(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a"), job("b", after="a", delay_ms=SECOND))
        store.wait(SECOND)
        assert follower.moves() == ["enqueued a", "enqueued b", "deferred b"]

    def test_failed_attempt_emits_retry_and_the_last_emits_failure(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", max_attempts=2))
        store.start()
        store.fail("a", error=error(), delay_ms=SECOND)
        store.wait(SECOND)
        store.start()
        store.fail("a", error=error())
        _, _, retried, again, failed = follower.of("a")
        assert (retried.kind, retried.new, retried.cause) == (EventKind.RETRIED, QUEUED, "ValueError")
        assert (again.kind, again.attempt, again.took_ms) == (EventKind.STARTED, 2, None)
        assert (failed.kind, failed.new, failed.cause) == (EventKind.FAILED, FAILED, "failed")

    def test_yielding_retry_waits_again_for_its_new_place(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", ["doc"], on_retry="yield"))
        store.start()
        store.fail("a", delay_ms=SECOND)
        store.wait(SECOND)
        store.wait(SECOND)
        store.start()
        _, _, retried, queued, started = follower.of("a")
        assert (retried.kind, retried.new, retried.cause) == (EventKind.RETRIED, SCHEDULED, None)
        assert queued.kind is EventKind.QUEUED
        assert started.took_ms == SECOND

    def test_backoff_longer_than_max_hold_emits_a_lost_place(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", ["doc"], max_hold_ms=SECOND))
        store.start()
        store.fail("a", delay_ms=MINUTE)
        store.wait(SECOND)
        assert follower.moves() == ["enqueued a", "started a", "retried a", "scheduled a"]

    def test_snoozed_released_and_unknown_jobs_have_distinct_events(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a"), job("b"), job("c"))
        store.start()
        store.settle("a", OutcomeKind.SNOOZED, delay_ms=SECOND)
        store.settle("b", OutcomeKind.RELEASED)
        store.settle("c", OutcomeKind.UNKNOWN_TASK)
        last = [(event.kind, event.id, event.cause) for event in follower.read().events[-3:]]
        assert last == [
            (EventKind.SNOOZED, "a", None),
            (EventKind.RELEASED, "b", None),
            (EventKind.RELEASED, "c", "unknown_task"),
        ]

    def test_a_worker_that_dies_loses_its_jobs(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", max_losses=2))
        events = []
        for _ in range(2):
            store.start()
            store.wait(30 * SECOND + 1)
            events += follower.of("a")
        _, _, lost, _, failed = events
        assert (lost.kind, lost.old, lost.new, lost.cause) == (EventKind.LOST, STARTED, QUEUED, "worker_lost")
        assert (failed.kind, failed.cause) == (EventKind.FAILED, "worker_lost")

    def test_a_cancellation_is_an_event_when_the_job_is_canceled(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a"), job("b", delay_ms=MINUTE))
        store.start()
        store.cancel("a", "b")
        assert follower.moves() == ["enqueued a", "enqueued b", "started a", "canceled b"]
        store.settle("a", OutcomeKind.RELEASED)
        (canceled,) = follower.of("a")
        assert (canceled.old, canceled.new, canceled.cause) == (STARTED, CANCELED, "canceled")

    def test_a_dead_job_is_redriven_or_discarded(self, store: Store, follower: Follower) -> None:
        store.enqueue(*[job(each, max_attempts=1) for each in "ab"])
        store.start()
        store.fail("a")
        store.fail("b")
        follower.read()
        store.redrive("a")
        store.discard("b")
        redriven, canceled = follower.read().events
        assert (redriven.kind, redriven.id, redriven.old, redriven.new) == (EventKind.REDRIVEN, "a", FAILED, QUEUED)
        assert (canceled.kind, canceled.id, canceled.cause) == (EventKind.CANCELED, "b", "discarded")

    def test_downstream_revival_emits_redriven(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", max_attempts=1), job("b", after="a", on_dependency_failure="cancel"))
        store.start()
        store.fail("a")
        store.wait(0)
        follower.read()
        store.redrive("a", downstream=True)
        store.wait(0)
        assert follower.moves() == ["redriven a", "redriven b"]

    def test_parent_waits_for_its_children_and_ends_with_the_last(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a"))
        store.start()
        store.enqueue_from("a", job("b"))
        store.await_children("a", "b")
        store.run()
        assert follower.moves() == [
            *("enqueued a", "started a", "enqueued b", "deferred a"),
            *("started b", "finished b", "finished a"),
        ]

    def test_jobs_submitted_in_parts_are_enqueued_when_they_are_committed(
        self, store: Store, follower: Follower
    ) -> None:
        store.stage("s", job("a"))
        store.stage("s", job("b", after="a"))
        assert follower.moves() == []
        store.commit("s")
        store.wait(0)
        assert follower.moves() == ["enqueued a", "queued a", "enqueued b"]

    def test_job_canceled_before_its_release_emits_enqueued_first(self, store: Store, follower: Follower) -> None:
        for part in range(2):
            store.stage("s", *[job(f"{part}-{number}") for number in range(700)])
        store.commit("s")
        store.cancel("1-699")
        moves = [move for _ in range(4) for move in follower.moves() if move.endswith(" 1-699")]
        assert moves == ["enqueued 1-699", "canceled 1-699"]

    def test_enqueue_behind_a_canceled_dependency_emits_enqueued_and_canceled(
        self, store: Store, follower: Follower
    ) -> None:
        store.enqueue(job("a"))
        store.cancel("a")
        follower.read()
        store.enqueue(job("b", after="a", on_dependency_failure="cancel"))
        enqueued, canceled = follower.read().events
        assert (enqueued.kind, enqueued.new) == (EventKind.ENQUEUED, DEFERRED)
        assert (canceled.kind, canceled.cause) == (EventKind.CANCELED, "dependency a was canceled")

    def test_replaced_keyed_job_emits_an_event_when_its_state_changes(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", key="k"))
        store.enqueue(job("b", key="k", on_conflict="replace", delay_ms=SECOND))
        *_, scheduled = follower.of("a")
        assert (scheduled.kind, scheduled.old, scheduled.new) == (EventKind.SCHEDULED, QUEUED, SCHEDULED)

    def test_an_event_says_where_its_job_belongs(self, store: Store, follower: Follower) -> None:
        """Also after its record has gone: nothing of it is looked up later."""
        claims = (Claim(("doc:1", "s1")), Claim(("doc2",), "shared"))
        store.enqueue(job("a", ["doc"], user="ann", service="web", retention_ms=0))
        store.enqueue(attrs.evolve(job("b", flow="f", retention_ms=0), claims=claims), job("c", []), job("d"))
        store.run()
        store.wait(0)
        of = {
            kind: [event for event in found if event.kind == kind]
            for found in [follower.read().events]
            for kind in EventKind
        }
        assert [event.id for event in of[EventKind.PRUNED]] == ["a", "b"]
        for events in (of[EventKind.ENQUEUED], of[EventKind.STARTED], of[EventKind.FINISHED], of[EventKind.PRUNED]):
            a, b = [next(event for event in events if event.id == job_id) for job_id in "ab"]
            assert (a.claims, a.path, a.user, a.service, a.flow) == ((Claim(("doc",)),), ("doc",), "ann", "web", None)
            assert (b.claims, b.path, b.user, b.service, b.flow) == (claims, None, None, None, "f")
            assert b.queue_keys == ("doc\\:1:s1", "doc2")
        assert [event.queue_keys for event in of[EventKind.FINISHED] if event.id in "cd"] == [("root",), ()]

    def test_an_attempt_that_fails_or_is_lost_says_its_error(self, store: Store, follower: Follower) -> None:
        long = "a" + "ä" * 600
        store.enqueue(job("a", max_attempts=3), job("b", max_losses=2))
        store.start()
        store.fail("a", error=error("first\nline"))
        store.start()
        store.fail("a")
        store.start()
        store.fail("a", error=JobError(type="x\ny", message=long + "."))
        store.wait(30 * SECOND + 1)
        of_errors = {EventKind.RETRIED, EventKind.FAILED, EventKind.LOST}
        found = [event for event in follower.read().events if event.error_type or event.kind in of_errors]
        assert [(event.id, event.kind.value, event.error_type, event.error_message) for event in found] == [
            ("a", "retried", "ValueError", "first\nline"),
            ("a", "retried", None, None),
            ("a", "failed", "x\ny", long[:512]),
            ("b", "lost", "worker_lost", "worker w did not renew its lease"),
        ]
        errors = store.record("a").errors
        assert errors[-1].message == long + ".", "the record has all of it"

    def test_progress_is_an_event(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", ["doc"]), job("b"))
        store.start()
        store.wait(SECOND)
        token = store.grants["a"].token
        store.say("a", token, progress=Progress(1, 3, "page\n1"))
        store.say("b", token - 1, progress=Progress(1))
        notes = (
            op.Note("a", token, progress=Progress(2.5, None)),
            op.Note("a", token, ("line",)),
            op.Note("a", 1, progress=Progress(3)),
        )
        store.apply(op.Post(notes))
        last = store.apply(op.Follow()).after
        first, second = [event for event in follower.read().events if event.kind is EventKind.PROGRESSED]
        assert (first.progress, second.progress) == (Progress(1, 3, "page\n1"), Progress(2.5, None))
        assert (first.id, first.old, first.new, first.path, first.attempt) == ("a", STARTED, STARTED, ("doc",), 1)
        assert (first.took_ms, first.error_type, second.at) == (None, None, last)

    def test_a_record_that_expires_is_pruned_once(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a", retention_ms=0))
        store.run()
        store.wait(0)
        *_, pruned = follower.of("a")
        assert (pruned.kind, pruned.old, pruned.new) == (EventKind.PRUNED, FINISHED, None)
        for _ in range(11):
            store.wait(MINUTE)
            assert follower.moves() == []
        assert store.stats().pruned == 1


class Following(_Followed):
    """A subscriber reads every event once. Without a subscriber no event is kept. Missed events are reported."""

    def test_to_follow_begins_now(self, store: Store) -> None:
        store.enqueue(job("a"))
        assert store.apply(op.Follow()) == op.Followed((), 1, 0, False)

    def test_events_come_in_pages(self, store: Store, follower: Follower) -> None:
        store.enqueue(*[job(f"j{number}") for number in range(5)])
        pages = [follower.read(2) for _ in range(4)]
        assert [[event.id for event in page.events] for page in pages] == [["j0", "j1"], ["j2", "j3"], ["j4"], []]
        assert [page.is_more for page in pages] == [True, True, False, False]
        assert [page.after for page in pages] == [2, 4, 5, 5]

    def test_several_may_follow(self, store: Store) -> None:
        one, other = Follower(store), Follower(store)
        store.enqueue(job("a"))
        assert one.read() == other.read()

    def test_events_without_a_subscriber_are_missed_and_counted(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a"))
        store.wait(MINUTE + 1)
        store.enqueue(job("b"))
        followed = follower.read()
        assert (followed.events, followed.missed, followed.after) == ((), 2, 2)
        store.enqueue(job("c"))
        assert follower.read().missed == 0

    def test_a_subscriber_that_reads_every_minute_misses_no_event(self, store: Store, follower: Follower) -> None:
        for number in range(5):
            store.enqueue(job(f"j{number}"))
            store.wait(MINUTE)
            assert follower.moves() == [f"enqueued j{number}"]

    def test_event_log_keeps_the_last_ten_thousand_for_slow_subscribers(self, store: Store, follower: Follower) -> None:
        for part in range(11):
            store.enqueue(*[job(f"{part}-{number}") for number in range(1000)])
        followed = follower.read(1)
        assert followed.missed == 1000
        assert [event.id for event in followed.events] == ["1-0"]
        assert followed.is_more

    def test_log_keeps_sixteen_mebibytes_of_events(self, store: Store, follower: Follower) -> None:
        begin = follower.after or 0
        claims = [Claim(tuple([f"{at}".ljust(255, "x") for _ in range(16)])) for at in range(64)]
        store.enqueue(attrs.evolve(job("a"), claims=tuple(claims)))
        for _ in range(35):
            store.start()
            store.settle("a", OutcomeKind.RELEASED)
        followed = follower.read()
        sizes = [event_bytes(event) for event in followed.events]
        assert sum(sizes) <= 16 << 20 < sum(sizes) + max(sizes)
        assert begin + followed.missed + len(sizes) == followed.after == begin + 71
        store.wait(MINUTE + 1)
        follower.read()
        store.start()
        store.settle("a", OutcomeKind.RELEASED)
        followed = follower.read()
        assert (followed.missed, len(followed.events)) == (0, 2)

    @pytest.mark.parametrize("text", ["x" * 1023 + "é", "é" * 513, "€" * 342, "\U0001f600" * 257])
    def test_event_has_whole_characters_of_an_error(self, store: Store, follower: Follower, text: str) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.start()
        store.settle("a", OutcomeKind.FAILED, error=error(message=text))
        message = follower.read().events[-1].error_message
        assert message == text.encode()[:1024].decode(errors="ignore")

    def test_future_event_number_belongs_to_another_history(self, store: Store, follower: Follower) -> None:
        store.enqueue(job("a"))
        assert [event.id for event in store.apply(op.Follow(1_000)).events] == ["a"]

    @pytest.mark.parametrize("limit", [0, op.EVENTS_MAX + 1])
    def test_a_page_has_one_to_a_thousand_events(self, store: Store, limit: int) -> None:
        with pytest.raises(InvalidJobError, match="limit"):
            store.apply(op.Follow(0, limit))


class Totals:
    """Events are counted with and without a subscriber."""

    def test_each_kind_of_end_and_of_return_is_counted(self, store: Store) -> None:
        store.enqueue(*[job(each, max_attempts=2) for each in "abcdefg"])
        store.start()
        store.finish("a", "b")
        store.fail("c")
        store.fail("d", final=True)
        store.settle("e", OutcomeKind.SNOOZED, delay_ms=MINUTE)
        store.settle("f", OutcomeKind.RELEASED)
        store.cancel("g")
        store.settle("g", OutcomeKind.RELEASED)
        store.discard("d")
        stats = store.stats()
        assert (stats.finished, stats.failed, stats.canceled) == (2, 1, 2)
        assert (stats.retried, stats.snoozed, stats.released) == (1, 1, 1)
        assert (stats.enqueued, stats.started, stats.settled, stats.lost, stats.pruned) == (7, 7, 7, 0, 0)

    def test_oldest_job_that_waits_for_workers_is_reported_by_pool(self, store: Store) -> None:
        assert store.stats().oldest_ready_ms == {}
        began_ms = store.clock.now_ms()
        store.enqueue(job("a", user="zoe", pool="p"), job("b", ["doc"]), job("c", ["doc"], pool="q"))
        store.wait(SECOND)
        store.enqueue(job("d", user="ann", pool="p"), job("e", user="bob", pool="p"))
        assert store.stats().oldest_ready_ms == {"p": began_ms, "default": began_ms}
        store.start(pools=("default",))
        store.finish("b")
        store.start(limit=1, pools=("p",))
        assert store.stats().oldest_ready_ms == {"p": began_ms + SECOND, "q": began_ms}, "c has its place since then"

    def test_totals_outlive_the_records(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=0))
        store.run()
        store.wait(DAY)
        stats = store.stats()
        assert (stats.finished, stats.pruned, sum(stats.states.values())) == (1, 1, 0)

    def test_counts_by_state_add_up_to_the_records(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after="a"), job("c", delay_ms=MINUTE), job("d"), job("e", retention_ms=0))
        store.stage("s", job("hidden"))
        store.start()
        store.finish("a", "e")
        store.wait(0)
        assert sum(store.stats().states.values()) == sum(store.find(each) is not None for each in "abcde") == 4

    def test_wait_of_dependents_for_their_place_is_measured(self, store: Store) -> None:
        assert store.stats().resolved == Delays(count=0, sum_ms=0, max_ms=0)
        store.enqueue(job("a"), job("b", after="a"), job("c", after="b"), job("d", after="a", delay_ms=MINUTE))
        store.run()
        assert store.stats().resolved == Delays(count=2, sum_ms=0, max_ms=0), "d waits for its time"

    def test_dependent_released_in_a_later_step_counts_as_late(self, store: Store) -> None:
        store.enqueue(job("a"), *[job(f"j{number}", after="a") for number in range(900)])
        store.enqueue(*[job(f"k{number}", after="a") for number in range(900)])
        store.start()
        assert store.apply(op.Exchange("w", (store.outcome("a"),))).more
        store.wait(2 * SECOND)
        resolved = store.stats().resolved
        assert (resolved.count, resolved.max_ms) == (1800, 2000)
        assert 0 < resolved.sum_ms < 1800 * 2000
