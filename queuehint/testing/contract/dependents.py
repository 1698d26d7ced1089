"""The rules of dependents: how long they wait, for which jobs, and the effect of each end on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint.errors import CycleError, InvalidJobError, UnknownDependencyError
from queuehint.operations import EDGES_PER_SUBMISSION_MAX
from queuehint.testing.contract.store import DAY_MS, MINUTE_MS
from queuehint.testing.driver import job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.policy import ON_DEPENDENCY_FAILURE
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def die(store: Store, id: str) -> None:
    """Fail a QUEUED or STARTED job for good."""
    if store.state(id) is QUEUED:
        store.start()
    store.fail(id, final=True)


def end_first(store: Store, how: str) -> None:
    """End `a` as `finished`, `failed` or `canceled`."""
    store.enqueue(job("a", max_attempts=1))
    finish_off(store, how)


def finish_off(store: Store, how: str) -> None:
    if how == "canceled":
        store.cancel("a")
    elif how == "failed":
        die(store, "a")
    else:
        store.start()
        store.finish("a")


class Dependents:
    """A job waits for its dependencies, in addition to any other wait."""

    def test_dependent_waits_for_its_dependency_and_then_takes_its_place(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["y"], after=["a"]))
        record = store.record("b")
        assert (record.state, record.seq, record.queued_ms) == (DEFERRED, None, None)
        assert store.why("b").kind is ReasonKind.DEPENDENCY
        assert store.start() == ["a"]
        store.advance(2000)
        store.finish("a")
        assert (store.state("b"), store.record("b").queued_ms) == (QUEUED, store.began_ms + 2000)
        assert store.run() == ["b"]
        assert store.is_clean

    def test_dependents_take_their_places_in_order_of_enqueue(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.enqueue(job("d2", ["x"], after=["a"]), job("d1", ["x"], after=["a"]))
        store.enqueue(job("d3", ["x"], after=["a"]))
        assert store.run(10) == ["a", "d2", "d1", "d3"]

    def test_a_dependency_named_twice_is_one_edge(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        spec = job("c", after=["a", "b", "a", "b", "b"]).check()
        assert [edge.id for edge in spec.depends_on] == ["a", "b"]
        store.enqueue(spec)
        assert store.edges().open_edges == 2

    def test_scheduled_job_is_canceled_by_its_dependency_before_its_time(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.enqueue(job("b", after=["a"], delay_ms=1000, on_dependency_failure="cancel"))
        die(store, "a")
        assert (store.state("b"), store.record("b").cause) == (CANCELED, "dependency a has failed")
        store.wait(1000)
        assert store.state("b") is CANCELED

    def test_start_within_counts_while_a_job_waits_for_dependencies(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.enqueue(
            job("b", after=["a"], start_within_ms=1000), job("c", after=["b"], on_dependency_failure="cancel")
        )
        store.start()
        store.wait(1000)
        assert (store.record("b").cause, store.record("c").cause) == ("expired", "dependency b was canceled")
        store.finish("a")
        assert store.is_clean

    def test_fan_in_with_ended_dependencies_waits_for_the_rest(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"), job("c"))
        store.start()
        store.finish("a", "b")
        store.enqueue(job("d", after="abc"))
        assert store.why("d").jobs == ("c",)
        store.finish("c")
        assert store.run() == ["d"]

    def test_a_retry_is_no_end(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=2))
        store.enqueue(job("b", after=["a"], on_dependency_failure="cancel"))
        store.start()
        store.fail("a", delay_ms=1000)
        assert store.state("b") is DEFERRED
        store.wait(1000)
        assert store.run() == ["a", "b"]

    def test_canceled_running_dependency_counts_only_when_it_ended(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"], on_dependency_failure="cancel"))
        store.start()
        store.cancel("a")
        assert store.state("b") is DEFERRED
        store.settle("a", OutcomeKind.RELEASED)
        assert store.states("a", "b") == "CANCELED CANCELED"

    def test_cancel_of_path_releases_or_cancels_dependents_elsewhere(self, store: Store) -> None:
        store.enqueue(job("a", ["x", "1"]), job("b", ["x"], after=["a"]))
        store.enqueue(job("c", ["y"], after=["a"]), job("d", ["y"], after=["b"], on_dependency_failure="cancel"))
        store.cancel_path("x")
        store.wait(0)
        assert store.states("a", "b", "c", "d") == "CANCELED CANCELED QUEUED CANCELED"
        assert store.record("b").cause == "canceled"

    def test_dependency_by_edge_is_not_counted_again_by_key(self, store: Store) -> None:
        store.enqueue(job("a", key="k", max_attempts=1))
        store.start()
        store.enqueue(job("b", key="k", on_conflict="after", after=["a"]))
        assert store.edges().open_edges == 1
        die(store, "a")
        assert store.why("b").kind is ReasonKind.DEAD_DEPENDENCY

    def test_replaced_keyed_job_keeps_its_edges(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.enqueue(job("b", key="k", after=["a"], on_dependency_failure="cancel"))
        store.enqueue(job("new", key="k", on_conflict="replace", arguments=b'{"n":2}'))
        assert (store.state("b"), store.why("b").jobs) == (DEFERRED, ("a",))
        assert store.record("b").spec.arguments == b'{"n":2}'
        die(store, "a")
        assert store.record("b").cause == "dependency a has failed"


OUTCOMES = ("finished", "failed", "canceled", "reaped", "expired")
AFTER_END = {
    ("finished", "wait"): QUEUED,
    ("finished", "cancel"): QUEUED,
    ("finished", "run"): QUEUED,
    ("failed", "wait"): DEFERRED,
    ("failed", "cancel"): CANCELED,
    ("failed", "run"): QUEUED,
    ("reaped", "wait"): DEFERRED,
    ("reaped", "cancel"): CANCELED,
    ("reaped", "run"): QUEUED,
    ("canceled", "wait"): QUEUED,
    ("canceled", "cancel"): CANCELED,
    ("canceled", "run"): QUEUED,
    ("expired", "wait"): QUEUED,
    ("expired", "cancel"): CANCELED,
    ("expired", "run"): QUEUED,
}


class _Cell:
    """One cell of the matrix: a dependency `a` with the given end, another that finishes, and a dependent `b`."""

    def __init__(self, store: Store, how: str, policy: str) -> None:
        self.how = how
        self.store = store
        fields: dict[str, Any] = {"max_attempts": 1, "max_losses": 1}
        if how == "expired":
            fields["start_within_ms"] = 1000
        self.store.enqueue(job("a", ["x"], **fields), job("beside", ["y"]))
        self.spec = job("b", ["z"], after=["a", "beside"], on_dependency_failure=policy)

    def end_both(self) -> None:
        """End both dependencies in one exchange."""
        store = self.store
        if self.how == "expired":
            store.pause("x")
        store.start(lease_ms=30_000)
        settle = []
        if self.how == "reaped":
            store.renew("beside", lease_ms=120_000)
            store.advance(30_000)
        elif self.how == "expired":
            store.advance(1000)
        elif self.how == "canceled":
            store.cancel("a")
            settle.append(store.outcome("a", OutcomeKind.RELEASED))
        else:
            settle.append(store.outcome("a", OutcomeKind(self.how)))
        store.exchange(store.outcome("beside"), *settle)

    def expire_records(self) -> None:
        self.store.wait(8 * DAY_MS)
        assert (self.store.find("a") is not None) == (self.how == "finished"), "a result is kept for b"


class Judged:
    """The end of a dependency has the same effect at enqueue, while a job waits, and later."""

    @pytest.mark.parametrize(
        "how, on_failure, state, cause",
        [
            ("failed", "wait", DEFERRED, None),
            ("failed", "cancel", CANCELED, "dependency a has failed"),
            ("failed", "run", QUEUED, None),
            ("canceled", "wait", QUEUED, None),
            ("canceled", "cancel", CANCELED, "dependency a was canceled"),
            ("canceled", "run", QUEUED, None),
        ],
    )
    def test_one_that_is_over_is_judged_at_enqueue(
        self, store: Store, how: str, on_failure: str, state: JobState, cause: str | None
    ) -> None:
        end_first(store, how)
        reply = store.enqueue(job("b", ["x"], after=["a"], on_dependency_failure=on_failure))
        assert (reply.jobs[0].state, reply.jobs[0].created) == (state, True)
        assert (store.state("b"), store.record("b").cause) == (state, cause)
        assert store.stats().enqueued == 2

    def test_job_canceled_at_enqueue_ends_with_all_its_dependents(self, store: Store) -> None:
        end_first(store, "failed")
        store.enqueue(
            job("c", ["x"], after=["b"], on_dependency_failure="cancel"),
            job("b", ["x"], after=["a"], on_dependency_failure="cancel", key="k", on_conflict="reject"),
            job("d", ["x"], after=["b"], on_dependency_failure="run"),
        )
        store.wait(0)
        assert store.states("b", "c", "d") == "CANCELED CANCELED QUEUED"
        assert store.record("c").cause == "dependency b was canceled"
        assert store.record("b").ended_ms == store.clock.now_ms()
        assert store.enqueue(job("e", key="k", on_conflict="reject")).jobs[0].created
        assert store.run() == ["d", "e"]
        store.discard("a")
        assert store.is_clean

    def test_the_first_dependency_that_cancels_a_job_is_its_cause(self, store: Store) -> None:
        store.enqueue(*[job(each, max_attempts=1) for each in "abc"])
        store.start()
        store.finish("a")
        store.fail("c")
        store.fail("b")
        store.enqueue(job("d", after="acb", on_dependency_failure="cancel"))
        assert store.record("d").cause == "dependency c has failed"

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize(
        "edge, how, state, cause",
        [
            (Dependency("a", when="failure"), "finished", CANCELED, "dependency a has finished"),
            (Dependency("a", when="failure"), "failed", QUEUED, None),
            (Dependency("a", when="failure"), "canceled", CANCELED, "dependency a was canceled"),
            (Dependency("a", when="done"), "finished", QUEUED, None),
            (Dependency("a", when="done"), "failed", QUEUED, None),
            (Dependency("a", when="done"), "canceled", QUEUED, None),
            (Dependency("a", data=True), "finished", QUEUED, None),
            (Dependency("a", data=True), "failed", DEFERRED, None),
            (Dependency("a", data=True), "canceled", CANCELED, "dependency a was canceled"),
            (Dependency("a", when="done", data=True), "failed", CANCELED, "dependency a has failed"),
            (Dependency("a", when="done", data=True), "canceled", CANCELED, "dependency a was canceled"),
        ],
    )
    def test_a_condition_says_which_ends_a_job_runs_after(
        self, store: Store, edge: Dependency, how: str, state: JobState, cause: str | None, late: bool
    ) -> None:
        store.enqueue(job("a", max_attempts=1))
        if late:
            finish_off(store, how)
        store.enqueue(job("b", after=[edge]))
        if not late:
            assert store.state("b") is DEFERRED
            finish_off(store, how)
        assert (store.state("b"), store.record("b").cause) == (state, cause)

    def test_an_edge_that_carries_data_is_never_dropped(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.enqueue(job("b", after=[Dependency("a", data=True)], on_dependency_failure="run"))
        die(store, "a")
        assert (store.state("b"), store.record("b").cause) == (CANCELED, "dependency a has failed")

    def test_a_job_of_many_conditions_runs_when_each_is_met(self, store: Store) -> None:
        store.enqueue(*[job(each, max_attempts=1) for each in "abc"])
        edges = [Dependency("a"), Dependency("b", when="failure"), Dependency("c", when="done")]
        store.enqueue(job("d", after=edges), job("e", after=edges))
        store.start()
        store.fail("b")
        store.settle("c", OutcomeKind.DISCARDED)
        assert store.why("d").jobs == ("a",)
        store.finish("a")
        assert store.states("d", "e") == "QUEUED QUEUED"

    @pytest.mark.parametrize("policy", ON_DEPENDENCY_FAILURE)
    @pytest.mark.parametrize("how", OUTCOMES)
    @pytest.mark.parametrize("moment", ["before enqueue", "while DEFERRED", "after record expiry"])
    def test_a_dependent_reaches_its_state_whatever_becomes_of_its_dependency(
        self, store: Store, moment: str, how: str, policy: str
    ) -> None:
        cell = _Cell(store, how, policy)
        if moment != "before enqueue":
            store.enqueue(cell.spec)
            assert store.state("b") is DEFERRED
        cell.end_both()
        if moment == "before enqueue":
            store.enqueue(cell.spec)
        assert store.state("b") is AFTER_END[how, policy]
        if moment == "after record expiry":
            cell.expire_records()
            if AFTER_END[how, policy] is QUEUED:
                assert store.run() == ["b"]
                store.wait(DAY_MS)
            else:
                assert store.find("b") is None or store.record("b").cause == "dependency a has expired"
            with pytest.raises(UnknownDependencyError):
                store.enqueue(job("c", after=["a"], on_dependency_failure=policy))


class KeptResults:
    """A result is kept until no unfinished dependent may read it."""

    def test_a_result_is_kept_until_the_last_dependent_is_over(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=1000))
        store.enqueue(job("b", after=["a"]), job("c", after=["b"]), job("d", after=["a"]))
        store.start(1)
        store.settle("a", result=b"1")
        store.start()
        store.renew("b", "d", lease_ms=DAY_MS)
        store.wait(MINUTE_MS)
        store.finish("b")
        store.wait(10 * MINUTE_MS)
        assert store.record("a").result == b"1"
        store.finish("d")
        store.wait(MINUTE_MS)
        assert store.find("a") is None
        assert store.state("c") is QUEUED

    def test_a_job_that_is_canceled_needs_nothing_any_more(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=1000), job("other"))
        store.enqueue(job("b", after=["a", "other"]))
        store.start()
        store.finish("a")
        store.cancel("b")
        store.wait(1000)
        assert store.find("a") is None
        store.finish("other")
        assert store.is_clean

    def test_failed_and_canceled_records_expire_despite_dependents(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1, retention_ms=1000), job("c", retention_ms=1000), job("other"))
        store.enqueue(job("b", after=["a", "c", "other"], on_dependency_failure="run"))
        store.cancel("c")
        store.start()
        store.fail("a")
        store.wait(1000)
        assert (store.find("a"), store.find("c"), store.state("b")) == (None, None, DEFERRED)
        store.finish("other")
        assert store.run() == ["b"]


class Unknowns:
    """A submission with an invalid dependency is refused whole. An expired dependency cancels its dependent."""

    def test_an_unknown_dependency_refuses_the_whole_submission(self, store: Store) -> None:
        store.enqueue(job("a"))
        before = store.everything()
        with pytest.raises(UnknownDependencyError) as caught:
            store.enqueue(job("b"), job("c", after=["a", "nobody"]))
        assert (caught.value.job_id, caught.value.dependency) == ("c", "nobody")
        assert store.everything() == before

    def test_dependency_expired_in_the_same_step_cancels_its_dependent(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=1000))
        store.run()
        store.advance(1000)
        reply = store.enqueue(job("b", after=["a"]))
        assert (reply.jobs[0].state, store.record("b").cause) == (CANCELED, "dependency a has expired")

    def test_dependency_expired_in_the_same_step_keeps_its_id(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=1000))
        store.run()
        store.advance(1000)
        reply = store.enqueue(job("b", after=["a"]), job("a", retention_ms=1000))
        assert [(made.id, made.state, made.created) for made in reply.jobs] == [
            ("b", CANCELED, True),
            ("a", FINISHED, False),
        ]
        assert store.record("b").cause == "dependency a has expired"

    def test_dependency_expired_and_enqueued_in_one_step_is_awaited(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=20 * MINUTE_MS))
        store.run()
        store.advance(20 * MINUTE_MS)
        reply = store.enqueue(job("b", after=["a"]), job("a", retention_ms=20 * MINUTE_MS))
        assert [(made.id, made.state, made.created) for made in reply.jobs] == [
            ("b", DEFERRED, True),
            ("a", QUEUED, True),
        ]
        assert store.run() == ["a", "b"]

    @pytest.mark.parametrize(
        "edges, cycle",
        [
            ({"a": "a"}, {"a"}),
            ({"a": "b", "b": "a"}, {"a", "b"}),
            ({"a": "c", "b": "a", "c": "b", "d": "a"}, {"a", "b", "c"}),
            ({"a": "", "b": "ac", "c": "bd", "d": ""}, {"b", "c"}),
        ],
    )
    def test_a_cycle_is_refused_naming_just_the_jobs_on_it(
        self, store: Store, edges: dict[str, str], cycle: set[str]
    ) -> None:
        store.enqueue(job("before"))
        before = store.everything()
        with pytest.raises(CycleError) as caught:
            store.enqueue(*[job(each, after=others) for each, others in edges.items()])
        assert set(caught.value.cycle) == cycle
        around = [*caught.value.cycle[1:], caught.value.cycle[0]]
        assert all(after in edges[each] for each, after in zip(caught.value.cycle, around, strict=True))
        assert store.everything() == before

    def test_chain_of_a_thousand_is_accepted_and_its_cycle_refused(self, store: Store) -> None:
        ids = [str(number) for number in range(1000)]
        jobs = [job(each, after=[ids[at + 1]] if at < 999 else []) for at, each in enumerate(ids)]
        with pytest.raises(CycleError) as caught:
            store.enqueue(*jobs[:-1], job("999", after=["0"]))
        assert len(caught.value.cycle) == 1000
        store.enqueue(*jobs)
        assert store.run() == ids[::-1]

    def test_submission_accepts_four_thousand_edges_and_no_more(self, store: Store) -> None:
        firsts = [job(f"a{number}") for number in range(100)]
        ids = [spec.id for spec in firsts]
        dependents = [job(f"b{number}", after=ids) for number in range(EDGES_PER_SUBMISSION_MAX // 100)]
        with pytest.raises(InvalidJobError, match="a submission has 4001 edges, limit 4000"):
            store.enqueue(*firsts, *dependents, job("c", after=["a0"]))
        assert store.stats().enqueued == 0
        store.enqueue(*firsts, *dependents)
        assert store.edges().open_edges == EDGES_PER_SUBMISSION_MAX

    @pytest.mark.parametrize("on_conflict", ["return", "replace", "after"])
    def test_dependency_whose_key_may_resolve_elsewhere_is_refused(self, store: Store, on_conflict: str) -> None:
        keyed = job("a", key="k", on_conflict=on_conflict)
        with pytest.raises(InvalidJobError, match="job 'b' depends on 'a', whose key may resolve to another job"):
            store.enqueue(keyed, job("b", after=["a"]))
        store.enqueue(job("a", key="k", on_conflict="reject"), job("b", after=["a"]))
        assert store.run() == ["a", "b"]
