"""The rules of submissions in parts: hidden until their commit, and dropped if none comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from queuehint import operations as op
from queuehint.errors import (
    CycleError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    LeaseLostError,
    PathClosedError,
    QueueFullError,
    UnknownDependencyError,
)
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.limit import Limit
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def stage_two(store: Store) -> None:
    """Send a part of two jobs, `b` after `a`."""
    store.stage("T", job("a", ["x"], flow="f"), job("b", ["x", "y"], after=["a"], flow="f"))


class HiddenParts:
    """A part is invisible before the commit."""

    def test_the_jobs_of_a_part_are_told_as_deferred(self, store: Store) -> None:
        reply = store.stage("T", job("a"), job("b", after=["a"]))
        assert [(made.id, made.state, made.created) for made in reply.jobs] == [
            ("a", DEFERRED, True),
            ("b", DEFERRED, True),
        ]
        assert not reply.more

    def test_further_part_does_not_restart_an_expired_submission(self, store: Store) -> None:
        stage_two(store)
        further = op.Enqueue((job("c", ["x"], flow="f"),), staged="T", is_further=True)
        assert [made.created for made in store.apply(further).jobs] == [True]
        store.wait(op.STAGED_KEPT_MS)
        with pytest.raises(FlowNotFoundError):
            store.apply(op.Enqueue((job("d", ["x"], flow="f"),), staged="T", is_further=True))
        with pytest.raises(FlowNotFoundError):
            store.commit("T")
        assert store.is_clean

    def test_a_further_part_is_of_a_submission(self, store: Store) -> None:
        with pytest.raises(InvalidJobError, match=r"is_further requires staged"):
            store.apply(op.Enqueue((job("a"),), is_further=True))
        assert store.is_clean

    def test_sweeps_skip_staged_jobs(self, store: Store) -> None:
        stage_two(store)
        store.cancel_path()
        store.cancel_flow("f")
        store.wait(0)
        assert store.commit("T") == 2
        assert store.states("a", "b") == "QUEUED DEFERRED"

    def test_staged_job_is_no_dependency_and_no_child_of_others(self, store: Store) -> None:
        stage_two(store)
        with pytest.raises(UnknownDependencyError):
            store.enqueue(job("c", after=["a"]))
        with pytest.raises(UnknownDependencyError):
            store.stage("other", job("c", after=["a"]))
        store.enqueue(job("parent"))
        store.start()
        store.await_children("parent", "a")
        assert store.record("parent").errors[0].type == "queuehint.errors.UnknownDependencyError"

    def test_part_may_depend_on_earlier_parts_itself_and_known_jobs(self, store: Store) -> None:
        store.enqueue(job("there"))
        store.stage("T", job("a", after=["there"]), job("c", after=["b"]), job("b", after=["a"]))
        store.stage("T", job("d", after=["c", "a", "there"]))
        assert store.commit("T") == 4
        assert store.run() == ["there", "a", "b", "c", "d"]
        assert store.is_clean

    def test_withdrawn_parts_leave_nothing(self, store: Store) -> None:
        store.enqueue(job("known", ["x"]))
        limit = Limit(path=("x",), max_pending=4)
        store.apply(op.SetLimit(limit))
        before = store.visible()
        store.stage("T", job("a", ["x"], flow="f"), job("b", ["x"], after=["a"], flow="f"))
        store.stage("T", job("c", ["x"], flow="f"))
        store.depend("T", "c", 1, "known", "a")
        with pytest.raises(QueueFullError):
            store.enqueue(job("new", ["x"]))
        assert store.withdraw("T")
        store.wait(0)
        assert store.visible() == before
        assert not store.withdraw("T")
        with pytest.raises(FlowNotFoundError):
            store.commit("T")
        store.stage("T", job("a", ["y"]))
        assert store.commit("T") == 1
        store.enqueue(*[job(str(number), ["x"]) for number in range(3)])
        assert store.run() == ["known", "a", "0", "1", "2"]
        store.unlimit(limit.path)
        store.wait(2 * op.STAGED_KEPT_MS)
        assert store.is_clean

    def test_empty_part_keeps_earlier_staged_jobs(self, store: Store) -> None:
        stage_two(store)
        for _ in range(2):
            store.advance(op.STAGED_KEPT_MS)
            assert store.stage("T").jobs == ()
        store.wait(op.STAGED_KEPT_MS - 1)
        assert store.commit("T") == 2
        assert store.run() == ["a", "b"]

    def test_withdraw_of_committed_or_unknown_parts_is_refused(self, store: Store) -> None:
        stage_two(store)
        store.commit("T")
        assert not store.withdraw("T")
        assert not store.withdraw("nobody")
        assert store.run() == ["a", "b"]

    def test_page_of_a_flow_skips_staged_jobs(self, store: Store) -> None:
        store.enqueue(job("a", flow="f"))
        store.stage("T", job("b", flow="f"), job("c", flow="f"))
        store.enqueue(job("d", flow="f"))
        page = store.apply(op.List(RecordFilter(flow="f"), limit=2))
        assert [record.id for record in page.records] == ["a", "d"]


class Commits:
    """A commit has all parts take effect, in their order, as of now."""

    def test_a_commit_has_all_parts_take_effect_in_their_order(self, store: Store) -> None:
        store.enqueue(job("before", ["x"]))
        store.stage("T", job("a", ["x"]))
        store.enqueue(job("meanwhile", ["x"]))
        store.stage("T", job("b", ["x"]), job("c", ["x"]))
        store.enqueue(job("last", ["x"]))
        assert store.commit("T") == 3
        assert store.stats().enqueued == 6
        assert store.run() == ["before", "meanwhile", "last", "a", "b", "c"]
        assert store.is_clean

    def test_times_count_from_the_commit(self, store: Store) -> None:
        store.stage(
            "T",
            job("delayed", delay_ms=1000),
            job("timed", run_at_ms=store.began_ms + 5000),
            job("hasty", start_within_ms=1000, pool="nobody"),
            job("past", run_at_ms=store.began_ms + 1000),
        )
        store.wait(4000)
        store.commit("T")
        assert [store.record(each).enqueued_ms for each in ("delayed", "timed", "hasty", "past")] == [
            store.began_ms + 4000
        ] * 4
        assert store.states("delayed", "timed", "hasty", "past") == "SCHEDULED SCHEDULED QUEUED QUEUED"
        assert store.record("delayed").due_ms == store.began_ms + 5000
        store.wait(999)
        assert store.states("delayed", "hasty") == "SCHEDULED QUEUED"
        store.wait(1)
        assert store.states("delayed", "timed", "hasty") == "QUEUED QUEUED CANCELED"
        assert store.record("hasty").cause == "expired"

    @pytest.mark.parametrize(
        "how, on_failure, state, cause",
        [
            ("finish", "wait", QUEUED, None),
            ("fail", "wait", DEFERRED, None),
            ("fail", "cancel", CANCELED, "dependency a has failed"),
            ("fail", "run", QUEUED, None),
            ("cancel", "wait", QUEUED, None),
            ("cancel", "cancel", CANCELED, "dependency a was canceled"),
            ("expire", "wait", CANCELED, "dependency a has expired"),
            ("expire", "run", CANCELED, "dependency a has expired"),
        ],
    )
    def test_dependency_that_ended_meanwhile_is_judged_at_commit(
        self, store: Store, how: str, on_failure: str, state: JobState, cause: str | None
    ) -> None:
        store.enqueue(job("a", max_attempts=1, retention_ms=1000))
        store.stage("T", job("b", after=["a"], on_dependency_failure=on_failure), job("c", after=["b"]))
        if how != "cancel":
            store.start()
        acts: dict[str, Callable[[], Any]] = {
            "finish": lambda: store.finish("a"),
            "fail": lambda: store.fail("a"),
            "cancel": lambda: store.cancel("a"),
            "expire": lambda: store.finish("a"),
        }
        acts[how]()
        if how == "expire":
            store.wait(1000)
        store.commit("T")
        assert (store.state("b"), store.record("b").cause) == (state, cause)
        assert store.state("c") is (QUEUED if state is CANCELED else DEFERRED)

    def test_late_commit_before_the_parts_are_dropped_counts(self, store: Store) -> None:
        stage_two(store)
        store.advance(2 * op.STAGED_KEPT_MS)
        assert store.commit("T") == 2
        assert store.run() == ["a", "b"]

    def test_a_name_is_free_again_once_its_submission_is_over(self, store: Store) -> None:
        stage_two(store)
        store.commit("T")
        store.stage("T", job("c"))
        assert store.commit("T") == 1

    @pytest.mark.parametrize("ended", ["never begun", "expired", "withdrawn", "committed"])
    def test_further_part_of_an_ended_submission_changes_nothing(self, store: Store, ended: str) -> None:
        if ended != "never begun":
            stage_two(store)
        if ended == "committed":
            store.commit("T")
        elif ended == "withdrawn":
            store.withdraw("T")
        store.wait(op.STAGED_KEPT_MS)
        before = store.everything()
        for specs in ((job("c", ["x"], flow="f"),), ()):
            with pytest.raises(FlowNotFoundError) as caught:
                store.apply(op.Enqueue(specs, staged="T", is_further=True))
            assert caught.value.flow == "T"
            assert store.everything() == before
            with pytest.raises(FlowNotFoundError):
                store.commit("T")

    def test_repeated_part_is_idempotent_and_further_parts_extend_it(self, store: Store) -> None:
        for created in (True, False):
            assert [made.created for made in store.stage("T", job("a"), job("b", after=["a"])).jobs] == [created] * 2
        further = op.Enqueue((job("c", after=["b"]),), staged="T", is_further=True)
        for created in (True, False):
            store.advance(op.STAGED_KEPT_MS - 1)
            assert [made.created for made in store.apply(further).jobs] == [created]
        store.advance(op.STAGED_KEPT_MS - 1)
        assert store.apply(op.Enqueue((), staged="T", is_further=True)).jobs == ()
        store.wait(op.STAGED_KEPT_MS - 1)
        assert store.commit("T", jobs=3) == 3
        assert store.run() == ["a", "b", "c"]
        assert store.is_clean

    def test_id_of_a_submission_expired_in_the_step_is_free(self, store: Store) -> None:
        stage_two(store)
        store.advance(op.STAGED_KEPT_MS)
        assert store.enqueue(job("a", ["new"])).jobs[0].created
        assert store.record("a").path == ("new",)
        assert store.find("b") is None
        assert store.run() == ["a"]
        assert store.is_clean

    def test_a_part_may_name_jobs_that_are_there_already(self, store: Store) -> None:
        store.enqueue(job("a"))
        reply = store.stage("T", job("a"), job("b", after=["a"]))
        assert [(made.id, made.state, made.created) for made in reply.jobs] == [
            ("a", QUEUED, False),
            ("b", DEFERRED, True),
        ]
        with pytest.raises(DuplicateJobError):
            store.stage("T", job("a", ["x"]))
        assert store.commit("T") == 1

    def test_a_part_that_is_refused_changes_nothing(self, store: Store) -> None:
        stage_two(store)
        store.apply(op.Close(("closed",)))
        before = store.everything()
        bad: list[tuple[type[Exception], Any]] = [
            (UnknownDependencyError, job("c", after=["nobody"], flow="f")),
            (CycleError, job("c", after=["c"], flow="f")),
            (PathClosedError, job("c", ["closed"], flow="f")),
            (DuplicateJobError, job("a", ["y"], flow="f")),
        ]
        for error, spec in bad:
            with pytest.raises(error):
                store.stage("T", job("new", flow="f"), spec)
        with pytest.raises(LeaseLostError):
            store.apply(op.Enqueue((job("c", flow="f"),), staged="T", parent=("nobody", 1)))
        assert store.everything() == before
        store.apply(op.Close(("closed",), reopen=True))
        assert store.commit("T") == 2

    def test_a_handler_may_send_parts(self, store: Store) -> None:
        store.enqueue(job("parent"))
        store.start()
        parent = ("parent", store.grants["parent"].token)
        store.apply(op.Enqueue((job("a"), job("b", after=["a"])), staged="T", parent=parent))
        with pytest.raises(CycleError):
            store.apply(op.Enqueue((job("c", after=["parent"]),), staged="T", parent=parent))
        store.commit("T", jobs=2)
        store.await_children("parent", "a", "b")
        assert store.run() == ["a", "b"]
        assert store.state("parent") is FINISHED


class FlowsTold:
    """A flow is counted, listed and canceled while its records are kept."""

    def test_flow_jobs_are_counted_by_state_while_recorded(self, store: Store) -> None:
        store.enqueue(job("a", flow="f", max_attempts=1), job("b", after=["a"], flow="f"), job("c", flow="g"), job("d"))
        assert store.flow("f").states == {**dict.fromkeys(JobState, 0), QUEUED: 1, DEFERRED: 1}
        store.start()
        store.fail("a")
        stats = store.flow("f")
        assert (stats.states[FAILED], stats.total, stats.unfinished) == (1, 2, 1)
        store.wait(8 * DAY_MS)
        assert store.flow("f").total == 1
        store.wait(DAY_MS)
        assert store.flow("f").total == store.flow("nobody").total == 0

    def test_a_flow_is_listed_in_pages_in_order_of_number(self, store: Store) -> None:
        store.enqueue(*[job(f"j{number}", flow="f" if number != 3 else "g") for number in range(6)])
        page = store.apply(op.List(RecordFilter(flow="f"), limit=2))
        assert [record.id for record in page.records] == ["j0", "j1"]
        rest = store.apply(op.List(RecordFilter(flow="f"), after=page.after, limit=3))
        assert ([record.id for record in rest.records], rest.after) == (["j2", "j4", "j5"], None)
        assert store.apply(op.List(RecordFilter(flow="nobody"))).records == ()
        for limit in (0, 201):
            with pytest.raises(InvalidJobError):
                store.apply(op.List(RecordFilter(flow="f"), limit=limit))

    def test_a_flow_is_canceled_with_a_reason(self, store: Store) -> None:
        store.enqueue(job("a", flow="f"), job("b", after=["a"], flow="f"))
        assert not store.apply(op.CancelFlow("f", "moot")).more
        assert [store.record(each).cause for each in "ab"] == ["moot", "moot"]
        assert not store.cancel_flow("nobody")

    def test_a_dependency_between_flows_is_an_edge_like_any_other(self, store: Store) -> None:
        store.enqueue(job("a", flow="f"), job("b", flow="g", after=[Dependency("a", when="done")]))
        store.cancel_flow("f")
        assert store.states("a", "b") == "CANCELED QUEUED"
