"""The application that each environment runs: a scheduler made at import, a web interface, and a check of order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from queuehint import Scheduler

sched = Scheduler(os.environ["QUEUEHINT_URL"], namespace=os.environ.get("QUEUEHINT_NAMESPACE", "default"))

PATHS = 3
EDITS = 10
"""To each path, from each caller."""


@sched.job(queue_hint=["docs", "{doc}"])
async def edit(doc: str, caller: str, number: int) -> None:
    """Append one edit to the document: several of one document at once would lose some."""
    edits = await sched.xcom.pull(doc, default=[])
    await sched.xcom.push(doc, [*edits, [caller, number]], ttl=timedelta(minutes=10))


@sched.job(queue_hint=["docs"])
async def lengths() -> dict[str, int]:
    """Return how many edits each document has; the barrier behind all of them."""
    return {str(doc): len(await sched.xcom.pull(str(doc), default=[])) for doc in range(PATHS)}


def calls(caller: str) -> Iterable[tuple[str, str, int]]:
    """Yield the arguments of the edits of one caller, in order."""
    return ((str(doc), caller, number) for number in range(EDITS) for doc in range(PATHS))


def check(edits: list[list[Any]], callers: int) -> None:
    """Fail unless one document has every edit, those of each caller in order."""
    assert len(edits) == callers * EDITS, len(edits)
    for caller in {caller for caller, _ in edits}:
        assert [number for name, number in edits if name == caller] == list(range(EDITS))


def check_documents(callers: int) -> None:
    """Check every document, from code without a loop."""
    for doc in range(PATHS):
        check(sched.xcom.pull_sync(str(doc), default=[]), callers)


def web(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]) -> list[bytes]:
    """WSGI application: POST enqueues the edits of a caller, and GET returns the lengths by a barrier."""
    caller = environ["PATH_INFO"].strip("/")
    if environ["REQUEST_METHOD"] == "POST":
        for call in calls(caller):
            edit.enqueue_sync(*call)
        answer = str(os.getpid())
    else:
        answer = repr(lengths.enqueue_sync().result_sync(timeout=30))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer.encode()]


async def asgi(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[dict[str, Any]], Any]) -> None:
    """ASGI application, the same; it says on which loop it runs."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    caller = scope["path"].strip("/")
    loop = type(asyncio.get_running_loop()).__module__
    if scope["method"] == "POST":
        await asyncio.gather(*[edit.enqueue(*call) for call in calls(caller)])
        answer = f"{os.getpid()} {loop}"
    else:
        answer = repr(await (await lengths.enqueue()).result(timeout=30))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": answer.encode()})


async def _live(receive: Callable[[], Any], send: Callable[[dict[str, Any]], Any]) -> None:
    async with sched.lifespan()(None):
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await sched.close()
    await send({"type": "lifespan.shutdown.complete"})


if os.environ.get("CALL_BEFORE_FORK"):
    sched.stats_sync()
