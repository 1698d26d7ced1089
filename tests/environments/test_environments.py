"""Loops, patched libraries and forking servers in which applications run, each in processes of its own."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from tests.faults.checks import until_sync

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip a test whose packages, of the dependency groups `test` and `environments`, are not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


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
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The store of a test, which is named by its parameter."""
    store = request.param
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return "memory://" if store == "memory" else str(request.getfixturevalue(f"{store}_server").url)


@pytest.fixture
def worker(url: str, namespace: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the application in a process of its own."""
    command = [sys.executable, "-m", "queuehint", "worker", "tests.environments.app:sched"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(url, namespace)) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(LIMIT_S)


@contextlib.contextmanager
def serving(variables: dict[str, str], *command: str, said: IO[str] | None = None) -> Iterator[int]:
    """Run a web server on a free port, which stands for PORT in its command; it ends with 0 or by SIGTERM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = [sys.executable, "-m", *[word.replace("PORT", str(port)) for word in command]]
    with subprocess.Popen(made, cwd=ROOT, env=variables, stderr=said) as server:
        try:
            until_sync(lambda: answers(port), "the server answers", limit_s=LIMIT_S)
            yield port
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(LIMIT_S)
    assert server.returncode in {0, -signal.SIGTERM}


def gunicorn(variables: dict[str, str], kind: str, said: IO[str] | None = None) -> AbstractContextManager[int]:
    options = ["--preload", "--workers", "3", "--threads", "2", "-k", kind, "--bind", "127.0.0.1:PORT"]
    return serving(variables, "gunicorn", *options, "tests.environments.app:web", said=said)


ON_REDIS = pytest.param("redis", marks=pytest.mark.redis)


@needs("uvloop")
@pytest.mark.parametrize("url", ["memory", "sqlite", ON_REDIS, "postgres"], indirect=True)
def test_worker_on_uvloop_keeps_the_order(url: str, namespace: str) -> None:
    run("with_uvloop", environment(url, namespace))


@needs("uvicorn", "uvloop")
@pytest.mark.parametrize("url", ["sqlite", ON_REDIS, "postgres"], indirect=True)
@pytest.mark.usefixtures("worker")
def test_uvicorn_serves_from_several_processes_on_uvloop(url: str, namespace: str) -> None:
    options = ["--workers", "3", "--loop", "uvloop", "--log-level", "warning", "--port", "PORT"]
    with serving(environment(url, namespace), "uvicorn", *options, "tests.environments.app:asgi") as port:
        told = {tuple(ask(port, "POST", f"/caller-{number}").split()) for number in range(24)}
        assert len(told) > 1, "every request went to one process"
        assert {loop for _, loop in told} == {"uvloop"}
        assert ask(port, "GET", "/") == repr({str(doc): 240 for doc in range(3)})


@needs("gevent")
@pytest.mark.parametrize("url", [ON_REDIS], indirect=True)
@pytest.mark.usefixtures("worker")
def test_producers_in_greenlets_keep_their_order(url: str, namespace: str) -> None:
    run("with_gevent", environment(url, namespace))


@needs("gunicorn")
@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("kind", ["sync", "gthread", pytest.param("gevent", marks=needs("gevent"))])
@pytest.mark.parametrize(
    "url, is_used_before",
    [pytest.param("redis", "1", marks=pytest.mark.redis), ("sqlite", ""), ("postgres", "")],
    indirect=["url"],
)
def test_preloaded_application_serves_from_each_fork(url: str, namespace: str, kind: str, is_used_before: str) -> None:
    with gunicorn(environment(url, namespace, CALL_BEFORE_FORK=is_used_before), kind) as port:
        pids = {ask(port, "POST", f"/caller-{number}") for number in range(24)}
        assert len(pids) > 1, "every request went to one fork"
        assert ask(port, "GET", "/") == repr({str(doc): 240 for doc in range(3)})


@needs("gunicorn")
@pytest.mark.parametrize("url", ["memory", "sqlite", "postgres"], indirect=True)
def test_store_used_before_a_fork_is_refused_in_each_fork(url: str, namespace: str, tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as said:
        with gunicorn(environment(url, namespace, CALL_BEFORE_FORK="1"), "sync", said) as port:
            assert ask(port, "POST", "/caller", status=500)
        said.seek(0)
        assert "cannot be used in its fork" in said.read()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def ask(port: int, method: str, path: str, *, status: int = 200) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status == status
        return answer.read().decode()
    finally:
        connection.close()
