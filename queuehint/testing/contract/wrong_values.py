"""The rule of field types: an operation with a wrong value in any field is refused without effect."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, cast, get_args, get_origin, get_type_hints

import attrs
import pytest

from queuehint import JobState, operations
from queuehint.errors import InvalidHintError, InvalidJobError, PayloadError
from queuehint.operations import Operation
from queuehint.testing.driver import job
from queuehint.values.event import EventFilter, EventKind
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import JobError, Outcome, OutcomeKind, Progress
from queuehint.values.policy import Backoff, Policy
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import Dependency, JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.testing.contract.store import Store

SAMPLE: Final = 400
"""So many of all wrong operations are tried at every run."""


class _LyingStr(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"liar"


class _LyingInt(int):
    def __str__(self) -> str:
        return "liar"

    __repr__ = __str__


_OBJECTS: Final[dict[type[Any], Any]] = {
    JobSpec: JobSpec(id="new", task="t", claims=(Claim(("x",)),)),
    Outcome: Outcome(job_id="a", token=1, kind=OutcomeKind.FAILED, error=JobError(type="E", message="no")),
    JobError: JobError(type="E", message="no"),
    Progress: Progress(1.0, 2.0, "note"),
    operations.Note: operations.Note("a", 1, ("line",), Progress(1.0, 2.0, "note"), b"1"),
    Limit: Limit(path=("x",), most=1),
    Recurrence: Recurrence(every_ms=1000),
    EventFilter: EventFilter(kinds=(EventKind.FAILED,), path=("x",)),
    RecordFilter: RecordFilter(path=("x",), states=(JobState.FAILED,)),
    operations.Firing: operations.Firing("s", 1, 1, 2),
    operations.Closing: operations.Closing(("x",)),
    Claim: Claim(("x",)),
    Dependency: Dependency("a"),
    Policy: Policy(),
    Backoff: Backoff(),
}
_WRONG: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 2**200, 2.5, float("nan"), "", "a", "\ud800", b"x", "x" * 100_000, [], ["a"], {}, {"a"}, (),
    ("a",), (1,), ([],), ("\ud800",), _LyingStr("a"), (_LyingStr("a"),), _LyingInt(1), object(), OutcomeKind.FAILED,
    JobState.FAILED,
)  # fmt: skip
"""Values tried in each field; those that are valid there are left out."""


def _example(hint: Any, name: str) -> Any:
    """Return a value that an annotation allows."""
    if hint in _OBJECTS:
        return _OBJECTS[hint]
    kinds = get_args(hint)
    if get_origin(hint) is tuple:
        item = _example(kinds[0], name)
        return (item,) if kinds[-1] is Ellipsis else tuple([_example(kind, name) for kind in kinds])
    if get_origin(hint) is not None and str not in map(type, kinds):
        return None if type(None) in kinds else _example(kinds[0], name)
    plain = {str: "a", int: 1, bool: False, bytes: b"1", float: 1.0}
    return plain[hint] if hint in plain else kinds[0] if kinds else hint


def _allows(hint: Any, value: Any) -> bool:
    """Return whether an annotation allows a value, by its types alone."""
    kinds, origin = get_args(hint), get_origin(hint)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        if kinds[-1] is Ellipsis:
            return all(_allows(kinds[0], item) for item in value)
        return len(value) == len(kinds) and all(map(_allows, kinds, value))
    if kinds and all(isinstance(kind, str) for kind in kinds):
        return type(value) is str and value in kinds
    if kinds:
        return any(_allows(kind, value) for kind in kinds)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is (type(None) if hint is None else hint)


def _unfit(value: Any) -> bool:
    """Return whether no field may hold a value, whatever its type."""
    if type(value) is tuple:
        return any(map(_unfit, value))
    if type(value) is str:
        return "\ud800" in value
    return type(value) in (int, float) and not -(2.0**150) < value < 2.0**150


def _each(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of a field, its type, and the value with a wrong value in that field."""
    hints = get_type_hints(type(value))
    for field in attrs.fields(type(value)):
        if not field.init:
            continue
        for wrong in _WRONG:
            if not _allows(hints[field.name], wrong) or _unfit(wrong):
                yield field.name, wrong, _with(value, field.name, wrong)
        held = getattr(value, field.name)
        inner = held[0] if type(held) is tuple and held else held
        if type(inner) in _OBJECTS:
            for name, wrong, unfit in _each(inner):
                yield f"{field.name}.{name}", wrong, _with(value, field.name, (unfit,) if inner is not held else unfit)


def _with(value: Any, name: str, wrong: Any) -> Any:
    """Return a copy of a value with another field, without its own checks."""
    other = object.__new__(type(value))
    for field in attrs.fields(type(value)):
        object.__setattr__(other, field.name, wrong if field.name == name else getattr(value, field.name))
    return other


def right_operations() -> Iterator[Operation[Any]]:
    """Yield an operation of each kind, of which each tuple holds something, and each number, each token too, is 1."""
    for kind in operations.KINDS:
        hints, cls = get_type_hints(kind), cast("type[Any]", kind)
        yield cls(**{field.name: _example(hints[field.name], field.name) for field in attrs.fields(cls)})


def wrong_operations() -> Iterator[tuple[str, Operation[Any]]]:
    """Yield each operation with each wrong value in each field, and a name of the case."""
    for right in right_operations():
        for name, _, operation in _each(right):
            yield f"{type(right).__name__}.{name}", operation


def _refuse(store: Store, wrong: list[tuple[str, Operation[Any]]]) -> None:
    """Check that wrong operations are refused by name, and that nothing has changed."""
    store.enqueue(job("a", ["x"]), job("b", ["x"]))
    store.start(1)
    before = store.everything()
    for name, operation in wrong:
        with pytest.raises((InvalidJobError, InvalidHintError, PayloadError)) as caught:
            store.apply(operation)
        assert str(caught.value).startswith(name.partition(".")[0]), name
    assert store.everything() == before


class WrongValues:
    """An operation with a wrong type in a field is refused with the name of the field, without effect."""

    def test_malformed_fields_are_refused_and_change_nothing(self, store: Store) -> None:
        wrong = list(wrong_operations())
        _refuse(store, random.Random(1).sample(wrong, SAMPLE))

    @pytest.mark.nightly
    def test_malformed_fields_at_length_are_refused_and_change_nothing(self, store: Store) -> None:
        _refuse(store, list(wrong_operations()))

    @pytest.mark.parametrize("token", [None, "1", b"", "garbage", 1.0])
    def test_a_token_of_another_type_is_refused(self, store: Store, token: Any) -> None:
        store.enqueue(job("a"))
        store.start()
        before = store.everything()
        outcome = store.outcome("a")
        object.__setattr__(outcome, "token", token)
        with pytest.raises(InvalidJobError, match=r"^Exchange\.settle\.token must be int, got "):
            store.exchange(outcome)
        assert store.everything() == before
