"""The engine against its model as a state machine: the same rules as the random walks, with failures that shrink."""

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

from queuehint.hint import Claim, normalise
from queuehint.limits import Limit
from queuehint.operations import (
    BUDGET,
    Cancel,
    CancelFlow,
    CancelPath,
    Close,
    Commit,
    Discard,
    DropLimit,
    Enqueue,
    Exchange,
    Fetch,
    Pause,
    Push,
    Redrive,
    Renew,
    Reopen,
    Resume,
    SetLimit,
    Tick,
)
from queuehint.records import ON_CHILD_FAILURE, Dependency, JobSpec, Outcome, OutcomeKind
from queuehint.testing.pair import Pair
from queuehint.testing.player import FLOWS, LEASE_MS, MINUTE, PARTS, PATHS, POLICIES, SHARED_KEYS, WOVEN_POLICIES

paths = st.sampled_from(PATHS)
modes = st.sampled_from(["exclusive", "exclusive", "exclusive", "shared"])
claims = st.lists(st.builds(Claim, paths, modes), min_size=0, max_size=3).map(normalise)
exclusive_claims = st.lists(st.builds(Claim, paths), min_size=1, max_size=3).map(normalise)
# What an operation does is never due in that same ms, nor is anything due when it comes: then work that was cut and
# work that was not end alike.
delays = st.sampled_from([1, MINUTE, 3 * MINUTE])
policies = st.sampled_from(POLICIES[:-1])
kinds = st.sampled_from(OutcomeKind)
conditions = st.sampled_from(
    [("success", False), ("success", False), ("success", True), ("failure", False), ("done", False)]
)
woven_policies = st.sampled_from(WOVEN_POLICIES)
# One job of a graph: which of the others it depends on, how, where it runs, what becomes of it.
knots = st.tuples(
    st.dictionaries(st.integers(0, 4), conditions, max_size=3), exclusive_claims, woven_policies, st.none() | delays
)


