"""Replies of scripts as typed replies. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

import attrs

from queuehint import operations as op
from queuehint.backends.redis.codec.reports import (
    edge_stats,
    lines,
    parse_pause,
    pending,
    stats,
    tree,
    why,
    worker_info,
)
from queuehint.backends.redis.codec.specs import (
    DAMAGE,
    may_be_newer,
    number_of,
    parse_claims_text,
    parse_head,
    parse_service,
    parse_spec,
    parse_token,
    salvaged,
)
from queuehint.backends.redis.scripts import STATES
from queuehint.errors import CorruptStateError
from queuehint.operations.producing import new_enqueued_job
from queuehint.values.event import Event, EventKind
from queuehint.values.hint import parse_gate_key
from queuehint.values.limit import Limit, LimitState, order_of
from queuehint.values.outcome import JobError, Progress, new_grant
from queuehint.values.record import Attempt, JobRecord, JobState, StepInfo, history_of
from queuehint.values.report import EdgeStats, PauseState, Stats, TreeNode
from queuehint.values.schedule import Recurrence, Schedule

REPLIES: Final[dict[type[Any], Callable[[Any, list[Any]], Any]]] = {}
"""The reader of each operation's reply."""
_READERS: Final[dict[type[Any], Callable[[Any, list[Any]], Any]]] = {}

_Reader = TypeVar("_Reader", bound="Callable[[Any, list[Any]], Any]")


def reads(kind: type[Any]) -> Callable[[_Reader], _Reader]:
    """Return a decorator that registers the decoder of an operation's reply, or of all replies of a class."""

    def enter(reader: _Reader) -> _Reader:
        assert kind not in _READERS
        _READERS[kind] = reader
        return reader

    return enter


HEADER: Final = 3
"""How many items every reply to a change begins with: more, now, next."""
_VERDICTS: Final = {
    "D": op.Verdict.DONE,
    "K": op.Verdict.DONE,
    "Q": op.Verdict.REQUESTED,
    "R": op.Verdict.REFUSED,
    "U": op.Verdict.UNKNOWN,
    "L": op.Verdict.LOST,
    "C": op.Verdict.CANCELED,
    "T": op.Verdict.STALE,
}


_NEW: Final = {letter.encode(): state for letter, state in STATES.items()}
"""The state of a job that is new and alone, by the line that tells it."""


@reads(op.Enqueued)
def _enqueued(operation: op.Enqueue, reply: list[Any]) -> op.Enqueued:
    following = reply[3] + 0
    if reply[4] in _NEW and len(operation.jobs) == 1:
        job = new_enqueued_job(operation.jobs[0].id, following, _NEW[reply[4]], created=True)
        return op.Enqueued((job,), bool(reply[0]))
    jobs = []
    for spec, line in zip(operation.jobs, reply[4].decode().split("\n") if reply[4] else (), strict=True):
        if len(line) == 1:
            jobs.append(new_enqueued_job(spec.id, following, STATES[line], created=True))
            following += 1
            continue
        job_id, number, state, created, token = line.split(" ")
        jobs.append(op.EnqueuedJob(job_id, int(number), STATES[state], created == "1", parse_token(token)))
        following += created == "1"
    return op.Enqueued(tuple(jobs), bool(reply[0]))


@reads(op.Exchanged)
def _exchanged(operation: op.Exchange, reply: list[Any]) -> op.Exchanged:
    verdicts = tuple([_VERDICTS[letter] for letter in reply[3].decode()])
    canceled = tuple(reply[4].decode().split("\n")) if reply[4] else ()
    count = (len(reply) - 7) // 2
    lease_until_ms = reply[1] + operation.lease_ms
    grants, unreadable = [], []
    for head, rest in zip(reply[7 : 7 + count], reply[7 + count :], strict=True):
        try:
            job_id, token, attempts, losses, *lines = head.decode().split("\n", 12)
            spec = parse_spec(job_id, lines, rest)
            steps = 0
            if " " in losses:
                losses, steps = losses.split(" ")
            grants.append(
                new_grant(spec, parse_token(token) or 0, int(attempts), int(losses), lease_until_ms, int(steps))
            )
        except (CorruptStateError, *DAMAGE) as error:
            # An unreadable job must not keep the others from being run.
            unreadable.append(_unreadable(head, rest, error))
    return op.Exchanged(verdicts, tuple(grants), canceled, bool(reply[0]), bool(reply[5]), tuple(unreadable))


def _unreadable(head: bytes, rest: bytes, error: Exception) -> op.Unreadable:
    job_id, token, _ = head.split(b"\n", 2)
    return op.Unreadable(job_id.decode(), parse_token(token.decode()) or 0, _problem(error), may_be_newer(rest))


