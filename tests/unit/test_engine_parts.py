"""The engine: submissions in parts, hidden until their commit; and flows, which jobs belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queuehint.core.structures.job import START_MARK
from queuehint.errors import (
    CycleError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    JobNotFoundError,
    LeaseLostError,
    PathClosedError,
    UnknownDependencyError,
)
from queuehint.operations import (
    STAGED_KEPT_MS,
    CancelFlow,
    Close,
    Commit,
    Enqueue,
    Get,
    ListFlow,
    Reopen,
    Tree,
    Verdict,
)
from queuehint.testing.driver import Queue, job
from queuehint.testing.invariants import check_circles
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind
from queuehint.values.spec import Dependency

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
MINUTE = 60_000
DAY_MS = 24 * 3600 * 1000


# --- hidden ----------------------------------------------------------------------------------------------------------


def staged(**fields: Any) -> Queue:
    """Return a queue with a part of two jobs, `b` after `a`."""
    queue = Queue(now_ms=0, **fields)
    queue.stage("T", job("a", ["x"], flow="f"), job("b", ["x", "y"], after=["a"], flow="f"))
    return queue


def test_the_jobs_of_a_part_are_told_as_deferred() -> None:
    queue = Queue()
    reply = queue.stage("T", job("a"), job("b", after=["a"]))
    assert [(made.id, made.state, made.created) for made in reply.jobs] == [
        ("a", DEFERRED, True),
        ("b", DEFERRED, True),
    ]
    assert not reply.more


def test_nobody_knows_of_a_job_before_its_commit() -> None:
    queue = staged()
    assert queue.apply(Get(("a", "b"))).records == (None, None)
    for job_id in ("a", "b"):
        with pytest.raises(JobNotFoundError):
            queue.why(job_id)
    with pytest.raises(InvalidJobError, match=r"Why\.job_id holds white space"):
        queue.why(START_MARK + "T")
    assert queue.cancel("a", "b") == [Verdict.UNKNOWN] * 2
    assert queue.redrive("a") == queue.discard("a") == [Verdict.UNKNOWN]
    assert sum(queue.stats().states.values()) == queue.stats().enqueued == 0
    assert queue.pending(include_scheduled=True).unfinished == 0
    assert queue.pending((), include_scheduled=True).unfinished == 0
    assert queue.flow("f").total == 0
    assert queue.apply(ListFlow("f")).records == ()
    assert queue.edges().open_edges == queue.edges().deferred == 0
    assert queue.apply(Tree(())).waiting == 0
    assert queue.start() == []


def test_sweeps_pass_over_what_is_hidden() -> None:
    queue = staged()
    queue.cancel_path()
    queue.cancel_flow("f")
    queue.wait(0)
    assert queue.commit("T") == 2
    assert queue.states("a", "b") == "QUEUED DEFERRED"


def test_a_hidden_job_is_no_dependency_for_others_and_nobody_s_child() -> None:
    queue = staged()
    with pytest.raises(UnknownDependencyError):
        queue.enqueue(job("c", after=["a"]))
    with pytest.raises(UnknownDependencyError):
        queue.stage("other", job("c", after=["a"]))
    queue.enqueue(job("parent"))
    queue.start()
    queue.await_children("parent", "a")
    assert queue.record("parent").errors[0].type == "queuehint.errors.UnknownDependencyError"


def test_a_part_may_depend_on_earlier_parts_on_itself_and_on_what_is_there() -> None:
    queue = Queue(job("there"))
    queue.stage("T", job("a", after=["there"]), job("c", after=["b"]), job("b", after=["a"]))
    queue.stage("T", job("d", after=["c", "a", "there"]))
    assert queue.commit("T") == 4
    assert queue.run() == ["there", "a", "b", "c", "d"]
    assert queue.is_clean


# --- commit ----------------------------------------------------------------------------------------------------------


def test_a_commit_has_all_parts_take_effect_in_their_order() -> None:
    queue = Queue(job("before", ["x"]))
    queue.stage("T", job("a", ["x"]))
    queue.enqueue(job("meanwhile", ["x"]))
    queue.stage("T", job("b", ["x"]), job("c", ["x"]))
    queue.enqueue(job("last", ["x"]))
    assert queue.commit("T") == 3
    assert queue.stats().enqueued == 6
    assert queue.run() == ["before", "meanwhile", "last", "a", "b", "c"]
    assert queue.is_clean


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_all_jobs_are_there_at_once_and_take_their_places_step_by_step(budget: int) -> None:
    queue = Queue(budget=budget)
    for part in range(4):
        ids = [f"{part}-{number}" for number in range(5)]
        queue.stage("T", *[job(each, [each], after=[f"{part - 1}-0"] if part else [], flow="f") for each in ids])
    reply = queue.apply(Commit("T"))
    assert (reply.jobs, reply.more) == (20, True)
    stats = queue.stats()
    assert (stats.states[DEFERRED] + stats.states[QUEUED], stats.enqueued) == (20, 20)
    assert queue.flow("f").total == 20
    assert queue.state("3-4") is DEFERRED
    assert (queue.why("3-4").kind, queue.why("3-4").jobs) == (ReasonKind.DEPENDENCY, ())
    queue.wait(0)
    assert queue.why("3-4").jobs == ("2-0",)
    while queue.stats().unfinished:
        queue.run()
        queue.wait(0)
    assert queue.is_clean


@pytest.mark.parametrize("budget", [1, 2, 5])
@pytest.mark.parametrize("how", ["enqueued", "committed"])
def test_a_job_that_is_taken_up_late_depends_on_nobody_who_came_after_the_commit(budget: int, how: str) -> None:
    queue = Queue(budget=budget)
    queue.stage("S", job("a"), *[job(f"{number}") for number in range(10)], job("b", after=["a"]))
    if how == "enqueued":
        queue.stage("T", job("a"))
        queue.advance(STAGED_KEPT_MS // 2)
        queue.stage("S", job("last"))
        queue.wait(STAGED_KEPT_MS // 2)
        queue.commit("S")
        queue.enqueue(job("a", after=["b"]))
    else:
        queue.stage("T", job("k"), job("a", after=["k"]))
        queue.commit("S")
        queue.enqueue(job("k", after=["b"]))
        queue.commit("T")
    queue.wait(0)
    check_circles(queue.engine)
    assert queue.record("b").cause == "dependency a has expired"
    queue.run()
    queue.wait(0)
    assert not queue.stats().unfinished


def test_the_search_for_a_circle_follows_what_a_committed_job_will_wait_for() -> None:
    queue = Queue(job("p"), job("q"), budget=1)
    queue.start()
    queue.stage("S", job("gone"), job("a", after=["p"]), job("b", after=["gone", "q"]))
    queue.stage("T", job("gone"))
    queue.commit("S")
    queue.await_children("q", "b")
    queue.await_children("p", "a")
    assert queue.states("p", "q") == "FAILED FAILED"
    queue.wait(0)
    assert queue.record("b").cause == "dependency gone has expired"


def test_times_count_from_the_commit() -> None:
    queue = Queue(now_ms=0)
    queue.stage(
        "T",
        job("delayed", delay_ms=1000),
        job("timed", run_at_ms=5000),
        job("hasty", start_within_ms=1000, pool="nobody"),
        job("past", run_at_ms=1000),
    )
    queue.wait(4000)
    queue.commit("T")
    assert [queue.record(each).enqueued_ms for each in ("delayed", "timed", "hasty", "past")] == [4000] * 4
    assert queue.states("delayed", "timed", "hasty", "past") == "SCHEDULED SCHEDULED QUEUED QUEUED"
    assert queue.record("delayed").due_ms == 5000
    queue.wait(999)
    assert queue.states("delayed", "hasty") == "SCHEDULED QUEUED"
    queue.wait(1)
    assert queue.states("delayed", "timed", "hasty") == "QUEUED QUEUED CANCELED"
    assert queue.record("hasty").cause == "expired"


def test_a_job_taken_up_late_is_due_as_of_the_commit() -> None:
    queue = Queue(budget=1, now_ms=0)
    queue.stage("T", *[job(f"j{number}") for number in range(9)], job("delayed", delay_ms=1000), job("last"))
    queue.apply(Commit("T"))
    queue.now_ms = 5000
    queue.wait(0)
    assert (queue.record("delayed").enqueued_ms, queue.record("delayed").queued_ms) == (0, 5000)
    assert queue.record("last").queued_ms == 5000


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
def test_what_became_of_a_dependency_meanwhile_is_judged_at_the_commit(
    how: str, on_failure: str, state: JobState, cause: str | None
) -> None:
    queue = Queue(job("a", max_attempts=1, retention_ms=1000), now_ms=0)
    queue.stage("T", job("b", after=["a"], on_dependency_failure=on_failure), job("c", after=["b"]))
    if how != "cancel":
        queue.start()
    acts: dict[str, Callable[[], Any]] = {
        "finish": lambda: queue.finish("a"),
        "fail": lambda: queue.fail("a"),
        "cancel": lambda: queue.cancel("a"),
        "expire": lambda: queue.finish("a"),
    }
    acts[how]()
    if how == "expire":
        queue.wait(1000)
    queue.commit("T")
    assert (queue.state("b"), queue.record("b").cause) == (state, cause)
    assert queue.state("c") is (QUEUED if state is CANCELED else DEFERRED)


def test_the_first_dependency_that_cancels_a_job_at_the_commit_is_its_cause() -> None:
    queue = Queue(*[job(each, max_attempts=1) for each in "abc"])
    queue.stage("T", job("d", after="abc", on_dependency_failure="cancel"))
    queue.start()
    queue.finish("a")
    queue.fail("c")
    queue.fail("b")
    queue.commit("T")
    assert queue.record("d").cause == "dependency b has failed"
    queue.redrive("b", downstream=True)
    queue.wait(0)
    assert queue.engine.table.jobs["d"].need_extras().canceled_by == "c"


def test_what_is_canceled_between_the_commit_and_its_turn_stays_canceled() -> None:
    queue = Queue(budget=1)
    ids = [f"j{number}" for number in range(6)]
    queue.stage("T", *[job(each, after=ids[:at][-1:], flow="f") for at, each in enumerate(ids)])
    queue.commit("T")
    assert queue.cancel("j4") == [Verdict.DONE]
    queue.wait(0)
    assert queue.states(*ids) == "QUEUED DEFERRED DEFERRED DEFERRED CANCELED QUEUED"
    for _ in range(4):
        queue.run()
        queue.wait(0)
    assert queue.is_clean
    queue.wait(2 * DAY_MS)
    assert not queue.engine.table.jobs


def test_a_flow_is_canceled_while_its_commit_goes_on() -> None:
    queue = Queue(budget=1)
    ids = [f"j{number}" for number in range(6)]
    queue.stage("T", *[job(each, ["x"], after=ids[:at][-1:], flow="f") for at, each in enumerate(ids)])
    queue.commit("T")
    queue.cancel_flow("f")
    queue.wait(0)
    assert queue.flow("f").states[CANCELED] == 6
    assert queue.is_clean


def test_a_submission_is_committed_once() -> None:
    queue = staged(budget=1)
    queue.apply(Commit("T"))
    for _ in range(2):
        with pytest.raises(FlowNotFoundError) as caught:
            queue.commit("T")
        assert caught.value.flow == "T"
        queue.wait(0)
    with pytest.raises(FlowNotFoundError):
        queue.commit("never-begun")


def test_no_part_comes_after_the_commit() -> None:
    queue = Queue(budget=1)
    queue.stage("T", *[job(f"j{number}") for number in range(9)])
    queue.apply(Commit("T"))
    before = queue.everything()
    with pytest.raises(FlowNotFoundError):
        queue.stage("T", job("late"))
    assert queue.everything() == before


def test_a_submission_without_jobs_is_committed_too() -> None:
    queue = Queue()
    queue.stage("T")
    assert queue.commit("T") == 0
    assert queue.engine.table.jobs == {}


# --- never committed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 1000])
def test_parts_that_are_never_committed_expire_ten_minutes_after_the_last(budget: int) -> None:
    queue = Queue(budget=budget, now_ms=0)
    queue.stage("T", *[job(f"a{number}", ["x"], flow="f") for number in range(5)])
    queue.wait(9 * MINUTE)
    queue.stage("T", job("b", after=["a0"], flow="f"))
    queue.wait(STAGED_KEPT_MS - 1)
    assert queue.engine.next_ms == 9 * MINUTE + STAGED_KEPT_MS
    assert len(queue.engine.table.jobs) == 7
    queue.wait(1)
    assert queue.engine.table.jobs == {}
    assert queue.is_clean
    assert len(queue.engine.table.flows) == len(queue.engine.table.timers) == 0
    with pytest.raises(FlowNotFoundError):
        queue.commit("T")


def test_a_commit_that_comes_late_but_before_the_parts_were_dropped_counts() -> None:
    queue = staged()
    queue.now_ms = 2 * STAGED_KEPT_MS
    assert queue.commit("T") == 2
    assert queue.run() == ["a", "b"]


def test_a_part_that_comes_when_the_others_are_due_to_expire_keeps_them() -> None:
    queue = staged(budget=1)
    queue.now_ms = STAGED_KEPT_MS
    queue.stage("T", job("c", after=["a", "b"], flow="f"))
    queue.wait(0)
    assert queue.commit("T") == 3


def test_while_parts_are_dropped_no_other_comes() -> None:
    queue = staged(budget=1)
    queue.now_ms = STAGED_KEPT_MS
    assert queue.tick().more
    with pytest.raises(FlowNotFoundError):
        queue.stage("T", job("c", flow="f"))
    with pytest.raises(FlowNotFoundError):
        queue.commit("T")
    queue.wait(0)
    assert queue.stage("T", job("c")).jobs[0].created


def test_a_name_is_free_again_once_its_submission_is_over() -> None:
    queue = staged()
    queue.commit("T")
    queue.stage("T", job("c"))
    assert queue.commit("T") == 1


# --- ids -------------------------------------------------------------------------------------------------------------


def test_a_part_sent_again_is_the_part_that_is_there() -> None:
    queue = Queue()
    parts = [job("a"), job("b", after=["a"])]
    first, again = queue.stage("T", *parts), queue.stage("T", *parts)
    assert [made.created for made in again.jobs] == [False, False]
    assert [made.number for made in again.jobs] == [made.number for made in first.jobs]
    with pytest.raises(DuplicateJobError) as caught:
        queue.stage("T", job("a", ["x"]))
    assert caught.value.fields == ("claims",)
    assert queue.commit("T") == 2


def test_a_part_may_name_jobs_that_are_there_already() -> None:
    queue = Queue(job("a"))
    reply = queue.stage("T", job("a"), job("b", after=["a"]))
    assert [(made.id, made.state, made.created) for made in reply.jobs] == [("a", QUEUED, False), ("b", DEFERRED, True)]
    with pytest.raises(DuplicateJobError):
        queue.stage("T", job("a", ["x"]))
    assert queue.commit("T") == 1


@pytest.mark.parametrize("part", [None, "S"])
@pytest.mark.parametrize("order", [1, -1])
def test_an_id_that_is_hidden_elsewhere_is_taken_by_whoever_asks_for_it_anew(part: str | None, order: int) -> None:
    queue = Queue()
    queue.stage("T", job("a", ["old"]), job("b", after=["a"]))
    specs = [job("a", ["new"]), job("mine", after=["a"])][::order]
    made = queue.enqueue(*specs) if part is None else queue.stage(part, *specs)
    assert [each.created for each in made.jobs] == [True, True]
    if part is not None:
        queue.commit(part)
    assert queue.record("a").path == ("new",)
    assert queue.states("a", "mine") == "QUEUED DEFERRED"
    assert queue.commit("T") == 1
    assert queue.why("b").jobs == ("a",)
    assert sorted(queue.run()) == ["a", "b", "mine"]
    assert queue.is_clean


def test_an_id_whose_submission_expires_in_the_same_step_is_free() -> None:
    queue = staged()
    queue.now_ms = STAGED_KEPT_MS
    assert queue.enqueue(job("a", ["new"])).jobs[0].created
    assert queue.record("a").path == ("new",)
    assert queue.find("b") is None
    assert queue.run() == ["a"]
    assert queue.is_clean


def test_what_has_become_hidden_in_another_submission_is_no_dependency_any_more() -> None:
    queue = Queue()
    queue.stage("S", job("a"), job("b", after=["a"]))
    queue.stage("T", job("a"))
    assert queue.commit("S") == 1
    assert (queue.state("b"), queue.record("b").cause) == (CANCELED, "dependency a has expired")
    assert queue.commit("T") == 1


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"key": "k"}, {"key": "k", "on_conflict": "reject"}, {"presence_ms": 1000}])
def test_no_part_takes_a_key_or_a_caller(fields: dict[str, Any]) -> None:
    queue = Queue()
    with pytest.raises(InvalidJobError, match="job 'b': a submission in parts takes no key and no presence_ms"):
        queue.stage("T", job("a"), job("b", **fields))
    assert queue.engine.table.jobs == {}


def test_all_parts_belong_to_one_flow() -> None:
    queue = Queue()
    with pytest.raises(InvalidJobError, match="all parts of one submission belong to one flow"):
        queue.stage("T", job("a", flow="f"), job("b", flow="g"))
    queue.stage("T", job("a", flow="f"))
    for flow in (None, "g"):
        with pytest.raises(InvalidJobError, match="all parts of one submission belong to one flow"):
            queue.stage("T", job("b", flow=flow))
    queue.stage("T")
    queue.stage("T", job("b", flow="f"))
    assert queue.commit("T") == 2


def test_a_part_that_is_refused_changes_nothing() -> None:
    queue = staged()
    queue.apply(Close(("closed",)))
    before = queue.everything()
    bad: list[tuple[type[Exception], Any]] = [
        (UnknownDependencyError, job("c", after=["nobody"], flow="f")),
        (CycleError, job("c", after=["c"], flow="f")),
        (PathClosedError, job("c", ["closed"], flow="f")),
        (DuplicateJobError, job("a", ["y"], flow="f")),
    ]
    for error, spec in bad:
        with pytest.raises(error):
            queue.stage("T", job("new", flow="f"), spec)
    with pytest.raises(LeaseLostError):
        queue.apply(Enqueue((job("c", flow="f"),), staged="T", parent=("nobody", 1)))
    assert queue.everything() == before
    queue.apply(Reopen(("closed",)))
    assert queue.commit("T") == 2


def test_a_handler_may_send_parts() -> None:
    queue = Queue(job("parent"))
    queue.start()
    parent = ("parent", queue.grants["parent"].token)
    queue.apply(Enqueue((job("a"), job("b", after=["a"])), staged="T", parent=parent))
    with pytest.raises(CycleError):
        queue.apply(Enqueue((job("c", after=["parent"]),), staged="T", parent=parent))
    queue.commit("T")
    queue.await_children("parent", "a", "b")
    assert queue.run() == ["a", "b"]
    assert queue.state("parent") is FINISHED


# --- flows -----------------------------------------------------------------------------------------------------------


def test_the_jobs_of_a_flow_are_counted_by_state_while_their_records_are_kept() -> None:
    queue = Queue(
        job("a", flow="f", max_attempts=1), job("b", after=["a"], flow="f"), job("c", flow="g"), job("d"), now_ms=0
    )
    assert queue.flow("f").states == {**dict.fromkeys(JobState, 0), QUEUED: 1, DEFERRED: 1}
    queue.start()
    queue.fail("a")
    stats = queue.flow("f")
    assert (stats.states[FAILED], stats.total, stats.unfinished) == (1, 2, 1)
    queue.wait(8 * DAY_MS)
    assert queue.flow("f").total == 1
    queue.wait(DAY_MS)
    assert queue.flow("f").total == queue.flow("nobody").total == 0


def test_a_flow_is_listed_in_pages_in_order_of_number() -> None:
    queue = Queue(*[job(f"j{number}", flow="f" if number != 3 else "g") for number in range(6)])
    page = queue.apply(ListFlow("f", limit=2))
    assert [record.id for record in page.records] == ["j0", "j1"]
    rest = queue.apply(ListFlow("f", page.cursor or 0, 3))
    assert ([record.id for record in rest.records], rest.cursor) == (["j2", "j4", "j5"], None)
    assert queue.apply(ListFlow("nobody")).records == ()
    for limit in (0, 201):
        with pytest.raises(InvalidJobError):
            queue.apply(ListFlow("f", limit=limit))


def test_a_page_of_a_flow_passes_over_what_is_hidden() -> None:
    queue = Queue(job("a", flow="f"))
    queue.stage("T", job("b", flow="f"), job("c", flow="f"))
    queue.enqueue(job("d", flow="f"))
    page = queue.apply(ListFlow("f", limit=2))
    assert [record.id for record in page.records] == ["a"]
    assert [record.id for record in queue.apply(ListFlow("f", page.cursor or 0, 2)).records] == ["d"]


def test_a_job_of_a_key_that_is_replaced_moves_to_the_new_flow() -> None:
    queue = Queue(job("a", key="k", flow="f"), job("other", key="l"))
    queue.enqueue(job("b", key="k", on_conflict="replace", flow="g"))
    assert (queue.flow("f").total, queue.flow("g").total) == (0, 1)
    queue.enqueue(job("c", key="k", on_conflict="replace"))
    assert queue.flow("g").total == 0
    queue.enqueue(job("d", key="l", on_conflict="replace", flow="g"))
    assert [record.id for record in queue.apply(ListFlow("g")).records] == ["other"]


def test_canceling_a_flow_covers_what_was_enqueued_before_and_tells_what_runs() -> None:
    queue = Queue(job("a", flow="f"), job("other"), budget=2)
    queue.start()
    queue.enqueue(
        *[job(f"b{number}", after=["a"], flow="f") for number in range(4)],
        job("done", flow="f"),
        job("waits", after=["b1"], on_dependency_failure="cancel"),
    )
    queue.run()
    queue.cancel_flow("f")
    queue.enqueue(job("late", flow="f", pool="p"))
    queue.wait(0)
    assert queue.states("b0", "b1", "b2", "b3", "done", "late") == "CANCELED CANCELED CANCELED CANCELED FINISHED QUEUED"
    assert queue.record("a").cancel_requested
    assert queue.states("other", "waits") == "STARTED CANCELED"
    assert queue.exchange().canceled == ("a",)


def test_a_flow_is_canceled_with_a_reason() -> None:
    queue = Queue(job("a", flow="f"), job("b", after=["a"], flow="f"))
    assert not queue.apply(CancelFlow("f", "moot")).more
    assert [queue.record(each).cause for each in "ab"] == ["moot", "moot"]
    assert not queue.cancel_flow("nobody")


def test_a_dependency_between_flows_is_an_edge_like_any_other() -> None:
    queue = Queue(job("a", flow="f"), job("b", flow="g", after=[Dependency("a", when="done")]))
    queue.cancel_flow("f")
    assert queue.states("a", "b") == "CANCELED QUEUED"
