"""
The counted workloads: single scripts, and a client and a worker of one process on Redis and in memory.

Nothing in here depends on a clock, a network or chance: time advances with the turns of the event loop, its connections
lead to a server in this process, and the garbage collector is off.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import selectors
import socket
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from unittest import mock

import attrs
import psycopg

from benchmarks.guard.server import BEGIN_MS, Counts, ScriptServer
from queuehint import Claim, JobSpec, Outcome, OutcomeKind, Scheduler
from queuehint.backends.base import BackendOptions, InboxAddress
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.connections.resp import open_reader
from queuehint.backends.redis.connections.sync_link import run
from queuehint.backends.redis.keys import redis_key
from queuehint.backends.redis.session import Session
from queuehint.client.transactions.psycopg import PsycopgConnection
from queuehint.core.meters import LOG_MAX
from queuehint.operations import Enqueue, Exchange, Note, Operation, Post, SetLimit, Tick
from queuehint.values.limit import Limit
from queuehint.values.outcome import Progress, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from benchmarks.guard.comparison import Table
    from queuehint.backends.redis.transport import Send
    from queuehint.values.outcome import Grant

URL: Final = "redis://127.0.0.1:1/0"
WORKER: Final = "host-1-0123456789ab"
LEASE_MS: Final = 30_000
KEPT_MS: Final = 2 * 24 * 3600 * 1000
DOCS: Final = 100
LINES, IN_LINE = 1_000, 4
"""The lines of many lines, and how many jobs stand in each."""
BATCH: Final = 64
PART: Final = 100
TURN_S: Final = 0.0001
"""By how much the clock goes on at each turn of the loop."""
THREADS_S: Final = 0.01
JOBS: Final = 320
ONES: Final = 64
MANY: Final = 4
WARM_UPS: Final = 3
IDLE_S: Final = 0.1
CALLS: Final = 8
"""How many times a script runs for a figure: what it does now and then is in it."""


# --- scripts ---------------------------------------------------------------------------------------------------------


class Client:
    """Sends operations to the server of this process, one after the other."""

    def __init__(self, server: ScriptServer, namespace: str) -> None:
        self.server = server
        self._namespace = namespace
        self._session = Session(parse_url(URL), BackendOptions(namespace=namespace))
        self._made = 0
        self.grants: tuple[Grant, ...] = ()

    def do(self, operation: Operation[Any]) -> Any:
        return run(self, self._session.execute(operation))  # type: ignore[arg-type]

    def ask(self, send: Send) -> Any:
        reader = open_reader()
        reader.feed(self.server.answer(send.command))
        reply = reader.gets()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def move(self, _redirect: Any, _sent: Send) -> None:
        raise AssertionError("there is one node")

    def tick(self) -> int:
        self.do(Tick())
        return 0

    def expire(self) -> int:
        """Drop records whose time is over, as many as one step does; return how many."""
        self.server.now_ms += KEPT_MS
        before = self._heads()
        assert self.do(Tick()).more
        return before - self._heads()

    def _heads(self) -> int:
        # The server itself is asked, so this is not counted.
        return int(self.server.ask((b"HLEN", redis_key(self._namespace, "jobs").encode())))

    def enqueue(self, count: int, path_of: Callable[[int], tuple[str, ...]], *, is_keyed: bool = False) -> int:
        specs = []
        for _ in range(count):
            self._made += 1
            specs.append(
                JobSpec(
                    id=f"{self._made:028}",
                    task="benchmarks.guard.part",
                    claims=(Claim(path_of(self._made)),),
                    arguments=b'{"doc":"doc-000017","part":"part-000017"}',
                    key=f"key-{self._made:06}" if is_keyed else None,
                )
            )
        self.do(Enqueue(tuple(specs)))
        return count

    def say(self, what: str) -> int:
        """Say something of a job of its own: progress, a partial result or the result of a step."""
        self._made += 1
        grant, payload = self.grants[list(NOTES).index(what)], b'{"result":%d}' % self._made
        said: dict[str, Any] = {
            "progress": Progress(self._made, None, "of the rows"),
            "result": payload,
            "step": Step(f"load-{self._made}", payload),
        }
        self.do(Post((Note(grant.spec.id, grant.token, **{what: said[what]}),)))
        return 0

    def exchange(self, limit: int) -> int:
        """Settle what was granted the last time, and claim; return how many were settled."""
        settled = tuple(
            Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b'{"result":null}')
            for grant in self.grants
        )
        reply = self.do(Exchange(WORKER, settled, ("default",), limit, LEASE_MS))
        assert all(verdict.name == "DONE" for verdict in reply.verdicts)
        self.grants = reply.grants
        return len(settled)


def _of_a_part(number: int) -> tuple[str, ...]:
    """Depth 2, each job at a place of its own: none waits."""
    return f"doc-{number % DOCS:06}", f"part-{number // DOCS:06}"


def _in_line(number: int) -> tuple[str, ...]:
    """Depth 1, in strict order within each of some lines."""
    return (f"doc-{number % DOCS:06}",)


def _in_many_lines(number: int) -> tuple[str, ...]:
    """Depth 1, in strict order within each of more lines than are claimed at once."""
    return (f"doc-{number % LINES:06}",)


def _hot(_number: int) -> tuple[str, ...]:
    """All in one line."""
    return ("hot",)


@attrs.frozen
class Shape:
    """Jobs of one kind, and how many of them are settled and claimed at once."""

    title: str
    path_of: Callable[[int], tuple[str, ...]]
    limits: tuple[int, ...] = (1, BATCH)
    is_keyed: bool = False
    waiting: int = PART
    """How many jobs are there before anything is counted."""
    limit: Limit | None = None


SHAPES: Final = (
    Shape("", _of_a_part),
    Shape(", in lines", _in_line),
    Shape(", one line", _hot, limits=(1,)),
    # Jobs with anything special take other ways through the scripts.
    Shape(", with keys", _of_a_part, is_keyed=True),
    # More lines than are claimed at once: no two jobs of an exchange are of one line.
    Shape(f", {LINES:,} lines", _in_many_lines, waiting=LINES * IN_LINE),
    # A rate that is not reached, whose log is as long as any: the clock goes on by one of its parts at each script.
    Shape(", under a rate", _of_a_part, waiting=2 * LOG_MAX, limit=Limit(path=(), rate=(1_000_000, LOG_MAX))),
    # One that is reached: half of those that are asked for are parked.
    Shape(", under a limit", _of_a_part, limits=(BATCH,), limit=Limit(path=(), most=BATCH // 2)),
)


NOTES: Final = {"progress": "post progress", "result": "post a partial result", "step": "post a step"}


def scripts(server: ScriptServer) -> Table:
    """Count what scripts do, by call or by job."""
    table: Table = {}

    def row(title: str, act: Callable[[], int], calls: int = CALLS) -> None:
        server.take()
        jobs = sum(act() for _ in range(calls))
        table[title] = _script_figures(server.take(), jobs or calls)

    for number, shape in enumerate(SHAPES):
        client = Client(server, f"guard-{number}")
        enqueue = partial(client.enqueue, path_of=shape.path_of, is_keyed=shape.is_keyed)
        if shape.limit is not None:
            client.do(SetLimit(shape.limit))
        for _ in range(0, shape.waiting, PART):
            enqueue(PART)
        for _ in range(LOG_MAX if shape.limit is not None else 0):
            client.exchange(1)
        for _ in range(WARM_UPS):
            client.exchange(PART)
        row(f"enqueue 1{shape.title}", partial(enqueue, 1))
        row(f"enqueue {PART}{shape.title}", partial(enqueue, PART))
        for limit in shape.limits:
            client.exchange(limit)
            client.exchange(limit)
            row(f"exchange {limit}{shape.title}", partial(client.exchange, limit))
        if number == 0:
            for what, title in NOTES.items():
                client.say(what)
                row(title, partial(client.say, what))
            while client.grants or client.exchange(PART):
                client.exchange(PART)
            row("exchange, nothing there", partial(client.exchange, BATCH))
            client.tick()
            row("tick", client.tick)
            row("records dropped", client.expire, calls=1)
    return table


def _script_figures(counts: Counts, jobs: int) -> dict[str, float]:
    return {
        "Lua instructions": counts.instructions / jobs,
        "redis.call": counts.commands / jobs,
        "bytes sent": counts.sent / jobs,
        "bytes received": counts.received / jobs,
    }


# --- a client and a worker -------------------------------------------------------------------------------------------


class Calls:
    """Counts the calls of Python and C functions in this thread, for as long as the block runs."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        gc.disable()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what the block does."""
        before = sys.getprofile()
        sys.setprofile(None)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _see(self, _frame: object, event: str, _what: object) -> None:
        if event in {"call", "c_call"}:
            self.count += 1


