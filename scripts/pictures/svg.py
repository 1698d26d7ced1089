"""Shapes and colours of a drawing: SVG as text, with fonts of the reader's system and nothing from elsewhere."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

import attrs

WIDTH = 480
"""Units of a drawing's width; at 400 pixels a text of 14 units is 11.7 pixels high."""
SHOWN = 720
"""The width in pixels where there is room for it."""
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "-apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


@attrs.frozen(kw_only=True)
class Theme:
    """The colours of one version of every picture; `ansi` are the eight of a terminal."""

    name: str
    paper: str
    frame: str
    ink: str
    faint: str
    soft: str
    first: str
    second: str
    on_fill: str
    ansi: tuple[str, str, str, str, str, str, str, str]


LIGHT = Theme(
    name="light",
    paper="#ffffff",
    frame="#d1d9e0",
    ink="#1f2328",
    faint="#59636e",
    soft="#fff1e5",
    first="#0969da",
    second="#bc4c00",
    on_fill="#ffffff",
    ansi=("#1f2328", "#cf222e", "#116329", "#7d4e00", "#0550ae", "#8250df", "#1b7c83", "#59636e"),
)
DARK = Theme(
    name="dark",
    paper="#0d1117",
    frame="#3d444d",
    ink="#f0f6fc",
    faint="#9198a1",
    soft="#2b1d12",
    first="#4493f8",
    second="#f0883e",
    on_fill="#0d1117",
    ansi=("#656c76", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4"),
)
THEMES = (LIGHT, DARK)


def document(theme: Theme, height: float, title: str, description: str, shapes: list[str]) -> str:
    """Return a whole file: the shapes on paper, with a title and the same in words."""
    width, high = WIDTH - 1, height - 1
    paper = (
        f'<rect x="0.5" y="0.5" width="{width}" height="{high:g}" rx="8" fill="{theme.paper}" stroke="{theme.frame}"/>'
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{SHOWN}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description)}</desc>",
        paper,
        *shapes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(
    x: float,
    y: float,
    said: str,
    fill: str,
    *,
    size: int = 14,
    font: str = SANS,
    anchor: str = "start",
    bold: bool = False,
) -> str:
    """Return a line of text; *y* is where its letters stand."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size}" font-family={quoteattr(font)} '
        f'text-anchor="{anchor}"{weight} xml:space="preserve">{escape(said)}</text>'
    )


def box(
    x: float, y: float, width: float, height: float, fill: str, *, stroke: str = "none", round_by: float = 3
) -> str:
    """Return a rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_by:g}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, width: float = 1, dashes: str = "") -> str:
    """Return a line, dashed if *dashes* says how."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" stroke-width="{width:g}"{dashed}/>'
