"""
Replay the history of a git repository as jobs, and see that every one of them kept its place.

Each file that a commit changed becomes a job at ``[repository, *folders, file]``; now and then, and at the end, a job
at ``[repository]`` checks the whole tree. No edge between jobs is written anywhere, the places say it all:

- changes of one file run one after another, in the order of the commits;
- changes of different files run side by side, those of different commits too;
- a path that was a file and becomes a folder (or the other way round) is in order as well: one place is then a
  prefix of the other;
- a check waits for all changes enqueued before it and holds back all enqueued after it: a barrier by place.

The replay verifies this. A change knows what it must find, a check knows the tree as git lists it, and both look again
after a little random delay: had any job run too early, too late, twice or not at all, the replay would say so and exit
with 1. To see it fail, place the checks nowhere: ``--break checks``.

    python examples/replay_history.py                      this repository; without a history, a recorded one
    python examples/replay_history.py --repo ~/src/attrs   any other
    python examples/replay_history.py --history FILE       one recorded as JSON, see `load_recorded`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import hashlib
import json
import os
import random
import secrets
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from queuehint import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = Path(__file__).resolve().parent / "data" / "history-small.json.gz"

# Bounds of a replay unless --limit is given: a merge may well change thousands of files.
COMMITS_MAX = 2_000
CHANGES_MAX = 20_000
# A clone with a shorter history than this is followed by the bundled one, so that there is something to see.
COMMITS_FEW = 20
CHECKS = 40
# Delays are chosen so that a replay takes about this long at the usual overlap, but are never longer than this.
REPLAY_S = 10.0
OVERLAP = 8
DELAY_MAX_S = 0.05

# Limits of a queue hint: bytes in a segment, segments, bytes in all.
SEGMENT_BYTES_MAX, DEPTH_MAX, PATH_BYTES_MAX = 256, 64, 4096

Change = tuple[str, str | None]
"""A path and what is there from now on, as ``"mode blob"``; None if nothing is."""

Report = Callable[[int, int, str | None, bool], None]
"""Called when a job begins or ends: jobs done, jobs running, the path it changes (None: a check), whether it begins."""

WIDTH = 78
"""Of the text at the end, in columns."""
STARTS = """\
Where to go on:
  I run a document back end   docs/tutorial/first-steps.md
  I import data               docs/tutorial/import-pipeline.md
  I test ordering             docs/tutorial/testing.md"""


class HistoryError(Exception):
    """There is no history to replay here."""


class OrderError(Exception):
    """A job did not find what the jobs before it should have left."""


@attrs.frozen
class Commit:
    """The changes of one commit, each path once; *tree* is the digest of the whole tree after it, if it is checked."""

    changes: Sequence[Change]
    tree: str | None = None


@attrs.frozen
class History:
    """Commits to replay on top of the tree *start*; the last one always has the digest of its tree."""

    repository: str
    title: str
    start: Mapping[str, str]
    commits: Sequence[Commit]


@attrs.frozen(kw_only=True)
class Summary:
    """The work of a replay and its findings."""

    changes: int
    changes_right: int
    checks: int
    checks_right: int
    tree_right: bool
    faults: Sequence[str]
    greatest: int
    mean: float
    seconds: float
    delay_s: float

    @property
    def is_right(self) -> bool:
        """Every job ran once and found what it should, and the tree is right at the end."""
        return self.changes_right == self.changes and self.checks_right == self.checks and self.tree_right

    def __str__(self) -> str:
        lines = [
            f"  changes   {self.changes_right} of {self.changes} in order",
            f"  checks    {self.checks_right} of {self.checks} saw the changes before them and none after",
            f"  at once   {self.greatest} at most, {self.mean:.1f} on average",
            f"  time      {self.seconds:.1f} s, paced: each job sleeps {self.delay_s * 1000:.1f} ms on average",
            f"  tree      {'as recorded, file by file' if self.tree_right else 'NOT AS RECORDED'}",
        ]
        return "\n".join(lines + [f"  ! {fault}" for fault in self.faults])


# --- the replay ------------------------------------------------------------------------------------------------------


async def replay(
    history: History,
    *,
    concurrency: int = 16,
    delay_s: float | None = None,
    seed: int = 0,
    broken: Literal["changes", "checks"] | None = None,
    report: Report = lambda *_: None,
) -> Summary:
    """
    Run a history through a scheduler.

    Args:
        concurrency: slots of the worker.
        delay_s: how long a job takes on average; None: such that the whole takes some seconds.
        seed: of the random delays.
        broken: which jobs to give no place, to see that it is noticed.
        report: called when a job begins or ends.
    """
    # A namespace of its own: the tree lives in this process, so no other one may run the jobs.
    sched = Scheduler(namespace=f"replay-{secrets.token_hex(6)}")
    tree = Tree(history.start)
    overlap = Overlap(report)
    right: Counter[str] = Counter()

    @sched.job(queue_hint=place, max_attempts=1)
    async def change(repository: str, path: str, before: str | None, after: str | None, pause_s: float) -> None:
        with overlap.one(path):
            problem = tree.problem(path, before, after)
            await asyncio.sleep(pause_s)
            problem = problem or tree.problem(path, before, after)
            tree.put(path, after)
        if problem:
            raise OrderError(problem)
        right["changes"] += 1

    @sched.job(queue_hint=["{repository}"], max_attempts=1)
    async def check(repository: str, number: int, expected: str, pause_s: float) -> None:
        with overlap.one(None):
            found, puts = tree.digest(), tree.puts
            await asyncio.sleep(pause_s)
        if found != expected:
            raise OrderError(f"the tree that the check after commit {number} saw is not the tree of that commit")
        if tree.puts != puts:
            raise OrderError(f"the tree changed during the check after commit {number}")
        right["checks"] += 1

    change_job = change.using(queue_hint=None) if broken == "changes" else change
    check_job = check.using(queue_hint=None) if broken == "checks" else check
    changes = sum(len(commit.changes) for commit in history.commits)
    checks = sum(commit.tree is not None for commit in history.commits)
    if delay_s is None:
        delay_s = min(DELAY_MAX_S, REPLAY_S * OVERLAP / (changes + checks))
    rng = random.Random(seed)
    content = dict(history.start)

    async with sched, sched.worker(concurrency):
        for number, commit in enumerate(history.commits, 1):
            calls = []
            for path, after in deletions_first(commit.changes):
                pause_s = rng.uniform(0, 2 * delay_s)
                calls.append((history.repository, path, content.get(path), after, pause_s))
                put(content, path, after)
            await change_job.enqueue_many(calls)
            if commit.tree is not None:
                await check_job.enqueue(history.repository, number, commit.tree, rng.uniform(0, 2 * delay_s))
            # Enqueuing into memory never has to wait: give the worker a turn, as a store on the network would.
            await asyncio.sleep(0)
        await sched.drain()
        dead = await sched.dead.list(limit=5)

    return Summary(
        changes=changes,
        changes_right=right["changes"],
        checks=checks,
        checks_right=right["checks"],
        tree_right=tree.digest() == history.commits[-1].tree,
        faults=[record.errors[-1].message for record in dead if record.errors],
        greatest=overlap.greatest,
        mean=overlap.mean,
        seconds=overlap.seconds,
        delay_s=delay_s,
    )


def place(repository: str, path: str, **_: object) -> list[str]:
    """
    Return the queue hint of a path: its segments below the repository.

    Odd characters are percent-escaped. A path that is too long or too deep for a hint is placed at the folder that
    fits: a coarser place has more jobs to wait for, never fewer.

    >>> place("project", "guide/images/cover.svg")
    ['project', 'guide', 'images', 'cover.svg']
    """
    hint = [repository]
    bytes_left = PATH_BYTES_MAX - len(repository.encode())
    for name in path.split("/"):
        segment = escaped(name) if not name.isprintable() else name
        size = len(segment.encode())
        bytes_left -= size
        if not 0 < size <= SEGMENT_BYTES_MAX or bytes_left < 0 or len(hint) == DEPTH_MAX:
            break
        hint.append(segment)
    return hint


class Tree:
    """The files that the handlers write: what is where, and how many files are below each folder."""

    def __init__(self, start: Mapping[str, str]) -> None:
        self.files: dict[str, str] = {}
        self.folders: Counter[str] = Counter()
        self.puts = 0
        for path, entry in start.items():
            self.put(path, entry)

    def problem(self, path: str, before: str | None, after: str | None) -> str | None:
        """Say what is wrong with the tree for a change from *before* to *after*, if anything is."""
        found = self.files.get(path)
        if found != before:
            return f"{path} is {found or 'missing'}, expected {before or 'nothing'}"
        if after is not None and self.folders[path]:
            return f"{path} is still a folder"
        if after is not None and (files := [folder for folder in folders_of(path) if folder in self.files]):
            return f"{files[0]} is still a file, {path} needs a folder there"
        return None

    def put(self, path: str, entry: str | None) -> None:
        """Write a file, or delete it."""
        more = (entry is not None) - (path in self.files)
        for folder in folders_of(path):
            self.folders[folder] += more
        put(self.files, path, entry)
        self.puts += 1

    def digest(self) -> str:
        """Return the digest of the whole tree."""
        return digest(self.files)


class Overlap:
    """Counts how many handlers run at once, and reports each that begins or ends."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._began = self._ended = time.perf_counter()
        self._busy_s = 0.0
        self._running = 0
        self._done = 0
        self.greatest = 0

    @contextlib.contextmanager
    def one(self, path: str | None) -> Iterator[None]:
        """Count one handler while the block runs: of a change of *path*, of a check if it is None."""
        began = time.perf_counter()
        self._running += 1
        self.greatest = max(self.greatest, self._running)
        self._report(self._done, self._running, path, True)
        try:
            yield
        finally:
            self._running -= 1
            self._done += 1
            self._ended = time.perf_counter()
            self._busy_s += self._ended - began
            self._report(self._done, self._running, path, False)

    @property
    def seconds(self) -> float:
        """From the beginning to the end of the last handler."""
        return self._ended - self._began

    @property
    def mean(self) -> float:
        """How many ran at once, on average over time."""
        return self._busy_s / self.seconds if self.seconds else 0.0


