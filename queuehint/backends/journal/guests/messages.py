"""
What the leader of a journal and its guests say to one another, as bytes.

A frame is its length in four bytes, big-endian, its kind in one, the number of the call in eight, and a body. A guest
begins with `HELLO`, see `queuehint.backends.journal.guests.greetings`. An operation is encoded
as in the journal. An answer is one letter and JSON, read by the type that the operation declares; values that
operations have, too, stand in it as there, so that little is said of a job that asks for nothing special. The bytes
choose no class but that which is declared. While calls are under way the leader sends a `BEAT` each second.
"""

from __future__ import annotations

import json
import struct
from enum import Enum
from functools import lru_cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from queuehint import errors
from queuehint.backends.base import Interest
from queuehint.backends.journal.doctor import Examine
from queuehint.errors import BackendError, QueueHintError
from queuehint.operations import CountPending, EnqueuedJob, Get, Operation
from queuehint.operations.bounds import check_limits
from queuehint.operations.producing import new_enqueued_job
from queuehint.operations.wire import (
    OPERATIONS,
    QUESTIONS,
    WIRED,
    Await,
    PlaceAnew,
    decode,
    encode,
    error_facts,
    error_of,
    load_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEAD: Final = struct.Struct(">IBQ")
LENGTH_BYTES: Final = 4
_REST_BYTES: Final = HEAD.size - LENGTH_BYTES
REQUEST_BYTES_MAX: Final = 32 << 20
"""A submission of 4 MiB of arguments takes up to six times as much in JSON."""
ANSWER_BYTES_MAX: Final = 512 << 20
BEAT, ANSWER, HELLO, CALL, ASK, WAIT, LEAVE, WANT, BEHIND = range(9)
"""Kinds of frames. From the leader: it is at work; an answer. From a guest: who it is; a change, as a line of the
journal; a question; a wait; a call is not waited for any more; what its process is for, from now on; a transaction that
its calls come behind, from now on."""
LEAD: Final = 1
RUN: Final = 2
"""What the process of a guest is for, its *aim*, is any of these: to lead, in place of a leader that need not; to run
jobs."""
REPLY: Final = b"r"
REFUSAL: Final = b"e"
GONE: Final = b"g"
"""The process does not lead any more, and has not done what it was asked for."""
DONE: Final = b"rnull"
EXAMINE: Final = b"examine"
_DIGITS: Final = 19
"""The number of a transaction has at most so many."""

UNWRITTEN: Final = frozenset({*QUESTIONS, Examine})
"""Operations that change nothing: they are not journaled, and can be asked for again."""
_FROM_GUESTS: Final = frozenset({*OPERATIONS, Await, PlaceAnew})


def frame(kind: int, call: int, body: bytes = b"") -> bytes:
    """Return a frame."""
    return HEAD.pack(_REST_BYTES + len(body), kind, call) + body


class Frames:
    """
    Frames that are cut out of a stream of bytes.

    Args:
        most_bytes: how long one may be.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes + _REST_BYTES
        self._pieces = bytearray()

    @property
    def is_between(self) -> bool:
        """True if no frame has begun to come."""
        return not self._pieces

    @property
    def wanted(self) -> int:
        """Return how long the frame is that has begun to come; 0 if that is not known."""
        pieces = self._pieces
        return int.from_bytes(pieces[:LENGTH_BYTES], "big") if len(pieces) >= LENGTH_BYTES else 0

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """
        Yield the kind, the number and the body of each frame that is whole by now.

        Raises:
            ValueError: that is no frame, or one that is too long.
        """
        pieces = self._pieces
        pieces += data
        at = 0
        try:
            while len(pieces) >= at + LENGTH_BYTES:
                length = int.from_bytes(pieces[at : at + LENGTH_BYTES], "big")
                if not _REST_BYTES <= length <= self._most_bytes:
                    raise ValueError("no frame")
                end = at + LENGTH_BYTES + length
                if len(pieces) < end:
                    break
                _, kind, call = HEAD.unpack_from(pieces, at)
                body = bytes(pieces[at + HEAD.size : end])
                at = end
                yield kind, call, body
        finally:
            del pieces[:at]


AIMS: Final = {str(aim): aim for aim in range((LEAD | RUN) + 1)}


# --- requests --------------------------------------------------------------------------------------------------------


def read_aim(body: bytes) -> int:
    """
    Return what a guest's process is for, from now on; it is written as a digit.

    Raises:
        BackendDeniedError: that is none.
    """
    found = AIMS.get(body[:2].decode("ascii", "replace"))
    if found is None:
        raise errors.BackendDeniedError("that is not a request")
    return found


def read_behind(body: bytes) -> int:
    """
    Return the transaction that the calls of a guest come behind, from now on; it is written in digits.

    Raises:
        BackendDeniedError: that is none.
    """
    if not (body.isdigit() and len(body) <= _DIGITS):
        raise errors.BackendDeniedError("that is not a request")
    return int(body)


def asked(operation: Operation[Any]) -> bytes:
    """
    Return the body of a question.

    Raises:
        InvalidJobError, InvalidJobTypeError: it cannot be sent.
    """
    return EXAMINE if type(operation) is Examine else encode(operation)


def read_operation(body: bytes, *, is_question: bool) -> Operation[Any]:
    """
    Return what a guest asks for; its fields are checked.

    Raises:
        QueueHintError: that is nothing that a guest may ask for.
    """
    if is_question and body == EXAMINE:
        return Examine()
    try:
        operation = decode(body)
    except errors.CorruptStateError:
        raise errors.BackendDeniedError("that is not an operation") from None
    kind = type(operation)
    if kind not in _FROM_GUESTS or (kind in UNWRITTEN) is not is_question:
        raise errors.BackendDeniedError(f"{kind.__name__} is not accepted from another process in this way")
    if kind is not PlaceAnew:
        check_limits(Get(operation.job_ids) if isinstance(operation, Await) else operation)
    return operation


def waited(interest: Interest, timeout_s: float) -> bytes:
    """Return the body of a wait."""
    said: dict[str, Any] = {
        field.name: value
        for field in attrs.fields(Interest)
        if (value := getattr(interest, field.name)) != field.default
    }
    for name in _COLLECTIONS & said.keys():
        said[name] = list(said[name])
    if interest.pending is not None:
        said["pending"] = encode(interest.pending).decode("ascii")
    return json.dumps([said, timeout_s]).encode("ascii")


def read_waited(body: bytes) -> tuple[Interest, float]:
    """
    Return what is waited for, and for how long.

    Raises:
        BackendDeniedError: that is no wait.
    """
    try:
        said, timeout_s = json.loads(body)
        for name in _COLLECTIONS & said.keys():
            check = _is_user if name == "users" else _is_text
            if type(said[name]) is not list or not all(map(check, said[name])):
                raise TypeError(name)
        for name, kinds in _PLAIN.items():
            if name in said and type(said[name]) not in kinds:
                raise TypeError(name)
        if "pending" in said:
            pending = decode(said["pending"].encode("ascii"))
            if not isinstance(pending, CountPending):
                raise TypeError("pending")
            check_limits(pending)
            said["pending"] = pending
        if type(timeout_s) not in {int, float} or not 0 <= timeout_s <= WAIT_S_MAX:
            raise TypeError("timeout")
        return Interest(**said), timeout_s
    except (ValueError, TypeError, AttributeError, RecursionError, errors.CorruptStateError) as error:
        raise errors.BackendDeniedError("that is not a wait") from error


_COLLECTIONS: Final = frozenset({"pools", "users", "jobs", "kept"})
_PLAIN: Final[dict[str, set[type[Any]]]] = {"worker": {str}, "version": {int}, "release": {str}}
WAIT_S_MAX: Final = 86_400.0


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_user(value: object) -> bool:
    return value is None or type(value) is str


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
        if answer[:1] == REPLY:
            return _reader(kind)(_decode(answer[1:].decode("ascii")))
        error = error_of(json.loads(answer[1:]))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as problem:
        raise BackendError("the process that leads sent a reply that cannot be read") from problem
    raise error


def _plain(value: Any) -> Any:
    kind: Any = type(value)
    return _dumping(kind)(value)


@lru_cache(maxsize=256)
def _dumping(kind: type[Any]) -> Callable[[Any], Any]:
    """Return what writes a value of a class as JSON."""
    if kind in WIRED:
        return WIRED[kind]
    if not attrs.has(kind):
        return str
    names = [field.name for field in attrs.fields(kind) if field.init]
    return attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]


_encode: Final = json.JSONEncoder(default=_plain, separators=(",", ":"), check_circular=False).encode
_decode: Final = json.JSONDecoder(object_pairs_hook=load_value).decode


def _same(value: Any) -> Any:
    return value


def _checked(kind: type[Any], value: Any) -> Any:
    """Return a value that the decoder has made, of the class that is declared there."""
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} in place of a {kind.__name__}")
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
    if kind in WIRED:
        return partial(_checked, kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {member.value: member for member in kind}.__getitem__
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
    kinds = {field.alias: hints[field.name] for field in attrs.fields(kind) if field.init}
    make = new_enqueued_job if kind is EnqueuedJob else kind
    readers: list[tuple[str, Callable[[Any], Any]]] | None = None

    def read(values: Any) -> Any:
        nonlocal readers
        if readers is None:
            # At the first value: values may hold their like, as nodes of a tree do.
            found = [(name, _reader(each)) for name, each in kinds.items()]
            readers = [(name, read) for name, read in found if read is not _same]
        fields = dict(zip(kinds, values, strict=True))
        for name, read in readers:
            fields[name] = read(fields[name])
        return make(**fields)

    return read
