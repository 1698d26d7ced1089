"""A Redis session driven by hand, without a server: each action is answered by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys
from queuehint.backends.redis import session as session_module
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.session import Session
from queuehint.backends.redis.transport import Redirect, Send, Sleep
from queuehint.backends.redis.transport import Talk as Steps
from queuehint.operations import (
    Enqueue,
    Operation,
)
from queuehint.values.spec import JobSpec
from tests import calls

INFO = b"redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\ncluster_enabled:0\r\n"


HEADER = [0, 1_000, -1]


DONE = [*HEADER, 0]
"""The reply to a tick."""


ONE = Enqueue((JobSpec(id="a", task="t"),))


class Time:
    """Monotonic seconds that pass only by hand."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


def replace_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Let sessions see a time that passes only by hand: test modules make this their fixture `time`."""
    time = Time()
    monkeypatch.setattr(session_module, "time", time)
    return time


def examined(session: Session, time: Time) -> Session:
    """Mark the server of a session as just examined, and as one that may be written to; return the session."""
    session._checked_s = time.monotonic()
    session._may_write = True
    return session


def make_session(time: Time) -> Session:
    """Return a session whose server has just been examined: test modules make this their fixture `session`."""
    return examined(Session(parse_url("redis://ann:hunter2@db:7000/1"), BackendOptions(namespace="n")), time)


def carried_out(session: Session, operation: Operation[Any]) -> Steps:
    """Yield the actions of an operation as the shells of a backend carry it out: by a direct call where that is one."""
    call = session.direct_call(operation)
    if call is None:
        return (yield from session.execute(operation))
    send = call.first()
    try:
        return session.answered(operation, call, (yield send))
    except BaseException as error:
        rest = session.go_on(operation, call, send, error)
    return (yield from rest)


class Talk:
    """
    One operation, and its state: the next action in ``step``, or at the end ``reply`` or ``error``.

    Attributes:
        may_be_direct: whether it is a direct call where the shells make one; else it goes by `Session.execute` alone.
    """

    may_be_direct: ClassVar[bool] = True

    def __init__(self, session: Session, operation: Operation[Any]) -> None:
        self._steps = carried_out(session, operation) if self.may_be_direct else session.execute(operation)
        self.step: Any = None
        self.reply: Any = None
        self.error: Any = None
        self._go_on(lambda: next(self._steps))

    def _go_on(self, move: Callable[[], Any]) -> None:
        self.step = None
        try:
            self.step = move()
            if isinstance(self.step, Send):
                # As a link that has a free slot.
                assert self.step.command
        except StopIteration as end:
            self.reply = end.value
        except Exception as error:
            self.error = error

    def answer(self, value: Any = None) -> Talk:
        """Answer the action with a result."""
        self._go_on(lambda: self._steps.send(value))
        return self

    def fail(self, error: BaseException) -> Talk:
        """Answer the action with a failure."""
        self._go_on(lambda: self._steps.throw(error))
        return self

    def break_off(self) -> None:
        """Cancel the task that waits for it."""
        with pytest.raises(asyncio.CancelledError):
            self._steps.throw(asyncio.CancelledError())

    @property
    def command(self) -> tuple[Any, ...]:
        assert isinstance(self.step, Send), self.step
        return self.step.command

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The ARGV of the script that is to be run."""
        return self.command[3 + self.command[2] :]

    @property
    def request(self) -> tuple[str, int]:
        """The stream and the number of the request that is to be sent."""
        _, stream, number, *_ = self.arguments
        return stream, number

    def look_around(self, info: bytes = INFO, kind: str = "none", of: str = "jobs") -> Talk:
        """Let it see what the server is like; the key *of* is of this type, the others are not there."""
        self.answer(info)
        while isinstance(self.step, Send) and (name := script_of(self)) in {None, "types", "probe"}:
            self.answer(types_of(**{of: kind}) if name == "types" else 1)
        return self

    def skip_move_and_sleep(self) -> Talk:
        """Go to another node if asked to, and wait as asked."""
        if isinstance(self.step, Redirect):
            self.answer()
        assert isinstance(self.step, Sleep)
        return self.answer()


FIXED = [key for key in keys.KEYS if not key.is_prefix]


def types_of(**kinds: str) -> list[bytes]:
    """Return what a server says of the types of our keys: these are there, the others are not."""
    return [kinds.get(key.name, "none").encode() for key in FIXED]


def script_of(talk: Talk) -> str | None:
    """Return the name of the script that is to be run, None if it is a plain command."""
    return calls.script_of(talk.command)
