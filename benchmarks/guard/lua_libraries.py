"""
The libraries that Redis gives its scripts, for scripts that run in this process: ``cmsgpack``, ``struct`` and ``bit``.

Their results are the same as in Redis. Calls of them count as no instructions, as those of C functions do.
"""

from __future__ import annotations

import re
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WORD: Final = 0xFFFFFFFF
_ENDS: Final = {"little": "<", "big": ">"}
_SIZES: Final = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "l": 8, "L": 8, "T": 8}
"""Sizes of the integers of `struct` where a format names none."""


class MessagePack:
    """
    ``cmsgpack``: values to bytes and back.

    Args:
        make_table: makes a Lua table of a list or a dictionary.
        is_table: whether a value is a Lua table.
    """

    def __init__(self, make_table: Callable[[Any], Any], is_table: Callable[[Any], bool]) -> None:
        self._make_table = make_table
        self._is_table = is_table

    def pack(self, *values: Any) -> bytes:
        return b"".join(map(self._packed, values))

    def unpack(self, data: bytes) -> Any:
        at, values = 0, []
        while at < len(data):
            value, at = self._unpacked(data, at)
            values.append(value)
        return values[0] if len(values) == 1 else tuple(values)

    def _packed(self, value: Any) -> bytes:
        if value is None:
            return b"\xc0"
        if isinstance(value, bool):
            return b"\xc3" if value else b"\xc2"
        if isinstance(value, bytes):
            return (
                _head(len(value), ((31, 0xA0, ""), (0xFF, 0xD9, "B"), (0xFFFF, 0xDA, "H"), (_WORD, 0xDB, "I"))) + value
            )
        if isinstance(value, (int, float)):
            return _packed_number(value)
        assert self._is_table(value), type(value)
        items = dict(value.items())
        if all(type(key) is int and key > 0 for key in items) and max(items, default=0) == len(items):
            head = _head(len(items), ((15, 0x90, ""), (0xFFFF, 0xDC, "H"), (_WORD, 0xDD, "I")))
            return head + b"".join(self._packed(items[key]) for key in sorted(items))
        head = _head(len(items), ((15, 0x80, ""), (0xFFFF, 0xDE, "H"), (_WORD, 0xDF, "I")))
        return head + b"".join(self._packed(part) for item in items.items() for part in item)

    def _unpacked(self, data: bytes, at: int) -> tuple[Any, int]:
        kind, at = data[at], at + 1
        if kind <= 0x7F or kind >= 0xE0:
            return kind if kind <= 0x7F else kind - 256, at
        if kind in _CONSTANTS:
            return _CONSTANTS[kind], at
        if kind in _NUMBERS:
            form = _NUMBERS[kind]
            return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
        if kind <= 0xBF:
            size, kind = (kind & 31, 0xA0) if kind >= 0xA0 else (kind & 15, kind & 0xF0)
        else:
            form = _LENGTHS[kind]
            size, at = struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
        if kind in {0xA0, 0xD9, 0xDA, 0xDB}:
            return data[at : at + size], at + size
        is_map = kind in {0x80, 0xDE, 0xDF}
        parts = []
        for _ in range(size * (2 if is_map else 1)):
            part, at = self._unpacked(data, at)
            parts.append(part)
        return self._make_table(dict(zip(parts[::2], parts[1::2], strict=True)) if is_map else parts), at


