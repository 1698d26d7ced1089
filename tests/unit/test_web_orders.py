"""The orders of a board: what they do, who may give them, where they are written down."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from queuehint import Fail, JobSpec, JobState, Scheduler
from queuehint.errors import QueueFullError
from queuehint.handlers.codec import JsonCodec
from queuehint.values.hint import Claim
from queuehint.web import Access, make_app, orders
from queuehint.web.board import ROUTES
from queuehint.web.problems import failure
from tests.web_client import WebClient

ALL = Access(name="ann", write=True, arguments=True)
API = "/api/v1"


def spec(job_id: str, *path: str, **more: Any) -> JobSpec:
    return JobSpec(id=job_id, task=more.pop("task", "save"), claims=(Claim(path),) if path else (), **more)


def body(job_id: str, *path: str, **more: Any) -> dict[str, Any]:
    claims = [{"path": list(path)}] if path else []
    return {"id": job_id, "task": "save", "claims": claims, **more}


@pytest.fixture
def sched() -> Scheduler:
    sched = Scheduler()

    @sched.job
    async def breaks() -> None:
        raise Fail("broken")

    @sched.job
    async def save(n: int = 0) -> int:
        return n

    return sched


@pytest.fixture
def board(sched: Scheduler) -> WebClient:
    return WebClient(make_app(sched, auth=lambda _: ALL))


async def dead(sched: Scheduler, *ids: str) -> None:
    await sched.submit([spec(job_id, "doc1", task="breaks") for job_id in ids])
    await sched.drain()


def test_rows_have_names_and_places_of_their_own() -> None:
    assert len({row.name for row in ROUTES}) == len({(row.method, row.path) for row in ROUTES}) == len(ROUTES)


async def test_enqueue_is_idempotent_by_id(sched: Scheduler, board: WebClient) -> None:
    jobs = {"jobs": [body("a", "doc1", arguments={"n": 7}, headers={"x": "y"}), body("b", tags=["eu"], delay_ms=5)]}
    first = (await board.post(f"{API}/jobs", jobs)).json["jobs"]
    assert [(job["id"], job["created"], job["state"]) for job in first] == [
        ("a", True, "QUEUED"),
        ("b", True, "SCHEDULED"),
    ]
    assert [job["created"] for job in (await board.post(f"{API}/jobs", jobs)).json["jobs"]] == [False, False]
    record = await sched.get("a")
    assert (record.headers, sched.records.arguments_of(record)) == ({"x": "y"}, {"n": 7})
    jobs["jobs"][0]["arguments"] = {"n": 8}
    answer = await board.post(f"{API}/jobs", jobs)
    assert (answer.status, answer.json["error"], answer.json["facts"]["fields"]) == (
        409,
        "DuplicateJobError",
        ["arguments"],
    )
    await sched.drain(include_scheduled=True)
    assert await sched.handle("a").result() == 7


async def test_arguments_are_written_by_the_codec_of_the_application() -> None:
    sched = Scheduler(codec=Reversed())
    board = WebClient(make_app(sched, auth=lambda _: ALL))
    await board.post(f"{API}/jobs", {"jobs": [body("a", arguments={"n": 7})]})
    record = await sched.get("a")
    assert (record.spec.arguments, sched.records.arguments_of(record)) == (b'}7:"n"{', {"n": 7})


class Reversed(JsonCodec):
    """Writes JSON from its end."""

    def dumps(self, *args: Any, **options: Any) -> bytes:
        return super().dumps(*args, **options)[::-1]

    def loads(self, payload: bytes, *args: Any) -> Any:
        return super().loads(payload[::-1], *args)


async def test_queue_that_is_full_says_when_to_try_again(sched: Scheduler, board: WebClient) -> None:
    await sched.limit(["doc1"], max_pending=1)
    await sched.submit([spec("b", "doc1")])
    answer = await board.post(f"{API}/jobs", {"jobs": [body("c", "doc1")]})
    assert answer.status == 429
    error = QueueFullError("doc1", 1, 1, retry_after_s=2.4)
    assert failure(error).headers["retry-after"] == "2"
    assert "retry-after" not in failure(QueueFullError("doc1", 1, 1)).headers


async def test_jobs_of_one_request_depend_on_one_another_by_name(sched: Scheduler, board: WebClient) -> None:
    policy = {"max_attempts": 2, "backoff": {"waits": [1, 2.5]}}
    jobs = [body("a", name="load"), body("b", depends_on=[{"id": "load", "when": "done"}], policy=policy)]
    assert (await board.post(f"{API}/jobs", {"jobs": jobs})).status == 200
    record = await sched.get("b")
    assert (record.state, [edge.id for edge in record.spec.depends_on]) == (JobState.DEFERRED, ["a"])
    assert record.spec.policy.backoff.waits == (1.0, 2.5)


@pytest.mark.parametrize(
    "given, error, named",
    [
        ([], "InvalidJobTypeError", "body must be an object"),
        ({}, "InvalidJobTypeError", "body.jobs is missing"),
        ({"jobs": 1}, "InvalidJobTypeError", "jobs"),
        ({"jobs": [{"id": "a"}]}, "InvalidJobTypeError", "body.jobs[0].task is missing"),
        ({"jobs": [body("a", x=1)]}, "InvalidJobTypeError", "body.jobs[0] has no field 'x'"),
        ({"jobs": [body("a", parent="b")]}, "InvalidJobTypeError", "body.jobs[0] has no field 'parent'"),
        ({"jobs": [body("a", arguments=[])]}, "InvalidJobTypeError", "arguments must be an object"),
        ({"jobs": [body("a", priority=7)]}, "InvalidJobError", "priority must be 1 to 5"),
        ({"jobs": [body("a", policy={"cost": 0})]}, "InvalidJobError", "cost"),
        ({"jobs": [body("a", policy={"on_dead": "no"})]}, "InvalidJobError", "on_dead"),
        ({"jobs": [body("a b")]}, "InvalidJobError", "id holds white space"),
        ({"jobs": [body("a", "")]}, "InvalidHintError", "is empty"),
        ({"jobs": [body(f"{n}") for n in range(501)]}, "InvalidJobError", "jobs: 501 in one operation, limit 500"),
        ({"jobs": [body("a", depends_on=[{"id": "b"}])]}, "UnknownDependencyError", "'b'"),
        ({"jobs": [body("a", depends_on=[{"id": "a"}])]}, "CycleError", "a → a"),
    ],
)
async def test_bad_job_is_refused_by_name(board: WebClient, given: Any, error: str, named: str) -> None:
    answer = await board.post(f"{API}/jobs", given)
    assert (answer.status, answer.json["error"]) == (400, error)
    assert named in answer.json["detail"]


@pytest.mark.parametrize(
    "sent, headers, status, named",
    [
        (b"{", {}, 400, "body must be JSON"),
        (b'{"jobs": NaN}', {}, 400, "NaN is no number"),
        (b"[" * 100_000, {}, 400, "body must be JSON"),
        (b"\xff", {}, 400, "body must be JSON"),
        (b"{}", {"content-type": "text/plain"}, 415, "Content-Type: application/json"),
        (b" " * (8 * 2**20 + 1), {}, 413, "8388608 bytes, the limit"),
    ],
)
async def test_bad_body_is_refused_by_name(
    board: WebClient, sent: bytes, headers: dict[str, str], status: int, named: str
) -> None:
    answer = await board.ask("POST", f"{API}/jobs", sent, {"content-type": "application/json"} | headers)
    assert answer.status == status
    assert named in answer.json["detail"]


@pytest.mark.parametrize(
    "arguments, status, named",
    [
        ({"text": "x" * 2**20}, 413, "body.jobs[0].arguments: takes 1048587 bytes as JSON, limit 1048576"),
        ({"text": "x\ud800"}, 400, "body.jobs[0].arguments.text: string holds '\\ud800'"),
        ({"big": 10**4299}, 200, ""),
    ],
)
async def test_large_arguments_are_told_from_wrong_ones(
    board: WebClient, arguments: Any, status: int, named: str
) -> None:
    answer = await board.post(f"{API}/jobs", {"jobs": [body("a", arguments=arguments)]})
    assert answer.status == status
    assert named in answer.json.get("detail", "")
    data = await board.post(f"{API}/signals/s", {"data": arguments})
    assert data.status == status


async def test_rerun_of_jobs_is_no_part_of_a_redrive(board: WebClient) -> None:
    answer = await board.post(f"{API}/redrive", {"ids": ["a"], "again": [1]})
    assert (answer.status, "has no field 'again'" in answer.json["detail"]) == (400, True)


async def test_orders_on_a_job_are_logged_and_written_into_it(
    sched: Scheduler, board: WebClient, caplog: pytest.LogCaptureFixture
) -> None:
    await dead(sched, "a", "b")
    caplog.set_level(logging.INFO, "queuehint.board")
    answer = (await board.post(f"{API}/jobs/a/redrive", {"downstream": True})).json
    assert answer == {"verdict": "done", "state": "QUEUED", "more": False}
    assert (await board.post(f"{API}/jobs/a/cancel")).json["state"] == "CANCELED"
    assert (await board.post(f"{API}/jobs/b/discard")).json["state"] == "CANCELED"
    assert (await sched.get("a")).logs == ("redriven by ann on the board", "canceled by ann on the board")
    logs = [log.__dict__ for log in caplog.records if log.name == "queuehint.board"]
    said = [(log["event"], log["who"], log["order"], log["count"]) for log in logs]
    assert said == [("board.order", "ann", name, 1) for name in ("redrive_job", "cancel_job", "discard_job")]
    assert (await board.post(f"{API}/jobs/a/delete")).status == 200
    assert (await board.get(f"{API}/jobs/a")).status == 404


async def test_refused_or_unknown_order_reports_so(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", run_at_ms=None, delay_ms=60_000)])
    assert (await board.post(f"{API}/jobs/gone/cancel")).json["error"] == "JobNotFoundError"
    answer = await board.post(f"{API}/jobs/a/discard")
    assert (answer.status, answer.json["facts"]["state"]) == (409, "SCHEDULED")
    assert (await board.post(f"{API}/jobs/a/run-now")).json["state"] == "QUEUED"
    assert (await board.post(f"{API}/jobs/a/run-now")).status == 409
    assert (await sched.get("a")).logs == ("made due by ann on the board",)


async def test_order_on_several_jobs_answers_each(
    sched: Scheduler, board: WebClient, caplog: pytest.LogCaptureFixture
) -> None:
    await sched.submit([spec("a"), spec("b")])
    caplog.set_level(logging.INFO, "queuehint.board")
    answer = (await board.post(f"{API}/cancel", {"ids": ["b", "gone", "a", "b"], "reason": "no more"})).json
    assert answer["verdicts"] == [["done", "CANCELED"], ["unknown", None], ["done", "CANCELED"], ["done", "CANCELED"]]
    assert (await sched.get("a")).cause == "no more"
    assert (await sched.get("b")).logs == ("canceled by ann on the board",)
    assert [log.__dict__["count"] for log in caplog.records if log.name == "queuehint.board"] == [2]
    refused = await board.post(f"{API}/cancel", {"ids": [f"{n}" for n in range(129)]})
    assert (refused.status, refused.json["detail"]) == (400, "ids: 129 in one request, limit 128")


async def test_orders_on_a_place(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", "doc1", "x:y"), spec("b", "doc2")])
    place = f"{API}/places/doc1%3Ax%5C%3Ay"
    for order in ("pause", "close"):
        assert (await board.post(f"{place}/{order}")).json == {"changed": True, "more": False}
        assert (await board.post(f"{place}/{order}")).json["changed"] is False
    (pause,) = (await board.get(f"{API}/pauses")).json["pauses"]
    assert pause["filter"]["path"] == ["doc1", "x:y"]
    assert (await board.post(f"{API}/jobs", {"jobs": [body("c", "doc1", "x:y")]})).status == 409
    for order in ("resume", "reopen"):
        assert (await board.post(f"{place}/{order}")).json["changed"] is True
    assert (await board.post(f"{place}/cancel")).json == {"more": False, "reached": 1, "number": None}


async def test_work_caused_by_an_order_is_bounded(
    sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sched.submit([spec(f"{n}", "doc1") for n in range(1500)])
    monkeypatch.setattr(orders, "TICKS_MAX", 1)
    first = (await board.post(f"{API}/places/doc1/cancel")).json
    assert (first["more"], first["number"] is None) == (True, False)
    monkeypatch.setattr(orders, "TICKS_MAX", 16)
    assert (await board.post(f"{API}/places/doc1/cancel")).json["more"] is False
    assert (await board.get(f"{API}/stats?path=doc1&state=QUEUED")).json["total"] == 0


async def test_pause_by_a_filter_and_for_a_time(board: WebClient) -> None:
    given = {"filter": {"task": "save", "pool": "gpu"}, "for_ms": 5000}
    assert (await board.post(f"{API}/pause", given)).json["changed"] is True
    (pause,) = (await board.get(f"{API}/pauses")).json["pauses"]
    assert (pause["filter"]["task"], pause["until_ms"] is None) == ("save", False)
    assert (await board.post(f"{API}/resume", {"filter": given["filter"]})).json["changed"] is True


async def test_limits_and_weights_are_set(board: WebClient) -> None:
    given = {"limit": {"path": ["doc1"], "most": 2, "rate": [100, 1000]}}
    assert (await board.post(f"{API}/limits", given)).json["changed"] is True
    (limit,) = (await board.get(f"{API}/limits")).json["limits"]
    assert (limit["limit"]["path"], limit["limit"]["rate"], limit["started"]) == (["doc1"], [100, 1000], 0)
    assert (await board.post(f"{API}/weights", {"user": "ann", "weight": 5})).json["changed"] is True
    assert (await board.get(f"{API}/weights")).json == {"users": [["ann", 5]]}
    answer = await board.post(f"{API}/limits", {"limit": {"path": ["doc1"], "rate": [1]}})
    assert (answer.status, "must be a list of 2, got 1" in answer.json["detail"]) == (400, True)


async def test_schedules_are_paused_resumed_fired_and_removed(sched: Scheduler, board: WebClient) -> None:
    await sched.schedule("nightly", sched.jobs["save"], every=3600)
    (found,) = (await board.get(f"{API}/schedules")).json["schedules"]
    assert (found["name"], found["recurrence"]["every_ms"]) == ("nightly", 3_600_000)
    for order in ("pause", "resume"):
        assert (await board.post(f"{API}/schedules/nightly/{order}")).json == {"changed": True}
    job_id = (await board.post(f"{API}/schedules/nightly/run-now")).json["job_id"]
    assert (await sched.get(job_id)).schedule == "nightly"
    assert (await board.post(f"{API}/schedules/nightly/remove")).json == {"changed": True}
    assert (await board.post(f"{API}/schedules/nightly/pause")).json["error"] == "ScheduleNotFoundError"


async def test_signal_is_given_once(board: WebClient) -> None:
    assert (await board.post(f"{API}/signals/approved", {"data": {"by": "ann"}})).json == {"counts": True}
    assert (await board.post(f"{API}/signals/approved", {"data": {"by": "ann"}})).json == {"counts": True}
    assert (await board.post(f"{API}/signals/approved")).json == {"counts": False}


async def test_read_only_board_takes_no_orders(sched: Scheduler) -> None:
    board = WebClient(make_app(sched, auth=lambda _: ALL, read_only=True))
    assert (await board.post(f"{API}/jobs", {"jobs": []})).json["error"] == "read-only"


async def test_access_without_write_orders_nothing(sched: Scheduler) -> None:
    board = WebClient(make_app(sched, auth=lambda _: Access()))
    for row in ROUTES:
        if row.is_order:
            answer = await board.post(API + row.path.replace("{", "").replace("}", ""))
            assert (answer.status, answer.json["error"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://board"}, 403),
        ({"origin": "http://board"}, 200),
        ({"origin": "https://board"}, 200),
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "null"}, 403),
        ({}, 200),
    ],
)
async def test_order_of_another_site_is_refused(board: WebClient, headers: dict[str, str], status: int) -> None:
    answer = await board.post(f"{API}/places/doc1/pause", **headers)
    assert answer.status == status
