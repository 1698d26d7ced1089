"""
The engine in memory: lifecycles per second, the cost of waiting jobs, and the same work by simpler designs and peers.

Unless said otherwise jobs carry hints of depth 3, ``["doc-000017", "section-2", "branch-1"]``, spread at random over so
many documents that a branch has five jobs; one in fifty claims the whole section. So under a steady load some are
ready and most stand in lines. Operations are built outside the timed parts, and so are outcomes, which are made from
grants.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import tracemalloc
from collections import deque
from typing import TYPE_CHECKING, Protocol

from benchmarks.peers import PEERS
from benchmarks.report import REPEATS, TIMER, Figure, Report, Stopwatch, repeat
from queuehint import Claim, JobSpec, Outcome, OutcomeKind, Retention, Scheduler, new_id
from queuehint.core.engine import Engine, EngineOptions
from queuehint.operations import Enqueue, Exchange, Tick
from queuehint.values.spec import note_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from benchmarks.peers import Calls
    from queuehint.values.hint import Path
    from queuehint.values.outcome import Grant

BATCH = 64
SUBMISSION = 1000
JOBS_PER_DOC = 20
BEGIN_MS = 1_700_000_000_000
TEN_MINUTES_MS = 600_000
CONCURRENCY = 64
HOT = "hot"


def run(report: Report, *, quick: bool) -> None:
    """Measure all of it; the full run takes minutes and up to 3 GB."""
    _lifecycles(report, sizes=(1_000, 10_000, 50_000) if quick else (10_000, 100_000, 1_000_000), quick=quick)
    _beside_blocked(report, blocked=50_000 if quick else 1_000_000, lifecycles=3_200 if quick else 32_000)
    _plainer_ways(report, waiting=20_000 if quick else 100_000, seconds=0.3 if quick else 2.0)
    public_api(report, jobs=5_000 if quick else 50_000)
    _bytes_per_job(report, jobs=10_000 if quick else 100_000)


# --- jobs --------------------------------------------------------------------------------------------------------


def _spec(path: Path) -> JobSpec:
    doc, section, *branch = path
    arguments = f'{{"doc":"{doc}","section":"{section}","branch":"{"".join(branch)}"}}'
    # Checked where it is made, as by the calls of a scheduler: a store does not look again.
    return note_checked(JobSpec(id=new_id(), task="edit", claims=(Claim(path),), arguments=arguments.encode()))


def _spread(docs: int, seed: int = 1) -> Iterator[JobSpec]:
    """Yield jobs for ever, over all branches of all documents at random; every string is new, as it is for users."""
    choose = random.Random(seed)
    while True:
        doc, place = f"doc-{choose.randrange(docs):06}", choose.randrange(200)
        section = f"section-{place % 2}"
        yield _spec((doc, section) if place < 4 else (doc, section, f"branch-{place // 2 % 2}"))


def _in_turn(docs: int) -> Iterator[JobSpec]:
    """Yield jobs for ever, document after document, over the branches of each; every string is new."""
    for number in itertools.count():
        place = number // docs
        yield _spec((f"doc-{number % docs:06}", f"section-{place % 2}", f"branch-{place // 2 % 2}"))


def _behind_one_path(seed: int = 2) -> Iterator[JobSpec]:
    """Yield the job that holds the hot document, then jobs below it for ever."""
    choose = random.Random(seed)
    yield _spec((HOT, "all"))
    while True:
        yield _spec((HOT, "all", f"branch-{choose.randrange(1000)}"))


def _take(specs: Iterator[JobSpec], count: int) -> tuple[JobSpec, ...]:
    return tuple([next(specs) for _ in range(count)])


def _outcomes(grants: Iterable[Grant]) -> tuple[Outcome, ...]:
    return tuple(
        [
            Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b'{"result":null}')
            for grant in grants
        ]
    )


class Load:
    """An engine under a steady load: a round enqueues 64 jobs, then settles 64 and claims the next 64."""

    def __init__(self, jobs: Iterator[JobSpec], *, retention: Retention | None = None, round_ms: int = 1) -> None:
        self.engine = Engine(EngineOptions(retention=retention or Retention()))
        self.jobs = jobs
        self.now_ms = BEGIN_MS
        self._round_ms = round_ms
        self._grants: tuple[Grant, ...] = ()

    def fill(self, jobs: Iterator[JobSpec], count: int) -> float:
        """Enqueue jobs in batches; return the seconds it took."""
        watch = Stopwatch()
        for begin in range(0, count, SUBMISSION):
            operation = Enqueue(_take(jobs, min(SUBMISSION, count - begin)))
            with watch.running():
                self.engine.apply(operation, self.now_ms)
            self.now_ms += 1
        return watch.seconds

    def claim(self, limit: int) -> None:
        self._grants = self.engine.apply(Exchange("bench", limit=limit), self.now_ms).grants

    def work(self, lifecycles: int) -> float:
        """Go on for as many lifecycles; return the µs of one."""
        engine, watch, done = self.engine, Stopwatch(), 0
        while done < lifecycles:
            enqueue = Enqueue(_take(self.jobs, BATCH))
            exchange = Exchange("bench", _outcomes(self._grants), limit=BATCH)
            self.now_ms += self._round_ms
            with watch.running():
                engine.apply(enqueue, self.now_ms)
                reply = engine.apply(exchange, self.now_ms)
                while reply.more and engine.apply(Tick(), self.now_ms).more:
                    pass
            done += len(self._grants)
            self._grants = reply.grants
            assert self._grants, "nothing is ready"
        return watch.seconds / done * 1e6


# --- (a) lifecycles, by how many jobs wait -----------------------------------------------------------------------


def _lifecycles(report: Report, *, sizes: tuple[int, int, int], quick: bool) -> None:
    report.title(
        "Engine: place, claim and finish a job while N others wait (outcomes are built outside the timed part)"
    )
    small, middle, large = sizes
    lifecycles = 6_400 if quick else 32_000
    costs: dict[int, Figure] = {}
    for waiting in sizes:
        load = Load(_spread(docs=waiting // JOBS_PER_DOC))
        fill_s = load.fill(load.jobs, waiting)
        ready = load.engine.table.ready.size("default") / waiting
        load.claim(BATCH)
        load.work(lifecycles // 4)
        times = repeat(lambda load=load: load.work(lifecycles))  # type: ignore[misc]
        note = f"{ready:.0%} of the waiting are ready"
        report.add(f"N = {waiting:,}: place alone", "jobs/s", waiting / fill_s, note="one fill")
        costs[waiting] = report.add(f"N = {waiting:,}: place, claim, finish", "µs", *times, note=note)
        report.add(f"N = {waiting:,}: place, claim, finish", "jobs/s", *(1e6 / value for value in times))
        del load
        gc.collect()
    load = Load(_in_turn(docs=middle // JOBS_PER_DOC))
    load.fill(load.jobs, middle)
    load.claim(BATCH)
    load.work(lifecycles // 4)
    times = repeat(lambda: load.work(lifecycles))
    note = "documents in turn, not at random"
    in_turn = report.add(
        f"N = {middle:,}: place, claim, finish", "jobs/s", *(1e6 / value for value in times), note=note
    )
    # Records are dropped ten minutes after the end, which here is after 50 rounds.
    kept = Retention(finished=TEN_MINUTES_MS / 1000)
    load = Load(_spread(docs=middle // JOBS_PER_DOC), retention=kept, round_ms=TEN_MINUTES_MS // 50)
    load.fill(load.jobs, middle)
    load.claim(BATCH)
    load.work(2 * 50 * BATCH)
    times = repeat(lambda: load.work(lifecycles))
    report.add(f"N = {middle:,}: place, claim, finish, prune", "jobs/s", *(1e6 / value for value in times))
    report.aim(f"lifecycles a second at N = {middle:,}, documents in turn", in_turn.median, 60_000)
    report.aim(f"lifecycles a second at N = {middle:,}, documents at random", 1e6 / costs[middle].median, 60_000)
    ratio = costs[large].median / costs[small].median
    report.aim(f"cost at N = {large:,} / at N = {small:,}", ratio, 2.5, at_most=True)


# --- (b) beside jobs that cannot run -----------------------------------------------------------------------------


def _beside_blocked(report: Report, *, blocked: int, lifecycles: int) -> None:
    report.title(f"Engine: the same work without and with {blocked:,} jobs blocked behind one path (taken in turns)")
    docs = 500
    free, beside = Load(_spread(docs)), Load(_spread(docs))
    hot = _behind_one_path()
    beside.fill(hot, 1)
    beside.engine.apply(Exchange("holder", limit=1, lease_ms=24 * 3600 * 1000), beside.now_ms)
    beside.fill(hot, blocked)
    for load in (free, beside):
        load.fill(load.jobs, docs * JOBS_PER_DOC)
        load.claim(BATCH)
        load.work(lifecycles // 4)
    alone_us: list[float] = []
    beside_us: list[float] = []
    for turn in range(2 * REPEATS):
        gc.collect()
        pair = [(free, alone_us), (beside, beside_us)]
        for load, times in pair if turn % 2 else reversed(pair):
            times.append(load.work(lifecycles // 2))
    alone = report.add("without", "jobs/s", *(1e6 / value for value in alone_us))
    with_them = report.add(f"with {blocked:,} blocked", "jobs/s", *(1e6 / value for value in beside_us))
    report.aim("rate with / without", with_them.median / alone.median, 0.9)


# --- (c) plainer ways --------------------------------------------------------------------------------------------


class Way(Protocol):
    """A way to run jobs in order of their places: place all, then claim and finish."""

    def place(self, path: Path) -> None: ...
    def claim(self) -> Path | None: ...
    def finish(self, path: Path) -> None: ...


class PlainRule:
    """The rule as it is said: the first that waits and meets nothing that executes. Looks at all of both."""

    def __init__(self) -> None:
        self.waiting: list[Path] = []
        self.executing: list[Path] = []

    def place(self, path: Path) -> None:
        self.waiting.append(path)

    def claim(self) -> Path | None:
        for index, path in enumerate(self.waiting):
            for other in self.executing:
                if path[: len(other)] == other[: len(path)]:
                    break
            else:
                del self.waiting[index]
                self.executing.append(path)
                return path
        return None

    def finish(self, path: Path) -> None:
        self.executing.remove(path)


class DequePerKey:
    """The floor of per-key order: equal paths exclude one another, ancestors and descendants do not."""

    def __init__(self) -> None:
        self.lines: dict[Path, deque[Path]] = {}
        self.ready: deque[Path] = deque()

    def place(self, path: Path) -> None:
        line = self.lines.get(path)
        if line is None:
            self.lines[path] = deque()
            self.ready.append(path)
        else:
            line.append(path)

    def claim(self) -> Path | None:
        return self.ready.popleft() if self.ready else None

    def finish(self, path: Path) -> None:
        line = self.lines[path]
        if line:
            self.ready.append(line.popleft())
        else:
            del self.lines[path]


def _plainer_ways(report: Report, *, waiting: int, seconds: float) -> None:
    blocked, runnable = waiting * 9 // 10, waiting // 10
    report.title(f"{runnable:,} jobs, one branch each, beside {blocked:,} behind one running key; {BATCH} at once")
    paths: list[Path] = [(f"doc-{i % (runnable // 20):06}", "section-0", "branch-0") for i in range(runnable)]

    def engine() -> float:
        load = Load(iter([_spec(path) for path in paths]))
        load.fill(iter([_spec((HOT, "all", "main")) for _ in range(blocked + 1)]), blocked + 1)
        load.engine.apply(Exchange("holder", limit=1), load.now_ms)
        watch, done = Stopwatch(), load.fill(load.jobs, runnable)
        grants: tuple[Grant, ...] = ()
        while True:
            operation = Exchange("bench", _outcomes(grants), limit=BATCH)
            with watch.running():
                grants = load.engine.apply(operation, load.now_ms).grants
            if not grants:
                return runnable / (watch.seconds + done)

    def way(kind: Callable[[], Way]) -> float:
        ways = kind()
        for _ in range(blocked + 1):
            ways.place((HOT, "all", "main"))
        assert ways.claim() is not None
        executing: deque[Path] = deque()
        claimed, begin_s = 0, TIMER.read_s()
        for path in paths:
            ways.place(path)
        while TIMER.read_s() - begin_s < seconds:
            path_or_none = ways.claim() if len(executing) < BATCH else None
            if path_or_none is not None:
                executing.append(path_or_none)
                claimed += 1
            elif executing:
                ways.finish(executing.popleft())
            else:
                break
        return claimed / (TIMER.read_s() - begin_s)

    async def tasks() -> float:
        """Make a task of each job at once; it takes the lock of its key, which serves in order."""
        locks: dict[Path, asyncio.Lock] = {}

        async def job(path: Path) -> None:
            async with locks.setdefault(path, asyncio.Lock()):
                pass

        held = locks[HOT, "all", "main"] = asyncio.Lock()
        await held.acquire()
        kept = [asyncio.create_task(job((HOT, "all", "main"))) for _ in range(blocked)]
        await asyncio.sleep(0)
        begin_s = TIMER.read_s()
        await asyncio.gather(*[asyncio.create_task(job(path)) for path in paths])
        rate = runnable / (TIMER.read_s() - begin_s)
        held.release()
        await asyncio.gather(*kept)
        return rate

    # The engine is warm; a short run warms what follows.
    ours = report.add("engine: whole tree, order, leases, records", "jobs/s", *repeat(engine))
    for name, measure in (
        ("plain rule: scan what waits and what executes", lambda: way(PlainRule)),
        ("one asyncio task a job, a lock a key; no hierarchy", lambda: asyncio.run(tasks())),
        ("a deque a key; no hierarchy, no records (the floor)", lambda: way(DequePerKey)),
    ):
        figure = report.add(name, "jobs/s", *repeat(measure))
        report.add("  engine / this", "x", ours.median / figure.median)


# --- (d) the public API -----------------------------------------------------------------------------------------


def _ours(calls: Calls) -> tuple[float, float]:
    """Enqueue and work off; the worker has settled everything when its block ends."""
    scheduler = Scheduler("memory://")
    left = len(calls)
    done = asyncio.Event()

    @scheduler.job(queue_hint=["{doc}", "{section}", "{branch}"])
    async def noop(doc: str, section: str, branch: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async def main() -> tuple[float, float]:
        begin_s = TIMER.read_s()
        await noop.enqueue_many(calls)
        enqueued_s = TIMER.read_s()
        async with scheduler.worker(CONCURRENCY):
            await done.wait()
        drained_s = TIMER.read_s()
        assert (await scheduler.stats()).unfinished == 0
        return enqueued_s - begin_s, drained_s - enqueued_s

    return asyncio.run(main())


def public_api(report: Report, *, jobs: int) -> None:
    """Compare the scheduler and a worker of one process with other libraries in memory."""
    report.title(f"Public API: {jobs:,} no-op jobs enqueued, then worked off in the same process")
    choose = random.Random(3)
    docs = jobs // JOBS_PER_DOC
    calls: Calls = [
        (f"doc-{choose.randrange(docs):06}", f"section-{choose.randrange(2)}", f"branch-{choose.randrange(2)}")
        for _ in range(jobs)
    ]
    name = f"queuehint, async, {CONCURRENCY} at once, a hint each"
    ours = _through(report, name, _ours, calls)
    for key, variants in PEERS.items():
        rates = []
        try:
            for peer_name, work in variants:
                rates.append(_through(report, peer_name, work, calls))
        except ImportError:
            report.miss(key)
        else:
            factor = 0.9 if key == "huey" else 1.0
            report.aim(f"memory, through the API: queuehint / {key} as it comes", ours / rates[-1], factor)
            report.aim(f"memory, through the API: queuehint / {key} at its fastest", ours / max(rates), factor)


def _through(report: Report, name: str, work: Callable[[Calls], tuple[float, float]], calls: Calls) -> float:
    work(calls[: len(calls) // 10])
    parts: list[tuple[float, float]] = []

    def measure() -> float:
        parts.append(work(calls))
        return len(calls) / sum(parts[-1])

    total = repeat(measure)
    report.add(f"{name}: enqueue", "jobs/s", *(len(calls) / enqueue_s for enqueue_s, _ in parts))
    report.add(f"{name}: drain", "jobs/s", *(len(calls) / drain_s for _, drain_s in parts))
    return report.add(f"{name}: total", "jobs/s", *total).median


# --- (e) memory --------------------------------------------------------------------------------------------------


def _bytes_per_job(report: Report, *, jobs: int) -> None:
    report.title(
        f"Bytes a waiting job: all that {jobs:,} of them, enqueued through the API, keep alive: spec, id, arguments, "
        "path, gates, indexes"
    )

    def kept(calls: Callable[[], Iterator[tuple[str, str, str]]]) -> float:
        scheduler = Scheduler("memory://")

        @scheduler.job(queue_hint=["{doc}", "{section}", "{branch}"])
        def noop(doc: str, section: str, branch: str) -> None: ...

        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            noop.enqueue_many_sync(calls())
            gc.collect()
            return (tracemalloc.get_traced_memory()[0] - before) / jobs
        finally:
            tracemalloc.stop()

    def spread() -> Iterator[tuple[str, str, str]]:
        choose = random.Random(4)
        docs = jobs // JOBS_PER_DOC
        for _ in range(jobs):
            yield f"doc-{choose.randrange(docs):06}", f"section-{choose.randrange(2)}", f"branch-{choose.randrange(2)}"

    def behind() -> Iterator[tuple[str, str, str]]:
        for _ in range(jobs):
            yield HOT, "section-0", "branch-0"

    def alone() -> Iterator[tuple[str, str, str]]:
        for number in range(jobs):
            yield f"doc-{number:06}", "section-0", "branch-0"

    waiting = report.add("depth 3, behind one path: all but one wait", "bytes", kept(behind))
    report.add("depth 3, 5 jobs a branch at random: four in five wait", "bytes", kept(spread))
    report.add("depth 3, each in a document of its own: ready, with 3 gates each", "bytes", kept(alone))
    report.aim("bytes a waiting job at depth 3", waiting.median, 1024, at_most=True)
