"""Commands that select jobs by filters or by a flow, and lists of jobs in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from queuehint import JobState
from queuehint.cli.inspect import records_grid
from queuehint.cli.render import Grid, cell
from tests.commands import System, drawn, open_system

pytestmark = pytest.mark.redis

CANCELED, FAILED, QUEUED = JobState.CANCELED, JobState.FAILED, JobState.QUEUED


@pytest.fixture
def system(namespace: str) -> Iterator[System]:
    with open_system(namespace) as opened:
        yield opened


def fail_some(system: System) -> str:
    """Put two dead jobs there, one of them of a flow, whose id is returned, and two that wait."""
    edit = system.sched._jobs["edit"].using(max_attempts=1, on_dead="hold")
    with system.sched.flow_sync("f") as flow:
        first = flow.add(edit.using(id="a"), "doc1", "intro")
        flow.add(system.sched._jobs["step"].using(id="b", after=[first]))
    edit.using(id="c", user="ann").enqueue_sync("doc2", "end")
    for grant in system.claim(2):
        system.fail(grant)
    edit.using(id="d", user="ann").enqueue_sync("doc2", "end")
    return flow.id


def states(system: System) -> dict[str, JobState]:
    return {record.id: record.state for record in system.sched.records.list_sync()}


def ids(listing: str) -> list[str]:
    return [line.split("\t")[0] for line in listing.splitlines()]


def test_flow_jobs_are_listed_redriven_discarded_and_canceled(system: System) -> None:
    flow = fail_some(system)
    assert set(ids(system.ok("ls", "--flow", flow))) == {"a", "b"}
    assert ids(system.ok("ls", "--flow", flow, "--state", "failed,finished")) == ["a"]
    first = system.json("ls", "--flow", flow, "--oldest", "--limit", "1")
    assert [record["id"] for record in first["records"]] == ["a"]
    assert ids(system.ok("ls", "--flow", flow, "--oldest", "--cursor", first["cursor"])) == ["b"]
    assert ids(system.ok("ls", "--flow", flow, "--path", "doc1")) == ["a"]
    assert ids(system.ok("ls", "--flow", flow, "--user", "ann")) == []
    system.enqueue("edit", "doc2", "begin", id="e")
    system.enqueue("edit", "doc2", "x", id="f")
    system.sched.cancel_sync(["e", "f"])
    assert ids(system.ok("ls", "--path", "doc2")) == ["f", "e", "d", "c"], "the newest first, wherever they are"
    assert ids(system.ok("ls", "--path", "doc2", "--oldest")) == ["c", "d", "e", "f"]
    assert ids(system.ok("ls", "--path", "doc2", "--order", "place", "--oldest")) == ["e", "c", "d", "f"]
    first = system.json("ls", "--path", "doc2", "--limit", "3")
    assert ids(system.ok("ls", "--path", "doc2", "--cursor", first["cursor"])) == ["c"]
    assert system.run("ls", "--path", "doc2", "--order", "size").exit_code == 2
    assert ids(system.ok("dead", "ls", "--flow", flow)) == ["a"]
    assert system.ok("dead", "retry", "--flow", flow, "--yes") == "a\tdone\tQUEUED\n"
    system.fail(system.claim()[0])
    assert system.ok("dead", "purge", "--flow", flow, "--yes") == "a\tdone\tCANCELED\n"
    assert system.ok("cancel", "--flow", flow, "--yes") == "flow f: 1 job canceled or asked to stop\n"
    assert [states(system)[name] for name in "abc"] == [CANCELED, CANCELED, FAILED]
    assert system.run("ls", "--flow", "nix").exit_code == 1


def test_cancel_by_filter_cancels_matching_jobs(system: System) -> None:
    fail_some(system)
    assert system.ok("cancel", "--user", "ann", "--yes") == f"{system.namespace}: 1 job canceled or asked to stop\n"
    assert states(system) == {"a": FAILED, "b": JobState.DEFERRED, "c": FAILED, "d": CANCELED}
    assert system.json("cancel", "--state", "queued", "--yes")["reached"] == 0
    assert system.json("cancel", "--all", "--reason", "the end", "--yes")["reached"] == 1
    assert system.sched.get_sync("b").cause == "the end"


def test_run_now_makes_scheduled_jobs_due(system: System) -> None:
    edit = system.sched._jobs["edit"]
    edit.using(id="a", delay=600).enqueue_sync("doc1", "intro")
    edit.using(id="b", delay=600, user="ann").enqueue_sync("doc1", "end")
    edit.using(id="c").enqueue_sync("doc2", "end")
    refused = system.run("run-now", "a", "c", "nobody")
    assert refused.stdout == "a\tdone\tQUEUED\nc\trefused\tQUEUED\nnobody\tunknown\t\n"
    assert refused.exit_code == 1
    with system.sched.flow_sync("f") as flow:
        flow.add(edit.using(id="d", delay=600), "doc3", "end")
    assert system.ok("run-now", "--flow", flow.id, "--yes") == f"{system.namespace}: 1 job due now\n"
    assert "Make 1 job due in" in system.run("run-now", "--path", "doc1", input="n\n").output
    assert system.json("run-now", "--path", "doc1", "--yes") == {"done": "due", "changed": True, "reached": 1}
    assert system.ok("run-now", "--all", "--yes") == f"{system.namespace}: 0 jobs due now\n"
    assert set(states(system).values()) == {QUEUED}


@pytest.mark.parametrize(
    "words",
    [
        ["run-now"],
        ["run-now", "a", "--all"],
        ["cancel"],
        ["cancel", "a", "--all"],
        ["cancel", "--flow", "f", "--user", "ann"],
        ["cancel", "--state", "failed"],
        ["dead", "retry", "--flow", "f", "--all"],
        ["dead", "ls", "--flow", "f", "--user", "ann"],
        ["ls", "--flow", "f", "--limit", "0"],
    ],
)
def test_two_ways_to_choose_at_once_or_none_are_refused(system: System, words: list[str]) -> None:
    assert system.run(*words, *(["--yes"] if words[0] == "cancel" else [])).exit_code == 2


def test_tree_counts_dead_holds_and_folds_empty_places(system: System) -> None:
    fail_some(system)
    system.enqueue("edit", "doc3", "end")
    system.sched.pause_sync(["doc3"])
    assert system.ok("tree").splitlines() == [
        "root  4 below",
        "├── doc1:intro  1 dead",
        "├── doc2:end  1 dead, 1 waiting",
        "└── doc3  1 below, paused",
        "    └── doc3:end  1 next",
    ]
    assert system.ok("tree", "--dead").splitlines()[1:] == [
        "├── doc1:intro  1 dead",
        "└── doc2:end  1 dead, 1 waiting",
    ]
    found = system.json("tree", "--depth", "2")["children"][0]
    assert (found["path_key"], found["dead"], found["children"][0]["dead"]) == ("doc1", 0, 1)
    system.sched.dead.discard_sync(all=True)
    assert system.ok("tree", "--dead") == "root  2 below\n"


def test_nothing_there_is_said_with_the_namespace(system: System) -> None:
    for words, what in [
        (["ls"], "jobs"),
        (["ls", "--user", "ann"], "such jobs"),
        (["dead", "ls"], "dead jobs"),
        (["dead", "ls", "--user", "ann"], "such dead jobs"),
        (["dead", "retry", "--path", "doc1"], "such dead jobs"),
        (["dead", "retry", "--all"], "dead jobs"),
        (["dead", "purge", "--path", "doc1"], "such dead jobs"),
        (["dead", "purge", "--all"], "dead jobs"),
        (["tree"], "unfinished jobs"),
        (["workers"], "workers"),
        (["pauses"], "pauses"),
        (["limits", "ls"], "limits"),
        (["weights", "ls"], "weights"),
        (["cron", "ls"], "schedules"),
    ]:
        result = system.run(*words)
        assert result.exit_code == 0
        # Other namespaces of the server may be named too: `test_cli_namespaces.py`.
        assert re.fullmatch(f"queuehint: no {what} in namespace {system.namespace}(; there .*)?\n", result.stderr)


# --- in a terminal ---------------------------------------------------------------------------------------------------


def test_list_shows_task_and_place_first_and_hides_defaults(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a")
    system.enqueue("step", id="b")
    heads = drawn(records_grid(system.sched.records.list_sync()))[0].split()
    assert heads == ["task", "place", "state", "ago", "id"]
    system.enqueue("step", id="c", user="ann", pool="gpu")
    grid = records_grid(system.sched.records.list_sync())
    assert drawn(grid)[0].split() == ["task", "place", "state", "ago", "user", "pool", "id"]
    assert [len(line.split("\t")) for line in grid.lines()] == [11] * 3, "programs get all columns"


def test_key_of_a_table_is_whole_and_other_ids_abbreviated() -> None:
    rows = [(cell("01a2060088e6000579e9c36961d5"), cell("edit"), cell("a long message"))]
    grid = Grid(("id", "task", "error"), rows, shown=("task", "error", "id"), key="id")
    assert drawn(grid, 60)[1] == "edit  a long message  01a2060088e6000579e9c36961d5"
    assert drawn(grid, 44)[1] == "edit  a long …  01a2060088e6000579e9c36961d5"
    assert drawn(grid, 34)[1] == "edit  01a2060088e6000579e9c36961d5"
    short = Grid(("id", "task"), [row[:2] for row in rows], shown=("task", "id"), short=("id",))
    assert drawn(short)[1] == "edit  …79e9c36961d5"


def test_top_tells_workers_that_run_jobs(system: System) -> None:
    assert f"{system.namespace}: no jobs" not in system.ok("top"), "a heading, which people see"
    for _ in range(2):
        system.enqueue("step")
    system.claim(2)
    assert "w1\t2\t0 s" in system.ok("top").splitlines()
