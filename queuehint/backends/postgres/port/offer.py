"""What a leader writes into its row of the port at which it answers."""

from __future__ import annotations

import re
from typing import Final

import attrs

_PORT: Final = re.compile(r"[0-9]{1,5}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")


@attrs.frozen(kw_only=True)
class Offer:
    """
    A port, and by what its leader and its guests know one another.

    Args:
        host, port: where guests connect.
        fingerprint: SHA-256 of the leader's certificate, in hexadecimal digits.
        secret: what guests say, in hexadecimal digits.
    """

    host: str
    port: int
    fingerprint: str
    secret: str = attrs.field(repr=False)

    @property
    def where(self) -> str:
        """The host and the port as one text."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_offer(where: str | None, fingerprint: str | None, secret: str | None) -> Offer | None:
    """
    Return what the columns of a row say; None if they say nothing that can be used.

    >>> read_offer("[::1]:7777", "0" * 64, "1" * 64).host
    '::1'
    >>> read_offer("here", "0" * 64, "1" * 64), read_offer(None, None, None)
    (None, None)
    """
    host, _, port = (where or "").rpartition(":")
    digits = (fingerprint or "", secret or "")
    if not host or not _PORT.fullmatch(port) or not all(map(_FINGERPRINT.fullmatch, digits)):
        return None
    return Offer(host=host.removeprefix("[").removesuffix("]"), port=int(port), fingerprint=digits[0], secret=digits[1])
