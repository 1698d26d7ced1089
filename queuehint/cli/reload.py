"""
``queuehint worker --reload``: each worker process watches the imported source files of the application.

When one changes, the process stops as after a signal and exits with `EXIT_RELOAD`; its parent restarts it at once.
If the application cannot be imported, the process waits for the next change, which may repair it.

The folders of the files are watched by `watchfiles`, of the extra ``queuehint[reload]``: editors replace a file, and a
watch of the file itself would end with it. Every half second the files imported meanwhile are added.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import queuehint
from queuehint.errors import MissingExtraError

EVERY_MS = 500
EXIT_RELOAD = 4
_ELSEWHERE = tuple(
    Path(folder).resolve()
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(queuehint.__file__).parent)
)
_INSTALLED = {"site-packages", "dist-packages"}


def check_installed() -> None:
    """
    Require the library that watches files.

    Raises:
        MissingExtraError: the extra ``reload`` is not installed.
    """
    if find_spec("watchfiles") is None:
        raise MissingExtraError("reload", "restarts on changes of source files")


class SourceWatch:
    """
    The imported source files of an application, and the first of them that changes.

    Files of Python, of installed packages and of queuehint are not among them.

    Args:
        modules: those imported, by name; they may grow.
    """

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        from watchfiles import watch

        # It logs each change of a folder that it sees, a log file of the application among them.
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        self._watch = watch
        self._modules = sys.modules if modules is None else modules
        self._count = 0
        self._files: dict[Path, str] = {}
        self._imported_after_s: dict[Path, float] = {}
        self._looked_s = time.time()
        self._gone: set[Path] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.changed: str | None = None
        """The file because of which the process is to be started anew."""

    @property
    def files(self) -> set[str]:
        """The watched files, by the names of their imports."""
        return {*self._files.values()}

    def take(self, error: BaseException | None = None) -> bool:
        """
        Watch the modules imported by now. Return whether there are any.

        Args:
            error: what an import has ended with; the files in its traceback are watched too, because modules that could
                not be imported are not among the others.
        """
        now_s = time.time()
        if len(self._modules) != self._count:
            self._count = len(self._modules)
            self._add({module.__file__ for module in list(self._modules.values()) if hasattr(module, "__file__")})
        self._add(_files_of(error))
        self._looked_s = now_s
        return bool(self._files)

    def find(self, touched: Iterable[Path]) -> str | None:
        """
        Return a file that was changed or restored, None if there is none.

        While a file is gone, nothing has changed: some editors move it away and write another.
        """
        touched = self._gone.union(touched, self._changed_unseen()).intersection(self._files)
        self._gone = {path for path in touched if not path.is_file()}
        return next((self._files[path] for path in touched - self._gone), None)

    def wait(self, told: threading.Event) -> bool:
        """Wait for a change, or a stop request. Return whether there is a change."""
        while self.changed is None and not told.is_set():
            folders = self._folders()
            # No filter: a change that a filter drops is not yielded, and imports would not be looked at meanwhile.
            for changes in self._watch(
                *folders,
                watch_filter=None,
                debounce=EVERY_MS,
                rust_timeout=EVERY_MS,
                yield_on_timeout=True,
                stop_event=told,
                recursive=False,
                ignore_permission_denied=True,
            ):
                self.changed = self.find(Path(path) for _, path in changes)
                self.take()
                if self.changed is not None or self._folders() != folders:
                    break
        return self.changed is not None

    def start(self, call: Callable[[str], None]) -> None:
        """Watch in a thread, and call a function there at the first change, with the name of the file."""

        def wait() -> None:
            if self.wait(self._ended) and self.changed is not None:
                call(self.changed)

        self.take()
        self._thread = threading.Thread(target=wait, name="queuehint-reload", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching. A thread that is still in the library when Python ends would abort the process."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _add(self, files: Iterable[str | None]) -> None:
        for file in files:
            if isinstance(file, str) and _is_of_application(file):
                # Events name a file by its folder; where that is a link, some systems name what it leads to.
                for path in (Path(file).absolute(), Path(file).resolve()):
                    self._files[path] = file
                    self._imported_after_s.setdefault(path, self._looked_s)

    def _changed_unseen(self) -> set[Path]:
        """Return each imported file written after its import began, once: no watch may have seen the change."""
        imported, self._imported_after_s = self._imported_after_s, {}
        now_s = time.time()  # a file from the future would restart the process for ever
        return {
            path for path, after_s in imported.items() if path.is_file() and after_s < path.stat().st_mtime <= now_s
        }

    def _folders(self) -> set[Path]:
        return {folder for folder in {path.parent for path in self._files} if folder.is_dir()}


def _files_of(error: BaseException | None) -> set[str]:
    """Return the files in the tracebacks of an exception and its causes."""
    found: set[str] = set()
    while error is not None:
        found |= {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
        if isinstance(error, SyntaxError) and error.filename is not None:
            found.add(error.filename)
        error = error.__cause__ or error.__context__
    return found


@cache
def _is_of_application(file: str) -> bool:
    path = Path(file)
    if path.suffix != ".py" or not _INSTALLED.isdisjoint(path.parts) or not path.is_file():
        return False
    path = path.resolve()
    return _INSTALLED.isdisjoint(path.parts) and not any(path.is_relative_to(folder) for folder in _ELSEWHERE)
