"""The programs extracted from the proofs: compiled once for each process, fed with histories."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PROOF: Final = ROOT / "proof"
INSTALL: Final = "on Debian or Ubuntu: apt-get install ocaml"


def require(tool: str, reason: str) -> None:
    """Skip a test without a tool; fail it if `QUEUEHINT_REQUIRE_PROOF=1`."""
    if shutil.which(tool) is None:
        if os.environ.get("QUEUEHINT_REQUIRE_PROOF") == "1":
            pytest.fail(f"QUEUEHINT_REQUIRE_PROOF=1, and {reason}", pytrace=False)
        pytest.skip(reason)


def build(name: str, folder: Path) -> Path:
    """Compile the program of *name* into a folder, without Coq."""
    require("ocamlopt", f"there is no OCaml compiler to build the proved program with; {INSTALL}")
    files = [f"{name}.mli", f"{name}.ml", f"replay_{name}.ml"]
    for file in files:
        shutil.copy(PROOF / "ocaml" / file, folder)
    subprocess.run(["ocamlopt", "-w", "-a", *files, "-o", name], cwd=folder, check=True, capture_output=True)
    return folder / name


def replay(program: Path, lines: list[str]) -> list[str]:
    """Have a program play some lines; return what it prints."""
    text = "\n".join(lines) + "\n"
    return subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
