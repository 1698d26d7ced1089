"""The rules of flows with a timeout: the timeout cancels unfinished jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint import InvalidJobError, JobState, OutcomeKind
from queuehint import operations as op
from queuehint.errors import DuplicateFlowError
from queuehint.schema.checks import TEN_YEARS_MS
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store
    from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
TIMEOUT_MS = 60_000
CAUSE = "flow_timeout"


def submit(store: Store, *jobs: JobSpec, flow: str = "f", timeout_ms: int | None = TIMEOUT_MS) -> None:
    """Submit a flow with a timeout."""
    store.apply(op.Enqueue(jobs, flow=flow, flow_timeout_ms=timeout_ms))


class FlowTimeouts:
    """The timeout of a flow cancels its unfinished jobs, and no others."""

    def test_flow_timeout_cancels_waiting_jobs_and_notifies_running_ones(self, store: Store) -> None:
        submit(
            store,
            *[job("over", flow="f"), job("runs", flow="f"), job("waits", ["doc"], flow="f")],
            *[job("later", flow="f", delay_ms=DAY_MS), job("after", after=["runs"], flow="f")],
        )
        store.enqueue(job("free"), job("other", flow="g"))
        assert store.start(2, lease_ms=2 * TIMEOUT_MS) == ["over", "runs"]
        store.finish("over")
        store.wait(TIMEOUT_MS - 1)
        assert store.states("over", "runs", "waits", "later", "after") == "FINISHED STARTED QUEUED SCHEDULED DEFERRED"
        store.wait(1)
        assert store.states("over", "waits", "later", "after") == "FINISHED CANCELED CANCELED CANCELED"
        assert [store.record(job_id).cause for job_id in ("waits", "later", "after")] == [CAUSE] * 3
        assert store.states("runs", "free", "other") == "STARTED QUEUED QUEUED"
        assert store.record("runs").cancel_requested
        assert store.exchange().canceled == ("runs",)
        store.settle("runs", OutcomeKind.FAILED)
        assert (store.state("runs"), store.record("runs").cause) == (CANCELED, CAUSE)

    def test_a_running_job_that_finishes_after_the_timeout_has_finished(self, store: Store) -> None:
        submit(store, job("a", flow="f"))
        store.start(lease_ms=2 * TIMEOUT_MS)
        store.wait(TIMEOUT_MS)
        store.finish("a")
        assert store.state("a") is FINISHED

    def test_a_flow_in_parts_times_out_counted_from_its_commit(self, store: Store) -> None:
        store.apply(op.Enqueue((job("a", flow="f"),), "s", flow="f"))
        store.apply(op.Enqueue((job("b", after=["a"], flow="f"),), "s", flow="f"))
        store.wait(TIMEOUT_MS)
        assert store.apply(op.Commit("s", 2, flow="f", flow_timeout_ms=TIMEOUT_MS)).jobs == 2
        store.wait(TIMEOUT_MS - 1)
        assert store.states("a", "b") == "QUEUED DEFERRED"
        store.wait(1)
        assert store.states("a", "b") == "CANCELED CANCELED"
        assert store.record("b").cause == CAUSE

    def test_jobs_enqueued_into_the_flow_count_until_its_timeout(self, store: Store) -> None:
        submit(store, job("a", flow="f"))
        store.wait(TIMEOUT_MS - 1)
        store.enqueue(job("grown", flow="f"))
        store.wait(1)
        store.enqueue(job("late", flow="f"))
        store.wait(2 * TIMEOUT_MS)
        assert store.states("a", "grown", "late") == "CANCELED CANCELED QUEUED"

    def test_children_that_are_of_no_flow_go_on(self, store: Store) -> None:
        submit(store, job("parent", flow="f"))
        store.start()
        store.enqueue_from("parent", job("child"))
        store.await_children("parent", "child")
        store.wait(TIMEOUT_MS)
        assert store.states("parent", "child") == "CANCELED QUEUED"

    def test_flow_timeout_cancels_a_redriven_dead_job(self, store: Store) -> None:
        submit(store, *[job(each, flow="f", max_attempts=1) for each in ("before", "behind")])
        store.start()
        for each in ("before", "behind"):
            store.fail(each)
        store.redrive("before")
        store.wait(TIMEOUT_MS)
        assert (store.states("before", "behind"), store.record("before").cause) == ("CANCELED FAILED", CAUSE)
        store.redrive("behind")
        store.wait(2 * TIMEOUT_MS)
        assert store.state("behind") is QUEUED

    def test_a_flow_submitted_again_keeps_its_timeout(self, store: Store) -> None:
        jobs = (job("a", flow="f"), job("b", flow="f"))
        submit(store, *jobs)
        store.wait(TIMEOUT_MS - 1)
        submit(store, *jobs)
        submit(store, *jobs, timeout_ms=None)
        with pytest.raises(DuplicateFlowError):
            submit(store, *jobs, job("c", flow="f"), timeout_ms=DAY_MS)
        for each in jobs:
            store.apply(op.Enqueue((each,), "s", flow="f"))
        assert store.apply(op.Commit("s", 0, flow="f", flow_timeout_ms=DAY_MS)).jobs == 0
        store.wait(1)
        assert store.states("a", "b") == "CANCELED CANCELED"

    @pytest.mark.parametrize("timeout_ms", [None, 3 * DAY_MS])
    @pytest.mark.parametrize("in_parts", [False, True])
    def test_a_later_flow_of_the_id_has_its_own_timeout(
        self, store: Store, timeout_ms: int | None, *, in_parts: bool
    ) -> None:
        submit(store, job("a", flow="f"), timeout_ms=2 * DAY_MS)
        store.run()
        store.wait(DAY_MS)
        assert store.find("a") is None
        if in_parts:
            store.apply(op.Enqueue((job("b", flow="f"),), "s", flow="f"))
            store.apply(op.Commit("s", 1, flow="f", flow_timeout_ms=timeout_ms))
        else:
            submit(store, job("b", flow="f"), timeout_ms=timeout_ms)
        store.wait(3 * DAY_MS - 1)
        assert store.state("b") is QUEUED
        store.wait(1)
        assert store.state("b") is (QUEUED if timeout_ms is None else CANCELED)

    def test_flows_time_out_in_the_order_of_their_timeouts(self, store: Store) -> None:
        begun = store.apply(op.Follow()).after
        for flow, timeout_ms in (("f", 3), ("g", 1), ("h", 2)):
            submit(store, job(flow, flow=flow), flow=flow, timeout_ms=timeout_ms)
        store.wait(5)
        canceled = [event for event in store.apply(op.Follow(begun)).events if event.new is CANCELED]
        assert [(event.id, event.cause) for event in canceled] == [("g", CAUSE), ("h", CAUSE), ("f", CAUSE)]

    def test_a_large_flow_that_times_out_is_canceled_in_steps(self, store: Store) -> None:
        for part in range(3):
            jobs = tuple([job(f"{part}-{number}", ["doc"], flow="f") for number in range(900)])
            store.apply(op.Enqueue(jobs, "s", flow="f"))
        store.apply(op.Commit("s", 2700, flow="f", flow_timeout_ms=TIMEOUT_MS))
        store.wait(0)
        store.advance(TIMEOUT_MS)
        assert store.apply(op.Tick()).more
        assert 0 < store.flow("f").states[CANCELED] < 2700
        store.wait(0)
        assert (store.flow("f").states[CANCELED], store.stats().nodes) == (2700, 0)

    def test_a_store_says_when_the_next_flow_times_out(self, store: Store) -> None:
        submit(store, job("a", flow="f"))
        submit(store, job("b", flow="g"), flow="g", timeout_ms=TIMEOUT_MS // 2)
        first_ms = store.tick().next_ms
        assert first_ms is not None
        store.wait(TIMEOUT_MS // 2)
        assert store.tick().next_ms == first_ms + TIMEOUT_MS // 2

    def test_a_timeout_is_no_job_that_anybody_sees_or_counts(self, store: Store) -> None:
        submit(store, job("a", flow="f"))
        stats, edges = store.stats(), store.edges()
        assert (stats.unfinished, stats.states[DEFERRED], edges.deferred, store.flow("f").total) == (1, 0, 0, 1)
        assert store.pending(include_scheduled=True).unfinished == 1
        store.cancel_flow("f")
        assert store.is_clean

    def test_nothing_is_left_of_a_flow_that_has_timed_out(self, store: Store) -> None:
        submit(store, job("a", ["doc"], flow="f"), job("b", after=["a"], flow="f"))
        store.wait(TIMEOUT_MS)
        store.wait(DAY_MS)
        store.wait(DAY_MS)
        assert (store.is_clean, store.flow("f").total, store.tick().next_ms) == (True, 0, None)

    def test_wrong_timeouts_are_refused(self, store: Store) -> None:
        wrong: dict[str, op.Operation[Any]] = {
            "flow_timeout_ms must be from 1 to": op.Enqueue((job("a", flow="f"),), flow="f", flow_timeout_ms=0),
            f"to {TEN_YEARS_MS}, got": op.Commit("s", 0, flow="f", flow_timeout_ms=TEN_YEARS_MS + 1),
            "flow_timeout_ms is 5, and there is no flow": op.Enqueue((job("a"),), flow_timeout_ms=5),
            "flow_timeout_ms is 6, and there is no flow": op.Commit("s", 0, flow_timeout_ms=6),
            "must be given at its commit": op.Enqueue((job("a", flow="f"),), "s", flow="f", flow_timeout_ms=5),
        }
        before = store.everything()
        for text, operation in wrong.items():
            with pytest.raises(InvalidJobError, match=text):
                store.apply(operation)
        assert store.everything() == before
