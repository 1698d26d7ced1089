"""The codec of the Redis backend: round trips, and errors for damaged data."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.codec import codec, replies, requests
from queuehint.backends.redis.scripts import STATES
from queuehint.clock import FakeClock
from queuehint.core.engine import Engine
from queuehint.errors import (
    BackendError,
    CorruptStateError,
    DuplicateJobError,
    InvalidJobError,
    JobNotFoundError,
    PathClosedError,
    PayloadError,
)
from queuehint.values.hint import Claim
from queuehint.values.outcome import JobError, Outcome, OutcomeKind, Progress
from queuehint.values.policy import Policy, Retention
from queuehint.values.record import JobState
from queuehint.values.record_filter import DEAD_RECORDS, RecordFilter
from queuehint.values.spec import ON_CONFLICT, JobSpec
from tests.each import for_each
from tests.servers import Server
from tests.support import thorough


def test_retention_of_single_services_is_sent_in_lines() -> None:
    assert codec.kept_args(Retention(finished=1, failed=2, canceled=3, service=4)) == [1000, 2000, 3000, "4000"]
    of_services = Retention(service=4, services={"docs": 5, "a b": 0})
    assert codec.retention_text(of_services) == "86400000 604800000 86400000 4000\na b\n0\ndocs\n5000"
    assert codec.kept_args(of_services)[3] == "4000\ndocs\n5000\na b\n0"
    assert codec.kept_args(Retention(services={"docs": 5}))[3] == "-\ndocs\n5000"
    for retention in (of_services, Retention(), Retention(services={"docs": 5}), Retention.audit()):
        assert codec.parse_retention(codec.retention_text(retention)).in_ms() == retention.in_ms()


words = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8)

# --- requests --------------------------------------------------------------------------------------------------------


def too_much() -> Iterator[op.Operation[Any]]:
    many = tuple(str(number) for number in range(op.IDS_MAX + 1))
    spec = JobSpec(id="a", task="t")
    yield op.Enqueue(tuple(attrs.evolve(spec, id=str(number)) for number in range(op.JOBS_PER_SUBMISSION_MAX + 1)))
    yield op.Enqueue((spec, spec))
    claims = [tuple(Claim((f"{job}-{n}", *"d" * 63)) for n in range(50)) for job in range(5)]
    yield op.Enqueue(tuple(attrs.evolve(spec, id=str(job), claims=claims[job]) for job in range(5)))
    for operation in (op.Cancel, op.Redrive, op.Discard, op.Get):
        yield operation(many)
    yield op.List(DEAD_RECORDS, limit=0)
    yield op.List(DEAD_RECORDS, limit=201)
    yield op.Draw(-1)
    yield op.Draw(1_001)
    yield op.Exchange("w", limit=1_001)
    yield op.Exchange("w", limit=-1)
    yield op.Exchange("w", pools=("p",) * 65)
    yield op.Exchange("w", settle=(Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED),) * 1_001)
    yield op.Renew((("a", 1),) * 16_001)


@for_each("operation", list(too_much()), ids=lambda operation: type(operation).__name__)
def test_oversized_operation_is_refused_as_by_the_engine(operation: op.Operation[Any]) -> None:
    with pytest.raises((InvalidJobError, DuplicateJobError)) as refused:
        codec.encode(operation)
    with pytest.raises(type(refused.value)) as by_engine:
        Engine().apply(operation, 0)
    assert str(refused.value) == str(by_engine.value)


@given(st.sampled_from(OutcomeKind), st.binary(max_size=5) | st.none(), words, st.integers(0, 2**53), st.booleans())
def test_an_outcome_is_as_many_arguments_as_its_kind_says(
    kind: OutcomeKind, result: bytes | None, text: str, delay_ms: int, final: bool
) -> None:
    error = JobError(type=text, message=text, traceback=text) if final else None
    outcome = Outcome(
        job_id="a", token=1, kind=kind, result=result, error=error, delay_ms=delay_ms, final=final, reason=text
    )
    letter, *rest = requests.outcome_args(outcome)
    assert len(rest) == {"f": 1, "n": 0, "z": 0, "x": 6, "s": 1, "r": 0, "u": 0, "l": 4, "d": 1, "c": 4}[letter]
    assert all(isinstance(value, bytes | str | int) for value in rest)


# --- refusals --------------------------------------------------------------------------------------------------------

ASKED = op.Enqueue(
    (
        JobSpec(id="first", task="t", claims=(Claim(("a", "b:c")), Claim(("d",)))),
        JobSpec(id="second", task="t", key="k"),
    )
)


def refusal(message: str, operation: op.Operation[Any] = ASKED) -> Exception:
    error = codec.refusal(operation, message)
    assert error is not None
    return error


def test_a_duplicate_names_the_job_by_its_position() -> None:
    error = refusal("DUPLICATE_JOB 1")
    assert isinstance(error, DuplicateJobError)
    assert (error.job_id, error.key) == ("second", None)


def test_a_taken_key_names_its_owner() -> None:
    error = refusal("KEY_TAKEN 1 owner")
    assert isinstance(error, DuplicateJobError)
    assert (error.job_id, error.key, error.fields) == ("owner", "k", ())


@pytest.mark.parametrize(
    "message, path_key", [("PATH_CLOSED 0 0 0", "root"), ("PATH_CLOSED 0 0 2", "a:b\\:c"), ("PATH_CLOSED 0 1 1", "d")]
)
def test_a_closed_path_is_named_by_claim_and_depth(message: str, path_key: str) -> None:
    error = refusal(message)
    assert isinstance(error, PathClosedError)
    assert error.path_key == path_key


def test_corrupt_state_error_names_the_damage_and_omits_script_lines() -> None:
    error = refusal("CORRUPT job a is named in {qh:x}:dead script: 0123abc, on @user_script:12.", op.Tick())
    assert isinstance(error, CorruptStateError)
    assert str(error) == "job a is named in {qh:x}:dead; run `queuehint doctor`"


def test_another_schema_is_named() -> None:
    error = refusal("BAD_SCHEMA 7", op.Get(()))
    assert isinstance(error, CorruptStateError)
    assert "schema 7" in str(error)


def test_a_late_request_is_an_error_of_the_store() -> None:
    assert type(refusal("STALE_REQUEST 0123", op.Tick())) is BackendError


@pytest.mark.parametrize("message", ["", " ", "ERR unknown", "WRONGTYPE Operation", "DUPLICATE_JOBS 1", "corrupt it"])
def test_foreign_message_is_not_a_refusal(message: str) -> None:
    assert codec.refusal(ASKED, message) is None


@pytest.mark.parametrize("message", ["DUPLICATE_JOB 0", "KEY_TAKEN 0 a", "PATH_CLOSED 0 0 0"])
def test_submission_refusal_is_not_a_refusal_of_other_operations(message: str) -> None:
    assert codec.refusal(op.Tick(), message) is None


# --- submissions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter, state", STATES.items())
def test_reply_to_one_new_job_is_its_number_and_state(letter: str, state: JobState) -> None:
    one = attrs.evolve(ASKED, jobs=ASKED.jobs[:1])
    for more in (False, True):
        answer = codec.decode(one, [int(more), 5, -1, 7, letter.encode()])
        assert answer == op.Enqueued((op.EnqueuedJob("first", 7, state, created=True),), more)


def test_reply_to_one_job_that_is_there_is_that_job() -> None:
    one = attrs.evolve(ASKED, jobs=ASKED.jobs[:1])
    answer = codec.decode(one, [0, 5, -1, 7, b"other 3 Q 0 2.5"])
    assert answer == op.Enqueued((op.EnqueuedJob("other", 3, JobState.QUEUED, False, (2 << 32) + 5),), more=False)


@pytest.mark.parametrize("jobs, lines", [(2, b"Q"), (0, b"Q"), (1, b"Q\nQ"), (1, b""), (1, b"?"), (1, [b"Q"])])
def test_reply_with_other_lines_than_jobs_is_damaged(jobs: int, lines: Any) -> None:
    with pytest.raises(CorruptStateError):
        codec.decode(attrs.evolve(ASKED, jobs=ASKED.jobs[:jobs]), [0, 5, -1, 7, lines])


# --- damage ----------------------------------------------------------------------------------------------------------

OPERATIONS: tuple[op.Operation[Any], ...] = (
    ASKED,
    op.Draw(1),
    op.Cancel(("a",)),
    op.CancelPath(()),
    op.Redrive(("a",)),
    op.Redrive(("a",), waiting=True),
    op.Discard(("a",)),
    op.Exchange("w", limit=1),
    op.Renew((("a", 1),)),
    op.Post((op.Note("a", 1, progress=Progress()),)),
    op.Post((op.Note("a", 1, ("line",)),)),
    op.Tick(),
    op.Pause(RecordFilter(path=())),
    op.Resume(RecordFilter(path=())),
    op.Close(()),
    op.Close((), reopen=True),
    op.Get(("a",)),
    op.List(DEAD_RECORDS),
    op.Why("a"),
    op.Why(None, 3, ()),
    op.Tree(),
    op.ListLines(),
    op.CountJobs(),
    op.CanDequeue(()),
    op.CountPending(),
)
SOUND_REST = b'["t",{"backoff":[1.0,2.0,30.0,0.5],"delay_ms":5,"on_conflict":"after","service":"s","timeout_ms":7}]\n{}'

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
facts = st.dictionaries(
    st.sampled_from(
        ["backoff", "timeout_ms", "on_dependency_failure", "service", "on_conflict", "delay_ms", "run_at_ms"]
    )
    | st.sampled_from(["id", "task", "claims", "arguments", "policy", "__class__", "py/object"]),
    json_values | st.sampled_from(["run", "after", "s", 5, [1.0, 2.0, 30.0, 0.5]]),
    max_size=3,
)


def damaged(data: bytes, random: Random) -> bytes:
    """Return some bytes with a few of them changed, lost or added."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed) + 1)
        changed[at : at + random.choice((0, 1, 1, 5))] = random.randbytes(random.choice((0, 1, 1, 3)))
    return bytes(changed)


