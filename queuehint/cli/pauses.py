"""``queuehint pause, resume, pauses``: stop starts, for a while or until it is undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from queuehint.cli.filters import Pool, Service, Tag, Task, User, while_of
from queuehint.cli.opening import AsJson, Namespace, Target, opened, place, say_none
from queuehint.cli.render import Grid, Printer, cell, when
from queuehint.values.hint import queue_key

if TYPE_CHECKING:
    from queuehint.scheduler.restraints import Selection
    from queuehint.values.record_filter import RecordFilter

SomePath = Annotated[
    str | None, typer.Argument(metavar="[PATH]", help="A queue key such as doc1:intro; root is above all.")
]
While = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="Resume by itself after so long: 30min, 2h, 7d.")
]


def pause(
    path: SomePath = None,
    target: Target = None,
    namespace: Namespace = None,
    task: Task = None,
    user: User = None,
    service: Service = None,
    pool: Pool = None,
    tag: Tag = None,
    for_: While = None,
    as_json: AsJson = False,
) -> None:
    """Start no more jobs at or below a path, or of those selected; they keep their places, and those that run go on."""
    selected: Selection = {"task": task, "user": user, "service": service, "pool": pool, "tag": tag}
    with opened(target, namespace, as_json=as_json) as sched:
        segments = None if path is None else place(path)
        changed = sched.pause_sync(segments, for_=None if for_ is None else while_of(for_), **selected)
        _done(Printer(as_json=as_json), path, selected, "paused", changed=changed)


def resume(
    path: SomePath = None,
    target: Target = None,
    namespace: Namespace = None,
    task: Task = None,
    user: User = None,
    service: Service = None,
    pool: Pool = None,
    tag: Tag = None,
    as_json: AsJson = False,
) -> None:
    """Undo `pause` of this very path and these very options."""
    selected: Selection = {"task": task, "user": user, "service": service, "pool": pool, "tag": tag}
    with opened(target, namespace, as_json=as_json) as sched:
        changed = sched.resume_sync(None if path is None else place(path), **selected)
        _done(Printer(as_json=as_json), path, selected, "resumed", changed=changed)


def _done(printer: Printer, path: str | None, selected: Selection, done: str, *, changed: bool) -> None:
    words = {name: value for name, value in selected.items() if value is not None}
    if not words:
        printer.done("path", path, done, changed=changed)
    elif printer.as_json:
        printer.json({"path": path, **words, "done": done, "changed": changed})
    else:
        name = " ".join([*([] if path is None else [path]), *[f"{name}={value}" for name, value in words.items()]])
        printer.done("path", name, done, changed=changed)


def pauses(target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """List the pauses, when each ends by itself, and how many ready jobs it has put aside."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        found = sched.pauses_sync()
        if as_json:
            for one in found:
                printer.json({**_fields(one.filter), "until_ms": one.until_ms, "parked": one.parked})
            return
        rows = [
            (
                cell(
                    " ".join(
                        [value if name == "path" else f"{name}={value}" for name, value in _fields(one.filter).items()]
                    )
                ),
                cell("" if one.until_ms is None else when(one.until_ms)),
                cell(one.parked),
            )
            for one in found
        ]
        printer.put(Grid(("pause", "until", "jobs"), rows))
        if not rows:
            say_none(sched, "pauses")


def _fields(wanted: RecordFilter) -> dict[str, str]:
    path = {} if wanted.path is None else {"path": queue_key(wanted.path)}
    return path | attrs.asdict(wanted, filter=lambda field, value: field.name != "path" and value not in (None, ()))
