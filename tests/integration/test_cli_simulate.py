"""`queuehint simulate`: seeds from a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from queuehint.cli.app import app
from queuehint.testing.simulation.__main__ import main
from tests.commands import CliRunner

WORLDS = """
import asyncio
from queuehint.testing import simulate

seen = []

async def once(name):
    seen.append(name)
    await asyncio.sleep(1)

def careless():
    simulate({"once": once}, [("once", ["a"], ["a"])], setup=seen.clear, at_end=lambda: len(seen) == 1)

def calm():
    simulate({"once": once}, [("once", ["a"], ["a"])], faults="none", setup=seen.clear)
"""


@pytest.fixture(autouse=True)
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "simulated_worlds.py").write_text(WORLDS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "simulated_worlds", raising=False)


def test_worlds_of_an_application_are_played() -> None:
    done = CliRunner().invoke(app, ["simulate", "simulated_worlds:calm", "--seed", "5", "--seeds", "3"])
    assert (done.exit_code, done.output) == (0, "seeds 5 to 7: every promise was kept\n")
    assert "QUEUEHINT_SEED" not in os.environ


def test_a_seed_that_fails_is_told_and_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEHINT_SEED", "1000000")
    done = CliRunner().invoke(app, ["simulate", "simulated_worlds:careless", "--seeds", "300"])
    assert done.exit_code == 1
    first, *story, command = done.output.splitlines()
    assert first.startswith("the condition at the end does not hold (seed ")
    assert len(story) < 12
    seed = command.partition("QUEUEHINT_SEED=")[2].partition(" ")[0]
    again = CliRunner().invoke(app, ["simulate", "simulated_worlds:careless", "--seed", seed])
    assert (again.exit_code, again.output) == (1, done.output)
    assert os.environ["QUEUEHINT_SEED"] == "1000000"


@pytest.mark.parametrize(
    "world",
    [
        "nothing",
        "no_such_module:world",
        "simulated_worlds:no_such_world",
        "simulated_worlds:seen",
        "simulated_worlds:once",
        ".simulated_worlds:calm",
        ":calm",
    ],
)
def test_malformed_world_is_refused(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(app, ["simulate", world]).exit_code == 2
    with pytest.raises(SystemExit):
        main([world])
    assert "error:" in capsys.readouterr().err


def test_no_seeds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(app, ["simulate", "simulated_worlds:calm", "--seeds=0"]).exit_code == 2
    with pytest.raises(SystemExit):
        main(["simulated_worlds:calm", "--seeds=0"])
    assert "--seeds must be 1 or more" in capsys.readouterr().err
