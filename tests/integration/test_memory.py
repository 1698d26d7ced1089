"""The memory backend: one process, any thread, no lost wake-up, and a warning that it is volatile."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import BackendUnavailableError, FakeClock, JobState, Scheduler, open_backend
from queuehint import operations as op
from queuehint.backends import in_process
from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.memory import ENQUEUED_AT_ONCE, MemoryBackend
from queuehint.testing.driver import job
from queuehint.values.outcome import Outcome, OutcomeKind
from tests.schedulers import in_thread, memory, scheduler, turns, until
from tests.support import LIMIT_S


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.__dict__.get("event")) for record in caplog.records if record.name == "queuehint.memory"]


# --- processes ---------------------------------------------------------------------------------------------------


def in_fork(child: Callable[[], None]) -> int:
    """Run a function in a fork of this process; 0 if it returned, 1 if it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is tested
        pid = os.fork()
    if not pid:
        code = 1
        try:
            # A child that hangs is ended by its alarm.
            import signal

            signal.alarm(10)
            child()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


def refuses_forks(sched: Scheduler) -> None:
    for call in (
        lambda: sched.backend.call_sync(op.CountJobs()),
        lambda: asyncio.run(sched.backend.call(op.CountJobs())),
        lambda: sched.backend.wait_sync(Interest(pools=("default",)), 0),
        lambda: asyncio.run(sched.backend.wait(Interest(pools=("default",)), 0)),
    ):
        with pytest.raises(BackendUnavailableError, match="fork"):
            call()


@needs_fork
def test_use_after_a_fork_raises_and_the_parent_continues() -> None:
    sched, _ = scheduler()
    assert sched.stats_sync().unfinished == 0
    assert in_fork(lambda: refuses_forks(sched)) == 0
    assert sched.stats_sync().unfinished == 0


@needs_fork
def test_fork_during_a_call_of_another_thread_does_not_hang() -> None:
    sched, _ = scheduler()
    lock = memory(sched)._lock
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            assert leave.wait(LIMIT_S)

    end = in_thread(hold)
    assert held.wait(LIMIT_S)
    assert in_fork(lambda: refuses_forks(sched)) == 0
    leave.set()
    end()


@needs_fork
def test_a_scheduler_first_used_after_the_fork_works_there() -> None:
    sched, _ = scheduler()

    @sched.job
    def work() -> int:
        return 5

    def child() -> None:
        handle = work.enqueue_sync()
        sched.drain_sync()
        assert handle.result_sync() == 5

    assert in_fork(child) == 0


# --- its end -----------------------------------------------------------------------------------------------------


async def test_closed_store_refuses_calls_and_wakes_waiters() -> None:
    backend = MemoryBackend()
    waiting = asyncio.create_task(backend.wait(Interest(pools=("default",), worker="w", jobs=()), 60))
    end = in_thread(lambda: backend.wait_sync(Interest(pools=("default",)), 60))
    await until(lambda: len(backend._waiting) == 2)
    await backend.close()
    await waiting
    await asyncio.to_thread(end)
    assert len(backend._waiting) == 0
    for call in (
        lambda: backend.call(op.CountJobs()),
        lambda: backend.wait(Interest(pools=("default",)), 0),
    ):
        with pytest.raises(BackendUnavailableError, match="closed"):
            await call()
    for sync in (
        lambda: backend.call_sync(op.CountJobs()),
        lambda: backend.wait_sync(Interest(pools=("default",)), 0),
    ):
        with pytest.raises(BackendUnavailableError, match="closed"):
            sync()
    await backend.close()


def test_each_url_opened_is_a_store_of_its_own() -> None:
    one, two = open_backend("memory://"), open_backend("memory://")
    one.call_sync(op.Enqueue((job("a"),)))
    assert (one.call_sync(op.CountJobs()).unfinished, two.call_sync(op.CountJobs()).unfinished) == (1, 0)
    assert one.is_local


# --- what it says of itself --------------------------------------------------------------------------------------


def test_it_says_once_that_it_is_volatile(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "queuehint.memory")
    sched, _ = scheduler()
    sched.stats_sync()
    assert events(caplog) == []
    for name in "abc":
        sched.backend.call_sync(op.Enqueue((job(name),)))
    assert events(caplog) == ["memory.volatile"]


