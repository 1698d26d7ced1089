"""Jobs that releases refuse: which waiting workers are woken, what is left of the wake-ups, and who runs the jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from queuehint import FakeClock, Scheduler
from queuehint import operations as op
from queuehint.backends.base import Backend, BackendOptions, Interest
from queuehint.backends.memory import MemoryBackend
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.testing.driver import job
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.worker.leases.release import LENGTH, Release
from tests.schedulers import memory, until
from tests.servers import Server
from tests.support import LIMIT_S

LONG_S = 600.0


async def refuse(backend: Backend, release: str, limit: int = 9, **fields: object) -> None:
    """Have a worker of a release claim jobs, and give them back."""
    asked = op.Exchange(f"w-{release}", limit=limit, release=release, **fields)  # type: ignore[arg-type]
    grants = (await backend.call(asked)).grants
    assert grants
    unknown = [Outcome(job_id=each.spec.id, token=each.token, kind=OutcomeKind.UNKNOWN_TASK) for each in grants]
    await backend.call(op.Exchange(f"w-{release}", tuple(unknown), release=release))


async def announce(backend: Backend, release: str, name: str = "", **fields: object) -> None:
    told = op.Announce(name or f"w-{release}", "host", 1, 1, release=release, **fields)  # type: ignore[arg-type]
    await backend.call(told)


def waiting(backend: Backend, release: str, users: tuple[str | None, ...] | None = None) -> asyncio.Task[None]:
    interest = Interest(pools=("default",), users=users, worker=f"w-{release}", release=release)
    return asyncio.get_running_loop().create_task(backend.wait(interest, LONG_S))


@pytest.fixture(autouse=True)
def _waits_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a wait that nothing ends last for longer than a test may take."""
    monkeypatch.setattr("queuehint.backends.redis.backend.WAIT_CEILING_S", LONG_S)
    monkeypatch.setattr("queuehint.backends.redis.connections.link.WAIT_TIMEOUT_S", 2 * LONG_S)


async def is_woken(task: asyncio.Task[None], within_s: float = LIMIT_S) -> bool:
    done, _ = await asyncio.wait((task,), timeout=within_s)
    task.cancel()
    await asyncio.wait((task,))
    return bool(done)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def backend(request: pytest.FixtureRequest, namespace: str) -> Iterator[Backend]:
    if request.param == "memory":
        made: Backend = MemoryBackend(BackendOptions())
    else:
        server: Server = request.getfixturevalue("redis_server")
        made = RedisBackend(parse_url(server.url), BackendOptions(namespace=namespace))
    yield made
    made.close_sync()


async def test_refusal_wakes_an_idle_worker_of_another_release(backend: Backend) -> None:
    for release in ("old", "new"):
        await announce(backend, release)
    await backend.call(op.Exchange("w-new", limit=1, release="new"))
    idle = waiting(backend, "new")
    await asyncio.sleep(0.05)
    await backend.call(op.Enqueue((job("a"),)))
    assert await is_woken(idle), "by the job"
    await backend.call(op.Exchange("w-new", limit=0, release="new"))
    grants = (await backend.call(op.Exchange("w-old", limit=1, release="old"))).grants
    idle, same = waiting(backend, "new"), waiting(backend, "old")
    await asyncio.sleep(0.05)
    unknown = Outcome(job_id="a", token=grants[0].token, kind=OutcomeKind.UNKNOWN_TASK)
    await backend.call(op.Exchange("w-old", (unknown,), release="old"))
    assert await is_woken(idle), "by the refusal"
    assert not await is_woken(same, 0.3), "the release that refused it is not"
    assert [each.spec.id for each in (await backend.call(op.Exchange("w-new", limit=1, release="new"))).grants] == ["a"]


async def test_refused_jobs_that_a_claim_leaves_wake_the_next_worker(backend: Backend) -> None:
    await announce(backend, "new")
    await backend.call(op.Enqueue(tuple([job(f"j{number}") for number in range(3)])))
    await refuse(backend, "old")
    for number in range(3):
        assert await is_woken(waiting(backend, "new"))
        grants = (await backend.call(op.Exchange("w-new", limit=1, release="new"))).grants
        assert [each.spec.id for each in grants] == [f"j{number}"]
    assert not await is_woken(waiting(backend, "old"), 0.3)


