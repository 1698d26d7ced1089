"""An import in steps whose workers are killed at random: nothing is missing, and only steps under way are repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server

ROOT = Path(__file__).parents[2]
PART = 100


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.parametrize("records, kills", [(1_500, 2), pytest.param(6_000, 8, marks=pytest.mark.nightly)])
def test_killed_workers_repeat_only_steps_under_way(redis_server: Server, records: int, kills: int) -> None:
    command = [sys.executable, "examples/import_in_steps.py", "--records", str(records), "--part", str(PART)]
    command += ["--kills", str(kills), "--part-seconds", "0.05", "--processes", str(kills + 1)]
    environment = os.environ | {"QUEUEHINT_URL": redis_server.url}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=240)
    said, _, summary = done.stdout.rpartition("}\n")
    runs: dict[str, dict[str, Any]] = json.loads(said + "}")
    alone, killed = runs["alone"], runs["killed"]
    steps = records // PART + 1
    assert (alone["effects"], alone["missing"], alone["steps"], alone["losses"]) == (records, 0, steps, 0)
    assert (killed["killed"], killed["losses"]) == (kills, kills)
    assert (killed["missing"], killed["steps"]) == (0, steps)
    assert records <= killed["effects"] <= records + kills * PART
    assert "0 records missing" in summary
