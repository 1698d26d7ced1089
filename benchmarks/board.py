"""
What open pages of the board cost a busy store, and how soon they are answered.

Redis holds a million finished jobs and a million that wait at 100 000 places. `queuehint web` runs in a process of its
own, and twenty pages are open: each follows its stream, and asks for itself anew at each tick, as a browser does.
First a worker makes 2 000 events a second, then another one as many as it can. With two processors, pages take theirs
from the server and the worker: the share of both is shown.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from benchmarks.servers import RedisServer
from queuehint import Claim, JobSpec, Scheduler
from queuehint.values.spec import note_checked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks.report import Report

PAGES: Final = (
    *["/"] * 4,
    *["/places"] * 3,
    "/places/d7",
    *["/jobs"] * 2,
    "/jobs?state=FINISHED",
    "/jobs?state=QUEUED",
    "/jobs/{id}",
    "/jobs/{id}/why",
    "/places/d7:s7",
    "/dead",
    "/workers",
    "/limits",
    "/schedules",
    "/health",
)
"""What is open: the pages that people leave open more than once."""
EVENTS_PER_S: Final = 2_000
EVENTS_OF_A_JOB: Final = 3
PACE_S: Final = 0.1
WINDOW_S: Final = 10.0
PAIRS: Final = 5
PAGE_MS: Final = 200.0
PAGE_BYTES: Final = 150_000.0
SHARE: Final = 0.97
AT_ONCE: Final = 1_000
LIVE: Final = re.compile(r'data-hx-sse-connect="([^"]+)"')


def run(report: Report, *, quick: bool) -> None:
    """Measure all; it takes five minutes and 3 GB."""
    if shutil.which("redis-server") is None:
        report.miss("redis-server")
        return
    jobs, places, window_s, pairs = (10_000, 1_000, 2.0, 1) if quick else (1_000_000, 100_000, WINDOW_S, PAIRS)
    with RedisServer() as server, ExitStack() as stack:
        report.title(f"{len(PAGES)} open pages beside {jobs:,} finished and {jobs:,} waiting jobs, {places:,} places")
        last = _fill(server.url, jobs, places)
        board = stack.enter_context(_Board(server.url))
        pages = [page.format(id=last) for page in PAGES]
        asyncio.run(_alone(report, board, pages))
        with _working(server.url, EVENTS_PER_S * PACE_S / EVENTS_OF_A_JOB, PACE_S):
            asyncio.run(_paced(report, server, board, pages, window_s))
        with _working(server.url, 128, 0):
            asyncio.run(_beside_a_drain(report, server, board, pages, window_s, pairs))


# --- the store --------------------------------------------------------------------------------------------------------


def _fill(url: str, jobs: int, places: int) -> str:
    """Have so many jobs finished, and as many waiting at so many places; return the id of one that waits."""
    _submit(url, 0, jobs, places)
    with _working(url, 128, 0) as worker:
        scheduler = Scheduler(url)
        while scheduler.stats_sync().finished < jobs and worker.poll() is None:
            time.sleep(0.1)
        scheduler.close_sync()
    return _submit(url, jobs, jobs, places)


def _submit(url: str, first: int, jobs: int, places: int) -> str:
    scheduler = Scheduler(url)
    for begin in range(first, first + jobs, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, first + jobs))
        scheduler.submit_sync([note_checked(_spec(number, places)) for number in numbers])
    scheduler.close_sync()
    return f"{first + jobs - 1:09}"


def _spec(number: int, places: int) -> JobSpec:
    place = number % places
    claim = Claim((f"d{place // 10}", f"s{place % 10}"))
    return JobSpec(id=f"{number:09}", task="save", claims=(claim,), user=f"user-{number % 97}")


@contextmanager
def _working(url: str, concurrency: float, pause_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker in a process of its own; each job waits so long."""
    command = [sys.executable, "-m", "benchmarks.board", url, str(round(concurrency)), str(pause_s)]
    worker = subprocess.Popen(command)
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()


