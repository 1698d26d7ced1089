"""A backend beside the engine and its model: every operation goes to all three, and replies are compared."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from queuehint import operations as op
from queuehint.errors import QueueHintError
from queuehint.testing.model.jobs import LEASE
from queuehint.testing.state_machine.agreement import Refused, TokenMap, agree, tokens_in
from queuehint.testing.state_machine.lockstep import Lockstep
from queuehint.testing.state_machine.source import as_code
from queuehint.values.event import EventFilter, EventKind
from queuehint.values.hint import Claim
from queuehint.values.record_filter import DEAD_RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.base import Backend
    from queuehint.clock import FakeClock
    from queuehint.values.policy import Retention

__all__ = ["Ask", "Comparison", "Restart"]

Reply = TypeVar("Reply")


@attrs.frozen
class Ask(op.Operation[None]):
    """A step of a history: every query was sent, about one claim."""

    claim: Claim


@attrs.frozen
class Restart(op.Operation[None]):
    """A step of a history: the store was restarted."""


class Comparison(Lockstep):
    """
    A backend in step with the engine and the model.

    Operations are written with the engine's tokens, 1, 2, 3; the backend is given its own in their place.

    Args:
        backend: an empty store.
        clock: its time.
        retention: how long it keeps records.
        shell: ``"sync"`` or ``"async"``: by which of its calls it is asked.
        reopen: ends it and returns what is found in its place, None if it cannot.
        leases_end: all holders of leases are known to be dead then.
    """

    def __init__(
        self,
        backend: Backend,
        clock: FakeClock,
        *,
        retention: Retention,
        shell: str = "sync",
        reopen: Callable[[Backend, FakeClock], Backend | None] = lambda backend, clock: None,
        leases_end: bool = False,
    ) -> None:
        super().__init__(retention=retention, now_ms=clock.now_ms())
        self.backend = backend
        self.clock = clock
        self.begin_ms = clock.now_ms()
        self.tokens = TokenMap()
        self.seen: int | None = None
        self.names: dict[int, tuple[str, int]] = {}
        """Each token as one of how many a job had before."""
        self._ids: dict[str, None] = {}
        self.shell = shell
        self._reopen = reopen
        self._leases_end = leases_end
        self._runner = asyncio.Runner() if shell == "async" else None

    def close(self) -> None:
        """Close the backend."""
        if self._runner is None:
            self.backend.close_sync()
        else:
            self._runner.run(self.backend.close())
            self._runner.close()

    def do(self, operation: op.Operation[Any]) -> Any:
        """Apply an operation to all and compare. Return the reply, None after a refusal."""
        if isinstance(operation, Ask):
            self.history.append((self.now_ms, operation))
            return self.ask(operation.claim)
        if isinstance(operation, Restart):
            self.history.append((self.now_ms, operation))
            return self.restart()
        return super().do(operation)

    def restart(self) -> None:
        """Restart the store as by a crash, and continue with its kept state."""
        backend = self._reopen(self.backend, self.clock)
        if backend is None:
            return
        self.backend = backend
        if self._leases_end:
            self.engine.end_leases(self.now_ms)
            for job in self.model.jobs.values():
                if LEASE in job.alarms:
                    job.alarms[LEASE] = self.now_ms
        self.compare()

    def go_to(self, now_ms: int) -> None:
        """Move the time of all forward."""
        if now_ms > self.now_ms:
            self.clock.advance(ms=now_ms - self.now_ms)
            super().go_to(now_ms)

    def put(self, operation: op.Operation[Reply]) -> Reply:
        """Apply an operation to the engine and the backend, and compare the replies."""
        try:
            reply: Reply = super().put(operation)
        except QueueHintError as error:
            self._hear(operation, Refused.of(error))
            raise
        self._hear(operation, reply)
        for job_id, token in tokens_in(reply):
            self.names.setdefault(token, (job_id, sum(name == job_id for name, _ in self.names.values())))
        return reply

    def _hear(self, operation: op.Operation[Any], expected: Any) -> None:
        """Query the backend, and require the expected reply."""
        try:
            actual = self._ask_backend(self.tokens.to_theirs(operation))
        except QueueHintError as error:
            actual = Refused.of(error)
        except Exception:
            self._note(operation)
            raise
        self.tokens.learn(expected, actual)
        actual = self.tokens.to_ours(actual)
        if not agree(expected, actual):
            self._note(operation)
            raise AssertionError(
                f"{as_code(operation)}\nmust be answered:\n  {as_code(expected)}\n"
                f"but the backend said:\n  {as_code(actual)}"
            )

    def _ask_backend(self, operation: op.Operation[Reply]) -> Reply:
        if self._runner is None:
            return self.backend.call_sync(operation)
        return self._runner.run(self.backend.call(operation))

    def _note(self, operation: op.Operation[Any]) -> None:
        """Write a question down that the backend got wrong."""
        if not self.history or self.history[-1][1] is not operation:
            self.history.append((self.now_ms, operation))

    # --- more than a pair does ---------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare every record besides."""
        super().compare()
        self._ids.update(dict.fromkeys(self.model.jobs))
        ids = list(self._ids)
        for first in range(0, len(ids), op.IDS_MAX):
            self.put(op.Get(tuple(ids[first : first + op.IDS_MAX])))

    def ask(self, claim: Claim) -> None:
        """Send the queries of a pair, and those without a model."""
        super().ask(claim)
        for question in (
            op.CountPending(claim.path),
            op.CountPending(),
            op.Tree(claim.path, 4),
            op.ListLines(claim.path, 1, limit=2),
            op.ListLines(longer_than=1),
            op.ListWeights(),
            op.ListWorkers(),
            op.ListSchedules(),
            op.DueSchedules(),
            op.Peek(),
        ):
            self.put(question)
        filters = (EventFilter(path=claim.path), EventFilter(user="u", kinds=(EventKind.STARTED, EventKind.PROGRESSED)))
        self.put(op.Follow(self.seen, filters=filters))
        self.seen = self.put(op.Follow(self.seen)).after

    def wind_down(self) -> None:
        """End all jobs, let all records expire, and require no leftovers, nor news of any."""
        for schedule in self.put(op.ListSchedules()).schedules:
            self.do(op.ChangeSchedule(schedule.name, "drop"))
        super().wind_down()
        self.compare()
        assert not self.put(op.List()).records
        assert not self.put(op.List(DEAD_RECORDS)).records
        assert not self.put(op.ListLimits()).limits
        assert not self.put(op.ListPauses()).pauses
        assert not any(self.put(op.CountJobs()).states.values())
        assert not self.put(op.CountRecords()).total
        assert not self.put(op.CountPending(include_scheduled=True)).unfinished
        assert not self.put(op.CountEdges()).open_edges
        assert not self.put(op.Tree((), 4)).children
        assert not self.put(op.ListLines((), 4)).places
        assert self.put(op.CanDequeue(()))
        assert self.put(op.Tick()).next_ms is None
