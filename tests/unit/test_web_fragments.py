"""Fragments of pages that readers share: with the same rights alone, and never across a change."""

from __future__ import annotations

import asyncio
from itertools import combinations
from typing import Any

import attrs
import pytest

from queuehint import JobSpec, Scheduler
from queuehint.values.hint import Claim
from queuehint.web import Access, fragments, make_app
from queuehint.web.pages import PAGES
from tests.unit.test_web_costs import count_calls
from tests.web_client import WebClient

RIGHTS = {
    "all": Access(write=True, arguments=True),
    "ann": Access(write=True, arguments=True, name="ann"),
    "reads": Access(),
    "orders": Access(write=True),
    "sees": Access(arguments=True),
    "nothing": Access(read=False),
    "t1": Access(write=True, arguments=True, scope=["t1"]),
    "t1 below": Access(write=True, arguments=True, scope=["t1", "a"]),
    "t2": Access(write=True, arguments=True, scope=["t2"]),
}
LOOKED_AT = ("/", "/places", "/places/t1", "/jobs", "/jobs/t1%2Fa", "/jobs/t1%2Fa/why", "/dead", "/limits", "/health")


@pytest.fixture
def sched() -> Scheduler:
    sched = Scheduler()
    sched.submit_sync(
        [
            JobSpec(id=f"{place}/{name}", task="save", claims=(Claim((place, "a")),), arguments=b'{"n": 17}')
            for place in ("t1", "t2")
            for name in ("a", "b")
        ]
    )
    return sched


def board_of(sched: Scheduler, rights: dict[str, Access] | None = None) -> WebClient:
    """Return a board whose users say who they are."""
    known = RIGHTS if rights is None else rights
    return WebClient(make_app(sched, auth=lambda request: known[request.headers["x-user"]], secret="s"))


async def fragment(board: WebClient, page: str, user: str) -> Any:
    return await board.get(page, hx_request="true", x_user=user)


async def test_readers_with_the_same_rights_share_a_fragment(sched: Scheduler) -> None:
    board, asked = board_of(sched), count_calls(sched)
    await fragment(board, "/places", "all")
    cost = len(asked)
    app: Any = board.app
    app.board.pulses[sched.namespace].change()
    del asked[:]
    answers = await asyncio.gather(*[fragment(board, "/places", user) for user in ("all", "ann", "all")])
    answers.append(await fragment(board, "/places", "ann"))
    assert len(asked) == cost
    assert {answer.text for answer in answers} == {answers[0].text}
    assert {tuple(answer.headers.items()) for answer in answers} == {tuple(answers[0].headers.items())}


@pytest.mark.slow
@pytest.mark.parametrize("page", LOOKED_AT)
async def test_readers_with_other_rights_share_nothing(sched: Scheduler, page: str) -> None:
    users = [user for user in RIGHTS if user != "ann"]
    board, asked = board_of(sched), count_calls(sched)
    app: Any = board.app

    async def cost_of(*readers: str, is_at_once: bool = False) -> int:
        app.board.pulses[sched.namespace].change()
        del asked[:]
        if is_at_once:
            await asyncio.gather(*[fragment(board, page, reader) for reader in readers])
        else:
            for reader in readers:
                await fragment(board, page, reader)
        return len(asked)

    costs = {user: await cost_of(user) for user in users}
    for one, other in combinations(users, 2):
        for is_at_once in (True, False):
            assert await cost_of(one, other, is_at_once=is_at_once) == costs[one] + costs[other], (one, other)


async def test_no_page_shows_the_name_of_its_reader(sched: Scheduler) -> None:
    for page in (each.path for each in PAGES if each.method == "GET"):
        if page.startswith(("/confirm", "/enqueue")):
            continue
        target = page.replace("{id}", "t1%2Fa").replace("{key}", "t1")
        answer = await fragment(board_of(sched, {"x": Access(write=True, name="zebedee")}), target, "x")
        assert "zebedee" not in answer.text, page


@pytest.mark.parametrize("target", ["/jobs?state=queued", "/jobs?live=off", "/places"])
async def test_other_addresses_are_other_fragments(sched: Scheduler, target: str) -> None:
    board = board_of(sched)
    await fragment(board, "/jobs", "all")
    asked = count_calls(sched)
    await fragment(board, target, "all")
    assert asked
    del asked[:]
    await board.get("/jobs", hx_request="true", hx_target="div#other", x_user="all")
    assert asked
    del asked[:]
    await board.get("/jobs", x_user="all")
    assert asked, "a page is read anew"
    asked.clear()
    await WebClient(board.app, root="/below").get("/jobs", hx_request="true", x_user="all")
    assert asked


async def test_fragment_is_never_shared_across_a_change(sched: Scheduler) -> None:
    board = board_of(sched)
    assert "paused" not in (await fragment(board, "/places/t1", "all")).text
    await board.post("/api/v1/places/t1/pause", {}, x_user="all")
    assert "paused" in (await fragment(board, "/places/t1", "ann")).text


async def test_fragment_under_way_is_not_shared_across_a_change(sched: Scheduler) -> None:
    board, call = board_of(sched), sched.backend.call
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def held(operation: Any) -> Any:
        answer = await call(operation)
        asked.set()
        await may_answer.wait()
        return answer

    sched.backend.call = held  # type: ignore[method-assign]
    first = asyncio.create_task(fragment(board, "/limits", "all"))
    await asked.wait()
    sched.backend.call = call  # type: ignore[method-assign]
    await board.post("/api/v1/limits", {"limit": {"task": "save", "most": 5}}, x_user="all")
    second = await fragment(board, "/limits", "all")
    may_answer.set()
    assert (await first).text != second.text
    # What the first has read is older, and takes the place of nothing.
    assert (await fragment(board, "/limits", "ann")).text == second.text


async def test_fragment_is_shared_for_a_short_time(sched: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "KEPT_S", 0.0)
    board = board_of(sched)
    await fragment(board, "/limits", "all")
    asked = count_calls(sched)
    await fragment(board, "/limits", "all")
    assert asked
    await fragment(board, "/dead", "all")
    app: Any = board.app
    assert len(app.board.fragments[sched.namespace]._made) == 1, "old ones are forgotten"


async def test_refusal_and_outage_are_not_shared(sched: Scheduler) -> None:
    board = board_of(sched)
    answers = await asyncio.gather(*[fragment(board, "/jobs/none", "all") for _ in range(3)])
    assert {answer.status for answer in answers} == {404}
    app: Any = board.app
    assert app.board.fragments[sched.namespace]._made == {}


async def test_cancelled_request_leaves_the_others_to_make_it(sched: Scheduler) -> None:
    board, call, asked = board_of(sched), sched.backend.call, asyncio.Event()

    async def never(_: object) -> Any:
        asked.set()
        await asyncio.Event().wait()

    sched.backend.call = never  # type: ignore[method-assign,assignment]
    first = asyncio.create_task(fragment(board, "/limits", "all"))
    await asked.wait()
    others = [asyncio.create_task(fragment(board, "/limits", "ann")) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sched.backend.call = call  # type: ignore[method-assign]
    first.cancel()
    assert {answer.status for answer in await asyncio.gather(*others)} == {200}
    assert first.cancelled()


async def test_rights_of_another_class_are_not_compared(sched: Scheduler) -> None:
    @attrs.frozen(kw_only=True)
    class Wider(Access):
        also: str = ""

    board, asked = board_of(sched, {"x": Wider(also="y")}), count_calls(sched)
    await fragment(board, "/limits", "x")
    cost = len(asked)
    await fragment(board, "/limits", "x")
    assert len(asked) == 2 * cost