class EngineMachine(RuleBasedStateMachine):
    """Every rule is an operation, done by the engine and its model; `Pair.do` compares them."""

    ids = Bundle("ids")
    grants = Bundle("grants")
    old_grants = Bundle("old_grants")

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.made = 0

    @initialize(budget=st.sampled_from([BUDGET, BUDGET, 1, 2, 5]))
    def begin(self, budget: int) -> None:
        self.pair = Pair(budget)

    def enqueue(self, specs: Iterable[JobSpec]) -> Any:
        self.pair.do(Enqueue(tuple(specs)))
        return multiple(*[spec.id for spec in specs])

    def next_id(self) -> str:
        self.made += 1
        return str(self.made)

    @rule(
        target=ids,
        wanted=st.lists(exclusive_claims, min_size=1, max_size=3),
        policy=policies,
        priority=st.sampled_from([1, 3, 5, 9]),
        user=st.sampled_from([None, "u"]),
    )
    def enqueue_jobs(self, wanted: list[tuple[Claim, ...]], policy: Any, priority: int, user: str | None) -> Any:
        return self.enqueue(
            [
                JobSpec(id=self.next_id(), task="t", claims=each, policy=policy, priority=priority, user=user)
                for each in wanted
            ]
        )

    @rule(target=ids, wanted=claims, policy=policies)
    def enqueue_any_mode(self, wanted: tuple[Claim, ...], policy: Any) -> Any:
        if self.pair.cut:  # with shared claims the model judges an engine that is caught up
            wanted = normalise(Claim(claim.path) for claim in wanted)
        return self.enqueue([JobSpec(id=self.next_id(), task="t", claims=wanted, policy=policy)])

    @rule(target=ids, wanted=exclusive_claims, policy=policies, delay_ms=delays)
    def enqueue_for_later(self, wanted: tuple[Claim, ...], policy: Any, delay_ms: int) -> Any:
        return self.enqueue([JobSpec(id=self.next_id(), task="t", claims=wanted, policy=policy, delay_ms=delay_ms)])

    @rule(
        target=ids,
        wanted=exclusive_claims,
        on_conflict=st.sampled_from(["return", "replace", "after", "reject"]),
        delay_ms=st.none() | delays,
    )
    def enqueue_with_key(self, wanted: tuple[Claim, ...], on_conflict: Any, delay_ms: int | None) -> Any:
        spec = JobSpec(id=self.next_id(), task="t", claims=wanted, key="k", on_conflict=on_conflict, delay_ms=delay_ms)
        return self.enqueue([spec])

    @rule(target=ids, wanted=exclusive_claims)
    def enqueue_for_a_caller(self, wanted: tuple[Claim, ...]) -> Any:
        return self.enqueue([JobSpec(id=self.next_id(), task="t", claims=wanted, presence_ms=3 * MINUTE)])

    @rule(job_id=ids, task=st.sampled_from(["t", "other"]))
    def enqueue_an_id_again(self, job_id: str, task: str) -> None:
        self.pair.do(Enqueue((JobSpec(id=job_id, task=task),)))

    @rule(
        path=paths,
        each=st.booleans(),
        most=st.sampled_from([None, 1, 1, 2]),
        rate=st.none() | st.tuples(st.sampled_from([1, 2, 3]), delays),
    )
    def set_limit(self, path: Any, each: bool, most: int | None, rate: tuple[int, int] | None) -> None:
        self.pair.do(SetLimit(Limit(path=path, each=each, most=most, rate=None if each else rate)))

    @rule(path=st.none() | paths, most=st.none() | st.integers(1, 8))
    def bound_what_waits(self, path: Any, most: int | None) -> None:
        self.pair.do(SetLimit(Limit(path=path, max_pending=most)))

    @rule(path=st.none() | paths)
    def drop_limit(self, path: Any) -> None:
        self.pair.do(DropLimit(path))

    # --- edges ---

    def edges(self, chosen: Mapping[str, Any]) -> tuple[Dependency, ...]:
        return tuple([Dependency(job_id, when=when, data=data) for job_id, (when, data) in chosen.items()])

    @rule(
        target=ids,
        chosen=st.dictionaries(ids | st.just("nobody"), conditions, min_size=1, max_size=3),
        wanted=exclusive_claims,
        policy=woven_policies,
        delay_ms=st.none() | delays,
        flow=st.sampled_from((None, *FLOWS)),
    )
    def enqueue_a_dependent(
        self, chosen: dict[str, Any], wanted: tuple[Claim, ...], policy: Any, delay_ms: int | None, flow: str | None
    ) -> Any:
        return self.enqueue(
            [
                JobSpec(
                    id=self.next_id(),
                    task="t",
                    claims=wanted,
                    policy=policy,
                    delay_ms=delay_ms,
                    flow=flow,
                    depends_on=self.edges(chosen),
                )
            ]
        )

    def graph(self, knots: list[Any], known: list[str], flow: str | None) -> list[JobSpec]:
        """Jobs that depend on each other, in circles too, and on known ones."""
        made = [self.next_id() for _ in knots]
        specs = []
        for job_id, (chosen, wanted, policy, delay_ms) in zip(made, knots, strict=True):
            every = [*made, *known]
            edges = self.edges({every[index % len(every)]: how for index, how in chosen.items()})
            depends_on = tuple([edge for edge in edges if edge.id != job_id])
            specs.append(
                JobSpec(
                    id=job_id,
                    task="t",
                    claims=wanted,
                    policy=policy,
                    delay_ms=delay_ms,
                    flow=flow,
                    depends_on=depends_on,
                )
            )
        return specs

    @rule(
        target=ids,
        knots=st.lists(knots, min_size=2, max_size=4),
        known=st.lists(ids, max_size=2),
        flow=st.sampled_from((None, *FLOWS)),
    )
    def enqueue_a_graph(self, knots: list[Any], known: list[str], flow: str | None) -> Any:
        return self.enqueue(self.graph(knots, known, flow))

    @rule(
        target=ids,
        knots=st.lists(knots, max_size=3),
        known=st.lists(ids, max_size=2),
        staged=st.sampled_from(PARTS),
    )
    def enqueue_a_part(self, knots: list[Any], known: list[str], staged: str) -> Any:
        specs = self.graph(knots, known, None)
        self.pair.do(Enqueue(tuple(specs), staged=staged))
        return multiple(*[spec.id for spec in specs])

    @rule(staged=st.sampled_from(PARTS))
    def commit(self, staged: str) -> None:
        self.pair.do(Commit(staged))

    @rule(target=ids, grant=grants, knots=st.lists(knots, min_size=1, max_size=3), known=st.lists(ids, max_size=1))
    def enqueue_children(self, grant: tuple[str, int], knots: list[Any], known: list[str]) -> Any:
        specs = self.graph(knots, known, None)
        self.pair.do(Enqueue(tuple(specs), parent=grant))
        return multiple(*[spec.id for spec in specs])

    @rule(
        target=old_grants,
        grant=consumes(grants),
        children=st.lists(ids, max_size=3),
        on_child_failure=st.sampled_from(ON_CHILD_FAILURE),
    )
    def settle_with_children(self, grant: tuple[str, int], children: list[str], on_child_failure: Any) -> Any:
        outcome = Outcome(
            job_id=grant[0],
            token=grant[1],
            kind=OutcomeKind.CHILDREN,
            result=b"1",
            children=tuple(children),
            on_child_failure=on_child_failure,
        )
        self.pair.do(Exchange("w", settle=(outcome,)))
        return grant

    @rule(some=st.lists(ids, min_size=1, max_size=5))
    def redrive_downstream(self, some: list[str]) -> None:
        self.pair.do(Redrive(tuple(some), downstream=True))

    @rule(flow=st.sampled_from(FLOWS))
    def cancel_flow(self, flow: str) -> None:
        if not self.sweep_races_a_parent():
            self.pair.do(CancelFlow(flow))

    @rule(grant=grants | old_grants, some=st.lists(ids, max_size=3))
    def fetch(self, grant: tuple[str, int], some: list[str]) -> None:
        self.pair.do(Fetch(*grant, tuple(some)))

    @rule(key=st.sampled_from(SHARED_KEYS), ttl_ms=delays)
    def push(self, key: str, ttl_ms: int) -> None:
        self.pair.do(Push("n", key, b"1", ttl_ms))

    # --- workers, operators, time ---

    @rule(target=grants, limit=st.integers(1, 5), worker=st.sampled_from("wx"))
    def claim(self, limit: int, worker: str) -> Any:
        reply = self.pair.do(Exchange(worker, limit=limit, lease_ms=LEASE_MS))
        return multiple(*[(grant.spec.id, grant.token) for grant in reply.grants])

    @rule(
        target=old_grants,
        settled=st.lists(consumes(grants), min_size=1, max_size=3),
        kind=kinds,
        delay_ms=delays,
        final=st.booleans(),
        limit=st.sampled_from([0, 0, 3]),
    )
    def settle(self, settled: list[tuple[str, int]], kind: OutcomeKind, delay_ms: int, final: bool, limit: int) -> Any:
        outcomes = [
            Outcome(job_id=job_id, token=token, kind=kind, delay_ms=delay_ms, final=final) for job_id, token in settled
        ]
        reply = self.pair.do(Exchange("w", settle=tuple(outcomes), limit=limit, lease_ms=LEASE_MS))
        return multiple(*settled, *[(grant.spec.id, grant.token) for grant in reply.grants])

    @rule(grant=old_grants, kind=kinds)
    def settle_with_an_old_token(self, grant: tuple[str, int], kind: OutcomeKind) -> None:
        self.pair.do(Exchange("w", settle=(Outcome(job_id=grant[0], token=grant[1], kind=kind, delay_ms=1),)))

    @rule(grant=grants | old_grants)
    def renew(self, grant: tuple[str, int]) -> None:
        self.pair.do(Renew((grant,), LEASE_MS))

    @rule(some=st.lists(ids, min_size=1, max_size=3))
    def cancel(self, some: list[str]) -> None:
        self.pair.do(Cancel(tuple(some)))

    @rule(path=paths)
    def cancel_path(self, path: Any) -> None:
        if not self.sweep_races_a_parent():
            self.pair.do(CancelPath(path))

    def sweep_races_a_parent(self) -> bool:
        """Where work is cut a parent may end by itself, all its children being canceled, before a sweep comes to it."""
        return self.pair.cut and any(actor.is_waiting_parent for actor in self.pair.model.jobs.values())

    @rule(some=st.lists(ids, min_size=1, max_size=5))
    def redrive(self, some: list[str]) -> None:
        self.pair.do(Redrive(tuple(some)))

    @rule(some=st.lists(ids, min_size=1, max_size=5))
    def discard(self, some: list[str]) -> None:
        self.pair.do(Discard(tuple(some)))

    @rule(path=paths, mark=st.sampled_from([Pause, Resume, Close, Reopen]))
    def mark(self, path: Any, mark: Any) -> None:
        self.pair.do(mark(path))

    @rule(passed_ms=st.sampled_from([0, 1, MINUTE, LEASE_MS - 1, LEASE_MS, LEASE_MS + 1, 20 * MINUTE]))
    def pass_time(self, passed_ms: int) -> None:
        self.pair.now_ms += passed_ms
        self.pair.do(Tick())

    @rule()
    def pass_time_until_something_is_due(self) -> None:
        self.pair.now_ms = max(self.pair.now_ms, self.pair.engine.next_ms or 0)
        self.pair.do(Tick())

    @rule(path=paths)
    def ask(self, path: Any) -> None:
        self.pair.ask(Claim(path))

    def teardown(self) -> None:
        self.pair.wind_down()


TestEngine = EngineMachine.TestCase
# At first there is nothing to settle, cancel or depend on: many rules are passed over.
TestEngine.settings = settings(
    max_examples=2 * settings().max_examples,
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.filter_too_much],
)
