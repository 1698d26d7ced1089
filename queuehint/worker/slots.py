"""
The slots of one worker: whose code runs in them, by the grant it runs for.

A lease may end while its code goes on: the worker could not renew, and another had the job reaped. The job may then
be granted to the same worker again. Its slot is **former** from then on, and the new one waits for it, so that no two
runs of one job go on in one process. Code is therefore known by its job and its token, never by its job alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from queuehint.handlers.context import JobContext
    from queuehint.values.records import Grant


class Slot:
    """One grant's code: why it was asked to stop, if it was, and whether its task may be canceled now."""

    __slots__ = (
        "_right",
        "context",
        "former",
        "grant",
        "is_given_back",
        "is_overdue",
        "stoppable",
        "task",
        "timer",
        "why_stop",
    )

    def __init__(self, grant: Grant, context: JobContext) -> None:
        self.grant = grant
        self.context = context
        self.former: Slot | None = None
        """Runs the same job for a lease that has ended; nothing of this one begins before it is over."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.why_stop: str | None = None
        self.stoppable = False
        self.is_overdue = False
        self.is_given_back = False
        """The store has it back already: there is nothing to settle."""
        self._right = [True]

    def begin(self) -> bool:
        """Take the right to run the code, or to give it back unbegun: True once, whichever threads ask."""
        try:
            return self._right.pop()
        except IndexError:
            return False


class Slots:
    """What runs in one worker. Changed on its loop only, looked at from any thread."""

    def __init__(self) -> None:
        self._newest: dict[str, Slot] = {}
        self._former: list[Slot] = []

    def __len__(self) -> int:
        return len(self._newest) + len(self._former)

    def __iter__(self) -> Iterator[Slot]:
        return iter([*self._former, *list(self._newest.values())])

    def enter(self, slot: Slot) -> None:
        """Take one in; if its job runs already, that slot is former from now on."""
        job_id = slot.grant.spec.id
        former = slot.former = self._newest.get(job_id)
        if former is not None:
            self._former.append(former)
        self._newest[job_id] = slot

    def leave(self, slot: Slot) -> None:
        """Let one go that has ended."""
        slot.former = None
        if self._newest.get(slot.grant.spec.id) is slot:
            del self._newest[slot.grant.spec.id]
        else:
            self._former.remove(slot)

    def find(self, job_id: str, token: int | None = None) -> Slot | None:
        """Return the newest slot of a job, if it has that token; a former one has been asked to stop already."""
        slot = self._newest.get(job_id)
        return slot if slot is not None and token in (None, slot.grant.token) else None
