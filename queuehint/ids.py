"""Job ids made by producers: unique, and in order of time."""

from __future__ import annotations

import itertools
import os
import secrets
import time

_pid = 0
_node = ""
_counter = itertools.count()


def new_id() -> str:
    """
    Return an id of 28 characters: ms since the epoch, a count, a random mark of this process.

    Ids of one process sort in order of their making; those of several, by the ms.
    """
    global _pid, _node, _counter  # noqa: PLW0603 - one mark a process, made anew after a fork
    if _pid != os.getpid():
        _pid = os.getpid()
        _node = secrets.token_hex(4)
        _counter = itertools.count(secrets.randbits(20))
    return f"{time.time_ns() // 1_000_000:012x}{next(_counter) & 0xFFFFFFFF:08x}{_node}"
