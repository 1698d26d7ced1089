"""Which positions of the inbox are looked at: what was not visible is never missed, and what was taken is not read."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint.backends.postgres.journal import positions as positions_module
from queuehint.backends.postgres.journal.positions import GAPS_MAX, WIDE, WIDE_EVERY_S, Positions


def ranges(positions: Positions, now_s: float = 1e9, behind: int = 0) -> list[tuple[int, int]]:
    return list(zip(*positions.ranges(now_s, behind), strict=True))


def test_positions_below_the_first_row_are_a_gap() -> None:
    positions = Positions()
    positions.take([3, 4])
    assert (positions.high, ranges(positions)) == (4, [(1, 2)])


def test_a_gap_is_noticed_before_it_is_forgotten() -> None:
    positions = Positions()
    positions.take([2])
    positions.saw([], xmin=500, xmax=500, is_whole=True)  # whoever owns it may have begun before 500
    assert ranges(positions) == [(1, 1)]
    positions.saw([], xmin=499, xmax=600, is_whole=True)  # one of those runs still
    assert ranges(positions) == [(1, 1)]
    positions.saw([], xmin=500, xmax=600, is_whole=True)
    assert ranges(positions) == []


def test_gap_of_a_found_row_is_kept_until_taken() -> None:
    positions = Positions()
    positions.take([4])
    ranges(positions)
    positions.saw([], xmin=1, xmax=5, is_whole=True)
    positions.saw([2], xmin=9, xmax=9, is_whole=True)
    assert ranges(positions) == [(1, 3)]
    positions.take([2])
    assert ranges(positions) == [(1, 1), (3, 3)]


def test_a_gap_is_kept_if_not_all_rows_were_read() -> None:
    positions = Positions()
    positions.take([4])
    ranges(positions)
    positions.saw([], xmin=1, xmax=5, is_whole=True)
    positions.saw([9], xmin=9, xmax=9, is_whole=False)
    assert ranges(positions) == [(1, 3)]


def test_wide_gap_is_polled_and_forgotten_only_after_a_look() -> None:
    positions = Positions()
    positions.take([WIDE + 2])
    assert ranges(positions, 1.0) == [(1, WIDE + 1)]
    positions.saw([], xmin=1, xmax=5, is_whole=True)
    assert ranges(positions, 1.0 + WIDE_EVERY_S / 2) == []
    positions.saw([], xmin=9, xmax=9, is_whole=True)
    assert ranges(positions, 1.0 + WIDE_EVERY_S) == [(1, WIDE + 1)]
    positions.saw([], xmin=9, xmax=9, is_whole=True)
    assert ranges(positions, 9.0) == []


def test_wide_gap_is_named_for_transactions_as_old() -> None:
    positions = Positions()
    positions.take([WIDE + 2])
    assert ranges(positions, 1.0) == [(1, WIDE + 1)]
    positions.saw([], xmin=1, xmax=5, is_whole=True)
    assert ranges(positions, 1.0, behind=4) == [(1, WIDE + 1)]
    assert positions.asks_all
    assert ranges(positions, 1.0, behind=5) == [], "it had not begun when the gap was noticed"
    assert not positions.asks_all
    positions.take([3 * WIDE])
    assert ranges(positions, 1.0, behind=99) == [(WIDE + 3, 3 * WIDE - 1)], "when it was noticed is not known"


@given(st.integers(0, 2**32))
def test_rows_of_transactions_are_named_wherever_they_are(seed: int) -> None:
    """Though every gap is wide, and none is due."""
    rng = random.Random(seed)
    positions = Positions()
    drawn, next_xid = 0, 1
    running: dict[int, int | None] = {}
    visible: dict[int, int] = {}  # position -> transaction
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions_module, "WIDE", 0)
        for _ in range(200):
            move = rng.random()
            if move < 0.3:
                running[next_xid] = None
                next_xid += 1
            elif move < 0.5 and running:
                xid = rng.choice(list(running))
                drawn += running[xid] is None
                running[xid] = running[xid] or drawn
            elif move < 0.7 and running:
                xid = rng.choice(list(running))
                position = running.pop(xid)
                if position is not None and rng.random() < 0.8:
                    visible[position] = xid
            elif visible:
                behind = rng.choice(list(visible.values()))
                asked = ranges(positions, -1.0, behind)
                found = [
                    row for row in visible if row > positions.high or any(first <= row <= last for first, last in asked)
                ]
                assert {row for row, xid in visible.items() if xid >= behind} <= set(found)
                positions.saw(found, xmin=min(running, default=next_xid), xmax=next_xid, is_whole=True)
                positions.take(sorted(found))
                for row in found:
                    del visible[row]


def test_excess_gaps_are_merged_and_keep_their_cover() -> None:
    positions = Positions()
    positions.take(range(2, 4 * GAPS_MAX, 2))
    found = ranges(positions)
    assert GAPS_MAX // 4 < len(found) <= GAPS_MAX
    assert all(any(first <= odd <= last for first, last in found) for odd in range(1, positions.high, 2))
    ranges(positions)
    positions.saw([], xmin=1, xmax=7, is_whole=True)
    positions.saw([], xmin=7, xmax=7, is_whole=True)
    assert ranges(positions) == []


def test_merged_gap_is_kept_as_long_as_its_last_gap() -> None:
    positions = Positions()
    positions.take([2])
    positions.saw([], xmin=1, xmax=5, is_whole=True)
    positions.take([4])
    positions.saw([], xmin=1, xmax=8, is_whole=True)
    positions._merge()
    assert ranges(positions) == [(1, 3)]
    positions.saw([], xmin=5, xmax=9, is_whole=True)
    assert ranges(positions) == [(1, 3)]
    positions.saw([], xmin=8, xmax=9, is_whole=True)
    assert ranges(positions) == []


def test_a_reset_begins_with_the_first_position() -> None:
    positions = Positions()
    positions.take([5])
    positions.reset()
    assert (positions.high, ranges(positions)) == (0, [])


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_no_row_is_missed_and_none_is_taken_twice(seed: int, limit: int) -> None:
    """Transactions draw positions at their commits, and become visible, or fail, in any order after that."""
    rng = random.Random(seed)
    positions = Positions()
    drawn, next_xid = 0, 1
    running: dict[int, int | None] = {}  # transaction -> its position, once it is drawn
    visible: set[int] = set()
    taken: list[int] = []
    committed: set[int] = set()
    for step in range(200):
        move = rng.random()
        if move < 0.3 and step < 150:
            running[next_xid] = None
            next_xid += 1
        elif move < 0.5 and running:
            xid = rng.choice(list(running))
            if running[xid] is None:
                drawn += 1
                running[xid] = drawn
        elif move < 0.7 and running:
            xid = rng.choice(list(running))
            position = running.pop(xid)
            if position is not None and rng.random() < 0.8:
                visible.add(position)
                committed.add(position)
        elif step >= 150 and running:
            for position in running.values():
                if position is not None:
                    visible.add(position)
                    committed.add(position)
            running.clear()
        else:
            asked = ranges(positions)
            below = sorted(row for row in visible if any(first <= row <= last for first, last in asked))
            above = sorted(row for row in visible if row > positions.high)[:limit]
            found = sorted(below[:limit] + above)
            if asked:
                xmin = min(running, default=next_xid)
                positions.saw(found, xmin=xmin, xmax=next_xid, is_whole=len(found) < limit)
            found = found[: rng.randint(0, limit)]
            visible -= set(found)
            taken += found
            positions.take(found)
    for _ in range(300):
        asked = ranges(positions)
        found = sorted(row for row in visible if row > positions.high or any(a <= row <= b for a, b in asked))[:limit]
        visible -= set(found)
        taken += found
        positions.take(found)
    assert sorted(taken) == sorted(committed)
