"""Queues of a few lines whose `take` waits: lost wake-ups and missing locks are convicted, right ones acquitted."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import sys
import threading
import time
from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from queuehint import JobSpec
from queuehint.testing import QueueFaultError, QueueReport, TraceJob, WaitingQueue, check_queue
from queuehint.testing.histories.history import Ended
from queuehint.testing.wakes import threads
from queuehint.testing.wakes.locks import IN_CHARGE
from queuehint.values.hint import Claim, conflict
from tests.support import thorough, until_sync


class Places:
    """The jobs of a queue, in order of arrival, and those that run; no lock at all."""

    def __init__(self) -> None:
        self.jobs: dict[str, TraceJob] = {}
        self.running: set[str] = set()

    def find(self) -> str | None:
        before: list[TraceJob] = []
        for job in list(self.jobs.values()):
            if job.id not in self.running and not any(self.meet(job, other) for other in before):
                return job.id
            before.append(job)
        return None

    def meet(self, job: TraceJob, other: TraceJob) -> bool:
        return conflict(job.claims, other.claims)

    def leave(self, job_id: str, outcome: Ended) -> None:
        self.running.remove(job_id)
        if outcome != "retried":
            del self.jobs[job_id]


# --- by threads ------------------------------------------------------------------------------------------------------


class Blocking(Places):
    """A right queue: a lock for all that is read and written, and a condition to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def enqueue(self, job: TraceJob) -> None:
        with self.changed:
            self.jobs[job.id] = job
            self.changed.notify()

    def take(self) -> str | None:
        with self.changed:
            while (found := self.find()) is None:
                self.changed.wait()
            self.running.add(found)
            return found

    def end(self, job_id: str, outcome: Ended) -> None:
        with self.changed:
            self.leave(job_id, outcome)
            self.changed.notify_all()


class BySemaphore(Places):
    """Right: each change lets one more look; who finds nothing waits for the next change."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()
        self.looks = threading.Semaphore(0)
        self.looking = 0

    def enqueue(self, job: TraceJob) -> None:
        with self.lock:
            self.jobs[job.id] = job
            self.wake()

    def wake(self) -> None:
        for _ in range(self.looking):
            self.looks.release()
        self.looking = 0

    def take(self) -> str | None:
        while True:
            with self.lock:
                found = self.find()
                if found is not None:
                    self.running.add(found)
                    return found
                self.looking += 1
            self.looks.acquire()

    def end(self, job_id: str, outcome: Ended) -> None:
        with self.lock:
            self.leave(job_id, outcome)
            self.wake()


class Polling(Blocking):
    """Right: it looks again each tenth of a second."""

    def enqueue(self, job: TraceJob) -> None:
        with self.changed:
            self.jobs[job.id] = job

    def take(self) -> str | None:
        while True:
            with self.changed:
                found = self.find()
                if found is not None:
                    self.running.add(found)
                    return found
            time.sleep(0.1)


class WithTimeout(Blocking):
    """It forgets to notify; its waits end by themselves."""

    def enqueue(self, job: TraceJob) -> None:
        with self.changed:
            self.jobs[job.id] = job

    def take(self) -> str | None:
        with self.changed:
            while (found := self.find()) is None:
                self.changed.wait(0.1)
            self.running.add(found)
            return found


class ForgetsToNotify(Blocking):
    def enqueue(self, job: TraceJob) -> None:
        with self.changed:
            self.jobs[job.id] = job


class LooksBeforeItWaits(Blocking):
    """What comes between its look and its wait wakes nobody."""

    def take(self) -> str | None:
        while True:
            with self.changed:
                found = self.find()
                if found is not None:
                    self.running.add(found)
                    return found
            with self.changed:
                self.changed.wait()


class NotifiesOne(Blocking):
    """The end of one job may let several others start."""

    def end(self, job_id: str, outcome: Ended) -> None:
        with self.changed:
            self.leave(job_id, outcome)
            self.changed.notify()


class TakesWithoutLock(Blocking):
    """Two workers may find the same job."""

    def take(self) -> str | None:
        while True:
            found = self.find()
            if found is not None:
                self.running.add(found)
                return found
            with self.changed:
                if self.find() is None:
                    self.changed.wait()


class OneLine:
    """No lock, and all of its race in one line."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.some = threading.Semaphore(0)

    def enqueue(self, job: TraceJob) -> None:
        self.jobs = [*self.jobs, job.id]
        self.some.release()

    def take(self) -> str | None:
        self.some.acquire()
        found, self.jobs = self.jobs[0], self.jobs[1:]
        return found

    def end(self, job_id: str, outcome: Ended) -> None: ...


