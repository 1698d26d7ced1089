"""
Locks of `threading` controlled by a crew of threads, the basis of conditions, events, semaphores and queues.

`switched` puts functions into `threading`, and wherever a module has imported them by name, that make such locks for
the callers of the crew in charge, and locks as ever for all other threads.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, Protocol, Self

from queuehint.testing.wakes.crew import is_library

_LOCKS: Final = (threading.Lock, _thread.allocate_lock, _thread.LockType)
_RLOCKS: Final = (threading.RLock, _thread.RLock)
_SLEEP: Final = time.sleep


class Threads(Protocol):
    """The interface from a lock to the crew of its threads."""

    def is_mine(self) -> bool:
        """Return whether this thread is a caller of the crew, or the one that makes the queue."""

    def caller(self) -> int:
        """Return the number of the caller that runs."""

    def wait(self, lock: Lock, *, has_timeout: bool) -> bool:
        """Wait until a lock is free. Return False after a time-out."""

    def sleep(self) -> bool:
        """Sleep until no other caller can continue. Return False in a thread without a call."""


IN_CHARGE: list[Threads] = []
"""The crew whose threads run, if any."""


class Lock:
    """A lock that reports its waiting callers to the crew."""

    def __init__(self, crew: Threads) -> None:
        self._crew = crew
        self.holder: int | None = None
        self._count = 0

    def is_free(self, _caller: int) -> bool:
        """Return whether a caller would get the lock."""
        return self.holder is None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, as soon as it is free."""
        caller = self._crew.caller()
        if not self.is_free(caller) and (not blocking or not self._crew.wait(self, has_timeout=timeout >= 0)):
            return False
        self.holder = caller
        self._count += 1
        return True

    def release(self) -> None:
        """Release the lock."""
        if self.holder is None:
            raise RuntimeError("release unlocked lock")
        self._count -= 1
        if not self._count:
            self.holder = None

    def locked(self) -> bool:
        """Return whether the lock is held."""
        return self.holder is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A reentrant lock."""

    def is_free(self, caller: int) -> bool:
        """Return whether a caller would get the lock."""
        return self.holder is None or self.holder == caller

    def release(self) -> None:
        """Release the lock, once for each acquisition."""
        if self.holder != self._crew.caller():
            raise RuntimeError("cannot release un-acquired lock")
        super().release()

    def _release_save(self) -> tuple[int, int | None]:
        saved = (self._count, self.holder)
        self._count, self.holder = 0, None
        return saved

    def _acquire_restore(self, saved: tuple[int, int | None]) -> None:
        self.acquire()
        self._count, self.holder = saved

    def _is_owned(self) -> bool:
        return self.holder is not None and self.holder == self._crew.caller()


def _make_lock(*arguments: Any) -> Any:
    crew = _crew()
    return _thread.allocate_lock(*arguments) if crew is None else Lock(crew)


def _make_rlock(*arguments: Any) -> Any:
    crew = _crew()
    return _thread.RLock(*arguments) if crew is None else RLock(crew)


def _sleep(seconds: float) -> None:
    crew = _crew()
    if crew is None or not crew.sleep():
        _SLEEP(seconds)


def _crew() -> Threads | None:
    return IN_CHARGE[-1] if IN_CHARGE and IN_CHARGE[-1].is_mine() else None


@contextlib.contextmanager
def switched() -> Iterator[None]:
    """Have locks be made by the crew in charge."""
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for module in list(sys.modules.values()):
        if module in {threading, time} or _may_import_locks(module):
            for name, value in list(vars(module).items()):
                made = _made_instead(value)
                if made is not None:
                    changed.append((vars(module), name, value))
                    vars(module)[name] = made
    try:
        yield
    finally:
        for names, name, value in changed:
            names[name] = value


def _may_import_locks(module: ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    return module.__name__ == "__main__" or (isinstance(path, str) and not is_library(path))


def _made_instead(value: object) -> Callable[..., Any] | None:
    """Return the replacement of a function of `threading` or `time`, None for any other value."""
    if value is _SLEEP:
        return _sleep
    if any(value is each for each in _LOCKS):
        return _make_lock
    return _make_rlock if any(value is each for each in _RLOCKS) else None
