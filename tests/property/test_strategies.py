"""Strategies of the kit: drawn values are valid, shrink to small ones, and often conflict."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import find as find_by
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

import _queuehint_hypothesis
import queuehint
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.memory import MemoryBackend
from queuehint.clock import FakeClock
from queuehint.errors import InvalidHintError, InvalidJobError, InvalidJobTypeError, QueueHintError
from queuehint.operations.bounds import OTHER_FLOW, check_limits
from queuehint.testing import registration
from queuehint.testing.simulation import FaultPlan
from queuehint.testing.strategies import (
    HOSTILE,
    claims,
    fault_plans,
    hints,
    job_graphs,
    jobs,
    operations,
    policies,
    recurrences,
    schedules,
)
from queuehint.testing.strategies.vocabulary import MAKERS
from queuehint.values.hint import Claim, conflict, parse_claims, parse_hint
from queuehint.values.outcome import Outcome
from queuehint.values.schedule import Recurrence, Schedule
from queuehint.values.spec import JobSpec
from queuehint.worker.schedules.due_times import check_recurrence
from tests.each import for_each

ROOT = Path(__file__).parents[2]
EVERY_FIELD: dict[str, Any] = {
    "policy": policies(),
    "priority": st.sampled_from([3, 1, 5, 9]),
    "user": st.sampled_from([None, "ann"]),
    "delay_ms": st.none() | st.integers(0, 1000),
    "key": st.none() | st.just("k"),
    "on_conflict": st.sampled_from(["return", "replace", "after"]),
}


def open_store() -> MemoryBackend:
    return MemoryBackend(BackendOptions(clock=FakeClock()))


INVALID = (InvalidJobError, InvalidJobTypeError, InvalidHintError)


def refused(store: MemoryBackend, operation: op.Operation[Any]) -> QueueHintError | None:
    try:
        store.call_sync(operation)
    except QueueHintError as error:
        return error
    return None


def moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def find(strategy: st.SearchStrategy[Any], predicate: Callable[[Any], object]) -> Any:
    """Find the smallest that a predicate holds for, without an explanation, which takes ten times as long."""
    phases = settings(phases=[Phase.generate, Phase.shrink], database=None, max_examples=2_000)
    return find_by(strategy, lambda value: bool(predicate(value)), settings=phases)


# --- generated values are valid --------------------------------------------------------------------------------------


@given(st.data(), st.booleans(), st.sampled_from([0, 1, 2, 17, 64]), st.booleans())
def test_a_hint_is_one_that_is_taken(data: st.DataObject, hostile: bool, max_depth: int, allow_none: bool) -> None:
    hint = data.draw(hints(hostile=hostile, max_depth=max_depth, allow_none=allow_none))
    path = parse_hint(hint)
    assert hint == (None if path is None else list(path))
    assert allow_none or hint is not None


@given(claims(), claims(modes=["shared"], hints=hints(allow_none=False, hostile=True)))
def test_a_claim_is_one_that_is_taken(claim: Claim, shared: Claim) -> None:
    assert parse_claims([claim]) == (claim,)
    assert parse_claims([shared]) == (Claim(shared.path, "shared"),)


@given(jobs(), jobs(max_claims=5, **EVERY_FIELD))
def test_generated_job_is_stored_unchanged_with_a_unique_id(job: JobSpec, other: JobSpec) -> None:
    assert job.check() == job
    assert other.check() == other
    assert [each.state for each in open_store().call_sync(op.Enqueue((job, other))).jobs]
    assert (job.id, other.id) == ("1", "2")


@given(st.data())
def test_ids_are_distinct_wherever_in_a_test_jobs_are_drawn(data: st.DataObject) -> None:
    drawn = [data.draw(jobs()), *data.draw(st.lists(jobs(), max_size=3)), *data.draw(job_graphs())]
    assert len({job.id for job in drawn}) == len(drawn)


@given(
    st.data(),
    job_graphs(jobs=jobs(**EVERY_FIELD), max_jobs=8, max_edges=4, whens=["success", "failure", "done"]),
)
def test_generated_graph_can_be_enqueued_in_any_order(data: st.DataObject, graph: tuple[JobSpec, ...]) -> None:
    at_once = data.draw(st.permutations(graph))
    assert len(open_store().call_sync(op.Enqueue(tuple(at_once))).jobs) == len(graph)
    if not any(job.key for job in graph):
        one_by_one = open_store()
        for job in graph:
            assert one_by_one.call_sync(op.Enqueue((job,))).jobs[0].created


@given(recurrences(), recurrences(allow_cron=True))
def test_a_recurrence_is_one_that_is_taken(recurrence: Recurrence, other: Recurrence) -> None:
    for each in (recurrence, other):
        assert each == check_recurrence(
            cron=each.cron,
            every=None if each.every_ms is None else timedelta(milliseconds=each.every_ms),
            timezone=None if each.cron is None else each.timezone,
            missed=each.missed,
            start=moment(each.start_ms),
            end=moment(each.end_ms),
        )


@given(schedules())
def test_generated_schedule_is_stored_and_listed_unchanged(schedule: Schedule) -> None:
    store = open_store()
    store.call_sync(op.PutSchedule(schedule.name, schedule.spec, schedule.recurrence, schedule.next_ms))
    (stored,) = store.call_sync(op.ListSchedules()).schedules
    assert (stored.spec, stored.recurrence, stored.next_ms) == (schedule.spec, schedule.recurrence, schedule.next_ms)


@given(st.lists(operations(), min_size=1, max_size=10))
def test_generated_operation_is_valid_or_refused_for_the_state(history: list[op.Operation[Any]]) -> None:
    store = open_store()
    for operation in history:
        check_limits(operation)
        refusal = refused(store, operation)
        # Refusals of `Amend`, and of a part of another flow, depend on the state of the store.
        is_there = isinstance(operation, op.Amend) or str(refusal) == OTHER_FLOW
        assert is_there or not isinstance(refusal, INVALID), refusal


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_with_the_grants_that_are_there_operations_settle_and_renew(data: st.DataObject) -> None:
    store = open_store()
    store.call_sync(op.Enqueue((JobSpec(id="x", task="t"), JobSpec(id="y", task="t"))))
    grants = [(each.spec.id, each.token) for each in store.call_sync(op.Exchange("w", limit=2)).grants]
    chosen = data.draw(operations(kinds=[op.Renew], ids=["x", "y"], grants=grants))
    assert isinstance(chosen, op.Renew)
    assert set(store.call_sync(chosen).verdicts) <= {op.Verdict.DONE}
    settled = data.draw(operations(kinds=[op.Exchange], ids=["x", "y"], grants=grants))
    assert isinstance(settled, op.Exchange)
    verdicts = store.call_sync(settled).verdicts
    seen: set[str] = set()
    for outcome, verdict in zip(settled.settle, verdicts, strict=True):
        assert (verdict is op.Verdict.DONE) == (outcome.job_id not in seen)
        seen.add(outcome.job_id)


def test_every_operation_is_drawn() -> None:
    every = {
        each
        for each in vars(op).values()
        if isinstance(each, type) and issubclass(each, op.Operation) and each is not op.Operation
    }
    assert set(MAKERS) == every


@given(fault_plans(), fault_plans(most=1))
def test_generated_fault_rates_stay_within_their_limits(plan: FaultPlan, other: FaultPlan) -> None:
    assert max(plan.crash, plan.lose_reply, plan.restart) <= 0.2
    assert other.rollback <= 50


# --- generated values shrink -----------------------------------------------------------------------------------------


def test_generated_hint_shrinks_towards_no_place_then_root() -> None:
    assert find(hints(), lambda _: True) is None
    assert find(hints(), lambda hint: hint is not None) == []
    assert find(hints(), lambda hint: hint) == ["a"]
    assert find(hints(allow_none=False), lambda _: True) == []
    assert find(hints(alphabet=["doc", "page"], min_depth=2, hostile=True), lambda hint: hint is not None) == [
        "doc",
        "doc",
    ]


def test_a_job_shrinks_towards_no_place_and_an_exclusive_claim() -> None:
    assert find(jobs(), lambda _: True) == JobSpec(id="1", task="task")
    assert find(jobs(), lambda job: len(job.claims) == 2).claims == (Claim(("a",)), Claim(("b",)))


def test_a_graph_shrinks_towards_one_job_and_no_edges() -> None:
    assert find(job_graphs(), lambda _: True) == (JobSpec(id="1", task="task"),)
    assert [job.depends_on for job in find(job_graphs(), lambda graph: len(graph) == 3)] == [(), (), ()]
    pair = find(job_graphs(), lambda graph: any(conflict(a.claims, b.claims) for a, b in combinations(graph, 2)))
    assert [(job.claims, job.depends_on) for job in pair] == [((Claim(()),), ())] * 2


def test_operations_faults_and_schedules_shrink_to_the_simplest() -> None:
    assert find(operations(), lambda _: True) == op.Tick()
    assert find(fault_plans(), lambda _: True) == FaultPlan()
    only_crashes = find(fault_plans(), lambda plan: plan.crash > 0)
    assert only_crashes == FaultPlan(crash=only_crashes.crash)
    assert find(recurrences(), lambda _: True) == Recurrence(every_ms=1000)
    assert find(recurrences(), lambda each: each.cron is not None).cron == "* * * * *"


# --- what is drawn meets ---------------------------------------------------------------------------------------------


def sample(strategy: st.SearchStrategy[Any], count: int = 300) -> list[Any]:
    drawn: list[Any] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(value: Any) -> None:
        drawn.append(value)

    draw()
    return drawn


def share(values: list[Any], predicate: Any) -> float:
    return sum(map(bool, map(predicate, values))) / len(values)


@pytest.mark.slow
def test_of_two_jobs_some_conflict_and_some_do_not() -> None:
    pairs = sample(st.tuples(jobs(), jobs()))
    assert 0.2 < share(pairs, lambda pair: conflict(pair[0].claims, pair[1].claims)) < 0.7
    assert share(pairs, lambda pair: not all(job.claims for job in pair)) < 0.7


@pytest.mark.slow
def test_graphs_have_edges_conflicts_barriers_and_shared_claims() -> None:
    graphs = sample(job_graphs())
    many = [graph for graph in graphs if len(graph) > 2]
    assert len(many) > 100
    assert share(many, lambda graph: any(job.depends_on for job in graph)) > 0.5
    assert share(many, lambda graph: any(conflict(a.claims, b.claims) for a, b in combinations(graph, 2))) > 0.5
    assert share(many, lambda graph: any(claim.mode == "shared" for job in graph for claim in job.claims)) > 0.4
    barrier = find(
        job_graphs(jobs=jobs(max_claims=1), max_edges=0),
        lambda graph: any(
            conflict(a.claims, b.claims) and conflict(b.claims, c.claims) and not conflict(a.claims, c.claims)
            for a, b, c in combinations(graph, 3)
            if a.claims and c.claims
        ),
    )
    assert len(barrier) == 3
    whens = sample(job_graphs(whens=["failure"]), 50)
    assert {edge.when for graph in whens for job in graph for edge in job.depends_on} == {"failure"}


@pytest.mark.slow
def test_hostile_segments_come_up_when_asked_for_and_only_then() -> None:
    hostile = {segment for hint in sample(hints(hostile=True)) for segment in hint or ()}
    assert len(hostile & set(HOSTILE)) > 10
    assert any(len(segment.encode()) == 256 for segment in hostile)
    assert {segment for hint in sample(hints()) for segment in hint or ()} == {"a", "b"}


@pytest.mark.slow
def test_histories_enqueue_and_claim_often() -> None:
    kinds = [type(operation) for operation in sample(operations(), 600)]
    assert len(set(kinds)) > 35
    assert kinds.count(op.Enqueue) > 25
    assert kinds.count(op.Exchange) > 25


# --- arguments -------------------------------------------------------------------------------------------------------


@for_each(
    "wrong",
    [
        lambda: hints(max_depth=65),
        lambda: hints(max_depth=-1),
        lambda: hints(max_depth=True),
        lambda: hints(min_depth=3),
        lambda: hints(alphabet=""),
        lambda: hints(alphabet=["a", ""]),
        lambda: hints(alphabet=5),  # type: ignore[call-overload]
        lambda: hints(alphabet=["x" * 200], max_depth=64),
        lambda: claims(modes=[]),
        lambda: claims(modes="shared"),  # type: ignore[arg-type]
        lambda: claims(modes=["read"]),  # type: ignore[list-item]
        lambda: claims(hints=["a"]),  # type: ignore[arg-type]
        lambda: jobs(claims=Claim(())),  # type: ignore[arg-type]
        lambda: jobs(max_claims=65),
        lambda: jobs(owner=st.just("ann")),
        lambda: jobs(user="ann"),  # type: ignore[arg-type]
        lambda: job_graphs(jobs=JobSpec(id="1", task="t")),  # type: ignore[arg-type]
        lambda: job_graphs(max_jobs=1001),
        lambda: job_graphs(min_jobs=6),
        lambda: job_graphs(max_jobs=1000, max_edges=5),
        lambda: job_graphs(whens=["ever"]),  # type: ignore[list-item]
        lambda: schedules(jobs=None),  # type: ignore[arg-type]
        lambda: schedules(recurrences=None),  # type: ignore[arg-type]
        lambda: operations(kinds=[]),
        lambda: operations(kinds=[JobSpec]),  # type: ignore[list-item]
        lambda: operations(kinds=op.Tick),  # type: ignore[arg-type]
        lambda: operations(ids="x"),
        lambda: operations(ids=[]),
        lambda: operations(jobs=None),  # type: ignore[arg-type]
        lambda: operations(hints=None),  # type: ignore[arg-type]
        lambda: fault_plans(most=1.5),
        lambda: fault_plans(most=True),
        lambda: fault_plans(most="often"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_drawn(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        wrong()


def test_missing_cron_package_generates_no_cron_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.testing.strategies.recurring.find_spec", lambda name: None)
    assert all(each.cron is None for each in sample(recurrences(), 50))
    with pytest.raises(InvalidArgument, match=r"queuehint\[cron\]"):
        recurrences(allow_cron=True)


# --- registered types ------------------------------------------------------------------------------------------------

REGISTERED = [*registration._NAMES, *MAKERS]


@pytest.mark.slow
@for_each("wanted", REGISTERED, ids=[each.__name__ for each in REGISTERED])
def test_a_registered_type_is_drawn_by_its_strategy(wanted: Any) -> None:
    for value in sample(st.from_type(wanted), 10):
        assert isinstance(value, wanted)


@given(st.builds(list[Outcome], st.from_type(list[Outcome])), st.from_type(JobSpec))
def test_registered_types_are_found_inside_others(outcomes: list[Outcome], job: JobSpec) -> None:
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert job.check() == job


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"HYPOTHESIS_NO_PLUGINS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


REGISTERED_ALREADY = (
    "from hypothesis.strategies._internal.types import _global_type_lookup as known; print('Claim' in str(known))"
)


@pytest.mark.slow
def test_hypothesis_entry_point_imports_the_package_lazily() -> None:
    plugin = f"import {_queuehint_hypothesis.__name__} as plugin; plugin.register()"
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["hypothesis"]
    assert entry == {"queuehint": f"{_queuehint_hypothesis.__name__}:register"}
    ours = "import sys; print([name for name in sys.modules if name.startswith('queuehint')])"
    assert python(f"import hypothesis; {plugin}; {ours}") == "[]"
    assert python(f"import hypothesis; {plugin}; import queuehint; {REGISTERED_ALREADY}") == "True"
    assert python(f"import queuehint, hypothesis; {plugin}; {REGISTERED_ALREADY}") == "True"
    assert python(f"import queuehint; {plugin}; from queuehint.testing import jobs; {REGISTERED_ALREADY}") == "True"
    assert python("import queuehint, sys; print('hypothesis' in sys.modules)") == "False"


@pytest.mark.slow
def test_look_for_the_package_leaves_its_registration_to_the_import() -> None:
    plugin = f"import {_queuehint_hypothesis.__name__} as plugin; plugin.register()"
    look = "import importlib.util, sys; spec = importlib.util.find_spec('queuehint'); assert spec.origin"
    look += "; assert spec.loader.get_filename('queuehint') == spec.origin"
    whether = "print('queuehint' in sys.modules)"
    assert python(f"import hypothesis; {plugin}; {look}; {look}; {whether}") == "False"
    assert python(f"import hypothesis; {plugin}; {look}; import queuehint; {REGISTERED_ALREADY}") == "True"
    left = "print([each for each in sys.meta_path if isinstance(each, plugin._Finder)])"
    assert python(f"import hypothesis; {plugin}; {look}; import queuehint; {left}") == "[]"


def test_registering_draws_in_no_strategy() -> None:
    loaded = "import sys; print('queuehint.testing.strategies' in sys.modules)"
    plugin = f"import {_queuehint_hypothesis.__name__} as plugin; plugin.register()"
    assert python(f"import hypothesis; {plugin}; import queuehint; {loaded}") == "False"
    assert queuehint.testing is not None
