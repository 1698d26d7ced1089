"""Records as JSON lines: every field, in words that other programs read."""

from __future__ import annotations

import base64
import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from queuehint import (
    Claim,
    Dependency,
    InvalidJobError,
    InvalidJobTypeError,
    JobError,
    JobRecord,
    JobSpec,
    JobState,
    Policy,
    Progress,
)
from queuehint.scheduler.records.export import COLUMNS, Export, as_json, as_line, as_row
from queuehint.schema.checks import RUN_AT_MIN_MS

NOON_MS = 1_767_268_800_000
NOON = "2026-01-01T12:00:00.000Z"
SPEC = JobSpec(
    id="a",
    task="work",
    claims=(Claim(("doc1", "é")), Claim(("doc2",), "shared")),
    arguments=b'{"n":18446744073709551616,"t":"\xe2\x80\xa8"}',
    depends_on=(Dependency("b", name="B"),),
    templates=("/n",),
    policy=Policy(timeout_ms=5),
)
RECORD = JobRecord(
    id="a",
    number=3,
    seq=4,
    version=5,
    state=JobState.FINISHED,
    spec=SPEC,
    attempts=1,
    losses=0,
    token=9,
    worker="w",
    enqueued_ms=NOON_MS,
    due_ms=None,
    queued_ms=NOON_MS,
    started_ms=NOON_MS,
    ended_ms=NOON_MS + 1,
    result=b'{"result":[1,null]}',
    errors=(JobError(type="ValueError", message="no", attempt=1, at_ms=NOON_MS),),
    cause=None,
    cancel_requested=False,
    progress=Progress(1, 2.5, "half"),
    logs=("one", "\x1b[31mtwo"),
    logs_truncated=True,
    level=4,
)


def exported(**fields: Any) -> dict[str, Any]:
    """Return a record with some other fields, as the reader of a line gets it."""
    spec = attrs.evolve(SPEC, **{name: fields.pop(name) for name in list(fields) if name in _SPEC})
    read: dict[str, Any] = json.loads(as_line(attrs.evolve(RECORD, spec=spec, **fields)))
    return read


_SPEC = {"arguments", "run_at_ms", "schedule", "scheduled_ms", "templates"}


def test_a_line_is_one_object_in_ascii() -> None:
    line = as_line(RECORD)
    assert line.isascii()
    assert line.endswith("}\n")
    assert len(line.splitlines()) == 1
    assert json.loads(line) == as_json(RECORD)


def test_every_field_is_there_under_its_name() -> None:
    names = {name.removesuffix("_ms") + "_at" * name.endswith("_ms") for name in attrs.fields_dict(JobRecord)}
    assert exported().keys() == names | {"updated_at"}
    times = {"run_at_ms": "run_at", "scheduled_ms": "scheduled_at"}
    spec = {times.get(name, name) for name in attrs.fields_dict(JobSpec)}
    assert exported()["spec"].keys() == spec
    assert exported()["spec"]["policy"].keys() == attrs.fields_dict(Policy).keys()


def test_times_are_iso_8601_in_utc() -> None:
    record = exported()
    assert record["enqueued_at"] == NOON
    assert datetime.fromisoformat(record["ended_at"]) == datetime(2026, 1, 1, 12, 0, 0, 1000, UTC)
    assert record["due_at"] is None
    assert record["updated_at"] == record["ended_at"]
    assert record["errors"] == [
        {"type": "ValueError", "message": "no", "traceback": None, "attempt": 1, "at": NOON},
    ]
    assert exported(run_at_ms=NOON_MS)["spec"]["run_at"] == NOON
    assert exported(schedule="hourly", scheduled_ms=NOON_MS)["spec"]["scheduled_at"] == NOON


def test_a_time_before_the_calendar_is_its_first() -> None:
    assert exported(run_at_ms=RUN_AT_MIN_MS)["spec"]["run_at"] == "0001-01-01T00:00:00.000Z"


def test_places_edges_progress_and_lines_are_json() -> None:
    record = exported()
    assert record["spec"]["claims"] == [
        {"path": ["doc1", "é"], "mode": "exclusive"},
        {"path": ["doc2"], "mode": "shared"},
    ]
    assert record["spec"]["depends_on"] == [{"id": "b", "when": "success", "name": "B", "data": False}]
    assert (record["spec"]["templates"], exported(templates=True)["spec"]["templates"]) == (["/n"], True)
    assert record["progress"] == {"done": 1, "total": 2.5, "note": "half"}
    assert exported(progress=None)["progress"] is None
    assert record["logs"] == ["one", "\x1b[31mtwo"]


def test_arguments_and_result_are_the_values_themselves() -> None:
    record = exported()
    assert record["spec"]["arguments"] == {"n": 2**64, "t": "\u2028"}
    assert record["result"] == [1, None]
    assert exported(result=None)["result"] is None
    assert exported(result=b'{"result":{"result":1}}')["result"] == {"result": 1}
    assert exported(result=b'{"rows":5}')["result"] == {"rows": 5}


