"""
Payments that wait for a person: a worker with two slots, and twenty payments that wait at once.

Each payment asks for a decision by mail, leaves, and is run again once a person has decided, or when nobody has by
the evening. While it waits it holds neither a slot nor the place of its account. What must not be done twice is a step.
Time is that of a `FakeClock`, so the evening comes at once.

    python examples/approvals.py
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import attrs

from queuehint import DrainStalledError, FakeClock, JobContext, Scheduler, SignalTimeoutError

Outcome = Literal["paid", "declined", "nobody has decided"]

PATIENCE = timedelta(hours=12)

clock = FakeClock()
sched = Scheduler(clock=clock)


@attrs.frozen
class Decision:
    """What a person has decided, the data of a signal."""

    by: str
    grants: bool


@attrs.define
class World:
    """What is outside: mails that were sent, and money that was paid, by account."""

    mails: list[str] = attrs.field(factory=list)
    paid: list[str] = attrs.field(factory=list)

    async def ask(self, payment: str) -> None:
        self.mails.append(payment)

    async def pay(self, payment: str, by: str) -> str:
        self.paid.append(payment)
        return f"{payment}, granted by {by}"


world = World()


@sched.job(queue_hint=["accounts", "{account}"])
async def pay(ctx: JobContext, account: str, payment: str) -> Outcome:
    await ctx.step("mail", world.ask, payment)  # all code above the wait runs again
    try:
        data = await ctx.wait(f"decided:{payment}", timeout=PATIENCE)
    except SignalTimeoutError:
        return "nobody has decided"
    decision = Decision(**data)
    if not decision.grants:
        return "declined"
    await ctx.step("pay", world.pay, payment, decision.by)
    return "paid"


async def decide(payments: list[str], chance: random.Random) -> None:
    """Decide on most payments, in any order, as people do."""
    for payment in chance.sample(payments, len(payments) * 4 // 5):
        counts = await sched.signal(f"decided:{payment}", attrs.asdict(Decision("ann", chance.random() < 0.7)))
        # The first decision counts.
        assert counts and not await sched.signal(f"decided:{payment}", attrs.asdict(Decision("bob", grants=False)))


async def drain_until_blocked() -> None:
    """Return when nothing moves without a person, or nothing is left."""
    with suppress(DrainStalledError):
        await sched.drain(timeout=60)


async def run(count: int = 20, seed: int = 1) -> dict[Outcome, int]:
    """Hand in payments, let people decide, and return how many have come to what."""
    world.mails.clear()
    world.paid.clear()
    payments = [f"payment-{clock.now_ms()}-{number}" for number in range(count)]
    async with sched.worker(concurrency=2):
        jobs = await pay.enqueue_many([(f"account-{at % 3}", each) for at, each in enumerate(payments)])
        await drain_until_blocked()
        waiting = (await sched.stats()).waiting_for_signals
        print(f"{len(world.mails)} mails are sent, {waiting} payments wait, and the worker has nothing to do")
        await decide(payments, random.Random(seed))
        await drain_until_blocked()
        clock.advance(seconds=PATIENCE.total_seconds())
        ends = [await job.result(timeout=60) for job in jobs]
    return {end: ends.count(end) for end in ("paid", "declined", "nobody has decided")}


def main() -> None:
    """Tell what became of twenty payments."""
    for end, count in asyncio.run(run()).items():
        print(f"{count:2} {end}")


if __name__ == "__main__":
    main()
