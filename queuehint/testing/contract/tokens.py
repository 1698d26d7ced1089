"""The rules of tokens at the overflow of an epoch's counter, for a backend whose tests can reach that state."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from queuehint import JobState
from queuehint.operations import Exchange, Renew, Verdict
from queuehint.testing.contract.store import Binding
from queuehint.testing.driver import job

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
COUNT_END: Final = 1 << 32
"""Number of tokens in an epoch."""


class Tokens(Binding):
    """
    A token is its epoch and a count. The next epoch begins at the end of a count, without an effect on workers.

    No part of `BackendConformance`: a test class of its own inherits this one, and says how a store comes to be near
    the end of a count. Four thousand million grants take too long.

    .. versionadded:: 1.0.0
    """

    def count_to(self, store: Store, count: int) -> None:
        """
        Set the newest token of *store* to number *count* of its epoch. The store has granted a job before.

        Raises:
            NotImplementedError: a subclass does not say how.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method count_to(self, store, count)")

    def near_the_end(self, store: Store, left: int = 3) -> None:
        """Bring a store to its last tokens, with a granted job and *left* more grants in its epoch."""
        store.enqueue(job("first"))
        store.run()
        self.count_to(store, COUNT_END - 1 - left)

    def test_tokens_grow_by_one_past_the_end_of_a_count(self, store: Store) -> None:
        self.near_the_end(store)
        names = [f"j{number}" for number in range(8)]
        store.enqueue(*[job(name) for name in names])
        for name in names:
            assert store.start(1) == [name]
        tokens = [store.grants[name].token for name in names]
        assert all(after - before == 1 for before, after in pairwise(tokens))
        assert tokens[0] >> 32 < tokens[-1] >> 32

    def test_tokens_around_the_counter_limit_are_renewed_and_settled(self, store: Store) -> None:
        self.near_the_end(store)
        names = [f"j{number}" for number in range(8)]
        store.enqueue(*[job(name, ["doc", name]) for name in names])
        assert store.start() == names
        assert store.renew(*names) == [Verdict.DONE] * len(names)
        for name in names:
            assert store.say(name, store.grants[name].token, ("here",)) is Verdict.DONE
        store.finish(*names)

    def test_caller_that_waits_past_the_counter_limit_keeps_its_place(self, store: Store) -> None:
        self.near_the_end(store, left=1)
        callers = [job(f"x{n}", presence_ms=10_000, pool=f"@{n}") for n in range(3)]
        tokens = [store.enqueue(caller).jobs[0].presence_token or 0 for caller in callers]
        leases = tuple((caller.id, token) for caller, token in zip(callers, tokens, strict=True))
        assert store.apply(Renew(leases, 10_000)).verdicts == (Verdict.DONE,) * 3
        for caller, token in zip(callers, tokens, strict=True):
            (grant,) = store.apply(Exchange(caller.pool, (), (caller.pool,), 1, 10_000)).grants
            assert grant.token > token

    def test_old_grant_settles_nothing_past_the_counter_limit(self, store: Store) -> None:
        self.near_the_end(store, left=1)
        store.enqueue(job("a"))
        store.start()
        old = store.outcome("a")
        store.wait(30_000)
        assert store.start() == ["a"]
        assert store.exchange(old).verdicts == (Verdict.LOST,)
        store.finish("a")

    def test_counter_limit_delays_the_end_of_no_lease(self, store: Store) -> None:
        self.near_the_end(store, left=1)
        store.enqueue(job("before"), job("past"))
        assert store.start(1, lease_ms=30_000) == ["before"]
        store.wait(20_000)
        assert store.start(1, lease_ms=30_000) == ["past"]
        assert store.grants["before"].token >> 32 < store.grants["past"].token >> 32
        store.wait(9_999)
        assert store.states("before", "past") == "STARTED STARTED"
        store.wait(1)
        assert store.states("before", "past") == "QUEUED STARTED"
        store.wait(20_000)
        assert store.states("before", "past") == "QUEUED QUEUED"
