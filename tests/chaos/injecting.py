"""
The faults of a chaos run: what each does, for how long, and what is put right after it.

Every kind is a method of `Injector` that returns what it did, in words, and whether it was seen to have taken effect:
a server that was stopped does not answer, a clock that was set says so. The order and all sizes come from one seed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
from redis.exceptions import OutOfMemoryError, RedisError

from tests.chaos.clocks import ServerClock
from tests.chaos.nodes import Node, Nodes
from tests.faults.worker_processes import Crew, Member
from tests.servers import connect

WORKERS = 4
PAUSE_S = (1.5, 4.0)
CLOCK_STEP_S = (0.5, 4.0)
OFFSET_MAX_S = 10.0
WRITES_WAIT_MS = 5_000
GONE_WITHIN_S = 15.0
"""A worker that is asked to end has ended by then: its grace is 5 s, and code that hangs is abandoned after 10."""
CLOCK_SEEN_S = 0.3
"""A server's clock is as far from what it should be at most, with the way to it and back."""

Done = tuple[str, bool]
"""The fault in words, and whether its effect was seen."""


@attrs.frozen
class Injected:
    """A fault: from its start to the moment when one primary had two replicas in step again."""

    kind: str
    what: str
    begun_s: float
    undone_s: float
    """When it was over: the server continued, the link healed."""
    settled_s: float | None
    """When the servers were settled; None if they were not in a minute."""
    is_seen: bool = True
    """Its effect was seen; without one it was drawn for nothing."""


