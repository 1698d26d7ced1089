"""Flows: jobs with edges as one submission, built by nodes; names, edges, references."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

from queuehint import (
    Dependency,
    DuplicateJobError,
    Flow,
    FlowNotFoundError,
    FlowState,
    InvalidHintTypeError,
    InvalidJobError,
    InvalidJobTypeError,
    JobContext,
    JobNotFoundError,
    JobSpec,
    JobState,
    PathClosedError,
    PayloadError,
    Progress,
    TemplateError,
    template,
)
from queuehint import operations as op
from queuehint.backends.sending import TRIES
from queuehint.client.flows import handle as flow_handle
from queuehint.errors import CycleError, UnknownDependencyError
from queuehint.operations.bounds import PARTS_LOST
from tests.each import for_each
from tests.flow_shop import Shop, _is
from tests.schedulers import memory, turns, until

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def changes(asked: list[Any]) -> list[Any]:
    return [operation for operation in asked if isinstance(operation, (op.Enqueue, op.Commit, op.Draw))]


# --- through the scheduler -------------------------------------------------------------------------------------------


async def test_flow_jobs_run_after_their_dependencies_and_get_their_results() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.step, "head")
        rows = [flow.add(shop.step, n, head.out["what"]) for n in range(3)]
        end = flow.add(shop.step, "end", [row.out["inputs"] for row in rows], {"n": rows[1].out["what"]})
    async with shop.sched.worker():
        assert await end.result() == {"what": "end", "inputs": [[["head"], ["head"], ["head"]], {"n": 1}]}
    assert (shop.did[0], sorted(shop.did[1:4]), shop.did[4]) == ("head", [0, 1, 2], "end")


async def test_leaving_the_block_submits_all_of_it_at_once() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        nodes = [flow.add(shop.step, n) for n in range(3)]
        await turns()
        assert shop.asked == []
    (enqueue,) = changes(shop.asked)
    assert [spec.id for spec in enqueue.jobs] == [node.id for node in nodes]
    assert {spec.flow for spec in enqueue.jobs} == {flow.id}
    assert [spec.name for spec in enqueue.jobs] == ["step", "step-2", "step-3"]
    assert all(node.created for node in nodes)


async def test_an_exception_inside_submits_nothing() -> None:
    shop = Shop()
    with pytest.raises(ZeroDivisionError):
        async with shop.sched.flow() as flow:
            node = flow.add(shop.step)
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), shop.sched.flow_sync() as other:
        other.add(shop.step)
        raise ZeroDivisionError
    with pytest.raises(asyncio.CancelledError):
        async with shop.sched.flow():
            raise asyncio.CancelledError
    assert shop.asked == []
    with pytest.raises(InvalidJobError, match="given up: nothing can be added"):
        flow.add(shop.step)
    with pytest.raises(InvalidJobError, match="is not submitted"):
        shop.step.using(after=[node]).enqueue_sync()
    with pytest.raises(FlowNotFoundError):
        await flow.state()


async def test_a_refused_flow_leaves_nothing_behind() -> None:
    shop = Shop()
    await shop.sched.close_path(["closed"])
    with pytest.raises(PathClosedError):
        async with shop.sched.flow() as flow:
            flow.add(shop.step)
            flow.add(shop.step.using(queue_hint=["closed"]))
    with pytest.raises(UnknownDependencyError):
        async with shop.sched.flow() as flow:
            flow.add(shop.step)
            flow.add(shop.step.using(after=["nowhere"]))
    assert (await shop.sched.stats()).unfinished == 0


async def test_a_flow_that_was_refused_may_be_submitted_again() -> None:
    shop = Shop()
    await shop.sched.close_path(["a"])
    with pytest.raises(PathClosedError):
        async with shop.sched.flow() as flow:
            node = flow.add(shop.step.using(queue_hint=["a"]))
    await shop.sched.reopen_path(["a"])
    await flow.submit()
    assert await node.state() is QUEUED
    with pytest.raises(InvalidJobError, match="is submitted"):
        await flow.submit()


def test_flows_are_made_in_synchronous_code_too() -> None:
    shop = Shop()
    with shop.sched.flow_sync("mine") as flow:
        numbers = [flow.add(shop.number, n) for n in range(4)]
        total = flow.add(shop.add_up, [number.out for number in numbers])
    assert (flow.id, flow.state_sync(), flow.progress_sync()) == ("mine", FlowState.RUNNING, Progress(0, 5))
    with shop.sched.worker_sync():
        assert flow.result_sync(5) == {"add_up": 6}
    assert total.result_sync() == 6
    assert flow.state_sync() == "FINISHED"
    assert [record.spec.name for record in flow.jobs_sync()] == ["number", "number-2", "number-3", "number-4", "add_up"]
    assert flow.job_sync("add_up").id == total.id == flow["add_up"].id
    assert flow.stats_sync().total == 5
    assert '"add_up"' in flow.graph_sync().json()
    flow.cancel_sync("too late")
    assert shop.sched.get_flow("mine").state_sync() is FlowState.FINISHED


async def test_a_flow_without_nodes_is_refused_and_is_nowhere() -> None:
    shop = Shop()
    with pytest.raises(InvalidJobError, match="flow 'f' has no jobs and is not submitted"):
        async with shop.sched.flow("f") as flow:
            flow.flow("group")
    assert shop.asked == []
    for handle in (flow, shop.sched.get_flow("f")):
        with pytest.raises(FlowNotFoundError):
            await handle.state()
    with pytest.raises(InvalidJobError, match="has no jobs"), shop.sched.flow_sync():
        pass
    with pytest.raises(InvalidJobError, match="nothing can be added"):
        flow.add(shop.step)


def test_a_flow_may_have_an_id_of_its_own() -> None:
    shop = Shop()
    with shop.sched.flow_sync("nightly") as flow:
        flow.add(shop.step)
    assert (flow.id, flow.name, repr(flow)) == ("nightly", "nightly", "Flow('nightly')")
    for bad in ("", "a b", 5, "x" * 129):
        with pytest.raises(InvalidJobError, match="flow"):
            shop.sched.flow(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidJobError, match="flow"):
            shop.sched.get_flow(bad)  # type: ignore[arg-type]


async def test_a_flow_of_thousands_takes_effect_at_once() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.number, 1)
        rows = [flow.add(shop.number.using(after=[head]), 1) for _ in range(2400)]
        ends = [flow.add(shop.add_up, [row.out for row in rows[n : n + 800]]) for n in range(0, 2400, 800)]
        flow.add(shop.add_up.using(name="total"), [end.out for end in ends])
    said = changes(shop.asked)
    assert [type(operation).__name__ for operation in said] == ["Enqueue"] * 3 + ["Commit"]
    assert (await flow.stats()).total == 2405
    async with shop.sched.worker(concurrency=200):
        assert await flow.result() == {"total": 2400}


async def test_parts_that_are_refused_are_not_committed() -> None:
    shop = Shop()
    await shop.sched.close_path(["closed"])
    with pytest.raises(PathClosedError):
        async with shop.sched.flow() as flow:
            for n in range(1500):
                flow.add(shop.step.using(queue_hint=["closed"] if n == 1400 else None))
    assert not any(isinstance(operation, op.Commit) for operation in shop.asked)
    assert (await shop.sched.stats()).unfinished == 0
    with pytest.raises(FlowNotFoundError, match=flow.id):
        await flow.state()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, TRIES])
@pytest.mark.parametrize("at", [2, 3, 4])
async def test_flow_with_expired_parts_is_resent_or_abandoned(at: int, times: int) -> None:
    shop = Shop()
    backend: Any = memory(shop.sched)
    call_sync, asked, left = backend.call_sync, 0, times

    def late(operation: Any) -> Any:
        nonlocal asked, left
        if isinstance(operation, (op.Enqueue, op.Commit)):
            asked = 1 if isinstance(operation, op.Enqueue) and not operation.is_further else asked + 1
            if asked == at and left:
                left -= 1
                shop.clock.advance(seconds=660)
                while call_sync(op.Tick()).more:
                    pass
        return call_sync(operation)

    def add_all(flow: Flow) -> None:
        for _ in range(2001):
            flow.add(shop.step)

    async def is_there() -> bool:
        stats = await shop.sched.stats()
        assert stats.leftovers == 0
        assert stats.unfinished in {0, 2001}
        return stats.unfinished > 0

    backend.call_sync = late
    if times == TRIES:
        with pytest.raises(FlowNotFoundError, match=PARTS_LOST) as told, shop.sched.flow_sync("mine") as flow:
            add_all(flow)
        assert told.value.flow == "mine"
        assert not await is_there()
        left = times
        with pytest.raises(FlowNotFoundError, match=PARTS_LOST):
            async with shop.sched.flow("mine") as flow:
                add_all(flow)
        assert not await is_there()
    async with shop.sched.flow("mine") as flow:
        add_all(flow)
    assert await is_there()
    assert left == 0


def test_a_commit_waits_for_no_worker() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        for _ in range(3000):
            flow.add(shop.step)
    assert any(isinstance(operation, op.Tick) for operation in shop.asked)
    assert flow.stats_sync().states[QUEUED] == 3000


# --- names -----------------------------------------------------------------------------------------------------------


def test_nodes_are_called_by_their_tasks_and_numbered() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        flow.add(shop.step.using(name="step-2"))
        assert [flow.add(shop.step).name for _ in range(3)] == ["step", "step-3", "step-4"]
        assert flow.add(shop.number.using(name="one"), 1).name == "one"
        assert flow["step-2"].name == "step-2"
        with pytest.raises(JobNotFoundError):
            flow["two"]
        for _ in range(2):
            with pytest.raises(InvalidJobError, match="'one' is used by another node"):
                flow.add(shop.number.using(name="one"), 1)
    assert flow["one"].record_sync().spec.name == "one"
    assert repr(flow["one"]) == "Node('one')"


def test_name_outside_the_template_grammar_has_an_alias() -> None:
    shop = Shop()

    @shop.sched.job(name="my task/é")
    async def odd(x: Any = None) -> Any:
        return x

    with shop.sched.flow_sync() as flow:
        nodes = [flow.add(odd, n) for n in range(2)]
        dotted = flow.add(shop.step.using(name="a.b"), "dotted")
        plain = flow.add(shop.step.using(name="a_b"), "plain")
        end = flow.add(shop.step, [node.out for node in nodes], dotted.out["what"], plain.out["what"])
        by_hand = flow.add(shop.step.using(after=[dotted, plain]), template("{{a_b.what}} {{a_b-2.what}}"))
    assert [node.name for node in nodes] == ["my_task/é", "my_task/é-2"]
    assert [node.called for node in nodes] == ["my_task__", "my_task__-2"]
    assert (dotted.called, plain.called) == ("a_b", "a_b-2")
    with shop.sched.worker_sync():
        assert end.result_sync() == {"what": [0, 1], "inputs": ["dotted", "plain"]}
        assert by_hand.result_sync()["what"] == "dotted plain"


def test_a_long_name_has_a_second_one_of_bounded_length() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        nodes = [flow.add(shop.step.using(name="é" * 63 + end)) for end in "ab"]
        nodes += [flow.add(shop.step.using(name="-" + "x" * 126 + end)) for end in "./"]
        assert [len(node.called) for node in nodes] == [64, 64, 128, 128]
        assert nodes[3].called == "_" + "x" * 125 + "-2"
        assert len({node.called for node in nodes}) == 4
        flow.add(shop.step, [node.out for node in nodes])
        with pytest.raises(InvalidJobError, match="name is 129 bytes"):
            flow.add(shop.step.using(name="x" * 129))


def test_jobs_may_be_named_before_they_are_added() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        load = flow.add(shop.step.using(name="load", after=["transform"]), "load")
        transform = flow.add(shop.step.using(name="transform", after=[Dependency("extract")]), "transform")
        extract = flow.add(shop.step.using(name="extract"), "extract")
    assert shop.edges(extract, transform, load) == [[], ["extract"], ["transform"]]
    with shop.sched.worker_sync():
        flow.result_sync()
    assert shop.did == ["extract", "transform", "load"]


def test_a_cycle_of_names_is_refused_and_named() -> None:
    shop = Shop()
    with pytest.raises(CycleError, match=r"^a → b → c → a$"), shop.sched.flow_sync() as flow:
        flow.add(shop.step.using(name="before", after=["a"]))
        flow.add(shop.step.using(name="a", after=["b"]))
        flow.add(shop.step.using(name="b", after=["c"]))
        flow.add(shop.step.using(name="c", after=["a"]))
    assert shop.asked == []


def test_id_of_another_job_is_not_a_node_name() -> None:
    shop = Shop()
    outside = shop.step.using(id="extract").enqueue_sync()
    with pytest.raises(InvalidJobError, match=r"'extract' is the name of a node"), shop.sched.flow_sync() as flow:
        flow.add(shop.step.using(name="extract"))
        flow.add(shop.step.using(after=[outside]))
    with shop.sched.flow_sync() as flow:
        node = flow.add(shop.step.using(name="a", id="b"))
        other = flow.add(shop.step.using(name="b", after=[node]))
        last = flow.add(shop.step.using(after=[node, other, outside]))
    assert shop.edges(other, last) == [["a"], ["a", "b", "extract"]]


async def test_drawn_ids_are_assigned_to_nodes_after_the_submission() -> None:
    shop = Shop(ids="sequence")
    async with shop.sched.flow() as flow:
        head = flow.add(shop.number, 20)
        rest = [flow.add(shop.number.using(after=[head]), n) for n in range(2)]
        end = flow.add(shop.add_up, [head.out, *[node.out for node in rest]])
        assert [node.id for node in (head, *rest, end)] == [""] * 4
        with pytest.raises(InvalidJobError, match="is not submitted"):
            await shop.step.using(after=[head]).enqueue()
    assert [node.id for node in (head, *rest, end)] == ["1", "2", "3", "4"]
    after = await shop.step.using(after=[end]).enqueue("after", end.out)
    async with shop.sched.worker():
        assert await after.result() == {"what": "after", "inputs": [21]}
        assert await end.result() == 21


# --- dependencies ----------------------------------------------------------------------------------------------------


async def test_job_may_depend_on_handles_ids_nodes_flows_and_dependencies() -> None:
    shop = Shop()
    one, two, three = [await shop.step.enqueue(n) for n in range(3)]
    async with shop.sched.flow() as flow:
        first = flow.add(shop.step)
        inner = flow.flow("inner")
        last = inner.add(shop.step.using(after=[first]))
    items = [one, two.id, Dependency(three.id, "done", "third"), first, inner]
    handle = await shop.step.using(after=items).enqueue()
    spec = (await handle.record()).spec
    assert spec.depends_on == (
        Dependency(one.id),
        Dependency(two.id),
        Dependency(three.id, "done", "third"),
        Dependency(first.id),
        Dependency(last.id),
    )
    whole = await shop.step.using(after=[flow], when="done").enqueue()
    assert (await whole.record()).spec.depends_on == (Dependency(last.id, "done"),)
    assert await handle.state() is DEFERRED
    async with shop.sched.worker():
        await handle.result()


async def test_when_says_how_all_that_is_waited_for_is() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        good, bad = flow.add(shop.step), flow.add(shop.fail)
        ran = [
            flow.add(shop.step.using(after=[good, bad], when="done"), "any"),
            flow.add(shop.step.using(after=[bad], when="failure"), "repair"),
            flow.add(shop.step.using(after=[Dependency("fail", "failure"), good]), "both"),
        ]
        unneeded = flow.add(shop.step.using(after=[good], when="failure"), "never")
        waits = flow.add(shop.step.using(after=[bad]), "behind")
    async with shop.sched.worker():
        for node in ran:
            await node.result()
        await until(lambda: _is(unneeded, CANCELED))
    assert await waits.state() is DEFERRED
    assert set(shop.did) == {None, "no", "any", "repair", "both"}


async def test_job_for_a_failure_that_never_came_is_ignored() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        good = flow.add(shop.step, "good")
        flow.add(shop.step.using(after=[good], when="failure", name="repair"))
        flow.add(shop.step.using(after=[good], name="on"), "on")
    async with shop.sched.worker():
        assert (await flow.result()).keys() == {"on"}
    assert await flow.state() is FlowState.FINISHED
    assert (await flow.stats()).states[CANCELED] == 1
    async with shop.sched.flow() as other:
        other.add(shop.step.using(after=[other.add(shop.step)], on_dependency_failure="cancel"))
        await shop.sched.pause([])
    await other.cancel()
    assert await other.state() is FlowState.CANCELED


def test_set_of_dependencies_is_put_in_order() -> None:
    shop = Shop()
    made = [shop.step.enqueue_sync() for _ in range(20)]
    specs = [shop.step.using(after=frozenset(made), id="x").spec() for _ in range(2)]
    assert [edge.id for edge in specs[0].depends_on] == [handle.id for handle in made]
    assert specs[0] == specs[1]


@for_each(
    "options, error, text",
    [
        ({"after": "job-1"}, InvalidJobTypeError, r"after must be a list, got str: 'job-1'; did you mean \['job-1'\]"),
        ({"after": 5}, InvalidJobTypeError, "after must be a list, got int"),
        ({"after": ["a b"]}, InvalidJobError, r"after\[0\] holds white space"),
        ({"after": ["a", 5]}, InvalidJobTypeError, r"after\[1\] must be a node, .* got int: 5"),
        ({"after": [None]}, InvalidJobTypeError, r"after\[0\]"),
        ({"after": ["a"], "when": "always"}, InvalidJobError, "when must be one of success, failure, done"),
        ({"after": ["a"], "when": None}, InvalidJobTypeError, "when"),
        ({"when": "done"}, InvalidJobTypeError, "when requires after"),
        ({"after": None, "when": "done"}, InvalidJobTypeError, "when requires after"),
        ({"name": "a b"}, InvalidJobError, "name holds white space"),
        ({"name": 5}, InvalidJobTypeError, "name must be str"),
        ({"depends_on": "extract"}, InvalidJobTypeError, "depends_on must be a list, got str"),
        ({"depends_on": [5]}, InvalidJobTypeError, "depends_on must be names of tasks, got int"),
        ({"depends_on": [str(n) for n in range(1001)]}, InvalidJobError, "depends_on: 1001 in one call, limit 1000"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Shop().step.using(**options)


def test_empty_after_adds_no_dependency() -> None:
    shop = Shop()
    assert shop.step.using(after=[], when="done").spec().depends_on == ()
    assert shop.step.using(after=["a"]).using(after=None).spec().depends_on == ()
    twice = shop.step.using(after=["a"]).using(when="failure")
    assert twice.spec().depends_on == (Dependency("a", "failure"),)


def test_too_many_dependencies_are_refused_when_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.client.options.DEPENDENCIES_MAX", 10)
    shop = Shop()
    with (
        pytest.raises(InvalidJobError, match=r"^after: 11 in one call, limit 10$"),
        shop.sched.flow_sync() as flow,
    ):
        rows = [flow.add(shop.step) for _ in range(11)]
        flow.add(shop.step.using(name="end", after=rows))
    assert shop.asked == []


def test_a_job_of_another_namespace_cannot_be_waited_for() -> None:
    shop, other = Shop(), Shop(namespace="other")
    handle = other.step.enqueue_sync()
    with pytest.raises(InvalidJobError, match=r"is of namespace 'other', not 'default'"):
        shop.step.using(after=[handle]).enqueue_sync()
    with pytest.raises(InvalidJobError, match="another scheduler"), shop.sched.flow_sync() as flow:
        flow.add(other.step)


def test_flow_known_only_by_id_cannot_be_awaited() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        flow.add(shop.step)
    with pytest.raises(InvalidJobError, match="was not built here"):
        shop.step.using(after=[shop.sched.get_flow(flow.id)]).enqueue_sync()
    with pytest.raises(InvalidJobError, match=r"await flow\.job\('step'\)"):
        shop.sched.get_flow(flow.id)["step"]


def test_the_same_job_with_two_conditions_is_refused() -> None:
    shop = Shop()
    with pytest.raises(InvalidJobError, match="other conditions"), shop.sched.flow_sync() as flow:
        head = flow.add(shop.step)
        flow.add(shop.step.using(after=[head], when="done"), head.out)


def test_equal_id_and_content_is_the_same_job_despite_dependencies() -> None:
    shop = Shop()
    head = shop.step.enqueue_sync()
    again = shop.step.using(id="x", after=[head])
    assert [again.enqueue_sync().created for _ in range(2)] == [True, False]
    with pytest.raises(DuplicateJobError, match="depends_on"):
        shop.step.using(id="x").enqueue_sync()


def test_a_job_cannot_wait_for_itself() -> None:
    shop = Shop()
    with pytest.raises(CycleError, match=r"^x → x$"):
        shop.step.using(id="x", after=["x"]).enqueue_sync()


# --- references and templates ----------------------------------------------------------------------------------------


async def test_a_result_that_is_there_may_be_passed_on_too() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.number, 7)
    async with shop.sched.worker():
        await head.result()
        late = await shop.step.enqueue(head.out, [head.out])
        assert (await late.record()).spec.depends_on == (Dependency(head.id, data=True),)
        assert await late.result() == {"what": 7, "inputs": [[7]]}
        async with shop.sched.flow() as second:
            again = second.add(shop.add_up, [head.out, second.add(shop.number, 1).out])
        assert await again.result() == 8


def test_result_of_an_unsubmitted_flow_cannot_be_passed_on() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow, shop.sched.flow_sync() as other:
        head = flow.add(shop.step)
        other.add(shop.step)
        for call in (lambda: shop.step.enqueue_sync(head.out), lambda: other.add(shop.step, [head.out])):
            with pytest.raises(InvalidJobError, match="is not submitted"):
                call()


async def test_template_names_only_awaited_jobs() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        a, b = (flow.add(shop.step.using(name=name), name) for name in "ab")
        end = flow.add(shop.step.using(after=[a]), template("{{a.what}} and \\{{a}}"), "{{b}}")
    async with shop.sched.worker():
        assert await end.result() == {"what": "a and {{a}}", "inputs": ["{{b}}"]}
    with pytest.raises(TemplateError, match="names 'b', which is not among"):
        async with shop.sched.flow() as flow:
            a, b = (flow.add(shop.step.using(name=name), name) for name in "ab")
            flow.add(shop.step.using(after=[a]), template("{{b}}"))
    handle = await shop.step.enqueue("x")
    with pytest.raises(TemplateError):
        await shop.step.enqueue(template(f"{{{{{handle.id}}}}}"))
    late = await shop.step.using(after=[handle]).enqueue(template(f"{{{{{handle.id}.what}}}}!"))
    async with shop.sched.worker():
        assert (await late.result())["what"] == "x!"
    assert b.created is False


def test_result_may_be_used_by_many_templates() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        head = flow.add(shop.step, "head")
        parts = [head.out["inputs"][n] for n in range(999)]
        end = flow.add(shop.step.using(after=[head, flow.flow("inner", after=[head])]), [*parts, head.out])
        plain = flow.add(shop.step.using(after=[head]), [*parts, head.out])
        with pytest.raises(InvalidJobError, match="more than 1000"):
            flow.add(shop.step, [*parts, head.out, head.out["what"]])
    assert shop.edges(end, plain) == [["step"]] * 2


async def test_node_given_for_its_result_is_refused_with_a_suggestion() -> None:
    shop = Shop()
    async with shop.sched.flow("f") as flow:
        node = flow.add(shop.step.using(name="rows"), "head")
        for job in (shop.step, shop.number):
            for value in (node, [node], {"rows": (1, node)}):
                with pytest.raises(InvalidJobTypeError, match=r"Node\('rows'\) is a job .*: did you mean node.out\?"):
                    flow.add(job, value)


def test_result_is_decoded_by_the_annotation_of_its_argument() -> None:
    shop = Shop()

    @shop.sched.job
    async def born(day: dt.date) -> dt.date:
        return day + dt.timedelta(days=1)

    with shop.sched.flow_sync() as flow:
        first = flow.add(born, dt.date(2020, 2, 28))
        last = flow.add(born, first.out)
    with shop.sched.worker_sync():
        assert last.result_sync() == dt.date(2020, 3, 1)


def test_a_result_cannot_name_a_place() -> None:
    shop = Shop()

    @shop.sched.job(queue_hint=["{doc}"])
    async def placed(doc: str) -> None: ...

    with shop.sched.flow_sync() as flow:
        head = flow.add(shop.step)
        with pytest.raises(InvalidHintTypeError, match="doc"):
            flow.add(placed, head.out)
        flow.add(placed.using(queue_hint=["a"]), head.out["what"])


def test_malformed_call_is_refused_when_added() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        with pytest.raises(InvalidJobTypeError):
            flow.add(shop.number)
        with pytest.raises(PayloadError):
            flow.add(shop.step, {1, 2})
        with pytest.raises(InvalidJobTypeError, match="must be a Job made by"):
            flow.add(lambda: None)  # type: ignore[arg-type]
        with pytest.raises(InvalidJobTypeError, match=r"after\[0\]"):
            flow.add(shop.step.using(after=[flow.add(shop.step).out]))
    assert flow.stats_sync().total == 1


# --- many edges ------------------------------------------------------------------------------------------------------


async def test_the_edges_of_the_namespace_are_counted() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.step)
        for _ in range(3):
            flow.add(shop.step.using(after=[head]))
    found = await shop.sched.edges()
    assert (found.deferred, found.open_edges, found.most_awaited, found.orphans) == (3, 3, 3, ())
    assert found == shop.sched.edges_sync()


async def test_specs_with_edges_are_submitted_and_answered_in_any_order() -> None:
    shop = Shop()
    specs = [
        JobSpec(
            id="3",
            task="step",
            name="load",
            depends_on=["transform"],  # type: ignore[arg-type]
            arguments=b'{"what": "{{transform.what}}"}',
            templates=True,
        ),
        JobSpec(id="2", task="step", name="transform", depends_on=("1",), arguments=b'{"what": 7}'),  # type: ignore[arg-type]
        JobSpec(id="1", task="step"),
    ]
    handles = await shop.sched.submit(specs)
    assert [handle.id for handle in handles] == ["3", "2", "1"]
    assert [await handle.state() for handle in handles] == [DEFERRED, DEFERRED, QUEUED]
    async with shop.sched.worker():
        assert (await handles[0].result())["what"] == 7
    assert shop.did == [None, 7, 7]


def test_a_child_stays_one_with_other_options() -> None:
    shop = Shop()
    ids = iter(["one", "two"])
    child = shop.step.as_child_of(("parent", 7), lambda: next(ids)).using(user="ann")
    spec = child.using(id="mine").spec()
    assert (spec.id, spec.parent, spec.user) == ("mine", "parent", "ann")
    assert child.build_spec({}).id == "one"
    assert child.using(priority=5).build_spec({}).id == "two"


async def test_child_may_depend_on_others_except_its_parent() -> None:
    shop = Shop()
    seen: list[Any] = []

    @shop.sched.job(max_attempts=1)
    async def parent(ctx: JobContext) -> None:
        first = await ctx.enqueue(shop.step, "first")
        second = await ctx.enqueue(shop.step.using(after=[first]), "second")
        seen.extend([first.id, second.id])
        with pytest.raises(CycleError):
            await ctx.enqueue(shop.step.using(after=[ctx.id]), "never")

    handle = await parent.enqueue()
    async with shop.sched.worker():
        await handle.result()
        await shop.sched.drain()
    assert shop.did == ["first", "second"]
    assert seen == [f"{handle.id}.1", f"{handle.id}.2"]
    assert [step.parent[0] for step in changes(shop.asked)[1:]] == [handle.id] * 2
    assert {record.spec.parent for record in [await shop.sched.get(job_id) for job_id in seen]} == {handle.id}


async def test_wait_for_a_wide_flow_costs_little() -> None:
    shop = Shop()
    async with shop.sched.flow() as flow:
        for _ in range(2000):
            flow.add(shop.step)
    async with shop.sched.worker():
        await flow.result()
    kinds = [type(step).__name__ for step in shop.asked]
    assert kinds.count("CountRecords") < 30
    assert kinds.count("Get") < 2000


def test_keyed_flow_job_requires_a_key_that_rejects() -> None:
    shop = Shop()
    job = shop.step.using(key="burst")
    match = "key 'burst' may make it a job outside its flow"
    with pytest.raises(InvalidJobError, match=match), shop.sched.flow_sync() as flow:
        flow.add(job)
    with shop.sched.flow_sync() as flow:
        node = flow.add(job.using(on_conflict="reject"))
        flow.add(shop.step.using(after=[node]))
    assert node.created
    with pytest.raises(DuplicateJobError, match="burst"), shop.sched.flow_sync() as flow:
        flow.add(job.using(on_conflict="reject"))


def test_results_come_in_order_of_number() -> None:
    shop = Shop()
    with shop.sched.flow_sync() as flow:
        flow.add(shop.step.using(name="late", after=["first"]))
        flow.add(shop.step.using(name="free"))
        flow.add(shop.step.using(name="first"))
    with shop.sched.worker_sync():
        assert list(flow.result_sync()) == list(shop.sched.get_flow(flow.id).result_sync()) == ["free", "late"]


async def test_end_of_the_last_job_wakes_flow_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_handle, "POLL_MIN_S", 3600)
    monkeypatch.setattr(flow_handle, "POLL_MAX_S", 3600)

    shop = Shop()
    async with shop.sched.flow() as flow:
        head = flow.add(shop.number, 1)
        for _ in range(3):
            flow.add(shop.add_up, [head.out])
    waiting = asyncio.create_task(flow.result())
    await turns()
    async with shop.sched.worker():
        assert len(await waiting) == 3
