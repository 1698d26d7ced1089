"""Queue hints: accepted input, conflicts between paths, and keys of paths."""

from __future__ import annotations

import itertools
import pathlib
import tracemalloc
import uuid
from enum import StrEnum
from typing import Any

import pytest

from queuehint.errors import InvalidHintError, InvalidHintTypeError
from queuehint.testing.driver import SHARED, claim
from queuehint.values.hint import (
    Claim,
    conflict,
    is_prefix,
    keys_below,
    meet,
    normalise,
    parse_claims,
    parse_hint,
    parse_key,
    parse_mode,
    parse_path,
    queue_key,
)
from tests.each import for_each
from tests.support import HostileStr

PATHS: list[tuple[str, ...]] = [
    (),
    ("root",),
    ("root", "x"),
    ("root", "root"),
    ("\\root",),
    ("a",),
    ("a", "b"),
    ("a", "b", "c"),
    ("a:b",),
    ("a\\", "b"),
    ("a\\:b",),
    ("a;b",),
    ("a!",),
    ("A",),
    ("doc1",),
    ("doc10",),
    (":",),
    ("\\",),
    (":", ":"),
    ("a:", "b"),
    ("é",),
    ("e\u0301",),
    ("\U0001f600", "x"),
]


def refused(hint: object) -> str:
    with pytest.raises(InvalidHintError) as caught:
        parse_hint(hint)
    message = str(caught.value)
    assert message.startswith("queue_hint ")
    return message


# --- what is a hint --------------------------------------------------------------------------------------------------


def test_none_is_no_place_and_an_empty_list_is_root() -> None:
    assert parse_hint(None) is None
    assert parse_hint([]) == ()
    assert parse_hint(()) == ()


def test_a_list_and_a_tuple_give_the_same_path() -> None:
    assert parse_hint(["doc1", "intro"]) == parse_hint(("doc1", "intro")) == ("doc1", "intro")


def test_bare_str_hint_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidHintTypeError, match=r"got str; did you mean \['doc1'\]\?"):
        parse_hint("doc1")
    with pytest.raises(InvalidHintTypeError, match=r"did you mean \['doc1'\]\?"):
        parse_hint(HostileStr("doc1"))


@pytest.mark.parametrize(
    "hint",
    [b"doc1", bytearray(b"doc1"), memoryview(b"doc1"), 1, True, 1.5, object(), iter(["a"]), (part for part in "ab")],
    ids=lambda value: type(value).__name__,
)
def test_non_list_hint_raises_a_type_error_naming_the_value(hint: object) -> None:
    with pytest.raises(InvalidHintTypeError) as caught:
        parse_hint(hint)
    assert f"got {type(hint).__name__}: " in str(caught.value)


@pytest.mark.parametrize(
    "hint", [{"a", "b"}, frozenset("a"), {"a": 1}, {"a": 1}.keys()], ids=lambda value: type(value).__name__
)
def test_unordered_hint_is_refused(hint: object) -> None:
    with pytest.raises(InvalidHintTypeError, match="which has no order"):
        parse_hint(hint)


@pytest.mark.parametrize("segment", [1, True, None, ["a"], b"a", pathlib.PurePath("x"), uuid.uuid4(), 1.5])
def test_non_str_segment_is_refused_by_index_and_type(segment: object) -> None:
    with pytest.raises(InvalidHintTypeError) as caught:
        parse_hint(["a", segment])
    assert f"queue_hint segment 1 must be str, got {type(segment).__name__}: " in str(caught.value)


def test_an_empty_segment_is_refused_by_index() -> None:
    assert "segment 0 is empty; it must be 1 to 256 bytes" in refused([""])
    assert "segment 1 is empty" in refused(["a", ""])


@for_each(
    "segment",
    [
        *["a/b", "a.b", "a|b", "*", "?", "[x]", "\\", "{x}", "{", "}", "{}", "a:b", ":", "root"],
        *["__proto__", "constructor", "../../etc", "%2e%2e", "CON", " a", "a ", " ", "\u00a0"],
        *["é", "e\u0301", "ﬁ", "\u0410", "ß", "\u200d", "\ufeff", "\U0001f600", "Doc1", "<script>", "'; --"],
    ],
)
def test_any_printable_text_is_literal(segment: str) -> None:
    assert parse_hint([segment]) == (segment,)


