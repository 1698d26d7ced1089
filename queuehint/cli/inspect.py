"""``queuehint show, why, stats``: one job, its reasons, counts of all jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import attrs
import typer
from rich.text import Text

from queuehint.cli.filters import Choose, choosing
from queuehint.cli.opening import AsJson, Namespace, Target, UsageError, namespace_of, opened, place
from queuehint.cli.render import STYLES, Block, Facts, Grid, Printer, Row, ago, cell, iso, state_cell, when
from queuehint.errors import InvalidHintError, InvalidJobError, JobNotFoundError
from queuehint.operations import PathReasons, PlacedJob
from queuehint.scheduler.records.export import as_json as fields_of
from queuehint.scheduler.scheduler import Scheduler
from queuehint.values.hint import parse_key, queue_key
from queuehint.values.policy import Policy
from queuehint.values.record import JobRecord, JobState
from queuehint.values.report import Reason, Stats

Id = Annotated[str, typer.Argument(metavar="ID", help="Of a job.")]
PAYLOADS = ("arguments", "arguments_base64")
"""Fields shown on request only."""


# --- one job ---------------------------------------------------------------------------------------------------------


def show(
    id: Id,
    target: Target = None,
    namespace: Namespace = None,
    arguments: Annotated[bool, typer.Option("--arguments", help="Show its arguments too.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print texts as they are, also what a terminal obeys.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of a job: its record, its errors, its log, its result."""
    with opened(target, namespace, as_json=as_json) as sched:
        record = sched.get_sync(id)
        if as_json:
            fields = fields_of(record)
            for name in PAYLOADS:
                if not arguments:
                    fields["spec"].pop(name, None)
            Printer(as_json=True).json(fields)
            return
        reason = None if record.state.is_over else sched.why_sync(id)
        _print_record(Printer(raw=raw), record, reason, arguments=arguments)


def _print_record(printer: Printer, record: JobRecord, reason: Reason | None, *, arguments: bool) -> None:
    printer.put(Facts(list(_facts(record, reason))))
    if len(record.history) > 1:
        printer.head("attempts")
    for attempt in record.history if len(record.history) > 1 else ():
        until = "" if attempt.ended_ms is None else f" to {iso(attempt.ended_ms)}"
        printer.lines(f"{iso(attempt.started_ms)}{until} {attempt.outcome} by {attempt.worker}")
    if record.errors:
        printer.head("errors")
    for error in record.errors:
        printer.lines(f"{iso(error.at_ms)} attempt {error.attempt}: {error.type}: {error.message}")
        if error.traceback:
            printer.lines(error.traceback.rstrip("\n"), "        ")
    if record.steps:
        printer.head("steps")
    for step in record.steps:
        printer.lines(f"{iso(step.at_ms)} {step.name}")
    if record.logs:
        printer.head("log, its last lines" if record.logs_truncated else "log")
    for line in record.logs:
        printer.lines(line)
    fields = fields_of(record)
    if record.result is not None:
        _print_payload(printer, "result", fields)
    if arguments:
        _print_payload(printer, "arguments", fields["spec"])


def _print_payload(printer: Printer, name: str, fields: dict[str, Any]) -> None:
    """Print JSON as is, and payloads of other codecs as base64."""
    name = name if name in fields else f"{name}_base64"
    printer.head(name)
    printer.lines(json.dumps(fields[name], ensure_ascii=False, indent=2))


def _facts(record: JobRecord, reason: Reason | None) -> Iterator[tuple[str, Text]]:
    spec = record.spec
    yield "id", cell(record.id, "bold")
    yield "state", state_cell(record.state)
    yield "cause", cell(record.cause)
    yield "problem", cell(record.problem)
    yield "why", cell(reason)
    yield "cancel", cell("asked for" if record.cancel_requested and not record.state.is_over else None)
    yield "task", cell(spec.task)
    yield "place", cell(places(record))
    for name in ("service", "user", "pool", "key", "flow", "name", "parent", "schedule"):
        yield name, cell(getattr(spec, name))
    yield "tags", cell(", ".join(spec.tags))
    yield "priority", cell(spec.priority)
    yield "attempts", cell(f"{record.attempts} of {spec.policy.max_attempts}")
    yield "losses", cell(f"{record.losses} of {spec.policy.max_losses}" if record.losses else None)
    yield "progress", cell(progress(record))
    for name in ("enqueued", "due", "queued", "started", "ended", "updated"):
        time_ms = getattr(record, f"{name}_ms")
        yield name, cell(None if time_ms is None else when(time_ms))
    yield "worker", cell(record.worker)
    yield "token", cell(record.token)
    edges = [edge.id if edge.when == "success" else f"{edge.id} ({edge.when})" for edge in spec.depends_on]
    yield "depends on", cell(", ".join(edges))
    yield "still waits for", cell(f"{record.open_dependencies} jobs" if record.open_dependencies else None)
    yield "policy", cell(_policy(spec.policy))
    yield "headers", cell(", ".join([f"{name}: {value}" for name, value in spec.headers]))


