"""Metadata of the project in other files agrees with `pyproject.toml`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import queuehint
from scripts.releasable import URLS, reasons

ROOT = Path(__file__).parents[2]
TABLES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = TABLES["project"]


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_citation_has_name_version_licence_and_authors() -> None:
    said = dict(re.findall(r"^(?:  - )?(\w+): ([^>\n]+)$", text_of("CITATION.cff"), re.MULTILINE))
    assert {name: said[name] for name in ("title", "version", "license", "name")} == {
        "title": PROJECT["name"],
        "version": PROJECT["version"],
        "license": PROJECT["license"],
        "name": PROJECT["authors"][0]["name"],
    }


def test_package_changelog_and_policy_name_the_project_version() -> None:
    version = PROJECT["version"]
    assert queuehint.__version__ == version
    section = re.search(r"^## \[([^\]]*)\] - (Unreleased|\d{4}-\d\d-\d\d)$", text_of("CHANGELOG.md"), re.MULTILINE)
    assert section is not None
    assert section[1] == version, "the first section is that of the next release"
    supported = re.findall(r"^\| ([\d.]+) \| yes \|$", text_of("SECURITY.md"), re.MULTILINE)
    assert supported == [re.match(r"\d+\.\d+", version)[0]]  # type: ignore[index]


def test_classifiers_name_the_interpreters_with_which_every_change_is_tested() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    matrix = re.search(r"matrix:\n +python-version: \[(.*)\]", text_of(".github/workflows/ci.yml"))
    assert matrix is not None
    assert re.findall(r"3\.\d+", matrix[1]) == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_every_extra_and_every_lowest_version_is_tested() -> None:
    lowest = text_of("Makefile").partition("\ntest-lowest:")[2].partition("\n\n")[0]
    assert lowest.count("--resolution lowest-direct --all-extras -r pyproject.toml") == 2
    loose = [need for needs in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()) for need in needs]
    assert [need for need in loose if not re.match(r"[\w-]+>=[\d.]+$|tzdata;", need)] == []


def test_the_licences_of_all_that_is_depended_on_are_said() -> None:
    said = text_of("docs/faq.md").partition("### Under which licences")[2].partition("\n### ")[0].lower()
    needs = [need for needs in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()) for need in needs]
    names = {re.match(r"[\w-]+", need)[0] for need in needs} - {"tzdata"}  # type: ignore[index]
    assert {name for name in names if name not in said} == set()
    assert {extra for extra in PROJECT["optional-dependencies"] if f"`{extra}`" not in said} == set()


KINDS = [kind["directory"] for kind in TABLES["tool"]["towncrier"]["type"]]
ENTRY = re.compile(rf"(?:[1-9]\d*|\+[a-z0-9-]+)\.(?:{'|'.join(KINDS)})(?:\.\d+)?\.md")


def test_entries_of_the_changelog_have_names_and_texts_as_described() -> None:
    described = text_of("changelog.d/README.md")
    assert [kind for kind in KINDS if f"`{kind}`" not in described] == []
    entries = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert [path.name for path in entries if not ENTRY.fullmatch(path.name)] == []
    wrong = re.compile(r"^[-*#]|[^.]\n\Z|[^\n]\Z|\n\n")
    assert [path.name for path in entries if wrong.search(path.read_text("utf-8"))] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree that is to be released as v1.2.0."""
    urls = "\n".join(f'{name} = "https://example.org/"' for name in URLS)
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "1.2.0"\n[project.urls]\n{urls}\n', "utf-8")
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.0] - 2030-01-02\n", "utf-8")
    (tmp_path / "CITATION.cff").write_text("version: 1.2.0\n", "utf-8")
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d/README.md").touch()
    return tmp_path


def test_complete_tree_is_releasable(tree: Path) -> None:
    assert reasons(tree, "v1.2.0") == []


@pytest.mark.parametrize(
    "file, text, reason",
    [
        ("CHANGELOG.md", "## [1.2.0] - Unreleased\n", "CHANGELOG.md must have a section of 1.2.0 with a date"),
        ("CITATION.cff", "version: 1.1.0\n", "CITATION.cff must have the version 1.2.0"),
        (
            "changelog.d/1.fixed.md",
            "",
            "changelog.d must be empty: towncrier build --version 1.2.0 collects 1.fixed.md",
        ),
        (
            "pyproject.toml",
            '[project]\nversion = "1.2.0"\n[project.urls]\nHomepage = "https://example.org"\n',
            "[project.urls] in pyproject.toml must have Documentation, Source, Issues, Changelog: see RELEASING.md",
        ),
    ],
)
def test_incomplete_tree_is_not_releasable(tree: Path, file: str, text: str, reason: str) -> None:
    (tree / file).write_text(text, "utf-8")
    assert reasons(tree, "v1.2.0") == [reason]


def test_releasing_names_every_address_to_fill_in() -> None:
    lines = text_of("RELEASING.md").partition("[project.urls]\n")[2].partition("```")[0]
    assert re.findall(r"^ *(\w+) = ", lines, re.MULTILINE) == list(URLS)
