"""Commands that find an empty namespace name the others of its server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from queuehint import Scheduler
from queuehint.backends.redis import namespaces
from queuehint.cli.app import app
from queuehint.cli.live import _Top
from queuehint.operations import Enqueue
from queuehint.values.spec import JobSpec
from tests.commands import CliRunner
from tests.conftest import StartServer
from tests.servers import Server

pytestmark = pytest.mark.redis

LOOKS = (["ls"], ["ls", "--user", "ann"], ["dead", "ls"], ["tree"], ["top"], ["why", "a"], ["show", "a"])


def put_jobs(server: Server, *names: str) -> None:
    for name in names:
        sched = Scheduler(server.url, namespace=name)
        sched.backend.call_sync(Enqueue((JobSpec(id="a", task="t"),)))
        sched.close_sync()


def told(url: str, words: Sequence[str], namespace: str = "default") -> str:
    return CliRunner().invoke(app, [*words, "--target", url, "--namespace", namespace]).stderr


def test_each_look_at_an_empty_namespace_names_the_others(start_server: StartServer) -> None:
    server = start_server()
    assert told(server.url, ["ls"]) == "queuehint: no jobs in namespace default\n", "there are no others"
    put_jobs(server, "docs")
    assert told(server.url, ["ls"]) == "queuehint: no jobs in namespace default; there is docs\n"
    put_jobs(server, "other", "default-2")
    # Keys of others look like ours.
    for name in ("{qh:a b}:meta", "{qh:}:meta", "x{qh:foreign}:meta", "{qh:left}:jobs", b"{qh:\xff}:meta"):
        server.call("HSET", name, "a", "1")
    for words in LOOKS:
        first = told(server.url, words).splitlines()[0]
        assert first.startswith("queuehint: no "), words
        assert first.endswith(" in namespace default; there are default-2, docs, other"), words
    assert told(server.url, ["show", "b"], "docs").startswith("queuehint: no job 'b'"), "it has jobs"
    assert "docs" not in told(server.url, ["dead", "ls"], "other"), "it has jobs, of which none is dead"
    assert told(server.url, ["why", "a", "--json"]) == ""


def test_the_heading_of_top_names_them_and_looks_once(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    put_jobs(server, "docs")
    sched = Scheduler(server.url)
    top = _Top(sched, "utf-8")
    assert top.look()[1][0] == "default: no jobs; there is docs"
    monkeypatch.setattr(namespaces, "find_namespaces", None)
    assert top.look()[1][0] == "default: no jobs; there is docs"
    assert _Top(sched, "utf-8", names_others=False).look()[1][0] == "default: no jobs", "for a pipe and for JSON"
    put_jobs(server, "default")
    assert top.look()[1][0] == "default"
    sched.close_sync()


def test_the_look_is_bounded_and_names_ten(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server()
    put_jobs(server, *[f"n{number:02}" for number in range(12)])
    named = ", ".join(f"n{number:02}" for number in range(10))
    assert told(server.url, ["ls"]) == f"queuehint: no jobs in namespace default; there are {named} and 2 more\n"
    # Half of the keys are looked at, which half is chance: some of the forty namespaces are among them.
    put_jobs(server, *[f"n{number:02}" for number in range(12, 40)])
    server.call("EVAL", "for n = 1, 1200 do redis.call('SET', 'k' .. n, '') end", "0")
    monkeypatch.setattr(namespaces, "KEYS_MAX", namespaces.PAGE)
    before = server.info("commandstats")["cmdstat_scan"]["calls"]
    assert told(server.url, ["ls"]).endswith(", maybe others\n")
    assert server.info("commandstats")["cmdstat_scan"]["calls"] == before + 1


def test_user_without_scan_gets_only_the_first_advice(start_server: StartServer) -> None:
    server = start_server(acl=["user default on nopass ~* &* +@all", "user ann on >secret ~* &* +@all -scan"])
    put_jobs(server, "docs")
    url = server.url.replace("redis://", "redis://ann:secret@")
    assert told(url, ["ls"]) == "queuehint: no jobs in namespace default\n"
    assert told(server.url, ["ls"]).endswith("; there is docs\n")
