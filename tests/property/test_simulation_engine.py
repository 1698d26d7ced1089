"""The simulated engine keeps its promises, runs the same for the same seed, and detects broken promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest

from queuehint.core import producing, working
from queuehint.core import state as state_module
from queuehint.core.engine import EngineOptions
from queuehint.core.jobs import pauses, revisions, staging
from queuehint.core.jobs.lifecycle import Lifecycle
from queuehint.core.jobs.table import JobTable
from queuehint.core.meters import Meter
from queuehint.core.refusals import Submission
from queuehint.core.state import HANDLERS, State
from queuehint.core.structures import trie as trie_module
from queuehint.core.structures.edges import DependencySets
from queuehint.core.structures.job import Job
from queuehint.core.structures.leftovers import CommitSweep
from queuehint.core.structures.registry import ActiveExecutions
from queuehint.core.structures.timers import TimerKind, Timers
from queuehint.core.structures.trie import IS, IX, ONE, Node, PathTrie, Walk
from queuehint.errors import InvalidJobError
from queuehint.operations import Enqueue, Verdict
from queuehint.testing.simulation import FaultPlan, SimulationError
from queuehint.testing.simulation.faults import PLANS
from queuehint.testing.simulation.store import BEGIN_MS, Store
from queuehint.values.event import EventKind
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec
from tests.simulation.__main__ import main
from tests.simulation.gates import GateWorld, simulate_gates
from tests.simulation.run import simulate_engine
from tests.simulation.world import LEASE_MS, World
from tests.support import thorough

pytestmark = pytest.mark.heavy

SEEDS_AT_MOST = 200
"""Within so many seeds a broken rule is found."""


@pytest.mark.parametrize("plan", PLANS)
def test_the_engine_keeps_its_promises(plan: str) -> None:
    for seed in range(thorough(150, quick=12) if plan == "chaos" else thorough(40, quick=4)):
        simulate_engine(seed, faults=plan)


def test_the_gates_keep_their_promises() -> None:
    for seed in range(thorough(300, quick=20)):
        simulate_gates(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_the_engine_keeps_its_promises_for_long(part: int) -> None:
    for seed in range(part * 1000, part * 1000 + 1000):
        simulate_engine(seed)


@pytest.mark.nightly
def test_the_gates_keep_their_promises_for_long() -> None:
    for seed in range(10_000):
        simulate_gates(seed)


# --- the same seed, the same story -----------------------------------------------------------------------------------

_PRINT = """
import hashlib
from tests.simulation.run import simulate_engine
told = [simulate_engine(seed) for seed in range(8)]
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


def test_seeds_tell_different_stories() -> None:
    stories = [simulate_engine(seed, steps=40) for seed in range(20)]
    assert all(story != other for at, story in enumerate(stories) for other in stories[:at])


# --- what breaks a promise is found ----------------------------------------------------------------------------------


def first_to_fail(play: Callable[[int], Any]) -> SimulationError:
    """Play seeds until one fails, and say how many it took."""
    for seed in range(SEEDS_AT_MOST):
        try:
            play(seed)
        except SimulationError as error:
            return error
    pytest.fail(f"{SEEDS_AT_MOST} seeds have found nothing")


def break_lease_checks(patch: pytest.MonkeyPatch) -> None:
    def proves(_token: object, _newest: int | None) -> bool:
        return True

    patch.setattr(working, "proves", proves)
    patch.setattr(state_module, "proves", proves)


def reap_early(patch: pytest.MonkeyPatch) -> None:
    set_lease, start = JobTable.set_lease, JobTable.start

    def shorter(self: JobTable, job: Any, until_ms: int) -> None:
        set_lease(self, job, until_ms - 4_000)

    def start_shorter(self: JobTable, job: Any, worker: str, token: int, until_ms: int, now_ms: int) -> None:
        start(self, job, worker, token, until_ms - 4_000, now_ms)

    patch.setattr(JobTable, "set_lease", shorter)
    patch.setattr(JobTable, "start", start_shorter)


def reuse_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "next_token", lambda self: 1 + self.started % 7)


