"""The engine accepts a settlement exactly if the program extracted from the proof of leases does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.leases import compare
from tests.proof.programs import build
from tests.support import thorough

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def leases_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("leases", tmp_path_factory.mktemp("leases"))


def test_settlements_count_exactly_where_they_do_in_the_proved_program(leases_program: Path) -> None:
    for seed in range(0, thorough(3000, quick=100), 100):
        counted, late = compare(leases_program, range(seed, seed + 100), 60)
        assert counted > 500
        assert late > 500
