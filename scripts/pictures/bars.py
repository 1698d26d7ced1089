"""Two bars: ordered throughput, and free work beside a blocked backlog, as `make bench` has measured them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.backlog import BACKLOG, FREE
from scripts.pictures.figures import Measured, measured, shown
from scripts.pictures.svg import WIDTH, Theme, box, document, text

BAR, ROW, HEAD, MARGIN = 16, 42, 30, 16
GROUPS = {
    "ordered": ("Jobs a second, strictly in order over 1 000 paths", "more is better"),
    "backlog": (f"Seconds for {FREE} free jobs beside {shown(BACKLOG)} blocked", "less is better"),
}


def rows() -> list[tuple[str, str, list[Measured]]]:
    """Return the groups: title, what is better, and the figures."""
    return [(title, better, measured(file)) for file, (title, better) in GROUPS.items()]


def said() -> str:
    """Return the figures as text."""
    return "\n".join(
        f"{title}: {', '.join(f'{plain(each)} {shown(each.median)}' for each in found)}" for title, _, found in rows()
    )


def plain(each: Measured) -> str:
    """Return a name without marks of Markdown."""
    return each.name.replace("`", "")


def _drawn(theme: Theme, top: float, title: str, better: str, found: list[Measured]) -> Iterator[str]:
    yield text(MARGIN, top + 12, title, theme.ink, bold=True)
    yield text(WIDTH - MARGIN, top + HEAD + 6, better, theme.faint, size=12, anchor="end")
    unit = (WIDTH - 2 * MARGIN - 60) / max(each.median for each in found)
    for number, each in enumerate(found):
        y = top + HEAD + ROW * number
        fill = theme.faint if number else theme.first
        yield text(MARGIN, y + 6, plain(each), theme.ink, size=13)
        yield box(MARGIN, y + 12, max(2, unit * each.median), BAR, fill, round_by=2)
        yield text(MARGIN + max(2, unit * each.median) + 8, y + 25, shown(each.median), theme.ink, bold=True)


def draw(theme: Theme) -> str:
    """Draw the bars."""
    shapes: list[str] = []
    top = 14.0
    for title, better, found in rows():
        shapes += _drawn(theme, top, title, better, found)
        top += HEAD + ROW * len(found) + 14
    return document(theme, top - 4, "Ordered throughput, and free work beside a blocked backlog", said(), shapes)
