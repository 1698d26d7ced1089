"""
The back end of a document editor: sections are edited side by side, a snapshot sees the whole document at rest.

- an edit goes to ``[doc, section]``: edits of one section run in the order they came, those of others in parallel;
- a snapshot goes to ``[doc]``: it waits for the edits of this document that came before it and holds back those that
  come after, and no other document waits.

The application is a plain ASGI callable, so it needs no framework; its worker runs inside it, from start-up to
shut-down, by `Scheduler.lifespan`:

    uvicorn examples.documents:app

    POST /documents/{doc}/sections/{section}   {"insert": "text", "at": 0, "delete": 0}   -> 202 {"job": id}
    POST /documents/{doc}/snapshot                                                        -> 202 {"job": id}
    GET  /jobs/{id}                            state, result, and what the job waits for
    GET  /documents/{doc}                      the text as it is now, section by section, and the last snapshot
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from attrs import field, frozen
from attrs.validators import ge, instance_of, optional

from queuehint import InvalidHintError, InvalidJobError, JobNotFoundError, JobState, PayloadError, Scheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

BODY_BYTES_MAX = 1_000_000

sched = Scheduler()


# --- the work --------------------------------------------------------------------------------------------------------


@frozen
class Edit:
    """
    Put *insert* into a section in place of *delete* characters from *at* on; None is the end.

    The validators run where the job is enqueued and again in the worker, which makes an `Edit` of the JSON it gets.
    """

    insert: str = field(default="", validator=instance_of(str))
    at: int | None = field(default=None, validator=optional([instance_of(int), ge(0)]))
    delete: int = field(default=0, validator=[instance_of(int), ge(0)])


class Store:
    """The documents, in memory; a database in real life."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, str]] = {}
        self.snapshots: dict[str, str] = {}


store = Store()


@sched.job(queue_hint=["{doc}", "{section}"], max_attempts=3)
async def edit_section(doc: str, section: str, edit: Edit) -> int:
    """Apply one edit and return the new length of the section."""
    text = store.documents.get(doc, {}).get(section, "")
    # Where a database would be asked. No other job edits this section meanwhile: this one holds its place.
    await asyncio.sleep(0)
    at = len(text) if edit.at is None else edit.at
    text = text[:at] + edit.insert + text[at + edit.delete :]
    store.documents.setdefault(doc, {})[section] = text
    return len(text)


@sched.job(queue_hint=["{doc}"], max_attempts=3)
def take_snapshot(doc: str) -> str:
    """Return the whole text. A plain function runs in a thread, and still no other job edits this document."""
    sections = store.documents.get(doc, {})
    text = store.snapshots[doc] = "\n\n".join(sections[name] for name in sorted(sections))
    return text


# --- the routes ------------------------------------------------------------------------------------------------------


class HTTPError(Exception):
    """An answer that is not the one asked for."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


async def answer(method: str, path: list[str], body: bytes) -> tuple[HTTPStatus, Any]:
    """
    Do what a request asks for and return status and content.

    Raises:
        HTTPError: it cannot be done.
    """
    match method, path:
        case "POST", ["documents", doc, "sections", section]:
            edit_job = await edit_section.enqueue(doc, section, read_edit(body))
            return HTTPStatus.ACCEPTED, {"job": edit_job.id}
        case "POST", ["documents", doc, "snapshot"]:
            snapshot_job = await take_snapshot.enqueue(doc)
            return HTTPStatus.ACCEPTED, {"job": snapshot_job.id}
        case "GET", ["jobs", job_id]:
            return HTTPStatus.OK, await describe(job_id)
        case "GET", ["documents", doc] if doc in store.documents:
            return HTTPStatus.OK, {"sections": store.documents[doc], "snapshot": store.snapshots.get(doc)}
        case _, ["documents", _, "sections", _] | ["documents", _, "snapshot"] if method != "POST":
            raise HTTPError(HTTPStatus.METHOD_NOT_ALLOWED, "POST here")
        case _, ["jobs", _] | ["documents", _] if method != "GET":
            raise HTTPError(HTTPStatus.METHOD_NOT_ALLOWED, "GET here")
        case _:
            raise HTTPError(HTTPStatus.NOT_FOUND, "nothing here")


async def describe(job_id: str) -> dict[str, Any]:
    """Return what there is to know of a job: `why` is a sentence that names the jobs it waits for."""
    handle = sched.handle(job_id)
    record = await handle.record()
    return {
        "job": job_id,
        "state": record.state,
        "result": await handle.result() if record.state is JobState.FINISHED else None,
        "error": record.errors[-1].message if record.errors else None,
        "why": str(await handle.why()),
    }


def read_edit(body: bytes) -> Edit:
    """Check the body of a request for an edit."""
    try:
        return Edit(**json.loads(body))
    except (ValueError, TypeError, RecursionError) as error:
        raise HTTPError(HTTPStatus.BAD_REQUEST, f"not an edit: {error.args[0]}") from None


# --- ASGI ------------------------------------------------------------------------------------------------------------


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Serve one connection, or the life of the application."""
    if scope["type"] == "lifespan":
        await live(receive, send)
    elif scope["type"] == "http":
        await serve(scope, receive, send)
    else:
        raise NotImplementedError(f"no {scope['type']} here")


async def live(receive: Receive, send: Send) -> None:
    """Run a worker from start-up to shut-down; jobs that run then may end, those that wait keep their places."""
    async with AsyncExitStack() as stack:
        await receive()
        try:
            # The texts are in this process, so the worker has to be here too, wherever the jobs are kept.
            await stack.enter_async_context(sched.lifespan(workers=True)(app))
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await sched.close()
    await send({"type": "lifespan.shutdown.complete"})


async def serve(scope: Message, receive: Receive, send: Send) -> None:
    """Answer one request in JSON."""
    try:
        status, content = await answer(scope["method"], segments(scope), await read_body(receive))
    except HTTPError as error:
        status, content = error.status, {"error": str(error)}
    except (InvalidHintError, PayloadError) as error:  # a place or an argument that no job can have
        status, content = HTTPStatus.BAD_REQUEST, {"error": str(error)}
    except (JobNotFoundError, InvalidJobError) as error:  # no such id, or nothing that could be one
        status, content = HTTPStatus.NOT_FOUND, {"error": str(error)}
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def segments(scope: Message) -> list[str]:
    """Return the parts of a request's path; an escaped slash is part of a name."""
    path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("ascii", "replace")
    return [unquote(part) for part in path.partition("?")[0].removeprefix("/").split("/")]


async def read_body(receive: Receive) -> bytes:
    """Return the body of a request."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HTTPError(HTTPStatus.BAD_REQUEST, "the request was not sent to its end")
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            raise HTTPError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {BODY_BYTES_MAX} bytes")
        if not message.get("more_body", False):
            return bytes(body)
