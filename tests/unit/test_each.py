"""`for_each`, one test of many values, and `slow_after`, which parameters are slow."""

from __future__ import annotations

import inspect

import pytest

from tests.each import for_each
from tests.support import slow_after

SEEN: list[object] = []


def test_all_values_that_fail_are_named() -> None:
    @for_each("number, word", [(1, "a"), (2, "b"), (3, "c")], ids=["one", "two", "three"])
    def odd(number: int, word: str) -> None:
        assert number % 2 == 0, word

    with pytest.raises(AssertionError, match=r"2 of 3 values:\n\[one\] AssertionError: a[^\[]*\[three\]") as caught:
        odd()
    assert isinstance(caught.value.__cause__, AssertionError)


def test_a_value_that_fails_by_pytest_is_named() -> None:
    @for_each("text", ["7", "x"])
    def refused(text: str) -> None:
        with pytest.raises(ValueError, match="invalid"):
            int(text)

    with pytest.raises(AssertionError, match=r"1 of 2 values:\n\['7'\] Failed"):
        refused()


def test_a_name_is_made_of_a_value() -> None:
    @for_each("kind", [int, str], ids=lambda kind: kind.__name__)
    def never(kind: type) -> None:
        raise KeyError(kind)

    with pytest.raises(AssertionError, match=r"\[int\] KeyError.*\n\[str\] KeyError"):
        never()


@for_each("low", [1, 2])
@for_each("high", [3, 4])
def test_values_of_two_decorators_meet(low: int, high: int) -> None:
    SEEN.append((low, high))


def test_remaining_parameters_are_fixtures() -> None:
    @for_each("low", [1])
    def asks(tmp_path: object, low: int) -> None:
        assert (tmp_path, low) == ("here", 1)

    assert list(inspect.signature(asks).parameters) == ["tmp_path"]
    asks(tmp_path="here")
    test_values_of_two_decorators_meet()
    assert {(1, 3), (1, 4), (2, 3), (2, 4)} == set(SEEN)


def test_values_that_do_not_fit_the_names_are_refused() -> None:
    with pytest.raises(AssertionError, match="each is 2 values"):
        for_each("one, two", [(1,)])
    with pytest.raises(AssertionError, match="there is no value"):
        for_each("one", [])
    with pytest.raises(AssertionError, match="each value has an id"):
        for_each("one", [1, 2], ids=["a"])


def test_parameters_after_the_first_ones_are_slow() -> None:
    at_night = pytest.param("c", 2, id="d", marks=[pytest.mark.nightly])
    assert slow_after(1, ["a", (), at_night]) == [
        pytest.param("a"),
        pytest.param((), marks=[pytest.mark.slow]),
        pytest.param("c", 2, id="d", marks=[pytest.mark.nightly, pytest.mark.slow]),
    ]
