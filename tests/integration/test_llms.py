"""The documentation as text for programs: every page, every public name, and links that lead to pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import queuehint
from queuehint import testing
from scripts.llms import as_text, write

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built")
    write(DOCS, out)
    return out


def test_each_page_is_written_and_listed_once(built: Path) -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    assert {str(page.relative_to(built)) for page in built.rglob("*.md")} == pages
    listed = re.findall(r"\(([\w/-]+\.md)\)", (built / "llms.txt").read_text("utf-8"))
    assert sorted(listed) == sorted(page for page in pages if not page.endswith("index.md"))


def test_links_of_list_begin_with_address(tmp_path: Path) -> None:
    write(DOCS, tmp_path, "https://example.org/en/")
    links = re.findall(r"\]\(([^)]+)\)", (tmp_path / "llms.txt").read_text("utf-8"))
    assert links
    assert [link for link in links if not link.startswith("https://example.org/en/")] == []


def test_pages_hold_no_directives_and_links_lead_to_pages(built: Path) -> None:
    for page in built.rglob("*.md"):
        text = page.read_text("utf-8")
        assert not re.search(r"^```\{|^\.\. auto|<picture>|<!-- not run|:hidden:", text, re.MULTILINE), page
        prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)
        links = [link for link in re.findall(r"\]\((?!https?:|#)([^()\s#]+)", prose) if not link.endswith(".gz")]
        pictures = {DOCS / "pictures" / Path(link).name for link in links if "_images/" in link}
        assert [picture for picture in pictures if not picture.exists()] == []
        assert [link for link in links if "_images/" not in link and not (page.parent / link).exists()] == [], page


@pytest.mark.slow
def test_full_text_documents_every_public_name(built: Path) -> None:
    text = (built / "llms-full.txt").read_text("utf-8")
    assert [name for name in queuehint.__all__ if not re.search(rf"\b{name}\b", text)] == []
    assert [name for name in testing.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_documented_names_have_signature_and_docstring() -> None:
    block = "# Page\n\n```{eval-rst}\n.. autoclass:: queuehint.FakeClock\n   :members: advance\n```\n"
    text = as_text(block)
    assert "#### `queuehint.FakeClock(" in text
    assert re.search(r"^- `advance\([^']*\) -> None`: \w", text, re.MULTILINE)