def _problem(error: Exception) -> str:
    return f"its spec cannot be read by this release ({type(error).__name__}): {error}"


@reads(op.Judged)
def _judged(_operation: Any, reply: list[Any]) -> op.Judged:
    text = reply[3].decode()
    verdicts = [(_VERDICTS[text[at]], STATES.get(text[at + 1])) for at in range(0, len(text), 2)]
    return op.Judged(tuple(verdicts), bool(reply[0]))


@reads(op.Ticked)
def _ticked(_operation: op.Tick, reply: list[Any]) -> op.Ticked:
    more, _, next_ms = reply[:HEADER]
    return op.Ticked(bool(more), None if next_ms < 0 else next_ms)


@reads(op.Marked)
def _marked(_operation: Any, reply: list[Any]) -> op.Marked:
    return op.Marked(bool(reply[3]), bool(reply[0]))


@reads(op.Weights)
def _weights(_operation: op.ListWeights, reply: list[Any]) -> op.Weights:
    weights = {user.decode() or None: int(weight) for user, weight in zip(reply[::2], reply[1::2], strict=True)}
    return op.Weights(tuple(sorted(weights.items(), key=lambda entry: entry[0] or "")))


@reads(op.Workers)
def _workers(_operation: op.ListWorkers, reply: list[Any]) -> op.Workers:
    now_ms, *rest = reply
    workers = [worker_info(*rest[at : at + 5]) for at in range(0, len(rest), 5)]
    return op.Workers(tuple(sorted(workers, key=attrgetter("name"))), now_ms + 0)


@reads(op.Announced)
def _announced(_operation: Any, reply: list[Any]) -> op.Announced:
    return op.Announced(_VERDICTS[reply[3].decode()], reply[4] == 1, parse_token(reply[5].decode()) or 0)


@reads(op.Noted)
def _noted(_operation: Any, reply: list[Any]) -> op.Noted:
    return op.Noted(_VERDICTS[reply[3].decode()])


@reads(op.Posted)
def _posted(operation: op.Post, reply: list[Any]) -> op.Posted:
    now_ms, letters, kept = reply[1], reply[3].decode(), iter(reply[4:])
    steps: list[tuple[int, bytes | None]] = []
    for note, letter in zip(operation.notes, letters, strict=True):
        if letter == "K":
            steps.append((int(next(kept)), next(kept)))
        elif letter == "D" and note.step is not None:
            steps.append((now_ms, None))
    return op.Posted(tuple([_VERDICTS[letter] for letter in letters]), tuple(steps))


@reads(op.Got)
def _got(_operation: op.Get, reply: list[Any]) -> op.Got:
    return op.Got(tuple([_record(item) if item else None for item in reply]))


@reads(op.Page)
def _page(_operation: op.List, reply: list[Any]) -> op.Page:
    has_more, key, number, *items = reply
    records = tuple([_record(item) for item in items])
    return op.Page(records, (key.decode(), int(number)) if has_more else None)


@reads(op.Counts)
def _counts(_operation: op.CountRecords, reply: list[Any]) -> op.Counts:
    has_more, key, number, *counts = reply
    return op.Counts(dict(zip(JobState, counts, strict=True)), (key.decode(), int(number)) if has_more else None)


@reads(op.Users)
def _users_page(_operation: op.ListUsers, reply: list[Any]) -> op.Users:
    users = tuple([(name.decode(), count) for name, count in zip(reply[1::2], reply[2::2], strict=True)])
    return op.Users(users, users[-1][0] if reply[0] else None)


@reads(op.Fetched)
def _fetched(_operation: op.Fetch, reply: list[Any]) -> op.Fetched:
    results: list[tuple[JobState | None, bytes | None]] = []
    if len(reply) == 1:
        return op.Fetched(_VERDICTS[reply[0].decode()], ())
    steps = [(*_step(named), result) for named, result in zip(reply[1][::2], reply[1][1::2], strict=True)]
    for said, result in zip(reply[2::2], reply[3::2], strict=True):
        state, kind = said.decode() or "  "
        results.append((STATES.get(state), b"null" if kind == "n" else result if kind == "s" else None))
    return op.Fetched(_VERDICTS[reply[0].decode()], tuple(results), tuple(steps))


def _step(named: bytes) -> tuple[str, int]:
    """Return the name of a step, and the time of its result."""
    at_ms, name = named.decode().split(" ", 1)
    return name, int(at_ms)


