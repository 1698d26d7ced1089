"""
A real Redis: jobs per second, latency, server time and bytes per job, compared with other queues on the same machine.

Each figure is of a fresh server, pinned to one CPU; producer and worker are one process each, pinned to another. Jobs
are enqueued before the worker starts, and the handlers themselves take the time from the first to the last of them.
Contenders take turns, so that other load of the machine affects all of them alike. `µs CPU` is the CPU time of the
worker's process for a job, which other load hardly changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from benchmarks import redis_server_side
from benchmarks.contender import PER_S, Orders
from benchmarks.redis_peers import KINDS
from benchmarks.report import REPEATS, TIMER, Figure, Report
from benchmarks.servers import IS_PINNED, ON_CLIENT_CPU, PostgresServer, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
Store = RedisServer | PostgresServer
Key = tuple[str, str]
"""A contender and a shape of jobs, or a way to enqueue them."""

OURS = "queuehint"
ITEMS = "abcdefgh"
WARM_UP = 100
PATIENCE_S = 90.0
HOT_PER_S, DRAIN_PER_S = 3_000, 18_000
"""Jobs per second: the target on one hot path, and the figure (a) beside it; their ratio is a target too."""
SERVER_US = {"enqueue": 25, "claim and finish": 45, "enqueue one by one": 110}
"""In the units of a quiet machine; see the yardsticks."""
QUOTED = {"bullmq": 25_000.0, "pgqueuer": 19_500.0, "dramatiq": 10_600.0, "procrastinate serial": 870.0}
"""Jobs a second as measured elsewhere, for those that are not here."""
QUOTED_BULK = {"bullmq": 28_000.0, "pgqueuer": 73_000.0}


def run(
    report: Report,
    *,
    quick: bool,
    items: str = ITEMS,
    jobs: int | None = None,
    blocked: int | None = None,
    peers: Sequence[str] | None = None,
    concurrency: int = 128,
) -> None:
    """
    Measure the items of these letters; all of it takes half an hour and 2 GB.

    Args:
        jobs: how many for each figure.
        blocked: how many wait behind one path in (e).
        peers: which to compare with; by default all that are installed.
    """
    if shutil.which("redis-server") is None:
        report.miss("redis-server")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and workers end with us
    bench = Bench(
        report=report,
        jobs=jobs or (1_000 if quick else 20_000),
        blocked=blocked or (20_000 if quick else 1_000_000),
        quick=quick,
        concurrency=concurrency,
    )
    with bench.prepared(
        [OURS, *(name for name in KINDS if name != OURS and KINDS[name].modes and (peers is None or name in peers))]
    ):
        for letter, section in zip(ITEMS, SECTIONS, strict=True):
            if letter in items:
                try:
                    section(bench)
                except FailedError as error:
                    print(f"  {error}", flush=True)
                    report.miss(f"({letter}), all or the rest of it: failed")


class FailedError(Exception):
    """A contender's process has ended, or takes too long."""


