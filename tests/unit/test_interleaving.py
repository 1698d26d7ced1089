"""Handlers in every order that the rules allow: the orders tried, the races found, and the messages."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import math
import random
import re
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuehint import Claim, InvalidHintError, InvalidJobError, JobContext, Scheduler
from queuehint.errors import CycleError, HandlerError, InvalidJobTypeError
from queuehint.testing import SerialEquivalence, check_serial_equivalence
from queuehint.testing.driver import job
from queuehint.testing.interleaving import play
from queuehint.testing.interleaving.explore import Explorer
from queuehint.testing.interleaving.jobs import Rules, build_parts
from queuehint.values.hint import Mode
from queuehint.values.spec import Dependency, JobSpec
from tests.each import for_each

Account = dict[str, int]


async def add(account: Account, amount: int) -> None:
    balance = account["balance"]
    await asyncio.sleep(0)
    account["balance"] = balance + amount


async def wait(state: Any, awaits: int) -> None:
    for _ in range(awaits):
        await asyncio.sleep(1)


def account() -> Account:
    return {"balance": 0}


def convicted(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check_serial_equivalence(*args, **kwargs)
    return str(caught.value)


# --- which orders are tried ------------------------------------------------------------------------------------------


def orders(parts: list[Any], most: int = 100_000) -> list[tuple[int, ...]]:
    rules = Rules(parts)
    explorer = Explorer(lambda choose: play.play(parts, rules, None, choose), 2 * most, seed=0)
    found = [played.choices for played in explorer.all()]
    assert explorer.is_exhaustive
    return found


def naive_orders(steps: list[int], before: list[set[int]]) -> Iterator[tuple[int, ...]]:
    """Yield all orders of so many steps a job, each job beginning when those before it have made all of theirs."""
    options = [index for index, left in enumerate(steps) if left and not any(steps[other] for other in before[index])]
    if not options:
        yield ()
    for index in options:
        left = [count - (other == index) for other, count in enumerate(steps)]
        for rest in naive_orders(left, before):
            yield (index + 1, *rest)


@pytest.mark.parametrize("awaits", [(0, 0), (1, 1), (2, 3), (1, 2, 1)])
def test_every_order_of_free_jobs_is_tried_once(awaits: tuple[int, ...]) -> None:
    found = orders(build_parts({"wait": wait}, [("wait", None, (count,)) for count in awaits]))
    steps = [count + 1 for count in awaits]
    assert len(found) == math.factorial(sum(steps)) // math.prod(map(math.factorial, steps))
    assert len(set(found)) == len(found)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.none() | st.lists(st.sampled_from("ab"), max_size=2),
            st.sets(st.integers(1, 3), max_size=2),
        ),
        max_size=3,
    )
)
def test_tried_orders_are_exactly_the_allowed_ones(jobs: list[tuple[int, list[str] | None, set[int]]]) -> None:
    specs = []
    before: list[set[int]] = []
    for index, (awaits, hint, back) in enumerate(jobs):
        after = {index - distance for distance in back if index >= distance}
        specs.append(job(str(index), hint, after=[str(other) for other in after], arguments=b'{"awaits":%d}' % awaits))
        before.append(after)
    found = orders(build_parts({"task": wait}, specs))
    if all(not edges for edges in before):
        for index, (_, path, _) in enumerate(jobs):
            for other, (_, earlier, _) in enumerate(jobs[:index]):
                if path is not None and earlier is not None:
                    short = min(len(path), len(earlier))
                    if path[:short] == earlier[:short]:
                        before[index].add(other)
        steps = [awaits + 1 for awaits, _, _ in jobs]
        assert sorted(found) == sorted(naive_orders(steps, before))
    assert len(set(found)) == len(found)
    for order in found:
        for index, edges in enumerate(before):
            assert all(max(_places(order, other + 1)) < min(_places(order, index + 1)) for other in edges)


def _places(order: tuple[int, ...], number: int) -> list[int]:
    return [place for place, made_by in enumerate(order) if made_by == number]


def test_orders_with_fewer_switches_come_first() -> None:
    found = orders(build_parts({"wait": wait}, [("wait", None, (2,)), ("wait", None, (2,)), ("wait", None, (1,))]))

    def preemptions(order: tuple[int, ...]) -> int:
        return sum(a != b and a in order[place + 1 :] for place, (a, b) in enumerate(pairwise(order)))

    counts = [preemptions(order) for order in found]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1]


def test_excess_orders_are_sampled_reproducibly() -> None:
    jobs = [("wait", None, (5,))] * 4
    seen: list[list[int]] = [[], []]
    for log in seen:
        tried = check_serial_equivalence({"wait": _logging(log)}, jobs, list, orders_max=60)
        assert tried == SerialEquivalence(60, is_exhaustive=False)
    assert seen[0] == seen[1]


def _logging(log: list[int]) -> Callable[..., Any]:
    numbers = iter(range(10**6))

    async def logging(state: Any, awaits: int) -> None:
        number = next(numbers)
        for _ in range(awaits):
            log.append(number)
            await asyncio.sleep(0)

    return logging


# --- what is convicted, and what is not ------------------------------------------------------------------------------


def test_lost_update_under_narrow_hints_is_convicted_by_two_jobs() -> None:
    jobs = [("add", ["doc", str(section)], (2**section,)) for section in range(5)]
    told = convicted({"add": add}, jobs, account)
    assert told.startswith("Side by side 2 jobs leave another state than one by one, and the rules allow it.")
    assert "1  add(1)  at doc:0\n  2  add(2)  at doc:1\n" in told
    assert re.search(r"1\. \d begins, waits at: await asyncio.sleep\(0\)  \(test_interleaving.py:\d+\)", told)
    assert "one by one they leave  {'balance': 3}" in told
    assert "2 of 5 jobs are enough" in told


def test_the_same_under_one_place_is_right() -> None:
    jobs = [("add", ["doc"], (2**section,)) for section in range(5)]
    assert check_serial_equivalence({"add": add}, jobs, account) == SerialEquivalence(1, is_exhaustive=True)


def test_an_ancestor_keeps_its_descendants_apart() -> None:
    jobs = [("add", ["doc", "1"], (1,)), ("add", ["doc"], (2,)), ("add", ["doc", "2"], (4,))]
    assert check_serial_equivalence({"add": add}, jobs, account).is_exhaustive


def test_jobs_that_share_a_place_run_side_by_side() -> None:
    def specs(mode: Mode) -> list[JobSpec]:
        return [job(name, claims=(Claim(("doc",), mode),), arguments=b'{"amount":1}') for name in "ab"]

    check_serial_equivalence({"task": add}, specs("exclusive"), account)
    assert "at doc (shared)" in convicted({"task": add}, specs("shared"), account)


def test_an_edge_keeps_jobs_apart() -> None:
    jobs = [job(name, after=after, arguments=b'{"amount":1}') for name, after in (("a", []), ("b", ["a"]))]
    check_serial_equivalence({"task": add}, jobs, account)
    assert convicted({"task": add}, [job(name, arguments=b'{"amount":1}') for name in "ab"], account)


def test_specs_of_an_application_bring_their_own_hints() -> None:
    sched = Scheduler("memory://")

    @sched.job(queue_hint=["{doc}", "{section}"])
    async def count(doc: str, section: int) -> None: ...

    async def increment(words: Account, doc: str, section: int) -> None:
        before = words.get(doc, 0)
        await asyncio.sleep(0)
        words[doc] = before + section

    told = convicted({"count": increment}, [count.spec("doc1", 1), count.spec("doc1", 2)], dict)
    assert "count(doc='doc1', section=1)  at doc1:1" in told
    check_serial_equivalence({"count": increment}, [count.spec("doc1", 1), count.spec("doc2", 2)], dict)


def test_spec_arguments_are_read_by_handler_annotations() -> None:
    sched = Scheduler("memory://")
    seen: list[Any] = []

    @sched.job
    def note(day: date, count: int) -> None: ...

    def typed(state: list[Any], day: date, count: int) -> None:
        seen.append((day, count))

    def plain(state: list[Any], **arguments: Any) -> None:
        seen.append(arguments)

    check_serial_equivalence({"note": typed}, [note.spec(date(2020, 2, 29), 1)], list)
    assert seen[-1] == (date(2020, 2, 29), 1)
    check_serial_equivalence({"note": plain}, [note.spec(date(2020, 2, 29), 1)], list)
    assert seen[-1] == {"day": "2020-02-29", "count": 1}


def test_a_lock_of_the_handlers_own_is_enough() -> None:
    async def careful(state: dict[str, Any], amount: int) -> None:
        async with state["lock"]:
            await add(state, amount)

    tried = check_serial_equivalence(
        {"add": careful},
        [("add", None, (1,)), ("add", None, (2,))],
        lambda: {"balance": 0, "lock": asyncio.Lock()},
        view=lambda state: state["balance"],
    )
    assert tried.is_exhaustive and tried.orders > 2


def test_two_locks_taken_crosswise_are_a_deadlock() -> None:
    async def take(locks: dict[str, asyncio.Lock], first: str, second: str) -> None:
        async with locks[first]:
            await asyncio.sleep(0)
            async with locks[second]:
                await asyncio.sleep(0)

    jobs = [("take", None, ("a", "b")), ("take", None, ("b", "a"))]
    told = convicted({"take": take}, jobs, lambda: {name: asyncio.Lock() for name in "ab"}, view=lambda _: None)
    assert told.startswith("2 jobs wait for one another for ever; one by one all end.")
    assert "1 waits for ever at: async with locks[second]:" in told


def test_deadlocked_tasks_are_dropped_silently() -> None:
    async def hang(locks: dict[str, asyncio.Lock], first: str, second: str) -> None:
        try:
            async with locks[first]:
                await asyncio.sleep(0)
                await locks[second].acquire()
                locks[second].release()
        finally:
            await asyncio.sleep(0)

    jobs = [("hang", None, ("a", "b")), ("hang", None, ("b", "a"))]
    convicted({"hang": hang}, jobs, lambda: {name: asyncio.Lock() for name in "ab"}, view=lambda _: None)
    gc.collect()


def test_order_dependent_state_is_convicted_unless_any_order_is_allowed() -> None:
    async def append(log: list[str], text: str) -> None:
        await asyncio.sleep(0)
        log.append(text)

    jobs = [("append", ["a"], ("x",)), ("append", ["b"], ("y",)), ("append", ["c"], ("z",))]
    told = convicted({"append": append}, jobs, list)
    assert told.startswith("What 2 jobs leave depends on their order, and the rules allow another.")
    check_serial_equivalence({"append": append}, jobs, list, any_order=True)
    with pytest.raises(ValueError, match="more than orders_max=5 orders"):
        check_serial_equivalence({"append": append}, jobs, list, any_order=True, orders_max=5)


def test_order_of_whole_jobs_differs_from_order_of_steps() -> None:
    async def append(log: list[str], text: str) -> None:
        for letter in text:
            log.append(letter)
            await asyncio.sleep(0)

    told = convicted({"append": append}, [("append", ["a"], ("xx",)), ("append", ["b"], ("yy",))], list, any_order=True)
    assert "['x', 'y'" in told


def test_leftover_task_of_a_handler_races_with_the_next_job() -> None:
    async def hasty(state: dict[str, Any], amount: int) -> None:
        state["task"] = asyncio.get_running_loop().create_task(add(state, amount))

    jobs = [("add", ["doc"], (1,)), ("add", ["doc"], (2,))]
    told = convicted({"add": hasty}, jobs, account, view=lambda state: state["balance"])
    assert "3. 1 is over, and what it left running goes on" in told


def test_a_plain_function_is_one_step() -> None:
    def plain(state: Account, amount: int) -> None:
        state["balance"] += amount

    tried = check_serial_equivalence({"add": plain}, [("add", None, (1,)), ("add", None, (2,))], account)
    assert tried == SerialEquivalence(2, is_exhaustive=True)


def test_exception_in_some_orders_is_convicted_as_the_cause() -> None:
    async def move(places: dict[str, int], old: str, new: str) -> None:
        if old in places:
            await asyncio.sleep(0)
            places[new] = places.pop(old)

    jobs = [("move", ["x"], ("a", "b")), ("move", ["y"], ("a", "b"))]
    with pytest.raises(AssertionError, match=r"raises KeyError\('a'\); one by one it does not") as caught:
        check_serial_equivalence({"move": move}, jobs, lambda: {"a": 1})
    assert isinstance(caught.value.__cause__, KeyError)


class EmptyError(Exception):
    pass


async def withdraw(account: Account, amount: int) -> None:
    if account["balance"] < amount:
        raise EmptyError
    balance = account["balance"]
    await asyncio.sleep(0)
    account["balance"] = balance - amount


def test_sequential_exception_is_raised_unless_expected() -> None:
    jobs = [("withdraw", ["a"], (5,)), ("withdraw", ["a"], (5,)), ("withdraw", ["a"], (1,))]
    state = lambda: {"balance": 6}  # noqa: E731
    with pytest.raises(EmptyError) as caught:
        check_serial_equivalence({"withdraw": withdraw}, jobs, state)
    assert caught.value.__notes__ == ["raised by job 2, withdraw(5), while jobs ran one by one"]
    check_serial_equivalence({"withdraw": withdraw}, jobs, state, expected=EmptyError)


def test_the_raising_job_must_be_the_same_in_every_order() -> None:
    jobs = [("withdraw", ["a"], (5,)), ("withdraw", ["b"], (6,))]
    told = convicted({"withdraw": withdraw}, jobs, lambda: {"balance": 6}, expected=EmptyError)
    assert told.startswith("What jobs raise depends on the order of their steps.")


def test_dependents_of_a_raising_job_follow_their_policy() -> None:
    ran: list[str] = []

    async def run(state: Any, name: str) -> None:
        ran.append(name)
        if name == "a":
            raise EmptyError

    def spec(name: str, *after: Dependency) -> JobSpec:
        return JobSpec(id=name, task="run", arguments=b'{"name":"%s"}' % name.encode(), depends_on=after)

    jobs = [spec("a"), spec("b", Dependency("a")), spec("c", Dependency("a", when="failure"))]
    check_serial_equivalence({"run": run}, jobs, list, expected=EmptyError)
    assert set(ran) == {"a", "c"}


# --- what handlers may do --------------------------------------------------------------------------------------------


def test_tasks_groups_threads_events_and_queues_work_inside_handlers() -> None:
    async def busy(state: Account, amount: int) -> None:
        event, queue = asyncio.Event(), asyncio.Queue[int]()

        async def put() -> None:
            await event.wait()
            await queue.put(await asyncio.to_thread(lambda: amount))

        async with asyncio.TaskGroup() as group:
            group.create_task(put())
            event.set()
            got = await queue.get()
        await asyncio.gather(asyncio.sleep(0.1), asyncio.sleep(0.2))
        state["balance"] += got

    assert check_serial_equivalence({"busy": busy}, [("busy", None, (1,)), ("busy", None, (2,))], account).orders > 2


def test_timeout_cancels_longer_sleeps_only() -> None:
    async def patient(state: dict[str, Any], sleeps_s: float) -> None:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(sleeps_s)
        except TimeoutError:
            state["timed out"] = state.get("timed out", 0) + 1

    tried = check_serial_equivalence({"t": patient}, [("t", None, (4,)), ("t", None, (6,)), ("t", None, (0,))], dict)
    assert tried.is_exhaustive


def test_time_passes_by_sleeping() -> None:
    async def measure(state: list[float]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(3)
                state.append(loop.time() - began)
                await asyncio.sleep(3)
        state.append(loop.time() - began)

    seen: list[list[float]] = []

    def view(state: list[float]) -> list[float]:
        seen.append(state)
        return state

    check_serial_equivalence({"m": measure}, [("m", ["a"]), ("m", ["a"])], list, view=view)
    assert seen[-1] == [3, 5, 3, 5]


def test_a_time_out_strikes_where_nothing_else_can_go_on() -> None:
    async def hang(state: list[str]) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 60)
        state.append("gave up")

    check_serial_equivalence({"hang": hang}, [("hang", None), ("hang", None)], list)


def test_timeout_is_independent_of_sleeps_of_others() -> None:
    async def locked(state: dict[str, Any], name: str) -> None:
        async with asyncio.timeout(1), state["lock"]:
            await asyncio.sleep(0.9)
        state[name] = 1

    check_serial_equivalence(
        {"locked": locked},
        [("locked", None, (name,)) for name in "abc"],
        lambda: {"lock": asyncio.Lock()},
        view=sorted,
    )


def test_polling_job_lets_others_proceed() -> None:
    async def until(state: dict[str, bool]) -> None:
        while not state.get("set"):  # noqa: ASYNC110 - it asks again and again
            await asyncio.sleep(0)

    async def put(state: dict[str, bool]) -> None:
        state["set"] = True

    check_serial_equivalence({"until": until, "put": put}, [("put", None), ("until", None)], dict, orders_max=50)


def test_job_that_waits_for_a_later_one_never_ends() -> None:
    async def until(state: asyncio.Event) -> None:
        await state.wait()

    told = convicted({"until": until}, [("until", ["x"])], asyncio.Event, view=lambda event: event.is_set())
    assert "one by one the jobs do not end: job 1, until(), waits for what is not done before it has ended" in told
    assert "at: await state.wait()" in told


def test_one_that_never_ends_is_given_up() -> None:
    async def spin(state: list[int]) -> None:
        while True:  # noqa: ASYNC110 - it never ends
            await asyncio.sleep(0)

    with pytest.raises(play.EndlessError, match="have not ended after 20000 steps"):
        check_serial_equivalence({"spin": spin}, [("spin", None)], list)


def test_real_input_and_output_is_refused() -> None:
    async def fetch(state: list[int]) -> None:
        await asyncio.open_connection("localhost", 1)

    with pytest.raises(RuntimeError, match=r"create_connection\(\) is real input or output"):
        check_serial_equivalence({"fetch": fetch}, [("fetch", None)], list)


def test_it_may_be_called_where_a_loop_runs() -> None:
    async def main() -> SerialEquivalence:
        before = asyncio.current_task()
        tried = check_serial_equivalence({"add": add}, [("add", ["doc"], (1,))], account)
        assert asyncio.current_task() is before
        with pytest.raises(AssertionError):
            check_serial_equivalence({"add": add}, [("add", None, (1,))] * 2, account)
        return tried

    assert asyncio.run(main()) == SerialEquivalence(1, is_exhaustive=True)


async def test_handlers_inherit_the_context_and_keep_their_own_changes() -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")

    async def note(state: list[str], name: str) -> None:
        state.append(tenant.get())
        tenant.set(name)
        await asyncio.sleep(0)
        assert tenant.get() == name

    def check() -> None:
        tenant.set("ours")
        seen: list[list[str]] = []

        def view(state: list[str]) -> tuple[str, ...]:
            seen.append(state)
            return tuple(state)

        check_serial_equivalence({"note": note}, [("note", None, ("a",)), ("note", None, ("b",))], list, view=view)
        assert seen[-1] == ["ours", "ours"]
        assert tenant.get() == "ours"

    check()
    check()


# --- what makes no sense ---------------------------------------------------------------------------------------------


def test_a_state_has_to_be_fresh_and_comparable() -> None:
    shared = account()
    with pytest.raises(ValueError, match="one object twice"):
        check_serial_equivalence({}, [], lambda: shared)
    with pytest.raises(ValueError, match="two fresh states differ"):
        check_serial_equivalence({}, [], asyncio.Lock)


def test_view_of_shared_state_must_return_a_copy() -> None:
    shared: list[int] = []

    def cleared() -> list[int]:
        shared.clear()
        return shared

    async def append(state: list[int], number: int) -> None:
        await asyncio.sleep(0)
        state.append(number)

    jobs = [("append", None, (1,)), ("append", None, (2,))]
    with pytest.raises(ValueError, match="return a copy"):
        check_serial_equivalence({"append": append}, jobs, cleared, view=lambda state: state)
    assert "depends on their order" in convicted({"append": append}, jobs, cleared, view=tuple)


def test_handlers_that_follow_chance_are_found_out() -> None:
    chance = random.Random(1)

    async def roll(state: list[float]) -> None:
        state.append(chance.random())

    assert "leave another state each time" in convicted({"roll": roll}, [("roll", None)], list)


@for_each(
    "handlers, jobs, state, options, told",
    [
        (add, [], dict, {}, "handlers must be functions by name or a Scheduler, got function"),
        ({"add": add}, "add", dict, {}, "jobs must be a list, got str"),
        ({"add": add}, ("add", ["a"], (1,)), dict, {}, "job 1 must be a JobSpec or a tuple of a task, a hint"),
        ({"add": add}, [("add",)], dict, {}, "job 1 must be a JobSpec or a tuple of a task, a hint"),
        ({"add": add}, [("add", ["a"], 1)], dict, {}, "job 1 must have its arguments in a tuple, a list or a mapping"),
        ({"add": add}, [], {}, {}, "state must be a function, got dict"),
        ({"add": add}, [], asyncio.sleep, {}, "state must be a plain function, got an async one"),
        ({"add": add}, [], dict, {"view": 5}, "view must be a function, got int: 5"),
        ({"add": add}, [], dict, {"expected": "x"}, "expected must be exceptions, got str: 'x'"),
        ({"add": add}, [], dict, {"expected": (KeyboardInterrupt,)}, "expected must be exceptions, got type"),
    ],
)
def test_malformed_arguments_are_refused(handlers: Any, jobs: Any, state: Any, options: Any, told: str) -> None:
    with pytest.raises(InvalidJobTypeError, match=told):
        check_serial_equivalence(handlers, jobs, state, **options)


def test_application_handlers_receive_the_state_by_context_or_patch() -> None:
    sched = Scheduler()
    shop: dict[str, Account] = {}

    @sched.job(queue_hint=["{name}"])
    async def deposit(ctx: JobContext[Account], name: str, amount: int) -> None:
        ctx.progress(1, note=ctx.id)
        ctx.log(name)
        await add(ctx.state, amount)

    @sched.job
    async def withdraw(amount: int) -> None:
        await add(shop["account"], -amount)

    def fresh() -> Account:
        shop["account"] = account()
        return shop["account"]

    deposits: list[Any] = [deposit.spec("a", 5), ("deposit", ["a"], ("a", 7))]
    assert check_serial_equivalence(sched, deposits, fresh, view=dict) == SerialEquivalence(1, is_exhaustive=True)
    with pytest.raises(AssertionError, match=r"(?s)Side by side 2 jobs leave another state.*deposit\('a', 7\)"):
        check_serial_equivalence(sched, [deposits[1], withdraw.spec(5)], fresh, view=dict)
    with pytest.raises(ValueError, match="job 1 is of the task 'other'; handlers has deposit, withdraw"):
        check_serial_equivalence(sched, [("other", None)], fresh)


def test_generators_are_refused_for_nothing_of_them_would_run() -> None:
    def each(account: Account) -> Iterator[int]:
        yield account["balance"]

    with pytest.raises(HandlerError, match="each is a generator function"):
        check_serial_equivalence({"each": each}, [("each", None)], dict)


def test_jobs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="job 1 is of the task 'other'; handlers has add"):
        check_serial_equivalence({"add": add}, [("other", None)], account)
    with pytest.raises(ValueError, match="job 1 has templates"):
        check_serial_equivalence({"task": add}, [job("a", templates=True)], account)
    with pytest.raises(InvalidHintError):
        check_serial_equivalence({"add": add}, [("add", "doc")], account)
    with pytest.raises(CycleError):
        check_serial_equivalence({"task": add}, [job("a", after=["b"]), job("b", after=["a"])], account)
    with pytest.raises(InvalidJobError, match="orders_max"):
        check_serial_equivalence({}, [], account, orders_max=0)
    assert check_serial_equivalence({}, [], account) == SerialEquivalence(1, is_exhaustive=True)
