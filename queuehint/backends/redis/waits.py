"""
Blocking waits on a server: the wait command, a claim behind it, threads that wait for results, a test clock's wake-up.

A wait and the claim behind it are one write on one connection. The server carries the claim out when the wait ends, by
a marker or after its time, without another round trip. The claim's arguments are those of the moment it was sent.
"""

from __future__ import annotations

import secrets
import threading
import time
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import attrs
from redis import exceptions as driver

from queuehint.backends.redis import keys
from queuehint.backends.redis.connections.sync_link import run
from queuehint.backends.redis.transport import NotSent, Send, Unanswered, onward

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from queuehint.backends.base import Interest
    from queuehint.backends.redis.connections.sync_link import SyncLink
    from queuehint.backends.redis.functions.calls import Call
    from queuehint.backends.redis.session import Session
    from queuehint.backends.redis.streams import RequestStream
    from queuehint.backends.redis.transport import Talk
    from queuehint.operations import Exchange

FAILED_WAIT_S: Final = 1.0
"""How long a wait that the server refused pauses, before it ends too early."""


def wait_command(session: Session, interest: Interest, waiter: str, wait_s: float) -> tuple[Any, ...]:
    """Return the command that blocks until one of the markers of an interest is set."""
    if interest.users is None:
        names = [keys.redis_key(session.namespace, "wake:pool:", pool) for pool in interest.pools]
    else:
        served = product(interest.pools, interest.users)
        names = [keys.redis_key(session.namespace, "wake:user:", f"{pool}\0{user or ''}") for pool, user in served]
    if interest.release:
        names += [keys.redis_key(session.namespace, "wake:release:", each) for each in _of_release(interest)]
    if interest.jobs:
        names.append(keys.redis_key(session.namespace, "wake:session:", waiter))
    if interest.worker is not None:
        names.append(keys.redis_key(session.namespace, "wake:session:", interest.worker))
        names.append(keys.redis_key(session.namespace, "wake:timer"))
    return ("BZPOPMIN", *names, f"{max(wait_s, 0.001):.3f}")


def _of_release(interest: Interest) -> list[str]:
    """Return the markers of a release in pools: of all users' jobs, or of its users'."""
    pools = [f"{pool}\0{interest.release}" for pool in interest.pools]
    if interest.users is None:
        return pools
    return [f"{pool}\0{user or ''}" for pool, user in product(pools, interest.users)]


def in_pairs(job_ids: Iterable[str]) -> list[str]:
    """Return the arguments of the script `watch` for jobs waited for until their ends, without versions."""
    return [arg for job_id in job_ids for arg in (job_id, "")]


@attrs.define(eq=False)
class ClaimBehind:
    """
    A claim sent behind a wait without the steps of a session, made by `of`.

    Args:
        call: its request; `resume` may give it another stream.
        command: what is sent.
    """

    session: Session
    operation: Exchange
    call: Call
    command: tuple[Any, ...] = attrs.field(repr=False)

    @classmethod
    def of(cls, session: Session, operation: Exchange) -> ClaimBehind | None:
        """Return a claim, None while a check or a log line is due before it."""
        call = session.direct_call(operation, waits=True)
        return None if call is None else cls(session, operation, call, call.first().command)

    @property
    def stream(self) -> RequestStream:
        """The stream of the claim's request, the only one in flight there."""
        assert self.call.stream is not None
        return self.call.stream

    def unsent(self) -> None:
        """Note that the claim was not sent."""
        self.session.streams.give_back(self.stream, self.operation, answered=not self.stream.is_unknown)

    def unanswered(self) -> None:
        """Let the next call with the same operation continue this request, whose outcome is unknown."""
        self.session.streams.give_back(self.stream, self.operation, answered=False)

    def refused(self) -> None:
        """Have the next call with the same operation continue this request, which was not carried out."""
        self.unanswered()
        self.stream.is_unknown = False

    def resume(self) -> None:
        """
        Reclaim the request from a canceled call that continued it, so that only `withdraw` goes on.

        A request that was refused may have another number by now: the call gives a number that was not used to others.
        """
        self.call.number(self.session.streams.take_for(self.operation))

    def answered(self, reply: list[Any]) -> Any:
        """Return the typed reply."""
        return self.session.answered(self.operation, self.call, reply)

    def withdraw(self) -> Talk:
        """
        Withdraw the claim under the number of this request. Return the raw reply, for `answered`.

        Whichever of both the server carries out first leaves a receipt, and with it the reply to the other.
        """
        nothing = attrs.evolve(self.operation, limit=0)
        withdrawal = self.session.call_of(nothing)
        withdrawal.number_as(self.stream)
        return (yield from self.session.send(withdrawal, nothing))


