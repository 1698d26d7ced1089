"""Feeds by WebSocket: a tab that is closed goes away, also where nothing happens."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from queuehint import Scheduler

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "progress.md"


class Feed:
    """The application of a page or an example, and its scheduler."""

    def __init__(self, app: Any, sched: Scheduler, path: str) -> None:
        self.app, self.sched, self.path = app, sched, path

    async def run_a_job(self) -> None:
        """Run one job at document doc1."""
        job = self.sched.job(queue_hint=["{doc}"], name="tests.noted")(_noted)
        await (await job.enqueue("doc1")).result()


async def _noted(doc: str) -> str:
    return doc


def of_page() -> Feed:
    """Run the code of the page."""
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        exec(compile(code, str(PAGE), "exec"), names)
    return Feed(names["app"], names["sched"], "/{doc}/socket")


def of_example(monkeypatch: pytest.MonkeyPatch) -> Feed:
    if find_spec("fastapi") is None:
        pytest.skip("fastapi is not installed")
    from examples.document_app import web

    sched = Scheduler()
    monkeypatch.setattr(web, "sched", sched)
    return Feed(web.app, sched, "/documents/{doc}/socket")


@pytest.fixture(params=["page", "document_app"])
def feed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Feed:
    return of_page() if request.param == "page" else of_example(monkeypatch)


class Tab:
    """A browser's side of a WebSocket."""

    def __init__(self, feed: Feed, doc: str, query: str = "") -> None:
        self.to_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.from_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.to_server.put_nowait({"type": "websocket.connect"})
        path = feed.path.format(doc=doc)
        scope: dict[str, Any] = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "ws",
            "query_string": query.encode(),
        }
        scope |= {"headers": [], "subprotocols": [], "client": None, "server": None}
        self.served = asyncio.ensure_future(feed.app(scope, self.to_server.get, self.from_server.put))

    def close(self) -> None:
        self.to_server.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def read_until_finished(self, feed: Feed) -> list[dict[str, Any]]:
        """Run jobs until the tab is told that one has ended; the stream may begin after the first of them."""
        said: list[dict[str, Any]] = []
        while not said or said[-1]["kind"] != "finished":
            if self.from_server.empty():
                await feed.run_a_job()
            with suppress(TimeoutError):
                said.append(json.loads((await asyncio.wait_for(self.from_server.get(), 30))["text"]))
        return said


async def test_closed_tab_of_a_quiet_document_ends_its_stream(feed: Feed) -> None:
    tabs = [Tab(feed, "quiet") for _ in range(3)]
    async with asyncio.timeout(60):
        for tab in tabs:
            assert (await tab.from_server.get())["type"] == "websocket.accept"
            tab.close()
        await asyncio.gather(*[tab.served for tab in tabs])
    await feed.sched.close()


async def test_open_tab_gets_the_events_of_its_document(feed: Feed) -> None:
    tab = Tab(feed, "doc1")
    async with asyncio.timeout(60), feed.sched.worker():
        await tab.from_server.get()
        await tab.read_until_finished(feed)
        tab.to_server.put_nowait({"type": "websocket.receive", "text": "still here"})
        tab.close()
        await tab.served
    await feed.sched.close()


async def test_returning_tab_resumes_after_its_last_event(feed: Feed) -> None:
    first = Tab(feed, "doc1")
    async with asyncio.timeout(60), feed.sched.worker():
        await first.from_server.get()
        seen = (await first.read_until_finished(feed))[-1]["at"]
        first.close()
        await first.served
        await feed.run_a_job()
        again = Tab(feed, "doc1", f"after={seen}")
        assert (await again.from_server.get())["type"] == "websocket.accept"
        said = json.loads((await again.from_server.get())["text"])
        assert said["at"] > seen
        again.close()
        await again.served
    await feed.sched.close()


async def test_failed_stream_closes_its_socket(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("no stream")

    monkeypatch.setattr(feed.sched, "events", fail)
    tab = Tab(feed, "doc1")
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="no stream"):
            await tab.served
    await feed.sched.close()
