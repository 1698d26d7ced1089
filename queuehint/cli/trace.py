"""``queuehint trace, check-trace``: events of a store, and the check of a trace against the ordering rules."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Protocol

import typer

from queuehint.backends.base import Interest
from queuehint.cli.filters import Choose, choosing
from queuehint.cli.opening import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, Namespace, Target, UsageError, opened
from queuehint.cli.render import Printer
from queuehint.cli.said import hidden, said
from queuehint.client.event_reader import PAUSES_S
from queuehint.operations import EVENTS_MAX, IDS_MAX, Follow
from queuehint.schema.checks import check_int
from queuehint.values.record import JobRecord

if TYPE_CHECKING:
    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.testing.trace import Trace, TraceEvent, TraceJob, TraceReport
    from queuehint.values.event import Event

LIMIT_MAX = 10_000_000


class Format(StrEnum):
    """How a trace is written."""

    JSONL = "jsonl"
    PERFETTO = "perfetto"
    MERMAID = "mermaid"


class Tracks(StrEnum):
    """One track of a drawing."""

    PATH = "path"
    WORKER = "worker"


# --- what happened in a store ----------------------------------------------------------------------------------------


@choosing
def trace(
    choose: Choose,
    target: Target = None,
    namespace: Namespace = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Write events from now on, until Ctrl-C or --seconds.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="How long to follow.")] = None,
    limit: Annotated[
        int | None, typer.Option(help=f"Of how many jobs at most, of how many events with --follow; to {LIMIT_MAX}.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="For check-trace, ui.perfetto.dev or Mermaid.")] = (
        Format.JSONL
    ),
    tracks: Annotated[Tracks, typer.Option("--tracks", help="In drawings, a track for each of these.")] = Tracks.PATH,
    file: Annotated[
        Path | None, typer.Option("--file", "-o", help="A file to write, replacing an existing one; else printed.")
    ] = None,
) -> None:
    """
    Write what happened to jobs: what their records tell of those that are over, or all that happens from now on.

    A record tells when a job was queued, ran last and ended, and drawings show its last 20 attempts too; only --follow
    tells everything.
    """
    with opened(target, namespace, as_json=False) as sched:
        chosen = choose()
        if limit is not None:
            check_int(limit, parameter="limit", least=1, most=LIMIT_MAX)
        if follow and chosen:
            raise UsageError("--follow writes the events of all jobs; filter them when reading")
        if seconds is not None and not follow:
            raise UsageError("--seconds requires --follow")
        with _written(file) as out:
            if follow:
                _follow(sched, out, format, tracks, seconds=seconds, limit=limit)
            else:
                records = sched.records.iterate_sync(**chosen)
                _write_past(records, out, format, tracks, limit=limit)


@contextlib.contextmanager
def _written(file: Path | None) -> Iterator[IO[str]]:
    if file is None:
        yield sys.stdout
        return
    try:
        out = file.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    with out:
        yield out


def _write_past(
    records: Iterator[JobRecord], out: IO[str], format: Format, tracks: Tracks, *, limit: int | None
) -> None:
    from queuehint.testing.trace.records import RESOLUTION_MS, Past, events_of

    pasts = []
    for count, record in enumerate(records):
        if count == limit:
            typer.echo("queuehint: more with a higher --limit", err=True)
            break
        pasts.append(Past.of(record))
    events, notes = events_of(pasts, unfinished=format is not Format.JSONL)
    for note in notes:
        typer.echo(f"queuehint: {note}", err=True)
    jobs = [past.job for past in pasts]
    _write(events, jobs, out, format, tracks, resolution_ms=round(RESOLUTION_MS))


def _write(
    events: list[TraceEvent], jobs: list[TraceJob], out: IO[str], format: Format, tracks: Tracks, **options: Any
) -> None:
    from queuehint.testing.trace import mermaid, perfetto, trace_lines

    if format is Format.JSONL:
        out.writelines(trace_lines(events, jobs, **options))
    else:
        draw = perfetto if format is Format.PERFETTO else mermaid
        out.write(draw(events, jobs, tracks=tracks.value))
    out.flush()


def _follow(
    sched: Scheduler, out: IO[str], format: Format, tracks: Tracks, *, seconds: float | None, limit: int | None
) -> None:
    """Write events as they come, or draw them at the end. Ctrl-C is a regular end."""
    kept_events: list[TraceEvent] = []
    kept_jobs: dict[str, TraceJob] = {}
    with contextlib.suppress(KeyboardInterrupt):
        for events, jobs in _happening(sched, seconds=seconds, limit=limit):
            if format is Format.JSONL:
                _write(events, jobs, out, format, tracks)
            else:
                kept_events += events
                kept_jobs.update((job.id, job) for job in jobs)
    if format is not Format.JSONL:
        _write(kept_events, list(kept_jobs.values()), out, format, tracks)


def _happening(
    sched: Scheduler, *, seconds: float | None, limit: int | None
) -> Iterator[tuple[list[TraceEvent], list[TraceJob]]]:
    """Yield the events since the last time, and their new jobs."""
    from queuehint.testing.trace import TraceEvent

    backend = sched.backend
    ends_s = None if seconds is None else time.monotonic() + seconds
    after = backend.call_sync(Follow()).after
    typer.echo("queuehint: following", err=True)
    known: set[str] = set()
    count = 0
    pause = 0
    while limit is None or count < limit:
        followed = backend.call_sync(Follow(after, EVENTS_MAX if limit is None else min(EVENTS_MAX, limit - count)))
        after = followed.after
        happened = [TraceEvent.of(event) for event in followed.events]
        if followed.missed:
            typer.echo(f"queuehint: {followed.missed} events were missed", err=True)
            at_ms = happened[0].at_ms if happened else 0
            happened.insert(0, TraceEvent(kind="gap", at_ms=at_ms, cause=f"{followed.missed} events were missed"))
        if happened:
            count += len(followed.events)
            yield happened, _described(sched, followed.events, known)
        pause = 0 if happened else min(pause + 1, len(PAUSES_S) - 1)
        left_s = None if ends_s is None else ends_s - time.monotonic()
        if not followed.is_more:
            if left_s is not None and left_s <= 0:
                return
            backend.wait_sync(Interest(), PAUSES_S[pause] if left_s is None else min(PAUSES_S[pause], left_s))


def _described(sched: Scheduler, events: tuple[Event, ...], known: set[str]) -> list[TraceJob]:
    """Return the unknown jobs of events, and the jobs that got new content by their keys since."""
    from queuehint.testing.trace import TraceJob

    new = dict.fromkeys(
        event.id for event in events if event.id not in known or (event.old is not None and event.old == event.new)
    )
    ids = list(new)
    found: list[TraceJob] = []
    for start in range(0, len(ids), IDS_MAX):
        found += map(TraceJob.of, sched.records.list_by_ids_sync(ids[start : start + IDS_MAX]))
    known.update(job.id for job in found)
    known.difference_update(event.id for event in events if event.kind == "pruned")
    return found


# --- whether it was in order -----------------------------------------------------------------------------------------


def check_trace(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="JSON lines; - is what comes in.")],
    tolerance: Annotated[float, typer.Option(metavar="MS", min=0, help="How far apart clocks may be.")] = 0,
    slots: Annotated[
        list[str] | None, typer.Option(metavar="N|POOL=N", help="How many slots there were; may be repeated by pool.")
    ] = None,
    idle: Annotated[
        float | None, typer.Option(metavar="MS", min=0, help="How long one may be idle; by default --tolerance, 0 ms.")
    ] = None,
    complete: Annotated[bool, typer.Option("--complete", help="All jobs must be over at the end.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many faults to look for.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """
    Check that what happened in a queue, ours or not, was in the order of its places.

    FILE holds events and jobs, one a line: of `queuehint trace`, of the log of a worker, of `queuehint export`, or
    of a queue of your own. Ends with 0 if it was in order, with 1 if a rule was broken, with 2 if it is no trace.
    """
    from queuehint.testing.trace import examine_trace

    with refusing(as_json=as_json):
        found = _read(files)
        report = examine_trace(
            found.events,
            found.jobs,
            tolerance_ms=max(tolerance, found.resolution_ms),
            idle_ms=idle,
            slots=_slots(slots),
            complete=complete,
            limit=limit,
        )
    counted = f"{report.events} events of {report.jobs} jobs"
    tell(
        report,
        found.skipped,
        limit,
        tolerance_ms=tolerance,
        counted=counted,
        is_nothing=not report.events or report.is_blind,
        as_json=as_json,
    )


@contextlib.contextmanager
def refusing(*, as_json: bool) -> Iterator[None]:
    """End a command with its code and the reason if a file is unreadable or of another form."""
    from queuehint.testing.trace import InvalidTraceError

    try:
        yield
    except (InvalidTraceError, UsageError, OSError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        typer.echo(json.dumps({"error": hidden(text)}) if as_json else f"queuehint: {said(text)}", err=not as_json)
        raise typer.Exit(EXIT_USAGE) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


class _Reader(Protocol):
    def read_file(self, file: IO[bytes]) -> None: ...


def read_files(files: list[str], reader: _Reader) -> None:
    """
    Have a reader read files, with standard input for ``-``.

    Raises:
        InvalidTraceError, OSError: one is of another form, named if there are several, or cannot be read.
    """
    from queuehint.testing.trace import InvalidTraceError

    for name in files:
        with contextlib.ExitStack() as stack:
            file = sys.stdin.buffer if name == "-" else stack.enter_context(Path(name).open("rb"))
            try:
                reader.read_file(file)
            except InvalidTraceError as error:
                raise InvalidTraceError(f"{name}: {error}" if len(files) > 1 else str(error)) from None


def _read(files: list[str]) -> Trace:
    from queuehint.testing.trace.lines import TraceReader

    reader = TraceReader()
    read_files(files, reader)
    return reader.trace()


def _slots(words: list[str] | None) -> int | dict[str, int] | None:
    if not words:
        return None
    by_pool: dict[str, int] = {}
    for word in words:
        pool, is_of_pool, number = word.rpartition("=")
        if not (number.isascii() and number.isdecimal() and len(number) <= 9) or (not is_of_pool and len(words) > 1):
            raise UsageError(f"--slots {word!r}: must be a number, or POOL=N for each pool")
        if not is_of_pool:
            return int(number)
        by_pool[pool] = int(number)
    return by_pool


def tell(
    report: TraceReport,
    skipped: Sequence[str],
    limit: int,
    *,
    tolerance_ms: float,
    counted: str,
    is_nothing: bool,
    as_json: bool,
) -> None:
    """
    Print the result of a check, and end the command with its code.

    Args:
        skipped: what was not used of the files.
        tolerance_ms: how far apart its clocks may be.
        counted: what was checked, as a noun.
        is_nothing: that is nothing.
    """
    from queuehint.testing.trace.faults import counted as counted_of

    printer = Printer(as_json=as_json)
    count = len(report.faults)
    if as_json:
        names = ("rule", "job", "other", "at_ms", "index", "message")
        faults = [{name: getattr(fault, name) for name in names} for fault in report.faults]
        told = {
            name: getattr(report, name)
            for name in ("events", "jobs", "attempts", "ran", "undescribed", "met", "unjudged")
        }
        printer.json({"clean": not faults, "faults": faults, **told, "skipped": skipped})
    else:
        for fault in report.faults:
            printer.say(f"{fault.rule}: {fault.message}", "bold red")
            printer.lines(fault.picture, "  ")
            printer.say("")
        if any(fault.rule == "idle" and "(idle_ms)" in fault.message for fault in report.faults):
            printer.say("a slot may be idle for longer with --idle MS", "dim")
        if count == limit:
            printer.say("there may be more: --limit", "dim")
        for text in skipped:
            printer.say(f"skipped: {text}", "dim")
        for text in report.unjudged:
            printer.say(f"not judged: {text}", "dim")
        if count:
            printer.say(f"{counted}: {count} fault{'s' * (count > 1)}")
        else:
            if not is_nothing:
                tried = f"{counted_of(report.met, 'job')} came while one that conflicts was not over"
                printer.say(f"tried: {tried}" + ("" if report.met else ", so that no order was put to the test"), "dim")
            within = f", within the tolerance of {tolerance_ms:.10g} ms" if tolerance_ms else ""
            blind = "no place is known, so that no order was checked"
            nothing = blind if report.is_blind else "there was nothing to check"
            printer.say(f"{counted}: {nothing if is_nothing else f'in order{within}'}")
    if report.faults:
        raise typer.Exit(EXIT_REFUSED)
    if is_nothing:
        raise typer.Exit(EXIT_USAGE)
