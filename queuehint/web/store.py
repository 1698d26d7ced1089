"""Bounded access to a store: a few concurrent requests, each with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from queuehint.backends.steps import Steps, run_steps
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError

if TYPE_CHECKING:
    from queuehint.scheduler.scheduler import Scheduler

T = TypeVar("T")

IN_FLIGHT: Final = 4
"""How many requests ask a store at once."""
PATIENCE_S: Final = 2.0
"""How long a request waits for its turn and its answer."""


class BoundedStore:
    """
    The store of a scheduler with the bounds of a board.

    Args:
        scheduler: whose store.
        patience_s: how long a request waits for its turn and its answer.
    """

    def __init__(self, scheduler: Scheduler, patience_s: float = PATIENCE_S) -> None:
        self.scheduler = scheduler
        self._patience_s = patience_s
        self._turns = asyncio.Semaphore(IN_FLIGHT)

    async def run(self, asked: Steps[T] | Coroutine[Any, Any, T], *, is_order: bool = False) -> T:
        """
        Run steps on the store, or await a call of the scheduler, and return the answer.

        Raises:
            BackendUnavailableError: no answer came in time.
            OutcomeUnknownError: the same of an order, which may have been carried out.
        """
        is_begun = False
        try:
            async with asyncio.timeout(self._patience_s), self._turns:
                is_begun = True
                return await (run_steps(self.scheduler.backend, asked) if isinstance(asked, Generator) else asked)
        except TimeoutError:
            slow = f"the store is slow: no answer within {self._patience_s:g} s"
            if is_order and is_begun:
                raise OutcomeUnknownError(f"{slow}; the order may be carried out or not") from None
            raise BackendUnavailableError(slow) from None
        finally:
            # It may never have had its turn.
            asked.close()
