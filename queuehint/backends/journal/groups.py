"""
Groups of operations, as a row of a journal has them: one line each.

What the leader's own process asked for is a line of JSON, see `queuehint.operations.wire`. What a guest asked for has
the guest's *stream* and the number of the request in it before that: by these a request that is repeated, because its
answer was lost, is told from another one, also by the next leader. What was taken out of the inbox is a line that
begins with a plus, with the lines of that row, see `queuehint.operations.inbox`, behind one another. Lines between
them say what was decided, see `queuehint.backends.journal.decided`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.journal.decided import GRANTED, STANDING
from queuehint.errors import BackendDeniedError, CorruptStateError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STREAM_BYTES_MAX: Final = 40
_OWN: Final = b"{"
_TAKEN: Final = b"+"
_LINE_END: Final = b"\x1e"
"""Stands for the ends of lines of a row of the inbox: they are ASCII JSON, which has no such character."""


@attrs.frozen
class Request:
    """
    One request of a stream; a stream has one under way at a time.

    Args:
        stream: up to 40 letters, digits and ``-``, random, of one process.
        number: from 1 on, greater than that of the request before it.
    """

    stream: str
    number: int


def line_of(operation: bytes, request: Request | None) -> bytes:
    """Return the line of an encoded operation."""
    return operation if request is None else b"%b %d %b" % (request.stream.encode("ascii"), request.number, operation)


@attrs.frozen
class FromInbox:
    """Nobody waits for an answer: an application has written it in a transaction of its own."""


FROM_INBOX: Final = FromInbox()


@attrs.frozen
class Decided:
    """A line that says what was decided."""


DECIDED: Final = Decided()
_DECIDED: Final = (GRANTED, STANDING)


def line_of_row(data: bytes) -> bytes:
    """Return the line of a row of the inbox, one that `queuehint.operations.inbox.operations_of` reads."""
    return _TAKEN + data.replace(b"\n", _LINE_END)


def pack(lines: Sequence[bytes]) -> bytes:
    """Return lines as one row."""
    return b"\n".join(lines)


def unpack(data: bytes) -> Iterator[tuple[Request | FromInbox | Decided | None, bytes]]:
    r"""
    Yield what was asked for by whom, of a row: by a guest, in a transaction, by the leader's own process; or decided.

    Raises:
        CorruptStateError: it is none.

    >>> list(unpack(b'{"":"X"}\nf00-1 7 {"":"X"}'))
    [(None, b'{"":"X"}'), (Request(stream='f00-1', number=7), b'{"":"X"}')]
    """
    for line in data.split(b"\n"):
        if line.startswith(_OWN):
            yield None, line
            continue
        if line.startswith(_DECIDED):
            yield DECIDED, line
            continue
        if line.startswith(_TAKEN):
            yield FROM_INBOX, line[1:].replace(_LINE_END, b"\n")
            continue
        try:
            yield read_line(line)
        except BackendDeniedError as error:
            raise CorruptStateError(f"the journal holds a line that is no request: {shown(line[:200])}") from error


def read_line(line: bytes) -> tuple[Request, bytes]:
    """
    Return the request and the encoded operation of the line of a guest.

    Raises:
        BackendDeniedError: it is none.
    """
    stream, _, rest = line.partition(b" ")
    number, _, operation = rest.partition(b" ")
    is_name = 0 < len(stream) <= STREAM_BYTES_MAX and stream.replace(b"-", b"").isalnum()
    if not (is_name and number.isdigit() and len(number) <= STREAM_BYTES_MAX // 2) or b"\n" in operation:
        raise BackendDeniedError("that is not a request")
    return Request(stream.decode("ascii"), int(number)), operation
