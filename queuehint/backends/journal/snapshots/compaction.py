"""
Compaction: a snapshot of the engine replaces the journal, so that it is opened soon and does not grow for ever.

A small engine is written down at once, in the time of a few calls. Of a larger one a copy is made beside the work, see
`queuehint.backends.journal.snapshots.copying`, and put into the store a little between two batches: no call waits for
more than one such slice. Where that is not possible, all is written down at once, and callers wait.

A snapshot is due when reading the journal would take longer than reading the snapshot, and sooner when nobody asks for
anything.
"""

from __future__ import annotations

import gc
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.base import release
from queuehint.backends.journal.recovery import begin_with, frozen, without_collector
from queuehint.backends.journal.snapshots import copying
from queuehint.backends.journal.snapshots.snapshot import SCHEMA
from queuehint.backends.journal.store import Header
from queuehint.errors import OutcomeUnknownError
from queuehint.operations.wire import encode

if TYPE_CHECKING:
    import threading

    from queuehint.backends.journal.recovery import Recovered
    from queuehint.backends.journal.store import Journal

logger = logging.getLogger("queuehint.journal")

SNAPSHOT_OPERATIONS: Final = 20_000
SNAPSHOT_BYTES: Final = 64 << 20
"""A journal is replaced when it has so many operations, and as many as there are jobs, or so many bytes, and as many as
the snapshot before it is packed."""
PACKED: Final = 5
"""How many times as long a snapshot is before it is packed."""
IDLE_S: Final = 1.0
IDLE_SHARE: Final = 8
"""After so long without a call, an eighth of that is enough."""
SMALL_JOBS: Final = 1_000
"""Up to so many jobs are written down at once; some 20 ms."""
CLOSING_JOBS: Final = 50_000
"""Up to so many also when the store is closed; of more the journal is left as it is, for that would take seconds."""
COLLECTED_JOBS: Final = 10_000
"""A pass of the garbage collector stops all threads for a second or more a million jobs, and finds none of theirs. So,
whenever there are so many more, it is told to leave alone what there is."""
SLICE_EVERY_S: Final = 0.01
SLICE_BYTES, SLICE_PARTS, SLICE_ROWS = 256 << 10, 8, 16
"""What is put into the store, and what is removed of it, between two batches."""


@attrs.define
class _UnderWay:
    """A snapshot that is being put into the store: its copy, its header, and what of it is there."""

    copy: copying.Copying
    header: Header
    parts: int = 0
    bytes: int = 0


