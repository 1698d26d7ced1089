"""The state of an engine as bytes; the layout is that of `queuehint.backends.journal.snapshots.snapshot`."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections import OrderedDict, deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import attrs
from sortedcontainers import SortedDict, SortedSet

from queuehint.backends.journal.snapshots.snapshot import (
    CLAIM,
    CLASSES,
    CONTAINER,
    ENUMERATIONS,
    HEADED,
    HEAPS,
    LEAVES,
    ONE_CLAIM,
    OTHER_BYTES,
    TEXT_BYTES,
    TUPLE,
    fields_of,
)
from queuehint.values.hint import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from queuehint.core.engine import Engine

ROWS_PER_PART: Final = 2_000
"""How many rows are made text in one step, in which no other thread runs; a few milliseconds."""
_OF_OTHERS: Final = (str, int)
"""Values of users may be of subclasses of these, such as members of a `StrEnum`."""
_VALUES: Final = frozenset({bytes, tuple, Claim})

_encode: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def freeze(whole: Engine) -> Iterator[bytes]:
    """
    Yield an engine in parts, to be kept in this order; it must not change until the last one has come.

    Raises:
        TypeError: it holds an object of a class that is not in the table.

    Complexity: O(all); 20 µs or so a job.
    """
    return _Freezer(whole).parts()


@attrs.frozen
class _Kind:
    """
    A kind of row.

    Args:
        number: its place in the description.
        read: returns the values of the fields of an object, or the items of a container.
        first: the values of the first object of a class; None for a container.
    """

    number: int
    read: Callable[[Any], Iterable[Any]]
    first: tuple[Any, ...] | None


class _Freezer:
    def __init__(self, whole: Engine) -> None:
        self._order: list[Any] = [whole.state]
        self._numbers: dict[int, int] = {id(whole.state): 0}
        self._kinds: dict[type[Any], _Kind] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._marks = bytearray()
        self._heads: list[tuple[int, Any]] = []
        self._said: list[list[Any]] = []

    def parts(self) -> Iterator[bytes]:
        rows: list[list[Any]] = []
        for value in self._order:  # it grows as more is found
            rows.append(self._row(value))
            if len(rows) >= ROWS_PER_PART:
                yield _pack(rows)
                rows.clear()
        if rows:
            yield _pack(rows)
        yield _pack([self._said, list(self._shapes), self._heads, b64encode(zlib.compress(self._marks, 1)).decode()])

    def _row(self, value: Any) -> list[Any]:
        cls, leaves, write = type(value), LEAVES, self._written
        if cls in HEAPS:
            value.compact()
        kind = self._kinds.get(cls) or self._new_kind(cls, value)
        if kind.first is None:
            items = [each if type(each) in leaves else write(each) for each in kind.read(value)]
            if cls in HEADED:
                self._heads.append((len(self._marks), items.pop(0)))
            self._marks.append(kind.number)
            return [CONTAINER, *items]
        self._marks.append(kind.number)
        shape, row = [kind.number], [0]
        for index, (item, usual) in enumerate(zip(kind.read(value), kind.first, strict=True)):
            of = type(item)
            if item is usual or (of is type(usual) and (of in leaves or of in _VALUES) and item == usual):
                continue
            shape.append(index)
            row.append(item if of in leaves else write(item))
        row[0] = self._shapes.setdefault(tuple(shape), len(self._shapes))
        return row

    def _new_kind(self, cls: type[Any], example: Any) -> _Kind:
        number = len(self._said)
        if cls in _CONTAINERS:
            name, read = _CONTAINERS[cls]
            kind = _Kind(number, read, None)
            self._said.append([name])
        elif cls in CLASSES:
            fields = fields_of(cls, example)
            read = attrgetter(*fields) if len(fields) > 1 else lambda value: (getattr(value, fields[0]),)
            kind = _Kind(number, read, tuple(read(example)))
            said: list[Any] = [cls.__name__, [*fields], []]
            self._said.append(said)
            said[2] += [self._written(item) for item in kind.first or ()]
        else:
            raise TypeError(f"an engine is not known to hold a {cls.__qualname__}")
        self._kinds[cls] = kind
        return kind

    def _written(self, item: Any) -> Any:
        """Return what stands for an item in a row."""
        cls = type(item)
        if cls in LEAVES:
            return item
        if cls in _VALUES:
            return self._value(cls, item)
        number = self._numbers.get(id(item))
        if number is None:
            if isinstance(item, _OF_OTHERS) and not cls.__module__.startswith("queuehint."):
                # As a journal has it, too: no file knows the classes of users.
                return str.__str__(item) if isinstance(item, str) else int(item)
            number = self._numbers[id(item)] = len(self._order)
            self._order.append(item)
        return [number]

    def _value(self, cls: type[Any], item: Any) -> list[Any]:
        write = self._written
        if cls is bytes:
            try:
                return [TEXT_BYTES, item.decode()]
            except UnicodeDecodeError:
                return [OTHER_BYTES, b64encode(item).decode()]
        if cls is Claim:
            return [CLAIM, write(item.mode), *map(write, item.path)]
        if len(item) == 1 and type(item[0]) is Claim:
            return [ONE_CLAIM, *self._value(Claim, item[0])[1:]]
        return [TUPLE, *map(write, item)]


def _pack(rows: list[Any]) -> bytes:
    return zlib.compress(_encode(rows).encode("ascii"), 1)


def _flat(items: Any) -> Iterator[Any]:
    for key, value in items.items():
        yield key
        yield value


_CONTAINERS: Final[dict[type[Any], tuple[str, Callable[[Any], Iterable[Any]]]]] = {
    OrderedDict: ("OrderedDict", _flat),
    SortedDict: ("SortedDict", _flat),
    SortedSet: ("SortedSet", iter),
    deque: ("deque", lambda value: (value.maxlen, *value)),
    dict: ("dict", _flat),
    list: ("list", iter),
    set: ("set", sorted),
    **{each: (each.__name__, lambda value: (value.value,)) for each in ENUMERATIONS},
}
