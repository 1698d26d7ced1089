"""
The terminal view of `replay_history.py`: a lane for each folder, with time running to the right.

A block is as high as there are jobs of the folder at once; folders run in parallel. A wall through all lanes is a check
of the whole tree, a barrier: nothing may run beside it. If something does, its lane is red there.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

COLUMN_S = 0.1
"""How long a column of a lane stands for at most; a check has columns of its own."""
REFRESH_S = 0.07
LANES_MAX = 12
SHARE_MIN = 0.01
"""Of all changes, what a folder must have to be given a lane."""
BLOCKS, WALL = " ▁▂▃▄▅▆▇█", "┃"
DIGITS, BAR = " 12345678", "|"
"""The same where a terminal has only ASCII."""


class Column:
    """One moment: for each lane the most jobs at once, and whether a check ran."""

    __slots__ = ("begun_s", "is_check", "most")

    def __init__(self, running: list[int], *, is_check: bool) -> None:
        self.begun_s = time.monotonic()
        self.is_check = is_check
        self.most = list(running)


class Lanes:
    """
    The jobs that run or ran lately, by folder.

    Args:
        changes: how many changes each path has, in all.
        kept: how many columns are kept.
    """

    def __init__(self, changes: Mapping[str, int], *, lanes_max: int = LANES_MAX, kept: int = 400) -> None:
        self.names = lanes_of(changes, lanes_max)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._lanes: dict[str, int] = {}
        self.running = [0] * len(self.names)
        self.latest = [""] * len(self.names)
        self.checks = 0
        self.checks_done = 0
        self.columns: deque[Column] = deque(maxlen=kept)
        self.columns.append(Column(self.running, is_check=False))

    def lane(self, path: str) -> int:
        """Return the number of the lane of a path: that of the innermost folder that has one."""
        if path not in self._lanes:
            folder = path
            while folder not in self._numbers:
                folder = folder.rpartition("/")[0]
            self._lanes[path] = self._numbers[folder]
        return self._lanes[path]

    def note(self, path: str | None, *, begins: bool) -> None:
        """Note that a change of *path* begins or ends; a check, if it is None."""
        step = 1 if begins else -1
        column = self.columns[-1]
        if path is None:
            self.checks += step
            self.checks_done += not begins
        else:
            lane = self.lane(path)
            self.running[lane] += step
            self.latest[lane] = path.rpartition("/")[2]
            column.most[lane] = max(column.most[lane], self.running[lane])
        if (self.checks > 0) != column.is_check or time.monotonic() - column.begun_s >= COLUMN_S:
            self.columns.append(Column(self.running, is_check=self.checks > 0))

    def drawn(self, lane: int, width: int, *, ascii_only: bool = False) -> Text:
        """Return the last *width* columns of a lane."""
        blocks, wall = (DIGITS, BAR) if ascii_only else (BLOCKS, WALL)
        text = Text(" " * (width - len(self.columns)), no_wrap=True, end="")
        for column in list(self.columns)[-width:]:
            count = min(column.most[lane], len(blocks) - 1)
            if column.is_check:
                text.append(blocks[count] if count else wall, "bold red" if count else "bold yellow")
            else:
                text.append(blocks[count], "green")
        return text


def lanes_of(changes: Mapping[str, int], lanes_max: int) -> list[str]:
    """
    Return the folders that get a lane, sorted: those with the most changes, and the top, "", for all others.

    >>> lanes_of({"README": 1, "src/core/a": 3, "src/core/b": 2, "src/c": 2, "docs/d": 1}, 4)
    ['', 'docs', 'src', 'src/core']
    """
    folders: Counter[str] = Counter()
    for path, count in changes.items():
        folder = path.rpartition("/")[0]
        while folder:
            folders[folder] += count
            folder = folder.rpartition("/")[0]
    least = SHARE_MIN * sum(changes.values())
    chosen = [""]
    for folder, count in folders.most_common():
        if len(chosen) == lanes_max or count < least:
            break
        chosen.append(folder)
    own = Counter(max((name for name in chosen if is_in(path, name)), key=len) for path in changes)
    return sorted(name for name in chosen if own[name]) or [""]


def is_in(path: str, folder: str) -> bool:
    """Whether a path is in a folder or below."""
    return not folder or path.startswith(f"{folder}/")


@contextlib.contextmanager
def live_view(
    changes: Mapping[str, int], checks: int, *, console: Console | None = None
) -> Iterator[Callable[[int, int, str | None, bool], None]]:
    """
    Show the lanes on standard error while the block runs.

    Args:
        changes: how many changes each path has, in all.
        checks: how many checks there are.

    Yields:
        What is called when a job begins or ends: jobs done, jobs running, the path (None: a check), whether it begins.
    """
    console = console or Console(stderr=True)
    lanes = Lanes(changes, lanes_max=max(1, min(LANES_MAX, console.height - 6)))
    at_once = TextColumn("{task.fields[running]:>3} at once")
    columns = (BarColumn(None), MofNCompleteColumn(), TextColumn("jobs"), at_once, TimeElapsedColumn())
    progress = Progress(*columns, console=console, expand=True, auto_refresh=False)
    task = progress.add_task("replay", total=sum(changes.values()) + checks, running=0)
    shown_s = 0.0

    def whole() -> Group:
        return Group(progress, grid(lanes, console), legend(lanes, checks, console))

    with unlogged(), Live(whole(), console=console, auto_refresh=False, transient=False) as live:

        def report(done: int, running: int, path: str | None, begins: bool) -> None:
            nonlocal shown_s
            lanes.note(path, begins=begins)
            now_s = time.monotonic()
            if now_s - shown_s >= REFRESH_S:
                shown_s = now_s
                progress.update(task, completed=done, running=running)
                live.update(whole(), refresh=True)
            elif not running:
                progress.update(task, completed=done, running=running)

        yield report
        live.update(whole(), refresh=True)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Keep logs of failed jobs out of the picture; the summary tells the first of them."""
    unheard = logging.NullHandler()
    logger = logging.getLogger("queuehint")
    logger.addHandler(unheard)
    try:
        yield
    finally:
        logger.removeHandler(unheard)


def grid(lanes: Lanes, console: Console) -> Table:
    """Return the lanes: the folder, what ran there lately, and what runs there now where there is room."""
    names = [name or "(top)" for name in lanes.names]
    left = min(max(map(len, names)), console.width // 4)
    right = 22 if console.width >= 100 else 3
    table = Table.grid(padding=(0, 1))
    table.add_column(width=left, no_wrap=True)
    width = console.width - left - right - 4
    table.add_column(width=width, no_wrap=True)
    table.add_column(width=right, no_wrap=True)
    for lane, name in enumerate(names):
        running = lanes.running[lane]
        shown = Text(name if len(name) <= left else f"…{name[1 - left :]}", "bold" if running else "dim")
        beside = Text(f"{running:>2}" if running else "", "green", overflow="ellipsis")
        if running and right > 3:
            beside.append(f" {lanes.latest[lane]}", "dim")
        table.add_row(shown, lanes.drawn(lane, width, ascii_only=console.options.ascii_only), beside)
    return table


def legend(lanes: Lanes, checks: int, console: Console) -> Text:
    """Return what the signs mean, and how many barriers have passed."""
    block, wall = ("4", BAR) if console.options.ascii_only else ("▄", WALL)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(block, "green").append(" folders in parallel  ", "dim")
    text.append(wall, "bold yellow").append(" barrier: the whole tree, alone  ", "dim")
    return text.append(f"{lanes.checks_done}/{checks} barriers", "bold yellow")
