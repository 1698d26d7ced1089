"""Events by the scheduler API: streams to read, and listeners, which run apart from the jobs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from queuehint import (
    BackendUnavailableError,
    Event,
    EventKind,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    Job,
    JobState,
    Missed,
    Scheduler,
    WouldDeadlockError,
)
from queuehint.backends.memory import MemoryBackend
from queuehint.client import event_reader
from queuehint.operations import Follow
from queuehint.scheduler import listening
from tests.calls import mark_of
from tests.conftest import StartProxy
from tests.schedulers import in_thread, run, scheduler, until
from tests.servers import Server, new_namespace


def a_job(sched: Scheduler) -> Job[Any, int]:
    @sched.job
    async def work(number: int = 0) -> int:
        if number < 0:
            raise ValueError("no")
        return number

    return work.using(max_attempts=1)


@pytest.fixture(params=["memory", "redis"])
def sched(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    if request.param == "memory":
        sched = Scheduler("memory://")
    else:
        server: Server = request.getfixturevalue("redis_server")
        sched = Scheduler(server.url, namespace=new_namespace("events"))
    yield sched
    sched.close_sync()


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.redis
def test_a_stream_has_each_move_of_each_job(sched: Scheduler) -> None:
    work = a_job(sched)

    async def main() -> list[tuple[str, JobState | None]]:
        async with sched.events() as events, sched.worker():
            await work.enqueue(1)
            return [(event.kind.value, event.new) for event in [await anext(events) for _ in range(3)]]

    assert run(main()) == [
        ("enqueued", JobState.QUEUED),
        ("started", JobState.STARTED),
        ("finished", JobState.FINISHED),
    ]


@pytest.mark.redis
def test_a_stream_may_be_read_without_a_loop(sched: Scheduler) -> None:
    work = a_job(sched)
    with sched.events_sync("enqueued") as events:
        handles = [work.enqueue_sync(number) for number in range(3)]
        found = [event.id for _, event in zip(handles, events, strict=False)]
    assert found == [handle.id for handle in handles]


@pytest.mark.redis
def test_stream_blocks_until_the_next_event(sched: Scheduler) -> None:
    work = a_job(sched)
    events = sched.events_sync()
    events.__enter__()
    first = in_thread(lambda: next(events))
    work.enqueue_sync()
    assert first().kind is EventKind.ENQUEUED


def test_a_stream_has_the_kinds_asked_for(sched: Scheduler) -> None:
    work = a_job(sched)

    async def main() -> list[EventKind]:
        async with sched.events([EventKind.FAILED, "finished"]) as events, sched.worker():
            await work.enqueue(-1)
            first = await anext(events)
            await work.enqueue(1)
            return [first.kind, (await anext(events)).kind]

    assert run(main()) == [EventKind.FAILED, EventKind.FINISHED]


@pytest.mark.redis
async def test_stream_contains_events_of_a_place_user_or_flow(sched: Scheduler) -> None:
    @sched.job(["{doc}", "{section}"])
    async def edit(doc: str, section: str) -> None: ...

    await edit.using(user="ann").enqueue("doc1", "s1")
    async with sched.events(path=["doc1"]) as of_doc, sched.events(user="ann") as of_user, sched.worker():
        ids = [(await edit.using(user=user).enqueue(doc, "s1")).id for user, doc in (("bob", "doc1"), ("ann", "doc2"))]
        async with sched.flow() as flow:
            flow.add(edit, "doc1", "s2")
        last = await anext(sched.events("finished", flow=flow, after=0))
        assert (last.flow, last.path) == (flow.id, ("doc1", "s2"))
        assert await anext(sched.events("finished", flow=flow.id, path=["doc1", "s2"], after=last.at - 1)) == last
        assert {(await anext(of_doc)).queue_keys[0][:5] for _ in range(6)} == {"doc1:"}
        found = [await anext(of_user) for _ in range(5)]
        assert {event.user for event in found} == {"ann"} and ids[1] in {event.id for event in found}


@pytest.mark.parametrize(
    "wrong", [{"path": "doc1"}, {"path": [1]}, {"user": ""}, {"user": 1}, {"flow": "a b"}, {"flow": 1}]
)
def test_a_filter_that_is_none_is_refused(wrong: Any) -> None:
    sched = Scheduler("memory://")
    for call in (sched.events, sched.events_sync):
        with pytest.raises((InvalidJobError, InvalidHintError, TypeError), match=next(iter(wrong))):
            call(**wrong)


@pytest.mark.redis
async def test_streams_survive_cut_connections_and_an_emptied_store(
    redis_server: Server, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "PAUSES_S", (0.01,))
    proxy = start_proxy(redis_server)
    sched = Scheduler(proxy.url, namespace=new_namespace("events"))
    work = a_job(sched).using(user="ann")
    streams = [sched.events("enqueued"), sched.events(user="ann")]
    waiting = sched._event_readers.of_loop()._waiting

    async def read_and_cut() -> list[str]:
        nexts = [asyncio.create_task(anext(stream)) for stream in streams]
        await until(lambda: len(waiting) == 2)
        proxy.cut_after(mark_of("follow"))
        await until(lambda: not proxy.armed)
        ids = [(await work.enqueue()).id]
        return ids + [(await each).id for each in nexts]

    assert len(set(await read_and_cut())) == 1
    redis_server.client().delete(*redis_server.client().scan_iter(f"*{sched.namespace}*"))
    nexts = [asyncio.create_task(anext(stream)) for stream in streams]
    await until(lambda: streams[0].after == streams[1].after == 0)
    handle = await work.enqueue()
    assert [(event.id, event.at) for event in await asyncio.gather(*nexts)] == [(handle.id, 1)] * 2
    assert [stream.missed for stream in streams] == [0, 0]
    await sched.close()


def test_a_stream_goes_on_where_another_one_has_ended() -> None:
    sched = Scheduler("memory://")
    work = a_job(sched)
    with sched.events_sync() as events:
        handles = [work.enqueue_sync() for _ in range(3)]
        first = next(events)
    again = sched.events_sync(after=first.at)
    assert [next(again).id, next(again).id] == [handles[1].id, handles[2].id]


def test_stream_counts_and_logs_missed_events(caplog: pytest.LogCaptureFixture) -> None:
    sched, clock = scheduler()
    work = a_job(sched)
    with sched.events_sync() as events:
        work.enqueue_sync()
        clock.advance(seconds=61)
        work.enqueue_sync()
        end = in_thread(lambda: next(events))
        run(until(lambda: events.missed == 2))
        last = work.enqueue_sync()
        assert end().id == last.id
    (record,) = [record for record in caplog.records if record.name == "queuehint.events"]
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "2 events were missed")


@pytest.mark.parametrize("kinds", ["ended", ["finished", "ended"], [1]])
def test_a_kind_that_does_not_exist_is_refused(kinds: Any) -> None:
    sched = Scheduler("memory://")
    for call in (sched.events, sched.events_sync, sched.on):
        with pytest.raises((InvalidJobError, InvalidJobTypeError), match="kind"):
            call(kinds)


@pytest.mark.parametrize("after", [-1, 1.5, "1", True])
def test_a_place_that_is_no_number_is_refused(after: Any) -> None:
    with pytest.raises((InvalidJobError, InvalidJobTypeError), match="after"):
        Scheduler("memory://").events(after=after)


async def test_a_handler_does_not_wait_for_events() -> None:
    sched = Scheduler("memory://")
    caught: list[str] = []

    @sched.job
    async def curious() -> None:
        try:
            async for _ in sched.events("pruned"):
                pass
        except WouldDeadlockError as error:
            caught.append(str(error))

    async with sched.worker():
        await (await curious.enqueue()).result()
        with pytest.raises(WouldDeadlockError, match="events_sync"):
            next(sched.events_sync())
    assert len(caught) == 1 and "events()" in caught[0]


# --- listeners -------------------------------------------------------------------------------------------------------


@pytest.mark.redis
async def test_listeners_receive_events_including_the_last_of_a_worker(sched: Scheduler) -> None:
    work = a_job(sched)
    told: list[tuple[str, str]] = []
    threads: set[str] = set()

    @sched.on(["started", "finished"])
    def plain(event: Event) -> None:
        told.append(("plain", event.kind.value))
        threads.add(threading.current_thread().name)

    async def on_loop(event: Event) -> None:
        told.append(("async", event.kind.value))

    assert sched.on(EventKind.FINISHED, on_loop) is on_loop

    async with sched.worker():
        await (await work.enqueue()).result()
    assert sorted(told) == [("async", "finished"), ("plain", "finished"), ("plain", "started")]
    assert threading.current_thread().name not in threads


async def test_listeners_are_told_without_a_worker_inside_listening() -> None:
    sched = Scheduler("memory://")
    work = a_job(sched)
    told: list[str] = []
    sched.on("*", lambda event: told.append(event.kind))

    await work.enqueue()
    async with sched.listening():
        await work.enqueue()
    assert told == ["enqueued"]


def test_raising_listener_is_logged_once_a_minute_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    sched = Scheduler("memory://")
    work = a_job(sched)
    told: list[str] = []

    @sched.on("*")
    def failing(event: Event) -> None:
        raise SystemExit(event.id) if event.kind == "started" else ValueError

    sched.on("finished", lambda event: told.append(event.id))

    async def main() -> list[int]:
        async with sched.worker():
            return [await (await work.enqueue(number)).result() for number in range(5)]

    assert run(main()) == list(range(5))
    assert len(told) == 5
    assert [state.failed for state in sched.listeners] == [15, 0]
    (record,) = [record for record in caplog.records if record.name == "queuehint.events"]
    assert record.levelno == logging.ERROR and "failing" in record.getMessage()


def test_a_listener_that_is_slow_loses_its_own_oldest_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "AHEAD_MAX", 3)
    sched = Scheduler("memory://")
    work = a_job(sched)
    told: list[Any] = []
    others: list[str] = []
    go_on = asyncio.Event()

    @sched.on("*")
    async def slow(event: Event | Missed) -> None:
        told.append(event)
        await go_on.wait()

    sched.on("enqueued", lambda event: others.append(event.id))

    async def main() -> list[str]:
        async with sched.listening():
            ids = [(await work.enqueue()).id]
            await until(lambda: len(told) == 1)
            for _ in range(10):
                ids.append((await work.enqueue()).id)
                await until(lambda: len(others) == len(ids))
            go_on.set()
        return ids

    ids = run(main())
    assert others == ids
    first, *rest = told
    assert first.id == ids[0]
    missed = sum(each.count for each in rest if isinstance(each, Missed))
    assert missed > 0 and missed == 10 - sum(isinstance(each, Event) for each in rest)
    assert rest[-1].id == ids[-1]
    assert sched.listeners[0].missed == missed


async def test_events_that_are_gone_are_told_as_missed(caplog: pytest.LogCaptureFixture) -> None:
    sched, clock = scheduler()
    work = a_job(sched)
    told: list[Any] = []
    sched.on("missed", told.append)

    async with sched.listening():
        await work.enqueue()
        # There has been no subscriber for a minute.
        clock.advance(seconds=61)
        await work.enqueue()
    assert told and all(isinstance(each, Missed) for each in told)


def test_a_listener_may_come_and_go_while_others_are_told() -> None:
    sched = Scheduler("memory://")
    work = a_job(sched)
    told: list[str] = []

    def late(event: Event) -> None:
        told.append(event.id)

    async def main() -> list[str]:
        async with sched.listening():
            ids = [(await work.enqueue()).id]
            sched.on("enqueued", late)
            await until(lambda: sched._announcer._follower.since is not None)
            ids.append((await work.enqueue()).id)
            await until(lambda: ids[-1] in told)
            sched.off(late)
            await work.enqueue()
            return ids

    ids = run(main())
    assert told == ids[-1:]
    assert sched.listeners == ()


def test_two_listeners_of_a_process_share_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "TURN_S", 0.01)
    sched = Scheduler("memory://")
    work = a_job(sched)
    told: list[str] = []
    sched.on("enqueued", lambda event: told.append(event.id))

    async def main() -> list[str]:
        async with sched.listening():
            async with sched.listening():
                ids = [(await work.enqueue()).id]
            ids.append((await work.enqueue()).id)
            await until(lambda: len(told) >= 2)
        second = sched.listening()
        async with sched.listening():
            await second.__aenter__()
        ids.append((await work.enqueue()).id)
        await until(lambda: len(told) >= 3)
        await second.__aexit__(None, None, None)
        return ids

    ids = run(main())
    assert told == ids


def test_unreadable_event_store_is_logged_once_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "STORE_PAUSE_S", 0.001)
    sched = Scheduler("memory://")
    work = a_job(sched)
    told: list[str] = []
    sched.on("enqueued", lambda event: told.append(event.id))
    call = MemoryBackend.call
    refusals = iter(range(5))

    async def refuse(self: MemoryBackend, operation: Any) -> Any:
        if isinstance(operation, Follow) and operation.after is not None and next(refusals, None) is not None:
            raise BackendUnavailableError("away")
        return await call(self, operation)

    monkeypatch.setattr(MemoryBackend, "call", refuse)

    async def main() -> str:
        async with sched.listening():
            handle = await work.enqueue()
            await until(lambda: bool(told))
            return handle.id

    assert [run(main())] == told
    (record,) = [record for record in caplog.records if record.name == "queuehint.events"]
    assert "away" in record.getMessage()


def test_non_callable_listener_is_refused() -> None:
    with pytest.raises(InvalidJobTypeError, match="callable"):
        Scheduler("memory://").on("failed", 1)  # type: ignore[call-overload]


# --- counts of a part ------------------------------------------------------------------------------------------------


def test_the_records_of_a_part_are_counted_by_state() -> None:
    sched = Scheduler("memory://")
    work = a_job(sched)
    work.using(user="ann").enqueue_sync()
    work.using(user="ann", queue_hint=["doc"]).enqueue_sync()
    work.using(user="bob", pool="slow").enqueue_sync()
    assert sched.stats_sync(user="ann").states[JobState.QUEUED] == 2
    assert sched.stats_sync(path=["doc"]).states[JobState.QUEUED] == 1
    assert run(sched.stats(pool="slow")).states[JobState.QUEUED] == 1
    assert run(sched.stats()).enqueued == 3
    with pytest.raises(InvalidJobTypeError, match="color"):
        sched.stats_sync(color="red")  # type: ignore[call-overload]
