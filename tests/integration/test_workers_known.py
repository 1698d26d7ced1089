"""The registry of workers, by the API and by the command line."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest
from typer.testing import CliRunner

from queuehint import InvalidJobError, InvalidJobTypeError, Scheduler, WorkerInfo
from queuehint.cli.app import app
from queuehint.worker.leases import presence
from tests.schedulers import until
from tests.servers import shared_server


async def known(sched: Scheduler, *, running: int | None = None) -> WorkerInfo:
    found: list[WorkerInfo] = []

    async def look() -> bool:
        found[:] = await sched.workers()
        return bool(found) and running in (None, found[0].running)

    await until(look)
    (worker,) = found
    return worker


async def test_a_worker_is_known_while_it_works(sched: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "ANNOUNCE_EVERY_S", 0.0)
    asked: list[Any] = []

    @sched.job
    async def work() -> None:
        asked.extend(await sched.workers())

    async with sched.worker(3, pools=["default", "mail"], users=["ann", None], steal="*", version="2.1") as worker:
        await known(sched)
        await work.enqueue()
        await until(lambda: bool(asked))
        said = await known(sched, running=0)
        assert (said.name, said.host, said.pid) == (worker.name, socket.gethostname()[:64], os.getpid())
        assert (said.version, said.pools, said.users, said.steal) == ("2.1", ("default", "mail"), ("ann", None), "*")
        assert (said.slots, said.running) == (3, 0)
    assert await sched.workers() == ()
    await sched.close()


def test_a_worker_in_a_thread_is_known_too() -> None:
    sched = Scheduler()
    with sched.worker_sync(2, version="v"):
        (worker,) = sched.workers_sync()
        assert (worker.slots, worker.version) == (2, "v")
    assert sched.workers_sync() == ()


async def test_exchanges_of_a_steady_worker_announce_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sched = Scheduler()
    called: list[str] = []
    call = sched.backend.call

    async def noted(operation: Any) -> Any:
        called.append(type(operation).__name__)
        return await call(operation)

    monkeypatch.setattr(sched.backend, "call", noted)

    @sched.job
    async def work(_n: int) -> None: ...

    async with sched.worker(1):
        handles = await work.enqueue_many([(n,) for n in range(20)])
        await handles[-1].result()
        assert called.count("Announce") == 1
    assert called.count("Announce") == 2


@pytest.mark.parametrize(
    "wrong, error, said",
    [
        ("", InvalidJobError, "version is empty"),
        ("v" * 257, InvalidJobError, "version is 257 bytes, limit 256"),
        ("a\nb", InvalidJobError, "version holds a control character"),
        (2, InvalidJobTypeError, "version must be str, got int: 2"),
    ],
)
def test_a_wrong_version_is_refused_by_name(wrong: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        Scheduler().make_worker(version=wrong)
    assert said in str(caught.value)


@pytest.mark.redis
async def test_workers_are_listed_for_people_and_for_programs(namespace: str) -> None:
    url = shared_server().url
    sched = Scheduler(url, namespace=namespace)
    async with sched.worker(3, pools=["mail"], users=[None], version="2.1"):
        worker = await known(sched)
        plain = CliRunner().invoke(app, ["workers", "--target", url, "-n", namespace])
        fields = plain.stdout.rstrip("\n").split("\t")
        assert fields[:8] == [
            worker.name, worker.host, str(worker.pid), "2.1", "mail", "(no user)", "", "0 of 3",
        ]  # fmt: skip
        (line,) = CliRunner().invoke(app, ["workers", "--target", url, "-n", namespace, "--json"]).stdout.splitlines()
        found = json.loads(line)
        assert (found["name"], found["users"], found["slots"]) == (worker.name, [None], 3)
    await sched.close()
