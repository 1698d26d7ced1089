"""
Draw what commands print, as pictures for the documentation: ``python -m scripts.pictures``.

A store with a few jobs is made at a fixed time, and each command runs on it as in a terminal. A picture also holds its
text as its description; a test compares that with the present output of the command.
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
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

from queuehint import FakeClock, Progress, Scheduler
from queuehint.cli.app import app
from queuehint.clock import SystemClock
from queuehint.operations import Announce, Exchange, Report

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
PICTURES = {"top": ["top", "--times", "1"], "tree": ["tree"], "why": ["why", "--chain", "6"]}
"""By name, the command that is drawn."""
WIDTH = 90
BEGIN_MS = round(datetime(2026, 1, 5, 9, 0, tzinfo=UTC).timestamp() * 1000)
LATER_S = 8
"""How long the jobs have run in the pictures."""
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_DESC = "{http://www.w3.org/2000/svg}desc"


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
        backend.call_sync(Report(grants[0].spec.id, grants[0].token, Progress(3, 10, "pages")))
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


def drawn(name: str, text: Text) -> str:
    """Return what was printed as an SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text)
    title = " ".join(["queuehint", *PICTURES[name]]).removesuffix(" --times 1")
    svg = _FONTS.sub("", console.export_svg(title=title, unique_id=name))
    head, end, rest = svg.partition(">")
    return f"{head}{end}\n    <desc>{escape(said(text))}</desc>{rest}\n"


def said(text: Text) -> str:
    """Return what was printed without colours and without white space at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.plain.splitlines())


def description(picture: Path) -> str:
    """Return what a picture shows, as text."""
    return ET.parse(picture).getroot().findtext(_DESC) or ""


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
    with store() as url:
        for name, command in PICTURES.items():
            (FOLDER / f"{name}.svg").write_text(drawn(name, printed(url, command)), "utf-8")
    print(f"{len(PICTURES)} pictures in docs/pictures")


if __name__ == "__main__":
    main()
