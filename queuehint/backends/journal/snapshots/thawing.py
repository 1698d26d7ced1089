"""
An engine from the parts of a snapshot; the layout is that of `queuehint.backends.journal.snapshots.snapshot`.

How an object of a shape is filled is compiled, as `attrs` compiles what makes one: a million jobs are millions of rows.
Texts, paths and claims that are equal become one object, as they were when they were enqueued.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

from sortedcontainers import SortedDict, SortedSet

from queuehint.backends.journal.snapshots.snapshot import (
    CLAIM,
    CLASSES,
    CONTAINER,
    ENUMERATIONS,
    OMITTED,
    ONE_CLAIM,
    OTHER_BYTES,
    TEXT_BYTES,
    TUPLE,
)
from queuehint.core import state, xcom
from queuehint.core.engine import Engine
from queuehint.core.structures import indexes, timers
from queuehint.core.structures import record_index as catalog
from queuehint.errors import CorruptStateError
from queuehint.values.hint import Claim
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queuehint.core.engine import EngineOptions

_READ: Final = (
    "{0} if type({0}) is int else text({0}, {0}) if type({0}) is str"
    " else {0} if type({0}) is not list else made[{0}[0]] if {0}[0] >= 0 else item_of({0})"
)
"""What stands for an item of a row, as `_Thawer._item` says, without a call for most."""
_BAD: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, zlib.error)
"""What comes of parts that are no snapshot."""


def thaw(description: bytes, parts: Iterable[bytes], options: EngineOptions) -> Engine:
    """
    Return an engine that goes on where a frozen one was.

    Args:
        description: the last part that `freeze` has made.
        parts: the others, in their order; each is dropped before the next one is asked for.
        options: of which the epoch is not used: tokens go on.

    Raises:
        CorruptStateError: that is no engine.
    """
    try:
        return _Thawer(_unpack(description)).filled(parts, options)
    except _BAD as error:
        raise CorruptStateError(f"the snapshot cannot be read: {type(error).__name__}: {error}") from error


def _unpack(part: bytes) -> Any:
    return json.loads(zlib.decompress(part))


class _Thawer:
    """
    The objects of a snapshot, made but not filled.

    Args:
        said: the description: kinds, shapes, first items of rows by number, and a byte for each row, packed.
    """

    def __init__(self, said: list[Any]) -> None:
        kinds, self._shapes, heads, marks = said
        self._kinds: list[list[Any]] = kinds
        self._marks = zlib.decompress(b64decode(marks, validate=True))
        self._texts: dict[str, str] = {}
        self._tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._claims: dict[tuple[Any, ...], Any] = {}
        first_items = dict(heads)
        makers = [_MAKERS[name] if name in _MAKERS else _blank(_BY_NAME[name]) for name, *_ in kinds]
        self._made = [makers[kind](first_items.get(number)) for number, kind in enumerate(self._marks)]

    def filled(self, parts: Iterable[bytes], options: EngineOptions) -> Engine:
        made, marks, items_of = self._made, self._marks, self._items
        fillers = [self._filler(kind, fields) for kind, *fields in self._shapes]
        later: list[tuple[int, list[Any]]] = []
        number = 0
        for part in parts:
            for row in _unpack(part):
                shape = row[0]
                if shape >= 0:
                    fillers[shape](made[number], row)
                elif shape != CONTAINER:
                    raise ValueError(f"there is no shape {shape}")
                elif len(row) > 1:
                    # Once all else is filled: a dictionary asks its keys for their hashes.
                    later.append((number, items_of(row[1:])))
                number += 1
        if number != len(made):
            raise ValueError(f"{number} rows of {len(made)}")
        fill_of = [_FILLERS.get(name) for name, *_ in self._kinds]
        for number, items in later:
            fill = fill_of[marks[number]]
            if fill is None:
                raise ValueError(f"row {number} has items")
            fill(made[number], items)
        completed = {kind for kind, (name, *_) in enumerate(self._kinds) if name in _COMPLETED}
        return _complete(made[0], [made[at] for at, kind in enumerate(marks) if kind in completed], options)

    def _items(self, items: list[Any]) -> list[Any]:
        made, text, item_of = self._made, self._texts.setdefault, self._item
        return [
            each
            if type(each) is int
            else text(each, each)
            if type(each) is str
            else made[each[0]]
            if type(each) is list and each[0] >= 0
            else item_of(each)
            for each in items
        ]

    def _item(self, item: Any) -> Any:
        """Return what stands for an item of a row: an object, or a value."""
        of = type(item)
        if of is str:
            return self._texts.setdefault(item, item)
        if of is not list:
            return item
        mark = item[0]
        if mark >= 0:
            return self._made[mark]
        if mark == TEXT_BYTES:
            return item[1].encode()
        if mark in {CLAIM, ONE_CLAIM}:
            key = tuple(item)
            claim = self._claims.get(key)
            if claim is None:
                made = Claim(self._tuple(item[2:]), self._item(item[1]))
                claim = self._claims[key] = made if mark == CLAIM else (made,)
            return claim
        if mark == TUPLE:
            return self._tuple(item[1:])
        if mark == OTHER_BYTES:
            return b64decode(item[1], validate=True)
        raise ValueError(f"there is no mark {mark}")

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        """Return a tuple; a path is one object with those that are equal."""
        made = tuple(self._items(items))
        return self._tuples.setdefault(made, made) if {*map(type, made)} == {str} else made

    def _filler(self, kind: int, fields: list[int]) -> Callable[[Any, list[Any]], None]:
        name, all_fields, first = self._kinds[kind]
        names = {"made": self._made, "text": self._texts.setdefault, "item_of": self._item}
        return _compiled(_BY_NAME[name], all_fields, [*map(self._item, first)], fields, names)


def _compiled(
    cls: type[Any], fields: list[str], first: list[Any], of_row: list[int], names: dict[str, Any]
) -> Callable[[Any, list[Any]], None]:
    """
    Compile what fills an object.

    Args:
        first: the values of the fields that no row has.
        of_row: the places of the fields that a row has.
        names: what reads an item of a row.
    """
    slots = {name for base in cls.__mro__ for name in base.__dict__.get("__slots__", ())}
    if slots and slots - {"__weakref__"} - OMITTED.get(cls, frozenset()) != set(fields):
        raise CorruptStateError(f"the snapshot has other fields of {cls.__name__} than this release")
    lines = [f"_, {''.join(f'x{index}, ' for index in of_row)}= row"]
    for index, field in enumerate(fields):
        if index in of_row:
            value = _READ.format(f"x{index}")
        else:
            value = f"first{index}"
            names[value] = first[index]
        if slots:
            names[f"set{index}"] = getattr(cls, field).__set__
            lines.append(f"set{index}(value, {value})")
        else:
            lines.append(f"value.__dict__[{field!r}] = {value}")
    source = "\n    ".join(["def fill(value, row):", *lines])
    exec(compile(source, f"<queuehint {cls.__name__} of a snapshot>", "exec"), names)  # noqa: S102 - of classes of ours
    filler: Callable[[Any, list[Any]], None] = names["fill"]
    return filler


def _blank(cls: type[Any]) -> Callable[[Any], Any]:
    new: Any = cls.__new__
    return lambda _: new(cls)


def _pairs(target: Any, items: list[Any]) -> None:
    target.update(zip(items[::2], items[1::2], strict=True))


_BY_NAME: Final = {cls.__name__: cls for cls in CLASSES}
_MAKERS: Final[dict[str, Callable[[Any], Any]]] = {
    "OrderedDict": lambda _: OrderedDict(),
    "SortedDict": lambda _: SortedDict(),
    "SortedSet": lambda _: SortedSet(),
    "deque": lambda most: deque(maxlen=most),
    "dict": lambda _: {},
    "list": lambda _: [],
    "set": lambda _: set(),
    **{each.__name__: each for each in ENUMERATIONS},
}
_FILLERS: Final[dict[str, Callable[[Any, list[Any]], None]]] = {
    "OrderedDict": _pairs,
    "SortedDict": _pairs,
    "SortedSet": lambda target, items: target.update(items),
    "deque": lambda target, items: target.extend(items),
    "dict": _pairs,
    "list": lambda target, items: target.extend(items),
    "set": lambda target, items: target.update(items),
}
_COMPLETED: Final = frozenset({"Block", "PathIndex", "Timers", "SharedStore"})
"""Classes with fields that are derived."""


def _complete(whole: Any, others: list[Any], options: EngineOptions) -> Engine:
    """Recompute the derived fields."""
    if type(whole) is not state.State:
        raise TypeError("its first row is not the state of an engine")
    whole.options, whole.aside = options, []
    whole.table.retention = options.retention or Retention()
    whole.table.ready.filled = set()
    for value in others:
        if type(value) is catalog.Block:
            value.terms, value.states = {}, None
        elif type(value) is indexes.PathIndex:
            value._order, value._changes = None, 0  # noqa: SLF001 - a snapshot is of all there is
        elif type(value) is timers.Timers:
            value._first_ms, value._is_exact = 0, False  # noqa: SLF001
        elif type(value) is xcom.SharedStore:
            value._order = None  # noqa: SLF001
    return Engine(state=whole)
