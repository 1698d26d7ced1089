"""The commands for what is set rather than enqueued: schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.commands import System, open_system

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.redis


@pytest.fixture
def system(namespace: str) -> Iterator[System]:
    with open_system(namespace) as opened:
        yield opened


# --- schedules -------------------------------------------------------------------------------------------------------


def test_schedules_are_listed_paused_run_and_removed(system: System) -> None:
    system.sched.schedule_sync("hourly", system.sched._jobs["step"], every=3600)

    name, due, task, when, last, job_id = system.ok("cron", "ls").rstrip("\n").split("\t")
    assert (name, task, when, last, job_id) == ("hourly", "step", "every 3600 s", "", "")
    assert due.startswith("in ")
    assert system.ok("cron", "pause", "hourly") == "hourly: paused\n"
    assert system.ok("cron", "pause", "hourly") == "hourly: nothing to do, it is so already\n"
    told = system.json("cron", "ls")
    assert (told["name"], told["every_ms"], told["paused"], told["missed"]) == ("hourly", 3_600_000, True, "skip")
    assert system.json("cron", "resume", "hourly") == {"name": "hourly", "done": "resumed", "changed": True}

    made = system.ok("cron", "run", "hourly").strip()
    assert "schedule: hourly" in system.ok("show", made)
    assert system.run("cron", "rm", "hourly").exit_code == 2
    assert system.ok("cron", "rm", "hourly", "--yes") == "hourly: removed\n"
    assert system.ok("cron", "ls") == ""


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
def test_a_schedule_that_is_not_there_ends_a_command_with_1(system: System, verb: str) -> None:
    result = system.run("cron", verb, "nix")

    assert result.exit_code == 1
    assert "no schedule 'nix'" in result.stderr
