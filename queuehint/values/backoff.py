"""
Attempt -> delay: a pure function, the random number is an argument.

Source: capped exponential back-off with jitter inside the cap ("Exponential Backoff And Jitter", M. Brooker, 2015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuehint.values.policy import Backoff


def delay_ms(backoff: Backoff, attempt: int, random: float) -> int:
    """
    Return how long to wait after failed attempt number *attempt*, in ms.

    Args:
        attempt: counted from 1.
        random: in [0, 1); takes away up to the back-off's share of jitter, so the cap is never exceeded.

    >>> from queuehint.values.policy import Backoff
    >>> [delay_ms(Backoff(jitter=0), attempt, 0.5) for attempt in (1, 2, 3, 6, 1024)]
    [1000, 2000, 4000, 30000, 30000]
    """
    base, factor, cap = backoff.base_ms, backoff.factor, backoff.cap_ms
    # A growth beyond the cap is never computed: factor ** 1023 would overflow.
    wait = float(base)
    for _ in range(attempt - 1):
        if wait >= cap or factor <= 1:
            break
        wait *= factor
    return int(min(wait, cap) * (1 - backoff.jitter * random))
