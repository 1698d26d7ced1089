"""Templates: their placeholders, the filled text, and refused expressions."""

from __future__ import annotations

import copy
import json
import string
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuehint import PayloadError, TemplateError
from queuehint.handlers import templates
from queuehint.handlers.templates import PLACEHOLDERS_MAX, TEMPLATE_BYTES_MAX, Placeholder, fill, find, is_name, parse
from tests.each import for_each

MAX = 1 << 20
MISSING: Any = object()


def filled(text: str, **results: Any) -> Any:
    """Return what one template becomes."""
    return fill({"a": text}, True, results, bytes_max=MAX)["a"]


def refusal(text: str, **results: Any) -> str:
    with pytest.raises(TemplateError) as caught:
        filled(text, **results)
    assert len(str(caught.value)) < 1500
    return str(caught.value)


# --- the oracle: character by character, value by value, everything built before it is measured ----------------------

FIRST = set(string.ascii_letters + string.digits + "_")
REST = FIRST | {"-"}


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_name(text: str, at: int) -> int:
    """Return where a name ends, *at* itself if there is none."""
    if text[at : at + 1] not in FIRST or at >= len(text):
        return at
    end = at + 1
    while end < len(text) and text[end] in REST and end - at < 128:
        end += 1
    return end


def read_index(text: str, at: int) -> int:
    end = at + 1 if text.startswith("-", at) else at
    begin = end
    while end < len(text) and text[end] in string.digits and end - begin < 9:
        end += 1
    return end if end > begin and text.startswith("]", end) else at


def read_placeholder(text: str, at: int) -> tuple[int, str, list[str | int]] | None:
    """Return where a placeholder ends, its name and its steps; None if none begins at *at*."""
    at += 2
    while text.startswith(" ", at):
        at += 1
    end = read_name(text, at)
    if end == at:
        return None
    name, steps = text[at:end], list[str | int]()
    at = end
    while True:
        if text.startswith(".", at) and (end := read_name(text, at + 1)) > at + 1:
            steps.append(text[at + 1 : end])
            at = end
        elif text.startswith("[", at) and (end := read_index(text, at + 1)) > at + 1:
            steps.append(int(text[at + 1 : end]))
            at = end + 1
        else:
            break
    while text.startswith(" ", at):
        at += 1
    return (at + 2, name, steps) if text.startswith("}}", at) else None


def oracle_parts(text: str) -> list[str | tuple[str, list[str | int]]]:
    """Return single characters, the two of an escape, and placeholders."""
    parts: list[str | tuple[str, list[str | int]]] = []
    at = 0
    while at < len(text):
        if text.startswith(r"\{{", at):
            parts.append("{{")
            at += 3
        elif text.startswith("{{", at) and (found := read_placeholder(text, at)) is not None:
            at = found[0]
            parts.append((found[1], found[2]))
        else:
            parts.append(text[at])
            at += 1
    return parts


def oracle_value(name: str, steps: list[str | int], results: dict[str, Any]) -> Any:
    value = results.get(name, MISSING)
    for step in steps:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and str(step).lstrip("-").isdigit():
            number = int(step)
            value = value[number] if -len(value) <= number < len(value) else MISSING
        else:
            value = MISSING
    if value is MISSING:
        raise LookupError(name)
    return value


def oracle_text(text: str, results: dict[str, Any]) -> Any:
    parts = oracle_parts(text)
    if len(parts) == 1 and isinstance(parts[0], tuple):
        return oracle_value(*parts[0], results)
    built = ""
    for part in parts:
        if isinstance(part, str):
            built += part
        else:
            value = oracle_value(*part, results)
            built += value if isinstance(value, str) else compact(value)
    return built


