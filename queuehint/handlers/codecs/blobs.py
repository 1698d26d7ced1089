"""
Large arguments and results outside the store of jobs: the job keeps a reference of 44 bytes.

::

    payload = the inner codec's payload, if it is small | "qhB1" | length, 8 bytes | SHA-256 of it, 32 bytes

A blob is named by the SHA-256 of its bytes: equal ones are kept once, and a changed one is detected.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any, Protocol

from queuehint.errors import PayloadError
from queuehint.handlers.codec import JsonCodec, dump_identified
from queuehint.schema.checks import check_int, check_object
from queuehint.values.spec import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queuehint.handlers.codec import Codec

MAGIC = b"qhB1"
OVER = 64 << 10
BLOB_BYTES_MAX = 1 << 30
_REFERENCE = struct.Struct(f">{len(MAGIC)}sQ32s")


class BlobStore(Protocol):
    """
    The storage of blobs, called by producers and on the worker's loop, from several threads at a time.

    An `OSError`, such as of a file system that does not answer, fails the enqueue, or the attempt, which is tried
    again; any other error of *put*, and a `LookupError` of *get*, fails the job at once.

    .. versionadded:: 1.0.0
    """

    def put(self, name: str, data: bytes) -> None:
        """Keep bytes under a name of 64 hexadecimal digits. A blob that exists is kept as long as a new one."""

    def get(self, name: str) -> bytes:
        """
        Return the bytes kept under a name.

        Raises:
            LookupError: there are none.
        """


class BlobCodec:
    """
    Keeps large arguments and results in a store of blobs, and a reference in the job.

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

    def check_annotations(self, annotations: Mapping[str, Any]) -> None:
        """
        Check that values of annotations can be written and read, if the inner codec supports the check.

        Raises:
            PayloadError: one of them cannot be; *path* names it.
        """
        check = getattr(self._inner, "check_annotations", None)
        if check is not None:
            check(annotations)

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
