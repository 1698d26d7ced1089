"""``queuehint top, watch``: live views, until the end or Ctrl-C."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import attrs
import typer
from rich.live import Live
from rich.text import Text

from queuehint.backends.base import Interest
from queuehint.cli.inspect import Id, brief, places, progress, spoken, stats_blocks
from queuehint.cli.opening import (
    EXIT_TIMEOUT,
    AsJson,
    Namespace,
    Target,
    is_empty,
    name_others,
    namespace_of,
    opened,
    say_none,
)
from queuehint.cli.render import STYLES, Block, Grid, Lines, Printer, Row, ago, bars, cell, group, state_cell
from queuehint.cli.workers import workers_grid
from queuehint.errors import BackendError
from queuehint.scheduler.scheduler import Scheduler
from queuehint.shown import plain
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import Stats, WorkerInfo

Every = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, max=3600, help="How often to look.")]

EXIT_OF = {JobState.FINISHED: 0, JobState.FAILED: 4, JobState.CANCELED: 5}
"""Exit codes of `watch`."""
WATCH_S = 0.5
RUNNING_SHOWN = 50
"""How many of the jobs that run `top` shows, and counts by user."""
RATES_SHOWN = 30
"""Of how many looks `top` draws the rates."""
SIGTERM_EXIT = 128 + signal.SIGTERM
Look = Callable[[], tuple[Any, Sequence[Block | str]]]


# --- again and again -------------------------------------------------------------------------------------------------


def repeat(printer: Printer, look: Look, *, every_s: float, times: int | None) -> None:
    """
    Show the results of *look* periodically.

    In a terminal each replaces the one before and the last of *times* stays, for JSON each is a line. Ctrl-C ends it;
    for what has no end of its own that is no failure. A store that goes away is told below what was found last, and
    looked for again.

    Args:
        look: returns the value for JSON, and the blocks for people.
        times: how often; None is without end.
    """
    value, blocks = look()
    if times == 1:
        _show(printer, None, value, blocks)
        return
    is_last = False
    with contextlib.suppress(KeyboardInterrupt), _whole_screen(printer) as live:
        _show(printer, live, value, blocks)
        for _ in range(times - 1) if times else itertools.count():
            time.sleep(every_s)
            try:
                value, blocks = look()
                _show(printer, live, value, blocks)
            except BackendError as error:
                _show(printer, live, {"error": str(error)}, [*blocks, Lines([cell(error, "bold red")])])
        is_last = True
    if is_last and printer.is_terminal:
        # The screen of before is there again.
        printer.put(*blocks)


def _show(printer: Printer, live: Live | None, value: Any, blocks: Sequence[Block | str]) -> None:
    if live is not None:
        live.update(group(blocks), refresh=True)
    elif printer.as_json:
        printer.json(value)
    else:
        printer.put(*blocks)


@contextlib.contextmanager
def _whole_screen(printer: Printer) -> Iterator[Live | None]:
    """Set up the terminal, if it is one, and restore it, also after a signal."""
    if not printer.is_terminal:
        yield None
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGTERM_EXIT))
    try:
        with Live(console=printer.console, screen=True, auto_refresh=False) as live:
            yield live
    finally:
        signal.signal(signal.SIGTERM, before)


# --- all jobs --------------------------------------------------------------------------------------------------------


def top(
    target: Target = None,
    namespace: Namespace = None,
    every: Every = 2.0,
    times: Annotated[
        int | None, typer.Option(min=1, help="End after so many looks; by default with Ctrl-C, through a pipe after 1.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what goes on: jobs by state, pools, users, rates, workers, and what runs."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        if times is None and not printer.is_terminal and not as_json:
            times = 1
        looks = _Top(sched, printer.console.encoding, names_others=printer.is_terminal)
        if not printer.is_terminal and not as_json and is_empty(sched):
            say_none(sched)
        repeat(printer, looks.look, every_s=every, times=times)


class _Top:
    """Queries the store, and keeps the last reply for the rates."""

    RATES = ("enqueued", "started", "settled")

    def __init__(self, sched: Scheduler, encoding: str, *, names_others: bool = True) -> None:
        self._sched = sched
        self._encoding = encoding
        self._last: tuple[float, Stats] | None = None
        # Elsewhere than in a terminal they are named on standard error, or, for JSON, not at all.
        self._others = None if names_others else ""
        self._rates: dict[str, deque[float]] = {name: deque(maxlen=RATES_SHOWN) for name in self.RATES}

    def look(self) -> tuple[Any, list[Block | str]]:
        """Return the present counts, and the jobs per second since the last look."""
        found, now_s = self._sched.stats_sync(), time.monotonic()
        rates: dict[str, float] = {}
        if self._last is not None:
            then_s, before = self._last
            passed_s = max(now_s - then_s, 0.001)
            rates = {
                name: round(max(0, getattr(found, name) - getattr(before, name)) / passed_s, 1) for name in self.RATES
            }
            for name, rate in rates.items():
                self._rates[name].append(rate)
        self._last = now_s, found
        value = {
            "namespace": namespace_of(self._sched),
            **attrs.asdict(found),
            "unfinished": found.unfinished,
            "rates": rates,
        }
        running = self._sched.records.list_sync(state=JobState.STARTED, limit=RUNNING_SHOWN)
        workers = self._workers(running)
        users = Counter(record.spec.user for record in running).most_common()
        value["running"] = [brief(record) for record in running]
        value["users"] = [{"user": user, "running": count} for user, count in users]
        value["workers"] = [attrs.asdict(worker) for worker in workers]
        if not any(found.states.values()):
            self._others = name_others(self._sched) if self._others is None else self._others
            blocks: list[Block | str] = [f"{namespace_of(self._sched)}: no jobs{self._others}"]
        else:
            blocks = [namespace_of(self._sched)]
        blocks.append(Row([(f"{name}/s", self._rate(name, rate)) for name, rate in rates.items()]))
        blocks += stats_blocks(found, _pools(found, workers))
        if workers:
            busy, slots = sum(worker.running for worker in workers), sum(worker.slots for worker in workers)
            blocks.append(f"workers: {busy} of {slots} slots busy")
            blocks.append(workers_grid(workers))
        if running:
            if users[0][0] is not None or len(users) > 1:
                blocks.append("what runs, by user")
                blocks.append(Row([(f"user {user or '(none)'}", cell(count)) for user, count in users]))
            names = {worker.name for worker in workers}
            gone = [record for record in running if record.worker not in names]
            if gone:
                blocks.append("what runs, by worker not heard of in the last minute")
                blocks.append(_gone(gone))
            blocks.append("what runs, in order of enqueue")
            blocks.append(_running(running))
        return value, blocks

    def _workers(self, running: Sequence[JobRecord]) -> Sequence[WorkerInfo]:
        """Return the workers, each with its number of listed running jobs if the list is complete."""
        workers = self._sched.workers_sync()
        if len(running) == RUNNING_SHOWN:
            return workers
        counts = Counter(record.worker for record in running)
        return [attrs.evolve(worker, running=counts[worker.name]) for worker in workers]

    def _rate(self, name: str, rate: float) -> Text:
        """Return a rate, and earlier rates as bars."""
        return Text.assemble(f"{rate:g} ", (bars(self._rates[name], self._encoding), "cyan"))


def _pools(found: Stats, workers: Sequence[WorkerInfo]) -> Iterator[Block | str]:
    """Yield the pools that have ready jobs or workers."""
    names = sorted({pool for pool, count in found.ready.items() if count}.union(*[each.pools for each in workers]))
    rows = []
    for pool in names:
        serving = [worker for worker in workers if pool in worker.pools]
        ready = found.ready.get(pool, 0)
        rows.append(
            (
                cell(pool),
                cell(ready, STYLES[JobState.QUEUED] if ready else ""),
                cell(ago(found.oldest_ready_ms.get(pool)) if ready else ""),
                cell(len(serving), "" if serving else "bold red"),
                cell(sum(worker.slots for worker in serving)),
            )
        )
    if rows:
        yield "pools"
        yield Grid(("pool", "ready", "oldest", "workers", "slots"), rows)


def _running(records: Sequence[JobRecord]) -> Grid:
    rows = [
        (
            cell(record.id),
            cell(ago(record.started_ms)),
            cell(record.spec.task),
            cell(places(record)),
            cell(progress(record)),
            cell(record.spec.user),
            cell(record.worker),
        )
        for record in records
    ]
    return Grid(
        ("id", "for", "task", "place", "progress", "user", "worker"),
        rows,
        shown=("task", "place", "for", "progress", "user", "worker", "id"),
        usual={"place": "", "progress": "", "user": ""},
        short=("id",),
    )


def _gone(records: Sequence[JobRecord]) -> Grid:
    """Return workers by the jobs they run, with how many each runs and for how long the longest has run."""
    begins: dict[str, list[int]] = {}
    for record in records:
        begins.setdefault(record.worker or "", []).append(record.started_ms or 0)
    rows = [
        (cell(worker), cell(len(times)), cell(ago(min(times))))
        for worker, times in sorted(begins.items(), key=lambda item: -len(item[1]))
    ]
    return Grid(("worker", "running", "longest"), rows)


# --- one job ---------------------------------------------------------------------------------------------------------


def watch(
    id: Id,
    target: Target = None,
    namespace: Namespace = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", min=0, help="How long to watch at most.")] = None,
    as_json: AsJson = False,
) -> None:
    """
    Follow a job until it is over: its states, its progress, the lines of its log as they come.

    Ends with 0 if it is FINISHED, 4 if it is FAILED, 5 if it is CANCELED, 124 when the time is over.
    """
    with opened(target, namespace, as_json=as_json) as sched:
        printer = Printer(as_json=as_json)
        raise typer.Exit(_follow(printer, sched, id, timeout))


def _follow(printer: Printer, sched: Scheduler, job_id: str, timeout: float | None) -> int:
    """Print changes of a job until its end. Return the exit code."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    ends_s = None if timeout is None else time.monotonic() + timeout
    # No markup: the progress of a handler is text of an application.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with printer.bar(*columns) as bar:
        status = bar.add_task("", total=None, visible=False)
        before: JobRecord | None = None
        while True:
            record = sched.get_sync(job_id)
            for event in _events(before, record):
                _tell(printer, event)
            before = record
            if record.state.is_over:
                return EXIT_OF[record.state]
            said = record.progress
            told = plain(f"{record.state} {progress(record) or ''}".rstrip())
            total, done = (said.total, said.done or 0) if said else (None, 0)
            bar.update(status, description=told, total=total, completed=done, visible=True)
            left_s = WATCH_S if ends_s is None else ends_s - time.monotonic()
            if left_s <= 0:
                return EXIT_TIMEOUT
            sched.backend.wait_sync(Interest(jobs=(job_id,)), min(WATCH_S, left_s))


