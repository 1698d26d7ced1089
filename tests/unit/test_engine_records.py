"""The engine: bounds of one question about records, and retention by service."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.core.asking import questions
from queuehint.errors import InvalidJobError, InvalidJobTypeError
from queuehint.testing.driver import Queue, job
from queuehint.values.policy import SERVICES_KEPT_MAX, Retention
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import Dependency, JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
DAY_MS = 24 * 3600 * 1000


def filled(jobs: list[JobSpec], *, apart: int = 1) -> Queue:
    """Return a queue whose jobs have numbers that lie so far apart; a millisecond passes after each thousand."""
    queue = Queue(checked=False, now_ms=0)
    for at in range(0, len(jobs), 1 if apart > 1 else 1000):
        queue.enqueue(*jobs[at : at + (1 if apart > 1 else 1000)])
        queue.now_ms += 1
        queue.engine.table.last_number += apart - 1
    return queue


def test_time_order_below_a_path_reads_bounded_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    count = op.RECORDS_LOOKED_AT_MAX + 1000
    queue = filled([job(f"j{n:04}", ["x", str(n % 7)]) for n in range(count)])
    looked_at = 0
    entries = questions._entries

    def counted(*args: Any, **options: Any) -> Iterator[Any]:
        nonlocal looked_at
        for entry in entries(*args, **options):
            looked_at += 1
            yield entry

    monkeypatch.setattr(questions, "_entries", counted)
    page = queue.apply(op.List(RecordFilter(path=("x",)), True, None, 3, by_time=True))
    assert [record.id for record in page.records] == [f"j{count - n:04}" for n in range(1, 4)]
    assert looked_at == op.RECORDS_LOOKED_AT_MAX + 1


def walk(queue: Queue, **fields: Any) -> list[int]:
    """Return how many records each page has."""
    sizes, after = [], None
    newest_first = fields.pop("newest_first", False)
    while True:
        page = queue.apply(op.List(RecordFilter(**fields), newest_first, after, 200))
        sizes.append(len(page.records))
        after = page.after
        if after is None:
            return sizes


def count(queue: Queue, **fields: Any) -> list[int]:
    """Return how many records each step of counting has found."""
    totals, after = [], None
    while True:
        counts = queue.apply(op.CountRecords(RecordFilter(**fields), after))
        totals.append(counts.total)
        after = counts.after
        if after is None:
            return totals


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_question_looks_at_so_many_blocks_and_no_more(newest_first: bool) -> None:
    last = op.BLOCKS_LOOKED_AT_MAX
    jobs = [job(str(at), user="u", service="s" if at in {0, last} else None) for at in range(last + 1)]
    queue = filled(jobs, apart=op.RECORDS_PER_BLOCK)
    # The user is the driver and is everywhere; the service is in the first block and the last.
    assert walk(queue, user="u", service="s", newest_first=newest_first) == [1, 1]
    assert walk(queue, service="s", newest_first=newest_first) == [2]
    assert count(queue, user="u") == [op.RECORDS_COUNTED_MAX // op.BLOCK_COUNTS_AS] * 16 + [1]
    assert queue.apply(op.CountRecords(RecordFilter(service="s"))).complete


def test_query_by_time_reads_a_bounded_number_of_records() -> None:
    jobs = [job(str(number)) for number in range(op.RECORDS_LOOKED_AT_MAX + 100)]
    queue = filled(jobs)
    # Early jobs lie among later ones, so that no block can be skipped by its times.
    for block in queue.engine.table.catalog._blocks.values():
        block.last_ms = 10**6
    assert walk(queue, since_ms=10**6) == [0, 0]
    assert count(queue, since_ms=10**6) == [0] * 5
    counts = count(queue, until_ms=10**6)
    assert (len(counts), sum(counts)) == (5, len(jobs))
    assert max(counts) == op.RECORDS_COUNTED_MAX - op.BLOCK_COUNTS_AS


def test_query_by_path_reads_a_bounded_number_of_records() -> None:
    jobs = [job(str(number), ["x", str(number % 7)]) for number in range(2 * op.RECORDS_LOOKED_AT_MAX)]
    queue = filled([*jobs, job("last", ["x", "z"], user="u")])
    assert walk(queue, path=("x",), user="u") == [0, 0, 1]
    assert walk(queue, path=("x",), user="u", newest_first=True) == [1, 0, 0]
    left = len(jobs) + 1 - 7 * op.RECORDS_COUNTED_MAX
    assert count(queue, path=("x",)) == [op.RECORDS_COUNTED_MAX] * 7 + [left]


def test_records_are_kept_as_long_as_their_service_says() -> None:
    retention = Retention(finished=timedelta(days=3), services={"docs": timedelta(days=2), "mail": 0})
    queue = Queue(
        job("docs", service="docs"),
        job("mail", service="mail"),
        job("other", service="other"),
        job("own", service="docs", retention_ms=DAY_MS),
        job("none"),
        retention=retention,
    )
    queue.run()
    kept = []
    for _ in range(3):
        kept.append(" ".join(record.id for record in queue.apply(op.List()).records))
        queue.wait(DAY_MS)
    assert kept == ["docs other own none", "docs other none", "other none"]
    assert queue.apply(op.List()).records == ()
    assert queue.apply(op.ListUsers("docs")).users == ()


@pytest.mark.parametrize(
    "services, error",
    [
        ("docs", InvalidJobTypeError),
        ({"": 5}, InvalidJobError),
        ({7: 5}, InvalidJobTypeError),
        ({"docs": -1}, InvalidJobError),
        ({"docs": None}, InvalidJobTypeError),
        ({"docs": timedelta(days=4000)}, InvalidJobError),
        ({str(number): 1 for number in range(SERVICES_KEPT_MAX + 1)}, InvalidJobError),
    ],
)
def test_how_long_records_of_services_are_kept_is_checked(services: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="service"):
        Retention(services=services)


def test_when_all_is_deleted_nothing_remembers_it() -> None:
    queue = Queue(*[job(str(number), ["x", str(number)], user="u", service="s") for number in range(20)], now_ms=0)
    queue.run()
    assert all(verdict == "done" for verdict, _ in queue.apply(op.Delete(tuple(map(str, range(20))))).verdicts)
    table = queue.engine.table
    assert queue.is_clean
    assert not (len(table.catalog) or table.catalog.users or len(table.past))
    queue.wait(600_000)
    assert not table.jobs


def test_job_canceled_before_its_release_has_an_ordinary_record() -> None:
    queue = Queue(budget=1, now_ms=0)
    queue.stage("S", *[job(str(number)) for number in range(5)])
    queue.commit("S")
    queue.cancel("4")
    assert [record.id for record in queue.apply(op.List(RecordFilter(states=(CANCELED,)))).records] == ["4"]
    queue.wait(2 * DAY_MS)
    assert queue.find("4") is None


def test_record_before_its_release_is_amended_and_listed_currently() -> None:
    queue = Queue(budget=1)
    specs = [job(each, user="u", service="s") for each in "ab"]
    queue.stage("S", *specs)
    queue.commit("S")
    amended = attrs.evolve(specs[1], user="v")
    assert queue.apply(op.Amend(amended, queue.record("b").version)).verdict is op.Verdict.DONE
    assert queue.apply(op.ListUsers("s")).users == (("u", 1),)
    queue.wait(0)
    assert queue.apply(op.ListUsers("s")).users == (("u", 1), ("v", 1))


@pytest.mark.parametrize("minutes", [0, 11])
def test_deleted_job_releases_its_children_at_its_turn(minutes: int) -> None:
    queue = Queue(job("a"), *[job(f"p{at}") for at in range(3)], budget=1)
    queue.start()
    parents = ["p0", "p1", "p2"]
    for parent in parents:
        queue.await_children(parent, "a")
    queue.cancel(*parents)
    queue.now_ms += minutes * 60_000
    assert queue.apply(op.Delete(tuple(parents))).verdicts == ((op.Verdict.DONE, None),) * 3
    queue.wait(0)
    assert queue.engine.table.edges.open == len(queue.engine.table.edges) == 0


def test_writing_to_a_finished_record_does_not_block_waiters() -> None:
    queue = Queue(job("a"), *[job(f"b{at}", after=[Dependency("a", when="done")]) for at in range(4)], budget=1)
    queue.cancel("a")
    queue.say("a", None, ("line",))
    queue.wait(0)
    assert queue.states("b0", "b1", "b2", "b3") == "QUEUED QUEUED QUEUED QUEUED"


@pytest.mark.parametrize(
    "on_failure, cause",
    [("wait", "dependency a has expired"), ("cancel", "dependency a has failed"), ("run", None)],
)
def test_unresolved_dependent_follows_its_edge_after_a_deleted_dead_job(on_failure: str, cause: str | None) -> None:
    needy = [job(f"b{at}", after=["a"], on_dependency_failure=on_failure) for at in range(3)]
    queue = Queue(job("a"), *needy, budget=1)
    queue.start()
    queue.fail("a", final=True)
    assert queue.apply(op.Delete(("a",))).verdicts == ((op.Verdict.DONE, None),)
    queue.wait(0)
    assert [queue.record(spec.id).cause for spec in needy] == [cause] * 3
