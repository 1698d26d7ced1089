"""Metadata of the project in other files agrees with `pyproject.toml`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_citation_has_name_version_licence_and_authors_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    said = dict(re.findall(r"^(?:  - )?(\w+): ([^>\n]+)$", citation, re.MULTILINE))
    assert {name: said[name] for name in ("title", "version", "license", "name")} == {
        "title": project["name"],
        "version": project["version"],
        "license": project["license"],
        "name": project["authors"][0]["name"],
    }
