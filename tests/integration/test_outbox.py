"""Outbox: log lines, progress and partial results never stop a worker."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import (
    Children,
    Discard,
    Fail,
    JobCanceledError,
    JobContext,
    JobFailedError,
    JobRecord,
    JobState,
    JsonCodec,
    Outcome,
    PayloadError,
    Retry,
    Scheduler,
)
from queuehint import operations as op
from queuehint.backends.base import BackendOptions, open_backend
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
    OutcomeUnknownError,
)
from queuehint.handlers.partial_result import PartialResult
from queuehint.values.outcome import Progress
from queuehint.values.spec import JobSpec
from queuehint.worker import listening as listening_module
from queuehint.worker import outbox as outbox_module
from queuehint.worker.leases import presence as presence_module
from queuehint.worker.outbox import Outbox
from queuehint.worker.slots import Wakeup
from tests.calls import scripts_run
from tests.conftest import StartServer
from tests.manual_jobs import on
from tests.schedulers import Gate, run, scheduler, turns, until
from tests.support import LIMIT_S

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
AWAY = (BackendUnavailableError("away"), OutcomeUnknownError("cut"))
REFUSALS: tuple[Exception, ...] = (
    BackendFullError("full"),
    BackendDeniedError("denied"),
    CorruptStateError("damaged"),
    BackendError("anything"),
    RuntimeError("a fault of the store"),
    *AWAY,
)


def refuse(sched: Scheduler, answer: Callable[[Any], Exception | None]) -> None:
    """Have a scheduler's store refuse operations."""
    call = sched.backend.call

    async def calling(operation: Any) -> Any:
        # Together they are refused if one of them would be.
        for each in alone(operation):
            error = answer(each)
            if error is not None:
                raise error
        return await call(operation)

    sched.backend.call = calling  # type: ignore[method-assign]


def alone(operation: Any) -> list[Any]:
    """Return the notes of an operation, each with one thing alone, or an operation without any."""
    return list(operation.notes) if isinstance(operation, op.Post) else [operation]


def says(note: Any, *what: str) -> bool:
    """Return whether it is a note with one of these: lines, progress, a result."""
    return isinstance(note, op.Note) and any(getattr(note, name) for name in what)


def name_of(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["lines", "progress", "result"])
@pytest.mark.parametrize("error", REFUSALS, ids=name_of)
def test_a_worker_settles_and_claims_whatever_notes_are_refused_with(
    url: str, refused: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0)

    async def main(sched: Scheduler) -> None:
        refuse(sched, lambda operation: error if says(operation, refused) else None)

        @sched.job
        async def speak(ctx: JobContext, n: int) -> None:
            ctx.log("line")
            ctx.progress(1, 2)
            ctx.update({"rows": n})

        @sched.job
        async def plain(n: int) -> int:
            return n

        async with sched.worker(concurrency=1) as worker:
            jobs = [await job.enqueue(n) for n in range(3) for job in (speak, plain)]
            results = [await job.result(timeout=60) for job in jobs]
            record = await jobs[0].record()
        assert results == [{"rows": 0}, 0, {"rows": 1}, 1, {"rows": 2}, 2]
        assert record.logs == (() if refused == "lines" else ("line",))
        keeps = refused == "result" and isinstance(error, (BackendFullError, *map(type, AWAY)))
        assert keeps or worker.notes_dropped > 0

    on(url, main)


async def test_note_refused_for_memory_is_sent_once_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "REST_S", 0)

    sched, _ = scheduler()
    full = [BackendFullError("full")]
    refuse(sched, lambda operation: full[0] if full and says(operation, "result") else None)
    gate = Gate()

    @sched.job
    async def work(ctx: JobContext) -> None:
        ctx.update({"rows": 1})
        await gate.wait()

    @sched.job
    async def other() -> None: ...

    async with sched.worker():
        job = await work.enqueue()
        await gate.reached()
        await (await other.enqueue()).result(timeout=60)
        assert (await job.record()).result is None
        full.clear()
        await other.enqueue()

        async def is_shown() -> bool:
            return (await job.record()).result is not None

        await until(is_shown)
        gate.open()
        await job.result(timeout=60)
    assert sched.records.result_of(await job.record()) == {"rows": 1}