def strings(value: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """Yield the JSON pointer of each string that is a value, and the string."""
    if isinstance(value, str):
        yield pointer, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings(item, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from strings(item, f"{pointer}/{index}")


def oracle_fill(value: Any, marks: bool | tuple[str, ...], results: dict[str, Any], pointer: str = "") -> Any:
    if isinstance(value, str):
        is_marked = marks if isinstance(marks, bool) else pointer in marks
        return oracle_text(value, results) if is_marked else value
    if isinstance(value, dict):
        return {
            key: oracle_fill(item, marks, results, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [oracle_fill(item, marks, results, f"{pointer}/{index}") for index, item in enumerate(value)]
    return value


# --- properties ------------------------------------------------------------------------------------------------------

FRAGMENTS = [
    *["{{", "}}", "{", "}", "\\", r"\{{", " ", ".", "[", "]", "-", "0", "1", "A", "B", "x", "rows", "é", '"', "\n"],
    *["{{A}}", "{{ A.x }}", "{{A.rows[0]}}", "{{A.rows.1.x}}", "{{B[-1]}}", "{{B.x}}", "{{A.rows[-1].x}}", "{{C}}"],
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
keys = st.sampled_from(["x", "rows", "0", "1", "a/b", "~", "~1", "{{A}}", ""])
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)


def json_values(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
    )


arguments_ = st.dictionaries(keys, json_values(scalars | texts), max_size=4)
row = st.fixed_dictionaries({"x": json_values(scalars | texts)})
result = st.fixed_dictionaries({"x": json_values(scalars | texts), "rows": st.lists(row, min_size=1, max_size=3)})
results_ = st.fixed_dictionaries({"A": result, "B": result | st.lists(row, min_size=1) | json_values(scalars | texts)})


@given(arguments_, results_, st.data())
def test_fill_agrees_with_the_grammar(arguments: Any, results: Any, data: st.DataObject) -> None:
    pointers = [pointer for pointer, _ in strings(arguments)]
    some = st.lists(st.sampled_from(pointers), unique=True).map(tuple) if pointers else st.just(())
    marks: bool | tuple[str, ...] = data.draw(st.just(True) | some)
    before = copy.deepcopy((arguments, results))
    try:
        expected = oracle_fill(arguments, marks, results)
    except LookupError:
        with pytest.raises(TemplateError):
            fill(arguments, marks, results, bytes_max=MAX)
        return
    made = fill(arguments, marks, results, bytes_max=MAX)
    assert compact(made) == compact(expected)
    assert (arguments, results) == before
    size = len(compact(expected).encode())
    assert compact(fill(arguments, marks, results, bytes_max=size)) == compact(expected)
    if marks:
        with pytest.raises(PayloadError, match=f"more than {size - 1} bytes"):
            fill(arguments, marks, results, bytes_max=size - 1)


@given(arguments_)
def test_find_lists_the_names_used_by_fill(arguments: Any) -> None:
    names = [part[0] for _, text in strings(arguments) for part in oracle_parts(text) if isinstance(part, tuple)]
    assert find(arguments, True) == list(dict.fromkeys(names))


@given(st.lists(st.sampled_from([*FRAGMENTS, *"{}\\. "]), max_size=20).map("".join))
@example(r"\\{{A}}")
@example("{{{A}}}")
@example("{{A}}{{B}}")
def test_parse_reads_as_the_grammar_says(text: str) -> None:
    expected: list[str | Placeholder] = []
    for part in oracle_parts(text):
        if isinstance(part, tuple):
            expected.append(Placeholder(part[0], tuple(part[1])))
        elif expected and isinstance(expected[-1], str):
            expected[-1] += part
        else:
            expected.append(part)
    assert list(parse(text)) == expected


@given(st.from_regex("[A-Za-z0-9_][A-Za-z0-9_-]{0,127}", fullmatch=True), st.lists(st.text("ab-_9", min_size=1)))
def test_a_placeholder_is_read_as_it_is_written(name: str, fields: list[str]) -> None:
    placeholder = Placeholder(name, tuple(field for field in fields if is_name(field)))
    assert parse(str(placeholder)) == (placeholder,)


# --- what a template becomes -----------------------------------------------------------------------------------------


@for_each("value", [None, True, 1.5, -0.0, 2**64, "text", "", [], {}, [1, {"a": None}], {"x": "{{A}}"}])
def test_a_lone_placeholder_keeps_the_type(value: Any) -> None:
    assert compact(filled("{{A}}", A=value)) == compact(value)
    assert compact(filled("{{ A.x }}", A={"x": value})) == compact(value)


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ({"a": 1, "b": [2, 3]}, '{"a":1,"b":[2,3]}'),
        ("é", "é"),
        ([], "[]"),
    ],
)
def test_inside_other_text_a_value_becomes_text(value: Any, text: str) -> None:
    assert filled("<{{A}}>", A=value) == f"<{text}>"
    assert filled("{{A}} ", A=value) == f"{text} "
    assert filled("{{A}}{{A}}", A=value) == text + text


@for_each(
    "template, value",
    [
        ("{{A.rows[0].id}}", 7),
        ("{{A.rows.0.id}}", 7),
        ("{{A.rows[-1].id}}", 8),
        ("{{A.rows[1][id]}}", "{{A.rows[1][id]}}"),
        ("{{A.rows[000000001].id}}", 8),
        ("{{A.0}}", "zero"),
        ("{{A.a-b}}", "dash"),
        ("{{   A.0   }}", "zero"),
        ("{{A .0}}", "{{A .0}}"),
        ("{{A. 0}}", "{{A. 0}}"),
        ("{{\tA}}", "{{\tA}}"),
        ("{{ A\n}}", "{{ A\n}}"),
    ],
)
def test_fields_and_indexes_lead_into_a_result(template: str, value: Any) -> None:
    assert filled(template, A={"rows": [{"id": 7}, {"id": 8}], "0": "zero", "a-b": "dash"}) == value


def test_only_values_are_templates_never_keys() -> None:
    assert fill({"{{A}}": ["{{A}}"]}, True, {"A": 1}, bytes_max=MAX) == {"{{A}}": [1]}
    assert find({"{{A}}": 1}, True) == []


def test_job_may_be_named_by_any_grammatical_name_or_id() -> None:
    for name in ("0", "_", "a-b", "A" * 128, "018f3c2a9b00", "__class__"):
        assert filled("{{" + name + "}}", **{name: 1}) == 1
        assert is_name(name)
    assert not is_name("a.b")
    for name in ("", "-a", "a b", "ä", "A" * 129, "a\n"):
        assert filled("{{" + name + "}}", **{name: 1}) == "{{" + name + "}}"
        assert not is_name(name)


def test_without_marks_nothing_is_touched() -> None:
    arguments = {"a": "{{A}}"}
    assert fill(arguments, False, {}, bytes_max=0) is arguments
    assert fill(arguments, (), {}, bytes_max=0) is arguments
    assert find(arguments, False) == find(arguments, ()) == []


def test_a_template_need_not_be_in_an_object() -> None:
    assert fill("{{A}}", True, {"A": [1]}, bytes_max=MAX) == [1]
    assert fill(["{{A}}"], ("/0",), {"A": 2}, bytes_max=MAX) == [2]


# --- pointers --------------------------------------------------------------------------------------------------------


def test_pointers_say_which_strings_are_templates() -> None:
    arguments = {"a": "{{A}}", "b": ["{{A}}", {"c/d": "{{A}}", "~": "{{B}}"}]}
    marks = ("/b/1/c~1d", "/b/1/~0", "/b/1/c~1d")
    assert find(arguments, marks) == ["A", "B"]
    expected = {"a": "{{A}}", "b": ["{{A}}", {"c/d": 12, "~": "{{A}}"}]}
    assert fill(arguments, marks, {"A": 12, "B": "{{A}}"}, bytes_max=len(compact(expected))) == expected


@for_each(
    "pointer, words",
    [
        ("/b", "'/b' leads nowhere"),
        ("/a/0", "'/a/0' leads nowhere"),
        ("/rows/2", "leads nowhere"),
        ("/rows/01", "leads nowhere"),
        ("/rows/-1", "leads nowhere"),
        ("/rows/-", "leads nowhere"),
        ("/rows/\u0660", "leads nowhere"),
        ("/rows/" + "9" * 5000, "leads nowhere"),
        ("/rows/", "leads nowhere"),
        ("/n", "leads to int, and must lead to a string"),
        ("/rows", "leads to list, and must lead to a string"),
        ("", "leads to dict, and must lead to a string"),
        ("a", "'a' is not a JSON pointer"),
        ("/~2", "'/~2' is not a JSON pointer"),
        ("/a~", "'/a~' is not a JSON pointer"),
    ],
)
def test_a_pointer_that_leads_to_no_string_is_refused(pointer: str, words: str) -> None:
    arguments = {"a": "{{A}}", "n": 1, "rows": ["{{A}}", "{{A}}"]}
    for call in (lambda: find(arguments, (pointer,)), lambda: fill(arguments, (pointer,), {"A": 1}, bytes_max=MAX)):
        with pytest.raises(TemplateError, match=words) as caught:
            call()
        assert len(str(caught.value)) < 200


# --- bad input, row by row -------------------------------------------------------------------------------------------


def test_b85_missing_job_is_reported_with_available_results() -> None:
    assert refusal("{{C.x}}", A=1, B=2) == "C has no result; there are results of: A, B"
    assert refusal("{{C}}") == "C has no result; there are results of: nothing"


def test_b85_missing_field_is_reported_with_available_fields() -> None:
    assert refusal("{{A.user_id}}", A={"id": 1, "name": 2}) == 'A has no "user_id"; it has: id, name'
    assert refusal("{{A.x}}", A={}) == 'A has no "x"; it has: nothing'
    assert refusal("{{A.x}}", A={"a b": 1, "\x1b": 2, "é": 3}) == "A has no \"x\"; it has: 'a b', '\\x1b', 'é'"
    assert refusal("{{A.rows[0].x}}", A={"rows": [{"y": 1}]}) == 'A.rows[0] has no "x"; it has: y'
    assert refusal("{{A[0]}}", A={"0": 1}) == "A has no [0]; it has: 0"


def test_b85_at_most_ten_truncated_names_are_shown() -> None:
    said = refusal("{{A.x}}", A={f"field{n}": n for n in range(11)})
    assert said.endswith("field9, …")
    assert "field10" not in said
    assert "…" not in refusal("{{A.x}}", A={f"field{n}": n for n in range(10)})
    assert len(refusal("{{A.x}}", A={"y" * 10_000 + str(n): n for n in range(20)})) < 1000
    deep = json.loads('{"x":' * 60 + "{}" + "}" * 60)
    assert refusal("{{A" + ".x" * 60 + ".y}}", A=deep) == "A" + ".x" * 39 + '… has no "y"; it has: nothing'


def test_b85_a_missing_item_is_named_with_the_length() -> None:
    assert refusal("{{A[2]}}", A=[1, 2]) == "A has no [2]; it is a list of 2"
    assert refusal("{{A[-3]}}", A=[1, 2]) == "A has no [-3]; it is a list of 2"
    assert refusal("{{A.2}}", A=[1, 2]) == 'A has no "2"; it is a list of 2'
    assert refusal("{{A.x}}", A=[1, 2]) == 'A has no "x"; it is a list of 2'
    assert refusal("{{A." + "9" * 128 + "}}", A=[1]).endswith("it is a list of 1")


def test_b85_no_value_is_ever_shown() -> None:
    assert refusal("{{A.x.y}}", A={"x": "secret"}) == 'A.x has no "y"; it is str'
    assert refusal("{{A.x[0]}}", A={"x": "secret"}) == "A.x has no [0]; it is str"
    assert refusal("{{A.x.y}}", A={"x": None}) == 'A.x has no "y"; it is null'
    assert refusal("{{A.x.y}}", A={"x": 5}) == 'A.x has no "y"; it is int'


class Loud:
    """Raises when anything is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Loud
        raise AssertionError(f"asked for {name}")


@for_each("field", ["__class__", "__dict__", "__init__", "upper", "keys", "format"])
@for_each("value", ["text", 5, [], {}, None], ids=repr)
def test_b86_no_attribute_is_ever_read(field: str, value: Any) -> None:
    assert f'A has no "{field}"' in refusal("{{A." + field + "}}", A=value)
    assert f'A.x has no "{field}"' in refusal("{{A.x." + field + ".__globals__}}", A={"x": value})
    assert f'A has no "{field}"' in refusal("{{A." + field + "}}", A=Loud())


def test_b86_a_key_may_have_any_name() -> None:
    assert filled("{{A.__class__.__globals__}}", A={"__class__": {"__globals__": 1}}) == 1


@for_each(
    "text",
    [
        *["{{A.x()}}", '{{A["x"]}}', "{{A['x']}}", "{{A[x]}}", "{0.__class__}", "{A}", "{A.__class__}", "{{A|x}}"],
        *["{{7*7}}", "${7*7}", "<%= 7*7 %>", "%s%n", "{{A!r}}", "{{A:>10}}", "{{A.x.}}", "{{A[]}}", "{{A[0x1]}}"],
        *["{{A[+1]}}", "{{A[--1]}}", "{{A[1234567890]}}", "{{A[0:1]}}", "{{A[ 0 ]}}", "{{A..x}}", "{{A}", "{{}}"],
    ],
)
def test_b86_text_outside_the_grammar_is_literal(text: str) -> None:
    assert filled(text, A={"x": 1}) == text
    assert find({"a": text}, True) == []


def test_b87_filled_values_are_never_expanded_again() -> None:
    results = {"A": "{{B.secret}}", "B": {"secret": "s"}, "C": ["{{B.secret}}"], "D": "{{", "E": "B.secret}}"}
    assert filled("{{A}}", **results) == "{{B.secret}}"
    assert filled("{{A}}{{A}}", **results) == "{{B.secret}}{{B.secret}}"
    assert filled("{{C}}", **results) == ["{{B.secret}}"]
    assert filled("{{D}}{{E}}", **results) == "{{B.secret}}"
    assert filled("{{D}}B.secret}}", **results) == "{{B.secret}}"
    assert filled(r"\{{A}}", **results) == "{{A}}"


def test_b87_pointer_never_enters_a_filled_value() -> None:
    with pytest.raises(TemplateError, match="leads nowhere"):
        fill({"a": "{{A}}"}, ("/a", "/a/x"), {"A": {"x": "{{B}}"}, "B": 1}, bytes_max=MAX)


def test_b88_only_the_names_in_marked_texts_are_found() -> None:
    arguments = {"document": "{{other.secret}}", "a": "{{A.x}} {{B}} {{A.y}}"}
    assert find(arguments, ("/a",)) == ["A", "B"]
    assert find(arguments, True) == ["other", "A", "B"]


def work(text: str) -> float:
    """Return the least time that one pass over a text takes, limits apart."""
    expression = templates._PLACEHOLDER

    def once() -> float:
        begin = time.thread_time()
        for _ in expression.finditer(text):
            pass
        return time.thread_time() - begin

    return min(once() for _ in range(5))


@for_each(
    "make",
    [
        lambda n: "{{" * n,
        lambda n: "{{ a." * n,
        lambda n: "{{" + " " * n,
        lambda n: "{{a" + " " * n,
        lambda n: "{{" + "a" * n,
        lambda n: "{{a" + ".a" * n,
        lambda n: "{{a" + "[0]" * n,
        lambda n: "{{a" + ".a-b[0]" * n + " ",
        lambda n: "{{a" + ".a" * n + " " * n + "}",
        lambda n: "{{A.{{B.x}}}}" * n,
        lambda n: "\\" * n + "{{",
        lambda n: "\\{{" * n,
        lambda n: "{{A}}" * n,
        lambda n: ("{{" + "a" * 127 + " ") * (n // 64),
    ],
)
def test_b89_the_time_is_linear_in_the_text(make: Callable[[int], str]) -> None:
    """Eight times the text takes eight times as long; 64 times if anything were read anew at each place."""
    assert work(make(32_000)) < 30 * work(make(4_000)) + 1e-3


@for_each(
    "text, value",
    [
        ("{{A.{{B.x}}}}", "{{A.bee}}"),
        ("{{A.ключ}}", "{{A.ключ}}"),
        ("{{ключ}}", "{{ключ}}"),
        ("{{A.}}", "{{A.}}"),
        ("{{.x}}", "{{.x}}"),
        ("{{A.x", "{{A.x"),
        ("{{ A.x }", "{{ A.x }"),
        ("{{{A.x}}}", "{1}"),
        ("{{{{A.x}}}}", "{{1}}"),
        ("{{{{", "{{{{"),
        ("{{}}", "{{}}"),
        ("}}{{A.x}}{{", "}}1{{"),
        ("\\{{A.x}}", "{{A.x}}"),
        ("\\{{{{A.x}}", "{{1"),
        ("\\\\{{A.x}}", "\\{{A.x}}"),
        ("\\{A}", "\\{A}"),
        ("\\", "\\"),
        ("\\{{", "{{"),
        ("{{A.x}}\x00{{A.x}}", "1\x001"),
    ],
)
def test_b89_odd_braces_are_literal_or_escaped_by_the_grammar(text: str, value: Any) -> None:
    assert filled(text, A={"x": 1}, B={"x": "bee"}) == value


@pytest.mark.parametrize(
    "text", ["{{" * 10**6, "{{ a." * 10**5, "x" * (TEMPLATE_BYTES_MAX + 1), "é" * 40_000], ids="abcd"
)
def test_b89_a_template_of_more_than_64_kib_is_refused(text: str) -> None:
    for call in (
        lambda: find({"a": text}, True),
        lambda: fill({"a": text}, ("/a",), {}, bytes_max=1 << 30),
        lambda: parse(text),
    ):
        with pytest.raises(TemplateError, match="more than 65536 bytes") as caught:
            call()
        assert len(str(caught.value)) < 200
    assert find({"a": text, "b": "{{A}}"}, ("/b",)) == ["A"]


def test_a_template_of_64_kib_is_filled() -> None:
    text = "{{A}}" + "é" * ((TEMPLATE_BYTES_MAX - 6) // 2) + "x"
    assert len(text.encode()) == TEMPLATE_BYTES_MAX
    assert filled(text, A=1) == "1" + text[5:]


def test_a_job_has_at_most_a_thousand_placeholders() -> None:
    most = {"a": "{{A}}" * 400, "b": ["{{B}}"] * (PLACEHOLDERS_MAX - 400)}
    assert find(most, True) == ["A", "B"]
    assert fill(most, True, {"A": 1, "B": 2}, bytes_max=MAX)["b"][-1] == 2
    more = {**most, "c": "{{A}}"}
    for call in (lambda: find(more, True), lambda: fill(more, True, {"A": 1, "B": 2}, bytes_max=MAX)):
        with pytest.raises(TemplateError, match="more than 1000 placeholders"):
            call()
    assert find(more, tuple(f"/b/{n}" for n in range(600))) == ["B"]


def test_b90_oversized_result_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    monkeypatch.setattr(templates._Values, "filled", lambda self, pieces: built.append(1))
    big = "x" * 1_000_000
    for arguments in ({"a": ["{{A}}"] * 1000}, {"a": "{{A}} " * 1000}, {"a": "{{A.0}}{{A.1}}"}):
        with pytest.raises(PayloadError, match=r"more than 1048576 bytes as JSON with its templates filled"):
            fill(arguments, True, {"A": [big, big]}, bytes_max=MAX)
    assert built == []


@pytest.mark.slow
def test_b90_no_more_is_measured_than_fits() -> None:
    """Of results that are too large together only those are read that come before the limit is passed."""
    asked: list[str] = []

    class Results(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            asked.append(name)
            return super().__getitem__(name)

    results = Results({f"A{n}": "x" * 400_000 for n in range(1000)})
    with pytest.raises(PayloadError):
        fill({"a": ["{{" + f"A{n}" + "}}" for n in range(1000)]}, True, results, bytes_max=MAX)
    assert asked == ["A0", "A1", "A2"]


def test_b90_one_value_is_read_and_measured_once() -> None:
    asked: list[str] = []

    class Results(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            asked.append(name)
            return super().__getitem__(name)

    fill({"a": ["{{A}}"] * 200, "b": "{{A}} " * 200}, True, Results(A=1), bytes_max=MAX)
    assert asked == ["A", "A"]


# --- results that are odd --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": {1}}, 10**5000], ids=["nan", "inf", "set", "long"])
def test_non_json_value_is_refused(value: Any) -> None:
    for text in ("{{A}}", "<{{A}}>"):
        with pytest.raises(PayloadError, match="is not JSON"):
            filled(text, A=value)


def test_a_lone_surrogate_is_counted_and_left_to_the_writer() -> None:
    assert filled("<{{A}}>", A="\ud800") == "<\ud800>"


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def test_arguments_may_be_deeper_than_python_recurses_by_default() -> None:
    deep = nested("{{A}}", 5000)
    assert find({"a": deep}, True) == ["A"]
    assert find({"a": deep}, ("/a" + "/0" * 5000,)) == ["A"]


@pytest.mark.slow
def test_arguments_deeper_than_json_can_be_written_are_refused() -> None:
    # How deep that is depends on the interpreter: 1 000 on Python 3.11, 10 000 on 3.13, the size of the stack on 3.14.
    with pytest.raises(PayloadError, match="is not JSON"):
        fill({"a": nested("{{A}}", 200_000)}, True, {"A": 1}, bytes_max=MAX)
