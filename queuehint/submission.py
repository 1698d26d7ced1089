"""From job specs to operations: check them, number them, cut them into submissions within the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from queuehint.checks import check_items
from queuehint.errors import InvalidJobTypeError, shown
from queuehint.operations import GATES_PER_SUBMISSION_MAX, JOBS_PER_SUBMISSION_MAX
from queuehint.records import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def checked(specs: Iterable[JobSpec], *, may_lack_id: bool) -> list[JobSpec]:
    """
    Check every spec before the first is sent.

    Args:
        may_lack_id: an empty id is valid: a number is drawn for it later.

    Raises:
        InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError: naming the spec by its index.
    """
    good = []
    for index, spec in enumerate(check_items(specs, parameter="specs")):
        if not isinstance(spec, JobSpec):
            raise InvalidJobTypeError(f"specs[{index}] must be a JobSpec, got {type(spec).__name__}: {shown(spec)}")
        try:
            if may_lack_id and spec.id == "":
                good.append(attrs.evolve(attrs.evolve(spec, id="0").check(), id=""))
            else:
                good.append(spec.check())
        except ValueError as error:
            error.args = (f"specs[{index}]: {error}",)
            raise
    return good


def portions(total: int) -> Iterator[int]:
    """Yield how many numbers to draw at a time."""
    while total > 0:
        yield min(total, JOBS_PER_SUBMISSION_MAX)
        total -= JOBS_PER_SUBMISSION_MAX


def numbered(specs: list[JobSpec], firsts: list[int]) -> list[JobSpec]:
    """Give the specs without an id the numbers drawn for them: up to 1 000 from each of *firsts* on."""
    if not firsts:
        return specs
    numbers = (first + offset for first in firsts for offset in range(JOBS_PER_SUBMISSION_MAX))
    return [spec if spec.id else attrs.evolve(spec, id=str(next(numbers))) for spec in specs]


def submissions(specs: list[JobSpec]) -> Iterator[tuple[JobSpec, ...]]:
    """Cut specs into submissions within the limits, in order."""
    part: list[JobSpec] = []
    gates = 0
    for spec in specs:
        more = sum([len(claim.path) + 1 for claim in spec.claims])
        if len(part) == JOBS_PER_SUBMISSION_MAX or gates + more > GATES_PER_SUBMISSION_MAX:
            yield tuple(part)
            part, gates = [], 0
        part.append(spec)
        gates += more
    if part:
        yield tuple(part)
