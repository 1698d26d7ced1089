"""Decode replies of the doctor's scripts, and texts of the store that need not be UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def text_of(value: bytes) -> str:
    """Decode text of the store so that `bytes_of` restores it, even from invalid UTF-8."""
    return value.decode("utf-8", "surrogateescape")


def bytes_of(value: str) -> bytes:
    """Return the bytes of such a text."""
    return value.encode("utf-8", "surrogateescape")


def by_name(reply: Sequence[Any]) -> dict[str, Any]:
    """Return the parts of a reply by their names."""
    return {text_of(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def numbers_of(flat: Sequence[bytes]) -> dict[str, int]:
    """Return numbers by name."""
    return {text_of(name): int(number) for name, number in zip(flat[::2], flat[1::2], strict=True)}


def texts_of(flat: Sequence[bytes]) -> dict[str, str]:
    """Return texts by name."""
    return {text_of(name): text_of(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def problems_in(flat: Sequence[bytes]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the problems found by a script: kind, key, item, job and the actual value."""
    for at in range(0, len(flat), 5):
        kind, name, item, about, found = [text_of(part) for part in flat[at : at + 5]]
        yield kind, name, item, about, found


def batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield the items in parts of at most that size."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def waits_of(said: dict[str, Any]) -> dict[str, list[str]]:
    """Return the waits between jobs, as their heads list them."""
    return {job_id: others.split("\n") for job_id, others in texts_of(said["waits"]).items()}
