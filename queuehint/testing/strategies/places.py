"""Strategies for places: hints and claims."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal, overload

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from queuehint.testing.strategies.arguments import check_choices, check_range, check_strategy
from queuehint.values.hint import DEPTH_MAX, MODES, PATH_BYTES_MAX, SEGMENT_BYTES_MAX, Claim, parse_hint

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from queuehint.values.hint import Mode

HOSTILE = (
    "root",
    "\\root",
    ":",
    "\\",
    "\\:",
    "a:b",
    "a\\",
    "/",
    ";",
    "*",
    "[a-b]",
    "{a}",
    "{{a.b}}",
    " ",
    "-1",
    "None",
    "%s",
    "é",
    "e\u0301",
    "ß",
    "日本",
    "\U0001f512",
    "\ufffd",
)
"""Segments that are legal, and that code which splits, joins, sorts, matches or normalises gets wrong."""

_CONFUSING = "ab\\:;/9"
"""Characters that keys escape, and those that sort right below and right above a colon."""
_BIDI = "".join(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))


@overload
def hints(
    *,
    alphabet: Collection[str] = ...,
    min_depth: int = ...,
    max_depth: int = ...,
    allow_none: Literal[False],
    hostile: bool = ...,
) -> SearchStrategy[list[str]]: ...


@overload
def hints(
    *,
    alphabet: Collection[str] = ...,
    min_depth: int = ...,
    max_depth: int = ...,
    allow_none: bool = ...,
    hostile: bool = ...,
) -> SearchStrategy[list[str] | None]: ...


def hints(
    *,
    alphabet: Collection[str] = "ab",
    min_depth: int = 0,
    max_depth: int = 2,
    allow_none: bool = True,
    hostile: bool = False,
) -> SearchStrategy[Any]:
    r"""
    Generate queue hints: lists of segments, and ``None`` for no place.

    Shrinks towards ``None``, then towards ``[]``, few segments and the first of the alphabet.

    Args:
        alphabet: the segments to choose from; of a str, its characters.
        min_depth, max_depth: how many segments, 0–64.
        allow_none: also generate ``None``; say False where a place is needed.
        hostile: also generate segments with ``:`` and ``\``, ``root``, other scripts, and 256 bytes long.

    Raises:
        InvalidArgument: an argument is of the wrong type or out of its range.

    >>> from hypothesis import find
    >>> find(hints(), lambda hint: hint is not None and len(hint) == 2)
    ['a', 'a']

    .. versionadded:: 1.0.0
    """
    check_range("depth", min_depth, max_depth, most=DEPTH_MAX)
    segments = _segments(
        alphabet, hostile=hostile, bytes_max=min(SEGMENT_BYTES_MAX, PATH_BYTES_MAX // max(max_depth, 1))
    )
    # The root conflicts with everything: it is to come up, and not to be what every example is about.
    depths = [depth for depth in range(min_depth, max_depth + 1) for _ in range(1 if depth == 0 else 3)]
    places = st.sampled_from(depths).flatmap(lambda depth: st.lists(segments, min_size=depth, max_size=depth))
    return st.integers(0, 7).flatmap(lambda roll: places if roll else st.none()) if allow_none else places


def _segments(alphabet: object, *, hostile: bool, bytes_max: int) -> SearchStrategy[str]:
    if not isinstance(alphabet, Collection) or not alphabet:
        raise InvalidArgument(f"alphabet={alphabet!r} must be segments to choose from, at least one")
    chosen = tuple(alphabet)
    try:
        for segment in chosen:
            parse_hint([segment], parameter="alphabet")
    except ValueError as error:
        raise InvalidArgument(f"alphabet={alphabet!r}: {error}") from None
    if any(len(segment.encode()) > bytes_max for segment in chosen):
        raise InvalidArgument(f"alphabet={alphabet!r} has segments that are too long to be put together so often")
    if not hostile:
        return st.sampled_from(chosen)
    longest = ("x" * bytes_max, "é" * (bytes_max // 2))
    characters = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters=_BIDI)
    return st.one_of(
        st.sampled_from(chosen),
        st.sampled_from((*HOSTILE, *longest)),
        # A segment that begins like another one is not below it.
        st.sampled_from([one + end for one in chosen for end in _CONFUSING if len(one.encode()) < bytes_max] or chosen),
        st.text(_CONFUSING, min_size=1, max_size=3),
        st.text(characters, min_size=1, max_size=4),
    )


PLACES = hints(allow_none=False)


def claims(
    *, hints: SearchStrategy[list[str]] = PLACES, modes: Collection[Mode] = ("exclusive", "shared")
) -> SearchStrategy[Claim]:
    """
    Generate claims.

    Shrinks towards the first of *modes*, then as *hints* do.

    Args:
        hints: the places, none of them ``None``.
        modes: which to choose from.

    Raises:
        InvalidArgument: an argument is of the wrong type or out of its range.

    .. versionadded:: 1.0.0
    """
    check_strategy("hints", hints)
    chosen = check_choices("modes", modes, MODES)
    return st.builds(Claim, hints.map(tuple), st.sampled_from(chosen))


CLAIMS = claims()
