"""Helpers of record tests: jobs without handlers, started and ended by hand, on any store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from queuehint import Claim, JobRecord, JobSpec, Outcome, OutcomeKind, Scheduler
from queuehint.operations import Exchange, Tick
from tests.schedulers import run


def on(url: str, main: Callable[[Scheduler], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test on a scheduler."""

    async def opened() -> None:
        async with Scheduler(url, **options) as sched:
            await main(sched)

    run(opened())


def spec(id: str, *path: str, **fields: Any) -> JobSpec:
    """Return a job's spec; with a path it has a place."""
    fields = {"task": "work", **fields}
    return JobSpec(id=id, claims=(Claim(path),) if path else (), **fields)


def ids(records: Iterable[JobRecord]) -> list[str]:
    return [record.id for record in records]


async def settle(sched: Scheduler, *kinds: OutcomeKind) -> list[str]:
    """Start as many jobs as there are outcomes, in their order, and end them so; return their ids."""
    backend = sched.backend
    grants = (await backend.call(Exchange("w", limit=len(kinds)))).grants
    outcomes = tuple(
        Outcome(job_id=grant.spec.id, token=grant.token, kind=kind, final=True)
        for grant, kind in zip(grants, kinds, strict=True)
    )
    await backend.call(Exchange("w", outcomes))
    await tidy(sched)
    return [outcome.job_id for outcome in outcomes]


async def tidy(sched: Scheduler) -> None:
    """Have done what is due and what is left over."""
    while (await sched.backend.call(Tick())).more:
        pass


FEW, MANY, AT_ONCE = 100, 1000, 40
"""How many lines each writer appends to two records, and how many at once to the second."""


def write_lines(sched: Scheduler, who: int) -> None:
    """Append lines with writer and number: to the record ``few`` one at a time, to ``many`` several at once."""
    for n in range(FEW):
        sched.records.append_log_sync("few", f"{who} {n}")
    for n in range(0, MANY, AT_ONCE):
        sched.records.append_log_sync("many", "\n".join(f"{who} {m}" for m in range(n, n + AT_ONCE)))
