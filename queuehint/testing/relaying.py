"""Take jobs out of a transaction that is never committed, such as that of Django's `TestCase`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queuehint.backends.base import BackendOptions, FileInbox, InboxAddress
from queuehint.backends.memory import MemoryBackend
from queuehint.backends.postgres.address import SCHEMES, parse_url
from queuehint.backends.relaying import relay
from queuehint.backends.sqlite.address import parse_url as parse_file_url
from queuehint.backends.steps import run_steps, run_steps_sync
from queuehint.client.handle import JobHandle, handles_of
from queuehint.client.transactions.file_rows import taking
from queuehint.client.transactions.writer import RowWriter, table_of
from queuehint.operations.inbox import operations_of

if TYPE_CHECKING:
    from queuehint.client.transactions.adapter import Steps
    from queuehint.scheduler.scheduler import Scheduler

_TAKE: Final = (
    "WITH taken AS (DELETE FROM {table} WHERE namespace = $1 AND xid = pg_current_xact_id_if_assigned() "
    "RETURNING id, data) SELECT data FROM taken ORDER BY id"
)


class MemoryWithInbox(MemoryBackend):
    """
    A store in memory with an inbox in a database, whose rows have to be relayed.

    Args:
        address: of the inbox, None for none.
    """

    def __init__(self, options: BackendOptions, address: InboxAddress | FileInbox | None) -> None:
        super().__init__(options)
        self.address = address

    @property
    def inbox(self) -> InboxAddress | FileInbox | None:
        """The address given."""
        return self.address


def inbox_of(url: str, namespace: str) -> InboxAddress | FileInbox | None:
    """Return the inbox for jobs of a URL, None without one."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return FileInbox(namespace=namespace) if parse_file_url(url).shared else None
    if scheme not in SCHEMES:
        return None
    return InboxAddress(namespace=namespace, schema=parse_url(url).schema)


async def relay_now(sched: Scheduler, connection: object) -> list[JobHandle[Any]]:
    """
    Enqueue the jobs written within the transaction of a connection, as if it were committed now.

    For tests whose transaction is rolled back in the end: the rows of this transaction, and no others, are read and
    removed by the connection itself, and take effect in the store of the scheduler, in their order. `drain` runs the
    jobs then.

    Args:
        connection: the one that was given to `Scheduler.within`, or another one in the same transaction; it may read
            and delete rows of the inbox.

    Returns:
        The handles of the jobs that were enqueued, in their order.

    Raises:
        QueueHintError: what the store refuses a row with; the rows after it are removed all the same.
        Exception: what the library of the connection raises.

    .. versionadded:: 1.0.0
    """
    writer = RowWriter(sched, connection)
    handles: list[JobHandle[Any]] = []
    for data in await writer.check_async().run(_taking(writer)):
        handles += handles_of(sched, await run_steps(sched.backend, relay(operations_of(bytes(data)))))
    return handles


def relay_now_sync(sched: Scheduler, connection: object) -> list[JobHandle[Any]]:
    """
    Like `relay_now`, for a synchronous connection.

    .. versionadded:: 1.0.0
    """
    writer = RowWriter(sched, connection)
    handles: list[JobHandle[Any]] = []
    for data in writer.check_sync().run(_taking(writer)):
        handles += handles_of(sched, run_steps_sync(sched.backend, relay(operations_of(bytes(data)))))
    return handles


def _taking(writer: RowWriter) -> Steps[list[bytes]]:
    inbox = writer.inbox
    if isinstance(inbox, FileInbox):
        return (yield from taking())
    rows = yield _TAKE.format(table=table_of(inbox.schema)), (inbox.namespace,)
    return [data for (data,) in rows]
