"""
Cost of records on Redis: bytes per record, pages of a million, counts, and the speed of dropping expired ones.

Half of the records have a place, and each has one of two services. They have 100 users; changes are measured once more
with 997 users, so that hardly any records next to each other have the same user. Times of questions are those of a
client, times of changes those of the server's main thread.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

from benchmarks.report import REPEATS
from benchmarks.servers import RedisServer
from queuehint import Claim, FakeClock, JobSpec, JobState, Outcome, OutcomeKind, Retention, new_id
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.operations import Cancel, CountRecords, Enqueue, Exchange, List, ListUsers, Operation, Tick
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from benchmarks.report import Report

AT_ONCE = 1000
BATCH = 100
PAGE_MS = 5.0
BYTES = 1000.0
FEW, MANY = 100, 997
DAY_MS = 24 * 3600 * 1000
NAMESPACE = "bench"


def run(report: Report, *, quick: bool) -> None:
    """Measure all; the full run takes some minutes and 1 GB."""
    if shutil.which("redis-server") is None:
        report.miss("redis-server")
        return
    _lives(report, 5_000 if quick else 50_000, FEW)
    _lives(report, 5_000 if quick else 50_000, MANY)
    _questions(report, 50_000 if quick else 1_000_000)


def _spec(number: int, users: int) -> JobSpec:
    path = (f"doc-{number % 5000:06}", "section-1", f"branch-{number % 2}")
    return JobSpec(
        id=new_id(),
        task="edit",
        claims=(Claim(path),) if number % 2 else (),
        arguments=b'{"doc":"doc-000017","section":"section-1"}',
        user=f"user-{number % users}",
        service="docs" if number % 3 else "mail",
    )


class _Store:
    """A store of its own, and what the server's main thread has used."""

    def __init__(self, server: RedisServer, *, retention: Retention | None = None) -> None:
        self.server = server
        self.clock = FakeClock(1_700_000_000_000)
        options = BackendOptions(namespace=NAMESPACE, clock=self.clock, retention=retention or Retention())
        self.backend = RedisBackend(parse_url(server.url), options)

    def do(self, operation: Operation[Any]) -> Any:
        return self.backend.call_sync(operation)

    def used_us(self) -> float:
        used = self.server.client.info("cpu")
        return float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"]) * 1e6

    def fill(self, records: int, users: int) -> float:
        """Enqueue jobs; return the µs of the server for one."""
        begin_us = self.used_us()
        for begin in range(0, records, AT_ONCE):
            self.do(Enqueue(tuple([_spec(begin + at, users) for at in range(AT_ONCE)])))
            self.clock.advance(ms=1)
        return (self.used_us() - begin_us) / records


def _lives(report: Report, records: int, users: int) -> None:
    report.title(
        f"(a) {records:,} jobs of {users} users enqueued by {AT_ONCE:,}, claimed and finished by {BATCH}, expired"
    )
    enqueued, lived, waiting, over, pruned = [], [], [], [], []
    for _ in range(REPEATS):
        with RedisServer() as server:
            store = _Store(server)
            empty = server.used_bytes
            enqueued.append(store.fill(records, users))
            waiting.append((server.used_bytes - empty) / records)
            begin_us = store.used_us()
            reply = store.do(Exchange("bench", limit=BATCH))
            while reply.grants:
                settle = [
                    Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b'{"a":1}')
                    for grant in reply.grants
                ]
                reply = store.do(Exchange("bench", tuple(settle), limit=BATCH))
            lived.append((store.used_us() - begin_us) / records)
            over.append((server.used_bytes - empty) / records)
            store.clock.advance(ms=91 * DAY_MS)
            begin_s = time.perf_counter()
            while store.do(Tick()).more:
                pass
            pruned.append(records / (time.perf_counter() - begin_s))
            left = {key.decode().partition(":")[2].partition(":")[2] for key in server.client.keys("*")}
            assert left <= {"meta", "sessions", "receipts", "seen", "wake:timer"}, left
    report.add("enqueue, server", "µs", *enqueued)
    report.add("claim and finish, server", "µs", *lived)
    figures = [report.add("a waiting job", "bytes", *waiting), report.add("a finished job", "bytes", *over)]
    if users == FEW:
        report.aim("bytes a job", max(figure.median for figure in figures), BYTES, at_most=True)
    report.add("records that have expired, dropped", "/s", *pruned)


def _questions(report: Report, records: int) -> None:
    report.title(f"(b) Questions about {records:,} records")
    with RedisServer() as server:
        store = _Store(server)
        store.fill(records, MANY)
        page = store.do(List(RecordFilter(), newest_first=True, after=("", records // 2), limit=100))
        store.do(Cancel(tuple([record.id for record in page.records])))

        def ask(name: str, operation: Operation[Any]) -> float:
            times = []
            for _ in range(5):
                begin_s = time.perf_counter()
                store.do(operation)
                times.append((time.perf_counter() - begin_s) * 1000)
            return report.add(name, "ms", *times).median

        newest = ask("the newest 100", List(newest_first=True))
        report.aim("ms for the newest page", newest, PAGE_MS, at_most=True)
        ask("the newest 100 of a user", List(RecordFilter(user="user-5"), newest_first=True))
        canceled = (JobState.CANCELED,)
        ask("the 100 that are CANCELED", List(RecordFilter(states=canceled)))
        ask("of a user and a service, CANCELED", List(RecordFilter(user="user-5", service="docs", states=canceled)))
        ask("below a document", List(RecordFilter(path=("doc-000017",))))
        ask("counted by state", CountRecords())
        ask("of a service, counted by state", CountRecords(RecordFilter(service="docs")))
        ask("of a user, counted by state", CountRecords(RecordFilter(user="user-5")))
        ask("200 users of a service", ListUsers("docs", limit=200))
