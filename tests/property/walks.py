"""Random walks of operations: in lockstep with the model, cut by budgets, and with overtaking jobs."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs

from queuehint import operations as op
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.structures.job import Job
from queuehint.errors import QueueHintError
from queuehint.testing.invariants import check_edges, check_empty, check_order, check_ready, check_refusal, undo_marks
from queuehint.testing.model.places import at_or_below
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.lockstep import RETENTION, Lockstep
from queuehint.testing.state_machine.styles import POOLS, SHARED_MS, Style
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record import OVER, JobState
from queuehint.values.spec import JobSpec

STARTED = JobState.STARTED


def walk_in_step(random: Random, style: Style, steps: int) -> Lockstep:
    """Let an engine with its whole budget and the model go side by side."""
    pair = Lockstep()
    generator = OperationGenerator(pair.engine, random, style)
    for step in range(steps):
        pair.now_ms = generator.pass_time(pair.now_ms)
        pair.do(generator.move())
        if step % 10 == 0:
            pair.ask(generator.claim()[0])
    pair.wind_down()
    return pair


def walk_cut(random: Random, style: Style, steps: int, budget: int) -> Lockstep:
    """Cut the engine wherever its budget ends, tick until nothing is left, and find it where the model is."""
    pair = Lockstep(budget)
    generator = OperationGenerator(pair.engine, random, style)
    for _ in range(steps):
        # Due timers fire in a tick of their own: by the rules a cut operation may come before them.
        pair.now_ms = generator.pass_time(pair.now_ms)
        pair.do(op.Tick())
        move = generator.move()
        if isinstance(move, (op.CancelPath, op.CancelFlow)) and any(
            actor.is_waiting_parent for actor in pair.model.jobs.values()
        ):
            # One whose children are canceled before the sweep comes to it has ended by itself.
            continue
        pair.do(move)
    pair.wind_down()
    return pair


def walk_overtaking(random: Random, style: Style, steps: int, budget: int) -> Engine:
    """
    Go on while work is left over, as other clients do, so that newcomers overtake what has still to take its place.

    The order is that of the places the engine reports. What was asked for is done once nothing is left.
    """
    engine = Engine(EngineOptions(budget=budget, retention=RETENTION))
    generator = OperationGenerator(engine, random, style)
    now_ms = 0
    to_cancel: list[tuple[Job, JobSpec, int]] = []
    for _ in range(steps):
        now_ms = generator.pass_time(now_ms)
        move = generator.move() if random.random() < 0.8 else op.Tick()
        if isinstance(move, op.CancelPath):
            there = [job for job in engine.table.jobs.values() if at_or_below(job.spec.claims, move.path)]
            to_cancel += [(job, job.spec, job.since) for job in there if job.state not in OVER and not job.is_hidden]
            move = attrs.evolve(move, reason=f"before {engine.table.last_number + 1}")
        _apply_freely(engine, move, now_ms)
        for job in engine.table.jobs.values():
            cause = job.cause or job.cancel or ""
            assert not cause.startswith("before ") or job.since < int(cause[7:]), (
                f"{job.id} came after what canceled it"
            )
        engine.check()
        check_order(engine)
        if random.random() < 0.1:
            _drain(engine, now_ms)
            _check_canceled(to_cancel)
            to_cancel.clear()
        if engine.next_ms is None or engine.next_ms > now_ms:
            check_ready(engine)
            check_edges(engine)
    _end_all(engine, now_ms)
    return engine


def _apply_freely(engine: Engine, operation: op.Operation[Any], now_ms: int) -> None:
    """Apply an operation; a grant is legal by the engine's own places, a stale token settles nothing."""
    jobs = engine.table.jobs
    live = {(job.id, job.token) for job in engine.table.registry.running.values()}
    try:
        reply = engine.apply(operation, now_ms)
    except QueueHintError as error:
        check_refusal(error, operation)
        return
    if isinstance(operation, op.Exchange):
        for outcome, verdict in zip(operation.settle, reply.verdicts, strict=True):
            grant = (outcome.job_id, outcome.token)
            assert (verdict == "done") == (grant in live)
            live.discard(grant)
        for grant in reply.grants:
            assert jobs[grant.spec.id].state is STARTED
            assert jobs[grant.spec.id].cancel is None, f"{grant.spec.id} begins although it is to be canceled"
            assert not any(at_or_below(grant.spec.claims, path) for path in engine.table.pauses.by_path)


def _drain(engine: Engine, now_ms: int) -> None:
    for _ in range(10_000):
        if not engine.apply(op.Tick(), now_ms).more:
            return
        engine.check()
        check_order(engine)
    raise AssertionError("leftover work never ends")


def _check_canceled(to_cancel: list[tuple[Job, JobSpec, int]]) -> None:
    """Check that jobs covered by a cancellation are over or asked to stop, unless replaced or redriven meanwhile."""
    for job, spec, since in to_cancel:
        if job.state not in OVER and job.spec is spec and job.since == since:
            assert job.cancel is not None, f"{job.id} escaped"


def _end_all(engine: Engine, now_ms: int) -> None:
    for operation in undo_marks(engine):
        engine.apply(operation, now_ms)
    while engine.table.jobs:
        _drain(engine, now_ms)
        running = [
            Outcome(job_id=job.id, token=job.token or 0, kind=OutcomeKind.FINISHED)
            for job in engine.table.registry.running.values()
        ]
        reply = engine.apply(op.Exchange("last", settle=tuple(running), pools=(*POOLS, "default"), limit=100), now_ms)
        if engine.table.jobs and not running and not reply.grants and not reply.more:
            assert engine.next_ms is not None, "jobs wait for nothing"
            now_ms = max(now_ms, engine.next_ms)
    while engine.state.shared:
        now_ms += SHARED_MS
        engine.apply(op.Tick(), now_ms)
    for worker in sorted(engine.table.undelivered_cancellations):
        engine.apply(op.Exchange(worker), now_ms)
    for state in engine.apply(op.ListLimits(), now_ms).limits:
        engine.apply(op.SetLimit(state.limit.lifted), now_ms)
    engine.apply(op.Tick(), now_ms)
    check_empty(engine)
