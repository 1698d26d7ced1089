"""
One attempt of one job: hooks, arguments, the handler on the loop or in a thread.

An attempt is over when its code has *really* ended: a thread cannot be stopped, and its place must not be freed before.

A job is on its **last life** when one more lost worker makes it FAILED. The store records the start of its code, and a
lease that expires before that counts as no loss. If it has lost workers before, it is a suspected poison job. Of the
jobs that ran together when a worker died only one is to blame, so suspected jobs start one at a time: the next one
starts when the one before has ended, or has run for `LAST_LIFE_S`. So a job that kills its worker at once fails alone.

Where many are suspected, as after the loss of a whole machine, each is less likely to be to blame, and they start
faster: all that wait start within `LAST_LIVES_WITHIN_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from concurrent.futures import Executor
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from queuehint.errors import (
    BackendError,
    InvalidJobTypeError,
    PayloadError,
    QueueHintError,
    UnknownToReleaseError,
    shown,
)
from queuehint.handlers.context import CURRENT, raised_answer
from queuehint.handlers.forks import end_any_child, in_one_process
from queuehint.operations import Get
from queuehint.values.ids import this_process
from queuehint.values.outcome import CHILDREN_MAX, OutcomeKind
from queuehint.values.spec import CHILDREN_TASK
from queuehint.worker.calls.threads import Threads
from queuehint.worker.calls.wide_children import of_part, with_parts
from queuehint.worker.dependency_results import PAUSE_S, fetch, fetch_steps, filled
from queuehint.worker.leases.begins import Begins
from queuehint.worker.outcomes import outcome_of
from queuehint.worker.processes.pool import ProcessPool
from queuehint.worker.slots import end_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from queuehint.handlers.context import RaisedAnswer
    from queuehint.handlers.handler import Handler
    from queuehint.handlers.partial_result import PartialResult
    from queuehint.values.outcome import Grant, Outcome
    from queuehint.worker.dependency_results import DependencyResults
    from queuehint.worker.slots import Slot
    from queuehint.worker.state import WorkerState

logger = logging.getLogger("queuehint.worker")

LAST_LIFE_S = 5.0
LAST_LIVES_WITHIN_S = 60.0
LOADS_MAX = 5
"""How often a job's partial result is requested, `PAUSE_S` apart, before the job is given back."""

_ELSEWHERE = frozenset({"ProcessPoolExecutor", "InterpreterPoolExecutor"})


def check_executor(executor: object) -> Executor:
    """
    Check the executor for plain functions.

    Raises:
        InvalidJobTypeError: it is no `Executor`, or runs them in other processes or interpreters.
    """
    takes = "an Executor whose calls run in threads of this process, such as a ThreadPoolExecutor"
    problem = ""
    if not isinstance(executor, Executor):
        problem = f": {shown(executor)}"
    elif _ELSEWHERE & {kind.__name__ for kind in type(executor).__mro__}:
        problem = ", where neither the function nor its context can be; give the task process=True"
    elif getattr(executor, "_shutdown", False) is True:
        problem = ", which is shut down"
    if problem:
        raise InvalidJobTypeError(f"executor must be {takes}, got {type(executor).__name__}{problem}")
    assert isinstance(executor, Executor)
    return executor


