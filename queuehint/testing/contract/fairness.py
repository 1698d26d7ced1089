"""The rules of fairness: users in turn, weights, priority inheritance, and workers that serve some users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint import InvalidJobError, Limit, OutcomeKind
from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.testing.driver import claim, job
from queuehint.values.report import ReasonKind

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

MINUTE_MS = 60_000


def letters(store: Store, count: int) -> str:
    """Start jobs with unlimited concurrency, and return the first letters of their ids."""
    return "".join(job_id[0] for job_id in store.start(count))


def weigh(store: Store, user: str | None, weight: int) -> bool:
    return store.apply(op.Weigh(user, weight)).changed


class Turns:
    """A user gets as many starts a turn as their weight, by default 1."""

    def test_user_of_more_weight_gets_more_starts_a_turn(self, store: Store) -> None:
        weigh(store, "ann", 3)
        store.enqueue(*[job(f"{user[0]}{n}", user=user) for n in range(7) for user in ("ann", "bob")])
        assert letters(store, 12) == "aaabaaababbb"

    def test_starts_of_a_turn_are_counted_over_several_claims(self, store: Store) -> None:
        weigh(store, "ann", 3)
        store.enqueue(*[job(f"{user[0]}{n}", user=user) for n in range(5) for user in ("ann", "bob")])
        assert "".join(letters(store, 1) for _ in range(8)) == "aaabaabb"

    def test_user_without_ready_jobs_yields_the_rest_of_a_turn(self, store: Store) -> None:
        weigh(store, "ann", 3)
        store.enqueue(job("a0", user="ann"), job("b0", user="bob"), job("b1", user="bob"))
        assert letters(store, 1) == "a"
        store.enqueue(*[job(f"a{n}", user="ann") for n in range(1, 4)])
        assert letters(store, 5) == "baaab"

    def test_jobs_without_a_user_have_a_weight_too(self, store: Store) -> None:
        assert weigh(store, None, 2)
        store.enqueue(*[job(f"n{n}") for n in range(4)], *[job(f"b{n}", user="bob") for n in range(2)])
        assert letters(store, 6) == "nnbnnb"

    def test_a_weight_is_kept_until_it_is_1_again(self, store: Store) -> None:
        assert weigh(store, "bob", 100)
        assert not weigh(store, "bob", 100)
        assert weigh(store, None, 2)
        assert not weigh(store, "nobody", 1)
        assert store.apply(op.ListWeights()).users == ((None, 2), ("bob", 100))
        assert weigh(store, "bob", 1)
        assert weigh(store, None, 1)
        assert store.apply(op.ListWeights()).users == ()

    @pytest.mark.parametrize("weight", [0, -1, 101])
    def test_a_weight_is_1_to_100(self, store: Store, weight: int) -> None:
        with pytest.raises(InvalidJobError, match=f"^weight must be from 1 to 100, got {weight}$"):
            weigh(store, "ann", weight)

    def test_a_thousand_users_may_have_a_weight(self, store: Store) -> None:
        for number in range(op.WEIGHTS_MAX):
            assert weigh(store, f"u{number}", 2)
        with pytest.raises(InvalidJobError, match=r"^weights: 1000 users have one other than 1, limit 1000$"):
            weigh(store, "one more", 2)
        assert len(store.apply(op.ListWeights()).users) == op.WEIGHTS_MAX
        assert weigh(store, "u0", 3)
        assert weigh(store, "u0", 1)
        assert weigh(store, "one more", 2)


def flood(store: Store, count: int = 20) -> None:
    store.enqueue(*[job(f"x{n}", priority=5) for n in range(count)])


def levels(store: Store, names: str) -> list[int]:
    return [store.record(name).level for name in names]


class Levels:
    """A job that begins to wait raises its blockers to its level, so that other jobs do not delay them."""

    def test_dependency_of_a_critical_job_precedes_many_urgent_ones(self, store: Store) -> None:
        store.enqueue(job("low", ["doc"], priority=1))
        flood(store)
        store.enqueue(job("critical", ["doc"], priority=9))
        assert store.start(1) == ["low"]
        store.finish("low")
        assert store.start(1) == ["critical"]

    def test_holders_and_earlier_waiters_inherit_the_level_and_keep_priorities(self, store: Store) -> None:
        store.enqueue(job("a", ["d", "1"], priority=1), job("b", ["d", "2"], priority=2), job("c", ["d"], priority=1))
        store.enqueue(job("d", ["d", "3"], priority=5), job("e", ["other"], priority=1))
        assert levels(store, "abcde") == [5, 5, 5, 5, 1]
        assert [store.record(name).spec.priority for name in "abc"] == [1, 2, 1]
        flood(store, 3)
        assert store.start(2) == ["a", "b"]

    def test_a_level_is_never_made_worse(self, store: Store) -> None:
        store.enqueue(job("a", ["d"], priority=5), job("b", ["d"], priority=2), job("c", ["d"], priority=3))
        assert levels(store, "abc") == [5, 3, 3]

    def test_job_in_several_lines_passes_its_priority_on_in_each(self, store: Store) -> None:
        both = (claim("a"), claim("b"))
        store.enqueue(job("x", ["a"], priority=1), job("y", ["b"], priority=1), job("z", priority=1, claims=both))
        store.enqueue(job("w", ["a"], priority=4))
        assert levels(store, "xyzw") == [4, 4, 4, 4]

    def test_due_or_released_job_passes_its_priority_on(self, store: Store) -> None:
        store.enqueue(job("a", ["d"], priority=1), job("b", ["d"], priority=9, delay_ms=10))
        store.enqueue(job("p"), job("c", ["e"], priority=1), job("d", ["e"], priority=5, after=["p"]))
        assert levels(store, "ac") == [1, 1]
        store.wait(10)
        assert levels(store, "ac") == [9, 1]
        assert store.start(2)[1] == "p"
        store.finish("p")
        assert levels(store, "ac") == [9, 5]

    def test_inherited_priority_applies_to_the_claim_that_finds_it_due(self, store: Store) -> None:
        store.enqueue(job("a", ["d"], priority=1), job("b", ["d"], priority=9, delay_ms=10))
        store.enqueue(job("c", ["e"], priority=1, delay_ms=10), job("d", ["e"], priority=9, delay_ms=10))
        flood(store, 3)
        store.clock.advance(ms=10)
        assert store.start(2) == ["a", "c"]

    def test_a_submission_hands_on_inside_itself(self, store: Store) -> None:
        store.enqueue(
            *[job(f"{n}", ["d", str(n % 3)], priority=1 + n % 3) for n in range(6)], job("c", ["d"], priority=9)
        )
        assert levels(store, "012345c") == [9] * 7
        store.enqueue(job("x", priority=5))
        assert store.start(4) == ["0", "1", "2", "x"]

    def test_running_job_inherits_priority_and_keeps_it_when_released(self, store: Store) -> None:
        store.enqueue(job("a", ["d"], priority=1))
        store.start()
        store.enqueue(job("b", ["d"], priority=9))
        flood(store, 3)
        store.settle("a", OutcomeKind.RELEASED)
        assert store.start(1) == ["a"]

    def test_it_is_gone_with_the_place(self, store: Store) -> None:
        store.enqueue(job("a", ["d"], priority=1, on_retry="yield"), job("b", ["d"], priority=9))
        store.start()
        store.fail("a", delay_ms=5)
        assert levels(store, "a") == [1]
        store.run()
        assert levels(store, "b") == [9]

    @pytest.mark.parametrize("on_dead", ["continue", "hold"])
    def test_it_is_gone_with_the_end_and_with_a_redrive(self, store: Store, on_dead: str) -> None:
        store.enqueue(job("a", ["d"], priority=1, max_attempts=1, on_dead=on_dead), job("b", ["d"], priority=9))
        store.start()
        store.fail("a")
        assert levels(store, "a") == [1]
        store.redrive("a")
        assert levels(store, "a") == [1]

    def test_replaced_job_passes_on_its_new_priority(self, store: Store) -> None:
        replace = {"key": "k", "on_conflict": "replace"}
        store.enqueue(job("a", ["d"], priority=1), job("b", ["d"], priority=1, **replace))
        store.enqueue(job("c", ["d"], priority=9, **replace))
        assert levels(store, "ab") == [9, 9]
        store.enqueue(job("c", ["d"], priority=2, **replace), job("e", ["d"], priority=4))
        assert levels(store, "abe") == [9, 4, 4]
        store.enqueue(job("f", ["d"], priority=1, **replace))
        assert levels(store, "b") == [4]
        store.enqueue(job("f", ["d"], priority=5, **replace))
        store.enqueue(job("f", ["d"], priority=1, **replace))
        assert levels(store, "b") == [1], "it was as good by itself in between"
        store.enqueue(job("f", ["x"], priority=1, **replace))
        assert levels(store, "b") == [1]

    def test_the_hundred_first_in_the_way_are_looked_at(self, store: Store) -> None:
        store.enqueue(*[job(f"j{n:03}", ["d"], priority=1) for n in range(120)], job("c", ["d"], priority=9))
        levels = [store.record(f"j{n:03}").level for n in range(120)]
        assert levels == [9] * 100 + [1] * 20

    def test_the_hundred_are_counted_over_all_lines(self, store: Store) -> None:
        both = (claim("a"), claim("b"))
        store.enqueue(*[job(f"{line}{n:02}", [line], priority=1) for n in range(60) for line in "ab"])
        store.enqueue(job("z", priority=1, claims=both), job("c", ["a"], priority=9))
        levels = {line: [store.record(f"{line}{n:02}").level for n in range(60)] for line in "ab"}
        assert levels == {"a": [9] * 60, "b": [9] * 38 + [1] * 22}
        assert store.record("z").level == 9

    def test_four_hundred_are_looked_at_in_one_operation(self, store: Store) -> None:
        store.enqueue(*[job(f"{doc}{n:02}", [doc, str(n)], priority=1) for doc in "abcdef" for n in range(90)])
        store.enqueue(*[job(doc, [doc], priority=9) for doc in "abcdef"])
        found = [store.record(f"{doc}{n:02}").level for doc in "abcdef" for n in range(90)]
        assert found == [9] * 400 + [1] * 140

    def test_a_dead_job_in_the_way_is_left_alone(self, store: Store) -> None:
        store.enqueue(job("a", ["d"], priority=1, max_attempts=1, on_dead="hold"), job("b", ["d"], priority=1))
        store.start()
        store.fail("a")
        store.enqueue(job("c", ["d"], priority=9))
        assert levels(store, "abc") == [1, 9, 9]

    def test_parked_job_keeps_its_inherited_priority_after_a_pause(self, store: Store) -> None:
        store.enqueue(job("a", ["d"], priority=1))
        store.pause("d")
        assert store.start() == []
        store.enqueue(job("b", ["d"], priority=9))
        flood(store, 3)
        store.resume("d")
        assert store.start(1) == ["a"]

    def test_parked_job_of_a_limit_is_called_by_its_level(self, store: Store) -> None:
        store.apply(op.SetLimit(Limit(path=("d",), most=1)))
        store.enqueue(
            job("r", ["d", "0"], priority=9), job("x", ["d", "1"], priority=5), job("a", ["d", "2"], priority=1)
        )
        assert store.start() == ["r"]
        store.enqueue(job("b", ["d", "2"], priority=9))
        assert store.record("a").level == 9
        store.finish("r")
        assert store.start() == ["a"]

    def test_a_turn_is_kept(self, store: Store) -> None:
        store.enqueue(job("a", ["d"], priority=1, user="ann"), job("b", user="bob"), job("c", user="cy"))
        store.enqueue(job("e", ["d"], priority=9, user="ann"))
        assert store.start() == ["a", "b", "c"]


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
        assert store.start(users=("ann",), steal=op.ANYONE) == ["a", "b", "n"]

    def test_own_jobs_of_every_pool_precede_jobs_of_other_users(self, store: Store) -> None:
        store.enqueue(job("b", user="bob", pool="p"), job("a", user="ann", pool="q"))
        assert store.start(pools=("p", "q"), users=("ann",), steal=("bob",)) == ["a", "b"]

    def test_serving_a_user_apart_keeps_the_turns_of_all(self, store: Store) -> None:
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
        assert store.why("b").detail == "pool default, user bob; there are no workers"
        assert store.stats().stuck["no_worker"] == 2
        assert store.pending().moving
        store.cancel("a")
        assert not store.pending().moving
        store.start(0, users=("ann",), steal=op.ANYONE)
        assert store.why("b").kind is ReasonKind.WORKER
        assert store.stats().stuck["no_worker"] == 0
        store.wait(MINUTE_MS + 1)
        assert store.why("b").kind is ReasonKind.NO_WORKER
        assert store.stats().stuck["no_worker"] == 2

    def test_worker_for_some_users_sleeps_while_only_others_have_jobs(self, store: Store) -> None:
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
            ({"users": ()}, "^users is empty; a worker with users serves at least one$"),
            ({"steal": ("a",)}, "^steal requires users: a worker without users already serves everyone$"),
            ({"steal": op.ANYONE}, "^steal requires users: a worker without users"),
            ({"users": tuple(map(str, range(65)))}, "^users: 65 in one operation, limit 64$"),
            ({"users": ("a",), "steal": tuple(map(str, range(65)))}, "^steal: 65 in one operation, limit 64$"),
            (
                {"users": tuple(map(str, range(51))), "pools": tuple(map(str, range(20)))},
                "^pools times users: 1020 in one operation, limit 1000$",
            ),
        ],
    )
    def test_malformed_or_excess_users_are_refused(self, store: Store, fields: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidJobError, match=message):
            store.apply(op.Exchange("w", **fields))  # type: ignore[arg-type]
