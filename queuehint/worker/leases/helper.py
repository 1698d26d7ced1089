"""
The process that renews a worker's leases from outside, so that code which holds the interpreter keeps its lease.

``python -m queuehint.worker.leases.helper`` is started by a worker process of `queuehint worker`, see
`queuehint.worker.companion`. Both ends of the pipe speak in lines:

====================================  ==============================================================================
the worker says
====================================  ==============================================================================
``{"url": ..., "lease_ms": ..., …}``  once, first: the store
``+token id`` or ``+token id ms``     a lease is held; *ms* is the job's timeout
``~token id`` or ``~token id ms``     the same, but its code has not begun; it has with the ``+`` that follows
``-token id``                         it was settled
``.``                                 the worker's loop turns
``!``                                 the worker ends in order
====================================  ==============================================================================

====================================  ==============================================================================
the helper says
====================================  ==============================================================================
``renewed sent seen``                 all leases of the first *seen* lines were renewed by a request sent at *sent*
``canceled token id``                 renewed, and the code is to stop; said once
``lost token id``                     the lease has been lost to another worker
``released token id``                 given back: its code has not begun, and must not any more
``more``                              work is left over in the store
``failed text``                       the store could not be reached
``idle``                              there is nothing to renew
====================================  ==============================================================================

No line about a lease is dropped, however long the worker does not read, and each comes before the ``renewed`` of the
request that it came of: so what the worker extends then is what was renewed.

It ends when its input ends. If the worker has died, it first reports the leases lost that it held, because the code
that held them has ended, and signs the worker off: where the store cannot be reached, again until the leases are over.
A worker whose loop has not turned for longer than `abandon_after`, while a job of it should have ended as long ago, is
stuck in code that nothing inside its process can stop: the helper kills it. One that is stopped itself for that long
(SIGSTOP, a debugger) works on nothing: its leases are not renewed any more until it goes on, so that others may have
its jobs.

Jobs whose code has not begun while the loop of the worker does not turn are given back, where no thread of the worker
does it because code holds the GIL. Which have begun is told by `BeginMarks`, in memory that both processes share.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from queuehint.backends.base import Backend, BackendOptions, open_backend
from queuehint.clock import now_s
from queuehint.errors import BackendUnavailableError, QueueHintError
from queuehint.operations import JOBS_AT_ONCE, LEASES_AT_ONCE, Announce, Exchange, Operation, Renew, Verdict
from queuehint.values.outcome import JobError, Outcome, OutcomeKind
from queuehint.worker.companion import Companion, heard, is_stopped, settle_in
from queuehint.worker.leases.begin_marks import SEEN_AFTER_S, BeginMarks
from queuehint.worker.leases.presence import host_name
from queuehint.worker.leases.pulse import BEAT_S, BLOCKED_S

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_EVERY_S = 5.0
GIVE_BACK_AFTER_S = BLOCKED_S + 3.0
"""How long a loop has not turned until the helper gives back what has not begun: a thread of the worker comes first."""
ENDS_WITHIN_S = 2.0
"""How long a worker that ends in order may still run once it has said so."""
GONE_WITHIN_S = 30.0
"""How long one whose pipe has ended without that may still be there, on a machine under load."""

_Lease = tuple[str, int]


class RenewerProcess(Companion):
    """
    The worker's end of the pipe. One thread may `send` while another receives.

    Args:
        url, namespace: the store.
        abandon_after_s: how long a worker may be stuck in a job that should have ended.
        leaves_lead: a process of its own leads the store for the worker.
    """

    def __init__(self, url: str, namespace: str, *, abandon_after_s: float, leaves_lead: bool = False) -> None:
        super().__init__(__name__)
        facts = {"abandon_after_s": abandon_after_s, "leaves_lead": leaves_lead}
        self._config: dict[str, Any] = {"url": url, "namespace": namespace, **facts}
        self.marks = BeginMarks()
        self.worker_name: str | None = None
        """The name by which the store knows the worker; None if it is not to be signed off."""

    def start(self, lease_s: float) -> None:
        """
        Start the process.

        Raises:
            OSError: the system has no process for us.
        """
        mine = {"lease_ms": round(lease_s * 1000), "worker": os.getpid(), "marks": self.marks.number}
        self.begin({**self._config, **mine, "name": self.worker_name}, (self.marks.number,))

    def end(self, *, at_once: bool = False) -> None:
        """Stop the process, gracefully or *at_once*. A killed process does not report the worker's death."""
        self.send("!\n")
        super().end(at_once=at_once)


