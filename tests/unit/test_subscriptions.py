"""Subscriptions to jobs of one event loop: one request for all, on a hand-made store without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from queuehint.backends.base import Interest
from queuehint.backends.redis import subscriptions
from queuehint.backends.redis.subscriptions import Subscriptions
from queuehint.backends.redis.transport import Send
from queuehint.errors import BackendError
from tests.schedulers import turns, until


class Store:
    """A store without a server: it keeps the requests; the test gives replies and markers by hand."""

    namespace = "n"

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.replies: asyncio.Queue[str | Exception] = asyncio.Queue()
        self.markers: asyncio.Queue[str] = asyncio.Queue()
        self.known = Subscriptions(self, "session", self.send, link=self, waits=self)  # type: ignore[arg-type]

    def execute_script(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (name, *args)

    async def send(self, request: tuple[Any, ...]) -> list[Any]:
        self.asked.append(request)
        if request[0] == "unwatch":
            return []
        reply = await self.replies.get()
        if isinstance(reply, Exception):
            raise reply
        return [0, 0, 0, reply.encode()]

    async def ask(self, send: Send) -> Any:
        if send.command[0] == "ZPOPMIN":
            return []
        return (b"key", (await self.markers.get()).encode(), 0.0)

    def wait(self, *job_ids: str, version: int | None = None, wait_s: float = 60.0) -> asyncio.Task[None]:
        return asyncio.create_task(self.known.wait(Interest(jobs=job_ids, version=version), wait_s))

    def are_done(self, tasks: Sequence[asyncio.Task[None]]) -> list[bool]:
        return [task.done() for task in tasks]


async def test_concurrent_waits_share_one_query_and_later_ones_need_none() -> None:
    store = Store()
    early = [store.wait(job_id) for job_id in "aab"]
    await turns()
    assert store.asked == [("watch", "session", "", "a", "", "b", "")]
    store.replies.put_nowait("ww")
    await turns()
    late = store.wait("a")
    await turns()
    assert len(store.asked) == 1
    store.markers.put_nowait("a")
    await turns()
    assert store.are_done([*early, late]) == [True, True, False, True]
    # It is over: new waits get the answer from the store.
    again = store.wait("a")
    store.replies.put_nowait("o")
    await again
    await store.known.close()
    await early[2]
    assert store.asked[-1] == ("unwatch", "session", "b")


async def test_a_marker_that_comes_before_an_older_answer_counts() -> None:
    store = Store()
    first, change = store.wait("a"), store.wait("b", version=3)
    await turns()
    assert store.asked == [("watch", "session", "", "a", "", "b", 3)]
    store.markers.put_nowait("a")
    store.markers.put_nowait("~b")
    await turns()
    assert (first.done(), change.done()) == (True, True)
    store.replies.put_nowait("ww")
    await turns()
    later = [store.wait("a"), store.wait("b", version=3)]
    await turns()
    assert store.asked[1:] == [("watch", "session", "", "a", "", "b", 3)]
    store.replies.put_nowait("ov")
    await asyncio.gather(*later)
    await store.known.close()


async def test_version_change_wakes_version_waiters_and_not_end_waiters() -> None:
    store = Store()
    end, change = store.wait("a"), store.wait("a", version=3)
    store.replies.put_nowait("w")
    await turns()
    assert store.asked == [("watch", "session", "", "a", 3)]
    same = store.wait("a", version=3)
    await turns()
    assert len(store.asked) == 1
    store.markers.put_nowait("~a")
    await turns()
    assert store.are_done([end, change, same]) == [False, True, True]
    newer = store.wait("a", version=4)
    store.replies.put_nowait("w")
    await turns()
    assert store.asked[1:] == [("watch", "session", "", "a", 4)]
    older = store.wait("a", version=3)
    store.replies.put_nowait("w")
    await older
    assert not newer.done()
    store.markers.put_nowait("a")
    await asyncio.gather(end, newer)
    await store.known.close()


async def test_job_id_that_resembles_a_change_is_distinct() -> None:
    store = Store()
    end, change = store.wait("~a"), store.wait("a", version=1)
    store.replies.put_nowait("ww")
    await turns()
    store.markers.put_nowait("~a")
    await asyncio.gather(end, change)
    await store.known.close()


@pytest.mark.parametrize("version", [None, 3])
async def test_waiters_during_a_query_cause_one_more_query(version: int | None) -> None:
    store = Store()
    waiting = list[asyncio.Task[None]]()
    for _ in range(3):
        waiting.append(store.wait("a", version=version, wait_s=0.0))
        await turns()
        waiting.append(store.wait("a", version=version))
        await turns()
        store.replies.put_nowait("w")
        await turns()
    for _ in range(10):
        store.replies.put_nowait("w")
        await turns()
    # Each question is followed by one for those that came meanwhile, and that one by none.
    assert [len(request) for request in store.asked] == [5] * 4
    assert store.are_done(waiting) == [True, False] * 3
    store.markers.put_nowait("a")
    await asyncio.gather(*waiting)
    await store.known.close()


async def test_subscriptions_are_asked_about_again_before_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "TRUSTED_S", 0.05)
    monkeypatch.setattr(subscriptions, "TOGETHER_S", 0.01)
    store = Store()
    waiting = [store.wait("a"), store.wait("b")]
    store.replies.put_nowait("ww")
    await until(lambda: len(store.asked) == 2)
    assert store.asked[1] == store.asked[0]
    store.replies.put_nowait("oo")
    await asyncio.gather(*waiting)
    await store.known.close()


async def test_each_page_wakes_its_own_waiters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "ASKED_MAX", 10)
    woken, wait = list[Any](), asyncio.wait

    async def counted(*args: Any, **kwargs: Any) -> Any:
        woken.append(args)
        return await wait(*args, **kwargs)

    monkeypatch.setattr(asyncio, "wait", counted)
    store = Store()
    waiting = [store.wait(str(number)) for number in range(200)]
    for _ in range(20):
        store.replies.put_nowait("w" * 10)
    await until(lambda: len(store.asked) == 20)
    await turns()
    assert [len(request) - 3 for request in store.asked] == [20] * 20
    # Once each; where all were woken by each page, it was 2 100 times.
    assert len(woken) == 200
    store.markers.put_nowait("7")
    await waiting[7]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await store.known.close()


async def test_job_is_queried_on_one_page_for_all_waiters() -> None:
    store = Store()
    waiting = [store.wait("a"), store.wait("b", "a"), store.wait("a", version=2)]
    await turns()
    assert store.asked == [("watch", "session", "", "a", 2, "b", "")]
    store.replies.put_nowait("ww")
    await turns()
    late = store.wait("b", version=1)
    store.replies.put_nowait("w")
    await turns()
    assert store.asked[1:] == [("watch", "session", "", "b", 1)]
    store.markers.put_nowait("a")
    store.markers.put_nowait("b")
    await asyncio.gather(*waiting, late)
    await store.known.close()


@pytest.mark.parametrize("error", [BackendError("away"), ValueError("a bug")])
async def test_failed_query_ends_the_waits_early_and_delays_the_next(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "FAILED_WAIT_S", 0.01)
    store = Store()
    store.replies.put_nowait(error)
    await store.wait("a")
    again = store.wait("a")
    store.replies.put_nowait("o")
    await again
    assert len(store.asked) == 2
    await store.known.close()


async def test_timeout_of_a_wait_begins_after_its_query() -> None:
    store = Store()
    waiting = store.wait("a", wait_s=0.0)
    await turns()
    assert not waiting.done()
    store.replies.put_nowait("w")
    await waiting
    await store.known.close()


async def test_jobs_are_queried_in_portions_and_forgotten_without_waiters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "ASKED_MAX", 2)
    monkeypatch.setattr(subscriptions, "REMEMBERED_MAX", 3)
    store = Store()
    waiting = [store.wait(str(number), wait_s=0.0) for number in range(5)]
    for reply in ("ww", "ww", "w"):
        store.replies.put_nowait(reply)
    await asyncio.gather(*waiting)
    assert [len(request) for request in store.asked] == [7, 7, 5]
    await store.known.close()
    assert len(store.asked[-1]) == 2 + 3
