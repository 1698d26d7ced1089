"""Shared by tests: values that lie or raise, how much a test tries and when, polling, and whether a process runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

T = TypeVar("T")

LIMIT_S = 30.0 if os.environ.get("HYPOTHESIS_PROFILE") == "gate" else 120.0
"""
How long a test waits, at most, for what has to come about: far longer than a slow machine under load needs; with a
mutant it comes about never.
"""


class HostileStr(str):
    """A str that lies and raises in all that it overrides."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        raise RuntimeError("hostile hash")

    def __str__(self) -> str:
        return "liar"

    def __repr__(self) -> str:
        raise RuntimeError("hostile repr")

    def __len__(self) -> int:
        return 10**9

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("hostile encode")


def thorough(many: int, *, quick: int) -> int:
    """Return how often something is tried: *quick* in every run, *many* to catch a mutant or at night."""
    return many if os.environ.get("HYPOTHESIS_PROFILE") in {"gate", "nightly"} else quick


def slow_after(quick: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters: the first *quick* as they are, the others `slow`. Of several names, give `pytest.param`."""
    given = [value if isinstance(value, type(pytest.param())) else pytest.param(value) for value in values]
    late = [pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.slow]) for each in given[quick:]]
    return [*given[:quick], *late]


def until_sync(reached: Callable[[], T], what: str = "it comes about", limit_s: float = LIMIT_S) -> T:
    """Wait, by polling, until something that other threads or processes do is so; return what was reached."""
    end_s = time.monotonic() + limit_s
    while not (found := reached()):
        assert time.monotonic() < end_s, f"waited {limit_s:g} s in vain until {what}"
        time.sleep(0.005)
    return found


class Lateness:
    """
    Measures how late a thread of this process is that sleeps again and again.

    On a busy machine code is as late at least as this says: a bound of time has to be so much later.

    Attributes:
        total_s: of all times until now.
    """

    def __init__(self) -> None:
        self.total_s = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.set()
        self._thread.join()

    def _measure(self) -> None:
        pause_s = 0.02
        while not self._ends.is_set():
            begun_s = time.monotonic()
            self._ends.wait(pause_s)
            self.total_s += max(0.0, time.monotonic() - begun_s - pause_s)


def lives(pid: int | str) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