def _events(before: JobRecord | None, now: JobRecord) -> Iterator[dict[str, Any]]:
    """Yield the changes of a job between two looks, or until the first."""
    if before is not None and before.version == now.version:
        return
    for error in _new(before.errors if before else (), now.errors):
        yield {"event": "error", "attempt": error.attempt, "type": error.type, "message": error.message}
    for line in _new(before.logs if before else (), now.logs):
        yield {"event": "log", "line": line}
    if now.progress is not None and (before is None or before.progress != now.progress):
        yield {"event": "progress", **attrs.asdict(now.progress)}
    if before is None or (before.state, before.attempts) != (now.state, now.attempts):
        yield {"event": "state", "state": now.state.value, "attempts": now.attempts, "cause": now.cause}


Item = TypeVar("Item")


def _new(before: tuple[Item, ...], now: tuple[Item, ...]) -> tuple[Item, ...]:
    """
    Return the new items of a list whose oldest may be gone. Among identical items, the number may be too low.

    >>> _new(("a", "b"), ("a", "b", "c")), _new(("a", "b", "c"), ("c", "d")), _new(("a",), ("b", "c"))
    (('c',), ('d',), ('b', 'c'))
    """
    for count in range(min(len(before), len(now)), 0, -1):
        if now[0] == before[-count] and now[:count] == before[-count:]:
            return now[count:]
    return now


def _tell(printer: Printer, event: dict[str, Any]) -> None:
    if printer.as_json:
        printer.json(event)
        return
    kind = event["event"]
    if kind == "state":
        text = Text().append_text(state_cell(JobState(event["state"])))
        told = [f"attempt {event['attempts']}" if event["attempts"] else "", event["cause"] or ""]
        text.append(cell("".join(f"  {part}" for part in told if part)))
    elif kind == "error":
        text = cell(f"attempt {event['attempt']}: {event['type']}: {event['message']}", "red")
    elif kind == "log":
        text = cell(event["line"])
    elif printer.is_terminal:
        return  # the bar shows it
    else:
        text = cell(f"progress {spoken(event['done'], event['total'], event['note'])}")
    printer.put(Lines([text]))
