"""``queuehint tree, graph``: the tree of places, the graph of a flow."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import attrs
import typer
from rich.text import Text

from queuehint.cli.live import Every, repeat
from queuehint.cli.opening import AsJson, Namespace, Target, opened, place, say_none
from queuehint.cli.operate import SomePathKey
from queuehint.cli.render import STYLES, Lines, Printer, branches, cell
from queuehint.client.flows.graph import GROUP_OVER, PAGE_NODES, FlowEdge, FlowGraph, FlowNode, told_states
from queuehint.operations import TREE_NODES_MAX
from queuehint.scheduler.operating import TREE_DEPTH_MAX
from queuehint.schema.checks import check_int
from queuehint.values.hint import ROOT_KEY
from queuehint.values.record import JobState
from queuehint.values.report import TreeNode


class Format(StrEnum):
    """How a flow is drawn."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"


class Order(StrEnum):
    """How places are sorted."""

    NAME = "name"
    LINE = "line"


# --- places ----------------------------------------------------------------------------------------------------------


def tree(
    path: SomePathKey = None,
    target: Target = None,
    namespace: Namespace = None,
    depth: Annotated[int, typer.Option("--depth", "-d", help=f"Levels below the path, 0 to {TREE_DEPTH_MAX}.")] = 3,
    after: Annotated[
        str | None, typer.Option("--after", help="Only what is right below the path behind this name: the next page.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", help=f"How many right below the path, or lines, 1 to {TREE_NODES_MAX}.")
    ] = TREE_NODES_MAX,
    order: Annotated[Order, typer.Option("--order", help="By name, or the longest lines of jobs first.")] = Order.NAME,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")] = False,
    every: Every = 1.0,
    dead: Annotated[bool, typer.Option("--dead", help="Show only places that dead jobs hold.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what goes on at a path and below it: what runs, what waits there, what is dead, paused or closed."""
    with opened(target, namespace, as_json=as_json) as sched:
        segments = place(path)
        check_int(depth, parameter="depth", least=0, most=TREE_DEPTH_MAX)
        check_int(limit, parameter="limit", least=1, most=TREE_NODES_MAX)
        printer = Printer(as_json=as_json)

        def look() -> tuple[Any, list[Lines]]:
            found = sched.tree_sync(segments, depth, after=after, limit=limit, order=order.value)
            if not watch and not as_json and not _has_any(found):
                say_none(sched, "unfinished jobs")
            shown = _with_dead(found) or attrs.evolve(found, children=()) if dead else found
            return attrs.asdict(shown), [branches(_places(shown), printer.console.encoding)]

        repeat(printer, look, every_s=every, times=None if watch else 1)


def _has_any(node: TreeNode) -> bool:
    return bool(node.passing or node.granted or node.waiting or node.waiting_for_signals_below)


def _with_dead(node: TreeNode) -> TreeNode | None:
    """Return a tree without the places that neither hold a dead job nor have one below."""
    children = tuple([kept for child in node.children if (kept := _with_dead(child)) is not None])
    return attrs.evolve(node, children=children) if children or node.dead else None


def _places(root: TreeNode) -> Iterator[tuple[int, Text]]:
    """Yield places with their depths. Places below the first with a single child and no jobs are left out."""
    todo: list[tuple[int, TreeNode | Text]] = [(0, root)]
    while todo:
        depth, node = todo.pop()
        if isinstance(node, Text):
            yield depth, node
            continue
        while depth and len(node.children) == 1 and not _has_more_to_say(node):
            (node,) = node.children
        yield depth, _place(node)
        if node.after is not None:
            todo.append((depth + 1, _more(node, node.after)))
        todo += [(depth + 1, child) for child in reversed(node.children)]


def _has_more_to_say(node: TreeNode) -> bool:
    return bool(
        node.granted or node.waiting or node.waiting_for_signals or node.paused or node.closed or node.after is not None
    )


def _more(node: TreeNode, after: str) -> Text:
    """Report how to list the children that are not shown."""
    path = "" if node.path_key == ROOT_KEY else f" {shlex.quote(node.path_key)}"
    return cell(f"… more: tree{path}" + (f" --after {shlex.quote(after)}" if after else ""), "dim")


def _place(node: TreeNode) -> Text:
    held = node.granted - node.started - node.dead
    signals = node.waiting_for_signals
    signals_below = node.waiting_for_signals_below - signals
    told = [
        (f"{node.started} running", STYLES[JobState.STARTED]) if node.started else None,
        (f"{node.dead} dead", STYLES[JobState.FAILED]) if node.dead else None,
        (f"{held} next", STYLES[JobState.QUEUED]) if held > 0 else None,
        (f"{node.waiting} waiting", STYLES[JobState.QUEUED]) if node.waiting else None,
        (f"{signals} for a signal", STYLES[JobState.DEFERRED]) if signals else None,
        (f"{node.passing} below", "dim") if node.passing else None,
        (f"{signals_below} below for a signal", "dim") if signals_below else None,
        ("paused", "bold red") if node.paused else None,
        ("closed", "bold red") if node.closed else None,
    ]
    text = Text().append_text(cell(node.path_key, "bold"))
    for number, part in enumerate(part for part in told if part is not None):
        text.append(", " if number else "  ").append(*part)
    return text


# --- flows -----------------------------------------------------------------------------------------------------------


def graph(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The id of a flow.")],
    target: Target = None,
    namespace: Namespace = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How it is drawn.")] = Format.TEXT,
    depth: Annotated[int, typer.Option("--depth", "-d", min=0, help="Levels below the first jobs, of the text.")] = 20,
    all: Annotated[
        bool,
        typer.Option(
            "--all",
            help=f"Draw each job; else more than {GROUP_OVER} equal ones as one, and {PAGE_NODES} nodes at most.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw the jobs of a flow, what each waits for, and their children."""
    with opened(target, namespace, as_json=as_json) as sched:
        found = sched.get_flow(flow).graph_sync()
        if not found.is_whole:
            typer.echo("queuehint: there are more children: queuehint ls --parent ID", err=True)
        if as_json or format is Format.JSON:
            print(found.json())
            return
        found = found if all else found.grouped()
        if format is Format.TEXT:
            printer = Printer()
            printer.put(branches(_jobs(found, depth), printer.console.encoding))
        else:
            print(found.mermaid() if format is Format.MERMAID else found.dot(), end="")


def _jobs(found: FlowGraph, depth_max: int) -> Iterator[tuple[int, Text]]:
    """Yield each job below its dependencies. A repeated job is its name alone."""
    nodes = {node.id: node for node in found.nodes}
    edges: dict[str, list[FlowEdge]] = {}
    for known in found.edges:
        edges.setdefault(known.source, []).append(known)
    todo: list[tuple[int, str, FlowEdge | None]]
    todo = [(0, job_id, None) for job_id in reversed(_roots(found, edges))]
    seen: set[str] = set()
    while todo:
        depth, job_id, edge = todo.pop()
        text = _job(nodes[job_id], edge)
        behind = edges.get(job_id, ())
        if behind and (job_id in seen or depth == depth_max):
            text.append("  see above" if job_id in seen else "  …", "dim")
        elif depth < depth_max:
            todo += [(depth + 1, next_edge.target, next_edge) for next_edge in reversed(behind)]
        seen.add(job_id)
        yield depth, text


def _roots(found: FlowGraph, edges: dict[str, list[FlowEdge]]) -> list[str]:
    """Return the jobs without dependencies. Of merged nodes in a cycle, return one each."""
    waiting = {edge.target for edge in found.edges}
    roots: list[str] = []
    reached: set[str] = set()
    for node in sorted(found.nodes, key=lambda node: node.id in waiting):
        if node.id in reached:
            continue
        roots.append(node.id)
        todo = [node.id]
        for job_id in todo:
            if job_id not in reached:
                reached.add(job_id)
                todo += [edge.target for edge in edges.get(job_id, ())]
    return roots


def _job(node: FlowNode, edge: FlowEdge | None) -> Text:
    text = Text().append_text(cell(node.name, "bold"))
    if node.state is None:
        text.append("  elsewhere", "dim")
    else:
        text.append(f"  {told_states(node) or node.state}", STYLES[node.state])
    if node.task is not None and node.task != node.name and node.count == 1:
        text.append("  ").append_text(cell(node.task))
    if edge is not None and edge.child:
        text.append("  child", "dim")
    if edge is not None and edge.when != "success":
        text.append(f"  on {edge.when}", "dim")
    return text
