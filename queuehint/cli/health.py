"""
Health checks: whether the process still gets replies from the store, as a file and as a port.

A thread with a loop of its own reports it, so that a handler that blocks the worker's loop does not make a healthy
worker look dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EVERY_S = 1.0
AGE_MAX_S = 15.0
"""Three times the longest time between two round trips of an idle worker."""
REQUEST_WITHIN_S = 5.0
REQUEST_MAX = 8192


class Health:
    """
    Reports the health of a process.

    Args:
        look: returns what is known; ``healthy`` says whether all is well, ``last_round_trip`` is when the store last
            answered, in seconds since the epoch.
        file: rewritten after each round trip, at most once a second, and not while the process is not healthy; so its
            age is what a probe looks at.
        port, host: answer every GET with 200 if all is well, else with 503; the body is what is known, as JSON.
    """

    def __init__(
        self,
        look: Callable[[], Mapping[str, Any]],
        *,
        file: Path | None = None,
        port: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._look = look
        self._file = file
        self._port = port
        self._host = host
        self._written: object = None
        self._written_at = 0.0
        self._ended = threading.Event()
        self._listening = threading.Event()
        self._failure: OSError | None = None
        self._thread: threading.Thread | None = None
        self._listeners: list[int] = []

    def start(self) -> None:
        """
        Begin.

        Raises:
            OSError: the file cannot be written, or the port is taken or forbidden.
        """
        if self._file is not None:
            self._file.parent.stat()
        if self._file is None and self._port is None:
            return
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="queuehint-health", daemon=True)
        self._thread.start()
        self._listening.wait()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop, and remove the file."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(EVERY_S * 2)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def leave_to_parent(self) -> None:
        """Close the listening socket in a forked child, which could outlive its parent and keep the port."""
        for number in self._listeners:
            os.close(number)

    async def _run(self) -> None:
        server = None
        try:
            if self._port is not None:
                server = await asyncio.start_server(self._answer, self._host, self._port, limit=REQUEST_MAX)
                self._listeners = [each.fileno() for each in server.sockets]
        except OSError as error:
            self._failure = error
            return
        finally:
            self._listening.set()
        try:
            while not self._ended.is_set():
                self._write()
                await asyncio.sleep(EVERY_S / 10)
        finally:
            self._listeners = []
            if server is not None:
                server.close()

    def _write(self) -> None:
        known = self._look()
        if self._file is None or not known["healthy"] or self._written == known["last_round_trip"]:
            return
        now = asyncio.get_running_loop().time()
        if self._written is not None and now - self._written_at < EVERY_S:
            return
        aside = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # a full disk is seen by the file's age
            aside.write_text(json.dumps(known) + "\n")
            aside.replace(self._file)
            self._written, self._written_at = known["last_round_trip"], now

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_WITHIN_S):
                request = await reader.readuntil(b"\r\n\r\n")
                known = self._look()
                body = json.dumps(known).encode() + b"\n"
                status = b"200 OK" if known["healthy"] else b"503 Service Unavailable"
                if not request.startswith((b"GET ", b"HEAD ")):
                    status, body = b"405 Method Not Allowed", b""
                head = (
                    b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                )
                writer.write(head % (status, len(body)) + (b"" if request.startswith(b"HEAD ") else body))
                await writer.drain()
        writer.close()
