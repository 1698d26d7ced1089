"""The memory backend through the public API, which `benchmarks.memory` measures among other things."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.memory import public_api

if TYPE_CHECKING:
    from benchmarks.report import Report


def run(report: Report, *, quick: bool) -> None:
    """Measure the public API."""
    public_api(report, jobs=5_000 if quick else 50_000)
