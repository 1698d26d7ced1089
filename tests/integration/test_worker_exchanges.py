"""Two concurrent exchanges of a worker: applied, answered or lost in any order, the result is as with one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

import attrs
import pytest

from queuehint import JobState, OutcomeUnknownError, Scheduler
from queuehint.backends.base import Backend, Interest
from queuehint.backends.memory import MemoryBackend
from queuehint.errors import BackendUnavailableError
from queuehint.operations import CountJobs, Exchange, Exchanged
from queuehint.testing import FaultPlan, simulate
from queuehint.worker import exchanges, outcomes
from queuehint.worker.exchanges import Exchanges
from queuehint.worker.outbox import OutboxBuffer
from queuehint.worker.worker import Worker
from tests.schedulers import turns
from tests.support import thorough

CONCURRENCY = 8


@attrs.define(eq=False)
class Call:
    """An exchange under way: whether it is done, and the waiter for its reply."""

    operation: Exchange
    answered: asyncio.Future[Exchanged]
    reply: Exchanged | None = None


class HeldStore(Backend):
    """A store elsewhere, which does exchanges and answers them when it is told to; all else at once."""

    def __init__(self) -> None:
        self.memory = MemoryBackend()
        self.calls: list[Call] = []
        self.most = 0
        self._receipts: dict[int, tuple[Exchange, Exchanged]] = {}

    @property
    def is_local(self) -> bool:
        return False

    async def call(self, operation: Any) -> Any:
        if not isinstance(operation, Exchange):
            return self.memory.call_sync(operation)
        call = Call(operation, asyncio.get_running_loop().create_future())
        self.calls.append(call)
        self.most = max(self.most, len(self.calls))
        try:
            return await call.answered
        finally:
            self.calls.remove(call)

    def call_sync(self, operation: Any) -> Any:
        return self.memory.call_sync(operation)

    def do(self, call: Call) -> None:
        """Carry an exchange out once, however often it comes."""
        known = self._receipts.get(id(call.operation))
        if known is None:
            known = self._receipts[id(call.operation)] = (call.operation, self.memory.call_sync(call.operation))
        call.reply = known[1]

    def answer(self, call: Call) -> None:
        if call.reply is None:
            self.do(call)
        assert call.reply is not None
        call.answered.set_result(call.reply)

    async def answer_all(self) -> None:
        """Answer what comes until nothing more comes."""
        await turns()
        while waiting := [call for call in self.calls if not call.answered.done()]:
            for call in waiting:
                self.answer(call)
            await turns()

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        await self.memory.wait(interest, timeout_s)

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        self.memory.wait_sync(interest, timeout_s)

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        return lambda: None

    async def close(self) -> None: ...

    def close_sync(self) -> None: ...


@attrs.define(eq=False)
class Crew:
    """A worker of such a store: how many of its jobs run, and how often each began."""

    held: HeldStore
    sched: Scheduler
    worker: Worker
    running: int = 0
    begun: dict[int, int] = attrs.field(factory=dict)
    gate: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def send_two(self) -> tuple[Call, Call]:
        """Answer the first exchange and let its jobs end; return the two that the worker sends then."""
        self.held.answer(self.held.calls[0])
        await turns()
        self.gate.set()
        await turns()
        first, second = self.held.calls
        return first, second

    async def count(self, **states: int) -> None:
        counts = (await self.held.call(CountJobs())).states
        assert {state: count for state, count in counts.items() if count} == {
            JobState[name.upper()]: count for name, count in states.items()
        }


@pytest.fixture(autouse=True)
def _few_are_plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "BESIDE_MIN", 2)
    monkeypatch.setattr(exchanges, "pause_s", lambda failures: 0)


@contextlib.asynccontextmanager
async def working(jobs: int, concurrency: int = CONCURRENCY, lasts: int = 1) -> AsyncIterator[Crew]:
    """Enqueue jobs of up to so many turns and run a worker that has sent its first exchange."""
    held = HeldStore()
    sched = Scheduler("memory://")
    sched._backend = held
    crew = Crew(held, sched, sched.make_worker(concurrency))

    @sched.job(queue_hint=["{number}"])
    async def work(number: int) -> None:
        crew.begun[number] = crew.begun.get(number, 0) + 1
        crew.running += 1
        assert crew.running <= concurrency
        try:
            await crew.gate.wait()
            await turns(number % lasts)
        finally:
            crew.running -= 1

    await work.enqueue_many([(number,) for number in range(jobs)])
    task = asyncio.create_task(crew.worker.run())
    try:
        await turns()
        yield crew
    finally:
        crew.gate.set()
        crew.worker.stop(at_once=True)
        while not task.done():
            await held.answer_all()
            await asyncio.sleep(0.001)
        await task


async def test_second_exchange_claims_the_other_half_during_the_first() -> None:
    async with working(jobs=40) as crew:
        held = crew.held
        assert [call.operation.limit for call in held.calls] == [4]
        held.answer(held.calls[0])
        await turns()
        # More than was asked for is ready; the next asks for the slots that are left, all of them taken by then.
        assert [call.operation.limit for call in held.calls] == [4]
        crew.gate.set()
        await turns()
        assert [(len(call.operation.settle), call.operation.limit) for call in held.calls] == [(0, 4), (4, 4)]
        first, second = held.calls
        settled = {(outcome.job_id, outcome.token) for outcome in second.operation.settle}
        assert set(crew.worker._state.leases.all()) == settled
        held.answer(second)
        await turns()
        assert [(len(call.operation.settle), call.operation.limit) for call in held.calls] == [(0, 4), (4, 4)]
        assert held.calls[0] is first
        await held.answer_all()
        await crew.count(finished=40)
        assert held.most == 2


async def test_exchanges_are_bounded_by_20_ms_of_server_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "JOBS_AT_ONCE", 3)
    monkeypatch.setattr(outcomes, "JOBS_AT_ONCE", 3)
    async with working(jobs=40, concurrency=20) as crew:
        crew.gate.set()
        sizes = set()
        while waiting := [call for call in crew.held.calls if not call.answered.done()]:
            for call in waiting:
                sizes.add((len(call.operation.settle), call.operation.limit))
                crew.held.answer(call)
            await turns()
        await crew.count(finished=40)
        assert max(settled for settled, _ in sizes) == max(limit for _, limit in sizes) == 3


async def test_few_outcomes_wait_for_the_exchange_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "BESIDE_MIN", 4)
    async with working(jobs=3) as crew:
        crew.gate.set()
        await crew.held.answer_all()
        await crew.count(finished=3)
        assert crew.held.most == 1


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_worker_of_few_slots_exchanges_one_by_one(concurrency: int) -> None:
    async with working(jobs=20, concurrency=concurrency) as crew:
        crew.gate.set()
        await crew.held.answer_all()
        await crew.count(finished=20)
        assert crew.held.most == 1


async def test_stopping_worker_awaits_both_exchanges_and_releases_their_grants() -> None:
    async with working(jobs=40) as crew:
        held = crew.held
        first, second = await crew.send_two()
        crew.worker.stop()
        held.answer(first)
        await turns()
        # The second exchange under way comes first: nothing else is sent, and the worker does not leave.
        assert held.calls == [second]
        held.answer(second)
        await held.answer_all()
        assert crew.running == 0
        await crew.count(finished=4, queued=36)


async def test_claims_of_both_exchanges_never_exceed_the_slots() -> None:
    async with working(jobs=40) as crew:
        held = crew.held
        held.answer(held.calls[0])
        await turns()
        crew.gate.set()
        await turns()
        crew.gate.clear()
        first, second = held.calls
        held.answer(first)
        await turns()
        # Four run, and four are claimed beside: nothing is left for the main task to claim.
        assert held.calls == [second]
        held.answer(second)
        await turns()
        assert (crew.running, held.calls) == (8, [])


async def test_stopping_worker_stays_while_grants_may_arrive() -> None:
    async with working(jobs=8) as crew:
        held = crew.held
        first, second = await crew.send_two()
        held.do(second)
        crew.worker.stop()
        held.answer(first)
        await turns()
        assert held.calls == [second]
        await held.answer_all()
        assert held.memory.call_sync(CountJobs()).states[JobState.STARTED] == 0


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_second_exchange_without_a_reply_is_sent_again_unchanged(is_done: bool) -> None:
    async with working(jobs=40) as crew:
        held = crew.held
        first, second = await crew.send_two()
        if is_done:
            held.do(second)
            second.answered.set_exception(OutcomeUnknownError("no answer"))
        else:
            second.answered.set_exception(BackendUnavailableError("gone"))
        await turns()
        held.answer(first)
        await turns()
        assert [call.operation for call in held.calls] == [second.operation]
        await held.answer_all()
        await crew.count(finished=40)
        assert set(crew.begun.values()) == {1}


async def test_outcomes_of_a_refused_second_exchange_are_resent(caplog: pytest.LogCaptureFixture) -> None:
    async with working(jobs=40) as crew:
        held = crew.held
        first, second = await crew.send_two()
        assert len(second.operation.settle) == 4
        second.answered.set_exception(RuntimeError("one of them is to blame"))
        await turns()
        held.answer(first)
        await turns()
        # By halves, and one exchange at a time, until as many as ever go together.
        assert [call.operation.settle for call in held.calls] == [second.operation.settle[:2]]
        await held.answer_all()
        await crew.count(finished=40)
        assert not caplog.records


class SaidLater(OutboxBuffer):
    """Is told something by a thread between two looks."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def __bool__(self) -> bool:
        self._looks -= 1
        if not self._looks:
            self.log("other", 1, "line")
        return super().__bool__()


