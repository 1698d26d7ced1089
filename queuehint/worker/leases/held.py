"""
The leases of one worker, from their grants to their settlements: one list for all its parts.

A store of this process is given the list and renews them itself. For a store elsewhere `Renewal` does, by what is known
here: when each lease ends, and which line has told the helper of it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from queuehint.clock import now_s
from queuehint.schema.checks import check_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queuehint.values.outcome import Grant, Outcome
    from queuehint.worker.leases.begin_marks import BeginMarks

MARGIN_MIN_S = 0.5
_UNTOLD = 1 << 62
"""The line of a lease of which the helper is not told."""


def margin_s(lease_s: float) -> float:
    """
    Return how long before the end of a lease its code is asked to stop: a tenth, at least 0.5 s, at most a quarter.

    >>> [margin_s(lease_s) for lease_s in (1, 5, 30)]
    [0.25, 0.5, 3.0]
    """
    return min(max(lease_s / 10, MARGIN_MIN_S), lease_s / 4)


class Lease:
    """One lease: its known expiry, its timeout, and the number of its line to the helper."""

    __slots__ = ("has_begun", "is_fenced", "line", "overdue_s", "until_s")

    def __init__(self, until_s: float, overdue_s: float | None, line: int, *, has_begun: bool) -> None:
        self.until_s = until_s
        self.overdue_s = overdue_s
        self.line = line
        self.has_begun = has_begun
        self.is_fenced = False

    def told(self, job_id: str, token: int, at_s: float) -> str:
        """Return the line that announces the lease to the helper, at a time."""
        left = "" if self.overdue_s is None else f" {max(0, round((self.overdue_s - at_s) * 1000))}"
        return f"{'+' if self.has_begun else '~'}{token} {job_id}{left}\n"


class Helper(Protocol):
    """A process that renews leases, over a pipe. See `queuehint.worker.leases.helper`."""

    @property
    def marks(self) -> BeginMarks | None:
        """The marks shared with the worker. None for a helper that gives no jobs back."""

    def start(self, lease_s: float) -> None:
        """Start the process, without leases."""

    def send(self, lines: str) -> None:
        """Send lines to the process. Never waits."""

    def hear(self, timeout_s: float) -> list[str]:
        """Wait up to *timeout_s* for lines of the process. Return the lines."""

    def end(self, *, at_once: bool = False) -> None:
        """Stop the process, gracefully or at once."""

    @property
    def is_dead(self) -> bool:
        """True when the process has ended, or does not accept lines any more."""


def marks_of(helper: Helper | None) -> BeginMarks | None:
    """
    Return the marks shared by a helper and its worker. Return None without a helper.

    Raises:
        InvalidJobTypeError: it is no helper.
    """
    if helper is None:
        return None
    check_object(helper, "start", "send", "hear", "end", parameter="helper", what="a Helper")
    return helper.marks


class Leases:
    """
    The list of leases. Changes are made under its lock, which is held only briefly.

    Args:
        lease_ms: how long each lasts, from its grant and from each renewal.
        now_s: the clock by which they are held to last; not compared with that of the store.
        helper: renews from another process; told of each.
    """

    def __init__(self, lease_ms: int, now_s: Callable[[], float] = now_s, helper: Helper | None = None) -> None:
        self.lease_ms = lease_ms
        self.lease_s = lease_ms / 1000
        self.margin_s = margin_s(self.lease_s)
        self.now_s = now_s
        self.helper = helper
        self.marks = marks_of(helper)
        """Tell the helper, if there is one, which code has begun."""
        self.held: dict[tuple[str, int], Lease] = {}
        """By job and token."""
        self.lines = 0
        self.answered_s = 0.0
        """When the newest renewal that went through was sent; 0 before."""
        self.lock = threading.Lock()

    def all(self) -> tuple[tuple[str, int], ...]:
        """Return the leases of running and of unsettled jobs. Neither may be reaped."""
        return tuple(self.held)

    def exchange(self, settled: Iterable[Outcome], granted: Iterable[Grant], sent_s: float) -> list[Lease]:
        """
        Drop settled leases and add granted leases, before any of their code runs. Return the added leases.

        Args:
            sent_s: when the exchange was sent, for the first time if it was repeated.
        """
        until_s, helper = sent_s + self.lease_s, self.helper
        began_s = 0.0 if helper is None else self.now_s()  # by which the helper is told of timeouts
        text = []
        leases: list[Lease] = []
        with self.lock:
            held, line = self.held, self.lines
            for outcome in settled:
                held.pop((outcome.job_id, outcome.token), None)
                if helper is not None:
                    line += 1
                    text.append(f"-{outcome.token} {outcome.job_id}\n")
            for grant in granted:
                spec, token = grant.spec, grant.token
                job_id, policy = spec.id, spec.policy
                timeout_ms = policy.timeout_ms
                overdue_s = None if timeout_ms is None else began_s + timeout_ms / 1000
                # Not on its last life: one more lost worker does not make it FAILED.
                has_begun = grant.losses + 1 < policy.max_losses
                line += 1
                lease = held[job_id, token] = Lease(until_s, overdue_s, line, has_begun=has_begun)
                leases += (lease,)  # of every job of every worker, and no call
                if helper is not None:
                    text.append(lease.told(job_id, token, began_s))
            if helper is not None and text:
                self.lines = line
                helper.send("".join(text))
        return leases

    def hold(self, job_id: str, token: int, sent_s: float) -> None:
        """Hold the lease of a job whose code cannot run here, until its settlement."""
        with self.lock:
            self.held[job_id, token] = Lease(sent_s + self.lease_s, None, _UNTOLD, has_begun=False)

    def begin(self, grant: Grant) -> None:
        """Record that the code of a job on its last life has begun, which its grant does not imply."""
        job_id, token = grant.spec.id, grant.token
        with self.lock:
            lease = self.held.get((job_id, token))
            if lease is None or self.helper is None:
                return
            lease.has_begun, began_s = True, self.now_s()
            if grant.spec.policy.timeout_ms is not None:
                lease.overdue_s = began_s + grant.spec.policy.timeout_ms / 1000
            self.lines += 1
            self.helper.send(lease.told(job_id, token, began_s))

    def beat(self) -> None:
        """Record a heartbeat of the worker's loop."""
        if self.helper is not None:
            self.helper.send(".\n")

    def is_short(self, sent_s: float) -> bool:
        """Return whether grants of an exchange sent then may have to be fenced at once."""
        return self.now_s() >= sent_s + self.lease_s - self.margin_s

    def drop(self, job_id: str, token: int) -> Lease | None:
        """Remove a lease. Return the lease, None if it was settled meanwhile."""
        with self.lock:
            return self.held.pop((job_id, token), None)

    def extend(self, sent_s: float, seen: int) -> None:
        """Extend the leases of the first *seen* lines, renewed by a request sent then."""
        with self.lock:
            self.answered_s = max(self.answered_s, sent_s)
            for lease in self.held.values():
                if lease.line <= seen:
                    lease.until_s = max(lease.until_s, sent_s + self.lease_s)

    def renewed(self, leases: Iterable[tuple[str, int]], sent_s: float) -> None:
        """Extend leases that were renewed by a request sent then."""
        with self.lock:
            self.answered_s = max(self.answered_s, sent_s)
            for key in leases:
                lease = self.held.get(key)
                if lease is not None:
                    lease.until_s = max(lease.until_s, sent_s + self.lease_s)

    def due(self, oldest_s: float, *, is_news: bool) -> tuple[tuple[str, int], ...]:
        """Return all leases once one expires by then or there is news, else none."""
        with self.lock:
            if is_news or any(lease.until_s <= oldest_s for lease in self.held.values()):
                return tuple(self.held)
        return ()

    def fence(self, time_s: float) -> list[tuple[tuple[str, int], Lease]]:
        """Return the leases about to end then, each once. Their code is to stop."""
        latest_s = time_s + self.margin_s
        with self.lock:
            short = [lease for lease in self.held.items() if lease[1].until_s <= latest_s and not lease[1].is_fenced]
            for _, lease in short:
                lease.is_fenced = True
        return short

    def tell_again(self, helper: Helper) -> None:
        """Start the helper, which has no leases, and send it all leases."""
        with self.lock:
            helper.start(self.lease_s)
            text, at_s = [], self.now_s()
            for (job_id, token), lease in self.held.items():
                text.append(lease.told(job_id, token, at_s))
                lease.line = len(text)
            self.lines = len(text)
            helper.send("".join(text))
