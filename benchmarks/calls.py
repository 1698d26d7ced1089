"""Calls of a store that are measured alike on each: jobs of depth 3 over many documents, enqueued one by one."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Final

from benchmarks.report import TIMER
from queuehint import Claim, JobSpec
from queuehint.operations import Enqueue
from queuehint.values.spec import note_checked

if TYPE_CHECKING:
    from queuehint import Backend

AT_ONCE: Final = 100

_numbers = count()


def specs_of(amount: int) -> list[JobSpec]:
    """Return specs of jobs that no call has had before."""
    specs = []
    for number in range(amount):
        path = (f"doc-{number % 997:03}", f"section-{number % 2}", f"branch-{number % 3}")
        arguments = f'{{"doc":"{path[0]}","section":"{path[1]}","branch":"{path[2]}"}}'.encode()
        spec = JobSpec(id=f"{next(_numbers):012}", task="edit", claims=(Claim(path),), arguments=arguments)
        specs.append(note_checked(spec))  # as by the calls of a scheduler
    return specs


def enqueue_in_turn(backend: Backend, jobs: int) -> float:
    """Enqueue jobs one after the other, each once the one before is answered; return the seconds."""
    operations = [Enqueue((spec,)) for spec in specs_of(jobs)]
    begin_s = TIMER.read_s()
    for operation in operations:
        backend.call_sync(operation)
    return TIMER.read_s() - begin_s


def enqueue_at_once(backend: Backend, jobs: int) -> float:
    """Enqueue jobs one by one, `AT_ONCE` of them at a time on one loop; return the seconds."""
    operations = [Enqueue((spec,)) for spec in specs_of(jobs)]

    async def all_of_them() -> float:
        begin_s = TIMER.read_s()
        for begin in range(0, jobs, AT_ONCE):
            await asyncio.gather(*[backend.call(operation) for operation in operations[begin : begin + AT_ONCE]])
        return TIMER.read_s() - begin_s

    return asyncio.run(all_of_them())
