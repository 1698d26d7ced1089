"""The routes of a board: questions, their parameters and answers, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from queuehint import JobSpec, Scheduler
from queuehint.values.hint import Claim
from queuehint.web import Access, make_app
from tests.web_client import WebClient

ALL = Access(name="ann", write=True, arguments=True)


def spec(job_id: str, *path: str, **more: object) -> JobSpec:
    return JobSpec(id=job_id, task="save", claims=(Claim(path),) if path else (), **more)  # type: ignore[arg-type]


@pytest.fixture
def sched() -> Scheduler:
    return Scheduler()


@pytest.fixture
def board(sched: Scheduler) -> WebClient:
    return WebClient(make_app(sched, auth=lambda _: ALL))


async def test_stats_counts_jobs_of_a_namespace_or_of_a_filter(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", "doc1"), spec("b", "doc1"), spec("c", "doc2")])
    counts = (await board.get("/api/v1/stats")).json
    assert (counts["states"]["QUEUED"], counts["unfinished"], counts["ready"]) == (3, 3, {"default": 2})
    found = (await board.get("/api/v1/stats?path=doc1&state=QUEUED&state=FAILED")).json
    assert (found["states"]["QUEUED"], found["total"], found["complete"]) == (2, 2, True)


async def test_tree_and_lines_answer_the_counts_of_places(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", "doc1", "intro"), spec("b", "doc1", "intro"), spec("c", "doc2")])
    tree = (await board.get("/api/v1/tree?path=doc1&depth=1")).json
    assert [child["path_key"] for child in tree["children"]] == ["doc1:intro"]
    lines = (await board.get("/api/v1/lines?depth=2")).json
    assert [(place["path_key"], place["waiting"]) for place in lines["places"]] == [("doc1:intro", 1)]


async def test_jobs_are_listed_in_pages(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec(job_id) for job_id in "abc"])
    first = (await board.get("/api/v1/jobs?newest_first=true&limit=2")).json
    assert [job["id"] for job in first["jobs"]] == ["c", "b"]
    second = (await board.get(f"/api/v1/jobs?newest_first=true&limit=2&cursor={first['cursor']}")).json
    assert ([job["id"] for job in second["jobs"]], second["cursor"]) == (["a"], None)


async def test_job_with_a_slash_in_its_id_is_found(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a/why", arguments=b'{"n": 1}'), spec("a%2Fb")])
    assert (await board.get("/api/v1/jobs/a%2Fwhy")).json["spec"]["arguments"] is None
    assert (await board.get("/api/v1/jobs/a%252Fb")).json["id"] == "a%2Fb"
    shown = (await board.get("/api/v1/jobs/a%2Fwhy?arguments=1")).json
    assert shown["spec"]["arguments"] == {"bytes": 8, "value": {"n": 1}}
    assert "token" not in shown
    assert (await board.get("/api/v1/jobs/a%2Fwhy/why")).json["reasons"][0]["kind"] == "no_worker"


async def test_flow_is_counted_and_listed(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec(job_id, flow="f") for job_id in "abc"])
    found = (await board.get("/api/v1/flows/f?limit=2")).json
    assert (found["stats"]["total"], found["state"], found["complete"]) == (3, "RUNNING", True)
    assert [job["id"] for job in found["jobs"]] == ["a", "b"]
    assert (await board.get("/api/v1/flows/g")).json["error"] == "FlowNotFoundError"


async def test_scale_counts_ready_and_running_jobs_without_blocked_ones(sched: Scheduler, board: WebClient) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @sched.job
    async def save() -> None:
        begun.set()
        await may_end.wait()

    await sched.submit([spec(job_id, "doc1") for job_id in "abc"] + [spec("d"), spec("e", delay_ms=60_000)])
    async with sched.worker(concurrency=1):
        await begun.wait()
        assert (await board.get("/api/v1/scale")).json == {
            "pool": "default",
            "ready": 1,
            "running": 1,
            "wanted": 2,
            "complete": True,
        }
        assert (await board.get("/api/v1/scale?pool=gpu")).json["wanted"] == 0
        may_end.set()


async def test_workers_and_users_are_listed(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", service="s", user="ann")])
    assert (await board.get("/api/v1/users?service=s")).json == {"users": [["ann", 1]], "after": None}
    assert (await board.get("/api/v1/workers")).json["workers"] == []
    assert "query.service is missing" in (await board.get("/api/v1/users")).json["detail"]


async def test_job_shows_its_result_if_it_is_asked_for(sched: Scheduler, board: WebClient) -> None:
    @sched.job(name="save")
    async def save() -> str:
        return "a secret"

    await sched.submit([spec("a")])
    await sched.drain()
    assert "a secret" not in (await board.get("/api/v1/jobs")).text
    assert (await board.get("/api/v1/jobs/a")).json["result"] is None
    assert (await board.get("/api/v1/jobs/a?arguments=1")).json["result"]["value"] == {"result": "a secret"}


async def test_why_answers_a_chain(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", "doc1"), spec("b", "doc1")])
    (reason,) = (await board.get("/api/v1/jobs/b/why")).json["reasons"]
    assert (reason["jobs"], reason["text"]) == (["a"], "b is QUEUED: waits for the place of a at doc1")
    chain = (await board.get("/api/v1/jobs/b/why?limit=16")).json["reasons"]
    assert [each["job_id"] for each in chain] == ["b", "a"]


@pytest.mark.parametrize(
    "target, status, error, named",
    [
        ("/api/v1/jobs/gone", 404, "JobNotFoundError", "gone"),
        ("/api/v1/jobs?limit=201", 400, "InvalidJobError", "limit must be from 1 to 200, got 201"),
        ("/api/v1/jobs?limit=1e3", 400, "InvalidJobTypeError", "limit must be a whole number"),
        ("/api/v1/jobs?limit=1&limit=2", 400, "InvalidJobError", "limit is given 2 times"),
        ("/api/v1/jobs?state=LOST", 400, "InvalidJobError", "state"),
        ("/api/v1/jobs?colour=red", 400, "InvalidJobTypeError", "query has no parameter 'colour'"),
        ("/api/v1/jobs?cursor=x", 400, "InvalidJobError", "cursor"),
        ("/api/v1/tree?path=a::b", 400, "InvalidHintError", "a::b"),
        ("/api/v1/nothing", 404, "not-found", "Not Found"),
    ],
)
async def test_bad_question_is_refused_by_name(
    board: WebClient, target: str, status: int, error: str, named: str
) -> None:
    answer = await board.get(target)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json
    assert (answer.status, problem["status"], problem["error"]) == (status, status, error)
    assert named in problem["detail"]


async def test_order_by_get_is_not_allowed(board: WebClient) -> None:
    answer = await board.post("/api/v1/stats")
    assert (answer.status, answer.json["error"], "GET" in answer.headers["allow"]) == (405, "method-not-allowed", True)
