"""
A time limit for each test: one that hangs fails by its name, with the stacks of all threads, and the others go on.

After the limit a signal raises the failure in the test, wherever that is. A test that goes on all the same, in C code
or in a `finally` that waits, ends with its process: the stacks are dumped, and `tests.forks` reports the test that it
was in. Tests for the night, and all tests with many examples, have hours. `TESTS_LIMIT_S` sets another limit.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import threading
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

LIMIT_S = 900.0
NIGHT_S = 4 * 3600.0
LAST_S = 60.0
"""How much later the process ends, at most."""


def limit_s(item: pytest.Item) -> float:
    """Return how long a test may take."""
    if "TESTS_LIMIT_S" in os.environ:
        return float(os.environ["TESTS_LIMIT_S"])
    is_long = os.environ.get("HYPOTHESIS_PROFILE") in {"gate", "nightly"} or item.get_closest_marker("nightly")
    return NIGHT_S if is_long else LIMIT_S


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch a test with its fixtures."""
    within_s = limit_s(item)
    is_main = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    before: Any = None

    def fail(*_: object) -> None:
        pytest.fail(f"{item.nodeid} took longer than {within_s:g} s, and was here:\n{stacks()}", pytrace=True)

    faulthandler.dump_traceback_later(
        within_s + min(LAST_S, within_s), exit=True, file=item.config.stash[fault_handler_stderr_fd_key]
    )
    if is_main:
        before = signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, within_s)
    try:
        return (yield)
    finally:
        _stop()
        if is_main:
            signal.signal(signal.SIGALRM, before)


def pytest_enter_pdb() -> None:
    """Leave whoever looks for a fault all the time."""
    _stop()


def _stop() -> None:
    if hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


def stacks() -> str:
    """Return where each thread of this process is."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
