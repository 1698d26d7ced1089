"""Results of dependencies and of children, and the shared store."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest

from queuehint import (
    BackendUnavailableError,
    Children,
    CycleError,
    Dependency,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobHandle,
    JobSpec,
    JobState,
    LeaseLostError,
    PayloadError,
    Retry,
    Scheduler,
    TemplateError,
    template,
)
from queuehint import operations as op
from queuehint.values.policy import Policy
from queuehint.worker import attempts as attempts_module
from queuehint.worker import dependency_results as inputs_module
from tests.schedulers import Gate, memory, scheduler, turns, until


@attrs.frozen
class User:
    id: int
    born: dt.date


SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def spec(id: str, task: str, *edges: Dependency | str, templates: Any = False, **arguments: Any) -> JobSpec:
    return JobSpec(
        id=id,
        task=task,
        arguments=json.dumps(arguments).encode(),
        depends_on=tuple(Dependency(edge) if isinstance(edge, str) else edge for edge in edges),
        templates=templates,
        policy=Policy(max_attempts=1) if task == "fail" else Policy(),
    )


def tasks(sched: Scheduler) -> list[Any]:
    """Register ``give``, which returns what it is given, ``fail``, and ``take``, which notes what it is given."""
    taken: list[Any] = []

    @sched.job(name="give")
    async def give(value: Any) -> Any:
        return value

    @sched.job(name="fail")
    async def fail() -> None:
        raise ValueError("no")

    @sched.job(name="take")
    async def take(a: Any = None, b: Any = None) -> Any:
        taken.append((a, b))
        return a

    @sched.job(name="look")
    async def look(ctx: JobContext) -> None:
        taken.append(dict(ctx.results))

    return taken


def spy(sched: Scheduler, answer: Callable[[op.Fetch], Awaitable[Any]] | None = None) -> list[op.Fetch]:
    """Note what is fetched; *answer* takes the place of the store's."""
    fetched: list[op.Fetch] = []
    backend = memory(sched)
    call = backend.call

    async def noting(operation: Any) -> Any:
        if not isinstance(operation, op.Fetch):
            return await call(operation)
        fetched.append(operation)
        return await (answer or call)(operation)

    backend.call = noting  # type: ignore[method-assign]
    return fetched


async def done(sched: Scheduler, *specs: JobSpec) -> list[JobHandle[Any]]:
    handles = await sched.submit(specs)
    await sched.drain()
    return handles


# --- templates -------------------------------------------------------------------------------------------------------


async def test_a_template_is_filled_when_the_job_starts() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    await done(
        sched,
        spec("1", "give", value={"id": 7, "name": "ann", "rows": [{"n": 1}]}),
        spec("2", "take", Dependency("1", name="user"), templates=True, a="{{user.id}}", b="{{user.name}}/{{1.rows}}"),
    )
    assert taken == [(7, 'ann/[{"n":1}]')]


async def test_only_marked_arguments_are_filled_and_only_once() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    await done(
        sched,
        spec("1", "give", value="{{2.secret}}"),
        spec("2", "take", "1", templates=("/a",), a=r"\{{ {{1}}", b="{{1}}"),
    )
    assert taken == [("{{ {{2.secret}}", "{{1}}")]


async def test_a_call_marks_its_templates_and_depends_on_handles() -> None:
    sched, _ = scheduler()
    tasks(sched)

    @sched.job
    async def plus(n: int, text: str) -> str:
        return f"{n + 1} {text}"

    head = await sched.submit([spec("1", "give", value=[5, "x"])])
    job = await plus.using(after=head).enqueue(template("{{1[0]}}"), text=template("<{{1.1}}> {{1}}"))
    await sched.drain()
    assert await job.result() == '6 <x> [5,"x"]'


async def test_filled_result_is_decoded_by_the_annotations_of_its_handler() -> None:
    sched, _ = scheduler()
    seen: list[Any] = []

    @sched.job
    async def find() -> User:
        return User(5, dt.date(2001, 2, 3))

    @sched.job
    async def use(user: User, born: dt.date, ids: list[int]) -> None:
        seen.append((user, born, ids))

    head = await find.using(id="head").enqueue()
    it: Any = use.using(after=[head])
    await it.enqueue(template("{{head}}"), template("{{head.born}}"), [template("{{head.id}}"), 6])
    await sched.drain()
    assert seen == [(User(5, dt.date(2001, 2, 3)), dt.date(2001, 2, 3), [5, 6])]