async def _work(url: str, concurrency: int, pause_s: float) -> None:
    scheduler = Scheduler(url)

    @scheduler.job
    async def save() -> None:
        if pause_s:
            await asyncio.sleep(pause_s)

    async with scheduler.worker(concurrency=concurrency):
        await asyncio.Event().wait()


# --- the pages --------------------------------------------------------------------------------------------------------


class _RefusedError(Exception):
    """A page was not answered: the store was slow."""


class _Board:
    """A process of `queuehint web`."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "queuehint", "web", url, "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        found = re.search(r"http://\S+", self._process.stdout.readline())
        assert found is not None, "queuehint web has ended"
        self.netloc = urlsplit(found[0]).netloc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def cpu_s(self) -> float:
        return _cpu_s(self._process.pid)

    async def get(self, target: str, *, is_fragment: bool = False) -> str:
        """Return a page, or what a page asks for at a tick."""
        reader, writer = await self._ask(target, *["HX-Request: true"] * is_fragment, "Connection: close")
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        if head.startswith("HTTP/1.1 503"):
            raise _RefusedError(target)
        assert head.startswith("HTTP/1.1 200"), f"{target}: {head.splitlines()[0]}"
        return body

    async def ticks(self, target: str) -> AsyncIterator[None]:
        """Yield at each tick of a stream."""
        reader, writer = await self._ask(target)
        try:
            async for line in reader:
                if line == b"event: changed\n":
                    yield
        finally:
            writer.close()

    async def _ask(self, target: str, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.netloc.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write("\r\n".join([f"GET {target} HTTP/1.1", f"Host: {self.netloc}", *headers, "", ""]).encode())
        return reader, writer


class _Tabs:
    """Open pages, and how long each of their questions took."""

    def __init__(self, board: _Board, pages: list[str]) -> None:
        self._board = board
        self._pages = pages
        self._tasks: list[asyncio.Task[None]] = []
        self.times_ms: dict[str, list[float]] = defaultdict(list)
        self.ages_s: list[float] = []
        """How old each page was when it was replaced."""
        self.refused = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._live(page)) for page in self._pages]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _live(self, page: str) -> None:
        found = LIVE.search(await self._shown(page))
        if found is None:
            return
        read_s = None
        async for _ in self._board.ticks(found[1].replace("&amp;", "&")):
            begin_s = time.perf_counter()
            await self._shown(page, is_fragment=True)
            now_s = time.perf_counter()
            self.times_ms[page.partition("?")[0]].append(1000 * (now_s - begin_s))
            if read_s is not None:
                self.ages_s.append(now_s - read_s)
            read_s = begin_s

    async def _shown(self, page: str, *, is_fragment: bool = False) -> str:
        while True:
            try:
                return await self._board.get(page, is_fragment=is_fragment)
            except _RefusedError:
                self.refused += 1


# --- what is measured -------------------------------------------------------------------------------------------------


async def _alone(report: Report, board: _Board, pages: list[str]) -> None:
    heaviest, slowest = 0, 0.0
    for page in dict.fromkeys(pages):
        times = []
        for _ in range(3):
            begin_s = time.perf_counter()
            body = await board.get(page)
            times.append(1000 * (time.perf_counter() - begin_s))
        heaviest, slowest = max(heaviest, len(body.encode())), max(slowest, statistics.median(times))
        report.add(f"page {page}", "ms", *times, note=f"{len(body.encode()) / 1000:.1f} kB")
    report.aim("the slowest page, nothing else running, ms", slowest, PAGE_MS, at_most=True)
    report.aim("the heaviest page, bytes without styles and scripts", heaviest, PAGE_BYTES, at_most=True)


async def _paced(report: Report, server: RedisServer, board: _Board, pages: list[str], window_s: float) -> None:
    loop = asyncio.get_running_loop()
    scheduler = Scheduler(server.url)
    await _begun(scheduler)
    without = await _window(scheduler, server, board, window_s)
    async with _Tabs(board, pages) as tabs:
        await asyncio.sleep(2)
        begin_s = loop.time()
        beside = await _window(scheduler, server, board, window_s)
        seconds = loop.time() - begin_s
    await scheduler.close()
    every = sorted(time_ms for times in tabs.times_ms.values() for time_ms in times)
    report.add("jobs/s of a paced worker, no page open", "jobs/s", without.jobs_per_s)
    report.add("jobs/s of a paced worker, pages open", "jobs/s", beside.jobs_per_s)
    report.add("fragments of all pages", "per s", len(every) / seconds)
    report.add("age of a page when it is replaced", "s", *(tabs.ages_s or (0.0,)))
    report.add("pages refused, because the store was slow", "in all", tabs.refused)
    report.add("server's processor, no page open; pages open", "%", 100 * without.server, 100 * beside.server)
    report.add("board's processor, no page open; pages open", "%", 100 * without.board, 100 * beside.board)
    for name, times in tabs.times_ms.items():
        report.add(f"fragment {name}", "ms", *times)
    report.add("fragments, 99 of 100", "ms", every[len(every) * 99 // 100])
    report.aim("throughput of a paced worker, pages open / none", beside.jobs_per_s / without.jobs_per_s, SHARE)
    report.aim("fragments, 99 of 100, ms", every[len(every) * 99 // 100], PAGE_MS, at_most=True)


async def _beside_a_drain(
    report: Report, server: RedisServer, board: _Board, pages: list[str], window_s: float, pairs: int
) -> None:
    scheduler = Scheduler(server.url)
    await _begun(scheduler)
    alone, open_, shares, ages_s = [], [], [], []
    for _ in range(pairs):
        alone.append(await _window(scheduler, server, board, window_s))
        async with _Tabs(board, pages) as tabs:
            await asyncio.sleep(1)
            open_.append(await _window(scheduler, server, board, window_s))
        ages_s += tabs.ages_s
        shares.append(open_[-1].jobs_per_s / alone[-1].jobs_per_s)
    await scheduler.close()
    report.add("drain, no page open", "jobs/s", *[each.jobs_per_s for each in alone])
    report.add("drain, pages open", "jobs/s", *[each.jobs_per_s for each in open_])
    report.add("server's processor for a job, no page open", "µs", *[each.server_us for each in alone])
    report.add("server's processor for a job, pages open", "µs", *[each.server_us for each in open_])
    report.add("board's processor beside a drain", "%", *[100 * each.board for each in open_])
    report.add("age of a page beside a drain", "s", *(ages_s or (0.0,)))
    report.aim("drain, pages open / none", statistics.median(shares), SHARE)


async def _begun(scheduler: Scheduler) -> None:
    """Wait until a worker has finished jobs."""
    finished = (await scheduler.stats()).finished
    while (await scheduler.stats()).finished == finished:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


class _Window:
    """What has happened in some seconds: finished jobs a second, and shares of a processor."""

    def __init__(self, jobs_per_s: float, server: float, board: float) -> None:
        self.jobs_per_s = jobs_per_s
        self.server = server
        self.board = board

    @property
    def server_us(self) -> float:
        """The server's time for a job."""
        return 1e6 * self.server / self.jobs_per_s


async def _window(scheduler: Scheduler, server: RedisServer, board: _Board, window_s: float) -> _Window:
    begin_s, finished = time.perf_counter(), (await scheduler.stats()).finished
    used = _cpu_s(server.pid), board.cpu_s()
    await asyncio.sleep(window_s)
    finished = (await scheduler.stats()).finished - finished
    seconds = time.perf_counter() - begin_s
    return _Window(finished / seconds, (_cpu_s(server.pid) - used[0]) / seconds, (board.cpu_s() - used[1]) / seconds)


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
