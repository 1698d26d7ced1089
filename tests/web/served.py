"""A board that is served by a thread of this process, and a browser to look at it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import uvicorn

from queuehint.web import Access, make_app
from tests.servers import until
from tests.web.world import World

T = TypeVar("T")

PLAIN_HOST = "board.test"
"""A name of this machine that a browser does not trust as it does the loopback address."""
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {PLAIN_HOST} 127.0.0.1",
]
EVERYTHING = Access(name="ann", write=True, arguments=True)


def chromium() -> str | None:
    """Return the browser to test with: that of CHROMIUM, else a Chromium on PATH; None if there is none."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def why_no_browser() -> str | None:
    """Say why there is no browser to test with; None if there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed: make test-web installs it"
    if axe() is None:
        return "the package axe-playwright-python is not installed: make test-web installs it"
    return None if chromium() else "there is no Chromium on PATH"


def axe() -> Path | None:
    """Return the file of axe-core: that of AXE, else the one of the package that brings it."""
    if named := os.environ.get("AXE"):
        return Path(named)
    package = importlib.util.find_spec("axe_playwright_python")
    folders = package.submodule_search_locations if package is not None else None
    return Path(next(iter(folders))) / "axe.min.js" if folders else None


class Served:
    """
    A world whose board is served.

    Args:
        world: made by a function, for its store is used on the loop of the server.
        access: what each request may do.
        options: of the board.
    """

    def __init__(
        self, world: Callable[[], Awaitable[World]], access: Access = EVERYTHING, *, port: int = 0, **options: Any
    ) -> None:
        self._make, self._access, self._options = world, access, options
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.world: World
        self.loop: asyncio.AbstractEventLoop
        self._server: uvicorn.Server | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._failure or (self._server is not None and self._server.started), "the board is served")
        if self._failure:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
        self._thread.join(60)
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.world = await self._make()
        app = make_app(self.world.sched, auth=lambda _: self._access, **self._options)
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            with contextlib.suppress(Exception):
                await self.world.sched.close()

    def run(self, make: Callable[[World], Awaitable[T]]) -> T:
        """Run something on the loop of the server, and return what it returns."""

        async def made() -> T:
            return await make(self.world)

        return asyncio.run_coroutine_threadsafe(made(), self.loop).result(30)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Open a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield opened
        opened.close()
