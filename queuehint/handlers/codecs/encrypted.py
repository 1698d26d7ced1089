"""
Encrypted arguments and results: AES-256-GCM, with the id of the key in front, so that keys can be rotated.

::

    payload = "qhE1" | length of the id, one byte | id of the key | nonce, 12 bytes | ciphertext | tag, 16 bytes

The bytes before the nonce are authenticated too. The nonce is random: NIST SP 800-38D, section 8.3, allows 2**32
payloads per key then. A payload is not bound to its job, which a codec does not know: an attacker with write access to
the store can swap the payloads of two jobs, but neither read nor forge one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from typing import TYPE_CHECKING, Any

from queuehint.errors import InvalidJobError, InvalidJobTypeError, MissingExtraError, PayloadError, shown
from queuehint.handlers.codec import JsonCodec, dump_identified
from queuehint.handlers.codecs.blobs import BlobCodec
from queuehint.schema.checks import IDENTITY_MAX, check_object

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    AESGCM = None  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queuehint.handlers.codec import Codec

MAGIC = b"qhE1"
_IDENTITY = b"queuehint: which arguments are equal"
"""What the keys of digests are made for: no key is used for two things."""
KEY_BYTES = 32
KEYS_MAX = 100
NONCE_BYTES, TAG_BYTES = 12, 16
_KEY_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class EncryptedCodec:
    """
    Encrypts arguments and results, partial results too. The other fields of a job stay readable.

    Paths, users, tags, keys, log lines, progress, error messages and XCom values are not encrypted: the store works
    with them, or people read them.

    To rotate keys: add the new one everywhere, then make it the one that *encrypts*, and take the old one away when no
    record that was written with it is left (``queuehint doctor --app`` names those).

    Args:
        keys: 1–100 keys of 32 bytes by their ids, 1–64 of A-Z a-z 0-9 _ . -; all of them decrypt.
        encrypts: the id of the key that encrypts; may be left out if there is but one.
        inner: turns values into bytes before they are encrypted; by default `JsonCodec`.
        reads_plain: payloads that are not encrypted are read as well, while jobs from before are left. Then a party
            that may write to the store can make payloads.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter and the limit, never a key.
        MissingExtraError: the extra ``crypto`` is not installed.

    .. versionadded:: 1.0.0
    """

    def __init__(
        self,
        keys: Mapping[str, bytes],
        *,
        encrypts: str | None = None,
        inner: Codec | None = None,
        reads_plain: bool = False,
    ) -> None:
        if AESGCM is None:
            raise MissingExtraError("crypto", "encrypted arguments and results")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in _checked(keys).items()}
        if encrypts is None:
            if len(self._ciphers) > 1:
                raise InvalidJobError(f"encrypts is required with several keys: the id of one of {_ids(self._ciphers)}")
            encrypts = next(iter(self._ciphers))
        if encrypts not in self._ciphers:
            raise InvalidJobError(
                f"encrypts must be the id of a key, one of {_ids(self._ciphers)}, got {shown(encrypts)}"
            )
        what = "a codec"
        self._inner: Codec = (
            JsonCodec() if inner is None else check_object(inner, "dumps", "loads", parameter="inner", what=what)
        )
        if isinstance(self._inner, BlobCodec):
            way_out = "write BlobCodec(store, inner=EncryptedCodec(keys))"
            raise InvalidJobError(f"inner must not be a BlobCodec, whose blobs would be plain text: {way_out}")
        self._cipher = self._ciphers[encrypts]
        named = [encrypts, *[key_id for key_id in keys if key_id != encrypts][-(IDENTITY_MAX - 1) :]]
        self._identity_keys = [hmac.digest(keys[key_id], _IDENTITY, "sha256") for key_id in named]
        self._header = MAGIC + bytes([len(encrypts)]) + encrypts.encode()
        self._reads_plain = reads_plain

    def __repr__(self) -> str:
        return f"EncryptedCodec(keys={_ids(self._ciphers)})"

    def dumps(self, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int) -> bytes:
        """Turn values by name into encrypted bytes. Encryption adds up to 97 bytes."""
        return self._encrypted(self._inner.dumps(values, annotations, bytes_max=self._room(bytes_max)))

    def dumps_identified(
        self, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int
    ) -> tuple[bytes, Sequence[bytes]]:
        """
        Turn values by name into encrypted bytes, and into digests of the plain bytes under up to 4 keys.

        These are the key that encrypts and the last three of the others: while keys are rotated, codecs that have one
        of these in common recognise the same values.
        """
        plain, inner = dump_identified(self._inner, values, annotations, bytes_max=self._room(bytes_max))
        # One that the inner codec may write differently is known by its digests.
        texts = inner or [hashlib.sha256(plain).digest()]
        digests = [hmac.digest(key, text, "sha256") for key in self._identity_keys for text in texts]
        return self._encrypted(plain), digests[:IDENTITY_MAX]

    def _room(self, bytes_max: int) -> int:
        """Return how long plain bytes may be."""
        return bytes_max - len(self._header) - NONCE_BYTES - TAG_BYTES

    def _encrypted(self, plain: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return self._header + nonce + self._cipher.encrypt(nonce, plain, self._header)

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
        Turn encrypted bytes back into values by name.

        Raises:
            PayloadError: there is no key of that id, or the payload was changed, or it is not encrypted.
        """
        return self._inner.loads(self._decrypted(payload), annotations)

    def _decrypted(self, payload: bytes) -> bytes:
        if not payload.startswith(MAGIC):
            if self._reads_plain:
                return payload
            raise PayloadError("is not encrypted; reads_plain=True reads what was written before")
        start = len(MAGIC) + 1
        end = start + (payload[len(MAGIC)] if len(payload) > len(MAGIC) else 0)
        key_id = payload[start:end].decode("ascii", "replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise PayloadError(f"is encrypted with key {shown(key_id)}, and the keys are {_ids(self._ciphers)}")
        body = end + NONCE_BYTES
        if len(payload) < body + TAG_BYTES:
            raise PayloadError("is cut off, and cannot be decrypted")
        try:
            return cipher.decrypt(payload[end:body], payload[body:], payload[:end])
        except InvalidTag:
            raise PayloadError(
                f"was changed, or its key {shown(key_id)} is another one: it cannot be decrypted"
            ) from None


def _checked(keys: object) -> dict[str, bytes]:
    if not isinstance(keys, dict):
        raise InvalidJobTypeError(f"keys must be a dict of keys by their ids, got {type(keys).__name__}")
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidJobError(f"keys must hold 1 to {KEYS_MAX} keys, got {len(keys)}")
    for key_id, key in keys.items():
        if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
            raise InvalidJobError(f"keys: an id must be 1 to 64 of A-Z a-z 0-9 _ . -, got {shown(key_id)}")
        # Its type and length, and never its text.
        if not isinstance(key, bytes):
            raise InvalidJobTypeError(f"keys[{key_id!r}] must be bytes, got {type(key).__name__}")
        if len(key) != KEY_BYTES:
            raise InvalidJobError(f"keys[{key_id!r}] must be {KEY_BYTES} bytes, got {len(key)}")
    return keys


def _ids(ciphers: Mapping[str, AESGCM]) -> str:
    return ", ".join(map(repr, ciphers))
