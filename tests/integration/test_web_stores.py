"""The pages of the board show the same of the same jobs, whatever the store."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from queuehint.web import Access, app, make_app
from queuehint.web.store import BoundedStore
from tests.servers import Server
from tests.support import LIMIT_S
from tests.web.world import World, seed
from tests.web_client import WebClient

TARGETS = [
    "/",
    "/places",
    "/places?order=line",
    "/places/doc1",
    "/places/doc2",
    "/jobs",
    "/jobs?state=queued&path=doc1",
    "/jobs?task=send_mail&order=oldest",
    "/dead",
    "/schedules",
    "/limits",
    "/users",
    "/confirm/cancel?user=cy",
]
OF_JOBS = ["/jobs/{id}?arguments=1", "/jobs/{id}/why", "/enqueue?copy={id}"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BoundedStore", partial(BoundedStore, patience_s=LIMIT_S))


async def pages(world: World) -> dict[str, str]:
    """Return what a board shows of a seeded world, by address; ids that a form makes up are left out."""
    async with world.sched as sched:
        await seed(world)
        client = WebClient(make_app(sched, auth=lambda _: Access(name="ann", write=True, arguments=True)))
        ids = [record.id for record in await sched.records.list(limit=200)]
        targets = TARGETS + [target.format(id=job_id) for job_id in ids[::4] for target in OF_JOBS]
        found = {}
        for target in targets:
            answer = await client.get(target)
            assert answer.status == 200, (target, answer.text)
            found[target] = re.sub(r'name="once" value="[^"]*"', "", answer.text)
        return found


async def same(world: World) -> None:
    theirs, ours = await pages(world), await pages(World())
    assert [target for target in ours if ours[target] != theirs[target]] == []


async def test_pages_are_the_same_on_a_file(tmp_path: Path) -> None:
    await same(World(f"sqlite:///{tmp_path / 'jobs.db'}"))


@pytest.mark.slow
@pytest.mark.redis
async def test_pages_are_the_same_on_redis() -> None:
    with Server() as server:
        await same(World(server.url))
