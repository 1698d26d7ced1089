"""The examples do what they say, and those that check something notice when it is wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from examples import approvals, documents, imports, make_history, replay_history, replay_trace
from tests.recordings import recording
from tests.terminal import Terminal

ROOT = Path(__file__).resolve().parents[2]
STARTS = ["I run a document back end", "I import data", "I test ordering"]

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def replayed(history: replay_history.History, **options: Any) -> replay_history.Summary:
    return asyncio.run(replay_history.replay(history, **{"delay_s": 0.0005, **options}))


# --- a git repository with everything in it --------------------------------------------------------------------------

LONG_NAME = "n" * 300
DEEP_PATH = "/".join(f"d{level}" for level in range(80))
ODD_NAMES = [
    rb'"two\nlines"',
    rb'"tab\there"',
    rb'"\377\376 no text"',
    rb'"quote\"backslash\\"',
    b"100% done",
    b"100%25 done",
    "odd/Ü ber:目次".encode(),
    "odd/\N{RIGHT-TO-LEFT OVERRIDE}txt".encode(),
    b"root",
    f"long/{LONG_NAME}/below".encode(),
    DEEP_PATH.encode(),
]


def git(folder: Path, *arguments: str, question: bytes = b"") -> bytes:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], input=question, capture_output=True, check=True, env=env
    )
    return done.stdout


class Import:
    """Input of `git fast-import`: one commit after another, each a list of its commands for files."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._mark = 0

    def write(self, path: bytes, text: str, mode: str = "100644") -> bytes:
        return f"M {mode} inline ".encode() + path + b"\n" + f"data {len(text)}\n{text}\n".encode()

    def submodule(self, path: bytes, digit: str) -> bytes:
        return f"M 160000 {digit * 40} ".encode() + path + b"\n"

    def delete(self, path: bytes) -> bytes:
        return b"D " + path + b"\n"

    def commit(self, *commands: bytes, branch: str = "main", parents: Sequence[int] = ()) -> int:
        self._mark += 1
        self._lines.append(f"commit refs/heads/{branch}\nmark :{self._mark}\n".encode())
        self._lines.append(f"committer Ann <ann@example.org> {self._mark} +0000\ndata 0\n".encode())
        for word, parent in zip(("from", "merge"), parents, strict=False):
            self._lines.append(f"{word} :{parent}\n".encode())
        self._lines += commands
        self._lines.append(b"\n")
        return self._mark

    def run(self, folder: Path) -> Path:
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch=main")
        git(folder, "fast-import", "--quiet", question=b"".join(self._lines))
        return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    book = Import()
    first = book.commit(
        book.write(b"README", "one"), book.write(b"glossary", "words"), book.write(b"guide/a", "a"), parents=()
    )
    last = book.commit(book.write(b"README", "two"), book.write(b"guide/b", "b"), parents=[first])
    # A file becomes a folder, a folder becomes a file.
    last = book.commit(book.delete(b"glossary"), book.write(b"glossary/a", "words"), parents=[last])
    last = book.commit(book.delete(b"guide"), book.write(b"guide", "short"), parents=[last])
    # A branch that is merged: its commits do not count, the merge does.
    side = book.commit(book.write(b"side", "1"), branch="side", parents=[last])
    side = book.commit(book.write(b"side", "2"), branch="side", parents=[side])
    last = book.commit(book.write(b"README", "three"), parents=[last])
    last = book.commit(book.write(b"side", "2"), book.write(b"README", "four"), parents=[last, side])
    # A rename, a deletion, a change of mode, a link, a submodule that moves, nothing at all.
    last = book.commit(b"R README INTRO\n", book.write(b"run", "x"), parents=[last])
    last = book.commit(book.delete(b"side"), book.write(b"run", "x", "100755"), parents=[last])
    last = book.commit(book.write(b"link", "run", "120000"), book.submodule(b"sub", "1"), parents=[last])
    last = book.commit(book.submodule(b"sub", "2"), parents=[last])
    last = book.commit(parents=[last])
    last = book.commit(*(book.write(name, "odd") for name in ODD_NAMES), parents=[last])
    last = book.commit(*(book.write(name, "odder") for name in ODD_NAMES), parents=[last])
    book.commit(*(book.delete(name) for name in ODD_NAMES[:4]), parents=[last])
    return book.run(tmp_path / "the book")


