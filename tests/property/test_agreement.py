"""
The engine and the stores agree: all go through the same histories, and every answer is compared.

By default 20 000 steps of random walks and 2 000 of a state machine, whose failures shrink, on Redis, and some hundred
in a file and in PostgreSQL beside it; every night far more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from queuehint import operations as op
from queuehint.backends.redis import keys
from queuehint.core.engine import EPOCH_BEGIN_S
from queuehint.errors import DuplicateJobError
from queuehint.testing.commits import commit_of
from queuehint.testing.state_machine.parts import first_jobs
from queuehint.testing.state_machine.rules import OperationMachine
from queuehint.testing.state_machine.styles import (
    ALL_AT_ONCE,
    CROWDED,
    FLOWS,
    IN_PARTS,
    KEYED,
    LEASE_MS,
    MINUTE,
    MIXED,
    SHARED_KEYS,
    STYLES,
    Style,
)
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import JobError, Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import Dependency, JobSpec
from tests.calls import STATE_FORMAT
from tests.conftest import StartServer
from tests.heads import CROWD, FACTS_MAX, common_facts, facts_id, names_of_facts, spec_of, specs_in_heads
from tests.property.agreement import (
    ALPHABETS,
    FIXED,
    KEPT_MS,
    PayloadGenerator,
    PlainGenerator,
    RedisLockstep,
    walk_together,
)
from tests.property.beside import DAILY, FAULTS, WAYS
from tests.property.short_ways import TwoWays
from tests.property.test_graphs import Tangle
from tests.servers import Server
from tests.support import slow_after, thorough

pytestmark = pytest.mark.redis

BUDGETS = (op.BUDGET, 1, 2, 5)
STEPS = thorough(233, quick=50)
IN_2020_MS = 1_000 * EPOCH_BEGIN_S


def named(style: Style) -> str:
    return f"shared={style.shared} keyed={style.keyed} jobs={style.unfinished_max}"


def by_turns() -> list[Any]:
    """Return all styles with all budgets; every other pair is for the night, and of the rest all but two are slow."""
    pairs = [
        pytest.param(
            style, budget, id=f"{named(style)}-{budget}", marks=[pytest.mark.nightly] if (at + number) % 2 else []
        )
        for at, style in enumerate(STYLES)
        for number, budget in enumerate(BUDGETS)
    ]
    return slow_after(4, pairs)


def walk(
    seed: int, style: Style, steps: int, budget: int, server: Server | None = None, ways: Sequence[str] = ()
) -> int:
    """Walk, compare all there is, end everything, and see that nothing is left; return the steps compared."""
    lockstep = RedisLockstep(budget=budget, start_ms=(0, IN_2020_MS + 999)[seed % 2], server=server, ways=ways)
    try:
        walk_together(lockstep, Random(seed), style, steps)
        lockstep.compare_all()
        lockstep.wind_down()
        lockstep.check_residue()
    except BaseException as error:
        error.add_note(f"The walk from Random({seed}), budget {budget}, after {lockstep.steps} steps.")
        raise
    finally:
        lockstep.close()
    assert lockstep.steps >= steps
    return lockstep.steps


@pytest.fixture
def lockstep() -> Iterator[RedisLockstep]:
    """A pair with its whole budget."""
    lockstep = RedisLockstep()
    yield lockstep
    lockstep.close()


# --- random walks ----------------------------------------------------------------------------------------------------


def test_the_walks_below_are_thousands_of_steps() -> None:
    assert len(STYLES) * len(BUDGETS) * STEPS >= thorough(7_000, quick=1_500)  # half of them by day


@pytest.mark.heavy
@pytest.mark.parametrize("style, budget", by_turns())
def test_engine_and_store_agree_at_every_step(style: Style, budget: int) -> None:
    parts = thorough(3, quick=1)
    compared = sum(walk(10 * BUDGETS.index(budget) + part, style, STEPS, budget) for part in range(parts))
    assert compared >= parts * STEPS


def test_records_that_expire_use_as_many_units_of_both() -> None:
    lockstep = RedisLockstep(budget=12)
    try:
        lockstep.do(op.Enqueue(tuple(JobSpec(id=f"j{at}", task="t", policy=Policy(retention_ms=5)) for at in range(5))))
        grants = lockstep.do(op.Exchange("w", limit=5)).grants
        ended = tuple(Outcome(job_id=each.spec.id, token=each.token, kind=OutcomeKind.FINISHED) for each in grants)
        lockstep.do(op.Exchange("w", settle=ended))
        lockstep.go_to(lockstep.now_ms + 5)
        assert [lockstep.do(op.Tick()).more for _ in range(3)] == [True, True, False]
    finally:
        lockstep.close()


def ticks(lockstep: RedisLockstep) -> int:
    """Have leftovers done; return in how many steps, after each of which both have as much left over."""
    return next(count for count in itertools.count(1) if not lockstep.do(op.Tick()).more)


@pytest.mark.parametrize(
    "budget, steps",
    [(4, [3, 2, 3, 3, 4, 2, 9, 7]), (5, [3, 1, 3, 3, 2, 2, 8, 7]), (6, [3, 1, 2, 3, 2, 2, 6, 6])],
)
def test_steps_that_change_more_use_as_many_units_of_both(budget: int, steps: list[int]) -> None:
    lockstep = RedisLockstep(budget=budget)
    jobs = tuple(JobSpec(id=f"j{at}", task="t", policy=Policy(max_losses=9, retention_ms=9_999)) for at in range(6))
    kept = Policy(on_dependency_failure="cancel", retention_ms=9_999)
    failed: dict[str, Any] = {"kind": OutcomeKind.FAILED, "error": JobError(type="E", message="m"), "final": True}
    counts = []
    try:
        lockstep.do(op.Enqueue(jobs))
        lockstep.do(op.Exchange("w", limit=6, lease_ms=5))
        lockstep.go_to(lockstep.now_ms + 5)
        counts.append(ticks(lockstep))
        lockstep.do(op.Pause(RecordFilter(task="t")))
        assert [lockstep.do(op.Exchange("w", limit=6)).grants for _ in range(3)] == [()] * 3
        lockstep.do(op.Resume(RecordFilter(task="t")))
        counts.append(ticks(lockstep))
        (root, *_) = lockstep.do(op.Exchange("w", limit=6)).grants
        behind: dict[str, Any] = {"task": "t", "depends_on": (Dependency("j0"),), "policy": kept}
        lockstep.do(op.Enqueue(tuple(JobSpec(id=f"b{at}", **behind) for at in range(3))))
        lockstep.do(op.Exchange("w", settle=(Outcome(job_id="j0", token=root.token, **failed),)))
        counts.append(ticks(lockstep))
        lockstep.do(op.Redrive(("j0",), downstream=True))
        counts.append(ticks(lockstep))
        lockstep.do(op.Enqueue(tuple(JobSpec(id=f"c{at}", **behind) for at in range(5)), staged="s"))
        lockstep.do(op.Commit("s", 5))
        counts.append(ticks(lockstep))
        lockstep.do(op.Enqueue(tuple(JobSpec(id=f"d{at}", task="t") for at in range(5)), staged="w"))
        lockstep.do(op.Withdraw("w"))
        counts.append(ticks(lockstep))
        lockstep.do(op.Enqueue(tuple(JobSpec(id=f"e{at}", task="t", claims=(Claim(("p",)),)) for at in range(5))))
        lockstep.do(op.CancelPath(("p",)))
        counts.append(ticks(lockstep))
        flow = tuple(JobSpec(id=f"f{at}", task="t", flow="f") for at in range(5))
        lockstep.do(op.Enqueue(flow, flow="f", flow_timeout_ms=1000))
        lockstep.go_to(lockstep.now_ms + 1000)
        counts.append(ticks(lockstep))
        assert counts == steps
    finally:
        lockstep.close()


@pytest.mark.heavy
@pytest.mark.parametrize("budget", [op.BUDGET, 2])
def test_they_do_where_plain_jobs_meet_others(budget: int) -> None:
    lockstep = RedisLockstep(budget=budget)
    client, key, random = lockstep.server.client(), keys.redis_key(lockstep.namespace, "jobs"), Random(budget + 1)
    seen: set[Any] = set()
    try:
        for _ in range(20):
            walk_together(lockstep, random, CROWDED, thorough(25, quick=6), PlainGenerator)
            seen |= {head[:1] for head in client.hvals(key)}
            lockstep.told.clear()  # a walk follows from its own begin
        lockstep.compare_all()
        lockstep.wind_down()
        lockstep.check_residue()
    finally:
        lockstep.close()
    assert seen > {b"Q", b"R", b"F"}, "the head of a plain job begins with the letter of its state, any other with none"


@pytest.mark.heavy
@pytest.mark.parametrize("budget", BUDGETS)
def test_they_do_where_every_feature_meets_every_other(budget: int) -> None:
    walk(200 + budget, ALL_AT_ONCE, thorough(150, quick=60), budget)


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("block", range(5))
@pytest.mark.parametrize("budget", [*BUDGETS, 3, 11])
def test_engine_and_store_agree_where_all_features_meet(budget: int, block: int) -> None:
    for seed in range(3_000 + 40 * block, 3_040 + 40 * block):
        walk(seed, ALL_AT_ONCE, 400, budget)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("budget", BUDGETS)
def test_valkey_gives_the_same_answers_too(second_server: Server, budget: int) -> None:
    walk(budget, MIXED, thorough(300, quick=80), budget, second_server)


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("block", range(5))
@pytest.mark.parametrize("budget", [*BUDGETS, 3, 11])
@pytest.mark.parametrize("style", STYLES, ids=named)
def test_engine_and_store_agree_for_a_million_steps(style: Style, budget: int, block: int) -> None:
    compared = sum(walk(seed, style, 400, budget) for seed in range(1_000 + 20 * block, 1_020 + 20 * block))
    assert compared >= 8_000


# --- stores that keep a journal, beside these two -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.usefixtures("postgres_server")
@pytest.mark.parametrize("budget", [2, pytest.param(op.BUDGET, marks=pytest.mark.nightly)])
def test_a_file_and_postgres_give_the_same_answers_too(budget: int) -> None:
    walk(300 + budget, ALL_AT_ONCE, thorough(300, quick=80), budget, ways=DAILY)


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.usefixtures("postgres_server")
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("style", [*STYLES, ALL_AT_ONCE], ids=named)
def test_postgres_agrees_by_every_route_to_its_leader(style: Style, budget: int) -> None:
    for seed in range(2):
        walk(400 + seed, style, 200, budget, ways=WAYS)


# --- bounds ----------------------------------------------------------------------------------------------------------


def page_on(lockstep: RedisLockstep, wanted: RecordFilter, pages: int, *, newest_first: bool = False) -> None:
    """Read all pages of a question, with both; *pages* is how many there are."""
    after, read = None, 0
    while read == 0 or after is not None:
        after = lockstep.do(op.List(wanted, newest_first, after, 200)).after
        read += 1
    assert read == pages


def count_on(lockstep: RedisLockstep, wanted: RecordFilter) -> list[int]:
    """Count in as many steps as it takes, with both; return what each has found."""
    found = [lockstep.do(op.CountRecords(wanted))]
    while found[-1].after is not None:
        found.append(lockstep.do(op.CountRecords(wanted, found[-1].after)))
    return [counts.total for counts in found]


@pytest.mark.slow
def test_both_look_at_as_many_blocks_and_no_more(lockstep: RedisLockstep) -> None:
    client: Any = lockstep.server.client()
    skip = (
        STATE_FORMAT
        + """local state = unpack_state(redis.call('HGET', KEYS[1], 'state'))
        state[3] = state[3] + ARGV[1]
        redis.call('HSET', KEYS[1], 'state', pack_state(state))"""
    )
    script = client.register_script(skip)
    table = lockstep.engine.table
    far = op.BLOCKS_LOOKED_AT_MAX
    for block in range(far + 2):
        service = "s" if block in {0, far - 1, far} else None
        lockstep.do(op.Enqueue((JobSpec(id=str(block), task="t", user="u", service=service),)))
        script(keys=[keys.redis_key(lockstep.namespace, "meta")], args=[op.RECORDS_PER_BLOCK - 1])
        table.last_number += op.RECORDS_PER_BLOCK - 1
    for newest_first in (False, True):
        page_on(lockstep, RecordFilter(user="u", service="s"), 2, newest_first=newest_first)
        page_on(lockstep, RecordFilter(service="s"), 1, newest_first=newest_first)
    assert count_on(lockstep, RecordFilter(user="u")) == [128] * 16 + [2]
    assert count_on(lockstep, RecordFilter(service="s")) == [3]


def test_both_look_at_as_many_records_and_no_more(lockstep: RedisLockstep) -> None:
    for begin in range(0, op.RECORDS_LOOKED_AT_MAX + 1500, 500):
        specs = [
            JobSpec(
                id=str(begin + at),
                task="t",
                claims=(Claim(("x", str(at % 3))),),
                user="u" if at == 7 else None,
                service=None if at % 5 else "kept",
            )
            for at in range(500)
        ]
        lockstep.do(op.Enqueue(tuple(specs)))
    lockstep.do(op.Cancel(tuple([str(number) for number in range(0, 5000, 5)])))
    for newest_first in (False, True):
        page_on(lockstep, RecordFilter(path=("x",), user="u"), 2, newest_first=newest_first)
    assert count_on(lockstep, RecordFilter(path=("x",))) == [op.RECORDS_COUNTED_MAX] * 5 + [380]
    assert len(count_on(lockstep, RecordFilter(path=("x", "1")))) == 2


# --- residue ---------------------------------------------------------------------------------------------------------


def leave_nothing(seed: int, steps: int) -> None:
    style = STYLES[seed % len(STYLES)]
    lockstep = RedisLockstep()
    try:
        walk_together(lockstep, Random(seed), style, steps)
        assert lockstep.steps >= steps
        lockstep.wind_down()
        lockstep.check_residue()
    except BaseException as error:
        error.add_note(f"The walk from Random({seed}).")
        raise
    finally:
        lockstep.close()


@pytest.mark.slow
@pytest.mark.heavy
def test_thousands_of_operations_and_a_prune_leave_fixed_keys() -> None:
    leave_nothing(4, thorough(2_000, quick=300))


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(2))
def test_hundred_thousand_operations_and_a_prune_leave_fixed_keys(seed: int) -> None:
    leave_nothing(seed, 100_000)


def test_a_namespace_that_was_only_looked_at_holds_nothing() -> None:
    fresh = RedisLockstep(start_ms=0)
    try:
        fresh.wind_down()
        fresh.check_residue()
        fresh.do(op.CountJobs())
        assert fresh.dump().keys() <= FIXED
    finally:
        fresh.close()


def test_result_pruned_at_its_end_is_not_stored(lockstep: RedisLockstep) -> None:
    lockstep.do(op.Enqueue((JobSpec(id="a", task="t", policy=Policy(retention_ms=0)),)))
    (grant,) = lockstep.do(op.Exchange("w", limit=1)).grants
    settled = Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
    lockstep.do(op.Exchange("w", settle=(settled,)))
    lockstep.recount()
    assert "results" not in lockstep.dump()


def test_key_that_outlives_its_job_stays_indexed_until_expiry(lockstep: RedisLockstep) -> None:
    policy = Policy(key_for_ms=MINUTE)
    lockstep.do(op.Enqueue((JobSpec(id="a", task="t", key="k", policy=policy),)))
    (grant,) = lockstep.do(op.Exchange("w", limit=1)).grants
    lockstep.do(op.Exchange("w", settle=(Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FINISHED),)))
    lockstep.recount()
    assert "keyed" in lockstep.dump()
    lockstep.go_to(lockstep.now_ms + MINUTE)
    lockstep.do(op.Tick())
    lockstep.recount()
    assert "keyed" not in lockstep.dump()


def test_waiters_silent_for_ten_minutes_are_not_woken(lockstep: RedisLockstep) -> None:
    lockstep.do(op.Enqueue((JobSpec(id="a", task="t"),)))
    lockstep.watch(("a",))
    lockstep.go_to(KEPT_MS + MINUTE)
    lockstep.do(op.Tick())
    lockstep.do(op.Cancel(("a",)))
    assert not [name for name in lockstep.dump() if name.startswith("wake:session:")]


def test_a_waiter_for_a_job_is_woken_at_its_end(lockstep: RedisLockstep) -> None:
    lockstep.do(op.Enqueue((JobSpec(id="a", task="t"),)))
    lockstep.watch(("a",))
    lockstep.do(op.Cancel(("a",)))
    (woken,) = [content for name, content in lockstep.dump().items() if name.startswith("wake:session:")]
    assert woken == [(b"a", 0.0)]
    lockstep.wind_down()
    lockstep.check_residue()


# --- what walks are unlikely to reach --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("budget", [op.BUDGET, 40])
def test_thousand_jobs_in_one_operation_agree_in_every_phase(budget: int) -> None:
    random = Random(budget + 1)
    lockstep = RedisLockstep(budget=budget)
    try:
        generator = PayloadGenerator(lockstep.engine, random, MIXED, ("a", "b"))
        for _ in range(3):
            lockstep.do(op.Enqueue(tuple(generator.spec() for _ in range(1_000))))
            for _ in range(4):
                running = list(lockstep.engine.table.registry.running.values())
                settle = tuple(generator.outcome(job.id, job.token or 0) for job in running)
                lockstep.do(op.Exchange("w", settle=settle, pools=("p", "q"), limit=1_000, lease_ms=LEASE_MS))
                lockstep.repeat()
                lockstep.recount()
            ids = tuple(lockstep.engine.table.jobs)[:1_000]
            lockstep.do(op.Get(ids))
            lockstep.do(
                op.Renew(tuple((job.id, job.token or 0) for job in lockstep.engine.table.registry.running.values()))
            )
            lockstep.do(op.CancelPath(()))
            lockstep.do(op.Redrive(ids))
            lockstep.do(op.Discard(ids))
            lockstep.do(op.Cancel(ids))
            lockstep.do(op.CountJobs())
            lockstep.go_to(lockstep.now_ms + LEASE_MS + 1)
        lockstep.wind_down()
        lockstep.check_residue()
    finally:
        lockstep.close()


def test_ended_dependent_is_skipped_by_a_sweep_for_good() -> None:
    lockstep = RedisLockstep(budget=1)

    def depending_on(dependency_id: str, job_id: str) -> JobSpec:
        return JobSpec(id=job_id, task="t", depends_on=(Dependency(dependency_id, when="done"),))

    def start() -> dict[str, int]:
        return {grant.spec.id: grant.token for grant in lockstep.do(op.Exchange("w", limit=9)).grants}

    try:
        fails: dict[str, Any] = {"kind": OutcomeKind.FAILED, "final": True}
        lockstep.do(op.Enqueue((JobSpec(id="a", task="t"), depending_on("a", "b"), depending_on("a", "c"))))
        lockstep.do(op.Exchange("w", (Outcome(job_id="a", token=start()["a"], **fails),)))
        for _ in range(3):
            lockstep.do(op.Tick())
        tokens = start()
        lockstep.do(op.Redrive(("a",)))
        tokens |= start()
        lockstep.do(op.Enqueue((depending_on("a", "d"), JobSpec(id="e", task="t"), depending_on("e", "f"))))
        tokens |= start()
        ends = [Outcome(job_id=each, token=tokens[each], kind=OutcomeKind.FINISHED) for each in "ae"]
        # One unit: the sweep looks at b, sees that c is over, and is cut. The next unit goes to another one.
        lockstep.do(op.Exchange("w", (Outcome(job_id="c", token=tokens["c"], **fails), *ends)))
        lockstep.do(op.Redrive(("c",)))
        lockstep.do(op.Tick())
        lockstep.do(op.Get(("b", "c", "d")))
        lockstep.compare_all()
        lockstep.wind_down()
    finally:
        lockstep.close()


@pytest.mark.slow
def test_both_revive_a_job_once_no_commit_is_under_way() -> None:
    lockstep = RedisLockstep(budget=1)
    once = Policy(max_attempts=1, on_dependency_failure="cancel", retention_ms=60_000)

    def job(job_id: str, *after: str) -> JobSpec:
        return JobSpec(id=job_id, task="t", depends_on=tuple([Dependency(each) for each in after]), policy=once)

    def settle(job_id: str, kind: OutcomeKind, *children: str) -> None:
        lockstep.do(op.Exchange("w", (Outcome(job_id=job_id, token=tokens[job_id], kind=kind, children=children),)))

    try:
        lockstep.do(op.Enqueue((job("dead"), job("parent"), job("revived", "dead", "parent"))))
        tokens = {grant.spec.id: grant.token for grant in lockstep.do(op.Exchange("w", limit=2)).grants}
        settle("dead", OutcomeKind.FAILED)
        lockstep.do(op.Tick())
        lockstep.do(op.Enqueue((*[job(f"other{number}") for number in range(5)], job("last", "revived")), staged="T"))
        lockstep.do(commit_of(lockstep.engine, "T"))
        lockstep.do(op.Redrive(("dead",), downstream=True))
        settle("parent", OutcomeKind.CHILDREN, "last")
        while lockstep.do(op.Tick()).more:
            lockstep.compare_all()
        (parent,) = lockstep.do(op.Get(("parent",))).records
        assert parent.cause == "child_failed"
        lockstep.wind_down()
    finally:
        lockstep.close()


class TangleOfTwins(Tangle):
    """The same on both."""

    def __init__(self, random: Random, budget: int, count: int) -> None:
        super().__init__(random, budget, count)
        self.lockstep = RedisLockstep(budget=budget)
        self.engine = self.lockstep.engine

    def do(self, operation: Any) -> Any:
        self.lockstep.go_to(self.now_ms)
        return self.lockstep.do(operation)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 2])
def test_graphs_with_failures_and_redrives_agree_between_cuts(budget: int) -> None:
    for seed in (*range(8), 11, 47, 50):  # the last ones close a cycle wherever a revival may
        tangle = TangleOfTwins(Random(seed), budget, 8)
        try:
            tangle.play()
            tangle.lockstep.compare_all()
            tangle.lockstep.wind_down()
            tangle.lockstep.check_residue()
        except BaseException as error:
            error.add_note(f"TangleOfTwins(Random({seed}), {budget}, 8)")
            raise
        finally:
            tangle.lockstep.close()


@pytest.fixture
def cut() -> Iterator[RedisLockstep]:
    """A pair whose work is cut after every unit, and that leaves nothing."""
    lockstep = RedisLockstep(budget=1)
    yield lockstep
    lockstep.wind_down()
    lockstep.check_residue()
    lockstep.close()


def test_committed_record_awaiting_release_is_amended_canceled_and_deleted(
    cut: RedisLockstep,
) -> None:
    specs = [JobSpec(id=each, task="t", flow="f", service="s", user="u") for each in "abcd"]
    cut.do(op.Enqueue(tuple(specs), staged="S"))
    cut.do(op.Commit("S", 4))
    for spec in specs:
        (record,) = cut.do(op.Get((spec.id,))).records
        cut.do(op.Amend(attrs.evolve(spec, user="v"), record.version))
    cut.do(op.Cancel(("c", "d")))
    cut.do(op.Delete(("d",)))
    cut.recount()
    while cut.do(op.Tick()).more:
        cut.count()
    assert cut.do(op.ListUsers("s")).users == (("v", 3),)


@pytest.mark.parametrize("minutes", [0, 11])
def test_record_is_deleted_before_its_job_released_others(cut: RedisLockstep, minutes: int) -> None:
    cut.do(op.Enqueue(tuple([JobSpec(id=each, task="t") for each in "abpq"])))
    tokens = {grant.spec.id: grant.token for grant in cut.do(op.Exchange("w", limit=4)).grants}
    parents = [
        Outcome(job_id=each, token=tokens[each], kind=OutcomeKind.CHILDREN, children=("a", "b")) for each in "pq"
    ]
    cut.do(op.Exchange("w", tuple(parents)))
    cut.do(op.Cancel(("p", "q")))
    cut.go_to(cut.now_ms + minutes * MINUTE)
    cut.do(op.Delete(("p", "q")))
    cut.recount()
    cut.do(op.CountEdges())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["success", "failure", "done"])
@pytest.mark.parametrize("on_failure", ["wait", "cancel", "run"])
def test_dead_job_is_deleted_before_its_dependents_are_notified(cut: RedisLockstep, when: Any, on_failure: Any) -> None:
    def end(children: Any) -> dict[str, Any]:
        return {"kind": OutcomeKind.CHILDREN, "children": children}

    policy = Policy(on_dependency_failure=on_failure, retention_ms=MINUTE)
    needy = [JobSpec(id=f"b{at}", task="t", depends_on=(Dependency("a", when),), policy=policy) for at in range(3)]
    cut.do(op.Enqueue((*[JobSpec(id=each, task="t") for each in "apqr"], *needy)))
    tokens = {grant.spec.id: grant.token for grant in cut.do(op.Exchange("w", limit=9)).grants}
    cut.do(op.Exchange("w", tuple([Outcome(job_id=each, token=tokens[each], **end(("a",))) for each in "pqr"])))
    cut.do(op.Exchange("w", (Outcome(job_id="a", token=tokens["a"], kind=OutcomeKind.FAILED, final=True),)))
    cut.do(op.Delete(("a",)))
    while cut.do(op.Tick()).more:
        cut.count()
    records = cut.do(op.Get(tuple([spec.id for spec in needy] + list("pqr")))).records
    cause = "has expired" if (when, on_failure) == ("success", "wait") else "has failed"
    is_run = when != "success" or on_failure == "run"
    assert [record.cause for record in records[:3]] == [None if is_run else f"dependency a {cause}"] * 3
    assert [record.errors[0].message for record in records[3:]] == ["child a is FAILED"] * 3


@pytest.mark.parametrize("on_conflict", ["return", "replace", "after"])
def test_revived_job_has_its_key_in_the_same_step(cut: RedisLockstep, on_conflict: Any) -> None:
    policy = Policy(on_dependency_failure="cancel", retention_ms=MINUTE)
    cut.do(op.Enqueue((JobSpec(id="a", task="t"),)))
    cut.do(op.Enqueue((JobSpec(id="b", task="t", key="k", depends_on=(Dependency("a"),), policy=policy),)))
    (grant,) = cut.do(op.Exchange("w", limit=1)).grants
    cut.do(op.Exchange("w", (Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FAILED, final=True),)))
    while cut.do(op.Tick()).more:
        pass
    cut.do(op.Redrive(("a",), downstream=True))
    (found,) = cut.do(op.Enqueue((JobSpec(id="c", task="t", key="k", on_conflict=on_conflict),))).jobs
    assert found.id == "b"


def test_late_dependent_is_visited_by_an_earlier_sweep(cut: RedisLockstep) -> None:
    def depending(job_id: str) -> JobSpec:
        return JobSpec(id=job_id, task="t", depends_on=(Dependency("a"),), flow="f")

    cut.do(op.Enqueue((JobSpec(id="a", task="t", flow="f"), *[depending(f"b{at}") for at in range(6)])))
    cut.do(op.Enqueue((depending("c"), depending("d")), staged="S"))
    (grant,) = cut.do(op.Exchange("w", limit=1)).grants
    cut.do(op.Exchange("w", (Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FAILED, final=True),)))
    cut.do(op.Commit("S", 2))
    while cut.do(op.Tick()).more:
        cut.count()


def test_writing_to_a_finished_record_does_not_block_waiters(cut: RedisLockstep) -> None:
    needy = [JobSpec(id=f"b{at}", task="t", depends_on=(Dependency("a", when="done"),)) for at in range(4)]
    cut.do(op.Enqueue((JobSpec(id="a", task="t"), *needy)))
    cut.do(op.Cancel(("a",)))
    cut.do(op.Post((op.Note("a", None, ("line",)),)))
    (record,) = cut.do(op.Get(("a",))).records
    cut.do(op.Amend(attrs.evolve(record.spec, user="v"), record.version))
    while cut.do(op.Tick()).more:
        cut.count()
    assert [record.state for record in cut.do(op.Get(tuple([spec.id for spec in needy]))).records] == ["QUEUED"] * 4


def test_a_log_keeps_its_last_thousand_lines_however_they_come(lockstep: RedisLockstep) -> None:
    lockstep.do(op.Enqueue((JobSpec(id="a", task="t"),)))
    (grant,) = lockstep.do(op.Exchange("w", limit=1)).grants
    for count in (0, 1, 998, 1, 1, 2_500):
        lockstep.do(op.Post((op.Note("a", grant.token, tuple(str(number) for number in range(count))),)))
        lockstep.do(op.Get(("a",)))


def test_a_job_keeps_its_last_twenty_errors(lockstep: RedisLockstep) -> None:
    lockstep.do(op.Enqueue((JobSpec(id="a", task="t", policy=Policy(max_attempts=30)),)))
    for number in range(25):
        (grant,) = lockstep.do(op.Exchange("w", limit=1)).grants
        failed = Outcome(
            job_id="a", token=grant.token, kind=OutcomeKind.FAILED, error=JobError(type="E", message=str(number))
        )
        lockstep.do(op.Exchange("w", settle=(failed,)))
        lockstep.do(op.Get(("a",)))


@pytest.mark.slow
@pytest.mark.heavy
def test_restarted_store_begins_an_epoch_and_reaps_nothing_early(
    start_server: StartServer,
) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    lockstep = RedisLockstep(server=server, start_ms=IN_2020_MS)
    try:
        for seed in range(4):
            walk_together(lockstep, Random(seed), MIXED, 60)
            server.restart()
            lockstep.know_of_restart()
        lockstep.compare_all()
        lockstep.wind_down()
        lockstep.check_residue()
    finally:
        lockstep.close()


# --- where a spec stands: one of up to 128 bytes in the head of its job, any other in a hash, none in both ------------

# Behind the line end that a plain spec begins with, and behind what one says that replaces another.
SHORT, LONG = b"x" * 127, b"x" * 128
REPLACING, TOO_LONG = b"x" * 102, b"x" * 103
BYTES = (bytes(range(127)), bytes(range(129, 256)), b"\n\0\t\1\2" * 25, bytes(range(256)), b"\xff" * 128)


def alone(job_id: str, arguments: bytes, **more: Any) -> JobSpec:
    return JobSpec(id=job_id, task="t", claims=(Claim((job_id,)),), arguments=arguments, **more)


def held(lockstep: RedisLockstep) -> dict[str, bool]:
    """Return of which jobs the specs stand in heads, once all that is stored agrees; without the job of a new store."""
    lockstep.compare_all()
    found = specs_in_heads(lockstep.server, lockstep.namespace)
    return {job_id.decode(): bool(spec) for job_id, spec in found.items() if not job_id.startswith(b"epoch")}


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False], ids=["in one request", "one by one"])
def test_a_spec_of_any_bytes_arrives_from_where_it_stands(lockstep: RedisLockstep, at_once: bool) -> None:
    specs = [alone(f"j{at}", arguments) for at, arguments in enumerate((b"", SHORT, LONG, *BYTES))]
    for part in [specs] if at_once else [[spec] for spec in specs]:
        lockstep.do(op.Enqueue(tuple(part)))
    assert held(lockstep) == {spec.id: len(spec.arguments) < 128 for spec in specs}
    arrived: dict[str, bytes] = {}
    for limit in (len(specs),) if at_once else (1,) * len(specs):
        grants = lockstep.do(op.Exchange("w", limit=limit)).grants
        lockstep.repeat()
        arrived |= {grant.spec.id: grant.spec.arguments for grant in grants}
        lockstep.do(op.Exchange("w", settle=tuple(finished(grant) for grant in grants)))
    assert arrived == {spec.id: spec.arguments for spec in specs}
    assert held(lockstep) == {spec.id: len(spec.arguments) < 128 for spec in specs}
    lockstep.wind_down()
    lockstep.check_residue()


def finished(grant: Any, **more: Any) -> Outcome:
    return Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, **more)


def test_spec_replaced_by_a_longer_or_shorter_one_moves(lockstep: RedisLockstep) -> None:
    for at, arguments in enumerate((REPLACING, TOO_LONG, b"", LONG, TOO_LONG, REPLACING)):
        spec = alone(f"j{at}", arguments, key="k", on_conflict="replace")
        (told,) = lockstep.do(op.Enqueue((spec,))).jobs
        assert told.id == "j0"
        assert held(lockstep) == {"j0": len(arguments) <= 102}
    # The last of one request counts, whatever came before it.
    for last in (TOO_LONG, REPLACING):
        all_of_them = enumerate((b"", TOO_LONG, b"y", last))
        specs = [alone(f"k{at}", arguments, key="k", on_conflict="replace") for at, arguments in all_of_them]
        lockstep.do(op.Enqueue(tuple(specs)))
        assert held(lockstep) == {"j0": last is REPLACING}
    (grant,) = lockstep.do(op.Exchange("w", limit=1)).grants
    assert grant.spec.arguments == REPLACING


def test_job_replaced_in_its_own_request_has_the_last_spec(lockstep: RedisLockstep) -> None:
    for key, first, last in (("k", TOO_LONG, REPLACING), ("l", REPLACING, TOO_LONG)):
        specs = [alone(f"{key}{at}", each, key=key, on_conflict="replace") for at, each in enumerate((first, last))]
        lockstep.do(op.Enqueue(tuple(specs)))
    assert held(lockstep) == {"k0": True, "l0": False}


def test_digest_of_large_arguments_stands_at_its_length(lockstep: RedisLockstep) -> None:
    kept = Policy(retention_ms=1_000)
    specs = [
        alone("short", b"x" * 50, policy=kept),
        alone("long", LONG, policy=kept),
        alone("large", b"x" * 500, policy=kept),
        alone("named", b"x" * 500, policy=kept, flow="f" * 100),
    ]
    lockstep.do(op.Enqueue(tuple(specs)))
    grants = lockstep.do(op.Exchange("w", limit=9)).grants
    lockstep.do(op.Exchange("w", settle=tuple(finished(grant) for grant in grants)))
    assert held(lockstep) == {"short": True, "long": False, "large": False, "named": False}
    lockstep.go_to(lockstep.now_ms + 1_000)
    lockstep.do(op.Tick())
    assert held(lockstep) == {"short": True, "long": False, "large": True, "named": False}
    named_digest = spec_of(lockstep.server, lockstep.namespace, "named")
    assert named_digest is not None and 128 < len(named_digest) < 500
    for spec in specs:
        assert [told.id for told in lockstep.do(op.Enqueue((spec,))).jobs] == [spec.id]
        other = attrs.evolve(spec, arguments=spec.arguments + b"y")
        with pytest.raises(DuplicateJobError):
            lockstep.backend.call_sync(op.Enqueue((other,)))
    lockstep.go_to(lockstep.now_ms + 600_000)
    lockstep.do(op.Tick())
    assert held(lockstep) == {}
    lockstep.check_residue()


# --- a state machine, whose failures shrink --------------------------------------------------------------------------

lanes = st.integers(0, 3)


def spelled(value: Any, names: dict[str, str]) -> Any:
    """Return an operation, or a part of one, with other names for the segments of its paths."""
    if isinstance(value, tuple):
        return tuple([spelled(item, names) for item in value])
    if not attrs.has(type(value)):
        return value
    changed: dict[str, Any] = {}
    for field in attrs.fields(type(value)):
        held = getattr(value, field.name)
        if field.init and field.name == "path" and isinstance(held, tuple):
            changed[field.name] = tuple([names.get(segment, segment) for segment in held])
        elif field.init and isinstance(held, tuple):
            changed[field.name] = spelled(held, names)
    return attrs.evolve(value, **changed) if changed else value


class AgreementMachine(OperationMachine):
    """The operations of the kit, and faults of a network and a server; both stores are compared at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = "sync"

    @initialize(
        target=OperationMachine.ids,
        budget=st.sampled_from([op.BUDGET, op.BUDGET, 1, 2, 5]),
        start_ms=st.sampled_from([0, IN_2020_MS + 999]),
        alphabet=st.sampled_from(ALPHABETS),
        jobs=first_jobs,
    )
    def begin(self, budget: int, start_ms: int, alphabet: tuple[str, str], jobs: list[Any]) -> Any:
        self.lockstep = self.open(budget, start_ms)
        self.names = dict(zip("ab", alphabet, strict=True))
        return self.begin_with(jobs)

    def open(self, budget: int, start_ms: int) -> RedisLockstep:
        """Return what is compared."""
        return TwoWays(budget=budget, start_ms=start_ms)

    def do(self, operation: Any) -> Any:
        return self.lockstep.do(spelled(operation, self.names), shell=self.shell)

    @property
    def now_ms(self) -> int:
        return self.lockstep.now_ms

    def commit_of(self, staged: str) -> op.Commit:
        return commit_of(self.lockstep.engine, staged)

    def go_to(self, now_ms: int) -> None:
        self.lockstep.go_to(now_ms)

    def next_ms(self) -> int | None:
        return self.lockstep.engine.next_ms

    def ask_everything(self, claim: Claim) -> None:
        path = spelled(claim, self.names).path
        self.lockstep.ask(path, mode=claim.mode, depth=len(path))
        self.do(op.CountEdges())
        for flow in FLOWS:
            self.do(op.CountRecords(RecordFilter(flow=flow)))
            self.do(op.List(RecordFilter(flow=flow), limit=2))
        for key in SHARED_KEYS:
            self.do(op.Pull("n", key))
            self.do(op.ListShared("n", after=key, limit=1))
        self.do(op.ListShared("n"))

    @rule(lane=lanes)
    def send_a_request_again(self, lane: int) -> None:
        self.lockstep.repeat(lane)

    @rule(lane=lanes)
    def send_a_request_late(self, lane: int) -> None:
        self.lockstep.repeat_late(lane)

    @rule(shell=st.sampled_from(["sync", "async"]))
    def go_on_in_a_shell(self, shell: str) -> None:
        self.shell = shell

    @rule(what=st.sampled_from(["forget_scripts", "cut_connections", "close_pools"]))
    def interrupt(self, what: str) -> None:
        getattr(self.lockstep, what)()

    @rule(some=st.lists(OperationMachine.ids, min_size=1, max_size=3))
    def watch(self, some: list[str]) -> None:
        self.lockstep.watch(tuple(some))

    @invariant()
    def indexes_agree_with_a_recount(self) -> None:
        self.lockstep.recount()

    def teardown(self) -> None:
        if hasattr(self, "lockstep"):
            try:
                self.lockstep.compare_all()
                self.lockstep.wind_down()
                self.lockstep.check_residue()
            finally:
                self.lockstep.close()


