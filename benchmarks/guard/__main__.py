"""
Count, compare with ``guard.json`` and show both: `python -m benchmarks.guard [--write]`.

The exit code is 1 if a count has grown by more than 3 %, 2 if nothing could be counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.guard.comparison import beside_free, counted_here, differences, load, save, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.guard.comparison import Table

FILE: Final = Path(__file__).with_name("guard.json")


def main(arguments: Sequence[str] | None = None, count: Callable[[], Table] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description="Counts of work a job, and limits.")
    parser.add_argument("--write", action="store_true", help="accept the counts of now, in place of those in the file")
    parser.add_argument("--file", type=Path, default=FILE, metavar="FILE", help="the counts to compare with")
    options = parser.parse_args(arguments)
    now = counted_here((count or count_all)())
    before = load(options.file) if options.file.exists() else counted_here({})
    print("\n".join(shown(before, now)))
    print("", *beside_free(now.table), sep="\n")
    found = differences(before, now)
    grown = [each for each in found if each.has_grown]
    if before.table and before.python != now.python:
        print(f"\nCounts of Python are of {before.python} and not compared with those of {now.python}.")
    if options.write:
        save(options.file, now)
        print(f"\n{options.file}: {len(found)} counts are others now.")
        return 0
    if grown:
        print(f"\n{len(grown)} of {len(found)} counts that differ are more than 3 % larger, or new, or gone:")
        print("\n".join(f"  {each}" for each in grown))
        print("Make it cheaper, or accept it, with the reason in the commit: make bench-guard ARGS=--write")
        return 1
    print(f"\nNo count has grown by more than 3 %; {len(found)} differ.")
    return 0


def count_all() -> Table:
    """Count, in a process that orders its sets the same way each time."""
    missing = []
    if importlib.util.find_spec("lupa") is None:
        missing.append("lupa, for Lua 5.1 in this process: pip install lupa")
    if shutil.which("redis-server") is None:
        missing.append("redis-server: apt-get install redis-server")
    if missing:
        print("Nothing is counted without\n  " + "\n  ".join(missing), file=sys.stderr)
        raise SystemExit(2)
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONHASHSEED": "0"})
    from benchmarks.guard import journeys
    from benchmarks.guard.server import ScriptServer

    with ScriptServer() as server:
        return journeys.scripts(server) | journeys.clients(server)


if __name__ == "__main__":
    sys.exit(main())
