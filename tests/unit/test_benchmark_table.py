"""The targets of the benchmarks as a table."""

from __future__ import annotations

from typing import Any

from benchmarks.report import Report
from benchmarks.table import lines


def _run(drain: float) -> dict[str, Any]:
    report = Report()
    report.add("yardstick: SET", "µs", 0.5)
    report.aim("(a) drain", drain, 3.0)
    report.aim("(d) p99", 0.5, 1.0, at_most=True)
    report.miss("some queue")
    return report.as_json(load_before="0", load_after="1", seconds=2.0)


def test_table_shows_wanted_earlier_and_new_figures_per_target() -> None:
    assert list(lines(_run(2.0), _run(1234.5)))[2:5] == [
        "| (a) drain | at least 3 | 1,234 | 2 | **missed** |",
        "| (d) p99 | at most 1 | 0.5 | 0.5 | reached |",
        "| yardstick: SET |  |  | 0.5 µs |  |",
    ]


def test_a_table_of_one_run_has_no_column_for_another() -> None:
    head, _, first, *rest = lines(_run(3.0))
    assert (head, first) == ("|  | wanted | now |  |", "| (a) drain | at least 3 | 3 | reached |")
    assert "some queue" in "".join(rest)
