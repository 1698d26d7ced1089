"""The rules of kept and vacated places, of grants, and of callers that hold a place themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint.operations import Verdict
from queuehint.testing.driver import job
from queuehint.values.outcome import Grant, OutcomeKind
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def start_first(store: Store, **fields: Any) -> None:
    """Enqueue j1, j2 and j3 on one path and start j1; *fields* are of its policy."""
    store.enqueue(job("j1", ["a"], **fields), job("j2", ["a"]), job("j3", ["a"]))
    assert store.start() == ["j1"]


class KeptPlaces:
    """A retried job keeps its place, unless its policy yields the place or bounds the time of holding it."""

    def test_yielding_retry_without_delay_goes_last_at_once(self, store: Store) -> None:
        start_first(store, on_retry="yield")
        store.fail("j1")
        assert store.run() == ["j2", "j3", "j1"]

    def test_backoff_longer_than_max_hold_gives_the_place_up(self, store: Store) -> None:
        start_first(store, max_hold_ms=5000)
        store.fail("j1", delay_ms=8000)
        store.wait(4999)
        assert (store.state("j1"), store.start()) == (JobState.QUEUED, [])
        store.wait(1)
        assert (store.state("j1"), store.record("j1").due_ms) == (JobState.SCHEDULED, store.began_ms + 8000)
        assert store.start() == ["j2"]
        store.finish("j2")
        store.wait(2999)
        assert store.state("j1") is JobState.SCHEDULED
        store.wait(1)
        assert store.run() == ["j3", "j1"]

    def test_backoff_as_long_as_max_hold_keeps_the_place(self, store: Store) -> None:
        start_first(store, max_hold_ms=5000)
        store.fail("j1", delay_ms=5000)
        store.wait(5000)
        assert store.run() == ["j1", "j2", "j3"]

    def test_crash_keeps_the_place_and_counts_only_a_loss(self, store: Store) -> None:
        start_first(store)
        store.wait(29_999)
        assert store.state("j1") is JobState.STARTED
        store.wait(1)
        record = store.record("j1")
        assert (record.state, record.attempts, record.losses, record.worker) == (JobState.QUEUED, 0, 1, None)
        assert [(error.type, error.message) for error in record.errors] == [
            ("worker_lost", "worker w did not renew its lease")
        ]
        assert store.run() == ["j1", "j2", "j3"]

    @pytest.mark.parametrize("on_retry, order", [("hold", ["j1", "j2", "j3"]), ("yield", ["j2", "j3", "j1"])])
    def test_snooze_follows_on_retry_and_counts_nothing(self, store: Store, on_retry: str, order: list[str]) -> None:
        start_first(store, on_retry=on_retry, max_attempts=1)
        assert store.settle("j1", OutcomeKind.SNOOZED, delay_ms=1000) is Verdict.DONE
        assert store.record("j1").attempts == 0
        if on_retry == "hold":
            assert store.start() == []
        else:
            assert store.run() == order[:2]
            order = order[2:]
        store.wait(1000)
        assert store.run() == order

    def test_unknown_task_pauses_longer_each_time_and_keeps_its_place(self, store: Store) -> None:
        start_first(store, max_attempts=1)
        pauses = []
        for _ in range(9):
            assert store.settle("j1", OutcomeKind.UNKNOWN_TASK) is Verdict.DONE
            record = store.record("j1")
            assert (record.state, record.attempts, record.losses, record.errors) == (JobState.QUEUED, 0, 0, ())
            assert record.due_ms is not None
            pauses.append((record.due_ms - store.clock.now_ms()) // 1000)
            store.wait(pauses[-1] * 1000 - 1)
            assert store.start() == []
            store.wait(1)
            assert store.start() == ["j1"]
        assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
        store.finish("j1")
        assert store.run() == ["j2", "j3"]
        assert store.is_clean


class Grants:
    """A grant has a job and the end of its lease, and is settled once."""

    def test_a_job_is_settled_once_even_within_one_batch(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.start()
        outcome = store.outcome("a")
        assert store.exchange(outcome, outcome).verdicts == (Verdict.DONE, Verdict.LOST)
        assert store.stats().settled == 1

    def test_tokens_strictly_increase_over_all_grants_and_callers(self, store: Store) -> None:
        tokens = []
        for number in range(5):
            made = store.enqueue(job(f"caller{number}", ["x"], presence_ms=10**9, pool="p"), job(f"j{number}", ["y"]))
            assert made.jobs[0].presence_token is not None
            tokens.append(made.jobs[0].presence_token)
            tokens += [grant.token for grant in store.exchange(limit=2).grants]
            store.wait(30_000)
        assert len(tokens) >= 10
        assert tokens == sorted(set(tokens))

    def test_grant_carries_spec_attempt_and_lease_end(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        store.start(lease_ms=2000)
        grant = store.grants["a"]
        assert (grant.spec, grant.attempt, grant.losses, grant.lease_until_ms) == (
            job("a", ["x"]),
            1,
            0,
            store.began_ms + 2000,
        )
        store.wait(2000)
        store.start()
        store.fail("a")
        store.start()
        assert (store.grants["a"].attempt, store.grants["a"].losses) == (2, 1)


def start_waiting(store: Store, **fields: Any) -> int:
    """Enqueue a caller's job behind a running job and before another. Return the caller's token."""
    store.enqueue(job("before", ["x"]))
    store.start(lease_ms=10**6)
    made = store.enqueue(job("caller", ["x"], presence_ms=10_000, pool="private", **fields), job("after", ["x"]))
    token = made.jobs[0].presence_token
    assert token is not None
    store.grants["caller"] = Grant(job("caller"), token, 0, 0, 0)
    return token


class Callers:
    """A job of a caller that holds a place itself is never granted to a worker."""

    @pytest.mark.parametrize(
        "kind", [OutcomeKind.RELEASED, OutcomeKind.SNOOZED, OutcomeKind.UNKNOWN_TASK, OutcomeKind.LOST]
    )
    def test_a_caller_that_gives_its_place_back_has_left(self, store: Store, kind: OutcomeKind) -> None:
        start_waiting(store)
        store.finish("before")
        store.start(pools=("private",))
        store.settle("caller", kind)
        assert (store.state("caller"), store.record("caller").cause) == (JobState.CANCELED, "waiter_lost")
        assert store.start() == ["after"]

    def test_a_caller_that_fails_is_not_tried_again(self, store: Store) -> None:
        start_waiting(store)
        store.finish("before")
        store.start(pools=("private",))
        store.fail("caller", delay_ms=1000)
        assert store.state("caller") is JobState.FAILED
        assert store.redrive("caller") == [Verdict.REFUSED]
        assert store.start() == ["after"]

    def test_only_the_caller_s_own_token_renews_its_presence(self, store: Store) -> None:
        token = start_waiting(store)
        store.grants["caller"] = Grant(job("caller"), token + 100, 0, 0, 0)
        assert store.renew("caller") == [Verdict.LOST]
        store.wait(10_000)
        assert store.state("caller") is JobState.CANCELED

    def test_a_caller_that_asks_again_gets_the_same_token(self, store: Store) -> None:
        token = start_waiting(store)
        again = store.enqueue(job("caller", ["x"], presence_ms=10_000, pool="private"))
        assert (again.jobs[0].created, again.jobs[0].presence_token) == (False, token)
        assert store.enqueue(job("after", ["x"])).jobs[0].presence_token is None
