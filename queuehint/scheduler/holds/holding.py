"""The part of a scheduler by which plain code holds places and permits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.client.circles import Owner
from queuehint.client.holds import innermost_of
from queuehint.handlers.context import handler_of_caller, refuse_to_wait
from queuehint.scheduler.holds.entrance import Exclusive, ExclusiveSync, Permit, PermitSync
from queuehint.scheduler.holds.request import Asked
from queuehint.scheduler.hosting import Hosting
from queuehint.schema.checks import check_int, check_name, check_optional_duration
from queuehint.values.hint import COUNTED, Claim, Mode, normalise, parse_mode, parse_path
from queuehint.values.policy import COST_MAX
from queuehint.values.spec import Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from queuehint.handlers.context import JobContext


class Holding(Hosting):
    """Places and permits for code outside of jobs, and permits for code of handlers."""

    def exclusive(
        self,
        path: Sequence[str],
        *,
        mode: Mode = "exclusive",
        timeout: float | timedelta | None = None,
        user: str | None = None,
    ) -> Exclusive:
        """
        Hold a place from plain code: ``async with sched.exclusive(["doc1"]):``; excludes jobs and waits its turn.

        Args:
            path: the place.
            mode: ``"shared"`` lets other shared holders in.
            timeout: how long to wait for the place; None for ever.

        Raises:
            WouldDeadlockError: inside a handler, also on entering what was made outside.
            InvalidHintError, InvalidJobError: bad input, before anything is queued.
        """

        def refuse() -> None:
            refuse_to_wait("exclusive()")

        return Exclusive(self.backend, self._exclusive(path, mode, timeout, user, refuse))

    def exclusive_sync(
        self,
        path: Sequence[str],
        *,
        mode: Mode = "exclusive",
        timeout: float | timedelta | None = None,
        user: str | None = None,
    ) -> ExclusiveSync:
        """Like `exclusive`, a plain context manager. Also refused on the thread of this scheduler's workers' loop."""

        def refuse() -> None:
            refuse_to_wait("exclusive_sync()")
            self._refuse_to_block("exclusive_sync()")

        return ExclusiveSync(self.backend, self._exclusive(path, mode, timeout, user, refuse))

    def _exclusive(self, path: Any, mode: Any, timeout: Any, user: Any, refuse: Callable[[], None]) -> Asked:
        refuse()
        return Asked(
            claims=normalise([Claim(parse_path(path), parse_mode(mode))]),
            lease_ms=self.lease_ms,
            timeout_ms=check_optional_duration(timeout, parameter="timeout"),
            refuse=refuse,
            user=None if user is None else check_name(user, parameter="user"),
            owner=lambda: innermost_of(self.backend),
        )

    def permit(
        self,
        path: Sequence[str],
        *,
        cost: int = 1,
        timeout: float | timedelta | None = None,
        user: str | None = None,
    ) -> Permit:
        """
        Hold room of limits from code, inside of a handler or outside: ``async with sched.permit(["pdf"]):``.

        It counts as a running job at the path does, under each limit at and above it (`most` and `rate`), from when it
        is granted to the end of the block, and waits its turn among jobs and other permits. It takes no place: it
        conflicts with no job, and jobs at the path do not conflict with it. Without a limit there it waits for nothing.

        Args:
            path: where it counts.
            cost: how many slots, or starts of a rate, it takes: 1 to 1 000.
            timeout: how long to wait for it; None for ever.
            user: whose it is; in a handler by default that of the job.

        Raises:
            InvalidHintError, InvalidJobError: bad input, before anything is queued. What entering raises see `Permit`.
        """
        return Permit(self.backend, self._permit(path, cost, timeout, user, lambda: None, handler_of_caller()))

    def permit_sync(
        self,
        path: Sequence[str],
        *,
        cost: int = 1,
        timeout: float | timedelta | None = None,
        user: str | None = None,
    ) -> PermitSync:
        """Like `permit`, a plain context manager. Refused on the thread of this scheduler's workers' loop."""
        refuse = self._refuse_to_block_for_permit
        return PermitSync(self.backend, self._permit(path, cost, timeout, user, refuse, handler_of_caller()))

    def permit_of(self, job: JobContext, path: Any, cost: Any, timeout: Any) -> Permit:
        """Return the permit that a job requests, also in code outside of its handler's context."""
        return Permit(self.backend, self._permit(path, cost, timeout, None, lambda: None, job))

    def permit_of_sync(self, job: JobContext, path: Any, cost: Any, timeout: Any) -> PermitSync:
        """Like `permit_of`, for code without a loop."""
        refuse = self._refuse_to_block_for_permit
        return PermitSync(self.backend, self._permit(path, cost, timeout, None, refuse, job))

    def _refuse_to_block_for_permit(self) -> None:
        self._refuse_to_block("permit_sync()")

    def _permit(
        self, path: Any, cost: Any, timeout: Any, user: Any, refuse: Callable[[], None], job: JobContext | None
    ) -> Asked:
        refuse()
        if job is not None and not job.is_in_store_of(self):
            job = None
        name = None if user is None else check_name(user, parameter="user")
        if job is None:
            priority, owner = int(Priority.NORMAL), None
        else:
            priority, name = job.priority, name or job.user
            owner = Owner(job.id, job.token, lambda: job.canceled)
        return Asked(
            claims=(Claim(parse_path(path), COUNTED),),
            lease_ms=self.lease_ms,
            timeout_ms=check_optional_duration(timeout, parameter="timeout"),
            refuse=refuse,
            user=name,
            priority=priority,
            cost=check_int(cost, parameter="cost", least=1, most=COST_MAX),
            owner=lambda: innermost_of(self.backend) or owner,
            is_permit=True,
        )
