"""The part of a job's context that takes permits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from queuehint.handlers.steps.job_steps import check_loop

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import timedelta


class HeldPermit(Protocol):
    """A permit while held: a `Hold`."""

    id: str
    """The id of the job that stands for it."""
    token: int
    """Its fencing token."""

    @property
    def lost(self) -> bool:
        """True once another job may have the room."""

    async def wait_lost(self) -> None:
        """Return once `lost` is true."""

    def wait_lost_sync(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until `lost` is true, on another thread than the block's. Return False after *timeout*."""


class JobPermits:
    """The part of `JobContext` for permits."""

    _host: Any
    _grant: Any

    @property
    def priority(self) -> int:
        """The priority of the job and its permits."""
        priority: int = self._grant.spec.priority
        return priority

    def permit(
        self, path: Sequence[str], *, cost: int = 1, timeout: float | timedelta | None = None
    ) -> AbstractAsyncContextManager[HeldPermit]:
        """
        Hold room of limits: ``async with ctx.permit(["pdf"]):``; see `Scheduler.permit`.

        It has the priority and the user of the job. While the code waits, the job keeps its place, its slot of the
        worker and what it counts under limits.

        Args:
            path: where it counts.
            cost: how many slots, or starts of a rate, it takes: 1 to 1 000.
            timeout: how long to wait for it; None for as long as the job may run.

        Raises:
            WouldDeadlockError: on entering, if only this job could make room, or such as wait for it.
            LeaseLostError: on entering, if this attempt no longer holds its job.
            HandlerError: called where no event loop runs, as in a plain handler, which writes `permit_sync`.
        """
        check_loop("permit")
        held: AbstractAsyncContextManager[HeldPermit] = self._host.scheduler.permit_of(self, path, cost, timeout)
        return held

    def permit_sync(
        self, path: Sequence[str], *, cost: int = 1, timeout: float | timedelta | None = None
    ) -> AbstractContextManager[HeldPermit]:
        """Like `permit`, for plain functions."""
        held: AbstractContextManager[HeldPermit] = self._host.scheduler.permit_of_sync(self, path, cost, timeout)
        return held

    def is_in_store_of(self, scheduler: Any) -> bool:
        """Return whether this job and a scheduler have the same store."""
        own = self._host.scheduler
        return own is scheduler or (own is not None and own.backend.identity == scheduler.backend.identity)
