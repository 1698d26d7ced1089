"""Real handlers in a simulated world: `simulate`."""

from __future__ import annotations

import os
import random
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.scheduler.scheduler import Scheduler
from queuehint.schema.checks import check_duration, check_int, check_items
from queuehint.testing.arguments import check_function, off_the_loop, read_call
from queuehint.testing.simulation.faults import Fault, FaultPlan, check_seed
from queuehint.testing.simulation.leases import LoopWorker
from queuehint.testing.simulation.loop import EndlessError
from queuehint.testing.simulation.report import SimulationError, reason_of
from queuehint.testing.simulation.shrink import shrunk
from queuehint.testing.simulation.worker_world import HandlerWorld
from queuehint.testing.trace import TraceError, TraceEvent, examine_trace
from queuehint.values.ids import ids_from
from queuehint.values.record import JobRecord
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

JobLike: TypeAlias = (
    JobSpec
    | tuple[str, Sequence[str] | None]
    | tuple[str, Sequence[str] | None, tuple[Any, ...] | list[Any] | Mapping[str, Any]]
    | Callable[[], Awaitable[Any]]
)
"""A spec; a task, a hint and the arguments; or what is called and awaited to enqueue something."""

SEED_VARIABLE = "QUEUEHINT_SEED"
TRIES_MAX = 200
MISSES_MIN = 10
STOP_WORKERS = ("crash", "pause", "clog")
"""The faults by which a worker dies or stands still."""


@attrs.frozen(kw_only=True)
class Simulation:
    """
    The last of some simulated worlds that kept their promises.

    Args:
        seed: of the world.
        steps: how many operations its store has done.
        seconds: how long it lasted, in virtual time.
        faults: how many faults of each kind happened.
        worlds, attempts, attempts_hit: in all worlds that were played: how many there were, how many attempts began in
            them, and during how many of these the worker died or stood still.
        trace: what happened to the jobs, as of `check_trace`; what the store has lost is not in it.
        jobs: the records of all jobs at the end, by their ids.
        story: the same in words, with the faults.
    """

    seed: int
    steps: int
    seconds: float
    faults: Mapping[str, int]
    worlds: int
    attempts: int
    attempts_hit: int
    trace: tuple[TraceEvent, ...]
    jobs: Mapping[str, JobRecord]
    story: tuple[str, ...]


