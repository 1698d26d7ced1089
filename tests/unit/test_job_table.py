"""The job table: retention, and the invariants that tests rely on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuehint.core.jobs.table import JobTable
from queuehint.core.structures.job import START_MARK
from queuehint.operations import SetLimit
from queuehint.testing.driver import Queue, job
from queuehint.values.limit import Limit
from queuehint.values.policy import Retention
from queuehint.values.record import JobState
from tests.each import for_each

DAY_MS = 24 * 3600 * 1000

FINISHED, FAILED, CANCELED = JobState.FINISHED, JobState.FAILED, JobState.CANCELED


def test_records_are_kept_by_state_service_or_job_policy() -> None:
    kept_ms = JobTable(Retention()).kept_ms
    plain, served = job("a"), job("b", service="import")
    assert [kept_ms(plain, state) for state in (FINISHED, FAILED, CANCELED)] == [DAY_MS, 7 * DAY_MS, DAY_MS]
    assert [kept_ms(served, state) for state in (FINISHED, FAILED, CANCELED)] == [DAY_MS, 7 * DAY_MS, DAY_MS]
    of_audit = JobTable(Retention.audit()).kept_ms
    assert [of_audit(served, state) for state in (FINISHED, FAILED, CANCELED)] == [90 * DAY_MS] * 3
    assert [of_audit(plain, state) for state in (FINISHED, FAILED, CANCELED)] == [DAY_MS, 7 * DAY_MS, DAY_MS]
    assert kept_ms(job("c", service="import", retention_ms=5), FAILED) == 5
    assert kept_ms(job("d", retention_ms=0), FINISHED) == 0


def _miscount(table: JobTable) -> None:
    table.counts[JobState.QUEUED] += 1


def _miscount_pending_of_a_task(table: JobTable) -> None:
    table.limits.pending["task", "task"] += 1


def _forget_a_timer(table: JobTable) -> None:
    entry = table.jobs["running"].timer
    assert entry is not None
    table.timers.drop(entry)


def _offer_twice(table: JobTable) -> None:
    table.ready.add(table.jobs["running"])


def _forget_a_place(table: JobTable) -> None:
    table.jobs["waiting"].seq = 0


def _forget_a_path(table: JobTable) -> None:
    table.paths.remove(table.jobs["waiting"])


def _forget_running(table: JobTable) -> None:
    del table.registry.running["running"]


def _forget_a_key(table: JobTable) -> None:
    table.keys.add("gone", table.jobs["over"])


def _forget_deferred(table: JobTable) -> None:
    table.deferred.clear()


def _open_an_edge_of_one_that_is_queued(table: JobTable) -> None:
    table.edges.add(table.jobs["waiting"], "running", "dddk")


def _forget_an_edge(table: JobTable) -> None:
    table.jobs["deferred"].blocked.clear()


def _forget_a_flow(table: JobTable) -> None:
    table.flows.remove(table.jobs["running"])


def _keep_the_flow_of_one_that_is_gone(table: JobTable) -> None:
    table.jobs["running"].gone = True


def _forget_that_parts_expire(table: JobTable) -> None:
    table.jobs[START_MARK + "T"].expiry = None


@for_each(
    "harm",
    [
        _miscount,
        _miscount_pending_of_a_task,
        _forget_a_timer,
        _offer_twice,
        _forget_a_place,
        _forget_a_path,
        _forget_running,
        _forget_a_key,
        _forget_deferred,
        _open_an_edge_of_one_that_is_queued,
        _forget_an_edge,
        _forget_a_flow,
        _keep_the_flow_of_one_that_is_gone,
        _forget_that_parts_expire,
    ],
    ids=lambda harm: harm.__name__.strip("_"),
)
def test_structures_that_disagree_are_found(harm: Callable[[JobTable], None]) -> None:
    queue = Queue(job("over"), job("running", ["x"], flow="f"), job("waiting", ["x"]))
    queue.apply(SetLimit(Limit(task="task", max_pending=9)))
    queue.enqueue(job("deferred", after=["running"]))
    queue.stage("T", job("hidden"))
    queue.start()
    queue.finish("over")
    table = queue.engine.table
    queue.engine.check()
    harm(table)
    with pytest.raises(AssertionError):
        queue.engine.check()
