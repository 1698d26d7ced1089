"""The journal of the process that leads, opened: taking the lead, loading the engine, leaving."""

from __future__ import annotations

import logging
import os
import secrets
import time
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from queuehint.backends.base import BackendOptions, say_retention_changed
from queuehint.backends.in_process import LocalBackend
from queuehint.backends.journal.answers import Answers
from queuehint.backends.journal.guests.guest import RETRY_S
from queuehint.backends.journal.lead.leadership import Leader, LedElsewhereError
from queuehint.backends.journal.lead.renewing import Renewing
from queuehint.backends.journal.recovery import begin_engine, begin_with, check_layout, recover, without_collector
from queuehint.backends.journal.snapshots.compaction import Compaction
from queuehint.core.engine import EPOCH_BEGIN_S, Engine, EngineOptions
from queuehint.errors import BackendError, BackendUnavailableError
from queuehint.operations.wire import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.backends.journal.lead.leadership import Lead
    from queuehint.backends.journal.lead.replica import Replica
    from queuehint.backends.journal.store import Journal, Service, Store

SAY_EVERY_S: Final = 60.0
"""How often it is logged that the journal is gone."""
LEAVES_S: Final = 4.0
"""For how long the lead is left to the process that leads for this one, while nobody leads: less than a call waits."""
LEAVES_EACH_S: Final = 0.05
TAKEN_WITHIN_S: Final = 1.0
"""How long a process that has left the lead waits for the other one to take it."""

_process: Final = secrets.token_hex(8)


