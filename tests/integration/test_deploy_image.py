"""The recipe of an image of the board: what it says, and its steps in environments of their own instead of stages."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from queuehint.cli import web
from queuehint.cli.app import app
from tests.commands import CliRunner
from tests.containers import read_recipe
from tests.probes import free_port, until
from tests.servers import Server, new_namespace

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy" / "Dockerfile"
OVER_S = 120.0
PINNED = "docker.io/library/python:3.13-slim@sha256:" + "0" * 64

needs_index = pytest.mark.skipif(
    importlib.util.find_spec("build") is None and not os.environ.get("QUEUEHINT_REQUIRE_RELEASE"),
    reason="builds a wheel and installs from an index, as `make release-check` does",
)


def test_stages_of_the_image_begin_with_the_pinned_python() -> None:
    assert [stage.base for stage in read_recipe(RECIPE, PYTHON_IMAGE=PINNED)] == [PINNED, PINNED]


def test_image_has_no_step_of_its_own_and_no_root() -> None:
    *_, image = read_recipe(RECIPE)
    assert image.of("RUN") == []
    assert image.of("COPY") == ["--from=build /opt/queuehint /opt/queuehint"]
    (user,) = image.of("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user), "a number: Kubernetes checks runAsNonRoot by it"
    assert image.environment()["PYTHONDONTWRITEBYTECODE"] == "1"


def test_recipe_copies_files_that_its_ignore_file_lets_through() -> None:
    build, _ = read_recipe(RECIPE)
    copied = {name for rest in build.of("COPY") for name in rest.split()[:-1]}
    ignored = (RECIPE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)
    assert "*" in ignored


def test_image_refuses_to_be_open_unless_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, image = read_recipe(RECIPE)
    program, *words = image.command("ENTRYPOINT")
    assert program == "queuehint"
    url = f"sqlite:///{tmp_path}/jobs.db"
    done = CliRunner().invoke(app, words, env={"QUEUEHINT_URL": url})
    assert (done.exit_code, "can be reached by others" in done.output) == (2, True)
    (port,) = image.of("EXPOSE")
    assert f"127.0.0.1:{port}/healthz" in image.command("HEALTHCHECK")[-1]
    assert int(port) == web.PORT


def status_of(port: str, path: str) -> int:
    """Return the status of an answer; 0 without one."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


@pytest.mark.nightly
@needs_index
def test_steps_of_the_recipe_make_a_board_that_is_healthy(tmp_path: Path, redis_server: Server) -> None:
    build, image = read_recipe(RECIPE)
    source, wheels, prefix = tmp_path / "src", tmp_path / "wheels", tmp_path / "queuehint"
    for rest in build.of("COPY"):
        *names, target = rest.split()
        for name in names:
            copied = source / target / (Path(name).name if target.endswith("/") else "")
            copied.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, copied)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "python")], check=True)
    environment = {**os.environ, "PATH": f"{tmp_path / 'python' / 'bin'}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    for step in build.of("RUN"):
        command = step.replace("/opt/queuehint", str(prefix)).replace("/wheels", str(wheels))
        subprocess.run(["sh", "-ec", command], cwd=source, env=environment, check=True)
    assert not (prefix / "bin" / "pip").exists()
    port, url = str(free_port()), f"{redis_server.url}?namespace={new_namespace()}"
    (tmp_path / "password").write_text("secret\n")
    program, *words = image.command("ENTRYPOINT")
    options = ["--port", port, "--user", "ann", "--password-file", str(tmp_path / "password")]
    served = {"PATH": f"{prefix / 'bin'}:{os.environ['PATH']}", "QUEUEHINT_URL": url}
    check = [word.replace(":8400/", f":{port}/") for word in image.command("HEALTHCHECK")]
    check[0] = str(prefix / "bin" / check[0])
    assert subprocess.run(check, env=served, check=False, capture_output=True).returncode != 0
    served_by = [str(prefix / "bin" / program), *words, *options]
    with subprocess.Popen(served_by, cwd=tmp_path, env=served, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: process.poll() is not None or status_of(port, "/readyz") == 200, OVER_S)
            subprocess.run(check, env=served, check=True)
            assert status_of(port, "/api/v1/stats") == 401
        finally:
            process.terminate()
            assert process.wait(OVER_S) in {0, -15}