_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS: Final = {
    0xCA: ">f", 0xCB: ">d",
    0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: "b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_LENGTHS: Final = {0xD9: "B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def _head(size: int, kinds: tuple[tuple[int, int, str], ...]) -> bytes:
    for most, kind, form in kinds:
        if size <= most:
            return struct.pack(f">B{form}", kind, size) if form else bytes((kind + size,))
    raise OverflowError(size)


def _packed_number(value: float) -> bytes:
    if value != int(value):
        is_short = struct.unpack(">f", struct.pack(">f", value))[0] == value
        return struct.pack(">Bf", 0xCA, value) if is_short else struct.pack(">Bd", 0xCB, value)
    value = int(value)
    if -32 <= value <= 0x7F:
        return struct.pack("b", value)
    forms = (
        ((0xFF, 0xCC, "B"), (0xFFFF, 0xCD, "H"), (_WORD, 0xCE, "I"), (1 << 64, 0xCF, "Q"))
        if value > 0
        else ((0x80, 0xD0, "b"), (0x8000, 0xD1, "h"), (1 << 31, 0xD2, "i"), (1 << 63, 0xD3, "q"))
    )
    kind, form = next((kind, form) for most, kind, form in forms if abs(value) <= most)
    return struct.pack(f">B{form}", kind, value)


# --- struct ----------------------------------------------------------------------------------------------------------


def struct_pack(form: bytes, *values: Any) -> bytes:
    found, rest = [], iter(values)
    for order, letter, size in _parts(form.decode()):
        if letter == "x":
            found.append(b"\0")
        elif letter == "s":
            found.append(next(rest) + b"\0")
        elif letter == "c":
            text = next(rest)
            found.append(text[: size or len(text)])
        elif letter in {"f", "d"}:
            found.append(struct.pack(_ENDS[order] + letter, next(rest)))
        else:
            found.append((int(next(rest)) & ((1 << 8 * size) - 1)).to_bytes(size, order))
    return b"".join(found)


def struct_unpack(form: bytes, data: bytes, first: int = 1) -> tuple[Any, ...]:
    values: list[Any] = []
    at = int(first) - 1
    for order, letter, known_size in _parts(form.decode()):
        size = known_size
        if letter == "s":
            size = data.index(b"\0", at) - at
            values.append(data[at : at + size])
            size += 1
        elif letter == "c":
            size = size or int(values.pop())
            values.append(data[at : at + size])
        elif letter in {"f", "d"}:
            values.append(struct.unpack_from(_ENDS[order] + letter, data, at)[0])
        elif letter != "x":
            values.append(int.from_bytes(data[at : at + size], order, signed=letter == "i"))
        at += size
    return (*values, at + 1)


def struct_size(form: bytes) -> int:
    return sum(size for _, _, size in _parts(form.decode()))


def _parts(form: str) -> Iterator[tuple[Literal["little", "big"], str, int]]:
    """Yield of each item its byte order, its letter (integers: ``i`` with a sign, else ``I``) and its size."""
    order: Literal["little", "big"] = sys.byteorder
    for letter, digits in re.findall(r"(\S)(\d*)", form):
        if letter in "<>":
            order = "little" if letter == "<" else "big"
        elif letter in _SIZES:
            yield order, "i" if letter.islower() else "I", int(digits or _SIZES[letter])
        elif letter in "xscfd":
            yield order, letter, int(digits) if digits else {"s": 0, "f": 4, "d": 8}.get(letter, 1)
        else:
            assert letter in "!=", f"struct: {letter}"


# --- bit -------------------------------------------------------------------------------------------------------------


def _signed(value: int) -> int:
    value &= _WORD
    return value - (1 << 32) if value >> 31 else value


def _folded(step: Callable[[int, int], int]) -> Callable[..., int]:
    def fold(*values: float) -> int:
        found = int(values[0]) & _WORD
        for value in values[1:]:
            found = step(found, int(value) & _WORD)
        return _signed(found)

    return fold


def _moved(step: Callable[[int, int], int]) -> Callable[[float, float], int]:
    return lambda value, by: _signed(step(int(value) & _WORD, int(by) & 31))


def _hex(value: float, digits: float = 8) -> bytes:
    text = f"{int(value) & _WORD:08x}"[-abs(int(digits)) :]
    return (text if digits > 0 else text.upper()).encode()


BIT: Final[dict[str, Callable[..., Any]]] = {
    "tobit": _folded(lambda one, _: one),
    "tohex": _hex,
    "bnot": lambda value: _signed(~int(value)),
    "band": _folded(lambda one, two: one & two),
    "bor": _folded(lambda one, two: one | two),
    "bxor": _folded(lambda one, two: one ^ two),
    "lshift": _moved(lambda value, by: value << by),
    "rshift": _moved(lambda value, by: value >> by),
    "arshift": _moved(lambda value, by: _signed(value) >> by),
    "rol": _moved(lambda value, by: value << by | value >> (32 - by)),
    "ror": _moved(lambda value, by: value >> by | value << (32 - by)),
    "bswap": lambda value: _signed(int.from_bytes((int(value) & _WORD).to_bytes(4, "little"), "big")),
}
