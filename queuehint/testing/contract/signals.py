"""The rules of signals: waits of jobs for events outside the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint import operations as op
from queuehint.errors import DuplicateJobError, InvalidJobError, LeaseLostError
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.limit import Limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind
from queuehint.values.signal import signal_id, signal_spec, wait_id, wait_spec
from queuehint.values.spec import SIGNAL_TASK, Dependency, JobSpec

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store
    from queuehint.values.spec import When


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
S = signal_id("s")
W = wait_id("s", "j")
ENDS: dict[str, tuple[When, bool]] = {"fail": ("must", False), "cancel": ("success", True), "run": ("done", False)}


def give(store: Store, data: bytes = b"1", *, name: str = "s", kept_ms: int = 7 * DAY_MS) -> bool:
    """Give a signal. Return whether the signal is new."""
    created = store.enqueue(signal_spec(name, data, kept_ms)).jobs[0].created
    store.wait(0)
    return created


def waiting(store: Store, then: str = "fail", timeout_ms: int | None = 1000, hint: list[str] | None = None) -> None:
    """Enqueue the job `j`, which waits for the signal `s`, at most for a time."""
    when, data = ENDS[then]
    store.enqueue(wait_spec("s", "j", timeout_ms), job("j", hint, after=[Dependency(W, when, "s", data)]))


def delete(store: Store, id: str) -> op.Verdict:
    """Delete a record. Return the verdict."""
    return store.apply(op.Delete((id,))).verdicts[0][0]


def leave(store: Store, *awaited: str, id: str = "j") -> None:
    """Have a running job leave until others are over."""
    store.await_children(id, *awaited, again=True)


class Signals:
    """A job waits for a signal by an edge. Any client may give the signal."""

    def test_job_may_wait_for_a_missing_signal(self, store: Store) -> None:
        store.enqueue(job("j", ["x"], after=[S]), job("behind", ["x"]))
        assert store.find(S) is None
        assert store.states("j", "behind") == "DEFERRED QUEUED"
        assert store.start() == ["behind"]
        store.finish("behind")
        assert store.edges().open_edges == 1
        assert give(store)
        assert store.states("j", S) == "QUEUED FINISHED"
        assert store.run() == ["j"]
        assert store.is_clean

    def test_one_that_was_given_before_is_waited_for_no_more(self, store: Store) -> None:
        assert give(store)
        store.enqueue(job("j", after=[S]))
        assert store.run() == ["j"]

    def test_all_that_wait_go_on_in_order(self, store: Store) -> None:
        store.enqueue(*[job(each, ["x"], after=[S]) for each in "abc"])
        store.enqueue(job("d", after=[S, "a"]))
        assert give(store)
        order = store.run()
        assert [each for each in order if each != "d"] == ["a", "b", "c"]
        assert order.index("d") > 0

    def test_the_first_data_counts(self, store: Store) -> None:
        assert give(store, b"1")
        with pytest.raises(DuplicateJobError):
            give(store, b"2")
        assert not give(store, b"1")
        store.enqueue(job("j", after=[S]))
        store.start()
        token = store.grants["j"].token
        assert store.apply(op.Fetch("j", token, (S,))).results == ((FINISHED, b"1"),)
        assert store.record(S).result == b"1"

    def test_a_signal_is_kept_for_its_time(self, store: Store) -> None:
        give(store, kept_ms=1000)
        store.wait(999)
        assert store.state(S) is FINISHED
        store.wait(1)
        assert store.find(S) is None
        store.enqueue(job("j", after=[S]))
        assert store.state("j") is DEFERRED
        assert give(store, b"2")
        assert store.state("j") is QUEUED
        assert store.record(S).result == b"2"

    def test_one_whose_time_is_over_is_given_anew_at_once(self, store: Store) -> None:
        give(store, kept_ms=1000)
        store.advance(1000)
        assert store.enqueue(signal_spec("s", b"2", 1000)).jobs[0].created
        assert (store.state(S), store.record(S).result) == (FINISHED, b"2")
        store.wait(0)
        assert store.record(S).result == b"2"
        store.enqueue(job("j", after=[S]))
        store.advance(1000)
        with pytest.raises(DuplicateJobError):
            store.enqueue(signal_spec("s", b"3", 1000))

    def test_signal_is_kept_while_jobs_may_read_it(self, store: Store) -> None:
        store.enqueue(job("j", after=[S]))
        give(store, kept_ms=1000)
        store.wait(DAY_MS)
        assert store.state(S) is FINISHED
        assert store.run() == ["j"]
        store.wait(DAY_MS)
        assert store.find(S) is None

    def test_a_signal_that_is_deleted_may_be_given_anew(self, store: Store) -> None:
        give(store)
        assert delete(store, S) is op.Verdict.DONE
        store.enqueue(job("j", after=[S]))
        assert store.state("j") is DEFERRED
        assert delete(store, S) is op.Verdict.UNKNOWN
        assert give(store, b"2")
        assert store.state("j") is QUEUED
        assert delete(store, S) is op.Verdict.REFUSED

    def test_job_that_waits_for_signal_holds_no_place_or_worker(self, store: Store) -> None:
        waiting(store, hint=["x"])
        store.enqueue(job("other", ["x"]))
        assert store.run() == ["other"]
        assert store.start() == []
        assert store.states("j", W) == "DEFERRED DEFERRED"

    def test_why_names_the_signal_and_its_timeout(self, store: Store) -> None:
        waiting(store)
        until_ms = store.clock.now_ms() + 1000
        for waits, awaited in (("j", W), (W, S)):
            (reason,) = store.chain(waits)
            assert (reason.kind, reason.jobs, reason.until_ms, reason.stuck) == (
                ReasonKind.SIGNAL, (awaited,), until_ms, False,
            )  # fmt: skip
        store.enqueue(job("k", after=[S]), job("l", after=[S], start_within_ms=10), job("m", after=[S, "l"]))
        assert [(store.why(each).kind, store.why(each).until_ms) for each in "klm"] == [
            (ReasonKind.SIGNAL, None),
            (ReasonKind.SIGNAL, store.clock.now_ms() + 10),
            (ReasonKind.DEPENDENCY, None),
        ]
        assert str(store.why("k")) == "k is DEFERRED: waits for the signal s"

    def test_job_that_waits_for_signal_is_stalled(self, store: Store) -> None:
        store.enqueue(job("j", ["x"], after=[S]))
        for path in (None, ("x",)):
            pending = store.apply(op.CountPending(path))
            assert (pending.unfinished, pending.moving) == (1, False)
            assert [reason.kind for reason in pending.reasons] == [ReasonKind.SIGNAL]

    def test_a_canceled_job_waits_for_nothing(self, store: Store) -> None:
        store.enqueue(job("j", after=[S]))
        store.cancel("j")
        assert store.edges().open_edges == 0
        give(store)
        assert store.state("j") is CANCELED
        assert store.start() == []

    def test_a_wait_that_no_job_waits_for_any_more_ends(self, store: Store) -> None:
        waiting(store, timeout_ms=None)
        other = wait_spec("s", "k", None)
        store.enqueue(other, *[job(each, after=[other.id]) for each in "kl"])
        store.cancel("j", "k")
        store.wait(0)
        assert (store.state(W), store.record(W).cause) == (CANCELED, "nobody waits for it")
        assert store.state(other.id) is DEFERRED
        store.cancel("l")
        store.wait(0)
        assert store.state(other.id) is CANCELED
        assert store.is_clean

    def test_a_wait_whose_job_was_there_before_ends_at_once(self, store: Store) -> None:
        store.enqueue(job("there", key="k"))
        wait, named = wait_spec("s", "new", None), wait_spec("s", "there", None)
        assert store.enqueue(wait, job("new", key="k", after=[wait.id])).jobs[1].id == "there"
        store.enqueue(named)
        for each in (wait, named):
            assert (store.state(each.id), store.record(each.id).cause) == (CANCELED, "nobody waits for it")
        assert store.run() == ["there"]
        store.wait(0)
        assert store.edges().open_edges == 0
        assert store.is_clean

    @pytest.mark.parametrize("then, state", [("fail", FAILED), ("cancel", CANCELED), ("run", QUEUED)])
    def test_a_wait_ends_by_its_time(self, store: Store, then: str, state: JobState) -> None:
        waiting(store, then)
        store.wait(999)
        assert store.state("j") is DEFERRED
        store.wait(1)
        assert (store.state("j"), store.state(W)) == (state, CANCELED)
        assert store.record(W).cause == "expired"
        give(store)
        store.wait(0)
        assert (store.state("j"), store.state(W), store.record(W).result) == (state, CANCELED, None)

    @pytest.mark.parametrize("then", ENDS)
    def test_a_wait_that_the_signal_ends_has_its_data(self, store: Store, then: str) -> None:
        waiting(store, then)
        give(store, b"7")
        assert (store.state("j"), store.state(W), store.record(W).result) == (QUEUED, FINISHED, b"7")
        store.wait(1000)
        assert store.state(W) is FINISHED
        store.start()
        assert store.apply(op.Fetch("j", store.grants["j"].token, (W,))).results == ((FINISHED, b"7"),)

    @pytest.mark.parametrize("then", ENDS)
    def test_wait_for_a_given_signal_ends_at_once(self, store: Store, then: str) -> None:
        give(store, b"7")
        waiting(store, then)
        assert (store.state("j"), store.state(W), store.record(W).result) == (QUEUED, FINISHED, b"7")

    def test_signal_and_timeout_at_one_time_count_once(self, store: Store) -> None:
        waiting(store, "run")
        store.advance(1000)
        give(store)
        store.wait(0)
        assert store.states(W, "j") in {"FINISHED QUEUED", "CANCELED QUEUED"}
        result = b"1" if store.state(W) is FINISHED else None
        assert store.record(W).result == result
        store.wait(DAY_MS // 2)
        assert store.record(W).result == result

    def test_job_failed_without_its_signal_reports_so(self, store: Store) -> None:
        waiting(store)
        store.enqueue(job("next", after=["j"], on_dependency_failure="cancel"))
        store.wait(1000)
        record = store.record("j")
        assert (record.cause, [error.type for error in record.errors]) == ("dependency_failed", ["dependency_failed"])
        assert record.errors[0].message == f"dependency {W} was canceled"
        assert store.state("next") is CANCELED
        assert store.is_clean

    def test_one_that_failed_so_is_redriven_without_its_waits(self, store: Store) -> None:
        store.enqueue(job("first"))
        store.enqueue(wait_spec("s", "j", 1000), job("j", after=["first", Dependency(W, "must")]))
        store.wait(1000)
        assert store.state("j") is FAILED
        assert store.redrive("j") == [op.Verdict.DONE]
        assert store.state("j") is QUEUED
        assert sorted(store.run()) == ["first", "j"]
        assert store.is_clean

    def test_must_edge_fails_dependents_of_a_failed_job(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b"))
        store.enqueue(*[job(f"after-{each}", after=[Dependency(each, "must")]) for each in "ab"])
        store.start()
        store.fail("a")
        store.cancel("b")
        store.settle("b")
        assert store.states("after-a", "after-b") == "FAILED QUEUED"
        store.enqueue(job("late", after=[Dependency("a", "must")]))
        assert store.state("late") is FAILED

    def test_jobs_of_a_submission_in_parts_wait_for_signals(self, store: Store) -> None:
        store.stage("p", wait_spec("s", "j", 1000), job("j", after=[Dependency(W, "must")]), job("k", after=[S]))
        assert store.find(W) is None
        store.wait(2000)
        store.commit("p")
        store.wait(999)
        assert store.states(W, "j", "k") == "DEFERRED DEFERRED DEFERRED"
        give(store)
        assert sorted(store.run()) == ["j", "k"]

    def test_wait_of_a_job_canceled_before_its_binding_ends(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.cancel("a")
        store.stage("p", wait_spec("s", "j", None), job("j", after=[W, Dependency("a", data=True)]))
        store.commit("p")
        store.wait(0)
        assert store.states("j", W) == "CANCELED CANCELED"

    def test_one_given_between_commit_and_release_counts(self, store: Store) -> None:
        store.stage("p", wait_spec("s", "j", 1000), job("j", after=[Dependency(W, "must")]), job("k", after=[S]))
        give(store, b"3")
        store.commit("p")
        store.wait(0)
        assert sorted(store.run()) == ["j", "k"]
        assert store.record(W).result == b"3"

    def test_a_further_portion_of_dependencies_may_name_a_signal(self, store: Store) -> None:
        store.stage("p", job("a"), job("j", after=["a"]))
        assert store.depend("p", "j", 1, S)
        store.commit("p")
        store.wait(0)
        assert store.run() == ["a"]
        assert store.state("j") is DEFERRED
        give(store)
        assert store.run() == ["j"]

    def test_job_failed_by_an_edge_before_binding_needs_nothing(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", max_attempts=1))
        store.stage("p", job("j", after=["a"]))
        assert store.depend("p", "j", 1, Dependency("b", "must"))
        store.start()
        store.finish("a")
        store.fail("b")
        store.commit("p")
        store.wait(0)
        assert (store.state("j"), store.record("j").cause) == (FAILED, "dependency_failed")
        store.wait(DAY_MS)
        assert store.find("a") is None
        assert store.redrive("j") == [op.Verdict.DONE]
        assert store.run() == ["j"]
        assert store.is_clean

    def test_a_signal_needs_no_room(self, store: Store) -> None:
        store.apply(op.SetLimit(Limit(max_pending=1)))
        store.enqueue(job("j", after=[S]))
        assert give(store)
        assert store.run() == ["j"]

    def test_malformed_signals_and_waits_are_refused(self, store: Store) -> None:
        wrong = [
            JobSpec(id="j", task=SIGNAL_TASK),
            JobSpec(id=S, task="task"),
            JobSpec(id=W, task="task"),
            JobSpec(id=W, task=SIGNAL_TASK),
            JobSpec(id=S, task=SIGNAL_TASK, depends_on=(Dependency(signal_id("t")),)),
            JobSpec(id=S, task=SIGNAL_TASK, delay_ms=1),
            JobSpec(id=W, task=SIGNAL_TASK, depends_on=(Dependency("j"),)),
            JobSpec(id=W, task=SIGNAL_TASK, depends_on=(Dependency(S, "done"),)),
            JobSpec(id="j", task="task", depends_on=(Dependency(S, "failure"),)),
        ]
        before = store.everything()
        for spec in wrong:
            with pytest.raises(InvalidJobError):
                store.enqueue(spec)
        with pytest.raises(InvalidJobError):
            store.stage("p", signal_spec("s", b"1", 1))
        assert store.everything() == before


class Leaving:
    """A running job leaves until others are over, and is run again then."""

    def test_it_holds_neither_place_nor_worker_and_is_run_again(self, store: Store) -> None:
        store.enqueue(job("j", ["x"]), job("behind", ["x"]))
        assert store.start() == ["j"]
        store.enqueue_from("j", wait_spec("s", "j", 1000))
        leave(store, W)
        assert store.state("j") is DEFERRED
        assert store.record("j").attempts == 0
        assert store.run() == ["behind"]
        assert give(store, b"5")
        assert store.start() == ["j"]
        token = store.grants["j"].token
        assert store.record("j").attempts == 1
        assert store.apply(op.Fetch("j", token, (W,))).results == ((FINISHED, b"5"),)
        store.finish("j")
        store.wait(0)
        assert store.is_clean

    def test_one_that_was_given_in_between_is_not_missed(self, store: Store) -> None:
        store.enqueue(job("j", ["x"]), job("behind", ["x"]))
        store.start()
        store.enqueue_from("j", wait_spec("s", "j", None))
        give(store)
        leave(store, W)
        assert (store.state("j"), store.record("j").attempts) == (QUEUED, 0)
        assert store.start() == ["j"]

    @pytest.mark.parametrize("end", ["time", "cancel"])
    def test_it_is_run_again_however_the_wait_ends(self, store: Store, end: str) -> None:
        store.enqueue(job("j"))
        store.start()
        store.enqueue_from("j", wait_spec("s", "j", 1000))
        leave(store, W)
        if end == "cancel":
            store.cancel(W)
        store.wait(1000)
        assert store.states("j", W) == "QUEUED CANCELED"
        give(store)
        assert store.state(W) is CANCELED
        assert store.run() == ["j"]

    def test_awaited_results_are_kept_until_the_job_ends(self, store: Store) -> None:
        store.enqueue(job("a"), job("j", after=["a"]))
        store.start()
        store.settle("a", result=b"2")
        store.start()
        store.enqueue_from("j", wait_spec("s", "j", None))
        leave(store, W)
        give(store, b"5", kept_ms=1)
        store.start()
        store.renew("j", lease_ms=10 * DAY_MS)
        store.wait(3 * DAY_MS)
        token = store.grants["j"].token
        assert store.apply(op.Fetch("j", token, ("a", W))).results == ((FINISHED, b"2"), (FINISHED, b"5"))
        assert store.find(S) is None
        store.finish("j")
        store.wait(DAY_MS)
        assert [store.find(each) for each in ("a", W)] == [None, None]

    def test_it_may_leave_again_and_again(self, store: Store) -> None:
        store.enqueue(job("j"))
        for at in range(5):
            assert store.start() == ["j"]
            spec = wait_spec(f"s{at}", "j", 1000)
            store.enqueue_from("j", spec)
            leave(store, spec.id)
            assert store.edges().open_edges == 2
            if at % 2:
                give(store, name=f"s{at}")
            else:
                store.wait(1000)
        assert store.start() == ["j"]
        assert store.record("j").attempts == 1
        store.finish("j")
        store.wait(0)
        assert store.is_clean

    def test_any_job_may_be_waited_for_so(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("j"))
        store.start()
        leave(store, "a")
        store.fail("a")
        assert store.run() == ["j"]
        assert store.state("j") is FINISHED

    def test_it_is_canceled_while_it_waits(self, store: Store) -> None:
        store.enqueue(job("j"))
        store.start()
        store.enqueue_from("j", wait_spec("s", "j", None))
        leave(store, W)
        store.cancel("j", W)
        give(store)
        assert store.states("j", W) == "CANCELED CANCELED"
        store.wait(0)
        assert store.is_clean

    def test_one_that_was_asked_to_stop_does_not_wait(self, store: Store) -> None:
        store.enqueue(job("j"))
        store.start()
        store.enqueue_from("j", wait_spec("s", "j", None))
        store.cancel("j")
        leave(store, W)
        assert store.state("j") is CANCELED

    @pytest.mark.parametrize("end", ["finish", "cancel", "dies"])
    def test_a_wait_that_its_job_began_ends_with_the_job(self, store: Store, end: str) -> None:
        store.enqueue(job("j", max_attempts=1))
        store.start()
        store.enqueue_from("j", wait_spec("s", "j", None))
        if end == "finish":
            store.finish("j")
        elif end == "cancel":
            store.cancel("j")
            leave(store, W)
        else:
            store.fail("j")
            assert store.state(W) is DEFERRED
            assert store.redrive("j") == [op.Verdict.DONE]
            store.start()
            give(store, b"5")
            token = store.grants["j"].token
            assert store.apply(op.Fetch("j", token, (W,))).results == ((FINISHED, b"5"),)
            store.fail("j")
            store.discard("j")
        store.wait(0)
        assert store.state(W) is (FINISHED if end == "dies" else CANCELED)
        assert store.is_clean
        store.wait(DAY_MS)
        assert store.find(W) is None

    def test_wait_for_unknown_or_dependent_jobs_fails_the_job(self, store: Store) -> None:
        store.enqueue(job("j"), job("k"), job("after", after=["j"]))
        store.start()
        leave(store, "nothing")
        leave(store, "after", id="k")
        assert store.states("j", "k") == "FAILED DEFERRED"
        store.enqueue(job("l"), job("behind", after=["l"]))
        store.start()
        leave(store, "behind", id="l")
        assert store.state("l") is FAILED

    def test_a_late_worker_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("j"))
        store.start()
        late = store.outcome("j", OutcomeKind.CHILDREN, children=(W,), again=True)
        store.wait(40_000)
        store.start()
        with pytest.raises(LeaseLostError):
            store.apply(op.Enqueue((wait_spec("s", "j", None),), parent=("j", late.token)))
        assert store.exchange(late).verdicts == (op.Verdict.LOST,)
        assert store.state("j") is STARTED
