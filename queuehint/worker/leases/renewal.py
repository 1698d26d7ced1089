"""
Lease renewal: the leases of one worker, their known expiry, and their renewal.

The worker records its grants and settlements. Two threads do the rest, so that a handler that blocks the worker's loop
loses nothing:

- *watching* never waits for the store. It reads from the helper process, restarts it when it has died, and **fences**:
  a lease that could not be renewed until a margin before its expiry may be granted to another worker, so its code is
  asked to stop. A lease is valid from the moment *before* its grant or renewal was sent; by this machine's monotonic
  clock, because two clocks are never compared.
- *renewing* renews leases that have not been renewed for a third of their length. With a helper process, which renews
  every third of a lease from outside, it has nothing to do; it takes over after half a lease without a renewal.

Without a helper, code that holds the GIL (a C function) stops both threads, and its lease may be lost. `queuehint
worker` has a helper; a worker inside an application has none, and logs so once. While such code runs, the helper also
gives back the jobs beside it whose code has not begun: `BeginMarks` tell which.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING

from queuehint.errors import BackendError
from queuehint.operations import LEASES_AT_ONCE, Renew, Verdict

if TYPE_CHECKING:
    from queuehint.operations import Renewed
    from queuehint.worker.leases.held import Helper
    from queuehint.worker.state import WorkerState

logger = logging.getLogger("queuehint.worker")

TICK_MAX_S = 1.0
PAUSE_MAX_S = 5.0
RESTART_PAUSE_MAX_S = 30.0
SILENCE_MAX_S = 15.0
"""How much longer than a lease a helper may be silent: a store that does not answer keeps it for a while."""


class Renewal:
    """
    Keeps the leases of one worker: sends renewals from a thread, by `call_sync`.

    Code is asked to stop, and the loop looked at about every second, by way of the state. The store is told at once
    when code blocks the loop and when it is over, by the helper if there is one.
    """

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._backend = state.backend
        self._leases = leases = state.leases
        self._tick_s = min(TICK_MAX_S, leases.lease_s / 12)
        # The age at which the thread renews: the helper has had its turn by then, and there is time to try again.
        self._due_s = leases.lease_s / (2 if leases.helper is not None else 3)
        self._told_blocked = False
        self._heard_s = self._started_s = 0.0
        self._pause_s = 0.0
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to renew and to watch. A helper process exists, if still starting, when this returns."""
        if self._leases.helper is not None:
            self._leases.helper.start(self._leases.lease_s)
            self._heard_s = self._started_s = self._leases.now_s()
        else:
            _say_renewed_by_thread(self._leases.lease_s)
        for target in (self._watch, self._renew):
            thread = threading.Thread(target=target, name=f"queuehint-renewal{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Stop all renewals, without waiting for the threads, whose store may be gone."""
        self._done.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the helper process, if there is one."""
        if self._leases.helper is not None and self._threads:
            self._threads[0].join(timeout_s)

    # --- watching ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        helper = self._leases.helper
        try:
            while not self._done.is_set():
                try:
                    if helper is None:
                        self._done.wait(self._tick_s)
                        self._fence(self._leases.now_s())
                    else:
                        self._fence(self._hear(helper))
                except Exception:  # without this thread nothing would be fenced
                    logger.exception("the watch over leases failed", extra={"event": "renewal.watch_failed"})
                    self._done.wait(self._tick_s)
        finally:
            if helper is not None:
                helper.end()

    def _hear(self, helper: Helper) -> float:
        """Process the helper's lines and keep it alive. Return when all lines are processed."""
        lines = helper.hear(self._tick_s)
        # Code that holds the GIL may keep this thread at any line for long. So first the time, then all that was said
        # until now: only then it is known which had not been renewed by that time.
        time_s = self._leases.now_s()
        lines += helper.hear(0)
        if lines:
            self._heard_s, self._pause_s = time_s, 0.0
            try:
                self._take(lines)
            except Exception:
                # The rest of the lines is lost: a helper that starts again reports all leases again.
                self._start_anew(helper)
                raise
        if helper.is_dead or time_s - self._heard_s > self._leases.lease_s + SILENCE_MAX_S:
            if time_s - self._started_s >= self._pause_s:
                self._start_anew(helper)
            else:
                self._done.wait(self._tick_s)
        return time_s

    def _start_anew(self, helper: Helper) -> None:
        logger.warning(
            "the process that renews leases is restarted; a thread renews meanwhile",
            extra={"event": "renewal.restarted"},
        )
        self._pause_s = min(max(1.0, self._pause_s * 2), RESTART_PAUSE_MAX_S)
        try:
            helper.end(at_once=True)
            self._leases.tell_again(helper)
        except OSError as error:
            logger.error(  # noqa: TRY400 - the reason is in the text; there is nothing to trace
                "the process that renews leases cannot be started: %s",
                error,
                extra={"event": "renewal.helper_failed", "error": str(error)},
            )
        self._heard_s = self._started_s = self._leases.now_s()

    def _take(self, lines: list[str]) -> None:
        """Process lines of the helper."""
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "renewed":
                sent, _, seen = rest.partition(" ")
                self._leases.extend(float(sent), int(seen))
            elif word in {"canceled", "lost"}:
                token, _, job_id = rest.partition(" ")
                self._judge(job_id, int(token), Verdict(word))
            elif word == "released":
                token, _, job_id = rest.partition(" ")
                self._return(job_id, int(token))
            elif word == "more":
                self._state.wake_soon()
            elif word == "failed":
                logger.warning("leases were not renewed: %s", rest, extra={"event": "renewal.failed", "error": rest})

    def _judge(self, job_id: str, token: int, verdict: Verdict) -> None:
        """Process a verdict other than DONE."""
        if verdict is Verdict.LOST:
            # With its lease the store has dropped the worker from those that are known.
            self._state.announce_due_s = 0.0
            if self._leases.drop(job_id, token) is None:
                return
        self._state.stopping.tell(job_id, token, "canceled" if verdict is Verdict.CANCELED else "lease lost")

    def _return(self, job_id: str, token: int) -> None:
        """Record that the helper has given back a job whose code has not begun."""
        self._leases.drop(job_id, token)
        logger.warning(
            "job %s, whose code could not begin, was given back by the helper",
            job_id,
            extra={"event": "worker.gives_back", "job_id": job_id, "jobs": 1},
        )
        self._state.slots.note_given_back(job_id, token)

    def _fence(self, time_s: float) -> None:
        """Request the code of expiring leases to stop."""
        for (job_id, token), lease in self._leases.fence(time_s):
            logger.warning(
                "the lease of job %s could not be renewed in time; it is asked to stop",
                job_id,
                extra={"event": "job.fenced", "job_id": job_id, "left_s": round(lease.until_s - time_s, 3)},
            )
            self._state.stopping.tell(job_id, token, "lease lost")

    # --- renewing ------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        retry_s = min(1.0, self._leases.lease_s / 15)
        pause_s = self._tick_s
        while not self._done.wait(pause_s):
            try:
                if leases := self._due():
                    self._renew_now(leases)
                pause_s = self._tick_s
            except Exception as error:
                pause_s = min(max(retry_s, pause_s * 2), PAUSE_MAX_S * retry_s)
                if not self._done.is_set():
                    extra = {"event": "renewal.failed", "error": f"{type(error).__name__}: {error}"}
                    trace = None if isinstance(error, BackendError) else error
                    logger.warning("leases were not renewed: %s", extra["error"], extra=extra, exc_info=trace)
            try:
                self._state.look()
            except Exception:  # without this thread nothing would be renewed
                logger.exception("the check of a worker's event loop failed", extra={"event": "renewal.look_failed"})

    def _due(self) -> tuple[tuple[str, int], ...]:
        """Return all leases once one is due or a blocked loop is to be reported, else none."""
        leases = self._leases
        oldest_s = leases.now_s() + leases.lease_s - self._due_s
        is_news = leases.helper is None and bool(self._state.pulse.blocked_ms()) is not self._told_blocked
        return leases.due(oldest_s, is_news=is_news)

    def _renew_now(self, leases: tuple[tuple[str, int], ...]) -> None:
        blocked_ms = self._state.pulse.blocked_ms()
        for begin in range(0, len(leases), LEASES_AT_ONCE):
            some, sent_s = leases[begin : begin + LEASES_AT_ONCE], self._leases.now_s()
            reply = self._backend.call_sync(Renew(some, self._leases.lease_ms, blocked_ms=blocked_ms))
            self._take_in(some, reply, sent_s)
        self._told_blocked = bool(blocked_ms)

    def _take_in(self, leases: tuple[tuple[str, int], ...], reply: Renewed, sent_s: float) -> None:
        """Process the reply to a renewal that was sent then."""
        answered = zip(leases, reply.verdicts, strict=True)
        self._leases.renewed([key for key, verdict in answered if verdict is not Verdict.LOST], sent_s)
        for (job_id, token), verdict in zip(leases, reply.verdicts, strict=True):
            if verdict is not Verdict.DONE:
                self._judge(job_id, token, verdict)
        if reply.more:
            self._state.wake_soon()


@functools.lru_cache(maxsize=64)
def _say_renewed_by_thread(lease_s: float) -> None:
    """Log the limits of a worker without a helper, once in a process for each length of leases."""
    logger.info(
        "leases are renewed by a thread: code that holds the GIL for longer than a lease loses it",
        extra={"event": "worker.renews_by_thread", "lease_s": lease_s},
    )
