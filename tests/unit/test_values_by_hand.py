"""Values constructed by users: a field of a wrong type is refused at construction, or at the check."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from queuehint import (
    Children,
    Claim,
    Discard,
    Fail,
    FakeClock,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    JobSpec,
    JsonCodec,
    Limit,
    Outcome,
    PayloadError,
    QueueHintError,
    Retry,
    Snooze,
)
from queuehint.backends.base import open_backend
from queuehint.operations import CountJobs, EnqueuedJob
from queuehint.operations.producing import new_enqueued_job
from queuehint.testing.contract.wrong_values import wrong_operations
from queuehint.values.outcome import Grant, new_grant, new_outcome
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import new_spec
from tests.each import for_each
from tests.support import HostileStr


class Unshown:
    def __repr__(self) -> str:
        raise SystemExit

    __str__ = __repr__


@pytest.mark.parametrize(
    "reason", [None, 5, ValueError("why"), b"why", ["why"], Unshown()], ids=lambda r: type(r).__name__
)
def test_the_reason_of_an_answer_is_a_text(reason: Any) -> None:
    for make in (Fail, Discard, lambda reason: Retry(reason=reason)):
        with pytest.raises(InvalidJobTypeError, match=r"^reason must be str, got"):
            make(reason)


def test_reason_of_an_answer_is_the_checked_text() -> None:
    for answer in (Fail(HostileStr("why")), Discard(HostileStr("why")), Retry(reason=HostileStr("why"))):
        assert (type(answer.reason), answer.reason) == (str, "why")
    assert (Fail().reason, Discard().reason, Retry().reason) == (
        "the handler said so",
        "discarded by its handler",
        "the handler asked for a retry",
    )


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "snooze": (lambda: Snooze("5"), "delay must be a timedelta"),  # type: ignore[arg-type]
    "children": (lambda: Children("a", on_child_failure="x"), "on_child_failure must be one of"),  # type: ignore[arg-type]
    "a clock from a text": (lambda: FakeClock("5"), "now_ms must be int"),  # type: ignore[arg-type]
    "a clock from a fraction": (lambda: FakeClock(1.5), "now_ms must be int"),  # type: ignore[arg-type]
    "a clock too far away": (lambda: FakeClock(2**60), "now_ms must be from"),
    "what cannot be told": (lambda: FakeClock().subscribe(5), "moved must be callable"),  # type: ignore[arg-type]
    "no converter": (lambda: JsonCodec(5), "converter must be a cattrs.Converter"),  # type: ignore[arg-type]
    "a limit of a list": (lambda: Limit(path=["a"], most=1), "path must be a tuple of str"),  # type: ignore[arg-type]
    "a limit of a text": (lambda: Limit(path="a", most=1), "path must be a list"),  # type: ignore[arg-type]
    "a limit of a number": (lambda: Limit(path=(5,), most=1), "path segment 0"),  # type: ignore[arg-type]
    "a limit of a liar": (lambda: Limit(path=(HostileStr("a"),), most=1), "path must be a tuple of str"),
    "a limit each maybe": (lambda: Limit(path=(), each=1, most=1), "each must be bool"),  # type: ignore[arg-type]
    "half a rate": (lambda: Limit(path=(), rate=(5,)), "rate must be a tuple"),  # type: ignore[arg-type]
    "no rate": (lambda: Limit(path=(), rate=5), "rate must be a tuple"),  # type: ignore[arg-type]
    "a rate of texts": (lambda: Limit(path=(), rate=("5", 5)), "rate must be int"),  # type: ignore[arg-type]
    "a limit of many texts": (lambda: Limit(path=(), most="5"), "most must be int"),  # type: ignore[arg-type]
    "a limit too large": (lambda: Limit(path=(), max_pending=2**60), "max_pending must be from"),
    "a time of a number": (lambda: Recurrence(cron=5), "cron must be str"),  # type: ignore[arg-type]
    "a time of a text": (lambda: Recurrence(every_ms="5"), "every_ms must be int"),  # type: ignore[arg-type]
    "a time of no time": (lambda: Recurrence(every_ms=0), "every_ms must be from"),
    "a time of nowhere": (lambda: Recurrence(cron="* * * * *", timezone=None), "timezone must be str"),  # type: ignore[arg-type]
    "a time missed": (lambda: Recurrence(every_ms=1, missed="x"), "missed must be one of"),  # type: ignore[arg-type]
    "a time from a fraction": (lambda: Recurrence(every_ms=1, start_ms=1.5), "start_ms must be int"),  # type: ignore[arg-type]
    "a time to a fraction": (lambda: Recurrence(every_ms=1, end_ms=1.5), "end_ms must be int"),  # type: ignore[arg-type]
    "edges to nothing": (lambda: JobSpec(id="a", task="t", depends_on={5}).check(), "depends_on must be str"),  # type: ignore[arg-type]
    "edges to what": (lambda: JobSpec(id="a", task="t", depends_on={Unshown()}).check(), "depends_on"),  # type: ignore[arg-type]
    "claims of nothing": (lambda: JobSpec(id="a", task="t", claims=(5,)).check(), "claims[0]"),  # type: ignore[arg-type]
    "a claim of a text": (lambda: JobSpec(id="a", task="t", claims=(Claim("ab"),)).check(), "claims[0]"),  # type: ignore[arg-type]
}  # fmt: skip


@for_each("name", WRONG)
def test_malformed_field_is_refused(name: str) -> None:
    make, words = WRONG[name]
    with pytest.raises(QueueHintError) as caught:
        make()
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "step", [{"seconds": "1"}, {"seconds": math.nan}, {"seconds": 1e30}, {"ms": 1.5}, {"ms": 2**60}]
)
def test_clock_moved_by_a_malformed_duration_stays(step: dict[str, Any]) -> None:
    clock = FakeClock(1000)
    moved: list[int] = []
    clock.subscribe(lambda: moved.append(1))
    with pytest.raises(InvalidJobError):
        clock.advance(**step)
    assert (clock.now_ms(), moved) == (1000, [])
    clock.advance(seconds=1.5, ms=-500)
    assert (clock.now_ms(), moved) == (2000, [1])


BY_HAND: dict[type[Any], str] = {
    JobSpec: "Enqueue.jobs.",
    Outcome: "Exchange.settle.",
    Limit: "SetLimit.limit.",
    Recurrence: "PutSchedule.recurrence.",
}
WRONG_FIELDS = list(wrong_operations())


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/jobs.db?durability=process", "redis://127.0.0.1:1"])
@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.__name__)
def test_malformed_value_is_refused_by_each_store_before_any_write(kind: type[Any], url: str, tmp_path: Path) -> None:
    """An outcome is made for each job and is not looked at then; what was looked at may have been changed since."""
    backend = open_backend(url.format(tmp_path))

    def kept() -> dict[str, bytes]:
        files = [file for file in tmp_path.iterdir() if file.is_file() and file.suffix != ".db-shm"]
        return {file.name: file.read_bytes() for file in files}

    if not url.startswith("redis"):
        backend.call_sync(CountJobs())
    before = kept()
    named = set()
    for path, operation in WRONG_FIELDS:
        if path.startswith(BY_HAND[kind]):
            with pytest.raises((InvalidJobError, InvalidHintError, PayloadError)) as caught:
                backend.call_sync(operation)
            field = path.split(".")[2]
            assert re.search(rf"\b{field}\b|{field.rstrip('s')}", str(caught.value)), path
            named.add(field)
    assert named == {field.name for field in attrs.fields(kind) if field.init}
    assert kept() == before
    backend.close_sync()


# --- quickly made ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, make",
    [(JobSpec, new_spec), (Grant, new_grant), (Outcome, new_outcome), (EnqueuedJob, new_enqueued_job)],
)
def test_quick_constructor_equals_the_class_constructor(kind: type[Any], make: Callable[..., Any]) -> None:
    values = {field.name: f"<{field.name}>" for field in attrs.fields(kind)}
    quick, plain = make(*values.values()), kind(**values)
    assert type(quick) is kind
    assert (quick, repr(quick), hash(quick)) == (plain, repr(plain), hash(plain))
    assert attrs.asdict(quick) == attrs.asdict(plain)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(quick, next(iter(values)), None)
