"""Lease renewal: a holder keeps its lease or learns that it is lost, whichever thread or process renews."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from queuehint import BackendUnavailableError, Progress
from queuehint import operations as op
from queuehint.clock import now_s
from queuehint.handlers.codec import JsonCodec
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.spec import JobSpec
from queuehint.worker import outbox as outbox_module
from queuehint.worker.companion import is_stopped
from queuehint.worker.leases import helper as renewer_module
from queuehint.worker.leases import renewal as renewal_module
from queuehint.worker.leases.held import Leases, margin_s
from queuehint.worker.leases.helper import Renewer, Speaker
from queuehint.worker.leases.renewal import Renewal
from queuehint.worker.outbox import OutboxBuffer
from queuehint.worker.state import WorkerState
from tests.probes import until
from tests.support import LIMIT_S

DONE, LOST, CANCELED = op.Verdict.DONE, op.Verdict.LOST, op.Verdict.CANCELED


def grant(job_id: str, token: int = 1, timeout_ms: int | None = None) -> Grant:
    spec = JobSpec(id=job_id, task="task", policy=Policy(timeout_ms=timeout_ms))
    return Grant(spec=spec, token=token, attempt=1, losses=0, lease_until_ms=0)


def outcome(job_id: str, token: int = 1) -> Outcome:
    return Outcome(job_id=job_id, token=token, kind=OutcomeKind.FINISHED)


class Store:
    """Answers renewals as told."""

    keeps_leases = False

    def __init__(self) -> None:
        self.asked: list[tuple[float, tuple[tuple[str, int], ...]]] = []
        self.blocked_ms: list[int] = []
        self.verdicts: dict[str, op.Verdict] = {}
        self.is_away = False
        self.refused = 0
        self.more = False

    def call_sync(self, operation: op.Renew) -> op.Renewed:
        if self.is_away:
            self.refused += 1
            raise BackendUnavailableError("away")
        self.asked.append((now_s(), operation.leases))
        self.blocked_ms.append(operation.blocked_ms)
        return op.Renewed(tuple(self.verdicts.get(job_id, DONE) for job_id, _ in operation.leases), self.more)


class FakeHelper:
    """Is told, and says what the test wants."""

    marks = None

    def __init__(self) -> None:
        self.told: list[str] = []
        self.starts = 0
        self.ended = 0
        self.is_dead = False
        self.says: list[str] = []

    def start(self, lease_s: float) -> None:
        self.starts += 1
        self.is_dead = False
        self.told.clear()

    def send(self, lines: str) -> None:
        self.told += lines.splitlines()

    def hear(self, timeout_s: float) -> list[str]:
        if timeout_s:
            time.sleep(0.002)
        said, self.says = self.says, []
        return said

    def end(self, *, at_once: bool = False) -> None:
        self.ended += 1


class RenewalBench:
    def __init__(self, lease_ms: int = 1000, *, helper: Any = None, clock: Callable[[], float] = now_s) -> None:
        self.store = Store()
        self.told: list[tuple[str, int, str]] = []
        self.more = threading.Event()
        backend: Any = self.store
        state: Any = WorkerState(backend, JsonCodec(), "w", lease_ms=lease_ms, now_s=clock, helper=helper)
        state.stopping.tell = lambda *told: self.told.append(told)
        state.wake_soon = self.more.set
        self.state = state
        self.leases: Leases = state.leases
        self.renewal = Renewal(state)

    def __enter__(self) -> Self:
        self.renewal.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.renewal.end()
        for thread in self.renewal._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


# --- a thread renews ---------------------------------------------------------------------------------------------


def test_lease_is_renewed_after_a_third_until_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal_module, "TICK_MAX_S", 0.05)
    with RenewalBench(30_000) as bench:
        # A lease whose first third ends soon.
        began_s = now_s() - 9.5
        bench.leases.exchange((), [grant("a"), grant("b", 2)], began_s)
        until(lambda: bench.store.asked)
        at_s, leases = bench.store.asked[0]
        assert leases == (("a", 1), ("b", 2))
        assert at_s - began_s >= 10
        bench.leases.exchange([outcome("a")], (), now_s())
        count = len(bench.store.asked)
        bench.leases.held["b", 2].until_s -= 10
        until(lambda: len(bench.store.asked) > count)
        assert bench.store.asked[-1][1] == (("b", 2),)
        assert bench.leases.answered_s >= began_s
        assert bench.told == []


def test_all_leases_of_a_worker_are_renewed_in_one_call() -> None:
    with RenewalBench() as bench:
        bench.leases.exchange((), [grant(str(n), n + 1) for n in range(1000)], now_s())
        until(lambda: bench.store.asked)
        assert len(bench.store.asked[0][1]) == 1000


def test_more_leases_than_a_request_takes_are_renewed_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.worker.leases.renewal.LEASES_AT_ONCE", 2)
    with RenewalBench() as bench:
        bench.store.verdicts = {"2": LOST}
        bench.leases.exchange((), [grant(str(n), n + 1) for n in range(5)], now_s())
        until(lambda: len(bench.store.asked) >= 3)
        until(lambda: bench.told)
        assert [leases for _, leases in bench.store.asked[:3]] == [
            (("0", 1), ("1", 2)),
            (("2", 3), ("3", 4)),
            (("4", 5),),
        ]
        assert bench.told == [("2", 3, "lease lost")]


def test_helper_renews_excess_leases_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.worker.leases.helper.LEASES_AT_ONCE", 2)
    here = Helpers()
    here.renewer.take(["+1 a", "+2 b", "+3 c"])
    here.store.verdicts = {"c": LOST}
    here.renewer.renew()
    assert [leases for _, leases in here.store.asked] == [(("a", 1), ("b", 2)), (("c", 3),)]
    assert [said.split(" ")[0] for said in here.said] == ["lost", "renewed"]


def test_canceled_and_lost_leases_are_reported() -> None:
    with RenewalBench() as bench:
        bench.store.verdicts = {"a": CANCELED, "b": LOST}
        bench.store.more = True
        bench.leases.exchange((), [grant("a"), grant("b"), grant("c")], now_s())
        until(lambda: len(bench.store.asked) > 1)
        assert set(bench.told) == {("a", 1, "canceled"), ("b", 1, "lease lost")}
        assert bench.store.asked[-1][1] == (("a", 1), ("c", 1))
        assert bench.more.is_set()


@pytest.mark.slow
def test_unrenewable_lease_is_fenced_in_time_and_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(renewal_module, "TICK_MAX_S", 0.05)
    with RenewalBench(300_000) as bench:
        bench.store.is_away = True
        # A lease whose last tenth begins soon, and is far longer than this thread may be kept waiting.
        began_s = now_s() - 269.7
        bench.leases.exchange((), [grant("a")], began_s)
        until(lambda: bench.told)
        assert 270 <= now_s() - began_s < 300
        assert bench.told == [("a", 1, "lease lost")]
        until(lambda: now_s() - began_s > 270.5)
        assert bench.told == [("a", 1, "lease lost")]
    events = [record.__dict__["event"] for record in caplog.records]
    assert events.count("job.fenced") == 1
    assert "renewal.failed" in events


@pytest.mark.slow
def test_a_store_that_comes_back_in_time_saves_the_lease() -> None:
    with RenewalBench(60_000) as bench:
        bench.store.is_away = True
        bench.leases.exchange((), [grant("a")], now_s() - 20)
        until(lambda: bench.store.refused)
        bench.store.is_away = False
        until(lambda: bench.store.asked)
        assert bench.told == []


def test_a_lease_surely_lasts_from_before_it_was_asked_for() -> None:
    bench = RenewalBench(30_000)
    assert not bench.leases.is_short(now_s() - 26)
    assert bench.leases.is_short(now_s() - 28)
    bench.leases.exchange((), [grant("a")], now_s() - 28)
    bench.renewal._fence(now_s())
    assert bench.told == [("a", 1, "lease lost")]


def test_verdict_for_a_settled_job_is_ignored() -> None:
    bench = RenewalBench()
    bench.leases.exchange((), [grant("a")], now_s())
    bench.leases.exchange([outcome("a")], [grant("a", 2)], now_s())
    bench.renewal._judge("a", 1, LOST)
    assert bench.told == []


def test_renewal_thread_survives_unexpected_errors(caplog: pytest.LogCaptureFixture) -> None:
    with RenewalBench() as bench:
        bench.store.verdicts = None  # type: ignore[assignment]
        bench.leases.exchange((), [grant("a")], now_s())
        until(lambda: any("AttributeError" in str(record.__dict__.get("error")) for record in caplog.records))
        bench.store.verdicts = {}
        count = len(bench.store.asked)
        until(lambda: len(bench.store.asked) > count)


def test_a_thread_that_renews_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    renewal_module._say_renewed_by_thread.cache_clear()
    caplog.set_level("INFO")
    for _ in range(2):
        with RenewalBench():
            pass
    events = [record.__dict__["event"] for record in caplog.records]
    assert events == ["worker.renews_by_thread"]


@pytest.mark.parametrize("lease_s", [1, 2, 5, 10, 30, 3600])
def test_the_margin_leaves_time_to_renew_twice(lease_s: float) -> None:
    assert 0 < margin_s(lease_s) <= lease_s - 2 * lease_s / 3


# --- a process renews --------------------------------------------------------------------------------------------


def test_helper_learns_each_change_before_the_worker_continues() -> None:
    helper = FakeHelper()
    with RenewalBench(helper=helper) as bench:
        bench.leases.exchange((), [grant("a"), grant("b", 2, 500)], now_s())
        assert helper.told == ["+1 a", "+2 b 500"]
        bench.leases.exchange([outcome("a")], [grant("a", 3)], now_s())
        assert helper.told[2:] == ["-1 a", "+3 a"]
        bench.leases.beat()
        assert helper.told[4:] == ["."]
    assert helper.ended == 1


def test_helper_has_the_whole_time_despite_a_slow_worker() -> None:
    passing = count(100)
    helper = FakeHelper()
    bench = RenewalBench(helper=helper, clock=lambda: float(next(passing)))
    bench.leases.exchange((), [grant("a", 1, 500), grant("b", 2, 700)], 0)
    assert helper.told == ["+1 a 500", "+2 b 700"]
    bench.leases.begin(grant("a", 1, 500))
    assert helper.told[2:] == ["+1 a 500"]


@pytest.mark.slow
def test_leases_renewed_by_the_helper_need_no_renewal_thread() -> None:
    helper = FakeHelper()
    with RenewalBench(6000, helper=helper) as bench:
        bench.leases.exchange((), [grant("a"), grant("b")], now_s())
        for _ in range(65):
            helper.says.append(f"renewed {now_s()!r} 2")
            time.sleep(0.05)
        assert bench.store.asked == []
        assert bench.told == []
        assert helper.starts == 1


def test_renewal_covers_only_leases_known_to_the_helper() -> None:
    helper = FakeHelper()
    bench = RenewalBench(30_000, helper=helper)
    sent_s = now_s()
    bench.leases.exchange((), [grant("a"), grant("b")], sent_s)
    bench.renewal._take([f"renewed {sent_s + 5!r} 1", "idle", "more", "failed Any: away"])
    held = {job_id: lease.until_s - sent_s for (job_id, _), lease in bench.leases.held.items()}
    assert held["a"] == pytest.approx(35)
    assert held["b"] == pytest.approx(30)
    assert bench.more.is_set()


def test_a_helper_s_verdicts_are_told() -> None:
    bench = RenewalBench(helper=FakeHelper())
    bench.leases.exchange((), [grant("a"), grant("b")], now_s())
    bench.renewal._take(["canceled 1 a", "lost 1 b", "lost 1 gone"])
    assert bench.told == [("a", 1, "canceled"), ("b", 1, "lease lost")]


@pytest.mark.parametrize("verdict, is_due", [("canceled", False), ("lost", True)])
def test_lost_lease_makes_an_announcement_of_the_worker_due(verdict: str, is_due: bool) -> None:
    bench = RenewalBench(helper=FakeHelper())
    bench.leases.exchange((), [grant("a")], now_s())
    bench.state.announce_due_s = now_s() + 15
    bench.renewal._take([f"{verdict} 1 a"])
    assert (bench.state.announce_due_s <= now_s()) is is_due


@pytest.mark.slow
@pytest.mark.parametrize("way", ["dies", "is silent"])
def test_dead_helper_is_restarted_and_a_thread_renews_meanwhile(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # It counts from the end of a lease: so it is given up soon.
    monkeypatch.setattr(renewal_module, "SILENCE_MAX_S", 0.2 - 60 if way == "is silent" else 600)
    helper = FakeHelper()
    with RenewalBench(60_000, helper=helper) as bench:
        bench.leases.exchange((), [grant("a"), grant("b", 2, 60_000)], now_s() - 30)
        helper.is_dead = way == "dies"
        until(lambda: helper.starts == 2)
        monkeypatch.setattr(renewal_module, "SILENCE_MAX_S", 600)
        until(lambda: len(helper.told) == 2)
        assert helper.told[0] == "+1 a"
        assert 0 < int(helper.told[1].removeprefix("+2 b ")) <= 60_000
        until(lambda: bench.store.asked)
        assert bench.told == []
    assert "renewal.restarted" in [record.__dict__["event"] for record in caplog.records]


@pytest.mark.slow
def test_a_helper_that_cannot_be_started_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(FakeHelper):
        def start(self, lease_s: float) -> None:
            super().start(lease_s)
            if self.starts == 2:
                self.is_dead = True
                raise OSError("no more processes")

    helper = Failing()
    with RenewalBench(helper=helper) as bench:
        bench.leases.exchange((), [grant("a")], now_s())
        helper.is_dead = True
        until(lambda: helper.starts == 3)
    assert "renewal.helper_failed" in [record.__dict__["event"] for record in caplog.records]


def test_nonsense_from_a_helper_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    helper = FakeHelper()
    with RenewalBench(helper=helper) as bench:
        helper.says.append("renewed x y")
        until(lambda: "the watch over leases failed" in [record.message for record in caplog.records])
        assert helper.starts == 2
        helper.says.append("more")
        until(bench.more.is_set)


# --- the helper's own rules --------------------------------------------------------------------------------------


class Helpers:
    """A helper in this process: its store, and what it says."""

    def __init__(self, **config: Any) -> None:
        self.store = Store()
        self.said: list[str] = []
        config = {"lease_ms": 1000, "abandon_after_s": 0.05, "worker": os.getppid(), **config}
        self.renewer = Renewer(self.store, config, self.said.append)  # type: ignore[arg-type]


def test_helper_renews_its_registered_leases() -> None:
    here = Helpers()
    here.renewer.renew()
    here.renewer.take(["+1 a", "+2 b", "-1 a", "."])
    here.store.verdicts = {"b": CANCELED}
    here.store.more = True
    here.renewer.renew()
    assert here.store.asked[0][1] == (("b", 2),)
    assert here.said[:2] == ["idle", "canceled 2 b"]
    assert here.said[2].startswith("renewed ")
    assert here.said[2].endswith(" 3")
    assert here.said[3:] == ["more"]


def test_helper_forgets_lost_leases() -> None:
    here = Helpers()
    here.renewer.take(["+1 a", "+2 b"])
    here.store.verdicts = {"a": LOST}
    here.renewer.renew()
    here.store.verdicts = {}
    here.renewer.renew()
    assert here.said[0] == "lost 1 a"
    assert here.store.asked[1][1] == (("b", 2),)


def test_helper_reports_a_canceled_lease_once() -> None:
    here = Helpers()
    here.renewer.take(["+1 a"])
    here.store.verdicts = {"a": CANCELED}
    here.renewer.renew()
    here.renewer.renew()
    here.store.verdicts = {"a": LOST}
    here.renewer.renew()
    words = [line.split(" ")[0] for line in here.said]
    assert words == ["canceled", "renewed", "renewed", "lost", "renewed"]
    here.renewer.take(["-1 a", "+2 a"])
    here.store.verdicts = {"a": CANCELED}
    here.renewer.renew()
    assert "canceled 2 a" in here.said


def test_helper_drops_no_line_about_a_lease_while_nobody_reads() -> None:
    read, write = os.pipe()
    speaker = Speaker(write)
    speaker.start()
    lines = [f"lost {number} {number:0120d}" for number in range(1000)]
    news = ["failed away", "more", "idle", "renewed 1.0 5", "renewed 2.0 6", "released 5 a", "renewed 3.0 7"]
    for line in (*lines, *news):
        speaker.say(line)
    heard = b""
    while not heard.endswith(b"renewed 3.0 7\n"):
        assert select.select([read], [], [], 60)[0], heard[-100:]
        heard += os.read(read, 1 << 16)
    os.close(read)
    os.close(write)
    assert heard.decode().splitlines() == [*lines, "renewed 2.0 6", "released 5 a", "renewed 3.0 7"]


def test_helper_reports_a_blocked_loop_at_once_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewer_module, "BLOCKED_S", 0.1)
    monkeypatch.setattr(renewer_module, "BEAT_S", 0.0)
    monkeypatch.setattr(renewer_module, "LOOK_EVERY_S", 0.01)
    is_over = threading.Event()
    monkeypatch.setattr("queuehint.worker.leases.helper.is_stopped", lambda _pid: is_over.is_set() and sys.exit())
    here = Helpers(lease_ms=600_000, abandon_after_s=60.0)
    here.renewer.take([".", "+1 a"])

    def renew() -> None:
        with contextlib.suppress(SystemExit):
            here.renewer.renew_for_ever()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        until(lambda: here.store.blocked_ms)
        time.sleep(0.05)
        assert len(here.store.blocked_ms) == 1, "once, not at each look"
        assert 100 <= here.store.blocked_ms[0] < 20_000
        here.renewer.take(["."])
        until(lambda: 0 in here.store.blocked_ms)
    finally:
        is_over.set()
        thread.join()


def test_thread_reports_a_blocked_loop_at_once_and_its_end() -> None:
    blocked_ms = [0]
    bench = RenewalBench(lease_ms=600_000)
    bench.renewal._tick_s = 0.01
    with bench:
        bench.state.pulse.blocked_ms = lambda: blocked_ms[0]
        bench.leases.exchange((), (grant("a"),), now_s())
        blocked_ms[0] = 7_000
        until(lambda: bench.store.blocked_ms)
        blocked_ms[0] = 0
        until(lambda: len(bench.store.blocked_ms) == 2)
        assert bench.store.blocked_ms == [7_000, 0]


@pytest.mark.parametrize("why", ["timeout", "canceled", "lost"])
def test_a_worker_that_is_stuck_for_long_is_killed(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    clock_s = [1000.0]
    monkeypatch.setattr("queuehint.worker.leases.helper.now_s", lambda: clock_s[0])
    monkeypatch.setattr("queuehint.worker.leases.helper.os.kill", lambda *call: killed.append(call))
    here = Helpers(abandon_after_s=0.5)
    here.renewer.take([".", "+1 a 10" if why == "timeout" else "+1 a", "+1 b"])
    here.store.verdicts = {"timeout": {}, "canceled": {"a": CANCELED}, "lost": {"a": LOST}}[why]
    here.renewer.renew()
    here.renewer._watch()
    assert killed == []
    clock_s[0] += 0.6
    here.renewer.take(["."])
    here.renewer._watch()
    assert killed == []  # its loop turns: it ends itself
    clock_s[0] += 0.6
    here.renewer._watch()
    assert killed == [(os.getppid(), signal.SIGKILL)]


def test_long_busy_worker_with_only_long_jobs_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.worker.leases.helper.os.kill", lambda *call: pytest.fail("killed"))
    here = Helpers()
    here.renewer.take(["+1 a", "+2 b 1", "-2 b"])
    time.sleep(0.1)
    here.renewer._watch()


# --- what handlers say -------------------------------------------------------------------------------------------


def test_log_lines_are_sent_together_with_the_newest_progress() -> None:
    buffer = OutboxBuffer()
    assert not buffer
    assert buffer.take() == []
    for n in range(3):
        buffer.log("a", 1, f"a{n}")
        buffer.log("b", 2, f"b{n}")
        buffer.report("a", 1, Progress(n, 3, None))
    assert buffer
    assert buffer.take() == [
        op.Note("a", 1, ("a0", "a1", "a2")),
        op.Note("b", 2, ("b0", "b1", "b2")),
        op.Note("a", 1, progress=Progress(2, 3, None)),
    ]
    assert not buffer


def test_many_lines_are_several_messages() -> None:
    buffer = OutboxBuffer()
    for n in range(450):
        buffer.log("a", 1, str(n))
    messages = buffer.take()
    assert [len(message.lines) for message in messages if isinstance(message, op.Note)] == [200, 200, 50]


def test_the_oldest_lines_are_dropped_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox_module, "LINES_MAX", 5)
    buffer = OutboxBuffer()
    buffer.log("a", 1, "a")
    for n in range(20):
        buffer.log("b", 2, str(n))
    assert buffer.take() == [op.Note("b", 2, ("15", "16", "17", "18", "19"))]
    assert len(caplog.records) == 1
    for n in range(5):
        buffer.log("c", 3, str(n))
    assert buffer.take() == [op.Note("c", 3, ("0", "1", "2", "3", "4"))]


@pytest.mark.slow
def test_leases_of_a_stopped_worker_lapse_until_it_continues(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    is_stopped, is_over = [False], [False]

    def look(_pid: int) -> bool:
        if is_over[0]:
            raise SystemExit
        return is_stopped[0]

    monkeypatch.setattr("queuehint.worker.leases.helper.is_stopped", look)
    here = Helpers(lease_ms=60, abandon_after_s=1.0)
    here.renewer.take(["+1 a"])

    def renew() -> None:
        with contextlib.suppress(SystemExit):
            here.renewer.renew_for_ever()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        until(lambda: len(here.store.asked) > 2)
        is_stopped[0] = True
        before = len(here.store.asked)
        until(lambda: "is stopped" in capfd.readouterr().err)
        assert len(here.store.asked) > before, "for a while it is renewed all the same"
        count = len(here.store.asked)
        time.sleep(0.2)
        assert len(here.store.asked) <= count + 1
        is_stopped[0] = False
        count = len(here.store.asked)
        until(lambda: len(here.store.asked) > count + 1)
    finally:
        is_over[0] = True
        thread.join()


class Leaving(Helpers):
    """A helper whose worker has died, which ends its thread in place of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, away: int, **config: Any) -> None:
        super().__init__(worker=0, **config)
        self.calls: list[Any] = []
        self.exits = 0
        self.away = away
        monkeypatch.setattr(self.store, "call_sync", self.call_sync)
        monkeypatch.setattr(os, "_exit", self.exit)
        self.renewer.take(["+1 a"])

    def call_sync(self, operation: Any) -> None:
        self.calls.append(operation)
        if len(self.calls) <= self.away:
            raise BackendUnavailableError("away")

    def exit(self, _code: int) -> None:
        self.exits += 1
        raise SystemExit


