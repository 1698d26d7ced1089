"""
Drawings of a flow: its jobs and edges as Mermaid, DOT or JSON.

Names are users' texts. In a drawing each job has a generated name (``n0``, ``n1``, …), and the user's is only ever the
text of a label, with all characters escaped that Mermaid, Graphviz or a browser would interpret.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from queuehint.values.record import JobState
from queuehint.values.spec import When

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.values.record import JobRecord

_FILL = {
    JobState.SCHEDULED: "#e8e8e8",
    JobState.DEFERRED: "#e8e8e8",
    JobState.QUEUED: "#fff3bf",
    JobState.STARTED: "#cfe8ff",
    JobState.FINISHED: "#d3f2d3",
    JobState.FAILED: "#ffd0d0",
    JobState.CANCELED: "#d9d9d9",
}
GROUP_OVER = 10
"""More equal jobs than these are drawn as one."""
_PLAIN_IN_LABELS = frozenset(" _-.,/()")


@attrs.frozen
class FlowNode:
    """
    One job in the picture.

    Args:
        name: what its flow calls it, else its id.
        task, state: None for a job of elsewhere that one of the flow depends on.
    """

    id: str
    name: str
    task: str | None = None
    state: JobState | None = None


@attrs.frozen
class FlowEdge:
    """One edge: *target* waits for *source*, both by id; *data* says that it needs its result."""

    source: str
    target: str
    when: When = "success"
    data: bool = False


@attrs.frozen
class FlowGraph:
    """
    The jobs of a flow and their edges, as they were when it was asked for.

    Args:
        nodes: in order of number, then what they depend on elsewhere.
    """

    flow: str
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]

    def grouped(self, most: int = GROUP_OVER) -> FlowGraph:
        """
        Return the graph with more than *most* equal jobs drawn as one: of a task and a state, and with the same edges.

        Such a node has the id of the first of them, and as its name the task and how many there are.

        >>> jobs = [FlowNode(f"l{n}", f"l{n}", "load", JobState.QUEUED) for n in range(20)]
        >>> edges = [FlowEdge(job.id, "all") for job in jobs]
        >>> FlowGraph("f", (*jobs, FlowNode("all", "all", "sum")), tuple(edges)).grouped().nodes[0].name
        'load x 20'

        .. versionadded:: 1.0.0
        """
        into: dict[str, list[FlowEdge]] = {}
        out: dict[str, list[FlowEdge]] = {}
        for edge in self.edges:
            into.setdefault(edge.target, []).append(edge)
            out.setdefault(edge.source, []).append(edge)
        groups: dict[object, list[FlowNode]] = {}
        for node in self.nodes:
            around = (
                frozenset((edge.source, edge.when, edge.data) for edge in into.get(node.id, ())),
                frozenset((edge.target, edge.when, edge.data) for edge in out.get(node.id, ())),
            )
            groups.setdefault((node.task, node.state, *around), []).append(node)
        drawn: dict[str, FlowNode | None] = {}
        for nodes in groups.values():
            if len(nodes) > most:
                drawn |= dict.fromkeys([node.id for node in nodes])
                name = f"{nodes[0].task or 'jobs elsewhere'} x {len(nodes)}"
                drawn[nodes[0].id] = attrs.evolve(nodes[0], name=name, task=nodes[0].task and name)
        kept = [drawn.get(node.id, node) for node in self.nodes]
        hidden = {job_id for job_id, node in drawn.items() if node is None}
        edges = [edge for edge in self.edges if edge.source not in hidden and edge.target not in hidden]
        return FlowGraph(self.flow, tuple([node for node in kept if node is not None]), tuple(edges))

    def mermaid(self) -> str:
        """Return a flowchart for Mermaid."""
        marks = self._marks()
        lines = ["flowchart LR"]
        for node in self.nodes:
            text = "<br>".join(_mermaid_text(part) for part in _label(node))
            style = f":::{node.state}" if node.state is not None else ":::elsewhere"
            lines.append(f'    {marks[node.id]}["{text}"]{style}')
        for edge in self.edges:
            arrow = "==>" if edge.data else "-->"
            when = "" if edge.when == "success" else f"|{edge.when}|"
            lines.append(f"    {marks[edge.source]} {arrow}{when} {marks[edge.target]}")
        for state in dict.fromkeys(node.state for node in self.nodes):
            if state is None:
                lines.append("    classDef elsewhere fill:#ffffff,stroke-dasharray:4")
            else:
                lines.append(f"    classDef {state} fill:{_FILL[state]}")
        return "\n".join(lines) + "\n"

    def dot(self) -> str:
        """Return a directed graph for Graphviz."""
        marks = self._marks()
        lines = [f"digraph {_dot_text([self.flow])} {{", "    rankdir=LR;", "    node [shape=box];"]
        for node in self.nodes:
            style = f'style=filled, fillcolor="{_FILL[node.state]}"' if node.state is not None else "style=dashed"
            lines.append(f"    {marks[node.id]} [label={_dot_text(_label(node))}, {style}];")
        for edge in self.edges:
            facts = ["penwidth=2"] if edge.data else []
            if edge.when != "success":
                facts.append(f'label="{edge.when}"')
            told = f" [{', '.join(facts)}]" if facts else ""
            lines.append(f"    {marks[edge.source]} -> {marks[edge.target]}{told};")
        return "\n".join([*lines, "}"]) + "\n"

    def json(self) -> str:
        """
        Return an object with ``flow``, ``nodes`` and ``edges``, and in these the fields of `FlowNode` and `FlowEdge`.

        It holds no ``<``, ``>`` or ``&``, so that it may stand inside HTML.
        """
        text = json.dumps(attrs.asdict(self), separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def _marks(self) -> dict[str, str]:
        return {node.id: f"n{number}" for number, node in enumerate(self.nodes)}


def draw(flow: str, records: Iterable[JobRecord]) -> FlowGraph:
    """Return the graph of a flow's jobs."""
    nodes: dict[str, FlowNode] = {}
    edges: list[FlowEdge] = []
    for record in records:
        spec = record.spec
        nodes[record.id] = FlowNode(record.id, spec.name or record.id, spec.task, record.state)
        edges += [FlowEdge(edge.id, record.id, edge.when, edge.data) for edge in spec.depends_on]
    for edge in edges:
        if edge.source not in nodes:
            nodes[edge.source] = FlowNode(edge.source, edge.source)
    return FlowGraph(flow, tuple(nodes.values()), tuple(edges))


def _label(node: FlowNode) -> list[str]:
    """Return the lines of a node's label; the task is left out where the name says it."""
    lines = [node.name]
    if node.task is not None and node.task != node.name:
        lines.append(node.task)
    if node.state is not None:
        lines.append(node.state.value)
    return lines


def _mermaid_text(text: str) -> str:
    """
    Return text for a quoted label: letters and digits as they are, and what could mean more as its number.

    >>> _mermaid_text('a"]-->b')
    'a#34;#93;--#62;b'
    """
    return "".join(sign if sign.isalnum() or sign in _PLAIN_IN_LABELS else f"#{ord(sign)};" for sign in text)


def _dot_text(lines: Iterable[str]) -> str:
    r"""
    Return lines of text as a quoted string, in which Graphviz would read ``\n``, ``\G`` and ``&lt;``.

    >>> print(_dot_text(['a"b', "c&d"]))
    "a\"b\nc&#38;d"
    """
    return '"' + "\\n".join("".join(map(_dot_sign, line)) for line in lines) + '"'


def _dot_sign(sign: str) -> str:
    if sign in '\\"':
        return f"\\{sign}"
    return sign if sign.isprintable() and sign != "&" else f"&#{ord(sign)};"
