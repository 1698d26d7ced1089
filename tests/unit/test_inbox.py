"""Rows of an inbox: what is written is read, nothing else is, and each takes effect all or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from queuehint import Claim, Dependency
from queuehint.backends.journal import recovery
from queuehint.backends.journal.recovery import take_in
from queuehint.backends.relaying import relay
from queuehint.backends.steps import run_steps_sync, tick_until_done
from queuehint.client.submission import operations_at_once
from queuehint.errors import (
    CorruptStateError,
    DuplicateFlowError,
    DuplicateJobError,
    InvalidJobError,
    PathClosedError,
    UnknownDependencyError,
)
from queuehint.operations import Closing, Firing, Operation, inbox
from queuehint.operations.inbox import operations_of, row_of
from queuehint.operations.wire import OPERATIONS, encode
from queuehint.values.policy import Policy
from queuehint.values.spec import JobSpec
from tests.each import for_each
from tests.examples import example
from tests.schedulers import memory, scheduler

Row = Sequence[Operation[Any]]

KEYED = JobSpec(
    id="a",
    task="save",
    claims=(Claim(("doc1",)),),
    arguments='{"text":"\N{LATIN SMALL LETTER E WITH ACUTE}\\n"}'.encode(),
    policy=Policy(max_attempts=2),
    key="k",
)
PLAIN = attrs.evolve(KEYED, key=None)


def specs(count: int, **options: Any) -> list[JobSpec]:
    return [JobSpec(id=f"j{n}", task="save", **options) for n in range(count)]


def changed(row: Row, place: int, **changes: Any) -> Row:
    """Return operations of which one has other fields."""
    return [*row[:place], attrs.evolve(row[place], **changes), *row[place + 1 :]]  # type: ignore[misc]


ONE = operations_at_once([PLAIN])
PARTS = operations_at_once(specs(1_001))
WIDE = operations_at_once([JobSpec(id="last", task="save", depends_on=tuple([Dependency(s.id) for s in specs(1_001)]))])
MAY_WRITE = [kind for kind in OPERATIONS if kind.is_for_inbox]
ALONE = [example(kind) for kind in MAY_WRITE if getattr(example(kind), "staged", None) is None]

ROWS: dict[str, Row] = {
    "a job": ONE,
    "a job with a key": operations_at_once([KEYED]),
    "a flow": operations_at_once(specs(2, flow="f"), whole=True, flow_timeout_ms=5),
    "parts": PARTS,
    "a job that waits for many": WIDE,
    **{type(each).__name__: [each] for each in ALONE},
}
WRONG: dict[str, Row] = {
    "nothing": [],
    "two operations": ALONE[:2],
    "a part without commit": PARTS[:1],
    "parts without commit": PARTS[:-1],
    "a portion without commit": WIDE[1:2],
    "a commit without parts": PARTS[-1:],
    "a commit of another submission": changed(PARTS, -1, staged="other"),
    "a part of another submission": changed(PARTS, 0, staged="other"),
    "a job that is no part": [*ONE, PARTS[-1]],
    "an operation before a commit": [ALONE[0], *PARTS],
    "a child": changed(ONE, 0, parent=("p", 1)),
    "a firing": changed(ONE, 0, firing=Firing("s", 1, 5, None)),
    "the last of a path": changed(ONE, 0, closing=Closing(("doc1",))),
    "a waiting caller": changed(ONE, 0, jobs=(attrs.evolve(PLAIN, presence_ms=5),)),
    **{kind.__name__: [example(kind)] for kind in OPERATIONS if kind not in MAY_WRITE},
}


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_read_as_it_was_written(name: str) -> None:
    data = row_of(ROWS[name])
    assert data.isascii()
    assert operations_of(data) == tuple(ROWS[name])


@for_each("name", WRONG)
def test_malformed_submission_is_neither_written_nor_read(name: str) -> None:
    with pytest.raises(InvalidJobError, match="a submission in a transaction has "):
        row_of(WRONG[name])
    data = b"\n".join([inbox.FORMAT, *map(encode, WRONG[name])])
    with pytest.raises(CorruptStateError, match=r"a row of the inbox (has|breaks) "):
        operations_of(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'2\n{"":"Cancel","ids":["a"]}',
        b"1",
        b"1\n",
        b"1\n{}",
        b"1\n\xff",
        b'1\n{"":"Nothing"}',
        b'1\n{"":"Begin"}',
        b"1\n[]",
        b"\x00",
    ]
    + [
        b'1\n{"":"Enqueue"%b}' % jobs
        for jobs in (b"", b',"jobs":5', b',"jobs":[5]', b',"jobs":[{"":"Claim","path":["a"]}]')
    ],
)
def test_bytes_that_are_no_row_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptStateError):
        operations_of(data)


def test_a_row_is_checked_as_a_request_is() -> None:
    twice = changed(ONE, 0, jobs=(PLAIN, PLAIN))
    with pytest.raises(DuplicateJobError):
        row_of(twice)
    with pytest.raises(CorruptStateError, match="limit"):
        operations_of(b"1\n" + encode(twice[0]))
    with pytest.raises(CorruptStateError, match="limit"):
        operations_of(b"1\n" + encode(ONE[0]).replace(b'"task":"save"', b'"task":5'))


def test_a_row_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = row_of(ONE)
    monkeypatch.setattr(inbox, "ROW_BYTES_MAX", len(data))
    assert operations_of(row_of(ONE))
    monkeypatch.setattr(inbox, "ROW_BYTES_MAX", len(data) - 1)
    with pytest.raises(InvalidJobError, match=f"at most {len(data) - 1} bytes"):
        row_of(ONE)
    with pytest.raises(CorruptStateError, match=f"{len(data)} bytes"):
        operations_of(data)


# --- one submission, of any size --------------------------------------------------------------------------------------


def facts(operation: Operation[Any]) -> dict[str, Any]:
    found: dict[str, Any] = attrs.asdict(operation, recurse=False)  # type: ignore[arg-type]
    return found


def test_up_to_500_jobs_are_one_operation_with_keys_too() -> None:
    (operation,) = operations_at_once([attrs.evolve(spec, key=spec.id) for spec in specs(500)])
    assert (len(facts(operation)["jobs"]), facts(operation)["staged"]) == (500, None)


def test_more_jobs_are_parts_that_take_effect_by_one_commit() -> None:
    *parts, commit = map(facts, operations_at_once(specs(2_500)))
    assert [len(part["jobs"]) for part in parts] == [1_000, 1_000, 500]
    assert [part["is_further"] for part in parts] == [False, True, True]
    assert {part["staged"] for part in parts} == {commit["staged"]}
    assert (commit["jobs"], commit["portions"]) == (2_500, 0)


def test_more_jobs_with_keys_are_refused() -> None:
    with pytest.raises(InvalidJobError, match="key is not supported in an atomic submission"):
        operations_at_once([attrs.evolve(spec, key=spec.id) for spec in specs(501)])


def test_jobs_of_many_gates_fit_one_operation() -> None:
    deep = specs(400, claims=(Claim(tuple("abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz")),))
    *parts, commit = map(facts, operations_at_once(deep))
    assert len(parts) == 2
    assert commit["jobs"] == 400


def test_flow_timeout_is_on_the_operation_that_commits() -> None:
    (small,) = map(facts, operations_at_once(specs(2, flow="f"), whole=True, flow_timeout_ms=5))
    assert (small["flow"], small["flow_timeout_ms"]) == ("f", 5)
    *parts, commit = map(facts, operations_at_once(specs(1_001, flow="f"), whole=True, flow_timeout_ms=5))
    assert [part["flow_timeout_ms"] for part in parts] == [None, None]
    assert (commit["flow"], commit["flow_timeout_ms"]) == ("f", 5)


def test_a_job_that_waits_for_many_says_so_in_portions() -> None:
    assert [facts(portion)["portion"] for portion in WIDE[1:-1]] == [1]
    assert (facts(WIDE[-1])["jobs"], facts(WIDE[-1])["portions"]) == (1, 1)


# --- how a row takes effect -------------------------------------------------------------------------------------------


class Store:
    """
    A store in memory, and what it has.

    Attributes:
        is_asked: rows are sent to it; otherwise they take effect in one step of its engine, as where one leads.
    """

    def __init__(self, *, is_asked: bool) -> None:
        self.sched, self.clock = scheduler()
        self.backend = memory(self.sched)
        self.is_asked = is_asked

    def take(self, row: Row) -> list[Any]:
        if self.is_asked:
            return [*run_steps_sync(self.backend, relay(row))]
        return [*take_in(row, self.clock.now_ms(), self.backend.engine.apply)]

    def settle(self) -> None:
        run_steps_sync(self.backend, tick_until_done(more=True))
        self.backend.engine.check()

    @property
    def states(self) -> dict[str, int]:
        return {state.value: count for state, count in self.sched.stats_sync().states.items() if count}


@pytest.fixture(params=["asked", "led"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    found = Store(is_asked=request.param == "asked")
    yield found
    found.sched.close_sync()


def portions_of(count: int) -> tuple[Dependency, ...]:
    return tuple([Dependency(spec.id) for spec in specs(count)])


def row(jobs: list[JobSpec], **options: Any) -> Row:
    return operations_of(row_of(operations_at_once(jobs, **options)))


@pytest.mark.parametrize("size", [1, 500, 2_500])
def test_jobs_of_a_row_are_enqueued_in_order(size: int, store: Store) -> None:
    jobs = store.take(row(specs(size)))
    assert [job.id for job in jobs] == [spec.id for spec in specs(size)]
    assert sorted(job.number for job in jobs) == [job.number for job in jobs]
    store.settle()
    assert store.states == {"QUEUED": size}


@pytest.mark.parametrize("size", [1, 2_500])
def test_a_row_that_is_there_already_changes_nothing(size: int, store: Store) -> None:
    first = store.take(row(specs(size)))
    again = store.take(row(specs(size)))
    assert [(job.id, job.number) for job in again] == [(job.id, job.number) for job in first]
    assert not any(job.created for job in again)
    store.settle()
    assert store.states == {"QUEUED": size}


@pytest.mark.slow
@pytest.mark.parametrize("flow", [None, "f"])
def test_known_jobs_of_a_row_are_found_beside_new_ones(flow: str | None, store: Store) -> None:
    some = [*specs(2_000, flow=flow), JobSpec(id="some", task="save", flow=flow, depends_on=portions_of(1_001))]
    more = [JobSpec(id="more", task="save", flow=flow, depends_on=portions_of(1_500))]
    store.take(row(some, whole=flow is not None))
    if flow is None:
        done = store.take(row([*some, *more]))
        assert [job.id for job in done if job.created] == ["more"]
        store.settle()
        assert store.states == {"QUEUED": 2_000, "DEFERRED": 2}
    else:
        for other in ([*some, *more], some[:1_500]):
            with pytest.raises(DuplicateFlowError):
                store.take(row(other, whole=True))
        assert not any(job.created for job in store.take(row(some, whole=True)))
        store.settle()
        assert store.states == {"QUEUED": 2_000, "DEFERRED": 1}


@pytest.mark.parametrize("size", [2, 1_001])
def test_a_flow_of_a_row_times_out(size: int, store: Store) -> None:
    store.take(row(specs(size, flow="f"), whole=True, flow_timeout_ms=60_000))
    store.clock.advance(seconds=59)
    store.settle()
    assert store.states == {"QUEUED": size}
    store.clock.advance(seconds=1)
    store.settle()
    assert store.states == {"CANCELED": size}


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 2_500])
def test_a_row_that_is_refused_has_no_effect(size: int, store: Store) -> None:
    store.sched.close_path_sync(["shut"])
    store.sched.submit_sync([JobSpec(id="taken", task="other")])
    for error, last in (
        (PathClosedError, JobSpec(id="last", task="save", claims=(Claim(("shut",)),))),
        (UnknownDependencyError, JobSpec(id="last", task="save", depends_on=(Dependency("gone"),))),
        (DuplicateJobError, JobSpec(id="taken", task="save")),
    ):
        with pytest.raises(error):
            store.take(row([*specs(size), last]))
        store.settle()
        assert store.states == {"QUEUED": 1}


def test_a_row_waits_for_work_that_makes_room(store: Store) -> None:
    store.sched.limit_sync(None, max_pending=1)
    store.sched.submit_sync([JobSpec(id="late", task="save", policy=Policy(start_within_ms=1_000))])
    store.clock.advance(seconds=2)
    store.take(row(specs(1)))
    assert store.states == {"QUEUED": 1, "CANCELED": 1}


def test_rows_cancel_jobs_and_paths(store: Store) -> None:
    cancellations = [each for each in ALONE if not hasattr(each, "jobs")]
    assert len(cancellations) == 2
    for number, operation in enumerate(cancellations, 1):
        job = JobSpec(id="a", task="save", claims=(Claim(("a",)),)) if number == 1 else None
        store.sched.submit_sync([job or JobSpec(id="b", task="save", claims=(Claim(("a", "b")),))])
        assert store.take([operation]) == []
        assert store.states == {"CANCELED": number}


def test_row_cancels_a_path_with_more_jobs_than_one_step(store: Store) -> None:
    store.take(row([attrs.evolve(spec, claims=(Claim(("a", spec.id)),)) for spec in specs(1_500)]))
    store.settle()
    store.take([each for each in ALONE if hasattr(each, "path")])
    assert store.states == {"CANCELED": 1_500}


def test_inbox_row_does_a_bounded_number_of_leftover_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "REST_TICKS", 1)
    store = Store(is_asked=False)
    store.take(row([attrs.evolve(spec, claims=(Claim(("a", spec.id)),)) for spec in specs(1_500)]))
    store.settle()
    store.take([each for each in ALONE if hasattr(each, "path")])
    assert 0 < store.states["CANCELED"] < 1_500
    store.settle()
    assert store.states == {"CANCELED": 1_500}
    store.sched.close_sync()
