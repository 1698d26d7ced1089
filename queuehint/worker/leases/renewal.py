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
from typing import TYPE_CHECKING, Protocol

from queuehint.clock import now_s
from queuehint.errors import BackendError
from queuehint.operations import LEASES_AT_ONCE, Renew, Renewed, Verdict
from queuehint.schema.checks import check_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queuehint.backends.base import Backend
    from queuehint.values.outcome import Grant, Outcome
    from queuehint.worker.leases.begin_marks import BeginMarks

logger = logging.getLogger("queuehint.worker")

MARGIN_MIN_S = 0.5
BEAT_S = 1.0
"""How often a worker's loop says that it turns."""
BLOCKED_S = 5.0
"""How long code may block the loop before a report, and before jobs that have not begun are given back."""
TICK_MAX_S = 1.0
PAUSE_MAX_S = 5.0
RESTART_PAUSE_MAX_S = 30.0
SILENCE_MAX_S = 15.0
"""How much longer than a lease a helper may be silent: a store that does not answer keeps it for a while."""


def margin_s(lease_s: float) -> float:
    """
    Return how long before a lease ends its code is asked to stop: a tenth, at least 0.5 s, at most a quarter.

    >>> [margin_s(lease_s) for lease_s in (1, 5, 30)]
    [0.25, 0.5, 3.0]
    """
    return min(max(lease_s / 10, MARGIN_MIN_S), lease_s / 4)


class _Lease:
    """One lease: its known expiry, its timeout, and the line that told the helper of it."""

    __slots__ = ("has_begun", "is_fenced", "line", "overdue_s", "until_s")

    def __init__(self, until_s: float, overdue_s: float | None, line: int, *, has_begun: bool) -> None:
        self.until_s = until_s
        self.overdue_s = overdue_s
        self.line = line
        self.has_begun = has_begun
        self.is_fenced = False

    def told(self, job_id: str, token: int, at_s: float) -> str:
        """Return the line that tells the helper of it, at a time."""
        left = "" if self.overdue_s is None else f" {max(0, round((self.overdue_s - at_s) * 1000))}"
        return f"{'+' if self.has_begun else '~'}{token} {job_id}{left}\n"


class Helper(Protocol):
    """A process that renews leases, over a pipe; see `queuehint.worker.leases.helper`."""

    @property
    def marks(self) -> BeginMarks | None:
        """The marks shared with the worker; None if it gives nothing back."""

    def start(self, lease_s: float) -> None:
        """Start the process; it knows of no leases."""

    def send(self, lines: str) -> None:
        """Send lines to it; never waits."""

    def hear(self, timeout_s: float) -> list[str]:
        """Return its lines, after waiting for them for *timeout_s* at most."""

    def end(self, *, at_once: bool = False) -> None:
        """Stop it, gracefully or at once."""

    @property
    def is_dead(self) -> bool:
        """True when it has ended, or does not take any more."""


def marks_of(helper: Helper | None) -> BeginMarks | None:
    """
    Return what a helper shares with its worker; None without one.

    Raises:
        InvalidJobTypeError: it is no helper.
    """
    if helper is None:
        return None
    check_object(helper, "start", "send", "hear", "end", parameter="helper", what="a Helper")
    return helper.marks