@attrs.define(kw_only=True)
class Bench:
    """Starts servers, producers and workers, and keeps what several sections need."""

    report: Report
    jobs: int
    blocked: int
    quick: bool
    concurrency: int
    shape: str = ""
    patience_s: float = PATIENCE_S
    names: list[str] = attrs.field(factory=list)
    drained: dict[Key, float] = attrs.field(factory=dict)
    slow: list[tuple[float, str]] = attrs.field(factory=list)
    waited_ms: float = 0
    _postgres: PostgresServer = attrs.field(factory=PostgresServer)
    _logs: Path = Path()

    @contextlib.contextmanager
    def prepared(self, names: Sequence[str]) -> Iterator[None]:
        """Keep those that can be measured here; PostgreSQL runs only if one of them needs it."""
        self.report.title("On Redis")
        for name in names:
            kind = KINDS[name]
            lacks = kind.lacks()
            if not lacks and kind.store == "postgres" and not self._postgres.is_installed:
                lacks = "no PostgreSQL"
            if lacks:
                self.report.miss(f"{kind.title} ({lacks})")
            else:
                self.names.append(name)
        with contextlib.ExitStack() as stack:
            self._logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="queuehint-bench-")))
            if any(KINDS[name].store == "postgres" for name in self.names):
                stack.enter_context(self._postgres.running())
            with RedisServer() as server:
                pinned = "pinned to two CPUs" if IS_PINNED else "NOT pinned"
                print(f"  redis-server {server.version}, redis-py {_version('redis')}, hiredis {_version('hiredis')}")
                if TIMER.read_s is not time.perf_counter:
                    print("  figures here are of wall time all the same; see `µs CPU`")
                print(f"  server and clients {pinned}; queuehint's worker with {self.concurrency} at once", flush=True)
            yield

    @property
    def repeats(self) -> int:
        """How often each figure is taken; once is enough to see that everything runs."""
        return 1 if self.quick else REPEATS

    @property
    def has_ours(self) -> bool:
        return OURS in self.names

    @property
    def peers(self) -> list[str]:
        return [name for name in self.names if name != OURS]

    def share(self, name: str) -> int:
        """Return how many jobs a contender gets; slow ones get fewer."""
        return int(self.jobs * KINDS[name].share)

    @contextlib.contextmanager
    def store(self, name: str) -> Iterator[Store]:
        """Give a contender an empty store."""
        if KINDS[name].store == "postgres":
            self._postgres.clear()
            self._finish(name, self._postgres, "set_up")
            yield self._postgres
            return
        with RedisServer() as server:
            yield server
            if name == OURS:
                self.slow += server.slow()
                self.waited_ms += server.waited_ms

    def produce(self, name: str, store: Store, mode: str, shape: str, jobs: int) -> float:
        """Enqueue; return the seconds it took, without the start of the process."""
        return float(self.produced(name, store, mode, shape, jobs)["seconds"])

    def produced(self, name: str, store: Store, mode: str, shape: str, jobs: int) -> dict[str, Any]:
        """Enqueue; return the seconds it took and when it began, by the clock of all processes."""
        printed = self._finish(name, store, "produce", mode, shape, str(jobs))
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found

    def analyze(self, name: str) -> None:
        """Let PostgreSQL know what has been enqueued."""
        if KINDS[name].store == "postgres":
            self._postgres.analyze()

    @contextlib.contextmanager
    def worker(self, name: str, store: Store, jobs: int, role: str = "work") -> Iterator[Callable[[], dict[str, Any]]]:
        """Run a worker; what is yielded waits for its report of so many jobs."""
        out = Path(self._logs, "report.json")
        out.unlink(missing_ok=True)
        log = Path(self._logs, f"{name}.log")
        with log.open("ab") as file:
            process = subprocess.Popen(
                (*ON_CLIENT_CPU, *KINDS[name].command(), role),
                env=self._environment(store, jobs, out),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

        def wait() -> dict[str, Any]:
            end_s = time.monotonic() + self.patience_s
            while not out.exists():
                if process.poll() not in (None, 0) or time.monotonic() > end_s:
                    raise FailedError(f"{name} {role}: {process.poll()}: {log.read_text(errors='replace')[-1500:]}")
                time.sleep(0.02)
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            if found["disorder"]:
                raise FailedError(f"{name}: {found['disorder']} jobs out of order")
            return found

        try:
            yield wait
        finally:
            _end(process)

    def drain(self, name: str, shape: str) -> dict[str, Any]:
        """Enqueue all, then let a worker start and do it."""
        jobs = self.share(name)
        with self.store(name) as store:
            is_bulk = "bulk" in KINDS[name].modes and shape != "serial"
            self.produce(name, store, "bulk" if is_bulk or name == OURS else "one", shape, jobs)
            self.analyze(name)
            with self.worker(name, store, jobs) as wait:
                return wait()

    def in_turn(self, keys: Sequence[Key], measure: Callable[[str, str], T]) -> dict[Key, list[T]]:
        """Measure each some times, taking turns; a contender that fails is reported and left out."""
        found: dict[Key, list[T]] = {key: [] for key in keys}
        for turn in range(self.repeats):
            for key in list(found):
                begin_s = time.monotonic()
                try:
                    found[key].append(measure(*key))
                except FailedError as error:
                    print(f"  {error}", flush=True)
                    self.report.miss(f"{KINDS[key[0]].title}: failed")
                    del found[key]
                self.report.progress(f"{' '.join(key)}, {turn + 1} of {self.repeats}", time.monotonic() - begin_s)
        return found

    def compare(self, label: str, unit: str, found: dict[Key, list[float]], notes: dict[Key, str]) -> dict[Key, Figure]:
        """Print a line each, and how many times of it the first of ours is."""
        figures: dict[Key, Figure] = {}
        ours = next((key for key in found if key[0] == OURS), None)
        for key, values in found.items():
            note = notes.get(key, "")
            if ours in figures and statistics.median(values):
                note = f"queuehint / this: {figures[ours].median / statistics.median(values):.2f}; {note}"
            title = KINDS[key[0]].title
            title = title if key[1] == "plain" else f"{title}, {key[1]}"
            figures[key] = self.report.add(f"{title}{label}", unit, *values, note=note.strip("; "))
        return figures

    def _environment(self, store: Store, jobs: int, out: Path) -> dict[str, str]:
        orders = Orders(url=store.url, jobs=jobs, out=str(out), shape=self.shape, concurrency=self.concurrency)
        return os.environ | {"BENCH": json.dumps(attrs.asdict(orders))}

    def _finish(self, name: str, store: Store, *arguments: str) -> str:
        try:
            return subprocess.run(
                (*ON_CLIENT_CPU, *KINDS[name].command(), *arguments),
                env=self._environment(store, 0, Path()),
                capture_output=True,
                text=True,
                check=True,
                timeout=900,
            ).stdout
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise FailedError(f"{name} {' '.join(arguments)}: {error}: {str(error.stderr)[-1500:]}") from None


# --- (a) and (c): jobs a second --------------------------------------------------------------------------------------


def _rates(bench: Bench, keys: Sequence[Key]) -> dict[Key, Figure]:
    found = bench.in_turn(keys, bench.drain)
    notes = {}
    for key, reports in found.items():
        notes[key] = f"{statistics.median(each['cpu_s'] / each['jobs'] for each in reports) * 1e6:.0f} µs CPU"
        if key[0] == OURS:
            notes[key] += f"; all settled {statistics.median(each['settled_s'] for each in reports) * 1e3:.0f} ms later"
    rates = {key: [(each["jobs"] - 1) / each["seconds"] for each in reports] for key, reports in found.items()}
    figures = bench.compare("", "jobs/s", rates, notes)
    bench.drained |= {key: figure.median for key, figure in figures.items()}
    return figures


def _drain(bench: Bench) -> None:
    bench.report.title(f"(a) {bench.jobs:,} no-op jobs through one worker process; peers keep no order")
    ours = [(OURS, shape) for shape in ("parts", "branches")] if bench.has_ours else []
    figures = _rates(bench, [*ours, *((name, "plain") for name in bench.peers)])
    if (OURS, "parts") in figures:
        for name, factor in (("bullmq", 1.0), ("dramatiq", 3.0), ("pgqueuer", 1.0)):
            peer = figures.get((name, "plain"))
            rate, where = (peer.median, "here") if peer else (QUOTED[name], "elsewhere")
            bench.report.aim(f"(a) drain: queuehint / {name} ({where})", figures[OURS, "parts"].median / rate, factor)


def _serial(bench: Bench) -> None:
    bench.report.title(f"(c) strictly serial: {bench.jobs:,} jobs over 1,000 keys, and in one hot path")
    ours = [(OURS, shape) for shape in ("serial", "hot")] if bench.has_ours else []
    figures = _rates(bench, [*ours, *((name, "serial") for name in bench.peers if name == "procrastinate")])
    if not ours or ours[0] not in figures:
        return
    serial, lock = figures[OURS, "serial"].median, figures.get(("procrastinate", "serial"))
    rate, where = (lock.median, "here") if lock else (QUOTED["procrastinate serial"], "elsewhere")
    bench.report.aim(f"(c) 1,000 keys: queuehint / procrastinate's lock ({where})", serial / rate, 30)
    if (OURS, "parts") in bench.drained:
        bench.report.aim("(c) 1,000 keys / (a)", serial / bench.drained[OURS, "parts"], 0.9)
    if (OURS, "hot") in figures:
        hot = figures[OURS, "hot"].median
        bench.report.aim("(c) one hot path, jobs a second", hot, HOT_PER_S)
        if (OURS, "parts") in bench.drained:
            bench.report.aim("(c) one hot path / (a)", hot / bench.drained[OURS, "parts"], HOT_PER_S / DRAIN_PER_S)


# --- (b) enqueuing ---------------------------------------------------------------------------------------------------


def _enqueue(bench: Bench) -> None:
    def measure(name: str, mode: str) -> float:
        with bench.store(name) as store:
            return bench.share(name) / bench.produce(name, store, mode, "parts", bench.share(name))

    def rates(prefix: str) -> dict[Key, Figure]:
        keys = [(name, mode) for name in bench.names for mode in KINDS[name].modes if mode.startswith(prefix)]
        return bench.compare("", "jobs/s", bench.in_turn(keys, measure), {})

    bench.report.title("(b) enqueue in bulk, from one client; peers without a bulk call: 50 at once, if they are async")
    bulk = rates("bulk")
    bench.report.title("(b) enqueue one by one, from one client")
    single = rates("one")
    if (OURS, "bulk") in bulk:
        for name, factor in (("bullmq", 1.3), ("pgqueuer", 1.0)):
            peer = bulk.get((name, "bulk"))
            rate, where = (peer.median, "here") if peer else (QUOTED_BULK[name], "elsewhere")
            bench.report.aim(f"(b) bulk: queuehint / {name} ({where})", bulk[OURS, "bulk"].median / rate, factor)
    ours = {mode: figure.median for (name, mode), figure in single.items() if name == OURS}
    for (name, _), figure in single.items():
        # Plain calls against plain calls, and those that are awaited against the same.
        mode = "one_sync" if KINDS[name].is_plain else "one"
        if name not in (OURS, "bullmq") and mode in ours:
            factor = 0.8 if name == "huey" else 1.0
            bench.report.aim(f"(b) one by one: queuehint / {name}", ours[mode] / figure.median, factor)
    if len(ours) == 2:
        huey = single.get(("huey", "one"))
        if huey is not None:
            bench.report.aim("(b) one by one: queuehint, awaited / huey", ours["one"] / huey.median, 0.8)


# --- (d) latency -----------------------------------------------------------------------------------------------------


def _latency(bench: Bench) -> None:
    jobs = WARM_UP + (2 if bench.quick else 5) * PER_S
    bench.report.title(f"(d) an idle system, {PER_S} jobs/s: from enqueue to handler")

    def measure(name: str, shape: str) -> tuple[float, float]:
        with bench.store(name) as store, bench.worker(name, store, jobs) as wait:
            time.sleep(2)
            bench.produce(name, store, "paced", shape, jobs)
            waits_ms = sorted(each / 1e6 for each in wait()["waits"][WARM_UP:])
            return statistics.median(waits_ms), waits_ms[int(len(waits_ms) * 0.99)]

    found = bench.in_turn([(name, "parts" if name == OURS else "plain") for name in bench.names], measure)
    for index, label in enumerate((": p50", ": p99")):
        times = {key: [pair[index] for pair in pairs] for key, pairs in found.items()}
        figures = bench.compare(label, "ms", times, {})
        huey = figures.get(("huey", "plain"))
        if huey is not None and (OURS, "parts") in figures:
            ratio = figures[OURS, "parts"].median / huey.median
            bench.report.aim(f"(d) latency{label}: queuehint / huey", ratio, 1.0, at_most=True)


# --- (e) what a job costs the server ---------------------------------------------------------------------------------


def _server_time(bench: Bench) -> None:
    bench.report.title("(e) server time a job: µs in scripts")
    if not bench.has_ours:
        return

    def measure(store: Store, shape: str, jobs: int) -> dict[str, tuple[float, ...]]:
        """Return µs in scripts, µs of CPU and scripts run, all for one job."""
        assert isinstance(store, RedisServer)
        found = {}
        store.reset_costs()
        bench.produce(OURS, store, "bulk", shape, jobs)
        found["enqueue"] = tuple(cost / jobs for cost in store.costs_us())
        store.reset_costs()
        with bench.worker(OURS, store, jobs) as wait:
            wait()
            found["claim and finish"] = tuple(cost / jobs for cost in store.costs_us())
        return found

    def fresh(_name: str, shape: str) -> dict[str, tuple[float, ...]]:
        with bench.store(OURS) as store:
            assert isinstance(store, RedisServer)
            measure(store, shape, WARM_UP)
            found, few = measure(store, shape, bench.jobs), bench.jobs // 10
            store.reset_costs()
            bench.produce(OURS, store, "one_sync", shape, few)
            return found | {"enqueue one by one": tuple(cost / few for cost in store.costs_us())}

    def show(key: str, costs: Sequence[dict[str, tuple[float, ...]]]) -> dict[str, float]:
        medians = {}
        for part in costs[0]:
            scripts_us, cpu_us, runs = zip(*(each[part] for each in costs), strict=True)
            note = f"{statistics.median(cpu_us):.1f} µs CPU in all; {statistics.median(runs):.3f} scripts"
            medians[part] = bench.report.add(f"{key}: {part}", "µs", *scripts_us, note=note).median
        return medians

    redis_server_side.yardsticks(bench.report, bench.repeats)
    for (_, shape), costs in bench.in_turn([(OURS, f"depth{depth}") for depth in (1, 3, 8)], fresh).items():
        found = show(f"depth {shape[-1]}", costs)
        if shape == "depth3":
            for part, most in SERVER_US.items():
                bench.report.aim(f"(e) server time at depth 3, {part}, µs", found[part], most, at_most=True)
    with bench.store(OURS) as free, bench.store(OURS) as full, bench.worker(OURS, full, 1, "hold") as held:
        held()
        seconds = bench.produce(OURS, full, "bulk", "blocked", bench.blocked)
        bench.report.add(f"filling in {bench.blocked:,} behind one path", "jobs/s", bench.blocked / seconds)
        stores = {"empty": free, "full": full}
        for store in stores.values():
            measure(store, "parts", WARM_UP)
        turns = bench.in_turn([(OURS, key) for key in stores], lambda _, key: measure(stores[key], "parts", bench.jobs))
        if len(turns) < 2:
            return
        empty = show("beside nothing", turns[OURS, "empty"])
        beside = show(f"beside {bench.blocked:,} blocked", turns[OURS, "full"])
    for part, cost_us in beside.items():
        bench.report.aim(f"(e) {part}: beside all those / nothing", cost_us / empty[part], 1.05, at_most=True)


# --- (f) bytes -------------------------------------------------------------------------------------------------------


def _bytes(bench: Bench) -> None:
    bench.report.title("(f) bytes a waiting job in Redis: used_memory, all indexes included")

    def kept(name: str, shape: str, jobs: int) -> float:
        mode = "bulk" if "bulk" in KINDS[name].modes else "one"
        with bench.store(name) as store, contextlib.ExitStack() as stack:
            assert isinstance(store, RedisServer)
            if shape == "blocked":
                stack.enter_context(bench.worker(name, store, 1, "hold"))()
            bench.produce(name, store, mode, shape, WARM_UP)
            time.sleep(0.2)  # the producer's connection is let go
            before = store.used_bytes
            bench.produce(name, store, mode, shape, jobs)
            time.sleep(0.2)
            return (store.used_bytes - before) / jobs

    many = 10_000 if bench.quick else 100_000
    if bench.has_ours:
        shapes = {
            "blocked": "depth 3, behind one path, 1,000 branches: all wait",
            "branches": "depth 3, at random in 1,000 documents: most wait",
            "depth3": "depth 3, each at a leaf of its own: ready",
        }
        figures = {
            shape: bench.report.add(f"queuehint, {text}", "bytes", kept(OURS, shape, many))
            for shape, text in shapes.items()
        }
        bench.report.aim("(f) bytes a waiting job at depth 3", figures["branches"].median, 450, at_most=True)
    for name in bench.peers:
        if KINDS[name].store == "redis":
            try:
                bench.report.add(KINDS[name].title, "bytes", kept(name, "plain", bench.share(name)))
            except FailedError as error:
                print(f"  {error}", flush=True)


# --- (g) and what the server has to do in any case -------------------------------------------------------------------


def _slowest(bench: Bench) -> None:
    if bench.has_ours:
        redis_server_side.longest(bench.report, bench.slow, bench.waited_ms, bench.repeats)


def _idle(bench: Bench) -> None:
    if bench.has_ours:
        redis_server_side.idle(bench.report, 5 if bench.quick else 60)


SECTIONS: tuple[Callable[[Bench], None], ...] = (
    _drain,
    _enqueue,
    _serial,
    _latency,
    _server_time,
    _bytes,
    _slowest,
    _idle,
)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a worker and all it has started."""
    for number, patience_s in ((signal.SIGTERM, 3), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(patience_s)
    process.wait()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
