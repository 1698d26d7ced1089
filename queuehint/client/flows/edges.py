"""
Edges of groups: specs of a flow with all their edges.

An edge from a group is an edge from its last nodes, those that no node of the group waits for; an edge to a group is
an edge to its first nodes, which wait for no node of it. These are known once all nodes are there, so group edges are
made last, inner groups first: an edge of a group changes the first and last nodes of its enclosing groups only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.client.flows.nodes import FlowGroup, FlowRegistry, Node, Source, Sources
from queuehint.errors import InvalidJobError, shown
from queuehint.values.spec import Dependency, JobSpec, When, evolved

if TYPE_CHECKING:
    from collections.abc import Iterator


def specs_of(registry: FlowRegistry) -> list[JobSpec]:
    """
    Return the specs of all nodes, in the order of their addition. Record the ends of each group.

    Raises:
        InvalidJobError: a node has the id of a job outside of the flow as its name, and another waits for that job.
    """
    if confused := [job_id for job_id in registry.outside if job_id in registry.named]:
        raise InvalidJobError(
            f"{shown(confused[0])} is the name of a node and the id of a job outside of the flow that another node "
            "waits for: give the node another name"
        )
    more = _Edges(registry).of_groups()
    return [
        evolved(node.spec, depends_on=tuple(dict.fromkeys([*node.spec.depends_on, *more[node]])))
        if node in more
        else node.spec
        for node in registry.nodes
    ]


class _Edges:
    """The edges of a flow, including the edges of its groups."""

    def __init__(self, registry: FlowRegistry) -> None:
        self._registry = registry
        self._by_id = {node.id: node for node in registry.nodes if node.id}
        self._before = {
            node: {source for source in map(self._node, node.spec.depends_on) if source is not None}
            for node in registry.nodes
        }
        self._starts: dict[FlowGroup, list[Node[Any]]] = {}
        self._more: dict[Node[Any], list[Dependency]] = {}

    def of_groups(self) -> dict[Node[Any], list[Dependency]]:
        """Return the edges that groups add, by their node. Record the ends of each group."""
        waits: dict[FlowGroup, list[tuple[Node[Any] | FlowGroup, Source, When]]] = {}
        """Those that a group is part of, be it one end or the other."""
        told: list[tuple[Node[Any] | FlowGroup, Sources]] = [*self._registry.waits]
        told += [(group, group.waiting) for group in self._registry.groups if not group.is_empty]
        for target, sources in told:
            for source, when in _without_empty(sources):
                ends = [end for end in (target, source) if isinstance(end, FlowGroup)]
                for end in ends:
                    waits.setdefault(end, []).append((target, source, when))
                if not ends:
                    self._connect(target, source, when)
        for group in reversed(self._registry.groups):
            inner = group.all_nodes()
            members = set(inner)
            awaited = {source for node in inner for source in self._before[node]}
            group.ends = [node for node in inner if node not in awaited]
            self._starts[group] = [node for node in inner if self._before[node].isdisjoint(members)]
            for wait in waits.get(group, ()):
                if self._is_known(wait[0]) and self._is_known(wait[1]):
                    self._connect(*wait)
        return self._more

    def _is_known(self, end: Node[Any] | FlowGroup | Dependency) -> bool:
        return not isinstance(end, FlowGroup) or end in self._starts

    def _connect(self, target: Node[Any] | FlowGroup, source: Source, when: When) -> None:
        edges = [source] if isinstance(source, Dependency) else [node.edge(when) for node in source.ends]
        for node in self._starts[target] if isinstance(target, FlowGroup) else [target]:
            self._more.setdefault(node, []).extend(edges)
            self._before[node].update(found for found in map(self._node, edges) if found is not None)

    def _node(self, edge: Dependency) -> Node[Any] | None:
        """Return the target node of an edge, None outside of the flow. Names win, as in the submission."""
        return self._registry.named.get(edge.id) or self._by_id.get(edge.id)


def _without_empty(sources: Sources) -> Iterator[tuple[Source, When]]:
    """Yield sources. Replace a group without nodes by the sources of that group."""
    left = list(reversed(sources))
    seen: set[FlowGroup] = set()
    while left:
        source, when = left.pop()
        if isinstance(source, Dependency) or not source.is_empty:
            yield source, when
        elif source not in seen:
            seen.add(source)
            left += reversed(source.waiting)
