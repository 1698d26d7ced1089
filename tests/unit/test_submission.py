"""Submissions: names become ids, order by edges, parts within the limits, and the operations sent to a backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import Scheduler
from queuehint import operations as op
from queuehint.backends.sending import TRIES, TURN_S
from queuehint.backends.steps import Abandoned, Ahead, Wait, run_steps_sync
from queuehint.client.arrangement import (
    ONE_STEP_EDGES,
    ONE_STEP_GATES,
    ONE_STEP_JOBS,
    PART_BYTES,
    PART_EDGES,
    PART_GATES,
    PART_JOBS,
    WHOLE_GATES,
    WHOLE_JOBS,
    arrange,
    submissions,
)
from queuehint.client.options import checked
from queuehint.client.submission import single_of, submit
from queuehint.core.engine import Engine
from queuehint.errors import (
    BackendUnavailableError,
    ConcurrentSubmissionError,
    CycleError,
    DuplicateFlowError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    InvalidJobTypeError,
    OutcomeUnknownError,
    PayloadError,
    QueueFullError,
    QueueHintError,
    TemplateError,
    UnknownDependencyError,
)
from queuehint.operations.bounds import topological
from queuehint.testing import ScriptedBackend
from queuehint.values.hint import Claim
from queuehint.values.policy import Policy
from queuehint.values.record import JobState
from queuehint.values.spec import PAYLOAD_BYTES_MAX, Dependency, JobSpec


def job(called: str, /, *after: Any, **fields: Any) -> JobSpec:
    """Return a spec with this name and an id made from it."""
    fields = {"id": f"id-{called}", "name": called, **fields}
    return JobSpec(task="work", depends_on=tuple(after), **fields).check()


def of(specs: list[JobSpec], **options: Any) -> list[JobSpec]:
    """Return specs as they are sent."""
    return [spec for part in arrange(specs, **options).parts for spec in part]


def names(specs: list[JobSpec]) -> str:
    return " ".join(spec.name or spec.id for spec in specs)


def edges(spec: JobSpec) -> list[tuple[str, str | None]]:
    return [(edge.id, edge.name) for edge in spec.depends_on]


class Store:
    """Answers what a submission asks, and keeps it."""

    def __init__(self, *, mores: int = 0, fails: bool = False) -> None:
        self.asked: list[Any] = []
        self.mores = mores
        self.fails = fails
        self.next = 1

    def run(self, steps: Any) -> Any:
        try:
            step = next(steps)
            while True:
                self.asked.append(step)
                if self.fails and isinstance(step, op.Tick):
                    step = steps.throw(BackendUnavailableError("gone"))
                else:
                    step = steps.send(self.answer(step))
        except StopIteration as end:
            return end.value

    def answer(self, operation: Any) -> Any:
        if isinstance(operation, op.Draw):
            first, self.next = self.next, self.next + operation.count
            return op.Drawn(first)
        more = self.mores > 0
        if isinstance(operation, op.Enqueue):
            assert operation.jobs
            made = [op.EnqueuedJob(spec.id, 1, JobState.QUEUED, True) for spec in operation.jobs]
            return op.Enqueued(tuple(made), more)
        if isinstance(operation, op.Commit):
            return op.Committed(1, more)
        if isinstance(operation, op.Depend):
            return op.Marked(True, more)
        self.mores -= 1
        return op.Ticked(self.mores > 0, None)

    def kinds(self) -> str:
        return " ".join(type(step).__name__ for step in self.asked)


# --- names -------------------------------------------------------------------------------------------------------


def test_a_dependency_may_be_named_and_keeps_the_name() -> None:
    _, load = of([job("extract"), job("load", "extract")])
    assert edges(load) == [("id-extract", "extract")]


def test_a_dependency_may_be_an_id_and_gets_no_name() -> None:
    _, load = of([job("extract"), job("load", "id-extract")])
    assert edges(load) == [("id-extract", None)]


def test_a_dependency_that_has_a_name_keeps_its_own() -> None:
    _, load = of([job("extract"), job("load", Dependency("extract", "done", "rows"))])
    assert load.depends_on == (Dependency("id-extract", "done", "rows"),)


def test_a_name_wins_over_an_id() -> None:
    specs = of([job("a", id="b"), job("b"), job("c", "b")])
    assert edges(specs[2]) == [("id-b", "b")]


def test_dependency_outside_the_submission_leaves_order_unchanged() -> None:
    specs = [job("a", "elsewhere")]
    assert of(specs) == specs
    assert not arrange(specs).is_one


def test_a_job_named_and_given_by_id_is_one_dependency() -> None:
    assert edges(of([job("a"), job("b", "a", "id-a")])[1]) == [("id-a", "a")]


def test_a_job_given_twice_with_two_conditions_is_refused() -> None:
    with pytest.raises(InvalidJobError, match=r"'b': depends_on names 'id-a' twice"):
        arrange([job("a"), job("b", "a", Dependency("id-a", "done"))])


def test_one_name_for_two_dependencies_is_refused() -> None:
    with pytest.raises(InvalidJobError, match=r"'c': depends_on calls two jobs 'x'"):
        arrange([job("c", Dependency("one", name="x"), Dependency("two", name="x"))])


def test_two_specs_with_one_name_are_refused() -> None:
    with pytest.raises(InvalidJobError, match=r"specs\[2\]: the name 'a' is used by specs\[0\]"):
        arrange([job("a"), job("b"), job("a", id="other")])


def test_specs_with_one_id_are_refused_in_an_atomic_submission() -> None:
    with pytest.raises(DuplicateJobError):
        arrange([job("a", id="x"), job("b", "a"), job("c", id="x")])
    with pytest.raises(DuplicateJobError):
        arrange([job("a", id="x"), job("b", id="x")], whole=True)


# --- order -------------------------------------------------------------------------------------------------------


def test_dependency_is_submitted_before_its_dependents() -> None:
    assert names(of([job("load", "transform"), job("transform", "extract"), job("extract")])) == (
        "extract transform load"
    )


def test_ties_are_broken_by_the_given_order() -> None:
    specs = [job("d"), job("c", "a"), job("b"), job("a"), job("e", "b")]
    assert names(of(specs)) == "d b a c e"


def test_the_answer_is_in_the_order_given() -> None:
    store = Store()
    jobs = store.run(submit([job("load", "extract"), job("other"), job("extract")]))
    assert [made.id for made in jobs] == ["id-load", "id-other", "id-extract"]
    assert names(store.asked[0].jobs) == "other extract load"


@given(st.data())
def test_order_is_the_least_that_puts_dependencies_first(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    rank = data.draw(st.permutations(range(count)))
    before = [[] for _ in range(count)]  # type: list[list[int]]
    for index in range(count):
        earlier = [other for other in range(count) if rank[other] < rank[index]]
        before[index] = data.draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
    expected: list[int] = []
    while len(expected) < count:
        ready = [i for i in range(count) if i not in expected and all(other in expected for other in before[i])]
        expected.append(min(ready))
    assert list(topological(before, str)) == expected


# --- cycles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "specs, cycle",
    [
        ([job("a", "b"), job("b", "a")], ("a", "b")),
        ([job("x"), job("p", "q"), job("q", "p", "x")], ("p", "q")),
        ([job("x"), job("c", "a", "x"), job("a", "b"), job("b", "c"), job("y", "c")], ("c", "a", "b")),
        ([job("a", name=None, id="one"), job("b", "three", id="two", name=None), job("c", "two", id="three")], None),
    ],
)
def test_a_cycle_is_named_and_nothing_but_it(specs: list[JobSpec], cycle: tuple[str, ...] | None) -> None:
    with pytest.raises(CycleError) as caught:
        arrange(specs)
    assert caught.value.cycle == (cycle or ("two", "c"))


def test_each_job_of_a_cycle_waits_for_the_next() -> None:
    specs = [job("a", "c"), job("b", "a"), job("c", "b")]
    with pytest.raises(CycleError, match=r"^a → c → b → a$"):
        arrange(specs)


def test_a_job_that_waits_for_itself_is_a_cycle() -> None:
    for spec in (JobSpec(id="a", task="t", depends_on=(Dependency("a"),)), JobSpec(id="1", task="t", name="a")):
        spec = JobSpec(id=spec.id, task="t", name=spec.name, depends_on=(Dependency("a"),))
        with pytest.raises(CycleError, match=r"^a → a$"):
            arrange([spec])


def test_a_child_that_waits_for_its_parent_is_a_cycle() -> None:
    with pytest.raises(CycleError, match=r"^child → parent → child$"):
        arrange([job("child", "parent", parent="parent")])


@pytest.mark.heavy
@pytest.mark.parametrize("count", [10_000, pytest.param(op.FLOW_JOBS_MAX, marks=pytest.mark.nightly)])
def test_long_chain_is_ordered_and_its_cycle_found_without_recursion(count: int) -> None:
    specs = [
        JobSpec(id=f"i{n}", task="t", name=f"n{n}", depends_on=(Dependency(f"n{n - 1}"),) if n else ())
        for n in reversed(range(count))
    ]
    arranged = arrange(specs)
    assert [spec.name for part in arranged.parts for spec in part] == [f"n{n}" for n in range(count)]
    specs[-1] = job("n0", f"n{count - 1}", id="i0")
    with pytest.raises(CycleError) as caught:
        arrange(specs)
    assert len(caught.value.cycle) == count
    assert len(str(caught.value)) < 200


# --- keys --------------------------------------------------------------------------------------------------------


def test_job_with_an_unresolvable_key_cannot_be_awaited() -> None:
    for on_conflict in ("return", "after", "replace"):
        with pytest.raises(InvalidJobError, match=r"'b': it depends on 'a', whose key 'k'"):
            arrange([job("a", key="k", on_conflict=on_conflict), job("b", "a")])
    arrange([job("a", key="k", on_conflict="reject"), job("b", "a")])
    arrange([job("a"), job("b", "a", key="k")])


def test_a_job_that_replaces_another_can_wait_for_nothing() -> None:
    spec = JobSpec(id="a", task="t", key="k", on_conflict="replace", depends_on=(Dependency("x"),))
    with pytest.raises(InvalidJobError, match="replace"):
        arrange([spec])


# --- templates ---------------------------------------------------------------------------------------------------


def test_a_dependency_that_a_template_names_carries_data() -> None:
    arguments = b'{"a": "{{extract.rows}}", "b": "{{id-other}} and {{late.x}}", "c": "{{nobody}}"}'
    *_, load = of(
        [
            job("extract"),
            job("other"),
            job("plain"),
            job(
                "load",
                "extract",
                "id-other",
                "plain",
                Dependency("elsewhere", name="late"),
                arguments=arguments,
                templates=("/a", "/b"),
            ),
        ]
    )
    assert [edge.data for edge in load.depends_on] == [True, True, False, True]


def test_template_name_is_first_a_name_then_an_id() -> None:
    spec = job("x", "a", Dependency("b", name="a"), arguments=b'{"v": "{{a}}"}', templates=True)
    assert [edge.data for edge in of([spec])[0].depends_on] == [False, True]


def test_a_template_that_names_no_dependency_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"'b': a template names 'c', which is not among its .*: 'a'"):
        arrange([job("a"), job("c"), job("b", "a", arguments=b'{"v": "{{c}}"}', templates=True)])
    with pytest.raises(TemplateError, match="there are none"):
        arrange([job("b", arguments=b'{"v": "{{c}}"}', templates=True)])
    with pytest.raises(TemplateError, match=r"specs\[1\]: .*leads nowhere"):
        arrange([job("a"), job("b", name=None, arguments=b"{}", templates=("/v",))])


def test_the_id_that_stands_for_a_number_is_no_name() -> None:
    with pytest.raises(TemplateError):
        arrange([job("a", id="1"), job("b", "1", arguments=b'{"v": "{{a}}"}', templates=True)])


def test_text_that_is_not_marked_is_not_looked_at() -> None:
    spec = job("a", arguments=b'{"v": "{{c}}"}')
    assert of([spec]) == [spec]


def test_template_of_a_failed_dependency_is_refused() -> None:
    spec = job("b", Dependency("a", "failure"), arguments=b'{"v": "{{a}}"}', templates=True)
    with pytest.raises(InvalidJobError, match="FAILED has no result"):
        arrange([job("a"), spec])


def test_arguments_with_templates_are_json() -> None:
    with pytest.raises(PayloadError, match=r"'a': .*not JSON"):
        arrange([job("a", arguments=b"\xff", templates=True)])


# --- what is said ------------------------------------------------------------------------------------------------


def test_independent_jobs_are_several_submissions() -> None:
    store = Store()
    specs = [job(str(n), *(["elsewhere"] if n % 2 else [])) for n in range(WHOLE_JOBS + 1)]
    assert len(store.run(submit(specs, parent=("p", 7)))) == len(specs)
    assert store.kinds() == "Enqueue Enqueue"
    assert {(step.staged, step.parent) for step in store.asked} == {(None, ("p", 7))}


def test_jobs_with_edges_that_fit_are_one_submission() -> None:
    store = Store()
    specs = [job("last", *[str(n) for n in range(op.JOBS_PER_SUBMISSION_MAX - 1)])]
    specs += [job(str(n)) for n in range(op.JOBS_PER_SUBMISSION_MAX - 1)]
    store.run(submit(specs))
    assert store.kinds() == "Enqueue"
    assert store.asked[0].staged is None
    assert store.asked[0].jobs[-1].name == "last"


def wide(count: int, **fields: Any) -> list[JobSpec]:
    return [job("first", **fields), *[job(str(n), "first", **fields) for n in range(count - 1)]]


DEEP = Claim(tuple("x" for _ in range(63)))


def full_of(what: str, extra: int) -> list[JobSpec]:
    """Return specs that reach a limit of one submission and, with *extra*, go beyond it."""
    if what == "jobs":
        return wide(op.JOBS_PER_SUBMISSION_MAX + extra)
    if what == "gates":
        return wide(op.GATES_PER_SUBMISSION_MAX // 64 + extra, claims=(DEEP,))
    if what == "bytes":
        return wide(4 + extra, arguments=b"x" * PAYLOAD_BYTES_MAX)
    many = [f"x{n}" for n in range(op.EDGES_PER_SUBMISSION_MAX // 10 - 1)]
    return [job("first"), *[job(f"b{n}", *many, "first") for n in range(10)], *wide(1 + extra)[1:]]


@pytest.mark.parametrize("what", ["jobs", "gates", "edges", "bytes"])
def test_oversized_submission_becomes_parts_and_a_commit(what: str) -> None:
    fits, does_not = full_of(what, 0), full_of(what, 1)
    one, several = Store(), Store()
    one.run(submit(fits))
    assert one.kinds() == "Enqueue"
    made = several.run(submit(does_not))
    assert several.kinds() == "Enqueue Enqueue Commit"
    assert [job.id for job in made] == [spec.id for spec in does_not]
    *parts, commit = several.asked
    assert {part.staged for part in parts} == {commit.staged}
    assert len(commit.staged) > 20
    assert sum(len(spec.depends_on) for spec in parts[0].jobs) <= op.EDGES_PER_SUBMISSION_MAX


def test_each_part_depends_on_itself_and_parts_before_it() -> None:
    specs = wide(2500)
    specs.reverse()
    parts = arrange(specs).parts
    seen: set[str] = set()
    for part in parts:
        seen |= {spec.id for spec in part}
        assert all(edge.id in seen for spec in part for edge in spec.depends_on)
    assert len(seen) == 2500


def test_a_flow_takes_effect_at_once_even_without_edges() -> None:
    store = Store()
    specs = [job(str(n)) for n in range(op.JOBS_PER_SUBMISSION_MAX + 1)]
    store.run(submit(specs, whole=True))
    assert store.kinds() == "Enqueue Enqueue Commit"


@pytest.mark.slow
def test_more_than_100_000_jobs_cannot_take_effect_at_once() -> None:
    spec = job("a", name=None)
    specs = [JobSpec(id=str(n), task="t") for n in range(op.FLOW_JOBS_MAX + 1)]
    with pytest.raises(InvalidJobError, match=r"100001 jobs .* limit 100000"):
        arrange(specs, whole=True)
    assert len(arrange([*specs, spec]).parts) == 201


def test_key_or_waiting_caller_is_refused_in_parts() -> None:
    for fields in ({"key": "k"}, {"presence_ms": 1000}):
        specs = [*wide(op.JOBS_PER_SUBMISSION_MAX), job("odd", **fields)]
        with pytest.raises(InvalidJobError, match=f"'odd': {next(iter(fields))} is not supported in an atomic"):
            arrange(specs)
        arrange(specs[1:])


@pytest.mark.parametrize("small_parts", [False, True])
@pytest.mark.parametrize("fields", [{"key": "k"}, {"presence_ms": 1000}, {"flow": "other"}], ids=str)
def test_jobs_that_cannot_be_split_are_one_short_step(fields: dict[str, Any], small_parts: bool) -> None:
    odd, deep = job("odd", **fields), {"claims": (DEEP,)}
    many = [job(str(n), "odd") for n in range(ONE_STEP_JOBS - 1)]
    gates = [job(str(n), "odd", **deep) for n in range(ONE_STEP_GATES // (len(DEEP.path) + 1))]
    edges = [job("a", "odd"), job("b", "a"), *[job(str(n), "a", "b") for n in range((ONE_STEP_EDGES - 2) // 2)]]
    for within, more in ((many, job("more")), (gates, job("more", **deep)), (edges, job("more", "a"))):
        specs = [attrs.evolve(odd, on_conflict="reject") if "key" in fields else odd, *within]
        assert len(arrange(specs, small_parts=small_parts).parts) == 1
        with pytest.raises(InvalidJobError, match="atomic submission of this size"):
            arrange([*specs, more], small_parts=small_parts)


def test_oversized_submission_that_cannot_be_split_names_the_limit() -> None:
    specs = [*wide(4, arguments=b"x" * (PAYLOAD_BYTES_MAX - 1)), job("odd", key="k", on_conflict="reject")]
    assert len(arrange(specs, whole=True).parts) == 1
    with pytest.raises(
        InvalidJobError, match=r"'odd': key is not supported in an atomic .* and 4194304 bytes of arguments"
    ):
        arrange([*specs, job("more", arguments=b"12345")], whole=True)


@pytest.mark.parametrize("unanswered", [0, 1, 2])
def test_unknown_outcome_names_all_ids_in_spec_order(unanswered: int) -> None:
    specs = list(reversed(wide(op.JOBS_PER_SUBMISSION_MAX + 1)))
    store, steps = Store(), submit(specs)
    step: Any = next(steps)
    for _ in range(unanswered):
        step = steps.send(store.answer(step))
    assert isinstance(step, op.Commit) == (unanswered == 2)
    with pytest.raises(OutcomeUnknownError, match=r"^cut; ask again with the same ids: .*, … \(1001 jobs\)$") as raised:
        steps.throw(OutcomeUnknownError("cut"))
    assert list(raised.value.job_ids) == [spec.id for spec in specs]


def test_a_refused_later_submission_names_the_ids_enqueued_before() -> None:
    specs = [JobSpec(id=str(n), task="t") for n in range(WHOLE_JOBS + 1)]
    for refusal in (BackendUnavailableError("gone"), QueueFullError(None, 500, 500), OutcomeUnknownError("cut")):
        store, steps = Store(), submit(specs)
        steps.send(store.answer(next(steps)))
        with pytest.raises(type(refusal)) as raised:
            steps.throw(refusal)
        assert raised.value.enqueued_ids == tuple([spec.id for spec in specs[:-1]])
        is_known = not isinstance(refusal, OutcomeUnknownError)
        assert str(raised.value).startswith("the first 500 of 501 jobs were enqueued; of the others: ") == is_known


def test_flow_whose_parts_expired_is_sent_again_from_its_first() -> None:
    specs = wide(2 * op.JOBS_PER_SUBMISSION_MAX + 1)
    engine, steps = Engine(), submit(specs, whole=True)
    parts: list[Any] = [next(steps)]
    parts.append(steps.send(engine.apply(parts[-1], 0)))
    assert [part.is_further for part in parts] == [False, True]
    ticked = engine.apply(op.Tick(), op.STAGED_KEPT_MS)
    while ticked.more:
        ticked = engine.apply(op.Tick(), op.STAGED_KEPT_MS)
    with pytest.raises(FlowNotFoundError) as refused:
        engine.apply(parts[-1], op.STAGED_KEPT_MS)
    withdrawal: Any = steps.throw(refused.value)
    assert type(withdrawal) is op.Withdraw
    operation: Any = steps.send(engine.apply(withdrawal, op.STAGED_KEPT_MS))
    assert (operation.is_further, operation.jobs) == (False, parts[0].jobs)
    assert operation.staged not in {None, parts[0].staged}
    jobs = finish(steps, engine, operation)
    assert [made.id for made in jobs] == [spec.id for spec in specs]
    assert all(made.created for made in jobs)


@pytest.mark.parametrize("lost", [FlowNotFoundError("x"), UnknownDependencyError("id-2", "id-1")])
def test_flow_whose_parts_are_lost_each_time_is_given_up(lost: QueueHintError) -> None:
    specs = [job(str(n), *[f"id-{n - 1}"] * (n > 0), flow="f") for n in range(op.JOBS_PER_SUBMISSION_MAX + 1)]
    store, steps, sent = Store(), submit(specs, whole=True), 0
    step: Any = next(steps)
    with pytest.raises(type(lost), match="lost before its commit" if isinstance(lost, FlowNotFoundError) else "id-1"):
        while True:
            assert type(step) is op.Enqueue
            sent += 1
            steps.send(store.answer(step))
            assert type(steps.throw(lost)) is op.Withdraw
            step = steps.send(op.Marked(False, False))
    assert sent == TRIES


def test_dependency_of_elsewhere_that_is_unknown_is_refused_at_once() -> None:
    asked = parts_of(submit(wide(op.JOBS_PER_SUBMISSION_MAX + 1)), UnknownDependencyError("id-2", "elsewhere"), 2)
    assert told(asked) == "Enqueue Enqueue Withdraw"


def test_part_waits_for_an_older_submission_with_its_jobs() -> None:
    store, steps = Store(), submit(wide(op.JOBS_PER_SUBMISSION_MAX + 1), small_parts=True)
    first: Any = next(steps)
    step: Any = first
    waits: list[float] = []
    for retry_after_s in (5.0, 4.0, 0.01, None, 5.0, 5.0, 5.0, 5.0):
        wait: Any = steps.throw(ConcurrentSubmissionError("id-1", retry_after_s))
        assert type(wait) is Wait
        assert wait.is_plain
        waits.append(wait.timeout_s)
        step = steps.send(None)
        assert step == first.operation
    assert waits == [0.02, 0.04, 0.02, 0.16, 0.32, 0.64, 1.0, 1.0]
    step = steps.send(store.answer(step))
    assert step.operation.jobs != first.operation.jobs
    waits = []
    for _ in range(int(TURN_S) + 10):
        wait = steps.throw(ConcurrentSubmissionError("id-1", 5.0))
        if type(wait) is op.Withdraw:
            break
        waits.append(wait.timeout_s)
        steps.send(None)
    assert type(wait) is op.Withdraw
    assert TURN_S <= sum(waits) < TURN_S + 1
    with pytest.raises(ConcurrentSubmissionError):
        steps.send(op.Marked(True, False))


def finish(steps: Any, engine: Engine, operation: Any) -> Any:
    """Have an engine answer a submission to its end; return what it answers."""
    try:
        while True:
            operation = steps.send(engine.apply(operation, op.STAGED_KEPT_MS))
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("count, parts", [(500, [500]), (501, [200, 200, 101])])
def test_several_submissions_use_small_parts_each_prepared_ahead(count: int, parts: list[int]) -> None:
    specs = [JobSpec(id=str(n), task="t") for n in range(count)]
    store, steps = Store(), submit(specs, small_parts=True)
    asked: list[Any] = []
    step: Any = next(steps)
    with pytest.raises(StopIteration) as end:
        while True:
            if asked and isinstance(asked[-1], Ahead):
                assert asked[-1].following is (step.operation if isinstance(step, Ahead) else step)
            asked.append(step)
            step = steps.send(store.answer(step.operation if isinstance(step, Ahead) else step))
    assert [made.id for made in end.value.value] == [spec.id for spec in specs]
    assert [len(getattr(step, "operation", step).jobs) for step in asked] == parts
    assert [isinstance(step, Ahead) for step in asked] == [True] * (len(parts) - 1) + [False]


def test_small_parts_are_bounded_in_bytes_and_flows_stay_atomic() -> None:
    specs = [JobSpec(id=str(n), task="t", arguments=b"x" * (PART_BYTES // 2)) for n in range(10)]
    assert [len(part) for part in arrange(specs).parts] == [8, 2]
    assert [len(part) for part in arrange(specs, small_parts=True).parts] == [2] * 5
    arranged = arrange(wide(1001), small_parts=True)
    assert (arranged.is_one, len(arranged.parts)) == (True, 6)


def test_excess_dependencies_follow_the_part_of_their_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.client.arrangement.PORTION_MAX", 2)
    store = Store()
    policy = Policy(on_dependency_failure="cancel")
    many = job("many", "a", *[Dependency(each, "done") for each in "bcde"], policy=policy)
    made = store.run(submit([job("a"), many, job("few", "many", "b")]))
    assert [each.id for each in made] == ["id-a", "id-many", "id-few"]
    assert store.kinds() == "Enqueue Depend Depend Commit"
    first, *portions, last = store.asked
    assert len({each.staged for each in store.asked}) == 1
    assert [(each.job_id, each.portion, each.on_failure) for each in portions] == [
        ("id-many", 1, "cancel"), ("id-many", 2, "cancel"),
    ]  # fmt: skip
    assert [edge.id for each in portions for edge in each.edges] == ["c", "d", "e"]
    assert [edge.id for edge in first.jobs[1].depends_on] == ["id-a", "b", "c", "d", "e"]
    assert isinstance(last, op.Commit)


def test_jobs_with_many_dependencies_are_split_by_spec_size(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [job(str(n), *[f"a{at}" for at in range(1500)]) for n in range(3)]
    assert [len(part) for part in arrange(many).parts] == [3]
    monkeypatch.setattr("queuehint.client.arrangement.EDGE_BYTES", op.BYTES_PER_SUBMISSION_MAX // 2500)
    assert [len(part) for part in arrange(many).parts] == [1] * 3


@pytest.mark.parametrize("small_parts", [False, True])
def test_jobs_of_many_gates_are_split_sooner_outside_flows(small_parts: bool) -> None:
    claims = tuple([Claim((str(n), *"abcdefghi")) for n in range(10)])
    specs = [JobSpec(id=str(n), task="t", claims=claims) for n in range(120)]
    most = (PART_GATES if small_parts else WHOLE_GATES) // 110
    cut = [min(most, 120 - at) for at in range(0, 120, most)]
    assert [len(part) for part in arrange(specs, small_parts=small_parts).parts] == cut
    assert [len(part) for part in arrange(specs, whole=True, small_parts=small_parts).parts] == (
        cut if small_parts else [120]
    )


def parts_of(steps: Any, refusal: Exception | None = None, at: int = -1) -> list[Any]:
    """Return the operations that a submission asks for, of which one is refused."""
    store, asked = Store(), list[Any]()
    with contextlib.suppress(StopIteration, *([type(refusal)] if refusal else [])):
        step: Any = next(steps)
        while True:
            asked.append(getattr(step, "operation", step))
            if len(asked) == at:
                step = steps.throw(refusal)
            else:
                answer = op.Marked(True, False) if isinstance(asked[-1], op.Withdraw) else store.answer(asked[-1])
                step = steps.send(answer)
    return asked


def told(asked: list[Any]) -> str:
    return " ".join([type(each).__name__ for each in asked])


def test_atomic_submission_uses_small_parts_unless_small_or_keyed() -> None:
    few = [JobSpec(id=str(n), task="t", flow="f") for n in range(PART_JOBS)]
    one_more = [*few, JobSpec(id="more", task="t", flow="f")]
    for specs, parts in ((few, "Enqueue"), (one_more, "Enqueue Enqueue Commit")):
        assert told(parts_of(submit(specs, whole=True, small_parts=True))) == parts
        assert told(parts_of(submit(specs, whole=True))) == "Enqueue"
    with_key = [*few, JobSpec(id="more", task="t", flow="f", key="k", on_conflict="reject")]
    other_flow = [*few, JobSpec(id="more", task="t", depends_on=(Dependency("0"),))]
    for specs in (with_key, other_flow):
        assert told(parts_of(submit(specs, whole=specs is with_key, small_parts=True))) == "Enqueue"
    before = [JobSpec(id="a", task="t")]
    edges = [JobSpec(id=str(n), task="t", depends_on=(Dependency("a"),)) for n in range(PART_EDGES)]
    assert told(parts_of(submit([*before, *edges[: PART_JOBS - 1]], small_parts=True))) == "Enqueue"
    assert told(parts_of(submit([*before, *edges], small_parts=True))) == "Enqueue Enqueue Enqueue Commit"


@pytest.mark.parametrize("more, parts", [(0, "Enqueue"), (1, "Enqueue Commit")])
def test_job_with_excess_edges_is_a_part_by_itself(more: int, parts: str) -> None:
    needs = tuple([Dependency(f"there-{n}") for n in range(PART_EDGES + more)])
    spec = JobSpec(id="last", task="t", depends_on=needs)
    assert told(parts_of(submit([spec], small_parts=True))) == parts
    assert told(parts_of(submit([spec]))) == "Enqueue"


def test_jobs_with_outside_dependencies_are_split_by_edges_too() -> None:
    needs = tuple([Dependency(f"there-{n}") for n in range(PART_EDGES // 2)])
    specs = [JobSpec(id=str(n), task="t", depends_on=needs) for n in range(5)]
    assert [len(part) for part in arrange(specs, small_parts=True).parts] == [2, 2, 1]
    assert [len(part) for part in arrange(specs).parts] == [5]


def test_refused_parts_are_withdrawn() -> None:
    specs = [JobSpec(id=str(n), task="t", flow="f") for n in range(PART_JOBS + 1)]
    full, gone = QueueFullError(None, 1, 1), BackendUnavailableError("gone")
    for refusal, at, parts in (
        (full, 1, "Enqueue"),
        (full, 2, "Enqueue Enqueue Withdraw"),
        (DuplicateFlowError("f"), 3, "Enqueue Enqueue Commit Withdraw"),
        (gone, 2, "Enqueue Enqueue"),
        (OutcomeUnknownError("cut"), 3, "Enqueue Enqueue Commit"),
    ):
        asked = parts_of(submit(specs, whole=True, small_parts=True), refusal, at)
        assert told(asked) == parts
        assert len({each.staged for each in asked}) == 1
    several = [JobSpec(id=str(n), task="t") for n in range(WHOLE_JOBS + 1)]
    assert told(parts_of(submit(several, small_parts=True), full, 2)) == "Enqueue Enqueue"


def test_known_parts_are_kept_while_a_further_one_gets_room() -> None:
    specs = [JobSpec(id=str(n), task="t", flow="f") for n in range(2 * PART_JOBS)]
    steps, full = submit(specs, whole=True, small_parts=True), QueueFullError(None, 1, 1, more=True)
    first: Any = next(steps)
    assert steps.throw(full) == op.Tick(), "nothing is there to be kept"
    assert steps.send(op.Ticked(False, None)) == first.operation
    second: Any = steps.send(Store().answer(first.operation))
    assert steps.throw(full) == op.Enqueue((), second.staged, is_further=True)
    assert steps.send(op.Enqueued((), False)) == op.Tick()
    assert steps.send(op.Ticked(False, None)) == second


@pytest.mark.parametrize("at", range(4))
def test_abandoned_parts_are_withdrawn_until_commit_is_answered(at: int) -> None:
    specs = [JobSpec(id=str(n), task="t", flow="f") for n in range(PART_JOBS + 1)]
    store, steps = Store(mores=1), submit(specs, whole=True, small_parts=True)
    first = step = getattr(next(steps), "operation", None)
    for _ in range(at):
        step = steps.send(store.answer(step))
    assert type(step) is [op.Enqueue, op.Enqueue, op.Commit, op.Tick][at]
    if at == 3:
        with pytest.raises(Abandoned):
            steps.throw(Abandoned())
        return
    assert steps.throw(Abandoned()) == op.Withdraw(first.staged)  # type: ignore[union-attr]
    with pytest.raises(Abandoned):
        steps.send(op.Marked(True, False))


def test_nothing_is_withdrawn_of_submissions_that_are_whole() -> None:
    for specs in ([job("a")], [JobSpec(id=str(n), task="t") for n in range(WHOLE_JOBS + 1)]):
        steps = submit(specs, small_parts=True)
        next(steps)
        with pytest.raises(Abandoned):
            steps.throw(Abandoned())


def test_after_a_refused_small_part_no_other_is_sent() -> None:
    specs = [JobSpec(id=str(n), task="t") for n in range(1100)]
    store, steps = Store(), submit(specs, small_parts=True)
    second: Any = steps.send(store.answer(next(steps).operation))  # type: ignore[union-attr]
    steps.send(store.answer(second.operation))
    with pytest.raises(QueueFullError, match="the first 400 of 1100 jobs were enqueued") as raised:
        steps.throw(QueueFullError(None, 400, 400))
    assert raised.value.enqueued_ids == tuple([spec.id for spec in specs[:400]])


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_refused_atomic_submission_enqueued_nothing(refused: int) -> None:
    store, steps = Store(), submit(wide(op.JOBS_PER_SUBMISSION_MAX + 1))
    step: Any = next(steps)
    for _ in range(refused):
        step = steps.send(store.answer(step))
    with pytest.raises(BackendUnavailableError, match=r"^gone$") as raised:
        steps.throw(BackendUnavailableError("gone"))
    assert raised.value.enqueued_ids == ()


def test_numbers_that_were_drawn_are_told_too() -> None:
    store, steps = Store(), submit([JobSpec(id="", task="t"), JobSpec(id="mine", task="t")])
    steps.send(store.answer(next(steps)))
    with pytest.raises(OutcomeUnknownError) as raised:
        steps.throw(OutcomeUnknownError("cut"))
    assert raised.value.job_ids == ("1", "mine")


ENQUEUED = [op.Enqueued((op.EnqueuedJob("id-a", 1, JobState.QUEUED, True),), more) for more in (False, True)]
NO_ROOM = [QueueFullError(None, 1, 1, more=more) for more in (False, True)]


class Scripted(ScriptedBackend):
    """A store that answers by a list, and counts after how many calls others have their turn."""

    def __init__(self, answers: list[Any]) -> None:
        # An error of an unknown outcome is changed where it passes.
        super().__init__([OutcomeUnknownError(*a.args) if type(a) is OutcomeUnknownError else a for a in answers])
        self.owed = 0

    def owes_turn(self, operation: Any) -> bool:
        self.owed += 1
        return True


@pytest.mark.parametrize("threads", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(
    "answers",
    [
        [ENQUEUED[0]],
        [ENQUEUED[1], op.Ticked(more=True, next_ms=None)],
        [ENQUEUED[1], BackendUnavailableError("gone")],
        [NO_ROOM[0]],
        [NO_ROOM[1], op.Ticked(more=True, next_ms=None), ENQUEUED[1], op.Ticked(more=False, next_ms=None)],
        [NO_ROOM[1], op.Ticked(more=False, next_ms=None), OutcomeUnknownError("cut")],
        [OutcomeUnknownError("cut")],
        [BackendUnavailableError("gone")],
        [DuplicateJobError("id-a", fields=("arguments",))],
    ],
)
def test_single_job_is_submitted_as_by_steps(answers: list[Any], threads: bool) -> None:
    specs, by_steps, store = [attrs.evolve(job("a"), name=None)], Scripted(answers), Scripted(answers)
    sched = Scheduler("memory://")
    sched._backend = store

    def told(run: Callable[[], Any]) -> Any:
        try:
            return [(each.id, each.created) for each in run()]
        except QueueHintError as error:
            return type(error), str(error), getattr(error, "job_ids", None)

    expected = told(lambda: run_steps_sync(cast("Any", by_steps), submit(specs)))
    if threads:
        assert told(lambda: sched.submit_checked_sync(specs)) == expected
    else:
        assert told(lambda: asyncio.run(sched.submit_checked(specs))) == expected
        assert store.owed == sum(not isinstance(answer, QueueHintError) for answer in answers)
    assert store.asked == by_steps.asked
    assert not store.left
    sched._backend = None


@pytest.mark.parametrize("threads", [False, True], ids=["async", "sync"])
def test_flow_of_a_single_job_is_a_flow(threads: bool) -> None:
    specs, store, sched = [JobSpec(id="a", task="work", flow="f")], Scripted(ENQUEUED[:1]), Scheduler("memory://")
    sched._backend = store
    if threads:
        sched.submit_checked_sync(specs, whole=True, flow_timeout_ms=5)
    else:
        asyncio.run(sched.submit_checked(specs, whole=True, flow_timeout_ms=5))
    assert store.asked == [op.Enqueue(tuple(specs), None, None, None, "f", 5)]
    sched._backend = None


@pytest.mark.parametrize(
    "fields",
    [
        {"depends_on": (Dependency("b"),)},
        {"templates": True, "depends_on": (Dependency("b", data=True),)},
        {"templates": True},
        {"name": "b"},
        {"identity": ("0" * 64,)},
        {"id": ""},
    ],
)
def test_job_with_more_to_be_done_is_no_single_one(fields: dict[str, Any]) -> None:
    plain = JobSpec(id="a", task="work")
    assert single_of([plain], ("parent", 5)) == op.Enqueue((plain,), None, ("parent", 5))
    assert single_of([attrs.evolve(plain, **fields)], None) is None
    assert single_of([plain, plain], None) is None


def test_independent_jobs_with_large_arguments_are_several_submissions_in_order() -> None:
    sizes = [PAYLOAD_BYTES_MAX, 1, 3, 2 * PAYLOAD_BYTES_MAX // 3] * 20
    specs = [JobSpec(id=str(n), task="t", arguments=b"x" * size) for n, size in enumerate(sizes)]
    store = Store()
    assert [made.id for made in store.run(submit(specs))] == [spec.id for spec in specs]
    assert set(store.kinds().split(" ")) == {"Enqueue"}
    assert [spec for part in store.asked for spec in part.jobs] == specs
    sent = [sum(len(spec.arguments) for spec in part.jobs) for part in store.asked]
    assert max(sent) <= op.BYTES_PER_SUBMISSION_MAX < min(map(sum, pairwise(sent)))


def test_the_parts_of_one_submission_belong_to_one_flow() -> None:
    specs = [*wide(999, flow="one"), job("last", flow="two"), job("end", "last", flow="two")]
    with pytest.raises(InvalidJobError, match=r"last': flow is 'two', that of the first 'one'"):
        arrange(specs)


def test_job_of_a_flow_never_joins_another_by_key() -> None:
    spec = job("a", key="k")
    with pytest.raises(InvalidJobError, match="its key 'k' may make it a job outside its flow"):
        arrange([spec], whole=True)
    assert arrange([spec]).parts == [(spec,)]
    assert arrange([job("a", key="k", on_conflict="reject")], whole=True).is_one


def test_refused_part_is_raised_and_nothing_is_committed() -> None:
    asked = []
    steps = submit(wide(op.JOBS_PER_SUBMISSION_MAX + 1))
    asked.append(next(steps))
    with pytest.raises(BackendUnavailableError):
        steps.throw(BackendUnavailableError("full"))
    assert [type(step) for step in asked] == [op.Enqueue]


def test_submission_does_one_step_of_leftovers() -> None:
    store = Store(mores=3)
    store.run(submit([job("a")]))
    assert store.kinds() == "Enqueue Tick"
    store = Store(mores=3)
    store.run(submit([job(str(n)) for n in range(2 * WHOLE_JOBS)]))
    assert store.kinds() == "Enqueue Enqueue Tick"


def test_submission_in_parts_ticks_until_its_jobs_are_live() -> None:
    count = op.JOBS_PER_SUBMISSION_MAX + 1
    store = Store(mores=1000)
    store.run(submit(wide(count)))
    ticks = store.kinds().removeprefix("Enqueue Enqueue Commit ").split(" ")
    assert set(ticks) == {"Tick"}
    assert count // op.BUDGET < len(ticks) < 10
    store = Store(mores=1)
    store.run(submit(wide(count)))
    assert store.kinds() == "Enqueue Enqueue Commit Tick"


def test_enqueue_succeeds_even_if_leftovers_fail() -> None:
    store = Store(mores=3, fails=True)
    assert len(store.run(submit([job("a")]))) == 1
    assert store.kinds() == "Enqueue Tick"


def test_nothing_is_said_for_nothing() -> None:
    store = Store()
    assert store.run(submit([])) == []
    assert store.run(submit([], whole=True)) == []
    assert store.asked == []


# --- ids that are drawn ------------------------------------------------------------------------------------------


def test_drawn_numbers_go_to_the_specs_in_the_order_given() -> None:
    store = Store()
    specs = [job("c", "a", id="1"), job("b", id="1"), job("a", id="1")]
    specs = [JobSpec(id="", task="t", name=spec.name, depends_on=spec.depends_on) for spec in specs]
    specs.append(job("mine", "b", "c"))
    made = store.run(submit(specs))
    assert [job.id for job in made] == ["1", "2", "3", "id-mine"]
    assert [(spec.id, edges(spec)) for spec in store.asked[1].jobs] == [
        ("2", []),
        ("3", []),
        ("1", [("3", "a")]),
        ("id-mine", [("2", "b"), ("1", "c")]),
    ]


def test_numbers_are_drawn_a_thousand_at_a_time() -> None:
    store = Store()
    made = store.run(submit([JobSpec(id="", task="t") for _ in range(1500)]))
    assert [job.id for job in made] == [str(n) for n in range(1, 1501)]
    assert [step.count for step in store.asked[:2]] == [1000, 500]


def test_refused_submission_draws_no_ids() -> None:
    specs = [JobSpec(id="", task="t", name=name, depends_on=(Dependency(other),)) for name, other in ("ab", "ba")]
    with pytest.raises(CycleError, match=r"^a → b → a$"):
        next(submit(specs))


# --- checks and cuts ---------------------------------------------------------------------------------------------


def test_a_bad_spec_is_named_by_its_index() -> None:
    with pytest.raises(InvalidJobError, match=r"specs\[1\]: priority"):
        checked([job("a"), JobSpec(id="b", task="t", priority=0)], may_lack_id=False)
    with pytest.raises(InvalidJobTypeError, match=r"specs\[1\] must be a JobSpec"):
        checked([job("a"), "b"], may_lack_id=False)  # type: ignore[list-item]
    with pytest.raises(InvalidJobError, match=r"specs\[0\]: id is empty"):
        checked([JobSpec(id="", task="t")], may_lack_id=False)
    assert checked([JobSpec(id="", task="t")], may_lack_id=True)[0].id == ""


def test_submissions_are_cut_at_the_limit_of_edges_too() -> None:
    many = tuple([Dependency(f"x{n}") for n in range(1000)])
    specs = [JobSpec(id=str(n), task="t", depends_on=many) for n in range(9)]
    assert [len(part) for part in submissions(specs)] == [4, 4, 1]
