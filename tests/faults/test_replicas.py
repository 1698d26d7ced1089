"""A real streaming replica is promoted, one that lagged too: the leader writes again what that server never got."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

from queuehint import JobHandle, JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.journal import opening as opening_module
from queuehint.backends.journal.leading import LOST
from queuehint.errors import BackendUnavailableError, JobNotFoundError
from tests.faults import checks
from tests.faults.doing import Caller, Ran, Running, Writer, doing
from tests.postgres_servers import PostgresServer, Replica
from tests.prefork import start
from tests.proxy import HOST, Proxy
from tests.support import until_sync

pytestmark = pytest.mark.usefixtures("postgres_server")

ROUNDS = 8


class Pair:
    """A primary and its replica, each behind a port that stays, and schedulers whose URL names both."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self.primary: PostgresServer = self._opened.enter_context(PostgresServer())
        self.replica = self._opened.enter_context(Replica(self.primary))
        servers = (self.primary, self.replica)
        self.proxies = [self._opened.enter_context(Proxy(server.port)) for server in servers]
        self.ran: Ran = []
        self._guard = threading.Lock()

    def url(self, options: str = "") -> str:
        hosts = ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxies)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write{options}"

    def scheduler(self, options: str = "") -> Scheduler:
        sched = Scheduler(self.url(options))
        self._opened.callback(sched.close_sync)

        @sched.job(queue_hint=["{doc}"])
        def edit(doc: str, n: int) -> None:
            with self._guard:
                self.ran.append((doc, n))

        return sched

    def fail_over(self) -> None:
        """Have the primary crash, and promote its replica as it is."""
        self.primary.stop(signal.SIGQUIT)
        self.replica.promote()
        self.primary.close()
        self.primary = self.replica

    def follow(self) -> None:
        """Start a replica of the primary there is, in place of the one that was promoted."""
        self.replica = self._opened.enter_context(Replica(self.primary))
        for proxy in self.proxies:
            if proxy.upstream != self.primary.port:
                proxy.redirect(self.replica.port)

    def commit(self, sched: Scheduler, doc: str, n: int) -> JobHandle[None]:
        """Write a job in a transaction of an application."""
        with psycopg.connect(self.primary.url) as connection:
            handle: JobHandle[None] = sched.jobs["edit"].within(connection).enqueue_sync(doc, n)
        return handle

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def states(handles: list[JobHandle[None]]) -> set[JobState]:
    return {handle.state_sync() for handle in handles}


def test_answered_jobs_survive_promotion_of_a_lagging_replica(pair: Pair) -> None:
    sched, guest = pair.scheduler(), pair.scheduler()
    edit = sched.jobs["edit"]
    handles = [edit.enqueue_sync("d", n) for n in range(5)]
    kept = pair.commit(sched, "d", 5)
    assert kept.state_sync() is JobState.QUEUED
    pair.replica.catch_up()
    pair.replica.lag()
    handles += [guest.jobs["edit"].enqueue_sync("d", n) for n in range(6, 11)]
    lost = [pair.commit(sched, "e", n) for n in range(4)]
    assert states(lost) == {JobState.QUEUED}
    handles += [edit.enqueue_sync("d", n) for n in range(11, 15)]
    pair.fail_over()
    assert guest.get_sync(handles[-1].id).state is JobState.QUEUED
    assert states([*handles, kept]) == {JobState.QUEUED}
    until_sync(lambda: states(lost) == {JobState.CANCELED}, "jobs of lost transactions are canceled")
    assert all(LOST in repr(sched.get_sync(each.id)) for each in lost)
    new = pair.commit(sched, "e", 4)
    sched.drain_sync(run=True)
    assert sorted(pair.ran) == [*(("d", n) for n in range(15)), ("e", 4)]
    assert [n for doc, n in pair.ran if doc == "d"] == list(range(15))
    assert new.state_sync() is JobState.FINISHED


