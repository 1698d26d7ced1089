"""Release B goes on with the journal of release A, cut off after any row: what A has granted stays granted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest

from queuehint import FakeClock
from queuehint import operations as op
from queuehint.backends.base import BackendOptions, release
from queuehint.backends.journal.answers import Answers
from queuehint.backends.journal.recovery import History, OtherRulesError, replay
from queuehint.backends.journal.writing import NUDGE
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.core.engine import Engine, EngineOptions
from queuehint.errors import QueueHintError
from queuehint.testing.driver import Driver, Queue, job
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.styles import ALL_AT_ONCE, STYLES
from queuehint.values.hint import is_prefix
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record import JobState
from tests.folders import quick_folder
from tests.other_rules import RULES, other_release
from tests.support import thorough

Row = tuple[int, bytes]
Facts = dict[str, tuple[Any, ...]]


def facts(engine: Engine) -> Facts:
    """Return what workers know of jobs, and what is decided of them."""
    return {
        job.id: (job.state, job.token, job.attempts, job.losses, job.worker, job.cause)
        for job in engine.table.jobs.values()
    }


@attrs.frozen
class Led:
    """What release A has written and decided: its rows, and the facts after each."""

    options: EngineOptions
    rows: list[Row]
    facts: list[Facts]


Move = Callable[[Engine, Random], Callable[[], op.Operation[Any]]]


def anything(engine: Engine, random: Random) -> Callable[[], op.Operation[Any]]:
    """Draw any operations."""
    generator = OperationGenerator(engine, random, random.choice((*STYLES, ALL_AT_ONCE)))
    return generator.move


def led(seed: int, steps: int, moves: Move = anything, budget: int | None = None) -> Led:
    """Have release A lead a journal, and do operations at random, each in a row of its own."""
    random = Random(seed)
    clock = FakeClock(60_000)
    options = EngineOptions(budget=budget or random.choice((1, 3, 1000)))
    found: list[Facts] = []
    with quick_folder() as folder:
        store = SqliteBackend(
            Address(path=folder / "jobs.db", durability="process"), BackendOptions(clock=clock), options
        )
        store.call_sync(NUDGE)
        assert store._journal is not None
        found.append(facts(store.engine))
        move = moves(store.engine, random)
        for _ in range(steps):
            clock.advance(ms=random.choice((0, 0, 0, 1, 60_000, 300_000)) if random.random() < 0.3 else 0)
            number = store._journal.number
            with suppress(QueueHintError):
                store.call_sync(move())
            if store._journal.number > number:
                found.append(facts(store.engine))
        rows = list(store._journal.rows())
        store.close_sync()
    assert len(rows) == len(found)
    return Led(options, rows, found)


def replayed(history: Led) -> Iterator[Engine]:
    """Yield the engine after each row, as the release that this process is replays it."""
    how, engine, answers = History("journal", release()), Engine(history.options), Answers()
    for at_ms, data in history.rows:
        replay(how, engine, answers, at_ms, data)
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("seed", range(thorough(25, quick=3)))
def test_followed_row_of_another_release_reproduces_its_decisions(seed: int, rules: str) -> None:
    # To release jobs that a limit has parked takes units: with few of them, work comes later where none was parked.
    history = led(seed, thorough(250, quick=120), budget=1000 if rules == "without_limits" else None)
    with other_release(rules):
        for engine, wanted in zip(replayed(history), history.facts, strict=True):
            assert facts(engine) == wanted
        engine.check()


@pytest.mark.parametrize("rules", RULES)
def test_the_other_rules_would_have_decided_otherwise(rules: str) -> None:
    """Else nothing that is tested here could fail."""
    assert any(map(partial(is_otherwise, rules), range(60)))


def is_otherwise(rules: str, seed: int) -> bool:
    """Return whether a walk of release A is another one by other rules; by its own it is the same."""
    history = led(seed, 80)
    assert [facts(engine) for engine in replayed(history)] == history.facts
    with other_release(rules, name=release()):
        try:
            list(replayed(history))
        except OtherRulesError:
            return True
    return False


# --- release B goes on -----------------------------------------------------------------------------------------------


def plain(engine: Engine, random: Random) -> Callable[[], op.Operation[Any]]:
    """Draw enqueues of jobs on few paths, and exchanges of a worker that finishes all it is granted."""
    made = iter(range(10_000))
    drawn = Drawn()

    def move() -> op.Operation[Any]:
        if random.random() < 0.5:
            paths = [random.choice((["a"], ["a", "b"], ["a", "c"], ["d"], ["e", "f"])) for _ in range(3)]
            return drawn.of(drawn.enqueue, *[job(f"{next(made)}", path, user=random.choice("uv")) for path in paths])
        held = [each for each in engine.table.jobs.values() if each.state is JobState.STARTED]
        ended = map(finished, random.sample(held, random.randint(0, len(held))))
        return drawn.of(drawn.exchange, *ended, limit=random.randint(0, 4), lease_ms=10**9)

    return move


class Drawn(Driver):
    """A client whose operations are done by others."""

    last: op.Operation[Any]

    def apply(self, operation: op.Operation[Any]) -> Any:
        self.last = operation
        raise NotDoneError

    def advance(self, ms: int) -> None:
        raise NotImplementedError

    def of(self, method: Callable[..., Any], *asked: Any, **more: Any) -> op.Operation[Any]:
        """Return what a method of this client asks for."""
        with suppress(NotDoneError):
            method(*asked, **more)
        return self.last


class NotDoneError(Exception):
    """Others do it."""


def finished(job: Any) -> Outcome:
    return Outcome(job_id=job.id, token=job.token, kind=OutcomeKind.FINISHED)


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("seed", range(thorough(10, quick=2)))
def test_other_release_continues_after_any_row_in_order(seed: int, rules: str) -> None:
    history = led(seed, 40, plain)
    for count in range(1, len(history.rows) + 1):
        cut = attrs.evolve(history, rows=history.rows[:count])
        with other_release(rules):
            *_, engine = replayed(cut)
            wanted = history.facts[count - 1]
            assert facts(engine) == wanted
            go_on(engine, wanted)


def go_on(engine: Engine, known: Facts) -> None:
    """Have release B lead, and workers finish what they hold, and what they are granted further; judge all grants."""
    engine.begin_epoch((engine.token >> 32) + 1 << 32, 0)
    client = Queue(now_ms=engine.now_ms)
    client.engine = engine
    jobs, newest = engine.table.jobs, engine.token
    ends = [job_id for job_id, (state, *_) in known.items() if state is JobState.FINISHED]
    granted: list[str] = [job_id for job_id, (state, *_) in known.items() if state is JobState.STARTED]
    held = [jobs[job_id] for job_id in granted]
    assert sorted(ends + granted) == sorted(each.id for each in jobs.values() if each.token is not None)
    while True:
        reply = client.exchange(*map(finished, held), limit=2)
        assert set(reply.verdicts) <= {op.Verdict.DONE}, "what A has granted is settled"
        ends += [each.id for each in held]
        for grant in reply.grants:
            assert grant.token > newest
            newest = grant.token
            granted.append(grant.spec.id)
        held = [jobs[grant.spec.id] for grant in reply.grants]
        if not (held or reply.more):
            break
    assert len(set(granted)) == len(granted)
    assert sorted(ends) == sorted(jobs), "none is lost, none ends twice"
    numbers = [jobs[job_id] for job_id in ends if job_id in granted]
    for at, later in enumerate(numbers):
        for earlier in numbers[:at]:
            paths = [each.spec.claims[0].path for each in (earlier, later)]
            if is_prefix(*paths) or is_prefix(*reversed(paths)):
                assert earlier.number < later.number
