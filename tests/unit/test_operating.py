"""Operators' commands, step by step."""

from __future__ import annotations

import pytest

from queuehint import operations as op
from queuehint.errors import BackendUnavailableError
from queuehint.scheduler.operating import _reached


@pytest.mark.parametrize("value, reached", [(b"9", 9), (None, 7)])
def test_cancel_path_reads_the_tally_of_a_cut_sweep_once(value: bytes | None, reached: int) -> None:
    steps = _reached(op.SweptPath(more=True, reached=7, number=5))
    assert next(steps) == op.Pull(op.TALLIES, "5")
    with pytest.raises(StopIteration) as end:
        steps.send(op.Pulled(value))
    assert end.value.value == reached


def test_cancel_path_returns_the_known_count_when_the_store_fails() -> None:
    steps = _reached(op.SweptPath(more=True, reached=7, number=5))
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.throw(BackendUnavailableError("gone"))
    assert end.value.value == 7
