"""The error tree: each error is the built-in a reader expects, and its message names what it is about."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import pytest

from queuehint import Flow, Scheduler, errors
from queuehint.errors import QueueHintError, shown
from tests.each import for_each
from tests.support import HostileStr

ERRORS: list[tuple[QueueHintError, str]] = [
    (errors.PayloadError("set is not JSON", path="$.a[3]"), "$.a[3]: set is not JSON"),
    (
        errors.QueueFullError("doc1", 5, 5, 3.25),
        "path 'doc1' has 5 unfinished jobs and takes at most 5; nothing was enqueued; try again in about 3.2 s",
    ),
    (errors.PayloadError("too large"), "$: too large"),
    (errors.WouldDeadlockError("result()", "a"), "result() for job 'a' inside a handler"),
    (errors.WouldDeadlockError("drain()"), "drain() inside a handler"),
    (errors.JobNotFoundError("a"), "no job 'a'"),
    (
        errors.JobNotFoundError("doc1:intro"),
        "no job 'doc1:intro': it was never enqueued here, or its record has expired; if it is the text of a path, list",
    ),
    (errors.DuplicateJobError("a"), "job id 'a' appears twice in one submission"),
    (errors.DuplicateJobError("a", fields=("task", "pool")), "job 'a' exists with other values of task, pool"),
    (errors.DuplicateJobError("a", key="k"), "key 'k' belongs to job 'a', which is unfinished or keeps it for a time"),
    (errors.InvalidTransitionError("a", "FINISHED", "QUEUED"), "job 'a' is FINISHED and cannot become QUEUED"),
    (errors.LeaseLostError("a", 7), "token 7 no longer holds job 'a'"),
    (errors.PathClosedError("doc1:intro"), "path 'doc1:intro' is closed"),
    (errors.DuplicateJobError("a", not_last_at="doc1"), "job 'a' exists, and not as the last job of path 'doc1'"),
    (errors.JobFailedError("a", "ValueError", "no"), "job 'a' failed: ValueError: no"),
    (errors.JobCanceledError("a", "expired"), "job 'a' was canceled: expired"),
    (errors.JobCanceledError("a", None), "job 'a' was canceled"),
    (errors.ResultTimeoutError("a", 0.5), "job 'a' was not over within 0.5 s"),
    (errors.ResultTimeoutError("a", 0.5, problem="there was no room at 'p'"), "there was no room at 'p' within 0.5 s"),
    (errors.DrainTimeoutError(3, 1.0), "3 unfinished jobs were left after 1 s"),
    (errors.DrainStalledError(["r1", "r2"]), "2 unfinished jobs cannot move without a person: r1; r2"),
    (errors.OutcomeUnknownError("no answer"), "no answer"),
    (errors.OutcomeUnknownError("cut", job_ids=["a", "b"]), "cut; ask again with the same ids: 'a', 'b'"),
    (
        errors.OutcomeUnknownError("5", job_ids=list("abcde")),
        "5; ask again with the same ids: 'a', 'b', 'c', … (5 jobs)",
    ),
    (errors.CycleError(["a"]), "a → a"),
    (errors.CycleError(["a", "b"]), "a → b → a"),
    (errors.UnknownDependencyError("a", "b"), "job 'a' depends on 'b', which does not exist"),
    (errors.FlowNotFoundError("f"), "no flow 'f': it was never committed, or its records have expired"),
]


@for_each("error, text", ERRORS, ids=[text[:30] for _, text in ERRORS])
def test_error_message_begins_with_its_subject(error: QueueHintError, text: str) -> None:
    assert str(error).startswith(text)


@for_each(
    "ours, builtin",
    [
        (errors.InvalidHintError, ValueError),
        (errors.InvalidHintTypeError, TypeError),
        (errors.InvalidHintTypeError, errors.InvalidHintError),
        (errors.InvalidJobError, ValueError),
        (errors.InvalidJobTypeError, TypeError),
        (errors.InvalidJobTypeError, errors.InvalidJobError),
        (errors.PayloadError, ValueError),
        (errors.WouldDeadlockError, RuntimeError),
        (errors.JobNotFoundError, LookupError),
        (errors.ResultTimeoutError, TimeoutError),
        (errors.DrainTimeoutError, TimeoutError),
        (errors.CycleError, errors.DependencyError),
        (errors.UnknownDependencyError, LookupError),
        (errors.FlowNotFoundError, LookupError),
        (errors.TemplateError, ValueError),
        (errors.CycleError, ValueError),
        (errors.CorruptStateError, errors.BackendError),
    ],
)
def test_an_error_is_the_built_in_a_reader_expects(ours: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(ours, builtin)


def test_every_error_is_a_queuehint_error() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) > 20
    assert all(issubclass(value, (QueueHintError, Warning)) for value in classes)


def test_a_cycle_of_ten_thousand_prints_ten_jobs() -> None:
    error = errors.CycleError([f"j{number}" for number in range(10_000)])
    assert str(error) == "j0 → j1 → j2 → j3 → j4 → j5 → j6 → j7 → j8 → j9 → … → j0"
    assert len(error.cycle) == 10_000


def test_closed_path_of_any_length_is_truncated_in_messages() -> None:
    assert len(str(errors.PathClosedError("x" * 4096))) < 200


class _Raises:
    def __repr__(self) -> str:
        raise RuntimeError


class _ReprIsHostile:
    def __repr__(self) -> str:
        return HostileStr("seen")


_DEEP: list[Any] = []
for _ in range(100_000):
    _DEEP = [_DEEP]


@pytest.mark.parametrize(
    "value, text",
    [
        ("doc1", "'doc1'"),
        ("x" * 10**6, "'" + "x" * 78 + "…"),
        (b"y" * 10**6, "b'" + "y" * 77 + "…"),
        (10**5000, "<int>"),
        (_Raises(), "<_Raises>"),
        (HostileStr("a"), "'a'"),
        (_ReprIsHostile(), "<_ReprIsHostile>"),
        (_DEEP, "[" * 79 + "…"),
        ("\ud800\n", "'\\ud800\\n'"),
    ],
    ids=["str", "long", "bytes", "digits", "raises", "hostile", "hostile repr", "deep", "surrogate"],
)
def test_value_is_shown_as_its_repr_truncated_at_80_characters(value: object, text: str) -> None:
    assert shown(value) == text
    assert len(shown(value)) <= 80


class _Point(NamedTuple):
    x: int
    y: list[int]


class _Odd(list[int]):
    def __repr__(self) -> str:
        raise AssertionError("asked for all of it")

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("asked for its items")


class _Frame:
    def __repr__(self) -> str:
        return "array([[1],\n       [2]]) \x1b[31m"


_CYCLE: list[Any] = [1]
_CYCLE.append(_CYCLE)


@for_each(
    "value, text",
    [
        ([], "[]"),
        ((), "()"),
        ((1,), "(1,)"),
        ((1, "a"), "(1, 'a')"),
        ({}, "{}"),
        ({"a": [1], "b": None}, "{'a': [1], 'b': None}"),
        ({1}, "{1}"),
        (set(), "set({})"),
        (frozenset({1}), "frozenset({1})"),
        (bytearray(b"a"), "bytearray(b'a')"),
        (deque([1, 2]), "deque([1, 2])"),
        ({"a": 1}.keys(), "dict_keys(['a'])"),
        ({"a": 1}.values(), "dict_values([1])"),
        ({"a": 1}.items(), "dict_items([('a', 1)])"),
        (OrderedDict(a=1), "OrderedDict({'a': 1})"),
        (_Point(1, [2]), "_Point((1, [2]))"),
        (_Odd([1, 2]), "_Odd([1, 2])"),
        (_Frame(), "<_Frame>"),
        (_CYCLE, "[1, " * 19 + "[1,…"),
        (range(10**12), "range(0, 1000000000000)"),
        (1.5, "1.5"),
        (True, "True"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_several_is_shown_bit_by_bit(value: object, text: str) -> None:
    assert shown(value) == text
    assert shown(value).isprintable()


def test_hidden_items_are_never_formatted() -> None:
    """A million lists would take half a second for each; what is asked for their text is counted, not timed."""
    asked = []

    class Item:
        def __repr__(self) -> str:
            asked.append(1)
            return "item"

    items = [Item()] * 1_000_000
    for value in (items, (items, items), {"a": items}, deque(items), {1: items}.values(), [[items] * 1000] * 1000):
        asked.clear()
        assert len(shown(value)) == 80
        assert len(asked) < 80


def test_message_is_one_printable_line() -> None:
    error = QueueHintError("a\nb \x1b[31m \u202e \ud800 \u00e9 → …")
    assert str(error) == r"a\nb \x1b[31m \u202e \ud800 é → …"
    assert str(error).isprintable()


def test_failed_job_text_keeps_lines_without_control_characters() -> None:
    error = errors.JobFailedError("a", "ValueError", "one\ntwo \x1b[31m")
    assert str(error) == "job 'a' failed: ValueError: one\ntwo \\x1b[31m"
    assert error.message == "one\ntwo \x1b[31m"


class _Foreign:
    """Would take for ever, or all memory, to be shown."""

    def __repr__(self) -> str:
        raise AssertionError("asked for its repr")


class _Colour(Enum):
    RED = 10**400
    __repr__ = _Foreign.__repr__


class _Number(int):
    __repr__ = _Foreign.__repr__


class _Meta(type):
    __repr__ = _Foreign.__repr__


class _Zone(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None

    tzname = dst = utcoffset
    __repr__ = _Foreign.__repr__


@for_each(
    "value, text",
    [
        (_Foreign(), "<_Foreign>"),
        ([_Foreign()], "[<_Foreign>]"),
        ({_Foreign(): _Foreign()}, "{<_Foreign>: <_Foreign>}"),
        (_Colour.RED, "_Colour.RED"),
        (_Number(5), "5"),
        (_Meta("Kind", (), {"__module__": "app"}), "<class 'app.Kind'>"),
        (datetime(2020, 1, 1, tzinfo=_Zone()), "<datetime>"),
        (datetime(2020, 1, 1, tzinfo=UTC), "datetime.datetime(2020, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)"),
        (_Foreign().__repr__, "<method>"),
        (print, "<function print>"),
        (ValueError("x" * 10**6), "<ValueError>"),
        (Decimal("1.5"), "<Decimal>"),
        (range(10**10_000), "range(0, <int>)"),
        (range(9, 0, -2), "range(9, 0, -2)"),
        (memoryview(b"secret"), "<memoryview>"),
        (iter(()), "<tuple_iterator>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_endless_reprs_are_never_computed(value: object, text: str) -> None:
    assert shown(value) == text


def test_things_of_ours_are_shown_by_their_names() -> None:
    sched = Scheduler("redis://ann:secret@db")
    job = sched.job(name="work")(lambda: None)
    flow = Flow(sched, "flow")
    named = [sched, job, sched.handle("a"), sched.get_flow("flow"), flow, flow.add(job), flow.flow("part")]
    assert [shown(value) for value in named] == [
        "Scheduler('redis://***@db', namespace='default')", "<Job work>", "JobHandle('a')", "FlowHandle('flow')",
        "Flow('flow')", "Node('work')", "FlowGroup('part')",
    ]  # fmt: skip
