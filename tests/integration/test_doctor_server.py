"""`queuehint doctor`: settings of the server, libraries of other releases, and the command."""

from __future__ import annotations

import json
import re

import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import examination, keys
from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.backends.redis.doctor.server import lacks_lua_fixes
from queuehint.backends.redis.functions import library as functions
from queuehint.backends.report import Finding, Report
from queuehint.cli import doctor as command
from queuehint.operations import (
    Enqueue,
)
from tests.conftest import StartServer
from tests.doctor_store import Store, job, open_store, run
from tests.each import for_each
from tests.servers import Cluster, Server, new_namespace

pytestmark = pytest.mark.redis

store = pytest.fixture(open_store)


# --- the server ------------------------------------------------------------------------------------------------------


def settings_of(server: Server, *, level: str | None = None) -> dict[str, str]:
    backend = RedisBackend(parse_url(server.url), BackendOptions(namespace="settings"))
    try:
        found = [finding for finding in diagnose(backend).findings if finding.kind == "setting"]
    finally:
        backend.close_sync()
    return {finding.where: finding.what for finding in found if level in {None, finding.level}}


def test_evicting_server_is_an_error(start_server: StartServer) -> None:
    errors = settings_of(start_server(maxmemory="100mb", maxmemory_policy="allkeys-lru"), level="error")
    assert errors.keys() == {"maxmemory_policy"}
    assert "noeviction" in errors["maxmemory_policy"]


def test_replica_is_an_error_and_its_jobs_are_examined(start_server: StartServer) -> None:
    primary = start_server()
    backend = RedisBackend(parse_url(primary.url))
    backend.call_sync(Enqueue((job("1", "a"),)))
    primary.call("DEL", "{qh:default}:ready")
    warnings = settings_of(primary, level="warning")
    assert "docs" not in warnings
    replica = start_server(replica_of=primary.port)
    assert "replicas" in settings_of(primary)["appendonly"]
    mirror = RedisBackend(parse_url(replica.url))
    report = diagnose(mirror, fix=True)
    assert {finding.kind for finding in report.errors} == {"setting", "entry", "user", "pool"}
    assert {finding.where for finding in report.errors if finding.kind == "setting"} == {"role"}
    assert report.unchecked == ("repairs: this server is a replica",)
    for each in (backend, mirror):
        each.close_sync()


@pytest.mark.parametrize("fsync, durability", [("always", "D2"), ("everysec", "D1"), ("no", "D0")])
def test_doctor_reports_the_durability_of_a_server(start_server: StartServer, fsync: str, durability: str) -> None:
    server = start_server(appendonly="yes", appendfsync=fsync)
    backend = RedisBackend(parse_url(server.url))
    report = diagnose(backend)
    backend.close_sync()
    assert report.facts["durability"] == durability
    assert ("appendfsync" in {finding.where for finding in report.warnings}) == (fsync == "no")
    assert "appendonly" not in {finding.where for finding in report.warnings}


def test_a_server_that_is_almost_full_is_a_warning(start_server: StartServer) -> None:
    server = start_server()
    # By a short request: the memory that a long one takes is given back at some time.
    server.call("SETRANGE", "filler", 20_000_000, "x")
    server.call("CONFIG", "SET", "maxmemory", int(1.05 * server.info("memory")["used_memory"]))
    assert "maxmemory" in settings_of(server, level="warning")


def old_library(server: Server, name: str) -> None:
    text = f"#!lua name={name}\nredis.register_function('qh_{name}_tick', function() return 1 end)"
    server.call("FUNCTION", "LOAD", text)