class TwoLocks(Blocking):
    """Two locks, taken in two orders."""

    def __init__(self) -> None:
        super().__init__()
        self.other = Lock()

    def enqueue(self, job: TraceJob) -> None:
        with self.other, self.changed:
            self.jobs[job.id] = job
            self.changed.notify()

    def end(self, job_id: str, outcome: Ended) -> None:
        with self.changed, self.other:
            self.leave(job_id, outcome)
            self.changed.notify_all()


class TakesTwoLocks(TwoLocks):
    """The same, of workers alone."""

    def enqueue(self, job: TraceJob) -> None:
        with self.changed:
            self.jobs[job.id] = job
            self.changed.notify()

    def take(self) -> str | None:
        with self.other:
            return super().take()


class LocksWhatItNotifies(Blocking):
    """No deadlock: a worker keeps a lock while it waits for a job, and another one waits for that lock."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Lock()

    def take(self) -> str | None:
        with self.gate:
            return super().take()

    def end(self, job_id: str, outcome: Ended) -> None:
        with self.changed:
            self.leave(job_id, outcome)


class CatchesAll(Blocking):
    """A wait that nothing ends."""

    def take(self) -> str | None:
        while True:
            try:
                return super().take()
            except BaseException:
                continue


class KnowsItsThread(Blocking):
    def take(self) -> str | None:
        self.last = threading.current_thread().name
        return super().take()


class StartsAThread(Blocking):
    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=int).start()


class KeepsItsLock(Blocking):
    """An end that never comes back."""

    def end(self, job_id: str, outcome: Ended) -> None:
        gate = Lock()
        gate.acquire()
        gate.acquire()


class PlainQueue:
    """The queue of the standard library: right for jobs that have no place."""

    features = ("unplaced",)

    def __init__(self) -> None:
        self.jobs: Any = queue.Queue()

    def enqueue(self, job: TraceJob) -> None:
        self.jobs.put(job.id)

    def take(self) -> str | None:
        found: str = self.jobs.get()
        return found

    def end(self, job_id: str, outcome: Ended) -> None: ...


class Hidden(PlainQueue):
    """It waits for what is not made of locks."""

    def __init__(self) -> None:
        self.jobs: Any = queue.SimpleQueue()


# --- by tasks --------------------------------------------------------------------------------------------------------


class Awaiting(Places):
    """A right queue of one loop: between two awaits nothing comes between."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def enqueue(self, job: TraceJob) -> None:
        self.jobs[job.id] = job
        self.changed.set()

    async def take(self) -> str | None:
        while (found := self.find()) is None:
            self.changed.clear()
            await self.changed.wait()
        self.running.add(found)
        return found

    async def end(self, job_id: str, outcome: Ended) -> None:
        self.leave(job_id, outcome)
        self.changed.set()


class AwaitsTooEarly(Awaiting):
    """It clears what was set while it awaited something else."""

    async def take(self) -> str | None:
        while (found := self.find()) is None:
            await asyncio.sleep(0)
            self.changed.clear()
            await self.changed.wait()
        self.running.add(found)
        return found


class AwaitsBeforeItMarks(Awaiting):
    """It looks, awaits, and marks: a lock is missing."""

    async def take(self) -> str | None:
        while (found := self.find()) is None:
            self.changed.clear()
            await self.changed.wait()
        await asyncio.sleep(0)
        self.running.add(found)
        return found


