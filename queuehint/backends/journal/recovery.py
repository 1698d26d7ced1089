"""
Recovery: load the snapshot of a journal and apply the operations after it again.

The engine is deterministic within one release. A journal that was closed has a snapshot, which every release that knows
its layout reads. One that was not closed has rows after it, which say what was decided when they were written, see
`queuehint.backends.journal.decided`:

- Rows of the own release are replayed by its rules, and checked. If they come to something else, which is a fault, an
  error is logged, and the journal is replayed once more as one of another release.
- Rows of another release are *followed*: the jobs that they say were granted are granted again, under their tokens, and
  no others, whatever the own rules would choose. Where the own rules come to another standing, or would not let a job
  run that was granted, the journal is refused and nothing is changed: that release has to lead once more, and leave a
  snapshot. A warning reports that rows were followed, and a snapshot is made at once.
"""

from __future__ import annotations

import gc
import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.backends.base import release
from queuehint.backends.journal.answers import Answers
from queuehint.backends.journal.decided import LOW, STANDING, granted_line, read_granted, standing_line
from queuehint.backends.journal.groups import DECIDED, Decided, FromInbox, unpack
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.backends.journal.snapshots.snapshot import SCHEMA
from queuehint.backends.journal.snapshots.thawing import thaw
from queuehint.backends.relaying import relay
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.jobs.settled import place_anew
from queuehint.core.working import NotGrantableError
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


class OtherRulesError(Exception):
    """Rows are not to be replayed by the rules of this release alone: others wrote them, or decided otherwise."""

    def __init__(self, release: str, problem: str) -> None:
        self.release = release
        super().__init__(problem)


@attrs.define
class History:
    """
    How the rows of a journal are replayed.

    Args:
        name: of the journal, for errors.
        writer: the release that wrote the next row.
        may_follow: rows of other releases are followed; else they are an `OtherRulesError`.
        follows_own: those of this release, too.
    """

    name: str
    writer: str
    may_follow: bool = True
    follows_own: bool = False
    releases: set[str] = attrs.Factory(set)
    """Those that wrote rows."""

    @classmethod
    def of(cls, journal: Journal | Reader, *, may_follow: bool = True, follows_own: bool = False) -> History:
        """Return how the rows after the snapshot of a journal are replayed."""
        header = journal.header
        return cls(journal.name, release() if header is None else header.release, may_follow, follows_own)

    @property
    def is_of_others(self) -> bool:
        """True if other releases wrote rows."""
        return bool(self.releases - {release()})

    @property
    def is_followed(self) -> bool:
        """True if the next row is followed."""
        return self.follows_own or self.writer != release()

    def read(self, line: bytes) -> Operation[Any]:
        """
        Return the operation of a line.

        Raises:
            BackendDeniedError: another release wrote it, and this one does not know it.
            CorruptStateError: it is none.
            OtherRulesError: it is of another release, and not to be followed.
        """
        try:
            operation = decode(line)
        except CorruptStateError as error:
            self.writer = _beginner(line) or self.writer
            if self.writer != release():
                raise self.refused("has operations that this one does not know") from error
            raise
        if isinstance(operation, Begin):
            self.writer = operation.release
        self.see()
        return operation

    def see(self) -> None:
        """
        Take note of what is written.

        Raises:
            OtherRulesError: another release wrote it, and it is not to be followed.
        """
        self.releases.add(self.writer)
        if self.writer != release() and not self.may_follow:
            raise OtherRulesError(self.writer, f"release {self.writer} writes the journal")

    def check(self, is_equal: bool, problem: str) -> None:
        """
        Check that the rules of this release come to what a row says.

        Raises:
            BackendDeniedError: they do not, and another release wrote it.
            OtherRulesError: they do not, though this release wrote it; or it is not to be followed.
        """
        self.see()
        if is_equal:
            return
        if self.writer != release():
            raise self.refused(f"{problem} otherwise")
        if not self.follows_own:
            raise OtherRulesError(self.writer, f"{problem} otherwise when it was replayed")

    def refused(self, problem: str) -> BackendDeniedError:
        """Return the error that this release cannot go on with the rows of another one."""
        return BackendDeniedError(
            f"{self.name} was led by release {self.writer}, which {problem}, and release {release()} does not guess: "
            f"have release {self.writer} lead it again and hand it over, or close it, in order; nothing was changed"
        )


def _beginner(line: bytes) -> str | None:
    """Return the release that begins to lead by a line that cannot be read, if it says so."""
    try:
        said = json.loads(line)
        return str(said["release"]) if said[""] == Begin.__name__ else None
    except (ValueError, TypeError, KeyError):
        return None


