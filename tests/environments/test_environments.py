"""Loops, patched libraries and forking servers in which applications run, each in processes of its own."""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checks import until_sync
from tests.servers import Server

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip a test whose packages, of the dependency group `environments`, are not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"the group environments is not installed: no {', '.join(missing)}")


def environment(url: str, namespace: str, **more: str) -> dict[str, str]:
    return {**os.environ, "QUEUEHINT_URL": url, "QUEUEHINT_NAMESPACE": namespace, "PYTHONPATH": str(ROOT), **more}


def run(module: str, variables: dict[str, str]) -> None:
    """Run a program of this folder to its end."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.environments.{module}"],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.fixture
def worker(redis_server: Server, namespace: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the application in a process of its own."""
    command = [sys.executable, "-m", "queuehint", "worker", "tests.environments.app:sched"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(redis_server.url, namespace)) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(LIMIT_S)


@needs("uvloop")
@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_worker_on_uvloop_keeps_the_order(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}
    url = urls.get(store) or request.getfixturevalue("redis_server").url
    run("with_uvloop", environment(url, request.getfixturevalue("namespace")))


@needs("gevent")
@pytest.mark.redis
@pytest.mark.usefixtures("worker")
def test_producers_in_greenlets_keep_their_order(redis_server: Server, namespace: str) -> None:
    run("with_gevent", environment(redis_server.url, namespace))


@needs("gevent", "gunicorn")
@pytest.mark.redis
@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
def test_preloaded_application_serves_from_each_fork(redis_server: Server, namespace: str, kind: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", "--threads", "2", "-k", kind]
    variables = environment(redis_server.url, namespace, CALL_BEFORE_FORK="1")
    with subprocess.Popen(
        [*command, "--bind", f"127.0.0.1:{port}", "tests.environments.app:web"], cwd=ROOT, env=variables
    ) as server:
        try:
            until_sync(lambda: answers(port), "the server answers", limit_s=LIMIT_S)
            pids = {ask(port, "POST", f"/caller-{number}") for number in range(24)}
            assert len(pids) > 1, "every request went to one fork"
            assert ask(port, "GET", "/") == repr({str(doc): 240 for doc in range(3)})
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(LIMIT_S)
    assert server.returncode == 0


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def ask(port: int, method: str, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()
