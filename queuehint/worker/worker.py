"""
Claim, run, settle, renew, stop gracefully.

A worker lives on one asyncio loop. Its main task exchanges with the backend: the outcomes at hand go out, as many
grants as there are free slots come back, in one round trip; it never waits to fill a batch. Each grant runs in a
task of its own: async handlers in it, plain functions in a thread.

A job is settled when its code has *really* ended. A time-out or a cancellation asks the code to stop (async code is
canceled, a thread sees ``ctx.canceled``); until it does, slot, lease and place are kept, and after a while it is
reported as overdue. So no two conflicting jobs' code ever runs at once in workers that live. Code that never ends is
given up with its process only: a worker that has one to itself lets its other jobs end and ends it. A job that is
granted again while its code goes on for a lease that has ended waits for that code, in a slot of its own.

An exchange whose reply did not come is sent again as it was, so that a backend can tell the repetition and answer
what it has answered before.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
import secrets
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from queuehint.backends.base import Interest
from queuehint.core.refusals import check_limits
from queuehint.crash import reach
from queuehint.errors import BackendDeniedError, BackendError, InvalidJobError, shown
from queuehint.handlers.context import JobContext
from queuehint.operations import (
    ANYONE,
    GRANTS_MAX,
    POOLS_MAX,
    SETTLEMENTS_MAX,
    USERS_NAMED_MAX,
    Exchange,
    Exchanged,
    Renew,
    Verdict,
)
from queuehint.values.checks import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    check_callable,
    check_duration,
    check_int,
    check_items,
    check_name,
    check_object,
)
from queuehint.values.records import Grant, Outcome, OutcomeKind
from queuehint.worker.attempts import Attempts
from queuehint.worker.firing import Timekeeper
from queuehint.worker.forks import end_any_child
from queuehint.worker.leases import BEAT_S, BLOCKED_S, Renewal, now_s
from queuehint.worker.outbox import Outbox
from queuehint.worker.outcomes import outcome_of, qualified_name
from queuehint.worker.settlements import Settlements
from queuehint.worker.slots import Slot, Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor
    from datetime import timedelta

    from queuehint.backends.base import Backend
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.handler import Handler
    from queuehint.handlers.partial_result import Interim
    from queuehint.values.records import Progress
    from queuehint.worker.firing import Definition
    from queuehint.worker.leases import Helper

AnyName = TypeVar("AnyName", bound="str | None")

logger = logging.getLogger("queuehint.worker")

WAIT_CEILING_S = 5.0
ABANDON_AFTER_S = 60.0
RELEASE_S = 5.0
"""How long jobs have to end when their worker gives up another one, or is told a second time to stop."""
BACKEND_PAUSE_S = 1.0
GRACE_S = 30.0
LEAVE_S = 1.0
"""How long a worker that stops tries to tell the store."""
FRAMES_MAX = 5
STOOD_STILL_S = 3.0
"""A thread that looks every second and has not for so long did not run: its whole process did not."""


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
        definitions: the schedules that the code defines, stored once the backend has answered.
        concurrency: slots, 1–1 000.
        pools: which pools to serve, at most 64, taken in rotation.
        users: whose jobs to run, at most 64, None among them for jobs without a user; by default everyone's.
        steal: whom to help while *users* have nothing ready, at most 64, none of *users*; `ANYONE` for everyone.
        lease: of each grant; renewed after a third of it.
        grace: how long running jobs may go on once the worker stops; then async handlers are canceled and given back.
        abandon_after: how long code that was asked to stop may go on before it is reported, and given up if
        give_up: ends the process at once; only for a worker that has a process to itself. Called with the ids of the
            jobs whose code has not ended, once all others have been settled.
        helper: renews the leases from another process; without it a thread does.
        executor: what runs plain functions, by default threads of the worker's own; it is not shut down.
        renewal: makes what keeps the leases.
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
        definitions: Callable[[], Iterable[Definition]] = tuple,
        concurrency: int = 16,
        pools: Iterable[str] = ("default",),
        users: Iterable[str | None] | None = None,
        steal: Iterable[str | None] = (),
        lease: float | timedelta = 30,
        grace: float | timedelta = GRACE_S,
        abandon_after: float | timedelta | None = None,
        give_up: Callable[[list[str]], None] | None = None,
        helper: Helper | None = None,
        executor: Executor | None = None,
        renewal: Callable[..., Renewal] = Renewal,
    ) -> None:
        self.scheduler = scheduler
        self._backend = check_object(backend, "call", "wait", parameter="backend", what="a Backend")
        self._codec = codec
        check_callable(renewal, parameter="renewal")
        self._after = after
        self._concurrency = check_int(concurrency, parameter="concurrency", least=1, most=GRANTS_MAX)
        self._pools = _check_pools(pools)
        self._users = None if users is None else _check_users(users, "users")
        self._steal = _check_helped(steal)
        _check_apart(self._users, self._steal)
        self._lease_ms = check_duration(lease, parameter="lease", least_ms=LEASE_MIN_MS, most_ms=LEASE_MAX_MS)
        self._grace_s = check_duration(grace, parameter="grace") / 1000
        abandon_after = ABANDON_AFTER_S if abandon_after is None else abandon_after
        self._abandon_after_s = check_duration(abandon_after, parameter="abandon_after") / 1000
        self._give_up = None if give_up is None else check_callable(give_up, parameter="give_up")
        self._giving_up: asyncio.TimerHandle | None = None
        self._has_given_up = False
        if executor is not None:
            executor = check_object(executor, "submit", parameter="executor", what="an Executor")
        self._attempts = Attempts(
            handlers=handlers,
            codec=codec,
            backend=backend,
            before=before,
            redact=redact,
            threads=self._concurrency,
            executor=executor,
            stop=self._ask_to_stop,
            begin=self._begin_last_life,
        )
        # Random for each incarnation: a restarted worker must never be taken for the one that died.
        self.name = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(6)}"
        wanted = self._ask((), 0)
        check_limits(wanted)
        self._among = wanted.among
        self._slots = Slots()
        self._outcomes = Settlements()
        self._unanswered: tuple[Exchange, float] | None = None
        self._renewal: Renewal | None = None
        if not backend.is_local:
            self._renewal = renewal(
                backend,
                self._lease_ms,
                tell=self._tell,
                more=self._wake,
                look=self._look,
                blocked_ms=self._blocked_ms,
                helper=helper,
            )
        self._now_s = now_s if self._renewal is None else self._renewal.now_s
        self._timekeeper = Timekeeper(backend, definitions, self._now_s)
        self._event = _Turn()
        self._outbox = Outbox(backend, codec, self._event.set_for_notes)
        self._failures = 0
        self._answered_s = 0.0
        self._listening: asyncio.Task[None] | None = None
        self._listens_to: tuple[str, ...] = ()
        self._grace: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._turned_s: float | None = None
        self._looked_s = 0.0
        self._beaten_s = math.inf
        self._thread = 0
        self._is_blocked = False
        self._unbegun: list[Slot] = []
        self._grace_begun_s = 0.0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.gave_up = False
        """True once it has stopped by itself, because of code that was asked to stop and did not."""
        self.started = asyncio.Event()
        """Set once the backend has answered for the first time."""

    # --- the main task -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """
        Work until `stop` is called; returns when every job has ended or has been given back.

        Canceled, it stops at once and is over when the code of its jobs has ended, for until then they keep their
        places.

        Raises:
            BackendDeniedError: the store refuses this worker from the start.
            BackendError: the store cannot be reached while the worker stops, and nothing runs any more.
            RuntimeError: it runs, or has been run: a worker runs once.
        """
        if self._loop is not None:
            raise RuntimeError("this worker has been run already; make another one by Scheduler.make_worker")
        self._loop = asyncio.get_running_loop()
        self._outbox.open()
        forget = self._backend.adopt(self._leases, self._blocked_ms)
        canceled: asyncio.CancelledError | None = None
        if self._renewal is not None:
            self._renewal.start()
        self._thread = threading.get_ident()
        self._beat()
        logger.info(
            "worker started",
            extra={
                "event": "worker.started",
                "worker": self.name,
                "pools": ",".join(self._pools),
                "concurrency": self._concurrency,
            },
        )
        try:
            while True:
                try:
                    if await self._turn():
                        break
                except asyncio.CancelledError as error:
                    canceled = error
                    self.stop(at_once=True)
        except Exception as error:
            if not isinstance(error, BackendError):
                extra = {"event": "worker.died", "worker": self.name, "running": self.running}
                logger.exception("a worker was ended by an error", extra=extra)
            # Nobody renews or settles what runs: others get it before long.
            for slot in self._slots:
                self._ask_to_stop(slot, "lease lost")
            raise
        finally:
            forget()
            if self._renewal is not None:
                self._renewal.end()
            if self._listening is not None:
                self._listening.cancel()
            self._timekeeper.stop()
            self._outbox.stop()
            self._turned_s = None
            for timer in (self._grace, self._giving_up, self._beating):
                if timer is not None:
                    timer.cancel()
            self._attempts.close()
            logger.info("worker ended", extra={"event": "worker.ended", "worker": self.name})
        if canceled is not None:
            raise canceled

    async def _turn(self) -> bool:
        """Exchange and, unless there is more to send, wait for something to do; say whether the work is over."""
        # One turn of the loop: jobs that are about to end are settled in this exchange, and nobody is starved.
        await asyncio.sleep(0)
        is_full = self._event.take() or self._stopping or bool(self._outcomes) or self._unanswered is not None
        if not is_full:
            await self._outbox.send()
            await self._event.wait()
            return False
        if self._stopping:
            self._begin_grace()
        full = await self._exchange()
        if self._has_given_up:
            return True
        if self._outcomes:
            return False
        if self._stopping and not self._slots:
            await self._outbox.close()
            await self._leave()
            return True
        if self._giving_up is not None and all(slot.is_overdue for slot in self._slots):
            self._end_process()
            return True
        self._listen(() if full or self._stopping else self._pools)
        await self._event.wait()
        return False

    async def _leave(self) -> None:
        """Stop listening, and have others woken for what only this worker was told of, if the store can be reached."""
        if self._backend.is_local:
            return
        with contextlib.suppress(BackendError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                if self._listening is not None:
                    self._listening.cancel()
                    await asyncio.wait((self._listening,))
                await self._backend.call(attrs.evolve(self._ask((), 0), is_last=True))

    def _beat(self) -> None:
        """Have it known, every second, that this loop turns."""
        assert self._loop is not None
        self._beating = self._loop.call_later(BEAT_S, self._beat)
        self._turned_s = now = self._now_s()
        blocked_s, self._beaten_s = now - self._beaten_s - BEAT_S, now
        if blocked_s >= BLOCKED_S and not self._is_blocked:
            # Nobody looked from another thread, or no thread ran either.
            logger.warning(
                "code has held up the event loop of a worker; its jobs stood still",
                extra={"event": "worker.blocked", "worker": self.name, "blocked_s": round(blocked_s, 1)},
            )
        if self._renewal is not None:
            self._renewal.beat()

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
        if not self._stopping:
            logger.info("worker stops", extra={"event": "worker.stopping", "worker": self.name})
        self._stopping = True
        if at_once:
            self._grace_s = 0
        self._event.set()

    def abandon(self) -> None:
        """Stop at once, and give up the process `RELEASE_S` later with what has not ended by then."""
        self.stop(at_once=True)
        if self._giving_up is None and self._give_up is not None and self._loop is not None:
            self._giving_up = self._loop.call_later(RELEASE_S, self._end_process)

    def _end_process(self) -> None:
        assert self._give_up is not None
        job_ids = list(dict.fromkeys(slot.grant.spec.id for slot in self._slots))
        logger.error(
            "the process ends with code that does not",
            extra={"event": "worker.gives_up", "worker": self.name, "job_ids": job_ids},
        )
        self._has_given_up = True
        self._event.set()
        self._give_up(job_ids)

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return len(self._slots)

    @property
    def is_stopping(self) -> bool:
        """True once it was told to stop."""
        return self._stopping

    @property
    def notes_dropped(self) -> int:
        """How many log lines, reports of progress and partial results the store has refused, or could not be sent."""
        return self._outbox.dropped

    @property
    def answered_s(self) -> float:
        """When the newest call that the store has answered was sent, by `queuehint.worker.leases.now_s`; 0 before."""
        if self._renewal is not None:
            return max(self._answered_s, self._renewal.answered_s)
        # Nobody but the loop asks a store of this process: while it does not turn, no answer is missing.
        return self._answered_s and self._answered_s + self.blocked_s

    @property
    def blocked_s(self) -> float:
        """For how long code has held up the loop of this worker; 0 while it turns, and while it does not run."""
        turned_s = self._turned_s
        return 0.0 if turned_s is None else max(0.0, self._now_s() - turned_s - BEAT_S)

    def _blocked_ms(self) -> int:
        """Return for how long code has blocked the loop, 0 if not for so long that it is told."""
        blocked_s = self.blocked_s
        # A thread has looked whether it was only that the whole process stood still; no thread looks for a local store.
        is_told = blocked_s >= BLOCKED_S if self._renewal is None else self._is_blocked
        return round(blocked_s * 1000) if is_told else 0

    @property
    def is_stuck(self) -> bool:
        """True once code has held up the loop for as long as code that was asked to stop may go on."""
        return self.blocked_s > max(self._abandon_after_s, BLOCKED_S)

    async def join_helper(self) -> None:
        """Wait until the process that renews has ended, once `run` has returned."""
        if self._renewal is not None:
            await asyncio.to_thread(self._renewal.join, RELEASE_S)

    async def _exchange(self) -> bool:
        """Send what is at hand and take what fits; return whether it makes no sense to listen for more."""
        again = self._unanswered
        settle = self._outcomes.batch() if again is None else again[0].settle
        # All that the jobs to be settled have said goes first; what others say meanwhile goes with the next.
        if self._outbox and not await self._outbox.send([(each.job_id, each.token) for each in settle]):
            settle = ()
        if again is None:
            limit = 0 if self._stopping else self._concurrency - len(self._slots)
            again = self._unanswered = self._ask(settle, limit), self._now_s()
        operation, sent_s = again
        try:
            reply: Exchanged | None = await (
                self._call(operation) if reach is None else self._call_and_crash(operation)
            )
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001 - what a handler has ended with must not end the worker
            self._unanswered = None
            return await self._survive(operation, error)
        if reply is None:
            return await self._rest()
        self._unanswered = None
        self._take_in(operation, reply, sent_s)
        return len(reply.grants) == operation.limit

    def _ask(self, settle: tuple[Outcome, ...], limit: int) -> Exchange:
        pools, lease_ms = self._pools, self._lease_ms
        return Exchange(self.name, settle, pools, limit, lease_ms, self._users, self._steal, announces=True)

    async def _survive(self, operation: Exchange, error: Exception) -> bool:
        """Go on after an exchange that failed with what is no error of the store: an outcome may be to blame."""
        if self._outcomes.halve(len(operation.settle)):
            return True
        nothing, sent_s = self._ask((), 0), self._now_s()
        try:
            reply = await self._call(nothing) if operation.settle else None
        except BackendError:
            raise
        except Exception:  # noqa: BLE001 - then no outcome is to blame
            reply = None
        if reply is None:
            if not self.started.is_set():
                raise error
            logger.error("an exchange failed", extra={"event": "worker.exchange_failed"}, exc_info=error)
            return await self._rest()
        self._take_in(nothing, reply, sent_s)
        outcome = operation.settle[0]
        if not self._outcomes.is_suspect(outcome):
            return True
        extra = {"event": "job.not_settled", "job_id": outcome.job_id, "error": qualified_name(error)}
        logger.error("how a job ended cannot be stored; it is FAILED", extra=extra)
        given_up = self._outcomes.replace(self._attempts.outcomes.of_refusal(outcome, error))
        if given_up is not None and self._renewal is not None:
            # Not even that: its lease ends.
            self._renewal.exchange((given_up,), (), sent_s)
        return True

    def _take_in(self, operation: Exchange, reply: Exchanged, sent_s: float) -> None:
        self._answered_s = self._now_s()
        if self._renewal is not None:
            self._renewal.exchange(operation.settle, reply.grants, sent_s)
        if self._failures:
            logger.info("the store answers again", extra={"event": "worker.reconnected", "worker": self.name})
            self._failures = 0
        self.started.set()
        if not self._stopping:
            self._timekeeper.see(due=reply.due)
        if self._outbox:
            if self._outbox.see_answer():
                self._event.set()
            ends = zip(operation.settle, reply.verdicts, strict=True)
            self._outbox.forget({(outcome.job_id, outcome.token): verdict for outcome, verdict in ends})
        self._outcomes.settled(len(operation.settle))
        for outcome, verdict in zip(operation.settle, reply.verdicts, strict=True):
            if verdict is Verdict.LOST:
                logger.warning("lease lost", extra={"event": "job.lease_lost", "job_id": outcome.job_id})
        if logger.isEnabledFor(logging.DEBUG):
            self._trace(zip(operation.settle, reply.verdicts, strict=True), reply.grants)
        if self._stopping or (self._renewal is not None and self._renewal.is_short(sent_s)):
            # Claimed before the worker was told to stop, or long ago by an exchange whose reply did not come.
            self._outcomes.add(outcome_of(grant, OutcomeKind.RELEASED) for grant in reply.grants)
        else:
            for grant in reply.grants:
                self._begin(grant)
        for job in reply.unreadable:
            extra = {"event": "job.unreadable", "job_id": job.job_id, "problem": job.problem, "is_newer": job.is_newer}
            logger.error("a job cannot be read by this release", extra=extra)
            self._outcomes.add((self._attempts.outcomes.of_unreadable(job),))
        for job_id in reply.canceled:
            self._find_and_stop(job_id, None, "canceled")
        if reply.more:
            self._event.set()

    def _trace(self, settled: Iterable[tuple[Outcome, Verdict]], granted: Iterable[Grant]) -> None:
        """Log what `queuehint check-trace` needs to know."""
        for outcome, verdict in settled:
            if verdict is not Verdict.LOST:
                what = {"event": "job.settled", "job_id": outcome.job_id, "outcome": str(outcome.kind)}
                logger.debug("job settled", extra={**what, "token": outcome.token, "worker": self.name})
        for grant in granted:
            spec = grant.spec
            claims = [{"path": list(claim.path), "mode": claim.mode} for claim in spec.claims]
            begun = {"event": "job.started", "job_id": spec.id, "task": spec.task, "attempt": grant.attempt}
            logger.debug("job started", extra={**begun, "token": grant.token, "worker": self.name, "claims": claims})

    async def _call_and_crash(self, operation: Exchange) -> Exchanged | None:
        """Exchange, and pass the points at which tests let this process die."""
        assert reach is not None
        if operation.settle:
            reach("settle.before")
        calling = asyncio.ensure_future(self._call(operation))
        if operation.limit:
            await asyncio.sleep(0.01)
            reach("claim.sent")
        reply: Exchanged | None = await calling
        if operation.settle:
            reach("settle.after")
        if reply is not None and reply.grants:
            reach("claim.after_reply")
        return reply

    async def _rest(self) -> bool:
        """Leave a backend that cannot be reached alone, for longer each time."""
        await asyncio.sleep(min(BACKEND_PAUSE_S * 2 ** min(self._failures, 10), WAIT_CEILING_S))
        self._failures += 1
        self._event.set()
        return True

    async def _call(self, operation: Any) -> Any:
        """Do one operation; None if the backend cannot be reached now."""
        try:
            return await self._backend.call(operation)
        except BackendError as error:
            if self._stopping and not self._slots:
                raise
            if isinstance(error, BackendDeniedError) and not self.started.is_set():
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
        self._listening = self._loop.create_task(self._hear(Interest(pools=pools, users=self._among, worker=self.name)))

    async def _hear(self, interest: Interest) -> None:
        try:
            await self._backend.wait(interest, WAIT_CEILING_S)
        except BackendError:
            await asyncio.sleep(BACKEND_PAUSE_S)
        except Exception:
            # Without this task the worker would be there and do nothing: it looks by itself every while.
            logger.exception("listening for work failed", extra={"event": "worker.listening_failed"})
            await asyncio.sleep(BACKEND_PAUSE_S)
        self._event.set()

    def _leases(self) -> tuple[tuple[str, int], ...]:
        """Return what runs, and what has ended and is still to be settled: nobody may reap that either."""
        running = [(slot.grant.spec.id, slot.grant.token) for slot in self._slots]
        return tuple(running + [(outcome.job_id, outcome.token) for outcome in self._outcomes])

    # --- one job -------------------------------------------------------------------------------------------------

    def _begin(self, grant: Grant) -> None:
        assert self._loop is not None
        slot = Slot(grant, JobContext(grant, self))
        self._slots.enter(slot)
        if slot.former is not None:
            self._hold_back(slot, slot.former)
        run = self._run(slot)
        # Without a factory of the application's, `create_task` does nothing more than this.
        slot.task = self._loop.create_task(run) if self._loop.get_task_factory() else asyncio.Task(run, loop=self._loop)

    def _hold_back(self, slot: Slot, former: Slot) -> None:
        """Have a job that was granted again wait for its code, which goes on although that lease has ended."""
        spec = slot.grant.spec
        logger.warning(
            "a job was granted again while its code runs still for a lease that has ended; it waits for that",
            extra={"event": "job.waits_for_its_code", "job_id": spec.id, "task": spec.task},
        )
        self._ask_to_stop(former, "lease lost")

    async def _begin_last_life(self, grant: Grant) -> bool:
        """Say to the store, and then to the helper, that the code of a job begins; False if it must not."""
        job_id, token = grant.spec.id, grant.token
        reply = await self._call(Renew(((job_id, token),), self._lease_ms, begun=True))
        if reply is None or reply.verdicts[0] is not Verdict.DONE:
            return False
        logger.warning(
            "a job that has lost workers is on its last life",
            extra={"event": "job.last_life", "job_id": job_id, "losses": grant.losses},
        )
        if self._renewal is not None:
            self._renewal.begin(grant)
        return True

    async def _run(self, slot: Slot) -> None:
        """Run one job to its end and leave its outcome to the main task."""
        try:
            if slot.former is not None:
                await _end_of(slot.former)
            outcome = await self._attempts.run(slot)
        except BaseException as error:  # noqa: BLE001 - whatever goes wrong around a handler, its slot is freed
            outcome = self._attempts.outcomes.of_accident(slot.grant, error)
        slot.stoppable = False
        for hook in self._after:
            pid = os.getpid()
            try:
                answer = hook(slot.context, outcome)
                if inspect.isawaitable(answer):
                    await answer
                end_any_child(pid)
            except BaseException as error:  # noqa: BLE001 - as with handlers: the worker goes on
                end_any_child(pid, error)
                what = {"event": "hook.failed", "job_id": outcome.job_id}
                self._attempts.outcomes.log_failed_hook("after_job hook failed", error, **what)
        if slot.timer is not None:
            slot.timer.cancel()
        slot.context.is_over = True
        if not slot.is_given_back:
            self._outcomes.add((outcome,))
        self._slots.leave(slot)
        self._event.set()

    # --- stopping a job ------------------------------------------------------------------------------------------

    def _ask_to_stop(self, slot: Slot, why: str) -> None:
        """Ask a job's code to stop, and report it if it does not for long."""
        if slot.why_stop is not None:
            return
        slot.why_stop = why
        slot.context.ask_to_stop()
        if slot.stoppable and slot.task is not None:
            slot.task.cancel()
        assert self._loop is not None
        if slot.timer is not None:
            slot.timer.cancel()
        slot.timer = self._loop.call_later(self._abandon_after_s, self._report_overdue, slot)

    def _find_and_stop(self, job_id: str, token: int | None, why: str) -> None:
        """Ask the code of a grant to stop, of the newest one without a token, unless it has ended."""
        slot = self._slots.find(job_id, token)
        if slot is not None:
            self._ask_to_stop(slot, why)

    def _tell(self, job_id: str, token: int, why: str) -> None:
        """Have a job's code asked to stop, from any thread; a plain function hears of it although the loop is busy."""
        slot = self._slots.find(job_id, token)
        if slot is None or self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed over this worker
            # The reason first: code that sees `canceled` and raises must not be taken for failed.
            self._loop.call_soon_threadsafe(self._find_and_stop, job_id, token, why)
        slot.context.ask_to_stop()

    def _report_overdue(self, slot: Slot) -> None:
        spec = slot.grant.spec
        logger.error(
            "job does not stop; its path is kept until its code ends",
            extra={"event": "job.overdue", "job_id": spec.id, "task": spec.task, "why": slot.why_stop},
        )
        slot.is_overdue = True
        if self._give_up is not None:
            self.gave_up = self.gave_up or not self._stopping
            self.abandon()

    def _release_all(self) -> None:
        for slot in self._slots:
            self._ask_to_stop(slot, "shutdown")

    # --- a loop that is held up, seen from another thread -----------------------------------------------------------

    def _look(self) -> None:
        """Tell of code that holds up the loop, and give back what it keeps from beginning."""
        now, looked_s = self._now_s(), self._looked_s
        self._looked_s = now
        if looked_s and now - looked_s > STOOD_STILL_S and self._turned_s is not None:
            self._turned_s = now
        blocked_s = self.blocked_s
        if blocked_s < BLOCKED_S:
            if self._is_blocked:
                logger.info("the loop turns again", extra={"event": "worker.unblocked", "worker": self.name})
            self._is_blocked = False
            self._unbegun.clear()
            return
        if not self._is_blocked:
            self._is_blocked = True
            extra = {"event": "worker.blocked", "worker": self.name, "blocked_s": round(blocked_s, 1)}
            where = _frames_of(self._thread)
            logger.warning(
                "code holds up the event loop of a worker; its other jobs stand still", extra={**extra, "where": where}
            )
        self._give_back_unbegun()

    def _give_back_unbegun(self) -> None:
        """Give back the jobs whose code has not begun; what fails is tried again at the next look."""
        self._unbegun += [slot for slot in self._slots if slot.begin()]
        while self._unbegun:
            slots = self._unbegun[:SETTLEMENTS_MAX]
            outcomes = tuple([outcome_of(slot.grant, OutcomeKind.RELEASED) for slot in slots])
            try:
                # By another name: what this worker is to be told stays for it.
                self._backend.call_sync(Exchange(f"{self.name}-unbegun", outcomes, pools=()))
            except BackendError as error:
                logger.warning("backend unavailable", extra={"event": "worker.backend", "error": str(error)})
                return
            for slot in slots:
                slot.is_given_back = True
            if self._renewal is not None:
                self._renewal.exchange(outcomes, (), self._now_s())
            del self._unbegun[: len(slots)]
            logger.warning(
                "jobs whose code could not begin are given back",
                extra={"event": "worker.gives_back", "worker": self.name, "jobs": len(slots)},
            )

    # --- what contexts ask of their worker -------------------------------------------------------------------------

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Send progress soon, and before the job is settled; from any thread."""
        self._outbox.report(job_id, token, progress)

    def log(self, job_id: str, token: int, line: str) -> None:
        """Send a log line soon, and before the job is settled; from any thread."""
        self._outbox.log(job_id, token, line)

    def store(self, interim: Interim) -> None:
        """Send an interim result soon, and before the job is settled; from any thread."""
        self._outbox.store(interim)

    def _wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed over this worker
                self._loop.call_soon_threadsafe(self._event.set)


def _frames_of(thread: int) -> str:
    """Return where a thread is, the innermost frames first, without a look at the sources."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way to see another thread
    places: list[str] = []
    while frame is not None and len(places) < FRAMES_MAX:
        places.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return ", ".join(places)