class Results:
    """
    Threads that wait for results, sharing one subscription of the process to each job.

    One thread at a time listens for all of them, on one connection; when it has what it waits for another one does.
    """

    def __init__(self, session: Session, link: Callable[[], SyncLink], wait_link: Callable[[], SyncLink]) -> None:
        self._session = session
        self._link = link
        self._wait_link = wait_link
        self._waiter = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._waiting: dict[str, set[threading.Event]] = {}
        self._is_listening = False

    def wait(self, job_ids: Collection[str], wait_s: float) -> None:
        """Return when one of these jobs has ended, or after *wait_s*, or early if the server is unavailable."""
        over = threading.Event()
        with self._changed:
            for job_id in job_ids:
                self._waiting.setdefault(job_id, set()).add(over)
        try:
            talk = self._session.execute_script("watch", (self._waiter, "", *in_pairs(job_ids)))
            if b"o" not in run(self._link(), talk)[3]:
                self._listen_until(over, time.monotonic() + wait_s)
        finally:
            with self._changed:
                for job_id in set(job_ids):
                    waiting = self._waiting[job_id]
                    waiting.discard(over)
                    if not waiting:
                        del self._waiting[job_id]

    def _listen_until(self, over: threading.Event, until_s: float) -> None:
        while not over.is_set():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            with self._changed:
                if over.is_set():
                    return
                if self._is_listening:
                    self._changed.wait(left_s)
                    continue
                self._is_listening = True
            try:
                is_heard = self._listen(left_s)
            finally:
                with self._changed:
                    self._is_listening = False
                    self._changed.notify_all()
            if not is_heard:
                return

    def _listen(self, left_s: float) -> bool:
        """Wake the waiters of finished jobs. Return False if the server was unavailable."""
        key = keys.redis_key(self._session.namespace, "wake:session:", self._waiter)
        link, send = self._wait_link(), Send(("BZPOPMIN", key, f"{max(left_s, 0.001):.3f}"))
        try:
            found = link.ask(send)
            if found is not None:
                send = Send(("ZPOPMIN", key, 1000))
            more = [] if found is None else link.ask(send)
        except (NotSent, Unanswered, driver.ResponseError) as error:
            # The caller reads the state and waits again: not at once, and at the right node.
            link.move(onward(error), send)
            time.sleep(min(left_s, FAILED_WAIT_S))
            return False
        if found is not None:
            with self._changed:
                for job_id in [found[1], *more[::2]]:
                    for over in self._waiting.get(job_id.decode(), ()):
                        over.set()
        return True


class ClockWaker:
    """Wake all waits when the clock of a test moves, or the backend is closed."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget all waiters after a start or a fork."""
        self._lock = threading.Lock()
        self._waiting: dict[object, Callable[[], None]] = {}

    def add(self, wake: Callable[[], None]) -> object:
        """Call *wake* on every change of the clock. Return the key for `remove`."""
        key = object()
        with self._lock:
            self._waiting[key] = wake
        return key

    def remove(self, key: object) -> None:
        """Remove a callback."""
        with self._lock:
            self._waiting.pop(key, None)

    def ring(self) -> None:
        """Call all that were added."""
        with self._lock:
            waiting = list(self._waiting.values())
        for wake in waiting:
            wake()
