"""
A PostgreSQL with all that uses it, each a process of its own, and faults of each of them.

Two processes lead, one after the other. Workers are guests: one on the machine of the leader, one on another, through
a pooler where there is one, else straight, and a proxy before that; or by the port that the leader opens. Writers
commit transactions, each of a word of a document and of the job that is to see it; others roll back, whole or to a
savepoint. What the jobs see must be the words of each document, in the order of its text.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path

import psycopg

from queuehint import JobContext, Scheduler
from queuehint.backends.journal import recovery
from queuehint.backends.postgres import store
from tests.postgres_servers import Pooler, PostgresServer, find_pooler
from tests.prefork import start
from tests.proxy import HOST, Proxy
from tests.support import LIMIT_S, until_sync

LEASE_MS = 2_000
"""Of jobs, and for how long a new leader keeps those of guests."""
DOCUMENTS = 4
LAPSE = "UPDATE queuehint.leader SET expires_at = '-infinity' WHERE pid = %s"
SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'queuehint'"


class Chaos:
    """
    All of it, until `close`.

    Args:
        folder: for the log of what has run.
        writers: how many applications write.
        has_port: those that lead open a port.
    """

    def __init__(self, folder: Path, seed: int, writers: int, *, has_port: bool = False) -> None:
        self.rng = random.Random(seed)
        self.log = folder / "ran"
        self.log.touch()
        self._opened = ExitStack()
        self.server = self._opened.enter_context(PostgresServer())
        self.pooler = self._opened.enter_context(Pooler(self.server, 8)) if find_pooler() else None
        before = self.server if self.pooler is None else self.pooler
        self.proxy = self._opened.enter_context(Proxy(before.port))
        self.server.run("CREATE TABLE document (id int PRIMARY KEY, text text NOT NULL DEFAULT '')")
        self.server.run(f"INSERT INTO document SELECT n FROM generate_series(0, {DOCUMENTS - 1}) n")
        self.sched = Scheduler(f"{self.server.url}?lead=no")
        self._opened.callback(self.sched.close_sync)
        define(self.sched)
        self._port = "?bind=127.0.0.1:0" if has_port else ""
        self.leads = [self._lead(), self._lead()]
        self.workers = {is_far: self._worker(is_far=is_far) for is_far in (False, True)}
        self.leading()
        self.ends = threading.Event()
        self.writers = [Writer(self, number, self.rng.random()) for number in range(writers)]
        for each in self.writers:
            each.start()

    def _lead(self) -> subprocess.Popen[bytes]:
        return start("queuehint", "lead", f"{self.server.url}{self._port}", stderr=subprocess.DEVNULL)

    def _worker(self, *, is_far: bool) -> subprocess.Popen[bytes]:
        url = f"{self.server.url}?lead=no"
        if is_far:
            url = f"postgresql://postgres@{HOST}:{self.proxy.port}/postgres?lead=no"
            url += "&pooled=1" if self.pooler is not None else ""
        return start("tests.faults.postgres_chaos", url, str(self.log), str(is_far), stderr=subprocess.DEVNULL)

    def leader(self) -> subprocess.Popen[bytes] | None:
        """Return the process that leads, and serves guests."""
        with suppress(psycopg.Error):
            for pid, address in self.server.run("SELECT pid, address FROM queuehint.leader"):
                return next((each for each in self.leads if each.pid == pid and address), None)
        return None

    def leading(self) -> subprocess.Popen[bytes]:
        """Wait until a process leads, and return it."""
        return self._leading_but(None)

    def _leading_but(self, old: subprocess.Popen[bytes] | None) -> subprocess.Popen[bytes]:
        """Wait until another process than *old* leads, and return it."""
        end_s = time.monotonic() + LIMIT_S
        while (leader := self.leader()) in {None, old}:
            assert time.monotonic() < end_s, "no process leads"
            time.sleep(0.05)  # each look is a connection
        assert leader is not None
        return leader

    def written(self) -> int:
        """Return how many transactions were committed."""
        return sum(each.done for each in self.writers)

    def ran(self) -> int:
        """Return how many jobs have run."""
        return self.log.read_bytes().count(b"\n")

    def more(self, count: int) -> None:
        """Wait until so many more transactions were committed, and jobs have run."""
        written, ran = self.written() + count, self.ran() + count
        until_sync(lambda: self.written() >= written and self.ran() >= ran, f"{count} more")

    # --- faults ---

    def kill_leader(self) -> None:
        """Kill who leads; another process stands by from then on."""
        leader = self.leading()
        self._kill(leader)
        self.leads = [each for each in self.leads if each is not leader] + [self._lead()]

    def kill_standby(self) -> None:
        """Kill who stands by."""
        leader = self.leading()
        for each in self.leads:
            if each is not leader:
                self._kill(each)
        self.leads = [leader, self._lead()]

    def freeze_leader(self) -> None:
        """Stop who leads until another process does, and let it go on then, as a zombie."""
        leader = self.leading()
        leader.send_signal(signal.SIGSTOP)
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(LAPSE, (leader.pid,))
        self._leading_but(leader)
        leader.send_signal(signal.SIGCONT)

    def kill_worker(self) -> None:
        """Kill a guest that runs jobs."""
        is_far = self.rng.random() < 0.5
        self._kill(self.workers[is_far])
        self.workers[is_far] = self._worker(is_far=is_far)

    def freeze_worker(self) -> None:
        """Stop a guest that runs jobs until its leases have ended."""
        worker = self.workers[self.rng.random() < 0.5]
        worker.send_signal(signal.SIGSTOP)
        time.sleep(1.2 * LEASE_MS / 1000)
        worker.send_signal(signal.SIGCONT)

    def end_sessions(self) -> None:
        """End the sessions of all processes, some times in a row."""
        for _ in range(3):
            with suppress(psycopg.Error):
                self.server.run(SESSIONS)

    def crash_server(self) -> None:
        """Have the server crash, and start again."""
        self.server.restart(signal.SIGQUIT)

    def stop_server(self) -> None:
        """Stop the server in order, and start it again."""
        self.server.restart()

    def kill_pooler(self) -> None:
        """Kill the pooler, and start it again."""
        if self.pooler is not None:
            self.pooler.restart()

    def freeze_pooler(self) -> None:
        """Have the pooler stand still for a moment."""
        if self.pooler is not None:
            self.pooler.pause()
            time.sleep(0.5)
            self.pooler.resume()

    def cut(self) -> None:
        """Reset the connections of the far guest."""
        self.proxy.rst()

    def split(self) -> None:
        """Have nothing arrive between the far guest and the others for a moment, and reset its connections then."""
        self.proxy.blackhole()
        time.sleep(0.5)
        self.proxy.heal()
        self.proxy.rst()

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    # --- the end ---

    def stop_writing(self) -> None:
        """Have all writers end; none may have failed by more than the server."""
        self.ends.set()
        for each in self.writers:
            each.join()
        for each in self.writers:
            if each.failed is not None:
                raise AssertionError("a writer has failed") from each.failed

    def judge(self) -> None:
        """Wait until all jobs have run, and compare what they saw with what was committed."""
        until_sync(lambda: not self.sched.stats_sync().unfinished, "all jobs are over", 2 * LIMIT_S)
        texts = dict(self.server.run("SELECT id, text FROM document"))
        seen: dict[int, list[str]] = defaultdict(list)
        newest: dict[int, int] = defaultdict(int)
        for line in self.log.read_text().splitlines():
            doc, word, token = line.split()
            # As what takes tokens does: one that is older than another is of a worker that has lost its job.
            if int(token) >= newest[int(doc)]:
                newest[int(doc)] = int(token)
                seen[int(doc)].append(word)
        for doc, text in texts.items():
            # A job that was cut off with its worker is seen again, before those behind it.
            assert [word for word, _ in groupby(seen[doc])] == text.split(), f"document {doc}"

    def close(self) -> None:
        self.ends.set()
        for each in self.writers:
            each.join()
        for process in (*self.leads, *self.workers.values()):
            process.kill()
            process.wait()
        self._opened.close()


class Writer(threading.Thread):
    """An application that writes."""

    def __init__(self, chaos: Chaos, number: int, seed: float) -> None:
        super().__init__()
        self.chaos, self.number, self.rng = chaos, number, random.Random(seed)
        self.done = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        turn = 0
        try:
            while not self.chaos.ends.is_set():
                with suppress(psycopg.Error), psycopg.connect(self.chaos.server.url) as connection:
                    while not self.chaos.ends.is_set():
                        turn += 1
                        self.write(connection, turn)
                time.sleep(0.02)
        except BaseException as error:
            self.failed = error

    def write(self, connection: psycopg.Connection, turn: int) -> None:
        doc, word = self.rng.randrange(DOCUMENTS), f"{self.number}.{turn}"
        if self.rng.random() < 0.3:
            with suppress(KeyError), connection.transaction():
                self.enqueue(connection, doc, f"{word}-gone")
                raise KeyError
        is_first = self.rng.random() < 0.5
        if is_first:
            self.enqueue(connection, doc, word)
        connection.execute("UPDATE document SET text = text || %s WHERE id = %s", (f"{word} ", doc))
        if not is_first:
            self.enqueue(connection, doc, word)
        if self.rng.random() < 0.2:
            connection.rollback()
            return
        connection.commit()
        self.done += 1
        time.sleep(self.rng.random() * 0.02)

    def enqueue(self, connection: psycopg.Connection, doc: int, word: str) -> None:
        self.chaos.sched.jobs["see"].within(connection).enqueue_sync(doc, word)


def define(sched: Scheduler, log: int | None = None) -> None:
    """Declare the job; what it sees is written to *log*."""

    @sched.job(name="see", queue_hint=["{doc}"], max_attempts=999, max_losses=999)
    async def see(context: JobContext, doc: int, word: str) -> None:
        assert log is not None
        os.write(log, f"{doc} {word} {context.token}\n".encode())


def work(url: str, path: str, is_far: str) -> None:
    """Run jobs until this process is killed."""
    recovery.KEPT_MS = LEASE_MS  # type: ignore[misc]
    if is_far == "True":
        store.machine = lambda: "elsewhere"
    sched = Scheduler(url)
    define(sched, os.open(path, os.O_WRONLY | os.O_APPEND))
    asyncio.run(sched.make_worker(4, lease=LEASE_MS / 1000).run())


if __name__ == "__main__":
    work(*sys.argv[1:])
