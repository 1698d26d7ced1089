"""``queuehint doctor --app``: arguments and results that the codec of an application cannot read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.backends.report import Finding
from queuehint.errors import PayloadError
from queuehint.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queuehint.handlers.codec import Codec
    from queuehint.values.record import JobRecord

NAMED_MAX = 100


def unreadable(url: str, namespace: str | None, codec: Codec) -> tuple[Finding, ...]:
    """
    Return the payloads unreadable by a codec: errors for unfinished jobs, which would fail, else warnings.

    The first 100 are named; the last finding says how many more there are.

    Complexity: reads every record.
    """
    found: list[Finding] = []
    more = 0
    scheduler = Scheduler(url, codec=codec) if namespace is None else Scheduler(url, codec=codec, namespace=namespace)
    try:
        for record in scheduler.records.iterate_sync():
            for finding in _of_record(scheduler, record):
                if len(found) < NAMED_MAX:
                    found.append(finding)
                else:
                    more += 1
    finally:
        scheduler.close_sync()
    if more:
        found.append(Finding(kind="payload", where="jobs", what=f"{more} more payloads cannot be read"))
    return tuple(found)


def _of_record(scheduler: Scheduler, record: JobRecord) -> Iterator[Finding]:
    if record.problem is not None:  # the spec itself cannot be read, and is a finding of the store's
        return
    readers: tuple[tuple[str, Callable[[JobRecord], Any]], ...] = (
        ("arguments", scheduler.records.arguments_of),
        ("result", scheduler.records.result_of),
    )
    for name, read in readers:
        try:
            read(record)
        except (PayloadError, OSError) as error:
            why = error.problem if isinstance(error, PayloadError) else type(error).__name__
            yield Finding(
                kind="payload",
                level="warning" if record.state.is_over else "error",
                where=f"job {record.id}",
                what=f"{name} of {record.spec.task}: {why}",
                job_id=record.id,
            )
