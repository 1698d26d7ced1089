"""Fixtures of tests on all stores, and on one that leaves the renewal of leases to workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from queuehint import Scheduler
from queuehint.backends.memory import MemoryBackend
from tests.folders import quick_folder
from tests.servers import new_namespace, shared_server


@pytest.fixture(autouse=True)
def logs_of_commands_end() -> Iterator[None]:
    """Remove log handlers of commands that ran in this process: their output is closed by then."""
    yield
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a scheduler finds each store, with nothing in it."""
    if request.param == "memory":
        yield "memory://"
    elif request.param == "sqlite":
        with quick_folder() as folder:
            yield f"sqlite:///{folder}/jobs.db?durability=process"
    else:
        yield f"{shared_server().url}?namespace={new_namespace(request.node.name)}"


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def sched(request: pytest.FixtureRequest) -> Scheduler:
    """Return a scheduler on a store of its own, in memory or on Redis."""
    if request.param == "memory":
        return Scheduler()
    return Scheduler(shared_server().url, namespace=new_namespace())


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scheduler]:
    """Return a function that makes a scheduler whose store renews nothing by itself; its time passes by itself."""
    monkeypatch.setattr(MemoryBackend, "is_local", False)
    monkeypatch.setattr(MemoryBackend, "adopt", lambda self, *_: lambda: None)
    return lambda **options: Scheduler("memory://", **options)
