"""What fails around a journal in PostgreSQL, and what then."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queuehint.backends.journal.lead.leadership import DeposedError, LedElsewhereError
from queuehint.backends.journal.lead.standing import Standby
from queuehint.backends.postgres import store as store_module
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.journal import connection as connection_module
from queuehint.backends.postgres.journal import recent as recent_module
from queuehint.backends.postgres.journal.connection import Connection
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.layout import grants
from queuehint.backends.postgres.sessions import session as session_module
from queuehint.backends.postgres.sessions.failures import LostError
from queuehint.backends.postgres.sessions.session import Session
from queuehint.backends.postgres.store import PostgresStore
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendUnavailableError,
    OutcomeUnknownError,
)
from queuehint.testing.driver import job
from tests.conftest import StartProxy
from tests.postgres_servers import PostgresServer, until_waiting
from tests.postgres_store import PUT, Place, header, open_place
from tests.servers import until
from tests.support import LIMIT_S, slow_after

pytestmark = pytest.mark.usefixtures("postgres_server")

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'queuehint' AND datname = current_database()"


@pytest.fixture
def own_place() -> Iterator[Place]:
    """A store on a server of the test's own."""
    with PostgresServer() as server, open_place(server) as place:
        yield place


@contextmanager
def appending(journal: PostgresJournal) -> Iterator[list[str]]:
    """Append rows all the time, in a thread; yield those that are acknowledged."""
    written: list[str] = []
    failed: list[BaseException] = []
    ends = threading.Event()

    def append() -> None:
        try:
            while not ends.is_set():
                journal.append(0, str(len(written)).encode())
                written.append(str(len(written)))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield written
    finally:
        ends.set()
        thread.join()
    assert not failed, failed


def more(written: list[str], count: int = 20) -> None:
    """Wait until so many more rows are acknowledged."""
    before = len(written)
    until(lambda: len(written) >= before + count, f"{count} more rows")


def take(journal: PostgresJournal) -> list[str]:
    rows = journal.inbox(100)
    if rows:
        journal.append(0, b" ".join(row.data for row in rows), taken=[row.id for row in rows])
    return [row.data.decode() for row in rows]


def read(place: Place) -> list[str]:
    """Return what the next leader reads."""
    return [data.decode() for _, data in place.journal().rows()]


# --- the connection, and the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", slow_after(1, [(), ("pooled=1",)]))
def test_sessions_that_an_administrator_ends_lose_and_double_nothing(place: Place, options: tuple[str, ...]) -> None:
    lead, journal = place.open(*options)
    with appending(journal) as written:
        for _ in range(5):
            more(written)
            place.end_sessions()
        more(written)
    lead.renew()
    lead.release()
    assert read(place) == written


@pytest.mark.parametrize("how", slow_after(1, [signal.SIGQUIT, signal.SIGINT]))
def test_a_restart_of_the_server_loses_and_doubles_nothing(own_place: Place, how: signal.Signals) -> None:
    lead, journal = own_place.open()
    with appending(journal) as written:
        for _ in range(2):
            more(written)
            own_place.server.restart(how)
        more(written)
    lead.renew()
    assert lead.may_answer()
    lead.release()
    assert read(own_place) == written


def test_rows_that_a_crash_has_lost_are_written_again(own_place: Place) -> None:
    """With durability=process the server may lose the last ones."""
    lead, journal = own_place.open("durability=process")
    own_place.server.restart(wal_writer_delay="10s")
    with appending(journal) as written:
        more(written)
        own_place.server.restart(signal.SIGQUIT)
        more(written)
    assert own_place.run("SHOW wal_writer_delay") == [("10s",)]
    lead.renew()
    lead.release()
    assert read(own_place) == written


