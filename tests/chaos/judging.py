"""
Checks of a chaos run: exactly the promises of `docs/reference/promises.md`.

- P1, P3, P11: no rule of `check-trace` is broken in the history that survived, whose jobs are all over at its end, nor
  in any history that a failover cut off.
- P4: a job that was acknowledged is in the history that survived, unless a failover explains the loss, by the times of
  the sentinels and of the servers (P13): the acknowledgement came before the replica was promoted, and not longer
  before it than the fault that made it lag; or it came from the old primary, between the promotion and the moment when
  it became a replica. No other job is there.
- P2: the tokens of a job's attempts grow, across failovers too, unless the clock was set back between two of them.
- P10, P13: at the end the doctor finds nothing, and counts and records agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise

import attrs

from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.testing.trace import examine_trace
from tests.chaos.clocks import ServerClock
from tests.chaos.failovers import Failover
from tests.chaos.injecting import Injected
from tests.chaos.load import Asked
from tests.chaos.nodes import Node
from tests.chaos.recording import History, trace_of
from tests.faults import checks

LAG_S = 2.0
"""How far a replica may be behind its primary when nothing is wrong."""
BEFORE = 5_000
"""So many events before the end of a history that was cut off are judged with it: more than any job lasts."""


def broken_rules(survivor: History, histories: Iterable[History], asked: Mapping[str, Asked]) -> list[str]:
    """Judge the history that survived, and the ends of those that were cut off, by the rules of traces."""
    jobs = [each.call.described() for each in asked.values()]
    report = examine_trace(trace_of(survivor.events), jobs, complete=True)
    found = [f"surviving history: {fault.rule}: {fault.message}" for fault in report.faults]
    found += [f"surviving history: not judged: {text}" for text in report.unjudged]
    for history in histories:
        common = common_events(survivor, history)
        if common < len(history.events):
            end = history.events[max(0, common - BEFORE) :]
            faults = examine_trace(trace_of(end), jobs).faults
            found += [f"history {history.key} that was cut off: {fault.rule}: {fault.message}" for fault in faults]
    for history in histories:
        for before, event in pairwise(event for event in history.events if event is not None):
            if event.at_ms < before.at_ms:
                found.append(f"history {history.key}: time goes back at event {event.at}")
    return found


def common_events(survivor: History, history: History) -> int:
    """Return how many events of a history are in the one that survived."""
    common = min(len(history.events), len(survivor.events))
    while common and history.events[common - 1] != survivor.events[common - 1]:
        common -= 1
    return common


class Cause(StrEnum):
    """Why a failover has lost an acknowledged job."""

    NOT_REPLICATED = "the replica had not got it when it was promoted"
    REPLACED = "the old primary acknowledged it when its successor was there"


@attrs.frozen
class Loss:
    """An acknowledged job that is not in the history that survived."""

    job: str
    sent_s: float
    acknowledged_s: float
    nodes: tuple[int, ...]
    """The nodes in whose histories it was seen; none if they ended before they were read."""
    failover: int | None = None
    """The number of the failover that explains it, from 0; None: none does."""
    cause: Cause | None = None


def lost_jobs(
    survivor: History,
    histories: Iterable[History],
    asked: Mapping[str, Asked],
    faults: Sequence[Injected],
    failovers: Sequence[Failover],
) -> tuple[list[Loss], list[str]]:
    """Return the acknowledged jobs that failovers have lost, and what of that no promise allows."""
    there = {event.id for event in survivor.events if event is not None}
    lost = {job_id: each for job_id, each in asked.items() if each.acknowledged_s is not None and job_id not in there}
    seen: dict[str, set[int]] = {}
    for history in histories:
        for event in history.events[common_events(survivor, history) :]:
            if event is not None and event.id in lost:
                seen.setdefault(event.id, set()).add(history.key[0])
    losses = []
    for job_id, each in lost.items():
        assert each.sent_s is not None
        assert each.acknowledged_s is not None
        loss = Loss(job_id, each.sent_s, each.acknowledged_s, tuple(sorted(seen.get(job_id, ()))))
        losses.append(explained(loss, faults, failovers))
    violations = [f"job {job_id} came from nowhere" for job_id in sorted(there - asked.keys())]
    violations += [
        f"job {loss.job} was acknowledged, is lost, and no failover explains it" for loss in losses if not loss.cause
    ]
    return losses, violations


def explained(loss: Loss, faults: Sequence[Injected], failovers: Sequence[Failover]) -> Loss:
    """Return a loss with the failover that explains it, if one does."""
    for number, failover in enumerate(failovers):
        if loss.nodes and failover.old not in loss.nodes:
            continue
        # A request is run between the moment it is sent and its acknowledgement.
        if failover.ordered_s <= loss.acknowledged_s and loss.sent_s <= failover.demoted_s:
            return attrs.evolve(loss, failover=number, cause=Cause.REPLACED)
        lags_from_s = min(
            [failover.ordered_s]
            + [
                fault.begun_s
                for fault in faults
                if fault.begun_s <= failover.ordered_s <= (fault.settled_s or checks.NEVER_S)
            ]
        )
        if lags_from_s - LAG_S <= loss.acknowledged_s < failover.ordered_s:
            return attrs.evolve(loss, failover=number, cause=Cause.NOT_REPLICATED)
    return loss


def unseen_kinds(faults: Sequence[Injected]) -> list[str]:
    """Return the kinds of faults that never had an effect: what was judged has not met them."""
    seen = {fault.kind for fault in faults if fault.is_seen}
    return [f"{kind}: injected, and had no effect" for kind in sorted({fault.kind for fault in faults} - seen)]


def old_tokens(lines: Iterable[checks.Line], clock: ServerClock) -> list[str]:
    """Return the attempts whose token is not greater than that of an attempt of the job before."""
    newest: dict[str, checks.Line] = {}
    found = []
    for line in lines:
        if line.event != "start":
            continue
        before = newest.get(line.job)
        if before is not None and line.token <= before.token:
            if not any(before.t <= at_s <= line.t for at_s in clock.backward_at_s):
                found.append(f"job {line.job} was granted with token {line.token} after {before.token}")
            continue
        newest[line.job] = line
    return found


def store_faults(node: Node, namespace: str) -> list[str]:
    """Return what the doctor finds, and whether counts and records agree."""
    store = checks.open_store(node.server.url, namespace)
    try:
        found = [f"doctor: {finding}" for finding in diagnose(store).errors]
        try:
            checks.check_counts(store, node.server.client())
            checks.check_keys(node.server.client(), namespace)
        except AssertionError as error:
            found.append(f"counts: {error}")
        return found
    finally:
        store.close_sync()


def longest_pause(ends_s: Sequence[float], begun_s: float, ended_s: float) -> float:
    """Return the longest time without the end of an attempt that has something in common with a span of time."""
    return max(
        (after - before for before, after in pairwise(ends_s) if after > begun_s and before < ended_s), default=0.0
    )


def count_by_kind(history: History) -> dict[str, int]:
    """Return how often what happened in a history."""
    counts = Counter(str(event.kind) for event in history.events if event is not None)
    return dict(sorted(counts.items()))