@reads(op.Pauses)
def _pauses(_operation: op.ListPauses, reply: list[Any]) -> op.Pauses:
    found = []
    for at in range(0, len(reply), 4):
        number, name, until_ms, parked = reply[at : at + 4]
        wanted = parse_pause(name)
        found.append((number, PauseState(filter=wanted, until_ms=until_ms or None, parked=parked)))
    return op.Pauses(tuple([state for _, state in sorted(found, key=itemgetter(0))]))


@reads(op.Limits)
def _limits(_operation: op.ListLimits, reply: list[Any]) -> op.Limits:
    states = []
    for at in range(0, len(reply), 8):
        field = reply[at].decode()
        numbers = [None if item == b"" else item for item in reply[at + 1 : at + 8]]
        most, tokens, per_ms, burst, max_pending, started, pending = numbers
        limit = Limit(
            path=parse_gate_key(field[1:]) if field[0] in "=/" else None,
            each=field[0] == "/",
            task=field[1:] if field[0] == "t" else None,
            pool=field[1:] if field[0] == "p" else None,
            most=most,
            rate=None if tokens is None or per_ms is None else (tokens, per_ms),
            burst=burst,
            max_pending=max_pending,
        )
        states.append(LimitState(limit=limit, started=started, pending=pending))
    return op.Limits(tuple(sorted(states, key=lambda state: order_of(state.limit))))


@reads(op.ListSchedules)
def _schedules(_operation: Any, reply: list[Any]) -> op.Schedules:
    now_ms, following, *items = reply
    read, unreadable = [], []
    for item in items:
        try:
            read.append(_schedule(item))
        except (CorruptStateError, *DAMAGE):
            # An unreadable schedule must not keep the others from being fired.
            unreadable.append(item[0].decode())
    return op.Schedules(tuple(read), now_ms + 0, following.decode() or None, tuple(unreadable))


@reads(op.DueSchedules)
def _due_schedules(operation: op.DueSchedules, reply: list[Any]) -> op.Schedules:
    page = _schedules(operation, reply)
    if len(reply) - 2 < operation.limit:
        return page
    name, _, next_ms = reply[-1][:3]
    return attrs.evolve(page, behind=(int(next_ms), name.decode()))


def _schedule(item: list[Any]) -> Schedule:
    name, version, next_ms, is_paused, last_ms, last_id, head = [field.decode() for field in item[:7]]
    rest, recurrence = item[7:]
    return Schedule(
        name=name,
        spec=parse_head(head, rest),
        recurrence=Recurrence(**json.loads(recurrence)),
        version=int(version),
        next_ms=number_of(next_ms),
        is_paused=is_paused == "1",
        last_ms=number_of(last_ms),
        last_id=last_id or None,
    )


def _record(item: list[Any]) -> JobRecord:
    """
    Return the record of a job: its head's fields, its rest, result, progress, errors and log lines.

    A spec that cannot be read is a problem of this record, not of those it is listed with.
    """
    (
        job_id,
        state,
        number,
        seq,
        version,
        attempts,
        losses,
        token,
        worker,
        enqueued,
        due,
        queued,
        started,
        ended,
        cancel,
        cause,
        has_result,
        logs_count,
        level,
        open_dependencies,
        *spec,
    ) = [field.decode() for field in item[:29]]
    rest, result, progress, error_items, logs, past, *more = item[29:]
    errors = tuple([parse_error(error) for error in error_items])
    job_state = STATES[state]
    problem = None
    try:
        parsed = parse_spec(job_id, spec, rest)
    except (CorruptStateError, *DAMAGE) as error:
        parsed, problem = salvaged(job_id, spec, rest), _problem(error)
    return JobRecord(
        id=job_id,
        number=int(number),
        seq=int(seq) or None,
        version=int(version),
        state=job_state,
        spec=parsed,
        attempts=int(attempts),
        losses=int(losses),
        token=parse_token(token),
        worker=(worker or None) if job_state is JobState.STARTED else None,
        enqueued_ms=int(enqueued),
        due_ms=number_of(due),
        queued_ms=number_of(queued),
        started_ms=number_of(started),
        ended_ms=number_of(ended),
        result=None if has_result == "-" else b"null" if has_result == "n" else result,
        errors=errors,
        cause=(cause or cancel)[1:] or None,
        cancel_requested=bool(cancel) and not job_state.is_over,
        progress=Progress(*json.loads(progress)) if progress else None,
        logs=tuple([line.decode() for line in logs]),
        logs_truncated=int(logs_count) > len(logs),
        level=int(level),
        open_dependencies=int(open_dependencies),
        problem=problem,
        history=history_of(
            [parse_attempt(line) for line in past.decode().split("\n")[:-1]],
            errors,
            job_state,
            number_of(started),
            number_of(ended),
            worker or None,
        ),
        steps=tuple([StepInfo(*_step(named)) for named in more[0]]) if more else (),
    )


