"""A namespace on a cluster keeps the same rules, while its slot moves and while a part of the cluster is down."""

from __future__ import annotations

import asyncio
import functools
import socket
from pathlib import Path

import pytest
from redis import Redis

from queuehint import Backend, FakeClock, Scheduler
from queuehint import operations as op
from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.redis import keys
from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.errors import BackendError, BackendUnavailableError
from queuehint.testing import contract
from queuehint.values.record_filter import DEAD_RECORDS
from tests.faults import checks
from tests.faults.checks import figures, until
from tests.faults.worker_and_producer import WorkerAndProducer
from tests.schedulers import run
from tests.servers import Cluster, Server, find_servers, new_namespace

pytestmark = pytest.mark.redis


@functools.cache
def shared_cluster() -> Cluster:
    """Return the cluster that all tests of this process share; it ends with the process."""
    return Cluster()


def url_of(cluster: Cluster) -> str:
    """Return the address of a cluster, all nodes named."""
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


def slot_of(cluster: Cluster, namespace: str) -> int:
    return cluster.slot(keys.root(namespace))


@pytest.fixture
def cluster() -> Cluster:
    return shared_cluster()


# --- the rules, on a cluster -----------------------------------------------------------------------------------------


class TestOnCluster(
    contract.Binding,
    contract.SerialPath,
    contract.Ancestors,
    contract.ArrivalOrder,
    contract.Leases,
    contract.Retries,
    contract.Cancellation,
    contract.Dead,
    contract.Keys,
    contract.Pauses,
    contract.Presence,
    contract.Waiting,
):
    def open(self, clock: FakeClock) -> Backend:
        options = BackendOptions(namespace=new_namespace(), clock=clock)
        return RedisBackend(parse_url(url_of(shared_cluster())), options)


# --- faults ----------------------------------------------------------------------------------------------------------


class ClusterWorkerAndProducer(WorkerAndProducer):
    """A worker and a producer on a cluster."""

    def __init__(self, cluster: Cluster, namespace: str, lines: Path) -> None:
        self.cluster = cluster
        self.slot = slot_of(cluster, namespace)
        url = url_of(cluster)
        super().__init__(cluster.nodes[0], url, namespace, lines, near=url, lease=3)

    def client(self) -> Redis:
        return self.cluster.owner(self.slot).client()


def check_moves(cluster: Cluster, namespace: str, lines: Path, moves: int) -> None:
    both = ClusterWorkerAndProducer(cluster, namespace, lines)

    def move() -> int:
        target = cluster.other(both.slot)
        cluster.begin_move(both.slot, target)
        # Half of the keys first: for a while no node has them all.
        return cluster.move_keys(both.slot, target, limit=8)

    def end() -> int:
        target = next(node for node in cluster.nodes if b"[" in own_line(node) and b"-<-" in own_line(node))
        moved = cluster.move_keys(both.slot, target)
        cluster.end_move(both.slot, target)
        return moved

    async def main() -> int:
        moved = 0
        async with both.working():
            for _ in range(moves):
                loading = asyncio.create_task(both.enqueue(30, ms=5))
                await asyncio.sleep(0.05)
                moved += await asyncio.to_thread(move)
                await asyncio.sleep(0.2)  # for how long the slot is in two places
                moved += await asyncio.to_thread(end)
                await loading
            await both.drained()
        return moved

    moved = run(main(), checks.LIMIT_S + 2 * moves)
    facts = both.close()
    assert facts["twice"] == 0
    figures("F-30", moves=moves, keys_moved=moved, **facts)


def own_line(node: Server) -> bytes:
    lines: bytes = node.call("CLUSTER", "NODES")
    return next(line for line in lines.split(b"\n") if b"myself" in line)


@pytest.mark.slow
def test_a_slot_that_moves_under_load_loses_nothing(cluster: Cluster, namespace: str, lines: Path) -> None:
    check_moves(cluster, namespace, lines, 3)


