"""Recorded workflows run again as flows: every task once, after all its parents, with their results."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from examples import run_workflow
from queuehint import JobState, Scheduler
from tests.recordings import recording
from tests.servers import new_namespace, shared_server
from tests.support import LIMIT_S, until_sync

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ("1000genome-2ch", "bwa-small", "montage-005d", "rnaseq")
INVENTED = "invented"
# Their processes are the same and slow to start: one is killed by day.
AT_NIGHT = (INVENTED, *(pytest.param(name, marks=pytest.mark.nightly) for name in RECORDED))


def recorded(*tasks: tuple[str, list[str]], seconds: float = 0.5) -> dict[str, Any]:
    """Return a recording of tasks with their parents, in WfFormat."""
    return {
        "workflow": {
            "specification": {"tasks": [{"id": each, "parents": parents} for each, parents in tasks]},
            "execution": {"tasks": [{"id": each, "runtimeInSeconds": seconds} for each, _ in tasks]},
        }
    }


@pytest.fixture
def diamond(tmp_path: Path) -> Path:
    file = tmp_path / "diamond.json.gz"
    tasks = recorded(("d", ["b", "c"]), ("b", ["a"]), ("c", ["a", "a"]), ("a", []))
    file.write_bytes(gzip.compress(json.dumps(tasks).encode()))
    return file


def test_a_workflow_runs_in_order_of_its_edges(diamond: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_workflow.main([str(diamond), "--speed", "100"]) == 0
    output = capsys.readouterr()
    assert "4 tasks, 4 edges" in output.out
    assert "every task ran once, after its parents, with their results" in output.out
    assert output.err == "", "no bar where nobody sees it"


def test_a_bar_is_drawn_on_a_terminal(
    diamond: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run_workflow.main([str(diamond), "--speed", "100"]) == 0
    assert "4 of 4 tasks" in capsys.readouterr().err


def workflow(name: str, folder: Path) -> Path:
    """Return the file of a recorded workflow; the invented one has twelve layers of eight tasks, each behind three."""
    if name != INVENTED:
        return recording(f"workflow-{name}.json.gz")
    tasks = [
        (f"{layer}-{n}", [f"{layer - 1}-{(n + more) % 8}" for more in range(3)] if layer else [])
        for layer in range(12)
        for n in range(8)
    ]
    file = folder / "workflow.json"
    file.write_text(json.dumps(recorded(*tasks, seconds=20)), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", [INVENTED, *RECORDED])
def test_a_recorded_workflow_runs_as_its_edges_say(name: str, tmp_path: Path) -> None:
    tasks = run_workflow.load(workflow(name, tmp_path))
    summary = asyncio.run(run_workflow.run(tasks, speed=1000, concurrency=32))
    assert summary.problems == []
    assert summary.tasks == len(tasks) > 50
    assert summary.lost == 0


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the worker processes of an example, by their pids."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    return [int(pid) for pid in children if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("name", AT_NIGHT)
def test_recorded_workflow_runs_on_redis_despite_a_killed_worker(name: str, tmp_path: Path) -> None:
    url = f"{shared_server().url}?namespace={new_namespace('workflow')}"
    words = [
        str(ROOT / "examples" / "run_workflow.py"),
        str(workflow(name, tmp_path)),
        "--workers",
        "2",
        "--speed",
        "500",
    ]
    example = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "QUEUEHINT_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    scheduler = Scheduler(url)

    def has_begun() -> bool:
        assert example.poll() is None
        time.sleep(0.01)
        return scheduler.stats_sync().states[JobState.FINISHED] >= 5

    try:
        until_sync(has_begun, "some jobs are over", 2 * LIMIT_S)
        os.kill(workers_of(example)[0], signal.SIGKILL)
        output, _ = example.communicate(timeout=2 * LIMIT_S)
        assert example.returncode == 0, output
        assert "every task ran once, after its parents, with their results" in output
    finally:
        example.kill()
        scheduler.close_sync()


@pytest.fixture
def run() -> tuple[list[run_workflow.Task], dict[str, Any]]:
    tasks = [run_workflow.Task("a", (), 0.0), run_workflow.Task("b", ("a",), 0.0)]

    async def main() -> dict[str, Any]:
        async with run_workflow.sched, run_workflow.sched.worker(4):
            async with run_workflow.sched.flow() as flow:
                first = flow.add(run_workflow.task.using(name="a"), "a", 0.0, [])
                flow.add(run_workflow.task.using(name="b"), "b", 0.0, [first.out])
            await flow.result()
            return {record.spec.name or "": record async for record in flow.jobs()}

    return tasks, asyncio.run(main())


@pytest.mark.parametrize(
    "name, changes, found",
    [
        ("b", {"started_ms": 0}, "b began before a had ended"),
        ("b", {"result": b'{"result":"x"}'}, "b had other results than those of its parents"),
        ("b", {"result": None}, "b had other results than those of its parents"),
        ("a", {"attempts": 2}, "a ran 2 times"),
        ("a", {"state": JobState.FAILED}, "a is FAILED"),
    ],
)
def test_workflow_check_notices_wrong_records(
    run: tuple[list[run_workflow.Task], dict[str, Any]], name: str, changes: dict[str, Any], found: str
) -> None:
    tasks, records = run
    assert run_workflow.problems(tasks, records) == []
    records[name] = attrs.evolve(records[name], **changes)
    assert found in run_workflow.problems(tasks, records)
    del records["b"]
    assert "b is lost" in run_workflow.problems(tasks, records)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"\x1f\x8b", json.dumps(recorded(("a", ["b"]), ("b", ["a"]))).encode()],
)
def test_another_file_is_no_workflow(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "workflow.json"
    file.write_bytes(content)
    assert run_workflow.main([str(file)]) == 2
    assert run_workflow.main([str(tmp_path / "missing.json")]) == 2
    assert "workflow.json" in capsys.readouterr().err


def test_worker_processes_need_a_store_they_share(diamond: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_workflow.main([str(diamond), "--workers", "1"]) == 2
    assert "QUEUEHINT_URL" in capsys.readouterr().err