class _Turn(asyncio.Event):
    """Wakes the main task: for an exchange, or for no more than notes."""

    def __init__(self) -> None:
        super().__init__()
        self._is_full = True

    def set(self) -> None:
        """Have an exchange made."""
        self._is_full = True
        super().set()

    def set_for_notes(self) -> None:
        """Have notes sent, with an exchange only if one is made anyway."""
        super().set()

    def take(self) -> bool:
        """Begin a turn; return whether an exchange is wanted."""
        self.clear()
        is_full, self._is_full = self._is_full, False
        return is_full


async def _end_of(slot: Slot) -> None:
    """Return when a slot's task has ended, whoever cancels the one that waits: a thread cannot be stopped."""
    assert slot.task is not None
    while not slot.task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((slot.task,))


def _check_users(users: Iterable[str | None], parameter: str) -> tuple[str | None, ...]:
    names = check_items(users, parameter=parameter, most=USERS_NAMED_MAX)
    return _once([None if name is None else check_name(name, parameter=parameter) for name in names], parameter)


def _once(names: Sequence[AnyName], parameter: str) -> tuple[AnyName, ...]:
    """Refuse a list that names somebody twice: whoever wrote it meant another one."""
    seen: set[str | None] = set()
    for name in names:
        if name in seen:
            raise InvalidJobError(f"{parameter} names {shown(name)} twice")
        seen.add(name)
    return tuple(names)


def _check_apart(users: tuple[str | None, ...] | None, steal: tuple[str | None, ...] | Literal["*"]) -> None:
    if users is None or steal == ANYONE:
        return
    for name in steal:
        if name in users:
            raise InvalidJobError(f"steal names {shown(name)}, who is one of users: their jobs are run in any case")


def _check_helped(steal: Iterable[str | None]) -> tuple[str | None, ...] | Literal["*"]:
    return ANYONE if isinstance(steal, str) and str.__str__(steal) == ANYONE else _check_users(steal, "steal")


def _check_pools(pools: Iterable[str]) -> tuple[str, ...]:
    names = check_items(pools, parameter="pools", most=POOLS_MAX)
    if not names:
        raise InvalidJobError("pools is empty; a worker serves at least one")
    return _once([check_name(pool, parameter="pools") for pool in names], "pools")
