"""What applications do all the time in a thread each, while something fails: enqueue, commit, run jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg

from queuehint import Scheduler
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from tests.support import until_sync

Ran = list[tuple[str, int]]
"""The jobs that have run, by their places and numbers."""


class Doing(threading.Thread):
    """Does one thing after the other, of a place of its own, until *ends* is set."""

    def __init__(self, sched: Scheduler, doc: str) -> None:
        super().__init__()
        self.sched, self.doc, self.ends = sched, doc, threading.Event()
        self.done = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ends.is_set():
                self.step()
                self.done += 1
        except BaseException as error:
            self.failed = error

    def step(self) -> None:
        raise NotImplementedError

    @property
    def count(self) -> int:
        """How much it has done."""
        return self.done


class Caller(Doing):
    """
    Enqueues jobs at a place of its own, and asks again where the outcome is unknown.

    Attributes:
        asked_again: how often that was.
    """

    asked_again = 0

    def step(self) -> None:
        edit = self.sched.jobs["edit"].using(id=f"{self.doc}-{self.done}")
        while True:
            try:
                edit.enqueue_sync(self.doc, self.done)
            except (OutcomeUnknownError, BackendUnavailableError):
                self.asked_again += 1
            else:
                return


class Writer(Doing):
    """
    Commits transactions, each of a row of the table of its name and of a job; some roll back to a savepoint, or fail.

    Args:
        url: of the database, returned.
    """

    def __init__(self, sched: Scheduler, doc: str, url: Callable[[], str]) -> None:
        super().__init__(sched, doc)
        self._url = url

    def step(self) -> None:
        """Do it; a transaction that the server has ended is done no more."""
        turn = self.done
        with suppress(psycopg.Error, KeyError), psycopg.connect(self._url()) as connection:
            if turn % 3 == 0:
                with suppress(KeyError), connection.transaction():
                    self._write(connection, -turn)
                    raise KeyError
            self._write(connection, turn)
            if turn % 5 == 4:
                raise KeyError

    def _write(self, connection: psycopg.Connection, number: int) -> None:
        connection.execute(f"INSERT INTO {self.doc} VALUES (%s)", (number,), prepare=False)
        self.sched.jobs["edit"].within(connection).enqueue_sync(self.doc, number)


class Running(Doing):
    """Runs jobs, by a scheduler whose handlers note in *ran* what has run."""

    def __init__(self, sched: Scheduler, ran: Ran) -> None:
        super().__init__(sched, "jobs")
        self._ran = ran

    def step(self) -> None:
        self.sched.drain_sync(run=True)

    @property
    def count(self) -> int:
        return len(self._ran)


@contextmanager
def doing(everybody: Sequence[Doing]) -> Iterator[Callable[[], None]]:
    """Have all do what they do, until the block ends; none may have failed. Yield what waits until each did more."""

    def more() -> None:
        for each in everybody:
            least = each.count + 5
            until_sync(lambda each=each, least=least: each.count >= least or each.failed, f"more of {each.doc}")  # type: ignore[misc]

    for each in everybody:
        each.start()
    try:
        yield more
    finally:
        for each in everybody:
            each.ends.set()
        for each in everybody:
            each.join()
    for each in everybody:
        if each.failed is not None:
            raise AssertionError(f"{type(each).__name__} of {each.doc} has failed") from each.failed
