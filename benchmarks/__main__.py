"""
Run benchmarks by name, all of them by default: `python -m benchmarks [memory] [sqlite] [redis] ... [--quick] ...`.

The exit code says nothing about speed: figures depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from importlib import import_module
from pathlib import Path

from benchmarks.report import TIMER, Report, load

ALL = (
    "memory",
    "sqlite",
    "postgres",
    "redis",
    "edges",
    "backlog",
    "records",
    "steps",
    "doctor",
    "simulation",
    "traces",
)
MODULES = (*ALL, "api", "board", "postgres_peers", "takeover")
"""Each has `run(report, *, quick)`; that of redis takes more. `api` is a part of `memory`."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, and compare with others.")
    parser.add_argument("modules", nargs="*", metavar="module", help=f"which to run; of {', '.join(MODULES)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, to see that everything runs")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time, on a machine that others use too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    redis = parser.add_argument_group("for redis")
    redis.add_argument("--items", default="abcdefgh", metavar="LETTERS", help="drain, enqueue, serial, latency, ...")
    redis.add_argument("--jobs", type=int, metavar="N", help="how many for a figure (20,000; quick 1,000)")
    redis.add_argument("--blocked", type=int, metavar="N", help="how many behind one path (1,000,000; quick 20,000)")
    redis.add_argument("--peers", metavar="NAMES", help="compare with these only, by commas; empty: with none")
    redis.add_argument("--concurrency", type=int, default=128, metavar="N", help="of queuehint's worker")
    options = parser.parse_args()
    unknown = [name for name in options.modules if name not in MODULES]
    if unknown:
        parser.error(f"no module {', '.join(unknown)}; there are {', '.join(MODULES)}")
    if options.cpu_time:
        TIMER.read_s = time.process_time
    clock = "CPU time of this process" if options.cpu_time else "wall time"
    begin_s, begin_cpu_s, load_before = time.perf_counter(), time.process_time(), load()
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs, load {load_before}\n"
        f"{'Smaller sizes, on Redis each once; ' if options.quick else ''}{clock}; medians of three (min .. max)"
    )
    report = Report()
    peers = None if options.peers is None else options.peers.split(",")
    more = {"items": options.items, "jobs": options.jobs, "blocked": options.blocked, "peers": peers}
    settings = {
        "redis": {**more, "concurrency": options.concurrency},
        "edges": {"peers": peers},
        "backlog": {"peers": peers},
    }
    for name in options.modules or ALL:
        import_module(f"benchmarks.{name}").run(report, quick=options.quick, **settings.get(name, {}))
    report.summary()
    seconds = time.perf_counter() - begin_s
    share = (time.process_time() - begin_cpu_s) / seconds
    print(f"\n{seconds:.0f} s, of which this process had a CPU for {share:.0%}; load {load()}")
    if options.json is not None:
        facts = {"quick": options.quick, "clock": clock, "load_before": load_before, "load_after": load()}
        facts |= {"seconds": round(seconds, 1), "cpu_share": round(share, 3)}
        options.json.write_text(json.dumps(report.as_json(**facts), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
