"""
Records as JSON, an object for each record with every field, or as CSV with selected fields.

Times are ISO 8601 in UTC and end in ``_at``, durations are ms and end in ``_ms``. Payloads that only their codec can
read are base64, and named so: ``arguments_base64``, ``result_base64``.

CSV is that of RFC 4180 in UTF-8, with a header. A spreadsheet takes a text that begins with ``=``, ``+``, ``-`` or
``@`` for a formula: such a cell gets a ``'`` before it, and so does one that begins with ``'``, so that taking one away
gives the text again.
"""

from __future__ import annotations

import base64
import csv
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

import attrs

from queuehint.errors import InvalidJobTypeError, PayloadError, shown
from queuehint.handlers.conversion.plain_json import check_json, decode_json
from queuehint.schema.checks import RUN_AT_MAX_MS, check_choice
from queuehint.values.hint import queue_key
from queuehint.values.record import moment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.values.hint import Claim
    from queuehint.values.outcome import JobError
    from queuehint.values.record import Attempt, JobRecord
    from queuehint.values.spec import JobSpec

_FIRST_MS = -62_135_596_800_000
"""The first moment of the calendar; a job may be due at any time before."""
ExportFormat = Literal["json", "csv"]
EXPORT_FORMATS: Final[tuple[ExportFormat, ...]] = get_args(ExportFormat)
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_FORMULA = tuple("=+-@\t\r\n'\uff1d\uff0b\uff0d\uff20")
"""What a cell begins with that a spreadsheet may take for a formula, in full width too, and the sign that guards it."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TIMES = ("enqueued", "due", "queued", "started", "ended", "updated")


class Export:
    """
    Writes records as lines; a context manager.

    Args:
        file: a path, what is there is replaced; or a text file, which stays open; or None for standard output.
        format: ``"json"`` for lines of JSON, ``"csv"`` for a table with a header.

    Raises:
        InvalidJobError, InvalidJobTypeError: it is none of these.
    """

    def __init__(self, file: object, format: object = "json") -> None:
        self._is_csv = check_choice(format, EXPORT_FORMATS, parameter="format") == "csv"
        self.count = 0
        """How many records were written."""
        self._is_ours = isinstance(file, (str, Path))
        self._file: Any = sys.stdout if file is None else file
        if not self._is_ours and not callable(getattr(self._file, "write", None)):
            raise InvalidJobTypeError(f"file must be a path or a text file, got {type(file).__name__}: {shown(file)}")

    def __enter__(self) -> Self:
        if self._is_ours:
            self._file = Path(self._file).open("w", encoding="utf-8" if self._is_csv else "ascii", newline="")
        if self._is_csv:
            csv.writer(self._file).writerow(COLUMNS)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._file.close()

    def write(self, records: Iterable[JobRecord]) -> None:
        """Write records."""
        for record in records:
            if self._is_csv:
                csv.writer(self._file).writerow(as_row(record))
            else:
                self._file.write(as_line(record))
            self.count += 1


def as_line(record: JobRecord) -> str:
    r"""Return a record as one line of ASCII, with its ``\n``. See `as_json`."""
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


COLUMNS: Final = (
    *("id", "number", "state", "task", "name", "flow", "parent", "user", "service", "pool", "priority", "key"),
    *("tags", "places", "attempts", "losses", *[f"{name}_at" for name in _TIMES]),
    *("cause", "error", "message", "arguments", "arguments_base64", "result", "result_base64"),
)
"""
The columns of a table: fields of `JobRecord` and `JobSpec`. *places* has the queue keys, *tags* the tags, one a line;
*error* and *message* are of the last error; arguments and result are JSON.
"""


def as_row(record: JobRecord) -> list[str]:
    """Return the cells of a record, in the order of `COLUMNS`."""
    fields = as_json(record)
    fields = fields["spec"] | fields
    last = record.errors[-1] if record.errors else None
    fields |= {
        "tags": "\n".join(record.spec.tags),
        "places": "\n".join([queue_key(claim.path) for claim in record.spec.claims]),
        "error": last and last.type,
        "message": last and last.message,
    }
    for name in ("arguments", "result"):
        if fields.get(name) is not None:
            fields[name] = json.dumps(fields[name], ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return [_cell(fields.get(column)) for column in COLUMNS]


def _cell(value: str | int | None) -> str:
    r"""
    Return the text of a cell, safe from spreadsheet formulas and terminal commands.

    >>> _cell("=1+1"), _cell("'a"), _cell("-5.5"), _cell("a\x1b[2J"), _cell(None)
    ("'=1+1", "''a", '-5.5', 'a\\x1b[2J', '')
    """
    text = "" if value is None else str(value)
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}" if found[0] != "\r" else found[0], text)
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


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
