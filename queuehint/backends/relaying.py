"""
Steps by which a row of an inbox takes effect: what its writer would have sent, had it asked the store itself.

A row of one operation is that operation. A row of several is a submission in parts, hidden until its commit: either all
of its jobs are there or none. The commit counts the jobs that are new: those of an earlier row are found by their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.backends.sending import in_turn, send
from queuehint.backends.steps import Steps, tick_until_done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.operations import EnqueuedJob


def relay(operations: Sequence[Any]) -> Steps[list[EnqueuedJob]]:
    """
    Have the operations of a row take effect.

    Args:
        operations: as `operations_of` returns them.

    Returns:
        The jobs that were enqueued, in their order.

    Raises:
        QueueHintError: what the store refuses them with; nothing of the row has taken effect.
    """
    *parts, last = operations
    if not parts:
        reply = yield from in_turn(last)
        yield from tick_until_done(more=reply.more)
        return [*getattr(reply, "jobs", ())]

    def ids() -> list[str]:
        return [spec.id for part in parts for spec in getattr(part, "jobs", ())]

    flow, timeout_ms = last.flow, last.flow_timeout_ms
    return (yield from send(parts, staged=last.staged, flow=flow, flow_timeout_ms=timeout_ms, all_ids=ids))
