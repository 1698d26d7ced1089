"""
The codec: operations to script calls, and their replies to values or errors. No I/O.

The parts: `specs`, the encoding of a job's spec; `requests`, operations as arguments; `replies` and `reports`, their
replies; `refusals`, errors.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from queuehint.backends.redis.codec.refusals import SCHEMA, refusal
from queuehint.backends.redis.codec.replies import HEADER, REPLIES
from queuehint.backends.redis.codec.requests import (
    REQUESTS,
    Args,
    kept_args,
    parse_retention,
    retention_text,
    shown_retention,
)
from queuehint.backends.redis.codec.specs import (
    DAMAGE,
    known_of,
    parse_claims_text,
    parse_head,
    parse_spec,
    parse_token,
    spec_rest,
)
from queuehint.errors import CorruptStateError, JobNotFoundError
from queuehint.operations import Exchange, Get, List, Operation, Tick
from queuehint.operations.bounds import LIMITS
from queuehint.values.spec import JobSpec

__all__ = [
    "DROPPED_AT",
    "SCHEMA",
    "Args",
    "clocked",
    "decode",
    "decode_spec",
    "dropped",
    "encode",
    "following",
    "joined",
    "kept_args",
    "known_of",
    "parse_claims_text",
    "parse_head",
    "parse_retention",
    "parse_token",
    "refusal",
    "retention_text",
    "shown_retention",
    "spec_rest",
]

PAGE_CUT: Final = 2
"""First item of a page without room for more records, see ``lua/list.lua``."""
DROPPED_AT: Final = {Exchange: 6, Tick: 3}
"""Where replies say how many records were dropped."""


def encode(operation: Operation[Any]) -> tuple[str, Args]:
    """
    Return the name of an operation's script and its own arguments.

    Raises:
        InvalidJobError, DuplicateJobError: it carries too much, or one id twice.
    """
    LIMITS[type(operation)](operation)
    name, request = REQUESTS[type(operation)]
    return name, request(operation)


def decode(operation: Operation[Any], reply: list[Any]) -> Any:
    """
    Return an operation's typed reply.

    Raises:
        CorruptStateError: stored data cannot be read.
        JobNotFoundError: as the operation says.
    """
    try:
        return REPLIES[type(operation)](operation, reply)
    except (CorruptStateError, JobNotFoundError):
        raise
    except DAMAGE as error:
        raise _damaged(error) from error


def following(operation: Operation[Any], reply: list[Any], answer: Any) -> Operation[Any] | None:
    """Return the continuation of a query whose reply was truncated, None for a complete reply."""
    if type(operation) is Get and len(answer.records) < len(operation.ids):
        return Get(operation.ids[len(answer.records) :])
    if type(operation) is List and reply[0] == PAGE_CUT:
        return attrs.evolve(operation, after=answer.after, limit=operation.limit - len(answer.records))
    return None


def joined(first: Any, second: Any) -> Any:
    """Return the answer that two answers are together, of which the second goes on from the first."""
    return attrs.evolve(second, records=(*first.records, *second.records))


def clocked(reply: list[Any]) -> tuple[int, int | None]:
    """Return the store's time and the next due time from the reply to a change, in ms, None for never."""
    try:
        _, now_ms, next_ms = reply[:HEADER]
        return now_ms + 0, None if next_ms < 0 else next_ms
    except DAMAGE as error:
        raise _damaged(error) from error


def dropped(operation: Operation[Any], reply: list[Any]) -> int:
    """Return the number of records dropped early for lack of memory, from a reply with that number."""
    try:
        return int(reply[DROPPED_AT[type(operation)]] + 0)
    except DAMAGE as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> CorruptStateError:
    return CorruptStateError(f"stored data cannot be read ({type(error).__name__}); run `queuehint doctor`")


def decode_spec(job_id: str, reply: list[Any]) -> JobSpec | None:
    """Decode a spec from the script `spec`, None if there is none."""
    if not reply:
        return None
    *lines, rest = reply
    try:
        return parse_spec(job_id, [line.decode() for line in lines], rest)
    except DAMAGE as error:
        raise _damaged(error) from error
