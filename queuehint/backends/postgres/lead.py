"""
The lead: the right of one process to write the journal of a namespace.

Whoever leads is in the row of the namespace in ``leader``: with an *epoch*, one more than that of the leader before; a
*secret*, without which nothing is written; and until when it leads, by the clock of the server. It has to renew that
in time. Another process takes the lead by one statement, which changes the row only if that time is over, or if the
session that renewed it has ended: a process that was killed is followed at once.

- A session says nothing about a process where a pooler shares sessions, nor after the server was started again or
  another one was promoted: then the time alone counts, so that a leader that lives can go on with what it knows.
- A process that stands still finds its secret replaced when it goes on: it writes nothing, and leads no more.
- It answers questions only while its own clock says that no other process can lead, counted from before the renewal
  was sent, and while its session has not ended as far as it knows.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.journal.lead.leadership import DeposedError, Leader, LedElsewhereError
from queuehint.backends.journal.store import Others
from queuehint.backends.postgres.layout import quoted
from queuehint.backends.postgres.making import prepare
from queuehint.backends.postgres.port.offer import Offer, read_offer
from queuehint.backends.postgres.sessions.failures import LostError, RefusedError
from queuehint.backends.postgres.sessions.session import Session, integer, statement, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.postgres.address import Address
    from queuehint.backends.postgres.sessions.session import Row, Statement, Value

LEASE_S: Final = 5.0
"""How long a process leads after it has renewed its lead."""
RENEW_EVERY_S: Final = 1.0
STANDS_S: Final = 1.0
"""How long the lead is left to a process that stands by, after it has said so."""

# What a session is known by; nothing where a pooler shares sessions.
_SESSION: Final = (
    "pg_backend_pid(), (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()), "
    "pg_postmaster_start_time()"
)
_NO_SESSION: Final = "NULL, NULL, NULL"
_NO_ADDRESS: Final = "address = NULL, box = NULL, port = NULL, fingerprint = NULL, port_secret = NULL"
_SESSION_COLUMNS: Final = "session_pid, session_at, server_at"
_UNTIL: Final = f"clock_timestamp() + interval '{LEASE_S:g} s'"
# A session that has begun after this statement is not among those that it finds, and has not ended. Of the sessions of
# other users no more than the process is shown.
IS_FREE: Final = """(l.expires_at <= clock_timestamp() OR (
        l.server_at = pg_postmaster_start_time() AND l.session_at < statement_timestamp() AND NOT EXISTS (
            SELECT FROM pg_stat_activity s
            WHERE s.pid = l.session_pid AND coalesce(s.backend_start, l.session_at) = l.session_at)))"""
"""Whether another process may lead, by the row ``l`` of a leader."""
_TAKE: Final = f"""
    INSERT INTO {{schema}}.leader AS l (namespace, epoch, secret, term, pid, number, expires_at, {_SESSION_COLUMNS})
    VALUES ($1, 1, $2, '1.' || $3, $4::integer, 0, {_UNTIL}, {{session}})
    ON CONFLICT (namespace) DO UPDATE SET epoch = l.epoch + 1, secret = excluded.secret,
        term = (l.epoch + 1) || '.' || $3, pid = excluded.pid, {_NO_ADDRESS}, expires_at = {_UNTIL},
        ({_SESSION_COLUMNS}) = ROW ({{session}})
    WHERE {IS_FREE} AND ($5::boolean OR coalesce(l.standby_until <= clock_timestamp(), true))
    RETURNING epoch, term
"""
_STAND_BY: Final = f"""
    UPDATE {{schema}}.leader l SET standby_until = clock_timestamp() + interval '{STANDS_S:g} s' WHERE namespace = $1
    RETURNING {IS_FREE}
"""
_IS_FREE: Final = f"SELECT {IS_FREE} FROM {{schema}}.leader l WHERE namespace = $1"
_OTHERS: Final = f"""
    SELECT {IS_FREE}, coalesce(standby_until > clock_timestamp(), false) FROM {{schema}}.leader l WHERE namespace = $1
"""
_FIND: Final = """
    SELECT pid, address, box, port, fingerprint, port_secret, term FROM {schema}.leader WHERE namespace = $1
