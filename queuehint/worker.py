"""
Claim, run, settle, renew, stop gracefully.

A worker lives on one asyncio loop. Its main task exchanges with the backend: the outcomes at hand go out, as many
grants as there are free slots come back, in one round trip; it never waits to fill a batch. Each grant runs in a
task of its own: async handlers in it, plain functions in a thread.

A job is settled when its code has *really* ended. A time-out or a cancellation asks the code to stop (async code is
canceled, a thread sees ``ctx.canceled``); until it does, slot, lease and place are kept, and after a while it is
reported as overdue. So no two conflicting jobs' code ever runs at once in workers that live.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import random
import secrets
import socket
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

from queuehint.backends.base import Interest
from queuehint.checks import LEASE_MAX_MS, LEASE_MIN_MS, check_duration, check_int, check_items, check_name
from queuehint.context import CURRENT, Discard, Fail, JobContext, Retry, Snooze
from queuehint.core.retry import delay_ms
from queuehint.errors import BackendError, InvalidJobError, shown
from queuehint.operations import GRANTS_MAX, POOLS_MAX, SETTLEMENTS_MAX, Exchange, Log, Renew, Report, Verdict
from queuehint.records import ERROR_TEXT_MAX, Grant, JobError, Outcome, OutcomeKind, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta

    from queuehint.backends.base import Backend
    from queuehint.handler import Handler
    from queuehint.payload import Codec

logger = logging.getLogger("queuehint.worker")

WAIT_CEILING_S = 5.0
ABANDON_AFTER_S = 60.0
BACKEND_PAUSE_S = 1.0
GRACE_S = 30.0
MESSAGES_AT_ONCE = 100
"""How many messages go out before others on the loop have their turn: a call to memory never suspends."""

_REDACTED_MAX = 16 * ERROR_TEXT_MAX
"""How much of a text `redact` sees: more than is kept, so that nothing it looks for is cut in two."""
_GIVE_BACK = frozenset({"canceled", "shutdown", "lease lost"})
_PLAIN_RESULTS = frozenset({type(None), bool, int, float, str, list, dict})


class _Slot:
    """One running job: why it was asked to stop, if it was, and whether its task may be canceled now."""

    __slots__ = ("context", "grant", "stoppable", "task", "timer", "why_stop")

    def __init__(self, grant: Grant, context: JobContext) -> None:
        self.grant = grant
        self.context = context
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.why_stop: str | None = None
        self.stoppable = False


class Worker:
    """
    One worker.

    Args:
        scheduler: what contexts hand out; the worker itself asks nothing of it.
        backend: where to claim and settle.
        handlers: by task name; looked up at each grant, so it may grow.
        codec: how arguments and results travel.
        before, after: hooks, called with the context, and with the context and the outcome.
        redact: applied to error messages and tracebacks before they are stored.
        concurrency: slots, 1–1 000.
        pools: which pools to serve, at most 64, taken in rotation.
        lease: of each grant; renewed after a third of it.
        grace: how long running jobs may go on once the worker stops; then async handlers are canceled and given back.
    """

    def __init__(
        self,
        *,
        scheduler: Any,
        backend: Backend,
        handlers: Mapping[str, Handler],
        codec: Codec,
        before: Iterable[Callable[..., Any]] = (),
        after: Iterable[Callable[..., Any]] = (),
        redact: Callable[[str], str] | None = None,
        concurrency: int = 16,
        pools: Iterable[str] = ("default",),
        lease: float | timedelta = 30,
        grace: float | timedelta = GRACE_S,
    ) -> None:
        self.scheduler = scheduler
        self._backend = backend
        self._handlers = handlers
        self._codec = codec
        self._before = before
        self._after = after
        self._redact = redact or (lambda text: text)
        self._concurrency = check_int(concurrency, parameter="concurrency", least=1, most=GRANTS_MAX)
        self._pools = _check_pools(pools)
        self._lease_ms = check_duration(lease, parameter="lease", least_ms=LEASE_MIN_MS, most_ms=LEASE_MAX_MS)
        self._grace_s = check_duration(grace, parameter="grace") / 1000
        # Random for each incarnation: a restarted worker must never be taken for the one that died.
        self.name = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(6)}"
        self._slots: dict[str, _Slot] = {}
        self._outcomes: deque[Outcome] = deque()
        self._messages: deque[Report | Log] = deque()
        self._executor: ThreadPoolExecutor | None = None
        self._listening: asyncio.Task[None] | None = None
        self._listens_to: tuple[str, ...] = ()
        self._grace: asyncio.TimerHandle | None = None
        self._grace_begun_s = 0.0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        self.started = asyncio.Event()
        """Set once the backend has answered for the first time."""

    # --- the main task -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """
        Work until `stop` is called; returns when every job has ended or has been given back.

        Canceled, it stops at once and is over when the code of its jobs has ended, for until then they keep their
        places.
        """
        self._loop = asyncio.get_running_loop()
        forget = self._backend.adopt(self._leases)
        renewing = None if self._backend.is_local else self._loop.create_task(self._renew_for_ever())
        canceled: asyncio.CancelledError | None = None
        try:
            while True:
                try:
                    if await self._turn():
                        break
                except asyncio.CancelledError as error:
                    canceled = error
                    self.stop(at_once=True)
        finally:
            forget()
            for task in (renewing, self._listening):
                if task is not None:
                    task.cancel()
            if self._grace is not None:
                self._grace.cancel()
            if self._executor is not None:
                self._executor.shutdown(wait=False)
        if canceled is not None:
            raise canceled

    async def _turn(self) -> bool:
        """Exchange and, unless there is more to send, wait for something to do; say whether the work is over."""
        # One turn of the loop: jobs that are about to end are settled in this exchange, and nobody is starved.
        await asyncio.sleep(0)
        self._event.clear()
        if self._stopping:
            self._begin_grace()
        full = await self._exchange()
        if self._outcomes or self._messages:
            return False
        if self._stopping and not self._slots:
            return True
        self._listen(() if full or self._stopping else self._pools)
        await self._event.wait()
        return False

    def _begin_grace(self) -> None:
        """Have what still runs given back when the grace time is over, or now if a second stop says at once."""
        assert self._loop is not None
        if self._grace is not None:
            if self._grace_begun_s == self._grace_s:
                return
            self._grace.cancel()
        self._grace_begun_s = self._grace_s
        self._grace = self._loop.call_later(self._grace_s, self._release_all)

    def stop(self, *, at_once: bool = False) -> None:
        """Claim nothing more; jobs may end within the grace time (*at_once*: there is none), the rest is given back."""
        self._stopping = True
        if at_once:
            self._grace_s = 0
        self._event.set()

    async def _exchange(self) -> bool:
        """Send what is at hand and take what fits; return whether it makes no sense to listen for more."""
        settle = tuple(islice(self._outcomes, SETTLEMENTS_MAX))
        # All that the jobs to be settled have said is here by now; what others say meanwhile goes with the next.
        for sent in range(1, len(self._messages) + 1):
            if await self._call(self._messages[0]) is None:
                return await self._rest()
            self._messages.popleft()
            if sent % MESSAGES_AT_ONCE == 0:
                await asyncio.sleep(0)
        limit = 0 if self._stopping else self._concurrency - len(self._slots)
        reply = await self._call(Exchange(self.name, settle, self._pools, limit, self._lease_ms))
        if reply is None:
            return await self._rest()
        for _ in settle:
            self._outcomes.popleft()
        self.started.set()
        for outcome, verdict in zip(settle, reply.verdicts, strict=True):
            if verdict is Verdict.LOST:
                logger.warning("lease lost", extra={"event": "job.lease_lost", "job_id": outcome.job_id})
        for grant in reply.grants:
            self._begin(grant)
        for job_id in reply.canceled:
            self._ask_to_stop(job_id, "canceled")
        if reply.more:
            self._event.set()
        return len(reply.grants) == limit

    async def _rest(self) -> bool:
        """Leave a backend that cannot be reached alone for a moment."""
        await asyncio.sleep(BACKEND_PAUSE_S)
        self._event.set()
        return True

    async def _call(self, operation: Any) -> Any:
        """Do one operation; None if the backend cannot be reached now."""
        try:
            return await self._backend.call(operation)
        except BackendError as error:
            if self._stopping and not self._slots:
                raise
            logger.warning("backend unavailable", extra={"event": "worker.backend", "error": str(error)})
            return None

    def _listen(self, pools: tuple[str, ...]) -> None:
        """
        Have the event set once a job of this worker is to stop, or there may be work in *pools*.

        Args:
            pools: none while the worker takes no more; who listens to them already goes on with it.
        """
        if self._listening is not None and not self._listening.done():
            if self._listens_to or not pools:
                return
            self._listening.cancel()
        assert self._loop is not None
        self._listens_to = pools
        self._listening = self._loop.create_task(self._hear(Interest(pools=pools, worker=self.name)))

    async def _hear(self, interest: Interest) -> None:
        try:
            await self._backend.wait(interest, WAIT_CEILING_S)
        except BackendError:
            await asyncio.sleep(BACKEND_PAUSE_S)
        self._event.set()

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            leases = self._leases()
            reply = await self._call(Renew(leases, self._lease_ms)) if leases else None
            if reply is None:
                continue
            for (job_id, token), verdict in zip(leases, reply.verdicts, strict=True):
                slot = self._slots.get(job_id)
                if slot is not None and slot.grant.token == token and verdict is not Verdict.DONE:
                    self._ask_to_stop(job_id, "canceled" if verdict is Verdict.CANCELED else "lease lost")

    def _leases(self) -> tuple[tuple[str, int], ...]:
        """Return what runs, and what has ended and is still to be settled: nobody may reap that either."""
        running = [(job_id, slot.grant.token) for job_id, slot in list(self._slots.items())]
        return tuple(running + [(outcome.job_id, outcome.token) for outcome in list(self._outcomes)])

    # --- one job -------------------------------------------------------------------------------------------------

    def _begin(self, grant: Grant) -> None:
        assert self._loop is not None
        slot = _Slot(grant, JobContext(grant, self))
        self._slots[grant.spec.id] = slot
        run = self._run(slot)
        # Without a factory of the application's, `create_task` does nothing more than this.
        slot.task = self._loop.create_task(run) if self._loop.get_task_factory() else asyncio.Task(run, loop=self._loop)

    async def _run(self, slot: _Slot) -> None:
        """Run one job to its end and leave its outcome to the main task."""
        try:
            outcome = await self._attempt(slot)
        except BaseException as error:  # noqa: BLE001 - whatever goes wrong around a handler, its slot is freed
            described = JobError(type=self._text(_qualified_name(error)), message=self._text(_safe_str(error)))
            wait_ms = delay_ms(slot.grant.spec.policy.backoff, slot.grant.attempt, random.random())
            outcome = self._outcome(slot, OutcomeKind.FAILED, error=described, delay_ms=wait_ms)
        slot.stoppable = False
        for hook in self._after:
            try:
                answer = hook(slot.context, outcome)
                if inspect.isawaitable(answer):
                    await answer
            except BaseException:  # as with handlers: the worker goes on
                logger.exception("after_job hook failed", extra={"event": "hook.failed", "job_id": outcome.job_id})
        if slot.timer is not None:
            slot.timer.cancel()
        slot.context.is_over = True
        self._outcomes.append(outcome)
        del self._slots[outcome.job_id]
        self._event.set()

    async def _attempt(self, slot: _Slot) -> Outcome:
        spec = slot.grant.spec
        handler = self._handlers.get(spec.task)
        if handler is None:
            logger.error("unknown task", extra={"event": "job.unknown_task", "job_id": spec.id, "task": spec.task})
            return self._outcome(slot, OutcomeKind.UNKNOWN_TASK)
        if slot.why_stop is not None:
            return self._outcome(slot, OutcomeKind.RELEASED)
        CURRENT.set(slot.context)
        slot.stoppable = handler.is_async
        try:
            args, kwargs = handler.loads(self._codec, spec.arguments)
        except Exception as error:  # noqa: BLE001 - arguments that cannot be read now cannot be read later
            return self._failure(slot, error, final=True)
        try:
            for hook in self._before:
                answer = hook(slot.context)
                if inspect.isawaitable(answer):
                    await answer
            if slot.context.canceled:  # while a hook ran
                return self._outcome(slot, OutcomeKind.RELEASED)
            if handler.wants_context:
                args = (slot.context, *args)
            timeout_ms = spec.policy.timeout_ms
            if timeout_ms is not None:
                assert self._loop is not None
                slot.timer = self._loop.call_later(timeout_ms / 1000, self._ask_to_stop, spec.id, "timeout")
            if handler.is_async:
                result = await handler.function(*args, **kwargs)
            else:
                result = await self._in_thread(handler.function, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises, the worker goes on
            return self._failure(slot, error)
        return self._answer(slot, handler, result)

    async def _in_thread(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a plain function in a thread, and do not come back before it has ended."""
        assert self._loop is not None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._concurrency, thread_name_prefix="queuehint")
        context = contextvars.copy_context()

        def call() -> tuple[Any, BaseException | None]:
            try:
                return context.run(function, *args, **kwargs), None
            except BaseException as error:  # noqa: BLE001 - handed over as a value: futures refuse some of them
                return None, error

        future = self._loop.run_in_executor(self._executor, call)
        while True:
            try:
                result, error = await asyncio.shield(future)
                break
            except asyncio.CancelledError:
                # The thread cannot be stopped, and its place must not be freed under it.
                if self._loop.is_closed():  # pragma: no cover - the loop died with the thread still running
                    raise
        if error is not None:
            raise error
        return result

    def _answer(self, slot: _Slot, handler: Handler, result: Any) -> Outcome:
        """Turn what a handler returned into an outcome."""
        if slot.why_stop == "timeout":
            return self._failure(slot, TimeoutError(f"ended after its timeout, with {shown(result)}"))
        if type(result) not in _PLAIN_RESULTS and (outcome := self._special(slot, handler, result)) is not None:
            return outcome
        try:
            payload = handler.dump_result(self._codec, result)
        except Exception as error:  # noqa: BLE001 - a codec of the application's may raise anything
            return self._failure(slot, error, final=True)
        return self._outcome(slot, OutcomeKind.FINISHED, result=payload)

    def _special(self, slot: _Slot, handler: Handler, result: Any) -> Outcome | None:
        """Turn an answer, or what is no result at all, into an outcome; None for a result."""
        if isinstance(result, Retry):
            return self._failure(slot, None, kind="retry", message=result.reason, after_ms=result.after_ms)
        if isinstance(result, Snooze):
            return self._outcome(slot, OutcomeKind.SNOOZED, delay_ms=result.delay_ms)
        if isinstance(result, Fail):
            return self._failure(slot, None, kind="fail", message=result.reason, final=True)
        if isinstance(result, Discard):
            return self._outcome(slot, OutcomeKind.DISCARDED, reason=self._text(result.reason))
        if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            close = getattr(result, "close", None)
            if close is not None:
                close()
            message = f"{handler.name} returned a {type(result).__name__}, not a result; is an `await` missing?"
            return self._failure(slot, TypeError(message), final=True)
        return None

    def _failure(
        self,
        slot: _Slot,
        error: BaseException | None,
        *,
        kind: str = "",
        message: str = "",
        after_ms: int | None = None,
        final: bool = False,
    ) -> Outcome:
        """Turn what a handler raised, or a failure it returned, into an outcome."""
        spec, attempt = slot.grant.spec, slot.grant.attempt
        text = None
        if error is not None:
            if slot.why_stop in _GIVE_BACK and isinstance(error, (Exception, asyncio.CancelledError)):
                # It was asked to stop and stopped, by whatever it raised; that is no failed attempt.
                return self._outcome(slot, OutcomeKind.RELEASED)
            timed_out = slot.why_stop == "timeout"
            kind = "timeout" if timed_out else _qualified_name(error)
            message = "the handler ran longer than its timeout" if timed_out else _safe_str(error)
            text = self._text(_traceback(error))
        described = JobError(type=self._text(kind), message=self._text(message), traceback=text)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            return self._outcome(slot, OutcomeKind.LOST, error=described)
        if final or attempt >= spec.policy.max_attempts:
            logger.error(
                "job failed", extra={"event": "job.failed", "job_id": spec.id, "task": spec.task, "error": kind}
            )
        else:
            logger.warning(
                "job retries", extra={"event": "job.retry", "job_id": spec.id, "task": spec.task, "error": kind}
            )
        if after_ms is None:
            after_ms = delay_ms(spec.policy.backoff, attempt, random.random())
        return self._outcome(slot, OutcomeKind.FAILED, error=described, delay_ms=after_ms, final=final)

    @staticmethod
    def _outcome(slot: _Slot, kind: OutcomeKind, **facts: Any) -> Outcome:
        return Outcome(job_id=slot.grant.spec.id, token=slot.grant.token, kind=kind, **facts)

    def _text(self, text: str) -> str:
        try:
            text = self._redact(str(text)).encode("utf-8", "backslashreplace").decode("utf-8")
        except Exception:
            logger.exception("redact failed", extra={"event": "redact.failed"})
            return "<withheld: redact failed>"
        return text if len(text) <= ERROR_TEXT_MAX else text[: ERROR_TEXT_MAX - 1] + "…"

    # --- stopping a job ------------------------------------------------------------------------------------------

    def _ask_to_stop(self, job_id: str, why: str) -> None:
        """Ask a job's code to stop, and report it if it does not for long."""
        slot = self._slots.get(job_id)
        if slot is None or slot.task is None or slot.why_stop is not None:
            return
        slot.why_stop = why
        slot.context.ask_to_stop()
        if slot.stoppable:
            slot.task.cancel()
        assert self._loop is not None
        if slot.timer is not None:
            slot.timer.cancel()
        slot.timer = self._loop.call_later(ABANDON_AFTER_S, self._report_overdue, slot)

    @staticmethod
    def _report_overdue(slot: _Slot) -> None:
        spec = slot.grant.spec
        logger.error(
            "job does not stop; its path is kept until its code ends",
            extra={"event": "job.overdue", "job_id": spec.id, "task": spec.task, "why": slot.why_stop},
        )

    def _release_all(self) -> None:
        for job_id in list(self._slots):
            self._ask_to_stop(job_id, "shutdown")

    # --- what contexts ask of their worker -------------------------------------------------------------------------

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Send progress with the next exchange; from any thread."""
        self._messages.append(Report(job_id, token, progress))
        self._wake()

    def log(self, job_id: str, token: int, line: str) -> None:
        """Send a log line with the next exchange; from any thread."""
        self._messages.append(Log(job_id, token, (line,)))
        self._wake()

    def _wake(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._event.set)


def _check_pools(pools: Iterable[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(check_name(pool, parameter="pools") for pool in check_items(pools, parameter="pools")))
    if not names:
        raise InvalidJobError("pools is empty; a worker serves at least one")
    if len(names) > POOLS_MAX:
        raise InvalidJobError(f"pools holds {len(names)} names, limit {POOLS_MAX}")
    return names


def _qualified_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _safe_str(error: BaseException) -> str:
    try:
        return str(error)[:_REDACTED_MAX]
    except BaseException:  # noqa: BLE001 - an exception whose __str__ raises must not hide the failure
        return f"<{type(error).__name__}>"


def _traceback(error: BaseException) -> str:
    """Return the innermost frames: file, line and the line's source, never the values of variables."""
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return "".join(traceback.format_list(frames))[-_REDACTED_MAX:]