@needs_git
def test_a_git_history_is_replayed_in_order(repository: Path) -> None:
    history = replay_history.load_git(repository, every=1)
    assert len(history.commits) == 14
    assert history.start == {}
    summary = replayed(history)
    assert summary.faults == []
    assert summary.is_right
    assert summary.changes_right == summary.changes == sum(len(commit.changes) for commit in history.commits)
    assert summary.checks_right == summary.checks == 14
    assert 1 < summary.greatest <= 16
    assert 0 < summary.mean <= 16


@needs_git
def test_the_last_tree_is_gits_own_listing(repository: Path) -> None:
    listing = git(repository, "ls-tree", "-r", "-z", "HEAD").split(b"\0")[:-1]
    files = replay_history.read_tree(repository, "HEAD")
    assert len(files) == len(listing)  # no two names were taken for one
    assert files["sub"] == f"160000 {'2' * 40}"
    assert files["link"].startswith("120000 ")
    assert files["run"].startswith("100755 ")
    assert {"guide", "glossary/a", "INTRO", "100%25 done", "100%2525 done"} <= files.keys()
    assert {"README", "side", "guide/a", "guide/b", "two%0Alines"}.isdisjoint(files)
    history = replay_history.load_git(repository)
    assert history.commits[-1].tree == replay_history.digest(files)


@pytest.mark.slow
@needs_git
@pytest.mark.parametrize("limit", [1, 4, 13, 14, 99])
def test_the_last_commits_are_replayed_on_the_tree_before_them(repository: Path, limit: int) -> None:
    history = replay_history.load_git(repository, limit=limit, every=1)
    assert len(history.commits) == min(limit, 14)
    assert bool(history.start) == (limit < 14)
    assert replayed(history, delay_s=0).is_right


@needs_git
def test_a_history_with_very_many_changes_is_cut(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_history, "CHANGES_MAX", 20)
    history = replay_history.load_git(repository)
    assert len(history.commits) == 2  # 4 + 11 changes; 11 more would be too many
    assert replayed(history, delay_s=0).is_right