async def test_unsent_lines_are_appended_to_the_settled_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "REST_S", 0)

    sched, _ = scheduler()
    order: list[str] = []
    away = [True]

    def answer(operation: Any) -> Exception | None:
        if isinstance(operation, op.Exchange) and operation.settle:
            order.append("settled")
            away.clear()
        elif says(operation, "lines"):
            order.append("refused" if away else "appended")
            return BackendUnavailableError("away") if away else None
        return None

    refuse(sched, answer)

    @sched.job
    async def work(ctx: JobContext) -> None:
        ctx.log("first")
        ctx.log("second")

    async with sched.worker():
        job = await work.enqueue()
        await job.result(timeout=60)
    assert (await job.record()).logs == ("first", "second")
    # An exchange without settlements has shown in between that the store is there.
    assert order == ["refused", "refused", "settled", "appended"]


def test_notes_unsent_at_the_end_of_a_worker_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        sched, _ = scheduler()
        refuse(sched, lambda operation: AWAY[0] if says(operation, "lines", "progress") else None)

        @sched.job
        async def work(ctx: JobContext) -> None:
            ctx.log("first")
            ctx.log("second")

        async with sched.worker() as worker:
            await (await work.enqueue()).result(timeout=60)
        assert worker.notes_dropped == 2

    run(main())
    dropped = [record.__dict__ for record in caplog.records if record.__dict__.get("event") == "worker.notes_dropped"]
    assert [(said["dropped"], said["error"]) for said in dropped] == [(2, "the worker ends")]


async def test_refusals_are_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    sched, _ = scheduler()
    refuse(sched, lambda operation: BackendDeniedError("no") if says(operation, "lines", "progress") else None)

    @sched.job
    async def work(ctx: JobContext) -> None:
        ctx.log("line")
        ctx.progress(1)

    async with sched.worker() as worker:
        for _ in range(5):
            await (await work.enqueue()).result(timeout=60)
    assert worker.notes_dropped == 10
    assert sum(record.__dict__.get("event") == "worker.notes_dropped" for record in caplog.records) == 1


# --- texts that no store takes --------------------------------------------------------------------------------------

LONE = "x\udce9.txt"
SHOWN = "x\\udce9.txt"


class OddError(Exception):
    """Its own text and its place in the code are odd."""

    def __str__(self) -> str:
        return LONE


def raise_from_odd_file(file: str) -> None:
    # A tool that measures coverage by tracing would trip over the name itself.
    tracing = sys.gettrace()
    sys.settrace(None)
    try:
        exec(compile("raise ValueError('odd')", "odd", "exec").replace(co_filename=file), {})
    finally:
        sys.settrace(tracing)


def raise_odd_class() -> None:
    kind = type("Odd", (Exception,), {})
    kind.__qualname__ = LONE
    raise kind("odd")


def raise_it(error: BaseException) -> None:
    raise error


CHILD: list[Any] = []


def tries(call: Callable[[], None]) -> None:
    with contextlib.suppress(PayloadError):
        call()


def error_of(record: JobRecord) -> str | None:
    return record.errors[-1].type if record.errors else None


def message_of(record: JobRecord) -> str:
    return record.errors[-1].message


