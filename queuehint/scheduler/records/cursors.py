"""
Pagination cursors, as text that users hand back.

A cursor is a position and a digest of position and query: a cursor of another query, or one that was changed or made
up, is refused instead of answered with an unrelated page. The digest needs no secret key: a forged cursor with a
matching digest only gets a page that its user may ask for anyway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import TYPE_CHECKING

import attrs

from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.values.hint import KEY_LENGTH_MAX

if TYPE_CHECKING:
    from queuehint.operations import Position
    from queuehint.values.record_filter import RecordFilter

_VERSION = 1
_DIGEST_BYTES = 9
_NUMBER_BYTES = 8
_HEAD_BYTES = 1 + _DIGEST_BYTES + _NUMBER_BYTES
# A character takes up to four bytes as UTF-8, three bytes are four characters of a cursor.
_LENGTH_MAX = -(-(_HEAD_BYTES + 4 * KEY_LENGTH_MAX) * 4 // 3)
_FORM = re.compile(r"[A-Za-z0-9_-]+")


def write_cursor(after: Position, asked: RecordFilter, *, newest_first: bool = False, by_time: bool = False) -> str:
    """Return the cursor of a listing that goes on *after*."""
    key, number = after
    body = number.to_bytes(_NUMBER_BYTES, "big") + key.encode()
    packed = bytes([_VERSION]) + _digest(body, asked, newest_first=newest_first, by_time=by_time) + body
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def read_cursor(cursor: object, asked: RecordFilter, *, newest_first: bool = False, by_time: bool = False) -> Position:
    """
    Return the position that a cursor stands for.

    Raises:
        InvalidJobTypeError: it is no str.
        InvalidJobError: it must be one that this listing returned.
    """
    if not isinstance(cursor, str):
        raise InvalidJobTypeError(f"cursor must be str, got {type(cursor).__name__}: {shown(cursor)}")
    packed = _unpacked(str.__str__(cursor))
    digest, body = packed[1 : 1 + _DIGEST_BYTES], packed[1 + _DIGEST_BYTES :]
    expected = _digest(body, asked, newest_first=newest_first, by_time=by_time)
    if len(packed) < _HEAD_BYTES or packed[0] != _VERSION or digest != expected:
        raise InvalidJobError(f"cursor {shown(cursor)} must be one that this listing returned")
    return body[_NUMBER_BYTES:].decode("utf-8", "replace"), int.from_bytes(body[:_NUMBER_BYTES], "big")


def _unpacked(cursor: str) -> bytes:
    """Return the bytes of a cursor. Empty for a malformed cursor."""
    if len(cursor) > _LENGTH_MAX or not _FORM.fullmatch(cursor):
        return b""
    try:
        packed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except binascii.Error:
        return b""
    # The last character may carry bits that stand for nothing: one position, one cursor.
    return packed if base64.urlsafe_b64encode(packed).rstrip(b"=").decode() == cursor else b""


def _digest(body: bytes, asked: RecordFilter, *, newest_first: bool, by_time: bool) -> bytes:
    # Conditions that are not set do not count, so a cursor stays valid when a later version adds conditions.
    question = {name: value for name, value in attrs.asdict(asked, recurse=False).items() if value not in (None, ())}
    if asked.path is not None:
        question["path"] = asked.path
    text = json.dumps([question, newest_first, *(["time"] if by_time else [])], sort_keys=True)
    return hashlib.blake2b(body + b"\0" + text.encode(), digest_size=_DIGEST_BYTES).digest()
