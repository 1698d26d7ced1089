"""A PostgreSQL that is full, read-only, or has limits of time; and transactions that go on beside a store for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import median

import psycopg
import pytest

from queuehint.backends.postgres.journal import connection as connection_module
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.errors import BackendDeniedError, BackendFullError, BackendUnavailableError, OutcomeUnknownError
from queuehint.testing.driver import job
from tests.postgres_archives import SmallLogServer
from tests.postgres_servers import SmallServer, may_mount
from tests.postgres_store import PUT, Caller, Place, open_place
from tests.support import until_sync

pytestmark = pytest.mark.usefixtures("postgres_server")


# --- room -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_place() -> Iterator[Place]:
    """A database on a server whose disk is soon full."""
    if not may_mount():
        pytest.skip("this user may not mount a file system")
    with SmallServer() as server, open_place(server) as place:
        yield place


def test_full_disk_refuses_changes_until_there_is_room(small_place: Place) -> None:
    caller = small_place.caller()
    caller.enqueue(job("running"))
    assert caller.start() == ["running"]
    small_place.server.fill()  # type: ignore[attr-defined]
    written = fill_up(caller)
    assert caller.find("running") is not None, "questions are answered"
    with pytest.raises(BackendFullError, match=r"there is no room left .* nothing was changed"):
        caller.enqueue(job("large", arguments=bytes(60_000)))
    small_place.server.empty()  # type: ignore[attr-defined]
    caller.finish("running")
    caller.enqueue(job("after"))
    caller.store.close_sync()
    other = small_place.caller()
    for job_id in (*written, "running", "after"):
        assert other.find(job_id) is not None
    assert other.find("large") is None


def fill_up(caller: Caller) -> list[str]:
    """Enqueue until there is no room; return the jobs that were taken in."""
    for number in range(1_000):
        try:
            caller.enqueue(job(f"{number}", arguments=bytes(60_000)))
        except BackendFullError:
            return [f"{each}" for each in range(number)]
    raise AssertionError("there is always room")


@pytest.mark.nightly
def test_full_disk_of_the_log_loses_nothing_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes down, and cannot come back before there is room."""
    if not may_mount():
        pytest.skip("this user may not mount a file system")
    monkeypatch.setattr(connection_module, "PATIENCE_S", 3.0)
    with SmallLogServer() as server, open_place(server) as place:
        caller = place.caller()
        caller.enqueue(job("running", ["d"]))
        assert caller.start() == ["running"]
        server.fill()
        with suppress(psycopg.Error):
            server.run("SELECT pg_switch_wal()")
        written: list[str] = []
        with pytest.raises((BackendUnavailableError, OutcomeUnknownError)):
            for number in range(1_000):
                caller.enqueue(job(f"{number}", ["d"], arguments=bytes(60_000)))
                written.append(f"{number}")
        server.empty()
        until_sync(lambda: is_enqueued(caller, "after"), "changes are taken again")
        caller.finish("running")
        assert all(caller.find(job_id) is not None for job_id in (*written, "running", "after"))
        ran: list[str] = []
        while started := caller.start():
            caller.finish(*started)
            ran += started
        unknown = [str(len(written))] if str(len(written)) in ran else []
        assert ran == [*written, *unknown, "after"]


def is_enqueued(caller: Caller, job_id: str) -> bool:
    """Return whether a job is enqueued by now; it is asked for again and again."""
    with suppress(BackendUnavailableError, OutcomeUnknownError):
        caller.enqueue(job(job_id, ["d"]))
        return True
    return False


# --- rights that come and go ------------------------------------------------------------------------------------------


def test_read_only_primary_refuses_changes_until_it_is_writable(place: Place) -> None:
    caller = place.caller()
    caller.enqueue(job("before"))
    with read_only(place):
        # The first change may have been sent to a session of before.
        with pytest.raises((BackendDeniedError, OutcomeUnknownError), match="read-only transaction"):
            caller.enqueue(job("0"))
        with pytest.raises(BackendDeniedError, match="read-only transaction"):
            caller.enqueue(job("1"))
        with pytest.raises(BackendDeniedError, match="read-only transaction"):
            caller.find("before")  # it cannot renew its lead, and another process may lead
    caller.enqueue(job("after"))
    assert caller.start() == ["before", "after"]
    assert [caller.find(f"{number}") for number in range(2)] == [None] * 2


@contextmanager
def read_only(place: Place) -> Iterator[None]:
    """Have a database take no changes; the sessions that there are end, to learn of it."""
    setting = f"DATABASE {place.database} SET default_transaction_read_only = on"
    place.server.run(f"ALTER {setting}")
    place.end_sessions()
    try:
        yield
    finally:
        place.server.run(f"ALTER {setting.removesuffix(' = on').replace('SET', 'RESET')}")
        place.end_sessions()


