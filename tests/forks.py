"""
Run tests in forks of the process that has collected them: `pytest --forks 4`.

Collection takes a twentieth of the time of all tests. With xdist each process collects; here one does, and is forked.
Each fork begins with an equal share of the tests, in their order, and takes the later half of the largest share left
when its own is used up, so that a module and its fixtures stay in one process as long as possible. The shares are in
memory that the forks have in common; reports come back through a pipe for each fork. When a fork dies, its current test
has failed, and the others take the rest of its share.
"""

from __future__ import annotations

import atexit
import os
import pickle
import random
import selectors
import signal
import sys
import traceback
from ctypes import c_int
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import pytest

from tests import prefork

NONE = -1
SIZE = 4
"""Bytes before each report that say how many it has."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run tests in so many forks of the process that collects")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Fork and hand out, unless something could not be collected."""
    count = min(session.config.option.forks, len(session.items))
    if not count or session.config.option.collectonly or session.testsfailed or not hasattr(os, "fork"):
        return None
    shares = Shares(len(session.items), count)
    forkers = prefork.share(count)
    forks = [_Fork(session, shares, number, forker) for number, forker in enumerate(forkers)]
    del forkers
    reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter.showfspath = False  # Results of several files come in turn.
    try:
        _follow(session, shares, forks)
    finally:
        shares.clear()
        for fork in forks:
            fork.end()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Shares:
    """
    The numbers of the tests that each fork still has to run: a range for each.

    ``at`` has two numbers for each fork, the test that it runs and the one it has taken to run next.
    """

    def __init__(self, total: int, count: int) -> None:
        context = get_context("fork")
        self._count = count
        self._lock = context.Lock()
        self._ranges: Any = context.RawArray(c_int, 2 * count)
        self.at: Any = context.RawArray(c_int, [NONE] * 2 * count)
        for mine in range(count):
            self._set(mine, total * mine // count, total * (mine + 1) // count)

    def take(self, mine: int) -> int:
        """Return the next test for a fork, NONE if there is none."""
        with self._lock:
            first, end = self._range(mine)
            if first >= end:
                first, end = self._steal()
            if first >= end:
                return NONE
            self._set(mine, first + 1, end)
            return first

    def clear(self) -> None:
        """Leave no test to any fork."""
        with self._lock:
            for each in range(self._count):
                self._set(each, 0, 0)

    def _steal(self) -> tuple[int, int]:
        sizes = [(end - first, each) for each in range(self._count) for first, end in (self._range(each),)]
        size, victim = max(sizes)
        first, end = self._range(victim)
        self._set(victim, first, first + size // 2)
        return first + size // 2, end

    def _range(self, each: int) -> tuple[int, int]:
        return self._ranges[2 * each], self._ranges[2 * each + 1]

    def _set(self, each: int, first: int, end: int) -> None:
        self._ranges[2 * each], self._ranges[2 * each + 1] = first, end


# --- in the process that collects ------------------------------------------------------------------------------------


class _Fork:
    """A fork as the process that collects sees it."""

    def __init__(self, session: pytest.Session, shares: Shares, number: int, forker: prefork.Forker) -> None:
        self.number = number
        self.is_done = False
        # By such an attribute pytest knows that reports of several processes come in turn.
        name = f"fork{number}"
        self.node = SimpleNamespace(gateway=SimpleNamespace(id=name), _workerinfocache=f"[{name}]")
        self.pipe, write = os.pipe()
        self._received = b""
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            prefork.use(forker)
            _run(session, shares, number, write)
        os.close(write)
        forker.close()

    def receive(self) -> list[Any]:
        """Return the reports that have come; set *is_done* at their end, None, or when the process has died."""
        data = os.read(self.pipe, 1 << 20)
        self.is_done = not data
        self._received += data
        reports = []
        while len(self._received) >= SIZE and len(self._received) >= SIZE + (size := self._next_size()):
            reports.append(pickle.loads(self._received[SIZE : SIZE + size]))
            self._received = self._received[SIZE + size :]
        if reports and reports[-1] is None:
            self.is_done = True
            reports.pop()
        return reports

    def _next_size(self) -> int:
        return int.from_bytes(self._received[:SIZE], "big")

    def end(self) -> None:
        """Wait for the end of the process, after interrupting one that is not done."""
        if not self.is_done:
            os.kill(self.pid, signal.SIGINT)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)


def _follow(session: pytest.Session, shares: Shares, forks: list[_Fork]) -> None:
    """Report what the forks report until all have ended."""
    hook = session.config.hook
    with selectors.DefaultSelector() as selector:
        for fork in forks:
            selector.register(fork.pipe, selectors.EVENT_READ, fork)
        while selector.get_map():
            for key, _ in selector.select():
                fork = key.data
                reports = [hook.pytest_report_from_serializable(config=session.config, data=x) for x in fork.receive()]
                if fork.is_done:
                    selector.unregister(fork.pipe)
                    reports += _deaths(session, *shares.at[2 * fork.number : 2 * fork.number + 2])
                for report in reports:
                    report.node = fork.node
                    hook.pytest_runtest_logreport(report=report)
                if session.shouldfail or session.shouldstop:
                    shares.clear()


def _deaths(session: pytest.Session, at: int, following: int) -> list[pytest.TestReport]:
    """Report the tests that a fork did not end."""
    said = ((at, "its process died"), (following, "not run: its process died in the test before"))
    items = [(session.items[number], why) for number, why in said if number != NONE]
    return [pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call") for item, why in items]


# --- in a fork -------------------------------------------------------------------------------------------------------


def _run(session: pytest.Session, shares: Shares, mine: int, write: int) -> None:
    """Run tests and report them through a pipe; never returns."""
    try:
        random.seed()
        plugins: Any = session.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        capture = plugins.getplugin("capturemanager")
        # The files for what tests print are new ones: forks would share those that there are.
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        sender = _Sender(session.config, write)
        plugins.register(sender)
        _run_all(session, shares, mine)
        atexit._run_exitfuncs()
        sender.send(None)
        os._exit(0)
    except KeyboardInterrupt:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(1)


def _run_all(session: pytest.Session, shares: Shares, mine: int) -> None:
    at = slice(2 * mine, 2 * mine + 2)
    number = shares.take(mine)
    while number != NONE:
        following = shares.take(mine)
        shares.at[at] = number, following
        nextitem = None if following == NONE else session.items[following]
        session.config.hook.pytest_runtest_protocol(item=session.items[number], nextitem=nextitem)
        number = following
    shares.at[at] = NONE, NONE


class _Sender:
    """The plugin of a fork that sends its reports."""

    def __init__(self, config: pytest.Config, pipe: int) -> None:
        self._config = config
        self._stream = os.fdopen(pipe, "wb")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def send(self, report: Any) -> None:
        data = pickle.dumps(report)
        self._stream.write(len(data).to_bytes(SIZE, "big") + data)
        self._stream.flush()
