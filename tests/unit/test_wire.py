"""Operations as bytes and back: each class of them, and bytes that are not an operation."""

from __future__ import annotations

import json
import re
from random import Random
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuehint import errors
from queuehint import operations as op
from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.core.engine import Engine
from queuehint.errors import CorruptStateError, InvalidJobError, InvalidJobTypeError, QueueHintError
from queuehint.operations import wire as journal
from queuehint.operations.wire import (
    OPERATIONS,
    VALUES,
    Begin,
    Extend,
    decode,
    decode_grant,
    encode,
    encode_grant,
    error_facts,
    error_of,
)
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.styles import ALL_AT_ONCE
from queuehint.testing.strategies import policies
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import Grant, Outcome, OutcomeKind, Progress
from queuehint.values.policy import Backoff, Policy, Retention
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import MISSED, Recurrence
from queuehint.values.spec import Dependency, JobSpec, Priority
from tests.each import for_each

# --- values of every class -------------------------------------------------------------------------------------------

texts = st.text(max_size=4) | st.sampled_from(["", "b", "x", "\ud800", "\x00", '"', "Cancel"])
data = st.binary(max_size=6) | st.sampled_from([b"", b"{}", b"\xff", '{"é": "😀"}'.encode()])
ids = st.text("ab", min_size=1, max_size=3)
backoffs = st.builds(
    Backoff,
    base=st.sampled_from([1, 1.5, 60]),
    cap=st.just(100),
    jitter=st.sampled_from([0, 0.5]),
    waits=st.lists(st.sampled_from([0, 1.5]), max_size=2),
)
dependencies = st.builds(Dependency, ids, st.sampled_from(["success", "done"]), st.none() | ids, st.booleans())
numbers = st.none() | st.integers(1, 10**6)
limits = st.builds(
    Limit,
    path=st.none() | st.lists(ids, max_size=3).map(tuple),
    each=st.booleans(),
    most=numbers,
    rate=st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9)),
    max_pending=numbers,
)
recurrences = st.builds(
    Recurrence,
    cron=st.none() | texts.filter(str.isprintable),
    every_ms=numbers,
    timezone=texts.filter(str.isprintable),
    missed=st.sampled_from(MISSED),
    start_ms=numbers,
    end_ms=numbers,
)
_CHECKED: dict[Any, st.SearchStrategy[Any]] = {
    Policy: policies(),
    Backoff: backoffs,
    Dependency: dependencies,
    Limit: limits,
    Recurrence: recurrences,
    str: texts,
    bytes: data,
    int: st.integers(),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    type(None): st.none(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, every field of a class given."""
    if kind in _CHECKED:
        return _CHECKED[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in {Union, UnionType}:
        return st.one_of([values_of(each) for each in arguments])
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*[values_of(each) for each in arguments])
    if attrs.has(kind):
        hints = get_type_hints(kind)
        fields = {field.name: values_of(hints[field.name]) for field in attrs.fields(kind) if field.init}
        made = st.builds(kind, **fields)
        return (
            st.builds(kind) | made if all(field.default is not attrs.NOTHING for field in attrs.fields(kind)) else made
        )
    return st.from_type(kind)


def classes_in(kind: Any) -> set[type[Any]]:
    """Our classes that the fields of a class may hold."""
    if attrs.has(kind):
        hints = get_type_hints(kind)
        return {kind}.union(*[classes_in(hints[field.name]) for field in attrs.fields(kind)])
    return set().union(*[classes_in(each) for each in get_args(kind)])


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if attrs.has(type(left)):
        return all(same(getattr(left, field.name), getattr(right, field.name)) for field in attrs.fields(type(left)))
    return bool(left == right)


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_every_operation_comes_back_as_it_was(kind: type[Any]) -> None:
    @settings(max_examples=25)
    @given(values_of(kind))
    def comes_back(operation: op.Operation[Any]) -> None:
        data = encode(operation)
        assert data.isascii()
        assert same(decode(data), operation)

    comes_back()


def test_no_class_is_forgotten() -> None:
    known = {each for each in vars(op).values() if isinstance(each, type) and issubclass(each, op.Operation)}
    assert set(OPERATIONS) == known - {op.Operation}
    assert set(op.Operation.__subclasses__()) >= set(OPERATIONS)
    held = set().union(*[classes_in(kind) for kind in OPERATIONS]) - set(OPERATIONS)
    assert held == set(VALUES)


def test_store_only_values_round_trip() -> None:
    extend = Extend((("a", 1), ("b", 2**60)), 30_000)
    retention = Retention(finished=0.001, failed=7, service=86_400.5, services={"s": 0, "t": 12.345})
    begin = Begin.of(retention, epoch_s=5, budget=7, release="1.2")
    assert (decode(encode(extend)), decode(encode(begin))) == (extend, begin)
    kept = begin.kept()
    assert kept is not None
    assert Begin.of(kept, epoch_s=5, budget=7, release="1.2") == begin
    silent = Begin.of(None, epoch_s=5, budget=7, release="1.2")
    assert decode(encode(silent)).kept() is None  # type: ignore[attr-defined]
    assert (kept.finished_ms, kept.services_ms) == (1, {"s": 0, "t": 12_345})


@pytest.mark.parametrize("retention", [Retention(), Retention.audit(), Retention(services={"s": 5})])
def test_retention_by_state_and_of_services_is_read_back(retention: Retention) -> None:
    begin = Begin.of(retention, epoch_s=None, budget=1, release="")
    assert decode(encode(begin)).kept().in_ms() == retention.in_ms()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ms", [1, 999, 86_399_999, 315_359_999_999])
def test_a_retention_of_any_length_is_kept_to_the_ms(ms: int) -> None:
    retention = Retention(finished=ms / 1000)
    kept = Begin.of(retention, epoch_s=None, budget=1, release="").kept()
    assert kept is not None
    assert kept.in_ms() == retention.in_ms()
    assert kept.finished_ms == ms


def test_default_fields_are_omitted() -> None:
    assert encode(op.Enqueue((JobSpec(id="a", task="t"),))) == (
        b'{"":"Enqueue","jobs":[{"":"JobSpec","id":"a","task":"t"}]}'
    )


def test_journal_part_without_further_facts_is_the_first() -> None:
    further = op.Enqueue((), staged="s", is_further=True)
    assert encode(further) == b'{"":"Enqueue","jobs":[],"staged":"s","is_further":true}'
    assert decode(encode(further)) == further
    assert decode(b'{"":"Enqueue","jobs":[],"staged":"s"}') == op.Enqueue((), staged="s", is_further=False)


def test_equal_values_of_other_types_stay_distinct() -> None:
    assert decode(encode(op.Post((op.Note("a", True),)))).notes[0].token is True  # type: ignore[attr-defined]
    spec = JobSpec(id="a", task="t", templates=0, priority=Priority.NORMAL)  # type: ignore[arg-type]
    back = decode(encode(op.Enqueue((spec,)))).jobs[0]  # type: ignore[attr-defined]
    assert (type(back.templates), back.priority) == (int, 3)


# --- bytes that are not an operation ---------------------------------------------------------------------------------


def test_foreign_object_is_refused() -> None:
    with pytest.raises(InvalidJobTypeError, match="an operation holds a object"):
        encode(op.Post((op.Note("a", object(), progress=Progress()),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "operation, said",
    [
        (op.Push("s", {"a": 1}, b"", 1), "an operation holds a dict: {'a': 1}"),  # type: ignore[arg-type]
        (op.Cancel(({},)), "an operation holds a dict: {}"),  # type: ignore[arg-type]
        (op.Pause(RecordFilter(path=[("a", {"": "Claim"})])), "an operation holds a dict"),  # type: ignore[arg-type]
        (op.Exchange("w", (Outcome(job_id="a", token=1, kind="done"),)), "'done' is not a valid OutcomeKind"),  # type: ignore[arg-type]
        (op.Post((op.Note("a", 10**5000, ("x",)),)), "cannot be written down: Exceeds the limit"),
    ],
)  # fmt: skip
def test_unreadable_operation_is_refused(operation: op.Operation[Any], said: str) -> None:
    with pytest.raises(InvalidJobError, match=re.escape(said)):
        encode(operation)


@for_each(
    "text",
    [
        "", "{}", "[]", "1", '{"":"Nobody"}', '{"a":1}', '{"":"Cancel"}', '{"":"Cancel","ids":[],"more":1}', '{"":"b"}',
        '{"":"x","x":"?"}', '{"":"JobSpec","id":"a","task":"t"}', '{"":["Cancel"]}', "é", "[" * 100_000,
        '{"":"Exchange","worker":"w","settle":[{"":"Outcome","job_id":"a","token":1,"kind":"done"}]}',
        '{"":"Enqueue","jobs":[{"":"JobSpec","id":"a","task":"t","is_checked":true}]}',
    ],
)  # fmt: skip
def test_malformed_operation_is_reported_as_damage(text: str) -> None:
    with pytest.raises(CorruptStateError, match="the journal holds an entry that is not an operation"):
        decode(text.encode())


@given(st.randoms(use_true_random=False))
def test_changed_bytes_are_an_operation_or_said_to_be_damaged(random: Random) -> None:
    whole = encode(op.Cancel(("a", "b"), "c"))
    at = random.randrange(len(whole))
    try:
        assert isinstance(decode(whole[:at] + bytes([random.randrange(256)]) + whole[at + 1 :]), op.Operation)
    except CorruptStateError:
        pass


# --- questions ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("kind", [each for each in OPERATIONS if each.is_question], ids=lambda kind: kind.__name__)
def test_a_question_changes_nothing(kind: type[Any]) -> None:
    random = Random(5)
    engine = Engine()
    generator = OperationGenerator(engine, random, ALL_AT_ONCE)
    for _ in range(120):
        try:
            engine.apply(generator.move(), generator.pass_time(engine.now_ms))
        except QueueHintError:
            pass
    # Questions only fill caches, which a snapshot leaves out or orders differently.
    list(engine.table.past.entries(()))
    before = list(freeze(engine))

    @settings(max_examples=25)
    @given(values_of(kind))
    def changes_nothing(question: op.Operation[Any]) -> None:
        try:
            engine.apply(question, engine.now_ms)
        except QueueHintError:
            pass
        engine.table.ended.extend(before_ended)
        assert list(freeze(engine)) == before

    before_ended = list(engine.table.ended)
    changes_nothing()


def test_to_follow_does_change_something() -> None:
    engine = Engine()
    before = list(freeze(engine))
    engine.apply(op.Follow(), 0)
    assert list(freeze(engine)) != before


def test_outcomes_have_their_kinds() -> None:
    outcome = Outcome(job_id="a", token=1, kind=OutcomeKind.LOST)
    back: Any = decode(encode(op.Exchange("w", (outcome,))))
    assert back.settle[0].kind is OutcomeKind.LOST


def test_a_claim_on_a_long_path_is_in_no_cache() -> None:
    for segment, kept in (("x" * 200, 0), ("x", 1)):
        journal._kept_claim.cache_clear()
        claim = Claim((segment, segment, segment), "shared")
        spec = JobSpec(id="a", task="t", claims=(claim, Claim(())))
        read: Any = decode(encode(op.Enqueue((spec,))))
        assert read.jobs == (spec,)
        assert journal._kept_claim.cache_info().currsize == kept + 1


# --- grants and errors -----------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(values_of(Grant))
def test_grant_omits_fields_known_to_its_process(grant: Grant) -> None:
    spec = attrs.evolve(grant.spec, arguments=b"{}", identity=(), templates=False, depends_on=())
    assert same(decode_grant(encode_grant(grant)), attrs.evolve(grant, spec=spec))


ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, QueueHintError)]
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
facts = st.dictionaries(
    st.sampled_from(["job_id", "enqueued_ids", "limit"]),
    st.recursive(plain, lambda items: st.lists(items, max_size=3).map(tuple), max_leaves=6),
)


@given(st.sampled_from(ERRORS), st.lists(texts, min_size=1, max_size=2).map(tuple), facts)
def test_errors_come_back_with_their_facts(
    kind: type[QueueHintError], arguments: tuple[str, ...], said: dict[str, Any]
) -> None:
    error = kind.__new__(kind)
    error.args = arguments
    vars(error).update(said)
    found = error_of(json.loads(json.dumps(error_facts(error))))
    assert (type(found), found.args, str(found)) == (kind, arguments, str(error))
    assert set(vars(found)) == set(said)
    assert all(same(vars(found)[name], value) for name, value in said.items())


def test_application_error_is_returned_as_ours_with_plain_fields() -> None:
    class OwnError(errors.JobNotFoundError):
        pass

    error = OwnError("a")
    vars(error).update(objects=(object(),), number=3)
    found = error_of(json.loads(json.dumps(error_facts(error))))
    assert (type(found), str(found)) == (errors.JobNotFoundError, str(error))
    assert vars(found) == {"job_id": "a", "number": 3}


@pytest.mark.parametrize("name", ["SystemExit", "QueueHintWarning", "os.system", "Any", ""])
def test_foreign_error_class_is_never_created(name: str) -> None:
    with pytest.raises(KeyError):
        error_of([name, [], {}])
