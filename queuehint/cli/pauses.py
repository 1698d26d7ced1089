"""``queuehint pause, resume, pauses``: stop starts, for a while or until it is undone."""

from __future__ import annotations

from typing import Annotated

import attrs
import typer

from queuehint.cli.filters import while_of
from queuehint.cli.opening import AsJson, Namespace, Target, opened, place
from queuehint.cli.operate import PathKey, mark
from queuehint.cli.render import Grid, Printer, cell, when
from queuehint.scheduler.scheduler import Scheduler
from queuehint.values.hint import queue_key
from queuehint.values.report import PauseState

While = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="Resume by itself after so long: 30min, 2h, 7d.")
]


def pause(
    path: PathKey,
    target: Target = None,
    namespace: Namespace = None,
    for_: While = None,
    as_json: AsJson = False,
) -> None:
    """Start no more jobs at or below a path; they keep their places, and those that run go on."""
    with opened(target, namespace, as_json=as_json) as sched:
        changed = sched.pause_sync(place(path), for_=None if for_ is None else while_of(for_))
        Printer(as_json=as_json).done("path", path, "paused", changed=changed)


def resume(path: PathKey, target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Undo `pause` of this very path."""
    mark(Scheduler.resume_sync, "resumed", path, target, namespace, as_json=as_json)


def pauses(target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """List the pauses, when each ends by itself, and how many ready jobs it has put aside."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        found = sched.pauses_sync()
        if as_json:
            for one in found:
                fields = attrs.asdict(one.filter, filter=lambda _, value: value not in (None, ()))
                path = {} if one.filter.path is None else {"path": queue_key(one.filter.path)}
                printer.json({**fields, **path, "until_ms": one.until_ms, "parked": one.parked})
            return
        rows = [
            (cell(_of(one)), cell("" if one.until_ms is None else when(one.until_ms)), cell(one.parked))
            for one in found
        ]
        printer.put(Grid(("pause", "until", "jobs"), rows))


def _of(pause: PauseState) -> str:
    assert pause.filter.path is not None
    return queue_key(pause.filter.path)
