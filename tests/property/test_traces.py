"""Traces: the checker against plain definitions, and against histories of the engine."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from queuehint import operations as op
from queuehint.core.engine import Engine, EngineOptions
from queuehint.errors import QueueHintError
from queuehint.testing import Rule, TraceEvent, TraceJob, find_faults
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.lockstep import RETENTION
from queuehint.testing.state_machine.styles import ALL_AT_ONCE, EXCLUSIVE_STYLES, STYLES, Style
from queuehint.testing.trace.checker import in_order
from queuehint.testing.trace.values import Kind
from queuehint.values.hint import Claim
from queuehint.values.record import JobState
from tests.property.test_engine_random import named
from tests.property.trace_oracle import Broken, look_through

NAMES = "abcde"
PATHS = [path for depth in range(4) for path in product("xy", repeat=depth)]
CLAIMS = st.lists(st.builds(Claim, st.sampled_from(PATHS), st.sampled_from(["exclusive", "shared"])), max_size=2)
# Lives of a job, legal and illegal ones: walked through in order, with steps lost and added.
LIVES: list[list[Kind]] = [
    ["queued", "started", "finished"],
    ["queued", "started", "retried", "started", "ended"],
    ["queued", "started", "retried", "queued", "started", "failed"],
    ["queued", "started", "released", "started", "failed", "queued", "started", "finished"],
    ["queued", "started", "deferred", "finished", "pruned"],
    ["queued", "started", "lost", "started", "canceled"],
    ["queued", "canceled"],
]
KINDS = sorted({kind for life in LIVES for kind in life} | {"snoozed"})


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[TraceEvent], dict[str, TraceJob]]:
    """Lives of some jobs shuffled into one another, not quite as they should be."""
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    jobs = {
        name: TraceJob(
            id=name,
            claims=draw(CLAIMS),
            depends_on=[other for other in draw(st.sets(st.sampled_from(names), max_size=2)) if other != name],
            on_retry=draw(st.sampled_from(["hold", "yield"])),
            on_dead=draw(st.sampled_from(["continue", "hold"])),
        )
        for name in names
    }
    lives = {name: list(draw(st.sampled_from(LIVES))) for name in names}
    tokens = st.none() | st.integers(1, 3)
    events: list[TraceEvent] = []
    at_ms = 0.0
    while lives:
        at_ms += draw(st.sampled_from([0, 0, 1, 5, -2]))
        if draw(st.integers(0, 9)) == 0:
            events.append(TraceEvent(kind="idle", at_ms=at_ms))
        name = draw(st.sampled_from(sorted(lives)))
        kind = lives[name].pop(0)
        if not lives[name]:
            del lives[name]
        what = draw(st.integers(0, 11))
        if what == 0:
            continue
        if what == 1:
            kind = draw(st.sampled_from(KINDS))
        events.append(TraceEvent(kind=kind, job=name, at_ms=at_ms, token=draw(tokens) if what == 2 else None))
    return events, jobs


@given(traces(), st.sampled_from([0, 0, 2, 5]))
def test_trace_checker_agrees_with_an_exhaustive_search(
    trace: tuple[list[TraceEvent], dict[str, TraceJob]], tolerance_ms: float
) -> None:
    events, jobs = trace
    order = [(index, events[index]) for index in in_order(events, tolerance_ms)]
    expected = look_through(order, jobs, tolerance_ms)
    faults = find_faults(events, jobs.values(), tolerance_ms=tolerance_ms)
    note("\n".join(f"{event.at_ms:g} {event.kind}:{event.job} {event.token or ''}" for event in events))
    found: list[Broken] = [(f.rule.value, f.job, f.other, f.index) for f in faults if f.rule != "idle"]
    assert sorted(found, key=str) == sorted([broken for broken in expected if broken[0] != "idle"], key=str)
    idle = {index: jobs for rule, jobs, _, index in expected if rule == "idle"}
    assert {f.index for f in faults if f.rule == "idle"} == idle.keys()
    assert all(f.job in idle[f.index] for f in faults if f.rule == "idle")


# --- histories of the engine -----------------------------------------------------------------------------------------


FOR_EVER = 1 << 60


class Recorder:
    """Plays with an engine, and writes down what happens to its jobs."""

    def __init__(self, random: Random, style: Style, budget: int = op.BUDGET) -> None:
        self.engine = Engine(EngineOptions(budget=budget, retention=RETENTION))
        self.generator = OperationGenerator(self.engine, random, style)
        self.jobs: dict[str, TraceJob] = {}
        self.events: list[TraceEvent] = []
        self.idles = 0
        self.is_uncut = budget == op.BUDGET
        self.probes: list[tuple[int, str, bool]] = []
        """After how many events a job that was queued was ready, or was not."""
        self._after: int | None = None
        self._specs: dict[str, Any] = {}
        self._write_down(0)

    def play(self, steps: int) -> None:
        now_ms = 0
        for _ in range(steps):
            now_ms = self.generator.pass_time(now_ms)
            move = self.generator.move()
            try:
                reply = self.engine.apply(move, now_ms)
            except QueueHintError:
                continue
            finally:
                self._write_down(now_ms)
            self._probe()
            if isinstance(move, op.Exchange):
                self.generator.grants += [(grant.spec.id, grant.token) for grant in reply.grants]
                self._ask_for_more(move, len(reply.grants), now_ms)

    def _write_down(self, now_ms: int) -> None:
        while True:
            followed = self.engine.apply(op.Follow(self._after, op.EVENTS_MAX), now_ms)
            self.engine.table.journal.until_ms = FOR_EVER  # the next move may be an hour later
            assert not followed.missed
            self._after = followed.after
            for event in followed.events:
                traced = TraceEvent.of(event)
                job = self.engine.table.jobs.get(event.id)
                if job is not None and self._specs.get(event.id) is not job.spec:
                    self._specs[event.id] = job.spec
                    known, new = self.jobs.get(event.id), TraceJob.of(job.spec)
                    if known is not None and (known.pool, known.needs_slot) != (new.pool, new.needs_slot):
                        new = attrs.evolve(new, needs_slot=False)  # a trace has one pool of a job
                    self.jobs[event.id] = new
                    traced = attrs.evolve(traced, claims=job.spec.claims)
                self.events.append(traced)
            if not followed.is_more:
                return

    def _probe(self) -> None:
        table = self.engine.table
        # Of one that cancels those behind it and is redriven, events do not tell whether it had given up its place.
        queued = [
            job
            for job in table.jobs.values()
            if job.state is JobState.QUEUED and job.spec.policy.on_dead != "cancel_behind"
        ]
        if queued and not table.leftovers and self.generator.random.random() < 0.1:
            job = self.generator.random.choice(queued)
            self.probes.append((len(self.events), job.id, not job.missing))

    def _ask_for_more(self, move: op.Exchange, granted: int, now_ms: int) -> None:
        """A worker that got less than it asked for was idle, unless something kept it that is not in a trace."""
        table = self.engine.table
        is_free = self.is_uncut and not (table.pauses or table.limits.limiters or table.leftovers)
        if granted < move.limit and is_free and move.among is None:
            for pool in move.pools:
                self.idles += 1
                self.events.append(TraceEvent(kind="idle", at_ms=now_ms, pool=pool))


def record(seed: int, style: Style, steps: int, budget: int = op.BUDGET) -> Recorder:
    recorder = Recorder(Random(seed), style, budget)
    recorder.play(steps)
    return recorder


@pytest.mark.slow
@pytest.mark.parametrize("budget", [op.BUDGET, 2])
@pytest.mark.parametrize("style", [*STYLES, ALL_AT_ONCE], ids=named)
def test_every_history_of_the_engine_is_in_order(style: Style, budget: int) -> None:
    idles = 0
    for seed in range(3):
        recorder = record(seed, style, 300, budget)
        faults = find_faults(recorder.events, recorder.jobs.values())
        assert not faults, f"Random({seed}): {faults[0]}"
        faults = find_faults([event for event in recorder.events if event.kind != "idle"])
        assert not faults, f"Random({seed}), by its events alone: {faults[0]}"
        idles += recorder.idles
    assert idles or budget < op.BUDGET


@pytest.mark.nightly
@pytest.mark.parametrize("budget", [op.BUDGET, 1, 3])
@pytest.mark.parametrize("style", [*STYLES, ALL_AT_ONCE], ids=named)
def test_thousands_of_histories_of_the_engine_are_in_order(style: Style, budget: int) -> None:
    for seed in range(1_000, 1_100):
        recorder = record(seed, style, 300, budget)
        faults = find_faults(recorder.events, recorder.jobs.values())
        assert not faults, f"Random({seed}): {faults[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("style", EXCLUSIVE_STYLES, ids=named)
def test_start_refused_by_the_engine_is_exactly_a_fault(style: Style) -> None:
    judged = set()
    for seed in range(2):
        recorder = record(seed, style, 300)
        for count, job, is_ready in recorder.probes:
            start = TraceEvent(kind="started", job=job, at_ms=recorder.events[count - 1].at_ms)
            faults = find_faults([*recorder.events[:count], start], recorder.jobs.values())
            found = [fault.rule.value for fault in faults if fault.rule in {Rule.ORDER, Rule.OVERLAP}]
            assert len(found) == (0 if is_ready else 1), f"Random({seed}), {job} after {count} events"
            assert all(fault.job == job and fault.other != job for fault in faults)
            judged.update(found or ["in order"])
    assert judged == {"in order", "order", "overlap"}