def test_a_server_that_stays_down_is_an_error_in_time(own_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PATIENCE_S", 0.05)
    lead, journal = own_place.open()
    journal.append(0, b"one")
    own_place.server.stop()
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknownError, match="may have been written"):
        journal.append(1, b"two")
    with pytest.raises(BackendUnavailableError):
        journal.append(1, b"two")
    for act in (lambda: journal.inbox(1), lambda: journal.put(0, [b"x"]), lead.renew, lambda: lead.announce("x")):
        with pytest.raises(BackendUnavailableError):
            act()
    assert time.monotonic() - began_s < LIMIT_S
    lead._until_s = float("inf")
    assert not lead.may_answer()
    with pytest.raises(BackendUnavailableError):
        own_place.store().take_lead()
    own_place.server.restart()
    monkeypatch.setattr(connection_module, "PATIENCE_S", LIMIT_S)
    lead.renew()
    journal.append(1, b"two")
    assert own_place.stored() == ["one", "two"]
    monkeypatch.setattr(connection_module, "PATIENCE_S", 0.05)
    own_place.server.stop()
    lead.release()


def test_a_store_whose_server_is_away_is_closed_soon(
    place: Place, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way has its time no more, and there is no last snapshot; calls are told."""
    monkeypatch.setattr(connection_module, "HURRIED_S", 0.2)
    monkeypatch.setattr(connection_module, "PATIENCE_S", 600)
    proxy = start_proxy(place.server.port)
    caller = place.caller(f"port={proxy.port}")
    caller.enqueue(job("a"))
    proxy.refuse()
    proxy.rst()
    failed: list[BaseException] = []

    def enqueue() -> None:
        try:
            caller.enqueue(job("b"))
        except BaseException as error:
            failed.append(error)

    calling = threading.Thread(target=enqueue)
    calling.start()
    before = proxy.refused
    until(lambda: proxy.refused >= before + 2, "it is tried again")
    began_s = time.monotonic()
    caller.store.close_sync()
    calling.join()
    assert time.monotonic() - began_s < LIMIT_S
    [error] = failed
    assert isinstance(error, (BackendUnavailableError, OutcomeUnknownError))
    proxy.heal()
    assert place.caller().find("a") is not None


@pytest.mark.slow
def test_standby_ends_soon_while_its_server_is_away(
    place: Place, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connection_module, store_module):
        monkeypatch.setattr(module, "PATIENCE_S", 600)
    leader = place.caller()
    leader.store.adopt(list)  # it runs jobs, and keeps the lead
    leader.enqueue(job("a"))
    proxy = start_proxy(place.server.port)
    store = place.caller(f"port={proxy.port}").store
    standby, stop = Standby(store), threading.Event()
    thread = threading.Thread(target=standby.run, args=(stop,))
    thread.start()
    until(lambda: standby._asks_s and store._leader, "it stands by, and has asked the leader")
    proxy.refuse()
    proxy.rst()
    before = proxy.refused
    until(lambda: proxy.refused > before + 3, "it tries again and again")
    began_s = time.monotonic()
    stop.set()
    thread.join()
    store.close_sync()
    assert time.monotonic() - began_s < LIMIT_S


def test_a_reply_that_was_lost_is_looked_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = place.journal()
    place.put("x")
    [row] = journal.inbox(10)
    run, count = Session.run, 0

    def losing(self: Session, statement: Any, *values: Any) -> Any:
        nonlocal count
        count += 1
        found = run(self, statement, *values)
        if count == 1:
            self.close()
            raise LostError("lost", is_sent=True)
        return found

    monkeypatch.setattr(Session, "run", losing)
    journal.append(0, b"one", taken=[row.id])
    monkeypatch.undo()
    assert journal.lost() == []
    journal.append(0, b"two")
    assert (place.stored(), place.waiting()) == (["one", "two"], [])


def test_statement_that_ends_late_is_found_eventually(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that was left may still be at work, and write what it was sent."""
    journal = place.journal()
    run = Session.run
    late: list[Any] = []

    def losing(self: Session, statement: Any, *values: Any) -> Any:
        if not late:
            late.append((statement, values))
            self.close()
            raise LostError("lost", is_sent=True)
        if statement.name == b"queuehint_append" and len(late) == 1:
            other = Session(place.address())
            late.append(run(other, late[0][0], *late[0][1]))
            other.close()
        return run(self, statement, *values)

    monkeypatch.setattr(Session, "run", losing)
    journal.append(0, b"one")
    monkeypatch.undo()
    journal.append(0, b"two")
    assert place.stored() == ["one", "two"]


def test_statement_that_waits_too_long_is_canceled_without_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, journal = place.open()
    blocker = place.connect()
    blocker.execute("SELECT FROM queuehint.leader FOR UPDATE")
    acts: tuple[Callable[[], None], ...] = (
        lambda: journal.append(0, b"no"),
        lead.renew,
        lambda: journal.put(0, [b"x"]),
    )
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "ANSWER_S", 0.1)
        for act in acts:
            with pytest.raises(BackendUnavailableError, match="cancel"):
                act()
    blocker.rollback()
    journal.append(0, b"yes")
    lead.renew()
    assert place.stored() == ["yes"]