def put(files: dict[str, str], path: str, entry: str | None) -> None:
    """Write a file into a plain mapping, or delete it."""
    if entry is None:
        files.pop(path, None)
    else:
        files[path] = entry


def digest(files: Mapping[str, str]) -> str:
    """Return the sha256 of the lines ``path TAB "mode blob"``, sorted by path and joined by newline."""
    return hashlib.sha256("\n".join(f"{path}\t{files[path]}" for path in sorted(files)).encode()).hexdigest()


def folders_of(path: str) -> Iterator[str]:
    """
    Yield the folders a path is in, the outermost first.

    >>> list(folders_of("guide/images/cover.svg"))
    ['guide', 'guide/images']
    """
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def deletions_first(changes: Iterable[Change]) -> list[Change]:
    """Order the changes of one commit so that a file is gone before a folder of its name comes, and so on."""
    return sorted(changes, key=lambda change: change[1] is not None)


def escaped(name: str) -> str:
    r"""
    Percent-escape ``%`` and all that cannot be printed, also bytes that are no text (as `os.fsdecode` reads them).

    >>> escaped("100% new\nline")
    '100%25 new%0Aline'
    """
    return "".join(
        character
        if character.isprintable() and character != "%"
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))
        for character in name
    )


# --- where histories come from ---------------------------------------------------------------------------------------


