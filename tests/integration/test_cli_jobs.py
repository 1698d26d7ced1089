"""The commands that inspect and control jobs: their output, their effects, their exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queuehint import BackendUnavailableError, Claim, JobState, Signal
from queuehint.backends.redis import session as redis_session
from queuehint.cli.app import app
from queuehint.cli.live import repeat
from queuehint.cli.render import Block, Facts, Grid, Lines, Printer, branches, cell
from queuehint.operations import Announce
from queuehint.shown import plain
from queuehint.values.outcome import JobError, Progress
from tests.commands import FAILED, CliRunner, System, drawn, open_system
from tests.terminal import Terminal, without_sequences

pytestmark = pytest.mark.redis

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e[bold red]x[/]"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e[bold red]x[/]"


@pytest.fixture
def system(namespace: str) -> Iterator[System]:
    with open_system(namespace) as opened:
        yield opened


# --- one job ---------------------------------------------------------------------------------------------------------


def test_job_is_shown_with_errors_log_and_result(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", "secret", id="a", user="ann", service="docs")
    (grant,) = system.claim()
    system.note(grant, "one", "two")
    error = JobError(type="ValueError", message="bad", traceback="File x\n  line 1\n")
    system.settle(grant, FAILED, error=error, delay_ms=60_000)
    system.sched.cancel_sync(["a"], reason="enough")

    shown = system.ok("show", "a")

    lines = shown.splitlines()
    assert {"id: a", "state: CANCELED", "cause: enough", "place: doc1:intro", "user: ann", "service: docs"} <= {*lines}
    assert "attempts: 1 of 5" in lines
    assert lines[lines.index("log:") + 1 :] == ["    one", "    two"]
    assert "    attempt 1: ValueError: bad" in [line[:4] + line[29:] for line in lines]
    assert "        File x" in lines
    assert "secret" not in shown


def test_show_prints_arguments_only_on_request(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", "secret", id="a")

    assert "secret" in system.ok("show", "a", "--arguments")
    assert system.json("show", "a", "--arguments")["spec"]["arguments"]["text"] == "secret"
    assert "arguments" not in system.json("show", "a")["spec"]


def test_a_result_is_shown_as_the_value_that_was_returned(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a")
    system.settle(system.claim()[0], result=b'{"result":{"rows":[1,2]}}')

    assert '    {\n      "rows": [\n' in system.ok("show", "a")
    assert system.json("show", "a")["result"] == {"rows": [1, 2]}


def test_texts_of_jobs_do_nothing_to_a_terminal(system: System) -> None:
    system.enqueue("step", id="a")
    (grant,) = system.claim()
    system.note(grant, EVIL)
    system.report(grant, Progress(1, 2, EVIL))
    watched = system.run("watch", "a", "--timeout", "0")
    running = system.ok("show", "a")
    system.fail(grant, EVIL)

    shown, listed = system.ok("show", "a"), system.ok("dead", "ls")

    for text in (shown, running, watched.output, listed):
        assert SHOWN in text
        assert plain(text.replace("\n", "").replace("\t", "")) == text.replace("\n", "").replace("\t", "")
    assert f"    {EVIL}\n" in system.ok("show", "a", "--raw")
    assert system.json("show", "a")["logs"] == [EVIL]


def test_a_signal_is_given_once(system: System) -> None:
    system.sched.jobs["edit"].using(after=[Signal("ok:doc1", timeout=60)], id="a").enqueue_sync("doc1", "intro")
    assert "waits for the signal ok:doc1 until" in system.ok("why", "a")
    assert system.ok("signal", "ok:doc1", '{"by": "ann"}').startswith("signal 'ok:doc1' is given in ")
    assert system.json("signal", "ok:doc1", '{"by": "ann"}') == {"name": "ok:doc1", "counts": True}
    again = system.run("signal", "ok:doc1", "7", "--keep", "604800")
    assert (again.exit_code, again.stdout) == (1, "signal 'ok:doc1' was given before, with other data, which counts\n")
    assert system.sched.get_sync("a").state is JobState.QUEUED
    assert system.sched.get_sync("signal:ok:doc1").result == b'{"result":{"by":"ann"}}'
    wrong = system.run("signal", "x", "{")
    assert (wrong.exit_code, "data must be JSON" in wrong.output) == (2, True)


def test_a_pause_ends_by_itself_and_is_listed(system: System) -> None:
    def listed() -> list[Any]:
        return [json.loads(line) for line in system.ok("pauses", "--json").splitlines()]

    assert system.ok("pause", "doc1", "--for", "2h") == "doc1: paused\n"
    assert system.ok("pause", "doc2") == "doc2: paused\n"
    first, second = listed()
    assert (first["path"], first["parked"], second["path"], second["until_ms"]) == ("doc1", 0, "doc2", None)
    assert first["until_ms"] > 0
    assert "Z (in 1 h)" in system.ok("pauses")
    assert "write 30min, 2h or 7d" in system.run("pause", "doc1", "--for", "soon").output
    assert system.ok("resume", "doc1") == "doc1: resumed\n"
    assert system.ok("pause", "--task", "edit", "--user", "ann") == "task=edit user=ann: paused\n"
    assert system.ok("pauses").splitlines()[-1].split("\t")[0] == "user=ann task=edit"
    assert listed()[-1] == {"user": "ann", "task": "edit", "until_ms": None, "parked": 0}
    assert system.json("resume", "--task", "edit", "--user", "ann")["changed"] is True
    for call in ("pause", "resume"):
        assert f"{call} requires a path, or one of task" in system.run(call).output
    assert [one["path"] for one in listed()] == ["doc2"]


def test_why_prints_the_reason_and_a_way_out(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a")
    system.enqueue("edit", "doc1", "intro", id="b")
    system.sched.pause_sync(["doc1"])
    system.claim(0)

    assert "a is QUEUED: its path is paused at doc1" in system.ok("why", "a")
    assert "queuehint resume doc1" in system.ok("why", "a")
    reason = system.json("why", "b")
    assert (reason["job_id"], reason["kind"], reason["jobs"]) == ("b", "place", ["a"])
    *lines, way_out = system.ok("why", "--chain", "b").splitlines()
    assert [line.split()[0] for line in lines] == ["b", "a"]
    assert way_out == "resume the path: queuehint resume doc1"
    chain = system.json("why", "--chain", "b")
    assert [(reason["kind"], reason["jobs"]) for reason in chain] == [("place", ["a"]), ("paused", [])]
    assert chain[-1]["way_out"] == way_out


def test_why_behind_several_dead_jobs_redrives_all_of_them(system: System) -> None:
    for name in ("a", "b"):
        system.enqueue("edit", name, "intro", id=name, max_attempts=1)
    system.enqueue("edit", "c", "intro", id="c", after=["a", "b"], on_dependency_failure="wait")
    for grant in system.claim(2):
        system.fail(grant)

    assert system.ok("why", "--chain", "c").splitlines()[-1] == "redrive them: queuehint dead retry a b"
    system.ok("dead", "retry", "a", "b")
    assert system.json("why", "c")["kind"] == "dependency"


def test_why_of_a_place_prints_waiting_jobs_and_blockers(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a", user="ann")
    system.claim()
    for number in range(8):
        system.enqueue("edit", "doc1", "intro", id=f"w{number}")
    system.enqueue("edit", "doc1", "my text", id="doc1:end")
    for words in (("doc1:intro",), ("--path", "doc1:intro")):
        head, *rows, last = system.ok("why", *words).splitlines()
        assert (head, last) == ("doc1:intro: 8 jobs wait", "2 more wait there")
        cells = [row.split("\t") for row in rows]
        assert [(row[0], row[1]) for row in cells] == [
            ("oldest", "w0"), ("oldest", "w1"), ("oldest", "w2"), ("newest", "w7"), ("newest", "w6"), ("newest", "w5"),
            ("in the way", "a"),
        ]  # fmt: skip
        assert cells[-1][2:6] == ["STARTED", "edit", "doc1:intro", "ann"]
        assert cells[-1][7] == "running (worker w1, attempt 1)"
    found = system.json("why", "doc1:intro", "--limit", "1")
    assert (found["path_key"], found["waiting"], found["more"], found["complete"]) == ("doc1:intro", 8, 6, True)
    assert [each["id"] for each in found["oldest"] + found["newest"] + found["ahead"]] == ["w0", "w7", "a"]
    assert (found["ahead"][0]["task"], found["ahead"][0]["state"]) == ("edit", "STARTED")
    assert found["oldest"][0]["reason"]["jobs"] == ["a"]
    assert system.ok("why", "doc1:my text").startswith("doc1:my text: 1 job waits\n"), "no id has a space"
    assert system.ok("why", "doc1:end").startswith("doc1:end is QUEUED: "), "an id goes before a place"
    assert system.ok("why", "--path", "doc1:end") == "doc1:end: 0 jobs wait\n"
    for nothing in ("doc2", "doc1:intro:below:it:all\\"):
        refused = system.run("why", nothing)
        assert (refused.exit_code, "not exist" in refused.output or "no job" in refused.output) == (1, True), nothing
    for wrong, said in (
        ((), "give the id of a job or the queue key of a place, one of the two"),
        (("a", "--path", "doc1"), "give the id of a job or the queue key of a place, one of the two"),
        (("--path", "doc1", "--chain"), "--chain requires the id of a job, not --path"),
        (("--path", "doc1:"), "is not the key of any path"),
        (("--path", "doc1", "--limit", "17"), "limit must be from 1 to 16, got 17"),
    ):
        refused = system.run("why", *wrong)
        assert refused.exit_code in {1, 2}
        assert said in " ".join(refused.output.split()), refused.output
    assert system.run("why", "doc1", "--chain").exit_code == 1


# --- one job, as it goes on ------------------------------------------------------------------------------------------


def test_watch_prints_changes_until_the_end(system: System) -> None:
    system.enqueue("step", id="a")
    (grant,) = system.claim()
    system.note(grant, "one")
    system.report(grant, Progress(1, 2))

    def go_on() -> None:
        system.note(grant, "two")
        system.settle(grant)

    timer = threading.Timer(0.3, go_on)
    timer.start()
    result = system.run("watch", "a", "--json")
    timer.join()

    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert [event["line"] for event in told if event["event"] == "log"] == ["one", "two"]
    assert [event["state"] for event in told if event["event"] == "state"] == ["STARTED", "FINISHED"]
    assert {"event": "progress", "done": 1, "total": 2, "note": None} in told


def test_watching_ends_as_the_job_did(system: System) -> None:
    for name in ("finished", "failed", "canceled", "waits"):
        system.enqueue("step", id=name)
    finished, failed = system.claim(2)
    system.settle(finished)
    system.fail(failed)
    system.sched.cancel_sync(["canceled"])

    assert [system.run("watch", name, "--timeout", "0").exit_code for name in ("finished", "failed")] == [0, 4]
    assert [system.run("watch", name, "--timeout", "0").exit_code for name in ("canceled", "waits")] == [5, 124]


# --- many jobs -------------------------------------------------------------------------------------------------------


def test_tree_shows_running_and_waiting_jobs_by_place(system: System) -> None:
    for section in ("intro", "intro", "a:b"):
        system.enqueue("edit", "doc1", section)
    system.claim(1)
    system.sched.pause_sync(["doc1"])

    assert system.ok("tree").splitlines() == [
        "root  3 below",
        "└── doc1  3 below, paused",
        r"    ├── doc1:a\:b  1 next",
        "    └── doc1:intro  1 running, 1 waiting",
    ]
    assert system.json("tree", "doc1", "--depth", "0")["children"] == []
    assert system.ok("tree", r"doc1:a\:b") == "doc1:a\\:b  1 next\n"


def test_tree_shows_signal_waits_at_and_below_places(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", after=[Signal("s")])
    assert system.ok("tree").splitlines() == [
        "root  1 below for a signal",
        "└── doc1:intro  1 for a signal",
    ]
    found = system.json("tree")["children"][0]
    assert (found["waiting_for_signals"], found["waiting_for_signals_below"]) == (0, 1)
    assert "1 for a signal" in system.ok("tree", "doc1:intro")


def test_paged_tree_prints_its_next_command_and_longest_lines_first(system: System) -> None:
    for section, jobs in {"a b": 1, "body": 2, "intro": 4, "notes": 3}.items():
        for _ in range(jobs):
            system.enqueue("edit", "doc1", section)
    system.claim(1)

    assert system.ok("tree", "doc1", "--limit", "2").splitlines() == [
        "doc1  10 below",
        "├── doc1:a b  1 running",
        "├── doc1:body  1 next, 1 waiting",
        "└── … more: tree doc1 --after body",
    ]
    last = ["doc1  10 below", "├── doc1:intro  1 next, 3 waiting", "└── doc1:notes  1 next, 2 waiting"]
    assert system.ok("tree", "doc1", "--after", "body").splitlines() == last
    assert system.ok("tree", "--order", "line", "--limit", "2").splitlines() == ["root  10 below", *last[1:]]
    assert "tree doc1 --after 'a b'" in system.ok("tree", "doc1", "--limit", "1")
    assert system.json("tree", "--depth", "1")["after"] is None
    for wrong in (["--limit", "0"], ["--limit", "1001"], ["--after", "a\n"], ["--order", "line", "--after", "a"]):
        result = system.run("tree", *wrong)
        assert (result.exit_code, wrong[-2].removeprefix("--") in result.output) == (2, True), result.output
    assert system.run("tree", "--order", "size").exit_code == 2


def test_flow_is_drawn_with_each_job_below_its_dependencies(system: System) -> None:
    step = system.sched._jobs["step"]
    with system.sched.flow_sync("f") as flow:
        first = flow.add(step.using(name="first"))
        left, right = (flow.add(step.using(name=name), first.out) for name in ("left", "right"))
        last = flow.add(step.using(name="last"), [left.out, right.out])
        flow.add(step.using(name="sorry", after=[last], when="failure"))

    assert system.ok("graph", "f").splitlines() == [
        "first  QUEUED  step",
        "├── left  DEFERRED  step",
        "│   └── last  DEFERRED  step",
        "│       └── sorry  DEFERRED  step  on failure",
        "└── right  DEFERRED  step",
        "    └── last  DEFERRED  step  see above",
    ]
    assert system.ok("graph", "f", "--depth", "1").splitlines()[1] == "├── left  DEFERRED  step  …"
    assert system.ok("graph", "f", "--format", "dot").startswith('digraph "f" {')
    assert system.ok("graph", "f", "--format", "mermaid").startswith("flowchart LR\n")
    assert len(system.json("graph", "f")["nodes"]) == 5
    assert system.run("graph", "nix").exit_code == 1


def test_counts_add_up(system: System) -> None:
    system.enqueue("step")
    system.enqueue("step")
    system.claim(1)

    counts = system.json("stats")

    assert counts["namespace"] == system.namespace
    assert (counts["states"]["QUEUED"], counts["states"]["STARTED"], counts["enqueued"]) == (1, 1, 2)
    assert {"QUEUED: 1", "ready default: 1", "enqueued: 2"} <= {*system.ok("stats").splitlines()}
    assert "waiting for signals" not in system.ok("stats")
    system.enqueue("step", after=[Signal("s"), Signal("t", timeout=60)])
    assert {"DEFERRED: 2", "waiting for signals: 1"} <= {*system.ok("stats").splitlines()}
    assert system.json("stats")["waiting_for_signals"] == 1


def test_top_tells_how_many_jobs_a_second(system: System) -> None:
    system.enqueue("step")
    told = system.ok("top", "--json", "--times", "2", "--every", "0.1").splitlines()

    first, second = map(json.loads, told)
    assert first["rates"] == {}
    assert second["rates"] == {"enqueued": 0.0, "started": 0.0, "settled": 0.0}
    assert "QUEUED: 1" in system.ok("top")


def test_top_shows_all_workers_and_the_pools_they_serve(system: System) -> None:
    def announce(name: str, pid: int, pools: tuple[str, ...], running: int) -> None:
        said = Announce(worker=name, host="host1", pid=pid, slots=8, running=running, pools=pools, version_name="2.1")
        system.sched.backend.call_sync(said)

    announce("w1", 7, ("default", "mail"), 5)
    announce("w2", 8, ("mail",), 5)
    system.enqueue("step")
    system.enqueue("step")
    system.claim()

    rows = [line.split("\t") for line in system.ok("top").splitlines()]

    assert [row for row in rows if row[0] == "default"] == [["default", "1", "0 s", "1", "8"]]
    assert [row for row in rows if row[0] == "mail"] == [["mail", "0", "", "2", "16"]]
    (first, second) = [row for row in rows if row[0] in {"w1", "w2"}]
    assert first[1:8] == ["host1", "7", "2.1", "default, mail", "", "", "1 of 8"]
    assert second[7] == "0 of 8"
    system.sched.backend.call_sync(Announce(worker="w1", host="host1", pid=7, slots=8, gone=True))
    rows = [line.split("\t") for line in system.ok("top").splitlines()]
    assert ["w1", "1", "0 s"] in rows, "it runs a job and is not heard of any more"
    assert [worker["name"] for worker in system.json("top", "--times", "1")["workers"]] == ["w2"]


def test_repeated_view_survives_an_unavailable_store(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[Any] = [{"jobs": 1}, BackendUnavailableError("no connection"), {"jobs": 2}]

    def look() -> tuple[Any, list[Block | str]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, []

    repeat(Printer(as_json=True), look, every_s=0, times=3)

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [{"jobs": 1}, {"error": "no connection"}, {"jobs": 2}]
    answers.append(BackendUnavailableError("no connection"))
    with pytest.raises(BackendUnavailableError):
        repeat(Printer(as_json=True), look, every_s=0, times=3)


def test_an_empty_system_is_nothing_special(system: System) -> None:
    assert system.ok("tree") == "root\n"
    assert system.ok("dead", "ls") == ""
    assert system.ok("dead", "retry", "--all", "--yes") == ""
    assert "QUEUED: 0" in system.ok("stats")
    assert "QUEUED: 0" in system.ok("top")
    assert system.ok("drain") == "drained\n"
    assert system.run("graph", "f").exit_code == 1


# --- orders ----------------------------------------------------------------------------------------------------------


def test_commands_report_a_verdict_per_job(system: System) -> None:
    for name in ("a", "b", "c"):
        system.enqueue("step", id=name)
    first, second = system.claim(2)
    system.fail(first)

    result = system.run("cancel", "a", "b", "c", "nix", "--reason", "enough")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "a\trefused\tFAILED",
        "b\trequested\tSTARTED",
        "c\tdone\tCANCELED",
        "nix\tunknown\t",
    ]
    assert system.sched.get_sync("c").cause == "enough"
    assert system.json("retry", "a") == {"id": "a", "verdict": "done", "state": "QUEUED"}
    assert system.run("retry", "a").exit_code == 1
    assert system.run("cancel").exit_code == 2
    assert system.run("cancel", "a b").exit_code == 2
    system.settle(second)


def test_places_are_paused_resumed_closed_and_reopened(system: System) -> None:
    system.enqueue("edit", "doc1", "intro")

    assert system.ok("pause", "doc1") == "doc1: paused\n"
    assert system.ok("pause", "doc1") == "doc1: nothing to do, it is so already\n"
    assert not system.claim()
    assert system.json("resume", "doc1") == {"path": "doc1", "done": "resumed", "changed": True}
    assert system.claim()
    system.ok("close", "root")
    assert system.sched.tree_sync().closed
    system.ok("reopen", "root")
    assert not system.sched.tree_sync().closed
    assert "is not the key of any path" in system.run("pause", "a::b").output


def test_a_path_is_closed_with_a_last_job(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a")
    last = ("close", "doc1", "--last", "erase", "--arguments")
    assert "must be JSON" in system.run(*last, "{", "--yes").output
    assert "must be a JSON object" in system.run(*last, "[]", "--yes").output
    assert system.run(*last, "{}", input="y\n").exit_code == 2
    assert not system.sched.tree_sync(["doc1"]).closed

    said = system.json(*last, '{"doc": "doc1"}', "--yes")
    record = system.sched.get_sync(said["last"])
    assert (record.spec.task, record.spec.arguments, record.state) == ("erase", b'{"doc":"doc1"}', "QUEUED")
    assert (system.sched.get_sync("a").state, system.sched.tree_sync(["doc1"]).closed) == ("CANCELED", True)
    assert system.ok(*last, "{}", "--yes").startswith("doc1: closed with ")


def test_a_job_is_enqueued_from_the_shell(system: System) -> None:
    assert "pass --path doc1, --no-place" in system.run("enqueue", "edit").output
    assert "are mutually exclusive" in system.run("enqueue", "edit", "--path", "doc1", "--no-place").output
    assert "must be JSON" in system.run("enqueue", "edit", "{", "--no-place").output
    assert "must be a JSON object" in system.run("enqueue", "edit", "[1]", "--no-place").output
    assert not any(system.sched.stats_sync().states.values())

    words = ("enqueue", "edit", '{"doc": "doc1"}', "--path", "doc1:intro", "--user", "ann", "--id", "a")
    assert system.json(*words) == {"id": "a", "task": "edit"}
    assert system.json(*words)["id"] == "a"
    spec = system.sched.get_sync("a").spec
    assert (spec.task, spec.arguments, spec.user) == ("edit", b'{"doc":"doc1"}', "ann")
    assert [claim.path for claim in spec.claims] == [("doc1", "intro")]
    assert " step enqueued in " in system.ok("enqueue", "step", "--no-place", "--pool", "slow")
    assert sum(system.sched.stats_sync().states.values()) == 2


def test_job_of_an_application_is_checked_and_placed(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tmp_path.joinpath("shell_app.py").write_text(
        "import datetime\n"
        "from queuehint import Scheduler\n"
        f"sched = Scheduler({system.url!r}, namespace={system.namespace!r})\n"
        "@sched.job(queue_hint=['{doc}'])\n"
        "def save(doc: str, day: datetime.date, times: int = 1) -> None: ...\n"
        "@sched.job(claims=[['folders', '{source}'], (['folders', '{target}'], 'shared')])\n"
        "def move(source: str, target: str = 'trash') -> None: ...\n",
        "utf-8",
    )

    def enqueue(*words: str) -> Any:
        return CliRunner().invoke(app, ["enqueue", *words, "--json", "--target", "shell_app:sched"])

    made = enqueue("save", '{"doc": "{d}", "day": "2026-01-31"}')
    assert made.exit_code == 0, made.output
    spec = system.sched.get_sync(json.loads(made.stdout)["id"]).spec
    assert ([claim.path for claim in spec.claims], spec.arguments) == ([("{d}",)], b'{"doc":"{d}","day":"2026-01-31"}')
    moved = enqueue("save", '{"doc": "d", "day": "2026-01-31"}', "--path", "{doc}:x")
    spec = system.sched.get_sync(json.loads(moved.stdout)["id"]).spec
    assert [claim.path for claim in spec.claims] == [("{doc}", "x")]
    several = enqueue("move", '{"source": "a"}')
    spec = system.sched.get_sync(json.loads(several.stdout)["id"]).spec
    assert spec.claims == (Claim(("folders", "a")), Claim(("folders", "trash"), "shared"))
    for words, said in (
        (("save", '{"doc": "d", "day": "2026-01-31", "times": "3"}'), "times"),
        (("save", '{"doc": "d"}'), "day"),
        (("move", '{"source": "a", "target": ""}'), "claims[1] segment 1 is empty"),
        (("save", '{"doc": "d", "day": "soon"}'), "$.day"),
        (("nosuch",), "there is no task 'nosuch'; there are move, save"),
    ):
        refused = enqueue(*words)
        assert refused.exit_code in {1, 2}
        assert said in json.loads(refused.stdout)["error"]


def test_irreversible_command_requires_confirmation(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a")
    system.enqueue("edit", "doc10", "intro", id="b")

    refused = system.run("cancel", "--path", "doc1", input="y\n")
    assert refused.exit_code == 2
    assert (
        f"Cancel 1 job at or below doc1 in {system.namespace}? There is no terminal to ask: pass --yes"
        in refused.output
    )
    assert system.sched.get_sync("a").state == JobState.QUEUED

    assert system.ok("cancel", "--path", "doc1", "--yes") == "doc1: 1 job canceled or asked to stop\n"
    again = json.loads(system.ok("cancel", "--path", "doc1", "--yes", "--json"))
    assert again == {"path": "doc1", "done": "canceled", "changed": False, "reached": 0}
    assert [system.sched.get_sync(name).state for name in "ab"] == [JobState.CANCELED, JobState.QUEUED]


def test_the_dead_are_listed_redriven_and_given_up(system: System) -> None:
    for name, section, user in (("a", "intro", "ann"), ("b", "end", "bob"), ("c", "x", "ann")):
        system.enqueue("edit", "doc1", section, id=name, user=user)
    for grant in system.claim(3):
        system.fail(grant)

    assert [line.split("\t")[0] for line in system.ok("dead", "ls").splitlines()] == ["a", "b", "c"]
    assert [line.split("\t")[0] for line in system.ok("dead", "ls", "--user", "ann").splitlines()] == ["a", "c"]
    limited = system.run("dead", "ls", "--limit", "1")
    assert (limited.stdout.count("\n"), limited.stderr) == (1, "queuehint: more with a higher --limit\n")
    assert system.json("dead", "ls", "--path", "doc1:end")["error"] == "ValueError: a picture is missing"

    assert system.run("dead", "purge").exit_code == 2
    assert system.run("dead", "purge", "--all").exit_code == 2
    assert system.run("dead", "purge", "a", "--all", "--yes").exit_code == 2
    assert system.ok("dead", "retry", "a") == "a\tdone\tQUEUED\n"
    assert system.ok("dead", "purge", "--user", "bob", "--yes") == "b\tdone\tCANCELED\n"
    assert system.ok("dead", "retry", "--task", "edit", "--yes") == "c\tdone\tQUEUED\n"
    assert system.ok("dead", "ls") == ""


def test_stored_steps_are_shown_and_kept_or_dropped_at_redrive(system: System) -> None:
    for name in "ab":
        system.enqueue("edit", "doc1", name, id=name)
    for grant in system.claim(2):
        system.store_steps(grant, "fetch", "load-1")
        system.fail(grant)
    shown = system.ok("show", "a").splitlines()
    first = shown.index("steps:") + 1
    assert [line.split()[-1] for line in shown[first : first + 2]] == ["fetch", "load-1"]
    said = system.json("show", "a")["steps"]
    assert [step["name"] for step in said] == ["fetch", "load-1"]
    assert said[0]["at"].endswith("Z")

    system.ok("dead", "retry", "a")
    system.ok("dead", "retry", "b", "--drop-steps")
    assert [len(system.json("show", name)["steps"]) for name in "ab"] == [2, 0]
    assert "steps:" not in system.ok("show", "b").splitlines()


def test_drain_waits_until_nothing_is_left(system: System) -> None:
    system.enqueue("edit", "doc1", "intro")
    system.enqueue("edit", "doc2", "intro", delay=3600)
    (grant,) = system.claim()
    assert system.run("drain", "--timeout", "0.1").exit_code == 124
    timer = threading.Timer(0.2, system.settle, [grant])
    timer.start()

    assert system.ok("drain") == "drained\n"
    timer.join()
    assert system.run("drain", "doc2", "--include-scheduled", "--timeout", "0").stdout == "timeout: 1 job left\n"
    assert system.json("drain", "doc2") == {"end": "drained", "unfinished": 0, "reasons": []}


def test_drain_says_why_it_cannot_go_on(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a")
    system.sched.pause_sync(["doc1"])
    assert not system.claim()

    stalled = system.run("drain")

    assert stalled.exit_code == 1
    assert stalled.stdout == "stalled: 1 job left\na is QUEUED: its path is paused at doc1\n"


def test_drain_can_cancel_first(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a")
    assert system.run("drain", "doc1", "--cancel").exit_code == 2
    assert system.run("drain", "--cancel", "--yes").exit_code == 2

    assert system.ok("drain", "doc1", "--cancel", "--yes") == "drained\n"
    assert system.sched.get_sync("a").state == JobState.CANCELED


# --- where the jobs are ----------------------------------------------------------------------------------------------


def test_a_store_nobody_else_can_look_into_is_refused() -> None:
    result = CliRunner().invoke(app, ["stats", "--target", "memory://"])

    assert result.exit_code == 2
    assert "memory:// lives in one process, and no other process can open it" in result.output


def test_a_command_without_a_store_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUEUEHINT_URL", "QUEUEHINT_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, ["stats"])

    assert result.exit_code == 2
    assert "a store is required" in result.output


def test_unavailable_store_exits_with_3_and_hides_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.1)
    url = "redis://ann:secret@127.0.0.1:1/0"
    result = CliRunner().invoke(app, ["stats", "--target", url, "--json"])

    assert result.exit_code == 3
    assert "secret" not in result.output
    assert json.loads(result.stdout)["error"]


def test_an_application_names_its_store_itself(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"app_{system.namespace.replace('-', '_').replace('.', '_')}"
    text = f"from queuehint import Scheduler\nsched = Scheduler({system.url!r}, namespace={system.namespace!r})\n"
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("QUEUEHINT_SCHEDULER", f"{module}:sched")
    monkeypatch.setenv("QUEUEHINT_URL", "redis://127.0.0.1:1/0")
    system.enqueue("step", id="a")

    assert "state: QUEUED" in CliRunner().invoke(app, ["show", "a"]).output
    assert CliRunner().invoke(app, ["show", "a", "--namespace", "other"]).exit_code == 2
    assert CliRunner().invoke(app, ["show", "a", "--target", f"{module}:nix"]).exit_code == 2


def test_missing_job_exits_with_1(system: System) -> None:
    assert [system.run(*words).exit_code for words in (("show", "x"), ("why", "x"), ("watch", "x"))] == [1, 1, 1]


# --- in a terminal ---------------------------------------------------------------------------------------------------


def test_narrow_table_omits_last_columns_and_never_cuts_the_first() -> None:
    grid = Grid(("id", "task", "error"), [(cell("0123456789"), cell("edit"), cell("something is missing"))])

    assert drawn(grid, 40) == ["id          task  error", "0123456789  edit  something is missing"]
    assert drawn(grid, 28)[1] == "0123456789  edit  something…"[:27] + "…"
    assert drawn(grid, 17)[1] == "0123456789  edit"
    assert drawn(grid, 8)[1:] == ["01234567", "89"]
    assert drawn(Grid(("id",), []), 40) == ["id"]


def test_narrow_tree_is_cut_and_narrow_text_wraps() -> None:
    tree = branches([(0, cell("root")), (1, cell("a very long name"))], "utf-8")

    assert drawn(tree, 12) == ["root", "└── a very …"]
    assert drawn(Lines([cell("hello world")]), 6) == ["hello ", "world"]
    assert drawn(Facts([("name", cell("value")), ("none", cell())]), 40) == ["name  value"]


@pytest.mark.slow
def test_top_takes_the_terminal_and_gives_it_back(system: System) -> None:
    system.enqueue("step")
    with Terminal("top", "--every", "0.1", *system.where, columns=30, rows=12) as terminal:
        terminal.wait_for("QUEUED", count=2)
        assert "\x1b[?1049h" in terminal.output
        terminal.interrupt()
        assert terminal.end() == 0
        assert terminal.output.endswith("\x1b[?1049l")
        assert "\x1b[?25h" in terminal.output


@pytest.mark.slow
def test_top_with_times_leaves_its_last_screen(system: System) -> None:
    system.enqueue("step")
    with Terminal("top", "--every", "0.1", "--times", "3", *system.where) as terminal:
        assert terminal.end() == 0
    assert "QUEUED" in without_sequences(terminal.output.rpartition("\x1b[?1049l")[2])


@pytest.mark.slow
def test_top_gives_the_terminal_back_when_told_to_end(system: System) -> None:
    with Terminal("top", "--every", "0.1", *system.where) as terminal:
        terminal.wait_for("QUEUED")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 128 + signal.SIGTERM
        assert terminal.output.endswith("\x1b[?1049l")


@pytest.mark.slow
def test_watching_ends_by_ctrl_c_with_130(system: System) -> None:
    system.enqueue("step", id="a")
    (grant,) = system.claim()
    system.note(grant, EVIL)
    system.report(grant, Progress(3, 10, "pages"))
    with Terminal("watch", "a", *system.where) as terminal:
        terminal.wait_for("STARTED 3/10 pages")
        assert SHOWN in terminal.text
        terminal.interrupt()
        assert terminal.end() == 130
        assert "\x1b[?25h" in terminal.output
        assert "Traceback" not in terminal.text


@pytest.mark.slow
def test_a_question_in_a_terminal_takes_no_for_an_answer(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", id="a")
    for answer, code, state in (("", 1, JobState.QUEUED), ("y", 0, JobState.CANCELED)):
        with Terminal("cancel", "--path", "doc1", *system.where) as terminal:
            terminal.wait_for("[y/N]")
            terminal.send(f"{answer}\n")
            assert terminal.end() == code
        assert system.sched.get_sync("a").state == state


@pytest.mark.slow
def test_all_of_a_job_is_shown_in_a_narrow_terminal(system: System) -> None:
    system.enqueue("edit", "doc1", "intro", "x" * 30, id="a")
    with Terminal("show", "a", "--arguments", *system.where, columns=20) as terminal:
        assert terminal.end() == 0
    lines = terminal.text.splitlines()
    assert "state     QUEUED" in [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 20
    assert terminal.text.count("x") >= 30


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_fault(system: System) -> None:
    system.enqueue("step", id="a")
    command = [sys.executable, "-m", "queuehint", "show", "a", *system.where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_flow_show_names_the_dead_job_behind_a_stuck_flow(system: System) -> None:
    outside = system.enqueue("step", id="outside")
    between = system.enqueue("step", id="between", after=[outside])
    with system.sched.flow_sync("f") as flow:
        flow.add(system.sched._jobs["step"].using(name="last", after=[between]))
    assert system.json("flow", "show", "f")["state"] == "RUNNING"
    system.fail(system.claim()[0])
    assert system.json("flow", "show", "f") == {
        "flow": "f",
        "state": "STUCK",
        "done": 0,
        "total": 1,
        "states": {"DEFERRED": 1},
        "held_by": ["outside"],
    }
    shown = system.ok("flow", "show", "f")
    assert "STUCK" in shown
    assert "0 of 1" in shown
    assert "outside" in shown
    assert system.run("flow", "show", "nix").exit_code == 1


def test_flow_rerun_runs_named_jobs_and_dependents_again(system: System) -> None:
    with system.sched.flow_sync("f") as flow:
        first = flow.add(system.sched._jobs["step"].using(name="first"))
        second = flow.add(system.sched._jobs["step"].using(name="second"))
        flow.add(system.sched._jobs["step"].using(name="last", after=[first, second]))
    for count in (2, 1):
        for grant in system.claim(count):
            system.settle(grant)
    assert system.json("flow", "show", "f")["state"] == "FINISHED"
    assert system.ok("flow", "rerun", "f", "last", "--alone") == "f: 1 job runs again\n"
    system.settle(system.claim()[0])
    again = system.json("flow", "rerun", "f", "first", second.id, "--keep-steps")
    assert again == {"flow": "f", "done": "rerun", "changed": True, "reached": 3}
    assert system.run("flow", "rerun", "f", "nix").exit_code == 1
    assert system.run("flow", "rerun", "f").exit_code == 2