def simulate(
    target: Scheduler | Mapping[str, Callable[..., Any]],
    jobs: Iterable[JobLike],
    *,
    workers: int = 3,
    concurrency: int = 4,
    seed: int = 0,
    seeds: int = 1,
    faults: FaultPlan | str = "crashes",
    setup: Callable[[], object] | None = None,
    invariant: Callable[[], object] | None = None,
    at_end: Callable[[], object] | None = None,
    limit: float | timedelta = 7 * 24 * 3600,
) -> Simulation:
    """
    Run handlers in a world that is the same for the same seed, and in which things go wrong.

    Each worker is a process of its own on a virtual loop: time jumps while all of them wait, plain functions take no
    time. Processes die in the middle of anything, stand still beyond their leases and go on; the wire to the store
    loses, doubles and delays; the store is started anew. After each step of the store it is checked that every
    promise is kept, and at the end that the trace breaks no rule of order. What is still QUEUED or DEFERRED then waits
    for a person; a wait for a signal until a time is waited for.

    Args:
        target: whose handlers run: a scheduler, whose store is left alone, or functions by the names of their tasks.
        jobs: what is enqueued, in this order: a `JobSpec`, a tuple ``(task, hint, arguments)``, or what is called and
            awaited to enqueue something. What the store has lost of it is enqueued again.
        workers: how many processes, 1–100.
        concurrency: how many jobs each runs at once, 1–1 000.
        seed: of the first world.
        seeds: how many worlds, each with the next seed.
        faults: what goes wrong, or the name of a plan.
        setup: called before each world begins, also those that are played to find the fewest faults: makes the state
            of the handlers anew.
        invariant: called after each step of the store; raises AssertionError, or returns False, if something is wrong.
        at_end: called when nothing more can happen by itself; as *invariant*.
        limit: how long a world may last, in virtual time.

    Returns:
        What happened in the last world.

    Raises:
        SimulationError: a promise was broken, or what the caller has asserted; with the fewest jobs and faults.
        InvalidJobTypeError, InvalidJobError: a parameter is not valid.

    It warns (UserWarning) if workers died or stood still ten times or more, and never during an attempt; and if by
    default one world was played, in which no fault hit an attempt.

    The environment's ``QUEUEHINT_SEED``, if it is set, is the only seed that is played.

    >>> done = []
    >>> async def edit(text):
    ...     done.append(text)
    >>> world = simulate({"edit": edit}, [("edit", ["doc1"], ["a"]), ("edit", ["doc1"], ["b"])], faults="none")
    >>> done
    ['a', 'b']

    .. versionadded:: 1.0.0
    """
    for name, function in (("setup", setup), ("invariant", invariant), ("at_end", at_end)):
        if function is not None:
            check_function(function, parameter=name)
    case = _Case(
        sched=_scheduler(target),
        jobs=check_items(jobs, parameter="jobs"),
        workers=check_int(workers, parameter="workers", least=1, most=100),
        concurrency=check_int(concurrency, parameter="concurrency", least=1, most=1000),
        plan=FaultPlan.read(faults),
        setup=setup,
        invariant=invariant,
        at_end=at_end,
        limit_ms=check_duration(limit, parameter="limit", least_ms=1),
    )
    check_int(seeds, parameter="seeds", least=1, most=1 << 32)
    check_seed(seed)
    wanted = os.environ.get(SEED_VARIABLE)
    numbers = range(seed, seed + seeds) if wanted is None else [_seed_of(wanted)]

    totals = Counter[str]()

    def play() -> Simulation:
        played: Simulation | None = None
        for each in numbers:
            played = case.play(each)
            totals.update(
                worlds=1,
                attempts=played.attempts,
                hit=played.attempts_hit,
                stopped=sum(played.faults.get(kind, 0) for kind in STOP_WORKERS),
            )
        assert played is not None
        return played

    last = off_the_loop(play)
    if totals["stopped"] >= MISSES_MIN and not totals["hit"]:
        warnings.warn(
            f"{totals['stopped']} times workers died or stood still in {totals['worlds']} simulated worlds, "
            "never during an attempt: have handlers take time (asyncio.sleep), or raise the plan's crash and pause",
            stacklevel=2,
        )
    if seeds == 1 and not seed and wanted is None and faults == "crashes" and not totals["hit"]:
        warnings.warn(
            "one simulated world was played, and no fault hit an attempt in it: pass seeds=500, or another seed",
            stacklevel=2,
        )
    return attrs.evolve(last, worlds=totals["worlds"], attempts=totals["attempts"], attempts_hit=totals["hit"])


