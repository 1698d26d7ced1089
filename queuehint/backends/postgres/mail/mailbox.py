"""The box of a process, by a session of its own: letters out and in."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from queuehint.backends.postgres.mail.letters import (
    LOOK,
    boxes_of,
    inbox_channel,
    is_polled,
    new_box,
    read_note,
    read_row,
    written,
)
from queuehint.backends.postgres.mail.marks import Marks
from queuehint.backends.postgres.mail.statements import FETCHED_MAX, mail_statements
from queuehint.backends.postgres.sessions.session import Session, integer
from queuehint.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from queuehint.backends.postgres.address import Address
    from queuehint.backends.postgres.mail.letters import Piece

POLL_MIN_S: Final = 0.003
POLL_MAX_S: Final = 0.1
"""How often a box is looked into behind a pooler: while there is traffic, and long after."""
_POLL_SHARE: Final = 0.1

Letter = tuple[str, "list[Piece]"]
"""The box of its sender, and what is in it."""


class Mailbox:
    """
    A session and its box.

    Args:
        box: one that is known to others; else there is a new one.
        look: called when rows may have come into the inbox of the namespace; None if that is nothing to this process.

    Attributes:
        name: that of the box.
        socket: the file descriptor that can be read once there may be letters.

    Raises:
        BackendError: the server cannot be used.
    """

    def __init__(
        self, address: Address, namespace: str, box: str | None = None, look: Callable[[], None] | None = None
    ) -> None:
        self._address = address
        self._namespace = namespace
        self._session = Session(address)
        self._busy_s = self._polled_s = 0.0
        self._notes: list[tuple[bytes, bytes]] = []
        self._look = look
        self._inbox = inbox_channel(address.schema, namespace).encode()
        self._marks = Marks()
        self._statements = mail_statements(address)
        with self._session.begun():
            is_pooled = self._session.is_pooled
            self.name = box or new_box(address.schema, namespace, is_polled=is_pooled)
            self._is_polled = is_polled(self.name)
            if is_pooled and not self._is_polled:
                raise BackendUnavailableError(f"{address.shown} is a pooler by now")
            if not self._is_polled:
                channels = [self.name] if look is None else [self.name, self._inbox.decode()]
                self._session.script("; ".join([f'LISTEN "{channel}"' for channel in channels]))
        self.socket = self._session.socket

    def close(self) -> None:
        """Close the session; idempotent."""
        self._session.close()

    # --- letters -------------------------------------------------------------------------------------------------

    def send(self, letters: Mapping[str, list[Piece]]) -> None:
        """
        Send letters, by the boxes they are for, by one statement.

        Raises:
            LostError, RefusedError: as of a session, here and below.
        """
        channels: list[str] = []
        payloads: list[str] = []
        boxes: list[str] = []
        rows: list[bytes] = []
        for box, pieces in letters.items():
            notes, row = written(self.name, pieces, is_polled=is_polled(box))
            channels += [box] * len(notes)
            payloads += notes
            if row is not None:
                boxes.append(box)
                rows.append(row)
        if rows:
            self._session.run(self._statements.send, channels, payloads, boxes, rows)
        else:
            self._session.run(self._statements.notify, channels, payloads)
        self._busy_s = time.monotonic()

    def pause_s(self, now_s: float) -> float | None:
        """Return for how long nothing has to be received; None if the socket says when there is something."""
        # Some may have come beside the answer to a statement: then the socket says nothing of them any more. Where
        # nobody listens too: the end of the connection is noticed so.
        self._notes += self._session.notes()
        if self._notes:
            return 0.0
        return self._poll_in_s(now_s) if self._is_polled else None

    def _poll_in_s(self, now_s: float) -> float:
        every_s = min(POLL_MAX_S, max(POLL_MIN_S, _POLL_SHARE * (now_s - self._busy_s)))
        return self._polled_s + every_s - now_s

    def receive(self) -> list[Letter]:
        """Return the letters that have come; what is no letter is passed over."""
        letters: list[Letter] = []
        notes, self._notes = self._notes + self._session.notes(), []
        if self._look is not None and any(channel == self._inbox for channel, _ in notes):
            self._look()
        for channel, note in notes:
            if channel == self._inbox:
                continue  # anybody may send there
            if note == LOOK:
                self._fetch(letters)
            else:
                with suppress(ValueError):
                    letters.append(read_note(note))
        now_s = time.monotonic()
        if self._is_polled and self._poll_in_s(now_s) <= 0:
            self._polled_s = now_s
            self._fetch(letters)
        if letters:
            self._busy_s = now_s
        return letters

    def _fetch(self, letters: list[Letter]) -> None:
        began_s, numbers, count = time.monotonic(), [], FETCHED_MAX
        above = self._marks.above(began_s)
        while count == FETCHED_MAX:
            found = self._session.run(self._statements.fetch, self.name, above)
            for number, row in sorted([(integer(row_id), data or b"") for row_id, data in found]):
                numbers.append(number)
                with suppress(ValueError):
                    letters.append(read_row(row))
            count = len(found)
        self._marks.note(above, numbers, began_s, time.monotonic())

    # --- of leaders ----------------------------------------------------------------------------------------------

    def leads(self, term: str) -> bool:
        """Return whether the leader of a term leads, and no other process may."""
        ((leads,),) = self._session.run(self._statements.leads, self._namespace, term)
        return bool(integer(leads))

    def clear(self) -> None:
        """Remove the mail of all leaders before this one."""
        self._session.run(self._statements.clear, boxes_of(self._address.schema, self._namespace), self.name)

    def prune(self) -> None:
        """Remove mail that nobody fetches any more."""
        self._session.run(self._statements.prune)
