"""Questions: why a job waits, what stands where, what is left."""

from __future__ import annotations

from itertools import pairwise

import pytest

from queuehint.core.state import POOL_SEEN_MS, EngineOptions
from queuehint.core.structures.edges import AFTER
from queuehint.core.why import DRAINED_LOOKED_AT_MAX
from queuehint.errors import JobNotFoundError
from queuehint.operations import Close, CountPending, Get, Tree
from queuehint.testing.driver import SHARED, Queue, claim, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import Reason, ReasonKind, TreeNode

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def reason(id: str, state: JobState, kind: ReasonKind, **fields: object) -> Reason:
    return Reason(job_id=id, state=state, kind=kind, **fields)  # type: ignore[arg-type]


# --- why -------------------------------------------------------------------------------------------------------------


def test_why_of_a_job_that_is_over_is_its_cause() -> None:
    queue = Queue(job("a"), job("b"), job("c", max_attempts=1))
    queue.start()
    queue.finish("a")
    queue.settle("b", OutcomeKind.DISCARDED, reason="gone")
    queue.fail("c")
    assert queue.why("a") == reason("a", FINISHED, ReasonKind.OVER)
    assert queue.why("b") == reason("b", CANCELED, ReasonKind.OVER, detail="gone")
    assert queue.why("c") == reason("c", FAILED, ReasonKind.OVER, detail="failed")


def test_why_of_a_started_job_is_who_runs_it() -> None:
    queue = Queue(job("a", timeout_ms=1000), now_ms=0)
    queue.start()
    queue.now_ms = 1000
    assert queue.why("a") == reason("a", STARTED, ReasonKind.RUNNING, detail="worker w, attempt 1")
    queue.now_ms = 1001
    assert queue.why("a").kind is ReasonKind.OVERDUE


def test_why_of_a_started_job_that_was_told_to_stop_is_that_its_code_still_runs() -> None:
    queue = Queue(job("a"))
    queue.start()
    assert queue.why("a").kind is ReasonKind.RUNNING
    queue.cancel("a")
    assert queue.why("a").kind is ReasonKind.OVERDUE


def test_why_of_a_scheduled_job_is_its_time() -> None:
    queue = Queue(job("a", delay_ms=500), now_ms=0)
    assert queue.why("a") == reason("a", SCHEDULED, ReasonKind.TIME, until_ms=500)


def test_why_of_a_deferred_job_is_what_it_waits_for() -> None:
    queue = Queue(job("a", key="k"))
    queue.start()
    queue.enqueue(job("b", key="k", on_conflict="after"))
    assert queue.why("b") == reason("b", DEFERRED, ReasonKind.DEPENDENCY, jobs=("a",))


def test_why_of_a_job_in_line_is_the_place_and_who_stands_before_it() -> None:
    queue = Queue(job("a", ["x", "1"]), job("b", ["x", "2"]), job("c", ["x"]), job("d", ["x", "3"]))
    queue.start()
    assert queue.why("c") == reason("c", QUEUED, ReasonKind.PLACE, jobs=("a", "b"), path_key="x")
    assert queue.why("d") == reason("d", QUEUED, ReasonKind.PLACE, jobs=("c",), path_key="x")


def test_why_names_the_first_claim_that_waits() -> None:
    queue = Queue(job("a", ["y"]), job("both", claims=(claim("x"), claim("y"), claim("z"))))
    assert queue.why("both") == reason("both", QUEUED, ReasonKind.PLACE, jobs=("a",), path_key="y")


def test_why_names_ten_jobs_at_most() -> None:
    queue = Queue(*[job(f"j{number}", ["x"]) for number in range(30)])
    assert len(queue.why("j29").jobs) == 10


def test_why_behind_a_dead_job_that_holds_names_it_and_is_stuck() -> None:
    queue = Queue(job("dead", ["x"], on_dead="hold", max_attempts=1), job("a", ["x"]), job("b", ["x", "y"]))
    queue.start()
    queue.fail("dead")
    assert queue.why("a") == reason("a", QUEUED, ReasonKind.DEAD_HOLD, jobs=("dead",), path_key="x", stuck=True)
    assert queue.why("b").kind is ReasonKind.DEAD_HOLD


