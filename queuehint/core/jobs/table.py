"""
All jobs and the structures that know them, changed together.

The engine decides which move a job makes; the ledger makes it: state, counts, gates, registry, ready queue, timers
and indexes change in one method, and nothing else changes any of them. `check` states how they agree.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from queuehint.core.jobs.priority import HEIRS_OF_STEP_MAX, PriorityInheritance
from queuehint.core.jobs.states import MOVES, check_move
from queuehint.core.structures.edges import KEPT, START, DependencySets
from queuehint.core.structures.event_log import Journal
from queuehint.core.structures.heap import LazyHeap
from queuehint.core.structures.indexes import FlowIndex, KeyIndex, LatePathIndex, PathIndex
from queuehint.core.structures.job import DIGEST_FROM, Job
from queuehint.core.structures.leftovers import CommitSweep, ReleaseSweep, ResolveSweep, UnparkSweep
from queuehint.core.structures.limits import Limits
from queuehint.core.structures.ready_queue import ReadyQueue
from queuehint.core.structures.record_index import Catalog
from queuehint.core.structures.registry import ActiveExecutions
from queuehint.core.structures.timers import TimerKind, Timers
from queuehint.core.structures.trie import Node, PathTrie, Walk
from queuehint.values.event import EventKind
from queuehint.values.hint import key_of
from queuehint.values.policy import Retention
from queuehint.values.records import OVER, JobSpec, JobState

if TYPE_CHECKING:
    from queuehint.core.structures.heap import Entry
    from queuehint.core.structures.job import Needs
    from queuehint.core.structures.leftovers import Leftover
    from queuehint.values.hint import Path

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DUE, LEASE, EXPIRY, PRUNE = TimerKind

AWAITED_KEPT_MS = 60_000
"""The record of a job that somebody waited for when it ended is kept so long at least: it may be read meanwhile."""
ENQUEUED, BEGUN = EventKind.ENQUEUED, EventKind.STARTED
"""Looked up once: a member of an enumeration takes longer to find than to count."""
END = {FINISHED: EventKind.FINISHED, FAILED: EventKind.FAILED, CANCELED: EventKind.CANCELED}
"""What an end is called."""


class Ledger:
    """
    Every job of one namespace.

    ``ended`` holds the ids that became over in the last operation, for whoever waits for results.
    ``strangers`` holds the unfinished jobs whose last worker did not know their task, with how many in a row did not;
    ``backing_off`` those that wait for their next attempt on their places. ``holding`` counts the dead jobs that
    hold theirs. ``deferred`` holds the jobs that wait for others, by number. ``paths`` knows the unfinished jobs by
    their paths, ``holds`` the dead ones that hold their places, ``past`` those that are over and whose records are
    kept. ``awaited`` holds the ids of unfinished jobs that somebody waits for. ``hidden`` counts the jobs of
    submissions in parts that are not committed, ``committing`` the submissions that are, and have jobs yet to be let
    go. ``journal`` notes every move.
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
        self.parked: dict[Path, LazyHeap[Job]] = {}
        self.limits = Limits(self.ready, self.paths, self.leftovers)
        self.counts = dict.fromkeys(JobState, 0)
        self.journal = Journal()
        self.untold: dict[str, dict[str, None]] = {}
        self.ended: list[str] = []
        self.awaited: set[str] = set()
        self.strangers: dict[str, int] = {}
        self.backing_off: dict[str, None] = {}
        self.holding = 0
        self.holds = PathIndex()
        self.hidden = self.committing = 0
        self.last_number = 0
        self.last_seq = 0

    def begin_step(self) -> None:
        """Forget what belongs to the operation before."""
        self.ended.clear()
        self.inheritance.heirs_left = HEIRS_OF_STEP_MAX

    # --- the life of a job, move by move -------------------------------------------------------------------------

    def admit(self, spec: JobSpec, now_ms: int, *, needs: Needs = (), blocked: Needs = ()) -> Job:
        """
        Take in a new job: SCHEDULED if it is due later, DEFERRED if it waits for others, else QUEUED.

        Args:
            needs: the jobs it depends on, with the fates of the edges.
            blocked: those it waits for: some of *needs*, and others.
        """
        job = self._make(spec, now_ms)
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
            self._place(job, now_ms)
        self.counts[job.state] += 1
        self.catalog.add(job)
        self.journal.note(job, ENQUEUED, None)
        return job

    def _make(self, spec: JobSpec, now_ms: int) -> Job:
        self.last_number = number = self.last_number + 1
        job = Job(spec, number, QUEUED, now_ms)
        self.jobs[job.id] = job
        if spec.claims:
            self.paths.add(job)
        if spec.key is not None:
            self.keys.add(spec.key, job)
        if spec.flow is not None and not job.is_start:
            self.flows.add(job)
        return job

    def bind(self, job: Job, needs: Needs, blocked: Needs) -> None:
        """Give a job its edges."""
        if needs:
            notes = job.note()
            notes.needs, notes.holds = needs, True
            for dependency_id, _ in needs:
                self.edges.keep(job, dependency_id)
        for dependency_id, edge in blocked:
            self.edges.add(job, dependency_id, edge)

    # --- submissions in parts --------------------------------------------------------------------------------------

    def open_start(self, job_id: str, flow: str | None, now_ms: int) -> Job:
        """Begin a submission in parts, which is known to nobody."""
        job = self._make(JobSpec(id=job_id, task="start", flow=flow), now_ms)
        job.state = DEFERRED
        return job

    def keep_start(self, start: Job, until_ms: int) -> None:
        """Wait for the next part, or the commit, until *until_ms*."""
        if start.expiry is not None:
            self.timers.drop(start.expiry)
        start.expiry = self.timers.add(EXPIRY, until_ms, start)

    def stage(self, spec: JobSpec, now_ms: int, needs: Needs, start: Job) -> Job:
        """Take in a job of a submission in parts: known to nobody, it waits for the commit."""
        job = self._make(spec, now_ms)
        job.state = DEFERRED
        notes = job.note()
        notes.start, notes.needs = start, needs
        self.hidden += 1
        self.edges.add(job, start.id, START)
        return job

    def set_aside(self, spec: JobSpec, now_ms: int, needs: Needs) -> Job:
        """Take in a job that is about to be canceled: DEFERRED, without edges."""
        job = self._make(spec, now_ms)
        job.state = DEFERRED
        job.note().needs = needs
        self.deferred[job.number] = job
        self.counts[DEFERRED] += 1
        self.catalog.add(job)
        self.journal.note(job, ENQUEUED, None)
        return job

    def commit(self, start: Job, now_ms: int) -> int:
        """Have the jobs of a submission in parts be there, all at once; return how many."""
        staged = self.edges.count(start.id)
        # The commit takes a number itself: what came after it, by enqueue or commit, is not what these depend on.
        self.last_number = start.since = self.last_number + 1
        self._close_start(start, FINISHED, now_ms)
        self.hidden -= staged
        self.committing += 1
        self.counts[DEFERRED] += staged
        return staged

    def expire(self, start: Job, now_ms: int) -> None:
        """Give up a submission in parts that was never committed."""
        start.expiry = None
        self._close_start(start, CANCELED, now_ms)

    def _close_start(self, start: Job, state: JobState, now_ms: int) -> None:
        if start.expiry is not None:
            self.timers.drop(start.expiry)
            start.expiry = None
        start.state = state
        start.ended_ms = now_ms

    def unstage(self, job: Job) -> int:
        """Let go a job of a submission that was committed: it counts as enqueued then. Return when that was."""
        notes = job.note()
        start, notes.start = notes.start, None
        assert start is not None
        notes.came = start.since
        assert start.ended_ms is not None
        self.edges.close(job, start.id)
        self.deferred[job.number] = job
        job.enqueued_ms = start.ended_ms
        self.catalog.add(job)
        self.journal.note(job, ENQUEUED, None)
        return start.ended_ms

    def begin(self, job: Job, needs: Needs, blocked: Needs, commit_ms: int, now_ms: int) -> int:
        """Let a DEFERRED job without edges wait for its time or others, or take its place; return the gates visited."""
        self.bind(job, needs, blocked)
        self.edges.late_added += bool(needs)
        self.set_time(job, commit_ms)
        if job.due_ms is not None:
            self._become(job, SCHEDULED)
            job.timer = self.timers.add(DUE, job.due_ms, job)
            self.journal.note(job, EventKind.SCHEDULED, DEFERRED)
            return 0
        return 0 if blocked else self.queue(job, now_ms)

    def remove(self, job: Job) -> None:
        """Drop a job of a submission that was never committed, or the start of one, as if it had never been."""
        if job.notes is not None:
            self.edges.release(job)
        if job.spec.claims:
            self.paths.remove(job)
        if not job.is_start:
            self.hidden -= 1
            if job.spec.flow is not None:
                self.flows.remove(job)
        self.edges.bury(job.id)
        self.awaited.discard(job.id)
        del self.jobs[job.id]

    def set_time(self, job: Job, now_ms: int) -> None:
        """Work out when a job is due and when it expires, from its spec."""
        spec = job.spec
        due_ms = spec.run_at_ms
        if spec.delay_ms:
            due_ms = now_ms + spec.delay_ms
        job.due_ms = due_ms if due_ms is not None and due_ms > now_ms else None
        if job.expiry is not None:
            self.timers.drop(job.expiry)
            job.expiry = None
        within_ms = spec.policy.start_within_ms
        if within_ms is not None:
            job.expiry = self.timers.add(EXPIRY, (job.due_ms or now_ms) + within_ms, job)

    def queue(self, job: Job, now_ms: int) -> int:
        """Give a job its place: -> QUEUED; return the gates visited."""
        old = job.state
        self._become(job, QUEUED)
        self.journal.note(job, EventKind.QUEUED, old)
        return self._place(job, now_ms)

    def _place(self, job: Job, now_ms: int) -> int:
        job.due_ms = None
        job.queued_ms = now_ms
        self.last_seq = seq = self.last_seq + 1
        # Equal ints are one object where they may be: a million jobs wait with two numbers each.
        job.seq = job.number if job.number == seq else seq
        visited = missing = 0
        last = None
        for claim in job.spec.claims:
            walk = Walk(job, claim)
            if last is None:
                job.walk = walk
            else:
                last.next = walk
            last = walk
            visited += self.trie.place(walk)
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
        """Note that a walk was granted after a wait; its job is ready when it was the last."""
        job: Job = walk.job
        job.missing -= 1
        if not job.missing:
            self.ready.add(job)

    def start(self, job: Job, worker: str, token: int, lease_until_ms: int, now_ms: int) -> None:
        """Grant a ready job, just taken from the ready queue, to a worker: -> STARTED."""
        self.registry.enter(job)
        self._become(job, STARTED)
        timers = self.timers
        if job.timer is not None:
            timers.drop(job.timer)
        if job.expiry is not None:
            timers.drop(job.expiry)
            job.expiry = None
        job.timer = timers.add(LEASE, lease_until_ms, job)
        if self.limits.meters:
            self.limits.enter(job)
        job.attempts += 1
        job.token = token
        job.worker = worker
        self.journal.note(job, BEGUN, QUEUED)
        job.started_ms = now_ms
        if job.first_ms is None:
            job.first_ms = now_ms

    def set_lease(self, job: Job, until_ms: int) -> None:
        """Move the end of a lease, or of a waiting caller's presence."""
        if job.timer is not None:
            self.timers.drop(job.timer)
        job.timer = self.timers.add(LEASE, until_ms, job)

    def ask_to_stop(self, job: Job, cause: str) -> None:
        """Note that a STARTED job is to be canceled; its worker is told at its next exchange or renewal."""
        assert job.worker is not None
        job.cancel = cause
        job.version += 1
        self.untold.setdefault(job.worker, {})[job.id] = None

    def tell(self, job: Job) -> None:
        """Note that a job's worker knows that it is to stop, or need not know any more."""
        assert job.worker is not None
        untold = self.untold.get(job.worker)
        if untold is not None and job.id in untold:
            del untold[job.id]
            if not untold:
                del self.untold[job.worker]

    def put_back(self, job: Job, again_ms: int | None, kind: EventKind, cause: str | None = None) -> None:
        """Return a STARTED job to its place: -> QUEUED, ready at once or, if given, after a back-off."""
        self._stop(job)
        self._become(job, QUEUED)
        self.journal.note(job, kind, STARTED, cause)
        if again_ms is None:
            job.due_ms = None
            self.ready.add(job)
        else:
            job.due_ms = again_ms
            job.timer = self.timers.add(DUE, again_ms, job)
            self.backing_off[job.id] = None

    def hold_until(self, job: Job, look_ms: int) -> None:
        """Look at a job in back-off earlier than its back-off ends, to see that it does not hold its place too long."""
        assert job.timer is not None
        self.timers.drop(job.timer)
        job.timer = self.timers.add(DUE, look_ms, job)

    def postpone(self, job: Job, due_ms: int, kind: EventKind, cause: str | None = None) -> int:
        """Take a job's place away until it is due: -> SCHEDULED; return the gates left."""
        old = job.state
        if old is STARTED:
            self._stop(job)
        self.backing_off.pop(job.id, None)
        left = self.vacate(job)
        self._become(job, SCHEDULED)
        self.journal.note(job, kind, old, cause)
        self.drop_timer(job)
        job.due_ms = due_ms
        job.timer = self.timers.add(DUE, due_ms, job)
        return left

    def defer(self, job: Job) -> None:
        """Let a due job wait for its edges: -> DEFERRED."""
        self._become(job, DEFERRED)
        self.journal.note(job, EventKind.DEFERRED, SCHEDULED)
        job.due_ms = None

    def await_children(self, job: Job, children: Needs) -> None:
        """Let a STARTED job give up its lease and its place, and wait for its children: -> DEFERRED."""
        self._stop(job)
        self.vacate(job)
        self._become(job, DEFERRED)
        self.journal.note(job, EventKind.DEFERRED, STARTED)
        notes = job.note()
        notes.is_parent = True
        held = dict(notes.needs) if notes.holds else {}
        for child_id, edge in children:
            self.edges.add(job, child_id, edge[:3] + KEPT if child_id in held else edge)

    def offer(self, job: Job) -> None:
        """Offer a QUEUED job again that has all its gates."""
        job.due_ms = None
        self.backing_off.pop(job.id, None)
        self.ready.add(job)

    def end(self, job: Job, state: JobState, cause: str | None, now_ms: int, *, keep_place: bool = False) -> int:
        """
        End a job: -> FINISHED, FAILED or CANCELED; return the gates left.

        Its key, timers, index entries and offers are given up in this step; its place too unless it is kept.
        """
        old = job.state
        if job.block is None:
            # It was committed, and is over before it was let go.
            self.catalog.add(job)
            self.journal.note(job, ENQUEUED, None)
        if old is STARTED:
            self._stop(job)
        elif job.ready is not None:
            self._withdraw(job)
        if self.backing_off:
            self.backing_off.pop(job.id, None)
        if self.strangers:
            self.strangers.pop(job.id, None)
        self.drop_timer(job)
        if job.expiry is not None:
            self.timers.drop(job.expiry)
            job.expiry = None
        spec = job.spec
        if spec.claims:
            self.paths.remove(job)
            self.past.add(job)
        if spec.key is not None:
            self.keys.remove(spec.key, job)
        self._become(job, state)
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
        """Free the place of a dead job that held it; return the gates left."""
        self.holding -= 1
        self.holds.remove(job)
        return self.vacate(job)

    def discard(self, job: Job, now_ms: int) -> int:
        """Take a dead job off the shelf: FAILED -> CANCELED; return the gates left."""
        left = self.free(job) if job.walk is not None else 0
        self._become(job, CANCELED)
        self.journal.note(job, EventKind.CANCELED, FAILED, "discarded")
        self.edges.end_telling(job)
        del self.dead[job.number]
        job.cause = "discarded"
        self.drop_timer(job)
        job.timer = self.timers.add(PRUNE, now_ms + self.kept_ms(job.spec, CANCELED), job)
        return left

    def redrive(self, job: Job, now_ms: int) -> None:
        """Bring a dead job back: FAILED -> QUEUED, to the place it held or to a new one."""
        self._become(job, QUEUED)
        del self.dead[job.number]
        self.drop_timer(job)
        self.last_number = job.since = self.last_number + 1
        self._renew(job)
        self.journal.note(job, EventKind.REDRIVEN, FAILED)
        if job.walk is not None:
            self.holding -= 1
            job.queued_ms = now_ms
            self.holds.remove(job)
            self.ready.add(job)
        else:
            self._place(job, now_ms)

    def revive(self, job: Job, blocked: Needs, now_ms: int) -> int:
        """Bring back a job canceled because of another: CANCELED -> DEFERRED or QUEUED; return the gates visited."""
        assert not job.blocked
        self.edges.rise(job)
        self._become(job, DEFERRED if blocked else QUEUED)
        self.drop_timer(job)
        self.last_number = job.since = self.last_number + 1
        self._renew(job)
        self.journal.note(job, EventKind.REDRIVEN, CANCELED)
        self.bind(job, job.note().needs, blocked)
        within_ms = job.spec.policy.start_within_ms
        if within_ms is not None and job.first_ms is None:
            job.expiry = self.timers.add(EXPIRY, now_ms + within_ms, job)
        return 0 if blocked else self._place(job, now_ms)

    def _renew(self, job: Job) -> None:
        """Have an over job begin anew: index it, and forget its attempts and its end."""
        self.edges.end_telling(job)
        job.attempts = job.losses = 0
        job.cause = job.cancel = job.ended_ms = job.result = None
        if job.notes is not None:
            job.notes.is_parent = job.notes.to_begin = False
            job.notes.child_failed = None
        if job.spec.claims:
            self.past.remove(job)
            self.paths.add(job)
        if job.spec.key is not None:
            self.keys.add(job.spec.key, job)

    def keep(self, job: Job, until_ms: int) -> None:
        """Keep an over job's record longer."""
        job.timer = self.timers.add(PRUNE, until_ms, job)

    def forget(self, job: Job, until_ms: int, *, digest_from: int = DIGEST_FROM) -> None:
        """Drop an over job's record but its id, taken until *until_ms*, and a digest of arguments that are so large."""
        self._leave_shelf(job)
        job.gone = True
        job.result = None
        if job.notes is not None:
            old, job.notes = job.notes, None
            if old.asked is not None or old.holds or old.blocked:
                notes = job.note()
                notes.asked, notes.holds, notes.needs, notes.blocked = old.asked, old.holds, old.needs, old.blocked
        job.shorten(above=digest_from)
        job.timer = self.timers.add(PRUNE, until_ms, job)

    def prune(self, job: Job) -> None:
        """Drop an over job whose place is free and whose timer has come up."""
        self._leave_shelf(job)
        self.edges.bury(job.id)
        del self.jobs[job.id]

    def _leave_shelf(self, job: Job) -> None:
        if not job.gone:
            self.journal.note(job, EventKind.PRUNED, job.state)
            self.edges.rise(job)
            self.edges.end_telling(job)
            self.catalog.remove(job)
            if job.spec.claims:
                self.past.remove(job)
            if job.spec.flow is not None:
                self.flows.remove(job)
            self.counts[job.state] -= 1
            if job.state is FAILED:
                del self.dead[job.number]

    def respec(self, job: Job, spec: JobSpec, now_ms: int) -> None:
        """Give a fresh job of a key its new content; with equal claims and no new time it keeps its place."""
        self._withdraw(job)
        self.drop_timer(job)
        notes = job.note()
        if notes.asked is None:
            notes.asked = job.spec
        is_moved = spec.claims != job.spec.claims
        if is_moved:
            self.vacate(job)
            self.paths.remove(job)
        if job.spec.flow is not None:
            self.flows.remove(job)
        inherited = job.level if job.level > job.spec.priority else 0
        self.catalog.respec(job, spec)
        self.inheritance.set_level(job, max(spec.priority, inherited))
        if is_moved:
            self.paths.add(job)
        if spec.flow is not None:
            self.flows.add(job)
        self.set_time(job, now_ms)
        job.version += 1
        if job.due_ms is not None:
            due_ms = job.due_ms
            self.vacate(job)
            old = job.state
            self._become(job, SCHEDULED)
            self.journal.note(job, EventKind.SCHEDULED, old)
            job.timer = self.timers.add(DUE, due_ms, job)
        elif job.blocked:
            old = job.state
            self._become(job, DEFERRED)
            self.journal.note(job, EventKind.DEFERRED, old)
        elif not job.is_placed:
            self.queue(job, now_ms)
        elif not job.missing:
            self.ready.add(job)
        else:
            self.inheritance.inherit(job)

    def amend(self, job: Job, spec: JobSpec) -> None:
        """Give a job another service or user; a ready one joins the end of its new user's turns."""
        notes = job.note()
        if notes.asked is None:
            notes.asked = job.spec
        is_offered = job.ready is not None and job.parked is None and spec.user != job.spec.user
        is_kept_anew = job.state in OVER and spec.service != job.spec.service
        if is_offered:
            self.ready.remove(job)
        self.catalog.respec(job, spec)
        if is_offered:
            self.ready.add(job)
        if is_kept_anew:
            assert job.ended_ms is not None
            self.drop_timer(job)
            job.timer = self.timers.add(PRUNE, job.ended_ms + self.kept_ms(spec, job.state), job)
        job.version += 1

    @property
    def unfinished(self) -> int:
        """How many jobs are unfinished, those of submissions in parts included."""
        counts = self.counts
        return counts[SCHEDULED] + counts[DEFERRED] + counts[QUEUED] + counts[STARTED] + self.hidden

    def vacate(self, job: Job) -> int:
        """Give up a job's place, if it has one; return the gates left."""
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

    def paused_at(self, job: Job) -> Path | None:
        """Return the highest paused path at or above one of a job's claims."""
        for claim in job.spec.claims:
            path = claim.path
            for depth in range(len(path) + 1):
                if path[:depth] in self.parked:
                    return path[:depth]
        return None

    def park(self, job: Job, path: Path) -> None:
        """Put aside a ready job, just taken from the ready queue, until *path* is resumed."""
        job.parked = self.parked[path]
        job.ready = job.parked.push(0, job.number, job)
        if self.limits.meters:
            self.limits.left(job)

    def resume(self, path: Path) -> None:
        """Begin to offer again what was put aside by the pause of *path*."""
        self.leftovers.append(UnparkSweep(deque((self.parked.pop(path),))))

    # --- invariants ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that all structures agree; for tests, O(all)."""
        self.trie.check()
        self.registry.check()
        self.limits.check(self.registry.running.values())
        counts = dict.fromkeys(JobState, 0)
        offered = {job.id for job in self.ready.jobs()}
        parked = {job.id for heap in self.parked.values() for job in heap.items()}
        holding = 0
        released = {item.job.id for item in self.leftovers if isinstance(item, ReleaseSweep)}
        told = [item for item in self.leftovers if isinstance(item, ResolveSweep) and item.goes_on()]
        self.edges.check(self.jobs, {item.dependency.number for item in told if not item.dependency.gone})
        self.flows.check(self.jobs)
        self.catalog.check(self.jobs)
        for job_id, job in self.jobs.items():
            assert job.id == job_id
            if job.is_start:
                assert job.state is not DEFERRED or job.expiry is not None
                continue
            if not job.gone and not job.is_hidden:
                counts[job.state] += 1
            over = job.state in OVER
            assert (job.state is STARTED) == (job_id in self.registry.running)
            assert (job.ended_ms is not None) == over
            assert (job.timer is not None) or job.state in {DEFERRED, QUEUED}
            assert not over or job.expiry is None
            assert (job.state is DEFERRED) <= bool(job.blocked)
            assert not job.blocked or job.state in {SCHEDULED, DEFERRED} or job_id in released
            is_staged = job.notes is not None and job.notes.start is not None
            assert (self.deferred.get(job.number) is job) == (job.state is DEFERRED and not is_staged)
            assert job.is_placed or job.state not in {QUEUED, STARTED}
            assert not job.is_placed or job.state in {QUEUED, STARTED, FAILED}
            assert job.missing == sum(not walk.granted for walk in job.walks) or not job.is_placed
            assert len(job.walks) == (len(job.spec.claims) if job.is_placed else 0)
            assert all(walk.node is not None for walk in job.walks)
            holds = job.is_placed and job.state is FAILED
            holding += holds
            for claim in job.spec.claims:
                assert (job.number in self.holds.at(key_of(claim.path))) == holds
            assert (job_id in offered) == (job.ready is not None and job.parked is None)
            assert job_id not in parked or job.parked is not None
            back_off = job.state is QUEUED and job.timer is not None and job.spec.presence_ms is None
            assert back_off == (job_id in self.backing_off)
            assert not over or job_id not in self.strangers
            is_ready = job.state is QUEUED and not job.missing and not back_off
            assert is_ready == (job.ready is not None), f"{job_id} {job.state}"
            for claim in job.spec.claims:
                assert (job.number in self.paths.at(key_of(claim.path))) == (not over)
            assert not job.spec.claims or (job in self.past) == (over and not job.gone)
            assert (self.dead.get(job.number) is job) == (job.state is FAILED and not job.gone)
        assert counts == self.counts
        assert all(not self.jobs[job_id].is_over for job_id in self.awaited)
        levels = Counter(job.level for job in self.jobs.values() if job.is_placed)
        assert levels == Counter(dict(enumerate(self.inheritance.levels)))
        assert holding == self.holding
        assert self.committing == sum(isinstance(item, CommitSweep) for item in self.leftovers)
        assert self.hidden == sum(job.is_hidden and not job.is_start for job in self.jobs.values())
        keyed = [job for job in self.jobs.values() if job.spec.key is not None and not job.is_over]
        assert sorted(job.number for job in keyed) == sorted(job.number for job in self.keys)
        timed = [job for job in self.jobs.values() for entry in (job.timer, job.expiry) if entry is not None]
        assert sorted(job.number for job in timed) == sorted(job.number for job in self.timers.entries())

    def kept_ms(self, spec: JobSpec, state: JobState) -> int:
        """Return how long the record of a job that ends in *state* is kept."""
        if spec.policy.retention_ms is not None:
            return spec.policy.retention_ms
        if spec.service is not None:
            return self.retention.of_service_ms(spec.service)
        if state is FINISHED:
            return self.retention.finished_ms
        return self.retention.failed_ms if state is FAILED else self.retention.canceled_ms

    def goes_soon(self, job: Job) -> bool:
        """Say whether a job's record may be dropped sooner after its end than one that somebody waits for."""
        return any(self.kept_ms(job.spec, state) < AWAITED_KEPT_MS for state in OVER)

    # --- what moves share ----------------------------------------------------------------------------------------

    def _become(self, job: Job, state: JobState) -> None:
        old = job.state
        if state not in MOVES[old]:
            check_move(job.id, old, state)
        self.counts[old] -= 1
        self.counts[state] += 1
        if old is DEFERRED and state is not DEFERRED:
            self.deferred.pop(job.number, None)
        elif state is DEFERRED:
            self.deferred[job.number] = job
        job.state = state
        job.version += 1
        assert job.block is not None
        job.block.states = None

    def _stop(self, job: Job) -> None:
        """Take a STARTED job out of the registry and its lease out of the timers."""
        self.registry.leave(job)
        if self.limits.meters:
            self.limits.leave(job)
        self.drop_timer(job)
        if self.strangers:
            self.strangers.pop(job.id, None)
        if job.cancel is not None:
            self.tell(job)
        job.worker = None

    def _withdraw(self, job: Job) -> None:
        """Take back a job's offer, wherever it is."""
        if job.ready is None:
            return
        if job.parked is None:
            self.ready.remove(job)
        else:
            job.parked.discard(job.ready)
            job.parked = job.ready = None
        if self.limits.meters:
            self.limits.left(job)

    def drop_timer(self, job: Job) -> None:
        """Forget when a job was to be looked at."""
        entry: Entry | None = job.timer
        if entry is not None:
            job.timer = None
            self.timers.drop(entry)
