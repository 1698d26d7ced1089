"""A namespace on a real server, with jobs in states of a test's choice, and the commands run against it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
from rich.console import Console
from typer import testing
from typer.main import get_command
from typer.testing import Result

from queuehint import Scheduler
from queuehint.cli.app import app
from queuehint.operations import Exchange, Note, Post
from queuehint.values.outcome import Grant, JobError, Outcome, OutcomeKind, Progress, Step
from tests.servers import shared_server

FINISHED, FAILED = OutcomeKind.FINISHED, OutcomeKind.FAILED


class CliRunner(testing.CliRunner):
    """Runs the commands in this process; they are made once, not for each run, which would take longer than most."""


testing._get_command = functools.cache(get_command)  # type: ignore[attr-defined]


def drawn(block: Any, width: int = 110) -> list[str]:
    """Return what a terminal of this width shows of a block, line by line."""
    console = Console(width=width, color_system=None, force_terminal=True, highlight=False)
    with console.capture() as capture:
        console.print(block)
    return capture.get().splitlines()


@attrs.define
class System:
    """A namespace of a test's own, and what may be done in it without a worker."""

    sched: Scheduler
    url: str
    namespace: str

    @property
    def where(self) -> tuple[str, ...]:
        return ("--target", self.url, "--namespace", self.namespace)

    def run(self, *arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(app, [*arguments, *self.where], input=input)

    def ok(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def claim(self, limit: int = 1) -> list[Grant]:
        return list(self.sched.backend.call_sync(Exchange("w1", limit=limit)).grants)

    def settle(self, grant: Grant, kind: OutcomeKind = FINISHED, **more: Any) -> None:
        outcome = Outcome(job_id=grant.spec.id, token=grant.token, kind=kind, **more)
        self.sched.backend.call_sync(Exchange("w1", settle=(outcome,)))

    def fail(self, grant: Grant, message: str = "a picture is missing") -> None:
        self.settle(grant, FAILED, error=JobError(type="ValueError", message=message), final=True)

    def note(self, grant: Grant, *lines: str) -> None:
        self.sched.backend.call_sync(Post((Note(grant.spec.id, grant.token, lines),)))

    def report(self, grant: Grant, progress: Progress) -> None:
        self.sched.backend.call_sync(Post((Note(grant.spec.id, grant.token, progress=progress),)))

    def store_steps(self, grant: Grant, *names: str) -> None:
        notes = [Note(grant.spec.id, grant.token, step=Step(name, b"1")) for name in names]
        self.sched.backend.call_sync(Post(tuple(notes)))

    def enqueue(self, task: str, *arguments: Any, **options: Any) -> str:
        return self.sched._jobs[task].using(**options).enqueue_sync(*arguments).id


@contextmanager
def open_system(namespace: str) -> Iterator[System]:
    """Open a namespace on the shared server; its tasks are `edit(doc, section, text="")` and `step(rows=None)`."""
    server = shared_server()
    sched = Scheduler(server.url, namespace=namespace)

    @sched.job(queue_hint=["{doc}", "{section}"])
    async def edit(doc: str, section: str, text: str = "") -> dict[str, Any]:
        return {}

    @sched.job
    async def step(rows: Any = None) -> None: ...

    yield System(sched, server.url, namespace)
    sched.close_sync()