# --- limits of time ---------------------------------------------------------------------------------------------------

LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@pytest.mark.parametrize("options", [(), ("pooled=1",)])
def test_database_timeouts_leave_no_partial_change(place: Place, options: tuple[str, ...]) -> None:
    """A store has limits of its own; behind a pooler, where those of the database count, each error is ours."""
    place.lead().release()
    for limit in LIMITS:
        place.server.run(f"ALTER DATABASE {place.database} SET {limit} = 200")
    lead, journal = place.open(*options)
    journal.append(0, b"before")
    time.sleep(0.3)
    journal.append(0, b"one")
    blocker = place.connect()
    blocker.execute("SET idle_in_transaction_session_timeout = 0")
    blocker.execute("SELECT FROM queuehint.leader FOR UPDATE")
    if options:
        for _ in range(2):
            with pytest.raises(BackendUnavailableError, match=r"cancel.* nothing was changed"):
                journal.append(0, b"no")
        blocker.rollback()
    else:
        ending = threading.Timer(0.5, blocker.rollback)
        ending.start()
    journal.append(0, b"two")
    lead.renew()
    assert place.stored() == ["before", "one", "two"]


def test_a_transaction_that_the_server_ends_has_no_jobs(place: Place) -> None:
    journal = place.journal()
    idle = place.connect()
    idle.execute("SET idle_in_transaction_session_timeout = 50")
    idle.execute(PUT, ("n", b"ghost"))
    slow = place.connect()
    slow.execute("SET statement_timeout = 50")
    slow.execute(PUT, ("n", b"ghost"))
    with pytest.raises(psycopg.errors.QueryCanceled):
        slow.execute("SELECT pg_sleep(9)")
    with pytest.raises(psycopg.Error):
        slow.execute(PUT, ("n", b"ghost"))
    until_sync(lambda: place.run("SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in tr%'") == [(1,)])
    slow.rollback()
    with pytest.raises(psycopg.Error):
        idle.commit()
    place.put("real")
    assert [row.data for row in journal.inbox(10)] == [b"real"]


# --- transactions that go on for long ---------------------------------------------------------------------------------


def test_rows_are_read_once_however_long_a_transaction_keeps_them(place: Place) -> None:
    """What was taken stays in the table as long as the transaction goes on, and is passed over."""
    journal = place.journal()
    holder = place.connect()
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT 1")
    with psycopg.connect(place.server.url_of(place.database), autocommit=True) as writer:
        for number in range(COUNT):
            writer.execute(PUT, ("n", b"%d" % number))
            assert take(journal) == [b"%d" % number]
            assert take(journal) == []
            if number % 50 == 10:
                # As autovacuum does: it tells the planner that no row is alive, and statements are planned anew.
                place.run("ANALYZE queuehint.inbox, queuehint.journal")
    journal.close()  # a session tells what it has read at its end
    read = "SELECT sum(idx_tup_read)::bigint, (SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'inbox') "
    read += "FROM pg_stat_user_indexes WHERE relname = 'inbox'"
    until_sync(lambda: (place.run(read)[0][0] or 0) >= COUNT, "the server knows what was read")
    [(rows, scans)] = place.run(read)
    assert rows < 20 * COUNT
    assert scans < 20
    holder.rollback()


COUNT = 300


def take(journal: PostgresJournal) -> list[bytes]:
    rows = journal.inbox(100)
    if rows:
        journal.append(0, b"x", taken=[row.id for row in rows])
    return [row.data for row in rows]


@pytest.mark.nightly
def test_long_transaction_does_not_slow_other_rows(place: Place) -> None:
    """Five hundred rows a second are taken as soon at the end as at the beginning."""
    journal = place.journal("durability=process")
    holder = place.connect()
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT 1")
    ends = threading.Event()
    writing = threading.Thread(target=write, args=(place, ends))
    writing.start()
    took: list[float] = []
    begun_s = time.monotonic()
    try:
        while time.monotonic() < begun_s + 240:
            rows = journal.inbox(500)
            if rows:
                journal.append(0, b"x", taken=[row.id for row in rows])
                now_s = time.time()
                took += [now_s - float(row.data) for row in rows]
            else:
                time.sleep(0.005)
    finally:
        ends.set()
        writing.join()
    part = len(took) // 10
    assert part > 2_000
    # If all rows were read again each time it would be a tenth of a second by then.
    assert median(took[-part:]) < 2 * median(took[:part]) + 0.02
    holder.rollback()


def write(place: Place, ends: threading.Event) -> None:
    with psycopg.connect(place.server.url_of(place.database), autocommit=True) as connection:
        due_s = time.monotonic()
        while not ends.is_set():
            connection.execute(PUT, ("n", str(time.time()).encode()))
            due_s += 1 / 500
            time.sleep(max(0.0, due_s - time.monotonic()))
