"""The HTTP API on every store, and mounted into applications of Starlette and FastAPI."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from queuehint import Scheduler
from queuehint.web import Access, app, make_app
from queuehint.web.store import BoundedStore
from tests.postgres_store import Place
from tests.web_client import WebClient

API = "/api/v1"
PATIENCE_S = 60.0
"""A machine with other work is given longer than users are."""
ALL = Access(name="ann", write=True, arguments=True)


def body(job_id: str, *path: str, **more: Any) -> dict[str, Any]:
    return {"id": job_id, "task": "save", "claims": [{"path": list(path)}], "service": "s", "user": "ann", **more}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BoundedStore", partial(BoundedStore, patience_s=PATIENCE_S))


async def tell_a_story(sched: Scheduler) -> None:
    """Ask and order one of each, and compare what is the same on all stores."""
    board = WebClient(make_app(sched, auth=lambda _: ALL))
    assert (await board.get("/readyz")).text == "ok\n"
    begin = (await board.stream("/events", lambda text: "\n\n" in text)).text.removeprefix("id: ").strip()
    jobs = [body("a/1", "doc1", arguments={"n": 1}), body("b", "doc1"), body("c", "doc2", flow="f", delay_ms=60_000)]
    for created in (True, False):
        found = (await board.post(f"{API}/jobs", {"jobs": jobs})).json["jobs"]
        assert [(job["state"], job["created"]) for job in found] == [
            ("QUEUED", created),
            ("QUEUED", created),
            ("SCHEDULED", created),
        ]
    assert (await board.get(f"{API}/stats")).json["unfinished"] == 3
    twice = [board.post(f"{API}/jobs", {"jobs": [body("twin", "doc3")]}) for _ in range(2)]
    made = [answer.json["jobs"][0]["created"] for answer in await asyncio.gather(*twice)]
    assert sorted(made) == [False, True]
    twice = [board.post(f"{API}/jobs/twin/cancel") for _ in range(2)]
    assert sorted([answer.status for answer in await asyncio.gather(*twice)]) == [200, 409]
    assert (await board.get(f"{API}/stats?path=doc1")).json["total"] == 2
    assert (await board.get(f"{API}/scale")).json["ready"] == 1
    assert (await board.get(f"{API}/jobs/a%2F1?arguments=1")).json["spec"]["arguments"]["value"] == {"n": 1}
    assert [job["id"] for job in (await board.get(f"{API}/jobs?newest_first=1&limit=2")).json["jobs"]] == ["twin", "c"]
    assert (await board.get(f"{API}/jobs/b/why")).json["reasons"][0]["jobs"] == ["a/1"]
    assert (await board.get(f"{API}/flows/f")).json["stats"]["total"] == 1
    assert (await board.get(f"{API}/tree")).json["children"][0]["path_key"] == "doc1"
    assert (await board.get(f"{API}/users?service=s")).json["users"] == [["ann", 4]]
    assert (await board.post(f"{API}/places/doc1/pause", {"for_ms": 60_000})).json["changed"] is True
    assert len((await board.get(f"{API}/pauses")).json["pauses"]) == 1
    assert (await board.post(f"{API}/limits", {"limit": {"path": ["doc1"], "max_pending": 2}})).json["changed"] is True
    full = await board.post(f"{API}/jobs", {"jobs": [body("d", "doc1")]})
    assert (full.status, full.json["facts"]["limit"]) == (429, 2)
    assert (await board.post(f"{API}/jobs/c/run-now")).json["state"] == "QUEUED"
    assert (await board.post(f"{API}/jobs/b/cancel")).json["state"] == "CANCELED"
    assert (await board.get(f"{API}/jobs/b")).json["logs"] == ["canceled by ann on the board"]
    assert (await board.post(f"{API}/signals/approved", {"data": [1]})).json == {"counts": True}
    again = await board.post(f"{API}/jobs", {"jobs": [body("c", "doc1")]})
    assert (again.status, again.json["error"]) == (409, "DuplicateJobError")
    answer = await board.stream("/events?path=doc1&kinds=canceled", lambda text: "data:" in text, last_event_id=begin)
    assert '"id":"b"' in answer.text


async def test_memory() -> None:
    await tell_a_story(Scheduler())


async def test_file(tmp_path: Path) -> None:
    async with Scheduler(f"sqlite:///{tmp_path}/jobs.db") as sched:
        await tell_a_story(sched)


async def test_redis(redis_url: str, namespace: str) -> None:
    async with Scheduler(redis_url, namespace=namespace) as sched:
        await tell_a_story(sched)


async def test_postgresql(place: Place) -> None:
    async with Scheduler(place.url("namespace=n")) as sched:
        await tell_a_story(sched)


async def test_board_is_mounted_below_a_path() -> None:
    board = make_app(Scheduler(), auth=lambda _: Access())
    fastapi = FastAPI()
    fastapi.mount("/queue hint", board)
    for outer in (fastapi, Starlette(routes=[Mount("/queue hint", board)])):
        client = WebClient(outer)
        assert (await client.get("/queue%20hint/api/v1/jobs/a%2Fb")).json["facts"] == {"job_id": "a/b"}
        assert 'href="/queue%20hint/' in (await client.get("/queue%20hint/")).text
        assert (await client.get("/queue%20hint/static/board.css")).status == 200
        described = (await client.get("/queue%20hint/api/v1/openapi.json")).json
        assert described["servers"] == [{"url": "/queue%20hint/api/v1"}]