WAYS: dict[str, tuple[Callable[[JobContext], Any], JobState, Callable[[JobRecord], object], object]] = {
    "a note": (lambda ctx: ctx.progress(1, 2, LONE), FINISHED, lambda it: it.progress and it.progress.note, SHOWN),
    "a log line": (lambda ctx: ctx.log(LONE), FINISHED, lambda it: it.logs, (SHOWN,)),
    "the name of an update": (lambda ctx: ctx.update({LONE: 1}), FAILED, lambda it: it.result, None),
    "the value of an update": (lambda ctx: ctx.update({"a": [LONE]}), FAILED, lambda it: it.result, None),
    "an update that is caught": (lambda ctx: tries(lambda: ctx.update({"a": LONE})), FINISHED, error_of, None),
    "a result": (lambda _: LONE, FAILED, error_of, "queuehint.errors.PayloadError"),
    "a result with a key": (lambda _: {LONE: 1}, FAILED, error_of, "queuehint.errors.PayloadError"),
    "the text of an exception": (lambda _: raise_it(OddError()), FAILED, message_of, SHOWN),
    "an argument of an exception": (lambda _: raise_it(ValueError(LONE)), FAILED, message_of, SHOWN),
    "the class of an exception": (lambda _: raise_odd_class(), FAILED, error_of, f"{__name__}.{SHOWN}"),
    "a file that is not there": (lambda _: open(LONE), FAILED, error_of, "FileNotFoundError"),  # noqa: SIM115, PTH123
    "code of an odd file": (lambda _: raise_from_odd_file(LONE), FAILED, message_of, "odd"),
    "code of an impossible file": (lambda _: raise_from_odd_file("a\0b"), FAILED, message_of, "odd"),
    "the reason of Fail": (lambda _: Fail(LONE), FAILED, message_of, SHOWN),
    "the reason of Discard": (lambda _: Discard(LONE), CANCELED, lambda it: it.cause, SHOWN),
    "the reason of Retry": (lambda _: Retry(0, LONE), FAILED, message_of, SHOWN),
    "a child's argument": (
        lambda ctx: ctx.enqueue_sync(CHILD[-1], LONE),
        FAILED,
        error_of,
        "queuehint.errors.PayloadError",
    ),
    "the result beside children": (lambda _: Children(result=LONE), FAILED, error_of, "queuehint.errors.PayloadError"),
    "the id of a child": (lambda _: Children(LONE), FAILED, error_of, "queuehint.errors.InvalidJobError"),
    "the end of a process": (lambda _: raise_it(SystemExit(LONE)), FAILED, message_of, SHOWN),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_no_text_of_a_handler_ends_a_worker(url: str, way: str, is_async: bool) -> None:
    do, state, look, expected = WAYS[way]

    async def main(sched: Scheduler) -> None:
        @sched.job(name="says", max_attempts=1, max_losses=1)
        async def says(ctx: JobContext) -> Any:
            return await asyncio.to_thread(do, ctx)

        @sched.job(name="says_so", max_attempts=1, max_losses=1)
        def says_so(ctx: JobContext) -> Any:
            return do(ctx)

        @sched.job
        def child(name: str) -> None: ...

        CHILD.append(child)
        async with sched.worker(concurrency=2):
            job: Any = await (says if is_async else says_so).enqueue()
            with contextlib.suppress(JobFailedError, JobCanceledError):
                await job.result(timeout=60)
            record = await job.record()
            assert (record.state, look(record)) == (state, expected)
            # The worker goes on.
            assert (await (await child.enqueue("well")).result(timeout=60)) is None  # type: ignore[func-returns-value]

    on(url, main)


def test_redact_hook_may_raise_anything(url: str) -> None:
    def redact(_: str) -> str:
        raise SystemExit(LONE)

    async def main(sched: Scheduler) -> None:
        @sched.job(max_attempts=1)
        def fails() -> None:
            raise ValueError

        async with sched.worker():
            job = await fails.enqueue()
            with contextlib.suppress(JobFailedError):
                await job.result(timeout=60)
            assert message_of(await job.record()) == "<withheld: redact failed>"

    on(url, main, redact=redact)


@pytest.mark.parametrize(
    "payload",
    [LONE, "text", 5, bytearray(b"{}"), b"x" * (1 << 20) + b"x"],
    ids=lambda payload: type(payload).__name__,
)
def test_a_codec_that_gives_no_payload_fails_its_job(url: str, payload: Any) -> None:
    class Odd(JsonCodec):
        def dumps(self, values: Any, annotations: Any, *, bytes_max: int) -> bytes:
            result: bytes = payload if "result" in values else super().dumps(values, annotations, bytes_max=bytes_max)
            return result

    async def main(sched: Scheduler) -> None:
        @sched.job
        def works(ctx: JobContext) -> int:
            ctx.update({"a": 1})
            return 1

        async with sched.worker():
            job = await works.enqueue()
            with pytest.raises(JobFailedError):
                await job.result(timeout=60)
            assert (await job.record()).attempts == 1

    on(url, main, codec=Odd())


# --- an exchange that fails with what is no error of the store ---------------------------------------------------


async def test_unsendable_outcome_fails_only_its_own_job() -> None:
    def is_bad(outcome: Outcome) -> bool:
        return outcome.result == b'{"result":13}'

    sched, _ = scheduler()
    gate = Gate()
    refuse(sched, lambda it: ValueError(LONE) if isinstance(it, op.Exchange) and any(map(is_bad, it.settle)) else None)

    @sched.job
    async def work(n: int) -> int:
        await gate.wait()
        return n

    async with sched.worker(concurrency=20):
        jobs = await work.enqueue_many([(n,) for n in range(20)])
        await gate.reached(20)
        gate.open()
        await asyncio.gather(*(job.result(timeout=60) for job in jobs), return_exceptions=True)
        records = [await job.record() for job in jobs]
    assert [record.state for record in records] == [FAILED if n == 13 else FINISHED for n in range(20)]
    assert (error_of(records[13]), message_of(records[13])) == ("ValueError", SHOWN)


async def test_unfailable_outcome_is_abandoned_and_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def is_bad(outcome: Outcome) -> bool:
        return outcome.job_id == "bad"

    sched, _ = scheduler()
    refuse(sched, lambda it: ValueError() if isinstance(it, op.Exchange) and any(map(is_bad, it.settle)) else None)

    @sched.job
    async def bad() -> None: ...

    @sched.job
    async def good() -> None: ...

    async with sched.worker():
        job = await bad.using(id="bad").enqueue()
        await (await good.enqueue()).result(timeout=60)
        await (await good.enqueue()).result(timeout=60)
        assert await job.state() is STARTED
    assert [record.__dict__.get("event") for record in caplog.records].count("job.not_settled") == 2


async def test_failed_exchanges_are_retried_and_harm_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening_module, "BACKEND_PAUSE_S", 0)

    sched, _ = scheduler()
    left = [0]

    def answer(operation: Any) -> Exception | None:
        left[0] -= isinstance(operation, op.Exchange)
        return RuntimeError("a fault of the store") if isinstance(operation, op.Exchange) and left[0] >= 0 else None

    refuse(sched, answer)

    @sched.job
    async def work(n: int) -> int:
        left[0] = 10
        return n

    async with sched.worker(concurrency=2):
        jobs = await work.enqueue_many([(1,), (2,)])
        assert [await job.result(timeout=60) for job in jobs] == [1, 2]


