"""Race detection: handlers that write only at their places always pass; without places, two writers always fail."""

from __future__ import annotations

import asyncio
import json
from itertools import combinations
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings

from queuehint import Dependency, JobSpec
from queuehint.testing import check_serial_equivalence, job_graphs
from queuehint.values.hint import queue_key

Cells = dict[str, tuple[str, ...]]


async def note(cells: Cells, name: str, writes: list[str], reads: list[str]) -> None:
    """Add the job's name to what is in each cell that it may write; look at the others."""
    for cell in writes:
        before = cells.get(cell, ())
        await asyncio.sleep(0)
        cells[cell] = (*before, name)
    for cell in reads:
        before = cells.get(cell, ())
        await asyncio.sleep(0)
        assert cells.get(cell, ()) == before


def noting(spec: JobSpec, **changes: Any) -> JobSpec:
    """Return a job that writes a cell for each place of its own, and reads one for each that it shares."""
    cells: dict[str, list[str]] = {"exclusive": [], "shared": []}
    for claim in spec.check().claims:
        cells[claim.mode].append(queue_key(claim.path))
    arguments = {"name": spec.id, "writes": cells["exclusive"], "reads": cells["shared"]}
    edges = tuple([Dependency(edge.id) for edge in spec.depends_on])
    given = JobSpec(id=spec.id, task="note", claims=spec.claims, arguments=json.dumps(arguments).encode())
    return attrs.evolve(given, depends_on=edges, **changes)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(job_graphs(max_jobs=4, max_edges=0))
def test_handlers_that_write_at_their_places_only_are_serializable(graph: tuple[JobSpec, ...]) -> None:
    check_serial_equivalence({"note": note}, map(noting, graph), dict, orders_max=60)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(job_graphs(max_jobs=4))
def test_edges_may_reorder_a_place_and_nothing_else(graph: tuple[JobSpec, ...]) -> None:
    def sorted_cells(cells: Cells) -> dict[str, list[str]]:
        return {cell: sorted(names) for cell, names in cells.items()}

    check_serial_equivalence({"note": note}, map(noting, graph), dict, view=sorted_cells, orders_max=60)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(job_graphs(min_jobs=2, max_jobs=4, max_edges=0))
def test_without_places_two_jobs_that_write_one_cell_are_convicted(graph: tuple[JobSpec, ...]) -> None:
    jobs = [noting(spec, claims=()) for spec in graph]
    writes = [set(json.loads(job.arguments)["writes"]) for job in jobs]
    assume(any(a & b for a, b in combinations(writes, 2)))
    with pytest.raises(AssertionError, match=rf"2 of {len(jobs)} jobs are enough|one by one it does not"):
        check_serial_equivalence({"note": note}, jobs, dict)
