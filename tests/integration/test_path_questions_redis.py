"""What questions about a path cost a server: heads that are read, bytes that are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.commands import System, open_system

LARGE = "x" * 500_000


@pytest.fixture
def system(namespace: str) -> Iterator[System]:
    with open_system(namespace) as opened:
        yield opened


@pytest.fixture
def since(system: System) -> Callable[[str, str], int]:
    """Return what tells how much a number of the server has grown since it was asked for last."""
    client: Any = redis.Redis.from_url(system.url)
    before: dict[str, int] = {}

    def grown(section: str, name: str) -> int:
        found = client.info(section).get(name, 0)
        now = found["calls"] if isinstance(found, dict) else found
        was, before[name] = before.get(name, 0), now
        return int(now - was)

    return grown


def test_time_order_below_a_large_path_reads_no_other_heads(system: System, since: Callable[[str, str], int]) -> None:
    sched = system.sched
    sched.jobs["edit"].enqueue_many_sync([("x", f"{n:04}") for n in range(4_200)])
    over = [record.id for record in sched.records.list_sync(limit=200)]
    sched.cancel_sync(over)
    since("commandstats", "cmdstat_hget")
    page = sched.records.list_sync(path=["x"], user="nobody", order="time", newest_first=True)
    assert (len(page), page.cursor) == (0, None)
    assert since("commandstats", "cmdstat_hget") < 100, "4 200 claims are there, 200 of jobs that are over"
    sched.cancel_sync([record.id for record in sched.records.list_sync(limit=200, state="QUEUED")])
    page = sched.records.list_sync(path=["x"], user="nobody", order="time", state="CANCELED")
    assert 400 <= since("commandstats", "cmdstat_hget") < 2_000, "those of jobs that are over are few: they are sorted"


def test_why_of_running_jobs_sends_no_whole_spec(system: System, since: Callable[[str, str], int]) -> None:
    ids = [system.enqueue("edit", "x", str(n), LARGE) for n in range(4)]
    assert len(system.claim(4)) == 4
    since("stats", "total_net_output_bytes")
    assert [each.id for each in system.sched.why_sync(path=["x"]).ahead] == ids
    # What is asked of the server itself is sent too.
    assert since("stats", "total_net_output_bytes") < 30_000
    system.sched.why_sync(ids[0])
    assert since("stats", "total_net_output_bytes") < 30_000
