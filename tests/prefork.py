"""
Fork processes that run a Python module from a process that has imported queuehint already.

Most of the CPU time of a short process is the start of Python and the import of the package. `start` asks a *forker*,
one process for all processes of pytest, to fork: the child takes over arguments, environment, folder and streams, and
runs the module as ``python -m`` does. At night, and on systems without sequenced-packet sockets, `start` really runs
``python -m``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

ROOT = str(Path(__file__).parents[1])
WARM = (
    "asyncio",
    "pytest",
    "queuehint.backends.memory",
    "queuehint.backends.postgres.backend",
    "queuehint.backends.redis.backend",
    "queuehint.backends.sqlite.backend",
    "queuehint.cli.app",
    "queuehint.cli.worker",
    "queuehint.worker.worker",
)
"""Modules that the forker imports: none that starts a thread, opens a file or reads the environment."""
IS_REAL = os.environ.get("HYPOTHESIS_PROFILE") == "nightly" or not hasattr(socket, "SOCK_SEQPACKET")
"""Whether Python is started for each process."""
_MESSAGE_MAX = 200_000


def start(
    module: str,
    *arguments: str,
    cwd: Path | str = ROOT,
    env: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    text: bool = False,
    start_new_session: bool = False,
    is_real: bool = IS_REAL,
) -> subprocess.Popen[Any]:
    """
    Start a process of a module; the arguments are those of `subprocess.Popen`.

    Args:
        is_real: start Python, without the forker.
    """
    environment = dict(os.environ if env is None else env)
    if is_real:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=text,
            start_new_session=start_new_session,
        )
    streams = [_Stream(0, stdin, text=text), _Stream(1, stdout, text=text), _Stream(2, stderr, text=text)]
    try:
        asked = (module, arguments, str(cwd), environment, start_new_session)
        return _Forked(_forker(), asked, streams, text=text)
    finally:
        for stream in streams:
            stream.close_theirs()


class _Stream:
    """One standard stream of a child: the end that is handed over, and of a pipe the one that stays here."""

    def __init__(self, number: int, wanted: int | IO[bytes] | None, *, text: bool) -> None:
        self._is_opened = isinstance(wanted, int)
        self.mine: IO[Any] | None = None
        if wanted == subprocess.PIPE:
            read, write = os.pipe()
            self.theirs, kept = (read, write) if number == 0 else (write, read)
            self.mine = os.fdopen(kept, ("w" if number == 0 else "r") + ("" if text else "b"))
        elif wanted == subprocess.DEVNULL:
            self.theirs = os.open(os.devnull, os.O_RDWR)
        else:
            assert not isinstance(wanted, int)
            self.theirs = number if wanted is None else wanted.fileno()

    def close_theirs(self) -> None:
        if self._is_opened:
            os.close(self.theirs)


# --- in the process of pytest ----------------------------------------------------------------------------------------


class Forker:
    """The process that forks, as one process of pytest knows it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._guard = threading.Lock()
        self._ended: dict[int, int] = {}

    def close(self) -> None:
        """End this client; the forker ends with its last client."""
        self._socket.close()

    def fork(self, asked: tuple[Any, ...], streams: list[int]) -> int:
        """Return the id of a new process."""
        with self._guard:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], streams)
            while True:
                kind, pid, status = self._receive()
                if kind == "began":
                    return pid
                self._ended[pid] = status

    def status_of(self, pid: int, timeout_s: float | None) -> int | None:
        """Wait for the end of a process; None if it goes on after that time."""
        with self._guard:
            while pid not in self._ended:
                self._socket.settimeout(timeout_s if timeout_s is None else max(timeout_s, 0.000_001))
                try:
                    _, ended, status = self._receive()
                except TimeoutError:
                    return None
                finally:
                    self._socket.settimeout(None)
                self._ended[ended] = status
            return self._ended[pid]

    def _receive(self) -> tuple[str, int, int]:
        message = self._socket.recv(_MESSAGE_MAX)
        assert message, "the forker is gone"
        kind, pid, status = json.loads(message)
        return kind, pid, status


