"""
The orders of a board: the classes without an operation, their steps, and the rows.

An order that is repeated after an unknown outcome changes nothing more: jobs and signals have ids of the caller's, and
all others say what is to be. Each order on jobs is written into their logs, with who gave it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import attrs

from queuehint import operations as op
from queuehint.backends.steps import Steps
from queuehint.client.flows.rerun import rerun
from queuehint.client.record_reads import records_of
from queuehint.client.signals import given_spec
from queuehint.client.submission import submit
from queuehint.errors import (
    BackendError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    InvalidTransitionError,
    JobNotFoundError,
    UnknownDependencyError,
    shown,
)
from queuehint.handlers.codec import Codec, dump_identified
from queuehint.handlers.conversion.plain_json import decode_json
from queuehint.schema.checks import RETENTION_MAX_MS, sized
from queuehint.schema.kinds import Asked, AtMost, Duration, JobId, Payload
from queuehint.values.hint import key_of
from queuehint.values.record import JobRecord, JobState, StepsChoice
from queuehint.values.signal import SIGNAL_BYTES_MAX, SIGNAL_KEPT, check_signal_name
from queuehint.values.spec import PAYLOAD_BYTES_MAX, SIGNAL_MARK, JobSpec
from queuehint.web.flows import jobs_of
from queuehint.web.scope import is_within
from queuehint.web.table import Ask, Route

JOBS_MAX: Final = 500
"""How many jobs one request enqueues at most: they are one submission."""
AGAIN_MAX: Final = 10_000
"""How many operations the rerun of a part of a flow takes at most, about one for each 100 jobs and for what follows."""
TICKS_MAX: Final = 16
"""How many steps of the work that follows from an order are done at once; the rest is done by what is asked next."""
DONE: Final = frozenset({op.Verdict.DONE, op.Verdict.REQUESTED})


# --- what is ordered and answered besides operations -----------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Submission:
    """Jobs to enqueue, all or nothing. Each may depend on existing jobs, or on others of the submission."""

    jobs: Annotated[tuple[JobSpec, ...], AtMost(JOBS_MAX)]

    def check(self) -> Submission:
        """Return the submission with every spec normalised and checked."""
        return Submission(jobs=tuple([spec.check() for spec in self.jobs]))


@attrs.frozen(kw_only=True)
class Submitted:
    """The jobs of a submission, in its order. *created* is false for a job that existed."""

    jobs: tuple[op.EnqueuedJob, ...]


@attrs.frozen(kw_only=True)
class Given:
    """
    A signal to give.

    Args:
        data: what the jobs get that wait for it.
        keep_ms: how long it is kept.
    """

    name: JobId
    data: Annotated[bytes, Payload(SIGNAL_BYTES_MAX)] = attrs.field(default=b"null", repr=sized)
    keep_ms: Annotated[int, Duration(1, RETENTION_MAX_MS)] = int(SIGNAL_KEPT.total_seconds() * 1000)


@attrs.frozen(kw_only=True)
class Signaled:
    """Whether a signal was accepted: false if the signal was given before with other data."""

    counts: bool


@attrs.frozen(kw_only=True)
class Ordered:
    """
    The outcome of an order for one job.

    Args:
        verdict: ``"requested"`` if it runs and its worker is asked to stop it.
        more: work that follows from it is left over, and done by what is asked next.
    """

    verdict: op.Verdict
    state: JobState | None
    more: bool


@attrs.frozen(kw_only=True)
class ScheduleOrder:
    """Which schedule."""

    name: JobId


@attrs.frozen(kw_only=True)
class Changed:
    """Whether a schedule was otherwise before."""

    changed: bool


@attrs.frozen(kw_only=True)
class Fired:
    """The job of a manual firing of a schedule."""

    job_id: str


@attrs.frozen(kw_only=True)
class Rerun:
    """
    A job of a flow to run again.

    Args:
        job: its name in the flow, or its id.
        version: of its record, as it was seen: so the order may be given again, whatever became of the one before.
        downstream: what follows from it is run again too.
        steps: ``"keep"`` what their steps have stored, or ``"drop"`` it.
    """

    flow: JobId
    job: JobId
    version: Annotated[int, Asked(1)]
    downstream: bool = True
    steps: StepsChoice = "drop"


@attrs.frozen(kw_only=True)
class RunAgain:
    """
    The jobs of a rerun.

    Args:
        count: how many jobs were queued again.
        ids: of the first 1 000 of them, in order of their dependencies.
    """

    count: int
    ids: tuple[str, ...]


# --- steps -----------------------------------------------------------------------------------------------------------


def order(ask: Ask) -> Steps[Any]:
    """Carry out one operation, and some of its follow-up work."""
    reply = yield ask.asked
    return (yield from _settled(reply))


def _settled(reply: Any) -> Steps[Any]:
    more = reply.more
    with suppress(BackendError):
        for _ in range(TICKS_MAX):
            if not more:
                break
            more = (yield op.Tick()).more
    return attrs.evolve(reply, more=more)


def jobs(ask: Ask) -> Steps[op.Judged]:
    """
    Apply an order to jobs by their ids, and return a verdict for each given id, repeated ids included.

    Those of another scope are unknown; those ordered have it in their logs.
    """
    ids = tuple(dict.fromkeys(ask.asked.ids))
    if len(ids) > op.JOBS_AT_ONCE:
        raise InvalidJobError(f"ids: {len(ids)} in one request, limit {op.JOBS_AT_ONCE}")
    known = ids
    if ask.scope:
        records = (yield op.Get(ids)).records
        known = tuple([record.id for record in records if record is not None and is_within(record.spec, ask.scope)])
    reply = yield attrs.evolve(ask.asked, ids=known)
    verdicts = dict(zip(known, reply.verdicts, strict=True))
    yield from _note([job_id for job_id in known if verdicts[job_id][0] in DONE], _word(ask.asked), ask)
    found = tuple([verdicts.get(job_id, (op.Verdict.UNKNOWN, None)) for job_id in ask.asked.ids])
    judged: op.Judged = yield from _settled(op.Judged(found, more=reply.more))
    return judged


def _note(ids: Sequence[str], word: str, ask: Ask) -> Steps[None]:
    """Append an order and its user to the logs of its jobs."""
    line = f"{word} by {ask.access.name or 'an operator'} on the board"
    if ids:
        with suppress(BackendError):
            yield op.Post(tuple([op.Note(job_id, None, (line,)) for job_id in ids]))


def _word(asked: Any) -> str:
    """Return the word for an order in the log of a job."""
    if isinstance(asked, op.Redrive):
        return "made due" if asked.waiting else "redriven"
    return {op.Cancel: "canceled", op.Discard: "discarded", op.Delete: "deleted"}[type(asked)]


def job(ask: Ask) -> Steps[Ordered]:
    """Order something of one job."""
    (job_id,) = ask.asked.ids
    reply = yield from jobs(ask)
    ((verdict, state),) = reply.verdicts
    if verdict is op.Verdict.UNKNOWN:
        raise JobNotFoundError(job_id)
    if verdict is op.Verdict.REFUSED:
        raise InvalidTransitionError(job_id, state or "unknown", _word(ask.asked))
    return Ordered(verdict=verdict, state=state, more=reply.more)


def run_again(ask: Ask) -> Steps[RunAgain]:
    """Rerun a job of a flow and its dependents. A scope reruns its own jobs only."""
    asked = ask.asked

    def read() -> Steps[list[JobRecord]]:
        found = yield from records_of(jobs_of(ask))
        if not found:
            raise FlowNotFoundError(asked.flow)
        return found

    ids = yield from rerun(ask.scheduler, read, op.Redrive, (asked.job,), asked.downstream, asked.version, asked.steps)
    yield from _note(ids[: op.JOBS_AT_ONCE], "run again", ask)
    return RunAgain(count=len(ids), ids=tuple(ids))


def enqueue(ask: Ask) -> Steps[Submitted]:
    """Enqueue jobs. In a scope, claims lie at or below it, and ids, keys and flows begin with its prefix."""
    specs = list(ask.asked.jobs)
    if ask.scope:
        yield from _check_scope(specs, ask)
    codec = ask.scheduler.codec
    return Submitted(jobs=tuple((yield from submit([_as_codec(spec, codec) for spec in specs], codec=codec))))


def _as_codec(spec: JobSpec, codec: Codec) -> JobSpec:
    """Return a spec with its arguments encoded by the codec of the application."""
    values = decode_json(spec.arguments)
    if not isinstance(values, dict):
        raise InvalidJobTypeError(f"arguments must be an object, got {type(values).__name__} in job {shown(spec.id)}")
    payload, digests = dump_identified(codec, values, {}, bytes_max=PAYLOAD_BYTES_MAX)
    identity = tuple([hashlib.sha256(digest).hexdigest() for digest in digests])
    return attrs.evolve(spec, arguments=payload, identity=identity).check()


def _check_scope(specs: list[JobSpec], ask: Ask) -> Steps[None]:
    prefix = ask.access.prefix
    for spec in specs:
        if not spec.claims or not all(ask.access.holds(claim.path) for claim in spec.claims):
            raise InvalidHintError(f"claims of job {shown(spec.id)} must be at or below {shown(key_of(ask.scope))}")
        for name in ("id", "key", "flow"):
            value = getattr(spec, name)
            if value is not None and not value.startswith(prefix):
                raise InvalidJobError(f"{name} {shown(value)} must begin with {shown(prefix)}")
    made = {name for spec in specs for name in (spec.id, spec.name)}
    edges = {edge.id: spec.id for spec in specs for edge in spec.depends_on}
    own = f"{SIGNAL_MARK}{prefix}"
    asked = [job_id for job_id in edges if job_id not in made and not job_id.startswith(own)]
    for some in [tuple(asked[begin : begin + op.IDS_MAX]) for begin in range(0, len(asked), op.IDS_MAX)]:
        _check_edges(dict(zip(some, (yield op.Get(some)).records, strict=True)), edges, ask)


def _check_edges(found: Mapping[str, Any], edges: Mapping[str, str], ask: Ask) -> None:
    for job_id, record in found.items():
        if record is None or not is_within(record.spec, ask.scope):
            raise UnknownDependencyError(edges[job_id], job_id)


def signal(ask: Ask) -> Steps[Signaled]:
    """Give a signal. In a scope, its name begins with the prefix of the scope."""
    asked, prefix = ask.asked, ask.access.prefix
    name = check_signal_name(asked.name)
    if not name.startswith(prefix):
        raise InvalidJobError(f"name {shown(name)} must begin with {shown(prefix)}")
    spec = given_spec(name, decode_json(asked.data), asked.keep_ms / 1000, ask.scheduler.codec)
    try:
        yield from submit([spec], codec=ask.scheduler.codec)
    except DuplicateJobError:
        return Signaled(counts=False)
    return Signaled(counts=True)


async def pause_schedule(ask: Ask) -> Changed:
    """Pause a schedule."""
    return Changed(changed=await ask.scheduler.schedules.pause(ask.asked.name))


async def resume_schedule(ask: Ask) -> Changed:
    """Resume a schedule."""
    return Changed(changed=await ask.scheduler.schedules.resume(ask.asked.name))


async def remove_schedule(ask: Ask) -> Changed:
    """Remove a schedule."""
    return Changed(changed=await ask.scheduler.schedules.remove(ask.asked.name))


async def fire_schedule(ask: Ask) -> Fired:
    """Have a schedule make one more job now."""
    return Fired(job_id=(await ask.scheduler.schedules.run_now(ask.asked.name)).id)


# --- rows ------------------------------------------------------------------------------------------------------------


def _of_jobs(name: str, asks: type[Any], summary: str, **fixed: Any) -> list[Route]:
    """Return the rows of an order on one job and on several."""
    row: dict[str, Any] = {"method": "POST", "asks": asks, "fixed": fixed, "most": 3 + TICKS_MAX}
    return [
        Route(
            name=f"{name}_job",
            path=f"/jobs/{{id}}/{name.replace('_', '-')}",
            answers=Ordered,
            find=job,
            bind={"id": "ids"},
            summary=f"{summary} a job.",
            **row,
        ),
        Route(
            name=name,
            path=f"/{name.replace('_', '-')}",
            answers=op.Judged,
            find=jobs,
            summary=f"{summary} up to {op.JOBS_AT_ONCE} jobs; there is a verdict for each id, in the order of the ids.",
            **row,
        ),
    ]


def _of_place(name: str, asks: type[Any], field: str, answers: type[Any], summary: str, **fixed: Any) -> Route:
    """Return the row of an order on a place."""
    return Route(
        name=f"{name}_place",
        method="POST",
        path=f"/places/{{key}}/{name}",
        asks=asks,
        answers=answers,
        find=order,
        bind={"key": field},
        fixed=fixed,
        most=1 + TICKS_MAX,
        summary=summary,
    )


def _of_schedule(name: str, find: Any, answers: type[Any], summary: str) -> Route:
    """Return the row of an order on a schedule."""
    return Route(
        name=f"{name}_schedule",
        method="POST",
        path=f"/schedules/{{name}}/{name.replace('_', '-')}",
        asks=ScheduleOrder,
        answers=answers,
        find=find,
        bind={"name": "name"},
        most=4 + TICKS_MAX,
        is_scoped=False,
        summary=summary,
    )


def _plain(name: str, asks: type[Any], summary: str, *, is_scoped: bool = True) -> Route:
    """Return the row of an order that is one operation."""
    return Route(
        name=name,
        method="POST",
        path=f"/{name.rpartition('_')[2]}",
        asks=asks,
        answers=op.Marked,
        find=order,
        most=1 + TICKS_MAX,
        is_scoped=is_scoped,
        summary=summary,
    )


ORDERS: Final[tuple[Route, ...]] = (
    Route(
        name="enqueue",
        method="POST",
        path="/jobs",
        asks=Submission,
        answers=Submitted,
        find=enqueue,
        most=200,
        summary=f"Enqueue up to {JOBS_MAX} jobs, all or nothing; one that is there already changes nothing.",
    ),
    *_of_jobs("cancel", op.Cancel, "Cancel"),
    *_of_jobs("redrive", op.Redrive, "Requeue, if it is dead,", waiting=False, again=()),
    *_of_jobs("run_now", op.Redrive, "Make due now", waiting=True, downstream=False, drop_steps=False, again=()),
    *_of_jobs("discard", op.Discard, "Give up, if it is dead,"),
    *_of_jobs("delete", op.Delete, "Drop the record of", versions=None),
    Route(
        name="rerun",
        method="POST",
        path="/flows/{id}/rerun",
        asks=Rerun,
        answers=RunAgain,
        find=run_again,
        bind={"id": "flow"},
        most=AGAIN_MAX,
        summary="Run a job of a flow again that is over, and what follows from it.",
    ),
    _of_place("pause", op.Pause, "filter", op.Marked, "Stop starts at or below a place."),
    _of_place("resume", op.Resume, "filter", op.Marked, "Undo the pause of a place."),
    _of_place("close", op.Close, "path", op.Marked, "Refuse new jobs at or below a place.", reopen=False),
    _of_place("reopen", op.Close, "path", op.Marked, "Undo the closing of a place.", reopen=True),
    _of_place("cancel", op.CancelPath, "path", op.SweptPath, "Cancel all unfinished jobs at or below a place."),
    _plain("pause", op.Pause, "Stop starts of the jobs that a filter selects."),
    _plain("resume", op.Resume, "Undo the pause of this very filter."),
    _plain("set_limits", op.SetLimit, "Put a limit in place of the one that its scope has.", is_scoped=False),
    _plain("set_weights", op.Weigh, "Give a user so many starts a turn.", is_scoped=False),
    _of_schedule("pause", pause_schedule, Changed, "Pause a schedule."),
    _of_schedule("resume", resume_schedule, Changed, "Resume a schedule."),
    _of_schedule("remove", remove_schedule, Changed, "Remove a schedule; its jobs stay."),
    _of_schedule("run_now", fire_schedule, Fired, "Have a schedule make one more job now."),
    Route(
        name="signal",
        method="POST",
        path="/signals/{name}",
        asks=Given,
        answers=Signaled,
        find=signal,
        bind={"name": "name"},
        most=200,
        summary="Give a signal that jobs wait for.",
    ),
)
"""The rows of all orders."""
