"""Arguments and results as JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
import re
import sys
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import JsonCodec, PayloadError, UnknownToReleaseError
from queuehint.handlers.arguments import called
from queuehint.handlers.conversion import plain_json
from queuehint.handlers.conversion.plain_json import check_json, decode_json, encode_json
from tests.each import for_each

MAX = 1 << 20
WAY_OUT = ": annotate it, or register a hook: see JsonCodec.converter"
NO_HOOK = ": annotate another type, or register hooks before the job: see JsonCodec.converter"


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int


@attrs.define
class Op:
    at: int
    text: str
    when: dt.datetime | None = None


def dumps(value: Any, annotation: Any = Any, bytes_max: int = MAX) -> bytes:
    return JsonCodec().dumps({"a": value}, {"a": annotation}, bytes_max=bytes_max)


def loads(payload: bytes, annotation: Any = Any) -> Any:
    return JsonCodec().loads(payload, {"a": annotation})["a"]


def refusal(value: Any, annotation: Any = Any, bytes_max: int = MAX) -> str:
    with pytest.raises(PayloadError) as caught:
        dumps(value, annotation, bytes_max)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 400
    return str(caught.value)


NOT_JSON: list[tuple[Any, str]] = [
    (object(), "object"),
    (lambda: None, "function"),
    (sys.stdout, type(sys.stdout).__name__),
    ({1}, "set"),
    (frozenset(), "frozenset"),
    (b"x", "bytes"),
    (bytearray(), "bytearray"),
    (Decimal(1), "Decimal"),
    (dt.datetime(2020, 1, 1), "datetime"),
    (dt.date(2020, 1, 1), "date"),
    (dt.timedelta(1), "timedelta"),
    (uuid.UUID(int=1), "UUID"),
    (Colour.RED, "Colour"),
    (Point(1, 2), "Point"),
    (Op(1, "x"), "Op"),
    (1j, "complex"),
    (iter(()), "tuple_iterator"),
    ({}.keys(), "dict_keys"),
    (Ellipsis, "ellipsis"),
    (int, "type"),
]


@for_each("value, name", NOT_JSON, ids=[name for _, name in NOT_JSON])
def test_non_json_value_is_refused_with_its_pointer_and_type(value: Any, name: str) -> None:
    assert refusal(value) == f"$.a: {name} is not JSON{WAY_OUT}"
    assert refusal([0, 1, 2, {"b": value}]) == f"$.a[3].b: {name} is not JSON{WAY_OUT}"
    assert refusal(({"b": [value]},)) == f"$.a[0].b[0]: {name} is not JSON{WAY_OUT}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    assert refusal(value) == f"$.a: {value} is not JSON"
    assert refusal({"x": [value]}) == f"$.a.x[0]: {value} is not JSON"
    assert refusal(value, float) == f"$.a: {value} is not JSON"


@pytest.mark.parametrize("key", [1, None, (1, 2), True, 1.5, b"x"])
def test_a_key_that_is_no_str_is_refused(key: Any) -> None:
    message = f"$.a.b: a key is {type(key).__name__}, JSON keys are str{WAY_OUT}"
    assert refusal({"b": {key: 1}}) == message
    assert refusal({"b": {key: 1, str(key): 2}}) == message


def test_a_cycle_is_refused() -> None:
    cycle: list[Any] = [1]
    cycle.append({"x": cycle})
    assert refusal(cycle) == "$.a[1].x: circular reference"
    own: dict[str, Any] = {}
    own["self"] = own
    assert refusal(own) == "$.a.self: circular reference"


def test_the_same_list_twice_is_no_cycle() -> None:
    twice = [1]
    assert loads(dumps([twice, twice, {"x": twice}])) == [[1], [1], {"x": [1]}]


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


def test_64_levels_are_the_limit() -> None:
    assert loads(dumps(nested(64))) == nested(64)
    assert "deeper than 64" in refusal(nested(65))


def test_a_hundred_thousand_levels_are_no_recursion_error() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert "deeper than 64" in refusal(value)
    assert "deeper than 64" in refusal(value, list[Any])
    while value:  # or freeing it would recurse
        value = value[0]


def test_too_deep_json_is_refused() -> None:
    with pytest.raises(PayloadError):
        decode_json(b"[" * 200_000 + b"]" * 200_000)


def test_an_int_that_could_not_be_read_back_is_refused() -> None:
    message = "$.a: int of more than 4300 digits cannot be read back"
    assert refusal(10**5_000) == message
    assert refusal([-(10**5_000)]) == message.replace("$.a", "$.a[0]")
    assert refusal(10**5_000, int) == message
    assert loads(dumps(10**4_000)) == 10**4_000


def test_a_lone_surrogate_is_refused_and_nul_is_kept() -> None:
    message = "$.a: string holds '\\ud800', not encodable as UTF-8"
    assert refusal("x\ud800") == message
    assert refusal(["\ud800"]) == message.replace("$.a", "$.a[0]")
    assert "not encodable as UTF-8" in refusal({"\ud800": 1})
    assert loads(dumps("a\x00b")) == "a\x00b"


def test_the_size_limit_is_exact() -> None:
    payload = dumps("x" * 10)
    assert dumps("x" * 10, bytes_max=len(payload)) == payload
    assert refusal("x" * 11, bytes_max=len(payload)) == f"$: takes {len(payload) + 1} bytes as JSON, limit 18"


@pytest.mark.parametrize("annotation", [Any, str, list[str]])
def test_a_huge_text_is_refused_before_it_is_copied(annotation: Any) -> None:
    # A copy of this text as JSON would take this much memory once more.
    import tracemalloc

    text = "x" * (64 << 20)
    value = [text] if annotation == list[str] else text
    tracemalloc.start()
    try:
        message = refusal(value, annotation)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "the limit" in message
    assert peak < 8 << 20


def test_huge_text_beside_a_number_is_refused_before_a_copy() -> None:
    import tracemalloc

    values = {"text": "x" * (64 << 20), "number": 1}
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError, match="the limit"):
            JsonCodec().dumps(values, {}, bytes_max=MAX)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_huge_key_is_refused_before_it_is_copied() -> None:
    import tracemalloc

    value = {"x" * (64 << 20): 1}
    tracemalloc.start()
    try:
        refusal(value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_long_key_is_cut_in_the_message() -> None:
    assert refusal({"k" * 1_000: set()}) == f"$.a['{'k' * 78}…]: set is not JSON{WAY_OUT}"
    assert refusal({"a b\n": set()}) == "$.a['a b\\n']: set is not JSON" + WAY_OUT


@pytest.mark.parametrize(
    "value",
    [
        {"__class__": "os.system", "py/object": "x", "$ref": "#", "!!python/object": 1, "__reduce__": []},
        {"__proto__": 1, "constructor": 2},
        "{{A.x}} ${y} <%= 7*7 %> %s",
    ],
)
def test_object_lookalike_is_returned_as_plain_data(value: Any) -> None:
    assert loads(dumps(value)) == value


@for_each("value", [2**64, -(2**64), -0.0, 1e308, 5e-324, [], {}, "", None, True, 0, 0.1, "é\u2028🙂"])
def test_every_json_value_comes_back_byte_for_byte(value: Any) -> None:
    for wrapped in (value, [value], {"k": {"l": value}}):
        payload = dumps(wrapped)
        again = loads(payload)
        assert dumps(again) == payload
        assert again == wrapped
        assert type(again) is type(wrapped)
    assert str(loads(dumps(-0.0))) == "-0.0"


def test_a_tuple_becomes_a_list() -> None:
    assert loads(dumps((1, (2,)))) == [1, [2]]


ANNOTATED: list[tuple[Any, Any]] = [
    (Op, Op(1, "x", dt.datetime(2020, 1, 1, tzinfo=dt.UTC))),
    (list[Op], [Op(1, "x"), Op(2, "y")]),
    (dict[str, Op], {"a": Op(1, "x")}),
    (Point, Point(1, 2)),
    (dt.datetime, dt.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)),
    (dt.date, dt.date(2020, 1, 2)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "x")),
    (tuple[int, ...], (1, 2)),
    (bytes, b"\x00\xff"),
    (dt.datetime | None, None),
    (Op | None, Op(1, "x")),
    (Literal["a", 1], "a"),
    (int | str | None, "x"),
    (int | None, None),
    (Annotated[int, "of something"], 5),
    (list, [1]),
    (dict, {"a": 1}),
    (dict[str, list[int | None]], {"a": [1, None]}),
    (float, 1),
    (object, [1]),
]


@for_each("annotation, value", ANNOTATED, ids=[str(annotation) for annotation, _ in ANNOTATED])
def test_an_annotation_opts_its_type_in(annotation: Any, value: Any) -> None:
    again = loads(dumps(value, annotation), annotation)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "annotation, value", [(Op, 5), (dt.datetime, "yesterday"), (Colour, Colour), (set[int], 5), (list[Op], [1])]
)
def test_a_value_that_does_not_fit_its_annotation_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(PayloadError, match=r"^\$\.a"):
        loads(dumps(value, annotation), annotation)


@pytest.mark.parametrize("payload", [b'{"a":{"at":1}}', b'{"a":{"at":"x","text":"y"}}', b'{"a":[]}', b'{"a":"x"}'])
def test_value_that_misses_its_annotation_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError, match=r"^\$\.a: cannot be read as"):
        loads(payload, Op)


@for_each("payload", [b"", b"{", b"\xff", b"[1,", b"nul", b"1" * 5_000, b"[]", b"5", b'"x"', b"null"])
def test_garbage_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError):
        JsonCodec().loads(payload, {})


def test_nothing_is_imported_or_called_because_a_message_named_it() -> None:
    payload = json.dumps({"a": {"_type": "subprocess.Popen", "args": ["true"]}}).encode()
    assert loads(payload) == {"_type": "subprocess.Popen", "args": ["true"]}


def test_an_own_converter_is_used() -> None:
    import cattrs

    converter = cattrs.Converter()
    converter.register_unstructure_hook(Decimal, str)
    converter.register_structure_hook(Decimal, lambda value, _: Decimal(value))
    codec = JsonCodec(converter)
    payload = codec.dumps({"a": Decimal("1.10")}, {"a": Decimal}, bytes_max=MAX)
    assert codec.loads(payload, {"a": Decimal}) == {"a": Decimal("1.10")}


def test_hook_that_writes_a_tuple_is_checked_as_a_list() -> None:
    codec = JsonCodec()
    codec.converter.register_unstructure_hook(complex, lambda value: (value.real, value.imag))
    codec.converter.register_structure_hook(complex, lambda value, _: complex(*value) if type(value) is tuple else 0j)
    with pytest.raises(PayloadError, match="complex cannot be written as complex: it would be read as another value"):
        codec.dumps({"a": 1j}, {"a": complex}, bytes_max=MAX)


@dataclasses.dataclass
class Price:
    cost: Decimal
    until: dt.date | None = None


class Basket(TypedDict):
    prices: list[Price]


class Pair(NamedTuple):
    name: str
    price: Price


@attrs.frozen
class Node:
    cost: Decimal
    below: Node | None = None


@for_each(
    "case",
    [
        (Price(1), Price, ".cost: int", "Decimal"),  # type: ignore[arg-type]
        ([Price(Decimal(1)), Price(2)], list[Price], "[1].cost: int", "Decimal"),  # type: ignore[arg-type]
        ({"a": Price(1), "b": 2}, dict[str, Price], ".a.cost: int", "Decimal"),  # type: ignore[arg-type]
        ({"a key": 2}, dict[str, Price], "[…]: int", "Price"),
        ({"prices": [3]}, Basket, ".prices[0]: int", "Price"),
        (Pair("a", Price(1)), Pair, ".price.cost: int", "Decimal"),  # type: ignore[arg-type]
        (Node(Decimal(1), Node(2)), Node, ".below.cost: int", "Decimal"),  # type: ignore[arg-type]
        ((dt.date(2024, 5, 17), 3), tuple[dt.date, Price], "[1]: int", "Price"),
        ({5}, set[Decimal], "[0]: int", "Decimal"),
        (7, Price, ": int", "Price"),
        ([Price(Decimal(1))], tuple[Price, Price], ": list", "tuple"),
    ],
)
def test_refusal_names_the_part_that_cannot_be_written(case: tuple[Any, Any, str, str]) -> None:
    value, annotation, place, kind = case
    assert refusal(value, annotation).startswith(f"$.a{place} cannot be written as {kind}")


def test_literals_of_the_same_json_are_refused_by_their_cause() -> None:
    kind = Literal[Level.LOW, 1]
    message = r"two values of Literal\[.*\] cannot be told apart in JSON: leave one of them out"
    with pytest.raises(PayloadError, match=message):
        JsonCodec().check_annotations({"a": kind})


def test_missing_name_in_a_hook_is_not_blamed_on_classes() -> None:
    codec = JsonCodec()
    codec.converter.register_unstructure_hook(Point, lambda _: nowhere)  # type: ignore[name-defined]  # noqa: F821
    with pytest.raises(PayloadError, match=r"^\$\.a: Point cannot be written as Point \(NameError\)$"):
        codec.dumps({"a": Point(1, 2)}, {"a": Point}, bytes_max=MAX)


def test_a_hook_that_raises_is_a_payload_error() -> None:
    import cattrs

    converter = cattrs.Converter()
    converter.register_unstructure_hook(Decimal, lambda _: 1 / 0)
    with pytest.raises(PayloadError, match="Decimal cannot be written"):
        JsonCodec(converter).dumps({"a": Decimal(1)}, {"a": Decimal}, bytes_max=MAX)


def test_a_check_names_the_place_it_was_told() -> None:
    check_json([1, {"x": "y"}])
    with pytest.raises(PayloadError) as caught:
        check_json([set()], "$.here")
    assert (caught.value.path, caught.value.problem) == ("$.here[0]", "set is not JSON")


def test_json_is_compact_utf8() -> None:
    assert encode_json({"é": [1, "ü"]}) == '{"é":[1,"ü"]}'.encode()


class Words(str):
    """A text of another type."""

    __slots__ = ()


def test_templates_of_names_are_bounded() -> None:
    for number in range(plain_json.TEMPLATES_MAX + 2):
        assert dumps_as(f"n{number}") == b'{"n%d":1}' % number
        dumps_as("x" * plain_json.TEMPLATE_LENGTH_MAX)
    templates = plain_json._templates
    assert len(templates) <= plain_json.TEMPLATES_MAX
    assert max(map(len, templates.values())) <= plain_json.TEMPLATE_LENGTH_MAX


def dumps_as(name: str) -> bytes:
    return JsonCodec().dumps({name: 1}, {}, bytes_max=10_000)


NAMES = st.text(max_size=4) | st.sampled_from(("doc", "%s", '"', "é%"))
SCALARS = st.one_of(
    st.text(max_size=9),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from((1 << 1_024, -(1 << 2_000), "%s", "\x00\x1f\x7f\u2028", Words("w"), [1], {"a": "b"})),
)


@given(st.dictionaries(NAMES, SCALARS, max_size=4))
def test_object_template_is_written_as_the_encoder_writes_it(values: dict[str, Any]) -> None:
    expected = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
    assert JsonCodec().dumps(values, {}, bytes_max=len(expected)) == expected
    with pytest.raises(PayloadError, match="limit"):
        JsonCodec().dumps(values, {}, bytes_max=len(expected) - 1)


@for_each("value", [["a" * 600] * 2, {"a": "b" * 600, "c": "d" * 600}, {"k" * 600: 1, "l" * 600: 2}, ["a" * 1_300, 1]])
def test_oversized_texts_of_a_container_are_refused_before_a_copy(value: Any) -> None:
    assert "holds strings of more than 1000 bytes" in refusal(value, Any, 1_000)
    assert dumps(value, Any, 2_000)


@for_each("value", [[1, 2.5, None, True], ["a", "é"], {"a": 1, "b": None}, {"a": "b"}, [], {}, ["a", 1], [[1], "a"]])
def test_containers_flat_or_not_are_written_alike(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert json.loads(dumps(value)) == {"a": value}


@for_each("value", [[1.0, math.inf], ["a", "\ud800"], {"\ud800": 1}, {"a": 10**5000}, {1: 1}])
def test_non_json_value_in_a_flat_container_is_located(value: Any) -> None:
    assert re.match(r"\$\.a(\[1\]|\.a|): .*(not JSON|not encodable|digits|JSON keys are str)", refusal(value))


# --- values of a later release ---


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Lenient(enum.Enum):
    KNOWN = "known"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:
        return cls.KNOWN


class Row(TypedDict):
    number: int


LATER: list[tuple[Any, str, str]] = [
    (Colour, '"blue"', "not a member of Colour"),
    (Level, "2", "not a member of Level"),
    (Access, "5", "not a member of Access"),
    (Literal[Colour.RED], '"blue"', "none of Literal[<Colour.RED: 'red'>]"),
    (Literal[b"x"], '"y"', "none of Literal[b'x']"),
    (Op, '{"at":1,"text":"x","length":5}', "1 unknown fields @ $.a"),
    (Op, '{"at":"x","text":"x","length":5}', "int expected @ $.a.at; 1 unknown fields @ $.a"),
    (Point, '{"x":1,"y":2,"z":3}', "1 unknown fields @ $.a"),
    (Row, '{"number":1,"name":"x"}', "1 unknown fields @ $.a"),
    (list[Colour], '["red","blue"]', "not a member of Colour @ $.a[1]"),
    (dict[Colour, Op], '{"blue":{"at":1,"text":"x"}}', "not a member of Colour @ $.a['blue']"),
    (Point | None, '{"x":1,"y":2,"z":3}', "1 unknown fields @ $.a"),
]


@for_each("case", LATER)
def test_value_of_a_later_release_is_unknown_to_this_one(case: tuple[Any, str, str]) -> None:
    annotation, written, said = case
    with pytest.raises(UnknownToReleaseError, match=re.escape(f"cannot be read as {called(annotation)}: {said}")):
        loads(f'{{"a":{written}}}'.encode(), annotation)


@for_each(
    "case",
    [
        *[(Colour, "1"), (Colour, "[]"), (Level, "true"), (Level, '"1"'), (Level, "1.0"), (Access, '"x"')],
        *[(Literal[b"x"], "1"), (Op, '{"at":1}'), (Op, '{"at":"1","text":"x"}'), (Op, '{"at":1,"text":5}')],
        *[
            (list[Colour], '"red"'),
            (tuple[str, str], '"ab"'),
            (set[int], '["1"]'),
            (tuple[float, ...], '["1"]'),
            (Row, '{"number":null}'),
        ],
    ],
)
def test_value_of_a_wrong_type_is_refused_and_not_converted(case: tuple[Any, str]) -> None:
    annotation, written = case
    with pytest.raises(PayloadError, match="cannot be read as") as caught:
        loads(f'{{"a":{written}}}'.encode(), annotation)
    assert type(caught.value) is PayloadError


def test_equal_sets_are_written_alike() -> None:
    numbers = [*range(100), 1 << 40, -5]
    texts = {dumps(set(order), set[int]) for order in (numbers, numbers[::-1], sorted(numbers, key=str))}
    assert len(texts) == 1
    assert dumps(frozenset("cab"), frozenset[str]) == b'{"a":["a","b","c"]}'
    # In the table of a set, 0 and 8 stand in the order in which they came.
    assert dumps({0, 8}, set[int]) == dumps({8, 0}, set[int])


def test_enum_that_takes_unknown_values_reads_them_as_it_says() -> None:
    assert loads(b'{"a":"other"}', Lenient) is Lenient.KNOWN


def test_conforming_flag_keeps_bits_of_a_later_release() -> None:
    class Conforming(enum.Flag, boundary=enum.CONFORM):
        READ = 1

    assert loads(b'{"a":1}', Conforming) is Conforming.READ
    with pytest.raises(UnknownToReleaseError):
        loads(b'{"a":3}', Conforming)


def test_later_release_outweighs_another_value_of_a_wrong_type() -> None:
    with pytest.raises(UnknownToReleaseError, match=r"^\$\.b: "):
        JsonCodec().loads(b'{"a":5,"b":"blue"}', {"a": Op, "b": Colour})


def test_hook_of_the_application_may_find_a_value_unknown() -> None:
    def read(value: Any, _: Any) -> complex:
        raise UnknownToReleaseError("no such unit")

    codec = JsonCodec()
    codec.converter.register_structure_hook(complex, read)
    with pytest.raises(
        UnknownToReleaseError, match=r"\$\.a: cannot be read as list\[complex\]: no such unit @ \$\.a\[0\]"
    ):
        codec.loads(b'{"a":["1 x"]}', {"a": list[complex]})


# --- types that travel when they are annotated ---


@attrs.frozen
class Order:
    price: Decimal
    waits: dict[int, dt.timedelta]
    opens: dt.time | None = None


TRAVEL: list[tuple[Any, Any, Any]] = [
    (Decimal("1.10"), Decimal, "1.10"),
    ([Decimal("NaN")], list[Decimal], ["NaN"]),
    (dt.timedelta(minutes=2), dt.timedelta, 120),
    (dt.timedelta(seconds=-1.5), dt.timedelta, -1.5),
    (dt.timedelta.min, dt.timedelta, -86399999913600),
    (dt.time(1, 2, 3, 4), dt.time | None, "01:02:03.000004"),
    ({1: "a", -2: "b"}, dict[int, str], {"1": "a", "-2": "b"}),
    ({Level.LOW: "a"}, dict[int, str], {"1": "a"}),
    ({0.5: None}, dict[float, Any], {"0.5": None}),
    ([{1: {2: Decimal(3)}}], list[dict[int, dict[int, Decimal]]], [{"1": {"2": "3"}}]),
    (
        Order(Decimal(3), {1: dt.timedelta(1)}, dt.time(8)),
        Order,
        {"price": "3", "waits": {"1": 86400}, "opens": "08:00:00"},
    ),
]


@for_each("case", TRAVEL)
def test_types_of_the_standard_library_travel_when_they_are_annotated(case: tuple[Any, Any, Any]) -> None:
    value, annotation, written = case
    payload = dumps(value, annotation)
    assert json.loads(payload)["a"] == written
    assert repr(loads(payload, annotation)) == repr(value).replace("<Level.LOW: 1>", "1")


@for_each(
    "case",
    [
        (7, Decimal),
        ("7", Decimal),
        (7, dt.timedelta),
        (dt.timedelta.max, dt.timedelta),
        ("08:00", dt.time),
        ({True: "a"}, dict[int, str]),
        ([], dict[int, str]),
    ],
)
def test_values_of_other_types_than_annotated_are_refused(case: tuple[Any, Any]) -> None:
    assert re.match(r"\$\.a: \w+ cannot be written as .* \(\w+\)", refusal(*case))


@for_each("case", [("x", Decimal), (0.5, Decimal), ("x", dt.timedelta), (5, dt.time), ({"x": "a"}, dict[int, str])])
def test_json_that_does_not_fit_them_is_refused(case: tuple[Any, Any]) -> None:
    value, annotation = case
    with pytest.raises(PayloadError, match=r"^\$\.a: cannot be read as "):
        loads(encode_json({"a": value}), annotation)


def test_models_of_pydantic_travel_where_it_is_installed() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Edit(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        at: dt.datetime
        words: list[str] = pydantic.Field(alias="text")

    edit = Edit(at=dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC), text=["a"])
    assert json.loads(dumps(edit, Edit)) == {"a": {"at": "2026-01-31T12:00:00Z", "text": ["a"]}}
    for value, annotation in [(edit, Edit), ([edit], list[Edit]), (None, Edit | None), ({1: edit}, dict[int, Edit])]:
        assert loads(dumps(value, annotation), annotation) == value
    with pytest.raises(PayloadError, match=r"cannot be read as Edit: text \(missing\)"):
        loads(b'{"a": {"at": 7}}', Edit)
    assert "dict cannot be written as Edit" in refusal({}, Edit)
    assert refusal([edit]) == "$.a[0]: Edit is not JSON" + WAY_OUT


def test_hooks_are_registered_with_the_converter_of_a_codec() -> None:
    codec = JsonCodec()
    codec.converter.register_unstructure_hook(complex, str)
    codec.converter.register_structure_hook(complex, lambda value, _: complex(value))
    kinds = {"a": complex}
    assert codec.loads(codec.dumps({"a": 1j}, kinds, bytes_max=MAX), kinds) == {"a": 1j}
    assert refusal(1j, complex) == "$.a: complex has no JSON" + NO_HOOK
