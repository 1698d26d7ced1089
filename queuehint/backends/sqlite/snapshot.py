"""
Snapshots: the whole state of an engine as bytes, and an engine restored from them.

Theory of operation. An engine is a graph of objects: jobs, gates, walks, heaps, leftovers half done, with references
to one another, often in cycles. Its behaviour follows from this graph alone, down to the order of dictionaries. So the
graph itself is written, object by object: a snapshot taken between any two operations, in the middle of a sweep too,
is exact, and no rule is written twice.

- Every object but a number, a text, True, False and None is a *row*: its kind, then its fields or items. A field that
  refers to another object holds the row's number in a list of one. A shared object is one row, and is shared again.
- The classes are a closed table. Nothing is imported because a file named it, and no code runs but `__new__`.
- Fields go by their names, which the file has once for each class, and rows are JSON, packed. Rows are *frozen* under
  the engine's lock and converted to text a few at a time: as lists, those of a large store would be more objects for
  the garbage collector than all else in the process, and each of its passes stops all threads. Packing is done without
  the lock.
- Derived data is left out: dead entries of heaps, bits of blocks, and the engine's options.

`SCHEMA` is the number of this layout. A test holds a fingerprint of the fields of all these classes: a change of one
needs a new number, and a file of another number is refused before anything is read.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import attrs
from sortedcontainers import SortedDict, SortedSet

from queuehint.core import engine, state, xcom
from queuehint.core import schedules as timetable
from queuehint.core.jobs import lifecycle, pauses, priority, table
from queuehint.core.structures import edges as dependencies
from queuehint.core.structures import event_log as journal
from queuehint.core.structures import heap, indexes, job, leftovers, limits, registry, timers, trie
from queuehint.core.structures import ready_queue as dispatch
from queuehint.core.structures import record_index as catalog
from queuehint.errors import CorruptStateError
from queuehint.values.event import Event, EventKind
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import JobError, Progress
from queuehint.values.policy import Backoff, Policy, Retention
from queuehint.values.record import Attempt, JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import WorkerInfo
from queuehint.values.schedule import Recurrence, Schedule
from queuehint.values.spec import Dependency, JobSpec, Priority

SCHEMA: Final = 11
ROWS_PER_PART: Final = 2_000
"""How many rows are made text in one step, in which no other thread runs; a few milliseconds."""

CLASSES: Final[tuple[type[Any], ...]] = (
    catalog.Block,
    catalog.Catalog,
    lifecycle.Lifecycle,
    dependencies.DependencySets,
    dispatch.Ranked,
    dispatch.ReadyQueue,
    dispatch._Pool,  # noqa: SLF001 - a snapshot is of all there is
    dispatch._User,  # noqa: SLF001
    state.State,
    indexes.FlowIndex,
    heap.LazyHeap,
    job.Job,
    job.JobExtras,
    journal.Journal,
    indexes.KeyIndex,
    table.JobTable,
    pauses.Pause,
    pauses.Pauses,
    limits.Bucket,
    limits.PlaceCounter,
    limits.Limits,
    limits.Limiter,
    indexes.LatePathIndex,
    indexes.PathIndex,
    priority.PriorityInheritance,
    registry.ActiveExecutions,
    leftovers.CancelFlowSweep,
    leftovers.CancelSweep,
    leftovers.CommitSweep,
    leftovers.DiscardSweep,
    leftovers.DropSweep,
    leftovers.ReleaseSweep,
    leftovers.ResolveSweep,
    leftovers.ReviveSweep,
    leftovers.UnparkSweep,
    timers.Timers,
    timetable.Timetable,
    trie.Node,
    trie.PathTrie,
    trie.Walk,
    xcom.SharedStore,
    Attempt,
    Backoff,
    Claim,
    Dependency,
    Event,
    JobError,
    JobSpec,
    Limit,
    Policy,
    Progress,
    RecordFilter,
    Recurrence,
    Schedule,
    WorkerInfo,
)
"""The classes of an engine's objects."""

ENUMERATIONS: Final = (EventKind, JobState, Priority, timers.TimerKind)

OMITTED: Final[dict[type[Any], frozenset[str]]] = {
    catalog.Block: frozenset({"terms", "states"}),
    dispatch.ReadyQueue: frozenset({"filled"}),
    state.State: frozenset({"options"}),
    JobSpec: frozenset({"_is_checked"}),
    indexes.PathIndex: frozenset({"_order", "_changes"}),
    table.JobTable: frozenset({"retention"}),
    timers.Timers: frozenset({"_first_ms", "_is_exact"}),
    xcom.SharedStore: frozenset({"_order"}),
}
"""Derived fields, which are recomputed."""

_LEAVES: Final = frozenset({int, str, bool, float, type(None)})
_OF_OTHERS: Final = (str, int)
"""Values of users may be of subclasses of these, such as members of a `StrEnum`."""
_HEAPS: Final = frozenset({heap.LazyHeap, dispatch.Ranked, dispatch._User})  # noqa: SLF001

