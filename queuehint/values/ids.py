"""
Ids of jobs, made by producers, unique and in order of time. Identity of this process.

The interpreter calls `_begin_child` after a fork, so that neither needs a system call each time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_DIGITS = "0123456789abcdefghijklmnopqrstuv"
"""Digits of 5 bits, in the order of their codes; an id of 21 of them takes 24 bytes as a field of Redis."""
_PAIRS = tuple(high + low for high in _DIGITS for low in _DIGITS)


class _Maker:
    """The parts of the ids of one process. A fork has a maker of its own."""

    def __init__(self, own: Callable[[], str] | None = None) -> None:
        self.own = own
        """Makes them in place of `new_id`."""
        self.mark = "".join([_PAIRS[secrets.randbits(10)] for _ in range(3)])
        # Of 30 bits: at least half of them come before it begins anew.
        self.count = itertools.count(secrets.randbits(29))
        self.last = (0, 0, "")
        """The ms and the upper bits of the count of the newest id, and what both are written as."""


class Process:
    """
    Identity of a process. ``mark`` is an object that differs in a fork.

    ``has_no_store`` is true in a process of handlers whose worker has a store that no other process sees.
    """

    __slots__ = ("has_no_store", "mark")

    def __init__(self) -> None:
        self.mark = object()
        self.has_no_store = False


_maker = _Maker()
this_process = Process()


def _begin_child() -> None:
    global _maker  # noqa: PLW0603 - one a process
    _maker = _Maker()
    this_process.mark = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


def new_id() -> str:
    """
    Return an id of 21 digits and letters a to v: ms since the epoch, a count, a random mark of this process.

    Ids of one process sort in order of their making; those of several, by the ms.
    """
    maker = _maker
    if maker.own is not None:
        return maker.own()
    now_ms = time.time_ns() // 1_000_000
    count = next(maker.count)
    last_ms, last_high, head = maker.last
    if now_ms != last_ms or count >> 10 != last_high:
        head = (
            f"{_DIGITS[now_ms >> 40 & 31]}{_PAIRS[now_ms >> 30 & 1023]}{_PAIRS[now_ms >> 20 & 1023]}"
            f"{_PAIRS[now_ms >> 10 & 1023]}{_PAIRS[now_ms & 1023]}"
            f"{_PAIRS[count >> 20 & 1023]}{_PAIRS[count >> 10 & 1023]}"
        )
        # One value, so that a thread that looks meanwhile finds parts that belong together.
        maker.last = (now_ms, count >> 10, head)
    return f"{head}{_PAIRS[count & 1023]}{maker.mark}"


@contextlib.contextmanager
def ids_from(make: Callable[[], str]) -> Iterator[None]:
    """Make ids with *make* while the block runs, for reproducible simulations."""
    global _maker  # noqa: PLW0603 - one a process
    before, _maker = _maker, _Maker(make)
    try:
        yield
    finally:
        _maker = before
