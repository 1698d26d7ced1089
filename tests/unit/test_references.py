"""References to results, alone or inside texts, as arguments of a call, and their replacement by plain arguments."""

from __future__ import annotations

import copy
import pickle
import string
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import InvalidJobError, InvalidJobTypeError, PayloadError, TemplateError
from queuehint.handlers.references import Extracted, Reference, Template, extract, target, template
from queuehint.handlers.templates import TEMPLATE_BYTES_MAX, fill, find
from tests.each import for_each
from tests.support import HostileStr

NODE = object()


def ref(name: str = "A", node: object = NODE) -> Any:
    """Return a reference, untyped as a node's `out` is."""
    return Reference(name, node)


# --- references ------------------------------------------------------------------------------------------------------


def test_a_reference_shows_the_placeholder() -> None:
    out = ref()
    assert repr(out) == "{{A}}"
    assert repr(out.owner) == "{{A.owner}}"
    assert repr(out["owner"].rows[0][-1]["a-b"]["7"]) == "{{A.owner.rows[0][-1].a-b.7}}"


@for_each("name", ["name", "node", "text", "id", "steps", "out", "target", "_x", "keys", "items", "get"])
def test_any_name_may_be_a_field(name: str) -> None:
    assert repr(getattr(ref(), name)) == repr(ref()[name]) == "{{A." + name + "}}"


@pytest.mark.parametrize("name", ["__len__", "__wrapped__", "__x", "x__", "a__b", "_Class__x"])
def test_dunder_names_are_no_attributes_but_may_be_keys(name: str) -> None:
    with pytest.raises(AttributeError, match="write"):
        getattr(ref(), name)
    assert not hasattr(ref(), name)
    assert repr(ref()[name]) == "{{A." + name + "}}"


@for_each("key", ["", "a b", "-a", "a.b", "a]", "}}", "ключ", "x" * 129, "a\n", HostileStr("a b")])
def test_unnameable_field_is_refused_at_once(key: str) -> None:
    with pytest.raises(InvalidJobError, match="a field in a template is 1 to 128 of") as caught:
        ref()[key]
    assert not isinstance(caught.value, TypeError)
    assert len(str(caught.value)) < 200
    with pytest.raises(InvalidJobError, match="name in a template is 1 to 128 of"):
        Reference(key, NODE)


def test_unnameable_attribute_is_refused_at_once() -> None:
    with pytest.raises(InvalidJobError, match="'ключ'"):
        ref().ключ  # noqa: B018


@pytest.mark.parametrize("key", [None, True, 1.0, b"x", (0,), slice(1), ref()])
def test_field_is_named_by_str_and_item_by_int(key: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match="a field is named by str, an item by int, got"):
        ref()[key]


@pytest.mark.parametrize("index", [10**9, -(10**9), 10**5000], ids="abc")
def test_an_index_that_no_template_can_hold_is_refused(index: int) -> None:
    with pytest.raises(InvalidJobError, match="from -999999999 to 999999999"):
        ref()[index]


@pytest.mark.parametrize("name", [None, 5, b"A"])
def test_a_name_is_a_str(name: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match="name must be str"):
        Reference(name, NODE)


def test_references_are_equal_for_the_same_value_and_node() -> None:
    assert ref().a[0] == ref().a[0]
    assert len({ref().a, ref()["a"], ref().b, ref("B").a, ref("A", object()).a}) == 4
    assert ref() != "{{A}}"
    assert ref().a["0"] != ref().a[0]
    equal_nodes: list[list[int]] = [[], []]
    assert Reference("A", equal_nodes[0]) != Reference("A", equal_nodes[1])


def test_a_reference_knows_its_name_and_node() -> None:
    assert target(ref().a.b[0]) == ("A", NODE)
    assert target(ref())[1] is NODE


def test_a_reference_cannot_be_changed() -> None:
    for name in ("x", "node__", "__class__"):
        with pytest.raises(AttributeError):
            setattr(ref(), name, 1)


def test_a_copy_of_a_mark_is_the_mark() -> None:
    for mark in (ref().x, Template("{{A}}")):
        assert copy.copy(mark) is copy.deepcopy([mark])[0] is mark


