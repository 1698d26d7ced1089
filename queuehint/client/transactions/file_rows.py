"""
Rows of the inbox in a file of SQLite: the statements that a connection of the application's executes.

A connection leads to the file if the path that SQLite tells of its main database leads to the same device and inode. A
file that is attached to another one is refused: SQLite commits two files one by one if there is a write-ahead log.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from queuehint.errors import InvalidJobError

if TYPE_CHECKING:
    from queuehint.backends.base import FileInbox
    from queuehint.client.transactions.adapter import Steps

WHICH_FILES: Final = "PRAGMA database_list"
_INSERT: Final = (
    "INSERT INTO main.queuehint_inbox (data) SELECT $1 WHERE NOT EXISTS "
    "(SELECT 1 FROM main.queuehint_meta WHERE name = 'namespace' AND value <> $2) RETURNING number"
)
_BEGIN_TO_WRITE: Final = "DELETE FROM main.queuehint_inbox WHERE number < 0 RETURNING 1"
_TAKE: Final = "DELETE FROM main.queuehint_inbox WHERE number > CAST($1 AS INTEGER) RETURNING number, data"
_COMMITTED: Final = "SELECT max(number) FROM queuehint_inbox"


def insertion(inbox: FileInbox, data: bytes, name: str, owner: str) -> Steps[int]:
    """
    Write a row. Return its number.

    Args:
        name: what errors call the connection.
        owner: what errors call the scheduler.

    Raises:
        InvalidJobError: the connection leads elsewhere.
    """
    if inbox.path is not None:
        files = yield WHICH_FILES, ()
        _check_leads_to(inbox.path, files, name, owner)
    rows = yield _INSERT, (data, inbox.namespace)
    if not rows:
        raise InvalidJobError(
            f"{name} leads to a file with jobs of another namespace than {inbox.namespace!r}, that of {owner}"
        )
    return int(rows[0][0])


def taking() -> Steps[list[bytes]]:
    """Remove the rows that the transaction itself has written. Return the rows in order."""
    yield _BEGIN_TO_WRITE, ()  # from here on no other connection commits
    files = yield WHICH_FILES, ()
    rows = yield _TAKE, (str(_committed(files)),)
    return [data for _, data in sorted(rows, key=lambda row: int(row[0]))]


def _main(files: list[Any]) -> str:
    """Return the path of a connection's main database, an empty text for a database in memory."""
    [path] = [path for _, name, path in files if os.fsdecode(name) == "main"]
    return os.fsdecode(path or "")


def _check_leads_to(path: Path, files: list[Any], name: str, owner: str) -> None:
    """Refuse a connection to another file."""
    main = _main(files)
    if _is_same(path, main):
        return
    for _, alias, other in files:
        if other and _is_same(path, os.fsdecode(other)):
            raise InvalidJobError(
                f"{name} has the file of {owner} attached, as {os.fsdecode(alias)!r}: SQLite does not commit two files "
                "as one; write the job by a connection to that file"
            )
    where = main or "a database in memory"
    raise InvalidJobError(f"{name} is connected to another database than {owner}, and the job would be lost: {where}")


def _is_same(one: Path, other: str) -> bool:
    """Return whether two names lead to one file."""
    with suppress(OSError):
        return one.samefile(other)
    return False


def _committed(files: list[Any]) -> int:
    """Return the number of the last row that was committed, as another connection sees it."""
    path = _main(files)
    if not path:
        return 0
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as db:
        (number,) = db.execute(_COMMITTED).fetchone()
    return number or 0
