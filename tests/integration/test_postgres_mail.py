"""Streams through the database: what they carry, what they are bounded by, and how they end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuehint.backends.journal.guests import doors as doors_module
from queuehint.backends.journal.guests import server as server_module
from queuehint.backends.journal.guests.doors import GoneError
from queuehint.backends.postgres import store as store_module
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.layout import ddl, grants
from queuehint.backends.postgres.lead import take_lead
from queuehint.backends.postgres.mail import carrier as carrier_module
from queuehint.backends.postgres.mail import door as door_module
from queuehint.backends.postgres.mail.carrier import Carrier
from queuehint.backends.postgres.mail.letters import DATA, OPEN, Piece, boxes_of, inbox_channel, new_box, written
from queuehint.backends.postgres.mail.mailbox import Mailbox
from queuehint.errors import BackendDeniedError, BackendInUseError, BackendUnavailableError, OutcomeUnknownError
from queuehint.testing.driver import job
from tests.postgres_store import Caller, Place
from tests.support import LIMIT_S, until_sync

LISTENERS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'queuehint' AND datname = current_database()"
TERM = "1.abc"


class Ends:
    """A carrier of a leader, and guests'."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.accepted: list[socket.socket] = []
        self._opened: list[Any] = []
        place.run(ddl("queuehint"))
        place.run(
            "INSERT INTO queuehint.leader (namespace, epoch, secret, term, number, expires_at) "
            f"VALUES ('n', 1, 's', '{TERM}', 0, 'infinity')"
        )
        self.leader = self.carrier(self.accepted.append)
        self.leader.start()

    def carrier(
        self,
        adopt: Callable[[socket.socket], None] | None = None,
        *options: str,
        look: Callable[[], None] | None = None,
    ) -> Carrier:
        found = Carrier(self.place.address(*options), "n", adopt, look)
        self._opened.append(found)
        return found

    def open(self, *options: str) -> tuple[socket.socket, socket.socket]:
        """Open a stream by a guest of its own; return its ends, that of the guest first."""
        return self.open_by(self.carrier(None, *options))

    def open_by(self, guest: Carrier) -> tuple[socket.socket, socket.socket]:
        """Open a stream by a guest; return its ends, that of the guest first."""
        mine = self.opened(guest)
        until_sync(lambda: self.accepted)
        other = self.accepted.pop()
        other.settimeout(60)
        self._opened += [other]
        return mine, other

    def opened_at(self, box: str) -> socket.socket:
        """Open a stream to another leader."""
        mine = self.carrier().open(box, TERM, LIMIT_S)
        self._opened.append(mine)
        return mine

    def opened(self, guest: Carrier) -> socket.socket:
        mine = guest.open(self.leader.box, TERM, 20)
        mine.settimeout(60)
        self._opened.append(mine)
        return mine

    def run(self, statement: str) -> Any:
        return self.place.run(statement)

    def rows(self) -> int:
        count: int = self.run("SELECT count(*) FROM queuehint.mail")[0][0]
        return count

    def close(self) -> None:
        for each in (*reversed(self._opened), *self.accepted):
            each.close()


@pytest.fixture
def ends(place: Place) -> Iterator[Ends]:
    ends = Ends(place)
    yield ends
    ends.close()


