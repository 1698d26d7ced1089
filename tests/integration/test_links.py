"""Links from file to file of the repository lead to files, and to headings that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "changelog.d").glob("*.md")]
    + [page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md") if "_build" not in page.parts]
)
CODE = re.compile(r"^(```+).*?^\1$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^()\s#]*)(?:#([^()\s]+))?\)")


def slugs(page: Path) -> set[str]:
    """Return the anchors that forges, and the built pages, give the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        found.add(next(name for name in (slug, *(f"{slug}-{n}" for n in range(1, 9))) if name not in found))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = CODE.sub(lambda code: "" if code[1] else code[0], page.read_text("utf-8"))
    lost = []
    for file, heading in LINK.findall(text):
        target = (page.parent / file) if file else page
        if not target.exists() or (heading and target.suffix == ".md" and heading not in slugs(target)):
            lost.append(f"{file}#{heading}")
    assert lost == []


def test_changelog_links_every_area_to_a_page() -> None:
    first = (ROOT / "CHANGELOG.md").read_text("utf-8").partition("## [1.0.0rc1]")[2].partition("\n## [")[0]
    entries = re.findall(r"^- .*$", first, re.MULTILINE)
    assert len(entries) > 20
    assert [entry for entry in entries if "](docs/" not in entry] == []