def test_a_session_that_stands_still_is_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a cancellation helps. When it goes on, it writes nothing a second time."""
    lead, journal = place.open()
    lead.release()
    lead, journal = place.open()
    place.run("SELECT 1")
    monkeypatch.setattr(session_module, "ANSWER_S", 0.1)
    monkeypatch.setattr(session_module, "CANCEL_S", 0.1)
    pid = journal._connection._session.pid
    place.server.pause([pid])
    try:
        journal.append(0, b"one")
        journal.append(1, b"two")
    finally:
        place.server.resume([pid])
    until(lambda: (pid,) not in place.run(SESSIONS), "the session that was left has ended")
    journal.append(2, b"three")
    assert place.stored() == ["one", "two", "three"]


@pytest.mark.slow
def test_write_without_timely_reply_has_an_unknown_outcome(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _, journal = place.open()
    monkeypatch.setattr(connection_module, "PATIENCE_S", 0.5)
    monkeypatch.setattr(session_module, "ANSWER_S", 0.3)
    monkeypatch.setattr(session_module, "CANCEL_S", 0.2)
    blocker = place.connect()
    blocker.execute("SELECT FROM queuehint.leader FOR UPDATE")
    monkeypatch.setattr(Session, "_cancel", lambda self: None)  # a cancellation gets lost too
    pid = journal._connection._session.pid
    failed: list[BaseException] = []

    def append() -> None:
        try:
            journal.append(0, b"one")
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    until_waiting(place.server, database=place.database)
    place.server.pause([pid])
    thread.join()
    [error] = failed
    assert isinstance(error, OutcomeUnknownError)
    blocker.rollback()
    place.server.resume([pid])
    until(lambda: place.stored() == ["one"], "the session that was left has written it")
    with pytest.raises(DeposedError):  # the journal must be read again
        journal.append(0, b"two")


# --- the end of the journal -------------------------------------------------------------------------------------------


def test_the_lost_end_of_the_journal_is_written_again(place: Place) -> None:
    lead, journal = place.open()
    for text in "abcdef":
        journal.append(0, text.encode(), owner=text if text == "e" else None)
    before = place.run("SELECT number, mark FROM queuehint.journal ORDER BY number")
    place.run("DELETE FROM queuehint.journal WHERE number > 3")
    journal.append(0, b"g")
    assert place.stored() == list("abcdefg")
    assert place.run("SELECT number, mark FROM queuehint.journal WHERE number < 7 ORDER BY number") == before
    place.run("DELETE FROM queuehint.journal WHERE number > 3")
    journal.check_there()
    assert place.stored() == list("abc")
    journal._there_s = 0.0
    journal.check_there()
    journal.check_there()
    assert place.stored() == list("abcdefg")
    lead.release()
    assert read(place) == list("abcdefg")


def test_the_lost_end_is_written_again_behind_a_snapshot(place: Place) -> None:
    journal = place.journal()
    for text in "abcd":
        journal.append(0, text.encode())
    journal.replace([b"last"], header(2))
    place.run("DELETE FROM queuehint.journal")
    journal.append(0, b"e")
    assert place.stored() == list("cde")
    place.run("DELETE FROM queuehint.journal", "UPDATE queuehint.header SET number = 1")
    with pytest.raises(DeposedError):  # the rows that only the snapshot covered are gone with it
        journal.append(0, b"f")


def test_more_than_the_known_end_is_not_written_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "RECENT_ROWS", 2)
    lead, journal = place.open()
    for text in "abcd":
        journal.append(0, text.encode())
    place.run("DELETE FROM queuehint.journal WHERE number > 1")
    with pytest.raises(DeposedError):
        journal.append(0, b"e")
    assert place.stored() == ["a"]
    assert not lead.may_answer()


def test_only_so_many_bytes_of_the_end_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "RECENT_BYTES", 100)
    rows = recent_module.RecentRows()
    for number in range(10):
        rows.add(recent_module.RecentRow(number, 0, b"x" * 30, 0, 0, None, ()))
    assert [row.number for row in rows] == [7, 8, 9]
    rows.add(recent_module.RecentRow(10, 0, b"x" * 300, 0, 0, None, ()))
    assert [row.number for row in rows] == [10]


@pytest.mark.slow
def test_inbox_rows_are_retaken_and_lost_transactions_are_named(
    own_place: Place,
) -> None:
    """The server goes back to where it was after `kept` was written and before it was taken."""
    lead, journal = own_place.open()
    own_place.put("first")
    assert take(journal) == ["first"]
    own_place.put("kept")
    saved = own_place.server.save()
    assert take(journal) == ["kept"]
    own_place.put("lost 1", "lost 2")
    journal.append(0, b"between")
    assert take(journal) == ["lost 1", "lost 2"]
    own_place.put("lost before it was taken")
    assert [row.data for row in journal.inbox(10)] == [b"lost before it was taken"]
    own_place.server.go_back(saved)
    own_place.put("new")  # its position was drawn before
    journal.append(0, b"after")
    assert own_place.stored() == ["first", "kept", "between", "lost 1 lost 2", "after"]
    assert journal.lost() == [b"lost 1", b"lost 2"]
    assert own_place.waiting() == ["new"]
    assert take(journal) == ["new"]
    own_place.put("newer")
    assert take(journal) == ["newer"]
    lead.renew()
    lead.release()
    assert read(own_place)[-3:] == ["after", "new", "newer"]


def test_rows_restored_with_a_lost_end_are_taken_once(place: Place) -> None:
    """The end of the journal is written again before the inbox is read."""
    journal = place.journal()
    place.put("x")
    columns = "id, namespace, position, written_at, data"
    place.run(f"CREATE TABLE before AS SELECT {columns} FROM queuehint.inbox")
    assert take(journal) == ["x"]
    place.run(
        "DELETE FROM queuehint.journal",
        f"INSERT INTO queuehint.inbox ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM before",
    )
    assert take(journal) == []
    assert (place.stored(), place.waiting(), journal.lost()) == (["x"], [], [])
    place.run("DELETE FROM queuehint.journal", "INSERT INTO queuehint.journal VALUES ('n', 1, 1, 0, 1, 'another')")
    with pytest.raises(DeposedError):
        journal.inbox(10)


def test_rows_read_before_the_server_lost_them_are_named(own_place: Place) -> None:
    _, journal = own_place.open()
    journal.append(0, b"one")
    own_place.put("first")
    assert take(journal) == ["first"]
    saved = own_place.server.save()
    own_place.put("lost")
    rows = journal.inbox(10)
    own_place.server.go_back(saved)
    journal.append(0, b"lost", taken=[row.id for row in rows])
    assert journal.lost() == [b"lost"]


def test_restore_to_an_earlier_time_deposes_the_leader(own_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "RECENT_ROWS", 2)
    lead, journal = own_place.open()
    journal.append(0, b"a")
    saved = own_place.server.save()
    for text in "bcd":
        journal.append(0, text.encode())
    own_place.server.go_back(saved)
    with pytest.raises(DeposedError):
        journal.append(0, b"e")
    assert not lead.may_answer()
    own_place.run("UPDATE queuehint.leader SET expires_at = '-infinity'")
    _, again = own_place.open()
    again.append(0, b"B")
    assert own_place.stored() == ["a", "B"]
    with pytest.raises(DeposedError):
        journal.append(0, b"e")


@pytest.mark.slow
def test_snapshot_in_progress_at_a_restore_does_not_count(own_place: Place) -> None:
    _, journal = own_place.open()
    journal.append(0, b"a")
    journal.put(0, [b"p0"])
    saved = own_place.server.save()
    journal.put(1, [b"p1"])
    own_place.server.go_back(saved)
    journal.put(2, [b"p2"])
    with pytest.raises(BackendUnavailableError, match="the older snapshot counts"):
        journal.switch(header(1, 0, 3))
    assert own_place.run("SELECT count(*) FROM queuehint.header") == [(0,)]


def test_a_row_that_another_leader_has_covered_meanwhile_is_unknown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, journal = place.open()
    run = Session.run
    is_first = True

    def losing(self: Session, statement: Any, *values: Any) -> Any:
        nonlocal is_first
        if not is_first:
            return run(self, statement, *values)
        is_first = False
        run(self, statement, *values)
        self.close()
        place.run(
            "UPDATE queuehint.leader SET epoch = 2",
            "INSERT INTO queuehint.header VALUES ('n', 3, 33, 7, 0, 1, '1.0', '{}')",
            "DELETE FROM queuehint.journal",
        )
        raise LostError("lost", is_sent=True)

    monkeypatch.setattr(Session, "run", losing)
    with pytest.raises(OutcomeUnknownError, match="another process leads"):
        journal.append(0, b"one")


# --- what may not be used ---------------------------------------------------------------------------------------------


@contextmanager
def user(place: Place, *statements: str) -> Iterator[str]:
    """A role of the test's own; statements have its name for %s."""
    place.run("CREATE ROLE someone_of_test LOGIN", *[each.replace("%s", "someone_of_test") for each in statements])
    try:
        yield "someone_of_test"
    finally:
        place.close()
        place.run("DROP OWNED BY someone_of_test", "DROP ROLE someone_of_test")


