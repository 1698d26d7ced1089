"""The event log: what an event remembers, and what it must not."""

from __future__ import annotations

from queuehint import JobState
from queuehint.core.structures.event_log import Journal
from queuehint.core.structures.job import Job
from queuehint.testing.driver import job
from queuehint.values.event import EventKind
from queuehint.values.outcome import JobError


def test_an_error_is_told_by_one_event() -> None:
    journal = Journal()
    journal.follow(None, 1)
    failing = Job(job("a"), 1, JobState.FAILED, 0)
    journal.error = JobError(type="ValueError", message="no")
    for kind in (EventKind.CANCELED, EventKind.FAILED, EventKind.FAILED):
        journal.note(failing, kind, JobState.QUEUED)
    assert [event.error_type for event in journal.kept] == [None, "ValueError", None]
    assert journal.error is None
