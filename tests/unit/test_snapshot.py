"""Snapshots of an engine: their content, their layout, and bytes that are no snapshot."""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import json
import textwrap
import zlib
from enum import IntEnum, StrEnum
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint.backends.sqlite import snapshot
from queuehint.backends.sqlite.snapshot import CLASSES, OMITTED, SCHEMA, fields_of, freeze, pack, thaw
from queuehint.core.engine import Engine, EngineOptions
from queuehint.errors import CorruptStateError
from queuehint.operations import Exchange, Pause
from queuehint.testing.driver import Queue, job
from queuehint.values.policy import Retention
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import note_checked
from tests.each import for_each

LAYOUTS = {
    1: "a2b52578fd5f365d",
    2: "3ac6c6cbde877681",
    3: "3f916395d3397c6b",
    4: "acfd53125ba85986",
    5: "a4d4d1c9c11be183",
    6: "735e76aacbac5ac3",
    7: "4b63537108436fa0",
    8: "0cfee6bd79dcd4d9",
    9: "feec873ffd3a5e3e",
    10: "4c53ce839a6a0180",
    11: "c2984c6db2e860d1",
}
"""The fingerprint of each layout there was. A change of the fields of a class adds a line and raises `SCHEMA`."""


def remembered(cls: type[Any]) -> list[str]:
    """The fields of a class, by its slots or by what its ``__init__`` and those it inherits from assign."""
    fields = fields_of(cls)
    if fields:
        return sorted(fields)
    names = set()
    for base in cls.__mro__[:-1]:
        for method in (vars(base).get("__init__"), vars(base).get("bind")):
            if method is not None:
                for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(method)))):
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                        names.add(node.attr)
    return sorted(names - OMITTED.get(cls, frozenset()))


def test_a_change_of_what_is_remembered_is_a_change_of_the_layout() -> None:
    fields = {cls.__name__: remembered(cls) for cls in CLASSES}
    found = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
    assert LAYOUTS[SCHEMA] == found, "count SCHEMA up, and add the fingerprint of the new layout"
    assert max(LAYOUTS) == SCHEMA


def sample() -> Engine:
    """An engine with some of everything."""
    queue = Queue(
        job("a", ["x"]), job("b", ["x", "y"]), job("c", after=["a"]), job("d", delay_ms=5), budget=1, now_ms=0
    )
    queue.start(1)
    queue.apply(Pause(RecordFilter(path=("x",))))
    return queue.engine


def test_what_is_thawed_freezes_to_the_same_and_has_the_options_it_is_given() -> None:
    engine = sample()
    options = EngineOptions(budget=9, retention=Retention(finished=1))
    again = thaw(pack(freeze(engine)), options)
    assert freeze(again) == freeze(engine)
    again.check()
    assert again.state.options is options
    assert again.table.retention is options.retention
    assert again.token == engine.token


def test_nothing_is_shared_with_the_engine_it_was_made_of() -> None:
    queue = Queue(job("a", ["x"]))
    frozen = freeze(queue.engine)
    again = thaw(pack(frozen), EngineOptions())
    queue.run()
    assert freeze(again) == frozen


def test_many_rows_come_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "ROWS_PER_PART", 10)
    engine = sample()
    parts = list(pack(freeze(engine)))
    assert len(parts) > 5
    assert freeze(thaw(parts, EngineOptions())) == freeze(engine)


def test_what_is_frozen_adds_no_work_for_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "ROWS_PER_PART", 100)
    engine = Queue(*[job(f"j{n}", [f"doc{n}"]) for n in range(200)]).engine
    freeze(engine)
    before = len(gc.get_objects())
    frozen = freeze(engine)
    assert len(gc.get_objects()) - before < 50, "each of its passes stops all threads"
    assert len(frozen.rows) > 1_000


def test_results_that_are_no_text_are_kept() -> None:
    queue = Queue(job("a", arguments=b"\xff\x00"))
    queue.start()
    queue.settle("a", result=b"\xfe")
    again = thaw(pack(freeze(queue.engine)), EngineOptions())
    found = again.table.jobs["a"]
    assert (found.spec.arguments, found.result) == (b"\xff\x00", b"\xfe")


def test_dead_entries_of_heaps_are_left_out() -> None:
    queue = Queue(*[job(f"j{n}", delay_ms=9) for n in range(40)], now_ms=0)
    whole = sum(map(len, pack(freeze(queue.engine))))
    queue.cancel(*[f"j{n}" for n in range(40)])
    queue.wait(10**12)
    assert queue.is_clean
    assert sum(map(len, pack(freeze(queue.engine)))) < whole / 2


class Team(StrEnum):
    """Users, as an application may define them."""

    RED = "red"


class Level(IntEnum):
    """How urgent it is, as an application may write it."""

    HIGH = 2


def test_what_users_made_of_texts_and_numbers_is_kept_without_its_class() -> None:
    # No operation takes them; a store of an earlier release may hold some.
    spec = note_checked(job(Team.RED, [Team.RED], user=Team.RED, pool=Team.RED, priority=Level.HIGH))
    queue = Queue(spec, now_ms=0)
    thawed = thaw(pack(freeze(queue.engine)), EngineOptions())
    kept = thawed.table.jobs["red"].spec
    assert kept == queue.engine.table.jobs["red"].spec
    assert {type(each) for each in (kept.id, kept.user, kept.pool, *kept.claims[0].path)} == {str}
    assert type(kept.priority) is int
    (grant,) = thawed.apply(Exchange("w", limit=1, pools=("red",), users=("red",)), 1).grants
    assert grant.spec.id == "red"


def test_an_object_of_no_known_class_is_refused() -> None:
    engine = Engine()
    engine.table.leftovers.append(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an engine is not known to hold a object"):
        freeze(engine)


# --- what is no snapshot ---------------------------------------------------------------------------------------------


def packed(*parts: Any) -> list[bytes]:
    return [zlib.compress(json.dumps(part).encode()) for part in parts]


@for_each(
    "parts",
    [
        [],
        [b""],
        [b"no"],
        packed([]),
        packed([["Nobody"]], [[0]]),
        packed([["list"]], [[0]]),
        packed([["list"]], [[0, [7]]]),
        packed([["list"]], [[3]]),
        packed([["tuple"]], [[0, [0]]]),
        packed([["Node", "held"]], [[0, 1]]),
        packed([["Engine", "table"]], [[0, 1]]),
        packed([["Engine"], ["dict"]], [[0], [1, 1]]),
        packed([["JobState"]], [[0, "?"]]),
    ],
)
def test_what_is_no_snapshot_is_said_to_be_damaged(parts: list[bytes]) -> None:
    with pytest.raises(CorruptStateError):
        thaw(parts, EngineOptions())


PARTS = list(pack(freeze(sample())))


@given(st.randoms(use_true_random=False))
def test_a_snapshot_with_changed_bytes_is_said_to_be_damaged(random: Random) -> None:
    parts = list(PARTS)
    which = random.randrange(len(parts))
    at = random.randrange(len(parts[which]))
    changed = bytearray(parts[which])
    changed[at] ^= 1 << random.randrange(8)
    parts[which] = bytes(changed)
    try:
        again = thaw(parts, EngineOptions())
    except CorruptStateError:
        return
    # Some bits of the packing mean nothing.
    assert freeze(again) == freeze(sample())


def test_frozen_values_are_compared_whole() -> None:
    frozen = freeze(sample())
    assert attrs.evolve(frozen, parts=frozen.parts[:-1]) != frozen
