"""Guests that reach the leader through the database alone, while their sessions are cut and the server starts again."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from queuehint.backends.postgres.mail.carrier import Carrier
from queuehint.backends.postgres.store import PostgresStore, Served
from queuehint.testing.driver import job
from tests.postgres_servers import PostgresServer
from tests.postgres_store import Caller, Place, open_place
from tests.support import until_sync

DOCS = 5


@pytest.fixture
def own_place() -> Iterator[Place]:
    """A database on a server of the test's own."""
    with PostgresServer() as server, open_place(server) as place:
        yield place


def under(place: Place, options: tuple[str, ...], fault: Callable[[list[Carrier]], None], times: int) -> None:
    """Enqueue and run jobs by two guests for as long as something fails; each runs once, in the order of its place."""
    leader = place.caller("durability=process", *options)
    leader.find("nobody")
    producer, worker = [place.caller("durability=process", *options, machine="elsewhere") for _ in range(2)]
    for each in (producer, worker):
        each.find("nobody")
    assert isinstance(leader.store._service, Served)
    carriers = [leader.store._service._carrier, *map(carrier, (producer, worker))]
    made: dict[str, int] = {}
    ends, all_made = threading.Event(), threading.Event()
    with ThreadPoolExecutor(DOCS + 1) as pool:
        producing = [pool.submit(produce, producer, f"doc{n}", made, ends) for n in range(DOCS)]
        working = pool.submit(work, worker, made, ends, all_made)
        try:
            for _ in range(times):
                before = sum(made.values())
                fault(carriers)
                until_sync(lambda least=before + 2 * DOCS: ends.is_set() or sum(made.values()) >= least)  # type: ignore[misc]
        finally:
            ends.set()
        try:
            for produced in producing:
                produced.result()
        finally:
            all_made.set()
        assert working.result() == {doc: list(range(most)) for doc, most in made.items()}
    assert all(each.box for each in carriers)


def carrier(guest: Caller) -> Carrier:
    assert isinstance(guest.store.store, PostgresStore)
    return guest.store.store._carrier


def produce(producer: Caller, doc: str, made: dict[str, int], ends: threading.Event) -> None:
    try:
        while not ends.is_set():
            n = made.get(doc, 0)
            (it,) = producer.enqueue(job(f"{doc}-{n}", [doc])).jobs
            assert it.created
            made[doc] = n + 1
    finally:
        ends.set()


def work(
    worker: Caller, made: dict[str, int], ends: threading.Event, all_made: threading.Event
) -> dict[str, list[int]]:
    ran: defaultdict[str, list[int]] = defaultdict(list)
    try:
        while not all_made.is_set() or sum(map(len, ran.values())) < sum(made.values()):
            started = worker.start(8)
            for job_id in started:
                doc, _, n = job_id.rpartition("-")
                ran[doc].append(int(n))
            worker.finish(*started)
            time.sleep(0 if started else 0.005)
    finally:
        ends.set()
    return ran


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("pooled=1",)])
def test_sessions_that_are_cut_lose_and_repeat_nothing(place: Place, options: tuple[str, ...]) -> None:
    """Where that of the leader is among them, a guest may lead."""
    under(place, options, lambda _: place.end_sessions(), 5)


@pytest.mark.slow
def test_mail_that_is_cut_loses_and_repeats_nothing(place: Place) -> None:
    turns = count()

    def cut(carriers: list[Carrier]) -> None:
        mailbox = carriers[next(turns) % 3]._mailbox
        if mailbox is not None:
            place.run(f"SELECT pg_terminate_backend({mailbox._session.pid})")

    under(place, (), cut, 9)


def test_a_server_that_starts_again_loses_and_repeats_nothing(own_place: Place) -> None:
    under(own_place, (), lambda _: own_place.server.restart(), 2)
