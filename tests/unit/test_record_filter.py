"""Checks of record filters."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint.errors import InvalidHintError, InvalidJobError, InvalidJobTypeError
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from tests.each import for_each
from tests.support import HostileStr

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def test_checked_filter_has_plain_values_and_ordered_states() -> None:
    checked = RecordFilter(user=HostileStr("ann"), states=(FAILED, QUEUED, FAILED), path=("a",)).check()
    assert type(checked.user) is str
    assert checked.user == "ann"
    assert checked.states == (QUEUED, FAILED)
    assert RecordFilter().check() == RecordFilter()


@for_each(
    "fields, error",
    [
        ({"user": ""}, InvalidJobError),
        ({"service": 7}, InvalidJobTypeError),
        ({"task": "a\n"}, InvalidJobError),
        ({"pool": "p" * 257}, InvalidJobError),
        ({"parent": ""}, InvalidJobError),
        ({"parent": 7}, InvalidJobTypeError),
        ({"waits_for": "a\n"}, InvalidJobError),
        ({"states": "FAILED"}, InvalidJobTypeError),
        ({"states": ("FAILED",)}, InvalidJobTypeError),
        ({"path": ("",)}, InvalidHintError),
        ({"since_ms": 1.5}, InvalidJobTypeError),
        ({"until_ms": 10**18}, InvalidJobError),
        ({"since_ms": 2, "until_ms": 1}, InvalidJobError),
    ],
)
def test_malformed_filter_is_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        RecordFilter(**fields).check()


@pytest.mark.parametrize(
    "states, is_unfinished, is_over",
    [((), True, True), ((QUEUED,), True, False), ((FAILED,), False, True), ((STARTED, CANCELED), True, True)],
)
def test_a_filter_says_which_records_may_pass(states: tuple[JobState, ...], is_unfinished: bool, is_over: bool) -> None:
    wanted = RecordFilter(states=states)
    assert (wanted.is_unfinished, wanted.is_over) == (is_unfinished, is_over)
