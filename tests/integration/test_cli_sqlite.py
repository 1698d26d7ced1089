"""The commands and the worker on a file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuehint import Dependency, JobSpec, JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.sqlite.address import parse_url
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.doctor import diagnose
from queuehint.cli.app import app
from queuehint.core.engine import EngineOptions
from queuehint.core.jobs.table import JobTable
from queuehint.core.structures.edges import AFTER
from queuehint.core.structures.trie import ONE, X
from queuehint.values.hint import Claim
from queuehint.values.outcome import Outcome, OutcomeKind
from tests.commands import CliRunner
from tests.folders import quick_folder
from tests.prefork import start
from tests.probes import ask, free_port, until
from tests.support import LIMIT_S

ROOT = str(Path(__file__).parents[2])
APP = """
from queuehint import Scheduler

sched = Scheduler()

@sched.job(queue_hint=["{doc}"])
async def edit(doc: str, what: int) -> int:
    print("ran", doc, what, flush=True)
    return what
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as folder:
        (folder / "app.py").write_text(APP)
        yield folder


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db?durability=process"


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[SqliteBackend]:
    """Open the file, as no process that has it does."""
    backend = SqliteBackend(parse_url(url_of(folder)))
    backend.call_sync(op.CountJobs())
    yield backend
    backend.close_sync()


def enqueue(folder: Path, count: int = 3) -> list[str]:
    sched = Scheduler(url_of(folder))

    @sched.job(queue_hint=["{doc}"])
    async def edit(doc: str, what: int) -> int:
        return what

    ids = [edit.enqueue_sync("doc1", n).id for n in range(count)]
    sched.close_sync()
    return ids


