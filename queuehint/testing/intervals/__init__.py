"""
Intervals: any queue judged from outside, by the times seen by its clients.

Needs neither Hypothesis nor pytest.
"""

from __future__ import annotations

from queuehint.testing.intervals.check import check_intervals, examine_intervals
from queuehint.testing.intervals.lines import IntervalLog, read_intervals
from queuehint.testing.intervals.recorder import IntervalRecorder
from queuehint.testing.intervals.values import JobIntervals, RunInterval

__all__ = [
    "IntervalLog",
    "IntervalRecorder",
    "JobIntervals",
    "RunInterval",
    "check_intervals",
    "examine_intervals",
    "read_intervals",
]
