"""Checks of the arguments of strategies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

Value = TypeVar("Value")


def check_range(what: str, least: object, most_wanted: object, *, most: int) -> None:
    """Check the bounds of a size."""
    for name, value in ((f"min_{what}", least), (f"max_{what}", most_wanted)):
        if type(value) is not int or not 0 <= value <= most:
            raise InvalidArgument(f"{name}={value!r} must be an int from 0 to {most}")
    assert isinstance(least, int) and isinstance(most_wanted, int)
    if least > most_wanted:
        raise InvalidArgument(f"min_{what}={least} must not be more than max_{what}={most_wanted}")


def check_amount(name: str, value: object, *, most: int) -> None:
    """Check that at least one of something is wanted."""
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidArgument(f"{name}={value!r} must be an int from 1 to {most}")


def check_strategy(name: str, value: object) -> None:
    """Check that a strategy is given and not a value."""
    if not isinstance(value, st.SearchStrategy):
        raise InvalidArgument(f"{name}={value!r} must be a strategy; st.just(...) makes one of a value")


def check_choices(
    name: str, chosen: object, known: Collection[Value], *, may_be_empty: bool = False
) -> tuple[Value, ...]:
    """Check that some of the known values are chosen, or none if allowed."""
    is_some = isinstance(chosen, Collection) and not isinstance(chosen, str) and (may_be_empty or len(chosen) > 0)
    if not is_some or not isinstance(chosen, Collection) or not set(chosen) <= set(known):
        raise InvalidArgument(f"{name}={chosen!r} must be some of {', '.join(map(repr, known))}")
    return tuple(chosen)
