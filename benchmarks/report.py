"""Take and show figures: medians of three with their range, and targets with whether they are reached."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPEATS = 3


@attrs.frozen
class Figure:
    """One thing measured several times."""

    name: str
    unit: str
    values: tuple[float, ...]
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@attrs.frozen
class Target:
    """A figure and what it should be."""

    name: str
    value: float
    limit: float
    at_most: bool = False

    @property
    def is_reached(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@attrs.define
class Report:
    """All figures and targets of a run; each is printed as soon as it is known."""

    figures: list[Figure] = attrs.field(factory=list)
    targets: list[Target] = attrs.field(factory=list)
    missing: list[str] = attrs.field(factory=list)

    def title(self, text: str) -> None:
        print(f"\n{text}")

    def add(self, name: str, unit: str, *values: float, note: str = "") -> Figure:
        figure = Figure(name, unit, values, note)
        self.figures.append(figure)
        spread = f"({_number(min(values))} .. {_number(max(values))})" if len(values) > 1 else ""
        print(f"  {name:<60} {_number(figure.median):>11} {unit:<11} {spread:<22} {note}".rstrip(), flush=True)
        return figure

    def aim(self, name: str, value: float, limit: float, *, at_most: bool = False) -> None:
        target = Target(name, value, limit, at_most)
        self.targets.append(target)
        print(f"  -> {_sentence(target)}", flush=True)

    def miss(self, name: str) -> None:
        self.missing.append(name)
        print(f"  {name:<60} not installed", flush=True)

    def summary(self) -> None:
        self.title("Targets")
        for target in self.targets:
            print(f"  {_sentence(target)}")

    def progress(self, text: str, seconds: float) -> None:
        """Say on standard error that something was measured."""
        print(f"    {seconds:6.1f} s  {text}", file=sys.stderr, flush=True)

    def as_json(self, **facts: Any) -> dict[str, Any]:
        return {
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "cpus": os.cpu_count(),
            **facts,
            "figures": [attrs.asdict(figure) | {"median": figure.median} for figure in self.figures],
            "targets": [attrs.asdict(target) | {"reached": target.is_reached} for target in self.targets],
            "not_installed": self.missing,
        }


def _sentence(target: Target) -> str:
    how = "at most" if target.at_most else "at least"
    word = "reached" if target.is_reached else "NOT reached"
    return f"{target.name}: {_number(target.value)}, target {how} {_number(target.limit)}: {word}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class Timer:
    """The clock all modules read: that of the wall, or the CPU time of this process, for a machine others use too."""

    def __init__(self) -> None:
        self.read_s: Callable[[], float] = time.perf_counter


TIMER = Timer()


class Stopwatch:
    """Adds up the parts that are timed."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        begin_s = TIMER.read_s()
        try:
            yield
        finally:
            self.seconds += TIMER.read_s() - begin_s


def repeat(measure: Callable[[], float]) -> tuple[float, ...]:
    """Measure three times, garbage collected before each and collected as usual during it."""
    values = []
    for _ in range(REPEATS):
        gc.collect()
        values.append(measure())
    return tuple(values)


def load() -> str:
    """Return the machine's load: with others at work the absolute figures are too low."""
    return ", ".join(f"{value:.2f}" for value in os.getloadavg())
