"""Retention: one setting of a namespace for all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from queuehint import Backend, FakeClock, JobCanceledError, JobFailedError, JobNotFoundError, Retention, Scheduler
from queuehint import operations as op
from queuehint.backends.base import BackendOptions, Interest, open_backend
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec
from queuehint.worker.leases.helper import RenewerProcess
from tests.folders import quick_folder
from tests.servers import new_namespace, shared_server
from tests.sqlite_store import leave_journal
from tests.support import until_sync

KEPT = Retention(finished=10, failed=20, canceled=30, service=40, services={"mail": 50, "a b": 0.5})
BY_STATE = Retention(finished=10, failed=20, canceled=30, services={"mail": 50})
ENDS = [
    (JobState.FINISHED, None, 10_000),
    (JobState.FAILED, None, 20_000),
    (JobState.CANCELED, None, 30_000),
    (JobState.FAILED, "other", 40_000),
    (JobState.FINISHED, "mail", 50_000),
    (JobState.FINISHED, "a b", 500),
]
DAY_MS = 24 * 3600 * 1000
KINDS = {
    JobState.FINISHED: OutcomeKind.FINISHED,
    JobState.FAILED: OutcomeKind.FAILED,
    JobState.CANCELED: OutcomeKind.DISCARDED,
}


class House:
    """A store that outlives the processes that open it one after the other."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = FakeClock()
        self.opened: list[Backend] = []

    def open(self, retention: Retention | None = None) -> Backend:
        """Close the store in the process that has it, and open it as another one."""
        self.close()
        self.opened.append(open_backend(self.url, BackendOptions(retention=retention, clock=self.clock)))
        return self.opened[-1]

    def close(self) -> None:
        for backend in self.opened:
            backend.close_sync()
        self.opened.clear()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    with quick_folder() as folder:
        url = f"sqlite:///{folder}/jobs.db?durability=process"
        if request.param == "redis":
            url = f"{shared_server().url}?namespace={new_namespace()}"
        house = House(url)
        yield house
        house.close()


def end(backend: Backend, state: JobState, service: str | None = None, id: str = "a") -> None:
    backend.call_sync(op.Enqueue((JobSpec(id=id, task="t", service=service, policy=Policy(max_attempts=1)),)))
    (grant,) = backend.call_sync(op.Exchange("w", limit=1)).grants
    backend.call_sync(op.Exchange("w", (Outcome(job_id=id, token=grant.token, kind=KINDS[state]),)))


def kept_ms(backend: Backend, state: JobState, service: str | None = None) -> int:
    """End a job, and return for how long its record is kept if nothing else is."""
    end(backend, state, service)
    ended_ms = next(record.ended_ms for record in backend.call_sync(op.Get(("a",))).records if record is not None)
    next_ms = backend.call_sync(op.Tick()).next_ms
    assert next_ms is not None
    assert ended_ms is not None
    return next_ms - ended_ms


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if "retention" in entry.__dict__.get("event", "")]


@pytest.mark.parametrize("state, service, ms", ENDS)
def test_a_process_without_a_retention_uses_that_of_the_namespace(
    house: House, state: JobState, service: str | None, ms: int
) -> None:
    house.open(KEPT).call_sync(op.Enqueue((JobSpec(id="other", task="t", delay_ms=10**9),)))
    assert kept_ms(house.open(), state, service) == ms


@pytest.mark.parametrize(
    "state, service, ms",
    [
        (JobState.FINISHED, "other", 10_000),
        (JobState.FAILED, "other", 20_000),
        (JobState.CANCELED, "other", 30_000),
        (JobState.FAILED, "mail", 50_000),
    ],
)
@pytest.mark.parametrize("is_stated", [True, False], ids=["stated", "of the namespace"])
def test_service_without_its_own_retention_is_kept_by_state(
    house: House, state: JobState, service: str, ms: int, is_stated: bool
) -> None:
    backend = house.open(BY_STATE)
    backend.call_sync(op.Enqueue((JobSpec(id="other", task="t", delay_ms=10**9),)))
    assert kept_ms(backend if is_stated else house.open(), state, service) == ms