def test_helper_reports_its_worker_dead_once_the_store_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    here = Leaving(monkeypatch, away=3, lease_ms=3_600_000)
    with pytest.raises(SystemExit):
        here.renewer.leave()
    assert len(here.calls) == 4
    [outcome] = here.calls[-1].settle
    assert (outcome.job_id, outcome.token, outcome.kind) == ("a", 1, OutcomeKind.LOST)


def test_helper_of_a_dead_worker_ends_when_its_leases_do(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Leaving(monkeypatch, away=10**9, lease_ms=1)
    with pytest.raises(SystemExit):
        here.renewer.leave()
    assert here.calls


@pytest.mark.parametrize("line, is_reported", [(".", True), ("!", False)], ids=["died", "ends in order"])
def test_worker_that_is_gone_late_is_reported_if_it_died(
    line: str, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s = [0.0]
    here = Leaving(monkeypatch, away=0)
    here.renewer.take([line])
    monkeypatch.setattr(renewer_module, "now_s", lambda: at_s[0])
    monkeypatch.setattr(time, "sleep", lambda pause_s: at_s.__setitem__(0, at_s[0] + pause_s))
    monkeypatch.setattr(os, "getppid", lambda: 0 if at_s[0] < 5 else 1)
    with pytest.raises(SystemExit):
        here.renewer.leave()
    assert bool(here.calls) is is_reported


def test_only_one_thread_of_a_helper_reports_and_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Leaving(monkeypatch, away=0)
    is_let = threading.Event()

    def call_sync(operation: Any) -> None:
        here.calls.append(operation)
        is_let.wait(LIMIT_S)

    def leave() -> None:
        with contextlib.suppress(SystemExit):
            here.renewer.leave()

    monkeypatch.setattr(here.store, "call_sync", call_sync)
    first, second = threading.Thread(target=leave), threading.Thread(target=leave)
    try:
        first.start()
        until(lambda: here.calls)
        second.start()
        second.join(0.2)
        assert (len(here.calls), here.exits) == (1, 0)
        is_let.set()
        first.join()
        assert (len(here.calls), here.exits) == (1, 1)
    finally:  # none may exit once `os._exit` is what it was
        is_let.set()
        first.join()
        here.renewer._leaving.release()
        second.join()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell")
def test_a_process_that_is_stopped_is_seen() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(process.pid))
        process.send_signal(signal.SIGCONT)
        until(lambda: not is_stopped(process.pid))
        process.kill()
    assert not is_stopped(process.pid)
