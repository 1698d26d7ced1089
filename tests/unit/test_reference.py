"""The reference documents every public name."""

from __future__ import annotations

import re
from pathlib import Path

import queuehint

REFERENCE = Path(__file__).parents[2] / "docs/reference"
_DOCUMENTED = re.compile(r"^\.\. (?:auto(?:class|exception|function)|py:data):: (\S+)$", re.MULTILINE)


def documented(page: str) -> set[str]:
    """Return what a page documents, by full name."""
    return set(_DOCUMENTED.findall((REFERENCE / page).read_text("utf-8")))


def test_every_public_name_is_in_the_reference() -> None:
    errors = (REFERENCE / "errors.md").read_text("utf-8")
    there = documented("api.md")
    missing = [
        name
        for name in queuehint.__all__
        if f"queuehint.{name}" not in there and not (name.endswith("Error") and re.search(rf"\b{name}\b", errors))
    ]
    assert missing == []
