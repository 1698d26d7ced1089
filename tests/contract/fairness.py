"""Users in turn, by weight, and workers that are there for some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint import InvalidJobError
from queuehint.backends.base import Interest
from queuehint.operations import ANYONE, WEIGHTS_MAX, Exchange, ListWeights, Weigh
from queuehint.reports import ReasonKind
from tests.support import job

if TYPE_CHECKING:
    from tests.contract.rules import Store

MINUTE_MS = 60_000


def letters(store: Store, count: int) -> str:
    """Start jobs, as many at once as it takes, and return the first letters of their ids."""
    return "".join(job_id[0] for job_id in store.start(count))


class Turns:
    """A user gets as many starts a turn as their weight, which is 1 unless it was set."""

    def weigh(self, store: Store, user: str | None, weight: int) -> bool:
        return store.apply(Weigh(user, weight)).changed

    def test_a_user_who_weighs_more_gets_more_starts_a_turn(self, store: Store) -> None:
        self.weigh(store, "ann", 3)
        store.enqueue(*[job(f"{user[0]}{n}", user=user) for n in range(7) for user in ("ann", "bob")])
        assert letters(store, 12) == "aaabaaababbb"

    def test_starts_of_a_turn_are_counted_over_several_claims(self, store: Store) -> None:
        self.weigh(store, "ann", 3)
        store.enqueue(*[job(f"{user[0]}{n}", user=user) for n in range(5) for user in ("ann", "bob")])
        assert "".join(letters(store, 1) for _ in range(8)) == "aaabaabb"

    def test_who_has_nothing_left_gives_up_the_rest_of_a_turn(self, store: Store) -> None:
        self.weigh(store, "ann", 3)
        store.enqueue(job("a0", user="ann"), job("b0", user="bob"), job("b1", user="bob"))
        assert letters(store, 1) == "a"
        store.enqueue(*[job(f"a{n}", user="ann") for n in range(1, 4)])
        assert letters(store, 5) == "baaab"

    def test_jobs_without_a_user_have_a_weight_too(self, store: Store) -> None:
        assert self.weigh(store, None, 2)
        store.enqueue(*[job(f"n{n}") for n in range(4)], *[job(f"b{n}", user="bob") for n in range(2)])
        assert letters(store, 6) == "nnbnnb"

    def test_a_weight_is_kept_until_it_is_1_again(self, store: Store) -> None:
        assert self.weigh(store, "bob", 100)
        assert not self.weigh(store, "bob", 100)
        assert self.weigh(store, None, 2)
        assert not self.weigh(store, "nobody", 1)
        assert store.apply(ListWeights()).users == ((None, 2), ("bob", 100))
        assert self.weigh(store, "bob", 1)
        assert self.weigh(store, None, 1)
        assert store.apply(ListWeights()).users == ()

    @pytest.mark.parametrize("weight", [0, -1, 101])
    def test_a_weight_is_1_to_100(self, store: Store, weight: int) -> None:
        with pytest.raises(InvalidJobError, match=f"^weight must be from 1 to 100, got {weight}$"):
            self.weigh(store, "ann", weight)

    def test_a_thousand_users_may_have_a_weight(self, store: Store) -> None:
        for number in range(WEIGHTS_MAX):
            assert self.weigh(store, f"u{number}", 2)
        with pytest.raises(InvalidJobError, match=r"^weights: 1000 users have one other than 1, limit 1000$"):
            self.weigh(store, "one more", 2)
        assert len(store.apply(ListWeights()).users) == WEIGHTS_MAX
        assert self.weigh(store, "u0", 3)
        assert self.weigh(store, "u0", 1)
        assert self.weigh(store, "one more", 2)


class Served:
    """A worker that names users gets their jobs only, and helps others while they have nothing ready."""

    def test_only_jobs_of_the_users_named_are_granted_in_turn(self, store: Store) -> None:
        store.enqueue(*[job(f"{user[0]}{n}", user=user) for n in range(2) for user in ("ann", "bob", "cy")])
        assert store.start(users=("cy", "ann")) == ["a0", "c0", "a1", "c1"]
        assert store.start(users=("ann",)) == []
        assert store.start() == ["b0", "b1"]

    def test_none_stands_for_jobs_without_a_user(self, store: Store) -> None:
        store.enqueue(job("n"), job("a", user="ann"))
        assert store.start(users=(None,)) == ["n"]

    def test_others_are_helped_once_the_own_have_nothing_ready(self, store: Store) -> None:
        store.enqueue(*[job(f"{user[0]}{n}", user=user) for n in range(2) for user in ("bob", "ann", "cy")])
        assert store.start(1, users=("ann",), steal=("bob",)) == ["a0"]
        assert store.start(users=("ann",), steal=("bob",)) == ["a1", "b0", "b1"]
        assert store.start(users=("ann",), steal=("bob",)) == []

    def test_anyone_may_be_helped(self, store: Store) -> None:
        store.enqueue(job("b", user="bob"), job("n"), job("a", user="ann"))
        assert store.start(users=("ann",), steal=ANYONE) == ["a", "b", "n"]

    def test_own_jobs_of_every_pool_go_before_those_of_others(self, store: Store) -> None:
        store.enqueue(job("b", user="bob", pool="p"), job("a", user="ann", pool="q"))
        assert store.start(pools=("p", "q"), users=("ann",), steal=("bob",)) == ["a", "b"]

    def test_who_is_served_apart_keeps_the_turns_of_all(self, store: Store) -> None:
        store.enqueue(*[job(f"{user[0]}{n}", user=user) for n in range(3) for user in ("ann", "bob", "cy")])
        assert store.start(1, users=("bob",)) == ["b0"]
        assert letters(store, 8) == "acbacbac"

    def test_a_job_whose_user_no_worker_serves_waits_for_one(self, store: Store) -> None:
        store.enqueue(job("a", user="ann"), job("b", user="bob"), job("n"))
        store.start(0, users=("ann",), steal=("cy",))
        assert [store.why(name).kind for name in "abn"] == [
            ReasonKind.WORKER,
            ReasonKind.NO_WORKER,
            ReasonKind.NO_WORKER,
        ]
        assert store.why("b").stuck
        assert store.why("b").detail == "pool default, user bob"
        assert store.stats().stuck["no_worker"] == 2
        assert store.pending().moving
        store.cancel("a")
        assert not store.pending().moving
        store.start(0, users=("ann",), steal=ANYONE)
        assert store.why("b").kind is ReasonKind.WORKER
        assert store.stats().stuck["no_worker"] == 0
        store.wait(MINUTE_MS + 1)
        assert store.why("b").kind is ReasonKind.NO_WORKER
        assert store.stats().stuck["no_worker"] == 2

    def test_who_waits_for_some_users_sleeps_while_only_others_have_jobs(self, store: Store) -> None:
        interest = Interest(pools=("default",), users=("ann", None))
        store.start(users=("ann", None))
        store.enqueue(job("b", user="bob"))
        store.sleep(interest, 0.01)
        store.enqueue(job("a", user="ann"))
        store.sleep(interest, 3_600)
        assert store.start(users=("ann", None)) == ["a"]
        store.enqueue(job("n"))
        store.sleep(interest, 3_600)
        assert store.start(users=("ann", None)) == ["n"]

    @pytest.mark.parametrize(
        "fields, message",
        [
            ({"users": ()}, "^users is empty; a worker that names users is there for at least one$"),
            ({"steal": ("a",)}, "^steal: whoever is there for everyone has nobody else to help; name users$"),
            ({"steal": ANYONE}, "^steal: whoever is there for everyone"),
            ({"users": tuple(map(str, range(65)))}, "^users: 65 in one operation, limit 64$"),
            ({"users": ("a",), "steal": tuple(map(str, range(65)))}, "^steal: 65 in one operation, limit 64$"),
            (
                {"users": tuple(map(str, range(51))), "pools": tuple(map(str, range(20)))},
                "^pools times users: 1020 in one operation, limit 1000$",
            ),
        ],
    )
    def test_users_that_make_no_sense_or_are_too_many_are_refused(
        self, store: Store, fields: dict[str, object], message: str
    ) -> None:
        with pytest.raises(InvalidJobError, match=message):
            store.apply(Exchange("w", **fields))  # type: ignore[arg-type]
