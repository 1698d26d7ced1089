"""The tables of limits have the numbers of the code."""

from __future__ import annotations

import re
from pathlib import Path

from queuehint import operations as op
from queuehint.schema import checks
from queuehint.values import hint, limit, outcome, policy, record, report, schedule, signal, spec
from queuehint.web import app, events, orders
from queuehint.web.pages import choosing

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/limits.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE))


def number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def size(value: int) -> str:
    """Return a number of bytes as pages have it."""
    unit = next(unit for unit in (30, 20, 10, 0) if value >= 1 << unit and value % (1 << unit) == 0)
    return number(value) if unit == 0 else f"{value >> unit} {'KMG'[unit // 10 - 1]}iB"


LIMITS = {
    "segment": [f"1–{hint.SEGMENT_BYTES_MAX} bytes"],
    "segments": [f"at most {hint.DEPTH_MAX}"],
    "path": [f"at most {number(hint.PATH_BYTES_MAX)} bytes"],
    "claims of one job": [f"at most {hint.CLAIMS_MAX}"],
    "id of a job or a flow; name in a flow, of a schedule": [f"1–{checks.ID_BYTES_MAX} bytes"],
    "name of a task, pool, user, service; key; reason of a cancellation; key and namespace of `xcom`": [
        f"1–{checks.NAME_BYTES_MAX} bytes"
    ],
    "name of a signal": [f"1–{signal.SIGNAL_NAME_BYTES_MAX} bytes"],
    "tag of a job": [f"1–{checks.TAG_BYTES_MAX} bytes", f"at most {checks.TAGS_MAX} of a job"],
    "headers of a job": [f"at most {number(checks.HEADERS_BYTES_MAX)} bytes"],
    "`max_attempts`, `max_losses`": [f"1–{number(checks.ATTEMPTS_MAX)}"],
    "`lease`": [f"to {checks.LEASE_MAX_MS // 3_600_000} h"],
    "pools of a worker": [f"1–{op.POOLS_MAX}"],
    "`users` and `steal` of a worker": [f"1–{op.USERS_NAMED_MAX}", f"at most {number(op.SERVED_MAX)}"],
    "weight of a user": [f"1–{op.WEIGHT_MAX}", f"at most {number(op.WEIGHTS_MAX)} users"],
    "arguments of a call, and again once their templates are filled": [size(spec.PAYLOAD_BYTES_MAX)],
    "result": [size(outcome.RESULT_BYTES_MAX)],
    "arguments of a schedule": [size(schedule.SCHEDULE_BYTES_MAX)],
    "data of a signal": [size(signal.SIGNAL_BYTES_MAX)],
    "jobs one job waits for": [number(spec.DEPENDENCIES_MAX), f"more than {number(spec.PORTION_MAX)}"],
    "jobs that take effect at once: a flow, or specs of which one depends on another": [number(op.FLOW_JOBS_MAX)],
    "jobs that [run again](../how-to/flows.md#run-a-part-again)": [f"{op.AGAIN_MAX} at once"],
    "children of one job": [number(outcome.CHILDREN_OF_JOB_MAX), f"more than {number(outcome.CHILDREN_MAX)}"],
    "templates and references of one job, placeholders in its templates": [number(spec.TEMPLATES_MAX)],
    "one submission": [
        f"{size(op.BYTES_PER_SUBMISSION_MAX)} of arguments",
        f"{number(op.EDGES_PER_SUBMISSION_MAX)} edges",
        f"Of a flow {number(op.JOBS_PER_SUBMISSION_MAX)} jobs and {number(op.GATES_PER_SUBMISSION_MAX)} gates",
    ],
    "`enqueue_many`, `submit`": [f"{number(op.JOBS_PER_CALL_MAX)} jobs with {size(spec.CALL_BYTES_MAX)}"],
    "`cancel`, `run_now`, `dead.redrive`, `dead.discard`": [f"{number(op.IDS_MAX)} ids, {op.JOBS_AT_ONCE} of them"],
    "`dead.list`, `records.list`": [f"1–{op.LIST_MAX} records"],
    "`xcom.list`": [f"{number(op.SHARED_LIST_MAX)} keys"],
    "schedules of a namespace": [number(schedule.SCHEDULES_MAX)],
    "`limit`": [
        f"*burst* 1–{number(limit.MOST_MAX)}",
        f"*max_pending* 1–{number(limit.PENDING_MAX)}",
        f"{number(limit.LIMITS_MAX)} limits",
    ],
    "`cost`": [f"1–{number(policy.COST_MAX)}"],
    "attempts, and errors of failed ones": [f"the last {record.ERRORS_MAX} each"],
    "pauses": [f"{number(report.PAUSES_MAX)}, {report.FILTERED_PAUSES_MAX} of them by filter"],
    "[steps](../how-to/survive.md)": [
        number(outcome.STEPS_MAX),
        f"{size(outcome.STEP_BYTES_MAX)} each",
        f"{size(outcome.STEPS_BYTES_MAX)} of names and results",
    ],
    "log lines": [f"the last {number(record.LOG_LINES_MAX)}, of {number(record.LOG_LINE_BYTES_MAX)} bytes"],
    "a body": [size(app.BODY_BYTES_MAX)],
    "a form of a page": [size(choosing.FORM_BYTES_MAX), f"{number(choosing.FIELDS_MAX)} fields"],
    "`POST /jobs`": [f"{orders.JOBS_MAX} jobs"],
    "orders on jobs by ids": [f"{op.JOBS_AT_ONCE} ids"],
    "work that follows from an order": [f"{orders.TICKS_MAX} steps"],
    "streams of events": [f"{events.STREAMS_MAX} of a process"],
}
"""By the first cell of a row of the page, what its second cell has to contain."""


def test_rows_of_page_have_limits_of_code() -> None:
    assert {name for name in LIMITS if name not in ROWS} == set()
    wrong = {name: [text for text in texts if text not in ROWS[name]] for name, texts in LIMITS.items()}
    assert {name: texts for name, texts in wrong.items() if texts} == {}
