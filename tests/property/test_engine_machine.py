"""The engine against its model as a state machine: the same rules as the random walks, with failures that shrink."""

from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

from queuehint.hint import Claim, normalise
from queuehint.operations import (
    BUDGET,
    Cancel,
    CancelPath,
    Close,
    Discard,
    Enqueue,
    Exchange,
    Pause,
    Redrive,
    Renew,
    Reopen,
    Resume,
    Tick,
)
from queuehint.records import JobSpec, Outcome, OutcomeKind
from tests.property.walks import LEASE_MS, MINUTE, PATHS, POLICIES, Pair

paths = st.sampled_from(PATHS)
modes = st.sampled_from(["exclusive", "exclusive", "exclusive", "shared"])
claims = st.lists(st.builds(Claim, paths, modes), min_size=0, max_size=3).map(normalise)
exclusive_claims = st.lists(st.builds(Claim, paths), min_size=1, max_size=3).map(normalise)
# What an operation does is never due in that same ms, nor is anything due when it comes: then work that was cut and
# work that was not end alike.
delays = st.sampled_from([1, MINUTE, 3 * MINUTE])
policies = st.sampled_from(POLICIES[:-1])
kinds = st.sampled_from(OutcomeKind)


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
        self.pair.do(CancelPath(path))

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
TestEngine.settings = settings(max_examples=3 * settings().max_examples)