def read(end: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = end.recv(1 << 20)
        assert data
        found += data
    return bytes(found)


@pytest.fixture(params=["listening", "polling"])
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return () if request.param == "listening" else ("pooled=1",)


# --- what is carried ---


def test_bytes_arrive_unchanged_both_ways_and_then_the_end(ends: Ends, options: tuple[str, ...]) -> None:
    mine, other = ends.open(*options)
    for size in (1, 5_000, 20_000, 300_000, 2_500_000, 3):
        data = os.urandom(size)
        for sender, receiver in ((mine, other), (other, mine)):
            sending = threading.Thread(target=sender.sendall, args=(data,))
            sending.start()
            assert read(receiver, size) == data
            sending.join()
    other.sendall(b"last")
    other.close()
    assert read(mine, 4) == b"last"
    assert mine.recv(1) == b""
    assert ends.rows() == 0


def test_mail_beside_a_statement_reply_is_delivered(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = ends.open()
    monkeypatch.setattr(carrier_module, "TICK_S", 99.0)
    for end in (mine, other):
        end.settimeout(60)
    for _ in range(300):  # both send at once, so that letters cross
        for end in (mine, other):
            end.sendall(b"x")
        for end in (mine, other):
            assert end.recv(1) == b"x"


def test_streams_of_one_guest_are_apart(ends: Ends) -> None:
    guest = ends.carrier()
    pairs = [ends.open_by(guest) for _ in range(3)]
    for n, (mine, _) in enumerate(pairs):
        mine.sendall(b"%d" % n)
    for n, (_, other) in enumerate(pairs):
        assert other.recv(9) == b"%d" % n
    pairs[0][0].close()
    assert pairs[0][1].recv(1) == b""
    pairs[1][1].sendall(b"x")
    assert pairs[1][0].recv(1) == b"x"


def test_unread_stream_is_paused_and_others_continue(ends: Ends, options: tuple[str, ...]) -> None:
    guest = ends.carrier(None, *options)
    mine, _ = ends.open_by(guest)
    (stream,) = guest._streams.values()
    mine.settimeout(0.1)
    sent = 0
    while sent < 16 << 20:
        try:
            sent += mine.send(bytes(1 << 16))
        except TimeoutError:
            if not stream.room:
                break
    assert sent < 4 << 20  # the window, and what sockets take
    other_mine, other = ends.open(*options)
    other_mine.sendall(b"x")
    assert other.recv(1) == b"x"
    assert ends.rows() == 0


# --- what is not of a stream ---


def test_letters_that_are_none_are_passed_over(ends: Ends) -> None:
    mine, other = ends.open()
    sender = new_box("queuehint", "n", is_polled=False)
    pieces = [Piece(b"unknown.", DATA, 0, b"x"), Piece(b"unknown.", 6)]
    (note,), _ = written(sender, pieces, is_polled=False)
    for payload in ("", "x", "@", "AAAA", note):
        ends.run(f"SELECT pg_notify('{ends.leader.box}', '{payload}')")
    for data in (b"", b"x" * 99, written(sender, pieces, is_polled=True)[1]):
        assert data is not None
        ends.run(f"INSERT INTO queuehint.mail (box, data) VALUES ('{ends.leader.box}', '\\x{data.hex()}')")
    ends.run(f"SELECT pg_notify('{ends.leader.box}', '@')")
    mine.sendall(b"y")
    assert other.recv(1) == b"y"
    until_sync(lambda: ends.rows() == 0)


@pytest.mark.slow
def test_mailbox_fetches_late_letters_and_letters_after_a_crash(ends: Ends) -> None:
    """A row with a lower number may be committed later, and a crash of the server empties the table."""
    mailbox = Mailbox(ends.place.address("pooled=1"), "n")
    ends._opened.append(mailbox)
    sender = new_box("queuehint", "n", is_polled=True)

    def put(connection: Any, data: bytes) -> None:
        _, row = written(sender, [Piece(b"8 bytes.", DATA, 0, data)], is_polled=True)
        connection.execute("INSERT INTO queuehint.mail (box, data) VALUES (%s, %s)", (mailbox.name, row))

    def fetched() -> list[bytes]:
        return [piece.data for _, pieces in mailbox.receive() for piece in pieces]

    late, now = ends.place.connect(), ends.place.connect()
    put(late, b"late")
    for data in (b"first", b"second"):
        put(now, data)
        now.commit()
        found: list[bytes] = []
        until_sync(lambda into=found: into.extend(fetched()) or into)  # type: ignore[misc]
        assert found == [data]
        until_sync(lambda: fetched() or mailbox._marks.above(time.monotonic()))
    late.commit()
    until_sync(lambda: fetched() == [b"late"])
    ends.run("TRUNCATE queuehint.mail RESTART IDENTITY")
    put(now, b"anew")
    now.commit()
    until_sync(lambda: fetched() == [b"anew"])


def test_nobody_else_sends_on_a_stream(ends: Ends) -> None:
    mine, other = ends.open()
    (stream_id,) = ends.leader._streams
    (note,), _ = written(new_box("queuehint", "n", is_polled=False), [Piece(stream_id, DATA, 0, b"x")], is_polled=False)
    ends.run(f"SELECT pg_notify('{ends.leader.box}', '{note}')")
    mine.sendall(b"y")
    assert other.recv(9) == b"y"


def test_piece_beyond_the_window_ends_the_stream(ends: Ends) -> None:
    mine, other = ends.open()
    (stream,) = ends.leader._streams.values()
    (note,), _ = written(stream.box, [Piece(stream.id, DATA, 1 << 30, b"x")], is_polled=False)
    ends.run(f"SELECT pg_notify('{ends.leader.box}', '{note}')")
    assert other.recv(9) == b""
    assert mine.recv(9) == b""


def test_a_piece_that_is_missing_ends_the_stream(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_module, "GAP_S", 0.1)
    mine, other = ends.open()
    (stream,) = ends.leader._streams.values()
    (note,), _ = written(stream.box, [Piece(stream.id, DATA, 5, b"x")], is_polled=False)
    ends.run(f"SELECT pg_notify('{ends.leader.box}', '{note}')")
    assert other.recv(9) == b""
    assert mine.recv(9) == b""


# --- the end of streams, and of sessions ---


def test_a_session_that_was_cut_ends_all_its_streams(ends: Ends) -> None:
    for pid in ends.run(LISTENERS):
        mine, other = ends.open()
        ends.run(f"SELECT pg_terminate_backend({pid[0]})")
        assert mine.recv(1) == b""
        assert other.recv(1) == b""
    mine, other = ends.open()
    mine.sendall(b"x")
    assert other.recv(1) == b"x"


def test_guest_session_ends_without_streams_and_begins_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_module, "LINGER_S", 0.0)
    guest = ends.carrier()
    for _ in range(2):
        mine = ends.opened(guest)
        assert len(ends.run(LISTENERS)) == 2
        mine.close()
        until_sync(lambda: len(ends.run(LISTENERS)) == 1)
    until_sync(lambda: guest._thread is None)


def test_closing_carrier_waits_for_no_tick_without_streams(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = ends.carrier()
    mine = ends.opened(guest)
    monkeypatch.setattr(carrier_module, "TICK_S", 99.0)
    monkeypatch.setattr(carrier_module, "CLOSE_S", 5.0)
    closing = threading.Thread(target=guest.close)
    closing.start()
    until_sync(lambda: guest._is_closing)
    mine.close()
    closing.join(30)
    assert guest._thread is None


def test_stream_to_a_former_leader_ends_soon(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = ends.open()
    monkeypatch.setattr(carrier_module, "CLOSE_S", 0.1)
    monkeypatch.setattr(carrier_module, "TICK_S", 0.05)
    ends.leader.close()
    assert mine.recv(1) == b""
    ends.run("UPDATE queuehint.leader SET expires_at = now()")
    with pytest.raises(GoneError) as gone:
        ends.carrier().open(ends.leader.box, TERM, 600)  # for how long one that says nothing is waited for
    assert not gone.value.is_silent


def test_a_leader_that_says_nothing_is_silent(ends: Ends) -> None:
    with pytest.raises(GoneError) as gone:
        ends.carrier().open(new_box("queuehint", "n", is_polled=False), TERM, 0.2)
    assert gone.value.is_silent


@pytest.mark.slow
def test_silent_leader_without_a_session_counts_as_leading(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a pooler: only its lease says whether it leads."""
    monkeypatch.setattr(carrier_module, "TICK_S", 0.05)
    ends.run("UPDATE queuehint.leader SET session_pid = NULL, session_at = NULL, server_at = NULL")
    with pytest.raises(GoneError) as gone:
        ends.carrier().open(new_box("queuehint", "n", is_polled=False), TERM, 1.0)
    assert gone.value.is_silent


def test_an_established_stream_to_a_leader_that_died_ends_soon(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = ends.open()
    monkeypatch.setattr(carrier_module, "TICK_S", 0.05)
    ends.run("UPDATE queuehint.leader SET term = '2.def'")
    assert mine.recv(1) == b""


@pytest.mark.slow
def test_a_guest_that_is_not_heard_of_is_forgotten(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = ends.open()
    (stream,) = ends.leader._streams.values()
    monkeypatch.setattr(carrier_module, "TICK_S", 0.05)
    monkeypatch.setattr(carrier_module, "DEAD_S", 1.5)
    monkeypatch.setattr(carrier_module, "PING_S", 0.05)
    begin_s = time.monotonic()
    until_sync(lambda: stream.active_s > begin_s + 1.7, "it has said that it lives, for longer than that")
    assert list(ends.leader._streams.values()) == [stream]
    monkeypatch.setattr(carrier_module, "PING_S", 99.0)
    assert other.recv(1) == b""
    assert mine.recv(1) == b""


def test_more_streams_than_are_served_wait(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = ends.open()
    monkeypatch.setattr(carrier_module, "STREAMS_MAX", 1)
    monkeypatch.setattr(carrier_module, "TICK_S", 0.05)
    second: list[socket.socket] = []
    guest = ends.carrier()
    waiting = threading.Thread(target=lambda: second.append(ends.opened(guest)))
    waiting.start()
    waiting.join(0.3)  # it has asked some times
    assert not second
    first.close()
    assert other.recv(1) == b""
    waiting.join()
    assert second


def test_refusing_server_raises_and_an_absent_one_is_silent(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_module, "_PAUSE_MAX_S", 0.05)
    denied = Carrier(ends.place.address(user="nobody_at_all"), "n")
    with pytest.raises(BackendDeniedError):
        denied.open(ends.leader.box, TERM, 20)
    nowhere = Carrier(parse_url("postgresql://postgres@127.0.0.1:1/postgres"), "n")
    with pytest.raises(GoneError) as gone:
        nowhere.open(ends.leader.box, TERM, 0.2)
    assert gone.value.is_silent
    for each in (denied, nowhere):
        each.close()


def test_mail_of_dead_processes_is_removed_by_lead_and_age(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    before, others = boxes_of("queuehint", "n") + "l" + "0" * 16, boxes_of("queuehint", "m") + "l" + "0" * 16
    for box in (before, others):
        ends.run(f"INSERT INTO queuehint.mail (box, data) VALUES ('{box}', 'x')")
    monkeypatch.setattr(carrier_module, "PRUNE_S", 0.0)
    next_leader = ends.carrier(ends.accepted.append)
    next_leader.start()
    assert ends.run("SELECT box FROM queuehint.mail") == [(others,)]
    ends.run("UPDATE queuehint.mail SET written_at = now() - interval '2 minutes'")
    until_sync(lambda: ends.rows() == 0)


# --- inbox ---


class Leader:
    """A carrier of a leader with an inbox."""

    def __init__(self, ends: Ends, *options: str) -> None:
        self.looks = threading.Semaphore(0)
        self.accepted: list[socket.socket] = []
        self.carrier = ends.carrier(self._adopt, *options, look=self.looks.release)
        self._ends = ends
        self.carrier.start()

    def _adopt(self, end: socket.socket) -> None:
        self._ends.accepted.append(end)
        self.accepted.append(end)


def test_notification_of_an_inbox_is_a_look_and_no_letter(ends: Ends) -> None:
    leader = Leader(ends)
    sender = new_box("queuehint", "n", is_polled=False)
    [letter], _ = written(sender, [Piece(b"stranger", OPEN)], is_polled=False)
    for channel, payload in (
        (inbox_channel("queuehint", "m"), ""),
        (inbox_channel("jobs", "n"), ""),
        (leader.carrier.box, "no letter"),
        (inbox_channel("queuehint", "n"), letter),
    ):
        ends.run(f"NOTIFY \"{channel}\", '{payload}'")
    assert leader.looks.acquire(timeout=LIMIT_S)
    ends.opened_at(leader.carrier.box)
    assert not leader.looks.acquire(blocking=False), "of its own inbox only"
    assert len(leader.accepted) == 1, "the stranger has opened nothing"


def test_leader_looks_into_its_inbox_upon_listening_again(ends: Ends) -> None:
    leader = Leader(ends)
    assert not leader.looks.acquire(blocking=False)
    ends.run(f"SELECT pg_terminate_backend(pid) FROM ({LISTENERS}) l")
    assert leader.looks.acquire(timeout=LIMIT_S)
    ends.run(f'NOTIFY "{inbox_channel("queuehint", "n")}"')
    assert leader.looks.acquire(timeout=LIMIT_S)


def test_leader_without_a_session_listens_to_no_inbox(ends: Ends) -> None:
    leader = Leader(ends, "pooled=1")
    ends.run(f'NOTIFY "{inbox_channel("queuehint", "n")}"')
    ends.opened_at(leader.carrier.box)
    assert not leader.looks.acquire(blocking=False)


# --- stores ---


def test_a_guest_of_another_machine_reaches_the_leader(place: Place) -> None:
    leader = place.caller()
    leader.enqueue(job("a", ["doc"]))
    guest = place.caller(machine="elsewhere")
    assert guest.find("a") == leader.find("a") is not None
    large = tuple(job(f"j{n}", ["doc"], arguments='{"é"'.encode() * (1 << 17)) for n in range(5))
    guest.enqueue(*large)
    assert guest.record("j4").spec == large[4]
    assert not guest.store._is_open


def by_mail(guest: Caller) -> bool:
    """Return whether a guest has used mail."""
    store = guest.store.store
    assert isinstance(store, store_module.PostgresStore)
    return bool(store._carrier.box)


def test_guest_without_a_socket_switches_to_mail(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "UNREACHED_S", 0.1)
    place.caller().find("nobody")
    ((address,),) = place.run("SELECT address FROM queuehint.leader")
    near, guest = place.caller(), place.caller()
    near.find("nobody")
    assert not by_mail(near)
    Path(address.partition(" ")[2]).unlink()
    guest.find("nobody")
    assert by_mail(guest)
    assert not guest.store._is_open


def test_guest_of_another_system_user_uses_mail(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.caller().find("nobody")
    monkeypatch.setattr(doors_module, "is_trusted", lambda *_: False)
    monkeypatch.setattr(door_module, "UNREACHED_S", 99.0)
    guest = place.caller()
    guest.find("nobody")
    assert by_mail(guest)


def test_a_worker_role_leads_and_is_a_guest_by_mail(place: Place) -> None:
    place.run(ddl("queuehint"), "CREATE ROLE mail_worker LOGIN", grants("queuehint", "worker", "mail_worker"))
    try:
        leader, guest = place.caller(user="mail_worker"), place.caller(user="mail_worker", machine="elsewhere")
        leader.find("nobody")
        guest.enqueue(job("a", ["doc"], arguments=b'"' + b"x" * 100_000 + b'"'))
        assert leader.find("a") is not None
        assert not guest.store._is_open
    finally:
        place.close()
        place.run("DROP OWNED BY mail_worker", "DROP ROLE mail_worker")


def test_a_leader_that_may_not_send_mail_answers_nobody(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.run(ddl("queuehint"), "CREATE ROLE no_mail LOGIN", grants("queuehint", "worker", "no_mail"))
    try:
        place.run("REVOKE ALL ON queuehint.mail FROM no_mail")
        place.caller(user="no_mail").find("nobody")
        assert "postgres.not_shared" in [getattr(record, "event", "") for record in caplog.records]
        with pytest.raises(BackendInUseError):
            place.caller(machine="elsewhere").find("nobody")
    finally:
        place.close()
        place.run("DROP OWNED BY no_mail", "DROP ROLE no_mail")


def test_server_closes_unserved_connections(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = place.caller()
    leader.find("nobody")
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 0)
    monkeypatch.setattr(server_module, "READ_S", 600.0)
    served = leader.store._service
    assert isinstance(served, store_module.Served)
    for is_closed in (False, True):
        if is_closed:
            served._server.close()
        mine, other = socket.socketpair()
        with mine:
            served._server.adopt(other)
            mine.settimeout(60)  # less than a connection may say nothing
            assert mine.recv(1) == b""


def test_former_guest_retries_the_server_and_others_fail_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, guest, other = place.caller(), place.caller(), place.caller()
    for each in (leader, guest):
        each.find("nobody")
    tries = iter(range(9))

    def fail_twice(*arguments: Any, **more: Any) -> Any:
        if next(tries) % 3 < 2:
            raise BackendUnavailableError("the server starts again")
        return take_lead(*arguments, **more)

    monkeypatch.setattr(store_module, "take_lead", fail_twice)
    assert guest.store._leader is not None
    guest.store._forget_leader(guest.store._leader)
    guest.find("nobody")
    assert next(tries) == 3
    with pytest.raises(BackendUnavailableError, match="starts again"):
        other.find("nobody")
    assert next(tries) == 5
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.0)
    guest.store._forget_leader(guest.store._leader)
    with pytest.raises(BackendUnavailableError, match="starts again"):
        guest.find("nobody")


def test_the_first_piece_of_a_stream_can_come_twice(ends: Ends) -> None:
    mine, other = ends.open()
    (stream,) = ends.leader._streams.values()
    (note,), _ = written(stream.box, [Piece(stream.id, OPEN)], is_polled=False)
    ends.run(f"SELECT pg_notify('{ends.leader.box}', '{note}')")
    mine.sendall(b"x")
    assert other.recv(1) == b"x"
    assert len(ends.leader._streams) == 1


def test_unreachable_server_leaves_outcomes_of_other_processes_unknown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, guest = place.caller(), place.caller(machine="elsewhere")
    for each in (leader, guest):
        each.find("nobody")

    def gone(*_: Any, **__: Any) -> Any:
        raise GoneError(is_asked=True)

    def unavailable(**_: Any) -> Any:
        raise BackendUnavailableError("the server is not there")

    for asked, error in (
        (lambda: guest.enqueue(job("a")), OutcomeUnknownError),
        (lambda: guest.find("a"), BackendUnavailableError),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(guest.store._guest, "call_sync", gone)
            patch.setattr(guest.store.store, "take_lead", unavailable)
            with pytest.raises(error, match="the server is not there"):
                asked()
        guest.find("nobody")
    guest.enqueue(job("a"))
    assert leader.find("a") is not None
