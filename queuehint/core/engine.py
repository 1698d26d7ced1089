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
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs

from queuehint.core import answers
from queuehint.core.admission import check_limits, check_submission
from queuehint.core.dispatch import ReadyQueue
from queuehint.core.heap import LazyHeap
from queuehint.core.ledger import Ledger
from queuehint.core.sweeps import CancelSweep, ResolveSweep, UnparkSweep
from queuehint.core.timers import TimerKind
from queuehint.core.trie import Node, Walk
from queuehint.operations import (
    BUDGET,
    Cancel,
    CancelPath,
    CanDequeue,
    Close,
    CountJobs,
    CountPending,
    Discard,
    Draw,
    Drawn,
    Enqueue,
    Enqueued,
    EnqueuedJob,
    Exchange,
    Exchanged,
    Get,
    Judged,
    ListDead,
    Log,
    Marked,
    Noted,
    Operation,
    Pause,
    Redrive,
    Renew,
    Renewed,
    Reopen,
    Report,
    Resume,
    Swept,
    Tick,
    Ticked,
    Tree,
    Verdict,
    Why,
)
from queuehint.policy import Retention
from queuehint.records import Grant, JobError, JobSpec, JobState, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queuehint.core.job import Job
    from queuehint.hint import Path

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DUE, LEASE, EXPIRY, PRUNE = TimerKind
DONE, REQUESTED, REFUSED, UNKNOWN, LOST, CANCELED_VERDICT = Verdict

