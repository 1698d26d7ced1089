"""The journal in PostgreSQL: what is written is there, in order, and nothing else is."""

from __future__ import annotations

import threading
import time

import attrs
import pytest

from queuehint.backends.journal.lead.leadership import DeposedError
from queuehint.backends.postgres.journal import rows as rows_module
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.sessions.session import Session
from queuehint.errors import BackendUnavailableError, CorruptStateError
from tests.postgres_servers import until_waiting
from tests.postgres_store import PUT, Place, header
from tests.support import until_sync

pytestmark = pytest.mark.usefixtures("postgres_server")


def write(journal: PostgresJournal, *texts: str, begin: int = 0) -> None:
    for at_ms, text in enumerate(texts, begin):
        journal.append(at_ms, text.encode())


def read(journal: PostgresJournal) -> list[tuple[int, str]]:
    return [(at_ms, data.decode()) for at_ms, data in journal.rows()]


def take(journal: PostgresJournal, limit: int = 100) -> list[str]:
    """Take what is in the inbox into a row of the journal."""
    rows = journal.inbox(limit)
    if rows:
        journal.append(0, b" ".join(row.data for row in rows), taken=[row.id for row in rows])
    return [row.data.decode() for row in rows]


# --- rows ---


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("pooled=1",), ("durability=process",), ("pooled=1", "durability=process")])
def test_rows_are_read_again_as_they_were_written(place: Place, options: tuple[str, ...]) -> None:
    lead, journal = place.open(*options)
    assert (journal.number, journal.header, journal.owner, list(journal.rows())) == (0, None, None, [])
    write(journal, "one", "two")
    journal.append(7, b"\0\xff", owner="me")
    journal.append(8, b"", owner=None)
    assert (journal.number, journal.owner) == (4, "me")
    lead.release()
    _, again = place.open(*options)
    assert (again.number, again.owner) == (4, "me")
    assert list(again.rows()) == [(0, b"one"), (1, b"two"), (7, b"\0\xff"), (8, b"")]
    write(again, "five", begin=9)
    assert (again.number, again.owner) == (5, "me")


def test_namespaces_of_one_schema_do_not_meet(place: Place) -> None:
    one, two = place.journal(namespace="one"), place.journal(namespace="two")
    write(one, "a", "b")
    write(two, "c")
    place.put("x", namespace="one")
    assert (take(two), take(one)) == ([], ["x"])
    assert (place.stored("one"), place.stored("two")) == (["a", "b", "x"], ["c"])


def test_long_journals_are_read_in_slices(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "SLICE_ROWS", 3)
    lead, journal = place.open()
    write(journal, *map(str, range(10)))
    lead.release()
    assert read(place.journal()) == [(number, str(number)) for number in range(10)]


def test_append_is_one_statement_also_when_it_takes_rows(place: Place) -> None:
    journal = place.journal()
    place.put("a")
    write(journal, "one")
    take(journal)
    write(journal, "two")
    session = journal._connection._session
    sent: list[bytes] = []
    run = Session.run

    def counted(self: Session, statement: object, *values: object) -> object:
        sent.append(statement.name)  # type: ignore[attr-defined]
        return run(self, statement, *values)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "run", counted)
        write(journal, "three")
        place.put("b")
        take(journal)
    assert session is journal._connection._session
    assert sent == [b"queuehint_append", b"queuehint_inbox", b"queuehint_append_taken"]


@pytest.mark.parametrize(
    "damage, said",
    [
        ("UPDATE queuehint.journal SET data = 'x' WHERE number = 2", "row 2 is missing or was changed"),
        ("UPDATE queuehint.journal SET at_ms = 9 WHERE number = 2", "row 2 is missing or was changed"),
        ("DELETE FROM queuehint.journal WHERE number = 2", "row 2 is missing or was changed"),
        ("UPDATE queuehint.journal SET mark = 1 WHERE number = 2", "row 2 is missing or was changed"),
    ],
)
def test_a_damaged_journal_is_not_read(place: Place, damage: str, said: str) -> None:
    lead, journal = place.open()
    write(journal, "one", "two", "three")
    lead.release()
    place.run(damage)
    again = place.journal()
    with pytest.raises(CorruptStateError, match=said):
        read(again)


def test_journal_without_its_newest_rows_is_not_opened(place: Place) -> None:
    lead, journal = place.open()
    write(journal, "one", "two", "three")
    lead.renew()
    place.run("DELETE FROM queuehint.journal WHERE number > 1")
    lead.release()
    with pytest.raises(CorruptStateError, match="ends with row 1, and its leader had written row 3"):
        place.journal()


