"""
Write jobs into the inbox of the store, over a connection of the application and within its transaction.

A row is one submission. Nothing is asked of the store itself, and nobody is notified unless that was chosen: the row is
there once the transaction is committed, in the order of commits, and the store takes it out then. What only the store
can know is found out no sooner: a closed path, a full queue, an id or a key that is taken, a dependency that is not
there.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from queuehint.backends.base import WHICH_DATABASE, FileInbox
from queuehint.backends.postgres.mail.letters import inbox_channel
from queuehint.backends.sqlite.bell import ring
from queuehint.backends.sqlite.layout import PREFIX
from queuehint.client.handle import JobHandle
from queuehint.client.submission import operations_at_once, single_of
from queuehint.client.transactions.adapter import (
    STATEMENTS_MAX,
    AsyncAdapter,
    SyncAdapter,
    leads_to,
    note_database,
)
from queuehint.client.transactions.adapters import adapter_of
from queuehint.client.transactions.file_rows import insertion as insertion_into_file
from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.operations.inbox import row_of
from queuehint.schema.checks import check_bool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.backends.base import InboxAddress
    from queuehint.client.handle import Client
    from queuehint.client.transactions.adapter import Steps
    from queuehint.operations import Operation
    from queuehint.values.spec import JobSpec

MISSING = frozenset({"42P01", "3F000"})
"""What PostgreSQL says of a table and a schema that are not there."""
_RETURNING: Final = "RETURNING CAST(CAST(pg_current_xact_id() AS text) AS bigint)"
"""The transaction and no column: a role that may only enqueue reads none."""


_NOTES: Final = {
    f"no such table: main.{PREFIX}": (
        "The file has no tables for jobs yet: the first process that asks its scheduler anything else makes them, such "
        "as `queuehint stats --target URL`, or what `queuehint sqlite ddl` prints."
    ),
    "database is locked": (
        "Another transaction writes. One that reads first and writes then cannot wait for it: begin with BEGIN "
        "IMMEDIATE, and set a busy timeout."
    ),
}
"""What to do about errors of SQLite."""


class RowWriter:
    """
    The writer of jobs in a transaction. See `Scheduler.within`.

    Args:
        client: the scheduler.
        connection: of a library that `adapter_of` knows.
        notify: the statement that writes a row notifies the leader of its commit, in PostgreSQL.

    Raises:
        InvalidJobError: its store takes no jobs in transactions.
        InvalidJobTypeError: the connection is none of those that are known, or *notify* is no bool.
    """

    def __init__(self, client: Client, connection: object, *, notify: bool = False) -> None:
        self._notifies = check_bool(notify, parameter="notify")
        # A backend need not inherit from the protocol.
        inbox: InboxAddress | FileInbox | None = getattr(client.backend, "inbox", None)
        if inbox is None:
            raise InvalidJobError(
                f"within() requires a store on PostgreSQL, or on a SQLite file with shared=yes, got {client!r}; "
                "enqueue after the commit"
            )
        self.client = client
        self.inbox = inbox
        self._adapter = adapter_of(connection, inbox.kind)

    async def submit_checked(
        self,
        specs: list[JobSpec],
        *,
        parent: tuple[str, int] | None = None,
        whole: bool = False,
        flow_timeout_ms: int | None = None,
    ) -> list[JobHandle[Any]]:
        """
        Write jobs by specs that were checked on creation. The arguments are those of `submission.submit`.

        Raises:
            InvalidJobError: there is a parent, a spec lacks an id or waits for its caller, or they are too many.
        """
        self.check_async()
        operations = self._operations(specs, parent, whole, flow_timeout_ms)
        if operations:
            await self.write(operations)
        return self._handles(specs)

    def submit_checked_sync(
        self,
        specs: list[JobSpec],
        *,
        parent: tuple[str, int] | None = None,
        whole: bool = False,
        flow_timeout_ms: int | None = None,
    ) -> list[JobHandle[Any]]:
        """Like `submit_checked`, for a synchronous connection."""
        self.check_sync()
        operations = self._operations(specs, parent, whole, flow_timeout_ms)
        if operations:
            self.write_sync(operations)
        return self._handles(specs)

    # --- rows ------------------------------------------------------------------------------------------------------

    async def write(self, operations: Sequence[Operation[Any]]) -> None:
        """
        Write a row.

        Raises:
            InvalidJobTypeError: the connection is synchronous.
            InvalidJobError: the row is too large; the connection is in no transaction, or of another database.
            Exception: what the library of the connection raises.
        """
        adapter, data = self.check_async(), row_of(operations)
        inbox = await self.client.backend.find_inbox() or self.inbox
        try:
            number = await adapter.run(self._insertion(inbox, data, await adapter.driver()))
        except Exception as error:
            _note_missing(inbox, error)
            raise
        self._note_written(number, inbox)

    def write_sync(self, operations: Sequence[Operation[Any]]) -> None:
        """Like `write`, by a synchronous connection."""
        adapter, data = self.check_sync(), row_of(operations)
        inbox = self.client.backend.find_inbox_sync() or self.inbox
        try:
            number = adapter.run(self._insertion(inbox, data, adapter.driver()))
        except Exception as error:
            _note_missing(inbox, error)
            raise
        self._note_written(number, inbox)

    def check_async(self) -> AsyncAdapter:
        """Refuse an asynchronous call on a synchronous connection. Return the adapter."""
        adapter = self._adapter
        if not isinstance(adapter, AsyncAdapter):
            raise InvalidJobTypeError(f"{adapter.name} is synchronous: use the call whose name ends in _sync")
        return adapter

    def check_sync(self) -> SyncAdapter:
        """Refuse a synchronous call on an asynchronous connection. Return the adapter."""
        adapter = self._adapter
        if not isinstance(adapter, SyncAdapter):
            raise InvalidJobTypeError(
                f"{adapter.name} is asynchronous: await the call whose name does not end in _sync"
            )
        return adapter

    def _operations(
        self, specs: list[JobSpec], parent: tuple[str, int] | None, whole: bool, flow_timeout_ms: int | None
    ) -> list[Operation[Any]]:
        if parent is not None:
            raise InvalidJobError(
                f"a child of job {shown(parent[0])} is not supported in a transaction: its parent may have ended by "
                "the commit; enqueue a separate job, by job.within(connection).enqueue()"
            )
        if not specs:
            return []
        now_ms = self.client.clock.now_ms()
        specs = [_checked(spec).at(now_ms) for spec in specs]
        if not whole and (single := single_of(specs, None)) is not None:
            return [single]
        return operations_at_once(specs, codec=self.client.codec, whole=whole, flow_timeout_ms=flow_timeout_ms)

    def _handles(self, specs: list[JobSpec]) -> list[JobHandle[Any]]:
        return [JobHandle(self.client, spec.id, created=True) for spec in specs]

    def _insertion(self, inbox: InboxAddress | FileInbox, data: bytes, driver: object) -> Steps[int]:
        """Write a row. Return its number in a file, or the number of the transaction in PostgreSQL."""
        if isinstance(inbox, FileInbox):
            return (yield from insertion_into_file(inbox, data, self._adapter.name, f"{self.client!r}"))
        asked = None if inbox.database is None or leads_to(driver, inbox.database) else inbox.database
        notified = inbox.namespace if self._notifies else None
        if asked is None:
            rows = yield _insertion(inbox.schema, notified), (inbox.namespace, data)
        else:
            rows = yield _insertion(inbox.schema, notified, asks=True), (inbox.namespace, data, asked)
        if not rows:
            raise InvalidJobError(
                f"{self._adapter.name} is connected to another database than {self.client!r}, and the job would be lost"
            )
        if asked is not None:
            note_database(driver, asked)
        return int(rows[0][0])

    def _note_written(self, number: int, inbox: InboxAddress | FileInbox) -> None:
        """Have the leader read the row soon after its commit, and in PostgreSQL before further calls."""
        if isinstance(inbox, FileInbox):
            _ring_for(number, self._adapter, inbox)
        else:
            self.client.backend.order_behind(number)
            self._adapter.after_commit(partial(self.client.backend.order_behind, number))


def _ring_for(number: int, adapter: SyncAdapter | AsyncAdapter, inbox: FileInbox) -> None:
    """
    Notify the leader of a file of new rows in its inbox, after the commit.

    Where the library does not tell of that, it is told now, and by the commit if possible, which row is coming.
    """
    if inbox.path is not None and not adapter.after_commit(partial(ring, inbox.path)):
        ring(inbox.path, number)
        adapter.before_commit(partial(ring, inbox.path, number))


def table_of(schema: str) -> str:
    """Return the quoted name of the table for statements."""
    return '"{}".inbox'.format(schema.replace('"', '""'))


@lru_cache(STATEMENTS_MAX)
def _insertion(schema: str, notified: str | None = None, *, asks: bool = False) -> str:
    """
    Return the statement that inserts a row, of a namespace and its data.

    Args:
        notified: the namespace, if its leader is notified.
        asks: it inserts none in another database than that of the third value. By a connection of which it is not known
            where it leads, the job would be lost.
    """
    into = f"INSERT INTO {table_of(schema)} (namespace, data)"
    returning = _RETURNING
    if notified is not None:
        returning = f"{_RETURNING}, pg_notify('{inbox_channel(schema, notified)}', '')"
    if not asks:
        return f"{into} VALUES (CAST($1 AS text), CAST($2 AS bytea)) {returning}"
    values = "SELECT CAST($1 AS text), CAST($2 AS bytea)"
    return f"{into} {values} WHERE ({WHICH_DATABASE}) = CAST($3 AS text) {returning}"


def _checked(spec: JobSpec) -> JobSpec:
    """Refuse a spec without an id, or with a waiting caller."""
    if not spec.id:
        raise InvalidJobError(
            'ids="sequence" is not supported in a transaction, for it draws numbers from the store: '
            "give the job an id, by using(id=...)"
        )
    if spec.presence_ms is not None:
        raise InvalidJobError(f"job {shown(spec.id)}: presence_ms is not supported in a transaction")
    return spec


def _note_missing(inbox: InboxAddress | FileInbox, error: Exception) -> None:
    """Add advice to an error of missing tables or a locked file."""
    if isinstance(inbox, FileInbox):
        for said, note in _NOTES.items():
            if said in str(error):
                error.add_note(note)
        return
    for each in (error, getattr(error, "orig", None), error.__cause__):
        if getattr(each, "sqlstate", None) in MISSING or getattr(each, "pgcode", None) in MISSING:
            error.add_note(
                f"The database of this connection has no inbox for jobs in the schema {inbox.schema!r}: it is another "
                "one than that of the scheduler, or `queuehint postgres migrate` was not run."
            )
            return