def parse_attempt(line: str) -> Attempt:
    """Return an ended attempt, with its error from the record."""
    started, ended, outcome, worker = line.split(" ", 3)
    return Attempt(started_ms=int(started), ended_ms=int(ended), worker=worker, outcome=outcome)  # type: ignore[arg-type]


def parse_error(item: list[Any]) -> JobError:
    """Return the error of an attempt; its type is a text and is made into nothing else."""
    attempt, at_ms, kind, message, traceback = item
    return JobError(
        type=kind.decode(),
        message=message.decode(),
        traceback=traceback[1:].decode() if traceback else None,
        attempt=attempt,
        at_ms=at_ms,
    )


@reads(op.Followed)
def _followed(operation: op.Follow, reply: list[Any]) -> op.Followed:
    last, after, missed, *found = reply[HEADER:]
    events = tuple([_event(at, text) for at, text in zip(found[::2], found[1::2], strict=True)])
    return op.Followed(events, after, missed, after < last)


def _event(at: int, text: bytes) -> Event:
    _size, *lines, cause_size, type_size, said = text.split(b"\n", 17)
    kind, claims, user, flow, at_ms, old, new, number, attempt, took_ms, task, pool, service_line, job_id = [
        line.decode() for line in lines
    ]
    service, tags = parse_service(service_line)
    type_at, has_error = int(cause_size), type_size != b""
    rest_at = type_at + int(type_size or 0)
    # An error's type and message are cut at a byte, which of a text that is no UTF-8 may be any.
    cause, error_type = said[:type_at].decode(), said[type_at:rest_at].decode(errors="ignore")
    return Event(
        at=at,
        at_ms=int(at_ms),
        kind=EventKind(kind),
        id=job_id,
        number=int(number),
        old=STATES.get(old),
        new=STATES.get(new),
        attempt=int(attempt),
        took_ms=number_of(took_ms),
        task=task,
        pool=pool,
        user=user or None,
        cause=cause or None,
        service=service,
        flow=flow or None,
        claims=parse_claims_text(claims.replace("\t", "\n")),
        error_type=error_type if has_error else None,
        error_message=said[rest_at:].decode(errors="ignore") if has_error else None,
        progress=Progress(*json.loads(said[rest_at:])) if kind == EventKind.PROGRESSED else None,
        tags=tags,
    )


@reads(op.Committed)
def _committed(_operation: op.Commit, reply: list[Any]) -> op.Committed:
    return op.Committed(reply[3], bool(reply[0]))


@reads(op.Swept)
def _swept(_operation: op.CancelFlow, reply: list[Any]) -> op.Swept:
    return op.Swept(bool(reply[0]))


@reads(op.SweptPath)
def _swept_path(_operation: op.CancelPath, reply: list[Any]) -> op.SweptPath:
    return op.SweptPath(bool(reply[0]), reply[3], reply[4] or None)


@reads(op.Pushed)
def _pushed(_operation: op.Push, reply: list[Any]) -> op.Pushed:
    return op.Pushed(bool(reply[3]), bool(reply[0]))


@reads(op.Pulled)
def _pulled(_operation: op.Pull, reply: list[Any]) -> op.Pulled:
    return op.Pulled(reply[0] if reply else None)


@reads(op.SharedKeys)
def _shared_keys(_operation: op.ListShared, reply: list[Any]) -> op.SharedKeys:
    is_more, after, *keys = reply
    return op.SharedKeys(tuple([key.decode() for key in keys]), after.decode() if is_more else None)


@reads(op.Draw)
def _drawn(_operation: op.Draw, reply: list[Any]) -> op.Drawn:
    return op.Drawn(reply[3])


@reads(op.Peek)
def _peeked(_operation: op.Peek, reply: list[Any]) -> op.Drawn:
    return op.Drawn(reply[0])


@reads(op.Renewed)
def _renewed(_operation: op.Renew, reply: list[Any]) -> op.Renewed:
    return op.Renewed(tuple([_VERDICTS[letter] for letter in reply[3].decode()]), bool(reply[0]))


@reads(bool)
def _yes_or_no(_operation: op.CanDequeue, reply: list[Any]) -> bool:
    return bool(reply[0])


for _kind, _read in (
    (EdgeStats, edge_stats),
    (op.Chain, why),
    (op.Lines, lines),
    (op.Pending, pending),
    (Stats, stats),
    (TreeNode, tree),
):
    reads(_kind)(_read)
for _operation in op.KINDS:
    REPLIES[_operation] = _READERS.get(_operation) or _READERS[_operation.reply_class]