@pytest.mark.parametrize(
    "one, other",
    [("é", "e\u0301"), ("Doc1", "doc1"), ("ß", "SS"), ("\u0410", "A"), ("ﬁ", "fi"), ("a", " a"), ("doc1", "doc10")],
)
def test_nothing_is_folded_or_normalised(one: str, other: str) -> None:
    assert parse_hint([one]) != parse_hint([other])
    assert not meet((one,), (other,))


@pytest.mark.parametrize("character", ["\x00", "\n", "\r", "\t", "\x1b", "\x7f", "\x80", "\x9f"])
def test_control_characters_are_refused_by_code(character: str) -> None:
    assert f"segment 1 holds the control character U+{ord(character):04X}: " in refused(["a", f"b{character}c"])


@pytest.mark.parametrize("character", ["\u202a", "\u202e", "\u2066", "\u2069"])
def test_bidirectional_controls_are_refused_by_code(character: str) -> None:
    assert f"holds the bidirectional control U+{ord(character):04X}" in refused([f"b{character}c"])


@pytest.mark.parametrize("segment", ["\ud800", "a\udfff"])
def test_a_lone_surrogate_is_refused_because_it_cannot_be_sent(segment: str) -> None:
    assert "segment 0 is not encodable as UTF-8" in refused([segment])


@pytest.mark.parametrize(
    "segment, size",
    [
        ("x" * 257, "257"),
        ("x" * 2**20, "1048576"),
        ("é" * 129, "258"),
        ("é" * 300, "more than 300"),
        ("\ud800" * 100, "300"),
    ],
    ids=["one too many", "1 MiB", "two bytes each", "long and not ASCII", "surrogates"],
)
def test_segment_over_256_bytes_is_refused_with_size_and_limit(segment: str, size: str) -> None:
    message = refused([segment])
    assert f"segment 0 is {size} bytes, limit 256: " in message
    assert len(message) < 200


def test_a_segment_of_256_bytes_is_valid() -> None:
    assert parse_hint(["x" * 256]) == ("x" * 256,)
    assert parse_hint(["é" * 128]) == ("é" * 128,)


def test_64_segments_are_valid_and_65_are_not() -> None:
    assert parse_hint(["a"] * 64) == ("a",) * 64
    assert refused(["a"] * 65) == "queue_hint has 65 segments, limit 64: 'a', …"


@pytest.mark.parametrize("count", [10_000, 1_000_000])
def test_a_million_segments_are_refused_without_looking_at_them(count: int) -> None:
    class Counted(list[str]):
        seen = 0

        def __iter__(self) -> Any:
            for segment in list.__iter__(self):
                Counted.seen += 1
                yield segment

    hint = Counted(["a"]) * count
    hint = Counted(hint)
    tracemalloc.start()
    try:
        assert f"{count} segments" in refused(hint)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()
    assert Counted.seen == 65


def test_path_of_4096_bytes_is_valid_and_one_more_refused() -> None:
    hint = ["x" * 256] * 16
    assert parse_hint(hint) == tuple(hint)
    assert "is 4097 bytes in all, limit 4096: 'xxx" in refused([*hint, "y"])
    assert "is 4098 bytes in all" in refused([*hint, "é"])


def test_a_str_subclass_is_copied_without_asking_it_anything() -> None:
    path = parse_hint([HostileStr("a"), "b"])
    assert path is not None
    assert [type(segment) for segment in path] == [str, str]
    assert path == ("a", "b")

    class Section(StrEnum):
        INTRO = "intro"

    assert parse_hint(["doc1", Section.INTRO]) == ("doc1", "intro")


def test_hostile_str_is_validated_by_its_content() -> None:
    assert "segment 0 is empty" in refused([HostileStr("")])
    assert "control character U+000A" in refused([HostileStr("\n")])
    assert "limit 256" in refused([HostileStr("x" * 257)])


def test_a_list_changed_after_the_call_changes_nothing() -> None:
    hint = ["doc1", "intro"]
    path = parse_hint(hint)
    hint[0] = ""
    hint.append("x")
    assert path == ("doc1", "intro")


