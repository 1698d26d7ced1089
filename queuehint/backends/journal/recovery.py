"""
Recovery: load the snapshot of a journal and apply the operations after it again.

The engine is deterministic within one release. A journal that was closed has a snapshot, which every release that knows
its layout reads. One that was not closed, opened by another release, is replayed by the newer rules: no job is lost
and no order broken, but details may differ from the answers given then. A warning reports it, and a snapshot is made at
once, so that a third release does not replay the same operations again.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.backends.base import release
from queuehint.backends.journal.answers import Answers
from queuehint.backends.journal.groups import FromInbox, unpack
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.backends.journal.snapshots.snapshot import SCHEMA
from queuehint.backends.journal.snapshots.thawing import thaw
from queuehint.backends.relaying import relay
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.jobs.settled import place_anew
from queuehint.errors import BackendDeniedError, CorruptStateError, OutcomeUnknownError, QueueHintError
from queuehint.operations import Operation, Tick, Ticked
from queuehint.operations.inbox import operations_of
from queuehint.operations.wire import Await, Begin, Extend, PlaceAnew, decode
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from queuehint.backends.journal.store import Journal, Reader
    from queuehint.operations import EnqueuedJob

logger = logging.getLogger("queuehint.journal")

REST_TICKS: Final = 1_000
"""How many steps of what is left over are done at most for a row of the inbox; the next operations do the rest."""
_LEFT_OVER: Final = Ticked(more=False, next_ms=None)
"""In place of a further step."""
KEPT_MS: Final = 5_000
"""For how long at least a new leader keeps the leases of guests, which could not renew them while nobody led."""


@attrs.frozen(kw_only=True)
class Recovered:
    """An engine and the answers of guests as a journal says, and how much was read of it."""

    engine: Engine
    answers: Answers
    is_of_others: bool
    """Another release wrote some of the journal."""
    snapshot_bytes: int
    snapshot_number: int
    """Up to where the journal was when the snapshot was made."""
    journaled_bytes: int
    journaled: int
    """How many operations stand in the journal."""


def recover(journal: Journal, options: EngineOptions) -> Recovered:
    """
    Return what the snapshot and the journal make.

    Raises:
        BackendDeniedError: the snapshot has another layout.
        CorruptStateError: the journal is damaged.
    """
    engine, answers, snapshot_bytes = load(journal, options)
    journaled_bytes = journaled = 0
    releases: set[str] = set()
    for at_ms, data in journal.rows():
        journaled_bytes += len(data)
        journaled += replay(journal.name, engine, answers, at_ms, data, releases)
    return Recovered(
        engine=engine,
        answers=answers,
        is_of_others=say_others(journal.name, releases),
        snapshot_bytes=snapshot_bytes,
        snapshot_number=0 if journal.header is None else journal.header.number,
        journaled_bytes=journaled_bytes,
        journaled=journaled,
    )


def load(journal: Journal | Reader, options: EngineOptions) -> tuple[Engine, Answers, int]:
    """
    Return what the snapshot makes, and how many bytes it has; a new engine if there is none.

    Raises:
        BackendDeniedError: the snapshot has another layout.
        CorruptStateError: it is damaged.
    """
    header = journal.header
    if header is None:
        return Engine(attrs.evolve(options, retention=None)), Answers(), 0
    if header.layout != SCHEMA:
        raise BackendDeniedError(
            f"{journal.name} has a snapshot of layout {header.layout}, and this release of queuehint reads {SCHEMA}: "
            f"have release {header.release} finish its jobs, or go on with that one"
        )
    begin = decode(header.options.encode())
    if not isinstance(begin, Begin):
        raise CorruptStateError(f"{journal.name} is damaged: its snapshot has no options")
    description, size = journal.description()
    parts = journal.parts()
    answers = Answers.thawed(next(parts, b""))
    return thaw(description, parts, attrs.evolve(options, retention=begin.kept(), budget=begin.budget)), answers, size


def replay(name: str, engine: Engine, answers: Answers, at_ms: int, data: bytes, releases: set[str]) -> int:
    """
    Apply a row of the journal again; return how many operations it has.

    Args:
        releases: those that began to lead are added.

    Raises:
        CorruptStateError: it is none.
    """
    count = 0
    for request, line in unpack(data):
        count += 1
        if isinstance(request, FromInbox):
            _replay_row(name, engine, line, at_ms)
            continue
        operation = decode(line)
        if isinstance(operation, Begin):
            releases.add(operation.release)
        answers.keep(request, operation, _replay(name, engine, answers, operation, at_ms))
    return count


def say_others(name: str, releases: set[str]) -> bool:
    """Log that other releases wrote a journal, if any did; return whether they did."""
    is_of_others = bool(releases - {release()})
    if is_of_others:
        extra = {"event": "journal.other_release", "store": name, "releases": sorted(releases)}
        logger.warning("a journal of another release was replayed", extra=extra)
    return is_of_others


def frozen(engine: Engine, answers: Answers) -> Iterator[bytes]:
    """Yield the parts of a snapshot, as `recover` reads them."""
    yield answers.frozen()
    yield from freeze(engine)


def _replay(name: str, engine: Engine, answers: Answers, operation: Operation[Any], at_ms: int) -> Any:
    """Apply a journaled operation again; return what it was answered with, a reply or an error."""
    try:
        return do(engine, answers, operation, at_ms, engine.apply)
    except QueueHintError as error:
        return error  # as it was then
    except Exception as error:
        extra = {"event": "journal.replay_failed", "store": name}
        logger.exception("an operation failed again when it was replayed", extra=extra)
        return OutcomeUnknownError(f"{name}: the operation failed with {type(error).__name__}")
    finally:
        engine.table.ready.filled.clear()


def _replay_row(name: str, engine: Engine, data: bytes, at_ms: int) -> None:
    """Have a row of the inbox take effect again."""
    try:
        take_in(operations_of(data), at_ms, engine.apply)
    except CorruptStateError:
        raise
    except QueueHintError:
        return  # as it was then
    except Exception:
        logger.exception(
            "a row failed again when it was replayed", extra={"event": "journal.replay_failed", "store": name}
        )
    finally:
        engine.table.ready.filled.clear()


def take_in(
    operations: Sequence[Operation[Any]], at_ms: int, apply: Callable[[Operation[Any], int], Any]
) -> list[EnqueuedJob]:
    """
    Have the operations of a row of the inbox take effect, all or nothing: parts of a submission are hidden until then.

    Args:
        operations: none of their jobs is hidden in a submission that is under way: nothing can be waited for.

    Returns:
        The jobs that were enqueued, in their order.

    Raises:
        QueueHintError: what an operation was refused with; nothing of the row has taken effect.
    """
    steps, ticks = relay(operations), 0
    step: Any = next(steps)
    try:
        while True:
            assert isinstance(step, Operation), f"a row of the inbox waits: {step}"
            is_tick = isinstance(step, Tick)
            ticks += is_tick
            try:
                reply = _LEFT_OVER if is_tick and ticks > REST_TICKS else apply(step, at_ms)
            except QueueHintError as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        jobs: list[EnqueuedJob] = end.value
        return jobs


def do(
    engine: Engine,
    answers: Answers,
    operation: Operation[Any],
    at_ms: int,
    apply: Callable[[Operation[Any], int], Any],
) -> Any:
    """
    Do a journaled operation, and return its reply.

    Args:
        apply: does those that every store has.

    Raises:
        QueueHintError: as the operation says; nothing was changed.
    """
    if isinstance(operation, Begin):
        begin_engine(engine, operation, at_ms, answers.workers)
    elif isinstance(operation, Extend):
        engine.extend(operation.leases, operation.lease_ms, at_ms)
    elif isinstance(operation, Await):
        engine.await_ends(operation.job_ids)
    elif isinstance(operation, PlaceAnew):
        place_anew(engine.table)
    else:
        return apply(operation, at_ms)
    return None


def begin_with(options: EngineOptions, epoch_s: int | None, *, is_heir: bool = True) -> Begin:
    """Return the options of a process that begins to lead, as they are journaled."""
    return Begin.of(
        options.retention, epoch_s=epoch_s, budget=options.budget, release=release(), is_heir=is_heir or epoch_s is None
    )


def begin_engine(engine: Engine, begin: Begin, at_ms: int, guests: Collection[str]) -> None:
    """
    Take the options of the process that begins to lead; if that is another one, leases of the one before it end.

    Args:
        guests: names of workers of other processes, whose leases go on.
    """
    options = attrs.evolve(engine.state.options, retention=begin.kept(), budget=begin.budget)
    engine.state.options = options
    engine.table.retention = options.retention or Retention()
    if begin.epoch_s is not None:
        engine.begin_epoch(max(engine.token, begin.epoch_s << 32), 0)
        engine.end_leases(at_ms, guests if begin.is_heir else None, KEPT_MS)


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