@pytest.mark.parametrize("state", KINDS)
def test_audit_preset_keeps_a_service_for_90_days(house: House, state: JobState) -> None:
    backend = house.open(Retention.audit())
    backend.call_sync(op.Enqueue((JobSpec(id="other", task="t", delay_ms=10**11),)))
    assert kept_ms(backend, state, "docs") == 90 * DAY_MS


def test_new_service_of_an_ended_job_sets_its_expiry(house: House) -> None:
    sched = Scheduler(house.url, retention=BY_STATE, clock=house.clock)
    house.opened.append(sched.backend)
    for number, (before, after, ms) in enumerate(
        ((None, "mail", 50_000), ("mail", None, 10_000), ("mail", "b", 10_000))
    ):
        end(sched.backend, JobState.FINISHED, before, id=f"{number}")
        sched.records.amend_sync(f"{number}", service=after)
        house.clock.advance(ms=ms - 1)
        sched.backend.call_sync(op.Tick())
        assert sched.records.get_sync(f"{number}") is not None
        house.clock.advance(ms=1)
        sched.backend.call_sync(op.Tick())
        with pytest.raises(JobNotFoundError):
            sched.records.get_sync(f"{number}")


@pytest.mark.parametrize("service, kept", [(None, "90 days"), ("docs", "1 day")])
def test_tags_keep_no_record_as_a_service_does(house: House, service: str | None, kept: str) -> None:
    backend = house.open(Retention(finished=timedelta(days=90), service=timedelta(days=1)))
    spec = JobSpec(id="a", task="t", tags=("docs",), service=service)
    backend.call_sync(op.Enqueue((spec, JobSpec(id="other", task="t", delay_ms=10**11))))
    (grant,) = backend.call_sync(op.Exchange("w", limit=1)).grants
    backend.call_sync(op.Exchange("w", (Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FINISHED),)))
    house.clock.advance(ms=DAY_MS)
    backend.call_sync(op.Tick())
    assert (backend.call_sync(op.Get(("a",))).records[0] is not None) is (kept == "90 days")