class Compaction:
    """
    When a journal is replaced, and how far that is; used by one thread.

    Attributes:
        is_changed: whether the journal has operations that no snapshot covers.
    """

    def __init__(self, journal: Journal, found: Recovered) -> None:
        self._engine = found.engine
        self._answers = found.answers
        self._journal = journal
        self._is_wanted = found.is_of_others
        """Whether the next step makes a snapshot in any case: the next release would decide anew what is answered."""
        self._journaled, self._journaled_bytes = found.journaled, found.journaled_bytes
        """What the journal has since a snapshot was last begun."""
        self._snapshot_bytes = found.snapshot_bytes
        self._under_way: _UnderWay | None = None
        self._is_followed_up: bool | None = None
        """Whether a snapshot has been made for the next leader; None if it is not to be."""
        self._next_s = 0.0
        self._wrote_s = time.monotonic()
        self._is_clearing = True
        self._kept_jobs = 0
        """How many jobs there were when the collector was last told to leave alone what there is."""
        self.is_changed = False

    @property
    def patience_s(self) -> float | None:
        """For how long, if no call comes, nothing is to be done; None for ever."""
        if self._under_way is not None or self._is_clearing:
            return SLICE_EVERY_S
        return IDLE_S if self._is_due(IDLE_SHARE) else None

    def wrote(self, operations: int, size: int, *, is_change: bool) -> None:
        """Count operations that were written, and their bytes; to begin to use a store is no change."""
        self._journaled += operations
        self._journaled_bytes += size
        self._wrote_s = time.monotonic()
        self.is_changed = self.is_changed or is_change

    def go_on(self, lock: threading.RLock, *, is_idle: bool) -> bool:
        """
        Do what is to be done now, for a short time; return False if the journal may differ from what is known of it.

        Args:
            lock: taken while the engine must not change.
            is_idle: whether nobody has asked for anything for `patience_s`.
        """
        jobs = len(self._engine.table.jobs)
        if jobs >= self._kept_jobs + COLLECTED_JOBS:
            self._kept_jobs = jobs
            gc.freeze()
        try:
            if self._under_way is not None:
                self._put_slice(self._under_way)
            elif self._is_wanted:
                self._begin(lock)
            elif self._is_clearing:
                self._clear_slice()
            elif self._is_due(IDLE_SHARE if is_idle and time.monotonic() >= self._wrote_s + IDLE_S else 1):
                self._begin(lock)
        except Exception as error:  # noqa: BLE001 - nobody waits for it
            return self._failed(error)
        return True

    @property
    def has_followed_up(self) -> bool:
        """
        Whether a snapshot is made at the end, or one of many jobs has been made since this was first asked.

        The first time it is asked of many jobs, such a snapshot is begun.
        """
        if len(self._engine.table.jobs) <= CLOSING_JOBS:
            return True
        if self._is_followed_up is None:
            self._is_wanted, self._is_followed_up = self._under_way is None, False
        if not self._is_wanted and self._under_way is None:
            self._is_followed_up = True
        return self._is_followed_up

    def close(self, lock: threading.RLock, *, must: bool = False) -> None:
        """
        Make a last snapshot if that is soon done; the journal has all else.

        Args:
            must: also if nothing has changed since this process leads.
        """
        self.stop()
        if (self.is_changed or must) and len(self._engine.table.jobs) <= CLOSING_JOBS:
            try:
                self._make_at_once(lock)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)

    def stop(self) -> None:
        """Give up the snapshot under way, if there is one."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.copy.end()
            self.is_changed = True

    def _is_due(self, share: int) -> bool:
        if self._journaled >= max(SNAPSHOT_OPERATIONS, len(self._engine.table.jobs)) / share:
            return True
        return self._journaled_bytes >= max(SNAPSHOT_BYTES, PACKED * self._snapshot_bytes) / share

    def _begin(self, lock: threading.RLock) -> None:
        self._is_wanted = False
        if len(self._engine.table.jobs) <= SMALL_JOBS or not copying.IS_POSSIBLE:
            self._make_at_once(lock)
            return
        header = self._begun()
        try:
            with lock:
                self._under_way = _UnderWay(copying.Copying(partial(frozen, self._engine, self._answers)), header)
        except OSError:
            self._make_at_once(lock)

    def _begun(self) -> Header:
        """Return the header of a snapshot of now, and count the journal from here on."""
        self._journaled, self._journaled_bytes, self.is_changed = 0, 0, False
        options = encode(begin_with(self._engine.state.options, None)).decode("ascii")
        first = self._journal.after_snapshot()
        return Header(number=self._journal.number, layout=SCHEMA, release=release(), options=options, first=first)

    def _make_at_once(self, lock: threading.RLock) -> None:
        header = self._begun()
        with lock, without_collector():
            parts = list(frozen(self._engine, self._answers))
        self._journal.replace(parts, header)
        self._snapshot_bytes = sum(map(len, parts))

    def _put_slice(self, under_way: _UnderWay) -> None:
        """Put some of the copy into the store; have it count once all has come."""
        if time.monotonic() < self._next_s:
            return
        parts = under_way.copy.parts(SLICE_BYTES)
        if parts:
            self._journal.put(under_way.header.first + under_way.parts, parts)
            under_way.parts += len(parts)
            under_way.bytes += sum(map(len, parts))
        elif under_way.copy.is_at_end:
            # Whether it succeeds or not: parts are left to be removed.
            self._is_clearing, self._under_way = True, None
            if not under_way.copy.end():
                raise RuntimeError("the process that copies has died")
            self._journal.switch(attrs.evolve(under_way.header, parts=under_way.parts))
            self._snapshot_bytes = under_way.bytes
        self._next_s = time.monotonic() + SLICE_EVERY_S

    def _clear_slice(self) -> None:
        if time.monotonic() >= self._next_s:
            self._is_clearing = self._journal.clear(SLICE_PARTS, SLICE_ROWS)
            self._next_s = time.monotonic() + SLICE_EVERY_S

    def _failed(self, error: Exception) -> bool:
        self.stop()
        self.is_changed = True
        extra = {"event": "journal.snapshot_failed", "store": self._journal.name, "error": str(error)}
        logger.warning("no snapshot could be made; the journal grows on", extra=extra)
        return not isinstance(error, OutcomeUnknownError)
