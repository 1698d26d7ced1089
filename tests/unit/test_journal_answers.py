"""The newest answers of guests: how long they are kept, and that a snapshot has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import operations as op
from queuehint.backends.journal import answers as answers_module
from queuehint.backends.journal.answers import Answers
from queuehint.backends.journal.groups import Request, line_of, pack, unpack
from queuehint.backends.journal.leading import ROWS_FIRST, ROWS_MAX, rows_after
from queuehint.errors import BackendDeniedError, CorruptStateError, PathClosedError
from queuehint.operations.wire import encode
from queuehint.testing.driver import Queue, job

requests = st.none() | st.builds(
    Request, st.from_regex(r"[a-z0-9-]{0,10}[a-z0-9]", fullmatch=True), st.integers(1, 1 << 40)
)


@given(st.lists(st.tuples(requests, st.integers(0, 9).map(lambda n: op.Draw(n + 1))), min_size=1))
def test_journal_row_round_trips(entries: list[tuple[Request | None, op.Draw]]) -> None:
    row = pack([line_of(encode(operation), request) for request, operation in entries])
    assert list(unpack(row)) == [(request, encode(operation)) for request, operation in entries]


def test_a_row_that_is_none_is_damage() -> None:
    with pytest.raises(CorruptStateError, match="holds a line that is no request"):
        list(unpack(b'{"":"Tick"}\nx y'))


def test_newest_answer_of_a_stream_is_kept_and_earlier_refused() -> None:
    answers = Answers()
    assert answers.find(Request("s", 1)) is None
    answers.keep(Request("s", 1), op.Draw(1), op.Drawn(1))
    answers.keep(Request("s", 2), op.Draw(1), PathClosedError("doc"))
    known = answers.find(Request("s", 2))
    assert known is not None
    with pytest.raises(PathClosedError):
        known.reply_of(op.Draw(1))
    assert answers.find(Request("s", 3)) is None
    with pytest.raises(BackendDeniedError, match="was answered before"):
        answers.find(Request("s", 1))


def test_a_snapshot_has_answers_and_workers() -> None:
    queue = Queue()
    queue.enqueue(job("a", ["p"]))
    claim = op.Exchange("w", limit=1)
    reply = queue.engine.apply(claim, 5)
    answers = Answers()
    answers.keep(Request("s", 4), claim, reply)
    answers.keep(Request("t", 1), op.Draw(1), PathClosedError("doc"))
    again = Answers.thawed(answers.frozen())
    assert list(again.workers) == ["w"]
    known, refusal = again.find(Request("s", 4)), again.find(Request("t", 1))
    assert known is not None
    assert refusal is not None
    assert known.reply_of(claim) == reply
    with pytest.raises(PathClosedError):
        refusal.reply_of(op.Draw(1))
    assert Answers.thawed(again.frozen()).frozen() == again.frozen()


@pytest.mark.parametrize("part", [b"", b"x", Answers().frozen()[:-1]])
def test_a_part_that_is_none_is_damage(part: bytes) -> None:
    with pytest.raises(CorruptStateError, match="the snapshot cannot be read"):
        Answers.thawed(part)


def test_the_stream_that_was_longest_without_a_request_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "STREAMS_MAX", 2)
    monkeypatch.setattr(answers_module, "WORKERS_MAX", 2)
    answers = Answers()
    for name, number in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        answers.keep(Request(name, number), op.Exchange(name), op.Exchanged((), (), (), more=False))
    assert [answers.find(Request(name, 2)) is not None for name in "abc"] == [True, False, False]
    assert answers.find(Request("c", 1)) is not None
    assert answers.find(Request("b", 1)) is None
    assert list(answers.workers) == ["b", "c"]


def test_answers_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "BYTES_MAX", 50_000)
    queue = Queue()
    answers = Answers()
    for n in range(10):
        queue.enqueue(job(f"a{n}", [f"p{n}"], arguments=b"x" * 20_000))
        claim = op.Exchange("w", limit=1)
        answers.keep(Request(f"s{n}", 1), claim, queue.engine.apply(claim, 5))
    assert [answers.find(Request(f"s{n}", 1)) is not None for n in range(10)] == [False] * 8 + [True] * 2


def test_worker_of_the_leader_process_is_no_guest() -> None:
    answers = Answers()
    nothing = op.Exchanged((), (), (), more=False)
    answers.keep(Request("s", 1), op.Exchange("w"), nothing)
    assert list(answers.workers) == ["w"]
    answers.keep(None, op.Exchange("w"), nothing)
    assert not answers.workers


def test_inbox_reads_more_rows_after_small_and_fewer_after_large() -> None:
    rows = ROWS_FIRST
    for _ in range(20):
        rows = rows_after(rows, [1_000] * rows)
    assert rows == ROWS_MAX
    for _ in range(20):
        rows = rows_after(rows, [64 << 20] * rows)
    assert rows == 1
    assert rows_after(rows, []) == 1