def test_user_without_create_right_is_given_the_command(place: Place) -> None:
    with user(place) as name:
        with pytest.raises(BackendDeniedError, match="let its owner run `queuehint postgres ddl URL`") as caught:
            place.store(user=name).take_lead()
        assert "queuehint" in str(caught.value)
        place.lead().release()
        with pytest.raises(BackendDeniedError, match="`queuehint postgres ddl URL`"):  # the tables of another
            place.store(user=name).take_lead()
        with pytest.raises(BackendDeniedError):
            place.run("SELECT 1")
            place.store("schema=another", user=name).take_lead()
        for kind in ("producer", "looker"):
            place.run(grants("queuehint", kind, name))
            with pytest.raises(BackendDeniedError):
                place.store(user=name).take_lead()


def test_worker_role_needs_exactly_its_grants(place: Place) -> None:
    with user(place) as name:
        place.lead().release()
        place.run(grants("queuehint", "worker", name))
        lead, journal = place.open(user=name)
        place.put("x")
        journal.append(0, b"one", owner="me")
        assert take(journal) == ["x"]
        journal.put(0, [b"p"])
        journal.switch(header(1, 0, 1))
        while journal.clear(10, 10):
            pass
        journal.replace([b"q"], header(2))
        journal.check_there()
        lead.announce("here")
        lead.renew()
        lead.release()
        assert place.open(user=name)[1].number == 2
        place.run(f"REVOKE INSERT ON queuehint.journal FROM {name}")
        again = place.journal(user=name, namespace="other")
        with pytest.raises(BackendDeniedError, match="permission denied for table journal"):
            again.append(0, b"no")


