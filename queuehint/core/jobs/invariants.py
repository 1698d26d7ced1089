"""Invariants of a job table between two operations: assertions for tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from queuehint.core.structures.leftovers import CommitSweep, ReleaseSweep, ResolveSweep
from queuehint.core.structures.ready_queue import RELEASES_KEPT
from queuehint.values.hint import is_counted
from queuehint.values.record import OVER, JobState

if TYPE_CHECKING:
    from queuehint.core.jobs.table import JobTable

SCHEDULED, DEFERRED, QUEUED, STARTED, _FINISHED, FAILED, _CANCELED = JobState


def check(table: JobTable) -> None:
    """Assert that all structures of a job table agree; O(all)."""
    table.trie.check()
    table.registry.check()
    table.limits.check(table.registry.running.values())
    counts = dict.fromkeys(JobState, 0)
    offered = {job.id for job in table.ready.jobs()}
    parked = {job.id for pause in table.pauses.all() for job in pause.parked.items()}
    holding = 0
    released = {item.job.id for item in table.leftovers if isinstance(item, ReleaseSweep)}
    told = [item for item in table.leftovers if isinstance(item, ResolveSweep) and item.goes_on()]
    table.edges.check(table.jobs, {item.dependency.number for item in told if not item.dependency.gone})
    table.flows.check(table.jobs)
    table.catalog.check(table.jobs)
    table.paths.check()
    table.holds.check()
    table.timers.check()
    table.pauses.check()
    table.ready.check()
    for job_id, job in table.jobs.items():
        assert job.id == job_id
        if job.is_start:
            assert job.state is not DEFERRED or job.expiry is not None
            continue
        if not job.gone and not job.is_hidden:
            counts[job.state] += 1
        over = job.state in OVER
        assert (job.state is STARTED) == (job_id in table.registry.running)
        assert (job.ended_ms is not None) == over
        assert (job.timer is not None) or job.state in {DEFERRED, QUEUED}
        assert not over or job.expiry is None or (job.spec.key is not None and job.spec.policy.key_for_ms is not None)
        assert (job.state is DEFERRED) <= bool(job.blocked)
        assert not job.blocked or job.state in {SCHEDULED, DEFERRED} or job_id in released
        is_staged = job.extras is not None and job.extras.start is not None
        assert (table.deferred.get(job.number) is job) == (job.state is DEFERRED and not is_staged)
        assert job.is_placed or job.state not in {QUEUED, STARTED}
        assert not job.is_placed or job.state in {QUEUED, STARTED, FAILED}
        assert job.missing == sum(not walk.granted for walk in job.walks) or not job.is_placed
        assert len(job.walks) == (len(job.spec.claims) if job.is_placed and not is_counted(job.spec.claims) else 0)
        assert all(walk.node is not None for walk in job.walks)
        holds = job.is_placed and job.state is FAILED
        assert not (holds and is_counted(job.spec.claims))
        holding += holds
        for claim in job.spec.claims:
            assert (job.number in table.holds.on(claim.path)) == holds
        assert (job_id in offered) == (job.ready is not None and job.parked is None)
        assert job_id not in parked or job.parked is not None
        back_off = job.state is QUEUED and job.timer is not None and job.spec.presence_ms is None
        assert back_off == (job_id in table.backing_off)
        assert not over or job_id not in table.unknown_task_counts
        assert job.extras is None or len(job.extras.refused_by) <= (0 if over else RELEASES_KEPT)
        step_bytes = sum(len(name.encode()) + len(result) for name, (_, result) in job.steps.items())
        assert step_bytes == (0 if job.extras is None else job.extras.step_bytes)
        assert not job.steps or (job.first_ms is not None and not job.gone)
        is_ready = job.state is QUEUED and not job.missing and not back_off
        assert is_ready == (job.ready is not None), f"{job_id} {job.state}"
        for claim in job.spec.claims:
            assert (job.number in table.paths.on(claim.path)) == (not over)
        assert not job.spec.claims or (job in table.past) == (over and not job.gone)
        assert (table.dead.get(job.number) is job) == (job.state is FAILED and not job.gone)
    assert counts == table.counts
    for key, pending in table.limits.pending.items():
        (kind, name), since = key, table.limits.since[key]
        counted = [job for job in table.jobs.values() if job.number > since or job.block is not None]
        unfinished = [job for job in counted if not job.is_over and not job.is_start]
        assert pending == sum(getattr(job.spec, str(kind)) == name for job in unfinished)
        assert key in table.limits.max_pending
    assert all(not table.jobs[job_id].is_over for job_id in table.awaited)
    levels = Counter(job.level for job in table.jobs.values() if job.is_placed)
    assert levels == Counter(dict(enumerate(table.inheritance.levels)))
    assert holding == table.holding
    assert table.committing == sum(isinstance(item, CommitSweep) for item in table.leftovers)
    assert table.hidden == sum(job.is_hidden and not job.is_start for job in table.jobs.values())
    keyed = [job for job in table.jobs.values() if job.spec.key is not None and (not job.is_over or job.expiry)]
    assert sorted(job.number for job in keyed) == sorted(job.number for job in table.keys)
    timed = [job for job in table.jobs.values() for entry in (job.timer, job.expiry) if entry is not None]
    assert sorted(job.number for job in timed) == sorted(job.number for job in table.timers.entries())
