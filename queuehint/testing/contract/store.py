"""A backend with its clock, and the binding by which a test class opens one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from queuehint import (
    Backend,
    FakeClock,
    JobError,
    JobState,
)
from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.backends.steps import run_steps, run_steps_sync
from queuehint.client.submission import submit
from queuehint.testing.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queuehint.values.spec import JobSpec

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class Store(Driver):
    """A backend, its clock, and the newest grant of each job. Calls go through one of the two shells."""

    def __init__(
        self, backend: Backend, clock: FakeClock, shell: str, kept: Callable[[Backend], object] | None = None
    ) -> None:
        super().__init__()
        self._kept = kept
        self.backend = backend
        self.clock = clock
        self.began_ms = clock.now_ms()
        self.runner = asyncio.Runner() if shell == "async" else None

    def apply(self, operation: op.Operation[Reply]) -> Reply:
        if self.runner is None:
            return self.backend.call_sync(operation)
        return self.runner.run(self.backend.call(operation))

    def submit(self, *jobs: JobSpec) -> list[op.EnqueuedJob]:
        """Enqueue jobs as `Scheduler.submit` does."""
        steps = submit(list(jobs), small_parts=not self.backend.is_local)
        if self.runner is None:
            return run_steps_sync(self.backend, steps)
        return self.runner.run(run_steps(self.backend, steps))

    def advance(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    def sleep(self, interest: Interest, timeout_s: float) -> None:
        if self.runner is None:
            self.backend.wait_sync(interest, timeout_s)
        else:
            self.runner.run(self.backend.wait(interest, timeout_s))

    def kept(self) -> object:
        """Return the state that the store keeps, as far as its binding can read it."""
        return None if self._kept is None else self._kept(self.backend)

    def visible(self) -> list[object]:
        """Return the replies to all queries of the store, to be compared later."""
        questions: list[op.Operation[Any]] = [
            op.List(), op.CountJobs(), op.CountEdges(), op.Tree((), 3), op.Peek(), op.ListLimits(), op.ListSchedules(),
            op.ListWeights(), op.ListWorkers(),
        ]  # fmt: skip
        return [self.apply(question) for question in questions]

    def everything(self) -> list[object]:
        """Return the replies to all queries and the kept state, equal later if no operation has written."""
        return [*self.visible(), self.kept()]

    @property
    def is_clean(self) -> bool:
        """Whether no job is unfinished, and nothing is left of a place or an edge."""
        stats, edges = self.stats(), self.edges()
        return not (stats.unfinished or stats.nodes or stats.leftovers or edges.open_edges or edges.deferred)

    def close(self) -> None:
        if self.runner is None:
            self.backend.close_sync()
        else:
            self.runner.run(self.backend.close())
            self.runner.close()


class Binding:
    """
    How to open a store. A test class names it beside the rules that are to hold, each of which asks for a `store`.

    It is not abstract: pytest skips abstract classes, so a misspelt `open` would fail no test.

    .. versionadded:: 1.0.0
    """

    def open(self, clock: FakeClock) -> Backend:
        """
        Return an empty store that reads the time of *clock*. The store is closed at the end of the test.

        Raises:
            NotImplementedError: a subclass does not say how.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method open(self, clock) that returns a backend")

    def kept(self, backend: Backend) -> object:
        """
        Return the state that a store keeps now, equal later if no operation has written.

        None where there is no way to tell, as by default; the rules then compare what can be asked alone.

        .. versionadded:: 1.0.0
        """
        return None

    @pytest.fixture(params=["sync", "async"])
    def store(self, request: pytest.FixtureRequest) -> Iterator[Store]:
        """The store under test, called by one of its two shells."""
        clock = FakeClock()
        store = Store(self.open(clock), clock, request.param, self.kept)
        yield store
        store.close()


def error(message: str = "no") -> JobError:
    return JobError(type="ValueError", message=message)
