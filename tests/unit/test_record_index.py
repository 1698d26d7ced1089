"""The record index: records that pass a filter, found by bits and by visiting every one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from queuehint.core.structures.job import Job
from queuehint.core.structures.record_index import Catalog, numbers
from queuehint.operations import RECORDS_PER_BLOCK
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


def made(number: int, state: JobState = QUEUED, now_ms: int = 0, **fields: Any) -> Job:
    return Job(JobSpec(id=str(number), **{"task": "t", **fields}), number, state, now_ms)


def catalog(*jobs: Job) -> Catalog:
    listed = Catalog()
    for job in jobs:
        listed.add(job)
    return listed


def found(listed: Catalog, after: int | None = None, *, newest_first: bool = False, **fields: Any) -> list[int]:
    """Return the numbers of what passes, in the order of their coming."""
    blocks = listed.blocks(RecordFilter(**fields), after, newest_first=newest_first)
    return [number for block, bits in blocks for number in numbers(bits, block.base, newest_first=newest_first)]


def test_record_is_found_by_exactly_its_own_terms() -> None:
    listed = catalog(made(1, task="edit", user="ann", service="docs", pool="p"), made(2))
    for name, value in (("task", "edit"), ("user", "ann"), ("service", "docs"), ("pool", "p")):
        asked: dict[str, Any] = {name: value}
        other: dict[str, Any] = {name: f"{value}s"}
        assert (found(listed, **asked), found(listed, **other)) == ([1], [])
    assert found(listed) == [1, 2]
    assert found(listed, user="ann", pool="default") == []


def test_service_and_user_terms_are_distinct_for_any_text() -> None:
    listed = catalog(made(1, service="a:user:b", user="c"), made(2, service="a", user="b:user:c"))
    assert found(listed, service="a:user:b") == [1]
    assert found(listed, service="a") == [2]
    assert found(listed, user="c") == [1]
    assert listed.users == {"a:user:b": {"c": 1}, "a": {"b:user:c": 1}}


def test_one_of_several_states_is_enough() -> None:
    listed = catalog(made(1), made(2, FAILED), made(3, FINISHED))
    assert found(listed, states=(FAILED, QUEUED)) == [1, 2]
    assert found(listed, states=(CANCELED,)) == []


def test_bits_are_recomputed_after_a_record_changed() -> None:
    first, second = made(1, user="ann"), made(2, user="ben")
    listed = catalog(first)
    assert found(listed, user="ann") == [1]
    listed.add(second)
    assert found(listed, user="ben") == [2]
    listed.respec(second, JobSpec(id="2", task="t", user="ann"))
    assert found(listed, user="ann") == [1, 2]
    listed.remove(first)
    assert found(listed, user="ann") == [2]
    listed.remove(second)
    assert len(listed) == 0
    assert found(listed) == []


def test_only_blocks_in_which_the_driver_occurs_are_looked_at() -> None:
    listed = catalog(
        *[made(block * RECORDS_PER_BLOCK, user="ann" if block == 3 else None, service="s") for block in range(8)]
    )
    assert len(list(listed.blocks(RecordFilter(user="ann", service="s")))) == 1
    assert len(list(listed.blocks(RecordFilter(service="s", states=(FAILED,))))) == 8
    assert len(list(listed.blocks(RecordFilter(states=(FAILED,))))) == 0


def test_blocks_of_other_times_hold_nothing_that_may_pass() -> None:
    late = made(5, now_ms=900)
    listed = catalog(made(1, now_ms=100), made(RECORDS_PER_BLOCK, now_ms=1000))
    assert found(listed, since_ms=500) == [RECORDS_PER_BLOCK]
    assert found(listed, until_ms=1000) == [1]
    listed.add(late)
    assert found(listed, since_ms=900, until_ms=901) == [1, 5]
    listed.add(made(6, now_ms=50))
    assert found(listed, until_ms=51) == [1, 5, 6]
    # A block keeps the times of removed records while any record is left in it.
    listed.remove(late)
    assert found(listed, since_ms=900, until_ms=901) == [1, 6]


@pytest.mark.parametrize("newest_first", [False, True])
def test_walk_resumes_behind_any_present_or_former_number(newest_first: bool) -> None:
    edges = [1, 2, *[RECORDS_PER_BLOCK * at + by for at in (1, 2, 4) for by in (-1, 0, 1)], 5000]
    listed = catalog(*[made(number) for number in edges])
    in_order = sorted(edges, reverse=newest_first)
    for after in (-1, 0, 3, 4999, 10**9, *edges, *[edge + 1 for edge in edges]):
        beyond = [number for number in in_order if (number < after if newest_first else number > after)]
        assert found(listed, after, newest_first=newest_first) == beyond


@pytest.mark.slow
def test_index_bits_agree_with_a_scan_of_all_records() -> None:
    choose = random.Random(7)
    jobs = [
        made(
            choose.randrange(10_000) * 1000 + at,
            choose.choice(list(JobState)),
            choose.randrange(1000),
            user=choose.choice([None, "a", "b"]),
            service=choose.choice([None, "s", "t"]),
            task=choose.choice(["x", "y"]),
        )
        for at in range(600)
    ]
    listed = catalog(*jobs)
    for _ in range(100):
        asked: dict[str, Any] = {
            "user": choose.choice([None, "a", "b"]),
            "service": choose.choice([None, "s"]),
            "task": choose.choice([None, "x"]),
        }
        states = tuple(choose.sample(list(JobState), choose.randrange(3)))
        expected = sorted(
            job.number
            for job in jobs
            if all(value is None or getattr(job.spec, name) == value for name, value in asked.items())
            and (not states or job.state in states)
        )
        assert found(listed, states=states, **asked) == expected
        job = choose.choice(jobs)
        if choose.random() < 0.5:
            listed.respec(job, JobSpec(id=job.id, task="x", user="a"))
        listed.check({job.id: job for job in jobs})
    for job in jobs:
        if job.spec.user == "b":
            listed.remove(job)
    listed.check({job.id: job for job in jobs if job.spec.user != "b"})
    assert listed.users["s"].keys() == {"a"}
