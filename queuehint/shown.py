"""Show any value on one printable line of at most 80 characters, for error messages."""

from __future__ import annotations

import re
from collections import deque
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from types import BuiltinFunctionType, EllipsisType, FunctionType, NoneType, NotImplementedType
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VALUE_LENGTH_MAX = 80
_SHOWN = slice(VALUE_LENGTH_MAX + 1)
_BITS_MAX = 10_000
"""Longer ints are not written in full: far more digits than are shown, and below Python's limit for conversions."""
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})
_VIEWS: tuple[type[Any], ...] = (type({}.keys()), type({}.values()), type({}.items()))
_SHORT: set[type[Any]] = {
    NoneType, EllipsisType, NotImplementedType, complex, date, time, timedelta, timezone
}  # fmt: skip
"""Classes whose ``__repr__`` is short whatever the value holds."""
_TIME_ZONES = frozenset({NoneType, timezone, ZoneInfo})
_FUNCTIONS = frozenset({FunctionType, BuiltinFunctionType})

# Control characters move the cursor and more, bidi controls and line separators spoof what is displayed, lone
# surrogates cannot be printed.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

Class = TypeVar("Class", bound=type[Any])


def shows_itself(kind: Class) -> Class:
    """Declare the ``__repr__`` of a class of ours short: a checked name."""
    _SHORT.add(kind)
    return kind


def shown(value: object) -> str:
    """
    Return ``repr(value)`` on one printable line, cut at 80 characters.

    Only what is known to be short is asked for its ``__repr__``: numbers, times and names. Texts and the containers of
    Python are written here, item by item, and so are subclasses of both; a value of any other class is named by it.

    >>> shown(["doc1", 5, object()])
    "['doc1', 5, <object>]"

    Complexity: that of what is shown, whatever the size of the value.
    """
    text = ""
    try:
        for part in _parts(value):
            text += part[: VALUE_LENGTH_MAX + 1]
            if len(text) > VALUE_LENGTH_MAX:
                break
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a hostile value must not replace the error being reported
        text = f"<{type(value).__name__}>"
    return clipped(text)


def clipped(text: str) -> str:
    """
    Return text on one printable line, cut at 80 characters.

    >>> clipped("ab" * 50)[-4:]
    'aba…'
    """
    text = printable(text[: VALUE_LENGTH_MAX + 1])
    return text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 1] + "…"


def printable(text: str) -> str:
    r"""
    Return text on one line, with unprintable characters as their codes.

    >>> print(printable("a\x1b[31m\nb\u202e"))
    a\x1b[31m\nb\u202e
    """
    if text.isprintable():
        return text
    return "".join([sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text])


def plain(text: str) -> str:
    r"""
    Return a text without characters that a terminal or a page would interpret, or that would begin another line.

    >>> print(plain("a\x1b[31mb\n\u202e"))
    a\x1b[31mb\n\u202e
    """
    return _OBEYED.sub(_code, text)


def plain_lines(text: str) -> list[str]:
    """Return the lines of a text, each `plain`, with tabs as blanks."""
    return [plain(line.replace("\t", "    ")) for line in text.split("\n")]


def _code(match: re.Match[str]) -> str:
    sign = match[0]
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(sign)
    return named or (f"\\x{ord(sign):02x}" if ord(sign) < 256 else f"\\u{ord(sign):04x}")


def _parts(value: Any) -> Iterator[str]:
    """Yield the repr of a value piece by piece, so that a caller may stop early."""
    kind: Any = type(value)
    name = "" if kind in _CONTAINERS else kind.__name__
    # By the methods of the known classes: a subclass may override them.
    if isinstance(value, str):
        yield repr(str.__getitem__(value, _SHOWN))
    elif isinstance(value, bytes):
        yield repr(bytes.__getitem__(value, _SHOWN))
    elif isinstance(value, bytearray):
        yield repr(bytearray.__getitem__(value, _SHOWN))
    elif kind is bool or kind in _SHORT:
        yield repr(value)
    elif isinstance(value, Enum):
        yield f"{kind.__name__}.{value._name_}"
    elif isinstance(value, int):
        yield int.__repr__(value) if int.bit_length(value) <= _BITS_MAX else f"<{kind.__name__}>"
    elif isinstance(value, float):
        yield float.__repr__(value)
    elif isinstance(value, dict):
        yield from _items(dict.items(value), f"{name}({{" if name else "{", "})" if name else "}", are_pairs=True)
    elif isinstance(value, list):
        yield from _items(list.__iter__(value), f"{name}([" if name else "[", "])" if name else "]")
    elif isinstance(value, tuple):
        end = ",)" if tuple.__len__(value) == 1 else ")"
        yield from _items(tuple.__iter__(value), f"{name}((" if name else "(", f"{end})" if name else end)
    elif isinstance(value, (set, frozenset)):
        is_plain = kind is set and bool(value)
        items = iter(set.__iter__(value) if isinstance(value, set) else frozenset.__iter__(value))
        yield from _items(items, "{" if is_plain else f"{kind.__name__}({{", "}" if is_plain else "})")
    elif isinstance(value, deque):
        yield from _items(deque.__iter__(value), f"{kind.__name__}([", "])")
    elif isinstance(value, _VIEWS):
        yield from _items(iter(value), f"{kind.__name__}([", "])")
    elif kind is range:
        steps = () if value.step == 1 else (value.step,)
        yield from _items((value.start, value.stop, *steps), "range(", ")")
    elif kind is datetime:
        yield repr(value) if type(value.tzinfo) in _TIME_ZONES else f"<{kind.__name__}>"
    elif isinstance(value, type):
        yield type.__repr__(value)
    elif kind in _FUNCTIONS:
        yield f"<function {value.__qualname__}>"
    else:
        yield f"<{kind.__name__}>"


def _items(items: Iterable[Any], begin: str, end: str, *, are_pairs: bool = False) -> Iterator[str]:
    yield begin
    is_first = True
    for item in items:
        if not is_first:
            yield ", "
        is_first = False
        if are_pairs:
            key, item = item
            yield from _parts(key)
            yield ": "
        yield from _parts(item)
    yield end