def load_git(folder: Path, *, limit: int | None = None, every: int | None = None) -> History:
    """
    Read the history of a git repository, merges by their first parent, and its trees as git lists them.

    Args:
        folder: anywhere inside the repository.
        limit: the last so many commits, on top of the tree before them; None: `COMMITS_MAX`, with `CHANGES_MAX`.
        every: check after every so many commits, and after the last; None: about `CHECKS` checks.

    Raises:
        HistoryError: no git, no repository, or no commits in it.
    """
    # The newest first, each with its parents; in a shallow clone the oldest is said to have none.
    count = f"--max-count={limit or COMMITS_MAX}"
    lines = git(folder, "rev-list", "--first-parent", "--parents", count, "HEAD").decode().splitlines()
    if not lines:
        raise HistoryError(f"{folder} has no commits")
    ids: list[str] = []
    changes: list[list[Change]] = []
    changes_total = 0
    for begin in range(0, len(lines), 100):
        pairs = [line.split()[:2] for line in lines[begin : begin + 100]]
        changed = read_changes(folder, pairs)
        for commit_id, *_ in pairs:
            found = changed.get(commit_id, [])
            changes_total += len(found)
            if ids and limit is None and changes_total > CHANGES_MAX:
                break
            ids.append(commit_id)
            changes.append(found)
        if len(ids) < begin + len(pairs):
            break
    oldest = lines[len(ids) - 1].split()
    start = read_tree(folder, oldest[1]) if len(oldest) > 1 else {}
    every = every or max(1, len(ids) // CHECKS)
    commits = [
        Commit(found, digest(read_tree(folder, commit_id)) if number % every == 0 or number == len(ids) else None)
        for number, (commit_id, found) in enumerate(zip(reversed(ids), reversed(changes), strict=True), 1)
    ]
    name = escaped(folder.resolve().name)[: SEGMENT_BYTES_MAX // 4] or "repository"
    title = f"{name}, {plural(len(commits), 'commit')}"
    if len(oldest) > 1:
        title += " (the last ones, on top of the tree before them; --limit takes more or fewer)"
    return History(name, title, start, commits)


def read_changes(folder: Path, pairs: Iterable[Sequence[str]]) -> dict[str, list[Change]]:
    """Return what commits changed, each given with the parent to compare it with, if it has one."""
    question = "".join(f"{' '.join(pair)}\n" for pair in pairs)
    options = ("--stdin", "-r", "-z", "--root", "--no-renames", "--no-abbrev", "--ignore-submodules=none")
    fields = iter(git(folder, "diff-tree", *options, question=question.encode()).split(b"\0"))
    changed: dict[str, list[Change]] = {}
    changes: list[Change] = []
    for field in fields:
        if field.startswith(b":"):  # :mode_before mode_after blob_before blob_after status, then the path
            _, mode, _, blob, status = field.decode().split(" ")
            changes.append((text_of(next(fields)), None if status == "D" else f"{mode} {blob}"))
        elif field:
            changes = changed[field.decode().strip()] = []
    return changed


def read_tree(folder: Path, commit_id: str) -> dict[str, str]:
    """Return git's own listing of a commit: every file, link and submodule."""
    files = {}
    for entry in git(folder, "ls-tree", "-r", "-z", "--full-tree", commit_id).split(b"\0"):
        if entry:
            facts, _, path = entry.partition(b"\t")
            mode, _, blob = facts.decode().split(" ")
            files[text_of(path)] = f"{mode} {blob}"
    return files


def text_of(path: bytes) -> str:
    """Return a path as text that can be sent, printed and compared; no two paths give the same."""
    return escaped(path.decode("utf-8", "surrogateescape"))


def git(folder: Path, *arguments: str, question: bytes = b"") -> bytes:
    """Run git and return what it prints."""
    # Inside a git hook these would point to the repository of the hook.
    unwanted = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], input=question, capture_output=True, check=True, env=env
        )
    except FileNotFoundError:
        raise HistoryError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise HistoryError(f"{folder}: {reason or f'git {arguments[0]} failed'}") from None
    return done.stdout


