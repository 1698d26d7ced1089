"""The trie of gates: what the engine holds after the five jobs of the page about ordering."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import attrs

from queuehint.core.engine import Engine
from queuehint.core.structures.trie import Node, Walk, counts
from queuehint.operations import Enqueue
from queuehint.testing.driver import job
from scripts.pictures.svg import MONO, WIDTH, Theme, box, document, line, text

JOBS = {"a": "doc1:intro", "b": "doc1:body", "c": "doc2:intro", "S": "doc1", "d": "doc1:body"}
"""By id, the place, in the order of enqueue."""
MODES = ("IS", "IX", "S", "X")
BOX, HIGH, CHIP = 108, 46, 26
TOP, LEVEL = 18, 82


@attrs.frozen
class Gate:
    """A node of the trie: the marks held, the jobs granted here, and those in its line, the first one first."""

    name: str
    held: str
    owners: tuple[str, ...]
    line: tuple[str, ...]
    children: tuple[Gate, ...]


@cache
def gates() -> Gate:
    """Enqueue the jobs into an engine, and return its trie from the root on."""
    engine = Engine()
    for job_id, place in JOBS.items():
        engine.apply(Enqueue((job(job_id, place.split(":")),)), now_ms=0)
    return _gate(engine.state.table.trie.root)


def _gate(node: Node) -> Gate:
    held = [f"{mode} {count}" for mode, count in zip(MODES, counts(node.held), strict=True) if count]
    children = tuple(_gate(child) for child in (node.children or {}).values())
    return Gate(node.segment or "root", ", ".join(held), _ids(node.owners), _ids(node.line), children)


def _ids(walk: Walk | None) -> tuple[str, ...]:
    found = []
    while walk is not None:
        found.append(walk.job.id)
        walk = walk.after
    return tuple(found)


def said(gate: Gate | None = None, depth: int = 0) -> str:
    """Return the trie as text, a gate a line."""
    gate = gate or gates()
    line_ = f", line: {' '.join(gate.line)}" if gate.line else ""
    owners = f" by {' '.join(gate.owners)}" if gate.owners else ""
    own = f"{'  ' * depth}{gate.name}: held {gate.held}{owners}{line_}"
    return "\n".join([own, *(said(child, depth + 1) for child in gate.children)])


def _leaves(gate: Gate) -> int:
    return sum(map(_leaves, gate.children)) or 1


def _drawn(gate: Gate, theme: Theme, left: float, width: float, depth: int) -> Iterator[str]:
    """Draw a gate in the middle of its width, what it leads to below it, and its line beside it."""
    middle, y = left + width / 2, TOP + LEVEL * depth
    unit = width / _leaves(gate)
    for child in gate.children:
        reach = unit * _leaves(child)
        yield line(middle, y + HIGH, left + reach / 2, y + LEVEL, theme.frame, width=2)
        yield from _drawn(child, theme, left, reach, depth + 1)
        left += reach
    stroke = theme.first if gate.owners else theme.frame
    yield box(middle - BOX / 2, y, BOX, HIGH, theme.paper, stroke=stroke, round_by=6)
    yield text(middle, y + 18, gate.name, theme.ink, font=MONO, anchor="middle", bold=True)
    owners = f" by {', '.join(gate.owners)}" if gate.owners else ""
    yield text(middle, y + 36, gate.held + owners, theme.first if owners else theme.faint, size=13, anchor="middle")
    x = middle + BOX / 2 + 6
    for rank, job_id in enumerate(gate.line):
        yield box(x, y + 18, CHIP, 24, theme.soft, stroke=theme.second, round_by=4)
        yield text(x + CHIP / 2, y + 35, job_id, theme.second, font=MONO, anchor="middle", bold=True)
        if not rank:
            yield text(x, y + 12, "line", theme.second, size=13)
        x += CHIP + 4


def draw(theme: Theme) -> str:
    """Draw the trie."""
    shapes = list(_drawn(gates(), theme, 8, WIDTH - 16, 0))
    bottom = TOP + 2 * LEVEL + HIGH
    for row, words in enumerate(
        (
            "X: an exclusive claim of this path. IX: one claim further down.",
            "a, b and c hold their gates and may start. S does not fit at doc1",
            "until a and b have left; d stands behind S in the line.",
        )
    ):
        shapes.append(text(16, bottom + 26 + 18 * row, words, theme.ink, size=13))
    title = "The gates after a, b, c, S and d were enqueued: S and d wait in the line of doc1"
    return document(theme, bottom + 76, title, said(), shapes)
