"""Direct calls of a Redis session: when one is made, and that it is the same as its steps whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from unittest import mock

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions as driver

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import session as session_module
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.functions import calls
from queuehint.backends.redis.session import CHECK_EVERY_S, RETRY_S, Session
from queuehint.backends.redis.transport import Closed, NotSent, Send, Sleep, Unanswered
from queuehint.backends.redis.transport import Talk as Steps
from queuehint.clock import FakeClock
from queuehint.errors import BackendUnavailableError, InvalidJobError
from queuehint.operations import JOBS_PER_SUBMISSION_MAX
from queuehint.values.policy import Retention
from tests.session_driver import HEADER, ONE, Talk, Time, carried_out, examined, make_session, replace_time

time = pytest.fixture(replace_time)
session = pytest.fixture(make_session)

REPLY = [*HEADER, 1, b"Q"]
"""The reply to `ONE`."""


# --- when one is made ------------------------------------------------------------------------------------------------


def test_change_on_an_examined_server_is_a_direct_call(session: Session, time: Time) -> None:
    call = session.direct_call(ONE)
    assert call is not None
    assert call.asked_s == time.now_s


def _never_examined(session: Session, _: Time) -> None:
    session._checked_s = None


def _examined_long_ago(_: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S


def _not_probed(session: Session, _: Time) -> None:
    session._may_write = False


def _server_may_evict(session: Session, _: Time) -> None:
    session._examination.policy = "maxmemory-policy is allkeys-lru"


@pytest.mark.parametrize("befalls", [_never_examined, _examined_long_ago, _not_probed, _server_may_evict])
def test_change_goes_by_steps_while_something_has_to_be_checked(
    session: Session, time: Time, befalls: Callable[[Session, Time], None]
) -> None:
    befalls(session, time)
    assert session.direct_call(ONE) is None


def test_change_is_direct_until_an_examination_is_due(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S - 1
    assert session.direct_call(ONE) is not None


def test_change_goes_by_steps_until_the_retention_was_stated(time: Time) -> None:
    session = examined(Session(parse_url("redis://"), BackendOptions(retention=Retention(finished=1))), time)
    assert session.direct_call(ONE) is None
    Talk(session, ONE).answer(b"").answer(REPLY)
    assert session.direct_call(ONE) is not None


def test_direct_call_has_the_time_that_a_test_tells(time: Time) -> None:
    clock = FakeClock(5)
    session = examined(Session(parse_url("redis://"), BackendOptions(clock=clock)), time)
    for now_ms in (5, 12):
        talk = Talk(session, ONE)
        assert talk.arguments[0] == now_ms
        talk.answer(REPLY)
        clock.advance(ms=7)
    assert session.direct_call(ONE, waits=True) is None


def test_invalid_change_is_refused_before_it_takes_a_stream(session: Session) -> None:
    with pytest.raises(InvalidJobError):
        session.direct_call(attrs.evolve(ONE, jobs=ONE.jobs * (JOBS_PER_SUBMISSION_MAX + 1)))
    assert not session.streams.free
    assert session.outages.asked_s is None


# --- its time --------------------------------------------------------------------------------------------------------


def test_patience_counts_from_the_first_attempt_of_a_direct_call(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    time.now_s += RETRY_S
    talk.fail(NotSent()).answer()
    assert isinstance(talk.error, BackendUnavailableError)


def test_direct_call_without_an_answer_is_seen_as_one(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    assert session.outages.asked_s == time.now_s
    talk.answer(REPLY)
    assert session.outages.asked_s is None


# --- the same as its steps -------------------------------------------------------------------------------------------

FAILURES: dict[str, Callable[[], BaseException]] = {
    "not sent": NotSent,
    "unanswered": Unanswered,
    "closed": Closed,
    "canceled": asyncio.CancelledError,
    "dropped": GeneratorExit,
    "interrupted": KeyboardInterrupt,
    "a fault": ZeroDivisionError,
    "busy": lambda: driver.ResponseError("BUSY running a script"),
    "replica": lambda: driver.ReadOnlyError("READONLY no"),
    "moved": lambda: driver.MovedError("3999 10.0.0.1:7001"),
    "asked": lambda: driver.AskError("3999 10.0.0.2:7001"),
    "no function": lambda: driver.ResponseError("ERR Function not found"),
    "no functions": lambda: driver.ResponseError("ERR unknown command 'FCALL', with args"),
    "no script": lambda: driver.NoScriptError("No matching script."),
    "denied": lambda: driver.NoPermissionError("this user has no permissions"),
    "full": lambda: driver.OutOfMemoryError("OOM command not allowed"),
    "refused": lambda: driver.ResponseError("ERR something else"),
    "duplicate": lambda: driver.ResponseError("DUPLICATE_JOB 0"),
}


@attrs.frozen
class Course:
    """What a caller has sent, seen and been told, and what its session has kept of it."""

    actions: list[Any]
    free: list[tuple[str, int, bool]]
    unknown: list[tuple[str, int, bool]]
    asked_s: float | None
    singly_until_s: float


def course(events: list[str], functions: str, *, direct: bool) -> Course:
    """Return how a submission goes that is called twice, while these events befall what is sent one after the other."""
    names, time, left = (f"{number:016}" for number in count()), Time(), iter(events)
    with (
        mock.patch.object(session_module, "time", time),
        mock.patch.object(calls, "time", time),
        mock.patch("queuehint.backends.redis.streams.secrets.token_hex", side_effect=names),
    ):
        address = parse_url(f"redis+cluster://a,b?functions={functions}&patience=3")
        session = examined(Session(address, BackendOptions(namespace="n")), time)
        actions: list[Any] = []
        for _ in range(2):
            steps = carried_out(session, ONE) if direct else session.execute(ONE)
            actions.append(driven(steps, left, time, actions))
        unknown = [stream for _, stream in session.streams.unknown.values()]
        free, kept = [
            [(stream.name, stream.request, stream.is_unknown) for stream in them]
            for them in (session.streams.free, unknown)
        ]
        return Course(actions, free, kept, session.outages.asked_s, session._calls.singly_until_s)


def driven(steps: Steps, left: Iterator[str], time: Time, actions: list[Any]) -> Any:
    """Answer each action, with the next failure if one is left; return what the caller is told at the end."""
    try:
        step = next(steps)
        while True:
            event = None
            if isinstance(step, Send):
                time.now_s += 1
                event = next(left, None)
                # A call that waits for a slot has no words yet.
                actions.append("waits" if event in {"not sent", "closed"} else step.command)
            else:
                time.now_s += step.seconds if isinstance(step, Sleep) else 0
                actions.append(step)
            if event is not None:
                step = steps.throw(FAILURES[event]())
            else:
                step = steps.send([*REPLY])
    except StopIteration as end:
        return end.value
    except BaseException as error:
        return type(error), str(error), type(error.__cause__)


@given(
    events=st.lists(st.sampled_from(sorted(FAILURES)), max_size=6),
    functions=st.sampled_from(["auto", "never"]),
)
def test_direct_call_is_the_same_as_its_steps_whatever_fails(events: list[str], functions: str) -> None:
    direct = course(events, functions, direct=True)
    assert direct == course(events, functions, direct=False)
    assert direct.asked_s is None
