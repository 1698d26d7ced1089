"""An example of each operation, by the types of its fields."""

from __future__ import annotations

from typing import Any, Final, Literal, get_type_hints

import attrs

from queuehint import operations as op
from queuehint.values.event import EventFilter, EventKind
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import Outcome, OutcomeKind, Progress
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import Dependency, JobSpec

_SPEC: Final = JobSpec(id="a", task="t", claims=(Claim(("a",)),))
_VALUES: Final[dict[Any, Any]] = {
    str: "a",
    str | None: "a",
    str | Literal[""]: "a",  # noqa: PYI051 - as it is resolved
    int: 1,
    int | None: 1,
    bytes: b"1",
    tuple[str, ...]: ("a",),
    tuple[tuple[str, int], ...]: (("a", 1),),
    tuple[Dependency, ...]: (Dependency("b"),),
    op.ScheduleChange: "pause",
    JobSpec: _SPEC,
    tuple[JobSpec, ...]: (_SPEC,),
    Limit: Limit(path=("a",), most=1),
    Progress: Progress(),
    tuple[op.Note, ...]: (op.Note("a", 1, ("line",), Progress(), b"1"),),
    RecordFilter: RecordFilter(user="a"),
    Recurrence: Recurrence(every_ms=1000),
}
_SETTLED: Final = Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED, result=b"1")


def example(kind: type[op.Operation[Any]]) -> op.Operation[Any]:
    """Return an operation with something in each field that has no default."""
    if kind is op.Exchange:
        return op.Exchange("a", settle=(_SETTLED,))
    if kind is op.Follow:
        return op.Follow(1, 1, (EventFilter(kinds=(EventKind.FAILED,), path=("a",), user="a", flow="a"),))
    fields: Any = attrs.fields(kind)  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    return kind(*[_VALUES[hints[field.name]] for field in fields if field.default is attrs.NOTHING])
