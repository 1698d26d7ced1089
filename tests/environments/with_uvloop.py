"""A worker and its producers on the loop of uvloop, on the store of QUEUEHINT_URL."""

from __future__ import annotations

import asyncio

import uvloop

from tests.environments.app import PATHS, calls, check, edit, lengths, sched


async def enqueue(caller: str) -> None:
    for call in calls(caller):
        await edit.enqueue(*call)


async def main() -> None:
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    async with sched.worker(concurrency=8):
        async with sched.exclusive(["docs", "0"]):
            held = await edit.enqueue("0", "held", 0)
            assert str(await held.state()) == "QUEUED"
        await held.result(timeout=30)
        await sched.xcom.push("0", [])
        await asyncio.gather(*(enqueue(f"caller-{number}") for number in range(4)))
        found = await (await lengths.enqueue()).result(timeout=30)
        assert found == {str(doc): 40 for doc in range(PATHS)}, found
        for doc in range(PATHS):
            check(await sched.xcom.pull(str(doc)), callers=4)
        await sched.drain(timeout=30)
    await sched.close()


if __name__ == "__main__":
    uvloop.run(main())
    print("done")