class AwaitingCondition(Places):
    """Right, with a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Condition()

    async def enqueue(self, job: TraceJob) -> None:
        async with self.changed:
            self.jobs[job.id] = job
            self.changed.notify()

    async def take(self) -> str | None:
        async with self.changed:
            while (found := self.find()) is None:
                await self.changed.wait()
            self.running.add(found)
            return found

    async def end(self, job_id: str, outcome: Ended) -> None:
        async with self.changed:
            self.leave(job_id, outcome)
            self.changed.notify_all()


class AwaitingNotifiesOne(AwaitingCondition):
    async def end(self, job_id: str, outcome: Ended) -> None:
        async with self.changed:
            self.leave(job_id, outcome)
            self.changed.notify()


class AwaitingTwoLocks(AwaitingCondition):
    def __init__(self) -> None:
        super().__init__()
        self.other = asyncio.Lock()

    async def enqueue(self, job: TraceJob) -> None:
        async with self.other:
            await asyncio.sleep(0)
            await super().enqueue(job)

    async def end(self, job_id: str, outcome: Ended) -> None:
        async with self.changed:
            async with self.other:
                self.leave(job_id, outcome)
            self.changed.notify_all()


class AwaitingPolls(Awaiting):
    """Right: it looks again and again."""

    async def take(self) -> str | None:
        while (found := self.find()) is None:  # noqa: ASYNC110 - it polls
            await asyncio.sleep(0.1)
        self.running.add(found)
        return found


class ThreeSegments(Awaiting):
    def meet(self, job: TraceJob, other: TraceJob) -> bool:
        return conflict(*([Claim(claim.path[:3]) for claim in each.claims] for each in (job, other)))


class IgnoresCase(Awaiting):
    def meet(self, job: TraceJob, other: TraceJob) -> bool:
        return conflict(*([Claim(tuple(map(str.lower, c.path))) for c in each.claims] for each in (job, other)))


class JoinedKeys(Awaiting):
    def meet(self, job: TraceJob, other: TraceJob) -> bool:
        paths = [tuple(":".join(each.path).split(":")) if each.path else () for each in (job, other)]
        return conflict(*([Claim(path)] for path in paths))


class PrefixOfText(Awaiting):
    def meet(self, job: TraceJob, other: TraceJob) -> bool:
        one, two = (":".join(each.path or ()) for each in (job, other))
        return one.startswith(two) or two.startswith(one)


class BlockingThreeSegments(Blocking):
    def meet(self, job: TraceJob, other: TraceJob) -> bool:
        return ThreeSegments.meet(self, job, other)  # type: ignore[arg-type]


# --- the tests -------------------------------------------------------------------------------------------------------

NO_PLACE = st.just(JobSpec(id="a", task="t"))
MANY = thorough(1500, quick=80)


def convict(factory: Callable[[], WaitingQueue], **options: Any) -> QueueFaultError:
    with pytest.raises(QueueFaultError) as caught:
        check_queue(factory, wakes=True, **{"max_examples": 1500, **options})
    return caught.value


def acquit(factory: Callable[[], WaitingQueue], **options: Any) -> QueueReport:
    return check_queue(factory, wakes=True, **{"max_examples": MANY, **options})


@pytest.mark.parametrize(
    "factory, rule, jobs, steps",
    [
        (ForgetsToNotify, "idle", 1, 2),
        pytest.param(LooksBeforeItWaits, "idle", 1, 3, marks=pytest.mark.slow),
        (NotifiesOne, "idle", 3, 8),
        pytest.param(TakesWithoutLock, "started_twice", 1, 4, marks=pytest.mark.slow),
        (AwaitsTooEarly, "idle", 1, 3),
        (AwaitsBeforeItMarks, "started_twice", 1, 4),
        (AwaitingNotifiesOne, "idle", 3, 8),
    ],
)
def test_wrong_queue_is_convicted_by_a_short_history(
    factory: Callable[[], WaitingQueue], rule: str, jobs: int, steps: int
) -> None:
    raised = convict(factory)
    assert (raised.faults[0].rule, len(raised.jobs)) == (rule, jobs), raised
    assert len(raised.steps) <= steps, raised
    assert IN_CHARGE == []


@pytest.mark.slow
@pytest.mark.parametrize("factory", [Blocking, BySemaphore, Polling, Awaiting, AwaitingCondition, AwaitingPolls])
def test_right_queue_is_acquitted(factory: Callable[[], WaitingQueue]) -> None:
    many = 60 if factory is AwaitingPolls else MANY
    report = acquit(factory, max_examples=many)
    assert report.histories == report.side_by_side > many // 2
    assert report.switches > many // 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory",
    [
        ThreeSegments,
        *[
            pytest.param(each, marks=pytest.mark.nightly)
            for each in (IgnoresCase, JoinedKeys, PrefixOfText, BlockingThreeSegments)
        ],
    ],
)
def test_take_alone_is_convicted_of_deep_and_alike_paths(factory: Callable[[], WaitingQueue]) -> None:
    raised = convict(factory, max_examples=600)
    assert raised.faults[0].rule == "idle", raised
    assert len(raised.jobs) == 2


@pytest.mark.slow
def test_report_names_all_that_take_alone_leaves_untried() -> None:
    report = acquit(Awaiting, max_examples=60, edges=True, cancels=True)
    assert report.not_tried == (
        'shared claims (features = {"shared"}, or shared=True)',
        'jobs with several claims (features = {"several"}, or several=True)',
        'jobs without a place (features = {"unplaced"}, or unplaced=True)',
        "cancellations, dependencies, long rows of jobs (a method start besides take)",
        "side by side: cancellations, dependencies, several producers",
    )
    assert report.depth_max > 3


def test_lost_wakeup_names_the_line_of_the_waiting_worker() -> None:
    text = str(convict(LooksBeforeItWaits))
    lines = [line.split("  (")[0] for line in text.splitlines() if line.startswith("  ")]
    assert lines[:3] == [
        "  1  worker 1: take, stops at `with self.changed:`",
        "  2  producer: enqueue a at doc1",
        "  3  worker 1: goes on with take, waits at `self.changed.wait()`",
    ]
    assert "idle: a worker asked for a job and got none while a was ready" in text
    assert "worker 1 waits at `self.changed.wait()`  (test_wrong_waits.py:" in text
    assert "and nothing has woken it" in text


@pytest.mark.slow
@pytest.mark.skipif(not threads.BY_INSTRUCTION, reason="this Python crashes where instructions are traced")
def test_race_within_one_line_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = convict(OneLine, jobs=NO_PLACE, outcomes=["finished"])
    assert len(raised.jobs) <= 2, raised
    monkeypatch.setattr(threads, "BY_INSTRUCTION", False)
    acquit(OneLine, jobs=NO_PLACE, outcomes=["finished"])


@pytest.mark.slow
def test_standard_queue_is_acquitted_only_for_jobs_without_places() -> None:
    acquit(PlainQueue, jobs=NO_PLACE, outcomes=["finished", "failed"])
    assert convict(PlainQueue).faults[0].rule == "overlap"


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory, waits",
    [
        (
            TwoLocks,
            [
                r"producer waits at `with self.other, .*\) for a lock that worker \d holds",
                r"worker \d waits at `with self.changed, .*\) for a lock that producer holds",
            ],
        ),
        (
            TakesTwoLocks,
            [
                r"worker 1 waits at `with self.changed, self.other:` .* for a lock that worker 2 holds",
                r"worker 2 waits at `self.changed.wait\(\)` .* to be woken",
            ],
        ),
        (
            AwaitingTwoLocks,
            [
                "producer waits at .* for a lock that nobody gives back",
                r"worker \d waits at `async with self.other:` .* for a lock that nobody gives back",
                r"worker \d waits at `async with self.changed:` .* for a lock that nobody gives back",
            ],
        ),
        (KeepsItsLock, [r"worker 1 waits at `gate.acquire\(\)`  \(.*\) for a lock that it holds itself"]),
    ],
)
def test_deadlock_is_told_by_its_callers_and_their_locks(factory: Callable[[], WaitingQueue], waits: list[str]) -> None:
    raised = convict(factory)
    assert re.search(r"deadlock: " + r",\nand ".join(waits) + r"\n\n", str(raised)), raised
    assert raised.faults == ()
    assert len(raised.jobs) <= 2


def test_lock_of_a_waiting_worker_is_no_deadlock() -> None:
    assert "idle: a worker asked for a job and got none" in str(convict(LocksWhatItNotifies))


@pytest.mark.slow
def test_threads_of_a_check_are_over_after_it() -> None:
    # A thread of an earlier test may end meanwhile.
    before, count = set(threading.enumerate()), len(sys._current_frames())
    for factory in (KnowsItsThread, TwoLocks, NotifiesOne):
        with contextlib.suppress(QueueFaultError):
            check_queue(factory, wakes=True, max_examples=30)
        assert set(threading.enumerate()) <= before
        until_sync(lambda: len(sys._current_frames()) <= count)


def test_queue_that_cannot_be_made_leaves_no_crew_in_charge() -> None:
    made: list[None] = []

    def make() -> WaitingQueue:
        made.append(None)
        if len(made) > 2:
            raise ValueError("no more")
        return Blocking()

    with pytest.raises(ValueError, match="no more"):
        acquit(make)
    assert IN_CHARGE == []


def test_call_that_cannot_be_ended_is_told_by_its_line() -> None:
    with pytest.raises(
        RuntimeError, match=r"a call goes on after its history, at `self.changed.wait\(\)` .*BaseException"
    ):
        acquit(CatchesAll)
    assert IN_CHARGE == []


def test_thread_that_a_queue_starts_is_refused() -> None:
    with pytest.raises(RuntimeError, match="a thread that the queue starts by itself is not run"):
        acquit(StartsAThread)


@pytest.mark.slow
def test_wait_invisible_to_the_check_is_named_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE_S", 2.0)
    with pytest.raises(RuntimeError, match=r"has not come back for 2 s, at `found: str = self.jobs.get\(\)`"):
        acquit(Hidden)
    assert IN_CHARGE == []


@pytest.mark.slow
def test_waits_that_end_by_themselves_are_reported() -> None:
    report = acquit(WithTimeout)
    assert any(text.startswith("wake-ups behind time-outs: ") for text in report.not_tried)
    assert not any("time-outs" in text for text in acquit(Blocking).not_tried)


@pytest.mark.slow
def test_report_without_wakes_states_that_waits_were_skipped() -> None:
    class Both(Blocking):
        def start(self) -> str | None:
            found = self.find()
            if found is not None:
                self.running.add(found)
            return found

    wanted = "calls side by side, and what wakes a worker that waits (a method take, and wakes=True)"
    assert wanted in check_queue(Both, max_examples=30).not_tried
    report = acquit(Both, max_examples=60)
    assert 0 < report.side_by_side < report.histories
    assert wanted not in report.not_tried
    assert "side by side: cancellations, dependencies, several producers" in report.not_tried
    assert f"\n{report.side_by_side} of them of calls side by side, with {report.switches} switches\n" in str(report)


@pytest.mark.slow
def test_check_restores_the_locks_of_threading() -> None:
    before = (threading.Lock, threading.RLock, time.sleep, Lock)
    with contextlib.suppress(QueueFaultError):
        check_queue(NotifiesOne, wakes=True, max_examples=20)
    assert (threading.Lock, threading.RLock, time.sleep, Lock) == before
    assert type(Lock()) is type(before[0]())


@pytest.mark.slow
async def test_queue_is_checked_beside_a_loop_too() -> None:
    assert convict(AwaitsTooEarly, max_examples=100).faults
    assert acquit(Awaiting, max_examples=50).side_by_side


def test_same_history_is_found_each_time() -> None:
    assert str(convict(NotifiesOne)) == str(convict(NotifiesOne))


def test_error_of_a_call_is_the_cause() -> None:
    class Raises(Blocking):
        def take(self) -> str | None:
            raise KeyError("no")

    raised = convict(Raises)
    assert "error: take() raised KeyError: 'no'" in str(raised)
    assert isinstance(raised.__cause__, KeyError)


@pytest.mark.slow
def test_each_queue_is_closed_in_the_end() -> None:
    opened: list[int] = [0]

    class Closed(Blocking):
        def __init__(self) -> None:
            super().__init__()
            opened[0] += 1

        def close(self) -> None:
            with self.changed:
                opened[0] -= 1

    class ClosedByTasks(Awaiting):
        def __init__(self) -> None:
            super().__init__()
            opened[0] += 1

        async def close(self) -> None:
            await asyncio.sleep(0)
            opened[0] -= 1

    acquit(Closed, max_examples=30)
    acquit(ClosedByTasks, max_examples=30)
    assert opened == [0]


def test_queue_without_take_is_refused_by_name() -> None:
    class NoTake(Places):
        def enqueue(self, job: TraceJob) -> None: ...

        def end(self, job_id: str, outcome: Ended) -> None: ...

    with pytest.raises(InvalidArgument, match=r"NoTake, which has no method take: with wakes=True a queue has"):
        check_queue(NoTake, wakes=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="wakes='yes' must be True or False"):
        check_queue(Blocking, wakes="yes")  # type: ignore[arg-type]
