"""``queuehint cron ls, pause, resume, run, rm``: schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from queuehint.cli.filters import All, ChooseSchedules, choosing_schedules
from queuehint.cli.opening import (
    AsJson,
    Namespace,
    Target,
    UsageError,
    Yes,
    confirm,
    namespace_of,
    opened,
    say_none,
)
from queuehint.cli.render import Grid, Printer, ago, cell, iso, span
from queuehint.clock import SystemClock
from queuehint.scheduler.scheduler import Scheduler
from queuehint.scheduler.schedules import ScheduleFilter
from queuehint.values.schedule import Recurrence, Schedule

app = typer.Typer(no_args_is_help=True, help="Schedules: jobs fired by the clock.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a schedule.")]
SomeName = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of a schedule.")]
WHICH = "say which: a name, or --all, or --service, --user, --task, --pool, --tag, --path"


@app.command("ls")
@choosing_schedules
def ls(
    choose: ChooseSchedules,
    target: Target = None,
    namespace: Namespace = None,
    paused: Annotated[bool | None, typer.Option("--paused/--active", help="Only those that are so.")] = None,
    as_json: AsJson = False,
) -> None:
    """List schedules in order of name: when they are due, what they fired last."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        found = sched.schedules.list_sync(**choose(paused=paused))
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
@choosing_schedules
def pause(
    choose: ChooseSchedules,
    name: SomeName = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    as_json: AsJson = False,
) -> None:
    """Pause a schedule, or all that are chosen: they fire nothing until they are resumed."""
    with opened(target, namespace, as_json=as_json) as sched:
        which = _which(name, choose(), every=every)
        _act(sched, sched.schedules.pause_sync, "paused", which, as_json=as_json)


@app.command()
@choosing_schedules
def resume(
    choose: ChooseSchedules,
    name: SomeName = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    as_json: AsJson = False,
) -> None:
    """Undo `pause`; what was due meanwhile is not made up for."""
    with opened(target, namespace, as_json=as_json) as sched:
        which = _which(name, choose(), every=every)
        _act(sched, sched.schedules.resume_sync, "resumed", which, as_json=as_json)


@app.command()
def run(name: Name, target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Enqueue a job of a schedule now, besides those it fires; its times and its last job stay as they are."""
    with opened(target, namespace, as_json=as_json) as sched:
        job = sched.schedules.run_now_sync(name)
        if as_json:
            Printer(as_json=True).json({"name": name, "job": job.id})
        else:
            Printer().say(job.id)


@app.command("rm")
@choosing_schedules
def remove(
    choose: ChooseSchedules,
    name: SomeName = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget a schedule, or all that are chosen; the jobs they have fired are left alone."""
    with opened(target, namespace, as_json=as_json) as sched:
        which = _which(name, choose(), every=every)
        what = f"schedule {name}" if name is not None else _counted(len(sched.schedules.list_sync(**choose())))
        confirm(f"Forget {what} in {namespace_of(sched)}?", yes=yes)
        _act(sched, sched.schedules.remove_sync, "removed", which, as_json=as_json)


def _which(name: str | None, chosen: ScheduleFilter, *, every: bool) -> dict[str, Any]:
    """
    Return the arguments that select schedules.

    Raises:
        UsageError: none or two of the ways to say it are used.
    """
    if (name is not None) + every + bool(chosen) != 1:
        raise UsageError(WHICH)
    return {"name": name, "all": every, **chosen}


def _act(sched: Scheduler, act: Callable[..., int], done: str, which: dict[str, Any], *, as_json: bool) -> None:
    printer = Printer(as_json=as_json)
    reached = act(**which)
    if which["name"] is not None:
        printer.done("name", which["name"], done, changed=bool(reached))
    elif as_json:
        printer.json({"name": None, "done": done, "changed": reached > 0, "reached": reached})
    else:
        printer.say(f"{namespace_of(sched)}: {_counted(reached)} {done}")


def _counted(count: int) -> str:
    return "1 schedule" if count == 1 else f"{count} schedules"


def recurrence_text(when: Recurrence) -> str:
    """Return when a schedule is due, for people."""
    return f"{when.cron} {when.timezone}" if when.every_ms is None else f"every {when.every_ms / 1000:g} s"


def _fields(one: Schedule) -> dict[str, Any]:
    when = one.recurrence
    next_ms = None if one.is_paused else one.next_ms
    times = {"start": when.start_ms, "end": when.end_ms, "next": next_ms, "last": one.last_ms}
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
