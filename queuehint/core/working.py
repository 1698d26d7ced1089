"""Operations of workers: claim and settle jobs, renew leases, write progress and log lines."""

from __future__ import annotations

from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING

from queuehint import operations as op
from queuehint.core.state import POOL_SEEN_MS, handles, proves
from queuehint.core.structures.ready_queue import RELEASES_KEPT
from queuehint.core.work import follow, more
from queuehint.operations import WORKER_SEEN_MS, WORKERS_MAX, Verdict
from queuehint.values.event import EventKind
from queuehint.values.outcome import Grant, Outcome, OutcomeKind, new_grant
from queuehint.values.record import JobState
from queuehint.values.report import WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from queuehint.core.state import State
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.ready_queue import ReadyQueue

_SCHEDULED, _DEFERRED, QUEUED, STARTED, FINISHED, _FAILED, CANCELED = JobState
DONE, _REQUESTED, REFUSED, UNKNOWN, LOST, CANCELED_VERDICT, _STALE = Verdict
SUCCEEDED = OutcomeKind.FINISHED

UNKNOWN_TASK_PAUSE_MS = 5_000
UNKNOWN_TASK_PAUSE_MAX_MS = 300_000


class NotGrantableError(Exception):
    """A granted job may not run by these rules, or does not exist."""

    def __init__(self, number: int, job_id: str | None) -> None:
        self.number = number
        self.job_id = job_id
        super().__init__(f"the job number {number} may not run")


@handles(op.Exchange)
def exchange(
    state: State, operation: op.Exchange, claim: Callable[[State, op.Exchange], list[Grant]] | None = None
) -> op.Exchanged:
    """
    Answer `Exchange`.

    Args:
        claim: grants jobs in place of `_claim`.
    """
    if state.aside:
        state.aside.clear()
    verdicts = tuple([_settle(state, outcome, operation.release) for outcome in operation.settle])
    follow(state)
    _see(state, operation)
    grants = (claim or _claim)(state, operation) if operation.limit and operation.pools else []
    undelivered_cancellations = (
        state.table.undelivered_cancellations.pop(operation.worker, None)
        if state.table.undelivered_cancellations
        else None
    )
    is_due = bool(state.timetable.dues) and state.timetable.is_due(state.now_ms)
    return op.Exchanged(
        verdicts,
        tuple(grants),
        tuple(undelivered_cancellations) if undelivered_cancellations else (),
        more(state),
        is_due,
    )


def _settle(state: State, outcome: Outcome, release: str) -> Verdict:
    job = state.table.jobs.get(outcome.job_id)
    if job is None or job.state is not STARTED or not proves(outcome.token, job.token):
        return LOST
    state.settled += 1
    kind, lifecycle = outcome.kind, state.lifecycle
    if kind is SUCCEEDED:
        if outcome.result is not None:
            job.result = outcome.result
        lifecycle.end(job, FINISHED, None)
    elif job.cancel is not None:
        lifecycle.end(job, CANCELED, job.cancel)
    elif kind is OutcomeKind.FAILED:
        lifecycle.fail(job, outcome.error, outcome.delay_ms, final=outcome.final)
    elif kind is OutcomeKind.DISCARDED:
        lifecycle.end(job, CANCELED, outcome.reason or "discarded")
    elif job.spec.presence_ms is not None:
        # Only its caller could start it again, and the caller has left.
        lifecycle.end(job, CANCELED, "waiter_lost")
    elif kind is OutcomeKind.LOST:
        lifecycle.lose(job, outcome.error)
    elif kind is OutcomeKind.CHILDREN:
        lifecycle.await_children(job, outcome)
    else:
        job.attempts -= 1
        if kind is OutcomeKind.SNOOZED:
            lifecycle.back_off(job, outcome.delay_ms, EventKind.SNOOZED)
        elif kind is OutcomeKind.RELEASED:
            state.table.put_back(job, None, EventKind.RELEASED)
        else:
            _refuse(state, job, release)
    return DONE


def _refuse(state: State, job: Job, release: str) -> None:
    """
    Return a refused job to the queue: ready at once, for every other release.

    With a growing pause instead if nothing would keep the same release from it: one without a name, one that has
    refused it before, or none of which there is room.
    """
    table, extras = state.table, job.need_extras()
    refused_by = (*extras.refused_by, release)[-RELEASES_KEPT:]
    if release and release not in extras.refused_by and table.ready.has_queue(job, refused_by):
        extras.refused_by = refused_by
        table.put_back(job, None, EventKind.RELEASED, "unknown_task")
        return
    unknown_task_count = table.unknown_task_counts.get(job.id, 0)
    pause_ms = min(UNKNOWN_TASK_PAUSE_MS << min(unknown_task_count, 16), UNKNOWN_TASK_PAUSE_MAX_MS)
    table.put_back(job, state.now_ms + pause_ms, EventKind.RELEASED, "unknown_task")
    table.unknown_task_counts[job.id] = unknown_task_count + 1