def test_unserved_ready_job_is_logged_once_after_5_s(caplog: pytest.LogCaptureFixture) -> None:
    sched, clock = scheduler()
    sched.backend.call_sync(op.Enqueue((job("a"),)))
    clock.advance(seconds=4.999)
    sched.stats_sync()
    assert events(caplog) == []
    clock.advance(ms=1)
    for _ in range(3):
        sched.stats_sync()
        clock.advance(seconds=60)
    assert events(caplog) == ["memory.unserved"]
    assert caplog.records[0].levelname == "WARNING"


def test_waiting_or_vanished_jobs_are_not_logged_as_unserved(caplog: pytest.LogCaptureFixture) -> None:
    sched, clock = scheduler()
    sched.backend.call_sync(op.Enqueue((job("a"), job("later", delay_ms=60_000))))
    clock.advance(seconds=4)
    sched.backend.call_sync(op.Cancel(("a",)))
    clock.advance(seconds=4)
    sched.backend.call_sync(op.Enqueue((job("b"),)))
    clock.advance(seconds=4)
    sched.stats_sync()
    assert events(caplog) == []


async def test_it_does_not_warn_while_a_worker_runs(caplog: pytest.LogCaptureFixture) -> None:
    sched, clock = scheduler()
    async with sched.worker(pools=["other"]):
        await sched.backend.call(op.Enqueue((job("a"),)))
        clock.advance(seconds=60)
        await sched.stats()
        await turns()
    assert events(caplog) == []


# --- waiting -----------------------------------------------------------------------------------------------------


def settle(backend: MemoryBackend, id: str) -> None:
    record = backend.call_sync(op.Get((id,))).records[0]
    assert record is not None
    assert record.token is not None
    backend.call_sync(op.Exchange("w", (Outcome(job_id=id, token=record.token, kind=OutcomeKind.FINISHED),)))


@pytest.mark.parametrize(
    "interest, wake",
    [
        (Interest(pools=("default",)), lambda b, c: b.call_sync(op.Enqueue((job("new"),)))),
        (Interest(pools=("x", "default")), lambda b, c: b.call_sync(op.Enqueue((job("new"),)))),
        (Interest(jobs=("a",)), lambda b, c: settle(b, "a")),
        (Interest(jobs=("later", "a")), lambda b, c: b.call_sync(op.Cancel(("later",)))),
        (Interest(worker="w"), lambda b, c: b.call_sync(op.Cancel(("a",)))),
        (Interest(pools=("nothing",), worker="w"), lambda b, c: b.call_sync(op.Cancel(("a",)))),
        (Interest(pools=("default",)), lambda b, c: c.advance(seconds=1)),
        (Interest(pools=("default",)), lambda b, c: b.call_sync(op.Enqueue((job("soon", delay_ms=1),)))),
    ],
)
@pytest.mark.parametrize("how", ["async", "sync"])
async def test_a_waiter_is_woken_by_its_topic(
    interest: Interest, wake: Callable[[MemoryBackend, FakeClock], Any], how: str
) -> None:
    clock = FakeClock()
    backend = MemoryBackend(BackendOptions(clock=clock))
    backend.call_sync(op.Enqueue((job("a"), job("later", delay_ms=60_000))))
    backend.call_sync(op.Exchange("w", limit=1))
    if how == "async":
        waiting = asyncio.create_task(backend.wait(interest, 3_600))
    else:
        end = in_thread(lambda: backend.wait_sync(interest, 3_600))
        waiting = asyncio.create_task(asyncio.to_thread(end))
    await until(lambda: len(backend._waiting) == 1)
    await turns()
    assert not waiting.done()
    wake(backend, clock)
    await waiting
    assert len(backend._waiting) == 0


@pytest.mark.parametrize(
    "interest",
    [Interest(pools=("nothing",)), Interest(jobs=("b",)), Interest(worker="nobody"), Interest(jobs=("a", "b"))],
)
async def test_a_waiter_for_another_topic_sleeps_on(interest: Interest) -> None:
    backend = MemoryBackend(BackendOptions(clock=FakeClock()))
    backend.call_sync(op.Enqueue((job("a"), job("b"), job("c"))))
    backend.call_sync(op.Exchange("w", limit=2))
    waiting = asyncio.create_task(backend.wait(interest, 3_600))
    await until(lambda: len(backend._waiting) == 1)
    backend.call_sync(op.Enqueue((job("d"),)))
    backend.call_sync(op.Cancel(("c",)))
    backend.call_sync(op.Cancel(("a",)))
    await turns()
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(backend._waiting) == 0


async def test_a_wait_for_nothing_leaves_nothing_behind() -> None:
    backend = MemoryBackend()
    await backend.wait(Interest(), 0.001)
    backend.wait_sync(Interest(), 0.001)
    assert len(backend._waiting) == 0
    waiting = asyncio.create_task(backend.wait(Interest(), 60))
    await turns()
    await backend.close()
    await waiting


