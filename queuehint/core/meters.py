"""
Meters of rates: the spent tokens of a rate, and the time of the next room.

Without a burst a meter is a log of starts: at most *tokens* are spent in any window of the rate's time. A start counts
for that time and a 64th of it more, 1 to 100 ms: a ms because clocks count whole ones, the rest because the code of two
jobs does not begin equally long after their starts. A log has at most `LOG_MAX` + 3 entries, whatever the rate: of more
tokens than `LOG_MAX`, starts of one part of the time, a 64th, are one entry with the time of its last start. So what a
rate reaches for long is lower than it says by at most a 64th, of more tokens than `LOG_MAX` by at most a 32nd.

With a burst it is a bucket of so many tokens, refilled evenly: parts of a token, ms of its time each, of which so many
come back in a ms as the rate has tokens. These are whole numbers, exact on every backend.  Source: GCRA, ITU-T I.371,
as a leaky bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from queuehint.values.limit import Limit

LOG_MAX: Final = 64
LATE_MAX_MS: Final = 100


def counted_ms(per_ms: int) -> int:
    """Return how long a start counts, for a rate of this time without a burst."""
    return per_ms + min(-(-per_ms // LOG_MAX), LATE_MAX_MS)


class Meter:
    """
    The spent tokens of a rate, at one place or of one limit.

    ``log`` holds what was spent when, oldest first, ``spent`` its sum and ``at_ms`` its last time; in a bucket, which
    has no log, ``spent`` are parts of tokens as of ``at_ms``. What is over stays in the log until the next start.
    """

    __slots__ = ("at_ms", "log", "spent")

    def __init__(self) -> None:
        self.spent = self.at_ms = 0
        self.log: list[tuple[int, int]] = []

    def room_ms(self, limit: Limit, cost: int, now_ms: int) -> int:
        """Return when *cost* tokens, no more than the rate has, may be spent: now, or later."""
        assert limit.rate is not None
        tokens, per_ms = limit.rate
        if limit.burst is not None:
            return now_ms + _ms_for(self._parts(tokens, now_ms) - (limit.burst - cost) * per_ms, tokens)
        left, spent, ms = tokens - cost, self.spent, now_ms
        for at_ms, count in self.log:
            if spent <= left:
                break
            spent -= count
            ms = max(now_ms, at_ms + counted_ms(per_ms))
        return ms

    def free_ms(self, limit: Limit, now_ms: int) -> int:
        """Return when no spent token counts any more: now, or later."""
        assert limit.rate is not None
        tokens, per_ms = limit.rate
        if limit.burst is not None:
            return now_ms + _ms_for(self._parts(tokens, now_ms), tokens)
        return max(now_ms, self.at_ms + counted_ms(per_ms)) if self.log else now_ms

    def spend(self, limit: Limit, cost: int, now_ms: int) -> None:
        """Spend tokens."""
        assert limit.rate is not None
        tokens, per_ms = limit.rate
        if limit.burst is not None:
            self.spent, self.at_ms = self._parts(tokens, now_ms) + cost * per_ms, now_ms
            return
        if self.log and self.log[0][0] + counted_ms(per_ms) <= now_ms:
            self.log = self._live(per_ms, now_ms)
            self.spent = sum([count for _, count in self.log])
        self._note(limit.rate, now_ms, cost)

    def go_on_from(self, limit: Limit, old: Meter, old_limit: Limit, now_ms: int) -> None:
        """
        Carry over the spent tokens of another rate.

        A log goes on with the times of those of its starts that both rates count still. A bucket knows none, so what
        was spent of it counts as spent now, and a part of a token as a whole one.
        """
        assert limit.rate is not None
        assert old_limit.rate is not None
        (tokens, per_ms), (old_tokens, old_per_ms) = limit.rate, old_limit.rate
        if old_limit.burst is None:
            entries = old._live(old_per_ms, now_ms)
        else:
            spent = min(-(-old._parts(old_tokens, now_ms) // old_per_ms), tokens)
            entries = [(now_ms, spent)] if spent else []
        self.log, self.spent, self.at_ms = [], 0, 0
        if limit.burst is None:
            for at_ms, count in entries:
                if at_ms + counted_ms(per_ms) > now_ms:
                    self._note(limit.rate, at_ms, count)
        else:
            self.spent, self.at_ms = min(sum([count for _, count in entries]), limit.burst) * per_ms, now_ms

    def _live(self, per_ms: int, now_ms: int) -> list[tuple[int, int]]:
        """Return the entries of a log that still count."""
        over_ms = now_ms - counted_ms(per_ms)
        return [(at_ms, count) for at_ms, count in self.log if at_ms > over_ms]

    def _note(self, rate: tuple[int, int], at_ms: int, count: int) -> None:
        part_ms = 1 if rate[0] <= LOG_MAX else -(-rate[1] // LOG_MAX)
        self.spent, log = self.spent + count, self.log
        if log and log[-1][0] // part_ms == at_ms // part_ms:
            log[-1] = at_ms, log[-1][1] + count
        else:
            log.append((at_ms, count))
        self.at_ms = at_ms

    def _parts(self, tokens: int, now_ms: int) -> int:
        """Return the parts of tokens spent of a bucket by now."""
        return max(0, self.spent - (now_ms - self.at_ms) * tokens)


def _ms_for(parts: int, tokens: int) -> int:
    """Return in how many ms so many parts of a token come back."""
    return -(-parts // tokens) if parts > 0 else 0
