"""
Logs of intervals as JSON lines, one object a line: a time stamp, or all times of a job.

A line with ``stamp`` is one moment of a job, as `IntervalRecorder` writes it; one with ``job`` and without ``stamp``
has all that is known of the job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import IO, Any, Final, cast

import attrs

from queuehint.errors import QueueHintError, shown
from queuehint.testing.intervals.values import JOBS_MAX, ON_RETRY, RUNS_MAX, JobIntervals, RunInterval
from queuehint.testing.trace.lines import LINE_BYTES_MAX, LineError, TraceReader, optional_text_of, text_of, time_of
from queuehint.testing.trace.values import InvalidTraceError
from queuehint.values.hint import Claim

STAMPS: Final = ("called", "returned", "began", "ended", "canceled")
_TIMES: Final = {"stamp", "called", "returned", "canceled", "runs"}
"""The fields that hold a time, or say which it is: a line of a trace has none of them."""
_CUT_OFF = "lines that were cut off at the end of a file"
_NOT_BEGUN = "ends of runs whose beginning is missing"


@attrs.frozen(kw_only=True)
class IntervalLog:
    """
    A log of intervals as read.

    Args:
        jobs: each job once, as `check_intervals` takes them.
        skipped: what could not be used, one sentence each.

    .. versionadded:: 1.0.0
    """

    jobs: tuple[JobIntervals, ...]
    skipped: tuple[str, ...] = ()


def read_intervals(lines: Iterable[str | bytes]) -> IntervalLog:
    """
    Read a log of intervals.

    Args:
        lines: such as an open file; empty ones are skipped, and so is a last one that was cut off.

    Raises:
        InvalidTraceError: a line is neither a stamp nor a job, or contradicts another; it says which.

    >>> log = read_intervals(['{"job": "a", "hint": ["doc1"], "called": 0, "returned": 1, "runs": [[5, 9]]}'])
    >>> log.jobs[0].runs[0].began_ms
    5

    .. versionadded:: 1.0.0
    """
    reader = IntervalReader()
    reader.read_lines(lines)
    return reader.log()


@attrs.define(eq=False)
class _Run:
    began_ms: float | None = None
    ended_ms: float | None = None
    failed: bool = False
    worker: str | None = None


@attrs.define(eq=False)
class _Job:
    claims: tuple[Claim, ...] | None = None
    on_retry: str | None = None
    called_ms: float | None = None
    returned_ms: float | None = None
    canceled_ms: float | None = None
    runs: dict[str | int, _Run] = attrs.Factory(dict)


class IntervalReader:
    """Reads one log from several files, one after the other."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._claims: dict[tuple[Claim, ...], tuple[Claim, ...]] = {}
        """One tuple for all jobs of one place."""
        self._runs = 0
        self._skipped: Counter[str] = Counter()

    def read_file(self, file: IO[bytes]) -> None:
        """Like `read_lines`. An overlong line is read no further than its error requires."""
        self.read_lines(iter(lambda: file.readline(LINE_BYTES_MAX + 1), b""))

    def read_lines(self, lines: Iterable[str | bytes]) -> None:
        """
        Take in lines.

        Raises:
            InvalidTraceError: one is not of a log of intervals; it says which.
        """
        torn: tuple[int, LineError] | None = None
        for number, line in enumerate(lines, 1):
            if torn is not None:
                raise InvalidTraceError(f"line {torn[0]}: {torn[1]}")
            try:
                found = _object(line)
            except LineError as error:
                if not _is_cut_off(line):
                    raise InvalidTraceError(f"line {number}: {error}") from None
                torn = number, error
                continue
            if found is None:
                continue
            try:
                self._take(found)
            except (LineError, QueueHintError) as error:
                raise InvalidTraceError(f"line {number}: {error}") from None
        if torn is not None:
            self._skipped[_CUT_OFF] += 1

    def log(self) -> IntervalLog:
        """
        Return the log read.

        Raises:
            InvalidTraceError: times of a job contradict one another; it says of which.
        """
        jobs = []
        for job_id, job in self._jobs.items():
            runs = []
            for run in job.runs.values():
                if run.began_ms is None:
                    self._skipped[_NOT_BEGUN] += 1
                else:
                    runs.append(run)
            try:
                jobs.append(_built(job_id, job, runs))
            except InvalidTraceError as error:
                raise InvalidTraceError(f"job {shown(job_id)}: {error}") from None
        return IntervalLog(jobs=tuple(jobs), skipped=tuple(f"{text}: {count}" for text, count in self._skipped.items()))

    # --- one line ------------------------------------------------------------------------------------------------

    def _take(self, found: dict[str, Any]) -> None:
        if "trace" in found or ("kind" in found and not _TIMES & found.keys()):
            raise LineError("this is a trace: `queuehint check-trace` or read_trace reads it")
        if "stamp" not in found and "job" not in found:
            raise LineError("a time stamp (stamp) or a job (job) is expected")
        job_id = text_of(found, "job")
        job = self._jobs.get(job_id)
        if job is None:
            if len(self._jobs) == JOBS_MAX:
                raise LineError(f"a log has at most {JOBS_MAX} jobs")
            job = self._jobs[job_id] = _Job()
        self._describe(job_id, job, found)
        if "stamp" in found:
            self._stamp(job_id, job, found)
            return
        for name in ("called", "returned", "canceled"):
            if found.get(name) is not None:
                _keep_first(job, name, time_of(found, name))
        runs = found.get("runs") or []
        if not isinstance(runs, list):
            raise LineError(f"runs must be a list of pairs of times, got {shown(runs)}")
        for number, pair in enumerate(runs):
            if not isinstance(pair, list) or not 1 <= len(pair) <= 2 or pair[0] is None:
                raise LineError(f"runs[{number}] must be a pair of times, its beginning and its end, got {shown(pair)}")
            run = self._run(job_id, job, len(job.runs))
            began, ended = f"runs[{number}][0]", f"runs[{number}][1]"
            run.began_ms = time_of({began: pair[0]}, began)
            run.ended_ms = time_of({ended: pair[1]}, ended) if pair[1:] and pair[1] is not None else None

    def _describe(self, job_id: str, job: _Job, found: dict[str, Any]) -> None:
        """Add the place of a job from a line that has one."""
        if "hint" in found or "claims" in found:
            claims = TraceReader().job(found).claims
            if job.claims is not None and job.claims != claims:
                raise LineError(f"job {shown(job_id)} is described twice, with different places")
            job.claims = self._claims.setdefault(claims, claims)
        on_retry = found.get("on_retry")
        if on_retry is not None:
            if on_retry not in ON_RETRY:
                raise LineError(f"on_retry must be hold or yield, got {shown(on_retry)}")
            job.on_retry = on_retry

    def _stamp(self, job_id: str, job: _Job, found: dict[str, Any]) -> None:
        stamp = found["stamp"]
        if stamp not in STAMPS:
            raise LineError(f"stamp must be one of {', '.join(STAMPS)}, got {shown(stamp)}")
        at_ms = time_of(found, "at")
        if stamp not in {"began", "ended"}:
            _keep_first(job, stamp, at_ms)
            return
        run = self._run(job_id, job, optional_text_of(found, "run") or "")
        if getattr(run, f"{stamp}_ms") is not None:
            raise LineError(f"a run of job {shown(job_id)} {stamp} twice: give each run of a job another text as run")
        setattr(run, f"{stamp}_ms", at_ms)
        run.worker = optional_text_of(found, "worker") or run.worker
        if stamp == "ended":
            failed = found.get("failed", False)
            if not isinstance(failed, bool):
                raise LineError(f"failed must be true or false, got {shown(failed)}")
            run.failed = failed

    def _run(self, job_id: str, job: _Job, name: str | int) -> _Run:
        run = job.runs.get(name)
        if run is None:
            if self._runs == RUNS_MAX:
                raise LineError(f"a log has at most {RUNS_MAX} runs; that of job {shown(job_id)} is one more")
            self._runs += 1
            run = job.runs[name] = _Run()
        return run


