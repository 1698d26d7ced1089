"""Sessions of PostgreSQL: values go and come as they are, waits end, and the end of a connection is noticed as such."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator

import pytest

from queuehint.backends.postgres import lead as lead_module
from queuehint.backends.postgres.making import layout_of, prepare
from queuehint.backends.postgres.sessions import session as session_module
from queuehint.backends.postgres.sessions.failures import LostError, RefusedError
from queuehint.backends.postgres.sessions.session import Session, integer, statement, text
from queuehint.errors import BackendUnavailableError, CorruptStateError
from tests.postgres_store import Place, header
from tests.support import until_sync

ECHO = statement(
    "echo", "SELECT $1::bytea, $2::bigint, $3::text, $4::bigint[]::text, cardinality($5::bytea[]), $6::boolean"
)


@pytest.fixture(params=["", "pooled=1"])
def session(place: Place, request: pytest.FixtureRequest) -> Iterator[Session]:
    session = Session(place.address(*filter(None, [request.param])))
    yield session
    session.close()


def test_values_go_and_come_as_they_are(session: Session) -> None:
    for _ in range(2):
        [(data, number, word, numbers, count, truth)] = session.run(
            ECHO, b"\0'\\\xff", -(2**63), "ü'\\", [1, -2], [b"\0", b"", b"{,}"], True
        )
        assert (data, integer(number), text(word), text(numbers)) == (b"\0'\\\xff", -(2**63), "ü'\\", "{1,-2}")
        assert (integer(count), bool(integer(truth))) == (3, True)
    assert session.run(ECHO, None, None, None, [], [], False) == [(None, None, None, b"{}", b"\0" * 4, b"\0")]
    assert (integer(None), text(None)) == (0, None)
    assert session.run(statement("none", "SELECT 1 WHERE false")) == []


@pytest.mark.slow
@pytest.mark.parametrize("has_poll", [True, False])
def test_values_of_many_megabytes_go_through(place: Place, has_poll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_poll:
        monkeypatch.delattr(select, "poll")
    session = Session(place.address())
    with contextlib.closing(session):
        large = os.urandom(1 << 20) * 24
        [(data, *_)] = session.run(ECHO, large, 1, "", [], [large, b""], True)
        assert data == large
        assert session.is_quiet()


def test_a_server_that_takes_nothing_in_is_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(place.address())
    monkeypatch.setattr(session_module, "ANSWER_S", 0.2)
    place.server.pause([session.pid])
    try:
        with pytest.raises(LostError, match="takes nothing in") as caught:
            session._send_unnamed(ECHO, b"x" * (24 << 20))
        assert caught.value.is_sent
    finally:
        place.server.resume([session.pid])


def test_a_closed_session_has_sent_nothing(session: Session) -> None:
    session.close()
    session.close()
    assert not session.is_quiet()
    for act in (lambda: session.run(ECHO), lambda: session.script("SELECT 1")):
        with pytest.raises(LostError) as caught:
            act()
        assert not caught.value.is_sent


def test_an_ended_session_is_told_from_a_refused_statement(place: Place, session: Session) -> None:
    with pytest.raises(RefusedError) as refused:
        session.run(statement("wrong", "SELECT 1 / $1::int"), 0)
    assert refused.value.code == "22012"
    with pytest.raises(RefusedError):
        session.script("SELECT 1; SELECT no_such_thing")
    session.script("SELECT 1; SELECT 2")
    assert session.is_quiet()
    place.end_sessions()
    with pytest.raises(LostError, match="terminating connection"):
        session.script("SELECT 1")


def test_session_ended_during_a_statement_has_an_unknown_outcome(place: Place, session: Session) -> None:
    with pytest.raises(LostError, match="terminating connection") as caught:
        session.run(statement("suicide", "SELECT pg_terminate_backend(pg_backend_pid(), 1000)"))
    assert caught.value.is_sent


def test_a_session_whose_first_statement_fails_is_closed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_WHO", statement("who", "SELECT 1 / 0"))
    with pytest.raises(BackendUnavailableError, match="division by zero"):
        Session(place.address())
    sessions = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'queuehint' AND datname = current_database()"
    until_sync(lambda: place.run(sessions) == [], "it has ended")


def test_tables_whose_layout_has_no_row_are_not_used(place: Place) -> None:
    place.lead().release()
    place.run("DELETE FROM queuehint.layout")
    session = Session(place.address())
    with contextlib.closing(session):
        for look in (layout_of, prepare):
            with pytest.raises(BackendUnavailableError, match="are being made or removed"):
                look(session, place.address())


def test_server_that_refuses_the_tables_raises_our_error(place: Place) -> None:
    place.run("CREATE SCHEMA queuehint", "CREATE TYPE queuehint.header AS (x int)")
    with pytest.raises(BackendUnavailableError, match='"header" already exists'):
        place.store().take_lead()
    assert place.run("SELECT count(*) FROM pg_class WHERE relname = 'journal'") == [(0,)]


def test_rows_that_go_while_a_journal_is_read_are_noticed(place: Place) -> None:
    journal = place.journal()
    for text_ in "abc":
        journal.append(0, text_.encode())
    journal.replace([b"p0", b"p1", b"last"], header(1))
    assert list(journal.rows()) == [(0, b"b"), (0, b"c")]
    place.run("DELETE FROM queuehint.journal WHERE number > 2")
    with pytest.raises(CorruptStateError, match="row 3 is missing or was changed"):
        list(journal.rows())


def test_suspended_clock_is_used_where_no_other_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert lead_module._clock() is time.monotonic


def test_nobody_has_led_a_namespace_that_is_new(place: Place) -> None:
    place.lead().release()
    session = Session(place.address())
    with contextlib.closing(session):
        assert lead_module.find_leader(session, place.address(), "new") is None