def _claim(state: State, operation: op.Exchange) -> list[Grant]:
    """Claim jobs of a worker's own users, then of the users it helps; each time first the jobs refused by others."""
    grants: list[Grant] = []
    ready = state.table.ready
    names = ready.rotate(operation.pools)
    if ready.refused:
        _claim_of(state, operation, operation.users, ready.open_to(operation.release, operation.pools), grants)
    if not state.cut:
        _claim_of(state, operation, operation.users, list(names), grants)
    if operation.steal and not state.cut:
        among = None if operation.steal == op.ANYONE else operation.steal
        if ready.refused:
            _claim_of(state, operation, among, ready.open_to(operation.release, operation.pools), grants)
        if not state.cut:
            _claim_of(state, operation, among, names, grants)
    state.started += len(grants)
    return grants


def grant_again(state: State, operation: op.Exchange, token: int, taken: Iterable[tuple[int, bool]]) -> list[Grant]:
    """
    Grant the jobs of the operation's first answer, whatever the rules would choose now.

    Args:
        token: of the first of them; those of the others count up from it.
        taken: the numbers of the jobs, and whether they were granted; else they were parked.

    Raises:
        NotGrantableError: one that was granted has not all its gates, or is not there.
    """
    grants: list[Grant] = []
    state.token = token - 1
    _claim_of(state, operation, None, [""], grants, _taken_again(state, taken))
    state.started += len(grants)
    return grants


def _taken_again(state: State, taken: Iterable[tuple[int, bool]]) -> Iterator[tuple[Job, bool]]:
    """Take jobs from the ready queue, or from parking; a job parked at the first answer only if no longer parked."""
    table = state.table
    for number, is_granted in taken:
        job = table.catalog.find(number)
        if job is None or job.ready is None:
            if is_granted:
                raise NotGrantableError(number, None if job is None else job.id)
        elif job.parked is None:
            table.ready.remove(job)
            yield job, is_granted
        elif is_granted:
            table.withdraw(job)
            yield job, True


def _claim_of(
    state: State,
    operation: op.Exchange,
    among: tuple[str | None, ...] | None,
    names: list[str],
    grants: list[Grant],
    chosen: Iterator[tuple[Job, bool]] | None = None,
) -> None:
    """
    Claim jobs of some users, or of all, from pools or other queues in rotation. *names* is used up.

    Args:
        chosen: the jobs to take in place of those, and which of them no limit or pause stops.
    """
    table = state.table
    ready: ReadyQueue = table.ready
    now_ms, limit, worker = state.now_ms, operation.limit, operation.worker
    lease_until_ms = now_ms + operation.lease_ms
    limits, pauses = table.limits, table.pauses
    turn = 0
    while names and len(grants) < limit:
        if chosen is None:
            job, is_chosen = ready.take(names[turn % len(names)], among), False
        else:
            job, is_chosen = next(chosen, (None, False))
        if job is None:
            del names[turn % len(names)]
            continue
        turn += 1
        is_put_aside = True
        if is_chosen:
            is_put_aside = False
        elif (pauses.by_path or pauses.by_filter) and (pause := pauses.holding(job)) is not None:
            table.park(job, pause)
        elif limits.limiters and (counter := limits.stops(job)) is not None:
            limits.park(job, counter)
        elif chosen is not None:
            ready.add(job)
        else:
            is_put_aside = False
        if is_put_aside:
            state.aside.append((len(grants), job.number))
            state.units -= 2
            if state.units <= 0:
                state.cut = True
                if chosen is None:
                    break
            continue
        token = state.next_token()
        table.start(job, worker, token, lease_until_ms, now_ms)
        # On its last life, see `queuehint.worker.attempts`.
        if job.losses + 1 >= job.spec.policy.max_losses:
            job.need_extras().to_begin = operation.announces
        steps = 0
        if job.extras is not None:
            job.extras.loop_blocked_ms = None
            if job.extras.steps is not None:
                steps = len(job.extras.steps)
        grants.append(new_grant(job.spec, token, job.attempts, job.losses, lease_until_ms, steps))


