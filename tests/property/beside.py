"""
Stores that keep a journal, for a lockstep: a file, and PostgreSQL by each way to the engine of its leader.

All is in this process: of a guest the leader too, which is another store. What may happen to a store that lives in a
process of its own is a fault here: its sessions end, or its leader does, in order or not, and another one goes on.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.postgres import store as store_module
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.backend import PostgresBackend
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.clock import FakeClock
from queuehint.core.engine import Engine, EngineOptions
from queuehint.testing.state_machine.lockstep import RETENTION
from tests.folders import quick_folder
from tests.postgres_servers import shared_postgres
from tests.servers import new_namespace
from tests.sqlite_store import leave_journal

WAYS = ("file", "leader", "guest", "mail", "polled", "port")
"""A file; PostgreSQL by the process that leads, by a guest on its machine, through the database, and by a port."""
DAILY = ("file", "leader")
FAULTS = ("end_sessions", "hand_over", "crash")
_END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'queuehint' AND datname = current_database()
"""


@functools.cache
def _database() -> str:
    """Make the database of all of these stores in this process, whose sessions may be ended at any time."""
    shared_postgres().run("CREATE DATABASE beside TEMPLATE template0")
    return "beside"


class Beside:
    """
    A store on the clock of a lockstep.

    Args:
        way: one of `WAYS`.
        clock, budget: of the lockstep.
    """

    def __init__(self, way: str, clock: FakeClock, budget: int) -> None:
        self.way = way
        self._budget = budget
        self._options = BackendOptions(namespace=new_namespace("beside"), clock=clock, retention=RETENTION)
        self._folder = contextlib.ExitStack()
        self._file = Address(path=self._folder.enter_context(quick_folder()) / "jobs.db", durability="process")
        self._leader = self._lead()
        self.store: JournalBackend = self._leader if way in DAILY else self._follow()

    def __repr__(self) -> str:
        return f"<Beside {self.way}>"

    def _lead(self) -> JournalBackend:
        options = EngineOptions(budget=self._budget)
        if self.way == "file":
            return SqliteBackend(self._file, self._options, options)
        port = "&bind=127.0.0.1:0" if self.way == "port" else ""
        return PostgresBackend(parse_url(self._url(port)), self._options, options)

    def _follow(self) -> PostgresBackend:
        self._leader.call_sync(op.Peek())
        with pytest.MonkeyPatch.context() as patch:
            if self.way != "guest":
                patch.setattr(store_module, "machine", lambda: "elsewhere")
            address = parse_url(self._url("&lead=no" + "&pooled=1" * (self.way == "polled")))
            return PostgresBackend(address, self._options)

    @staticmethod
    def _url(more: str = "") -> str:
        return f"{shared_postgres().url_of(_database())}?durability=process{more}"

    @property
    def engine(self) -> Engine:
        """That of the process that leads."""
        return self._leader.engine

    def call(self, operation: op.Operation[Any]) -> Any:
        """Do an operation."""
        return self.store.call_sync(operation)

    def await_ends(self, job_ids: tuple[str, ...]) -> None:
        """Begin to wait for jobs and leave at once."""
        self.store._await_ends_sync(job_ids)

    def fail(self, fault: str) -> None:
        """Have one of `FAULTS` happen."""
        if fault == "end_sessions":
            if self.way != "file":
                shared_postgres().run(_END_SESSIONS, database=_database())
            return
        if fault == "crash":
            leave_journal(self._leader)
        self._leader.close_sync()
        is_led = self.store is self._leader
        self._leader = self._lead()
        if is_led:
            self.store = self._leader
        self._leader.call_sync(op.Peek())

    def close(self) -> None:
        """Close it; nothing that the engine did not say was done."""
        self._leader.engine.check()
        self.store.close_sync()
        self._leader.close_sync()
        self._folder.close()
