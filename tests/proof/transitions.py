"""
Replay each transition of the in-memory engine on the state machine extracted from the proof.

The machine has to allow each transition, in the order in which the engine makes them: its guards are the rules of the
proof. After each operation both have to agree on the state of each job, its open edges with their policies, and on the
jobs that have a place, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from queuehint.core.jobs import archive
from queuehint.core.jobs.lifecycle import Lifecycle
from queuehint.core.jobs.table import JobTable
from queuehint.core.structures.edges import DependencySets
from queuehint.core.structures.job import Job, Needs
from queuehint.errors import QueueHintError
from queuehint.operations import Enqueue
from queuehint.testing.driver import Queue, job
from queuehint.values.hint import Claim, normalise
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency, JobSpec
from tests.proof.programs import replay

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
HOUR_MS = 3_600_000
BATCH = 500


class Recorder:
    """The transitions of one engine, as events of the machine."""

    def __init__(self) -> None:
        self.lines: list[str] = ["R"]
        self.numbers: dict[str, int] = {}
        self.open: dict[str, list[str]] = {}
        self.kinds: Counter[str] = Counter()
        self.by_edge: str | None = None
        self.is_discarding = False

    def note(self, job: Job, transition: str) -> None:
        self.lines.append(f"A {self.numbers[job.id]} {transition}")
        self.kinds[transition.split(maxsplit=1)[0]] += 1

    def submit(self, spec: JobSpec, needs: Needs, *, later: bool) -> None:
        claims = " ".join([".".join(claim.path) + ("?" if claim.mode == "shared" else "!") for claim in spec.claims])
        edges = self.edges(needs)
        self.numbers[spec.id] = len(self.numbers)
        self.open[spec.id] = [dependency_id for dependency_id, _ in needs]
        self.lines.append(f"S {'later' if later else 'now'} |{claims}|{edges}")
        self.kinds["Submit"] += 1

    def edges(self, needs: Needs) -> str:
        # That a parent records the failure of a child is not in the theory: the edge is resolved.
        return " ".join([f"{self.numbers[other]}:{policy[:3].replace('n', 'd')}" for other, policy in needs])

    def resolve(self, job: Job, dependency_id: str) -> None:
        at = self.open[job.id].index(dependency_id)
        del self.open[job.id][at]
        self.note(job, f"Resolve {at}")

    def evaluated(self, job: Job, needs: Needs) -> None:
        """Note which of its needs were resolved as the job was bound to them, and whether it took its place."""
        self.open[job.id] = [dependency_id for dependency_id, _ in needs]
        for dependency_id, _ in needs:
            if dependency_id not in job.blocked:
                self.resolve(job, dependency_id)
        if job.state is QUEUED:
            self.note(job, "Place")

    def end(self, job: Job, state: JobState) -> None:
        if job.state is STARTED:
            keeps = job.spec.policy.on_dead != "continue" and job.walk is not None
            self.note(
                job, {FINISHED: "Finish", FAILED: f"Fail {'keep' if keeps else 'leave'}", CANCELED: "Stop"}[state]
            )
        elif state is not CANCELED:
            self.note(job, "Close well" if state is FINISHED else "Close ill")
        elif self.by_edge is not None:
            self.resolve(job, self.by_edge)
        else:
            self.note(job, "Cancel")


@contextmanager
def recorded(patch: pytest.MonkeyPatch) -> Iterator[list[Recorder]]:
    """Have the last recorder of a list note what engines do."""
    recorders: list[Recorder] = []

    def hook(
        owner: Any,
        name: str,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        original = getattr(owner, name)

        def hooked(table: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(recorders[-1], *args, **kwargs)
            try:
                result = original(table, *args, **kwargs)
            finally:
                if name in {"resolve", "apply_cancellation"}:
                    recorders[-1].by_edge = None
                if name == "discard":
                    recorders[-1].is_discarding = False
            if after is not None:
                after(recorders[-1], result, *args, **kwargs)
            return result

        patch.setattr(owner, name, hooked)

    def before_admit(r: Recorder, spec: JobSpec, now_ms: int, *, needs: Needs = (), blocked: Needs = ()) -> None:
        due_ms = now_ms + spec.delay_ms if spec.delay_ms else spec.run_at_ms
        r.submit(spec, needs, later=due_ms is not None and due_ms > now_ms)

    def after_admit(r: Recorder, made: Job, *_: Any, needs: Needs = (), blocked: Needs = ()) -> None:
        r.evaluated(made, needs)

    def before_queue(r: Recorder, job: Job, now_ms: int) -> None:
        if job.state is SCHEDULED:
            r.note(job, "Due")
        r.note(job, "Place")

    def before_await(r: Recorder, job: Job, children: Needs, *, again: bool) -> None:
        r.open[job.id] = [child for child, _ in children]
        r.note(job, f"{'Leave' if again else 'Await'} {r.edges(children)}")

    def before_put_back(r: Recorder, job: Job, again_ms: int | None, *_: Any) -> None:
        r.note(job, "Again now" if again_ms is None else "Again on")

    def before_free(r: Recorder, job: Job) -> None:
        if not r.is_discarding:
            r.note(job, "Free")

    def before_discard(r: Recorder, job: Job, now_ms: int) -> None:
        r.is_discarding = True
        r.note(job, "Discard")

    def before_prune(r: Recorder, job: Job) -> None:
        if not job.gone:
            r.note(job, "Prune")

    def before_resolve(r: Recorder, job: Job, dependency: Job, since_ms: int) -> None:
        r.by_edge = dependency.id

    def before_cancellation(r: Recorder, job: Job, canceled_by: tuple[str, Job | None]) -> None:
        # If the record expired in the step in which the job was enqueued, it is canceled whatever the edge says.
        dependency = canceled_by[1]
        r.by_edge = None if dependency is None or dependency.gone else dependency.id

    hook(JobTable, "admit", before_admit, after_admit)
    hook(JobTable, "set_aside", lambda r, spec, now_ms, needs: r.submit(spec, needs, later=False))
    hook(JobTable, "end", lambda r, job, state, *_, **__: r.end(job, state))
    hook(JobTable, "queue", before_queue)
    hook(JobTable, "defer", lambda r, job: r.note(job, "Due"))
    hook(JobTable, "offer", lambda r, job: r.note(job, "Due"))
    hook(JobTable, "start", lambda r, job, *_: r.note(job, "Start"))
    hook(JobTable, "put_back", before_put_back)
    hook(JobTable, "postpone", lambda r, job, *_: r.note(job, "Again off" if job.state is STARTED else "Put_off"))
    hook(JobTable, "await_children", before_await)
    hook(JobTable, "free", before_free)
    hook(archive, "discard", before_discard)
    hook(archive, "redrive", lambda r, job, *_: r.note(job, "Redrive"))
    hook(
        archive,
        "revive",
        lambda r, job, *_: r.note(job, "Revive"),
        lambda r, _, job, *__: r.evaluated(job, job.need_extras().needs),
    )
    hook(archive, "forget", lambda r, job, *_, **__: r.note(job, "Prune"))
    hook(archive, "prune", before_prune)
    hook(Lifecycle, "resolve", before_resolve)
    hook(Lifecycle, "apply_cancellation", before_cancellation)
    hook(DependencySets, "close", lambda r, job, dependency_id: r.resolve(job, dependency_id))
    try:
        yield recorders
    finally:
        patch.undo()


def shown(table: JobTable, recorder: Recorder) -> str:
    """Return the states, open edges and places of all jobs, as the machine prints them."""
    numbers = recorder.numbers
    parts = []
    for job_id, number in numbers.items():
        each = table.jobs.get(job_id)
        if each is None or each.gone:
            continue
        name = each.state.name.capitalize()
        if each.state is DEFERRED and each.need_extras().is_parent:
            name = "Parent"
        elif job_id in table.backing_off:
            name = "Backing"
        blocked = () if each.is_over else tuple(each.blocked.items())
        edges = recorder.edges(blocked)
        parts.append(f"{number} {name}{' ' if edges else ''}{edges}; ")
    placed = sorted([each for each in table.jobs.values() if each.is_placed], key=lambda each: each.seq)
    return "".join(parts) + "line" + "".join([f" {numbers[each.id]}" for each in placed])


class Crowd:
    """One random history, of a budget of its own; a *wild* one has small budgets, deaths, children and redrives."""

    def __init__(self, seed: int, steps: int, recorder: Recorder, *, is_wild: bool) -> None:
        self.random = random = Random(seed)
        self.seed = seed
        self.recorder = recorder
        self.is_wild = is_wild
        self.budget = random.choice([1, 2, 3] if is_wild else [1, 2, 5, 20, 1000, 1000])
        self.queue = Queue(budget=self.budget, checked=False)
        self.table = self.queue.engine.table
        self.expected: list[str] = []
        self.claims_few = random.random() < 0.3
        for _ in range(steps):
            try:
                self._step()
            except QueueHintError:
                pass
            recorder.lines.append("D")
            self.expected.append(shown(self.table, recorder))

    def _pick(self, *states: JobState, most: int = 1) -> list[str]:
        ids = [each.id for each in self.table.jobs.values() if not each.gone and (not states or each.state in states)]
        return self.random.sample(ids, min(most, len(ids)))

    def _claim(self) -> Claim:
        path = tuple([self.random.choice("12") for _ in range(self.random.randrange(3))])
        return Claim(path, self.random.choice(["exclusive", "exclusive", "shared"]))

    def _spec(self, job_id: str, earlier: list[str]) -> JobSpec:
        random = self.random
        claims: tuple[Claim, ...] = ()
        if not self.claims_few or random.random() < 0.3:
            claims = normalise([self._claim() for _ in range(random.choice([0, 1, 1, 1, 2]))])
        others = random.sample(earlier, min(len(earlier), random.choice([0, 0, 1, 1, 2, 3])))
        return job(
            job_id,
            claims=claims,
            after=[
                Dependency(other, when=random.choice(["success", "success", "success", "failure", "done"]), data=False)
                for other in dict.fromkeys(others)
            ],
            delay_ms=random.choice([0, 0, 0, 1000]),
            on_dead=random.choice(["continue", "hold", "cancel_behind"]),
            on_retry=random.choice(["hold", "yield"]),
            on_dependency_failure=random.choice(["wait", "cancel", "cancel", "run"]),
            max_attempts=random.choice([1, 1, 2, 3]),
            max_hold_ms=random.choice([500, 300_000]),
            start_within_ms=random.choice([None, None, None, 5000]),
        )

    def _enqueue(self) -> None:
        random = self.random
        earlier = self._pick(most=6)
        specs: list[JobSpec] = []
        for _ in range(random.choice([1, 1, 2, 4])):
            new = f"j{len(self.recorder.numbers) + len(specs)}"
            specs.append(self._spec(new, earlier))
            earlier.append(new)
        parents = [each for each in self._pick(STARTED) if each in self.queue.grants]
        if parents and random.random() < 0.5:
            self.queue.apply(Enqueue(tuple(specs), parent=(parents[0], self.queue.grants[parents[0]].token)))
        else:
            self.queue.enqueue(*specs)

    def _settle(self) -> None:
        random = self.random
        for job_id in self._pick(STARTED):
            kind = random.choice(
                [
                    *[OutcomeKind.FINISHED] * 3,
                    *[OutcomeKind.FAILED] * 4,
                    *[OutcomeKind.CHILDREN] * 3,
                    OutcomeKind.SNOOZED,
                    OutcomeKind.RELEASED,
                    OutcomeKind.LOST,
                    OutcomeKind.DISCARDED,
                    OutcomeKind.UNKNOWN_TASK,
                ]
            )
            if kind is OutcomeKind.CHILDREN:
                unfinished = self._pick(SCHEDULED, DEFERRED, QUEUED, STARTED, most=random.choice([1, 2]))
                children = tuple(unfinished + self._pick(most=random.choice([0, 0, 1])))
                again = random.random() < 0.3
                more = {"again": True} if again else {"on_child_failure": random.choice(["fail", "ignore"])}
                self.queue.settle(job_id, kind, children=children, **more)
            elif kind is OutcomeKind.FAILED:
                delay_ms = random.choice([0, 1000, 400_000])
                self.queue.settle(job_id, kind, delay_ms=delay_ms, final=random.random() < 0.4)
            elif kind is OutcomeKind.SNOOZED:
                self.queue.settle(job_id, kind, delay_ms=random.choice([1, 1000]))
            else:
                self.queue.settle(job_id, kind)

    def _step(self) -> None:
        random, queue = self.random, self.queue
        draw = random.random()
        if self.is_wild:
            draw = random.choice([0.2, 0.2, 0.2, 0.3, 0.3, 0.5, 0.5, 0.5, 0.5, 0.8, 0.8, 0.8, 0.9])
        if draw < 0.25:
            self._enqueue()
        elif draw < 0.42:
            queue.start(random.choice([1, 2, 5]))
        elif draw < 0.70:
            self._settle()
        elif draw < 0.75:
            queue.cancel(*self._pick())
        elif draw < 0.77:
            queue.cancel_path(*[random.choice("12") for _ in range(random.randrange(3))])
        elif draw < 0.86:
            queue.redrive(*self._pick(FAILED, most=random.choice([1, 3])), downstream=random.random() < 0.8)
        elif draw < 0.88:
            queue.discard(*self._pick(FAILED))
        elif draw < 0.94:
            queue.tick()
        elif draw < 0.99:
            queue.advance(random.choice([1, 1000, 6000, 31_000, 400_000]))
            queue.tick()
        else:
            queue.advance(random.choice([1, 30, 200]) * HOUR_MS)
            queue.tick()


def compare(
    program: Path, seeds: range, steps: int, patch: pytest.MonkeyPatch, *, is_wild: bool = False
) -> Counter[str]:
    """Play crowds on both sides; return how many transitions there were of each kind, fail at the first difference."""
    kinds: Counter[str] = Counter()
    with recorded(patch) as recorders:
        for first in range(seeds.start, seeds.stop, BATCH):
            crowds = []
            for seed in range(first, min(first + BATCH, seeds.stop)):
                recorders.append(Recorder())
                crowds.append(Crowd(seed, steps, recorders[-1], is_wild=is_wild))
            printed = replay(program, [line for crowd in crowds for line in crowd.recorder.lines])
            starts = [at for at, line in enumerate(printed) if line == "R"]
            for crowd, start, end in zip(crowds, starts, [*starts[1:], len(printed)], strict=True):
                kinds += crowd.recorder.kinds
                answers = printed[start + 1 : end]
                if answers != crowd.expected:
                    raise AssertionError(_difference(crowd, answers))
            recorders.clear()
    return kinds


def _difference(crowd: Crowd, answers: list[str]) -> str:
    at = next(at for at, (one, other) in enumerate(zip(answers, crowd.expected, strict=False)) if one != other)
    done = [number for number, line in enumerate(crowd.recorder.lines) if line == "D"][at]
    history = "\n".join(crowd.recorder.lines[: done + 1])
    return (
        f"seed {crowd.seed}, budget {crowd.budget}, step {at}, after\n{history}\n"
        f"the engine says    {crowd.expected[at]}\nthe proof says     {answers[at]}"
    )
