"""Models of pydantic as arguments and results: what comes back as it was, and why another one is refused."""

from __future__ import annotations

import datetime as dt
import enum
import json
from typing import Annotated, Any, Literal

import attrs
import pytest

from queuehint import JsonCodec, PayloadError, UnknownToReleaseError
from tests.each import for_each

pydantic = pytest.importorskip("pydantic")
MAX = 1 << 20


class Model(pydantic.BaseModel):  # type: ignore[name-defined, misc, unused-ignore]
    """Of which all models of these tests are."""


class Colour(enum.Enum):
    RED = "red"


class Insert(Model):
    kind: Literal["insert"] = "insert"
    text: str


class Delete(Model):
    kind: Literal["delete"] = "delete"
    count: int


class Strict(Model):
    model_config = pydantic.ConfigDict(strict=True)
    at: dt.datetime
    colour: Colour = Colour.RED


class Secret(Model):
    token: pydantic.SecretStr  # type: ignore[name-defined, unused-ignore]


class Excluded(Model):
    inner: int = pydantic.Field(default=0, exclude=True)


class Split(Model):
    doc: str = pydantic.Field(validation_alias=pydantic.AliasChoices("docId", "document"))


class Renamed(Model):
    doc: str = pydantic.Field(serialization_alias="docId")


class Private(Model):
    shown: int = 0
    _hidden: int = pydantic.PrivateAttr(default=0)


class Outer(Model):
    edits: list[Insert | Delete] = []  # noqa: RUF012 - pydantic copies it
    by_name: dict[str, Insert] = {}  # noqa: RUF012
    only: Annotated[Insert | Delete, pydantic.Field(discriminator="kind")] | None = None


class Ignoring(Insert):
    model_config = pydantic.ConfigDict(extra="ignore")


class Allowing(Insert):
    model_config = pydantic.ConfigDict(extra="allow")


class Migrating(Model):
    text: str

    @pydantic.model_validator(mode="before")  # type: ignore[untyped-decorator, unused-ignore]
    @classmethod
    def migrate(cls, data: Any) -> Any:
        return {"text": data["old"]} if "old" in data else data


class Populated(Model):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    text: str = pydantic.Field(alias="textOf")


@pydantic.dataclasses.dataclass
class Record:
    text: str


@attrs.frozen
class Holder:
    edit: Insert | None
    edits: tuple[Delete, ...] = ()


def dumps(value: Any, annotation: Any) -> bytes:
    return JsonCodec().dumps({"a": value}, {"a": annotation}, bytes_max=MAX)


def loads(written: Any, annotation: Any) -> Any:
    return JsonCodec().loads(json.dumps({"a": written}).encode(), {"a": annotation})["a"]


MADE: Any = Record
RECORD = MADE(text="a")
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


@for_each(
    "case",
    [
        (Insert(text="a"), Insert),
        (Strict(at=NOON), Strict),
        (Delete(count=3), Insert | Delete),
        (Delete(count=3), Annotated[Insert | Delete, pydantic.Field(discriminator="kind")]),
        ([Insert(text="a"), Delete(count=3)], list[Insert | Delete]),
        (None, Insert | None),
        ("text", Insert | str),
        ([Insert(text="a")], Insert | list[Insert]),
        (Outer(edits=[Delete(count=1)], by_name={"x": Insert(text="y")}, only=Delete(count=2)), Outer),
        (Excluded(), Excluded),
        (Private(), Private),
        (Ignoring(text="a"), Ignoring),
        (Allowing(text="a", more=1), Allowing),
        (Migrating(text="a"), Migrating),
        (Populated(textOf="a"), Populated),
        (RECORD, Record),
        (Holder(Insert(text="a"), (Delete(count=1),)), Holder),
        (pydantic.RootModel[list[Insert]]([Insert(text="a")]), pydantic.RootModel[list[Insert]]),
        (pydantic.HttpUrl("https://example.org/"), pydantic.HttpUrl),
    ],
)
def test_model_comes_back_as_it_was(case: tuple[Any, Any]) -> None:
    value, annotation = case
    payload = dumps(value, annotation)
    read = JsonCodec().loads(payload, {"a": annotation})["a"]
    assert (type(read), read) == (type(value), value)


def hidden() -> Private:
    value = Private()
    value._hidden = 7
    return value


@for_each(
    "case",
    [
        (
            Secret(token="s3cret"),
            Secret,
            "$.a.token: Secret cannot be written as Secret: Secret.token is a secret, and written",
        ),
        (
            pydantic.SecretStr("s3cret"),
            pydantic.SecretStr,
            "$.a: SecretStr cannot be written as SecretStr: SecretStr is a secret",
        ),
        (Excluded(inner=1), Excluded, "$.a.inner: Excluded cannot be written as Excluded: Excluded.inner is left out"),
        (
            Split(docId="x"),
            Split,
            "$.a: Split cannot be written as Split: Split.doc is written as 'doc' and read as 'docId', 'doc",
        ),
        (Renamed(doc="x"), Renamed, "Renamed.doc is written as 'docId' and read as 'doc': give it one alias for both"),
        (hidden(), Private, "$.a._hidden: Private cannot be written as Private: private attributes of Private are not"),
        ([Secret(token="s3cret")], list[Secret], "$.a[0].token: list cannot be written as list["),
        ({"text": "a"}, Insert, "$.a: dict cannot be written as Insert"),
        (Delete(count=1), Insert, "$.a: Delete cannot be written as Insert"),
        (Allowing(text="a"), Insert, "$.a: Allowing cannot be written as Insert: it would be read as another value"),
    ],
)
def test_model_that_does_not_round_trip_is_refused_by_name(case: tuple[Any, Any, str]) -> None:
    value, annotation, said = case
    with pytest.raises(PayloadError) as caught:
        dumps(value, annotation)
    assert said in str(caught.value)
    assert type(caught.value) is PayloadError
    assert "s3cret" not in str(caught.value)


