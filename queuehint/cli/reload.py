"""
``queuehint worker --reload``: each worker process watches the source files that it has imported from the application.

When one changes, the process stops as after a signal and exits with `EXIT_RELOAD`; its parent restarts it at once.
If the application cannot be imported, the process waits for the next change, which may repair it.

Files are polled twice a second and compared by modification time and size. Polling works in shared folders and
containers, where file events get lost, and costs a fraction of a millisecond for a hundred files.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType

import queuehint

EVERY_S = 0.5
EXIT_RELOAD = 4
_ELSEWHERE = tuple(
    Path(folder).resolve()
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(queuehint.__file__).parent)
)
_INSTALLED = {"site-packages", "dist-packages"}


class SourceWatch:
    """
    The source files of an application that this process has imported, and whether they are as they were.

    Files of Python, of installed packages and of queuehint are not among them.

    Args:
        modules: those imported, by name; they may grow.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules
        self._count = 0
        self._stamps: dict[str, tuple[int, int]] = {}
        self._judged: set[str] = set()
        self._ended = threading.Event()
        self.changed: str | None = None
        """The file because of which the process is to be started anew."""

    @property
    def files(self) -> set[str]:
        """The files that are watched."""
        return {*self._stamps}

    def take(self, error: BaseException | None = None) -> bool:
        """
        Watch the modules that have been imported by now, and return whether there is anything to watch.

        Args:
            error: what an import has ended with; the files in its traceback are watched too, because modules that could
                not be imported are not among the others.
        """
        files = [getattr(module, "__file__", None) for module in list(self._modules.values())]
        self._count = len(self._modules)
        self._add([file for file in files if isinstance(file, str)])
        self._add(_files_of(error))
        return bool(self._stamps)

    def look(self) -> str | None:
        """Return a file that is not as it was when it was seen first, None if there is none."""
        for file, stamp in self._stamps.items():
            # Some editors move a file away and write another: while there is none, nothing has changed.
            if _stamp(file) not in {stamp, None}:
                return file
        if len(self._modules) != self._count:
            self.take()
        return None

    def wait(self, told: threading.Event) -> bool:
        """Wait for a change, or until the process is told to stop; return whether there is a change."""
        while not told.wait(EVERY_S):
            self.changed = self.look()
            if self.changed is not None:
                return True
        return False

    def start(self, call: Callable[[str], None]) -> None:
        """Watch in a thread of its own, and call a function there at the first change, with the name of the file."""

        def watch() -> None:
            if self.wait(self._ended) and self.changed is not None:
                call(self.changed)

        self.take()
        threading.Thread(target=watch, name="queuehint-reload", daemon=True).start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def _add(self, files: Iterable[str]) -> None:
        for file in {*files} - self._judged:
            self._judged.add(file)
            stamp = _stamp(file) if _is_of_application(file) else None
            if stamp is not None:
                self._stamps[file] = stamp


def _files_of(error: BaseException | None) -> set[str]:
    """Return the files in the tracebacks of an exception and of those that led to it."""
    found: set[str] = set()
    while error is not None:
        found |= {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
        if isinstance(error, SyntaxError) and error.filename is not None:
            found.add(error.filename)
        error = error.__cause__ or error.__context__
    return found


def _is_of_application(file: str) -> bool:
    path = Path(file)
    if path.suffix != ".py" or not _INSTALLED.isdisjoint(path.parts):
        return False
    path = path.resolve()
    return _INSTALLED.isdisjoint(path.parts) and not any(path.is_relative_to(folder) for folder in _ELSEWHERE)


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