class Injector:
    """Injects the faults of a seed, one after the other, each kind once before any comes again."""

    def __init__(self, nodes: Nodes, crew: Crew, clock: ServerClock, seed: int, kinds: Sequence[str] = ()) -> None:
        self.nodes = nodes
        self.crew = crew
        self.clock = clock
        self.rng = random.Random(f"faults {seed}")
        self.workers: list[Member] = []
        self.kinds: dict[str, Callable[[], Done]] = {
            "primary killed": self.kill_primary,
            "primary frozen": self.freeze_primary,
            "primary cut off": self.cut_off_primary,
            "failover ordered": self.order_failover,
            "failover paused": self.order_failover_with_pause,
            "replica killed": self.kill_replica,
            "replica cut off": self.cut_off_replica,
            "sentinel frozen": self.freeze_sentinel,
            "memory full": self.fill_memory,
            "clock set forward": self.set_clock_forward,
            "clock set back": self.set_clock_back,
            "connections reset": self.reset_connections,
            "replies cut": self.cut_replies,
            "link slow": self.slow_link,
            "scripts flushed": self.flush_scripts,
            "worker killed": self.kill_worker,
            "worker frozen": self.freeze_worker,
            "workers restarted": self.restart_workers,
        }
        if not clock.can_step:
            del self.kinds["clock set forward"], self.kinds["clock set back"]
        if kinds:
            self.kinds = {kind: self.kinds[kind] for kind in kinds}

    def start_workers(self) -> None:
        self.workers = [self._start_worker() for _ in range(WORKERS)]

    def order(self) -> Iterator[str]:
        """Yield kinds without end."""
        while True:
            bag = list(self.kinds)
            self.rng.shuffle(bag)
            yield from bag

    def inject(self, kind: str) -> Injected:
        """Do it, and wait until the servers are settled."""
        begun_s = time.monotonic()
        what, is_seen = self.kinds[kind]()
        undone_s = time.monotonic()
        took_s = self.nodes.wait_until_settled()
        return Injected(kind, what, begun_s, undone_s, None if took_s is None else time.monotonic(), is_seen)

    # --- servers -----------------------------------------------------------------------------------------------------

    def kill_primary(self) -> Done:
        return self._kill(self._primary())

    def kill_replica(self) -> Done:
        return self._kill(self._replica())

    def _kill(self, node: Node) -> Done:
        down_s = self._seconds()
        until_s = time.monotonic() + down_s
        node.server.kill()
        is_seen = not node.replication()
        _sleep_until(until_s)
        self.nodes.restart(node)
        return f"node {node.number} down for {down_s:.1f} s", is_seen

    def freeze_primary(self) -> Done:
        node, seconds = self._primary(), self._seconds()
        until_s = time.monotonic() + seconds
        node.server.pause()
        is_seen = not node.replication()
        _sleep_until(until_s)
        node.server.resume()
        return f"node {node.number} stopped for {seconds:.1f} s", is_seen

    def cut_off_primary(self) -> Done:
        return self._cut_off(self._primary())

    def cut_off_replica(self) -> Done:
        return self._cut_off(self._replica())

    def _cut_off(self, node: Node) -> Done:
        seconds = self._seconds()
        until_s = time.monotonic() + seconds
        node.proxy.blackhole()
        is_seen = not self._answers_through_proxy(node)
        _sleep_until(until_s)
        node.proxy.heal()
        # Connections whose bytes were lost would stay mute: routers that forgot them answer so.
        node.proxy.rst()
        return f"node {node.number} answered nobody for {seconds:.1f} s", is_seen

    def order_failover(self) -> Done:
        return self._order_failover(self._primary())

    def order_failover_with_pause(self) -> Done:
        """Let writes wait, so that the replica has everything when it takes over."""
        old = self._primary()
        with contextlib.suppress(RedisError, OSError):
            old.client.client_pause(WRITES_WAIT_MS, all=False)
        return self._order_failover(old)

    def _order_failover(self, old: Node) -> Done:
        with contextlib.suppress(RedisError):
            self.nodes.sentinels[0].call("SENTINEL", "FAILOVER", "queuehint")
        until_s = time.monotonic() + 10
        while self.nodes.named() is old and time.monotonic() < until_s:
            time.sleep(0.05)
        return f"node {old.number} replaced", self.nodes.named() is not old

    def freeze_sentinel(self) -> Done:
        sentinel, seconds = self.rng.choice(self.nodes.sentinels), self._seconds()
        until_s = time.monotonic() + seconds
        sentinel.pause()
        is_seen = not _answers(sentinel.client(socket_timeout=0.3))
        _sleep_until(until_s)
        sentinel.resume()
        return f"one of three for {seconds:.1f} s", is_seen

    def fill_memory(self) -> Done:
        node, seconds, is_seen = self._primary(), self._seconds(), False
        with contextlib.suppress(RedisError, OSError):
            used = int(node.client.info("memory")["used_memory"])
            node.client.config_set("maxmemory", used * 99 // 100)
            try:
                node.client.set("full", 1, px=1)
            except OutOfMemoryError:
                is_seen = True
        time.sleep(seconds)
        with contextlib.suppress(RedisError, OSError):
            node.client.config_set("maxmemory", 0)
        return f"node {node.number} at 101 % of maxmemory for {seconds:.1f} s", is_seen

    def set_clock_forward(self) -> Done:
        return self._step(1)

    def set_clock_back(self) -> Done:
        return self._step(-1)

    def _step(self, sign: int) -> Done:
        seconds = sign * self.rng.uniform(*CLOCK_STEP_S)
        if abs(self.clock.offset_s + seconds) > OFFSET_MAX_S:
            seconds = -seconds
        self.clock.step(seconds)
        if seconds < 0:
            self.clock.backward_at_s.append(time.monotonic())
        # Where it was set back, the namespace's time stands still for as long.
        time.sleep(max(0.5, -seconds))
        return f"all servers by {seconds:+.1f} s", all(map(self._has_offset, self.nodes.nodes))

    def _has_offset(self, node: Node) -> bool:
        """Return whether a server tells the time that its clock was set to."""
        begun_s = time.time()
        try:
            seconds, us = node.client.time()
        except (RedisError, OSError):
            return False
        told_s = seconds + us / 1e6 - self.clock.offset_s
        return bool(begun_s - CLOCK_SEEN_S < told_s < time.time() + CLOCK_SEEN_S)

    def flush_scripts(self) -> Done:
        node, is_seen = self._primary(), False
        with contextlib.suppress(RedisError, OSError):
            had = node.client.info("memory")["number_of_functions"]
            node.client.script_flush()
            node.client.function_flush()
            is_seen = had > 0
        return f"scripts and functions of node {node.number}", is_seen

    # --- links -------------------------------------------------------------------------------------------------------

    def reset_connections(self) -> Done:
        count = 0
        for _ in range(3):
            proxy = self._primary().proxy
            count += proxy.connections
            proxy.rst()
            time.sleep(0.3)
        return f"all of the primary, three times: {count} connections", count > 0

    def cut_replies(self) -> Done:
        proxy, times = self._primary().proxy, self.rng.randint(3, 8)
        cuts = proxy.cuts
        # Only requests with the name of the namespace: those of queuehint, none of replicas and sentinels.
        proxy.cut_after(b"{qh:", times=times)
        time.sleep(2.0)
        proxy.disarm()
        cuts = proxy.cuts - cuts
        return f"{cuts} requests were run, and their replies lost", cuts > 0

    def slow_link(self) -> Done:
        node, ms, seconds = self._primary(), self.rng.uniform(20, 120), self._seconds()
        proxy = node.proxy
        until_s = time.monotonic() + seconds
        proxy.delay(ms, jitter_ms=ms / 2)
        begun_s = time.monotonic()
        self._answers_through_proxy(node)
        is_seen = time.monotonic() - begun_s > ms / 1000
        _sleep_until(until_s)
        proxy.delay(0)
        return f"{ms:.0f} ms each way for {seconds:.1f} s", is_seen

    # --- workers -----------------------------------------------------------------------------------------------------

    def kill_worker(self) -> Done:
        at, has_helper = self.rng.randrange(WORKERS), self.rng.random() < 0.5
        self.workers[at].kill(group=not has_helper)
        is_seen = not self.workers[at].is_running
        self.workers[at] = self._start_worker()
        return "without its helper" if has_helper else "with its helper", is_seen

    def freeze_worker(self) -> Done:
        member, seconds = self.rng.choice(self.workers), self._seconds()
        is_seen = member.is_running
        member.signal(signal.SIGSTOP)
        time.sleep(seconds)
        if member.is_running:
            member.signal(signal.SIGCONT)
        return f"for {seconds:.1f} s", is_seen

    def restart_workers(self) -> Done:
        old = list(self.workers)
        for at, member in enumerate(old):
            if member.is_running:
                member.signal(signal.SIGTERM)
            self.workers[at] = self._start_worker()
            time.sleep(0.5)
        until_s = time.monotonic() + GONE_WITHIN_S
        while any(member.is_running for member in old) and time.monotonic() < until_s:
            time.sleep(0.05)
        codes = sorted({str(member.process.poll()) for member in old})
        is_seen = not any(member.is_running for member in old)
        return f"all {WORKERS} by SIGTERM, one after the other: exit codes {', '.join(codes)}", is_seen

    def replace_dead_workers(self) -> int:
        """Start a worker for each that has ended by itself, as a supervisor does; return how many had."""
        count = 0
        for at, member in enumerate(self.workers):
            if not member.is_running:
                self.workers[at] = self._start_worker()
                count += 1
        return count

    def _start_worker(self) -> Member:
        return self.crew.worker("--grace=5", "--abandon-after=10", "--concurrency=4", "--log-level=warning")

    # --- inside ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _answers_through_proxy(node: Node) -> bool:
        with connect(node.proxy.url, socket_timeout=0.5, socket_connect_timeout=0.5) as client:
            return _answers(client)

    def _seconds(self) -> float:
        return self.rng.uniform(*PAUSE_S)

    def _primary(self) -> Node:
        until_s = time.monotonic() + 30
        while (node := self.nodes.settled()) is None:
            assert time.monotonic() < until_s, "no primary has its replicas"
            time.sleep(0.05)
        return node

    def _replica(self) -> Node:
        primary = self._primary()
        return self.rng.choice([node for node in self.nodes.nodes if node is not primary])


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except (RedisError, OSError):
        return False


def _sleep_until(until_s: float) -> None:
    time.sleep(max(0.0, until_s - time.monotonic()))
