"""``queuehint workers``: the registered workers, and what they serve."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from queuehint.cli.opening import AsJson, Namespace, Target, opened, say_none
from queuehint.cli.render import Grid, Printer, ago, cell
from queuehint.operations import ANYONE
from queuehint.values.report import WorkerInfo


def workers(target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """List the workers that reported in the last minute: where they run, what they serve, how busy, since when."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        found = sched.workers_sync()
        if as_json:
            for worker in found:
                printer.json(attrs.asdict(worker))
            return
        printer.put(workers_grid(found))
        if not found:
            say_none(sched, "workers")


def workers_grid(found: Iterable[WorkerInfo]) -> Grid:
    """Return workers as a table."""
    rows = [
        (
            cell(worker.name),
            cell(worker.host),
            cell(worker.pid),
            cell(worker.version),
            cell(", ".join(worker.pools)),
            cell("" if worker.users is None else _named(worker.users)),
            cell(_named(worker.steal)),
            cell(f"{worker.running} of {worker.slots}"),
            cell(ago(worker.since_ms)),
            cell(ago(worker.seen_ms)),
        )
        for worker in found
    ]
    return Grid(
        ("worker", "host", "pid", "version", "pools", "users", "helps", "running", "for", "seen"),
        rows,
        shown=("host", "pid", "version", "pools", "running", "for", "users", "helps", "worker"),
        key="worker",
        usual={"version": "", "users": "", "helps": ""},
        short=("worker",),
    )


def _named(users: Iterable[str | None]) -> str:
    """Return users as a list. Jobs without a user are those of "(no user)"."""
    return ANYONE if users == ANYONE else ", ".join(["(no user)" if user is None else user for user in users])