def load_recorded(file: Path, *, limit: int | None = None, every: int | None = None) -> History:
    """
    Read a recorded history, JSON or gzipped JSON.

    It holds ``repository`` and ``commits``, each commit ``changes``, a list of ``[path, "mode blob" or null]``, and
    where it was recorded ``tree``, the `digest` of the whole tree.

    Args:
        limit: the last so many commits, on top of the tree before them.
        every: check after every so many commits too, with what a plain loop makes of the changes.

    Raises:
        HistoryError: the file cannot be read, or is something else.
    """
    try:
        data = file.read_bytes()
        recorded: Any = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        repository = str(recorded.get("repository") or file.stem)
        commits = [read_commit(commit) for commit in recorded["commits"]]
    except OSError as error:
        raise HistoryError(f"{file}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise HistoryError(f"{file} is not a recorded history: {error!r}") from None
    skipped = max(0, len(commits) - limit) if limit else 0
    start: dict[str, str] = {}
    for commit in commits[:skipped]:
        for path, entry in commit.changes:
            put(start, path, entry)
    commits = commits[skipped:]
    if not commits:
        raise HistoryError(f"{file} holds no commits")
    content = dict(start)
    for index, commit in enumerate(commits):
        for path, entry in commit.changes:
            put(content, path, entry)
        is_checked = index + 1 == len(commits) or (every is not None and (index + 1) % every == 0)
        if commit.tree is None and is_checked:
            commits[index] = attrs.evolve(commit, tree=digest(content))
    name = escaped(repository)[: SEGMENT_BYTES_MAX // 4]
    return History(name, f"{name}, {plural(len(commits), 'recorded commit')}", start, commits)


def read_commit(recorded: Any) -> Commit:
    """Check one commit of a recorded history."""
    changes: dict[str, str | None] = {}
    for path, entry in recorded["changes"]:
        if not (isinstance(path, str) and path and isinstance(entry, str | None)):
            raise TypeError(f'a change is [path, "mode blob" or null], got {[path, entry]!r}')
        if path in changes:
            raise ValueError(f"one commit changes {path!r} twice")
        path.encode()
        changes[path] = entry
    return Commit(list(changes.items()), recorded.get("tree"))


def default_histories(*, limit: int | None, every: int | None) -> list[History]:
    """Return this repository's own history, or the bundled one where there is none; both if its own is very short."""
    histories = []
    try:
        # Unpacked inside some other repository, this is not a clone.
        top = Path(os.fsdecode(git(ROOT, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
        if top.resolve() == ROOT:
            histories.append(load_git(ROOT, limit=limit, every=every))
    except HistoryError as error:
        print(f"no history of our own ({error}): here is a recorded one", file=sys.stderr)
    if not histories or len(histories[0].commits) < COMMITS_FEW:
        histories.append(load_recorded(BUNDLED, limit=limit, every=every))
    return histories


def plural(number: int, noun: str) -> str:
    """Return "1 commit" or "2 commits"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- the command -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def shown_live(history: History, *, shown: bool) -> Iterator[Report]:
    """Show what runs, on the terminal, while the block runs: with rich if it is installed, else a bar of one line."""
    if not shown:
        yield lambda *_: None
        return
    changes = Counter(path for commit in history.commits for path, _ in commit.changes)
    checks = sum(commit.tree is not None for commit in history.commits)
    try:
        view = import_module("examples.replay_view" if __package__ else "replay_view")
    except ImportError:
        with plain_bar(changes.total() + checks) as report:
            yield report
        return
    with view.live_view(changes, checks) as report:
        yield report


@contextlib.contextmanager
def plain_bar(total: int) -> Iterator[Report]:
    """Draw the bar as one line of text, at most ten times a second."""
    drawn_at = 0.0

    def report(done: int, running: int, _path: str | None, _begins: bool) -> None:
        nonlocal drawn_at
        if time.monotonic() - drawn_at >= 0.1 or done == total:
            drawn_at = time.monotonic()
            bar = "#" * (30 * done // max(total, 1))
            print(f"\r[{bar:<30}] {done} of {total} jobs, {running:>3} at once", end="", file=sys.stderr, flush=True)

    try:
        yield report
    finally:
        print(file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all is right, 1 if the replay found a fault, 2 if there was nothing to replay."""
    options = parse(arguments)
    try:
        if options.repo:
            histories = [load_git(options.repo, limit=options.limit, every=options.every)]
        elif options.history:
            histories = [load_recorded(options.history, limit=options.limit, every=options.every)]
        else:
            histories = default_histories(limit=options.limit, every=options.every)
    except HistoryError as error:
        print(error, file=sys.stderr)
        return 2
    summaries = []
    for history in histories:
        print(f"Replaying {history.title}", flush=True)
        with shown_live(history, shown=not options.quiet and sys.stderr.isatty()) as report:
            summary = asyncio.run(
                replay(
                    history,
                    concurrency=options.concurrency,
                    delay_s=None if options.delay is None else options.delay / 1000,
                    seed=options.seed,
                    broken=options.broken,
                    report=report,
                )
            )
        print(summary, flush=True)
        summaries.append(summary)
    if not options.quiet and sys.stdout.isatty():
        print(f"\n{conclusion(summaries, broken=options.broken)}\n\n{STARTS}", flush=True)
    return 0 if all(summary.is_right for summary in summaries) else 1


def conclusion(summaries: Sequence[Summary], *, broken: str | None = None) -> str:
    """Say what the replays have shown, in full sentences."""
    changes, checks = (sum(getattr(summary, name) for summary in summaries) for name in ("changes", "checks"))
    greatest = max(summary.greatest for summary in summaries)
    if all(summary.is_right for summary in summaries):
        proved = (
            f"Proved by this run: {plural(changes, 'change')}, up to {greatest} at once, each found its file as the "
            f"change before had left it. {plural(checks, 'check')} of the whole tree, a barrier each, saw all changes "
            "before it and none after it. No order was written down: it follows from the paths."
        )
        return (
            f"{textwrap.fill(proved, WIDTH)}\n"
            "The rule itself is proved too: docs/explanation/proof.md\n"
            "To see it fail with the places of the checks taken away: make demo BREAK=1"
        )
    wrong = sum(
        summary.changes - summary.changes_right + summary.checks - summary.checks_right for summary in summaries
    )
    why = f"The {broken} had no place, as you asked, so nothing kept their order" if broken else "This must not happen"
    return textwrap.fill(f"Noticed: {plural(wrong, 'job')} ran out of order. {why}.", WIDTH)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Replay a git history as jobs, one for each changed file, with checks of the whole tree."
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--repo", type=Path, metavar="PATH", help="a git repository; by default this one")
    source.add_argument("--history", type=Path, metavar="FILE", help="a recorded history, .json or .json.gz")
    parser.add_argument("--concurrency", type=slots, default=16, metavar="N", help="slots of the worker (16)")
    parser.add_argument("--delay", type=milliseconds, metavar="MS", help="how long a job takes on average")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random delays (0)")
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="COMMITS",
        help=f"replay the last so many commits; by default {COMMITS_MAX}, with at most {CHANGES_MAX} changes",
    )
    parser.add_argument("--every", type=positive, metavar="N", help="check the tree after every N commits")
    parser.add_argument("--quiet", action="store_true", help="draw no progress bar")
    parser.add_argument(
        "--break",
        dest="broken",
        choices=["changes", "checks"],
        help="give these jobs no place, to see that it is noticed",
    )
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Read a number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def slots(text: str) -> int:
    """Read a number from 1 to 1000, what one worker may have."""
    number = positive(text)
    if number > 1000:
        raise argparse.ArgumentTypeError(f"{number} is more than 1000")
    return number


def milliseconds(text: str) -> float:
    """Read a number from 0 to 60000."""
    number = float(text)
    if not 0 <= number <= 60_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 60000")
    return number


if __name__ == "__main__":
    sys.exit(main())