async def test_a_plain_function_gets_its_arguments_filled_too() -> None:
    sched, _ = scheduler()
    tasks(sched)

    @sched.job
    def double(n: int) -> int:
        return 2 * n

    await done(sched, spec("1", "give", value=5), spec("2", "double", "1", templates=True, n="{{1}}"))
    assert await sched.handle("2").result() == 10


@pytest.mark.parametrize(
    "text, error, words",
    [
        ("{{1.user_id}}", TemplateError, '1 has no "user_id"; it has: id, name'),
        ("{{1.id.x}}", TemplateError, '1.id has no "x"; it is int'),
        ("{{1[0]}}", TemplateError, "1 has no [0]"),
    ],
)
async def test_unfillable_template_fails_the_job_without_a_retry(text: str, error: type[Exception], words: str) -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    _, handle = await done(
        sched, spec("1", "give", value={"id": 1, "name": 2}), spec("2", "take", "1", templates=True, a=text)
    )
    record = await handle.record()
    assert (record.state, record.attempts, taken) == (FAILED, 1, [])
    with pytest.raises(JobFailedError) as caught:
        await handle.result()
    assert caught.value.error_type == f"queuehint.errors.{error.__name__}"
    assert words in caught.value.message


async def test_oversized_filled_arguments_fail_the_job_without_a_retry() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    _, handle = await done(
        sched,
        spec("1", "give", value="x" * 600_000),
        spec("2", "take", "1", templates=True, a="{{1}}", b=["{{1}}"] * 900),
    )
    record = await handle.record()
    assert (record.state, record.attempts, taken) == (FAILED, 1, [])
    assert record.errors[0].type == f"queuehint.errors.{PayloadError.__name__}"
    assert "more than 1048576 bytes" in record.errors[0].message


async def test_mismatched_filled_arguments_fail_the_job_without_a_retry() -> None:
    sched, _ = scheduler()
    tasks(sched)

    @sched.job
    async def use(day: dt.date) -> None: ...

    _, handle = await done(sched, spec("1", "give", value="soon"), spec("2", "use", "1", templates=True, day="{{1}}"))
    record = await handle.record()
    assert (record.state, record.attempts) == (FAILED, 1)
    assert "$.day" in record.errors[0].message


async def test_a_second_attempt_is_filled_anew() -> None:
    sched, _ = scheduler()
    tasks(sched)
    seen: list[Any] = []

    @sched.job
    async def once_more(items: list[int]) -> Any:
        seen.append(list(items))
        items.append(0)
        return Retry(0) if len(seen) == 1 else None

    await done(sched, spec("1", "give", value=[1]), spec("2", "once_more", "1", templates=True, items="{{1}}"))
    assert seen == [[1], [1]]


# --- ctx.results -----------------------------------------------------------------------------------------------------


async def test_a_handler_sees_the_results_by_name_or_id() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    await done(
        sched,
        spec("1", "give", value={"n": 1}),
        spec("2", "give", value=None),
        spec("3", "look", Dependency("1", name="head"), "2"),
    )
    assert taken == [{"head": {"n": 1}, "2": None}]


async def test_handler_sees_only_results_of_finished_dependencies() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    await done(
        sched,
        spec("1", "give", value=1),
        spec("2", "fail"),
        spec("3", "look", "1", Dependency("2", when="done")),
        spec("4", "look", Dependency("2", when="failure")),
    )
    assert sorted(taken, key=len) == [{}, {"1": 1}]


async def test_hundreds_of_results_come_in_pages() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    fetched = spy(sched)
    count = 2 * op.FETCH_MAX + 1
    ids = [f"d{n}" for n in range(count)]
    await done(sched, *[spec(job_id, "give", value=job_id) for job_id in ids], spec("last", "look", *ids))
    assert taken == [{job_id: job_id for job_id in ids}]
    assert len(fetched) == 3


async def test_results_larger_than_a_reply_arrive() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    ids = [f"d{n}" for n in range(6)]
    await done(sched, *[spec(job_id, "give", value="x" * 1_000_000) for job_id in ids], spec("last", "look", *ids))
    assert [len(value) for value in taken[0].values()] == [1_000_000] * 6


