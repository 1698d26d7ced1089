"""The Redis backend: an asynchronous and a synchronous shell around one session without I/O."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
from redis import exceptions as driver

from queuehint.backends.base import Backend, BackendOptions, Interest
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import Address, parse_url
from queuehint.backends.redis.connections.async_link import AsyncLink, Blocked, WaitLink
from queuehint.backends.redis.connections.sync_link import SyncLink, run
from queuehint.backends.redis.session import Session
from queuehint.backends.redis.subscriptions import Subscriptions
from queuehint.backends.redis.transport import NotSent, Redirect, Send, Sleep, Unanswered, onward
from queuehint.backends.redis.waits import FAILED_WAIT_S, ClaimBehind, ClockWaker, Results, in_pairs, wait_command
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError, QueueHintError
from queuehint.operations import Exchange
from queuehint.values.ids import this_process

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence

    from queuehint.operations import Operation

Reply = TypeVar("Reply")

WAIT_CEILING_S: Final = 5.0
"""No wait trusts its marker longer than this."""
FAILURES: Final = NotSent, Unanswered, driver.ResponseError
"""How a command fails."""
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

END_WAIT_S: Final = 1.0
"""How long a wait that is canceled is given to end at the server, before its connection is dropped."""
_END: Final = b"end"
"""Stands where a worker is told of news, for a wait that has to end."""


class RedisBackend(Backend):
    """
    Jobs on Redis or Valkey.

    Usable from any thread, from any number of loops, and after a fork; connects on first use.

    Args:
        address: see `queuehint.backends.redis.address.parse_url`.
        budget: units of following work an operation may do; for tests.
    """

    def __init__(self, address: Address, options: BackendOptions | None = None, **settings: int) -> None:
        options = options or BackendOptions()
        self.session = Session(address, options, **settings)
        self._lock = threading.Lock()
        self._closed = False
        self._begin()
        self._process = this_process.mark
        self._moved = ClockWaker()
        options.clock.subscribe(self._moved.ring)

    def _begin(self) -> None:
        self._sync: SyncLink | None = None
        self._sync_waits: SyncLink | None = None
        self._threads = threading.local()
        self._sync_results = Results(self.session, self._sync_link, self._sync_wait_link)
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> RedisBackend:
        """Open the store at a URL. See `queuehint.backends.redis.address.parse_url`."""
        address = parse_url(url)
        if address.patience_s is None and options.patience_s is not None:
            address = attrs.evolve(address, patience_s=options.patience_s)
        return cls(address, options)

    @property
    def is_local(self) -> bool:
        """Never."""
        return False

    def owes_turn(self, operation: Operation[Any]) -> bool:
        """Return False, because calls of this backend suspend."""
        return False

    @property
    def identity(self) -> tuple[object, ...]:
        """Server, database and namespace, without the user."""
        address = self.session.address
        nodes = frozenset(("localhost" if host in LOOPBACK else host, port) for host, port in address.nodes)
        database = address.options.get("db", 0)
        return "redis", address.kind, nodes, address.path, address.service, database, self.session.namespace

    # --- calls -------------------------------------------------------------------------------------------------------

    async def call(self, operation: Operation[Reply]) -> Reply:
        """
        Carry out one operation.

        Raises:
            OutcomeUnknownError: no answer came; the same operation object may be called with again.
            BackendUnavailableError: the store cannot be reached or must not be used; nothing was changed.
            BackendFullError: its memory is full; nothing was enqueued.
        """
        result: Reply
        loop, session = self._loop(), self.session
        call = session.direct_call(operation)
        if call is None:
            result = await loop.run(session.execute(operation))
            return result
        send = call.first()
        try:
            result = session.answered(operation, call, await loop.link.ask(send))
            return result
        except BaseException as error:  # noqa: BLE001 - the session decides
            rest = session.go_on(operation, call, send, error)
        result = await loop.run(rest, send)
        return result

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """Like `call`, for code without a loop."""
        result: Reply
        link, session = self._sync_link(), self.session
        call = session.direct_call(operation)
        if call is None:
            result = run(link, session.execute(operation))
            return result
        send = call.first()
        try:
            result = session.answered(operation, call, link.ask(send))
            return result
        except BaseException as error:  # noqa: BLE001 - the session decides
            rest = session.go_on(operation, call, send, error)
        result = run(link, rest, send)
        return result

    def prepare(self, operation: Operation[Any]) -> None:
        """Encode the request of the next `call`. Only the last operation stays encoded. `call` raises its refusal."""
        self.session.prepare(operation)

    # --- waits -------------------------------------------------------------------------------------------------------

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """Return when a topic may have news, something is due, or *timeout_s* has passed. May return early."""
        await self._loop().wait(interest, timeout_s)

    async def wait_and_call(
        self, interest: Interest, timeout_s: float, operation: Operation[Reply], take: Callable[[Reply], None]
    ) -> bool:
        """Wait, and claim in the same round trip. See `Backend.wait_and_call`."""
        loop, wait_s = self._loop(), self.wait_limit_s(interest, timeout_s)
        behind = None
        if wait_s > 0 and isinstance(operation, Exchange) and not interest.jobs and not interest.kept:
            behind = ClaimBehind.of(self.session, operation)
        if behind is None:
            await loop.wait(interest, timeout_s)
            return False
        return await loop.wait_and_claim(interest, wait_s, behind, take)

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Like `wait`, blocking this thread."""
        self._check_usable()
        if interest.kept:
            run(self._sync_link(), self.session.execute_script("watch", ("", "keep", *in_pairs(interest.kept))))
        if interest.jobs and not interest.pools and interest.worker is None:
            self._sync_results.wait(interest.jobs, min(timeout_s, WAIT_CEILING_S))
            return
        # One waiter a thread: a job stores its waiters, and should store a waiting thread once.
        waiter: str = self._threads.__dict__.setdefault("session", secrets.token_hex(8))
        if interest.jobs:
            talk = self.session.execute_script("watch", (waiter, "", *in_pairs(interest.jobs)))
            if b"o" in run(self._sync_link(), talk)[3]:
                return
        wait_s = self.wait_limit_s(interest, timeout_s)
        if wait_s <= 0:
            return
        link, send = self._sync_wait_link(), Send(wait_command(self.session, interest, waiter, wait_s))
        try:
            link.ask(send)
        except (NotSent, Unanswered, driver.ResponseError) as error:
            # The caller looks and waits again: not at once, and at the right node.
            link.move(onward(error), send)
            time.sleep(min(wait_s, FAILED_WAIT_S))

    def wait_limit_s(self, interest: Interest, timeout_s: float) -> float:
        """The longest wait. Workers wake at the next due time."""
        wait_s = min(timeout_s, WAIT_CEILING_S)
        due_s = self.session.due_s
        if due_s is not None and (interest.pools or interest.worker is not None):
            wait_s = min(wait_s, due_s - time.monotonic())
        return wait_s

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        """Do nothing, because workers of a shared store renew their leases themselves."""
        return lambda: None

    # --- life --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections of this loop and of synchronous callers."""
        loop = self._loops.pop(asyncio.get_running_loop(), None)
        self.close_sync()
        if loop is not None:
            await loop.close()

    def close_sync(self) -> None:
        """Close the connections of synchronous callers. Connections of a loop are closed with it."""
        with self._lock:
            self._closed = True
            links, self._sync, self._sync_waits = (self._sync, self._sync_waits), None, None
        for link in links:
            if link is not None:
                link.close()
        self._moved.ring()

    def _check_usable(self) -> None:
        if self._process is not this_process.mark:
            # In a fork: the parent's connections and sessions stay the parent's.
            self._lock = threading.Lock()
            self._begin()
            self._moved.begin()
            self.session.begin()
            self._process = this_process.mark
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise BackendUnavailableError(f"the backend at {self.session.address.shown} was closed")

    def _sync_link(self) -> SyncLink:
        """Return the link of synchronous callers. A closed backend refuses."""
        if self._process is this_process.mark and (link := self._sync) is not None:
            return link  # a backend that was closed has none
        self._check_usable()
        with self._lock:
            self._check_open()
            if self._sync is None:
                self._sync = SyncLink(self.session.address)
            return self._sync

    def _sync_wait_link(self) -> SyncLink:
        with self._lock:
            self._check_open()
            if self._sync_waits is None:
                self._sync_waits = SyncLink(self.session.address, waits=True)
            return self._sync_waits

    def _loop(self) -> _Loop:
        if self._closed or self._process is not this_process.mark:
            self._check_usable()
        running = asyncio.get_running_loop()
        found = self._loops.get(running)
        if found is None:
            # Those that were closed without having closed their generators; what they had is freed with them.
            for loop in [loop for loop in list(self._loops) if loop.is_closed()]:
                self._loops.pop(loop, None)
            found = self._loops[running] = _Loop(self)
        return found

    def forget_loop(self, ended: _Loop) -> None:
        """Keep nothing of a loop that ends."""
        running = asyncio.get_running_loop()
        if self._loops.get(running) is ended:
            del self._loops[running]


