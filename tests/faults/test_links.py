"""Links that break, lose, delay or hang, and servers that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from queuehint import Hold, JobState, Scheduler
from queuehint import operations as op
from queuehint.errors import BackendError, LeaseLostError
from tests.conftest import StartProxy, StartServer
from tests.faults import checks
from tests.faults.checks import History, figures, until
from tests.faults.worker_and_producer import WorkerAndProducer, repeated
from tests.proxy import Proxy
from tests.schedulers import run
from tests.servers import Server, connect

pytestmark = pytest.mark.redis

FINISHED = JobState.FINISHED
ROOT = Path(__file__).resolve().parents[2]


# --- canceled callers ------------------------------------------------------------------------------------------------


def check_cancellations(server: Server, namespace: str, rounds: int) -> None:
    """Cancel callers at random moments: none gets the reply of another, and a repeated call is the same request."""

    async def main() -> int:
        store = checks.open_store(server.url, namespace)
        chance = random.Random(1)
        history = History()
        canceled = 0
        drawn: set[int] = set()
        await store.call(op.Draw(1))

        async def get(ids: tuple[str, ...]) -> None:
            got = await store.call(op.Get(ids))
            assert [record.id if record else None for record in got.records] == list(ids)

        for number in range(rounds):
            submission = op.Enqueue((checks.job(f"j{number}", ["p", str(number % 7)]),))
            draw = op.Draw(1)
            known = tuple(chance.sample(sorted(history.accepted), min(3, len(history.accepted))))
            operations: list[Any] = [submission, draw]
            tasks = [asyncio.create_task(store.call(operation)) for operation in operations]
            tasks += [asyncio.create_task(get(known)) for _ in range(2)]
            if number % 2:
                await asyncio.sleep(chance.uniform(0, 0.0015))
            else:
                # A few turns of the loop: most calls are sent, and no reply has come, however fast the server is.
                for _ in range(chance.randrange(24)):
                    await asyncio.sleep(0)
            for task in tasks:
                if chance.random() < 0.7:
                    task.cancel()
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            for at, reply in enumerate(replies):
                if isinstance(reply, asyncio.CancelledError):
                    canceled += 1
                    if at < 2:
                        # The same operation object is the same request, whatever became of it.
                        replies[at] = await store.call(operations[at])
                elif isinstance(reply, BaseException):
                    raise reply
            made, first = replies[0], replies[1]
            assert [(job.id, job.created) for job in made.jobs] == [(f"j{number}", True)]  # type: ignore[union-attr]
            assert first.first not in drawn  # type: ignore[union-attr]
            drawn.add(first.first)  # type: ignore[union-attr]
            history.accepted.add(f"j{number}")
        assert (await store.call(op.CountJobs())).enqueued == rounds
        # A draw whose caller was told has been applied once, so no number is missing.
        assert max(drawn) == rounds + 1
        await store.close()
        return canceled

    canceled = run(main())
    assert canceled > rounds / 4
    figures("F-20", rounds=rounds, canceled=canceled, mismatches=0)


def test_random_cancellations_of_callers_misroute_no_reply(redis_server: Server, namespace: str) -> None:
    check_cancellations(redis_server, namespace, 300)


@pytest.mark.nightly
def test_no_reply_goes_astray_in_thousands_of_cancellations(redis_server: Server, namespace: str) -> None:
    check_cancellations(redis_server, namespace, 5_000)


def test_threads_share_a_backend_and_get_their_own_replies(redis_server: Server, namespace: str) -> None:
    store = checks.open_store(redis_server.url, namespace)
    drawn: list[int] = []
    problems: list[BaseException] = []

    def act(thread: int) -> None:
        try:
            for number in range(25):
                drawn.append(store.call_sync(op.Draw(1)).first)
                name = f"t{thread}.{number}"
                assert store.call_sync(op.Enqueue((checks.job(name, [str(thread)]),))).jobs[0].id == name
                record = store.call_sync(op.Get((name,))).records[0]
                assert record is not None and record.id == name
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=act, args=(thread,)) for thread in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(checks.LIMIT_S)
    assert not problems
    assert sorted(drawn) == list(range(1, 401))
    assert store.call_sync(op.CountJobs()).enqueued == 400
    store.close_sync()


FORKS = """
import asyncio, json, os, sys
from queuehint.operations import Draw, Enqueue, Get
from tests.faults import checks

url, namespace, folder, children, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
store = checks.open_store(url, namespace)

