"""Safety of live workers: no lost leases, no conflicting jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.testing.model.places import clash

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from queuehint.operations import Operation
    from queuehint.testing.simulation.faults import FaultPlan
    from queuehint.testing.simulation.loop import Process
    from queuehint.testing.simulation.promises import Move
    from queuehint.worker.worker import Worker

STEADY_LEASE_MS, STEADY_DELAY_MS, STEADY_LOSS = 15_000, 5_000, 0.2
"""With these values leases do not expire, whatever the network loses or delays."""


def has_time(lease_ms: int, plan: FaultPlan) -> bool:
    """Return whether a live worker renews its leases in time."""
    return (
        lease_ms >= STEADY_LEASE_MS
        and plan.delay_ms <= STEADY_DELAY_MS
        and max(plan.lose_request, plan.lose_reply) <= STEADY_LOSS
    )


class Crew:
    """
    The workers of one world.

    Nothing is promised of a worker that stalled, nor of any worker after the store has lost steps or its clock was set.

    Args:
        has_time: live workers renew their leases in time, see the function `has_time`.
    """

    def __init__(self, *, has_time: bool) -> None:
        self._has_time = has_time
        self._workers: dict[Process, Worker] = {}
        self._stood_still: set[Process] = set()
        self._is_upset = False
        self._runs_at: dict[str, str | None] = {}

    def join(self, process: Process, worker: Worker) -> None:
        """Take in a worker that begins."""
        self._workers[process] = worker

    def excuse(self, process: Process) -> None:
        """Note that a worker stood still."""
        self._stood_still.add(process)

    def excuse_all(self) -> None:
        """Record that the store has lost steps, or that its clock was set."""
        self._is_upset = True

    def is_busy(self, process: Process) -> bool:
        """Return whether a worker has something to do, or is yet to begin."""
        worker = self._workers.get(process)
        return worker is None or bool(worker.running)

    def check(self, moves: Sequence[Move], operation: Operation[Any]) -> None:
        """Assert the promises after a step of the store."""
        if self._is_upset:
            return
        if self._has_time:
            self._check_kept(moves, operation)
        self._check_apart()

    def _check_kept(self, moves: Sequence[Move], operation: Operation[Any]) -> None:
        given_up = [outcome.job_id for outcome in getattr(operation, "settle", ()) if outcome.kind == "lost"]
        excused = {process.name for process in self._workers if process.is_dead or process in self._stood_still}
        for kind, job, _, _, _ in moves:
            if kind == "started":
                self._runs_at[job.id] = job.worker
            elif kind == "lost" and job.id not in given_up:
                worker = self._runs_at[job.id]
                assert worker in excused, f"{job.id} was taken from {worker}, which lives and can reach the store"

    def _check_apart(self) -> None:
        running = [
            (process.name, slot.grant)
            for process, worker in self._workers.items()
            if not process.is_dead and process not in self._stood_still
            for slot in worker._state.slots
        ]
        for at, (name, grant) in enumerate(running):
            for other, before in running[:at]:
                is_same = grant.spec.id == before.spec.id
                if not (is_same and name == other):
                    assert not is_same and not clash(grant.spec.claims, before.spec.claims), (
                        f"code of {before.spec.id} in {other} and of {grant.spec.id} in {name} runs at once, and they "
                        f"{'are the same job' if is_same else 'conflict'}"
                    )
