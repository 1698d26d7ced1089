"""Edges from and to groups: a minimal set that implies all others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import CycleError, Flow, FlowGroup, Node, Scheduler
from queuehint.client.arrangement import arrange
from queuehint.client.flows.edges import specs_of

sched = Scheduler("memory://")


@sched.job
async def work() -> None: ...


def closed(waits: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the transitive closure: for each node all nodes that it waits for."""
    closed = {name: set(others) for name, others in waits.items()}
    for _ in closed:
        for others in closed.values():
            for other in list(others):
                others |= closed[other]
    return closed


def told(item: Any, after: dict[FlowGroup, list[Any]]) -> set[str]:
    """Return the names of the nodes that must be over for what waits for an item of `after`."""
    if isinstance(item, Node):
        return {item.name}
    nodes = {node.name for node in item.all_nodes()}
    return nodes or {name for other in after[item] for name in told(other, after)}


@given(st.data())
def test_dependents_of_a_group_wait_for_all_its_members(data: st.DataObject) -> None:
    flow = Flow(sched)
    groups: list[FlowGroup] = [flow]
    within: dict[FlowGroup, list[FlowGroup]] = {flow: [flow]}
    after: dict[FlowGroup, list[Any]] = {flow: []}
    own: dict[Node[Any], list[Any]] = {}
    for number in range(data.draw(st.integers(1, 12))):
        group = data.draw(st.sampled_from(groups))
        others: list[Any] = [*own, *(other for other in groups if other not in within[group])]
        items: list[Any] = data.draw(st.lists(st.sampled_from(others), max_size=2)) if others else []
        if data.draw(st.booleans()):
            own[group.add(work.using(name=f"n{number}", after=items))] = items
        else:
            made = group.flow(f"g{number}", after=items)
            groups.append(made)
            within[made] = [*within[group], made]
            after[made] = items
    expected = closed(
        {
            node.name: {
                name
                for item in [*items, *(item for group in node.within for item in after[group])]
                for name in told(item, after)
            }
            for node, items in own.items()
        }
    )
    specs = specs_of(flow.registry)
    if any(name in others for name, others in expected.items()):
        with pytest.raises(CycleError):
            arrange(specs)
        return
    names = {spec.id: spec.name for spec in specs}
    sent = [spec for part in arrange(specs).parts for spec in part]
    found = closed({spec.name or "": {names[edge.id] or "" for edge in spec.depends_on} for spec in sent})
    assert found == expected
    ends = set(found) - {other for others in found.values() for other in others}
    assert {node.name for node in flow.ends} == ends
