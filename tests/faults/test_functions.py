"""The function library under faults: denied, refused, lost, on another node, beside that of another release."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.connections.sync_link import SyncLink
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.backends.redis.functions import calls
from queuehint.backends.redis.functions.library import PREFIX, Library, library
from queuehint.backends.redis.transport import Send
from queuehint.errors import BackendFullError
from queuehint.values.hint import Claim
from queuehint.values.spec import JobSpec
from tests.calls import load
from tests.conftest import StartProxy, StartServer
from tests.faults import checks
from tests.faults.test_failover import in_step
from tests.faults.test_foreign import COMMANDS, acl, url_as
from tests.servers import Server, find_redis, find_valkey

AUTO = "?functions=auto"


def run_of(server: Server) -> set[str]:
    """Return by which commands a server has carried out what a script does, or taken a library."""
    info: Any = server.client().info("commandstats")
    found = {name: info.get(f"cmdstat_{name}") for name in ("fcall", "fcall_ro", "evalsha", "eval", "function|load")}
    return {name for name, of in found.items() if of and of["calls"] > of["failed_calls"]}


def libraries_of(server: Server) -> set[str]:
    return {found[b"library_name"].decode() for found in server.call("FUNCTION", "LIST")}


def run_jobs(store: RedisBackend, *names: str) -> None:
    """Enqueue, claim and settle."""
    store.call_sync(op.Enqueue(tuple(checks.job(name) for name in names)))
    grants = store.call_sync(op.Exchange("w", limit=len(names))).grants
    assert [grant.spec.id for grant in grants] == list(names)
    settled = store.call_sync(op.Exchange("w", tuple(map(checks.finished, grants))))
    assert set(settled.verdicts) == {op.Verdict.DONE}


@pytest.mark.slow
@pytest.mark.parametrize("find", [find_redis, find_valkey])
@pytest.mark.parametrize(
    "missing, is_loaded, is_single",
    [
        ("fcall", False, True),
        ("fcall_ro", False, True),
        ("function|load", False, True),
        ("function|load", True, False),
        ("evalsha", False, False),
    ],
)
def test_a_user_without_a_right_runs_scripts_the_other_way(
    find: Any, missing: str, is_loaded: bool, is_single: bool, start_server: StartServer, namespace: str
) -> None:
    binary = find()
    if isinstance(binary, str):
        pytest.skip(binary)
    server = start_server(binary=binary, acl=acl("*", tuple(name for name in COMMANDS if name != missing)))
    if is_loaded:
        load(server)
    store = checks.open_store(url_as(server) + AUTO, namespace)
    run_jobs(store, "a", "b")
    store.close_sync()
    run = run_of(server)
    assert ("evalsha" in run, "fcall" in run) == (is_single, not is_single)


def test_new_release_runs_on_full_memory_and_loads_functions_later(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    before = checks.open_store(f"{server.url}?functions=never", namespace)
    before.call_sync(op.Enqueue((checks.job("a"), checks.job("b"))))
    (grant,) = before.call_sync(op.Exchange("w", limit=1)).grants
    server.call("CONFIG", "SET", "maxmemory", 1)
    store = checks.open_store(server.url + AUTO, namespace)
    assert store.call_sync(op.Exchange("w", (checks.finished(grant),))).verdicts == (op.Verdict.DONE,)
    with pytest.raises(BackendFullError):
        store.call_sync(op.Enqueue((checks.job("c"),)))
    assert not libraries_of(server)
    server.call("CONFIG", "SET", "maxmemory", 0)
    store.call_sync(op.Draw(1))
    assert not libraries_of(server), "it is tried again after a while"
    assert store.session._calls.singly_until_s > time.monotonic()
    store.session._calls.singly_until_s -= calls.PASSING_AGAIN_S
    store.call_sync(op.Draw(1))
    assert libraries_of(server) == {library().name}
    before.close_sync()
    store.close_sync()


def test_claim_on_a_full_server_is_answered(start_server: StartServer, namespace: str) -> None:
    server = start_server(maxmemory=1)
    store = checks.open_store(server.url + AUTO, namespace)
    assert store.call_sync(op.Exchange("w", limit=1)).grants == ()
    store.close_sync()


def test_node_that_takes_over_has_or_gets_the_library(
    start_server: StartServer, start_proxy: StartProxy, namespace: str
) -> None:
    primary = start_server()
    replica = start_server(replica_of=primary.port)
    proxy = start_proxy(primary)
    store = checks.open_store(f"{proxy.url}?functions=always", namespace)
    run_jobs(store, "a")
    checks.until_sync(lambda: in_step(primary, replica), "the replica has all of it")
    replica.call("CONFIG", "RESETSTAT")
    replica.call("REPLICAOF", "NO", "ONE")
    primary.call("REPLICAOF", "127.0.0.1", 1)
    proxy.redirect(replica.port)
    run_jobs(store, "b")
    assert "function|load" not in run_of(replica), "it came from the primary"
    replica.call("FUNCTION", "FLUSH")
    run_jobs(store, "c")
    assert "function|load" in run_of(replica)
    store.close_sync()


def test_server_restarted_without_data_gets_the_library_again(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    store = checks.open_store(f"{server.url}?functions=always", namespace)
    run_jobs(store, "a")
    server.kill()
    server.restart()
    run_jobs(store, "a")
    store.close_sync()


@pytest.mark.slow
def test_two_releases_run_side_by_side(
    start_server: StartServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    other = Library(lambda _, text: f"{text}\n")
    assert other.digest != library().digest
    server.call("FUNCTION", "LOAD", other.text)
    turns = itertools.count()
    ask = SyncLink.ask

    def ask_in_turn(link: SyncLink, send: Send) -> Any:
        command = send.command
        if command[0].startswith("FCALL") and next(turns) % 2:
            send = Send((command[0], command[1].replace(library().digest, other.digest), *command[2:]))
        return ask(link, send)

    monkeypatch.setattr(SyncLink, "ask", ask_in_turn)
    store = checks.open_store(f"{server.url}?functions=always", namespace)
    for number in range(5):
        run_jobs(store, *(f"{number}-{at}" for at in range(4)))
    report = diagnose(store)
    assert report.is_clean
    assert libraries_of(server) == {library().name, other.name}
    assert all(name.startswith(PREFIX) for name in libraries_of(server))
    store.close_sync()


@pytest.mark.slow
def test_library_remembers_no_long_claims(start_server: StartServer, namespace: str) -> None:
    server = start_server()
    store = checks.open_store(f"{server.url}?functions=always", namespace)
    run_jobs(store, "a")
    before = server.info("memory")["used_memory_vm_functions"]
    for number in range(12):
        paths = [tuple(f"{number}-{at}-{depth}".ljust(63, "x") for depth in range(64)) for at in range(64)]
        store.call_sync(op.Enqueue((JobSpec(id=str(number), task="t", claims=tuple(map(Claim, paths))),)))
        store.call_sync(op.Cancel((str(number),)))
    # 10 MB a job where they are remembered. What single calls have used is there until Lua has collected it.
    assert server.info("memory")["used_memory_vm_functions"] - before < 40 << 20
    for _ in range(1_000):
        store.call_sync(op.Cancel(("0",)))
        if (kept := server.info("memory")["used_memory_vm_functions"] - before) < 4 << 20:
            break
    store.close_sync()
    assert kept < 4 << 20
