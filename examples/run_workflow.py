"""
Run a recorded workflow again: a job for each of its tasks, an edge for each of its arrows, results handed along them.

A task waits as long as it once ran, scaled down, and returns a digest of its name and of its parents' results. At the
end the records are checked: every task ran once, after all its parents, and with their results.

    python examples/run_workflow.py FILE             in this process
    python examples/run_workflow.py --speed 50 FILE  50 times as fast as recorded (200)
    python examples/run_workflow.py --workers 3 FILE with three worker processes; needs QUEUEHINT_URL=redis://...
                                                     and queuehint[cli]. Kill one on the way: nothing is lost

A recording is JSON, gzipped or not, in WfFormat (https://wfcommons.org), such as https://github.com/wfcommons/WfInstances
offers: ``workflow.specification.tasks`` with ``id`` and ``parents``, run times in ``workflow.execution.tasks``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from queuehint import JobContext, JobState, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from queuehint import FlowHandle, JobRecord

LOOK_S = 0.1

sched = Scheduler(lease=3)


class WorkflowError(Exception):
    """There is no recorded workflow here."""


@attrs.frozen
class Task:
    """One task: its id, the ids of its parents, and how long it ran."""

    id: str
    parents: tuple[str, ...]
    seconds: float


@attrs.frozen(kw_only=True)
class Summary:
    """The outcome of a run: its errors, if any, and how long it took."""

    tasks: int
    edges: int
    problems: Sequence[str]
    lost: int
    seconds: float


@sched.job
async def task(ctx: JobContext, name: str, seconds: float, inputs: list[str]) -> str:
    """Be one task: take as long, and sign what was handed in."""
    await asyncio.sleep(seconds)
    ctx.log(f"{name} had {len(inputs)} inputs")
    return signature(name, inputs)


def signature(name: str, inputs: Sequence[str]) -> str:
    """Return what only a task can return that has these results of its parents."""
    return hashlib.sha256("\n".join([name, *inputs]).encode()).hexdigest()[:16]


async def run(tasks: Sequence[Task], *, speed: float, concurrency: int, workers: int = 0, bar: bool = False) -> Summary:
    """
    Run recorded tasks as a flow.

    Args:
        tasks: each after its parents.
        speed: how much faster than recorded.
        workers: how many processes work; none: this one does.
        bar: draw a progress bar.
    """
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(sched)
        if not workers:
            await stack.enter_async_context(sched.worker(concurrency))
        elif sched.backend.is_local:
            raise WorkflowError("worker processes need a store they share: set QUEUEHINT_URL to a redis:// URL")
        began = time.perf_counter()
        async with sched.flow() as flow:
            nodes: dict[str, Any] = {}
            for each in tasks:
                inputs = [nodes[parent].out for parent in each.parents]
                nodes[each.id] = flow.add(task.using(name=each.id), each.id, each.seconds / speed, inputs)
        stack.enter_context(processes(workers, concurrency))
        await watch(flow, len(tasks), bar=bar)
        seconds = time.perf_counter() - began
        records = {record.spec.name or record.id: record async for record in flow.jobs()}
    return Summary(
        tasks=len(tasks),
        edges=sum(len(each.parents) for each in tasks),
        problems=problems(tasks, records),
        lost=sum(record.losses for record in records.values()),
        seconds=seconds,
    )


async def watch(flow: FlowHandle, total: int, *, bar: bool) -> None:
    """Return when a flow is over or can go no further; draw how far it is."""
    while True:
        states = (await flow.stats()).states
        moving = sum(states[state] for state in (JobState.SCHEDULED, JobState.QUEUED, JobState.STARTED))
        done = sum(count for state, count in states.items() if state.is_over)
        is_over = not moving and (done == total or states[JobState.FAILED] > 0)
        if bar:
            drawn = "#" * (40 * done // max(total, 1))
            end = "\n" if is_over else ""
            text = f"\r[{drawn:<40}] {done} of {total} tasks, {states[JobState.STARTED]:>3} at once"
            print(text, end=end, file=sys.stderr, flush=True)
        if is_over:
            return
        await asyncio.sleep(LOOK_S)


@contextlib.contextmanager
def processes(count: int, concurrency: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Let worker processes run while the block does."""
    command = [sys.executable, "-m", "queuehint", "worker", f"{Path(__file__).stem}:sched"]
    folder = Path(__file__).resolve().parent
    running = [
        subprocess.Popen(
            [*command, "--concurrency", str(concurrency)], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}
        )
        for _ in range(count)
    ]
    try:
        yield running
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait()


