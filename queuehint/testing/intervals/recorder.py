"""A recorder of intervals for producers and handlers, as JSON lines in a file shared by processes."""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from queuehint.clock import Clock
from queuehint.errors import shown
from queuehint.testing.intervals.values import JobIntervals, RunInterval
from queuehint.testing.trace.values import InvalidTraceError
from queuehint.values.hint import Mode
from queuehint.values.policy import OnRetry


class IntervalRecorder:
    r"""
    Writes the times that clients of a queue see, for `check_intervals`.

    Producers enqueue inside `enqueue`, handlers run inside `run`. Each time is appended as one line by one call of the
    system, so threads and processes of one machine may share a file; machines write a file each, and
    ``queuehint check-intervals`` reads them together. A line is written before the code goes on, so a process that is
    killed leaves what it had done. The end of an interval is its beginning and what a monotonic clock counted, so a
    clock that is set back does not end it before it began.

    Args:
        path: the file; made if it is missing. On a local disk: appends to NFS are not one step.
        worker: written with each run; by default the host and the id of the process.
        clock: by default the wall clock of this machine, to the microsecond.

    Raises:
        OSError: a line could not be written, from any method: a log with holes would judge wrongly.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "log.jsonl")
    >>> recorder = IntervalRecorder(path)
    >>> with recorder.enqueue(["doc1"], job="a"):
    ...     pass  # queue.enqueue(edit, "a")
    >>> with recorder.run("a"):
    ...     pass  # what the handler does
    >>> [json.loads(line)["stamp"] for line in path.read_text().splitlines()]
    ['called', 'returned', 'began', 'ended']

    .. versionadded:: 1.0.0
    """

    def __init__(self, path: str | os.PathLike[str], *, worker: str | None = None, clock: Clock | None = None) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidTraceError(f"path must be a text or a path, got {type(path).__name__}: {shown(path)}")
        RunInterval(began_ms=0, worker=worker)
        self._path = Path(path).absolute()
        self._worker = worker
        self._clock = clock
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._file = os.open(self._path, flags, 0o666)
        weakref.finalize(self, os.close, self._file)

    @contextmanager
    def enqueue(
        self,
        hint: Iterable[str] | None = None,
        *,
        mode: Mode = "exclusive",
        claims: Iterable[Any] | None = None,
        job: str | None = None,
        on_retry: OnRetry = "hold",
    ) -> Iterator[str]:
        """
        Record the call that enqueues a job in the block, with the id of the job as an argument.

        If the block raises, whether the job was taken is not known: then it accuses no other. An enqueue that is tried
        again is recorded with the same *job*.

        Args:
            hint: the place of the job; None for no place.
            claims: instead of *hint*, several places: hints, or pairs of a hint and a mode.
            job: its id; by default one is made.
            on_retry: as of `JobIntervals`.

        Yields:
            The id, for `run` in the handler.

        Raises:
            InvalidTraceError, InvalidHintError: a parameter is wrong; nothing is recorded.
        """
        job_id = uuid4().hex if job is None else job
        if claims is None:
            checked = JobIntervals.of(job_id, hint, mode=mode, on_retry=on_retry)
        elif hint is not None or mode != "exclusive":
            raise InvalidTraceError("give hint or claims, not both; the mode of a claim is in its pair")
        else:
            checked = JobIntervals(job=job_id, claims=cast("Any", claims), on_retry=on_retry)
        places = [{"path": list(claim.path), "mode": claim.mode} for claim in checked.claims or ()]
        said = {} if on_retry == "hold" else {"on_retry": on_retry}
        began = _Moment(self._clock)
        self._write({"stamp": "called", "job": job_id, "at": began.at_ms, "claims": places, **said})
        yield job_id
        self._write({"stamp": "returned", "job": job_id, "at": began.later_ms()})

    @contextmanager
    def run(self, job: str) -> Iterator[None]:
        """
        Record a run of a job. The block is the work of its handler.

        Args:
            job: its id, as `enqueue` gave it.

        Raises:
            InvalidTraceError: *job* is no id; nothing is recorded.
        """
        JobIntervals(job=job)
        run_id = uuid4().hex
        worker = self._worker or f"{socket.gethostname()}:{os.getpid()}"
        began = _Moment(self._clock)
        self._write({"stamp": "began", "job": job, "run": run_id, "at": began.at_ms, "worker": worker})
        failed = True
        try:
            yield
            failed = False
        finally:
            said = {"failed": True} if failed else {}
            self._write({"stamp": "ended", "job": job, "run": run_id, "at": began.later_ms(), **said})

    def canceled(self, job: str) -> None:
        """
        Record that the queue has confirmed the end of a waiting job, which must not begin from now on.

        Args:
            job: its id, as `enqueue` gave it.

        Raises:
            InvalidTraceError: *job* is no id; nothing is recorded.
        """
        JobIntervals(job=job)
        self._write({"stamp": "canceled", "job": job, "at": _Moment(self._clock).at_ms})

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments by which another process writes the same file."""
        return partial(IntervalRecorder, worker=self._worker, clock=self._clock), (self._path,)

    def _write(self, said: dict[str, Any]) -> None:
        line = json.dumps(said, separators=(",", ":")).encode("ascii") + b"\n"
        written = os.write(self._file, line)
        if written < len(line):
            raise OSError(f"{self._path}: only {written} of {len(line)} bytes were written")


class _Moment:
    """A time of the wall clock, continued by the monotonic clock."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self.at_ms = round(time.time() * 1000, 3) if clock is None else clock.now_ms()
        self._since_s = time.perf_counter()

    def later_ms(self) -> float:
        """Return the current time, never before the first one."""
        if self._clock is not None:
            return max(self.at_ms, self._clock.now_ms())
        return round(self.at_ms + (time.perf_counter() - self._since_s) * 1000, 3)
