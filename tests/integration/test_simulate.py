"""The real worker and real handlers in a simulated world."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queuehint import Children, JobContext, JobSpec, Retry, Scheduler, Snooze
from queuehint.errors import InvalidJobError, InvalidJobTypeError
from queuehint.operations import Tick
from queuehint.testing import FaultPlan, SimulationError, relay_now_sync, simulate
from queuehint.testing.simulation.leases import LoopRenewal, LoopWorker
from queuehint.testing.simulation.live_workers import Crew
from queuehint.testing.simulation.loop import Process
from queuehint.testing.simulation.store import Store
from queuehint.testing.simulation.worker_world import HandlerWorld
from queuehint.values.hint import Claim
from queuehint.values.report import WorkerInfo
from queuehint.worker.exchanges import Exchanges
from queuehint.worker.leases.pulse import BLOCKED_S

SEEDS = 10


class Document:
    """A resource that handlers write to: it refuses tokens smaller than the last."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.written: list[int] = []
        self.token = 0
        self.refused = 0

    def write(self, number: int, token: int) -> None:
        if token < self.token:
            self.refused += 1
            return
        self.token = token
        if number not in self.written:
            self.written.append(number)


document = Document()


async def edit(context: JobContext, number: int) -> None:
    await asyncio.sleep(2)
    document.write(number, context.token)
    await asyncio.sleep(40 if number == 2 else 1)


EDITS = [("edit", ["doc"], [number]) for number in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["none", "crashes", "wire", "chaos"])
def test_writes_with_tokens_stay_in_order(plan: str) -> None:
    faults = FaultPlan.named(plan)

    def check() -> None:
        # A store that loses its last steps may start again what has ended: no order is promised then.
        assert document.written == sorted(document.written) or faults.rollback

    def check_end() -> None:
        check()
        assert sorted(document.written) == [0, 1, 2, 3, 4]

    simulate({"edit": edit}, EDITS, faults=faults, seeds=SEEDS, setup=document.clear, invariant=check, at_end=check_end)


def test_simulated_time_is_instant_and_runs_everything_concurrently() -> None:
    async def nap() -> str:
        await asyncio.sleep(600)
        return "rested"

    world = simulate({"nap": nap}, [("nap", ["a"]), ("nap", ["b"]), ("nap", ["a", "x"])], faults="none")
    assert 1200 < world.seconds < 1300
    assert world.faults == {}
    assert {job.state for job in world.jobs.values()} == {"FINISHED"}
    assert [event.kind for event in world.trace].count("started") == 3


def test_scheduler_keeps_its_store_and_policies_in_a_simulation() -> None:
    sched = Scheduler("memory://")
    tries: list[str] = []

    @sched.job(queue_hint=["{doc}"], max_attempts=3)
    async def shaky(context: JobContext, doc: str) -> Retry | str:
        tries.append(doc)
        return "done" if context.attempt == 3 else Retry(60)

    @sched.job
    def plain(number: int) -> Any:
        tries.append(str(number))
        return Snooze(30) if len(tries) < 3 else number

    @sched.job
    async def parent(context: JobContext) -> Children:
        await context.enqueue(plain, 7)
        await context.enqueue(shaky, "child")
        return Children()

    before = sched.backend
    state = random.getstate()
    jobs = [lambda: shaky.enqueue("doc"), lambda: plain.enqueue(1), parent.enqueue]
    world = simulate(sched, jobs, setup=tries.clear, faults="none")
    assert sched.backend is before
    assert random.getstate() == state
    assert sorted(job.spec.task for job in world.jobs.values()) == ["parent", "plain", "plain", "shaky", "shaky"]
    assert {job.state for job in world.jobs.values()} == {"FINISHED"}
    assert world.seconds > 120
    assert sum(sched.stats_sync().states.values()) == 0
    simulate(sched, jobs, setup=tries.clear, faults="crashes", seeds=SEEDS)


@pytest.mark.slow
def test_simulated_jobs_may_be_specs_and_are_resubmitted_after_losses() -> None:
    runs: list[str] = []

    async def run(context: JobContext) -> None:
        runs.append(context.id)

    specs = [JobSpec(id=f"j{n}", task="run", claims=(Claim(("a",)),)) for n in range(6)]
    lossy = FaultPlan(restart=0.2, rollback=50)
    restarts = 0
    for seed in range(SEEDS):
        world = simulate({"run": run}, specs, faults=lossy, seed=seed, setup=runs.clear)
        restarts += world.faults.get("restart", 0)
        assert set(world.jobs) == {spec.id for spec in specs}
        assert {job.state for job in world.jobs.values()} == {"FINISHED"}
    assert restarts


