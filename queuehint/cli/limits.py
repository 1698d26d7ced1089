"""``queuehint limits ls, set, drop``: rate and concurrency limits of places, tasks and pools."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from queuehint.cli.opening import AsJson, Namespace, Target, UsageError, opened, place, say_none
from queuehint.cli.render import UNITS, Grid, Printer, cell
from queuehint.values.limit import Limit, LimitState

app = typer.Typer(no_args_is_help=True, help="How many jobs may run, start or be unfinished: of a place, task or pool.")

SomePlace = Annotated[
    str | None, typer.Argument(metavar="[PATH]", help="A queue key such as doc1; the whole namespace if none is given.")
]
Task = Annotated[str | None, typer.Option(help="In place of a path: jobs of this task.")]
Pool = Annotated[str | None, typer.Option(help="In place of a path: jobs of this pool.")]
NAMESPACE = "the whole namespace"
_RATE = re.compile(rf"(\d{{1,9}})/(\d{{0,9}}) ?({'|'.join(UNITS)})")


@app.command("ls")
def list_limits(target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """List the limits there are, and what counts towards them now."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        found = sched.limits_sync()
        if as_json:
            for one in found:
                printer.json(_fields(one))
            return
        rows = [
            (
                cell(_scope(one.limit)),
                cell("each child" if one.limit.each else ""),
                cell(_of(one.started, one.limit.most)),
                cell(_rate_text(one.limit)),
                cell(_of(one.pending, one.limit.max_pending)),
            )
            for one in found
        ]
        printer.put(Grid(("path", "", "running", "rate", "pending"), rows))
        if not rows:
            say_none(sched, "limits")


@app.command("set")
def set_limit(
    path: SomePlace = None,
    target: Target = None,
    namespace: Namespace = None,
    most: Annotated[int | None, typer.Option(help="How many run at once.")] = None,
    each: Annotated[bool, typer.Option("--each", help="For each child of the path by itself.")] = False,
    rate: Annotated[str | None, typer.Option(metavar="N/TIME", help="How many start in any such time: 100/1s.")] = None,
    burst: Annotated[
        int | None, typer.Option(help="Of the rate: how many start at once after a quiet while, then evenly.")
    ] = None,
    max_pending: Annotated[int | None, typer.Option(help="How many may be unfinished.")] = None,
    task: Task = None,
    pool: Pool = None,
    as_json: AsJson = False,
) -> None:
    """Put a limit on a path, a task or a pool, in place of the one it has; what runs is never stopped."""
    with opened(target, namespace, as_json=as_json) as sched:
        if (most, rate, burst, max_pending) == (None,) * 4:
            raise UsageError("a limit requires --most, --rate or --max-pending")
        changed = sched.limit_sync(
            None if path is None else place(path),
            most,
            each=each,
            rate=_rate(rate),
            burst=burst,
            max_pending=max_pending,
            task=task,
            pool=pool,
        )
        kind, name = _given(path, task, pool)
        Printer(as_json=as_json).done(kind, name, "limited", changed=changed, unnamed=NAMESPACE)


@app.command("drop")
def drop_limit(
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="A queue key such as doc1.")] = None,
    target: Target = None,
    namespace: Namespace = None,
    task: Task = None,
    pool: Pool = None,
    everywhere: Annotated[bool, typer.Option("--everywhere", help="The limits of the whole namespace.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take away the limits of a path, a task or a pool, or with --everywhere of the whole namespace."""
    with opened(target, namespace, as_json=as_json) as sched:
        if everywhere == any(name is not None for name in (path, task, pool)):
            raise UsageError("name one: a path, --task, --pool, or --everywhere for the limits of the whole namespace")
        changed = sched.unlimit_sync(None if path is None else place(path), task=task, pool=pool)
        kind, name = _given(path, task, pool)
        Printer(as_json=as_json).done(
            kind, name, "not limited any more", changed=changed, unnamed=NAMESPACE, is_so="it has no limit"
        )


def _given(path: str | None, task: str | None, pool: str | None) -> tuple[str, str | None]:
    """Return the scope of a limit: its kind and its name."""
    if task is not None:
        return "task", task
    return ("path", path) if pool is None else ("pool", pool)


def _scope(limit: Limit) -> str | None:
    if limit.selection is not None:
        return " ".join([str(part) for part in limit.key])
    return "(no path)" if limit.path is None else limit.path_key


def _fields(one: LimitState) -> dict[str, object]:
    limit = one.limit
    rate = None if limit.rate is None else {"starts": limit.rate[0], "per_ms": limit.rate[1]}
    return {
        "path": limit.path_key,
        "task": limit.task,
        "pool": limit.pool,
        "each": limit.each,
        "most": limit.most,
        "rate": rate,
        "burst": limit.burst,
        "max_pending": limit.max_pending,
        "started": one.started,
        "pending": one.pending,
    }


def _of(now: int | None, most: int | None) -> str:
    if now is None:
        return ""
    return str(now) if most is None else f"{now} of {most}"


def _rate_text(limit: Limit) -> str:
    if limit.rate is None:
        return ""
    burst = "" if limit.burst is None else f", {limit.burst} at once"
    return f"{limit.rate[0]} in {limit.rate[1] / 1000:g} s{burst}"


def _rate(text: str | None) -> tuple[int, timedelta] | None:
    if text is None:
        return None
    said = _RATE.fullmatch(text)
    if said is None:
        raise UsageError(f"{text!r} is not a rate; write 100/1s or 5/1min")
    try:
        return int(said[1]), timedelta(**{UNITS[said[3]]: int(said[2] or 1)})
    except OverflowError:
        raise UsageError(f"{text!r} is not a rate: the time is too long") from None
