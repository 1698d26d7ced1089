"""
Ten minutes of the numbers of the page Now, for its sparklines, recorded while the page is open.

Nothing is asked for it: each time that somebody's page is made its numbers are noted, once a second at most. A board
remembers them for `KEYS_MAX` namespaces and scopes, and forgets the one that was noted least lately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from queuehint.web.board import Asker
    from queuehint.web.pages.views.now import Samples

SPAN_MS: Final = 600_000
APART_MS: Final = 1000
KEYS_MAX: Final = 64


def noted(asker: Asker, now_ms: int, numbers: Mapping[str, int]) -> Samples:
    """Record the current numbers by name, and return those of the last ten minutes, the oldest first."""
    seen = asker.board.seen
    key = (asker.namespace, asker.access.scope)
    samples = seen.pop(key, None)
    if samples is None:
        samples = deque(maxlen=SPAN_MS // APART_MS)
    while len(seen) >= KEYS_MAX:
        del seen[next(iter(seen))]
    seen[key] = samples
    while samples and not 0 <= now_ms - samples[0][0] <= SPAN_MS:
        samples.popleft()
    if not samples or now_ms - samples[-1][0] >= APART_MS:
        samples.append((now_ms, dict(numbers)))
    return list(samples)
