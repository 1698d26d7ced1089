"""The commands that list, count, export and delete records, and those that select dead jobs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from queuehint import JobContext
from queuehint.cli.filters import states_of, time_of
from queuehint.cli.opening import UsageError
from queuehint.client.flows import children
from tests.commands import System, open_system
from tests.terminal import Terminal

pytestmark = pytest.mark.redis


@pytest.fixture
def system(namespace: str) -> Iterator[System]:
    with open_system(namespace) as opened:
        yield opened


def ids(output: str) -> list[str]:
    return [line.split("\t")[0] for line in output.splitlines()]


def fill(system: System) -> None:
    """Enqueue a to d, the first of which fails, the second runs."""
    for name, section, user in (("a", "intro", "ann"), ("b", "end", "bob"), ("c", "end", "ann"), ("d", "x", None)):
        system.enqueue("edit", "doc1", section, "secret", id=name, user=user, service="docs" if user else None)
    system.fail(system.claim()[0])
    system.claim()


def test_records_are_listed_newest_first_or_oldest(system: System) -> None:
    fill(system)

    assert ids(system.ok("ls")) == ["d", "c", "b", "a"]
    assert ids(system.ok("ls", "--oldest")) == ["a", "b", "c", "d"]
    row = system.ok("ls", "--user", "bob").rstrip("\n").split("\t")
    assert row[:8] == ["b", "STARTED", "edit", "doc1:end", "default", "bob", "docs", "1"]
    assert "secret" not in system.ok("ls") + json.dumps(system.json("ls"))


@pytest.mark.parametrize(
    "options, expected",
    [
        (("--user", "ann"), ["c", "a"]),
        (("--service", "docs", "--user", "bob"), ["b"]),
        (("--state", "failed,started"), ["b", "a"]),
        (("--state", "FAILED", "--state", "QUEUED"), ["d", "c", "a"]),
        (("--path", "doc1:end", "--oldest"), ["b", "c"]),
        (("--task", "nix"), []),
        (("--parent", "nix"), []),
        (("--waits-for", "nix"), []),
        (("--pool", "default", "--since", "1h"), ["d", "c", "b", "a"]),
        (("--until", "1h"), []),
    ],
)
def test_records_are_selected_by_their_fields(system: System, options: tuple[str, ...], expected: list[str]) -> None:
    fill(system)

    assert ids(system.ok("ls", *options)) == expected


def test_a_listing_goes_on_where_it_was(system: System) -> None:
    fill(system)

    first = system.run("ls", "--limit", "3", "--since", "1h")
    assert ids(first.stdout) == ["d", "c", "b"]
    hint = first.stderr.removeprefix("queuehint: there may be more: ").split()
    assert ids(system.ok("ls", "--limit", "3", *hint)) == ["a"]
    page = system.json("ls", "--limit", "3", "--oldest")
    assert [record["id"] for record in page["records"]] == ["a", "b", "c"]
    assert ids(system.ok("ls", "--oldest", "--cursor", page["cursor"])) == ["d"]
    assert system.run("ls", "--cursor", page["cursor"]).exit_code == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--limit", "0"),
        ("--limit", "201"),
        ("--cursor", "nix"),
        ("--state", "nix"),
        ("--since", "yesterday"),
        ("--since", "2026-01-31"),
        ("--since", "999999999w"),
        ("--path", "a::b"),
        ("--user", ""),
    ],
)
def test_contradictory_options_are_refused(system: System, options: tuple[str, ...]) -> None:
    result = system.run("ls", *options)

    assert result.exit_code == 2
    assert result.stderr.startswith("queuehint: ")


def test_times_are_a_span_ago_or_a_moment() -> None:
    assert time_of("2026-01-31T12:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert abs(datetime.now(UTC) - timedelta(minutes=30) - time_of("30min")) < timedelta(minutes=1)
    assert states_of([]) is None
    with pytest.raises(UsageError):
        time_of("2026-01-31T12:00")


def test_a_part_of_the_jobs_is_counted(system: System) -> None:
    fill(system)

    assert {"FAILED: 1", "QUEUED: 1", "STARTED: 0"} <= {*system.ok("stats", "--user", "ann").splitlines()}
    counts = system.json("stats", "--path", "doc1:end")
    assert counts["states"] | {"QUEUED": 1, "STARTED": 1} == counts["states"]


def test_records_are_written_out_whole(system: System, tmp_path: Path) -> None:
    fill(system)

    lines = [json.loads(line) for line in system.ok("export", "--user", "ann").splitlines()]
    assert [line["id"] for line in lines] == ["a", "c"]
    assert lines[0]["spec"]["arguments"] == {"doc": "doc1", "section": "intro", "text": "secret"}
    file = tmp_path / "failed.jsonl"
    assert system.ok("export", "--state", "failed", "--file", str(file)) == "1 record\n"
    assert json.loads(file.read_text())["errors"][0]["message"] == "a picture is missing"
    assert system.run("export", "--file", str(tmp_path / "no" / "where")).exit_code == 2


def test_records_of_a_flow_are_written_out_with_children(system: System) -> None:
    step = system.sched._jobs["step"]

    @system.sched.job
    def split(ctx: JobContext) -> None:
        ctx.enqueue_sync(step)

    with system.sched.flow_sync("f") as flow:
        flow.add(split.using(id="a", user="ann"))
    system.sched.drain_sync(run=True, timeout=60)

    assert [json.loads(line)["id"] for line in system.ok("export", "--flow", "f").splitlines()] == ["a", "a.1"]
    assert len(system.ok("export", "--flow", "f", "--user", "ann").splitlines()) == 1
    assert system.ok("graph", "f").splitlines() == ["split  FINISHED", "└── a.1  FINISHED  step  child"]


def test_graph_without_all_children_says_so(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    test_records_of_a_flow_are_written_out_with_children(system)
    monkeypatch.setattr(children, "PAGES_MAX", 0)
    result = system.run("graph", "f")
    assert result.stdout.splitlines() == ["split  FINISHED"]
    assert "there are more children: queuehint ls --parent ID" in result.stderr


def test_records_of_a_flow_are_written_out_as_a_table(system: System, tmp_path: Path) -> None:
    fill(system)
    edit = system.sched._jobs["edit"]
    with system.sched.flow_sync("import") as flow:
        flow.add(edit.using(user="=ann"), "doc9", "intro", "text")
        flow.add(edit, "doc9", "end", "text")

    rows = [*csv.DictReader(io.StringIO(system.ok("export", "--flow", "import", "--format", "csv"), newline=""))]
    assert [(row["user"], row["state"], row["places"]) for row in rows] == [
        ("'=ann", "QUEUED", "doc9:intro"),
        ("", "QUEUED", "doc9:end"),
    ]
    file = tmp_path / "import.csv"
    assert system.ok("export", "--flow", "import", "--user", "=ann", "-f", "csv", "-o", str(file)) == "1 record\n"
    assert file.read_bytes().count(b"\r\n") == 2
    assert "no flow" in system.run("export", "--flow", "nix").stderr
    assert system.run("export", "--format", "xml").exit_code == 2


def test_records_of_jobs_that_are_over_are_deleted(system: System) -> None:
    fill(system)

    assert system.run("delete", "a").exit_code == 2
    result = system.run("delete", "a", "b", "nix", "--yes")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["a\tdone\t", "b\trefused\tSTARTED", "nix\tunknown\t"]
    assert ids(system.ok("ls")) == ["d", "c", "b"]


def test_top_shows_running_jobs_by_user(system: System) -> None:
    fill(system)

    shown = system.ok("top").splitlines()
    assert "user bob: 1" in shown
    assert shown[-1].split("\t")[0] == "b"
    told = system.json("top", "--times", "1")
    assert [job["id"] for job in told["running"]] == ["b"]
    assert told["users"] == [{"user": "bob", "running": 1}]


@pytest.mark.slow
def test_a_list_in_a_narrow_terminal_keeps_its_ids(system: System) -> None:
    fill(system)
    with Terminal("ls", *system.where, columns=24) as terminal:
        assert terminal.end() == 0
    lines = [line.rstrip() for line in terminal.text.splitlines()]
    assert lines[:3] == ["task  place       id", "edit  doc1:x      d", "edit  doc1:end    c"]
