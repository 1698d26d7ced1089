"""
Messages between the process that owns a file and others: requests, replies and refusals.

A message is its length in four bytes, big-endian, and its bytes. A request is a line with the release and the namespace
(only the same release reads the rest), then a command word or an operation encoded as in the journal. A reply is one
letter and JSON; an empty message means that the reply is still being computed. A reply is decoded by the type that its
operation declares: the bytes never choose the class.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from queuehint import errors
from queuehint.backends.base import release
from queuehint.backends.journal.doctor import Examine
from queuehint.errors import BackendError, QueueHintError
from queuehint.operations import Enqueue, Exchange, Fetch, Get, Operation, Post, Renew
from queuehint.operations.bounds import check_limits
from queuehint.operations.wire import OPERATIONS, QUESTIONS, Await, PlaceAnew, decode, encode, error_facts, error_of

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH_BYTES: Final = 4
REQUEST_BYTES_MAX: Final = 32 << 20
"""A submission of 4 MiB of arguments takes up to six times as much in JSON."""
ANSWER_BYTES_MAX: Final = 512 << 20
STILL_AT_IT: Final = bytes(LENGTH_BYTES)
REPLY: Final = b"r"
REFUSAL: Final = b"e"
GONE: Final = b"g"
"""The process does not have the file any more, and has not done what it was asked for."""
EXAMINE: Final = b"examine"
HAND_OVER: Final = b"hand over"
_WORDS: Final = {EXAMINE, HAND_OVER}

UNWRITTEN: Final = frozenset({*QUESTIONS, Examine})
"""Operations that change nothing: they are not journaled, and can be asked for again."""
_OF_WORKERS: Final = frozenset({Exchange, Fetch, PlaceAnew, Renew})
_OPERATIONS: Final = frozenset({*OPERATIONS, Await})


def runs_jobs(operation: Operation[Any]) -> bool:
    """Return whether an operation is part of running jobs, or of holding a place, which only one process may do."""
    kind = type(operation)
    if kind is Enqueue:
        return any(spec.presence_ms is not None for spec in operation.jobs)  # type: ignore[attr-defined]
    if kind is Post:
        return any(note.token is not None for note in operation.notes)  # type: ignore[attr-defined]
    return kind in _OF_WORKERS


# --- requests --------------------------------------------------------------------------------------------------------


def head_of(namespace: str) -> bytes:
    """Return the first line of requests."""
    return f"queuehint {release()} {namespace}\n".encode()


def request(namespace: str, asked: Operation[Any] | bytes) -> bytes:
    """
    Return a message that carries an operation or a command word.

    Raises:
        InvalidJobError, InvalidJobTypeError: the operation cannot be sent.
    """
    return framed(head_of(namespace) + (asked if isinstance(asked, bytes) else encode(asked)))


def read_request(body: bytes, namespace: str) -> Operation[Any] | bytes:
    """
    Return what a request asks for; its fields are checked.

    Raises:
        QueueHintError: it is none, of another release or of another namespace.
    """
    head = head_of(namespace)
    if not body.startswith(head):
        other = body[:200].partition(b"\n")[0].decode("ascii", "replace").split(" ")
        if len(other) != 3 or other[0] != "queuehint":
            raise errors.BackendDeniedError("that is not a request")
        if other[1] != release():
            raise errors.BackendDeniedError(
                f"the process that has the file is of release {release()} and cannot be asked by release {other[1]}"
            )
        raise errors.BackendDeniedError(
            f"the file holds the jobs of namespace {namespace!r}, not {other[2]!r}: "
            "each namespace has a file of its own"
        )
    asked = body[len(head) :]
    if asked in _WORDS:
        return asked
    try:
        operation = decode(asked)
    except errors.CorruptStateError:
        raise errors.BackendDeniedError("that is not an operation") from None
    if type(operation) not in _OPERATIONS:
        raise errors.BackendDeniedError(f"{type(operation).__name__} is not accepted from another process")
    check_limits(Get(operation.job_ids) if isinstance(operation, Await) else operation)
    return operation


def framed(body: bytes) -> bytes:
    """Return a message with its length before it."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


# --- answers ---------------------------------------------------------------------------------------------------------


def replied(reply: Any) -> bytes:
    """Return the answer that has a reply."""
    return REPLY + _encode(reply).encode("ascii")


def refused(error: QueueHintError) -> bytes:
    """Return the answer that has an error; what it was raised from is left out."""
    return REFUSAL + json.dumps(error_facts(error)).encode("ascii")


def read_answer(answer: bytes, kind: Any) -> Any:
    """
    Return the reply of an answer.

    Args:
        kind: the type of the reply.

    Raises:
        QueueHintError: what the operation was refused with.
        BackendError: the answer cannot be read.
    """
    try:
        found = json.loads(answer[1:])
        if answer[:1] == REPLY:
            return _reader(kind)(found)
        error = error_of(found)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as problem:
        raise BackendError("the process that owns the file sent a reply that cannot be read") from problem
    raise error


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if attrs.has(type(value)):
        return [getattr(value, field.name) for field in attrs.fields(type(value)) if field.init]
    return str(value)


_encode: Final = json.JSONEncoder(default=_plain, separators=(",", ":"), check_circular=False).encode


def _same(value: Any) -> Any:
    return value


@lru_cache(maxsize=256)
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return what reads a value of a type from JSON."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _either(kind)
    if origin is tuple:
        items = get_args(kind)
        if items[-1] is Ellipsis:
            read = _reader(items[0])
            return lambda values: tuple([read(value) for value in values])
        readers = [_reader(item) for item in items]
        return lambda values: tuple([read(value) for read, value in zip(readers, values, strict=True)])
    if origin is dict:
        read_key, read_value = map(_reader, get_args(kind))
        return lambda values: {read_key(key): read_value(value) for key, value in values.items()}
    if kind is bytes:
        return lambda text: b64decode(text, validate=True)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if attrs.has(kind):
        return _value(kind)
    if kind in (str, int, float, bool, NoneType) or origin is Literal:
        return _same
    raise TypeError(f"replies hold no {kind}")


def _either(kind: Any) -> Callable[[Any], Any]:
    """Return the reader of a union: of None, of plain values, and of one other type that JSON has as a list or text."""
    rest = [_reader(each) for each in get_args(kind)]
    rest = [read for read in rest if read is not _same]
    if not rest:
        return _same
    (read,) = rest
    plain = (NoneType, bool) if bool in get_args(kind) else NoneType
    words = tuple([word for each in get_args(kind) if get_origin(each) is Literal for word in get_args(each)])
    if words:
        return lambda value: value if isinstance(value, plain) or value in words else read(value)
    return lambda value: value if isinstance(value, plain) else read(value)


def _value(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    fields = [(field.alias, hints[field.name]) for field in attrs.fields(kind) if field.init]
    rows: list[tuple[str, Callable[[Any], Any]]] | None = None

    def read(values: Any) -> Any:
        nonlocal rows
        if rows is None:
            # At the first value: values may hold their like, as nodes of a tree do.
            rows = [(name, _reader(hint)) for name, hint in fields]
        return kind(**{name: read(value) for (name, read), value in zip(rows, values, strict=True)})

    return read
