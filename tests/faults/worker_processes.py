"""Worker processes for fault tests: `queuehint worker` on `tests.faults.app`, started, watched, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests import audit
from tests.faults import app, checks
from tests.prefork import start

WORKER = ("worker", "tests.faults.app:sched", "--log-format=json", "--concurrency=4")


class Member:
    """One process, in a group of its own: with its helper, and what else it starts."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.pid = process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Signal the process alone."""
        self.process.send_signal(number)

    def kill(self, *, group: bool = True) -> float:
        """Kill the process, with or without its helper; return when it was gone."""
        if group:
            os.killpg(self.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(checks.LIMIT_S)
        return time.monotonic()

    def events(self) -> list[dict[str, Any]]:
        """Return what it has logged."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def has_logged(self, event: str) -> bool:
        return any(line.get("event") == event for line in self.events())


class Crew:
    """
    Worker processes of one namespace; all are gone when the block ends.

    Args:
        url: of the store, as workers reach it.
        folder: for the lines of handlers and for logs.
        lease: of all grants, in seconds.
    """

    def __init__(self, url: str, namespace: str, folder: Path, *, lease: float = 1.0) -> None:
        self.folder = folder
        self.lines_path = folder / "lines"
        self._environment = {
            **os.environ,
            **audit.environment(),
            "QUEUEHINT_URL": url,
            app.NAMESPACE: namespace,
            app.FOLDER: str(folder),
            app.LINES: str(self.lines_path),
            app.LEASE: str(lease),
        }
        self.members: list[Member] = []
        self.gone: dict[int, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.is_running:
                member.signal(signal.SIGCONT)
                member.kill()
        # Members left of groups whose leader has died: helpers that are about to end.
        for member in self.members:
            try:
                os.killpg(member.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def worker(self, *arguments: str, **environment: str) -> Member:
        """Start a worker process; see `Member.has_logged` for when it is there."""
        return self._start("queuehint", [*WORKER, *arguments], environment)

    def slow_worker(self, *arguments: str) -> Member:
        """Start a worker process without the forker: its helper, which is never forked, is there as soon as it is."""
        return self._start("queuehint", [*WORKER, *arguments], {}, is_real=True)

    def caller(self, *path: str) -> Member:
        """Start a process that asks for a place and stays there."""
        return self._start("tests.faults.app", path, {})

    def _start(self, module: str, words: Sequence[str], environment: dict[str, str], **more: Any) -> Member:
        path = self.folder / f"log-{len(self.members)}"
        with path.open("ab") as log:
            process = start(
                module,
                *words,
                env={**self._environment, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
                **more,
            )
        self.members.append(Member(process, path))
        return self.members[-1]

    def lines(self, event: str | None = None, pid: int | None = None) -> list[checks.Line]:
        """Return what handlers have said."""
        return [
            line
            for line in checks.read_lines(self.lines_path)
            if event in {None, line.event} and pid in {None, line.pid}
        ]

    def kill(self, member: Member, *, group: bool = True) -> float:
        """Kill one and remember when it was gone."""
        self.gone[member.pid] = member.kill(group=group)
        return self.gone[member.pid]

    def wait_for_death(self, member: Member) -> float:
        """Wait until one has died by itself, and remember when."""
        member.process.wait(checks.LIMIT_S)
        self.gone[member.pid] = time.monotonic()
        return self.gone[member.pid]

    def wait_for(self, event: str, count: int = 1, pid: int | None = None) -> None:
        """Wait until handlers have said something so many times."""
        checks.until_sync(lambda: len(self.lines(event, pid)) >= count, f"handlers say {event!r} {count} times")

    def started(self, member: Member) -> Member:
        """Wait until a worker process works."""

        def is_there() -> bool:
            assert member.is_running, member.log.read_text()[-2_000:]
            return member.has_logged("worker.started")

        checks.until_sync(is_there, "the worker has started")
        return member
