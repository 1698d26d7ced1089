"""
The gate as a table: `python -m tests.mutants [word ...]` tries the mutants whose names, kinds or files hold a word.

Exits with 1 if one of them is not caught by one of its catchers, or is out of date.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.gate import Mutant, StaleMutantError, Verdict, try_mutant
from tests.mutants.listed import MUTANTS


def main(words: list[str]) -> int:
    """Try mutants, as many at once as there are processors, and print a line for each catcher."""
    wanted = [mutant for mutant in MUTANTS if not words or any(_is_meant(mutant, word) for word in words)]
    if not wanted:
        print(f"no mutant has {' or '.join(words)} in its name, kind or file", file=sys.stderr)
        return 2
    began_s = time.monotonic()
    survived = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, lines in pool.map(_lines, wanted):
            print(f"{mutant.kind}: {mutant.name}  ({mutant.file})")
            for is_caught, line in lines:
                survived += not is_caught
                print(f"    {line}", flush=True)
    print(f"{len(wanted)} mutants, {survived} not caught, {time.monotonic() - began_s:.0f} s")
    return 1 if survived else 0


def _is_meant(mutant: Mutant, word: str) -> bool:
    return any(word.lower() in text.lower() for text in (mutant.name, mutant.kind, mutant.file))


def _lines(mutant: Mutant) -> tuple[Mutant, list[tuple[bool, str]]]:
    try:
        tried = try_mutant(mutant)
    except StaleMutantError as error:
        return mutant, [(False, str(error))]
    return mutant, [(verdict.failed, f"{catcher.name}: {_told(verdict)}") for catcher, verdict in tried]


def _told(verdict: Verdict) -> str:
    seconds = f"{verdict.seconds:.1f} s"
    if verdict.failed:
        return f"{seconds}  {verdict.by}  {verdict.why}"
    return f"{seconds}  NOT CAUGHT  {verdict.problem}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="word")
    sys.exit(main(parser.parse_args().words))
