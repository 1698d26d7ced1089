"""
The whole of the rules as one deterministic state machine: the reference every backend must match.

`Engine.apply(operation, now_ms)` answers one operation. There is no I/O, clock, thread, log or randomness in here:
the same operations at the same times give the same replies.

Every mutating operation does, in this order: what it carries about jobs that exist (settlements, cancellations);
what follows, bounded by an exact budget (leftovers first in first out, then due timers, each timer's own leftovers
before the next timer); its own placements and claims. One unit of the budget is one gate visited or left, one end of
an edge removed, one job canceled, promoted, reaped, parked, offered or pruned. A piece of work is begun while units
are left and is then finished: one walk from where it stands to where it stops, one job with its gates. A leftover
that is cut goes to the end of the leftovers, so that a long sweep does not hold up a short line.
"""

from __future__ import annotations

from functools import partial
from itertools import product, repeat
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs

from queuehint.core import questions as answers
from queuehint.core.jobs.lifecycle import Course
from queuehint.core.jobs.sweeps import step
from queuehint.core.jobs.table import Ledger
from queuehint.core.refusals import OTHER_SPEC, WEIGHTS_FULL, Submission, check_limits
from queuehint.core.schedules import Timetable
from queuehint.core.structures.edges import AFTER, needs_of
from queuehint.core.structures.heap import LazyHeap
from queuehint.core.structures.job import START_MARK
from queuehint.core.structures.leftovers import CancelFlowSweep, CancelSweep, CommitSweep
from queuehint.core.structures.ready_queue import ReadyQueue
from queuehint.core.structures.timers import TimerKind
from queuehint.core.structures.trie import Node, Walk
from queuehint.core.xcom import SharedStore
from queuehint.errors import DuplicateFlowError, FlowNotFoundError, InvalidJobError
from queuehint.operations import (
    ANYONE,
    BUDGET,
    STAGED_KEPT_MS,
    WEIGHTS_MAX,
    Amend,
    Cancel,
    CancelFlow,
    CancelPath,
    CanDequeue,
    Close,
    Commit,
    Committed,
    CountEdges,
    CountFlow,
    CountJobs,
    CountPending,
    CountRecords,
    Delete,
    Discard,
    Draw,
    Drawn,
    DropLimit,
    DropSchedule,
    DueSchedules,
    Enqueue,
    Enqueued,
    EnqueuedJob,
    Exchange,
    Exchanged,
    Fetch,
    Follow,
    Followed,
    Get,
    Judged,
    List,
    ListDead,
    ListFlow,
    ListLimits,
    ListSchedules,
    ListUsers,
    ListWeights,
    Log,
    Marked,
    Noted,
    Operation,
    Pause,
    PauseSchedule,
    Peek,
    Pull,
    Pulled,
    Push,
    Pushed,
    PutSchedule,
    Redrive,
    Renew,
    Renewed,
    Reopen,
    Report,
    Resume,
    ResumeSchedule,
    Schedules,
    SetLimit,
    Swept,
    SweptPath,
    Tick,
    Ticked,
    Tree,
    Update,
    Verdict,
    Weigh,
    Why,
)
from queuehint.values.event import EventKind
from queuehint.values.policy import Retention
from queuehint.values.records import Grant, JobSpec, JobState, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Path

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DONE, REQUESTED, REFUSED, UNKNOWN, LOST, CANCELED_VERDICT, STALE = Verdict
SUCCEEDED = OutcomeKind.FINISHED

STRANGER_PAUSE_MS = 5_000
STRANGER_PAUSE_MAX_MS = 300_000
POOL_SEEN_MS = 60_000
EPOCH_BEGIN_S = 1_577_836_800
"""2020-01-01T00:00:00Z, from which the seconds in a token count."""


@attrs.frozen(kw_only=True)
class EngineOptions:
    """
    What an engine is told when it is made.

    Args:
        epoch_s: seconds since 2020 at which this history began; the upper half of every token.
        budget: units of following work an operation may do.
        retention: how long records are kept; None where nobody has said so, then the default.
    """

    epoch_s: int = 0
    budget: int = BUDGET
    retention: Retention | None = None


