"""Writers in processes of their own, in the file of an application, while processes that lead are killed."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from queuehint import Scheduler
from tests.file_doors import asked, make_application
from tests.folders import quick_folder
from tests.prefork import start
from tests.support import thorough

WRITERS = 8
DOCUMENTS = 4
KILLS = 3


def scheduler(path: Path, ran: list[tuple[str, int]] | None = None) -> Scheduler:
    """Return the scheduler of the application."""
    sched = Scheduler(f"sqlite:///{path}?shared=yes&durability=process")

    @sched.job(queue_hint=["{doc}"])
    def save(doc: str, version: int) -> None:
        assert ran is not None
        ran.append((doc, version))

    return sched


def run(what: str, path: Path, seed: int, count: int = 0) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return start("tests.faults.test_file_inbox", what, str(path), str(seed), str(count), env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(thorough(3, quick=1)))
def test_jobs_run_in_the_order_of_commits_whoever_is_killed(seed: int) -> None:
    count = thorough(150, quick=40)
    ran: list[tuple[str, int]] = []
    with quick_folder() as folder:
        path = folder / "app.db"
        make_application(path)
        first = scheduler(path)
        first.stats_sync()
        first.close_sync()
        chance = random.Random(seed)
        writers = [run("write", path, 100 * seed + number, count) for number in range(WRITERS)]
        kills = 0
        while kills < KILLS or any(writer.poll() is None for writer in writers):
            leader = run("lead", path, 0)
            time.sleep(chance.uniform(0.1, 0.5))
            leader.kill()
            leader.wait(30)
            kills += 1
            if kills == KILLS:
                enough_of(path).touch()
        assert [writer.wait(60) for writer in writers] == [0] * WRITERS
        sched = scheduler(path, ran)
        sched.drain_sync(run=True)
        sched.close_sync()
        versions = dict(asked(path, "SELECT id, version FROM document"))
    for number in range(1, DOCUMENTS + 1):
        doc = f"d{number}"
        assert [version for each, version in ran if each == doc] == [*range(1, versions[doc] + 1)]
    assert sum(versions.values()) > count * WRITERS / 2


def enough_of(path: Path) -> Path:
    """Return the file whose presence lets the writers end: leaders were killed beside all of them."""
    return path.with_suffix(".enough")


# --- the processes ----------------------------------------------------------------------------------------------------


def write(path: Path, seed: int, count: int) -> None:
    """Change documents at least so many times, each with a job for the version, in savepoints and rollbacks too."""
    chance, sched = random.Random(seed), scheduler(path)
    save, enough, done = sched.jobs["save"], enough_of(path), 0
    with closing(sqlite3.connect(path, timeout=50, isolation_level=None)) as db:
        while done < count or not enough.exists():
            done += 1
            doc = f"d{chance.randint(1, DOCUMENTS)}"
            db.execute("BEGIN IMMEDIATE")
            update = "UPDATE document SET version = version + 1 WHERE id = ? RETURNING version"
            ((version,),) = db.execute(update, (doc,)).fetchall()
            handle = save.within(db).enqueue_sync(doc, version)
            if chance.random() < 0.3:
                db.execute("SAVEPOINT before")
                save.within(db).enqueue_sync(doc, -1)
                db.execute("ROLLBACK TO before")
            if chance.random() < 0.2:
                db.execute("ROLLBACK")
                continue
            db.execute("COMMIT")
            if chance.random() < 0.1:
                assert handle.state_sync() is not None, "it is known at once"
            time.sleep(chance.uniform(0, 0.003))
    sched.close_sync()


def lead(path: Path) -> None:
    """Take the rows in, until killed."""
    sched = scheduler(path)
    while True:
        sched.stats_sync()
        time.sleep(0.01)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        lead(Path(sys.argv[2]))
