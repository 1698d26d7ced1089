"""
Scopes of a board: whatever happens in one, every answer in another one stays as it is.

Two worlds with the same history in scope t1, one of them with a history in scope t2 besides; each question and order of
t1 is answered alike in both, and no order of t1 changes a job of t2.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import attrs
from hypothesis import given
from hypothesis import strategies as st

from queuehint import FakeClock, Scheduler
from queuehint import operations as op
from queuehint.values.event import EventFilter
from queuehint.values.outcome import JobError, Outcome, OutcomeKind
from queuehint.web import Access, make_app
from queuehint.web.board import ROUTES
from queuehint.web.forms import parameters_of
from queuehint.web.scope import Seal
from tests.web_client import Answer, WebClient

SECRET = "a secret of all processes"
API = "/api/v1"
NAMES = ("a", "b", "c")
PLACES = ((), ("x",), ("x", "y"), ("z",))
SCOPES = ("t1", "t2")

WHAT = (
    *("enqueue",) * 3,
    *("later", "finish", "fail", "cancel", "redrive", "discard", "delete", "run-now"),
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
        """Do it, and return what was answered."""
        scope, board = move.scope, self.boards[move.scope]
        job = f"{API}/jobs/{quote(f'{scope}/{move.name}', safe='')}"
        place = f"{API}/places/{':'.join((scope, *move.place))}"
        if move.what in {"enqueue", "later"}:
            return plain(await board.post(f"{API}/jobs", {"jobs": [self.body(move)]}))
        if move.what in {"cancel", "redrive", "discard", "delete", "run-now"}:
            return plain(await board.post(f"{job}/{move.what}"))
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
            while (await self.sched.backend.call(op.Tick())).more:
                pass
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
    """Return an answer as it is compared: what hides a position says nothing."""
    found = answer.json
    if isinstance(found, dict) and found.get("cursor"):
        found["cursor"] = "hidden"
    return answer.status, found


def questions() -> Iterator[str]:
    """Yield questions of each row: with nothing, with what is in either scope."""
    ids = [f"{scope}/{name}" for scope in SCOPES for name in NAMES] + ["t1/flow", "t2/flow"]
    values: dict[str, list[str]] = {
        "path": ["t1", "t1:x", "t2", "root"],
        "user": ["ann"],
        "service": ["s"],
        "task": ["save"],
        "pool": ["t1", "t2"],
        "tag": ["eu"],
        "state": ["FAILED", "QUEUED", "FINISHED"],
        "flow": ["t1/flow", "t2/flow"],
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


QUESTIONS = list(questions())


def orders() -> Iterator[tuple[str, Any]]:
    """Yield orders of scope t1 on what is in scope t2."""
    job, place = quote("t2/a", safe=""), "t2:x"
    for row in ROUTES:
        if row.is_order:
            path = API + row.path.replace("{id}", job).replace("{key}", place).replace("{name}", job)
            given: dict[str, Any] = {"ids": ["t2/a", "t2/b"]} if row.answers is op.Judged else {}
            yield path, given
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
    begin = Seal(SECRET.encode()).hide(bytes(8))
    count = len((await world.sched.backend.call(op.Follow(0, filters=(EventFilter(path=("t1",)),)))).events)
    answer = await world.boards["t1"].stream("/events", lambda text: text.count("data:") >= count, last_event_id=begin)
    return [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]


def records(world: World, scope: str) -> Any:
    found = world.sched.records.list_sync(path=[scope], limit=200)
    return [attrs.evolve(record, number=0, seq=0, version=0) for record in found]


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
        for path, asked in orders():
            answers = [plain(await world.boards["t1"].post(path, asked)) for world in (alone, both)]
            assert answers[0] == answers[1], path
        assert (records(both, "t2"), tuple(await both.sched.limits())) == before
        held = {pause.filter.path[0] for pause in await both.sched.pauses() if pause.filter.path}
        assert held <= {"t1", *[move.scope for move in history if move.what == "pause"]}

    asyncio.run(compare())
