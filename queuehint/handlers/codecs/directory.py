"""
Blobs as files of a directory. Each file appears whole, and is deleted by age.

A file is named by what is in it, so many may write it at once, and one may write it while another deletes it. Deletion
takes a file away under a name of its own first and looks at its age there: nobody can make it young any more, and one
that somebody has made young meanwhile is brought back. Readers look for it under both names.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from queuehint.errors import InvalidJobTypeError, shown
from queuehint.schema.checks import check_duration

if TYPE_CHECKING:
    from datetime import timedelta

REWRITTEN_AFTER_S = 3600
"""A file that was not written for so long is written anew: a file server may tell others late that it is young."""
READ_BYTES = 1 << 20
NEW, OLD = ".new.", ".old."
"""What the names of files begin with that are not complete yet, or taken away."""


class DirectoryStore:
    """
    Blobs as files of a directory that producers and workers share, such as a network file system.

    A file appears whole or not at all, survives a crash of the machine once `put` has returned, and is there until
    `prune` deletes it. Only the user that has written it may read it, and its group where that may write into the
    directory.

    Args:
        path: the directory; made by the first `put`, with its parents, for its user alone.

    .. versionadded:: 1.0.0
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidJobTypeError(f"path must be a path, got {type(path).__name__}: {shown(path)}")
        self._path = Path(path)
        self._synced: set[Path] = set()
        """The folders whose own names are known to survive a crash."""

    def __repr__(self) -> str:
        return f"DirectoryStore({os.fspath(self._path)!r})"

    def put(self, name: str, data: bytes) -> None:
        """
        Write a file, or renew its age.

        One that was written within an hour is read and compared, so a damaged one is replaced; that takes about a
        millisecond a megabyte of a local disk. An older one is written anew without a look.
        """
        file = self._file(name)
        if not _is_kept(file, data):
            self._write(file, data)
        _sync(file.parent)
        if file.parent not in self._synced:
            # Another process may have made it just now, and not have come this far.
            _sync(self._path)
            with contextlib.suppress(PermissionError):
                _sync(self._path.parent)
            self._synced.add(file.parent)

    def get(self, name: str) -> bytes:
        """
        Read a file.

        Raises:
            LookupError: it is not there.
            OSError: it cannot be read.
        """
        file = self._file(name)
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                return file.read_bytes()
            # Taken away, to be deleted or to be back by the time it is read.
            for away in file.parent.glob(f"{OLD}*.{name}"):
                with contextlib.suppress(FileNotFoundError):
                    return away.read_bytes()
        raise LookupError(name)

    def prune(self, older_than: float | timedelta) -> int:
        """
        Delete the files not written for some time. Return how many were deleted.

        Args:
            older_than: a timedelta or seconds, up to 10 years; longer than the longest wait of a job and the retention
                of its record together, or jobs lose their arguments and results.
        """
        age_s = check_duration(older_than, parameter="older_than") / 1000
        count = 0
        for file in self._path.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                if file.name.startswith(NEW):
                    # Of a process that has died; one that lives may still write it.
                    if _age_s(file) > max(age_s, REWRITTEN_AFTER_S):
                        file.unlink()
                elif file.name.startswith(OLD):
                    count += _end(file, age_s)
                elif _age_s(file) > age_s:
                    away = file.with_name(f"{OLD}{secrets.token_hex(8)}.{file.name}")
                    file.rename(away)
                    count += _end(away, age_s)
        return count

    def _file(self, name: str) -> Path:
        return self._path / name[:2] / name

    def _write(self, file: Path, data: bytes) -> None:
        is_shared = self._make(file.parent)
        draft = file.with_name(f"{NEW}{secrets.token_hex(8)}.{file.name}")
        try:
            with open(draft, "xb", opener=partial(os.open, mode=0o600)) as writing:
                if is_shared:
                    os.fchmod(writing.fileno(), 0o660)
                writing.write(data)
                writing.flush()
                os.fsync(writing.fileno())
            draft.replace(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _make(self, folder: Path) -> bool:
        """Make a folder with its parents. Return whether its files are for the group too."""
        missing: list[Path] = []
        above = folder
        while not above.is_dir():
            missing.append(above)
            above = above.parent
        made: list[Path] = []
        for each in missing[::-1]:
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)
                made.append(each)
            _sync(each.parent)
        mode = self._path.stat().st_mode
        is_shared = bool(mode & stat.S_IWGRP)
        if is_shared and folder in made:
            folder.chmod(0o770 | mode & stat.S_ISGID)
        return is_shared


def _age_s(file: Path) -> float:
    return time.time() - file.stat().st_mtime


def _is_kept(file: Path, data: bytes) -> bool:
    """Renew the age of a recent file. Return whether the file holds these bytes."""
    try:
        if _age_s(file) > REWRITTEN_AFTER_S:
            return False
        os.utime(file)
        # Opened by its name after that: what is taken away from here on is young, and will be brought back.
        with file.open("rb") as reading:
            return os.fstat(reading.fileno()).st_size == len(data) and _holds(reading, data)
    except (FileNotFoundError, PermissionError):
        return False


def _holds(reading: IO[bytes], data: bytes) -> bool:
    # A slice is copied in less time than a view of it takes to be compared.
    return all(reading.read(READ_BYTES) == data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES))


def _end(away: Path, age_s: float) -> bool:
    """Delete a file that was set aside, or restore a young file. Return whether the file is deleted."""
    # Opened, for a file server says then what others have changed, and not what was known before.
    with away.open("rb") as reading:
        is_young = time.time() - os.fstat(reading.fileno()).st_mtime <= age_s
    if not is_young:
        away.unlink()
        return True
    file = away.with_name(away.name.rpartition(".")[2])
    try:
        os.link(away, file)
    except FileExistsError:
        pass
    except OSError:
        # A file system without links: who has written it again meanwhile has written the same.
        away.replace(file)
        return False
    away.unlink()
    return False


def _sync(folder: Path) -> None:
    """Make the names in a folder survive a crash of the machine, if the file system can."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(number)
