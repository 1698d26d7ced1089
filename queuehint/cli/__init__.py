"""The command `queuehint`, of the extra ``queuehint[cli]``."""

from __future__ import annotations

import atexit
import gc
import sys
from importlib.util import find_spec

NEEDS = ("rich", "typer")


def main() -> None:
    """Run the command, or name the packages that are missing."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        sys.exit(f"queuehint: the command needs {', '.join(missing)}: pip install 'queuehint[cli]'")
    # A garbage collection at exit, of memory that is freed anyway, would take a quarter of the time of a command.
    atexit.register(gc.freeze)
    # Nor is there any garbage among what is imported: a tenth of the time in which a command starts.
    gc.disable()
    from queuehint.cli.app import app

    gc.freeze()
    gc.enable()
    app(prog_name="queuehint")
