"""All orders in which the requests of a few clients can arrive."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from queuehint.core.jobs.table import JobTable
from queuehint.core.structures.trie import CLASHES, IX, PathTrie, Walk
from queuehint.testing.simulation import SimulationError
from queuehint.testing.simulation.store import Store
from queuehint.values.hint import Path
from tests.simulation.exhaustive import PATHS, explore

pytestmark = pytest.mark.heavy

PAIRS = list(product(PATHS, repeat=2))
NAMES = {path: ":".join(path) or "root" for path in PATHS}


@pytest.mark.slow
def test_two_clients_in_every_order() -> None:
    situations = [explore(["ecf", "ecf"], pair) for pair in PAIRS]
    # The progress of each client says nearly all: requests are served in order of arrival.
    assert all(16 < count < 50 for count in situations)


def test_releases_retries_and_cancels_hold_in_every_order() -> None:
    assert explore(["ecrcf", "ecx"], [("a",), ("a", "b")]) > 50
    assert explore(["ectcf", "ecf"], [(), ("a", "b")]) > 50


@pytest.mark.nightly
@pytest.mark.parametrize("path", PATHS, ids=NAMES.get)
def test_three_clients_in_every_order(path: Path) -> None:
    for pair in PAIRS:
        explore(["ecf", "ecf", "ecf"], [path, *pair])


@pytest.mark.nightly
@pytest.mark.parametrize("programs", [["ecfecf", "ecfecf"], ["ecrctf", "ecxecf"]], ids="-".join)
def test_six_operations_of_two_clients_in_every_order(programs: list[str]) -> None:
    for pair in PAIRS:
        explore(programs, pair)


@pytest.mark.nightly
def test_six_operations_of_three_clients_in_every_order() -> None:
    assert explore(["ecfecf", "ecrecf", "ecxecf"], [("a",), ("a", "a"), ()]) > 30_000


# --- what breaks a promise is found ----------------------------------------------------------------------------------


def test_lost_place_is_found_in_the_fewest_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    put_back = JobTable.put_back

    def to_the_tail(self: JobTable, job: Any, *args: Any) -> None:
        put_back(self, job, *args)
        self.withdraw(job)
        self.vacate(job)
        self.place(job, job.queued_ms)

    monkeypatch.setattr(JobTable, "put_back", to_the_tail)
    with pytest.raises(SimulationError) as caught:
        explore(["ecrc", "ecf"], [("a",), ("a", "b")])
    assert len(caught.value.story) == 4
    assert caught.value.story[-1].endswith(": released")
    assert "places are in order" in caught.value.reason


def test_session_without_receipts_is_equivalent_without_repeats() -> None:
    assert explore(["ecf", "ecf"], [("a",), ()], make=lambda options: Store(options, keeps_receipts=False)) == explore(
        ["ecf", "ecf"], [("a",), ()]
    )


def test_a_gate_that_lets_children_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    walk_on = PathTrie._walk_on

    def past_the_root(self: PathTrie, walk: Walk, node: Any, depth: int) -> int:
        held = node.held
        if depth == 0 and walk.path:
            node.held &= ~CLASHES[IX]
            try:
                return walk_on(self, walk, node, depth)
            finally:
                node.held |= held
        return walk_on(self, walk, node, depth)

    monkeypatch.setattr(PathTrie, "_walk_on", past_the_root)
    with pytest.raises(SimulationError) as caught:
        explore(["ec", "ec"], [(), ("a", "b")])
    assert len(caught.value.story) <= 3
