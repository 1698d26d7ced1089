"""The rules of leases: settlement, loss, and wake-ups."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from queuehint import (
    JobState,
    OutcomeKind,
    Progress,
)
from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import job

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Leases:
    """A grant is a lease with a token. Without a renewal the worker loses the job, and the job keeps its place."""

    def test_job_with_an_expired_lease_is_ready_at_its_place(self, store: Store) -> None:
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
        assert store.renew("a") == [op.Verdict.DONE]
        store.wait(29_000)
        assert store.state("a") is STARTED

    def test_lease_lasts_exactly_to_its_end(self, store: Store) -> None:
        store.enqueue(job("granted"), job("renewed"))
        store.start(lease_ms=30_000)
        store.wait(10_000)
        assert store.renew("renewed", lease_ms=25_000) == [op.Verdict.DONE]
        store.wait(19_999)
        assert store.states("granted", "renewed") == "STARTED STARTED"
        store.wait(1)
        assert store.states("granted", "renewed") == "QUEUED STARTED"
        store.wait(4_999)
        assert store.state("renewed") is STARTED
        store.wait(1)
        assert store.state("renewed") is QUEUED

    def test_a_late_settlement_counts_until_the_job_was_reaped(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(lease_ms=30_000)
        store.clock.advance(seconds=60)
        assert store.settle("a") is op.Verdict.DONE

    def test_a_late_renewal_counts_until_the_job_was_reaped(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(lease_ms=30_000)
        store.advance(60_000)
        assert store.renew("a", lease_ms=30_000) == [op.Verdict.DONE]
        store.wait(29_999)
        assert (store.state("a"), store.record("a").losses) == (STARTED, 0)

    def test_a_worker_that_lost_its_lease_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        late = store.outcome("a", result=b"1")
        store.wait(30_000)
        store.start()
        before = store.record("a")
        assert store.exchange(late).verdicts == (op.Verdict.LOST,)
        assert store.record("a") == before

    @pytest.mark.parametrize("kind", OutcomeKind)
    def test_an_old_grant_settles_nothing(self, store: Store, kind: OutcomeKind) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start(worker="old")
        old = store.outcome("a", kind)
        store.wait(30_000)
        assert store.start(worker="new") == ["a"]
        before = store.record("a")
        assert store.exchange(old, worker="old", limit=1).verdicts == (op.Verdict.LOST,)
        assert store.record("a") == before
        assert store.state("b") is QUEUED
        store.finish("a")

    def test_an_old_grant_renews_nothing(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        old = store.grants["a"].token
        store.wait(30_000)
        store.start(lease_ms=30_000)
        store.wait(29_000)
        assert store.apply(op.Renew((("a", old),), 30_000)).verdicts == (op.Verdict.LOST,)
        store.wait(1_000)
        assert (store.state("a"), store.record("a").losses) == (QUEUED, 2)

    def test_an_old_grant_writes_nothing(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        old = store.grants["a"].token
        store.wait(30_000)
        store.start()
        before = store.record("a")
        said: list[dict[str, Any]] = [{"lines": ("one",)}, {"progress": Progress(1, 2)}, {"result": b"1"}]
        assert [store.say("a", old, **words) for words in said] == [op.Verdict.LOST] * 3
        notes = (op.Note("a", old, ("one",), Progress(1, 2), b"1"), op.Note("none", 1, ("one",)))
        assert store.apply(op.Post(notes)).verdicts == (op.Verdict.LOST, op.Verdict.LOST)
        assert store.record("a") == before

    def test_notes_of_many_jobs_equal_separate_notes(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("c"))
        store.start(2)
        token, other = store.grants["a"].token, store.grants["b"].token
        store.say("a", token, ("one",))
        notes = (
            op.Note("a", token, ("two", "three"), Progress(1, 2, "half")),
            op.Note("c", token, ("nobody",)),
            op.Note("b", other, result=b"1"),
            op.Note("a", token, ("four",), result=b"null"),
            op.Note("b", other + 1, ("late",), Progress(9), b"2"),
        )
        before = store.record("a").version
        done, lost = op.Verdict.DONE, op.Verdict.LOST
        assert store.apply(op.Post(notes)).verdicts == (done, lost, done, done, lost)
        first, second, third = store.record("a"), store.record("b"), store.record("c")
        assert (first.logs, first.progress, first.result) == (
            ("one", "two", "three", "four"), Progress(1, 2, "half"), b"null"
        )  # fmt: skip
        assert first.version == before + 2
        assert (second.logs, second.progress, second.result) == ((), None, b"1")
        assert (third.logs, third.state) == ((), QUEUED)
        assert store.apply(op.Post(())).verdicts == ()

    def test_every_grant_has_a_greater_token(self, store: Store) -> None:
        tokens = []
        store.enqueue(job("a", max_losses=10), job("b"))
        for _ in range(5):
            store.start()
            tokens.append(store.grants["a"].token)
            store.wait(30_000)
        assert tokens == sorted(set(tokens))

    @pytest.mark.parametrize("token", [0, -1, 10**30])
    def test_a_garbage_token_changes_nothing(self, store: Store, token: Any) -> None:
        store.enqueue(job("a"), job("b"))
        store.start()
        before = store.record("a")
        outcome = store.outcome("a")
        object.__setattr__(outcome, "token", token)
        assert store.exchange(outcome).verdicts == (op.Verdict.LOST,)
        assert store.record("a") == before

    def test_the_token_of_another_job_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.start()
        outcome = store.outcome("a")
        object.__setattr__(outcome, "token", store.grants["b"].token)
        assert store.exchange(outcome).verdicts == (op.Verdict.LOST,)
        assert store.states("a", "b") == "STARTED STARTED"

    def test_a_settlement_without_a_claim_is_lost(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.start(1)
        outcome = store.outcome("a")
        object.__setattr__(outcome, "job_id", "b")
        assert store.exchange(outcome).verdicts == (op.Verdict.LOST,)
        assert store.state("b") is QUEUED

    def test_a_repeated_settlement_is_lost_and_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        outcome = store.outcome("a", result=b"1")
        store.exchange(outcome)
        before = store.record("a")
        assert store.exchange(outcome).verdicts == (op.Verdict.LOST,)
        assert store.record("a") == before

    def test_a_job_that_loses_its_workers_too_often_is_dead(self, store: Store) -> None:
        store.enqueue(job("a", max_losses=2, max_attempts=1))
        for _ in range(2):
            store.start()
            store.wait(30_000)
        record = store.record("a")
        assert (record.state, record.cause, record.losses) == (FAILED, "worker_lost", 2)

    def test_lease_expired_before_a_last_life_began_is_no_loss(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], max_losses=2, max_attempts=1), job("b", ["doc"]))
        store.start()
        store.wait(30_000)
        for _ in range(2):
            assert store.start(announces=True) == ["a"]
            assert store.renew("a", lease_ms=30_000) == [op.Verdict.DONE]
            store.wait(30_000)
            record = store.record("a")
            assert (record.state, record.losses, record.attempts) == (QUEUED, 1, 0)
        assert store.start(announces=True) == ["a"]
        assert store.renew("a", lease_ms=30_000, begun=True) == [op.Verdict.DONE]
        assert store.renew("a", lease_ms=30_000) == [op.Verdict.DONE]
        store.wait(30_000)
        assert (store.state("a"), store.record("a").cause) == (FAILED, "worker_lost")

    def test_job_without_allowed_losses_is_safe_before_its_code(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"], max_losses=1, max_attempts=1), job("b", ["doc"]))
        for _ in range(2):
            assert store.start(announces=True) == ["a"]
            assert store.renew("a", lease_ms=30_000) == [op.Verdict.DONE]
            store.wait(30_000)
            record = store.record("a")
            assert (record.state, record.losses, record.attempts) == (QUEUED, 0, 0)
        assert store.stats().lost == 0
        assert store.start(announces=True) == ["a"]
        assert store.renew("a", lease_ms=30_000, begun=True) == [op.Verdict.DONE]
        store.wait(30_000)
        assert (store.state("a"), store.record("a").cause) == (FAILED, "worker_lost")

    def test_single_grant_of_a_last_life_is_safe_before_code(self, store: Store) -> None:
        store.enqueue(job("first"))
        store.start(announces=True)
        store.finish("first")
        store.enqueue(job("a", max_losses=1, max_attempts=1))
        assert store.start(announces=True) == ["a"]
        store.wait(30_000)
        record = store.record("a")
        assert (record.state, record.losses, record.attempts) == (QUEUED, 0, 0)

    def test_lost_unannounced_attempt_counts_as_begun(self, store: Store) -> None:
        store.enqueue(job("a", max_losses=2), job("b", max_losses=3), job("c", max_losses=1))
        store.start()
        store.wait(30_000)
        assert store.state("c") is FAILED
        store.start(announces=True)
        store.wait(30_000)
        assert (store.record("a").losses, store.record("b").losses) == (1, 2)
        store.start()
        store.wait(30_000)
        assert store.states("a", "b") == "FAILED FAILED"

    def test_unbegun_last_life_can_be_settled_and_canceled(self, store: Store) -> None:
        store.enqueue(*[job(name, max_losses=2) for name in "abc"])
        store.start()
        store.wait(30_000)
        store.start(announces=True)
        assert store.settle("a", OutcomeKind.LOST) is op.Verdict.DONE
        store.finish("b")
        store.cancel("c")
        assert store.renew("c", begun=True) == [op.Verdict.CANCELED]
        store.wait(30_000)
        assert store.states("a", "b", "c") == "FAILED FINISHED CANCELED"

    def test_redrive_forgets_an_unbegun_last_life(self, store: Store) -> None:
        store.enqueue(job("a", max_losses=2))
        store.start()
        store.wait(30_000)
        store.start(announces=True)
        store.settle("a", OutcomeKind.FAILED, final=True)
        store.redrive("a")
        store.start(announces=True)
        store.wait(30_000)
        assert (store.state("a"), store.record("a").losses) == (QUEUED, 1)

    def test_a_lost_job_that_was_to_stop_is_over(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start()
        store.cancel("a")
        store.wait(30_000)
        assert store.state("a") is CANCELED
        assert store.start() == ["b"]

    def test_released_job_is_ready_at_its_place_and_counts_nothing(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start()
        store.settle("a", OutcomeKind.RELEASED)
        record = store.record("a")
        assert (record.state, record.attempts, record.losses) == (QUEUED, 0, 0)
        assert store.start() == ["a"]

    def test_that_pause_begins_anew_once_a_worker_knew_the_job(self, store: Store) -> None:
        store.enqueue(job("a"))
        pauses = []
        for kind in (OutcomeKind.UNKNOWN_TASK, OutcomeKind.UNKNOWN_TASK, OutcomeKind.FAILED, OutcomeKind.UNKNOWN_TASK):
            store.start()
            store.settle("a", kind, delay_ms=1)
            due_ms = store.record("a").due_ms
            assert due_ms is not None
            pauses.append(due_ms - store.clock.now_ms())
            store.wait(pauses[-1])
        assert pauses == [5_000, 10_000, 1, 5_000]

    def test_progress_and_log_are_kept_while_the_lease_lasts(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        token = store.grants["a"].token
        assert store.say("a", token, progress=Progress(1, 2, "half")) is op.Verdict.DONE
        assert store.say("a", token, ("one", "two")) is op.Verdict.DONE
        assert store.say("a", token + 1, ("three",)) is op.Verdict.LOST
        store.finish("a")
        assert store.say("a", token, ("four",)) is op.Verdict.LOST
        record = store.record("a")
        assert record.progress == Progress(1, 2, "half")
        assert (record.logs, record.logs_truncated) == (("one", "two"), False)

    def test_progress_of_the_last_attempt_stays_until_the_next(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.say("a", store.grants["a"].token, progress=Progress(3, 3, "page 3"))
        store.fail("a")
        assert store.record("a").progress == Progress(3, 3, "page 3")
        store.wait(600_000)
        store.start()
        assert (store.state("a"), store.record("a").progress, store.why("a").progress) == (STARTED, None, None)
        store.say("a", store.grants["a"].token, progress=Progress(1))
        store.finish("a")
        assert store.record("a").progress == Progress(1)
        assert store.is_clean

    def test_the_last_thousand_log_lines_are_kept(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        store.say("a", store.grants["a"].token, tuple(str(n) for n in range(1_001)))
        record = store.record("a")
        assert (record.logs[0], len(record.logs), record.logs_truncated) == ("1", 1_000, True)


class Presence:
    """A job reserved for its caller is canceled when the caller stops waiting."""

    def test_waiting_caller_without_renewals_loses_its_place(self, store: Store) -> None:
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
        assert store.apply(op.Renew((("x", token),), 10_000)).verdicts == (op.Verdict.DONE,)
        store.wait(9_000)
        assert store.state("x") is QUEUED

    def test_presence_lasts_exactly_to_its_end(self, store: Store) -> None:
        waits, holds = (job(name, presence_ms=10_000, pool=f"@{name}") for name in ("waits", "holds"))
        token = store.enqueue(waits, holds).jobs[0].presence_token
        assert token is not None
        assert store.start(pools=("@holds",), lease_ms=10_000) == ["holds"]
        store.wait(9_999)
        assert store.states("waits", "holds") == "QUEUED STARTED"
        assert store.apply(op.Renew((("waits", token),), 10_000)).verdicts == (op.Verdict.DONE,)
        store.wait(1)
        assert store.states("waits", "holds") == "QUEUED CANCELED"
        store.wait(9_998)
        assert store.state("waits") is QUEUED
        store.wait(1)
        assert store.state("waits") is CANCELED

    def test_dead_caller_with_a_hold_is_canceled_and_never_restarted(self, store: Store) -> None:
        store.enqueue(job("x", ["doc"], presence_ms=10_000, pool="@x"), job("b", ["doc"]))
        assert [g.spec.id for g in store.apply(op.Exchange("@x", (), ("@x",), 1, 10_000)).grants] == ["x"]
        store.wait(10_000)
        assert (store.state("x"), store.record("x").cause) == (CANCELED, "waiter_lost")
        assert store.start() == ["b"]


class Waiting:
    """Waits for work or for an end are woken. No wait outlasts its timeout."""

    def test_sleep_returns_at_once_when_its_interest_is_met(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.sleep(Interest(pools=("default",)), 60)
        store.start()
        store.finish("a")
        store.sleep(Interest(jobs=("a",)), 60)
        store.sleep(Interest(jobs=("unknown",)), 60)

    def test_wait_for_a_requested_cancellation_returns_at_once(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(worker="w")
        store.cancel("a")
        store.sleep(Interest(worker="w"), 60)

    def test_a_wait_for_nothing_ends(self, store: Store) -> None:
        store.enqueue(job("a", pool="other"))
        store.sleep(Interest(pools=("default",), worker="w", jobs=("a",)), 0.001)
