"""
Scopes of a board: whatever happens in one, every answer in another one stays as it is.

Two worlds with the same history in scope t1, one of them with a history in scope t2 besides; each question and order of
t1 is answered alike in both, by the API and by the pages, and no order of t1 changes a job of t2. What hides a position
is compared by its length. Bounds are small, so that answers are cut: where they are cut, a position would show.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuehint import FakeClock, JobSpec, Scheduler
from queuehint import operations as op
from queuehint.backends.memory import MemoryBackend
from queuehint.errors import DuplicateJobError, PathClosedError, QueueFullError
from queuehint.values.event import EventFilter
from queuehint.values.hint import Claim
from queuehint.values.outcome import JobError, Outcome, OutcomeKind
from queuehint.web import Access, make_app
from queuehint.web import orders as web_orders
from queuehint.web import questions as web_questions
from queuehint.web.board import ROUTES
from queuehint.web.forms import parameters_of
from queuehint.web.pages import PAGES
from queuehint.web.scope import Seal
from tests.support import thorough
from tests.web_client import Answer, WebClient

SECRET = "a secret of all processes"
API = "/api/v1"
NAMES = ("a", "b", "c")
PLACES = ((), ("x",), ("x", "y"), ("z",))
SCOPES = ("t1", "t2")
SHARED = "a-flow-of-both"
BUDGET = 10
SEALED = re.compile(r"(?<=[=\"])[A-Za-z0-9_-]{32,}(?=[&\"])")
"""What hides a position, in a page; and the names of its static files."""

WHAT = (
    *("enqueue",) * 3,
    *("share", "later", "finish", "fail", "cancel", "redrive", "discard", "delete", "run-now", "rerun"),
    *("pause", "resume", "close", "reopen", "sweep", "signal", "limit", "time"),
)

names, places, scopes = st.sampled_from(NAMES), st.sampled_from(PLACES), st.sampled_from(SCOPES)


@attrs.frozen
class Move:
    """Something that is done in a scope."""

    scope: str
    what: str
    name: str
    place: tuple[str, ...]
    other: str | None


moves = st.builds(
    Move,
    scopes,
    st.sampled_from(WHAT),
    names,
    places,
    st.none() | names,
)


class World:
    """A store, and a board of each scope."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.sched = Scheduler(clock=self.clock)
        assert isinstance(self.sched.backend, MemoryBackend)
        state = self.sched.backend.engine.state
        state.options = attrs.evolve(state.options, budget=BUDGET)
        self.boards = {
            scope: WebClient(
                make_app(
                    self.sched,
                    auth=lambda _, scope=scope: Access(name=scope, write=True, arguments=True, scope=[scope]),  # type: ignore[misc]
                    secret=SECRET,
                )
            )
            for scope in SCOPES
        }

    async def do(self, move: Move) -> Any:
        """Do it and what follows from it, and return what was answered."""
        found = await self._do(move)
        while (await self.sched.backend.call(op.Tick())).more:
            pass
        return found

    async def _do(self, move: Move) -> Any:
        scope, board = move.scope, self.boards[move.scope]
        job = f"{API}/jobs/{quote(f'{scope}/{move.name}', safe='')}"
        place = f"{API}/places/{':'.join((scope, *move.place))}"
        if move.what in {"enqueue", "later"}:
            return plain(await board.post(f"{API}/jobs", {"jobs": [self.body(move)]}))
        if move.what in {"cancel", "redrive", "discard", "delete", "run-now"}:
            return plain(await board.post(f"{job}/{move.what}"))
        if move.what == "rerun":
            found = (await board.get(job)).json
            asked = {"job": f"{scope}/{move.name}", "version": found.get("version", 1)}
            return plain(await board.post(f"{API}/flows/{quote(f'{scope}/flow', safe='')}/rerun", asked))
        if move.what in {"pause", "resume", "close", "reopen"}:
            return plain(await board.post(f"{place}/{move.what}"))
        if move.what == "sweep":
            return plain(await board.post(f"{place}/cancel"))
        if move.what == "signal":
            return plain(await board.post(f"{API}/signals/{quote(f'{scope}/{move.name}', safe='')}", {"data": 1}))
        if move.what == "limit":
            await self.sched.limit([scope, *move.place], 1, max_pending=2)
        elif move.what == "time":
            self.clock.advance(ms=10)
        elif move.what == "share":
            await self.share(move)
        else:
            await self.run(move)
        return None

    def body(self, move: Move) -> dict[str, Any]:
        prefix = f"{move.scope}/"
        found: dict[str, Any] = {"id": f"{prefix}{move.name}", "task": "save", "pool": move.scope, "user": "ann"}
        found |= {
            "claims": [{"path": [move.scope, *move.place]}],
            "tags": ["eu"],
            "flow": f"{prefix}flow",
            "service": "s",
        }
        if move.other is not None and move.other != move.name:
            found["depends_on"] = [{"id": f"{prefix}{move.other}"}]
        if move.what == "later":
            found |= {"delay_ms": 15, "key": f"{prefix}key", "policy": {"on_dead": "hold"}}
        return found

    async def share(self, move: Move) -> None:
        """Have the application enqueue a job of a flow that has jobs of both scopes, behind one of each."""
        if move.other is None:
            claims = (Claim((move.scope, *move.place)),)
            spec = JobSpec(id=f"{move.scope}-of-all", task="save", claims=claims, flow=SHARED, pool=move.scope)
            with suppress(PathClosedError, QueueFullError, DuplicateJobError):
                await self.sched.submit([spec])

    async def run(self, move: Move) -> None:
        """Have a worker of the scope run the next job there."""
        call = self.sched.backend.call
        exchanged = await call(op.Exchange(f"worker of {move.scope}", pools=(move.scope,), limit=1))
        for grant in exchanged.grants:
            error = JobError(type="ValueError", message=f"number {move.name}")
            kind = OutcomeKind.FAILED if move.what == "fail" else OutcomeKind.FINISHED
            outcome = Outcome(
                job_id=grant.spec.id,
                token=grant.token,
                kind=kind,
                error=error if move.what == "fail" else None,
                final=move.what == "fail",
            )
            await call(op.Exchange(f"worker of {move.scope}", settle=(outcome,)))


