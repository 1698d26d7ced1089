"""Messages between a leader and its guests: replies, errors and requests as bytes and back; bytes that are none."""

from __future__ import annotations

import re
from random import Random
from typing import Any, get_args, get_type_hints

import attrs
import pytest

from queuehint import operations as op
from queuehint.backends.base import Interest, release
from queuehint.backends.journal import doctor
from queuehint.backends.journal.groups import Request, line_of, read_line
from queuehint.backends.journal.guests import greetings, messages
from queuehint.backends.journal.guests.greetings import Hello, hello, read_hello, wire
from queuehint.backends.journal.guests.messages import (
    ASK,
    CALL,
    LEAD,
    RUN,
    WAIT,
    Frames,
    asked,
    frame,
    read_aim,
    read_answer,
    read_operation,
    read_waited,
    refused,
    replied,
    waited,
)
from queuehint.backends.journal.snapshots.snapshot import SCHEMA
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
from queuehint.operations.wire import OPERATIONS, Await, Begin, PlaceAnew, encode
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.styles import ALL_AT_ONCE
from queuehint.values.record_filter import DEAD_RECORDS
from queuehint.values.spec import JobSpec
from tests.each import for_each

QUESTIONS: Any = (
    op.List(newest_first=True), op.CountRecords(), op.Tree(depth=4), op.CountJobs(), op.CountEdges(),
    op.List(DEAD_RECORDS), op.ListLimits(), op.ListSchedules(), op.ListUsers("s"), op.ListWeights(), op.ListWorkers(),
    op.CountPending(), op.CanDequeue(("a",)), op.Follow(0), op.Peek(), op.ListPauses(), op.ListLines(depth=4),
    op.Tree(limit=1), *[op.Why(None, 16, path) for path in ((), ("a",), ("b",), ("c",))],
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
def test_unreadable_answer_raises_a_store_error(answer: bytes) -> None:
    with pytest.raises(BackendError, match="sent a reply that cannot be read"):
        read_answer(answer, op.Pulled)


@pytest.mark.parametrize("operation", [op.Cancel(("a",)), PlaceAnew(), Await(("a",)), op.Exchange("w")], ids=str)
def test_changes_come_back_as_they_were(operation: Any) -> None:
    request, data = read_line(line_of(encode(operation), Request("f00-1", 7)))
    assert (request, read_operation(data, is_question=False)) == (Request("f00-1", 7), operation)


@pytest.mark.parametrize("question", [op.Peek(), doctor.Examine()], ids=str)
def test_questions_come_back_as_they_were(question: Any) -> None:
    assert read_operation(asked(question), is_question=True) == question


@for_each(
    "body, problem",
    [
        (b"", "is not an operation"),
        (b"[]", "is not an operation"),
        (b"[" * 99_999, "is not an operation"),
        (b"\xff\x00" * 500, "is not an operation"),
        (b'{"":"Cancel"}', "is not an operation"),
        (b'{"":"Cancel","ids":["a"],"more":1}', "is not an operation"),
        (b'{"":["Cancel"]}', "is not an operation"),
        (b'{"":"Engine"}', "is not an operation"),
        (b'{"":"Peek"}', "Peek is not accepted from another process in this way"),
        (encode(Begin(epoch_s=9, budget=1, retention=None, services=(), release="x")), "Begin is not accepted"),
        (b'{"":"Extend","leases":[],"lease_ms":1}', "Extend is not accepted"),
    ],
)
def test_bytes_that_are_not_a_change_are_refused(body: bytes, problem: str) -> None:
    with pytest.raises(BackendDeniedError, match=problem):
        read_operation(body, is_question=False)


@for_each(
    "line",
    [b"", b"{}", b"a", b"a 1", b"a x {}", b"a -1 {}", b"a b 1 {}", b"a" * 41 + b" 1 {}", b"a 1 {\n}", b" 1 {}",
     "\u0661 1 {}".encode(), "a \u0661 {}".encode(), b"- 1 {}"],
)  # fmt: skip
def test_a_line_that_names_no_request_is_refused(line: bytes) -> None:
    if line == b"a 1":
        assert read_line(line) == (Request("a", 1), b"")
        return
    with pytest.raises(BackendDeniedError, match="is not a request"):
        read_line(line)


@pytest.mark.parametrize("aim", [0, LEAD, RUN, LEAD | RUN])
def test_hello_of_a_guest_carries_release_wire_and_aim(aim: int) -> None:
    said = read_hello(hello("docs", aim), "docs")
    said.check()
    assert said == Hello(release=release(), wire=wire(), reads=frozenset({SCHEMA}), aim=aim)
    assert read_aim(b"%d" % aim) == aim


def test_guest_of_a_later_release_may_send_more_fields() -> None:
    said = read_hello(b"queuehint 9.9 docs 1 2-0f 12,13 more and more", "docs")
    assert said == Hello(release="9.9", wire="2-0f", reads=frozenset({12, 13}), aim=LEAD)


def test_unknown_guest_is_refused_by_both_releases_and_wires() -> None:
    said = read_hello(b"queuehint 9.9 docs 0 2-0f 12", "docs")
    with pytest.raises(BackendDeniedError) as caught:
        said.check()
    assert f"is of release {release()} (wire {wire()}) and cannot be asked by release 9.9 (wire 2-0f)" in str(
        caught.value
    )


def test_wire_fingerprint_changes_with_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every process it is the same."""
    before = wire()
    assert re.fullmatch("2-[0-9a-f]{8}", before)
    names = {kind.__name__ for kind, _ in greetings._facts()}
    assert names > {"Interest", "JobSpec", "Grant", "JobRecord", "Verdict", "JobState", "Reason", "Examination"}
    wire.cache_clear()
    facts = list(greetings._facts())
    monkeypatch.setattr(greetings, "_facts", lambda: [*facts[1:], (facts[0][0], facts[0][1] + "x")])
    assert wire() != before
    wire.cache_clear()
    monkeypatch.undo()
    assert wire() == before


@pytest.mark.parametrize("body", [b"", b"4", b"10", b"1 ", b"\xff"])
def test_a_process_that_is_for_something_else_is_refused(body: bytes) -> None:
    with pytest.raises(BackendDeniedError, match="is not a request"):
        read_aim(body)


@for_each(
    "body, problem",
    [
        (b"", "is not a request"),
        (b"GET / HTTP/1.1\r\n\r\n", "is not a request"),
        (b"\xff\x00" * 500, "is not a request"),
        (b"queuehint 9.9 default 0", "is not a request"),
        (b"queuehint 9.9 default 4 1-0 12", "is not a request"),
        (b"queuehint 9.9 default 0 1-0 12,x", "is not a request"),
        (b"queuehint %b default 0 1-0 12" % (b"9" * 65), "is not a request"),
        (b"queuehint 9.9 default 0 %b 12" % (b"9" * 65), "is not a request"),
        (hello("docs", LEAD), "are those of namespace 'default', not 'docs'"),
        (hello("default", LEAD) + b"x", "is not a request"),
    ],
)
def test_a_guest_of_another_kind_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(BackendDeniedError, match=problem):
        read_hello(body, "default")


WAITS = [
    Interest(),
    Interest(pools=("a", "b"), users=("u", None), worker="w", release="r1"),
    Interest(jobs=("a",), version=7, kept=("b",)),
    Interest(pending=op.CountPending(("doc",), include_scheduled=True)),
]


@pytest.mark.parametrize("interest", WAITS, ids=range(4))
def test_waits_come_back_as_they_were(interest: Interest) -> None:
    again, timeout_s = read_waited(waited(interest, 1.5))
    assert (listed(again), timeout_s) == (listed(interest), 1.5)


def listed(interest: Interest) -> list[Any]:
    return [list(value) if isinstance(value, (tuple, list)) else value for value in attrs.astuple(interest)]


@for_each(
    "body",
    [b"", b"[]", b"[{}]", b"[{},-1]", b"[{},1e9]", b"[{},NaN]", b'[{},"1"]', b'[{"pools":5},1]', b'[{"pools":"ab"},1]',
     b'[{"pools":[5]},1]', b'[{"users":[5]},1]', b'[{"worker":5},1]', b'[{"version":"5"},1]', b'[{"more":1},1]',
     b'[{"pending":"x"},1]', b'[{"pending":"{}"},1]', b'[{"pending":"{\\"\\":\\"Peek\\"}"},1]', b"[" * 99_999],
)  # fmt: skip
def test_bytes_that_are_not_a_wait_are_refused(body: bytes) -> None:
    with pytest.raises(BackendDeniedError, match="is not a wait"):
        read_waited(body)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_frames_are_cut_out_of_a_stream_at_any_split(size: int) -> None:
    sent = [(CALL, 1, b"abc"), (ASK, 2**64 - 1, b""), (WAIT, 7, bytes(100))]
    stream = b"".join([frame(*each) for each in sent])
    frames = Frames(100)
    found: list[tuple[int, int, bytes]] = []
    for at in range(0, len(stream), size):
        found += frames.feed(stream[at : at + size])
    assert (found, frames.is_between, frames.wanted) == (sent, True, 0)


@pytest.mark.parametrize("length", [0, 8, 110, 0xFFFFFFFF])
def test_oversized_or_empty_frame_is_refused_by_its_length(length: int) -> None:
    with pytest.raises(ValueError, match="no frame"):
        list(Frames(100).feed(length.to_bytes(4, "big")))


@for_each(
    "answer, kind",
    [
        (b'r{"":"Engine"}', JobSpec),
        (b'r{"":"Cancel","ids":["a"]}', JobSpec),
        (b'r{"":"Policy"}', JobSpec),
        (b'r[{"":"Policy"}]', op.Pulled),
        (b'r["eA=="]', op.Pulled),
        (b'r{"":"JobSpec"}', JobSpec),
        (b'r[[["a",1,"NOWHERE",true,null]],false]', op.Enqueued),
        (b'r[[["a",1,["QUEUED"],true,null]],false]', op.Enqueued),
        (b'r[[["a",1,"QUEUED",true]],false]', op.Enqueued),
    ],
)
def test_answer_chooses_only_the_declared_class(answer: bytes, kind: Any) -> None:
    with pytest.raises(BackendError, match="sent a reply that cannot be read"):
        read_answer(answer, kind)