def test_newest_explicit_retention_applies_and_logs_the_previous_one(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.open(KEPT).call_sync(op.Tick())
    assert not warnings(caplog)
    house.open(Retention(finished=7, services={"mail": 8})).call_sync(op.Tick())
    (said,) = warnings(caplog)
    assert (
        "was (finished 10 s, failed 20 s, canceled 30 s, service 40 s, service 'a b' 0.5 s, service 'mail' 50 s)"
        in said
    )
    assert "is now (finished 7 s, failed 604800 s, canceled 86400 s, service 'mail' 8 s)" in said
    assert kept_ms(house.open(), JobState.FINISHED) == 7000


def test_an_equal_retention_in_other_units_gives_no_warning(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.open(Retention(finished=3600, services={"b": 1, "a": 2})).call_sync(op.Tick())
    same = Retention(finished=timedelta(hours=1), services={"a": timedelta(seconds=2), "b": 1.0})
    house.open(same).call_sync(op.Tick())
    house.open().call_sync(op.Tick())
    assert not warnings(caplog)


@pytest.mark.redis
def test_older_process_does_not_undo_newer_retention(caplog: pytest.LogCaptureFixture) -> None:
    house = House(f"{shared_server().url}?namespace={new_namespace()}")
    old, new = [open_backend(house.url, BackendOptions(retention=Retention(finished=s))) for s in (1, 2)]
    old.call_sync(op.Tick())
    new.call_sync(op.Tick())
    for _ in range(3):
        old.session._checked_s = None  # type: ignore[attr-defined]  # a minute later
        old.call_sync(op.Tick())
    changed, differs = warnings(caplog)
    assert "was (finished 1 s" in changed
    assert "is (finished 2 s" in differs
    assert "this one has (finished 1 s" in differs
    assert kept_ms(house.open(), JobState.FINISHED) == 2000
    for backend in (old, new):
        backend.close_sync()
    house.close()


@pytest.mark.redis
def test_a_store_that_lost_it_learns_it_again(caplog: pytest.LogCaptureFixture) -> None:
    house = House(f"{shared_server().url}?namespace={new_namespace()}")
    backend = house.open(KEPT)
    backend.call_sync(op.Tick())
    session = backend.session  # type: ignore[attr-defined]
    client = shared_server().client()
    for key in client.keys(f"{session.root}:*"):
        client.delete(key)
    session._checked_s = None
    backend.call_sync(op.Tick())
    assert client.hget(f"{session.root}:meta", "retention") == b"10000 20000 30000 40000\na b\n500\nmail\n50000"
    assert not warnings(caplog)
    house.close()


@pytest.mark.slow
@pytest.mark.redis
def test_renewal_helper_uses_the_retention_of_the_scheduler() -> None:
    server, namespace = shared_server(), new_namespace()
    backend = open_backend(server.url, BackendOptions(namespace=namespace, retention=KEPT))
    dies, expires = Policy(max_losses=1), Policy(start_within_ms=300)
    backend.call_sync(
        op.Enqueue(
            (
                JobSpec(id="held", task="t"),
                JobSpec(id="dies", task="t", policy=dies),
                JobSpec(id="expires", task="t", pool="nobody", policy=expires),
            )
        )
    )
    (grant,) = backend.call_sync(op.Exchange("w", limit=1, lease_ms=30_000)).grants
    backend.call_sync(op.Exchange("dead worker", limit=1, lease_ms=1000))

    def prunes() -> list[tuple[bytes, float]]:
        entries: Any = server.client().zrange(f"{{qh:{namespace}}}:prunes", 0, -1, withscores=True)
        return list(entries)

    helper = RenewerProcess(server.url, namespace, abandon_after_s=60)
    helper.start(1.0)
    try:
        helper.send(f"+{grant.token} {grant.spec.id}\n")

        def both_ended() -> bool:
            helper.hear(0.1)
            return {member[3:] for member, _ in prunes()} == {b"dies", b"expires"}

        until_sync(both_ended, "both have ended")
    finally:
        helper.end(at_once=True)
    # An end and its timer have the same time, however the machine's clock moves.
    timers = dict(prunes())
    records = backend.call_sync(op.Get(("dies", "expires"))).records
    kept = [timers[member] for member in sorted(timers, key=lambda member: member[3:])]
    assert [at - record.ended_ms for at, record in zip(kept, records, strict=True) if record and record.ended_ms] == [
        20_000,
        30_000,
    ]
    backend.close_sync()


# --- waiters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["well", "badly", "canceled"])
def test_a_waiter_gets_a_result_with_zero_retention(url: str, ends: str) -> None:
    sched = Scheduler(url, retention=Retention(finished=0, failed=0, canceled=0))

    @sched.job(max_attempts=1)
    async def work(end: str) -> int:
        await go.wait()
        if end == "badly":
            raise KeyError(end)
        return 7

    async def main() -> list[object]:
        backend = sched.backend
        waits = backend.wait

        async def wait(interest: Interest, timeout_s: float) -> None:
            if not interest.jobs:
                await waits(interest, timeout_s)
                return
            # The first wait is a short one: after it the store knows that the job has a waiter.
            await waits(interest, timeout_s if go.is_set() else 0.001)
            if not go.is_set():
                go.set()
                if ends == "canceled":
                    await sched.cancel([handle])

        backend.wait = wait  # type: ignore[method-assign]
        async with sched.worker(concurrency=2), asyncio.timeout(60):
            handle = await work.using(delay=3600 if ends == "canceled" else None).enqueue(ends)
            found = await asyncio.gather(handle.result(50), handle.result(50), return_exceptions=True)
            return list(found)

    go = asyncio.Event()
    found = asyncio.run(main())
    if ends == "well":
        assert found == [7, 7]
    else:
        assert [type(each) for each in found] == [JobFailedError if ends == "badly" else JobCanceledError] * 2
    sched.close_sync()


def test_waiters_are_known_after_a_crash_of_the_file() -> None:
    with quick_folder() as folder:
        house = House(f"sqlite:///{folder}/jobs.db?durability=process")
        store: Any = house.open(Retention(finished=0))
        store.call_sync(op.Enqueue((JobSpec(id="a", task="t"),)))
        store.wait_sync(Interest(jobs=("a",)), 0.001)
        leave_journal(store)
        again = house.open()
        (grant,) = again.call_sync(op.Exchange("w", limit=1)).grants
        again.call_sync(op.Exchange("w", (Outcome(job_id="a", token=grant.token, kind=OutcomeKind.FINISHED),)))
        again.call_sync(op.Tick())
        assert again.call_sync(op.Get(("a",))).records[0] is not None
        house.close()
