"""Seeded random walks: the engine against the plain definition of its rules, whole and cut anywhere."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest

from queuehint.core.engine import Engine, EngineOptions
from queuehint.errors import QueueHintError
from queuehint.operations import Enqueue, Exchange, Tick
from queuehint.testing.invariants import check_order, check_ready
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.lockstep import RETENTION, Lockstep
from queuehint.testing.state_machine.styles import (
    ALL_AT_ONCE,
    EXCLUSIVE_STYLES,
    MINUTE,
    MIXED,
    PATHS,
    SHARING,
    STYLES,
    TANGLED,
    WOVEN,
    Style,
    one_claim,
)
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec
from tests.property.walks import walk_cut, walk_in_step, walk_overtaking
from tests.support import thorough

BUDGETS = (1, 2, 5)
STEPS = thorough(400, quick=120)


def run(walk: Callable[[Random], Any], seeds: range) -> None:
    """Walk from each seed; a failure says from which, so that one line repeats it."""
    for seed in seeds:
        try:
            walk(Random(seed))
        except Exception as error:
            error.add_note(f"The walk from Random({seed}).")
            raise


def named(style: Style) -> str:
    edges = f" edges={style.edges} parts={style.parts}" if style.edges else ""
    return f"shared={style.shared} keyed={style.keyed} jobs={style.unfinished_max}{edges}"


# --- 5 000 steps by default, 98 000 for each mutant, millions every night --------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("style", STYLES, ids=named)
def test_the_engine_and_the_plain_definition_agree_after_every_step(style: Style) -> None:
    run(partial(walk_in_step, style=style, steps=STEPS), range(thorough(14, quick=1)))


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("style", EXCLUSIVE_STYLES, ids=named)
def test_wherever_work_is_cut_it_ends_where_uncut_work_ends(style: Style, budget: int) -> None:
    calm = attrs.evolve(style, due_within=False)
    run(partial(walk_cut, style=calm, steps=STEPS // 2, budget=budget), range(thorough(5, quick=1)))


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("style", STYLES, ids=named)
def test_order_holds_while_newcomers_overtake_leftovers(style: Style, budget: int) -> None:
    run(partial(walk_overtaking, style=style, steps=STEPS, budget=budget), range(thorough(4, quick=1)))


@pytest.mark.slow
@pytest.mark.heavy
def test_the_rules_hold_where_every_feature_meets_every_other() -> None:
    seeds = range(thorough(2, quick=1))
    run(partial(walk_in_step, style=ALL_AT_ONCE, steps=STEPS), seeds)
    for budget in BUDGETS:
        run(partial(walk_overtaking, style=ALL_AT_ONCE, steps=STEPS, budget=budget), seeds)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize(
    "seed, style",
    [
        pytest.param(1033, WOVEN, id="a record is deleted before the end of its job is resolved"),
        pytest.param(1779, SHARING, id="the last job of a path is enqueued again after its deletion"),
    ],
)
def test_engine_and_definition_agree_in_formerly_wrong_walks(seed: int, style: Style) -> None:
    run(partial(walk_in_step, style=style, steps=400), range(seed, seed + 1))


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("style", [*STYLES, ALL_AT_ONCE], ids=named)
def test_engine_and_definition_agree_for_millions_of_steps(style: Style, block: int) -> None:
    begin = 1_000 + 100 * block
    run(partial(walk_in_step, style=style, steps=STEPS), range(begin, begin + 100))
    calm = attrs.evolve(style, due_within=False, shared=0.0)
    for budget in (*BUDGETS, 3, 11):
        run(partial(walk_cut, style=calm, steps=STEPS // 2, budget=budget), range(begin, begin + 20))
        run(partial(walk_overtaking, style=style, steps=STEPS, budget=budget), range(begin, begin + 20))


# --- the walks are worth walking -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "style, expected",
    [
        (MIXED, {"Node", "CancelSweep", "DiscardSweep", "UnparkSweep", "ResolveSweep"}),
        (
            TANGLED,
            {
                "Node",
                "CancelSweep",
                "CancelFlowSweep",
                "DiscardSweep",
                "UnparkSweep",
                "CommitSweep",
                "DropSweep",
                "ResolveSweep",
                "ReleaseSweep",
                "ReviveSweep",
            },
        ),
    ],
    ids=["places", "edges"],
)
def test_the_walks_reach_every_kind_of_state_and_leftover(style: Style, expected: set[str]) -> None:
    states: set[Any] = set()
    sweeps: set[str] = set()
    verdicts: set[Any] = set()
    for seed in range(17, 29):
        engine = Engine(EngineOptions(budget=1, retention=RETENTION))
        generator = OperationGenerator(engine, Random(seed), style)
        now_ms = 0
        for _ in range(3_000):
            now_ms = generator.pass_time(now_ms)
            try:
                reply = engine.apply(generator.move(), now_ms)
            except QueueHintError:
                continue
            states |= {job.state for job in engine.table.jobs.values()}
            sweeps |= {type(item).__name__ for item in engine.table.leftovers}
            verdicts |= set(getattr(reply, "verdicts", ()))
        if seed >= 19 and sweeps >= expected:
            break
    assert states == set(JobState)
    assert sweeps >= expected
    assert len(verdicts) >= 6


# --- the same operations give the same answers -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES, ids=named)
def test_equal_operations_at_equal_times_give_equal_replies(style: Style) -> None:
    history = walk_in_step(Random(7), style, STEPS).history
    assert replies(history) == replies(history)


def replies(history: list[Any]) -> list[Any]:
    engine = Engine(EngineOptions(budget=3, retention=RETENTION))
    answers: list[Any] = []
    for now_ms, operation in history:
        try:
            answers.append(engine.apply(operation, now_ms))
        except QueueHintError as error:
            answers.append((type(error), str(error)))
    return answers


@pytest.mark.slow
def test_replies_do_not_depend_on_how_strings_are_hashed() -> None:
    """Compare two new processes: this one may have run other tests, or have loaded what was edited since."""
    program = "from tests.property.test_engine_random import print_replies\nprint_replies()\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**environment, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    ended = [(process, *process.communicate()) for process in started]
    for process, _, errors in ended:
        assert process.returncode == 0, errors
    first, second = (said.splitlines() for _, said, _ in ended)
    assert len(first) == len(second) == len(STYLES) > 0
    for style, one, other in zip(STYLES, first, second, strict=True):
        assert one == other, f"{named(style)}: strings are hashed in another way in these processes"


def print_replies() -> None:
    """Print the replies to a walk of each style, a line each."""
    for style in STYLES:
        print(repr(replies(walk_in_step(Random(9), style, 60).history)))


# --- what random walks are unlikely to reach -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 2, 5, 50])
def test_line_behind_a_parent_advances_in_order_at_any_budget(budget: int) -> None:
    engine = Engine(EngineOptions(budget=budget, retention=RETENTION))
    random = Random(budget)
    specs = [JobSpec(id="root", task="t", claims=one_claim((), "exclusive"))]
    specs += [JobSpec(id=str(n), task="t", claims=one_claim(random.choice(PATHS), "exclusive")) for n in range(100)]
    engine.apply(Enqueue(tuple(specs)), 0)
    over = 0
    while over < len(specs):
        grants = engine.apply(Exchange("w", limit=1), 0).grants
        settle = tuple(Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED) for grant in grants)
        over += len(settle)
        engine.apply(Exchange("w", settle=settle), 0)
        check_order(engine)
        engine.check()
        if not engine.table.leftovers:
            check_ready(engine)
    assert not engine.apply(Tick(), 0).more
    assert engine.table.trie.nodes == 0


def test_cancel_behind_holds_its_place_until_the_last_cancellation() -> None:
    engine = Engine(EngineOptions(budget=1, retention=RETENTION))
    policy = Policy(max_attempts=1, on_dead="cancel_behind")
    first = JobSpec(id="first", task="t", claims=one_claim(("a",), "exclusive"), policy=policy)
    behind = [JobSpec(id=str(n), task="t", claims=one_claim(("a", "b"), "exclusive")) for n in range(20)]
    above = JobSpec(id="above", task="t", claims=one_claim((), "exclusive"))
    engine.apply(Enqueue((first, *behind, above)), 0)
    grant = engine.apply(Exchange("w", limit=1), 0).grants[0]
    failed = Outcome(job_id="first", token=grant.token, kind=OutcomeKind.FAILED)
    reply = engine.apply(Exchange("w", settle=(failed,), limit=100), 0)
    while reply.more:
        assert not reply.grants or all(engine.table.jobs[spec.id].is_over for spec in behind)
        engine.apply(Tick(), 0)
        late = JobSpec(id=f"late{engine.table.last_number}", task="t", claims=one_claim(("a",), "exclusive"))
        if engine.table.last_number < 40:
            engine.apply(Enqueue((late,)), 0)
        engine.check()
        check_order(engine)
        reply = engine.apply(Exchange("w", limit=100), 0)
    states = [engine.table.jobs[spec.id].state for spec in behind]
    assert states == ["CANCELED"] * 20
    assert [job.id for job in engine.table.registry.running.values()] == ["above"]
    late_states = {job.state for job in engine.table.jobs.values() if job.id.startswith("late")}
    assert late_states == {"QUEUED"}


def test_caller_that_returned_a_place_is_not_awaited() -> None:
    pair = Lockstep()
    for number, kind in enumerate(OutcomeKind):
        spec = JobSpec(id=str(number), task="t", claims=one_claim(("a",), "exclusive"), presence_ms=MINUTE)
        pair.do(Enqueue((spec,)))
        grant = pair.do(Exchange("w", limit=1)).grants[0]
        pair.do(Exchange("w", settle=(Outcome(job_id=spec.id, token=grant.token, kind=kind, delay_ms=MINUTE),)))
        assert pair.engine.table.jobs[spec.id].is_over
    pair.wind_down()