# --- snapshots ---


def test_small_snapshot_replaces_its_rows_in_one_step(place: Place) -> None:
    lead, journal = place.open()
    write(journal, "one", "two", "three")
    journal.replace([b"part one", b"last"], header(2))
    assert journal.header == header(2, 0, 2)
    write(journal, "four", begin=3)
    journal.replace(iter([b"A", b"B", b"C"]), header(3))
    assert place.stored() == ["four"]
    assert place.run("SELECT part, data FROM queuehint.snapshot ORDER BY 1") == [(2, b"A"), (3, b"B"), (4, b"C")]
    lead.release()
    again = place.journal()
    assert again.header == header(3, 2, 3)
    assert (list(again.parts()), again.description()) == ([b"A", b"B"], (b"C", 3))
    assert (again.number, read(again)) == (4, [(3, "four")])
    assert not again.clear(10, 10)


def test_snapshot_of_all_rows_is_followed_by_the_next(place: Place) -> None:
    lead, journal = place.open()
    write(journal, "one", "two")
    journal.replace([b"last"], header(2))
    write(journal, "three")
    lead.release()
    again = place.journal()
    assert (again.number, read(again), place.stored()) == (3, [(0, "three")], ["three"])
    again.replace([b"last"], header(3))
    again._lead.release()
    last = place.journal()
    assert (last.number, read(last)) == (3, [])
    write(last, "four")
    assert place.stored() == ["four"]


def test_a_snapshot_of_an_empty_journal_counts(place: Place) -> None:
    lead, journal = place.open()
    journal.replace([b"last"], header(0))
    write(journal, "one")
    lead.release()
    assert read(place.journal()) == [(0, "one")]


def test_large_snapshot_counts_from_its_switch_and_clears_in_slices(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "SLICE_PARTS", 2)
    lead, journal = place.open()
    assert not journal.clear(10, 10)
    write(journal, *"abcde")
    journal.replace([b"old", b"last"], header(1))
    first = journal.after_snapshot()
    journal.put(first, [b"p0", b"p1", b"p2"])
    write(journal, "f", begin=5)
    journal.put(first + 3, [b"p3"])
    journal.put(first + 3, [b"P3", b"end"])  # once more, after it was not known whether it was written
    assert journal.header == header(1, 0, 2)
    journal.switch(header(4, first, 5))
    journal.put(first + 5, [b"of one that was given up"])
    assert [journal.clear(2, 2), journal.clear(2, 2), journal.clear(2, 2)] == [True, True, False]
    assert place.run("SELECT part FROM queuehint.snapshot ORDER BY 1") == [(2,), (3,), (4,), (5,), (6,)]
    assert place.stored() == ["e", "f"]
    lead.release()
    again = place.journal()
    assert list(again.parts()) == [b"p0", b"p1", b"p2", b"P3"]
    assert again.description() == (b"end", 11)
    assert read(again) == [(4, "e"), (5, "f")]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM queuehint.snapshot WHERE part = 1",
        "UPDATE queuehint.snapshot SET data = 'xyz' WHERE part = 1",
        "UPDATE queuehint.snapshot SET epoch = 0 WHERE part = 1",
        "DELETE FROM queuehint.journal WHERE number = 2",
    ],
)
def test_snapshot_with_parts_lost_by_the_server_is_ignored(place: Place, damage: str) -> None:
    journal = place.journal()
    write(journal, "one", "two", "three")
    journal.put(0, [b"a", b"b"])
    place.run(damage)
    with pytest.raises(BackendUnavailableError, match="the older snapshot counts"):
        journal.switch(header(2, 0, 2))
    assert journal.header is None
    journal.put(0, [b"a", b"b"])
    journal.switch(header(1, 0, 2))
    assert journal.header == header(1, 0, 2)


def test_parts_of_a_snapshot_that_are_missing_are_noticed(place: Place) -> None:
    journal = place.journal()
    write(journal, "one")
    journal.replace([b"a", b"b", b"c"], header(1))
    place.run("DELETE FROM queuehint.snapshot WHERE part = 1")
    with pytest.raises(CorruptStateError, match="parts of the snapshot are missing"):
        journal.description()
    with pytest.raises(CorruptStateError, match="part 1 of the snapshot is missing"):
        list(journal.parts())
    place.run("DELETE FROM queuehint.snapshot WHERE part < 2")
    with pytest.raises(CorruptStateError, match="part 0 of the snapshot is missing"):
        list(journal.parts())


