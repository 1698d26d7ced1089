"""Schemathesis over the description of the HTTP API: no answer that it does not allow, and no failure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from queuehint import Scheduler
from queuehint.web import Access, make_app
from queuehint.web.board import ROUTES
from queuehint.web.openapi import described

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, of the group `test`")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

# Rules between fields are no part of a schema: what fits the schema may be refused, naming the field.
RULED = [checks.positive_data_acceptance]
# Not asked of the application, which would begin a thread: tests run in forks of the process that reads this.
SCHEMA = schemathesis.openapi.from_dict(described(ROUTES, "/api/v1"))
SCHEMA.app = make_app(Scheduler(), auth=lambda _: Access(name="ann", write=True, arguments=True))
FEW = settings(
    max_examples=3, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
)


OPERATIONS = {operation.label: operation for operation in (each.ok() for each in SCHEMA.get_all_operations())}


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_as_described(label: str, mode: Any) -> None:
    @FEW
    @given(OPERATIONS[label].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        case.call_and_validate(excluded_checks=RULED)

    try:
        check()
    except Unsatisfiable:
        assert mode is schemathesis.GenerationMode.NEGATIVE, "only what takes nothing cannot be asked wrongly"


class Orders(SCHEMA.as_state_machine()):  # type: ignore[misc]
    """Orders and questions one after another, with what the answers before have said."""

    def validate_response(self, response: Any, case: Any, **options: Any) -> None:
        case.validate_response(response, excluded_checks=RULED, **options)


TestOrders = pytest.mark.heavy(Orders.TestCase)
TestOrders.settings = settings(FEW, stateful_step_count=8)
