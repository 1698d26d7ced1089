"""`queuehint doctor`: waits for signals that no job waits for, and jobs whose waits are lost, in each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queuehint import Backend
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.journal.doctor import report as report_of
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.backends.report import Finding, Report
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.doctor import diagnose as diagnose_file
from queuehint.core.engine import EngineOptions
from queuehint.core.jobs import staging
from queuehint.operations import Operation
from queuehint.testing.driver import Driver, job
from queuehint.values.signal import signal_spec, wait_id, wait_spec
from queuehint.values.spec import Dependency
from tests.postgres_store import Place
from tests.servers import Server
from tests.sqlite_store import make_shelf

BUDGET = 1000
W = wait_id("s", "j")
LOST = f"job j waits for a signal for ever: the record of its wait, {W}, is not there"
UNAWAITED = f"{W} waits for a signal, and no job waits for it"


def of_jobs(report: Report) -> list[Finding]:
    """Return what is wrong with jobs, and not with a server."""
    return [finding for finding in report.findings if finding.kind != "setting"]


class Examined(Driver):
    """A store that an examination and a hand reach."""

    def __init__(
        self, backend: Backend, look: Callable[[bool], Report], *, wait: Callable[[], Any], job: Callable[[], Any]
    ) -> None:
        super().__init__()
        self.backend = backend
        self.look = look
        self.lose_wait = wait
        self.lose_job = job

    def apply(self, operation: Operation[Any]) -> Any:
        return self.backend.call_sync(operation)

    def advance(self, ms: int) -> None:
        assert ms == 0, "time passes by itself"

    def found(self) -> list[Finding]:
        return of_jobs(self.look(False))

    def states_then(self, *ids: str) -> str:
        """Return the states of jobs once all that follows has been done."""
        self.wait(0)
        return self.states(*ids)


def of_journal(backend: JournalBackend, look: Callable[[bool], Report]) -> Examined:
    def lose_wait() -> None:
        del backend.engine.table.jobs[W]

    def lose_job() -> None:
        table = backend.engine.table
        table.edges.release(table.jobs["j"])
        staging.remove(table, table.jobs["j"])

    return Examined(backend, look, wait=lose_wait, job=lose_job)


@contextmanager
def of_file(budget: int = BUDGET) -> Iterator[Examined]:
    with contextmanager(make_shelf)() as shelf:
        backend = SqliteBackend(
            Address(path=shelf.path), BackendOptions(clock=shelf.clock), EngineOptions(budget=budget)
        )
        yield of_journal(backend, lambda fix: diagnose_file(backend, fix=fix))
        backend.close_sync()


@contextmanager
def of_redis(server: Server, namespace: str, budget: int = BUDGET) -> Iterator[Examined]:
    def key(name: str) -> str:
        return keys.redis_key(namespace, name)

    def lose_job() -> None:
        client.hdel(key("jobs"), "j")
        client.delete(key(f"waiting:{W}"), key("blocked:j"))

    client = server.client()
    backend = RedisBackend(parse_url(server.unix_url), BackendOptions(namespace=namespace), budget=budget)
    yield Examined(
        backend, lambda fix: diagnose(backend, fix=fix), wait=lambda: client.hdel(key("jobs"), W), job=lose_job
    )
    backend.close_sync()


@pytest.fixture
def file() -> Iterator[Examined]:
    with of_file() as store:
        yield store


@pytest.fixture
def postgres(place: Place) -> Examined:
    backend = place.caller().store
    return of_journal(backend, lambda fix: report_of(backend, "its snapshot and journal", fix=fix))


@pytest.fixture
def redis(redis_server: Server, namespace: str) -> Iterator[Examined]:
    with of_redis(redis_server, namespace) as store:
        yield store


@pytest.fixture(
    params=[
        "file",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("redis", marks=pytest.mark.redis),
    ]
)
def store(request: pytest.FixtureRequest) -> Examined:
    found: Examined = request.getfixturevalue(request.param)
    return found


def begin(store: Examined) -> None:
    """Have the job `j` wait for the signal `s`, and `k` too, and look at them: nothing is wrong."""
    other = wait_spec("s", "k", None)
    store.enqueue(wait_spec("s", "j", None), job("j", after=[W]), other, job("k", after=[other.id]))
    assert store.found() == []


def test_a_job_whose_wait_is_lost_is_named_and_canceled(store: Examined) -> None:
    begin(store)
    store.lose_wait()
    (finding,) = [each for each in store.found() if each.kind == "wait"]
    assert (finding.what, finding.job_id, finding.is_repairable) == (LOST, "j", True)
    assert store.states_then("j", "k") == "DEFERRED DEFERRED"
    fixed = store.look(True)
    assert (finding in fixed.repaired, of_jobs(fixed)) == (True, [])
    assert store.states_then("j", "k") == "CANCELED DEFERRED"
    store.enqueue(signal_spec("s", b"1", 1000))
    assert store.states_then("k") == "QUEUED"


def test_orphaned_wait_is_named_and_canceled(store: Examined) -> None:
    begin(store)
    store.lose_job()
    (finding,) = [each for each in store.found() if each.level == "warning"]
    assert (finding.kind, finding.what, finding.job_id, finding.is_repairable) == ("unawaited", UNAWAITED, W, True)
    assert store.states_then(W) == "DEFERRED"
    fixed = store.look(True)
    assert (finding in fixed.repaired, of_jobs(fixed)) == (True, [])
    assert store.states_then(W, "k") == "CANCELED DEFERRED"
    assert store.look(True).repaired == ()


def test_wait_of_a_running_or_ended_job_is_kept(store: Examined) -> None:
    store.enqueue(job("j"), job("k", after=["j"]))
    store.start()
    store.enqueue_from("j", wait_spec("s", "j", 60_000))
    assert store.found() == []
    store.await_children("j", W, again=True)
    assert store.states_then("j", W) == "DEFERRED DEFERRED"
    assert store.found() == []


def while_work_is_left(store: Examined) -> None:
    """Examine a store with a budget of one unit after each unit."""
    other = wait_spec("s", "m", None)
    never_bound = job("m", after=[other.id, Dependency("d", data=True)], on_dependency_failure="cancel")
    for part in (wait_spec("s", "j", None), job("j", after=[W])):
        store.stage("p", part)
        assert store.found() == []
    store.enqueue(job("d"))
    store.cancel("d")
    for change in (lambda: store.commit("p"), lambda: store.cancel("j"), lambda: store.enqueue(other, never_bound)):
        change()
        assert store.found() == []
        while store.tick().more:
            assert store.found() == []
    assert store.states("j", W, "m", other.id) == "CANCELED CANCELED CANCELED CANCELED"
    assert store.look(True).repaired == ()


def test_file_with_leftovers_is_sound() -> None:
    with of_file(budget=1) as store:
        while_work_is_left(store)


@pytest.mark.redis
def test_redis_is_as_it_should_be_while_work_is_left(redis_server: Server, namespace: str) -> None:
    with of_redis(redis_server, namespace, budget=1) as store:
        while_work_is_left(store)
