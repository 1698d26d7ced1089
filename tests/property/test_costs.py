"""Jobs of different costs under one limit: what waits there is started in order, and nothing waits for ever."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint.operations import BUDGET
from queuehint.testing.contract.selected_limits import limit_jobs
from queuehint.testing.driver import Queue, job
from queuehint.values.limit import Limit
from queuehint.values.report import ReasonKind
from tests.support import thorough

MOST = 4
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.integers(1, MOST), st.integers(0, 2)),
        st.tuples(st.just("claim"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("finish"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 1200), st.just(0)),
    ),
    min_size=5,
    max_size=60,
)


class Line:
    """A queue under one limit, and the heavy jobs that a claim has found no room for."""

    def __init__(self, limit: Limit) -> None:
        self.queue = Queue(now_ms=10**12)
        limit_jobs(cast("Any", self.queue), **attrs.asdict(limit, recurse=False))
        self.limit = limit
        self.costs: dict[str, int] = {}
        self.running: list[str] = []
        self.stopped: set[str] = set()

    def enqueue(self, cost: int, user: int) -> None:
        name = str(len(self.costs) + 1)
        self.costs[name] = cost
        self.queue.enqueue(job(name, ["a", name], cost=cost, user=f"u{user}" if user else None))

    def claim(self, limit: int) -> None:
        for name in self.queue.start(limit):
            self.stopped.discard(name)
            overtaken = [other for other in self.stopped if int(other) < int(name)]
            assert not overtaken, f"{name} is started before {overtaken}, which found no room before"
            self.running.append(name)
        if self.limit.most is not None:
            assert sum(self.costs[name] for name in self.running) <= self.limit.most
        for name, cost in self.costs.items():
            record = self.queue.record(name)
            if cost > 1 and record.state == "QUEUED" and self.queue.why(name).kind is ReasonKind.LIMIT:
                self.stopped.add(name)

    def finish(self, at: int) -> None:
        if self.running:
            self.queue.finish(self.running.pop(at % len(self.running)))

    def end(self) -> None:
        """Go on until all is done: each step starts or ends a job, or the time that a rate counts passes."""
        for _ in range(4 * len(self.costs) + 4):
            self.claim(9)
            while self.running:
                self.finish(0)
            self.queue.wait(2000)
        assert all(self.queue.record(name).state == "FINISHED" for name in self.costs)


@given(
    st.sampled_from(
        [
            Limit(path=("a",), most=MOST),
            Limit(path=("a",), rate=(MOST, 1000)),
            Limit(path=("a",), rate=(MOST, 1000), burst=MOST),
            Limit(task="task", most=MOST),
        ]
    ),
    _STEPS,
)
def test_no_job_overtakes_a_heavy_one_without_room(limit: Limit, steps: list[tuple[str, int, int]]) -> None:
    line = Line(limit)
    for what, number, user in steps:
        if what == "enqueue":
            line.enqueue(number, user)
        elif what == "claim":
            line.claim(number)
        elif what == "finish":
            line.finish(number)
        else:
            line.queue.wait(number)
    line.end()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [BUDGET, 50])
def test_exchanges_under_two_limits_come_to_an_end(budget: int) -> None:
    """Of two limits each may call a job that the other one has to let through: none sends the other's back for ever."""
    for seed in range(thorough(400, quick=12)):
        random = Random(seed)
        queue = Queue(budget=budget, checked=False)
        limit_jobs(cast("Any", queue), task="task", most=random.choice((6, 10)))
        limit_jobs(cast("Any", queue), path=("a",), most=6)
        running: list[str] = []
        for step in range(60):
            queue.advance(random.choice((0, 0, 1, 100)))
            if random.random() < 0.5:
                for at in range(random.randint(1, 4)):
                    path, cost = [random.choice("aab"), f"{step}-{at}"], random.choice((1, 2, 3, 6))
                    fields = {"pool": random.choice("pq"), "priority": random.choice((1, 3, 5)), "cost": cost}
                    spec = job(f"{step}-{at}", path, user=random.choice(("u", None)), **fields)
                    queue.enqueue(attrs.evolve(spec, task=random.choice(("task", "task", "other"))))
            elif running:
                random.shuffle(running)
                ended = random.randint(1, len(running))
                queue.finish(*running[:ended])
                del running[:ended]
            for _ in range(100):
                started = queue.start(random.choice((1, 5)), pools=("p", "q"))
                running += started
                if not (started or queue.stats().ready):
                    break
            else:
                pytest.fail(f"seed {seed}, step {step}: jobs are ready, and claims start none of them")
