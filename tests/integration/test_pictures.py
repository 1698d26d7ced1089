"""Pictures in the documentation show what the code does now, in a light and a dark version."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts.pictures import mermaid
from scripts.pictures.all import FOLDER, TEXTS, pictures
from scripts.pictures.figures import PAGES as WITH_FIGURES
from scripts.pictures.figures import filled

ROOT = FOLDER.parents[1]
FILES = sorted(FOLDER.glob("*.svg"))
DRAW_ANEW = "draw them anew: make pictures"
SHOWN = re.compile(
    r'<picture>\n<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)-dark(\.svg|\.png)">\n'
    r'<img alt="[^"]+" src="([^"]+)-light(\.svg|\.png)">\n</picture>'
)
PAGES = [ROOT / "README.md", *[page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]]


def words(svg: str) -> str | None:
    """Return what a picture of a terminal shows; how letters are placed is left to the release of rich."""
    return ET.fromstring(svg).findtext("{http://www.w3.org/2000/svg}desc")


def test_pictures_are_as_new_as_their_sources() -> None:
    drawn = pictures()
    assert [path.name for path in FILES] == sorted(drawn), DRAW_ANEW
    for path in FILES:
        old, new = path.read_text("utf-8"), drawn[path.name]
        same = words(old) == words(new) if path.name.rpartition("-")[0] in TEXTS else old == new
        assert same, f"{path.name} is older than what it shows; {DRAW_ANEW}"


def test_pages_show_both_versions_of_every_picture() -> None:
    shown = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        found = SHOWN.findall(text)
        assert len(found) == text.count("<picture>"), f"{page}: write it as others are written, docs/conf.py reads it"
        assert not re.search(r"\]\([^)]*\.svg\)", text), f"{page}: show the light and the dark version"
        for *dark, light, suffix in found:
            assert dark == [light, suffix]
            shown |= {(page.parent / f"{light}-{theme}{suffix}").resolve() for theme in ("light", "dark")}
    assert sorted(shown) == sorted([*FILES, *FOLDER.glob("*.png")])


@pytest.mark.parametrize("page", WITH_FIGURES, ids=lambda page: page.stem)
def test_figures_equal_the_benchmark_results(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "<!-- figures: " in text
    assert filled(text) == text, "write them anew: make pictures"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_picture_is_small_and_readable_on_a_telephone(path: Path) -> None:
    svg = path.read_text("utf-8")
    assert len(svg.encode()) < 40_000
    box = ET.fromstring(svg).attrib["viewBox"].split()
    sizes = [float(size) for size in re.findall(r'font-size(?:="|: )(\d+)', svg)]
    assert min(sizes) * 400 / float(box[2]) > 9, "a text is too small at a width of 400 pixels"
    links = set(re.findall(r"https?://[^\s\"<]+", svg)) - {"http://www.w3.org/2000/svg", "https://www.textualize.io"}
    assert not links, "a picture loads nothing from elsewhere"


DIAGRAMS = [
    pytest.param(found["text"], id=f"{page.stem}-{at}")
    for page in PAGES
    for at, found in enumerate(mermaid.BLOCKS.finditer(page.read_text("utf-8")))
]


@pytest.mark.parametrize("text", DIAGRAMS)
def test_each_diagram_is_drawn_without_a_foreign_program(text: str) -> None:
    drawn = mermaid.shown(f"a\n```mermaid\n{text}```\nb")
    assert "```mermaid" not in drawn
    if text.startswith("stateDiagram"):
        moves = [line.strip() for line in text.splitlines()[1:]]
        rows = drawn.splitlines()[3:-1]
        assert [row.split(" | ")[1:] for row in rows] == [
            [f"`{new}`", f"{how} |"] for new, how in (move.split(" --> ")[1].split(": ") for move in moves)
        ]
        return
    chart = mermaid.read(text)
    wide, high = mermaid.place(chart)
    svg = ET.fromstring(drawn.split("```{raw} html\n")[1].split("\n```")[0])
    assert len([shape for shape in svg if shape.tag == "path"]) == len(chart.edges)
    assert set(re.findall(r"\w+", text)) >= set(re.findall(r"\w+", " ".join(svg.itertext())))
    for left, right, _ in chart.edges:
        assert chart.nodes[left].x + chart.nodes[left].width < chart.nodes[right].x
    for one, other in itertools.combinations(chart.nodes.values(), 2):
        assert (
            one.x + one.width < other.x
            or other.x + other.width < one.x
            or one.y + one.height < other.y
            or other.y + other.height < one.y
        )
    assert all(0 < one.x < wide - one.width and 0 < one.y < high - one.height for one in chart.nodes.values())
    assert "http" not in drawn


def test_undrawable_diagram_is_refused() -> None:
    for text in ("flowchart LR\n    a --> b\n", "stateDiagram-v2\n    a -> b\n"):
        with pytest.raises(AssertionError):
            mermaid.shown(f"```mermaid\n{text}```")
