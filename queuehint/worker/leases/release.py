"""
The release of a worker: a digest of its code, so that a store offers it no refused job again.

It is of the handlers, of what the application calls its release, and of this package, whose later releases may read
more. Equal code in any process has equal digests. Handlers may be added while the worker runs; none is ever replaced.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from queuehint.backends.base import release as own_release
from queuehint.handlers.conversion.digest import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queuehint.handlers.handler import Handler

LETTERS = "0123456789abcdefghijklmnopqrstuv"
LENGTH = 8
"""40 bits: it goes with each claim, and differs from the few others that work at the same time."""


class Release:
    """
    The digest of a worker's code.

    Args:
        handlers: by task name; it may grow.
        version: what the application calls this release of itself.
    """

    def __init__(self, handlers: Mapping[str, Handler], version: str | None) -> None:
        self.handlers = handlers
        self._version = version
        self.count = 0
        """Of how many handlers the digest is: with others there it is to be renewed."""
        self.digest = ""
        self.renew()

    def renew(self) -> str:
        """Return the digest of the handlers there are now."""
        self.count = len(self.handlers)
        text = "\n".join([digest_of(self.handlers), self._version or "", own_release()])
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        self.digest = "".join([LETTERS[number >> 5 * at & 31] for at in range(LENGTH)])
        return self.digest
