"""Hostile values, for tests of several rooms."""

from __future__ import annotations

import os
from typing import Any


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
