"""The digest of what the handlers of a release can read."""

from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict

import attrs
import pytest

from queuehint.handlers.conversion.digest import digest_of
from queuehint.handlers.handler import Handler
from tests.each import for_each

if TYPE_CHECKING:  # That it is gone when tests run is what is tested.
    from nowhere import OnlyForTypeCheckers  # type: ignore[import-not-found,unused-ignore]


class Colour(enum.Enum):
    RED = "red"


class MoreColours(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Price:
    cents: int
    of: Optional[Price] = None  # noqa: UP045 - resolved in every release of Python


@attrs.frozen
class PriceInCurrency:
    cents: int
    currency: str
    of: Optional[Price] = None  # noqa: UP045


@dataclasses.dataclass
class Point:
    x: int


@dataclasses.dataclass
class Point3:
    x: int
    z: int = 0


class Row(TypedDict):
    name: str


class LongRow(TypedDict):
    name: str
    note: NotRequired[str]


class Pair(NamedTuple):
    a: int


class Triple(NamedTuple):
    a: int
    b: int = 0


for later, earlier in {MoreColours: Colour, PriceInCurrency: Price, Point3: Point, LongRow: Row, Triple: Pair}.items():
    # The class of a later release has the name of the earlier one.
    later.__qualname__ = earlier.__qualname__


def of(annotation: Any, **options: Any) -> str:
    def work(value: Any) -> None: ...

    work.__annotations__["value"] = annotation
    return digest_of({"work": Handler("work", work, **options)})


def test_digest_is_sixteen_hexadecimal_digits() -> None:
    assert len(of(int)) == 16
    assert int(of(int), 16) >= 0


@for_each(
    "annotation",
    [int, Colour, Price, Point, Row, Pair, Literal["a", "b"], list[Price], Price | None, dict[str, Colour]],
)
def test_same_annotation_has_the_same_digest(annotation: Any) -> None:
    assert of(annotation) == of(annotation)


PAIRS = [
    (int, str),
    (Colour, MoreColours),
    (Price, PriceInCurrency),
    (Point, Point3),
    (Row, LongRow),
    (Pair, Triple),
    (Literal["a"], Literal["a", "b"]),
    (Literal[1], Literal["1"]),
    (Literal[Colour.RED], Literal[MoreColours.BLUE]),
    (Price, Price | None),
    (Price | Point, Price | Point3),
]


@for_each("pair", PAIRS)
def test_other_values_of_an_annotation_change_the_digest(pair: tuple[Any, Any]) -> None:
    one, other = pair
    assert of(one) != of(other)
    assert of(list[one]) != of(list[other])  # type: ignore[valid-type]
    assert of(dict[str, tuple[int, one]]) != of(dict[str, tuple[int, other]])  # type: ignore[valid-type]


def test_order_of_a_union_does_not_change_the_digest() -> None:
    assert of(int | str | None) == of(None | str | int)
    assert of(Literal["a", "b"]) == of(Literal["b", "a"])


def test_model_of_pydantic_with_another_field_changes_the_digest() -> None:
    pydantic = pytest.importorskip("pydantic")

    def model(**fields: Any) -> Any:
        return pydantic.create_model("Model", **fields)

    digests = {
        of(model(a=(int, ...))),
        of(model(a=(int, 0))),
        of(model(a=(Colour, ...))),
        of(model(a=(MoreColours, ...))),
        of(model(a=(int, ...), b=(int, 0))),
        of(model(a=(int, pydantic.Field(validation_alias="b")))),
        of(model(__config__=pydantic.ConfigDict(extra="allow"), a=(int, ...))),
    }
    assert len(digests) == 7
    assert of(model(a=(int, ...))) == of(model(a=(int, ...)))


def test_parameters_tasks_aliases_and_upgrades_change_the_digest() -> None:
    def one(a: int) -> None: ...

    def optional(a: int = 0) -> None: ...

    def more(a: int, b: int = 0) -> None: ...

    def keyword(*, a: int) -> None: ...

    def handler(function: Callable[..., None], upgrade: Any = None) -> Handler:
        return Handler("one", function, upgrade=upgrade)

    plain = handler(one)
    every = [
        {},
        {"one": plain},
        {"uno": plain},
        {"one": plain, "uno": plain},
        {"one": plain, "two": handler(more)},
        {"one": handler(optional)},
        {"one": handler(more)},
        {"one": handler(keyword)},
        {"one": handler(one, lambda arguments: {"a": arguments["b"]})},
        {"one": handler(one, lambda arguments: {"a": arguments["c"]})},
    ]
    assert len({digest_of(handlers) for handlers in every}) == len(every)
    assert digest_of({"two": plain, "one": plain}) == digest_of({"one": plain, "two": plain})


def test_unresolved_annotation_is_known_by_its_text() -> None:
    def late(thing: OnlyForTypeCheckers) -> None: ...  # type: ignore[no-any-unimported,unused-ignore]

    assert digest_of({"late": Handler("late", late)}) == digest_of({"late": Handler("late", late)})


PROGRAM = """
import enum, typing
import attrs
from queuehint.handlers.conversion.digest import digest_of
from queuehint.handlers.handler import Handler

class Colour(enum.Enum):
    RED = "red"
    BLUE = object()

@attrs.frozen
class Price:
    cents: int
    colours: dict[str, Colour] | None | typing.Literal["a", "b", "c"] = None

class Opaque:
    pass

def work(price: Price, names: typing.Annotated[set[str], Opaque(), frozenset("abcdef")], n: Opaque = Opaque()):
    ...

def upgrade(arguments):
    return arguments if arguments["a"] in {"x", "y", "z"} else [lambda: n for n in arguments]

print(digest_of({"work": Handler("work", work, upgrade=upgrade)}))
"""


@pytest.mark.slow
def test_digest_is_the_same_in_every_process() -> None:
    found = set()
    for seed in ("0", "1", "42"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=30, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1
