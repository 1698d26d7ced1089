"""A process with a file is killed at named points and at any time; the next one finds all acknowledged work, once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.snapshots import compaction
from queuehint.backends.journal.snapshots.compaction import Compaction
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.file import JournalFile
from queuehint.testing.driver import job
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record import JobState
from tests.crash_points import VARIABLE, armed
from tests.folders import quick_folder
from tests.prefork import start
from tests.support import slow_after, thorough

ROOT = Path(__file__).parents[2]
PATHS = (["a"], ["a", "b"], ["a", "c"], ["d"])


FILE_POINTS = (
    "file.made",
    "journal.begun",
    "journal.written",
    "journal.committed",
    "journal.applied",
    "copy.begun",
    "copy.forked",
    "copy.written",
    "copy.committed",
    "switch.written",
    "switch.committed",
    "clear.written",
    "clear.committed",
    "snapshot.begun",
    "snapshot.written",
    "snapshot.committed",
    "file.closing",
)


class Books:
    """The answers that a killed process got, line by line, over all its lives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.lives = 0
        self.enqueued: list[str] = []
        self.granted: Counter[tuple[str, int]] = Counter()
        self.finished: list[str] = []

    def live(self, *, point: str | None = None, after_s: float | None = None) -> int:
        """Run a process until it dies; read what it was told."""
        self.lives += 1
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **({VARIABLE: point} if point is not None else {})}
        words = (str(self.path), str(self.lives))
        process = start("tests.faults.test_sqlite_kills", *words, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        with process.stdout as lines:
            if after_s is not None:
                lines.readline()
                time.sleep(after_s)
                process.send_signal(signal.SIGKILL)
            for line in lines.read().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    self.note(*json.loads(line))
        return process.wait(30)

    def note(self, what: str, job_id: str = "", token: int = 0) -> None:
        if what == "enqueued":
            self.enqueued.append(job_id)
        elif what == "granted":
            self.granted[job_id, token] += 1
        elif what == "finished":
            self.finished.append(job_id)

    def check(self) -> None:
        """Open the file and compare it with what was told."""
        store = SqliteBackend(Address(path=self.path, durability="process"), BackendOptions())
        try:
            store.call_sync(op.Tick())
            store.engine.check()
            jobs = store.engine.table.jobs
            assert len(set(self.enqueued)) == len(self.enqueued)
            assert not [job_id for job_id in self.enqueued if job_id not in jobs], (
                "an enqueue that was answered is lost"
            )
            assert len(set(self.finished)) == len(self.finished), "a job was finished twice"
            assert all(jobs[job_id].state is JobState.FINISHED for job_id in self.finished)
            # Each life enqueues one after the other: at most one was not answered.
            numbers = [jobs[job_id].number for job_id in self.enqueued]
            assert numbers == sorted(numbers)
            assert len(jobs) - len(self.enqueued) <= self.lives
            assert all(count == 1 for count in self.granted.values()), "a token was given twice"
            assert store.call_sync(op.CountJobs()).states[JobState.STARTED] == 0
        finally:
            store.close_sync()


@pytest.fixture
def checks() -> Iterator[Books]:
    with quick_folder() as folder:
        yield Books(folder)


@pytest.mark.parametrize("point", slow_after(4, FILE_POINTS))
def test_wherever_it_dies_all_that_was_answered_is_there(checks: Books, point: str) -> None:
    assert checks.live(point=f"{point}:1") == -signal.SIGKILL
    checks.check()
    for _ in range(thorough(1, quick=0)):
        checks.live(point=f"{point}:3")
        checks.check()
    assert checks.live() == 0
    checks.check()


@pytest.mark.parametrize("seed", range(thorough(3, quick=1)))
def test_whenever_it_is_killed_all_that_was_answered_is_there(checks: Books, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(thorough(6, quick=4)):
        checks.live(after_s=chance.uniform(0, 0.1))
    checks.check()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
def test_in_hundreds_of_lives_all_that_was_answered_is_there(checks: Books, seed: int) -> None:
    chance = random.Random(seed)
    for life in range(15):
        if life % 3:
            checks.live(after_s=chance.uniform(0, 0.3))
        else:
            checks.live(point=f"{chance.choice(FILE_POINTS)}:{chance.randint(1, 60)}")
        if chance.random() < 0.3:
            checks.check()
    checks.check()


# --- the process that dies ---------------------------------------------------------------------------------------


def say(*what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def around(
    kind: type[Any], name: str, before: Callable[[], object] | None = None, after: Callable[[], object] | None = None
) -> None:
    """Have something done before and after each call of a method."""
    method = getattr(kind, name)

    def call(*args: Any, **more: Any) -> Any:
        if before is not None:
            before()
        result = method(*args, **more)
        if after is not None:
            after()
        return result

    setattr(kind, name, call)


def die_around_the_file(reach: Callable[[str], None]) -> None:
    """Reach the points: around what the backend does with its file, and before each transaction's end."""

    def at(point: str) -> Callable[[], None]:
        return lambda: reach(point)

    around(JournalFile, "__init__", after=at("file.made"))
    around(SqliteBackend, "_do", after=at("journal.applied"))
    around(SqliteBackend, "_end", before=at("file.closing"))
    around(Compaction, "_make_at_once", before=at("snapshot.begun"))
    around(Compaction, "_begin", before=at("copy.begun"), after=at("copy.forked"))
    transaction = JournalFile._transaction
    of_what = ""

    @contextmanager
    def transaction_to_its_end(self: JournalFile) -> Iterator[None]:
        with transaction(self):
            yield
            reach(f"{of_what}.written")

    JournalFile._transaction = transaction_to_its_end  # type: ignore[method-assign]
    for method, name, begun in (
        ("append", "journal", at("journal.begun")),
        ("replace", "snapshot", lambda: None),
        ("put", "copy", lambda: None),
        ("switch", "switch", lambda: None),
        ("clear", "clear", lambda: None),
    ):

        def begin(name: str = name, begun: Callable[[], None] = begun) -> None:
            nonlocal of_what
            of_what = name
            begun()

        around(JournalFile, method, begin, at(f"{name}.committed"))


def main(path: Path, life: int) -> None:
    """Enqueue, claim and finish, and say what was answered; the disk is slow, so that it is killed while it writes."""
    compaction.SNAPSHOT_OPERATIONS = 40  # type: ignore[misc]
    compaction.SMALL_JOBS = 0  # type: ignore[misc]
    compaction.SLICE_BYTES, compaction.SLICE_EVERY_S = 1, 0.0  # type: ignore[misc]
    reach = armed(os.environ.get(VARIABLE), FILE_POINTS)
    if reach is not None:
        die_around_the_file(reach)
    around(JournalFile, "append", lambda: time.sleep(0.002), lambda: time.sleep(0.001))
    store = SqliteBackend(Address(path=path, durability="process"), BackendOptions())
    store.call_sync(op.CountJobs())
    say("begun")
    chance = random.Random(life)
    for n in range(60):
        job_id = f"{life}-{n}"
        store.call_sync(op.Enqueue((job(job_id, chance.choice(PATHS)),)))
        say("enqueued", job_id)
        grants = store.call_sync(op.Exchange(f"w{life}", limit=2)).grants
        for grant in grants:
            say("granted", grant.spec.id, grant.token)
        for grant in grants[: chance.randint(0, 2)]:
            outcome = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED)
            if store.call_sync(op.Exchange(f"w{life}", (outcome,))).verdicts == (op.Verdict.DONE,):
                say("finished", grant.spec.id)
        assert store.call_sync(op.Get((job_id,))).records[0] is not None
    store.close_sync()
    say("closed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
