"""
The state shared by the parts of one worker: jobs, leases, messages to the store, wake-ups and stops.

No part knows another. What one has for the others it leaves here, and the main task of the worker, or the part itself,
finds it. Three functions cannot be data, because they have to be called at once: `run`, `look_beside` and `look`.

Changed on the loop of the worker only, except where it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from queuehint.clock import now_s
from queuehint.errors import BackendError
from queuehint.handlers.context import JobContext
from queuehint.operations import Exchange, Verdict
from queuehint.values.outcome import OutcomeKind
from queuehint.worker.calls.steps import StepOutbox
from queuehint.worker.leases.held import Leases
from queuehint.worker.leases.pulse import Pulse
from queuehint.worker.outbox import Outbox
from queuehint.worker.outcomes import OutcomeBuilder, Settlements, log_exchange, outcome_of
from queuehint.worker.slots import Slot, Slots, Stopping, Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from contextlib import AbstractContextManager

    from queuehint.backends.base import Backend
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.partial_result import PartialResult
    from queuehint.operations import Exchanged
    from queuehint.values.outcome import Grant, Outcome, Progress, Step
    from queuehint.worker.calls.threads import Threads
    from queuehint.worker.failures import Failures
    from queuehint.worker.leases.held import Helper, Lease

logger = logging.getLogger("queuehint.worker")


class WorkerState:
    """
    The state of one worker.

    Args:
        backend: where to claim and settle.
        codec: how arguments and results travel.
        name: that of the worker.
        pools, users, steal: what it serves, and whom it helps.
        lease_ms: how long each lease lasts.
        scheduler: what contexts hand out.
        concurrency: how many slots there are.
        failures: describes and logs failed attempts; by default nothing is redacted.
        now_s: the clock by which leases are held to last.
        grace_s: how long jobs may go on once the worker stops.
        overdue_after_s: how long code that was asked to stop may go on before it is reported.
        release_s: how long jobs have to end when their worker gives up another one.
        give_up: ends the process, given the ids of the jobs whose code has not ended; None if that may not be done.
        helper: renews the leases from another process.
    """

    def __init__(
        self,
        backend: Backend,
        codec: Codec,
        name: str,
        *,
        pools: tuple[str, ...] = ("default",),
        users: tuple[str | None, ...] | None = None,
        steal: tuple[str | None, ...] | Literal["*"] = (),
        lease_ms: int = 30_000,
        scheduler: Any = None,
        concurrency: int = 1,
        failures: Failures | None = None,
        now_s: Callable[[], float] = now_s,
        grace_s: float = 0.0,
        overdue_after_s: float = 60.0,
        release_s: float = 5.0,
        give_up: Callable[[list[str]], None] | None = None,
        helper: Helper | None = None,
    ) -> None:
        self.backend = backend
        self.codec = codec
        self.name = name
        self.empty = Exchange(name, (), pools, 0, lease_ms, users, steal, announces=True)
        """Settles nothing and claims nothing; all others are like it."""
        self.scheduler = scheduler
        self.state: Any = None
        """The value that the lifespan has yielded; None without one."""
        self.concurrency = concurrency
        self.now_s = now_s
        self.keeps_leases = backend.keeps_leases
        """The store is in this process, and renews the leases itself."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.wakeup = Wakeup()
        self.slots = Slots()
        self.leases = Leases(lease_ms, now_s, helper)
        self.pulse = Pulse(now_s, is_looked_at=not self.keeps_leases)
        self.stopping = Stopping(
            self.name,
            self.slots,
            self.wakeup,
            grace_s=grace_s,
            overdue_after_s=overdue_after_s,
            release_s=release_s,
            give_up=give_up,
        )
        self.outcomes = OutcomeBuilder(codec, failures)
        self.settlements = Settlements()
        self.outbox = Outbox(backend, codec, self.wakeup)
        self.step_outbox = StepOutbox(backend)

        self.unanswered: deque[tuple[Exchange, float]] = deque()
        """Exchanges of the main task, under way or to be sent again, and when each was sent first."""
        self.beside: Exchange | None = None
        """The second exchange, while it is under way."""
        self.behind: Exchange | None = None
        """The claim behind a wait, while it is not answered."""
        self.is_plenty = False
        """The newest exchange that claimed jobs was granted all that it asked for."""
        self.failures_in_row = 0
        self.answered_s = 0.0
        """When the newest exchange that the store has answered was answered; 0 before."""
        self.started = asyncio.Event()
        """Set once the backend has answered for the first time."""
        self.epoch: int | None = None
        """That of the tokens of the newest grants."""
        self.announce_due_s = 0.0
        """When to announce the worker again, by the clock of its exchanges."""
        self.schedule_is_due: bool | None = None
        """Whether a schedule is due, by what the store has answered; None until it answers again."""
        self.has_lost_data = False
        """The store has lost data: what the code declares is to be stored again."""

        self.run: Callable[[Slot], Coroutine[Any, Any, Outcome]]
        """Runs an attempt, in a task of its own."""
        self.threads: Threads
        """Run plain functions."""
        self.look_beside: Callable[[], None] | None = None
        """Considers a second exchange, because outcomes or slots are there; None if there is never one."""
        self.look: Callable[[], None] = lambda: None
        """Looks whether code blocks the loop, from a thread, about every second; it may wait for the store."""

    # --- exchanges -----------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """The number of slots neither taken nor claimed by an exchange under way, at least 0."""
        free = self.concurrency - self.slots.taken
        if self.unanswered:
            for operation, _ in self.unanswered:
                free -= operation.limit
        if self.beside is not None:
            free -= self.beside.limit
        if self.behind is not None:
            free -= self.behind.limit
        return max(0, free)

    def ask(self, settle: tuple[Outcome, ...], most: int) -> Exchange:
        """Return an exchange that settles outcomes and claims a job for each free slot, up to a limit."""
        to, limit = self.empty, min(self.free, most)
        return Exchange(
            to.worker, settle, to.pools, limit, to.lease_ms, to.users, to.steal, announces=True, release=to.release
        )

    def take_in(self, operation: Exchange, reply: Exchanged, sent_s: float) -> None:
        """Process the reply to an exchange sent then."""
        settled, grants, stopping = operation.settle, reply.grants, self.stopping
        self.answered_s = self.now_s()
        leases = self.leases.exchange(settled, grants, sent_s) if settled or grants else ()
        if self.failures_in_row:
            extra = {"event": "worker.reconnected", "worker": operation.worker}
            logger.info("reconnected to the store", extra=extra)
            self.failures_in_row = 0
        self.started.set()
        self.schedule_is_due = reply.due or bool(self.schedule_is_due)
        outbox = self.outbox
        if outbox.is_used and outbox:
            if outbox.see_answer():
                self.wakeup.set()
            ends = zip(settled, reply.verdicts, strict=True)
            outbox.forget({(outcome.job_id, outcome.token): verdict for outcome, verdict in ends})
        if settled:
            self.settlements.settled()
        if operation.limit:
            self.is_plenty = len(grants) + len(reply.unreadable) == operation.limit
        if Verdict.LOST in reply.verdicts or logger.isEnabledFor(logging.DEBUG):
            log_exchange(operation.worker, settled, reply)
        if grants:
            if (epoch := grants[0].token >> 32) != self.epoch:
                if self.epoch is not None:
                    self.announce_due_s = 0.0
                self.epoch = epoch
            if stopping.is_begun or (not self.keeps_leases and self.leases.is_short(sent_s)):
                # Claimed before the worker was told to stop, or long ago by an exchange whose reply did not come.
                self._settle_soon([outcome_of(grant, OutcomeKind.RELEASED) for grant in grants])
            else:
                self._begin(grants, leases)
        if reply.unreadable:
            for job in reply.unreadable:
                self.leases.hold(job.job_id, job.token, sent_s)
            self._settle_soon([self.outcomes.of_unreadable(job) for job in reply.unreadable])
        for job_id in reply.canceled:
            stopping.find_and_ask(job_id, None, "canceled")
        if reply.more:
            self.wakeup.set()

    def _settle_soon(self, outcomes: Iterable[Outcome]) -> None:
        """Leave outcomes to the main task, which the first waiting outcome wakes."""
        self.wakeup.set_for_notes()
        self.settlements.add(outcomes)

    async def call(self, operation: Any) -> Any:
        """Carry out one operation. Return None if the backend is unreachable now."""
        try:
            return await self.backend.call(operation)
        except BackendError as error:
            self.survive(error)
            return None

    def survive(self, error: BackendError) -> None:
        """
        Log that the backend is unreachable now.

        Raises:
            BackendError: it cannot be reached while the worker stops, and nothing runs any more; or it refuses this
                worker from the start.
        """
        if self.stopping.is_begun and not self.slots:
            raise error
        if error.is_lasting and not self.started.is_set():
            raise error
        logger.warning("backend unavailable: %s", error, extra={"event": "worker.backend", "error": str(error)})

    # --- jobs ----------------------------------------------------------------------------------------------------

    def _begin(self, grants: Iterable[Grant], leases: Iterable[Lease]) -> None:
        """Begin the jobs of grants."""
        assert self.loop is not None
        loop, run, slots = self.loop, self.run, self.slots
        task_class, has_factory = asyncio.Task, loop.get_task_factory() is not None
        for grant, lease in zip(grants, leases, strict=True):
            slot = Slot(grant, JobContext(grant, self), lease)
            slots.enter(slot)
            if slot.previous is not None:
                self.stopping.hold_back(slot, slot.previous)
            # Without a factory of the application's, `create_task` does nothing more than make a task.
            slot.task = loop.create_task(run(slot)) if has_factory else task_class(run(slot), loop=loop)

    def end(self, slot: Slot, outcome: Outcome) -> None:
        """Leave the outcome of an attempt to the main task."""
        if not slot.is_given_back:
            if not self.settlements.waiting:
                # The main task never waits while there are some. By its turn a second exchange may have sent this.
                self.wakeup.set_for_notes()
            self.settlements.append(outcome)
        else:
            self.leases.exchange((outcome,), (), 0.0)
            self.wakeup.set()
        self.slots.leave(slot)
        if self.look_beside is not None:
            self.look_beside()

    # --- from any thread -----------------------------------------------------------------------------------------

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Send progress soon, and before the job is settled."""
        self.outbox.report(job_id, token, progress)

    def log(self, job_id: str, token: int, line: str) -> None:
        """Send a log line soon, and before the job is settled."""
        self.outbox.log(job_id, token, line)

    def store(self, partial_result: PartialResult) -> None:
        """Send a partial result soon, and before the job is settled."""
        self.outbox.store(partial_result)

    async def store_step(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """Store the result of a step."""
        return await self.step_outbox.store(job_id, token, step)

    def store_step_sync(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """Store the result of a step, from a thread of a handler."""
        return self.step_outbox.store_sync(job_id, token, step)

    async def run_plain(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a plain function in a thread. Return when the function has ended."""
        return await self.threads.run(function, args, kwargs)

    def around_step(self, context: Any, name: str, began_ns: int | None = None) -> AbstractContextManager[Any]:
        """
        Return the context manager around a step.

        Args:
            began_ns: when it began, in ns since the epoch, if that is over.
        """
        hooks = getattr(self.scheduler, "step_hooks", ())
        if not hooks:
            return contextlib.nullcontext()
        around = contextlib.ExitStack()
        for hook in hooks:
            around.enter_context(hook(context, name, began_ns))
        return around

    def wake_soon(self) -> None:
        """Request an exchange, because work is left in the store."""
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed over this worker
                self.loop.call_soon_threadsafe(self.wakeup.set)
