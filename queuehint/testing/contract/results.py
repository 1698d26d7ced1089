"""The rules of data between jobs: results, children, and shared values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint import InvalidJobError, JobState, OutcomeKind
from queuehint import operations as op
from queuehint.errors import LeaseLostError
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
MINUTE = 60_000
CANCELING: dict[str, Any] = {"on_dependency_failure": "cancel"}


def fetch(store: Store, job_id: str, *ids: str) -> tuple[Any, ...]:
    return store.fetch(job_id, *ids).results


class Results:
    """A running job reads the results of its dependencies, which are kept while the job may run."""

    def test_a_running_job_reads_its_dependencies_and_nothing_else(self, store: Store) -> None:
        store.enqueue(job("a"), job("f"), job("stranger"))
        store.enqueue(job("b", after=["a", Dependency("f", when="done")]))
        store.start()
        store.settle("a", result=b'{"result":"\xc3\xa9"}')
        store.fail("f", final=True)
        store.settle("stranger", result=b"3")
        store.start()
        results = ((FAILED, None), (FINISHED, b'{"result":"\xc3\xa9"}'), (None, None), (None, None))
        assert fetch(store, "b", "f", "a", "stranger", "nobody") == results
        assert fetch(store, "b") == ()

    def test_fetch_requires_the_current_lease(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"]))
        store.start()
        store.settle("a", result=b"1")
        store.start()
        token = store.grants["b"].token
        assert store.fetch("b", "a", token=token + 1).verdict is op.Verdict.LOST
        assert store.fetch("nobody", "a", token=token).verdict is op.Verdict.LOST
        store.finish("b")
        assert store.fetch("b", "a", token=token).verdict is op.Verdict.LOST

    def test_a_result_is_kept_until_its_last_dependent_is_over(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=0), job("b", after=["a"]), job("c", after=["a"], delay_ms=DAY_MS))
        store.start()
        store.settle("a", result=b"1")
        store.start()
        store.finish("b")
        store.wait(DAY_MS - MINUTE)
        assert store.record("a").result == b"1"
        store.wait(MINUTE)
        assert store.start() == ["c"]
        assert fetch(store, "c", "a") == ((FINISHED, b"1"),)
        store.finish("c")
        store.wait(MINUTE)
        assert store.find("a") is None

    def test_a_dead_dependent_keeps_its_results_for_its_redrive(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=0), job("b", after=["a"], max_attempts=1))
        store.start()
        store.settle("a", result=b"1")
        store.start()
        store.fail("b")
        store.wait(DAY_MS)
        store.redrive("b")
        store.start()
        assert fetch(store, "b", "a") == ((FINISHED, b"1"),)


def start_parent(store: Store, *children: str, **fields: Any) -> None:
    store.enqueue(job("p", ["doc"], **fields))
    store.start()
    store.enqueue_from("p", *[job(each, ["doc"], max_attempts=1, parent="p") for each in children])


class Children:
    """A parent ends when its children have ended."""

    def test_only_a_running_job_makes_children(self, store: Store) -> None:
        start_parent(store, "a")
        token = store.grants["p"].token
        for parent in [("p", token + 1), ("a", token), ("nobody", token)]:
            with pytest.raises(LeaseLostError):
                store.apply(op.Enqueue((job("b"),), parent=parent))
        assert store.find("b") is None

    def test_parent_frees_its_place_while_it_awaits_children(self, store: Store) -> None:
        start_parent(store, "a", "b")
        assert store.start() == []
        store.await_children("p", "a", "b", result=b"1")
        record = store.record("p")
        assert (record.state, record.seq, record.worker) == (DEFERRED, None, None)
        assert store.why("p").jobs == ("a", "b")
        assert store.renew("p") == [op.Verdict.LOST]
        assert store.run() == ["a", "b"]
        assert (store.state("p"), store.record("p").result) == (FINISHED, b"1")

    @pytest.mark.parametrize("how", [OutcomeKind.FAILED, OutcomeKind.DISCARDED])
    @pytest.mark.parametrize("on_child_failure", ["fail", "ignore"])
    def test_unfinished_child_fails_its_parent_unless_ignored(
        self, store: Store, how: OutcomeKind, on_child_failure: str
    ) -> None:
        start_parent(store, "a", "b")
        store.enqueue(job("after", after=["p"], **CANCELING))
        store.await_children("p", "a", "b", result=b"1", on_child_failure=on_child_failure)
        store.start()
        store.settle("a", how)
        assert store.state("p") is DEFERRED
        store.start()
        store.finish("b")
        store.wait(0)
        record = store.record("p")
        if on_child_failure == "ignore":
            assert (record.state, record.result, store.state("after")) == (FINISHED, b"1", QUEUED)
        else:
            assert (record.state, record.cause, record.result) == (FAILED, "child_failed", None)
            state = "FAILED" if how is OutcomeKind.FAILED else "CANCELED"
            assert (record.errors[0].type, record.errors[0].message) == ("child_failed", f"child a is {state}")
            assert store.state("after") is CANCELED

    def test_children_that_are_over_end_their_parent_at_once(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("p"), job("q"), job("r"))
        store.start()
        store.finish("a")
        store.fail("b", final=True)
        store.await_children("p", "a", result=b"1")
        store.await_children("q", "a", "b", result=b"1")
        store.await_children("r", "b", result=b"1", on_child_failure="ignore")
        assert store.states("p", "q", "r") == "FINISHED FAILED FINISHED"
        assert [store.record(each).result for each in "pqr"] == [b"1", None, b"1"]

    def test_a_cycle_through_any_number_of_jobs_fails_the_job(self, store: Store) -> None:
        store.enqueue(job("p"))
        store.start()
        for part in range(2):
            chain = [job(f"{at}", after=[f"{at - 1}" if at else "p"]) for at in range(part * 900, part * 900 + 900)]
            store.enqueue(*chain)
        store.await_children("p", "1799")
        record = store.record("p")
        assert (record.state, record.cause) == (FAILED, "failed")
        assert record.errors[0].type in {"queuehint.errors.CycleError", "queuehint.errors.DependencyError"}

    def test_a_child_may_wait_for_any_number_of_jobs(self, store: Store) -> None:
        store.enqueue(job("p"), job("q", after=["p"]))
        store.start()
        for part in range(2):
            store.enqueue(*[job(f"{part}-{number}", delay_ms=1_000) for number in range(900)])
        store.enqueue(*[job(f"all-{part}", after=[f"{part}-{n}" for n in range(900)]) for part in range(2)])
        store.enqueue(job("child", after=["all-0", "all-1"]))
        store.await_children("p", "child")
        assert store.states("p", "q") == "DEFERRED DEFERRED"

    def test_child_that_waits_for_its_job_fails_it_for_good(self, store: Store) -> None:
        for child in ("p", "b", "c"):
            store.enqueue(
                *[
                    job(f"{each}-{child}", after=[f"{before}-{child}"] if before else [])
                    for before, each in (("", "p"), ("p", "b"), ("b", "c"))
                ]
            )
            store.start()
            store.await_children(f"p-{child}", f"{child}-{child}")
            record = store.record(f"p-{child}")
            assert (record.state, record.errors[0].type) == (FAILED, "queuehint.errors.CycleError")

    def test_a_cancellation_wins_and_leaves_the_children(self, store: Store) -> None:
        start_parent(store, "a")
        store.cancel("p")
        store.await_children("p", "a")
        assert store.states("p", "a") == "CANCELED QUEUED"
        store.enqueue(job("q"))
        store.start()
        store.await_children("q", "a")
        assert store.cancel("q") == [op.Verdict.DONE]
        store.finish("a")
        assert store.states("q", "a") == "CANCELED FINISHED"


class Shared:
    """Values are pushed and pulled by key, each for a time."""

    def test_a_value_is_there_until_its_time_is_over(self, store: Store) -> None:
        assert store.apply(op.Pull("n", "k")).value is None
        assert not store.apply(op.Push("n", "k", b"1", 1_000)).replaced
        assert store.apply(op.Push("n", "k", b'{"\xc3\xa9":1}', 2_000)).replaced
        assert store.apply(op.Pull("n", "k")).value == b'{"\xc3\xa9":1}'
        store.wait(1_999)
        assert store.apply(op.Pull("n", "k")).value is not None
        store.wait(1)
        assert store.apply(op.Pull("n", "k")).value is None
        assert not store.apply(op.Push("n", "k", b"3", 1_000)).replaced

    def test_a_value_that_is_deleted_is_gone_at_once(self, store: Store) -> None:
        assert not store.apply(op.Push("n", "k", b"", 0)).replaced
        store.apply(op.Push("n", "k", b"1", 1_000))
        store.apply(op.Push("n", "other", b"2", 1_000))
        assert store.apply(op.Push("n", "k", b"", 0)).replaced
        assert store.apply(op.Pull("n", "k")).value is None
        assert not store.apply(op.Push("n", "k", b"", 0)).replaced
        assert not store.apply(op.Push("n", "k", b"3", 1_000)).replaced
        assert [store.apply(op.Pull("n", key)).value for key in ("k", "other")] == [b"3", b"2"]

    def test_keys_are_listed_in_pages_in_order_of_their_bytes(self, store: Store) -> None:
        keys = ["b", "a:2", "a:1", "a", "A", "\u00e9", "z", "\uffee", "\U0001f600", "a:10", "*", "a%"]
        for key in keys:
            store.apply(op.Push("n", key, b"1", 1_000))
        store.apply(op.Push("n2", "a:3", b"1", 1_000))
        ordered = tuple(sorted(keys, key=str.encode))
        assert store.apply(op.ListShared("n")) == op.SharedKeys(ordered, None)
        assert store.apply(op.ListShared("n", limit=len(keys))) == op.SharedKeys(ordered, None)
        page = store.apply(op.ListShared("n", limit=5))
        assert page == op.SharedKeys(ordered[:5], ordered[4])
        assert store.apply(op.ListShared("n", after=page.after)) == op.SharedKeys(ordered[5:], None)
        assert store.apply(op.ListShared("nobody")) == op.SharedKeys((), None)

    def test_shared_keys_are_listed_by_prefix(self, store: Store) -> None:
        for key in ("a", "a:1", "a:10", "a:2", "b"):
            store.apply(op.Push("n", key, b"1", 1_000))
        assert store.apply(op.ListShared("n", "a:")).keys == ("a:1", "a:10", "a:2")
        assert store.apply(op.ListShared("n", "a:1")).keys == ("a:1", "a:10")
        assert store.apply(op.ListShared("n", "a:", limit=2)) == op.SharedKeys(("a:1", "a:10"), "a:10")
        # The key after which a page begins need not exist, nor have the prefix.
        assert store.apply(op.ListShared("n", "a:", "a:1")).keys == ("a:10", "a:2")
        assert store.apply(op.ListShared("n", "a:", "a:11")).keys == ("a:2",)
        assert store.apply(op.ListShared("n", "a:", "A")).keys == ("a:1", "a:10", "a:2")
        assert store.apply(op.ListShared("n", "a:", "b")).keys == store.apply(op.ListShared("n", "c")).keys == ()

    def test_deleted_or_expired_shared_values_are_not_listed(self, store: Store) -> None:
        for key, ttl_ms in (("a", 1_000), ("b", 2_000), ("c", 3_000)):
            store.apply(op.Push("n", key, b"1", ttl_ms))
        store.apply(op.Push("n", "c", b"", 0))
        assert store.apply(op.ListShared("n")).keys == ("a", "b")
        # No step that drops them has come between.
        store.advance(1_000)
        assert store.apply(op.ListShared("n")) == op.SharedKeys(("b",), None)
        store.wait(0)
        store.apply(op.Push("n", "a", b"2", 5_000))
        assert store.apply(op.ListShared("n")).keys == ("a", "b")
        store.wait(1_000)
        assert store.apply(op.ListShared("n")).keys == ("a",)

    def test_page_of_shared_keys_ends_after_a_thousand_reads(self, store: Store) -> None:
        names = [f"k{number:04}" for number in range(1_100)]
        for name in names:
            store.apply(op.Push("n", name, b"1", 1 if name < "k1050" else DAY_MS))
        store.advance(1)
        assert store.apply(op.ListShared("n")) == op.SharedKeys((), names[999])
        assert store.apply(op.ListShared("n", after=names[999])) == op.SharedKeys(tuple(names[1_050:]), None)

    def test_the_tally_of_a_cancellation_is_not_listed(self, store: Store) -> None:
        for part in range(3):
            store.enqueue(*[job(f"{part}-{number}", ["doc"]) for number in range(500)])
        assert store.count_path("doc") == 1_500
        assert store.apply(op.ListShared("default")).keys == ()
        with pytest.raises(InvalidJobError):
            store.apply(op.ListShared(op.TALLIES))

    @pytest.mark.parametrize("limit", [0, 1_001])
    def test_a_page_of_keys_has_a_limit(self, store: Store, limit: int) -> None:
        with pytest.raises(InvalidJobError, match=f"limit must be from 1 to 1000, got {limit}"):
            store.apply(op.ListShared("n", limit=limit))

    def test_namespaces_and_keys_are_apart(self, store: Store) -> None:
        places = [("a", "b"), ("b", "a"), ("a:b", "c"), ("a", "b:c"), ("ab", "c"), ("{a}", "*")]
        for number, place in enumerate(places):
            store.apply(op.Push(*place, str(number).encode(), 1_000))
        assert [store.apply(op.Pull(*place)).value for place in places] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert store.apply(op.Pull("c", "b")).value is None