STRANGER_PAUSE_MS = 5_000
STRANGER_PAUSE_MAX_MS = 300_000
ID_KEPT_MS = 600_000
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
        retention: how long records are kept.
    """

    epoch_s: int = 0
    budget: int = BUDGET
    retention: Retention = attrs.field(factory=Retention)


class Engine:
    """
    The scheduler of one namespace.

    >>> from queuehint.hint import Claim
    >>> engine = Engine()
    >>> section = JobSpec(id="a", task="edit", claims=(Claim(("doc1", "intro")),))
    >>> whole = JobSpec(id="b", task="snapshot", claims=(Claim(("doc1",)),))
    >>> _ = engine.apply(Enqueue((section, whole)), now_ms=0)
    >>> [grant.spec.id for grant in engine.apply(Exchange("w", limit=2), now_ms=0).grants]
    ['a']
    """

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.ledger = Ledger(self.options.retention)
        self.closed: set[Path] = set()
        self.pools_seen: dict[str, int] = {}
        self.enqueued = self.started = self.settled = self.lost = self.pruned = 0
        self.now_ms = 0
        self._reap_from_ms = 0
        self._drawn = 0
        self._token = self.options.epoch_s << 32
        self._units = 0
        self._cut = False
        self._arrived: list[Walk] = []
        self._handlers: dict[type[Any], Callable[[Any], Any]] = {
            Enqueue: self._enqueue,
            Exchange: self._exchange,
            Renew: self._renew,
            Tick: self._tick,
            Cancel: self._cancel,
            CancelPath: self._cancel_path,
            Redrive: self._redrive,
            Discard: self._discard,
            Report: self._report,
            Log: self._log,
            Draw: self._draw,
            Pause: self._pause,
            Resume: self._resume,
            Close: self._close,
            Reopen: self._reopen,
            Get: partial(answers.get, self),
            ListDead: partial(answers.list_dead, self),
            Why: partial(answers.why, self),
            Tree: partial(answers.tree, self),
            CountJobs: partial(answers.count_jobs, self),
            CanDequeue: partial(answers.can_dequeue, self),
            CountPending: partial(answers.count_pending, self),
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
        self.now_ms = max(self.now_ms, now_ms)
        self.ledger.ended.clear()
        return cast("Reply", self._handlers[type(operation)](operation))

    def begin_epoch(self, token: int, reap_from_ms: int) -> None:
        """
        Begin a new history of tokens, as a store does that was restarted.

        Args:
            token: what the next tokens count up from, greater than every earlier one.
            reap_from_ms: until then nothing is reaped, for nobody could renew.
        """
        self._token = token
        self._reap_from_ms = reap_from_ms

    @property
    def next_ms(self) -> int | None:
        """When something is due; now, while something is left over."""
        return self.now_ms if self.ledger.leftovers else self.ledger.timers.next_ms()

    # --- producers -----------------------------------------------------------------------------------------------

    def _enqueue(self, operation: Enqueue) -> Enqueued:
        specs = operation.jobs
        check_submission(self.ledger, self.closed, specs)
        self._follow()
        jobs, now_ms, created = self.ledger.jobs, self.now_ms, self.ledger.last_number
        enqueued = []
        for spec in specs:
            if spec.key is not None or spec.presence_ms is not None or spec.id in jobs:
                enqueued.append(self._enqueue_special(spec))
            else:
                job = self.ledger.admit(spec, now_ms, after=None)
                enqueued.append(EnqueuedJob(job.id, job.number, job.state, True))
        self.enqueued += self.ledger.last_number - created
        return Enqueued(tuple(enqueued), self._more())

    def _enqueue_special(self, spec: JobSpec) -> EnqueuedJob:
        """Enqueue what may be there already, by its id or by its key, or what waits for its own caller."""
        ledger = self.ledger
        existing = ledger.jobs.get(spec.id)
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
        job = ledger.admit(spec, self.now_ms, after=after)
        if spec.presence_ms is not None:
            job.token = self._next_token()
            ledger.set_lease(job, self.now_ms + spec.presence_ms)
        return EnqueuedJob(job.id, job.number, job.state, True, job.token)

    def _draw(self, operation: Draw) -> Drawn:
        self._drawn += operation.count
        return Drawn(self._drawn - operation.count + 1)

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
                self._cancel_job(cause, job)
                verdicts.append((REQUESTED if job.state is STARTED else DONE, job.state))
        self._follow()
        return Judged(tuple(verdicts), self._more())

    def _cancel_path(self, operation: CancelPath) -> Swept:
        ledger = self.ledger
        # The cancellation takes a number itself: what comes after it, by enqueue or redrive, is not covered.
        ledger.last_number += 1
        cancel = partial(self._cancel_job, operation.reason or "canceled")
        ledger.leftovers.append(CancelSweep(ledger, (operation.path,), ledger.last_number, cancel))
        self._follow()
        return Swept(self._more())

    def _cancel_job(self, cause: str, job: Job) -> int:
        """Cancel an unfinished job at once, or ask the one that runs to stop; return the gates left."""
        if job.state is not STARTED:
            return self._end(job, CANCELED, cause)
        if job.cancel is None:
            self.ledger.ask_to_stop(job, cause)
        return 0

    def _redrive(self, operation: Redrive) -> Judged:
        jobs, verdicts = self._dead(operation.ids, QUEUED)
        self._follow()
        for job in sorted(jobs, key=lambda job: job.number):
            self.ledger.redrive(job, self.now_ms)
        return Judged(verdicts, self._more())

    def _discard(self, operation: Discard) -> Judged:
        jobs, verdicts = self._dead(operation.ids, CANCELED)
        for job in jobs:
            self.ledger.discard(job, self.now_ms)
        self._follow()
        return Judged(verdicts, self._more())

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
        self._see_pools(operation.pools)
        grants = self._claim(operation) if operation.limit and operation.pools else []
        untold = self.ledger.untold.pop(operation.worker, None) if self.ledger.untold else None
        return Exchanged(verdicts, tuple(grants), tuple(untold) if untold else (), self._more())

    def _settle(self, outcome: Outcome) -> Verdict:
        job = self.ledger.jobs.get(outcome.job_id)
        if job is None or job.state is not STARTED or not _proves(outcome.token, job.token):
            return LOST
        self.settled += 1
        kind = outcome.kind
        if kind is OutcomeKind.FINISHED:
            job.result = outcome.result
            self._end(job, FINISHED, None)
        elif job.cancel is not None:
            self._end(job, CANCELED, job.cancel)
        elif kind is OutcomeKind.FAILED:
            self._fail(job, outcome)
        elif kind is OutcomeKind.DISCARDED:
            self._end(job, CANCELED, outcome.reason or "discarded")
        elif job.spec.presence_ms is not None:
            # Only its caller could start it again, and the caller has left.
            self._end(job, CANCELED, "waiter_lost")
        elif kind is OutcomeKind.LOST:
            self._lose(job, outcome.error)
        else:
            job.attempts -= 1
            if kind is OutcomeKind.SNOOZED:
                self._back_off(job, outcome.delay_ms)
            elif kind is OutcomeKind.RELEASED:
                self.ledger.put_back(job, None)
            else:
                strangers = self.ledger.strangers.get(job.id, 0)
                pause_ms = min(STRANGER_PAUSE_MS << min(strangers, 16), STRANGER_PAUSE_MAX_MS)
                self.ledger.put_back(job, self.now_ms + pause_ms)
                self.ledger.strangers[job.id] = strangers + 1
        return DONE

    def _fail(self, job: Job, outcome: Outcome) -> None:
        self._record_error(job, outcome.error)
        policy = job.spec.policy
        if outcome.final or job.attempts >= policy.max_attempts or job.spec.presence_ms is not None:
            self._die(job, "failed")
        else:
            self._back_off(job, outcome.delay_ms)

    def _lose(self, job: Job, error: JobError | None) -> int:
        """Count a loss; the job is ready again at its old place, or dead."""
        self._record_error(job, error)
        job.attempts -= 1
        job.losses += 1
        self.lost += 1
        if job.losses >= job.spec.policy.max_losses:
            return self._die(job, "worker_lost")
        self.ledger.put_back(job, None)
        return 0

    def _record_error(self, job: Job, error: JobError | None) -> None:
        if error is not None:
            job.note().errors.append(attrs.evolve(error, attempt=job.attempts, at_ms=self.now_ms))

    def _back_off(self, job: Job, delay_ms: int) -> None:
        """Let a job wait for its next attempt, on its place or off it."""
        policy = job.spec.policy
        again_ms = self.now_ms + delay_ms
        if policy.on_retry == "yield":
            self.ledger.postpone(job, again_ms)
        elif delay_ms <= 0:
            self.ledger.put_back(job, None)
        else:
            self.ledger.put_back(job, again_ms)
            if delay_ms > policy.max_hold_ms:
                self.ledger.hold_until(job, self.now_ms + policy.max_hold_ms)

    def _die(self, job: Job, cause: str) -> int:
        """End a job FAILED and do with its place what it asked for; return the gates left."""
        on_dead = job.spec.policy.on_dead
        left = self._end(job, FAILED, cause, keep_place=on_dead != "continue")
        if on_dead == "cancel_behind" and job.walk is not None:
            ledger = self.ledger
            ledger.last_number += 1
            paths = tuple(walk.path for walk in job.walks)
            cancel = partial(self._cancel_job, f"behind the dead job {job.id}")
            ledger.leftovers.append(CancelSweep(ledger, paths, ledger.last_number, cancel, behind=job))
        return left

    def _end(self, job: Job, state: JobState, cause: str | None, *, keep_place: bool = False) -> int:
        left = self.ledger.end(job, state, cause, self.now_ms, keep_place=keep_place)
        if self.ledger.edges.has_dependents(job):
            self.ledger.leftovers.append(ResolveSweep(self.ledger, job, lambda: self.now_ms))
        return left

    def _claim(self, operation: Exchange) -> list[Grant]:
        ledger = self.ledger
        ready: ReadyQueue = ledger.ready
        names = ready.rotate(operation.pools)
        grants: list[Grant] = []
        now_ms, limit, worker = self.now_ms, operation.limit, operation.worker
        lease_until_ms = now_ms + operation.lease_ms
        turn = 0
        while names and len(grants) < limit:
            job = ready.take(names[turn % len(names)])
            if job is None:
                del names[turn % len(names)]
                continue
            turn += 1
            if ledger.parked and (path := ledger.paused_at(job)) is not None:
                ledger.park(job, path)
                self._units -= 1
                if self._units <= 0:
                    self._cut = True
                    break
                continue
            token = self._next_token()
            ledger.start(job, worker, token, lease_until_ms, now_ms)
            grants.append(Grant(job.spec, token, job.attempts, job.losses, lease_until_ms))
        self.started += len(grants)
        return grants

    def is_served(self, pool: str) -> bool:
        """Say whether a worker has asked for jobs of a pool lately."""
        seen_ms = self.pools_seen.get(pool)
        return seen_ms is not None and seen_ms >= self.now_ms - POOL_SEEN_MS

    def _see_pools(self, pools: tuple[str, ...]) -> None:
        """Remember which pools are served, for `why`; those not asked for lately are forgotten."""
        seen, now_ms = self.pools_seen, self.now_ms
        for pool in pools:
            if seen.get(pool) != now_ms:
                seen.pop(pool, None)
                seen[pool] = now_ms
        while seen and seen[oldest := next(iter(seen))] < now_ms - POOL_SEEN_MS:
            del seen[oldest]

    def _renew(self, operation: Renew) -> Renewed:
        verdicts = self.extend(operation.leases, operation.lease_ms, self.now_ms)
        for (job_id, _), verdict in zip(operation.leases, verdicts, strict=True):
            if verdict is CANCELED_VERDICT:
                self.ledger.tell(self.ledger.jobs[job_id])
        self._follow()
        return Renewed(tuple(verdicts), self._more())

    def extend(self, leases: Sequence[tuple[str, int]], lease_ms: int, now_ms: int) -> list[Verdict]:
        """
        Extend leases and do nothing else: nothing follows, nobody is told. For a backend that renews its own.

        Returns:
            One verdict for each, as of `Renewed`.
        """
        self.now_ms = max(self.now_ms, now_ms)
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
        job = self._held(operation.job_id, operation.token)
        if job is not None:
            job.log(operation.lines)
            job.version += 1
        return Noted(LOST if job is None else DONE)

    def _held(self, job_id: str, token: int) -> Job | None:
        job = self.ledger.jobs.get(job_id)
        return job if job is not None and job.state is STARTED and _proves(token, job.token) else None

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
            self.ledger.leftovers.append(UnparkSweep(self.ledger, operation.path))
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

    # --- what follows --------------------------------------------------------------------------------------------

    def _tick(self, _operation: Tick) -> Ticked:
        self._follow()
        return Ticked(self._more(), self.next_ms)

    def _follow(self) -> None:
        """Do leftovers, then due timers, until nothing is left or the budget is used."""
        units = self.options.budget
        self._cut = False
        leftovers, timers, trie, arrived = self.ledger.leftovers, self.ledger.timers, self.ledger.trie, self._arrived
        while units > 0:
            if leftovers:
                item = leftovers.popleft()
                if isinstance(item, Node):
                    used, again = trie.advance(item, units, arrived)
                    for walk in arrived:
                        self.ledger.arrive(walk)
                    arrived.clear()
                else:
                    used, again = item.step(units)
                units -= used
                if again:
                    leftovers.append(item)
                continue
            due = timers.pop_due(self.now_ms)
            if due is None:
                break
            units -= 1 + self._come_up(*due)
        self._units = units

    def _more(self) -> bool:
        if self.ledger.leftovers or self._cut:
            return True
        next_ms = self.ledger.timers.next_ms()
        return next_ms is not None and next_ms <= self.now_ms

    def _come_up(self, kind: TimerKind, job: Job) -> int:
        """Do what is due; return the gates visited or left."""
        if kind is EXPIRY:
            job.expiry = None
            return self._end(job, CANCELED, "expired")
        job.timer = None
        if kind is LEASE:
            return self._reap(job)
        if kind is PRUNE:
            return self._prune(job)
        return self._promote(job)

    def _promote(self, job: Job) -> int:
        """Take up a job whose time has come, or whose back-off has held its place long enough."""
        ledger = self.ledger
        if job.state is QUEUED:
            if job.due_ms is not None and job.due_ms > self.now_ms:
                return ledger.postpone(job, job.due_ms)
            ledger.offer(job)
            return 0
        if job.blocked:
            ledger.defer(job)
            return 0
        return ledger.queue(job, self.now_ms)

    def _reap(self, job: Job) -> int:
        """Take a job from a worker that did not renew its lease."""
        if self._reap_from_ms > self.now_ms:
            self.ledger.set_lease(job, self._reap_from_ms)
            return 0
        if job.spec.presence_ms is not None:
            return self._end(job, CANCELED, "waiter_lost")
        if job.cancel is not None:
            self.lost += 1
            return self._end(job, CANCELED, job.cancel)
        return self._lose(job, JobError(type="worker_lost", message=f"worker {job.worker} did not renew its lease"))

    def _prune(self, job: Job) -> int:
        """Drop a record that was kept long enough, free a place it held; its id is kept for ten minutes at least."""
        ledger = self.ledger
        left = 0
        if job.is_placed:
            left = ledger.free(job)
        assert job.ended_ms is not None
        if job.ended_ms + ID_KEPT_MS > self.now_ms:
            ledger.forget(job, job.ended_ms + ID_KEPT_MS)
        else:
            ledger.prune(job)
            self.pruned += 1
        return left

    def _find(self, job_id: str) -> Job | None:
        job = self.ledger.jobs.get(job_id)
        return None if job is None or job.gone else job

    def _next_token(self) -> int:
        self._token += 1
        return self._token


def _proves(token: object, newest: int | None) -> bool:
    """Say whether a token is that of the job's newest grant; a float that happens to be equal is not."""
    return token == newest and type(token) is int
