"""The short ways of an enqueue and an exchange leave every key and every reply as the long ways do."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from queuehint.testing.state_machine.styles import CROWDED, SHARING, SPREAD, Style
from tests.property.short_ways import TwoWays, walk_two_ways
from tests.support import thorough

pytestmark = [pytest.mark.redis, pytest.mark.heavy]

STEPS = 100
WALKS = thorough(40, quick=2)


@pytest.mark.parametrize("style", [CROWDED, SPREAD, SHARING])
def test_short_ways_leave_every_key_as_the_long_ways_do(style: Style) -> None:
    taken: Counter[str] = Counter()
    for seed in range(WALKS):
        lockstep = TwoWays(start_ms=1_600_000_000_000)
        try:
            walk_two_ways(lockstep, Random(seed), style, STEPS)
            taken.update(lockstep.count_short())
            lockstep.wind_down()
        except BaseException as error:
            error.add_note(f"The walk from Random({seed}) after {lockstep.steps} steps.")
            raise
        finally:
            lockstep.close()
    assert min(taken["enqueue"], taken["exchange"]) > WALKS, taken
