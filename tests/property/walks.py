"""
What the walks share: an engine beside its model, what must hold after every step, and a player who makes the steps.

Times are in minutes, so that leases, back-offs, retention and the ten minutes for which an id is kept all meet.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.trie import counts
from queuehint.errors import DuplicateJobError, PathClosedError
from queuehint.hint import Claim, normalise
from queuehint.operations import (
    BUDGET,
    Cancel,
    CancelPath,
    CanDequeue,
    Close,
    CountJobs,
    CountPending,
    Discard,
    Enqueue,
    Exchange,
    ListDead,
    Log,
    Operation,
    Pause,
    Redrive,
    Renew,
    Reopen,
    Report,
    Resume,
    Tick,
    Tree,
    Why,
)
from queuehint.policy import Backoff, Policy, Retention
from queuehint.records import OVER, JobSpec, JobState, Outcome, OutcomeKind, Progress
from queuehint.reports import ReasonKind, TreeNode
from tests.property.reference import Actor, ReferenceModel, at_or_below, clash, conflict, shape

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from queuehint.core.job import Job
    from queuehint.hint import Mode, Path

MINUTE = 60_000
RETENTION = Retention(finished=180, failed=1800, canceled=0, service=900)
LEASE_MS = 4 * MINUTE
POOLS = ("p", "q")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def paths(depth_max: int) -> list[Path]:
    """All paths over two letters."""
    return [path for depth in range(depth_max + 1) for path in product("ab", repeat=depth)]


PATHS = paths(4)
PATHS_BY_DEPTH = [list(product("ab", repeat=depth)) for depth in range(5)]

_flat = Backoff(base=60, factor=1, cap=60, jitter=0)
_policy = partial(Policy, backoff=_flat)
POLICIES = (
    _policy(),
    _policy(max_attempts=2, max_losses=1),
    _policy(max_attempts=1, on_dead="hold"),
    _policy(max_attempts=1, on_dead="hold", retention_ms=8 * MINUTE),
    _policy(max_attempts=2, max_losses=2, on_dead="cancel_behind"),
    _policy(max_attempts=2, on_retry="yield", on_dead="cancel_behind", retention_ms=0),
    _policy(on_retry="yield", start_within_ms=6 * MINUTE),
    _policy(max_hold_ms=2 * MINUTE),
    _policy(max_hold_ms=0, start_within_ms=2 * MINUTE, retention_ms=11 * MINUTE),
)


@cache
def one_claim(path: Path, mode: Mode) -> tuple[Claim, ...]:
    return (Claim(path, mode),)


# --- what holds whatever the budget ----------------------------------------------------------------------------------


def placed(engine: Engine) -> list[Job]:
    """The jobs that have a place, in order of place, as the engine reports it."""
    return sorted((job for job in engine.ledger.jobs.values() if job.seq), key=lambda job: job.seq)


def check_order(engine: Engine) -> None:
    """R1 and R2 as far as they hold in the middle of a cut: what runs or may run has nothing in conflict before it."""
    jobs = [(job, shape(job.spec.claims)) for job in placed(engine)]
    for index, (job, claims) in enumerate(jobs):
        if job.state is STARTED or job.ready is not None:
            for other, others in jobs[:index]:
                assert not conflict(claims, others), f"{job.id} may run before {other.id}"


def check_ready(engine: Engine, *, exact: bool) -> None:
    """R2 once nothing is left over: by the plain definition what is ready is ready, and if *exact* nothing else is."""
    jobs = placed(engine)
    shapes = [shape(job.spec.claims) for job in jobs]
    for index, job in enumerate(jobs):
        if job.state is not QUEUED or job.id in engine.ledger.backing_off:
            assert job.ready is None
            continue
        free = not any(conflict(shapes[index], others) for others in shapes[:index])
        if job.ready is not None:
            assert free, f"{job.id} is ready out of order"
        elif free:
            assert not exact, f"{job.id} should be ready"
            assert waits_behind_a_line(job, jobs[:index]), f"{job.id} waits for nothing"


def waits_behind_a_line(job: Job, before: list[Job]) -> bool:
    """What shared claims may add: an earlier job stands in line at a node that both pass."""
    return any(
        walk.node is not None and at_or_below(job.spec.claims, walk.node.path)
        for other in before
        for walk in other.walks
        if not walk.granted
    )


def check_empty(engine: Engine) -> None:
    """R4: nothing remembers what is gone."""
    ledger = engine.ledger
    ledger.check()
    root = ledger.trie.root
    assert ledger.trie.nodes == 0
    assert not root.children
    assert (root.held, root.active, root.waiting) == (0, 0, 0)
    assert root.line is root.line_end is root.owners is None
    assert len(ledger.timers) == len(ledger.paths) == len(ledger.edges) == 0
    assert ledger.timers.next_ms() is None
    remembered: tuple[Any, ...] = (
        ledger.jobs,
        ledger.dead,
        ledger.keys,
        ledger.leftovers,
        ledger.registry.running,
        ledger.ready.sizes(),
        ledger.parked,
        ledger.untold,
        ledger.strangers,
        ledger.backing_off,
        engine.closed,
    )
    assert not any(remembered), remembered
    assert ledger.holding == 0
    assert not any(ledger.counts.values())


# --- an engine beside its model --------------------------------------------------------------------------------------


class Pair:
    """
    An engine beside its model: every operation goes to both, and they are compared.

    Args:
        budget: of the engine; with a small one each operation is followed by ticks until nothing is left, and the
            model, which does everything at once, is compared then.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self.cut = budget < BUDGET
        self.engine = Engine(EngineOptions(budget=budget, retention=RETENTION))
        self.model = ReferenceModel(RETENTION)
        self.now_ms = 0
        self.history: list[tuple[int, Operation[Any]]] = []
        self.ended: dict[str, int] = {}

    def do(self, operation: Operation[Any]) -> Any:
        """Apply one operation to both and compare; return the reply, None if it was refused as foretold."""
        engine, model = self.engine, self.model
        self.history.append((self.now_ms, operation))
        refusal = None
        if isinstance(operation, Enqueue):
            refusal = model.refuses(operation)
            model.exact = model.exact and all(claim.mode == "exclusive" for s in operation.jobs for claim in s.claims)
        try:
            reply = engine.apply(operation, self.now_ms)
        except (DuplicateJobError, PathClosedError) as error:
            refused: type[Exception] | None = type(error)
        else:
            refused = None
        assert refused is refusal
        if refused is not None:
            self.compare()
            return None
        model.follow(operation, reply, self.now_ms, cut=self.cut)
        self.drain()
        self.compare()
        return reply

    def drain(self) -> None:
        """Tick until nothing is left over; the order holds in between."""
        for _ in range(10_000):
            if not self.cut or self.engine.next_ms is None or self.engine.next_ms > self.now_ms:
                return
            self.engine.ledger.check()
            check_order(self.engine)
            self.engine.apply(Tick(), self.now_ms)
        raise AssertionError("there is always more")

    def compare(self) -> None:
        engine, model = self.engine, self.model
        ledger = engine.ledger
        ledger.check()
        assert ledger.jobs.keys() == model.jobs.keys()
        for job, actor in zip(ledger.jobs.values(), model.jobs.values(), strict=True):
            assert (
                job.id,
                job.state,
                bool(job.seq),
                job.number,
                job.since,
                job.attempts,
                job.losses,
                job.token,
                job.worker,
                job.due_ms,
                job.gone,
                job.spec,
                job.cancel is None,
            ) == (
                actor.id,
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
                actor.spec,
                actor.cancel is None,
            )
        # A job canceled while work was cut may have had a place for a moment, so places are equal up to gaps.
        assert [job.id for job in placed(engine)] == [actor.id for actor in model.placed]
        ready = {actor.id for actor in model.ready()}
        offered = {job.id for job in ledger.jobs.values() if job.ready is not None}
        if not ledger.leftovers:
            if model.exact:
                assert offered == ready
            else:
                check_ready(engine, exact=False)
        assert offered <= ready, f"{offered - ready} are ready out of order"
        if not ledger.leftovers:
            alarm = model.next_alarm()
            assert engine.next_ms == (None if alarm is None else alarm[0])

    # --- questions ---------------------------------------------------------------------------------------------------

    def ask(self, claim: Claim) -> None:
        """Ask everything and compare."""
        engine, model, now_ms = self.engine, self.model, self.now_ms
        assert engine.apply(CanDequeue(claim.path, claim.mode), now_ms) == model.can_dequeue(claim)
        known = [actor for actor in model.jobs.values() if not actor.gone]
        stats = engine.apply(CountJobs(), now_ms)
        assert stats.states == {state: sum(actor.state is state for actor in known) for state in JobState}
        dead = tuple(actor.id for actor in known if actor.state is FAILED)
        assert tuple(record.id for record in engine.apply(ListDead(), now_ms).records) == dead
        pending = engine.apply(CountPending(None, include_scheduled=True), now_ms)
        assert pending.unfinished == sum(actor.state not in OVER for actor in known)
        below = engine.apply(CountPending(claim.path, include_scheduled=True), now_ms)
        claims = [c for actor in known if actor.state not in OVER for c in actor.claims]
        assert below.unfinished == sum(c.path[: len(claim.path)] == claim.path for c in claims)
        self._ask_why(known)
        self._compare_tree(engine.apply(Tree(claim.path, 1), now_ms), claim.path)

    def _ask_why(self, known: Iterable[Actor]) -> None:
        """R3: a wait for a place points to smaller places only, so no waits can form a circle."""
        for actor in known:
            reason = self.engine.apply(Why(actor.id), self.now_ms)
            assert reason.state is actor.state
            if reason.kind in {ReasonKind.PLACE, ReasonKind.DEAD_HOLD}:
                assert reason.jobs or self.engine.ledger.leftovers
                assert all(0 < self.model.jobs[job_id].seq < actor.seq for job_id in reason.jobs)
                if self.model.exact:
                    held = [self.model.jobs[job_id] for job_id in reason.jobs]
                    assert self.engine.ledger.leftovers or any(clash(other.claims, actor.claims) for other in held)
            waits = reason.kind in {ReasonKind.TIME, ReasonKind.BACKOFF, ReasonKind.UNKNOWN_TASK}
            assert waits == (actor.due is not None) or reason.kind in {ReasonKind.PLACE, ReasonKind.DEAD_HOLD}

    def _compare_tree(self, tree: TreeNode, path: Path) -> None:
        running = [claim for actor in self.model.placed if actor.state is STARTED for claim in actor.claims]
        assert tree.started == sum(claim.path == path for claim in running)
        assert tree.started_below == sum(claim.path[: len(path)] == path for claim in running)
        node = self.engine.ledger.trie.find(path)
        assert sum(counts(node.held)) == tree.granted + tree.passing if node is not None else not tree.granted
        assert tree.paused == (path in self.model.paused)
        assert tree.closed == (path in self.model.closed)

    # --- the end -----------------------------------------------------------------------------------------------------

    def wind_down(self) -> None:
        """End everything there is, let all records expire, and see that nothing is left."""
        for path in sorted(self.model.paused):
            self.do(Resume(path))
        for path in sorted(self.model.closed):
            self.do(Reopen(path))
        for _ in range(1_000):
            running = [
                Outcome(job_id=actor.id, token=actor.token or 0, kind=OutcomeKind.FINISHED)
                for actor in self.model.placed
                if actor.state is STARTED
            ]
            self.do(Exchange("last", settle=tuple(running), pools=(*POOLS, "default"), limit=100))
            if not self.model.jobs:
                break
            if not any(actor.state is STARTED for actor in self.model.placed):
                self.now_ms = max(self.now_ms, self.engine.next_ms or 0)
                self.do(Tick())
        for worker in sorted(self.model.untold):
            self.do(Exchange(worker))
        check_empty(self.engine)


