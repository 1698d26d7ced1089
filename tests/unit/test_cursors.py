"""Pagination cursors are accepted by their own listing only."""

from __future__ import annotations

import base64
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import InvalidJobError, InvalidJobTypeError, JobState
from queuehint.scheduler.records.cursors import read_cursor, write_cursor
from queuehint.values.hint import DEPTH_MAX, PATH_BYTES_MAX, queue_key
from queuehint.values.record_filter import RecordFilter
from tests.each import for_each

ALL = RecordFilter()
ASKED = RecordFilter(user="ann", states=(JobState.FAILED,), path=("doc1",), since_ms=5)
positions = st.tuples(st.text(max_size=300), st.integers(0, 2**63 - 1))


@given(positions, st.booleans())
def test_cursor_round_trips(after: Any, newest_first: bool) -> None:
    cursor = write_cursor(after, ASKED, newest_first=newest_first)
    assert read_cursor(cursor, ASKED, newest_first=newest_first) == after
    assert cursor.isascii()
    assert cursor.replace("-", "").replace("_", "").isalnum()


def test_the_longest_queue_key_fits() -> None:
    path = ("\\" * (PATH_BYTES_MAX // DEPTH_MAX),) * DEPTH_MAX
    after = (queue_key(path), 2**62)
    assert read_cursor(write_cursor(after, ALL), ALL) == after


@for_each(
    "other",
    [
        ALL,
        attrs.evolve(ASKED, user="ben"),
        attrs.evolve(ASKED, user=None, service="ann"),
        attrs.evolve(ASKED, states=()),
        attrs.evolve(ASKED, states=(JobState.FAILED, JobState.CANCELED)),
        attrs.evolve(ASKED, path=("doc1", "a")),
        attrs.evolve(ASKED, path=()),
        attrs.evolve(ASKED, path=None),
        attrs.evolve(ASKED, since_ms=6),
        attrs.evolve(ASKED, since_ms=None, until_ms=5),
        attrs.evolve(ASKED, since_ms=0),
    ],
)
def test_a_cursor_of_another_question_is_refused(other: RecordFilter) -> None:
    cursor = write_cursor(("doc1:a", 7), ASKED)
    with pytest.raises(InvalidJobError, match="cursor"):
        read_cursor(cursor, other)


def test_a_cursor_of_the_other_order_is_refused() -> None:
    with pytest.raises(InvalidJobError, match="cursor"):
        read_cursor(write_cursor(("", 7), ALL), ALL, newest_first=True)
    with pytest.raises(InvalidJobError, match="cursor"):
        read_cursor(write_cursor(("", 7), ALL), ALL, by_time=True)


def test_the_root_is_another_question_than_no_path() -> None:
    with pytest.raises(InvalidJobError, match="cursor"):
        read_cursor(write_cursor(("", 7), RecordFilter(path=())), ALL)


@for_each("cursor", ["", "abc", "-1", "0", "1000000000", "a" * 10**6, "\x00", "é", "\ud800", "a b", "=="])
def test_garbage_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidJobError, match="cursor"):
        read_cursor(cursor, ALL)


@pytest.mark.parametrize("cursor", [-1, 0, 10**9, b"abc", ["abc"], 1.5, True])
def test_cursor_of_wrong_type_is_refused(cursor: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match="cursor must be str"):
        read_cursor(cursor, ALL)


def test_a_cursor_changed_anywhere_is_refused() -> None:
    cursor = write_cursor(("doc1", 7), ALL)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    forged = [cursor[:place] + letter + cursor[place + 1 :] for place in range(len(cursor)) for letter in letters]
    forged += [cursor[:-1], cursor[1:], cursor + "A", cursor + "=", cursor + "\n", " " + cursor]
    for other in forged:
        if other != cursor:
            with pytest.raises(InvalidJobError, match="cursor"):
                read_cursor(other, ALL)


def test_a_cursor_of_another_version_is_refused() -> None:
    packed = base64.urlsafe_b64decode(write_cursor(("", 7), ALL) + "==")
    other = base64.urlsafe_b64encode(b"\x02" + packed[1:]).rstrip(b"=").decode()
    with pytest.raises(InvalidJobError, match="cursor"):
        read_cursor(other, ALL)