async def test_hooks_see_the_results_too() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    seen: list[Any] = []
    sched.before_job(lambda ctx: seen.append(dict(ctx.results)))
    await done(sched, spec("1", "give", value=5), spec("2", "take", "1", templates=True, a="{{1}}"))
    assert (seen, taken) == ([{}, {"1": 5}], [(5, None)])


# --- what is asked of the store --------------------------------------------------------------------------------------


async def test_nothing_is_fetched_that_nobody_asks_for() -> None:
    sched, _ = scheduler()
    tasks(sched)
    fetched = spy(sched)
    await done(
        sched,
        spec("1", "give", value=5),
        spec("2", "look"),
        spec("3", "take", "1", "2"),
        spec("4", "take", "1", "2", templates=True, a=r"\{{1}}"),
    )
    assert fetched == []
    await done(sched, spec("5", "take", "1", "2", "3", templates=True, a="{{3}}"), spec("6", "look", "1", "2", "3"))
    assert [operation.ids for operation in fetched] == [("3",), ("1", "2", "3")]


async def test_a_job_without_edges_goes_no_other_way_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    monkeypatch.delattr(attempts_module, "fetch")
    await done(sched, spec("1", "give", value=5), spec("2", "look"), spec("3", "take", "1"))
    assert taken == [{}, (None, None)]


async def test_job_with_unavailable_results_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "PAUSE_S", 0)

    sched, _ = scheduler()
    taken = tasks(sched)
    call = memory(sched).call
    broken = [1, 1, 1, 1]

    async def answer(operation: op.Fetch) -> Any:
        if broken and broken.pop():
            raise BackendUnavailableError("gone")
        return await call(operation)

    fetched = spy(sched, answer)
    _, handle = await done(sched, spec("1", "give", value=5), spec("2", "take", "1", templates=True, a="{{1}}"))
    record = await handle.record()
    assert (record.state, record.attempts, taken) == (FINISHED, 1, [(5, None)])
    assert len(fetched) == 5


async def test_an_attempt_that_has_lost_its_job_does_not_run() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    call = memory(sched).call
    lost = [1]

    async def answer(operation: op.Fetch) -> Any:
        return op.Fetched(op.Verdict.LOST, ()) if lost and lost.pop() else await call(operation)

    fetched = spy(sched, answer)
    _, handle = await done(sched, spec("1", "give", value=5), spec("2", "look", "1"))
    assert (await handle.state(), taken, len(fetched)) == (FINISHED, [{"1": 5}], 2)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_job_canceled_while_it_awaits_results_never_runs(kind: str) -> None:
    sched, _ = scheduler()
    tasks(sched)
    gate = Gate()
    ran: list[int] = []
    fetched = spy(sched, lambda operation: gate.wait())

    @sched.job(name="async")
    async def later(n: int) -> None:
        ran.append(n)

    @sched.job(name="thread")
    def later_in_thread(n: int) -> None:
        ran.append(n)

    _, handle = await sched.submit([spec("1", "give", value=5), spec("2", kind, "1", templates=True, n="{{1}}")])
    async with sched.worker():
        await gate.reached()
        await handle.cancel()
        with pytest.raises(JobCanceledError):
            await handle.result(timeout=30)
    assert (ran, len(fetched)) == ([], 1)


async def test_stopping_worker_releases_jobs_that_wait_for_results() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    gate = Gate()
    spy(sched, lambda operation: gate.wait())
    _, handle = await sched.submit([spec("1", "give", value=5), spec("2", "look", "1")])
    async with sched.worker(grace=0):
        await gate.reached()
    record = await handle.record()
    assert (record.state, record.attempts, taken) == (QUEUED, 0, [])


# --- children --------------------------------------------------------------------------------------------------------


def family(sched: Scheduler, answer: Callable[[JobContext], Any], **options: Any) -> tuple[Any, Any]:
    """Register a parent whose handler does what it is told, and a child."""

    @sched.job(queue_hint=["doc"], name="parent", **options)
    async def parent(ctx: JobContext) -> Any:
        return await answer(ctx)

    @sched.job(queue_hint=["doc"], name="child")
    async def child(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n

    return parent, child


async def test_parent_is_deferred_without_its_place_until_children_end() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["doc"])
    async def child(n: int) -> int:
        await gate.wait(n)
        return n

    @sched.job(queue_hint=["doc"])
    async def parent(ctx: JobContext) -> Any:
        handles = [await ctx.enqueue(child, n) for n in range(2)]
        handles += await ctx.enqueue_many(child, [(2,), {"n": 3}])
        assert [handle.id for handle in handles] == [f"p.{n}" for n in range(1, 5)]
        return Children(result="made")

    async with sched.worker():
        handle = await parent.using(id="p").enqueue()
        await gate.reached()
        record = await handle.record()
        assert (record.state, record.seq) == (DEFERRED, None)
        gate.open()
        assert await handle.result() == "made"
    assert gate.entered == [0, 1, 2, 3]
    assert [(await sched.get(f"p.{n}")).spec.parent for n in range(1, 5)] == ["p"] * 4


