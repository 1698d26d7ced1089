"""
Large arguments and results outside the store of jobs: the job keeps a reference of 44 bytes.

::

    payload = the inner codec's payload, if it is small | "qhB1" | length, 8 bytes | SHA-256 of it, 32 bytes

A blob is named by the SHA-256 of its bytes: equal ones are kept once, and a changed one is detected.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from queuehint.errors import InvalidJobTypeError, PayloadError, shown
from queuehint.handlers.codec import JsonCodec, dump_identified
from queuehint.values.checks import check_duration, check_int, check_object
from queuehint.values.spec import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from queuehint.handlers.codec import Codec

MAGIC = b"qhB1"
OVER = 64 << 10
BLOB_BYTES_MAX = 1 << 30
_REFERENCE = struct.Struct(f">{len(MAGIC)}sQ32s")


class BlobStore(Protocol):
    """
    Where blobs are kept; called where a job is enqueued and on the loop of the worker, from several threads at a time.

    An `OSError`, such as of a file system that does not answer, fails the enqueue, or the attempt, which is tried
    again; any other error of *put*, and a `LookupError` of *get*, fails the job at once.

    .. versionadded:: 1.0.0
    """

    def put(self, name: str, data: bytes) -> None:
        """Keep bytes under a name of 64 hexadecimal digits; if they are there already, for as long again."""

    def get(self, name: str) -> bytes:
        """
        Return the bytes kept under a name.

        Raises:
            LookupError: there are none.
        """


class DirectoryStore:
    """
    Blobs as files of a directory that producers and workers share, such as a network file system.

    A file appears whole or not at all, survives a crash of the machine once `put` has returned, and is there until
    `prune` deletes it.

    Args:
        path: the directory; made by the first `put`, with its parents.

    .. versionadded:: 1.0.0
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidJobTypeError(f"path must be a path, got {type(path).__name__}: {shown(path)}")
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"DirectoryStore({os.fspath(self._path)!r})"

    def put(self, name: str, data: bytes) -> None:
        """Write a file unless it is there; then it is made young again."""
        file = self._file(name)
        # Younger first: a file that is not there afterwards has been pruned, and is written again.
        with contextlib.suppress(FileNotFoundError):
            os.utime(file)
            if file.stat().st_size == len(data):
                return
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{name}.{secrets.token_hex(8)}")
        try:
            with draft.open("xb") as writing:
                writing.write(data)
                writing.flush()
                os.fsync(writing.fileno())
            draft.replace(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def get(self, name: str) -> bytes:
        """
        Read a file.

        Raises:
            LookupError: it is not there.
            OSError: it cannot be read.
        """
        try:
            return self._file(name).read_bytes()
        except FileNotFoundError:
            raise LookupError(name) from None

    def prune(self, older_than: float | timedelta) -> int:
        """
        Delete the files that were not written for some time, and return how many.

        Args:
            older_than: a timedelta or seconds, up to 10 years; longer than the longest wait of a job and the retention
                of its record together, or jobs lose their arguments and results.
        """
        age_s = check_duration(older_than, parameter="older_than") / 1000
        count = 0
        for file in self._path.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - file.stat().st_mtime > age_s:
                    file.unlink()
                    count += 1
        return count

    def _file(self, name: str) -> Path:
        return self._path / name[:2] / name


class BlobCodec:
    """
    Keeps arguments and results that are large in a store of blobs, and a reference to them in the job.

    Blobs are not deleted with their jobs: a job that is enqueued again, or a record that is exported, may name them
    too. Delete them by age.

    Args:
        store: where blobs are kept, such as `DirectoryStore`.
        over: payloads of more bytes than this become blobs, 1 KiB to 1 MiB.
        blob_bytes_max: the longest payload, 1 KiB to 1 GiB; it is in memory while it is written and read.
        inner: turns values into bytes; by default `JsonCodec`, an `EncryptedCodec` for encrypted blobs.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.

    .. versionadded:: 1.0.0
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        over: int = OVER,
        blob_bytes_max: int = 64 << 20,
        inner: Codec | None = None,
    ) -> None:
        self._store: BlobStore = check_object(store, "put", "get", parameter="store", what="a store of blobs")
        self._over = check_int(over, parameter="over", least=1 << 10, most=PAYLOAD_BYTES_MAX)
        self._bytes_max = check_int(blob_bytes_max, parameter="blob_bytes_max", least=1 << 10, most=BLOB_BYTES_MAX)
        what = "a codec"
        self._inner: Codec = (
            JsonCodec() if inner is None else check_object(inner, "dumps", "loads", parameter="inner", what=what)
        )

    def dumps(self, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int) -> bytes:
        """Turn values by name into bytes, or into a reference to the blob that holds them."""
        return self.dumps_identified(values, annotations, bytes_max=bytes_max)[0]

    def dumps_identified(
        self, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int
    ) -> tuple[bytes, Sequence[bytes]]:
        """Turn values by name into bytes or a reference, and into the digests of the inner codec."""
        payload, digests = dump_identified(self._inner, values, annotations, bytes_max=self._bytes_max)
        # A payload that begins like a reference would be read as one.
        if len(payload) <= min(self._over, bytes_max) and not payload.startswith(MAGIC):
            return payload, digests
        name = hashlib.sha256(payload)
        self._store.put(name.hexdigest(), payload)
        return _REFERENCE.pack(MAGIC, len(payload), name.digest()), digests

    def loads(self, payload: bytes, annotations: Mapping[str, Any]) -> dict[str, Any]:
        """
        Turn bytes, or those of the blob they refer to, back into values by name.

        Raises:
            PayloadError: the blob is not there, or was changed.
            OSError: the store of blobs cannot be asked.
        """
        return self._inner.loads(self._fetched(payload) if payload.startswith(MAGIC) else payload, annotations)

    def _fetched(self, reference: bytes) -> bytes:
        if len(reference) != _REFERENCE.size:
            raise PayloadError("is not a whole reference to a blob")
        _, size, digest = _REFERENCE.unpack(reference)
        name = digest.hex()
        try:
            blob = self._store.get(name)
        except LookupError:
            raise PayloadError(f"its blob {name} is not in the store of blobs any more") from None
        if len(blob) != size or hashlib.sha256(blob).digest() != digest:
            raise PayloadError(f"its blob {name} was changed")
        return blob
