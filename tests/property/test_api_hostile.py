"""
Every public callable with invalid values: an error of ours in one printable line, or Python's own for a call that does
not fit; at once, and nothing is changed.

The callables are collected from `queuehint.__all__` and the public methods of a scheduler's objects, so new ones are
included; each exclusion has its reason. On memory every value is tried; with a file and on Redis one per parameter.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

import pytest

import queuehint
from queuehint import JobContext, Outcome, OutcomeKind, QueueHintError, Scheduler
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.client.options import TASK_OPTIONS
from queuehint.handlers.partial_result import PartialResult
from queuehint.operations import Exchange
from queuehint.scheduler.hosting import WORKER_OPTIONS
from queuehint.scheduler.records.queries import Filter, Ownership, Paging
from queuehint.scheduler.schedules import Recurring
from queuehint.values.outcome import Progress, Step
from tests.folders import quick_folder
from tests.schedulers import scheduler
from tests.servers import new_namespace, shared_server
from tests.support import HostileStr, thorough

LIMIT_S = 30.0
"""Of the time of this thread: what grows with the square of a value takes minutes."""
WAIT_S = 0.02
"""An accepted call may wait for ever: it is canceled after this time."""


# --- hostile values --------------------------------------------------------------------------------------------------


class Unshown:
    """Raises in all that it is asked for, and what it raises is no `Exception`."""

    def __repr__(self) -> str:
        raise SystemExit

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise SystemExit

    def __bool__(self) -> bool:
        raise SystemExit

    def __len__(self) -> int:
        raise SystemExit

    __hash__ = None  # type: ignore[assignment]


class Lines:
    """Is shown on several lines, with what a terminal obeys."""

    def __repr__(self) -> str:
        return "array([[1],\n       [2]]) \x1b[31m\u202e"


class Endless:
    """An endless iterable: a callee that reads it to its end has read too much."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(2_000_000):
            yield "a"
        raise AssertionError("read to its end")


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "five": lambda: 5,
    "below zero": lambda: -1,
    "yes": lambda: True,
    "no number": lambda: float("nan"),
    "no end": lambda: float("inf"),
    "huge": lambda: 10**400,
    "nothing": lambda: "",
    "a surrogate": lambda: "\ud800",
    "two lines": lambda: "a\nb\x1b[31m",
    "long": lambda: LONG,
    "bytes": lambda: b"x",
    "an empty list": list,
    "a list in a list": lambda: [[1]],
    "a list of everything": lambda: [None, 5, b"x", [], Lines()],
    "many lists": lambda: MANY,
    "a dict": lambda: {"a": {1}},
    "an object": object,
    "unshown": Unshown,
    "unshown in a list": lambda: [Unshown()],
    "a liar": lambda: HostileStr("\n"),
    "lines": Lines,
    "a class of lines": lambda: type("a\nb", (), {}),
    "endless": Endless,
    "a range": lambda: range(10**12),
    "a function": lambda: print,
    "local time": lambda: datetime(2020, 1, 1),
    "long ago": lambda: timedelta.min,
    "a handle of elsewhere": functools.cache(lambda: Scheduler("memory://").handle("x")),
}
LONG = "x" * 1_000_000
MANY: list[list[int]] = [[1]] * 300_000


# --- what is called --------------------------------------------------------------------------------------------------