async def test_parent_may_name_its_awaited_children() -> None:
    sched, _ = scheduler()

    async def answer(ctx: JobContext) -> Any:
        one, _two = [await ctx.enqueue(child, n) for n in (1, 2)]
        return Children(one, "other", result=5)

    parent, child = family(sched, answer)
    await child.using(id="other", queue_hint=None, max_attempts=1).enqueue(7)
    handle = await parent.enqueue()
    await sched.drain()
    assert await handle.result() == 5


@pytest.mark.parametrize("choice, state", [("fail", FAILED), ("ignore", FINISHED)])
async def test_on_child_failure_decides_the_end_of_the_parent(choice: Any, state: JobState) -> None:
    sched, _ = scheduler()

    async def answer(ctx: JobContext) -> Any:
        await ctx.enqueue(child.using(max_attempts=1), -1)
        await ctx.enqueue(child, 1)
        return Children(result=5, on_child_failure=choice)

    parent, child = family(sched, answer)
    handle = await parent.enqueue()
    await sched.drain()
    assert await handle.state() is state


async def test_an_answer_without_children_is_the_result() -> None:
    sched, _ = scheduler()

    async def answer(ctx: JobContext) -> Any:
        return Children(result=[1])

    parent, _ = family(sched, answer)
    handle = await parent.enqueue()
    await sched.drain()
    assert await handle.result() == [1]


async def test_a_second_attempt_finds_the_children_of_the_first() -> None:
    sched, _ = scheduler()
    made: list[list[str]] = []

    async def answer(ctx: JobContext) -> Any:
        handles = [await ctx.enqueue(child, 1), *await ctx.enqueue_many(child, [(2,), (3,)])]
        made.append([handle.id for handle in handles])
        if ctx.attempt == 1:
            return Retry(0)
        assert ctx.made == tuple(made[0])
        return Children()

    parent, child = family(sched, answer)
    handle = await parent.enqueue()
    await sched.drain()
    assert await handle.state() is FINISHED
    assert made[0] == made[1]
    assert len(memory(sched).engine.table.jobs) == 4


async def test_plain_functions_make_children_too() -> None:
    sched, _ = scheduler()

    @sched.job
    def child(n: int) -> int:
        return n

    @sched.job
    def parent(ctx: JobContext) -> Any:
        ctx.enqueue_sync(child, 1)
        ctx.enqueue_many_sync(child, [(2,), (3,)])
        return Children(result=len(ctx.made))

    handle = await parent.enqueue()
    await sched.drain()
    assert await handle.result() == 3


async def test_a_child_that_would_wait_for_its_parent_is_refused() -> None:
    sched, _ = scheduler()
    raised: list[tuple[str, ...]] = []

    async def answer(ctx: JobContext) -> Any:
        for make in (
            lambda job: ctx.enqueue(job, 1),
            lambda job: ctx.enqueue_many(job, [(1,)]),
        ):
            with pytest.raises(CycleError) as caught:
                await make(child.using(after=[ctx.id]))
            raised.append(caught.value.cycle)
        assert ctx.made == ()
        return Children()

    parent, child = family(sched, answer)
    handle = await parent.using(id="p").enqueue()
    await sched.drain()
    assert await handle.state() is FINISHED
    assert all("p" in cycle for cycle in raised)
    assert len(raised) == 2


async def test_a_parent_that_waits_for_itself_fails_for_good() -> None:
    sched, _ = scheduler()

    async def answer(ctx: JobContext) -> Any:
        return Children(ctx.id)

    parent, _ = family(sched, answer)
    handle = await parent.enqueue()
    await sched.drain()
    record = await handle.record()
    assert (record.state, record.attempts) == (FAILED, 1)


