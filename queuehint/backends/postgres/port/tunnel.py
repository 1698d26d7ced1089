"""TLS on one connection, without I/O: bytes of the socket on one side, those of frames on the other."""

from __future__ import annotations

import hashlib
import ssl
from typing import Final

RECORD_BYTES: Final = 16 << 10
"""The most that one record of TLS holds."""


def guest_context() -> ssl.SSLContext:
    """Return how a guest begins: it trusts no authority, for it knows the fingerprint of the one certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Tunnel:
    """
    One end of a connection; for one thread at a time.

    Args:
        context: of a leader, with its key, or of a guest.
    """

    def __init__(self, context: ssl.SSLContext, *, is_leader: bool) -> None:
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._came, self._goes, server_side=is_leader)

    def shake(self, data: bytes) -> bool:
        """
        Go on with the handshake; `to_send` has what is to be sent then; return whether it is done.

        Raises:
            ValueError: the other end speaks no TLS 1.3.
        """
        self._came.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise ValueError(error.reason or str(error)) from error
        return True

    def to_send(self) -> bytes:
        """Return what has not been sent yet."""
        return self._goes.read()

    def fingerprint(self) -> str:
        """Return that of the certificate of the other end."""
        return hashlib.sha256(self._object.getpeercert(binary_form=True) or b"").hexdigest()

    def opened(self, data: bytes) -> bytes:
        """
        Return what the other end has written; nothing after its end.

        Raises:
            ValueError: somebody else has written that.
        """
        self._came.write(data)
        pieces: list[bytes] = []
        try:
            while self._came.pending or self._object.pending():
                piece = self._object.read(RECORD_BYTES)
                if not piece:
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise ValueError(error.reason or str(error)) from error
        return b"".join(pieces)

    def sealed(self, data: bytes) -> bytes:
        """Return what is sent so that the other end reads these bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._object.write(rest) :]
        return self._goes.read()
