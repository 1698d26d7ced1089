"""A strategy for faults of a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from queuehint.testing.simulation import FaultPlan


def fault_plans(*, most: float = 0.2) -> SearchStrategy[FaultPlan]:
    """
    Generate plans of faults for simulations.

    Shrinks towards the plan by which nothing goes wrong, fault by fault, and towards the times a plan has by default.

    Args:
        most: the greatest probability of one kind of fault for each request, 0 to 1.

    Raises:
        InvalidArgument: *most* is no probability.

    >>> from hypothesis import find
    >>> find(fault_plans(), lambda plan: not plan.lose_reply)
    FaultPlan(lose_request=0.0, lose_reply=0.0, double_request=0.0, ...)

    .. versionadded:: 1.0.0
    """
    from queuehint.testing.simulation import FaultPlan

    if type(most) not in (int, float) or not 0 <= most <= 1:
        raise InvalidArgument(f"most={most!r} must be a number from 0 to 1")
    # One in three kinds of fault happens, and how often is said in hundredths: both read better than any float.
    often = st.sampled_from((0, 0, 1)).flatmap(lambda happens: st.integers(0, 100 * happens))
    fields: dict[str, SearchStrategy[Any]] = {"rollback": st.integers(0, 50)}
    for field in attrs.fields(FaultPlan):
        if isinstance(field.default, float):
            fields[field.name] = often.map(lambda hundredths: most * hundredths / 100)
        elif field.name.endswith("_ms"):
            assert isinstance(field.default, int)
            fields[field.name] = st.just(field.default) | st.integers(1, 2 * field.default)
    return st.builds(FaultPlan, **fields)