def retry_to_the_tail(patch: pytest.MonkeyPatch) -> None:
    put_back = JobTable.put_back

    def to_the_tail(self: JobTable, job: Any, again_ms: int | None, kind: EventKind, cause: str | None = None) -> None:
        put_back(self, job, again_ms, kind, cause)
        if job.ready is not None:
            self.withdraw(job)
            self.vacate(job)
            self.place(job, job.queued_ms)

    patch.setattr(JobTable, "put_back", to_the_tail)


def forget_ancestors(patch: pytest.MonkeyPatch) -> None:
    """A job looks at its own path only, and holds no more."""

    def walk_on(self: PathTrie, walk: Walk, node: Node, depth: int) -> int:
        intention = IS if walk.shared else IX
        while depth < len(walk.path):
            node.held += ONE[intention]
            node = self._child(node, walk.path[depth])
            depth += 1
        own = trie_module.S if walk.shared else trie_module.X
        here = trie_module._MASK[trie_module.S] * (not walk.shared) | trie_module._MASK[trie_module.X]
        if node.line is not None or node.held & here:
            self._join(walk, node, depth, own)
        else:
            self._grant(walk, node, depth, own)
        return depth + 1

    patch.setattr(PathTrie, "_walk_on", walk_on)
    patch.setattr(ActiveExecutions, "enter", lambda self, job: self.running.__setitem__(job.id, job))
    patch.setattr(ActiveExecutions, "leave", lambda self, job: self.running.pop(job.id))
    patch.setattr(ActiveExecutions, "check", lambda _self: None)
    patch.setattr(PathTrie, "check", lambda _self: None)


def keep_no_place_in_back_off(patch: pytest.MonkeyPatch) -> None:
    """Others may pass a job that waits for its next attempt."""
    put_back = JobTable.put_back

    def give_way(self: JobTable, job: Any, again_ms: int | None, kind: EventKind, cause: str | None = None) -> None:
        put_back(self, job, again_ms, kind, cause)
        if again_ms is not None:
            walk, job.walk = job.walk, None
            while walk is not None:
                self.trie.leave(walk)
                walk = walk.next

    def come_back(self: JobTable, job: Any) -> None:
        self.place(job, job.queued_ms)

    patch.setattr(JobTable, "put_back", give_way)
    patch.setattr(JobTable, "offer", come_back)


def lose_a_dependent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "_resolve_dependents", lambda _self, _job: False)


def drop_jobs(patch: pytest.MonkeyPatch) -> None:
    def forgetful(state: State, operation: Enqueue) -> Any:
        reply = producing.enqueue(state, operation)
        job = state.table.jobs[reply.jobs[-1].id]
        if job.spec.priority == 9 and job.state is JobState.QUEUED:
            state.table.withdraw(job)
        return reply

    patch.setitem(HANDLERS, Enqueue, forgetful)


def settle_twice(patch: pytest.MonkeyPatch) -> None:
    settle = working._settle
    patch.setattr(working, "_settle", lambda *asked: (settle(*asked), Verdict.DONE)[1])


def close_cycles(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DependencySets, "is_cycle", lambda *_: False)


def pause_paths_only(patch: pytest.MonkeyPatch) -> None:
    """A pause by filter holds back no job."""
    patch.setattr(pauses, "selects", lambda _wanted, _job: False)


def end_pauses_later(patch: pytest.MonkeyPatch, by_ms: int) -> None:
    add = Timers.add

    def later(self: Timers, kind: int, due_ms: int, job: Any) -> Any:
        return add(self, kind, due_ms + by_ms if kind is TimerKind.RESUME else due_ms, job)

    patch.setattr(Timers, "add", later)


def end_pauses_a_second_late(patch: pytest.MonkeyPatch) -> None:
    end_pauses_later(patch, 1_000)


def never_end_pauses(patch: pytest.MonkeyPatch) -> None:
    end_pauses_later(patch, 1 << 50)


def ignore_withdrawals(patch: pytest.MonkeyPatch) -> None:
    """A withdrawal is answered, and all is left to the expiry."""
    patch.setattr(staging, "withdraw", lambda _table, _start, _now_ms: None)


def commit_withdrawn_jobs(patch: pytest.MonkeyPatch) -> None:
    def commit(table: JobTable, start: Job, now_ms: int) -> None:
        staging.commit(table, start, now_ms)
        table.leftovers.append(CommitSweep(start, table.last_number))

    patch.setattr(staging, "withdraw", commit)