class Renewer:
    """
    The helper's end.

    Args:
        config: the first line.
        say: called with each line to say; must not wait.
    """

    def __init__(self, backend: Backend, config: dict[str, Any], say: Callable[[str], None]) -> None:
        self._backend = backend
        self._lease_ms: int = config["lease_ms"]
        self._lease_s = self._lease_ms / 1000
        self._retry_s = min(1.0, self._lease_s / 15)
        self._abandon_after_s: float = config["abandon_after_s"]
        self._say = say
        self._worker: int = config["worker"]
        # When the code of each lease should have ended; `_gone` are those that were lost, and their code runs still.
        self._held: dict[_Lease, float] = {}
        self._gone: dict[_Lease, float] = {}
        self._name: str | None = config.get("name")
        self._is_dismissed = False
        self._waiting: set[_Lease] = set()
        self._told_canceled: set[_Lease] = set()
        self._marks = BeginMarks(config["marks"]) if "marks" in config else None
        self._taken: dict[_Lease, float] = {}
        """Leases taken from the worker, and when: to be given back."""
        self._seen = 0
        self._turned_s = now_s()
        self._told_blocked = False
        self._stopped_s: float | None = None
        self._lets_go = False
        self._lock = threading.Lock()
        self._leaving = threading.Lock()

    def take(self, lines: list[str]) -> None:
        """Process lines of the worker."""
        with self._lock:
            for line in lines:
                if line == ".":
                    self._turned_s = now_s()
                    continue
                if line == "!":
                    self._is_dismissed = True
                    continue
                self._seen += 1
                token, job_id, *timeout_ms = line[1:].split(" ")
                lease = job_id, int(token)
                if line[0] == "~":
                    self._waiting.add(lease)
                else:
                    self._waiting.discard(lease)
                if line[0] != "-":
                    self._held[lease] = now_s() + int(timeout_ms[0]) / 1000 if timeout_ms else float("inf")
                else:
                    self._held.pop(lease, None)
                    self._gone.pop(lease, None)
                    self._told_canceled.discard(lease)
                    self._taken.pop(lease, None)
                    if self._marks is not None:
                        self._marks.forget(lease[1])

    def renew(self) -> None:
        """Renew all leases, `LEASES_AT_ONCE` in a call, and report the results."""
        with self._lock:
            leases, seen = tuple(self._held), self._seen
        if not leases:
            self._say("idle")
            return
        sent_s, blocked_ms = now_s(), self._blocked_ms()
        for begin in range(0, len(leases), LEASES_AT_ONCE):
            some = leases[begin : begin + LEASES_AT_ONCE]
            reply = self._backend.call_sync(Renew(some, self._lease_ms, blocked_ms=blocked_ms))
            for (job_id, token), verdict in zip(some, reply.verdicts, strict=True):
                if verdict is not Verdict.DONE and self._end_soon((job_id, token), verdict):
                    self._say(f"{verdict} {token} {job_id}")
        self._told_blocked = bool(blocked_ms)
        self._say(f"renewed {sent_s!r} {seen}")
        if reply.more:
            self._say("more")

    def _blocked_ms(self) -> int:
        """Return for how long the worker's loop has not turned, 0 below the reporting threshold."""
        blocked_s = now_s() - self._turned_s - BEAT_S
        return round(blocked_s * 1000) if blocked_s >= BLOCKED_S else 0

    def _end_soon(self, lease: _Lease, verdict: Verdict) -> bool:
        """Record that code is to stop. Return whether the worker has yet to be notified."""
        with self._lock:
            if lease not in self._held:
                return False
            self._held[lease] = min(self._held[lease], now_s())
            if verdict is Verdict.LOST:
                self._gone[lease] = self._held.pop(lease)
                self._told_canceled.discard(lease)
                return True
            is_news = lease not in self._told_canceled
            self._told_canceled.add(lease)
            return is_news

    def renew_for_ever(self) -> None:
        """Renew every third of a lease, sooner after a failure or with news of the loop, while the worker lives."""
        failures = 0
        next_s = now_s() + self._lease_s / 12
        while True:
            time.sleep(max(0.0, min(next_s - now_s(), SEEN_AFTER_S if self._taken else LOOK_EVERY_S)))
            if os.getppid() != self._worker:
                self.leave()
            self._watch()
            self._see_stopped()
            try:
                self.give_back()
            except QueueHintError as error:
                self._say_failed(error)
            is_news = bool(self._blocked_ms()) is not self._told_blocked
            if now_s() < next_s and not (is_news and self._held):
                continue
            if self._lets_go:
                next_s = now_s() + self._lease_s / 3
                continue
            try:
                self.renew()
                failures, pause_s = 0, self._lease_s / 3
            except QueueHintError as error:
                self._say_failed(error)
                failures, pause_s = failures + 1, self._retry_s * min(2**failures, 5)
            next_s = now_s() + pause_s

    def _say_failed(self, error: QueueHintError) -> None:
        self._say(f"failed {type(error).__name__}: {' '.join(str(error).split())[:500]}")

    def give_back(self) -> None:
        """
        Give back jobs whose begin is blocked by the loop. A job is taken at this look and given back at a later look.

        Raises:
            QueueHintError: the store was not told; the next look goes on.
        """
        if self._marks is None:
            return
        at_s, marks = now_s(), self._marks
        with self._lock:
            if at_s - self._turned_s - BEAT_S >= GIVE_BACK_AFTER_S:
                for lease in self._held:
                    if lease not in self._taken and marks.take(lease[1]):
                        self._taken[lease] = at_s
            unbegun = [
                lease
                for lease, taken_s in self._taken.items()
                if at_s >= taken_s + SEEN_AFTER_S and lease in self._held and not marks.has_begun(lease[1])
            ][:JOBS_AT_ONCE]
        if not unbegun:
            return
        outcomes = [Outcome(job_id=job_id, token=token, kind=OutcomeKind.RELEASED) for job_id, token in unbegun]
        self._backend.call_sync(Exchange(f"renewer-{os.getpid()}-unbegun", tuple(outcomes), pools=()))
        with self._lock:
            for lease in unbegun:
                self._held.pop(lease, None)
        for job_id, token in unbegun:
            self._say(f"released {token} {job_id}")
        what = f"{len(unbegun)} jobs whose code has not begun are given back"
        sys.stderr.write(f"queuehint: code holds up worker process {self._worker}: {what}\n")

    def _watch(self) -> None:
        """Kill a worker that is stuck in code beyond the reach of its own process."""
        long_ago_s = now_s() - self._abandon_after_s
        with self._lock:
            if self._turned_s >= long_ago_s:
                return
            ends = {**self._held, **self._gone}
        stuck = [job_id for (job_id, _), end_s in ends.items() if end_s < long_ago_s]
        if stuck:
            what = f"queuehint: worker process {self._worker} is killed, it is stuck in {', '.join(stuck[:10])}\n"
            sys.stderr.write(what)
            os.kill(self._worker, signal.SIGKILL)

    def _see_stopped(self) -> None:
        """Stop renewing for a worker that has long been stopped, by SIGSTOP or a debugger."""
        if not is_stopped(self._worker):
            self._stopped_s, self._lets_go = None, False
            return
        if self._stopped_s is None:
            self._stopped_s = now_s()
        if not self._lets_go and now_s() - self._stopped_s >= self._abandon_after_s:
            self._lets_go = True
            sys.stderr.write(f"queuehint: worker process {self._worker} is stopped, its leases are not renewed\n")

    def leave(self) -> None:
        """Exit. Report the leases of a dead worker as lost, so that its jobs are retried at once."""
        self._leaving.acquire()  # for good: one thread reports, and the other one must not exit meanwhile
        with self._lock:
            outcomes = [self._last_outcome(lease) for lease in self._held]
        with contextlib.suppress(Exception):
            signs_off = self._name is not None and not self._is_dismissed
            if (outcomes or signs_off) and self._is_orphan():
                until_s = now_s() + self._lease_s
                for begin in range(0, len(outcomes), JOBS_AT_ONCE):
                    settle = tuple(outcomes[begin : begin + JOBS_AT_ONCE])
                    self._report(Exchange(f"renewer-{os.getpid()}", settle, pools=()), until_s)
                if self._name is not None:
                    self._report(Announce(self._name, host_name(), self._worker, 1, gone=True), until_s)
        # The other thread may be asking a store that is gone.
        os._exit(0)

    def _report(self, operation: Operation[Any], until_s: float) -> None:
        """Call the store, again and again while it cannot be reached: until the leases are over anyway."""
        while True:
            try:
                self._backend.call_sync(operation)
            except BackendUnavailableError:
                if now_s() >= until_s:
                    raise
                time.sleep(self._retry_s)
            else:
                return

    def _last_outcome(self, lease: _Lease) -> Outcome:
        job_id, token = lease
        if lease in self._waiting:
            return Outcome(job_id=job_id, token=token, kind=OutcomeKind.RELEASED)
        error = JobError(type="worker_lost", message="the worker's process ended")
        return Outcome(job_id=job_id, token=token, kind=OutcomeKind.LOST, error=error)

    def _is_orphan(self) -> bool:
        """Return whether the worker is dead. Its files are closed a moment before."""
        until_s = now_s() + (ENDS_WITHIN_S if self._is_dismissed else GONE_WITHIN_S)
        while os.getppid() == self._worker:
            if now_s() > until_s:
                return False
            time.sleep(0.01)
        return True


