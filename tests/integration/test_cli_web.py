"""``queuehint web``: served by a process of its own, and refused where it would be open to others."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queuehint import JobSpec, Scheduler
from queuehint.cli.app import app
from tests.boards import served

ROOT = Path(__file__).parents[2]


def fetch(url: str, **headers: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_board_of_a_file_is_served_only_on_loopback(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    sched = Scheduler(url)
    sched.submit_sync([JobSpec(id="a/b", task="save")])
    with served(url) as address:
        assert fetch(f"{address}api/v1/jobs/a%2Fb")[1]["state"] == "QUEUED"
        assert fetch(f"{address}api/v1/stats", Host="evil.test")[0] == 421
    sched.close_sync()


@pytest.mark.slow
def test_board_of_several_namespaces_asks_for_its_user(redis_url: str, namespace: str, tmp_path: Path) -> None:
    names = [f"{namespace}-1", f"{namespace}-2"]
    with _scheduler(redis_url, names[1]) as sched:
        sched.submit_sync([JobSpec(id="a", task="save")])
        (tmp_path / "password").write_text("secret\n")
        words = [word for name in names for word in ("-n", name)]
        options = ["--user", "ann", "--password-file", str(tmp_path / "password"), "--host", "0.0.0.0"]
        with served(redis_url, *words, *options) as address:
            address = address.replace("0.0.0.0", "127.0.0.1")
            target = f"{address}{names[1]}/api/v1/stats"
            assert fetch(target)[0] == 401
            status, stats = fetch(target, Authorization=f"Basic {b64encode(b'ann:secret').decode()}")
            assert (status, stats["states"]["QUEUED"]) == (200, 1)


@contextmanager
def _scheduler(url: str, namespace: str) -> Iterator[Scheduler]:
    sched = Scheduler(url, namespace=namespace)
    try:
        yield sched
    finally:
        sched.close_sync()


@pytest.mark.slow
def test_auth_function_of_an_application_decides_access(tmp_path: Path) -> None:
    (tmp_path / "myauth.py").write_text(
        "class Board:\n    @staticmethod\n    def nobody(request):\n        return None\n"
    )
    # Found in the working directory, as a scheduler is, where that is on no path of imports.
    served_there = served(f"sqlite:///{tmp_path}/jobs.db", "--auth", "myauth:Board.nobody", cwd=tmp_path)
    with served_there as address:
        assert fetch(f"{address}api/v1/stats")[0] == 403


@pytest.mark.parametrize(
    "words, named",
    [
        (["--host", "0.0.0.0"], "can be reached by others"),
        (["--host", "example.test"], "can be reached by others"),
        (["--user", "ann"], "--user and --password-file must be given together"),
        (["--open", "--auth", "a:b"], "mutually exclusive"),
        (["--auth", "json:nothing"], "--auth: json has no 'nothing'; it has detect_encoding"),
        (["--auth", "json:__name__"], "--auth: json:__name__ must be a function, got str"),
        (["--auth", "json"], "'json' must be module:attribute, such as myapp.auth:board"),
        (["--auth", "nowhere:board"], "--auth: there is no module 'nowhere' in "),
        (["--user", "ann", "--password-file", "/dev/null"], "no password in its first line"),
        (["--user", "ann", "--password-file", "/nothing"], "cannot be read: FileNotFoundError"),
        (["--colour", "pink"], "colour must be one of red"),
        (["--host", "203.0.113.1", "--open"], "cannot be listened at"),
    ],
)
def test_board_that_cannot_be_served_so_is_refused_by_name(words: list[str], named: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["web", f"sqlite:///{tmp_path}/jobs.db", *words])
    assert done.exit_code == 2
    assert named in done.output


def test_board_of_memory_is_refused() -> None:
    done = CliRunner().invoke(app, ["web", "memory://"])
    assert (done.exit_code, "lives in one process" in done.output) == (2, True)
