"""Streams of numbered requests."""

import secrets


class RequestStream:
    """Requests of which one at a time is in flight."""

    __slots__ = ("is_unknown", "name", "request")

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.request = 0
        self.is_unknown = False
        """The newest request may have been carried out, and is not answered."""