def _see(state: State, operation: op.Exchange) -> None:
    """Record the served pools and users, for `why`. Drop those not requested recently."""
    seen, now_ms = state.seen, state.now_ms
    among = None if operation.users is None else operation.among
    asked: Iterable[tuple[str, str | None] | str] = (
        operation.pools if among is None else product(operation.pools, among)
    )
    for each in asked:
        if seen.get(each) != now_ms:
            seen.pop(each, None)
            seen[each] = now_ms
    while seen and seen[oldest := next(iter(seen))] < now_ms - POOL_SEEN_MS:
        del seen[oldest]


@handles(op.Renew)
def renew(state: State, operation: op.Renew) -> op.Renewed:
    """Answer `Renew`."""
    verdicts = extend(state, operation.leases, operation.lease_ms)
    for (job_id, _), verdict in zip(operation.leases, verdicts, strict=True):
        if verdict is LOST:
            continue
        job = state.table.jobs[job_id]
        if operation.begun and job.extras is not None:
            job.extras.to_begin = False
        if operation.blocked_ms:
            job.need_extras().loop_blocked_ms = state.now_ms - operation.blocked_ms
        elif job.extras is not None:
            job.extras.loop_blocked_ms = None
        if verdict is CANCELED_VERDICT:
            state.table.forget_cancellation(job)
    follow(state)
    return op.Renewed(tuple(verdicts), more(state))


def extend(state: State, leases: Sequence[tuple[str, int]], lease_ms: int) -> list[Verdict]:
    """Extend leases and do nothing else. Return a verdict for each, as of `Renewed`."""
    verdicts = []
    for job_id, token in leases:
        job = state.table.jobs.get(job_id)
        waits = job is not None and job.state is QUEUED and job.spec.presence_ms is not None
        if job is None or not (waits or job.state is STARTED) or not proves(token, job.token):
            verdicts.append(LOST)
            continue
        state.table.set_lease(job, state.now_ms + lease_ms)
        verdicts.append(DONE if job.cancel is None else CANCELED_VERDICT)
    return verdicts


@handles(op.Announce)
def announce(state: State, operation: op.Announce) -> op.Announced:
    """Answer `Announce`."""
    workers, name, now_ms = state.workers, operation.worker, state.now_ms
    known = workers.get(name)
    if known is None or known.seen_ms < now_ms - WORKER_SEEN_MS:
        # Only one that comes makes room: those that stay pay nothing for those that went without a word.
        state.workers = workers = {each.name: each for each in state.live_workers()}
        known = None
    if operation.gone:
        workers.pop(name, None)
        return op.Announced(UNKNOWN if known is None else DONE, known is None, state.token)
    if known is None and len(workers) >= WORKERS_MAX:
        del workers[min(workers.values(), key=attrgetter("seen_ms", "name")).name]
    workers[name] = WorkerInfo(
        name=name,
        host=operation.host,
        pid=operation.pid,
        version=operation.version_name,
        release=operation.release,
        pools=operation.pools,
        users=operation.users,
        steal=operation.steal,
        slots=operation.slots,
        running=operation.running,
        since_ms=now_ms if known is None else known.since_ms,
        seen_ms=now_ms,
    )
    return op.Announced(DONE, known is None, state.token)


@handles(op.Post)
def post(state: State, operation: op.Post) -> op.Posted:
    """Answer `Post`."""
    steps: list[tuple[int, bytes | None]] = []
    verdicts = tuple([_store(state, note, steps) for note in operation.notes])
    return op.Posted(verdicts, tuple(steps))


def _store(state: State, note: op.Note, steps: list[tuple[int, bytes | None]]) -> Verdict:
    token = note.token
    job = state.find(note.job_id) if token is None else state.held(note.job_id, token)
    if job is None:
        return UNKNOWN if token is None else LOST
    if note.step is not None:
        kept = job.keep_step(note.step, state.now_ms)
        if kept is None:
            return REFUSED
        steps.append(kept)
    if note.progress is not None:
        job.need_extras().progress = note.progress
    if note.result is not None:
        job.result = note.result
    if note.lines:
        job.log(note.lines)
    job.version += 1
    if note.progress is not None:
        state.table.journal.note(job, EventKind.PROGRESSED, STARTED)
    return DONE


@handles(op.Tick)
def tick(state: State, _operation: op.Tick) -> op.Ticked:
    """Answer `Tick`."""
    follow(state)
    return op.Ticked(more(state), state.next_ms())