def test_libraries_of_other_releases_are_named_and_deleted(start_server: StartServer) -> None:
    server = start_server(acl=["user ann on >secret ~* &* +@all -function|delete"])
    backend = RedisBackend(parse_url(f"{server.url}?functions=always"))
    backend.call_sync(Enqueue((job("1", "a"),)))
    old_library(server, "queuehint_0_0_9_ab")
    old_library(server, "queuehints")
    report = diagnose(backend)
    assert [(found.kind, found.where) for found in report.warnings if found.kind == "library"] == [
        ("library", "queuehint_0_0_9_ab")
    ]
    assert report.is_clean
    denied = RedisBackend(parse_url(server.url.replace("redis://", "redis://ann:secret@")))
    report = diagnose(denied, fix=True)
    assert any(text.startswith("libraries of other releases: ") for text in report.unchecked)
    assert "library" in {found.kind for found in report.warnings}
    report = diagnose(backend, fix=True)
    assert [found.where for found in report.repaired] == ["queuehint_0_0_9_ab"]
    left = {library[b"library_name"].decode() for library in server.call("FUNCTION", "LIST")}
    assert left == {"queuehints", functions.library().name}
    assert not {"library"} & {found.kind for found in diagnose(backend).findings}
    backend.close_sync()
    denied.close_sync()


def test_missing_rights_list_the_omitted_checks(start_server: StartServer) -> None:
    server = start_server(acl=["user ann on >secret ~* &* +@all -scan -config"])
    backend = RedisBackend(parse_url(server.url.replace("redis://", "redis://ann:secret@")))
    backend.call_sync(Enqueue((job("1", "a"), job("2", "a"))))
    report = diagnose(backend)
    backend.close_sync()
    assert report.is_clean
    assert [text.partition(",")[0] for text in report.unchecked] == ["keys outside the schema"]


@for_each(
    "name, version, lacks",
    [
        ("redis", "7.0.15", True),
        ("redis", "7.2.11", False),
        ("redis", "7.4.5", True),
        ("redis", "8.2.2", False),
        ("redis", "8.1.0", True),
        ("redis", "9.0.0", False),
        ("valkey", "8.0.7", True),
        ("valkey", "9.0.4", False),
        ("valkey", "9.1.0", False),
        ("redis", "255.255.255", False),
    ],
)
def test_server_releases_with_lua_faults_are_named(name: str, version: str, lacks: bool) -> None:
    assert lacks_lua_fixes(name, version) == lacks


@pytest.mark.slow
def test_cluster_doctor_examines_the_node_of_the_namespace() -> None:
    with Cluster() as cluster:
        for number in range(3):
            namespace = new_namespace("cluster")
            owner = cluster.owner(cluster.slot(keys.redis_key(namespace, "meta")))
            others = [node for node in cluster.nodes if node is not owner]
            url = others[0].url.replace("redis://", "redis+cluster://").removesuffix("/0")
            backend = RedisBackend(parse_url(url), BackendOptions(namespace=namespace))
            backend.call_sync(Enqueue((job("1", "a"), job("2", "a"))))
            owner.call("SET", keys.redis_key(namespace, "theirs"), "x")
            owner.call("DEL", keys.redis_key(namespace, "line:a"))
            owner.call("CONFIG", "SET", "maxmemory", f"{100 + number}mb")
            report = diagnose(backend, fix=True)
            assert {finding.kind for finding in report.errors} == {"foreign"}
            assert {finding.kind for finding in report.repaired} == {"entry", "line"}
            assert report.facts["maxmemory"] == (100 + number) << 20
            backend.close_sync()


def test_valkey_is_told_by_its_own_name(second_server: Server) -> None:
    backend = RedisBackend(parse_url(second_server.url), BackendOptions(namespace=new_namespace()))
    report = diagnose(backend)
    backend.close_sync()
    assert str(report.facts["server"]).startswith("valkey ")
    assert report.is_clean


def test_old_server_is_an_error_without_examined_jobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "VERSION_LEAST", (99, 0, 0))
    report = store.look()
    assert [finding.where for finding in report.errors] == ["redis_version"]
    assert report.unchecked == ("the jobs: this server cannot run our scripts",)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_ends_with_0_where_nothing_is_wrong(store: Store) -> None:
    store.do(Enqueue((job("1", "a"),)))
    code, out, _ = run(store.server.url, f"--namespace={store.namespace}")
    assert code == 0
    assert f"namespace: {store.namespace}\n" in out
    assert "\nerror: " not in out
    assert out.splitlines()[-1].startswith("0 errors, ")


