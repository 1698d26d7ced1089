"""Errors of the kit: each is shown alone, without errors that were caught on the way to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuehint import DrainTimeoutError, Scheduler
from queuehint.testing import SimulationError, check_queue, check_serial_equivalence, simulate


async def fail(*_: Any) -> None:
    raise ValueError("mine")


def wake() -> None:
    check_queue(lambda: 1 // 0, wakes=True)  # type: ignore[arg-type, return-value]


def play() -> None:
    simulate({"fail": fail}, [("fail", ["a"])], at_end=lambda: False, faults="none")


def interleave() -> None:
    check_serial_equivalence({"fail": fail}, [("fail", ["a"])], dict)


def drain() -> None:
    sched = Scheduler("memory://")
    sched.job(name="fail")(fail).enqueue_sync()
    sched.drain_sync(timeout=0)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    "check, expected",
    [(wake, ZeroDivisionError), (play, SimulationError), (interleave, ValueError), (drain, DrainTimeoutError)],
)
def test_error_of_a_check_shows_nothing_of_the_loop(check: Callable[[], None], expected: type[BaseException]) -> None:
    with pytest.raises(expected) as caught:
        check()
    assert not any("event loop" in str(error) for error in chain(caught.value))
