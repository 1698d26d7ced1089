"""
Strategies for Hypothesis: places, jobs, graphs of jobs, schedules, operations, faults.

All generated values are valid, so that a failure is a fault of the code under test. Sizes are small by default (few
segments, little depth), so that jobs conflict often and counterexamples stay readable. Values shrink towards no claims,
one job, exclusive mode and no edges.

The same strategies serve `hypothesis.strategies.from_type` for the public types: `queuehint.testing.registration`.

>>> from hypothesis import find
>>> find(jobs(), lambda job: len(job.claims) == 1).claims
(Claim(path=(), mode='exclusive'),)
"""

from __future__ import annotations

from queuehint.testing.strategies.places import HOSTILE, claims, hints
from queuehint.testing.strategies.recurring import NOW_MS, recurrences, schedules
from queuehint.testing.strategies.specs import backoffs, job_graphs, jobs, policies
from queuehint.testing.strategies.trouble import fault_plans
from queuehint.testing.strategies.values import (
    children,
    dependencies,
    errors,
    limits,
    outcomes,
    progresses,
    record_filters,
    retentions,
    retries,
    snoozes,
)
from queuehint.testing.strategies.vocabulary import operations

__all__ = [
    "HOSTILE",
    "NOW_MS",
    "backoffs",
    "children",
    "claims",
    "dependencies",
    "errors",
    "fault_plans",
    "hints",
    "job_graphs",
    "jobs",
    "limits",
    "operations",
    "outcomes",
    "policies",
    "progresses",
    "record_filters",
    "recurrences",
    "retentions",
    "retries",
    "schedules",
    "snoozes",
]
