"""
Several worker processes below a parent that supervises them.

Each child is started anew as ``python -m queuehint worker``, never forked, in a process group of its own: signals of a
terminal reach the parent only, which sends commands to its children over their standard input. A child whose input
ends has lost its parent, and stops. A child that ends by itself is restarted, with a back-off if it ends soon,
and at once if it has ended because source files have changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuehint.cli.health import AGE_MAX_S, Health
from queuehint.cli.leader import LeaderProcess, read_told
from queuehint.cli.reload import EXIT_RELOAD

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("queuehint.cli")

EXIT_USAGE = 2
PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 30.0
LIVES_LONG_S = 60.0
AT_ONCE_S = 15.0
"""How long a child has to end at once: it gives itself 5 s to release and 3 s to tidy up."""


class Processes:
    """
    Keeps *count* children.

    Args:
        arguments: what a child is called with, given where it is to write its health, if anywhere.
        stop_within_s: how long children have after the first signal until they are killed.
        health_file, health_port, health_host: as of `Health`; healthy when all children are.
        pause_max_s: the longest back-off of a child that ends again and again.
        leads: a process of its own leads the store for the children, if it is one that a process leads: which store
            that is they tell, by `queuehint.cli.leader.tell`.
    """

    def __init__(
        self,
        arguments: Callable[[Path | None], list[str]],
        count: int,
        *,
        stop_within_s: float,
        health_file: Path | None,
        health_port: int | None,
        health_host: str,
        pause_max_s: float = PAUSE_MAX_S,
        leads: bool = False,
    ) -> None:
        self._arguments = arguments
        self._count = count
        self._stop_within_s = stop_within_s
        self._pause_max_s = pause_max_s
        self._health = Health(self._known, file=health_file, port=health_port, host=health_host)
        self._has_health = health_file is not None or health_port is not None
        self._folder = Path()
        self._leads = leads
        self._leader: LeaderProcess | None = None
        self._pipe: tuple[int, int] | None = None
        """Over which children tell which store they use."""
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._signals = 0
        self._stopping: asyncio.Event | None = None
        self._code = 0

    def run(self) -> int:
        """Keep the children until a stop signal has ended all. Return the exit code."""
        with tempfile.TemporaryDirectory(prefix="queuehint-") as folder:
            self._folder = Path(folder)
            try:
                self._health.start()
            except OSError as error:
                sys.stderr.write(f"queuehint worker: health: {error}\n")
                return EXIT_USAGE
            try:
                asyncio.run(self._keep_all())
            finally:
                self._health.end()
        return self._code

    async def _keep_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Elsewhere Ctrl-C ends this process, and its children hear of it as their input ends.
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, self._signal)
        if self._leads and os.name == "posix":
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
            loop.add_reader(self._pipe[0], self._hear)
        try:
            await asyncio.gather(*[self._keep(index, self._stopping) for index in range(self._count)])
        finally:
            await self._end_leader()

    def _hear(self) -> None:
        """Have a process lead the store named by a child, unless it is the same as before."""
        assert self._pipe is not None
        for config in read_told(self._pipe[0]):
            before = self._leader
            if before is None or before.config != config:
                self._leader = LeaderProcess(config)
                self._leader.start()
                if before is not None:
                    asyncio.get_running_loop().run_in_executor(None, before.end)

    async def _end_leader(self) -> None:
        """End the leading process, once no child needs it."""
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe[0])
            for each in self._pipe:
                os.close(each)
        if self._leader is not None:
            await asyncio.to_thread(self._leader.end)

    async def _keep(self, index: int, stopping: asyncio.Event) -> None:
        """Start one child again and again."""
        pause_s = PAUSE_MIN_S
        while not stopping.is_set():
            began_s = time.monotonic()
            child = await self._start(index)
            self._children[index] = child
            if stopping.is_set():
                self._say(child)
            code = await child.wait()
            del self._children[index]
            if code == EXIT_USAGE:
                # Nothing changes by trying again, for none of them.
                self._code = code
                self._stop()
            if code == EXIT_RELOAD:
                code, pause_s = 0, PAUSE_MIN_S
                if not stopping.is_set():
                    continue
            if stopping.is_set():
                self._code = self._code or (128 - code if code < 0 else code)
                return
            pause_s = PAUSE_MIN_S if time.monotonic() - began_s > LIVES_LONG_S else pause_s
            logger.error(
                "a worker process has ended and is started again",
                extra={"event": "process.ended", "child": child.pid, "code": code, "pause_s": pause_s},
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), pause_s)
            pause_s = min(pause_s * 2, self._pause_max_s)

    async def _start(self, index: int) -> asyncio.subprocess.Process:
        health_file = self._folder / f"{index}.json" if self._has_health else None
        more: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
        arguments = self._arguments(health_file)
        if self._pipe is not None:
            more["pass_fds"] = self._pipe[1:]
            arguments.append(f"--leader-pipe={self._pipe[1]}")
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "queuehint",
            *arguments,
            stdin=subprocess.PIPE,
            **more,
        )

    def _signal(self) -> None:
        """Stop all children. The second call stops them at once."""
        self._signals += 1
        self._stop()

    def _stop(self) -> None:
        assert self._stopping is not None
        self._stopping.set()
        at_once = self._signals > 1
        for child in self._children.values():
            self._say(child)
        within_s = AT_ONCE_S if at_once else self._stop_within_s
        asyncio.get_running_loop().call_later(within_s, self._kill)

    def _say(self, child: asyncio.subprocess.Process) -> None:
        """Send a child a stop request, or a request to stop at once."""
        assert child.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):  # it has ended
            child.stdin.write(b"now\n" if self._signals > 1 else b"stop\n")

    def _kill(self) -> None:
        for child in self._children.values():
            logger.error(
                "a worker process does not end and is killed",
                extra={"event": "process.killed", "child": child.pid},
            )
            with contextlib.suppress(ProcessLookupError):
                child.kill()

    def _known(self) -> dict[str, Any]:
        """Return the health report."""
        children = [self._read(index) for index in range(self._count)]
        trips = [child.get("last_round_trip") or 0 for child in children]
        return {
            "healthy": time.time() - min(trips) <= AGE_MAX_S,
            "pid": os.getpid(),
            "last_round_trip": min(trips) or None,
            "running": sum(child.get("running", 0) for child in children),
            "stopping": self._stopping is not None and self._stopping.is_set(),
            "clock_behind_s": max(child.get("clock_behind_s", 0.0) for child in children),
            "processes": children,
        }

    def _read(self, index: int) -> dict[str, Any]:
        try:
            known: dict[str, Any] = json.loads((self._folder / f"{index}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return known