def spend_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Meter, "spend", lambda _self, _limit, _cost, _now_ms: None)


def fill_up_to_any_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Submission, "_check_room", lambda _self: None)


def give_keys_up_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "stands_for_key", property(lambda job: job.first_ms is None))


def put_off_for_ever(patch: pytest.MonkeyPatch) -> None:
    respec = revisions.respec

    def unbounded(table: Any, job: Any, spec: JobSpec, now_ms: int) -> None:
        respec(table, job, attrs.evolve(spec, max_delay_ms=None), now_ms)
        job.spec = spec

    patch.setattr(revisions, "respec", unbounded)


BROKEN = [
    ignore_withdrawals,
    commit_withdrawn_jobs,
    end_pauses_a_second_late,
    never_end_pauses,
    pause_paths_only,
    spend_nothing,
    fill_up_to_any_number,
    give_keys_up_at_the_end,
    put_off_for_ever,
    break_lease_checks,
    reap_early,
    reuse_tokens,
    retry_to_the_tail,
    forget_ancestors,
    keep_no_place_in_back_off,
    lose_a_dependent,
    drop_jobs,
    settle_twice,
    close_cycles,
]


@pytest.mark.slow
@pytest.mark.parametrize("breaks", BROKEN, ids=lambda breaks: breaks.__name__)
def test_a_broken_rule_is_found(breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch)
    error = first_to_fail(simulate_engine)
    assert len(error.story) <= 30


def _store(options: EngineOptions, broken: str) -> Store:
    flags: dict[str, Any] = {broken: False}
    return Store(options, lease_max_ms=LEASE_MS, **flags)


class NoAnswers(Store):
    """A journal whose next leader does not know what was answered to whom."""

    def take_over(self, now_ms: int, *, is_heir: bool) -> None:
        super().take_over(now_ms, is_heir=is_heir)
        self.receipts.clear()


class LostEnd(Store):
    """A journal whose server has lost the last rows, which nobody writes again."""

    def take_over(self, now_ms: int, *, is_heir: bool) -> None:
        del self.history[-3:]
        super().take_over(now_ms, is_heir=is_heir)


class NoGuests(Store):
    """A journal whose next leader takes all guests for dead."""

    def take_over(self, now_ms: int, *, is_heir: bool) -> None:
        super().take_over(now_ms, is_heir=is_heir)
        self.engine.end_leases(now_ms)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [NoAnswers, LostEnd, NoGuests])
def test_a_journal_that_another_process_leads_wrongly_is_found(broken: type[Store]) -> None:
    def make(options: EngineOptions) -> Store:
        return broken(options, lease_max_ms=LEASE_MS)

    error = first_to_fail(lambda number: simulate_engine(5 * number + 2, make=make))
    assert any("another process leads" in line for line in str(error).splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["keeps_receipts", "fences", "waits"])
def test_a_broken_session_is_found(broken: str) -> None:
    make = partial(_store, broken=broken)
    error = first_to_fail(lambda seed: simulate_engine(seed, make=make))
    assert len(error.story) <= 30


def test_failed_simulation_reports_events_and_the_command_to_repeat() -> None:
    error = first_to_fail(lambda seed: simulate_engine(seed, make=partial(_store, broken="fences")))
    said = str(error)
    assert error.reason in said
    assert f"seed {error.seed}, step {error.step}" in said
    assert "the store is started anew without its last" in said
    assert said.endswith(f"simulation engine --seed {error.seed} --steps 200 --faults chaos")
    with pytest.raises(SimulationError) as again:
        simulate_engine(error.seed, make=partial(_store, broken="fences"))
    assert str(again.value) == said


def test_unoffered_job_is_found_at_once_also_after_restarts() -> None:
    store = Store(EngineOptions(epoch_s=1), lease_max_ms=LEASE_MS)
    store.ask("c", 1, Enqueue((JobSpec(id="a", task="t"),)), BEGIN_MS)
    store.restart(0, BEGIN_MS)
    table = store.engine.table
    table.withdraw(table.jobs["a"])
    with pytest.raises(AssertionError, match="none is ready"):
        store.promises.check(store.engine)


