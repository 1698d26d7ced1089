"""A client of an ASGI application in this process: what a server would hand it, and what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import attrs
from starlette.types import ASGIApp


@attrs.frozen
class Answer:
    """What an application has answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


@attrs.frozen
class WebClient:
    """
    Asks an application.

    Args:
        app: that is asked.
        headers: of every request.
        root: below which it is mounted, by a server.
        sent: what it has sent, where it raises too.
    """

    app: ASGIApp
    headers: dict[str, str] = attrs.field(factory=lambda: {"host": "board"})
    root: str = ""
    sent: list[Any] | None = None

    async def get(self, target: str, **headers: str) -> Answer:
        return await self.ask("GET", target, b"", headers)

    async def post(self, target: str, given: Any = None, **headers: str) -> Answer:
        body = b"" if given is None else json.dumps(given).encode()
        return await self.ask("POST", target, body, {"content-type": "application/json"} | headers)

    async def ask(self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        said: list[Any] = [] if self.sent is None else self.sent

        parts = iter([body])

        async def receive() -> dict[str, Any]:
            for part in parts:
                return {"type": "http.request", "body": part}
            await asyncio.Event().wait()  # the client stays
            return {}

        async def send(message: Any) -> None:
            said.append(message)

        await self.app(self._scope(method, target, headers or {}), receive, send)
        return _answer(said)

    async def stream(self, target: str, is_enough: Callable[[str], bool], **headers: str) -> Answer:
        """Read a stream until its text is enough, and leave."""
        said: list[Any] = []
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)
            if is_enough(_answer(said).text):
                left.set()

        async with asyncio.timeout(60):
            await self.app(self._scope("GET", target, headers), receive, send)
        return _answer(said)

    def _scope(self, method: str, target: str, headers: dict[str, str]) -> dict[str, Any]:
        path, _, query = target.partition("?")
        sent = {name.replace("_", "-"): value for name, value in (self.headers | headers).items()}
        return {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(self.root + path),
            "raw_path": (self.root + path).encode(),
            "root_path": self.root,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
        }


def _answer(said: list[Any]) -> Answer:
    head = {name.decode(): value.decode("latin-1") for name, value in said[0]["headers"]}
    return Answer(said[0]["status"], head, b"".join([part.get("body", b"") for part in said[1:]]))
