"""One history of a queue with a blocking `take`: a producer and workers, with interleaved calls of a plan."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import attrs
from hypothesis.errors import InvalidArgument

from queuehint.testing.histories.history import Ended, History, described
from queuehint.testing.trace import Fault, TraceJob
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from queuehint.testing.wakes.crew import Crew

CLOSER: Final = -1
PRODUCER: Final = 0
"""The number of the producer; workers are counted from 1."""
GOES_ON_MAX: Final = 2_000
"""A history in which callers go on so many times does not end by itself."""


class WaitingQueue(Protocol):
    """
    The interface of a queue for ``check_queue(wakes=True)``. Methods may be asynchronous, or plain: `take` then blocks.

    A plain queue is driven by threads, and one with an asynchronous `take` by tasks of one loop.

    .. versionadded:: 1.0.0
    """

    def enqueue(self, job: TraceJob, /) -> Awaitable[None] | None:
        """Enqueue a job. Its place is ``job.path``, or ``job.claims``."""

    def take(self) -> Awaitable[str | None] | str | None:
        """Return the id of a started job, after a wait until one may run."""

    def end(self, job_id: str, outcome: Ended, /) -> Awaitable[None] | None:
        """Receive the end of a running job: ``"finished"``, ``"retried"`` or ``"failed"``."""


Call = Literal["enqueue", "take", "end"]
"""A call that is made, by the first caller that can make it."""


@attrs.frozen
class Turn:
    """
    A caller goes on.

    Args:
        who: which of the callers that can, counted round; or what the caller does, for the first of those.
        steps: for how many steps; None until it waits, or its call has ended.
    """

    who: int | Call = 0
    steps: int | None = None


@attrs.frozen
class WakePlan:
    """The jobs, their ends, and the interleaving. The remaining steps happen one by one."""

    workers: int
    specs: tuple[JobSpec, ...]
    turns: tuple[Turn, ...]
    outcomes: tuple[Ended, ...]


class _Worker:
    def __init__(self, number: int) -> None:
        self.number = number
        self.job: str | None = None
        """The job that it runs, which it may end at any time."""
        self.refused_at: int | None = None
        """How many events there were when it got nothing."""


class WakeStory(History):
    """One history of a queue, of concurrent calls."""

    handed_out_by = "take"

    def __init__(self, queue: Any, crew: Crew, plan: WakePlan, max_jobs: int) -> None:
        super().__init__(queue, plan.workers, max_jobs)
        check_methods(queue)
        self._queue = queue
        self._crew = crew
        self.plan = plan
        self._specs = list(plan.specs[:max_jobs])
        self._outcomes = iter(plan.outcomes)
        self._workers = [_Worker(number) for number in range(1, plan.workers + 1)]
        self._calls: dict[int, str] = {}
        """The calls that go on, in words, by caller."""
        self._over: set[str] = set()
        self._idle_at = 0
        self.was_stopped = False
        """The last caller could have gone on."""
        self.was_cut_short = False
        """A turn with a number of steps ended in the midst of its call."""
        self._last: int | None = None
        """The caller that went on last."""
        self._waits: dict[int, str] = {}
        """Who waits, by the index of an event that says that a worker has nothing to do."""
        self._struck: dict[int, int] = {}
        """How many events there were when the wait of a caller was ended by its time-out."""
        self.time_outs = 0
        """How many waits were ended by their time-outs."""
        self.switches = 0
        """How often another caller went on while a call was under way and could have gone on."""

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of steps and of preemptions, by which the smallest history is chosen."""
        return len(self.steps), sum(", stops" in step for step in self.steps)

    def play(self) -> None:
        """Play the plan, then the rest, and close the queue."""
        for turn in self.plan.turns:
            options = self._options()
            if self.is_odd or not options:
                break
            self.done.append(turn)
            who = self._caller(turn.who, options)
            if who is not None:
                self._go_on(who, turn.steps)
                self.was_cut_short |= turn.steps is not None and self.was_stopped
        count = 0
        while not self.is_odd and (options := self._options(is_last=True)):
            self._go_on(options[0], None)
            count += 1
            if count > GOES_ON_MAX:
                self.problem, self.is_odd = "its callers go on without an end", True
        self._see_stuck()
        close_by(self._crew, self._queue)

    # --- who can go on -------------------------------------------------------------------------------------------

    def _caller(self, who: int | Call, options: Sequence[int]) -> int | None:
        """Return the next caller, None if none can make the call."""
        if isinstance(who, int):
            return options[who % len(options)]
        free = [caller for caller in options if caller not in self._calls]
        return next((caller for caller in free if self._next_call(caller) == who), None)

    def _next_call(self, caller: int) -> Call:
        if caller == PRODUCER:
            return "enqueue"
        return "take" if self._workers[caller - 1].job is None else "end"

    def _options(self, *, is_last: bool = False) -> list[int]:
        """Return the callers that can continue a call, then those that can make the next one."""
        going = [caller for caller in self._calls if self._crew.can_go(caller)]
        if not going:
            self._see_quiet()
            going = [caller for caller in self._calls if self._crew.can_go(caller)]
        if is_last and going:
            return going
        # First those that come between, last the one that they come between.
        stopped = [caller for caller in going if caller == self._last]
        going = [caller for caller in going if caller != self._last]
        idle = [worker for worker in self._workers if worker.number not in self._calls]
        ends = [worker.number for worker in idle if worker.job is not None]
        takes = [worker.number for worker in idle if worker.job is None and worker.refused_at != len(self.events)]
        brings = [PRODUCER] if self._specs and PRODUCER not in self._calls else []
        if is_last and not brings and not ends and self._over == {job.id for job in self.jobs}:
            return []
        return [*going, *brings, *takes, *ends, *stopped]

    def _takes(self, caller: int) -> bool:
        """Return whether the call of a caller is a `take`."""
        return caller != PRODUCER and self._workers[caller - 1].job is None

    def _see_quiet(self) -> None:
        """Where all calls wait, end the waits with time-outs once, then check for a lost wake-up."""
        now = len(self.events)
        for caller in self._calls:
            if self._struck.get(caller) != now and self._crew.time_out(caller):
                self._struck[caller] = now
                self.time_outs += 1
        if any(map(self._crew.can_go, self._calls)):
            return
        waiting = [worker.number for worker in self._workers if worker.number in self._calls and worker.job is None]
        if waiting and now != self._idle_at:
            places = [(number, self._crew.where(number)) for number in waiting]
            self._waits[len(self.events)] = " and ".join(
                f"worker {number} waits{f' at {at}' if at else ''}" for number, at in places
            )
            self.tell("idle")
            self._idle_at = len(self.events)

    def why(self, fault: Fault) -> str:
        """Return the waiting callers, and the running jobs."""
        waits = self._waits.get(fault.index)
        return super().why(fault) + (f";\n{waits}, and nothing has woken it" if waits else "")

    def _see_stuck(self) -> None:
        """See whether calls wait for locks for ever, or one has not come back that does not wait for a job."""
        if self.problem is None and (locked := self._deadlocked()):
            self.trouble, self.is_odd = "deadlock", True
            self.problem = ",\nand ".join(map(self._locked, locked))
            return
        for caller, call in self._calls.items():
            if not self._takes(caller) and self.problem is None:
                at = self._crew.where(caller)
                self.problem = f"{call} has not come back: it waits{f' at {at}' if at else ''}"
                self.is_odd = True

    def _deadlocked(self) -> list[int]:
        """Return the callers waiting for locks never released, and the holders."""
        locked = [caller for caller in self._calls if self._crew.waits_for_lock(caller)]
        for caller in locked:
            ring: list[int] = []
            at: int | None = caller
            while at in locked and at not in ring:
                ring.append(at)
                at = self._crew.holder(at)
            if at == caller:
                return ring
        is_all = len(locked) == len(self._calls) and self._over != {job.id for job in self.jobs}
        if not is_all and all(map(self._takes, locked)):
            return []
        return [*locked, *dict.fromkeys(at for at in map(self._crew.holder, locked) if at in self._calls)]

    def _locked(self, caller: int) -> str:
        """Return the wait of a caller in a deadlock, in words."""
        at, holder = self._crew.where(caller), self._crew.holder(caller)
        if not self._crew.waits_for_lock(caller):
            return f"{_named(caller)} waits{f' at {at}' if at else ''} to be woken"
        whose = "it holds itself" if holder == caller else "nobody gives back"
        if holder is not None and holder != caller and holder in self._calls:
            whose = f"{_named(holder)} holds"
        return f"{_named(caller)} waits{f' at {at}' if at else ''} for a lock that {whose}"

    # --- a turn --------------------------------------------------------------------------------------------------

    def _go_on(self, caller: int, steps: int | None) -> None:
        """Resume a caller for one step of the history."""
        others = [each for each in self._calls if each != caller and self._crew.can_go(each)]
        self.switches += bool(others)
        who = _named(caller)
        begins = caller not in self._calls
        call = self._begin(caller) if begins else self._calls[caller]
        self._last, self.was_stopped = caller, False
        self._crew.go(caller, steps)
        ended = self._crew.ended(caller)
        self.steps.append(f"{who}: {call}" if begins else f"{who}: goes on with {call}")
        if ended is None:
            at = self._crew.where(caller)
            self.was_stopped = self._crew.can_go(caller)
            verb = "stops" if self.was_stopped else "waits"
            self.steps[-1] += f", {verb}{f' at {at}' if at else ''}"
            return
        del self._calls[caller]
        self._see_ended(caller, call, *ended)

    def _begin(self, caller: int) -> str:
        """Begin the next call of a caller. Return the call in words."""
        if caller == PRODUCER:
            spec = attrs.evolve(self._specs.pop(0), id=string.ascii_lowercase[len(self.jobs)], depends_on=())
            job = TraceJob.of(spec)
            self.jobs.append(job)
            self.awaited[job.id] = set()
            self.tell("queued", job.id, ahead=1)
            self._calls[caller] = f"enqueue {described(job)}"
            self._crew.begin(caller, self._queue.enqueue, job)
            return self._calls[caller]
        worker = self._workers[caller - 1]
        if worker.job is None:
            self._calls[caller] = "take"
            self._crew.begin(caller, self._queue.take)
        else:
            outcome = next(self._outcomes, "finished")
            self.tell(outcome, worker.job, ahead=1)
            if outcome != "retried":
                self._over.add(worker.job)
            self._calls[caller] = f"end {worker.job}: {outcome}"
            self._crew.begin(caller, self._queue.end, worker.job, outcome)
        return self._calls[caller]

    def _see_ended(self, caller: int, call: str, found: object, error: BaseException | None) -> None:
        """Record the result or the exception of a call."""
        if error is not None:
            self.error, self.is_odd = error, True
            self.problem = f"{call.split(' ', maxsplit=1)[0]}() raised {type(error).__name__}: {error}"
            return
        if caller == PRODUCER:
            return
        worker = self._workers[caller - 1]
        if worker.job is not None:
            worker.job = None
            return
        self.steps[-1] += f": {'nothing' if found is None else getattr(found, 'id', found)}"
        if found is None:
            worker.refused_at = len(self.events)
            return
        # One that is being ended may have been handed out again before the call for that has come back.
        running = {each.job for each in self._workers if each.job is not None and each.number not in self._calls}
        worker.job = self.see_started(found, running, self._over)
        worker.refused_at = None


def _named(caller: int) -> str:
    return "producer" if caller == PRODUCER else f"worker {caller}"


def close_by(crew: Crew, queue: object) -> None:
    """Close a queue, if it has a `close`."""
    close = getattr(queue, "close", None)
    if close is None:
        return
    crew.begin(CLOSER, close)
    crew.go(CLOSER, None)
    _, error = crew.ended(CLOSER) or (None, None)
    if error is not None:
        raise error


def check_methods(queue: object) -> None:
    """Check that a queue has the methods of `WaitingQueue`."""
    lacking = [name for name in ("enqueue", "take", "end") if not callable(getattr(queue, name, None))]
    if lacking:
        raise InvalidArgument(
            f"factory() returned {type(queue).__name__}, which has no method {' and no '.join(lacking)}: with "
            "wakes=True a queue has enqueue(job), take() and end(job_id, outcome)"
        )
