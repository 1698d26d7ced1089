"""
Partial results of a running job: fields, merged over those of earlier attempts.

A handler updates fields from any thread; the worker reads the stored result once, and sends the merged one after a
change. Several quick updates are sent as one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from queuehint.errors import InvalidJobTypeError, PayloadError
from queuehint.handlers.conversion.plain_json import check_json, decode_json, encode_json
from queuehint.values.outcome import RESULT_BYTES_MAX

if TYPE_CHECKING:
    from queuehint.handlers.codec import Codec
    from queuehint.values.record import JobRecord

_RESULT = "result"
_ANY: dict[str, Any] = {_RESULT: Any}


class PartialResult:
    """
    The partial result of one attempt.

    Args:
        job_id, token: whose.
    """

    def __init__(self, job_id: str, token: int) -> None:
        self.job_id = job_id
        self.token = token
        self.is_loaded = False
        """The stored result has been read."""
        self._base: dict[str, Any] = {}
        self._fields: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Return whether this attempt has updated anything."""
        return bool(self._fields)

    def update(self, fields: Any) -> None:
        """
        Merge a copy of fields over the present ones.

        Raises:
            InvalidJobTypeError, PayloadError: they are no dict of JSON values, or all together take more than 1 MiB;
                then nothing is merged.
        """
        if not isinstance(fields, dict):
            raise InvalidJobTypeError(f"fields must be a dict, got {type(fields).__name__}")
        check_json(fields, "$", RESULT_BYTES_MAX)
        payloads = {str.__str__(key): encode_json(value, bytes_max=RESULT_BYTES_MAX) for key, value in fields.items()}
        # Beside the value: the key in quotes, a colon, a comma.
        sizes = {key: len(payload) + len(encode_json(key)) + 2 for key, payload in payloads.items()}
        with self._lock:
            size = sum((self._sizes | sizes).values())
            if size > RESULT_BYTES_MAX:
                problem = f"the fields take {size} bytes as JSON, limit {RESULT_BYTES_MAX}"
                raise PayloadError(problem, limit=RESULT_BYTES_MAX)
            self._sizes |= sizes
            self._fields |= {key: decode_json(payload) for key, payload in payloads.items()}

    def load(self, record: JobRecord | None, codec: Codec) -> None:
        """Load the stored result. Replace it if it is unreadable or no dict."""
        self.is_loaded = True
        if record is None or record.result is None or record.token != self.token:
            return
        try:
            stored = codec.loads(record.result, _ANY).get(_RESULT)
        except BaseException:  # noqa: BLE001 - a codec of the application's may raise anything
            return
        if isinstance(stored, dict):
            self._base = stored

    def dump(self, codec: Codec, returned: bytes | None = None) -> bytes:
        """
        Return all fields as a result.

        Args:
            returned: the dict that the handler has returned, as a result; its fields go over all others.

        Raises:
            PayloadError: it takes more than 1 MiB.
        """
        last = {} if returned is None else codec.loads(returned, _ANY)[_RESULT]
        with self._lock:
            fields = self._base | self._fields | last
        return codec.dumps({_RESULT: fields}, _ANY, bytes_max=RESULT_BYTES_MAX)
