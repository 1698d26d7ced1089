"""Failed attempts: their log lines, and the shown part of a traceback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from queuehint.errors import PathClosedError
from queuehint.handlers.codec import JsonCodec
from queuehint.handlers.forks import in_one_process
from queuehint.values.ids import this_process
from queuehint.values.outcome import Grant
from queuehint.values.policy import Backoff, Policy
from queuehint.values.spec import JobSpec
from queuehint.worker.failures import TASKS_COUNTED_MAX, Failures, GivenBackLog, whole_traceback
from queuehint.worker.outcomes import OutcomeBuilder

POLICY = Policy(max_attempts=3, backoff=Backoff(base=2, jitter=0), timeout_ms=1500)


def grant(attempt: int = 1, losses: int = 0) -> Grant:
    spec = JobSpec(id="job-1", task="fetch", policy=POLICY)
    return Grant(spec=spec, token=7, attempt=attempt, losses=losses, lease_until_ms=0)


def caught(function: Callable[..., Any], *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError


def missing() -> None:
    {}["missing"]  # type: ignore[index]


def tell(error: BaseException, attempt: int = 1, why_stop: str | None = None, **options: Any) -> None:
    redact = options.pop("redact", None)
    OutcomeBuilder(JsonCodec(), Failures(redact, **options)).of_error(grant(attempt), error, why_stop)


def facts(record: logging.LogRecord, *names: str) -> list[Any]:
    return [vars(record)[name] for name in names]


def test_failed_attempt_is_logged_with_job_number_and_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tell(caught(missing))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "job job-1 (fetch) failed, attempt 1 of 3, next in 2 s: KeyError: 'missing'"
    assert (record.exc_info, record.exc_text) == (None, None), "the last one brings a traceback"
    assert facts(record, "event", "job_id", "task", "attempt", "max_attempts", "retry_in_s", "error") == [
        *("job.retry", "job-1", "fetch", 1, 3, 2.0, "KeyError"),
    ]


def test_last_attempt_is_logged_with_its_traceback_by_any_formatter(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(caught(missing), attempt=3)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None, "what collects errors wants the exception itself"
    # Where an application sets up no logging, Python prints by this handler what comes to no other.
    assert logging.getLogger("queuehint").handlers == []
    assert logging.lastResort is not None
    logging.lastResort.handle(record)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "job job-1 (fetch) failed for good, attempt 3 of 3: KeyError: 'missing'"
    assert said[1] == "Traceback (most recent call last):"
    assert said[-1] == "KeyError: 'missing'"


def test_every_attempt_has_its_traceback_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tell(caught(missing))
    assert "KeyError: 'missing'" in (caplog.records[0].exc_text or "")


def test_logged_failure_is_redacted(caplog: pytest.LogCaptureFixture) -> None:
    tell(caught(missing), attempt=3, redact=lambda text: text.replace("missing", "***"))
    (record,) = caplog.records
    assert record.exc_info is None, "it would tell all"
    assert record.exc_text is not None
    assert "missing" not in caplog.text + str(vars(record))
    assert record.getMessage().endswith("KeyError: '***'")


def test_failed_redaction_and_log_filter_let_the_attempt_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> Any:
        raise ValueError

    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger = logging.getLogger("queuehint.worker")
    logger.addFilter(fails)
    try:
        described = Failures(fails).describe("KeyError", "'missing'", caught(missing))
    finally:
        logger.removeFilter(fails)
    assert described.message == "<withheld: redact failed>"
    assert not caplog.records


def test_without_texts_of_errors_their_type_is_left(caplog: pytest.LogCaptureFixture) -> None:
    tell(caught(missing), attempt=3, log_errors=False)
    (record,) = caplog.records
    assert record.getMessage() == "job job-1 (fetch) failed for good, attempt 3 of 3: KeyError"
    assert (record.exc_info, record.exc_text) == (None, None)
    assert "missing" not in str(vars(record))


def test_logged_text_is_one_line_without_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    tell(caught(lambda: int("x\n\x1b[31m" + 1000 * "y")))
    text = caplog.records[0].getMessage()
    assert text.isprintable()
    assert len(text) < 600
    tell(RuntimeError("a\n\x1b[31mb"), attempt=3)
    assert "\x1b" not in (caplog.records[1].exc_text or "")


def test_a_timeout_says_how_long_it_was(caplog: pytest.LogCaptureFixture) -> None:
    tell(asyncio.CancelledError(), why_stop="timeout")
    assert caplog.messages[0].endswith("timeout: the handler ran longer than its timeout of 1.5 s")


def test_a_handler_that_exits_is_told(caplog: pytest.LogCaptureFixture) -> None:
    tell(SystemExit(3))
    (record,) = caplog.records
    assert facts(record, "event", "error") == ["job.exit", "SystemExit"]
    assert "which counts as loss 1 of 3: SystemExit: 3" in record.getMessage()


def test_a_traceback_has_no_frames_of_ours() -> None:
    async def main() -> None:
        waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def handler() -> None:
            await waited

        task = asyncio.ensure_future(in_one_process(handler(), this_process.mark))
        await asyncio.sleep(0)
        waited.set_exception(ValueError("from afar"))
        with pytest.raises(ValueError, match="from afar") as caught:
            await task
        error = caught.value
        # From Python 3.12 on asyncio awaits what is no coroutine of its own in one.
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code is not in_one_process.__code__:
            error.__traceback__ = error.__traceback__.tb_next
        text = whole_traceback(error)
        assert "forks.py" not in text
        assert "await waited" in text

    asyncio.run(main())


def refused() -> None:
    JsonCodec().dumps({"x": object()}, {}, bytes_max=10)


def test_traceback_of_a_refusal_ends_at_the_public_call() -> None:
    def again() -> None:
        try:
            refused()
        except ValueError as error:
            raise ExceptionGroup("two", [error, PathClosedError("a")]) from error

    for error in (caught(refused), caught(again)):
        text = whole_traceback(error)
        assert "JsonCodec().dumps" in text
        assert "queuehint/handlers" not in text


def test_an_error_in_this_package_alone_keeps_its_frames() -> None:
    error = caught(JsonCodec().dumps, {"x": object()})
    assert error.__traceback__ is not None
    ours = error.with_traceback(error.__traceback__.tb_next)
    assert isinstance(ours, TypeError) or "queuehint/handlers" in whole_traceback(ours)


class Minutes:
    """A clock of given-back jobs."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def given_back(log: GivenBackLog, task: str, number: int) -> None:
    message = "no job() is named %s: job %s is given back"
    log.log("job.unknown_task", task, message, (task, f"j{number}"), {"task": task})


