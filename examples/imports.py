"""
An import: check the file, load its records in parallel, then sum up; in order without an edge between jobs.

The three steps differ in their places only:

- ``validate`` at ``[import_id]`` comes first and has the import to itself;
- ``load`` at ``[import_id, record]``, one for each record: these run side by side;
- ``summarise`` at ``[import_id]`` waits for every record enqueued before it, a barrier by place.

Several imports are independent of one another and run at the same time.

    python examples/imports.py     runs three of them and draws what ran when
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from queuehint import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from queuehint import JobHandle

FILES = {
    "plants": {"oak": "12", "elm": "7", "fern": "many", "moss": "31", "ivy": "4"},
    "birds": {"wren": "3", "rook": "44", "swift": "18"},
    "stones": {"flint": "9", "slate": "", "chalk": "27", "basalt": "2"},
}

WIDTH = 60


@attrs.frozen
class Span:
    """When a job ran, in seconds."""

    place: tuple[str, ...]
    task: str
    began_s: float
    ended_s: float


@attrs.frozen
class Report:
    """The result of `summarise`; results travel as JSON and come back as the type in the handler's annotation."""

    loaded: int
    total: int
    rejected: list[str]


async def run_imports(
    files: Mapping[str, Mapping[str, str]], *, step_s: float = 0.1
) -> tuple[list[Report], list[Span]]:
    """
    Import files, given as records by name, side by side.

    Args:
        step_s: how long each step takes, in place of real work.

    Returns:
        One report for each file, and when each job ran.
    """
    sched = Scheduler()
    tables: dict[str, dict[str, int]] = {}
    rejected: dict[str, list[str]] = {}
    spans: list[Span] = []

    @contextmanager
    def noted(task: str, *place: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        spans.append(Span(place, task, began_s, time.perf_counter()))

    @sched.job(queue_hint=["{import_id}"])
    async def validate(import_id: str) -> None:
        with noted("validate", import_id):
            await asyncio.sleep(step_s)
            tables[import_id] = {}
            rejected[import_id] = [name for name, text in files[import_id].items() if not text.isdecimal()]

    @sched.job(queue_hint=["{import_id}", "{record}"])
    async def load(import_id: str, record: str) -> None:
        with noted("load", import_id, record):
            await asyncio.sleep(step_s)
            if record not in rejected[import_id]:
                tables[import_id][record] = int(files[import_id][record])

    @sched.job(queue_hint=["{import_id}"])
    async def summarise(import_id: str) -> Report:
        with noted("summarise", import_id):
            await asyncio.sleep(step_s)
            table = tables[import_id]
            return Report(len(table), sum(table.values()), rejected[import_id])

    async with sched, sched.worker(concurrency=16):
        handles: list[JobHandle[Report]] = []
        for import_id, records in files.items():
            await validate.enqueue(import_id)
            await load.enqueue_many([(import_id, record) for record in records])
            handles.append(await summarise.enqueue(import_id))
        reports = [await handle.result(timeout=60) for handle in handles]
    return reports, spans


def chart(spans: Sequence[Span]) -> str:
    """Draw one line for each job, from its begin to its end."""
    first_s = min(span.began_s for span in spans)
    scale = WIDTH / (max(span.ended_s for span in spans) - first_s)
    lines = []
    for span in sorted(spans, key=lambda span: (span.place[0], span.began_s, span.place)):
        begin = round((span.began_s - first_s) * scale)
        end = max(begin + 1, round((span.ended_s - first_s) * scale))
        bar = " " * begin + "#" * (end - begin)
        lines.append(f"{span.task:<9}  {' / '.join(span.place):<16} |{bar:<{WIDTH}}|")
    return "\n".join(lines)


def greatest_at_once(spans: Sequence[Span]) -> int:
    """Return how many jobs ran at once at most."""
    # At the same moment an end comes before a begin.
    moments = sorted([(span.began_s, 1) for span in spans] + [(span.ended_s, -1) for span in spans])
    running = greatest = 0
    for _, change in moments:
        running += change
        greatest = max(greatest, running)
    return greatest


def main() -> int:
    """Run the imports and print what happened."""
    reports, spans = asyncio.run(run_imports(FILES))
    print(chart(spans))
    print(f"\n{len(spans)} jobs, {greatest_at_once(spans)} at once at most")
    for import_id, report in zip(FILES, reports, strict=True):
        bad = f", rejected {', '.join(report.rejected)}" if report.rejected else ""
        print(f"{import_id}: {report.loaded} records, {report.total} in all{bad}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