def test_a_waiter_on_a_closed_loop_does_no_harm() -> None:
    backend = MemoryBackend()
    loop = asyncio.new_event_loop()
    task = loop.create_task(backend.wait(Interest(pools=("default",)), 60))
    loop.run_until_complete(asyncio.sleep(0))
    waiter = next(iter(backend._waiting._workers))
    loop.call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    backend._waiting.enter(waiter)
    loop.close()
    backend.call_sync(op.Enqueue((job("a"),)))
    assert len(backend._waiting) == 0


def test_no_wake_up_is_lost_between_threads() -> None:
    """One thread makes work, the others wait for it: with a ceiling far off, a lost wake-up would hang."""
    backend = MemoryBackend()
    count, threads = 400, 4
    done: Counter[str] = Counter()
    lock = threading.Lock()

    def work(name: str) -> None:
        settled: tuple[Outcome, ...] = ()
        while True:
            reply = backend.call_sync(op.Exchange(name, settled, ("default",), 1))
            settled = tuple(
                Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED) for grant in reply.grants
            )
            with lock:
                done.update(grant.spec.id for grant in reply.grants)
                if "stop" in done:
                    backend.call_sync(op.Enqueue((job("stop"),)))
                    return
            if not settled:
                backend.wait_sync(Interest(pools=("default",)), 3_600)

    def wait_for(id: str) -> None:
        backend.wait_sync(Interest(jobs=(id,)), 3_600)

    ends = [in_thread(lambda n=n: work(f"w{n}")) for n in range(threads)]  # type: ignore[misc]
    for n in range(count):
        backend.call_sync(op.Enqueue((job(f"j{n}", [str(n % 3)]),)))
        if n % 5 == 0:
            wait_for(f"j{n}")
    for n in range(count):
        wait_for(f"j{n}")
    backend.call_sync(op.Enqueue((job("stop"),)))
    with lock:
        done["stop"] += 1
    for n in range(threads):
        backend.call_sync(op.Enqueue((job(f"last{n}"),)))
    for end in ends:
        end()
    assert {name: times for name, times in done.items() if name.startswith("j")} == {f"j{n}": 1 for n in range(count)}


# --- threads -----------------------------------------------------------------------------------------------------


def test_sixteen_threads_run_every_job_exactly_once() -> None:
    sched = Scheduler("memory://")
    ran: Counter[int] = Counter()
    order: dict[str, list[int]] = {}
    lock = threading.Lock()

    @sched.job(queue_hint=["{doc}"])
    def work(doc: str, n: int) -> int:
        with lock:
            ran[n] += 1
            order.setdefault(doc, []).append(n)
        return n

    def produce(part: int) -> list[Any]:
        return [work.enqueue_sync(f"doc{part}", part * 100 + n) for n in range(40)]

    def serve() -> None:
        with sched.worker_sync(2):
            assert stop.wait(LIMIT_S)

    stop = threading.Event()
    producers = [in_thread(lambda part=part: produce(part)) for part in range(8)]  # type: ignore[misc]
    workers = [in_thread(serve) for _ in range(8)]
    try:
        handles = [handle for end in producers for handle in end()]
        assert [handle.result_sync(LIMIT_S) for handle in handles] == [
            part * 100 + n for part in range(8) for n in range(40)
        ]
    finally:
        stop.set()
    for end in workers:
        end()
    assert set(ran.values()) == {1}
    assert len(ran) == 320
    assert all(numbers == sorted(numbers) for numbers in order.values())
    memory(sched).engine.check()


def test_refused_operation_changes_nothing_and_wakes_as_usual() -> None:
    from queuehint import DuplicateJobError

    backend = MemoryBackend(BackendOptions(clock=FakeClock()))
    backend.call_sync(op.Enqueue((job("a"),)))
    with pytest.raises(DuplicateJobError):
        backend.call_sync(op.Enqueue((job("b"), job("a", ["elsewhere"]))))
    assert backend.call_sync(op.CountJobs()).enqueued == 1


def test_tokens_of_a_later_store_are_greater() -> None:
    clock = FakeClock()
    tokens = []
    for _ in range(2):
        backend = MemoryBackend(BackendOptions(clock=clock))
        backend.call_sync(op.Enqueue((job("a"),)))
        tokens.append(backend.call_sync(op.Exchange("w", limit=1)).grants[0].token)
        clock.advance(seconds=1)
    assert tokens[0] < tokens[1]


