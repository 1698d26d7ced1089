from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.programs import build


@pytest.fixture(scope="session")
def trie_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("trie", tmp_path_factory.mktemp("trie"))


@pytest.fixture(scope="session")
def jobs_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("jobs", tmp_path_factory.mktemp("jobs"))