def check_read(rest: bytes) -> None:
    """Check that the rest of a spec is read with the right types, or reported as damaged."""
    try:
        spec = codec.decode_spec("a", [b"3", b"default", b"", b"t", b"", b"", b"", b"", b"", rest])
    except (CorruptStateError, PayloadError):
        return
    assert spec is not None
    assert (type(spec.arguments), type(spec.policy)) == (bytes, Policy)
    assert {type(spec.delay_ms), type(spec.run_at_ms)} <= {int, type(None)}
    assert spec.on_conflict in ON_CONFLICT


@given(st.binary(max_size=200))
@example(b"")
@example(b"{}")
@example(b"\n")
@example(b"\xff\n")
@example(b"[]\n")
@example(b"[" * 100_000 + b"\n")
@example(b"[" + b"1" * 5_000 + b"]\n")
def test_random_bytes_for_a_rest_are_said_to_be_damaged(rest: bytes) -> None:
    check_read(rest)


@given(st.randoms(use_true_random=False))
def test_altered_rest_is_a_spec_or_reported_as_damage(random: Random) -> None:
    check_read(damaged(SOUND_REST, random))


@given(
    json_values | st.tuples(st.text(max_size=5), facts).map(list) | st.tuples(json_values, facts, json_values).map(list)
)
@example(["t", {"service": {}}])
@example(["t", {"on_conflict": "x"}])
@example(["t", {"delay_ms": True}])
@example(["t", {"backoff": [1]}])
@example([5])
@example("ab")
@example({"a": 1})
def test_other_json_for_a_rest_is_a_spec_or_damage(value: Any) -> None:
    check_read(json.dumps(value).encode() + b"\n{}")