TestAgreement = pytest.mark.slow(pytest.mark.heavy(AgreementMachine.TestCase))
# A step is a hundred times as dear as without a store: there are fewer examples in every profile.
TestAgreement.settings = settings(
    max_examples=max(12, settings().max_examples // 4), suppress_health_check=[HealthCheck.too_slow]
)


class JournalsMachine(AgreementMachine):
    """The same, with a file and PostgreSQL beside them, whose leaders and sessions end at any time."""

    def open(self, budget: int, start_ms: int) -> RedisLockstep:
        return RedisLockstep(budget=budget, start_ms=start_ms, ways=WAYS if thorough(1, quick=0) else DAILY)

    @rule(fault=st.sampled_from(FAULTS))
    def go_on_elsewhere(self, fault: str) -> None:
        self.lockstep.fail_beside(fault)


TestJournals = pytest.mark.usefixtures("postgres_server")(pytest.mark.heavy(JournalsMachine.TestCase))
TestJournals.settings = settings(
    max_examples=max(3, settings().max_examples // 20), suppress_health_check=[HealthCheck.too_slow]
)


# --- facts ------------------------------------------------------------------------------------------------------------

PRUNED = Policy(retention_ms=1_000)
Make = Callable[..., RedisLockstep]


@pytest.fixture
def make() -> Iterator[Make]:
    """A maker of pairs, each with so much room for facts."""
    made: list[RedisLockstep] = []

    def make_one(room: int = FACTS_MAX) -> RedisLockstep:
        made.append(RedisLockstep(start_ms=1_600_000_000_000, room=room))
        return made[-1]

    yield make_one
    for lockstep in made:
        lockstep.close()


def facts_held(lockstep: RedisLockstep) -> set[bytes]:
    """Return the tasks of the facts that are held, once all that is stored agrees."""
    lockstep.compare_all()
    client: Any = lockstep.server.client()
    found = client.hvals(keys.redis_key(lockstep.namespace, "facts"))
    return {text.split(b"\n")[2] for text in found if not text.startswith(CROWD)}


def jobs_named(lockstep: RedisLockstep) -> set[str]:
    """Return the ids of the jobs whose heads name their facts, once all that is stored agrees."""
    lockstep.compare_all()
    return {job_id.decode() for job_id, name in names_of_facts(lockstep.server, lockstep.namespace).items() if name}


def end_some(lockstep: RedisLockstep, *, count: int = 100) -> None:
    """Claim so many jobs and settle them, then let a second pass, after which none of them is kept."""
    grants = lockstep.do(op.Exchange("w", limit=count)).grants
    done = [Outcome(job_id=each.spec.id, token=each.token, kind=OutcomeKind.FINISHED) for each in grants]
    lockstep.do(op.Exchange("w", settle=tuple(done)))
    lockstep.go_to(lockstep.now_ms + 1_000)
    while lockstep.do(op.Tick()).more:
        pass


def pruned_specs(prefix: str, count: int, task: str, **more: Any) -> tuple[JobSpec, ...]:
    return tuple(JobSpec(id=f"{prefix}{at}", task=task, policy=PRUNED, **more) for at in range(count))


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("room", [0, 1, 3])
@pytest.mark.parametrize("style", [ALL_AT_ONCE, IN_PARTS, KEYED], ids=["all at once", "in parts", "keyed"])
def test_walks_agree_with_little_room_for_facts(make: Make, style: Style, room: int) -> None:
    lockstep = make(room)
    walk_together(lockstep, Random(room), style, STEPS)
    lockstep.compare_all()
    lockstep.wind_down()
    lockstep.check_residue()


@pytest.mark.slow
@pytest.mark.parametrize("one_by_one", [True, False])
def test_facts_leave_with_their_last_block_of_records(make: Make, one_by_one: bool) -> None:
    lockstep = make()
    first, last = pruned_specs("first", 1, "a"), pruned_specs("last", 1, "a")
    lockstep.do(op.Enqueue(first))
    for at in range(0, 1_100, 100):
        lockstep.do(op.Enqueue(pruned_specs(f"{at}-", 100, "b")))
    lockstep.do(op.Enqueue(last))
    if not one_by_one:
        lockstep.do(op.Enqueue(pruned_specs("more", 5, "c")))
    assert facts_held(lockstep) == {b"a", b"b"} | (set() if one_by_one else {b"c"})
    end_some(lockstep, count=50)
    assert facts_held(lockstep) >= {b"a", b"b"}
    while lockstep.engine.table.jobs:
        end_some(lockstep)
    assert not facts_held(lockstep)
    lockstep.do(op.Enqueue(pruned_specs("again", 1 if one_by_one else 2, "a")))
    assert facts_held(lockstep) == {b"a"}


@pytest.mark.slow
def test_facts_forgotten_within_a_step_leave_the_index_empty(make: Make) -> None:
    lockstep = make()
    for part in range(3):
        jobs = [pruned_specs(f"{part}-{at}-", 1, "t", user=f"{part}-{at}")[0] for at in range(500)]
        lockstep.do(op.Enqueue(tuple(jobs)))
    client: Any = lockstep.server.client()
    fields = client.hkeys(keys.redis_key(lockstep.namespace, "index"))
    assert {field[:1] for field in fields} == {b"#", b"a", b"f", b"s", b"u"}
    while lockstep.engine.table.jobs:
        end_some(lockstep)
    assert not facts_held(lockstep)
    assert lockstep.do(op.List(RecordFilter(task="t"))).records == ()
    lockstep.wind_down()
    lockstep.check_residue()


def test_step_that_swaps_the_last_record_keeps_its_facts(make: Make) -> None:
    lockstep = make()
    lockstep.do(op.Enqueue(pruned_specs("a", 1, "a")))
    (grant,) = lockstep.do(op.Exchange("w", limit=1)).grants
    lockstep.do(op.Exchange("w", (Outcome(job_id="a0", token=grant.token, kind=OutcomeKind.FINISHED),)))
    lockstep.go_to(lockstep.now_ms + 1_000)
    lockstep.do(op.Enqueue(pruned_specs("b", 1, "a")))
    assert facts_held(lockstep) == {b"a"}
    assert jobs_named(lockstep) == {"b0"}


def test_job_created_and_removed_in_one_step_leaves_nothing(make: Make) -> None:
    lockstep = make()
    lockstep.do(op.Enqueue((JobSpec(id="a", task="fails", policy=Policy(retention_ms=0)),)))
    lockstep.do(op.Cancel(("a",)))
    late = JobSpec(id="b", task="late", run_at_ms=1, policy=Policy(retention_ms=0, start_within_ms=1))
    lockstep.do(op.Enqueue((late,)))
    lockstep.go_to(lockstep.now_ms + 5)
    lockstep.do(op.Tick())
    lockstep.go_to(lockstep.now_ms + 600_000)
    lockstep.do(op.Tick())
    assert not facts_held(lockstep)


def test_a_job_that_is_replaced_or_amended_leaves_its_facts(make: Make) -> None:
    lockstep = make()
    keyed = JobSpec(id="k", task="a", key="k", on_conflict="replace")
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("a", {}),
        ("b", {}),
        ("b", {"priority": 1}),
        ("c", {"pool": "p", "user": "u", "tags": ("x",)}),
    )
    for task, more in changes:
        lockstep.do(op.Enqueue((attrs.evolve(keyed, id=f"k{task}", task=task, **more),)))
        assert facts_held(lockstep) == {task.encode()}
        assert jobs_named(lockstep) == {"ka"}
    plain = JobSpec(id="p", task="d", service="s", user="u", tags=("y",))
    lockstep.do(op.Enqueue((plain,)))
    amended: tuple[dict[str, Any], ...] = ({"service": "t"}, {"user": "v"}, {"service": None}, {"user": None})
    for version, changed in enumerate(amended, 1):
        plain = attrs.evolve(plain, **changed)
        lockstep.do(op.Amend(plain, version))
        assert facts_held(lockstep) == {b"c", b"d"}
        assert jobs_named(lockstep) == {"ka", "p"}


def test_staged_jobs_are_in_no_index(make: Make) -> None:
    lockstep = make()
    lockstep.do(op.Enqueue(pruned_specs("s", 2, "staged"), staged="parts"))
    assert not facts_held(lockstep)
    lockstep.do(op.Commit("parts", 2))
    while lockstep.do(op.Tick()).more:
        pass
    assert facts_held(lockstep) == {b"staged"}
    assert jobs_named(lockstep) == {"s0", "s1"}
    lockstep.do(op.Cancel(("s0",)))
    lockstep.do(op.Delete(("s0",)))
    assert jobs_named(lockstep) == {"s1"}
    lockstep.do(op.Cancel(("s1",)))
    lockstep.do(op.Delete(("s1",)))
    assert not facts_held(lockstep)
    assert set(names_of_facts(lockstep.server, lockstep.namespace)) >= {b"s0", b"s1"}
    lockstep.wind_down()
    lockstep.check_residue()


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
def test_facts_without_room_stay_in_heads_until_it_appears(make: Make, at_once: bool) -> None:
    lockstep = make(1)
    jobs = (*pruned_specs("b", 2, "b", user="u", service="s", tags=("x", "y")), *pruned_specs("c", 1, "c"))
    lockstep.do(op.Enqueue(pruned_specs("a", 2, "a")))
    for part in [jobs] if at_once else [(job,) for job in jobs]:
        lockstep.do(op.Enqueue(part))
    assert jobs_named(lockstep) == {"a0", "a1"}
    lockstep.leave_room(2)
    lockstep.do(op.Enqueue(pruned_specs("d", 1, "b")))
    assert jobs_named(lockstep) == {"a0", "a1", "d0"}
    lockstep.do(op.Enqueue(pruned_specs("e", 1, "c")))
    assert jobs_named(lockstep) == {"a0", "a1", "d0"}
    lockstep.leave_room(3)
    lockstep.do(op.Cancel(("c0",)))
    assert jobs_named(lockstep) == {"a0", "a1", "d0"}
    while lockstep.engine.table.jobs:
        end_some(lockstep, count=1)
        lockstep.compare_all()
        lockstep.go_to(lockstep.engine.next_ms or 0)
    lockstep.wind_down()
    lockstep.check_residue()


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
def test_facts_too_long_for_a_name_stand_in_heads(make: Make, at_once: bool) -> None:
    lockstep = make()
    tags = tuple(sorted(f"{at}" + "t" * 40 for at in range(8)))
    jobs = (
        JobSpec(id="fits", task="t", user="u" * 249),
        JobSpec(id="long-user", task="t", user="u" * 250),
        JobSpec(id="tags", task="t", tags=tags),
        JobSpec(id="long", task="t" * 256, pool="p" * 256),
        JobSpec(id="fits-too", task="t", user="ü" * 124),
    )
    for part in [jobs] if at_once else [(job,) for job in jobs]:
        lockstep.do(op.Enqueue(part))
    assert jobs_named(lockstep) == {"fits", "fits-too"}
    grants = lockstep.do(op.Exchange("w", pools=("default", "p" * 256), limit=10)).grants
    assert {grant.spec for grant in grants} == set(jobs)
    lockstep.compare_all()


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_another_text_of_the_same_id_is_left_alone(make: Make, is_known: bool, at_once: bool) -> None:
    lockstep, jobs = make(), pruned_specs("a", 2, "a")
    client: Any = lockstep.server.client()
    key, text = keys.redis_key(lockstep.namespace, "facts"), common_facts(jobs[0])
    if is_known:
        lockstep.do(op.Enqueue(pruned_specs("before", 2, "a")))
        end_some(lockstep)
    lockstep.is_crowded = True
    client.hset(key, facts_id(text), CROWD + b"\n\n")
    for part in [jobs] if at_once else [(job,) for job in jobs]:
        lockstep.do(op.Enqueue(part))
    assert not any(names_of_facts(lockstep.server, lockstep.namespace).values())
    assert [grant.spec for grant in lockstep.do(op.Exchange("w", limit=5)).grants] == list(jobs)
    client.hdel(key, facts_id(text))
    lockstep.compare_all()


def all_filters() -> list[RecordFilter]:
    """Return each selection of a user, a service, a task, a pool, a tag and states."""
    values = {"task": "t1", "pool": "p1", "service": "s1", "user": "u1", "tag": "x"}
    found = []
    for count in range(len(values) + 1):
        for names in itertools.combinations(values, count):
            selected: dict[str, Any] = {name: values[name] for name in names}
            found += [RecordFilter(**selected), RecordFilter(**selected, states=(JobState.CANCELED, JobState.QUEUED))]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("room", [FACTS_MAX, 6, 0])
def test_listing_agrees_for_pruned_and_indexed_facts(make: Make, room: int) -> None:
    lockstep = make(room)
    choices = itertools.product(("t1", "t2"), ("p1", "p2"), ("s1", None), ("u1", None), ((), ("x",), ("x", "y")))
    jobs = [
        JobSpec(id=f"j{at}", task=task, pool=pool, service=service, user=user, tags=tags)
        for at, (task, pool, service, user, tags) in enumerate(choices)
    ]
    Random(room).shuffle(jobs)
    for job in jobs:
        lockstep.do(op.Enqueue((job,)))
        lockstep.go_to(lockstep.now_ms + 1)
    lockstep.do(op.Cancel(tuple([job.id for job in jobs[::5]])))
    middle_ms = lockstep.now_ms - len(jobs) // 2
    for wanted in all_filters():
        for newest_first, since_ms in itertools.product((False, True), (None, middle_ms)):
            asked = attrs.evolve(wanted, since_ms=since_ms)
            after: Any = ("", 0) if not newest_first else ("", lockstep.engine.table.last_number + 1)
            while after is not None:
                after = lockstep.do(op.List(asked, newest_first, after, 7)).after
            lockstep.do(op.CountRecords(asked))
            lockstep.do(op.CountRecords(asked, ("", len(jobs) // 3)))


@pytest.mark.parametrize("room", [FACTS_MAX, 1])
def test_a_limit_counts_the_unfinished_jobs_of_all_facts(make: Make, room: int) -> None:
    lockstep = make(room)
    jobs = [
        JobSpec(id=f"j{at}", task="t", pool=("p", "q")[at % 2], priority=1 + at % 3, service=("s", None)[at % 4 == 0])
        for at in range(12)
    ]
    lockstep.do(op.Enqueue(tuple(jobs)))
    lockstep.do(op.Cancel(("j0", "j1", "j2")))
    for limit in (Limit(task="t", max_pending=10), Limit(pool="p", max_pending=5)):
        lockstep.limit(limit)
    lockstep.compare_all()
    lockstep.do(op.Enqueue((JobSpec(id="one", task="t", pool="p"),)))
    assert lockstep.do(op.Enqueue((JobSpec(id="more", task="t", pool="p"),))) is None


def test_a_question_that_many_facts_pass_looks_at_fewer_blocks(make: Make) -> None:
    lockstep = make(10)
    skip = (
        STATE_FORMAT
        + """local state = unpack_state(redis.call('HGET', KEYS[1], 'state'))
        state[3] = state[3] + 1023
        redis.call('HSET', KEYS[1], 'state', pack_state(state))"""
    )
    for at in range(40):
        lockstep.do(op.Enqueue((JobSpec(id=str(at), task="t", pool="none"),)))
        lockstep.server.call("EVAL", skip, 1, keys.redis_key(lockstep.namespace, "meta"))
        lockstep.engine.table.last_number += 1_023
    pages: list[int] = []
    after = None
    while not pages or after is not None:
        page = lockstep.backend.call_sync(op.List(RecordFilter(pool="none"), False, after, 200))
        pages.append(len(page.records))
        after = page.after
    # 247 of facts pass: 4 096 fields are those of 17 blocks.
    assert pages == [17, 17, 6]
    assert lockstep.backend.call_sync(op.CountRecords(RecordFilter(pool="none"))).total == 17
    lockstep.compare_all()


@pytest.mark.slow
@pytest.mark.parametrize("counter", ["number", "place"])
def test_number_too_large_for_a_plain_head_uses_an_array(make: Make, counter: str) -> None:
    lockstep = make()
    raise_it = (
        STATE_FORMAT
        + """local state = unpack_state(redis.call('HGET', KEYS[1], 'state'))
        state[tonumber(ARGV[1])] = 2 ^ 48 - 2
        redis.call('HSET', KEYS[1], 'state', pack_state(state))"""
    )
    at = {"number": 3, "place": 4}[counter]
    lockstep.server.call("EVAL", raise_it, 1, keys.redis_key(lockstep.namespace, "meta"), at)
    if counter == "number":
        lockstep.engine.table.last_number = 2**48 - 2
    else:
        lockstep.engine.table.last_seq = 2**48 - 2
    for at in range(3):
        lockstep.do(op.Enqueue((JobSpec(id=str(at), task="t"),)))
    lockstep.do(op.Enqueue(pruned_specs("more", 3, "t")))
    assert len(jobs_named(lockstep)) == 6
    end_some(lockstep)
    lockstep.compare_all()