def test_released_jobs_are_logged_once_a_minute_per_task(caplog: pytest.LogCaptureFixture) -> None:
    clock = Minutes()
    log = GivenBackLog(clock)
    for number in range(3000):
        given_back(log, "fresh" if number else "other", number)
        clock.s += 0.01
    assert [record.getMessage() for record in caplog.records] == [
        "no job() is named other: job j0 is given back",
        "no job() is named fresh: job j1 is given back",
    ]
    clock.s += 60
    log.flush()
    (record,) = caplog.records[2:]
    assert record.getMessage() == (
        "no job() is named fresh: job j2999 is given back, and 2997 more jobs like it since the last such line"
    )
    assert facts(record, "event", "task", "jobs") == ["job.unknown_task", "fresh", 2998]
    log.flush(at_end=True)
    given_back(log, "other", 1)
    assert len(caplog.records) == 4, "nothing was counted, and the minute of this task has passed"


def test_jobs_released_within_a_minute_are_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log = GivenBackLog(Minutes())
    given_back(log, "fresh", 1)
    given_back(log, "fresh", 2)
    log.flush()
    assert len(caplog.records) == 1
    log.flush(at_end=True)
    log.flush(at_end=True)
    assert [facts(record, "jobs") for record in caplog.records] == [[1], [1]]


def test_given_back_log_counts_at_most_a_thousand_tasks(caplog: pytest.LogCaptureFixture) -> None:
    clock = Minutes()
    log = GivenBackLog(clock)
    for number in range(TASKS_COUNTED_MAX):
        given_back(log, f"task{number}", number)
    given_back(log, "task0", TASKS_COUNTED_MAX)
    for number in range(TASKS_COUNTED_MAX, TASKS_COUNTED_MAX + 5):
        given_back(log, f"task{number}", number)
    assert len(log) == TASKS_COUNTED_MAX
    counted = [record for record in caplog.records if facts(record, "task") == ["task0"]]
    assert [facts(record, "jobs") for record in counted] == [[1], [1]], "none that was counted is lost"


def grouped() -> None:
    try:
        {}["owner-of-7"]  # type: ignore[index]
    except KeyError as error:
        cause = error
    inner = ExceptionGroup("inner", [OSError("disk"), ValueError("row 8")])
    failed = ValueError("row 7 has no owner")
    failed.__cause__ = cause
    raise ExceptionGroup("rows", [failed, inner])


def described(error: BaseException, **options: Any) -> Any:
    return OutcomeBuilder(JsonCodec(), Failures(**options)).of_error(grant(), error).error


def test_stored_failure_names_members_of_groups_and_causes() -> None:
    stored = described(caught(grouped))
    assert stored.type == "ExceptionGroup"
    assert stored.message == (
        "rows (2 sub-exceptions); with ValueError: row 7 has no owner; caused by KeyError: 'owner-of-7'; "
        "with OSError: disk; with ValueError: row 8"
    )
    assert 'caused by KeyError:\n  File "' in stored.traceback
    assert "owner-of-7" in stored.traceback, "the line of the source"


def test_stored_failure_counts_errors_beyond_the_named_ones() -> None:
    error = ExceptionGroup("rows", [ValueError(str(number)) for number in range(10)])
    assert described(error).message.endswith("; with ValueError: 5; and 4 more")


def test_stored_failure_keeps_its_bound_and_room_for_related_errors() -> None:
    error = RuntimeError("x" * 10_000)
    error.__cause__ = KeyError("y" * 10_000)
    message = described(error).message
    assert len(message) == 4096
    assert "…; caused by KeyError: 'yyy" in message
    assert message.endswith("yyy…")


def test_related_errors_are_redacted_before_they_are_cut() -> None:
    secret = "secret-" + "s" * 1000
    error = RuntimeError("failed")
    error.__cause__ = KeyError(secret)
    assert (
        described(error, redact=lambda text: text.replace(secret, "***")).message == "failed; caused by KeyError: '***'"
    )


def test_errors_that_cause_one_another_are_named_once() -> None:
    first, second = RuntimeError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert described(first).message == "first; caused by ValueError: second"
    deep: Exception = ValueError("leaf")
    for _ in range(5000):
        deep = ExceptionGroup("", [deep])
    assert len(described(deep).message) < 100


def test_related_error_whose_text_raises_is_named_by_its_type() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    error = RuntimeError("failed")
    error.__cause__ = Broken()
    assert described(error).message.endswith("Broken: <Broken>")
