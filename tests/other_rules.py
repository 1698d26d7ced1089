"""Release B: the rules of another release, which choose otherwise among the jobs that may run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queuehint.backends.base import release
from queuehint.core.structures import ready_queue
from queuehint.core.structures.limits import Limits
from queuehint.core.structures.ready_queue import ReadyQueue

OTHER = "99.0"


def newest_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ready_queue, "rank", lambda level, enqueued_ms: -enqueued_ms - level)


def last_user_first(patch: pytest.MonkeyPatch) -> None:
    take = ReadyQueue.take

    def of_last(self: ReadyQueue, name: str, among: Any = None) -> Any:
        pool = self._pools.get(name)
        if pool is not None and among is None:
            pool.users.move_to_end(next(reversed(pool.users)), last=False)
        return take(self, name, among)

    patch.setattr(ReadyQueue, "take", of_last)


def last_pool_first(patch: pytest.MonkeyPatch) -> None:
    rotate = ReadyQueue.rotate
    patch.setattr(ReadyQueue, "rotate", lambda self, names: rotate(self, names)[::-1])


def without_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Limits, "stops", lambda _self, _job: None)


RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    rules.__name__: rules for rules in (newest_first, last_user_first, last_pool_first, without_limits)
}


def become(patch: pytest.MonkeyPatch, *rules: str, name: str = OTHER) -> None:
    """Make this process one of another release, with these rules."""
    release.cache_clear()
    patch.setattr("importlib.metadata.version", lambda _package: name)
    release()
    for each in rules:
        RULES[each](patch)


@contextmanager
def other_release(*rules: str, name: str = OTHER) -> Iterator[None]:
    """Be another release for a while."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            become(patch, *rules, name=name)
            yield
    finally:
        release.cache_clear()
