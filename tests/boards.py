"""A board served by a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextmanager
def served(*words: str, cwd: Path | None = None, **env: str) -> Iterator[str]:
    """Serve a board by the command that users have, which has no path of imports but its own; yield its address."""
    program = "import sys; sys.path.remove(''); from queuehint.cli import main; main()"
    command = [sys.executable, "-c", program, "web", *words, "--port", "0"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | env
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=cwd) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert line.startswith("queuehint web: http://")
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
