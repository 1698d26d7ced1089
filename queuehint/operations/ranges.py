"""
Kinds of fields by name: id, name, text, number or payload, with their lengths and ranges.

A field of a new operation is checked like those of the same name.
"""

from __future__ import annotations

from typing import Final

from queuehint.operations.base import RELEASE_LENGTH_MAX
from queuehint.schema.checks import HEADERS_BYTES_MAX, NAME_BYTES_MAX, TAG_BYTES_MAX, TEN_YEARS_MS
from queuehint.values.hint import DEPTH_MAX, KEY_LENGTH_MAX
from queuehint.values.outcome import ERROR_TEXT_MAX, RESULT_BYTES_MAX
from queuehint.values.spec import PAYLOAD_BYTES_MAX, RUN_AT_MAX_MS, RUN_AT_MIN_MS

NUMBER_MAX: Final = 2**53
TOKEN_MAX: Final = 2**127
"""Above every token that a store grants."""
FLOAT_MAX: Final = 2**63

IDS: Final = frozenset(
    [
        "children",
        "flow",
        "id",
        "ids",
        "job_id",
        "job_ids",
        "leases",
        "name",
        "parent",
        "schedule",
        "staged",
        "waits_for",
    ]
)
NAMES: Final = frozenset(
    [
        "host", "key", "namespace", "pool", "pools", "service", "steal", "task", "user", "users", "version_name",
        "worker",
    ]
)  # fmt: skip
TEXTS: Final = {
    "after": KEY_LENGTH_MAX,
    "cron": ERROR_TEXT_MAX,
    "first": KEY_LENGTH_MAX,
    "headers": HEADERS_BYTES_MAX,
    "identity": 64,
    "lines": ERROR_TEXT_MAX,
    "message": ERROR_TEXT_MAX,
    "note": ERROR_TEXT_MAX,
    "prefix": NAME_BYTES_MAX,
    "reason": ERROR_TEXT_MAX,
    "release": RELEASE_LENGTH_MAX,
    "tag": TAG_BYTES_MAX,
    "tags": TAG_BYTES_MAX,
    "templates": NUMBER_MAX,
    "timezone": ERROR_TEXT_MAX,
    "traceback": ERROR_TEXT_MAX,
    "type": ERROR_TEXT_MAX,
}
"""How many characters the other texts may have."""
_TIME: Final = (RUN_AT_MIN_MS, RUN_AT_MAX_MS)
_TOKEN: Final = (-TOKEN_MAX, TOKEN_MAX)
_ANY: Final = (-NUMBER_MAX, NUMBER_MAX)
_COUNT: Final = (0, NUMBER_MAX)
_DURATION: Final = (0, TEN_YEARS_MS)
NUMBERS: Final = {
    "DueSchedules.after": _TIME,
    "after": _COUNT,
    "at_ms": _TIME,
    "attempt": _COUNT,
    "base_ms": _DURATION,
    "blocked_ms": _DURATION,
    "cap_ms": _DURATION,
    "count": _ANY,
    "for_ms": (1, TEN_YEARS_MS),
    "cursor": _COUNT,
    "delay_ms": _DURATION,
    "depth": (0, DEPTH_MAX),
    "end_ms": _TIME,
    "flow_timeout_ms": (1, TEN_YEARS_MS),
    "jobs": _COUNT,
    "every_ms": (1, TEN_YEARS_MS),
    "key_for_ms": _DURATION,
    "last_ms": _TIME,
    "lease_ms": _DURATION,
    "leases": _TOKEN,
    "limit": _ANY,
    "longer_than": _COUNT,
    "max_attempts": _COUNT,
    "max_delay_ms": _DURATION,
    "max_hold_ms": _DURATION,
    "max_losses": _COUNT,
    "max_pending": _COUNT,
    "most": _COUNT,
    "portion": _COUNT,
    "portions": _COUNT,
    "next_ms": _TIME,
    "parent": _TOKEN,
    "pid": _COUNT,
    "presence_ms": _DURATION,
    "priority": _COUNT,
    "rate": _COUNT,
    "retention_ms": _DURATION,
    "run_at_ms": _TIME,
    "running": _COUNT,
    "scheduled_ms": _TIME,
    "since_ms": _TIME,
    "slots": _COUNT,
    "start_ms": _TIME,
    "start_within_ms": _DURATION,
    "timeout_ms": _DURATION,
    "token": _TOKEN,
    "ttl_ms": (0, TEN_YEARS_MS),
    "until_ms": _TIME,
    "version": _COUNT,
    "versions": _COUNT,
    "weight": _ANY,
}
"""The ranges of whole numbers; those of counts that are limited more are looked at by `check_limits`."""

PAYLOADS: Final = {"arguments": PAYLOAD_BYTES_MAX, "result": RESULT_BYTES_MAX, "value": RESULT_BYTES_MAX}
