"""Messages between processes that share a file: replies and errors as bytes and back; bytes that are not a request."""

from __future__ import annotations

import json
from random import Random
from typing import Any, get_args, get_type_hints

import attrs
import pytest

from queuehint import operations as op
from queuehint.backends.journal import doctor
from queuehint.backends.journal.guests import messages
from queuehint.backends.journal.guests.messages import (
    EXAMINE,
    HAND_OVER,
    LENGTH_BYTES,
    head_of,
    read_answer,
    read_request,
    refused,
    replied,
    request,
    runs_jobs,
)
from queuehint.core.engine import Engine
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendInUseError,
    CycleError,
    DuplicateJobError,
    InvalidJobError,
    JobNotFoundError,
    OutcomeUnknownError,
    PathClosedError,
    QueueFullError,
    QueueHintError,
    StaleRecordError,
)
from queuehint.operations.wire import OPERATIONS, Await, Begin, encode
from queuehint.testing.driver import job
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.styles import ALL_AT_ONCE
from queuehint.values.record_filter import DEAD_RECORDS
from tests.each import for_each

QUESTIONS: Any = (
    op.List(newest_first=True), op.CountRecords(), op.Tree(depth=4), op.CountJobs(), op.CountEdges(),
    op.List(DEAD_RECORDS), op.ListLimits(), op.ListSchedules(), op.ListUsers("s"), op.ListWeights(), op.ListWorkers(),
    op.CountPending(), op.CanDequeue(("a",)), op.Follow(0), op.Peek(), op.ListPauses(), op.ListLines(depth=4),
    op.Tree(limit=1),
)  # fmt: skip


def test_every_reply_comes_back_as_it_was() -> None:
    engine, seen = Engine(), set()
    generator = OperationGenerator(engine, Random(7), ALL_AT_ONCE)

    def check(operation: Any) -> None:
        kind = type(operation).reply_class
        try:
            reply = engine.apply(operation, generator.pass_time(engine.now_ms))
        except QueueHintError as refusal:
            error = refusal
        else:
            again = read_answer(replied(reply), kind)
            # Equal values may be of other classes, such as a text and a member of an enumeration.
            assert (again, repr(again)) == (reply, repr(reply))
            seen.add(type(operation))
            return
        with pytest.raises(type(error)) as caught:
            read_answer(refused(error), kind)
        assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))

    for _ in range(300):
        check(generator.move())
    for question in (*QUESTIONS, *map(op.Why, engine.table.jobs)):
        check(question)
    assert len(seen) > 35


def test_every_operation_has_a_reply_that_can_be_read() -> None:
    seen: set[Any] = set()

    def look(kind: Any) -> None:
        if kind in seen or kind is Ellipsis or isinstance(kind, str):
            return
        seen.add(kind)
        messages._reader(kind)
        for inner in (*get_args(kind), *(get_type_hints(kind).values() if attrs.has(kind) else ())):
            look(inner)

    operations: list[Any] = [*OPERATIONS, doctor.Examine]
    for operation in operations:
        if operation is not op.Exchange:  # no other process may ask for it
            look(operation.reply_class)
    assert len(seen) > 40
    with pytest.raises(TypeError, match="replies hold no"):
        messages._reader(object)


def test_bytes_of_a_reply_come_back() -> None:
    for value in (None, b"", b"{}", b"\xff\x00"):
        assert read_answer(replied(op.Pulled(value)), op.Pulled) == op.Pulled(value)


@pytest.mark.parametrize(
    "error",
    [
        JobNotFoundError("a"),
        DuplicateJobError("a", fields=["content", "task"]),
        CycleError(["a", "b"]),
        QueueFullError(None, 3, 2),
        PathClosedError("doc:1"),
        StaleRecordError("a", 3),
        OutcomeUnknownError("cut off", job_ids=["a"]),
        BackendInUseError("jobs.db", None),
        InvalidJobError("line\nbreak \x1b"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_with_their_facts(error: QueueHintError) -> None:
    with pytest.raises(type(error)) as caught:
        read_answer(refused(error), None)
    assert (str(caught.value), caught.value.args, vars(caught.value)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize(
    "answer",
    [b"", b"r", b"x{}", b'e["SystemExit", [], {}]', b'e["x"]', b"e1", b'r{"a":1}', b"r[[1]]", b"r" + b"[" * 99_999],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_the_store(answer: bytes) -> None:
    with pytest.raises(BackendError, match="sent a reply that cannot be read"):
        read_answer(answer, op.Pulled)


@pytest.mark.parametrize("asked", [op.Cancel(("a",)), op.Peek(), EXAMINE, HAND_OVER], ids=str)
def test_requests_come_back_as_they_were(asked: Any) -> None:
    message = request("docs", asked)
    assert int.from_bytes(message[:LENGTH_BYTES], "big") == len(message) - LENGTH_BYTES
    assert read_request(message[LENGTH_BYTES:], "docs") == asked


@for_each(
    "body, problem",
    [
        (b"", "is not a request"),
        (b"GET / HTTP/1.1\r\n\r\n", "is not a request"),
        (b"\xff\x00" * 500, "is not a request"),
        (b"queuehint 9.9 default\n{}", "cannot be asked by release 9.9"),
        (head_of("docs") + b"{}", "holds the jobs of namespace 'default', not 'docs'"),
        (head_of("default"), "is not an operation"),
        (head_of("default") + b"[]", "is not an operation"),
        (head_of("default") + b"[" * 99_999, "is not an operation"),
        (head_of("default") + b'{"":"Cancel"}', "is not an operation"),
        (head_of("default") + b'{"":"Cancel","ids":["a"],"more":1}', "is not an operation"),
        (head_of("default") + b'{"":["Cancel"]}', "is not an operation"),
        (head_of("default") + b'{"":"Engine"}', "is not an operation"),
        (head_of("default") + encode(Begin(epoch_s=9, budget=1, retention=None, services=(), release="x")), "Begin"),
        (head_of("default") + b'{"":"Extend","leases":[],"lease_ms":1}', "Extend is not accepted"),
    ],
)
def test_bytes_that_are_not_a_request_are_refused(body: bytes, problem: str) -> None:
    with pytest.raises(BackendDeniedError, match=problem):
        read_request(body, "default")


def test_what_runs_jobs_is_known() -> None:
    assert not any(
        map(
            runs_jobs, (op.Peek(), op.Cancel(("a",)), op.Get(("a",)), Await(("a",)), op.Post((op.Note("a", None, ()),)))
        )
    )
    assert not runs_jobs(op.Enqueue((job("a", ["p"]),)))
    assert runs_jobs(op.Enqueue((job("a", ["p"]), attrs.evolve(job("b", ["p"]), presence_ms=1000))))
    assert runs_jobs(op.Exchange("w"))
    assert runs_jobs(op.Post((op.Note("a", 1, ()),)))


def test_an_answer_says_nothing_about_which_class_to_make() -> None:
    assert json.loads(replied(op.Pulled(b"x"))[1:]) == ["eA=="]
