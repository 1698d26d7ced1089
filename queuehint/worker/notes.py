"""What handlers have said and the store has not heard yet: log lines, progress and interim results, bounded."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from queuehint.operations import Log, Report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.handlers.partial_result import Interim
    from queuehint.values.records import Progress

logger = logging.getLogger("queuehint.worker")

LINES_MAX = 10_000
"""How many lines may wait, over all jobs: what handlers say while the store is away must not fill the memory."""
LINES_AT_ONCE = 200

_Lease = tuple[str, int]


class Notes:
    """
    Lines, progress and interim results of running jobs, from any thread, until the worker takes them to the store.

    Of a job's progress and its interim result only the newest counts; its lines go out together.
    """

    def __init__(self) -> None:
        self._progress: dict[_Lease, Progress] = {}
        self._lines: dict[_Lease, deque[str]] = {}
        self._interims: dict[_Lease, Interim] = {}
        self._count = 0
        self._has_dropped = False
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._progress or self._lines or self._interims)

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Take progress; it replaces what the job said before."""
        with self._lock:
            self._progress[job_id, token] = progress

    def store(self, interim: Interim) -> None:
        """Take note that a job's interim result has changed."""
        with self._lock:
            self._interims[interim.job_id, interim.token] = interim

    def log(self, job_id: str, token: int, line: str) -> None:
        """Take a line; beyond `LINES_MAX` the oldest of the job that spoke first is dropped, which is said once."""
        with self._lock:
            self._lines.setdefault((job_id, token), deque()).append(line)
            self._count += 1
            if self._count > LINES_MAX:
                self._drop_oldest()

    def take(self, leases: Iterable[_Lease] | None = None) -> list[Log | Report | Interim]:
        """Return all that was said since, or by the jobs of some leases, as few messages."""
        if not self:
            return []
        with self._lock:
            if leases is None:
                lines, self._lines = self._lines, {}
                progress, self._progress = self._progress, {}
                interims, self._interims = self._interims, {}
                self._count = 0
            else:
                chosen = list(leases)
                lines = {lease: self._lines.pop(lease) for lease in chosen if lease in self._lines}
                progress = {lease: self._progress.pop(lease) for lease in chosen if lease in self._progress}
                interims = {lease: self._interims.pop(lease) for lease in chosen if lease in self._interims}
                self._count -= sum(map(len, lines.values()))
        messages: list[Log | Report | Interim] = []
        for (job_id, token), said in lines.items():
            messages += [Log(job_id, token, part) for part in _parts(said)]
        messages += [Report(job_id, token, latest) for (job_id, token), latest in progress.items()]
        messages += interims.values()
        return messages

    def _drop_oldest(self) -> None:
        (job_id, token), lines = next(iter(self._lines.items()))
        lines.popleft()
        if not lines:
            del self._lines[job_id, token]
        self._count -= 1
        if not self._has_dropped:
            self._has_dropped = True
            logger.warning(
                "log lines of jobs are dropped: more are written than the store takes",
                extra={"event": "worker.log_lines_dropped", "job_id": job_id, "lines_max": LINES_MAX},
            )


def _parts(lines: deque[str]) -> list[tuple[str, ...]]:
    whole = tuple(lines)
    return [whole[begin : begin + LINES_AT_ONCE] for begin in range(0, len(whole), LINES_AT_ONCE)]
