"""
An exclusive lock: one process at a time has a file open.

It is a lock of the operating system on a second file beside it, so that it ends with the process in every case. It
belongs to the opened file, not to the process: a second store in the same process does not get it either. A fork
inherits the opened file and closes it at once, or it would keep the lock after its parent has died.

The lock file holds the id of the process, in 20 bytes, and behind it the address at which that process answers others.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from queuehint.errors import BackendDeniedError, BackendUnavailableError

_PID_BYTES: Final = 20
_ADDRESS_BYTES_MAX: Final = 4096

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
    """Another process has the lock; *pid* and *address* are None if it has not written them yet."""

    def __init__(self, pid: int | None, address: str | None = None) -> None:
        self.pid = pid
        self.address = address
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
                raise _in_use(self._file)
            os.ftruncate(self._file, 0)
            self._write(0, f"{os.getpid():<{_PID_BYTES}}")
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def announce(self, address: str) -> None:
        """
        Write at which address this process answers others, ``""`` for nowhere.

        Raises:
            OSError: it cannot be written.
        """
        self._write(_PID_BYTES, address + "\n")

    def clear(self) -> None:
        """Empty the lock file, so that the next holder can be told from this one."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, 0)

    def _write(self, where: int, text: str) -> None:
        if self._file is not None:
            os.lseek(self._file, where, os.SEEK_SET)
            os.write(self._file, os.fsencode(text))

    def release(self) -> None:
        """Release the lock; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _in_use(file: int) -> FileInUseError:
    os.lseek(file, 0, os.SEEK_SET)
    said = os.read(file, _PID_BYTES + _ADDRESS_BYTES_MAX)
    pid, address = said[:_PID_BYTES].strip(), said[_PID_BYTES:]
    # An address without a line end is not completely written yet.
    is_whole = pid.isdigit() and address.endswith(b"\n")
    return FileInUseError(int(pid) if pid.isdigit() else None, os.fsdecode(address[:-1]) if is_whole else None)


_held: WeakSet[FileLock] = WeakSet()


def _release_in_fork() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_fork)


def lock_path(path: Path) -> Path:
    """Return where the lock of a file is, wherever links to it lead."""
    real = path.resolve()
    return real.with_name(real.name + ".lock")


def take_lock(path: Path) -> FileLock:
    """
    Take the lock of a file.

    Raises:
        FileInUseError: another process has it.
        BackendDeniedError, BackendUnavailableError: it cannot be opened.
    """
    try:
        return FileLock(lock_path(path))
    except PermissionError as error:
        raise BackendDeniedError(f"{path} may not be opened: {error}") from error
    except OSError as error:
        raise BackendUnavailableError(f"{path} cannot be opened: {error}") from error
