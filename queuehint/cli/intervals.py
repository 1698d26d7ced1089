"""``queuehint check-intervals``: the check of a log of intervals, of any queue, against the rules of order."""

from __future__ import annotations

from typing import Annotated

import typer

from queuehint.cli.trace import read_files, refusing, tell


def check_intervals(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="JSON lines; - is what comes in.")],
    tolerance: Annotated[
        float, typer.Option(metavar="MS", min=0, help="How far apart the clocks of two machines may be.")
    ] = 0,
    complete: Annotated[
        bool, typer.Option("--complete", help="All jobs that were enqueued must have begun and ended.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many faults to look for.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """
    Judge any queue by the times that its clients saw: enqueues called and returned, runs begun and ended.

    FILE holds lines of an IntervalRecorder, or all times of a job in a line. Ends with 0 if the times can be those of a
    queue that keeps order and exclusion, with 1 if they cannot, with 2 if nothing ran or it is no such log.
    """
    from queuehint.testing.intervals import examine_intervals
    from queuehint.testing.intervals.lines import IntervalReader

    with refusing(as_json=as_json):
        reader = IntervalReader()
        read_files(files, reader)
        log = reader.log()
        report = examine_intervals(log.jobs, tolerance_ms=tolerance, complete=complete, limit=limit)
    counted = f"{report.attempts} runs of {report.jobs} jobs"
    tell(
        report,
        log.skipped,
        limit,
        tolerance_ms=tolerance,
        counted=counted,
        is_nothing=not report.attempts or report.is_blind,
        as_json=as_json,
    )