def test_schema_user_creates_tables_without_rights_on_the_database(place: Place) -> None:
    with user(place, "CREATE SCHEMA mine AUTHORIZATION %s") as name:
        lead, journal = place.open("schema=mine", user=name)
        journal.append(0, b"one")
        lead.release()
        place.run("DROP SCHEMA mine CASCADE")


def test_a_read_only_user_is_denied_by_name(place: Place) -> None:
    place.lead().release()
    with (
        user(
            place,
            grants("queuehint", "worker", "%s").replace('"%s"', "%s"),
            "ALTER ROLE %s SET default_transaction_read_only = on",
        ) as name,
        pytest.raises(BackendDeniedError, match="read-only transaction"),
    ):
        place.store(user=name).take_lead()


def test_user_settings_do_not_change_statements(place: Place) -> None:
    place.lead().release()
    with user(
        place,
        grants("queuehint", "worker", "%s").replace('"%s"', "%s"),
        "ALTER ROLE %s SET statement_timeout = 200",
        "ALTER ROLE %s SET idle_session_timeout = 200",
        "ALTER ROLE %s SET search_path = queuehint",
        "ALTER ROLE %s SET default_transaction_isolation = serializable",
        "ALTER ROLE %s SET synchronous_commit = off",
        "ALTER ROLE %s SET datestyle = 'German'",
        "ALTER ROLE %s SET bytea_output = escape",
        "ALTER ROLE %s SET client_encoding = latin1",
    ) as name:
        lead, journal = place.open(user=name)
        time.sleep(0.3)
        place.put("x")
        journal.append(0, "ü\0".encode(), owner="ü")
        assert take(journal) == ["x"]
        lead.renew()
        show = b"SELECT current_setting('synchronous_commit')"
        assert journal._connection.run(session_module.Statement(b"show", show)) == [(b"on",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, setting",
    [
        ((), "remote_apply"),
        (("durability=process",), "off"),
        (("pooled=1",), "on"),
        (("pooled=1", "durability=process"), "off"),
    ],
)
def test_durability_is_at_least_the_requested_one(place: Place, options: tuple[str, ...], setting: str) -> None:
    configured = "off" if "pooled=1" in options else "remote_apply"
    place.run(f"ALTER DATABASE {place.database} SET synchronous_commit = '{configured}'")
    journal = place.journal(*options)
    text = b"SELECT current_setting('synchronous_commit')"
    if "pooled=1" not in options:
        assert journal._connection.run(session_module.Statement(b"show", text)) == [(setting.encode(),)]
        return
    place.run(
        "CREATE TABLE said (setting text)",
        "CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.said VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER say AFTER INSERT ON queuehint.journal DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION say()",
    )
    journal.append(0, b"one")
    assert place.run("SELECT * FROM said") == [(setting,)]


def test_tables_of_a_later_layout_are_refused_by_their_number(place: Place) -> None:
    place.lead().release()
    place.run("UPDATE queuehint.layout SET number = 99")
    with pytest.raises(BackendDeniedError, match=r"has tables of layout 99, and this release of queuehint knows \d"):
        place.store().take_lead()


def test_tables_of_another_application_are_left_alone(place: Place) -> None:
    place.run("CREATE SCHEMA app", "CREATE TABLE app.journal (id int)")
    with pytest.raises(BackendDeniedError, match="tables of another application: choose another by schema="):
        place.store("schema=app").take_lead()
    place.run("CREATE SCHEMA own", "CREATE TABLE own.jobs (id int)")
    place.lead("schema=own")


def test_tables_that_were_removed_are_an_error_of_ours(place: Place) -> None:
    lead, journal = place.open()
    place.run("DROP SCHEMA queuehint CASCADE")
    for act in (lambda: journal.append(0, b"x"), lambda: journal.inbox(1), lead.renew):
        with pytest.raises(BackendUnavailableError, match="the tables were removed"):
            act()


def test_two_processes_make_the_tables_once(place: Place) -> None:
    """The second one waits for the first, and finds them made."""
    blocker = place.connect()
    from queuehint.backends.postgres.layout import lock_key

    blocker.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("queuehint"),))
    failed: list[BaseException] = []

    def take_lead(namespace: str) -> None:
        try:
            place.store(namespace=namespace).take_lead().release()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=take_lead, args=(namespace,)) for namespace in "abc"]
    for thread in threads:
        thread.start()
    until_waiting(place.server, 3, place.database)
    blocker.rollback()
    for thread in threads:
        thread.join()
    assert not failed
    assert place.run("SELECT namespace, epoch FROM queuehint.leader ORDER BY 1") == [("a", 1), ("b", 1), ("c", 1)]


