"""
An exclusive lock: one process at a time uses a file.

It is a lock of the operating system on a second file beside it, so that it ends with the process in every case. It
belongs to the opened file, not to the process: a second store in the same process is refused too. A fork inherits the
opened file and closes it at once, or it would keep the lock after its parent has died.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING
from weakref import WeakSet

from queuehint.errors import BackendDeniedError, BackendInUseError, BackendUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30  # what is locked there cannot be read by others

    def _lock(file: int) -> bool:
        os.lseek(file, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class FileInUseError(Exception):
    """Another process has the lock; *pid* is None if it has not written it yet."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        super().__init__(f"in use by {pid}")


class FileLock:
    """
    A lock that is held, from its making until `release`.

    Args:
        path: of the lock file, which is made and stays.

    Raises:
        FileInUseError: another has it.
        OSError: the file cannot be made, opened, locked or written.
    """

    def __init__(self, path: Path) -> None:
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock(self._file):
                os.lseek(self._file, 0, os.SEEK_SET)
                said = os.read(self._file, 20).strip()
                raise FileInUseError(int(said) if said.isdigit() else None)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, f"{os.getpid():<20}".encode())
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def release(self) -> None:
        """Release the lock; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


_held: WeakSet[FileLock] = WeakSet()


def _release_in_fork() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_fork)


def take_lock(path: Path) -> FileLock:
    """
    Take the lock of a file, wherever links to it lead.

    Raises:
        BackendInUseError: another process has it.
        BackendDeniedError, BackendUnavailableError: it cannot be opened.
    """
    try:
        real = path.resolve()
        return FileLock(real.with_name(real.name + ".lock"))
    except FileInUseError as error:
        raise BackendInUseError(str(path), error.pid) from None
    except PermissionError as error:
        raise BackendDeniedError(f"{path} must not be opened: {error}") from error
    except OSError as error:
        raise BackendUnavailableError(f"{path} cannot be opened: {error}") from error
