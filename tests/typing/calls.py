"""
Types of the public API for type checkers: right calls pass, wrong ones are errors.

Nothing here runs. Each wrong line has an ignore comment for both checkers, which report an unused one: a mistake that
is no longer found fails too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import attrs

from queuehint import (
    Backoff,
    Children,
    Dependency,
    Discard,
    EdgeStats,
    EventKind,
    Fail,
    Flow,
    FlowGraph,
    FlowGroup,
    FlowHandle,
    FlowState,
    FlowStats,
    Hold,
    Job,
    JobContext,
    JobHandle,
    JobRecord,
    JobState,
    Limit,
    Node,
    Priority,
    Progress,
    RecordPage,
    Retry,
    Schedule,
    Scheduler,
    Signal,
    SignalTimeoutError,
    Snooze,
    StepInfo,
    Transaction,
    template,
)
from queuehint import Claim as PlaceClaim

sched = Scheduler()


# --- a job is typed like its handler: async or plain, with the context or without, bare or called ---


@sched.job
async def bare(doc: str, n: int = 0) -> int:
    return n


@sched.job
def plain(doc: str) -> str:
    return doc


@sched.job
async def contextual(ctx: JobContext, doc: str, *, flag: bool) -> list[int]:
    return []


@sched.job
def contextual_plain(ctx: JobContext, doc: str) -> None: ...


@sched.job(queue_hint=["{doc}"], max_attempts=3, retry=Backoff(timedelta(seconds=2), cap=60), timeout=5)
async def called(doc: str, n: int = 0) -> int:
    return n


@sched.job(["{doc}"])
def called_plain(doc: str) -> str:
    return doc


@sched.job(priority=Priority.CRITICAL, mode="shared", on_dead="hold", on_retry="yield")
async def called_contextual(ctx: JobContext, doc: str) -> int | Snooze:
    return Snooze(1) if ctx.attempt == 1 else 1


@sched.job()
def called_contextual_plain(ctx: JobContext) -> datetime:
    return datetime.max


@sched.job(queue_hint=lambda doc: [doc])
async def placed(doc: str) -> None: ...


@sched.job(claims=[["folders", "{source}"], (["docs", "{doc}"], "shared"), PlaceClaim(("all",))])
async def moved(source: str, doc: str) -> int:
    return 1


@sched.job(claims=[["folders", "{source}"], ["folders", "{target}"]], max_attempts=3)
def moved_plain(source: str, target: str) -> str:
    return target


@sched.job(claims=lambda docs: [["docs", doc] for doc in docs])
async def tagged(docs: list[str]) -> None: ...


@sched.job(backoff=[1, 2.5, timedelta(minutes=1)], fail_on=(ValueError, KeyError), retry_on=OSError)
async def raising(doc: str) -> int:
    match doc:
        case "again":
            raise Retry(after=5)
        case "later":
            raise Snooze(timedelta(minutes=1))
        case "no":
            raise Fail("why")
        case "moot":
            raise Discard
    return 1


@attrs.frozen
class Pool:
    size: int = 1


@sched.worker_lifespan
async def resources() -> AsyncIterator[Pool]:
    yield Pool()


@sched.worker_lifespan
def plain_resources() -> Iterator[Pool]:
    yield Pool()


@sched.worker_lifespan  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
async def no_resources() -> None: ...


@sched.job
async def with_state(ctx: JobContext[Pool], doc: str) -> int:
    assert_type(ctx.state, Pool)
    return ctx.state.size


@sched.job
def with_unknown_state(ctx: JobContext, doc: str) -> int:
    assert_type(ctx.state, object)
    return 1


sched.job(backoff=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
sched.job(fail_on="ValueError")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def the_type_of_a_job_is_that_of_its_handler() -> None:
    assert_type(await bare.enqueue("a"), JobHandle[int])
    assert_type(await plain.enqueue("a"), JobHandle[str])
    assert_type(await contextual.enqueue("a", flag=True), JobHandle[list[int]])
    assert_type(await contextual_plain.enqueue("a"), JobHandle[None])
    assert_type(await called.enqueue("a", n=1), JobHandle[int])
    assert_type(called_plain.enqueue_sync("a"), JobHandle[str])
    assert_type(await called_contextual.enqueue("a"), JobHandle[int])
    assert_type(await called_contextual_plain.enqueue(), JobHandle[datetime])
    assert_type(await placed.enqueue("a"), JobHandle[None])
    assert_type(await with_state.enqueue("a"), JobHandle[int])
    assert_type(await with_unknown_state.enqueue("a"), JobHandle[int])
    assert_type(resources(), AsyncIterator[Pool])
    assert_type(await raising.using(backoff=[1]).enqueue("a"), JobHandle[int])


async def a_result_is_of_the_handlers_type() -> None:
    handle = await bare.enqueue("a")
    assert_type(await handle.result(timeout=5), int)
    assert_type(handle.result_sync(timedelta(seconds=1)), int)
    assert_type((await contextual.enqueue("a", flag=True)).result_sync(), list[int])
    assert_type(await handle.record(), JobRecord)
    assert_type(await handle.state(), JobState)
    assert_type(await bare.enqueue_many([("a",), {"doc": "b"}, bare.call("c", n=1)]), list[JobHandle[int]])
    wrong: str = await handle.result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    del wrong


# --- answers of a handler are never the type of a result ---


@sched.job
async def optional(doc: str) -> Retry | Snooze | Fail | Discard | str | None: ...


@sched.job
def optional_plain(ctx: JobContext, doc: str) -> list[int] | Discard:
    return []


@sched.job(["{doc}"])
def optional_called(doc: str) -> Fail | bytes:
    return b""


@sched.job
async def parent(ctx: JobContext, doc: str) -> Children:
    return Children(await ctx.enqueue(bare, doc), result=5)


@sched.job(["{doc}"])
def never_done(ctx: JobContext, doc: str) -> Retry | Snooze:
    return Retry()


async def answers_are_no_results() -> None:
    assert_type(await (await optional.enqueue("a")).result(), str | None)
    assert_type(optional_plain.enqueue_sync("a").result_sync(), list[int])
    assert_type(optional_called.enqueue_sync("a"), JobHandle[bytes])
    assert_type(await parent.enqueue("a"), JobHandle[Any])
    assert_type(await never_done.enqueue("a"), JobHandle[Any])
    assert_type((await sched.run(parent, doc="a")).id, str)


async def places_in_a_declaration_keep_the_type() -> None:
    assert_type(await moved.enqueue("a", "b"), JobHandle[int])
    assert_type(moved_plain.enqueue_sync("a", target="b").result_sync(), str)
    await tagged.enqueue(["a"])
    await moved.enqueue("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def using_keeps_the_type() -> None:
    other = bare.using(priority=5, user="ann", delay=timedelta(seconds=2), queue_hint=None).using(key=None)
    assert_type(await other.enqueue("a", 1), JobHandle[int])
    await other.enqueue(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(contextual.using(id="x").enqueue_sync("a", flag=False).result_sync(), list[int])


async def wrong_arguments_are_errors() -> None:
    await bare.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await bare.enqueue(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await bare.enqueue("a", "b")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await bare.enqueue("a", 1, 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await bare.enqueue("a", m=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    plain.enqueue_sync(b"a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    called_plain.enqueue_sync()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await contextual.enqueue("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await contextual.enqueue("a", True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    called.spec(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await bare.enqueue_many(["a"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await bare.enqueue_many([bare.call(5)])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await bare.enqueue_many([plain.call("a")])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def the_context_is_no_argument(ctx: JobContext) -> None:
    await contextual.enqueue(ctx, "a", flag=True)  # type: ignore[arg-type, misc]  # pyright: ignore[reportCallIssue]
    assert_type(await ctx.enqueue(contextual, "a", flag=True), JobHandle[list[int]])
    ctx.progress(1, 2.5, note="half")
    ctx.progress("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def children_are_typed_like_their_handlers(ctx: JobContext, docs: list[str]) -> None:
    assert_type(await ctx.enqueue(bare, "a", n=1), JobHandle[int])
    assert_type(ctx.enqueue_sync(parent.using(priority=5), "a"), JobHandle[Any])
    assert_type(await ctx.enqueue_many(bare, [("a",), {"doc": "b"}]), list[JobHandle[int]])
    assert_type(ctx.enqueue_many_sync(optional, [optional.call(doc) for doc in docs]), list[JobHandle[str | None]])
    await ctx.enqueue(bare)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.enqueue(bare, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.enqueue(bare, "a", m=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ctx.enqueue_sync(plain, "a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.enqueue(len, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await ctx.enqueue_many(bare, [contextual.call("a", flag=True)])  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    await ctx.enqueue_many(bare, [bare.call(5)])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.enqueue_many(bare, ["a"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def options_are_words_and_numbers() -> None:
    bare.using(on_retry="hold", on_dead="cancel_behind", on_dependency_failure="run", on_conflict="replace")
    bare.using(claims=[["a"], (["b"], "shared"), PlaceClaim(("c",))], run_at=datetime.max, timeout=None)
    sched.job(claims=[(["a"], "both")])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    bare.using(on_retry="block")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bare.using(on_dead="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bare.using(on_conflict="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bare.using(mode="read")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bare.using(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bare.using(delay="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bare.using(run_at=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bare.using(prioritty=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bare.using(retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sched.job(on_dead="drop")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    sched.job(max_attempts="5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    sched.job(prioritty=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Scheduler(ids="uuid")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Scheduler("memory://", "docs")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def the_api_is_typed() -> None:
    assert_type(await sched.get("x"), JobRecord)
    assert_type(await sched.cancel(["x", await bare.enqueue("a")]), list[bool])
    assert_type(await sched.can_dequeue(["a"], "shared"), bool)
    assert_type(await sched.dead.list(), Sequence[JobRecord])
    assert_type(await sched.dead.list(50, user="ann", path=["a"]), RecordPage)
    assert_type(await sched.dead.redrive(task="bare", limit=5), int)
    assert_type(await sched.dead.redrive([await bare.enqueue("a"), "x"], downstream=True), int)
    assert_type(sched.dead.discard_sync(all=True), int)
    assert_type(await sched.cancel(user="ann", state=["QUEUED"]), int)
    assert_type(await sched.run_now(["doc1"]), int)
    assert_type(await sched.run_now(["doc1"], user="ann", limit=5), int)
    assert_type(await sched.run_now(all=True), int)
    assert_type(sched.run_now_sync(ids=["x", await bare.enqueue("a")]), list[bool])
    assert_type(await sched.handle("x").run_now(), bool)
    await sched.dead.redrive(["x"], limit=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await sched.dead.redrive(owner="ann")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    async with sched.exclusive(["a"], timeout=5) as held:
        assert_type(held, Hold)
    with sched.exclusive_sync(["a"]) as held:
        assert_type(held, Hold)
    async with sched.permit(["a"], cost=2, timeout=timedelta(seconds=1), user="ann") as held:
        assert_type(held.lost, bool)
    with sched.permit_sync(["a"]) as held:
        assert_type(held, Hold)
    sched.permit("a", cost=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sched.exclusive(["a"], mode="counted")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async for record in (await bare.enqueue("a")).events():
        assert_type(record, JobRecord)
    async with sched.worker(4, pools=["default"]), sched:
        await sched.drain(["a"], timeout=timedelta(seconds=1))
    await sched.can_dequeue(["a"], "read")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sched.exclusive(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def kinds_of_events_are_words() -> None:
    sched.events("failed")
    sched.events(["failed", EventKind.LOST], after=5)
    sched.events_sync("*")
    sched.on("missed", print)
    sched.on({EventKind.FAILED, "missed"}, print)
    sched.events("failedd")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sched.events(["failedd"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    sched.events("missed")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sched.on("failedd", print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def takes_any_job(job: Job[[str, int], int]) -> None: ...


takes_any_job(bare)
takes_any_job(plain)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- flows: `add` is typed like the handler, and a result that is not there yet like the result ---


@attrs.frozen
class Head:
    owner: str
    rows: list[int]


@sched.job
async def validate(doc: str) -> Head:
    return Head(doc, [])


@sched.job(queue_hint=["{doc}"], depends_on=["validate"])
def load(doc: str, row: int, *, owner: str = "") -> int:
    return row


@sched.job
async def summarise(ctx: JobContext, doc: str, counts: list[int]) -> str | Children:
    return Children(await ctx.enqueue(bare, doc), result="", on_child_failure="ignore")


async def a_flow_is_typed(records: list[int]) -> None:
    async with sched.flow() as flow:
        head = flow.add(validate, "42")
        rows = [flow.add(load, "42", r, owner=head.out.owner) for r in records]
        last = flow.add(summarise.using(after=[head], when="done"), "42", counts=[row.out for row in rows])
        assert_type(flow, Flow)
        assert_type(head, Node[Head])
        assert_type(head.out, Head)
        assert_type(rows, list[Node[int]])
        assert_type(last, Node[str])
        flow.add(load, "42", head.out.rows[0])
        flow.add(load, template("{{validate.owner}}"), 1)
        flow.add(validate, 42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        flow.add(validate)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        flow.add(load, "42", head.out)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        flow.add(load, "42", head.out.row)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        flow.add(load, "42", row=1, colour=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        flow.add(len)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
        inner = flow.flow("inner", after=[head, *rows], when="done")
        assert_type(inner, FlowGroup)
        assert_type(inner.add(bare, "a"), Node[int])
        assert_type(inner["bare"], Node[Any])
        flow.flow("inner", when="never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await head.result(), Head)
    assert_type(await flow.result(timeout=5), dict[str, Any])
    assert_type(await flow.state(), FlowState)
    assert_type(await flow.progress(), Progress)
    assert_type(await flow.stats(), FlowStats)
    assert_type(await flow.graph(), FlowGraph)
    assert_type(await flow.job("inner.bare"), JobHandle[Any])
    async for record in flow.jobs():
        assert_type(record, JobRecord)


def a_flow_is_typed_in_synchronous_code_too() -> None:
    with sched.flow_sync("nightly") as flow:
        assert_type(flow.add(plain, "a"), Node[str])
    assert_type(flow.result_sync(timedelta(seconds=5)), dict[str, Any])
    assert_type(sched.get_flow("nightly"), FlowHandle)
    assert_type(sched.get_flow("nightly").redrive_sync(steps="drop"), int)
    assert_type(sched.edges_sync(), EdgeStats)


async def a_job_may_wait_for_all_kinds_of_things(handle: JobHandle[int], node: Node[str], flow: Flow) -> None:
    bare.using(after=[handle, node, flow, flow.flow("x"), "id", Dependency("id", "failure", "name")], when="done")
    bare.using(after={handle}, name="x", depends_on=["plain"])
    bare.using(after=(item for item in [handle]))
    bare.using(after=[5])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    bare.using(after=handle)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bare.using(after=[handle], when="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sched.job(depends_on=[5])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def tasks_are_run_with_their_dependencies() -> None:
    assert_type(await sched.run(load, doc="42", row=1), FlowHandle)
    assert_type(sched.run_sync(load.using(user="ann"), plain, doc="42"), FlowHandle)
    await sched.run("load")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await sched.dead.redrive(["x"], downstream=True)


async def jobs_in_a_transaction_are_typed(connection: object, flow: Flow) -> None:
    assert_type(await bare.within(connection).enqueue("a"), JobHandle[int])
    assert_type(plain.within(connection).enqueue_sync("a"), JobHandle[str])
    assert_type(await bare.using(priority=5).within(connection).enqueue("a"), JobHandle[int])
    await bare.within(connection).enqueue(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await bare.within(connection, notify=True).enqueue("a"), JobHandle[int])
    sched.within(connection, True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sched.within(connection, notify="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    transaction = sched.within(connection)
    assert_type(transaction, Transaction)
    assert_type(await transaction.submit([bare.spec("a")]), list[JobHandle[Any]])
    assert_type(transaction.submit_sync(flow), Flow)
    await transaction.submit("a")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    async with transaction.flow("import-7", timeout=60) as built:
        assert_type(built, Flow)
    with transaction.flow_sync() as built:
        built.add(bare, "a")
    assert_type(await transaction.submit(built), Flow)
    await transaction.cancel("a", reason="moot")
    await transaction.cancel(await bare.enqueue("a"))
    transaction.cancel_sync(path=["doc1"])


async def limits_are_typed() -> None:
    assert_type(await sched.limit(["a"], 3, each=True), bool)
    assert_type(sched.limit_sync(None, max_pending=5), bool)
    await sched.limit(["a"], rate=(5, timedelta(seconds=1)))
    await sched.limit(["a"], rate=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await sched.unlimit(["a"]), bool)
    assert_type(await sched.limit(task="mail", most=5), bool)
    assert_type(sched.unlimit_sync(pool="gpu"), bool)
    for state in await sched.limits():
        assert_type(state.limit, Limit)


# --- records ---


async def records_are_selected_by_their_fields(ctx: JobContext) -> None:
    page = await sched.records.list(service="docs", user=None, state=[JobState.FAILED, "FINISHED"], path=["doc1"])
    assert_type(page, RecordPage)
    assert_type(page[0], JobRecord)
    assert_type(page.cursor, str | None)
    assert_type(await sched.records.list_by_user("ann", newest_first=True, cursor=page.cursor), RecordPage)
    assert_type(await sched.records.list_by_ids(["a"]), Sequence[JobRecord])
    assert_type((await sched.records.count(since=datetime.now(UTC))).total, int)
    assert_type(await sched.records.export(user="ann"), int)
    assert_type(await sched.records.export(flow="f", children=True), int)
    async for record in sched.records.iterate(task="bare"):
        assert_type(record, JobRecord)
    async for name, count in sched.records.users("docs"):
        assert_type((name, count), tuple[str, int])
    await sched.records.amend("a", user=None, version=3)
    ctx.update({"a": [1]})
    await sched.records.list(owner="ann")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await sched.records.list(since="now")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await sched.records.amend("a", task="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ctx.update(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- steps and signals ---


@sched.job
async def in_steps(ctx: JobContext, url: str) -> int:
    async def fetch(of: str, *, limit: int = 1) -> list[int]:
        return [len(of)][:limit]

    assert_type(await ctx.step("fetch", fetch, url, limit=2), list[int])
    assert_type(await ctx.step("plain", plain_step, 1), str)
    assert_type(ctx.steps, tuple[StepInfo, ...])
    await ctx.step("fetch", fetch, 1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await ctx.step(1, fetch, url)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await ctx.step("fetch", fetch, url, most=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    try:
        assert_type(await ctx.wait("approved", timeout=timedelta(days=2)), Any)
    except SignalTimeoutError as error:
        assert_type(error.name, str)
    await ctx.wait("approved", 5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ctx.wait("approved", timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return 1


def plain_step(n: int) -> str:
    return str(n)


@sched.job
def in_plain_steps(ctx: JobContext, url: str) -> None:
    assert_type(ctx.step_sync("plain", plain_step, 1), str)
    ctx.step_sync("plain", plain_step, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(ctx.wait_sync("approved", timeout=2.5), Any)
    ctx.wait_sync(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def signals_are_waited_for_and_given() -> None:
    approved = Signal("approved", timeout=5, on_timeout="run")
    assert_type(await bare.using(after=[approved, "x"]).enqueue("a"), JobHandle[int])
    assert_type(await sched.signal("approved", {"by": "ann"}, keep=timedelta(days=1)), bool)
    assert_type(sched.signal_sync("approved"), bool)
    await sched.signal(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await sched.signal("approved", keep="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Signal("approved", on_timeout="stop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Signal("approved", 5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async with sched.flow() as flow:
        assert_type(flow.signal("approved", timeout=5), Signal)
        flow.add(bare, approved.out.by)
    assert_type((await sched.stats()).waiting_for_signals, int)


# --- schedules ---


@sched.cron("0 5 * * *", timezone="Europe/Berlin", missed="once")
@sched.job
async def nightly(ctx: JobContext, rows: int = 1) -> str:
    assert_type(ctx.schedule, str | None)
    assert_type(ctx.due_at, datetime | None)
    return "x"


@sched.every(timedelta(minutes=1), name="often")
@sched.job(queue_hint=["{doc}"])
def often(doc: str = "doc1") -> int:
    return 1


async def schedules_keep_the_types_of_their_jobs() -> None:
    assert_type(await nightly.enqueue(3), JobHandle[str])
    assert_type(often.enqueue_sync(doc="d"), JobHandle[int])
    await nightly.enqueue("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await sched.schedule("a", nightly, every=5, args=[3]), Schedule)
    assert_type(sched.schedule_sync("a", often.using(user="ann"), cron="* * * * *", kwargs={"doc": "d"}), Schedule)
    assert_type(await sched.schedules.list(), Sequence[Schedule])
    assert_type((await sched.schedules.get("a")).next_at, datetime | None)
    assert_type(await sched.schedules.run_now("a"), JobHandle[Any])
    assert_type(await sched.schedules.pause("a"), bool)
    assert_type(await sched.schedules.pause(task="nightly", path=["doc1"], paused=False), int)
    assert_type(sched.schedules.resume_sync("a"), bool)
    assert_type(sched.schedules.resume_sync(all=True), int)
    assert_type(await sched.schedules.remove(tag="old"), int)
    await sched.schedules.pause("a", task="nightly")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await sched.schedules.remove(state="FAILED")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    assert_type(await sched.schedules.sync(), Sequence[str])
    await sched.schedule("a", nightly, every=5, missed="never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await sched.schedule("a", "nightly", every=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await sched.schedule("a", nightly, start="now", every=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