def test_a_list_is_read_once_before_it_is_judged() -> None:
    class Changing(list[str]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("read again")

    assert parse_hint(Changing(["a", "b"])) == ("a", "b")


def test_a_place_may_be_demanded() -> None:
    assert parse_path(["a"]) == ("a",)
    assert parse_path([]) == ()
    with pytest.raises(InvalidHintTypeError, match=r"^path must be a list of segments, got None; \[\] is the root"):
        parse_path(None)


def test_a_message_names_the_parameter_that_was_passed() -> None:
    with pytest.raises(InvalidHintError, match=r"^claims\[1\] segment 0 is empty"):
        parse_hint([""], parameter="claims[1]")


# --- claims ----------------------------------------------------------------------------------------------------------


def test_a_mode_is_one_of_two_words() -> None:
    assert parse_mode("exclusive") == "exclusive"
    assert parse_mode("shared") == "shared"
    assert type(parse_mode(HostileStr("shared"))) is str


@pytest.mark.parametrize("mode", ["", "Shared", "read", HostileStr("x")])
def test_another_word_is_no_mode(mode: str) -> None:
    with pytest.raises(InvalidHintError, match="mode must be one of exclusive, shared, got "):
        parse_mode(mode)


@pytest.mark.parametrize("mode", [None, True, 1, b"shared", ["shared"]])
def test_a_mode_of_another_type_is_a_type_error(mode: object) -> None:
    with pytest.raises(InvalidHintTypeError, match=f"must be one of exclusive, shared, got {type(mode).__name__}: "):
        parse_mode(mode)


def test_claims_are_hints_or_pairs_or_claims() -> None:
    assert parse_claims([["a"], (["b"], "shared"), Claim(("c",), "shared"), ("d", "e")]) == (
        claim("a"),
        claim("b", mode=SHARED),
        claim("c", mode=SHARED),
        claim("d", "e"),
    )
    assert parse_claims([((), "shared")]) == (claim(mode=SHARED),)
    assert parse_claims(()) == ()


def test_a_claim_made_by_hand_is_checked_and_made_plain() -> None:
    path: Any = ["a", HostileStr("b")]
    mode: Any = HostileStr("shared")
    (made,) = parse_claims([Claim(path, mode)])
    assert made == Claim(("a", "b"), "shared")
    assert [type(value) for value in (made.path, made.path[1], made.mode)] == [tuple, str, str]
    mode = HostileStr("counted")
    assert parse_claims([Claim(path, mode)]) == (Claim(("a", "b"), "counted"),)


def test_counted_claim_conflicts_with_none_and_stands_alone() -> None:
    counted = (Claim(("a",), "counted"),)
    for other in (claim("a"), claim(), claim("a", mode=SHARED), *counted):
        assert not conflict(counted, (other,))
        assert not conflict((other,), counted)
    with pytest.raises(InvalidHintError, match="the counted one of 'a' is that of a permit, and must stand alone"):
        parse_claims([["b"], *counted])
    with pytest.raises(InvalidHintError, match="mode must be one of exclusive, shared, got 'counted'"):
        parse_claims([(["a"], "counted")])


@pytest.mark.parametrize(
    "claims, text",
    [
        ("doc1", "claims must be a list of claims, got str: 'doc1'"),
        (None, "claims must be a list of claims, got NoneType: None"),
        ({("a",)}, "claims must be a list of claims, got set: "),
        ([None], r"claims\[0\] must be a list of segments, got None"),
        (["doc1"], r"claims\[0\] must be a list of segments, got str; did you mean"),
        ([["a"], [1]], r"claims\[1\] segment 0 must be str, got int: 1"),
        ([(["a"], "write")], r"claims\[0\] mode must be one of exclusive, shared, got 'write'"),
        ([[["a"], "shared"]], r"claims\[0\] segment 0 must be str, got list"),
        ([["a"]] * 65, r"claims holds 65 claims, limit 64"),
    ],
)
def test_wrong_claims_are_refused_by_index(claims: object, text: str) -> None:
    with pytest.raises(InvalidHintError, match=f"^{text}"):
        parse_claims(claims)


def test_64_claims_are_valid() -> None:
    assert len(parse_claims([[f"a{number}"] for number in range(64)])) == 64


@for_each(
    "claims, normal",
    [
        ([claim("a"), claim("a", "b")], [claim("a")]),
        ([claim("a", "b"), claim("a")], [claim("a")]),
        ([claim("a"), claim("a", "b", mode=SHARED)], [claim("a")]),
        ([claim("a", mode=SHARED), claim("a", "b", mode=SHARED)], [claim("a", mode=SHARED)]),
        ([claim("a", mode=SHARED), claim("a", "b")], [claim("a")]),
        ([claim("a", mode=SHARED), claim("a")], [claim("a")]),
        ([claim("a"), claim("a")], [claim("a")]),
        ([claim("a", "c", mode=SHARED), claim("a", "b"), claim("a", mode=SHARED)], [claim("a")]),
        ([claim(), claim("a"), claim("b", mode=SHARED)], [claim()]),
        ([claim(mode=SHARED), claim("a", "b")], [claim()]),
        ([claim("b"), claim("a", mode=SHARED)], [claim("a", mode=SHARED), claim("b")]),
        ([claim("a", "b"), claim("a!"), claim("a")], [claim("a"), claim("a!")]),
        ([claim("doc10"), claim("doc1")], [claim("doc1"), claim("doc10")]),
    ],
)
def test_normalised_claims_omit_covered_claims(claims: list[Claim], normal: list[Claim]) -> None:
    assert normalise(claims) == tuple(normal)


def test_normalised_claims_conflict_with_the_same_jobs_and_are_disjoint() -> None:
    paths: list[tuple[str, ...]] = [(), ("a",), ("a", "b"), ("a", "c"), ("b",)]
    universe = [Claim(path, mode) for path in paths for mode in ("exclusive", SHARED)]
    for claims in itertools.combinations(universe, 3):
        normal = normalise(claims)
        assert normalise(normal) == normal
        assert not any(meet(one.path, other.path) for one, other in itertools.combinations(normal, 2))
        for other in universe:
            assert conflict(claims, [other]) <= conflict(normal, [other])


# --- relations -------------------------------------------------------------------------------------------------------


@for_each(
    "path, other, expected",
    [
        ((), (), True),
        ((), ("a",), True),
        (("a",), (), False),
        (("a",), ("a",), True),
        (("a",), ("a", "b"), True),
        (("a", "b"), ("a",), False),
        (("a",), ("b", "a"), False),
        (("doc1",), ("doc10",), False),
        (("a", "b"), ("a:b",), False),
        (("root",), (), False),
    ],
)
def test_a_prefix_is_the_path_itself_or_an_ancestor(
    path: tuple[str, ...], other: tuple[str, ...], expected: bool
) -> None:
    assert is_prefix(path, other) is expected
    assert meet(path, other) is meet(other, path) is (expected or is_prefix(other, path))


def test_claims_that_meet_conflict_unless_both_are_shared() -> None:
    assert conflict([claim("a")], [claim("a", "b")])
    assert conflict([claim("a", mode=SHARED)], [claim("a", "b")])
    assert conflict([claim("a")], [claim("a", "b", mode=SHARED)])
    assert not conflict([claim("a", mode=SHARED)], [claim("a", "b", mode=SHARED)])
    assert not conflict([claim("a")], [claim("b")])
    assert not conflict([], [claim()])
    assert conflict(iter([claim("a"), claim("b")]), iter([claim("x"), claim("b", "c")]))


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, key",
    [
        ((), "root"),
        (("root",), "\\root"),
        (("root", "x"), "root:x"),
        (("doc1", "scope1"), "doc1:scope1"),
        (("a:b",), "a\\:b"),
        (("a\\b",), "a\\\\b"),
        (("a:", "b"), "a\\::b"),
    ],
)
def test_a_key_is_the_segments_with_colons_and_backslashes_escaped(path: tuple[str, ...], key: str) -> None:
    assert queue_key(path) == key
    assert parse_key(key) == path


