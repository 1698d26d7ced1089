"""
Pictures of a terminal with the output of commands.

A store with a few jobs is made at a fixed time, and each command runs on it as in a terminal. The counterexample is
the output of the tutorial's program; a test runs that program and compares. A picture also holds its text as its
description.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock
from xml.sax.saxutils import escape

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from queuehint import FakeClock, Progress, Scheduler
from queuehint.cli.app import app
from queuehint.clock import SystemClock
from queuehint.operations import Announce, Exchange, Note, Post
from scripts.pictures.svg import SHOWN, Theme

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "testing.md"
COMMANDS = {"top": ["top", "--times", "1"], "tree": ["tree"], "why": ["why", "--chain", "6"]}
"""By name, the command that is drawn."""
TITLES = {"counterexample": "python locks.py"}
WIDTH = 62
"""Columns: as few as keep a letter readable where the picture is 400 pixels wide."""
BEGIN_MS = round(datetime(2026, 1, 5, 9, 0, tzinfo=UTC).timestamp() * 1000)
LATER_S = 8
"""How long the jobs have run in the pictures."""
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


@contextlib.contextmanager
def store() -> Iterator[str]:
    """Make a store: two jobs run, one of them slowly, a barrier and a later edit wait, one place is paused."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        clock = FakeClock(BEGIN_MS)
        sched = Scheduler(url, clock=clock, ids="sequence")
        edit, snapshot = (sched.job(name=name)(lambda: None) for name in ("edit", "snapshot"))
        for job, user, path in (
            (edit, "ann", ["doc1", "intro"]),
            (edit, "ben", ["doc1", "body"]),
            (edit, "ann", ["doc1", "intro"]),
            (edit, "ben", ["doc2", "intro"]),
            (snapshot, "ann", ["doc1"]),
            (edit, "ben", ["doc1", "body"]),
        ):
            job.using(user=user, queue_hint=path).enqueue_sync()
        sched.pause_sync(["doc2"])
        backend, worker = sched.backend, "host-7"
        backend.call_sync(Announce(worker=worker, host="host", pid=7, slots=4, running=2))
        grants = backend.call_sync(Exchange(worker, limit=2)).grants
        backend.call_sync(Post((Note(grants[0].spec.id, grants[0].token, progress=Progress(3, 10, "pages")),)))
        with mock.patch.object(SystemClock, "now_ms", return_value=BEGIN_MS + LATER_S * 1000):
            yield url
        sched.close_sync()


def printed(url: str, command: list[str]) -> Text:
    """Return what a command prints in a terminal, with its colours."""
    terminal = {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with mock.patch.dict(os.environ, terminal), contextlib.redirect_stdout(out):
        os.environ.pop("NO_COLOR", None)
        app([*command, "--target", url], standalone_mode=False)
    out.seek(0)
    return Text.from_ansi(out.read())


def counterexample() -> Text:
    """Return what the tutorial's queue of locks makes the kit print, with the fault in colour."""
    page = TUTORIAL.read_text("utf-8")
    found = re.search(r"^\$ python locks\.py\n.*?QueueFaultError: (.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    text = Text("\n".join(found[1].rstrip().splitlines()))
    text.highlight_regex(r"(?m)^order: .*$|\^ order", "bold red")
    text.highlight_regex(r"(?m)^\* .*$", "bold")
    text.highlight_regex(r"Q\.+", "yellow")
    text.highlight_regex(r"S=+|S$", "blue")
    text.highlight_regex(r"(?m)^(  step .*|  Q queued.*)$", "dim")
    return text


def texts() -> dict[str, Text]:
    """Return by name what is drawn."""
    with store() as url:
        found = {name: printed(url, command) for name, command in COMMANDS.items()}
    return found | {"counterexample": counterexample()}


def drawn(name: str, text: Text, theme: Theme) -> str:
    """Return what was printed as an SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text)
    title = TITLES.get(name) or " ".join(["queuehint", *COMMANDS[name]]).removesuffix(" --times 1")
    colours = TerminalTheme(_rgb(theme.paper), _rgb(theme.ink), [_rgb(colour) for colour in theme.ansi])
    svg = _FONTS.sub("", console.export_svg(title=title, theme=colours, unique_id=f"{name}-{theme.name}"))
    svg = svg.replace("rgba(255,255,255,0.35)", theme.frame)
    head, end, rest = svg.partition(">")
    shown = f'{head} width="{SHOWN}" role="img"{end}'
    return f"{shown}\n    <title>{escape(title)}</title>\n    <desc>{escape(said(text))}</desc>{rest}\n"


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


def said(text: Text) -> str:
    """Return what was printed without colours and without white space at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.plain.splitlines())
