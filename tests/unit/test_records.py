"""Public values: the options of a job, and the texts of records and reasons."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest

from queuehint.errors import CycleError, InvalidHintError, InvalidJobError, InvalidJobTypeError, PayloadError
from queuehint.schema.checks import RUN_AT_MAX_MS, check_payload_size
from queuehint.testing.driver import SHARED, Queue, claim, job
from queuehint.values.hint import Claim
from queuehint.values.policy import Backoff, Policy
from queuehint.values.record import JobState, log_lines
from queuehint.values.report import Reason, ReasonKind
from queuehint.values.spec import PAYLOAD_BYTES_MAX, Dependency, JobSpec, Priority, check_dependencies, check_priority
from tests.each import for_each
from tests.support import HostileStr

NAN, INFINITE = float("nan"), float("inf")


# --- priority --------------------------------------------------------------------------------------------------------


def test_priority_is_a_level_from_1_to_5_or_critical() -> None:
    assert [check_priority(level) for level in range(1, 6)] == [1, 2, 3, 4, 5]
    assert [check_priority(level) for level in Priority] == [1, 2, 3, 4, 5, 9]
    assert type(check_priority(Priority.CRITICAL)) is int


@pytest.mark.parametrize("value", [0, 6, -1, 9, 10**9, pytest.param(10**5000, id="5000 digits")])
def test_another_number_is_no_priority(value: int) -> None:
    with pytest.raises(InvalidJobError, match=r"^priority must be 1 to 5 or Priority\.CRITICAL, got "):
        check_priority(value)


@pytest.mark.parametrize("value", [NAN, 1.5, 3.0, "high", "3", True, None, Decimal(3)])
def test_a_priority_of_another_type_is_a_type_error(value: object) -> None:
    with pytest.raises(InvalidJobTypeError, match=f"^priority must be int, got {type(value).__name__}: "):
        check_priority(value)


# --- back-off --------------------------------------------------------------------------------------------------------


def test_a_back_off_takes_seconds_or_timedeltas() -> None:
    backoff = Backoff(base=timedelta(milliseconds=500), factor=3, cap=timedelta(minutes=1), jitter=0)
    assert (backoff.base_ms, backoff.cap_ms) == (500, 60_000)
    assert backoff == Backoff(base=0.5, factor=3.0, cap=60, jitter=0.0)
    assert repr(backoff) == "Backoff(base=0.5, factor=3.0, cap=60.0, jitter=0.0)"


@for_each(
    "fields, text",
    [
        ({"base": 0}, "base must be from 0.001 s to 10 years, got 0"),
        ({"base": -1}, "base must be from 0.001 s to 10 years, got -1"),
        ({"base": NAN}, "base must be finite"),
        ({"base": 10**30}, "base must be from 0.001 s to 10 years"),
        ({"cap": INFINITE}, "cap must be finite"),
        ({"base": 10, "cap": 5}, "cap must be at least base, got cap=5.0 and base=10.0"),
        ({"base": 31}, "cap must be at least base, got cap=30.0 and base=31.0"),
        ({"factor": -1}, "factor must be from 1 to 100, got -1"),
        ({"factor": 0.5}, "factor must be from 1 to 100, got 0.5"),
        ({"factor": 101}, "factor must be from 1 to 100, got 101"),
        ({"factor": NAN}, "factor must be from 1 to 100, got nan"),
        ({"jitter": 2}, "jitter must be from 0 to 1, got 2"),
        ({"jitter": -0.1}, "jitter must be from 0 to 1, got -0.1"),
    ],
)
def test_a_back_off_out_of_range_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJobError, match=f"^{text}"):
        Backoff(**fields)


@for_each("field", ["base", "factor", "cap", "jitter"])
@for_each("value", [True, "1", None, Decimal(1)])
def test_a_back_off_of_another_type_is_a_type_error(field: str, value: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match=f"^{field} must be "):
        Backoff(**{field: value})


# --- policy ----------------------------------------------------------------------------------------------------------


def test_a_policy_is_made_from_seconds_and_words() -> None:
    assert Policy.checked() == Policy()
    assert Policy.checked(
        max_attempts=1000,
        max_losses=1,
        backoff=Backoff(base=2),
        timeout=1.5,
        on_retry="yield",
        on_dead="hold",
        on_dependency_failure="run",
        max_hold=timedelta(minutes=1),
        start_within=60,
        retention=0,
        key_for=5,
    ) == Policy(
        max_attempts=1000,
        max_losses=1,
        backoff=Backoff(base=2),
        timeout_ms=1500,
        on_retry="yield",
        on_dead="hold",
        on_dependency_failure="run",
        max_hold_ms=60_000,
        start_within_ms=60_000,
        retention_ms=0,
        key_for_ms=5000,
    )


DEBOUNCED: dict[str, Any] = {"key": "k", "on_conflict": "replace", "delay_ms": 5}


def test_delay_counts_from_its_time_unless_replacements_postpone_it() -> None:
    due = JobSpec(id="a", task="t", delay_ms=5).at(100)
    assert (due.run_at_ms, due.delay_ms) == (105, None)
    for spec in (
        JobSpec(id="a", task="t"),
        JobSpec(id="a", task="t", delay_ms=0),
        JobSpec(id="a", task="t", run_at_ms=7),
        JobSpec(id="a", task="t", **DEBOUNCED, max_delay_ms=9),
    ):
        assert spec.at(100) is spec


@for_each(
    "fields, error, text",
    [
        ({"max_attempts": 0}, InvalidJobError, "max_attempts must be from 1 to 1000, got 0"),
        ({"max_attempts": -1}, InvalidJobError, "max_attempts must be from 1 to 1000, got -1"),
        ({"max_attempts": 2**40}, InvalidJobError, "max_attempts must be from 1 to 1000, got 1099511627776"),
        ({"max_attempts": None}, InvalidJobTypeError, "max_attempts must be int, got NoneType"),
        ({"max_attempts": True}, InvalidJobTypeError, "max_attempts must be int, got bool"),
        ({"max_losses": 1001}, InvalidJobError, "max_losses must be from 1 to 1000"),
        ({"backoff": 3}, InvalidJobTypeError, "backoff must be a Backoff or a list of waits, got int: 3"),
        ({"backoff": {"base": 1}}, InvalidJobTypeError, "backoff must be a Backoff or a list of waits, got dict"),
        ({"timeout": 0}, InvalidJobError, "timeout must be from 0.001 s to 10 years, got 0"),
        ({"timeout": "5"}, InvalidJobTypeError, "timeout must be a timedelta or a number of seconds"),
        ({"on_retry": "keep"}, InvalidJobError, "on_retry must be one of hold, yield, got 'keep'"),
        ({"on_dead": True}, InvalidJobTypeError, "on_dead must be one of continue, hold, cancel_behind, got bool"),
        ({"on_dependency_failure": ""}, InvalidJobError, "on_dependency_failure must be one of wait, cancel, run"),
        ({"max_hold": None}, InvalidJobTypeError, "max_hold must be a timedelta"),
        ({"max_hold": -1}, InvalidJobError, "max_hold must be from 0 s to 10 years, got -1"),
        ({"start_within": 0}, InvalidJobError, "start_within must be from 0.001 s"),
        ({"key_for": 0}, InvalidJobError, "key_for must be from 0.001 s to 10 years, got 0"),
        ({"key_for": "1"}, InvalidJobTypeError, "key_for must be a timedelta or a number of seconds, got str"),
        ({"retention": -1}, InvalidJobError, "retention must be from 0 s to 10 years"),
        ({"retention": timedelta.max}, InvalidJobError, "retention must be from 0 s to 10 years"),
    ],
)
def test_a_policy_out_of_range_is_refused(fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        Policy.checked(**fields)


@for_each(
    "fields, text",
    [
        ({"max_attempts": 0}, "max_attempts must be from 1 to 1000"),
        ({"max_losses": True}, "max_losses must be int, got bool"),
        ({"backoff": 5}, "backoff must be a Backoff, got int: 5"),
        ({"timeout_ms": 0}, "timeout_ms must be from 1 to "),
        ({"timeout_ms": 1.5}, "timeout_ms must be int, got float: 1.5"),
        ({"on_retry": "keep"}, "on_retry must be one of hold, yield, got 'keep'"),
        ({"on_dead": None}, "on_dead must be one of continue, hold, cancel_behind"),
        ({"on_dependency_failure": "no"}, "on_dependency_failure must be one of wait, cancel, run"),
        ({"max_hold_ms": -1}, "max_hold_ms must be from 0 to "),
        ({"max_hold_ms": None}, "max_hold_ms must be int, got NoneType"),
        ({"start_within_ms": 0}, "start_within_ms must be from 1 to "),
        ({"key_for_ms": 0}, "key_for_ms must be from 1 to "),
        ({"retention_ms": -1}, "retention_ms must be from 0 to "),
    ],
)
def test_policy_made_by_hand_obeys_the_same_limits(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJobError, match=f"^{text}"):
        Policy(**fields)


def test_a_policy_s_words_are_plain_strings() -> None:
    word: Any = HostileStr("yield")
    assert type(Policy(on_retry=word).on_retry) is str


# --- specs -----------------------------------------------------------------------------------------------------------


def test_a_valid_spec_is_returned_as_it_is() -> None:
    spec = job("a", ["doc1", "intro"], user="ann", service="import", key="k", delay_ms=5)
    assert spec.check() is spec
    assert JobSpec(id="a", task="t").check() == JobSpec(id="a", task="t")


def test_a_checked_spec_has_normal_claims() -> None:
    spec = JobSpec(id="a", task="t", claims=(claim("a", "b"), claim("a", mode=SHARED)))
    assert spec.check().claims == (claim("a"),)


def test_a_checked_spec_holds_plain_values_whatever_was_passed() -> None:
    word: Any = HostileStr
    spec = JobSpec(
        id=word("a"),
        task=word("t"),
        claims=(Claim((word("p"),), word("shared")),),
        priority=Priority.CRITICAL,
        pool=word("pool"),
        user=word("ann"),
        service=word("s"),
        key=word("k"),
        on_conflict=word("reject"),
    ).check()
    values = [spec.id, spec.task, spec.pool, spec.user, spec.service, spec.key, spec.on_conflict]
    values += [spec.claims[0].path[0], spec.claims[0].mode]
    assert [type(value) for value in values] == [str] * 9
    assert values == ["a", "t", "pool", "ann", "s", "k", "reject", "p", "shared"]
    assert type(spec.priority) is int and spec.priority == 9


def test_claims_in_a_list_are_copied() -> None:
    claims: Any = [Claim(("a",))]
    spec = JobSpec(id="a", task="t", claims=claims).check()
    claims.append(Claim(("b",)))
    path: Any = ["b"]
    assert spec.claims == (Claim(("a",)),)
    assert JobSpec(id="a", task="t", claims=(Claim(path),)).check().claims == (Claim(("b",)),)


@for_each(
    "fields, error, text",
    [
        ({"id": ""}, InvalidJobError, "id is empty"),
        ({"id": 1}, InvalidJobTypeError, "id must be str, got int: 1"),
        ({"task": "a\nb"}, InvalidJobError, "task holds a control character"),
        ({"claims": None}, InvalidHintError, "claims must be a list of claims, got NoneType"),
        ({"claims": (Claim(("",)),)}, InvalidHintError, r"claims\[0\] segment 0 is empty"),
        ({"arguments": "{}"}, InvalidJobTypeError, "arguments must be bytes, got str"),
        ({"arguments": bytearray(b"{}")}, InvalidJobTypeError, "arguments must be bytes, got bytearray"),
        (
            {"arguments": b"x" * (PAYLOAD_BYTES_MAX + 1)},
            PayloadError,
            r"\$: arguments take 1048577 bytes, limit 1048576",
        ),
        ({"priority": 6}, InvalidJobError, "priority must be 1 to 5"),
        ({"priority": 9.0}, InvalidJobTypeError, "priority must be int, got float: 9.0"),
        ({"priority": True}, InvalidJobTypeError, "priority must be int, got bool"),
        ({"pool": ""}, InvalidJobError, "pool is empty"),
        ({"user": ""}, InvalidJobError, "user is empty"),
        ({"service": 5}, InvalidJobTypeError, "service must be str, got int: 5"),
        ({"key": "x" * 257}, InvalidJobError, "key is 257 bytes, limit 256"),
        ({"on_conflict": "merge"}, InvalidJobError, "on_conflict must be one of return, replace, after, reject"),
        ({"delay_ms": -1}, InvalidJobError, "delay_ms must be from 0 to "),
        ({"delay_ms": 1.5}, InvalidJobTypeError, "delay_ms must be int, got float"),
        ({"delay_ms": 10**30}, InvalidJobError, "delay_ms must be from 0 to "),
        ({**DEBOUNCED, "max_delay_ms": -1}, InvalidJobError, "max_delay_ms must be from 0 to "),
        ({**DEBOUNCED, "max_delay_ms": 5.0}, InvalidJobTypeError, "max_delay_ms must be int, got float"),
        (
            {**DEBOUNCED, "max_delay_ms": 4},
            InvalidJobError,
            "max_delay_ms must be at least delay_ms, which is 5 ms, got 4",
        ),
        ({**DEBOUNCED, "max_delay_ms": 5, "key": None}, InvalidJobError, "max_delay_ms is 5 ms and .*: give key, "),
        (
            {**DEBOUNCED, "max_delay_ms": 5, "on_conflict": "return"},
            InvalidJobError,
            "max_delay_ms is 5 ms and .*: give",
        ),
        ({**DEBOUNCED, "max_delay_ms": 5, "delay_ms": None}, InvalidJobError, "max_delay_ms is 5 ms .* delay_ms too"),
        ({"presence_ms": -1}, InvalidJobError, "presence_ms must be from 0 to "),
        ({"run_at_ms": True}, InvalidJobTypeError, "run_at_ms must be int, got bool"),
        ({"run_at_ms": RUN_AT_MAX_MS + 1}, InvalidJobError, "run_at_ms must be from "),
        ({"run_at_ms": 1, "delay_ms": 1}, InvalidJobTypeError, "give delay_ms or run_at_ms, not both"),
        ({"presence_ms": 1, "delay_ms": 1}, InvalidJobError, "presence_ms: .* delay_ms must be None"),
        ({"presence_ms": 1, "run_at_ms": 1}, InvalidJobError, "presence_ms: .* run_at_ms must be None"),
        ({"presence_ms": 1, "key": "k"}, InvalidJobError, "presence_ms: .* key must be None"),
        ({"name": "a b"}, InvalidJobError, "name holds white space"),
        ({"flow": ""}, InvalidJobError, "flow is empty"),
        ({"parent": 7}, InvalidJobTypeError, "parent must be str, got int: 7"),
        (
            {"depends_on": "b"},
            InvalidJobTypeError,
            "depends_on must be a list of ids or Dependency values, got str: 'b'",
        ),
        ({"depends_on": ("b", 1)}, InvalidJobTypeError, "depends_on must be str, got int: 1"),
        ({"depends_on": ("b", "")}, InvalidJobError, "depends_on is empty"),
        ({"depends_on": ("a",)}, CycleError, "a → a"),
        ({"depends_on": ("step",), "name": "step"}, CycleError, "step → step"),
        ({"depends_on": ("b",), "presence_ms": 1}, InvalidJobError, "presence_ms: .* depends_on must be empty"),
        ({"depends_on": ("b",), "key": "k", "on_conflict": "replace"}, InvalidJobError, 'on_conflict="replace" gives'),
        ({"templates": "/a"}, InvalidJobTypeError, "templates must be bool or a list of JSON pointers, got str: '/a'"),
        ({"templates": (1,)}, InvalidJobTypeError, "templates must be bool or a list of JSON pointers, got tuple"),
        ({"templates": ("a",)}, InvalidJobError, "templates: 'a' is not a JSON pointer, it must begin with /"),
        ({"templates": ("/a",) * 1001}, InvalidJobError, "templates names 1001 strings, limit 1000"),
        ({"policy": {"max_attempts": 1}}, InvalidJobTypeError, "policy must be a Policy, got dict: "),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        JobSpec(**{"id": "a", "task": "t", **fields}).check()


@for_each(
    "fields",
    [
        {"arguments": b"x" * PAYLOAD_BYTES_MAX},
        {"priority": 9},
        {"run_at_ms": -62_135_596_800_000},
        {"run_at_ms": RUN_AT_MAX_MS},
        {"delay_ms": 0},
        {**DEBOUNCED, "max_delay_ms": 5},
        {"presence_ms": 30_000},
        {"id": "{x}", "pool": "*", "user": "a:user:b", "key": "\\"},
        {
            "depends_on": tuple(Dependency(str(number)) for number in range(1000)),
            "name": "x",
            "flow": "f",
            "parent": "p",
        },
        {"depends_on": (Dependency("b"),), "key": "k", "on_conflict": "after", "delay_ms": 1},
        {"templates": True},
        {"templates": ("/a",) * 1000},
    ],
)
def test_the_ends_of_the_ranges_are_valid(fields: dict[str, Any]) -> None:
    spec = JobSpec(**{"id": "a", "task": "t", **fields})
    assert spec.check() is spec


# --- dependencies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, error, text",
    [
        ({"id": ""}, InvalidJobError, "dependency is empty"),
        ({"id": 7}, InvalidJobTypeError, "dependency must be str, got int: 7"),
        ({"when": "always"}, InvalidJobError, "when must be one of success, failure, done, must, got 'always'"),
        ({"name": "a b"}, InvalidJobError, "name holds white space"),
        ({"data": 1}, InvalidJobTypeError, "data must be bool, got int: 1"),
        (
            {"data": True, "when": "failure"},
            InvalidJobError,
            "dependency 'a': a job that FAILED has no result to be named",
        ),
    ],
)
def test_a_wrong_dependency_is_refused_by_name(fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        Dependency(**{"id": "a", **fields})


def test_a_dependency_holds_plain_values_whatever_was_passed() -> None:
    edge = Dependency(HostileStr("a"), when=HostileStr("done"), name=HostileStr("n"))  # type: ignore[arg-type]
    assert [type(value) for value in (edge.id, edge.when, edge.name)] == [str, str, str]
    assert (edge.id, edge.when, edge.name) == ("a", "done", "n")


@pytest.mark.parametrize(
    "value, ids",
    [
        (None, []),
        ((), []),
        (["b", "a"], ["b", "a"]),
        (("b", Dependency("a", when="done"), "b"), ["b", "a"]),
        ({"b", "a", "c"}, ["a", "b", "c"]),
        (frozenset(["b", "a"]), ["a", "b"]),
    ],
)
def test_dependencies_come_in_any_collection_each_once(value: Any, ids: list[str]) -> None:
    assert [edge.id for edge in check_dependencies(value)] == ids


def test_dependency_named_twice_merges_its_conditions() -> None:
    edges = [Dependency("a"), Dependency("a", name="n"), Dependency("a", data=True), "a"]
    assert check_dependencies(edges) == (Dependency("a", name="n", data=True),)


@pytest.mark.parametrize("other", [Dependency("a", when="done"), Dependency("a", name="other")])
def test_a_dependency_cannot_have_two_conditions_or_two_names(other: Dependency) -> None:
    with pytest.raises(InvalidJobError, match=r"^depends_on names 'a' twice, with other conditions or names"):
        check_dependencies([Dependency("a", name="n"), other])


@pytest.mark.parametrize("value", ["a", b"a", 7, {"a": 1}, Dependency("a"), object()])
def test_something_else_is_no_list_of_dependencies(value: object) -> None:
    with pytest.raises(InvalidJobTypeError, match=r"^depends_on must be a list of ids or Dependency values, got "):
        check_dependencies(value)


def test_a_job_depends_on_so_many_others_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.values.spec.DEPENDENCIES_MAX", 10)
    ids = [str(number) for number in range(11)]
    assert len(check_dependencies(ids[:10])) == 10
    with pytest.raises(InvalidJobError, match=r"^depends_on names 11 jobs, limit 10; let jobs in between"):
        check_dependencies(ids)


def test_a_checked_spec_has_dependency_values_each_once() -> None:
    spec = JobSpec(id="a", task="t", depends_on=["b", "c", "b"], templates=["/x"])  # type: ignore[arg-type]
    checked = spec.check()
    assert checked.depends_on == (Dependency("b"), Dependency("c"))
    assert checked.templates == ("/x",)
    assert checked.check() is checked
    assert JobSpec(id="a", task="t", depends_on=None, templates=[]).check() == JobSpec(id="a", task="t")  # type: ignore[arg-type]


# --- all of a job ----------------------------------------------------------------------------------------------------


def test_differing_fields_are_named_and_their_values_are_not() -> None:
    one, other = job("a", ["x"], arguments=b'"secret"'), job("a", ["y"], priority=5)
    assert one.differing_fields(other) == ["claims", "arguments", "priority"]
    assert one.differing_fields(one) == []


def test_a_payload_is_bytes_within_a_limit() -> None:
    check_payload_size(b"12345", parameter="result", bytes_max=5)
    with pytest.raises(PayloadError, match="result take 6 bytes, limit 5"):
        check_payload_size(b"123456", parameter="result", bytes_max=5)


# --- states and records ----------------------------------------------------------------------------------------------


def test_three_states_are_over() -> None:
    assert [state for state in JobState if state.is_over] == [JobState.FINISHED, JobState.FAILED, JobState.CANCELED]


def test_a_record_shows_its_path_keys_and_times() -> None:
    queue = Queue(job("a", ["doc1", "a:b"]), now_ms=1_600_000_000_001)
    record = queue.record("a")
    assert record.path == ("doc1", "a:b")
    assert record.queue_keys == ("doc1:a\\:b",)
    assert record.enqueued_at == datetime(2020, 9, 13, 12, 26, 40, 1000, tzinfo=UTC)
    assert (record.due_at, record.started_at, record.ended_at) == (None, None, None)
    queue.start()
    queue.now_ms += 5
    queue.finish("a")
    record = queue.record("a")
    assert record.started_at == datetime(2020, 9, 13, 12, 26, 40, 1000, tzinfo=UTC)
    assert record.ended_at == datetime(2020, 9, 13, 12, 26, 40, 6000, tzinfo=UTC)


def test_a_record_without_one_claim_has_no_path() -> None:
    queue = Queue(job("a"), job("b", claims=(claim("x"), claim("y"))), job("c", delay_ms=1000), now_ms=0)
    assert [queue.record(letter).path for letter in "ab"] == [None, None]
    assert queue.record("b").queue_keys == ("x", "y")
    assert queue.record("c").due_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_the_last_due_time_there_is_can_be_shown() -> None:
    queue = Queue(job("a", run_at_ms=RUN_AT_MAX_MS))
    assert queue.record("a").due_at == datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    assert str(queue.why("a")) == "a is SCHEDULED: waits for its time until 9999-12-31T23:59:59.999+00:00"


def test_a_record_is_a_copy_that_nothing_changes_later() -> None:
    queue = Queue(job("a", ["x"]))
    before = queue.record("a")
    copy = attrs.evolve(before)
    queue.run()
    assert before == copy
    assert queue.record("a").version > before.version


@for_each("kind", ReasonKind)
def test_every_kind_of_reason_reads_as_a_sentence(kind: ReasonKind) -> None:
    assert str(Reason(job_id="a", state=JobState.QUEUED, kind=kind)).startswith("a is QUEUED: ")


def test_a_reason_names_jobs_place_time_and_detail() -> None:
    reason = Reason(
        job_id="a",
        state=JobState.QUEUED,
        kind=ReasonKind.PLACE,
        jobs=("b", "c"),
        path_key="doc1",
        until_ms=0,
        detail="why not",
    )
    assert (
        str(reason) == "a is QUEUED: waits for the place of b, c at doc1 until 1970-01-01T00:00:00.000+00:00 (why not)"
    )


def test_unfinished_jobs_are_counted_from_the_states() -> None:
    queue = Queue(job("a"), job("b"), job("c", delay_ms=10))
    assert queue.stats().unfinished == 3
    queue.run()
    assert queue.stats().unfinished == 1


def test_the_jobs_of_a_flow_are_counted_from_the_states() -> None:
    queue = Queue(job("a", flow="f"), job("b", flow="f", delay_ms=10), job("c"))
    queue.run()
    assert (queue.flow("f").total, queue.flow("f").unfinished) == (2, 1)


@pytest.mark.parametrize(
    "text, lines",
    [
        ("", [""]),
        ("one", ["one"]),
        ("one\ntwo\r\n\nthree\n", ["one", "two", "", "three"]),
        ("a\u2028b", ["a", "b"]),
        ("\x1b[31mred\x00", ["\x1b[31mred\x00"]),
        ("x" * 5000, ["x" * 4096]),
        ("é" * 3000, ["é" * 2048]),
        ("x" + "é" * 3000, ["x" + "é" * 2047]),
        ("\ud800" * 5000, ["\\ud800" * 682 + "\\ud8"]),
    ],
)
def test_a_text_is_cut_into_lines_of_4096_bytes(text: str, lines: list[str]) -> None:
    assert log_lines(text) == lines
    assert all(len(line.encode()) <= 4096 for line in lines)


def test_a_line_of_fifty_megabytes_is_never_encoded_whole() -> None:
    tracemalloc.start()
    text = "é" * 25_000_000
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert log_lines(text) == ["é" * 2048]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The line itself is taken out of the text; nothing else of its size is made.
    assert peak - held < 1.2 * len(text)
