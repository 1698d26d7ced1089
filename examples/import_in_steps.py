"""
An import that goes on where it was: 100 000 records in steps of 1 000, while its workers are killed 20 times.

Each part is a step, `JobContext.step`. A worker that is killed by ``kill -9`` loses the job to another one, which finds
the results of all parts that were stored, and loads again no more than the part that was under way.

The import runs twice, once left alone and once with workers killed at random. Both times every effect is counted: here
a line in a file, in place of a row in a database.

    QUEUEHINT_URL=redis://localhost:6379/0 python examples/import_in_steps.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from queuehint import JobContext, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint import JobHandle

WRITES = 10
"""A part is written in so many portions, so that a worker may be killed in the middle of one."""
LINE = 8
"""How many bytes a record takes in the file."""

sched = Scheduler()


@attrs.frozen
class Summary:
    """
    One run of the import.

    Args:
        seconds: from its enqueue to its result.
        effects: how many records were written, repeated ones included.
        missing: how many were not.
        most: how often the same record was written at most.
        killed: how many workers were.
        steps: how many steps are stored.
        losses: how many losses of workers the job has counted.
    """

    seconds: float
    effects: int
    missing: int
    most: int
    killed: int
    steps: int
    losses: int


def count(records: int) -> int:
    """Return how many records there are, in place of a download that should not be made twice."""
    return records


async def load(file: str, first: int, last: int, part_s: float) -> int:
    """Write records *first* to *last* to the file, and take *part_s* for it."""
    size = max(1, (last - first) // WRITES)
    for begin in range(first, last, size):
        await asyncio.sleep(part_s * size / (last - first))
        write(file, range(begin, min(begin + size, last)))
    return last - first


def write(file: str, records: range) -> None:
    """Append records to the file, in one write."""
    with Path(file).open("ab", buffering=0) as out:
        out.write("".join([f"{record:07}\n" for record in records]).encode())


@sched.job(["imports", "{file}"], max_losses=1000, retry=[0])
async def import_records(ctx: JobContext, file: str, records: int, part: int, part_s: float) -> int:
    """Import records in parts, each a step."""
    Path(f"{file}.new").write_text(str(os.getpid()))
    Path(f"{file}.new").replace(f"{file}.pid")
    total = await ctx.step("count", count, records)
    loaded = 0
    for first in range(0, total, part):
        loaded += await ctx.step(f"load-{first}", load, file, first, min(first + part, total), part_s)
    return loaded


@contextmanager
def workers(processes: int) -> Iterator[None]:
    """Run workers; one that dies is replaced by its supervisor."""
    command = [sys.executable, "-m", "queuehint", "worker", f"{Path(__file__).stem}:sched", "--concurrency", "1"]
    command += ["--processes", str(processes), "--log-level", "error"]
    supervisor = subprocess.Popen(command, cwd=Path(__file__).parent)
    try:
        yield
    finally:
        supervisor.terminate()
        supervisor.wait()


async def see_workers(count: int) -> None:
    """Wait until so many workers are there: on a busy machine it takes seconds to start them."""
    while True:
        if len(await sched.workers()) >= count:
            return
        await asyncio.sleep(0.1)


async def kill_at(file: Path, points: list[int], job: JobHandle[int]) -> int:
    """Kill the worker that runs the import whenever so many records are written; return how many were killed."""
    killed, last = 0, 0
    for point in points:
        while not (file.exists() and file.stat().st_size >= point * LINE):
            await asyncio.sleep(0.002)
            if (await job.state()).is_over:
                return killed
        pid = int(Path(f"{file}.pid").read_text())
        while pid == last:  # the next one has not begun yet
            await asyncio.sleep(0.002)
            pid = int(Path(f"{file}.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        killed, last = killed + 1, pid
    return killed


async def run_once(
    file: Path, *, workers_there: int, records: int, part: int, part_s: float, kills: int, seed: int
) -> Summary:
    """Import records to a file once so many workers are there, and kill some of them meanwhile."""
    async with sched:
        await see_workers(workers_there)
        began_s = time.perf_counter()
        job = await import_records.enqueue(str(file), records, part, part_s)
        points = sorted(random.Random(seed).sample(range(records), kills))
        killing = asyncio.create_task(kill_at(file, points, job))
        await job.result(timeout=3600)
        seconds = time.perf_counter() - began_s
        killed = await killing
        record = await job.record()
    written = Counter(file.read_bytes().split())
    return Summary(
        seconds=round(seconds, 2),
        effects=written.total(),
        missing=sum(not written[b"%07d" % each] for each in range(records)),
        most=max(written.values()),
        killed=killed,
        steps=len(record.steps),
        losses=record.losses,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Import records in steps, and kill the workers meanwhile.")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--part", type=int, default=1_000, help="records in a step")
    parser.add_argument("--part-seconds", type=float, default=0.5, help="how long a step takes")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=12, help="how many workers there are")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if "QUEUEHINT_URL" not in os.environ:
        parser.error("set QUEUEHINT_URL: workers are processes of their own")
    options = {
        "workers_there": asked.processes,
        "records": asked.records,
        "part": asked.part,
        "part_s": asked.part_seconds,
        "seed": asked.seed,
    }
    with tempfile.TemporaryDirectory() as folder, workers(asked.processes):
        alone, killed = [
            asyncio.run(run_once(Path(folder, f"{kills}"), kills=kills, **options)) for kills in (0, asked.kills)
        ]
    print(json.dumps({"alone": attrs.asdict(alone), "killed": attrs.asdict(killed)}, indent=2))
    repeated = killed.effects - asked.records
    print(f"{killed.killed} workers killed: {killed.seconds / alone.seconds:.2f} of the time without", end=", ")
    print(f"{killed.missing} records missing, {repeated} written again, none more than {killed.most} times")


if __name__ == "__main__":
    main()