"""
_MINE: Final = "WHERE namespace = $1 AND epoch = $2::bigint AND secret = $3 RETURNING true"
_RENEW: Final = f"UPDATE {{schema}}.leader SET expires_at = {_UNTIL}, number = coalesce($4::bigint, number) {_MINE}"
_ATTACH: Final = f"UPDATE {{schema}}.leader SET ({_SESSION_COLUMNS}) = ROW ({{session}}) {_MINE}"
_ANNOUNCE: Final = f"""
    UPDATE {{schema}}.leader SET address = $4, box = $5, port = $6, fingerprint = $7, port_secret = $8 {_MINE}
"""
_RELEASE: Final = f"""
    UPDATE {{schema}}.leader SET expires_at = '-infinity', pid = NULL, {_NO_ADDRESS},
        number = coalesce($4::bigint, number) {_MINE}
"""


def _clock() -> Callable[[], float]:
    """Return a clock that goes on while the machine sleeps, if there is one: that of the server does."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic


_now_s: Final = _clock()


class PostgresLead:
    """
    The right to write a journal, from `take` until `release`. It may be renewed by any thread.

    Attributes:
        address, namespace: as given.
        epoch, secret: what each change of the journal has to name.
        term: what others may know of both.
        number: of the newest row of the journal that this process knows; it is written with each renewal.
    """

    renew_every_s: float | None = RENEW_EVERY_S
    is_heir: bool = False

    def __init__(self, address: Address, namespace: str, session: Session) -> None:
        self.address = address
        self.namespace = namespace
        self.epoch = 0
        self.secret = secrets.token_hex(16)
        self.term = ""
        self.number: int | None = None
        self._session = session  # the one that the row names
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._is_over = False

    def _statement(self, name: str, template: str, by: Session | None = None) -> Statement:
        session = _NO_SESSION if (by or self._session).is_pooled else _SESSION
        return statement(name, template.format(schema=quoted(self.address.schema), session=session))

    def take(self, *, is_ready: bool = True) -> None:
        """
        Take the lead.

        Args:
            is_ready: this process has followed the journal; another one leaves it to one that stands by.

        Raises:
            LedElsewhereError: another process has it.
            LostError, RefusedError: as of the session.
        """
        sent_s = _now_s()
        digest = blake2b(self.secret.encode(), digest_size=8).hexdigest()
        found = self._session.run(
            self._statement("take", _TAKE), self.namespace, self.secret, digest, os.getpid(), is_ready
        )
        if not found:
            raise LedElsewhereError(find_leader(self._session, self.address, self.namespace) or Leader())
        ((epoch, term),) = found
        self.epoch, self.term = integer(epoch), text(term) or ""
        self._until_s = sent_s + LEASE_S

    def announce(self, address: str, box: str | None = None, offer: Offer | None = None) -> None:
        """
        Write where this process answers others, ``""`` for nowhere, its box for mail, and its port.

        Raises:
            DeposedError: another process leads.
            BackendError: it cannot be written.
        """
        with self._lock:
            port = (None, None, None) if offer is None else (offer.where, offer.fingerprint, offer.secret)
            self._change(self._statement("announce", _ANNOUNCE), address, box, *port)

    def renew(self) -> None:
        """
        Extend the lead.

        Raises:
            DeposedError: another process leads.
            BackendError: the server does not answer; the lead lasts until `may_answer` says no.
        """
        with self._lock:
            sent_s = _now_s()
            self._change(self._statement("renew", _RENEW), self.number)
            self._until_s = sent_s + LEASE_S

    def may_answer(self) -> bool:
        """
        Return whether no other process can lead yet, so that questions may be answered from memory.

        It is false too when the server has sent something, until `renew` has read it: that may be the end of the
        session. After such an end it is false until the row names a new one.
        """
        if self._is_over or _now_s() >= self._until_s:
            return False
        if not self._lock.acquire(blocking=False):
            return not self._session.is_lost  # it is being renewed, and the answer may be what has been sent
        try:
            return self._session.is_quiet()
        finally:
            self._lock.release()

    def depose(self) -> None:
        """Take note that another process leads."""
        self._is_over = True

    def release(self) -> None:
        """Leave the lead, so that another process can take it at once; idempotent, and raises nothing."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                with suppress(LostError, RefusedError):
                    self._session.run(self._statement("release", _RELEASE), *self._mine, self.number)
            self._session.close()

    @property
    def _mine(self) -> tuple[Value, ...]:
        return self.namespace, self.epoch, self.secret

    def _change(self, change: Statement, *values: Value) -> None:
        """Change the row; by a new session, which the row names first, if the one that it names has ended."""
        if self._is_over:
            raise DeposedError
        with self._session.judged():
            changed = self._run(change, *values)
        if not changed:
            self.depose()
            raise DeposedError

    def _run(self, change: Statement, *values: Value) -> list[Row]:
        with suppress(LostError):
            return self._session.run(change, *self._mine, *values)
        # Any process may lead until the row names another session. The lost one stays until then: it answers nothing.
        session = Session(self.address)
        with session.begun():
            is_mine = session.run(self._statement("attach", _ATTACH, session), *self._mine)
        if not is_mine:
            session.close()
            return []
        self._session = session
        return session.run(change, *self._mine, *values)


@attrs.frozen(kw_only=True)
class Ways:
    """
    How a leader is reached, as the text that is the address of a `Leader`.

    Args:
        address: what it announced.
        box: for mail.
        offer: its port, if it has one.
    """

    address: str
    box: str = "-"
    offer: Offer | None = None

    def written(self) -> str:
        """Return the text."""
        offer = self.offer
        port = "-" if offer is None else f"{offer.where},{offer.fingerprint},{offer.secret}"
        return f"{self.box} {port} {self.address}"


def read_ways(text: str) -> Ways:
    """
    Return what a text says.

    >>> read_ways("box - machine /run/a socket").address
    'machine /run/a socket'
    """
    box, port, address = text.split(" ", 2)
    return Ways(address=address, box=box, offer=None if port == "-" else read_offer(*port.split(",")))


def find_leader(session: Session, address: Address, namespace: str) -> Leader | None:
    """
    Return who leads, or has led last; None if nobody ever has. Its address is read by `read_ways`.

    Raises:
        LostError, RefusedError: as of the session.
    """
    found = session.run(statement("leader", _FIND.format(schema=quoted(address.schema))), namespace)
    for pid, where, box, *port, term in found:
        announced = text(where)
        if announced:
            ways = Ways(address=announced, box=text(box) or "-", offer=read_offer(*map(text, port)))
            announced = ways.written()
        return Leader(pid=None if pid is None else integer(pid), address=announced, term=text(term) or "")
    return None


def find_others(session: Session, address: Address, namespace: str) -> Others:
    """
    Return whether a process leads, and one stands by.

    Raises:
        LostError, RefusedError: as of the session.
    """
    found = session.run(statement("others", _OTHERS.format(schema=quoted(address.schema))), namespace)
    for is_free, stands_by in found:
        return Others(not integer(is_free), bool(integer(stands_by)))
    return Others(leads=False, stands_by=False)


def stand_by(session: Session, address: Address, namespace: str, *, says_so: bool) -> bool:
    """
    Return whether nobody leads.

    Args:
        says_so: this process stands by, for `STANDS_S`.

    Raises:
        LostError, RefusedError: as of the session.
    """
    name, template = ("stand_by", _STAND_BY) if says_so else ("is_free", _IS_FREE)
    found = session.run(statement(name, template.format(schema=quoted(address.schema))), namespace)
    return all(integer(is_free) for (is_free,) in found)


def take_lead(address: Address, namespace: str, *, is_ready: bool = True) -> PostgresLead:
    """
    Take the lead of a namespace.

    Args:
        is_ready: as of `PostgresLead.take`.

    Raises:
        LedElsewhereError: another process has it.
        BackendDeniedError, BackendUnavailableError: the server cannot be used.
    """
    session = Session(address)
    with session.begun():
        prepare(session, address)
        lead = PostgresLead(address, namespace, session)
        lead.take(is_ready=is_ready)
    return lead
