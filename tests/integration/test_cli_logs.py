"""Logging of the worker command beside that of the application: each line once, and failures in every set-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from queuehint import Scheduler

ROOT = Path(__file__).parents[2]
APP = """
import logging, logging.config, os, signal
from queuehint import Scheduler

{setup}
sched = Scheduler(os.environ["APP_URL"])


@sched.job
def hello() -> None:
    logging.getLogger("app.jobs").warning("a warning of the handler")
    logging.getLogger("app.jobs").info("news of the handler")
    logging.getLogger("library").info("news of a library")


@sched.job(max_attempts=1)
def fails() -> None:
    raise ValueError("the" + " failure")


@sched.job
def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
"""
BASIC = 'logging.basicConfig(level=logging.WARNING, format="APP %(message)s")'
HANDLER = """
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("APP %(message)s"))
logging.getLogger().addHandler(handler)
"""
DICT = """
logging.config.dictConfig({"version": 1, "formatters": {"f": {"format": "APP %(message)s"}},
    "handlers": {"h": {"class": "logging.StreamHandler", "formatter": "f"}}, "root": {"handlers": ["h"]}})
"""
OWN = """
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("APP %(message)s"))
logging.getLogger("app").addHandler(handler)
"""
LINES = ("a warning of the handler", "news of the handler", "news of a library", "the failure", "worker started")


def nothing() -> None: ...


@pytest.fixture
def logged(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that runs the worker command until its jobs have ended, and returns its log."""

    def run(setup: str, *arguments: str) -> list[str]:
        (tmp_path / "app.py").write_text(APP.replace("{setup}", setup))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "APP_URL": f"sqlite:///{tmp_path}/jobs.db"}
        sched = Scheduler(environment["APP_URL"])
        for name in ("hello", "fails", "stop"):
            sched.job(name=name, max_attempts=1)(nothing).enqueue_sync()
        sched.close_sync()
        done = subprocess.run(
            [sys.executable, "-m", "queuehint", "worker", "app:sched", "--concurrency=1", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # Without the last line of a traceback, which has the message too.
        return [line for line in done.stderr.splitlines() if line != "ValueError: the failure"]

    return run


def counted(lines: list[str]) -> list[int]:
    return [sum(text in line for line in lines) for text in LINES]


@pytest.mark.slow
@pytest.mark.parametrize("setup", [BASIC, HANDLER, DICT], ids=["basicConfig", "handler", "dictConfig"])
def test_worker_logs_each_line_once_as_the_application_does(setup: str, logged: Callable[..., list[str]]) -> None:
    lines = logged(setup)
    assert counted(lines) == [1, 0, 0, 1, 0]
    assert "APP a warning of the handler" in lines
    assert any(line.startswith("APP job ") and "(fails) failed for good" in line for line in lines)


@pytest.mark.slow
def test_worker_logs_as_text_where_nothing_is_set_up(logged: Callable[..., list[str]]) -> None:
    lines = logged("")
    assert counted(lines) == [1, 1, 0, 1, 1], "of the application and of queuehint, not of other libraries"


@pytest.mark.slow
def test_worker_leaves_loggers_with_handlers_to_the_application(logged: Callable[..., list[str]]) -> None:
    lines = logged(OWN)
    assert counted(lines) == [1, 1, 0, 1, 1]
    assert "APP a warning of the handler" in lines


@pytest.mark.slow
def test_worker_logs_its_own_lines_in_a_given_format(logged: Callable[..., list[str]]) -> None:
    lines = logged(BASIC, "--log-format=json")
    assert "APP a warning of the handler" in lines
    found = [json.loads(line) for line in lines if line.startswith("{")]
    assert [each["error_message"] for each in found if each.get("event") == "job.failed"] == ["the failure"]
    assert not [line for line in lines if line.startswith("APP job ")]


def test_worker_logs_at_a_given_level(logged: Callable[..., list[str]]) -> None:
    lines = logged(BASIC, "--log-level=info")
    assert [line for line in lines if line.startswith("APP worker started")]
    assert counted(lines)[2] == 0
