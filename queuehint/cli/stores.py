"""
Which store a backend belongs to.

The package of a store is imported by who opens one. To import all of them would double the time in which a command
starts, and most of it is what Redis needs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuehint.backends.base import Backend
    from queuehint.backends.journal.backend import JournalBackend
    from queuehint.backends.redis.backend import RedisBackend


def as_redis(backend: Backend) -> RedisBackend | None:
    """Return a backend as a Redis backend, None for another."""
    if "queuehint.backends.redis.backend" not in sys.modules:
        return None
    from queuehint.backends.redis.backend import RedisBackend

    return backend if isinstance(backend, RedisBackend) else None


def as_journal(backend: Backend) -> JournalBackend | None:
    """Return a backend as a journal backend, in a file or in PostgreSQL. None for another."""
    if "queuehint.backends.journal.backend" not in sys.modules:
        return None
    from queuehint.backends.journal.backend import JournalBackend

    return backend if isinstance(backend, JournalBackend) else None