async def test_an_attempt_that_has_lost_its_job_makes_no_children() -> None:
    sched, _ = scheduler()
    tokens: list[int] = []

    async def answer(ctx: JobContext) -> Any:
        tokens.append(ctx.token)
        ctx._grant = attrs.evolve(ctx._grant, token=ctx.token - 1)
        with pytest.raises(LeaseLostError):
            await ctx.enqueue(child, 1)
        ctx._grant = attrs.evolve(ctx._grant, token=tokens[0])
        return ctx.made

    parent, child = family(sched, answer)
    handle = await parent.enqueue()
    await sched.drain()
    assert await handle.result() == []
    assert len(memory(sched).engine.table.jobs) == 1


async def test_dependent_of_a_parent_gets_its_result_after_the_children() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    gate = Gate()

    @sched.job
    async def child() -> None:
        await gate.wait()

    @sched.job
    async def parent(ctx: JobContext) -> Any:
        await ctx.enqueue(child)
        return Children(result={"n": 5})

    async with sched.worker():
        await parent.using(id="p").enqueue()
        await sched.submit([spec("last", "take", "p", templates=True, a="{{p.n}}")])
        await gate.reached()
        await turns()
        assert taken == []
        gate.open()
        await until(lambda: bool(taken))
    assert taken == [(5, None)]


# --- xcom ------------------------------------------------------------------------------------------------------------


async def test_values_are_kept_for_their_time() -> None:
    sched, clock = scheduler()
    assert await sched.xcom.push("k", {"a": [1]}, ttl=10) is False
    assert await sched.xcom.pull("k") == {"a": [1]}
    assert await sched.xcom.push("k", 2, ttl=20) is True
    clock.advance(seconds=19.999)
    assert await sched.xcom.pull("k") == 2
    clock.advance(ms=1)
    assert await sched.xcom.pull("k", default="gone") == "gone"
    assert await sched.xcom.push("k", 3) is False


async def test_a_key_belongs_to_its_namespace() -> None:
    sched, _ = scheduler()
    await sched.xcom.push("k", 1)
    await sched.xcom.push("k", 2, namespace="other")
    assert await sched.xcom.pull("k") == 1
    assert await sched.xcom.pull("k", namespace="other") == 2
    assert await sched.xcom.pull("other") is None


async def test_jobs_share_values_without_edges() -> None:
    sched, _ = scheduler()

    @sched.job(["counter"])
    def count(ctx: JobContext) -> int:
        n: int = sched.xcom.pull_sync("n", default=0) + 1
        sched.xcom.push_sync("n", n)
        return n

    for _ in range(3):
        await count.enqueue()
    await sched.drain()
    assert await sched.xcom.pull("n") == 3


async def test_oversized_results_together_fail_the_job_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "RESULTS_BYTES_MAX", 1)

    sched, _ = scheduler()

    @sched.job
    def give() -> str:
        return "much"

    @sched.job
    def take(ctx: JobContext) -> int:
        return len(ctx.results)

    first = await give.enqueue()
    second = await take.using(after=[first]).enqueue()
    await sched.drain()
    record = await second.record()
    assert (record.state, record.attempts) == (JobState.FAILED, 1)
    assert record.errors[0].type == "queuehint.errors.PayloadError"


async def test_handler_may_be_annotated_to_return_only_children() -> None:
    sched, _ = scheduler()

    @sched.job
    def child() -> None: ...

    @sched.job
    async def parent(ctx: JobContext) -> Children:
        await ctx.enqueue(child)
        return Children(result={"any": 1})

    handle: JobHandle[Any] = await parent.enqueue()
    await sched.drain()
    assert await handle.result() == {"any": 1}


async def test_other_jobs_run_while_one_waits_for_results() -> None:
    sched, _ = scheduler()
    taken = tasks(sched)
    gate = Gate()
    call = memory(sched).call

    async def answer(operation: op.Fetch) -> Any:
        await gate.wait()
        return await call(operation)

    spy(sched, answer)
    await sched.submit([spec("1", "give", value=5), spec("2", "take", "1", templates=True, a="{{1}}")])
    async with sched.worker(2):
        await gate.reached()
        await sched.submit([spec("3", "take", a="first")])
        await until(lambda: len(taken) == 1)
        gate.open()
        await until(lambda: len(taken) == 2)
    assert taken == [("first", None), (5, None)]
