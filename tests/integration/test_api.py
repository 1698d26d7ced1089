"""Scheduler API of an application: registration, enqueue, results, hooks."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import re
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import pytest

from queuehint import (
    BackendUnavailableError,
    Backoff,
    Claim,
    DuplicateJobError,
    HandlerError,
    InvalidJobError,
    InvalidJobTypeError,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    JobState,
    Priority,
    Progress,
    ResultTimeoutError,
    Retry,
    Scheduler,
    Snooze,
)
from queuehint.backends import base
from queuehint.operations import Tick
from tests.each import for_each
from tests.schedulers import Gate, make_job, memory, scheduler, turns, until

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- registration ----------------------------------------------------------------------------------------------------


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
    monkeypatch.setenv("QUEUEHINT_URL", "redis://host")
    assert Scheduler().url == "redis://host"
    assert Scheduler("memory://").url == "memory://"


def test_a_scheduler_connects_on_first_use() -> None:
    sched = Scheduler("redis://ann:secret@127.0.0.1:1", patience=0.1)
    make_job(sched)
    with pytest.raises(BackendUnavailableError) as caught:
        sched.stats_sync()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["nowhere", "mysql"])
def test_url_of_an_unknown_scheme_is_refused_at_once(scheme: str) -> None:
    with pytest.raises(InvalidJobError, match=rf"no backend serves '{scheme}'; known are .*memory") as caught:
        Scheduler(f"{scheme}://ann:secret@host/queue")
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
def test_malformed_url_is_refused_with_a_suggestion(url: str, meant: str) -> None:
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
    with pytest.raises(InvalidJobError, match=r"known are memory, postgres, postgresql, .* redis, redis\+cluster"):
        Scheduler("nonsense")
    base._backend_of.cache_clear()


def test_two_schedulers_on_memory_are_separate_stores() -> None:
    one, two = Scheduler("memory://"), Scheduler("memory://")
    make_job(one).enqueue_sync("a")
    assert (one.stats_sync().unfinished, two.stats_sync().unfinished) == (1, 0)


async def test_second_memory_scheduler_with_a_worker_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
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


# --- enqueue ---------------------------------------------------------------------------------------------------------


async def test_a_job_runs_and_gives_its_result() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    async with sched.worker():
        handle = await work.enqueue("doc", n=3)
        assert handle.created
        assert await handle.result(timeout=60) == "doc3"
        assert await handle.state() is FINISHED


async def test_many_calls_are_enqueued_in_order() -> None:
    sched, _ = scheduler()
    work = make_job(sched)
    handles = await work.enqueue_many([("a", 1), {"doc": "b", "n": 2}, ("c",), {"doc": "d"}])
    records = [await handle.record() for handle in handles]
    assert [record.path for record in records] == [("a",), ("b",), ("c",), ("d",)]
    assert [record.number for record in records] == [1, 2, 3, 4]
    assert await work.enqueue_many([]) == []


async def test_calls_of_a_job_are_checked_at_the_call() -> None:
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


@for_each("bad", [(1,), (), ("a", 1, 2), {"x": 1}, "a", None, ["a"], ("a", {1}), ("",), 5])
@for_each("before", [3, 1_200])
def test_bad_call_in_a_bulk_is_named_and_enqueues_nothing(bad: Any, before: int) -> None:
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
def test_malformed_spec_is_refused(ids: str) -> None:
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


# --- using -----------------------------------------------------------------------------------------------------------


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
    with pytest.raises(TypeError, match="queue_hint: argument 'id' must be str, int, UUID or date"):
        work.using(check_arguments=False).spec(7.5)  # type: ignore[arg-type]


def test_delay_and_time_replace_each_other() -> None:
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


# --- results ---------------------------------------------------------------------------------------------------------


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
    def owner() -> uuid.UUID:
        return uuid.UUID(int=5)

    ops = [Op(1), Op(2, dt.datetime(2021, 1, 1, tzinfo=dt.UTC))]
    applied = await apply.enqueue(ops, dt.date(2020, 1, 1), uuid.UUID(int=1))
    said_when, said_owner = await when.enqueue(), await owner.enqueue()
    await sched.drain()
    assert seen == [(ops, dt.date(2020, 1, 1), uuid.UUID(int=1))]
    assert await applied.result() == ops[1]
    assert await said_when.result() == dt.datetime(2020, 1, 2, tzinfo=dt.UTC)
    assert await said_owner.result() == uuid.UUID(int=5)


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


async def test_result_of_a_failed_job_raises_its_error_as_text() -> None:
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


async def test_late_result_raises_a_timeout_and_the_job_continues() -> None:
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


# --- the context of a handler ----------------------------------------------------------------------------------------


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


async def test_last_log_and_progress_are_kept_when_the_job_ends() -> None:
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


# --- hooks -----------------------------------------------------------------------------------------------------------


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


async def test_raising_before_hook_fails_the_attempt_without_the_handler() -> None:
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


# --- opening and closing ---------------------------------------------------------------------------------------------


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


async def test_scheduler_is_its_own_context_and_reopens_after_close() -> None:
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