@pytest.mark.parametrize("looks", range(1, 7))
async def test_release_in_a_second_exchange_is_distinct_from_earlier_settlements(looks: int) -> None:
    async with working(jobs=40) as crew:
        held, outbox = crew.held, crew.worker._state.outbox
        first, second = await crew.send_two()
        call, is_sent = held.call, asyncio.Event()

        async def calling(operation: Any) -> Any:
            if not isinstance(operation, (Exchange, CountJobs)):
                await is_sent.wait()
            return await call(operation)

        held.call = calling  # type: ignore[method-assign]
        outbox.is_used, outbox.buffer = True, SaidLater(looks)
        held.answer(first)
        await turns()
        second.answered.set_exception(RuntimeError("one of them is to blame"))
        await turns()
        is_sent.set()
        await held.answer_all()
        await crew.count(finished=40)
        assert not crew.worker._state.leases.all()


@pytest.mark.parametrize("seed", range(thorough(200, quick=20)))
async def test_exchanges_in_any_order_run_each_job_once(seed: int) -> None:
    random = Random(seed)
    async with working(jobs=60, lasts=5) as crew:
        held = crew.held
        crew.gate.set()
        for _ in range(1000):
            await turns(random.randrange(4))
            waiting = [call for call in held.calls if not call.answered.done()]
            if not waiting:
                if (await held.call(CountJobs())).states[JobState.FINISHED] == 60:
                    break
                continue
            call = random.choice(waiting)
            fate = random.random()
            if fate < 0.3:
                held.do(call)
            elif fate < 0.4 and call.reply is None:
                call.answered.set_exception(BackendUnavailableError("gone"))
            elif fate < 0.5:
                held.do(call)
                call.answered.set_exception(OutcomeUnknownError("no answer"))
            else:
                held.answer(call)
        await held.answer_all()
        await crew.count(finished=60)
        assert set(crew.begun.values()) == {1}
        assert held.most == 2


