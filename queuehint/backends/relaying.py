"""
Steps by which a row of an inbox takes effect: what its writer would have sent, had it asked the store itself.

A row of one operation is that operation. A row of several is a submission in parts, hidden until its commit: whatever
happens in between, an end of the process included, either all of its jobs are there or none.

- The first attempt goes by the name that the row gives the submission. Parts that a process has left behind under that
  name are found then: the commit counts fewer new parts than it has, is refused, and all is sent again under another
  name.
- The row is to be taken out in the step that has the last operation take effect. One that was taken out too late is
  sent again, and finds its jobs: they are known by their ids.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.backends.sending import in_turn, send, until_whole
from queuehint.backends.steps import Steps, tick_until_done
from queuehint.values.ids import new_id

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
    *parts, commit = operations
    if not parts:
        reply = yield from in_turn(commit)
        yield from tick_until_done(more=reply.more)
        return [*getattr(reply, "jobs", ())]
    names = chain([commit.staged], iter(new_id, ""))
    flow, flow_timeout_ms = commit.flow, commit.flow_timeout_ms

    def attempt() -> Steps[list[EnqueuedJob]]:
        staged = next(names)
        asked = [attrs.evolve(part, staged=staged) for part in parts]
        return send(asked, staged=staged, flow=flow, flow_timeout_ms=flow_timeout_ms, all_ids=ids)

    def ids() -> list[str]:
        return [spec.id for part in parts for spec in getattr(part, "jobs", ())]

    return (yield from until_whole(attempt, ids))