@needs_git
def test_a_shallow_clone_will_do(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--bare", "--depth=3", repository.as_uri(), str(clone))
    history = replay_history.load_git(clone, every=1)
    assert len(history.commits) == 3
    assert history.start == {}
    assert replayed(history, delay_s=0).is_right


@needs_git
def test_replay_command_prints_its_findings(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay_history.main(["--repo", str(repository), "--delay", "0", "--quiet", "--every", "3"]) == 0
    output = capsys.readouterr().out
    assert "the book, 14 commits" in output
    assert "checks    5 of 5 saw" in output
    assert "as recorded, file by file" in output


@needs_git
@pytest.mark.parametrize("broken", ["checks", "changes"])
def test_the_command_notices_a_broken_order(repository: Path, broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay_history.main(["--repo", str(repository), "--delay", "1", "--every", "1", "--break", broken]) == 1
    assert "  ! " in capsys.readouterr().out


@needs_git
def test_without_commits_there_is_nothing_to_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(tmp_path, "init", "--quiet")
    assert replay_history.main(["--repo", str(tmp_path)]) == 2
    assert replay_history.main(["--repo", str(tmp_path / "missing")]) == 2
    assert str(tmp_path) in capsys.readouterr().err


# --- recorded histories ----------------------------------------------------------------------------------------------


def test_the_bundled_history_is_replayed_in_order() -> None:
    summary = replayed(replay_history.load_recorded(replay_history.BUNDLED))
    assert summary.faults == []
    assert summary.is_right
    assert summary.checks == 20
    assert summary.greatest == 16


def test_bundled_history_equals_its_generator() -> None:
    bundled = json.loads(gzip.decompress(replay_history.BUNDLED.read_bytes()))
    assert bundled == json.loads(json.dumps(make_history.make_history()))


@pytest.mark.parametrize("seed", [2, 3])
def test_another_invented_history_is_in_order_too(seed: int, tmp_path: Path) -> None:
    file = tmp_path / "history.json.gz"
    assert make_history.main([str(file), "--seed", str(seed), "--commits", "60"]) == 0
    assert replayed(replay_history.load_recorded(file, every=1), seed=seed, delay_s=0).is_right


def test_a_history_recorded_by_others_is_replayed_in_order() -> None:
    history = replay_history.load_recorded(recording("history-sortedcontainers.json.gz"))
    summary = replayed(history)
    assert summary.faults == []
    assert summary.is_right
    assert (summary.changes, summary.checks) == (3150, 25)


def test_checks_without_a_place_are_noticed() -> None:
    history = replay_history.load_recorded(replay_history.BUNDLED, limit=40)
    summary = replayed(history, broken="checks", delay_s=0.001)
    assert not summary.is_right
    assert "paced: each job sleeps 1.0 ms on average" in str(summary)
    assert summary.checks_right < summary.checks
    assert summary.changes_right == summary.changes
    assert summary.tree_right


def test_changes_without_a_place_are_noticed() -> None:
    history = replay_history.load_recorded(replay_history.BUNDLED, limit=40)
    summary = replayed(history, broken="changes", delay_s=0.001)
    assert not summary.is_right
    assert summary.checks_right < summary.checks
    assert summary.changes_right < summary.changes


def test_missing_or_excess_change_is_noticed_by_later_checks() -> None:
    history = replay_history.load_recorded(replay_history.BUNDLED, limit=40)
    # Without overlap nothing but the checks themselves can find it.
    for index, changes in ((5, history.commits[5].changes[:-1]), (5, [*history.commits[5].changes, ("more", "1 2")])):
        commits = list(history.commits)
        commits[index] = attrs.evolve(commits[index], changes=changes)
        summary = replayed(attrs.evolve(history, commits=commits), concurrency=1, delay_s=0)
        assert summary.changes_right == summary.changes
        assert summary.checks_right < summary.checks


def test_last_commits_of_a_history_are_replayed_on_their_tree() -> None:
    history = replay_history.load_recorded(replay_history.BUNDLED, limit=10, every=1)
    assert len(history.commits) == 10
    assert history.start
    summary = replayed(history, delay_s=0)
    assert summary.is_right
    assert summary.checks == 10


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"commits": []}',
        b'{"commits": [{}]}',
        b'{"commits": [{"changes": [["a"]]}]}',
        b'{"commits": [{"changes": [["a", 1]]}]}',
        b'{"commits": [{"changes": [["a", "1 2"], ["a", null]]}]}',
        b'{"commits": [{"changes": [["\\ud800", "1 2"]]}]}',
        b"\x1f\x8bnot gzip",
    ],
)
def test_another_file_is_no_history(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.json"
    file.write_bytes(content)
    assert replay_history.main(["--history", str(file)]) == 2
    assert "history.json" in capsys.readouterr().err


def test_path_without_a_valid_hint_is_placed_at_its_folder() -> None:
    assert replay_history.place("r", "a/two\nlines") == ["r", "a", "two%0Alines"]
    assert replay_history.place("r", f"a/{LONG_NAME}/b") == ["r", "a"]
    assert replay_history.place("r", DEEP_PATH) == ["r", *DEEP_PATH.split("/")[:63]]
    assert sum(map(len, replay_history.place("r", "/".join(["n" * 250] * 20)))) <= 4096
    assert replay_history.place("r", "a//b") == ["r", "a"]


# --- what `make demo` does -------------------------------------------------------------------------------------------


@needs_git
def test_shallow_clone_is_replaced_by_the_bundled_history(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_history, "ROOT", repository)
    histories = replay_history.default_histories(limit=None, every=None)
    assert [history.repository for history in histories] == ["the book", "imaginary-handbook"]
    monkeypatch.setattr(replay_history, "COMMITS_FEW", 5)
    assert len(replay_history.default_histories(limit=None, every=None)) == 1


@needs_git
def test_inside_some_other_repository_the_bundled_history_is_taken(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = repository / "vendor"
    below.mkdir()
    monkeypatch.setattr(replay_history, "ROOT", below)
    assert [h.repository for h in replay_history.default_histories(limit=None, every=None)] == ["imaginary-handbook"]


def test_without_git_the_bundled_history_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [h.repository for h in replay_history.default_histories(limit=5, every=None)] == ["imaginary-handbook"]
    assert "git is not installed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("script", ["replay_history.py --limit 10 --delay 0", "imports.py"])
def test_examples_run_as_scripts(script: str, tmp_path: Path) -> None:
    name, *arguments = script.split()
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "\r" not in done.stderr  # no bar where nobody sees it


@pytest.mark.parametrize("rich", [True, False])
def test_a_progress_bar_is_drawn_with_and_without_rich(
    rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
        monkeypatch.delitem(sys.modules, "examples.replay_view", raising=False)
    commits = [replay_history.Commit([("a", "1"), ("b/c", "2")], tree="digest")]
    with replay_history.shown_live(replay_history.History("r", "r", {}, commits), shown=True) as report:
        report(0, 1, "a", True)
        report(1, 1, "b/c", True)
        report(3, 0, None, False)
    output = capsys.readouterr()
    assert "3 of 3" in output.err or "3/3" in output.err
    assert output.out == ""


@pytest.mark.slow
def test_terminal_shows_parallel_folders_between_barriers_and_the_verdict() -> None:
    pytest.importorskip("rich")
    program = [str(ROOT / "examples" / "replay_history.py"), "--history", str(replay_history.BUNDLED)]
    with Terminal("--limit", "6", "--every", "2", "--delay", "1", program=program, columns=80) as terminal:
        assert terminal.end() == 0
    view, _, after = terminal.text.partition("3/3 barriers")
    assert "folders in parallel" in view
    walls = [line for line in view.splitlines() if "┃" in line and "barrier" not in line]
    assert {line.split()[0] for line in walls} >= {"cookbook", "guide"}
    assert max(map(len, view.splitlines())) <= 80
    assert [line.strip() for line in after.splitlines() if "of 3 saw" in line]
    assert "Proved by this run: 37 changes" in after
    assert all((ROOT / page).exists() for page in re.findall(r"docs/\S+", after))
    assert [line[2:].split("   ")[0] for line in after.splitlines() if line.startswith("  I ")] == STARTS


def test_barrier_has_its_own_column_and_is_red_on_overlap() -> None:
    view = pytest.importorskip("examples.replay_view")
    lanes = view.Lanes({"a/x": 3, "b/y": 2})
    assert lanes.names == ["a", "b"]
    lanes.note("a/x", begins=True)
    lanes.note("a/x", begins=True)
    lanes.note("a/x", begins=False)
    lanes.note("a/x", begins=False)
    lanes.note(None, begins=True)
    lanes.note(None, begins=False)
    lanes.note("b/y", begins=True)
    lanes.note(None, begins=True)
    assert [lanes.drawn(lane, 5).plain for lane in (0, 1)] == [" ▂┃ ┃", "  ┃▁▁"]
    assert "red" in str(lanes.drawn(1, 1).spans[0].style)
    assert (lanes.checks, lanes.checks_done) == (1, 1)
    assert [lanes.drawn(lane, 5, ascii_only=True).plain for lane in (0, 1)] == [" 2| |", "  |11"]


def test_a_replay_out_of_order_says_that_it_was_noticed() -> None:
    summary = replayed(replay_history.load_recorded(replay_history.BUNDLED, limit=10, every=2), broken="checks")
    said = replay_history.conclusion([summary], broken="checks")
    assert said.startswith("Noticed: ")
    assert "nothing kept" in said


# --- documents recorded by the keystroke -----------------------------------------------------------------------------


def typed_document(seed: int, length: int = 400) -> dict[str, Any]:
    rng = random.Random(seed)
    text = ""
    transactions: list[dict[str, Any]] = []
    for _ in range(length):
        patches = []
        for _ in range(rng.choice((1, 1, 2))):
            position = rng.randint(0, len(text))
            deleted = rng.randint(0, min(2, len(text) - position))
            inserted = rng.choice(("a", "é", "𝑛", "word ", "\n"))
            text = text[:position] + inserted + text[position + deleted :]
            patches.append([position, deleted, inserted])
        transactions.append({"time": "", "patches": patches})
    return {"startContent": "", "endContent": text, "txns": transactions}


@pytest.fixture
def typed(tmp_path: Path) -> list[str]:
    files: list[Path] = []
    for seed in (1, 2, 3):
        files.append(tmp_path / f"typed-{seed}.json.gz")
        files[-1].write_bytes(gzip.compress(json.dumps(typed_document(seed)).encode()))
    return [str(file) for file in files]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7])
def test_documents_end_as_they_were_typed(typed: list[str], batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay_trace.main([*typed, "--batch", str(batch)]) == 0
    assert capsys.readouterr().out.count(", as recorded") == 3


def test_different_documents_run_side_by_side(typed: list[str]) -> None:
    summary = asyncio.run(replay_trace.replay([replay_trace.load(Path(file)) for file in typed]))
    assert summary.wrong == []
    assert summary.jobs == 1200
    assert summary.overlaps > 0


def test_recorded_documents_end_as_recorded() -> None:
    names = ["trace-friendsforever_flat.json.gz", "trace-sveltecomponent.json.gz"]
    traces = [replay_trace.load(recording(name)) for name in names]
    summary = asyncio.run(replay_trace.replay(traces, batch=20))
    assert summary.wrong == []
    assert [summary.texts[trace.name] for trace in traces] == [trace.end for trace in traces]


def test_edits_without_a_place_are_noticed(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert replay_trace.main([*typed, "--break"]) == 1
    assert capsys.readouterr().out.count("NOT as recorded") == 3


def test_one_edit_too_few_is_noticed(typed: list[str]) -> None:
    trace = replay_trace.load(Path(typed[0]))
    trace = attrs.evolve(trace, transactions=[*trace.transactions[:100], *trace.transactions[101:]])
    assert asyncio.run(replay_trace.replay([trace])).wrong == [trace.name]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"txns": [{"patches": [[0, 0]]}]}', b"\x1f\x8b"])
def test_another_file_is_no_document(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "document.json"
    file.write_bytes(content)
    assert replay_trace.main([str(file)]) == 2
    assert replay_trace.main([str(tmp_path / "missing.json")]) == 2
    assert "document.json" in capsys.readouterr().err


# --- the back end of an editor ---------------------------------------------------------------------------------------


async def request(method: str, path: str, body: Any = None, *, messages: Any = None) -> tuple[int, Any]:
    """Send one request to the application and return status and content."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    incoming = iter(messages or [{"type": "http.request", "body": data, "more_body": False}])
    sent: list[documents.Message] = []

    async def receive() -> documents.Message:
        message: documents.Message = next(incoming)
        return message

    async def send(message: documents.Message) -> None:
        sent.append(message)

    await documents.app({"type": "http", "method": method, "path": path, "raw_path": path.encode()}, receive, send)
    begin, end = sent
    assert dict(begin["headers"])[b"content-length"] == str(len(end["body"])).encode()
    return begin["status"], json.loads(end["body"])


@asynccontextmanager
async def served() -> AsyncIterator[None]:
    """Run the application as a server does, from start-up to shut-down."""
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    outgoing: asyncio.Queue[Any] = asyncio.Queue()
    living = asyncio.create_task(documents.app({"type": "lifespan"}, incoming.get, outgoing.put))
    try:
        await incoming.put({"type": "lifespan.startup"})
        assert await outgoing.get() == {"type": "lifespan.startup.complete"}
        yield
        await incoming.put({"type": "lifespan.shutdown"})
        assert await outgoing.get() == {"type": "lifespan.shutdown.complete"}
    finally:
        living.cancel()
        await asyncio.wait([living])
        await documents.sched.close()


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "store", documents.Store())


async def test_edit_is_a_job_with_a_readable_result() -> None:
    async with served():
        status, reply = await request("POST", "/documents/doc1/sections/intro", {"insert": "Hello"})
        assert status == 202
        assert await documents.sched.handle(reply["job"]).result(timeout=60) == 5
        status, job = await request("GET", f"/jobs/{reply['job']}")
        assert (status, job["state"], job["result"], job["error"]) == (200, "FINISHED", 5, None)
        assert await request("GET", "/documents/doc1") == (
            200,
            {"sections": {"intro": "Hello"}, "snapshot": None},
        )


async def test_edits_of_a_section_are_in_order() -> None:
    async with served():
        for number in range(50):
            await request("POST", f"/documents/doc1/sections/{number % 2}", {"insert": f"{number} "})
        await request("POST", "/documents/doc1/sections/0", {"insert": "first ", "at": 0, "delete": 2})
        await documents.sched.drain(["doc1"], timeout=60)
        _, reply = await request("GET", "/documents/doc1")
        assert reply["sections"]["0"] == "first " + "".join(f"{number} " for number in range(2, 50, 2))
        assert reply["sections"]["1"] == "".join(f"{number} " for number in range(1, 50, 2))


async def test_snapshot_contains_exactly_the_earlier_edits() -> None:
    async with served():
        await documents.sched.pause(["doc1"])
        edits = []
        for section in ("a", "b", "c"):
            _, edit = await request("POST", f"/documents/doc1/sections/{section}", {"insert": section})
            edits.append(edit)
        _, snapshot = await request("POST", "/documents/doc1/snapshot")
        _, late = await request("POST", "/documents/doc1/sections/a", {"insert": "late"})
        _, waiting = await request("GET", f"/jobs/{snapshot['job']}")
        assert waiting["state"] == "QUEUED"
        assert "waits for the place of" in waiting["why"]
        assert all(edit["job"] in waiting["why"] for edit in edits)
        _, behind = await request("GET", f"/jobs/{late['job']}")
        assert behind["state"] == "QUEUED"
        # Another document does not wait.
        _, other = await request("POST", "/documents/doc2/snapshot")
        assert await documents.sched.handle(other["job"]).result(timeout=60) == ""
        await documents.sched.resume(["doc1"])
        await documents.sched.drain(timeout=60)
        _, done = await request("GET", f"/jobs/{snapshot['job']}")
        assert done["result"] == "a\n\nb\n\nc"
        _, reply = await request("GET", "/documents/doc1")
        assert reply == {"sections": {"a": "alate", "b": "b", "c": "c"}, "snapshot": "a\n\nb\n\nc"}


async def test_document_names_may_contain_path_separators() -> None:
    async with served():
        await request("POST", "/documents/a%2Fb%3Ac/sections/%C3%9C", {"insert": "x"})
        await documents.sched.drain(timeout=60)
        assert await request("GET", "/documents/a%2Fb%3Ac") == (200, {"sections": {"Ü": "x"}, "snapshot": None})


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("GET", "/documents/unknown", None, 404),
        ("GET", "/jobs/unknown", None, 404),
        ("GET", "/jobs/", None, 404),
        ("GET", "/", None, 404),
        ("GET", "/documents/doc1/snapshot", None, 405),
        ("POST", "/documents/doc1", None, 405),
        ("POST", "/documents//snapshot", None, 400),
        ("POST", "/documents/two%0Alines/snapshot", None, 400),
        ("POST", f"/documents/{'n' * 300}/snapshot", None, 400),
        ("POST", "/documents/doc1/sections/a", b"", 400),
        ("POST", "/documents/doc1/sections/a", b"\xff", 400),
        ("POST", "/documents/doc1/sections/a", [1], 400),
        ("POST", "/documents/doc1/sections/a", {"insert": 1}, 400),
        ("POST", "/documents/doc1/sections/a", {"insert": "x", "at": -1}, 400),
        ("POST", "/documents/doc1/sections/a", {"insert": "x", "delete": "1"}, 400),
        ("POST", "/documents/doc1/sections/a", {"text": "x"}, 400),
        ("POST", "/documents/doc1/sections/a", b'{"insert": "\\ud800"}', 400),
        ("POST", "/documents/doc1/sections/a", b" " * 1_000_001, 413),
    ],
)
async def test_impossible_request_gets_an_error_reply(method: str, path: str, body: Any, status: int) -> None:
    async with served():
        answered, reply = await request(method, path, body)
        assert answered == status
        assert reply["error"]
        assert (await documents.sched.stats()).enqueued == 0


async def test_a_request_that_breaks_off_enqueues_nothing() -> None:
    async with served():
        messages = [
            {"type": "http.request", "body": b'{"insert": "x"}', "more_body": True},
            {"type": "http.disconnect"},
        ]
        status, _ = await request("POST", "/documents/doc1/sections/a", messages=messages)
        assert status == 400
        assert (await documents.sched.stats()).enqueued == 0


# --- approvals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_payments_wait_for_a_person_beside_one_another(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    ends = asyncio.run(approvals.run(20, seed=seed))
    assert capsys.readouterr().out == ("20 mails are sent, 20 payments wait, and the worker has nothing to do\n")
    assert (sum(ends.values()), ends["nobody has decided"]) == (20, 4)
    assert len(set(approvals.world.mails)) == len(approvals.world.mails) == 20
    assert len(set(approvals.world.paid)) == len(approvals.world.paid) == ends["paid"] > 0


# --- an import -------------------------------------------------------------------------------------------------------


def test_import_is_checked_then_loaded_in_parallel_then_summed() -> None:
    reports, spans = asyncio.run(imports.run_imports(imports.FILES, step_s=0.005))
    assert [(report.loaded, report.total, report.rejected) for report in reports] == [
        (4, 54, ["fern"]),
        (3, 65, []),
        (3, 38, ["slate"]),
    ]
    assert len(spans) == 18
    for import_id, records in imports.FILES.items():
        mine = [span for span in spans if span.place[0] == import_id]
        [first] = [span for span in mine if span.task == "validate"]
        [last] = [span for span in mine if span.task == "summarise"]
        loads = [span for span in mine if span.task == "load"]
        assert {span.place[1] for span in loads} == set(records)
        assert all(first.ended_s <= span.began_s and span.ended_s <= last.began_s for span in loads)
        assert imports.greatest_at_once(mine) > 1
    assert imports.greatest_at_once(spans) >= max(map(len, imports.FILES.values()))


def test_import_draws_a_timeline_of_its_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert imports.main() == 0
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.endswith("|")]
    assert len(rows) == 18
    assert all("#" in row for row in rows)
    assert any(row.endswith("#|") for row in rows)  # the last to end ends at the right
    assert "plants: 4 records, 54 in all, rejected fern" in output