class Engine:
    """
    The scheduler of one namespace.

    >>> from queuehint.values.hint import Claim
    >>> engine = Engine()
    >>> section = JobSpec(id="a", task="edit", claims=(Claim(("doc1", "intro")),))
    >>> whole = JobSpec(id="b", task="snapshot", claims=(Claim(("doc1",)),))
    >>> _ = engine.apply(Enqueue((section, whole)), now_ms=0)
    >>> [grant.spec.id for grant in engine.apply(Exchange("w", limit=2), now_ms=0).grants]
    ['a']
    """

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.bind(options or EngineOptions())
        self.ledger = Ledger(self.options.retention or Retention())
        self.closed: set[Path] = set()
        self.seen: dict[tuple[str, str | None] | str, int] = {}
        """When a worker last asked for a pool, or for a user's jobs in it; ms, the newest last."""
        self.course = Course(self.ledger)
        self.shared = SharedStore()
        self.timetable = Timetable()
        self.enqueued = self.started = self.settled = 0
        self.now_ms = 0
        self._drawn = 0
        self._token = self.options.epoch_s << 32
        self._units = 0
        self._cut = False
        self._arrived: list[Walk] = []

    def bind(self, options: EngineOptions) -> None:
        """Take options, and know who answers what: all of an engine that is no state."""
        self.options = options
        self._handlers: dict[type[Any], Callable[[Any], Any]] = {
            Enqueue: self._enqueue,
            Commit: self._commit,
            Exchange: self._exchange,
            Renew: self._renew,
            Tick: self._tick,
            Cancel: self._cancel,
            CancelPath: self._cancel_path,
            CancelFlow: self._cancel_flow,
            Redrive: self._redrive,
            Discard: self._discard,
            Delete: self._delete,
            Report: self._report,
            Log: self._log,
            Update: self._update,
            Amend: self._amend,
            Draw: self._draw,
            Peek: self._peek,
            Push: self._push,
            Pull: self._pull,
            Pause: self._pause,
            Resume: self._resume,
            Close: self._close,
            Reopen: self._reopen,
            Follow: self._follow_events,
            SetLimit: self._set_limit,
            DropLimit: self._drop_limit,
            PutSchedule: self._put_schedule,
            DropSchedule: self._drop_schedule,
            PauseSchedule: self._pause_schedule,
            ResumeSchedule: self._resume_schedule,
            ListSchedules: self._list_schedules,
            DueSchedules: self._due_schedules,
            Weigh: self._weigh,
            Get: partial(answers.get, self),
            Fetch: partial(answers.fetch, self),
            List: partial(answers.list_records, self),
            CountRecords: partial(answers.count_records, self),
            ListUsers: partial(answers.list_users, self),
            ListDead: partial(answers.list_dead, self),
            ListFlow: partial(answers.list_flow, self),
            CountFlow: partial(answers.count_flow, self),
            CountEdges: partial(answers.count_edges, self),
            Why: partial(answers.why, self),
            Tree: partial(answers.tree, self),
            CountJobs: partial(answers.count_jobs, self),
            CanDequeue: partial(answers.can_dequeue, self),
            ListLimits: partial(answers.list_limits, self),
            CountPending: partial(answers.count_pending, self),
            ListWeights: partial(answers.list_weights, self),
        }

    def apply(self, operation: Operation[Reply], now_ms: int) -> Reply:
        """
        Answer one operation.

        Args:
            now_ms: ms since the epoch; a time before an earlier one counts as that one.

        Raises:
            QueueHintError: as the operation says; nothing was changed.
        """
        check_limits(operation)
        self._see_time(now_ms)
        self.ledger.begin_step()
        return cast("Reply", self._handlers[type(operation)](operation))

    def _see_time(self, now_ms: int) -> None:
        if now_ms > self.now_ms:
            self.now_ms = self.course.now_ms = self.ledger.limits.now_ms = now_ms
            self.ledger.journal.see_time(now_ms)

    def begin_epoch(self, token: int, reap_from_ms: int) -> None:
        """
        Begin a new history of tokens, as a store does that was restarted.

        Args:
            token: what the next tokens count up from, greater than every earlier one.
            reap_from_ms: until then nothing is reaped, for nobody could renew.
        """
        self._token = token
        self.course.reap_from_ms = reap_from_ms

    def end_leases(self, now_ms: int) -> None:
        """
        Let every lease end now, and the presence of every waiting caller: all who held them are known to be dead.

        They are reaped in what follows from the next operation.

        Complexity: O(n log n) of the leases.
        """
        self._see_time(now_ms)
        for job in self.ledger.timers.of(TimerKind.LEASE):
            self.ledger.set_lease(job, self.now_ms)

    def await_ends(self, job_ids: Iterable[str]) -> None:
        """Note that somebody waits for jobs: the records of those that are unfinished are kept a minute at least."""
        for job_id in job_ids:
            job = self.ledger.jobs.get(job_id)
            if job is not None and not job.is_over:
                self.ledger.awaited.add(job_id)

    @property
    def token(self) -> int:
        """The newest token there is."""
        return self._token

    @property
    def next_ms(self) -> int | None:
        """When something comes to be due; now, while something is left over."""
        if self.ledger.leftovers:
            return self.now_ms
        next_ms = self._next_timer_ms()
        if not self.timetable:
            return next_ms
        return min((at for at in (next_ms, self.timetable.next_ms(self.now_ms)) if at is not None), default=None)

    def _next_timer_ms(self) -> int | None:
        """Return when a job's timer comes up, or a limit is looked at again."""
        ledger = self.ledger
        next_ms = ledger.timers.next_ms()
        look_ms = ledger.limits.next_ms() if ledger.limits.meters else None
        return next_ms if look_ms is None or (next_ms is not None and next_ms < look_ms) else look_ms

    # --- producers -----------------------------------------------------------------------------------------------

    def _enqueue(self, operation: Enqueue) -> Enqueued:
        specs = operation.jobs
        if operation.firing is not None:
            self.timetable.check_firing(operation.firing)
        submission = Submission(self.ledger, self.closed, operation)
        submission.check()
        start = self._start_of(operation) if operation.staged is not None else None
        self._follow()
        jobs, now_ms = self.ledger.jobs, self.now_ms
        for job in submission.elsewhere:
            # Nobody knows of it, and whoever asks for it now has asked for it anew.
            if jobs.get(job.id) is job:
                self.course.drop(job)
        enqueued = []
        for spec in specs:
            is_plain = spec.key is None and spec.presence_ms is None and not spec.depends_on and start is None
            if is_plain and spec.id not in jobs:
                job = self.ledger.admit(spec, now_ms)
                self.enqueued += 1
                enqueued.append(EnqueuedJob(job.id, job.number, job.state, True))
            else:
                enqueued.append(self._enqueue_special(spec, submission, start))
        if start is not None:
            for each in enqueued:
                if each.created:
                    jobs[each.id].note().came = self.ledger.last_number
        if operation.firing is not None:
            self.timetable.fire(operation.firing, enqueued[-1].id if enqueued else None)
        return Enqueued(tuple(enqueued), self._more())

    def _start_of(self, operation: Enqueue) -> Job:
        """Return the start of a submission in parts, which waits for its commit anew."""
        start_id = f"{START_MARK}{operation.staged}"
        start = self.ledger.jobs.get(start_id)
        if start is None:
            flow = operation.jobs[0].flow if operation.jobs else None
            start = self.ledger.open_start(start_id, flow, self.now_ms)
        self.ledger.keep_start(start, self.now_ms + STAGED_KEPT_MS)
        return start

    def _enqueue_special(self, spec: JobSpec, submission: Submission, start: Job | None) -> EnqueuedJob:
        """Enqueue what may be there already, by its id or by its key, what waits for others or for its own caller."""
        ledger = self.ledger
        existing = submission.existing(spec)
        after = None
        if existing is None and spec.key is not None:
            newest = ledger.keys.newest(spec.key)
            if newest is not None:
                if newest.is_fresh:
                    existing = newest
                    if spec.on_conflict == "replace":
                        ledger.respec(newest, attrs.evolve(spec, id=newest.id), self.now_ms)
                elif spec.on_conflict == "after":
                    after = newest
        if existing is not None:
            token = existing.token if existing.spec.presence_ms is not None else None
            return EnqueuedJob(existing.id, existing.number, existing.state, False, token)
        job = self._admit(spec, submission, start, after)
        if spec.presence_ms is not None:
            job.token = self._next_token()
            ledger.set_lease(job, self.now_ms + spec.presence_ms)
        return EnqueuedJob(job.id, job.number, job.state, True, job.token)

    def _admit(self, spec: JobSpec, submission: Submission, start: Job | None, after: Job | None) -> Job:
        """Take in a new job, with its edges."""
        ledger, now_ms = self.ledger, self.now_ms
        needs = needs_of(spec)
        if start is not None:
            return ledger.stage(spec, now_ms, needs, start)
        self.enqueued += 1
        blocked, felled_by = self.course.judge(needs, submission.ids)
        if felled_by is not None:
            job = ledger.set_aside(spec, now_ms, needs)
            self.course.fell_by(job, felled_by)
            return job
        if after is not None and after.id not in dict(needs):
            blocked = (*blocked, (after.id, AFTER))
        return ledger.admit(spec, now_ms, needs=needs, blocked=blocked)

    def _commit(self, operation: Commit) -> Committed:
        start = self.ledger.jobs.get(START_MARK + operation.staged)
        if start is None or start.is_over:
            raise FlowNotFoundError(operation.staged)
        ledger = self.ledger
        if operation.flow is not None and ledger.edges.count(start.id) and ledger.flows.visible(operation.flow):
            raise DuplicateFlowError(operation.flow)
        staged = self.ledger.commit(start, self.now_ms)
        self.enqueued += staged
        ledger.leftovers.append(CommitSweep(start, ledger.last_number))
        self._follow()
        return Committed(staged, self._more())

    def _draw(self, operation: Draw) -> Drawn:
        self._drawn += operation.count
        return Drawn(self._drawn - operation.count + 1)

    def _peek(self, _operation: Peek) -> Drawn:
        return Drawn(self._drawn + 1)

    def _cancel(self, operation: Cancel) -> Judged:
        cause = operation.reason or "canceled"
        verdicts: list[tuple[Verdict, JobState | None]] = []
        for job_id in operation.ids:
            job = self._find(job_id)
            if job is None:
                verdicts.append((UNKNOWN, None))
            elif job.is_over:
                verdicts.append((REFUSED, job.state))
            else:
                self.course.cancel(job, cause)
                verdicts.append((REQUESTED if job.state is STARTED else DONE, job.state))
        self._follow()
        return Judged(tuple(verdicts), self._more())

    def _cancel_path(self, operation: CancelPath) -> SweptPath:
        ledger = self.ledger
        # The cancellation takes a number itself: what comes after it, by enqueue or redrive, is not covered.
        ledger.last_number += 1
        cause = operation.reason or "canceled"
        sweep = CancelSweep((operation.path,), ledger.last_number, cause, ledger.last_seq)
        ledger.leftovers.append(sweep)
        self._follow()
        number = None if sweep.is_over else sweep.leave_tally(self.shared)
        return SweptPath(self._more(), sweep.reached, number)

    def _cancel_flow(self, operation: CancelFlow) -> Swept:
        ledger = self.ledger
        ledger.last_number += 1
        cause = operation.reason or "canceled"
        ledger.leftovers.append(CancelFlowSweep(operation.flow, ledger.last_number, cause, ledger.last_number))
        self._follow()
        return Swept(self._more())

    def _redrive(self, operation: Redrive) -> Judged:
        jobs, verdicts = self._dead(operation.ids, QUEUED)
        self._follow()
        for job in sorted(jobs, key=lambda job: job.number):
            self.course.redrive(job, downstream=operation.downstream)
        return Judged(verdicts, self._more())

    def _discard(self, operation: Discard) -> Judged:
        jobs, verdicts = self._dead(operation.ids, CANCELED)
        for job in jobs:
            self.course.discard(job)
        self._follow()
        return Judged(verdicts, self._more())

    def _delete(self, operation: Delete) -> Judged:
        versions = operation.versions or repeat(None)
        verdicts = tuple([self._drop(*item) for item in zip(operation.ids, versions, strict=False)])
        self._follow()
        return Judged(verdicts, self._more())

    def _drop(self, job_id: str, version: int | None) -> tuple[Verdict, JobState | None]:
        job = self._find(job_id)
        if job is None:
            return UNKNOWN, None
        if version is not None and version != job.version:
            return STALE, job.state
        if not self.course.delete(job):
            return REFUSED, job.state
        return DONE, None

    def _dead(
        self, ids: tuple[str, ...], target: JobState
    ) -> tuple[list[Job], tuple[tuple[Verdict, JobState | None], ...]]:
        """Sort out which of the jobs named are on the dead shelf; from here on nothing prunes those."""
        jobs: dict[str, Job] = {}
        verdicts: list[tuple[Verdict, JobState | None]] = []
        for job_id in ids:
            job = self._find(job_id)
            if job is None:
                verdicts.append((UNKNOWN, None))
            elif job.state is not FAILED or (target is QUEUED and job.spec.presence_ms is not None):
                verdicts.append((REFUSED, job.state))
            else:
                jobs[job_id] = job
                self.ledger.drop_timer(job)
                verdicts.append((DONE, target))
        return list(jobs.values()), tuple(verdicts)

    # --- workers -------------------------------------------------------------------------------------------------

    def _exchange(self, operation: Exchange) -> Exchanged:
        verdicts = tuple([self._settle(outcome) for outcome in operation.settle])
        self._follow()
        self._see(operation)
        grants = self._claim(operation) if operation.limit and operation.pools else []
        untold = self.ledger.untold.pop(operation.worker, None) if self.ledger.untold else None
        is_due = self.timetable.is_due(self.now_ms)
        return Exchanged(verdicts, tuple(grants), tuple(untold) if untold else (), self._more(), is_due)

    def _settle(self, outcome: Outcome) -> Verdict:
        job = self.ledger.jobs.get(outcome.job_id)
        if job is None or job.state is not STARTED or not _proves(outcome.token, job.token):
            return LOST
        self.settled += 1
        kind, course = outcome.kind, self.course
        if kind is SUCCEEDED:
            if outcome.result is not None:
                job.result = outcome.result
            course.end(job, FINISHED, None)
        elif job.cancel is not None:
            course.end(job, CANCELED, job.cancel)
        elif kind is OutcomeKind.FAILED:
            course.fail(job, outcome.error, outcome.delay_ms, final=outcome.final)
        elif kind is OutcomeKind.DISCARDED:
            course.end(job, CANCELED, outcome.reason or "discarded")
        elif job.spec.presence_ms is not None:
            # Only its caller could start it again, and the caller has left.
            course.end(job, CANCELED, "waiter_lost")
        elif kind is OutcomeKind.LOST:
            course.lose(job, outcome.error)
        elif kind is OutcomeKind.CHILDREN:
            course.await_children(job, outcome)
        else:
            job.attempts -= 1
            if kind is OutcomeKind.SNOOZED:
                course.back_off(job, outcome.delay_ms, EventKind.SNOOZED)
            elif kind is OutcomeKind.RELEASED:
                self.ledger.put_back(job, None, EventKind.RELEASED)
            else:
                strangers = self.ledger.strangers.get(job.id, 0)
                pause_ms = min(STRANGER_PAUSE_MS << min(strangers, 16), STRANGER_PAUSE_MAX_MS)
                self.ledger.put_back(job, self.now_ms + pause_ms, EventKind.RELEASED, "unknown_task")
                self.ledger.strangers[job.id] = strangers + 1
        return DONE

    def _claim(self, operation: Exchange) -> list[Grant]:
        """Claim jobs of those a worker is there for, then of those it helps."""
        grants: list[Grant] = []
        names = self.ledger.ready.rotate(operation.pools)
        self._claim_of(operation, operation.users, list(names), grants)
        if operation.steal and not self._cut:
            self._claim_of(operation, None if operation.steal == ANYONE else operation.steal, names, grants)
        self.started += len(grants)
        return grants

    def _claim_of(
        self, operation: Exchange, among: tuple[str | None, ...] | None, names: list[str], grants: list[Grant]
    ) -> None:
        """Take jobs of some users, or of all, from the pools in rotation; *names* is used up."""
        ledger = self.ledger
        ready: ReadyQueue = ledger.ready
        now_ms, limit, worker = self.now_ms, operation.limit, operation.worker
        lease_until_ms = now_ms + operation.lease_ms
        limits = ledger.limits
        turn = 0
        while names and len(grants) < limit:
            job = ready.take(names[turn % len(names)], among)
            if job is None:
                del names[turn % len(names)]
                continue
            turn += 1
            is_put_aside = True
            if ledger.parked and (path := ledger.paused_at(job)) is not None:
                ledger.park(job, path)
            elif limits.meters and (gauge := limits.stops(job)) is not None:
                limits.park(job, gauge)
            else:
                is_put_aside = False
            if is_put_aside:
                self._units -= 1
                if self._units <= 0:
                    self._cut = True
                    break
                continue
            token = self._next_token()
            ledger.start(job, worker, token, lease_until_ms, now_ms)
            if job.losses:
                job.note().to_begin = operation.announces and job.is_on_last_life
            if job.notes is not None:
                job.notes.loop_blocked_ms = None
            grants.append(Grant(job.spec, token, job.attempts, job.losses, lease_until_ms))

    def is_served(self, pool: str, user: str | None) -> bool:
        """Say whether a worker has asked for a user's jobs in a pool lately."""
        since_ms = self.now_ms - POOL_SEEN_MS
        return any(ms is not None and ms >= since_ms for ms in (self.seen.get(pool), self.seen.get((pool, user))))

    def count_unserved(self) -> int:
        """Return how many ready jobs no worker has asked for lately; O(pools and users asked for)."""
        ready, since_ms = self.ledger.ready, self.now_ms - POOL_SEEN_MS
        served = {asked for asked, ms in self.seen.items() if ms >= since_ms}
        unserved = sum([size for pool, size in ready.sizes().items() if pool not in served])
        some = [asked for asked in served if isinstance(asked, tuple) and asked[0] not in served]
        return unserved - sum([ready.size(pool, (user,)) for pool, user in some])

    def _see(self, operation: Exchange) -> None:
        """Remember which pools, or users of them, are served, for `why`; what was not asked for lately is forgotten."""
        seen, now_ms, among = self.seen, self.now_ms, operation.among
        asked: Iterable[tuple[str, str | None] | str] = (
            operation.pools if among is None else product(operation.pools, among)
        )
        for each in asked:
            if seen.get(each) != now_ms:
                seen.pop(each, None)
                seen[each] = now_ms
        while seen and seen[oldest := next(iter(seen))] < now_ms - POOL_SEEN_MS:
            del seen[oldest]

    def _renew(self, operation: Renew) -> Renewed:
        verdicts = self.extend(operation.leases, operation.lease_ms, self.now_ms)
        for (job_id, _), verdict in zip(operation.leases, verdicts, strict=True):
            if verdict is LOST:
                continue
            job = self.ledger.jobs[job_id]
            if operation.begun and job.notes is not None:
                job.notes.to_begin = False
            if operation.blocked_ms:
                job.note().loop_blocked_ms = self.now_ms - operation.blocked_ms
            elif job.notes is not None:
                job.notes.loop_blocked_ms = None
            if verdict is CANCELED_VERDICT:
                self.ledger.tell(job)
        self._follow()
        return Renewed(tuple(verdicts), self._more())

    def extend(self, leases: Sequence[tuple[str, int]], lease_ms: int, now_ms: int) -> list[Verdict]:
        """
        Extend leases and do nothing else: nothing follows, nobody is told. For a backend that renews its own.

        Returns:
            One verdict for each, as of `Renewed`.
        """
        self._see_time(now_ms)
        verdicts = []
        for job_id, token in leases:
            job = self.ledger.jobs.get(job_id)
            waits = job is not None and job.state is QUEUED and job.spec.presence_ms is not None
            if job is None or not (waits or job.state is STARTED) or not _proves(token, job.token):
                verdicts.append(LOST)
                continue
            self.ledger.set_lease(job, self.now_ms + lease_ms)
            verdicts.append(DONE if job.cancel is None else CANCELED_VERDICT)
        return verdicts

    def _report(self, operation: Report) -> Noted:
        job = self._held(operation.job_id, operation.token)
        if job is not None:
            job.note().progress = operation.progress
            job.version += 1
        return Noted(LOST if job is None else DONE)

    def _log(self, operation: Log) -> Noted:
        token = operation.token
        job = self._find(operation.job_id) if token is None else self._held(operation.job_id, token)
        if job is None:
            return Noted(UNKNOWN if token is None else LOST)
        job.log(operation.lines)
        job.version += 1
        return Noted(DONE)

    def _update(self, operation: Update) -> Noted:
        job = self._held(operation.job_id, operation.token)
        if job is not None:
            job.result = operation.result
            job.version += 1
        return Noted(LOST if job is None else DONE)

    def _amend(self, operation: Amend) -> Noted:
        spec, job = operation.spec, self._find(operation.spec.id)
        if job is None:
            return Noted(UNKNOWN)
        if attrs.evolve(spec, service=job.spec.service, user=job.spec.user) != job.spec:
            raise InvalidJobError(OTHER_SPEC)
        if operation.version != job.version:
            return Noted(STALE)
        if spec != job.spec:
            self.ledger.amend(job, spec)
        return Noted(DONE)

    def _held(self, job_id: str, token: int) -> Job | None:
        job = self.ledger.jobs.get(job_id)
        return job if job is not None and job.state is STARTED and _proves(token, job.token) else None

    # --- values handed on ----------------------------------------------------------------------------------------

    def _push(self, operation: Push) -> Pushed:
        self._follow()
        place = (operation.namespace, operation.key)
        until_ms = self.now_ms + operation.ttl_ms
        return Pushed(self.shared.push(place, operation.value, until_ms, self.now_ms), self._more())

    def _pull(self, operation: Pull) -> Pulled:
        return Pulled(self.shared.pull((operation.namespace, operation.key), self.now_ms))

    # --- operators -----------------------------------------------------------------------------------------------

    def _pause(self, operation: Pause) -> Marked:
        changed = operation.path not in self.ledger.parked
        if changed:
            self.ledger.parked[operation.path] = LazyHeap()
        self._follow()
        return Marked(changed, self._more())

    def _resume(self, operation: Resume) -> Marked:
        changed = operation.path in self.ledger.parked
        if changed:
            self.ledger.resume(operation.path)
        self._follow()
        return Marked(changed, self._more())

    def _close(self, operation: Close) -> Marked:
        changed = operation.path not in self.closed
        self.closed.add(operation.path)
        self._follow()
        return Marked(changed, self._more())

    def _reopen(self, operation: Reopen) -> Marked:
        changed = operation.path in self.closed
        self.closed.discard(operation.path)
        self._follow()
        return Marked(changed, self._more())

    def _set_limit(self, operation: SetLimit) -> Marked:
        changed = self.ledger.limits.set(operation.limit, self.ledger.registry.running.values())
        self._follow()
        return Marked(changed, self._more())

    def _drop_limit(self, operation: DropLimit) -> Marked:
        changed = self.ledger.limits.drop(operation.path, self.ledger.registry.running.values())
        self._follow()
        return Marked(changed, self._more())

    # --- schedules ---------------------------------------------------------------------------------------------------

    def _put_schedule(self, operation: PutSchedule) -> Marked:
        changed = self.timetable.put(operation)
        self._follow()
        return Marked(changed, self._more())

    def _drop_schedule(self, operation: DropSchedule) -> Marked:
        changed = self.timetable.drop(operation.name)
        self._follow()
        return Marked(changed, self._more())

    def _pause_schedule(self, operation: PauseSchedule) -> Marked:
        changed = self.timetable.pause(operation.name)
        self._follow()
        return Marked(changed, self._more())

    def _resume_schedule(self, operation: ResumeSchedule) -> Marked:
        changed = self.timetable.resume(operation.name, operation.version, operation.next_ms)
        self._follow()
        return Marked(changed, self._more())

    def _list_schedules(self, operation: ListSchedules) -> Schedules:
        found, following = self.timetable.page(operation.first, operation.limit)
        return Schedules(tuple(found), self.now_ms, following)

    def _due_schedules(self, operation: DueSchedules) -> Schedules:
        return Schedules(tuple(self.timetable.due(self.now_ms, operation.limit, operation.after)), self.now_ms)

    def _weigh(self, operation: Weigh) -> Marked:
        weights, user, weight = self.ledger.ready.weights, operation.user, operation.weight
        changed = weights.get(user, 1) != weight
        if changed and user not in weights and len(weights) >= WEIGHTS_MAX:
            raise InvalidJobError(WEIGHTS_FULL)
        if weight == 1:
            weights.pop(user, None)
        else:
            weights[user] = weight
        self._follow()
        return Marked(changed, self._more())

    # --- events --------------------------------------------------------------------------------------------------

    def _follow_events(self, operation: Follow) -> Followed:
        journal = self.ledger.journal
        events, missed = journal.follow(operation.after, operation.limit)
        after = events[-1].at if events else journal.last
        return Followed(events, after, missed, after < journal.last)

    # --- what follows --------------------------------------------------------------------------------------------

    def _tick(self, _operation: Tick) -> Ticked:
        self._follow()
        return Ticked(self._more(), self.next_ms)

    def _follow(self) -> None:
        """Do leftovers, then due timers, until nothing is left or the budget is used."""
        units = self.options.budget
        self._cut = False
        leftovers, timers, trie, arrived = self.ledger.leftovers, self.ledger.timers, self.ledger.trie, self._arrived
        limits = self.ledger.limits
        while units > 0:
            if leftovers:
                item = leftovers.popleft()
                if isinstance(item, Node):
                    used, again = trie.advance(item, units, arrived)
                    for walk in arrived:
                        self.ledger.arrive(walk)
                    arrived.clear()
                else:
                    used, again = step(self.course, item, units)
                units -= used
                if again:
                    leftovers.append(item)
                continue
            due = timers.pop_due(self.now_ms)
            if due is not None:
                units -= 1 + self.course.come_up(*due)
                continue
            called = limits.come_up() if limits.meters else None
            if called is None:
                break
            units -= 1 + called
        self._units = units
        if self.shared:
            self.shared.expire(self.now_ms)

    def _more(self) -> bool:
        if self.ledger.leftovers or self._cut:
            return True
        next_ms = self._next_timer_ms()
        return next_ms is not None and next_ms <= self.now_ms

    def _find(self, job_id: str) -> Job | None:
        job = self.ledger.jobs.get(job_id)
        return None if job is None or job.gone or job.is_hidden else job

    def _next_token(self) -> int:
        self._token += 1
        return self._token


def _proves(token: object, newest: int | None) -> bool:
    """Say whether a token is that of the job's newest grant; a float that happens to be equal is not."""
    return token == newest and type(token) is int