async def draw(count):
    drawn = [(await store.call(Draw(1))).first for _ in range(count)]
    return drawn

def act(name):
    drawn = [store.call_sync(Draw(1)).first for _ in range(rounds)]
    for number in range(rounds):
        job_id = f"{name}.{number}"
        assert store.call_sync(Enqueue((checks.job(job_id),))).jobs[0].created
        assert store.call_sync(Get((job_id,))).records[0].id == job_id
    drawn += asyncio.run(draw(rounds))
    with open(os.path.join(folder, name), "w") as file:
        json.dump(drawn, file)

act("before")
pids = []
for child in range(children):
    pid = os.fork()
    if not pid:
        try:
            act(f"child{child}")
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    pids.append(pid)
act("beside")
assert all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in pids)
act("after")
"""


@pytest.mark.slow
def test_used_backend_works_in_forks_and_beside_them(redis_server: Server, namespace: str, tmp_path: Path) -> None:
    arguments = [redis_server.url, namespace, str(tmp_path), "4", "20"]
    subprocess.run([sys.executable, "-c", FORKS, *arguments], cwd=ROOT, check=True, timeout=checks.LIMIT_S)
    drawn = [number for path in tmp_path.iterdir() for number in json.loads(path.read_text())]
    assert sorted(drawn) == list(range(1, 7 * 40 + 1))
    store = checks.open_store(redis_server.url, namespace)
    assert store.call_sync(op.CountJobs()).enqueued == 7 * 20
    store.close_sync()


# --- flushed scripts -------------------------------------------------------------------------------------------------


def check_flushes(server: Server, namespace: str, every_s: float, least: int, functions: str = "always") -> None:
    client = server.client()
    store = checks.open_store(f"{server.url}?functions={functions}", namespace)
    store.call_sync(op.Draw(1))
    client.config_resetstat()
    calls = 0
    history = History()
    other = connect(server.url)
    flush = other.script_flush if functions == "never" else other.function_flush
    with repeated(flush, every_s) as flushes:
        end_s = time.monotonic() + checks.LIMIT_S + least
        while len(flushes) < least:
            assert time.monotonic() < end_s, "it is not flushed any more"
            name = f"j{calls}"
            history.enqueue(store, checks.job(name, ["p", str(calls % 3)]))
            granted = store.call_sync(op.Exchange("w", limit=1)).grants
            settle = tuple(checks.finished(grant) for grant in granted)
            store.call_sync(op.Exchange("w", settle))
            calls += 3
    other.close()
    counted: Any = client.info("commandstats")
    if functions == "never":
        more = counted.get("cmdstat_eval", {"calls": 0})["calls"]
        assert counted["cmdstat_evalsha"]["calls"] == calls
    else:
        more = counted.get("cmdstat_function|load", {"calls": 0})["calls"]
        assert counted["cmdstat_fcall"]["calls"] == calls + more
        assert "cmdstat_evalsha" not in counted
    assert 0 < more <= calls
    store.close_sync()
    checks.close_books(client, server.url, namespace, history)
    figures("F-06", flushes=len(flushes), operations=calls, extra_round_trips=more, errors=0)


@pytest.mark.slow
def test_constant_script_flushes_cost_one_more_round_trip(start_server: StartServer, namespace: str) -> None:
    check_flushes(start_server(), namespace, 0.002, 100, "never")


@pytest.mark.slow
def test_repeated_function_flushes_cost_two_more_round_trips(start_server: StartServer, namespace: str) -> None:
    check_flushes(start_server(), namespace, 0.2, 4)


@pytest.mark.nightly
def test_script_flushes_every_50_ms_go_unnoticed(start_server: StartServer, namespace: str) -> None:
    check_flushes(start_server(), namespace, 0.05, 600)


# --- lost packets ----------------------------------------------------------------------------------------------------


def check_blackhole(server: Server, proxy: Proxy, namespace: str, lines: Path, seconds: float) -> None:
    both = WorkerAndProducer(server, proxy.url, namespace, lines)

    async def main() -> float:
        async with both.working():
            await both.enqueue(8)
            await both.drained()
            # Some run, the rest waits, and the worker listens.
            await both.enqueue(4, ms=300)
            await until(lambda: sum(line.event == "start" for line in checks.read_lines(lines)) > 8, "some run")
            proxy.blackhole()
            await both.enqueue(8)
            await asyncio.sleep(seconds)  # for how long the peer has vanished
            proxy.heal()
            healed_s = time.monotonic()
            await both.drained()
            return time.monotonic() - healed_s

    recovery_s = run(main(), checks.LIMIT_S + seconds)
    facts = both.close()
    # A request sent into the black hole times out after 5 s, a blocking wait after at most 8 s.
    assert recovery_s <= 10 + 50
    figures("F-17", black_s=seconds, recovery_s=round(recovery_s, 2), **facts)


@pytest.mark.slow
def test_worker_notices_a_vanished_server_and_resumes_after_it(
    redis_server: Server, start_proxy: StartProxy, namespace: str, lines: Path
) -> None:
    check_blackhole(redis_server, start_proxy(redis_server), namespace, lines, 5)


@pytest.mark.nightly
def test_a_worker_survives_two_minutes_without_its_server(
    redis_server: Server, start_proxy: StartProxy, namespace: str, lines: Path
) -> None:
    check_blackhole(redis_server, start_proxy(redis_server), namespace, lines, 120)


@pytest.mark.slow
def test_slow_jittery_link_delays_jobs_and_loses_no_lease(
    redis_server: Server, start_proxy: StartProxy, namespace: str, lines: Path
) -> None:
    proxy = start_proxy(redis_server)
    both = WorkerAndProducer(redis_server, proxy.url, namespace, lines, lease=3)

    async def main() -> None:
        async with both.working():
            # Round trips of 200 to 300 ms; the jobs run for longer than a lease.
            proxy.delay(100, jitter_ms=50)
            await both.enqueue(4, ms=3_500)
            await both.enqueue(20, paths=20)
            await both.drained()

    run(main())
    facts = both.close()
    assert facts["twice"] == 0
    figures("F-18", rtt_ms="200-300", **facts)


@pytest.mark.parametrize("at_first", [16, pytest.param(1, marks=pytest.mark.nightly)])
async def test_replies_that_come_byte_by_byte_are_read(
    redis_server: Server, start_proxy: StartProxy, namespace: str, lines: Path, at_first: int
) -> None:
    proxy = start_proxy(redis_server)
    both = WorkerAndProducer(redis_server, proxy.url, namespace, lines)

    # A connection begins with the scripts, of a few 100 kB: only at night byte by byte.
    proxy.slice(at_first)
    async with both.working():
        proxy.slice(1)
        await both.enqueue(20)
        await both.drained()
    figures("F-18", slice=1, **both.close())


def check_storm(server: Server, proxy: Proxy, namespace: str, lines: Path, seconds: float) -> None:
    both = WorkerAndProducer(server, proxy.url, namespace, lines)

    async def main() -> tuple[int, int, float]:
        async with both.working():
            await both.enqueue(4)
            await both.drained()
            before = proxy.accepted
            with repeated(proxy.rst, 0.1) as resets:
                end_s = time.monotonic() + seconds
                while time.monotonic() < end_s:
                    await both.enqueue(8, ms=20)
                    await asyncio.sleep(0.05)
            calm_s = time.monotonic()
            await both.drained()
            return len(resets), proxy.accepted - before, time.monotonic() - calm_s

    resets, connections, recovery_s = run(main(), checks.LIMIT_S + seconds)
    facts = both.close()
    # One link each for calls, for listening and for renewals; none of them comes back more than once a reset.
    assert connections <= 3 * (resets + 2)
    assert recovery_s < 10 + 50
    figures("F-19", resets=resets, connections=connections, recovery_s=round(recovery_s, 2), **facts)


@pytest.mark.slow
def test_a_storm_of_resets_loses_nothing(
    redis_server: Server, start_proxy: StartProxy, namespace: str, lines: Path
) -> None:
    check_storm(redis_server, start_proxy(redis_server), namespace, lines, 3)


@pytest.mark.nightly
def test_a_minute_of_resets_loses_nothing(
    redis_server: Server, start_proxy: StartProxy, namespace: str, lines: Path
) -> None:
    check_storm(redis_server, start_proxy(redis_server), namespace, lines, 60)


@pytest.mark.slow
def test_a_server_that_refuses_is_asked_ever_less_often(
    redis_server: Server, start_proxy: StartProxy, namespace: str, lines: Path
) -> None:
    proxy = start_proxy(redis_server)
    both = WorkerAndProducer(redis_server, proxy.url, namespace, lines)

    async def main() -> int:
        async with both.working():
            await both.enqueue(4)
            await both.drained()
            proxy.refuse()
            proxy.rst()
            await both.enqueue(4)
            before = proxy.accepted
            await asyncio.sleep(4)  # for how long it refuses
            refused = proxy.accepted - before
            proxy.heal()
            await both.drained()
            return refused

    refused = run(main())
    # Six attempts in the first second, then one a second, of the caller; one a second of the waiter.
    assert refused <= 16
    figures("F-19", refused_s=4, attempts=refused, **both.close())


# --- killed connections, forks, busy servers -------------------------------------------------------------------------


def test_a_worker_whose_connections_are_killed_goes_on(start_server: StartServer, namespace: str, lines: Path) -> None:
    server = start_server()
    both = WorkerAndProducer(server, server.url, namespace, lines)
    other = connect(server.url)

    async def main() -> int:
        async with both.working():
            with repeated(lambda: other.execute_command("CLIENT", "KILL", "TYPE", "normal"), 0.05) as kills:  # type: ignore[no-untyped-call]
                while len(kills) < 20:
                    await both.enqueue(4, ms=10)
                    await asyncio.sleep(0.05)
            await both.drained()
            return len(kills)

    kills = run(main())
    other.close()
    figures("F-21", kills=kills, **both.close())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ALL", "WRITE"])
async def test_a_server_that_pauses_its_clients_is_waited_for(
    start_server: StartServer, namespace: str, lines: Path, mode: str
) -> None:
    server = start_server()
    both = WorkerAndProducer(server, server.url, namespace, lines)

    async with both.working():
        await both.enqueue(8, ms=200)
        server.call("CLIENT", "PAUSE", 1_500, mode)
        await both.enqueue(4)
        await both.drained()
    figures("F-21", paused_ms=1_500, mode=mode, **both.close())


@pytest.mark.nightly
async def test_a_pause_of_five_seconds_is_waited_for(start_server: StartServer, namespace: str, lines: Path) -> None:
    server = start_server()
    both = WorkerAndProducer(server, server.url, namespace, lines)

    async with both.working():
        await both.enqueue(8, ms=200)
        server.call("CLIENT", "PAUSE", 5_000, "ALL")
        await both.enqueue(4)
        await both.drained()
    figures("F-21", paused_ms=5_000, **both.close())


@pytest.mark.slow
async def test_a_server_with_no_room_for_clients_is_tried_again(
    start_server: StartServer, start_proxy: StartProxy, namespace: str, lines: Path
) -> None:
    server = start_server()
    proxy = start_proxy(server)
    both = WorkerAndProducer(server, proxy.url, namespace, lines)

    async with both.working():
        await both.enqueue(4)
        await both.drained()
        server.call("CONFIG", "SET", "maxclients", len(server.client().client_list()))
        others = [connect(server.url) for _ in range(3)]
        proxy.rst()
        # All places are taken before the worker is back, or it is and stays: both are well.
        for other in others:
            with contextlib.suppress(Exception):
                other.ping()
        await both.enqueue(4)
        await asyncio.sleep(0.5)  # for how long there is no room
        server.call("CONFIG", "SET", "maxclients", 1_000)
        for other in others:
            other.close()
        await both.drained()
    figures("F-21", maxclients=1, **both.close())


@pytest.mark.slow
def test_server_busy_with_a_foreign_script_is_awaited(start_server: StartServer, namespace: str, lines: Path) -> None:
    server = start_server(**{"busy-reply-threshold": 50})
    both = WorkerAndProducer(server, server.url, namespace, lines, lease=3)
    other = connect(server.url, socket_timeout=60)

    def spin() -> None:
        with contextlib.suppress(Exception):
            other.eval("while true do end", 0)

    async def main() -> None:
        async with both.working():
            await both.enqueue(8, ms=100)
            spinning = threading.Thread(target=spin)
            spinning.start()
            await until(lambda: is_busy(server), "the script spins")
            calls = [asyncio.create_task(both.near.work.using(id=f"busy{number}").enqueue(0)) for number in range(4)]
            await asyncio.sleep(1.5)  # for how long it spins
            assert not any(call.done() for call in calls)
            server.call("SCRIPT", "KILL")
            await asyncio.gather(*calls)
            both.history.accepted |= {f"busy{number}" for number in range(4)}
            spinning.join()
            await both.drained()

    run(main())
    other.close()
    facts = both.close()
    assert facts["twice"] == 0
    figures("F-25", busy_s=1.5, **facts)


def is_busy(server: Server) -> bool:
    try:
        server.call("PING")
    except Exception as error:
        return "BUSY" in str(error)
    return False


def check_freeze(server: Server, namespace: str, lines: Path, pauses: tuple[float, ...]) -> None:
    both = WorkerAndProducer(server, server.url, namespace, lines)

    async def main() -> float:
        worst_s = 0.0
        async with both.working():
            for seconds in pauses:
                await both.enqueue(8, ms=100)
                await until(lambda: sum(line.event == "start" for line in checks.read_lines(lines)) > 0, "some run")
                server.pause()
                await asyncio.sleep(seconds)  # for how long it is frozen
                server.resume()
                resumed_s = time.monotonic()
                await both.drained()
                worst_s = max(worst_s, time.monotonic() - resumed_s)
        return worst_s

    worst_s = run(main(), checks.LIMIT_S + sum(pauses) * 2)
    facts = both.close()
    # Each job is reaped at most once for each pause.
    assert facts["grants"] <= facts["jobs"] * 2
    figures("F-04", pauses_s=pauses, recovery_s=round(worst_s, 2), **facts)


@pytest.mark.slow
def test_a_frozen_server_goes_on_where_it_was(start_server: StartServer, namespace: str, lines: Path) -> None:
    check_freeze(start_server(), namespace, lines, (0.1, 2))


@pytest.mark.nightly
def test_server_frozen_for_a_minute_resumes(start_server: StartServer, namespace: str, lines: Path) -> None:
    check_freeze(start_server(), namespace, lines, (0.1, 2, 20, 60))


@pytest.mark.slow
def test_producer_at_a_frozen_server_retries_and_enqueues_once(
    start_server: StartServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from queuehint.backends.redis import session as redis_session
    from queuehint.backends.redis.connections import link as links

    monkeypatch.setattr(redis_session, "RETRY_S", checks.LIMIT_S)
    monkeypatch.setattr(links, "TIMEOUT_S", 0.2)
    server = start_server()
    store = checks.open_store(server.url, namespace)
    specs = {f"j{number}": checks.job(f"j{number}", ["p"]) for number in range(3)}
    history = History()
    history.enqueue(store, specs["j0"])
    monkeypatch.setattr(redis_session, "RETRY_S", 0.5)
    server.pause()
    history.enqueue(store, specs["j1"], specs["j2"])
    assert history.unknown == {"j1", "j2"}
    with pytest.raises(BackendError):
        store.call_sync(op.Draw(1))
    server.resume()
    monkeypatch.setattr(redis_session, "RETRY_S", checks.LIMIT_S)
    history.settle(store, specs)
    assert history.accepted == specs.keys()
    stats = store.call_sync(op.CountJobs())
    assert stats.enqueued == 3
    store.close_sync()


# --- D18 for plain code -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["async", "sync"])
def test_cut_off_caller_learns_its_loss_before_another_starts(
    redis_server: Server, start_proxy: StartProxy, namespace: str, how: str
) -> None:
    proxy = start_proxy(redis_server)
    here = Scheduler(f"{proxy.url}?namespace={namespace}", lease=3)
    elsewhere = Scheduler(f"{redis_server.url}?namespace={namespace}", lease=3)

    def cut() -> None:
        proxy.refuse()
        proxy.rst()

    async def go_on(hold: Hold) -> None:
        told = asyncio.create_task(hold.wait_lost())
        await asyncio.sleep(1.2)  # renewed meanwhile: as long as it can be, it is held
        assert not hold.lost
        assert not told.done()
        cut()
        async with elsewhere.exclusive(["doc1"], timeout=60) as other:
            assert hold.lost
            assert other.token > hold.token
            await asyncio.wait_for(told, 30)
        proxy.heal()

    async def main() -> None:
        with pytest.raises(LeaseLostError):
            async with here.exclusive(["doc1"]) as hold:
                await go_on(hold)
        await here.close()
        await elsewhere.close()

    def main_sync() -> None:
        with pytest.raises(LeaseLostError), here.exclusive_sync(["doc1"]) as hold:
            told: list[bool] = []
            waiting = threading.Thread(target=lambda: told.append(hold.wait_lost_sync(60)))
            waiting.start()
            cut()
            with elsewhere.exclusive_sync(["doc1"], timeout=60):
                assert hold.lost
                waiting.join()
                assert told == [True]
            proxy.heal()
        here.close_sync()
        elsewhere.close_sync()

    if how == "async":
        run(main())
    else:
        main_sync()
