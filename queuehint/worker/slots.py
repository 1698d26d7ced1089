"""
The slots of one worker, one for each running grant, the wake-ups of its main task, and its steps in stopping.

A lease may expire while its code runs: the worker could not renew it, and the job was reaped. The job may then be
granted to the same worker again. Its slot is the **previous** one from then on, and the new slot waits for it, so that
two attempts of one job never run in one process at once. Code is therefore identified by job and token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queuehint.handlers.context import JobContext
    from queuehint.values.outcome import Grant, Outcome
    from queuehint.worker.leases.held import Lease

logger = logging.getLogger("queuehint.worker")


class Wakeup(asyncio.Event):
    """Wakes the main task: for an exchange, or for notes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True
        """An exchange is wanted; unset when a turn begins."""

    def set(self) -> None:
        """Request an exchange."""
        self.is_full = True
        super().set()

    def set_for_notes(self) -> None:
        """Request a turn that sends notes, and any outcomes by then, without an exchange of its own."""
        super().set()


class Slot:
    """The code of one grant: the reason of a stop request, if any, and whether its task may be canceled now."""

    __slots__ = (
        "_right",
        "context",
        "grant",
        "is_given_back",
        "is_overdue",
        "lease",
        "previous",
        "stoppable",
        "task",
        "timer",
        "why_stop",
    )

    def __init__(self, grant: Grant, context: JobContext, lease: Lease) -> None:
        self.grant = grant
        self.context = context
        self.lease = lease
        """Says whether the job is on its last life, and its code may not begin before the store knows."""
        self.previous: Slot | None = None
        """Runs the same job for a lease that has ended; nothing of this one begins before it is over."""
        self.task: asyncio.Task[Outcome] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.why_stop: str | None = None
        self.stoppable = False
        self.is_overdue = False
        self.is_given_back = False
        """The store has it back already: there is nothing to settle."""
        self._right = [True]

    def begin(self) -> bool:
        """Take the right to run the code, or to give the job back unbegun. True once, whichever threads call."""
        try:
            return self._right.pop()
        except IndexError:
            return False


class Slots:
    """The running attempts of one worker. Changed on its loop, read from any thread."""

    def __init__(self) -> None:
        self._newest: dict[str, Slot] = {}
        self._previous: list[Slot] = []
        self.taken = 0
        """How many there are: asked several times a turn of the loop."""

    def __len__(self) -> int:
        return self.taken

    def __iter__(self) -> Iterator[Slot]:
        return iter([*self._previous, *list(self._newest.values())])

    def enter(self, slot: Slot) -> None:
        """Add a slot. A running slot of the same job becomes its previous slot."""
        job_id = slot.grant.spec.id
        previous = slot.previous = self._newest.get(job_id)
        if previous is not None:
            self._previous.append(previous)
        self._newest[job_id] = slot
        self.taken += 1

    def leave(self, slot: Slot) -> None:
        """Remove the slot of an ended attempt."""
        slot.previous = None
        job_id = slot.grant.spec.id
        if self._newest.get(job_id) is slot:
            del self._newest[job_id]
        else:
            self._previous.remove(slot)
        self.taken -= 1

    def find(self, job_id: str, token: int | None = None) -> Slot | None:
        """Return the newest slot of a job, if its token fits. A previous slot has a stop request already."""
        slot = self._newest.get(job_id)
        return slot if slot is not None and token in (None, slot.grant.token) else None

    def note_given_back(self, job_id: str, token: int) -> None:
        """Record that the helper has given back a job whose code has not begun. The code must not begin any more."""
        slot = self.find(job_id, token)
        if slot is not None:
            slot.is_given_back = True


