"""Scheduler API of an application: registration, enqueue, queries, commands."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import re
import uuid
from importlib import metadata
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from queuehint import (
    Backoff,
    Claim,
    DrainStalledError,
    DrainTimeoutError,
    DuplicateJobError,
    HandlerError,
    InvalidJobError,
    InvalidJobTypeError,
    InvalidTransitionError,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    JobState,
    PathClosedError,
    Priority,
    Progress,
    ResultTimeoutError,
    Retry,
    Scheduler,
    Snooze,
    WouldDeadlockError,
)
from queuehint.backends import base
from queuehint.operations import CountPending, Lines, ListLines, Operation, Tick, Tree
from queuehint.values.report import ReasonKind, TreeNode
from tests.folders import quick_folder
from tests.schedulers import Gate, memory, scheduler, turns, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def make_job(sched: Scheduler, **options: Any) -> Any:
    """Return a job on the path of its first argument."""

    @sched.job(queue_hint=["{doc}"], name="work", **options)
    async def work(doc: str, n: int = 0) -> str:
        return f"{doc}{n}"

    return work


# --- registration ------------------------------------------------------------------------------------------------


def test_a_job_is_still_its_function() -> None:
    sched, _ = scheduler()

    @sched.job
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert double(4) == 8
    assert (double.name, double.__name__, double.__doc__, repr(double)) == (
        "double",
        "double",
        "Twice.",
        "<Job double>",
    )
    assert double.__wrapped__(4) == 8


async def test_the_same_function_again_replaces_the_task() -> None:
    sched, _ = scheduler()

    def define(value: int) -> Any:
        @sched.job
        async def task() -> int:
            return value

        return task

    define(1)
    newest = define(2)
    handle = await newest.enqueue()
    await sched.drain()
    assert await handle.result() == 2


def test_another_function_of_the_name_is_refused() -> None:
    sched, _ = scheduler()

    def one() -> None: ...

    def two() -> None: ...

    sched.job(name="task")(one)
    with pytest.raises(HandlerError, match="'task'") as caught:
        sched.job(name="task")(two)
    assert "one" in str(caught.value)
    assert "two" in str(caught.value)
    sched.job(name="task")(one)


def test_the_same_function_may_be_two_tasks() -> None:
    sched, _ = scheduler()

    def one() -> None: ...

    assert (sched.job(name="a")(one).name, sched.job(name="b")(one).name) == ("a", "b")


def test_a_hint_may_be_the_decorators_only_argument() -> None:
    sched, _ = scheduler()

    @sched.job(["{doc}", "x"])
    def work(doc: str) -> None: ...

    assert work.spec("a").claims == (Claim(("a", "x")),)


def test_a_template_is_checked_at_import() -> None:
    sched, _ = scheduler()
    for segment in ("{other}", "{doc.x}", "{doc[0]}", "{doc:>3}", "{doc!r}"):
        with pytest.raises(HandlerError):

            @sched.job(queue_hint=[segment])
            def work(doc: str) -> None: ...

    assert sched.handler("work") is None


def test_an_option_that_does_not_exist_is_refused() -> None:
    sched, _ = scheduler()
    with pytest.raises(InvalidJobError, match="prioritty"):
        sched.job(prioritty=3)(lambda: None)  # type: ignore[call-overload]


def test_a_schedulers_repr_hides_the_password() -> None:
    assert repr(Scheduler("redis://ann:secret@db:6379/0")) == (
        "Scheduler('redis://***@db:6379/0', namespace='default')"
    )


def test_the_url_is_that_of_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEUEHINT_URL", raising=False)
    assert Scheduler().url == "memory://"
    monkeypatch.setenv("QUEUEHINT_URL", "")
    assert Scheduler().url == "memory://"
    monkeypatch.setenv("QUEUEHINT_URL", "nowhere://host")
    assert Scheduler().url == "nowhere://host"
    assert Scheduler("memory://").url == "memory://"


def test_a_scheduler_connects_on_first_use() -> None:
    sched = Scheduler("nowhere://ann:secret@host")
    make_job(sched)
    with pytest.raises(InvalidJobError, match=r"no backend serves 'nowhere'; known are .*memory") as caught:
        sched.stats_sync()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url, meant",
    [
        ("localhost:6390", "; did you mean redis://localhost:6390?"),
        ("localhost", "; did you mean redis://localhost?"),
        ("10.0.0.7:6379/2", "; did you mean redis://10.0.0.7:6379/2?"),
        ("memory", "; did you mean memory://?"),
        ("redis1:6379", "; did you mean redis://host:port?"),
        ("/var/lib/jobs.db", "; did you mean sqlite:///file?"),
        ("nonsense", "; known are "),
    ],
)
def test_what_is_no_url_is_refused_at_once_with_what_was_meant(url: str, meant: str) -> None:
    with pytest.raises(InvalidJobError, match=f"no backend serves .*{re.escape(meant)}"):
        Scheduler(url)


def test_a_backend_of_another_package_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    def ask(**group: str) -> metadata.EntryPoints:
        asked.append(group)
        return metadata.EntryPoints([metadata.EntryPoint("near", base.OWN["memory"], base.ENTRY_POINTS)])

    monkeypatch.setattr(metadata, "entry_points", ask)
    base._backend_of.cache_clear()
    for _ in range(3):
        assert Scheduler("near://").stats_sync().unfinished == 0
    base._backend_of.cache_clear()
    assert asked == [{"group": "queuehint.backends"}]


def test_our_own_backends_need_no_metadata_of_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints())
    base._backend_of.cache_clear()
    for scheme in base.OWN:
        where = f":///{tmp_path}/jobs.db" if scheme == "sqlite" else "://" if scheme == "memory" else "://localhost"
        Scheduler(f"{scheme}{where}" if scheme != "unix" else f"unix://{tmp_path}/redis.sock").close_sync()
    with pytest.raises(InvalidJobError, match=r"known are memory, redis, redis\+cluster"):
        Scheduler("nonsense")
    base._backend_of.cache_clear()


def test_two_schedulers_on_memory_are_separate_stores() -> None:
    one, two = Scheduler("memory://"), Scheduler("memory://")
    make_job(one).enqueue_sync("a")
    assert (one.stats_sync().unfinished, two.stats_sync().unfinished) == (1, 0)


async def test_a_second_one_in_memory_that_runs_a_worker_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.message for record in caplog.records if vars(record).get("event") == "worker.two_memories"]

    one, two, other = Scheduler(), Scheduler(), Scheduler(namespace="other")
    async with one.worker(), one.worker(), other.worker():
        assert told() == []
        async with two.worker():
            assert "in namespace default, and share no places" in told()[0]
    async with two.worker():
        assert len(told()) == 1


async def test_ids_in_sequence_are_1_2_3() -> None:
    sched, _ = scheduler(ids="sequence")
    work = make_job(sched)
    handles = [await work.enqueue("a"), *await work.enqueue_many([("b",)] * 1_500), work.enqueue_sync("c")]
    assert [handle.id for handle in handles] == [str(n) for n in range(1, 1_503)]
    named = await work.using(id="mine").enqueue("d")
    assert (named.id, (await work.enqueue("e")).id) == ("mine", "1503")


def test_ids_by_time_sort_in_order_of_enqueue() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    ids = [work.enqueue_sync("a").id for _ in range(50)]
    assert ids == sorted(set(ids))


# --- enqueue -----------------------------------------------------------------------------------------------------


async def test_a_job_runs_and_gives_its_result() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    async with sched.worker():
        handle = await work.enqueue("doc", n=3)
        assert handle.created
        assert await handle.result(timeout=10) == "doc3"
        assert await handle.state() is FINISHED


async def test_many_calls_are_enqueued_in_order() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    handles = await work.enqueue_many([("a", 1), {"doc": "b", "n": 2}, ("c",), {"doc": "d"}])
    records = [await handle.record() for handle in handles]
    assert [record.path for record in records] == [("a",), ("b",), ("c",), ("d",)]
    assert [record.number for record in records] == [1, 2, 3, 4]
    assert await work.enqueue_many([]) == []


async def test_calls_made_by_the_job_are_checked_where_they_are_made() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    handles = await work.using(user="ann").enqueue_many([work.call("a", 1), work.call(doc="b", n=2), ("c",)])
    assert [(await handle.record()).path for handle in handles] == [("a",), ("b",), ("c",)]
    assert work.call("a") == work.call(doc="a") != work.call("b")
    assert repr(work.call("secret")) == "Call(task='work', arguments=<dict>)"
    with pytest.raises(InvalidJobTypeError, match=r"work\(\): missing a required argument: 'doc'"):
        work.call()

    @sched.job
    def other(doc: str) -> None: ...

    with pytest.raises(InvalidJobTypeError, match=r"calls\[0\]: a call of 'other' is not one of 'work'"):
        await work.enqueue_many([other.call("a")])


async def test_more_than_a_thousand_calls_are_several_submissions_in_order() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    handles = await work.enqueue_many(("doc", n) for n in range(2_345))
    assert len({handle.id for handle in handles}) == 2_345
    assert (await handles[-1].record()).number == 2_345
    assert (await sched.stats()).states[QUEUED] == 2_345


async def test_many_deep_places_are_several_submissions_too() -> None:
    sched, _ = scheduler()
    work = make_job(sched).using(queue_hint=["x"] * 64)
    assert len(await work.enqueue_many([("doc",)] * 600)) == 600
    assert (await sched.stats()).unfinished == 600


@pytest.mark.parametrize("bad", [(1,), (), ("a", 1, 2), {"x": 1}, "a", None, ["a"], ("a", {1}), ("",), 5])
@pytest.mark.parametrize("before", [3, 1_200])
def test_a_bad_call_in_the_middle_is_named_and_nothing_is_enqueued(bad: Any, before: int) -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=["{doc}"])
    def work(doc: str, n: Any = 0) -> None: ...

    calls: list[Any] = [("a",)] * before + [bad] + [("b",)] * 5
    if bad == (1,):  # an int names a place; make it something that does not
        calls[before] = (1.5,)
    with pytest.raises(ValueError, match=rf"^calls\[{before}\]: "):
        work.enqueue_many_sync(calls)
    assert sched.stats_sync().enqueued == 0


@pytest.mark.parametrize("calls", [5, None, object()])
def test_calls_that_are_no_list_are_refused(calls: Any) -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    with pytest.raises(InvalidJobError, match="calls"):
        work.enqueue_many_sync(calls)


async def test_specs_are_the_layer_below() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    handles = await sched.submit([work.spec("a"), JobSpec(id="raw", task="work", arguments=b'{"doc":"b","n":1}')])
    await sched.drain()
    assert [await handle.result() for handle in handles] == ["a0", "b1"]


def test_a_bad_spec_is_named_and_nothing_is_enqueued() -> None:
    sched, _ = scheduler()
    specs = [JobSpec(id=f"j{n}", task="t") for n in range(1_500)]
    for bad in (JobSpec(id="", task="t"), JobSpec(id="x", task="t", priority=7), 5):
        with pytest.raises(InvalidJobError, match=r"^specs\[1499\]"):
            sched.submit_sync([*specs[:-1], bad])  # type: ignore[list-item]
    assert sched.stats_sync().enqueued == 0


@pytest.mark.parametrize("ids", ["time", "sequence"])
def test_what_is_no_spec_is_refused(ids: str) -> None:
    sched, _ = scheduler(ids=ids)
    for specs in ([5], [None], ["x"], 5, None):
        with pytest.raises(InvalidJobError, match="specs"):
            sched.submit_sync(specs)  # type: ignore[arg-type]


async def test_the_same_id_and_content_is_the_same_job() -> None:
    sched, _ = scheduler()
    work = make_job(sched).using(id="x")
    first = await work.enqueue("a")
    again = await work.enqueue("a")
    assert (first.created, again.created, again.id) == (True, False, "x")
    with pytest.raises(DuplicateJobError) as caught:
        await work.enqueue("b")
    assert caught.value.fields == ("claims", "arguments")
    await sched.drain()
    late = await work.enqueue("a")
    assert (late.created, await late.result()) == (False, "a0")


# --- using -------------------------------------------------------------------------------------------------------


def test_every_option_reaches_the_job() -> None:
    sched, clock = scheduler()
    work = make_job(sched)
    due = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC) + dt.timedelta(hours=1)
    spec = work.using(
        id="x",
        key="k",
        on_conflict="after",
        run_at=due,
        user="ann",
        queue_hint=["lit{eral}", "{doc}"],
        mode="shared",
        priority=Priority.CRITICAL,
        pool="gpu",
        service="svc",
        max_attempts=7,
        max_losses=2,
        retry=Backoff(base=2),
        timeout=dt.timedelta(seconds=3),
        on_retry="yield",
        on_dead="hold",
        on_dependency_failure="run",
        max_hold=4,
        start_within=5,
        retention=6.5,
    ).spec("a")
    assert (spec.id, spec.key, spec.on_conflict, spec.user, spec.pool, spec.service, spec.priority) == (
        "x",
        "k",
        "after",
        "ann",
        "gpu",
        "svc",
        9,
    )
    assert spec.claims == (Claim(("lit{eral}", "{doc}"), "shared"),)
    assert spec.run_at_ms == clock.now_ms() + 3_600_000
    policy = spec.policy
    assert (policy.max_attempts, policy.max_losses, policy.backoff, policy.timeout_ms) == (7, 2, Backoff(base=2), 3_000)
    assert (policy.on_retry, policy.on_dead, policy.on_dependency_failure) == ("yield", "hold", "run")
    assert (policy.max_hold_ms, policy.start_within_ms, policy.retention_ms) == (4_000, 5_000, 6_500)


def test_the_decorators_options_are_defaults_that_using_overrides() -> None:
    sched, _ = scheduler()
    work = make_job(sched, priority=5, max_attempts=2, timeout=1, on_retry="yield", pool="p")
    spec = work.spec("a")
    assert (spec.priority, spec.pool, spec.policy.max_attempts, spec.policy.timeout_ms) == (5, "p", 2, 1_000)
    other = work.using(timeout=None, priority=1).spec("a")
    assert (other.priority, other.policy.timeout_ms, other.policy.max_attempts) == (1, None, 2)
    assert other.policy.on_retry == "yield"
    assert work.spec("a").priority == 5


def test_using_leaves_the_job_itself_as_it_was() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    other = work.using(user="ann").using(priority=4)
    assert (other.spec("a").user, other.spec("a").priority) == ("ann", 4)
    assert (work.spec("a").user, work.spec("a").priority) == (None, 3)


@pytest.mark.parametrize(
    "hint, claims",
    [
        (["x", "y"], (Claim(("x", "y")),)),
        (["{doc}"], (Claim(("{doc}",)),)),
        (["{", "}}"], (Claim(("{", "}}")),)),
        ([], (Claim(()),)),
        (None, ()),
    ],
)
def test_a_place_given_by_using_is_literal(hint: Any, claims: Any) -> None:
    sched, _ = scheduler()
    assert make_job(sched).using(queue_hint=hint).spec("a").claims == claims


def test_several_claims_are_normalised() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    spec = work.using(claims=[["b"], (["a"], "shared"), Claim(("b", "c"))]).spec("x")
    assert spec.claims == (Claim(("a",), "shared"), Claim(("b",)))
    assert work.using(claims=[]).spec("x").claims == ()
    assert work.using(claims=[["b"]]).using(claims=None).spec("x").claims == (Claim(("x",)),)
    assert work.using(claims=[["b"]]).using(queue_hint=["c"]).spec("x").claims == (Claim(("c",)),)
    assert work.using(queue_hint=["c"]).using(claims=[["b"]]).spec("x").claims == (Claim(("b",)),)


def test_claims_and_a_hint_at_once_are_refused() -> None:
    sched, _ = scheduler()
    with pytest.raises(InvalidJobError, match="give queue_hint or claims"):
        make_job(sched).using(claims=[["b"]], queue_hint=["c"])


def test_a_callable_hint_sees_the_arguments() -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=lambda doc, n: [doc, str(n)] if n else None)
    def work(doc: str, n: int = 0) -> None: ...

    assert work.spec("a", 2).claims == (Claim(("a", "2")),)
    assert work.spec("a").claims == ()


def test_an_int_names_a_place_as_its_text() -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=["user-{id}"])
    def work(id: int) -> None: ...

    assert work.spec(7).claims == (Claim(("user-7",)),)
    with pytest.raises(TypeError, match="queue_hint: argument 'id' must be str or int"):
        work.using(check_arguments=False).spec(7.5)  # type: ignore[arg-type]


def test_a_later_delay_takes_the_place_of_a_time_and_the_other_way_round() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    when = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert work.using(delay=1).using(run_at=when).spec("a").delay_ms is None
    assert work.using(run_at=when).using(delay=1).spec("a").run_at_ms is None
    assert work.using(delay=1).using(delay=None).spec("a").delay_ms is None


@pytest.mark.parametrize("by", ["delay", "run_at"])
async def test_a_job_is_scheduled_until_it_is_due(by: str) -> None:
    sched, clock = scheduler()
    work = make_job(sched)
    due = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC) + dt.timedelta(seconds=5)
    later = await work.using(**({"delay": 5} if by == "delay" else {"run_at": due})).enqueue("a")
    async with sched.worker():
        now = await work.enqueue("a", 1)
        assert await now.result() == "a1"
        assert await later.state() is SCHEDULED
        record = await later.record()
        assert record.due_at == due
        clock.advance(seconds=4.999)
        await turns()
        assert await later.state() is SCHEDULED
        clock.advance(ms=1)
        assert await later.result() == "a0"


# --- results -----------------------------------------------------------------------------------------------------


@attrs.define
class Op:
    at: int
    when: dt.datetime | None = None


async def test_arguments_and_results_travel_by_their_annotations() -> None:
    sched, _ = scheduler()
    seen: list[Any] = []

    @sched.job
    async def apply(ops: list[Op], on: dt.date, id: uuid.UUID) -> Op:
        seen.append((ops, on, id))
        return ops[-1]

    @sched.job
    def when() -> dt.datetime:
        return dt.datetime(2020, 1, 2, tzinfo=dt.UTC)

    @sched.job
    def who() -> uuid.UUID:
        return uuid.UUID(int=5)

    ops = [Op(1), Op(2, dt.datetime(2021, 1, 1, tzinfo=dt.UTC))]
    applied = await apply.enqueue(ops, dt.date(2020, 1, 1), uuid.UUID(int=1))
    said_when, said_who = await when.enqueue(), await who.enqueue()
    await sched.drain()
    assert seen == [(ops, dt.date(2020, 1, 1), uuid.UUID(int=1))]
    assert await applied.result() == ops[1]
    assert await said_when.result() == dt.datetime(2020, 1, 2, tzinfo=dt.UTC)
    assert await said_who.result() == uuid.UUID(int=5)


@pytest.mark.parametrize("answer", [None, Op(9), Retry(1), Snooze(1)])
async def test_an_annotation_may_name_the_answers_beside_the_result(answer: Any) -> None:
    sched, clock = scheduler()
    calls: list[str] = []

    @sched.job
    async def work() -> Op | Retry | Snooze | None:
        calls.append("x")
        return answer if len(calls) == 1 else Op(7)

    async with sched.worker():
        handle = await work.enqueue()
        await until(lambda: len(calls) == 1)
        await turns()
        clock.advance(seconds=1)
        assert await handle.result() == (Op(7) if isinstance(answer, (Retry, Snooze)) else answer)


async def test_a_result_is_read_without_a_handler_as_plain_json() -> None:
    sched, _ = scheduler()

    @sched.job
    def apply() -> Op:
        return Op(1)

    handle = await apply.enqueue()
    await sched.drain()
    other = Scheduler("memory://")
    other._backend = sched.backend
    assert await other.handle(handle.id).result() == {"at": 1, "when": None}


async def test_a_failed_jobs_result_raises_what_is_known_as_text() -> None:
    sched, _ = scheduler()

    @sched.job(max_attempts=1)
    def work() -> None:
        raise LookupError("nothing there")

    handle = await work.enqueue()
    await sched.drain()
    with pytest.raises(JobFailedError) as caught:
        await handle.result()
    error = caught.value
    assert (error.job_id, error.error_type, error.message) == (handle.id, "LookupError", "nothing there")
    assert error.traceback is not None
    assert "test_api.py" in error.traceback


async def test_a_canceled_jobs_result_raises_with_the_cause() -> None:
    sched, _ = scheduler()
    handle = await make_job(sched).enqueue("a")
    assert await handle.cancel("not wanted") is True
    with pytest.raises(JobCanceledError, match="not wanted") as caught:
        await handle.result()
    assert caught.value.cause == "not wanted"


async def test_a_result_not_there_in_time_is_a_timeout_and_the_job_goes_on() -> None:
    sched, _ = scheduler()
    handle = await make_job(sched).enqueue("a")
    for timeout in (0, 0.001, dt.timedelta(milliseconds=1)):
        with pytest.raises(TimeoutError) as caught:
            await handle.result(timeout)
        assert isinstance(caught.value, ResultTimeoutError)
    await sched.drain()
    assert await handle.result(0) == "a0"


async def test_a_waiter_for_a_result_is_woken() -> None:
    sched, _ = scheduler()
    handles = await make_job(sched).enqueue_many([("doc", n) for n in range(20)])
    waiting = [asyncio.create_task(handle.result()) for handle in handles]
    await turns()
    async with sched.worker():
        assert await asyncio.gather(*waiting) == [f"doc{n}" for n in range(20)]


async def test_events_show_the_states_of_a_job_to_its_end() -> None:
    sched, clock = scheduler()
    work = make_job(sched)
    handle = await work.using(delay=1).enqueue("a")
    seen: list[JobState] = []
    worker: contextlib.AbstractAsyncContextManager[Any] = sched.worker()
    async with contextlib.AsyncExitStack() as stack:
        async for record in handle.events():
            seen.append(record.state)
            if record.state is SCHEDULED:
                clock.advance(seconds=1)
                await sched.backend.call(Tick())
            elif record.state is QUEUED:
                await stack.enter_async_context(worker)
    assert seen[0] is SCHEDULED
    assert QUEUED in seen
    assert seen[-1] is FINISHED


async def test_events_of_an_unknown_job_raise() -> None:
    sched, _ = scheduler()
    with pytest.raises(JobNotFoundError):
        async for _ in sched.handle("nobody").events():
            pass


# --- what a handler says -----------------------------------------------------------------------------------------


async def test_progress_and_log_lines_are_seen_while_the_handler_runs() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def from_loop(ctx: JobContext) -> None:
        ctx.progress(1, 2, "half")
        ctx.log("one\ntwo")
        await gate.wait()

    @sched.job
    def from_thread(ctx: JobContext) -> None:
        ctx.progress(1, 2, "half")
        ctx.log("one\ntwo")
        gate.wait_sync()

    async with sched.worker():
        handles = [await from_loop.enqueue(), await from_thread.enqueue()]
        for handle in handles:

            async def told(handle: Any = handle) -> bool:
                return len((await handle.record()).logs) == 2

            await until(told)
            record = await handle.record()
            assert record.state is STARTED
            assert await handle.progress() == record.progress == Progress(1, 2, "half")
            assert record.logs == ("one", "two")
        gate.open()
        for handle in handles:
            await handle.result()


async def test_what_was_said_last_is_kept_when_the_job_ends_at_once() -> None:
    sched, _ = scheduler()

    @sched.job(max_attempts=1)
    async def work(ctx: JobContext, fail: bool) -> None:
        ctx.log("")
        ctx.log("x" * 5_000)
        ctx.log("bad \ud800")
        ctx.progress(note="n" * 2_000)
        if fail:
            raise ValueError

    for fail in (False, True):
        handle = await work.enqueue(fail)
        await sched.drain()
        record = await handle.record()
        assert record.logs == ("", "x" * 4_096, "bad \\ud800")
        assert record.progress == Progress(None, None, "n" * 1_024)


async def test_the_context_tells_about_the_job() -> None:
    sched, _ = scheduler()
    seen: list[Any] = []

    @sched.job(queue_hint=["{doc}", "x"])
    async def work(ctx: JobContext, doc: str) -> None:
        seen.append((ctx.id, ctx.attempt, ctx.path, ctx.user, ctx.canceled, ctx.token))

    handle = await work.using(user="ann").enqueue("d")
    await sched.drain()
    token = (await handle.record()).token
    assert seen == [(handle.id, 1, ("d", "x"), "ann", False, token)]


async def test_a_second_attempt_finds_the_children_of_the_first() -> None:
    sched, clock = scheduler()
    found: list[list[tuple[str, bool]]] = []

    @sched.job
    async def child(n: int) -> int:
        return n

    @sched.job(retry=Backoff(base=1, jitter=0))
    async def parent(ctx: JobContext) -> None:
        handles = [await ctx.enqueue(child, n) for n in range(2)]
        handles.append(await ctx.enqueue(child.using(priority=5), 9))
        found.append([(handle.id, handle.created) for handle in handles])
        if ctx.attempt == 1:
            raise RuntimeError

    @sched.job
    def parent_in_thread(ctx: JobContext) -> str:
        return str(ctx.enqueue_sync(child, n=5).id)

    async with sched.worker():
        handle = await parent.enqueue()
        await until(lambda: len(found) == 1)
        await turns()
        clock.advance(seconds=1)
        await handle.result()
        names = [f"{handle.id}.{n}" for n in (1, 2, 3)]
        assert found == [[(name, True) for name in names], [(name, False) for name in names]]
        assert await sched.handle(names[2]).result() == 9
        other = await parent_in_thread.enqueue()
        assert await other.result() == f"{other.id}.1"


@pytest.mark.parametrize("thing", [5, None, "child", lambda: None])
async def test_a_child_is_made_of_a_job_only(thing: Any) -> None:
    sched, _ = scheduler()

    @sched.job(max_attempts=1)
    async def parent(ctx: JobContext) -> None:
        with pytest.raises(InvalidJobError, match="job must be a Job"):
            await ctx.enqueue(thing)

    handle = await parent.enqueue()
    await sched.drain()
    assert await handle.state() is FINISHED


# --- questions and orders ----------------------------------------------------------------------------------------


async def test_why_names_what_a_job_waits_for() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    first = await work.enqueue("a")
    second = await work.enqueue("a")
    reason = await second.why()
    assert (reason.kind, reason.jobs, reason.path_key) == (ReasonKind.PLACE, (first.id,), "a")
    assert await sched.why(second) == await sched.why(second.id) == sched.why_sync(second) == second.why_sync()
    assert (await first.why()).kind is ReasonKind.NO_WORKER
    await sched.drain()
    assert (await first.why()).kind is ReasonKind.OVER


async def test_an_unknown_job_is_not_found() -> None:
    sched, _ = scheduler()
    handle = sched.handle("nobody")
    for call in (handle.record, handle.state, handle.progress, handle.why, handle.cancel, handle.result):
        with pytest.raises(JobNotFoundError) as caught:
            await call()
        assert isinstance(caught.value, LookupError)
        assert "'nobody'" in str(caught.value)
    for sync in (
        handle.record_sync,
        handle.state_sync,
        handle.progress_sync,
        handle.why_sync,
        handle.cancel_sync,
        handle.result_sync,
    ):
        with pytest.raises(JobNotFoundError):
            sync()
    with pytest.raises(JobNotFoundError):
        await sched.get("nobody")
    with pytest.raises(JobNotFoundError):
        await sched.why("nobody")
    for order in (sched.dead.redrive, sched.dead.discard):
        with pytest.raises(JobNotFoundError):
            await order(["nobody"])
    assert await sched.cancel(["nobody"]) == [False]


async def test_a_job_of_another_store_is_not_found() -> None:
    one, two = scheduler()[0], scheduler()[0]
    handle = await make_job(one).enqueue("a")
    with pytest.raises(JobNotFoundError):
        await two.get(handle.id)


async def test_a_job_that_is_over_cannot_be_canceled() -> None:
    sched, _ = scheduler()
    handle = await make_job(sched).enqueue("a")
    await sched.drain()
    with pytest.raises(InvalidTransitionError, match="FINISHED") as caught:
        await handle.cancel()
    assert (caught.value.state, caught.value.target) == (FINISHED, CANCELED)
    with pytest.raises(InvalidTransitionError, match="FINISHED"):
        await sched.dead.redrive([handle.id])
    assert await sched.cancel([handle]) == [False]
    assert await handle.state() is FINISHED


async def test_the_tree_and_can_dequeue_show_what_executes() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["{doc}", "x"])
    async def work(doc: str) -> None:
        await gate.wait()

    async with sched.worker():
        await work.enqueue("a")
        await work.enqueue("a")
        await gate.reached()
        for hint, may in [(["a"], False), ([], False), (["a", "x", "y"], False), (["a", "y"], True), (None, True)]:
            assert await sched.can_dequeue(hint) is sched.can_dequeue_sync(hint) is may
        assert not await sched.can_dequeue(["a"], "shared")
        tree = await sched.tree(depth=2)
        assert tree == sched.tree_sync((), 2)
        assert (tree.path_key, tree.started_below, tree.children[0].path_key) == ("root", 1, "a")
        leaf = tree.children[0].children[0]
        assert (leaf.path_key, leaf.started, leaf.waiting) == ("a:x", 1, 1)
        assert (await sched.tree(["a"], 0)).children == ()
        stats = await sched.stats()
        assert (stats.states[STARTED], stats.states[QUEUED], stats.unfinished) == (1, 1, 2)
        assert stats == sched.stats_sync()
        gate.open()


async def test_a_tree_comes_in_pages_and_by_the_longest_lines() -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=["{doc}", "{section}"])
    async def edit(doc: str, section: str) -> None: ...

    for number, section in enumerate("abc"):
        await edit.enqueue_many([(f"doc{number}", section)] * (number + 2))
    page = await sched.tree(limit=2)
    assert ([child.path_key for child in page.children], page.after) == (["doc0", "doc1"], "doc1")
    assert page == sched.tree_sync(after="", limit=2)
    page = await sched.tree(after=page.after)
    assert ([child.path_key for child in page.children], page.after) == (["doc2"], None)
    longest = await sched.tree(depth=2, order="line")
    assert [(place.path_key, place.waiting) for place in longest.children] == [
        ("doc2:c", 3),
        ("doc1:b", 2),
        ("doc0:a", 1),
    ]
    assert (longest.passing, longest) == (9, sched.tree_sync((), 2, order="line"))
    assert sched.tree_sync((), 2, limit=1, order="line").children == longest.children[:1]
    assert sched.tree_sync(order="line").children == sched.tree_sync(depth=0, order="line").children == ()


def test_the_longest_lines_of_all_pages_are_merged() -> None:
    """Pages as a store may answer: a line that has grown since comes again, and one as long as the shortest."""
    sched, _ = scheduler()
    asked: list[tuple[str | None, int]] = []
    answers = iter(
        [({"d": 3, "e": 2}, "e"), ({"a": 4, "d": 5}, "a"), ({}, "m"), ({"b": 4, "z": 4}, None)],
    )

    def call_sync(operation: Operation[Any]) -> Any:
        if isinstance(operation, Tree):
            return node_of("root", 0)
        assert isinstance(operation, ListLines)
        asked.append((operation.after, operation.longer_than))
        lines, after = next(answers)
        return Lines(tuple([node_of(key, waiting) for key, waiting in lines.items()]), after)

    sched.backend.call_sync = call_sync  # type: ignore[method-assign]
    found = sched.tree_sync((), 3, limit=2, order="line")
    assert [(place.path_key, place.waiting) for place in found.children] == [("d", 5), ("a", 4)]
    assert asked == [(None, 0), ("e", 1), ("a", 3), ("m", 3)]


def node_of(path_key: str, waiting: int) -> TreeNode:
    return TreeNode(
        path_key=path_key, started=0, started_below=0, waiting=waiting, granted=0, passing=0, paused=False, closed=False
    )


async def test_jobs_are_canceled_by_ids_and_by_path() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    a, b, c, d = [await work.enqueue(name) for name in "abcd"]
    assert await sched.cancel([a, b.id, "nobody"], reason="why not") == [True, True, False]
    assert (await a.record()).cause == "why not"
    assert await sched.cancel(path=["c"]) == 1
    assert [await handle.state() for handle in (a, b, c, d)] == [CANCELED, CANCELED, CANCELED, QUEUED]
    assert sched.cancel_sync(path=[]) == 1
    assert await d.state() is CANCELED
    assert await sched.cancel([]) == []


async def test_a_large_path_is_canceled_to_its_end() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    await work.enqueue_many([("doc", n) for n in range(10_000)])
    assert await sched.cancel(path=["doc"]) == 10_000
    async with sched.worker():
        await sched.drain()
    stats = await sched.stats()
    assert (stats.states[CANCELED], stats.states[FINISHED], stats.leftovers) == (10_000, 0, 0)


async def test_a_paused_path_waits_until_it_is_resumed() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    assert await sched.pause(["a"]) is True
    assert await sched.pause(["a"]) is False
    paused, free = await work.enqueue("a"), await work.enqueue("b")
    async with sched.worker():
        await free.result()
        assert await paused.state() is QUEUED
        assert (await paused.why()).kind is ReasonKind.PAUSED
        assert (await sched.stats()).stuck["paused"] == 1
        assert await sched.resume(["a"]) is True
        assert await sched.resume(["a"]) is False
        assert await paused.result() == "a0"


async def test_a_large_path_is_closed_with_a_last_job() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    await work.enqueue_many([("doc", n) for n in range(2_500)])
    last = await sched.close_path(["doc"], last=work.using(id="last").spec("doc"))
    assert (await sched.stats()).states[CANCELED] == 2_500
    again = await sched.close_path(["doc"], last=work.using(id="last").spec("doc"))
    assert (last.created, again.created) == (True, False)
    async with sched.worker():
        assert await last.result() == "doc0"
    with pytest.raises(PathClosedError):
        await work.enqueue("doc")


async def test_what_goes_first_does_so_before_the_last_job() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    first = await work.enqueue("doc")
    last = await sched.close_path(["doc"], last=work.spec("doc", 1), waiting="run")
    async with sched.worker():
        assert [await first.result(), await last.result()] == ["doc0", "doc1"]


async def test_a_closed_path_takes_nothing_until_it_is_reopened() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    assert await sched.close_path(["a"]) is True
    assert await sched.close_path(["a"]) is False
    with pytest.raises(PathClosedError, match="'a'"):
        await work.enqueue_many([("b",), ("a",)])
    assert (await sched.stats()).enqueued == 0
    assert await sched.reopen_path(["a"]) is True
    assert await sched.reopen_path(["a"]) is False
    await work.enqueue("a")


def make_dead(sched: Scheduler, count: int = 1) -> tuple[list[Any], list[bool]]:
    """Enqueue jobs that fail at once, unless told to go well; drain them."""
    well: list[bool] = []

    @sched.job(max_attempts=1, name="mortal")
    async def mortal(n: int) -> int:
        if not well:
            raise ValueError("no")
        return n

    return mortal.enqueue_many_sync([(n,) for n in range(count)]), well


async def test_the_dead_shelf_is_listed_redriven_and_discarded() -> None:
    sched, _ = scheduler()
    handles, well = make_dead(sched, 250)
    await sched.drain()
    ids = [handle.id for handle in handles]
    page = await sched.dead.list(3)
    assert [record.id for record in page] == ids[:3]
    assert [record.id for record in await sched.dead.list(2, after=page[-1].number)] == ids[3:5]
    assert list(sched.dead.list_sync()) == list(await sched.dead.list()) != []
    assert [record.id async for record in sched.dead] == ids
    well.append(True)
    await sched.dead.redrive(ids[:2])
    await sched.dead.discard(ids[2:4])
    await sched.drain()
    assert await handles[1].result() == 1
    assert await handles[2].state() is CANCELED
    assert [record.id async for record in sched.dead] == ids[4:]


async def test_redriving_goes_on_past_a_job_that_is_not_dead() -> None:
    sched, _ = scheduler()
    (handle,), well = make_dead(sched)
    await sched.drain()
    well.append(True)
    with pytest.raises(JobNotFoundError):
        await sched.dead.redrive(["nobody", handle.id])
    await sched.drain()
    assert await handle.state() is FINISHED


# --- hooks -------------------------------------------------------------------------------------------------------


async def test_hooks_see_each_attempt() -> None:
    sched, _ = scheduler()
    seen: list[Any] = []

    @sched.before_job
    def before(ctx: JobContext) -> None:
        seen.append(("before", ctx.id))

    @sched.before_job
    async def before_too(ctx: JobContext) -> None:
        await asyncio.sleep(0)
        seen.append(("before too", ctx.id))

    @sched.after_job
    async def after(ctx: JobContext, outcome: Any) -> None:
        seen.append(("after", outcome.kind.value))

    handle = await make_job(sched).enqueue("a")
    await sched.drain()
    assert seen == [("before", handle.id), ("before too", handle.id), ("after", "finished")]
    assert before.__name__ == "before"


async def test_a_before_hook_that_raises_fails_the_attempt_and_the_handler_is_not_called() -> None:
    sched, _ = scheduler()
    called: list[str] = []

    @sched.before_job
    def before(ctx: JobContext) -> None:
        raise PermissionError("not today")

    @sched.job(max_attempts=1)
    def work() -> None:
        called.append("x")

    handle = await work.enqueue()
    await sched.drain()
    with pytest.raises(JobFailedError, match="PermissionError: not today"):
        await handle.result()
    assert called == []


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
async def test_an_after_hook_that_raises_is_logged_and_changes_nothing(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    sched, _ = scheduler()
    seen: list[str] = []

    @sched.after_job
    def bad(ctx: JobContext, outcome: Any) -> None:
        raise error("in the hook")

    @sched.after_job
    def good(ctx: JobContext, outcome: Any) -> None:
        seen.append(ctx.id)

    handle = await make_job(sched).enqueue("a")
    await sched.drain()
    assert await handle.result() == "a0"
    assert seen == [handle.id]
    assert [record.__dict__["event"] for record in caplog.records if record.levelname == "ERROR"] == ["hook.failed"]


# --- drain -------------------------------------------------------------------------------------------------------


async def test_drain_runs_the_jobs_itself_if_there_is_no_worker() -> None:
    sched, _ = scheduler()
    handles = await make_job(sched).enqueue_many([("doc", n) for n in range(50)])
    await sched.drain()
    assert [await handle.state() for handle in handles] == [FINISHED] * 50
    await sched.drain()


async def test_drain_uses_the_worker_that_is_there() -> None:
    sched, _ = scheduler()
    handle = await make_job(sched).enqueue("a")
    async with sched.worker() as worker:
        await sched.drain()
        assert list(sched._workers) == [worker]
        assert (await handle.record()).state is FINISHED
    assert not sched._workers


@pytest.fixture(params=["memory", "sqlite"])
def local_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a scheduler finds each store of its own process."""
    with quick_folder() as folder:
        yield "memory://" if request.param == "memory" else f"sqlite:///{folder}/jobs.db?durability=process"