def test_why_of_a_job_in_back_off_is_until_when() -> None:
    queue = Queue(job("a", ["x"]), now_ms=0)
    queue.start()
    queue.fail("a", delay_ms=700)
    assert queue.why("a") == reason("a", QUEUED, ReasonKind.BACKOFF, until_ms=700)


def test_why_of_a_paused_job_is_the_path_that_is_paused() -> None:
    queue = Queue(job("a", ["x", "y"]))
    queue.pause("x")
    expected = reason("a", QUEUED, ReasonKind.PAUSED, path_key="x", stuck=True)
    assert queue.why("a") == expected
    assert queue.start() == []
    assert queue.why("a") == expected
    queue.resume("x")
    assert queue.why("a").kind is ReasonKind.WORKER


def test_why_of_a_job_of_an_unknown_task_is_that_no_worker_knew_it() -> None:
    queue = Queue(job("a"), now_ms=0)
    queue.start()
    queue.settle("a", OutcomeKind.UNKNOWN_TASK)
    assert queue.why("a") == reason("a", QUEUED, ReasonKind.UNKNOWN_TASK, until_ms=5000, stuck=True)
    assert queue.stats().stuck["unknown_task"] == 1
    queue.wait(5000)
    queue.start()
    queue.fail("a", delay_ms=100)
    assert queue.why("a").kind is ReasonKind.BACKOFF


def test_why_of_a_ready_job_tells_whether_a_worker_serves_its_pool() -> None:
    queue = Queue(job("a", pool="p"), now_ms=0)
    assert queue.why("a") == reason("a", QUEUED, ReasonKind.NO_WORKER, stuck=True, detail="pool p")
    assert queue.stats().stuck["no_worker"] == 1
    queue.exchange(pools=("p",))
    assert queue.why("a") == reason("a", QUEUED, ReasonKind.WORKER, detail="pool p")
    assert queue.stats().stuck["no_worker"] == 0


def test_a_pool_not_asked_for_in_a_minute_is_served_no_more() -> None:
    queue = Queue(job("a", pool="p"), now_ms=0)
    queue.exchange(pools=("p",))
    queue.exchange(pools=("q",))
    queue.now_ms = POOL_SEEN_MS
    queue.exchange(pools=("q",))
    assert queue.why("a").kind is ReasonKind.WORKER
    queue.now_ms += 1
    queue.exchange(pools=("q",))
    assert queue.why("a").kind is ReasonKind.NO_WORKER


def test_why_of_a_ready_caller_is_that_it_is_about_to_take_its_place() -> None:
    queue = Queue(job("a", ["x"], presence_ms=1000))
    assert queue.why("a") == reason("a", QUEUED, ReasonKind.CALLER)


def test_why_of_no_job_is_an_error() -> None:
    queue = Queue(job("gone", retention_ms=0))
    queue.cancel("gone")
    for job_id in ("nobody", "gone"):
        with pytest.raises(JobNotFoundError, match=f"no job '{job_id}'"):
            queue.why(job_id)


def test_why_of_a_line_about_to_move_names_nobody() -> None:
    queue = Queue(job("a", ["x"]), *[job(f"j{number}", ["x"]) for number in range(2)], checked=False, budget=1)
    queue.start()
    queue.engine.state.options = EngineOptions(budget=0)
    queue.finish("a")
    assert queue.why("j0") == reason("j0", QUEUED, ReasonKind.PLACE, path_key="x")


# --- get -------------------------------------------------------------------------------------------------------------


def test_records_come_in_the_order_asked_for_with_none_where_there_is_none() -> None:
    queue = Queue(job("a"), job("b"))
    records = queue.apply(Get(("b", "nobody", "a", "b"))).records
    assert [record and record.id for record in records] == ["b", None, "a", "b"]


# --- tree ------------------------------------------------------------------------------------------------------------


