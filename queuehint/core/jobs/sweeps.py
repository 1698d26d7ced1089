"""
Steps of leftovers: each works until its budget is used, and returns whether work is left.

One job queued costs one unit, one canceled or a parked one that is offered again two, and each gate visited or left one
more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queuehint.core.jobs import staging
from queuehint.core.structures.leftovers import (
    CancelFlowSweep,
    CancelSweep,
    CommitSweep,
    DependentsSweep,
    DiscardSweep,
    DropSweep,
    Leftover,
    ReleaseSweep,
    ResolveSweep,
    ReviveSweep,
    UnparkSweep,
)
from queuehint.operations import TALLIES, TALLY_MS
from queuehint.values.record import JobState
from queuehint.values.spec import WAIT_MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from queuehint.core.jobs.lifecycle import Lifecycle
    from queuehint.core.structures.indexes import PathIndex
    from queuehint.core.structures.job import Job, Needs


def step(lifecycle: Lifecycle, item: Leftover, budget: int) -> tuple[int, bool]:
    """Carry out a leftover within *budget* units. Return the units used and whether work is left."""
    return _STEPS[type(item)](lifecycle, item, budget)


# --- cancellations ---------------------------------------------------------------------------------------------------


def _cancel_paths(lifecycle: Lifecycle, item: CancelSweep, budget: int) -> tuple[int, bool]:
    """
    Cancel the jobs indexed at or below the paths at the time of the sweep.

    One unit for each job, one more if it is canceled, and one for leaving a key behind that has only newer jobs left.
    """
    paths = lifecycle.table.paths
    used = 0
    while used < budget:
        if not _numbers_left(paths, item) and not _next_key(paths, item):
            return used + _end_cancellation(lifecycle, item), False
        used += 1
        job = _next_on_key(paths, item)
        if job is not None and _is_covered(item, job):
            # One with two claims below the path is met twice while it runs.
            item.reached += job.state is not JobState.STARTED or job.cancel is None
            used += 1 + lifecycle.cancel(job, item.cause)
    return used, True


def _numbers_left(paths: PathIndex, item: CancelSweep) -> bool:
    """Return whether the present key has unvisited jobs."""
    if item.key is None:
        return False
    jobs = paths.at(item.key)
    if item.old_added != paths.old_added:
        item.old_added = paths.old_added
        item.numbers = sorted((n for n in jobs if n > item.looked_at), reverse=True)
    while item.numbers and item.numbers[-1] not in jobs:
        item.numbers.pop()
    if not item.numbers and jobs and (newest := next(reversed(jobs))) > item.looked_at:
        item.numbers.append(newest)
    return bool(item.numbers)


def _next_key(paths: PathIndex, item: CancelSweep) -> bool:
    while item.paths:
        item.key = paths.next_key(item.paths[0], item.key)
        if item.key is not None:
            item.looked_at, item.old_added = 0, -1
            return _numbers_left(paths, item)
        item.paths = item.paths[1:]
    return False


def _next_on_key(paths: PathIndex, item: CancelSweep) -> Job | None:
    """Return the next job on the present key. Skip all newer jobs at once and return None."""
    item.looked_at = item.numbers.pop()
    if item.looked_at >= item.before:
        item.looked_at = 1 << 62
        item.numbers.clear()
        return None
    return paths.at(item.key or "")[item.looked_at]


def _is_covered(item: CancelSweep, job: Job) -> bool:
    if job.since >= item.before or job.is_hidden:
        return False
    if item.behind is None:
        return True
    return job.state is JobState.QUEUED and item.behind_seq < job.seq <= item.last_seq


def _end_cancellation(lifecycle: Lifecycle, item: CancelSweep) -> int:
    """Store a requested tally and free the place of the dead job. Return the gates left."""
    item.is_over = True
    if item.tallies is not None:
        place = (TALLIES, str(item.before))
        item.tallies.push(place, b"%d" % item.reached, lifecycle.now_ms + TALLY_MS, lifecycle.now_ms)
    behind = item.behind
    if behind is None or behind.state is not JobState.FAILED or behind.seq != item.behind_seq:
        return 0
    return lifecycle.table.free(behind)


def _discard(lifecycle: Lifecycle, item: DiscardSweep, budget: int) -> tuple[int, bool]:
    used = 0
    while used < budget:
        entry = next(lifecycle.table.holds.entries(item.path, item.at), None)
        if entry is None:
            return used, False
        key, number, job = entry
        item.at = key, number
        used += 1
        # One without a timer is redriven by this very operation.
        if job.since < item.before and job.timer is not None:
            used += lifecycle.discard(job)
    return used, True


def _cancel_flow(lifecycle: Lifecycle, item: CancelFlowSweep, budget: int) -> tuple[int, bool]:
    used = 0
    jobs = lifecycle.table.flows.of(item.flow)
    while True:
        number = next(jobs.irange(maximum=item.at, inclusive=(True, False), reverse=True), None)
        if number is None:
            return used, False
        if used >= budget:
            return used, True
        item.at = number
        used += 1
        job = jobs[number]
        if not job.is_over and not job.is_hidden and job.since < item.before:
            used += 1 + lifecycle.cancel(job, item.cause)


# --- offers ----------------------------------------------------------------------------------------------------------


def _unpark(lifecycle: Lifecycle, item: UnparkSweep, budget: int) -> tuple[int, bool]:
    used = 0
    while item.parked:
        heap = item.parked[0]
        while heap:
            if used >= budget:
                return used, True
            job = heap.pop()
            job.parked = None
            lifecycle.table.ready.add(job)
            used += 2
        item.parked.popleft()
    return used, False


# --- dependents ------------------------------------------------------------------------------------------------------


def _resolve(lifecycle: Lifecycle, item: ResolveSweep, budget: int) -> tuple[int, bool]:
    used, again = _go_through(
        lifecycle, item, budget, lambda job: lifecycle.resolve(job, item.dependency, item.since_ms)
    )
    if not again and item.goes_on():
        lifecycle.table.edges.end_resolving(item.dependency)
    return used, again


def _commit(lifecycle: Lifecycle, item: CommitSweep, budget: int) -> tuple[int, bool]:
    used, again = _go_through(lifecycle, item, budget, lambda job: lifecycle.begin(job, item))
    if not again:
        lifecycle.table.committing -= 1
        staging.remove(lifecycle.table, item.dependency)
    return used, again


def _drop(lifecycle: Lifecycle, item: DropSweep, budget: int) -> tuple[int, bool]:
    used, again = _go_through(lifecycle, item, budget, lifecycle.drop)
    if not again:
        staging.remove(lifecycle.table, item.dependency)
    return used, again


def _go_through(
    lifecycle: Lifecycle, item: DependentsSweep, budget: int, act: Callable[[Job], int]
) -> tuple[int, bool]:
    """Call *act* for each dependent until the budget is used. A job costs one unit and the return value of *act*."""
    used, edges = 0, lifecycle.table.edges
    if item.left is None:
        item.left = edges.begin_sweep(item)
    while item.goes_on() and item.left:
        number, job = item.left[-1]
        # A job that was canceled and revived meanwhile has other edges.
        is_due = not job.is_over and edges.is_since(job, item.dependency.id, number)
        if is_due and used >= budget:
            item.at = number - 1
            return used, True
        item.left.pop()
        if is_due:
            item.at = number
            used += 1 + act(job)
            if item.bound[0] == number:
                # Its other dependencies come first.
                item.left.append((number, job))
                item.at = number - 1
    edges.end_sweep(item)
    return used, False


def _release(lifecycle: Lifecycle, item: ReleaseSweep, _budget: int) -> tuple[int, bool]:
    edges, extras = lifecycle.table.edges, item.job.need_extras()
    if extras.more_needs and extras.holds and item.released <= len(extras.more_needs):
        item.released += 1
        needs = extras.portions[item.released - 1]
        return edges.release_portion(item.job, needs) + _end_waits(lifecycle, needs), True
    needs = (*(extras.needs if extras.holds else extras.all_needs()), *extras.blocked.items())
    return edges.release(item.job) + _end_waits(lifecycle, needs), False


def _end_waits(lifecycle: Lifecycle, needs: Needs) -> int:
    """Cancel the unawaited waits for signals among *needs*. Return the units used."""
    used = 0
    for wait_id, _ in needs:
        wait = lifecycle.table.jobs.get(wait_id) if wait_id.startswith(WAIT_MARK) else None
        if wait is not None and not wait.is_hidden:
            used += lifecycle.end_unawaited(wait)
    return used


def _revive(lifecycle: Lifecycle, item: ReviveSweep, budget: int) -> tuple[int, bool]:
    """
    Revive each job only after its own end is resolved for all its dependents, and while no commit is under way.

    A revived job is bound to its dependencies without a search: no unfinished job waits for it, so no cycle closes. A
    committed job that is not released yet is not bound, but will be: to a job that is revived until then, too.
    """
    used = 0
    while (job := _next_canceled(lifecycle, item)) is not None:
        if used >= budget:
            return used, True
        if lifecycle.table.committing or lifecycle.table.edges.is_resolving(job):
            # The sweeps of commits and of its end have their turns first.
            return used + 1, True
        extras = job.need_extras()
        if extras.more_needs and extras.holds:
            # So has the one that releases its dependencies, portion by portion.
            return used + 1, True
        item.at = job.number
        used += 1 + lifecycle.revive(job)
    return used, False


def _next_canceled(lifecycle: Lifecycle, item: ReviveSweep) -> Job | None:
    # A job that has failed again meanwhile would cancel them again.
    if item.job.is_over and item.job.state is not JobState.FINISHED:
        return None
    return lifecycle.table.edges.first_canceled_by(item.job.id, item.at)


_STEPS: Final[Mapping[type[Any], Callable[[Lifecycle, Any, int], tuple[int, bool]]]] = {
    CancelSweep: _cancel_paths,
    CancelFlowSweep: _cancel_flow,
    DiscardSweep: _discard,
    UnparkSweep: _unpark,
    ResolveSweep: _resolve,
    CommitSweep: _commit,
    DropSweep: _drop,
    ReleaseSweep: _release,
    ReviveSweep: _revive,
}
