"""
The diagrams in Mermaid of the documentation, for pages that run no program: forges draw them, here it is done once.

A diagram of states becomes a table of its moves. A flowchart from left to right becomes a drawing inside the page: each
node stands right of all those that lead to it, and those of no frame stand below the framed ones. What is read is what
the pages need: nodes ``a["text<br>more"]``, edges ``a ==> b``, edges without a direction ``a -. "text" .- b``, which
stand in that order, and one ``subgraph``.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

import attrs

from scripts.pictures.svg import MONO, SANS

BLOCKS = re.compile(r"^```mermaid\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
MOVE = re.compile(r" +(?P<old>\S+) --> (?P<new>\S+): (?P<how>.+)")
ARROW = re.compile(r' +(?P<left>.+?) (?:(?P<arrow>==>)|-\. "(?P<said>[^"]*)" \.-) (?P<right>.+)')
NODE = re.compile(r'(?P<id>\w+)(?:\["(?P<text>[^"]*)"\])?')
FRAME = re.compile(r' +subgraph \w+ \["(?P<title>[^"]*)"\]')
LETTER, LINE = 8, 18
"""The width of a letter, and the height of a line of a node's text."""
GAP, ROW = 70, 26
"""Between columns, and between rows."""
PAD, HEAD, DIP = 18, 22, 26
"""Around the nodes of a frame, the height of its title, and how far below nodes an edge goes that passes them."""
INK = "var(--color-foreground-primary)"
PAPER = "var(--color-background-primary)"
EDGE = "var(--color-foreground-muted)"
SOFT = "var(--color-background-secondary)"
BRAND = "var(--color-brand-primary)"
"""The colours of the theme, light or dark as the page is."""

TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0L8 4L0 8z" fill="{EDGE}"/></marker></defs>'
)
"""The end of an arrow."""


@attrs.define
class Node:
    """A node, and where it is drawn."""

    lines: list[str]
    is_framed: bool = False
    rank: int = 0
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        """The width of its box."""
        return LETTER * max(map(len, self.lines)) + 24

    @property
    def height(self) -> float:
        """The height of its box."""
        return LINE * len(self.lines) + 14


@attrs.define
class Chart:
    """A flowchart: nodes by id, edges with what is said of those without a direction, and the title of a frame."""

    nodes: dict[str, Node] = attrs.field(factory=dict)
    edges: list[tuple[str, str, str | None]] = attrs.field(factory=list)
    title: str | None = None


def states_table(text: str) -> str:
    """
    Return the moves of a diagram of states as a table.

    >>> print(
    ...     states_table('''stateDiagram-v2
    ...     [*] --> QUEUED: enqueue
    ...     QUEUED --> STARTED: claim
    ... ''')
    ... )
    | from | to | by |
    |---|---|---|
    | | `QUEUED` | enqueue |
    | `QUEUED` | `STARTED` | claim |
    """
    rows, last = ["| from | to | by |", "|---|---|---|"], "[*]"
    for line in text.splitlines()[1:]:
        move = MOVE.fullmatch(line)
        assert move, f"no move: {line!r}"
        old = "" if move["old"] == "[*]" or move["old"] == last else f"`{move['old']}`"
        rows.append(f"|{f' {old}' if old else ''} | `{move['new']}` | {move['how']} |")
        last = move["old"]
    return "\n".join(rows)


def read(text: str) -> Chart:
    """Return what a flowchart says."""
    chart, is_framed = Chart(), False

    def node(said: str) -> str:
        found = NODE.fullmatch(said.strip())
        assert found, f"no node: {said!r}"
        name = found["id"]
        known = chart.nodes.setdefault(name, Node([name]))
        if found["text"] is not None:
            known.lines = found["text"].split("<br>")
        known.is_framed = known.is_framed or is_framed
        return name

    for line in text.splitlines()[1:]:
        if frame := FRAME.fullmatch(line):
            chart.title, is_framed = frame["title"], True
        elif line.strip() == "end":
            is_framed = False
        elif arrow := ARROW.fullmatch(line):
            chart.edges.append((node(arrow["left"]), node(arrow["right"]), arrow["said"]))
        else:
            node(line)
    return chart


