"""``queuehint cron ls, pause, resume, run, rm``: schedules."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from queuehint.cli.opening import AsJson, Namespace, Target, Yes, confirm, namespace_of, opened, place, say_none
from queuehint.cli.render import Grid, Printer, ago, cell, iso, span
from queuehint.clock import SystemClock
from queuehint.values.schedule import Recurrence, Schedule

app = typer.Typer(no_args_is_help=True, help="Schedules: jobs fired by the clock.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a schedule.")]


@app.command("ls")
def ls(
    target: Target = None,
    namespace: Namespace = None,
    service: Annotated[str | None, typer.Option(help="Only of this service.")] = None,
    user: Annotated[str | None, typer.Option(help="Only of this user.")] = None,
    task: Annotated[str | None, typer.Option(help="Only of this task.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only of this pool.")] = None,
    path: Annotated[str | None, typer.Option(metavar="PATH", help="Only at or below this queue key.")] = None,
    paused: Annotated[bool | None, typer.Option("--paused/--active", help="Only those that are so.")] = None,
    as_json: AsJson = False,
) -> None:
    """List schedules in order of name: when they are due, what they fired last."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        segments = None if path is None else place(path)
        found = sched.schedules.list_sync(
            service=service, user=user, task=task, pool=pool, path=segments, paused=paused
        )
        if as_json:
            for one in found:
                printer.json(_fields(one))
            return
        rows = [
            (
                cell(one.name),
                cell("paused" if one.is_paused else _until(one.next_ms)),
                cell(one.task),
                cell(recurrence_text(one.recurrence)),
                cell(ago(one.last_ms)),
                cell(one.last_id),
            )
            for one in found
        ]
        printer.put(Grid(("name", "next", "task", "when", "last, ago", "last job"), rows))
        if not rows:
            say_none(sched, "schedules")


@app.command()
def pause(name: Name, target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Pause a schedule: it fires nothing until it is resumed."""
    with opened(target, namespace, as_json=as_json) as sched:
        Printer(as_json=as_json).done("name", name, "paused", changed=sched.schedules.pause_sync(name))


@app.command()
def resume(name: Name, target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Undo `pause`; what was due meanwhile is not made up for."""
    with opened(target, namespace, as_json=as_json) as sched:
        Printer(as_json=as_json).done("name", name, "resumed", changed=sched.schedules.resume_sync(name))


@app.command()
def run(name: Name, target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Enqueue a job of a schedule now, besides those it fires; its times stay as they are."""
    with opened(target, namespace, as_json=as_json) as sched:
        job = sched.schedules.run_now_sync(name)
        if as_json:
            Printer(as_json=True).json({"name": name, "job": job.id})
        else:
            Printer().say(job.id)


@app.command("rm")
def remove(
    name: Name, target: Target = None, namespace: Namespace = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Forget a schedule; the jobs it has fired are left alone."""
    with opened(target, namespace, as_json=as_json) as sched:
        confirm(f"Forget schedule {name} in {namespace_of(sched)}?", yes=yes)
        Printer(as_json=as_json).done("name", name, "removed", changed=sched.schedules.remove_sync(name))


def recurrence_text(when: Recurrence) -> str:
    """Return when a schedule is due, for people."""
    return f"{when.cron} {when.timezone}" if when.every_ms is None else f"every {when.every_ms / 1000:g} s"


def _fields(one: Schedule) -> dict[str, Any]:
    when = one.recurrence
    times = {"start": when.start_ms, "end": when.end_ms, "next": one.next_ms, "last": one.last_ms}
    return {
        "name": one.name,
        "task": one.task,
        "cron": when.cron,
        "every_ms": when.every_ms,
        "timezone": when.timezone,
        "missed": when.missed,
        "paused": one.is_paused,
        "last_id": one.last_id,
        **{f"{name}_at": None if time_ms is None else iso(time_ms) for name, time_ms in times.items()},
    }


def _until(time_ms: int | None) -> str:
    if time_ms is None:
        return "never"
    apart_ms = time_ms - SystemClock().now_ms()
    return f"in {span(apart_ms)}" if apart_ms > 0 else "now"
