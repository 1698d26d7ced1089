"""One process of a worker's handlers: started at its first attempt, kept for further ones, ended for good."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from queuehint.handlers.remote import ProcessDiedError, main_module
from queuehint.worker.processes.channel import Channel
from queuehint.worker.processes.logs import levels

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.worker.processes.channel import Frame

START_S = 60.0
"""How long a process may take to start, to import the module of a handler, and to read its arguments."""
TOLD_S = 2.0
"""How long a handler that takes the context may go on once `JobContext.canceled` is true, until it is interrupted."""
GRACE_S = 1.0
"""How long an interrupted handler may take to clean up, until its process is killed."""
LEAVE_S = 0.5
"""How long an idle process may take to end by itself."""
BLOCKED_AT_START = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that stop a service; the process takes them once it has handlers for them."""


class HandlerProcess:
    """
    One process. `run` is called by one thread at a time, `stop` by any.

    It leads a process group of its own, which is killed with it: what a handler has started ends, too.

    Args:
        is_durable: whether it may open the application's store, because other processes see what is in there.
    """

    def __init__(self, *, is_durable: bool) -> None:
        self._is_durable = is_durable
        self._popen: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._answers: Channel | None = None
        self._life: int | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._has_begun = self._has_ended = self._is_stopped = False

    @property
    def pid(self) -> int | None:
        """The id of the process. None before its start and after its end."""
        return None if self._popen is None else self._popen.pid

    @property
    def is_usable(self) -> bool:
        """Return whether the process waits for a further attempt."""
        return self._popen is not None and self._popen.poll() is None

    def run(
        self, run: dict[str, Any], payload: bytes, heard: Callable[[dict[str, Any], bytes], object]
    ) -> Frame | ProcessDiedError:
        """
        Run an attempt, and return its end. A stopped or dead process has ended when this returns.

        Args:
            heard: called with what it says meanwhile.

        Returns:
            The last frame; an error if the process has died, was killed, or did not begin in time.

        Raises:
            OSError: the system has no process for us.
        """
        end, problem = None, ""
        try:
            channel = self._open()
            channel.wait_at_most(START_S)
            channel.send({"run": run}, payload)
            while (frame := channel.receive()) is not None:
                if "end" in frame[0]:
                    end = frame
                    break
                if "begun" in frame[0]:
                    channel.wait_at_most(None)
                    self._has_begun = True
                heard(*frame)
        except TimeoutError:
            problem = f"did not begin within {START_S:g} s; it was killed"
        except OSError:
            if self._popen is None:
                raise
        except BaseException:
            with self._lock:
                self._has_ended = True
                self._kill()
            self._wait()
            self._over.set()
            raise
        with self._lock:
            self._has_ended = True
            if end is not None and not self._is_stopped:
                return end
            self._kill()
        code = self._wait()
        self._over.set()
        if end is not None:
            return end
        return ProcessDiedError(run["name"], code, problem)

    @property
    def has_died_unbegun(self) -> bool:
        """Return whether the process died by itself before code of a job began, so that another may run the job."""
        return self._has_ended and not self._has_begun and not self._is_stopped

    def answer(self, head: dict[str, Any], data: bytes = b"") -> None:
        """Answer a request of the process, which may have died meanwhile."""
        assert self._answers is not None
        with contextlib.suppress(OSError):
            self._answers.send(head, data)

    def _open(self) -> Channel:
        with self._lock:
            self._has_begun = self._has_ended = False
            if self._channel is not None:
                return self._channel
            ours, theirs = socket.socketpair()
            answers, heard = socket.socketpair()
            life, kept = os.pipe()
            given = (theirs.fileno(), heard.fileno(), life)
            # Until it has handlers for them: what signals a whole group would end it while it imports.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_AT_START)
            try:
                self._popen = subprocess.Popen(  # noqa: S603 - numbers are all that varies
                    # -P: nothing is imported from the working directory, whatever its files are called.
                    [sys.executable, "-P", "-m", f"{__package__}.child", *map(str, given)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=given,
                    process_group=0,
                )
            except BaseException:
                ours.close()
                answers.close()
                os.close(kept)
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                theirs.close()
                heard.close()
                os.close(life)
            self._life = kept
            channel = self._channel = Channel(ours)
            self._answers = Channel(answers)
            if self._is_stopped:
                self._kill()
        channel.wait_at_most(START_S)
        hello = {"path": sys.path, "argv": sys.argv, "main": main_module(), "is_durable": self._is_durable}
        channel.send({**hello, "log_level": logging.getLogger().level, "log_levels": levels()})
        return channel

    def _kill(self) -> None:
        # Not yet waited for, so the number of the group is its own.
        if self._popen is not None and self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def _wait(self) -> int:
        assert self._popen is not None
        code = self._popen.wait()
        self.leave_to_parent()
        return code

    def stop(self, *, is_told_first: bool) -> None:
        """
        End the attempt without waiting: SIGTERM, then SIGKILL. Idempotent.

        Args:
            is_told_first: whether the handler may end by itself, for it sees `JobContext.canceled`.
        """
        with self._lock:
            if self._is_stopped or self._has_ended:
                return
            self._is_stopped = True
            if not self._has_begun:
                self._kill()
                return
        threading.Thread(target=self._end, args=(is_told_first,), name="queuehint-stop", daemon=True).start()

    def _end(self, is_told_first: bool) -> None:
        assert self._popen is not None
        assert self._channel is not None
        for how, pause_s in (("told", TOLD_S), ("now", GRACE_S))[not is_told_first :]:
            with contextlib.suppress(OSError):
                self._channel.send({"stop": how})
            with self._lock:
                if self._has_ended:
                    return
                self._popen.terminate()
            if self._over.wait(pause_s):
                return
        with self._lock:
            if not self._has_ended:
                self._kill()

    def let_go(self) -> None:
        """Let a waiting process end by itself, without waiting for its end."""
        if self._channel is not None:
            self._channel.close()

    def close(self, within_s: float = LEAVE_S) -> None:
        """End a waiting process. Returns when it has ended, by itself *within_s* or killed."""
        if self._popen is None:
            return
        self.let_go()
        try:
            self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self._kill()
        self._wait()

    def leave_to_parent(self) -> None:
        """Close this end of all pipes."""
        for channel in (self._channel, self._answers):
            if channel is not None:
                channel.close()
        life, self._life = self._life, None
        if life is not None:
            os.close(life)
