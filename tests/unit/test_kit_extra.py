"""Imports: the package without the kit, the lease helper without code that runs jobs, the kit without its extras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT = """
import sys
import queuehint
sys.modules["hypothesis"] = sys.modules["pytest"] = None
from queuehint import testing
from queuehint.errors import MissingExtraError

missing = []
for name in testing.__all__:
    try:
        getattr(testing, name)
    except MissingExtraError as error:
        assert isinstance(error, ImportError) and error.extra == "testing", error
        assert name in str(error) and "pip install 'queuehint[testing]'" in str(error), error
        missing.append(name)
print(*missing)
"""

_COMMANDS = """
import sys
import queuehint.cli.app
stores = ("redis", "queuehint.core", "queuehint.backends.redis", "queuehint.backends.journal")
assert not [name for name in sys.modules if name.startswith(stores)], "a store is imported by who opens one"
"""

_IMPORTS = """
import sys
import queuehint
assert [name for name in sys.modules if name.startswith("queuehint.")] == [], "a name is imported when it is used"
import queuehint.worker.leases.helper
rooms = {".".join(name.split(".")[1:2]) for name in sys.modules if name.startswith("queuehint.")}
own = {"backends", "clock", "errors", "operations", "schema", "shown", "values", "worker"}
assert rooms == own, "each worker starts one"
from queuehint import Scheduler
drivers = {"cattrs", "redis", "rich", "sortedcontainers", "sqlite3", "typer", "cryptography", "multiprocessing"}
assert not drivers & set(sys.modules), "what some stores, or commands, need"
assert not [name for name in sys.modules if name.startswith(("queuehint.core", "queuehint.backends."))
    and name not in {f"queuehint.backends.{each}" for each in ("base", "masks", "sending", "steps")}]
sched = Scheduler("memory://")
@sched.job(queue_hint=["{doc}"])
def step(doc: str, words: list[str]) -> dict[str, int]: ...
assert not {"cattrs", "queuehint.worker.worker"} & set(sys.modules), "a producer with JSON types needs neither"
from queuehint import *
import hypothesis
assert Scheduler.__module__ == queuehint.Scheduler.__module__ and queuehint.operations.Enqueue
assert not [name for name in sys.modules if name.startswith("queuehint.testing")]
sys.modules["redis"] = sys.modules["queuehint.backends.redis"] = None
import importlib, pkgutil
from queuehint import testing
names = [module.name for module in pkgutil.walk_packages(testing.__path__, "queuehint.testing.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""


@pytest.mark.slow
def test_package_lease_helper_and_kit_import_only_their_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS],
        env={"HYPOTHESIS_NO_PLUGINS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


@pytest.mark.slow
def test_kit_without_extras_names_the_missing_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _WITHOUT], capture_output=True, text=True, check=True, timeout=240
    )
    missing = set(done.stdout.split())
    assert missing >= {"BackendConformance", "BackendStateMachine", "check_queue", "hints", "jobs"}
    assert not missing & {"check_trace", "simulate", "check_serial_equivalence", "drain", "ReferenceModel", "on_memory"}


@pytest.mark.slow
def test_commands_import_no_store_before_one_is_opened() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
