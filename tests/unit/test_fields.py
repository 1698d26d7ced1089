"""Fields of operations: the fast check and the full check agree."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from queuehint import operations
from queuehint.errors import (
    CycleError,
    DuplicateJobError,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    PayloadError,
)
from queuehint.operations import (
    TALLIES,
    Cancel,
    Closing,
    Enqueue,
    Exchange,
    Firing,
    ListUsers,
    Operation,
    Pause,
    Pull,
    Renew,
    Tick,
    Update,
    bounds,
    fields,
)
from queuehint.operations.bounds import check_limits
from queuehint.operations.fields import check_fields, is_usual
from queuehint.testing.contract.wrong_values import wrong_operations
from queuehint.values.hint import Claim
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Backoff
from queuehint.values.spec import JobSpec, is_checked, note_checked

DONE = Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED, result=b"1")


class MyBackoff(Backoff):
    pass


def usual(**changes: Any) -> Exchange:
    return attrs.evolve(Exchange("w", (DONE,), limit=1), **changes)


def test_all_operations_are_compiled() -> None:
    kinds = [kind for kind in vars(operations).values() if isinstance(kind, type) and Operation in kind.__bases__]
    assert len(kinds) > 40
    for kind in kinds:
        fields._fields(kind, kind.__name__)


def test_no_wrong_exchange_is_a_usual_one() -> None:
    check_limits(usual())
    assert is_usual(usual())
    for name, operation in wrong_operations():
        if isinstance(operation, Exchange):
            assert not is_usual(attrs.evolve(operation, worker="w") if name != "Exchange.worker" else operation), name


@pytest.mark.parametrize(
    "other",
    [
        {"pools": ("never seen",)},
        {"pools": ("default",) * 65},
        {"users": ("u",)},
        {"settle": ("not an outcome",)},
        {"settle": (attrs.evolve(DONE, job_id="é"),)},
        {"settle": (attrs.evolve(DONE, kind=OutcomeKind.RELEASED),)},
    ],
)
def test_what_is_not_usual_is_looked_at_closer(other: dict[str, Any]) -> None:
    check_limits(usual())
    assert not is_usual(usual(**other))


def checked(**fields: Any) -> JobSpec:
    return JobSpec(**{"id": "a", "task": "t"} | fields).check()


@pytest.mark.parametrize(
    "operation",
    [
        Enqueue(()),
        Enqueue((checked(),)),
        Enqueue((checked(claims=(Claim(("doc", "part")),)), checked(id="b", key="k", delay_ms=5))),
        Enqueue(tuple([checked(id=str(number)) for number in range(1000)])),
    ],
)
def test_plain_submissions_are_checked_at_a_glance(operation: Enqueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "check_fields", None)
    check_limits(operation)


DEEP = (Claim(("s",) * 63), Claim(("t",) * 63))


@pytest.mark.parametrize(
    "operation, error",
    [
        (Enqueue([checked()]), InvalidJobTypeError),  # type: ignore[arg-type]
        (Enqueue(("a",)), InvalidJobTypeError),  # type: ignore[arg-type]
        (Enqueue((JobSpec(id="a", task="t", priority=8),)), InvalidJobError),
        (Enqueue((note_checked(JobSpec(id="", task="t")),)), InvalidJobError),
        (Enqueue(tuple([checked(id=str(number)) for number in range(1001)])), InvalidJobError),
        (Enqueue((checked(), checked())), DuplicateJobError),
        (Enqueue(tuple([checked(id=str(n), arguments=b"x" * (1 << 20)) for n in range(5)])), InvalidJobError),
        (Enqueue(tuple([checked(id=str(n), claims=DEEP) for n in range(126)])), InvalidJobError),
        (Enqueue((checked(depends_on=("b",)), checked(id="b", depends_on=("a",)))), CycleError),
        (Enqueue((checked(key="k"),), staged="s"), InvalidJobError),
        (Enqueue((checked(),), flow=""), InvalidJobError),
        (Enqueue((checked(),), firing=Firing("", 1, 1, 1)), InvalidJobError),
        (Enqueue((checked(),), closing=Closing(("a",), "later")), InvalidJobError),  # type: ignore[arg-type]
    ],
)
def test_wrong_submissions_of_checked_specs_are_refused(operation: Enqueue, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_limits(operation)


def test_names_that_were_seen_are_forgotten_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "SEEN_MAX", 3)
    for number in range(9):
        check_limits(Exchange(f"worker{number}"))
        assert is_usual(Exchange(f"worker{number}"))
    assert len(fields._seen) <= 5


MANY = tuple([f"j{number}" for number in range(20)])


@pytest.mark.parametrize(
    "operation, error, said",
    [
        (5, InvalidJobTypeError, "operation must be one of queuehint.operations, got int"),
        (Cancel((*MANY, "\ud800")), InvalidJobError, "Cancel.ids is not encodable"),
        (Cancel((*MANY, 5)), InvalidJobTypeError, "Cancel.ids must be str, got int"),  # type: ignore[arg-type]
        (Cancel(("a",), "\ud800"), InvalidJobError, "Cancel.reason is not encodable as UTF-8"),
        (Cancel(("a",), "x" * 4097), InvalidJobError, "Cancel.reason is 4097 characters, limit 4096"),
        (Renew((*[("a", 1)] * 20, ("a",))), InvalidJobTypeError, "Renew.leases must be a tuple of 2"),  # type: ignore[arg-type]
        (Renew((*[("a", 1)] * 20, ("a", "b"))), InvalidJobTypeError, "Renew.leases must be int"),  # type: ignore[arg-type]
        (Pause(("",)), InvalidHintError, "Pause.path segment 0 is empty"),
        (Update("a", 1, b"x" * (1 << 20) + b"y"), PayloadError, "Update.result take 1048577 bytes"),
        (Enqueue((JobSpec(id="a", task="t", delay_ms=-1),)), InvalidJobError, "Enqueue.jobs.delay_ms must be from 0"),
        (Enqueue((JobSpec(id="a", task="t", user="u" * 300),)), InvalidJobError, "Enqueue.jobs.user is 300 bytes"),
        (Enqueue((JobSpec(id="a", task="t", schedule="s"),)), InvalidJobTypeError, "Enqueue.jobs: schedule and"),
    ],
)
def test_what_is_wrong_is_named(operation: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        check_fields(operation)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "operation",
    [
        Cancel(MANY, "weil é"),
        Cancel(("é",)),
        Renew(tuple([(job_id, 2**70) for job_id in MANY])),
        ListUsers("Zoë", None, 2),
        Tick(),
        Pull(TALLIES, "1"),
        Exchange("w", users=("u", None), steal="*"),
    ],
)
def test_what_fields_name_is_taken(operation: Operation[Any]) -> None:
    check_limits(operation)


def test_a_spec_is_checked_once_and_another_made_of_it_again() -> None:
    spec = JobSpec(id="a", task="t", claims=(Claim(("x",)),))
    assert not is_checked(spec)
    check_limits(Enqueue((spec,)))
    assert is_checked(spec)
    assert is_checked(JobSpec(id="a", task="t").check())
    assert not is_checked(attrs.evolve(spec, id="b"))
    strange = JobSpec(id="a", task="t", policy=attrs.evolve(spec.policy, backoff=MyBackoff())).check()
    assert not is_checked(strange)
    with pytest.raises(InvalidJobTypeError, match=r"^Enqueue\.jobs\.policy\.backoff must be a Backoff, got MyBackoff"):
        check_limits(Enqueue((strange,)))
