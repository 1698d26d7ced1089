"""
The process that leads a journal for a worker, so that handlers do not slow down the replies to others.

``python -m queuehint.cli.leader`` is started by `queuehint worker`, see `queuehint.worker.companion`, and does what
`queuehint lead` does: it leads, or stands by while another process does. Where one stands by already it waits for that
one to lead. When the process that it is for has ended it leaves the lead in order, and ends.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from queuehint.backends.base import BackendOptions, open_backend
from queuehint.cli.logs import LogFormat, LogLevel, set_up
from queuehint.cli.stores import as_journal
from queuehint.clock import SystemClock
from queuehint.errors import BackendError
from queuehint.values.policy import Retention
from queuehint.worker.companion import Companion, heard, is_stopped, settle_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.backends.journal.backend import JournalBackend
    from queuehint.scheduler.scheduler import Scheduler

logger = logging.getLogger("queuehint.cli")

END_WITHIN_S: Final = 10.0
"""How long it has for the call under way, and for a last snapshot."""
LOOK_EVERY_S: Final = 1.0
STANDS_S: Final = 5.0
"""For how long it may be stopped, as by SIGSTOP, before it is killed: it might have the lead, and answer nobody."""
LIVES_LONG_S: Final = 10.0
PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
_READ_MAX: Final = 1 << 16
_DURATIONS: Final = ("finished", "failed", "canceled", "service")


class Lead(StrEnum):
    """Which process leads for a worker."""

    PROCESS = "process"
    INSIDE = "inside"


def leader_for(scheduler: Scheduler, log_format: LogFormat | None, log_level: LogLevel | None) -> dict[str, Any] | None:
    """Return the settings of a process that leads the store of a scheduler. None if there is to be no such process."""
    journal = as_journal(scheduler.backend)
    if journal is None or not journal.store.may_lead:
        return None
    from queuehint.backends.journal.guests.sockets import HAS_SOCKETS

    # What has another clock than the system's leads with it. Without sockets the worker could not ask another process.
    if not isinstance(scheduler.clock, SystemClock) or not HAS_SOCKETS or os.name != "posix":
        return None
    retention = journal.engine_options.retention
    return {
        "url": scheduler.url,
        "namespace": scheduler.namespace,
        "retention": None if retention is None else _seconds(retention),
        "log_format": log_format,
        "log_level": log_level,
    }


def _seconds(retention: Retention) -> dict[str, Any]:
    """Return it as the arguments that make an equal one."""
    in_ms = {name: getattr(retention, f"{name}_ms") for name in _DURATIONS}
    found: dict[str, Any] = {name: ms / 1000 for name, ms in in_ms.items() if ms is not None}
    return {**found, "services": {name: each_ms / 1000 for name, each_ms in retention.services_ms.items()}}


def tell(pipe: int, config: dict[str, Any] | None) -> None:
    """Send the parent of several workers the settings of its leading process, if any, and close the pipe."""
    with suppress(OSError), open(pipe, "wb", buffering=0) as out:
        if config is not None:
            out.write(json.dumps(config).encode() + b"\n")


def read_told(pipe: int) -> list[dict[str, Any]]:
    """Return the settings that workers have sent since. A line too long for one write to the pipe is dropped."""
    found: list[dict[str, Any]] = []
    with suppress(BlockingIOError):
        for line in os.read(pipe, _READ_MAX).split(b"\n"):
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


class LeaderProcess:
    """
    Keeps the leading process, from `start` until `end`: a process that has ended, or is stalled, is replaced.

    Args:
        config: as `leader_for` returns it.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._companion = Companion(__name__, end_within_s=END_WITHIN_S)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="queuehint-leader", daemon=True)

    @property
    def pid(self) -> int | None:
        """The id of the process that leads or stands by, None without one."""
        return self._companion.pid

    def start(self) -> None:
        """Start the process. Returns at once."""
        self._thread.start()

    def leave_to_parent(self) -> None:
        """Forget the process in a forked child, because it belongs to the parent."""
        self._companion.leave_to_parent()

    def end(self) -> None:
        """Have the process leave the lead and end."""
        self._over.set()
        self._companion.dismiss()
        self._thread.join()
        self._companion.end()

    def _keep(self) -> None:
        pause_s = 0.0
        while not self._over.is_set():
            begun_s = time.monotonic()
            try:
                self._companion.begin(self.config)
            except OSError as error:
                extra: dict[str, Any] = {"event": "leader.not_started", "error": str(error)}
                logger.exception("the process that leads cannot be started", extra=extra)
            else:
                self._watch()
                if self._over.is_set():
                    return
                if time.monotonic() - begun_s >= LIVES_LONG_S:
                    pause_s = 0.0
                extra = {"event": "leader.ended", "child": self.pid, "pause_s": pause_s}
                logger.error("the process that leads has ended, or stood still, and is started again", extra=extra)
                self._companion.end(at_once=True)
            self._over.wait(pause_s)
            pause_s = min(max(pause_s * 2, PAUSE_MIN_S), PAUSE_MAX_S)

    def _watch(self) -> None:
        """Return once the process has ended. Kill a process that is stopped for long."""
        stopped_s: float | None = None
        while not (self._companion.is_dead or self._over.is_set()):
            self._companion.hear(LOOK_EVERY_S)
            pid = self.pid
            if pid is None or not is_stopped(pid):
                stopped_s = None
            elif stopped_s is None:
                stopped_s = time.monotonic()
            elif time.monotonic() - stopped_s >= STANDS_S:
                return


def lead_while_heard(lines: Iterable[list[str]]) -> None:
    """Lead, or stand by, by the configuration in the first line, until the lines end."""
    stop = threading.Event()
    thread: threading.Thread | None = None
    for said in lines:
        if thread is None:
            config = json.loads(said[0])
            log_format, log_level = config["log_format"], config["log_level"]
            set_up(log_format and LogFormat(log_format), log_level and LogLevel(log_level))
            retention = config["retention"] and Retention(**config["retention"])
            options = BackendOptions(namespace=config["namespace"], retention=retention)
            journal = as_journal(open_backend(config["url"], options))
            assert journal is not None
            thread = threading.Thread(target=_lead, args=(journal, stop), name="queuehint-leader")
            thread.start()
    stop.set()
    if thread is not None:
        thread.join()


def _lead(journal: JournalBackend, stop: threading.Event) -> None:
    from queuehint.backends.journal.lead.standing import Standby

    try:
        Standby(journal, is_spare=True).run(stop)
    finally:
        try:
            journal.close_sync()
        except BackendError as error:
            extra = {"event": "leader.close_failed", "error": str(error)}
            logger.warning("the journal was not closed in order; nothing is lost", extra=extra)


if __name__ == "__main__":
    settle_in()
    lead_while_heard(heard())
