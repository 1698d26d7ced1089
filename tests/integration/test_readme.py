"""The README and the first page of the docs: its jobs run as its picture shows, and its links lead to files."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from queuehint import JobState, Scheduler

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md"]
JOBS = [
    ("edit", "doc1 intro", 2),
    ("edit", "doc1 body", 4),
    ("edit", "doc1 intro", 3),
    ("snapshot", "doc1", 3),
    ("edit", "doc1 intro", 2),
    ("edit", "doc1 body", 3),
    ("edit", "doc2 intro", 6),
]
"""Task, place, and for how many steps it runs, in the order of enqueue."""
SIGNS = {JobState.QUEUED: "·", JobState.STARTED: "█", JobState.FINISHED: " "}


async def draw() -> str:
    """Run `JOBS` step by step; return one line for each, with what it did in each step."""
    sched = Scheduler()
    ends = [asyncio.Event() for _ in JOBS]
    left = [steps for _, _, steps in JOBS]
    bars = ["" for _ in JOBS]

    @sched.job(queue_hint=["{doc}", "{section}"])
    async def edit(doc: str, section: str, number: int) -> None:
        await ends[number].wait()

    @sched.job(queue_hint=["{doc}"])
    async def snapshot(doc: str, number: int) -> None:
        await ends[number].wait()

    jobs = []
    for number, (task, place, _) in enumerate(JOBS):
        if task == "edit":
            doc, section = place.split()
            jobs.append(await edit.enqueue(doc, section, number))
        else:
            jobs.append(await snapshot.enqueue(place, number))
    async with sched.worker(concurrency=len(JOBS)):
        while any(left):
            while any((await sched.stats()).ready.values()):  # noqa: ASYNC110
                await asyncio.sleep(0)
            states = [await job.state() for job in jobs]
            for number, state in enumerate(states):
                bars[number] += SIGNS[state] * 3
                left[number] -= state is JobState.STARTED
            for number, state in enumerate(states):
                if state is JobState.STARTED and not left[number]:
                    ends[number].set()
                    await jobs[number].result(timeout=5)
    lines = [f"{task:<8} {place:<10}  {bar}" for (task, place, _), bar in zip(JOBS, bars, strict=True)]
    return "\n".join(line.rstrip() for line in lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_picture_of_a_barrier_is_what_the_jobs_do(page: Path) -> None:
    assert f"\n{asyncio.run(draw())}\n```" in page.read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text("utf-8"))
    assert links
    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_how_to_page_is_in_a_group() -> None:
    folder = ROOT / "docs" / "how-to"
    index = (folder / "index.md").read_text("utf-8")
    listed = re.findall(r"^- \[.*?\]\((.+?)\.md\)", index, re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in folder.glob("*.md") if page.stem != "index")
    assert listed == index.split(":hidden:\n\n")[1].split("\n```")[0].split("\n")
