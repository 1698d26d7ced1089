"""Shared by tests: values that lie or raise, how many examples a test tries, polling, and whether a process runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


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


def until_sync(reached: Callable[[], T], what: str = "it comes about", limit_s: float = 30.0) -> T:
    """Wait, by polling, until something that other threads or processes do is so; return what was reached."""
    end_s = time.monotonic() + limit_s
    while not (found := reached()):
        assert time.monotonic() < end_s, f"waited {limit_s:g} s in vain until {what}"
        time.sleep(0.005)
    return found


def lives(pid: int | str) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
