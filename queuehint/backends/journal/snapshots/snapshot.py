"""
Snapshots: which objects are in the whole state of an engine, and how they are written down.

Theory of operation. An engine is a graph of objects: jobs, gates, walks, heaps, leftovers half done, with references
to one another, often in cycles. Its behaviour follows from this graph alone, down to the order of dictionaries. So the
graph itself is written, object by object: a snapshot taken between any two operations, in the middle of a sweep too,
is exact, and no rule is written twice. `freezing` writes it, `thawing` reads it.

- Every object but those below is a *row*. A field or an item that refers to a row is its number in a list of one. A
  shared object is one row, and is shared again.
- Values stand where they are used: numbers, texts, True, False and None as they are; bytes, tuples and claims as a list
  that begins with one of the marks below. Equal ones are one object when they are read again, as most of them were.
- Of an object of a class a row has what differs from the first of its class, behind the number of its *shape*: which
  class it is of, and which of its fields follow. A row of any other kind, `CONTAINER`, has all its items.
- The classes are a closed table. Nothing is imported because a file named it, and no code runs but `__new__`.
- Rows are JSON, packed in parts of some thousand. The last part is the *description*: the kinds with the first object
  of each, the shapes, and one byte for each row, its kind. It is read first: all objects are made before the first row
  is read, and each part is dropped before the next one, so that reading takes little more memory than the engine.
- Derived data is left out: dead entries of heaps, bits of blocks, what is of one operation, and the engine's options.

`SCHEMA` is the number of this layout. A test holds a fingerprint of the fields of all these classes: a change of one
needs a new number, and a file of another number is refused before anything is read.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import attrs

from queuehint.core import meters, state, xcom
from queuehint.core import schedules as timetable
from queuehint.core.jobs import lifecycle, pauses, priority, table
from queuehint.core.structures import edges as dependencies
from queuehint.core.structures import event_log as journal
from queuehint.core.structures import heap, indexes, job, leftovers, limits, registry, timers, trie
from queuehint.core.structures import ready_queue as dispatch
from queuehint.core.structures import record_index as catalog
from queuehint.values.event import Event, EventKind
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import JobError, Progress
from queuehint.values.policy import Backoff, Policy
from queuehint.values.record import Attempt, JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import WorkerInfo
from queuehint.values.schedule import Recurrence, Schedule
from queuehint.values.spec import Dependency, JobSpec, Priority

SCHEMA: Final = 16

CONTAINER: Final = -1
"""The shape of rows that have all their items."""
TEXT_BYTES, OTHER_BYTES, TUPLE, CLAIM, ONE_CLAIM = -1, -2, -3, -4, -5
"""Marks of values: bytes that are UTF-8 and others, tuples, claims, and the tuple of one claim that most jobs have."""

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
    meters.Meter,
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
    state.State: frozenset({"aside", "options"}),
    JobSpec: frozenset({"_is_checked"}),
    indexes.PathIndex: frozenset({"_order", "_changes"}),
    table.JobTable: frozenset({"retention"}),
    timers.Timers: frozenset({"_first_ms", "_is_exact"}),
    xcom.SharedStore: frozenset({"_order"}),
}
"""Derived fields, which are recomputed."""

LEAVES: Final = frozenset({int, str, bool, float, type(None)})
HEAPS: Final = frozenset({heap.LazyHeap, dispatch.Ranked, dispatch._User})  # noqa: SLF001
HEADED: Final = frozenset({deque, *ENUMERATIONS})
"""Classes whose objects cannot be made without their first item."""


def fields_of(cls: type[Any], example: Any = None) -> tuple[str, ...]:
    """Return the fields of a class that are written; of one without slots those of an example."""
    omitted = OMITTED.get(cls, frozenset())
    if attrs.has(cls):
        return tuple([field.name for field in attrs.fields(cls)])
    slots = [name for base in reversed(cls.__mro__) for name in base.__dict__.get("__slots__", ())]
    names = slots or (() if example is None else vars(example))
    return tuple([name for name in names if name not in omitted])
