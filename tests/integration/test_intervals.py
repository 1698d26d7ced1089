"""Intervals of this queue, recorded by its own producers and handlers, and the command that judges a log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from queuehint import JobContext, Scheduler
from queuehint.cli.app import app
from queuehint.testing import IntervalRecorder, examine_intervals, read_intervals
from tests.commands import CliRunner
from tests.schedulers import run
from tests.servers import new_namespace

OVERTAKEN = """\
{"job": "a", "hint": ["doc1"], "called": 0, "returned": 1, "runs": [[20, 30]]}
{"job": "b", "hint": ["doc1", "intro"], "called": 5, "returned": 6, "runs": [[10, 15]]}
"""


def check(*arguments: str, input: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check-intervals", *arguments], input=input)
    return result.exit_code, result.output


def work_through(sched: Scheduler, path: Path, *, jobs: int) -> None:
    """Have two producers enqueue at conflicting places, and two workers run the jobs, some of them twice."""
    recorder = IntervalRecorder(path)
    random = Random(7)
    failed: set[str] = set()

    @sched.job(queue_hint=["{doc}"], max_attempts=2)
    async def edit(ctx: JobContext, doc: str, seen: str) -> None:
        with recorder.run(seen):
            await asyncio.sleep(0)
            if seen not in failed and random.random() < 0.1:
                failed.add(seen)
                raise ValueError("again")

    @sched.job(queue_hint=["{doc}", "{section}"])
    async def section(doc: str, section: str, seen: str) -> None:
        with recorder.run(seen):
            await asyncio.sleep(0)

    async def produce() -> None:
        for _ in range(jobs):
            doc = random.choice("ab")
            if random.random() < 0.5:
                with recorder.enqueue([doc]) as seen:
                    await edit.using(backoff=[0.001]).enqueue(doc, seen)
            else:
                name = random.choice("xyz")
                with recorder.enqueue([doc, name]) as seen:
                    await section.enqueue(doc, name, seen)

    async def main() -> None:
        async with sched.worker(concurrency=4), sched.worker(concurrency=4):
            await asyncio.gather(produce(), produce())
            await sched.drain()

    run(main())


def test_scheduler_in_memory_is_cleared_by_its_intervals(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    work_through(Scheduler("memory://"), path, jobs=100)
    code, output = check("--complete", str(path))
    assert code == 0, output
    tried, verdict = output.splitlines()
    runs = int(verdict.split()[0])
    assert verdict == f"{runs} runs of 200 jobs: in order"
    assert runs > 200
    assert tried.endswith("jobs came while one that conflicts was not over") and int(tried.split()[1]) > 0


def test_scheduler_on_redis_is_cleared_by_its_intervals(redis_url: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    work_through(Scheduler(redis_url, namespace=new_namespace("intervals")), path, jobs=50)
    log = read_intervals(path.read_bytes().splitlines(keepends=True))
    assert examine_intervals(log.jobs, complete=True).faults == ()


def test_log_that_breaks_a_rule_is_told_with_a_picture() -> None:
    code, output = check("-", input=OVERTAKEN)
    assert code == 1
    assert output.splitlines()[1:] == [
        "    ms             0   1   5   6   10  15  20",
        "  * a  doc1        N...Q...................S",
        "  * b  doc1:intro          N...Q...S===E",
        "                                   ^ order",
        "    N enqueued, Q queued, S started, E ended; . waits, = runs",
        "",
        "2 runs of 2 jobs: 1 fault",
    ]


def test_tolerance_that_clears_a_log_is_told() -> None:
    code, output = check("-", "--tolerance", "10", input=OVERTAKEN)
    assert code == 0
    assert " ".join(output.split()) == (
        "not judged: break a rule by no more than the tolerance of 10 ms, one of them by 4 ms: 1 run "
        "not judged: took no longer than the tolerance of 10 ms, so that no overlap of two of them is certain: "
        "2 of 2 runs "
        "tried: 1 job came while one that conflicts was not over "
        "2 runs of 2 jobs: in order, within the tolerance of 10 ms"
    )
    assert len(json.loads(check("-", "--json", "--tolerance", "10", input=OVERTAKEN)[1])["unjudged"]) == 2


def test_log_is_judged_as_json(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    for file, line in zip(files, OVERTAKEN.splitlines(), strict=True):
        file.write_text(line)
    code, output = check("--json", *map(str, files))
    said = json.loads(output)
    assert (code, said["clean"], said["jobs"], said["attempts"]) == (1, False, 2, 2)
    assert [(fault["rule"], fault["job"], fault["other"]) for fault in said["faults"]] == [("order", "b", "a")]


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "0 runs of 0 jobs: there was nothing to check"),
        ('{"job": "a", "hint": ["x"], "called": 0, "returned": 1}', "0 runs of 1 jobs: there was nothing to check"),
        ('{"job": "a", "runs": [[2, 3]]}', "1 runs of 1 jobs: no place is known, so that no order was checked"),
        ("{}\n", "line 1: a time stamp (stamp) or a job (job) is expected"),
        (
            OVERTAKEN.replace('"called": 0', '"called": 1').replace("[[20", "[[0"),
            "tolerance_ms must be at least 1, got 0",
        ),
    ],
)
def test_log_without_runs_or_in_another_form_exits_with_2(text: str, said: str) -> None:
    code, output = check("-", input=text)
    assert (code, said in output) == (2, True), output


def test_missing_file_exits_with_2(tmp_path: Path) -> None:
    code, output = check(str(tmp_path / "missing"))
    assert (code, "missing: No such file or directory" in output) == (2, True)


def test_incomplete_log_is_a_fault_only_on_request() -> None:
    lost = OVERTAKEN.splitlines()[0].replace("[[20, 30]]", "[[20]]")
    code, output = check("-", input=lost)
    assert (code, "not judged: began and were not seen to end" in output) == (0, True)
    code, output = check("--complete", "-", input=lost)
    assert (code, "not_over: a began and never ended" in output) == (1, True)
