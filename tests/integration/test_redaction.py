"""
Errors of application code around a handler, and redaction: the attempt ends, its slot is free, and no log line has a
text that was given to `redact`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import attrs
import pytest

from queuehint import Children, Discard, Fail, JobContext, JobRecord, JobState, JsonCodec, Retry, Scheduler
from queuehint.client.handle import JobHandle
from queuehint.testing import on_memory
from tests.schedulers import run, scheduler, until

SECRET = "C4NARY"


class Odd(BaseException):
    """Is no `Exception`."""


class Mute(BaseException):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise Odd(SECRET)

    __repr__ = __str__


KINDS: list[type[BaseException]] = [
    RuntimeError, Odd, Mute, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration,
]  # fmt: skip


def raises(kind: type[BaseException], chance: list[Any] | None = None) -> Callable[..., Any]:
    """Return what raises, the secret in it; only once for each item of *chance*."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if chance is not None:
            if not chance:
                return None
            chance.pop()
        raise kind(f"cannot take {SECRET} {args}")

    return call


def shown(caplog: pytest.LogCaptureFixture) -> str:
    """Return all that was logged: messages, fields, tracebacks."""
    return caplog.text + "".join(str(vars(record)) for record in caplog.records)


async def ended(sched: Scheduler, handle: JobHandle[Any]) -> JobRecord:
    """Return the record of a job once it is over; the worker that ran it must still run others."""

    async def is_over(which: JobHandle[Any]) -> bool:
        return (await which.state()).is_over

    async with sched.worker(1):
        await until(lambda: is_over(handle))
        other = await sched.job(name="other")(lambda: None).enqueue()
        await until(lambda: is_over(other))
    return await handle.record()


# --- what redact withholds -------------------------------------------------------------------------------------------


def failing(sched: Scheduler, way: str) -> Any:
    """Return a job that ends with the secret in all it says."""

    @sched.job(name="failing", max_attempts=1, max_losses=1)
    async def work(ctx: JobContext) -> Any:
        if way == "raise":
            try:
                raise LookupError("C4NARY")  # a text in the source too
            except LookupError as error:
                raise ValueError(f"again {SECRET}") from error
        if way == "exit":
            raise SystemExit(SECRET)
        if way == "result":
            return {SECRET: {SECRET}}
        answers = {"retry": Retry, "fail": Fail, "discard": Discard}
        return answers[way](reason=SECRET) if way in answers else Children(f"{ctx.id}")

    return work