def plain(answer: Answer) -> Any:
    """Return an answer as it is compared: of what hides a position its length."""
    if answer.headers["content-type"].startswith("text/html"):
        return answer.status, SEALED.sub(lambda match: str(len(match[0])), answer.text)
    found = answer.json
    if isinstance(found, dict) and found.get("cursor"):
        found["cursor"] = len(found["cursor"])
    return answer.status, found


def questions() -> Iterator[str]:
    """Yield questions of each row: with nothing, with what is in either scope."""
    ids = [f"{scope}/{name}" for scope in SCOPES for name in NAMES] + ["t1/flow", "t2/flow", SHARED]
    values: dict[str, list[str]] = {
        "path": ["t1", "t1:x", "t2", "root"],
        "user": ["ann"],
        "service": ["s"],
        "task": ["save"],
        "pool": ["t1", "t2"],
        "tag": ["eu"],
        "state": ["FAILED", "QUEUED", "FINISHED"],
        "flow": ["t1/flow", "t2/flow", SHARED],
        "waits_for": ids[:6],
        "parent": ids[:2],
        "depth": ["3"],
        "limit": ["1", "2"],
        "newest_first": ["true"],
        "arguments": ["true"],
    }
    for row in ROUTES:
        if row.is_order:
            continue
        paths = [API + row.path]
        if row.bind:
            paths = [API + row.path.replace("{id}", quote(each, safe="")) for each in ids]
        for path in paths:
            yield path
            for name, (way, *_) in parameters_of(row.asks).items():
                if way[0] not in row.bind.values():
                    yield from [f"{path}?{name}={quote(value, safe='')}" for value in values.get(name, ())]
    yield f"{API}/openapi.json"
    for page in PAGES:
        if page.method == "GET":
            of_page = [page.path.replace("{verb}", "cancel")]
            if "{id}" in page.path:
                of_page = [page.path.replace("{id}", quote(each, safe="")) for each in ids[:6]]
            if "{key}" in page.path:
                of_page = [page.path.replace("{key}", each) for each in ("t1", "t1:x", "t2")]
            yield from of_page


QUESTIONS = list(questions())


