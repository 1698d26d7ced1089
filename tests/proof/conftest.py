from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.proof.programs import build

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def trie_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("trie", tmp_path_factory.mktemp("trie"))


@pytest.fixture(scope="session")
def jobs_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("jobs", tmp_path_factory.mktemp("jobs"))
