"""What several rooms of tests share: hostile values."""

from __future__ import annotations

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
