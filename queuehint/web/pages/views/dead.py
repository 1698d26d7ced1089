"""The dead-letter queue in groups: task, error, and message with its digits masked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.web.pages.views import words
from queuehint.web.pages.views.acts import asked, danger
from queuehint.web.pages.views.jobs import row

if TYPE_CHECKING:
    from queuehint.values.record import JobRecord
    from queuehint.web.pages.views.links import Links

View = dict[str, Any]

READ_MAX = 200
"""So many dead jobs are read for a page, the newest first."""
SHOWN = 5
"""So many jobs of a group are shown."""
BARS = 24
"""In so many spans of time the deaths of a group are counted."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+")
MESSAGE_MAX = 200


def masked(message: str) -> str:
    """
    Return a message with its numbers and digests masked, so that jobs of one cause have equal messages.

    >>> masked("row 17 of doc 4 is gone: 3fa94b1c-22aa-4cc1"), masked("timeout")
    ('row # of doc # is gone: #', 'timeout')
    """
    return _NUMBERS.sub("#", message)[:MESSAGE_MAX]


@attrs.frozen
class Cause:
    """The common cause of the dead jobs of a group."""

    task: str
    error: str
    message: str

    @property
    def name(self) -> str:
        """A short name for an address, the same in every process."""
        text = f"{self.task}\0{self.error}\0{self.message}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def cause_of(record: JobRecord) -> Cause:
    """Return the cause of a dead job."""
    if record.errors:
        last = record.errors[-1]
        return Cause(record.spec.task, last.type, masked(last.message))
    return Cause(record.spec.task, record.cause or "failed", "")


def groups_of(records: Sequence[JobRecord]) -> dict[Cause, list[JobRecord]]:
    """Return dead jobs by their causes, the largest group first."""
    groups: dict[Cause, list[JobRecord]] = {}
    for record in records:
        groups.setdefault(cause_of(record), []).append(record)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def dead_view(
    records: Sequence[JobRecord],
    total: int,
    now_ms: int,
    links: Links,
    *,
    chosen: str | None = None,
    is_cut: bool = False,
    complete: bool = True,
) -> View:
    """
    Return the page of dead jobs.

    Args:
        records: those that were read; *is_cut* says that there are more.
        total: how many there are; there are more, if that is not *complete*.
        chosen: the name of the group whose jobs are all shown.
    """
    times = [record.ended_ms for record in records if record.ended_ms is not None]
    first_ms = min(times, default=now_ms)
    found = [
        _group(cause, some, first_ms, now_ms, links, is_open=cause.name == chosen)
        for cause, some in groups_of(records).items()
    ]
    return {
        "groups": found,
        "total": f"{'' if complete else 'at least '}{words.number(total)}",
        "read": words.number(len(records)),
        "is_cut": is_cut,
        "chosen": chosen,
        "is_gone": chosen is not None and not any(group["is_open"] for group in found),
        "all": links.at("dead"),
    }


def _group(
    cause: Cause, records: Sequence[JobRecord], first_ms: int, now_ms: int, links: Links, *, is_open: bool
) -> View:
    times = sorted([record.ended_ms for record in records if record.ended_ms is not None])
    shown = records if is_open else records[:SHOWN]
    held = [record for record in records if record.spec.policy.on_dead == "hold" and record.spec.claims]
    return {
        "name": cause.name,
        "url": links.at("dead", group=cause.name),
        "task": cause.task,
        "error": cause.error,
        "message": cause.message,
        "count": len(records),
        "count_text": words.number(len(records)),
        "first": words.when(times[0], now_ms) if times else None,
        "last": words.when(times[-1], now_ms) if times else None,
        "bars": spark(times, first_ms, now_ms),
        "rows": [row(record, now_ms, links) for record in shown],
        "more": len(records) - len(shown),
        "held": words.counted(len(held), "place is held", "places are held") if held else None,
        "is_open": is_open,
        "ids": [record.id for record in records],
        "acts": [
            asked("redrive", "Redrive group", group=cause.name),
            danger("discard", "Discard group", group=cause.name),
        ],
    }


def spark(times_ms: Sequence[int], first_ms: int, now_ms: int) -> list[View]:
    """
    Return how many of some moments fall into each of `BARS` spans, as bars of a height of 0 to 16.

    >>> [bar["height"] for bar in spark([0, 990, 1000], 0, 1000)][-1]
    16
    """
    span_ms = max(1, now_ms - first_ms + 1)
    counts = [0] * BARS
    for time_ms in times_ms:
        counts[max(0, min(BARS - 1, (time_ms - first_ms) * BARS // span_ms))] += 1
    most = max(counts) or 1
    heights = [max(2, round(16 * count / most)) if count else 0 for count in counts]
    return [
        {"x": 4 * at, "y": 16 - height, "height": height, "count": count}
        for at, (height, count) in enumerate(zip(heights, counts, strict=True))
        if count
    ]
