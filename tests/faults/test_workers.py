"""Worker processes that are killed, frozen, hogged, poisoned and told to stop."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from queuehint import JobState
from queuehint import operations as op
from queuehint.values.outcome import Outcome, OutcomeKind, Progress
from queuehint.values.record import JobRecord
from tests import audit
from tests.crash_points import VARIABLE
from tests.faults import app, checks
from tests.faults.checks import History, figures, until_sync
from tests.faults.worker_processes import Crew, Member
from tests.servers import Server
from tests.support import thorough
from tests.worker_crash_points import POINTS

pytestmark = pytest.mark.redis

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
LEASE_S = 2.0
BOUND_S = LEASE_S + 5 + 50
"""P6: a lease, the time between two looks at what is due, and room for round trips on a slow and busy machine."""


@attrs.frozen
class Site:
    """A namespace on the shared server, a producer in this process, and a crew."""

    server: Server
    namespace: str
    made: app.App
    crew: Crew
    history: History

    def enqueue(self, task: str, name: str, *arguments: Any, path: list[str] | None = None, **options: Any) -> None:
        job = getattr(self.made, task)
        job.using(id=name, queue_hint=path, **options).enqueue_sync(*arguments)
        self.history.accepted.add(name)

    def record(self, name: str) -> JobRecord:
        return self.made.sched.get_sync(name)

    def unfinished(self) -> int:
        return self.made.sched.stats_sync().unfinished

    def drain(self, limit_s: float = checks.LIMIT_S) -> None:
        until_sync(lambda: not self.unfinished(), "all jobs are over", limit_s)

    def close(self, *states: JobState, gone: dict[int, float] | None = None) -> dict[str, Any]:
        """Make all checks; return figures."""
        found = checks.close_books(
            self.server.client(), self.server.url, self.namespace, self.history, states=states or (FINISHED,)
        )
        lines = self.crew.lines()
        grants = checks.check_no_overlap(lines, {**self.crew.gone, **(gone or {})})
        checks.check_tokens_grow(lines)
        return {"jobs": len(found), "grants": grants, "lost": 0}


@pytest.fixture
def site(redis_server: Server, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv(app.FOLDER, str(tmp_path))
    audit.begin_audit(namespace)
    made = app.make(redis_server.url, namespace=namespace, lease=LEASE_S)
    with Crew(redis_server.url, namespace, tmp_path, lease=LEASE_S) as crew:
        yield Site(redis_server, namespace, made, crew, History())
    made.sched.close_sync()


def recoveries(site: Site) -> list[float]:
    """Return for each execution that was cut off by a death how long it took until its job began again."""
    lines = site.crew.lines()
    ended = {(line.job, line.token) for line in lines if line.event in {"end", "stopped"}}
    starts = [line for line in lines if line.event == "start"]
    found = []
    for line in starts:
        died_s = site.crew.gone.get(line.pid)
        if died_s is not None and (line.job, line.token) not in ended:
            again = [later.t for later in starts if later.job == line.job and later.token > line.token]
            # The last life of its outcome may have been settled although its end was not said.
            if again:
                found.append(again[0] - died_s)
    return found


# --- killed ----------------------------------------------------------------------------------------------------------


def check_kills(site: Site, at_points: int, at_random: int) -> None:
    """Kill workers at each point and at random moments, with and without their helpers; one worker lives on."""
    crew = site.crew
    chance = random.Random(at_points)
    survivor = crew.started(crew.worker("--concurrency=2"))
    number = 0

    def feed(count: int = 6) -> None:
        nonlocal number
        for _ in range(count):
            site.enqueue("work", f"j{number}", 60, path=[["a"], ["a", "b"], ["a", "c"], ["d"]][number % 4])
            number += 1

    kills = 0
    for at in range(at_points):
        doomed = crew.worker(**{VARIABLE: POINTS[at % len(POINTS)]})

        def has_died(doomed: Member = doomed) -> bool:
            if site.unfinished() < 6:
                feed()
            return not doomed.is_running

        until_sync(has_died, f"it dies at {POINTS[at % len(POINTS)]}")
        crew.gone[doomed.pid] = time.monotonic()
        kills += doomed.process.returncode == -signal.SIGKILL
    for _ in range(at_random):
        doomed = crew.started(crew.worker())

        def is_running_something(doomed: Member = doomed) -> bool:
            if site.unfinished() < 6:
                feed()
            return bool(crew.lines("start", doomed.pid))

        until_sync(is_running_something, "it runs something")
        time.sleep(chance.uniform(0, 0.1))
        crew.kill(doomed, group=True)
        kills += 1
    assert kills == at_points + at_random
    site.drain()
    survivor.signal(signal.SIGTERM)
    survivor.process.wait(checks.LIMIT_S)
    took = recoveries(site)
    assert max(took, default=0) <= BOUND_S
    facts = site.close()
    figures("F-10", kills=kills, recovered=len(took), worst_recovery_s=round(max(took, default=0), 2), **facts)


@pytest.mark.slow
def test_workers_killed_at_any_point_lose_no_job(site: Site) -> None:
    check_kills(site, 5, thorough(5, quick=1))


@pytest.mark.nightly
def test_two_hundred_killed_workers_lose_no_job(site: Site) -> None:
    check_kills(site, 100, 100)


@pytest.mark.slow
def test_dead_caller_of_exclusive_leaves_its_place_to_others(site: Site) -> None:
    crew = site.crew
    holder = crew.caller("doc")
    crew.wait_for("holds", pid=holder.pid)
    waiter = crew.caller("doc", "part")
    crew.wait_for("asks", pid=waiter.pid)
    until_sync(lambda: site.unfinished() == 2, "the second one waits")
    crew.worker()
    site.enqueue("work", "behind", path=["doc"])
    # The waiting caller dies first: it delays no job, because its place is freed.
    until_sync(lambda: site.made.sched.why_sync("behind").jobs, "the job stands in line")
    died_s = crew.kill(waiter)
    until_sync(lambda: site.unfinished() == 2, "the waiter is canceled")
    waited_s = time.monotonic() - died_s
    assert not crew.lines("start")
    died_s = crew.kill(holder)
    crew.wait_for("end")
    held_s = crew.lines("start")[0].t - died_s
    assert waited_s <= BOUND_S
    assert held_s <= BOUND_S
    site.drain()
    found = checks.records(site.made.sched.backend, site.server.client())  # type: ignore[arg-type]
    callers = [record for record in found.values() if record.spec.task == "exclusive"]
    assert [(record.state, record.cause) for record in callers] == [(CANCELED, "waiter_lost")] * 2
    site.history.accepted |= {record.id for record in callers}
    site.close(FINISHED, CANCELED)
    figures("F-10", exclusive="waiting and holding", recovery_s=[round(waited_s, 2), round(held_s, 2)])


# --- frozen ----------------------------------------------------------------------------------------------------------


def check_zombie(site: Site, frozen_s: float) -> None:
    crew = site.crew
    (crew.folder / "ice").touch()
    zombie = crew.started(crew.worker("--concurrency=1"))
    site.enqueue("zombie", "z", path=["doc"])
    site.enqueue("work", "behind", path=["doc", "part"])
    until_sync(lambda: not (crew.folder / "ice").exists(), "it runs")
    # Its helper too: as when a virtual machine is stopped.
    os.killpg(zombie.pid, signal.SIGSTOP)
    frozen_at_s = time.monotonic()
    successor = crew.started(crew.worker("--concurrency=1"))
    crew.wait_for("written")
    recovery_s = crew.lines("start")[1].t - frozen_at_s
    assert recovery_s <= BOUND_S + 2  # in this time a process starts
    crew.wait_for("end", 2)
    time.sleep(max(0.0, frozen_at_s + frozen_s - time.monotonic()))
    before, tree = site.record("z"), site.made.sched.tree_sync(depth=3)
    (crew.folder / "thaw").touch()
    os.killpg(zombie.pid, signal.SIGCONT)
    # Running again it writes to the resource, logs, reports and settles, and all of it is refused.
    crew.wait_for("rejected")
    assert [line.pid for line in crew.lines("rejected")] == [zombie.pid]
    until_sync(lambda: zombie.has_logged("job.lease_lost"), "its settlement is refused")
    after = site.record("z")
    assert (after, site.made.sched.tree_sync(depth=3)) == (before, tree)
    assert after.state is FINISHED
    assert after.losses == 1
    assert not after.logs
    assert after.progress is None
    tokens = [line.token for line in crew.lines("start") if line.job == "z"]
    assert len(tokens) == 2
    assert tokens[0] < tokens[1] == after.token
    # It is no zombie any more, but a worker.
    crew.kill(successor)
    site.enqueue("work", "next", path=["doc"])
    until_sync(lambda: [line for line in crew.lines("end", zombie.pid) if line.job == "next"], "it works again")
    site.drain()
    facts = site.close(gone={zombie.pid: frozen_at_s})
    figures("F-11", frozen_s=frozen_s, recovery_s=round(recovery_s, 2), writes_rejected=1, **facts)


@pytest.mark.slow
def test_a_frozen_worker_that_comes_back_changes_nothing(site: Site) -> None:
    check_zombie(site, LEASE_S + 1)


@pytest.mark.nightly
def test_a_worker_frozen_for_long_that_comes_back_changes_nothing(site: Site) -> None:
    check_zombie(site, LEASE_S + 5)


def test_late_token_is_refused_by_every_worker_operation(site: Site) -> None:
    store = site.made.sched.backend
    site.enqueue("work", "j", path=["doc"])
    old = store.call_sync(op.Exchange("w1", limit=1, lease_ms=100)).grants[0]

    def is_reaped() -> bool:
        store.call_sync(op.Exchange("w2", pools=()))
        return site.record("j").state is QUEUED

    until_sync(is_reaped, "it is reaped")
    new = store.call_sync(op.Exchange("w2", limit=1, lease_ms=60_000)).grants[0]
    assert new.token > old.token
    before, tree = site.record("j"), site.made.sched.tree_sync(depth=2)
    assert store.call_sync(op.Renew((("j", old.token),))).verdicts == (op.Verdict.LOST,)
    assert store.call_sync(op.Post((op.Note("j", old.token, ("late",)),))).verdicts == (op.Verdict.LOST,)
    assert store.call_sync(op.Post((op.Note("j", old.token, progress=Progress(1)),))).verdicts == (op.Verdict.LOST,)
    for kind in OutcomeKind:
        late = Outcome(job_id="j", token=old.token, kind=kind)
        assert store.call_sync(op.Exchange("w1", (late,))).verdicts == (op.Verdict.LOST,)
    assert (site.record("j"), site.made.sched.tree_sync(depth=2)) == (before, tree)
    assert store.call_sync(op.Exchange("w2", (checks.finished(new),))).verdicts == (op.Verdict.DONE,)
    # The newest token, once more and of another worker: the job is over, and its outcome is set once.
    assert store.call_sync(op.Exchange("w1", (checks.finished(new),))).verdicts == (op.Verdict.LOST,)
    assert store.call_sync(op.Get(("j",))).records[0].state is FINISHED  # type: ignore[union-attr]
    site.close()


# --- hogged ----------------------------------------------------------------------------------------------------------


def check_hog(site: Site, task: str, seconds: float) -> None:
    crew = site.crew
    worker = crew.started(crew.slow_worker("--concurrency=2"))
    crew.started(crew.slow_worker("--concurrency=2"))
    site.enqueue(task, "hog", seconds, path=["doc"])
    crew.wait_for("start")
    site.enqueue("work", "behind", path=["doc"])
    crew.wait_for("end", 2, pid=None)
    site.drain()
    assert site.record("hog").losses == 0
    start, end = crew.lines("start")[0], crew.lines("end")[0]
    held_s = end.t - start.t
    assert held_s > 2 * LEASE_S
    # Leases are renewed by a process that runs no code of the application.
    renewals = [
        entry
        for entry in audit.entries(site.server.client(), site.namespace)
        if isinstance(entry.operation, op.Renew) and "hog" in dict(entry.operation.leases)
    ]
    expected = held_s / (LEASE_S / 3)
    assert len(renewals) >= held_s / LEASE_S - 1, "no fewer than a slow machine needs to keep it"
    assert not any(member.has_logged("job.fenced") for member in crew.members)
    facts = site.close()
    assert facts["grants"] == 2
    figures("F-12", task=task, held_s=round(held_s, 2), beats=len(renewals), expected=round(expected, 1), **facts)
    assert worker.is_running


@pytest.mark.slow
def test_code_that_holds_the_interpreter_keeps_its_lease(site: Site) -> None:
    check_hog(site, "hog", 2.5 * LEASE_S)


@pytest.mark.nightly
def test_a_regular_expression_that_does_not_end_keeps_its_lease(site: Site) -> None:
    check_hog(site, "match", 10 * LEASE_S)


# --- poisoned --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_job_that_kills_its_workers_fails_after_three_losses(site: Site) -> None:
    crew = site.crew
    site.enqueue("poison", "poison", path=["doc"])
    for number in range(3):
        site.enqueue("work", f"behind{number}", path=["doc"])
        site.enqueue("work", f"beside{number}", path=["other", str(number)])
    deaths = 0
    worker = crew.worker("--concurrency=4")

    def is_over() -> bool:
        nonlocal worker, deaths
        if not worker.is_running:
            assert worker.process.returncode == -signal.SIGABRT
            crew.wait_for_death(worker)
            deaths += 1
            worker = crew.worker("--concurrency=4")
        return not site.unfinished()

    until_sync(is_over, "all jobs are over")
    assert deaths == 3
    poison = site.record("poison")
    assert (poison.state, poison.cause, poison.losses, poison.attempts) == (FAILED, "worker_lost", 3, 0)
    assert len([line for line in crew.lines("start") if line.job == "poison"]) == 3
    assert all(
        site.record(f"{place}{number}").state is FINISHED for place in ("behind", "beside") for number in (0, 1, 2)
    )
    figures("F-13", deaths=deaths, **site.close(FINISHED, FAILED))


# --- told to stop ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stopping_worker_finishes_running_jobs_and_claims_none(site: Site) -> None:
    crew = site.crew
    worker = crew.started(crew.worker("--grace=20"))
    site.enqueue("wait", "runs", "go", path=["doc"])
    crew.wait_for("start")
    worker.signal(signal.SIGTERM)
    until_sync(lambda: worker.has_logged("worker.stopping"), "it stops")
    site.enqueue("work", "behind", path=["doc"])
    site.enqueue("work", "beside", path=["other"])
    (crew.folder / "go").touch()
    assert worker.process.wait(checks.LIMIT_S) == 0
    assert site.record("runs").state is FINISHED
    assert site.record("behind").state is site.record("beside").state is QUEUED
    crew.worker()
    site.drain()
    facts = site.close()
    assert facts["grants"] == 3
    figures("F-14", signals=1, **facts)


def test_second_stop_signal_releases_running_jobs_to_their_places(site: Site) -> None:
    crew = site.crew
    worker = crew.started(crew.worker("--grace=60"))
    site.enqueue("work", "runs", 60_000, path=["doc"])
    crew.wait_for("start")
    place = site.record("runs").seq
    site.enqueue("work", "behind", path=["doc"])
    worker.signal(signal.SIGTERM)
    until_sync(lambda: worker.has_logged("worker.stopping"), "it stops")
    told_s = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(checks.LIMIT_S) == 0
    released = site.record("runs")
    assert (released.state, released.seq, released.attempts, released.losses) == (QUEUED, place, 0, 0)
    took_s = time.monotonic() - told_s
    # At its old place it goes first again.
    store = site.made.sched.backend
    first = store.call_sync(op.Exchange("w", limit=5)).grants
    assert [grant.spec.id for grant in first] == ["runs"]
    store.call_sync(op.Exchange("w", (checks.finished(first[0]),)))
    crew.worker()
    site.drain()
    figures("F-14", signals=2, released_after_s=round(took_s, 2), **site.close())


@pytest.mark.slow
def test_when_the_grace_time_is_over_jobs_are_given_back(site: Site) -> None:
    crew = site.crew
    worker = crew.started(crew.worker("--grace=0.3"))
    site.enqueue("work", "runs", 60_000, path=["doc"])
    site.enqueue("spin", "looks", 60_000, path=["other"])
    crew.wait_for("start", 2)
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(checks.LIMIT_S) == 0
    released = site.record("runs")
    assert (released.state, released.attempts, released.losses) == (QUEUED, 0, 0)
    # A plain function sees that it is to stop; that it returned is for its author to decide.
    assert site.record("looks").state is FINISHED
    site.made.sched.cancel_sync(["runs"])
    site.close(FINISHED, CANCELED)