def places(record: JobRecord) -> str:
    """Return the place of a job, for people: its queue keys, shared ones marked, and the key of a permit."""
    words = {"exclusive": "", "shared": " (shared)", "counted": " (permit)"}
    return ", ".join([queue_key(claim.path) + words[claim.mode] for claim in record.spec.claims])


def progress(record: JobRecord) -> str | None:
    """Return the progress of a job for people, None without any."""
    said = record.progress
    return None if said is None else spoken(said.done, said.total, said.note)


def spoken(done: float | None, total: float | None, note: str | None) -> str:
    """Return a handler's progress note for people."""
    counts = "/".join(f"{number:g}" for number in (done, total) if number is not None)
    return " ".join(part for part in (counts, note) if part)


def _policy(policy: Policy) -> str:
    """Return the fields of a policy that differ from the defaults."""
    default = Policy()
    changed = {
        field.name: getattr(policy, field.name)
        for field in attrs.fields(Policy)
        if getattr(policy, field.name) != getattr(default, field.name)
    }
    return ", ".join(f"{name}={value}" for name, value in changed.items())


# --- why a job waits -------------------------------------------------------------------------------------------------


def why(
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID|PATH]", help="Of a job; the queue key of a place, if no job has this id."),
    ] = None,
    target: Target = None,
    namespace: Namespace = None,
    path: Annotated[str | None, typer.Option(metavar="PATH", help="What waits at or below this queue key.")] = None,
    limit: Annotated[int, typer.Option(help="Of a place: how many of its oldest and newest jobs, 1 to 16.")] = 3,
    chain: Annotated[
        bool, typer.Option("--chain", "-c", help="Go on with the jobs it waits for, to the root cause.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print why a job waits, or what waits at a place: the jobs in the way, and how to end a wait that stays."""
    with opened(target, namespace, as_json=as_json) as sched:
        if (id is None) is (path is None):
            raise UsageError("give the id of a job or the queue key of a place, one of the two")
        if chain and path is not None:
            raise UsageError("--chain requires the id of a job, not --path")
        printer = Printer(as_json=as_json)
        if id is None:
            _print_place(printer, sched.why_sync(path=place(path), limit=limit))
            return
        try:
            reasons = sched.why_sync(id, chain=True) if chain else (sched.why_sync(id),)
        except (JobNotFoundError, InvalidJobError):
            at_place = None if chain else _at_place(sched, id, limit)
            if at_place is None:
                raise
            _print_place(printer, at_place)
            return
        if as_json:
            found = [_reason_fields(reason) for reason in reasons]
            printer.json(found if chain else found[0])
            return
        for reason in reasons:
            printer.say(str(reason))
        if reasons[-1].way_out is not None and (chain or reasons[-1].stuck):
            printer.say(reasons[-1].way_out, "dim")


def _at_place(sched: Scheduler, key: str, limit: int) -> PathReasons | None:
    """Return the waits at the place of a queue key and their blockers. None without waits, or for no key."""
    try:
        found = sched.why_sync(path=parse_key(key), limit=limit)
    except InvalidHintError:
        return None
    return found if found.waiting or found.ahead else None


def _print_place(printer: Printer, found: PathReasons) -> None:
    some = {"oldest": found.oldest, "newest": found.newest, "in the way": found.ahead}
    if printer.as_json:
        fields = attrs.asdict(found, recurse=False) | {"more": found.more}
        fields |= {name: [_placed_fields(each) for each in fields[name]] for name in ("oldest", "newest", "ahead")}
        printer.json(fields)
        return
    least = "" if found.complete else "at least "
    printer.say(f"{found.path_key}: {least}{found.waiting} {'job waits' if found.waiting == 1 else 'jobs wait'}")
    rows = [
        [
            cell(which),
            cell(each.id),
            state_cell(each.state),
            cell(each.task),
            cell(_place_of(each)),
            cell(each.user),
            cell(ago(each.enqueued_ms)),
            cell(each.reason.text),
        ]
        for which, jobs in some.items()
        for each in jobs
    ]
    if rows:
        columns = ("which", "id", "state", "task", "place", "user", "ago", "why")
        shown = ("which", "task", "place", "state", "why", "user", "ago", "id")
        printer.put(Grid(columns, rows, shown=shown, key="id", usual={"user": ""}))
    if found.more:
        printer.say(f"{found.more} more wait there", "dim")
    if found.more_ahead:
        printer.say(f"{found.more_ahead} more are in the way", "dim")


def _place_of(job: PlacedJob) -> str:
    mode = "" if job.mode in (None, "exclusive") else f" ({job.mode})"
    more = f" and {job.claims - 1} more" if job.claims > 1 else ""
    return f"{job.path_key or ''}{mode}{more}"


def _placed_fields(job: PlacedJob) -> dict[str, Any]:
    fields = attrs.asdict(job, recurse=False) | {"state": job.state, "reason": _reason_fields(job.reason)}
    return fields | {"enqueued_at": iso(fields.pop("enqueued_ms"))}


def _reason_fields(reason: Reason) -> dict[str, Any]:
    fields = attrs.asdict(reason)
    until_ms = fields.pop("until_ms")
    return fields | {"until": None if until_ms is None else iso(until_ms), "way_out": reason.way_out}


# --- all jobs --------------------------------------------------------------------------------------------------------


@choosing
def stats(choose: Choose, target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Count jobs: all by state, ready by pool, stuck by reason, since the beginning; those of a part by state."""
    with opened(target, namespace, as_json=as_json) as sched:
        printer, chosen = Printer(as_json=as_json), choose()
        if chosen:
            counts = sched.records.count_sync(**chosen)
            if as_json:
                printer.json({"namespace": namespace_of(sched), "states": counts.states})
            else:
                printer.put(_states(counts.states))
            return
        found = sched.stats_sync()
        if as_json:
            printer.json({"namespace": namespace_of(sched), **attrs.asdict(found), "unfinished": found.unfinished})
        else:
            printer.put(*stats_blocks(found))


def _states(states: Mapping[JobState, int]) -> Row:
    return Row([(state.value, cell(states.get(state, 0), STYLES[state])) for state in JobState])


def _ready(found: Stats) -> Iterator[Block | str]:
    ready = {pool: count for pool, count in found.ready.items() if count}
    if ready:
        yield "ready, by pool"
        yield Row([(f"ready {pool}", cell(count)) for pool, count in ready.items()])
        waits = [(f"oldest {pool}", cell(ago(found.oldest_ready_ms.get(pool)))) for pool in ready]
        yield Row([(name, value) for name, value in waits if value])


def stats_blocks(found: Stats, pools: Iterable[Block | str] | None = None) -> Iterator[Block | str]:
    """Yield counts in their printed form. *pools* replaces the ready jobs by pool."""
    yield _states(found.states)
    yield from _ready(found) if pools is None else pools
    if found.waiting_for_signals:
        yield Row([("waiting for signals", cell(found.waiting_for_signals))])
    stuck = {kind: count for kind, count in found.stuck.items() if count}
    if stuck:
        yield "stuck until a person helps"
        yield Row([(f"stuck {kind}", cell(count, "bold red")) for kind, count in stuck.items()])
    yield "since the beginning, and now"
    counts = {name: value for name, value in attrs.asdict(found).items() if isinstance(value, int)}
    del counts["waiting_for_signals"]
    yield Row([(name, cell(value)) for name, value in counts.items()])


def brief(record: JobRecord) -> dict[str, Any]:
    """Return the fields of a job in a list, for programs."""
    fields = fields_of(record)
    kept = ("id", "number", "state", "attempts", "losses", "cause", "worker", "open_dependencies")
    spec = (
        "task",
        "claims",
        "pool",
        "user",
        "service",
        "tags",
        "priority",
        "key",
        "flow",
        "name",
        "parent",
        "schedule",
    )
    times = {name: value for name, value in fields.items() if name.endswith("_at")}
    return {name: fields[name] for name in kept} | {name: fields["spec"][name] for name in spec} | times


def records_grid(records: Sequence[JobRecord]) -> Grid:
    """Return records as a table."""
    rows = [
        [
            cell(record.id),
            state_cell(record.state),
            cell(record.spec.task),
            cell(places(record)),
            cell(record.spec.pool),
            cell(record.spec.user),
            cell(record.spec.service),
            cell(record.attempts),
            cell(iso(record.enqueued_ms)),
            cell(ago(record.enqueued_ms)),
            cell(", ".join(record.spec.tags)),
        ]
        for record in records
    ]
    return Grid(
        ("id", "state", "task", "place", "pool", "user", "service", "attempts", "enqueued", "ago", "tags"),
        rows,
        shown=("task", "place", "state", "ago", "attempts", "user", "service", "tags", "pool", "id"),
        key="id",
        usual={"place": "", "attempts": "0", "user": "", "service": "", "tags": "", "pool": "default"},
    )
