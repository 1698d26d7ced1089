"""The reference documents every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import queuehint
from queuehint import testing

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


def test_star_import_without_the_extra_crypto_refuses_a_codec_when_made() -> None:
    code = (
        "import sys\n"
        "sys.modules['cryptography'] = None\n"
        "from queuehint import *\n"
        "try:\n"
        "    EncryptedCodec({'a': bytes(32)})\n"
        "except MissingExtraError as error:\n"
        "    print(error.extra)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "crypto\n"
