"""Workers for some users: the users they serve and help, without busy waiting or missed wake-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import ANYONE, InvalidJobError, InvalidJobTypeError, Scheduler
from queuehint.operations import Exchange
from queuehint.values.report import ReasonKind
from tests.schedulers import turns, until


@pytest.fixture(autouse=True)
def _is_looked_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a worker that was forgotten sleep for longer than a test may take."""
    for name in ("worker.listening.WAIT_CEILING_S", "backends.redis.backend.WAIT_CEILING_S"):
        monkeypatch.setattr(f"queuehint.{name}", 600.0)
    monkeypatch.setattr("queuehint.backends.redis.connections.link.WAIT_TIMEOUT_S", 900.0)


def listen(sched: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """Return the list to which each exchange of a worker will be added."""
    heard: list[Exchange] = []
    call = sched.backend.call

    async def noted(operation: Any) -> Any:
        if isinstance(operation, Exchange):
            heard.append(operation)
        return await call(operation)

    monkeypatch.setattr(sched.backend, "call", noted)
    return heard


def register(sched: Scheduler) -> tuple[Any, Callable[[], list[str]]]:
    """Register a job that records the user that it runs for."""
    ran: list[str] = []

    @sched.job(name="work")
    async def work(who: str) -> None:
        ran.append(who)

    return work, lambda: list(ran)


async def test_worker_runs_only_jobs_of_its_users(sched: Scheduler) -> None:
    work, ran = register(sched)
    for user in ("ann", "bob", "ann"):
        await work.using(user=user).enqueue(user)
    left = await work.enqueue("nobody")
    async with sched.worker(users=["ann"]):
        await until(lambda: len(ran()) == 2)
        assert (await left.why()).kind is ReasonKind.NO_WORKER
    async with sched.worker(users=["bob"], steal=ANYONE):
        await until(lambda: len(ran()) == 4)
    assert ran() == ["ann", "ann", "bob", "nobody"]
    await sched.close()


@pytest.mark.slow
async def test_idle_worker_wakes_only_for_jobs_of_its_users(sched: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    work, ran = register(sched)
    heard = listen(sched, monkeypatch)
    await work.using(user="bob").enqueue("bob")
    async with sched.worker(2, users=["ann"], steal=["cy"]):
        await until(lambda: len(heard) > 0)
        await asyncio.sleep(0.3)
        for n in range(20):
            await work.using(user=f"other {n}").enqueue("other")
            await turns(2)
        await asyncio.sleep(0.3)
        # It asks once, and once more should a marker have been left by what went before.
        assert len(heard) <= 3
        for user in ("ann", "cy", "ann"):
            before = len(ran())
            await work.using(user=user).enqueue(user)
            await until(lambda before=before: len(ran()) > before)  # type: ignore[misc]
            await asyncio.sleep(0.05)
        assert len(heard) <= 15
    assert ran() == ["ann", "cy", "ann"]
    assert (await sched.stats()).ready == {"default": 21}
    await sched.close()


async def test_two_idle_workers_of_one_user_share_a_burst(sched: Scheduler) -> None:
    gate = asyncio.Event()
    running: list[int] = []

    @sched.job(name="hold")
    async def hold(n: int) -> None:
        running.append(n)
        await gate.wait()

    async with sched.worker(1, users=["ann"]), sched.worker(1, users=["ann"]):
        await asyncio.sleep(0.1)
        # In one step, so that one of them is woken, and has to leave word for the other.
        await hold.using(user="ann").enqueue_many([(0,), (1,)])
        await until(lambda: len(running) == 2)
        gate.set()
    await sched.close()


async def test_weights_are_set_and_told(sched: Scheduler) -> None:
    assert await sched.set_weight("ann", 3)
    assert not await sched.set_weight("ann", 3)
    assert await asyncio.to_thread(sched.set_weight_sync, None, 2)
    assert await sched.weights() == {None: 2, "ann": 3}
    assert await asyncio.to_thread(sched.weights_sync) == {None: 2, "ann": 3}
    assert await sched.set_weight("ann", 1)
    assert await sched.weights() == {None: 2}
    await sched.close()


def test_bad_weights_are_refused() -> None:
    sched = Scheduler("memory://")
    for weight in (0, 101, -1):
        with pytest.raises(InvalidJobError, match=f"^weight must be from 1 to 100, got {weight}$"):
            sched.set_weight_sync("ann", weight)
    for odd in (True, 1.0, "1", None):
        with pytest.raises(InvalidJobTypeError, match=r"^weight must be int"):
            sched.set_weight_sync("ann", odd)  # type: ignore[arg-type]
    with pytest.raises(InvalidJobError, match=r"^user is empty"):
        sched.set_weight_sync("", 1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"users": []}, "^users is empty"),
        ({"users": [""]}, "^users is empty; it must be 1 to 256 bytes$"),
        ({"users": "ann"}, "^users must be a list, got str"),
        ({"users": [1]}, "^users must be str, got int"),
        ({"users": [*map(str, range(65))]}, "^users: 65 in one call, limit 64$"),
        ({"users": ["ann"], "steal": "bob"}, "^steal must be a list, got str"),
        ({"steal": ["bob"]}, "^steal requires users: a worker without users already serves everyone$"),
        ({"steal": ANYONE}, "^steal requires users: a worker without users already serves everyone"),
    ],
)
def test_bad_users_of_a_worker_are_refused(options: dict[str, Any], message: str) -> None:
    sched = Scheduler("memory://")
    with pytest.raises(InvalidJobError, match=message):
        sched.make_worker(**options)
    with pytest.raises(InvalidJobError, match=message), sched.worker_sync(**options):
        raise AssertionError("it runs")
