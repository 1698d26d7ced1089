"""Flows and places over HTTP: the state of a flow, a part of it run again, and why a place does not move."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from queuehint import Children, Dependency, Fail, JobContext, JobSpec, JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.steps import run_steps
from queuehint.client.record_reads import records_of
from queuehint.errors import BackendError, DrainStalledError
from queuehint.values.hint import Claim
from queuehint.values.record_filter import RecordFilter
from queuehint.web import Access, make_app
from tests.web_client import WebClient

API = "/api/v1"
ALL = Access(name="ann", write=True)
T1 = Access(name="ben", write=True, scope=["t1"])


@pytest.fixture
def sched() -> Scheduler:
    sched = Scheduler()
    sched.ran = []  # type: ignore[attr-defined]

    @sched.job
    async def save() -> None:
        sched.ran.append(1)  # type: ignore[attr-defined]

    @sched.job
    async def breaks() -> None:
        raise Fail("broken")

    return sched


@pytest.fixture
def board(sched: Scheduler) -> WebClient:
    return WebClient(make_app(sched, auth=lambda _: ALL))


def spec(job_id: str, *behind: str, path: str = "t1", task: str = "save", **more: Any) -> JobSpec:
    edges = tuple(map(Dependency, behind))
    return JobSpec(id=job_id, task=task, claims=(Claim((path, job_id)),), flow="f", depends_on=edges, **more)


def scoped(sched: Scheduler, access: Access = T1) -> WebClient:
    return WebClient(make_app(sched, auth=lambda _: access))


async def state_of(board: WebClient) -> tuple[str, list[str]]:
    found = (await board.get(f"{API}/flows/f")).json
    return found["state"], found["stats"]["held_by"]


async def test_flow_is_running_then_finished(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a"), spec("b", "a")])
    assert await state_of(board) == ("RUNNING", [])
    await sched.drain()
    assert await state_of(board) == ("FINISHED", [])


async def test_flow_behind_a_dead_job_is_stuck_and_names_it(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", task="breaks"), spec("b", "a")])
    await sched.drain(["t1", "a"])
    assert await state_of(board) == ("STUCK", ["a"])
    await board.post(f"{API}/jobs/b/cancel")
    assert await state_of(board) == ("FAILED", [])


async def test_flow_with_a_canceled_job_is_canceled_unless_unneeded(sched: Scheduler, board: WebClient) -> None:
    unneeded = JobSpec(id="b", task="save", flow="f", depends_on=(Dependency("a", when="failure"),))
    await sched.submit([spec("a"), unneeded])
    await sched.drain()
    assert await state_of(board) == ("FINISHED", [])
    await sched.submit([spec("c", delay_ms=60_000)])
    await board.post(f"{API}/jobs/c/cancel")
    assert await state_of(board) == ("CANCELED", [])


async def test_scoped_flow_is_stuck_without_naming_foreign_jobs(sched: Scheduler) -> None:
    await sched.submit([spec("a", path="t2", task="breaks"), spec("b", "a")])
    await sched.drain(["t2"])
    assert await state_of(scoped(sched)) == ("STUCK", [])
    own = scoped(sched, Access(scope=["t2"]))
    assert await state_of(own) == ("FAILED", [])


async def test_scoped_flow_that_is_not_counted_whole_has_no_state(
    sched: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sched.submit([spec("a")])
    monkeypatch.setattr("queuehint.web.flows.counted", _counts_in_part)
    found = (await scoped(sched).get(f"{API}/flows/f")).json
    assert (found["state"], found["complete"]) == (None, False)


def _counts_in_part(_wanted: Any) -> Any:
    yield from ()
    return op.Counts(dict.fromkeys(JobState, 0), ("", 1))


async def test_job_of_a_flow_is_rerun_once_for_each_version(
    sched: Scheduler, board: WebClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "queuehint.board")
    await sched.submit([spec("a", name="load"), spec("b", "a"), spec("c")])
    await sched.drain()
    asked = {"job": "load", "version": (await board.get(f"{API}/jobs/a")).json["version"]}
    answer = await board.post(f"{API}/flows/f/rerun", asked)
    assert (answer.status, answer.json) == (200, {"count": 2, "ids": ["a", "b"]})
    await sched.drain()
    assert (await board.post(f"{API}/flows/f/rerun", asked)).json == {"count": 0, "ids": []}
    assert len(sched.ran) == 5  # type: ignore[attr-defined]
    assert (await sched.get("a")).logs == ("run again by ann on the board",)
    logs = [log.__dict__ for log in caplog.records if log.name == "queuehint.board"]
    assert [(log["order"], log["what"], log["count"]) for log in logs] == [
        ("rerun", "job 'load'", 2),
        ("rerun", "job 'load'", 0),
    ]


async def test_rerun_alone_leaves_jobs_behind_it(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a"), spec("b", "a")])
    await sched.drain()
    version = (await board.get(f"{API}/jobs/a")).json["version"]
    answer = await board.post(f"{API}/flows/f/rerun", {"job": "a", "version": version, "downstream": False})
    assert answer.json["ids"] == ["a"]


async def test_rerun_is_done_even_if_its_log_is_not_written(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a")])
    await sched.drain()
    version, call = (await sched.get("a")).version, sched.backend.call

    async def without_notes(operation: Any) -> Any:
        if hasattr(operation, "notes"):
            raise BackendError("gone")
        return await call(operation)

    sched.backend.call = without_notes  # type: ignore[method-assign]
    answer = await board.post(f"{API}/flows/f/rerun", {"job": "a", "version": version})
    assert answer.json["count"] == 1


@pytest.mark.parametrize(
    "target, asked, status, named",
    [
        ("f", {"job": "a"}, 400, "body.version is missing"),
        ("f", {"job": "a", "version": 0}, 400, "version must be from 1"),
        ("f", {"job": "a", "version": 1, "steps": "some"}, 400, "steps must be one of keep, drop"),
        ("f", {"job": "gone", "version": 1}, 404, "gone"),
        ("g", {"job": "a", "version": 1}, 404, "g"),
    ],
)
async def test_bad_rerun_is_refused_by_name(
    sched: Scheduler, board: WebClient, target: str, asked: Any, status: int, named: str
) -> None:
    await sched.submit([spec("a")])
    answer = await board.post(f"{API}/flows/{target}/rerun", asked)
    assert (answer.status, named in answer.json["detail"]) == (status, True), answer.text


async def test_scoped_rerun_leaves_jobs_of_another_scope(sched: Scheduler) -> None:
    await sched.submit([spec("a"), spec("b", "a", path="t2")])
    await sched.drain()
    board, version = scoped(sched), (await sched.get("a")).version
    assert (await board.post(f"{API}/flows/f/rerun", {"job": "b", "version": 1})).status == 404
    assert (await board.post(f"{API}/flows/f/rerun", {"job": "a", "version": version})).json["ids"] == ["a"]
    assert (await sched.get("b")).state is JobState.FINISHED


async def test_why_of_a_handler_names_the_limit_of_its_permit(sched: Scheduler, board: WebClient) -> None:
    await sched.limit(["svc"], 1)
    may_ask = asyncio.Event()

    @sched.job
    async def asks() -> None:
        await may_ask.wait()
        async with sched.permit(["svc"]):
            pass

    async with sched.worker():
        async with sched.permit(["svc"]) as held:
            job = await asks.enqueue()
            may_ask.set()
            kind = None
            while kind != "permit":
                (reason,) = (await board.get(f"{API}/jobs/{job.id}/why")).json["reasons"]
                kind = reason["kind"]
                await asyncio.sleep(0.01)
            assert (reason["state"], reason["path_key"], reason["jobs"]) == ("STARTED", "svc", [held.id])
        await job.result(timeout=60)


async def test_scale_of_many_running_jobs_is_a_lower_bound(board: WebClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.web.questions.counted", _counts_in_part)
    assert (await board.get(f"{API}/scale")).json["complete"] is False


async def test_why_of_a_path_names_waiting_jobs_and_blockers(sched: Scheduler, board: WebClient) -> None:
    claim = (Claim(("doc1",)),)
    await sched.submit([JobSpec(id=f"{n}", task="save", claims=claim, user="ann") for n in range(5)])
    found = (await board.get(f"{API}/why?path=doc1&limit=1")).json
    assert ([job["id"] for job in found["oldest"]], [job["id"] for job in found["newest"]]) == (["0"], ["4"])
    assert (found["path_key"], found["waiting"], found["more"], found["complete"]) == ("doc1", 5, 3, True)
    newest = found["newest"][0]
    assert (newest["user"], newest["claims"], newest["reason"]["jobs"]) == ("ann", 1, ["0", "1", "2", "3"])
    assert (await board.get(f"{API}/why")).json["path_key"] == "root"
    answer = await board.get(f"{API}/why?limit=17")
    assert (answer.status, "limit must be from 1 to 16" in answer.json["detail"]) == (400, True)


async def test_scoped_why_of_a_path_names_no_foreign_job(sched: Scheduler) -> None:
    both = (Claim(("t1", "x")), Claim(("t2",)))
    await sched.submit([JobSpec(id="barrier", task="save", claims=(Claim(()),))])
    await sched.submit([JobSpec(id="a", task="save", claims=both), JobSpec(id="b", task="save", claims=both[:1])])
    await sched.submit([JobSpec(id="c", task="save", claims=both[::-1])])
    board = scoped(sched)
    answer = await board.get(f"{API}/why")
    found = answer.json
    assert (found["path_key"], [job["id"] for job in found["oldest"]]) == ("t1", ["a", "b", "c"])
    assert (found["ahead"], found["oldest"][1]["reason"]["jobs"]) == ([], ["a"])
    assert [job["path_key"] for job in found["oldest"]] == ["t1:x"] * 3
    assert "barrier" not in answer.text
    assert not {"holders", "more_ahead"} & found.keys()
    assert not any("claims" in job for job in found["oldest"])
    assert (await board.get(f"{API}/why?path=t2")).status == 403


@pytest.mark.parametrize("most, count", [(None, 5), (4, 4), (3, 3), (9, 5)])
async def test_records_of_a_flow_are_read_in_portions(
    sched: Scheduler, monkeypatch: pytest.MonkeyPatch, most: int | None, count: int
) -> None:
    await sched.submit([spec(f"{number}") for number in range(5)])
    monkeypatch.setattr(op, "LIST_MAX", 2)
    found = await run_steps(sched.backend, records_of(RecordFilter(flow="f"), most))
    assert [record.id for record in found] == [f"{number}" for number in range(count)]


async def test_flow_behind_a_failed_parent_names_its_dead_child(sched: Scheduler, board: WebClient) -> None:
    @sched.job
    async def parent(ctx: JobContext) -> Children:
        await ctx.enqueue(sched.jobs["breaks"].using(queue_hint=["t1", "child"]))
        return Children()

    await sched.submit([spec("a", task="parent"), spec("b", "a")])
    with pytest.raises(DrainStalledError):
        await sched.drain(["t1"])
    assert await state_of(board) == ("STUCK", ["a.1"])
    assert await state_of(scoped(sched)) == ("STUCK", ["a.1"])