Row = list[Any]


@attrs.frozen
class Frozen:
    """
    An engine's state.

    Args:
        kinds: the name and fields of each kind of row.
        parts: the rows, the engine's own first, as lists in JSON.
    """

    kinds: list[list[str]]
    parts: list[bytes] = attrs.field(repr=False)

    @property
    def rows(self) -> list[Row]:
        """All rows; for tests."""
        return [row for part in self.parts for row in json.loads(part)]


def fields_of(cls: type[Any], example: Any = None) -> tuple[str, ...]:
    """Return the fields of a class that are written; of one without slots those of an example."""
    omitted = OMITTED.get(cls, frozenset())
    if attrs.has(cls):
        return tuple([field.name for field in attrs.fields(cls)])
    slots = [name for base in reversed(cls.__mro__) for name in base.__dict__.get("__slots__", ())]
    names = slots or (() if example is None else vars(example))
    return tuple([name for name in names if name not in omitted])


# --- freezing --------------------------------------------------------------------------------------------------------


def _flat(items: Any) -> Iterator[Any]:
    for key, value in items.items():
        yield key
        yield value


def _text(value: bytes) -> tuple[str, bool]:
    try:
        return value.decode(), False
    except UnicodeDecodeError:
        return b64encode(value).decode(), True


def _plain(value: str | int) -> str | int:
    """Return a value without its class, as a journal has it, too: no file knows the classes of users."""
    return str.__str__(value) if isinstance(value, str) else int(value)


_Read = Callable[[Any], Iterable[Any]]

_PLAIN: Final[dict[type[Any], tuple[str, _Read]]] = {
    OrderedDict: ("OrderedDict", _flat),
    SortedDict: ("SortedDict", _flat),
    SortedSet: ("SortedSet", iter),
    bytes: ("bytes", _text),
    deque: ("deque", lambda value: (value.maxlen, *value)),
    dict: ("dict", _flat),
    list: ("list", iter),
    set: ("set", sorted),
    tuple: ("tuple", iter),
    **{each: (each.__name__, lambda value: (value.value,)) for each in ENUMERATIONS},
}


def freeze(whole: engine.Engine) -> Frozen:
    """
    Write down an engine between two operations.

    Raises:
        TypeError: it holds an object of a class that is not in the table.

    Complexity: O(all); 10 µs or so a job.
    """
    order: list[Any] = [whole.state]
    numbers: dict[int, int] = {id(whole.state): 0}
    kinds: list[list[str]] = []
    known: dict[type[Any], tuple[int, _Read]] = {}
    parts: list[bytes] = []
    rows: list[Row] = []
    leaves, find, rows_max = _LEAVES, numbers.get, ROWS_PER_PART
    for value in order:  # it grows as more is found
        cls = type(value)
        kind = known.get(cls)
        if kind is None:
            fields, read = _kind(cls, value)
            kind = known[cls] = len(kinds), read
            kinds.append(fields)
        if cls in _HEAPS:
            value.compact()
        row: Row = [kind[0]]
        for item in kind[1](value):
            if type(item) in leaves:
                row.append(item)
                continue
            number = find(id(item))
            if number is None:
                if isinstance(item, _OF_OTHERS) and not type(item).__module__.startswith("queuehint."):
                    row.append(_plain(item))
                    continue
                number = numbers[id(item)] = len(order)
                order.append(item)
            row.append([number])
        rows.append(row)
        if len(rows) == rows_max:
            parts.append(_dump(rows))
            rows.clear()
    if rows:
        parts.append(_dump(rows))
    return Frozen(kinds, parts)


def _kind(cls: type[Any], example: Any) -> tuple[list[str], _Read]:
    """Return the name and the fields of a kind of row, and how its items are read."""
    if cls in _PLAIN:
        name, read = _PLAIN[cls]
        return [name], read
    if cls not in CLASSES:
        raise TypeError(f"an engine is not known to hold a {cls.__qualname__}")
    fields = fields_of(cls, example)
    return [cls.__name__, *fields], attrgetter(*fields) if len(fields) > 1 else lambda value: (
        getattr(value, fields[0]),
    )


_encode: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _dump(rows: list[Any]) -> bytes:
    return _encode(rows).encode("ascii")


def pack(frozen: Frozen) -> Iterator[bytes]:
    """Yield a frozen engine in parts, to be kept in this order; the first tells what kinds of rows there are."""
    for part in (_dump(frozen.kinds), *frozen.parts):
        yield zlib.compress(part, 1)


# --- thawing ---------------------------------------------------------------------------------------------------------


