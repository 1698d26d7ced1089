"""
What `queuehint doctor` costs a Redis: an import of 49 000 records, each checked and loaded, and one summary.

It is examined before anything has run, half way, and when all of it is over. The CPU time of the server's main thread
is read around each request, as in `steps`: a target is that no call takes more than 20 ms of it, and that a job of the
large import costs at most twice what one of a small import does.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.servers import RedisServer
from benchmarks.steps import LOOP_MS, STEP_MS, Measured, Probe
from queuehint import Claim, Dependency, JobSpec, Outcome, OutcomeKind
from queuehint.backends.redis.doctor import doctor
from queuehint.operations import JOBS_AT_ONCE, Exchange

if TYPE_CHECKING:
    from benchmarks.report import Report
    from queuehint.backends.report import Report as Diagnosis

SMALL, LARGE = 1_000, 49_000
SHAPES = {"nothing has run": 0.0, "half of it has run": 0.5, "all is over": 1.0}
RATIO = 2.0


def run(report: Report, *, quick: bool) -> None:
    """Measure each shape once at both sizes; it takes some minutes."""
    if shutil.which("redis-server") is None:
        report.miss("redis-server")
        return
    sizes = (100, 2_500) if quick else (SMALL, LARGE)
    report.title(f"doctor, imports of {' and '.join(f'{size:,}' for size in sizes)} records: the server's CPU time")
    with RedisServer() as server:
        for shape, part in SHAPES.items():
            each = [_measure(report, server, shape, part, records) for records in sizes]
            report.aim(
                f"a job of the large import / one of the small one, {shape}", each[1] / each[0], RATIO, at_most=True
            )


def _measure(report: Report, server: RedisServer, shape: str, part: float, records: int) -> float:
    """Report the whole time and the longest call; return ms a job."""
    probe = Probe(server, f"records{records}", 3)
    probe.submit(_import(records), whole=True)
    _settle(probe, round(part * (2 * records + 1)))
    before_ms = probe.loop_ms()
    times = _examined(probe)
    scale = LOOP_MS / ((before_ms + probe.loop_ms()) / 2)
    jobs, longest_ms, whole_ms = 2 * records + 1, max(times)[0] * scale, sum([ms for ms, _ in times]) * scale
    report.add(
        f"{jobs:,} jobs, {shape}", "s", whole_ms / 1000, note=f"{whole_ms / jobs:.3f} ms a job, {len(times):,} calls"
    )
    figure = report.add(f"{jobs:,} jobs, {shape}: the longest call", "ms", longest_ms, note=max(times)[1])
    report.aim(figure.name, longest_ms, STEP_MS, at_most=True)
    probe.scheduler.close_sync()
    server.client.flushdb()
    return whole_ms / jobs


def _examined(probe: Probe) -> list[tuple[float, str]]:
    """Examine the namespace; return the CPU time of the server for each call in ms, and its script."""
    backend: Any = probe.backend
    times: list[tuple[float, str]] = []
    with (
        patch.object(doctor, "SyncLink", lambda address: Measured(address, probe)),
        patch.object(probe, "note", lambda command, cost: times.append((cost.cpu_ms, probe.name_of(command)))),
    ):
        diagnosis: Diagnosis = doctor.diagnose(backend)
    if not diagnosis.is_clean or not diagnosis.was_quiet:
        raise SystemExit(str(diagnosis))
    return times


def _import(records: int) -> list[JobSpec]:
    jobs = []
    for record in range(records):
        jobs.append(JobSpec(id=f"check-{record}", task="check", claims=_at(record, "check"), flow="import"))
        needs = (Dependency(f"check-{record}"),)
        jobs.append(
            JobSpec(id=f"load-{record}", task="load", claims=_at(record, "load"), flow="import", depends_on=needs)
        )
    loads = tuple([Dependency(f"load-{record}") for record in range(records)])
    return [*jobs, JobSpec(id="sum", task="sum", claims=(Claim(("import",)),), flow="import", depends_on=loads)]


def _at(record: int, step: str) -> tuple[Claim, ...]:
    return (Claim(("import", str(record), step)),)


def _settle(probe: Probe, most: int) -> None:
    """Run so many jobs."""
    outcomes: tuple[Outcome, ...] = ()
    while True:
        limit = min(JOBS_AT_ONCE, most)
        reply = probe.call(Exchange("w", settle=outcomes, limit=limit))
        most -= len(reply.grants)
        outcomes = tuple(
            [
                Outcome(job_id=got.spec.id, token=got.token, kind=OutcomeKind.FINISHED, result=b"1")
                for got in reply.grants
            ]
        )
        if not outcomes:
            return
