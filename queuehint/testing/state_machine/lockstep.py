"""An engine beside its model: every operation goes to both, and all visible state is compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from queuehint import operations as op
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.structures.job import DIGEST_FROM, START_MARK, digested
from queuehint.core.structures.trie import counts
from queuehint.errors import QueueHintError, ScheduleChangedError
from queuehint.testing.invariants import (
    check_cycles,
    check_empty,
    check_order,
    check_ready,
    check_refusal,
    placed,
    undo_marks,
)
from queuehint.testing.model.jobs import Actor
from queuehint.testing.model.places import clash, is_at_or_below, takes_place
from queuehint.testing.model.reference import ReferenceModel
from queuehint.testing.state_machine.styles import FLOWS, MINUTE, POOLS, SHARED_KEYS, SHARED_MS
from queuehint.values.hint import DEPTH_MAX, Claim, gate_key, key_of
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Retention
from queuehint.values.record import OVER, JobState
from queuehint.values.record_filter import DEAD_RECORDS, RecordFilter
from queuehint.values.report import ReasonKind, TreeNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from queuehint.core.structures.job import Job
    from queuehint.values.hint import Mode, Path

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState

RETENTION = Retention(finished=180, failed=1800, canceled=0, service=900)

_SCHEDULES = op.PutSchedule, op.ChangeSchedule
_FOLLOWS = ("dependency ", "behind ")
"""How the causes begin of what is canceled because of another job."""


def filters(path: Path, now_ms: int, jobs: Iterable[Job]) -> Iterator[RecordFilter]:
    """Yield a query of every kind, among them the children of a job and the dependents of a job."""
    parent = next((job.spec.parent for job in jobs if job.spec.parent is not None), "nobody")
    awaited = next((job_id for job in jobs for job_id in sorted(job.blocked) if job_id[0] != START_MARK), "nobody")
    yield RecordFilter(waits_for=awaited)
    yield RecordFilter(waits_for=awaited, path=path, flow="f")
    yield RecordFilter(parent=parent)
    yield RecordFilter(parent=parent, path=path, states=(QUEUED, DEFERRED, FINISHED))
    yield RecordFilter()
    yield RecordFilter(path=path)
    yield RecordFilter(user="u", path=path, states=(QUEUED, FAILED))
    yield RecordFilter(service="s", user="v")
    yield RecordFilter(states=(FINISHED, CANCELED, SCHEDULED))
    yield RecordFilter(pool="p", task="t", since_ms=now_ms - 3 * MINUTE, until_ms=now_ms)
    yield RecordFilter(states=(STARTED, QUEUED), until_ms=now_ms - MINUTE)
    yield RecordFilter(tag="x", user="u")
    yield RecordFilter(tag="y", path=path)
    yield RecordFilter(flow="f", path=path, states=(DEFERRED, QUEUED, FINISHED))


class Lockstep:
    """
    An engine beside its model: every operation goes to both, and replies are compared.

    Args:
        budget: of the engine; with a small one each operation is followed by ticks until nothing is left, and the
            model, which does everything at once, is compared then.
        retention: how long records are kept.
        now_ms: when it begins.
    """

    def __init__(self, budget: int = op.BUDGET, *, retention: Retention = RETENTION, now_ms: int = 0) -> None:
        self.cut = budget < op.BUDGET
        self.engine = Engine(EngineOptions(budget=budget, retention=retention))
        self.model = ReferenceModel(retention)
        self.model.look_ms = self._look_ms
        self.model.level_of = lambda job_id: self.engine.table.jobs[job_id].level
        self.now_ms = now_ms
        self.history: list[tuple[int, Any]] = []
        self.ended: dict[str, int] = {}

    def do(self, operation: op.Operation[Any]) -> Any:
        """Apply one operation to both and compare. Return the reply, None after an expected refusal."""
        model = self.model
        self.history.append((self.now_ms, operation))
        model.now_ms = max(model.now_ms, self.now_ms)
        refusal = model.refuses(operation)
        refused: QueueHintError | None = None
        try:
            reply = self.put(operation)
        except QueueHintError as error:
            refused = error
        if not model.knows(operation) or isinstance(refused, ScheduleChangedError):
            # No definition tells of schedules; but what is left over is done when one is changed.
            if refused is None and isinstance(operation, _SCHEDULES):
                model.catch_up()
            return None if refused is not None else reply
        assert refusal is (None if refused is None else type(refused)), f"{operation} was refused: {refused!r}"
        if refused is not None:
            check_refusal(refused, operation)
            self.compare()
            return None
        seqs = model.seqs
        model.follow(operation, reply, cut=self.cut)
        if self.cut:
            self.drain()
            model.catch_up()
            self._compare_tally(reply)
            self.adopt(seqs)
        elif isinstance(operation, op.Enqueue) and self.engine.table.leftovers:
            # What follows from the waits that it has ended is left to other calls.
            self.drain()
            model.catch_up()
        self.compare()
        return reply

    def put(self, operation: op.Operation[Reply]) -> Reply:
        """Apply an operation to the engine, and to its counterpart. Return the reply or raise the error."""
        return self.engine.apply(operation, self.now_ms)

    def _look_ms(self) -> int | None:
        """When something is due that no definition says: a limit is looked at again, a schedule fires."""
        looks = self.engine.table.limits.next_ms(), self.engine.state.timetable.next_ms(self.engine.now_ms)
        return min((at for at in looks if at is not None), default=None)

    def go_to(self, now_ms: int) -> None:
        """Move the time forward."""
        self.now_ms = max(self.now_ms, now_ms)

    def drain(self) -> None:
        """Tick until no leftover remains. The order holds in between."""
        for _ in range(10_000):
            if self.engine.next_ms is None or self.engine.next_ms > self.now_ms:
                return
            self.engine.check()
            check_order(self.engine)
            check_cycles(self.engine)
            self.put(op.Tick())
        raise AssertionError("leftover work never ends")

    def _compare_tally(self, reply: Any) -> None:
        """
        Compare how many a sweep that was cut has reached.

        The model reaches at once those that end, where work is cut, because of others before the sweep comes to them.
        """
        if isinstance(reply, op.SweptPath) and reply.number is not None:
            jobs, actors = self.engine.table.jobs, self.model.jobs
            others = sum(actors[job_id].cause != jobs[job_id].cause for job_id in self.model.reached & actors.keys())
            tally = self.put(op.Pull(op.TALLIES, str(reply.number))).value
            assert tally == b"%d" % (len(self.model.reached) - others)

    def adopt(self, seqs: int) -> None:
        """
        Adopt from the engine the effects of cuts in its work.

        That is in which order jobs took their places (those after *seqs*) whose last edges were resolved in one
        operation, or that were revived in one, and which of several ends it was that canceled a job.
        """
        model, jobs = self.model, self.engine.table.jobs
        if model.woven:
            new = [actor for actor in model.placed if actor.seq > seqs and actor.id in jobs]
            places = sorted(actor.seq for actor in new)
            for actor, seq in zip(sorted(new, key=lambda actor: jobs[actor.id].seq), places, strict=True):
                actor.seq = seq
            model.placed.sort(key=lambda actor: actor.seq)
        for actor in model.jobs.values():
            job = jobs.get(actor.id)
            if job is not None and actor.state is CANCELED is job.state:
                causes = (actor.cause, job.cause)
                canceled_by = job.extras.canceled_by if job.extras is not None else None
                assert canceled_by is None or canceled_by in actor.needs
                assert causes[0] == causes[1] or any((cause or "").startswith(_FOLLOWS) for cause in causes)
                actor.canceled_by, actor.cause = canceled_by, job.cause
            if job is not None and actor.since > actor.number and job.since > job.number:
                actor.since = job.since

    def compare(self) -> None:
        engine, model = self.engine, self.model
        table = engine.table
        engine.check()
        known = {job.id: job for job in table.jobs.values() if not job.is_hidden}
        assert known.keys() == model.jobs.keys()
        for actor in model.jobs.values():
            job = known[actor.id]
            assert (
                job.state,
                bool(job.seq),
                job.number,
                job.since,
                job.attempts,
                job.losses,
                job.token,
                job.worker if job.state is STARTED else None,
                job.due_ms,
                job.gone,
                job.spec,
                job.cancel,
                job.cause,
                job.result,
                job.steps,
            ) == (
                actor.state,
                bool(actor.seq),
                actor.number,
                actor.since,
                actor.attempts,
                actor.losses,
                actor.token,
                actor.worker,
                actor.due,
                actor.gone,
                # Of one whose record is gone a digest of large arguments is kept, of a deleted one of any.
                digested(actor.spec)
                if actor.gone and (len(actor.spec.arguments) > DIGEST_FROM or job.spec != actor.spec)
                else actor.spec,
                actor.cancel,
                actor.cause,
                actor.result,
                actor.steps,
            )
            history = job.record().history
            assert actor.gone or (history[-1].worker if history else None) == actor.last_worker
            assert job.level == job.spec.priority or (job.level > job.spec.priority and job.seq)
            extras = job.extras
            if extras is not None:
                assert extras.canceled_by == actor.canceled_by
                # An ended job drops its edges in a step of its own.
                assert actor.is_over or extras.blocked.keys() == actor.waits.keys()
            else:
                assert not actor.waits
                assert actor.canceled_by is None
        hidden = {job.id: job for job in table.jobs.values() if job.is_hidden}
        expected = {**model.hidden, **model.starts}
        assert {job_id: job.number for job_id, job in hidden.items()} == {
            job_id: actor.number for job_id, actor in expected.items()
        }
        # A job canceled while work was cut may have had a place for a moment, so places are equal up to gaps.
        assert [job.id for job in placed(engine)] == [actor.id for actor in model.placed]
        ready = {actor.id for actor in model.ready()}
        offered = {job.id for job in table.jobs.values() if job.ready is not None}
        if not table.leftovers:
            check_ready(engine)
            if model.exact:
                assert offered == ready
        assert offered <= ready, f"{offered - ready} are ready out of order"
        if not table.leftovers:
            assert engine.next_ms == model.next_ms()
        self._compare_limits()

    def _compare_limits(self) -> None:
        """No limit is exceeded, and the counts of each are right."""
        engine, model = self.engine, self.model
        states = {s.limit.key: s for s in self.put(op.ListLimits()).limits}
        assert {key: state.limit for key, state in states.items()} == model.limits
        for state in states.values():
            limit = state.limit
            assert state.started == (sum(model.count_started(limit).values()) if limit.holds_back else None)
            unfinished = None if limit.max_pending is None else model.count_towards(limit)
            assert state.pending == unfinished or (limit.max_pending is not None and engine.table.leftovers)

    # --- questions ---------------------------------------------------------------------------------------------------

    def ask(self, claim: Claim) -> None:
        """Send every query and compare."""
        _engine, model, now_ms = self.engine, self.model, self.now_ms
        model.now_ms = max(model.now_ms, now_ms)
        mode: Mode = "shared" if claim.mode == "shared" else "exclusive"
        assert self.put(op.CanDequeue(claim.path, mode)) == model.can_dequeue(claim)
        known = sorted((actor for actor in model.jobs.values() if not actor.gone), key=lambda actor: actor.number)
        stats = self.put(op.CountJobs())
        assert stats.states == {state: sum(actor.state is state for actor in known) for state in JobState}
        dead = tuple(actor.id for actor in known if actor.state is FAILED)
        assert tuple(record.id for record in self.put(op.List(DEAD_RECORDS)).records) == dead
        pending = self.put(op.CountPending(None, include_scheduled=True))
        assert pending.unfinished == sum(actor.state not in OVER for actor in known)
        below = self.put(op.CountPending(claim.path, include_scheduled=True))
        claims = [c for actor in known if actor.state not in OVER for c in actor.claims]
        assert below.unfinished == sum(c.path[: len(claim.path)] == claim.path for c in claims)
        self._ask_why(known)
        of_path = op.Why(None, 3, claim.path)
        self.model.check_chain(of_path, self.put(of_path))
        self._ask_about_edges()
        self._ask_for_records(claim)
        self._compare_tree(self.put(op.Tree(claim.path, 1)), claim.path)

    def _ask_why(self, known: Iterable[Actor]) -> None:
        """R3: a wait for a place leads to smaller places only, so that waits form no cycle."""
        for actor in known:
            reason = self.put(op.Why(actor.id)).reasons[0]
            self.model.check_reason(actor, reason)
            if reason.kind in {ReasonKind.PLACE, ReasonKind.DEAD_HOLD}:
                assert reason.jobs or self.engine.table.leftovers
                assert all(0 < self.model.jobs[job_id].seq < actor.seq for job_id in reason.jobs)
                held = [self.model.jobs[job_id] for job_id in reason.jobs]
                if reason.kind is ReasonKind.DEAD_HOLD:
                    assert all(other.state is FAILED for other in held)
                if self.model.exact and not self.engine.table.leftovers:
                    # A dead job may stand in the way of one before this one, and of this one by that alone.
                    before = self._before(actor) if reason.kind is ReasonKind.DEAD_HOLD else [actor]
                    assert any(clash(other.claims, one.claims) for other in held for one in before)
            is_refused = reason.kind is ReasonKind.UNKNOWN_TASK and reason.until_ms is None
            assert not is_refused or actor.refused_by, f"{actor.id} was not refused"
            waits = reason.kind in {ReasonKind.TIME, ReasonKind.BACKOFF, ReasonKind.UNKNOWN_TASK} and not is_refused
            assert waits == (actor.due is not None) or reason.kind in {ReasonKind.PLACE, ReasonKind.DEAD_HOLD}

    def _before(self, actor: Actor) -> list[Actor]:
        """Return a job and its direct and indirect blockers, by places alone."""
        placed = sorted((one for one in self.model.jobs.values() if one.seq), key=lambda one: -one.seq)
        found = [actor]
        for one in placed:
            if one.seq < actor.seq and any(one.seq < other.seq and clash(one.claims, other.claims) for other in found):
                found.append(one)
        return found

    def _ask_about_edges(self) -> None:
        _engine, model, _now_ms = self.engine, self.model, self.now_ms
        questions: list[op.Operation[Any]] = [op.CountEdges(), *[op.Pull("n", key) for key in SHARED_KEYS]]
        questions += [op.ListShared("n"), op.ListShared("n", "k"), op.ListShared("n", after="k", limit=1)]
        questions += [op.CountRecords(RecordFilter(flow=flow)) for flow in FLOWS]
        for actor in model.placed:
            if actor.state is STARTED:
                questions.append(op.Fetch(actor.id, actor.token or 0, (*actor.needs, "nobody"), 0))
        for question in questions:
            model.follow(question, self.put(question))
        stats = self.put(op.CountJobs())
        assert stats.stuck["dead_dependency"] == model.edge_stats().behind_dead
        assert stats.waiting_for_signals == len(model.waiting_for_signals())
        assert stats.pruned == model.pruned
        for flow in FLOWS:
            after: op.Position | None = ("", 0)
            while after is not None:
                question = op.List(RecordFilter(flow=flow), after=after, limit=3)
                page = self.put(question)
                model.follow(question, page)
                after = page.after

    def _ask_for_records(self, claim: Claim) -> None:
        """Compare listings, page by page, and counts with a scan of all records."""
        engine, model, now_ms = self.engine, self.model, self.now_ms
        for wanted in filters(claim.path, now_ms, list(engine.table.jobs.values())):
            for newest_first, by_time in ((True, True), (False, False), (True, False)):
                listed: list[str] = []
                after: op.Position | None = None
                while True:
                    page = self.put(op.List(wanted, newest_first, after, 3, by_time))
                    listed += [record.id for record in page.records]
                    after = page.after
                    if after is None:
                        break
                assert listed == model.listed(wanted, newest_first=newest_first, by_time=by_time), wanted
            states = [model.jobs[job_id].state for job_id in listed]
            counts = self.put(op.CountRecords(wanted))
            assert counts == op.Counts({state: states.count(state) for state in JobState}, None)
        users = [job.spec.user for job in model.jobs.values() if job.spec.service == "s" and not job.gone]
        expected = {user: users.count(user) for user in sorted(user for user in users if user is not None)}
        assert dict(self.put(op.ListUsers("s")).users) == expected

    def _compare_tree(self, tree: TreeNode, path: Path) -> None:
        placed = [actor for actor in self.model.placed if takes_place(actor.claims)]
        running = [claim for actor in placed if actor.state is STARTED for claim in actor.claims]
        assert tree.started == sum(claim.path == path for claim in running)
        assert tree.started_below == sum(claim.path[: len(path)] == path for claim in running)
        waiting = [claim.path for actor in self.model.waiting_for_signals() for claim in actor.claims]
        signals = [each for each in waiting if is_at_or_below(each, path)]
        assert (tree.waiting_for_signals, tree.waiting_for_signals_below) == (signals.count(path), len(signals))
        node = self.engine.table.trie.find(path)
        assert sum(counts(node.held)) == tree.granted + tree.passing if node is not None else not tree.granted
        assert tree.paused == (RecordFilter(path=path) in self.model.paused)
        assert tree.closed == (path in self.model.closed)
        children = () if node is None else node.children or ()
        self._compare_pages(path, {*children, *[each[len(path)] for each in signals if each != path]})
        self._compare_lines(path)

    def _compare_lines(self, path: Path) -> None:
        """Compare the lines below a place with those of the gates that jobs with a place pass."""
        claimed = {claim.path for actor in self.model.placed if takes_place(actor.claims) for claim in actor.claims}
        gates = {each[:depth] for each in claimed for depth in range(len(path) + 1, len(each) + 1)}
        lines: list[tuple[int, str]] = []
        for gate in gates:
            found = self.engine.table.trie.find(gate)
            if found is not None and found.waiting and is_at_or_below(gate, path):
                lines.append((-found.waiting, key_of(gate)))
        told = self.put(op.ListLines(path, DEPTH_MAX)).places
        assert [(-place.waiting, place.path_key) for place in told] == sorted(lines)

    def _compare_pages(self, path: Path, names: Iterable[str]) -> None:
        """Compare the children of a place, page by page, with those of the gates in order of their names."""
        listed: list[str] = []
        after: str | None = None
        while True:
            page = self.put(op.Tree(path, 1, after, 2))
            listed += [child.path_key for child in page.children]
            after = page.after
            if after is None:
                break
        assert listed == [key_of((*path, name)) for name in sorted(names, key=lambda name: gate_key((name,)))]

    # --- the end -----------------------------------------------------------------------------------------------------

    def wind_down(self) -> None:
        """End everything there is, let all records expire, and see that nothing is left."""
        for operation in undo_marks(self.engine):
            self.do(operation)
        for turn in range(1_000):
            running = [
                Outcome(job_id=actor.id, token=actor.token or 0, kind=OutcomeKind.FINISHED)
                for actor in self.model.placed
                if actor.state is STARTED
            ]
            self.do(op.Exchange("last", settle=tuple(running), pools=(*POOLS, "default"), limit=100))
            if not self.model.jobs and not self.model.starts:
                break
            if not any(actor.state is STARTED for actor in self.model.placed):
                # A record that another job still needs is looked at again each hour, for months: go on by days then.
                self.go_to(max(self.engine.next_ms or 0, self.now_ms + 24 * 60 * MINUTE if turn >= 100 else 0))
                self.do(op.Tick())
        while self.engine.state.shared:
            self.go_to(self.now_ms + SHARED_MS)
            self.do(op.Tick())
        for worker in sorted(self.model.undelivered_cancellations):
            self.do(op.Exchange(worker))
        for limit in list(self.model.limits.values()):
            self.do(op.SetLimit(limit.lifted))
        check_empty(self.engine)
