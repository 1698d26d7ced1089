"""Values of random annotations: what is accepted arrives equal and of the same type, all else is refused."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import datetime as dt
import enum
import pathlib
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict, Union

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import HandlerError, JsonCodec, PayloadError, Scheduler
from queuehint.handlers.handler import Handler
from tests.each import for_each

pydantic = pytest.importorskip("pydantic")

CODEC = JsonCodec()


class Colour(enum.Enum):
    RED = "red"
    DAY = "2026-01-02"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    NUMBER = 1.5
    NOTHING = None


@attrs.frozen
class Row:
    number: int
    price: Decimal
    tags: frozenset[str]


@attrs.define
class Node:
    at: dt.datetime | None
    below: list[Node]
    _mark: Colour = Colour.RED
    kind: Literal["node"] = "node"


@attrs.define
class Leaf:
    at: dt.datetime | None
    below: list[Node]
    _mark: Colour = Colour.RED
    kind: Literal["leaf"] = "leaf"


@dataclasses.dataclass
class Point:
    x: float
    y: int | None = None
    seen: set[int] = dataclasses.field(default_factory=set)


class Entry(TypedDict):
    name: str
    at: NotRequired[dt.date]


class Pair(NamedTuple):
    one: uuid.UUID
    other: bytes = b""


class Plain(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    kind: Literal["plain"] = "plain"
    at: dt.datetime | None = None
    colour: Colour
    names: set[str]


class Aliased(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    kind: Literal["aliased"] = "aliased"
    number: int = pydantic.Field(alias="numberOf")
    inner: Plain | None = None


class Masked(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    token: pydantic.SecretStr  # type: ignore[name-defined, unused-ignore]
    hidden: int = pydantic.Field(default=0, exclude=True)


Sku = NewType("Sku", str)
LEAVES: list[Any] = [
    *[type(None), str, int, float, bool, object, bytes, dt.date, dt.datetime, dt.time, dt.timedelta, Decimal],
    *[uuid.UUID, Sku, Colour, Level, Word, Access, Odd, Row, Node, Leaf, Point, Entry, Pair, Plain, Aliased, Masked],
    *[Literal["a", "b"], Literal[1, True] | None, Literal[Colour.RED, "red"], Literal[Level.LOW], Literal[b"x"]],
    *[Annotated[int, "of something"], pathlib.Path, list, dict, set, tuple, pydantic.SecretStr, complex],
]
for kind in (Row, Node, Leaf):
    attrs.resolve_types(kind)  # for Hypothesis


def union(*members: Any) -> Any:
    return Union[members]  # noqa: UP007 - made of as many as there are


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    one = [list, set, frozenset, collections.deque, collections.abc.Sequence, collections.abc.Iterable]
    one += [collections.abc.Set, collections.abc.Collection, collections.abc.MutableSequence]
    keys = st.sampled_from([str, int, float, uuid.UUID, dt.date, Colour, Level, bool, bytes, Sku])
    maps = [dict, collections.abc.Mapping, collections.defaultdict, collections.OrderedDict]
    return st.one_of(
        st.builds(lambda kind, item: kind[item], st.sampled_from(one), inner),
        st.builds(lambda kind, key, item: kind[key, item], st.sampled_from(maps), keys, inner),
        st.builds(lambda item: tuple.__class_getitem__((item, ...)), inner),
        st.builds(lambda items: tuple.__class_getitem__(tuple(items)), st.lists(inner, max_size=3)),
        st.builds(lambda item: union(item, None), inner),
        st.builds(lambda items: union(*items), st.lists(inner, min_size=1, max_size=4)),
        st.builds(lambda items: union(*items), st.lists(st.sampled_from(LEAVES), min_size=2, max_size=3)),
    )


def is_hashable(annotation: Any) -> bool:
    try:
        hash(annotation)
    except TypeError:
        return False
    return True


ANNOTATIONS = st.recursive(st.sampled_from(LEAVES), containers, max_leaves=4).filter(is_hashable)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    return st.from_type(annotation)


ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
st.register_type_strategy(pathlib.Path, st.builds(pathlib.Path, st.sampled_from(["", "a", "/a/b.txt", "a/../é"])))
st.register_type_strategy(pydantic.SecretStr, st.builds(pydantic.SecretStr, st.text(max_size=3)))
st.register_type_strategy(Masked, st.builds(Masked, token=st.just(pydantic.SecretStr("x")), hidden=st.just(0)))
# As JSON values that are not checked any further: a tuple of them is an array like any other.
JSON = st.recursive(ANYTHING, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner))
st.register_type_strategy(object, JSON)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, and so are their types, all the way down; the naive way."""
    if isinstance(one, tuple) and type(other) is list:
        return list(map(type, one)) == list(map(type, other)) and all(map(same, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and one != one:
        return bool(other != other)
    if attrs.has(type(one)):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in attrs.fields(type(one)))
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, pydantic.BaseModel):
        return one == other and all(same(getattr(one, name), getattr(other, name)) for name in type(one).model_fields)
    if isinstance(one, collections.abc.Mapping):
        return same([*one.keys()], [*other.keys()]) and same([*one.values()], [*other.values()])
    if isinstance(one, (set, frozenset)):
        return one == other and collections.Counter(map(type, one)) == collections.Counter(map(type, other))
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Decimal):
        return repr(one) == repr(other)
    return bool(one == other) or one.isoformat() == other.isoformat()


