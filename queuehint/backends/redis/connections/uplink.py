"""The send buffer of a connection: bytes that the server's machine has not taken yet."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ioctl: Callable[..., Any] | None = None
_OUTQ = 0
try:
    import fcntl
    import termios

    _ioctl, _OUTQ = fcntl.ioctl, termios.TIOCOUTQ
except (ImportError, AttributeError):
    pass  # a system without the question

BULK: Final = 16 << 10
"""What is larger may take a while to send; less is with the server's machine in its first round trip, or never."""
LOOK_EVERY_S: Final = 1.0
"""How often to look whether bytes move."""


def buffered(transport: Any) -> int:
    """Return the bytes buffered by a transport of a loop, for TLS with the transport below."""
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    size: int = transport.get_write_buffer_size()
    return size if below is None else size + int(below.get_write_buffer_size())


def unsent(connection: Any) -> int:
    """
    Return the bytes sent without an acknowledgment of the other machine, 0 on a system without that number.

    Args:
        connection: a socket, or what has its `fileno`.
    """
    if _ioctl is None or connection is None:
        return 0
    count = array.array("i", [0])
    try:
        _ioctl(connection.fileno(), _OUTQ, count)
    except (OSError, ValueError):
        return 0
    return count[0]
