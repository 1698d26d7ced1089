"""
What crosses the database: letters from one box to another, each of some pieces of streams.

A letter begins with the box of its sender. A short one comes as up to three payloads of notifications, each a letter of
its own, as the data of a piece can be cut anywhere; a longer one, or one to a box that is looked into now and then, is
a row.

>>> sender = new_box("jobs", "n", is_polled=False)
>>> notes, row = written(sender, [Piece(b"8 bytes.", DATA, 0, b"hello")], is_polled=False)
>>> len(notes), row, read_note(notes[0])[1]
(1, None, [Piece(stream=b'8 bytes.', kind=2, number=0, data=b'hello')])
"""

from __future__ import annotations

import re
import secrets
import struct
from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

OPEN, ACCEPT, DATA, END, RESET, TAKEN, PING = range(7)
"""Kinds of pieces. From who opens a stream: it begins, asked again until it is accepted. From either end: it has begun;
some bytes; the last one was sent; no more is sent or taken; so many bytes were taken; this end lives."""
NOTE_BYTES: Final = 5_800
"""How much fits into a notification, whose payload is text of less than 8 000 bytes."""
NOTES_MAX: Final = 3
ID_BYTES: Final = 8
LOOK: Final = b"@"
"""The payload that says: there is a row."""

_HEAD: Final = struct.Struct(f">{ID_BYTES}sBQI")
_BOX: Final = re.compile(r"queuehint_[0-9a-f]{16}_[lp][0-9a-f]{16}")
_BOX_BYTES: Final = 44


class Piece(NamedTuple):
    """
    A piece of a stream.

    Args:
        number: of data, how many bytes were sent before; of the end, how many in all; how many were taken.
    """

    stream: bytes
    kind: int
    number: int = 0
    data: bytes = b""


# --- boxes -------------------------------------------------------------------------------------------------------


def boxes_of(schema: str, namespace: str) -> str:
    """Return how the names of all boxes of a namespace begin."""
    digest = blake2b(f"{schema}/{namespace}".encode(), digest_size=8).hexdigest()
    return f"queuehint_{digest}_"


def new_box(schema: str, namespace: str, *, is_polled: bool) -> str:
    """
    Return a box that nobody can guess: who knows its name may send to it, and listen, with no right on any table.

    Args:
        is_polled: it is looked into now and then, for want of a session that listens.
    """
    return f"{boxes_of(schema, namespace)}{'p' if is_polled else 'l'}{secrets.token_hex(8)}"


def inbox_channel(schema: str, namespace: str) -> str:
    """
    Return the channel of notifications that rows were committed into the inbox of a namespace.

    It is no secret: nothing is read of what is sent there.
    """
    return f"{boxes_of(schema, namespace)}inbox"


def is_polled(box: str) -> bool:
    """Return whether nobody listens for notifications to a box."""
    return box[-17] == "p"


def is_box(text: str) -> bool:
    """Return whether that is the name of a box."""
    return _BOX.fullmatch(text) is not None


# --- letters -----------------------------------------------------------------------------------------------------


def written(sender: str, pieces: Sequence[Piece], *, is_polled: bool) -> tuple[list[str], bytes | None]:
    """
    Return a letter as the payloads of notifications, and a row for what is too long for them.

    Args:
        is_polled: nobody listens for notifications.
    """
    head = sender.encode("ascii")
    size = len(head) + sum([_HEAD.size + len(piece.data) for piece in pieces])
    if not is_polled and size <= NOTE_BYTES * NOTES_MAX:
        notes = _notes(head, pieces)
        if len(notes) <= NOTES_MAX:
            return notes, None
    row = b"".join([head, *map(_packed, pieces)])
    return ([] if is_polled else [LOOK.decode()]), row


def _notes(head: bytes, pieces: Sequence[Piece]) -> list[str]:
    notes: list[str] = []
    parts, room = [head], NOTE_BYTES - len(head)
    for stream, kind, number, data in pieces:
        begin = 0
        while True:
            if room <= _HEAD.size:
                notes.append(b64encode(b"".join(parts)).decode("ascii"))
                parts, room = [head], NOTE_BYTES - len(head)
            part = data[begin : begin + room - _HEAD.size]
            parts.append(_packed(Piece(stream, kind, number + begin, part)))
            room -= _HEAD.size + len(part)
            begin += len(part)
            if begin >= len(data):
                break
    notes.append(b64encode(b"".join(parts)).decode("ascii"))
    return notes


def _packed(piece: Piece) -> bytes:
    return _HEAD.pack(piece.stream, piece.kind, piece.number, len(piece.data)) + piece.data


def read_note(note: str | bytes) -> tuple[str, list[Piece]]:
    """
    Return the sender of a notification and its pieces.

    Raises:
        ValueError: that is no letter.
    """
    return read_row(b64decode(note, validate=True))


def read_row(row: bytes) -> tuple[str, list[Piece]]:
    """
    Return the sender of a row and its pieces.

    Raises:
        ValueError: that is no letter.
    """
    sender = row[:_BOX_BYTES].decode("ascii")
    if not is_box(sender):
        raise ValueError("a letter begins with the box of its sender")
    pieces: list[Piece] = []
    at = _BOX_BYTES
    try:
        while at < len(row):
            stream, kind, number, size = _HEAD.unpack_from(row, at)
            at += _HEAD.size
            data = row[at : at + size]
            if len(data) < size or kind > PING:
                raise ValueError("that is no piece of a stream")
            pieces.append(Piece(stream, kind, number, data))
            at += size
    except struct.error as error:
        raise ValueError("a piece is cut off") from error
    return sender, pieces
