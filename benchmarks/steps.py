"""
The longest script of each operation on Redis, in CPU time of the server: the time for which one call blocks all others.

Each operation is as large as its limits allow. The CPU time of the server's main thread is read from the kernel around
each request, and scaled by a loop that the server runs before and after, because other load of the machine slows the
CPU down.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from benchmarks.servers import RedisServer
from queuehint import Claim, Dependency, JobSpec, Limit, Outcome, OutcomeKind, Scheduler
from queuehint.backends.redis import scripts
from queuehint.backends.redis.connections.sync_link import SyncLink
from queuehint.backends.steps import run_steps_sync
from queuehint.client.submission import submit
from queuehint.operations import (
    GATES_PER_SUBMISSION_MAX,
    JOBS_AT_ONCE,
    Cancel,
    CancelFlow,
    CancelPath,
    CountJobs,
    CountRecords,
    Delete,
    Exchange,
    Get,
    List,
    ListLines,
    Redrive,
    SetLimit,
    Tick,
    Tree,
    Why,
)
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Report
    from queuehint.backends.base import Backend
    from queuehint.backends.redis.transport import Send
    from queuehint.operations import Operation

MANY = 1_000
LINES = 20_000
EDGES = 4
STEP_MS = 20.0
LOOP_MS = 9.0
"""The time of the loop on a quiet machine, by which figures are scaled."""
LOOP = "local sum = 0 for at = 1, 1000000 do sum = sum + at % 7 end return sum"


class Probe:
    """A server, a scheduler on it, and of each script the longest time since the last look."""

    def __init__(self, server: RedisServer, namespace: str, depth: int) -> None:
        self.server, self.depth = server, depth
        self.scheduler = Scheduler(server.url, namespace=namespace)
        backend: Any = self.scheduler.backend
        self.backend: Backend = backend
        self.longest: dict[str, float] = {}
        self.count = 0
        backend._sync = Measured(backend.session.address, self)  # noqa: SLF001 - there is no other way to each request
        self._cpu = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat")
        self._names = {each.sha: each.name for each in map(scripts.script, scripts.names())}

    def cpu_ns(self) -> int:
        return int(self._cpu.read_text(encoding="ascii").split()[0])

    def name_of(self, command: tuple[Any, ...]) -> str:
        """Return the name of the script of a request; of another request its command."""
        name = str(command[0])
        if name.startswith("FCALL"):
            name = str(command[1]).split("_", 2)[2]
        elif name.startswith("EVALSHA"):
            name = self._names.get(command[1], "script")
        return name

    def note(self, command: tuple[Any, ...], ms: float) -> None:
        """Keep the time of a request, by the name of its script."""
        name = self.name_of(command)
        self.longest[name] = max(ms, self.longest.get(name, 0.0))
        self.count += 1

    def call(self, operation: Operation[Any]) -> Any:
        """Carry out an operation, and what follows from it."""
        reply = self.backend.call_sync(operation)
        more = getattr(reply, "more", False)
        while more:
            more = self.backend.call_sync(Tick()).more
        return reply

    def submit(self, specs: list[JobSpec], *, whole: bool = False) -> None:
        """Submit jobs as the scheduler does."""
        run_steps_sync(self.backend, submit(specs, whole=whole, small_parts=True))
        while self.backend.call_sync(Tick()).more:
            pass

    def jobs(self, count: int = MANY, **fields: Any) -> list[JobSpec]:
        """Return jobs at places of their own, in a hundred documents."""
        levels = tuple([str(level) for level in range(2, self.depth)])
        return [
            JobSpec(id=str(n), task="t", claims=(Claim((f"doc-{n % 100}", *levels, f"leaf-{n}")),), **fields)
            for n in range(count)
        ]

    def settled(self, kind: OutcomeKind, **fields: Any) -> None:
        """Claim and settle all that is ready, as many at once as a worker does."""
        outcomes: tuple[Outcome, ...] = ()
        while True:
            reply = self.call(Exchange("w", settle=outcomes, limit=JOBS_AT_ONCE))
            outcomes = tuple(
                [Outcome(job_id=got.spec.id, token=got.token, kind=kind, **fields) for got in reply.grants]
            )
            if not outcomes:
                return

    def loop_ms(self) -> float:
        """Return what the server needs for a loop of a million turns: the yardstick."""
        times = []
        for _ in range(3):
            begin_ns = self.cpu_ns()
            self.server.client.eval(LOOP, 0)
            times.append((self.cpu_ns() - begin_ns) / 1e6)
        return statistics.median(times)


class Measured(SyncLink):
    """A connection that tells a probe what each request cost."""

    def __init__(self, address: Any, probe: Probe) -> None:
        super().__init__(address)
        self._probe = probe

    def ask(self, send: Send) -> Any:
        begin_ns = self._probe.cpu_ns()
        try:
            return super().ask(send)
        finally:
            self._probe.note(send.command, (self._probe.cpu_ns() - begin_ns) / 1e6)


# --- what is measured ------------------------------------------------------------------------------------------------


def _bound(jobs: list[JobSpec], edges: int) -> list[JobSpec]:
    """Let each job depend on so many before it."""
    for index, spec in enumerate(jobs):
        before = [Dependency(jobs[at].id) for at in range(max(0, index - edges), index)]
        jobs[index] = attrs.evolve(spec, depends_on=tuple(before))
    return jobs


def _flow(probe: Probe) -> None:
    probe.submit(probe.jobs(flow="f"), whole=True)


def _flow_with_keys(probe: Probe) -> None:
    # They go in one step, as many as one takes.
    count = min(MANY, GATES_PER_SUBMISSION_MAX // (probe.depth + 1))
    jobs = [attrs.evolve(spec, key=f"key-{spec.id}", on_conflict="reject") for spec in probe.jobs(count, flow="f")]
    probe.submit(jobs, whole=True)


def _chain(probe: Probe) -> None:
    probe.submit(_bound(probe.jobs(flow="f"), 1), whole=True)


def _edges(probe: Probe) -> None:
    probe.submit(_bound(probe.jobs(), EDGES))


def _fan_in(probe: Probe) -> None:
    jobs = probe.jobs()
    probe.submit(jobs)
    probe.longest.clear()
    needs = tuple([Dependency(spec.id) for spec in jobs])
    probe.submit([JobSpec(id="last", task="t", depends_on=needs)])
    probe.settled(OutcomeKind.FINISHED)


def _fan_in_flow(probe: Probe) -> None:
    jobs = probe.jobs(MANY - 1, flow="f")
    needs = tuple([Dependency(spec.id) for spec in jobs])
    probe.submit([*jobs, JobSpec(id="last", task="t", flow="f", depends_on=needs)], whole=True)


def _enqueue_and_run(probe: Probe) -> None:
    probe.submit(probe.jobs())
    probe.settled(OutcomeKind.FINISHED, result=b"1")


def _orders(probe: Probe) -> None:
    jobs = probe.jobs(flow="f", user="ann")
    ids = [spec.id for spec in jobs]
    probe.submit(jobs)
    probe.settled(OutcomeKind.FAILED, final=True)
    for operation in (Redrive, Cancel, Delete):
        for begin in range(0, MANY, JOBS_AT_ONCE):
            probe.call(operation(tuple(ids[begin : begin + JOBS_AT_ONCE])))


def _cancel_path(probe: Probe) -> None:
    probe.submit(probe.jobs())
    probe.call(CancelPath(()))


def _cancel_flow(probe: Probe) -> None:
    probe.submit(probe.jobs(), whole=True)
    probe.submit([attrs.evolve(spec, id=f"f{spec.id}", flow="f") for spec in probe.jobs()], whole=True)
    probe.call(CancelFlow("f"))


def _limits(probe: Probe) -> None:
    probe.submit(probe.jobs())
    probe.longest.clear()
    for per_s in (10, 20):
        probe.call(SetLimit(Limit(path=(), each=True, rate=(per_s, 1000))))


def _questions(probe: Probe) -> None:
    probe.submit([attrs.evolve(spec, flow="f", user="ann") for spec in probe.jobs()], whole=True)
    probe.longest.clear()
    ids = tuple([str(number) for number in range(200)])
    listed = (Get(ids), List(limit=200), List(RecordFilter(flow="f"), limit=200), ListLines((), depth=64))
    for question in (*listed, CountRecords(RecordFilter(flow="f")), CountJobs(), Why("500")):
        probe.call(question)


def _tree(probe: Probe) -> None:
    probe.submit(probe.jobs())
    probe.longest.clear()
    for depth in (1, 3, 64):
        probe.call(Tree((), depth=depth))


def _longest_lines(probe: Probe) -> None:
    # One in ten has up to eight jobs, the others have two.
    lengths = [2 + n % 7 * (n % 10 == 0) for n in range(LINES)]
    claims = [(Claim((f"doc-{n}",)),) for n in range(LINES)]
    probe.submit(
        [
            JobSpec(id=f"{n}-{at}", task="t", claims=claims[n])
            for n, length in enumerate(lengths)
            for at in range(length)
        ]
    )
    probe.longest.clear()
    probe.call(ListLines((), depth=64, limit=20, longest=True))


def _deep_tree(probe: Probe) -> None:
    probe.submit([JobSpec(id=str(n), task="t", claims=(Claim((f"doc-{n}", *map(str, range(63)))),)) for n in range(50)])
    probe.longest.clear()
    probe.call(Tree((), depth=64))


WHAT: dict[str, Callable[[Probe], None]] = {
    "1 000 jobs enqueued, claimed and settled": _enqueue_and_run,
    "a flow of 1 000": _flow,
    "a flow of 1 000 with keys": _flow_with_keys,
    "a flow that is a chain of 1 000": _chain,
    "a flow of 999 and one behind them": _fan_in_flow,
    "one job with 1 000 dependencies": _fan_in,
    "1 000 jobs with 4 000 edges": _edges,
    "redrive, cancel and delete 1 000 ids": _orders,
    "cancel a path of 1 000": _cancel_path,
    "cancel a flow of 1 000": _cancel_flow,
    "a limit for each child, changed": _limits,
    "questions about 1 000 jobs": _questions,
    "trees of 1 000 jobs": _tree,
    "the longest lines of 20 000": _longest_lines,
    "the tree of 50 paths of 64 levels": _deep_tree,
}


def run(report: Report, *, quick: bool) -> None:
    """Measure each operation at two depths; it takes two minutes."""
    if shutil.which("redis-server") is None:
        report.miss("redis-server")
        return
    report.title("the longest script of each operation: ms of the server's CPU, and the slowest scripts in it")
    loops = []
    with RedisServer() as server:
        _enqueue_and_run(Probe(server, "first", 1))
        names = itertools.count()
        for depth in (3,) if quick else (3, 16):
            for what, act in WHAT.items():
                found = []
                for _ in range(1 if quick else 3):
                    probe = Probe(server, f"n{next(names)}", depth)
                    before_ms = probe.loop_ms()
                    act(probe)
                    loops.append((before_ms + probe.loop_ms()) / 2)
                    found.append({name: ms * LOOP_MS / loops[-1] for name, ms in probe.longest.items()})
                    probe.scheduler.close_sync()
                    server.client.flushdb()
                slowest = sorted(
                    ((statistics.median(each[name] for each in found), name) for name in found[0]), reverse=True
                )
                note = ", ".join([f"{name} {ms:.1f}" for ms, name in slowest[:3]])
                figure = report.add(f"{what}, depth {depth}", "ms", *[max(each.values()) for each in found], note=note)
                report.aim(figure.name, figure.median, STEP_MS, at_most=True)
    report.add("yardstick: a loop of 1 000 000 turns in Lua", "ms", *loops, note=f"figures are as if it took {LOOP_MS}")
