"""``queuehint enqueue``: a job from the shell."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from queuehint.cli.opening import AsJson, Namespace, Target, UsageError, namespace_of, opened, place
from queuehint.cli.render import Printer
from queuehint.client.job import Job
from queuehint.errors import shown
from queuehint.handlers.codec import JsonCodec
from queuehint.handlers.conversion.plain_json import encode_json
from queuehint.scheduler.scheduler import Scheduler
from queuehint.schema.checks import check_id
from queuehint.values.hint import Claim
from queuehint.values.ids import new_id
from queuehint.values.spec import JobSpec


def enqueue(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The name of the task.")],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help='The arguments: an object, by parameter, such as \'{"doc": "d1"}\'.')
    ] = "{}",
    target: Target = None,
    namespace: Namespace = None,
    path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Its place, a queue key; an application knows that of its tasks.")
    ] = None,
    anywhere: Annotated[bool, typer.Option("--no-place", help="It has no place, and conflicts with no job.")] = False,
    pool: Annotated[str | None, typer.Option(metavar="POOL", help="Which workers serve it.")] = None,
    user: Annotated[str | None, typer.Option(metavar="USER", help="Whose it is.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Its id: the same command again is the same job.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue a job. With module:scheduler its task gives the place; with a URL give --path or --no-place."""
    with opened(target, namespace, as_json=as_json) as sched:
        given = read_arguments(arguments, "arguments")
        if path is not None and anywhere:
            raise UsageError("--path and --no-place are mutually exclusive")
        options: dict[str, Any] = {"pool": pool, "user": user, "id": None if id is None else check_id(id)}
        options = {name: value for name, value in options.items() if value is not None}
        job = sched.jobs.get(task)
        if job is not None:
            if path is not None or anywhere:
                options |= {"queue_hint": None} if path is None else {"claims": [place(path)]}
            handle = job.using(**options).enqueue_sync(**_read_as(sched, job, given))
        elif sched.jobs:
            raise UsageError(f"there is no task {shown(task)}; there are {', '.join(sorted(sched.jobs))}")
        elif path is None and not anywhere:
            raise UsageError(
                "a URL has no queue_hint template: pass --path doc1, --no-place, or --target module:scheduler"
            )
        else:
            claims = () if path is None else (Claim(place(path)),)
            spec = JobSpec(**{"id": new_id(), **options}, task=task, claims=claims, arguments=encode_json(given))
            (handle,) = sched.submit_sync([spec])
        printer = Printer(as_json=as_json)
        if as_json:
            printer.json({"id": handle.id, "task": task})
        else:
            printer.say(f"{handle.id}: {task} enqueued in {namespace_of(sched)}")


def read_arguments(text: str, what: str) -> dict[str, Any]:
    """
    Parse the arguments of a job from the command line.

    Raises:
        UsageError: it is not a JSON object.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{what} must be JSON: {error}") from None
    if not isinstance(given, dict):
        raise UsageError(f'{what} must be a JSON object, such as \'{{"doc": "doc1"}}\'')
    return given


def _read_as(sched: Scheduler, job: Job[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as values of the handler's annotations, as a worker reads them."""
    codec = sched.codec if isinstance(sched.codec, JsonCodec) else JsonCodec()
    return codec.loads(encode_json(given), job.handler.annotations)
