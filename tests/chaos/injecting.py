"""
The faults of a chaos run: what each does, for how long, and what is put right after it.

Every kind is a method of `Injector` that returns what it did, in words. The order and all sizes come from one seed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from typing import TYPE_CHECKING

import attrs
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.chaos.clocks import ServerClock
    from tests.chaos.nodes import Node, Nodes
    from tests.faults.worker_processes import Crew, Member

WORKERS = 4
PAUSE_S = (1.5, 4.0)
CLOCK_STEP_S = (0.5, 4.0)
OFFSET_MAX_S = 10.0


@attrs.frozen
class Injected:
    """A fault: from its begin to the moment when one primary had two replicas in step again."""

    kind: str
    what: str
    begun_s: float
    settled_s: float | None
    """When the servers were settled; None if they were not in a minute."""


class Injector:
    """Injects the faults of a seed, one after the other, each kind once before any comes again."""

    def __init__(self, nodes: Nodes, crew: Crew, clock: ServerClock, seed: int, kinds: Sequence[str] = ()) -> None:
        self.nodes = nodes
        self.crew = crew
        self.clock = clock
        self.rng = random.Random(f"faults {seed}")
        self.workers: list[Member] = []
        self.kinds: dict[str, Callable[[], str]] = {
            "primary killed": self.kill_primary,
            "primary frozen": self.freeze_primary,
            "primary cut off": self.cut_off_primary,
            "failover ordered": self.order_failover,
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
        what = self.kinds[kind]()
        took_s = self.nodes.wait_until_settled()
        return Injected(kind, what, begun_s, None if took_s is None else time.monotonic())

    # --- servers -----------------------------------------------------------------------------------------------------

    def kill_primary(self) -> str:
        return self._kill(self._primary())

    def kill_replica(self) -> str:
        return self._kill(self._replica())

    def _kill(self, node: Node) -> str:
        down_s = self._seconds()
        node.server.kill()
        time.sleep(down_s)
        self.nodes.restart(node)
        return f"node {node.number} down for {down_s:.1f} s"

    def freeze_primary(self) -> str:
        node, seconds = self._primary(), self._seconds()
        node.server.pause()
        time.sleep(seconds)
        node.server.resume()
        return f"node {node.number} stopped for {seconds:.1f} s"

    def cut_off_primary(self) -> str:
        return self._cut_off(self._primary())

    def cut_off_replica(self) -> str:
        return self._cut_off(self._replica())

    def _cut_off(self, node: Node) -> str:
        seconds = self._seconds()
        node.proxy.blackhole()
        time.sleep(seconds)
        node.proxy.heal()
        # Connections whose bytes were lost would stay mute: routers that forgot them answer so.
        node.proxy.rst()
        return f"node {node.number} answered nobody for {seconds:.1f} s"

    def order_failover(self) -> str:
        old = self._primary()
        with contextlib.suppress(RedisError):
            self.nodes.sentinels[0].call("SENTINEL", "FAILOVER", "queuehint")
        until_s = time.monotonic() + 10
        while self.nodes.named() is old and time.monotonic() < until_s:
            time.sleep(0.05)
        return f"node {old.number} replaced"

    def freeze_sentinel(self) -> str:
        sentinel, seconds = self.rng.choice(self.nodes.sentinels), self._seconds()
        sentinel.pause()
        time.sleep(seconds)
        sentinel.resume()
        return f"one of three for {seconds:.1f} s"

    def fill_memory(self) -> str:
        node, seconds = self._primary(), self._seconds()
        with contextlib.suppress(RedisError, OSError):
            used = int(node.client.info("memory")["used_memory"])
            node.client.config_set("maxmemory", used * 99 // 100)
        time.sleep(seconds)
        with contextlib.suppress(RedisError, OSError):
            node.client.config_set("maxmemory", 0)
        return f"node {node.number} at 101 % of maxmemory for {seconds:.1f} s"

    def set_clock_forward(self) -> str:
        return self._step(1)

    def set_clock_back(self) -> str:
        return self._step(-1)

    def _step(self, sign: int) -> str:
        seconds = sign * self.rng.uniform(*CLOCK_STEP_S)
        if abs(self.clock.offset_s + seconds) > OFFSET_MAX_S:
            seconds = -seconds
        self.clock.step(seconds)
        if seconds < 0:
            self.clock.backward_at_s.append(time.monotonic())
        # Where it was set back, the namespace's time stands still for as long.
        time.sleep(max(0.5, -seconds))
        return f"all servers by {seconds:+.1f} s"

    def flush_scripts(self) -> str:
        node = self._primary()
        with contextlib.suppress(RedisError, OSError):
            node.client.script_flush()
            node.client.function_flush()
        return f"scripts and functions of node {node.number}"

    # --- links -------------------------------------------------------------------------------------------------------

    def reset_connections(self) -> str:
        for _ in range(3):
            self._primary().proxy.rst()
            time.sleep(0.3)
        return "all of the primary, three times"

    def cut_replies(self) -> str:
        proxy, times = self._primary().proxy, self.rng.randint(3, 8)
        # What has the name of the namespace: requests of queuehint, none of replicas and sentinels.
        proxy.cut_after(b"{qh:", times=times)
        time.sleep(2.0)
        proxy.disarm()
        return f"up to {times} requests were run, and their replies lost"

    def slow_link(self) -> str:
        proxy, ms, seconds = self._primary().proxy, self.rng.uniform(20, 120), self._seconds()
        proxy.delay(ms, jitter_ms=ms / 2)
        time.sleep(seconds)
        proxy.delay(0)
        return f"{ms:.0f} ms each way for {seconds:.1f} s"

    # --- workers -----------------------------------------------------------------------------------------------------

    def kill_worker(self) -> str:
        at, has_helper = self.rng.randrange(WORKERS), self.rng.random() < 0.5
        self.workers[at].kill(group=not has_helper)
        self.workers[at] = self._start_worker()
        return "without its helper" if has_helper else "with its helper"

    def freeze_worker(self) -> str:
        member, seconds = self.rng.choice(self.workers), self._seconds()
        member.signal(signal.SIGSTOP)
        time.sleep(seconds)
        if member.is_running:
            member.signal(signal.SIGCONT)
        return f"for {seconds:.1f} s"

    def restart_workers(self) -> str:
        for at, member in enumerate(self.workers):
            if member.is_running:
                member.signal(signal.SIGTERM)
            self.workers[at] = self._start_worker()
            time.sleep(0.5)
        return f"all {WORKERS} by SIGTERM, one after the other"

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