class Renewal:
    """
    Keeps the leases of one worker.

    Args:
        backend: asked from a thread, by `call_sync`.
        lease_ms: what each lease is extended to.
        tell: called from a thread with a job's id, its token and why its code is to stop: ``"canceled"``, or
            ``"lease lost"``.
        more: called from a thread when work is left over in the store.
        returned: called from a thread with a job's id and token when the helper has given it back unbegun.
        look: called from the thread that renews, about every second; it may wait for the store.
        blocked_ms: says for how long code has blocked the worker's loop, 0 if not for so long that it is told. The
            store is told at once when it begins and when it is over, by the helper if there is one.
        helper: renews from another process.
    """

    now_s = staticmethod(now_s)
    """The clock by which leases are held to last; not compared with that of the store."""

    def __init__(
        self,
        backend: Backend,
        lease_ms: int,
        *,
        tell: Callable[[str, int, str], None],
        more: Callable[[], None],
        returned: Callable[[str, int], None] = lambda _job_id, _token: None,
        look: Callable[[], None] | None = None,
        blocked_ms: Callable[[], int] = int,
        helper: Helper | None = None,
    ) -> None:
        self._backend = backend
        self._lease_ms = lease_ms
        self._lease_s = lease_ms / 1000
        self._margin_s = margin_s(self._lease_s)
        self._tick_s = min(TICK_MAX_S, self._lease_s / 12)
        # The age at which the thread renews: the helper has had its turn by then, and there is time to try again.
        self._due_s = self._lease_s / (2 if helper is not None else 3)
        self._tell = tell
        self._more = more
        self._returned = returned
        self._look = look
        self._blocked_ms = blocked_ms
        self._told_blocked = False
        self._helper = helper
        self._held: dict[tuple[str, int], _Lease] = {}
        self._lines = 0
        self._heard_s = self._started_s = 0.0
        self._pause_s = 0.0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []
        self.answered_s = 0.0
        """When the newest renewal that went through was sent; 0 before."""

    def start(self) -> None:
        """Begin to renew and to watch; a helper process is there, if still starting, when this returns."""
        if self._helper is not None:
            self._helper.start(self._lease_s)
            self._heard_s = self._started_s = self.now_s()
        else:
            _say_renewed_by_thread(self._lease_s)
        for target in (self._watch, self._renew):
            thread = threading.Thread(target=target, name=f"queuehint-renewal{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Stop; nothing is renewed any more. Does not wait for the threads: one may be asking a store that is gone."""
        self._done.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the helper process has ended, if there is one."""
        if self._helper is not None and self._threads:
            self._threads[0].join(timeout_s)

    # --- what the worker says ------------------------------------------------------------------------------------

    def exchange(self, settled: Iterable[Outcome], granted: Iterable[Grant], sent_s: float) -> None:
        """
        Drop settled leases and add granted ones, before any code of them runs.

        Args:
            sent_s: when the exchange was sent, for the first time if it was repeated.
        """
        until_s, began_s = sent_s + self._lease_s, self.now_s()
        text = []
        with self._lock:
            held, line = self._held, self._lines
            for outcome in settled:
                held.pop((outcome.job_id, outcome.token), None)
                if self._helper is not None:
                    text.append(f"-{outcome.token} {outcome.job_id}\n")
            for grant in granted:
                job_id, token, timeout_ms = grant.spec.id, grant.token, grant.spec.policy.timeout_ms
                overdue_s = None if timeout_ms is None else began_s + timeout_ms / 1000
                # Not on its last life. `AttemptRunner.run` compares the same: a shared call would cost every job.
                has_begun = grant.losses + 1 < grant.spec.policy.max_losses
                lease = held[job_id, token] = _Lease(until_s, overdue_s, line + len(text) + 1, has_begun=has_begun)
                if self._helper is not None:
                    text.append(lease.told(job_id, token, began_s))
            if self._helper is not None and text:
                self._lines += len(text)
                self._helper.send("".join(text))

    def begin(self, grant: Grant) -> None:
        """Record that the code of a job on its last life runs now: not yet at its grant."""
        job_id, token = grant.spec.id, grant.token
        with self._lock:
            lease = self._held.get((job_id, token))
            if lease is None or self._helper is None:
                return
            lease.has_begun, began_s = True, self.now_s()
            if grant.spec.policy.timeout_ms is not None:
                lease.overdue_s = began_s + grant.spec.policy.timeout_ms / 1000
            self._lines += 1
            self._helper.send(lease.told(job_id, token, began_s))

    def beat(self) -> None:
        """Record a heartbeat of the worker's loop."""
        if self._helper is not None:
            self._helper.send(".\n")

    def is_short(self, sent_s: float) -> bool:
        """Return whether what was granted by an exchange sent then may have to be fenced at once."""
        return self.now_s() >= sent_s + self._lease_s - self._margin_s

    # --- watching ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        helper = self._helper
        try:
            while not self._done.is_set():
                try:
                    if helper is None:
                        self._done.wait(self._tick_s)
                        self._fence(self.now_s())
                    else:
                        self._fence(self._hear(helper))
                except Exception:  # without this thread nothing would be fenced
                    logger.exception("the watch over leases failed", extra={"event": "renewal.watch_failed"})
                    self._done.wait(self._tick_s)
        finally:
            if helper is not None:
                helper.end()

    def _hear(self, helper: Helper) -> float:
        """Process the helper's lines and keep it alive; return when all of them are processed."""
        lines = helper.hear(self._tick_s)
        # Code that holds the GIL may keep this thread at any line for long. So first the time, then all that was said
        # until now: only then it is known which had not been renewed by that time.
        time_s = self.now_s()
        lines += helper.hear(0)
        if lines:
            self._heard_s, self._pause_s = time_s, 0.0
            try:
                self._take(lines)
            except Exception:
                # The rest of the lines is lost: a helper that starts again reports all leases again.
                self._start_anew(helper)
                raise
        if helper.is_dead or time_s - self._heard_s > self._lease_s + SILENCE_MAX_S:
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
            with self._lock:
                helper.start(self._lease_s)
                text, at_s = [], self.now_s()
                for (job_id, token), lease in self._held.items():
                    text.append(lease.told(job_id, token, at_s))
                    lease.line = len(text)
                self._lines = len(text)
                helper.send("".join(text))
        except OSError as error:
            logger.error(  # noqa: TRY400 - the reason is in the text; there is nothing to trace
                "the process that renews leases cannot be started: %s",
                error,
                extra={"event": "renewal.helper_failed", "error": str(error)},
            )
        self._heard_s = self._started_s = self.now_s()

    def _take(self, lines: list[str]) -> None:
        """Process lines of the helper."""
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "renewed":
                sent, _, seen = rest.partition(" ")
                self._extend(float(sent), int(seen))
            elif word in {"canceled", "lost"}:
                token, _, job_id = rest.partition(" ")
                self._judge(job_id, int(token), Verdict(word))
            elif word == "released":
                token, _, job_id = rest.partition(" ")
                self._return(job_id, int(token))
            elif word == "more":
                self._more()
            elif word == "failed":
                logger.warning("leases were not renewed: %s", rest, extra={"event": "renewal.failed", "error": rest})

    def _extend(self, sent_s: float, seen: int) -> None:
        with self._lock:
            self.answered_s = max(self.answered_s, sent_s)
            for lease in self._held.values():
                if lease.line <= seen:
                    lease.until_s = max(lease.until_s, sent_s + self._lease_s)

    def _judge(self, job_id: str, token: int, verdict: Verdict) -> None:
        """Process a verdict other than DONE."""
        if verdict is Verdict.LOST:
            with self._lock:
                lease = self._held.pop((job_id, token), None)
            if lease is None:  # settled meanwhile
                return
        self._tell(job_id, token, "canceled" if verdict is Verdict.CANCELED else "lease lost")

    def _return(self, job_id: str, token: int) -> None:
        """Record that the helper has given back a job whose code has not begun."""
        with self._lock:
            self._held.pop((job_id, token), None)
        logger.warning(
            "job %s, whose code could not begin, was given back by the helper",
            job_id,
            extra={"event": "worker.gives_back", "job_id": job_id, "jobs": 1},
        )
        self._returned(job_id, token)

    def _fence(self, time_s: float) -> None:
        """Ask the code of leases to stop that were about to end then."""
        latest_s = time_s + self._margin_s
        with self._lock:
            short = [lease for lease in self._held.items() if lease[1].until_s <= latest_s and not lease[1].is_fenced]
            for _, lease in short:
                lease.is_fenced = True
        for (job_id, token), lease in short:
            logger.warning(
                "the lease of job %s could not be renewed in time; it is asked to stop",
                job_id,
                extra={"event": "job.fenced", "job_id": job_id, "left_s": round(lease.until_s - time_s, 3)},
            )
            self._tell(job_id, token, "lease lost")

    # --- renewing ------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        retry_s = min(1.0, self._lease_s / 15)
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
            if self._look is not None:
                try:
                    self._look()
                except Exception:  # without this thread nothing would be renewed
                    logger.exception(
                        "the check of a worker's event loop failed", extra={"event": "renewal.look_failed"}
                    )

    def _due(self) -> tuple[tuple[str, int], ...]:
        """Return all leases once one of them is due, or a blocked loop is to be reported; none before."""
        oldest_s = self.now_s() + self._lease_s - self._due_s
        is_news = self._helper is None and bool(self._blocked_ms()) is not self._told_blocked
        with self._lock:
            if is_news or any(lease.until_s <= oldest_s for lease in self._held.values()):
                return tuple(self._held)
        return ()

    def _renew_now(self, leases: tuple[tuple[str, int], ...]) -> None:
        blocked_ms = self._blocked_ms()
        for begin in range(0, len(leases), LEASES_AT_ONCE):
            some, sent_s = leases[begin : begin + LEASES_AT_ONCE], self.now_s()
            reply = self._backend.call_sync(Renew(some, self._lease_ms, blocked_ms=blocked_ms))
            self._take_in(some, reply, sent_s)
        self._told_blocked = bool(blocked_ms)

    def _take_in(self, leases: tuple[tuple[str, int], ...], reply: Renewed, sent_s: float) -> None:
        """Process the reply to a renewal that was sent then."""
        with self._lock:
            self.answered_s = max(self.answered_s, sent_s)
            for key, verdict in zip(leases, reply.verdicts, strict=True):
                lease = self._held.get(key)
                if lease is not None and verdict is not Verdict.LOST:
                    lease.until_s = max(lease.until_s, sent_s + self._lease_s)
        for (job_id, token), verdict in zip(leases, reply.verdicts, strict=True):
            if verdict is not Verdict.DONE:
                self._judge(job_id, token, verdict)
        if reply.more:
            self._more()


@functools.lru_cache(maxsize=64)
def _say_renewed_by_thread(lease_s: float) -> None:
    """Log the limits of a worker without a helper, once in a process for each length of leases."""
    logger.info(
        "leases are renewed by a thread: code that holds the GIL for longer than a lease loses it",
        extra={"event": "worker.renews_by_thread", "lease_s": lease_s},
    )