class Speaker:
    """
    Writes lines to a pipe in a thread of its own, in order, however long the reader stalls.

    What waits is bounded by the leases: of each there is a line or two, and other news are dropped or replaced.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._lines: deque[str] = deque()
        self._news = threading.Condition()

    def start(self) -> None:
        """Begin to write."""
        threading.Thread(target=self._write, daemon=True, name="queuehint-speaker").start()

    def say(self, line: str) -> None:
        """Queue a line for the writer. Never waits."""
        word = line.partition(" ")[0]
        with self._news:
            last = self._lines[-1].partition(" ")[0] if self._lines else ""
            if word == last == "renewed":
                self._lines.pop()
            elif self._lines and word in {"idle", "more", "failed"}:
                return
            self._lines.append(line)
            self._news.notify()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the worker has ended
            while True:
                with self._news:
                    while not self._lines:
                        self._news.wait()
                    text = self._lines.popleft().encode() + b"\n"
                while text:
                    text = text[os.write(self._pipe, text) :]


def main() -> None:
    """Read the configuration, renew in a thread, read on until the input ends."""
    speaker = Speaker(settle_in())
    speaker.start()
    renewer: Renewer | None = None
    for lines in heard():
        if renewer is None:
            config = json.loads(lines.pop(0))
            options = BackendOptions(namespace=config["namespace"], leaves_lead=config["leaves_lead"])
            backend = open_backend(config["url"], options)
            renewer = Renewer(backend, config, speaker.say)
            threading.Thread(target=renewer.renew_for_ever, daemon=True).start()
        renewer.take(lines)
    if renewer is not None:
        renewer.leave()


if __name__ == "__main__":
    main()
