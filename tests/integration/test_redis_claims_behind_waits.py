"""Claims that are sent behind a wait on Redis: one round trip, no job claimed twice or lost, no claim left behind."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import exceptions as driver

from queuehint import JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.redis import backend as backends
from queuehint.backends.redis import keys
from queuehint.backends.redis import session as sessions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.connections.async_link import AsyncLink
from queuehint.backends.redis.examination import Examination
from queuehint.backends.redis.transport import NotSent, Send
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from queuehint.values.policy import Policy
from queuehint.values.spec import JobSpec
from queuehint.worker import listening
from tests.proxy import Proxy
from tests.schedulers import until
from tests.servers import Server
from tests.support import LIMIT_S

INTEREST = Interest(pools=("default",), worker="w")


def claim(limit: int = 1) -> op.Exchange:
    return op.Exchange("w", limit=limit)


class Claims:
    """Claims behind waits of one backend, and what they were granted."""

    def __init__(self, server: Server, namespace: str, url: str = "") -> None:
        self.client = server.client()
        self.namespace = namespace
        self.backend = RedisBackend(parse_url(url or server.url), BackendOptions(namespace=namespace))
        self.replies: list[op.Exchanged] = []

    async def check(self) -> None:
        """Have checks be over that a first call makes."""
        await self.backend.call(claim(limit=0))

    async def begin(self, timeout_s: float = 5.0, operation: op.Exchange | None = None) -> asyncio.Task[bool]:
        """Wait, with a claim behind it, and return once the server has blocked."""
        operation = operation or claim()
        waiting = asyncio.create_task(self.backend.wait_and_call(INTEREST, timeout_s, operation, self.replies.append))
        await until(lambda: waiting.done() or self.is_blocked)
        return waiting

    @property
    def is_blocked(self) -> bool:
        return bool(self.client.info("clients")["blocked_clients"])

    @property
    def granted(self) -> list[str]:
        return [grant.spec.id for reply in self.replies for grant in reply.grants]

    async def enqueue(self, *ids: str) -> None:
        await self.backend.call(op.Enqueue(tuple(JobSpec(id=each, task="t") for each in ids)))

    async def state(self, job_id: str) -> tuple[JobState, int]:
        (record,) = (await self.backend.call(op.Get((job_id,)))).records
        assert record is not None
        return record.state, record.attempts

    def key(self, *words: str) -> str:
        return keys.redis_key(self.namespace, *words)


@pytest.fixture
def claims(redis_server: Server, namespace: str) -> Iterator[Claims]:
    claims = Claims(redis_server, namespace)
    yield claims
    claims.backend.close_sync()


async def test_job_is_granted_in_the_round_trip_of_the_wait(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    await claims.check()
    waiting = await claims.begin()
    sent = []
    asked = AsyncLink.ask

    async def ask(link: AsyncLink, send: Send) -> Any:
        sent.append(send.command)
        return await asked(link, send)

    monkeypatch.setattr(AsyncLink, "ask", ask)
    await claims.enqueue("a", "b")
    assert await waiting
    assert claims.granted == ["a"]
    assert len(sent) == 1, "the submission is all that was sent meanwhile"
    assert claims.client.exists(claims.key("wake:pool:", "default")), "others hear of what is left"


async def test_a_wait_that_ends_after_its_time_claims_too(claims: Claims) -> None:
    await claims.check()
    before = claims.client.info("commandstats")
    assert await (await claims.begin(0.05))
    assert claims.granted == []
    assert len(claims.replies) == 1
    after = claims.client.info("commandstats")

    def calls(stats: dict[str, Any], *names: str) -> int:
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)

    assert calls(after, "bzpopmin") - calls(before, "bzpopmin") == 1
    assert calls(after, "fcall", "evalsha") - calls(before, "fcall", "evalsha") == 1


async def test_a_wait_that_is_canceled_takes_its_claim_back(claims: Claims) -> None:
    await claims.check()
    for turns in range(16):
        claims.replies.clear()
        waiting = await claims.begin()
        job_id = f"j{turns}"
        # It is granted before the cancellation, at the same moment, or not at all.
        coming = asyncio.create_task(claims.enqueue(job_id))
        for _ in range(turns % 8):
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await coming
        await until(lambda: not claims.is_blocked)
        state, attempts = await claims.state(job_id)
        if claims.granted:
            assert (claims.granted, state, attempts) == ([job_id], JobState.STARTED, 1)
            continue
        assert (state, attempts) == (JobState.QUEUED, 0)
        assert claims.client.exists(claims.key("wake:pool:", "default")), "another worker hears of it"
        (grant,) = (await claims.backend.call(claim())).grants
        assert grant.spec.id == job_id
    assert not claims.client.exists(claims.key("wake:session:", "w"))


async def test_a_canceled_claim_keeps_its_connection_and_grants_nothing_later(claims: Claims) -> None:
    await claims.check()
    made = []
    for _ in range(4):
        waiting = await claims.begin()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        made.append(claims.client.info("stats")["total_connections_received"])
    assert made[1:] == made[:1] * 3
    await claims.enqueue("a")
    assert await claims.state("a") == (JobState.QUEUED, 0)


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True], ids=["request", "reply"])
async def test_a_connection_that_fails_changes_nothing_about_the_claim(
    redis_server: Server, namespace: str, *, is_lost: bool
) -> None:
    producer = Claims(redis_server, namespace)
    with Proxy(redis_server.port) as proxy:
        claims = Claims(redis_server, namespace, proxy.url)
        await claims.check()
        waiting = await claims.begin()
        if is_lost:
            # Applied, and the client cannot know.
            proxy.hold()
            await producer.enqueue("a")
            assert await producer.state("a") == (JobState.STARTED, 1)
        proxy.rst()
        proxy.heal()
        assert await waiting
        if not is_lost:
            assert claims.granted == []
            waiting = await claims.begin()
            await producer.enqueue("a")
            assert await waiting
        assert claims.granted == ["a"]
        assert await claims.state("a") == (JobState.STARTED, 1)
        await claims.backend.close()
    await producer.backend.close()


async def test_job_granted_to_a_vanished_idle_machine_never_fails(redis_server: Server, namespace: str) -> None:
    producer = Claims(redis_server, namespace)
    with Proxy(redis_server.port) as proxy:
        claims = Claims(redis_server, namespace, proxy.url)
        await claims.check()
        waiting = await claims.begin(operation=op.Exchange("w", limit=1, lease_ms=100, announces=True))
        proxy.hold()
        await producer.backend.call(
            op.Enqueue((JobSpec(id="a", task="t", policy=Policy(max_losses=1, max_attempts=1)),))
        )
        await until(lambda: not producer.is_blocked)
        proxy.refuse()
        proxy.rst()
        await asyncio.sleep(0.12)  # its lease is over
        await producer.backend.call(op.Tick())
        assert await producer.state("a") == (JobState.QUEUED, 0)
        waiting.cancel()
        proxy.heal()
        await asyncio.gather(waiting, return_exceptions=True)
        await claims.backend.close()
    await producer.backend.close()


async def never_sent(*_: Any) -> Any:
    raise NotSent


@pytest.mark.slow
async def test_unanswered_claim_is_continued_by_the_same_operation(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Claims(redis_server, namespace)
    with Proxy(redis_server.port) as proxy:
        claims = Claims(redis_server, namespace, proxy.url)
        await claims.check()
        operation = claim()
        waiting = await claims.begin(operation=operation)
        proxy.hold()
        await producer.enqueue("a", "b")
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "RETRY_S", 0.2)
            proxy.refuse()
            proxy.rst()
            with pytest.raises(OutcomeUnknownError):
                await waiting
            patch.setattr(AsyncLink, "ask", never_sent)
            with pytest.raises(OutcomeUnknownError):
                # It may have been granted jobs, as long as there is no answer.
                await claims.backend.call(operation)
        proxy.heal()
        (grant,) = (await claims.backend.call(operation)).grants
        assert grant.spec.id == "a"
        assert await producer.state("b") == (JobState.QUEUED, 0)
        await claims.backend.close()
    await producer.backend.close()


async def test_claim_refused_by_the_server_is_made_by_a_call(claims: Claims) -> None:
    await claims.check()
    waiting = await claims.begin()
    claims.client.function_flush()
    claims.client.script_flush()
    claims.client.zadd(claims.key("wake:pool:", "default"), {"1": 0})
    assert await waiting
    assert len(claims.replies) == 1


async def test_a_refused_wait_pauses_and_its_claim_counts(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    await claims.check()
    monkeypatch.setattr(backends, "FAILED_WAIT_S", 0.25)
    await claims.enqueue("a")
    claims.client.set(claims.key("wake:pool:", "p"), "not ours")
    interest = Interest(pools=("p", "default"), worker="w")
    began_s = time.monotonic()
    assert await claims.backend.wait_and_call(interest, 5.0, claim(), claims.replies.append)
    assert time.monotonic() - began_s >= 0.25
    assert claims.granted == ["a"]


async def test_claim_of_an_abandoned_node_follows_the_calls(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    await claims.check()
    waiting = await claims.begin()
    monkeypatch.setattr(AsyncLink, "node", ("elsewhere", 1))
    called: list[Any] = []
    execute = claims.backend.session.execute

    def listen(operation: Any) -> Any:
        called.append(operation)
        return execute(operation)

    monkeypatch.setattr(claims.backend.session, "execute", listen)
    claims.client.zadd(claims.key("wake:pool:", "default"), {"1": 0})
    assert await waiting
    assert [each.limit for each in called] == [1]
    assert len(claims.replies) == 1


async def test_nothing_is_claimed_behind_a_wait_during_a_check(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    await claims.check()
    session = claims.backend.session
    assert session._checked_s is not None
    session._checked_s -= sessions.CHECK_EVERY_S
    assert not await claims.backend.wait_and_call(INTEREST, 0.01, claim(), claims.replies.append)
    assert claims.replies == []


async def test_idle_worker_runs_a_job_without_a_separate_call(redis_server: Server, namespace: str) -> None:
    sched = Scheduler(redis_server.url, namespace=namespace)
    backend, sent, ran = sched.backend, [], asyncio.Event()
    call, client = backend.call, redis_server.client()

    async def listen(operation: Any) -> Any:
        sent.append(operation)
        return await call(operation)

    @sched.job
    async def work() -> None:
        claimed.extend(each for each in sent if isinstance(each, op.Exchange))
        ran.set()

    claimed: list[op.Exchange] = []
    async with sched.worker():
        await until(lambda: bool(client.info("clients")["blocked_clients"]))
        backend.call = listen  # type: ignore[method-assign]
        await work.enqueue()
        await asyncio.wait_for(ran.wait(), LIMIT_S)
    assert claimed == []
    await sched.close()


@pytest.mark.slow
async def test_waits_that_fail_at_once_are_delayed(claims: Claims) -> None:
    await claims.check()
    clients = claims.client.info("clients")["connected_clients"]
    before = str(claims.client.config_get("maxclients")["maxclients"])
    claims.client.config_set("maxclients", clients)
    try:
        begun_s = time.monotonic()
        await claims.backend.wait_and_call(INTEREST, 5.0, claim(), claims.replies.append)
        assert time.monotonic() - begun_s > 0.9, "no connection is left for the wait"
    finally:
        claims.client.config_set("maxclients", before)


async def test_repeated_claim_is_withdrawn_when_its_caller_is_canceled(redis_server: Server, namespace: str) -> None:
    producer = Claims(redis_server, namespace)
    with Proxy(redis_server.port) as proxy:
        claims = Claims(redis_server, namespace, proxy.url)
        await claims.check()
        waiting = await claims.begin()
        proxy.hold()
        await producer.enqueue("a")
        await until(lambda: not producer.is_blocked)
        assert await producer.state("a") == (JobState.STARTED, 1)
        proxy.refuse()
        proxy.rst()
        await until(lambda: bool(proxy.refused))  # the claim, whose reply is lost, is tried again
        proxy.heal()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert claims.granted == ["a"]
        await claims.backend.close()
    await producer.backend.close()


async def test_a_wait_that_is_canceled_twice_loses_no_grant(claims: Claims) -> None:
    await claims.check()
    for number in range(12):
        claims.replies.clear()
        waiting = await claims.begin()
        coming = asyncio.create_task(claims.enqueue(f"j{number}"))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        waiting.cancel()
        for _ in range(1 + number // 4):
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await coming
        state, _ = await claims.state(f"j{number}")
        assert claims.granted == [f"j{number}"] * (state is JobState.STARTED)
        await claims.backend.call(claim(limit=5))


@pytest.mark.parametrize("is_again", [False, True], ids=["first", "again"])
async def test_a_claim_whose_withdrawal_is_not_answered_is_continued(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch, *, is_again: bool
) -> None:
    monkeypatch.setattr(backends, "END_WAIT_S", 0.05)
    producer = Claims(redis_server, namespace)
    with Proxy(redis_server.port) as proxy:
        claims = Claims(redis_server, namespace, proxy.url)
        await claims.check()
        operation = claim()
        waiting = await claims.begin(operation=operation)
        proxy.hold()
        await producer.enqueue("a", "b")
        assert await producer.state("a") == (JobState.STARTED, 1)
        if is_again:
            proxy.refuse()
            proxy.rst()
            await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(OutcomeUnknownError):
            await waiting
        proxy.heal()
        (grant,) = (await claims.backend.call(operation)).grants
        assert (claims.granted, grant.spec.id) == ([], "a")
        assert await producer.state("b") == (JobState.QUEUED, 0)
        await claims.backend.close()
    await producer.backend.close()


class Holding:
    """An idle worker behind a proxy; a job was granted to it, and the reply is on its way."""

    def __init__(self, server: Server, namespace: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self.producer = Claims(server, namespace)
        self.sched = Scheduler(proxy.url, namespace=namespace)
        self.ran = asyncio.Event()
        self.worker = self.sched.make_worker(2)

        @self.sched.job(name="t")
        async def work() -> None:
            self.ran.set()

    async def begin(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.worker.run())
        await until(lambda: self.producer.is_blocked)
        self.proxy.hold()
        await self.producer.enqueue("a")
        assert await self.producer.state("a") == (JobState.STARTED, 1)
        return task

    async def close(self) -> None:
        await self.sched.close()
        await self.producer.backend.close()


async def test_worker_stopped_during_silence_releases_its_grant(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "END_WAIT_S", 0.05)
    with Proxy(redis_server.port) as proxy:
        holding = Holding(redis_server, namespace, proxy)
        task = await holding.begin()
        holding.worker.stop()
        await asyncio.sleep(0.3)
        proxy.heal()
        await asyncio.wait_for(task, LIMIT_S)
        assert not holding.ran.is_set()
        assert await holding.producer.state("a") == (JobState.QUEUED, 0)
        await holding.close()


REFUSALS = [
    "OOM no room",
    "NOPERM no",
    "MISCONF disk",
    "WRONGTYPE x",
    "ERR x",
    "READONLY r",
    "LOADING l",
    "CLUSTERDOWN d",
    "CHECK before it is sent",
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda text: text.split()[0])
async def test_any_answer_to_a_repeated_claim_runs_its_grant(
    redis_server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    monkeypatch.setattr(listening, "BACKEND_PAUSE_S", 0.02)
    asked, refused = AsyncLink.ask, []

    async def refuse(link: AsyncLink, send: Send) -> Any:
        if send.command[0] in {"FCALL", "EVALSHA"}:
            refused.append(send.command)
            raise driver.ResponseError(refusal)
        return await asked(link, send)

    def find_wrong(_: Examination, *, first: bool) -> Any:
        refused.append((first,))
        raise BackendUnavailableError("a setting is wrong")

    with Proxy(redis_server.port) as proxy:
        holding = Holding(redis_server, namespace, proxy)
        task = await holding.begin()
        with monkeypatch.context() as patch:
            if refusal.startswith("CHECK"):
                patch.setattr(sessions, "CHECK_EVERY_S", 0)
                patch.setattr(Examination, "look", find_wrong)
            else:
                patch.setattr(AsyncLink, "ask", refuse)
            proxy.rst()
            proxy.heal()
            await until(lambda: bool(refused))
            await asyncio.sleep(0.01)
        await asyncio.wait_for(holding.ran.wait(), LIMIT_S)
        holding.worker.stop()
        await asyncio.wait_for(task, LIMIT_S)
        assert await holding.producer.state("a") == (JobState.FINISHED, 1)
        await holding.close()
