"""Fairness: a bound on the starts of other users between two turns of a user, for any order of arrivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.clock import FakeClock
from queuehint.core.engine import Engine
from queuehint.values.spec import JobSpec
from tests.servers import new_namespace, shared_server

Apply = "Callable[[op.Operation[Any]], Any]"
USERS = (None, "ann", "bob", "cy")

users = st.sampled_from(USERS)
arrivals = st.lists(st.tuples(users, st.sampled_from((1, 3, 5, 9))), max_size=8)
claims = st.tuples(st.integers(1, 4), st.none() | st.lists(users, min_size=1, max_size=2, unique=True))
days = st.lists(st.tuples(arrivals, claims), min_size=1, max_size=30)
weights = st.dictionaries(users, st.integers(1, 4))


class Turns:
    """
    Counts, for each user that has always had ready jobs, the starts of others since the last start of this user.

    Args:
        weights: of users with another weight than 1.
    """

    def __init__(self, weights: dict[str | None, int]) -> None:
        self.weights = weights
        self.ready: Counter[str | None] = Counter()
        self.others: dict[str | None, Counter[str | None]] = {}

    def come(self, user: str | None) -> None:
        if not self.ready[user]:
            self.others[user] = Counter()
        self.ready[user] += 1

    def start(self, user: str | None) -> None:
        """Count a start of one user for all others that wait."""
        assert self.ready[user] > 0
        self.ready[user] -= 1
        self.others[user] = Counter()
        for other, size in self.ready.items():
            if other != user and size:
                self.others[other][user] += 1
                self.check(other)

    def check(self, waiting: str | None) -> None:
        bound = sum(self.weights.get(user, 1) for user in USERS if user != waiting)
        others = self.others[waiting]
        assert others.total() <= bound, f"{waiting} waits for {dict(others)}"
        assert all(count <= self.weights.get(user, 1) for user, count in others.items())


def go_through(days: Any, weights: dict[str | None, int], apply: Callable[[op.Operation[Any]], Any]) -> None:
    """Enqueue and claim jobs, by workers that serve all users and by some that do not."""
    for user, weight in weights.items():
        apply(op.Weigh(user, weight))
    turns = Turns(weights)
    number = 0
    for arriving, (limit, some) in days:
        specs = []
        for user, priority in arriving:
            number += 1
            specs.append(JobSpec(id=str(number), task="t", user=user, priority=priority))
            turns.come(user)
        if specs:
            apply(op.Enqueue(tuple(specs)))
        # A worker that is there for some does not count for the others: they would have had no turn with it.
        among = None if some is None else tuple(some)
        for grant in apply(op.Exchange("w", limit=limit, users=among)).grants:
            if among is None:
                turns.start(grant.spec.user)
            else:
                turns.ready[grant.spec.user] -= 1
                turns.others[grant.spec.user] = Counter()


@pytest.mark.slow
@settings(max_examples=200)
@given(days, st.just({}) | weights)
def test_users_start_at_most_their_weight_between_two_turns(days: Any, weights: dict[str | None, int]) -> None:
    engine = Engine()
    go_through(days, weights, lambda operation: engine.apply(operation, 0))
    engine.check()


@pytest.mark.redis
@settings(max_examples=10)
@given(days, weights)
def test_it_is_so_on_redis_too(days: Any, weights: dict[str | None, int]) -> None:
    options = BackendOptions(namespace=new_namespace(), clock=FakeClock())
    backend = RedisBackend(parse_url(shared_server().url), options)
    go_through(days, weights, backend.call_sync)
    backend.close_sync()
