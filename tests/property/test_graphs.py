"""Graphs of jobs: random ones never deadlock; all small ones end in the same states for any order of ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from random import Random
from typing import Any, Literal

import attrs
import pytest

from queuehint import operations as op
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.structures.job import Job
from queuehint.errors import QueueHintError
from queuehint.testing.commits import commit_of
from queuehint.testing.invariants import check_cycles, check_edges, check_empty, check_order
from queuehint.testing.model.edges import effect_of_end
from queuehint.testing.state_machine.styles import PATHS_BY_DEPTH
from queuehint.values.hint import Claim, normalise
from queuehint.values.outcome import ON_CHILD_FAILURE, Outcome, OutcomeKind
from queuehint.values.policy import ON_DEAD, ON_DEPENDENCY_FAILURE, OnDependencyFailure, Policy
from queuehint.values.record import OVER, JobState
from queuehint.values.report import ReasonKind
from queuehint.values.spec import WHEN, Dependency, JobSpec, When
from tests.support import thorough

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
BUDGETS = (op.BUDGET, 1, 2, 5)


# --- random graphs ---------------------------------------------------------------------------------------------------


def watch_places(engine: Engine) -> None:
    """Have an engine in which a job that waits for others takes its place once a life."""
    queued: set[tuple[str, int, int]] = set()
    become = engine.table.become

    def watched(job: Job, state: JobState) -> None:
        if job.state is DEFERRED and state is QUEUED:
            life = (job.id, job.number, job.since)
            assert life not in queued, f"{job.id} was queued twice"
            queued.add(life)
        become(job, state)

    engine.table.become = watched  # type: ignore[method-assign]


def in_portions(specs: list[JobSpec], part: str) -> Iterator[Any]:
    """Send a part of a submission; all dependencies of a job but its first follow one by one."""
    yield op.Enqueue(tuple([attrs.evolve(spec, depends_on=spec.depends_on[:1]) for spec in specs]), staged=part)
    for spec in specs:
        for portion, edge in enumerate(spec.depends_on[1:], 1):
            yield op.Depend(part, spec.id, portion, (edge,), spec.policy.on_dependency_failure)


class Crowd:
    """
    A random graph on few paths, and a world that ends each of its jobs in a random way.

    Jobs are submitted in any order: many depend on jobs that stand behind them on the same path.
    """

    def __init__(self, random: Random, budget: int, count: int) -> None:
        self.random = random
        self.engine = Engine(EngineOptions(budget=budget))
        self.now_ms = 0
        watch_places(self.engine)
        self.specs = self.graph(count)
        self.children = 0
        self.staged: set[str] = set()

    def graph(self, count: int) -> list[JobSpec]:
        random = self.random
        ids = [str(number) for number in range(count)]
        specs = []
        for number, job_id in enumerate(ids):
            others = random.sample(ids[:number], min(number, random.choice((0, 0, 1, 1, 2, 3))))
            edges = []
            for other in others:
                when = random.choice(("success", *WHEN))
                edges.append(Dependency(other, when=when, data=when != "failure" and random.random() < 0.1))
            policy = Policy(
                max_attempts=1,
                on_dead=random.choice(("continue", *ON_DEAD)),
                on_dependency_failure=random.choice(ON_DEPENDENCY_FAILURE),
            )
            claims = normalise(Claim(random.choice(PATHS_BY_DEPTH[random.choice((0, 1, 1, 2, 2))])) for _ in "12")
            delay_ms = 1 if random.random() < 0.1 else None
            specs.append(
                JobSpec(
                    id=job_id,
                    task="t",
                    claims=claims,
                    policy=policy,
                    depends_on=tuple(edges),
                    delay_ms=delay_ms,
                    flow=random.choice((None, "f")),
                )
            )
        return specs

    def submissions(self) -> Iterator[Any]:
        """All at once in any order, or one after the other, or in parts."""
        random, specs = self.random, self.specs
        how = random.random()
        if how < 0.4:
            yield op.Enqueue(tuple(random.sample(specs, len(specs))))
        elif how < 0.8:
            at = 0
            while at < len(specs):
                more = random.choice((1, 2, 4))
                yield op.Enqueue(tuple(random.sample(specs[at : at + more], len(specs[at : at + more]))))
                at += more
        else:
            self.specs = specs = [attrs.evolve(spec, flow="f") for spec in specs]
            for at in range(0, len(specs), 3):
                yield from in_portions(specs[at : at + 3], "T")
            yield commit_of(self.engine, "T")

    def do(self, operation: Any) -> Any:
        reply = self.engine.apply(operation, self.now_ms)
        self.engine.check()
        check_order(self.engine)
        check_cycles(self.engine)
        return reply

    @property
    def moves(self) -> bool:
        """Something runs, may run, is left over or due."""
        engine, table = self.engine, self.engine.table
        is_due = engine.next_ms is not None and engine.next_ms <= self.now_ms
        return bool(is_due or table.registry.running or table.ready.sizes())

    def end_some(self, kinds: tuple[OutcomeKind, ...]) -> None:
        """Start some jobs, and end some that run."""
        random = self.random
        self.do(op.Exchange("w", limit=random.choice((1, 2, 100))))
        running = list(self.engine.table.registry.running.values())
        settle = []
        for job in random.sample(running, random.randint(1, len(running)) if running else 0):
            kind = random.choice(kinds)
            children: tuple[str, ...] = ()
            if kind is OutcomeKind.CHILDREN:
                children = self.enqueue_children(job)
            settle.append(
                Outcome(
                    job_id=job.id,
                    token=job.token or 0,
                    kind=kind,
                    children=children,
                    on_child_failure=random.choice(ON_CHILD_FAILURE),
                )
            )
        self.do(op.Exchange("w", settle=tuple(settle)))

    def enqueue_children(self, job: Job) -> tuple[str, ...]:
        """Have a running job make others, on its own path too, which may depend on any; it waits for some."""
        random = self.random
        every = [each.id for each in self.engine.table.jobs.values() if not each.is_hidden]
        made = []
        for _ in range(random.choice((0, 1, 2))):
            self.children += 1
            edges = tuple([Dependency(other) for other in random.sample(every, min(len(every), random.choice((0, 1))))])
            claims = random.choice((job.spec.claims, ()))
            spec = JobSpec(
                id=f"child{self.children}", task="t", claims=claims, depends_on=edges, policy=Policy(max_attempts=1)
            )
            try:
                self.do(op.Enqueue((spec,), parent=(job.id, job.token or 0)))
            except QueueHintError:
                continue
            made.append(spec.id)
        return (*made, *random.sample(every, min(len(every), random.choice((0, 0, 1)))))

    def stage_some(self) -> None:
        """
        Send a part of one of two submissions, or enqueue, commit, or let parts expire.

        All take their ids from the same few, so that one takes an id from the other once it is silent.
        """
        random = self.random
        roll = random.random()
        part = random.choice("ST")
        portions: list[Any] = []
        if roll < 0.25 and part in self.staged:
            self.staged.discard(part)
            operation: Any = commit_of(self.engine, part)
        elif roll < 0.3:
            self.now_ms += random.choice((op.STAGED_FRESH_MS, op.STAGED_FRESH_MS, op.STAGED_KEPT_MS // 2))
            operation = op.Tick()
        else:
            job_id = f"shared{random.randrange(5)}"
            known = [each.id for each in self.engine.table.jobs.values() if not each.is_start]
            every = [*known, *[f"shared{number}" for number in range(5)] * 3]
            edges = {other: Dependency(other) for other in random.sample(every, random.choice((0, 1, 1, 2)))}
            edges.pop(job_id, None)
            policy = Policy(max_attempts=1, on_dependency_failure=random.choice(ON_DEPENDENCY_FAILURE))
            spec = JobSpec(id=job_id, task="t", depends_on=tuple(edges.values()), policy=policy)
            is_part = roll < 0.8
            operation = op.Enqueue((spec,), staged=None)
            if is_part:
                operation, *portions = in_portions([spec], part)
        try:
            self.do(operation)
            if isinstance(operation, op.Enqueue) and operation.staged is not None:
                self.staged.add(part)
            for each in portions:
                self.do(each)
        except QueueHintError:
            return

    def play(self) -> None:
        random = self.random
        kinds = (
            OutcomeKind.FINISHED,
            OutcomeKind.FINISHED,
            OutcomeKind.FAILED,
            OutcomeKind.DISCARDED,
            OutcomeKind.CHILDREN,
        )
        for submission in self.submissions():
            self.do(submission)
            if random.random() < 0.3:
                self.end_some(kinds)
        self.now_ms += 1
        self.do(op.Tick())
        while self.moves:
            self.end_some(kinds)
            for _ in range(random.choice((0, 0, 0, 2, 8))):
                self.stage_some()
            roll = random.random()
            dead = [job.id for job in self.engine.table.dead.values()]
            if roll < 0.05:
                self.do(op.Cancel((random.choice(self.specs).id,)))
            elif roll < 0.15 and dead:
                self.do(op.Redrive((random.choice(dead),), downstream=random.random() < 0.5))
            elif roll < 0.2 and dead:
                self.do(op.Discard((random.choice(dead),)))
        self.end_parts()

    def end_parts(self) -> None:
        """Let all parts be committed or gone, and all that follows be done."""
        self.now_ms += op.STAGED_KEPT_MS
        self.do(op.Tick())
        while self.moves:
            self.end_some((OutcomeKind.FINISHED, OutcomeKind.FAILED))

    def check_nobody_waits_for_nothing(self) -> None:
        """Every unfinished job waits, directly or through others, for a dead job that `why` names."""
        engine = self.engine
        check_edges(engine)
        unfinished = [job for job in engine.table.jobs.values() if job.state not in OVER]
        reasons = {job.id: engine.apply(op.Why(job.id), self.now_ms).reasons[0] for job in unfinished}
        accounted: set[str] = set()
        while True:
            more = set()
            for job_id, reason in reasons.items():
                assert reason.state in {DEFERRED, QUEUED}
                dead = reason.kind in {ReasonKind.DEAD_DEPENDENCY, ReasonKind.DEAD_HOLD}
                assert dead or reason.kind in {ReasonKind.DEPENDENCY, ReasonKind.PLACE}
                assert reason.stuck == dead
                assert reason.jobs
                if dead:
                    assert all(engine.table.jobs[other].state is FAILED for other in reason.jobs)
                if dead or accounted.issuperset(reason.jobs):
                    more.add(job_id)
            if more == accounted:
                break
            accounted = more
        assert accounted == reasons.keys(), f"{reasons.keys() - accounted} wait in a cycle"
        pending = engine.apply(op.CountPending(), self.now_ms)
        assert (pending.unfinished, pending.moving) == (len(unfinished), False)
        assert engine.apply(op.CountEdges(), self.now_ms).orphans == ()

    def revive_all(self) -> None:
        """A redrive of what is dead, if it is successful, lets all that waits go on; or its record expires."""
        for _ in range(100):
            dead = tuple([job.id for job in self.engine.table.dead.values()])
            if not dead:
                break
            self.do(op.Redrive(dead, downstream=True))
            while self.moves:
                self.end_some((OutcomeKind.FINISHED,))
            self.check_nobody_waits_for_nothing()
        assert all(job.state in OVER for job in self.engine.table.jobs.values())

    def expire_all(self) -> None:
        while self.engine.next_ms is not None:
            self.now_ms = max(self.now_ms, self.engine.next_ms)
            self.do(op.Tick())
            while self.moves:
                self.end_some((OutcomeKind.FINISHED,))
        check_empty(self.engine)


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_whatever_becomes_of_its_jobs_no_graph_is_wedged(budget: int) -> None:
    for seed in range(thorough(40, quick=4)):
        crowd = Crowd(Random(seed), budget, 12)
        try:
            crowd.play()
            crowd.check_nobody_waits_for_nothing()
            if seed % 2:
                crowd.revive_all()
            crowd.expire_all()
        except Exception as error:
            error.add_note(f"Crowd(Random({seed}), {budget}, 12)")
            raise


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("block", range(4))
def test_thousands_of_graphs_are_not_wedged(budget: int, block: int) -> None:
    for seed in range(1_000 * (block + 1), 1_000 * (block + 2)):
        crowd = Crowd(Random(seed), budget, 25)
        crowd.play()
        crowd.check_nobody_waits_for_nothing()
        crowd.revive_all()
        crowd.expire_all()


class Tangle(Crowd):
    """
    A small graph in which most edges cancel, and a world that fails jobs, has them wait for any, and revives.

    Steps follow so close upon one another that most of what an end brings about is left over when the next comes.
    """

    def graph(self, count: int) -> list[JobSpec]:
        random = self.random
        specs = []
        for number in range(count):
            others = random.sample(range(number), min(number, random.choice((0, 1, 1, 2, 2))))
            policy = Policy(max_attempts=1, on_dependency_failure=random.choice(("cancel", "cancel", "cancel", "wait")))
            edges = tuple([Dependency(str(other)) for other in others])
            specs.append(JobSpec(id=str(number), task="t", depends_on=edges, policy=policy))
        return specs

    def settle(self, job: Job, kind: OutcomeKind, *children: str) -> None:
        self.do(op.Exchange("w", (Outcome(job_id=job.id, token=job.token or 0, kind=kind, children=children),)))

    def play(self) -> None:
        random, table = self.random, self.engine.table
        self.do(op.Enqueue(tuple(self.specs)))
        for _ in range(40):
            roll = random.random()
            running = list(table.registry.running.values())
            if roll < 0.2 or (not running and roll < 0.6):
                self.do(op.Exchange("w", limit=2))
            elif roll < 0.4:
                self.settle(random.choice(running), random.choice((OutcomeKind.FAILED, OutcomeKind.FINISHED)))
            elif roll < 0.6:
                others = [job.id for job in table.jobs.values() if not job.is_over and not job.is_hidden]
                self.settle(random.choice(running), OutcomeKind.CHILDREN, random.choice(others))
            elif roll < 0.85 and table.dead:
                self.do(op.Redrive((random.choice(table.dead.values()).id,), downstream=True))
            elif roll > 0.92:
                self.stage_some()
        self.end_parts()


@pytest.mark.parametrize("budget", [1, 2])
def test_no_revival_closes_a_cycle(budget: int) -> None:
    for seed in range(thorough(100, quick=8)):
        tangle = Tangle(Random(seed), budget, 8)
        try:
            tangle.play()
            tangle.check_nobody_waits_for_nothing()
            tangle.revive_all()
        except Exception as error:
            error.add_note(f"Tangle(Random({seed}), {budget}, 8)")
            raise


def test_a_revival_that_meets_a_commit_waits_for_it() -> None:
    """In this walk a revived job still counted as a part of its submission."""
    crowd = Crowd(Random(2240), 2, 25)
    crowd.play()
    crowd.check_nobody_waits_for_nothing()


# --- all small graphs ------------------------------------------------------------------------------------------------

End = Literal["finished", "failed", "discarded"]
ENDS: tuple[End, ...] = ("finished", "failed", "discarded")
Shape = tuple[tuple[Dependency, ...], OnDependencyFailure]


def shapes(number: int) -> Iterator[Shape]:
    """All a job may depend on among those before it, and its policies where they make a difference."""
    conditions: list[tuple[When | None, bool]] = [(None, False), *[(when, False) for when in WHEN], ("success", True)]
    for chosen in product(conditions, repeat=number):
        if number > 1 and ("must", False) in chosen:
            # Of a job that one dependency cancels and another one fails it depends on which of both is over first.
            continue
        edges = tuple(
            [Dependency(str(other), when=when, data=data) for other, (when, data) in enumerate(chosen) if when]
        )
        is_open = any(edge.when == "success" for edge in edges)
        for policy in ON_DEPENDENCY_FAILURE if is_open else ON_DEPENDENCY_FAILURE[:1]:
            yield edges, policy


def outcome(graph: tuple[Shape, ...], ends: tuple[End, ...]) -> list[JobState]:
    """How a graph ends by the plain definition, if each job that runs ends so; DEFERRED is for ever."""
    states: list[JobState] = []
    for (edges, policy), end in zip(graph, ends, strict=True):
        found = set()
        for edge in edges:
            state = states[int(edge.id)]
            found.add("wait" if state is DEFERRED else effect_of_end(edge, policy, state))
        if "cancel" in found:
            states.append(CANCELED)
        elif "fail" in found:
            states.append(FAILED)
        elif "wait" in found:
            states.append(DEFERRED)
        else:
            states.append({"finished": FINISHED, "failed": FAILED, "discarded": CANCELED}[end])
    return states


POLICIES = {policy: Policy(max_attempts=1, on_dependency_failure=policy) for policy in ON_DEPENDENCY_FAILURE}


def replay(graph: tuple[Shape, ...], ends: tuple[End, ...], order: tuple[str, ...]) -> list[JobState]:
    """Enqueue and end the jobs in this order, as far as they run; the first event of a job enqueues it."""
    engine = Engine()
    tokens: dict[str, int] = {}
    seen: set[str] = set()
    for job_id in order:
        edges, policy = graph[int(job_id)]
        if job_id not in seen:
            seen.add(job_id)
            engine.apply(op.Enqueue((JobSpec(id=job_id, task="t", depends_on=edges, policy=POLICIES[policy]),)), 0)
        elif job_id in tokens:
            kind = OutcomeKind(ends[int(job_id)])
            engine.apply(op.Exchange("w", settle=(Outcome(job_id=job_id, token=tokens.pop(job_id), kind=kind),)), 0)
        for grant in engine.apply(op.Exchange("w", limit=9), 0).grants:
            tokens[grant.spec.id] = grant.token
    while tokens:
        job_id, token = tokens.popitem()
        settle = (Outcome(job_id=job_id, token=token, kind=OutcomeKind(ends[int(job_id)])),)
        for grant in engine.apply(op.Exchange("w", settle=settle, limit=9), 0).grants:
            tokens[grant.spec.id] = grant.token
    engine.check()
    return [engine.table.jobs[str(number)].state for number in range(len(graph))]


def orders(count: int) -> list[tuple[str, ...]]:
    """All ways to enqueue jobs in order of number and to end each after its enqueue."""
    events = [str(number) for number in range(count) for _ in "12"]
    every = set(permutations(events))
    numbers = [str(number) for number in range(count)]
    return sorted(order for order in every if list(dict.fromkeys(order)) == numbers)


def compare_all(count: int, share: int, shares: int) -> int:
    total = 0
    every = orders(count)
    for index, graph in enumerate(product(*[list(shapes(number)) for number in range(count)])):
        for ends in product(ENDS, repeat=count):
            if (index + ENDS.index(ends[0])) % shares != share:
                continue
            expected = outcome(graph, ends)
            for order in every:
                found = replay(graph, ends, order)
                assert found == expected, f"{graph} ended {ends} in the order {order}"
                total += 1
    return total


@pytest.mark.parametrize("count", [1, 2])
def test_graphs_of_two_jobs_end_alike_in_any_order(count: int) -> None:
    assert compare_all(count, 0, 1) == (3, 9 * 10 * 3)[count - 1]


@pytest.mark.heavy
def test_sampled_graphs_of_three_jobs_end_alike_in_any_order() -> None:
    assert compare_all(3, 7, 389) > 500


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("share", range(8))
def test_all_graphs_of_three_jobs_end_alike_in_any_order(share: int) -> None:
    assert compare_all(3, share, 8) > 10_000
