"""Answers raised as exceptions, and exceptions that a task retries or fails on."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import Backoff, Discard, Fail, JobContext, JobRecord, JobState, Retry, Scheduler, Snooze
from queuehint.testing import check_serial_equivalence, drain, on_memory
from tests.each import for_each
from tests.schedulers import scheduler

KINDS = pytest.mark.parametrize("kind", ["async", "thread"])
ANSWERS = [Retry(), Retry(7, "busy"), Snooze(60), Fail("why"), Discard("moot")]


def outcome(record: JobRecord) -> dict[str, Any]:
    """Return what one attempt has made of a job."""
    return {
        "state": record.state,
        "attempts": record.attempts,
        "due_ms": record.due_ms,
        "cause": record.cause,
        "errors": [(error.type, error.message) for error in record.errors],
    }


async def ended(act: Callable[[JobContext], Any], kind: str, **options: Any) -> JobRecord:
    """Return the record of a job after the first attempt, at a time that is always the same."""
    sched, _ = scheduler()
    made = sched.job(backoff=[3], **options)

    @made
    async def on_loop(ctx: JobContext) -> Any:
        return act(ctx)

    @made
    def in_thread(ctx: JobContext) -> Any:
        return act(ctx)

    handle = await (on_loop if kind == "async" else in_thread).enqueue()
    await drain(sched, within=0)
    return await handle.record()


def raising(error: BaseException | type[BaseException]) -> Callable[[JobContext], Any]:
    def throw(_: JobContext) -> Any:
        try:
            raise error
        except Exception as swallowed:
            raise AssertionError("code in between that catches every error has caught an answer") from swallowed

    return throw


@KINDS
async def test_raised_answer_equals_the_returned_one(kind: str) -> None:
    for answer in ANSWERS:
        returned = await ended(lambda _, answer=answer: answer, kind)  # type: ignore[misc]
        raised = await ended(raising(answer), kind)
        assert outcome(raised) == outcome(returned), answer
        assert answer.__traceback__ is None, "raised again, it would keep the frames of all attempts"
        if raised.errors:
            assert returned.errors[0].traceback is None
            assert "raise error" in (raised.errors[0].traceback or ""), "it says where"
    assert (await ended(raising(Fail), kind)).errors[0].message == "the handler said so"


async def test_answer_in_a_group_without_other_errors_is_accepted() -> None:
    async def cases(*errors: BaseException) -> JobRecord:
        return await ended(raising(BaseExceptionGroup("g", errors)), "async")

    assert (await cases(Fail("first"), Discard())).errors[0].message == "first"
    assert (await cases(BaseExceptionGroup("inner", [Discard("moot")]))).state is JobState.CANCELED
    mixed = await cases(Fail("first"), KeyError("k"))
    assert (mixed.state, mixed.errors[0].type) == (JobState.QUEUED, "BaseExceptionGroup")


async def test_answer_raised_by_a_handler_task_ends_the_handler() -> None:
    sched, _ = scheduler()

    async def below() -> None:
        raise Fail("below")

    @sched.job
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(below())
            group.create_task(asyncio.sleep(3600))

    handle = await work.enqueue()
    await sched.drain()
    assert (await handle.record()).errors[0].message == "below"


@KINDS
async def test_a_hook_before_the_handler_may_raise_an_answer_too(kind: str) -> None:
    sched, _ = scheduler()
    sched.before_job(raising(Snooze(5)))
    called: list[str] = []

    @sched.job
    async def on_loop() -> None:
        called.append("on_loop")

    @sched.job
    def in_thread() -> None:
        called.append("in_thread")

    handle = await (on_loop if kind == "async" else in_thread).enqueue()
    await drain(sched, within=0)
    record = await handle.record()
    assert (record.state, record.attempts, called) == (JobState.QUEUED, 0, [])


async def test_an_answer_raised_after_the_timeout_is_a_timeout() -> None:
    sched, _ = scheduler()

    @sched.job(timeout=0.01, max_attempts=1)
    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise Discard

    handle = await work.enqueue()
    await sched.drain()
    assert (await handle.record()).errors[0].type == "timeout"


def test_answers_are_values_and_survive_a_process_pool() -> None:
    for answer in ANSWERS:
        other = pickle.loads(pickle.dumps(answer))
        assert other == answer == copy.copy(answer)
        assert hash(other) == hash(answer)
        assert str(answer) == repr(answer)
    assert Fail("a") != Fail("b")
    assert not isinstance(Fail(), Exception)


def test_serial_check_accepts_raised_answers() -> None:
    async def edit(state: list[int], n: int) -> None:
        state.append(n)
        await asyncio.sleep(0)
        raise Discard

    def plain(state: list[int], n: int) -> None:
        state.append(n)
        raise Discard

    jobs = [("edit", ["a"], [1]), ("plain", ["a"], [2])]
    check_serial_equivalence({"edit": edit, "plain": plain}, jobs, list)


# --- fail_on, retry_on, lists of waits -----------------------------------------------------------------------------

RULES: list[tuple[dict[str, Any], list[tuple[BaseException, bool]]]] = [
    ({}, [(ValueError(), False), (asyncio.CancelledError(), False)]),
    ({"fail_on": (ValueError, KeyError)}, [(UnicodeError(), True), (KeyError(), True), (LookupError(), False)]),
    ({"fail_on": ValueError}, [(ValueError(), True), (OSError(), False)]),
    ({"retry_on": [OSError]}, [(ConnectionError(), False), (ValueError(), True)]),
    ({"retry_on": ()}, [(ValueError(), True)]),
    ({"retry_on": OSError, "fail_on": FileNotFoundError}, [(FileNotFoundError(), True), (OSError(), False)]),
    ({"retry_on": ConnectionError, "fail_on": OSError}, [(ConnectionResetError(), False), (OSError(), True)]),
    (
        {"fail_on": (ValueError,)},
        [(ExceptionGroup("g", [ValueError()]), True), (ExceptionGroup("g", [ValueError(), OSError()]), False)],
    ),
    ({"fail_on": (ExceptionGroup,)}, [(ExceptionGroup("g", [OSError()]), True)]),
]


@pytest.mark.slow
@KINDS
async def test_a_task_says_which_exceptions_are_retried(kind: str) -> None:
    for options, cases in RULES:
        for error, is_final in cases:
            record = await ended(raising_plainly(error), kind, **options)
            expected = JobState.FAILED if is_final else JobState.QUEUED
            assert (record.state, record.attempts) == (expected, 1), (options, error)


def raising_plainly(error: BaseException) -> Callable[[JobContext], Any]:
    def throw(_: JobContext) -> Any:
        raise error

    return throw


@pytest.mark.parametrize("swallows", [False, True], ids=["canceled", "swallows"])
async def test_a_timeout_is_a_timeout_error_to_the_rules(swallows: bool) -> None:
    sched, _ = scheduler()

    @sched.job(timeout=0.01, fail_on=TimeoutError)
    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if not swallows:
                raise

    handle = await work.enqueue()
    await sched.drain()
    record = await handle.record()
    assert (record.state, record.attempts) == (JobState.FAILED, 1)


async def test_answers_are_not_subject_to_the_rules() -> None:
    record = await ended(raising(Retry(5)), "async", retry_on=())
    assert (record.state, record.attempts) == (JobState.QUEUED, 1)


async def test_listed_waits_are_followed_and_the_last_repeats() -> None:
    sched = Scheduler()

    @sched.job(backoff=[5, 60], max_attempts=4)
    async def work() -> None:
        raise ValueError

    with on_memory(sched) as clock:
        begin_ms = clock.now_ms()
        handle = await work.enqueue()
        await drain(sched)
        errors = (await handle.record()).errors
    assert [error.at_ms - begin_ms for error in errors] == [0, 5_000, 65_000, 125_000]
    other = work.using(retry=Backoff(base=2))
    assert other.options.policy.backoff == Backoff(base=2)
    assert other.using(backoff=[1]).options.policy.backoff == Backoff(waits=[1], jitter=0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"backoff": []}, r"^backoff must be a list of 1 to 100 waits, got \[\]$"),
    ({"backoff": [1] * 101}, "^backoff: 101 waits, limit 100$"),
    ({"backoff": [1, -1]}, r"^backoff\[1\] must be from 0 s to 10 years, got -1$"),
    ({"backoff": ["x"]}, r"^backoff\[0\] must be a timedelta or a number of seconds, got str: 'x'$"),
    ({"backoff": "5"}, "^backoff must be a Backoff or a list of waits, got str: '5'$"),
    ({"retry": 5}, "^retry must be a Backoff or a list of waits, got int: 5$"),
    ({"retry": [1], "backoff": [1]}, "^backoff and retry, another name for it, are mutually exclusive$"),
    ({"fail_on": "ValueError"}, r"^fail_on must be exception classes, such as \(ValueError,\), got str$"),
    ({"fail_on": [ValueError, 5]}, r"^fail_on\[1\] must be a class of exceptions, got 5$"),
    ({"retry_on": [BaseException]}, r"^retry_on\[0\] must be a class of exceptions, got "),
    ({"retry_on": int}, r"^retry_on\[0\] must be a class of exceptions, got "),
    ({"retry_on": [OSError] * 101}, "^retry_on: 101 classes, limit 100$"),
    ({"retry_on": OSError, "fail_on": [KeyError, OSError]}, "^fail_on and retry_on both name OSError$"),
]


@for_each("case", REFUSED)
def test_wrong_rules_are_refused_where_the_task_is_made(case: tuple[dict[str, Any], str]) -> None:
    options, message = case
    with pytest.raises((TypeError, ValueError), match=message):
        Scheduler().job(name="t", **options)(lambda: None)
