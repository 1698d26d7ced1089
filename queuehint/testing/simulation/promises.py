"""
Safety of a store, checked after every step from the state transitions of its jobs alone.

For each job the result of its transitions is kept: state, place, token, lease expiry. It comes from the events of the
engine alone, so that the two can be compared; the order of places is the order in which jobs became QUEUED.

A step costs O(its transitions). Every twenty steps `check_all` compares all pairs and recounts all structures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from queuehint import operations as op
from queuehint.core.structures.event_log import Journal
from queuehint.core.structures.job import START_MARK
from queuehint.core.work import is_timer_due
from queuehint.testing.invariants import check_cycles, check_edges, check_order, check_ready, placed
from queuehint.testing.model.places import conflict, shape
from queuehint.testing.model.starts import StartRules
from queuehint.testing.trace import TraceEvent
from queuehint.values.event import EventKind
from queuehint.values.record import OVER, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.core.engine import Engine
    from queuehint.core.structures.job import Job
    from queuehint.testing.trace.values import Kind
    from queuehint.values.hint import Claim
    from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DONE, LOST = op.Verdict.DONE, op.Verdict.LOST
ENQUEUED, BEGUN, PRUNED, REDRIVEN = EventKind.ENQUEUED, EventKind.STARTED, EventKind.PRUNED, EventKind.REDRIVEN
GIVEN_BACK = frozenset({EventKind.RETRIED, EventKind.SNOOZED, EventKind.RELEASED, EventKind.LOST})
"""Events that lead a job from STARTED back to QUEUED: it keeps its place."""

Move = tuple[EventKind, "Job", JobState | None, JobState, int]


class Recorder(Journal):
    """
    A journal of every move: the event, the job, its states before and after, and its place.

    Args:
        trace: where events are written down too, unless it is None.
    """

    __slots__ = ("moves", "trace")

    def __init__(self, trace: list[TraceEvent] | None = None) -> None:
        super().__init__()
        self.moves: list[Move] = []
        self.trace = trace

    def note(self, job: Job, kind: EventKind, old: JobState | None, cause: str | None = None) -> None:
        """Note a move."""
        super().note(job, kind, old, cause)
        if kind is EventKind.PROGRESSED:
            return
        self.moves.append((kind, job, old, job.state, job.seq))
        if self.trace is not None:
            self.trace.append(
                TraceEvent(
                    kind=cast("Kind", str(kind)),
                    job=job.id,
                    at_ms=self.now_ms,
                    worker=job.worker if job.state is JobState.STARTED else None,
                    token=job.token,
                    old=None if old is None else str(old),
                    state=None if kind is PRUNED else str(job.state),
                    claims=job.spec.claims,
                    cause=cause or None,
                )
            )


class Book:
    """State of one job, derived from its events."""

    __slots__ = ("claims", "ended_ms", "enqueued_ms", "id", "lease_until_ms", "spec", "state", "token", "worker")

    def __init__(self, job: Job, now_ms: int) -> None:
        self.id = job.id
        self.enqueued_ms = now_ms
        self.ended_ms = 0
        """When it has ended last, if it has."""
        self.spec = job.spec
        self.claims: tuple[Claim, ...] = shape(job.spec.claims)
        self.state: JobState | None = None
        self.token: int | None = None
        self.worker: str | None = None
        self.lease_until_ms = 0


class Promises:
    """
    The books of one history.

    ``books`` holds the jobs whose records are kept, ``placed`` those that have a place, in order of place. ``ids`` are
    all that were ever enqueued. ``timeouts`` says when the flow of a job times out, unless it was redriven after that.
    ``starts`` are the pauses and limits in force, ``keys`` holds the newest job of each key.
    """

    def __init__(self) -> None:
        self.books: dict[str, Book] = {}
        self.placed: dict[str, Book] = {}
        self.started: dict[str, Book] = {}
        self.counts = dict.fromkeys(JobState, 0)
        self.ids: dict[str, None] = {}
        self.timeouts: dict[str, int] = {}
        self.starts = StartRules()
        self.keys: dict[str, str] = {}
        self.parts: dict[str, set[str]] = {}
        """The jobs of submissions in parts that were neither committed nor withdrawn."""
        self.withdrawn: set[str] = set()
        """The jobs of submissions that were withdrawn: none ever becomes visible."""
        self.token = -1
        self._lingering: dict[str, Job] = {}
        """Dead jobs that keep their places until they have canceled those behind them, which no move tells of."""
        """No claim was ever shared: every job that may start has to be ready."""

    # --- each step -----------------------------------------------------------------------------------------------

    def expect(self, operation: op.Operation[Any]) -> list[bool]:
        """Return the settlements, or renewals, of an operation to be accepted, computed before it is applied."""
        proofs: Sequence[tuple[str, int]]
        if type(operation) is op.Exchange:
            proofs = [(outcome.job_id, outcome.token) for outcome in operation.settle]
        elif type(operation) is op.Renew:
            proofs = operation.leases
        else:
            return []
        started = self.started
        return [job_id in started and started[job_id].token == token for job_id, token in proofs]

    def see(
        self, engine: Engine, operation: op.Operation[Any], reply: Any, expected: list[bool], moves: list[Move]
    ) -> None:
        """Record the effects of an operation."""
        settled: Sequence[str] = ()
        lease_ms = 0
        if type(operation) is op.Exchange:
            lease_ms = operation.lease_ms
            if operation.settle:
                settled = [outcome.job_id for outcome in operation.settle]
                for outcome, verdict, proven in zip(operation.settle, reply.verdicts, expected, strict=True):
                    assert (verdict is DONE) == proven, (
                        f"job {outcome.job_id} was settled with token {outcome.token}, and the answer was {verdict}; "
                        f"its newest is {self._token(outcome.job_id)}"
                    )
        elif type(operation) is op.Renew:
            for (job_id, token), verdict, proven in zip(operation.leases, reply.verdicts, expected, strict=True):
                if job_id in self.started or verdict is LOST:
                    assert (verdict is not LOST) == proven, f"the lease of {job_id}, token {token}, was {verdict}"
                if proven:
                    self.started[job_id].lease_until_ms = engine.now_ms + operation.lease_ms
        self.starts.see(operation, engine.now_ms)
        if getattr(reply, "more", True) is False:
            # All that was due is done.
            self.starts.check_pauses([pause.filter for pause in engine.table.pauses.all()], engine.now_ms)
        if isinstance(operation, op.Commit | op.Withdraw):
            self._end_parts(engine, operation, reply)
        for move in moves:
            self._follow(engine, move, settled, lease_ms)
        if type(operation) is op.Enqueue:
            self._see_enqueue(engine, operation, reply)
        if self._lingering:
            self._let_go()
        self.check(engine)
        if moves and engine.table.edges.open > 1:
            check_cycles(engine)

    def _end_parts(self, engine: Engine, operation: op.Commit | op.Withdraw, reply: Any) -> None:
        """Record the end of a submission in parts. A withdrawn one leaves no trace."""
        parts = self.parts.pop(operation.staged, set())
        if type(operation) is not op.Withdraw:
            return
        self.withdrawn |= parts
        if not reply.more:
            left = [job_id for job_id in (START_MARK + operation.staged, *parts) if job_id in engine.table.jobs]
            assert not left, f"{operation.staged} was withdrawn, and {left} are left of it"

    def _see_enqueue(self, engine: Engine, operation: op.Enqueue, reply: Any) -> None:
        now_ms = engine.now_ms
        created = [spec for spec, job in zip(operation.jobs, reply.jobs, strict=True) if job.created]
        if operation.flow_timeout_ms is not None:
            self.timeouts |= {spec.id: now_ms + operation.flow_timeout_ms for spec in created}
        unfinished = [book.spec for book in self.books.values() if book.state not in OVER]
        self.starts.check_room(operation, created, unfinished)
        if operation.staged is not None:
            self.parts.setdefault(operation.staged, set()).update([spec.id for spec in created])
            return
        for spec, made in zip(operation.jobs, reply.jobs, strict=True):
            if spec.key is None:
                continue
            if made.created:
                self._check_key(spec, now_ms)
                self.keys[spec.key] = made.id
            job = engine.table.jobs[made.id]
            if job.state is SCHEDULED and job.token is None and job.spec.max_delay_ms is not None:
                latest_ms = max(now_ms, self.books[made.id].enqueued_ms + job.spec.max_delay_ms)
                assert job.due_ms is not None
                assert job.due_ms <= latest_ms, f"job {made.id} is put off {job.due_ms - latest_ms} ms beyond max_delay"

    def _check_key(self, spec: JobSpec, now_ms: int) -> None:
        """Assert that no other job held the key of a new one."""
        book = self.books.get(self.keys.get(spec.key or "", ""))
        if book is None or book.id == spec.id:
            return
        key_for_ms = book.spec.policy.key_for_ms
        if book.state in OVER:
            is_free = book.token is None or key_for_ms is None or book.ended_ms + key_for_ms <= now_ms
        else:
            is_free = book.token is not None and key_for_ms is None
        assert is_free, f"job {spec.id} was enqueued, and {book.id}, which is {book.state}, has its key {spec.key}"

    def _let_go(self) -> None:
        """Forget the places of dead jobs that have canceled the later ones."""
        for job_id, job in list(self._lingering.items()):
            if job.state is not FAILED or not job.seq:
                del self._lingering[job_id]
                if job.state is FAILED:
                    self.placed.pop(job_id, None)

    def _token(self, job_id: str) -> int | None:
        book = self.books.get(job_id)
        return book.token if book is not None else None

    def _follow(self, engine: Engine, move: Move, settled: Sequence[str], lease_ms: int) -> None:
        kind, job, old, new, seq = move
        job_id = job.id
        if kind is ENQUEUED:
            assert job_id not in self.books, f"job {job_id} was enqueued twice"
            assert job_id not in self.withdrawn, f"job {job_id} was withdrawn before its commit, and is there"
            book = self.books[job_id] = Book(job, engine.now_ms)
            self.ids[job_id] = None
        else:
            book = self.books[job_id]
            assert book.state is old, f"job {job_id} is {book.state} and moves from {old}"
            assert old is not None
            self.counts[old] -= 1
        until_ms = self.timeouts.get(job_id)
        if until_ms is not None and (kind is PRUNED or (kind is REDRIVEN and until_ms <= engine.now_ms)):
            del self.timeouts[job_id]
        if kind is PRUNED:
            del self.books[job_id]
            self.placed.pop(job_id, None)
            return
        self.counts[new] += 1
        if new in OVER:
            book.ended_ms = engine.now_ms
        if old is STARTED:
            del self.started[job_id]
            now_ms = engine.now_ms
            if job_id not in settled:
                assert book.lease_until_ms <= now_ms, (
                    f"job {job_id} was taken from {book.worker} {book.lease_until_ms - now_ms} ms before its lease ends"
                )
        book.state = new
        if kind is BEGUN:
            self._start(engine, book, job, lease_ms)
        elif new is QUEUED:
            if kind not in GIVEN_BACK:
                if job_id not in self.placed or kind is not REDRIVEN or (job_id in self._lingering and not seq):
                    self.placed.pop(job_id, None)
                    book.spec, book.claims = job.spec, shape(job.spec.claims)
                    self.placed[job_id] = book
            else:
                assert job_id in self.placed, f"job {job_id} was given back and has no place"
        elif new is not FAILED or job.spec.policy.on_dead == "continue" or not job.spec.claims:
            self.placed.pop(job_id, None)
        elif job.spec.policy.on_dead == "cancel_behind":
            self._lingering[job_id] = job

    def _start(self, engine: Engine, book: Book, job: Job, lease_ms: int) -> None:
        token = job.token
        assert token is not None
        assert token > self.token, f"job {job.id} was granted with token {token} after token {self.token}"
        self.token = book.token = token
        book.worker = job.worker
        book.lease_until_ms = engine.now_ms + lease_ms
        assert job.id in self.placed, f"job {job.id} was started without a place"
        is_before = True
        claims = book.claims
        for other in self.placed.values():
            if other is book:
                is_before = False
            elif is_before:
                assert not conflict(other.claims, claims) or self._is_let_go(other), (
                    f"job {job.id} was started before {other.id}, which was placed before it, is {other.state} and "
                    "conflicts with it"
                )
            elif other.state is STARTED:
                assert not conflict(other.claims, claims), f"jobs {other.id} and {job.id} run at once and conflict"
        book.spec = job.spec
        self.starts.check_start(book.spec, [other.spec for other in self.started.values()], engine.now_ms)
        self.started[job.id] = book

    def _is_let_go(self, book: Book) -> bool:
        job = self._lingering.get(book.id)
        return job is not None and not job.seq

    def check(self, engine: Engine) -> None:
        """Assert the properties visible without all jobs: conservation, and no wait without a blocker."""
        table, counts = engine.table, self.counts
        if table.leftovers:
            committing = sum(map(self._is_committing, table.jobs.values()))
            counts = {**counts, DEFERRED: counts[DEFERRED] + committing}
        assert counts == table.counts, f"by their moves there are {counts}, and the store counts {table.counts}"
        assert len(self.started) == len(table.registry.running)
        if counts[QUEUED] and not counts[STARTED] and not (table.leftovers or table.backing_off or table.holding):
            assert table.ready.sizes() or table.pauses or table.limits.limiters, (
                f"{counts[QUEUED]} jobs are QUEUED, nothing runs, and none is ready"
            )

    # --- now and then ----------------------------------------------------------------------------------------------

    def check_all(self, engine: Engine) -> None:
        """Assert I1 to I8 by visiting all jobs; O(all)."""
        table = engine.table
        engine.check()
        check_order(engine)
        check_cycles(engine)
        if not table.leftovers:
            if not table.pauses and not table.limits.limiters:
                check_ready(engine)
            check_edges(engine)
            self._check_timeouts(engine)
        running = [(job.id, job.token) for job in table.registry.running.values()]
        assert sorted(running) == sorted((book.id, book.token) for book in self.started.values())
        kept = {
            job.id: job.state
            for job in table.jobs.values()
            if not (job.gone or job.is_hidden or self._is_committing(job))
        }
        assert kept == {book.id: book.state for book in self.books.values()}
        order = [job.id for job in placed(engine)]
        assert order == list(self.placed), f"places are in order {order} and were taken in order {list(self.placed)}"
        for job in table.jobs.values():
            assert job.is_hidden or self._is_committing(job) or job.id in self.ids

    def _check_timeouts(self, engine: Engine) -> None:
        """Assert that all jobs of timed-out flows have ended, or are requested to stop, without leftovers."""
        for job_id, until_ms in self.timeouts.items():
            if until_ms <= engine.now_ms and not is_timer_due(engine.state) and self.books[job_id].state not in OVER:
                assert engine.table.jobs[job_id].cancel, f"job {job_id} goes on, and its flow has timed out"

    def _is_committing(self, job: Job) -> bool:
        """Return whether a job was committed and is not yet let go: it is there, and no move has told of it."""
        extras = job.extras
        return extras is not None and extras.start is not None and not job.is_hidden and job.id not in self.books
