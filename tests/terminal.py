"""A real terminal for tests: a pseudo-terminal of a given size, and a command in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Self

from tests.support import LIMIT_S

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def without_sequences(text: str) -> str:
    """Return the text for a terminal without its control sequences."""
    return _SEQUENCE.sub("", text)


class Terminal:
    """
    ``python -m queuehint`` in a terminal; killed when the test is done with it.

    Args:
        arguments: of the command.
        program: what Python runs instead of queuehint.
        columns, rows: the size of the window.
        env: what the environment has besides that of the test.
    """

    def __init__(
        self,
        *arguments: str,
        program: Sequence[str] = ("-m", "queuehint"),
        columns: int = 100,
        rows: int = 40,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        settings = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})}
        for name in ("NO_COLOR", "COLUMNS", "LINES", "CI", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            settings.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=settings,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - it takes no lock
            close_fds=True,
        )
        os.close(theirs)
        self.output = ""
        """All that was written so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._mine)

    @property
    def text(self) -> str:
        """The output so far, without control sequences."""
        return without_sequences(self.output)

    def wait_for(self, text: str, *, count: int = 1) -> None:
        """Read until a text was written, so often."""
        end_s = time.monotonic() + LIMIT_S
        while self.text.count(text) < count:
            assert self._read(end_s), f"{text!r} is not in what it wrote:\n{self.text}"

    def send(self, keys: str) -> None:
        """Type."""
        os.write(self._mine, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.send("\x03")

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        end_s = time.monotonic() + LIMIT_S
        while self._read(end_s):
            pass
        return self.process.wait(LIMIT_S)

    def _read(self, end_s: float) -> bool:
        """Read some more; False if there will be none, or not in time."""
        ready, _, _ = select.select([self._mine], [], [], max(0.0, end_s - time.monotonic()))
        if not ready:
            return False
        with contextlib.suppress(OSError):  # EIO: the last one at the other end has gone
            if data := os.read(self._mine, 65_536):
                self.output += data.decode("utf-8", "replace")
                return True
        return False


def _take_terminal() -> None:
    """Become the leader of a session whose terminal is the standard input, so that Ctrl-C is a signal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
