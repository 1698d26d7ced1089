"""
Make the recorded history that `replay_history` falls back on: an imaginary documentation project, drawn at random.

The same seed makes the same history. Besides edits it has the hard cases for places: renames, deletions, files that
become folders and folders that become files, links, submodules, names with spaces, colons, backslashes, accents,
control characters, and a file called ``root``.

    python examples/make_history.py                 writes examples/data/history-small.json.gz
    python examples/make_history.py --seed 7 FILE   writes another one
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

BUNDLED = Path(__file__).resolve().parent / "data" / "history-small.json.gz"
SEED = 1
COMMITS = 160
TREE_EVERY = 8

PARTS = ("guide", "reference", "tutorial", "cookbook", "notes")
TOPICS = ("anchors", "borders", "colours", "drafts", "exports", "fonts", "grids", "headings", "indexes", "joints")
KINDS = ("md", "md", "md", "svg", "yaml")
ODD_NAMES = (
    "root",
    "read me first.md",
    "part:one.md",
    "back\\slash.md",
    "100% done.md",
    "Überblick.md",
    "目次.md",
    "two\nlines.md",
    "tab\there.md",
    "…",
    "-rf",
    "{braces}.md",
)


class Project:
    """The tree as it grows, and what the commit at hand has changed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.files: dict[str, str] = {}
        self.changes: dict[str, str | None] = {}

    def write(self, path: str, mode: str = "100644") -> None:
        """Give a file a new content."""
        self._put(path, f"{mode} {self._rng.getrandbits(48):012x}")

    def move(self, path: str, to: str) -> None:
        """Rename a file."""
        entry = self.files[path]
        self._put(path, None)
        self._put(to, entry)

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._put(path, None)

    def any(self, suffix: str = "") -> str:
        """Return the path of some file."""
        return self._rng.choice([path for path in self.files if path.endswith(suffix)])

    def new_path(self) -> str:
        """Return a path where no file is and no folder."""
        rng = self._rng
        while True:
            folders = [rng.choice(PARTS), *rng.sample(TOPICS, rng.choice((0, 1, 1, 2)))]
            path = "/".join([*folders, f"{rng.choice(TOPICS)}-{rng.randrange(40)}.{rng.choice(KINDS)}"])
            if path not in self.files:
                return path

    def commit(self) -> list[list[str | None]]:
        """Return what changed since the last commit."""
        changes = [[path, self.changes[path]] for path in sorted(self.changes)]
        self.changes = {}
        return changes

    def digest(self) -> str:
        """Return the sha256 of the lines ``path TAB "mode blob"``, sorted by path and joined by newline."""
        lines = (f"{path}\t{entry}" for path, entry in sorted(self.files.items()))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _put(self, path: str, entry: str | None) -> None:
        self.changes[path] = entry
        if entry is None:
            del self.files[path]
        else:
            self.files[path] = entry


def make_history(*, seed: int = SEED, commits: int = COMMITS) -> dict[str, Any]:
    """Invent a history of at least two commits."""
    rng = random.Random(seed)
    project = Project(rng)
    for path in ("README.md", "LICENSE", "glossary", "guide/index.md", "notes/plan.md"):
        project.write(path)
    recorded: list[dict[str, Any]] = [{"changes": project.commit()}]
    odd_names = list(ODD_NAMES)
    while len(recorded) < commits:
        number = len(recorded)
        for _ in range(rng.choice((1, 1, 2, 3, 4))):
            project.write(project.new_path())
        for _ in range(rng.choice((1, 2, 3, 4, 6))):
            project.write(project.any())
        if number % 5 == 0:
            project.move(project.any(".md"), project.new_path())
        if number % 7 == 0:
            project.delete(project.any(".svg"))
        if number % 10 == 0 and odd_names:
            project.write(f"notes/{odd_names.pop(0)}")
        if number % 12 == 0:
            turn_round(project, "glossary")
        if number % 40 == 0:
            project.write(f"tools/build-{number}", "100755")
            project.write(f"latest-{number}", "120000")
            project.write(f"themes/plain-{number}", "160000")
        commit: dict[str, Any] = {"changes": project.commit()}
        if number % TREE_EVERY == 0 or number == commits - 1:
            commit["tree"] = project.digest()
        recorded.append(commit)
    return {"repository": "imaginary-handbook", "commits": recorded}


def turn_round(project: Project, path: str) -> None:
    """Make a folder of a file, or a file of a folder."""
    if path in project.files:
        project.delete(path)
        for letter in "abc":
            project.write(f"{path}/{letter}/words.md")
    else:
        for below in [other for other in project.files if other.startswith(f"{path}/")]:
            project.delete(below)
        project.write(path)


def write(history: dict[str, Any], file: Path) -> None:
    """Write a history as gzipped JSON, the same bytes every time."""
    text = json.dumps(history, ensure_ascii=False, separators=(",", ":"))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Invent a history for examples/replay_history.py.")
    parser.add_argument("file", nargs="?", type=Path, default=BUNDLED, help="where to write it")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--commits", type=int, default=COMMITS)
    options = parser.parse_args(arguments)
    history = make_history(seed=options.seed, commits=options.commits)
    write(history, options.file)
    changes = sum(len(commit["changes"]) for commit in history["commits"])
    print(f"{len(history['commits'])} commits with {changes} changes in {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