# --- handlers that speak often ----------------------------------------------------------------------------------------


def keep_asked(sched: Scheduler) -> list[Any]:
    asked: list[Any] = []

    def note(operation: Any) -> None:
        asked.append(operation)

    refuse(sched, note)
    return asked


SAYS: dict[str, Callable[[JobContext, int], None]] = {
    "progress": lambda ctx, n: ctx.progress(n, 100),
    "log": lambda ctx, n: ctx.log(f"row {n}"),
    "update": lambda ctx, n: ctx.update({"rows": n}),
}


@pytest.mark.parametrize("how", SAYS)
def test_frequent_notes_are_batched_and_the_last_precedes_the_end(
    url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "PACE_S", 3600)
    monkeypatch.setattr(outbox_module, "PACE_MAX_S", 3600)

    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work(ctx: JobContext) -> None:
            for n in range(100):
                SAYS[how](ctx, n)
                await asyncio.sleep(0.001)

        asked = keep_asked(sched)
        async with sched.worker():
            job = await work.enqueue()
            await job.result(timeout=60)
        record = await job.record()
        # At once, and what came later before the settlement.
        assert sum(isinstance(operation, op.Note) for operation in asked) == 2
        last = next(at for at, each in enumerate(asked) if isinstance(each, op.Exchange) and each.settle)
        assert max(at for at, each in enumerate(asked) if isinstance(each, op.Note)) < last
        if how == "progress":
            assert record.progress == Progress(99, 100)
        elif how == "log":
            assert record.logs == tuple(f"row {n}" for n in range(100))
        else:
            assert sched.records.result_of(record) == {"rows": 99}

    on(url, main)