def test_too_old_server_is_refused_by_its_release(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "OLDEST", 99)
    with pytest.raises(BackendDeniedError, match=r"is PostgreSQL 1\d\.\d+, and queuehint needs 99 or a later one"):
        place.store().take_lead()


def test_a_replica_is_waited_for(own_place: Place) -> None:
    server = own_place.server
    server.stop()
    (server.data / "standby.signal").touch()
    server.restart()
    with pytest.raises(BackendUnavailableError, match="is a replica, which takes no changes"):
        own_place.store().take_lead()
    assert server.run("SELECT pg_promote()") == [(True,)]
    own_place.lead()


@pytest.mark.slow
def test_missing_and_foreign_databases_have_distinct_errors(place: Place) -> None:
    url = place.server.url_of("no_such_database")
    with pytest.raises(BackendDeniedError, match='database "no_such_database" does not exist'):
        Session(parse_url(url))
    with pytest.raises(BackendDeniedError, match='role "nobody_here" does not exist'):
        Session(parse_url(place.url(user="nobody_here")))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"postgresql://ann:secret@127.0.0.1:{taken.getsockname()[1]}/app"
        with pytest.raises(BackendUnavailableError, match="refused") as caught:
            Session(parse_url(closed))
        assert "secret" not in str(caught.value)
        taken.listen()
        with pytest.raises(BackendUnavailableError):
            Session(parse_url(closed + "?connect_timeout=2"))


