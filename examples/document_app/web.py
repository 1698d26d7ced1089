"""
The web application: it enqueues jobs, and reports their states and results.

    uvicorn examples.document_app.web:app

    POST /documents/{doc}/sections/{section}   {"insert": "text", "at": 0, "delete": 0}   -> 202 {"job": id}
    POST /documents/{doc}/publication                                                     -> 202 {"job": id}
    POST /documents/{doc}/leave                the last editor leaves: keep a version   -> 200 {"version": n}
    DELETE /documents/{doc}                    for good: nobody can edit it again                -> 202 {"job": id}
    GET  /documents/{doc}                      its sections, and where it was published
    GET  /documents/{doc}/events               what happens to its jobs from now on, as server-sent events
    WS   /documents/{doc}/socket               the same by WebSocket; ?after=n goes on behind an event
    GET  /jobs/{id}                            state, result, attempts, and what the job waits for
    GET  /jobs?tag=import-7                    the newest jobs with a tag
    GET  /workers                              the workers, and the number of jobs that each runs

Each POST takes tags, ``?tag=import-7``, and the header ``X-User``: jobs of different users take turns.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from fastapi import FastAPI, Header, HTTPException, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, StreamingResponse

from examples.document_app.database import Database
from examples.document_app.jobs import Edit, edit_section, erase, keep_soon, keep_version, publish, sched
from queuehint import (
    BackendUnavailableError,
    Event,
    InvalidHintError,
    InvalidJobError,
    JobNotFoundError,
    JobRecord,
    JobState,
    PathClosedError,
    PayloadError,
    ResultTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

User = Annotated[str | None, Header(alias="X-User")]
LastEvent = Annotated[int | None, Header()]
Tags = Annotated[list[str], Query(alias="tag")]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database for reading; no worker runs in here where the jobs are in PostgreSQL or on Redis."""
    with Database() as app.state.database:
        async with sched.lifespan()(app):
            yield
        await sched.close()


# It makes a span of each request, below that of the caller, once a provider is set up; before FastAPI 0.165 that takes
# `opentelemetry-instrumentation-fastapi`.
app = FastAPI(title="Documents", lifespan=lifespan)


@app.post("/documents/{doc}/sections/{section}", status_code=202)
async def post_edit(doc: str, section: str, edit: Edit, user: User = None, tags: Tags = []) -> dict[str, str]:  # noqa: B006
    job = await edit_section.using(user=user, tags=tags).enqueue(doc, section, edit)
    await keep_soon(doc).enqueue(doc)
    return {"job": job.id}


@app.post("/documents/{doc}/leave")
async def leave(doc: str) -> dict[str, int]:
    await sched.run_now([doc], task="keep_version")  # the version that was to be kept in ten minutes
    # An edit may put that one off again, and nothing this one, which has no key: it runs behind the edits before it.
    job = await keep_version.enqueue(doc)
    return {"version": await job.result(timeout=30)}


@app.post("/documents/{doc}/publication", status_code=202)
async def post_publication(doc: str, user: User = None, tags: Tags = []) -> dict[str, str]:  # noqa: B006
    job = await publish.using(user=user, tags=["publication", *tags]).enqueue(doc)
    return {"job": job.id}


@app.delete("/documents/{doc}", status_code=202)
async def delete_document(doc: str, user: User = None) -> dict[str, str]:
    # In one step: what waits is canceled, what runs is let end, and the erasing is the last job there.
    job = await sched.close_path([doc], last=erase.using(user=user).spec(doc))
    return {"job": job.id}


@app.get("/documents/{doc}")
async def get_document(doc: str) -> dict[str, Any]:
    database: Database = app.state.database
    sections = database.sections(doc)
    if not sections:
        raise HTTPException(404, f"there is no document {doc!r}")
    return {"sections": sections, "published": database.published(doc)}


@app.get("/documents/{doc}/events")
async def get_events(doc: str, last_event_id: LastEvent = None) -> StreamingResponse:
    """Follow a document; a browser that comes back says by Last-Event-ID what it has seen."""
    return StreamingResponse(feed(doc, last_event_id), media_type="text/event-stream")


async def feed(doc: str, after: int | None) -> AsyncIterator[str]:
    async with sched.events(path=[doc], after=after) as events:
        yield ": from now on\n\n"  # a comment: who has read it misses nothing that comes
        async for event in events:
            yield f"id: {event.at}\ndata: {json.dumps(shown(event))}\n\n"


@app.websocket("/documents/{doc}/socket")
async def follow(socket: WebSocket, doc: str, after: int | None = None) -> None:
    """Follow a document by WebSocket, until its tab is closed."""
    await socket.accept()

    async def send() -> None:
        async with sched.events(path=[doc], after=after) as events:
            async for event in events:
                await socket.send_json({"at": event.at, **shown(event)})

    async def read() -> None:
        # Nothing is sent to the tab of a quiet document, so that only reading notices that it is closed.
        async for _ in socket.iter_text():
            pass

    both = [asyncio.create_task(send()), asyncio.create_task(read())]
    try:
        ended, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        with suppress(WebSocketDisconnect):
            for task in ended:
                task.result()
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


def shown(event: Event) -> dict[str, Any]:
    return {"job": event.id, "task": event.task, "kind": event.kind, "error": event.error_message}


@app.get("/jobs/{job_id}")
async def get_job(job_id: str) -> dict[str, Any]:
    handle = sched.handle(job_id)
    record = await handle.record()
    return {
        **summary(record),
        "result": await handle.result() if record.state is JobState.FINISHED else None,
        "last_error": record.errors[-1].message if record.errors else None,
        "attempts": [attempt.outcome for attempt in record.history],
        "why": str(await handle.why()),
    }


@app.get("/jobs")
async def get_jobs(tag: str) -> list[dict[str, Any]]:
    page = await sched.records.list(tag=tag, newest_first=True, limit=100)
    return [summary(record) for record in page]


@app.get("/workers")
async def get_workers() -> list[dict[str, Any]]:
    return [attrs.asdict(worker) for worker in await sched.workers()]


def summary(record: JobRecord) -> dict[str, Any]:
    return {
        "job": record.id,
        "task": record.spec.task,
        "state": record.state,
        "user": record.spec.user,
        "tags": record.tags,
    }


@app.exception_handler(JobNotFoundError)
async def no_such_job(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 404)


@app.exception_handler(InvalidHintError)
@app.exception_handler(InvalidJobError)
@app.exception_handler(PayloadError)
async def no_such_place(_request: Request, error: Exception) -> JSONResponse:
    """Refuse a name, a tag, a user or a text that no job can have; nothing was enqueued."""
    return JSONResponse({"detail": str(error)}, 400)


@app.exception_handler(PathClosedError)
async def erased(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 410)


@app.exception_handler(ResultTimeoutError)
async def too_busy(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 504)


@app.exception_handler(BackendUnavailableError)
async def no_store(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "the jobs cannot be reached; try again"}, 503)