def test_path_keys_are_unique_and_reversible() -> None:
    keys = [queue_key(path) for path in PATHS]
    assert len(set(keys)) == len(PATHS)
    assert [parse_key(key) for key in keys] == PATHS


def test_keys_of_exactly_the_descendants_sort_below_a_path() -> None:
    for path in PATHS[1:]:
        low, high = keys_below(path)
        below = [other for other in PATHS if low < queue_key(other) < high]
        assert below == [other for other in PATHS if is_prefix(path, other) and path != other]


@for_each(
    "key", ["", ":", "a:", ":a", "a::b", "a\\", "\\a", "a\\x", "\\root:x", "\\r\\oot", "\n", "a:\ud800", "x" * 257]
)
def test_text_that_is_no_path_s_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidHintError):
        parse_key(key)


@pytest.mark.parametrize("key", ["a:" * 100 + "a", ":".join(["x" * 250] * 20), "x" * 10_000_000])
def test_a_key_of_a_path_beyond_the_limits_is_refused(key: str) -> None:
    with pytest.raises(InvalidHintError, match=r"limit|at most") as caught:
        parse_key(key)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("key", [None, 1, b"a", ["a"]])
def test_a_key_of_another_type_is_a_type_error(key: Any) -> None:
    with pytest.raises(InvalidHintTypeError, match="a queue key must be str, got " + type(key).__name__):
        parse_key(key)
