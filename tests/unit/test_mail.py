"""What guests and leaders send through the database: letters, and streams of bytes in pieces."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from queuehint.backends.postgres.mail import stream as stream_module
from queuehint.backends.postgres.mail.door import UNREACHED_S, Unreached
from queuehint.backends.postgres.mail.letters import (
    DATA,
    END,
    NOTE_BYTES,
    NOTES_MAX,
    TAKEN,
    Piece,
    boxes_of,
    is_box,
    is_polled,
    new_box,
    read_note,
    read_row,
    written,
)
from queuehint.backends.postgres.mail.marks import SETTLES_S, WHOLE_EVERY_S, WHOLE_SHARE, Marks
from queuehint.backends.postgres.mail.stream import WINDOW_BYTES, Stream

BOX = boxes_of("queuehint", "n") + "l" + "1" * 16
ID = b"stream-1"


def joined(pieces: list[Piece]) -> bytes:
    """Return the data of pieces, each of which says where it belongs."""
    found = b""
    for piece in pieces:
        assert piece.number == len(found)
        found += piece.data
    return found


# --- letters ---


def test_boxes_say_whose_they_are_and_whether_somebody_listens() -> None:
    polled = new_box("queuehint", "n", is_polled=True)
    assert not is_polled(BOX)
    assert is_polled(polled)
    assert BOX.startswith(boxes_of("queuehint", "n"))
    assert polled.startswith(boxes_of("queuehint", "n"))
    assert boxes_of("queuehint", "n") != boxes_of("queuehint", "m") != boxes_of("jobs", "n")
    assert new_box("queuehint", "n", is_polled=False) != BOX
    assert is_box(BOX)
    assert not is_box(BOX + '"')
    assert len(BOX) < 64


@pytest.mark.parametrize("size", [0, 1, NOTE_BYTES - 100, NOTE_BYTES, 3 * NOTE_BYTES - 300])
def test_short_letters_are_independently_readable_notifications(size: int) -> None:
    data = random.Random(size).randbytes(size)
    notes, row = written(BOX, [Piece(ID, DATA, 0, data)], is_polled=False)
    assert row is None
    assert len(notes) == max(1, -(-size // (NOTE_BYTES - 65))) <= NOTES_MAX
    assert max(map(len, notes)) < 8000
    pieces = []
    for note in reversed(notes):
        sender, some = read_note(note)
        assert sender == BOX
        pieces += some
    assert joined(sorted(pieces, key=lambda piece: piece.number)) == data


def test_long_letters_and_letters_to_polled_boxes_are_rows() -> None:
    long = [Piece(ID, DATA, 0, bytes(3 * NOTE_BYTES))]
    notes, row = written(BOX, long, is_polled=False)
    assert notes == ["@"]
    assert row is not None
    assert read_row(row) == (BOX, long)
    short = [Piece(ID, DATA, 7, b"x"), Piece(ID, TAKEN, 9)]
    notes, row = written(BOX, short, is_polled=True)
    assert notes == []
    assert row is not None
    assert read_row(row) == (BOX, short)


def test_many_pieces_keep_their_order() -> None:
    pieces = [Piece(ID, DATA, n, b"x") for n in range(500)]
    notes, row = written(BOX, pieces, is_polled=False)
    assert row is None
    assert [piece for note in notes for piece in read_note(note)[1]] == pieces


@pytest.mark.parametrize(
    "row", [b"", b"x", b"x" * 44, BOX.encode() + b"x", BOX.encode() + bytes(20) + b"\x01", BOX.encode() + b"\xff" * 21]
)
def test_malformed_letter_is_refused(row: bytes) -> None:
    with pytest.raises(ValueError):
        read_row(row)
    with pytest.raises(ValueError):
        read_note(b"\xff" + row)


# --- streams ---


class Ends(NamedTuple):
    stream: Stream
    other: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A stream of a leader, and the other end of its socket."""
    mine, other = socket.socketpair()
    for each in (mine, other):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
    with mine, other:
        yield Ends(Stream(ID, mine, BOX, 0.0), other)


