"""What follows from an operation: leftovers, then due timers, within an exact budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.jobs.sweeps import step
from queuehint.core.structures.trie import Node

if TYPE_CHECKING:
    from queuehint.core.state import State


def follow(state: State) -> None:
    """Do leftovers, then due timers, until nothing is left or the budget is used."""
    units = state.options.budget
    state.cut = False
    leftovers, timers, trie, arrived = state.ledger.leftovers, state.ledger.timers, state.ledger.trie, state.arrived
    limits = state.ledger.limits
    while units > 0:
        if leftovers:
            item = leftovers.popleft()
            if isinstance(item, Node):
                used, again = trie.advance(item, units, arrived)
                for walk in arrived:
                    state.ledger.arrive(walk)
                arrived.clear()
            else:
                used, again = step(state.course, item, units)
            units -= used
            if again:
                leftovers.append(item)
            continue
        due = timers.pop_due(state.now_ms)
        if due is not None:
            units -= 1 + state.course.come_up(*due)
            continue
        called = limits.come_up() if limits.meters else None
        if called is None:
            break
        units -= 1 + called
    state.units = units
    if state.shared:
        state.shared.expire(state.now_ms)


def more(state: State) -> bool:
    """Say whether anything is left that could be done now."""
    if state.ledger.leftovers or state.cut:
        return True
    next_ms = state.next_timer_ms()
    return next_ms is not None and next_ms <= state.now_ms