@pytest.mark.slow
@pytest.mark.parametrize("way", ["raise", "exit", "result", "retry", "fail", "discard", "children"])
@pytest.mark.parametrize("kind", [None, *KINDS], ids=lambda kind: "no text" if kind is None else kind.__name__)
def test_redacted_error_is_in_no_log(kind: Any, way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        sched, _ = scheduler(redact=(lambda text: 5) if kind is None else raises(kind))
        record = await ended(sched, await failing(sched, way).enqueue())
        assert record.state in {JobState.FAILED, JobState.CANCELED}
        assert SECRET not in str(record)
        assert "withheld" in str(record)

    run(main())
    assert SECRET not in shown(caplog)
    (said, *_) = [vars(record) for record in caplog.records if vars(record).get("event") == "redact.failed"]
    assert (said["exc_info"], said["error"]) == (None, "TypeError" if kind is None else said["error"])
    assert ".py:" in said["where"]


def test_error_of_a_hook_is_redacted_before_logging(caplog: pytest.LogCaptureFixture) -> None:
    async def main(redact: Any) -> None:
        sched, _ = scheduler(redact=redact)
        sched.after_job(raises(ValueError))
        await ended(sched, await sched.job(name="work")(lambda: None).enqueue())

    run(main(lambda text: text.replace(SECRET, "***")))
    assert SECRET not in shown(caplog)
    assert "cannot take ***" in shown(caplog), "the traceback is there, and redacted"
    caplog.clear()
    run(main(raises(Odd)))
    assert SECRET not in shown(caplog)
    caplog.clear()
    run(main(None))
    assert SECRET in caplog.text, "who redacts nothing has the whole traceback"


# --- what else is the application's ----------------------------------------------------------------------------------


class Codec(JsonCodec):
    """Raises where it is told to; never for jobs that take and return nothing."""

    def __init__(self, where: str, kind: type[BaseException]) -> None:
        super().__init__()
        self.where, self.kind = where, kind
        self.is_armed = False

    def dumps(self, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int) -> bytes:
        if self.is_armed and self.where == "dumps" and values.get("result"):
            raise self.kind(SECRET)
        return super().dumps(values, annotations, bytes_max=bytes_max)

    def loads(self, payload: bytes, annotations: Mapping[str, Any]) -> dict[str, Any]:
        values = super().loads(payload, annotations)
        if self.is_armed and self.where == "loads" and values:
            raise self.kind(SECRET)
        return values


@pytest.mark.parametrize("where", ["loads", "dumps", "interim"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_whatever_a_codec_raises_the_attempt_ends(
    where: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    codec = Codec("dumps" if where == "interim" else where, kind)
    sched, _ = scheduler(codec=codec, log_errors=False)

    @sched.job(max_attempts=1, max_losses=1)
    async def work(ctx: JobContext, n: int) -> Any:
        if where != "interim":
            return {"n": n}
        ctx.update({"n": n})
        await asyncio.sleep(0.01)
        return None

    handle = await work.enqueue(1)
    codec.is_armed = True
    assert (await ended(sched, handle)).state is JobState.FAILED
    assert SECRET not in shown(caplog)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_whatever_the_class_of_an_argument_raises_the_attempt_ends(kind: type[BaseException]) -> None:
    is_armed: list[bool] = []

    @attrs.frozen
    class Card:
        number: str

        def __attrs_post_init__(self) -> None:
            if is_armed:
                raise kind(SECRET)

    sched, _ = scheduler(redact=lambda text: text.replace(SECRET, "***"))

    @sched.job(max_attempts=1, max_losses=1)
    async def pay(card: Any) -> None: ...

    pay.handler.annotations["card"] = Card
    handle = await pay.enqueue(Card(SECRET))
    is_armed.append(True)
    record = await ended(sched, handle)
    assert record.state is JobState.FAILED
    assert SECRET not in str(record.errors)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("hook", ["before_job", "after_job"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_whatever_a_hook_raises_the_attempt_ends(kind: type[BaseException], hook: str, is_async: bool) -> None:
    sched, _ = scheduler()
    fail = raises(kind, [1])

    async def fail_later(*args: Any) -> None:
        await asyncio.sleep(0)
        fail(*args)

    getattr(sched, hook)(fail_later if is_async else fail)
    handle = await sched.job(name="work", max_attempts=1, max_losses=1)(lambda: None).enqueue()
    state = (await ended(sched, handle)).state
    assert state is (JobState.FAILED if hook == "before_job" else JobState.FINISHED)


@pytest.mark.parametrize("kind", [*KINDS, StopAsyncIteration], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_async", [False, True])
async def test_listener_error_does_not_stop_later_events(kind: type[BaseException], is_async: bool) -> None:
    told: list[str] = []
    fail = raises(kind, [1])

    def listen(event: Any) -> None:
        told.append(event.kind)
        fail(event)

    async def listen_later(event: Any) -> None:
        listen(event)

    sched, _ = scheduler()
    sched.on(["started", "finished"], listen_later if is_async else listen)
    job = sched.job(name="work")(lambda: None)
    async with sched.worker():
        await job.enqueue()
        await until(lambda: told == ["started", "finished"])
    assert [(state.failed, state.waiting) for state in sched.listeners] == [(1, 0)]


def test_listener_without_repr_is_shown_by_its_class() -> None:
    class Listener:
        def __repr__(self) -> str:
            raise Odd

        def __call__(self, event: Any) -> None: ...

    sched, _ = scheduler()
    sched.on("failed", Listener())
    assert [state.name for state in sched.listeners] == ["<Listener>"]


async def test_an_executor_that_drops_a_call_fails_the_attempt() -> None:
    class Dropping(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            dropped: Future[Any] = Future()
            dropped.cancel()
            return dropped

    async def is_over(handle: JobHandle[Any]) -> bool:
        return (await handle.state()).is_over

    sched, _ = scheduler()
    handle = await sched.job(name="work", max_attempts=1)(lambda: None).enqueue()
    worker = sched.make_worker(executor=Dropping(1))
    async with sched.running(worker):
        await until(lambda: is_over(handle))
    record = await handle.record()
    assert record.state is JobState.FAILED
    assert "CancelledError" in record.errors[0].type


def test_the_class_of_an_exception_may_raise_too() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == "__qualname__":
                raise Odd(SECRET)
            return super().__getattribute__(name)

    class Hidden(Exception, metaclass=Meta): ...

    sched = Scheduler("memory://")
    with on_memory(sched):

        async def main() -> None:
            @sched.job(name="work", max_attempts=1)
            async def work() -> None:
                raise Hidden(SECRET)

            record = await ended(sched, await work.enqueue())
            assert (record.state, record.errors[0].type) == (JobState.FAILED, "BaseException")

        run(main())