class Odd(Model):
    """Has fields that would not be read back, beside one that is to blame."""

    count: int
    token: pydantic.SecretStr | None = None  # type: ignore[name-defined, unused-ignore]
    inner: int = pydantic.Field(default=1, exclude=True)
    _hidden: int = 1

    @pydantic.field_validator("count")  # type: ignore[untyped-decorator, unused-ignore]
    @classmethod
    def add(cls, count: int) -> int:
        return count + 1


def odd(**given: Any) -> Odd:
    value = Odd(count=1, **{name: it for name, it in given.items() if name != "hidden"})
    value.count, value._hidden = 0, given.get("hidden", 1)
    return value


@for_each(
    "case",
    [
        (odd(), Odd, "$.a.count: Odd cannot be written as Odd: it would be read as another value"),
        (odd(token="s3cret"), Odd, "$.a.count: Odd cannot be written as Odd: it would be read as another value"),
        ([odd()], list[Odd | Secret], "[0].count: list cannot be written as list["),
        (Odd.model_construct(count="x"), Odd, "$.a: Odd cannot be written as Odd: cannot be read as Odd: count (int_"),
        (hidden(), Private | Secret, "private attributes of Private are not written"),
    ],
)
def test_refusal_of_a_model_names_only_the_faulty_field(case: tuple[Any, Any, str]) -> None:
    value, annotation, said = case
    with pytest.raises(PayloadError) as caught:
        dumps(value, annotation)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value).partition(": ")[2].replace("Secret]", "")
    assert "is left out" not in str(caught.value)


MORE = {"kind": "insert", "text": "a", "more": 1}


@for_each(
    "case",
    [
        (MORE, Insert, "unknown fields of Insert"),
        (MORE, Insert | None, "unknown fields of Insert"),
        ([MORE], list[Insert | Delete], "unknown fields of Insert"),
        (MORE, Annotated[Insert | Delete, pydantic.Field(discriminator="kind")], "unknown fields of Insert"),
        ({"edits": [MORE]}, Outer, "unknown fields of Insert"),
        ({"by_name": {"x": MORE}}, Outer, "unknown fields of Insert"),
        ({"only": MORE}, Outer, "unknown fields of Insert"),
        ({"text": 7, "more": 1}, Insert, "unknown fields of Insert"),
        ({"text": "a", "more": 1}, Record, "unknown fields"),
        ({"edit": MORE, "edits": []}, Holder, "unknown fields of Insert @ $.a.edit"),
        ({"textOf": "a", "other": 1}, Populated, "unknown fields of Populated"),
        ({"kind": "move"}, Annotated[Insert | Delete, pydantic.Field(discriminator="kind")], "union_tag_invalid"),
        ({"kind": "move", "text": "a"}, Insert | Delete, "literal_error"),
        ({"kind": "move", "text": "a"}, Insert, "literal_error"),
        ({"at": NOON.isoformat(), "colour": "blue"}, Strict, "colour (enum)"),
        ([MORE], pydantic.RootModel[list[Insert]], "unknown fields of Insert"),
    ],
)
def test_model_of_a_later_release_is_unknown_to_this_one(case: tuple[Any, Any, str]) -> None:
    written, annotation, said = case
    with pytest.raises(UnknownToReleaseError) as caught:
        loads(written, annotation)
    assert said in str(caught.value)


@for_each(
    "case",
    [
        ({"kind": "insert"}, Insert),
        ({"kind": "insert"}, Insert | Delete),
        ({"kind": "insert", "text": 7}, Insert | Delete),
        ({"kind": 7, "text": "a"}, Strict),
        (5, Insert | Delete),
        ({"at": "x"}, Strict),
        ({"at": NOON.isoformat(), "colour": []}, Strict),
        ({"edits": [{"kind": "delete", "count": "many"}]}, Outer),
    ],
)
def test_model_of_a_wrong_type_differs_from_a_later_release(case: tuple[Any, Any]) -> None:
    written, annotation = case
    with pytest.raises(PayloadError) as caught:
        loads(written, annotation)
    if annotation is not Strict or "kind" not in written:
        assert type(caught.value) is PayloadError
    assert "many" not in str(caught.value)


@for_each(
    "case",
    [
        (MORE, Ignoring, Ignoring(text="a")),
        (MORE, Allowing, Allowing(text="a", more=1)),
        ({"old": "a"}, Migrating, Migrating(text="a")),
        ({"text": "a"}, Populated, Populated(textOf="a")),
    ],
)
def test_class_with_own_reader_is_used_as_is(case: tuple[Any, Any, Any]) -> None:
    written, annotation, value = case
    assert loads(written, annotation) == value