# --- who makes the steps ---------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Style:
    """
    What a player likes.

    Args:
        shared: the share of claims that are shared.
        depth_weights: how often a path has depth 0, 1, 2, 3, 4.
        unfinished_max: no job is enqueued while so many are unfinished.
        keyed: the share of jobs with a key.
        due_within: delays, back-offs of 0 and times in the past are used too; without, nothing an operation does is
            due in that same ms.
    """

    shared: float = 0.0
    depth_weights: tuple[int, ...] = (1, 4, 5, 3, 2)
    unfinished_max: int = 10
    keyed: float = 0.15
    due_within: bool = True


CROWDED = Style()
SPREAD = Style(depth_weights=(0, 1, 3, 4, 4), unfinished_max=14)
KEYED = Style(depth_weights=(0, 1, 2, 3, 3), keyed=0.7)
SHARING = Style(shared=0.6)
MIXED = Style(shared=0.3, depth_weights=(1, 3, 3, 2, 1), unfinished_max=14)
EXCLUSIVE_STYLES = (CROWDED, SPREAD, KEYED)
STYLES = (*EXCLUSIVE_STYLES, SHARING, MIXED)


class Player:
    """Makes up operations for a world it sees through the engine; every choice is *random*'s."""

    def __init__(self, engine: Engine, random: Random, style: Style) -> None:
        self.engine = engine
        self.random = random
        self.style = style
        self.grants: list[tuple[str, int]] = []
        self.made = 0
        self.specs: list[JobSpec] = []
        self._moves = (
            *[self.exchange] * 40,
            *[self.enqueue] * 34,
            *[self.renew] * 4,
            *[self.cancel] * 3,
            *[self.cancel_path] * 2,
            *[self.redrive] * 5,
            *[self.discard] * 2,
            *[self.pause] * 2,
            *[self.resume] * 3,
            *[self.close] * 1,
            *[self.reopen] * 2,
            *[self.note] * 2,
        )

    def move(self) -> Operation[Any]:
        return self.random.choice(self._moves)()

    def pass_time(self, now_ms: int) -> int:
        """Mostly stand still; sometimes go right to what is due next, sometimes far beyond it."""
        roll = self.random.random()
        if roll < 0.8:
            return now_ms
        if roll < 0.9:
            return max(now_ms, self.engine.next_ms or 0)
        if roll < 0.995:
            return now_ms + self.random.choice((1, MINUTE, MINUTE, 3 * MINUTE, LEASE_MS + 1))
        return now_ms + 20 * MINUTE

    # --- parts -------------------------------------------------------------------------------------------------------

    def path(self) -> Path:
        random = self.random
        return random.choice(PATHS_BY_DEPTH[random.choices(range(5), self.style.depth_weights)[0]])

    def region(self) -> Path:
        """A path to cancel, pause or close: seldom all there is."""
        return self.path() or (self.path() if self.random.random() < 0.5 else ("a", "b"))

    def claim(self) -> tuple[Claim, ...]:
        mode: Mode = "shared" if self.random.random() < self.style.shared else "exclusive"
        return one_claim(self.path(), mode)

    def claims(self) -> tuple[Claim, ...]:
        roll = self.random.random()
        if roll < 0.75:
            return self.claim()
        if roll < 0.8:
            return ()
        many = self.claim() + self.claim() + (self.claim() if roll > 0.93 else ())
        return normalise(many)

    def spec(self) -> JobSpec:
        random = self.random
        self.made += 1
        delay_ms = run_at_ms = key = presence_ms = None
        roll = random.random()
        now_ms = self.engine.now_ms
        if roll < 0.12:
            delay_ms = random.choice((1, MINUTE, 5 * MINUTE))
        elif roll < 0.16:
            run_at_ms = now_ms + random.choice((-MINUTE, 0, MINUTE))
        elif roll < 0.2:
            presence_ms = 3 * MINUTE
        if presence_ms is None and random.random() < self.style.keyed:
            key = random.choice("kkkl")
        spec = JobSpec(
            id=str(self.made),
            task="t",
            claims=self.claims(),
            priority=random.choice((3, 3, 3, 1, 5, 9)),
            pool=random.choice("ppq"),
            user=random.choice((None, None, "u", "v")),
            service="s" if random.random() < 0.05 else None,
            key=key,
            on_conflict=random.choice(("return", "replace", "replace", "after", "after", "after", "reject")),
            delay_ms=delay_ms,
            run_at_ms=run_at_ms,
            presence_ms=presence_ms,
            policy=random.choice(POLICIES if self.style.due_within else POLICIES[:-1]),
        )
        self.specs.append(spec)
        return spec

    def ids(self) -> tuple[str, ...]:
        random = self.random
        known = list(self.engine.ledger.jobs)
        some = random.sample(known, min(len(known), random.choice((1, 1, 2, 3))))
        return tuple(some) if random.random() < 0.95 else (*some, "nobody", *some)

    def outcome(self, job_id: str, token: int) -> Outcome:
        random = self.random
        kind = random.choice(_OUTCOMES)
        delays = (0, 1, MINUTE, 3 * MINUTE) if self.style.due_within else (1, MINUTE, 3 * MINUTE)
        return Outcome(
            job_id=job_id, token=token, kind=kind, delay_ms=random.choice(delays), final=random.random() < 0.1
        )

    # --- moves -------------------------------------------------------------------------------------------------------

    def enqueue(self) -> Operation[Any]:
        random = self.random
        count_of = self.engine.ledger.counts
        if sum(count_of[state] for state in (SCHEDULED, DEFERRED, QUEUED, STARTED)) >= self.style.unfinished_max:
            return self.exchange()
        specs = [self.spec() for _ in range(random.choice((1, 1, 1, 2, 3)))]
        if random.random() < 0.08:
            again = random.choice(self.specs[-12:])
            specs.append(again if random.random() < 0.8 else attrs.evolve(again, task="other"))
            if len({spec.id for spec in specs}) < len(specs):
                del specs[-1]
        return Enqueue(tuple(specs))

    def exchange(self) -> Operation[Any]:
        random = self.random
        running = [(job.id, job.token or 0) for job in self.engine.ledger.registry.running.values()]
        self.grants = [grant for grant in self.grants if random.random() < 0.9] + running
        settle = [self.outcome(*grant) for grant in running if random.random() < 0.6]
        if self.grants and random.random() < 0.15:
            settle.append(self.outcome(*random.choice(self.grants)))
        limit = random.choice((0, 1, 2, 2, 100, 100))
        pools = random.choice((*[("p", "q")] * 6, ("q", "p"), ("p",), ("q",), ()))
        return Exchange(random.choice("wx"), settle=tuple(settle), pools=pools, limit=limit, lease_ms=LEASE_MS)

    def renew(self) -> Operation[Any]:
        random = self.random
        jobs = self.engine.ledger.jobs.values()
        leases = [(job.id, job.token) for job in jobs if job.token is not None and random.random() < 0.5]
        if self.grants:
            leases.append(random.choice(self.grants))
        return Renew(tuple(leases), random.choice((MINUTE, LEASE_MS)))

    def cancel(self) -> Operation[Any]:
        return Cancel(self.ids())

    def cancel_path(self) -> Operation[Any]:
        return CancelPath(self.region())

    def redrive(self) -> Operation[Any]:
        return Redrive(self._dead())

    def discard(self) -> Operation[Any]:
        return Discard(self._dead())

    def _dead(self) -> tuple[str, ...]:
        dead = [job.id for job in self.engine.ledger.dead.values()]
        if dead and self.random.random() < 0.9:
            return tuple(self.random.sample(dead, self.random.randint(1, min(2, len(dead)))))
        return self.ids()

    def pause(self) -> Operation[Any]:
        return Pause(self.region())

    def resume(self) -> Operation[Any]:
        marked = sorted(self.engine.ledger.parked)
        return Resume(self.random.choice(marked) if marked and self.random.random() < 0.9 else self.path())

    def close(self) -> Operation[Any]:
        return Close(self.region())

    def reopen(self) -> Operation[Any]:
        marked = sorted(self.engine.closed)
        return Reopen(self.random.choice(marked) if marked else self.path())

    def note(self) -> Operation[Any]:
        if not self.grants:
            return Tick()
        grant = self.random.choice(self.grants)
        return Log(*grant, ("line",)) if self.random.random() < 0.5 else Report(*grant, Progress(1, 2))