async def test_worker_of_a_new_release_wakes_once_announced(backend: Backend) -> None:
    await backend.call(op.Enqueue((job("a"),)))
    await backend.call(op.Exchange("w-new", limit=0, release="new"))
    await refuse(backend, "old")
    idle = waiting(backend, "new")
    await asyncio.sleep(0.05)
    await announce(backend, "new")
    assert await is_woken(idle)


async def test_refusal_wakes_workers_of_the_job_s_user_alone(backend: Backend) -> None:
    await announce(backend, "new", "one", users=("ann",))
    await announce(backend, "new", "two", users=("bob",), steal=("eve",))
    await backend.call(op.Enqueue((job("a", user="ann"), job("b", user="eve"))))
    await refuse(backend, "old", users=("ann",))
    assert await is_woken(waiting(backend, "new", ("ann",)))
    assert not await is_woken(waiting(backend, "new", ("bob",)), 0.3)


@pytest.mark.redis
async def test_wake_ups_of_releases_leave_no_keys(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    client = redis_server.client()
    for number in range(5):
        await announce(backend, f"r{number}")
    await announce(backend, "limited", users=("ann",))
    await backend.call(op.Enqueue((job("a", user="ann"), job("b"))))
    await refuse(backend, "old")
    pattern = keys.redis_key(namespace, "wake:release:", "*")
    assert len(list(client.scan_iter(pattern))) == 6
    assert client.exists(keys.redis_key(namespace, "refused"))
    await backend.call(op.Cancel(("a", "b")))
    assert not list(client.scan_iter(pattern))
    assert not client.exists(keys.redis_key(namespace, "refused"))
    await backend.close()


async def test_handlers_that_are_added_make_another_release() -> None:
    clock = FakeClock()
    sched = Scheduler(clock=clock)

    @sched.job
    async def known() -> None: ...

    (late,) = await sched.submit([job("late")])
    async with sched.worker():

        async def is_refused() -> bool:
            return (await sched.stats()).stuck["unknown_task"] == 1

        await until(is_refused)

        @sched.job(name="task")
        async def task() -> str:
            return "known"

        clock.advance(seconds=5)
        assert await late.result() == "known"


async def test_handler_added_before_a_refusal_is_sent_runs_the_job() -> None:
    clock = FakeClock()
    sched = Scheduler(clock=clock)

    @sched.after_job
    def add(_context: object, _outcome: object) -> None:
        if sched.handler("task") is None:

            @sched.job(name="task")
            async def task() -> str:
                return "known"

    (late,) = await sched.submit([job("late")])
    async with sched.worker():

        async def is_refused() -> bool:
            return memory(sched).engine.state.settled > 0

        await until(is_refused)
        clock.advance(seconds=5)
        assert await late.result() == "known"


def digests(version: str | None = None, **functions: Callable[..., object]) -> str:
    sched = Scheduler()
    for name, function in functions.items():
        sched.job(name=name)(function)
    return Release(sched._handlers, version).digest


def test_release_follows_from_tasks_parameters_and_version() -> None:
    def work(n: int) -> None: ...

    def more(n: int, unit: str) -> None: ...

    first = digests(work=work)
    assert first == digests(work=work)
    others = [digests(), digests(other=work), digests(work=more), digests("v 1", work=work)]
    assert len({first, *others}) == 5
    assert {len(each) for each in (first, *others)} == {LENGTH}


@pytest.mark.redis
async def test_jobs_run_by_the_release_that_knows_them_beside_others(redis_server: Server, namespace: str) -> None:
    old, new = Scheduler(redis_server.url, namespace=namespace), Scheduler(redis_server.url, namespace=namespace)

    @old.job(queue_hint=["{doc}"])
    async def edit(doc: str) -> str:
        return "old"

    @new.job(queue_hint=["{doc}"], aliases=["edit"])
    async def edit_section(doc: str) -> str:
        return "new"

    async with new.worker(concurrency=4), old.worker(concurrency=4), old.worker(concurrency=4):
        jobs = [await edit_section.enqueue(f"doc{number}") for number in range(30)]
        shared = [await edit.enqueue(f"doc{number}") for number in range(30)]
        async with asyncio.timeout(LONG_S):
            assert {await each.result() for each in jobs} == {"new"}
            assert {await each.result() for each in shared} <= {"old", "new"}
        records = (await old.backend.call(op.Get(tuple([each.id for each in jobs])))).records
        assert max(len(record.history) for record in records if record is not None) <= 2, "refused once at most"
    await old.close()
    await new.close()
