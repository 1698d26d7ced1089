"""
Replay recorded documents side by side, keystroke by keystroke, and see that each ends exactly as it did.

Every transaction of a recording becomes a job at ``[document]``: one document is serial, in the order of enqueue,
and different documents run in parallel. All edits of all documents are enqueued at once and mixed, with
`Job.enqueue_many`; `Scheduler.drain` then runs them to the last. A job lost, doubled, out of order or beside another
one of its document would leave another text.

    python examples/replay_trace.py FILE...              one job for each transaction
    python examples/replay_trace.py --batch 20 FILE...   one job for every 20

A recording is JSON, gzipped or not: ``startContent``, ``endContent`` and ``txns``, each with ``patches``, a list of
``[position, deleted, inserted]`` counted in code points; such as https://github.com/josephg/editing-traces offers
under ``sequential_traces``.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from queuehint import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Patch = list[Any]
"""``[position, deleted, inserted]``."""


class TraceError(Exception):
    """There is no recorded document here."""


@attrs.frozen
class Trace:
    """A recorded document: its text before and after, and what happened in between."""

    name: str
    start: str
    end: str
    transactions: Sequence[Sequence[Patch]]


@attrs.frozen(kw_only=True)
class Summary:
    """The work of a replay."""

    texts: dict[str, str]
    wrong: Sequence[str]
    jobs: int
    overlaps: int
    enqueue_s: float
    run_s: float


async def replay(traces: Sequence[Trace], *, batch: int = 1, concurrency: int = 16, broken: bool = False) -> Summary:
    """
    Run recorded documents through a scheduler.

    Args:
        traces: each name once.
        batch: how many transactions make one job.
        broken: give the jobs no place, to see that it is noticed.
    """
    # A namespace of its own: the texts live in this process, so no other one may run the jobs.
    sched = Scheduler(namespace=f"trace-{secrets.token_hex(6)}")
    texts = {trace.name: trace.start for trace in traces}
    running: set[str] = set()
    overlaps = 0

    @sched.job(queue_hint=["{document}"], max_attempts=1)
    async def edit(document: str, patches: list[Patch]) -> None:
        nonlocal overlaps
        overlaps += bool(running)
        running.add(document)
        text = texts[document]
        # Another edit of this document at this moment would be overwritten.
        await asyncio.sleep(0)
        for position, deleted, inserted in patches:
            text = text[:position] + inserted + text[position + deleted :]
        texts[document] = text
        running.discard(document)

    calls = list(mixed([edits(trace, batch) for trace in traces]))
    async with sched:
        began = time.perf_counter()
        await (edit.using(queue_hint=None) if broken else edit).enqueue_many(calls)
        enqueued = time.perf_counter()
        async with sched.worker(concurrency):
            await sched.drain()
        ended = time.perf_counter()
    return Summary(
        texts=texts,
        wrong=[trace.name for trace in traces if texts[trace.name] != trace.end],
        jobs=len(calls),
        overlaps=overlaps,
        enqueue_s=enqueued - began,
        run_s=ended - enqueued,
    )


def edits(trace: Trace, batch: int) -> Iterator[tuple[str, list[Patch]]]:
    """Yield the arguments of the jobs of one document: its name and the patches of up to *batch* transactions."""
    for begin in range(0, len(trace.transactions), batch):
        yield trace.name, list(itertools.chain.from_iterable(trace.transactions[begin : begin + batch]))


def mixed(sources: Iterable[Iterable[tuple[str, list[Patch]]]]) -> Iterator[tuple[str, list[Patch]]]:
    """Yield from all sources in turn, each in its own order."""
    for turn in itertools.zip_longest(*sources):
        yield from (call for call in turn if call is not None)


def load(file: Path) -> Trace:
    """
    Read a recorded document, named like its file.

    Raises:
        TraceError: the file cannot be read, or is something else.
    """
    try:
        data = file.read_bytes()
        recorded = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        transactions = [[read_patch(patch) for patch in txn["patches"]] for txn in recorded["txns"]]
        start, end = recorded["startContent"], recorded["endContent"]
        if not (isinstance(start, str) and isinstance(end, str)):
            raise TypeError("startContent and endContent are texts")
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise TraceError(f"{file} is not a recorded document: {error!r}") from None
    return Trace(file.name.removesuffix(".gz").removesuffix(".json"), start, end, transactions)


def read_patch(recorded: Any) -> Patch:
    """Check one patch."""
    position, deleted, inserted = recorded
    if not (type(position) is type(deleted) is int and position >= 0 and deleted >= 0 and isinstance(inserted, str)):
        raise TypeError(f"a patch is [position, deleted, inserted], got {recorded!r}")
    return [position, deleted, inserted]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if every document ended as recorded, 1 if one did not, 2 if there was nothing to replay."""
    parser = argparse.ArgumentParser(description="Replay recorded documents side by side, one job for each edit.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a recording, .json or .json.gz")
    parser.add_argument("--batch", type=positive, default=1, metavar="K", help="transactions in a job (1)")
    parser.add_argument("--concurrency", type=positive, default=16, metavar="N", help="slots of the worker (16)")
    parser.add_argument("--break", dest="broken", action="store_true", help="give no job a place, to see it noticed")
    options = parser.parse_args(arguments)
    try:
        # The same recording given twice is two documents.
        traces = [
            attrs.evolve(load(file), name=f"{number}-{file.name}") for number, file in enumerate(options.files, 1)
        ]
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    job = replay(traces, batch=options.batch, concurrency=options.concurrency, broken=options.broken)
    summary = asyncio.run(job)
    for trace in traces:
        verdict = "NOT as recorded" if trace.name in summary.wrong else "as recorded"
        print(f"{trace.name}: {len(trace.transactions)} transactions, {len(trace.end)} characters, {verdict}")
    seconds = summary.enqueue_s + summary.run_s
    print(
        f"{summary.jobs} jobs: {summary.enqueue_s:.1f} s to enqueue, {summary.run_s:.1f} s to run, "
        f"{summary.jobs / seconds:,.0f} jobs a second; {summary.overlaps} began beside a job of another document"
    )
    return 1 if summary.wrong else 0


def positive(text: str) -> int:
    """Read a number from 1 to 1000."""
    number = int(text)
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and 1000")
    return number


if __name__ == "__main__":
    sys.exit(main())
