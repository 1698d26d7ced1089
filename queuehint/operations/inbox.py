"""
The row of an inbox: one submission, written in a producer's own transaction, and consumed by a leader.

A row is ASCII: the number of its format, and one operation a line, as `queuehint.operations.wire` writes it. It takes
effect all or nothing, so it has either one operation, or a submission in parts: its parts (`Enqueue`, `Depend`), in
order, and its `Commit`, all of one name. Only operations that are for an inbox are read, and no job of a running
parent, a schedule or a closed path: who may write a row may do no more than this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queuehint.errors import CorruptStateError, InvalidJobError, QueueHintError
from queuehint.operations.base import Operation
from queuehint.operations.bounds import check_limits
from queuehint.operations.producing import Commit, Enqueue
from queuehint.operations.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = b"1"
ROW_BYTES_MAX: Final = 64 << 20
"""The most bytes of a row; a leader has it in memory several times over."""


def row_of(operations: Sequence[Operation[Any]]) -> bytes:
    r"""
    Return the row with these operations.

    Raises:
        InvalidJobError: it would be larger than `ROW_BYTES_MAX`, or they are not one submission.
        QueueHintError: an operation breaks a limit, see `check_limits`.

    >>> from queuehint import operations
    >>> row_of([operations.Cancel(("a",))])
    b'1\n{"":"Cancel","ids":["a"]}'
    """
    if (problem := _problem(operations)) is not None:
        raise InvalidJobError(f"a submission in a transaction {problem}")
    lines, size = [FORMAT], len(FORMAT)
    for operation in operations:
        check_limits(operation)
        lines.append(encode(operation))
        size += 1 + len(lines[-1])
        if size > ROW_BYTES_MAX:
            raise InvalidJobError(
                f"one submission in a transaction takes at most {ROW_BYTES_MAX} bytes, with all its jobs; submit fewer "
                "of them at a time, or keep large arguments elsewhere (BlobCodec)"
            )
    return b"\n".join(lines)


def operations_of(data: bytes) -> tuple[Operation[Any], ...]:
    r"""
    Return the operations of a row, in their order. `queuehint.backends.relaying` describes their effect.

    Raises:
        CorruptStateError: it is none, or one of a newer release, or does what a row may not do.

    >>> operations_of(b'1\n{"":"Cancel","ids":["a"]}')
    (Cancel(ids=('a',), reason=None),)
    """
    if len(data) > ROW_BYTES_MAX:
        raise CorruptStateError(f"a row of the inbox has {len(data)} bytes, limit {ROW_BYTES_MAX}")
    form, *lines = data.split(b"\n")
    if form != FORMAT:
        raise CorruptStateError(f"a row of the inbox has the format {form[:16]!r}, this release reads {FORMAT!r}")
    operations = tuple(map(decode, lines))
    try:
        for operation in operations:
            check_limits(operation)
    except QueueHintError as error:
        raise CorruptStateError(f"a row of the inbox breaks a limit: {error}") from error
    if (problem := _problem(operations)) is not None:
        raise CorruptStateError(f"a row of the inbox {problem}")
    return operations


def _problem(operations: Sequence[Operation[Any]]) -> str | None:
    """Return the problem that keeps operations from being one row, or None."""
    for operation in operations:
        if not operation.is_for_inbox:
            return f"has the operation {type(operation).__name__}, which is not written in a transaction"
        if isinstance(operation, Enqueue):
            if operation.parent is not None or operation.firing is not None or operation.closing is not None:
                return "has a child of a running job, a job of a schedule, or the last job of a path"
            for spec in operation.jobs:
                if spec.presence_ms is not None:
                    return "has a job that waits for its caller"
    *parts, last = operations or (None,)
    if not isinstance(last, Commit):
        is_one = not parts and last is not None and getattr(last, "staged", None) is None
        return None if is_one else "has several operations, or a part, without their commit"
    if not parts or any(getattr(part, "staged", None) != last.staged for part in parts):
        return "has a commit of other parts than its own"
    return None