class Transport(asyncio.Transport):
    """A connection of the loop to the server of this process: what is sent is answered in the loop's next turn."""

    def __init__(self, loop: Loop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._requests = open_reader()
        self._waits: list[Any] = []
        """The keys of a request that blocks."""
        self._behind: list[tuple[Any, ...]] = []
        """Requests that came after it; they are executed once it is answered."""
        self._is_closed = False

    def write(self, data: Any) -> None:
        self._loop.call_soon(self._take, bytes(data))

    def _take(self, data: bytes) -> None:
        with self._loop.calls.paused():
            self._requests.feed(data)
            replies = []
            while (words := self._requests.gets()) is not False:
                if words[0] == b"BZPOPMIN":
                    self._waits = words[1:-1]
                elif self._waits:
                    self._behind.append(tuple(words))
                else:
                    replies.append(self._loop.server.answer(tuple(words)))
        self._receive(b"".join(replies))
        for transport in self._loop.transports:
            transport.look()

    def look(self) -> None:
        """Answer the request that blocks, if one of its keys is there now."""
        with self._loop.calls.paused():
            reply = self._loop.server.popped(self._waits)
            if reply:
                self._waits = []
                reply += b"".join(self._loop.server.answer(words) for words in self._behind)
                self._behind.clear()
        self._receive(reply)

    def _receive(self, data: bytes) -> None:
        if data and not self._is_closed:
            self._protocol.data_received(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.transports.remove(self)
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close


class Clock:
    """The time that this process is told while the block runs: it goes on with the turns of the loop."""

    def __init__(self) -> None:
        self._now_s = BEGIN_MS / 1000
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for name, read in {
            "time": lambda: self._now_s,
            "time_ns": lambda: int(self._now_s * 1e9),
            "monotonic": lambda: self._now_s,
            "clock_gettime": lambda _which: self._now_s,
        }.items():
            self._patches.enter_context(mock.patch.object(time, name, read))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


class Selector(selectors.DefaultSelector):
    """Waits for what threads say a moment of real time, and else for no time at all."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(timeout and min(timeout, THREADS_S))
        self._clock.advance(TURN_S if found or not timeout else timeout)
        return found


class Loop(asyncio.SelectorEventLoop):
    """A loop whose connections lead to the server of this process."""

    def __init__(self, server: ScriptServer, calls: Calls, clock: Clock) -> None:
        super().__init__(Selector(clock))
        self.server = server
        self.calls = calls
        self.turns = 0
        self.transports: list[Transport] = []

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        protocol = protocol_factory()
        transport = Transport(self, protocol)
        self.transports.append(transport)
        protocol.connection_made(transport)
        return transport, protocol

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


def clients(server: ScriptServer) -> Table:
    """Count the calls of Python functions of a client and a worker, by job."""
    table: Table = {}
    for store, url in (("Redis", URL), ("memory", "memory://")):
        with Clock() as clock:
            loop = Loop(server, Calls(), clock)
            with asyncio.Runner(loop_factory=lambda: loop) as runner:  # noqa: B023
                found = runner.run(Lives(Scheduler(url, namespace="clients"), loop).count())
            with blocking_connections(server):
                found["enqueue 1, synchronous"] = _one_by_one(Scheduler(url, namespace="synchronous"))
        table |= {f"{store}: {row}": figures for row, figures in found.items()}
    return table | {"a row of a transaction": _rows()}


@contextlib.contextmanager
def blocking_connections(server: ScriptServer) -> Iterator[None]:
    """Lead the connections of synchronous callers to the server of this process, which answers in a thread."""

    def answer(there: socket.socket) -> None:
        requests = open_reader()
        while data := there.recv(1 << 16):
            requests.feed(data)
            while (words := requests.gets()) is not False:
                there.sendall(server.answer(tuple(words)))
        there.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        connect, threads = socket.create_connection, []

        def connected(_: object, timeout_s: float) -> socket.socket:
            here = connect(("127.0.0.1", port), timeout_s)
            there, _ = listening.accept()
            threads.append(thread := threading.Thread(target=answer, args=(there,)))
            thread.start()
            return here

        with mock.patch.object(socket, "create_connection", connected):
            yield
        for thread in threads:
            thread.join()


def _one_by_one(scheduler: Scheduler) -> dict[str, float]:
    """Count what a synchronous caller does to enqueue a job."""

    @scheduler.job(queue_hint=["{doc}", "{part}"])
    async def part(doc: str, part: str) -> None: ...

    handles = [part.enqueue_sync("warm", f"part-{number}") for number in range(WARM_UPS)]
    parts, calls = [f"part-{number}" for number in range(ONES)], Calls()
    with calls:
        handles += [part.enqueue_sync("doc", each) for each in parts]
    for handle in handles:
        handle.cancel_sync()
    scheduler.close_sync()
    return {"Python calls": calls.count / ONES}


def _rows() -> dict[str, float]:
    """Count what is done to write a job in a transaction of PostgreSQL, without what psycopg does."""
    scheduler = Scheduler("postgresql://app@localhost/app?lead=no", namespace="transactions")
    connection = psycopg.Connection.__new__(psycopg.Connection)

    @scheduler.job(queue_hint=["{doc}", "{part}"])
    async def part(doc: str, part: str) -> None: ...

    inbox, calls = InboxAddress(namespace="transactions", schema="queuehint", database="1/app"), Calls()
    with (
        mock.patch.object(scheduler.backend, "_inbox", inbox),
        mock.patch.object(PsycopgConnection, "fetch", lambda _, __, *values: [(len(values),)]),
    ):
        for number in range(WARM_UPS):
            part.within(connection).enqueue_sync("warm", f"part-{number}")
        parts = [f"part-{number}" for number in range(ONES)]
        with calls:
            for each in parts:
                part.within(connection).enqueue_sync("doc", each)
    return {"Python calls": calls.count / ONES}


class Lives:
    """Lives of jobs through the API of a scheduler and its worker."""

    def __init__(self, scheduler: Scheduler, loop: Loop) -> None:
        self._scheduler, self._loop, self._calls = scheduler, loop, loop.calls
        self._numbers = itertools.count()
        self._left = 0
        self._begun = (0, 0)
        self._figures: dict[str, float] = {}

        @scheduler.job(queue_hint=["{doc}", "{part}"])
        async def part(doc: str, part: str) -> None:
            self._hit()

        @scheduler.job(queue_hint=["{doc}"])
        async def serial(doc: str) -> None:
            self._hit()

        self._part, self._serial = part, serial

    async def count(self) -> Table:
        part, serial = self._part, self._serial
        await part.enqueue_many(self._parts(JOBS))
        await self._drain(BATCH, JOBS)
        table = {}
        table["enqueue 1"] = await self._counted(ONES, *(part.enqueue(*call) for call in self._parts(ONES)))
        many = [self._parts(PART) for _ in range(MANY)]
        table[f"enqueue {PART}"] = await self._counted(PART * MANY, *(part.enqueue_many(calls) for calls in many))
        table[f"drain, {BATCH} at once"] = await self._drain(BATCH, ONES + PART * MANY)
        await part.enqueue_many(self._parts(ONES))
        table["drain, 1 at once"] = await self._drain(1, ONES)
        await serial.enqueue_many([(f"doc-{number % DOCS:06}",) for number in range(DOCS * IN_LINE)])
        table["drain, in lines"] = await self._drain(BATCH, DOCS * IN_LINE)
        await serial.enqueue_many([("hot",)] * ONES)
        table["drain, one line"] = await self._drain(BATCH, ONES)
        table["from enqueue to start"] = await self._started()
        holds = [self._scheduler.exclusive([f"held-{number}"]) for number in range(ONES)]
        table["hold a place"] = await self._counted(ONES, *map(_passed_through, holds))
        await self._scheduler.limit(["service"], BATCH)
        permits = [self._scheduler.permit(["service"]) for _ in range(ONES)]
        table["permit"] = await self._counted(ONES, *map(_passed_through, permits))
        await self._scheduler.close()
        return table

    def _parts(self, count: int) -> list[tuple[str, str]]:
        numbers = [next(self._numbers) for _ in range(count)]
        return [(f"doc-{number % DOCS:06}", f"part-{number // DOCS:06}") for number in numbers]

    async def _counted(self, jobs: int, *made: Any) -> dict[str, float]:
        """Await some calls one by one."""
        with self._calls:
            begun = self._so_far()
            for each in made:
                await each
            ended = self._so_far()
        return _client_figures(begun, ended, jobs)

    async def _drain(self, concurrency: int, jobs: int) -> dict[str, float]:
        """Run a worker; count from the first job to the last."""
        self._jobs = self._left = jobs
        self._over = asyncio.Event()
        with self._calls:
            async with self._scheduler.worker(concurrency):
                await self._over.wait()
        return self._figures

    async def _started(self) -> dict[str, float]:
        """Count from the call that enqueues a job to the first line of its handler, in a worker that is idle."""
        calls = turns = 0
        with self._calls:
            async with self._scheduler.worker(1):
                for call in self._parts(CALLS):
                    self._jobs = self._left = 1
                    self._over = asyncio.Event()
                    await asyncio.sleep(IDLE_S)
                    begun = self._so_far()
                    await self._part.enqueue(*call)
                    await self._over.wait()
                    calls += self._begun[0] - begun[0]
                    turns += self._begun[1] - begun[1]
        return _client_figures((0, 0), (calls, turns), CALLS)

    def _hit(self) -> None:
        if self._left == self._jobs:
            self._begun = self._so_far()
        self._left -= 1
        if not self._left:
            self._figures = _client_figures(self._begun, self._so_far(), max(1, self._jobs - 1))
            self._over.set()

    def _so_far(self) -> tuple[int, int]:
        return self._calls.count, self._loop.turns


async def _passed_through(block: AbstractAsyncContextManager[Any]) -> None:
    async with block:
        pass


def _client_figures(begun: tuple[int, int], ended: tuple[int, int], jobs: int) -> dict[str, float]:
    return {"Python calls": (ended[0] - begun[0]) / jobs, "turns of the loop": (ended[1] - begun[1]) / jobs}
