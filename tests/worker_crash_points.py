"""
Crash points of a worker process of a test: around its calls of the store, and before a handler runs.

The application of the test calls `install`; the worker knows nothing of it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from queuehint.backends.redis.backend import RedisBackend
from queuehint.handlers.handler import Handler
from queuehint.operations import Exchange
from tests.crash_points import VARIABLE, armed

if TYPE_CHECKING:
    from queuehint.operations import Operation

POINTS = ("claim.sent", "claim.after_reply", "handler", "settle.before", "settle.after")


def install() -> None:
    """Have this process die at the point that the environment names, if it names one."""
    reach = armed(os.environ.get(VARIABLE), POINTS)
    if reach is None:
        return
    call, loads = RedisBackend.call, Handler.loads

    async def call_and_die(self: RedisBackend, operation: Operation[Any]) -> Any:
        if not isinstance(operation, Exchange):
            return await call(self, operation)
        if operation.settle:
            reach("settle.before")
        calling = asyncio.ensure_future(call(self, operation))
        if operation.limit:
            await asyncio.sleep(0.01)
            reach("claim.sent")
        reply = await calling
        if operation.settle:
            reach("settle.after")
        if reply.grants:
            reach("claim.after_reply")
        return reply

    def loads_and_die(self: Handler, *arguments: Any) -> Any:
        loaded = loads(self, *arguments)
        reach("handler")
        return loaded

    RedisBackend.call = call_and_die  # type: ignore[method-assign]
    Handler.loads = loads_and_die  # type: ignore[method-assign,assignment]
