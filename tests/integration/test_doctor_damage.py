"""`queuehint doctor`: damaged and stray data."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.backends.redis import keys, scripts
from queuehint.backends.redis.codec import codec, specs
from queuehint.backends.redis.doctor.sums import MARGIN
from queuehint.errors import CorruptStateError
from queuehint.testing import contract
from queuehint.values.hint import Claim
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence, Schedule
from queuehint.values.spec import Dependency, JobSpec
from tests.doctor_store import Store, base, job, open_store, schedules
from tests.heads import common_facts, facts_id, specs_in_heads

pytestmark = pytest.mark.redis

store = pytest.fixture(open_store)


# --- damaged and stray data ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_head_that_cannot_be_read_is_a_lost_job(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"))))
    for damaged in (b"\xc1", b"", b"\x93\x01\x02\x03", b"Q", b"R" + bytes(20), b"Q" + bytes(40), b"F" + bytes(60)):
        store.server.client().hset(store.key("jobs"), "1", damaged)
        assert "damaged" in store.put_right()
        assert [grant.spec.id for grant in store.do(op.Exchange("w", pools=("default",), limit=5)).grants] in (
            ["2"],
            [],
        )
        store.do(op.Enqueue((job("1", "a"),)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, entry",
    [
        ("paths", "x"),
        ("paths", "a\0A9"),
        ("paths", "b\0A1"),
        ("paths", "a\0A11"),
        ("timers", "0A9nobody"),
        ("leases", ""),
        ("prunes", "3"),
        ("ready", "default\0"),
        ("ready", "default\0\x000A9nobody"),
        ("parked", "A1A9nobody"),
        ("dead", "nobody"),
        ("keyed", "k"),
        ("holds", "a\0A1"),
        ("turns", "default\0A9nobody"),
        ("turns", "x"),
        ("line:a", "1nobody"),
        ("line:nowhere", "x"),
        ("waiting:1", "nobody"),
        ("blocked:1", "nobody"),
        ("blocked:nobody", "1"),
        ("specs", "nobody"),
        ("results", "1"),
        ("progress", "nobody"),
        ("asked", "nobody"),
        ("past", "a\0A1"),
        ("index", "nonsense"),
        ("index", "sF\x000"),
        ("blocks", "x"),
        ("blocks", "sF\0A0"),
        ("index", "#99"),
        ("index", "#x"),
        ("tallies", "s\0u"),
        ("tallied", "s\0u"),
        ("gates", "nowhere"),
        ("crowds", "nowhere"),
        ("crowds", "a"),
        ("untold", "w"),
        ("receipts", "w"),
        ("schedules", "nobody"),
        ("schedule_names", "nobody"),
        ("schedule_dues", "nobody"),
        ("left", "\xc1"),
        ("left", "x"),
        ("log:nobody", "x"),
        ("errors:1", "x"),
        ("steps:1", "n1"),
        ("steps:nobody", "=x"),
        ("wake:pool:nobody", "1"),
        ("wake:user:default\0nobody", "1"),
        ("wake:session:nobody", "1"),
        ("weights", "ann"),
    ],
)
def test_an_entry_that_nothing_leads_to_is_found_and_removed(store: Store, name: str, entry: str) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"))))
    before = stored(store)
    client, key = store.server.client(), store.key(name)
    raw = entry.encode("latin-1")
    kind = next(each.type for each in keys.KEYS if each.name == base(name))
    if kind == "zset":
        client.zadd(key, {raw: 7})
    elif kind == "hash":
        client.hset(key, raw, b"x")
    elif kind == "set":
        client.sadd(key, raw)
    else:
        client.rpush(key, raw)
    assert store.is_put_right()
    after = stored(store)
    assert {each: after.get(each) for each in before} == before
    assert after.keys() - before.keys() <= {"wake:timer"}


def stored(store: Store) -> dict[str, Any]:
    """Return what is stored, without what changes with every operation, or is forgotten in ten minutes anyway."""
    client: Any = store.server.client()
    begin = len(store.key(""))
    found: dict[str, Any] = {}
    for key in client.keys(store.key("*")):
        name, kind = key.decode()[begin:], client.type(key)
        if kind == b"hash":
            found[name] = client.hgetall(key)
            # Ids of records are kept in no order.
            for field in found[name] if name == "index" else ():
                if field.startswith(b"#"):
                    found[name][field] = sorted(re.findall(rb"[\x01-\x10][^\x00-\x1f]*", found[name][field]))
        elif kind == b"zset":
            found[name] = client.zrange(key, 0, -1, withscores=True)
        else:
            found[name] = client.smembers(key) if kind == b"set" else client.lrange(key, 0, -1)
    return {name: found[name] for name in found.keys() - {"meta", "receipts", "sessions"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, field, wrong",
    [
        ("index", "uu\x000", b"\x00\x60\x00\x00\x00"),  # number 2 too
        ("index", "uu\x000", b"\x00\x20\x00\x00\x00"),  # number 2 for number 1
        ("index", "uu\x000", b"\x1f\x40\x00\x00\x00\x00\x00\x00\x00"),  # beyond the block
        ("index", "a\x000", struct.pack(">dd", 2**50, 2**50)),
        ("index", "a\x000", struct.pack(">dd", 0, 0)),
        ("index", "a\x000", b"x"),
        ("index", "a\x009", struct.pack(">dd", 0, 2**50)),  # of a block without records
        ("index", "#0", b"\x022\x032"),  # number 1 is 2 too
        ("index", "#0", b"x"),
        ("tallies", "s\0u", b"5"),
        ("tallies", "s\0u", b"x"),
    ],
)
def test_wrong_bits_times_and_counts_of_records_are_repaired(store: Store, name: str, field: str, wrong: bytes) -> None:
    store.do(op.Enqueue((job("1", "a", user="u", service="s"), job("2", "a", user="v", service="s"))))
    before = stored(store)
    store.server.client().hset(store.key(name), field, wrong)
    assert store.is_put_right()
    after = stored(store)
    if field == "a\x000":
        # Times of a block may be too wide, never too narrow.
        before["index"][b"a\x000"] = after["index"][b"a\x000"]
    assert {each: after.get(each) for each in before} == before
    assert after["index"].keys() == before["index"].keys()
    since_ms = store.clock.now_ms()
    assert [record.id for record in store.do(op.List(RecordFilter(user="u", since_ms=since_ms))).records] == ["1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage, left",
    [
        (lambda client, key: client.delete(key), []),
        (lambda client, key: client.hdel(key, "n2"), ["a", "c"]),
        (lambda client, key: client.hdel(key, "=b"), ["a", "c"]),
        (lambda client, key: client.hdel(key, "n1", "=a"), ["b", "c"]),
        (lambda client, key: client.hdel(key, "n1", "=c"), ["b"]),
        (lambda client, key: client.hset(key, "x", "y"), ["a", "b", "c"]),
        (lambda client, key: client.hset(key, "n4", "7 a"), ["a", "b", "c"]),
    ],
    ids=["all", "a name", "a result", "a step", "two", "one more", "a name more"],
)
def test_partly_lost_steps_are_found_and_others_kept(
    store: Store, damage: Callable[[Any, str], object], left: list[str]
) -> None:
    driver = contract.Store(store.backend, store.clock, "sync")
    driver.enqueue(job("1", "a"), job("2", "b"))
    driver.start()
    token, other = driver.grants["1"].token, driver.grants["2"].token
    for job_id, proof in (("1", token), ("2", other)):
        driver.store_steps(job_id, proof, a=b"a" * 9, b=b"b" * 9, c=b"c" * 9)
    damage(store.server.client(), store.key("steps:1"))
    found = store.look().errors
    assert {(finding.kind, finding.where, finding.job_id) for finding in found} == {("note", store.key("steps:1"), "1")}
    assert "results of steps" in found[0].what
    assert store.is_put_right()
    steps = driver.fetch_steps("1", token).steps
    assert [(name, result) for name, _, result in steps] == [(name, name.encode() * 9) for name in left]
    assert [name for name, _, _ in driver.fetch_steps("2", other).steps] == ["a", "b", "c"]
    assert driver.store_steps("1", token, d=b"4").steps[0][1] is None
    assert store.look().errors == ()
    assert [step.name for step in driver.record("1").steps] == [*left, "d"]


def test_a_question_that_meets_a_lost_step_says_so(store: Store) -> None:
    driver = contract.Store(store.backend, store.clock, "sync")
    driver.enqueue(job("1", "a"))
    driver.start()
    token = driver.grants["1"].token
    driver.store_steps("1", token, a=b"1")
    store.server.client().hdel(store.key("steps:1"), "=a")
    with pytest.raises(CorruptStateError, match=r"step 1 of job 1 is missing in .*steps:1; run"):
        driver.fetch_steps("1", token)
    store.server.client().delete(store.key("steps:1"))
    assert [step.name for step in driver.record("1").steps] == [""]
    assert store.is_put_right()
    assert driver.record("1").steps == ()


def with_each_number(store: Store) -> None:
    """Enqueue a job that waits, one that is hidden, one that is over and one that is dead and holds its place."""
    store.do(op.Enqueue((job("over", "a"), job("dead", "b", policy=Policy(max_attempts=1, on_dead="hold")))))
    for kind in (OutcomeKind.FINISHED, OutcomeKind.FAILED):
        (grant,) = store.do(op.Exchange("w", limit=1)).grants
        store.do(op.Exchange("w", settle=(Outcome(job_id=grant.spec.id, token=grant.token, kind=kind),)))
    store.do(op.Enqueue((job("hidden", "c"), job("nowhere")), staged="s"))
    store.do(op.Enqueue((job("waits", "d"),)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [None, b"x", b"\x02waits\x03over\x04dead\x05nobody"], ids=["none", "no ids", "others"]
)
def test_damaged_number_index_is_found_alone(store: Store, wrong: bytes | None) -> None:
    with_each_number(store)
    before, client = stored(store), store.server.client()
    if wrong is None:
        client.hdel(store.key("index"), "#0")
    else:
        client.hset(store.key("index"), "#0", wrong)
    found = store.look().errors
    assert {finding.where for finding in found} == {store.key("index")}
    assert {finding.job_id for finding in found} >= {"over", "dead", "hidden", "nowhere", "waits"}
    assert store.is_put_right()
    assert stored(store) == before


@pytest.mark.parametrize("name", ["paths", "holds", "past"])
def test_dangling_number_is_judged_once_the_index_is_whole(store: Store, name: str) -> None:
    with_each_number(store)
    before, client = stored(store), store.server.client()
    client.hdel(store.key("index"), "#0")
    client.zadd(store.key(name), {"a\0A9": 0})
    assert store.kinds() == {"bit"}
    assert store.is_put_right()
    assert stored(store) == before


def test_operation_that_meets_a_number_without_id_reports_damage(store: Store) -> None:
    with_each_number(store)
    store.server.client().hdel(store.key("index"), "#0")
    said = (
        f"^number 6 is named in {re.escape(store.key('paths'))} and has no id in {re.escape(store.key('index'))}; run"
    )
    for operation in (op.CountPending(("d",)), op.List(RecordFilter(path=("d",)))):
        with pytest.raises(CorruptStateError, match=said):
            store.do(operation)
    assert store.is_put_right()
    assert [record.id for record in store.do(op.List(RecordFilter(path=("d",)))).records] == ["waits"]


def facts_of(store: Store) -> dict[bytes, bytes]:
    """Return what is held of facts."""
    client: Any = store.server.client()
    return dict(client.hgetall(store.key("facts")))


def test_facts_that_no_record_names_are_found_and_go(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"),)))
    before = facts_of(store)
    other = common_facts(job("2", "a", priority=1))
    client: Any = store.server.client()
    stray = {facts_id(other): other, b"sixsix": other, b"1": other, b"twelve bytes": b""}
    client.hset(store.key("facts"), mapping=stray)
    assert {each.kind for each in store.look().errors} == {"stray", "unnamed"}
    assert store.is_put_right()
    assert facts_of(store) == before


@pytest.mark.parametrize("names", [("blocks",), ("index",), ("index", "blocks")])
def test_facts_outlive_the_index_that_leads_to_them(store: Store, names: tuple[str, ...]) -> None:
    store.do(op.Enqueue(tuple(job(str(number), "a", priority=1 + number % 3) for number in range(9))))
    before = stored(store)
    store.server.client().delete(*[store.key(name) for name in names])
    assert store.is_put_right()
    assert stored(store) == before
    assert len(store.do(op.List(RecordFilter(task="t"))).records) == 9


@pytest.mark.slow
@pytest.mark.parametrize("text", [None, b"", b"1\np\nt\n\n", b"x"], ids=["none", "empty", "another", "no facts"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_jobs_whose_facts_are_lost_are_lost(store: Store, text: bytes | None, is_plain: bool) -> None:
    more = {} if is_plain else {"key": "k"}
    store.do(op.Enqueue((job("1", "a", **more), job("2", "a", priority=1))))
    lost, client = facts_id(common_facts(job("1", "a"))), store.server.client()
    if text is None:
        client.hdel(store.key("facts"), lost)
    else:
        client.hset(store.key("facts"), lost, text)
    found = store.look().errors
    assert [finding.job_id for finding in found if finding.kind == "damaged"] == ["1"]
    assert any(finding.where == store.key("facts") for finding in found) == (text is not None)
    assert store.is_put_right()
    assert list(facts_of(store).values()) == [common_facts(job("2", "a", priority=1))]
    assert [grant.spec.id for grant in store.do(op.Exchange("w", limit=5)).grants] == ["2"]


def test_a_head_that_names_no_facts_is_a_lost_job(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a", key="k"), job("2", "a", key="l"))))
    for damage in ("value[19] = false", "value[19] = 5", "value[19] = ''", "value[19] = 'nobody'"):
        store.do(op.Enqueue((job("1", "a", key="k"),)))
        store.change_packed("jobs", "1", damage)
        assert "damaged" in store.put_right()
    store.drain()
    assert not facts_of(store)


def test_an_entry_with_another_score_is_found_and_put_right(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"), job("3", delay_ms=5_000))))
    client: Any = store.server.client()
    client.zadd(store.key("line:a"), {"12": 9})
    ((member, score),) = client.zrange(store.key("timers"), 0, -1, withscores=True)
    client.zadd(store.key("timers"), {member: float(score) + 1})
    assert {finding.job_id for finding in store.look().errors} == {"2", "3"}
    assert store.is_put_right()
    assert client.zscore(store.key("timers"), member) == score


def with_schedules(store: Store) -> dict[str, Schedule]:
    """Put three schedules, one of them paused; return what is known of them."""
    for number, name in enumerate(("first", "paused", "ended")):
        next_ms = None if name == "ended" else store.clock.now_ms() + 1000 * (number + 1)
        store.do(op.PutSchedule(name, job(name, "a"), Recurrence(every_ms=1000), next_ms))
    store.do(op.ChangeSchedule("paused", "pause"))
    return schedules(store)


def test_schedules_are_looked_at_and_nothing_is_wrong_with_them(store: Store) -> None:
    with_schedules(store)
    assert store.look().is_clean
    store.clock.advance(ms=5000)
    store.do(op.Tick())
    assert store.look().is_clean


@pytest.mark.parametrize(
    "change",
    ["value[2] = 5", "value[2] = false", "value[3] = true", "value[1] = 10000"],
    ids=["another time", "no time", "paused", "a version that was never given"],
)
def test_misplaced_schedule_is_found_and_repaired(store: Store, change: str) -> None:
    before = with_schedules(store)
    store.change_packed("schedules", "first", change)
    assert store.is_put_right()
    assert schedules(store).keys() == before.keys()
    store.do(op.PutSchedule("first", job("first", "a"), Recurrence(every_ms=5), 9))
    versions = [schedule.version for schedule in schedules(store).values()]
    assert len(set(versions)) == 3
    assert max(versions) == schedules(store)["first"].version


@pytest.mark.parametrize("change", ["value[48] = 7", "value[49] = 0", "value[50] = 7", "value[50] = -1"])
def test_damaged_schedule_counters_are_found_and_repaired(store: Store, change: str) -> None:
    before = with_schedules(store)
    store.change_packed("meta", "state", change)
    assert store.put_right() == {"counter"}
    assert schedules(store) == before
    assert store.do(op.Tick()).next_ms == before["first"].next_ms


def test_wrong_due_time_is_found_and_repaired(store: Store) -> None:
    before = with_schedules(store)
    client = store.server.client()
    client.zadd(store.key("schedule_dues"), {"first": 7})
    client.zadd(store.key("schedule_dues"), {"paused": 7})
    assert store.is_put_right()
    assert schedules(store) == before
    assert store.do(op.Tick()).next_ms == before["first"].next_ms


def test_unreadable_schedule_is_removed_and_others_continue(store: Store) -> None:
    before = with_schedules(store)
    store.server.client().hset(store.key("schedules"), "first", b"\xc1")
    (finding,) = [each for each in store.look().errors if each.kind == "schedule"]
    assert "cannot be read" in finding.what
    assert store.is_put_right()
    assert schedules(store).keys() == before.keys() - {"first"}
    assert store.do(op.PutSchedule("first", job("first", "a"), Recurrence(every_ms=1000), 9)).changed
    assert store.look().is_clean


def test_a_lost_state_knows_its_schedules_again(store: Store) -> None:
    before = with_schedules(store)
    store.do(op.Enqueue((job("1", "a"),)))
    store.server.client().hdel(store.key("meta"), "state")
    assert store.is_put_right()
    assert schedules(store) == before
    assert store.do(op.ChangeSchedule("first", "pause")).changed
    assert schedules(store)["first"].version > MARGIN
    store.clock.advance(ms=5000)
    assert not store.do(op.Exchange("w")).due


def test_foreign_key_is_reported_and_left_alone(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"),)))
    client = store.server.client()
    names = ("elsewhere", "jobs:1", "wake:", "wake:other:1", "", "\x1b[31m")
    for name in names:
        client.set(store.key(name), "theirs")
    near = keys.redis_key(store.namespace + "x", "jobs")
    client.set(near, "another namespace's")
    report = store.look(fix=True)
    assert sorted(f.where for f in report.errors) == sorted(store.key(name).replace("\x1b", "\\x1b") for name in names)
    assert {finding.kind for finding in report.errors} == {"foreign"}
    assert not any(finding.is_repairable for finding in report.errors)
    assert not report.repaired
    assert all(client.get(store.key(name)) == b"theirs" for name in names)
    client.delete(*[store.key(name) for name in names], near)


def test_key_with_an_expiry_is_reported_and_kept(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"))))
    client = store.server.client()
    for name in ("jobs", "line:a"):
        client.expire(store.key(name), 1000)
    found = {("ttl", store.key(name)) for name in ("jobs", "line:a")}
    assert {(finding.kind, finding.where) for finding in store.look().errors} == found
    # How long they have left differs from one look to the next.
    report = store.look(fix=True)
    assert report.is_clean
    assert {(finding.kind, finding.where) for finding in report.repaired} == found
    assert store.look().is_clean
    assert client.ttl(store.key("jobs")) == client.ttl(store.key("line:a")) == -1


@pytest.mark.parametrize("name", ["jobs", "meta", "ready", "line:a"])
def test_key_of_a_wrong_type_is_the_only_finding(store: Store, name: str) -> None:
    store.do(op.Enqueue((job("1", "a"),)))
    client, key = store.server.client(), store.key(name)
    client.delete(key)
    client.set(key, "x")
    report = store.look(fix=True)
    (finding,) = report.errors
    assert (finding.kind, finding.where, finding.is_repairable) == ("type", key, False)
    assert "wrong type" in report.unchecked[0]
    client.delete(key)
    if name == "meta":
        client.hset(key, "test", "1")
    assert store.look(fix=True).is_clean


@pytest.mark.parametrize("by", [1, -1], ids=["a newer one", "an older one"])
def test_another_schema_is_refused_by_its_number(store: Store, by: int) -> None:
    store.do(op.Enqueue((job("1", "a"),)))
    store.change_packed("meta", "state", f"value[1] = {codec.SCHEMA + by}")
    with pytest.raises(CorruptStateError, match=f"schema {codec.SCHEMA + by}, .* knows schema {codec.SCHEMA}"):
        store.do(op.Enqueue((job("2", "a"),)))
    report = store.look(fix=True)
    (finding,) = report.errors
    assert finding.kind == "schema"
    assert f"schema {codec.SCHEMA + by}" in finding.what
    assert report.unchecked


def test_user_markers_last_as_long_as_their_worker(store: Store) -> None:
    client: Any = store.server.client()
    marker = store.key("wake:user:default\0ann")
    store.do(op.Exchange("w", pools=("default",), limit=1, users=("ann",)))
    store.do(op.Enqueue((job("1", user="ann"),)))
    assert client.unlink(marker)
    store.clock.advance(ms=50_000)
    client.hdel(store.key("meta"), "state")
    assert "state" in store.put_right()
    store.clock.advance(ms=2_000)
    store.do(op.Enqueue((job("2", user="ann"),)))
    assert client.exists(marker), "the worker of this user may wait for it"
    store.clock.advance(ms=60_000)
    store.do(op.Tick())
    assert not client.exists(marker)
    assert store.look().is_clean


def test_marker_of_an_unrequested_user_is_removed(store: Store) -> None:
    client: Any = store.server.client()
    store.do(op.Exchange("w", pools=("default",), limit=1, users=("ann",)))
    store.do(op.Enqueue((job("1", user="ann"),)))
    assert store.look().is_clean
    client.delete(store.key("seen"))
    assert store.put_right() == {"key"}
    assert not client.exists(store.key("wake:user:default\0ann"))
    store.drain()
    assert store.look().is_clean


def test_jobs_that_run_at_once_and_conflict_are_reported(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a", "b"), job("2", "c", key="k"), job("3", "d"))))
    store.do(op.Exchange("w", pools=("default",), limit=3))
    store.change_packed("jobs", "2", "for at = 1, #value do if value[at] == 'xc' then value[at] = 'xa' end end")
    conflicts = [finding for finding in store.look().errors if finding.kind == "conflict"]
    assert [finding.what for finding in conflicts] == ["jobs 1 and 2 run at once, and their claims conflict"]
    assert not conflicts[0].is_repairable


def test_cycle_of_jobs_is_reported_with_its_remedy(store: Store) -> None:
    edges = [("a", "x"), ("b", "a"), ("c", "b"), ("d", "c")]
    after = [attrs.evolve(job(each, "p"), depends_on=(Dependency(need),)) for each, need in edges]
    store.do(op.Enqueue((job("x"), *after)))
    assert store.look().is_clean
    client = store.server.client()
    client.hdel(store.key("blocked:a"), "x")
    client.hset(store.key("blocked:a"), "c", "dwdk")
    client.zadd(store.key("waiting:c"), {"a": 2})
    found = [finding for finding in store.look().errors if finding.kind == "cycle"]
    assert [(each.job_id, each.is_repairable) for each in found] == [(found[0].job_id, False)]
    assert "wait for one another for ever; cancel one: `queuehint cancel " in found[0].what
    reason = store.do(op.Why("b")).reasons[0]
    assert (reason.stuck, reason.detail) == (True, "they wait for one another, cancel one: b, a, c")
    [reason] = store.do(op.Why("d")).reasons
    assert (reason.stuck, reason.jobs) == (False, ("c",))
    chain = store.do(op.Why("d", op.CHAIN_MAX)).reasons
    assert [(reason.job_id, reason.stuck) for reason in chain] == [
        ("d", False),
        ("c", False),
        ("b", False),
        ("a", True),
    ]
    for pending in (store.do(op.CountPending(("p",))), store.do(op.CountPending())):
        ahead = "for one another, cancel one: a, c, b"
        said = [f"they wait {ahead}"] * 3 + [f"it waits for jobs that wait {ahead}"]
        details = [reason.detail for reason in pending.reasons if reason.job_id != "x"]
        assert (pending.moving, details, all(reason.stuck for reason in pending.reasons)) == (False, said, True)
    store.do(op.Cancel(("b",)))
    assert not [finding for finding in store.look().errors if finding.kind == "cycle"]


def test_a_head_that_contradicts_itself_is_reported(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a", key="k"))))
    store.change_packed("jobs", "2", "value[1] = 'S'")
    findings = [finding for finding in store.look(fix=True).errors if finding.kind == "head"]
    assert [(finding.job_id, finding.is_repairable) for finding in findings] == [("2", False)]


def test_job_finished_at_its_first_attempt_has_a_worker(store: Store) -> None:
    def run(kind: OutcomeKind) -> None:
        grants = store.do(op.Exchange("w", pools=("default",), limit=3)).grants
        ended = tuple(Outcome(job_id=each.spec.id, token=each.token, kind=kind) for each in grants)
        store.do(op.Exchange("w", settle=ended))

    store.do(op.Enqueue((job("again", "a"),)))
    run(OutcomeKind.RELEASED)
    store.do(op.Enqueue((job("once", "b"), JobSpec(id="once-array", task="t", claims=(Claim(("c",)), Claim(("d",)))))))
    run(OutcomeKind.FINISHED)
    store.do(op.Enqueue((job("never", key="k"),)))
    assert store.look().is_clean
    for job_id in ("again", "never"):
        store.change_packed("jobs", job_id, "value[7] = 'w'")
    findings = [finding for finding in store.look().errors if finding.kind == "head"]
    assert {finding.job_id: finding.what.split(" has ")[-1] for finding in findings} == {
        "again": "a worker and is not STARTED",
        "never": "a worker and is not STARTED",
    }


# --- where a spec stands ---------------------------------------------------------------------------------------------

ARGUMENTS = b"x" * 50
ELSEWHERE = f"value[{scripts.constants_of(scripts.source('lib/jobs/fields'))['SHORT_SPEC']}] = %s"
"""What a head says of its spec, by a line of Lua."""


def granted(store: Store) -> dict[str, bytes]:
    grants = store.do(op.Exchange("w", pools=("default",), limit=9)).grants
    return {grant.spec.id: grant.spec.arguments for grant in grants}


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 30, 50])
def test_head_that_lacks_a_part_of_its_spec_is_lost(store: Store, kept: int) -> None:
    store.do(op.Enqueue((job("1", "a", arguments=ARGUMENTS), job("2", "a"))))
    head = store.server.client().hget(store.key("jobs"), "1")
    assert isinstance(head, bytes)
    store.server.client().hset(store.key("jobs"), "1", head[: head.index(b"\n" + ARGUMENTS) + kept])
    assert "damaged" in store.put_right()
    assert granted(store) == {"2": b"{}"}


def test_head_with_a_malformed_spec_is_lost(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a", key="k", arguments=ARGUMENTS), job("2", "a"))))
    store.change_packed("jobs", "1", ELSEWHERE % 7)
    assert "damaged" in store.put_right()
    assert granted(store) == {"2": b"{}"}


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "with a key"])
def test_a_spec_beside_the_one_in_the_head_is_dropped(store: Store, key: str | None) -> None:
    store.do(op.Enqueue((job("1", "a", key=key, arguments=ARGUMENTS), job("2", "b", arguments=b"x" * 200))))
    store.server.client().hset(store.key("specs"), "1", b"\n{}")
    assert store.kinds() == {"stray"}
    assert store.is_put_right()
    assert store.server.client().hkeys(store.key("specs")) == [b"2"]
    assert granted(store) == {"1": ARGUMENTS, "2": b"x" * 200}


def test_job_whose_head_refers_to_a_missing_spec_is_removed(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a", key="k", arguments=ARGUMENTS), job("2", "a"))))
    store.change_packed("jobs", "1", ELSEWHERE % "false")
    assert store.put_right() == {"spec"}
    assert granted(store) == {"2": b"{}"}


def test_first_job_of_a_submission_gets_the_shared_spec(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"),), staged="s"))
    before = specs_in_heads(store.server, store.namespace)
    store.change_packed("jobs", " s", ELSEWHERE % "false")
    assert store.put_right() == {"spec"}
    assert specs_in_heads(store.server, store.namespace) == before


@pytest.mark.parametrize("count", [1, 2])
def test_an_empty_spec_stands_in_no_head(store: Store, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(specs, "_rest", lambda spec: b"")
    ids = [str(number) for number in range(count)]
    store.do(op.Enqueue(tuple(job(job_id, "a") for job_id in ids)))
    assert store.look().is_clean
    assert store.server.client().hgetall(store.key("specs")) == {job_id.encode(): b"" for job_id in ids}