def _is_cut_off(line: str | bytes) -> bool:
    """Return whether an invalid line is the truncated end of a log, after a kill or on a full disk."""
    text = line if isinstance(line, str) else line.decode("latin-1")
    return text.startswith("{") and not text.endswith("\n") and len(text) <= LINE_BYTES_MAX


def _object(line: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, None for an empty line."""
    if len(line) > LINE_BYTES_MAX:
        raise LineError(f"longer than {LINE_BYTES_MAX >> 20} MiB")
    if not line.strip():
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"no JSON: {'nested too deeply' if isinstance(error, RecursionError) else error}") from None
    if not isinstance(found, dict):
        raise LineError(f"a JSON object is expected, not {type(found).__name__}")
    return found


def _keep_first(job: _Job, name: str, at_ms: float) -> None:
    """Keep a time of a job. Of a repeated enqueue keep the first call and the first return."""
    known = getattr(job, f"{name}_ms")
    setattr(job, f"{name}_ms", at_ms if known is None else min(known, at_ms))


def _built(job_id: str, job: _Job, runs: list[_Run]) -> JobIntervals:
    return JobIntervals(
        job=job_id,
        claims=job.claims,
        called_ms=job.called_ms,
        returned_ms=job.returned_ms,
        canceled_ms=job.canceled_ms,
        on_retry=cast("Any", job.on_retry or "hold"),
        runs=tuple(
            RunInterval(
                began_ms=cast("float", run.began_ms), ended_ms=run.ended_ms, failed=run.failed, worker=run.worker
            )
            for run in runs
        ),
    )
