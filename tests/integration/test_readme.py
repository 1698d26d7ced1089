"""The README and the first page of the docs: their links lead to files; and every how-to page is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text("utf-8"))
    assert links
    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_how_to_page_is_in_a_group() -> None:
    folder = ROOT / "docs" / "how-to"
    index = (folder / "index.md").read_text("utf-8")
    listed = re.findall(r"^- \[.*?\]\((.+?)\.md\)", index, re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in folder.glob("*.md") if page.stem != "index")
    assert listed == index.split(":hidden:\n\n")[1].split("\n```")[0].split("\n")
