"""After a failover every client finds the primary, by a name, by Sentinel and in a cluster, idle or busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from queuehint import operations as op
from queuehint.backends.redis import keys
from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.connections.async_link import AsyncLink
from queuehint.backends.redis.connections.sync_link import SyncLink
from queuehint.clock import now_s
from queuehint.worker.leases.helper import RenewerProcess
from tests.calls import COMMANDS
from tests.conftest import StartProxy, StartServer
from tests.faults import app, checks
from tests.faults.checks import figures, until
from tests.proxy import Proxy
from tests.schedulers import run
from tests.servers import Cluster, Sentinels, Server, make_certificate

pytestmark = pytest.mark.redis

FOUND_WITHIN_S = 60
LEASE_S = 3.0


@pytest.fixture(params=["busy", "idle"])
def is_idle(request: pytest.FixtureRequest) -> bool:
    """Clients whose check of each minute is due after the failover, or is not."""
    return bool(request.param == "idle")


def check_followed(
    url: str, namespace: str, failover: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, is_idle: bool
) -> float:
    """Fail over between two calls of every kind of client; return how long it took until all were served again."""
    store = checks.open_store(url, namespace)
    worker, producer = (app.make(url, namespace=namespace, lease=LEASE_S) for _ in range(2))
    helper = RenewerProcess(url, namespace, abandon_after_s=60)

    async def renewed(since_s: float) -> None:
        """Wait until the helper process has renewed what it renews by a call that was sent later."""

        def has_said() -> bool:
            words = [line.split(" ") for line in helper.hear(0)]
            return any(kind == "renewed" and float(rest[0]) > since_s for kind, *rest in words)

        await until(has_said, "the helper process renews")

    async def main() -> float:
        async with worker.sched.worker(4, grace=0):
            await (await producer.work.enqueue()).result(timeout=FOUND_WITHIN_S)
            await asyncio.to_thread(store.call_sync, op.CountJobs())
            await renewed(0)
            await asyncio.to_thread(failover)
            if is_idle:
                monkeypatch.setattr(redis_session, "CHECK_EVERY_S", 0.0)
            begun_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(ask_and_wait())
                group.create_task(renewed(now_s()))
                for operation in (op.Draw(1), op.CountJobs()):
                    group.create_task(asyncio.to_thread(store.call_sync, operation))
            return time.monotonic() - begun_s

    async def ask_and_wait() -> None:
        await (await producer.work.enqueue()).result(timeout=FOUND_WITHIN_S)

    async def whole() -> float:
        try:
            return await main()
        finally:
            for made in (worker, producer):
                await made.sched.close()

    store.call_sync(op.Enqueue((checks.job("held"),)))
    [grant] = store.call_sync(op.Exchange("w", limit=1)).grants
    helper.start(LEASE_S)
    helper.send(f"+{grant.token} held\n")
    try:
        took_s = run(whole(), 2 * checks.LIMIT_S)
        assert store.call_sync(op.Renew((("held", grant.token),))).verdicts == (op.Verdict.DONE,)
    finally:
        helper.end(at_once=True)
        store.close_sync()
    assert took_s <= FOUND_WITHIN_S
    return took_s


def in_step(primary: Server, replica: Server) -> bool:
    """Return whether a replica has all of its primary."""
    said = replica.info("replication")
    return bool(said.get("slave_repl_offset", -1) >= primary.info("replication")["master_repl_offset"])


def has_role(server: Server, role: str) -> bool:
    """Return whether a server has a role; a change of role closes the connections of clients."""
    try:
        return bool(server.info("replication")["role"] == role)
    except RedisError:
        return False


# --- a name ----------------------------------------------------------------------------------------------------------


class Name:
    """A name that leads to the primary; connections that are open when it changes stay where they are."""

    def __init__(self, primary: Server, replica: Server, proxy: Proxy) -> None:
        self.primary = primary
        self.replica = replica
        self.proxy = proxy

    @property
    def url(self) -> str:
        return self.proxy.url

    def fail_over(self) -> None:
        checks.until_sync(lambda: in_step(self.primary, self.replica), "the replica has all of it")
        self.replica.call("REPLICAOF", "NO", "ONE")
        # It follows a server that does not exist: its data is old from now on.
        self.primary.call("REPLICAOF", "127.0.0.1", 1)
        self.proxy.redirect(self.replica.port)


@pytest.fixture
def name(start_server: StartServer, start_proxy: StartProxy) -> Name:
    primary = start_server()
    replica = start_server(replica_of=primary.port)
    return Name(primary, replica, start_proxy(primary))


@pytest.mark.slow
def test_clients_follow_a_failover_although_old_connections_stay_open(
    name: Name, namespace: str, lines: Path, monkeypatch: pytest.MonkeyPatch, *, is_idle: bool
) -> None:
    took_s = check_followed(name.url, namespace, name.fail_over, monkeypatch, is_idle=is_idle)
    figures("F-27", by="name", idle=is_idle, found_s=round(took_s, 2))


def test_reader_of_an_old_primary_soon_gets_no_answers(
    name: Name, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_session, "ROLE_EVERY_S", 0.0)
    store, near = checks.open_store(name.url, namespace), checks.open_store(name.replica.url, namespace)
    assert store.call_sync(op.Get(("new",))).records == (None,)
    name.fail_over()
    near.call_sync(op.Enqueue((checks.job("new"),)))
    assert store.call_sync(op.Get(("new",))).records[0]
    store.close_sync()
    near.close_sync()


@pytest.mark.parametrize("kind", [SyncLink, AsyncLink])
async def test_no_connection_to_an_old_primary_is_kept(
    name: Name, namespace: str, kind: type[SyncLink | AsyncLink]
) -> None:
    store = checks.open_store(name.url, namespace)

    async def call() -> None:
        if kind is AsyncLink:
            await asyncio.gather(*(store.call(op.Draw(1)) for _ in range(5)))
        else:
            await asyncio.gather(*(asyncio.to_thread(store.call_sync, op.Draw(1)) for _ in range(5)))

    def connections() -> int:
        own = [client for client in name.primary.client().client_list(_type="normal") if client["cmd"] != "client|list"]
        return sum(client["cmd"] in {*COMMANDS, "type", "info"} for client in own)

    await call()
    # All calls of a loop share one.
    assert connections() == 1 if kind is AsyncLink else connections() > 1
    name.fail_over()
    await call()
    await until(lambda: not connections(), "the connections to it are closed")
    await store.close()


# --- Sentinel --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    # Those of the servers have a password, the sentinels have none and are told none.
    with Sentinels(requirepass="a b", masterauth="a b") as sentinels:
        yield sentinels


def sentinel_url(sentinels: Sentinels) -> str:
    nodes = ",".join(f"{host}:{port}" for host, port in sentinels.addresses)
    return f"redis+sentinel://:a%20b@{nodes}/{sentinels.name}"


@pytest.mark.slow
def test_every_client_follows_sentinel_after_an_orderly_failover(
    sentinels: Sentinels, namespace: str, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_over() -> None:
        old, [replica] = sentinels.primary, [server for server in sentinels.servers if server is not sentinels.primary]
        checks.until_sync(lambda: in_step(old, replica), "the replica has all of it")
        sentinels.sentinels[0].call("SENTINEL", "FAILOVER", sentinels.name)
        new = sentinels.wait_for_failover(old)
        # As Sentinel does, which takes its time: until then a write to the old primary is taken, and lost.
        old.call("REPLICAOF", "127.0.0.1", new.port)

    took_s = check_followed(sentinel_url(sentinels), namespace, fail_over, monkeypatch, is_idle=True)
    figures("F-27", by="sentinel", found_s=round(took_s, 2))


def test_sentinels_are_asked_by_tls_where_the_url_says_so(
    start_server: StartServer, namespace: str, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path)
    primary = start_server(certificate=certificate)
    monitor = f"sentinel monitor main 127.0.0.1 {primary.port} 1"
    sentinel = start_server(is_sentinel=True, certificate=certificate, lines=[monitor], tls_replication="yes")
    url = f"rediss+sentinel://127.0.0.1:{sentinel.port}/main?ssl_ca_certs={certificate.cert}"
    store = checks.open_store(url, namespace)
    assert store.call_sync(op.Draw(1)).first == 1
    assert run(store.call(op.Draw(1))).first == 2
    store.close_sync()


@pytest.mark.nightly
def test_every_client_follows_sentinel_after_the_primary_was_killed(
    sentinels: Sentinels, namespace: str, lines: Path, monkeypatch: pytest.MonkeyPatch, *, is_idle: bool
) -> None:
    def fail_over() -> None:
        old, [replica] = sentinels.primary, [server for server in sentinels.servers if server is not sentinels.primary]
        checks.until_sync(lambda: in_step(old, replica), "the replica has all of it")
        old.kill()
        # The first sentinel is down with it: it stood beside the server.
        sentinels.sentinels[0].pause()
        checks.until_sync(lambda: has_role(replica, "master"), "the replica is promoted")

    took_s = check_followed(sentinel_url(sentinels), namespace, fail_over, monkeypatch, is_idle=is_idle)
    figures("F-27", by="sentinel", killed=1, idle=is_idle, found_s=round(took_s, 2))


# --- a cluster -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_cluster_clients_start_at_a_replica_and_follow_a_failover(
    namespace: str, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(size=2) as cluster:
        slot = cluster.slot(keys.root(namespace))
        owner = cluster.owner(slot)
        replica = cluster.add_replica(owner)
        nodes = (replica, owner, cluster.other(slot))
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)

        def fail_over() -> None:
            replica.call("CLUSTER", "FAILOVER")
            checks.until_sync(lambda: has_role(owner, "slave"), "the replica took over")

        took_s = check_followed(url, namespace, fail_over, monkeypatch, is_idle=True)
    figures("F-27", by="cluster", found_s=round(took_s, 2))
