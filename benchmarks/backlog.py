"""
Free work beside a blocked backlog: 17 000 jobs that all need one place, then 500 that need one of their own each.

Ten jobs run at once, and the worker has begun the backlog already. Time is taken from before the first free job is
enqueued until the last one has run. A queue that searches all waiting jobs for a free one pays for the backlog in each
search; one that keeps blocked jobs apart does not.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.redis import OURS, Bench
from benchmarks.redis_peers import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.report import Report

BACKLOG, FREE = 17_000, 500
SETTLE_S = 3.0


def run(report: Report, *, quick: bool, peers: Sequence[str] | None = None) -> None:
    """Measure all; it takes some minutes."""
    if shutil.which("redis-server") is None:
        report.miss("redis-server")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and workers end with us
    backlog, free = (2_000, 100) if quick else (BACKLOG, FREE)
    bench = Bench(report=report, jobs=free, blocked=backlog, quick=quick, concurrency=10, patience_s=900)
    names = [name for name, kind in KINDS.items() if kind.has_places and (peers is None or name in (*peers, OURS))]
    with bench.prepared(names):
        report.title(f"{free:,} free jobs, ten at once, with none blocked and beside {backlog:,} that need one place")

        def measure(name: str, shape: str) -> float:
            with bench.store(name) as store:
                if shape == "beside":
                    bench.produce(name, store, "bulk", "held", backlog)
                    bench.analyze(name)
                with bench.worker(name, store, free) as wait:
                    time.sleep(SETTLE_S)
                    begin_ns = bench.produced(name, store, "bulk", "free", free)["begin_ns"]
                    return float((wait()["last_ns"] - begin_ns) / 1e9)

        for shape in ("alone", "beside"):
            found = bench.in_turn([(name, shape) for name in bench.names], measure)
            figures = bench.compare("", "s", found, {})
            if (ours := figures.get((OURS, shape))) is None or shape == "alone":
                continue
            for name in bench.peers:
                if (peer := figures.get((name, shape))) is not None:
                    report.aim(f"{name} / queuehint, beside {backlog:,}", peer.median / ours.median, 1.0)