def test_clearing_follows_the_stored_header(place: Place) -> None:
    """A failover may have lost the newest header: its rows are needed then."""
    journal = place.journal()
    write(journal, *"abcd")
    journal.replace([b"old"], header(1))
    journal.put(1, [b"new"])
    journal.switch(header(3, 1, 1))
    place.run("UPDATE queuehint.header SET number = 1, first = 0, parts = 1")
    while journal.clear(10, 10):
        pass
    assert place.stored() == ["b", "c", "d"]
    assert place.run("SELECT part FROM queuehint.snapshot") == [(0,)]


# --- a leader that leads no more ---


@pytest.mark.parametrize("change", ["epoch = epoch + 1", "secret = 'other'"])
def test_a_deposed_leader_changes_nothing(place: Place, change: str) -> None:
    lead, journal = place.open()
    write(journal, "one", "two")
    journal.replace([b"last"], header(1))
    place.put("x")
    [row] = journal.inbox(10)
    place.run(f"UPDATE queuehint.leader SET {change}")
    for act in (
        lambda: journal.append(0, b"no"),
        lambda: journal.append(0, b"no", owner="no", taken=[row.id]),
        lambda: journal.put(1, [b"no"]),
        lambda: journal.switch(header(2, 0, 1)),
        lambda: journal.replace([b"no"], header(2)),
        lambda: journal.clear(10, 10),
    ):
        with pytest.raises(DeposedError):
            act()
    assert not lead.may_answer()
    assert (place.stored(), place.waiting()) == (["two"], ["x"])
    assert place.run("SELECT part, data FROM queuehint.snapshot") == [(0, b"last")]
    assert place.run("SELECT owner FROM queuehint.leader") == [(None,)]
    assert place.run("SELECT number FROM queuehint.header") == [(1,)]
    assert (journal.number, journal.owner) == (2, None)
    journal._there_s = 0.0
    with pytest.raises(DeposedError):
        journal.check_there()
    with pytest.raises(DeposedError):
        PostgresJournal(lead)


def test_a_journal_that_another_process_has_written_is_left_alone(place: Place) -> None:
    lead, journal = place.open()
    write(journal, "one", "two")
    place.run(
        "DELETE FROM queuehint.journal",
        "INSERT INTO queuehint.journal VALUES ('n', 1, 1, 0, 1, 'another'), ('n', 2, 1, 0, 2, 'journal')",
    )
    with pytest.raises(DeposedError):
        write(journal, "three")
    assert place.stored() == ["another", "journal"]
    assert not lead.may_answer()


def test_journal_longer_than_known_is_left_alone(place: Place) -> None:
    journal = place.journal()
    write(journal, "one")
    place.run("INSERT INTO queuehint.journal VALUES ('n', 2, 1, 0, 2, 'another')")
    with pytest.raises(DeposedError):
        write(journal, "two")
    assert place.stored() == ["one", "another"]


def test_journal_that_begins_with_a_foreign_snapshot_is_left_alone(place: Place) -> None:
    journal = place.journal()
    place.run("INSERT INTO queuehint.header VALUES ('n', 5, 55, 7, 0, 1, '1.0', '{}')")
    with pytest.raises(DeposedError):
        write(journal, "one")
    assert place.stored() == []


# --- the inbox ---


def test_inbox_rows_are_taken_once_in_commit_order(place: Place) -> None:
    journal = place.journal()
    assert journal.inbox(10) == []
    place.put("a", "b", "c")
    assert [row.data for row in journal.inbox(10)] == [b"a", b"b", b"c"]
    assert take(journal, 2) == ["a", "b"]
    assert place.waiting() == ["c"]
    place.put("d")
    assert take(journal) == ["c", "d"]
    assert take(journal) == []
    assert place.stored() == ["a b", "c d"]


def test_transactions_count_as_seen_once_all_rows_were_read(place: Place) -> None:
    journal = place.journal()
    place.put("a", "b", "c")
    assert len(journal.inbox(3)) == 3
    assert journal.seen == 0, "there may be more"
    with place.connect() as connection:
        running = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert len(journal.inbox(4)) == 3
        assert running is not None
        assert 0 < journal.seen <= running[0]
    place.end_sessions()
    until_sync(lambda: bool(journal.inbox(4)) and journal.seen > running[0], "all older transactions have ended")