PIECES = (
    None,
    -1,
    0,
    1,
    5,
    b"",
    b"a",
    b"1",
    b"S",
    b"x",
    b"-",
    b"D",
    b"DD",
    b"0.1",
    b"\xff",
    SOUND_REST,
    b"a\nb",
    b"[1]",
)


def any_reply(random: Random, depth: int = 3) -> list[Any]:
    """Return something that a server may send, of pieces that mean something."""
    return [
        any_reply(random, depth - 1)
        if depth and random.random() < 0.1
        else random.randbytes(random.randrange(8))
        if random.random() < 0.1
        else random.choice(PIECES)
        for _ in range(random.choice((0, 1, 3, 4, 5, 7, 8, 9, 26, 30, 31)))
    ]


@for_each("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_a_damaged_reply_is_said_to_be_damaged(operation: op.Operation[Any]) -> None:
    for seed in range(300):
        reply = any_reply(Random(seed)) if seed else []
        try:
            codec.decode(operation, reply)
            codec.clocked(reply)
        except (CorruptStateError, PayloadError):
            pass
        except JobNotFoundError:
            assert isinstance(operation, op.Why) and not reply
        except Exception as error:
            error.add_note(f"The reply was {reply}.")
            raise


def test_record_errors_are_text_and_never_exceptions() -> None:
    error = replies.parse_error([1, 2, b"os.system", b"rm", b"t"])
    assert error == JobError(type="os.system", message="rm", traceback="", attempt=1, at_ms=2)


def test_nothing_that_builds_objects_from_data_is_imported() -> None:
    banned = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle", "jsonpickle", "copyreg"}
    for path in sorted(Path(codec.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not banned & {name.partition(".")[0] for name in imported}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile", "__import__"}, path


# --- damage on a server ----------------------------------------------------------------------------------------------


@pytest.fixture
def backend(redis_server: Server, namespace: str) -> Iterator[RedisBackend]:
    """A store with a job in every state, one that waits in line, a pause and a receipt."""
    options = BackendOptions(namespace=namespace, clock=FakeClock())
    backend = RedisBackend(parse_url(redis_server.url), options)
    dies = Policy(max_attempts=1, on_dead="hold")
    call = backend.call_sync
    call(
        op.Enqueue(tuple(JobSpec(id=i, task="t", claims=(Claim((i,)),), policy=dies) for i in ("ends", "dies", "runs")))
    )
    grants = {grant.spec.id: grant.token for grant in call(op.Exchange("w", limit=3)).grants}
    call(op.Post((op.Note("runs", grants["runs"], ("line",)),)))
    call(op.Post((op.Note("runs", grants["runs"], progress=Progress(1, 2)),)))
    error = JobError(type="E", message="no")
    ends = Outcome(job_id="ends", token=grants["ends"], kind=OutcomeKind.FINISHED, result=b"1")
    fails = Outcome(job_id="dies", token=grants["dies"], kind=OutcomeKind.FAILED, error=error)
    call(op.Exchange("w", settle=(ends, fails)))
    call(
        op.Enqueue(
            (
                JobSpec(id="waits", task="t", claims=(Claim(("runs", "below")),)),
                JobSpec(id="ready", task="t", key="k", user="u"),
                JobSpec(id="later", task="t", delay_ms=60_000),
            )
        )
    )
    call(op.Cancel(("runs",)))
    call(op.Pause(RecordFilter(path=("p",))))
    yield backend
    backend.close_sync()


def everything(backend: RedisBackend) -> Iterator[Callable[[], Any]]:
    """Yield calls that read all that is stored, and then change some of it."""
    ids = ("ends", "dies", "runs", "waits", "ready", "later")
    operations: list[op.Operation[Any]] = [op.Get((job_id,)) for job_id in ids]
    operations += [*[op.Why(job_id) for job_id in ids], op.Why(None, 16, ()), op.Why(None, 3, ("runs",))]
    operations += [
        op.List(DEAD_RECORDS),
        op.CountJobs(),
        op.CountPending(),
        op.CountPending(("runs",)),
        op.Tree(depth=4),
        op.Tree(limit=1),
        op.ListLines(depth=4),
        op.CanDequeue(("runs",)),
    ]
    operations += [
        op.Tick(),
        op.Exchange("w", limit=5),
        op.Enqueue((JobSpec(id="new", task="t", claims=(Claim(("runs",)),)),)),
    ]
    operations += [
        op.Enqueue((JobSpec(id="ends", task="other"),)),
        op.Cancel(("waits",)),
        op.Redrive(("dies",)),
        op.CancelPath(()),
    ]
    for operation in operations:
        yield partial(backend.call_sync, operation)


def test_a_sound_store_is_read_without_a_complaint(backend: RedisBackend) -> None:
    for call in everything(backend):
        try:
            call()
        except DuplicateJobError:
            pass


@pytest.mark.parametrize("seed", range(thorough(4, quick=1)))
def test_random_bytes_in_any_field_are_reported_as_damage(
    backend: RedisBackend, redis_server: Server, namespace: str, seed: int
) -> None:
    random = Random(seed)
    client: Any = redis_server.client()
    names = list(client.scan_iter(f"{keys.root(namespace)}:*", count=1000))
    sound = {name: client.dump(name) for name in names}
    hashes = [keys.redis_key(namespace, key.name).encode() for key in keys.KEYS if key.type == "hash"]
    fields = [(name, field, value) for name in hashes for field, value in client.hgetall(name).items()]
    assert len(fields) > 20
    for name, field, value in fields:
        if field == b"test":
            continue
        client.hset(name, field, random.choice((random.randbytes(random.randint(0, 40)), damaged(value, random))))
        for call in everything(backend):
            try:
                call()
            except (CorruptStateError, PayloadError, DuplicateJobError, JobNotFoundError):
                pass
            except Exception as error:
                if name.endswith(b":receipts") and "a newer one of its session" in str(error):
                    continue  # a damaged number of a request is a number too
                error.add_note(f"{field!r} of {name!r} is {client.hget(name, field)!r}")
                raise
        client.unlink(*client.scan_iter(f"{keys.root(namespace)}:*", count=1000))
        for each, content in sound.items():
            client.restore(each, 0, content)
