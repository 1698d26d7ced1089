"""Code that blocks the loop of a worker: it is reported, and jobs that have not begun are given back."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuehint import (
    BackendUnavailableError,
    JobHandle,
    JobState,
    Scheduler,
    Worker,
)
from queuehint.backends.memory import MemoryBackend
from queuehint.operations import Exchange, Tick, Verdict
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.report import Reason, ReasonKind
from queuehint.worker import listening as listening_module
from queuehint.worker.leases import loop_watch as watch_module
from queuehint.worker.leases import pulse as pulse_module
from tests.handlers import events
from tests.schedulers import Gate, run, until
from tests.support import LIMIT_S

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- code that blocks the loop ---------------------------------------------------------------------------------------


def is_said_blocked(reason: Reason) -> bool:
    return reason.kind is ReasonKind.RUNNING and ", its event loop blocked for " in (reason.detail or "")


@pytest.mark.slow
def test_code_that_blocks_the_loop_is_logged_and_jobs_released(
    far: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for module in (watch_module, pulse_module):
        monkeypatch.setattr(module, "BLOCKED_S", 0.2)
        monkeypatch.setattr(module, "BEAT_S", 0.05)

    async def main() -> None:
        sched = far(lease=3)
        go_on = threading.Event()
        ran: list[int] = []

        @sched.job
        async def blocks() -> str:
            assert go_on.wait(2 * LIMIT_S)
            return "done"

        @sched.job(name="innocent")
        async def innocent(n: int) -> None:
            ran.append(n)

        def see(blocking: JobHandle[Any], others: list[JobHandle[Any]], worker: Worker) -> list[Any]:
            """Collect what another worker sees meanwhile."""
            end_s = time.monotonic() + LIMIT_S
            while time.monotonic() < end_s and not all(handle.state_sync() is QUEUED for handle in others):
                time.sleep(0.01)
            while time.monotonic() < end_s and not is_said_blocked(blocking.why_sync()):
                time.sleep(0.01)
            # The code that runs keeps its lease for longer than that would last.
            time.sleep(3.5)
            sched.backend.call_sync(Tick())
            running, why = blocking.record_sync(), blocking.why_sync()
            grants = sched.backend.call_sync(Exchange("elsewhere", limit=1, lease_ms=600_000)).grants
            told = [worker.blocked_s > 1, worker.is_stuck, is_said_blocked(why)]
            seen = [running.state, running.losses, *told, *grants]
            go_on.set()
            return seen

        worker = sched.make_worker(8, abandon_after=1)
        blocking = await blocks.enqueue()
        others = await innocent.enqueue_many([(n,) for n in range(3)])
        assert worker.blocked_s == 0
        seen = asyncio.get_running_loop().run_in_executor(None, see, blocking, others, worker)
        async with sched.running(worker):
            assert await blocking.result() == "done"
            *found, grant = await seen
            assert found == [STARTED, 0, True, True, True]
            for handle in others:
                if handle.id != grant.spec.id:
                    await handle.result()
            assert not worker.is_stuck
            settled = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED)
            assert (await sched.backend.call(Exchange("elsewhere", (settled,)))).verdicts == (Verdict.DONE,)
            await until(lambda: "worker.unblocked" in events(caplog))
        assert len(ran) == 2, "the one that another worker has taken runs there alone"
        assert worker.blocked_s == 0

    run(main())
    told = [record.__dict__ for record in caplog.records if record.__dict__.get("event") == "worker.blocked"]
    # A busy machine may hold up the loop for as long, in other code.
    assert sum("blocks" in each["where"] for each in told) == 1
    # More than once on a busy machine: the loop may have claimed them again before the thread sees that it runs.
    assert "worker.gives_back" in events(caplog)
    assert "job.lease_lost" not in events(caplog)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_why_reports_a_job_that_blocks_the_local_loop(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (watch_module, pulse_module):
        monkeypatch.setattr(module, "BLOCKED_S", 0.2)
        monkeypatch.setattr(module, "BEAT_S", 0.05)

    sched = Scheduler("memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}")
    go_on = threading.Event()

    @sched.job(queue_hint=["doc"])
    async def blocks() -> None:
        assert go_on.wait(2 * LIMIT_S)

    @sched.job
    async def yields() -> None:
        await asyncio.Event().wait()

    def see(*handles: JobHandle[Any]) -> list[bool]:
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s and not all(is_said_blocked(handle.why_sync()) for handle in handles):
            time.sleep(0.01)
        seen = [is_said_blocked(handle.why_sync()) for handle in handles]
        seen += [is_said_blocked(job.reason) for job in sched.why_sync(path=["doc"]).ahead]
        go_on.set()
        return seen

    beside = await yields.enqueue()
    async with sched.worker(2, grace=0):
        await until(lambda: beside.state_sync() is STARTED)
        blocking = await blocks.enqueue()
        seen = asyncio.get_running_loop().run_in_executor(None, see, blocking, beside)
        await blocking.result()
        assert await seen == [True, True, True], "all that the worker holds stands still"
        await until(lambda: not is_said_blocked(beside.why_sync()))
        await until(lambda: "worker.blocked" in events(caplog))
    await sched.close()


async def test_code_that_held_the_gil_is_logged_afterwards(
    far: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (watch_module, pulse_module):
        monkeypatch.setattr(module, "BLOCKED_S", 0.2)
        monkeypatch.setattr(module, "BEAT_S", 0.05)
    monkeypatch.setattr(watch_module, "STOOD_STILL_S", 0.3)

    sched = far()

    @sched.job
    async def holds() -> None:
        ctypes.PyDLL(None).usleep(600_000)

    async with sched.worker(1):
        await (await holds.enqueue()).result()
        await until(lambda: "worker.blocked" in events(caplog))


@pytest.mark.parametrize("is_far", [False, True])
async def test_only_an_answer_of_the_store_is_one(
    far: Callable[..., Scheduler], is_far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBackend, "is_local", not is_far)
    for name in ("BACKEND_PAUSE_S", "WAIT_CEILING_S"):
        monkeypatch.setattr(listening_module, name, 0.01)
    is_away, asked = [True], [0]
    call, call_sync = MemoryBackend.call, MemoryBackend.call_sync

    def refuse() -> None:
        asked[0] += 1
        if is_away[0]:
            raise BackendUnavailableError("away")

    async def calling(self: MemoryBackend, operation: Any) -> Any:
        refuse()
        return await call(self, operation)

    def calling_sync(self: MemoryBackend, operation: Any) -> Any:
        refuse()
        return call_sync(self, operation)

    sched = far(lease=1)

    @sched.job
    async def work() -> None:
        await Gate().wait()

    await work.enqueue()
    worker = sched.make_worker(grace=0)
    monkeypatch.setattr(MemoryBackend, "call", calling)
    monkeypatch.setattr(MemoryBackend, "call_sync", calling_sync)
    task = asyncio.create_task(worker.run())
    await until(lambda: asked[0] > 3)
    assert worker.answered_s == 0
    is_away[0] = False
    await until(lambda: worker.running == 1)
    first_s = worker.answered_s
    await until(lambda: worker.answered_s > first_s > 0)
    is_away[0] = True
    # Requests under way may still be answered.
    before = asked[0]
    await until(lambda: asked[0] > before + 2)
    last_s, before = worker.answered_s, asked[0]
    await until(lambda: asked[0] > before + 5)
    assert worker.answered_s == last_s
    is_away[0] = False
    await until(lambda: worker.answered_s > last_s)
    worker.stop(at_once=True)
    await task