@pytest.mark.nightly
def test_a_slot_that_moves_all_the_time_loses_nothing(cluster: Cluster, namespace: str, lines: Path) -> None:
    check_moves(cluster, namespace, lines, 50)


@pytest.mark.slow
@pytest.mark.parametrize("moved", [0, 1, 4, 100])
def test_questions_during_a_slot_migration_are_answered_rightly_or_refused(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.05)
    store = checks.open_store(url_of(cluster), namespace, clock=FakeClock())
    store.call_sync(op.Enqueue(tuple(checks.job(f"j{number}", ["p", str(number)]) for number in range(5))))
    store.call_sync(op.Exchange("w", limit=2))
    questions = (
        op.Get(("j0", "j4", "nobody")),
        op.CountJobs(),
        op.Why("j0"),
        op.Tree((), 2),
        op.ListLines(),
        op.CanDequeue(("p", "0")),
        op.CountPending(),
        op.List(DEAD_RECORDS),
    )
    before = [store.call_sync(question) for question in questions]
    slot = slot_of(cluster, namespace)
    target = cluster.other(slot)
    cluster.begin_move(slot, target)
    try:
        cluster.move_keys(slot, target, limit=moved)
        wrong = []
        for question, answer in zip(questions, before, strict=True):
            try:
                if (found := store.call_sync(question)) != answer:
                    wrong.append((question, found))
            except BackendError:
                pass
            except Exception as error:
                wrong.append((question, error))
        assert not wrong
    finally:
        cluster.move_keys(slot, target)
        cluster.end_move(slot, target)
    assert [store.call_sync(question) for question in questions] == before
    store.close_sync()


@pytest.mark.parametrize("moved", [0, 1, 4, 8, 100])
def test_changes_of_a_slot_in_two_places_are_refused_whole(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.05)
    store = checks.open_store(url_of(cluster), namespace, clock=FakeClock())
    store.call_sync(op.Enqueue(tuple(checks.job(f"j{number}", ["p", str(number)]) for number in range(5))))
    granted = store.call_sync(op.Exchange("w", limit=2)).grants
    slot = slot_of(cluster, namespace)
    target, source = cluster.other(slot), cluster.owner(slot)
    cluster.begin_move(slot, target)
    try:
        cluster.move_keys(slot, target, limit=moved)

        def whole() -> tuple[object, object]:
            # Of everything there: a node answers for no key of a slot that is on its way.
            return source.call("DEBUG", "DIGEST"), target.call("DEBUG", "DIGEST")

        before = whole()
        changes = [
            op.Enqueue((checks.job("new", ["q"]),)),
            op.Exchange("w", (checks.finished(granted[0]),), limit=1),
        ]
        for change in changes:
            with pytest.raises(BackendError):
                store.call_sync(change)
        assert whole() == before
    finally:
        cluster.move_keys(slot, target)
        cluster.end_move(slot, target)
    # The same requests, now that the slot is in one place.
    for change in changes:
        store.call_sync(change)
    stats = store.call_sync(op.CountJobs())
    assert (stats.enqueued, stats.started, stats.settled) == (6, 3, 1)
    store.close_sync()
    checks.check_keys(cluster.owner(slot).client(), namespace)


@pytest.mark.slow
def test_a_cluster_that_is_down_is_waited_for(namespace: str, lines: Path) -> None:
    with Cluster(find_servers()[0], appendonly="yes", cluster_node_timeout=1500) as cluster:
        both = ClusterWorkerAndProducer(cluster, namespace, lines)

        async def main() -> None:
            async with both.working():
                await both.enqueue(8)
                await both.drained()
                down = cluster.other(both.slot)
                owner = cluster.owner(both.slot)
                await asyncio.to_thread(down.kill)
                await until(lambda: b"cluster_state:fail" in owner.call("CLUSTER", "INFO"), "the cluster is down")
                waiting = asyncio.create_task(both.enqueue(8))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                await asyncio.to_thread(down.restart)
                await waiting
                await both.drained()

        run(main())
        figures("F-30", masters_down=1, **both.close())


