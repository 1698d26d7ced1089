"""The door to a leader through the database, alone or where its socket cannot be reached."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.guests.doors import GoneError, Reached
from queuehint.errors import BackendDeniedError

if TYPE_CHECKING:
    from queuehint.backends.journal.guests.doors import Door
    from queuehint.backends.postgres.mail.carrier import Carrier

UNREACHED_S: Final = 0.5
"""A socket on this machine that cannot be reached for so long is in another container: its leader has not just died."""


class MailDoor:
    """
    A way through the database.

    Args:
        box: of the leader.
    """

    def __init__(self, carrier: Carrier, box: str, term: str) -> None:
        self._carrier = carrier
        self._box = box
        self._term = term

    def is_straight(self) -> bool:
        """Return true: it knows no other way."""
        return True

    def connect(self, timeout_s: float) -> Reached:
        """Return a stream to the process that leads, once it has accepted it."""
        return Reached(self._carrier.open(self._box, self._term, timeout_s), way="mail")


class Unreached:
    """
    Since when a socket of a leader cannot be reached.

    >>> unreached = Unreached()
    >>> unreached.is_for_long("1.a"), unreached.is_for_long("2.b")
    (False, False)
    """

    def __init__(self) -> None:
        self._term = ""
        self._since_s = 0.0

    def is_for_long(self, term: str) -> bool:
        """Take note that it could not be reached now; return whether that is so for long."""
        now_s = time.monotonic()
        if self._term != term:
            self._term, self._since_s = term, now_s
        return now_s >= self._since_s + UNREACHED_S


class EitherDoor:
    """
    A socket on this machine, or another way where that cannot be used.

    Args:
        unreached: kept from door to door.
    """

    def __init__(self, near: Door, far: Door, unreached: Unreached, term: str) -> None:
        self._near = near
        self._far = far
        self._unreached = unreached
        self._term = term

    def is_straight(self) -> bool:
        """Return whether a better way than that of a detour can be used by now."""
        return self._far.is_straight()

    def connect(self, timeout_s: float) -> Reached:
        """Return a stream to the process that leads."""
        try:
            return self._near.connect(timeout_s)
        except BackendDeniedError:
            pass
        except GoneError as gone:
            if gone.is_silent or not self._unreached.is_for_long(self._term):
                raise
        return self._far.connect(timeout_s)
