"""The rules of restarts, for backends with durable jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint import JobState
from queuehint.operations import Verdict
from queuehint.testing.contract.store import Binding
from queuehint.testing.driver import job

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Restarts(Binding):
    """
    A restarted store keeps all jobs, repeats no token, and gives workers time to reconnect.

    Not part of `BackendConformance`: inherit it in a test class of its own, and add the method that restarts the store.

    .. versionadded:: 1.0.0
    """

    def restart(self, store: Store) -> None:
        """
        End the process that keeps the jobs without a warning, and restart it from the kept state.

        Raises:
            NotImplementedError: a subclass does not say how.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method restart(self, store)")

    def test_all_that_was_known_is_known(self, store: Store) -> None:
        store.enqueue(
            job("runs", ["doc"]),
            job("waits", ["doc", "1"]),
            job("late", ["doc"], delay_ms=60_000),
            job("after", ["x"], after=["runs"]),
            job("over", ["y"]),
        )
        assert store.start() == ["runs", "over"]
        token = store.grants["runs"].token
        store.store_steps("runs", token, first=b"1", second=b"")
        store.settle("over", result=b"1")
        ids = ("runs", "waits", "late", "after", "over")
        before = [store.record(job_id) for job_id in ids]
        self.restart(store)
        assert [store.record(job_id) for job_id in ids] == before
        assert [name for name, _, _ in store.fetch_steps("runs", token).steps] == ["first", "second"]
        assert store.start() == []
        store.finish("runs")
        assert store.start() == ["waits", "after"]

    def test_tokens_grow(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("c"))
        tokens = []
        for name in "abc":
            store.start(limit=1)
            tokens.append(store.grants[name].token)
            self.restart(store)
        assert tokens == sorted(set(tokens))

    def test_a_worker_that_was_there_before_settles_its_jobs(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start()
        self.restart(store)
        assert store.renew("a") == [Verdict.DONE]
        store.finish("a")
        assert store.start() == ["b"]

    def test_nothing_is_reaped_for_the_length_of_a_lease(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]), job("b", ["doc"]))
        store.start(lease_ms=30_000)
        store.advance(29_999)
        self.restart(store)
        store.wait(29_999)
        assert store.state("a") is STARTED
        store.wait(30_000)
        record = store.record("a")
        assert (record.state, record.losses) == (QUEUED, 1)
        assert store.start() == ["a"]

    def test_a_lease_that_nobody_was_given_is_not_waited_for(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]))
        assert store.start(lease_ms=1_000) == ["a"]
        self.restart(store)
        store.wait(1_000)
        assert store.state("a") is STARTED
        store.wait(1_000)
        assert store.state("a") is QUEUED

    def test_restart_reaps_nothing_within_the_longest_lease(self, store: Store) -> None:
        store.enqueue(job("long"), job("short"), job("x", presence_ms=2_000, pool="@x"))
        assert store.start(1, lease_ms=90_000) == ["long"]
        assert store.start(1, lease_ms=1_000) == ["short"]
        store.wait(999)
        self.restart(store)
        store.wait(90_000)
        assert store.start(1, lease_ms=1_000) == []
        store.wait(89_999)
        assert store.states("long", "short", "x") == "STARTED STARTED QUEUED"
        assert store.renew("long", lease_ms=90_000) == [Verdict.DONE]
        store.wait(1)
        assert store.states("long", "short", "x") == "STARTED QUEUED CANCELED"

    def test_a_renewal_counts_as_much_as_a_grant(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start(lease_ms=1_000)
        assert store.renew("a", lease_ms=90_000) == [Verdict.DONE]
        self.restart(store)
        store.wait(90_000)
        store.wait(89_999)
        assert store.state("a") is STARTED
        store.wait(1)
        assert store.state("a") is QUEUED

    def test_others_that_renew_meanwhile_take_away_nothing(self, store: Store) -> None:
        store.enqueue(*[job(f"s{number}") for number in range(3)], job("long"))
        assert len(store.start(3, lease_ms=10_000)) == 3
        for turn in range(18):
            store.wait(9_000)
            assert store.renew("s0", "s1", "s2", lease_ms=10_000) == [Verdict.DONE] * 3
            if turn == 7:
                assert store.start(lease_ms=90_000) == ["long"]
            elif turn == 14:
                assert store.renew("long", lease_ms=90_000) == [Verdict.DONE]
        self.restart(store)
        # It was away for longer than any lease, and those with short ones come back first.
        store.advance(100_000)
        for _ in range(9):
            store.renew("s0", "s1", "s2", lease_ms=10_000)
            store.wait(9_000)
            assert store.state("long") is STARTED
        assert store.renew("long", lease_ms=90_000) == [Verdict.DONE]

    def test_lease_in_force_at_two_restarts_is_awaited_after_each(self, store: Store) -> None:
        store.enqueue(job("long"), job("short"))
        assert store.start(1, lease_ms=90_000) == ["long"]
        for _ in range(3):
            store.start(1, lease_ms=1_000)
            self.restart(store)
            store.wait(90_000)
            store.wait(89_999)
            assert store.state("long") is STARTED

    def test_restart_forgets_the_longest_lease_once_it_ended(self, store: Store) -> None:
        store.enqueue(job("long"), job("short"), job("a"))
        assert store.start(1, lease_ms=90_000) == ["long"]
        store.finish("long")
        assert store.start(1, lease_ms=10_000) == ["short"]
        for _ in range(30):
            store.wait(9_000)
            assert store.renew("short", lease_ms=10_000) == [Verdict.DONE]
        self.restart(store)
        store.wait(10_000)
        store.wait(9_999)
        assert store.state("short") is STARTED
        store.wait(1)
        assert store.state("short") is QUEUED

    def test_an_old_grant_settles_nothing_after_a_restart(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        old = store.outcome("a")
        self.restart(store)
        store.wait(30_000)
        store.wait(30_000)
        assert store.start() == ["a"]
        assert store.exchange(old).verdicts == (Verdict.LOST,)
        store.finish("a")
