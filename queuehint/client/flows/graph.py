"""
Drawings of a flow: its jobs and edges as Mermaid, DOT or JSON.

Names are users' texts. In a drawing each job has a generated name (``n0``, ``n1``, …), and the user's is only ever the
text of a label, with all characters escaped that Mermaid, Graphviz or a browser would interpret.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.schema.checks import check_int
from queuehint.values.record import JobState
from queuehint.values.spec import CHILDREN_TASK, When

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

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
PAGE_NODES = 50
"""How many nodes a drawing of a large flow has at most."""
_ROUNDS = 4
"""How many edges away jobs may differ that are drawn as one for what they do."""
_WORST_FIRST = ("FAILED", "STARTED", "QUEUED", "DEFERRED", "SCHEDULED", "CANCELED", "FINISHED")
_PLAIN_IN_LABELS = frozenset(" _-.,/()")


@attrs.frozen
class FlowNode:
    """
    One job in the drawing, or several jobs drawn as a single node.

    Args:
        name: what its flow calls it, else its id.
        task, state: None for a job of elsewhere that one of the flow depends on; of several the state that most needs a
            look, FAILED first.
        states: of several, how many there are in each state; empty for one, and for jobs of elsewhere.
        count: how many there are.
    """

    id: str
    name: str
    task: str | None = None
    state: JobState | None = None
    states: Mapping[JobState, int] = attrs.field(factory=dict[JobState, int], hash=False)
    count: int = 1


@attrs.frozen
class FlowEdge:
    """
    One edge: *target* waits for *source*, both by id.

    Args:
        data: the target needs the result of the source.
        child: the handler of the source made the target, which does not wait for it.
    """

    source: str
    target: str
    when: When = "success"
    data: bool = False
    child: bool = False


@attrs.frozen
class FlowGraph:
    """
    A snapshot of the jobs of a flow and their edges.

    Args:
        nodes: in order of number, then their children and the children of these, then what they depend on elsewhere.
        is_whole: whether all children are in it. They are read by up to 1 000 questions, each for up to 200 of one job,
            until 10 000 are found.
    """

    flow: str
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    is_whole: bool = True

    def grouped(self, most: int = GROUP_OVER, nodes: int = PAGE_NODES) -> FlowGraph:
        """
        Return the graph with more than *most* equal jobs drawn as one node. Equal jobs have the same task and edges.

        While it has more than *nodes* nodes, ever more jobs are drawn as one: those of a task that stand one after
        another; those of a task whose neighbors are of the same tasks, some edges far; those of a task; and those of
        the tasks with the fewest jobs. So the drawing of any flow is a page. Numbers of jobs by state stay exact.

        A node for several jobs has the id of the first of them, and as its name the task and how many there are.

        Args:
            most: 1 or more.
            nodes: 1 or more.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter.

        >>> jobs = [FlowNode(f"l{n}", f"l{n}", "load", JobState.QUEUED) for n in range(20)]
        >>> edges = [FlowEdge(job.id, "all") for job in jobs]
        >>> FlowGraph("f", (*jobs, FlowNode("all", "all", "sum")), tuple(edges)).grouped().nodes[0].name
        'load x 20'

        .. versionadded:: 1.0.0
        """
        most = check_int(most, parameter="most", least=1, most=1 << 31)
        nodes = check_int(nodes, parameter="nodes", least=1, most=1 << 31)
        graph = _merged(self, _siblings, most)
        for alike in (_runs, _siblings, _like_neighbors):
            if len(graph.nodes) > nodes:
                graph = _merged(graph, alike, most)
        if len(graph.nodes) > nodes:
            graph = _merged(graph, lambda found: {node.id: node.task for node in found.nodes}, 1)
        if len(graph.nodes) > nodes:
            rest = sorted(graph.nodes, key=lambda node: -node.count)[nodes - 1 :]
            graph = _merged(graph, lambda _: {node.id: "" for node in rest}, 1)
        return graph

    def mermaid(self) -> str:
        """Return a flowchart for Mermaid."""
        marks = self._marks()
        lines = ["flowchart LR"]
        for node in self.nodes:
            text = "<br>".join(_mermaid_text(part) for part in _label(node))
            style = f":::{node.state}" if node.state is not None else ":::elsewhere"
            lines.append(f'    {marks[node.id]}["{text}"]{style}')
        for edge in self.edges:
            arrow = "-.->" if edge.child else "==>" if edge.data else "-->"
            when = "|child|" if edge.child else "" if edge.when == "success" else f"|{edge.when}|"
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
            facts = ["style=dotted", 'label="child"'] if edge.child else ["penwidth=2"] if edge.data else []
            if edge.when != "success":
                facts.append(f'label="{edge.when}"')
            told = f" [{', '.join(facts)}]" if facts else ""
            lines.append(f"    {marks[edge.source]} -> {marks[edge.target]}{told};")
        return "\n".join([*lines, "}"]) + "\n"

    def json(self) -> str:
        """
        Return an object with ``flow``, ``nodes`` and ``edges``, and ``is_whole`` if it is not.

        Nodes and edges have the fields of `FlowNode`, `FlowEdge`; ``child`` stands only at edges to children.

        It holds no ``<``, ``>`` or ``&``, so that it may stand inside HTML.
        """
        text = json.dumps(attrs.asdict(self, filter=_is_told), separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def _marks(self) -> dict[str, str]:
        return {node.id: f"n{number}" for number, node in enumerate(self.nodes)}


def draw(
    flow: str, records: Iterable[JobRecord], children: Iterable[JobRecord] = (), *, is_whole: bool = True
) -> FlowGraph:
    """Return the graph of a flow's jobs and of their children; without the jobs that collect children."""
    nodes: dict[str, FlowNode] = {}
    edges: list[FlowEdge] = []
    made = [record for record in children if record.spec.task != CHILDREN_TASK]
    for record in (*records, *made):
        spec = record.spec
        nodes[record.id] = FlowNode(record.id, spec.name or record.id, spec.task, record.state)
        edges += [FlowEdge(edge.id, record.id, edge.when, edge.data) for edge in spec.depends_on]
        if spec.parent in nodes:
            edges.append(FlowEdge(spec.parent, record.id, child=True))
    for edge in edges:
        if edge.source not in nodes:
            nodes[edge.source] = FlowNode(edge.source, edge.source)
    return FlowGraph(flow, tuple(nodes.values()), tuple(edges), is_whole)


