"""
Output of commands: tables for people in a terminal, lines with tabs for programs behind a pipe, JSON on request.

The texts may come from any producer of jobs, so none is ever markup, and control characters that a terminal would obey
are shown as their codes: `plain`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from queuehint.clock import SystemClock
from queuehint.shown import plain, plain_lines
from queuehint.values.record import JobState, moment

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

STYLES = {
    JobState.SCHEDULED: "cyan",
    JobState.DEFERRED: "magenta",
    JobState.QUEUED: "yellow",
    JobState.STARTED: "bold blue",
    JobState.FINISHED: "green",
    JobState.FAILED: "bold red",
    JobState.CANCELED: "dim",
}
COLUMN_MIN, COLUMN_MAX = 6, 40
"""How wide a column of a table is at least, if it has as much to show, and at most, the first and the last excepted."""
END_LENGTH = 13
"""How many characters of an id are shown where it is cut: by its end people tell one from another."""
_FIRST_MS = -62_135_596_800_000
"""The first moment of the calendar; a job may be due at any time before."""
_BARS = "▁▂▃▄▅▆▇█"
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
"""How spans of time are said on the command line, and what `timedelta` calls their units."""


# --- text ------------------------------------------------------------------------------------------------------------


def cell(text: object = "", style: str = "") -> Text:
    """Return the text of a table cell, `plain`. None is an empty cell."""
    return Text("" if text is None else plain(str(text)), style)


def state_cell(state: JobState) -> Text:
    """Return a state in its color."""
    return Text(state.value, STYLES[state])


def span(duration_ms: float) -> str:
    """
    Return a duration in its largest unit.

    >>> span(250), span(61_000), span(3_600_000 * 50)
    ('0 s', '1 min', '2 d')
    """
    for unit_ms, name in _SPANS:
        if duration_ms >= unit_ms:
            return f"{int(duration_ms // unit_ms)} {name}"
    return "0 s"


def iso(time_ms: int) -> str:
    """
    Return ms since the epoch in a form for people and programs, in UTC.

    >>> iso(1_500), iso(-(2**53))
    ('1970-01-01T00:00:01.500Z', '0001-01-01T00:00:00.000Z')
    """
    return moment(max(time_ms, _FIRST_MS)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def when(time_ms: int) -> str:
    """Return a time, and its distance from now by the clock of this machine."""
    apart_ms = SystemClock().now_ms() - time_ms
    return f"{iso(time_ms)} ({span(apart_ms)} ago)" if apart_ms >= 0 else f"{iso(time_ms)} (in {span(-apart_ms)})"


def ago(time_ms: int | None) -> str:
    """Return how long ago a time was, by the clock of this machine. Empty for no time."""
    return "" if time_ms is None else span(max(0, SystemClock().now_ms() - time_ms))


def bars(values: Iterable[float], encoding: str) -> str:
    """
    Draw values as bars, the largest as the highest. Empty for a single value, or without UTF-8.

    >>> bars([0, 1, 4, 8], "utf-8"), bars([0, 0], "utf-8"), bars([1, 2], "ascii")
    ('▁▂▅█', '▁▁', '')
    """
    found = list(values)
    if len(found) < 2 or not encoding.lower().startswith("utf"):
        return ""
    most = max(found) or 1
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in found)


# --- blocks ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Facts:
    """Names with their values. Empty values are left out."""

    rows: Sequence[tuple[str, Text]]

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for name, value in self.rows:
            if value:
                table.add_row(name, value)
        return table

    def lines(self) -> Iterator[str]:
        """Yield ``name: value``."""
        for name, value in self.rows:
            if value:
                yield f"{name}: {value.plain}"


@attrs.frozen
class Row(Facts):
    """Facts side by side, as far as there is room."""

    def __rich__(self) -> RenderableType:
        columns = Columns(padding=(0, 3, 0, 0))
        for name, value in self.rows:
            columns.add_renderable(Text.assemble((f"{name} ", "dim"), value, no_wrap=True))
        return columns


@attrs.frozen
class Grid:
    """
    A table.

    Args:
        columns: names. Where there is no room the last of those that are shown are left out and one may be cut.
        rows: as many cells each.
        shown: the columns of a terminal, the most important first; by default all. Programs get all, in their order.
        key: the column that is never cut nor left out, because it is to be copied; by default the first that is shown.
        usual: columns that a terminal need not show where all their cells are this text.
        short: columns of which a terminal shows the end.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    shown: Sequence[str] = ()
    key: str | None = None
    usual: Mapping[str, str] = attrs.field(factory=dict)
    short: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        names = [name for name in self.shown or self.columns if not self._is_usual(name)]
        columns = {name: self._column(name) for name in names}
        widths = self._widths(columns, options.max_width)
        fits = sum(widths.values()) + 2 * (len(widths) - 1) <= options.max_width
        for number in range(len(self.rows) + 1):
            line = Text(no_wrap=fits, overflow="ellipsis" if fits else "fold")
            for name, width in widths.items():
                cell = columns[name][number].copy()
                cell.truncate(width, overflow="ellipsis", pad=True)
                line.append("  " if line else "").append_text(cell)
            line.rstrip()
            yield line

    def _is_usual(self, name: str) -> bool:
        index = self.columns.index(name)
        return name in self.usual and all(row[index].plain == self.usual[name] for row in self.rows)

    def _column(self, name: str) -> list[Text]:
        """Return the name of a column and its cells."""
        index = self.columns.index(name)
        cells = [row[index] for row in self.rows]
        return [Text(name, "dim"), *(map(_end, cells) if name in self.short else cells)]

    def _widths(self, columns: Mapping[str, Sequence[Text]], room: int) -> dict[str, int]:
        """Return the widths of the columns for which there is room, in their order."""
        names = list(columns)
        key = self.key or names[0]
        widths = {key: max(cell.cell_len for cell in columns[key])}
        room -= widths[key]
        for name in names:
            if name == key:
                continue
            width = max(cell.cell_len for cell in columns[name])
            room -= 2
            if room < min(width, COLUMN_MIN):
                break
            widths[name] = min(width, room if name == names[-1] else min(room, COLUMN_MAX))
            room -= widths[name]
        return {name: widths[name] for name in names if name in widths}

    def lines(self) -> Iterator[str]:
        """Yield the rows, tabs between their cells, without the names of the columns."""
        for row in self.rows:
            yield "\t".join(text.plain for text in row)