def test_killed_worker_runs_no_cleanup() -> None:
    ended: list[str] = []

    async def careful() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            ended.append("cleaned up")

    def at_end() -> None:
        assert ended == ["cleaned up"]

    sched = Scheduler("memory://")
    sched.job(name="careful", max_losses=1000)(careful)
    plan, deaths = FaultPlan(crash=0.1), 0
    for seed in range(2 * SEEDS):
        world = simulate(sched, [("careful", ["a"])], faults=plan, seed=seed, setup=ended.clear, at_end=at_end)
        deaths += sum(event.kind == "lost" for event in world.trace)
    assert deaths


@pytest.mark.slow
def test_killed_worker_changes_nothing_when_collected() -> None:
    sched = Scheduler("memory://")

    @sched.job(max_losses=1000)
    async def late() -> None:
        pass

    @sched.job(max_losses=1000)
    async def careful() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            late.enqueue_sync()

    deaths = 0
    for seed in range(2 * SEEDS):
        world = simulate(sched, [("careful", ["a"])], faults=FaultPlan(crash=0.1), seed=seed)
        deaths += sum(event.kind == "lost" for event in world.trace)
        assert [job.state for job in world.jobs.values()] == ["FINISHED", "FINISHED"]
        assert [event.kind for event in world.trace].count("enqueued") == 2
    assert deaths


# --- what goes wrong is told -----------------------------------------------------------------------------------------


def failure(play: Callable[[], Any]) -> SimulationError:
    with pytest.raises(SimulationError) as caught:
        play()
    return caught.value


def test_handler_unsafe_to_repeat_is_found_with_one_fault() -> None:
    charged: list[str] = []

    async def charge(customer: str) -> None:
        charged.append(customer)
        await asyncio.sleep(1)

    def once() -> None:
        assert len(charged) == len(set(charged)), f"charged twice: {charged[-1]}"

    jobs = [("charge", [name], [name]) for name in ("ann", "bob", "cyn", "dan")]

    def found(seed: int) -> SimulationError:
        return failure(
            lambda: simulate({"charge": charge}, jobs, seed=seed, setup=charged.clear, invariant=once, faults="chaos")
        )

    # A fault befalls a request by its number, so that another one may have to stay for it to come at the same time.
    error = min(map(found, range(4)), key=lambda error: len(error.story))
    assert error.reason.startswith("charged twice: ")
    # One job: it is enqueued, started, its worker dies or stands still, it is lost and started again.
    assert 4 <= len(error.story) <= 7
    assert sum("enqueued" in line for line in error.story) == 1
    test = "tests/integration/test_simulate.py::test_handler_unsafe_to_repeat_is_found_with_one_fault"
    assert error.command == f"QUEUEHINT_SEED={error.seed} python -m pytest {test}"


