"""
The longest script of each operation on Redis, in CPU time of the server: the time for which one call blocks all others.

Each operation is as large as its limits allow, in a store of its own and beside a million jobs that wait behind one.
The CPU time of the server's main thread is read from the kernel around each request, and scaled by a loop that the
server runs before and after, because other load of the machine slows the CPU down. Beside it stands the wall time of
the same request, and for how much of it the server's thread waited for a CPU: what of a long call is no work of ours.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from benchmarks.servers import RedisServer, off_the_server_cpu
from queuehint import Claim, Dependency, FakeClock, JobSpec, JobState, Limit, Outcome, OutcomeKind, Scheduler
from queuehint.backends.redis import scripts
from queuehint.backends.redis.connections.sync_link import SyncLink
from queuehint.backends.steps import run_steps_sync
from queuehint.client.arrangement import ONE_STEP_GATES, ONE_STEP_JOBS
from queuehint.client.submission import submit
from queuehint.operations import (
    JOBS_AT_ONCE,
    LEASES_AT_ONCE,
    Cancel,
    CancelFlow,
    CancelPath,
    CanDequeue,
    CountJobs,
    CountPending,
    CountRecords,
    Delete,
    Enqueue,
    Exchange,
    Get,
    List,
    ListLines,
    Note,
    Pause,
    Post,
    Redrive,
    Renew,
    Resume,
    SetLimit,
    Tick,
    Tree,
    Why,
    Withdraw,
)
from queuehint.values.policy import Policy
from queuehint.values.record_filter import RecordFilter
from queuehint.worker.outbox import NOTES_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Report
    from queuehint.backends.base import Backend
    from queuehint.backends.redis.transport import Send
    from queuehint.operations import Operation
    from queuehint.values.outcome import Grant

MANY = 1_000
LINES = 20_000
EDGES = 4
BESIDE = 1_048_000
"""So many jobs wait behind one that a thousand more make the tables of the server, of 2**20 places, grow."""
BRANCHES = 1_000
FILL_BY = 200
STEPS_MAX = 200
"""How many steps of what follows from an operation are looked at."""
HOUR_MS = 3_600_000
DAYS_S = 2 * 24 * 3600
STEP_MS = 20.0
LOOP_MS = 9.0
"""The time of the loop on a quiet machine, by which figures are scaled."""
LOOP = "local sum = 0 for at = 1, 1000000 do sum = sum + at % 7 end return sum"


@attrs.frozen
class Cost:
    """
    What one request took.

    Args:
        cpu_ms: for how long the server's thread ran.
        waited_ms: for how long it waited for a CPU.
        wall_ms: how long the client waited for the reply.
    """

    cpu_ms: float
    waited_ms: float
    wall_ms: float

    def __str__(self) -> str:
        return f"{self.cpu_ms:.1f} of CPU, {self.wall_ms:.1f} by the wall, {self.waited_ms:.1f} without a CPU"


class Probe:
    """A server, a scheduler on it, and what each request took, by its script, since the last look."""

    def __init__(self, server: RedisServer, namespace: str, depth: int, holder: Grant | None = None) -> None:
        self.server, self.depth = server, depth
        self.holder = holder
        """The job for which a million others wait, if they are there."""
        self.clock = FakeClock()
        self.scheduler = Scheduler(server.url, namespace=namespace, clock=self.clock)
        backend: Any = self.scheduler.backend
        self.backend: Backend = backend
        self.costs: dict[str, list[Cost]] = {}
        self.slowest: tuple[str, Cost] = ("", Cost(0, 0, 0))
        """The request that took longest by the wall, of all."""
        backend._sync = Measured(backend.session.address, self)  # noqa: SLF001 - there is no other way to each request
        task = Path(f"/proc/{server.pid}/task/{server.pid}")
        self._times, self._state = task / "schedstat", task / "stat"
        self._names = {each.sha: each.name for each in map(scripts.script, scripts.names())}

    def used_ns(self) -> tuple[int, int]:
        """Return for how long the server's thread has run, and waited for a CPU."""
        # The kernel counts all that it ran only once it sleeps.
        while self._state.read_text(encoding="ascii").rpartition(")")[2].split()[0] != "S":
            pass
        ran, waited, *_ = self._times.read_text(encoding="ascii").split()
        return int(ran), int(waited)

    def name_of(self, command: tuple[Any, ...]) -> str:
        """Return the name of the script of a request; of another request its command."""
        name = str(command[0])
        if name.startswith("FCALL"):
            name = str(command[1]).split("_", 2)[2]
        elif name.startswith("EVALSHA"):
            name = self._names.get(command[1], "script")
        return name

    def note(self, command: tuple[Any, ...], cost: Cost) -> None:
        """Keep what a request took, by the name of its script."""
        name = self.name_of(command)
        self.costs.setdefault(name, []).append(cost)
        if cost.wall_ms > self.slowest[1].wall_ms:
            self.slowest = name, cost

    def call(self, operation: Operation[Any]) -> Any:
        """Carry out an operation, and what follows from it."""
        reply = self.backend.call_sync(operation)
        more = getattr(reply, "more", False)
        for _ in range(STEPS_MAX):
            if not more:
                break
            more = self.backend.call_sync(Tick()).more
        return reply

    def submit(self, specs: list[JobSpec], *, whole: bool = False) -> None:
        """Submit jobs as the scheduler does."""
        run_steps_sync(self.backend, submit(specs, whole=whole, small_parts=True))
        self.call(Tick())

    def jobs(self, count: int = MANY, **fields: Any) -> list[JobSpec]:
        """Return jobs at places of their own, in a hundred documents."""
        levels = tuple([str(level) for level in range(2, self.depth)])
        return [
            JobSpec(id=str(n), task="t", claims=(Claim((f"doc-{n % 100}", *levels, f"leaf-{n}")),), **fields)
            for n in range(count)
        ]

    def claimed(self, lease_ms: int = HOUR_MS) -> list[Grant]:
        """Claim all that is ready, as many at once as a worker does."""
        grants: list[Grant] = []
        while got := self.call(Exchange("w", limit=JOBS_AT_ONCE, lease_ms=lease_ms)).grants:
            grants += got
        return grants

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

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and have done what is due then."""
        self.costs.clear()
        self.clock.advance(seconds=seconds)
        self.call(Tick())

    def loop_ms(self) -> float:
        """Return what the server needs for a loop of a million turns: the yardstick."""
        times = []
        for _ in range(3):
            begin_ns, _ = self.used_ns()
            self.server.client.eval(LOOP, 0)
            times.append((self.used_ns()[0] - begin_ns) / 1e6)
        return statistics.median(times)


class Measured(SyncLink):
    """A connection that tells a probe what each request took."""

    def __init__(self, address: Any, probe: Probe) -> None:
        super().__init__(address)
        self._probe = probe

    def ask(self, send: Send) -> Any:
        (ran, waited), begin_s = self._probe.used_ns(), time.perf_counter()
        try:
            return super().ask(send)
        finally:
            wall_ms = (time.perf_counter() - begin_s) * 1e3
            ran_then, waited_then = self._probe.used_ns()
            self._probe.note(send.command, Cost((ran_then - ran) / 1e6, (waited_then - waited) / 1e6, wall_ms))


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
    count = min(ONE_STEP_JOBS, ONE_STEP_GATES // (probe.depth + 1))
    jobs = [attrs.evolve(spec, key=f"key-{spec.id}", on_conflict="reject") for spec in probe.jobs(count, flow="f")]
    probe.submit(jobs, whole=True)


def _chain(probe: Probe) -> None:
    probe.submit(_bound(probe.jobs(flow="f"), 1), whole=True)


def _edges(probe: Probe) -> None:
    probe.submit(_bound(probe.jobs(), EDGES))


def _fan_in(probe: Probe) -> None:
    jobs = probe.jobs()
    probe.submit(jobs)
    probe.costs.clear()
    needs = tuple([Dependency(spec.id) for spec in jobs])
    probe.submit([JobSpec(id="last", task="t", depends_on=needs)])
    probe.settled(OutcomeKind.FINISHED)


def _fan_in_flow(probe: Probe) -> None:
    jobs = probe.jobs(MANY - 1, flow="f")
    needs = tuple([Dependency(spec.id) for spec in jobs])
    probe.submit([*jobs, JobSpec(id="last", task="t", flow="f", depends_on=needs)], whole=True)


def enqueue_and_run(probe: Probe) -> None:
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


def run_and_drop(probe: Probe) -> None:
    enqueue_and_run(probe)
    probe.pass_time(DAYS_S)


def _due(probe: Probe) -> None:
    probe.submit(probe.jobs(delay_ms=1_000))
    probe.pass_time(1)


def _leases(probe: Probe) -> None:
    probe.submit(probe.jobs())
    grants = probe.claimed()
    held = [(grant.spec.id, grant.token) for grant in grants]
    for begin in range(0, len(held), LEASES_AT_ONCE):
        probe.call(Renew(tuple(held[begin : begin + LEASES_AT_ONCE]), HOUR_MS))
    probe.call(Post(tuple([Note(*each, ("a line",)) for each in held[:NOTES_AT_ONCE]])))
    probe.clock.advance(ms=2 * HOUR_MS)
    probe.call(Tick())


def _behind_a_dead_one(probe: Probe) -> None:
    first, *rest = probe.jobs()
    policy = Policy(on_dependency_failure="cancel")
    probe.submit([first, *[attrs.evolve(spec, depends_on=(Dependency(first.id),), policy=policy) for spec in rest]])
    probe.costs.clear()
    (grant,) = probe.call(Exchange("w", limit=1)).grants
    failed = Outcome(job_id=first.id, token=grant.token, kind=OutcomeKind.FAILED, final=True)
    probe.call(Exchange("w", settle=(failed,)))
    probe.call(Redrive((first.id,), downstream=True))


def _withdrawn(probe: Probe) -> None:
    jobs = probe.jobs(flow="f")
    for begin in range(0, MANY, FILL_BY):
        probe.call(Enqueue(tuple(jobs[begin : begin + FILL_BY]), staged="s", is_further=begin > 0))
    probe.call(Withdraw("s"))


def _paused(probe: Probe) -> None:
    probe.submit(probe.jobs())
    probe.costs.clear()
    for selection in (RecordFilter(task="t"), RecordFilter(path=("doc-1",))):
        probe.call(Pause(selection))
        probe.call(Exchange("w", limit=JOBS_AT_ONCE))
        probe.call(Resume(selection))


def _cancel_path(probe: Probe) -> None:
    probe.submit(probe.jobs())
    probe.call(CancelPath(()))


def _cancel_flow(probe: Probe) -> None:
    probe.submit(probe.jobs(), whole=True)
    probe.submit([attrs.evolve(spec, id=f"f{spec.id}", flow="f") for spec in probe.jobs()], whole=True)
    probe.call(CancelFlow("f"))


def _limits(probe: Probe) -> None:
    probe.submit(probe.jobs())
    probe.costs.clear()
    for per_s in (10, 20):
        probe.call(SetLimit(Limit(path=(), each=True, rate=(per_s, 1000))))


def _questions(probe: Probe) -> None:
    probe.submit([attrs.evolve(spec, flow="f", user="ann") for spec in probe.jobs()], whole=True)
    probe.costs.clear()
    ids = tuple([str(number) for number in range(200)])
    listed = (Get(ids), List(limit=200), List(RecordFilter(flow="f"), limit=200), ListLines((), depth=64))
    for question in (*listed, CountRecords(RecordFilter(flow="f")), CountJobs(), Why("500")):
        probe.call(question)


def _tree(probe: Probe) -> None:
    probe.submit(probe.jobs())
    probe.costs.clear()
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
    probe.costs.clear()
    probe.call(ListLines((), depth=64, limit=20, longest=True))


def _deep_tree(probe: Probe) -> None:
    probe.submit([JobSpec(id=str(n), task="t", claims=(Claim((f"doc-{n}", *map(str, range(63)))),)) for n in range(50)])
    probe.costs.clear()
    probe.call(Tree((), depth=64))


WHAT: dict[str, Callable[[Probe], None]] = {
    "1 000 jobs enqueued, claimed and settled": enqueue_and_run,
    "a flow of 1 000": _flow,
    f"a flow of {ONE_STEP_JOBS} with keys": _flow_with_keys,
    "a flow that is a chain of 1 000": _chain,
    "a flow of 999 and one behind them": _fan_in_flow,
    "one job with 1 000 dependencies": _fan_in,
    "1 000 jobs with 4 000 edges": _edges,
    "1 000 records dropped": run_and_drop,
    "1 000 jobs come to be due": _due,
    "1 000 leases renewed, noted and expired": _leases,
    "999 jobs behind a dead one, canceled and revived": _behind_a_dead_one,
    "a flow of 1 000 sent and withdrawn": _withdrawn,
    "1 000 jobs paused and resumed": _paused,
    "redrive, cancel and delete 1 000 ids": _orders,
    "cancel a path of 1 000": _cancel_path,
    "cancel a flow of 1 000": _cancel_flow,
    "a limit for each child, changed": _limits,
    "questions about 1 000 jobs": _questions,
    "trees of 1 000 jobs": _tree,
    "the longest lines of 20 000": _longest_lines,
    "the tree of 50 paths of 64 levels": _deep_tree,
}


def _end_of_holder(probe: Probe) -> None:
    assert probe.holder is not None
    probe.call(Exchange("holder", settle=(_finished(probe.holder),), pools=("holder",)))


def _finished(grant: Grant) -> Outcome:
    return Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED)


def _cancel_all(probe: Probe) -> None:
    probe.call(CancelPath(("hot",)))


def _pause_all(probe: Probe) -> None:
    probe.call(Pause(RecordFilter(path=("hot",))))
    probe.call(Resume(RecordFilter(path=("hot",))))


def _limit_all(probe: Probe) -> None:
    for per_s in (10, 20):
        probe.call(SetLimit(Limit(path=("hot",), each=True, rate=(per_s, 1000))))
    for limit in (Limit(path=("hot",), max_pending=2 * BESIDE), Limit(task="t", max_pending=2 * BESIDE)):
        probe.call(SetLimit(limit))
    probe.submit(probe.jobs())


def _ask_all(probe: Probe) -> None:
    hot, inside = RecordFilter(path=("hot",)), RecordFilter(path=("hot", "all", "branch-7"))
    queued, task = RecordFilter(states=(JobState.QUEUED,)), RecordFilter(task="t")
    for selection in (RecordFilter(), hot, inside, queued, task):
        probe.call(CountRecords(selection))
        for newest_first in (False, True):
            probe.call(List(selection, newest_first=newest_first, limit=200))
    probe.call(Get(tuple([f"b{n}" for n in range(200)])))
    probe.call(CountJobs())
    probe.call(Why(f"b{BRANCHES}"))
    for path in ((), ("hot",), ("hot", "all")):
        for depth in (1, 64):
            probe.call(Tree(path, depth=depth))
        probe.call(CanDequeue(path))
        probe.call(CountPending(path))
        for is_longest in (False, True):
            probe.call(ListLines(path, depth=64, longest=is_longest))


OF_ALL: dict[str, Callable[[Probe], None]] = {
    "the job before all of them ends": _end_of_holder,
    "cancel the path of all": _cancel_all,
    "pause and resume the path of all": _pause_all,
    "limits of all": _limit_all,
    "questions about all": _ask_all,
}
"""What is done to all the jobs beside which the rest is measured."""


def run(report: Report, *, quick: bool) -> None:
    """Measure each operation at two depths, and beside a million jobs; it takes a quarter of an hour and 1 GB."""
    if shutil.which("redis-server") is None:
        report.miss("redis-server")
        return
    with off_the_server_cpu():
        _measure(report, quick=quick)


def _measure(report: Report, *, quick: bool) -> None:
    report.title("the longest script of each operation: ms of the server's CPU, and the slowest scripts in it")
    bench = _Bench(report, repeats=1 if quick else 3)
    with RedisServer() as server:
        enqueue_and_run(Probe(server, "first", 1))
        names = itertools.count()
        for depth in (3,) if quick else (3, 16):
            for what, act in WHAT.items():

                def alone(act: Callable[[Probe], None] = act, depth: int = depth) -> Taken:
                    taken = bench.taken(Probe(server, f"n{next(names)}", depth), act)
                    server.client.flushdb()
                    return taken

                bench.measure(f"{what}, depth {depth}", alone)
    many = 20_000 if quick else BESIDE
    report.title(f"the same beside {many:,} jobs that wait behind one, at depth 3")
    with tempfile.TemporaryDirectory(prefix="queuehint-bench-") as folder:
        dump = Path(folder, "dump.rdb")
        with RedisServer() as server:
            holder = bench.fill(Probe(server, "beside", 3), many)
            server.dump(dump)
        for what, act in (WHAT | OF_ALL).items():

            def beside(act: Callable[[Probe], None] = act) -> Taken:
                with RedisServer(dump) as server:
                    probe = Probe(server, "beside", 3, holder)
                    probe.call(CountJobs())
                    return bench.taken(probe, act)

            bench.measure(f"{what}, beside {many:,}", beside)
    report.add(
        "yardstick: a loop of 1 000 000 turns in Lua", "ms", *bench.loops, note=f"figures are as if it took {LOOP_MS}"
    )
    name, cost = bench.slowest
    report.add("the request that took longest by the wall", "ms", cost.wall_ms, note=f"{name}: {cost}")


Taken = dict[str, list[tuple[float, Cost]]]
"""Of each request, by its script, the ms of CPU as if the yardstick took `LOOP_MS`, and what was measured."""


@attrs.define
class _Bench:
    report: Report
    repeats: int
    loops: list[float] = attrs.field(factory=list)
    slowest: tuple[str, Cost] = ("", Cost(0, 0, 0))

    def fill(self, probe: Probe, many: int) -> Grant:
        """Enqueue a job, claim it, and enqueue as many more that wait for it."""
        probe.call(Enqueue((JobSpec(id="holder", task="hold", claims=(Claim(("hot", "all")),), pool="holder"),)))
        grant: Grant
        (grant,) = probe.call(Exchange("holder", pools=("holder",), limit=1, lease_ms=HOUR_MS)).grants
        claims = [(Claim(("hot", "all", f"branch-{n}")),) for n in range(BRANCHES)]
        for begin in range(0, many, FILL_BY):
            jobs = [JobSpec(id=f"b{n}", task="t", claims=claims[n % BRANCHES]) for n in range(begin, begin + FILL_BY)]
            probe.call(Enqueue(tuple(jobs)))
        return grant

    def taken(self, probe: Probe, act: Callable[[Probe], None]) -> Taken:
        """Do what is measured; return what it took."""
        probe.costs.clear()
        before_ms = probe.loop_ms()
        act(probe)
        self.loops.append((before_ms + probe.loop_ms()) / 2)
        self.slowest = max(self.slowest, probe.slowest, key=lambda each: each[1].wall_ms)
        probe.scheduler.close_sync()
        scale = LOOP_MS / self.loops[-1]
        return {name: [(cost.cpu_ms * scale, cost) for cost in costs] for name, costs in probe.costs.items()}

    def measure(self, title: str, run: Callable[[], Taken]) -> None:
        """
        Measure some times; show the slowest scripts, and of the first what else its request took.

        Each run makes the same requests in the same order. Of each request the median counts: once in a thousand a
        machine that others use too takes several times as long for one, and it is another one each time.
        """
        found = [run() for _ in range(self.repeats)]
        slowest = []
        for name in set[str].intersection(*map(set, found)):
            same = zip(*(taken[name] for taken in found), strict=False)
            slowest.append((name, max([sorted(each, key=lambda one: one[0]) for each in same], key=_median)))
        (first, requests), *others = sorted(slowest, key=lambda each: -_median(each[1]))[:3]
        also = [f"{name} {_median(each):.1f}" for name, each in others]
        note = "; ".join([f"{first}: {requests[len(requests) // 2][1]}", *also])
        figure = self.report.add(title, "ms", *[ms for ms, _ in requests], note=note)
        self.report.aim(figure.name, figure.median, STEP_MS, at_most=True)


def _median(requests: list[tuple[float, Cost]]) -> float:
    return requests[len(requests) // 2][0]
