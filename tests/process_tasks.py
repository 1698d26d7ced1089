"""Tasks that run in processes of their own: those import this module, so it imports little."""

from __future__ import annotations

import asyncio
import ctypes
import datetime as dt
import itertools
import logging
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import attrs

from queuehint import (
    Children,
    Discard,
    DuplicateJobError,
    Fail,
    HandlerError,
    InvalidJobError,
    JobContext,
    LeaseLostError,
    PayloadError,
    Retry,
    Scheduler,
    SignalTimeoutError,
    Snooze,
    UnknownToReleaseError,
)

sched = Scheduler("memory://")


@attrs.frozen
class Made:
    """The result of a step."""

    name: str
    took: dt.timedelta


class OddError(ValueError):
    """An error of the application."""


@sched.job(process=True, max_attempts=1)
def pid() -> int:
    return os.getpid()


@sched.job(process=True, max_attempts=2, fail_on=(OSError,), retry=[0])
def end(how: str) -> Any:
    match how:
        case "raise":
            raise OddError("so it is")
        case "final":
            raise FileNotFoundError("gone")
        case "group":
            raise ExceptionGroup("both", [FileNotFoundError("a"), PermissionError("b")])
        case "retry":
            raise Retry(0, "again")
        case "snooze":
            return Snooze(3600)
        case "fail":
            raise Fail("why")
        case "discard":
            return Discard("no point")
        case "not json":
            return object()
        case "segfault":
            ctypes.string_at(0)
        case "unknown":
            raise UnknownToReleaseError("of another job's result")
        case "enqueue":
            pid.enqueue_sync()
    return None


@sched.job(["{doc}"], process=True, tags=["t"], headers={"h": "v"})
def told(ctx: JobContext, doc: str) -> dict[str, Any]:
    """Return what the context says."""
    ctx.progress(1, 2, "half")
    logging.getLogger("app").warning("a %s", "record")
    ctx.log("a line")
    ctx.update({"part": 1})
    said: dict[str, Any] = {
        "id": ctx.id,
        "task": ctx.task,
        "attempt": ctx.attempt,
        "token": ctx.token,
        "path": ctx.path,
        "tags": ctx.tags,
        "headers": ctx.headers,
        "canceled": ctx.canceled,
        "results": dict(ctx.results),
    }
    try:
        _ = ctx.state
    except HandlerError as error:
        said["state"] = str(error)
    return said


@sched.job(process=True)
def family(ctx: JobContext) -> Children:
    """Make children, and wait for them."""
    first = ctx.enqueue_sync(pid)
    assert first.created
    assert [child.id for child in ctx.enqueue_many_sync(pid, [(), ()])] == list(ctx.made[1:])
    try:
        ctx.enqueue_sync(end.using(id=first.id), "raise")
    except DuplicateJobError as error:
        return Children(result=[error.job_id, str(error)])
    raise AssertionError


def made(file: str, name: str) -> Made:
    """Write down that a step was made."""
    with Path(file).open("a", encoding="utf-8") as out:
        out.write(f"{name} ")
    return Made(name, dt.timedelta(seconds=len(name)))


@sched.job(
    process=True, max_attempts=3, retry=[0], upgrade=lambda arguments, steps: steps.update(was="is") or arguments
)
def in_steps(ctx: JobContext, file: str) -> list[Any]:
    """Make steps, and die behind the first two."""
    first = ctx.step_sync("first", made, file, "first")
    second = asyncio.run(second_of(ctx, file)) if ctx.attempt == 1 else ctx.step_sync("is", made, file, "not again")
    if ctx.attempt == 1:
        os._exit(3)
    errors = []
    for name in ("first", "", "too much"):
        try:
            ctx.step_sync(name, lambda: "x" * 65536)
        except (HandlerError, InvalidJobError, PayloadError) as error:
            errors.append(str(error))
    names = [step.name for step in ctx.steps]
    return [first.name, second.name, second.took.total_seconds(), names, errors]


async def second_of(ctx: JobContext, file: str) -> Made:
    return await ctx.step("was", made, file, "second")


@sched.job(["lost"], process=True, max_attempts=1)
def lost_step(ctx: JobContext, file: str) -> str:
    """Make a step once the job is another's."""
    write(file, "begun")
    while Path(file).read_text("utf-8").split() == ["begun"]:
        time.sleep(0.01)
    try:
        ctx.step_sync("late", int)
    except LeaseLostError as error:
        write(file, error.job_id, "is lost")
    return "lost"


@sched.job(["spin"], process=True, timeout=0.1, max_attempts=1)
def spin(file: str) -> None:
    """Never end; say which process does that, and clean up when it is interrupted."""
    write(file, os.getpid())
    try:
        while True:
            pass
    finally:
        write(file, os.getpid(), "interrupted")


@sched.job(["hold"], process=True, max_attempts=1)
def hold_on(file: str) -> None:
    """Hold the interpreter in C, with a program started before, which must not outlive the job."""
    program = subprocess.Popen(["sleep", "600"])
    write(file, os.getpid(), program.pid)
    max(itertools.repeat(0))


@sched.job(["polite"], process=True, max_attempts=1)
def polite(ctx: JobContext, file: str) -> None:
    """Run until it is told to stop."""
    write(file, os.getpid())
    until_s = time.monotonic() + 600
    while not ctx.canceled and time.monotonic() < until_s:
        time.sleep(0.01)
    write(file, os.getpid(), "told")


def write(file: str, *words: object) -> None:
    """Write words to a file, in one step."""
    Path(f"{file}.new").write_text(" ".join(map(str, words)), "utf-8")
    Path(f"{file}.new").replace(file)


def plain(number: int) -> int:
    """Add one; declared nowhere in this module."""
    return number + 1


@sched.job(process=True)
def plain_job(number: int) -> int:
    """Add one."""
    return number + 1


@sched.job(process=True, max_attempts=1)
def decided(ctx: JobContext, name: str, timeout: float | None) -> Any:
    try:
        return [os.getpid(), ctx.wait_sync(name, timeout=timeout)]
    except SignalTimeoutError as error:
        return str(error)


def plainly_decided(ctx: JobContext, name: str) -> Any:
    """Wait for a signal; declared nowhere in this module."""
    return ctx.wait_sync(name)


@sched.job(process=True, max_attempts=1)
def refused(ctx: JobContext) -> Any:
    try:
        ctx.wait_sync("two words")
    except InvalidJobError as error:
        return str(error)