def test_stalled_process_is_not_mistaken_for_blocking_code(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        await asyncio.sleep(30)

    jobs: list[Any] = [("work", [str(number)], []) for number in range(4)]
    world = simulate({"work": work}, jobs, faults=FaultPlan(pause=0.3), seed=1)
    stood_s = [float(line.split()[-2]) for line in world.story if "stands still for" in line]
    assert max(stood_s) > 2 * BLOCKED_S
    assert not [record for record in caplog.records if record.__dict__.get("event") == "worker.blocked"]


charges: list[str] = []


async def charge_and_wait(customer: str) -> None:
    charges.append(customer)
    await asyncio.sleep(0)


async def charge_at_once(customer: str) -> None:
    charges.append(customer)


def charge_plainly(customer: str) -> None:
    charges.append(customer)


@pytest.mark.slow
@pytest.mark.parametrize("charge", [charge_and_wait, charge_at_once, charge_plainly], ids=lambda each: each.__name__)
def test_unsettled_effect_is_found_by_the_default_plan(charge: Callable[..., Any]) -> None:
    jobs = [("charge", ["customers", name], [name]) for name in ("ann", "bob", "cyn")]

    def once() -> None:
        assert len(charges) == len(set(charges)), "charged twice"

    error = failure(lambda: simulate({"charge": charge}, jobs, seeds=200, setup=charges.clear, invariant=once))
    assert error.reason == "charged twice"
    assert any("dies before it sends Exchange" in line for line in error.story)


@pytest.mark.slow
def test_it_is_counted_how_many_attempts_faults_hit() -> None:
    async def slow() -> None:
        await asyncio.sleep(5)

    jobs = [("slow", [str(number)]) for number in range(4)]
    calm = simulate({"slow": slow}, jobs, seeds=3, faults="none")
    assert (calm.worlds, calm.attempts, calm.attempts_hit) == (3, 12, 0)
    rough = simulate({"slow": slow}, jobs, seeds=3, faults=FaultPlan(crash=0.5))
    assert rough.worlds == 3
    # An attempt that was hit is lost, and the job is started again.
    assert rough.attempts - 12 <= rough.attempts_hit <= rough.attempts
    assert rough.attempts_hit > 0


@pytest.mark.slow
def test_faults_that_hit_no_attempt_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> None:
        pass

    monkeypatch.setattr(HandlerWorld, "_note_hits", lambda *_: None)
    with pytest.warns(UserWarning, match=r"times workers died or stood still in 20 simulated worlds, never during an"):
        simulate({"nothing": nothing}, [("nothing", None)] * 5, seeds=20, faults=FaultPlan(crash=0.3))


def test_one_world_without_a_fault_that_counts_is_told(recwarn: pytest.WarningsRecorder) -> None:
    jobs = [("nothing", None)]

    async def nothing() -> None:
        pass

    with pytest.warns(
        UserWarning, match="one simulated world was played, and no fault hit an attempt in it: pass seeds"
    ):
        assert simulate({"nothing": nothing}, jobs).attempts_hit == 0
    for asked in ({"faults": "none"}, {"seeds": 2}, {"seed": 1}):
        simulate({"nothing": nothing}, jobs, **asked)
    assert list(recwarn) == []


def test_reason_is_rendered_as_it_is_raised() -> None:
    seen: list[str] = []

    async def edit(name: str) -> None:
        seen.append(name)

    def nothing_seen() -> None:
        assert not seen, seen

    jobs: list[Any] = [("edit", [name], [name]) for name in "ab"]
    with pytest.raises(SimulationError) as caught:
        simulate({"edit": edit}, jobs, faults="none", setup=seen.clear, at_end=nothing_seen)
    assert caught.value.reason in {"['a']", "['b']"}


def test_transaction_of_a_handler_is_handed_to_the_world(tmp_path: Path) -> None:
    sched = Scheduler(f"sqlite:///{tmp_path}/app.db?shared=yes")
    sched.stats_sync()
    sched.close_sync()
    connection = sqlite3.connect(tmp_path / "app.db")
    ran: list[str] = []

    @sched.job(name="follow")
    async def follow(name: str) -> None:
        ran.append(name)

    @sched.job(name="write")
    async def write(name: str) -> None:
        for is_kept in (False, True):
            with contextlib.suppress(KeyError), connection:
                follow.within(connection).enqueue_sync(f"{name} {is_kept}")
                if not is_kept:
                    raise KeyError
                relay_now_sync(sched, connection)

    jobs: list[Any] = [("write", None, [name]) for name in "ab"]
    world = simulate(sched, jobs, faults="none", setup=ran.clear)
    assert sorted(ran) == ["a True", "b True"]
    assert len(world.jobs) == 4
    connection.close()


def test_a_seed_of_the_environment_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEHINT_SEED", "17")

    async def nothing() -> None:
        pass

    assert simulate({"nothing": nothing}, [("nothing", None)], seeds=1000).seed == 17


@pytest.mark.slow
def test_simulation_that_does_not_end_is_reported() -> None:
    async def again() -> Snooze:
        return Snooze(60)

    error = failure(lambda: simulate({"again": again}, [("again", None)], limit=600, faults="none"))
    assert "there is still something to do: again-1 (again) is " in error.reason


def test_code_that_ignores_its_stop_is_found() -> None:
    async def stubborn(context: JobContext) -> None:
        while True:
            try:
                return await asyncio.sleep(100)
            except asyncio.CancelledError:
                pass

    sched = Scheduler("memory://", lease=15)
    sched.job(name="stubborn")(stubborn)
    plan = FaultPlan(lose_request=0.2, lose_reply=0.2)

    class Deaf(LoopRenewal):
        def _due(self) -> tuple[tuple[str, int], ...]:
            return ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopWorker, "renewal_class", Deaf)
        error = failure(lambda: simulate(sched, [("stubborn", ["a"])], faults=plan))
    assert "was taken from worker" in error.reason
    assert "which lives" in error.reason


