"""The commands for settings of a namespace: limits, weights, schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.commands import System, open_system

pytestmark = pytest.mark.redis


@pytest.fixture
def system(namespace: str) -> Iterator[System]:
    with open_system(namespace) as opened:
        yield opened


def lines_of(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


# --- limits ----------------------------------------------------------------------------------------------------------


def test_limits_are_set_listed_and_dropped(system: System) -> None:
    for section in ("intro", "end"):
        system.enqueue("edit", "doc1", section)

    assert system.ok("limits", "set", "doc1", "--most", "1", "--rate", "5/1min") == "doc1: limited\n"
    assert system.json("limits", "set", "--max-pending", "100") == {"path": None, "done": "limited", "changed": True}
    assert system.ok("limits", "set", "tenants", "--most", "2", "--each") == "tenants: limited\n"
    assert len(system.claim(2)) == 1

    assert system.ok("limits", "ls").splitlines() == [
        "(no path)\t\t\t\t2 of 100",
        "doc1\t\t1 of 1\t5 in 60 s\t",
        "tenants\teach child\t0 of 2\t\t",
    ]
    told = lines_of(system.ok("limits", "ls", "--json"))[1]
    assert (told["path"], told["most"], told["rate"]) == ("doc1", 1, {"starts": 5, "per_ms": 60_000})
    assert system.ok("limits", "drop", "doc1") == "doc1: not limited any more\n"
    assert system.ok("limits", "drop", "doc1") == "doc1: nothing to do, it has no limit\n"
    for words in ((), ("doc1", "--everywhere")):
        refused = system.run("limits", "drop", *words)
        assert refused.exit_code == 2
        assert "--everywhere for the limits of the whole namespace" in refused.stderr
    assert len(system.ok("limits", "ls").splitlines()) == 2
    assert system.ok("limits", "drop", "--everywhere") == "the whole namespace: not limited any more\n"
    assert system.ok("limits", "drop", "--everywhere") == "the whole namespace: nothing to do, it has no limit\n"
    assert system.ok("limits", "set", "--max-pending", "100") == "the whole namespace: limited\n"


def test_limits_of_task_and_pool_are_set_listed_and_dropped(system: System) -> None:
    for section in ("intro", "end"):
        system.enqueue("edit", "doc1", section)
    assert system.ok("limits", "set", "--task", "edit", "--most", "1") == "edit: limited\n"
    limited = system.ok("limits", "set", "--pool", "gpu", "--rate", "10/1s", "--max-pending", "9")
    assert limited == "gpu: limited\n"
    assert len(system.claim(2)) == 1
    assert system.ok("limits", "ls").splitlines() == ["task edit\t\t1 of 1\t\t", "pool gpu\t\t0\t10 in 1 s\t0 of 9"]
    told = lines_of(system.ok("limits", "ls", "--json"))
    assert [(one["path"], one["task"], one["pool"]) for one in told] == [(None, "edit", None), (None, None, "gpu")]
    (waiting,) = [line.split("\t")[0] for line in system.ok("ls", "--state", "QUEUED").splitlines()]
    assert "waits for a limit of --task edit" in system.ok("why", waiting)
    dropped = system.json("limits", "drop", "--task", "edit")
    assert dropped == {"task": "edit", "done": "not limited any more", "changed": True}
    assert system.ok("limits", "drop", "--pool", "gpu") == "gpu: not limited any more\n"
    assert system.ok("limits", "ls") == ""


@pytest.mark.parametrize(
    "words",
    [
        ("doc1",),
        ("doc1", "--task", "t", "--most", "1"),
        ("--task", "t", "--pool", "p", "--most", "1"),
        ("--pool", "p", "--most", "1", "--each"),
        ("doc1", "--most", "0"),
        ("doc1", "--rate", "many"),
        ("doc1", "--rate", "5/999999999w"),
        ("--most", "1"),
        ("a::b", "--most", "1"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(system: System, words: tuple[str, ...]) -> None:
    assert system.run("limits", "set", *words).exit_code == 2
    assert system.ok("limits", "ls") == ""


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


# --- shared values ---------------------------------------------------------------------------------------------------


def test_keys_of_shared_values_are_listed_without_their_values(system: System) -> None:
    assert system.ok("xcom", "ls") == ""
    for key in ("b", "a:1", "a:2"):
        system.sched.xcom.push_sync(key, "secret")
    system.sched.xcom.push_sync("other", 1, namespace="n")

    assert system.ok("xcom", "ls") == "a:1\na:2\nb\n"
    assert system.ok("xcom", "ls", "a:", "--after", "a:1") == "a:2\n"
    assert lines_of(system.ok("xcom", "ls", "--in", "n", "--json")) == [{"key": "other"}]
    page = system.run("xcom", "ls", "--limit", "2")
    assert (page.exit_code, page.stdout) == (0, "a:1\na:2\n")
    assert "there may be more" in page.stderr
    assert system.run("xcom", "ls", "--limit", "0").exit_code == 2


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
    assert len(system.json("cron", "ls", "--paused")) == len(told)
    assert system.ok("cron", "ls", "--active") == system.ok("cron", "ls", "--task", "other") == ""
    assert system.json("cron", "resume", "hourly") == {"name": "hourly", "done": "resumed", "changed": True}

    made = system.ok("cron", "run", "hourly").strip()
    assert "schedule: hourly" in system.ok("show", made)
    assert system.run("cron", "rm", "hourly").exit_code == 2
    assert system.ok("cron", "rm", "hourly", "--yes") == "hourly: removed\n"
    assert system.ok("cron", "ls") == ""


def test_the_next_time_of_a_paused_schedule_is_none(system: System) -> None:
    system.sched.schedule_sync("hourly", system.sched._jobs["step"], every=3600)

    assert system.json("cron", "ls")["next_at"] is not None
    system.ok("cron", "pause", "hourly")
    assert system.json("cron", "ls")["next_at"] is None


def test_schedule_commands_select_by_fields_of_their_jobs(system: System) -> None:
    step = system.sched._jobs["step"]
    for name, options in (
        ("a", {"user": "ann", "queue_hint": ["doc", "x"]}),
        ("b", {"user": "ann", "tags": ["slow"]}),
        ("c", {"service": "mail"}),
    ):
        system.sched.schedule_sync(name, step.using(**options), every=3600)

    def listed(*words: str) -> str:
        return "".join(line.split("\t")[0] for line in system.ok("cron", "ls", *words).splitlines())

    assert (listed("--tag", "slow"), listed("--path", "doc"), listed()) == ("b", "a", "abc")
    assert system.ok("cron", "pause", "--user", "ann") == f"{system.namespace}: 2 schedules paused\n"
    assert listed("--paused") == "ab"
    assert system.json("cron", "pause", "--user", "ann") == {
        "name": None, "done": "paused", "changed": False, "reached": 0,
    }  # fmt: skip
    assert system.ok("cron", "resume", "--path", "doc") == f"{system.namespace}: 1 schedule resumed\n"
    assert listed("--paused") == "b"
    assert system.json("cron", "pause", "--all")["reached"] == 2
    asked = system.run("cron", "rm", "--user", "ann")
    assert (asked.exit_code, "Forget 2 schedules in " in asked.stderr) == (2, True)
    assert system.ok("cron", "rm", "--user", "ann", "--yes") == f"{system.namespace}: 2 schedules removed\n"
    assert listed() == "c"
    for verb in ("pause", "resume", "rm"):
        for words in ([], ["c", "--all"], ["c", "--user", "ann"], ["--all", "--task", "step"]):
            refused = system.run("cron", verb, *words)
            assert (refused.exit_code, "say which: a name, or --all, or " in refused.stderr) == (2, True), words
    assert listed("--active") == ""


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
def test_missing_schedule_exits_with_1(system: System, verb: str) -> None:
    result = system.run("cron", verb, "nix")

    assert result.exit_code == 1
    assert "no schedule 'nix'" in result.stderr
