"""
Results of steps on their way to the store. Each is sent at once and alone, because its step waits.

What a store that is out of reach has taken all the same is told when it is asked again: the first result of a name is
kept.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from queuehint.errors import (
    BackendUnavailableError,
    InvalidJobError,
    LeaseLostError,
    OutcomeUnknownError,
    shown,
)
from queuehint.operations import Note, Post, Verdict
from queuehint.values.outcome import STEPS_BYTES_MAX, STEPS_MAX

if TYPE_CHECKING:
    from queuehint.backends.base import Backend
    from queuehint.operations import Posted
    from queuehint.values.outcome import Step

TRIES = 5
"""How often the result of a step is sent to a store that is out of reach, until its attempt fails."""
TRY_PAUSE_S = 1.0


class StepOutbox:
    """Stores results of steps."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def store(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """Store a result. Raises as `StepHost.store_step`."""
        post = Post((Note(job_id, token, step=step),))
        left = TRIES
        while True:
            left -= 1
            try:
                return _stored(post.notes[0], await self._backend.call(post))
            except (BackendUnavailableError, OutcomeUnknownError):
                if not left:
                    raise
            await asyncio.sleep(TRY_PAUSE_S)

    def store_sync(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """Like `store`, from a thread of a handler."""
        post = Post((Note(job_id, token, step=step),))
        left = TRIES
        while True:
            left -= 1
            try:
                return _stored(post.notes[0], self._backend.call_sync(post))
            except (BackendUnavailableError, OutcomeUnknownError):
                if not left:
                    raise
            time.sleep(TRY_PAUSE_S)


def _stored(note: Note, reply: Posted) -> tuple[int, bytes | None]:
    """
    Return the time at which the step of a note was stored, and an earlier stored result if there is one.

    Raises:
        LeaseLostError: the token is not that of the newest grant.
        InvalidJobError: the job has no room for it.
    """
    assert note.step is not None and note.token is not None
    if reply.verdicts[0] is Verdict.LOST:
        raise LeaseLostError(note.job_id, note.token)
    if reply.verdicts[0] is Verdict.REFUSED:
        limits = f"limit {STEPS_MAX} steps of {STEPS_BYTES_MAX} bytes"
        raise InvalidJobError(f"steps: job {shown(note.job_id)} has no room for step {shown(note.step.name)}, {limits}")
    return reply.steps[0]
