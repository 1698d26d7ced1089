"""
An exclusive lock: one process at a time leads a file.

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

from queuehint.backends.journal.lead.leadership import Leader, LedElsewhereError
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


class FileLock:
    """
    A lock that is held, from its making until `release`: the lead of a file, for as long as the process lives.

    Args:
        path: of the lock file, which is made and stays.

    Raises:
        LedElsewhereError: another process has it.
        OSError: the file cannot be made, opened, locked or written.
    """

    renew_every_s: float | None = None
    is_heir: bool = True

    def __init__(self, path: Path) -> None:
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock(self._file):
                raise _in_use(self._file)
            os.ftruncate(self._file, 0)
            self._write(0, f"{os.getpid():<{_PID_BYTES}}")
        except BaseException:
            self.leave_to_parent()
            raise
        _held.add(self)

    def announce(self, address: str) -> None:
        """
        Write at which address this process answers others, ``""`` for nowhere.

        Raises:
            OSError: it cannot be written.
        """
        self._write(_PID_BYTES, address + "\n")

    def renew(self) -> None:
        """Nothing: the system keeps the lock."""

    def may_answer(self) -> bool:
        """Return true: nobody else has the lock."""
        return True

    def _write(self, where: int, text: str) -> None:
        if self._file is not None:
            os.lseek(self._file, where, os.SEEK_SET)
            os.write(self._file, os.fsencode(text))

    def release(self) -> None:
        """Empty the lock file, so that the next holder can be told from this one, and release the lock; idempotent."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Close what this process has of the lock, which its parent keeps if it is a fork."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _in_use(file: int) -> LedElsewhereError:
    os.lseek(file, 0, os.SEEK_SET)
    said = os.read(file, _PID_BYTES + _ADDRESS_BYTES_MAX)
    pid, address = said[:_PID_BYTES].strip(), said[_PID_BYTES:]
    # An address without a line end is not completely written yet.
    is_whole = pid.isdigit() and address.endswith(b"\n")
    return LedElsewhereError(
        Leader(pid=int(pid) if pid.isdigit() else None, address=os.fsdecode(address[:-1]) if is_whole else None)
    )


_held: WeakSet[FileLock] = WeakSet()


def _release_in_fork() -> None:
    for lock in list(_held):
        lock.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_fork)


def lock_path(path: Path) -> Path:
    """Return where the lock of a file is, wherever links to it lead."""
    real = path.resolve()
    return real.with_name(real.name + ".lock")


def standby_path(path: Path) -> Path:
    """Return where the lock of a process is that stands by, to lead a file next."""
    real = path.resolve()
    return real.with_name(real.name + ".standby")


def is_locked(path: Path) -> bool:
    """Return whether a process has a lock; it is not taken for longer than that."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:  # nobody ever had it
        return False
    try:
        return not _lock(file)
    finally:
        os.close(file)


def find_holder(path: Path) -> Leader | None:
    """Return what the process that has a lock says of itself; None if no process has it."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:  # nobody ever had it, or only its opening for writing will say why that may not be
        return None
    try:
        # One that was released is empty: it need not be locked for a moment to know.
        if os.fstat(file).st_size == 0 or _lock(file):
            return None
        return _in_use(file).leader
    finally:
        os.close(file)


def take_lock(path: Path) -> FileLock:
    """
    Take the lock of a file.

    Raises:
        LedElsewhereError: another process has it.
        BackendDeniedError, BackendUnavailableError: it cannot be opened.
    """
    try:
        return FileLock(lock_path(path))
    except PermissionError as error:
        raise BackendDeniedError(f"{path} may not be opened: {error}") from error
    except OSError as error:
        raise BackendUnavailableError(f"{path} cannot be opened: {error}") from error