@pytest.mark.parametrize("payload", [b"\x80\x00", b"", b"{", b"NaN", b'{"a":"\\ud800"}', b"[" * 65 + b"]" * 65])
def test_non_json_payload_is_exported_as_base64(payload: bytes) -> None:
    record = exported(arguments=payload, result=payload)
    assert base64.b64decode(record["spec"]["arguments_base64"]) == payload
    assert base64.b64decode(record["result_base64"]) == payload
    assert "arguments" not in record["spec"]
    assert "result" not in record


def test_lines_go_to_a_path_a_file_or_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, text = as_line(RECORD), io.StringIO()
    path = tmp_path / "records.jsonl"
    path.write_text("old")
    for file in (path, str(path), text, None):
        with Export(file) as out:
            out.write([RECORD])
            out.write([])
            out.write([RECORD])
            assert out.count == 2
    assert path.read_text() == text.getvalue() == capsys.readouterr().out == 2 * line
    assert not text.closed


@pytest.mark.parametrize("file", [5, b"name", [], object()])
def test_export_to_an_unwritable_object_is_refused(file: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match="file must be a path or a text file"):
        Export(file)


# --- tables ----------------------------------------------------------------------------------------------------------


def row_of(**fields: Any) -> dict[str, str]:
    """Return a record as the reader of a table gets it."""
    spec = attrs.evolve(SPEC, **{name: fields.pop(name) for name in list(fields) if name not in _OF_RECORDS})
    text = io.StringIO()
    with Export(text, "csv") as out:
        out.write([attrs.evolve(RECORD, spec=spec, **fields)])
    (row,) = csv.DictReader(io.StringIO(text.getvalue(), newline=""), strict=True)
    return row


_OF_RECORDS = attrs.fields_dict(JobRecord).keys()


def test_table_has_a_header_and_a_row_per_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text = tmp_path / "records.csv", io.StringIO(newline="")
    for file in (path, text, None):
        with Export(file, "csv") as out:
            out.write([RECORD, RECORD])
            assert out.count == 2
    written = path.read_bytes()
    assert written == text.getvalue().encode() == capsys.readouterr().out.encode()
    lines = written.split(b"\r\n")
    assert lines[0] == ",".join(COLUMNS).encode()
    assert (len(lines), lines[-1], lines[1] == lines[2]) == (4, b"", True)


def test_an_empty_table_is_its_header() -> None:
    text = io.StringIO()
    with Export(text, "csv"):
        pass
    assert text.getvalue() == ",".join(COLUMNS) + "\r\n"


def test_csv_cells_equal_the_json_line() -> None:
    row, line = row_of(), as_json(RECORD)
    same = {"id", "number", "state", "attempts", "losses", "enqueued_at", "ended_at", "updated_at"}
    assert {name: row[name] for name in same} == {name: str(line[name]) for name in same}
    assert (row["task"], row["pool"], row["user"], row["cause"], row["due_at"]) == ("work", "default", "", "", "")
    assert row["places"] == "doc1:é\ndoc2"
    assert (row["error"], row["message"]) == ("ValueError", "no")
    assert json.loads(row["arguments"]) == line["spec"]["arguments"]
    assert (row["result"], row["result_base64"]) == ("[1,null]", "")
    assert row_of(result=b"\x80", errors=()).items() >= {"result": "", "result_base64": "gA==", "error": ""}.items()
    assert row_of(tags=("b", "a"), user="ann")["tags"] == "b\na"


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+1", "@sum(a1)", "\t=1", "\r=1", "\n=1", "'=1", "\uff1d1", "=cmd|' /C calc'!A0"]
)
def test_no_cell_is_a_formula_and_each_is_read_back(text: str) -> None:
    error = JobError(type="E", message=text, attempt=1, at_ms=0)
    row = row_of(errors=(error,), user=text, cause=text, result=json.dumps({"result": 0}).encode())
    assert row["message"] == row["cause"] == row["user"] == f"'{text}"
    assert row["message"].removeprefix("'") == text


@pytest.mark.parametrize("text", ['a"b', "a,b", "a\nb", "a\r\nb", " a ", "", "é", "a=1", '"'])
def test_each_text_is_read_back(text: str) -> None:
    assert row_of(cause=text)["cause"] == text


def test_numbers_stay_numbers_and_control_characters_are_named() -> None:
    assert row_of(result=b'{"result":-5.5e-3}')["result"] == "-0.0055"
    assert row_of(result=b'{"result":"-5"}')["result"] == '"-5"'
    assert row_of(cause="a\x1b[2J\x00\x9b")["cause"] == "a\\x1b[2J\\x00\\x9b"
    assert len(as_row(RECORD)) == len(COLUMNS)


@pytest.mark.parametrize("format", ["xml", "CSV", "", None, 5])
def test_another_format_is_refused(format: Any) -> None:
    with pytest.raises((InvalidJobError, InvalidJobTypeError), match="format"):
        Export(None, format)
