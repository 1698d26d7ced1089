"""Data of applications is in no `repr`, which gives arguments, results and values by their size alone."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import attrs
import pytest

import queuehint
from queuehint import Children, JsonCodec, Scheduler, template
from queuehint import operations as op
from queuehint.backends.redis.transport import Send
from queuehint.handlers.references import Extracted, Reference, extract
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.record import JobRecord, JobState
from queuehint.values.spec import Dependency, JobSpec
from queuehint.worker.dependency_results import DependencyResults
from tests.each import for_each

SECRET = "C4NARY"
IDS = [f"{number}-é" for number in range(500)]
DATA = SECRET.encode()
SPEC = JobSpec(id="a", task="t", arguments=DATA)
OUTCOME = Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED, result=DATA)
RECORD = JobRecord(
    id="a", number=1, seq=1, version=1, state=JobState.FINISHED, spec=SPEC, attempts=1, losses=0, token=1, worker="w",
    enqueued_ms=0, due_ms=None, queued_ms=0, started_ms=0, ended_ms=0, result=DATA, errors=(), cause=None,
    cancel_requested=False, progress=None, logs=(SECRET,), logs_truncated=False, level=3,
)  # fmt: skip

VALUES: list[tuple[Any, str]] = [
    (SPEC, "arguments=<6 bytes>"),
    (OUTCOME, "result=<6 bytes>"),
    (attrs.evolve(OUTCOME, result=None), "result=None"),
    (RECORD, "result=<6 bytes>"),
    (RECORD, "logs=<1 lines>"),
    (Grant(SPEC, 1, 1, 0, 0), "arguments=<6 bytes>"),
    (op.Enqueue((SPEC,)), "arguments=<6 bytes>"),
    (op.Exchange(worker="w", pools=(), settle=(OUTCOME,), limit=0, lease_ms=1), "result=<6 bytes>"),
    (op.Post((op.Note("a", 1, (SECRET,)),)), "lines=<1 lines>"),
    (op.Push("default", "key", DATA, 1), "value=<6 bytes>"),
    (op.Pulled(DATA), "value=<6 bytes>"),
    (op.Post((op.Note("a", 1, result=DATA),)), "result=<6 bytes>"),
    (op.Fetched(op.Verdict.DONE, ((JobState.FINISHED, DATA),)), "results=<1 results, 6 bytes>"),
    (Children("b", result={"a": SECRET}), "result=<dict>"),
    (JobSpec(id="a", task="t", arguments=SECRET), "arguments=<str>"),  # type: ignore[arg-type]
    (Extracted({"a": SECRET}), "arguments=<dict>"),
    (Send(("EVALSHA", DATA)), "Send(<2 words>)"),
]  # fmt: skip


@for_each("value, words", VALUES, ids=lambda value: type(value).__name__)
def test_repr_shows_the_size_of_data_only(value: Any, words: str) -> None:
    assert words in repr(value)
    assert SECRET not in repr(value)
    assert repr(value) in str([value]), "in a container, too"


async def nothing(value: str) -> None: ...


@pytest.mark.parametrize(
    "value",
    [
        template("a\n\x1b[31m\u202e" + "b" * 60_000),
        Reference("A", object(), ("field",) * 1000),
        DependencyResults([Dependency(job_id) for job_id in IDS], dict.fromkeys(IDS), JsonCodec()),
        Scheduler().job(name="é" * 64)(nothing),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_repr_is_one_printable_line_of_bounded_length(value: Any) -> None:
    assert repr(value).isprintable()
    assert len(repr(value)) < 120


def test_long_reference_is_sent_whole_despite_its_short_repr() -> None:
    extracted = extract({"value": Reference("A", object(), ("field",) * 100)})
    assert extracted.arguments == {"value": "{{A" + ".field" * 100 + "}}"}


def test_every_field_that_holds_bytes_is_shown_by_its_size() -> None:
    found = set()
    for module in pkgutil.walk_packages(queuehint.__path__, "queuehint."):
        if ".testing" in module.name or module.name.endswith("__main__"):
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and attrs.has(kind) and kind.__module__ == module.name:
                for field in attrs.fields(kind):
                    if "bytes" in str(field.type):
                        found.add((kind.__name__, field.name))
                        assert field.repr is not True, f"{kind.__qualname__}.{field.name}"
    assert len(found) >= 8
