"""Bad input: one of our errors, with name, value and limit, before anything is changed."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from queuehint import (
    Backoff,
    Claim,
    InvalidHintError,
    InvalidJobError,
    JobContext,
    JobFailedError,
    JobSpec,
    JobState,
    PayloadError,
    Priority,
    QueueHintError,
    Retention,
    Retry,
    Scheduler,
    Snooze,
    open_backend,
)
from tests.each import for_each
from tests.schedulers import Gate, run, scheduler, until
from tests.support import HostileStr

TEN_YEARS_S = 10 * 366 * 24 * 3600


def refused(call: Callable[[], Any], *words: str, kind: type[Exception] = ValueError) -> str:
    """Call what must be refused by one of our errors that is also the built-in one, and says all it should."""
    with pytest.raises(QueueHintError) as caught:
        call()
    error = caught.value
    assert isinstance(error, kind)
    message = str(error)
    message.encode()
    assert len(message) < 400
    assert not any(ord(character) < 32 for character in message)
    for word in words:
        assert word in message, message
    return message


def job(sched: Scheduler | None = None) -> Any:
    sched = sched or scheduler()[0]

    @sched.job(queue_hint=["{doc}"])
    def work(doc: str, n: Any = 0) -> None: ...

    return work


BAD_OPTIONS: list[tuple[str, Any, type[Exception], list[str]]] = [
    # delay: B-26 to B-29
    ("delay", -1, ValueError, ["delay must be from 0 s to 10 years", "-1"]),
    ("delay", -0.0001, ValueError, ["delay"]),
    ("delay", dt.timedelta(microseconds=-1), ValueError, ["delay"]),
    ("delay", math.nan, ValueError, ["delay must be finite", "nan"]),
    ("delay", math.inf, ValueError, ["delay must be finite", "inf"]),
    ("delay", 1e400, ValueError, ["delay"]),
    ("delay", -1e300, ValueError, ["delay"]),
    ("delay", "5", TypeError, ["delay must be a timedelta or a number of seconds, got str: '5'"]),
    ("delay", True, TypeError, ["got bool: True"]),
    ("delay", decimal.Decimal(1), TypeError, ["got Decimal"]),
    ("delay", [], TypeError, ["delay"]),
    ("delay", dt.timedelta.max, ValueError, ["10 years"]),
    ("delay", 10**30, ValueError, ["10 years"]),
    ("delay", TEN_YEARS_S + 1, ValueError, ["10 years"]),
    # run_at: B-30, B-31
    ("run_at", dt.datetime(2020, 1, 1), ValueError, ["run_at must be timezone-aware"]),
    ("run_at", dt.datetime.max.replace(tzinfo=dt.UTC), ValueError, ["run_at", "10 years"]),
    ("run_at", dt.date(2020, 1, 1), TypeError, ["run_at must be a datetime, got date"]),
    ("run_at", 0, TypeError, ["run_at"]),
    ("run_at", "2020-01-01", TypeError, ["run_at"]),
    # priority: B-34
    ("priority", math.nan, TypeError, ["priority must be int"]),
    ("priority", 1.5, TypeError, ["priority must be int"]),
    ("priority", "high", TypeError, ["priority must be int", "'high'"]),
    ("priority", True, TypeError, ["priority must be int", "True"]),
    ("priority", None, TypeError, ["priority"]),
    ("priority", 0, ValueError, ["priority must be 1 to 5 or Priority.CRITICAL, got 0"]),
    ("priority", 6, ValueError, ["priority"]),
    ("priority", 10**9, ValueError, ["priority"]),
    # attempts: B-35
    *[
        (name, value, kind, [f"{name} must be", repr(value)])
        for name in ("max_attempts", "max_losses")
        for value, kind in [(0, ValueError), (-1, ValueError), (2**40, ValueError), (1_001, ValueError)]
    ],
    ("max_attempts", None, TypeError, ["max_attempts"]),
    ("max_attempts", True, TypeError, ["max_attempts"]),
    ("max_attempts", 5.0, TypeError, ["max_attempts"]),
    # durations
    ("timeout", 0, ValueError, ["timeout"]),
    ("timeout", -1, ValueError, ["timeout"]),
    ("timeout", "1", TypeError, ["timeout"]),
    ("start_within", 0, ValueError, ["start_within"]),
    ("retention", -1, ValueError, ["retention"]),
    ("retention", TEN_YEARS_S + 1, ValueError, ["retention"]),
    ("max_hold", -1, ValueError, ["max_hold"]),
    ("max_hold", None, TypeError, ["max_hold"]),
    # words
    ("retry", 5, TypeError, ["retry must be a Backoff"]),
    ("on_retry", "block", ValueError, ["on_retry must be one of hold, yield, got 'block'"]),
    ("on_retry", None, TypeError, ["on_retry"]),
    ("on_dead", "x", ValueError, ["on_dead"]),
    ("on_dependency_failure", "x", ValueError, ["on_dependency_failure"]),
    ("on_conflict", "x", ValueError, ["on_conflict"]),
    ("mode", "x", ValueError, ["mode must be one of exclusive, shared"]),
    ("mode", None, TypeError, ["mode"]),
    # names and ids: B-50
    ("id", "", ValueError, ["id is empty"]),
    ("id", "x" * 129, ValueError, ["id is 129 bytes, limit 128"]),
    ("id", "é" * 65, ValueError, ["id is 130 bytes, limit 128"]),
    ("id", "x" * 10**7, ValueError, ["limit 128"]),
    ("id", "a\nb", ValueError, ["id holds white space"]),
    ("id", "a b", ValueError, ["id holds white space"]),
    ("id", "a\x00", ValueError, ["U+0000"]),
    ("id", "\ud800", ValueError, ["not encodable"]),
    ("id", 123, TypeError, ["id must be str, got int: 123"]),
    ("id", b"x", TypeError, ["id must be str"]),
    *[
        (name, value, kind, [name])
        for name in ("user", "service", "key", "pool")
        for value, kind in [("", ValueError), ("x" * 257, ValueError), ("a\n", ValueError), (5, TypeError)]
    ],
    ("pool", None, TypeError, ["pool"]),
    # places
    ("queue_hint", "doc", TypeError, ["queue_hint", "did you mean"]),
    ("queue_hint", [1], TypeError, ["queue_hint segment 0"]),
    ("queue_hint", ["a", ""], ValueError, ["segment 1 is empty"]),
    ("queue_hint", ["x"] * 65, ValueError, ["limit 64"]),
    ("claims", "a", TypeError, ["claims must be a list"]),
    ("claims", [["a"], 5], TypeError, ["claims[1]"]),
    ("claims", [(["a"], "x")], ValueError, ["claims[0]", "mode"]),
    ("claims", [["a"]] * 65, ValueError, ["limit 64"]),
]


@for_each("name, value, kind, words", BAD_OPTIONS, ids=lambda value: repr(value)[:30])
def test_a_bad_option_is_refused_when_it_is_given(
    name: str, value: Any, kind: type[Exception], words: list[str]
) -> None:
    sched, _ = scheduler()
    work = job(sched)
    refused(lambda: work.using(**{name: value}), *words, kind=kind)
    assert sched.stats_sync().enqueued == 0


@for_each(
    "name, value, kind, words",
    [
        row
        for row in BAD_OPTIONS
        if row[0] not in {"delay", "run_at", "id", "key", "user", "claims", "on_conflict", "queue_hint"}
        and not (row[0] == "retry" and row[1] is None)
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_bad_option_of_the_decorator_is_refused_at_import(
    name: str, value: Any, kind: type[Exception], words: list[str]
) -> None:
    sched, _ = scheduler()

    def work() -> None: ...

    options: dict[str, Any] = {name: value}
    refused(lambda: sched.job(**options)(work), *words, kind=kind)
    assert sched.handler("work") is None


def test_bool_is_refused_in_place_of_an_equal_number() -> None:
    refused(lambda: job().using(max_attempts=1).using(max_attempts=True), "max_attempts", kind=TypeError)


@pytest.mark.parametrize("value", [0, -0.0, 0.0, dt.timedelta(0), dt.timedelta(days=1), TEN_YEARS_S, 0.5])
def test_a_delay_up_to_ten_years_is_valid(value: Any) -> None:
    sched, _ = scheduler()
    handle = job(sched).using(delay=value).enqueue_sync("a")
    assert handle.state_sync() is (JobState.SCHEDULED if value else JobState.QUEUED)


@pytest.mark.parametrize(
    "value",
    [
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))),
        dt.datetime(2019, 1, 1, tzinfo=ZoneInfo("Europe/Paris")),
    ],
)
def test_a_time_in_the_past_is_now(value: dt.datetime) -> None:
    sched, _ = scheduler()
    handle = job(sched).using(run_at=value).enqueue_sync("a")
    assert handle.state_sync() is JobState.QUEUED


def test_time_in_a_gap_or_fold_is_converted_by_utc() -> None:
    paris = ZoneInfo("Europe/Paris")
    work = job()

    def due(value: dt.datetime) -> dt.datetime:
        spec: JobSpec = work.using(run_at=value).spec("a")
        assert spec.run_at_ms is not None
        return dt.datetime.fromtimestamp(spec.run_at_ms / 1000, dt.UTC)

    fold = dt.datetime(2020, 10, 25, 2, 30, tzinfo=paris)
    assert due(fold) == dt.datetime(2020, 10, 25, 0, 30, tzinfo=dt.UTC)
    assert due(fold.replace(fold=1)) == dt.datetime(2020, 10, 25, 1, 30, tzinfo=dt.UTC)
    gap = dt.datetime(2020, 3, 29, 2, 30, tzinfo=paris)
    assert due(gap) == gap.astimezone(dt.UTC)


@pytest.mark.parametrize(
    "value, words, kind",
    [
        (-1, "max_delay must be from 0 s to 10 years, got -1", ValueError),
        ("5", "max_delay must be a timedelta or a number of seconds, got str: '5'", TypeError),
        (1, "max_delay must be at least delay, which is 2000 ms, got 1000 ms", ValueError),
    ],
)
def test_a_bad_bound_of_delays_is_refused(value: Any, words: str, kind: type[Exception]) -> None:
    burst = job().using(key="k", on_conflict="replace", delay=2)
    refused(lambda: burst.using(max_delay=value), words, kind=kind)
    for changed in ({"key": None}, {"on_conflict": "return"}, {"delay": None}, {"run_at": dt.datetime.now(dt.UTC)}):
        needs = 'max_delay is 3000 ms and bounds how long replacements delay a job: give key, on_conflict="replace"'
        refused(lambda changed=changed: burst.using(max_delay=3, **changed), needs)  # type: ignore[misc]
    assert burst.using(max_delay=2).spec("a").max_delay_ms == 2000
    assert burst.using(max_delay=dt.timedelta(seconds=3)).using(max_delay=None).spec("a").max_delay_ms is None


@pytest.mark.parametrize(
    "value, kind", [(0, ValueError), (-1, ValueError), (float("nan"), ValueError), ("5", TypeError)]
)
def test_a_bad_time_to_keep_a_key_for_is_refused(value: Any, kind: type[Exception]) -> None:
    refused(lambda: job().using(key="k", key_for=value), "key_for must be ", kind=kind)
    refused(lambda: scheduler()[0].job(key_for=value)(lambda: None), "key_for must be ", kind=kind)
    assert job().using(key_for=dt.timedelta(minutes=1)).spec("a").policy.key_for_ms == 60_000


def test_a_delay_and_a_time_at_once_are_refused() -> None:
    when = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    refused(lambda: job().using(delay=1, run_at=when), "give delay or run_at", kind=TypeError)


@pytest.mark.parametrize("value", [1, 2, 3, 4, 5, Priority.CRITICAL, Priority.LOWEST])
def test_levels_and_critical_are_valid_priorities(value: int) -> None:
    assert job().using(priority=value).spec("a").priority == value


# --- back-off: B-37 ---


@for_each(
    "options, kind",
    [
        ({"base": 0}, ValueError),
        ({"base": -1}, ValueError),
        ({"base": math.nan}, ValueError),
        ({"base": "1"}, TypeError),
        ({"factor": -1}, ValueError),
        ({"factor": 0.5}, ValueError),
        ({"factor": math.inf}, ValueError),
        ({"factor": "2"}, TypeError),
        ({"jitter": 2}, ValueError),
        ({"jitter": -0.1}, ValueError),
        ({"jitter": True}, TypeError),
        ({"base": 5, "cap": 1}, ValueError),
        ({"cap": 10**30}, ValueError),
        ({"waits": [1] * 101}, ValueError),
        ({"waits": [-1]}, ValueError),
        ({"waits": 5}, TypeError),
    ],
)
def test_a_bad_backoff_is_refused(options: dict[str, Any], kind: type[Exception]) -> None:
    refused(lambda: Backoff(**options), next(reversed(options)), kind=kind)


def test_no_attempt_overflows() -> None:
    for attempt in (1, 1_000, 1_024, 10**6):
        assert 0 < Backoff(factor=100, cap=1e8).delay_ms(attempt, 0.5) <= 1e11


# --- the scheduler's own: B-36, B-94, B-100 ---


@for_each(
    "options, words, kind",
    [
        ({"lease": 0}, ["lease must be from 1 s to 86400 s", "0"], ValueError),
        ({"lease": 0.001}, ["lease"], ValueError),
        ({"lease": 1e9}, ["lease"], ValueError),
        ({"lease": -5}, ["lease"], ValueError),
        ({"lease": "30"}, ["lease"], TypeError),
        ({"lease": True}, ["lease"], TypeError),
        ({"ids": "uuid"}, ["ids must be one of time, sequence"], ValueError),
        ({"ids": None}, ["ids"], TypeError),
        ({"retention": 5}, ["retention must be a Retention"], TypeError),
        ({"namespace": 5}, ["namespace must be str"], TypeError),
        *[
            ({"namespace": value}, ["namespace must be 1 to 64 of A-Z a-z 0-9 _ . -"], ValueError)
            for value in ("", "*", "a*", "{b}", "a b", "a\n", "é", "x" * 65, "a:b", "a/b", "\x00")
        ],
    ],
)
def test_a_bad_setting_is_refused_when_the_scheduler_is_made(
    options: dict[str, Any], words: list[str], kind: type[Exception]
) -> None:
    refused(lambda: Scheduler("memory://", **options), *words, kind=kind)


@pytest.mark.parametrize("url", [5, b"memory://", None, object()])
def test_a_url_that_is_no_text_is_refused(url: Any) -> None:
    refused(lambda: open_backend(url), "url must be str", kind=TypeError)
    if url is not None:
        refused(lambda: Scheduler(url), "url must be str", kind=TypeError)


@pytest.mark.parametrize("namespace", ["a", "A-Z_0.9", "x" * 64])
def test_a_plain_namespace_is_valid(namespace: str) -> None:
    assert Scheduler("memory://", namespace=namespace).namespace == namespace


@pytest.mark.parametrize("namespace", ["*", "%7Bb%7D", "a%20b", "x" * 65])
def test_a_namespace_in_the_url_is_checked_too(namespace: str) -> None:
    refused(lambda: open_backend(f"memory://?namespace={namespace}"), "namespace")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@db",
        "redis://ann:hunter2@db:6379/0",
        "redis://ann:hunt@hunter2@db",
        "redis://ann:a/hunter2#?x@db/0",
        "redis://ann:hunter2@[::1",
        "redis://db/0?password=hunter2",
        "redis://db/0?x=1&password=hunter2&db=2",
        "unix://ann:hunter2@/tmp/redis.sock?db=0",
        "//ann:hunter2@db",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    unserved = url if url.startswith("/") else "nowhere" + url[url.index(":") :]
    assert "hunter2" not in refused(lambda: Scheduler(unserved), "url")
    if url.startswith("/") or url.endswith("[::1"):
        assert "hunter2" not in refused(lambda: Scheduler(url), "url")
    else:
        assert "hunter2" not in repr(Scheduler(url))


@pytest.mark.parametrize("url", ["nowhere://", "http://[::1", "redis://[::1", "://"])
def test_url_without_a_backend_is_refused_at_once(url: str) -> None:
    refused(lambda: Scheduler(url), "url")


@pytest.mark.parametrize("url", ["", "nonsense", "ann:hunter2", "\x00"])
def test_url_without_slashes_of_an_unknown_scheme_is_refused(url: str) -> None:
    assert "hunter2" not in refused(lambda: Scheduler(url), "url", "known are")


def test_the_schemes_that_are_served_are_named() -> None:
    refused(lambda: Scheduler("redis+memory://"), "known are", "memory")


def test_retention_of_another_type_is_refused_and_one_is_taken() -> None:
    assert Scheduler("memory://", retention=Retention(finished=0)).stats_sync().unfinished == 0


# --- calls ---


@pytest.mark.parametrize(
    "value, words",
    [
        ({1}, "$.n: set is not JSON"),
        ([1, {"b": b"x"}], "$.n[1].b: bytes is not JSON"),
        (math.nan, "$.n: nan is not JSON"),
        ({1: 2}, "$.n: a key is int, JSON keys are str"),
        ("\ud800", "$.n: string holds '\\ud800', not encodable as UTF-8"),
        ("x" * (1 << 20), "limit 1048576"),
        (10**5_000, "$.n: int of more than 4300 digits"),
    ],
    ids=lambda value: repr(value)[:30] if not isinstance(value, int) else "int",
)
def test_non_json_argument_is_refused_by_every_call(value: Any, words: str) -> None:
    sched, _ = scheduler()
    work = job(sched)
    ways: list[Callable[[], Any]] = [
        lambda: work.enqueue_sync("a", value),
        lambda: work.spec("a", value),
        lambda: work.enqueue_many_sync([("a",), ("a", value)]),
        lambda: run(work.enqueue("a", n=value)),
        lambda: run(work.enqueue_many([{"doc": "a", "n": value}])),
    ]
    for way in ways:
        refused(way, words, kind=PayloadError)
    assert sched.stats_sync().enqueued == 0


@pytest.mark.parametrize("value", [1.5, None, b"x", ["a"], True])
def test_an_argument_that_names_no_place_is_refused(value: Any) -> None:
    sched, _ = scheduler()
    work = job(sched).using(check_arguments=False)
    with pytest.raises(InvalidHintError):
        work.enqueue_sync(value)
    refused(
        lambda: work.enqueue_sync(value), "queue_hint: argument 'doc' must be str, int, UUID or date", kind=TypeError
    )
    assert sched.stats_sync().enqueued == 0


@pytest.mark.parametrize("args, kwargs", [((), {}), (("a", 1, 2), {}), (("a",), {"x": 1}), (("a",), {"doc": "b"})])
def test_a_call_that_does_not_fit_the_handler_is_refused(args: Any, kwargs: Any) -> None:
    sched, _ = scheduler()
    refused(lambda: job(sched).enqueue_sync(*args, **kwargs), "work(): ", kind=TypeError)
    assert sched.stats_sync().enqueued == 0


def test_a_str_that_lies_is_copied() -> None:
    sched, _ = scheduler()
    spec = job(sched).using(queue_hint=[HostileStr("place")], user=HostileStr("ann")).spec("a")
    assert spec.claims == (Claim(("place",)),)
    assert type(spec.claims[0].path[0]) is type(spec.user) is str


@for_each(
    "fields, words",
    [
        ({"id": ""}, "id is empty"),
        ({"id": 5}, "id must be str"),
        ({"task": ""}, "task is empty"),
        ({"claims": ["a"]}, "claims"),
        ({"arguments": "{}"}, "arguments must be bytes"),
        ({"arguments": b"x" * ((1 << 20) + 1)}, "limit 1048576"),
        ({"priority": 0}, "priority"),
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": 1, "run_at_ms": 1}, "give delay_ms or run_at_ms"),
        ({"run_at_ms": 10**30}, "run_at_ms"),
        ({"max_delay_ms": 1}, "max_delay_ms"),
        ({"policy": None}, "policy"),
        ({"key": ""}, "key"),
    ],
)
def test_a_bad_spec_is_refused(fields: dict[str, Any], words: str) -> None:
    sched, _ = scheduler()
    given: dict[str, Any] = {"id": "x", "task": "t", **fields}
    refused(lambda: sched.submit_sync([JobSpec(id="fine", task="t"), JobSpec(**given)]), "specs[1]", words)
    assert sched.stats_sync().enqueued == 0


# --- questions and orders ---


@pytest.mark.parametrize("job_id", ["", "x" * 129, "a b", 5, None, b"x"])
def test_a_bad_id_is_refused_wherever_one_is_taken(job_id: Any) -> None:
    sched, _ = scheduler()
    for call in (
        lambda: sched.handle(job_id),
        lambda: sched.get_sync(job_id),
        lambda: sched.why_sync(job_id),
        lambda: sched.cancel_sync([job_id]),
        lambda: sched.dead.redrive_sync([job_id]),
        lambda: sched.dead.discard_sync([job_id]),
        lambda: sched.run_now_sync(ids=[job_id]),
    ):
        refused(call, "id")


@pytest.mark.parametrize("ids", ["x", 5, {"a": 1}, b"x"])
def test_ids_that_are_no_list_are_refused(ids: Any) -> None:
    sched, _ = scheduler()
    for call in (sched.cancel_sync, sched.dead.redrive_sync, sched.dead.discard_sync):
        refused(lambda call=call: call(ids), "ids must be a list", kind=TypeError)  # type: ignore[misc]
    refused(lambda: sched.cancel_sync(sched.handle("x")), "ids must be a list", kind=TypeError)  # type: ignore[call-overload]


def test_more_than_a_thousand_ids_are_refused() -> None:
    sched, _ = scheduler()
    ids = [str(n) for n in range(1_001)]
    for call in (sched.cancel_sync, sched.dead.redrive_sync, sched.dead.discard_sync):
        refused(lambda call=call: call(ids), "ids: 1001 in one call, limit 1000")  # type: ignore[misc]


def test_ids_and_a_path_at_once_or_neither_are_refused() -> None:
    sched, _ = scheduler()
    cancel: Any = sched.cancel_sync
    refused(cancel, "exactly one of ids, a filter and all=True", kind=TypeError)
    refused(lambda: cancel(["a"], path=["b"]), "exactly one of ids, a filter and all=True", kind=TypeError)


def test_malformed_last_job_is_refused_before_any_request() -> None:
    sched, _ = scheduler()
    close: Any = sched.close_path_sync
    work = sched.job(queue_hint=["{doc}"])(named_erase)
    of_type = "last must be a JobSpec, as job.spec(...) returns it, got str"
    refused(lambda: close(["doc"], last="erase"), of_type, kind=TypeError)
    no_claim = "no exclusive claim at 'doc', the path to close; its claims are "
    refused(lambda: close(["doc"], last=work.spec("other")), no_claim + "'other'")
    refused(lambda: close(["doc"], last=work.using(mode="shared").spec("doc")), no_claim)
    refused(lambda: close(["doc"], last=work.using(key="k").spec("doc")), "has a key")
    word = "waiting must be one of cancel, run, got 'later'"
    refused(lambda: close(["doc"], last=work.spec("doc"), waiting="later"), word)
    refused(lambda: close(["doc"], waiting="run"), "waiting requires last", kind=TypeError)
    refused(lambda: close(["doc"], last=JobSpec(id="", task="t")), "id")
    assert not sched.tree_sync(["doc"]).closed


def named_erase(doc: str) -> None: ...


@pytest.mark.parametrize("chain", [1, None, "yes"])
def test_non_bool_chain_is_refused_before_the_lookup(chain: Any) -> None:
    sched, _ = scheduler()
    with pytest.raises(QueueHintError, match=f"chain must be bool, got {type(chain).__name__}"):
        sched.handle("unknown").why_sync(chain=chain)


@pytest.mark.parametrize("for_", [0, -1, float("nan"), "1h", True, dt.timedelta(days=4000)])
def test_a_bad_length_of_a_pause_is_refused(for_: Any) -> None:
    sched, _ = scheduler()
    with pytest.raises(QueueHintError, match="for_ must be"):
        sched.pause_sync(["a"], for_=for_)
    assert sched.pauses_sync() == ()


@pytest.mark.parametrize(
    "words, named",
    [
        ({"task": ""}, "task"),
        ({"user": 5}, "user"),
        ({"tag": "x" * 65}, "tag"),
        ({"task": "edit", "path": "doc"}, "path"),
        ({"state": "QUEUED"}, "not by 'state'"),
        ({}, "requires a path"),
    ],
    ids=str,
)
def test_bad_words_of_a_pause_are_refused(words: Any, named: str) -> None:
    sched, _ = scheduler()
    for act in (sched.pause_sync, sched.resume_sync):
        with pytest.raises(QueueHintError, match=named) as caught:
            act(**words)
        if named == "requires a path":
            assert str(caught.value).startswith(act.__name__.removesuffix("_sync") + " requires")
    assert sched.pauses_sync() == ()


@pytest.mark.parametrize("path", ["doc", None, [1], [""], ["a\n"], ["x"] * 65, 5])
def test_a_bad_path_is_refused_wherever_one_is_taken(path: Any) -> None:
    sched, _ = scheduler()
    calls: list[Callable[[], Any]] = [
        lambda: sched.pause_sync(path),
        lambda: sched.resume_sync(path),
        lambda: sched.close_path_sync(path),
        lambda: sched.reopen_path_sync(path),
        lambda: sched.tree_sync(path),
        lambda: sched.exclusive(path),
        lambda: sched.exclusive_sync(path),
    ]
    if path is not None:
        calls += [
            lambda: sched.cancel_sync(path=path),
            lambda: sched.can_dequeue_sync(path),
            lambda: sched.drain_sync(path),
        ]
    for call in calls:
        refused(call, "path")
    assert sched.stats_sync().enqueued == 0


@pytest.mark.parametrize("depth", [-1, 65, 1.5, True, None, "1"])
def test_a_bad_depth_is_refused(depth: Any) -> None:
    refused(lambda: scheduler()[0].tree_sync([], depth), "depth")


@pytest.mark.parametrize("limit", [-1, 0, 1001, 1.5, True, "1"])
def test_a_bad_limit_of_a_tree_is_refused(limit: Any) -> None:
    refused(lambda: scheduler()[0].tree_sync([], limit=limit), "limit")
    refused(lambda: scheduler()[0].tree_sync([], limit=limit, order="line"), "limit")


@pytest.mark.parametrize("after", [1, ["a"], b"a", "a\n", "\ud800", "x" * 257])
def test_a_bad_cursor_of_a_tree_is_refused(after: Any) -> None:
    refused(lambda: scheduler()[0].tree_sync([], after=after), "after")


@pytest.mark.parametrize("order", ["size", None, 1])
def test_a_bad_order_of_a_tree_is_refused(order: Any) -> None:
    refused(lambda: scheduler()[0].tree_sync([], order=order), "order")


def test_a_cursor_of_the_longest_lines_is_refused() -> None:
    for after in ("", "a"):
        with pytest.raises(InvalidJobError, match=f"after requires order='name', got '{after}'.* at most 1000"):
            scheduler()[0].tree_sync([], after=after, order="line")


@pytest.mark.parametrize("limit", [0, -1, 201, 10**9, "abc", True, None])
def test_a_bad_page_is_refused(limit: Any) -> None:
    sched, _ = scheduler()
    refused(lambda: sched.dead.list_sync(limit), "limit")
    if limit not in (0, 201, 10**9):
        refused(lambda: sched.dead.list_sync(after=limit), "after")


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True, 10**30])
def test_a_bad_timeout_is_refused(timeout: Any) -> None:
    sched, _ = scheduler()
    for call in (
        lambda: sched.handle("x").result_sync(timeout),
        lambda: run(sched.handle("x").result(timeout)),
        lambda: sched.drain_sync(timeout=timeout),
        lambda: run(sched.drain(timeout=timeout)),
        lambda: sched.exclusive(["a"], timeout=timeout),
        lambda: sched.exclusive_sync(["a"], timeout=timeout),
    ):
        refused(call, "timeout")


@for_each(
    "options, words",
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1_001}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 2.0}, "concurrency"),
        ({"pools": "default"}, "pools must be a list"),
        ({"pools": []}, "pools is empty"),
        ({"pools": [5]}, "pools must be str"),
        ({"pools": 5}, "pools must be a list"),
        ({"pools": [str(n) for n in range(65)]}, "pools"),
        ({"grace": -1}, "grace"),
        ({"grace": None}, "grace"),
    ],
)
def test_a_bad_worker_is_refused(options: dict[str, Any], words: str) -> None:
    sched, _ = scheduler()

    async def main() -> None:
        async with sched.worker(**options):
            pass

    def main_sync() -> None:
        with sched.worker_sync(**options):
            pass

    refused(lambda: run(main()), words)
    refused(main_sync, words)
    assert not sched._workers


@pytest.mark.parametrize("mode", ["x", None, 5])
def test_a_bad_mode_is_refused(mode: Any) -> None:
    sched, _ = scheduler()
    refused(lambda: sched.exclusive(["a"], mode=mode), "mode")
    refused(lambda: sched.can_dequeue_sync(["a"], mode), "mode")


@pytest.mark.parametrize("reason", ["", 5, "x\n", "x" * 257])
def test_a_bad_reason_is_refused(reason: Any) -> None:
    sched, _ = scheduler()
    handle = job(sched).enqueue_sync("a")
    refused(lambda: sched.cancel_sync([handle], reason=reason), "reason")
    refused(lambda: handle.cancel_sync(reason), "reason")
    assert handle.state_sync() is JobState.QUEUED


@pytest.mark.parametrize("value", [-1, math.nan, "1", True, dt.timedelta.max])
def test_a_bad_wish_of_a_handler_is_refused(value: Any) -> None:
    refused(lambda: Retry(value), "after")
    refused(lambda: Snooze(value), "delay")


async def test_a_bad_wish_fails_the_attempt_that_made_it() -> None:
    sched, _ = scheduler()

    @sched.job(max_attempts=1)
    async def work() -> Snooze:
        return Snooze(-1)

    handle = await work.enqueue()
    await sched.drain()
    with pytest.raises(JobFailedError, match="delay must be from 0 s"):
        await handle.result()


@pytest.mark.parametrize("done", ["1", object(), math.nan, True])
async def test_bad_progress_is_refused_where_it_is_reported(done: Any) -> None:
    sched, _ = scheduler()
    gate = Gate()

    @sched.job
    async def work(ctx: JobContext) -> str:
        with pytest.raises(InvalidJobError) as caught:
            ctx.progress(done)
        with pytest.raises(InvalidJobError):
            ctx.progress(1, done)
        ctx.progress(10**9, 0.5)
        await gate.wait()
        return str(caught.value)

    async with sched.worker():
        handle = await work.enqueue()
        await gate.reached()

        async def told() -> bool:
            return await handle.progress() is not None

        await until(told)
        gate.open()
        assert "done" in await handle.result()