def test_stream_reads_at_most_the_room_of_its_peer(ends: Ends) -> None:
    stream, other = ends
    sent = 0
    while stream.room:
        other.send(bytes(1000))
        piece = stream.read(1 << 20)
        assert piece == Piece(ID, DATA, sent, bytes(1000))
        sent += 1000
        if sent + 1000 > WINDOW_BYTES:
            break
    assert stream.room == WINDOW_BYTES - sent
    other.send(bytes(1000))
    assert stream.read(1 << 20) == Piece(ID, DATA, sent, bytes(WINDOW_BYTES - sent))
    assert stream.room == 0
    stream.acknowledge(500)
    assert stream.room == 500
    stream.acknowledge(400)
    assert stream.room == 500
    with pytest.raises(ValueError, match="more than was sent"):
        stream.acknowledge(WINDOW_BYTES + 1)


def test_early_pieces_wait_for_earlier_ones(ends: Ends) -> None:
    stream, other = ends
    stream.take(Piece(ID, DATA, 3, b"def"), 1.0)
    stream.take(Piece(ID, END, 9), 2.0)
    assert stream.ahead_s == 1.0
    stream.take(Piece(ID, DATA, 0, b"abc"), 3.0)
    assert other.recv(99) == b"abcdef"
    assert stream.ahead_s == 3.0
    stream.take(Piece(ID, DATA, 0, b"abc"), 4.0)
    stream.take(Piece(ID, DATA, 6, b"ghi"), 4.0)
    assert other.recv(99) == b"ghi"
    assert stream.ahead_s is None
    assert stream.is_done
    assert stream.room == 0


def test_unread_pieces_are_kept_up_to_the_window_then_acknowledged(ends: Ends) -> None:
    stream, other = ends
    got = 0
    stream.take(Piece(ID, DATA, 0, bytes(WINDOW_BYTES)), 1.0)
    assert stream.has_to_write
    assert stream.to_tell() is None
    taken = stream._taken
    with pytest.raises(ValueError, match="more came"):
        stream.take(Piece(ID, DATA, WINDOW_BYTES, bytes(taken + 1)), 1.0)
    while got < WINDOW_BYTES:
        got += len(other.recv(1 << 20))
        stream.write()
    assert not stream.has_to_write
    assert stream.to_tell() == Piece(ID, TAKEN, WINDOW_BYTES)
    assert stream.to_tell() is None


def test_socket_end_is_a_piece_behind_all_others(ends: Ends) -> None:
    stream, other = ends
    assert stream.read(99) is None
    other.send(b"abc")
    other.close()
    assert stream.read(99) == Piece(ID, DATA, 0, b"abc")
    assert stream.read(99) == Piece(ID, END, 3)


def test_guest_stream_is_not_read_before_its_acceptance(ends: Ends) -> None:
    stream = Stream(ID, ends.stream.socket, BOX, 0.0, "1.a")
    assert stream.room == 0
    stream.is_accepted = True
    assert stream.room == stream_module.READ_BYTES


def test_marks_begin_above_rows_fetched_some_time_ago() -> None:
    marks = Marks()
    assert marks.above(0) == 0
    marks.note(0, [5, 9, 7], 0, 0)
    now_s = 0.0
    for number in range(10, 200):
        now_s += WHOLE_EVERY_S / 10
        above = marks.above(now_s)
        settled = number - 1 - int(SETTLES_S / WHOLE_EVERY_S * 10)
        assert above <= max(settled, 0), "a row that is a little late is fetched"
        assert above == 0 or above >= settled - 11, "rows of long ago are not read again"
        marks.note(above, [number], now_s, now_s)


@pytest.mark.parametrize("took_s, rests_s", [(0.0, WHOLE_EVERY_S), (1.0, WHOLE_SHARE)])
def test_marks_read_a_slow_whole_box_less_often(took_s: float, rests_s: float) -> None:
    marks = Marks()
    marks.note(0, [5], -100 - took_s, -100)
    assert marks.above(-90) == marks.above(-80) == 0
    marks.note(0, [], -took_s, 0)
    assert marks.above(rests_s - 0.01) == 5
    marks.note(5, [6], 0, 0)
    assert marks.above(rests_s) == 0


def test_socket_of_a_recently_dead_leader_is_not_another_container() -> None:
    unreached = Unreached()
    assert not unreached.is_for_long("1.a")
    unreached._since_s -= UNREACHED_S
    assert unreached.is_for_long("1.a")
    assert not unreached.is_for_long("2.b")