def test_notes_are_shown_soon_and_ask_for_no_exchange(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        gate = Gate()
        spoken = asyncio.Event()

        @sched.job
        async def work(ctx: JobContext) -> None:
            await gate.wait()
            ctx.progress(1)
            await spoken.wait()
            ctx.progress(2)
            ctx.progress(3)
            await asyncio.Event().wait()

        asked = keep_asked(sched)
        async with sched.worker(grace=0):
            job = await work.enqueue()
            await gate.reached()

            async def shows(done: int) -> bool:
                progress = (await job.record()).progress
                return progress is not None and progress.done == done

            begun_s = time.monotonic()
            gate.open()
            await until(lambda: shows(1))
            spoken.set()
            await until(lambda: shows(3))
            took_s = time.monotonic() - begun_s
            exchanges = sum(isinstance(operation, op.Exchange) for operation in asked)
            reports = [operation.progress.done for operation in asked if says(operation, "progress")]
        assert reports == [1, 3]
        # One that a job begins with, and one every while that a worker looks by itself.
        assert exchanges <= 4 + took_s

    on(url, main)


async def test_notes_alone_cost_no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "PACE_S", 0)
    monkeypatch.setattr(outbox_module, "PACE_MAX_S", 0)

    sched, _ = scheduler()
    asked = keep_asked(sched)

    @sched.job
    async def work(ctx: JobContext) -> None:
        for n in range(100):
            ctx.progress(n)
            await until(lambda n=n: asked[-1] == op.Note(ctx.id, ctx.token, progress=Progress(n)))  # type: ignore[misc]

    async with sched.worker():
        await (await work.enqueue()).result(timeout=60)
    assert sum(isinstance(operation, op.Note) for operation in asked) == 100
    assert sum(isinstance(operation, op.Exchange) for operation in asked) < 20


async def test_note_during_a_send_waits_for_no_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening_module, "WAIT_CEILING_S", 600)
    sched, _ = scheduler()
    call = sched.backend.call
    said, shown = asyncio.Event(), asyncio.Event()

    async def calling(operation: Any) -> Any:
        notes = operation.notes if isinstance(operation, op.Post) else ()
        if notes and notes[0].lines == ("first",):
            said.set()
            await until(lambda: not said.is_set())
        if notes and notes[0].lines == ("second",):
            shown.set()
        return await call(operation)

    sched.backend.call = calling  # type: ignore[method-assign]

    @sched.job
    async def work(ctx: JobContext) -> None:
        ctx.log("first")
        await said.wait()
        ctx.log("second")
        await turns()
        said.clear()
        await shown.wait()

    # The first exchange that comes by itself is that of the next announcement.
    monkeypatch.setattr(presence_module, "ANNOUNCE_EVERY_S", 600.0)
    async with asyncio.timeout(LIMIT_S), sched.worker(1, grace=0):
        await work.enqueue()
        await shown.wait()


async def test_many_jobs_that_all_speak_are_heard_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "PACE_MESSAGE_S", 10.0)
    monkeypatch.setattr(outbox_module, "PACE_MAX_S", 100.0)

    sched, _ = scheduler()
    outbox = Outbox(sched.backend, JsonCodec(), Wakeup())
    outbox.buffer.log("a", 1, "line")
    assert outbox.left_s == 0
    await outbox.send()
    assert 1 < outbox.left_s <= 10
    for n in range(5):
        outbox.buffer.log(str(n), 1, "line")
    await outbox.send()
    assert len(outbox.buffer.take()) == 5
    for n in range(50):
        outbox.buffer.log(str(n), 1, "line")
    await outbox.send(is_last=True)
    assert 50 < outbox.left_s <= 100


# --- many jobs ----------------------------------------------------------------------------------------------------


