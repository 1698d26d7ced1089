"""Snapshots of an engine: their content, their layout, and bytes that are no snapshot."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
import zlib
from base64 import b64encode
from enum import IntEnum, StrEnum
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint.backends.journal.snapshots import freezing
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.backends.journal.snapshots.snapshot import CLASSES, OMITTED, SCHEMA, fields_of
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.structures.heap import LazyHeap
from queuehint.core.structures.trie import Node
from queuehint.errors import CorruptStateError
from queuehint.operations import Exchange, Pause
from queuehint.testing.driver import Queue, job
from queuehint.values.policy import Retention
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import note_checked
from tests.each import for_each
from tests.snapshots import read, rows_of, thawed

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
    12: "c2984c6db2e860d1",
    13: "4544ed1369969d72",
    14: "255d5e27954dbb59",
    15: "15cdf6e40ede3553",
    16: "15cdf6e40ede3553",
}
"""The fingerprint of each layout there was. A change of the fields of a class adds a line and raises `SCHEMA`, as
another way of writing does."""


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


def test_change_of_snapshot_fields_requires_a_new_layout() -> None:
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


def test_thawed_engine_freezes_to_the_same_rows_with_given_options() -> None:
    engine = sample()
    options = EngineOptions(budget=9, retention=Retention(finished=1))
    again = thawed(engine, options)
    assert list(freeze(again)) == list(freeze(engine))
    again.check()
    assert again.state.options is options
    assert again.table.retention is options.retention
    assert again.token == engine.token


def test_nothing_is_shared_with_the_engine_it_was_made_of() -> None:
    queue = Queue(job("a", ["x"]))
    frozen = list(freeze(queue.engine))
    again = read(frozen)
    queue.run()
    assert list(freeze(again)) == frozen


def test_many_rows_come_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "ROWS_PER_PART", 10)
    engine = sample()
    parts = list(freeze(engine))
    assert len(parts) > 5
    assert list(freeze(read(parts))) == parts


def test_snapshot_stores_each_object_as_a_difference_within_its_class() -> None:
    alike = Queue(*[job(f"j{n}", ["doc"]) for n in range(1_000)]).engine
    assert sum(map(len, freeze(alike))) < 50 * 1_000
    names = [name for name, _ in rows_of(alike)]
    assert names.count("JobSpec") == 1_000
    assert not {"tuple", "bytes", "Claim"} & {*names}


def test_equal_texts_and_claims_are_shared_after_reading() -> None:
    again = thawed(Queue(job("first", ["doc1", "intro"]), job("second", ["doc1", "intro"])).engine)
    first, second = again.table.jobs["first"].spec, again.table.jobs["second"].spec
    assert first.claims is second.claims
    assert next(iter(again.table.jobs)) is first.id


def test_results_that_are_no_text_are_kept() -> None:
    queue = Queue(job("a", arguments=b"\xff\x00"))
    queue.start()
    queue.settle("a", result=b"\xfe")
    again = thawed(queue.engine)
    found = again.table.jobs["a"]
    assert (found.spec.arguments, found.result) == (b"\xff\x00", b"\xfe")


def test_dead_entries_of_heaps_are_left_out() -> None:
    queue = Queue(*[job(f"j{n}", delay_ms=9) for n in range(40)], now_ms=0)
    whole = sum(map(len, freeze(queue.engine)))
    queue.cancel(*[f"j{n}" for n in range(40)])
    queue.wait(10**12)
    assert queue.is_clean
    assert sum(map(len, freeze(queue.engine))) < whole / 2


class Team(StrEnum):
    """Users, as an application may define them."""

    RED = "red"


class Level(IntEnum):
    """How urgent it is, as an application may write it."""

    HIGH = 2


def test_snapshot_stores_user_subclasses_as_plain_values() -> None:
    # No operation takes them; a store of an earlier release may hold some.
    spec = note_checked(job(Team.RED, [Team.RED], user=Team.RED, pool=Team.RED, priority=Level.HIGH))
    queue = Queue(spec, now_ms=0)
    again = thawed(queue.engine)
    kept = again.table.jobs["red"].spec
    assert kept == queue.engine.table.jobs["red"].spec
    assert {type(each) for each in (kept.id, kept.user, kept.pool, *kept.claims[0].path)} == {str}
    assert type(kept.priority) is int
    (grant,) = again.apply(Exchange("w", limit=1, pools=("red",), users=("red",)), 1).grants
    assert grant.spec.id == "red"


def test_values_that_are_equal_and_of_other_types_keep_them() -> None:
    engine = Engine()
    heaps = [LazyHeap[str](), LazyHeap[str]()]
    heaps[1]._serial = False
    engine.table.leftovers.extend(heaps)  # type: ignore[arg-type]
    kept: list[Any] = [*thawed(engine).table.leftovers]
    assert [type(each._serial) for each in kept] == [int, bool]


def test_an_object_of_no_known_class_is_refused() -> None:
    engine = Engine()
    engine.table.leftovers.append(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an engine is not known to hold a object"):
        list(freeze(engine))


# --- what is no snapshot ---------------------------------------------------------------------------------------------


def packed(*parts: Any) -> list[bytes]:
    return [zlib.compress(json.dumps(part).encode()) for part in parts]


def said(*kinds: Any, shapes: Any = (), heads: Any = (), rows: bytes = b"") -> Any:
    """A description."""
    return [kinds, shapes, heads, b64encode(zlib.compress(rows)).decode()]


NODE = ["Node", [*fields_of(Node)], [1] * len(fields_of(Node))]


@for_each(
    "parts",
    [
        [b""],
        [b"no"],
        packed([]),
        packed(said()),
        packed(said(rows=b"\0")),
        packed(said(["Nobody"], rows=b"\0")),
        packed([[-1]], said(["list"], rows=b"\0")),
        packed([[-1, [7]]], said(["list"], rows=b"\0")),
        packed([[-1, [-9]]], said(["list"], rows=b"\0")),
        packed([[-1, [-2, "255d5e27954dbb59"]]], said(["list"], rows=b"\0")),
        packed([[-2]], said(["list"], rows=b"\0")),
        packed([[3]], said(["list"], rows=b"\0")),
        packed([[-1], [-1]], said(["list"], rows=b"\0")),
        packed([[0, 1]], said(["Node", ["held"], [1]], shapes=[[0, 0]], rows=b"\0")),
        packed([[0, 1]], said(NODE, shapes=[[0]], rows=b"\0")),
        packed([[-1, 1]], said(NODE, rows=b"\0")),
        packed([[-1, 1]], said(["dict"], rows=b"\0")),
        packed([[-1]], said(["JobState"], heads=[[0, "255d5e27954dbb59"]], rows=b"\0")),
        packed([[-1]], said(["JobState"], rows=b"\0")),
    ],
)
def test_malformed_snapshot_is_reported_as_damage(parts: list[bytes]) -> None:
    with pytest.raises(CorruptStateError):
        read(parts)


PARTS = list(freeze(sample()))


@given(st.randoms(use_true_random=False))
def test_a_snapshot_with_changed_bytes_is_said_to_be_damaged(random: Random) -> None:
    parts = list(PARTS)
    which = random.randrange(len(parts))
    at = random.randrange(len(parts[which]))
    changed = bytearray(parts[which])
    changed[at] ^= 1 << random.randrange(8)
    parts[which] = bytes(changed)
    try:
        again = read(parts)
    except CorruptStateError:
        return
    # Some bits of the packing mean nothing.
    assert list(freeze(again)) == PARTS
