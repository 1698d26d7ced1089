"""Marks in memory shared by a worker and its lease helper: leases whose code has begun, and leases given back."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref

PLACES = 8192
SEEN_AFTER_S = 1.0
"""After this time every process sees what another one has written; in practice it takes microseconds."""


class BeginMarks:
    """
    Marks of leases in memory shared by a worker and its helper: begun leases, and leases taken by the helper.

    The worker marks a lease as begun, then checks whether it was taken. The helper takes a lease, waits until that is
    seen everywhere (`SEEN_AFTER_S`), then checks whether it has begun, and if so leaves it. So at most one of them has
    it: Dekker's mutual exclusion, with a wait on the rare side in place of a memory barrier, or a lock, on both.

    A mark is a token, at a place found by the token. Tokens grow: of leases that share a place, those older than a mark
    count as begun, which they need not have. A place that is taken is left alone until the worker is done with it.

    Args:
        number: the file that the other end has made; None for a new one.
    """

    def __init__(self, number: int | None = None) -> None:
        if number is None:
            number = _unnamed_file()
            os.ftruncate(number, 2 * PLACES * 8)
        self.number = number
        marks = memoryview(mmap.mmap(number, 2 * PLACES * 8)).cast("q")
        self._begun, self._taken = marks[:PLACES], marks[PLACES:]
        weakref.finalize(self, os.close, number)

    def begin(self, token: int) -> bool:
        """Mark a lease whose code is to begin. Return False if the helper has taken the lease."""
        place = token % PLACES
        if self._begun[place] < token:  # noqa: PLR1730 - `max` takes twice as long
            self._begun[place] = token
        return self._taken[place] != token

    def take(self, token: int) -> bool:
        """Take a lease that has not begun, for the helper. Return False if it has begun, or its mark is in use."""
        place = token % PLACES
        if self._begun[place] >= token or self._taken[place] not in {0, token}:
            return False
        self._taken[place] = token
        return True

    def has_begun(self, token: int) -> bool:
        """Return whether a lease taken `SEEN_AFTER_S` ago has begun all the same."""
        return self._begun[token % PLACES] >= token

    def forget(self, token: int) -> None:
        """Free the mark of a lease at its end."""
        if self._taken[token % PLACES] == token:
            self._taken[token % PLACES] = 0


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("queuehint-leases")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