def recover(journal: Journal, options: EngineOptions) -> Recovered:
    """
    Return what the snapshot and the journal make.

    Raises:
        BackendDeniedError: the snapshot has another layout, or another release decided what this one does not.
        CorruptStateError: the journal is damaged.
    """
    try:
        return _recover(journal, options, History.of(journal))
    except OtherRulesError as error:
        say_differs(journal.name, error)
        return _recover(journal, options, History.of(journal, follows_own=True))


def _recover(journal: Journal, options: EngineOptions, history: History) -> Recovered:
    engine, answers, snapshot_bytes = load(journal, options)
    journaled_bytes = journaled = 0
    for at_ms, data in journal.rows():
        journaled_bytes += len(data)
        journaled += replay(history, engine, answers, at_ms, data)
    say_others(history)
    return Recovered(
        engine=engine,
        answers=answers,
        is_of_others=history.is_of_others or history.follows_own,
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
    check_layout(journal)
    begin = decode(header.options.encode())
    if not isinstance(begin, Begin):
        raise CorruptStateError(f"{journal.name} is damaged: its snapshot has no options")
    description, size = journal.description()
    parts = journal.parts()
    answers = Answers.thawed(next(parts, b""))
    return thaw(description, parts, attrs.evolve(options, retention=begin.kept(), budget=begin.budget)), answers, size


def check_layout(journal: Journal | Reader) -> None:
    """
    Check that this release reads the snapshot of a journal.

    Raises:
        BackendDeniedError: it has another layout.
    """
    header = journal.header
    if header is not None and header.layout != SCHEMA:
        raise BackendDeniedError(
            f"{journal.name} has a snapshot of layout {header.layout}, and this release of queuehint, {release()}, "
            f"reads {SCHEMA}: have release {header.release} finish its jobs, or go on with that one"
        )


def replay(history: History, engine: Engine, answers: Answers, at_ms: int, data: bytes) -> int:
    """
    Apply a row of the journal again; return how many operations it has.

    Raises:
        BackendDeniedError: another release decided what this one does not.
        CorruptStateError: it is none.
        OtherRulesError: it is not to be followed, or this release wrote it and decides otherwise now.
    """
    count, granted = 0, b""
    for request, line in unpack(data):
        if request is DECIDED:
            if line.startswith(STANDING):
                history.check(line == standing_line(engine), "decided")
            else:
                granted = line
            continue
        assert not isinstance(request, Decided)
        count += 1
        if isinstance(request, FromInbox):
            history.see()
            _replay_row(history.name, engine, line, at_ms)
            continue
        operation = history.read(line)
        if history.is_followed and operation.is_claim:
            reply = _follow(history, engine, operation, at_ms, granted)
        else:
            reply = _replay(history.name, engine, answers, operation, at_ms)
            if operation.is_claim:
                found = b"" if isinstance(reply, QueueHintError) else granted_line(engine, reply.grants)
                history.check(found == granted, "granted jobs")
        answers.keep(request, operation, reply)
        granted = b""
    return count


def say_others(history: History) -> None:
    """Log that rows of other releases were followed, if any were."""
    if history.is_of_others:
        extra = {"event": "journal.other_release", "store": history.name, "releases": sorted(history.releases)}
        logger.warning("a journal of another release was followed", extra=extra)


def say_differs(name: str, error: OtherRulesError) -> None:
    """Log that this release does not come to what it has decided itself."""
    extra = {"event": "journal.replay_differs", "store": name, "release": error.release, "error": str(error)}
    logger.error("release %s %s; what was granted is followed", error.release, error, extra=extra)


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


def _follow(history: History, engine: Engine, operation: Operation[Any], at_ms: int, granted: bytes) -> Any:
    """
    Apply an exchange again with the grants that it had; return what it was answered with.

    Raises:
        BackendDeniedError, CorruptStateError: by the rules of this release one of the jobs may not run.
    """
    low, taken = read_granted(granted) if granted else (0, [])
    token = engine.token + 1 if not granted else engine.token & ~LOW | low
    try:
        return engine.grant_again(operation, at_ms, token, taken)
    except NotGrantableError as error:
        problem = f"granted job {error.job_id or error.number}"
        if history.writer != release():
            raise history.refused(problem) from error
        raise CorruptStateError(
            f"{history.name}: release {history.writer} {problem}, which may not run when that is replayed"
        ) from error
    except QueueHintError as error:
        return error  # as it was then
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
