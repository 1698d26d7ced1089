"""Recordings replayed by four worker processes, some of them killed: everything ends as it was recorded."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples import replay_history, replay_trace
from queuehint.values.record import JobState
from tests.audit import audit_key, begin_audit, check_audit, environment
from tests.faults import recordings
from tests.prefork import start
from tests.servers import Server
from tests.support import thorough

ROOT = Path(__file__).absolute().parents[2]
SHARED = ROOT.parent / "shared" / "data"
LIMIT_S = 300


class Workers:
    """Four processes of `queuehint worker`; one that is killed is replaced."""

    def __init__(self, server: Server, namespace: str, file: Path) -> None:
        self._environment = {
            **os.environ,
            **environment(),
            "QUEUEHINT_URL": server.url,
            recordings.NAMESPACE: namespace,
            recordings.FILE: str(file),
        }
        self._processes = [self._start() for _ in range(4)]
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        words = ("worker", "tests.faults.recordings:sched", "--concurrency=8", "--log-level=error")
        return start("queuehint", *words, env=self._environment, start_new_session=True)

    def kill_one(self, rng: random.Random) -> None:
        """Kill one with its helper, so that no process is left to report its death."""
        at = rng.randrange(4)
        self._kill(self._processes[at])
        self._processes[at] = self._start()
        self.kills += 1

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self._processes:
            self._kill(process)


@contextmanager
def workers(server: Server, namespace: str, file: Path) -> Iterator[Workers]:
    crew = Workers(server, namespace, file)
    try:
        yield crew
    finally:
        crew.close()


def run(server: Server, namespace: str, file: Path, calls: list[tuple[Any, ...]], kills: int) -> None:
    """Enqueue everything, kill workers while it runs, and wait for the end."""
    os.environ[recordings.FILE] = str(file)
    sched, edit, change, check = recordings.make(server.url, namespace)
    jobs = {"edit": edit, "change": change, "check": check}
    begin_audit(namespace)

    async def enqueue() -> None:
        async with sched:
            for name, group in itertools.groupby(calls, key=lambda call: call[0]):
                await jobs[name].enqueue_many([call[1:] for call in group])

    asyncio.run(enqueue())
    sched = recordings.make(server.url, namespace)[0]
    rng = random.Random(kills)
    with workers(server, namespace, file) as crew:
        deadline = time.monotonic() + LIMIT_S
        done = 0
        while sched.stats_sync().unfinished:
            assert time.monotonic() < deadline, sched.stats_sync()
            finished = sched.stats_sync().states[JobState.FINISHED]
            # Never two kills without progress in between: that would be a test of patience.
            if crew.kills < kills and finished > done + len(calls) // (3 * kills):
                done = finished
                crew.kill_one(rng)
            time.sleep(0.05)
        assert crew.kills == kills
    stats = sched.stats_sync()
    assert stats.states[JobState.FINISHED] == len(calls), stats
    sched.close_sync()
    assert check_audit(server.client(), namespace) > kills
    server.client().delete(audit_key(namespace))


def edits(traces: list[replay_trace.Trace], batch: int) -> list[tuple[Any, ...]]:
    sources = []
    for trace in traces:
        numbered = enumerate(replay_trace.edits(trace, batch))
        sources.append([("edit", name, index, patches) for index, (name, patches) in numbered])
    return [call for turn in itertools.zip_longest(*sources) for call in turn if call is not None]


def recorded_text(name: str, text: str, size: int) -> replay_trace.Trace:
    """A small recording of our own: a text typed from its end, character by character."""
    transactions = [[[0, 0, character]] for character in reversed(text * size)]
    return replay_trace.Trace(name, "", text * size, transactions)


def check_texts(file: Path, traces: list[replay_trace.Trace]) -> None:
    with recordings.resource(str(file)) as store:
        assert dict(store.execute("SELECT name, text FROM texts")) == {trace.name: trace.end for trace in traces}


def history_calls(history: replay_history.History, every: int) -> list[tuple[Any, ...]]:
    """Every change of every commit, and a check of the whole tree after every few commits."""
    tree = dict(history.start)
    calls: list[tuple[Any, ...]] = []
    for number, commit in enumerate(history.commits, 1):
        for path, after in replay_history.deletions_first(commit.changes):
            calls.append(("change", path, tree.get(path), after))
            replay_history.put(tree, path, after)
        if number % every == 0 or number == len(history.commits):
            calls.append(("check", number, recordings.digest(tree)))
    return calls


@pytest.mark.slow
@pytest.mark.heavy
def test_a_git_history_ends_as_recorded_though_workers_are_killed(
    redis_server: Server, namespace: str, tmp_path: Path
) -> None:
    history = replay_history.load_recorded(replay_history.BUNDLED)
    file = tmp_path / "resource.sqlite"
    recordings.prepare(file, {}, history.start)
    calls = history_calls(history, every=10)
    run(redis_server, namespace, file, calls, kills=thorough(5, quick=2))
    with recordings.resource(str(file)) as store:
        seen = {number for (number,) in store.execute("SELECT number FROM checks")}
    assert seen == {call[1] for call in calls if call[0] == "check"}


@pytest.mark.heavy
@pytest.mark.nightly  # by day that of a git history
def test_documents_end_as_recorded_though_workers_are_killed(
    redis_server: Server, namespace: str, tmp_path: Path
) -> None:
    traces = [
        recorded_text(f"document {number}", "the quick brown fox ", 15 + number)
        for number in range(thorough(4, quick=2))
    ]
    file = tmp_path / "resource.sqlite"
    recordings.prepare(file, {trace.name: trace.start for trace in traces}, {})
    run(redis_server, namespace, file, edits(traces, 1), kills=thorough(5, quick=2))
    check_texts(file, traces)


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.skipif(not SHARED.is_dir(), reason="the recordings are not beside this repository")
def test_the_shared_recordings_end_as_recorded_though_workers_are_killed(
    redis_server: Server, namespace: str, tmp_path: Path
) -> None:
    traces = [replay_trace.load(path) for path in sorted(SHARED.glob("trace-*.json.gz"))]
    file = tmp_path / "texts.sqlite"
    recordings.prepare(file, {trace.name: trace.start for trace in traces}, {})
    run(redis_server, namespace, file, edits(traces, 5), kills=20)
    check_texts(file, traces)
    history = replay_history.load_recorded(SHARED / "history-sortedcontainers.json.gz")
    file = tmp_path / "tree.sqlite"
    recordings.prepare(file, {}, history.start)
    run(redis_server, f"{namespace}-history", file, history_calls(history, every=50), kills=20)