def test_the_tree_counts_what_is_live_at_each_place() -> None:
    queue = Queue(
        job("a", ["x", "1"]),
        job("b", claims=(claim("x", "2", mode=SHARED),)),
        job("c", claims=(claim("x", "2", mode=SHARED),)),
        job("d", ["x"]),
        job("e", ["x", "3"]),
        job("f", ["y"]),
    )
    queue.start(2)
    queue.pause("x")
    queue.apply(Close(("x", "1")))
    one = TreeNode(
        path_key="x:1", started=1, started_below=1, waiting=0, granted=1, passing=0, paused=False, closed=True
    )
    two = TreeNode(
        path_key="x:2", started=1, started_below=1, waiting=0, granted=2, passing=0, paused=False, closed=False
    )
    expected = TreeNode(
        path_key="x",
        started=0,
        started_below=2,
        waiting=2,
        granted=0,
        passing=3,
        paused=True,
        closed=False,
        children=(one, two),
    )
    assert queue.apply(Tree(("x",))) == expected
    whole = queue.apply(Tree((), 2))
    assert (whole.path_key, whole.passing, whole.started_below) == ("root", 6, 2)
    assert [child.path_key for child in whole.children] == ["x", "y"]
    assert whole.children[0] == expected
    assert queue.apply(Tree((), 1)).children[0].children == ()
    assert queue.apply(Tree((), 0)).children == ()


def test_the_tree_of_a_place_where_nothing_is_has_zeros_and_the_marks() -> None:
    queue = Queue()
    queue.pause("x", "y")
    node = queue.apply(Tree(("x", "y"), 3))
    assert node == TreeNode(
        path_key="x:y", started=0, started_below=0, waiting=0, granted=0, passing=0, paused=True, closed=False
    )


def test_the_tree_shows_a_thousand_nodes_at_most() -> None:
    queue = Queue(checked=False)
    for batch in range(3):
        queue.enqueue(*[job(f"{batch}-{number}", [f"{number:04}", str(batch)]) for number in range(600)])

    def size(node: TreeNode) -> int:
        return 1 + sum(size(child) for child in node.children)

    assert size(queue.apply(Tree((), 64))) == 1001
    assert size(queue.apply(Tree((), 1))) == 601


# --- what is left ----------------------------------------------------------------------------------------------------


def test_an_empty_queue_has_nothing_pending() -> None:
    queue = Queue(job("a", ["x"]))
    queue.run()
    for path in (None, (), ("x",)):
        pending = queue.pending(path)
        assert (pending.unfinished, pending.moving, pending.reasons) == (0, False, ())


@pytest.mark.parametrize("path", [None, (), ("doc",)])
def test_a_queue_is_drained_when_nothing_that_counts_is_left(path: tuple[str, ...] | None) -> None:
    queue = Queue()
    some, all_of_them = CountPending(path), CountPending(path, include_scheduled=True)
    assert queue.engine.is_drained(some)
    queue.enqueue(job("later", ["doc"], delay_ms=1000), job("now", ["doc", "x"]))
    queue.start()
    assert not queue.engine.is_drained(some)
    queue.finish("now")
    assert queue.engine.is_drained(some)
    assert not queue.engine.is_drained(all_of_them)
    queue.cancel("later")
    assert queue.engine.is_drained(all_of_them)


def test_below_a_path_few_jobs_are_looked_at_to_see_whether_it_is_drained() -> None:
    queue = Queue(*[job(f"later{n:02}", ["doc"], delay_ms=1000) for n in range(DRAINED_LOOKED_AT_MAX + 1)])
    assert not queue.engine.is_drained(CountPending(("doc",))), "it cannot be told"
    queue.cancel("later00")
    assert queue.engine.is_drained(CountPending(("doc",)))


def test_scheduled_jobs_are_pending_only_if_asked_for() -> None:
    queue = Queue(job("a", ["x"], delay_ms=5), job("b", ["x", "y"], delay_ms=5), job("c", delay_ms=5))
    assert [queue.pending(path).unfinished for path in (None, (), ("x",))] == [0, 0, 0]
    paths: list[tuple[str, ...] | None] = [None, (), ("x",), ("y",)]
    assert [queue.pending(path, include_scheduled=True).unfinished for path in paths] == [3, 2, 2, 0]
    assert queue.pending(include_scheduled=True).moving
    assert queue.pending(("x",), include_scheduled=True).moving


