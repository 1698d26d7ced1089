"""
Fragments of pages that several readers show: each is made once for all of them.

Nothing is shared between readers whose rights differ, and nothing across a change that pages were told of, so a reader
who was told of a change never gets what was read before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.web.access import Access

if TYPE_CHECKING:
    from starlette.responses import Response

    from queuehint.web.pulse import Pulse

KEPT_S: Final = 1.0
"""So long after its reading began a fragment is given to others."""


@attrs.frozen(eq=False)
class _Made:
    change: int
    begun_s: float
    answer: asyncio.Future[Response]


class Fragments:
    """The fragments of the pages of one store, as long as they are shared."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._made: dict[Hashable, _Made] = {}
        self._making = 0
        self._since_s = 0.0

    async def of(self, access: Access, address: Hashable, make: Callable[[], Awaitable[Response]]) -> Response:
        """
        Return a fragment.

        Args:
            access: the rights of the reader. The name is none of them: no page shows it.
            address: all else that the fragment depends on.
            make: makes it.
        """
        if type(access) is not Access:
            return await self._timed(make)
        key = (attrs.evolve(access, name=""), address)
        now_s = asyncio.get_running_loop().time()
        found = self._made.get(key)
        if found is not None and self._is_current(found, now_s):
            await asyncio.wait([found.answer])
            if not found.answer.cancelled():
                return found.answer.result()
        for old in [old for old, each in self._made.items() if not self._is_current(each, now_s)]:
            del self._made[old]
        made = self._made[key] = _Made(self._pulse.changes, now_s, asyncio.get_running_loop().create_future())
        try:
            answer = await self._timed(make)
            if answer.status_code == 200:
                made.answer.set_result(answer)
            return answer
        finally:
            if not made.answer.done():
                made.answer.cancel()
            if made.answer.cancelled() and self._made.get(key) is made:
                del self._made[key]

    def _is_current(self, made: _Made, now_s: float) -> bool:
        return made.change == self._pulse.changes and now_s - made.begun_s < KEPT_S

    async def _timed(self, make: Callable[[], Awaitable[Response]]) -> Response:
        """Make a fragment. The pulse is told how long some were being made, those at the same time counted once."""
        now_s = asyncio.get_running_loop().time
        if not self._making:
            self._since_s = now_s()
        self._making += 1
        try:
            return await make()
        finally:
            self._making -= 1
            if not self._making:
                self._pulse.took(now_s() - self._since_s)