class OpenedStore(LocalBackend):
    """
    A store that can lead.

    Args:
        store: where the journal is; it is opened, or made, by the first call.
        options: the namespace is that of the journal.
        engine_options: for tests, another budget.
    """

    unserved: ClassVar = "jobs are ready but no process that uses the store runs a worker"
    opened: ClassVar = "journal"
    """What is said to be opened, in the log."""

    def __init__(
        self, store: Store, options: BackendOptions | None = None, engine_options: EngineOptions | None = None
    ) -> None:
        options = options or BackendOptions()
        super().__init__(options)
        self.store = store
        self.name = store.name
        self.namespace = options.namespace
        self.engine_options = attrs.evolve(engine_options or EngineOptions(), epoch_s=0, retention=options.retention)
        self._lead: Lead | None = None
        self._renewing: Renewing | None = None
        self._journal: Journal | None = None
        self._answers = Answers()
        self._compaction: Compaction | None = None
        self._service: Service | None = None
        self._is_open = False
        """This process leads, and the engine is what the journal says; changed by the writer, under the lock."""
        self._runners = 0
        """How many guests run jobs."""
        self._replica: Replica | None = None
        """What the journal has made, for the next time that this process begins to lead."""
        self._stands_by = False
        """This process takes the lead as one that stands by."""
        self.keeps_lead = False
        """It leads for others, and leaves the lead to nobody."""
        self.leaves_lead = options.leaves_lead
        """Another process leads for this one, and has the lead whenever it can, also if this one runs jobs."""
        self._token = 0
        """The newest token of the journal as this process has known it; it stays when the journal goes back."""
        self._leaves_until_s = 0.0
        """Until when the lead is left to that one, since nobody led."""
        self._is_wanted = False
        """Another process is to lead."""
        self._is_left_to_other = False
        """That one is of another release."""
        self._until_ms: int | None = None
        """The time of the operation being written."""
        self._said_gone_s = -SAY_EVERY_S

    @property
    def is_durable(self) -> bool:
        """Always true."""
        return True

    @property
    def keeps_leases(self) -> bool:
        """Always false: a worker renews its leases, because another process may lead at any time."""
        return False

    @property
    def is_leading(self) -> bool:
        """True while this process leads, and has the engine."""
        return self._is_open

    @property
    def _holds_lead(self) -> bool:
        """Whether this process takes the lead from one that does not, and leaves it to nobody."""
        return self.keeps_lead or (bool(self._adopted) and not self.leaves_lead)

    @property
    def is_closed(self) -> bool:
        """True once the store was closed."""
        return self._closed

    @abstractmethod
    def _deposed(self) -> None:
        """Have the writer learn that another process leads, which it may not ask for long; from any thread."""

    @abstractmethod
    def _serve(self, lead: Lead) -> Service:
        """Begin to serve guests; raises an `OSError` or a `BackendError` if nobody can be served."""

    @abstractmethod
    def _write(
        self,
        now_ms: int,
        lines: list[bytes],
        operations: int,
        owner: str | None = None,
        taken: Sequence[int] = (),
    ) -> None:
        """Write a row of the journal, of lines that hold so many operations; *taken*: of the inbox."""

    def _check_there(self) -> None:
        """Refuse to go on with a journal that others cannot find any more, and say so."""
        assert self._journal is not None
        try:
            self._journal.check_there()
        except BackendUnavailableError as error:
            now_s = time.monotonic()
            if now_s - self._said_gone_s >= SAY_EVERY_S:
                self._said_gone_s = now_s
                extra = {"event": f"{self.kind}.{self.opened}_gone", "path": self.name, "error": str(error)}
                message = "the %s is not there any more, or cannot be reached; nothing is written"
                self.logger.log(logging.ERROR, message, self.opened, extra=extra)
            raise

    def _await_next(self) -> None:
        """Wait a moment for the process that is to lead, in place of this one."""
        until_s = time.monotonic() + TAKEN_WITHIN_S
        with suppress(OSError, BackendError):
            while time.monotonic() < until_s and not self.store.has_leader():
                time.sleep(RETRY_S)

    def _leave_lead(self) -> None:
        """
        Let go of the journal, with a last snapshot if that is soon done, and leave the lead.

        For another release there is one in any case, unless it was just made, of many jobs.
        """
        is_for_other, self._is_left_to_other = self._is_left_to_other, False
        try:
            if self._is_open:
                with suppress(BackendUnavailableError):
                    self._check_there()
                    if self._compaction is not None:
                        self._compaction.close(self._lock, must=is_for_other)
        finally:
            with self._lock:
                self._is_open = False
                self._waiting.call_all()
            self._let_go()

    def _leave_to_other(self) -> None:
        """
        Leave the lead, while nobody leads, to the process that leads for this one.

        Raises:
            LedElsewhereError: it leads, or another one does, or has a moment left to begin.
        """
        leader = self.store.find_leader()
        if leader is not None:
            self._leaves_until_s = 0.0
            raise LedElsewhereError(leader)
        now_s = time.monotonic()
        if not self._leaves_until_s:
            self._leaves_until_s = now_s + LEAVES_S
        if now_s < self._leaves_until_s:
            time.sleep(LEAVES_EACH_S)
            raise LedElsewhereError(Leader())

    # --- the journal ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """
        Lead, and load the engine from the journal, unless it is loaded.

        Raises:
            LedElsewhereError: another process leads.
        """
        had_lead = self._lead is not None
        if self._lead is None:
            if self.leaves_lead:
                self._leave_to_other()
            self._lead = self.store.take_lead(is_ready=self._stands_by)
            self._leaves_until_s = 0.0
            if self._lead.renew_every_s is not None:
                self._renewing = Renewing(self._lead, self._lead.renew_every_s, self._deposed)
        if self._is_open:
            self._begin_to_serve(self._lead)
            return
        self._let_go(keep_lead=True)
        try:
            self._journal = self.store.open(self._lead)
            check_layout(self._journal)  # before guests come: what it cannot read, another release leads
            self._begin_to_serve(self._lead)
            replica, self._replica = self._replica, None
            taken_over = None if replica is None else replica.taken_over(self._journal)
            with without_collector():
                found = taken_over or recover(self._journal, self.engine_options)
            self._compaction = Compaction(self._journal, found)
            self._begin_to_lead(found.engine, found.answers, self._journal, self._lead, found.snapshot_number)
        except BaseException:
            self._let_go(keep_lead=had_lead)
            raise
        with self._lock:
            self.engine, self._answers = found.engine, found.answers
            self._token = max(self._token, found.engine.token)
            self._is_open = True
            self._waiting.call_all()
        if found.is_of_others:
            self._is_open = self._compaction.go_on(self._lock, is_idle=False)

    def _begin_to_serve(self, lead: Lead) -> None:
        """Begin to serve guests, if that was not tried yet: before the journal is read, so that they need not guess."""
        if self._service is None:
            try:
                self._service = self._serve(lead)
            except (OSError, BackendError) as error:
                self._service = _Nobody()
                extra = {"event": f"{self.kind}.not_shared", "path": self.name, "error": str(error)}
                self.logger.warning("no socket can be made; other processes get no answer", extra=extra)

    def _begin_to_lead(self, engine: Engine, answers: Answers, journal: Journal, lead: Lead, covered: int) -> None:
        """Journal that this process has begun to lead, with its options."""
        owner = f"{os.getpid()}-{_process}"
        now_ms = max(self._clock.now_ms(), engine.now_ms)
        is_own = journal.owner == owner
        epoch_s = None
        if not is_own or engine.token < self._token:
            # A token that was answered is not granted again, though the journal has lost it: as a backup was put back,
            # or a replica promoted that lagged. So the epoch is another one also within a second.
            last = max(engine.token, self._token)
            epoch_s = max((last >> 32) + 1 if last else 0, now_ms // 1000 - EPOCH_BEGIN_S)
        stated, kept = self.engine_options.retention, engine.state.options.retention
        options = attrs.evolve(self.engine_options, retention=stated or kept)
        begin = begin_with(options, epoch_s, is_heir=lead.is_heir and not is_own)
        if begin == begin_with(engine.state.options, None):
            return
        rows = journal.number
        self._write(now_ms, [encode(begin)], 1, owner)
        begin_engine(engine, begin, now_ms, answers.workers)
        if stated is not None and kept is not None and stated.in_ms() != kept.in_ms():
            say_retention_changed(self.logger, self.kind, self.name, kept, stated)
        extra = {"event": f"{self.kind}.opened", "path": self.name, "replayed": rows - covered}
        self.logger.info("%s opened", self.opened, extra=extra)

    def _let_go(self, *, keep_lead: bool = False) -> None:
        journal, self._journal = self._journal, None
        compaction, self._compaction = self._compaction, None
        self._is_open = False
        if compaction is not None:
            compaction.stop()
        if journal is not None:
            try:
                journal.close()
            except BackendError as error:
                extra = {"event": f"{self.kind}.close_failed", "path": self.name, "error": str(error)}
                self.logger.warning("the %s was not closed in order; nothing is lost", self.opened, extra=extra)
        if self._lead is not None and not keep_lead:
            service, self._service = self._service, None
            if service is not None:
                service.close()
            if self._renewing is not None:
                self._renewing.end()
            self._lead.release()
            self._lead = self._renewing = None


class _Nobody:
    """The service of a process that serves no guests."""

    def close(self) -> None:
        """Nothing is open."""