def thaw(parts: Iterable[bytes], options: engine.EngineOptions) -> engine.Engine:
    """
    Return an engine that goes on where a frozen one was.

    Args:
        parts: as `pack` has made them.
        options: of which the epoch is not used: tokens go on.

    Raises:
        CorruptStateError: that is no engine.
    """
    try:
        kinds, *rows = [json.loads(zlib.decompress(part)) for part in parts]
        return _thaw(kinds, [row for some in rows for row in some], options)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, zlib.error) as error:
        raise CorruptStateError(f"the snapshot cannot be read: {type(error).__name__}: {error}") from error


_PENDING: Final = object()
_MAKERS: Final[dict[str, Callable[[Row], Any]]] = {
    "OrderedDict": lambda _row: OrderedDict(),
    "SortedDict": lambda _row: SortedDict(),
    "SortedSet": lambda _row: SortedSet(),
    "bytes": lambda row: b64decode(row[1], validate=True) if row[2] else row[1].encode(),
    "deque": lambda row: deque(maxlen=row[1]),
    "dict": lambda _row: {},
    "list": lambda _row: [],
    "set": lambda _row: set(),
    "tuple": lambda _row: _PENDING,
    **{each.__name__: lambda row, each=each: each(row[1]) for each in ENUMERATIONS},  # type: ignore[misc]
}


def _pairs(target: Any, items: list[Any]) -> None:
    target.update(zip(items[::2], items[1::2], strict=True))


_FILLERS: Final[dict[str, Callable[[Any, list[Any]], None]]] = {
    "OrderedDict": _pairs,
    "SortedDict": _pairs,
    "SortedSet": lambda target, items: target.update(items),
    "deque": lambda target, items: target.extend(items[1:]),
    "dict": _pairs,
    "list": lambda target, items: target.extend(items),
    "set": lambda target, items: target.update(items),
}
_BY_NAME: Final = {cls.__name__: cls for cls in CLASSES}


def _thaw(kinds: list[list[str]], rows: list[Row], options: engine.EngineOptions) -> engine.Engine:
    makers: list[Callable[[Row], Any]] = []
    for name, *_ in kinds:
        makers.append(_MAKERS[name] if name in _MAKERS else _blank(_BY_NAME[name]))
    made = [makers[row[0]](row) for row in rows]

    def found(item: Any) -> Any:
        if type(item) is not list:
            return item
        value = made[item[0]]
        if value is _PENDING:
            # Tuples may hold tuples, and cannot be changed once they are made; cycles go through other objects.
            value = made[item[0]] = tuple([found(each) for each in rows[item[0]][1:]])
        return value

    for number, value in enumerate(made):
        if value is _PENDING:
            found([number])
    # Objects before what holds them: a dictionary asks its keys for their hashes.
    setters = [_setters(_BY_NAME[name], fields) if name in _BY_NAME else None for name, *fields in kinds]
    for value, row in zip(made, rows, strict=True):
        of_kind = setters[row[0]]
        if of_kind is not None:
            for set_field, item in zip(of_kind, row[1:], strict=True):
                set_field(value, made[item[0]] if type(item) is list else item)
    fillers = [_FILLERS.get(name) for name, *_ in kinds]
    for value, row in zip(made, rows, strict=True):
        fill = fillers[row[0]]
        if fill is not None and len(row) > 1:
            fill(value, [made[item[0]] if type(item) is list else item for item in row[1:]])
    return _complete(made, options)


def _blank(cls: type[Any]) -> Callable[[Row], Any]:
    new: Any = cls.__new__
    return lambda _row: new(cls)


def _setters(cls: type[Any], fields: list[str]) -> Sequence[Callable[[Any, Any], None]]:
    """Return what sets each field of a class, also of a frozen one."""
    slots = {name for base in cls.__mro__ for name in base.__dict__.get("__slots__", ())}
    if not slots:
        return [_setter(name) for name in fields]
    if slots - {"__weakref__"} - OMITTED.get(cls, frozenset()) != set(fields):
        raise CorruptStateError(f"the snapshot has other fields of {cls.__name__} than this release")
    return [getattr(cls, name).__set__ for name in fields]


def _setter(name: str) -> Callable[[Any, Any], None]:
    return lambda value, item: value.__dict__.__setitem__(name, item)


def _complete(made: list[Any], options: engine.EngineOptions) -> engine.Engine:
    """Recompute the derived fields."""
    whole = made[0]
    if type(whole) is not state.State:
        raise TypeError("its first row is not the state of an engine")
    whole.options = options
    whole.table.retention = options.retention or Retention()
    whole.table.ready.filled = set()
    for value in made:
        if type(value) is catalog.Block:
            value.terms, value.states = {}, None
        elif type(value) is indexes.PathIndex:
            value._order, value._changes = None, 0  # noqa: SLF001 - as above
        elif type(value) is timers.Timers:
            value._first_ms, value._is_exact = 0, False  # noqa: SLF001
        elif type(value) is xcom.SharedStore:
            value._order = None  # noqa: SLF001
    return engine.Engine(state=whole)
