"""The trie equals the program extracted from the proof in every history: states, counts, lines, grants."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.proof.tries import SHAPES, all_histories, compare, random_histories
from tests.support import thorough

pytestmark = pytest.mark.heavy


@pytest.mark.slow
def test_short_histories_agree_with_the_proved_program(trie_program: Path) -> None:
    assert compare(trie_program, all_histories(thorough(5, quick=4))) == thorough(24_585, quick=2_728)


def test_random_histories_agree_with_the_proved_program(trie_program: Path) -> None:
    many = thorough(2000, quick=700)
    assert compare(trie_program, random_histories(range(many), 40)) == many


@pytest.mark.nightly
@pytest.mark.parametrize("first", list(product(range(len(SHAPES)), range(len(SHAPES) + 1))), ids=str)
def test_histories_of_seven_steps_agree_with_the_proved_program(trie_program: Path, first: tuple[int, int]) -> None:
    assert compare(trie_program, all_histories(7, first))


@pytest.mark.nightly
@pytest.mark.parametrize("hundred_thousand", range(10))
def test_million_random_histories_agree_with_the_proved_program(trie_program: Path, hundred_thousand: int) -> None:
    seeds = range((1 + hundred_thousand) * 100_000, (2 + hundred_thousand) * 100_000)
    assert compare(trie_program, random_histories(seeds, 40)) == 100_000


@pytest.mark.nightly
def test_long_random_histories_agree_with_the_proved_program(trie_program: Path) -> None:
    assert compare(trie_program, random_histories(range(20_000), 300)) == 20_000
