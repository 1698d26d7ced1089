"""
A store that several processes share without a server program: this process's memory, reached over a socket.

``remote:///path/to/socket`` is a backend like any other to a worker process, for tests of processes that need no Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from queuehint.backends.base import Backend, BackendOptions, Interest
from queuehint.backends.memory import MemoryBackend
from queuehint.errors import BackendUnavailableError

ROOT = str(Path(__file__).resolve().parent.parent)
WAIT_MAX_S = 0.1


class RemoteMemoryBackend(Backend):
    def __init__(self, path: str) -> None:
        self._path = path
        self._local = threading.local()

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> RemoteMemoryBackend:
        return cls(url.removeprefix("remote://").partition("?")[0])

    def _ask(self, *question: Any) -> Any:
        key = os.getpid()
        if getattr(self._local, "key", None) != key:
            self._local.key, self._local.connection = key, None
        try:
            if self._local.connection is None:
                self._local.connection = Client(self._path)
            connection: Connection = self._local.connection
            connection.send(question)
            is_error, answer = connection.recv()
        except (OSError, EOFError) as error:
            self._local.connection = None
            raise BackendUnavailableError(str(error)) from None
        if is_error:
            raise BackendUnavailableError(answer)
        return answer

    async def call(self, operation: Any) -> Any:
        return await asyncio.to_thread(self._ask, "call", operation)

    def call_sync(self, operation: Any) -> Any:
        return self._ask("call", operation)

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        await asyncio.to_thread(self.wait_sync, interest, timeout_s)

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        self._ask("wait", interest, min(timeout_s, WAIT_MAX_S))

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        return lambda: None

    async def close(self) -> None: ...

    def close_sync(self) -> None: ...

    @property
    def is_local(self) -> bool:
        return False


def _answer(memory: MemoryBackend, connection: Connection) -> None:
    with connection, contextlib.suppress(OSError, EOFError):
        while True:
            kind, *question = connection.recv()
            try:
                act: Any = memory.call_sync if kind == "call" else memory.wait_sync
                answer = act(*question)
            except Exception as error:
                connection.send((True, repr(error)))
            else:
                connection.send((False, answer))


@contextlib.contextmanager
def serving(memory: MemoryBackend, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Give the URL of a store, and the environment in which other processes know what it means."""
    about = folder / "remote-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: remote\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[queuehint.backends]\nremote = tests.remote_memory:RemoteMemoryBackend.from_url\n"
    )
    path = str(folder / "s")
    listener = Listener(path, backlog=64)
    closed = False

    def listen() -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:  # a process that died while it connected
                continue
            if closed:
                connection.close()
                return
            threading.Thread(target=_answer, args=(memory, connection), daemon=True).start()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield f"remote://{path}", {"PYTHONPATH": os.pathsep.join([str(folder), ROOT])}
    finally:
        closed = True
        Client(path).close()
        thread.join(60)
        listener.close()
