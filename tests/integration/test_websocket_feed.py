"""The feed by WebSocket of the documentation: a tab that is closed goes away, also where nothing happens."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "progress.md"


def page() -> dict[str, Any]:
    """Run the code of the page, and return its names."""
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        exec(compile(code, str(PAGE), "exec"), names)
    return names


class Tab:
    """A browser's side of a WebSocket."""

    def __init__(self, app: Any, doc: str) -> None:
        self.to_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.from_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.to_server.put_nowait({"type": "websocket.connect"})
        path = f"/{doc}/socket"
        scope: dict[str, Any] = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "ws",
        }
        scope |= {"query_string": b"", "headers": [], "subprotocols": [], "client": None, "server": None}
        self.served = asyncio.ensure_future(app(scope, self.to_server.get, self.from_server.put))

    def close(self) -> None:
        self.to_server.put_nowait({"type": "websocket.disconnect", "code": 1001})


async def test_closed_tab_of_a_quiet_document_ends_its_stream() -> None:
    names = page()
    sched = names["sched"]
    tabs = [Tab(names["app"], "quiet") for _ in range(3)]
    async with asyncio.timeout(20):
        for tab in tabs:
            assert (await tab.from_server.get())["type"] == "websocket.accept"
            tab.close()
        await asyncio.gather(*[tab.served for tab in tabs])
    await sched.close()


async def test_open_tab_gets_the_events_of_its_document() -> None:
    names = page()
    sched = names["sched"]
    tab = Tab(names["app"], "doc1")
    async with asyncio.timeout(20), sched.worker():
        await tab.from_server.get()
        said: dict[str, Any] = {}
        while said.get("kind") != "finished":
            if tab.from_server.empty():
                # The stream may begin after the first of these.
                await (await names["export"].enqueue("doc1", "intro", 1)).result()
            said = json.loads((await tab.from_server.get())["text"])
        tab.to_server.put_nowait({"type": "websocket.receive", "text": "still here"})
        tab.close()
        await tab.served
    await sched.close()
