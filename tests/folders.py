"""Folders for files that tests write and read all the time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Make a folder, in memory where that is possible: a busy disk makes every commit wait."""
    place = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="queuehint-", dir=place) as folder:
        yield Path(folder)
