"""
Figures of `make bench`, as they stand in the README and on the page about performance.

A page holds ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``; what stands between them is written by the
function of that name, from the files that ``make bench ARGS="... --json FILE"`` has written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from benchmarks.backlog import BACKLOG, FREE
from benchmarks.redis_peers import KINDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "figures"
PAGES = (ROOT / "README.md", ROOT / "docs" / "explanation" / "performance.md")
OURS = "queuehint"
NAMES = {
    OURS: "queuehint on Redis",
    "procrastinate": "Procrastinate, `lock`, on PostgreSQL",
    "graphile": "graphile-worker, named queues, on PostgreSQL",
    "reserved": "a task table with reserved resources, on PostgreSQL",
}
SHAPES = {"ordered": ("serial", "jobs/s"), "backlog": ("beside", "s")}
"""By file, the shape whose figures are compared, and their unit."""
_BLOCK = re.compile(r"(?<=<!-- figures: )(\w+)( -->\n)(.*?)(?=<!-- end of figures -->)", re.DOTALL)


@attrs.frozen
class Measured:
    """A contender's figure: the median, the least and the greatest."""

    name: str
    median: float
    least: float
    most: float


@cache
def run_of(file: str) -> dict[str, Any]:
    """Return what `make bench` has written."""
    found: dict[str, Any] = json.loads((FOLDER / f"{file}.json").read_text("utf-8"))
    return found


def measured(file: str, shape: str | None = None) -> list[Measured]:
    """Return what was measured of one shape of jobs, ours first."""
    shape = shape or SHAPES[file][0]
    found = {figure["name"]: figure["values"] for figure in run_of(file)["figures"]}
    rows = []
    for name, shown in NAMES.items():
        values = found.get(f"{KINDS[name].title}, {shape}")
        if values:
            rows.append(Measured(shown, sorted(values)[len(values) // 2], min(values), max(values)))
    return rows


def shown(value: float) -> str:
    """
    Round to two digits.

    >>> shown(0.1913), shown(2_345.6), shown(81.2), shown(64_731)
    ('0.19', '2 300', '81', '65 000')
    """
    return f"{float(f'{value:.2g}'):,.10g}".replace(",", " ")


def ratio(file: str) -> float:
    """Return how many times better ours is than the best other."""
    ours, *others = (each.median for each in measured(file))
    return ours / max(others) if SHAPES[file][1] == "jobs/s" else min(others) / ours


def summary() -> str:
    """Return the line of the README."""
    ordered, backlog = measured("ordered"), measured("backlog")
    others = sorted(each.median for each in backlog[1:])
    return (
        f"**Figures**: {shown(ordered[0].median)} jobs a second strictly in order over 1 000 paths, "
        f"{shown(ratio('ordered'))} times {ordered[1].name}; {FREE} free jobs beside {shown(BACKLOG)} that need one "
        f"place have run after {shown(backlog[0].median)} s, with other queues after {shown(others[0])} to "
        f"{shown(others[-1])} s: [performance](docs/explanation/performance.md), with the method, and what was not "
        "reached.\n"
    )


def conditions(file: str) -> str:
    """Return the conditions of a measurement: repeats, processors, load, interpreter."""
    run = run_of(file)
    if "note" in run:
        return str(run["note"])
    load = shown(float(run["load_before"].split(",")[0]))
    repeats = len(run["figures"][0]["values"])
    trial = "A trial with smaller sizes than said. " if run["quick"] else ""
    return (
        f"{trial}Median of {repeats} runs, contenders taking turns; {run['cpus']} CPUs, load average {load}, "
        f"Python {run['python']}."
    )


def ordered() -> str:
    """Return the table of ordered throughput."""
    return table("ordered", ["serial"])


def backlog() -> str:
    """Return the table of free work beside a backlog."""
    return table("backlog", ["alone", "beside"])


def table(file: str, shapes: list[str]) -> str:
    """Return figures of all contenders, a column for each shape, and the targets."""
    unit = SHAPES[file][1]
    heads = [f"{shape}, {unit}" for shape in shapes]
    rows = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(shapes)}"]
    found = [measured(file, shape) for shape in shapes]
    for name in dict.fromkeys(each.name for column in found for each in column):
        by_shape = [next((each for each in column if each.name == name), None) for column in found]
        cells = ["not measured" if each is None else _with_range(each) for each in by_shape]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", conditions(file), "", *targets(file), ""])


def _with_range(each: Measured) -> str:
    spread = f" ({shown(each.least)} to {shown(each.most)})" if each.least < each.most else ""
    return shown(each.median) + spread


def targets(file: str) -> Iterator[str]:
    """Yield a table of what was wanted."""
    yield "| target | wanted | measured | |"
    yield "|---|---|---|---|"
    for target in run_of(file)["targets"]:
        wanted = f"{'at most' if target['at_most'] else 'at least'} {shown(target['limit'])}"
        verdict = "reached" if target["reached"] else "**missed**"
        yield f"| {target['name'].removeprefix('(c) ')} | {wanted} | {shown(target['value'])} | {verdict} |"


def filled(text: str) -> str:
    """Return a page with its figures."""
    blocks = {"summary": summary, "ordered": ordered, "backlog": backlog}
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}{blocks[found[1]]()}", text)