class Stopping:
    """
    The stop of one worker: it claims no more jobs, requests running code to stop, and reports code that goes on.

    Args:
        worker: its name.
        wakeup: wakes its main task.
        grace_s: how long jobs may go on once the worker stops.
        overdue_after_s: how long code that was asked to stop may go on before it is reported.
        release_s: how long jobs have to end when their worker gives up another one.
        give_up: ends the process, given the ids of the jobs whose code has not ended; None if that may not be done.
    """

    def __init__(
        self,
        worker: str,
        slots: Slots,
        wakeup: Wakeup,
        *,
        grace_s: float,
        overdue_after_s: float,
        release_s: float,
        give_up: Callable[[list[str]], None] | None,
    ) -> None:
        self._worker = worker
        self._slots = slots
        self._wakeup = wakeup
        self._grace_s = grace_s
        self._overdue_after_s = overdue_after_s
        self._release_s = release_s
        self._give_up = give_up
        self._loop: asyncio.AbstractEventLoop | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._grace_begun_s = 0.0
        self._giving_up: asyncio.TimerHandle | None = None
        self._is_over = False
        self.is_begun = False
        self.gave_up = False
        """The worker has stopped by itself, because of code that was asked to stop and did not."""
        self.has_given_up = False
        """The process was told to end."""

    def open(self) -> None:
        """Send stop requests on the running loop."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Cancel the timers, as the worker has ended."""
        self._is_over = True
        for timer in (self._grace, self._giving_up):
            if timer is not None:
                timer.cancel()

    def begin(self, *, at_once: bool = False) -> None:
        """Stop the worker in any state. *at_once*: without a grace time."""
        if not self.is_begun:
            logger.info("worker is stopping", extra={"event": "worker.stopping", "worker": self._worker})
        self.is_begun = True
        if at_once:
            self._grace_s = 0
        self._begin_grace()
        self._wakeup.set()

    def _begin_grace(self) -> None:
        """Give running jobs back at the end of the grace time, or at once after a second stop."""
        loop = self._loop_of_timers
        if loop is None:
            return
        if self._grace is not None:
            if self._grace_begun_s == self._grace_s:
                return
            self._grace.cancel()
        self._grace_begun_s = self._grace_s
        self._grace = loop.call_later(self._grace_s, self.ask_all, "shutdown")

    def abandon(self) -> None:
        """Stop at once, and end the process after a while if code goes on."""
        self.begin(at_once=True)
        loop = self._loop_of_timers
        if self._giving_up is None and self._give_up is not None and loop is not None:
            self._giving_up = loop.call_later(self._release_s, self.end_process)

    @property
    def _loop_of_timers(self) -> asyncio.AbstractEventLoop | None:
        """The loop of the worker. None before it runs, and once the worker and the code of its jobs have ended."""
        return None if self._is_over and not self._slots else self._loop

    @property
    def is_giving_up(self) -> bool:
        """Return whether the process is to end despite running code."""
        return self._giving_up is not None

    def end_process(self) -> None:
        """End the process despite running code."""
        assert self._give_up is not None
        job_ids = list(dict.fromkeys(slot.grant.spec.id for slot in self._slots))
        logger.error(
            "the process exits although code of some jobs still runs: jobs %s",
            ", ".join(job_ids),
            extra={"event": "worker.gives_up", "worker": self._worker, "job_ids": job_ids},
        )
        self.has_given_up = True
        self._wakeup.set()
        self._give_up(job_ids)

    def hold_back(self, slot: Slot, previous: Slot) -> None:
        """Delay a re-granted job until its previous attempt, on an expired lease, has ended."""
        spec = slot.grant.spec
        logger.warning(
            "job %s (%s) was granted again while its code still runs on an expired lease; it waits for that",
            spec.id,
            spec.task,
            extra={"event": "job.waits_for_its_code", "job_id": spec.id, "task": spec.task},
        )
        self.ask(previous, "lease lost")

    def ask(self, slot: Slot, why: str) -> None:
        """Request a job's code to stop, and report code that goes on for long."""
        if slot.why_stop is not None:
            return
        slot.why_stop = why
        slot.context.ask_to_stop()
        if slot.stoppable and slot.task is not None:
            slot.task.cancel()
        assert self._loop is not None
        if slot.timer is not None:
            slot.timer.cancel()
        slot.timer = self._loop.call_later(self._overdue_after_s, self._report_overdue, slot)

    def find_and_ask(self, job_id: str, token: int | None, why: str) -> None:
        """Request the code of a grant to stop, or without a token of the newest grant, unless the code has ended."""
        slot = self._slots.find(job_id, token)
        if slot is not None:
            self.ask(slot, why)

    def tell(self, job_id: str, token: int, why: str) -> None:
        """Request a job's code to stop, from any thread. A plain function notices even while the loop is busy."""
        slot = self._slots.find(job_id, token)
        if slot is None or self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed over this worker
            # The reason first: code that sees `canceled` and raises must not be taken for failed.
            self._loop.call_soon_threadsafe(self.find_and_ask, job_id, token, why)
        slot.context.ask_to_stop()

    def _report_overdue(self, slot: Slot) -> None:
        spec = slot.grant.spec
        logger.error(
            "job %s (%s) was asked to stop (%s) and still runs; it keeps its place until its code ends",
            spec.id,
            spec.task,
            slot.why_stop,
            extra={"event": "job.overdue", "job_id": spec.id, "task": spec.task, "why": slot.why_stop},
        )
        slot.is_overdue = True
        if self._give_up is not None:
            self.gave_up = self.gave_up or not self.is_begun
            self.abandon()

    def ask_all(self, why: str) -> None:
        """Request all code to stop."""
        for slot in self._slots:
            self.ask(slot, why)


async def end_of(slot: Slot) -> None:
    """Wait until a slot's task has ended, ignoring cancellation, as a thread cannot be stopped."""
    assert slot.task is not None
    while not slot.task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((slot.task,))