def _end(text: Text) -> Text:
    """Return the end of an id, by which people distinguish ids."""
    return text if text.cell_len <= END_LENGTH else Text("…" + text.plain[-END_LENGTH + 1 :], text.style)


@attrs.frozen
class Lines:
    """Lines of text, which a terminal wraps or cuts where there is no room."""

    texts: Sequence[Text]
    are_cut: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for text in self.texts:
            shown = text.copy()
            if self.are_cut:
                shown.no_wrap, shown.overflow = True, "ellipsis"
            yield shown

    def lines(self) -> Iterator[str]:
        """Yield them."""
        for text in self.texts:
            yield text.plain


Block = Facts | Grid | Lines


class Printer:
    """
    Prints the results of a command.

    Args:
        as_json: for programs: objects, one a line.
        raw: texts are printed as they are, whatever a terminal makes of them.
    """

    def __init__(self, *, as_json: bool = False, raw: bool = False) -> None:
        self.as_json = as_json
        self.is_raw = raw
        if hasattr(sys.stdout, "reconfigure"):
            # Characters outside the encoding of a terminal are escaped and are no error.
            sys.stdout.reconfigure(errors="backslashreplace")
        self.console = Console(highlight=False, markup=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        """True if the printer prints to a terminal."""
        return self.console.is_terminal and not self.as_json

    @contextlib.contextmanager
    def bar(self, *columns: ProgressColumn) -> Iterator[Progress]:
        """Show a growing bar while the block runs, in a terminal alone."""
        from rich.progress import Progress

        bar = Progress(*columns, console=self.console, transient=True, disable=not self.is_terminal)
        # Before rich 14.3 one that is disabled ends with an empty line.
        with bar if self.is_terminal else contextlib.nullcontext():
            yield bar

    def json(self, value: Any) -> None:
        """Print a value on one line, in ASCII."""
        print(json.dumps(value, separators=(", ", ": ")), flush=True)

    def head(self, text: str) -> None:
        """Print the header of a user's text."""
        self.say(text if self.is_terminal else f"{text}:", "bold")

    def put(self, *blocks: Block | str) -> None:
        """Print blocks. A text is a heading, printed for people alone."""
        for block in blocks:
            if self.is_terminal:
                self.console.print(Text(block, "bold") if isinstance(block, str) else block)
            elif not isinstance(block, str):
                for line in block.lines():
                    print(line)

    def say(self, text: str, style: str = "") -> None:
        """Print one line."""
        self.put(Lines([cell(text, style)]))

    def done(
        self,
        what: str,
        name: str | None,
        done: str,
        *,
        changed: bool,
        unnamed: str = "",
        is_so: str = "it is so already",
    ) -> None:
        """Print the new state of the *what* with this name, or that nothing had to change, because *is_so*."""
        if self.as_json:
            self.json({what: name, "done": done, "changed": changed})
        else:
            name = (unnamed or f"(no {what})") if name is None else name
            self.say(f"{name}: {done}" if changed else f"{name}: nothing to do, {is_so}")

    def lines(self, text: str, indent: str = "    ") -> None:
        """Print a text of an application with its line breaks. All else is shown as this printer shows it."""
        if self.is_raw:
            print("\n".join(indent + line for line in text.split("\n")))
        else:
            self.put(Lines([Text(indent + line) for line in plain_lines(text)]))


def group(blocks: Iterable[Block | str]) -> RenderableType:
    """Return blocks as a group for repeated display."""
    return Group(*[Text(block, "bold") if isinstance(block, str) else block for block in blocks])


# --- trees -----------------------------------------------------------------------------------------------------------


def branches(items: Iterable[tuple[int, Text]], encoding: str) -> Lines:
    """
    Draw a tree.

    Args:
        items: each with its depth, in the order in which they are to stand; a child one level below its parent.
        encoding: of where it is printed; without UTF-8 the lines are drawn with ASCII.

    >>> print(*branches([(0, Text("a")), (1, Text("b")), (2, Text("c")), (1, Text("d"))], "ascii").lines())
    a |-- b |   `-- c `-- d
    """
    has_unicode = encoding.lower().startswith("utf")
    last, fork, line = ("└── ", "├── ", "│   ") if has_unicode else ("`-- ", "|-- ", "|   ")
    found = list(items)
    # From below: at each depth, whether another one comes further down.
    follows: list[set[int]] = []
    open_depths: set[int] = set()
    for depth, _ in reversed(found):
        open_depths = {other for other in open_depths if other <= depth}
        follows.append(set(open_depths))
        open_depths.add(depth)
    texts = []
    for (depth, text), others in zip(found, reversed(follows), strict=True):
        stem = "".join(line if level in others else "    " for level in range(1, depth))
        texts.append(Text.assemble((stem + (fork if depth in others else last), "dim"), text) if depth else text)
    return Lines(texts, are_cut=True)
