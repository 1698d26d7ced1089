"""Invariants of an engine after every step, checked by visiting all its jobs."""

from __future__ import annotations

from graphlib import CycleError as GraphCycleError
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from queuehint import operations as op
from queuehint.core.jobs.settled import compare, standings_of
from queuehint.core.structures.edges import WAIT, edge_action
from queuehint.errors import CycleError, QueueHintError
from queuehint.testing.model.places import at_or_below, conflict, shape
from queuehint.values.record import OVER, JobState
from queuehint.values.signal import name_of, signal_spec
from queuehint.values.spec import SIGNAL_MARK

if TYPE_CHECKING:
    from queuehint.core.engine import Engine
    from queuehint.core.structures.job import Job

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def placed(engine: Engine) -> list[Job]:
    """The jobs that have a place, in order of place, as the engine reports it."""
    return sorted((job for job in engine.table.jobs.values() if job.seq), key=lambda job: job.seq)


def check_order(engine: Engine) -> None:
    """R1 and R2 as far as they hold in the middle of a cut: no granted or running job has an earlier conflict."""
    jobs = [(job, shape(job.spec.claims)) for job in placed(engine)]
    for index, (job, claims) in enumerate(jobs):
        if job.state is STARTED or job.ready is not None:
            for other, others in jobs[:index]:
                assert not conflict(claims, others), f"{job.id} may run before {other.id}"


def check_ready(engine: Engine) -> None:
    """
    R2 without leftovers: a job is ready only if no unfinished job placed before it conflicts with it.

    One of exclusive claims is ready exactly then, whatever modes the others have; one with a shared claim may wait
    behind a line.
    """
    check_settled(engine)
    jobs = placed(engine)
    shapes = [shape(job.spec.claims) for job in jobs]
    for index, job in enumerate(jobs):
        if job.state is not QUEUED or job.id in engine.table.backing_off:
            assert job.ready is None
            continue
        free = not any(conflict(shapes[index], others) for others in shapes[:index])
        if job.ready is not None:
            assert free, f"{job.id} is ready out of order"
        elif free:
            assert any(claim.mode == "shared" for claim in job.spec.claims), f"{job.id} should be ready"
            assert waits_behind_a_line(job, jobs[:index]), f"{job.id} waits for nothing"


def check_settled(engine: Engine) -> None:
    """R2 without leftovers: the gates equal those made by placing all claims from scratch, in order of place."""
    # The counts and the line of every gate follow from the positions of the walks.
    moved = [job.job_id for job in compare(standings_of(engine.table)).moved]
    assert not moved, f"{moved[0]} stands elsewhere than anew"


def waits_behind_a_line(job: Job, before: list[Job]) -> bool:
    """Return whether shared claims explain a wait: an earlier job is in line at a node on both paths."""
    return any(
        walk.node is not None and at_or_below(job.spec.claims, walk.node.path)
        for other in before
        for walk in other.walks
        if not walk.granted
    )


def check_edges(engine: Engine) -> None:
    """Without leftovers, each waiting job has an open edge to an unfinished or redrivable job."""
    jobs = engine.table.jobs
    for job in jobs.values():
        assert (job.state is DEFERRED) <= (bool(job.blocked) or job.is_start)
        assert not job.blocked or job.state in {DEFERRED, SCHEDULED}
        for job_id, edge in job.blocked.items():
            if job_id.startswith(SIGNAL_MARK) and job_id not in jobs:
                continue
            state = jobs[job_id].state
            assert state not in OVER or (state is FAILED and edge_action(edge, FAILED) == WAIT), (
                f"{job.id} waits for nothing"
            )


def check_cycles(engine: Engine) -> None:
    """At any time, even in the middle of a cut, no jobs wait for one another along open edges."""
    jobs = engine.table.jobs
    waits = {
        job.id: [other for other in job.blocked if other in jobs and not jobs[other].is_over]
        for job in jobs.values()
        if job.blocked and not job.is_over
    }
    try:
        TopologicalSorter(waits).prepare()
    except GraphCycleError as error:
        raise AssertionError(f"{' <- '.join(error.args[1])} wait for one another") from None


DAY_MS = 24 * 60 * 60_000


def undo_marks(engine: Engine) -> list[op.Operation[Any]]:
    """
    Return the operations that reset pauses, closed paths, weights and workers, and give signals.

    Of the limits those that have less than an unfinished job costs, which they would hold up for ever.
    """
    jobs = engine.table.jobs
    needed = {
        need for job in jobs.values() for need in (*job.blocked, *[need[0] for need in job.need_extras().all_needs()])
    }
    signals = sorted([job_id for job_id in needed if job_id.startswith(SIGNAL_MARK) and job_id not in jobs])
    most = max([job.spec.policy.cost for job in jobs.values() if not job.is_over], default=1)
    known = [state.limit for state in engine.table.limits.states(0)]
    return [
        *[op.SetLimit(limit.lifted) for limit in known if limit.costs_max < most],
        *[op.Enqueue((signal_spec(name_of(job_id) or "", b"1", DAY_MS),)) for job_id in signals],
        *[op.Resume(pause.filter) for pause in engine.table.pauses.all()],
        *[op.Close(path, reopen=True) for path in sorted(engine.table.closed)],
        *[op.Weigh(user, 1) for user in engine.table.ready.weights],
        *[op.Announce(name, "host", 1, 1, gone=True) for name in engine.state.workers],
    ]


def check_empty(engine: Engine) -> None:
    """R4: no state is left of ended jobs."""
    table = engine.table
    engine.check()
    root = table.trie.root
    assert table.trie.nodes == 0
    assert not root.children
    assert (root.held, root.active, root.waiting) == (0, 0, 0)
    assert root.line is root.line_end is root.owners is None
    assert len(table.catalog) == len(table.catalog.users) == len(table.past) == 0
    assert len(table.timers) == len(table.paths) == len(table.edges) == len(table.flows) == 0
    assert table.timers.next_ms() is table.limits.next_ms() is None
    assert table.edges.open == 0
    assert len(engine.state.shared) == 0
    remembered: tuple[Any, ...] = (
        table.jobs,
        table.dead,
        table.deferred,
        table.keys,
        table.leftovers,
        table.registry.running,
        table.ready.sizes(),
        table.pauses.all(),
        table.undelivered_cancellations,
        table.unknown_task_counts,
        table.backing_off,
        engine.table.closed,
        table.limits.limiters,
        table.limits.max_pending,
        table.limits.pending,
        table.paths.watched,
        table.ready.weights,
    )
    assert not any(remembered), remembered
    assert table.holding == 0
    assert not any(table.counts.values())


def check_refusal(error: QueueHintError, operation: op.Operation[Any]) -> None:
    """A reported cycle is valid: each job on it depends on the next, and the last on the first."""
    if isinstance(error, CycleError) and isinstance(operation, op.Enqueue):
        needs = {spec.id: {edge.id for edge in spec.depends_on} for spec in operation.jobs}
        if operation.parent is not None and operation.parent[0] in error.cycle:
            return
        assert len(set(error.cycle)) == len(error.cycle)
        assert all(
            after in needs[before]
            for before, after in zip(error.cycle, (*error.cycle[1:], error.cycle[0]), strict=True)
        )
