"""What travels beside jobs, log lines, progress and partial results, never stops a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint import JobContext, JobState, Scheduler
from queuehint import outbox as outbox_module
from queuehint import worker as worker_module
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
    OutcomeUnknownError,
)
from queuehint.operations import Exchange, Log, Report, Update
from tests.doors import Gate, run, scheduler, until
from tests.shelf import on

if TYPE_CHECKING:
    from collections.abc import Callable

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
        error = answer(operation)
        if error is not None:
            raise error
        return await call(operation)

    sched.backend.call = calling  # type: ignore[method-assign]


def name_of(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [Log, Report, Update], ids=name_of)
@pytest.mark.parametrize("error", REFUSALS, ids=name_of)
def test_a_worker_settles_and_claims_whatever_notes_are_refused_with(
    url: str, refused: type, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "BACKEND_PAUSE_S", 0)

    async def main(sched: Scheduler) -> None:
        refuse(sched, lambda operation: error if isinstance(operation, refused) else None)

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
            results = [await job.result(timeout=15) for job in jobs]
            record = await jobs[0].record()
        assert results == [{"rows": 0}, 0, {"rows": 1}, 1, {"rows": 2}, 2]
        assert record.logs == (() if refused is Log else ("line",))
        keeps = refused is Update and isinstance(error, (BackendFullError, *map(type, AWAY)))
        assert keeps or worker.notes_dropped > 0

    on(url, main)


def test_what_is_refused_for_lack_of_memory_is_shown_once_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "REST_S", 0)

    async def main() -> None:
        sched, _ = scheduler()
        full = [BackendFullError("full")]
        refuse(sched, lambda operation: full[0] if full and isinstance(operation, Update) else None)
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
            await (await other.enqueue()).result(timeout=10)
            assert (await job.record()).result is None
            full.clear()
            await other.enqueue()

            async def is_shown() -> bool:
                return (await job.record()).result is not None

            await until(is_shown)
            gate.open()
            await job.result(timeout=10)
        assert sched.records.result_of(await job.record()) == {"rows": 1}

    run(main())


def test_lines_that_could_not_be_sent_are_appended_to_the_settled_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "REST_S", 0)

    async def main() -> None:
        sched, _ = scheduler()
        order: list[str] = []
        away = [True]

        def answer(operation: Any) -> Exception | None:
            if isinstance(operation, Exchange) and operation.settle:
                order.append("settled")
                away.clear()
            elif isinstance(operation, Log):
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
            await job.result(timeout=10)
        assert (await job.record()).logs == ("first", "second")
        # An exchange without settlements has shown in between that the store is there.
        assert order == ["refused", "refused", "settled", "appended"]

    run(main())


def test_what_cannot_be_sent_before_the_worker_ends_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        sched, _ = scheduler()
        refuse(sched, lambda operation: AWAY[0] if isinstance(operation, (Log, Report)) else None)

        @sched.job
        async def work(ctx: JobContext) -> None:
            ctx.log("first")
            ctx.log("second")

        async with sched.worker() as worker:
            await (await work.enqueue()).result(timeout=10)
        assert worker.notes_dropped == 2

    run(main())
    dropped = [record.__dict__ for record in caplog.records if record.__dict__.get("event") == "worker.notes_dropped"]
    assert [(said["dropped"], said["error"]) for said in dropped] == [(2, "the worker ends")]


def test_refusals_are_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        sched, _ = scheduler()
        refuse(sched, lambda operation: BackendDeniedError("no") if isinstance(operation, (Log, Report)) else None)

        @sched.job
        async def work(ctx: JobContext) -> None:
            ctx.log("line")
            ctx.progress(1)

        async with sched.worker() as worker:
            for _ in range(5):
                await (await work.enqueue()).result(timeout=10)
        assert worker.notes_dropped == 10

    run(main())
    assert sum(record.__dict__.get("event") == "worker.notes_dropped" for record in caplog.records) == 1
