"""
The pytest plugin: fixtures for applications. Loaded by the entry point ``pytest11``.

Each test has a scheduler of its own, or the application's on a store of the test's own: override `queuehint_app`.
Override `queuehint_state` to replace the resources that the application's lifespan of workers opens for jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from queuehint.client.handle import JobHandle
    from queuehint.clock import FakeClock
    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.values.record import JobRecord

__all__: list[str] = []

# Tests that others inherit: what fails in them is shown as in tests of one's own.
pytest.register_assert_rewrite("queuehint.testing.contract", "queuehint.testing.driver")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark of rules of the conformance suite that take long, for projects with strict markers."""
    config.addinivalue_line("markers", "nightly: a rule of queuehint's conformance suite that takes minutes")


@pytest.fixture
def queuehint_clock() -> FakeClock:
    """The time of `queuehint_sched`, which begins now and stays until the test moves it."""
    from queuehint.clock import FakeClock

    return FakeClock(time.time_ns() // 1_000_000)


@pytest.fixture
def queuehint_app() -> Scheduler | None:
    """The application's scheduler, by default a new one for each test. Override this fixture to return your own."""
    return None


@pytest.fixture
def queuehint_state() -> Any:
    """Override this to return `JobContext.state` of all jobs. The default is the value that the lifespan yields."""
    from queuehint.testing.draining import AS_DECLARED

    return AS_DECLARED


@pytest.fixture
def queuehint_sched(
    queuehint_app: Scheduler | None, queuehint_clock: FakeClock, queuehint_state: Any
) -> Iterator[Scheduler]:
    """
    A scheduler on an empty store in memory on the time of `queuehint_clock`, closed at the end of the test.

    It is that of `queuehint_app` if there is one, so that code under test enqueues here.
    """
    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.testing.draining import on_memory

    sched = queuehint_app if queuehint_app is not None else Scheduler("memory://")
    with on_memory(sched, queuehint_clock, state=queuehint_state):
        yield sched


@pytest.fixture
def drain(queuehint_sched: Scheduler) -> Callable[..., Coroutine[Any, Any, list[JobRecord]]]:
    """Run all jobs of `queuehint_sched` now, from a loop. See `queuehint.testing.drain`."""
    from queuehint.testing.draining import drain

    return partial(drain, queuehint_sched)


@pytest.fixture
def drain_sync(queuehint_sched: Scheduler) -> Callable[..., list[JobRecord]]:
    """Run all jobs of `queuehint_sched` now, from plain code. See `queuehint.testing.drain_sync`."""
    from queuehint.testing.draining import drain_sync

    return partial(drain_sync, queuehint_sched)


@pytest.fixture
def relay_now(queuehint_sched: Scheduler) -> Callable[[object], Coroutine[Any, Any, list[JobHandle[Any]]]]:
    """Enqueue the jobs written within the transaction of a connection. See `queuehint.testing.relay_now`."""
    from queuehint.testing.relaying import relay_now

    return partial(relay_now, queuehint_sched)


@pytest.fixture
def relay_now_sync(queuehint_sched: Scheduler) -> Callable[[object], list[JobHandle[Any]]]:
    """Enqueue the jobs written within the transaction of a connection. See `queuehint.testing.relay_now_sync`."""
    from queuehint.testing.relaying import relay_now_sync

    return partial(relay_now_sync, queuehint_sched)
