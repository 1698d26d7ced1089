"""Load on the server, independent of the speed of clients: yardsticks, the longest scripts, an idle worker."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

from benchmarks.servers import RedisServer, is_script
from queuehint import Retention, Scheduler
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import scripts
from queuehint.backends.redis.backend import RedisBackend
from queuehint.operations import Tick

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.report import Report

YARDSTICK_RUNS = 2_000
MANY = 1_000
AT_ONCE = 128
KEPT_S = 1
LONGEST_MS = 20
IDLE_PER_S = 0.4


def yardsticks(report: Report, repeats: int) -> None:
    """
    Measure what the server needs for next to nothing.

    So the µs of another machine, or of this one at another hour, can be brought into proportion.
    """
    found: dict[str, list[float]] = {"evalsha": [], "set": []}
    with RedisServer() as server:
        sha = server.client.script_load("return 1")
        for _, command in itertools.product(range(repeats), found):
            server.client.config_resetstat()
            pipeline = server.client.pipeline(transaction=False)
            for _ in range(YARDSTICK_RUNS):
                if command == "evalsha":
                    pipeline.evalsha(sha, 0)
                else:
                    pipeline.set("key", "value")
            pipeline.execute()
            row = server.client.info("commandstats")[f"cmdstat_{command}"]
            found[command].append(row["usec"] / row["calls"])
    report.add("yardstick: EVALSHA of `return 1`, pipelined", "µs", *found["evalsha"])
    report.add("yardstick: SET, pipelined", "µs", *found["set"])


# --- the longest scripts ---------------------------------------------------------------------------------------------


def longest(report: Report, slow: Iterable[tuple[float, str]], repeats: int) -> None:
    """Report the longest scripts of all that ran before; then those of a thousand jobs, also of many segments."""
    report.title("(g) the longest scripts in the slow log of all that queuehint did above")
    _longest_so_far(report, slow)
    report.title(f"(g) {MANY:,} jobs enqueued by one call, run {AT_ONCE} at once, dropped together: the longest script")
    for depth in (3, 16):
        lives, drops = zip(*(_lives(depth) for _ in range(repeats)), strict=True)
        for what, values in (("enqueued and run", lives), ("dropped", drops)):
            figure = report.add(f"{MANY:,} jobs of {depth} segments {what}", "ms", *values)
            # Other load of the machine only adds to it.
            report.aim(f"(g) {figure.name}: longest script, ms", min(values), LONGEST_MS, at_most=True)


def _longest_so_far(report: Report, slow: Iterable[tuple[float, str]]) -> None:
    known = [scripts.script(name) for name in scripts.names()]
    by_name: dict[str, list[float]] = {}
    single_ms = [0.0]
    for ms, sign in slow:
        same = [script.name for script in known if script.sha == sign or script.text.startswith(sign)]
        if same:
            label = f"{same[0]}.lua" if len(same) == 1 else f"one of {len(same)} scripts"
            by_name.setdefault(f"{label}, sent in full" if sign.startswith("#!") else label, []).append(ms)
        elif is_script(sign):
            by_name.setdefault(sign, []).append(ms)
        else:
            single_ms.append(ms)
    for label, times_ms in sorted(by_name.items(), key=lambda item: -max(item[1])):
        report.add(label, "ms", max(times_ms), note=f"the longest of {len(times_ms)} over 1 ms")
    note = "inside scripts or not; if this is long, the machine has kept the server from running"
    report.add("single commands", "ms", max(single_ms), note=note)
    longest_ms = max(itertools.chain([0.0], *by_name.values()))
    report.aim("(g) longest script of all that, ms", longest_ms, LONGEST_MS, at_most=True)


def _lives(depth: int) -> tuple[float, float]:
    """Return the ms of the longest script of the lives of many jobs, and of the end of their records."""
    with RedisServer() as server:
        options = BackendOptions(namespace="bench", retention=Retention(finished=KEPT_S))
        backend = RedisBackend.from_url(server.url, options)
        asyncio.run(_run_all(server, depth))
        lives_ms = _longest_ms(server)
        time.sleep(KEPT_S + 0.1)
        while backend.call_sync(Tick()).more:
            pass
        backend.close_sync()
        return lives_ms, _longest_ms(server)


async def _run_all(server: RedisServer, depth: int) -> None:
    scheduler = Scheduler(server.url, namespace="bench", retention=Retention(finished=KEPT_S))
    left, over = 0, asyncio.Event()

    @scheduler.job(queue_hint=["{doc}", *(str(level) for level in range(2, depth)), "{leaf}"])
    async def deep(doc: str, leaf: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            over.set()

    for count in (1, MANY):
        # The first has the server compile the scripts.
        server.client.slowlog_reset()
        left = count
        over.clear()
        await deep.enqueue_many([(f"doc-{number % 100}", f"leaf-{number}") for number in range(count)])
        async with scheduler.worker(AT_ONCE):
            await over.wait()
    await scheduler.close()


def _longest_ms(server: RedisServer) -> float:
    """Return the ms of the longest script since the last time, 1 if none was longer than that."""
    times_ms = [ms for ms, sign in server.slow() if is_script(sign)]
    server.client.slowlog_reset()
    return max(times_ms, default=1.0)


# --- an idle worker --------------------------------------------------------------------------------------------------


def idle(report: Report, seconds: float) -> None:
    """Report how many commands a second a worker sends that has nothing to do."""
    report.title("an idle worker: commands a second")
    with RedisServer() as server:
        sent = asyncio.run(_idle(server, seconds))
    report.add(f"in {seconds:.0f} s", "1/s", sent / seconds)
    report.aim("idle worker, commands a second", sent / seconds, IDLE_PER_S, at_most=True)


async def _idle(server: RedisServer, seconds: float) -> int:
    scheduler = Scheduler(server.url, namespace="bench")

    @scheduler.job
    async def nothing() -> None:
        pass

    async with scheduler.worker(AT_ONCE):
        await asyncio.sleep(2)
        before = server.sent()
        await asyncio.sleep(seconds)
        sent = server.sent() - before
    await scheduler.close()
    return sent