def run(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--target", url_of(folder)])


def worker(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": ROOT, "QUEUEHINT_URL": url_of(folder), "COLUMNS": "200"}
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return start("queuehint", "worker", "app:sched", *arguments, cwd=folder, env=environment, **streams)


def test_commands_look_into_a_file_and_order_its_jobs_about(folder: Path) -> None:
    ids = enqueue(folder)
    found = run(folder, "stats", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["states"]["QUEUED"] == 3
    assert run(folder, "cancel", ids[1]).exit_code == 0
    assert run(folder, "pause", "doc1").exit_code == 0
    sched = Scheduler(url_of(folder))
    assert [sched.get_sync(job_id).state for job_id in ids] == [JobState.QUEUED, JobState.CANCELED, JobState.QUEUED]
    assert sched.why_sync(ids[0]).kind == "paused"
    sched.close_sync()


def test_worker_runs_jobs_of_a_file_and_hands_it_over(folder: Path) -> None:
    ids = enqueue(folder)
    running = worker(folder)
    assert running.stdout is not None
    assert [running.stdout.readline() for _ in ids] == [f"ran doc1 {n}\n" for n in range(3)]
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0, errors
    sched = Scheduler(url_of(folder))
    assert [sched.get_sync(job_id).state for job_id in ids] == [JobState.FINISHED] * 3
    sched.close_sync()


@pytest.mark.slow
def test_workers_of_several_processes_share_a_file(folder: Path) -> None:
    ids = enqueue(folder, 40)
    sched = Scheduler(url_of(folder))
    sched.pause_sync(["doc1"])
    running = worker(folder, "--processes=2", "--concurrency=1")
    until(lambda: len({each.pid for each in sched.workers_sync()}) == 2)
    sched.resume_sync(["doc1"])
    until(lambda: all(sched.get_sync(job_id).state is JobState.FINISHED for job_id in ids))
    running.send_signal(signal.SIGTERM)
    out, errors = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0, errors
    assert [line.rpartition("ran ")[2] for line in out.splitlines()] == [f"doc1 {n}" for n in range(40)]
    sched.close_sync()


def test_file_doctor_names_a_cycle_of_jobs_and_its_remedy(folder: Path) -> None:
    sched = Scheduler(url_of(folder))
    behind = [JobSpec(id=each, task="t", depends_on=(Dependency("x"),)) for each in "abc"]
    sched.submit_sync([JobSpec(id="x", task="t"), *behind])
    sched.close_sync()
    found = CliRunner().invoke(app, ["doctor", url_of(folder)])
    assert (found.exit_code, found.output.splitlines()[-1]) == (0, "clean")
    # No operation makes a cycle.
    backend = SqliteBackend(parse_url(url_of(folder)))
    backend.call_sync(op.CountJobs())
    table = backend.engine.table
    for job_id, other in (("a", "b"), ("b", "c"), ("c", "a")):
        table.edges.close(table.jobs[job_id], "x")
        table.edges.add(table.jobs[job_id], other, AFTER)
    backend.call_sync(op.Draw(1))
    backend.close_sync()
    found = CliRunner().invoke(app, ["doctor", url_of(folder), "--json"])
    report = json.loads(found.output)
    assert (found.exit_code, report["clean"]) == (1, False)
    assert (report["facts"]["jobs"], report["facts"]["unfinished"]) == (4, 4)
    first = report["findings"][0]
    assert [each["kind"] for each in report["findings"]] == ["cycle"]
    assert first["what"].endswith(f"wait for one another for ever; cancel one: `queuehint cancel {first['job_id']}`")
    fixing = CliRunner().invoke(app, ["doctor", url_of(folder), "--fix"])
    assert (fixing.exit_code, fixing.output.splitlines()[-2:]) == (
        1, ["nothing that --fix puts right", "1 errors, 0 warnings"]
    )  # fmt: skip
    cancel = ["cancel", first["job_id"], "--target", url_of(folder), "--yes"]
    assert CliRunner().invoke(app, cancel).exit_code == 0
    assert CliRunner().invoke(app, ["doctor", url_of(folder)]).exit_code == 0


def test_doctor_of_a_sound_file_lists_its_checks(folder: Path) -> None:
    enqueue(folder)
    found = CliRunner().invoke(app, ["doctor", url_of(folder), "--fix"])
    assert found.exit_code == 0
    *facts, nothing, clean = found.output.splitlines()
    assert (nothing, clean) == ("nothing to put right", "clean")
    assert "looked at: the pages of the file, its snapshot and journal, 3 jobs and what they wait for" in facts
    found = CliRunner().invoke(app, ["doctor", url_of(folder), "--fix", "--json"])
    report = json.loads(found.output)
    assert (found.exit_code, report["clean"], report["repaired"], report["unchecked"]) == (0, True, [], [])


def test_file_doctor_finds_damaged_pages_and_excludes_a_fix(folder: Path) -> None:
    enqueue(folder)
    with contextlib.closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as db:
        db.execute("CREATE TABLE more (text TEXT NOT NULL)")
        db.execute("INSERT INTO more VALUES ('x')")
        db.execute("PRAGMA writable_schema = ON")
        other = "CREATE TABLE more (text TEXT NOT NULL, n INT NOT NULL)"
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'more'", (other,))
    found = CliRunner().invoke(app, ["doctor", url_of(folder), "--fix"])
    assert found.exit_code == 1
    lines = found.output.splitlines()
    assert next(line for line in lines if line.startswith("error: ")).endswith("NULL value in more.n")
    assert lines[-2:] == ["nothing that --fix puts right", "1 errors, 0 warnings"]


def test_doctor_creates_no_file_and_examines_one_in_use(folder: Path) -> None:
    found = CliRunner().invoke(app, ["doctor", url_of(folder)])
    assert (found.exit_code, [each.name for each in folder.iterdir()]) == (2, ["app.py"])
    assert "there is no such file" in found.output
    sched = Scheduler(url_of(folder))
    sched.stats_sync()
    found = CliRunner().invoke(app, ["doctor", url_of(folder)])
    assert (found.exit_code, found.output.splitlines()[-1]) == (0, "clean")
    sched.close_sync()


@pytest.mark.slow
def test_worker_on_a_file_reports_health_by_file_and_port(folder: Path) -> None:
    port, file = free_port(), folder / "health"
    enqueue(folder)
    running = worker(folder, f"--health-port={port}", f"--health-file={file}")
    try:
        until(lambda: ask(port)[0] == 200)
        until(file.exists)
        assert json.loads(file.read_text())["pid"] == running.pid
        first = json.loads(file.read_text())["last_round_trip"]
        # An idle worker asks its store every five seconds, too.
        until(lambda: json.loads(file.read_text())["last_round_trip"] > first)
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0
    assert not file.exists()


def _let_a_job_pass(table: JobTable) -> None:
    (walk,) = table.jobs["b"].walks
    assert walk.node is not None
    table.trie._unjoin(walk, walk.node)
    table.trie._grant(walk, walk.node, 1, X)
    table.arrive(walk)


def _count_once_more(table: JobTable) -> None:
    table.trie.root.held += ONE[X]


def _miscount_running(table: JobTable) -> None:
    table.trie.root.active += ONE[X]


def _turn_a_line_around(table: JobTable) -> None:
    (walk,) = table.jobs["b"].walks
    assert walk.node is not None
    table.trie._unjoin(walk, walk.node)
    table.trie._join(walk, walk.node, 1, X)


def _mark_a_line(table: JobTable) -> None:
    node = table.trie.find(("doc",))
    assert node is not None
    node.to_advance = True


def _withdraw_a_job(table: JobTable) -> None:
    table.withdraw(table.jobs["a"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "harm, kind, what",
    [
        (_let_a_job_pass, "place", "job b has doc, but waits at doc if all jobs are placed anew"),
        (_count_once_more, "gate", "the gate '' should have 0 3 0 0 0 (IS IX S X, waiting) and has 0 3 0 1 0"),
        (_miscount_running, "gate", "the gate '' should have 0 0 0 0 (IS IX S X) of jobs that run and has 0 0 0 1"),
        (_turn_a_line_around, "gate", "the gate 'doc' should have b, c in its line and has c, b"),
        (_mark_a_line, "stalled", "the line at the gate 'doc' may move on, and no work is left over to move it"),
        (_withdraw_a_job, "head", "job a miscounts the gates that it waits for, or is wrongly offered"),
    ],
)
def test_file_doctor_names_and_replaces_wrong_gates(
    folder: Path, harm: Callable[[JobTable], None], kind: str, what: str
) -> None:
    """No operation makes them so."""
    sched = Scheduler(url_of(folder))
    sched.submit_sync([JobSpec(id=each, task="t", claims=(Claim(("doc",)),)) for each in "abc"])
    sched.close_sync()
    assert CliRunner().invoke(app, ["doctor", url_of(folder)]).exit_code == 0
    with opened(folder) as backend:
        harm(backend.engine.table)
        backend.call_sync(op.Draw(1))
    found = CliRunner().invoke(app, ["doctor", url_of(folder), "--json"])
    (finding,) = json.loads(found.output)["findings"]
    assert (found.exit_code, finding["kind"], finding["what"], finding["repairable"]) == (1, kind, what, True)
    fixed = CliRunner().invoke(app, ["doctor", url_of(folder), "--fix", "--json"])
    report = json.loads(fixed.output)
    assert (fixed.exit_code, report["findings"], report["repaired"]) == (0, [], [finding])
    assert CliRunner().invoke(app, ["doctor", url_of(folder)]).exit_code == 0
    with opened(folder) as backend:
        backend.engine.check()
        ran = []
        ended: tuple[Outcome, ...] = ()
        while grants := backend.call_sync(op.Exchange("w", settle=ended, pools=("default",), limit=9)).grants:
            ran.append([grant.spec.id for grant in grants])
            ended = tuple(Outcome(job_id=g.spec.id, token=g.token, kind=OutcomeKind.FINISHED) for g in grants)
    assert ran == [["a"], ["b"], ["c"]]


def test_unclosed_file_is_repaired_again_when_opened(folder: Path) -> None:
    with opened(folder) as backend:
        specs = [JobSpec(id=each, task="t", claims=(Claim(("doc",)),)) for each in "abc"]
        backend.call_sync(op.Enqueue(tuple(specs)))
        _let_a_job_pass(backend.engine.table)
        backend.call_sync(op.Draw(1))
    with opened(folder) as backend:
        assert not diagnose(backend).is_clean
        assert diagnose(backend, fix=True).is_clean
        shutil.copytree(folder, folder / "copy", ignore=shutil.ignore_patterns("*.sock"))
    with opened(folder / "copy") as backend:
        assert diagnose(backend).is_clean


def test_file_doctor_keeps_gates_while_conflicting_jobs_run(folder: Path) -> None:
    with opened(folder) as backend:
        backend.call_sync(op.Enqueue(tuple([JobSpec(id=each, task="t", claims=(Claim((each,)),)) for each in "abc"])))
        backend.call_sync(op.Exchange("w", pools=("default",), limit=2))
        backend.engine.table.jobs["b"].spec = JobSpec(id="b", task="t", claims=(Claim(("a",)),))
        report = diagnose(backend, fix=True)
        assert report.findings[0].what == (
            "job b has started before its turn: an unfinished job with which it conflicts comes before it"
        )
        assert not any(each.is_repairable for each in report.findings)
        assert not report.repaired


def test_file_doctor_accepts_a_line_that_waits_to_advance(folder: Path) -> None:
    backend = SqliteBackend(parse_url(url_of(folder)), None, EngineOptions(budget=1))
    behind = [JobSpec(id=f"b{n}", task="t", claims=(Claim(("doc", str(n))),)) for n in range(3)]
    backend.call_sync(op.Enqueue((JobSpec(id="a", task="t", claims=(Claim(("doc",)),)), *behind)))
    backend.call_sync(op.Cancel(("a",)))
    report = diagnose(backend)
    backend.close_sync()
    assert report.is_clean
    assert not report.unchecked
