"""
Say why this tree is not to be released under a tag: ``python scripts/releasable.py v1.0.0``.

Exits with 1, and a line for each reason, where there is one. It needs nothing but Python.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
URLS = ("Homepage", "Documentation", "Source", "Issues", "Changelog")


def reasons(root: Path, tag: str) -> list[str]:
    """Return why the tree at *root* is not to be released under a tag."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    version, urls = project["version"], project.get("urls", {})
    found = []
    if tag != f"v{version}":
        found.append(f"the tag must be v{version}, the version in pyproject.toml; it is {tag}")
    if missing := [name for name in URLS if not urls.get(name, "").startswith("https://")]:
        found.append(f"[project.urls] in pyproject.toml must have {', '.join(missing)}: see RELEASING.md")
    dated = rf"^## \[?{re.escape(version)}\b.*\d{{4}}-\d\d-\d\d"
    if not re.search(dated, (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        found.append(f"CHANGELOG.md must have a section of {version} with a date")
    if left := [path.name for path in sorted((root / "changelog.d").glob("*")) if path.name != "README.md"]:
        found.append(f"changelog.d must be empty: towncrier build --version {version} collects {', '.join(left)}")
    if f"version: {version}\n" not in (root / "CITATION.cff").read_text("utf-8"):
        found.append(f"CITATION.cff must have the version {version}")
    return found


if __name__ == "__main__":
    said = reasons(ROOT, *sys.argv[1:])
    for reason in said:
        print(f"not to be released: {reason}", file=sys.stderr)
    sys.exit(bool(said))
