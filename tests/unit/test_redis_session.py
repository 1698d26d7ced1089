"""The Redis session without a server: retries, receipts, redirections, unknown outcomes; no socket, no sleep."""

from __future__ import annotations

import gc
from typing import Any

import attrs
import pytest
from redis import exceptions as driver

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import scripts
from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.functions.calls import Calls
from queuehint.backends.redis.functions.library import library
from queuehint.backends.redis.session import (
    PAUSE_S,
    RETRY_S,
    Session,
)
from queuehint.backends.redis.streams import UNKNOWN_MAX
from queuehint.backends.redis.transport import Closed, NotSent, Redirect, Send, Sleep, Unanswered
from queuehint.backends.redis.waits import ClaimBehind
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
from queuehint.values.policy import Retention
from queuehint.values.spec import JobSpec
from tests.each import for_each
from tests.session_driver import DONE, HEADER, ONE, Talk, Time, examined, make_session, replace_time, script_of

time = pytest.fixture(replace_time)
session = pytest.fixture(make_session)


@pytest.fixture(autouse=True, params=[True, False], ids=["direct", "by steps"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with direct calls, where the shells make them, and without: nothing differs."""
    monkeypatch.setattr(Talk, "may_be_direct", request.param)


# --- answered requests -----------------------------------------------------------------------------------------------


def test_operation_is_one_request_with_stream_number_and_settings(session: Session) -> None:
    talk = Talk(session, op.Draw(3))
    assert talk.command[:5] == ("FCALL", library().function("draw"), 2, "{qh:n}", "{qh:n}:meta")
    now, stream, request, *rest = talk.arguments
    assert now == ""
    assert len(stream) == 16
    assert request == 1
    day_ms = 86_400_000
    assert rest[:5] == [day_ms, 7 * day_ms, day_ms, "-", op.BUDGET]
    assert rest[-1] == 3
    assert talk.answer([*HEADER, 7]).reply == op.Drawn(7)


def test_examination_reports_the_time_and_the_retention(time: Time) -> None:
    options = BackendOptions(clock=FakeClock(5), retention=Retention(finished=1, failed=2, canceled=3, service=4))
    session = examined(Session(parse_url("redis://"), options, budget=9), time)
    talk = Talk(session, op.Tick())
    assert script_of(talk) == "retain"
    assert talk.arguments[8:] == ("1000 2000 3000 4000", 1)
    talk.answer(b"")
    assert talk.arguments[0] == 5
    assert Talk(session, op.Tick()).arguments[3:8] == (1_000, 2_000, 3_000, "4000", 9)


def test_unstated_retention_is_stated_by_the_next_request(time: Time) -> None:
    session = examined(Session(parse_url("redis://"), BackendOptions(retention=Retention(finished=1))), time)
    first = Talk(session, op.Tick())
    first.fail(driver.ResponseError("ERR no"))
    assert isinstance(first.error, BackendError)
    second = Talk(session, op.Tick())
    assert second.arguments[8:] == ("1000 604800000 86400000 -", 1)
    assert script_of(second.answer(b"")) == "tick"


def test_a_retention_that_cannot_be_read_is_replaced_and_said(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    session = examined(Session(parse_url("redis://"), BackendOptions(retention=Retention(finished=1))), time)
    assert script_of(Talk(session, op.Tick()).answer(b"1 2 3 99999999999999999999")) == "tick"
    assert "was (unreadable) and is now (finished 1 s" in caplog.text


def test_a_question_has_no_stream_and_leaves_none(session: Session) -> None:
    talk = Talk(session, op.Get(("a",)))
    assert talk.request == ("", 0)
    assert talk.answer([[]]).reply == op.Got((None,))
    assert not session.streams.free


def test_question_is_no_direct_call(session: Session) -> None:
    assert session.direct_call(op.Get(("a",))) is None


def test_answered_stream_is_reused_with_the_next_number(session: Session) -> None:
    first = Talk(session, op.Tick())
    stream, number = first.request
    first.answer(DONE)
    assert Talk(session, op.Tick()).request == (stream, number + 1)


def test_concurrent_requests_have_separate_streams(session: Session) -> None:
    for _ in range(2):
        talks = [Talk(session, op.Tick()) for _ in range(3)]
        assert len({talk.request[0] for talk in talks}) == 3
        for talk in talks:
            assert talk.answer(DONE).reply == op.Ticked(more=False, next_ms=None)
        assert len(session.streams.free) == 3


def test_a_request_takes_its_stream_when_it_is_sent(session: Session) -> None:
    waiting, other = session.execute(op.Tick()), Talk(session, op.Tick())
    ask = next(waiting)
    stream, number = other.request
    other.answer(DONE)
    assert isinstance(ask, Send)
    # The caller had its turn only now, and uses the stream that the other one left.
    assert ask.command[6:8] == (stream, number + 1) == ask.command[6:8]
    assert not session.streams.free


def test_unsent_request_leaves_its_stream_to_others(session: Session) -> None:
    waiting = Talk(session, ONE)
    request = waiting.request
    waiting.fail(NotSent()).answer()
    assert isinstance(waiting.step, Sleep)
    other = Talk(session, op.Tick())
    assert other.request == request
    assert waiting.answer().request[0] != request[0]


def test_a_fork_has_streams_of_its_own(session: Session, time: Time) -> None:
    parent = Talk(session, op.Tick())
    stream, _ = parent.request
    parent.answer(DONE)
    session.begin()
    assert session._checked_s is None
    session._checked_s = time.monotonic()
    session._may_write = True
    assert Talk(session, op.Tick()).request[0] != stream


def test_oversized_operation_is_refused_before_any_request(session: Session) -> None:
    talk = Talk(session, op.Draw(-1))
    assert isinstance(talk.error, InvalidJobError)
    assert not session.streams.free


@pytest.mark.parametrize("next_ms, due_s", [(-1, None), (1_000, 1_000.0), (3_500, 1_002.5), (500, 1_000.0)])
def test_reply_reports_the_next_due_time_by_the_local_clock(
    session: Session, next_ms: int, due_s: float | None
) -> None:
    Talk(session, op.Tick()).answer([0, 1_000, next_ms, 0])
    assert session.due_s == due_s


# --- missing scripts -------------------------------------------------------------------------------------------------


@pytest.fixture
def singly(session: Session) -> Session:
    """The same without functions."""
    session._calls = Calls(parse_url("redis://db?functions=never"))
    return session


def test_unknown_script_is_sent_whole_with_the_same_request(singly: Session) -> None:
    session = singly
    talk = Talk(session, op.Tick())
    by_sha = talk.command
    talk.fail(driver.NoScriptError("No matching script."))
    script = scripts.script("tick")
    assert by_sha[:2] == ("EVALSHA", script.sha)
    assert talk.command == ("EVAL", script.text, *by_sha[2:])
    assert talk.answer(DONE).reply is not None
    assert len(session.streams.free) == 1


def test_script_is_requested_by_sha_again_after_a_failure(singly: Session) -> None:
    talk = Talk(singly, op.Tick())
    by_sha = talk.command
    talk.fail(driver.NoScriptError("No matching script.")).fail(Unanswered()).skip_move_and_sleep()
    assert talk.command == by_sha
    assert talk.fail(driver.NoScriptError("No matching script.")).command[0] == "EVAL"


MISSING = driver.ResponseError("Function not found")


def test_node_without_the_library_gets_it_and_the_same_request(session: Session) -> None:
    talk = Talk(session, op.Tick())
    by_name = talk.command
    assert talk.fail(MISSING).command == ("FUNCTION", "LOAD", library().text)
    assert talk.answer(library().name.encode()).command == by_name
    assert talk.answer(DONE).reply is not None
    assert len(session.streams.free) == 1


def test_node_that_receives_a_slot_gets_the_library_too(session: Session) -> None:
    talk = Talk(session, op.Tick())
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
    assert len(session.streams.free) == 1


# --- connections that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [NotSent, Unanswered])
def test_unanswered_request_is_repeated_with_its_stream_and_number(session: Session, failure: type[Exception]) -> None:
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


def test_unsent_request_is_known_not_done(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    stream, number = talk.request
    talk.fail(NotSent()).skip_move_and_sleep()
    time.now_s += RETRY_S
    talk.fail(NotSent()).answer()
    assert type(talk.error) is BackendUnavailableError
    # So the stream is free: its next request is a new one.
    assert Talk(session, op.Tick()).request == (stream, number + 1)


def test_unanswered_request_has_an_unknown_outcome(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    talk.fail(Unanswered()).skip_move_and_sleep()
    time.now_s += RETRY_S
    talk.fail(NotSent()).answer()
    assert type(talk.error) is OutcomeUnknownError
    assert isinstance(talk.error.__cause__, NotSent)
    assert "redis://***@db:7000/1" in str(talk.error)
    assert "hunter2" not in str(talk.error)


def test_an_address_says_how_long_an_operation_is_tried(time: Time) -> None:
    session = examined(Session(parse_url("redis://db?patience=0.5"), BackendOptions(namespace="n")), time)
    talk = Talk(session, ONE)
    talk.fail(NotSent()).skip_move_and_sleep()
    time.now_s += 0.5
    assert isinstance(talk.fail(NotSent()).answer().error, BackendUnavailableError)


def test_unavailable_store_is_logged_once_until_it_answers(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.message for record in caplog.records if vars(record).get("event") == "redis.unreachable"]

    for count in (1, 2):
        one, other = Talk(session, op.Tick()), Talk(session, ONE)
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


def test_start_of_an_unanswered_request_is_recorded(session: Session, time: Time) -> None:
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


@for_each("operation", [ONE, op.CountJobs()])
def test_a_closed_link_ends_a_call_without_another_attempt(operation: op.Operation[Any], time: Time) -> None:
    session = make_session(time)
    assert type(Talk(session, operation).fail(Closed()).error) is BackendUnavailableError
    sent = Talk(session, operation).fail(Unanswered()).skip_move_and_sleep()
    error = sent.fail(Closed()).error
    assert type(error) is (OutcomeUnknownError if operation is ONE else BackendUnavailableError)
    assert "was closed" in str(error)
    assert len(session.streams.unknown) == (operation is ONE)


def test_a_question_without_an_answer_is_no_unknown_outcome(session: Session, time: Time) -> None:
    talk = Talk(session, op.CountJobs())
    time.now_s += RETRY_S
    talk.fail(Unanswered()).answer()
    assert type(talk.error) is BackendUnavailableError
    assert not session.streams.unknown


def test_the_same_operation_object_goes_on_with_the_same_request(session: Session, time: Time) -> None:
    lost = Talk(session, ONE)
    sent, (stream, number) = lost.command, lost.request
    time.now_s += RETRY_S
    lost.fail(Unanswered()).answer()
    assert isinstance(lost.error, OutcomeUnknownError)
    other = Talk(session, op.Tick())
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


def test_request_may_stay_unknown_repeatedly_and_keeps_its_identity(session: Session, time: Time) -> None:
    requests = set()
    for _ in range(4):
        talk = Talk(session, ONE)
        requests.add(talk.request)
        time.now_s += RETRY_S
        assert isinstance(talk.fail(Unanswered()).answer().error, OutcomeUnknownError)
    assert len(requests) == 1
    assert len(session.streams.unknown) == 1


def test_unknown_request_is_forgotten_with_its_operation(session: Session) -> None:
    streams = set()
    gc.freeze()  # else all that other tests have left is looked through fifty times
    for _ in range(50):
        talk = Talk(session, op.Exchange("w"))
        streams.add(talk.request[0])
        talk.break_off()
        del talk
        gc.collect()
        assert not session.streams.unknown
    assert len(streams) == 50


def test_so_many_unknown_requests_are_remembered_and_no_more(session: Session) -> None:
    operations = [op.Draw(number % 1_000) for number in range(UNKNOWN_MAX + 5)]
    sent = []
    for operation in operations:
        talk = Talk(session, operation)
        sent.append(talk.request)
        talk.break_off()
    assert len(session.streams.unknown) == UNKNOWN_MAX
    assert Talk(session, operations[-1]).request == sent[-1]
    assert Talk(session, operations[0]).request not in sent


# --- callers that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [None, Unanswered()], ids=["waiting for an answer", "between two attempts"])
def test_stream_of_a_canceled_caller_is_not_reused(session: Session, failure: Exception | None) -> None:
    talk = Talk(session, ONE)
    sent, (stream, _) = talk.command, talk.request
    if failure is not None:
        talk.fail(failure)
    talk.break_off()
    assert not session.streams.free
    assert Talk(session, op.Tick()).request[0] != stream
    assert Talk(session, ONE).command == sent


def test_the_stream_of_a_dropped_call_is_not_used_again(session: Session) -> None:
    talk = Talk(session, ONE)
    stream, _ = talk.request
    talk._steps.close()
    assert not session.streams.free
    assert Talk(session, op.Tick()).request[0] != stream


@pytest.mark.parametrize("is_sent", [False, True], ids=["waiting to be sent again", "sent again"])
def test_refused_claim_is_withdrawn_as_its_current_request(session: Session, is_sent: bool) -> None:
    claim = op.Exchange("w", limit=1)
    behind = ClaimBehind.of(session, claim)
    assert behind is not None
    behind.refused()
    again = Talk(session, claim)
    assert again.request == (behind.stream.name, behind.stream.request)
    again.fail(NotSent()).answer()
    # Whoever has a slot meanwhile uses the number.
    other = Talk(session, ONE)
    if is_sent:
        sent = again.answer().request
    again.break_off()
    behind.resume()
    withdrawal = next(behind.withdraw())
    assert isinstance(withdrawal, Send)
    request = withdrawal.command[6:8]
    assert request != other.request
    assert not is_sent or request == sent
    other.answer(DONE)
    behind.unanswered()
    assert Talk(session, claim).request == request


def test_claim_behind_a_wait_is_no_call_without_an_answer(session: Session) -> None:
    assert ClaimBehind.of(session, op.Exchange("w", limit=1)) is not None
    assert session.outages.asked_s is None


def test_unsent_claim_of_unknown_outcome_stays_unknown(session: Session) -> None:
    claim = op.Exchange("w", limit=1)
    behind = ClaimBehind.of(session, claim)
    assert behind is not None
    behind.unanswered()
    request = behind.stream.name, behind.stream.request
    again = ClaimBehind.of(session, claim)
    assert again is not None
    again.unsent()
    assert Talk(session, claim).request == request


def test_an_error_nobody_expects_leaves_the_outcome_unknown(session: Session) -> None:
    talk = Talk(session, ONE)
    talk.fail(ZeroDivisionError())
    assert isinstance(talk.error, ZeroDivisionError)
    assert not session.streams.free
    assert list(session.streams.unknown) == [id(ONE)]


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
    talk = Talk(session, op.Tick())
    sent = talk.command
    talk.fail(error)
    assert talk.step == move
    assert talk.answer().command == sent
    assert talk.answer(DONE).reply is not None


def test_node_without_the_script_gets_it_after_a_redirection(singly: Session) -> None:
    talk = Talk(singly, op.Tick())
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


def test_redirection_loop_of_a_request_ends(session: Session, time: Time) -> None:
    redirect_for_ever(Talk(session, op.Tick()), time)
    assert len(session.streams.free) == 1


def test_redirection_loop_of_an_examination_ends(time: Time) -> None:
    redirect_for_ever(Talk(Session(parse_url("redis+cluster://a,b"), BackendOptions()), op.Tick()), time)


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
def test_transient_error_is_retried(session: Session, time: Time, message: str, moves: bool) -> None:
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
    assert len(session.streams.free) == 1


@pytest.mark.parametrize(
    "error",
    [
        driver.ReadOnlyError("You can't write against a read only replica."),
        driver.TryAgainError("Multiple keys request during rehashing of slot"),
        driver.MasterDownError("Link with MASTER is down"),
    ],
)
def test_driver_errors_known_by_class_are_retried_too(session: Session, error: Exception) -> None:
    talk = Talk(session, ONE)
    sent = talk.command
    talk.fail(error).skip_move_and_sleep()
    assert talk.command == sent


def test_transient_error_after_an_unanswered_request_keeps_the_outcome_unknown(session: Session, time: Time) -> None:
    talk = Talk(session, ONE)
    talk.fail(Unanswered()).skip_move_and_sleep()
    time.now_s += RETRY_S
    talk.fail(driver.ResponseError("LOADING Redis is loading the dataset in memory"))
    assert type(talk.error) is OutcomeUnknownError
    assert not session.streams.free


# --- refusals --------------------------------------------------------------------------------------------------------


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
def test_server_refusal_names_the_problem_and_changes_nothing(
    session: Session, error: Exception, kind: type[Exception], words: str
) -> None:
    talk = Talk(session, ONE)
    stream, number = talk.request
    talk.fail(error)
    assert type(talk.error) is kind
    assert words in str(talk.error)
    assert "hunter2" not in str(talk.error)
    assert Talk(session, op.Tick()).request == (stream, number + 1)


def test_full_store_reports_other_operations_as_unchanged(session: Session) -> None:
    talk = Talk(session, op.Cancel(("a",)))
    talk.fail(driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."))
    assert type(talk.error) is BackendFullError
    assert "nothing was changed" in str(talk.error)


def test_an_error_of_the_driver_is_the_cause_of_ours(session: Session) -> None:
    error = driver.ResponseError("ERR what")
    talk = Talk(session, ONE).fail(error)
    assert talk.error.__cause__ is error
    assert isinstance(talk.error, QueueHintError)


def test_refusal_during_an_earlier_attempt_leaves_its_stream_alone(session: Session) -> None:
    talk = Talk(session, ONE)
    talk.fail(Unanswered()).skip_move_and_sleep()
    talk.fail(driver.ResponseError("PATH_CLOSED 0 0 0"))
    assert isinstance(talk.error, Exception)
    assert not session.streams.free


REFUSED_UNREAD = (
    driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    driver.ResponseError("OOM command not allowed"),
    driver.NoPermissionError("User ann has no permissions to run 'hset'"),
    driver.NoPermissionError("WRONGPASS invalid username-password pair"),
    driver.ResponseError("MISCONF Errors writing to the AOF file"),
    driver.ResponseError("WRONGTYPE Operation against a key"),
    driver.ResponseError("CORRUPT job a is gone script: 12ab, on @user_script:1."),
    driver.ResponseError("BAD_SCHEMA 2"),
    driver.ResponseError("BAD_ARGUMENT 9"),
    driver.ResponseError("STALE_REQUEST 12ab"),
    driver.ResponseError("ERR unknown command 'EVALSHA'"),
)
"""Refusals from which nobody learns whether an earlier attempt was carried out."""


@for_each(
    "case", [(error, change) for error in REFUSED_UNREAD for change in (ONE, op.Cancel(("a",)), op.Exchange("w"))]
)
def test_a_refusal_after_a_lost_reply_leaves_the_outcome_unknown(
    case: tuple[Exception, op.Operation[Any]], time: Time
) -> None:
    error, change = case
    talk = Talk(make_session(time), change)
    talk.fail(Unanswered()).skip_move_and_sleep()
    talk.fail(error)
    assert type(talk.error) is OutcomeUnknownError
    assert "nothing was" not in str(talk.error)
    assert talk.error.job_ids == (("a",) if change is ONE else ())
    assert talk.error.__cause__ is error


def test_call_repeated_after_a_lost_reply_stays_unknown_when_refused(session: Session, time: Time) -> None:
    lost = Talk(session, ONE)
    sent = lost.command
    time.now_s += RETRY_S
    assert isinstance(lost.fail(Unanswered()).answer().error, OutcomeUnknownError)
    again = Talk(session, ONE)
    assert isinstance(again.fail(REFUSED_UNREAD[0]).error, OutcomeUnknownError)
    assert Talk(session, ONE).command == sent


# --- duplicates ------------------------------------------------------------------------------------------------------


def test_duplicate_is_fetched_and_its_differing_fields_are_named(session: Session) -> None:
    talk = Talk(session, ONE)
    talk.fail(driver.ResponseError("DUPLICATE_JOB 0"))
    assert script_of(talk) == "spec"
    assert talk.command[-1] == "a"
    talk.answer([b"5", b"default", b"", b"other", b"", b"", b"", b"", b"", b"\n{}"])
    assert isinstance(talk.error, DuplicateJobError)
    assert (talk.error.job_id, talk.error.fields) == ("a", ("task", "priority"))
    assert talk.error.__cause__ is None
    assert len(session.streams.free) == 1


@pytest.mark.parametrize("there", [[], [b"3", b"default", b"", b"t", b"", b"", b"", b"", b"", b"\n{}"]])
def test_duplicate_is_refused_even_if_it_changed_or_expired(session: Session, there: list[bytes]) -> None:
    talk = Talk(session, ONE).fail(driver.ResponseError("DUPLICATE_JOB 0")).answer(there)
    assert isinstance(talk.error, DuplicateJobError)
    assert talk.error.fields == ("content",)


def test_a_key_that_is_taken_needs_no_second_question(session: Session) -> None:
    operation = op.Enqueue((JobSpec(id="a", task="t", key="k", on_conflict="reject"),))
    talk = Talk(session, operation).fail(driver.ResponseError("KEY_TAKEN 0 owner"))
    assert isinstance(talk.error, DuplicateJobError)
    assert (talk.error.job_id, talk.error.key) == ("owner", "k")
