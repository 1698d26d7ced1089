"""Load on the server, independent of the speed of clients: yardsticks, the longest scripts, an idle worker."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from benchmarks.servers import RedisServer, is_script
from benchmarks.steps import MANY, Probe, enqueue_and_run, run_and_drop
from queuehint import Scheduler
from queuehint.backends.redis import scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.report import Report
    from benchmarks.steps import Cost

YARDSTICK_RUNS = 2_000
AT_ONCE = 128
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


def longest(report: Report, slow: Iterable[tuple[float, str]], waited_ms: float, repeats: int) -> None:
    """
    Report the longest scripts of all that ran before, by the wall; then those of a thousand jobs, in CPU time.

    Args:
        waited_ms: for how long the servers of all that waited for a CPU.
    """
    report.title("(g) the longest scripts in the slow log of all that queuehint did above, by the wall")
    _longest_so_far(report, slow)
    report.add("these servers waited for a CPU", "ms", waited_ms, note="in all; it is in the times above")
    report.title(f"(g) {MANY:,} jobs enqueued, run and dropped: the longest script, ms of the server's CPU")
    for depth in (3, 16):
        for what, act in (("enqueued and run", enqueue_and_run), ("dropped", run_and_drop)):
            costs = sorted([_longest(act, depth) for _ in range(repeats)], key=lambda cost: cost.cpu_ms)
            values = [cost.cpu_ms for cost in costs]
            figure = report.add(
                f"{MANY:,} jobs of {depth} segments {what}", "ms", *values, note=str(costs[len(costs) // 2])
            )
            report.aim(f"(g) {figure.name}: longest script, ms of CPU", figure.median, LONGEST_MS, at_most=True)


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


def _longest(act: Callable[[Probe], None], depth: int) -> Cost:
    """Return what the longest script of something costs, on a server of its own."""
    with RedisServer() as server:
        # The first has the server load the scripts.
        enqueue_and_run(Probe(server, "first", depth))
        probe = Probe(server, "bench", depth)
        act(probe)
        probe.scheduler.close_sync()
        return max(itertools.chain(*probe.costs.values()), key=lambda cost: cost.cpu_ms)


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
