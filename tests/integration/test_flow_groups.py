"""Flows built by groups, or from tasks that declare dependencies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import (
    Dependency,
    Flow,
    FlowGroup,
    FlowHandle,
    InvalidJobError,
    InvalidJobTypeError,
    JobContext,
    JobNotFoundError,
)
from queuehint.errors import CycleError, UnknownDependencyError
from tests.flow_shop import Shop
from tests.schedulers import scheduler

# --- groups ----------------------------------------------------------------------------------------------------------


def test_the_nodes_of_a_group_have_its_name_before_theirs() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        a = flow.flow("a")
        deep = a.flow("b").flow("c")
        names = [group.add(shop.step).name for group in (flow, a, deep, deep)]
    assert names == ["step", "a.step", "a.b.c.step", "a.b.c.step-2"]
    assert (a["step"].name, deep["step-2"].name, flow["a.b.c.step"].name) == ("a.step", "a.b.c.step-2", "a.b.c.step")
    assert (repr(deep), isinstance(deep, FlowGroup), isinstance(flow, Flow)) == ("FlowGroup('a.b.c')", True, True)
    with pytest.raises(JobNotFoundError, match=r"a\.nothing"):
        a["nothing"]
    assert flow.stats_sync().total == 4


def test_dependent_of_a_group_waits_for_its_final_jobs() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        inner = flow.flow("inner")
        early = flow.add(shop.step.using(name="early", after=[inner]))
        head = inner.add(shop.step.using(name="head"))
        inner.add(shop.step.using(name="x", after=[head]))
        inner.add(shop.step.using(name="y"), head.out)
        late = flow.add(shop.step.using(name="late", after=[inner], when="done"))
    assert shop.edges(early, late) == [["inner.x", "inner.y"]] * 2
    assert {edge.when for edge in late.record_sync().spec.depends_on} == {"done"}
    assert {edge.name for edge in late.record_sync().spec.depends_on} == {"inner_x", "inner_y"}


def test_dependencies_of_a_group_apply_to_its_first_jobs() -> None:
    shop = Shop()
    outside = shop.step.using(id="outside").enqueue_sync()
    with shop.sched.flow_sync() as flow:
        gate = flow.add(shop.step.using(name="gate"))
        other = flow.add(shop.step.using(name="other"))
        inner = flow.flow("inner", after=[gate, "other", outside, Dependency("other", "success")])
        one = inner.add(shop.step)
        two = inner.add(shop.step.using(after=[other]))
        three = inner.add(shop.step.using(after=[one]))
    assert shop.edges(one, two, three) == [["gate", "other", "outside"], ["other", "gate", "outside"], ["inner.step"]]


def test_groups_wait_for_groups() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        before = flow.flow("before")
        after = flow.flow("after", after=[before])
        for group in (after, before):
            inner = group.flow("in")
            inner.add(shop.step)
            inner.add(shop.step)
        last = flow.flow("last", after=[after]).flow("deep").add(shop.step)
    assert shop.edges(after["in.step"], after["in.step-2"]) == [["before.in.step", "before.in.step-2"]] * 2
    assert shop.edges(before["in.step"], last) == [[], ["after.in.step", "after.in.step-2"]]
    with shop.sched.worker_sync():
        assert list(flow.result_sync()) == ["last.deep.step"]


def test_edge_between_groups_counts_in_their_common_group() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        first = flow.add(shop.step.using(name="first"))
        outer = flow.flow("o", after=[first])
        a = outer.flow("a")
        b = outer.flow("b", after=[a])
        one, two = a.add(shop.step), b.add(shop.step)
        end = flow.add(shop.step.using(name="end", after=[outer]))
    assert shop.edges(one, two, end) == [["first"], ["o.a.step"], ["o.b.step"]]


def test_empty_group_passes_on_its_dependencies() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        first = flow.add(shop.step.using(name="first"))
        empty = flow.flow("empty", after=[first], when="done")
        emptier = flow.flow("emptier", after=[empty, empty])
        end = flow.add(shop.step.using(name="end", after=[emptier]))
        free = flow.add(shop.step.using(name="free", after=[flow.flow("nothing")]))
        filled = flow.flow("filled", after=[emptier]).add(shop.step)
    assert shop.edges(end, free, filled) == [["first"], [], ["first"]]
    assert end.record_sync().spec.depends_on[0].when == "done"
    outside = shop.step.using(after=[empty]).enqueue_sync()
    assert outside.record_sync().spec.depends_on == ()


def test_many_groups_without_nodes_are_gone_through_once_each() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        first = flow.add(shop.step.using(name="first"))
        group = flow.flow("g", after=[first])
        for n in range(2000):
            group = flow.flow(f"g{n}", after=[group, group])
        end = flow.add(shop.step.using(after=[group]))
    assert shop.edges(end) == [["first"]]


def test_group_that_depends_on_an_enclosing_one_is_refused() -> None:
    shop = Shop()
    with shop.sched.flow_sync("f") as flow:
        inner = flow.flow("inner")
        with pytest.raises(CycleError, match=r"^inner\.step → inner → inner\.step$"):
            inner.add(shop.step.using(after=[inner]))
        with pytest.raises(CycleError, match=r"^step → f → step$"):
            flow.add(shop.step.using(after=[flow]))
        with pytest.raises(CycleError, match=r"^inner\.deep → inner → inner\.deep$"):
            inner.flow("deep", after=[inner])
        inner.flow("deep")
        flow.add(shop.step)


def test_groups_that_depend_on_each_other_are_a_cycle() -> None:
    shop = Shop()
    with pytest.raises(CycleError, match=r"^b\.step → a\.step → b\.step$"), shop.sched.flow_sync() as flow:
        a = flow.flow("a", after=["b.step"])
        flow.flow("b", after=[a]).add(shop.step)
        a.add(shop.step)


def test_group_of_a_submitted_flow_may_be_awaited_outside() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        inner = flow.flow("inner")
        head = inner.add(shop.step)
        end = inner.add(shop.step.using(after=[head]))
        with pytest.raises(InvalidJobError, match="is not submitted"):
            shop.step.using(after=[inner]).enqueue_sync()
    handle = shop.step.using(after=[inner]).enqueue_sync()
    assert [edge.id for edge in handle.record_sync().spec.depends_on] == [end.id]
    with shop.sched.flow_sync() as flow:
        node = flow.add(shop.step.using(after=[inner]))
        group = flow.flow("g", after=[inner, end]).add(shop.step)
    assert [edge.id for edge in node.record_sync().spec.depends_on] == [end.id]
    assert [edge.id for edge in group.record_sync().spec.depends_on] == [end.id]


def test_bad_groups_are_refused() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        flow.flow("a")
        for bad in ("", "a b", 5, "x" * 129):
            with pytest.raises(InvalidJobError, match="name"):
                flow.flow(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidJobError, match="'a' is used by another group"):
            flow.flow("a")
        with pytest.raises(InvalidJobTypeError, match="after must be a list"):
            flow.flow("b", after="a")
        with pytest.raises(InvalidJobError, match="when"):
            flow.flow("b", after=["a"], when="never")  # type: ignore[arg-type]
        with pytest.raises(InvalidJobError, match="name is 255 bytes, limit 128"):
            flow.flow("x" * 127).flow("y" * 127)
        with pytest.raises(InvalidJobError, match="name is 131 bytes, limit 128"):
            flow["x" * 127] if "x" * 127 in flow.registry.named else flow.flow("z" * 126).add(shop.step)
        flow.add(shop.step)
    with pytest.raises(InvalidJobError, match="is submitted: nothing can be added"):
        flow.flow("late")


# --- tasks that declare dependencies ---------------------------------------------------------------------------------


class Pipeline:
    """Extract, transform, load: by names."""

    def __init__(self, **options: Any) -> None:
        self.sched, self.clock = scheduler(**options)
        self.did: list[Any] = []
        did, job = self.did, self.sched.job

        @job
        async def extract(source: str, limit: int = 2) -> list[int]:
            did.append(f"extract {source}")
            return list(range(limit))

        @job(depends_on=["extract"])
        def transform(extract: list[int], factor: int = 10) -> list[int]:
            did.append("transform")
            return [factor * row for row in extract]

        @job(depends_on=["transform", "extract"])
        async def load(ctx: JobContext, target: str, transform: list[int]) -> str:
            did.append(f"load {target}")
            return f"{transform} to {target}, {ctx.results['extract']}"

        self.extract: Any = extract
        self.transform: Any = transform
        self.load: Any = load


async def test_task_runs_after_its_declared_dependencies_with_their_results() -> None:
    line = Pipeline()
    flow = await line.sched.run(line.load, source="db", target="file")
    assert isinstance(flow, FlowHandle)
    async with line.sched.worker():
        assert await flow.result() == {"load": "[0, 10] to file, [0, 1]"}
    assert line.did == ["extract db", "transform", "load file"]


def test_each_task_gets_the_arguments_it_names() -> None:
    line = Pipeline()
    flow = line.sched.run_sync(line.load.using(user="ann"), line.transform, source="db", target="file", factor=3)
    records = {record.spec.name: record.spec for record in flow.jobs_sync()}
    assert {name: json.loads(spec.arguments) for name, spec in records.items()} == {
        "extract": {"source": "db"},
        "transform": {"extract": "{{extract}}", "factor": 3},
        "load": {"target": "file", "transform": "{{transform}}"},
    }
    assert [records[name].user for name in ("extract", "transform", "load")] == [None, None, "ann"]
    with line.sched.worker_sync():
        assert flow.result_sync() == {"load": "[0, 3] to file, [0, 1]"}


def test_a_dependencys_result_may_be_given_instead() -> None:
    line = Pipeline()
    flow = line.sched.run_sync(line.transform, source="db", extract=[5])
    with line.sched.worker_sync():
        assert flow.result_sync() == {"transform": [50]}
    assert line.did == ["extract db", "transform"]


def test_a_task_without_dependencies_may_be_run_too() -> None:
    line = Pipeline()
    flow = line.sched.run_sync(line.extract, source="db", limit=1)

    @line.sched.job(name="me")
    async def odd(self: int, targets: int) -> int:
        return self + targets

    with line.sched.worker_sync():
        assert line.sched.run_sync(odd, self=1, targets=2).result_sync() == {"me": 3}
    with line.sched.worker_sync():
        assert flow.result_sync() == {"extract": [0]}


def test_mismatched_arguments_are_refused_by_task_and_name() -> None:
    line = Pipeline()
    for arguments, text in (
        ({"source": "db"}, "task 'load' lacks the argument 'target'"),
        ({"target": "x"}, "task 'extract' lacks the argument 'source'"),
        ({"source": "db", "target": "x", "speed": 1}, "none of the tasks .* takes 'speed'"),
    ):
        with pytest.raises(InvalidJobTypeError, match=text):
            line.sched.run_sync(line.load, **arguments)
    for targets in ((), ("load",), (lambda: None,)):
        with pytest.raises(InvalidJobTypeError, match=r"run\(\) takes"):
            line.sched.run_sync(*targets)
    with pytest.raises(InvalidJobError, match="'load' is given twice"):
        line.sched.run_sync(line.load, line.load.using(user="x"), source="", target="")
    line.sched.run_sync(line.load, line.load, source="", target="")


def test_tasks_that_are_unknown_or_in_a_cycle_are_refused() -> None:
    sched, _ = scheduler()

    @sched.job(depends_on=["b"])
    async def a() -> None: ...

    with pytest.raises(UnknownDependencyError) as caught:
        sched.run_sync(a)
    assert (caught.value.job_id, caught.value.dependency) == ("a", "b")

    @sched.job(depends_on=["c"])
    async def b() -> None: ...

    @sched.job(depends_on=["a", "c"])
    async def c() -> None: ...

    with pytest.raises(CycleError, match=r"^(c → c|a → b → c → a)$"):
        sched.run_sync(a)


@pytest.mark.slow
def test_a_long_chain_of_tasks_needs_no_recursion() -> None:
    sched, _ = scheduler()

    async def link() -> None: ...

    jobs = [sched.job(name=f"t{n}", depends_on=[f"t{n - 1}"] if n else None)(link) for n in range(3000)]
    flow = sched.run_sync(jobs[-1])
    assert flow.stats_sync().total == 3000


def test_unusual_parameters_receive_matching_results() -> None:
    sched, _ = scheduler()

    @sched.job
    async def base() -> int:
        return 1

    @sched.job(depends_on=["base"])
    async def odd(first: int, /, *rest: int, base: int, **more: int) -> tuple[int, ...]:
        return (first, *rest, base, *more.values())

    flow = sched.run_sync(odd, first=5)
    with sched.worker_sync():
        assert flow.result_sync() == {"odd": (5, 1)}


async def test_a_task_that_depends_on_others_is_not_enqueued_alone() -> None:
    line = Pipeline()
    with pytest.raises(InvalidJobError, match=r"load depends on the tasks 'transform', 'extract': submit it with"):
        await line.load.enqueue("x", [1])
    calls: list[Callable[[], Any]] = [
        lambda: line.load.enqueue_sync("x", [1]),
        lambda: line.load.enqueue_many_sync([("x", [1])]),
        lambda: line.load.spec("x", [1]),
    ]
    for call in calls:
        with pytest.raises(InvalidJobError):
            call()
    alone = await line.transform.using(depends_on=[]).enqueue([1])
    async with line.sched.worker():
        assert await alone.result() == [10]


def test_task_in_a_flow_waits_for_nodes_of_named_tasks() -> None:
    shop = Pipeline()
    with shop.sched.flow_sync() as flow:
        with pytest.raises(UnknownDependencyError, match="'transform' depends on 'extract'"):
            flow.add(shop.transform, [1])
        first, second = flow.add(shop.extract, "a"), flow.add(shop.extract, "b")
        both = flow.add(shop.transform, [1])
        flow.add(shop.extract, "c")
        data = flow.add(shop.transform.using(after=[first]), second.out)
    edges = [[edge.id for edge in node.record_sync().spec.depends_on] for node in (both, data)]
    assert edges[0] == [first.id, second.id]
    assert edges[1][:2] == [first.id, second.id]
    assert len(edges[1]) == 3


def test_task_in_a_group_prefers_dependencies_of_that_group() -> None:
    line = Pipeline()
    with line.sched.flow_sync() as flow:
        outer = flow.add(line.extract, "outer")
        a, b = flow.flow("a"), flow.flow("b")
        own = a.flow("deep").add(line.extract, "own")
        one, two = a.add(line.transform, [1]), b.add(line.transform, [1])
        three = flow.add(line.transform, [1])
    assert [[edge.id for edge in node.record_sync().spec.depends_on] for node in (one, two, three)] == [
        [own.id],
        [outer.id, own.id],
        [outer.id, own.id],
    ]
