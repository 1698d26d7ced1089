"""The distributions of a release: built from this tree, inspected, installed where nothing else is, and run."""

from __future__ import annotations

import email
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION = PROJECT["version"]

missing = [name for name in ("build", "twine") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        bool(missing) and not os.environ.get("QUEUEHINT_REQUIRE_RELEASE"), reason="only `make release-check` has build"
    ),
]

PROGRAM = """
import asyncio, sys
import queuehint
from queuehint import Scheduler
from queuehint.backends.redis.functions.library import library

assert queuehint.__version__ == {version!r}
assert sys.prefix in queuehint.__file__, queuehint.__file__
for url in ("memory://", "sqlite:///jobs.db"):
    sched = Scheduler(url)
    ran = []

    @sched.job(queue_hint=["{{doc}}"])
    async def edit(doc: str) -> None:
        ran.append(doc)

    edit.enqueue_sync("doc1")
    sched.drain_sync()
    sched.close_sync()
    assert ran == ["doc1"]
assert library().name.startswith("queuehint_{name}_") and len(library().text) > 100_000
"""


@attrs.frozen
class Built:
    """The files of a release."""

    tree: Path
    wheel: Path
    sdist: Path


def run(*words: str | Path, cwd: Path) -> str:
    """Run a program that has to end well, with nothing of this repository on its path; return what it said."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_", "COVERAGE"))}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source distribution of the tree, and the wheel that is built from it."""
    tree, out = tmp_path_factory.mktemp("tree") / "queuehint", tmp_path_factory.mktemp("dist")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    run(sys.executable, "-m", "build", "--outdir", out, tree, cwd=out)
    wheel, sdist = sorted(out.iterdir(), key=lambda path: path.suffix, reverse=True)
    return Built(tree, wheel, sdist)


def test_files_carry_the_version_and_pass_the_index_check(built: Built, tmp_path: Path) -> None:
    assert built.wheel.name == f"queuehint-{VERSION}-py3-none-any.whl"
    assert built.sdist.name == f"queuehint-{VERSION}.tar.gz"
    said = run(sys.executable, "-m", "twine", "check", "--strict", built.wheel, built.sdist, cwd=tmp_path)
    assert said.count("PASSED") == 2, said


def test_the_wheel_holds_the_package_whole_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    info = f"queuehint-{VERSION}.dist-info/"
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "queuehint").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        "queuehint/py.typed",
        "queuehint/backends/redis/lua/probe.lua",
        "queuehint/web/static/board.css",
        "queuehint/web/static/vendor/htmx.LICENSE.txt",
        "queuehint/web/templates/now.html",
    } <= package
    assert {name for name in names if not name.startswith(info)} == package | {"_queuehint_hypothesis.py"}
    licences = {name for name in names if "/licenses/" in name}
    assert licences == {f"{info}licenses/LICENSE"}, "no file of others is in the wheel"


def test_wheel_lists_foreign_files_in_its_bill_of_materials(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        bill = json.loads(wheel.read(f"queuehint-{VERSION}.dist-info/sboms/queuehint.cdx.json"))
        assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
        assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/queuehint@{VERSION}"
        named = {file["name"]: file["hashes"] for part in bill["components"] for file in part["components"]}
        others = [name for name in wheel.namelist() if "/vendor/" in name and name.endswith(".js")]
        assert named == {
            name: [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read(name)).hexdigest()}] for name in others
        }
    assert all(part["licenses"] and part["version"] in part["purl"] for part in bill["components"])


def test_two_builds_are_equal_byte_by_byte(built: Built, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", tmp_path, built.tree, cwd=tmp_path)
    for file in (built.wheel, built.sdist):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_tree_without_addresses_or_with_another_tag_is_unreleasable(built: Built) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/releasable.py", "v0.1"], cwd=built.tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"the tag must be v{VERSION}" in done.stderr
    addresses = "Homepage, Documentation, Source, Issues, Changelog"
    assert (f"[project.urls] in pyproject.toml must have {addresses}" in done.stderr) is ("urls" not in PROJECT)


def test_source_distribution_contains_tests_pages_and_build_scripts(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "CHANGELOG.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "docs/index.md",
        "pyproject.toml",
        "scripts/long_description.py",
        "tests/release/test_release.py",
    } <= names
    assert not {name for name in names if name.startswith((".ci", ".github", ".venv", "build/", "dist/"))}


def test_the_metadata_lead_nowhere_that_an_index_does_not_know(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        metadata = email.message_from_bytes(wheel.read(f"queuehint-{VERSION}.dist-info/METADATA"))
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata.get_all("Provides-Extra") or []) == set(PROJECT["optional-dependencies"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = str(metadata.get_payload())
    prose = re.sub(r"^```.*?^```$", "", description, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\]\((?!https://)[^)]*\)|\b(?:src|srcset|href)=\"(?!https://)", prose) == []
    assert "First steps" in prose, "the text of a link stays"
    assert "sched.drain_sync()" in description, "code stays"


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installed_package_runs_in_an_empty_environment(built: Built, kind: str, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    file: Path = getattr(built, kind)
    run(python, "-m", "pip", "install", "--quiet", file, cwd=tmp_path)
    program = PROGRAM.format(version=VERSION, name=re.sub(r"\W", "_", VERSION))
    run(python, "-W", "error", "-c", program, cwd=tmp_path)
    if kind == "wheel":
        run(python, "-m", "pip", "check", cwd=tmp_path)
        run(python, "-m", "pip", "install", "--quiet", f"queuehint[cli] @ {file.as_uri()}", cwd=tmp_path)
        command = tmp_path / "env" / "bin" / "queuehint"
        assert run(command, "--version", cwd=tmp_path).strip() == f"queuehint {VERSION}"
        assert "FINISHED" in run(command, "stats", "--target", "sqlite:///jobs.db", cwd=tmp_path)
