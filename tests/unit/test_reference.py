"""The reference documents every public name."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import queuehint
from queuehint import testing

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
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
        if f"queuehint.{name}" not in there
        and not (name.endswith(("Error", "Warning")) and re.search(rf"\b{name}\b", errors))
    ]
    assert missing == []


def test_every_name_of_the_kit_is_in_the_reference() -> None:
    """From its docstring, or told in words."""
    text, there = (REFERENCE / "testing.md").read_text("utf-8"), documented("testing.md")
    assert [
        name for name in testing.__all__ if f"queuehint.testing.{name}" not in there and f"`{name}`" not in text
    ] == []


EXTRAS = {
    "cli": ("rich", "typer"),
    "cron": ("cronsim", "tzdata"),
    "crypto": ("cryptography",),
    "otel": ("opentelemetry",),
    "postgres": ("psycopg",),
    "prometheus": ("prometheus_client",),
    "reload": ("watchfiles",),
    "testing": ("hypothesis", "pytest"),
    "web": ("jinja2", "starlette", "uvicorn"),
}
"""The packages of each extra."""


def test_star_import_without_any_extra_refuses_a_codec_when_made() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["optional-dependencies"].keys() == EXTRAS.keys()
    code = (
        "import sys\n"
        f"for name in {[name for names in EXTRAS.values() for name in names]}:\n"
        "    sys.modules[name] = None\n"
        "from queuehint import *\n"
        "try:\n"
        "    EncryptedCodec({'a': bytes(32)})\n"
        "except MissingExtraError as error:\n"
        "    print(error.extra)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "crypto\n"
