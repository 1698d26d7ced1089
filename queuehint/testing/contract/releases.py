"""The rules of releases: a job unknown to the code of some workers is granted to workers of other releases."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from queuehint import operations as op
from queuehint.errors import InvalidJobError
from queuehint.testing.driver import job
from queuehint.values.limit import Limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import ReasonKind

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

UNKNOWN = OutcomeKind.UNKNOWN_TASK
RELEASES_KEPT = 8
"""How many of the releases that have refused a job a store remembers; the oldest are forgotten first."""
QUEUES_MAX = 64
"""How many sets of releases a store tells apart in a pool."""


def refuse(store: Store, *ids: str, by: str = "old", **fields: Any) -> None:
    """Have workers of the releases in *by* claim jobs and return them. *by* is a string of words."""
    for release in by.split():
        assert store.start(release=release, **fields) == list(ids)
        reply = store.exchange(*[store.outcome(job_id, UNKNOWN) for job_id in ids], release=release)
        assert reply.verdicts == (op.Verdict.DONE,) * len(ids)


def announce(store: Store, name: str, release: str, **told: Any) -> None:
    store.apply(op.Announce(name, "host", 7, 4, release=release, **told))


class Releases:
    """
    A job that a release does not know is at once there for every other release, and never for the same again.

    .. versionadded:: 1.0.0
    """

    def test_refused_job_is_offered_at_once_to_other_releases_alone(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        refuse(store, "a")
        record = store.record("a")
        assert (record.state, record.attempts, record.losses, record.due_ms) == (JobState.QUEUED, 0, 0, None)
        for _ in range(3):
            assert store.start(release="old") == []
            store.wait(300_000)
        assert store.start(release="new") == ["a"]
        store.finish("a")
        assert store.is_clean

    def test_refusal_and_claim_in_one_exchange_leave_the_job(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        assert store.start(1, release="old") == ["a"]
        reply = store.exchange(store.outcome("a", UNKNOWN), release="old", limit=9)
        assert [grant.spec.id for grant in reply.grants] == ["b"]
        reply = store.exchange(store.outcome("b", UNKNOWN), release="new", limit=9)
        assert [grant.spec.id for grant in reply.grants] == ["a"], "what a release refuses it does not get"
        assert store.start(release="old") == ["b"]

    def test_refused_jobs_come_in_order_before_unrefused_ones(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("c"))
        refuse(store, "a", "b", "c")
        store.enqueue(job("d", priority=5), job("e"))
        assert [store.start(1, release="new") for _ in range(3)] == [["a"], ["b"], ["c"]]
        assert store.start(release="old") == ["d", "e"]

    def test_refused_jobs_are_ordered_by_priority_as_all_are(self, store: Store) -> None:
        store.enqueue(job("low"), job("high", priority=5), job("critical", priority=9))
        refuse(store, "critical", "high", "low")
        assert store.start(release="new") == ["critical", "high", "low"]

    def test_refused_job_keeps_its_place_before_conflicting_jobs(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]), job("c", ["x", "y"]), job("free", ["z"]))
        refuse(store, "a", "free")
        assert store.start(release="old") == []
        assert store.start(release="new") == ["a", "free"]
        store.finish("a")
        assert store.start(release="old") == ["b"], "nobody has refused this one"

    def test_job_that_all_releases_refuse_waits_for_a_new_one(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        refuse(store, "a", by="one two")
        store.wait(600_000)
        assert store.start(release="one") == store.start(release="two") == []
        assert store.start(release="three") == ["a"]

    def test_why_and_counts_name_the_releases_that_all_refuse(self, store: Store) -> None:
        announce(store, "w1", "one", version_name="v 1")
        announce(store, "w2", "two")
        store.enqueue(job("a", ["x"]))
        refuse(store, "a", by="one")
        assert store.why("a").kind is ReasonKind.WORKER, "the other release has not tried it"
        assert store.stats().stuck["unknown_task"] == 0
        assert store.apply(op.CountPending()).moving
        refuse(store, "a", by="two")
        reason = store.why("a")
        assert (reason.kind, reason.stuck, reason.until_ms) == (ReasonKind.UNKNOWN_TASK, True, None)
        assert reason.detail == "task task, unknown to releases v 1, two"
        assert (store.stats().stuck["unknown_task"], store.stats().stuck["no_worker"]) == (1, 0)
        pending = store.apply(op.CountPending())
        assert (pending.unfinished, pending.moving, [each.kind for each in pending.reasons]) == (
            1,
            False,
            [ReasonKind.UNKNOWN_TASK],
        )
        assert store.stats().ready == {"default": 1}
        announce(store, "w3", "three", pools=("other",))
        assert store.why("a").kind is ReasonKind.UNKNOWN_TASK, "a worker of another pool is none for it"
        announce(store, "w4", "three", users=("ann",))
        assert store.why("a").kind is ReasonKind.UNKNOWN_TASK, "nor is one for other users"
        announce(store, "w5", "three", users=("ann",), steal=(None,))
        assert store.why("a").kind is ReasonKind.WORKER
        assert store.stats().stuck["unknown_task"] == 0

    def test_job_refused_where_no_worker_is_left_is_stuck(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        refuse(store, "a", "b")
        assert store.why("a").detail == "task task, unknown to release old"
        assert store.stats().stuck["unknown_task"] == 2

    def test_refusals_outlive_losses_and_retries_of_the_job(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], max_attempts=9))
        refuse(store, "a")
        assert store.start(release="new") == ["a"]
        store.wait(30_000)
        assert store.record("a").losses == 1
        assert store.start(release="old") == []
        assert store.start(release="new") == ["a"]
        store.fail("a", delay_ms=1000)
        store.wait(1000)
        assert store.start(release="old") == []
        assert store.start(release="new") == ["a"]

    def test_redrive_offers_a_refused_job_to_all_releases(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], max_attempts=1))
        refuse(store, "a")
        assert store.start(release="new") == ["a"]
        store.fail("a")
        assert store.redrive("a") == [op.Verdict.DONE]
        assert store.start(release="old") == ["a"]

    def test_worker_that_dies_before_refusing_leaves_the_job_to_all(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        assert store.start(release="old") == ["a"]
        late = store.outcome("a", UNKNOWN)
        store.wait(30_000)
        assert store.exchange(late, release="old").verdicts == (op.Verdict.LOST,)
        assert store.start(release="old") == ["a"]

    def test_refusal_sent_again_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        assert store.start(release="old") == ["a"]
        refusal = store.outcome("a", UNKNOWN)
        assert store.exchange(refusal, refusal, release="old").verdicts == (op.Verdict.DONE, op.Verdict.LOST)
        assert store.exchange(refusal, release="new").verdicts == (op.Verdict.LOST,)
        assert store.start(release="new") == ["a"]
        assert store.exchange(refusal, release="old").verdicts == (op.Verdict.LOST,)

    def test_exchange_without_a_release_delays_refused_jobs(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        refuse(store, "a")
        assert store.start() == ["a"], "it has not refused it"
        store.settle("a", UNKNOWN)
        assert store.record("a").due_ms == store.clock.now_ms() + 5000
        assert store.start(release="new") == []
        store.wait(5000)
        assert store.start(release="old") == []
        assert store.start(release="new") == ["a"]

    def test_job_remembers_the_last_eight_releases(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        releases = [f"r{number}" for number in range(RELEASES_KEPT + 1)]
        refuse(store, "a", by=" ".join(releases))
        assert store.start(release="r1") == store.start(release=releases[-1]) == []
        refuse(store, "a", by="r0")
        assert store.start(release="r0") == []
        assert store.start(release="r1") == ["a"]

    def test_pool_tells_sixty_four_sets_of_releases_apart(self, store: Store) -> None:
        store.enqueue(job("held", user="held"))
        refuse(store, "held", by="z")
        assert store.start(release="other", users=("held",)) == ["held"]
        sets = [" ".join(each) for size in (1, 2, 3) for each in combinations("abcdefgh", size)]
        for number, releases in enumerate(sets[:QUEUES_MAX]):
            store.enqueue(job(f"j{number}", user=f"u{number}"))
            refuse(store, f"j{number}", by=releases, users=(f"u{number}",))
        assert store.settle("held", OutcomeKind.RELEASED) is op.Verdict.DONE
        assert store.start(release="z", users=("held",)) == ["held"], "without room it is forgotten who refused it"
        first, second, third = sets[QUEUES_MAX].split()
        store.enqueue(job("more", user="more"))
        refuse(store, "more", by=f"{first} {second} {third}", users=("more",))
        assert store.record("more").due_ms == store.clock.now_ms() + 5000, "there is no room for one more set"
        store.wait(5000)
        assert store.start(release=second, users=("more",)) == []
        store.cancel("j0")
        refuse(store, "more", by=third, users=("more",))
        assert store.start(release=third, users=("more",)) == []
        assert store.start(release="other", users=("more",)) == ["more"]

    def test_refused_jobs_of_users_take_turns(self, store: Store) -> None:
        store.enqueue(*[job(f"{user}{number}", user=user) for user in ("ann", "bob") for number in (1, 2)])
        refuse(store, "ann1", "bob1", "ann2", "bob2")
        assert store.start(release="new") == ["ann1", "bob1", "ann2", "bob2"]

    def test_workers_for_users_get_refused_jobs_of_theirs(self, store: Store) -> None:
        store.enqueue(job("a", user="ann"), job("b", user="bob"), job("c", user="bob"))
        refuse(store, "a", "b", "c")
        store.enqueue(job("d", user="ann"))
        assert store.start(1, release="new", users=("ann",), steal=("bob",)) == ["a"]
        assert store.start(release="old", users=("bob",)) == []
        assert store.start(2, release="new", users=("ann",), steal=("bob",)) == ["d", "b"]
        assert store.start(release="new", users=("eve",), steal="*") == ["c"]

    def test_pauses_hold_refused_jobs_back_too(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]))
        refuse(store, "a")
        store.apply(op.Pause(RecordFilter(path=("x",))))
        assert store.start(release="new") == []
        assert store.why("a").kind is ReasonKind.PAUSED
        store.apply(op.Resume(RecordFilter(path=("x",))))
        assert store.start(release="old") == []
        assert store.start(release="new") == ["a"]

    def test_limits_hold_refused_jobs_back_too(self, store: Store) -> None:
        store.apply(op.SetLimit(Limit(path=("x",), most=1)))
        store.enqueue(job("a", ["x", "1"]), job("b", ["x", "2"]))
        refuse(store, "a")
        refuse(store, "b")
        assert store.start(release="new") == ["a"]
        assert store.start(release="old") == []
        store.finish("a")
        assert store.start(release="old") == []
        assert store.start(release="new") == ["b"]

    def test_refused_job_can_be_canceled_and_expires(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]))
        refuse(store, "a")
        assert store.cancel("a") == [op.Verdict.DONE]
        assert store.start(release="old") == ["b"]
        store.finish("b")
        assert store.is_clean

    def test_pools_are_served_in_turn_beside_refused_jobs(self, store: Store) -> None:
        store.enqueue(job("a", pool="p"), job("b", pool="q"))
        refuse(store, "a", "b", pools=("p", "q"))
        store.enqueue(job("c", pool="p"), job("d", pool="q"))
        assert sorted(store.start(2, release="new", pools=("p", "q"))) == ["a", "b"]
        assert sorted(store.start(release="old", pools=("p", "q"))) == ["c", "d"]

    @pytest.mark.parametrize(
        "release, problem",
        [("r" * 17, "release is 17 characters, limit 16"), ("a,b", "release must be letters"), ("é", "release must")],
    )
    def test_release_of_other_characters_is_refused(self, store: Store, release: str, problem: str) -> None:
        with pytest.raises(InvalidJobError, match=problem):
            store.apply(op.Exchange("w", limit=1, release=release))
        with pytest.raises(InvalidJobError, match=problem):
            announce(store, "w", release)
