"""When a leader looks into its inbox: by the times of rows that came, and of those that are expected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint.backends.journal.looks import HASTE, HASTE_S, LATE_S, LIVELY_S, Looks

USUAL_S = 0.02


def test_look_is_soon_after_an_unannounced_row_and_later_usual() -> None:
    looks = Looks()
    assert looks.in_s(USUAL_S, 100.0) == USUAL_S
    looks.found(100.0)
    assert looks.in_s(USUAL_S, 100.0) == LIVELY_S
    assert looks.in_s(USUAL_S, 100.0 + 2 * LIVELY_S * HASTE) == pytest.approx(2 * LIVELY_S)
    assert looks.in_s(USUAL_S, 101.0) == USUAL_S
    looks.found(102.0)
    assert looks.in_s(USUAL_S, 102.0) == LIVELY_S


def test_look_is_soon_until_an_expected_transaction_has_ended() -> None:
    looks = Looks()
    looks.expect(7, 100.0)
    assert looks.in_s(USUAL_S, 100.0) == HASTE_S
    assert looks.begin(USUAL_S, 100.0)
    looks.expect(5, 100.1)
    looks.seen = 7
    assert looks.in_s(USUAL_S, 100.1) == HASTE_S, "transaction 7 may still go on"
    looks.seen = 8
    assert looks.in_s(USUAL_S, 100.1) == USUAL_S
    assert not looks.begin(USUAL_S, 100.1)


def test_transaction_that_takes_long_counts_as_unexpected() -> None:
    looks = Looks()
    looks.expect(7, 100.0)
    assert not looks.begin(USUAL_S, 101.0)


@given(
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["found", "expected", "ended"])), max_size=20),
    st.floats(0, 2),
)
def test_interval_of_looks_agrees_with_its_definition(history: list[tuple[float, str]], then_s: float) -> None:
    looks, now_s, transaction = Looks(), 1000.0, 0
    since: dict[str, float] = {}
    for after_s, event in history:
        now_s += after_s
        if event == "found":
            looks.found(now_s)
            since["found"] = now_s
        elif event == "expected":
            transaction += 1
            looks.expect(transaction, now_s)
            since["expected"] = now_s
        else:
            looks.seen = transaction + 1
            since.pop("expected", None)
    now_s += then_s
    expected = USUAL_S
    for event, least_s in (("found", LIVELY_S), ("expected", HASTE_S)):
        if event in since:
            expected = min(expected, max(least_s, (now_s - since[event]) / HASTE))
    assert looks.in_s(USUAL_S, now_s) == expected


def test_next_look_is_brought_forward_only_where_it_is_late() -> None:
    looks = Looks()
    looks.plan(USUAL_S, 100.0)
    assert not looks.is_due(100.0)
    assert looks.expect(1, 100.0)
    assert not looks.expect(2, 100.0 + USUAL_S - HASTE_S / 2)
    assert looks.is_due(100.0 + USUAL_S)


def test_announced_rows_are_expected_by_one_look() -> None:
    looks = Looks()
    assert not looks.begin(USUAL_S, 100.0)
    looks.announce()
    assert looks.begin(USUAL_S, 100.0)
    assert not looks.begin(USUAL_S, 100.0)


def test_row_that_is_announced_after_it_was_found_was_expected() -> None:
    looks = Looks()
    looks.found(100.0)
    looks.announce()
    assert looks.begin(USUAL_S, 100.0 + LATE_S / 2)
    assert looks.in_s(USUAL_S, 100.0 + LATE_S / 2) == USUAL_S
    looks.found(101.0)
    looks.announce()
    looks.begin(USUAL_S, 101.0 + LATE_S)
    assert looks.in_s(USUAL_S, 101.0 + LATE_S) < USUAL_S, "that is about another row"
