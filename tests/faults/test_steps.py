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
RECORDS, PART, KILLS = 1_500, 100, 2


@pytest.mark.redis
def test_workers_that_are_killed_at_random_repeat_no_more_than_the_steps_under_way(redis_server: Server) -> None:
    command = [sys.executable, "examples/import_in_steps.py", "--records", str(RECORDS), "--part", str(PART)]
    command += ["--kills", str(KILLS), "--part-seconds", "0.05", "--processes", str(KILLS + 1)]
    environment = os.environ | {"QUEUEHINT_URL": redis_server.url}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=240)
    said, _, summary = done.stdout.rpartition("}\n")
    runs: dict[str, dict[str, Any]] = json.loads(said + "}")
    alone, killed = runs["alone"], runs["killed"]
    steps = RECORDS // PART + 1
    assert (alone["effects"], alone["missing"], alone["steps"], alone["losses"]) == (RECORDS, 0, steps, 0)
    assert (killed["killed"], killed["losses"]) == (KILLS, KILLS)
    assert (killed["missing"], killed["steps"]) == (0, steps)
    assert RECORDS <= killed["effects"] <= RECORDS + KILLS * PART
    assert "0 records missing" in summary
