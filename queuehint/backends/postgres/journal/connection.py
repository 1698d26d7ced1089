"""The connection of a journal: sessions, one after the other, each as soon as the one before has ended."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from queuehint.backends.postgres.journal.statements import Statements, statements_of
from queuehint.backends.postgres.sessions.failures import LostError, RefusedError
from queuehint.backends.postgres.sessions.session import Session
from queuehint.errors import BackendError, BackendUnavailableError

if TYPE_CHECKING:
    from queuehint.backends.postgres.address import Address
    from queuehint.backends.postgres.sessions.session import Row, Statement, Value

PATIENCE_S: Final = 30.0
"""How long a server that does not answer is tried, counted from the first statement that it has not answered."""
LATER_S: Final = 5.0
"""How long it is tried by a call that comes later: what was tried before is not waited for again."""
HURRIED_S: Final = 2.0
"""How long it is tried in all, once there is a hurry."""
PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5


class Connection:
    """
    A connection to a server, which may be another one each time it was lost.

    Args:
        patience_s: how long `ask` tries a server that does not answer; None for `PATIENCE_S`.

    Attributes:
        statements: those for its schema.
        turn: another number each time that the server may be another one.

    Raises:
        BackendDeniedError, BackendUnavailableError: as of `Session`.
    """

    def __init__(self, address: Address, patience_s: float | None = None) -> None:
        self._address = address
        self._patience_s = patience_s
        self.turn = 0
        self._end_s = math.inf
        self._silent_s: float | None = None
        """When the first statement was sent that the server has not answered; None if it answers."""
        self._session: Session
        self.statements: Statements
        self._begin()

    def _begin(self) -> None:
        self._session = Session(self._address)
        self.statements = statements_of(self._address, is_pooled=self._session.is_pooled)
        self.turn += 1

    def run(self, statement: Statement, *values: Value) -> list[Row]:
        """
        Execute a statement once.

        Raises:
            LostError, RefusedError: as of `Session.run`.
        """
        sent_s = time.monotonic()
        try:
            rows = self._session.run(statement, *values)
        except LostError:
            self._silent_s = self._silent_s or sent_s
            raise
        except RefusedError:
            self._silent_s = None
            raise
        self._silent_s = None
        return rows

    def patient_until_s(self) -> float:
        """Return until when to try, by the monotonic clock, since a statement was lost now."""
        now_s = time.monotonic()
        patience_s = PATIENCE_S if self._patience_s is None else self._patience_s
        return max((self._silent_s or now_s) + patience_s, now_s + min(LATER_S, patience_s))

    def ask(self, statement: Statement, *values: Value) -> list[Row]:
        """
        Execute a statement that may be executed twice.

        Raises:
            BackendError: it was refused, or the server does not answer for too long.
        """
        until_s: float | None = None
        while True:
            try:
                return self.run(statement, *values)
            except LostError as error:
                until_s = until_s or self.patient_until_s()
                self.connect_again(error, until_s)
            except RefusedError as error:
                raise self.judgement(error) from error

    def connect_again(self, error: LostError, until_s: float) -> None:
        """
        Make another session.

        Args:
            error: by which the one before has ended.
            until_s: the time, by the monotonic clock, until which it is tried.

        Raises:
            BackendDeniedError: the server refuses it.
            BackendUnavailableError: the time is over.
        """
        pause_s = PAUSE_MIN_S
        while True:
            try:
                self._begin()
            except BackendUnavailableError as failure:
                until_s = min(until_s, self._end_s)
                if time.monotonic() + pause_s > until_s:
                    raise BackendUnavailableError(f"{failure}; before: {error}") from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            else:
                if time.monotonic() > until_s:
                    raise self.judgement(error) from error
                return

    def hurry(self) -> None:
        """Try a server that does not answer for `HURRIED_S` more, in all; from any thread."""
        self._end_s = min(self._end_s, time.monotonic() + HURRIED_S)

    def doubt(self) -> None:
        """Take note that the server behind a pooler is another one."""
        self.turn += 1

    def judgement(self, error: LostError | RefusedError) -> BackendError:
        """Translate what `run` has raised."""
        return self._session.judgement(error)

    def close(self) -> None:
        """Close it; idempotent."""
        self._session.close()
