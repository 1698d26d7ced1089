"""Names of the namespaces on a server, by a bounded scan of its keys: a command on an empty one names the others."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.redis import keys
from queuehint.backends.redis.connections.sync_link import SyncLink, run

if TYPE_CHECKING:
    from queuehint.backends.redis.backend import RedisBackend
    from queuehint.backends.redis.transport import Talk

KEYS_MAX: Final = 200_000
"""About so many keys are scanned, those of other programs included."""
SECONDS_MAX: Final = 1.0
PAGE: Final = 1_000
_META: Final = re.compile(re.escape(keys.redis_key("@", "meta")).replace("@", r"([A-Za-z0-9_.-]{1,64})"))


@attrs.frozen
class Namespaces:
    """
    The namespaces found.

    Args:
        names: sorted; each has had a job at some time.
        is_whole: False if the look ended before all keys had been looked at.
    """

    names: tuple[str, ...]
    is_whole: bool


def find_namespaces(backend: RedisBackend) -> Namespaces:
    """
    Return the namespaces in the database of a server, or on this namespace's node of a cluster.

    Raises:
        BackendUnavailableError, BackendDeniedError: the server cannot be asked, or the user may not SCAN.

    Complexity: up to `KEYS_MAX` keys by SCAN, a page at a time, for up to `SECONDS_MAX`.
    """
    link = SyncLink(backend.session.address)
    try:
        found: Namespaces = run(link, _find(backend))
    finally:
        link.close()
    return found


def _find(backend: RedisBackend) -> Talk:
    names: set[str] = set()
    cursor, ends_s = b"0", time.monotonic() + SECONDS_MAX
    is_whole = False
    for _ in range(KEYS_MAX // PAGE):
        # To SCAN only the star has a meaning here.
        scan = ("SCAN", cursor, "MATCH", keys.redis_key("*", "meta"), "COUNT", PAGE)
        cursor, page = yield from backend.session.plain(*scan)
        matches = (_META.fullmatch(name.decode("utf-8", "replace")) for name in page)
        names.update(match[1] for match in matches if match is not None)
        is_whole = int(cursor) == 0
        if is_whole or time.monotonic() > ends_s:
            break
    return Namespaces(tuple(sorted(names)), is_whole)
