"""Plans of faults: their names, their limits."""

import attrs
import pytest

from queuehint.errors import InvalidJobError, InvalidJobTypeError
from queuehint.testing import FaultPlan
from queuehint.testing.simulation.faults import PLANS
from tests.each import for_each


def test_each_plan_has_a_name_and_differs_from_the_others() -> None:
    plans = [FaultPlan.named(name) for name in PLANS]
    assert plans[0] == FaultPlan()
    assert len(set(plans)) == len(PLANS)


def test_only_the_first_plan_has_no_faults() -> None:
    assert [FaultPlan.named(name).is_calm for name in PLANS] == [True, False, False, False]


@for_each("name", [field.name for field in attrs.fields(FaultPlan)])
def test_malformed_fault_plan_is_refused_by_name(name: str) -> None:
    field: dict[str, object] = {name: -1}
    with pytest.raises(InvalidJobError, match=name):
        FaultPlan(**field)  # type: ignore[arg-type]
    field = {name: "1"}
    with pytest.raises(InvalidJobTypeError, match=name):
        FaultPlan(**field)  # type: ignore[arg-type]


def test_a_plan_of_another_name_is_refused() -> None:
    with pytest.raises(InvalidJobError, match="chaos"):
        FaultPlan.named("bad luck")
