"""The timeline of a barrier: jobs of two documents, run by a worker of the simulator, whose clock is virtual."""

from __future__ import annotations

import asyncio
from functools import cache

import attrs

from queuehint import Scheduler
from queuehint.testing import simulate
from queuehint.testing.trace.drawings import runs_of
from scripts.pictures.svg import MONO, WIDTH, Theme, box, document, line, text

JOBS = [
    ("edit", "doc1 intro", 2),
    ("edit", "doc1 body", 4),
    ("edit", "doc1 intro", 3),
    ("snapshot", "doc1", 3),
    ("edit", "doc1 intro", 2),
    ("edit", "doc1 body", 3),
    ("edit", "doc2 intro", 6),
]
"""Task, place, and how many seconds it takes, in the order of enqueue."""
MARGIN, TOP, ROW, BAR = 164, 40, 27, 17
"""Where time begins, where the first job is drawn, the height of a job's row and of its bar."""


@attrs.frozen
class Lane:
    """A job and its one run, in seconds from the first enqueue on."""

    task: str
    place: str
    started_s: float
    ended_s: float


@cache
def lanes() -> list[Lane]:
    """Enqueue the jobs in a simulated world without faults, and return what its trace says of each."""
    sched = Scheduler(ids="sequence")

    @sched.job(queue_hint=["{doc}", "{section}"])
    async def edit(doc: str, section: str, seconds: int) -> None:
        await asyncio.sleep(seconds)

    @sched.job(queue_hint=["{doc}"])
    async def snapshot(doc: str, seconds: int) -> None:
        await asyncio.sleep(seconds)

    ids: list[str] = []

    async def enqueue_all() -> None:
        for task, place, seconds in JOBS:
            doc, *section = place.split()
            assert task == ("edit" if section else "snapshot")
            job = await (edit.enqueue(doc, section[0], seconds) if section else snapshot.enqueue(doc, seconds))
            ids.append(job.id)

    world = simulate(sched, [enqueue_all], workers=1, concurrency=len(JOBS), faults="none")
    runs = {run.job: run for run in runs_of(world.trace)}
    begin_ms = runs[ids[0]].started_ms
    found = []
    for job_id, (task, place, _) in zip(ids, JOBS, strict=True):
        ended_ms = runs[job_id].ended_ms
        assert ended_ms is not None
        # Whole seconds: a request to the store takes some simulated milliseconds.
        times = [float(round((at_ms - begin_ms) / 1000)) for at_ms in (runs[job_id].started_ms, ended_ms)]
        found.append(Lane(task, place, *times))
    return found


def said() -> str:
    """Return the timeline as text: a line for each job, three signs a second."""
    rows = []
    for lane in lanes():
        waits, runs = "·" * round(3 * lane.started_s), "█" * round(3 * (lane.ended_s - lane.started_s))
        rows.append(f"{lane.task:<8} {lane.place:<10}  {waits}{runs}")
    return "\n".join(["enqueued in this order   time → (· waits, █ runs)", *rows])


def draw(theme: Theme) -> str:
    """Draw the timeline."""
    found = lanes()
    end_s = max(lane.ended_s for lane in found)
    unit = (WIDTH - MARGIN - 16) / end_s
    bottom = TOP + ROW * len(found)
    shapes = [text(16, 25, "enqueued in this order", theme.faint, size=13)]
    shapes.append(text(WIDTH - 16, 25, "time →", theme.faint, size=13, anchor="end"))
    for lane in found:
        if lane.task == "snapshot":
            rows = [row for row, other in enumerate(found) if other.place.split()[0] == lane.place]
            left, width = MARGIN + unit * lane.started_s, unit * (lane.ended_s - lane.started_s)
            shapes.append(box(left, TOP - 2, width, ROW * len(rows), theme.soft, round_by=0))
            edges, foot = (left, left + width), TOP - 2 + ROW * len(rows)
            shapes += [line(edge, TOP - 2, edge, foot, theme.second, dashes="3 3") for edge in edges]
            shapes.append(
                text(left + width / 2, TOP + 13, "barrier", theme.second, size=13, anchor="middle", bold=True)
            )
    for row, lane in enumerate(found):
        y = TOP + ROW * row
        begin, end = MARGIN + unit * lane.started_s, MARGIN + unit * lane.ended_s
        fill = theme.second if lane.task == "snapshot" else theme.first
        shapes.append(text(16, y + 14, f"{lane.task:<9}{lane.place}", theme.ink, size=12, font=MONO))
        if lane.started_s:
            shapes.append(line(MARGIN, y + BAR / 2 + 1, begin, y + BAR / 2 + 1, theme.faint, width=2, dashes="2 4"))
        shapes.append(box(begin, y + 1, end - begin - 1.5, BAR, fill))
    y = bottom + 17
    shapes.append(line(16, y - 4, 44, y - 4, theme.faint, width=2, dashes="2 4"))
    shapes.append(text(52, y, "waits", theme.faint, size=13))
    shapes.append(box(100, y - 12, 28, 14, theme.first))
    shapes.append(text(136, y, "runs", theme.faint, size=13))
    shapes.append(text(WIDTH - 16, y, "doc2 does not wait for doc1", theme.faint, size=13, anchor="end"))
    title = "Sections run in parallel, the snapshot of the whole document alone, then sections again"
    return document(theme, bottom + 30, title, said(), shapes)