class AttemptRunner:
    """
    Runs attempts.

    Args:
        handlers: by task name; looked up at each attempt, so it may grow.
        before, after: hooks, called with the context, and with the context and the outcome.
        executor: what runs plain functions instead of threads of its own; it is not shut down.
        uses_processes: whether handlers declared so run in processes; else as any plain function.
    """

    def __init__(
        self,
        state: WorkerState,
        handlers: Mapping[str, Handler],
        *,
        before: Collection[Callable[..., Any]] = (),
        after: Collection[Callable[..., Any]] = (),
        executor: Executor | None = None,
        uses_processes: bool = True,
    ) -> None:
        self._state = state
        self._outcomes = state.outcomes
        self._handlers = handlers
        self._codec = state.codec
        self._backend = state.backend
        self._before = before
        self._after = after
        self._threads = state.concurrency
        self._begins = Begins(state)
        self._marks = state.leases.marks
        self._uses_processes = uses_processes
        self._processes: ProcessPool | None = None
        self._last_life = asyncio.Lock()
        self._waiting = self._most_waiting = 0
        state.run = self.run
        state.threads = Threads(self._threads, executor)

    async def run(self, slot: Slot) -> Outcome:
        """Run an attempt and its hooks, after the end of an earlier attempt of the job. Never raises."""
        try:
            if slot.previous is not None:
                await end_of(slot.previous)
            grant = slot.grant
            handler = self._handlers.get(grant.spec.task)
            if grant.spec.task == CHILDREN_TASK:
                outcome = self._of_part(slot)
            elif handler is None or slot.why_stop is not None:
                outcome = self._given_back(slot, handler)
            elif not slot.lease.has_begun:
                outcome = await (self._run_as_suspect if grant.losses else self._run_announced)(slot, handler)
            else:
                outcome = await self._run(slot, handler)
        except BaseException as error:  # noqa: BLE001 - whatever goes wrong around a handler, its slot is freed
            outcome = self._outcomes.of_accident(slot.grant, error)
        slot.stoppable = False
        if self._after and slot.grant.spec.task != CHILDREN_TASK:
            await self._call_after(slot, outcome)
        if slot.timer is not None:
            slot.timer.cancel()
        slot.context.is_over = True
        self._state.end(slot, outcome)
        return outcome

    def _given_back(self, slot: Slot, handler: Handler | None) -> Outcome:
        """Return the outcome of a job whose handler is unknown, or whose stop was requested before its code began."""
        if handler is not None:
            return outcome_of(slot.grant, OutcomeKind.RELEASED)
        spec = slot.grant.spec
        message = "this worker has no task %s: job %s is given back"
        facts = {"job_id": spec.id, "task": spec.task}
        self._outcomes.failures.given_back.log("job.unknown_task", spec.task, message, (spec.task, spec.id), facts)
        return outcome_of(slot.grant, OutcomeKind.UNKNOWN_TASK)

    async def _call_after(self, slot: Slot, outcome: Outcome) -> None:
        """Call the hooks after an attempt. Failed hooks are logged."""
        for hook in self._after:
            process = this_process.mark
            try:
                answer = hook(slot.context, outcome)
                if inspect.isawaitable(answer):
                    await answer
                end_any_child(process)
            except BaseException as error:  # noqa: BLE001 - as with handlers: the worker goes on
                end_any_child(process, error)
                what = {"event": "hook.failed", "job_id": outcome.job_id}
                self._outcomes.failures.log_hook("after_job hook failed", error, **what)

    def close(self) -> None:
        """Shut the threads down, without waiting for running ones, and end the processes that run no handler."""
        if self._processes is not None:
            self._processes.close()
        self._state.threads.close()

    async def _run_announced(self, slot: Slot, handler: Handler) -> Outcome:
        """Run a job on its last life after announcing its begin: a worker lost before the announcement is no loss."""
        if not await self._begins.announce(slot.grant) or slot.why_stop is not None:
            return outcome_of(slot.grant, OutcomeKind.RELEASED)
        return await self._run(slot, handler)

    async def _run_as_suspect(self, slot: Slot, handler: Handler) -> Outcome:
        """Run a job on its last life after losses, apart from other such jobs."""
        slot.stoppable = True
        self._waiting += 1
        self._most_waiting = max(self._most_waiting, self._waiting)
        try:
            await self._last_life.acquire()
        except asyncio.CancelledError as error:
            return self._outcomes.of_error(slot.grant, error, slot.why_stop)
        finally:
            self._waiting -= 1
        slot.stoppable = False
        pause_s = min(LAST_LIFE_S, LAST_LIVES_WITHIN_S / self._most_waiting)
        if not self._waiting:
            self._most_waiting = 0
        timer: asyncio.TimerHandle | None = None
        held = [True]

        def release() -> None:
            if held:
                held.clear()
                self._last_life.release()

        try:
            if not await self._begins.announce(slot.grant) or slot.why_stop is not None:
                return outcome_of(slot.grant, OutcomeKind.RELEASED)
            timer = asyncio.get_running_loop().call_later(pause_s, release)
            return await self._run(slot, handler)
        finally:
            if timer is not None:
                timer.cancel()
            release()

    async def _run(self, slot: Slot, handler: Handler) -> Outcome:
        grant, spec = slot.grant, slot.grant.spec
        CURRENT.set(slot.context)
        results: DependencyResults | None = None
        if spec.templates or (handler.wants_context and spec.depends_on):
            slot.stoppable = True
            try:
                results = await fetch(self._backend.call, grant, self._codec, all_of_them=handler.wants_context)
            except asyncio.CancelledError as error:
                return self._outcomes.of_error(grant, error, slot.why_stop)
            except PayloadError as error:
                return self._outcomes.of_error(grant, error, slot.why_stop, final=True)
            if results is None:
                return outcome_of(grant, OutcomeKind.RELEASED)
            slot.context.bring(results)
        stored: list[tuple[str, int, bytes]] = []
        if grant.steps and handler.wants_context:
            slot.stoppable = True
            try:
                found = await fetch_steps(self._backend.call, grant)
            except asyncio.CancelledError as error:
                return self._outcomes.of_error(grant, error, slot.why_stop)
            if found is None:
                return outcome_of(grant, OutcomeKind.RELEASED)
            stored = found
        is_apart = handler.import_path is not None and self._uses_processes
        slot.stoppable = handler.is_async or is_apart
        try:
            arguments = filled(spec, results, self._codec) if spec.templates and results is not None else spec.arguments
            # A process reads them itself, and what its code calls the steps.
            names = {name: name for name, _, _ in stored} if stored else None
            args, kwargs = ((), {}) if is_apart else handler.loads(self._codec, arguments, steps=names)
            if names is not None:
                slot.context.bring_steps(stored, names)
        except UnknownToReleaseError as error:
            return self._not_known_here(grant, error)
        except BaseException as error:  # noqa: BLE001 - what a codec of the application's raises
            # An attempt that cannot read its arguments is final, unless a file system or a server did not answer.
            return self._outcomes.of_error(grant, error, slot.why_stop, final=not isinstance(error, OSError))
        if not slot.begin() or (self._marks is not None and not self._marks.begin(grant.token)):
            return outcome_of(grant, OutcomeKind.RELEASED)
        process = this_process.mark
        deadline_s: float | None = None
        answer: RaisedAnswer | None = None
        try:
            for hook in self._before:
                waiting = hook(slot.context)
                if inspect.isawaitable(waiting):
                    await waiting
            if slot.context.canceled:  # while a hook ran
                return outcome_of(grant, OutcomeKind.RELEASED)
            if handler.wants_context:
                args = (slot.context, *args)
            if spec.policy.timeout_ms is not None and not is_apart:
                deadline_s = self._arm(slot, spec.policy.timeout_ms)
            if is_apart:
                result, deadline_s = await self._in_process(slot, handler, arguments, results, stored)
            elif handler.is_async:
                code = handler.function(*args, **kwargs)
                result = await (in_one_process(code, process) if type(code) is CoroutineType else code)
            else:
                result = await self._state.threads.run(handler.function, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises, the worker goes on
            end_any_child(process, error)
            if is_apart and isinstance(error, UnknownToReleaseError):
                return self._not_known_here(grant, error)
            answer = raised_answer(error)
            if answer is None:
                ended_by = TimeoutError() if slot.why_stop == "timeout" else error
                is_refused = results is not None and results.is_refused and isinstance(error, PayloadError)
                is_final = is_refused or handler.rules.is_final(ended_by)
                return self._outcomes.of_error(grant, error, slot.why_stop, final=is_final)
            result = answer
        end_any_child(process)
        why_stop = slot.why_stop
        # By the clock, not by the timer: an earlier request to stop removes the timer, and a blocked loop delays it.
        if deadline_s is not None and asyncio.get_running_loop().time() >= deadline_s:
            why_stop = "timeout"
        if slot.context.partial_result and not await self._load(slot, slot.context.partial_result):
            return outcome_of(grant, OutcomeKind.RELEASED)
        outcome = self._outcomes.of_result(grant, handler, result, why_stop, slot.context)
        if answer is not None:
            answer.__traceback__ = None  # raised again, it would keep the frames of all attempts
        if not outcome.children or len(outcome.children) <= CHILDREN_MAX:
            return outcome
        return await self._in_parts(slot, outcome)

    async def _in_parts(self, slot: Slot, outcome: Outcome) -> Outcome:
        """Enqueue jobs that wait for more children than one outcome names. The parent waits for these jobs."""
        slot.stoppable = False
        if slot.timer is not None:
            slot.timer.cancel()
        # Where it is asked to stop its code has ended already.
        sending = asyncio.ensure_future(with_parts(self._state.scheduler, slot.grant, outcome))
        while not sending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([sending])
        try:
            return sending.result()
        except QueueHintError as error:
            return self._outcomes.of_error(slot.grant, error, slot.why_stop)

    def _of_part(self, slot: Slot) -> Outcome:
        """Return the outcome of a job that waits for a part of the children of another job."""
        if slot.why_stop is not None:
            return outcome_of(slot.grant, OutcomeKind.RELEASED)
        try:
            return of_part(slot.grant)
        except QueueHintError as error:
            return self._outcomes.of_error(slot.grant, error, final=True)

    def _not_known_here(self, grant: Grant, error: UnknownToReleaseError) -> Outcome:
        """Return the outcome of a job that this release cannot read exactly, but another release may."""
        spec, log = grant.spec, self._outcomes.failures.given_back.log
        facts = {"job_id": spec.id, "task": spec.task}
        log("job.unknown_to_release", spec.task, "%s: job %s is given back", (str(error), spec.id), facts)
        return outcome_of(grant, OutcomeKind.UNKNOWN_TASK)

    def _arm(self, slot: Slot, timeout_ms: int) -> float:
        """Schedule the timeout of an attempt. Return its deadline, by the clock of the loop."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        slot.timer = loop.call_at(deadline_s, self._state.stopping.ask, slot, "timeout")
        return deadline_s

    async def _load(self, slot: Slot, partial_result: PartialResult) -> bool:
        """Load the stored partial result, to merge the result over it. Return False if it is unreadable now."""
        slot.stoppable = False
        if slot.timer is not None:
            slot.timer.cancel()
        pause_s = 0.0
        for _ in range(LOADS_MAX):
            if partial_result.is_loaded:
                break
            try:
                await asyncio.sleep(pause_s)
                reply = await self._backend.call(Get((partial_result.job_id,)))
                partial_result.load(reply.records[0], self._codec)
            except asyncio.CancelledError:
                # Asked to stop when its code had ended already: its result counts.
                continue
            except BackendError as error:
                pause_s = PAUSE_S
                job_id = partial_result.job_id
                extra = {"event": "job.no_interim", "job_id": job_id, "error": str(error)}
                logger.warning("the partial result of job %s cannot be read now: %s", job_id, error, extra=extra)
        return partial_result.is_loaded

    async def _in_process(
        self,
        slot: Slot,
        handler: Handler,
        arguments: bytes,
        results: DependencyResults | None,
        stored: list[tuple[str, int, bytes]],
    ) -> tuple[Any, float | None]:
        """Run a handler in a process. Return its result and its deadline, counted from the begin of its code."""
        deadline_s: float | None = None

        def begun() -> None:
            nonlocal deadline_s
            if slot.grant.spec.policy.timeout_ms is not None and slot.why_stop is None:
                deadline_s = self._arm(slot, slot.grant.spec.policy.timeout_ms)

        if self._processes is None:
            self._processes = ProcessPool(self._threads, self._codec, is_durable=self._backend.is_durable)
        result = await self._processes.run(slot, handler, arguments, results, stored, self._state, begun)
        return result, deadline_s
