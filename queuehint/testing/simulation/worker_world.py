"""
A world in which the real worker runs real handlers: processes on a virtual loop, a network, one store.

The faults of each process are drawn in `faults`.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any

from queuehint.client.handle import JobHandle
from queuehint.core.asking.why import any_wait_ends
from queuehint.core.engine import EngineOptions
from queuehint.errors import BackendError, BackendUnavailableError, QueueHintError
from queuehint.testing.relaying import inbox_of
from queuehint.testing.simulation.faults import FaultSchedule
from queuehint.testing.simulation.live_workers import Crew, has_time
from queuehint.testing.simulation.loop import PROCESS, Process, VirtualLoop
from queuehint.testing.simulation.network import Unreachable, WireBackend
from queuehint.testing.simulation.store import BEGIN_MS, CHECK_EVERY, StaleRequestError, Store
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from queuehint.backends.base import Interest
    from queuehint.operations import Operation
    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.testing.simulation.faults import Fault, FaultPlan, RequestFaults

THINK_MS = 2_000
"""How long a producer thinks between two jobs at most."""
LOOK_S = 0.5
"""How often to check whether anything is still to come."""
STEPS_MAX = 100_000


class HandlerWorld:
    """
    Workers, a producer and their store.

    Args:
        sched: whose handlers run; its store is this world's for as long as it lasts.
        jobs: what the producer does, one after the other; what returns handles is done again if the store has lost
            their jobs.
        workers, concurrency: how many processes run jobs, and how many each.
        seed, plan: what is drawn from.
        only: the faults that may happen; None for all that are drawn.
        invariant: called after each step of the store.
        limit_ms: how long all may take.
    """

    def __init__(
        self,
        sched: Scheduler,
        jobs: Sequence[Callable[[], Awaitable[Any]]],
        *,
        workers: int,
        concurrency: int,
        seed: int,
        plan: FaultPlan,
        only: Iterable[Fault] | None,
        invariant: Callable[[], object] | None,
        limit_ms: int,
    ) -> None:
        self._sched = sched
        self._jobs = jobs
        self._concurrency = concurrency
        self._seed = seed
        self._plan = plan
        self._invariant = invariant
        self._limit_ms = limit_ms
        self.store = Store(
            EngineOptions(epoch_s=1, retention=sched._retention),
            lease_max_ms=sched.lease_ms,
            traced=True,
        )
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._hear)
        self.backend = WireBackend(self, inbox_of(sched.url, sched.namespace))
        self._schedule = FaultSchedule(seed, plan, only)
        self.story: list[str] = []
        self.steps = 0
        self._asked = 0
        self.waiting: dict[asyncio.Future[None], Interest] = {}
        self._parked: dict[str, tuple[Interest, tuple[Any, ...]]] = {}
        """Requests behind a wait that goes on, by their streams."""
        self._processes: list[Process | None] = [None] * workers
        self._lives = [0] * workers
        self._sent: dict[Process, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._acked: dict[int, tuple[str, ...]] = {}
        self._clock_ms = self._highest_ms = 0
        self._down_until_s = 0.0
        self._has_produced = False
        self._has_lost = self._is_closed = False
        self.hit: set[tuple[str, int]] = set()
        """The attempts, by job and token, during which the worker died or stood still."""
        self._crew = Crew(has_time=has_time(sched.lease_ms, plan))
        self._end: asyncio.Future[None] | None = None

    @property
    def faults(self) -> list[Fault]:
        """Faults that occurred, with their processes."""
        return self._schedule.faults

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def store_ms(self) -> int:
        """The time by the store's clock, which never goes backwards."""
        return max(self.store.engine.now_ms, BEGIN_MS + round(self.loop.time() * 1000) + self._clock_ms)

    def _post(self, in_ms: int, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback of the world, which survives the death of processes."""

        def call() -> None:
            if self._end is None or self._end.done():
                return
            try:
                callback(*args)
            except Exception as error:  # noqa: BLE001 - it ends the world, and is told
                self._fail(error)

        self.loop.call_later(in_ms / 1000, call, context=Context())

    def _fail(self, error: Exception) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)

    def _hear(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the world after a fault in a callback, which a real loop would only log."""
        error = context.get("exception")
        if "handle" in context and isinstance(error, Exception):
            self._fail(error)

    def _say(self, text: str) -> None:
        self.story.append(f"{self.loop.time():9.3f} s  {text}")

    # --- the life of the world ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """
        Run until nothing more can happen by itself.

        Raises:
            AssertionError: a promise was broken, the user's invariant among them.
        """
        self.loop.run_until_complete(self._run())
        self.store.promises.check_all(self.store.engine)

    async def _run(self) -> None:
        self._end = self.loop.create_future()
        for place in range(len(self._processes)):
            self._spawn(place)
        self._begin(Process("producer"), self._produce())
        self._post(round(LOOK_S * 1000), self._look)
        await self._end

    def _begin(self, process: Process, code: Coroutine[Any, Any, None]) -> None:
        context = Context()
        context.run(PROCESS.set, process)
        self._sent[process] = 0
        self._tasks.append(self.loop.create_task(code, context=context))

    def _spawn(self, place: int) -> None:
        self._lives[place] += 1
        life = self._lives[place]
        process = Process(f"worker {place + 1}" + (f".{life}" if life > 1 else ""))
        self._processes[place] = process
        self._begin(process, self._work(process))

    async def _work(self, process: Process) -> None:
        try:
            worker = self._sched.make_worker(self._concurrency)
            self._crew.join(process, worker)
            await worker.run()
        except Exception as error:  # noqa: BLE001 - a worker that ends by itself ends the world
            self._fail(error)

    async def _produce(self) -> None:
        random = Random(f"{self._seed}/think")
        try:
            for number, job in enumerate(self._jobs):
                await self._hand_in(number, job)
                await asyncio.sleep(random.randrange(THINK_MS) / 1000 if random.random() < 0.5 else 0)
            self._has_produced = True
            while True:
                # A store that has lost its last steps is told of them again.
                await asyncio.sleep(LOOK_S)
                for number in self._forgotten():
                    await self._hand_in(number, self._jobs[number])
        except Exception as error:  # noqa: BLE001 - what a producer raises is the simulation's to tell
            self._fail(error)

    def _forgotten(self) -> list[int]:
        """Return which of the producer's jobs the store has lost."""
        known = self.store.promises.ids
        lost = {number: ids for number, ids in self._acked.items() if any(job_id not in known for job_id in ids)}
        assert self._has_lost or not lost, (
            f"the enqueue of {', '.join(next(iter(lost.values())))} was answered, and the store does not know it"
        )
        return list(lost)

    async def _hand_in(self, number: int, job: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                found = await job()
            except BackendError:
                await asyncio.sleep(1)
                continue
            handles = found if isinstance(found, (list, tuple)) else [found]
            self._acked[number] = tuple([handle.id for handle in handles if isinstance(handle, JobHandle)])
            return

    def _look(self) -> None:
        """End the world when nothing more can happen by itself."""
        if self._has_produced and not self._forgotten() and self._is_over():
            assert self._end is not None
            self._end.set_result(None)
            return
        assert self.loop.time() * 1000 < self._limit_ms, (
            f"after {self.loop.time():.0f} s there is still something to do: {self._unfinished()}"
        )
        self._post(round(LOOK_S * 1000), self._look)

    def _is_over(self) -> bool:
        table = self.store.engine.table
        counts = table.counts
        if counts[JobState.STARTED] or counts[JobState.SCHEDULED] or table.leftovers or table.backing_off:
            return False
        if table.ready.sizes() or any_wait_ends(table):
            return False
        live = [process for process in self._processes if process is not None]
        return not any(process.is_dead or process.is_paused or self._crew.is_busy(process) for process in live)

    def _unfinished(self) -> str:
        jobs = [job for job in self.store.engine.table.jobs.values() if not job.is_over][:3]
        return ", ".join(f"{job.id} ({job.spec.task}) is {job.state}" for job in jobs) or "code that does not end"

    def close(self) -> None:
        """Kill all processes and drop their tasks, which change nothing any more."""
        self._is_closed = True
        for process in self._sent:
            process.kill()
        tasks = list(self._tasks)
        tasks += sorted(asyncio.all_tasks(self.loop), key=lambda task: task.get_name())
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        # Messages of the clean-up of killed code are dropped.
        silent = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        for task in tasks:
            coroutine = task.get_coro()
            if not task.done() and coroutine is not None:
                try:
                    coroutine.close()
                except BaseException:  # noqa: BLE001, S110 - the same
                    pass
        logging.disable(silent)
        self.loop.close()

    # --- the far end of the wire --------------------------------------------------------------------------------------

    def send(
        self,
        process: Process,
        stream: str,
        number: int,
        operation: Operation[Any],
        answer: Callable[[Any], None],
        behind: tuple[Interest, float] | None = None,
    ) -> None:
        """Send a request, and draw its faults and those of others meanwhile."""
        count = self._sent[process] = self._sent[process] + 1
        faults, plan = self._schedule.of(process.name, count), self._plan
        there_ms, back_ms = faults.there_ms, faults.back_ms
        if faults.has("delay"):
            there_ms += 1 + faults.part("delay", plan.delay_ms)
        if process.name.startswith("worker"):
            self._hurt(process, faults, operation)
        if process.is_dead:
            return
        if self.loop.time() < self._down_until_s:
            raise Unreachable
        is_lost, is_unheard = faults.has("lose_request"), faults.has("lose_reply")
        if is_lost:
            self._say(f"a request of {process.name} is lost ({type(operation).__name__})")
        else:
            request = (process, stream, number, operation, None if is_unheard else answer, back_ms)
            self._post(there_ms, self._park, behind, request)
        if faults.has("double_request"):
            later_ms = there_ms + 1 + faults.part("double_request", plan.delay_ms)
            self._post(later_ms, self._arrive, process, stream, number, operation, None, 0)

    def _park(self, behind: tuple[Interest, float] | None, request: tuple[Any, ...]) -> None:
        """Queue a request. A request behind a wait is carried out at the end of the wait."""
        if behind is None or self.is_there(behind[0]):
            self._arrive(*request)
        elif self.loop.time() >= self._down_until_s:
            self._parked[request[1]] = behind[0], request
            self._post(round(behind[1] * 1000), self._unpark, request)

    def _unpark(self, request: tuple[Any, ...]) -> None:
        """Carry out a request after its wait, unless its connection is closed."""
        if self._parked.get(request[1], (None, None))[1] is request:
            del self._parked[request[1]]
            if not request[0].is_dead:
                self._arrive(*request)

    def _arrive(
        self,
        process: Process,
        stream: str,
        number: int,
        operation: Operation[Any],
        answer: Callable[[Any], None] | None,
        back_ms: int,
    ) -> None:
        if self.loop.time() < self._down_until_s:
            return
        outcome: Any
        try:
            outcome = self._apply(stream, number, operation)
        except StaleRequestError:
            return
        except QueueHintError as error:
            outcome = error
        if answer is None:
            if self.store.moves:
                self._say(f"an answer to {process.name} is lost ({type(operation).__name__})")
            return
        self._post(back_ms, answer, outcome)

    def _apply(self, stream: str, number: int, operation: Operation[Any]) -> Any:
        store = self.store
        self._highest_ms = max(self._highest_ms, self.store_ms)
        if operation.is_question or operation.is_repeatable:
            return store.engine.apply(operation, self.store_ms)
        try:
            reply = store.ask(stream, number, operation, self.store_ms)
        finally:
            for kind, job, _, _, _ in store.moves:
                self._say(f"{job.id} ({job.spec.task}) {kind}{f' by {job.worker}' if kind == 'started' else ''}")
        self._crew.check(store.moves, operation)
        self.steps += 1
        if self.steps % CHECK_EVERY == 0:
            store.promises.check_all(store.engine)
        if self._invariant is not None and self._invariant() is False:
            raise AssertionError("the invariant does not hold")
        assert self.steps < STEPS_MAX, f"after {STEPS_MAX} steps there is still something to do"
        self._wake()
        return reply

    def ask(self, operation: Operation[Any]) -> Any:
        """Do an operation at once, for plain functions and for observers outside the world."""
        if self._is_closed:
            raise BackendUnavailableError("the simulated world has ended")
        if operation.is_question or operation.is_repeatable:
            return self.store.engine.apply(operation, self.store_ms)
        self._asked += 1
        return self._apply("at once", self._asked, operation)

    def is_there(self, interest: Interest) -> bool:
        """Return whether a wait may be over."""
        engine = self.store.engine
        table = engine.table
        if any(table.ready.size(pool, interest.users) for pool in interest.pools):
            return True
        if interest.pools and table.leftovers:
            return True
        if interest.worker is not None and interest.worker in table.undelivered_cancellations:
            return True
        return any(job_id not in table.jobs or table.jobs[job_id].is_over for job_id in interest.jobs)

    def due_s(self) -> float | None:
        """Return in how many seconds something is due."""
        next_ms = self.store.engine.next_ms
        return None if next_ms is None else (next_ms - self.store_ms) / 1000

    def _wake(self) -> None:
        for future, interest in list(self.waiting.items()):
            if not future.done() and self.is_there(interest):
                future.set_result(None)
        for interest, request in self._parked.values():
            if self.is_there(interest):
                self._post(0, self._unpark, request)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _hurt(self, process: Process, faults: RequestFaults, operation: Operation[Any]) -> None:
        plan = self._plan
        if faults.has("crash"):
            down_ms = 1 + faults.part("pause", plan.down_ms)
            after_ms = faults.crash_after_ms
            if after_ms == 0:
                self._crash(process, down_ms, before=operation)
            else:
                self._post(after_ms, self._crash, process, down_ms)
        if faults.has("pause"):
            self._post(1 + faults.part("pause", 500), self._pause, process, 1 + faults.part("pause", plan.pause_ms))
        if faults.has("clog"):
            random = Random(faults.sizes["clog"])
            live = [each for each in self._processes if each is not None]
            for at, each in enumerate(random.sample(live, random.randint(min(2, len(live)), len(live)))):
                self._post(1 + at * 200, self._pause, each, random.randrange(1, plan.pause_ms + 1))
        if faults.has("step_clock"):
            self._post(1, self._set_clock, round((2 * faults.sizes["step_clock"] - 1) * plan.step_ms))
        if faults.has("restart"):
            lost = (0, 1, 2, 5, plan.rollback)[faults.part("restart", 5)]
            self._post(1, self._restart, min(lost, plan.rollback), 1 + faults.part("clog", plan.down_ms))

    def _crash(self, process: Process, down_ms: int, *, before: Operation[Any] | None = None) -> None:
        if process.is_dead:
            return
        self._say(f"{process.name} dies{f' before it sends {type(before).__name__}' if before is not None else ''}")
        self._note_hits(process)
        process.kill()
        place = self._processes.index(process)
        self._post(down_ms, self._spawn, place)

    def _note_hits(self, process: Process) -> None:
        """Record the running attempts of a process, in the view of the store."""
        for job in self.store.engine.table.jobs.values():
            if job.state is JobState.STARTED and job.worker == process.name:
                self.hit.add((job.id, job.token or 0))

    def _pause(self, process: Process, for_ms: int) -> None:
        if process.is_dead or process.is_paused:
            return
        self._say(f"{process.name} stands still for {for_ms / 1000:g} s")
        self._note_hits(process)
        self._crew.excuse(process)
        process.pause()
        self._post(for_ms, self._resume, process)

    def _resume(self, process: Process) -> None:
        if not process.is_dead:
            self._say(f"{process.name} goes on")
            process.resume(self.loop)

    def _set_clock(self, ahead_ms: int) -> None:
        self._say(f"the clock of the store is set by {ahead_ms} ms")
        self._highest_ms = max(self._highest_ms, self.store_ms)
        self._clock_ms += ahead_ms
        self._crew.excuse_all()

    def _restart(self, lost: int, down_ms: int) -> None:
        self._say(f"the store is started anew without its last {lost} steps, {down_ms} ms later")
        # Of a server whose clock is behind that of the one before nothing is promised.
        self._highest_ms = max(self._highest_ms, self.store_ms) + 1
        self._clock_ms = max(self._clock_ms, self._highest_ms - BEGIN_MS - round(self.loop.time() * 1000))
        self.store.restart(lost, self._highest_ms)
        if lost:
            self._has_lost = True
            self._crew.excuse_all()
        self._down_until_s = self.loop.time() + down_ms / 1000
        self._parked.clear()
        for future in list(self.waiting):
            if not future.done():
                future.set_result(None)