@pytest.mark.nightly
@pytest.mark.parametrize("is_waited_for", [False, True])
def test_leader_lost_with_its_server_is_followed_by_the_replica(pair: Pair, *, is_waited_for: bool) -> None:
    """Also by a process that stood by, and has followed what is lost; nothing is where the replica is waited for."""
    if is_waited_for:
        pair.primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        until_sync(lambda: pair.primary.run("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
    sched = pair.scheduler("&lead=no")
    edit = sched.jobs["edit"]
    with standing_by(pair) as (first, second):
        kept = [edit.enqueue_sync("d", n) for n in range(3)]
        if not is_waited_for:
            pair.replica.catch_up()
            pair.replica.lag()
        more = [edit.enqueue_sync("d", n) for n in range(3, 6)]
        first.kill()
        first.wait()
        pair.fail_over()
        # The session of the leader was none of this server: its lease alone would count.
        pair.primary.run(
            "ALTER SYSTEM RESET synchronous_standby_names",
            "SELECT pg_reload_conf()",
            "UPDATE queuehint.leader SET expires_at = '-infinity'",
        )
        until_sync(lambda: leader_of(pair) == second.pid, "the other one leads")
        assert states(kept) == {JobState.QUEUED}
        if is_waited_for:
            assert states(more) == {JobState.QUEUED}
        for each in [] if is_waited_for else more:
            with pytest.raises(JobNotFoundError):
                sched.get_sync(each.id)
        last = edit.enqueue_sync("d", 6)
        sched.drain_sync(run=True)
        assert pair.ran == [("d", n) for n in (range(7) if is_waited_for else (0, 1, 2, 6))]
        assert last.state_sync() is JobState.FINISHED


@contextmanager
def standing_by(pair: Pair) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process that leads, and one that stands by."""
    commands = [start("queuehint", "lead", pair.url(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for each in commands:
            assert each.stderr is not None
            assert any("stands by" in line or "opened" in line for line in each.stderr)
        until_sync(lambda: leader_of(pair) in {each.pid for each in commands}, "one of them leads")
        yield sorted(commands, key=lambda each: each.pid != leader_of(pair))
    finally:
        for command in commands:
            command.kill()
            command.communicate()


def leader_of(pair: Pair) -> int | None:
    """Return the process that leads, and serves."""
    with suppress(psycopg.Error):
        for pid, address in pair.primary.run("SELECT pid, address FROM queuehint.leader"):
            return pid if address else None
    return None


@pytest.mark.nightly
def test_leader_left_on_the_old_primary_becomes_a_guest(pair: Pair) -> None:
    """Two primaries at once are two histories, of which one is left: what was answered by the other is gone with it."""
    sched = pair.scheduler()
    kept = [sched.jobs["edit"].enqueue_sync("d", n) for n in range(3)]
    pair.replica.catch_up()
    pair.replica.lag()
    pair.replica.promote()
    pair.replica.run("UPDATE queuehint.leader SET expires_at = '-infinity'")
    pair.proxies.reverse()
    other = pair.scheduler()
    mine, theirs = sched.jobs["edit"].enqueue_sync("d", 9), other.jobs["edit"].enqueue_sync("d", 3)
    assert mine.state_sync() is theirs.state_sync() is JobState.QUEUED
    pair.primary.stop(signal.SIGQUIT)
    pair.primary = pair.replica
    until_sync(lambda: sched.stats_sync().enqueued == 4, "it is a guest")
    assert states([sched.handle(each.id) for each in (*kept, theirs)]) == {JobState.QUEUED}
    with pytest.raises(JobNotFoundError):
        sched.get_sync(mine.id)
    sched.jobs["edit"].enqueue_sync("d", 4)
    other.drain_sync(run=True)
    assert pair.ran == [("d", n) for n in range(5)]


@pytest.mark.nightly
def test_two_primaries_grant_one_job_and_one_end_counts(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both run it; the outcome of the history that is gone is refused, though it was granted as often there."""
    sched = pair.scheduler()
    for n in range(3):
        sched.jobs["edit"].enqueue_sync("d", n)
    pair.replica.catch_up()
    pair.replica.lag()
    pair.replica.promote()
    pair.replica.run("UPDATE queuehint.leader SET expires_at = '-infinity'")
    pair.proxies.reverse()
    monkeypatch.setattr(opening_module, "_process", "of another process")
    other = pair.scheduler()
    exchanges = [checks.exchange(each.backend, name, limit=1) for each, name in ((sched, "w1"), (other, "w2"))]
    [gone], [kept] = [exchange.grants for exchange in exchanges]
    assert gone.spec.id == kept.spec.id
    mine = pair.commit(sched, "d", 9)
    assert mine.state_sync() is JobState.QUEUED
    pair.primary.stop(signal.SIGQUIT)
    pair.primary = pair.replica
    until_sync(lambda: sched.stats_sync() == other.stats_sync(), "it is a guest")
    for each in (sched, other):
        assert checks.exchange(each.backend, "w1", checks.finished(gone)).verdicts == (op.Verdict.LOST,)
        with pytest.raises(JobNotFoundError):
            each.get_sync(mine.id)
    assert checks.exchange(sched.backend, "w2", checks.finished(kept)).verdicts == (op.Verdict.DONE,)
    pair.commit(other, "d", 3)
    other.drain_sync(run=True)
    assert pair.ran == [("d", n) for n in range(1, 4)]


@pytest.mark.nightly
def test_single_replica_is_refused_and_skipped_beside_its_primary(pair: Pair) -> None:
    with pytest.raises(BackendUnavailableError, match="is a replica, which takes no changes"):
        Scheduler(pair.replica.url).stats_sync()
    pair.proxies.reverse()
    assert pair.scheduler().jobs["edit"].enqueue_sync("d", 0).state_sync() is JobState.QUEUED


@pytest.mark.nightly
def test_failovers_under_load_lose_double_and_reorder_nothing(pair: Pair) -> None:
    """The leader lives: all calls that were answered are there, and of transactions those that a server has kept."""
    sched, guest = pair.scheduler(), pair.scheduler()
    pair.primary.run(*[f"CREATE TABLE w{number} (n int)" for number in range(2)])
    callers = [Caller(each, f"c{number}") for number, each in enumerate((sched, guest))]
    writers = [Writer(sched, f"w{number}", pair.url) for number in range(2)]
    sched.stats_sync()
    with doing([*callers, *writers, Running(sched, pair.ran)]) as more:
        for turn in range(ROUNDS):
            more()
            pair.replica.catch_up()
            pair.replica.lag()
            more()
            pair.fail_over()
            more()
            if turn < ROUNDS - 1:
                pair.follow()
    sched.drain_sync(run=True)
    ran: dict[str, list[int]] = defaultdict(list)
    for doc, n in pair.ran:
        ran[doc].append(n)
    for caller in callers:
        assert ran[caller.doc] == list(range(caller.done))
        assert not caller.asked_again
    for writer in writers:
        kept = [n for (n,) in pair.primary.run(f"SELECT n FROM {writer.doc} ORDER BY n")]
        # One whose transaction was lost later on may have run before.
        assert set(kept) <= set(ran[writer.doc]) <= {*kept, *range(writer.done)}
        assert ran[writer.doc] == sorted(set(ran[writer.doc]))
