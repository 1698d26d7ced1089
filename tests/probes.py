"""Probes of a worker process from outside: its port, and polling for a condition."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.support import LIMIT_S, until_sync


def until(reached: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    """Wait until a condition outside this process holds."""
    until_sync(reached, limit_s=limit_s)


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int) -> tuple[int, dict[str, Any]]:
    """Ask a port for the health; 0 and nothing without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}
