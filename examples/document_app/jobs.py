"""
The scheduler and its jobs; the web application enqueues them, `queuehint worker` runs them.

An edit goes to ``[doc, section]`` and a publication to ``[doc]``: sections are edited side by side, and what is
published is the whole document at rest, with the edits that came before it and none that came after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from examples.document_app import publishing, tracing
from examples.document_app.database import Database
from queuehint import Fail, Job, JobContext, Scheduler
from queuehint.metrics.otel import trace_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

sched = Scheduler()  # its store is that of QUEUEHINT_URL

tracing.set_up()
trace_jobs(sched)


class Edit(BaseModel):
    """Put *insert* into a section in place of *delete* characters from *at* on; None is the end."""

    insert: str = ""
    at: int | None = Field(default=None, ge=0)
    delete: int = Field(default=0, ge=0)


@sched.worker_lifespan
def open_database() -> Iterator[Database]:
    """Open the database before a worker's first job, and close it after its last."""
    with Database() as database:
        yield database


@sched.job(queue_hint=["{doc}", "{section}"])
def edit_section(ctx: JobContext[Database], doc: str, section: str, edit: Edit) -> int:
    """Apply an edit, and return the new length of the section."""
    return ctx.state.edit(ctx.id, doc, section, edit.insert, edit.at, edit.delete)


@sched.job(queue_hint=["{doc}"])
def publish(ctx: JobContext[Database], doc: str) -> str:
    """Publish a document as it is now, and return where it can be read."""
    sections = ctx.state.sections(doc)
    if not sections:
        raise Fail(f"there is no document {doc!r}")
    address = publishing.send(doc, "\n\n".join(sections.values()))
    ctx.state.note_published(doc, address)
    return address


@sched.job(queue_hint=["{doc}"])
def keep_version(ctx: JobContext[Database], doc: str) -> int:
    """Keep a version of a document as it is now, and return its number."""
    return ctx.state.keep_version(doc)


def keep_soon(doc: str) -> Job[[str], int]:
    """Keep a version ten minutes after the last edit of a burst, an hour after the first at the latest."""
    return keep_version.using(key=f"keep {doc}", on_conflict="replace", delay=600, max_delay=3600)


@sched.job(queue_hint=["{doc}"], max_attempts=20)
def erase(ctx: JobContext[Database], doc: str) -> None:
    """Erase a document; enqueued by `Scheduler.close_path` as the last job there."""
    ctx.state.erase(doc)
