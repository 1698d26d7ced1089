"""
Leaders that change, sessions that end and servers that crash, beside transactions of an application: a random walk.

All that was acknowledged is in the journal, in order, but for the end that a crash takes together with its leader; each
job of a transaction that committed is there once, and none of another one; a leader of before writes nothing.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from contextlib import suppress

import psycopg
import pytest

from queuehint.backends.journal.lead.leadership import DeposedError, LedElsewhereError
from queuehint.backends.postgres.journal.journal import PostgresJournal
from queuehint.backends.postgres.lead import PostgresLead
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from tests.postgres_servers import PostgresServer
from tests.postgres_store import PUT, Place, open_place
from tests.support import thorough

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.usefixtures("postgres_server")]

WRITERS = 3
LAPSE = "UPDATE queuehint.leader SET expires_at = '-infinity'"


class Writer(threading.Thread):
    """An application: writes jobs in transactions, of which some fail."""

    def __init__(self, place: Place, number: int, seed: int, ends: threading.Event) -> None:
        super().__init__()
        self.place, self.number, self.ends = place, number, ends
        self.rng = random.Random(seed + number)
        self.committed: list[str] = []
        self.unknown: set[str] = set()

    def run(self) -> None:
        turn = 0
        while not self.ends.is_set():
            with suppress(psycopg.Error), psycopg.connect(self.place.server.url_of(self.place.database)) as connection:
                while not self.ends.is_set():
                    turn += 1
                    self.write(
                        connection, [f"{self.number}.{turn}.{each}" for each in range(self.rng.choice((1, 1, 4)))]
                    )
            time.sleep(0.01)

    def write(self, connection: psycopg.Connection, words: list[str]) -> None:
        for word in words:
            connection.execute(PUT, ("n", word.encode()))
        if self.rng.random() < 0.1:
            connection.rollback()
            return
        if self.rng.random() < 0.1:
            time.sleep(self.rng.random() * 0.05)
        try:
            connection.commit()
        except psycopg.Error:
            self.unknown.update(words)
            raise
        self.committed += words


class Leading:
    """One leader after the other, and what they were told that it is written."""

    def __init__(self, place: Place, rng: random.Random) -> None:
        self.place, self.rng = place, rng
        self.acknowledged: list[str] = []
        self.sent = ""
        self.may_lack_end = False
        """A leader and what it was told went at once with the server, which had not waited for the disk."""
        self.zombies: list[tuple[PostgresLead, PostgresJournal]] = []

    def lead(self, *, until_empty: bool) -> bool:
        """Lead for a while; return whether nothing was left."""
        try:
            lead = self.place.store("durability=process").take_lead()
        except (LedElsewhereError, BackendUnavailableError):
            time.sleep(0.05)
            return False
        journal: PostgresJournal | None = None
        try:
            journal = PostgresJournal(lead)
            self.compare(journal)
            self.try_zombies()
            self.may_lack_end = True
            is_empty = self.work(lead, journal, until_empty=until_empty)
            # A commit that waits for the disk takes all before it there.
            [(_, newest)] = self.place.run("SELECT pg_current_xact_id(), max(number) FROM queuehint.journal")
            self.may_lack_end = newest != journal.number
            if is_empty:
                lead.release()
                journal.close()
                return True
        except (BackendUnavailableError, OutcomeUnknownError, DeposedError, psycopg.Error):
            pass
        if journal is not None and self.rng.random() < 0.5:
            self.zombies.append((lead, journal))
            with suppress(psycopg.Error):
                self.place.run(LAPSE)
        else:
            lead.release()
            if journal is not None:
                journal.close()
        return False

    def compare(self, journal: PostgresJournal) -> None:
        """Compare what was acknowledged with what the next leader reads."""
        rows = [data.decode() for _, data in journal.rows()]
        if self.may_lack_end:
            del self.acknowledged[len(rows) :]
        assert rows[: len(self.acknowledged)] == self.acknowledged
        assert rows[len(self.acknowledged) :] in ([], [self.sent])
        self.acknowledged = rows

    def work(self, lead: PostgresLead, journal: PostgresJournal, *, until_empty: bool) -> bool:
        end_s = time.monotonic() + self.rng.random()
        empty = 0
        while until_empty or time.monotonic() < end_s:
            if self.rng.random() < 0.05:
                lead.renew()
                journal.check_there()
            found = journal.inbox(self.rng.choice((1, 3, 50)))
            empty = 0 if found else empty + 1
            if until_empty and empty > 10:
                return True
            if found or self.rng.random() < 0.1:
                self.sent = " ".join([row.data.decode() for row in found])
                journal.append(0, self.sent.encode(), taken=[row.id for row in found])
                self.acknowledged.append(self.sent)
                assert not journal.lost()
            else:
                time.sleep(0.002)
        return False

    def try_zombies(self) -> None:
        """Have those write that led before."""
        while self.zombies:
            lead, journal = self.zombies.pop()
            with pytest.raises((DeposedError, BackendUnavailableError, OutcomeUnknownError)):
                journal.append(0, b"of a zombie")
            lead.release()
            journal.close()


def break_things(place: Place, rng: random.Random, ends: threading.Event) -> None:
    while not ends.wait(rng.random() * 0.4):
        move = rng.random()
        if move < 0.6:
            with suppress(psycopg.Error):
                place.end_sessions()
        else:
            place.server.restart(signal.SIGQUIT if move < 0.85 else signal.SIGINT)


def test_each_committed_job_is_written_once_and_none_is_lost() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    # A crash loses what was written without waiting for the disk: the end of the journal.
    with PostgresServer(wal_writer_delay="2s") as server, open_place(server) as place:
        place.lead().release()
        ends = threading.Event()
        writers = [Writer(place, number, seed, ends) for number in range(WRITERS)]
        breaking = threading.Thread(target=break_things, args=(place, random.Random(seed + 99), ends))
        for thread in (*writers, breaking):
            thread.start()
        leading = Leading(place, rng)
        end_s = time.monotonic() + thorough(60, quick=2)
        try:
            while time.monotonic() < end_s:
                leading.lead(until_empty=False)
        finally:
            ends.set()
            for thread in (*writers, breaking):
                thread.join()
        while not leading.lead(until_empty=True):
            pass
        leading.try_zombies()
        words = " ".join(leading.acknowledged).split()
        assert len(words) == len(set(words)), seed
        committed = {word for writer in writers for word in writer.committed}
        unknown = {word for writer in writers for word in writer.unknown}
        assert committed <= set(words) <= committed | unknown, seed
        at = {word: number for number, word in enumerate(words)}
        for writer in writers:
            order = [at[word] for word in writer.committed]
            assert order == sorted(order), seed
        assert len(committed) > 100