@pytest.mark.parametrize("path", [None, [], ["b"]])
@pytest.mark.parametrize("include_scheduled", [False, True])
async def test_drain_on_a_store_of_this_process_ends_with_the_last_job(
    local_url: str, path: list[str] | None, include_scheduled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is asked a second time before the test has failed.
    monkeypatch.setattr("queuehint.scheduler.draining.POLL_MIN_S", 600)
    monkeypatch.setattr("queuehint.scheduler.draining.POLL_MAX_S", 600)
    sched = Scheduler(local_url)
    snoozed: list[str] = []

    @sched.job(queue_hint=["{doc}"], on_retry="yield")
    async def work(doc: str, n: int) -> Snooze | None:
        if n != 5 or doc in snoozed:
            return None
        snoozed.append(doc)
        return Snooze(0.001 if include_scheduled else 600)

    await work.enqueue_many([(doc, n) for n in range(40) for doc in "ab"])
    async with asyncio.timeout(60):
        await sched.drain(path, include_scheduled=include_scheduled)
    question = CountPending(None if path is None else tuple(path), include_scheduled)
    assert not (await sched.backend.call(question)).unfinished
    await sched.close()


async def test_drain_of_a_path_leaves_the_rest() -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job(queue_hint=["{doc}"])
    async def work(doc: str) -> None:
        if doc == "other":
            await gate.wait()

    other = await work.enqueue("other")
    handle = await work.enqueue("a")
    async with sched.worker():
        await sched.drain(["a"], timeout=10)
        assert await handle.state() is FINISHED
        await gate.reached()
        assert await other.state() is STARTED
        with pytest.raises(DrainTimeoutError) as caught:
            await sched.drain(timeout=0)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.unfinished == 1
        gate.open()


async def test_drain_leaves_scheduled_jobs_unless_asked() -> None:
    sched, clock = scheduler()
    handle = await make_job(sched).using(delay=60).enqueue("a")
    await sched.drain()
    assert await handle.state() is SCHEDULED
    with pytest.raises(DrainTimeoutError):
        await sched.drain(include_scheduled=True, timeout=0)
    draining = asyncio.create_task(sched.drain(include_scheduled=True))
    await turns()
    clock.advance(seconds=60)
    await draining
    assert await handle.state() is FINISHED


async def stalled(sched: Scheduler, path: list[str] | None = None) -> DrainStalledError:
    with pytest.raises(DrainStalledError) as caught:
        await sched.drain(path)
    return caught.value


@pytest.mark.parametrize("path", [None, ["a"]])
async def test_drain_names_a_paused_path(path: Any) -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    await sched.pause(["a"])
    first, second = await work.enqueue("a"), await work.enqueue("a")
    error = await stalled(sched, path)
    assert [(reason.job_id, reason.kind) for reason in error.reasons] == [
        (first.id, ReasonKind.PAUSED),
        (second.id, ReasonKind.PLACE),
    ]
    assert "its path is paused" in str(error)


@pytest.mark.parametrize("path", [None, ["a"]])
async def test_drain_names_a_dead_hold(path: Any) -> None:
    sched, _ = scheduler()

    @sched.job(queue_hint=["a"], max_attempts=1, on_dead="hold")
    async def work(fail: bool) -> None:
        if fail:
            raise ValueError

    dead = await work.enqueue(True)
    await work.enqueue(False)
    (reason,) = (await stalled(sched, path)).reasons
    assert (reason.kind, reason.jobs) == (ReasonKind.DEAD_HOLD, (dead.id,))


@pytest.mark.parametrize("path", [None, ["a"]])
async def test_drain_names_a_pool_nobody_serves(path: Any) -> None:
    sched, _ = scheduler()
    await make_job(sched).using(pool="gpu").enqueue("a")
    (reason,) = (await stalled(sched, path)).reasons
    assert reason.kind is ReasonKind.NO_WORKER
    assert str(reason.detail).startswith("pool gpu; ")


@pytest.mark.parametrize("path", [None, ["a"]])
async def test_drain_names_a_task_nobody_knows(path: Any) -> None:
    sched, _ = scheduler()
    await sched.submit([JobSpec(id="x", task="unknown", claims=(Claim(("a",)),))])
    (reason,) = (await stalled(sched, path)).reasons
    assert (reason.job_id, reason.kind) == ("x", ReasonKind.UNKNOWN_TASK)


async def test_drain_does_not_give_up_while_something_can_move() -> None:
    sched, clock = scheduler()
    tries: list[int] = []

    @sched.job(queue_hint=["a"], retry=Backoff(base=1, jitter=0))
    async def flaky(ctx: JobContext) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError

    await flaky.enqueue()
    await sched.pause(["b"])
    await make_job(sched).enqueue("b")
    draining = asyncio.create_task(sched.drain(["a"]))
    for attempt in (1, 2):
        await until(lambda attempt=attempt: len(tries) == attempt)  # type: ignore[misc]
        await turns()
        clock.advance(seconds=2)
    await draining
    assert tries == [1, 2, 3]


async def test_a_full_worker_still_serves_its_pool() -> None:
    sched, clock = scheduler()
    gate = Gate()

    @sched.job(pool="slow", queue_hint=["{doc}"])
    async def slow(doc: str) -> None:
        await gate.wait()

    async with sched.worker(1, pools=["slow"]), sched.worker(1, pools=["default"]):
        await slow.enqueue("a")
        await gate.reached()
        waiting = await slow.enqueue("b")
        clock.advance(seconds=300)
        await turns()
        assert (await waiting.why()).kind is ReasonKind.WORKER
        with pytest.raises(DrainTimeoutError):
            await sched.drain(["b"], timeout=0)
        gate.open()


# --- a handler never waits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(
    "call", ["result", "result_sync", "drain", "drain_sync", "exclusive", "exclusive_sync", "events", "third"]
)
async def test_a_handler_that_waits_for_a_job_is_refused_at_once(kind: str, call: str) -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    # Behind the handler's own path, on another, and behind a third job: every wait may close a cycle.
    pending = await work.using(queue_hint=["elsewhere"], pool="nobody").enqueue("x")
    third = await work.using(queue_hint=["elsewhere"], pool="nobody").enqueue("x")

    async def events() -> None:
        async for _ in pending.events():
            pass

    async def wait() -> None:
        if call == "drain":
            await sched.drain(timeout=1)
        elif call == "exclusive":
            async with sched.exclusive(["free"]):
                pass
        elif call == "events":
            await events()
        elif call == "third":
            await third.result(1)
        elif call == "result":
            await pending.result(1)
        else:
            wait_sync()

    def wait_sync() -> None:
        if call == "result_sync":
            pending.result_sync(1)
        elif call == "drain_sync":
            sched.drain_sync(["elsewhere"], timeout=1)
        elif call == "exclusive_sync":
            with sched.exclusive_sync(["free"], timeout=1):
                pass
        else:
            asyncio.run(wait())

    @sched.job(queue_hint=["elsewhere"], max_attempts=1)
    async def handler() -> str:
        with pytest.raises(WouldDeadlockError) as caught:
            await wait()
        return str(caught.value)

    @sched.job(queue_hint=["elsewhere"], max_attempts=1)
    def handler_in_thread() -> str:
        with pytest.raises(WouldDeadlockError) as caught:
            wait_sync()
        return str(caught.value)

    job = handler if kind == "async" else handler_in_thread
    async with sched.worker():
        message = await (await job.using(queue_hint=None).enqueue()).result()
        assert "inside a handler could wait for ever" in message
        assert "Enqueue a job" in message
        assert await pending.state() is QUEUED
    assert (await sched.stats()).enqueued == 3


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_may_ask_for_what_is_over(kind: str) -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    over = await work.enqueue("a")
    await sched.drain()

    @sched.job(max_attempts=1)
    async def handler() -> str:
        await sched.drain(["a"])
        assert [record.state async for record in over.events()] == [FINISHED]
        return str(await over.result() + over.result_sync())

    @sched.job(max_attempts=1)
    def handler_in_thread() -> str:
        sched.drain_sync(["a"])
        return str(over.result_sync() + asyncio.run(over.result()))

    job = handler if kind == "async" else handler_in_thread
    async with sched.worker():
        assert await (await job.enqueue()).result() == "a0a0"


# --- life of the application -------------------------------------------------------------------------------------


async def test_lifespan_runs_workers_where_jobs_live_in_the_process() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    app = object()
    async with sched.lifespan()(app) as state:
        assert state == {"queuehint": sched}
        assert await (await work.enqueue("a")).result() == "a0"
    assert not sched._workers


async def test_lifespan_without_workers_runs_none() -> None:
    sched, _ = scheduler()
    handle = await make_job(sched).enqueue("a")
    async with sched.lifespan(workers=False)(None):
        assert not sched._workers
        await turns()
        assert await handle.state() is QUEUED
    async with sched.lifespan(workers=True, concurrency=2)(None):
        assert await handle.result() == "a0"


async def test_a_scheduler_is_its_own_context_and_opens_anew_after_close() -> None:
    sched, _ = scheduler()
    async with sched as same:
        assert same is sched
        first = memory(sched)
        await make_job(sched).enqueue("a")
    assert first._closed
    assert (await sched.stats()).unfinished == 0
    await sched.close()
    await sched.close()
    sched.close_sync()
