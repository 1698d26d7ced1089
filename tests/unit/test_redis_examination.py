"""The examination of a server by a session: version, role, types of keys, eviction, clock."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest
from redis import exceptions as driver

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.examination import (
    durability_class,
    parse_info,
    wrong_policy,
    wrong_role,
    wrong_version,
)
from queuehint.backends.redis.session import (
    CHECK_EVERY_S,
    PAUSE_S,
    RETRY_S,
    ROLE_EVERY_S,
    STANDS_STILL_S,
    STOPPED_S,
    Session,
)
from queuehint.backends.redis.transport import NotSent, Redirect, Sleep, Unanswered
from queuehint.clock import FakeClock
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendUnavailableError,
    CorruptStateError,
    DuplicateJobError,
)
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.spec import JobSpec
from tests.session_driver import DONE, FIXED, INFO, ONE, Talk, Time, make_session, replace_time, script_of, types_of

time = pytest.fixture(replace_time)
session = pytest.fixture(make_session)


# --- the first request and each minute -------------------------------------------------------------------------------


def first_call(time: Time, **options: Any) -> tuple[Session, Talk]:
    session = Session(parse_url("redis://db"), BackendOptions(namespace="n", **options))
    return session, Talk(session, op.Tick())


@pytest.mark.slow
def test_first_request_examines_server_rights_and_key_types(time: Time) -> None:
    session, talk = first_call(time)
    assert talk.command == ("INFO", "everything")
    talk.answer(INFO)
    assert script_of(talk) == "types"
    assert talk.arguments[8:] == tuple(key.name for key in FIXED)
    talk.answer(types_of(jobs="hash"))
    assert script_of(talk) == "probe"
    talk.answer([1])
    assert script_of(talk) == "tick"
    assert talk.answer(DONE).reply is not None
    assert script_of(Talk(session, op.Tick())) == "tick"


def test_a_namespace_whose_time_a_test_tells_is_marked(time: Time) -> None:
    for options, times in (({}, 0), ({"clock": FakeClock()}, 1)):
        _, talk = first_call(time, **options)
        talk.answer(INFO)
        commands = []
        while script_of(talk) != "tick":
            commands.append(talk.command)
            talk.answer(types_of() if script_of(talk) == "types" else 1)
        assert commands.count(("HSET", "{qh:n}:meta", "test", "1")) == times


def test_one_of_concurrent_callers_examines_the_server_each_minute(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S
    looking = Talk(session, op.Tick())
    assert looking.command == ("INFO", "everything")
    assert script_of(Talk(session, op.Tick())) == "tick"
    looking.break_off()
    assert Talk(session, op.Tick()).command == ("INFO", "everything")


@pytest.mark.parametrize("key", [key for key in keys.KEYS if not key.is_prefix], ids=lambda key: key.name)
def test_key_of_a_wrong_type_is_named_before_any_write(time: Time, key: keys.Key) -> None:
    for kind in ("string", "list", "set", "zset", "hash", "stream"):
        session, talk = first_call(time)
        talk.look_around(kind=kind, of=key.name)
        if kind == key.type:
            assert script_of(talk) == "tick"
        else:
            assert type(talk.error) is CorruptStateError
            assert str(talk.error).startswith(f"{{qh:n}}:{key.name} is a {kind} and should be a {key.type}")
            assert Talk(session, op.Tick()).command == ("INFO", "everything")


@pytest.mark.parametrize(
    "message",
    [
        "The user executing the script can't run this command or subcommand script: 12ab, on @user_script:1.",
        "ACL failure in script: User ann can't run this command script: 12ab, on @user_script:7.",
        "ACL failure in script: User ann has no permissions to run the 'zadd' command script: 12ab, on @user_script:1.",
    ],
    ids=["redis 7.0", "redis 7.2", "redis 8"],
)
def test_script_without_rights_is_denied_before_any_change(time: Time, message: str) -> None:
    session, talk = first_call(time)
    talk.answer(INFO)
    talk.answer(types_of())
    assert script_of(talk) == "probe"
    assert type(talk.fail(driver.ResponseError(message)).error) is BackendDeniedError
    assert script_of(Talk(session, op.Tick())) == "probe"


def test_questions_need_no_right_to_write(time: Time) -> None:
    talk = Talk(Session(parse_url("redis://db"), BackendOptions(namespace="n")), op.CountJobs())
    talk.answer(INFO)
    talk.answer(types_of())
    assert script_of(talk) == "count_jobs"


def test_each_minute_only_the_settings_are_examined_again(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S - 1
    assert script_of(Talk(session, op.Tick())) == "tick"
    time.now_s += 1
    talk = Talk(session, op.Tick())
    assert talk.command == ("INFO", "everything")
    assert script_of(talk.answer(INFO)) == "tick"
    assert script_of(Talk(session, op.Tick())) == "tick"


REPLICA = INFO.replace(b"role:master", b"role:slave")


EVICTS = INFO.replace(b"noeviction", b"allkeys-lru")


@pytest.mark.parametrize("is_first", [True, False], ids=["at first", "each minute"])
def test_evicting_server_enqueues_nothing_until_its_policy_is_right(
    session: Session, time: Time, caplog: pytest.LogCaptureFixture, is_first: bool
) -> None:
    session._checked_s = None if is_first else time.monotonic() - CHECK_EVERY_S
    for _ in range(2):
        talk = Talk(session, ONE)
        assert talk.command == ("INFO", "everything")
        talk.look_around(EVICTS)
        assert type(talk.error) is BackendUnavailableError
        assert "maxmemory-policy is allkeys-lru" in str(talk.error)
    assert not session.streams.free
    talk = Talk(session, ONE)
    assert script_of(talk.answer(INFO)) == "enqueue"
    assert script_of(Talk(session, ONE)) == "enqueue"
    assert [vars(record)["event"] for record in caplog.records if record.levelno >= logging.ERROR] == ["redis.policy"]
    assert "hunter2" not in caplog.text


def test_evicting_server_still_renews_settles_and_cancels(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S
    done = Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED)
    first = Talk(session, op.Renew((("a", 1),))).answer(EVICTS)
    assert script_of(first) == "renew"
    # Once known, it is not asked for again by what goes on.
    for operation, name in (
        (op.Tick(), "tick"),
        (op.Cancel(("a",)), "cancel"),
        (op.Exchange("w", (done,)), "exchange"),
    ):
        assert script_of(Talk(session, operation)) == name


def test_evicting_server_settles_and_claims_nothing(session: Session, time: Time) -> None:
    time.now_s += CHECK_EVERY_S
    done = Outcome(job_id="a", token=1, kind=OutcomeKind.FINISHED)
    settling = Talk(session, op.Exchange("w", (done,), limit=5)).answer(EVICTS)
    without = Talk(session, op.Exchange("w", (done,)))
    assert settling.arguments[3:] == without.arguments[3:]
    # A claim without settlements waits: the marker of the jobs that it does not take would wake it again at once.
    claiming = Talk(session, op.Exchange("w", limit=5)).answer(EVICTS)
    assert claiming.step == Sleep(STOPPED_S)
    assert claiming.answer().arguments[3:] == Talk(session, op.Exchange("w")).arguments[3:]
    assert Talk(session, op.Exchange("w", limit=5)).answer(INFO).arguments[10] == 5


def test_stalled_server_clock_is_examined_and_logged_each_minute(
    session: Session, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[tuple[int, str]]:
        found = [(record.levelno, vars(record)["event"]) for record in caplog.records]
        caplog.clear()
        return found

    ahead = [0, 100_000, -1, 0]
    Talk(session, op.Tick()).answer(ahead)
    time.now_s += STANDS_STILL_S
    Talk(session, op.Tick()).answer(ahead)
    assert session.clock_behind_ms == 0
    talk = Talk(session, op.Tick()).answer(INFO + b"server_time_usec:40000000\r\n")
    assert (script_of(talk), session.clock_behind_ms) == ("tick", 60_000)
    assert told() == [(logging.ERROR, "redis.clock_behind")]
    talk.answer(ahead)
    for _ in range(3):
        time.now_s += STANDS_STILL_S
        talk = Talk(session, op.Tick())
        assert script_of(talk) == "tick"
        talk.answer(ahead)
    assert told() == []
    time.now_s += CHECK_EVERY_S
    Talk(session, op.Tick()).answer(INFO + b"server_time_usec:97000000\r\n").answer(ahead)
    assert (told(), session.clock_behind_ms) == ([(logging.ERROR, "redis.clock_behind")], 3_000)
    time.now_s += CHECK_EVERY_S
    Talk(session, op.Tick()).answer(INFO + b"server_time_usec:99500000\r\n").answer(ahead)
    assert (told(), session.clock_behind_ms) == ([(logging.WARNING, "redis.clock_behind")], 0)


def test_server_without_a_time_is_not_judged_by_it(session: Session, time: Time) -> None:
    Talk(session, op.Tick()).answer([0, 100_000, -1, 0])
    time.now_s += CHECK_EVERY_S
    Talk(session, op.Tick()).answer(INFO)
    assert session.clock_behind_ms == 0


@pytest.mark.parametrize("is_first", [True, False], ids=["at first", "each minute"])
def test_self_declared_replica_is_left_for_the_primary(session: Session, time: Time, is_first: bool) -> None:
    session._checked_s = None if is_first else time.monotonic() - CHECK_EVERY_S
    talk = Talk(session, op.Tick())
    for attempt in range(3):
        assert talk.command == ("INFO", "everything")
        assert talk.answer(REPLICA).step == Redirect(leaves=True)
        assert talk.answer().step == Sleep(PAUSE_S[attempt])
        talk.answer()
    assert script_of(talk.look_around()) == "tick"


def test_replica_is_refused_by_role_after_a_long_search(session: Session, time: Time) -> None:
    session._checked_s = None
    talk = Talk(session, op.Tick())
    talk.answer(REPLICA).skip_move_and_sleep()
    time.now_s += RETRY_S
    talk.answer(REPLICA)
    assert type(talk.error) is BackendUnavailableError
    assert "its role is slave" in str(talk.error)
    # It is looked for again at the next call.
    assert Talk(session, op.Tick()).command == ("INFO", "everything")


def test_cluster_node_of_the_namespace_is_examined(time: Time) -> None:
    talk = Talk(Session(parse_url("redis+cluster://a,b"), BackendOptions(namespace="n")), op.Tick())
    assert talk.command == ("EXISTS", "{qh:n}:meta")
    assert talk.fail(driver.MovedError("1 c:7")).step == Redirect(("c", 7))
    assert talk.answer().command == ("EXISTS", "{qh:n}:meta")
    assert talk.answer(0).command == ("INFO", "everything")
    assert talk.answer(REPLICA).step == Redirect(leaves=True)
    assert talk.answer().answer().command == ("EXISTS", "{qh:n}:meta")


def test_question_goes_to_a_recently_confirmed_primary(session: Session, time: Time) -> None:
    for _ in range(2):
        time.now_s += ROLE_EVERY_S - 0.001
        talk = Talk(session, op.CountJobs())
        assert script_of(talk) == "count_jobs"
        # A change is taken by a primary alone.
        Talk(session, op.Tick()).answer([0, int(time.now_s * 1000), -1, 0])
    time.now_s += ROLE_EVERY_S
    assert script_of(Talk(session, op.Tick())) == "tick"
    talk = Talk(session, op.CountJobs())
    assert talk.command == ("INFO", "replication")
    assert talk.answer(b"role:slave\r\n").step == Redirect(leaves=True)
    assert talk.answer().answer().command == ("INFO", "replication")
    assert script_of(talk.answer(b"role:master\r\n")) == "count_jobs"
    assert script_of(Talk(session, op.CountJobs())) == "count_jobs"
    time.now_s += ROLE_EVERY_S
    talk = Talk(session, op.CountJobs())
    time.now_s += RETRY_S
    assert type(talk.answer(b"role:slave\r\n").error) is BackendUnavailableError


def test_cluster_replica_is_not_queried_for_its_role(time: Time) -> None:
    session = Session(parse_url("redis+cluster://a,b"), BackendOptions(namespace="n"))
    session._checked_s = time.monotonic()
    time.now_s += ROLE_EVERY_S
    assert script_of(Talk(session, op.CountJobs())) == "count_jobs"


@pytest.mark.parametrize("failure", [NotSent, Unanswered])
def test_unexaminable_server_is_unavailable_and_never_unknown(time: Time, failure: type[Exception]) -> None:
    session, talk = first_call(time)
    assert talk.fail(failure()).step == Redirect()
    assert talk.answer().step == Sleep(PAUSE_S[0])
    assert talk.answer().command == ("INFO", "everything")
    time.now_s += RETRY_S
    assert talk.fail(failure()).step == Redirect()
    talk.answer()
    assert type(talk.error) is BackendUnavailableError
    assert not session.streams.unknown


@pytest.mark.parametrize(
    "error, kind",
    [
        (driver.NoPermissionError("User ann has no permissions to run 'info'"), BackendDeniedError),
        (driver.NoPermissionError("NOAUTH Authentication required."), BackendDeniedError),
        (driver.ResponseError("ERR unknown"), BackendError),
    ],
)
def test_a_server_that_refuses_to_be_looked_at_says_so(time: Time, error: Exception, kind: type[Exception]) -> None:
    _, talk = first_call(time)
    assert type(talk.fail(error).error) is kind


def test_examination_of_a_loading_server_is_repeated(time: Time) -> None:
    _, talk = first_call(time)
    talk.fail(driver.ResponseError("LOADING Redis is loading")).skip_move_and_sleep()
    assert talk.command == ("INFO", "everything")
    assert talk.fail(driver.MovedError("1 b:7")).step == Redirect(("b", 7))
    assert talk.answer().command == ("INFO", "everything")


# --- problems of a server --------------------------------------------------------------------------------------------


SOUND = {"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction"}


def test_the_lines_of_info_are_read() -> None:
    text = b"# Server\r\nredis_version:7.0.15\r\nexecutable:/usr/bin/a:b\r\n\r\nodd \xff line\r\nname:\xff\r\n"
    assert parse_info(text) == {"redis_version": "7.0.15", "executable": "/usr/bin/a:b", "name": "\ufffd"}
    assert parse_info(b"") == {}


@pytest.mark.parametrize("version", ["7.0.3", "7.0.15", "7.2.4", "8.0.0", "10.1.2", "7.0.15.1", "255.255.255"])
def test_a_version_that_is_new_enough_is_taken(version: str) -> None:
    assert wrong_version({**SOUND, "redis_version": version}) is None


@pytest.mark.parametrize("version", ["7.0.2", "7.0", "6.2.14", "5.0.7", "", "x.y.z", "7"])
def test_an_old_version_is_refused_by_name(version: str) -> None:
    problem = wrong_version({**SOUND, "redis_version": version})
    assert problem == f"redis_version is {version}, at least 7.0.3 is needed"


def test_too_old_server_is_refused_before_any_request(time: Time) -> None:
    talk = Talk(Session(parse_url("redis://db"), BackendOptions(namespace="n")), ONE)
    assert talk.command[0] == "INFO"
    talk.answer(INFO.replace(b"7.0.15", b"6.2.14"))
    assert type(talk.error) is BackendUnavailableError
    assert "redis_version is 6.2.14, at least 7.0.3 is needed" in str(talk.error)


def test_a_server_that_does_not_say_its_version_is_refused() -> None:
    assert wrong_version({}) == "redis_version is 0, at least 7.0.3 is needed"


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl"])
def test_a_server_that_may_delete_jobs_is_refused(policy: str) -> None:
    problem = wrong_policy({**SOUND, "maxmemory_policy": policy})
    assert problem is not None
    assert problem.startswith(f"maxmemory-policy is {policy}")
    assert "must be noeviction" in problem


@pytest.mark.parametrize("role", ["slave", "replica", "sentinel"])
def test_a_server_that_is_no_primary_is_refused(role: str) -> None:
    problem = wrong_role({**SOUND, "role": role})
    assert problem is not None
    assert problem.startswith(f"its role is {role}")


def test_a_sound_server_is_taken() -> None:
    for info in (SOUND, {"redis_version": "7.2.4"}):
        assert wrong_version(info) is wrong_policy(info) is wrong_role(info) is None


@pytest.mark.parametrize(
    "info, durability",
    [({}, "D0: "), ({"aof_enabled": "0"}, "D0: "), ({"aof_enabled": "1"}, "D1 or D2, by ")],
)
def test_durability_class_is_read_from_the_append_only_file(info: dict[str, str], durability: str) -> None:
    assert durability_class(info).startswith(durability)


@pytest.mark.parametrize("aof, level", [(b"0", logging.WARNING), (b"1", logging.INFO)])
def test_durability_is_logged_once(time: Time, caplog: pytest.LogCaptureFixture, aof: bytes, level: int) -> None:
    caplog.set_level(logging.INFO, "queuehint.redis")
    session = Session(parse_url("redis://ann:hunter2@db"), BackendOptions())
    info = INFO.replace(b"aof_enabled:1", b"aof_enabled:" + aof)
    for _ in range(2):
        Talk(session, op.Tick()).look_around(info).answer(DONE)
        time.now_s += CHECK_EVERY_S
    events = {vars(record)["event"]: record for record in caplog.records}
    assert len(events) == len(caplog.records) == 2
    assert events["redis.durability"].levelno == level
    assert events["redis.plaintext"].levelno == logging.WARNING
    assert "hunter2" not in caplog.text


def test_prepared_request_is_sent_unchanged_and_packed_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Talk(session, ONE).arguments[3:]
    session.prepare(ONE)
    other = attrs.evolve(ONE, jobs=(JobSpec(id="b", task="t"),))
    assert Talk(session, other).arguments[3:] != plain
    with monkeypatch.context() as patch:
        patch.setattr("queuehint.backends.redis.codec.codec.encode", None)
        assert Talk(session, ONE).arguments[3:] == plain
    assert Talk(session, ONE).arguments[3:] == plain


def test_unpreparable_request_is_refused_at_the_call(session: Session) -> None:
    session.prepare(ONE)
    session.prepare(op.Enqueue((*ONE.jobs, *ONE.jobs)))
    assert session._prepared is None
    assert isinstance(Talk(session, op.Enqueue((*ONE.jobs, *ONE.jobs))).error, DuplicateJobError)
