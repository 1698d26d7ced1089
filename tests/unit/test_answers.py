"""Queries: reasons for waiting, jobs by place, pending work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from queuehint.core.asking.why import DRAINED_LOOKED_AT_MAX
from queuehint.core.state import EngineOptions
from queuehint.core.structures.edges import AFTER
from queuehint.operations import CountPending
from queuehint.testing.driver import Queue, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import Reason, ReasonKind

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def reason(id: str, state: JobState, kind: ReasonKind, **fields: object) -> Reason:
    return Reason(job_id=id, state=state, kind=kind, **fields)  # type: ignore[arg-type]


# --- why -------------------------------------------------------------------------------------------------------------


def test_why_of_a_line_about_to_move_names_nobody() -> None:
    queue = Queue(job("a", ["x"]), *[job(f"j{number}", ["x"]) for number in range(2)], checked=False, budget=1)
    queue.start()
    queue.engine.state.options = EngineOptions(budget=0)
    queue.finish("a")
    assert queue.why("j0") == reason("j0", QUEUED, ReasonKind.PLACE, path_key="x")


# --- what is left ----------------------------------------------------------------------------------------------------


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


def test_drained_path_is_judged_from_few_jobs() -> None:
    queue = Queue(*[job(f"later{n:02}", ["doc"], delay_ms=1000) for n in range(DRAINED_LOOKED_AT_MAX + 1)])
    assert not queue.engine.is_drained(CountPending(("doc",))), "it cannot be told"
    queue.cancel("later00")
    assert queue.engine.is_drained(CountPending(("doc",)))


@pytest.mark.parametrize("path", [None, ("x",)])
def test_pending_behind_pause_dead_hold_or_missing_worker_is_stuck(path: tuple[str, ...] | None) -> None:
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


def test_pending_with_leftovers_is_moving() -> None:
    queue = Queue(job("a", ["x"]), *[job(f"j{number}", ["x"]) for number in range(3)], budget=1)
    queue.cancel_path("x")
    assert queue.stats().leftovers
    assert queue.pending().moving


# --- cycles ---------------------------------------------------------------------------------------------------------


def cycle(length: int) -> Queue:
    """Return a queue with a cycle of jobs, which nothing closes any more, and one behind it."""
    ids = [f"c{number:04}" for number in range(length)]
    queue = Queue(job("x"), checked=False)
    queue.enqueue(*[job(each, ["cycle"], after=[before]) for before, each in pairwise(["x", *ids])])
    queue.enqueue(job("behind", ["behind"], after=[ids[0]]))
    edges, first = queue.engine.table.edges, queue.engine.table.jobs[ids[0]]
    edges.close(first, "x")
    edges.add(first, ids[-1], AFTER)
    return queue


def test_why_names_a_cycle_only_for_its_members() -> None:
    queue = cycle(3)
    assert queue.why("c0001") == reason(
        "c0001",
        DEFERRED,
        ReasonKind.DEPENDENCY,
        jobs=("c0000",),
        stuck=True,
        detail="they wait for one another, cancel one: c0001, c0000, c0002",
        open_dependencies=1,
        dependencies=1,
    )
    behind = reason("behind", DEFERRED, ReasonKind.DEPENDENCY, jobs=("c0000",), open_dependencies=1, dependencies=1)
    assert queue.why("behind") == behind
    chain = queue.chain("behind")
    assert [reason.job_id for reason in chain] == ["behind", "c0000", "c0002", "c0001"]
    assert chain[-1].way_out == "cancel one of those that wait for one another: queuehint cancel c0000"
    queue.cancel("c0001")
    queue.wait(0)
    assert not queue.why("c0000").stuck


def test_pending_behind_a_cycle_is_stalled_and_names_the_cycle() -> None:
    queue = cycle(3)
    assert queue.start() == ["x"]
    assert queue.pending().moving
    ahead = "for one another, cancel one: c0000, c0002, c0001"
    pending = queue.pending(("cycle",))
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


def test_pending_behind_a_cycle_moves_while_other_dependencies_run() -> None:
    queue = cycle(2)
    queue.enqueue(job("both", ["both"], after=["behind", "x"]), job("more", ["both", "1"], after=["x"]))
    assert queue.start() == ["x"]
    assert queue.pending(("both",)).moving
    queue.finish("x")
    queue.run()
    assert not queue.pending(("both",)).moving


def test_a_cycle_behind_thousands_of_edges_is_not_looked_for() -> None:
    queue = Queue(*[job(f"x{number}") for number in range(900)], checked=False)
    for layer in range(6):
        others = [f"x{number}" for number in range(899)]
        queue.enqueue(job(f"y{layer}", ["y"], after=[*others, f"y{layer - 1}" if layer else "x899"]))
    assert [each.detail for each in queue.pending(("y",)).reasons] == [None] * 6


def test_long_cycle_names_ten_jobs_and_a_huge_one_none() -> None:
    detail = cycle(12).why("c0011").detail
    assert detail is not None
    assert detail.endswith(" c0002 and 2 more")
    queue = Queue(*[job(f"x{number}") for number in range(900)], checked=False)
    for layer in range(6):
        others = [f"x{number}" for number in range(899)]
        queue.enqueue(job(f"y{layer}", after=[*others, f"y{layer - 1}" if layer else "x899"]))
    assert not queue.why("y5").stuck