@pytest.mark.slow
def test_simulated_workers_announce_themselves_alike_in_each_run() -> None:
    seen: list[list[str]] = []
    sched = Scheduler("memory://")

    def note(workers: tuple[WorkerInfo, ...]) -> None:
        seen.append([f"{each.name} {each.host} {each.pid} {each.slots} {each.running}" for each in workers])

    @sched.job(name="look", max_losses=1000)
    async def look(seconds: int) -> None:
        await asyncio.sleep(seconds)
        note(await sched.workers())

    def once(seconds: int, plan: FaultPlan) -> list[list[str]]:
        seen.clear()
        simulate(sched, [("look", None, {"seconds": seconds})] * 3, workers=2, concurrency=1, faults=plan)
        return list(seen)

    both = ["worker 1 simulated 1 1 1", "worker 2 simulated 1 1 1"]
    assert once(20, FaultPlan())[:2] == [both, both]
    crashes = FaultPlan(crash=0.1)
    known = once(90, crashes)
    assert known == once(90, crashes)
    assert len({name for each in known for name in each}) > 2, "one that is started anew is another one"


def test_a_fault_in_a_callback_is_told() -> None:
    def stumble() -> None:
        raise LookupError("stumbled")

    async def call() -> None:
        asyncio.get_running_loop().call_later(1, stumble)
        await asyncio.sleep(2)

    error = failure(lambda: simulate({"call": call}, [("call", None)], faults="none"))
    assert error.reason == "LookupError: stumbled"


def test_fault_in_a_renewal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(LoopRenewal):
        def _take_in(self, *_: object) -> None:
            raise TypeError("mistaken")

    monkeypatch.setattr(LoopWorker, "renewal_class", Broken)

    async def nap() -> None:
        await asyncio.sleep(25)

    error = failure(lambda: simulate({"nap": nap}, [("nap", None)], faults="none"))
    assert error.reason == "TypeError: mistaken"


def test_concurrent_runs_of_a_placeless_job_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(LoopRenewal):
        def _due(self) -> tuple[tuple[str, int], ...]:
            return ()

    monkeypatch.setattr(LoopWorker, "renewal_class", Deaf)

    async def stubborn() -> None:
        for _ in range(10):
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                pass

    sched = Scheduler("memory://", lease=10)
    sched.job(name="stubborn", max_losses=1000)(stubborn)
    error = failure(lambda: simulate(sched, [("stubborn", None)], faults="none", seeds=20))
    assert error.reason.startswith("code of stubborn-1 in worker ")


def test_store_that_loses_answered_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    restart = Store.restart
    monkeypatch.setattr(Store, "restart", lambda self, lost, now_ms: restart(self, max(lost, 1), now_ms))

    async def nothing() -> None:
        pass

    sched = Scheduler("memory://", lease=10)
    sched.job(name="nothing")(nothing)
    jobs = [("nothing", None)] * 6
    error = failure(lambda: simulate(sched, jobs, faults=FaultPlan(restart=0.3), seeds=100))
    assert "was answered, and the store does not know it" in error.reason


def test_overlap_is_found_although_another_worker_stalled() -> None:
    lives, still = Process("worker 1"), Process("worker 2")
    crew = Crew(has_time=True)
    for process in (lives, still):
        crew.join(process, SimpleNamespace(_state=SimpleNamespace(slots=())))  # type: ignore[arg-type]
    crew.excuse(still)

    def moved(kind: str, job_id: str, worker: str) -> Any:
        return [(kind, SimpleNamespace(id=job_id, worker=worker), None, None, 0)]

    for job_id, process in (("a", lives), ("b", still)):
        crew.check(moved("started", job_id, process.name), Tick())
    crew.check(moved("lost", "b", still.name), Tick())
    with pytest.raises(AssertionError, match="a was taken from worker 1, which lives"):
        crew.check(moved("lost", "a", lives.name), Tick())


