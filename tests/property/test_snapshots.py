"""Engines restored from a snapshot or by replay behave as if never interrupted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.backends.journal.snapshots.snapshot import CLASSES, ENUMERATIONS, fields_of
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.structures.heap import LazyHeap
from queuehint.errors import QueueHintError
from queuehint.operations import Operation, Tick
from queuehint.operations.wire import decode, encode
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.styles import ALL_AT_ONCE, STYLES
from tests.snapshots import rows_of, thawed
from tests.support import thorough

STEPS = thorough(250, quick=120)


def answer(engine: Engine, operation: Operation[Any], now_ms: int) -> Any:
    """Return the reply of an engine, or its refusal."""
    try:
        return engine.apply(operation, now_ms)
    except QueueHintError as error:
        return type(error), str(error)


def walk(seed: int, snapshot_every: float = 0.0) -> tuple[Engine, list[tuple[int, bytes]]]:
    """
    Take a walk; return the engine and what it was told.

    Beside it go an engine that is written down and read again now and then, and gives the same replies.
    """
    random = Random(seed)
    options = EngineOptions(budget=random.choice((1, 3, 1000)))
    engine = Engine(options)
    twin = Engine(options) if snapshot_every else None
    generator = OperationGenerator(engine, random, random.choice((*STYLES, ALL_AT_ONCE)))
    told = []
    for _ in range(STEPS):
        now_ms = generator.pass_time(engine.now_ms)
        operation = generator.move() if random.random() < 0.9 else Tick()
        told.append((now_ms, encode(operation)))
        reply = answer(engine, operation, now_ms)
        if twin is not None:
            assert answer(twin, operation, now_ms) == reply
            if random.random() < snapshot_every:
                # A snapshot drops dead entries of heaps, so the other engine drops them at the same time.
                list(freeze(engine))
                twin = thawed(twin, options)
                twin.check()
    if twin is not None:
        assert digest(twin) == digest(engine)
    return engine, told


def digest(engine: Engine) -> str:
    """All that an engine remembers, as one word: what can change by its place, what cannot by its value."""
    rows = rows_of(engine)
    classes: tuple[type[Any], ...] = (*CLASSES, *ENUMERATIONS)
    values = {each.__name__ for each in classes if not is_changed(each)}
    places, order = {0: 0}, [0]

    def said(item: Any) -> str:
        if type(item) is not list:
            return repr(item)
        if item[0] < 0:
            return f"{item[0]}{[said(each) for each in item[1:]]}"
        name, items = rows[item[0]]
        if name in values:
            return f"{name}{[said(each) for each in items]}"
        if item[0] not in places:
            places[item[0]] = len(order)
            order.append(item[0])
        return f"#{places[item[0]]}"

    whole = hashlib.sha256()
    for number in order:  # it grows as more is found
        name, items = rows[number]
        if name == LazyHeap.__name__:
            of = dict(zip(fields_of(LazyHeap), items, strict=True))
            # Questions drop dead entries; whether an entry goes to the run or to the heap depends on those before it.
            _, *run = rows[of.pop("_run")[0]][1]
            entries = sorted([*run, *rows[of.pop("_heap")[0]][1]], key=lambda entry: entry[1:-1])
            items = [*of.values(), *entries]
        whole.update(f"{name}{[said(each) for each in items]}".encode())
    return whole.hexdigest()


def is_changed(cls: type[Any]) -> bool:
    """Return whether objects of a class are changed while they are there."""
    return not attrs.has(cls) and not issubclass(cls, Enum)


def replay(seed: int, told: list[tuple[int, bytes]]) -> Engine:
    engine = Engine(EngineOptions(budget=Random(seed).choice((1, 3, 1000))))
    for now_ms, data in told:
        answer(engine, decode(data), now_ms)
    return engine


@pytest.mark.parametrize("seed", range(thorough(12, quick=2)))
def test_an_engine_restored_from_a_snapshot_behaves_the_same(seed: int) -> None:
    walk(seed, 0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(20))
def test_thousand_walks_agree_after_reading_a_snapshot(block: int) -> None:
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        walk(seed, 0.03)


@pytest.mark.parametrize("seed", range(thorough(4, quick=1)))
def test_an_engine_restored_by_replay_has_the_same_state(seed: int) -> None:
    engine, told = walk(seed)
    assert digest(replay(seed, told)) == digest(engine)


@pytest.mark.slow
def test_nothing_depends_on_the_hashes_of_one_process(tmp_path: Path) -> None:
    mine = []
    for seed in range(100, thorough(106, quick=101)):
        engine, told = walk(seed)
        (tmp_path / f"{seed}").write_bytes(b"".join(b"%d %s\n" % row for row in told))
        mine.append(digest(engine))
    # Those of this process are a second one.
    for hash_seed in range(1, thorough(3, quick=2)):
        ended = subprocess.run(
            [sys.executable, __file__, tmp_path],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.split() == mine


def main(folder: Path) -> None:
    """Tell engines everything that is in files, and print what they remember."""
    for journal in sorted(folder.iterdir()):
        rows = [line.split(b" ", 1) for line in journal.read_bytes().splitlines()]
        print(digest(replay(int(journal.name), [(int(now_ms), data) for now_ms, data in rows])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