def test_doctor_command_exits_with_1_and_repairs_on_request(store: Store) -> None:
    # The command has the real clock, the namespace of a test another one: so this is a further namespace.
    backend = RedisBackend(parse_url(store.server.url), BackendOptions(namespace=f"{store.namespace}.own"))
    backend.call_sync(Enqueue((job("1", "a"), job("2", "a"))))
    store.server.client().delete(keys.redis_key(f"{store.namespace}.own", "paths"))
    url = f"{store.server.url}?namespace={store.namespace}.own"
    code, out, _ = run(url)
    assert code == 1
    assert "error: {qh:" in out
    assert "--fix puts 2 of 2 errors right" in out
    code, out, _ = run("--json", QUEUEHINT_URL=url)
    assert code == 1
    found = json.loads(out)
    assert (found["clean"], found["quiet"], found["unchecked"], found["repaired"]) == (False, True, [], [])
    errors = [finding for finding in found["findings"] if finding["level"] == "error"]
    assert {(each["kind"], each["job_id"], each["repairable"]) for each in errors} == {
        ("entry", "1", True),
        ("entry", "2", True),
    }
    code, out, _ = run(url, "--fix")
    assert code == 0
    assert out.count("repaired: ") == 2
    assert run(url)[0] == 0
    backend.close_sync()


def test_the_command_ends_with_2_where_nobody_answers(
    monkeypatch: pytest.MonkeyPatch, start_server: StartServer
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.05)
    server = start_server(requirepass="right")
    server.kill()
    url = server.url
    code, out, error = run(url)
    assert (code, out) == (2, "")
    trying, _, failure = error.partition("\nqueuehint doctor: ")
    assert trying.startswith("queuehint: trying: redis://")
    assert failure.startswith("redis://")
    assert "right" not in error
    code, out, _ = run(url, "--json")
    assert code == 2
    assert json.loads(out).keys() == {"error"}
    assert "right" not in out


def test_the_command_shows_no_password(start_server: StartServer) -> None:
    server = start_server(requirepass="sesame")
    for arguments in ([server.url], [server.url, "--json"], [server.url, "--fix"]):
        code, out, error = run(*arguments)
        assert code == 0
        assert "sesame" not in out + error
        assert "***" in out
    wrong = server.url.replace("sesame", "wrong-secret")
    for more in ([], ["--json"]):
        code, out, error = run(wrong, *more)
        assert code == 2
        assert "wrong-secret" not in out + error


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["memory://"], "no other process can open it"),
        (["nonsense"], "no backend serves"),
        (["redis://localhost", "--namespace=a/b"], "namespace must be"),
        (["redis://localhost?namespace=a", "--namespace=b"], "different namespaces"),
        (["redis://localhost/x"], "must be a number"),
    ],
)
def test_doctor_command_exits_with_2_on_malformed_options(arguments: list[str], said: str) -> None:
    code, out, error = run(*arguments)
    assert (code, out) == (2, "")
    assert said in error
    code, out, _ = run(*arguments, "--json")
    assert code == 2
    assert said in json.loads(out)["error"]


def test_terminal_table_is_printed_without_markup(capsys: pytest.CaptureFixture[str]) -> None:
    bad = Finding(kind="foreign", where="{qh:a}:[red]\x1b[31m", what="[/] not ours")
    good = Finding(kind="entry", where="{qh:a}:paths", what="job 1 should be there", is_repairable=True)
    facts: dict[str, str | int | float] = {
        "server": "redis 8",
        "used_memory": 3 << 20,
        "maxmemory": 0,
        "latency_ms": 0.1,
        "jobs": 1,
    }
    report = Report(
        store="redis://here", namespace="a", facts=facts, findings=(bad,), repaired=(good,), unchecked=("a [b] c",)
    )
    command._print_richly(report)
    out = capsys.readouterr().out
    assert "\x1b[31m" not in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    for text in (
        "[red]",
        "[/] not ours",
        "3.0 MiB",
        "no limit",
        "0.1 ms",
        "a [b] c",
        "1 errors, 0 warnings, 1 repaired",
    ):
        assert text in plain
    assert str(report).splitlines()[1] == "not checked: a [b] c"
    command._print_richly(Report(store="redis://here", namespace="a", facts={}, findings=()))
    assert "clean" in capsys.readouterr().out