@pytest.mark.slow
def test_a_worker_that_forgets_an_unanswered_exchange_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Exchanges.exchange

    async def forgetful(self: Exchanges) -> int | None:
        self._state.unanswered.clear()
        return await exchange(self)

    monkeypatch.setattr(Exchanges, "exchange", forgetful)

    async def nothing() -> None:
        await asyncio.sleep(0.5)

    plan = FaultPlan(lose_reply=0.9)
    jobs = [("nothing", ["a"])] * 3
    monkeypatch.setattr("queuehint.testing.simulation.live_workers.STEADY_LOSS", 1)
    error = failure(lambda: simulate({"nothing": nothing}, jobs, faults=plan, seeds=50))
    assert "was taken from worker" in error.reason


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["keeps_receipts", "fences"])
def test_a_broken_store_is_found(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init = Store.__init__
    flags: dict[str, Any] = {flag: False}
    monkeypatch.setattr(Store, "__init__", lambda self, options, **more: init(self, options, **more, **flags))
    plan = FaultPlan(lose_reply=0.2, double_request=0.2, restart=0.1, rollback=50 if flag == "fences" else 0)
    error = failure(lambda: simulate({"edit": edit}, EDITS, faults=plan, seeds=100))
    assert ("token" if flag == "fences" else "taken from") in error.reason


@pytest.mark.parametrize(
    "target, jobs, options",
    [
        (None, [], {}),
        ({"a": edit}, [("b", None)], {}),
        ({"a": edit}, [], {"workers": 0}),
        ({"a": edit}, [], {"seeds": 0}),
        ({"a": edit}, [], {"faults": "bad luck"}),
        ({"a": edit}, [], {"limit": 0}),
        ({"a": edit}, [], {"concurrency": 0}),
        ({"a": edit}, [], {"seed": "17"}),
        ({"a": edit}, [], {"faults": 0.1}),
        ({"a": edit}, [], {"setup": 5}),
        ({"a": edit}, [], {"invariant": asyncio.sleep}),
        ({"a": edit}, [], {"at_end": asyncio.sleep}),
        ({"a": edit}, "a", {}),
        ({"a": edit}, ["a"], {}),
        ({"a": edit}, [("a",)], {}),
        ({"a": edit}, [("a", None, 5)], {}),
    ],
)
def test_malformed_simulation_is_refused(target: Any, jobs: Any, options: Any) -> None:
    with pytest.raises((InvalidJobError, InvalidJobTypeError)):
        simulate(target, jobs, **options)


def test_a_seed_of_the_environment_has_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEHINT_SEED", "many")
    with pytest.raises(InvalidJobError, match="QUEUEHINT_SEED must be a whole number, got 'many'"):
        simulate({"a": edit}, [])


def test_it_may_be_called_where_a_loop_runs() -> None:
    async def nothing() -> None:
        pass

    async def main() -> str:
        return simulate({"nothing": nothing}, [("nothing", None)], seeds=2).jobs["nothing-1"].state

    assert asyncio.run(main()) == "FINISHED"


@pytest.mark.slow
def test_code_that_lets_no_time_pass_is_told() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - what is looked for
            await asyncio.sleep(0)

    error = failure(lambda: simulate({"spin": spin}, [("spin", None)]))
    assert "has to sleep for longer than 0 s" in error.reason
    assert "spin-1 (spin) started by worker" in error.story[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ReferenceModel",
        *[pytest.param(name, marks=pytest.mark.nightly) for name in ("simulate", "BackendStateMachine")],
    ],
)
def test_python_that_leaves_asserts_out_is_refused(name: str) -> None:
    command = [sys.executable, "-O", "-c", f"from queuehint.testing import {name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "run Python without -O" in done.stderr


# --- the same seed, the same story -----------------------------------------------------------------------------------

_PRINT = """
import asyncio, hashlib, random
from queuehint.testing import simulate
async def edit(number):
    await asyncio.sleep(random.random() * 20)
    return {"number": number}
jobs = [("edit", ["doc", letter], [letter]) for letter in "aabbc"]
told = [simulate({"edit": edit}, jobs, faults="chaos", seed=seed) for seed in range(3)]
print(hashlib.sha256(repr(told).encode()).hexdigest())
"""


@pytest.mark.slow
def test_a_seed_tells_the_same_story_in_every_process() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", _PRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


@pytest.mark.nightly
def test_the_real_worker_keeps_its_promises_for_long() -> None:
    for plan in ("crashes", "wire", "chaos"):
        simulate({"edit": edit}, EDITS, faults=plan, seeds=1000, setup=document.clear)
