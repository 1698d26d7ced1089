"""
The form that enqueues a job: of a task known to this process, or a copy of a job with edited arguments.

The id of the new job is made with the form, so that a form that is sent twice enqueues one job.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.errors import (
    DuplicateJobError,
    InvalidHintError,
    InvalidJobError,
    PathClosedError,
    PayloadError,
    QueueFullError,
    QueueHintError,
    TemplateError,
    shown,
)
from queuehint.handlers.conversion.plain_json import encode_json
from queuehint.schema.checks import check_id
from queuehint.values.ids import new_id
from queuehint.values.spec import PAYLOAD_BYTES_MAX, JobSpec, Priority
from queuehint.web.orders import Submission
from queuehint.web.pages.asking import ask
from queuehint.web.pages.choosing import first, number, read_form
from queuehint.web.pages.orders import check_may_order
from queuehint.web.pages.rendering import links_of, notice, render
from queuehint.web.pages.views import form as of_form
from queuehint.web.problems import status_of
from queuehint.web.questions import One

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from queuehint.client.job import Job
    from queuehint.values.record import JobRecord
    from queuehint.web.board import Asker
    from queuehint.web.pages.choosing import Fields

WRONG: Final = (
    InvalidJobError,
    InvalidHintError,
    PayloadError,
    TemplateError,
    DuplicateJobError,
    PathClosedError,
    QueueFullError,
)
"""After such an error the form is shown again, with what was given."""
_LEVELS: Final = {str(int(level)): f"{int(level)} {level.name.lower()}" for level in Priority}
WHOLE = "arguments"
"""The field of all arguments, of a task that this process does not know."""


async def form(asker: Asker, request: Request) -> Response:
    """Show the form with the list of tasks, or with the fields of one task."""
    check_may_order(asker)
    query = request.query_params.multi_items()
    return await _shown(asker, request, query, once=asker.access.prefix + new_id())


async def _copied(asker: Asker, fields: Fields) -> JobRecord | None:
    """Return the job to copy, with its arguments if the user may read them."""
    job_id = first(fields, "copy")
    if not job_id:
        return None
    record: JobRecord = await ask(asker, "job", One(job_id=job_id, arguments=asker.access.arguments))
    return record


def _values(asker: Asker, record: JobRecord | None) -> dict[str, Any] | None:
    """Return the arguments of a job by name, None if hidden or unreadable by the codec of this process."""
    if record is None or not asker.access.arguments:
        return None
    try:
        return asker.scheduler.records.arguments_of(record)
    except QueueHintError:
        return None


async def _shown(
    asker: Asker, request: Request, fields: Fields, *, once: str, error: str | None = None, status: int = 200
) -> Response:
    record = await _copied(asker, fields)
    task = record.spec.task if record is not None else first(fields, "task")
    known = asker.scheduler.jobs
    if record is None and task and task not in known:
        raise InvalidJobError(f"task {shown(task)} is not known to this board")
    values = _values(asker, record)
    given = {name: value for name, value in fields if name.startswith(of_form.PREFIX)}
    found = _fields(known.get(task), values) if task else []
    if error is not None:
        found = [_as_given(field, given) for field in found]
    spec = None if record is None else record.spec
    options = {
        "user": spec.user if spec is not None else None,
        "pool": spec.pool if spec is not None else None,
        "priority": int(spec.priority) if spec is not None else None,
        "delay": None,
        "tags": ", ".join(spec.tags) if spec is not None else None,
    }
    if error is not None:
        options = {name: first(fields, name) for name in options}
    tasks = [{"name": name, "doc": (inspect.getdoc(job) or "").partition("\n")[0]} for name, job in known.items()]
    view = {
        "tasks": tasks if record is None else [None],
        "task": task or None,
        "copied": None if record is None else record.id,
        "hidden": record is not None and values is None,
        "fields": found,
        "options": {name: "" if value is None else value for name, value in options.items()},
        "levels": _LEVELS,
        "pool": known[task].pool if task in known else "default",
        "once": once,
        "error": error,
    }
    title = "Enqueue a copy" if record is not None else "Enqueue a job"
    return render(asker, request, "enqueue.html", title=title, form=view, status=status, live=False)


def _fields(job: Job[..., Any] | None, values: dict[str, Any] | None) -> list[of_form.View]:
    if job is None:
        field = of_form.field_of(WHOLE, dict, inspect.Parameter.empty, values if values is not None else {})
        return [field]
    handler = job.handler
    return of_form.fields_of(handler.parameters, handler.annotations, values)


def _as_given(field: of_form.View, given: dict[str, str]) -> of_form.View:
    """Return a field with its submitted value, for a form shown again."""
    text = given.get(field["field"])
    return {**field, "value": text is not None if field["kind"] == "bool" else text or ""}


async def enqueue(asker: Asker, request: Request) -> Response:
    """Enqueue the job of a form."""
    check_may_order(asker)
    fields = await read_form(request)
    once = check_id(first(fields, "once"), parameter="once")
    try:
        spec = await _spec(asker, fields, once)
        reply = await ask(asker, "enqueue", Submission(jobs=(spec,)))
    except WRONG as error:
        return await _shown(asker, request, fields, once=once, error=str(error), status=status_of(error))
    (job,) = reply.jobs
    links = links_of(asker, request)
    said: dict[str, Any] = {
        "level": "good" if job.created else "warn",
        "title": None,
        "text": f"{spec.task} is enqueued as {job.id}." if job.created else f"{job.id} was enqueued before.",
        "lines": [],
        "acts": [],
        "back": links.job(job.id),
    }
    return notice(asker, request, said, title="Enqueued")


async def _spec(asker: Asker, fields: Fields, once: str) -> JobSpec:
    record = await _copied(asker, fields)
    task = record.spec.task if record is not None else first(fields, "task")
    job = asker.scheduler.jobs.get(task)
    given = {name: value for name, value in fields if name.startswith(of_form.PREFIX)}
    arguments = {}
    for field in _fields(job, _values(asker, record)):
        value = of_form.read_argument(field, given.get(field["field"]))
        if value is not inspect.Parameter.empty:
            arguments[field["name"]] = value
    options = _options(fields)
    if job is not None:
        spec = job.using(id=once, check_arguments=False, **options).spec(**arguments)
        return attrs.evolve(spec, arguments=encode_json(arguments, bytes_max=PAYLOAD_BYTES_MAX), identity=())
    if record is None:
        raise InvalidJobError(f"task {shown(task)} is not known to this board")
    whole = arguments.get(WHOLE, {})
    if not isinstance(whole, dict):
        raise InvalidJobError(f"arguments must be an object, got {shown(whole)}")
    delay_s = options.pop("delay", None)
    # A field that was emptied is none of the copy.
    options = {"user": None, "pool": "default", "priority": Priority.NORMAL, "tags": (), **options}
    return attrs.evolve(
        record.spec,
        id=once,
        arguments=encode_json(whole, bytes_max=PAYLOAD_BYTES_MAX),
        identity=(),
        key=None,
        delay_ms=None if delay_s is None else round(1000 * delay_s),
        run_at_ms=None,
        depends_on=(),
        templates=False,
        name=None,
        flow=None,
        parent=None,
        schedule=None,
        scheduled_ms=None,
        **options,
    )


def _options(fields: Fields) -> dict[str, Any]:
    """
    Return the options that were given.

    Raises:
        InvalidJobError: one is wrong.
    """
    found: dict[str, Any] = {name: first(fields, name) for name in ("user", "pool") if first(fields, name)}
    if text := first(fields, "priority"):
        level = next((each for each in Priority if str(int(each)) == text), None)
        if level is None:
            raise InvalidJobError(f"priority must be one of {', '.join(_LEVELS)}, got {shown(text)}")
        found["priority"] = level
    if text := first(fields, "delay"):
        found["delay"] = number(fields, "delay")
    if tags := [tag.strip() for tag in first(fields, "tags").split(",") if tag.strip()]:
        found["tags"] = tuple(sorted(set(tags)))
    return found
