"""A PostgreSQL that is restored from its archive to a point in time, as an operator does, below queuehint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from queuehint import JobHandle, JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.journal.leading import LOST
from queuehint.errors import JobNotFoundError
from tests.faults import checks
from tests.postgres_archives import ArchivedServer, RestoredServer
from tests.postgres_servers import PostgresServer
from tests.proxy import HOST, Proxy
from tests.support import until_sync

pytestmark = [pytest.mark.usefixtures("postgres_server"), pytest.mark.nightly]

POINT = "before"


class Archive:
    """A server behind a port that stays, and schedulers of an application."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        archived = self._opened.enter_context(ArchivedServer())
        self.server: PostgresServer = archived
        self._archived = archived
        self.proxy = self._opened.enter_context(Proxy(self.server.port))
        self.ran: list[int] = []
        self._base = archived.back_up()

    def scheduler(self) -> Scheduler:
        sched = Scheduler(f"postgresql://postgres@{HOST}:{self.proxy.port}/postgres")
        self._opened.callback(sched.close_sync)

        @sched.job(queue_hint=["{doc}"])
        def edit(doc: str, n: int) -> None:
            self.ran.append(n)

        return sched

    def commit(self, sched: Scheduler, n: int) -> JobHandle[None]:
        """Write a job in a transaction of an application."""
        with psycopg.connect(self.server.url) as connection:
            handle: JobHandle[None] = sched.jobs["edit"].within(connection).enqueue_sync("d", n)
        return handle

    def name_point(self) -> None:
        """Name the present point in time."""
        self._archived.name_point(POINT)

    def restore(self, *, is_led: bool) -> None:
        """
        Put a server with the data of `POINT` in the place of this one.

        Args:
            is_led: the process that leads lives.
        """
        self._archived.archive_all()
        restored = self._opened.enter_context(RestoredServer(self._archived, self._base, POINT))
        self.server.stop()
        self.server = restored
        self.proxy.redirect(restored.port)
        self.proxy.rst()
        # The lease of the leader of that time is over, as it is where a restore takes minutes.
        if not is_led:
            restored.run("UPDATE queuehint.leader SET expires_at = '-infinity'")

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def archive() -> Iterator[Archive]:
    archive = Archive()
    yield archive
    archive.close()


def test_restored_server_has_the_jobs_of_that_time(archive: Archive) -> None:
    sched = archive.scheduler()
    edit = sched.jobs["edit"]
    kept = [edit.enqueue_sync("d", n) for n in range(3)] + [archive.commit(sched, 3)]
    assert kept[-1].state_sync() is JobState.QUEUED
    archive.name_point()
    [grant] = checks.exchange(sched.backend, "w", limit=1).grants
    lost = [edit.enqueue_sync("d", 4), archive.commit(sched, 5)]
    assert lost[-1].state_sync() is JobState.QUEUED
    sched.close_sync()
    archive.restore(is_led=False)
    sched = archive.scheduler()
    assert [sched.get_sync(each.id).state for each in kept] == [JobState.QUEUED] * 4
    for each in lost:
        with pytest.raises(JobNotFoundError):
            sched.get_sync(each.id)
    answer = checks.exchange(sched.backend, "w", checks.finished(grant))
    assert answer.verdicts == (op.Verdict.LOST,), "the lease of the lost time ends nothing"
    sched.jobs["edit"].enqueue_sync("d", 6)
    archive.commit(sched, 7)
    sched.drain_sync(run=True)
    assert archive.ran == [0, 1, 2, 3, 6, 7]


def test_living_leader_writes_its_lost_end_to_a_restored_server(archive: Archive) -> None:
    sched = archive.scheduler()
    edit = sched.jobs["edit"]
    handles = [edit.enqueue_sync("d", n) for n in range(3)]
    archive.name_point()
    handles += [edit.enqueue_sync("d", n) for n in range(3, 6)]
    lost = archive.commit(sched, 6)
    assert lost.state_sync() is JobState.QUEUED
    archive.restore(is_led=True)
    until_sync(lambda: lost.state_sync() is JobState.CANCELED, "the job of the lost transaction is canceled")
    assert LOST in repr(sched.get_sync(lost.id))
    assert {each.state_sync() for each in handles} == {JobState.QUEUED}
    sched.drain_sync(run=True)
    assert archive.ran == list(range(6))