# --- a URL that names one node ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_client_of_one_cluster_node_survives_its_loss(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 600.0)
    with Cluster(cluster_require_full_coverage="no", cluster_node_timeout=2000) as cluster:
        slot = slot_of(cluster, namespace)
        seed, owner = cluster.other(slot), cluster.owner(slot)
        replica = cluster.add_replica(owner)
        sched = Scheduler(f"redis+cluster://127.0.0.1:{seed.port}?namespace={namespace}", lease=60)

        @sched.job
        async def work() -> None: ...

        async def rounds(count: int) -> None:
            for _ in range(count):
                await (await work.enqueue()).result(timeout=30)
                await asyncio.to_thread(sched.stats_sync)

        async def main() -> None:
            async with sched.worker():
                await rounds(1)
                await asyncio.to_thread(seed.kill)
                # A broken connection is replaced by one to another node, which must not be a node that is down.
                await asyncio.to_thread(owner.call, "CLIENT", "KILL", "TYPE", "normal")
                await rounds(2)
            # A loop that begins now begins with another node.
            await asyncio.to_thread(lambda: run(rounds_elsewhere(), checks.LIMIT_S))
            # The old owner cannot tell any client where the slot is now.
            await asyncio.to_thread(replica.call, "CLUSTER", "FAILOVER")
            await until(lambda: role_of(replica) == "master", "the replica took over")
            await asyncio.to_thread(owner.kill)
            async with sched.worker():
                await rounds(1)
            await sched.close()

        async def rounds_elsewhere() -> None:
            await sched.stats()
            await sched.backend.wait(Interest(pools=("other",)), 0.1)

        run(main())


@pytest.mark.parametrize("callers", [2, 4])
@pytest.mark.parametrize("threads", [False, True], ids=["tasks", "threads"])
async def test_callers_failing_together_reach_the_living_node(
    cluster: Cluster, namespace: str, callers: int, threads: bool
) -> None:
    with socket.socket() as down:
        # Bound and not listening: whoever connects is refused.
        down.bind(("127.0.0.1", 0))
        nodes = f"127.0.0.1:{down.getsockname()[1]},127.0.0.1:{cluster.owner(slot_of(cluster, namespace)).port}"
        store = checks.open_store(f"redis+cluster://{nodes}?patience={checks.LIMIT_S}", namespace)
        if threads:
            calls = [asyncio.to_thread(store.call_sync, op.CountJobs()) for _ in range(callers)]
        else:
            calls = [store.call(op.CountJobs()) for _ in range(callers)]
        assert [stats.enqueued for stats in await asyncio.gather(*calls)] == [0] * callers
        await store.close()


def role_of(server: Server) -> str:
    return str(server.info("replication")["role"])


@pytest.mark.slow
async def test_client_of_a_dead_node_gets_errors_and_recovers(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.5)
    slot = slot_of(cluster, namespace)
    seed = cluster.other(slot)
    sched = Scheduler(f"redis+cluster://127.0.0.1:{seed.port}?namespace={namespace}")

    @sched.job
    async def work() -> None: ...

    await asyncio.to_thread(seed.kill)
    with pytest.raises(BackendUnavailableError, match=str(seed.port)):
        await work.enqueue()
    with pytest.raises(BackendUnavailableError, match=str(seed.port)):
        await asyncio.to_thread(sched.stats_sync)
    monkeypatch.setattr(redis_session, "RETRY_S", checks.LIMIT_S)
    await asyncio.to_thread(seed.restart)
    await until(lambda: b"cluster_state:ok" in seed.call("CLUSTER", "INFO"), "the cluster serves")
    job = await work.enqueue()
    async with sched.worker():
        await job.result(timeout=30)
    await sched.close()
