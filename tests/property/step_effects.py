"""What steps of simulated jobs do outside of the store, and what their attempts are told."""

from __future__ import annotations

import asyncio
import itertools

from queuehint import JobContext


class Effects:
    """What steps have done outside of the store, and what was told of their results."""

    def __init__(self) -> None:
        self.forgets = False
        """The store may lose its last steps: then what was stored may be made again."""
        self.clear()

    def clear(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        """An error in a handler would only be a failed attempt."""
        self.told: dict[tuple[str, str], tuple[int, object]] = {}
        """The least token of an attempt that was told that the step is stored, and the result."""
        self.ended: set[str] = set()
        self.numbers = itertools.count()

    def make(self, ctx: JobContext, name: str) -> int:
        step = ctx.id, name
        token, _ = self.told.get(step, (ctx.token, 0))
        if token < ctx.token and not self.forgets:
            self.wrong.append(f"{step} was stored by {token} and is made by {ctx.token}")
        self.made.append(step)
        return next(self.numbers)

    async def make_slowly(self, ctx: JobContext, name: str) -> int:
        await asyncio.sleep(1)
        number = self.make(ctx, name)
        await asyncio.sleep(1)
        return number

    def see(self, ctx: JobContext, name: str, result: object) -> None:
        """See that each attempt is told the same result."""
        token, before = self.told.get((ctx.id, name), (ctx.token, result))
        if before != result and not self.forgets:
            self.wrong.append(f"{name} of {ctx.id} is {result} and was {before}")
        self.told[ctx.id, name] = min(token, ctx.token), result