def foreign_orders() -> Iterator[tuple[str, Any]]:
    """Yield orders of scope t1 on what is in scope t2."""
    job, place = quote("t2/a", safe=""), "t2:x"
    for row in ROUTES:
        if row.is_order:
            path = API + row.path.replace("{id}", job).replace("{key}", place).replace("{name}", job)
            given: dict[str, Any] = {"ids": ["t2/a", "t2/b"]} if row.answers is op.Judged else {}
            yield path, given
    for flow in (quote("t2/flow", safe=""), SHARED):
        for job_id in ("t2/a", "t2-of-all"):
            yield f"{API}/flows/{flow}/rerun", {"job": job_id, "version": 1}
    foreign = {"task": "save", "claims": [{"path": ["t2", "x"]}]}
    own = {"task": "save", "claims": [{"path": ["t1", "x"]}]}
    for spec in (
        {"id": "t1/n", **foreign},
        {"id": "t1/n", "task": "save"},
        {"id": "t1/n", "task": "save", "claims": [*own["claims"], *foreign["claims"]]},
        {"id": "t2/a", **own},
        {"id": "t1/n", "key": "t2/key", **own},
        {"id": "t1/n", "flow": "t2/flow", **own},
        {"id": "t1/n", "depends_on": [{"id": "t2/a"}], **own},
        {"id": "t1/n", "depends_on": [{"id": "signal:t2/a"}], **own},
    ):
        yield f"{API}/jobs", {"jobs": [spec]}
    selections: list[dict[str, Any]] = [{"task": "save"}, {"path": ["t2"]}, {"path": []}]
    for wanted in selections:
        yield f"{API}/pause", {"filter": wanted}
        yield f"{API}/resume", {"filter": wanted}


async def look(world: World) -> list[Any]:
    """Return all that a user in scope t1 is answered."""
    board = world.boards["t1"]
    found = [(question, plain(await board.get(question))) for question in QUESTIONS]
    return [*found, ("pages", await pages(board)), ("events", await told(world))]


async def pages(board: WebClient) -> list[str]:
    """Return the ids of a listing read page by page."""
    found, cursor = [], ""
    while True:
        page = (await board.get(f"{API}/jobs?limit=1{cursor}")).json
        found += [job["id"] for job in page["jobs"]]
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={page['cursor']}"


async def told(world: World) -> list[Any]:
    """Return the events of scope t1 so far."""
    begin = Seal(SECRET.encode()).hide(bytes(8), parameter="Last-Event-ID", scope=("t1",))
    count = len((await world.sched.backend.call(op.Follow(0, filters=(EventFilter(path=("t1",)),)))).events)
    answer = await world.boards["t1"].stream("/events", lambda text: text.count("data:") >= count, last_event_id=begin)
    return [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]


def records(world: World, scope: str) -> Any:
    found = world.sched.records.list_sync(path=[scope], limit=200)
    return [attrs.evolve(record, number=0, seq=0, version=0) for record in found]


@pytest.fixture(autouse=True, scope="module")
def small_bounds() -> Iterator[None]:
    """Cut what is counted after three records, and do none of the work that follows from an order with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "RECORDS_COUNTED_MAX", 1)
        patch.setattr(web_questions, "COUNTED_MAX", 3)
        patch.setattr(web_orders, "TICKS_MAX", 0)
        yield


@pytest.mark.slow
@settings(max_examples=thorough(settings().max_examples, quick=8))
@given(st.lists(moves, min_size=4, max_size=25))
def test_no_answer_of_a_scope_changes_with_another_scope(history: list[Move]) -> None:
    async def compare() -> None:
        alone, both = World(), World()
        for world in (alone, both):
            await world.sched.backend.call(op.Follow())
        for move in history:
            if move.scope == "t2":
                await both.do(move)
            else:
                assert await both.do(move) == await alone.do(move), move
            if move.what == "time" and move.scope == "t2":
                await alone.do(move)
        for mine, theirs in zip(await look(alone), await look(both), strict=True):
            assert mine == theirs
        before = records(both, "t2"), tuple(await both.sched.limits())
        for path, asked in foreign_orders():
            answers = [plain(await world.boards["t1"].post(path, asked)) for world in (alone, both)]
            assert answers[0] == answers[1], path
        assert (records(both, "t2"), tuple(await both.sched.limits())) == before
        held = {pause.filter.path[0] for pause in await both.sched.pauses() if pause.filter.path}
        assert held <= {"t1", *[move.scope for move in history if move.what == "pause"]}

    asyncio.run(compare())
