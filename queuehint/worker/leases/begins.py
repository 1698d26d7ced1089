"""
Announcements of the begin of jobs on their last life, many jobs in one request.

A job is on its last life when one more lost worker makes it FAILED. Its code begins once the store has recorded that:
until then a lease that expires is no loss, so that no job is FAILED whose code has not begun.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from queuehint.operations import LEASES_AT_ONCE, Renew, Verdict

if TYPE_CHECKING:
    from queuehint.values.outcome import Grant
    from queuehint.worker.state import WorkerState

logger = logging.getLogger("queuehint.worker")


class Begins:
    """Announces begins of one worker."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._untold: list[tuple[Grant, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def announce(self, grant: Grant) -> bool:
        """Announce the begin of a job to the store, then to the helper. Return False if its code must not begin."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[bool] = loop.create_future()
        self._untold.append((grant, told))
        if self._task is None:
            self._task = loop.create_task(self._announce())
        if not await told:
            return False
        if grant.losses:
            job_id = grant.spec.id
            logger.warning(
                "job %s (%s) has lost %d workers; the next loss makes it FAILED",
                job_id,
                grant.spec.task,
                grant.losses,
                extra={"event": "job.last_life", "job_id": job_id, "losses": grant.losses},
            )
        self._state.leases.begin(grant)
        return True

    async def _announce(self) -> None:
        """Announce all waiting begins to the store, until none is left."""
        while self._untold:
            batch, self._untold = self._untold[:LEASES_AT_ONCE], self._untold[LEASES_AT_ONCE:]
            leases = tuple([(grant.spec.id, grant.token) for grant, _ in batch])
            verdicts, failure = [Verdict.LOST] * len(batch), None
            try:
                reply = await self._state.call(Renew(leases, self._state.leases.lease_ms, begun=True))
                if reply is not None:
                    verdicts = reply.verdicts
            except Exception as error:  # noqa: BLE001 - raised where the jobs are run
                failure = error
            for (_, told), verdict in zip(batch, verdicts, strict=True):
                if told.done():
                    continue
                if failure is not None:
                    told.set_exception(failure)
                else:
                    told.set_result(verdict is Verdict.DONE)
        self._task = None
