"""The rules of permits: plain code takes slots of a limit as a job without a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint import operations as op
from queuehint.core.structures.limits import LOOK_MS
from queuehint.errors import InvalidHintError, InvalidJobError, LeaseLostError, QueueFullError
from queuehint.testing.contract.limits import at, limit, started
from queuehint.testing.contract.slots import running_at
from queuehint.testing.driver import job
from queuehint.values.hint import COUNTED, Claim
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind

if TYPE_CHECKING:
    from typing import Any

    from queuehint.testing.contract.store import Store
    from queuehint.testing.driver import Driver
    from queuehint.values.spec import JobSpec

QUEUED, STARTED, CANCELED = JobState.QUEUED, JobState.STARTED, JobState.CANCELED
LEASE_MS = 10_000


def permit(id: str, *path: str, **fields: Any) -> JobSpec:
    """Return the job of a permit."""
    fields = {"presence_ms": LEASE_MS, "max_attempts": 1, "max_losses": 1, **fields}
    return job(id, claims=(Claim(path, COUNTED),), pool=f"@{id}", **fields)


def take(store: Driver, id: str, lease_ms: int = LEASE_MS) -> bool:
    """Request a permit as its caller does. Return whether the permit was granted."""
    return store.start(1, pools=(f"@{id}",), worker=f"@{id}", lease_ms=lease_ms) == [id]


class Permits:
    """Permits and jobs share the slots of a limit. A permit blocks no place."""

    def test_permits_and_jobs_share_the_room_of_a_limit(self, store: Store) -> None:
        limit(store, "a", most=2)
        store.enqueue(permit("p", "a"), permit("q", "a"), *at("a", 2))
        assert take(store, "p")
        assert store.start() == ["a0"]
        assert not take(store, "q")
        assert running_at(store, "a") == 2
        reason = store.why("q")
        assert (reason.kind, reason.path_key) == (ReasonKind.LIMIT, "a")
        store.finish("p")
        assert take(store, "q")
        assert running_at(store, "a") == 2
        store.finish("a0", "q")
        assert store.start() == ["a1"]
        store.finish("a1")
        assert started(store) == [0]
        assert store.is_clean

    def test_a_permit_takes_no_place(self, store: Store) -> None:
        store.enqueue(job("whole", ["a"]), job("part", ["a", "x"]), permit("p", "a"), permit("q", "a", "x"))
        assert store.start() == ["whole"]
        assert take(store, "p")
        assert take(store, "q")
        store.finish("whole")
        assert store.start() == ["part"]
        store.finish("part")
        assert store.apply(op.CanDequeue(("a",)))
        store.enqueue(job("again", ["a"]))
        assert store.start() == ["again"]
        store.finish("again", "p", "q")
        assert store.is_clean

    def test_permit_counts_under_each_limit_at_and_above_its_path(self, store: Store) -> None:
        limit(store, most=4)
        limit(store, "t", most=3)
        limit(store, "t", most=1, each=True)
        store.enqueue(permit("p", "t", "ann"), permit("q", "t", "ann", "x"), permit("r", "t", "ben"), *at("t:ann", 1))
        assert take(store, "p")
        assert not take(store, "q")
        assert store.why("q").path_key == "t:ann"
        assert take(store, "r")
        assert store.start() == []
        assert (running_at(store), running_at(store, "t"), running_at(store, "t", each=True)) == (2, 2, 2)

    def test_a_permit_takes_as_much_as_it_costs(self, store: Store) -> None:
        limit(store, "a", most=4)
        store.enqueue(permit("p", "a", cost=3), *at("a", 3))
        assert store.start(1) == ["a0"]
        assert take(store, "p")
        assert store.start() == []
        store.finish("p")
        assert store.start() == ["a1", "a2"]
        with pytest.raises(InvalidJobError, match="cost is 5, and the limit of path 'a' has 4"):
            store.enqueue(permit("q", "a", cost=5))

    def test_a_permit_counts_for_a_rate_once_it_is_granted(self, store: Store) -> None:
        limit(store, "a", rate=(2, 1000), burst=2)
        store.enqueue(permit("p", "a"), permit("q", "a"), *at("a", 1))
        assert take(store, "p")
        store.finish("p")
        assert store.start() == ["a0"]
        assert not take(store, "q")
        assert store.why("q").until_ms == store.began_ms + 500
        store.wait(499)
        assert not take(store, "q")
        store.wait(1)
        assert take(store, "q")

    def test_permits_and_jobs_get_room_in_order_of_arrival(self, store: Store) -> None:
        limit(store, "a", most=1)
        store.enqueue(job("first", ["a", "first"]))
        assert store.start() == ["first"]
        for name in ("p", "q"):
            store.enqueue(permit(name, "a"))
            assert not take(store, name)
            store.enqueue(job(f"{name}-next", ["a", name]))
            assert store.start() == []
        store.finish("first")
        for name in ("p", "p-next", "q", "q-next"):
            assert store.start() == ([name] if name.endswith("next") else [])
            assert [take(store, other) for other in ("q", "p")] == [name == "q", name == "p"]
            store.finish(name)
        assert store.is_clean

    def test_worker_exchange_does_not_overtake_a_waiting_permit(self, store: Store) -> None:
        limit(store, "a", most=1)
        store.enqueue(*at("a", 1))
        store.start()
        store.enqueue(permit("p", "a"))
        assert not take(store, "p")
        store.enqueue(job("late", ["a", "late"]))
        reply = store.exchange(store.outcome("a0"), pools=("default",), limit=1)
        assert reply.grants == ()
        assert store.why("p").kind is ReasonKind.CALLER
        assert take(store, "p")

    def test_a_more_urgent_permit_comes_first(self, store: Store) -> None:
        limit(store, "a", most=1)
        store.enqueue(*at("a", 1))
        store.start()
        store.enqueue(permit("p", "a"), permit("q", "a", priority=5))
        assert not take(store, "p")
        assert not take(store, "q")
        store.finish("a0")
        assert not take(store, "p")
        assert take(store, "q")

    def test_why_of_a_permit_names_the_first_waiter(self, store: Store) -> None:
        limit(store, "a", most=2)
        store.enqueue(*at("a", 1))
        store.start()
        store.enqueue(permit("p", "a", cost=2), permit("q", "a"))
        assert not take(store, "p")
        assert not take(store, "q")
        assert store.why("p").jobs == ()
        assert store.why("q").jobs == ("p",)
        assert "waits for a limit behind p at a" in str(store.why("q"))
        store.finish("a0")
        assert store.why("q").jobs == (), "the first one is called"
        assert take(store, "p")

    def test_unclaimed_permit_lets_the_next_go_after_a_while(self, store: Store) -> None:
        limit(store, "a", most=1)
        store.enqueue(*at("a", 1))
        store.start()
        store.enqueue(permit("p", "a"), permit("q", "a"))
        assert not take(store, "p")
        assert not take(store, "q")
        store.finish("a0")
        store.wait(LOOK_MS - 1)
        assert not take(store, "q")
        store.wait(1)
        assert take(store, "q")
        assert not take(store, "p")
        store.finish("q")
        assert take(store, "p")

    def test_one_that_is_canceled_while_it_waits_leaves_nothing(self, store: Store) -> None:
        limit(store, "a", most=1)
        store.enqueue(*at("a", 2))
        assert store.start() == ["a0"]
        store.enqueue(permit("p", "a"), permit("q", "a"))
        assert not take(store, "p")
        assert not take(store, "q")
        store.cancel("p")
        store.finish("a0")
        store.cancel("q")
        assert store.start() == ["a1"], "one that is called and canceled holds nobody up"
        store.finish("a1")
        assert started(store) == [0]
        assert store.is_clean

    def test_permit_of_a_dead_caller_returns_its_wait_and_hold(self, store: Store) -> None:
        limit(store, "a", most=1)
        store.enqueue(permit("p", "a"))
        assert take(store, "p")
        store.wait(LEASE_MS - 1)
        store.enqueue(permit("q", "a"), permit("r", "a"))
        assert not take(store, "q")
        assert not take(store, "r")
        store.wait(1)
        assert (store.state("p"), store.record("p").cause) == (CANCELED, "waiter_lost")
        assert take(store, "q")
        assert store.renew("p") == [op.Verdict.LOST]
        store.wait(LEASE_MS)
        assert store.states("q", "r") == "CANCELED CANCELED"
        assert started(store) == [0]
        assert store.is_clean

    def test_permit_of_a_dead_caller_is_never_restarted_or_placed(self, store: Store) -> None:
        store.enqueue(permit("p", "a", on_dead="hold"), job("x", ["a"]))
        assert take(store, "p")
        store.fail("p")
        assert store.state("p") is JobState.FAILED
        assert store.stats().stuck["dead_hold"] == 0
        assert store.start() == ["x"]
        assert store.discard("p") == [op.Verdict.DONE]

    def test_permit_obeys_pauses_and_max_pending_of_its_path(self, store: Store) -> None:
        store.pause("a")
        store.enqueue(permit("p", "a", "x"))
        assert not take(store, "p")
        assert store.why("p").kind is ReasonKind.PAUSED
        store.resume("a")
        assert take(store, "p")
        limit(store, "a", max_pending=1)
        with pytest.raises(QueueFullError):
            store.enqueue(permit("q", "a"))

    def test_it_is_found_and_canceled_at_its_path(self, store: Store) -> None:
        store.enqueue(permit("p", "a", "x"), job("j", ["a", "x"]))
        assert store.record("p").spec.claims == (Claim(("a", "x"), COUNTED),)
        assert store.pending(("a",)).unfinished == 2
        assert not store.cancel_path("a")
        assert store.states("p", "j") == "CANCELED CANCELED"

    def test_the_same_submission_again_is_the_same_permit(self, store: Store) -> None:
        limit(store, "a", most=1)
        first, again = store.enqueue(permit("p", "a")).jobs[0], store.enqueue(permit("p", "a")).jobs[0]
        assert (again.number, again.created, again.presence_token) == (first.number, False, first.presence_token)
        assert take(store, "p")
        assert not take(store, "p")
        assert running_at(store, "a") == 1

    def test_permit_of_a_handler_that_lost_its_job_is_refused(self, store: Store) -> None:
        store.enqueue(job("j"))
        store.start()
        store.enqueue_from("j", permit("p", "a", parent="j"))
        assert store.record("p").spec.parent == "j"
        store.finish("j")
        with pytest.raises(LeaseLostError):
            store.enqueue_from("j", permit("q", "a", parent="j"))
        assert store.find("q") is None

    def test_new_and_changed_limits_count_held_permits(self, store: Store) -> None:
        store.enqueue(permit("p", "a"), permit("q", "a"), permit("r", "a"))
        assert take(store, "p")
        limit(store, "a", most=1)
        assert running_at(store, "a") == 1
        assert not take(store, "q")
        limit(store, "a", most=2)
        assert take(store, "q")
        assert not take(store, "r")
        limit(store, "a")
        assert take(store, "r")

    def test_placeless_claim_is_refused_beside_others_and_without_a_caller(self, store: Store) -> None:
        counted = Claim(("a",), COUNTED)
        with pytest.raises(InvalidHintError, match="the counted one of 'a' is that of a permit, and must stand alone"):
            store.enqueue(job("p", claims=(counted, Claim(("b",))), presence_ms=LEASE_MS))
        with pytest.raises(InvalidJobError, match="the counted one of 'a' is that of a permit: ask for it by"):
            store.enqueue(job("p", claims=(counted,)))
        assert store.find("p") is None
