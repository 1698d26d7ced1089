"""
The bare gates: a trie and its registry, without states, leases or timers, against the definition of R1 and R2.

Up to twelve jobs exist at once. A step places one, starts a granted one, ends or cancels one, or advances lines, by one
gate at a time too. By definition a job may start when no conflicting job placed before it is left: a set of such jobs
is one int, so that this is checked after every step.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from random import Random
from typing import Any, Literal

from queuehint.core.structures.registry import ActiveExecutions
from queuehint.core.structures.trie import Node, PathTrie, Walk
from queuehint.testing.model.places import clash
from queuehint.testing.simulation.faults import check_seed
from queuehint.testing.simulation.report import SimulationError, reason_of
from queuehint.testing.simulation.shrink import shrunk
from queuehint.values.hint import Claim, queue_key

JOBS_MAX = 12
STEPS = 200

Step = tuple[Literal["place", "start", "end", "advance"], int, int]
"""The action, the number of the job (of gates, if lines move), and the index of its claims."""

SHAPES: tuple[tuple[Claim, ...], ...] = (
    *((Claim(path),) for path in ((), ("a",), ("b",), ("a", "a"), ("a", "b"), ("b", "a"), ("a", "a", "a"))),
    *((Claim(path, "shared"),) for path in (("a",), ("a", "a"), ("b",))),
    (Claim(("a", "a")), Claim(("b",))),
    (Claim(("a", "b")), Claim(("b",), "shared")),
)
"""The claims that jobs have; paths are few, so that conflicts are many."""
EXACT = tuple(all(claim.mode == "exclusive" for claim in claims) for claims in SHAPES)
CLASHES = tuple(tuple(other for other, claims in enumerate(SHAPES) if clash(claims, mine)) for mine in SHAPES)
_DRAW = (0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 3, 4, 5, 6)
"""Which claims are drawn how often: the root now and then, what lies deep most of the time."""


class _Job:
    """A job as the gates know it; ``bit`` stands for it in sets, ``before`` the jobs before it."""

    __slots__ = ("before", "bit", "exact", "id", "missing", "number", "seq", "shape", "started", "walk")

    def __init__(self, number: int, shape: int, before: int) -> None:
        self.id = str(number)
        self.number = self.seq = number
        self.bit = 1 << number
        self.shape = shape
        self.exact = EXACT[shape]
        self.before = before
        self.started = False
        self.missing = 0
        self.walk: Walk | None = None

    @property
    def walks(self) -> list[Walk]:
        walks, walk = [], self.walk
        while walk is not None:
            walks.append(walk)
            walk = walk.next
        return walks


class GateWorld:
    """
    Some jobs at some gates.

    Every step asserts that a granted job has no conflicting job before it and, once no line may move, that a job that
    is not granted has one. A step that cannot be done does nothing: its jobs may have been left out.

    Args:
        trie, registry: what is tested; for tests of the tests.
    """

    def __init__(self, trie: type[PathTrie] = PathTrie, registry: type[ActiveExecutions] = ActiveExecutions) -> None:
        self.leftovers: deque[Any] = deque()
        self.trie = trie(self.leftovers)
        self.registry = registry(self.trie)
        self.jobs: dict[int, _Job] = {}
        self.granted: dict[_Job, None] = {}
        self.waiting: dict[_Job, None] = {}
        self.there = 0
        self._met = [0] * len(SHAPES)
        """For each shape, all jobs that conflicted with it so far."""
        self._arrived: list[Walk] = []

    def place(self, number: int, shape: int) -> None:
        """Place a job."""
        job = _Job(number, shape, self._met[shape] & self.there)
        bit, met, last, place = job.bit, self._met, None, self.trie.place
        for other in CLASHES[shape]:
            met[other] |= bit
        self.there |= bit
        self.jobs[number] = job
        for claim in SHAPES[shape]:
            walk = Walk(job, claim)
            if last is None:
                job.walk = walk
            else:
                last.next = walk
            last = walk
            place(walk)
            if not walk.granted:
                job.missing += 1
        if job.missing:
            self.waiting[job] = None
        else:
            self._grant(job)

    def _grant(self, job: _Job) -> None:
        self.granted[job] = None
        assert not job.before & self.there, f"job {job.number} is let through before {self._names(job)}"

    def _names(self, job: _Job) -> str:
        some = [str(other.number) for other in self.jobs.values() if other.bit & job.before]
        return f"job {', '.join(some)}, which was placed before it and conflicts with it"

    def start(self, number: int) -> None:
        """Start a job that was granted."""
        job = self.jobs.get(number)
        if job is not None and not job.missing and not job.started:
            self.registry.enter(job)  # type: ignore[arg-type]
            job.started = True

    def end(self, number: int) -> None:
        """End a job, wherever it is: it finishes, or is canceled while it waits."""
        job = self.jobs.pop(number, None)
        if job is None:
            return
        if job.started:
            self.registry.leave(job)  # type: ignore[arg-type]
        if job.missing:
            del self.waiting[job]
        else:
            del self.granted[job]
        self.there ^= job.bit
        walk, leave = job.walk, self.trie.leave
        while walk is not None:
            leave(walk)
            walk = walk.next

    def advance(self, budget: int) -> None:
        """Advance lines by about so many gates."""
        leftovers, arrived = self.leftovers, self._arrived
        while leftovers and budget > 0:
            node: Node = leftovers.popleft()
            used, again = self.trie.advance(node, budget, arrived)
            if again:
                leftovers.append(node)
            budget -= used or 1
            if arrived:
                for walk in arrived:
                    job: _Job = walk.job
                    job.missing -= 1
                    if not job.missing:
                        del self.waiting[job]
                        self._grant(job)
                arrived.clear()

    def check(self) -> None:
        """Assert R2 both ways, once no line may move."""
        if not self.leftovers:
            there = self.there
            for job in self.waiting:
                if job.exact:
                    assert job.before & there, f"job {job.number} waits, and nobody stands before it"

    def check_all(self) -> None:
        """Assert R1 for all pairs, and all that the structures say of themselves; O(all)."""
        running = list(self.registry.running.values())
        for at, job in enumerate(running):
            for other in running[:at]:
                assert other.shape not in CLASHES[job.shape], (  # type: ignore[attr-defined]
                    f"jobs {other.id} and {job.id} run at once and conflict"
                )
        self.trie.check()
        self.registry.check()

    def play(self, steps: list[Step]) -> None:
        """Do steps and check after each, then end all and see that nothing is left over."""
        for kind, number, shape in steps:
            if kind == "place":
                self.place(number, shape)
            elif kind == "start":
                self.start(number)
            elif kind == "end":
                self.end(number)
            else:
                self.advance(number)
            self.check()
            self.check_all()
        self.wind_down()

    def wind_down(self) -> None:
        """End all jobs in the order in which they may run, and see that nothing is left over."""
        self.advance(1 << 30)
        self.check()
        while self.jobs:
            assert self.granted, f"{len(self.jobs)} jobs wait for each other"
            for job in list(self.granted):
                self.end(job.number)
            self.advance(1 << 30)
            self.check()
        self.check_all()
        assert not self.trie.nodes, f"{self.trie.nodes} nodes are left of nobody"


def simulate_gates(seed: int = 0, *, steps: int = STEPS, make: type[GateWorld] = GateWorld) -> None:
    """
    Play one seed at the bare gates.

    Raises:
        SimulationError: a rule was broken; shrunk to the fewest steps.
        InvalidJobTypeError, InvalidJobError: a parameter is not valid.
    """
    check_seed(seed, steps=steps)
    done: list[Step] | None = None
    try:
        _play(seed, steps, make(), done)
    except Exception:
        done = []
        try:
            _play(seed, steps, make(), done)
        except Exception as error:
            raise _told(seed, steps, make, done, error) from None
        raise


def _play(seed: int, steps: int, world: GateWorld, done: list[Step] | None) -> None:
    draw = Random(seed).getrandbits
    made = 0
    jobs, leftovers, granted = world.jobs, world.leftovers, world.granted
    there_max = 3 + draw(4) % (JOBS_MAX - 2)
    step: Step
    for at in range(steps):
        dice = draw(24)
        roll, some = dice & 31, dice >> 5
        if leftovers and roll < 20:
            step = ("advance", 1 + (some & 1) if roll < 14 else 1 << 20, 0)
            if done is not None:
                done.append(step)
            world.advance(step[1])
        elif len(jobs) < there_max and (roll < 16 or not jobs):
            made += 1
            if done is not None:
                done.append(("place", made, _DRAW[some & 31]))
            world.place(made, _DRAW[some & 31])
        elif granted and roll < 30:
            job = next(iter(granted)) if some & 1 else list(granted)[some % len(granted)]
            if done is not None:
                done.append(("end" if job.started else "start", job.number, 0))
            if job.started:
                world.end(job.number)
            else:
                world.start(job.number)
        elif jobs:
            number = list(jobs)[some % len(jobs)]
            if done is not None:
                done.append(("end", number, 0))
            world.end(number)
        world.check()
        if at % 20 == 19:
            world.check_all()
    world.wind_down()


def _told(seed: int, steps: int, make: type[GateWorld], done: list[Step], error: Exception) -> SimulationError:
    def fails(some: list[Step]) -> Exception | None:
        try:
            make().play(some)
        except Exception as again:
            return again
        return None

    least, reason = shrunk(done, fails, error)
    story = [_line(step) for step in least]
    return SimulationError(
        seed=seed,
        step=len(done),
        reason=reason_of(reason),
        story=story,
        command=f"python -m tests.simulation gates --seed {seed} --steps {steps}",
    )


@cache
def _shown(shape: int) -> str:
    return " + ".join(
        f"{queue_key(claim.path)}{'' if claim.mode == 'exclusive' else ' (shared)'}" for claim in SHAPES[shape]
    )


def _line(step: Step) -> str:
    kind, number, shape = step
    if kind == "place":
        return f"job {number} is placed at {_shown(shape)}"
    if kind == "advance":
        return "all lines move" if number > 2 else f"lines move by {number} gate{'s' * (number > 1)}"
    return f"job {number} {'starts' if kind == 'start' else 'ends'}"
