"""Multi-step backend calls: one generator, run by asynchronous and by synchronous callers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.backends.steps import (
    Abandoned,
    Ahead,
    Steps,
    Wait,
    find_room,
    order_some,
    run_steps,
    run_steps_sync,
    tick_until_done,
)
from queuehint.errors import BackendUnavailableError, InvalidJobError, QueueFullError


class Store:
    """Returns each operation as its own reply, or raises."""

    def __init__(self, error: Exception | None = None, *, local: bool = True) -> None:
        self.is_local = local
        self.owes_turn = lambda operation: local
        self.error = error
        self.said: list[Any] = []

    def call_sync(self, operation: Any) -> Any:
        self.said.append(operation)
        if self.error is not None:
            raise self.error
        return operation

    async def call(self, operation: Any) -> Any:
        return self.call_sync(operation)

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        self.wait_sync(interest, timeout_s)

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        self.said.append((interest, timeout_s))


def in_loop(store: Any, steps: Steps[Any]) -> Any:
    return asyncio.run(run_steps(store, steps))


BOTH = pytest.mark.parametrize("held", [in_loop, run_steps_sync], ids=["async", "sync"])


@BOTH
def test_each_reply_reaches_its_step_and_the_end_is_returned(held: Any) -> None:
    def steps() -> Steps[list[Any]]:
        first = yield op.Draw(1)
        second = yield op.CountJobs()
        return [first, second]

    store = Store()
    assert held(store, steps()) == [op.Draw(1), op.CountJobs()] == store.said


@BOTH
def test_steps_without_operations_return_at_once(held: Any) -> None:
    def steps() -> Steps[int]:
        return 5
        yield

    assert held(Store(), steps()) == 5


@BOTH
def test_wait_for_an_interest_uses_the_backend_unlike_sleep(held: Any) -> None:
    def steps() -> Steps[None]:
        assert (yield Wait(Interest(jobs=("a",)), 3.0)) is None
        assert (yield Wait(Interest(), 0.0)) is None

    store = Store()
    held(store, steps())
    assert store.said == [(Interest(jobs=("a",)), 3.0)]


@BOTH
def test_store_error_is_raised_at_its_step(held: Any) -> None:
    def steps() -> Steps[str]:
        try:
            yield op.Draw(1)
        except BackendUnavailableError:
            return "without"
        return "with"

    assert held(Store(BackendUnavailableError("gone")), steps()) == "without"
    with pytest.raises(BackendUnavailableError):
        held(Store(BackendUnavailableError("gone")), iter_of(op.Draw(1)))


@BOTH
def test_refusal_is_raised_at_its_step_and_reaches_the_caller(held: Any) -> None:
    def mindful() -> Steps[str]:
        try:
            yield op.Draw(1)
        except InvalidJobError as error:
            return str(error)
        raise AssertionError

    def careless() -> Steps[None]:
        yield op.Draw(1)

    assert held(Store(InvalidJobError("no")), mindful()) == "no"
    with pytest.raises(InvalidJobError, match="no"):
        held(Store(InvalidJobError("no")), careless())


@BOTH
def test_an_error_that_is_not_of_ours_is_the_callers(held: Any) -> None:
    def steps() -> Steps[None]:
        try:
            yield op.Draw(1)
        except ZeroDivisionError:
            raise AssertionError from None

    with pytest.raises(ZeroDivisionError):
        held(Store(ZeroDivisionError()), steps())


def iter_of(*steps: Any) -> Steps[None]:
    for step in steps:  # noqa: UP028 - an iterator of operations takes no replies
        yield step


class Interrupted(Store):
    """Is interrupted at the first operation, and fails at others if it is to."""

    def __init__(self, error: BaseException, later: BaseException | None = None) -> None:
        super().__init__()
        self.errors = [error, later]

    def call_sync(self, operation: Any) -> Any:
        self.said.append(operation)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return operation


def undone(swallows: bool = False) -> Steps[None]:
    try:
        yield op.Draw(1)
    except Abandoned:
        assert (yield op.Draw(2)) == op.Draw(2)
        yield op.Draw(3)
        if not swallows:
            raise


ENDS = pytest.mark.parametrize(
    "error", [asyncio.CancelledError("c"), KeyboardInterrupt("k"), SystemExit("s"), ZeroDivisionError("z")], ids=repr
)


@BOTH
@ENDS
@pytest.mark.parametrize("swallows", [False, True])
def test_interrupted_steps_are_compensated_and_raise_the_interruption(
    held: Any, error: BaseException, *, swallows: bool
) -> None:
    store = Interrupted(error)
    with pytest.raises(type(error)) as caught:
        held(store, undone(swallows))
    if held is run_steps_sync or not isinstance(error, asyncio.CancelledError):
        assert caught.value is error
    assert store.said == [op.Draw(1), op.Draw(2), op.Draw(3)]


@BOTH
@pytest.mark.parametrize("later", [BackendUnavailableError("gone"), ZeroDivisionError()], ids=repr)
def test_failed_compensation_is_not_raised(held: Any, later: Exception) -> None:
    store, error = Interrupted(KeyboardInterrupt(), later), KeyboardInterrupt
    with pytest.raises(error):
        held(store, undone())
    assert store.said == [op.Draw(1), op.Draw(2)]


def test_a_second_interrupt_ends_it_at_once() -> None:
    store = Interrupted(SystemExit(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_steps_sync(store, undone())  # type: ignore[arg-type]
    assert store.said == [op.Draw(1), op.Draw(2)]


async def test_others_have_their_turn_between_calls_that_never_suspend() -> None:
    turns: list[str] = []

    async def other() -> None:
        for _ in range(3):
            turns.append("other")
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    store: Any = Store()
    await run_steps(store, iter_of(op.Draw(1), op.Draw(1), op.Draw(1)))
    turns.append("over")
    await task
    assert turns == ["other", "other", "other", "over"]


def test_leftovers_are_ticked_until_done() -> None:
    steps = tick_until_done(more=True)
    assert next(steps) == op.Tick()
    assert steps.send(op.Ticked(True, None)) == op.Tick()
    with pytest.raises(StopIteration):
        steps.send(op.Ticked(False, None))
    assert list(tick_until_done(more=False)) == []


def full(*, more: bool) -> QueueFullError:
    return QueueFullError(None, 5, 5, more=more)


def test_full_submission_ticks_due_work_with_exponential_retries() -> None:
    asked, steps = ["E"], find_room(op.Enqueue(()), full(more=True))
    step: Any = next(steps)
    with pytest.raises(QueueFullError):
        while True:
            asked.append("T" if step == op.Tick() else "E")
            step = steps.send(op.Ticked(True, None)) if step == op.Tick() else steps.throw(full(more=True))
    assert "".join(asked).split("E") == ["", "T", "TT", "T" * 4, "T" * 8, "T" * 16, "T" * 32, "T" * 64, ""]


def test_submission_retries_until_nothing_is_due_and_then_is_refused() -> None:
    steps = find_room(op.Enqueue(()), full(more=True))
    assert next(steps) == op.Tick()
    assert steps.send(op.Ticked(False, None)) == op.Enqueue(())
    assert steps.throw(full(more=True)) == op.Tick()
    assert steps.send(op.Ticked(False, None)) == op.Enqueue(())
    with pytest.raises(QueueFullError):
        steps.throw(full(more=False))
    refusal = full(more=False)
    with pytest.raises(QueueFullError) as caught:
        next(find_room(op.Enqueue(()), refusal))
    assert caught.value is refusal


def test_submission_that_finds_room_returns_its_reply() -> None:
    steps: Any = find_room(Ahead(op.Enqueue(()), op.Enqueue((), "S")), full(more=True))
    assert next(steps) == op.Tick()
    assert steps.send(op.Ticked(False, None)) == op.Enqueue(())
    with pytest.raises(StopIteration) as end:
        steps.send(op.Enqueued((), more=False))
    assert end.value.value == op.Enqueued((), more=False)


def test_that_it_cannot_be_done_now_is_no_error() -> None:
    steps = tick_until_done(more=True)
    next(steps)
    with pytest.raises(StopIteration):
        steps.throw(BackendUnavailableError("gone"))


class SlowStore(Store):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__(local=False)
        self.answered = asyncio.Event()

    async def call(self, operation: Any) -> Any:
        self.said.append(operation)
        await self.answered.wait()
        return self.said.append("answered")

    def prepare(self, operation: Any) -> None:
        self.said.append(("prepared", operation))


def ahead(following: Any) -> Steps[None]:
    yield Ahead(op.Draw(1), following)


async def test_next_operation_is_prepared_during_the_current_call() -> None:
    store = SlowStore()
    task = asyncio.create_task(run_steps(store, ahead(op.Draw(2))))  # type: ignore[arg-type]
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.said == [op.Draw(1), ("prepared", op.Draw(2))]
    store.answered.set()
    await task
    assert store.said[2:] == ["answered"]


async def test_canceled_caller_waits_for_no_further_call() -> None:
    before = asyncio.all_tasks()
    for turns in (1, 5):
        store = SlowStore()
        task = asyncio.create_task(run_steps(store, ahead(op.Draw(2))))  # type: ignore[arg-type]
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


async def begun(store: Any) -> asyncio.Task[None]:
    task = asyncio.create_task(run_steps(store, undone()))
    await asyncio.sleep(0)
    assert store.said == [op.Draw(1)]
    return task


class SlowToUndo(SlowStore):
    """Never answers the first operation, and later ones when it is told to."""

    async def call(self, operation: Any) -> Any:
        self.said.append(operation)
        await (asyncio.Event() if operation == op.Draw(1) else self.answered).wait()
        return operation


async def test_steps_are_compensated_despite_repeated_cancellation() -> None:
    store = SlowToUndo()
    task = await begun(store)
    for _ in range(9):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    assert store.said == [op.Draw(1), op.Draw(2)]
    store.answered.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.said == [op.Draw(1), op.Draw(2), op.Draw(3)]


async def test_unresponsive_store_delays_a_canceled_caller_for_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("queuehint.backends.steps.UNDO_S", 0.01)
    before, store = asyncio.all_tasks(), SlowToUndo()
    task = await begun(store)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.said == [op.Draw(1), op.Draw(2)]
    assert asyncio.all_tasks() == before


async def test_timeout_during_compensation_remains_a_timeout() -> None:
    store = SlowToUndo()
    asyncio.get_running_loop().call_later(0.02, store.answered.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_steps(store, undone())  # type: ignore[arg-type]
    assert store.said == [op.Draw(1), op.Draw(2), op.Draw(3)]


async def test_a_cancellation_while_something_is_taken_back_is_not_lost() -> None:
    class Failing(SlowToUndo):
        async def call(self, operation: Any) -> Any:
            if operation == op.Draw(1):
                self.said.append(operation)
                raise ZeroDivisionError
            return await super().call(operation)

    store = Failing()
    task = await begun(store)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    store.answered.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_steps_that_are_closed_ask_for_nothing_more() -> None:
    store: Any = SlowToUndo()
    running = run_steps(store, undone())
    running.send(None)
    running.close()
    assert store.said == [op.Draw(1)]


def test_next_operation_is_not_prepared_without_a_loop() -> None:
    store = SlowStore()
    run_steps_sync(store, ahead(op.Draw(2)))  # type: ignore[arg-type]
    assert store.said == [op.Draw(1)]


def test_many_jobs_are_commanded_in_bounded_requests_without_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("queuehint.backends.steps.JOBS_AT_ONCE", 2)

    class Judge(Store):
        def call_sync(self, operation: Any) -> Any:
            self.said.append(operation)
            if isinstance(operation, op.Tick):
                return op.Ticked(more=False, next_ms=None)
            if isinstance(operation, op.Get):
                return op.Got(tuple([None if job_id == "x" else record(job_id) for job_id in operation.ids]))
            verdicts = [(op.Verdict.UNKNOWN if job_id == "x" else op.Verdict.DONE, None) for job_id in operation.ids]
            return op.Judged(tuple(verdicts), more="x" in operation.ids)

    def record(job_id: str) -> Any:
        return SimpleNamespace(id=job_id, number=ord(job_id))

    store = Judge()
    ids = ["c", "x", "c", "b", "a"]
    found = run_steps_sync(store, order_some(ids, op.Cancel, first="oldest"))  # type: ignore[arg-type]
    assert store.said == [op.Get(("c", "x", "b", "a")), op.Cancel(("a", "b")), op.Cancel(("c", "x")), op.Tick()]
    assert [verdict.name for verdict, _ in found] == ["DONE", "UNKNOWN", "DONE", "DONE", "DONE"]
    store.said.clear()
    run_steps_sync(store, order_some(ids, op.Cancel, first="newest"))  # type: ignore[arg-type]
    assert store.said[1:3] == [op.Cancel(("c", "b")), op.Cancel(("a", "x"))]
    assert run_steps_sync(store, order_some([], op.Cancel, first="oldest")) == []  # type: ignore[arg-type]
    assert store.said[-1] == op.Cancel(())
