"""The rules of restarts, for a backend whose jobs outlive what keeps them."""

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
    What is started anew knows all it knew, repeats no token, and gives workers time to come back.

    No part of `BackendConformance`: a test class of its own inherits this one, and says how to start anew too.

    .. versionadded:: 0.1.0
    """

    def restart(self, store: Store) -> None:
        """
        End what keeps the jobs, without a warning, and start it anew over what it kept; at `store.backend`.

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
        store.settle("over", result=b"1")
        ids = ("runs", "waits", "late", "after", "over")
        before = [store.record(job_id) for job_id in ids]
        self.restart(store)
        assert [store.record(job_id) for job_id in ids] == before
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
