"""
Crash points of a worker process of a test: around its calls of the store, and before a handler runs.

The application of the test calls `install`; the worker knows nothing of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from queuehint.backends.base import Backend
from queuehint.backends.redis.backend import RedisBackend
from queuehint.handlers.handler import Handler
from queuehint.operations import Exchange, Operation
from tests.crash_points import VARIABLE, armed
from tests.remote_memory import RemoteMemoryBackend

POINTS = ("claim.sent", "claim.after_reply", "handler", "settle.before", "settle.after")


def install() -> None:
    """Have this process die at the point that the environment names, if it names one."""
    reach = armed(os.environ.get(VARIABLE), POINTS)
    if reach is None:
        return
    loads = Handler.loads

    def loads_and_die(self: Handler, *arguments: Any, **more: Any) -> Any:
        loaded = loads(self, *arguments, **more)
        reach("handler")
        return loaded

    _install_in(RedisBackend, reach)
    _install_in(RemoteMemoryBackend, reach)
    Handler.loads = loads_and_die  # type: ignore[method-assign]


def _install_in(backend: type[Backend], reach: Callable[[str], None]) -> None:
    """Put the points around the calls of a backend."""
    call = backend.call

    async def call_and_die(self: Backend, operation: Operation[Any]) -> Any:
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

    backend.call = call_and_die  # type: ignore[method-assign]
