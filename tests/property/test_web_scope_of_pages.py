"""
Scopes of the pages of a board: whatever happens in one, every page and fragment in another one stays as it is.

As in `test_web_scope` two worlds have the same history in scope t1, one of them with a history in scope t2 besides.
Each page of t1 is the same text in both, and no form that t1 sends changes a job of t2.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuehint.web.pages import PAGES
from queuehint.web.pages.orders import QUESTIONS, VERBS
from queuehint.web.pages.views import jobs as of_jobs
from tests.property.test_web_scope import NAMES, SCOPES, Move, World, moves, records
from tests.web_client import Answer, WebClient

IDS = [f"{scope}/{name}" for scope in SCOPES for name in NAMES]
PLACES = ("t1", "t1:x", "t1:x:y", "t2", "t2:x", "root")
CONDITIONS = {
    "state": ["dead", "queued", "finished"],
    "path": [*PLACES],
    "task": ["save"],
    "user": ["ann"],
    "service": ["s"],
    "pool": ["t1", "t2"],
    "tag": ["eu"],
    "flow": ["t1/flow", "t2/flow"],
    "waits_for": IDS,
    "parent": IDS[:2],
    "order": ["oldest"],
    "since": ["2001-01-01"],
    "exact": ["1"],
}
CHOSEN = [("path", place) for place in PLACES] + [("id", each) for each in IDS] + [("user", "ann"), ("task", "save")]
HIDDEN = re.compile(r'cursor=[\w%-]+|name="once" value="[^"]*"')
"""What says nothing of a position, and an id that is made with a form."""


def targets_of(path: str) -> Iterator[str]:
    """Yield addresses of a page: with nothing, with what is in either scope."""
    if path == "/places":
        yield from ("/places", "/places?order=line", "/places?after=t1:x", "/places/-?at=t2")
    elif path == "/places/{key}":
        yield from [f"/places/{place}{rest}" for place in PLACES for rest in ("", "?order=line")]
    elif path == "/jobs":
        yield path
        yield from [f"{path}?{name}={quote(value)}" for name, values in CONDITIONS.items() for value in values]
    elif path == "/jobs/{id}":
        yield from [f"/jobs/{quote(each, safe='')}{rest}" for each in IDS for rest in ("", "?arguments=1")]
    elif path == "/jobs/{id}/why":
        yield from [f"/jobs/{quote(each, safe='')}/why" for each in IDS]
    elif path == "/enqueue":
        yield from [path, f"{path}?task=save", *[f"{path}?copy={quote(each)}" for each in IDS]]
    elif path == "/confirm/{verb}":
        yield from [f"/confirm/{verb}?{urlencode([each])}" for verb in QUESTIONS for each in CHOSEN]
    else:
        yield path


TARGETS = [target for page in PAGES if page.method == "GET" for target in targets_of(page.path)]


def forms() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield forms of scope t1 that name what is in scope t2, or nothing of either."""
    chosen = [("path", "t2"), ("path", "t2:x"), ("id", "t2/a"), ("name", "t2/a"), ("path", "root"), ("user", "ann")]
    for verb in VERBS:
        # A guarded redrive of several jobs goes on behind its answer.
        yield from [(f"/do/{verb}", [each]) for each in chosen if (verb, each[0]) != ("redrive", "user")]
    yield "/do/limit", [("kind", "path"), ("name", "t2"), ("most", "1")]
    yield "/do/weight", [("user", "ann"), ("weight", "2")]
    for once, copied in (("t1/n", "t2/a"), ("t2/a", "t1/a"), ("t2/n", "t1/a")):
        yield "/enqueue", [("once", once), ("copy", copied), ("arg.arguments", "{}")]


def plain(answer: Answer) -> Any:
    """Return a page as it is compared."""
    return answer.status, HIDDEN.sub("", answer.text)


async def look(board: WebClient) -> list[Any]:
    """Return all pages and fragments that a user is shown, and what is behind their links to a next page."""
    asked: list[tuple[str, dict[str, str]]] = [(target, {}) for target in TARGETS]
    asked += [(target, {"hx_request": "true"}) for target in TARGETS]
    found = [(target, headers, plain(await board.get(target, **headers))) for target, headers in asked]
    return [*found, ("pages", await pages(board))]


async def pages(board: WebClient) -> list[str]:
    """Return the ids of the jobs of the pages of a list, one a page."""
    found: list[str] = []
    target: str | None = "/jobs"
    with patch.object(of_jobs, "PAGE_ROWS", 1):
        while target is not None:
            text = (await board.get(target)).text
            found += re.findall(r'<tr id="job-([^"]+)"', text)
            following = re.search(r'href="([^"]+)" rel="next"', text)
            target = None if following is None else following[1].replace("&amp;", "&")
    return found


async def post(board: WebClient, target: str, fields: list[tuple[str, str]]) -> Any:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    return plain(await board.ask("POST", target, urlencode(fields).encode(), kind))


async def standing(world: World) -> Any:
    """Return what no scope may change that is not its own."""
    limits, weights = await world.sched.limits(), await world.sched.weights()
    pauses = [pause.filter.path for pause in await world.sched.pauses()]
    return (
        records(world, "t2"),
        [each.limit for each in limits],
        weights,
        [path for path in pauses if path is None or path[:1] != ("t1",)],
    )


@pytest.mark.slow
@settings(max_examples=max(3, settings().max_examples // 10), deadline=None)
@given(st.lists(moves, min_size=4, max_size=25))
def test_no_page_of_a_scope_changes_with_another_scope(history: list[Move]) -> None:
    async def compare() -> None:
        alone, both = World(), World()
        for move in history:
            await both.do(move)
            if move.scope == "t1" or move.what == "time":
                await alone.do(move)
        boards = [world.boards["t1"] for world in (alone, both)]
        for mine, theirs in zip(await look(boards[0]), await look(boards[1]), strict=True):
            assert mine == theirs
        before = await standing(both)
        for target, fields in forms():
            answers = [await post(board, target, fields) for board in boards]
            assert answers[0] == answers[1], (target, fields)
        assert await standing(both) == before

    asyncio.run(compare())


def test_every_page_is_compared() -> None:
    paths = {target.partition("?")[0] for target in TARGETS}
    for page in PAGES:
        if page.method == "GET":
            pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(page.path))
            assert any(re.fullmatch(pattern, path) for path in paths), page.path
