"""One test of many values, where pytest's ``parametrize`` would make a test of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest

SHOWN_MAX = 80


def for_each(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], str | None] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Run a test with each of some values, and name all of those that it fails with.

    For quick checks that leave nothing behind: they share their fixtures. It takes what ``pytest.mark.parametrize``
    takes, but no marks.

    Args:
        names: of the parameters, with commas between them.
        values: of the parameter; of several, a tuple each.
        ids: what to call the values, or how to make that of one.
    """
    of = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = [(value if len(of) > 1 else (value,)) for value in values]
    assert given, "there is no value"
    assert all(len(each) == len(of) for each in given), f"each is {len(of)} values"
    said = None if ids is None or callable(ids) else list(ids)
    assert said is None or len(said) == len(given), "each value has an id"

    def name_of(number: int) -> str:
        if said is not None:
            return said[number]
        made = [ids(value) if callable(ids) else None for value in given[number]]
        return ", ".join(
            repr(value)[:SHOWN_MAX] if name is None else name for name, value in zip(made, given[number], strict=True)
        )

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        assert not inspect.iscoroutinefunction(test), "a coroutine function is not run here"

        @wraps(test)
        def run(**fixtures: Any) -> None:
            __tracebackhide__ = True
            failures: list[tuple[str, Exception]] = []
            for number, each in enumerate(given):
                try:
                    test(**fixtures, **dict(zip(of, each, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    failures.append((name_of(number), error))  # type: ignore[arg-type]
            if failures:
                told = "\n".join(f"[{name}] {type(error).__name__}: {error}" for name, error in failures)
                raise AssertionError(f"{len(failures)} of {len(given)} values:\n{told}") from failures[0][1]

        whole = inspect.signature(test)
        left = [parameter for name, parameter in whole.parameters.items() if name not in of]
        run.__signature__ = whole.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