def problems(tasks: Sequence[Task], records: Mapping[str, JobRecord]) -> list[str]:
    """Return what the records show to be wrong: nothing if every task ran once, after its parents, on their results."""
    found = []
    signed: dict[str, str] = {}
    for each in tasks:
        signed[each.id] = signature(each.id, [signed[parent] for parent in each.parents])
        record = records.get(each.id)
        if record is None or record.state is not JobState.FINISHED:
            found.append(f"{each.id} is {'lost' if record is None else record.state}")
            continue
        if record.attempts != 1:
            found.append(f"{each.id} ran {record.attempts} times")
        if record.result is None or json.loads(record.result)["result"] != signed[each.id]:
            found.append(f"{each.id} had other results than those of its parents")
        for parent in each.parents:
            ended_ms = records[parent].ended_ms if parent in records else None
            if ended_ms is None or record.started_ms is None or record.started_ms < ended_ms:
                found.append(f"{each.id} began before {parent} had ended")
    return found


def load(file: Path) -> list[Task]:
    """
    Read a recorded workflow; each task comes after its parents.

    Raises:
        WorkflowError: the file cannot be read, or is something else.
    """
    try:
        data = file.read_bytes()
        recorded = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["workflow"]
        seconds = {each["id"]: float(each.get("runtimeInSeconds") or 0) for each in recorded["execution"]["tasks"]}
        left = {each["id"]: tuple(dict.fromkeys(each["parents"])) for each in recorded["specification"]["tasks"]}
    except OSError as error:
        raise WorkflowError(f"{file}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise WorkflowError(f"{file} is not a recorded workflow: {error!r}") from None
    ordered: dict[str, Task] = {}
    while left:
        ready = [each for each, parents in left.items() if all(parent in ordered for parent in parents)]
        if not ready:
            raise WorkflowError(f"{file}: tasks wait for each other, or for one that is not there")
        for each in ready:
            ordered[each] = Task(each, left.pop(each), seconds.get(each, 0.0))
    return list(ordered.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all is proved, 1 if not, 2 if there was nothing to run."""
    parser = argparse.ArgumentParser(description="Run a recorded workflow again, and prove that it ran right.")
    parser.add_argument("file", type=Path, metavar="FILE", help="a recording in WfFormat, .json or .json.gz")
    parser.add_argument("--speed", type=positive, default=200, metavar="N", help="times as fast as recorded (200)")
    parser.add_argument("--concurrency", type=positive, default=16, metavar="N", help="slots of a worker (16)")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="worker processes; 0: this one works (0)")
    options = parser.parse_args(arguments)
    try:
        tasks = load(options.file)
        job = run(
            tasks,
            speed=options.speed,
            concurrency=options.concurrency,
            workers=options.workers,
            bar=sys.stderr.isatty(),
        )
        summary = asyncio.run(job)
    except WorkflowError as error:
        print(error, file=sys.stderr)
        return 2
    for problem in summary.problems:
        print(problem)
    recorded_s = sum(each.seconds for each in tasks)
    print(
        f"{plural(summary.tasks, 'task')}, {plural(summary.edges, 'edge')}: {recorded_s:.0f} s of work "
        f"in {summary.seconds:.1f} s; {plural(summary.lost, 'attempt')} lost with a worker; "
        + ("every task ran once, after its parents, with their results" if not summary.problems else "NOT as it should")
    )
    return 1 if summary.problems else 0


def plural(number: int, noun: str) -> str:
    """Return "1 task" or "2 tasks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def positive(text: str) -> int:
    """Read a number from 1 to 1000."""
    number = int(text)
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and 1000")
    return number


if __name__ == "__main__":
    sys.exit(main())