class TypoError(Exception):
    """Some fault of the simulation's own."""


@pytest.mark.slow
def test_a_story_is_not_shrunk_to_another_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_shorter(self: World) -> None:
        if self.steps < 100:
            raise TypoError
        raise AssertionError("a long story")

    monkeypatch.setattr(World, "wind_down", refuse_shorter)
    with pytest.raises(SimulationError) as caught:
        simulate_engine(0)
    assert caught.value.reason == "a long story"
    assert len(caught.value.story) >= 100


# --- the gates alone -------------------------------------------------------------------------------------------------


class NoLine(PathTrie):
    """A claim that fits overtakes those in line."""

    def place(self, walk: Walk) -> int:
        lines = []
        node: Node | None = self.root
        for segment in (*walk.path, ""):
            if node is None:
                break
            lines.append((node, node.line))
            node.line = None
            node = (node.children or {}).get(segment)
        try:
            return super().place(walk)
        finally:
            for node, line in lines:
                if node.line is None:
                    node.line = line


class OneCountTooMany(PathTrie):
    """A claim that leaves forgets to leave the root."""

    def leave(self, walk: Walk) -> int:
        used = super().leave(walk)
        if len(walk.path) == 2:
            self.root.held += ONE[IX]
        return used


class Forgetful(PathTrie):
    """A line is never moved after a job was canceled in it."""

    def leave(self, walk: Walk) -> int:
        before = len(self._leftovers)
        was_waiting = not walk.granted
        used = super().leave(walk)
        while was_waiting and len(self._leftovers) > before:
            self._leftovers.pop().to_advance = False
        return used


@pytest.mark.parametrize("broken", [NoLine, OneCountTooMany, Forgetful])
def test_a_broken_gate_is_found(broken: type[PathTrie]) -> None:
    class World(GateWorld):
        def __init__(self) -> None:
            super().__init__(trie=broken)

    error = first_to_fail(lambda seed: simulate_gates(seed, make=World))
    assert len(error.story) <= 6


def test_ancestors_that_are_not_asked_are_found_at_the_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_ancestors(monkeypatch)
    error = first_to_fail(simulate_gates)
    assert len(error.story) == 2
    assert "is let through before" in error.reason


def test_a_calm_world_has_no_faults() -> None:
    kinds = {step[1] for seed in range(5) for step in simulate_engine(seed, faults=FaultPlan())}
    assert kinds == {"send", "deliver", "answer"}


# --- from a terminal -------------------------------------------------------------------------------------------------


def test_seeds_are_played_from_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--seed", "3"]) == 0
    assert main(["gates", "--seed", "3", "--seeds", "5"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "seed 3: every promise was kept",
        "seeds 3 to 7: every promise was kept",
    ]


@pytest.mark.slow
def test_a_failure_is_told_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    break_lease_checks(monkeypatch)
    plan = FaultPlan.chaos()
    error = first_to_fail(lambda seed: simulate_engine(seed, faults=attrs.evolve(plan, crash=0.02)))
    command = error.command.split()
    assert command[:3] == ["python", "-m", "tests.simulation"]
    assert main(command[3:]) == 1
    assert capsys.readouterr().out == f"{error}\n"


@pytest.mark.parametrize("plan", ["bad luck", "luck=1", "crash=often", "crash=2", "crash=much", "rollback=1.5", "no"])
def test_a_plan_that_is_none_is_refused(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["engine", "--faults", plan])
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--seeds=0", "--steps=0"])
def test_no_seeds_and_no_steps_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gates", flag])
    assert f"{flag.removesuffix('=0')} must be 1 or more" in capsys.readouterr().err


def test_malformed_seed_or_plan_is_refused() -> None:
    wrong: Any
    for wrong in ("17", None, 1 << 63):
        with pytest.raises(InvalidJobError, match="seed must be"):
            simulate_engine(wrong)
        with pytest.raises(InvalidJobError, match="seed must be"):
            simulate_gates(wrong)
    for wrong in ("9", 0):
        with pytest.raises(InvalidJobError, match="steps must be"):
            simulate_gates(steps=wrong)
    wrong = 0.1
    with pytest.raises(InvalidJobError, match="faults must be a FaultPlan or the name of one, got float"):
        simulate_engine(faults=wrong)
