"""
Strategies for the types of queuehint, for `hypothesis.strategies.from_type`.

Hypothesis calls its plug-ins when it is imported, in programs too that have nothing to do with queuehint. So what it
calls is a module of its own, `_queuehint_hypothesis`, which loads nothing: if queuehint was imported first, the types
are registered at once, and else right after it is imported; queuehint itself imports nothing of the kit. Each strategy
is made when it is first drawn from.

>>> from hypothesis import find, strategies as st
>>> from queuehint import JobSpec
>>> find(st.from_type(JobSpec), lambda job: job.claims != ()).claims
(Claim(path=(), mode='exclusive'),)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from queuehint import operations
from queuehint.handlers.context import Children, Retry, Snooze
from queuehint.operations import Operation
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import JobError, Outcome, Progress
from queuehint.values.policy import Backoff, Policy, Retention
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence, Schedule
from queuehint.values.spec import Dependency, JobSpec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_NAMES: dict[type[Any], str] = {
    Backoff: "backoffs",
    Children: "children",
    Claim: "claims",
    Dependency: "dependencies",
    JobError: "errors",
    JobSpec: "jobs",
    Limit: "limits",
    Operation: "operations",
    Outcome: "outcomes",
    Policy: "policies",
    Progress: "progresses",
    RecordFilter: "record_filters",
    Recurrence: "recurrences",
    Retention: "retentions",
    Retry: "retries",
    Schedule: "schedules",
    Snooze: "snoozes",
}
"""For each type the function in `queuehint.testing.strategies` that makes its strategy."""


def register() -> None:
    """Register strategies for the public types. A second call changes nothing."""
    from hypothesis import strategies as st

    for registered, name in _NAMES.items():
        st.register_type_strategy(registered, partial(_make, name))
    for kind in vars(operations).values():
        if isinstance(kind, type) and issubclass(kind, Operation) and kind is not Operation:
            st.register_type_strategy(kind, _make_operation)


def _make(name: str, _: type[Any]) -> SearchStrategy[Any]:
    from queuehint.testing import strategies

    made: SearchStrategy[Any] = getattr(strategies, name)()
    return made


def _make_operation(kind: type[Any]) -> SearchStrategy[Any]:
    from queuehint.testing import strategies

    return strategies.operations(kinds=[kind])