class _Loop:
    """The connections of one running event loop, and its listener for results."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self._session = backend.session
        self.link = AsyncLink(backend.session.address)
        self._waits = WaitLink(backend.session.address)
        self._waiter = secrets.token_hex(8)
        self._subscriptions = Subscriptions(self._session, self._waiter, self.run, link=self.link, waits=self._waits)
        self._end = self._until_the_end()
        # A loop that ends in order, as by `asyncio.run`, first closes the generators that were begun on it.
        with suppress(StopIteration):
            self._end.__anext__().send(None)

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._backend.forget_loop(self)
            with suppress(QueueHintError, TimeoutError):
                async with asyncio.timeout(END_WAIT_S):
                    await self._subscriptions.close()
            await self.link.close()
            await self._waits.close()

    async def run(self, talk: Generator[Send | Sleep | Redirect, Any, Any], sent: Send | None = None) -> Any:
        """Carry out the actions of a session until its end. *sent* is an earlier request."""
        link = self.link
        try:
            step = next(talk)
            while True:
                try:
                    if type(step) is Send:
                        sent = step
                        reply = await link.ask(step)
                    elif type(step) is Sleep:
                        reply = await asyncio.sleep(step.seconds)  # type: ignore[func-returns-value]
                    else:
                        reply = await link.move(step, sent)  # type: ignore[func-returns-value, arg-type]
                except BaseException as error:  # noqa: BLE001 - the session decides
                    step = talk.throw(error)
                else:
                    step = talk.send(reply)
        except StopIteration as end:
            return end.value

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        if interest.kept:
            await self.run(self._session.execute_script("watch", ("", "keep", *in_pairs(interest.kept))))
        wait_s = self._backend.wait_limit_s(interest, timeout_s)
        if wait_s <= 0:
            await asyncio.sleep(0)
            return
        if not interest.jobs and self._session.has_own_time:
            await self._wait_for_markers(interest, wait_s)
            return
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Future[Any]] = []
        moved: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not moved.done():
                moved.set_result(None)

        def move() -> None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(resolve)

        bell = self._backend._moved.add(move)  # noqa: SLF001
        try:
            if interest.jobs:
                tasks.append(asyncio.ensure_future(self._subscriptions.wait(interest, wait_s)))
            if interest.pools or interest.worker is not None:
                wanted = attrs.evolve(interest, jobs=())
                tasks.append(asyncio.ensure_future(self._wait_for_markers(wanted, wait_s)))
            await asyncio.wait([*tasks, moved], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._backend._moved.remove(bell)  # noqa: SLF001
            moved.cancel()
            for task in tasks:
                task.cancel()
            # A wait that failed counts as one that ended early: the caller reads the state, and gets the error then.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_markers(self, interest: Interest, wait_s: float) -> None:
        # No task and no shield around it: each would be a turn of the loop more until the caller is woken.
        send = Send(wait_command(self._session, interest, self._waiter, wait_s))
        try:
            asked = await self._waits.begin(send)
            try:
                await asked.reply
            except asyncio.CancelledError:
                asked.renew()
                await self._end_wait(asked, interest)
                raise
            finally:
                asked.end()
        except FAILURES as error:
            await self._leave_wait(error, send, wait_s)

    async def _leave_wait(self, error: Exception, send: Send, wait_s: float) -> None:
        """Pause after a wait that failed, and go to the right node."""
        await self._waits.move(onward(error), send)
        await asyncio.sleep(min(wait_s, FAILED_WAIT_S))

    async def wait_and_claim(
        self, interest: Interest, wait_s: float, behind: ClaimBehind, take: Callable[[Any], None]
    ) -> bool:
        send = Send(wait_command(self._session, interest, self._waiter, wait_s))
        try:
            asked = await self._waits.begin(send, behind.command)
        except BaseException as error:
            behind.unsent()
            if not isinstance(error, FAILURES):
                raise
            await self._leave_wait(error, send, wait_s)
            return False
        reply, refused = None, None
        try:
            assert asked.behind is not None
            reply = await asked.behind
        except asyncio.CancelledError as canceled:
            unknown = await self._withdraw(behind, take)
            try:
                asked.renew_behind()
                await self._end_wait(asked, interest)
            finally:
                if unknown is not None:
                    raise unknown from canceled
            raise
        except FAILURES as error:
            refused = error
        finally:
            asked.end()
        failure = asked.failure()
        if reply is not None and asked.node == self.link.node:
            take(behind.answered(reply))
            if failure is not None:
                await self._leave_wait(failure, send, wait_s)
            return True
        # Lost, refused, or from a node that calls have left: the same request is sent where calls go.
        if isinstance(refused, driver.ResponseError):
            behind.refused()
        else:
            behind.unanswered()
        try:
            await self._waits.move(Redirect(leaves=True) if refused is None else onward(refused), send)
            answer = await self.run(self._session.execute(behind.operation))
        except asyncio.CancelledError as canceled:
            behind.resume()
            unknown = await self._withdraw(behind, take)
            if unknown is not None:
                raise unknown from canceled
            raise
        take(answer)
        if failure is not None:
            # A wait may fail at once again and again, as where no more clients may connect.
            await asyncio.sleep(min(wait_s, FAILED_WAIT_S))
        return True

    async def _withdraw(self, behind: ClaimBehind, take: Callable[[Any], None]) -> OutcomeUnknownError | None:
        """
        Withdraw the claim of a canceled caller, through further cancellations, and pass an earlier grant to *take*.

        Return an error if the server does not answer in time: the caller may call with the same operation again.
        """
        withdrawn = asyncio.get_running_loop().create_task(self._withdrawn(behind))
        while not withdrawn.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((withdrawn,))
        reply = withdrawn.result()
        if reply is None:
            behind.unanswered()
            where = self._session.address.shown
            return OutcomeUnknownError(f"{where}: a claim could not be withdrawn; it may have been granted jobs")
        take(behind.answered(reply))
        return None

    async def _withdrawn(self, behind: ClaimBehind) -> Any:
        with suppress(QueueHintError, TimeoutError):
            async with asyncio.timeout(END_WAIT_S):
                return await self.run(behind.withdraw())
        return None

    async def _end_wait(self, asked: Blocked, interest: Interest) -> None:
        """
        End a canceled wait on the server, and return a marker that the wait may have consumed.

        A connection that is dropped may take one with it, which would go unnoticed until the longest wait is over.
        Other clients wait for markers of their own.
        """
        with suppress(NotSent, Unanswered, driver.ResponseError, TimeoutError):
            if interest.worker is None and not asked.reply.done():
                return
            own = keys.redis_key(self._session.namespace, "wake:session:", interest.worker or "")
            async with asyncio.timeout(END_WAIT_S):
                is_asked = not asked.reply.done()
                if is_asked:
                    await self.link.ask(Send(("ZADD", own, "0", _END)))
                taken = None
                try:
                    taken = await asyncio.shield(asked.reply)
                    if asked.behind is not None:
                        await asyncio.shield(asked.behind)
                finally:
                    # Also if the connection that waited gives no answer any more: else it would stay for ever.
                    if is_asked and (taken is None or taken[1] != _END):
                        await self.link.ask(Send(("ZREM", own, _END)))
                if taken is not None and taken[1] != _END:
                    await self.link.ask(Send(("ZADD", taken[0], "0", taken[1])))

    async def close(self) -> None:
        await self._end.aclose()