def _is_told(attribute: attrs.Attribute[Any], value: Any) -> bool:
    """Return whether the JSON includes a field: the number of jobs only if a node stands for several."""
    if attribute.name in {"child", "is_whole"}:
        return value is not attribute.default
    return attribute.name not in {"states", "count"} or (bool(value) and value != 1)


def _merged(graph: FlowGraph, alike: Callable[[FlowGraph], Mapping[str, Hashable]], most: int) -> FlowGraph:
    """
    Return the graph with each group of more than *most* like nodes merged.

    Args:
        alike: return to which group each node belongs; one that is not there stays as it is.
    """
    groups: dict[Hashable, list[FlowNode]] = {}
    by_id = alike(graph)
    for node in graph.nodes:
        if node.id in by_id:
            groups.setdefault(by_id[node.id], []).append(node)
    into = {node.id: node for node in graph.nodes}
    for group in groups.values():
        if len(group) > 1 and sum(node.count for node in group) > most:
            into |= dict.fromkeys([node.id for node in group], _as_one(group))
    edges = [
        attrs.evolve(edge, source=into[edge.source].id, target=into[edge.target].id)
        for edge in graph.edges
        if into[edge.source] is not into[edge.target]
    ]
    kept = {node.id: node for node in into.values()}
    return FlowGraph(graph.flow, tuple(kept.values()), tuple(dict.fromkeys(edges)), graph.is_whole)


def _as_one(group: list[FlowNode]) -> FlowNode:
    """Return a node for several. Nodes of different tasks merge to a node without a task."""
    first, count = group[0], sum(node.count for node in group)
    states: dict[JobState, int] = {}
    for node in group:
        for state, number in (node.states or ({} if node.state is None else {node.state: node.count})).items():
            states[state] = states.get(state, 0) + number
    is_one_task = all(node.task == first.task for node in group)
    called = (first.task or "jobs elsewhere") if is_one_task else "other jobs"
    name = f"{called} x {count}"
    worst = min(states, key=_WORST_FIRST.index, default=None)
    return FlowNode(first.id, name, first.task if is_one_task else None, worst, states, count)


def _siblings(graph: FlowGraph) -> Mapping[str, Hashable]:
    """Return for each node its task and its edges."""
    around = _around(graph)
    return {node.id: (node.task, frozenset(around[node.id])) for node in graph.nodes}


def _around(graph: FlowGraph) -> dict[str, list[tuple[str, bool, When, bool, bool]]]:
    """Return for each node what is at the other ends of its edges, whether it comes behind, and the kind of edge."""
    around: dict[str, list[tuple[str, bool, When, bool, bool]]] = {node.id: [] for node in graph.nodes}
    for edge in graph.edges:
        around[edge.source].append((edge.target, True, edge.when, edge.data, edge.child))
        around[edge.target].append((edge.source, False, edge.when, edge.data, edge.child))
    return around


def _runs(graph: FlowGraph) -> Mapping[str, Hashable]:
    """Return for each node the first one of the jobs of its task that stand one after another, and nothing beside."""
    before: dict[str, list[str]] = {}
    behind: dict[str, list[str]] = {}
    for edge in graph.edges:
        before.setdefault(edge.target, []).append(edge.source)
        behind.setdefault(edge.source, []).append(edge.target)
    task = {node.id: node.task for node in graph.nodes}
    next_to = {
        source: targets[0]
        for source, targets in behind.items()
        if len(targets) == 1 == len(before[targets[0]]) and task[source] == task[targets[0]]
    }
    runs: dict[str, Hashable] = {}
    for first in task.keys() - next_to.values():
        at: str | None = first
        while at is not None:
            runs[at] = first
            at = next_to.get(at)
    return runs


def _like_neighbors(graph: FlowGraph) -> Mapping[str, Hashable]:
    """Return for each node a number, the same for those of a task around which the tasks are the same."""
    around = _around(graph)
    numbers: dict[str, Hashable] = {node.id: node.task for node in graph.nodes}
    for _ in range(_ROUNDS):
        known: dict[Hashable, int] = {}
        numbers = {
            job_id: known.setdefault(
                (number, frozenset((numbers[other], *rest) for other, *rest in around[job_id])), len(known)
            )
            for job_id, number in numbers.items()
        }
    return numbers


def _label(node: FlowNode) -> list[str]:
    """Return the lines of a node's label. The task is left out if the name contains the task."""
    lines = [node.name]
    if node.task not in {None, node.name} and node.count == 1:
        lines.append(str(node.task))
    if len(node.states) > 1:
        lines.append(told_states(node))
    elif node.state is not None:
        lines.append(node.state.value)
    return lines


def told_states(node: FlowNode) -> str:
    """
    Return how many jobs of a node are in which state, the most urgent states first.

    >>> told_states(FlowNode("a", "a x 3", states={JobState.FINISHED: 2, JobState.FAILED: 1}, count=3))
    '1 FAILED, 2 FINISHED'
    """
    return ", ".join(f"{node.states[state]} {state}" for state in sorted(node.states, key=_WORST_FIRST.index))


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
