"""
The application of the fault tests: a scheduler, and handlers that print their progress as lines of JSON.

Worker processes import it as ``tests.faults.app:sched`` and find their store in the environment; tests `make` one with
the same tasks for themselves. One line is one write, and CLOCK_MONOTONIC is the same in all processes of a machine, so
the lines of all workers together are one history.

``python -m tests.faults.app`` is a caller of `exclusive`: it prints when it waits and when it holds, and stays.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import attrs

from queuehint import Backoff, Job, JobContext, Scheduler
from tests import worker_crash_points
from tests.support import until_sync

LINES, FOLDER, NAMESPACE, LEASE = "FAULTS_LINES", "FAULTS_FOLDER", "FAULTS_NAMESPACE", "FAULTS_LEASE"
AGAIN = Backoff(base=0.05, factor=1, cap=0.05, jitter=0)


def say(event: str, ctx: JobContext | None = None, **more: Any) -> None:
    """Write one line of the history, if a file for it is set."""
    path = os.environ.get(LINES)
    if path is None:
        return
    line: dict[str, Any] = {"event": event, "pid": os.getpid(), "t": time.monotonic()}
    if ctx is not None:
        line |= {"job": ctx.id, "token": ctx.token, "attempt": ctx.attempt, "path": ctx.path}
    text = json.dumps(line | more) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def write_to_resource(ctx: JobContext) -> bool:
    """Write to a resource that takes no token smaller than one it has seen; say whether it did."""
    with sqlite3.connect(Path(os.environ[FOLDER], "resource.sqlite"), timeout=20) as resource:
        resource.execute("CREATE TABLE IF NOT EXISTS seen (job TEXT PRIMARY KEY, token INTEGER)")
        changed = resource.execute(
            "INSERT INTO seen VALUES (?, ?) ON CONFLICT (job) DO UPDATE SET token = excluded.token "
            "WHERE excluded.token >= token",
            (ctx.id, ctx.token),
        )
        taken = changed.rowcount == 1
    resource.close()
    say("written" if taken else "rejected", ctx)
    return taken


@attrs.frozen
class App:
    """A scheduler and its jobs."""

    sched: Scheduler
    work: Job[..., Any]
    spin: Job[..., Any]
    wait: Job[..., Any]
    hog: Job[..., Any]
    match: Job[..., Any]
    poison: Job[..., Any]
    stumble: Job[..., Any]
    zombie: Job[..., Any]


def make(url: str | None, *, namespace: str, lease: float = 1.0) -> App:
    """Return the application on a store of its own."""
    sched = Scheduler(url, namespace=namespace, lease=lease)

    @sched.job(max_losses=20, retry=AGAIN)
    async def work(ctx: JobContext, ms: float = 0) -> int:
        say("start", ctx)
        try:
            await asyncio.sleep(ms / 1000)
        except asyncio.CancelledError:
            say("stopped", ctx)
            raise
        say("end", ctx)
        return ctx.token

    @sched.job(max_losses=20, retry=AGAIN)
    def spin(ctx: JobContext, ms: float = 0) -> int:
        say("start", ctx)
        until = time.monotonic() + ms / 1000
        while time.monotonic() < until and not ctx.canceled:
            time.sleep(0.005)
        say("stopped" if ctx.canceled else "end", ctx)
        return ctx.token

    @sched.job(max_losses=20, retry=AGAIN)
    def wait(ctx: JobContext, name: str) -> int:
        say("start", ctx)
        until = time.monotonic() + 600
        while not Path(os.environ[FOLDER], name).exists() and time.monotonic() < until:
            time.sleep(0.005)
        say("end", ctx)
        return ctx.token

    @sched.job
    def hog(ctx: JobContext, seconds: float) -> int:
        say("start", ctx)
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))  # holds the interpreter all the time
        say("end", ctx)
        return ctx.token

    @sched.job
    def match(ctx: JobContext, seconds: float) -> int:
        import re

        say("start", ctx)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # One call holds the interpreter for about a second: it cannot be interrupted.
            re.match(r"(a+)+$", "a" * 24 + "b")
        say("end", ctx)
        return ctx.token

    @sched.job
    def poison(ctx: JobContext) -> None:
        say("start", ctx)
        os.kill(os.getpid(), signal.SIGABRT)

    @sched.job(max_losses=20, retry=AGAIN)
    async def stumble(ctx: JobContext, times: int) -> int:
        say("start", ctx)
        say("end", ctx)
        if ctx.attempt <= times:
            raise RuntimeError(f"attempt {ctx.attempt}")
        return ctx.attempt

    @sched.job
    def zombie(ctx: JobContext) -> str:
        """Let itself be frozen the first time; then, brought back to life, do what a zombie does."""
        say("start", ctx)
        ice, thaw = Path(os.environ[FOLDER], "ice"), Path(os.environ[FOLDER], "thaw")
        if ice.exists():
            ice.unlink()
            until_sync(thaw.exists)
            ctx.log("from the grave")
            ctx.progress(1, 2, "from the grave")
        write_to_resource(ctx)
        say("end", ctx)
        return f"attempt with token {ctx.token}"

    return App(sched, work, spin, wait, hog, match, poison, stumble, zombie)


worker_crash_points.install()
sched = make(None, namespace=os.environ.get(NAMESPACE, "default"), lease=float(os.environ.get(LEASE, "1"))).sched


def main() -> None:
    """Wait for the place that is named, hold it, and stay until killed."""
    say("asks")
    with sched.exclusive_sync(sys.argv[1:]) as hold:
        say("holds", job=hold.id, token=hold.token, path=sys.argv[1:])
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
