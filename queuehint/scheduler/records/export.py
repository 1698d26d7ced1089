"""
Records as JSON: one object a record, every field, readable without queuehint.

Times are ISO 8601 in UTC and end in ``_at``, durations are ms and end in ``_ms``. Payloads that only their codec can
read are base64, and named so: ``arguments_base64``, ``result_base64``.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs

from queuehint.errors import InvalidJobTypeError, PayloadError, shown
from queuehint.handlers.conversion.plain_json import check_json, decode_json
from queuehint.schema.checks import RUN_AT_MAX_MS
from queuehint.values.record import moment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.values.hint import Claim
    from queuehint.values.outcome import JobError
    from queuehint.values.record import Attempt, JobRecord
    from queuehint.values.spec import JobSpec

_FIRST_MS = -62_135_596_800_000
"""The first moment of the calendar; a job may be due at any time before."""
_TIMES = ("enqueued", "due", "queued", "started", "ended", "updated")


class Export:
    """
    Writes records as lines; a context manager.

    Args:
        file: a path, what is there is replaced; or a text file, which stays open; or None for standard output.

    Raises:
        InvalidJobTypeError: it is none of these.
    """

    def __init__(self, file: object) -> None:
        self.count = 0
        """How many records were written."""
        self._is_ours = isinstance(file, (str, Path))
        self._file: Any = sys.stdout if file is None else file
        if not self._is_ours and not callable(getattr(self._file, "write", None)):
            raise InvalidJobTypeError(f"file must be a path or a text file, got {type(file).__name__}: {shown(file)}")

    def __enter__(self) -> Self:
        if self._is_ours:
            self._file = Path(self._file).open("w", encoding="ascii", newline="\n")
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._file.close()

    def write(self, records: Iterable[JobRecord]) -> None:
        """Write records."""
        for record in records:
            self._file.write(as_line(record))
            self.count += 1


def as_line(record: JobRecord) -> str:
    r"""Return a record as one line of ASCII, with its ``\n``; see `as_json`."""
    return json.dumps(as_json(record), allow_nan=False, separators=(",", ":")) + "\n"


def as_json(record: JobRecord) -> dict[str, Any]:
    """
    Return a record as JSON values: the fields of `JobRecord`, those of `JobSpec` in ``"spec"``.

    A result stored by the codec for JSON is the value that the handler returned, None if there is none.
    """
    return {
        "id": record.id,
        "number": record.number,
        "seq": record.seq,
        "version": record.version,
        "state": str(record.state),
        "spec": _spec(record.spec),
        "attempts": record.attempts,
        "losses": record.losses,
        "token": record.token,
        "worker": record.worker,
        **{f"{name}_at": _time(getattr(record, f"{name}_ms")) for name in _TIMES},
        **_payload("result", record.result),
        "errors": [_error(error) for error in record.errors],
        "cause": record.cause,
        "cancel_requested": record.cancel_requested,
        "progress": None if record.progress is None else attrs.asdict(record.progress),
        "logs": list(record.logs),
        "logs_truncated": record.logs_truncated,
        "level": record.level,
        "open_dependencies": record.open_dependencies,
        "problem": record.problem,
        "history": [_attempt(attempt) for attempt in record.history],
        "steps": [{"name": step.name, "at": _time(step.at_ms)} for step in record.steps],
    }


def _spec(spec: JobSpec) -> dict[str, Any]:
    fields: dict[str, Any] = attrs.asdict(spec, recurse=False)
    fields["claims"] = [_claim(claim) for claim in spec.claims]
    fields["run_at"] = _time(fields.pop("run_at_ms"))
    fields["scheduled_at"] = _time(fields.pop("scheduled_ms"))
    fields["depends_on"] = [attrs.asdict(edge) for edge in spec.depends_on]
    fields["templates"] = list(spec.templates) if isinstance(spec.templates, tuple) else spec.templates
    fields["policy"] = attrs.asdict(spec.policy, recurse=False)
    backoff = spec.policy.backoff
    said = {name: getattr(backoff, name) for name in ("base", "factor", "cap", "jitter")}
    fields["policy"]["backoff"] = said | {"waits": list(backoff.waits)}
    fields["tags"] = list(spec.tags)
    fields["headers"] = dict(spec.headers)
    fields["identity"] = list(spec.identity)
    del fields["arguments"]
    fields |= _payload("arguments", spec.arguments)
    return fields


def _claim(claim: Claim) -> dict[str, Any]:
    return {"path": list(claim.path), "mode": claim.mode}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    fields = attrs.asdict(attempt, recurse=False)
    times = {f"{name}_at": _time(fields.pop(f"{name}_ms")) for name in ("started", "ended")}
    return times | fields | {"error": None if attempt.error is None else _error(attempt.error)}


def _error(error: JobError) -> dict[str, Any]:
    fields = attrs.asdict(error)
    return fields | {"at": _time(fields.pop("at_ms"))}


def _payload(name: str, payload: bytes | None) -> dict[str, Any]:
    if payload is None:
        return {name: None}
    try:
        value = decode_json(payload)
        check_json(value)
    except PayloadError:
        return {f"{name}_base64": base64.b64encode(payload).decode()}
    if name == "result" and isinstance(value, dict) and value.keys() == {"result"}:
        value = value["result"]
    return {name: value}


def _time(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    at = moment(min(max(time_ms, _FIRST_MS), RUN_AT_MAX_MS))
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