_OUTCOMES = (
    *[OutcomeKind.FINISHED] * 8,
    *[OutcomeKind.FAILED] * 6,
    OutcomeKind.SNOOZED,
    OutcomeKind.RELEASED,
    OutcomeKind.UNKNOWN_TASK,
    OutcomeKind.LOST,
    OutcomeKind.DISCARDED,
)


# --- walks -----------------------------------------------------------------------------------------------------------


def walk_in_step(random: Random, style: Style, steps: int) -> Pair:
    """Let an engine with its whole budget and the model go side by side."""
    pair = Pair()
    player = Player(pair.engine, random, style)
    for step in range(steps):
        pair.now_ms = player.pass_time(pair.now_ms)
        pair.do(player.move())
        if step % 10 == 0:
            pair.ask(player.claim()[0])
    pair.wind_down()
    return pair


def walk_cut(random: Random, style: Style, steps: int, budget: int) -> Pair:
    """Cut the engine wherever its budget ends, tick until nothing is left, and find it where the model is."""
    pair = Pair(budget)
    player = Player(pair.engine, random, style)
    for _ in range(steps):
        # What is due comes up in a tick of its own: a cut lets an operation come before what is due, by the rules.
        pair.now_ms = player.pass_time(pair.now_ms)
        pair.do(Tick())
        pair.do(player.move())
    pair.wind_down()
    return pair


