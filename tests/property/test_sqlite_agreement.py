"""A store in a file that is closed and killed at random gives the same replies as an engine that runs on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from queuehint import FakeClock
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.snapshots import compaction
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.core.engine import Engine, EngineOptions
from queuehint.errors import QueueHintError
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.styles import ALL_AT_ONCE, STYLES
from tests.folders import quick_folder
from tests.snapshots import thawed
from tests.sqlite_store import leave_journal
from tests.support import slow_after


def answer(call: Any, operation: op.Operation[Any], *more: int) -> Any:
    """Return the reply of a call, or its refusal."""
    try:
        return call(operation, *more)
    except QueueHintError as error:
        return type(error), str(error)


def walk(seed: int, steps: int, watch: Callable[[Engine], Callable[[Engine], None]] | None = None) -> None:
    """Let a store and an engine go side by side; *watch* the engine, and have the store's looked at after each step."""
    random = Random(seed)
    clock = FakeClock(60_000)
    options = EngineOptions(budget=random.choice((1, 3, 1000)))
    after = 0
    with quick_folder() as folder:

        def opened() -> SqliteBackend:
            address = Address(path=folder / "jobs.db", durability="process")
            return SqliteBackend(address, BackendOptions(clock=clock), options)

        store = opened()
        store.call_sync(op.Peek())
        # The same beginning: tokens count from when the file was made.
        engine = thawed(store.engine, options)
        see = None if watch is None else watch(engine)
        generator = OperationGenerator(engine, random, random.choice((*STYLES, ALL_AT_ONCE)))
        for _ in range(steps):
            clock.advance(ms=generator.pass_time(clock.now_ms()) - clock.now_ms())
            roll = random.random()
            operation = generator.move() if roll < 0.85 else op.Tick() if roll < 0.95 else op.Follow(after)
            reply = answer(engine.apply, operation, clock.now_ms())
            assert answer(store.call_sync, operation) == reply
            if see is not None:
                see(store.engine)
            if isinstance(operation, op.Follow):
                after = reply.after
            if random.random() < 0.05:
                if random.random() < 0.5:
                    leave_journal(store)
                store.close_sync()
                store = opened()
        store.call_sync(op.Peek())
        store.engine.check()
        store.close_sync()


@pytest.mark.parametrize("seed", slow_after(1, [1, 0, 2, 3, 4]))
def test_a_reopened_file_gives_the_same_replies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 30)
    walk(seed, 150)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_walks_agree_after_reopening_the_file(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 30)
    walk(seed, 400)
