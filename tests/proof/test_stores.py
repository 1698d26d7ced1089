"""After each operation the gates of a store equal those of the program extracted from the proof."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from queuehint.backends.journal.snapshots import compaction
from queuehint.core.engine import Engine
from queuehint.operations import BUDGET
from queuehint.testing.state_machine.styles import ALL_AT_ONCE, MIXED, Style
from tests.proof.stores import Gates, ProvedLockstep, gates_of_engine
from tests.property.agreement import walk_together
from tests.property.test_sqlite_agreement import walk
from tests.support import thorough

pytestmark = pytest.mark.heavy


def compare_sqlite(program: Path, seed: int, steps: int) -> None:
    watched: list[Gates] = []

    def watch(engine: Engine) -> Callable[[Engine], None]:
        watched.append(Gates(engine))
        return lambda stored: watched[0].see(gates_of_engine(watched[0], stored))

    walk(seed, steps, watch)
    assert watched[0].compare(program) == steps


def compare_redis(program: Path, seed: int, style: Style, steps: int, budget: int) -> None:
    lockstep = ProvedLockstep(budget=budget)
    try:
        walk_together(lockstep, Random(seed), style, steps)
        lockstep.wind_down()
    finally:
        lockstep.close()
    assert lockstep.gates.compare(program) >= steps


@pytest.mark.slow
def test_file_gates_agree_with_the_proved_program(trie_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is closed, or cut off, and opened again now and then."""
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 30)
    compare_sqlite(trie_program, 3, 150)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_file_gates_agree_with_the_proved_program_at_length(
    trie_program: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 30)
    compare_sqlite(trie_program, seed, 400)


@pytest.mark.redis
@pytest.mark.parametrize("budget", [1, 3, BUDGET])
def test_redis_gates_agree_with_the_proved_program(trie_program: Path, budget: int) -> None:
    for seed in range(budget, budget + thorough(5, quick=1)):
        compare_redis(trie_program, seed, MIXED, 70, budget)


@pytest.mark.nightly
@pytest.mark.redis
@pytest.mark.parametrize("budget", [1, 2, 5, 20, BUDGET])
@pytest.mark.parametrize("style", [MIXED, ALL_AT_ONCE], ids=["mixed", "all"])
def test_redis_gates_agree_with_the_proved_program_at_length(trie_program: Path, style: Style, budget: int) -> None:
    for seed in range(10):
        compare_redis(trie_program, seed, style, 400, budget)
