"""A job inside the core: its bounded history."""

from __future__ import annotations

from queuehint.core.structures.job import START_MARK, Job
from queuehint.operations import Verdict
from queuehint.testing.driver import Queue, job
from queuehint.values.outcome import JobError, OutcomeKind, Progress
from queuehint.values.record import JobState


def test_the_last_thousand_log_lines_are_kept() -> None:
    made = Job(job("a"), 1, JobState.STARTED, 0)
    made.log(str(number) for number in range(1000))
    assert made.record().logs == tuple(str(number) for number in range(1000))
    assert not made.record().logs_truncated
    made.log(["last"])
    record = made.record()
    assert (record.logs[0], record.logs[-1], len(record.logs), record.logs_truncated) == ("1", "last", 1000, True)


def test_a_job_without_history_has_an_empty_one() -> None:
    made = Job(job("a"), 1, JobState.QUEUED, 7)
    record = made.record()
    assert (record.errors, record.logs, record.progress, record.seq, record.enqueued_ms) == ((), (), None, None, 7)
    assert made.extras is None
    assert made.blocked == {}


def test_job_of_a_staged_submission_is_hidden_until_commit() -> None:
    queue = Queue(job("a"), budget=1)
    queue.stage("T", *[job(f"b{number}") for number in range(5)])
    jobs = queue.engine.table.jobs
    start = jobs[START_MARK + "T"]
    assert (start.is_start, start.is_hidden) == (True, True)
    assert (jobs["a"].is_start, jobs["a"].is_hidden) == (False, False)
    assert (jobs["b0"].is_start, jobs["b0"].is_hidden) == (False, True)
    queue.commit("T")
    assert not any(jobs[f"b{number}"].is_hidden for number in range(5))
    queue.wait(0)
    assert START_MARK + "T" not in jobs


def test_log_and_progress_require_the_current_lease() -> None:
    queue = Queue(job("a", ["x"]))
    queue.start()
    token = queue.grants["a"].token
    assert queue.say("a", token, ("one", "two")) is Verdict.DONE
    assert queue.say("a", token, progress=Progress(1, 2, "half")) is Verdict.DONE
    for job_id, wrong in (("a", token + 1), ("b", token)):
        assert queue.say(job_id, wrong, ("three",)) is Verdict.LOST
        assert queue.say(job_id, wrong, progress=Progress(2, 2)) is Verdict.LOST
    record = queue.record("a")
    assert (record.logs, record.progress) == (("one", "two"), Progress(1, 2, "half"))
    queue.finish("a")
    assert queue.say("a", token, ("late",)) is Verdict.LOST
    assert queue.record("a").logs == ("one", "two")


def test_logging_and_reporting_change_the_version() -> None:
    queue = Queue(job("a"))
    queue.start()
    versions = [queue.record("a").version]
    queue.say("a", queue.grants["a"].token, ("x",))
    versions.append(queue.record("a").version)
    queue.say("a", queue.grants["a"].token, progress=Progress())
    versions.append(queue.record("a").version)
    assert versions == sorted(set(versions))


def test_the_last_twenty_errors_are_kept_with_attempt_and_time() -> None:
    queue = Queue(job("a", ["x"], max_attempts=30), now_ms=0)
    for number in range(25):
        queue.start()
        queue.fail("a", error=JobError(type="ValueError", message=str(number), attempt=99, at_ms=99))
        queue.now_ms += 10
    errors = queue.record("a").errors
    assert [error.message for error in errors] == [str(number) for number in range(5, 25)]
    assert [error.attempt for error in errors] == list(range(6, 26))
    assert [error.at_ms for error in errors] == list(range(50, 250, 10))


def test_a_failure_without_an_error_leaves_none() -> None:
    queue = Queue(job("a"))
    queue.start()
    queue.settle("a", OutcomeKind.FAILED, final=True)
    assert queue.record("a").errors == ()


def test_a_record_says_whether_a_cancellation_was_asked_for() -> None:
    queue = Queue(job("a"))
    queue.start()
    assert not queue.record("a").cancel_requested
    queue.cancel("a")
    record = queue.record("a")
    assert (record.cancel_requested, record.cause) == (True, "canceled")
    queue.finish("a")
    record = queue.record("a")
    assert (record.state, record.cancel_requested, record.cause) == (JobState.FINISHED, False, "canceled")
