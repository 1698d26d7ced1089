"""The kit without Hypothesis and pytest: what needs them says so, all else works."""

from __future__ import annotations

import subprocess
import sys

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


def test_what_needs_hypothesis_or_pytest_names_the_extra_and_the_rest_does_without() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _WITHOUT], capture_output=True, text=True, check=True, timeout=60
    )
    missing = set(done.stdout.split())
    assert missing >= {"BackendConformance", "BackendStateMachine", "check_queue", "hints", "jobs"}
    assert not missing & {"check_trace", "simulate", "check_serial_equivalence", "drain", "ReferenceModel", "on_memory"}
