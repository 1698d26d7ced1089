"""`queuehint doctor` under concurrent work: no false findings, and no repair after a change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import scripts
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.connections.sync_link import SyncLink
from queuehint.backends.redis.doctor.doctor import WHOLE_MAX, diagnose
from queuehint.backends.redis.doctor.keyspace import BATCH
from queuehint.backends.redis.transport import Send
from queuehint.backends.report import PASSES
from queuehint.clock import FakeClock
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import JobSpec
from tests.calls import script_of
from tests.doctor_store import Store, job, open_store
from tests.servers import Server
from tests.support import thorough

pytestmark = pytest.mark.redis

store = pytest.fixture(open_store)


# --- concurrent work -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_false_is_found_while_workers_and_producers_go_on(redis_server: Server, namespace: str) -> None:
    address = parse_url(redis_server.url)
    options = BackendOptions(namespace=namespace)
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        random = Random(number)
        backend = RedisBackend(address, options, budget=random.choice((3, op.BUDGET)))
        grants: list[Any] = []
        made = 0
        try:
            while not stop.is_set():
                made += 1
                path = tuple(random.choices("ab", k=random.randrange(3)))
                specs = [
                    JobSpec(
                        id=f"{number}.{made}.{at}",
                        task="t",
                        claims=(Claim(path, random.choice(("shared", "exclusive"))),),
                        user=random.choice((None, "u")),
                        key=random.choice((None, None, "k")),
                        on_conflict=random.choice(("return", "after")),
                        delay_ms=random.choice((None, None, 1)),
                    )
                    for at in range(random.choice((0, 1, 3)))
                ]
                if specs:
                    backend.call_sync(op.Enqueue(tuple(specs)))
                random.shuffle(grants)
                ended, grants = grants[: len(grants) // 2 + 1], grants[len(grants) // 2 + 1 :]
                settled = [
                    Outcome(
                        job_id=grant.spec.id,
                        token=grant.token,
                        kind=random.choice((OutcomeKind.FINISHED, OutcomeKind.FAILED)),
                        result=b"1",
                    )
                    for grant in ended
                ]
                settled = [
                    each if each.kind is OutcomeKind.FINISHED else attrs.evolve(each, result=None) for each in settled
                ]
                reply = backend.call_sync(op.Exchange(f"w{number}", settle=tuple(settled), pools=("default",), limit=5))
                grants += reply.grants
        except BaseException as error:
            errors.append(error)
        finally:
            backend.close_sync()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    backend = RedisBackend(address, options)
    try:
        end_s = time.monotonic() + thorough(3, quick=0)
        looks = changed = 0
        while time.monotonic() < end_s or looks < 3 or not changed:
            assert time.monotonic() < end_s + 60, "nothing changes"
            report = diagnose(backend)
            assert report.is_clean, str(report)
            looks += 1
            changed += not report.was_quiet
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    report = diagnose(backend)
    assert report.is_clean
    assert report.was_quiet
    backend.close_sync()


class Busy:
    """Lets another client look whether there is work, and change the namespace, before each call of a script."""

    def __init__(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, script: str, change: Callable[[Store], None] | None = None
    ) -> None:
        self.changes = 0
        text = scripts.script(script).text
        ask = SyncLink.ask

        def ask_busily(link: Any, send: Send) -> Any:
            words = send.command
            is_it = script_of(words) == script or words[1:2] == (text,)
            if is_it:
                store.clock.advance(ms=1)
                store.call(
                    "EVAL",
                    scripts.script("tick").text,
                    *store.backend.session._keys,
                    store.clock.now_ms(),
                    "",
                    0,
                    *[1] * 5,
                )
                if change is not None:
                    change(store)
            answer = ask(link, send)
            # A script that the server does not have yet is refused, and sent again.
            self.changes += is_it
            return answer

        monkeypatch.setattr(SyncLink, "ask", ask_busily)


def come_and_go(store: Store) -> None:
    name = f"passing{store.clock.now_ms()}"
    store.do(op.Enqueue((job(name, "elsewhere", key="key"),)))
    store.do(op.Cancel((name,)))
    store.do(op.Delete((name,)))


def pause_and_resume(store: Store) -> None:
    store.do(op.Pause(RecordFilter(path=("elsewhere",))))
    store.do(op.Resume(RecordFilter(path=("elsewhere",))))


def test_repairs_that_come_after_a_change_do_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"))))
    store.server.client().delete(store.key("ready"))
    busy = Busy(store, monkeypatch, "doctor/repair")
    report = store.look(fix=True)
    assert busy.changes == PASSES
    assert {finding.kind for finding in report.errors} == {"entry", "pool", "user"}
    assert report.unchecked == ("repairs: the namespace is in use; stop its workers and producers first",)
    assert not report.repaired
    monkeypatch.undo()
    assert store.is_put_right()


def test_sums_that_change_while_they_are_read_are_not_judged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for begin in range(0, WHOLE_MAX + BATCH, 50):
        store.do(op.Enqueue(tuple(job(str(at), f"p{at % 7}") for at in range(begin, begin + 50))))
    store.change_packed("gates", "p1", "value[5] = value[5] + 1")
    Busy(store, monkeypatch, "doctor/heads", come_and_go)
    report = store.look()
    assert not report.was_quiet
    assert [finding.kind for finding in report.errors] == ["line"], "a line and its count are of one moment"
    assert [text.partition(":")[0] for text in report.unchecked] == ["sums over all jobs (places, gates, counters)"]
    monkeypatch.undo()
    assert store.kinds() == {"gate", "line"}
    assert store.is_put_right()


def test_sums_with_idle_workers_are_judged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for begin in range(0, WHOLE_MAX + BATCH, 50):
        store.do(op.Enqueue(tuple(job(str(at), f"p{at % 7}") for at in range(begin, begin + 50))))
    store.change_packed("gates", "p1", "value[4] = value[4] + 1")
    busy = Busy(store, monkeypatch, "doctor/heads")
    report = store.look()
    assert busy.changes == (WHOLE_MAX + BATCH) // BATCH + 1, "they are read once"
    assert report.was_quiet
    assert [finding.kind for finding in report.errors] == ["gate"]
    assert not report.unchecked


def test_sums_of_few_jobs_are_consistent_under_load(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.do(op.Enqueue((job("1", "a"), job("2", "a"))))
    store.change_packed("gates", "a", "value[4] = value[4] + 1")
    Busy(store, monkeypatch, "doctor/heads", pause_and_resume)
    report = store.look()
    assert not report.was_quiet
    assert [finding.kind for finding in report.errors] == ["gate"]
    assert not report.unchecked


def test_excess_jobs_are_counted_in_parts(store: Store) -> None:
    for begin in range(0, WHOLE_MAX + 2 * BATCH, 50):
        store.do(op.Enqueue(tuple(job(str(at), f"p{at % 7}", "x") for at in range(begin, begin + 50))))
    report = store.look()
    assert report.is_clean
    assert report.facts["jobs"] == WHOLE_MAX + 2 * BATCH
    store.server.client().delete(store.key("gates"))
    store.server.client().zremrangebyrank(store.key("paths"), 0, 120)
    # With the gates the line of each place is gone, so what is kept of the longest of them belongs to no line.
    assert store.kinds() == {"gate", "entry", "stray"}
    assert store.is_put_right()


@pytest.mark.slow
def test_doctor_waits_on_its_own_clock_for_a_past_state(redis_url: str, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_url), BackendOptions(namespace=namespace))
    for number in range(20):
        backend.call_sync(op.Enqueue((job(str(number), "a"),)))
        report = diagnose(backend)
        assert report.is_clean
        assert report.was_quiet
    backend.close_sync()


def test_clock_set_back_is_repaired_first(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    store = Store(backend, FakeClock(), redis_server, namespace)
    store.do(op.Enqueue((job("1", "a"), job("2", "a"))))
    redis_server.client().delete(store.key("ready"))
    clock = "value[2] = value[2] + 3600000"
    store.change_packed("meta", "state", clock)
    report = store.look()
    (warning,) = (finding for finding in report.warnings if finding.where == "the server's clock")
    assert warning.what.startswith("is 3599.") or warning.what.startswith("is 3600.")
    assert {finding.kind for finding in report.errors} == {"entry", "pool", "user"}
    assert not report.was_quiet
    assert store.is_put_right()
    assert "the server's clock" not in {finding.where for finding in store.look().warnings}
    backend.close_sync()


def test_waits_set_by_a_fast_clock_restart_from_now(redis_server: Server, namespace: str) -> None:
    backend = RedisBackend(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    store = Store(backend, FakeClock(), redis_server, namespace)
    client: Any = redis_server.client()
    begun_ms = server_ms(client)
    hour = 3_600_000
    store.do(
        op.Enqueue((job("long"), job("long-delay", delay_ms=50 * hour), job("runs"), job("fails"), job("snoozes")))
    )
    (long,) = store.do(op.Exchange("w", limit=1, lease_ms=48 * hour)).grants
    ahead = f"value[2] = value[2] + {24 * hour}"
    store.change_packed("meta", "state", ahead)
    runs, fails, snoozes = store.do(op.Exchange("w", limit=3)).grants
    store.do(op.Renew(((long.spec.id, long.token),), 48 * hour))
    store.do(op.SetLimit(Limit(path=("r",), rate=(1, hour))))
    store.do(op.SetLimit(Limit(path=("e",), rate=(1, hour), each=True)))
    failed = Outcome(job_id="fails", token=fails.token, kind=OutcomeKind.FAILED, delay_ms=1_000)
    snoozed = Outcome(job_id="snoozes", token=snoozes.token, kind=OutcomeKind.SNOOZED, delay_ms=hour)
    store.do(op.Exchange("w", settle=(failed, snoozed)))
    named_ms = begun_ms + 48 * hour
    store.do(
        op.Enqueue(
            (
                job("short-delay", delay_ms=1_000),
                job("named", run_at_ms=named_ms),
                job("expires", pool="none", policy=Policy(start_within_ms=hour)),
                job("r1", "r", "1", pool="r"),
                job("r2", "r", "2", pool="r"),
                job("e1", "e", "x", "1", pool="r"),
                job("e2", "e", "x", "2", pool="r"),
            )
        )
    )
    assert [grant.spec.id for grant in store.do(op.Exchange("w", limit=4, pools=("r",))).grants] == ["r1", "e1"]
    report = store.look(fix=True)
    assert report.is_clean, str(report)
    assert "the server's clock" in {finding.where for finding in report.repaired}
    now_ms = server_ms(client)

    def due_of(name: str, job_id: str) -> int:
        entries = client.zrange(store.key(name), 0, -1, withscores=True)
        (ms,) = (int(ms) for member, ms in entries if member.endswith(job_id.encode()))
        return ms

    def is_from_now(name: str, job_id: str, after_ms: int) -> bool:
        return begun_ms + after_ms <= due_of(name, job_id) <= now_ms + after_ms

    assert is_from_now("timers", "fails", 1_000)
    # It holds its place no longer than it may.
    assert is_from_now("timers", "snoozes", 300_000)
    assert is_from_now("timers", "short-delay", 1_000)
    assert is_from_now("timers", "expires", hour)
    assert is_from_now("timers", "long-delay", 50 * hour)
    assert due_of("timers", "named") == named_ms
    assert is_from_now("leases", "long", 48 * hour)
    assert is_from_now("leases", "runs", 30_000)
    for name in ("looks", "seen"):
        assert [ms <= now_ms for _, ms in client.zrange(store.key(name), 0, -1, withscores=True)] == [True, True]
    store.do(op.Tick())
    for waiting in ("r2", "e2"):
        until_ms = store.do(op.Why(waiting)).reasons[0].until_ms
        assert until_ms is not None
        # A start counts for up to 100 ms longer than the time of its rate.
        assert until_ms <= server_ms(client) + hour + 100, "starts count from now on"
    assert (
        store.do(op.Renew(((runs.spec.id, runs.token), (long.spec.id, long.token)))).verdicts == (op.Verdict.DONE,) * 2
    )
    assert due_of("leases", "runs") <= server_ms(client) + 30_000
    assert store.look(fix=True).is_clean
    backend.close_sync()


def server_ms(client: Any) -> int:
    seconds, micros = client.time()
    return int(seconds * 1000 + micros // 1000)