def test_a_pooler_that_was_not_named_is_noticed(place: Place) -> None:
    with pretending(place.server.port) as port:
        address = parse_url(f"postgresql://postgres@127.0.0.1:{port}/{place.database}?sslmode=disable")
        lead = PostgresStore(address, "n").take_lead()
        assert lead._session.is_pooled
        assert place.run("SELECT session_pid FROM queuehint.leader") == [(None,)]
        lead.release()
    assert not place.lead()._session.is_pooled


@contextmanager
def pretending(port: int) -> Iterator[int]:
    """Stand before a server, and give clients another number of their session, as PgBouncer does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pass_on(source: socket.socket, target: socket.socket, *, changes: bool) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65_536):
                    if changes and (at := data.find(b"K\0\0\0\x0c")) >= 0:
                        data = data[: at + 5] + b"\x7f\xff\xff\xf0" + data[at + 9 :]
                        changes = False
                    target.sendall(data)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)

        def serve() -> None:
            with listener.accept()[0] as client, socket.create_connection(("127.0.0.1", port)) as server:
                back = threading.Thread(target=pass_on, args=(server, client), kwargs={"changes": True})
                back.start()
                pass_on(client, server, changes=False)
                back.join()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


# --- writers, beside all of it ----------------------------------------------------------------------------------------


def test_order_follows_commits_across_writers_savepoints_and_leader_changes(place: Place) -> None:
    place.run(
        "CREATE TABLE document (id int PRIMARY KEY, text text NOT NULL)",
        "INSERT INTO document SELECT n, '' FROM generate_series(0, 2) n",
    )
    place.lead().release()
    seed = random.randrange(2**32)
    done = threading.Event()

    def write(number: int) -> None:
        rng = random.Random(seed + number)
        connection = connections[number]
        for turn in range(30):
            document, word = rng.randrange(3), f"{number}.{turn}"
            if rng.random() < 0.3:
                connection.execute("SAVEPOINT s")
                connection.execute(PUT, ("n", f"{document} gone".encode()))
                connection.execute("ROLLBACK TO SAVEPOINT s")
            is_first = rng.random() < 0.5
            if is_first:
                connection.execute(PUT, ("n", f"{document} {word}".encode()))
            connection.execute("UPDATE document SET text = text || %s WHERE id = %s", (word + " ", document))
            if not is_first:
                connection.execute(PUT, ("n", f"{document} {word}".encode()))
            if rng.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()

    connections = [place.connect() for _ in range(4)]
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    taken: list[str] = []
    while not done.is_set():
        if not any(thread.is_alive() for thread in threads):
            done.set()
        lead, journal = place.open()
        for _ in range(20):
            while found := take(journal):
                taken += found
            if random.random() < 0.1:
                place.run(SESSIONS.replace("SELECT pid", "SELECT pg_terminate_backend(pid)"))
        lead.release()
        journal.close()
    for number in range(3):
        [(text,)] = place.run(f"SELECT text FROM document WHERE id = {number}")
        assert [word.partition(" ")[2] for word in taken if word.startswith(f"{number} ")] == text.split(), seed
    assert place.waiting() == []
    assert " ".join(place.stored()).split() == " ".join(taken).split()


def test_errors_of_a_store_are_ours(place: Place) -> None:
    """Whatever is wrong with a connection, nothing of the driver's is raised."""
    with pytest.raises((BackendError, LedElsewhereError)):
        Connection(parse_url(place.url("options=-c%20no_such_setting%3D1")))
