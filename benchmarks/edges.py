"""
Cost of edges: fan-ins compared with other queues, a parent with very many dependents, a long chain.

A flow is 100 jobs and one more that runs after all of them. Each contender enqueues 20 flows in the way it documents;
time is taken from before the first job is enqueued until the last one has run, with a worker that waits already.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.contender import WIDTH
from benchmarks.redis import OURS, Bench
from benchmarks.redis_peers import KINDS
from benchmarks.servers import RedisServer
from queuehint import Claim, Dependency, JobSpec, Outcome, OutcomeKind, Scheduler
from queuehint.operations import Enqueue, Exchange, Get, Tick

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.report import Report

FLOWS = 20
SETTLE_S = 3.0
QUOTED_S = {"bullmq": 0.58, "dramatiq": 1.1, "huey": 1.3, "streaq": 1.5}
"""Seconds for 20 flows as measured elsewhere, for those that are not here."""
AT_ONCE = 1000
STEP_MS = 20.0


def run(report: Report, *, quick: bool, peers: Sequence[str] | None = None) -> None:
    """Measure all; it takes some minutes."""
    if shutil.which("redis-server") is None:
        report.miss("redis-server")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and workers end with us
    bench = Bench(report=report, jobs=FLOWS, blocked=0, quick=quick, concurrency=128, shape="flows")
    names = [name for name, kind in KINDS.items() if kind.has_flows and (peers is None or name in (*peers, OURS))]
    with bench.prepared(names):
        _fans(bench)
    _wide(report, 10_000 if quick else 100_000)
    for url in ("memory://", "redis"):
        _chain(report, url, 1_000 if quick else 10_000)


def _fans(bench: Bench) -> None:
    bench.report.title(f"(a) {FLOWS} flows of {WIDTH} jobs and one that waits for them, one worker process")

    def measure(name: str, _shape: str) -> float:
        with bench.store(name) as store, bench.worker(name, store, FLOWS) as wait:
            time.sleep(SETTLE_S)
            begin_ns = bench.produced(name, store, "flows", "plain", FLOWS)["begin_ns"]
            return float((wait()["last_ns"] - begin_ns) / 1e9)

    found = bench.in_turn([(name, "plain") for name in bench.names], measure)
    figures = bench.compare("", "s", found, {})
    ours = figures.get((OURS, "plain"))
    if ours is None:
        return
    for name, quoted_s in QUOTED_S.items():
        peer = figures.get((name, "plain"))
        seconds, where = (peer.median, "here") if peer else (quoted_s, "elsewhere")
        bench.report.aim(f"{name} ({where}) / queuehint", seconds / ours.median, 1.0)


def _wide(report: Report, width: int) -> None:
    """One job with very many dependents: how long the longest step is, how long all take, and in which order."""
    report.title(f"(b) a job with {width:,} dependents, at places of depth 2")
    with RedisServer() as server:
        scheduler = Scheduler(server.url, namespace="bench")
        backend = scheduler.backend
        backend.call_sync(Enqueue((JobSpec(id="parent", task="t", pool="first"),)))
        began = time.perf_counter()
        for begin in range(0, width, AT_ONCE):
            backend.call_sync(Enqueue(tuple(_dependent(number) for number in range(begin, begin + AT_ONCE))))
        enqueued = time.perf_counter()
        report.add("enqueue", "us a job", (enqueued - began) / width * 1e6)
        (grant,) = backend.call_sync(Exchange("w", pools=("first",), limit=1)).grants
        server.client.slowlog_reset()
        settled = Outcome(job_id="parent", token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
        began = time.perf_counter()
        steps, more = 1, backend.call_sync(Exchange("w", settle=(settled,), pools=("first",))).more
        while more:
            more = backend.call_sync(Tick()).more
            steps += 1
        released = time.perf_counter() - began
        longest_ms = max((ms for ms, _ in server.slow()), default=0.0)
        places: list[int] = []
        for begin in range(0, width, AT_ONCE):
            ids = tuple(str(number) for number in range(begin, begin + AT_ONCE))
            places += [record.seq or 0 for record in backend.call_sync(Get(ids)).records if record is not None]
        in_order = places == sorted(places) and len(places) == width
        report.add(
            "release them all", "s", released, note=f"{steps} steps, {'in order' if in_order else 'NOT in order'}"
        )
        report.add("release", "us a job", released / width * 1e6)
        report.aim("longest step, ms", longest_ms, STEP_MS, at_most=True)
        scheduler.close_sync()


def _dependent(number: int) -> JobSpec:
    place = Claim((f"doc-{number % 1000}", f"part-{number}"))
    return JobSpec(id=str(number), task="t", claims=(place,), depends_on=(Dependency("parent"),))


def _chain(report: Report, url: str, length: int) -> None:
    """Jobs of which each waits for the one before."""
    report.title(f"(c) a chain of {length:,}, on {url.partition(':')[0]}")

    async def main(url: str) -> tuple[float, float]:
        scheduler = Scheduler(url, namespace="bench")

        @scheduler.job
        async def link() -> None:
            pass

        async with scheduler:
            began = time.perf_counter()
            async with scheduler.flow() as flow:
                last: Any = None
                for _ in range(length):
                    last = flow.add(link if last is None else link.using(after=[last]))
            submitted = time.perf_counter()
            async with scheduler.worker(16):
                await flow.result()
            return submitted - began, time.perf_counter() - submitted

    def measured() -> tuple[float, float]:
        if url == "redis":
            with RedisServer() as server:
                return asyncio.run(main(server.url))
        return asyncio.run(main(url))

    submit_s, run_s = measured()
    report.add("submit", "us a link", submit_s / length * 1e6)
    report.add("run", "us a link", run_s / length * 1e6)
