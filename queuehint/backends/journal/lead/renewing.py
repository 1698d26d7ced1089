"""The thread that keeps a lead: it renews it in time, whatever the writer is waiting for."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.lead.leadership import DeposedError
from queuehint.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.journal.lead.leadership import Lead

AGAIN_S: Final = 0.2
"""How soon it tries again when the store does not answer."""

logger = logging.getLogger("queuehint.journal")


class Renewing:
    """
    Renews a lead, from its making until `end`.

    Args:
        lead: one that has to be renewed.
        deposed: called on this thread if another process leads.
    """

    def __init__(self, lead: Lead, every_s: float, deposed: Callable[[], None]) -> None:
        self._lead = lead
        self._every_s = every_s
        self._deposed = deposed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="queuehint-lead")
        self._thread.start()

    def end(self) -> None:
        """Renew no more; does not wait for a renewal under way."""
        self._over.set()

    def _run(self) -> None:
        pause_s = self._every_s
        while not self._over.wait(pause_s):
            try:
                self._lead.renew()
                pause_s = self._every_s
            except DeposedError:
                if not self._over.is_set():
                    self._deposed()
                return
            except BackendError as error:
                logger.debug("the lead was not renewed: %s", error)
                pause_s = AGAIN_S
            except Exception:
                logger.exception("the lead was not renewed", extra={"event": "journal.renewal_failed"})
                pause_s = AGAIN_S