def test_pending_below_a_path_counts_once_a_claim() -> None:
    queue = Queue(job("a", claims=(claim("x", "1"), claim("x", "2"))))
    assert queue.pending(("x",)).unfinished == 2
    assert queue.pending(("x", "1")).unfinished == 1
    assert queue.pending(("y",)).unfinished == 0


@pytest.mark.parametrize("path", [None, ("x",)])
def test_what_runs_or_waits_for_a_worker_a_time_or_such_a_job_is_moving(path: tuple[str, ...] | None) -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]), job("c", ["x", "y"]), now_ms=0)
    queue.exchange()
    assert queue.pending(path).moving
    queue.start()
    assert queue.pending(path).moving
    queue.fail("a", delay_ms=1000)
    pending = queue.pending(path)
    assert (pending.unfinished, pending.moving, pending.reasons) == (3, True, ())


@pytest.mark.parametrize("path", [None, ("x",)])
def test_what_waits_behind_a_pause_a_dead_hold_or_for_no_worker_is_stuck(path: tuple[str, ...] | None) -> None:
    no_worker = Queue(job("a", ["x"]), job("b", ["x"]))
    paused = Queue(job("a", ["x"]), job("b", ["x"]))
    paused.pause("x")
    paused.start()
    held = Queue(job("dead", ["x"], on_dead="hold", max_attempts=1), job("a", ["x"]), job("b", ["x"]))
    held.start()
    held.fail("dead")
    stranger = Queue(job("a", ["x"]), job("b", ["x"]))
    stranger.start()
    stranger.settle("a", OutcomeKind.UNKNOWN_TASK)
    for queue, kind in [
        (no_worker, ReasonKind.NO_WORKER),
        (paused, ReasonKind.PAUSED),
        (held, ReasonKind.DEAD_HOLD),
        (stranger, ReasonKind.UNKNOWN_TASK),
    ]:
        pending = queue.pending(path)
        assert (pending.unfinished, pending.moving) == (2, False)
        assert len(pending.reasons) == 2
        assert (pending.reasons[0].job_id, pending.reasons[0].kind) == ("a", kind)


def test_what_waits_for_a_stuck_job_through_others_is_stuck_too() -> None:
    queue = Queue(job("dead", ["x"], on_dead="hold", max_attempts=1), job("a", claims=(claim("x"), claim("y"))))
    queue.start()
    queue.fail("dead")
    queue.enqueue(job("b", ["y"], key="k"), job("c", ["y", "z"]))
    assert not queue.pending(("y",)).moving
    assert not queue.pending(("y", "z")).moving
    assert not queue.pending().moving
    queue.discard("dead")
    assert queue.pending(("y", "z")).moving


def test_below_a_path_another_path_s_work_does_not_count_as_moving() -> None:
    queue = Queue(job("stuck", ["x"]), job("runs", ["y"]))
    queue.pause("x")
    assert queue.start() == ["runs"]
    assert queue.pending(("y",)).moving
    assert not queue.pending(("x",)).moving
    assert queue.pending(("x",)).reasons == (queue.why("stuck"),)


def test_a_dependency_that_moves_makes_its_dependent_move() -> None:
    queue = Queue(job("a", ["y"], key="k"))
    queue.start()
    queue.enqueue(job("b", ["x"], key="k", on_conflict="after"))
    assert queue.pending(("x",)).moving
    assert queue.pending().moving


def test_what_is_left_over_is_moving() -> None:
    queue = Queue(job("a", ["x"]), *[job(f"j{number}", ["x"]) for number in range(3)], budget=1)
    queue.cancel_path("x")
    assert queue.stats().leftovers
    assert queue.pending().moving


