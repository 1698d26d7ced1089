"""
The socket between a worker and a process of its handlers: frames of a JSON object and bytes.

====================================  ==============================================================================
the worker says
====================================  ==============================================================================
``{"path": …, "main": …}``            first: where modules are, whether it can open the store itself, the level of logs
``{"run": …}`` and bytes              run a handler: the bytes are its grant, its arguments, results, and those of steps
``{"stop": "told"}``, ``"now"``       followed by SIGTERM: `JobContext.canceled` is true; or the handler is interrupted
====================================  ==============================================================================

====================================  ==============================================================================
the process says
====================================  ==============================================================================
``{"begun": true}``                   the module is imported, and the arguments are read
``{"note": …}``, maybe bytes          progress, a log line, fields of a partial result, a log record
``{"ask": …}`` and bytes              enqueue jobs: `Enqueue` operations; the answer comes by a socket of its own
``{"wait": true}`` and bytes          begin a wait for a signal: an `Enqueue` of it; the answer comes by the same socket
``{"step": …}`` and bytes             store the result of a step; the answer comes by the same socket
``{"end": …}``, maybe bytes           how the attempt has ended, see `ends`
====================================  ==============================================================================

The answer to jobs is ``{"jobs": [[id, created], …]}``; to a wait ``{"state": …, "has_data": …, "cause": …}``, with the
data of the signal if it has any; to a step ``{"at_ms": …, "is_kept": …}``, with the bytes that are stored if they were
before; or to each ``{"error": …}`` with what `error_facts` tells of it.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

_SIZES = struct.Struct(">IQ")

Frame = tuple[dict[str, Any], bytes]


class Channel:
    """One end of the socket. Any thread may send, and one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()

    def send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        """
        Send a frame.

        Raises:
            OSError: the other end is closed, or does not read within the limit of `wait_at_most`.
        """
        text = json.dumps(head).encode()
        with self._lock:
            self._socket.sendall(_SIZES.pack(len(text), len(payload)) + text)
            if payload:
                self._socket.sendall(payload)

    def receive(self) -> Frame | None:
        """
        Return the next frame, None if the other end is closed.

        Raises:
            OSError: nothing came within the limit of `wait_at_most`, or this end is closed.
        """
        sizes = self._read(_SIZES.size)
        if sizes is None:
            return None
        length, payload_length = _SIZES.unpack(sizes)
        text, payload = self._read(length), self._read(payload_length)
        return None if text is None or payload is None else (json.loads(text), bytes(payload))

    def _read(self, length: int) -> bytearray | None:
        read = bytearray(length)
        view = memoryview(read)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                return None
            view = view[count:]
        return read

    def has_input(self) -> bool:
        """Return whether a frame, or the end, can be read now."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def wait_at_most(self, timeout_s: float | None) -> None:
        """Set the timeout of sending and receiving. None is no timeout."""
        self._socket.settimeout(timeout_s)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