def place(chart: Chart) -> tuple[float, float]:
    """Give each node its place, and return how wide and high all of them are."""
    nodes = chart.nodes
    for _ in nodes:
        for left, right, _said in chart.edges:
            nodes[right].rank = max(nodes[right].rank, nodes[left].rank + 1)
    columns: dict[int, list[Node]] = {}
    for node in nodes.values():
        columns.setdefault(node.rank, []).append(node)
    framed = [[one for one in column if one.is_framed or chart.title is None] for column in columns.values()]
    high = max(_height(column) for column in framed)
    top = PAD + HEAD if chart.title else PAD
    x: float = PAD + 4
    bottom = top + high + PAD
    lowest = bottom
    for rank in sorted(columns):
        column = columns[rank]
        inside = [one for one in column if one.is_framed or chart.title is None]
        outside = [one for one in column if one not in inside]
        width = max(one.width for one in column)
        for some, y in ((inside, top + (high - _height(inside)) / 2), (outside, bottom + PAD)):
            for one in some:
                one.x, one.y = x + (width - one.width) / 2, y
                y += one.height + ROW
                lowest = max(lowest, one.y + one.height + PAD + HEAD * (one in outside))
        x += width + GAP
    return x - GAP + PAD + 4, lowest


def _height(column: list[Node]) -> float:
    return sum(one.height for one in column) + ROW * (len(column) - 1) if column else 0


def drawing(text: str) -> str:
    """Return a flowchart as SVG for the page itself."""
    chart = read(text)
    wide, high = place(chart)
    if any(_between(chart, chart.nodes[left], chart.nodes[right]) for left, right, _ in chart.edges):
        high += PAD
    shapes = []
    if chart.title is not None:
        bottom = max(one.y + one.height for one in chart.nodes.values() if one.is_framed) + PAD
        shapes += [
            f'<rect x="2" y="2" width="{wide - 4:g}" height="{bottom - 2:g}" rx="6" fill="{SOFT}" stroke="{EDGE}"/>',
            _text(14, 20, chart.title, size=13, fill=EDGE),
        ]
    for left, right, said in chart.edges:
        shapes += _edge(chart, chart.nodes[left], chart.nodes[right], said)
    for one in chart.nodes.values():
        size = f'x="{one.x:g}" y="{one.y:g}" width="{one.width:g}" height="{one.height:g}"'
        shapes.append(f'<rect {size} rx="5" fill="{PAPER}" stroke="{BRAND}"/>')
        for row, words in enumerate(one.lines):
            shapes.append(
                _text(one.x + one.width / 2, one.y + 21 + LINE * row, words, font=MONO, fill=INK, anchor="middle")
            )
    label = ", ".join(f"{' '.join(one.lines)}" for one in chart.nodes.values())
    size = f'viewBox="0 0 {wide:g} {high:g}" style="max-width:{wide:g}px;width:100%"'
    return "\n".join([f'<svg {size} role="img" aria-label="{escape(label)}">', TIP, *shapes, "</svg>"])


def _edge(chart: Chart, left: Node, right: Node, said: str | None) -> list[str]:
    x1, y1 = left.x + left.width, left.y + left.height / 2
    x2, y2 = right.x, right.y + right.height / 2
    bend, by1, by2 = (x2 - x1) / 2, y1, y2
    if between := _between(chart, left, right):
        # Below them: half of its way an edge has come three quarters of the way to where it is drawn to.
        by1 = by2 = (max(one.y + one.height for one in between) + DIP - (y1 + y2) / 8) / 0.75
    path = f"M{x1:g} {y1:g}C{x1 + bend:g} {by1:g} {x2 - bend:g} {by2:g} {x2:g} {y2:g}"
    style = 'stroke-dasharray="4 4"' if said is not None else 'stroke-width="2" marker-end="url(#tip)"'
    shapes = [f'<path d="{path}" fill="none" stroke="{EDGE}" {style}/>']
    if said is not None:
        # Below the edge, on the side of the node that stands lower.
        lower = left if left.y > right.y else right
        end = (x1 + 8, "start") if lower is left else (x2 - 8, "end")
        shapes.append(_text(end[0], lower.y + lower.height + 18, said, size=13, fill=EDGE, anchor=end[1]))
    return shapes


def _between(chart: Chart, left: Node, right: Node) -> list[Node]:
    """Return the nodes that stand between two, in the frame or below it as they do."""
    alike = [one for one in chart.nodes.values() if one.is_framed == left.is_framed == right.is_framed]
    return [one for one in alike if left.rank < one.rank < right.rank]


def _text(x: float, y: float, said: str, *, fill: str, size: int = 14, font: str = SANS, anchor: str = "start") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
        f'style="fill:{fill};font-family:{font.replace(chr(39), "")}">{escape(said)}</text>'
    )


def shown(text: str) -> str:
    """Return a page with its diagrams as HTML can show them."""

    def of_block(found: re.Match[str]) -> str:
        if found["text"].startswith("stateDiagram"):
            return states_table(found["text"])
        return f"```{{raw}} html\n{drawing(found['text'])}\n```"

    return BLOCKS.sub(of_block, text)