def _seed_of(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidJobError(f"{SEED_VARIABLE} must be a whole number, got {shown(text)}") from None


def _scheduler(target: object) -> Scheduler:
    if isinstance(target, Scheduler):
        return target
    if not isinstance(target, Mapping):
        raise InvalidJobTypeError(
            f"target must be a Scheduler or functions by name, got {type(target).__name__}: {shown(target)}"
        )
    sched = Scheduler("memory://")
    for name, function in target.items():
        sched.job(name=name)(function)
    return sched


@attrs.frozen(kw_only=True)
class _Case:
    """Parameters of a simulation, except the seed."""

    sched: Scheduler
    jobs: list[JobLike]
    workers: int
    concurrency: int
    plan: FaultPlan
    setup: Callable[[], object] | None
    invariant: Callable[[], object] | None
    at_end: Callable[[], object] | None
    limit_ms: int

    def play(self, seed: int) -> Simulation:
        """Play a seed. On a failure, find the fewest jobs and faults that fail."""
        world = self._world(seed, range(len(self.jobs)), None)
        try:
            return self._run(world, seed)
        except EndlessError as error:  # fewer jobs would take as long again, each time
            raise SimulationError(
                seed=seed, step=world.steps, reason=str(error), story=tuple(world.story), command=_command(seed)
            ) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            first: Exception = error
            said = reason_of(error)  # now: another world may change what it is made of
        parts: list[int | Fault] = [*range(len(self.jobs)), *dict.fromkeys(world.faults)]
        stories: dict[tuple[int | Fault, ...], tuple[str, tuple[str, ...]]] = {}
        """What was broken, and the story, by what was left in."""
        is_well: dict[tuple[int, ...], bool] = {tuple(range(len(self.jobs))): True}

        def broken_by(some: list[int | Fault]) -> Exception | None:
            jobs = [part for part in some if isinstance(part, int)]
            fewer = self._world(seed, jobs, [part for part in some if isinstance(part, Fault)])
            try:
                self._run(fewer, seed)
            except Exception as broken:  # noqa: BLE001
                if type(broken) is not type(first):
                    return None
                stories[tuple(some)] = reason_of(broken), tuple(fewer.story)
                return broken
            return None

        def fails(some: list[int | Fault]) -> Exception | None:
            jobs = tuple([part for part in some if isinstance(part, int)])
            # With fewer jobs what the caller asserts may not hold anyway: that is no smaller failure but another one.
            if jobs not in is_well:
                is_well[jobs] = broken_by(list(jobs)) is None
            return broken_by(some) if is_well[jobs] else None

        is_well_without = broken_by(list(range(len(self.jobs)))) is None
        if not is_well_without:
            parts = list(range(len(self.jobs)))
        least, reason = shrunk(parts, fails if is_well_without else broken_by, first, tries_max=TRIES_MAX)
        said, story = stories.get(tuple(least), (said, tuple(world.story)))
        raise SimulationError(
            seed=seed,
            step=world.steps,
            reason=said,
            story=story,
            command=_command(seed),
        ) from reason

    def _world(self, seed: int, jobs: Iterable[int], only: list[Fault] | None) -> HandlerWorld:
        return HandlerWorld(
            self.sched,
            [self._item(number) for number in jobs],
            workers=self.workers,
            concurrency=self.concurrency,
            seed=seed,
            plan=self.plan,
            only=only,
            invariant=self.invariant,
            limit_ms=self.limit_ms,
        )

    def _item(self, number: int) -> Callable[[], Awaitable[Any]]:
        """Return the function that enqueues one job."""
        item, sched = self.jobs[number], self.sched
        if isinstance(item, JobSpec):
            spec = item
            return lambda: sched.submit([spec])
        if callable(item):
            return item
        task, hint, args, kwargs = read_call(item, parameter=f"job {number + 1}")
        tasks = sched._jobs
        if task not in tasks:
            raise InvalidJobError(f"job {number + 1} is of the task {task!r}; there are {', '.join(tasks) or 'none'}")
        job = tasks[task].using(id=f"{task}-{number + 1}", queue_hint=hint)
        return lambda: job.enqueue(*args, **kwargs)

    def _run(self, world: HandlerWorld, seed: int) -> Simulation:
        with _hosted(self.sched, world, seed):
            if self.setup is not None:
                self.setup()
            try:
                world.run()
                if self.at_end is not None and self.at_end() is False:
                    raise AssertionError("the condition at the end does not hold")
            finally:
                world.close()
        jobs = {job.id: job.record() for job in world.store.engine.table.jobs.values() if not job.is_hidden}
        faults = examine_trace(world.store.trace, jobs.values()).faults
        if faults:
            raise TraceError(faults)
        happened: dict[str, int] = {}
        for fault in world.faults:
            happened[fault.kind] = happened.get(fault.kind, 0) + 1
        return Simulation(
            seed=seed,
            steps=world.steps,
            seconds=round(world.loop.time(), 3),
            faults=happened,
            worlds=1,
            attempts=sum(event.kind == "started" for event in world.store.trace),
            attempts_hit=len(world.hit),
            trace=tuple(world.store.trace),
            jobs=jobs,
            story=tuple(world.story),
        )


@contextmanager
def _hosted(sched: Scheduler, world: HandlerWorld, seed: int) -> Iterator[None]:
    """Bind a scheduler to a world, and all randomness to the seed."""
    made = count(1)
    state, before = random.getstate(), (sched._backend, sched._worker_class)
    random.seed(seed)
    sched._backend, sched._worker_class = world.backend, LoopWorker
    try:
        with ids_from(lambda: f"id{next(made)}"):
            yield
    finally:
        sched._backend, sched._worker_class = before
        random.setstate(state)


def _command(seed: int) -> str:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    what = ["-m", "pytest", test] if test else sys.argv
    return f"{SEED_VARIABLE}={seed} python {shlex.join(what)}"
