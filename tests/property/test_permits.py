"""
Permits and jobs in one limit, against a line that is kept by hand; and circles of waits, against a search.

What always holds of a limit of so many slots, where all callers and workers ask all the time:

1. What runs never costs more than there are.
2. What waits stands in one line, jobs and permits alike, by the time at which it came. The first of it starts as soon
   as there is room for its cost, and none before it.
3. What is canceled, ends, or loses its lease, waiting or holding, leaves nothing.
"""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import Scheduler, WouldDeadlockError
from queuehint.client.circles import Waits
from queuehint.core.structures.limits import LOOK_MS
from queuehint.testing.contract.limits import limit
from queuehint.testing.contract.permits import permit, take
from queuehint.testing.contract.slots import running_at
from queuehint.testing.driver import Queue, job
from queuehint.values.hint import COUNTED, Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec
from tests.support import LIMIT_S, thorough

HOUR_MS = 3_600_000


# --- a line ----------------------------------------------------------------------------------------------------------


class Line:
    """Who runs and who waits, in order; the rule of a limit as plain as it can be."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.cost: dict[str, int] = {}
        self.waiting: list[str] = []
        self.running: list[str] = []

    def come(self, name: str, cost: int) -> None:
        self.cost[name] = cost
        self.waiting.append(name)

    def start(self) -> list[str]:
        """Start the first of the line while there is room; return who started."""
        began = []
        while self.waiting and sum(self.cost[each] for each in [*self.running, self.waiting[0]]) <= self.most:
            began.append(self.waiting.pop(0))
            self.running.append(began[-1])
        return began


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    most=st.integers(1, 4),
    each=st.booleans(),
    permits=st.sampled_from([0.2, 0.5, 1.0]),
)
def test_permits_and_jobs_start_in_one_line_given_room(seed: int, most: int, each: bool, permits: float) -> None:
    random, store, line = Random(seed), Queue(), Line(most)
    at: Any = store
    path = () if each else ("a",)
    limit(at, *path, each=each, most=most)
    kinds: dict[str, bool] = {}

    def ask(*already: str) -> None:
        """Let all ask, those that come first in order, then in any, until nothing comes of it."""
        expected, began = line.start(), [*already]
        is_over, asking = False, [name if kinds[name] else "" for name in kinds if name in [*line.waiting, *expected]]
        while not is_over:
            is_over = True
            for name in asking:
                got = (
                    store.start(lease_ms=HOUR_MS)
                    if not name
                    else [name]
                    if name not in began and take(store, name, HOUR_MS)
                    else []
                )
                began += got
                is_over = is_over and not got
            random.shuffle(asking)
        assert sorted(began) == sorted(expected), (began, expected, line.waiting)
        assert running_at(at, *path, each=each) == sum(line.cost[name] for name in line.running) <= most

    for number in range(random.randrange(5, 40)):
        move = random.random()
        if move < 0.5 or not (line.waiting or line.running):
            name, cost = str(number), random.randint(1, most)
            kinds[name] = random.random() < permits
            # Those that no line keeps in order stand where all that come are in order of their numbers.
            if kinds[name]:
                store.enqueue(permit(name, "a", "x", cost=cost, presence_ms=HOUR_MS))
            else:
                store.enqueue(job(name, ["a", name], cost=cost))
            is_in_order = any(kinds[each] for each in line.waiting)
            line.come(name, cost)
            if is_in_order and random.random() < 0.5:
                continue  # It has not asked yet when others end.
        elif move < 0.75 and line.running:
            name = random.choice(line.running)
            line.running.remove(name)
            # A worker asks for more in the step in which it settles.
            settled = store.exchange(
                store.outcome(name), pools=("default",), limit=random.choice((0, 1, 9)), lease_ms=HOUR_MS
            )
            ask(*[grant.spec.id for grant in settled.grants])
        elif move < 0.85 and line.waiting:
            name = random.choice(line.waiting)
            line.waiting.remove(name)
            store.cancel(name)
        elif move < 0.9 and (held := [name for name in line.running if kinds[name]]):
            name = random.choice(held)
            line.running.remove(name)
            store.settle(name, OutcomeKind.LOST)
            assert store.state(name) is JobState.CANCELED
        else:
            store.wait(random.choice((1, LOOK_MS)))
        ask()
    for name in [*line.running]:
        line.running.remove(name)
        store.finish(name)
        ask()
        assert not line.waiting or line.running
    while line.running:
        store.finish(line.running.pop(0))
        ask()
    assert store.is_clean


# --- circles ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Caller:
    """A job that runs or a permit: what it costs where, and inside of what it was asked for."""

    name: str
    where: str
    cost: int
    inside: str | None
    is_held: bool


callers = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 2), st.none() | st.integers(0, 8), st.booleans()), max_size=9
)


def made_up(drawn: list[tuple[str, int, int | None, bool]], most: dict[str, int]) -> list[Caller]:
    """Return callers of which each is inside of one that holds, and none holds more than there is."""
    made: list[Caller] = []
    room = dict(most)
    for at, (where, cost, parent, is_held) in enumerate(drawn):
        inside = None if parent is None or not made else made[parent % len(made)]
        cost, fits = min(cost, most[where]), room[where] >= min(cost, most[where])
        if inside is not None and not inside.is_held:
            inside = None
        if is_held and not fits:
            continue
        if is_held:
            room[where] -= cost
        made.append(Caller(str(at), where, cost, None if inside is None else inside.name, is_held))
    return made


def as_record(caller: Caller, number: int) -> Any:
    """Return what is read of a record."""
    spec = JobSpec(
        id=caller.name,
        task="permit",
        claims=(Claim((caller.where,), COUNTED),),
        presence_ms=1,
        parent=caller.inside,
        policy=Policy(cost=caller.cost),
    )
    state = JobState.STARTED if caller.is_held else JobState.QUEUED
    return SimpleNamespace(id=spec.id, spec=spec, number=number, state=state)


def goes_on(callers: list[Caller], most: dict[str, int], free: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
    """
    Return who gets what it waits for: whoever holds and waits for nothing goes, then whoever has room, and so on.

    Args:
        free: those that go in any case, as if they waited for nothing.
    """
    left = {caller.name: caller for caller in callers}
    got: set[str] = set()
    while True:
        room = dict(most)
        for each in left.values():
            if each.is_held:
                room[each.where] -= each.cost
        done = [
            each for each in left.values() if each.is_held and not any(o.inside == each.name for o in left.values())
        ]
        done += [each for each in left.values() if each.is_held and each.name in free and each not in done]
        fits = [each for each in left.values() if not each.is_held and each.cost <= room[each.where]]
        for each in [*done, *fits]:
            del left[each.name]
            if not each.is_held:
                got.add(each.name)
        if not done and not fits:
            return got


@given(drawn=callers, most=st.fixed_dictionaries({name: st.integers(1, 3) for name in "abc"}))
def test_caller_is_refused_exactly_if_no_end_makes_room(
    drawn: list[tuple[str, int, int | None, bool]], most: dict[str, int]
) -> None:
    made = made_up(drawn, most)
    records = {each.name: as_record(each, number) for number, each in enumerate(made)}
    waiting = {name: record for name, record in records.items() if record.state is JobState.QUEUED}
    running = {name: record for name, record in records.items() if record.state is JobState.STARTED}
    waits = Waits(waiting, running, [Limit(path=(name,), most=each) for name, each in most.items()])
    blocked = waits.blocked()
    assert blocked == set(waiting) - goes_on(made, most)
    in_circles = []
    by_name = {each.name: each for each in made}
    for name in sorted(blocked):
        above, at = set(), by_name[name].inside
        while at is not None:
            above.add(at)
            at = by_name[at].inside
        if above and name in goes_on(made, most, above):
            in_circles.append(name)
    # Whoever is in vain is behind a circle, and one of each circle is told.
    assert not blocked or in_circles
    told = [name for name in waiting if waits.circle_of(name) is not None]
    assert told == ([max(in_circles, key=lambda name: records[name].number)] if in_circles else [])


# --- as they are used ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ordered", [False, True])
def test_callers_that_hold_and_request_more_all_finish(is_ordered: bool) -> None:
    for seed in range(thorough(60, quick=5)):
        refused = asyncio.run(asyncio.wait_for(_all_come_to_an_end(Random(seed), is_ordered=is_ordered), LIMIT_S))
        assert not (is_ordered and refused), f"seed {seed}: who takes limits in one order closes no circle"


async def _all_come_to_an_end(random: Random, *, is_ordered: bool) -> int:
    """Run callers with permits inside of permits; return how many were refused."""
    most = {name: random.randint(1, 3) for name in "abcd"}
    now, refused = dict.fromkeys(most, 0), 0

    async def enter(sched: Scheduler, names: list[str]) -> None:
        if not names:
            await asyncio.sleep(0)
            return
        cost = random.randint(1, most[names[0]])
        async with sched.permit([names[0]], cost=cost):
            now[names[0]] += cost
            assert now[names[0]] <= most[names[0]]
            try:
                await enter(sched, names[1:])
            finally:
                now[names[0]] -= cost

    async def call(sched: Scheduler) -> None:
        nonlocal refused
        names = random.sample(sorted(most), random.randint(1, 3))
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        try:
            await enter(sched, sorted(names) if is_ordered else names)
        except WouldDeadlockError:
            refused += 1

    async with Scheduler() as sched:
        for name, each in most.items():
            await sched.limit([name], each)
        await asyncio.gather(*[call(sched) for _ in range(8)])
        assert [state.started for state in await sched.limits()] == [0] * len(most)
        records: Any = await sched.records.count(state="QUEUED")
        assert records.total == 0
    return refused
