"""Stores that refuse a worker for good: an old server, a replica, a newer schema, a missing right, a damaged file."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuehint import BackendDeniedError, BackendError, BackendUnavailableError, CorruptStateError, Scheduler
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import examination
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.codec import codec
from queuehint.cli.app import app
from queuehint.clock import FakeClock
from queuehint.operations import Draw
from tests.commands import CliRunner
from tests.conftest import StartServer
from tests.doctor_store import Store
from tests.faults.checks import until
from tests.support import LIMIT_S

Refusal = tuple[str, type[BackendError], str]


@pytest.fixture(
    params=[
        pytest.param("file", marks=pytest.mark.slow),
        *[pytest.param(name, marks=pytest.mark.redis) for name in ("old", "replica", "schema", "right")],
    ]
)
def refusal(request: pytest.FixtureRequest, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """Return the URL of a store that refuses workers for good, the error, and words of its text."""
    if request.param == "file":
        (tmp_path / "jobs.db").write_bytes(b"no database" * 1000)
        return f"sqlite:///{tmp_path}/jobs.db", CorruptStateError, "jobs.db"
    start_server: StartServer = request.getfixturevalue("start_server")
    server = start_server(acl=["user ann on >word ~* +@all -hset"])
    query = f"?patience=1&namespace={namespace}"
    if request.param == "replica":
        return f"{start_server(replica_of=server.port).url}{query}", BackendUnavailableError, "its role is slave"
    if request.param == "right":
        words = "can't run this command|no permissions to run the 'hset' command"  # Redis, Valkey
        return f"redis://ann:word@127.0.0.1:{server.port}/0{query}", BackendDeniedError, words
    if request.param == "schema":
        clock = FakeClock()
        backend = RedisBackend(parse_url(server.url), BackendOptions(namespace=namespace, clock=clock))
        backend.call_sync(Draw(1))
        backend.close_sync()
        Store(backend, clock, server, namespace).change_packed("meta", "state", f"value[1] = {codec.SCHEMA + 1}")
        return f"{server.url}{query}", CorruptStateError, f"schema {codec.SCHEMA + 1}"
    monkeypatch.setattr(examination, "VERSION_LEAST", (99, 0, 0))
    return f"{server.url}{query}", BackendUnavailableError, "at least 99.0.0 is needed"


def test_worker_command_refused_for_good_exits_with_1(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, _, words = refusal
    (tmp_path / "refused.py").write_text("import queuehint\n\nsched = queuehint.Scheduler()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "refused", raising=False)
    result = CliRunner().invoke(app, ["worker", "refused:sched"], env={"QUEUEHINT_URL": url})
    assert result.exit_code == 1, result.output
    # Where logging is set up already, as in a test, the command leaves it as it is.
    assert re.search(words, result.output + caplog.text)


async def starts_lifespan(sched: Scheduler) -> None:
    async with sched.lifespan(workers=True)(None):
        raise AssertionError("it has started")


async def starts_worker(sched: Scheduler) -> None:
    async with sched.worker():
        raise AssertionError("it has started")


async def starts_thread(sched: Scheduler) -> None:
    def start() -> None:
        with sched.worker_sync():
            raise AssertionError("it has started")

    await asyncio.to_thread(start)


@pytest.mark.slow
@pytest.mark.parametrize("start", [starts_lifespan, starts_worker, starts_thread])
async def test_application_refused_for_good_does_not_start(refusal: Refusal, start: Callable[..., Any]) -> None:
    url, kind, words = refusal
    sched = Scheduler(url)
    async with asyncio.timeout(LIMIT_S) as limit:
        with pytest.raises(kind, match=words) as caught:
            await start(sched)
    # A worker that goes on asking ends with the same error once it is canceled.
    assert not limit.expired()
    assert caught.value.is_lasting
    await sched.close()


async def test_application_starts_once_a_store_that_was_away_answers(
    far: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuehint.worker.exchanges.pause_s", lambda _: 0.01)
    sched = far()
    call, failures = sched.backend.call, [BackendUnavailableError("away"), BackendError("a temporary refusal")]
    assert not any(error.is_lasting for error in failures)

    async def calling(operation: Any) -> Any:
        if failures:
            raise failures.pop()
        return await call(operation)

    monkeypatch.setattr(sched.backend, "call", calling)
    async with asyncio.timeout(LIMIT_S), sched.worker():
        assert not failures


@pytest.mark.slow
async def test_running_worker_survives_a_lasting_refusal(
    far: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuehint.worker.exchanges.pause_s", lambda _: 0.01)
    sched = far()

    @sched.job
    async def work() -> int:
        return 1

    call, failures = sched.backend.call, list[BackendError]()

    async def calling(operation: Any) -> Any:
        if failures:
            raise failures.pop()
        return await call(operation)

    async with asyncio.timeout(LIMIT_S), sched.worker():
        monkeypatch.setattr(sched.backend, "call", calling)
        failures += [CorruptStateError("damaged"), BackendDeniedError("NOPERM")]
        await until(lambda: not failures, "the worker has met both")
        assert await (await work.enqueue()).result() == 1
