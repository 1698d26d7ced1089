"""`for_each`: one test of many values, which reports each value that fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.support import for_each


def made(values: Iterable[Any]) -> Any:
    @for_each(values)
    def test(value: int, limit: int) -> None:
        assert value < limit

    return test


def test_all_values_are_tried_and_those_that_fail_are_named() -> None:
    with pytest.raises(ExceptionGroup, match="2 of 3 values") as caught:
        made([5, 1, 7])(limit=3)
    assert [error.__notes__ for error in caught.value.exceptions] == [["with 5"], ["with 7"]]
    made([5, 1, 7])(limit=8)


def test_without_any_value_it_fails() -> None:
    with pytest.raises(AssertionError):
        made([])(limit=3)


@for_each(["a", "b"])
def test_fixtures_are_taken_as_in_any_test(value: str, tmp_path: object) -> None:
    assert value in {"a", "b"}
    assert tmp_path