def walk_overtaking(random: Random, style: Style, steps: int, budget: int) -> Engine:
    """
    Go on while work is left over, as other clients do, so that newcomers overtake what has still to take its place.

    The order is that of the places the engine reports. What was asked for is done once nothing is left.
    """
    engine = Engine(EngineOptions(budget=budget, retention=RETENTION))
    player = Player(engine, random, style)
    exact = not style.shared
    now_ms = 0
    to_cancel: list[tuple[Job, JobSpec, int]] = []
    for _ in range(steps):
        now_ms = player.pass_time(now_ms)
        move = player.move() if random.random() < 0.8 else Tick()
        if isinstance(move, CancelPath):
            there = [job for job in engine.ledger.jobs.values() if at_or_below(job.spec.claims, move.path)]
            to_cancel += [(job, job.spec, job.since) for job in there if job.state not in OVER]
            move = attrs.evolve(move, reason=f"before {engine.ledger.last_number + 1}")
        _apply_freely(engine, move, now_ms)
        for job in engine.ledger.jobs.values():
            cause = job.cause or job.cancel or ""
            assert not cause.startswith("before ") or job.since < int(cause[7:]), (
                f"{job.id} came after what canceled it"
            )
        engine.ledger.check()
        check_order(engine)
        if random.random() < 0.1:
            _drain(engine, now_ms)
            _check_canceled(to_cancel)
            to_cancel.clear()
        if engine.next_ms is None or engine.next_ms > now_ms:
            check_ready(engine, exact=exact)
            for job in engine.ledger.jobs.values():
                assert all(engine.ledger.jobs[blocker].state not in OVER for blocker in job.blocked)
    _end_all(engine, now_ms)
    return engine