def share(count: int) -> list[Forker]:
    """Start a forker for so many processes; it imports nothing before it has to fork."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
    numbers = [theirs.fileno() for _, theirs in pairs]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.prefork", *map(str, numbers)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        pass_fds=numbers,
        start_new_session=True,
    )
    for _, theirs in pairs:
        theirs.close()
    atexit.register(_end, process, os.getpid())
    _started.extend(forkers := [Forker(mine) for mine, _ in pairs])
    return forkers


def use(forker: Forker) -> None:
    """Ask this forker from now on, after a fork, and leave the others to other processes."""
    for each in _started:
        if each is not forker:
            each.close()
    _started[:] = [forker]


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    for forker in _started:
        forker.close()
    if os.getpid() == owner:
        process.wait()


_started: list[Forker] = []


def _forker() -> Forker:
    return _started[0] if _started else share(1)[0]


class _Forked(subprocess.Popen[Any]):
    """A process that another one has forked and waits for."""

    def __init__(self, forker: Forker, asked: tuple[Any, ...], streams: list[_Stream], *, text: bool) -> None:
        self._forker = forker
        self._child_created = False
        self._waitpid_lock = threading.Lock()
        self._input = None
        self._communication_started = False
        self.args = asked
        self.returncode = None
        self.text_mode = text
        self.stdin, self.stdout, self.stderr = (stream.mine for stream in streams)
        self.pid = forker.fork(asked, [stream.theirs for stream in streams])
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._ended_in(0)

    def _wait(self, timeout: float | None) -> int:
        code = self._ended_in(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _ended_in(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            status = self._forker.status_of(self.pid, timeout_s)
            self.returncode = None if status is None else os.waitstatus_to_exitcode(status)
        return self.returncode


# --- in the process that forks ---------------------------------------------------------------------------------------


def _serve(controls: list[socket.socket]) -> tuple[str, list[str]] | None:
    """Fork on each request; return what to run in the child, and None in this process once no client is left."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    askers: dict[int, socket.socket] = {}
    while controls:
        waiting: list[Any] = [woken, *controls]
        ready, _, _ = select.select(waiting, [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(askers)
        for control in controls:
            if control not in ready:
                continue
            try:
                message, streams, _, _ = socket.recv_fds(control, _MESSAGE_MAX, 3)
            except ConnectionResetError:
                message = b""
            if not message:
                controls = [each for each in controls if each is not control]
                continue
            _warm_up()
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(wakes)
                for each in controls:
                    each.close()
                return _become(streams, *json.loads(message))
            askers[pid] = control
            control.send(json.dumps(("began", pid, 0)).encode())
            for stream in streams:
                os.close(stream)
    return None


def _tell_ends(askers: dict[int, socket.socket]) -> None:
    """Report the ends of processes to the clients that asked for them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with contextlib.suppress(OSError):
            askers.pop(pid).send(json.dumps(("ended", pid, status)).encode())


@functools.cache
def _warm_up() -> None:
    """Import what children need."""
    for name in WARM:
        importlib.import_module(name)
    from queuehint.backends.redis.functions.library import library

    assert library().text
    gc.collect()
    gc.freeze()


def _become(
    streams: list[int], module: str, arguments: list[str], folder: str, environment: dict[str, str], is_leader: bool
) -> tuple[str, list[str]]:
    """Take over what makes one process another than the next."""
    if is_leader:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # As Python does when it starts: the folder first, then what the environment names.
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [folder, *paths, *[path for path in sys.path if path not in {ROOT, *paths}]]
    if any(Path(path, "sitecustomize.py").exists() for path in paths):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    return module, arguments


def main() -> None:
    """Serve the processes whose sockets are named, and run in a child what they have asked for."""
    with contextlib.ExitStack() as stack:
        work = _serve([stack.enter_context(socket.socket(fileno=int(number))) for number in sys.argv[1:]])
    if work is not None:
        module, arguments = work
        sys.argv[:] = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
