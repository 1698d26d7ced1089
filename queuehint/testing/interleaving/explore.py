"""
Search of the orders of steps.

A **preemption** is a switch from a job that could have continued. All orders without one come first, then those with
one, with two, ... , each order once. So the first failing order is one with the fewest preemptions, and when there are
too many orders, those with the most are left out; some of these are drawn at random.

Source: Musuvathi and Qadeer 2007, "Iterative context bounding for systematic testing of multithreaded programs".
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

from queuehint.testing.interleaving.play import Choose, Played

S = TypeVar("S")

PATIENCE = 100
"""After so many steps in a row a job lets another one go: it may be waiting for it, step by step."""
PENDING_MAX = 100_000


def go_on(options: Sequence[int], current: int | None) -> int:
    """Choose the job of the last step, else the first job."""
    return options[0] if current is None else current


class Explorer:
    """
    Chooses orders.

    Args:
        run: runs all jobs once, in an order that it asks for.
        most: how many runs at most; half of them for orders in turn, and, if these are not all, half by chance.
        seed: of chance.
    """

    def __init__(self, run: Callable[[Choose], Played[S]], most: int, seed: int) -> None:
        self._run = run
        self._most = most
        self._chance = random.Random(seed)
        self.runs = 0
        self.is_exhaustive = False
        """Every order was tried."""

    def all(self) -> Iterator[Played[Any]]:
        """Yield runs, each of another order, and then some by chance if there are too many."""
        self.is_exhaustive = yield from self._in_turn(max(1, self._most // 2))
        while not self.is_exhaustive and self.runs < self._most:
            self.runs += 1
            yield self._run(self._by_chance)

    def without_preemption(self) -> Iterator[Played[Any]]:
        """Yield a run of each order without preemptions."""
        self.is_exhaustive = yield from self._in_turn(self._most, preempts=False)

    def _by_chance(self, options: Sequence[int], _current: int | None) -> int:
        return self._chance.choice(options)

    def _in_turn(self, most: int, *, preempts: bool = True) -> Generator[Played[Any], None, bool]:
        """Yield a bounded number of runs. Return whether these were all."""
        levels: list[deque[tuple[int, ...]]] = [deque([()])]
        is_whole = True
        for level in count():
            if level == len(levels):
                return is_whole
            while levels[level]:
                if self.runs >= most:
                    return False
                self.runs += 1
                follow = _Follow(levels[level].popleft())
                played = self._run(follow)
                yield played
                for at, options, current, chosen in follow.met:
                    for other in options:
                        costs = current is not None and other != current
                        if other == chosen or (costs and not preempts):
                            continue
                        if sum(map(len, levels)) >= PENDING_MAX:
                            is_whole = False
                            continue
                        if level + costs == len(levels):
                            levels.append(deque())
                        levels[level + costs].append((*played.choices[:at], other))
        raise AssertionError


class _Follow:
    """Follows the prefix of an order and continues without preemptions, recording the alternatives."""

    def __init__(self, prefix: tuple[int, ...]) -> None:
        self.prefix = prefix
        self.made = 0
        self.in_a_row = 0
        self.met: list[tuple[int, Sequence[int], int | None, int]] = []

    def __call__(self, options: Sequence[int], current: int | None) -> int:
        if self.made < len(self.prefix):
            chosen = self.prefix[self.made]
        else:
            chosen = self._free(options, current)
            if len(options) > 1:
                self.met.append((self.made, options, current, chosen))
        self.made += 1
        self.in_a_row = self.in_a_row + 1 if chosen == current else 0
        return chosen

    def _free(self, options: Sequence[int], current: int | None) -> int:
        if current is None:
            return options[0]
        if self.in_a_row >= PATIENCE and len(options) > 1:
            return next((option for option in options if option > current), options[0])
        return current
