"""What requests cost a store: a fixed number of operations each, few at a time, each for a short time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from queuehint import Fail, JobSpec, Scheduler
from queuehint.errors import BackendUnavailableError, OutcomeUnknownError
from queuehint.values.hint import Claim
from queuehint.web import Access, make_app, questions
from queuehint.web.board import ROUTES
from queuehint.web.store import IN_FLIGHT, BoundedStore
from tests.web_client import WebClient

API = "/api/v1"
BODIES: dict[str, Any] = {
    "enqueue": {"jobs": [{"id": "new", "task": "save", "claims": [{"path": ["t1"]}]}]},
    "cancel": {"ids": ["t1/a", "t1/b"]},
    "redrive": {"ids": ["t1/a", "t1/b"]},
    "run_now": {"ids": ["t1/a", "t1/b"]},
    "discard": {"ids": ["t1/a", "t1/b"]},
    "delete": {"ids": ["t1/a", "t1/b"]},
    "pause": {"filter": {"task": "save"}},
    "resume": {"filter": {"task": "save"}},
    "set_limits": {"limit": {"task": "save", "most": 5}},
    "set_weights": {"user": "ann", "weight": 2},
    "rerun": {"job": "t1/a", "version": 1},
}
QUERIES = {"users": "?service=s", "dead": "?path=t1"}
COSTS = {
    # With, and in a scope, where a job is looked up first.
    "enqueue": (1, 1),
    "why": (1, 3),
    "cancel_job": (2, 3),
    "redrive_job": (1, 2),
    "run_now_job": (1, 2),
    "discard_job": (1, 2),
    "delete_job": (1, 2),
    "cancel": (2, 3),
    "redrive": (1, 2),
    "run_now": (1, 2),
    "discard": (1, 2),
    "delete": (1, 2),
    "flow": (4, 4),
    "why_place": (1, 2),
    "scale": (2, None),
    "resume_schedule": (1, None),
    "run_now_schedule": (2, None),
}
"""How many operations the rows take that take more than one."""


def count_calls(sched: Scheduler) -> list[str]:
    """Return a list of the operations that a store is asked from now on."""
    asked: list[str] = []
    call: Callable[[Any], Any] = sched.backend.call

    async def counted(operation: Any) -> Any:
        asked.append(type(operation).__name__)
        return await call(operation)

    sched.backend.call = counted  # type: ignore[method-assign]
    return asked


async def world() -> Scheduler:
    sched = Scheduler()

    @sched.job
    async def save() -> None:
        raise Fail("broken")

    await sched.schedule("s1", save, every=60)
    specs = [JobSpec(id=f"t1/{name}", task="save", claims=(Claim(("t1",)),), flow="t1/f", service="s") for name in "ab"]
    await sched.submit(specs)
    return sched


@pytest.mark.slow
@pytest.mark.parametrize("row", ROUTES, ids=lambda row: row.name)
@pytest.mark.parametrize("in_scope", [False, True])
async def test_row_takes_a_fixed_number_of_operations(row: Any, *, in_scope: bool) -> None:
    sched = await world()
    access = Access(write=True, arguments=True, scope=["t1"] if in_scope else [])
    board = WebClient(make_app(sched, auth=lambda _: access))
    body = BODIES.get(row.name, {})
    if in_scope and row.name == "enqueue":
        body = {"jobs": [body["jobs"][0] | {"id": "t1/new"}]}
    asked = count_calls(sched)
    flow, job = quote("t1/f", safe=""), quote("t1/a", safe="")
    path = row.path.replace("{id}", flow if row.name in {"flow", "rerun"} else job).replace("{key}", "t1")
    path = path.replace("{name}", "s1" if "schedule" in row.name else quote("t1/signal", safe=""))
    target = API + path + QUERIES.get(row.name, "")
    answer = await (board.post(target, body) if row.is_order else board.get(target))
    if in_scope and not row.is_scoped:
        assert (answer.status, answer.json["error"], asked) == (403, "out-of-scope", [])
        return
    # Of these jobs, which wait, some orders are refused.
    assert answer.status in ({200, 409} if row.is_order else {200}), answer.text
    assert len(asked) == COSTS.get(row.name, (1, 1))[in_scope], asked
    assert len(asked) <= row.most


async def test_much_is_counted_in_a_bounded_number_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "COUNTED_MAX", 2)
    sched = Scheduler()
    await sched.submit([JobSpec(id=f"{n}", task="save", claims=(Claim(("t1",)),)) for n in range(2_100)])
    board = WebClient(make_app(sched, auth=lambda _: Access(scope=["t1"])))
    asked = count_calls(sched)
    counts = (await board.get(f"{API}/stats")).json
    assert (counts["complete"], counts["total"], len(asked)) == (False, 2 * 1024, 2)


async def test_four_requests_query_a_store_at_once_and_others_wait() -> None:
    sched = Scheduler()
    board = WebClient(make_app(sched, auth=lambda _: Access()))
    release = asyncio.Event()
    asking = 0
    call: Any = sched.backend.call

    async def held(operation: Any) -> Any:
        nonlocal asking
        asking += 1
        await release.wait()
        return await call(operation)

    sched.backend.call = held  # type: ignore[method-assign]
    requests = [asyncio.create_task(board.get(f"{API}/stats")) for _ in range(9)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert asking == IN_FLIGHT == 4
    release.set()
    assert [answer.status for answer in await asyncio.gather(*requests)] == [200] * 9


async def test_slow_store_is_given_up() -> None:
    sched = Scheduler()

    async def never(_: object) -> Any:
        await asyncio.Event().wait()

    sched.backend.call = never  # type: ignore[method-assign,assignment]

    store = BoundedStore(sched, patience_s=0.02)
    with pytest.raises(BackendUnavailableError, match=r"the store is slow: no answer within 0\.02 s"):
        await store.run(sched.stats())
    with pytest.raises(OutcomeUnknownError, match="the order may be carried out or not"):
        await store.run(sched.stats(), is_order=True)
    others = [asyncio.create_task(store.run(sched.stats(), is_order=True)) for _ in range(IN_FLIGHT)]
    await asyncio.sleep(0)

    async def fire() -> None:
        raise AssertionError

    with pytest.raises(BackendUnavailableError):  # it had no turn
        await store.run(fire(), is_order=True)
    assert all(
        isinstance(error, OutcomeUnknownError) for error in await asyncio.gather(*others, return_exceptions=True)
    )


async def test_readiness_is_that_of_every_store() -> None:
    sched, other = Scheduler(namespace="one"), Scheduler(namespace="two")
    board = WebClient(make_app(sched, other))
    assert (await board.get("/readyz")).status == 200

    async def gone(_: object) -> Any:
        raise BackendUnavailableError("gone, with a password")

    other.backend.call = gone  # type: ignore[method-assign,assignment]
    answer = await board.get("/readyz")
    assert (answer.status, answer.text) == (503, "the store does not answer\n")