@for_each(
    "use",
    [
        str,
        bool,
        list,
        iter,
        reversed,
        pickle.dumps,
        lambda it: f"{it}",
        lambda it: f"{it:>5}",
        lambda it: "%s" % it,  # noqa: UP031
        lambda it: "x" in it,
        lambda it: [*it],
        lambda it: it or 1,
        lambda it: it + 1,
        lambda it: 1 + it,
        lambda it: 2 * it,
        lambda it: -it,
        lambda it: it < 1,
        lambda it: 1 < it,  # noqa: SIM300
        int,
        float,
        round,
    ],
)
def test_operation_that_needs_the_value_of_a_reference_is_refused(use: Any) -> None:
    """A reference in a text would be sent as a text of braces, and going through one would never end."""
    with pytest.raises(InvalidJobTypeError, match="a result that is not there yet"):
        use(ref().x)


@pytest.mark.parametrize("use", [len, sum, lambda it: it()])
def test_unsupported_operation_on_a_reference_raises_a_type_error(use: Any) -> None:
    with pytest.raises(TypeError):
        use(ref().x)


# --- texts -----------------------------------------------------------------------------------------------------------


def test_text_is_marked_by_a_non_str_value() -> None:
    mark = template("{{A}}!")
    assert isinstance(mark, Template)
    assert not isinstance(mark, str)
    assert mark.text == "{{A}}!"
    assert repr(mark) == "template('{{A}}!')"
    assert mark == template("{{A}}!") != template("{{B}}!")
    assert len({mark, template("{{A}}!")}) == 1
    assert mark != "{{A}}!"
    assert pickle.loads(pickle.dumps(mark)) == mark
    with pytest.raises(AttributeError, match="cannot be changed"):
        mark.text = "x"
    with pytest.raises(InvalidJobTypeError, match="no text before the job starts"):
        str(mark)


@pytest.mark.parametrize("text", [None, 5, b"{{A}}", ref(), template("x")])
def test_only_a_str_can_be_marked(text: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match="a template must be str, got"):
        template(text)


def test_a_marked_str_is_a_plain_one() -> None:
    assert type(template(HostileStr("{{A}}")).text) is str


def test_a_text_of_more_than_64_kib_is_refused() -> None:
    template("x" * TEMPLATE_BYTES_MAX)
    with pytest.raises(TemplateError, match="more than 65536 bytes"):
        template("x" * (TEMPLATE_BYTES_MAX + 1))


# --- extract ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{}, {"a": 1, "b": "{{A}}"}, {"a": [1, {"b": (2, "{{A}}")}]}, {"a": object(), "b": {1: 2}}]
)
def test_arguments_without_marks_are_the_very_same(arguments: dict[str, Any]) -> None:
    extracted = extract(arguments)
    assert extracted == Extracted(arguments)
    assert extracted.arguments is arguments


def test_marks_become_their_text_and_their_places_pointers() -> None:
    untouched = [1, {2: object()}]
    arguments = {
        "owner": ref("head").owner,
        "note": "{{head}}",
        "text": template("by {{other}}"),
        "rows": [ref("a").n, 5, (ref("b").n, {"x/y": ref("head").owner, "~": template("{{c}}")})],
        "more": untouched,
    }
    before = dict(arguments)
    extracted = extract(arguments)
    assert extracted.arguments == {
        "owner": "{{head.owner}}",
        "note": "{{head}}",
        "text": "by {{other}}",
        "rows": ["{{a.n}}", 5, ["{{b.n}}", {"x/y": "{{head.owner}}", "~": "{{c}}"}]],
        "more": untouched,
    }
    assert extracted.arguments["more"] is untouched
    assert extracted.pointers == ("/owner", "/text", "/rows/0", "/rows/2/0", "/rows/2/1/x~1y", "/rows/2/1/~0")
    assert extracted.references == (ref("head").owner, ref("a").n, ref("b").n)
    assert extracted.names == {"owner", "text", "rows"}
    assert arguments == before


def test_shared_value_is_visited_once_and_pointed_at_everywhere() -> None:
    shared = [ref("A")]
    extracted = extract({"a": shared, "b": [shared, shared], "c": ref("A").x})
    assert extracted.pointers == ("/a/0", "/b/0/0", "/b/1/0", "/c")
    assert extracted.references == (ref("A"), ref("A").x)


