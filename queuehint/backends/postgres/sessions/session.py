"""
A session of a PostgreSQL server: statements with an end in time, and errors of ours.

psycopg makes the connection. Statements go straight to libpq, which waits without the GIL; by way of a cursor they
would cost three times as much. A statement that takes too long is canceled; a server that does not answer even that is
left. What libpq reports of a connection that has ended, whatever it is called there, is a `LostError`: whether the
statement was done has to be looked up.

A pooler in transaction mode may give each statement another session of the server: then nothing is prepared or set for
a session, see `Address.is_pooled`. A pooler that was not named is noticed by the number of the session's process.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import time
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import attrs

from queuehint.backends.postgres.address import APPLICATION
from queuehint.backends.postgres.layout import OLDEST
from queuehint.backends.postgres.sessions.failures import LostError, RefusedError, judgement, unreached
from queuehint.errors import BackendDeniedError, BackendError, BackendUnavailableError, MissingExtraError

try:
    import psycopg
    from psycopg import pq
except ImportError:
    raise MissingExtraError("postgres", "stores in PostgreSQL") from None

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from psycopg.pq.abc import PGresult

    from queuehint.backends.postgres.address import Address

CONNECT_S: Final = 5
"""How long to wait for a connection, unless the URL says."""
ANSWER_S: Final = 10.0
"""How long a statement may take before it is canceled; twice a lease."""
CANCEL_S: Final = 2.0
"""How long to wait for the end of a canceled one."""
_ALIVE: Final = {
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}
_OK: Final = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_BYTEA: Final = 17

Value = int | float | str | bytes | bool | list[int] | list[str] | list[bytes] | None
"""Of a parameter: integers, floats, booleans and lists of integers or of plain words go as text, bytes as they are."""
Row = tuple[bytes | None, ...]
"""Columns in the binary format of PostgreSQL."""


@attrs.frozen
class Statement:
    """A statement, with ``$1`` for its first value; its name is that under which sessions prepare it."""

    name: bytes = attrs.field(repr=False)
    text: bytes = attrs.field(repr=False)


def statement(name: str, text: str) -> Statement:
    """Return a statement."""
    return Statement(f"queuehint_{name}".encode(), text.encode())


_WHO: Final = statement("who", "SELECT pg_backend_pid(), pg_is_in_recovery()")
_SETTINGS: Final[Mapping[str, str]] = {
    "search_path": "pg_catalog",
    "default_transaction_isolation": "read committed",
    "statement_timeout": f"{ANSWER_S + CANCEL_S:g}s",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    # Else the server notices only after hours that the machine of a leader is gone.
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    # A plan made while a table was empty is kept for good, and would read all rows that vacuum cannot remove yet.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",  # what it would cost to read without an index is taken for work that is worth compiling
}


class Session:
    """
    A connection, from its making until `close`; used by one thread at a time.

    Args:
        address: which server; its parameters are those of libpq.

    Attributes:
        is_pooled: whether the next statement may meet another session of the server.
        pid: that of the server's process for it, as of its making.

    Raises:
        BackendDeniedError: the server refuses this user or does not have the database, or is too old.
        BackendUnavailableError: it cannot be reached, or is a replica.
    """

    def __init__(self, address: Address) -> None:
        self._name = address.shown
        self.is_pooled = address.is_pooled
        self.pid = 0
        self._prepared: set[bytes] = set()
        parameters = {
            "application_name": APPLICATION,
            "connect_timeout": str(CONNECT_S),
            **_ALIVE,
            **address.parameters,
            "client_encoding": "UTF8",
        }
        try:
            connection = psycopg.connect("", autocommit=True, prepare_threshold=None, **parameters)  # type: ignore[arg-type]
        except psycopg.Error as error:
            raise unreached(str(error), address.shown, address.parameters) from error
        self._connection: psycopg.Connection | None = connection
        pg = self._pg = connection.pgconn
        self._is_lost = False
        self._poll = _Poll(pg.socket)
        _held.add(self)
        with self.begun():
            self._begin(address)

    def _begin(self, address: Address) -> None:
        version = self._pg.server_version
        if version < OLDEST * 10_000:
            raise BackendDeniedError(
                f"{self._name} is PostgreSQL {_release(version)}, and queuehint needs {OLDEST} or a later one"
            )
        ((pid, is_replica),) = self._send_unnamed(_WHO)
        self.pid = integer(pid)
        self.is_pooled = self.is_pooled or self.pid != self._pg.backend_pid
        if integer(is_replica):
            raise BackendUnavailableError(f"{self._name} is a replica, which takes no changes: wait for its promotion")
        if not self.is_pooled:
            settings = dict(_SETTINGS)
            if version >= 170_000:
                settings["transaction_timeout"] = "0"
            chosen = [f"set_config('{name}', '{value}', false)" for name, value in settings.items()]
            chosen.append(f"set_config('synchronous_commit', {synchronous_commit(address)}, false)")
            self._send_unnamed(statement("set", f"SELECT {', '.join(chosen)}"))

    # --- statements ----------------------------------------------------------------------------------------------

    def run(self, statement: Statement, *values: Value) -> list[Row]:
        """
        Execute a statement; return its rows.

        Raises:
            LostError: the connection has ended, or did so before; of the statement nothing is known if it was sent.
            RefusedError: the server refuses it, or it took too long and was canceled.
        """
        if self.is_pooled:
            return self._send_unnamed(statement, *values)
        packed, formats = _packed(values)
        try:
            if statement.name not in self._prepared:
                self._check_there()
                self._pg.send_prepare(statement.name, statement.text)
                self._finish(is_change=False)
                self._prepared.add(statement.name)
            self._check_there()
            self._pg.send_query_prepared(statement.name, packed, formats, 1)
        except psycopg.Error as error:
            raise self._lost(str(error), is_sent=False) from error
        return _rows(self._finish(is_change=True))

    def _send_unnamed(self, statement: Statement, *values: Value) -> list[Row]:
        packed, formats = _packed(values)
        self._check_there()
        try:
            self._pg.send_query_params(statement.text, packed, None, formats, 1)
        except psycopg.Error as error:
            raise self._lost(str(error), is_sent=False) from error
        return _rows(self._finish(is_change=True))

    def script(self, text: str) -> None:
        """
        Execute any number of statements without values, as one transaction unless they say otherwise.

        Raises:
            LostError, RefusedError: as of `run`.
        """
        self._check_there()
        try:
            self._pg.send_query(text.encode())
        except psycopg.Error as error:
            raise self._lost(str(error), is_sent=False) from error
        self._finish(is_change=True)

    def _check_there(self) -> None:
        if self._is_lost:
            raise LostError("the connection has ended", is_sent=False)

    def _finish(self, *, is_change: bool) -> PGresult | None:
        """Wait for the results of what was sent; return the last one."""
        pg, until_s, is_canceled = self._pg, time.monotonic() + ANSWER_S, False
        result: PGresult | None = None
        try:
            while pg.flush():
                if self._poll.wait(until_s - time.monotonic(), is_writing=True):
                    pg.consume_input()
                else:
                    raise self._lost("the server takes nothing in", is_sent=is_change)
            while True:
                while pg.is_busy():
                    if self._poll.wait(until_s - time.monotonic()):
                        pg.consume_input()
                    elif is_canceled:
                        raise self._lost("the server does not answer", is_sent=is_change)
                    else:
                        is_canceled, until_s = True, time.monotonic() + CANCEL_S
                        self._cancel()
                found = pg.get_result()
                if found is None:
                    break
                if result is None or result.status in _OK:
                    result = found
        except psycopg.Error as error:
            raise self._lost(str(error), is_sent=is_change) from error
        if result is not None and result.status in _OK:
            return result
        self._judge(result, is_change=is_change)
        return None

    def _judge(self, result: PGresult | None, *, is_change: bool) -> None:
        code, severity, problem = "", "", "the connection has ended"
        if result is not None:
            field = pq.DiagnosticField
            code = _text(result.error_field(field.SQLSTATE))
            severity = _text(result.error_field(field.SEVERITY_NONLOCALIZED))
            problem = _text(result.error_field(field.MESSAGE_PRIMARY)) or _text(result.error_message)
        # libpq has no code for the end of a connection; a server or a pooler that ends one says so in its last message.
        if not code or severity in {"FATAL", "PANIC"} or code.startswith("08") or self._pg.status != pq.ConnStatus.OK:
            raise self._lost(problem, is_sent=is_change)
        raise RefusedError(code, problem)

    def _cancel(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=CANCEL_S)

    def _lost(self, problem: str, *, is_sent: bool) -> LostError:
        self.close()
        return LostError(" ".join(problem.split()), is_sent=is_sent)

    @property
    def socket(self) -> int:
        """The file descriptor that can be read once the server has sent something."""
        return self._pg.socket

    def notes(self) -> list[tuple[bytes, bytes]]:
        """
        Return the channels and the payloads of the notifications that have come.

        Raises:
            LostError: the connection has ended.
        """
        self._check_there()
        found: list[tuple[bytes, bytes]] = []
        try:
            self._pg.consume_input()
            while (note := self._pg.notifies()) is not None:
                found.append((note.relname, note.extra))
        except psycopg.Error as error:
            raise self._lost(str(error), is_sent=False) from error
        return found

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended, as far as this process knows, or was closed."""
        return self._is_lost

    def is_quiet(self) -> bool:
        """Return whether the server has sent nothing since the last statement; the end of a connection is something."""
        return not self._is_lost and not self._poll.wait(0)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._is_lost = True
        _held.discard(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def leave_in_fork(self) -> None:
        """Close the copy of the socket that a forked process has, or the connection would not end with this process."""
        self._is_lost = True
        connection, self._connection = self._connection, None
        if connection is not None:
            _of_parent.append(connection)  # it is not closed: that would end the session of the parent
            with contextlib.suppress(OSError):
                os.close(self._pg.socket)

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def judgement(self, error: LostError | RefusedError) -> BackendError:
        """Translate what a statement has raised."""
        return judgement(error, self._name)

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """Have what statements of the block raise be errors of ours."""
        try:
            yield
        except (LostError, RefusedError) as error:
            raise self.judgement(error) from error

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Like `judged`, for a block after which the session is used on: it is closed if the block fails."""
        try:
            with self.judged():
                yield
        except BaseException:
            self.close()
            raise


class _Poll:
    """Waits for a socket."""

    def __init__(self, socket: int) -> None:
        self._socket = socket
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(socket, select.POLLIN)

    def wait(self, timeout_s: float, *, is_writing: bool = False) -> bool:
        """Return whether it can be read, or written too if asked for, before the time is over."""
        timeout_s = max(0.0, timeout_s)
        if self._poll is None:
            readable, writable, _ = select.select([self._socket], [self._socket] if is_writing else [], [], timeout_s)
            return bool(readable or writable)
        if not is_writing:
            return bool(self._poll.poll(timeout_s * 1000))
        self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
        try:
            return bool(self._poll.poll(timeout_s * 1000))
        finally:
            self._poll.modify(self._socket, select.POLLIN)


_held: WeakSet[Session] = WeakSet()
_of_parent: list[object] = []


def _leave_in_fork() -> None:
    for session in list(_held):
        session.leave_in_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_in_fork)


# --- values ----------------------------------------------------------------------------------------------------------


def _packed(values: Sequence[Value]) -> tuple[list[bytes | None], list[int]]:
    """Return values as libpq takes them, and which of them are in the binary format."""
    packed: list[bytes | None] = []
    formats: list[int] = []
    for value in values:
        kind = type(value)
        if kind is int:
            packed.append(b"%d" % value)  # type: ignore[str-format]
            formats.append(0)
        elif kind is bytes:
            packed.append(value)  # type: ignore[arg-type]
            formats.append(1)
        elif isinstance(value, list):
            is_binary = bool(value) and isinstance(value[0], bytes)
            packed.append(_packed_list(value) if is_binary else b"{%b}" % ",".join(map(str, value)).encode())
            formats.append(int(is_binary))
        else:
            packed.append(None if value is None else str(value).encode())
            formats.append(0)
    return packed, formats


def _packed_list(items: Sequence[object]) -> bytes:
    """Return a list of bytes in the binary format of ``bytea[]``."""
    parts = [struct.pack("!5i", 1, 0, _BYTEA, len(items), 1)]
    for item in items:
        assert isinstance(item, bytes)
        parts += (struct.pack("!i", len(item)), item)
    return b"".join(parts)


def _rows(result: PGresult | None) -> list[Row]:
    if result is None:
        return []
    columns = range(result.nfields)
    return [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]


def integer(column: bytes | None) -> int:
    """Return an integer or a boolean of a row; 0 for null."""
    return int.from_bytes(column or b"", "big", signed=True)


def text(column: bytes | None) -> str | None:
    """Return a text of a row."""
    return None if column is None else column.decode()


def synchronous_commit(address: Address) -> str:
    """Return the setting as an expression; what asks for more than the disk of one server is left as it is."""
    if address.durability == "process":
        return "'off'"
    return (
        "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END"
    )


def _text(message: bytes | str | None) -> str:
    return message.decode(errors="replace") if isinstance(message, bytes) else message or ""


def _release(version: int) -> str:
    """
    Return the release of a server as people write it.

    >>> _release(130004), _release(90624)
    ('13.4', '9.6.24')
    """
    if version >= 100_000:
        return f"{version // 10_000}.{version % 10_000}"
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"
