"""
Whether a value is read as it was written: equal, and of the same types all the way down.

Two differences are allowed, as JSON has one kind of arrays and of text: a tuple that is given for a list is read as a
list, and a subclass of str, int or float that is given for its base is read as the base.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

_BASES = (str, int, float)
_BY_TEXT = (datetime, time)
_BY_EQUALITY = frozenset({str, int, float, bool, type(None), bytes, UUID, date, timedelta})
"""Classes of which two values of the same type are the same if they are equal."""
_MISSING = object()


def difference(given: Any, read: Any, path: str = "") -> str | None:
    """
    Return the path at which a value differs from its original after reading. Return None without a difference.

    An object whose class neither tells its fields nor defines ``==`` is taken for the same.
    """
    if given is read:
        return None
    kind = type(read)
    if type(given) is not kind:
        if kind is list and type(given) is tuple:
            return _of_items(given, read, path)
        return None if kind in _BASES and isinstance(given, kind) and given == read else path
    if kind in _BY_EQUALITY:
        return None if given == read else path
    if isinstance(read, Enum):
        return path
    if isinstance(read, _BY_TEXT):
        # Two zones with the same offset are not equal where the clock is set back.
        return None if given.isoformat() == read.isoformat() else path
    if isinstance(read, Decimal):
        return None if str(given) == str(read) else path
    if isinstance(read, Mapping):
        return _of_mapping(given, read, path)
    if isinstance(read, (list, tuple, deque)):
        if getattr(given, "maxlen", None) != getattr(read, "maxlen", None):
            return path
        return _of_items(given, read, path)
    if isinstance(read, (set, frozenset)):
        return None if given == read and Counter(map(type, given)) == Counter(map(type, read)) else path
    names = _names(kind, given)
    if names is None:
        return None if not _compares(kind) or _is_equal(given, read) else path
    found = _of_attributes(given, read, names, path)
    # A class may say itself what is equal.
    return None if found is None or (_says_equal(kind) and _is_equal(given, read)) else found


def _of_items(given: Iterable[Any], read: Iterable[Any], path: str) -> str | None:
    given, read = list(given), list(read)
    if len(given) != len(read):
        return path
    for index, (one, other) in enumerate(zip(given, read, strict=True)):
        found = difference(one, other)
        if found is not None:
            return f"{path}[{index}]{found}"
    return None


def _of_mapping(given: Mapping[Any, Any], read: Mapping[Any, Any], path: str) -> str | None:
    if len(given) != len(read):
        return path
    # JSON keeps the order.
    for (key, one), (other_key, other) in zip(given.items(), read.items(), strict=True):
        found = "" if difference(key, other_key) is not None else difference(one, other)
        if found is not None:
            return f"{path}{step_to(key)}{found}"
    return None


def step_to(key: Any) -> str:
    """Return the path of an item by its key. A key that is no name is hidden, as it may be a secret value."""
    return f".{key}" if isinstance(key, str) and len(key) <= 80 and key.isidentifier() else "[…]"


def _names(kind: Any, given: Any) -> tuple[str, ...] | None:
    """Return the names of the attributes that a class compares. Return None if they are unknown."""
    names = _fields(kind)
    if names is not None and hasattr(kind, "model_config"):
        for each in ("__pydantic_extra__", "__pydantic_private__"):
            names = (*names, *(getattr(given, each, None) or ()))
    return names


@lru_cache(1024)
def _fields(kind: Any) -> tuple[str, ...] | None:
    if hasattr(kind, "model_config") and isinstance(fields := getattr(kind, "model_fields", None), dict):
        return tuple(fields)
    if attrs.has(kind):
        return tuple([field.name for field in attrs.fields(kind) if field.eq])
    if dataclasses.is_dataclass(kind):
        return tuple([field.name for field in dataclasses.fields(kind) if field.compare])
    return None


def _of_attributes(given: Any, read: Any, names: Iterable[str], path: str) -> str | None:
    for name in names:
        found = difference(getattr(given, name, _MISSING), getattr(read, name, _MISSING))
        if found is not None:
            return f"{path}.{name}{found}"
    return None


def _compares(kind: Any) -> bool:
    return kind.__eq__ is not object.__eq__


def _says_equal(kind: Any) -> bool:
    """Return whether a class defines its own ``==``, not generated from its fields."""
    if attrs.has(kind) and any(field.eq_key is not None for field in attrs.fields(kind)):
        return True
    if not _compares(kind) or kind.__eq__.__module__ == "pydantic.main":
        return False
    code = getattr(kind.__eq__, "__code__", None)
    return code is not None and not code.co_filename.startswith("<")


def _is_equal(given: Any, read: Any) -> bool:
    try:
        return bool(given == read)
    except Exception:  # noqa: BLE001 - a class of the application's may compare to anything
        return True
