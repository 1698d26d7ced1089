"""Every picture, by the name of its file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.pictures import barrier, bars, gates, terminal
from scripts.pictures.svg import THEMES, Theme

TEXTS = frozenset({*terminal.COMMANDS, *terminal.TITLES})
"""The pictures of a terminal."""
FOLDER = Path(__file__).parents[2] / "docs" / "pictures"


def drawings() -> dict[str, Callable[[Theme], str]]:
    """Return the function that draws each picture, by its name."""
    of_text = {name: partial(terminal.drawn, name, text) for name, text in terminal.texts().items()}
    return {"barrier": barrier.draw, "bars": bars.draw, "gates": gates.draw, **of_text}


def pictures() -> dict[str, str]:
    """Draw all, in each theme."""
    return {f"{name}-{theme.name}.svg": draw(theme) for name, draw in drawings().items() for theme in THEMES}