class SilentHost:
    """A host that drops all messages of a running job."""

    def __init__(self, sched: Scheduler) -> None:
        self.scheduler = sched
        self.codec = sched.codec
        self.state: object = None
        self.said: list[object] = []

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        self.said.append((job_id, token, progress))

    def log(self, job_id: str, token: int, line: str) -> None:
        self.said.append((job_id, token, line))

    def store(self, partial_result: PartialResult) -> None:
        self.said.append(partial_result)

    async def store_step(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        return self.store_step_sync(job_id, token, step)

    def store_step_sync(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        self.said.append(step)
        return 0, None

    async def run_plain(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    def around_step(self, context: object, name: str) -> nullcontext[None]:
        return nullcontext()


class World:
    """A store with two jobs that are over, and one of each thing whose methods users call."""

    def __init__(self, store: Callable[[], str]) -> None:
        self.sched, _ = scheduler(store())
        self.job = self.sched.job(name="work")(lambda n=0: None)
        self.handle = self.job.using(id="known").enqueue_sync()
        self.sched.cancel_sync(["known"])
        self.job.using(id="begun").enqueue_sync()
        (grant,) = self.sched.backend.call_sync(Exchange(worker="w", limit=1)).grants
        over = Outcome(job_id="begun", token=grant.token, kind=OutcomeKind.FINISHED)
        self.sched.backend.call_sync(Exchange(worker="w", settle=(over,)))  # a drain would wait for it
        self.host = SilentHost(self.sched)
        self.flow = queuehint.Flow(self.sched, "flow")
        self.node = self.flow.add(self.job)
        self.things: dict[str, Any] = {
            "Scheduler": self.sched,
            "DeadLetters": self.sched.dead,
            "RecordStore": self.sched.records,
            "Schedules": self.sched.schedules,
            "XCom": self.sched.xcom,
            "Job": self.job,
            "JobHandle": self.handle,
            "JobContext": JobContext(grant, self.host),
            "FlowHandle": self.sched.get_flow("flow"),
            "Flow": self.flow,
            "FlowGroup": self.flow.flow("part"),
            "JobSpec": self.job.spec(),
            "queuehint": queuehint,
        }
        self.good: dict[str, Any] = {
            "job": self.job, "job_id": "known", "id": "known", "ids": ["known"], "path": ["a"], "hint": ["a"],
            "user": None, "weight": 2, "name": "name", "key": "key", "value": 1, "text": "text", "service": "docs",
            "specs": [], "calls": [], "kinds": ["failed"], "listener": print, "hook": print,
            "record": self.handle.record_sync(), "fields": {"a": 1}, "answer": queuehint.Children(),
            "every": 5, "function_or_hint": print, "cursor": None, "delay": 5, "base": 1, "backend": self.sched.backend,
            "scheduler": self.sched, "handlers": {}, "codec": self.sched.codec, "url": "memory://", "task": "work",
            "jobs": "known", "now_ms": 5, "moved": print, "function": print, "version": 0, "user_": "ann",
        }  # fmt: skip

    def state(self) -> Any:
        """Return all that a refused call must not change."""
        sched: Any = self.sched
        registry: Any = self.flow.registry
        context: Any = self.things["JobContext"]
        return (
            self._stored(),
            [len(each) for each in (sched._jobs, sched._handlers, sched._definitions, sched._before, sched._after)],
            sched.listeners,
            [len(registry.nodes), len(registry.groups), len(registry.waits)],
            [len(self.host.said), len(context.made), context.canceled],
        )

    def _stored(self) -> object:
        backend: Any = self.sched.backend
        if hasattr(backend, "engine"):
            return repr(list(freeze(backend.engine)))
        server = shared_server()
        client = server.client()
        names = sorted(client.scan_iter(match=f"{backend.session.root}*", count=1000))
        # Keys with a time to live may expire meanwhile. A request that the store itself refuses leaves a receipt.
        names = [each for each in names if client.pttl(each) == -1 and not each.endswith(b":receipts")]
        return dict(zip(names, server.call("DEBUG", "DIGEST-VALUE", *names), strict=True))

    def close(self, runner: asyncio.Runner) -> None:
        runner.run(self.sched.close())


LEFT_OUT: dict[str, str] = {
    "Scheduler.submit_checked": "takes specs that were checked as they were made",
    "Scheduler.submit_checked_sync": "the same",
    "Scheduler.ask_wait": "takes what `JobContext.wait` has checked",
    "Scheduler.ask_wait_sync": "the same",
    "Scheduler.handler": "answers workers, which ask by the names of jobs",
    "Scheduler.hosts": "takes a worker, from who runs one by themselves",
    "Scheduler.running": "the same",
    "Scheduler.worker": "begins on entering; `make_worker` has the same parameters",
    "Scheduler.worker_sync": "the same",
    "Job.as_child_of": "called by contexts",
    "Job.build_spec": "called by flows, with what was bound",
    "JobHandle.edges": "called by jobs that are to wait for it",
    "JobHandle.id_for": "called by schedulers",
    "FlowHandle.edges": "as that of JobHandle",
    "Flow.edges": "as that of JobHandle",
    "Flow.submit_by": "called by transactions, with themselves",
    "Flow.submit_by_sync": "the same",
    "Flow.add_call": "called by tasks and `add`, with what was bound",
    "JobSpec.differing_fields": "called by the core",
    "RecordStore.export": "writes to where it is told",
    "RecordStore.export_sync": "writes to where it is told",
    "JobContext.check_children": "called by workers",
    "JobContext.ask_to_stop": "called by workers",
    "JobContext.bring": "called by workers",
    "JobContext.bring_steps": "called by workers",
    "JobContext.is_in_store_of": "called by schedulers",
    "Scheduler.permit_of": "called by `JobContext.permit`, which is tried",
    "Scheduler.permit_of_sync": "called by `JobContext.permit_sync`, which is tried",
    "JobContext.step_sync": "passes its arguments on; `step`, which does the same, is tried",
    "FlowGroup.add_call": "as that of Flow",
    "FlowGroup.edges": "as that of JobHandle",
}
MADE_BY_US = {
    "EventStream", "EventStreamSync", "Flow", "FlowGraph", "FlowGroup", "FlowHandle", "Hold", "Job", "JobContext",
    "JobHandle", "Node", "RecordPage", "Delays", "EdgeStats", "Event", "FlowStats", "JobError", "JobRecord",
    "LimitState", "ListenerState", "Missed", "Outcome", "Progress", "Reason", "Schedule", "Stats", "TreeNode",
    "Claim", "Limit", "Transaction",
}  # fmt: skip
"""Classes of `__all__` whose values are what we return, or are checked where they are given."""


def is_called(name: str, found: Any) -> bool:
    if inspect.isclass(found):
        is_kind = issubclass(found, (Exception, enum.Enum)) or getattr(found, "_is_protocol", False)
        return not is_kind and name not in MADE_BY_US
    return callable(found)


def callables() -> list[tuple[str, str]]:
    """Return the names of things and of what is called on them."""
    found = []
    for thing, value in World(lambda: "memory://").things.items():
        names = queuehint.__all__ if value is queuehint else [name for name in dir(type(value)) if name[0] != "_"]
        for name in names:
            of_class = getattr(value if value is queuehint else type(value), name)
            if f"{thing}.{name}" not in LEFT_OUT and is_called(name, of_class):
                found.append((thing, name))
    return found


CALLABLES = callables()
pytestmark = pytest.mark.heavy


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(call).parameters.values())


def calls(world: World, call: Callable[..., Any]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield calls with one bad value each, in place of each parameter; what has to be given besides is good."""
    found = parameters(call)
    named = [
        (bad, word)
        for bad in found
        for word in (WORDS.get(bad.name, ["a\nb"]) if bad.kind is bad.VAR_KEYWORD else [""])
    ]
    for bad, keyword in named:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for each in found:
            if each is bad or (each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)):
                value = BAD if each is bad else world.good.get(each.name, BAD)
                if each.kind is each.VAR_KEYWORD:
                    kwargs[keyword] = value
                elif each.kind is each.KEYWORD_ONLY or (each.kind is not each.POSITIONAL_ONLY and each is bad):
                    kwargs[each.name] = value
                elif each.kind is each.VAR_POSITIONAL or not kwargs:
                    args.append(value)
                else:
                    kwargs[each.name] = value
        if bad.kind is bad.VAR_POSITIONAL:
            kwargs.pop(bad.name, None)
            args.append(BAD) if BAD not in args else None
        yield keyword or bad.name, args, kwargs


WORDS: dict[str, list[str]] = {
    "how": [*Recurring.__annotations__, "a\nb"],
    "filter": [*Filter.__annotations__, "a\nb"],
    "part": [*Filter.__annotations__, "a\nb"],
    "paging": [*Paging.__annotations__, "a\nb"],
    "ownership": [*Ownership.__annotations__, "a\nb"],
    "options": [*WORKER_OPTIONS, *TASK_OPTIONS, "claims", "name", "a\nb"],
}
"""Keyword arguments for calls that accept any."""
BAD: Any = type("Bad", (), {})()


async def awaited(answer: Awaitable[Any]) -> None:
    await asyncio.wait_for(answer, WAIT_S)


def judge(runner: asyncio.Runner, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> str | None:
    """Call, and return what is wrong with how it was refused; None if it was taken, "" if all is well."""
    begun_s = time.thread_time()
    try:
        answer = call(*args, **kwargs)
        if inspect.iscoroutine(answer):
            runner.run(awaited(answer))
    except QueueHintError as error:
        text = str(error)
        said = "" if text.isprintable() and len(text) < 2000 else f"not one line that can be printed: {text[:300]!r}"
    except TimeoutError:
        return None
    except TypeError as error:
        trace = error.__traceback__
        deeper = trace is not None and trace.tb_next is not None
        said = f"refused bare: {error!r:.200}" if deeper else ""
    except BaseException as error:
        said = f"refused bare: {type(error).__name__}"
    else:
        return None
    spent_s = time.thread_time() - begun_s
    return said or ("" if spent_s < LIMIT_S else f"took {spent_s:.1f} s")


def wrong_answers(
    runner: asyncio.Runner, store: Callable[[], str], thing: str, name: str, choose: Callable[[], list[str]]
) -> Iterator[str]:
    """
    Yield what is wrong with how calls were refused.

    Args:
        store: where the next world is.
        choose: which values the next parameter gets.
    """

    def begin() -> tuple[World, Any, list[Any], Any]:
        world = World(store)
        call = getattr(world.things[thing], name)
        return world, call, list(calls(world, call)), world.state()

    def refusal(label: str) -> str | None:
        _, args, kwargs = plan[number]
        value = VALUES[label]()
        return judge(
            runner,
            call,
            [value if each is BAD else each for each in args],
            {name: value if each is BAD else each for name, each in kwargs.items()},
        )

    world, call, plan, before = begin()
    for number in itertools.count():
        if number == len(plan):
            world.close(runner)
            return
        for label in choose():
            if thing == "JobContext" and name in {"log", "progress"} and label.startswith("unshown"):
                continue  # any object is taken for its text, and what that raises is its own
            said = refusal(label)
            if said == "" and world.state() != before:
                # A change that the store made by itself meanwhile does not happen again in a second try.
                world.close(runner)
                world, call, plan, before = begin()
                said = refusal(label)
                if world.state() != before:
                    said = "refused, and something has changed"
            if said:
                yield f"{thing}.{name}: {plan[number][0]}={label}: {said}"
            if said != "":
                world.close(runner)
                world, call, plan, before = begin()


@pytest.mark.slow
@pytest.mark.parametrize("thing, name", CALLABLES, ids=lambda part: part)
def test_hostile_values_are_refused_at_once_and_change_nothing(thing: str, name: str, runner: asyncio.Runner) -> None:
    luck = random.Random(f"{thing}.{name}")
    values = list(VALUES)
    few = thorough(len(values), quick=4)
    wrong = list(wrong_answers(runner, lambda: "memory://", thing, name, lambda: luck.sample(values, few)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["file", pytest.param("redis", marks=pytest.mark.redis)])
def test_other_stores_refuse_it_too(name: str, runner: asyncio.Runner) -> None:
    """Bad values are refused before a store is asked, or by the store: one value for each parameter shows which."""
    numbers = itertools.count()
    luck = random.Random(1)
    with quick_folder() as folder:

        def store() -> str:
            if name == "redis":
                return f"{shared_server().url}?namespace={new_namespace('hostile')}"
            return f"sqlite:///{folder}/{next(numbers)}.db?durability=process"

        wrong = [
            said
            for thing, called in CALLABLES[:: thorough(1, quick=6)]
            if thing not in {"queuehint", "JobSpec"}
            for said in wrong_answers(runner, store, thing, called, lambda: [luck.choice(list(VALUES))])
        ]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_left_out_names_exist() -> None:
    world = World(lambda: "memory://")
    for path in LEFT_OUT:
        thing, _, name = path.partition(".")
        assert callable(getattr(world.things[thing], name)), path
    assert set(queuehint.__all__) >= MADE_BY_US
    assert len(CALLABLES) > 120
