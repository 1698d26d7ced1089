"""Checks and constructors compiled from kinds: what fields name is taken, what is wrong is named."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.errors import (
    CycleError,
    DuplicateJobError,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    PayloadError,
    QueueHintError,
)
from queuehint.operations.bounds import check_limits
from queuehint.operations.wire import Await, Begin, Extend, PlaceAnew
from queuehint.schema import kinds
from queuehint.schema.annotations import kind_of
from queuehint.schema.checks import TEN_YEARS_MS
from queuehint.schema.compiled import check_of, kinds_of, maker, option_of, source_of
from queuehint.schema.kinds import JobId, Kind, Single
from queuehint.testing.contract.wrong_values import wrong_operations
from queuehint.values.hint import CLAIMS_MAX, DEPTH_MAX, Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import POLICY_OPTIONS, Backoff, Policy
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import JOB_OPTIONS, Dependency, JobSpec, is_checked, note_checked
from tests.support import HostileStr

DONE = Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED, result=b"1")


class MyBackoff(Backoff):
    pass


# --- kinds -----------------------------------------------------------------------------------------------------------


def singles(kind: Kind) -> Iterator[Single]:
    """The kinds of single things that a kind is made of."""
    if isinstance(kind, Single):
        yield kind
    elif isinstance(kind, kinds.Value) and not isinstance(kind, kinds.Member):
        for inner in kinds_of(kind.cls).values():
            yield from singles(inner)
    elif isinstance(kind, kinds.Row):
        for inner in kind.items:
            yield from singles(inner)
    elif not isinstance(kind, kinds.Member):
        inner_kind: Any = kind
        yield from singles(inner_kind.item if isinstance(kind, kinds.Many) else inner_kind.kind)


SINGLES = {repr(single): single for kind in op.KINDS for inner in kinds_of(kind).values() for single in singles(inner)}
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        5,
        6,
        9,
        16,
        64,
        65,
        100,
        101,
        1000,
        1001,
        2**53,
        2**53 + 1,
        -(2**53),
        2**127,
        2**200,
    ),
    *(
        0.5,
        1.5,
        -0.0,
        math.nan,
        math.inf,
        "",
        "a",
        "a b",
        "a\n",
        "é",
        "\ud800",
        "\u202e",
        "a-b",
        "0f",
        "x" * 16,
        "x" * 17,
    ),
    *("x" * 64, "x" * 65, "x" * 128, "x" * 129, "x" * 256, "x" * 257, "x" * 5000, "cancel", "success", "skip", "hold"),
    *(b"", b"x", b"x" * (1 << 20), b"x" * ((1 << 20) + 1), (), ("a",), ("a", ""), ("é",), ("x" * 257,), (1,), ["a"]),
    *(("a",) * 64, ("a",) * 65, ("x" * 256,) * 16, ("x" * 256,) * 17, HostileStr("a"), (HostileStr("a"),), object()),
)


def fits(kind: Single, value: Any) -> bool:
    try:
        kind.check(value, "Any.field")
    except QueueHintError:
        return False
    return True


@pytest.mark.parametrize("name", SINGLES)
def test_compiled_test_implies_the_check_of_its_kind(name: str) -> None:
    kind = SINGLES[name]
    passing = [value for value in VALUES if eval(kind.test.format(x="value"), {"value": value})]
    assert all(fits(kind, value) for value in passing)
    assert not fits(kind, HostileStr("a"))
    # What fits and is not seen at once is rare: long names and paths, text that is not ASCII, the priority 9.
    others = [value for value in VALUES if fits(kind, value) and not any(value is each for each in passing)]
    assert all(value == 9 or type(value) is tuple or len(value) > 15 or not value.isascii() for value in others), others


def test_a_field_that_says_no_kind_is_refused() -> None:
    for hint in (str, int, bytes, float, tuple[str, ...], str | None, list[JobId], object, dict[str, int]):
        with pytest.raises(TypeError, match="says no kind of field"):
            kind_of(hint)


def test_a_kind_shows_its_limits() -> None:
    assert repr(kind_of(Annotated[int, kinds.Count(1, 5)])) == "Count(least=1, most=5)"
    assert repr(kinds_of(op.Cancel)["ids"]) == "Many(item=Id(), most=1000)"
    assert repr(kinds_of(op.Tick)) == "{}"


def words_of(kind: kinds.Count) -> str:
    """A range, in the words of the documentation."""
    if not isinstance(kind, kinds.Duration):
        return f"{kind.least}–{kind.most:,}".replace(",", " ")
    return f"{f'{kind.least} ms' if kind.least else 0} to {'10 years' if kind.most == TEN_YEARS_MS else kind.most}"


def test_the_page_of_limits_says_the_ranges_that_options_have() -> None:
    page = Path(__file__).parents[2] / "docs/reference/limits.md"
    rows = [row.split("|") for row in page.read_text("utf-8").splitlines() if row.startswith("| `")]
    told = {name: row[2].strip() for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    seen = 0
    for cls, options in ((Policy, POLICY_OPTIONS), (JobSpec, JOB_OPTIONS)):
        for name, kind in kinds_of(cls).items():
            may_lack = isinstance(kind, kinds.Optional)
            kind = kind.kind if isinstance(kind, kinds.Optional) else kind
            option = option_of(name)
            if option not in options or not isinstance(kind, kinds.Count) or isinstance(kind, kinds.Moment):
                continue
            # One of them is bounded by another option.
            if not told[option].startswith("`"):
                assert told[option].startswith(words_of(kind)), option
                assert "None" not in told[option] or may_lack, option
                seen += 1
    assert seen == 9, "as many options have a range of numbers on the page of limits"


# --- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*op.KINDS, Extend, Await, PlaceAnew, Begin], ids=lambda kind: kind.__name__)
def test_each_operation_is_compiled(kind: type[Any]) -> None:
    compile(source_of(kind), kind.__name__, "exec")


@pytest.mark.slow
def test_schema_command_prints_compiled_source() -> None:
    def said(*names: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "queuehint.schema", *names]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    one = said("ListUsers")
    assert (one.stdout, one.returncode) == (source_of(op.ListUsers), 0)
    assert "1 <= limit_3 <= 200" in one.stdout
    assert {kind.__name__ for kind in op.KINDS} <= set(said().stdout.split())
    assert (said("Nothing").returncode, said("Nothing").stdout) == (2, "")


def test_a_check_refuses_none_even_if_nothing_was_checked_before() -> None:
    for name, operation in wrong_operations():
        field, _, inner = name.partition(".")[2].partition(".")
        if not inner and getattr(operation, field) is None:
            with pytest.raises(QueueHintError):
                check_of(type(operation))(operation)


def calls_of(operation: op.Operation[Any]) -> list[str]:
    check_limits(operation)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        check_limits(operation)
    finally:
        sys.setprofile(None)
    return calls


def test_compiled_checks_of_frequent_operations_call_few_functions() -> None:
    exchange = op.Exchange("w", (DONE,) * 9, ("default", "mail"), limit=9, release="r1", announces=True)
    assert calls_of(exchange) == ["check_limits", "check", "_check_exchange"]
    one = op.Enqueue((checked(claims=(Claim(("doc", "part")),)),))
    assert calls_of(one) == ["check_limits", "check", "_check_enqueue"]
    assert calls_of(op.Renew((("a", 1),) * 99)) == ["check_limits", "check"]


def test_sizes_of_few_jobs_are_summed_where_they_may_exceed() -> None:
    claims = tuple([Claim((f"{number}", *"x" * (DEPTH_MAX - 1))) for number in range(CLAIMS_MAX)])
    specs = tuple([checked(id=f"{number}", claims=claims) for number in range(4)])
    check_limits(op.Enqueue(specs[:3]))
    with pytest.raises(InvalidJobError, match="a submission visits 16640 gates"):
        check_limits(op.Enqueue(specs))


def checked(**fields: Any) -> JobSpec:
    return JobSpec(**{"id": "a", "task": "t"} | fields).check()


DEEP = (Claim(("s",) * 63), Claim(("t",) * 63))


@pytest.mark.parametrize(
    "operation, error",
    [
        (op.Enqueue([checked()]), InvalidJobTypeError),  # type: ignore[arg-type]
        (op.Enqueue(("a",)), InvalidJobTypeError),  # type: ignore[arg-type]
        (op.Enqueue((JobSpec(id="a", task="t", priority=8),)), InvalidJobError),
        (op.Enqueue((note_checked(JobSpec(id="", task="t")),)), InvalidJobError),
        (op.Enqueue(tuple([checked(id=str(number)) for number in range(1001)])), InvalidJobError),
        (op.Enqueue((checked(), checked())), DuplicateJobError),
        (op.Enqueue((checked(), checked(id="b"), checked())), DuplicateJobError),
        (op.Enqueue(tuple([checked(id=str(n), arguments=b"x" * (1 << 20)) for n in range(5)])), InvalidJobError),
        (op.Enqueue(tuple([checked(id=str(n), claims=DEEP) for n in range(126)])), InvalidJobError),
        (op.Enqueue((checked(depends_on=("b",)), checked(id="b", depends_on=("a",)))), CycleError),
        (op.Enqueue((checked(key="k"),), staged="s"), InvalidJobError),
        (op.Enqueue((checked(),), flow=""), InvalidJobError),
        (op.Enqueue((checked(),), firing=op.Firing("", 1, 1, 1)), InvalidJobError),
        (op.Enqueue((checked(),), closing=op.Closing(("a",), "later")), InvalidJobError),  # type: ignore[arg-type]
    ],
)
def test_wrong_submissions_of_checked_specs_are_refused(operation: op.Enqueue, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_limits(operation)


MANY = tuple([f"j{number}" for number in range(20)])


@pytest.mark.parametrize(
    "operation, error, said",
    [
        (op.Post((b"secret",)), InvalidJobTypeError, "Post.notes must be a Note, got bytes"),  # type: ignore[arg-type]
        (5, InvalidJobTypeError, "operation must be one of queuehint.operations, got int"),
        (op.Cancel((*MANY, "\ud800")), InvalidJobError, "Cancel.ids is not encodable"),
        (op.Cancel((*MANY, 5)), InvalidJobTypeError, "Cancel.ids must be str, got int"),  # type: ignore[arg-type]
        (op.Cancel(("a",), "\ud800"), InvalidJobError, "Cancel.reason is not encodable as UTF-8"),
        (op.Cancel(("a",), "x" * 4097), InvalidJobError, "Cancel.reason is 4097 characters, limit 4096"),
        (op.Renew((*[("a", 1)] * 20, ("a",))), InvalidJobTypeError, "Renew.leases must be a tuple of 2"),  # type: ignore[arg-type]
        (op.Renew((*[("a", 1)] * 20, ("a", "b"))), InvalidJobTypeError, "Renew.leases must be int"),  # type: ignore[arg-type]
        (op.Pause(RecordFilter(path=("",))), InvalidHintError, "Pause.filter.path segment 0 is empty"),
        (
            op.Post((op.Note("a", 1, result=b"x" * (1 << 20) + b"y"),)),
            PayloadError,
            "Post.notes.result take 1048577 bytes",
        ),
        (
            op.Enqueue((JobSpec(id="a", task="t", delay_ms=-1),)),
            InvalidJobError,
            "Enqueue.jobs.delay_ms must be from 0",
        ),
        (op.Enqueue((JobSpec(id="a", task="t", user="u" * 300),)), InvalidJobError, "Enqueue.jobs.user is 300 bytes"),
        (op.Enqueue((JobSpec(id="a", task="t", schedule="s"),)), InvalidJobTypeError, "Enqueue.jobs: schedule and"),
    ],
)
def test_compiled_check_names_the_malformed_field(operation: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        check_limits(operation)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "operation",
    [
        op.Cancel(MANY, "weil é"),
        op.Cancel(("é",)),
        op.Renew(tuple([(job_id, 2**70) for job_id in MANY])),
        op.ListUsers("Zoë", None, 2),
        op.Tick(),
        op.Pull(op.TALLIES, "1"),
        op.Exchange("w", users=("u", None), steal="*"),
    ],
)
def test_compiled_check_accepts_declared_fields(operation: op.Operation[Any]) -> None:
    check_limits(operation)


def test_spec_is_checked_once_and_its_copies_again() -> None:
    spec = JobSpec(id="a", task="t", claims=(Claim(("x",)),))
    assert not is_checked(spec)
    check_limits(op.Enqueue((spec,)))
    assert is_checked(spec)
    assert is_checked(JobSpec(id="a", task="t").check())
    assert not is_checked(attrs.evolve(spec, id="b"))
    strange = JobSpec(id="a", task="t", policy=attrs.evolve(spec.policy, backoff=MyBackoff())).check()
    assert not is_checked(strange)
    with pytest.raises(InvalidJobTypeError, match=r"^Enqueue\.jobs\.policy\.backoff must be a Backoff, got MyBackoff"):
        check_limits(op.Enqueue((strange,)))


# --- constructors ----------------------------------------------------------------------------------------------------


def test_made_value_takes_fields_in_order_with_defaults() -> None:
    @attrs.frozen(weakref_slot=False)
    class Pair:
        left: int
        right: str = "r"

    make = maker(Pair)
    for _ in range(3):
        assert [make(1), make(1, "s"), make(left=2)] == [Pair(1), Pair(1, "s"), Pair(2)]
    assert type(make(1)) is Pair
    with pytest.raises(TypeError):
        make()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        make(1).left = 2  # type: ignore[misc]


def test_a_new_value_takes_its_fields_as_they_are_given() -> None:
    edge = Dependency(HostileStr("b"), HostileStr("done"), HostileStr("n"))  # type: ignore[arg-type]
    assert [type(each) for each in (edge.id, edge.when, edge.name)] == [str, str, str]
    policy = Policy(on_retry=HostileStr("yield"))  # type: ignore[arg-type]
    assert (type(policy.on_retry), policy.on_retry) == (str, "yield")
    wrongs: list[tuple[Any, str]] = [
        (lambda: Dependency(""), "dependency is empty; it must be 1 to 128 bytes"),
        (lambda: Dependency("a", data=1), "data must be bool, got int: 1"),  # type: ignore[arg-type]
        (lambda: Policy(max_attempts=0), "max_attempts must be from 1 to 1000, got 0"),
        (lambda: Policy(on_dead="x"), "on_dead must be one of continue, hold, cancel_behind, got 'x'"),  # type: ignore[arg-type]
        (lambda: Recurrence(cron="* " * 3000), "cron is 6000 characters, limit 4096: "),
        (lambda: Limit(path=(), most=True), "most must be int, got bool: True"),
    ]
    for make, said in wrongs:
        with pytest.raises(InvalidJobError) as caught:
            make()
        assert str(caught.value).startswith(said)


def test_spec_made_as_checked_is_not_checked_again() -> None:
    make = maker(JobSpec)
    assert is_checked(make("a", "t", is_checked=True))
    assert not is_checked(make("a", "t"))
    check_limits(op.Enqueue((make("a", 5, is_checked=True),)))
    with pytest.raises(InvalidJobTypeError, match=r"^Enqueue\.jobs\.task must be str"):
        check_limits(op.Enqueue((make("a", 5),)))


def test_checked_name_is_cached_and_another_is_checked() -> None:
    """A worker passes the very same names with each exchange."""
    pools = ("default", "mail")
    for worker, release in (("w", "r1"), ("w", "r1"), ("v", "r2")):
        check_limits(op.Exchange(worker, (), pools, users=("u",), steal=("s",), release=release))
        for wrong in (
            {"worker": "é" * 200},
            {"pools": ("",)},
            {"users": ("",)},
            {"steal": ("a\n",)},
            {"release": "a-b"},
        ):
            for _ in range(2):
                with pytest.raises(InvalidJobError):
                    check_limits(op.Exchange(**{"worker": worker, "users": ("u",)} | wrong))  # type: ignore[arg-type]


def test_a_policy_that_no_constructor_has_seen_is_looked_at() -> None:
    policy = Policy()
    object.__setattr__(policy, "max_attempts", 0)
    with pytest.raises(InvalidJobError, match=r"^Enqueue\.jobs\.policy\.max_attempts must be from 1 to 1000, got 0"):
        check_limits(op.Enqueue((JobSpec(id="a", task="t", policy=policy),)))
    edge = Dependency("b", "failure")
    object.__setattr__(edge, "data", True)
    with pytest.raises(InvalidJobError, match=r"^Enqueue\.jobs\.depends_on: dependency 'b'"):
        check_limits(op.Enqueue((JobSpec(id="a", task="t", depends_on=(edge,)),)))