@pytest.mark.slow
def test_workers_with_two_exchanges_keep_all_promises_under_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "BESIDE_MIN", 1)
    went, go_beside = [], Exchanges._exchange_beside

    async def counted(self: Exchanges, *exchange: Any) -> None:
        went.append(exchange)
        await go_beside(self, *exchange)

    monkeypatch.setattr(Exchanges, "_exchange_beside", counted)

    async def edit() -> None:
        await asyncio.sleep(0.01)

    plan = FaultPlan(lose_reply=0.1, double_request=0.1, restart=0.02, crash=0.02)
    jobs = [("edit", [f"doc{number % 5}"]) for number in range(30)]
    simulate({"edit": edit}, jobs, faults=plan, seeds=thorough(100, quick=10), concurrency=4)
    assert went


async def test_two_exchanges_with_a_server_keep_the_order_of_places(redis_url: str, namespace: str) -> None:
    seen: dict[str, list[int]] = {}
    most, under_way = 0, 0
    async with Scheduler(redis_url, namespace=namespace) as sched:
        call, done = sched.backend.call, asyncio.Event()

        async def counted(operation: Any) -> Any:
            nonlocal most, under_way
            under_way += isinstance(operation, Exchange)
            most = max(most, under_way)
            try:
                return await call(operation)
            finally:
                under_way -= isinstance(operation, Exchange)

        sched.backend.call = counted  # type: ignore[method-assign]

        @sched.job(queue_hint=["{doc}"])
        async def note(doc: str, number: int) -> None:
            seen.setdefault(doc, []).append(number)
            if sum(map(len, seen.values())) == 200:
                done.set()

        await note.enqueue_many([(f"doc{number % 20}", number) for number in range(200)])
        async with sched.worker(concurrency=CONCURRENCY):
            await done.wait()
        assert (await sched.stats()).unfinished == 0
    assert all(numbers == sorted(numbers) and len(numbers) == 10 for numbers in seen.values())
    assert most == 2
