"""Outages of a store, seen by its clients: one warning each."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from queuehint.backends.redis.address import Address

logger = logging.getLogger("queuehint.redis")

TOLD_EVERY_S: Final = 30.0
"""How often to warn of a store that remains unavailable."""


class Outages:
    """Warns after two failures of a store in a row: once per outage, repeated after `TOLD_EVERY_S`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._told_s: float | None = None
        self.asked_s: float | None = None
        """Since when the newest request is without an answer; of a client that asks one thing at a time."""

    def note(self, failure: Exception, patience_s: float) -> None:
        """Record a second failure in a row of an operation that is tried for so long."""
        now_s = time.monotonic()
        if self._told_s is None or now_s - self._told_s > TOLD_EVERY_S:
            self._told_s = now_s
            logger.warning(
                "%s does not answer (%s); it is tried for %s s",
                self._address.shown,
                failure.__cause__ or failure,
                f"{patience_s:g}",
                extra={"event": "redis.unreachable"},
            )

    def end(self) -> None:
        """Record an answer."""
        self._told_s = None
