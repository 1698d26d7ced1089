"""
Recovery: load the snapshot of a file and apply the operations of its journal again.

The engine is deterministic within one release. A file that was closed has a snapshot, which every release that knows
its layout reads. A file that was not closed, opened by another release, is replayed by the newer rules: no job is lost
and no order broken, but details may differ from the answers given then. A warning reports it, and a snapshot is made at
once, so that a third release does not replay the same operations again.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.backends.base import release
from queuehint.backends.journal.snapshot import SCHEMA
from queuehint.backends.journal.thawing import thaw
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.jobs.settled import place_anew
from queuehint.errors import BackendDeniedError, CorruptStateError, QueueHintError
from queuehint.operations.wire import Await, Begin, Extend, PlaceAnew, decode
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.backends.sqlite.file import JournalFile
    from queuehint.operations import Operation

logger = logging.getLogger("queuehint.sqlite")


@attrs.frozen(kw_only=True)
class Recovered:
    """An engine as a file says, and how much was read of the file."""

    engine: Engine
    is_of_others: bool
    """Another release wrote some of the journal."""
    snapshot_bytes: int
    snapshot_number: int
    """Up to where the journal was when the snapshot was made."""
    journaled_bytes: int


def recover(file: JournalFile, options: EngineOptions) -> Recovered:
    """
    Return the engine that the snapshot and the journal make.

    Raises:
        BackendDeniedError: the snapshot has another layout.
        CorruptStateError: the file is damaged.
    """
    snapshot_bytes = journaled_bytes = 0
    header = file.header
    if header is None:
        engine = Engine(attrs.evolve(options, retention=None))
    elif header.layout != SCHEMA:
        raise BackendDeniedError(
            f"{file.path} has a snapshot of layout {header.layout}, and this release of queuehint reads {SCHEMA}: "
            f"have release {header.release} finish its jobs, or go on with that one"
        )
    else:
        begin = decode(header.options.encode())
        if not isinstance(begin, Begin):
            raise CorruptStateError(f"{file.path} is damaged: its snapshot has no options")
        description, snapshot_bytes = file.description()
        engine = thaw(description, file.parts(), attrs.evolve(options, retention=begin.kept(), budget=begin.budget))
    releases = set()
    for at_ms, data in file.rows():
        operation = decode(data)
        journaled_bytes += len(data)
        if isinstance(operation, Begin):
            releases.add(operation.release)
        _replay(file, engine, operation, at_ms)
    is_of_others = bool(releases - {release()})
    if is_of_others:
        extra = {"event": "sqlite.other_release", "path": str(file.path), "releases": sorted(releases)}
        logger.warning("a journal of another release was replayed", extra=extra)
    return Recovered(
        engine=engine,
        is_of_others=is_of_others,
        snapshot_bytes=snapshot_bytes,
        snapshot_number=0 if header is None else header.number,
        journaled_bytes=journaled_bytes,
    )


def _replay(file: JournalFile, engine: Engine, operation: Operation[Any], at_ms: int) -> None:
    """Apply the journaled operations again."""
    try:
        if isinstance(operation, Begin):
            begin_engine(engine, operation, at_ms)
        elif isinstance(operation, Extend):
            engine.extend(operation.leases, operation.lease_ms, at_ms)
        elif isinstance(operation, Await):
            engine.await_ends(operation.job_ids)
        elif isinstance(operation, PlaceAnew):
            place_anew(engine.table)
        else:
            engine.apply(operation, at_ms)
    except QueueHintError:
        pass  # as it was then
    except Exception:
        extra = {"event": "sqlite.replay_failed", "path": str(file.path)}
        logger.exception("an operation failed again when it was replayed", extra=extra)
    engine.table.ready.filled.clear()


def begin_with(options: EngineOptions, epoch_s: int | None) -> Begin:
    """Return the options of a process that opens a file, as they are journaled."""
    return Begin.of(options.retention, epoch_s=epoch_s, budget=options.budget, release=release())


def begin_engine(engine: Engine, begin: Begin, at_ms: int) -> None:
    """Take the options of the process that opens the file; if that is another process, all leases end."""
    options = attrs.evolve(engine.state.options, retention=begin.kept(), budget=begin.budget)
    engine.state.options = options
    engine.table.retention = options.retention or Retention()
    if begin.epoch_s is not None:
        engine.begin_epoch(max(engine.token, begin.epoch_s << 32), 0)
        engine.end_leases(at_ms)


@contextmanager
def without_collector() -> Iterator[None]:
    """Make many objects of which none is garbage: looking for it would take half the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
