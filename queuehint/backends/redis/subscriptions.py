"""
Subscriptions of one event loop to jobs, with one query and one blocking connection for all its waiters.

A job stores its subscribers. At its end and, for waiters of changes, at each change it puts a marker into the set of
the loop's session. So a further waiter of the same job sends no request. After `TRUSTED_S` all subscriptions are
checked again in one request, because a marker may be lost with a connection.

Jobs to be asked about stand in pages. A page is one request and wakes its own waiters alone: n waiters cost O(n).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import attrs
from redis import exceptions as driver

from queuehint.backends.redis import keys
from queuehint.backends.redis.transport import NotSent, Send, Unanswered, onward
from queuehint.backends.redis.waits import FAILED_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from queuehint.backends.base import Interest
    from queuehint.backends.redis.connections.async_link import AsyncLink, WaitLink
    from queuehint.backends.redis.session import Session

TRUSTED_S: Final = 5.0
"""No subscription is trusted longer than this."""
TOGETHER_S: Final = 1.0
"""Subscriptions to be checked again within this time are checked together."""
LISTEN_S: Final = 6.0
"""How long one blocking wait for markers lasts, even if no waiter is left."""
ASKED_MAX: Final = 1000
REMEMBERED_MAX: Final = 1000
"""At the end of the loop the subscriptions to at most so many jobs without waiters are removed."""


@attrs.define
class _Subscription:
    """A job subscribed by the loop: since when, and its version if changes are published."""

    asked_s: float
    version: int | None


class _Page:
    """Jobs queried in one request, and the future of the answer."""

    __slots__ = ("answered", "job_ids")

    def __init__(self) -> None:
        self.job_ids: list[str] = []
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Subscriptions:
    """
    The jobs with waiters in one event loop.

    Args:
        session: makes the requests.
        waiter: what the loop is known by in the store.
        send: sends a request of *session* and returns the reply.
        link: where markers are taken from the set; not the connection that blocks.
        waits: the connections that block.
    """

    def __init__(
        self,
        session: Session,
        waiter: str,
        send: Callable[[Any], Awaitable[Any]],
        *,
        link: AsyncLink,
        waits: WaitLink,
    ) -> None:
        self._session = session
        self._send = send
        self._link = link
        self._waits = waits
        self._waiter = waiter
        self._waiting: dict[str, dict[asyncio.Future[None], int | None]] = {}
        """By job: its waiters, each with the version that it knows; None for one that waits for the end."""
        self._known: dict[str, _Subscription] = {}
        self._told: set[str] | None = None
        """Of which jobs a marker came while a question was under way: its answer may be older."""
        self._news = asyncio.Event()
        """Set when a page is to be asked about."""
        self._pages: deque[_Page] = deque()
        self._page_of: dict[str, _Page] = {}
        """By job: the page in which it is going to be asked about."""
        self._renew_s = math.inf
        """When the first of the subscriptions that were answered is no longer trusted, at the earliest."""
        self._asking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, interest: Interest, wait_s: float) -> None:
        """Return when one of some jobs has ended or has another version, or after *wait_s*."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        job_ids, version = tuple(interest.jobs), interest.version
        for job_id in job_ids:
            self._waiting.setdefault(job_id, {})[future] = version
        try:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask_on(), name="queuehint-subscriptions")
            if self._listening is None or self._listening.done():
                self._listening = asyncio.create_task(self._listen(), name="queuehint-markers")
            # Once: an answer to a question that begins after this wakes the future, or markers will. Another question
            # about the same jobs may be under way by then, and one more begin with each that is waited for.
            for page in self._pages_for(job_ids, version):
                if not (future.done() or page.answered.done()):
                    await asyncio.wait((future, page.answered), return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(wait_s):
                await future
        except TimeoutError:
            pass
        finally:
            for job_id in set(job_ids):
                self._leave(job_id, future)

    def _leave(self, job_id: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(job_id, {})
        waiting.pop(future, None)
        if not waiting:
            self._waiting.pop(job_id, None)
            if len(self._known) > REMEMBERED_MAX:
                self._known.pop(job_id, None)

    async def close(self) -> None:
        """Stop, and have the jobs forget this loop."""
        for task in (self._asking, self._listening):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for job_id in list(self._waiting):
            self._wake(job_id)
        if self._known:
            job_ids = list(self._known)[-REMEMBERED_MAX:]
            await self._send(self._session.execute_script("unwatch", (self._waiter, *job_ids)))

    # --- asking ------------------------------------------------------------------------------------------------------

    def _pages_for(self, job_ids: Iterable[str], version: int | None) -> list[_Page]:
        """Return the pages of the jobs whose waiters need more than a marker."""
        now_s = time.monotonic()
        pages: dict[_Page, None] = {}
        for job_id in job_ids:
            known = self._known.get(job_id)
            is_trusted = known is not None and now_s < known.asked_s + TRUSTED_S
            if known is None or not is_trusted or version not in {None, known.version}:
                pages[self._page(job_id)] = None
        return [*pages]

    def _page(self, job_id: str) -> _Page:
        """Add a job to the next query. Return the page."""
        page = self._page_of.get(job_id)
        if page is None:
            if not self._pages or len(self._pages[-1].job_ids) >= ASKED_MAX:
                self._pages.append(_Page())
            page = self._page_of[job_id] = self._pages[-1]
            page.job_ids.append(job_id)
            self._news.set()
        return page

    async def _ask_on(self) -> None:
        """Query page by page, and again before subscriptions expire, until no waiter is left."""
        while self._waiting:
            self._news.clear()
            if not self._pages:
                now_s = time.monotonic()
                if now_s < self._renew_s:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(None if self._renew_s == math.inf else self._renew_s - now_s):
                            await self._news.wait()
                else:
                    self._renew(now_s)
                continue
            page = self._pages.popleft()
            for job_id in page.job_ids:
                del self._page_of[job_id]
            job_ids = [job_id for job_id in page.job_ids if job_id in self._waiting]
            has_failed = False
            try:
                if job_ids:
                    await self._ask(job_ids)
            except Exception:  # noqa: BLE001 - the callers look, and are told
                has_failed = True
            page.answered.set_result(None)
            if has_failed:
                for job_id in job_ids:
                    self._wake(job_id)
                await asyncio.sleep(FAILED_WAIT_S)
        self._pages.clear()
        self._page_of.clear()

    def _renew(self, now_s: float) -> None:
        """Renew all subscriptions that expire soon in one query."""
        self._renew_s = math.inf
        for job_id in self._waiting:
            known = self._known.get(job_id)
            until_s = -math.inf if known is None else known.asked_s + TRUSTED_S
            if until_s <= now_s + TOGETHER_S:
                self._page(job_id)
            else:
                self._renew_s = min(self._renew_s, until_s)

    async def _ask(self, job_ids: list[str]) -> None:
        """Register this loop as a waiter of jobs, and wake the waiters whose wait has ended."""
        asked = [(job_id, self._newest(job_id)) for job_id in job_ids]
        args = [arg for job_id, version in asked for arg in (job_id, "" if version is None else version)]
        self._told, asked_s = set(), time.monotonic()
        for job_id in job_ids:
            # It may remember this loop although no answer comes.
            self._known[job_id] = _Subscription(-math.inf, None)
        try:
            self._renew_s = min(self._renew_s, asked_s + TRUSTED_S)
            answers = (await self._send(self._session.execute_script("watch", (self._waiter, "", *args))))[3].decode()
            told = self._told
        finally:
            self._told = None
        for (job_id, version), answer in zip(asked, answers, strict=True):
            is_over = answer == "o" or job_id in told
            has_changed = answer == "v" or f"~{job_id}" in told
            if is_over:
                self._known.pop(job_id, None)
                self._wake(job_id)
            else:
                self._known[job_id] = _Subscription(asked_s, None if has_changed else version)
                self._wake(job_id, version=None if has_changed else version, changes_only=True)

    def _newest(self, job_id: str) -> int | None:
        """Return the newest version known to any waiter for changes of a job, None without one."""
        versions = [version for version in self._waiting.get(job_id, {}).values() if version is not None]
        return max(versions) if versions else None

    def _wake(self, job_id: str, *, version: int | None = None, changes_only: bool = False) -> None:
        """Wake the waiters of a job. *changes_only* limits them to waiters for changes that know another version."""
        for future, known in list(self._waiting.get(job_id, {}).items()):
            if changes_only and known in {None, version}:
                continue
            if not future.done():
                future.set_result(None)
            self._leave(job_id, future)

    # --- markers -----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        key = keys.redis_key(self._session.namespace, "wake:session:", self._waiter)
        while self._waiting:
            send = Send(("BZPOPMIN", key, f"{LISTEN_S:.3f}"))
            try:
                found = await self._waits.ask(send)
            except (NotSent, Unanswered, driver.ResponseError) as error:
                await self._waits.move(onward(error), send)
                await asyncio.sleep(FAILED_WAIT_S)
                continue
            if found is None:
                continue
            markers = [found[1]]
            # Another connection, which may fail without this one: what has been told is passed on all the same.
            with suppress(NotSent, Unanswered, driver.ResponseError):
                markers += (await self._link.ask(Send(("ZPOPMIN", key, 1000))))[::2]
            self._take([marker.decode() for marker in markers])

    def _take(self, markers: Iterable[str]) -> None:
        """Wake the waiters that markers concern."""
        for marker in markers:
            if self._told is not None:
                self._told.add(marker)
            # An id may begin with "~" too: then both are meant.
            self._known.pop(marker, None)
            self._wake(marker)
            if marker.startswith("~"):
                if (known := self._known.get(marker[1:])) is not None:
                    known.version = None
                self._wake(marker[1:], changes_only=True)