def declared(annotation: Any) -> Handler | None:
    async def work(value: Any) -> Any: ...

    work.__annotations__.update(value=annotation, **{"return": annotation})
    try:
        return Scheduler("memory://", codec=CODEC).job(work).handler
    except HandlerError:
        return None


@given(st.data())
def test_accepted_value_of_any_annotation_arrives_as_it_was(data: st.DataObject) -> None:
    handler = declared(data.draw(ANNOTATIONS))
    if handler is None:
        return
    value = data.draw(values(handler.annotations["value"]))
    try:
        payload = handler.dumps(CODEC, {"value": value})
    except PayloadError:
        return
    (read,), _ = handler.loads(CODEC, payload)
    assert same(value, read), (value, read)
    result = handler.load_result(CODEC, handler.dump_result(CODEC, value))
    assert same(value, result), (value, result)
    # pydantic writes a set in the order of its hashes.
    assert b"names" in payload or b"seen" in payload or handler.dumps(CODEC, {"value": read}) == payload


@given(ANNOTATIONS, st.data())
def test_value_of_another_annotation_is_refused_or_unchanged(annotation: Any, data: st.DataObject) -> None:
    handler = declared(annotation)
    if handler is None:
        return
    value = data.draw(values(data.draw(st.sampled_from(LEAVES).filter(lambda kind: kind is not complex))))
    check = handler.checks.get("value")
    if check is not None and not check.fits(value):
        return
    try:
        payload = handler.dumps(CODEC, {"value": value})
    except PayloadError:
        return
    (read,), _ = handler.loads(CODEC, payload)
    assert same(value, read) or (isinstance(value, (str, int, float, dict)) and value == read), (value, read)


@given(ANNOTATIONS, JSON)
def test_any_json_is_read_and_written_alike_or_refused(annotation: Any, data: Any) -> None:
    handler = declared(annotation)
    if handler is None:
        return
    try:
        payload = CODEC.dumps({"value": data}, {}, bytes_max=1 << 20)
        (read,), _ = handler.loads(CODEC, payload)
    except PayloadError:
        return
    if handler.checks.get("value") is None:
        handler.dumps(CODEC, {"value": read})


EXACT: list[Any] = [
    *[dt.date | dt.datetime, Row | list[Row], dt.date | dt.time | uuid.UUID | Decimal | None, Node | Leaf, Row | Point],
    *[Colour | dt.datetime, Level | str, Literal["auto"] | dt.timedelta, int | Entry, str | list[Row] | None],
    *[collections.abc.Iterable[str], tuple[int, str], list[Plain | Aliased], Plain | str | list[Plain], Pair | None],
    *[Annotated[Plain | Aliased, pydantic.Field(discriminator="kind")], set[Colour], dict[Level, Row], Plain | Point],
]


@for_each("annotation", EXACT, ids=str)
def test_union_that_can_be_told_apart_is_accepted(annotation: Any) -> None:
    assert declared(annotation) is not None


REFUSED: list[Any] = [
    *[dt.datetime | str, uuid.UUID | str, Colour | str, bytes | str, Word | str, Level | int, Access | int],
    *[dt.timedelta | float, list[Row] | set[Row], Row | dict[str, int], Colour | Literal["red"], bytes | uuid.UUID],
    *[dt.datetime | Any, Plain | Row, pathlib.Path | str, dict[str, dt.datetime | str], dict[int | str, Row]],
    *[complex, list[complex], complex | None, collections.abc.Callable[[int], int], type[int], dict[bool, int]],
    *[Row | attrs.make_class("Twin", ["number", "price", "tags"]), Colour | enum.Enum("Day", {"ONE": "2026-01-02"})],
]


@for_each("annotation", REFUSED, ids=str)
def test_annotation_that_cannot_be_read_is_refused_when_declared(annotation: Any) -> None:
    assert declared(annotation) is None
