"""
The job table and the transitions of unfinished jobs: one method per transition keeps all structures consistent.

`lifecycle` decides which transition a job makes; the table makes it: state, counts, gates, registry, ready queue,
timers and indexes change in one call. The functions of `staging` (before a commit), `archive` (after the end) and
`revisions` (of the spec) are transitions too, and `settled` repairs gates; nothing else changes the table. `invariants`
asserts how all agree.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from queuehint.core.jobs.pauses import Pauses
from queuehint.core.jobs.priority import HEIRS_OF_STEP_MAX, PriorityInheritance
from queuehint.core.jobs.states import MOVES, check_move
from queuehint.core.structures.edges import KEPT, DependencySets
from queuehint.core.structures.event_log import Journal
from queuehint.core.structures.indexes import FlowIndex, KeyIndex, LatePathIndex, PathIndex
from queuehint.core.structures.job import Job
from queuehint.core.structures.limits import Limits
from queuehint.core.structures.ready_queue import ReadyQueue
from queuehint.core.structures.record_index import Catalog
from queuehint.core.structures.registry import ActiveExecutions
from queuehint.core.structures.timers import TimerKind, Timers
from queuehint.core.structures.trie import Node, PathTrie, Walk
from queuehint.values.event import EventKind
from queuehint.values.policy import Retention
from queuehint.values.record import OVER, JobState
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from queuehint.core.jobs.pauses import Pause
    from queuehint.core.structures.job import Needs
    from queuehint.core.structures.leftovers import Leftover
    from queuehint.values.hint import Path

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DUE, LEASE, EXPIRY, PRUNE, _RESUME = map(int, TimerKind)

AWAITED_KEPT_MS = 60_000
"""The least retention of a job whose end a caller waited for, so that the caller can read the record."""
ENQUEUED, BEGUN = EventKind.ENQUEUED, EventKind.STARTED
"""Looked up once: a member of an enumeration takes longer to find than to count."""
END = {FINISHED: EventKind.FINISHED, FAILED: EventKind.FAILED, CANCELED: EventKind.CANCELED}
"""The event of each end."""


class JobTable:
    """
    Every job of one namespace.

    By id: ``jobs``; ``undelivered_cancellations`` by worker; ``unknown_task_counts``, how many workers in a row did not
    know the task of an unfinished job; ``backing_off``, the jobs that wait at their places for the next attempt;
    ``awaited``, the unfinished jobs whose end a caller waits for; ``ended``, the jobs that ended in this operation.

    By number: ``dead``, the FAILED jobs; ``deferred``, the jobs that wait for others.

    By path: ``paths`` of unfinished jobs, ``holds`` of dead jobs that hold their places, ``past`` of jobs that are
    over and whose records are kept; ``closed``, the closed paths, each with the id of its last job, None if it was
    closed without one.

    Counted: ``counts`` by state; ``holding``, the dead jobs that hold their places; ``hidden``, the jobs of
    submissions that are not committed; ``committing``, the committed submissions whose jobs are being released.
    """

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.jobs: dict[str, Job] = {}
        self.dead: SortedDict[int, Job] = SortedDict()
        self.keys = KeyIndex()
        self.leftovers: deque[Node | Leftover] = deque()
        self.trie = PathTrie(self.leftovers)
        self.registry = ActiveExecutions(self.trie)
        self.ready = ReadyQueue()
        self.inheritance = PriorityInheritance(self.trie, self.ready)
        self.timers = Timers()
        self.paths = PathIndex()
        self.past = LatePathIndex()
        self.catalog = Catalog()
        self.edges = DependencySets()
        self.deferred: SortedDict[int, Job] = SortedDict()
        self.flows = FlowIndex()
        self.pauses = Pauses(self.timers, self.leftovers)
        self.closed: dict[Path, str | None] = {}
        self.limits = Limits(self.ready, self.paths, self.leftovers)
        self.counts = dict.fromkeys(JobState, 0)
        self.journal = Journal()
        self.undelivered_cancellations: dict[str, dict[str, None]] = {}
        self.ended: list[str] = []
        self.awaited: set[str] = set()
        self.unknown_task_counts: dict[str, int] = {}
        self.backing_off: dict[str, None] = {}
        self.holding = 0
        self.holds = PathIndex()
        self.hidden = self.committing = 0
        self.last_number = 0
        self.last_seq = 0

    def begin_step(self) -> None:
        """Reset the state of one operation."""
        self.ended.clear()
        self.inheritance.heirs_left = HEIRS_OF_STEP_MAX

    # --- the life of a job, move by move -------------------------------------------------------------------------

    def admit(self, spec: JobSpec, now_ms: int, *, needs: Needs = (), blocked: Needs = ()) -> Job:
        """
        Add a new job: SCHEDULED with a later due time, DEFERRED with open dependencies, else QUEUED.

        Args:
            needs: the jobs it depends on, with the policies of the edges.
            blocked: those it waits for: some of *needs*, and others.
        """
        job = self.create(spec, now_ms)
        if needs or blocked:
            self.bind(job, needs, blocked)
        if spec.delay_ms or spec.run_at_ms is not None or spec.policy.start_within_ms is not None:
            self.set_time(job, now_ms)
        if job.due_ms is not None:
            job.state = SCHEDULED
            job.timer = self.timers.add(DUE, job.due_ms, job)
        elif blocked:
            job.state = DEFERRED
            self.deferred[job.number] = job
        else:
            self.place(job, now_ms)
        self.counts[job.state] += 1
        self.catalog.add(job)
        self.journal.note(job, ENQUEUED, None)
        return job

    def create(self, spec: JobSpec, now_ms: int) -> Job:
        """Number and index a new job, without a state visible to others."""
        self.last_number = number = self.last_number + 1
        job = Job(spec, number, QUEUED, now_ms)
        self.jobs[job.id] = job
        if spec.claims:
            self.paths.add(job)
        if spec.key is not None:
            self.keys.add(spec.key, job)
        if spec.flow is not None and not job.is_start:
            self.flows.add(job)
        if self.limits.pending and not job.is_start:
            self.limits.count(job, 1)
        return job

    def bind(self, job: Job, needs: Needs, blocked: Needs) -> None:
        """Add the edges of a job."""
        if needs:
            extras = job.need_extras()
            # Those of a submission in parts are known, and bound in slices; the first slices may be of later portions.
            if not extras.needs and not extras.more_needs:
                extras.needs = needs
            extras.holds = True
            for dependency_id, _ in needs:
                self.edges.keep(job, dependency_id)
        for dependency_id, edge in blocked:
            self.edges.add(job, dependency_id, edge)

    def set_aside(self, spec: JobSpec, now_ms: int, needs: Needs) -> Job:
        """Add a job that is canceled next: DEFERRED, without edges."""
        job = self.create(spec, now_ms)
        job.state = DEFERRED
        job.need_extras().needs = needs
        self.deferred[job.number] = job
        self.counts[DEFERRED] += 1
        self.catalog.add(job)
        self.journal.note(job, ENQUEUED, None)
        return job

    def set_time(self, job: Job, now_ms: int) -> None:
        """Compute the due time and the expiry of a job from its spec."""
        spec = job.spec
        due_ms = spec.run_at_ms
        if spec.delay_ms:
            due_ms = now_ms + spec.delay_ms
            if spec.max_delay_ms is not None:
                due_ms = min(due_ms, job.enqueued_ms + spec.max_delay_ms)
        job.due_ms = due_ms if due_ms is not None and due_ms > now_ms else None
        if job.expiry is not None:
            self.timers.drop(job.expiry)
            job.expiry = None
        within_ms = spec.policy.start_within_ms
        if within_ms is not None:
            job.expiry = self.timers.add(EXPIRY, (job.due_ms or now_ms) + within_ms, job)

    def queue(self, job: Job, now_ms: int) -> int:
        """Give a job its place: -> QUEUED. Return the gates visited."""
        old = job.state
        self.become(job, QUEUED)
        self.journal.note(job, EventKind.QUEUED, old)
        return self.place(job, now_ms)

    def place(self, job: Job, now_ms: int) -> int:
        """Put a job behind all jobs placed before. Return the gates visited."""
        job.due_ms = None
        job.queued_ms = now_ms
        self.last_seq = seq = self.last_seq + 1
        # Equal ints are one object where they may be: a million jobs wait with two numbers each.
        job.seq = job.number if job.number == seq else seq
        visited = missing = 0
        last = None
        place, claims = self.trie.place, job.spec.claims
        for claim in () if claims and claims[0].mode == "counted" else claims:
            walk = Walk(job, claim)
            if last is None:
                job.walk = walk
            else:
                last.next = walk
            last = walk
            visited += place(walk)
            if not walk.granted:
                missing += 1
        job.missing = missing
        self.inheritance.levels[job.level] += 1
        if not missing:
            self.ready.add(job)
        else:
            self.inheritance.inherit(job)
        return visited

    def arrive(self, walk: Walk) -> None:
        """Count a walk granted after a wait. Offer the job after the last one."""
        job: Job = walk.job
        job.missing -= 1
        if not job.missing:
            self.ready.add(job)

    def start(self, job: Job, worker: str, token: int, lease_until_ms: int, now_ms: int) -> None:
        """Grant a ready job, just taken from the ready queue, to a worker: -> STARTED."""
        self.registry.enter(job)
        self.become(job, STARTED)
        timers = self.timers
        if job.timer is not None:
            timers.drop(job.timer)
        if job.expiry is not None:
            timers.drop(job.expiry)
            job.expiry = None
        job.timer = timers.add(LEASE, lease_until_ms, job)
        if self.limits.limiters:
            self.limits.enter(job)
        job.attempts += 1
        job.token = token
        job.worker = worker
        if job.extras is not None:
            job.extras.progress = None
        self.journal.note(job, BEGUN, QUEUED)
        job.started_ms = now_ms
        if job.first_ms is None:
            job.first_ms = now_ms

    def set_lease(self, job: Job, until_ms: int) -> None:
        """Set the end of a lease, or of the presence of a waiting caller."""
        if job.timer is not None:
            self.timers.drop(job.timer)
        job.timer = self.timers.add(LEASE, until_ms, job)

    def ask_to_stop(self, job: Job, cause: str) -> None:
        """Request the cancellation of a STARTED job. The next exchange or renewal of its worker delivers it."""
        assert job.worker is not None
        job.cancel = cause
        job.version += 1
        self.undelivered_cancellations.setdefault(job.worker, {})[job.id] = None

    def forget_cancellation(self, job: Job) -> None:
        """Remove a delivered or obsolete cancellation."""
        assert job.worker is not None
        undelivered_cancellations = self.undelivered_cancellations.get(job.worker)
        if undelivered_cancellations is not None and job.id in undelivered_cancellations:
            del undelivered_cancellations[job.id]
            if not undelivered_cancellations:
                del self.undelivered_cancellations[job.worker]

    def put_back(self, job: Job, again_ms: int | None, kind: EventKind, cause: str | None = None) -> None:
        """Return a STARTED job to its place: -> QUEUED, ready at once or after a given back-off."""
        self._stop(job, kind)
        self.become(job, QUEUED)
        self.journal.note(job, kind, STARTED, cause)
        if again_ms is None:
            job.due_ms = None
            self.ready.add(job)
        else:
            job.due_ms = again_ms
            job.timer = self.timers.add(DUE, again_ms, job)
            self.backing_off[job.id] = None

    def hold_until(self, job: Job, look_ms: int) -> None:
        """Make the timer of a job in back-off fire at *look_ms*, to vacate its place after `max_hold`."""
        assert job.timer is not None
        self.timers.drop(job.timer)
        job.timer = self.timers.add(DUE, look_ms, job)

    def postpone(self, job: Job, due_ms: int, kind: EventKind, cause: str | None = None) -> int:
        """Vacate the place of a job until its due time: -> SCHEDULED. Return the gates left."""
        old = job.state
        if old is STARTED:
            self._stop(job, kind)
        self.backing_off.pop(job.id, None)
        left = self.vacate(job)
        self.become(job, SCHEDULED)
        self.journal.note(job, kind, old, cause)
        self.drop_timer(job)
        job.due_ms = due_ms
        job.timer = self.timers.add(DUE, due_ms, job)
        return left

    def defer(self, job: Job) -> None:
        """Make a due job wait for its edges: -> DEFERRED."""
        self.become(job, DEFERRED)
        self.journal.note(job, EventKind.DEFERRED, SCHEDULED)
        job.due_ms = None

    def await_children(self, job: Job, children: Needs, *, again: bool = False) -> None:
        """End the lease of a STARTED job, vacate its place, and bind the job to its children: -> DEFERRED."""
        self._stop(job, EventKind.DEFERRED)
        self.vacate(job)
        self.become(job, DEFERRED)
        self.journal.note(job, EventKind.DEFERRED, STARTED)
        extras = job.need_extras()
        extras.is_parent = not again
        if again:
            self.edges.hold(job, children)
        for child_id, edge in children:
            is_held = extras.holds and self.edges.depends(job, child_id)
            self.edges.add(job, child_id, edge[:3] + KEPT if is_held else edge)

    def offer(self, job: Job) -> None:
        """Offer a QUEUED job again after its back-off, with all gates granted."""
        job.due_ms = None
        self.backing_off.pop(job.id, None)
        self.ready.add(job)

    def end(self, job: Job, state: JobState, cause: str | None, now_ms: int, *, keep_place: bool = False) -> int:
        """
        End a job: -> FINISHED, FAILED or CANCELED. Return the gates left.

        Its timers, index entries and offers are removed in this step; its key and its place too unless they are kept.
        """
        old = job.state
        if self.limits.pending:
            self.limits.count(job, -1)
        if job.block is None:
            # It was committed, and ends before it was released.
            self.catalog.add(job)
            self.journal.note(job, ENQUEUED, None)
        if old is STARTED:
            self._stop(job, END[state])
        elif job.ready is not None:
            self.withdraw(job)
        if self.backing_off:
            self.backing_off.pop(job.id, None)
        if self.unknown_task_counts:
            self.unknown_task_counts.pop(job.id, None)
        if job.extras is not None:
            job.extras.refused_by = ()
        if job.timer is not None:
            self.drop_timer(job)
        if job.expiry is not None:
            self.timers.drop(job.expiry)
            job.expiry = None
        spec = job.spec
        if spec.claims:
            self.paths.remove(job)
            self.past.add(job)
        if spec.key is not None:
            if spec.policy.key_for_ms is not None and job.first_ms is not None:
                job.expiry = self.timers.add(EXPIRY, now_ms + spec.policy.key_for_ms, job)
            else:
                self.keys.remove(spec.key, job)
        self.become(job, state)
        self.journal.note(job, END[state], old, cause)
        job.cause = cause
        job.due_ms = None
        job.ended_ms = now_ms
        if state is not FINISHED:
            job.result = None
        left = 0
        if keep_place and job.walk is not None:
            self.holding += 1
            self.holds.add(job)
            self.inheritance.set_level(job, spec.priority)
        else:
            left = self.vacate(job)
        if state is FAILED:
            self.dead[job.number] = job
        kept_ms = self.kept_ms(spec, state)
        if self.awaited and job.id in self.awaited:
            self.awaited.discard(job.id)
            kept_ms = max(kept_ms, AWAITED_KEPT_MS)
        job.timer = self.timers.add(PRUNE, now_ms + kept_ms, job)
        self.ended.append(job.id)
        return left

    def free(self, job: Job) -> int:
        """Free the place held by a dead job. Return the gates left."""
        self.holding -= 1
        self.holds.remove(job)
        return self.vacate(job)

    @property
    def unfinished(self) -> int:
        """The number of unfinished jobs, including the jobs of submissions in parts."""
        counts = self.counts
        return counts[SCHEDULED] + counts[DEFERRED] + counts[QUEUED] + counts[STARTED] + self.hidden

    def vacate(self, job: Job) -> int:
        """Vacate the place of a job, if any. Return the gates left."""
        if not job.seq:
            return 0
        self.inheritance.levels[job.level] -= 1
        job.level = job.spec.priority
        job.seq = 0
        left = 0
        walk, job.walk = job.walk, None
        while walk is not None:
            left += self.trie.leave(walk)
            walk = walk.next
        return left

    # --- pauses --------------------------------------------------------------------------------------------------

    def park(self, job: Job, pause: Pause) -> None:
        """Park a ready job, just taken from the ready queue, until a pause ends."""
        job.parked = pause.parked
        job.ready = pause.parked.push(0, job.number, job)
        if self.limits.limiters:
            self.limits.job_left(job)

    def kept_ms(self, spec: JobSpec, state: JobState) -> int:
        """Return the retention of the record of a job that ends in *state*."""
        if spec.policy.retention_ms is not None:
            return spec.policy.retention_ms
        if spec.service is not None and (of_service_ms := self.retention.of_service_ms(spec.service)) is not None:
            return of_service_ms
        if state is FINISHED:
            return self.retention.finished_ms
        return self.retention.failed_ms if state is FAILED else self.retention.canceled_ms

    def goes_soon(self, job: Job) -> bool:
        """Return whether the retention of a job may be shorter than that of an awaited job."""
        return any(self.kept_ms(job.spec, state) < AWAITED_KEPT_MS for state in OVER)

    # --- what moves share ----------------------------------------------------------------------------------------

    def become(self, job: Job, state: JobState) -> None:
        """Change the state of a job after a check of the move, and count it."""
        old = job.state
        if state not in MOVES[old]:
            check_move(job.id, old, state)
        counts = self.counts
        counts[old] -= 1
        counts[state] += 1
        if old is DEFERRED and state is not DEFERRED:
            self.deferred.pop(job.number, None)
        elif state is DEFERRED:
            self.deferred[job.number] = job
        job.state = state
        job.version += 1
        assert job.block is not None
        job.block.states = None

    def _stop(self, job: Job, kind: EventKind) -> None:
        """Remove a STARTED job from the registry and its lease from the timers."""
        is_noted = kind is not EventKind.FINISHED or (job.extras is not None and bool(job.extras.past))
        if is_noted:
            job.note_attempt(kind.value, self.journal.now_ms)
        self.registry.leave(job)
        if self.limits.limiters:
            self.limits.leave(job)
        if job.timer is not None:
            self.timers.drop(job.timer)
            job.timer = None
        if self.unknown_task_counts:
            self.unknown_task_counts.pop(job.id, None)
        if job.cancel is not None:
            self.forget_cancellation(job)
        if is_noted:
            job.worker = None

    def withdraw(self, job: Job) -> None:
        """Remove a job from the ready queue, or from its parking heap."""
        if job.ready is None:
            return
        if job.parked is None:
            self.ready.remove(job)
        else:
            job.parked.discard(job.ready)
            job.parked = job.ready = None
        if self.limits.limiters:
            self.limits.job_left(job)

    def drop_timer(self, job: Job) -> None:
        """Drop the timer of a job, if any."""
        if job.timer is not None:
            self.timers.drop(job.timer)
            job.timer = None