def test_a_path_with_a_thousand_jobs_is_moving_if_anything_is() -> None:
    queue = Queue(job("other", ["y"]), checked=False)
    queue.pause("x")
    for batch in range(2):
        queue.enqueue(*[job(f"{batch}-{number}", ["x"]) for number in range(600)])
    queue.start(1)
    queue.start(1)
    pending = queue.pending(("x",))
    assert (pending.unfinished, pending.moving, pending.reasons) == (1000, True, ())
    queue.finish("other")
    pending = queue.pending(("x",))
    assert (pending.unfinished, pending.moving, len(pending.reasons)) == (1000, False, 100)
    assert len(queue.pending().reasons) == 100


# --- circles ---------------------------------------------------------------------------------------------------------


def circle(length: int) -> Queue:
    """Return a queue with a circle of jobs, which nothing closes any more, and one behind it."""
    ids = [f"c{number:04}" for number in range(length)]
    queue = Queue(job("x"), checked=False)
    queue.enqueue(*[job(each, ["circle"], after=[before]) for before, each in pairwise(["x", *ids])])
    queue.enqueue(job("behind", ["behind"], after=[ids[0]]))
    edges, first = queue.engine.table.edges, queue.engine.table.jobs[ids[0]]
    edges.close(first, "x")
    edges.add(first, ids[-1], AFTER)
    return queue


def test_a_job_on_a_circle_is_told_who_is_on_it_and_one_behind_it_is_not() -> None:
    queue = circle(3)
    assert queue.why("c0001") == reason(
        "c0001",
        DEFERRED,
        ReasonKind.DEPENDENCY,
        jobs=("c0000",),
        stuck=True,
        detail="they wait for one another, cancel one: c0001, c0000, c0002",
    )
    assert queue.why("behind") == reason("behind", DEFERRED, ReasonKind.DEPENDENCY, jobs=("c0000",))
    queue.cancel("c0001")
    queue.wait(0)
    assert not queue.why("c0000").stuck


def test_what_waits_for_a_circle_does_not_move_and_the_circle_is_named() -> None:
    queue = circle(3)
    assert queue.start() == ["x"]
    assert queue.pending().moving
    ahead = "for one another, cancel one: c0000, c0002, c0001"
    pending = queue.pending(("circle",))
    assert not pending.moving
    assert [(each.stuck, each.detail) for each in pending.reasons] == [(True, f"they wait {ahead}")] * 3
    pending = queue.pending(("behind",))
    assert not pending.moving
    assert [(each.stuck, each.detail) for each in pending.reasons] == [(True, f"it waits for jobs that wait {ahead}")]
    queue.finish("x")
    pending = queue.pending()
    assert (pending.unfinished, pending.moving, len(pending.reasons)) == (4, False, 4)
    assert all(ahead in str(each) for each in pending.reasons)
    queue.cancel("c0001")
    queue.wait(0)
    assert queue.pending(("behind",)).moving
    assert queue.run() == ["c0002", "c0000", "behind"]


def test_what_waits_for_a_circle_and_for_jobs_that_run_moves_as_long_as_these_run() -> None:
    queue = circle(2)
    queue.enqueue(job("both", ["both"], after=["behind", "x"]), job("more", ["both", "1"], after=["x"]))
    assert queue.start() == ["x"]
    assert queue.pending(("both",)).moving
    queue.finish("x")
    queue.run()
    assert not queue.pending(("both",)).moving


def test_a_circle_behind_thousands_of_edges_is_not_looked_for() -> None:
    queue = Queue(*[job(f"x{number}") for number in range(900)], checked=False)
    for layer in range(6):
        others = [f"x{number}" for number in range(899)]
        queue.enqueue(job(f"y{layer}", ["y"], after=[*others, f"y{layer - 1}" if layer else "x899"]))
    assert [each.detail for each in queue.pending(("y",)).reasons] == [None] * 6


def test_of_a_long_circle_ten_jobs_are_named_and_one_of_thousands_is_not_looked_for() -> None:
    detail = circle(12).why("c0011").detail
    assert detail is not None
    assert detail.endswith(" c0002 and 2 more")
    queue = Queue(*[job(f"x{number}") for number in range(900)], checked=False)
    for layer in range(6):
        others = [f"x{number}" for number in range(899)]
        queue.enqueue(job(f"y{layer}", after=[*others, f"y{layer - 1}" if layer else "x899"]))
    assert not queue.why("y5").stuck
