"""The rules of the registry of workers: the listed workers, their expiry and their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.errors import InvalidJobError
from queuehint.testing.driver import job
from queuehint.values.report import ReasonKind, WorkerInfo

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


def announce(store: Store, name: str, **told: Any) -> op.Verdict:
    return store.apply(op.Announce(name, "host", 7, 4, **told)).verdict


def names(store: Store) -> list[str]:
    return [worker.name for worker in store.apply(op.ListWorkers()).workers]


class KnownWorkers:
    """
    A registered worker is listed until it leaves, or has been silent for a minute.

    .. versionadded:: 1.0.0
    """

    def test_worker_facts_are_reported_with_their_age(self, store: Store) -> None:
        told = {"pools": ("b", "a"), "users": ("ann", None), "steal": ("bob",), "version_name": "v 1"}
        assert announce(store, "w", running=2, **told) is op.Verdict.DONE
        began_ms = store.clock.now_ms()
        store.wait(15_000)
        assert announce(store, "w", running=3, **told) is op.Verdict.DONE
        known = store.apply(op.ListWorkers())
        worker = WorkerInfo(
            name="w", host="host", pid=7, version="v 1", pools=("b", "a"), users=("ann", None), steal=("bob",),
            slots=4, running=3, since_ms=began_ms, seen_ms=began_ms + 15_000,
        )  # fmt: skip
        assert (known.workers, known.now_ms) == ((worker,), began_ms + 15_000)
        announce(store, "w", users=("ann",), steal="*")
        (now,) = store.apply(op.ListWorkers()).workers
        assert now == attrs.evolve(worker, users=("ann",), steal="*", pools=("default",), version=None, running=0)

    def test_workers_are_told_in_order_of_name(self, store: Store) -> None:
        for name in ("b", "c", "\u00e9", "a"):
            announce(store, name)
        assert names(store) == ["a", "b", "c", "\u00e9"]

    def test_a_worker_that_leaves_is_known_no_more(self, store: Store) -> None:
        announce(store, "a")
        announce(store, "b")
        assert announce(store, "a", gone=True) is op.Verdict.DONE
        assert announce(store, "a", gone=True) is op.Verdict.UNKNOWN
        assert names(store) == ["b"]

    def test_worker_silent_for_a_minute_is_forgotten(self, store: Store) -> None:
        announce(store, "a")
        store.wait(op.WORKER_SEEN_MS)
        assert names(store) == ["a"]
        store.wait(1)
        assert names(store) == []
        assert announce(store, "a", gone=True) is op.Verdict.UNKNOWN
        announce(store, "a")
        assert store.apply(op.ListWorkers()).workers[0].since_ms == store.clock.now_ms(), "it is another life"

    def test_worker_whose_lease_is_reaped_is_known_no_more(self, store: Store) -> None:
        for name in ("a", "b", "w"):
            announce(store, name)
        store.enqueue(job("1"), job("2"), job("3"), job("4", max_losses=1), job("5"))
        store.start(1, worker="a", lease_ms=30_000)
        store.start(1, worker="w", lease_ms=40_000)
        store.wait(29_999)
        assert names(store) == ["a", "b", "w"]
        store.wait(1)
        assert names(store) == ["b", "w"]
        announce(store, "a")
        assert store.apply(op.ListWorkers()).workers[0].since_ms == store.clock.now_ms(), "it lives, and says so"
        store.cancel("2")
        store.wait(10_000)
        assert names(store) == ["a", "b"], "the job was canceled, and its worker is dead all the same"

    def test_renewed_lease_keeps_its_worker_known(self, store: Store) -> None:
        announce(store, "w")
        store.enqueue(job("1"))
        store.start(1, worker="w", lease_ms=30_000)
        store.wait(20_000)
        store.renew("1")
        store.wait(20_000)
        assert names(store) == ["w"]

    def test_an_announcement_reports_whether_its_worker_was_known(self, store: Store) -> None:
        def is_new(**told: Any) -> bool:
            return store.apply(op.Announce("w", "host", 7, 4, **told)).is_new

        assert [is_new(), is_new(), is_new(gone=True), is_new(gone=True), is_new()] == [True, False, False, True, True]
        store.wait(op.WORKER_SEEN_MS + 1)
        assert is_new()

    def test_an_announcement_reports_the_newest_token(self, store: Store) -> None:
        first = store.apply(op.Announce("w", "host", 7, 4)).token
        store.enqueue(job("a"))
        store.start(1)
        token = store.grants["a"].token
        assert first < token
        assert first >> 32 == token >> 32, "a worker without jobs knows the epoch of the grants to come"
        assert store.apply(op.Announce("w", "host", 7, 4)).token == token

    def test_an_exchange_alone_does_not_make_a_worker_known(self, store: Store) -> None:
        store.apply(op.Exchange("w", limit=1))
        assert names(store) == []

    def test_excess_worker_replaces_the_longest_silent_one(self, store: Store) -> None:
        announce(store, "b")
        announce(store, "a")
        for number in range(op.WORKERS_MAX - 3):
            announce(store, f"w{number}")
        store.wait(1)
        announce(store, "z")
        announce(store, "a")
        assert len(names(store)) == op.WORKERS_MAX
        announce(store, "new")
        known = names(store)
        assert len(known) == op.WORKERS_MAX
        assert "b" not in known
        assert {"a", "new", "w0", "z"} <= {*known}

    def test_a_job_that_nobody_serves_tells_which_workers_there_are(self, store: Store) -> None:
        store.enqueue(job("gpu", pool="gpu"), job("ann", user="ann"))
        assert store.why("gpu").detail == "pool gpu; there are no workers"
        announce(store, "w1", pools=("default", "mail"))
        assert store.why("gpu").detail == "pool gpu; the only worker does not serve it: w1 (pools default, mail)"
        announce(store, "w2", users=("bob", None), steal=("eve",))
        announce(store, "w3", users=("bob",), steal="*", pools=tuple("abcdefg"))
        announce(store, "w4")
        reason = store.why("ann")
        assert (reason.kind, reason.stuck) == (ReasonKind.NO_WORKER, True)
        assert reason.detail == (
            "pool default, user ann; none of 4 workers serves it: w1 (pools default, mail), w2 (pools default, users "
            "bob, (no user), eve), w3 (pools a, b, c, d, e and 2 more) and 1 more"
        )
        store.apply(op.Exchange("w4", pools=("gpu",)))
        assert store.why("gpu").detail == "pool gpu"

    def test_malformed_worker_fields_are_refused(self, store: Store) -> None:
        wrong: dict[str, dict[str, Any]] = {
            "users is empty": {"users": ()},
            "steal requires users": {"steal": ("bob",)},
            "pools: 65 in one operation, limit 64": {"pools": tuple([f"p{number}" for number in range(65)])},
            "version_name is 257 bytes, limit 256": {"version_name": "v" * 257},
            "version_name holds a control character": {"version_name": "a\nb"},
            "running must be from 0": {"running": -1},
        }
        for named, told in wrong.items():
            with pytest.raises(InvalidJobError, match=named):
                announce(store, "w", **told)
        assert names(store) == []
