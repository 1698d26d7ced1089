"""The answer `Children`, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from queuehint import (
    Children,
    HandlerError,
    InvalidJobError,
    InvalidJobTypeError,
    JobContext,
    JsonCodec,
    Outcome,
    Retry,
)
from queuehint.handlers.handler import Handler
from queuehint.testing.driver import job
from queuehint.values.outcome import Grant, OutcomeKind
from queuehint.worker.outcomes import OutcomeBuilder
from queuehint.worker.processes.child import ContextInProcess
from tests.support import HostileStr

GRANT = Grant(job("parent"), token=7, attempt=1, losses=0, lease_until_ms=0)


HOST: Any = SimpleNamespace(scheduler="ours")


class Handle:
    """The parts of a handle that are used: its id, and its scheduler."""

    def __init__(self, job_id: Any) -> None:
        self.id = job_id

    def id_for(self, scheduler: Any, parameter: str) -> Any:
        if scheduler != "ours":
            raise InvalidJobError(f"{parameter}: not one of {scheduler}")
        return self.id


class Made:
    """A job whose enqueues return handles of the ids it is told."""

    name = "made"
    scheduler = "ours"

    def __init__(self, *ids: str) -> None:
        self._ids = iter(ids)

    def as_child_of(self, parent: tuple[str, int], make_id: Callable[[], str], headers: object) -> Made:
        assert parent == ("parent", 7)
        return self

    def enqueue_sync(self) -> Handle:
        return Handle(next(self._ids))


def context(*made: str) -> JobContext:
    """Return a context whose handler has made these jobs."""
    it, child = JobContext(GRANT, HOST), Made(*made)
    for _ in made:
        it.enqueue_sync(child)  # type: ignore[arg-type]
    return it


def outcome(answer: Any, *made: str, why_stop: str | None = None, returns: Any = Any) -> Outcome:
    def task() -> Any: ...

    task.__annotations__["return"] = returns
    return OutcomeBuilder(JsonCodec()).of_result(GRANT, Handler("task", task), answer, why_stop, context(*made))


# --- the answer ------------------------------------------------------------------------------------------------------


def test_children_are_ids_or_handles_each_once() -> None:
    assert Children("a", Handle("b"), "a", Handle("a")).ids == ("a", "b")
    assert Children() == Children(result=None, on_child_failure="fail")
    assert (Children().ids, Children(result=5).result) == ((), 5)


def test_the_answer_is_a_frozen_value() -> None:
    assert Children("a") == Children(Handle("a")) != Children("b")
    assert Children("a", result=1) != Children("a", result=2)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Children().result = 1  # type: ignore[misc]


def kind(thing: object) -> str:
    """Name a case by its type: every process must call it the same."""
    return type(thing).__name__


@pytest.mark.parametrize("thing", [5, None, ["a"], ("a", "b"), b"a", Handle(5), Handle(None), object()], ids=kind)
def test_children_of_wrong_type_are_refused(thing: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match=r"children (are ids or handles, one argument each|must be str), got"):
        Children("a", thing)


@pytest.mark.parametrize(
    "job_id", ["", "a b", "x" * 129, "\n", HostileStr(" ")], ids=["empty", "space", "long", "nl", "odd"]
)
def test_children_with_malformed_ids_are_refused(job_id: str) -> None:
    for child in (job_id, Handle(job_id)):
        with pytest.raises(InvalidJobError, match=r"^children "):
            Children(child)


def test_at_most_a_hundred_thousand() -> None:
    ids = [f"c{n}" for n in range(100_000)]
    assert Children(*ids, *ids).ids == tuple(ids)
    with pytest.raises(InvalidJobError, match="100001 jobs, limit 100000; for more, have each of several children"):
        Children(*ids, "more")


@pytest.mark.parametrize("choice, error", [("other", InvalidJobError), (None, InvalidJobTypeError)])
def test_on_child_failure_accepts_two_choices(choice: Any, error: type[Exception]) -> None:
    assert Children(on_child_failure="ignore").on_child_failure == "ignore"
    with pytest.raises(error, match="on_child_failure must be one of fail, ignore"):
        Children(on_child_failure=choice)


def test_a_child_is_a_job_of_the_same_scheduler() -> None:
    stranger = Made("a")
    stranger.scheduler = "theirs"
    with pytest.raises(InvalidJobError, match="job 'made' is of another scheduler"):
        context().enqueue_sync(stranger)  # type: ignore[arg-type]


# --- the outcome -----------------------------------------------------------------------------------------------------


def test_the_outcome_names_the_children_and_keeps_the_result() -> None:
    told = outcome(Children("a", "b", result={"n": 1}, on_child_failure="ignore"), "made")
    assert (told.job_id, told.token, told.kind) == ("parent", 7, OutcomeKind.CHILDREN)
    assert (told.children, told.on_child_failure, told.result) == (("a", "b"), "ignore", b'{"result":{"n":1}}')


def test_children_without_names_are_all_of_this_attempt() -> None:
    told = outcome(Children(), "x", "y", "x")
    assert (told.kind, told.children, told.result) == (OutcomeKind.CHILDREN, ("x", "y"), None)


def test_without_children_the_job_is_finished() -> None:
    told = outcome(Children(result=3))
    assert (told.kind, told.children, told.result) == (OutcomeKind.FINISHED, (), b'{"result":3}')


def test_child_above_the_limit_is_refused_before_its_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.handlers.context.CHILDREN_OF_JOB_MAX", 10)
    made = [f"c{n}" for n in range(11)]
    assert context(*made[:10]).made == tuple(made[:10])
    with pytest.raises(InvalidJobError, match="children: 11 jobs, limit 10"):
        context(*made)


def test_excess_children_with_own_ids_fail_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.handlers.context.CHILDREN_OF_JOB_MAX", 2)
    it = context("a", "b")
    it._note_all([Handle("c")])
    told = OutcomeBuilder(JsonCodec()).of_result(GRANT, Handler("task", lambda: None), Children(), None, it)
    assert (told.kind, told.final, told.children) == (OutcomeKind.FAILED, True, ())
    assert told.error is not None
    assert "3 jobs, limit 2" in told.error.message


def test_a_job_that_waits_for_itself_fails_for_good() -> None:
    told = outcome(Children("a", "parent"))
    assert (told.kind, told.final) == (OutcomeKind.FAILED, True)
    assert told.error is not None
    assert told.error.type == "queuehint.errors.CycleError"


def test_non_json_result_fails_the_job_for_good() -> None:
    told = outcome(Children("a", result={1, 2}))
    assert (told.kind, told.final) == (OutcomeKind.FAILED, True)
    assert told.error is not None
    assert told.error.type == "queuehint.errors.PayloadError"


def test_a_handle_of_elsewhere_fails_the_job_for_good() -> None:
    assert outcome(Children(Handle("a"))).kind is OutcomeKind.CHILDREN
    host: Any = SimpleNamespace(scheduler="theirs")
    answer = Children("b", Handle("a"))
    told = OutcomeBuilder(JsonCodec()).of_result(
        GRANT, Handler("task", lambda: None), answer, None, JobContext(GRANT, host)
    )
    assert (told.kind, told.final) == (OutcomeKind.FAILED, True)
    assert told.error is not None
    assert told.error.message == "children: not one of theirs"


def test_the_result_is_written_by_the_handlers_annotation() -> None:
    @attrs.define
    class Count:
        n: int

    told = outcome(Children("a", result=Count(5)), returns=Count | Children | Retry)
    assert told.result == b'{"result":{"n":5}}'


def test_after_its_timeout_the_answer_comes_too_late() -> None:
    assert outcome(Children("a"), why_stop="timeout").kind is OutcomeKind.FAILED
    assert outcome(Children("a"), why_stop="canceled").kind is OutcomeKind.CHILDREN


# --- what the context knows ------------------------------------------------------------------------------------------


def test_context_records_created_children() -> None:
    assert context("a", "b", "a").made == ("a", "b")
    assert context().made == ()


def test_ids_of_children_are_numbered_in_call_order() -> None:
    ids: list[str] = []

    class Numbered(Made):
        def as_child_of(self, parent: tuple[str, int], make_id: Callable[[], str], headers: object) -> Made:
            ids.append(make_id())
            return Made(ids[-1])

    it = context()
    for _ in range(3):
        it.enqueue_sync(Numbered())  # type: ignore[arg-type]
    assert ids == ["parent.1", "parent.2", "parent.3"]
    assert it.made == tuple(ids)


@pytest.mark.parametrize("thing", [5, None, lambda: None, "task"], ids=kind)
def test_only_jobs_can_be_enqueued(thing: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match="job must be a Job"):
        context().enqueue_sync(thing)
    with pytest.raises(InvalidJobTypeError, match="job must be a Job"):
        context().enqueue_many_sync(thing, [])


def test_a_context_has_no_results_unless_they_were_brought() -> None:
    it = context()
    assert dict(it.results) == {}
    it.bring({"a": 1})
    assert it.results["a"] == 1


# --- making them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [JobContext, ContextInProcess], ids=["thread", "process"])
async def test_coroutine_of_the_context_in_a_plain_handler_is_refused(make: Callable[..., Any]) -> None:
    def handler() -> list[str]:
        it, messages = make(GRANT, HOST), []
        for call, args in ((it.enqueue, ()), (it.enqueue_many, ([()],))):
            with pytest.raises(HandlerError) as caught:
                call(Made("a"), *args)
            messages.append(str(caught.value))
        return messages

    one, many = await asyncio.to_thread(handler)
    assert one.startswith("ctx.enqueue() must be awaited, which a plain handler cannot; write ctx.enqueue_sync()")
    assert "write ctx.enqueue_many_sync()" in many
    waiting = make(GRANT, HOST).enqueue(Made("a"))
    assert asyncio.iscoroutine(waiting), "an async handler, or a plain one with a loop of its own, awaits it"
    waiting.close()
