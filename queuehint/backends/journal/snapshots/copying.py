"""
A copy of an engine made beside the work: a child of this process writes it down as it is now, and sends it by a pipe.

The child has one thread. It opens no file, takes no lock and runs nothing but the freezer: it begins by closing all
files but its pipe, so that no connection and no lock lives longer by it than by its parent, and it heeds no signal but
SIGKILL, so that no handler of the application runs in it. It ends when its parent reads no more.

It costs the memory of the pages that either side touches meanwhile, which is that of the engine if the copy takes long.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Final

if sys.platform == "linux":
    # That of `os` may be another one: gevent puts its own there, which goes on with its loop in the child.
    from posix import fork as _fork
else:  # pragma: no cover - elsewhere a child of a process with threads may not even do so much
    _fork = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

IS_POSSIBLE: Final = _fork is not None
_READ_AT_ONCE: Final = 1 << 18
_SIZE_BYTES: Final = 4
_FILES_MAX: Final = 1 << 20


class Copying:
    """
    A copy under way; for one thread.

    Args:
        freeze: yields the parts, in the child; what it reads must not change until this is made, and may then.

    Attributes:
        is_at_end: whether nothing more comes; `end` says whether all has come.

    Raises:
        OSError: there is no process, memory or descriptor left for it.
    """

    def __init__(self, freeze: Callable[[], Iterable[bytes]]) -> None:
        self._pipe, theirs = os.pipe()
        try:
            self._pid = _forked(freeze, theirs)
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(self._pipe, False)
        self._buffer = bytearray()
        self._is_whole = False
        self.is_at_end = False

    def parts(self, most_bytes: int) -> list[bytes]:
        """Return parts that have come since the last call, of so many bytes or a little more; never wait."""
        found: list[bytes] = []
        size = 0
        while size < most_bytes and not self.is_at_end:
            try:
                data = os.read(self._pipe, _READ_AT_ONCE)
            except BlockingIOError:
                break
            self.is_at_end = not data
            self._buffer += data
            for part in self._whole_parts():
                found.append(part)
                size += len(part)
        return found

    def _whole_parts(self) -> list[bytes]:
        buffer, at, found = self._buffer, 0, []
        while len(buffer) >= at + _SIZE_BYTES:
            begin = at + _SIZE_BYTES
            end = begin + int.from_bytes(buffer[at:begin], "big")
            if len(buffer) < end:
                break
            if begin == end:
                self._is_whole = True
            else:
                found.append(bytes(buffer[begin:end]))
            at = end
        del buffer[:at]
        return found

    def end(self) -> bool:
        """End the child if it is there still; return whether all parts have come."""
        os.close(self._pipe)
        with suppress(ChildProcessError):
            # Where a handler of SIGCHLD has waited for all children there were, the id may be another process by now.
            if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        return self._is_whole


def _forked(freeze: Callable[[], Iterable[bytes]], pipe: int) -> int:
    """Return the id of the child that sends a copy."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of threads whose locks a child would find taken: it takes none.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = _fork()
        if pid:
            return pid
        _send(freeze, pipe)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    raise AssertionError  # pragma: no cover - the child has ended


def _send(
    freeze: Callable[[], Iterable[bytes]], pipe: int
) -> None:  # pragma: no cover - a child, which is not measured
    """Send all parts, an empty one behind them, and end this process."""
    code = 1
    try:
        gc.disable()
        os.closerange(0, pipe)
        os.closerange(pipe + 1, _FILES_MAX)
        with suppress(OSError):
            os.nice(5)
        for part in chain(freeze(), (b"",)):
            data = memoryview(len(part).to_bytes(_SIZE_BYTES, "big") + part)
            while data:
                data = data[os.write(pipe, data) :]
        code = 0
    finally:
        os._exit(code)
