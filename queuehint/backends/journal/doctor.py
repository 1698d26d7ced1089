"""Examination of the engine of the process that leads: gates, cycles of jobs, and waits for signals."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeVar

import attrs

from queuehint.backends.report import (
    CYCLES_MAX,
    MORE_CYCLES,
    Finding,
    Report,
    cycle_finding,
    lost_wait_finding,
    order_finding,
    place_finding,
    unawaited_finding,
)
from queuehint.core.jobs.settled import compare, miscounted, misoffered, stalled, standings_of
from queuehint.core.structures.edges import cycles
from queuehint.core.structures.leftovers import CommitSweep, ReleaseSweep
from queuehint.operations import Cancel, CountJobs, Operation
from queuehint.operations.wire import PlaceAnew
from queuehint.values.hint import gate_key
from queuehint.values.spec import WAIT_MARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.core.engine import Engine
    from queuehint.core.jobs.settled import Gate
    from queuehint.core.jobs.table import JobTable

Reply = TypeVar("Reply")

DAMAGE_MAX: Final = 20
"""The most damaged pages of a file, findings about gates, and findings about waits, that one examination reports."""
NAMED_MAX: Final = 10
"""The most jobs of a line that are named."""


@attrs.frozen
class Examination:
    """
    The findings of an examination of an engine.

    Args:
        cycles: the first jobs that wait for one another, a tuple of ids each; one more than are reported.
        gates: the first findings about jobs at wrong gates, and gates that are not as the jobs make them.
        waits: the first findings about waits for signals that have no job, and jobs that have no wait.
    """

    cycles: tuple[tuple[str, ...], ...]
    gates: tuple[Finding, ...]
    waits: tuple[Finding, ...] = ()


@attrs.frozen
class Examine(Operation[Examination]):
    """Examine the engine; it is done by the process that leads, and changes nothing."""


def examine(engine: Engine, path: str) -> Examination:
    """Look for jobs that wait in a cycle, at the gates and at waits for signals; O(jobs)."""
    jobs = engine.table.jobs.values()
    edges = {job.id: list(job.blocked) for job in jobs if not job.is_over and job.blocked}
    found = islice(cycles(edges), CYCLES_MAX + 1)
    waits = tuple(islice(_waits(path, engine.table), DAMAGE_MAX))
    return Examination(cycles=tuple(map(tuple, found)), gates=tuple(_gates(path, engine)), waits=waits)


class _Store(Protocol):
    """A store of a journal."""

    kind: ClassVar[str]
    name: str
    namespace: str

    def call_sync(self, operation: Operation[Reply]) -> Reply: ...

    def lead_facts(self) -> dict[str, str]: ...


def report(backend: _Store, looked_at: str, *, fix: bool = False) -> Report:
    """
    Have the engine of the process that leads examined, after its journal was read.

    Args:
        looked_at: besides the jobs, in words.
        fix: replace gates that are wrong by those of all jobs placed anew; cancel the waits for signals that no job
            waits for, and the jobs whose waits are lost.

    Raises:
        BackendError: the store cannot be used, or is damaged.
    """
    stats = backend.call_sync(CountJobs())
    found = backend.call_sync(Examine())
    before = after = (*found.gates, *found.waits)
    if fix and any(each.is_repairable for each in before):
        if any(each.is_repairable for each in found.gates):
            backend.call_sync(PlaceAnew())
        if found.waits:
            backend.call_sync(Cancel(tuple([str(each.job_id) for each in found.waits])))
        again = backend.call_sync(Examine())
        after = (*again.gates, *again.waits)
    repaired = [each for each in before if each not in after]
    jobs = sum(stats.states.values())
    return Report(
        store=f"{backend.kind} {backend.name}",
        namespace=backend.namespace,
        facts={
            "jobs": jobs,
            "unfinished": stats.unfinished,
            **backend.lead_facts(),
            "looked_at": f"{looked_at}, {jobs} jobs and what they wait for",
        },
        findings=(*after, *[cycle_finding(backend.name, cycle) for cycle in found.cycles[:CYCLES_MAX]]),
        repaired=tuple(repaired),
        unchecked=(MORE_CYCLES,) if len(found.cycles) > CYCLES_MAX else (),
    )


def _gates(path: str, engine: Engine) -> list[Finding]:
    """Return the first jobs at wrong gates, and the first gates that are not as the jobs make them; O(unfinished)."""
    table = engine.table
    compared = compare(standings_of(table))
    found = [order_finding(path, job) for job in islice(compared.early, DAMAGE_MAX)]
    found += [place_finding(path, job, passed) for job, passed in islice(compared.misplaced.items(), DAMAGE_MAX)]
    # Where jobs that have started conflict, none can be placed anew before one has ended.
    can_repair = compared.order is not None
    found += [
        Finding(kind=kind, where=path, what=what, is_repairable=can_repair)
        for kind, what in islice(_wrong_gates(table), DAMAGE_MAX)
    ]
    return found


def _waits(path: str, table: JobTable) -> Iterator[Finding]:
    """Yield what is wrong with waits for signals: one without a job, a job without its wait; O(unfinished)."""
    # Until these are done, a wait may have no job yet, or none any more.
    is_left = any(isinstance(item, (CommitSweep, ReleaseSweep)) for item in table.leftovers)
    for job in table.jobs.values():
        if job.is_over or job.is_hidden:
            continue
        if job.id.startswith(WAIT_MARK) and not is_left and not table.edges.has_dependents(job.id):
            yield unawaited_finding(path, job.id)
        for wait in job.blocked:
            if wait.startswith(WAIT_MARK) and wait not in table.jobs:
                yield lost_wait_finding(path, job.id, wait)


def _wrong_gates(table: JobTable) -> Iterator[tuple[str, str]]:
    for at, (gate, right) in miscounted(table).items():
        yield "gate", f"the gate {gate_key(at)!r} {_difference(gate, right)}"
    for at in stalled(table):
        yield "stalled", f"the line at the gate {gate_key(at)!r} may move on, and no work is left over to move it"
    for job in misoffered(table):
        yield "head", f"job {job.id} miscounts the gates that it waits for, or is wrongly offered"


def _difference(gate: Gate, right: Gate) -> str:
    if (gate.held, gate.waiting) != (right.held, right.waiting):
        counts, others = (" ".join(map(str, (*each.held, each.waiting))) for each in (right, gate))
        return f"should have {counts} (IS IX S X, waiting) and has {others}"
    if gate.line != right.line:
        line, other = (", ".join(each.line[:NAMED_MAX]) or "nobody" for each in (right, gate))
        return f"should have {line} in its line and has {other}"
    counts, others = (" ".join(map(str, each.active)) for each in (right, gate))
    return f"should have {counts} (IS IX S X) of jobs that run and has {others}"