def test_rows_ordered_by_a_lock_are_taken_in_that_order(place: Place) -> None:
    journal = place.journal()
    place.run("CREATE TABLE document (text text)", "INSERT INTO document VALUES ('')")
    update = "UPDATE document SET text = text || %s"
    first, second = place.connect(), place.connect()
    first.execute(PUT, ("n", b"T1"))
    second.execute(update, ("T2",))
    second.execute(PUT, ("n", b"T2"))
    waiting = threading.Thread(target=first.execute, args=(update, ("T1",)))
    waiting.start()
    until_waiting(place.server, database=place.database)
    second.commit()
    waiting.join()
    assert take(journal) == ["T2"]
    first.commit()
    assert take(journal) == ["T1"]


def test_a_row_that_becomes_visible_late_is_taken_late(place: Place) -> None:
    """Its position was drawn before that of one that was taken."""
    journal = place.journal()
    place.put("first")
    assert take(journal) == ["first"]
    late = place.connect()
    late.execute(PUT, ("n", b"late"))
    late.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as if it stood still in its COMMIT
    place.put("early")
    assert take(journal) == ["early"]
    place.put("later")
    assert take(journal) == ["later"]
    assert take(journal) == []
    late.commit()
    assert take(journal) == ["late"]
    for _ in range(3):
        assert take(journal) == []
    assert journal._inbox._positions.ranges(time.monotonic() + 1) == ([], [])


def test_gap_of_a_failed_transaction_is_forgotten_and_others_kept(place: Place) -> None:
    journal = place.journal()
    place.put("first")
    failed, running = place.connect(), place.connect()
    for connection in (failed, running):
        connection.execute(PUT, ("n", b"x"))
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    failed.rollback()
    place.put("a")
    take(journal)
    for _ in range(3):
        take(journal)
    assert journal._inbox._positions.ranges(time.monotonic() + 1) == ([2], [3])
    running.rollback()
    for _ in range(2):
        take(journal)
    assert journal._inbox._positions.ranges(time.monotonic() + 1) == ([], [])


def test_rows_that_were_returned_and_not_taken_are_returned_again(place: Place) -> None:
    journal = place.journal()
    place.put("a", "b", "c")
    rows = journal.inbox(10)
    journal.append(0, b"", taken=[rows[1].id])
    assert [row.data for row in journal.inbox(10)] == [b"a", b"c"]
    assert [row.data for row in journal.inbox(1)] == [b"a"]


def test_new_connection_searches_rows_from_the_first_position(place: Place) -> None:
    """It may be another server, which has drawn fewer positions."""
    journal = place.journal()
    place.put("a", "b")
    take(journal)
    place.put("c")
    place.run("UPDATE queuehint.inbox SET position = 1")
    assert take(journal) == []
    place.end_sessions()
    assert take(journal) == ["c"]


def test_rolled_back_rows_and_savepoints_are_never_seen(place: Place) -> None:
    journal = place.journal()
    connection = place.connect()
    connection.execute(PUT, ("n", b"gone"))
    connection.rollback()
    connection.execute(PUT, ("n", b"kept"))
    connection.execute("SAVEPOINT s")
    connection.execute(PUT, ("n", b"gone"))
    connection.execute("ROLLBACK TO SAVEPOINT s")
    assert journal.inbox(10) == []
    connection.commit()
    assert take(journal) == ["kept"]


@pytest.mark.slow
def test_long_transaction_beside_a_stream_rereads_no_row(place: Place) -> None:
    """It keeps vacuum away: rows that were taken stay in the index, and must not be read again each time."""
    journal = place.journal()
    long = place.connect()
    long.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    long.execute("SELECT count(*) FROM queuehint.inbox")
    place.run("ANALYZE queuehint.inbox", "ANALYZE queuehint.journal")  # when both were empty
    for number in range(40):
        place.put(*[f"{number}-{each}" for each in range(5)])
        assert len(take(journal)) == 5
    count = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'inbox_position'"
    scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'inbox'"
    journal.close()  # a session reports what it has read when it ends
    place.run("SELECT pg_stat_clear_snapshot()")
    until_sync(lambda: place.run(count)[0][0], "the server has counted")
    [(entries,)] = place.run(count)
    assert 200 <= entries < 800  # all of the index each time: 4 100
    assert place.run(scans)[0][0] <= 2


def test_inbox_row_is_verified_by_its_content(place: Place) -> None:
    """After a failover an id may be that of another row, which was not taken."""
    journal = place.journal()
    place.put("old")
    [row] = journal.inbox(10)
    place.run("UPDATE queuehint.inbox SET data = 'new', written_at = clock_timestamp()")
    journal.append(0, b"old", taken=[row.id])
    assert place.waiting() == ["new"]
    assert journal.lost() == [b"old"]
    assert take(journal) == ["new"]
    assert attrs.evolve(row, written_us=0) != row
