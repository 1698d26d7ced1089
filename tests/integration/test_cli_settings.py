"""The commands for what is set rather than enqueued: weights, schedules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.commands import System, open_system

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.redis


@pytest.fixture
def system(namespace: str) -> Iterator[System]:
    with open_system(namespace) as opened:
        yield opened


def lines_of(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


# --- weights ---------------------------------------------------------------------------------------------------------


def test_weights_are_set_and_listed(system: System) -> None:
    assert system.ok("weights", "set", "5", "ann") == "ann: weight 5\n"
    assert system.ok("weights", "set", "5", "ann") == "ann: nothing to do, it is so already\n"
    assert system.json("weights", "set", "2") == {"user": None, "done": "weight 2", "changed": True}

    assert system.ok("weights", "ls") == "(no user)\t2\nann\t5\n"
    assert lines_of(system.ok("weights", "ls", "--json")) == [{"user": None, "weight": 2}, {"user": "ann", "weight": 5}]
    system.ok("weights", "set", "1", "ann")
    assert system.ok("weights", "ls") == "(no user)\t2\n"
    assert system.run("weights", "set", "0", "ann").exit_code == 2


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