class Talk:
    """Three jobs that run and have said something each, and the outbox of their worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sched, _ = scheduler()
        self.call = sched.backend.call
        self.asked: list[Any] = []
        self.answer: Callable[[Any], Exception | None] = lambda _: None
        monkeypatch.setattr(sched.backend, "call", self._calling)
        self.outbox = Outbox(sched.backend, JsonCodec(), Wakeup())

    async def begin(self) -> None:
        await self.call(op.Enqueue(tuple([JobSpec(id=job_id, task="work") for job_id in "abc"])))
        for grant in (await self.call(op.Exchange("w", limit=3))).grants:
            job_id, token = grant.spec.id, grant.token
            self.outbox.log(job_id, token, "line")
            self.outbox.report(job_id, token, Progress(1))
            partial_result = PartialResult(job_id, token)
            partial_result.is_loaded = True
            partial_result.update({"rows": 1})
            self.outbox.store(partial_result)

    async def stored(self) -> list[tuple[Any, ...]]:
        records = (await self.call(op.Get(("a", "b", "c")))).records
        return [(record.logs, record.progress, record.result) for record in records if record is not None]

    async def _calling(self, operation: Any) -> Any:
        self.asked.append(operation)
        error = self.answer(operation)
        if error is not None:
            raise error
        return await self.call(operation)


ALL = (("line",), Progress(1), b'{"result":{"rows":1}}')


async def test_notes_of_many_jobs_share_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    await talk.begin()
    assert await talk.outbox.send()
    assert [type(operation) for operation in talk.asked] == [op.Post]
    assert await talk.stored() == [ALL] * 3


async def test_messages_of_many_jobs_are_sent_in_requests_of_500(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    for number in range(1_200):
        talk.outbox.report(str(number), 1, Progress(1))
    assert await talk.outbox.send()
    assert [len(post.notes) for post in talk.asked] == [500, 500, 200]


@pytest.mark.parametrize("error", [error for error in REFUSALS if error not in AWAY], ids=name_of)
async def test_malformed_note_is_refused_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    await talk.begin()
    talk.answer = lambda operation: (
        error if any(says(each, "progress") and each.job_id == "b" for each in alone(operation)) else None
    )
    assert await talk.outbox.send()
    assert await talk.stored() == [ALL, (ALL[0], None, ALL[2]), ALL]
    assert (talk.outbox.dropped, bool(talk.outbox)) == (1, False)
    assert [len(alone(operation)) for operation in talk.asked] == [9, *[1] * 9]


async def test_unanswered_batch_is_sent_again_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    await talk.begin()
    talk.answer = lambda _: OutcomeUnknownError("cut")
    assert not await talk.outbox.send()
    talk.outbox.report("a", 1, Progress(2))
    talk.outbox.forget({("b", 99): op.Verdict.DONE})
    talk.answer = lambda _: None
    assert await talk.outbox.send()
    first, again, *_ = talk.asked
    assert first is again, "a store that has it knows it by this"
    assert await talk.stored() == [ALL] * 3


async def test_note_that_breaks_exchanges_delays_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(monkeypatch)
    await talk.begin()
    talk.answer = lambda operation: (
        AWAY[1] if any(says(each, "result") and each.job_id == "c" for each in alone(operation)) else None
    )
    assert not await talk.outbox.send()
    assert talk.outbox.see_answer()
    assert await talk.outbox.send(), "settlements go on"
    assert await talk.stored() == [ALL, ALL, (*ALL[:2], None)]


@pytest.mark.slow
@pytest.mark.redis
async def test_notes_of_many_jobs_cost_few_scripts_a_second(start_server: StartServer) -> None:
    server = start_server()
    sched = Scheduler(server.url)

    @sched.job
    async def work(ctx: JobContext, n: int) -> None:
        while True:
            ctx.log("line")
            ctx.progress(n)
            ctx.update({"rows": n})
            await asyncio.sleep(0.1)

    def scripts() -> int:
        return scripts_run(server)

    async with sched.worker(concurrency=60, grace=0):
        await work.enqueue_many([(n,) for n in range(60)])
        # What each job has stored before is looked at once; without functions a server is asked for each script twice.
        await until(lambda: scripts() > 75)
        before, begun_s = scripts(), time.monotonic()
        await asyncio.sleep(1)
        await until(lambda: scripts() > before)
        rate = (scripts() - before) / (time.monotonic() - begun_s)
    await sched.close()
    assert rate <= 12


@pytest.mark.redis
def test_a_full_redis_refuses_partial_results_and_takes_the_rest(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    backend = open_backend(server.url, BackendOptions(namespace=namespace))
    backend.call_sync(op.Enqueue((JobSpec(id="a", task="work"),)))
    token = backend.call_sync(op.Exchange("w", limit=1)).grants[0].token
    server.call("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(BackendFullError):
        backend.call_sync(op.Post((op.Note("a", token, ("lost",)), op.Note("a", token, result=b"1"))))
    assert backend.call_sync(op.Post((op.Note("a", token, ("kept",), Progress(1)),))).verdicts == (op.Verdict.DONE,)
    server.call("CONFIG", "SET", "maxmemory", 0)
    record = backend.call_sync(op.Get(("a",))).records[0]
    assert record is not None
    assert (record.logs, record.progress, record.result) == (("kept",), Progress(1), None)
    backend.close_sync()
