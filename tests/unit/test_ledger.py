"""All jobs and the structures that know them: retention, and the invariants that tests lean on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuehint.core.jobs.table import Ledger
from queuehint.core.structures.job import START_MARK
from queuehint.testing.driver import Queue, job
from queuehint.values.policy import Retention
from queuehint.values.record import JobState

DAY_MS = 24 * 3600 * 1000

FINISHED, FAILED, CANCELED = JobState.FINISHED, JobState.FAILED, JobState.CANCELED


def test_records_are_kept_by_state_by_service_or_as_the_job_says() -> None:
    kept_ms = Ledger(Retention()).kept_ms
    plain, served = job("a"), job("b", service="import")
    assert [kept_ms(plain, state) for state in (FINISHED, FAILED, CANCELED)] == [DAY_MS, 7 * DAY_MS, DAY_MS]
    assert [kept_ms(served, state) for state in (FINISHED, FAILED, CANCELED)] == [90 * DAY_MS] * 3
    assert kept_ms(job("c", service="import", retention_ms=5), FAILED) == 5
    assert kept_ms(job("d", retention_ms=0), FINISHED) == 0


def _miscount(ledger: Ledger) -> None:
    ledger.counts[JobState.QUEUED] += 1


def _forget_a_timer(ledger: Ledger) -> None:
    entry = ledger.jobs["running"].timer
    assert entry is not None
    ledger.timers.drop(entry)


def _offer_twice(ledger: Ledger) -> None:
    ledger.ready.add(ledger.jobs["running"])


def _forget_a_place(ledger: Ledger) -> None:
    ledger.jobs["waiting"].seq = 0


def _forget_a_path(ledger: Ledger) -> None:
    ledger.paths.remove(ledger.jobs["waiting"])


def _forget_who_runs(ledger: Ledger) -> None:
    del ledger.registry.running["running"]


def _forget_a_key(ledger: Ledger) -> None:
    ledger.keys.add("gone", ledger.jobs["over"])


def _forget_who_is_deferred(ledger: Ledger) -> None:
    ledger.deferred.clear()


def _open_an_edge_of_one_that_is_queued(ledger: Ledger) -> None:
    ledger.edges.add(ledger.jobs["waiting"], "running", "dddk")


def _forget_an_edge(ledger: Ledger) -> None:
    ledger.jobs["deferred"].blocked.clear()


def _forget_a_flow(ledger: Ledger) -> None:
    ledger.flows.remove(ledger.jobs["running"])


def _keep_the_flow_of_one_that_is_gone(ledger: Ledger) -> None:
    ledger.jobs["running"].gone = True


def _forget_that_parts_expire(ledger: Ledger) -> None:
    ledger.jobs[START_MARK + "T"].expiry = None


@pytest.mark.parametrize(
    "harm",
    [
        _miscount,
        _forget_a_timer,
        _offer_twice,
        _forget_a_place,
        _forget_a_path,
        _forget_who_runs,
        _forget_a_key,
        _forget_who_is_deferred,
        _open_an_edge_of_one_that_is_queued,
        _forget_an_edge,
        _forget_a_flow,
        _keep_the_flow_of_one_that_is_gone,
        _forget_that_parts_expire,
    ],
    ids=lambda harm: harm.__name__.strip("_"),
)
def test_structures_that_disagree_are_found(harm: Callable[[Ledger], None]) -> None:
    queue = Queue(job("over"), job("running", ["x"], flow="f"), job("waiting", ["x"]))
    queue.enqueue(job("deferred", after=["running"]))
    queue.stage("T", job("hidden"))
    queue.start()
    queue.finish("over")
    ledger = queue.engine.ledger
    queue.engine.check()
    harm(ledger)
    with pytest.raises(AssertionError):
        queue.engine.check()
