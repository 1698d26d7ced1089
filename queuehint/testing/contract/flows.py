"""The rules of many jobs at once: submissions in parts, flows, and counts of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint import InvalidJobError, JobNotFoundError, JobState, OutcomeKind, UnknownDependencyError
from queuehint import operations as op
from queuehint.errors import (
    ConcurrentSubmissionError,
    DuplicateFlowError,
    DuplicateJobError,
    FlowNotFoundError,
)
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.policy import ON_DEPENDENCY_FAILURE
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store
    from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
CANCELING: dict[str, Any] = {"on_dependency_failure": "cancel"}


def stage_two(store: Store) -> None:
    store.stage("T", job("a", ["doc"], flow="f"))
    store.stage("T", job("b", ["doc", "1"], after=["a"], flow="f"))


def stage_behind_expired(store: Store, parts: int = 3) -> None:
    """Stage many jobs and `b`, whose dependency `a` expires before the commit, its id too."""
    store.enqueue(job("a", retention_ms=1))
    store.run()
    for part in range(parts):
        store.stage("S", *[job(f"{part}-{number}") for number in range(1_000)])
    store.stage("S", job("b", after=["a"]))
    store.advance(op.STAGED_KEPT_MS // 2)
    store.stage("S", job("last"))
    store.wait(op.STAGED_KEPT_MS // 2)


class Parts:
    """A submission in parts is hidden until its commit."""

    def test_a_part_is_invisible_before_its_commit(self, store: Store) -> None:
        stage_two(store)
        assert store.apply(op.Get(("a", "b"))).records == (None, None)
        with pytest.raises(JobNotFoundError):
            store.why("a")
        assert store.apply(op.Cancel(("a",))).verdicts == ((op.Verdict.UNKNOWN, None),)
        with pytest.raises(UnknownDependencyError):
            store.enqueue(job("c", after=["a"]))
        store.cancel_path("doc")
        store.cancel_flow("f")
        store.wait(0)
        assert (sum(store.stats().states.values()), store.flow("f").total, store.edges().open_edges) == (0, 0, 0)
        assert store.apply(op.List(RecordFilter(flow="f"))).records == ()
        assert store.start() == []
        assert store.commit("T") == 2

    def test_a_large_submission_is_there_at_once(self, store: Store) -> None:
        for part in range(6):
            ids = [f"{part}-{number}" for number in range(500)]
            store.stage("T", *[job(each, [each], after=[f"{part - 1}-0"] if part else []) for each in ids])
        assert store.commit("T") == 3000
        assert (store.stats().unfinished, store.state("5-499")) == (3000, DEFERRED)
        store.wait(0)
        stats = store.stats()
        assert (stats.states[QUEUED], stats.states[DEFERRED]) == (500, 2500)

    def test_parts_never_committed_are_gone_after_ten_minutes(self, store: Store) -> None:
        stage_two(store)
        store.wait(op.STAGED_KEPT_MS)
        with pytest.raises(FlowNotFoundError):
            store.commit("T")
        assert store.enqueue(job("a", ["elsewhere"])).jobs[0].created

    def test_a_submission_is_committed_once(self, store: Store) -> None:
        stage_two(store)
        store.commit("T")
        with pytest.raises(FlowNotFoundError) as caught:
            store.commit("T")
        assert caught.value.flow == "T"
        with pytest.raises(FlowNotFoundError):
            store.commit("never-begun")

    def test_a_part_sent_again_is_the_part_that_is_there(self, store: Store) -> None:
        parts = [job("a"), job("b", after=["a"])]
        assert [made.created for made in store.stage("T", *parts).jobs] == [True, True]
        assert [made.created for made in store.stage("T", *parts).jobs] == [False, False]
        assert store.commit("T") == 2

    def test_job_that_takes_an_id_after_commit_is_no_dependency(self, store: Store) -> None:
        """A dependency is a job and not an id: else one that is taken up late waits for one that waits for it."""
        stage_behind_expired(store)
        store.commit("S")
        store.enqueue(job("a", after=["b"]))
        store.wait(0)
        assert store.record("b").cause == "dependency a has expired"
        assert store.state("a") is QUEUED

    def test_job_committed_later_does_not_satisfy_an_expired_dependency(self, store: Store) -> None:
        stage_behind_expired(store, parts=6)
        store.commit("S")
        store.enqueue(job("k", after=["b"]))
        store.stage("T", job("a", after=["k"]))
        store.commit("T")
        store.wait(0)
        assert store.record("b").cause == "dependency a has expired"
        assert store.states("k", "a") == "QUEUED DEFERRED"

    def test_later_part_does_not_satisfy_an_earlier_dependency(self, store: Store) -> None:
        stage_behind_expired(store, parts=0)
        store.stage("S", job("a", after=["b"]))
        assert store.commit("S") == 3
        store.wait(0)
        assert store.record("b").cause == "dependency a has expired"
        assert store.run() == ["last", "a"]

    def test_mutually_dependent_submissions_do_not_deadlock(self, store: Store) -> None:
        store.stage("S", job("n"), job("a", after=["n"]))
        store.stage("T", job("m"), job("b", after=["m"]))
        with pytest.raises(ConcurrentSubmissionError):
            store.stage("T", job("n", after=["b"]))
        store.stage("S", job("m", after=["a"]))
        with pytest.raises(FlowNotFoundError):
            store.commit("T")
        assert store.commit("S") == 3
        assert store.run() == ["n", "a", "m"]
        assert (store.find("b"), store.is_clean) == (None, True)

    @pytest.mark.parametrize("fields", [{"key": "k"}, {"presence_ms": 1_000, "pool": "@x"}])
    def test_no_part_takes_a_key_or_a_caller(self, store: Store, fields: dict[str, Any]) -> None:
        with pytest.raises(InvalidJobError):
            store.stage("T", job("a", **fields))

    def test_all_parts_belong_to_one_flow(self, store: Store) -> None:
        store.stage("T", job("a", flow="f"))
        for wrong in ([job("b", flow="g")], [job("b")], [job("b", flow="f"), job("c")]):
            with pytest.raises(InvalidJobError):
                store.stage("T", *wrong)
        assert store.commit("T") == 1


class Flows:
    """Jobs of one flow are counted, listed and canceled together."""

    def test_a_flow_is_counted_and_listed_in_pages(self, store: Store) -> None:
        store.enqueue(*[job(f"j{number}", flow="f" if number != 2 else "g") for number in range(6)], job("free"))
        store.run(2)
        assert (store.flow("f").states[FINISHED], store.flow("f").total, store.flow("nobody").total) == (5, 5, 0)
        page = store.apply(op.List(RecordFilter(flow="f"), limit=3))
        assert [record.id for record in page.records] == ["j0", "j1", "j3"]
        assert page.after is not None
        rest = store.apply(op.List(RecordFilter(flow="f"), after=page.after, limit=3))
        assert ([record.id for record in rest.records], rest.after) == (["j4", "j5"], None)
        store.wait(DAY_MS)
        assert store.flow("f").total == 0

    def test_a_flow_that_is_there_takes_no_jobs_of_another(self, store: Store) -> None:
        first = (job("a", flow="f"), job("b", after=["a"], flow="f"))
        store.apply(op.Enqueue(first, flow="f"))
        store.enqueue(job("other", flow="g"))
        for jobs in ((job("c", flow="f"),), (*first, job("c", flow="f")), first[:1]):
            with pytest.raises(DuplicateFlowError) as caught:
                store.apply(op.Enqueue(jobs, flow="f"))
            assert caught.value.flow == "f"
        with pytest.raises(DuplicateJobError):
            store.apply(op.Enqueue((first[0], job("b", flow="f")), flow="f"))
        assert (store.flow("f").total, store.find("c")) == (2, None)
        store.run()
        with pytest.raises(DuplicateFlowError):
            store.apply(op.Enqueue((job("c", flow="f"),), flow="f"))
        store.wait(DAY_MS)
        assert store.apply(op.Enqueue((job("c", flow="f"),), flow="f")).jobs[0].created

    def test_submitting_a_flow_again_returns_that_flow(self, store: Store) -> None:
        jobs = (job("a", flow="f"), job("b", after=["a"], flow="f"))
        assert [each.created for each in store.apply(op.Enqueue(jobs, flow="f")).jobs] == [True, True]
        for _ in range(3):
            assert [each.created for each in store.apply(op.Enqueue(jobs, flow="f")).jobs] == [False, False]
            store.start()
            store.finish(*[job_id for job_id in "ab" if store.state(job_id) is STARTED])
        assert store.flow("f").states[FINISHED] == 2

    def test_parts_of_an_existing_flow_are_refused_or_recognised(self, store: Store) -> None:
        jobs = (job("a", flow="f"), job("b", flow="f"))
        for token in ("s1", "s2"):
            for each in jobs:
                store.apply(op.Enqueue((each,), token, flow="f"))
            jobs_created = 2 if token == "s1" else 0
            assert store.apply(op.Commit(token, jobs_created, flow="f")).jobs == jobs_created
        with pytest.raises(DuplicateFlowError):
            store.apply(op.Enqueue((job("c", flow="f"),), "s3", flow="f"))

    def test_first_commit_of_two_staged_flows_with_one_id_wins(self, store: Store) -> None:
        store.apply(op.Enqueue((job("a", flow="f"),), "s1", flow="f"))
        store.apply(op.Enqueue((job("b", flow="f"),), "s2", flow="f"))
        assert store.apply(op.Commit("s2", 1, flow="f")).jobs == 1
        with pytest.raises(DuplicateFlowError):
            store.apply(op.Commit("s1", 1, flow="f"))
        store.wait(0)
        assert (store.flow("f").total, store.find("a")) == (1, None)

    def test_cancel_of_flow_covers_waiting_and_running_jobs(self, store: Store) -> None:
        store.enqueue(job("a", flow="f"), job("b", after=["a"], flow="f"), job("c", flow="f", delay_ms=1_000))
        store.enqueue(job("d", ["doc"], flow="f"), job("other"), job("after", after=["b"], **CANCELING))
        assert store.start(1) == ["a"]
        store.apply(op.CancelFlow("f", "moot"))
        store.enqueue(job("late", flow="f"))
        store.wait(0)
        assert (
            store.states("b", "c", "d", "other", "after", "late") == "CANCELED CANCELED CANCELED QUEUED CANCELED QUEUED"
        )
        assert (store.record("b").cause, store.record("after").cause) == ("moot", "dependency b was canceled")
        assert store.record("a").cancel_requested

    def test_a_large_flow_is_canceled_in_steps(self, store: Store) -> None:
        for part in range(3):
            store.enqueue(*[job(f"{part}-{number}", ["doc"], flow="f") for number in range(900)])
        assert store.cancel_flow("f")
        store.wait(0)
        assert store.flow("f").states[CANCELED] == 2700
        assert store.stats().nodes == 0

    def test_replaced_keyed_job_moves_to_the_new_flow(self, store: Store) -> None:
        store.enqueue(job("a", key="k", flow="f"))
        store.enqueue(job("b", key="k", on_conflict="replace", flow="g"))
        assert (store.flow("f").total, store.flow("g").total) == (0, 1)


class Counts:
    """Edges are counted. No edge is left once all jobs have ended and expired."""

    def test_nothing_is_left_of_a_graph_when_all_is_over(self, store: Store) -> None:
        specs: list[JobSpec] = []
        for layer in range(4):
            above = [f"{layer - 1}-{number}" for number in range(5)] if layer else []
            policy = ON_DEPENDENCY_FAILURE[layer % 3]
            specs += [
                job(
                    f"{layer}-{number}",
                    [str(number)],
                    after=above,
                    on_dependency_failure=policy,
                    max_attempts=1,
                    flow="f",
                )
                for number in range(5)
            ]
        store.enqueue(*specs)
        for round_ in range(20):
            for at, job_id in enumerate(store.start()):
                store.settle(job_id, OutcomeKind.FAILED if (at + round_) % 4 == 3 else OutcomeKind.FINISHED)
            store.wait(0)
        store.wait(8 * DAY_MS)
        store.wait(8 * DAY_MS)
        stats = store.stats()
        assert (sum(stats.states.values()), stats.leftovers, stats.nodes, stats.pruned) == (0, 0, 0, 20)
        assert (store.edges().open_edges, store.flow("f").total) == (0, 0)