def _apply_freely(engine: Engine, operation: Operation[Any], now_ms: int) -> None:
    """Apply an operation; a grant is legal by the engine's own places, a stale token settles nothing."""
    jobs = engine.ledger.jobs
    live = {(job.id, job.token) for job in engine.ledger.registry.running.values()}
    try:
        reply = engine.apply(operation, now_ms)
    except (DuplicateJobError, PathClosedError):
        return
    if isinstance(operation, Exchange):
        for outcome, verdict in zip(operation.settle, reply.verdicts, strict=True):
            grant = (outcome.job_id, outcome.token)
            assert (verdict == "done") == (grant in live)
            live.discard(grant)
        for grant in reply.grants:
            assert jobs[grant.spec.id].state is STARTED
            assert not any(at_or_below(grant.spec.claims, path) for path in engine.ledger.parked)


def _drain(engine: Engine, now_ms: int) -> None:
    for _ in range(10_000):
        if not engine.apply(Tick(), now_ms).more:
            return
        engine.ledger.check()
        check_order(engine)
    raise AssertionError("there is always more")


def _check_canceled(to_cancel: list[tuple[Job, JobSpec, int]]) -> None:
    """What a cancellation by path covers is over or asked to stop, unless it was replaced or redriven meanwhile."""
    for job, spec, since in to_cancel:
        if job.state not in OVER and job.spec is spec and job.since == since:
            assert job.cancel is not None, f"{job.id} escaped"


def _end_all(engine: Engine, now_ms: int) -> None:
    for path in sorted(engine.ledger.parked):
        engine.apply(Resume(path), now_ms)
    for path in sorted(engine.closed):
        engine.apply(Reopen(path), now_ms)
    while engine.ledger.jobs:
        _drain(engine, now_ms)
        running = [
            Outcome(job_id=job.id, token=job.token or 0, kind=OutcomeKind.FINISHED)
            for job in engine.ledger.registry.running.values()
        ]
        reply = engine.apply(Exchange("last", settle=tuple(running), pools=(*POOLS, "default"), limit=100), now_ms)
        if engine.ledger.jobs and not running and not reply.grants and not reply.more:
            assert engine.next_ms is not None, "jobs wait for nothing"
            now_ms = max(now_ms, engine.next_ms)
    for worker in sorted(engine.ledger.untold):
        engine.apply(Exchange(worker), now_ms)
    check_empty(engine)
