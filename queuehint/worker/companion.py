"""
A process that runs beside this process and ends with it: it renews leases, or leads a journal.

It is started anew, never forked, and runs no code of the application. Its first line is its configuration (a URL may
hold a password: no argument, no variable). Lines go both ways over pipes; when its input ends, so does it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNREAD_MAX: Final = 1 << 20
"""How much may wait for a companion that does not read, in bytes, until it counts as dead."""
END_WITHIN_S: Final = 5.0
_READ_MAX: Final = 1 << 16


class Companion:
    """
    The parent's ends of the pipes. One thread may `send` while another receives.

    Args:
        module: what it runs, with `heard`.
        end_within_s: how long it has to end when it is told to.
    """

    def __init__(self, module: str, *, end_within_s: float = END_WITHIN_S) -> None:
        self._module = module
        self._end_within_s = end_within_s
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent = b""
        self._heard = b""
        self._is_deaf = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process, None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def is_dead(self) -> bool:
        """True when the process has ended or has closed its pipe."""
        return self._is_deaf or self._process is None or self._process.poll() is not None

    def begin(self, config: dict[str, Any], files: Sequence[int] = ()) -> None:
        """
        Start the process.

        Args:
            files: it has these too.

        Raises:
            OSError: the system has no process for us.
        """
        process = subprocess.Popen(  # noqa: S603 - the module is one of ours
            # -P: nothing is imported from the working directory, whatever its files are called.
            [sys.executable, "-P", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=files,
            bufsize=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        with self._lock:
            self._process, self._unsent, self._heard, self._is_deaf = process, b"", b"", False
        self.send(json.dumps(config) + "\n")

    def send(self, lines: str) -> None:
        """Send lines to the process. Never waits, never raises."""
        with self._lock:
            process = self._process
            if process is None or process.stdin is None or self._is_deaf:
                return
            self._unsent += lines.encode()
            try:
                self._unsent = self._unsent[os.write(process.stdin.fileno(), self._unsent) :]
            except BlockingIOError:
                self._is_deaf = len(self._unsent) > UNREAD_MAX
            except OSError:
                self._is_deaf = True

    def hear(self, timeout_s: float) -> list[str]:
        """Wait up to *timeout_s* for lines of the process or its end. Return the lines."""
        process = self._process
        if process is None or process.stdout is None:
            return []
        stdout = process.stdout.fileno()
        # Not `select`, which takes no descriptor from 1 024 on: a worker may have as many files open.
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        if not poll.poll(math.ceil(timeout_s * 1000)):
            return []
        with contextlib.suppress(BlockingIOError):
            while part := os.read(stdout, _READ_MAX):
                self._heard += part
        *lines, self._heard = self._heard.split(b"\n")
        return [line.decode() for line in lines]

    def leave_to_parent(self) -> None:
        """Close both pipes, in a forked child: the process ends once all other ends are closed."""
        process = self._process
        for pipe in (process.stdin, process.stdout) if process is not None else ():
            if pipe is not None:
                pipe.close()

    def dismiss(self) -> None:
        """Request the process to end, and send nothing more."""
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                self._is_deaf = True
                self._process.stdin.close()

    def end(self, *, at_once: bool = False) -> None:
        """Stop the process, gracefully or *at_once*."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        if at_once:
            process.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(self._end_within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, as by SIGSTOP. Return False if the system does not report stops."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    # Behind the name, which may hold anything: the state, T or, under a debugger, t.
    return stat.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])


# --- in the process itself -------------------------------------------------------------------------------------------


def settle_in() -> int:
    """Have this process end with its parent and not by a signal. Return the pipe for lines to the parent."""
    # No garbage collection at exit: the end of the process frees the memory anyway.
    atexit.register(gc.freeze)
    # A terminal and some supervisors signal the whole group; this process ends with its parent, not before it.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a driver prints is no line of ours
    return out


def heard() -> Iterator[list[str]]:
    """Yield the lines of the parent, some at a time, until the parent has ended or closes the pipe."""
    rest = b""
    while part := os.read(0, _READ_MAX):
        *complete, rest = (rest + part).split(b"\n")
        if complete:
            yield [line.decode() for line in complete]
