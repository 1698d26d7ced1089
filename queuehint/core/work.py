"""Follow-up work of operations: leftovers, then due timers, within an exact budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.core.jobs.sweeps import step
from queuehint.core.structures.timers import TimerKind
from queuehint.core.structures.trie import Node
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from queuehint.core.state import State

LEASE, STARTED = TimerKind.LEASE, JobState.STARTED


def follow(state: State) -> None:
    """Carry out leftovers, then due timers, within the budget."""
    units = state.options.budget
    state.cut = False
    leftovers, timers, trie, arrived = state.table.leftovers, state.table.timers, state.table.trie, state.arrived
    limits = state.table.limits
    while units > 0:
        if leftovers:
            item = leftovers.popleft()
            if isinstance(item, Node):
                used, again = trie.advance(item, units, arrived)
                for walk in arrived:
                    state.table.arrive(walk)
                arrived.clear()
            else:
                used, again = step(state.lifecycle, item, units)
            units -= used
            if again:
                leftovers.append(item)
            continue
        due = timers.pop_due(state.now_ms)
        if due is not None:
            kind, job = due
            worker = job.worker if kind is LEASE and job.spec.presence_ms is None else None
            units -= 1 + state.lifecycle.fire_timer(kind, job)
            if worker is not None and job.state is not STARTED:
                # It announces itself again if it lives.
                state.workers.pop(worker, None)
            continue
        called = limits.recheck() if limits.limiters else None
        if called is None:
            break
        units -= 1 + called
    state.units = units
    if state.shared.values:
        state.shared.expire(state.now_ms)


def more(state: State) -> bool:
    """Return whether an operation has left work to do now."""
    return state.cut or is_behind(state)


def is_behind(state: State) -> bool:
    """Return whether there is work to do now."""
    return bool(state.table.leftovers) or is_timer_due(state)


def is_timer_due(state: State) -> bool:
    """Return whether a job's timer fires now, or a limit is looked at again."""
    table = state.table
    if table.timers.is_due(state.now_ms):
        return True
    look_ms = table.limits.next_ms() if table.limits.limiters else None
    return look_ms is not None and look_ms <= state.now_ms
