"""`queuehint doctor`: it finds missing and miscounted data, reports no false findings, and repairs what it can."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Self

import attrs
import pytest

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.doctor import places
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.backends.redis.doctor.sums import COUNTED, MARGIN
from queuehint.backends.report import Report
from queuehint.errors import QueueFullError
from queuehint.testing.state_machine.styles import STYLES, Style
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import Dependency
from tests.doctor_store import Store, base, counters, job, named, open_store, turns
from tests.property.agreement import ALPHABETS, PayloadGenerator, RedisLockstep
from tests.servers import Server
from tests.support import thorough

pytestmark = pytest.mark.redis


BUDGETS = (op.BUDGET, 2)


SILENT = frozenset(
    {
        "asked",
        "seen",
        "sessions",
        "receipts",
        "untold",
        "workers",
        "events",
        "wake:timer",
        "wake:pool:",
        "wake:user:",
        "wake:release:",
        "wake:session:",
    }
)
"""Keys in which a missing entry cannot be noticed, and loses no job: only a trace of its past, or a marker."""


SEEN_AT = {
    "left": ("gates", "waiting:", "parked", "left"),
    "pauses": ("meta", "parked"),
    "selections": ("meta", "parked"),
    "closed": ("meta",),
    "weights": ("meta",),
    "turns": ("users", "pools"),
    "waiting:": ("blocked:", "waiting:"),
    "blocked:": ("waiting:", "blocked:"),
    "jobs": ("meta", "jobs"),
    "refused": ("pools",),
    "shared_ends": ("shared",),
    "shared_names": ("shared",),
    "looks": ("gauges:",),
    "facts": ("jobs",),
    "gauges:": ("gauges:", "looks"),
    "crowds": ("gates",),
    "schedules": ("schedule_names", "meta"),
    "schedule_names": ("schedules",),
    "schedule_dues": ("schedules", "meta"),
    "blocks": ("index",),
    "tallied": ("tallies",),
}
"""Where the loss of an entry shows, if not in its own key."""

store = pytest.fixture(open_store)


# --- random damage ---------------------------------------------------------------------------------------------------


class Walk:
    """A random history on a store, beside the engine that makes it up."""

    def __init__(self, seed: int, style: Style, budget: int) -> None:
        self.random = Random(seed)
        self.lockstep = RedisLockstep(budget=budget)
        self.generator = PayloadGenerator(self.lockstep.engine, self.random, style, self.random.choice(ALPHABETS))
        lockstep = self.lockstep
        self.store = Store(lockstep.backend, lockstep.clock, lockstep.server, lockstep.namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.lockstep.close()

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.lockstep.go_to(self.generator.pass_time(self.lockstep.now_ms))
            self.lockstep.do(self.generator.move() if self.random.random() < 0.85 else op.Tick())

    def open_all(self) -> None:
        """Let everything run again: what is paused or closed, or costs more than a limit has, waits for a person."""
        table = self.lockstep.engine.table
        most = max([known.spec.policy.cost for known in table.jobs.values()], default=1)
        for state in table.limits.states(0):
            if state.limit.costs_max < most:
                self.store.do(op.SetLimit(state.limit.lifted))
        for pause in table.pauses.all():
            self.store.do(op.Resume(pause.filter))
        for path in sorted(table.closed):
            self.store.do(op.Close(path, reopen=True))

    def names(self) -> dict[str, list[str]]:
        """Return the keys there are, by what is in them, without the namespace."""
        begin = len(keys.root(self.lockstep.namespace)) + 1
        found: dict[str, list[str]] = {}
        for name in sorted(self.lockstep._names()):
            found.setdefault(base(name.decode()[begin:]), []).append(name.decode()[begin:])
        return found


def remove(store: Store, random: Random, name: str, *, whole: bool) -> str:
    """Remove a key, or an entry of it, by hand; return which."""
    client: Any = store.server.client()
    key = store.key(name)
    kind = client.type(key)
    if name == "meta":
        # Its other fields are used by tests.
        client.hdel(key, "state")
        return "state"
    if whole:
        client.delete(key)
        return "all"
    if kind == b"hash":
        item = random.choice(sorted(client.hkeys(key)))
        client.hdel(key, item)
    elif kind == b"zset":
        item = random.choice(client.zrange(key, 0, -1))
        client.zrem(key, item)
    elif kind == b"set":
        item = random.choice(sorted(client.smembers(key)))
        client.srem(key, item)
    else:
        item = random.choice(client.lrange(key, 0, -1))
        client.lrem(key, 1, item)
    return repr(item)


# --- no false findings -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("style", STYLES[:: thorough(1, quick=4)], ids=named)
def test_doctor_finds_nothing_during_and_after_a_walk(style: Style, budget: int) -> None:
    left_over = 0
    seeds = range(3, thorough(6, quick=4))
    for seed in seeds:
        with Walk(seed, style, budget) as walk:
            for _ in range(6):
                walk.go(20)
                # A redrive leaves what follows to the next change.
                walk.lockstep.do(op.Tick())
                for _ in range(20 if budget < op.BUDGET else 0):
                    if not walk.lockstep.engine.table.leftovers:
                        walk.go(1)
                left_over += len(walk.lockstep.engine.table.leftovers)
                report = walk.store.look()
                assert report.is_clean, f"seed {seed}\n{report}"
                assert report.was_quiet
                assert not report.unchecked
                assert report.facts["jobs"] == len(walk.lockstep.engine.table.jobs)
            walk.lockstep.wind_down()
            assert walk.store.look().is_clean
    assert budget < op.BUDGET or not left_over
    assert budget == op.BUDGET or left_over or len(seeds) == 1, "a small budget leaves work over"


def test_a_namespace_that_nobody_used_is_clean_and_stays_unused(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    assert diagnose(backend, fix=True).is_clean
    assert not redis_server.client().keys(keys.redis_key(namespace, "*"))
    backend.close_sync()


def test_to_look_changes_nothing() -> None:
    with Walk(1, STYLES[0], 2) as walk:
        walk.go(60)
        before = walk.lockstep.dump()
        walk.store.look()
        walk.store.look(fix=True)
        assert walk.lockstep.dump() == before


# --- missing data ----------------------------------------------------------------------------------------------------


def is_named(report: Report, store: Store, names: Sequence[str]) -> bool:
    wanted = tuple(store.key(name) for name in names)
    return any(
        finding.where.startswith(wanted) or any(name in finding.what for name in wanted) for finding in report.errors
    )


def by_turns() -> list[Any]:
    """Return each kind of key, and whether the whole key is deleted; seven pairs of eight are for the night."""
    found = []
    for number, kind in enumerate(key.name for key in keys.KEYS):
        for whole in (True, False):
            marks = [] if number % 8 == 4 * whole else [pytest.mark.nightly]
            found.append(pytest.param(kind, whole, id=f"{'the key' if whole else 'an entry'}-{kind}", marks=marks))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind, whole", by_turns())
def test_doctor_finds_and_repairs_deleted_keys(kind: str, whole: bool) -> None:
    for seed in range(200):
        with Walk(seed, STYLES[seed % len(STYLES)], (2, op.BUDGET)[seed % 3 == 0]) as walk:
            for _ in range(30):
                walk.go(4)
                walk.lockstep.do(walk.generator.note())
                if kind in walk.names():
                    break
            else:
                continue
            if kind == "left" and all(item[0] == "c" for item in leftovers(walk.store)):
                continue  # what a person canceled is known nowhere else
            name = walk.random.choice(walk.names()[kind])
            what = remove(walk.store, walk.random, name, whole=whole)
            report = walk.store.look()
            text = f"seed {seed}: {what} of {name} was removed\n{report}"
            if kind == "left" and not whole and report.is_clean:
                continue
            if kind in SILENT:
                # A marker whose user was asked for by nobody shows that a time in seen was lost.
                shown = {"session", "key"} if kind == "seen" else {"session"}
                assert {finding.kind for finding in report.errors} <= shown, text
            else:
                assert is_named(report, walk.store, SEEN_AT.get(kind, (kind,))), text
            assert walk.store.look(fix=True).is_clean, text
            assert walk.store.look().is_clean, text
            walk.open_all()
            walk.store.drain()
            assert walk.store.look().is_clean, text
            return
    pytest.fail(f"no walk has a key {kind}")


def leftovers(store: Store) -> list[list[str]]:
    text = """local items = {}
        for at, item in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do items[at] = {cmsgpack.unpack(item)[1]} end
        return items"""
    return [[part.decode() for part in item] for item in store.call("EVAL", text, 1, store.key("left"))]


def lose_something(seed: int) -> None:
    """Walk, remove one or several things by hand, have them put right, and run the rest."""
    random = Random(seed)
    with Walk(seed, STYLES[seed % len(STYLES)], random.choice((op.BUDGET, op.BUDGET, 2, 1))) as walk:
        removed: list[str] = []
        try:
            walk.go(random.randint(10, 100))
            for _ in range(random.choice((1, 1, 3))):
                names = walk.names()
                name = random.choice(names[random.choice(sorted(names))])
                removed.append(f"{remove(walk.store, random, name, whole=random.random() < 0.4)} of {name}")
            before = walk.store.look()
            # In an empty namespace a lost state looks like one that was never written.
            was_empty = removed == ["state of meta"] and not walk.store.server.client().hlen(walk.store.key("jobs"))
            if not was_empty and {base(each.partition(" of ")[2]) for each in removed}.isdisjoint(SILENT | {"left"}):
                assert not before.is_clean
            report = walk.store.look(fix=True)
            assert report.is_clean, str(report)
            assert not report.unchecked
            assert walk.store.look().is_clean
            walk.open_all()
            walk.store.drain()
            report = walk.store.look()
            assert report.is_clean, f"in the end\n{report}"
        except BaseException as error:
            error.add_note(f"seed {seed}, removed: {removed}")
            raise


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("block", range(6))
def test_whatever_is_deleted_by_hand_the_rest_goes_on(block: int) -> None:
    for seed in range(10 * block, 10 * block + thorough(10, quick=2)):
        lose_something(seed)


def test_job_with_lost_dependencies_ends_when_its_dead_one_expires(store: Store) -> None:
    waits = attrs.evolve(job("2"), depends_on=(Dependency("1"),))
    store.do(op.Enqueue((job("1", policy=Policy(max_attempts=1)), waits, attrs.evolve(waits, id="3"))))
    (grant,) = store.do(op.Exchange("w", pools=("default",), limit=9)).grants
    store.do(op.Exchange("w", settle=(Outcome(job_id="1", token=grant.token, kind=OutcomeKind.FAILED),)))
    store.call("HDEL", store.key("needs"), "2")
    assert store.is_put_right()
    states = [JobState.FAILED, JobState.DEFERRED, JobState.DEFERRED]
    while (records := store.do(op.Get(("1", "2", "3"))).records)[0] is not None:
        assert [record.state for record in records] == states, "a dead dependency may be redriven"
        store.clock.advance(ms=86_400_000)
        store.do(op.Tick())
    assert [(record.state, record.cause) for record in records[1:]] == [
        (JobState.CANCELED, "dependency 1 has expired")
    ] * 2
    store.drain()


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("block", range(20))
def test_store_survives_a_thousand_deletions_by_hand(block: int) -> None:
    for seed in range(1_000 + 50 * block, 1_050 + 50 * block):
        lose_something(seed)


def test_where_all_is_lost_but_the_indexes_nothing_is_left(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"), job("3"))))
    store.do(op.Exchange("w", pools=("default",), limit=1))
    store.server.client().delete(store.key("jobs"))
    report = store.look()
    assert {finding.job_id for finding in report.errors if finding.kind == "job"} == {"1", "2", "3"}
    assert any("3 are lost" in finding.what for finding in report.errors)
    assert store.is_put_right()
    assert store.do(op.CountJobs()).states[JobState.QUEUED] == 0
    store.do(op.Enqueue((job("1", "a"),)))
    assert [grant.spec.id for grant in store.do(op.Exchange("w", pools=("default",), limit=5)).grants] == ["1"]


def test_job_without_a_spec_is_removed_and_its_followers_run(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a", key="k", arguments=b"x" * 200), job("2", "a"))))
    store.do(op.Exchange("w", pools=("default",), limit=1))
    store.do(op.Enqueue((job("3", "b", key="k", on_conflict="after"),)))
    store.server.client().hdel(store.key("specs"), "1")
    (finding,) = store.look().errors
    assert (finding.kind, finding.job_id, finding.is_repairable) == ("spec", "1", True)
    assert store.is_put_right()
    assert {grant.spec.id for grant in store.do(op.Exchange("w", pools=("default",), limit=5)).grants} == {"2", "3"}


@pytest.fixture
def canceled() -> Iterator[Store]:
    """Give a store in which job 2 is canceled and its edges, one of its key and one it depends on, have yet to go."""
    lockstep = RedisLockstep(budget=1)
    store = Store(lockstep.backend, lockstep.clock, lockstep.server, lockstep.namespace)
    try:
        store.do(op.Enqueue((job("1", key="k"),)))
        store.do(op.Exchange("w", pools=("default",), limit=1))
        store.do(op.Enqueue((job("0", run_at_ms=10**12),)))
        store.do(op.Enqueue((job("2", key="k", on_conflict="after", depends_on=(Dependency("0"),)),)))
        store.do(op.Enqueue((job("3", depends_on=(Dependency("2"),)),)))
        store.do(op.Cancel(("2",)))
        assert ["p"] in leftovers(store)
        assert store.look().is_clean
        yield store
    finally:
        lockstep.close()


def test_edge_lost_at_one_end_is_removed_at_the_other(canceled: Store) -> None:
    canceled.server.client().hdel(canceled.key("blocked:2"), "1")
    assert canceled.put_right() == {"edge", "edges"}
    canceled.drain()
    assert canceled.look().is_clean


def test_edges_of_a_job_lost_before_release_are_removed(canceled: Store) -> None:
    canceled.server.client().hdel(canceled.key("jobs"), "2")
    assert {"job", "lost"} <= canceled.put_right()
    assert not canceled.server.client().exists(canceled.key("blocked:2"))
    canceled.drain()
    assert canceled.look().is_clean


def test_a_lost_state_begins_anew_above_all_that_was_seen(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"))))
    (old,) = store.do(op.Exchange("w", pools=("default",), limit=1)).grants
    store.do(op.Pause(RecordFilter(path=("p",))))
    store.do(op.Close(("z",)))
    store.server.client().hdel(store.key("meta"), "state")
    (finding,) = store.look().errors
    assert (finding.kind, finding.where) == ("state", store.key("meta"))
    assert store.is_put_right()
    settled = store.do(op.Exchange("w", settle=(Outcome(job_id="1", token=old.token, kind=OutcomeKind.FINISHED),)))
    assert settled.verdicts[0] == "done", "who holds a lease keeps it"
    (new,) = store.do(op.Exchange("w", pools=("default",), limit=1)).grants
    assert new.token > old.token
    (enqueued,) = store.do(op.Enqueue((job("3", "a"),))).jobs
    assert enqueued.number > MARGIN
    assert store.do(op.Resume(RecordFilter(path=("p",))))
    store.do(op.Close(("z",), reopen=True))
    store.drain()
    assert store.look().is_clean


def test_endless_pause_and_orphaned_end_are_found_and_repaired(store: Store) -> None:
    store.do(op.Pause(RecordFilter(path=("p",)), 1_000))
    store.do(op.Pause(RecordFilter(path=("q",))))
    assert store.look().is_clean
    client = store.server.client()
    timers: Any = client.zrange(store.key("timers"), 0, -1, withscores=True)
    ((member, end_ms),) = timers
    client.delete(store.key("timers"))
    client.zadd(store.key("timers"), {b"4A9nobody": 7})
    assert {each.where.rpartition(":")[2] for each in store.look().errors} >= {"pauses", "timers"}
    assert store.is_put_right()
    assert client.zrange(store.key("timers"), 0, -1, withscores=True) == [(member, end_ms)]
    store.clock.advance(ms=1_000)
    store.do(op.Tick())
    assert store.do(op.Resume(RecordFilter(path=("p",)))).changed is False
    assert store.look().is_clean


def test_events_that_no_state_knows_of_are_dropped(store: Store) -> None:
    after = store.do(op.Follow()).after
    store.do(op.Enqueue((job("1", "a"),)))
    assert store.look().is_clean
    store.server.client().hdel(store.key("meta"), "state")
    assert store.kinds() == {"state", "key"}
    assert store.is_put_right()
    assert not store.server.client().exists(store.key("events"))
    store.do(op.Enqueue((job("2", "a"),)))
    followed = store.do(op.Follow(after + 100))
    assert not followed.events, "nobody has followed the new history yet"
    store.do(op.Enqueue((job("3", "a"),)))
    assert [event.id for event in store.do(op.Follow(followed.after)).events] == ["3"]


@pytest.mark.slow
def test_a_damaged_state_is_as_good_as_a_lost_one(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"),)))
    for damaged in (
        b"",
        b"\xc1",
        bytes((0x93, codec.SCHEMA, 2, 3)),
        b"\0" * 500,
        struct.pack("<73d", codec.SCHEMA, *[0.5] * 72),
    ):
        store.server.client().hset(store.key("meta"), "state", damaged)
        assert store.put_right() == {"state"}


@pytest.mark.slow
def test_jobs_removed_one_by_one_leave_each_step_ordered(store: Store) -> None:
    """They take shorter ways through the scripts than many at once: also along a line, and past one that is ready."""
    settled: tuple[Outcome, ...] = ()
    for number, path in enumerate((("a",), ("a",), ("a", "b"), ("c",), ("a",), ())):
        store.do(op.Enqueue((job(str(number), *path),)))
        assert store.look().is_clean, path
    order = []
    while (told := store.do(op.Exchange("w", settled, pools=("default",), limit=1))).grants or told.verdicts:
        order += [grant.spec.id for grant in told.grants]
        assert store.look().is_clean, order
        settled = tuple(
            Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED) for grant in told.grants
        )
    assert order == ["0", "1", "2", "3", "4", "5"]
    assert not store.server.client().exists(*map(store.key, ("leases", "ready", "gates", "pools", "users", "turns")))
    store.drain()


@pytest.mark.slow
def test_retention_is_reported_and_an_unreadable_one_dropped(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"),)))
    client, meta = store.server.client(), store.key("meta")
    client.hdel(meta, "retention")
    assert str(store.look().facts["retention"]).endswith("canceled 86400 s (the default)")
    client.hset(meta, "retention", "1000 2000 3000 -")
    assert store.look().facts["retention"] == "finished 1 s, failed 2 s, canceled 3 s"
    client.hset(meta, "retention", "1000 2000 3000 4000\nmail\n5000")
    report = store.look()
    assert report.is_clean
    assert report.facts["retention"] == "finished 1 s, failed 2 s, canceled 3 s, service 4 s, service 'mail' 5 s"
    for damaged in (
        b"",
        b"1000",
        b"1000 2000 3000 4000\nmail",
        b"1 2 3 99999999999999999999",
        b"1 2 3 --",
        b"1 - 3 4",
        b"\xff\n",
    ):
        client.hset(meta, "retention", damaged)
        assert store.put_right() == {"retention"}
        assert not client.hexists(meta, "retention")


# --- wrong counts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("at", range(1, 6))
def test_wrong_count_of_a_gate_is_found_and_repaired(store: Store, at: int, by: int) -> None:
    store.do(op.Enqueue((job("1", "a", "b"), job("2", "a", "b"), job("3", "a"))))
    store.change_packed("gates", "a", f"value[{at}] = value[{at}] + {by}")
    assert "gate" in store.put_right()
    store.drain()


# --- wrong places ----------------------------------------------------------------------------------------------------


def stand(store: Store, job_id: str, walks: Sequence[int]) -> None:
    """Write into a head where a job stands: for each claim how many gates it has passed, 128 if these are all."""
    head = store.call("HGET", store.key("jobs"), job_id)
    if head[:1] in {b"Q", b"R"}:
        store.call("HSET", store.key("jobs"), job_id, head[:1] + bytes(walks) + head[2:])
    else:
        store.change_packed("jobs", job_id, f"value[14] = {{{', '.join(map(str, walks))}}}")


def wrong_places(report: Report) -> list[str]:
    return [finding.what for finding in report.errors if finding.kind in {"place", "order"}]


@pytest.mark.parametrize(
    "job_id, walks, what",
    [
        ("2", [0], "job 2 waits at root, but has a:b"),
        ("4", [0], "job 4 waits at root, but waits at a"),
        ("4", [128], "job 4 has a, but waits at a"),
        ("5", [0, 1], "job 5 waits at root, but waits at a"),
        ("5", [128, 1], "job 5 has a:b:c, but waits at a"),
        ("5", [128, 128], "job 5 has a:b:c, but waits at a"),
        ("5", [1], "job 5 counts other gates than its claims pass"),
        ("5", [1, 1, 128], "job 5 counts other gates than its claims pass"),
    ],
)
def test_misplaced_job_is_moved_to_its_gate(store: Store, job_id: str, walks: list[int], what: str) -> None:
    two = attrs.evolve(job("5"), claims=(Claim(("a", "b", "c")), Claim(("x",))))
    store.do(op.Enqueue((job("1", "x"), job("2", "a", "b"), job("3", "a", "c"), job("4", "a"), two)))
    stand(store, job_id, walks)
    assert [each.partition(" if ")[0] for each in wrong_places(store.look())] == [what]
    report = store.look(fix=True)
    assert report.is_clean, str(report)
    assert store.look().is_clean
    assert [each.job_id for each in report.repaired if each.kind == "place"] == [job_id]
    assert turns(store) == [{"1", "2", "3"}, {"4"}, {"5"}]
    store.drain()


@pytest.mark.parametrize("is_backing_off", [False, True])
def test_job_started_early_keeps_its_place_until_its_end(store: Store, is_backing_off: bool) -> None:
    store.do(op.Enqueue((job("2", "a", key="k"),)))
    (grant,) = store.do(op.Exchange("w", pools=("default",), limit=1)).grants
    if is_backing_off:
        failed = Outcome(job_id="2", token=grant.token, kind=OutcomeKind.FAILED, delay_ms=5)
        store.do(op.Exchange("w", settle=(failed,)))
    store.do(op.Enqueue((job("1", "a"), job("3", "a"))))
    store.change_packed("jobs", "2", "value[3] = 9")
    what = "job 2 has started before its turn: an unfinished job with which it conflicts comes before it"
    assert wrong_places(store.look()) == [what]
    report = store.look(fix=True)
    assert [finding.what for finding in report.errors] == [what]
    assert not [finding for finding in report.repaired if finding.kind == "place"]
    stand(store, "1", [0])
    assert wrong_places(store.look(fix=True)) == [what]
    if is_backing_off:
        store.clock.advance(ms=5)
        assert turns(store) == [{"2"}, {"1"}, {"3"}]
    else:
        store.do(op.Exchange("w", settle=(Outcome(job_id="2", token=grant.token, kind=OutcomeKind.FINISHED),)))
        assert store.look().is_clean
        assert turns(store) == [{"1"}, {"3"}]
    store.drain()


def test_conflicting_running_jobs_suppress_the_check_of_places(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "b", key="k"), job("3", "a"))))
    store.do(op.Exchange("w", pools=("default",), limit=2))
    store.change_packed("jobs", "2", "for at = 1, #value do if value[at] == 'xb' then value[at] = 'xa' end end")
    stand(store, "3", [0])
    report = store.look()
    assert wrong_places(report) == [
        "job 2 has started before its turn: an unfinished job with which it conflicts comes before it"
    ]
    assert "conflict" in {finding.kind for finding in report.errors}


def test_unreadable_claims_are_reported_and_suppress_the_check_of_places(store: Store) -> None:
    store.do(op.Enqueue((job("1", "a", key="k"), job("2", "a"))))
    store.change_packed("jobs", "1", "for at = 1, #value do if value[at] == 'xa' then value[at] = 'xa\\n' end end")
    assert places.UNREADABLE in store.look().unchecked


def misplace_something(seed: int) -> None:
    """Walk, write other places into heads, have them put right, and run the rest."""
    random = Random(seed)
    with Walk(seed, STYLES[seed % len(STYLES)], random.choice((op.BUDGET, 2, 1))) as walk:
        try:
            walk.go(random.randint(20, 100))
            store, jobs = walk.store, walk.lockstep.engine.table.jobs.values()
            waiting = [each for each in jobs if each.walks and each.state is JobState.QUEUED]
            for each in random.sample(waiting, min(3, len(waiting))):
                stand(store, each.id, [random.choice((*range(len(at.path) + 1), 128)) for at in each.walks])
            report = store.look(fix=True)
            assert report.is_clean, str(report)
            assert not report.unchecked
            assert store.look().is_clean
            walk.open_all()
            store.drain()
            assert store.look().is_clean
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.slow
@pytest.mark.heavy
def test_wherever_jobs_are_put_by_hand_they_are_put_back() -> None:
    for seed in range(thorough(100, quick=4)):
        misplace_something(seed)


# --- more wrong counts -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wrong_counters_of_jobs_are_found_and_repaired() -> None:
    with Walk(3, STYLES[0], op.BUDGET) as walk:
        walk.go(thorough(80, quick=12))
        store, found = walk.store, set[str]()
        for at in range(1, 48):
            before = counters(store)
            if at in {1, 11}:
                continue  # the schema, and the name of a run
            store.change_packed("meta", "state", f"value[{at}] = value[{at}] + 1")
            changed = {name for name, number in counters(store).items() if number != before[name]}
            if changed & COUNTED.keys():
                found |= changed
                assert store.put_right() == {"counter"}
            store.change_packed("meta", "state", f"value[{at}] = value[{at}] - {0 if changed & COUNTED.keys() else 1}")
        assert found == COUNTED.keys()
        assert store.look().is_clean


@pytest.mark.parametrize("name", ["pools", "users"])
@pytest.mark.parametrize("change", ["value[1] = value[1] + 1", "value[2] = value[2] + 1", "value = 'x'", "value = {}"])
def test_ready_jobs_that_are_miscounted_are_found_and_put_right(store: Store, name: str, change: str) -> None:
    store.do(op.Enqueue((job("1"), job("2", user="u"))))
    field = {"pools": "default", "users": "default\0u"}[name]
    store.change_packed(name, field, change)
    assert name.removesuffix("s") in store.put_right()
    store.drain()


@pytest.mark.parametrize("change", ["value[1] = {}", "value[1] = {'default'}", "value = 'x'", None])
def test_queues_of_refused_jobs_are_found_and_put_right(store: Store, change: str | None) -> None:
    store.do(op.Enqueue((job("1"),)))
    (grant,) = store.do(op.Exchange("w", pools=("default",), limit=1, release="old")).grants
    unknown = Outcome(job_id="1", token=grant.token, kind=OutcomeKind.UNKNOWN_TASK)
    store.do(op.Exchange("w", (unknown,), pools=("default",), release="old"))
    assert store.look().is_clean
    if change is None:
        store.server.client().delete(store.key("refused"))
    else:
        store.change_packed("refused", "default", change)
    assert "refused" in store.put_right()
    assert store.look().is_clean
    assert not store.do(op.Exchange("w", pools=("default",), limit=1, release="old")).grants
    assert store.do(op.Exchange("w", pools=("default",), limit=1, release="new")).grants


def limited(store: Store) -> list[str]:
    """Have one job run, one be parked by a number and one by a rate; return the keys of the gauges."""
    store.do(op.SetLimit(Limit(path=("a",), most=1)))
    store.do(op.SetLimit(Limit(path=("b",), rate=(1, 60_000))))
    store.do(op.Enqueue((job("1", "a", "x"), job("2", "a", "y"), job("3", "b", "x"), job("4", "b", "y"))))
    grants = store.do(op.Exchange("w", pools=("default",), limit=5)).grants
    assert [grant.spec.id for grant in grants] == ["1", "3"]
    begin = len(store.key(""))
    found: Any = store.server.client().keys(store.key("gauges:*"))
    return sorted(key.decode()[begin:] for key in found)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["a", "b"])
@pytest.mark.parametrize(
    "change",
    ["value[1] = value[1] + 1", "value[2] = value[2] + 1", "value[2] = 0", "value[4] = 7", "value = 'x'", "value = {}"],
)
def test_wrong_limit_counts_are_found_and_repaired(store: Store, path: str, change: str) -> None:
    of_path = dict(zip("ab", limited(store), strict=True))
    store.change_packed(of_path[path], path, change)
    assert store.put_right() == {"gauge"}
    assert not store.do(op.Exchange("w", pools=("default",), limit=5)).grants
    store.drain()
    assert store.look().is_clean


@pytest.mark.parametrize("change", ["value[1] = value[1] + 1", "value[2] = 0", "value[4] = 7", "value = 'x'"])
@pytest.mark.parametrize("kinds", [{"task": "t", "most": 1}, {"pool": "default", "rate": (1, 60_000)}])
def test_wrong_task_and_pool_counts_are_found_and_repaired(store: Store, kinds: dict[str, Any], change: str) -> None:
    store.do(op.SetLimit(Limit(**kinds)))
    store.do(op.Enqueue((job("1", "a"), job("2"), job("3"))))
    assert len(store.do(op.Exchange("w", pools=("default",), limit=5)).grants) == 1
    assert store.look().is_clean
    found: Any = store.server.client().keys(store.key("gauges:*"))
    key = "\ntt" if "task" in kinds else "\npdefault"
    store.change_packed(found[0].decode()[len(store.key("")) :], key, change)
    assert store.put_right() == {"gauge"}
    store.drain()
    assert store.look().is_clean


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [{"task": "t"}, {"pool": "default", "most": 1}])
@pytest.mark.parametrize("jobs", [3, 300])
def test_wrong_unfinished_counts_of_task_and_pool_are_repaired(store: Store, kinds: dict[str, Any], jobs: int) -> None:
    store.do(op.Enqueue((job("0", "a"),)))
    store.do(op.SetLimit(Limit(**kinds, max_pending=jobs)))
    store.do(op.Enqueue(tuple([job(str(number), "a", str(number)) for number in range(1, jobs)])))
    (grant, *_) = store.do(op.Exchange("w", pools=("default",), limit=1)).grants
    assert store.look().is_clean
    store.change_packed("limits", "tt" if "task" in kinds else "pdefault", "value[10] = value[10] + 2")
    assert store.put_right() == {"limit_count"}
    store.do(op.Exchange("w", settle=(Outcome(job_id="0", token=grant.token, kind=OutcomeKind.FINISHED),)))
    store.do(op.Enqueue((job("last", "a"),)))
    with pytest.raises(QueueFullError, match=f"has {jobs} unfinished jobs"):
        store.do(op.Enqueue((job("more"),)))
    assert store.look().is_clean
    store.change_packed("limits", "tt" if "task" in kinds else "pdefault", "value[10] = nil")
    assert "limit" in store.put_right()
    store.do(op.Enqueue((job("more"),)))


@pytest.mark.slow
@pytest.mark.parametrize("child", ["runs", "idle"])
@pytest.mark.parametrize(
    "change",
    [
        "value[1] = value[1] + 1",
        "value[4] = not value[4] and 7",
        "value[5] = -1",
        "value[5] = 2 ^ 40",
        "value[6] = false",
        "value[7] = not value[7] and {1, 1} or nil",
        "value = {value[1], value[2], value[3], value[4]}",
        "value = 'x'",
    ],
)
@pytest.mark.parametrize("burst", [2, None])
def test_impossible_meter_of_a_child_is_found_and_repaired(
    store: Store, child: str, change: str, burst: int | None
) -> None:
    store.do(op.SetLimit(Limit(path=("t",), rate=(2, 60_000), burst=burst, each=True)))
    store.do(op.Enqueue((job("1", "t", "runs", "1"), job("2", "t", "runs", "2"), job("3", "t", "idle"))))
    *_, idle = store.do(op.Exchange("w", pools=("default",), limit=5)).grants
    store.do(op.Exchange("w", settle=(Outcome(job_id="3", token=idle.token, kind=OutcomeKind.FINISHED),)))
    assert store.look().is_clean
    found: Any = store.server.client().keys(store.key("gauges:*"))
    store.change_packed(found[0].decode()[len(store.key("")) :], f"t:{child}", change)
    assert "gauge" in store.put_right()
    store.drain()
    store.do(op.SetLimit(Limit(path=("t",), each=True)))
    assert store.look().is_clean


@pytest.mark.slow
@pytest.mark.parametrize(
    "log", ["5", "{1}", "{1, 1, 0, 1}", "{1, 0, 2, 2}", "{'x', 2}", "{1, 1}", "{3, 'x'}", "{2 ^ 52, 2}"]
)
def test_impossible_log_of_starts_removes_its_limit(store: Store, log: str) -> None:
    store.do(op.SetLimit(Limit(path=("t",), rate=(2, 60_000))))
    store.do(op.Enqueue((job("1", "t", "a"), job("2", "t", "b"), job("3", "t", "c"))))
    assert len(store.do(op.Exchange("w", pools=("default",), limit=5)).grants) == 2
    assert store.look().is_clean
    store.change_packed("limits", "=t", f"value[9] = {log}")
    assert "limit" in store.put_right()
    assert len(store.do(op.Exchange("w", pools=("default",), limit=5)).grants) == 1
    store.drain()
    assert store.look().is_clean


def test_unreadable_limit_is_removed_and_its_waiters_start(store: Store) -> None:
    limited(store)
    for damaged in (b"", b"x", b"\x93\x01\x02\x03"):
        store.server.client().hset(store.key("limits"), "=a", damaged)
        assert "limit" in store.kinds()
    assert store.is_put_right()
    assert [state.limit.path for state in store.do(op.ListLimits()).limits] == [("b",)]
    assert [grant.spec.id for grant in store.do(op.Exchange("w", pools=("default",), limit=5)).grants] == ["2"]
    store.drain()
    assert store.look().is_clean


def test_wrong_timer_of_a_limit_is_repaired(store: Store) -> None:
    _, of_b = limited(store)
    place = "A" + of_b.partition(":")[2] + "b"
    assert store.call("ZSCORE", store.key("looks"), place) is not None
    store.call("ZADD", store.key("looks"), 5, place)
    assert store.is_put_right()
    store.call("ZADD", store.key("looks"), 5, "A9z", 6, "x")
    assert store.is_put_right()


@pytest.mark.parametrize("counter", ["numbers", "places", "turn", "pause", "epoch"])
def test_counter_behind_its_issued_numbers_is_found_and_repaired(store: Store, counter: str) -> None:
    store.do(op.Pause(RecordFilter(path=("p",))))
    store.do(op.Enqueue((job("1", "a"), job("2", "a"), job("3", user="u"), job("4", user="v"))))
    store.do(op.Exchange("w", pools=("default",), limit=1))
    at = {"numbers": 3, "places": 4, "turn": 5, "pause": 7, "epoch": 9}[counter]
    store.change_packed("meta", "state", f"value[{at}] = 0")
    (finding,) = (finding for finding in store.look().errors if counter in finding.what)
    assert finding.kind == "counter"
    assert store.is_put_right()


@pytest.mark.slow
@pytest.mark.parametrize("at", [69, 70, 71, 72])
def test_timer_and_leftover_counters_are_compared_with_their_keys(store: Store, at: int) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"), job("3", "b", delay_ms=1000))))
    store.do(op.Exchange("w", pools=("default",), limit=1))
    store.change_packed("meta", "state", f"value[{at}] = value[{at}] + 7")
    assert store.put_right() == {"counter"}


def test_costs_are_verified_and_unusual_costs_are_sound(store: Store) -> None:
    store.do(op.SetLimit(Limit(path=("t",), most=3)))
    store.do(op.Enqueue((job("1", "t", "a", policy=Policy(cost=3)), job("2", "t", "b", policy=Policy(cost=2)))))
    store.do(op.Enqueue((job("3", "t", "c"),)))
    (grant,) = store.do(op.Exchange("w", pools=("default",), limit=5)).grants
    assert store.look().is_clean
    store.do(op.Exchange("w", settle=(Outcome(job_id="1", token=grant.token, kind=OutcomeKind.FINISHED),)))
    assert store.look().is_clean, "one is called"
    found: Any = store.server.client().keys(store.key("gauges:*"))
    store.change_packed(found[0].decode()[len(store.key("")) :], "t", "value[1] = value[1] + 1")
    assert "gauge" in store.put_right()
    store.do(op.SetLimit(Limit(path=("t",), most=1)))
    assert [each.spec.id for each in store.do(op.Exchange("w", pools=("default",), limit=5)).grants] == ["3"]
    assert store.look().is_clean, "one costs more than the limit has"
    store.do(op.SetLimit(Limit(path=("t",), most=2)))
    store.drain()
    assert store.look().is_clean


@pytest.mark.parametrize("limit", [Limit(path=(), each=True, most=1), Limit(path=("t",), each=True, most=1)])
def test_costs_beyond_a_limit_of_each_child_are_sound(store: Store, limit: Limit) -> None:
    store.do(op.Enqueue((job("1", "t", "a", policy=Policy(cost=3)), job("2", "u", "a", policy=Policy(cost=2)))))
    store.do(op.Enqueue((job("3", "t", "a"),)))
    store.do(op.SetLimit(limit))
    granted = store.do(op.Exchange("w", pools=("default",), limit=5)).grants
    assert [grant.spec.id for grant in granted] == ["2"] * (limit.path != ())
    assert store.look().is_clean, "they are of no counter"
    store.do(op.SetLimit(limit.lifted))
    store.drain()
    assert store.look().is_clean