def test_the_same_rules_hold_when_a_tick_does_the_rest() -> None:
    clock = FakeClock()
    backend = MemoryBackend(BackendOptions(clock=clock))
    backend.call_sync(op.Enqueue((job("a", delay_ms=1_000),)))
    assert backend.call_sync(op.Tick()).next_ms == clock.now_ms() + 1_000
    clock.advance(seconds=1)
    backend.call_sync(op.Tick())
    record = backend.call_sync(op.Get(("a",))).records[0]
    assert record is not None
    assert record.state is JobState.QUEUED


# --- others on the loop ------------------------------------------------------------------------------------------


class Turns:
    """Counts the turns of a loop that others have."""

    def __init__(self) -> None:
        self.count = 0

    async def go_on(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


async def test_a_caller_that_enqueues_without_end_lets_others_have_turns() -> None:
    sched, _ = scheduler("memory://")
    others = Turns()

    @sched.job
    async def nothing() -> None: ...

    task = asyncio.create_task(others.go_on())
    await asyncio.sleep(0)
    before = others.count
    for _ in range(10 * ENQUEUED_AT_ONCE):
        await nothing.enqueue()
    # One every so often: a turn for each call would cost as much as the rest of it.
    assert others.count - before == 10
    before = others.count
    for _ in range(10):
        await nothing.enqueue_many([()] * 2)
    assert others.count - before == 10
    task.cancel()


async def test_callers_in_two_threads_do_not_starve_their_loops() -> None:
    backend = MemoryBackend()
    enqueue = op.Enqueue((job("a"),))
    assert not backend.owes_turn(enqueue)
    assert await asyncio.to_thread(backend.owes_turn, enqueue)
    assert backend.owes_turn(enqueue)
    assert not backend.owes_turn(enqueue)


async def test_query_by_path_yields_while_records_are_indexed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "INDEXED_AT_ONCE", 10)
    sched = Scheduler("memory://")

    @sched.job(queue_hint=["doc"])
    async def nothing() -> None: ...

    await nothing.enqueue_many([()] * 100)
    await sched.drain()
    for is_indexed in (False, True):
        asked, count = asyncio.ensure_future(sched.records.list(path=["doc"])), 0
        while not asked.done():
            await asyncio.sleep(0)
            count += 1
        assert len(asked.result()) == 100
        assert (count < 10) == is_indexed


# --- jobs that are lost ----------------------------------------------------------------------------------------------


def left(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    found = [vars(record) for record in caplog.records if getattr(record, "event", "") == "memory.jobs_left"]
    return [(each["message"], each["jobs"]) for each in found]


def saving(sched: Scheduler) -> Any:
    @sched.job(queue_hint=["{doc}"])
    async def save(doc: str) -> None: ...

    return save


@pytest.mark.parametrize("how", ["worker", "lifespan"])
async def test_last_worker_in_memory_names_the_jobs_that_it_leaves(how: str, caplog: pytest.LogCaptureFixture) -> None:
    sched = Scheduler()
    save = saving(sched)
    async with sched.worker() if how == "worker" else sched.lifespan()(None):
        await save.using(delay=60).enqueue_many([("a",), ("b",)])
    ((message, jobs),) = left(caplog)
    assert message == (
        "unfinished jobs stay in memory without a worker, and are lost when the process ends: 2 SCHEDULED; drain first "
        "(include_scheduled=True), or keep jobs in a file, in PostgreSQL or on Redis"
    )
    assert jobs == 2
    await sched.close()
    assert len(left(caplog)) == 1, "of the same jobs once"


async def test_closed_store_in_memory_names_the_jobs_that_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    sched = Scheduler()
    save = saving(sched)
    async with sched.worker(), sched.worker():
        await (await save.enqueue("a")).result(timeout=LIMIT_S)
    assert left(caplog) == []
    await save.enqueue("a")
    await save.using(delay=60).enqueue("b")
    await sched.close()
    sched.close_sync()
    ((message, jobs),) = left(caplog)
    assert message.startswith("unfinished jobs are lost, because the store in memory is closed: 1 SCHEDULED, 1 QUEUED;")
    assert jobs == 2


async def test_drain_and_test_stores_log_no_leftover_jobs(caplog: pytest.LogCaptureFixture) -> None:
    real, (fake, _) = Scheduler(), scheduler()
    for sched in (real, fake):
        save = saving(sched)
        await save.using(delay=60).enqueue("a")
        await sched.drain(timeout=LIMIT_S)
    await fake.close()
    assert left(caplog) == []
