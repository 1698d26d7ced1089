"""Python source of values, without default fields, to be pasted into a test."""

from __future__ import annotations

from enum import Enum
from typing import Any

import attrs

__all__ = ["as_code"]


def as_code(value: Any) -> str:
    """
    Return an expression that evaluates to an equal value, without fields at their defaults.

    >>> from queuehint.values.hint import Claim
    >>> from queuehint.operations import Enqueue
    >>> from queuehint.values.spec import JobSpec
    >>> print(as_code(Enqueue((JobSpec(id="1", task="t", claims=(Claim(("a", "b")),)),))))
    Enqueue((JobSpec(id='1', task='t', claims=(Claim(('a', 'b')),)),))
    """
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if attrs.has(type(value)):
        return _attrs_as_code(value)
    if isinstance(value, (tuple, list)):
        items = ", ".join(as_code(item) for item in value)
        if isinstance(value, list):
            return f"[{items}]"
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_code(key)}: {as_code(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _attrs_as_code(value: Any) -> str:
    parts, skipped = [], False
    for field in attrs.fields(type(value)):
        if not field.init:
            continue
        item = getattr(value, field.name)
        if item == _default_of(field):
            skipped = True
        elif skipped or field.kw_only:
            parts.append(f"{field.alias}={as_code(item)}")
        else:
            parts.append(as_code(item))
    return f"{type(value).__name__}({', '.join(parts)})"


def _default_of(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    return default.factory() if hasattr(default, "factory") else default
