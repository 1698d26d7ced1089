"""Operators' writes to records (log lines, owners, deletions) and exports of records to files."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import attrs
import pytest

from queuehint import (
    Dependency,
    InvalidTransitionError,
    JobNotFoundError,
    JobState,
    Scheduler,
    StaleRecordError,
)
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record import LOG_LINE_BYTES_MAX, LOG_LINES_MAX
from tests.manual_jobs import FEW, MANY, ids, on, settle, spec, write_lines
from tests.support import LIMIT_S, thorough

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
ROOT = Path(__file__).parents[2]


# --- writers ----------------------------------------------------------------------------------------------------------


WRITERS = thorough(8, quick=3)
WRITER = """
import sys
from queuehint import Scheduler
from tests.manual_jobs import write_lines
sched = Scheduler(sys.argv[1])
write_lines(sched, int(sys.argv[2]))
sched.close_sync()
"""


@pytest.mark.slow
def test_log_lines_of_many_writers_are_kept_up_to_limits(url: str) -> None:
    """Threads where one process has the store, processes on Redis."""
    sched = Scheduler(url)
    sched.submit_sync([spec("few"), spec("many")])
    if sched.backend.is_local:
        threads = [threading.Thread(target=write_lines, args=(sched, who)) for who in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    else:
        command = [sys.executable, "-c", WRITER, url]
        writers = [subprocess.Popen([*command, str(who)], cwd=ROOT) for who in range(WRITERS)]
        assert [writer.wait(LIMIT_S) for writer in writers] == [0] * WRITERS
    few, many = sched.records.list_by_ids_sync(["few", "many"])
    sched.close_sync()
    assert [(len(record.logs), record.logs_truncated) for record in (few, many)] == [
        (WRITERS * FEW, False),
        (LOG_LINES_MAX, True),
    ]
    for record, lines in ((few, FEW), (many, MANY)):
        said = [tuple(map(int, line.split())) for line in record.logs]
        for who in range(WRITERS):
            mine = [n for writer, n in said if writer == who]
            assert mine == list(range(lines - len(mine), lines))


def test_lines_are_appended_whatever_the_state(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        store = sched.records
        await sched.submit([spec("a")])
        await store.append_log("a", "one\ntwo")
        await settle(sched, OutcomeKind.FINISHED)
        store.append_log_sync("a", "")
        await store.append_log("a", "x" * (LOG_LINE_BYTES_MAX + 5) + "\n\x1b[31m\ud800")
        record = await store.get("a")
        assert record.logs == ("one", "two", "", "x" * LOG_LINE_BYTES_MAX, "\x1b[31m\\ud800")
        with pytest.raises(JobNotFoundError):
            await store.append_log("x", "line")
        with pytest.raises(JobNotFoundError):
            store.append_log_sync("x", "line")

    on(url, main)


def test_the_last_lines_of_a_very_long_text_are_kept(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        await sched.submit([spec("a"), spec("b")])
        await sched.records.append_log("a", "\n".join(map(str, range(100_000))))
        await sched.records.append_log("b", "\n".join(map(str, range(LOG_LINES_MAX))))
        many, just = await sched.records.list_all()
        assert many.logs == tuple(map(str, range(100_000 - LOG_LINES_MAX, 100_000)))
        assert (many.logs_truncated, just.logs_truncated, len(just.logs)) == (True, False, LOG_LINES_MAX)

    on(url, main)


def test_a_record_gets_another_owner_and_is_listed_there(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        store = sched.records
        await sched.submit([spec("a", service="docs", user="ann"), spec("b", user="ann"), spec("c", user="ann")])
        await store.amend("a", user="ben")
        store.amend_sync("b", service="docs", user=None)
        assert ids(await store.list_by_user("ann")) == ["c"]
        assert ids(await store.list_by_user("ben")) == ["a"]
        assert ids(await store.list_by_service("docs")) == ["a", "b"]
        assert ((await store.get("b")).spec.service, (await store.get("b")).spec.user) == ("docs", None)
        assert [user async for user in store.users("docs")] == [("ben", 1)]
        await settle(sched, *[OutcomeKind.FINISHED] * 3)
        await store.amend("c", service="mail")
        assert ids(await store.list(service="mail", user="ann", state="FINISHED")) == ["c"]
        with pytest.raises(JobNotFoundError):
            await store.amend("x", user="ann")
        with pytest.raises(JobNotFoundError):
            await store.amend("x", user="ann", version=1)

    on(url, main)


def test_a_stale_write_is_refused(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        store = sched.records
        await sched.submit([spec("a", user="ann")])
        read = await store.get("a")
        await store.amend("a", user="ben", version=read.version)
        for stale in (read.version, read.version + 100):
            with pytest.raises(StaleRecordError, match="'a'") as caught:
                await store.amend("a", user="cat", version=stale)
            assert (caught.value.job_id, caught.value.version) == ("a", stale)
        assert (await store.get("a")).spec.user == "ben"
        await settle(sched, OutcomeKind.FINISHED)
        over = await store.get("a")
        with pytest.raises(StaleRecordError):
            await store.delete(["a"], version=over.version - 1)
        assert await store.get("a") == over
        store.delete_sync(["a"], version=over.version)
        with pytest.raises(JobNotFoundError):
            await store.delete(["a"], version=over.version)

    on(url, main)


def test_amend_without_a_version_survives_concurrent_changes(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        await sched.submit([spec("a")])
        names = [f"u{n}" for n in range(6)]
        # Each may find the record changed five times.
        await asyncio.gather(*(sched.records.amend("a", user=name) for name in names))
        assert (await sched.get("a")).spec.user in names

    on(url, main)


def test_delete_accepts_only_ended_and_unneeded_jobs(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        store = sched.records
        await sched.submit([spec("a"), spec("b"), spec("c", depends_on=(Dependency("a", data=True),)), spec("d")])
        assert await settle(sched, OutcomeKind.FINISHED, OutcomeKind.FAILED) == ["a", "b"]
        with pytest.raises(InvalidTransitionError, match="'a' is FINISHED and cannot become deleted"):
            await store.delete(["a"])
        with pytest.raises(InvalidTransitionError, match="'c' is QUEUED"):
            await store.delete(["b", "c"])
        with pytest.raises(JobNotFoundError, match="'x'"):
            await store.delete(["x"])
        assert ids(await store.list_all()) == ["a", "c", "d"]
        await settle(sched, OutcomeKind.FINISHED, OutcomeKind.FINISHED)
        await store.delete(["a", "c", "a"])
        assert ids(await store.list_all()) == ["d"]
        assert (await store.count()).total == 1

    on(url, main)


# --- export -----------------------------------------------------------------------------------------------------------


def test_an_export_is_a_line_for_each_record_that_fits(url: str, tmp_path: Path) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job(queue_hint=["{doc}"])
        async def work(doc: str) -> list[str]:
            return [doc]

        async with sched.worker():
            for n in range(3):
                await work.using(id=f"j{n}", user="ann" if n else "ben").enqueue(f"d{n}")
            await sched.drain(timeout=60)
        text = io.StringIO()
        assert await sched.records.export(text, user="ann", newest_first=True) == 2
        lines = [json.loads(line) for line in text.getvalue().splitlines()]
        assert [line["id"] for line in lines] == ["j2", "j1"]
        assert [(line["spec"]["arguments"], line["result"]) for line in lines] == [
            ({"doc": "d2"}, ["d2"]),
            ({"doc": "d1"}, ["d1"]),
        ]
        assert datetime.fromisoformat(lines[0]["ended_at"]) == (await sched.get("j2")).ended_at
        path = tmp_path / "records.jsonl"
        assert sched.records.export_sync(path) == 3
        assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["j0", "j1", "j2"]
        assert sched.records.arguments_of(await sched.get("j1")) == {"doc": "d1"}

    on(url, main)


# --- copies -----------------------------------------------------------------------------------------------------------


def test_stored_values_are_isolated_from_mutations() -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work(values: list[int]) -> None: ...

        values = [1]
        job = await work.using(id="a").enqueue(values)
        values.append(2)
        record = await job.record()
        sched.records.arguments_of(record)["values"].append(3)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            record.state = FINISHED  # type: ignore[misc]
        assert sched.records.arguments_of(await sched.records.get("a")) == {"values": [1]}
        counts = await sched.records.count()
        counts.states[QUEUED] = 5
        assert (await sched.records.count()).states[QUEUED] == 1

    on("memory://", main)
