"""
A process that stands by: it follows the journal that another one leads, and leads at once when that has ended.

It has the engine that the leader has, a moment later, in memory of its own; so it need not read the journal first.
Other processes leave the lead to one that stands by.

While another release writes the journal it follows nothing, for that release alone decides. It asks for the lead all
the same, and reads the snapshot that is left to it. Where the leader has died it lets a process lead that is ready;
else it reads the journal, and follows what was granted. Once there is a further snapshot, it looks who writes behind.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.lead.replica import Replica
from queuehint.backends.journal.recovery import OtherRulesError
from queuehint.backends.journal.store import BehindError
from queuehint.backends.journal.writing import NUDGE
from queuehint.errors import BackendError, BackendUnavailableError

if TYPE_CHECKING:
    import threading

    from queuehint.backends.journal.backend import JournalBackend
    from queuehint.backends.journal.store import Position, Reader

LOOK_EVERY_S: Final = 0.05
"""How often to look for further rows, and whether anybody leads."""
REFRESH_ROWS: Final = 10_000
"""After so many rows it is looked which of them a snapshot covers by now."""
SPARE_EVERY_S: Final = 0.5
"""How often to look whether another process stands by."""
ASK_EVERY_S: Final = 1.0
"""How often to ask a process that leads, and neither runs jobs nor leads for others, for the lead."""
YIELDS_S: Final = 0.5
"""For how long a process that has not followed the journal leaves the lead to one that has."""
AGAIN_S: Final = 0.5
"""How soon to try again when the store does not answer."""

logger = logging.getLogger("queuehint.journal")


class Standby:
    """
    Follows the journal of a backend, and has it lead once nobody does.

    Args:
        backend: in this process; it leaves the lead to no other one, also if that runs jobs.
        is_spare: it follows the journal only while no other process stands by.
    """

    def __init__(self, backend: JournalBackend, *, is_spare: bool = False) -> None:
        self._backend = backend
        self._is_spare = is_spare
        backend.keeps_lead = True
        self._reader: Reader | None = None
        self._replica: Replica | None = None
        self._is_said = False
        """It is logged that this process stands by."""
        self._waits_at: Position | None = None
        """The snapshot behind which another release writes the journal."""
        self._free_s: float | None = None
        """Since when nobody leads."""
        self._failure = ""
        """Why the last step has failed, as it is logged; it is logged once."""
        self._asks_s = 0.0
        """When to ask the process that leads to leave the lead to this one."""

    def run(self, stop: threading.Event) -> None:
        """Stand by or lead until *stop* is set, from one thread; the backend is closed by its caller."""
        try:
            while not stop.is_set():
                try:
                    pause_s = self._step()
                    self._failure = ""
                    stop.wait(pause_s)
                except BehindError:
                    self._replica = None
                except OtherRulesError as error:
                    self._begin_to_wait(error)
                except BackendError as error:
                    self._say_failed(str(error))
                    self._leave_reader(error)
                    stop.wait(AGAIN_S)
        finally:
            self._forget()

    def _say_failed(self, error: str) -> None:
        if error != self._failure:
            extra = {"event": "journal.standby_failed", "store": self._backend.name, "error": error}
            logger.warning("the journal cannot be followed: %s", error, extra=extra)
        self._failure = error

    def _step(self) -> float:
        """Do what is to be done now; return for how long there is nothing to do."""
        backend = self._backend
        if backend.is_leading:
            self._forget()
            return LOOK_EVERY_S
        if self._reader is None:
            self._reader = backend.store.read()
        if self._waits_at is not None:
            if self._reader.refresh() == self._waits_at:
                self._ask_later(is_free=self._reader.stand_by())
                return LOOK_EVERY_S
            self._waits_at = None
        if self._replica is None:
            found = self._reader.others()
            if not (found.leads or found.stands_by):
                # What the journal makes need not be read twice, and those that ask wait for one that leads.
                backend.call_sync(NUDGE)
                return 0.0
            if self._is_spare and found.stands_by:
                return SPARE_EVERY_S
            self._replica = Replica(self._reader, backend.engine_options)
            self._is_said = False
        if self._replica.follow(self._reader):
            if self._replica.rows >= REFRESH_ROWS:
                self._replica.forget(self._reader.refresh().number)
            return 0.0
        is_free = self._reader.stand_by()
        if not self._is_said:
            self._is_said = True
            extra = {"event": "journal.standby", "store": backend.name, "row": self._replica.position.number}
            logger.info("stands by", extra=extra)
        self._ask(is_free=is_free)
        return LOOK_EVERY_S

    def _ask(self, *, is_free: bool) -> None:
        """Lead if nobody does, or ask the process that leads for it now and then."""
        now_s = time.monotonic()
        if is_free or now_s >= self._asks_s:
            self._asks_s = now_s + ASK_EVERY_S
            self._backend.take_over(self._replica)
            if self._replica is not None and self._replica.is_used:
                self._replica = None

    def _ask_later(self, *, is_free: bool) -> None:
        """Like `_ask`; but lead only if nobody has for a moment, so that a process that has followed comes first."""
        now_s = time.monotonic()
        self._free_s = (self._free_s or now_s) if is_free else None
        if self._free_s is None or now_s >= self._free_s + YIELDS_S:
            self._ask(is_free=is_free)

    def _begin_to_wait(self, error: OtherRulesError) -> None:
        """Follow nothing more until there is a further snapshot."""
        assert self._reader is not None
        assert self._replica is not None
        self._waits_at, self._replica = self._replica.snapshot, None
        extra = {"event": "journal.standby_waits", "store": self._backend.name, "release": error.release}
        logger.info("stands by until release %s leaves a snapshot, or ends", error.release, extra=extra)

    def _leave_reader(self, error: BackendError) -> None:
        """Read by another connection next; what was followed goes on if a mark will say that it is the same journal."""
        replica, waits_at = self._replica, self._waits_at
        self._forget()
        self._waits_at = waits_at
        if isinstance(error, BackendUnavailableError) and replica is not None and not replica.is_used:
            self._replica = replica if replica.position.mark else None

    def _forget(self) -> None:
        reader, self._reader, self._replica, self._waits_at = self._reader, None, None, None
        if reader is not None:
            reader.close()