@pytest.mark.parametrize("mark", [None, ref("A"), template("{{A}}")], ids=["none", "reference", "template"])
def test_cycles_do_not_hang(mark: Any) -> None:
    cycle: list[Any] = [1]
    cycle += [cycle, {"x": cycle}, cycle]
    arguments = {"a": cycle, "b": {"c": cycle}}
    if mark is None:
        assert extract(arguments).arguments is arguments
        return
    cycle.append(mark)
    with pytest.raises(PayloadError, match="circular reference"):
        extract(arguments)
    assert extract({"a": [1], "b": mark}).pointers == ("/b",)


def test_shared_values_without_marks_are_looked_at_once() -> None:
    """Sixty lists of which each holds the one before twice are 2**60 places."""
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    assert extract({"a": value, "b": ref("A")}).pointers == ("/b",)


def test_marks_are_found_as_deep_as_json_goes() -> None:
    deep: Any = ref("A")
    for _ in range(64):
        deep = [deep]
    assert extract({"a": deep}).pointers == ("/a" + "/0" * 64,)
    deeper: Any = [deep]
    assert extract({"a": deeper}).arguments == {"a": deeper}
    for _ in range(100_000):
        deeper = [deeper]
    assert extract({"a": deeper}).pointers == ()


def test_at_most_a_thousand_marks() -> None:
    assert len(extract({"a": [ref("A")] * 1000}).pointers) == 1000
    with pytest.raises(
        InvalidJobError, match="more than 1000 templates and references, the limit; for the results of more"
    ):
        extract({"a": [ref("A")] * 1001})


@pytest.mark.parametrize("key", [1, None, ref("B")])
def test_container_of_references_requires_str_keys(key: Any) -> None:
    with pytest.raises(PayloadError, match="JSON keys are str"):
        extract({"a": {key: ref("A")}})


def test_a_mark_inside_any_other_object_is_left_there() -> None:
    class Thing:
        def __init__(self) -> None:
            self.mark = ref("A")

    arguments = {"a": Thing()}
    assert extract(arguments).arguments is arguments


def test_argument_without_references_costs_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scalars are passed over without a call of ours, in arguments and in lists alike."""
    calls: list[str] = []

    def count(frame: Any, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("handlers/references.py"):
            calls.append(frame.f_code.co_name)

    def calls_of(arguments: dict[str, Any]) -> int:
        calls.clear()
        sys.setprofile(count)
        try:
            extract(arguments)
        finally:
            sys.setprofile(None)
        return len(calls)

    assert calls_of({str(n): n for n in range(1000)}) == 1
    assert calls_of({"a": list(range(10))}) == calls_of({"a": list(range(100_000))})


# --- there and back --------------------------------------------------------------------------------------------------

names = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=5).filter(
    lambda name: not name.startswith("-")
)
steps = st.lists(names | st.integers(-3, 3), max_size=3)
leaves = st.integers() | st.text(max_size=3) | st.tuples(st.sampled_from("ABC"), steps)


def marked(value: Any) -> Any:
    """Return a value with references for the pairs of name and steps in it."""
    if isinstance(value, tuple):
        found = ref(value[0])
        for step in value[1]:
            found = found[step]
        return found
    if isinstance(value, dict):
        return {key: marked(item) for key, item in value.items()}
    return [marked(item) for item in value] if isinstance(value, list) else value


def expected(value: Any) -> Any:
    """Return a value with the text of each reference for what it means: its name and steps, as a list."""
    if isinstance(value, tuple):
        return [value[0], *[str(step) for step in value[1]]]
    if isinstance(value, dict):
        return {key: expected(item) for key, item in value.items()}
    return [expected(item) for item in value] if isinstance(value, list) else value


class Echo(dict[str, Any]):
    """Answers any field of any name with the way that led there."""

    def __init__(self, *way: str) -> None:
        self.way = way

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        return Echo(*self.way, str(name))


@given(
    st.dictionaries(
        names,
        st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)),
    )
)
def test_extracted_references_are_filled_at_the_same_places(arguments: dict[str, Any]) -> None:
    extracted = extract(marked(arguments))
    used = {target(reference)[0] for reference in extracted.references}
    assert set(find(extracted.arguments, extracted.pointers)) == used

    def ways(value: Any) -> Any:
        if isinstance(value, Echo):
            return list(value.way)
        if isinstance(value, dict):
            return {key: ways(item) for key, item in value.items()}
        return [ways(item) for item in value] if isinstance(value, list) else value

    made = fill(extracted.arguments, extracted.pointers, Echo(), bytes_max=1 << 20)
    assert ways(made) == expected(arguments)
