"""The Redis session without a server: retries, receipts, redirections, unknown outcomes; no socket, no sleep."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from redis import exceptions as driver

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys, scripts
from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.examination import (
    durability_class,
    parse_info,
    wrong_policy,
    wrong_role,
    wrong_version,
)
from queuehint.backends.redis.functions.calls import Calls
from queuehint.backends.redis.functions.library import library
from queuehint.backends.redis.session import (
    CHECK_EVERY_S,
    PAUSE_S,
    RETRY_S,
    ROLE_EVERY_S,
    STANDS_STILL_S,
    STOPPED_S,
    UNKNOWN_MAX,
    Session,
)
from queuehint.backends.redis.transport import NotSent, Redirect, Send, Sleep, Unanswered
from queuehint.clock import FakeClock
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
    DuplicateJobError,
    InvalidJobError,
    OutcomeUnknownError,
    QueueHintError,
)
from queuehint.operations import (
    BUDGET,
    Cancel,
    CountJobs,
    Draw,
    Drawn,
    Enqueue,
    Exchange,
    Get,
    Got,
    Operation,
    Renew,
    Tick,
    Ticked,
)
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Retention
from queuehint.values.spec import JobSpec
from tests import calls

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(redis_session, "time", time)
    return time


@pytest.fixture
def session(time: Time) -> Session:
    """A session whose server has just been looked at."""
    session = Session(parse_url("redis://ann:hunter2@db:7000/1"), BackendOptions(namespace="n"))
    session._checked_s = time.monotonic()
    session._may_write = True
    return session


class Talk:
    """One `Session.execute`, and its state: the next action in ``step``, or at the end ``reply`` or ``error``."""

    def __init__(self, session: Session, operation: Operation[Any]) -> None:
        self._steps = session.execute(operation)
        self.step: Any = None
        self.reply: Any = None
        self.error: Any = None
        self._go_on(lambda: next(self._steps))

    def _go_on(self, move: Callable[[], Any]) -> None:
        self.step = None
        try:
            self.step = move()
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


# --- all is well -----------------------------------------------------------------------------------------------------


def test_an_operation_is_one_request_with_a_stream_a_number_and_the_settings_of_the_namespace(session: Session) -> None:
    talk = Talk(session, Draw(3))
    assert talk.command[:5] == ("FCALL", library().function("draw"), 2, "{qh:n}", "{qh:n}:meta")
    now, stream, request, *rest = talk.arguments
    assert now == ""
    assert len(stream) == 16
    assert request == 1
    day_ms = 86_400_000
    assert rest[:5] == [day_ms, 7 * day_ms, day_ms, 90 * day_ms, BUDGET]
    assert rest[-1] == 3
    assert talk.answer([*HEADER, 7]).reply == Drawn(7)


def test_a_test_tells_the_time_and_how_long_records_are_kept(time: Time) -> None:
    options = BackendOptions(clock=FakeClock(5), retention=Retention(finished=1, failed=2, canceled=3, service=4))
    session = Session(parse_url("redis://"), options, budget=9)
    session._checked_s = time.monotonic()
    session._may_write = True
    talk = Talk(session, Tick())
    assert script_of(talk) == "retain"
    assert talk.arguments[8:] == ("1000 2000 3000 4000", 1)
    talk.answer(b"")
    assert talk.arguments[0] == 5
    assert Talk(session, Tick()).arguments[3:8] == (1_000, 2_000, 3_000, 4_000, 9)


def test_a_retention_that_could_not_be_stated_is_stated_by_the_next_request(time: Time) -> None:
    session = Session(parse_url("redis://"), BackendOptions(retention=Retention(finished=1)))
    session._checked_s = time.monotonic()
    session._may_write = True
    first = Talk(session, Tick())
    first.fail(driver.ResponseError("ERR no"))
    assert isinstance(first.error, BackendError)
    second = Talk(session, Tick())
    assert second.arguments[8:] == ("1000 604800000 86400000 7776000000", 1)
    assert script_of(second.answer(b"")) == "tick"


def test_a_retention_that_cannot_be_read_is_replaced_and_said(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    session = Session(parse_url("redis://"), BackendOptions(retention=Retention(finished=1)))
    session._checked_s = time.monotonic()
    session._may_write = True
    assert script_of(Talk(session, Tick()).answer(b"1 2 3 99999999999999999999")) == "tick"
    assert "was (unreadable) and is now (finished 1 s" in caplog.text


def test_a_question_has_no_stream_and_leaves_none(session: Session) -> None:
    talk = Talk(session, Get(("a",)))
    assert talk.request == ("", 0)
    assert talk.answer([[]]).reply == Got((None,))
    assert not session._streams


def test_a_stream_whose_request_was_answered_is_used_again_with_the_next_number(session: Session) -> None:
    first = Talk(session, Tick())
    stream, number = first.request
    first.answer(DONE)
    assert Talk(session, Tick()).request == (stream, number + 1)


def test_requests_that_are_under_way_at_once_have_streams_of_their_own(session: Session) -> None:
    for _ in range(2):
        talks = [Talk(session, Tick()) for _ in range(3)]
        assert len({talk.request[0] for talk in talks}) == 3
        for talk in talks:
            assert talk.answer(DONE).reply == Ticked(more=False, next_ms=None)
        assert len(session._streams) == 3


def test_a_fork_has_streams_of_its_own(session: Session, time: Time) -> None:
    parent = Talk(session, Tick())
    stream, _ = parent.request
    parent.answer(DONE)
    session.begin()
    assert session._checked_s is None
    session._checked_s = time.monotonic()
    session._may_write = True
    assert Talk(session, Tick()).request[0] != stream


def test_what_carries_too_much_is_refused_before_anything_is_asked(session: Session) -> None:
    talk = Talk(session, Draw(-1))
    assert isinstance(talk.error, InvalidJobError)
    assert not session._streams


@pytest.mark.parametrize("next_ms, due_s", [(-1, None), (1_000, 1_000.0), (3_500, 1_002.5), (500, 1_000.0)])
def test_a_reply_says_when_something_is_due_by_the_clock_of_this_process(
    session: Session, next_ms: int, due_s: float | None
) -> None:
    Talk(session, Tick()).answer([0, 1_000, next_ms, 0])
    assert session.due_s == due_s


# --- scripts that are not there --------------------------------------------------------------------------------------


@pytest.fixture
def singly(session: Session) -> Session:
    """The same without functions."""
    session._calls = Calls(parse_url("redis://db?functions=never"))
    return session


def test_a_script_the_server_does_not_know_is_sent_whole_with_the_same_request(singly: Session) -> None:
    session = singly
    talk = Talk(session, Tick())
    by_sha = talk.command
    talk.fail(driver.NoScriptError("No matching script."))
    script = scripts.script("tick")
    assert by_sha[:2] == ("EVALSHA", script.sha)
    assert talk.command == ("EVAL", script.text, *by_sha[2:])
    assert talk.answer(DONE).reply is not None
    assert len(session._streams) == 1


def test_after_a_failure_a_script_is_asked_for_by_its_sha_again(singly: Session) -> None:
    talk = Talk(singly, Tick())
    by_sha = talk.command
    talk.fail(driver.NoScriptError("No matching script.")).fail(Unanswered()).skip_move_and_sleep()
    assert talk.command == by_sha
    assert talk.fail(driver.NoScriptError("No matching script.")).command[0] == "EVAL"


MISSING = driver.ResponseError("Function not found")


def test_a_node_that_does_not_know_the_library_gets_it_and_then_the_same_request(session: Session) -> None:
    talk = Talk(session, Tick())
    by_name = talk.command
    assert talk.fail(MISSING).command == ("FUNCTION", "LOAD", library().text)
    assert talk.answer(library().name.encode()).command == by_name
    assert talk.answer(DONE).reply is not None
    assert len(session._streams) == 1


def test_a_node_that_a_slot_is_moving_to_gets_the_library_too(session: Session) -> None:
    talk = Talk(session, Tick())
    by_name = talk.command
    once = Redirect(("b", 7), once=True)
    assert talk.fail(driver.AskError("1 b:7")).step == once
    assert talk.answer().command == by_name
    assert talk.fail(MISSING).step == once
    assert talk.answer().command[:2] == ("FUNCTION", "LOAD")
    assert talk.answer(b"").command == by_name
    assert talk.fail(driver.AskError("1 b:7")).step == once
    assert talk.answer().answer(DONE).reply is not None


def test_a_load_without_an_answer_leaves_no_outcome_unknown(session: Session, time: Time) -> None:
    talk = Talk(session, ONE).fail(MISSING)
    time.now_s += redis_session.RETRY_S
    talk.fail(Unanswered()).answer()
    assert type(talk.error) is BackendUnavailableError
    assert len(session._streams) == 1


# --- connections that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [NotSent, Unanswered])
def test_a_request_without_an_answer_is_repeated_with_the_same_stream_and_number(
    session: Session, failure: type[Exception]
) -> None:
    talk = Talk(session, ONE)
    sent = talk.command
    for number in range(8):
        talk.fail(failure())
        assert talk.step == Redirect()
        talk.answer()
        assert talk.step == Sleep(PAUSE_S[min(number, len(PAUSE_S) - 1)])
        talk.answer()
        assert talk.command == sent
    assert talk.answer([*HEADER, 1, b"Q"]).reply.jobs[0].id == "a"


def test_what_was_never_sent_is_known_not_to_have_been_done(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    stream, number = talk.request
    talk.fail(NotSent()).skip_move_and_sleep()
    time.now_s += RETRY_S
    talk.fail(NotSent()).answer()
    assert type(talk.error) is BackendUnavailableError
    # So the stream is free: its next request is a new one.
    assert Talk(session, Tick()).request == (stream, number + 1)


def test_what_was_sent_and_never_answered_has_an_unknown_outcome(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    talk.fail(Unanswered()).skip_move_and_sleep()
    time.now_s += RETRY_S
    talk.fail(NotSent()).answer()
    assert type(talk.error) is OutcomeUnknownError
    assert isinstance(talk.error.__cause__, NotSent)
    assert "redis://***@db:7000/1" in str(talk.error)
    assert "hunter2" not in str(talk.error)


def test_an_address_says_how_long_an_operation_is_tried(time: Time) -> None:
    session = Session(parse_url("redis://db?patience=0.5"), BackendOptions(namespace="n"))
    session._checked_s, session._may_write = time.monotonic(), True
    talk = Talk(session, ONE)
    talk.fail(NotSent()).skip_move_and_sleep()
    time.now_s += 0.5
    assert isinstance(talk.fail(NotSent()).answer().error, BackendUnavailableError)


def test_a_store_that_does_not_answer_is_told_once_until_it_does(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [record.message for record in caplog.records if vars(record).get("event") == "redis.unreachable"]

    for count in (1, 2):
        one, other = Talk(session, Tick()), Talk(session, ONE)
        for talk in (one, other):
            talk.fail(NotSent()).skip_move_and_sleep()
        assert len(told()) == count - 1, "one failure is none: a connection may have been idle for long"
        for talk in (one, other):
            talk.fail(NotSent()).skip_move_and_sleep()
        assert len(told()) == count
        one.answer(DONE)
        other.answer([*HEADER, 1, b"Q"])
    assert "redis://***@db:7000/1 does not answer" in told()[0]
    assert "hunter2" not in caplog.text


def test_it_is_known_since_when_a_request_is_without_an_answer(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    asked_s, time.now_s = time.now_s, time.now_s + 1
    talk.fail(NotSent()).skip_move_and_sleep()
    assert session.outages.asked_s == asked_s
    talk.answer([*HEADER, 1, b"Q"])
    assert session.outages.asked_s is None


def test_an_operation_is_tried_for_so_long_and_no_longer(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    time.now_s += RETRY_S - 0.001
    talk.fail(Unanswered()).skip_move_and_sleep()
    assert talk.command
    time.now_s += 0.001
    assert isinstance(talk.fail(Unanswered()).answer().error, OutcomeUnknownError)


def test_a_question_without_an_answer_is_no_unknown_outcome(session: Session, time: Time) -> None:
    talk = Talk(session, CountJobs())
    time.now_s += RETRY_S
    talk.fail(Unanswered()).answer()
    assert type(talk.error) is BackendUnavailableError
    assert not session._unknown


def test_the_same_operation_object_goes_on_with_the_same_request(session: Session, time: Time) -> None:
    lost = Talk(session, ONE)
    sent, (stream, number) = lost.command, lost.request
    time.now_s += RETRY_S
    lost.fail(Unanswered()).answer()
    assert isinstance(lost.error, OutcomeUnknownError)
    other = Talk(session, Tick())
    assert other.request[0] != stream
    again = Talk(session, ONE)
    assert again.command == sent
    again.answer([*HEADER, b"a 1 Q 1 "])
    assert Talk(session, ONE).request == (stream, number + 1)


def test_an_equal_operation_that_is_another_object_is_another_request(session: Session, time: Time) -> None:
    lost = Talk(session, ONE)
    stream, _ = lost.request
    time.now_s += RETRY_S
    lost.fail(Unanswered()).answer()
    equal = attrs.evolve(ONE)
    assert equal == ONE
    assert Talk(session, equal).request[0] != stream


def test_a_request_may_stay_unknown_several_times_and_is_still_the_same(session: Session, time: Time) -> None:
    requests = set()
    for _ in range(4):
        talk = Talk(session, ONE)
        requests.add(talk.request)
        time.now_s += RETRY_S
        assert isinstance(talk.fail(Unanswered()).answer().error, OutcomeUnknownError)
    assert len(requests) == 1
    assert len(session._unknown) == 1


def test_an_unknown_request_is_forgotten_with_its_operation_so_that_no_other_is_taken_for_it(session: Session) -> None:
    streams = set()
    gc.freeze()  # else all that other tests have left is looked through fifty times
    for _ in range(50):
        talk = Talk(session, Exchange("w"))
        streams.add(talk.request[0])
        talk.break_off()
        del talk
        gc.collect()
        assert not session._unknown
    assert len(streams) == 50


def test_so_many_unknown_requests_are_remembered_and_no_more(session: Session) -> None:
    operations = [Draw(number % 1_000) for number in range(UNKNOWN_MAX + 5)]
    sent = []
    for operation in operations:
        talk = Talk(session, operation)
        sent.append(talk.request)
        talk.break_off()
    assert len(session._unknown) == UNKNOWN_MAX
    assert Talk(session, operations[-1]).request == sent[-1]
    assert Talk(session, operations[0]).request not in sent


# --- callers that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [None, Unanswered()], ids=["waiting for an answer", "between two attempts"])
def test_the_stream_of_a_canceled_caller_is_not_used_by_others(session: Session, failure: Exception | None) -> None:
    talk = Talk(session, ONE)
    sent, (stream, _) = talk.command, talk.request
    if failure is not None:
        talk.fail(failure)
    talk.break_off()
    assert not session._streams
    assert Talk(session, Tick()).request[0] != stream
    assert Talk(session, ONE).command == sent


def test_the_stream_of_a_dropped_call_is_not_used_again(session: Session) -> None:
    talk = Talk(session, ONE)
    stream, _ = talk.request
    talk._steps.close()
    assert not session._streams
    assert Talk(session, Tick()).request[0] != stream


def test_an_error_nobody_expects_leaves_the_outcome_unknown(session: Session) -> None:
    talk = Talk(session, ONE)
    talk.fail(ZeroDivisionError())
    assert isinstance(talk.error, ZeroDivisionError)
    assert not session._streams
    assert list(session._unknown) == [id(ONE)]


# --- other nodes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, move",
    [
        (driver.MovedError("3999 10.0.0.1:7001"), Redirect(("10.0.0.1", 7001))),
        (driver.MovedError("3999 ::1:7001"), Redirect(("::1", 7001))),
        (driver.MovedError("3999 :7001"), Redirect(("", 7001))),
        (driver.AskError("3999 10.0.0.1:7001"), Redirect(("10.0.0.1", 7001), once=True)),
    ],
)
def test_a_request_follows_the_slot_to_another_node_at_once(
    session: Session, error: driver.AskError, move: Redirect
) -> None:
    talk = Talk(session, Tick())
    sent = talk.command
    talk.fail(error)
    assert talk.step == move
    assert talk.answer().command == sent
    assert talk.answer(DONE).reply is not None


def test_a_node_that_does_not_know_the_script_gets_it_whole_also_after_a_redirection(singly: Session) -> None:
    talk = Talk(singly, Tick())
    talk.fail(driver.NoScriptError("No matching script."))
    talk.fail(driver.MovedError("1 b:1")).answer()
    assert talk.command[0] == "EVAL"


def redirect_for_ever(talk: Talk, time: Time) -> None:
    """Let two nodes send a request on to each other until it gives up."""
    pauses = 0
    for number in range(1_000):
        talk.fail(driver.MovedError(f"1 {'ab'[number % 2]}:1"))
        while isinstance(talk.step, Redirect | Sleep):
            if isinstance(talk.step, Sleep):
                time.now_s += talk.step.seconds
                pauses += 1
            talk.answer()
        if talk.error is not None:
            break
    assert type(talk.error) is BackendUnavailableError
    assert pauses > 5


def test_two_nodes_that_send_a_request_to_each_other_do_not_keep_it_for_ever(session: Session, time: Time) -> None:
    redirect_for_ever(Talk(session, Tick()), time)
    assert len(session._streams) == 1


def test_two_nodes_that_send_a_look_at_the_server_to_each_other_do_not_keep_it_for_ever(time: Time) -> None:
    redirect_for_ever(Talk(Session(parse_url("redis+cluster://a,b"), BackendOptions()), Tick()), time)


@pytest.mark.parametrize(
    "message, moves",
    [
        ("BUSY Redis is busy running a script.", False),
        ("LOADING Redis is loading the dataset in memory", False),
        ("TRYAGAIN Multiple keys request during rehashing of slot", False),
        ("READONLY You can't write against a read only replica.", True),
        ("CLUSTERDOWN The cluster is down", True),
        ("MASTERDOWN Link with MASTER is down", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("UNBLOCKED force unblock", True),
    ],
)
def test_what_passes_by_itself_is_waited_for(session: Session, time: Time, message: str, moves: bool) -> None:
    talk = Talk(session, ONE)
    sent = talk.command
    talk.fail(driver.ResponseError(message))
    # A node that is no primary is left, with all connections to it.
    assert (talk.step == Redirect(leaves=True)) is moves
    talk.skip_move_and_sleep()
    assert talk.command == sent
    time.now_s += RETRY_S
    talk.fail(driver.ResponseError(message))
    if moves:
        talk.answer()
    assert type(talk.error) is BackendUnavailableError
    assert message in str(talk.error)
    # Nothing was done, so the stream is free.
    assert len(session._streams) == 1


@pytest.mark.parametrize(
    "error",
    [
        driver.ReadOnlyError("You can't write against a read only replica."),
        driver.TryAgainError("Multiple keys request during rehashing of slot"),
        driver.MasterDownError("Link with MASTER is down"),
    ],
)
def test_errors_that_the_driver_knows_by_class_are_waited_for_too(session: Session, error: Exception) -> None:
    talk = Talk(session, ONE)
    sent = talk.command
    talk.fail(error).skip_move_and_sleep()
    assert talk.command == sent


def test_what_passes_after_a_request_without_an_answer_leaves_the_outcome_unknown(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    talk.fail(Unanswered()).skip_move_and_sleep()
    time.now_s += RETRY_S
    talk.fail(driver.ResponseError("LOADING Redis is loading the dataset in memory"))
    assert type(talk.error) is OutcomeUnknownError
    assert not session._streams


# --- what the server refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, kind, words",
    [
        (driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), BackendFullError, "maxmemory"),
        (driver.ResponseError("OOM command not allowed"), BackendFullError, "nothing was enqueued"),
        (driver.NoPermissionError("User ann has no permissions to run 'evalsha'"), BackendDeniedError, "evalsha"),
        (driver.ResponseError("NOPERM this user has no permissions"), BackendDeniedError, "no permissions"),
        (driver.NoPermissionError("WRONGPASS invalid username-password pair"), BackendDeniedError, "WRONGPASS"),
        (driver.ResponseError("MISCONF Errors writing to the AOF file"), BackendUnavailableError, "takes no writes"),
        (driver.ResponseError("WRONGTYPE Operation against a key"), CorruptStateError, "{qh:n} is of the wrong type"),
        (driver.ResponseError("CORRUPT job a is gone script: 12ab, on @user_script:1."), CorruptStateError, "is gone"),
        (driver.ResponseError("Bad data format in input. script: 12ab, on @user_script:1."), CorruptStateError, "Bad"),
        (driver.ResponseError("BAD_SCHEMA 2"), CorruptStateError, "schema 2"),
        (driver.ResponseError("STALE_REQUEST 12ab"), BackendError, "newer"),
        (driver.ResponseError("DUPLICATE_JOBS"), BackendError, "DUPLICATE_JOBS"),
        (driver.ResponseError("ERR unknown command 'EVALSHA'"), BackendError, "unknown command"),
    ],
)
def test_a_refusal_is_an_error_of_ours_that_names_what_is_wrong_and_nothing_was_changed(
    session: Session, error: Exception, kind: type[Exception], words: str
) -> None:
    talk = Talk(session, ONE)
    stream, number = talk.request
    talk.fail(error)
    assert type(talk.error) is kind
    assert words in str(talk.error)
    assert "hunter2" not in str(talk.error)
    assert Talk(session, Tick()).request == (stream, number + 1)


def test_a_full_store_says_of_other_operations_that_nothing_was_changed(session: Session) -> None:
    talk = Talk(session, Cancel(("a",)))
    talk.fail(driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."))
    assert type(talk.error) is BackendFullError
    assert "nothing was changed" in str(talk.error)


def test_an_error_of_the_driver_is_the_cause_of_ours(session: Session) -> None:
    error = driver.ResponseError("ERR what")
    talk = Talk(session, ONE).fail(error)
    assert talk.error.__cause__ is error
    assert isinstance(talk.error, QueueHintError)


def test_a_refusal_while_an_earlier_attempt_may_be_under_way_leaves_its_stream_alone(session: Session) -> None:
    talk = Talk(session, ONE)
    talk.fail(Unanswered()).skip_move_and_sleep()
    talk.fail(driver.ResponseError("PATH_CLOSED 0 0 0"))
    assert isinstance(talk.error, Exception)
    assert not session._streams


# --- duplicates ------------------------------------------------------------------------------------------------------


def test_a_duplicate_is_asked_for_and_the_fields_that_differ_are_named(session: Session) -> None:
    talk = Talk(session, ONE)
    talk.fail(driver.ResponseError("DUPLICATE_JOB 0"))
    assert script_of(talk) == "spec"
    assert talk.command[-1] == "a"
    talk.answer([b"5", b"default", b"", b"other", b"", b"", b"", b"", b"", b"\n{}"])
    assert isinstance(talk.error, DuplicateJobError)
    assert (talk.error.job_id, talk.error.fields) == ("a", ("task", "priority"))
    assert talk.error.__cause__ is None
    assert len(session._streams) == 1


@pytest.mark.parametrize("there", [[], [b"3", b"default", b"", b"t", b"", b"", b"", b"", b"", b"\n{}"]])
def test_a_duplicate_that_has_gone_or_changed_meanwhile_is_one_all_the_same(
    session: Session, there: list[bytes]
) -> None:
    talk = Talk(session, ONE).fail(driver.ResponseError("DUPLICATE_JOB 0")).answer(there)
    assert isinstance(talk.error, DuplicateJobError)
    assert talk.error.fields == ("content",)


def test_a_key_that_is_taken_needs_no_second_question(session: Session) -> None:
    operation = Enqueue((JobSpec(id="a", task="t", key="k", on_conflict="reject"),))
    talk = Talk(session, operation).fail(driver.ResponseError("KEY_TAKEN 0 owner"))
    assert isinstance(talk.error, DuplicateJobError)
    assert (talk.error.job_id, talk.error.key) == ("owner", "k")


# --- a look at the server --------------------------------------------------------------------------------------------


def first_call(time: Time, **options: Any) -> tuple[Session, Talk]:
    session = Session(parse_url("redis://db"), BackendOptions(namespace="n", **options))
    return session, Talk(session, Tick())


def test_before_the_first_request_the_server_our_rights_and_the_types_of_our_keys_are_looked_at(time: Time) -> None:
    session, talk = first_call(time)
    assert talk.command == ("INFO", "everything")
    talk.answer(INFO)
    assert script_of(talk) == "types"
    assert talk.arguments[8:] == tuple(key.name for key in FIXED)
    talk.answer(types_of(jobs="hash"))
    assert script_of(talk) == "probe"
    talk.answer([1])
    assert script_of(talk) == "tick"
    assert talk.answer(DONE).reply is not None
    assert script_of(Talk(session, Tick())) == "tick"


def test_a_namespace_whose_time_a_test_tells_is_marked(time: Time) -> None:
    for options, times in (({}, 0), ({"clock": FakeClock()}, 1)):
        _, talk = first_call(time, **options)
        talk.answer(INFO)
        commands = []
        while script_of(talk) != "tick":
            commands.append(talk.command)
            talk.answer(types_of() if script_of(talk) == "types" else 1)
        assert commands.count(("HSET", "{qh:n}:meta", "test", "1")) == times


def test_one_of_concurrent_callers_examines_the_server_each_minute(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S
    looking = Talk(session, Tick())
    assert looking.command == ("INFO", "everything")
    assert script_of(Talk(session, Tick())) == "tick"
    looking.break_off()
    assert Talk(session, Tick()).command == ("INFO", "everything")


@pytest.mark.parametrize("key", [key for key in keys.KEYS if not key.is_prefix], ids=lambda key: key.name)
def test_a_key_of_a_wrong_type_is_named_before_anything_is_written(time: Time, key: keys.Key) -> None:
    for kind in ("string", "list", "set", "zset", "hash", "stream"):
        session, talk = first_call(time)
        talk.look_around(kind=kind, of=key.name)
        if kind == key.type:
            assert script_of(talk) == "tick"
        else:
            assert type(talk.error) is CorruptStateError
            assert str(talk.error).startswith(f"{{qh:n}}:{key.name} is a {kind} and should be a {key.type}")
            assert Talk(session, Tick()).command == ("INFO", "everything")


def test_a_user_who_may_not_run_what_scripts_run_is_denied_before_anything_is_changed(time: Time) -> None:
    session, talk = first_call(time)
    talk.answer(INFO)
    talk.answer(types_of())
    assert script_of(talk) == "probe"
    message = "ACL failure in script: User ann can't run this command script: 12ab, on @user_script:7."
    assert type(talk.fail(driver.ResponseError(message)).error) is BackendDeniedError
    assert script_of(Talk(session, Tick())) == "probe"


def test_questions_need_no_right_to_write(time: Time) -> None:
    talk = Talk(Session(parse_url("redis://db"), BackendOptions(namespace="n")), CountJobs())
    talk.answer(INFO)
    talk.answer(types_of())
    assert script_of(talk) == "count_jobs"


def test_each_minute_the_settings_are_looked_at_again_and_nothing_else(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S - 1
    assert script_of(Talk(session, Tick())) == "tick"
    time.now_s += 1
    talk = Talk(session, Tick())
    assert talk.command == ("INFO", "everything")
    assert script_of(talk.answer(INFO)) == "tick"
    assert script_of(Talk(session, Tick())) == "tick"


REPLICA = INFO.replace(b"role:master", b"role:slave")
EVICTS = INFO.replace(b"noeviction", b"allkeys-lru")


@pytest.mark.parametrize("is_first", [True, False], ids=["at first", "each minute"])
def test_where_jobs_may_be_evicted_nothing_is_enqueued_until_the_policy_is_right(
    session: Session, time: Time, caplog: pytest.LogCaptureFixture, is_first: bool
) -> None:
    session._checked_s = None if is_first else time.monotonic() - CHECK_EVERY_S
    for _ in range(2):
        talk = Talk(session, ONE)
        assert talk.command == ("INFO", "everything")
        talk.look_around(EVICTS)
        assert type(talk.error) is BackendUnavailableError
        assert "maxmemory-policy is allkeys-lru" in str(talk.error)
    assert not session._streams
    talk = Talk(session, ONE)
    assert script_of(talk.answer(INFO)) == "enqueue"
    assert script_of(Talk(session, ONE)) == "enqueue"
    assert [vars(record)["event"] for record in caplog.records if record.levelno >= logging.ERROR] == ["redis.policy"]
    assert "hunter2" not in caplog.text


def test_where_jobs_may_be_evicted_what_runs_is_renewed_settled_and_canceled(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S
    done = Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED)
    first = Talk(session, Renew((("a", 1),))).answer(EVICTS)
    assert script_of(first) == "renew"
    # Once known, it is not asked for again by what goes on.
    for operation, name in ((Tick(), "tick"), (Cancel(("a",)), "cancel"), (Exchange("w", (done,)), "exchange")):
        assert script_of(Talk(session, operation)) == name


def test_where_jobs_may_be_evicted_an_exchange_settles_and_claims_nothing(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S
    done = Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED)
    settling = Talk(session, Exchange("w", (done,), limit=5)).answer(EVICTS)
    without = Talk(session, Exchange("w", (done,)))
    assert settling.arguments[3:] == without.arguments[3:]
    # A claim without settlements waits: the marker of the jobs that it does not take would wake it again at once.
    claiming = Talk(session, Exchange("w", limit=5)).answer(EVICTS)
    assert claiming.step == Sleep(STOPPED_S)
    assert claiming.answer().arguments[3:] == Talk(session, Exchange("w")).arguments[3:]
    assert Talk(session, Exchange("w", limit=5)).answer(INFO).arguments[10] == 5


def test_where_time_stands_still_the_server_is_looked_at_and_it_is_said_each_minute(
    session: Session, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[tuple[int, str]]:
        found = [(record.levelno, vars(record)["event"]) for record in caplog.records]
        caplog.clear()
        return found

    ahead = [0, 100_000, -1, 0]
    Talk(session, Tick()).answer(ahead)
    time.now_s += STANDS_STILL_S
    Talk(session, Tick()).answer(ahead)
    assert session.clock_behind_ms == 0
    talk = Talk(session, Tick()).answer(INFO + b"server_time_usec:40000000\r\n")
    assert (script_of(talk), session.clock_behind_ms) == ("tick", 60_000)
    assert told() == [(logging.ERROR, "redis.clock_behind")]
    talk.answer(ahead)
    for _ in range(3):
        time.now_s += STANDS_STILL_S
        talk = Talk(session, Tick())
        assert script_of(talk) == "tick"
        talk.answer(ahead)
    assert told() == []
    time.now_s += CHECK_EVERY_S
    Talk(session, Tick()).answer(INFO + b"server_time_usec:97000000\r\n").answer(ahead)
    assert (told(), session.clock_behind_ms) == ([(logging.ERROR, "redis.clock_behind")], 3_000)
    time.now_s += CHECK_EVERY_S
    Talk(session, Tick()).answer(INFO + b"server_time_usec:99500000\r\n").answer(ahead)
    assert (told(), session.clock_behind_ms) == ([(logging.WARNING, "redis.clock_behind")], 0)


def test_a_server_that_does_not_tell_its_time_is_not_judged_by_it(session: Session, time: Time) -> None:
    Talk(session, Tick()).answer([0, 100_000, -1, 0])
    time.now_s += CHECK_EVERY_S
    Talk(session, Tick()).answer(INFO)
    assert session.clock_behind_ms == 0


@pytest.mark.parametrize("is_first", [True, False], ids=["at first", "each minute"])
def test_a_node_that_is_a_replica_by_its_own_word_is_left_and_the_primary_is_looked_for(
    session: Session, time: Time, is_first: bool
) -> None:
    session._checked_s = None if is_first else time.monotonic() - CHECK_EVERY_S
    talk = Talk(session, Tick())
    for attempt in range(3):
        assert talk.command == ("INFO", "everything")
        assert talk.answer(REPLICA).step == Redirect(leaves=True)
        assert talk.answer().step == Sleep(PAUSE_S[attempt])
        talk.answer()
    assert script_of(talk.look_around()) == "tick"


def test_a_replica_is_refused_by_its_role_once_nothing_else_was_found_for_so_long(session: Session, time: Time) -> None:
    session._checked_s = None
    talk = Talk(session, Tick())
    talk.answer(REPLICA).skip_move_and_sleep()
    time.now_s += RETRY_S
    talk.answer(REPLICA)
    assert type(talk.error) is BackendUnavailableError
    assert "its role is slave" in str(talk.error)
    # It is looked for again at the next call.
    assert Talk(session, Tick()).command == ("INFO", "everything")


def test_in_a_cluster_the_node_that_has_the_namespace_is_looked_at(time: Time) -> None:
    talk = Talk(Session(parse_url("redis+cluster://a,b"), BackendOptions(namespace="n")), Tick())
    assert talk.command == ("EXISTS", "{qh:n}:meta")
    assert talk.fail(driver.MovedError("1 c:7")).step == Redirect(("c", 7))
    assert talk.answer().command == ("EXISTS", "{qh:n}:meta")
    assert talk.answer(0).command == ("INFO", "everything")
    assert talk.answer(REPLICA).step == Redirect(leaves=True)
    assert talk.answer().answer().command == ("EXISTS", "{qh:n}:meta")


def test_what_a_replica_would_answer_too_is_asked_of_a_node_that_was_a_primary_lately(
    session: Session, time: Time
) -> None:
    for _ in range(2):
        time.now_s += ROLE_EVERY_S - 0.001
        talk = Talk(session, CountJobs())
        assert script_of(talk) == "count_jobs"
        # A change is taken by a primary alone.
        Talk(session, Tick()).answer([0, int(time.now_s * 1000), -1, 0])
    time.now_s += ROLE_EVERY_S
    assert script_of(Talk(session, Tick())) == "tick"
    talk = Talk(session, CountJobs())
    assert talk.command == ("INFO", "replication")
    assert talk.answer(b"role:slave\r\n").step == Redirect(leaves=True)
    assert talk.answer().answer().command == ("INFO", "replication")
    assert script_of(talk.answer(b"role:master\r\n")) == "count_jobs"
    assert script_of(Talk(session, CountJobs())) == "count_jobs"
    time.now_s += ROLE_EVERY_S
    talk = Talk(session, CountJobs())
    time.now_s += RETRY_S
    assert type(talk.answer(b"role:slave\r\n").error) is BackendUnavailableError


def test_a_replica_in_a_cluster_sends_on_who_asks_it_so_its_role_is_not_asked_for(time: Time) -> None:
    session = Session(parse_url("redis+cluster://a,b"), BackendOptions(namespace="n"))
    session._checked_s = time.monotonic()
    time.now_s += ROLE_EVERY_S
    assert script_of(Talk(session, CountJobs())) == "count_jobs"


@pytest.mark.parametrize("failure", [NotSent, Unanswered])
def test_a_server_that_cannot_be_looked_at_is_unavailable_and_never_unknown(
    time: Time, failure: type[Exception]
) -> None:
    session, talk = first_call(time)
    assert talk.fail(failure()).step == Redirect()
    assert talk.answer().step == Sleep(PAUSE_S[0])
    assert talk.answer().command == ("INFO", "everything")
    time.now_s += RETRY_S
    assert talk.fail(failure()).step == Redirect()
    talk.answer()
    assert type(talk.error) is BackendUnavailableError
    assert not session._unknown


@pytest.mark.parametrize(
    "error, kind",
    [
        (driver.NoPermissionError("User ann has no permissions to run 'info'"), BackendDeniedError),
        (driver.NoPermissionError("NOAUTH Authentication required."), BackendDeniedError),
        (driver.ResponseError("ERR unknown"), BackendError),
    ],
)
def test_a_server_that_refuses_to_be_looked_at_says_so(time: Time, error: Exception, kind: type[Exception]) -> None:
    _, talk = first_call(time)
    assert type(talk.fail(error).error) is kind


def test_a_look_at_a_server_that_is_loading_is_taken_again(time: Time) -> None:
    _, talk = first_call(time)
    talk.fail(driver.ResponseError("LOADING Redis is loading")).skip_move_and_sleep()
    assert talk.command == ("INFO", "everything")
    assert talk.fail(driver.MovedError("1 b:7")).step == Redirect(("b", 7))
    assert talk.answer().command == ("INFO", "everything")


# --- what is wrong with a server -------------------------------------------------------------------------------------

SOUND = {"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction"}


def test_the_lines_of_info_are_read() -> None:
    text = b"# Server\r\nredis_version:7.0.15\r\nexecutable:/usr/bin/a:b\r\n\r\nodd \xff line\r\nname:\xff\r\n"
    assert parse_info(text) == {"redis_version": "7.0.15", "executable": "/usr/bin/a:b", "name": "\ufffd"}
    assert parse_info(b"") == {}


@pytest.mark.parametrize("version", ["7.0.3", "7.0.15", "7.2.4", "8.0.0", "10.1.2", "7.0.15.1", "255.255.255"])
def test_a_version_that_is_new_enough_is_taken(version: str) -> None:
    assert wrong_version({**SOUND, "redis_version": version}) is None


@pytest.mark.parametrize("version", ["7.0.2", "7.0", "6.2.14", "5.0.7", "", "x.y.z", "7"])
def test_an_old_version_is_refused_by_name(version: str) -> None:
    problem = wrong_version({**SOUND, "redis_version": version})
    assert problem == f"redis_version is {version}, at least 7.0.3 is needed"


def test_before_anything_is_asked_of_it_a_server_that_is_too_old_is_refused(time: Time) -> None:
    talk = Talk(Session(parse_url("redis://db"), BackendOptions(namespace="n")), ONE)
    assert talk.command[0] == "INFO"
    talk.answer(INFO.replace(b"7.0.15", b"6.2.14"))
    assert type(talk.error) is BackendUnavailableError
    assert "redis_version is 6.2.14, at least 7.0.3 is needed" in str(talk.error)


def test_a_server_that_does_not_say_its_version_is_refused() -> None:
    assert wrong_version({}) == "redis_version is 0, at least 7.0.3 is needed"


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl"])
def test_a_server_that_may_delete_jobs_is_refused(policy: str) -> None:
    problem = wrong_policy({**SOUND, "maxmemory_policy": policy})
    assert problem is not None
    assert problem.startswith(f"maxmemory-policy is {policy}")
    assert "must be noeviction" in problem


@pytest.mark.parametrize("role", ["slave", "replica", "sentinel"])
def test_a_server_that_is_no_primary_is_refused(role: str) -> None:
    problem = wrong_role({**SOUND, "role": role})
    assert problem is not None
    assert problem.startswith(f"its role is {role}")


def test_a_sound_server_is_taken() -> None:
    for info in (SOUND, {"redis_version": "7.2.4"}):
        assert wrong_version(info) is wrong_policy(info) is wrong_role(info) is None


@pytest.mark.parametrize(
    "info, durability", [({}, "D0: "), ({"aof_enabled": "0"}, "D0: "), ({"aof_enabled": "1"}, "D1 or D2: ")]
)
def test_what_a_server_may_lose_is_told_by_its_append_only_file(info: dict[str, str], durability: str) -> None:
    assert durability_class(info).startswith(durability)


@pytest.mark.parametrize("aof, level", [(b"0", logging.WARNING), (b"1", logging.INFO)])
def test_what_a_server_may_lose_is_said_once(
    time: Time, caplog: pytest.LogCaptureFixture, aof: bytes, level: int
) -> None:
    caplog.set_level(logging.INFO, "queuehint.redis")
    session = Session(parse_url("redis://ann:hunter2@db"), BackendOptions())
    info = INFO.replace(b"aof_enabled:1", b"aof_enabled:" + aof)
    for _ in range(2):
        Talk(session, Tick()).look_around(info).answer(DONE)
        time.now_s += CHECK_EVERY_S
    events = {vars(record)["event"]: record for record in caplog.records}
    assert len(events) == len(caplog.records) == 2
    assert events["redis.durability"].levelno == level
    assert events["redis.plaintext"].levelno == logging.WARNING
    assert "hunter2" not in caplog.text


def test_what_was_prepared_is_sent_as_it_would_have_been_and_packed_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Talk(session, ONE).arguments[3:]
    session.prepare(ONE)
    other = attrs.evolve(ONE, jobs=(JobSpec(id="b", task="t"),))
    assert Talk(session, other).arguments[3:] != plain
    with monkeypatch.context() as patch:
        patch.setattr("queuehint.backends.redis.codec.codec.encode", None)
        assert Talk(session, ONE).arguments[3:] == plain
    assert Talk(session, ONE).arguments[3:] == plain


def test_what_cannot_be_prepared_is_refused_when_it_is_called(session: Session) -> None:
    session.prepare(ONE)
    session.prepare(Enqueue((*ONE.jobs, *ONE.jobs)))
    assert session._prepared is None
    assert isinstance(Talk(session, Enqueue((*ONE.jobs, *ONE.jobs))).error, DuplicateJobError)
