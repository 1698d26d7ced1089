"""Scopes of a board, case by case; that nothing else shows is a property of its own."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from queuehint import Dependency, JobSpec, JobState, Scheduler
from queuehint import operations as op
from queuehint.errors import InvalidJobError
from queuehint.values.event import Event, EventKind
from queuehint.values.hint import Claim
from queuehint.values.outcome import JobError, Outcome, OutcomeKind
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import Reason, ReasonKind, TreeNode
from queuehint.web import Access, make_app, orders, questions, scope
from queuehint.web.scope import Seal, pruned
from tests.web_client import WebClient

API = "/api/v1"
T1 = Access(name="ann", write=True, scope=["t1"])


@pytest.fixture
def sched() -> Scheduler:
    return Scheduler()


@pytest.fixture
def board(sched: Scheduler) -> WebClient:
    return WebClient(make_app(sched, auth=lambda _: T1, secret="secret"))


def spec(job_id: str, *paths: tuple[str, ...], **more: Any) -> JobSpec:
    return JobSpec(id=job_id, task="save", claims=tuple(map(Claim, paths)), **more)


async def test_paths_are_within_the_scope(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", ("t1", "x")), spec("b", ("t2",)), spec("c")])
    for target in ("/jobs", "/jobs?path=root", "/jobs?path=t1:x", "/jobs?user=ann"):
        assert len((await board.get(API + target)).json["jobs"]) == ("user" not in target), target
    answer = await board.get(f"{API}/jobs?path=t2")
    assert (answer.status, answer.json["error"]) == (403, "out-of-scope")
    assert (await board.get(f"{API}/tree")).json["path_key"] == "t1"
    assert (await board.get(f"{API}/stats")).json["total"] == 1


async def test_job_of_two_scopes_shows_its_claim_in_this_one(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", ("t1",), ("t2",))])
    job = (await board.get(f"{API}/jobs/a")).json
    assert [claim["path"] for claim in job["spec"]["claims"]] == [["t1"]]
    assert not {"number", "seq", "token"} & job.keys()


async def test_cursor_goes_on_and_says_nothing(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec(f"{n}", ("t1",), flow="f") for n in range(3)])
    for target in ("/jobs?limit=2", "/flows/f?limit=2"):
        first = (await board.get(API + target)).json
        second = (await board.get(f"{API}{target}&cursor={first['cursor']}")).json
        assert [job["id"] for page in (first, second) for job in page["jobs"]] == ["0", "1", "2"]
        for cursor in ("x", "é", first["cursor"][:-2] + "AA"):
            answer = await board.get(f"{API}{target}&cursor={quote(cursor)}")
            assert (answer.status, "must be one that this board returned" in answer.json["detail"]) == (400, True)


async def test_chain_ends_before_the_first_job_of_another_scope(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("barrier", ()), spec("a", ("t1",)), spec("b", ("t1",))])
    chain = (await board.get(f"{API}/jobs/b/why?limit=16")).json["reasons"]
    assert [(reason["job_id"], reason["jobs"]) for reason in chain] == [("b", ["a"])]
    assert (await board.get(f"{API}/jobs/barrier/why")).status == 404


async def test_reason_of_a_job_names_jobs_of_its_scope_alone(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("barrier", ()), spec("a", ("t1",))])
    (reason,) = (await board.get(f"{API}/jobs/a/why")).json["reasons"]
    assert (reason["kind"], reason["jobs"], reason["path_key"]) == ("place", [], "root")
    assert "barrier" not in json.dumps(reason)


async def test_order_on_jobs_of_another_scope_finds_none(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", ("t1",)), spec("b", ("t2",))])
    assert (await board.post(f"{API}/cancel", {"ids": ["b", "a"]})).json["verdicts"] == [
        ["unknown", None],
        ["done", "CANCELED"],
    ]
    assert (await board.post(f"{API}/cancel", {"ids": ["b"]})).json["verdicts"] == [["unknown", None]]
    assert (await sched.get("b")).state is JobState.QUEUED


async def test_scoped_limits_and_pauses_are_listed(sched: Scheduler, board: WebClient) -> None:
    for path in (["t1", "x"], ["t2"], []):
        await sched.limit(path, 3)
        await sched.pause(path)
    await sched.limit(task="save", most=1)
    await sched.pause(task="save")
    assert [limit["limit"]["path"] for limit in (await board.get(f"{API}/limits")).json["limits"]] == [["t1", "x"]]
    assert [pause["filter"]["path"] for pause in (await board.get(f"{API}/pauses")).json["pauses"]] == [["t1", "x"]]


@pytest.mark.parametrize(
    "given, named",
    [
        ({"claims": []}, "claims of job 't1/a' must be at or below 't1'"),
        ({"claims": [{"path": ["t1"]}, {"path": ["t2"]}]}, "must be at or below 't1'"),
        ({"id": "a"}, "id 'a' must begin with 't1/'"),
        ({"key": "k"}, "key 'k' must begin with 't1/'"),
        ({"flow": "f"}, "flow 'f' must begin with 't1/'"),
        ({"depends_on": [{"id": "other"}]}, "job 't1/a' depends on 'other', which does not exist"),
        ({"depends_on": [{"id": "gone"}]}, "job 't1/a' depends on 'gone', which does not exist"),
        ({"depends_on": [{"id": "signal:t2/s"}]}, "job 't1/a' depends on 'signal:t2/s', which does not exist"),
    ],
)
async def test_job_outside_the_scope_is_refused_by_name(
    sched: Scheduler, board: WebClient, given: dict[str, Any], named: str
) -> None:
    await sched.submit([spec("other", ("t2",))])
    job = {"id": "t1/a", "task": "save", "claims": [{"path": ["t1"]}]} | given
    answer = await board.post(f"{API}/jobs", {"jobs": [job]})
    assert (answer.status, named in answer.json["detail"]) == (400, True), answer.text


async def test_jobs_depend_on_jobs_and_signals_of_the_scope(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("own", ("t1",))])
    claims = [{"path": ["t1"]}]
    jobs = [
        {"id": "t1/a", "task": "save", "claims": claims, "name": "first"},
        {"id": "t1/b", "task": "save", "claims": claims},
    ]
    jobs[1]["depends_on"] = [{"id": "first"}, {"id": "own"}, {"id": "signal:t1/s"}]
    assert (await board.post(f"{API}/jobs", {"jobs": jobs})).status == 200
    assert (await board.post(f"{API}/signals/t1%2Fs")).json == {"counts": True}
    answer = await board.post(f"{API}/signals/s")
    assert (answer.status, "must begin with 't1/'" in answer.json["detail"]) == (400, True)


async def test_limit_above_the_scope_hides_its_usage(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("other", ("t2",))])
    jobs = {"jobs": [{"id": "t1/a", "task": "save", "claims": [{"path": ["t1"]}]}]}
    await sched.limit([], max_pending=1)
    answer = await board.post(f"{API}/jobs", jobs)
    assert (answer.status, answer.json["error"], answer.json["facts"]) == (429, "QueueFullError", {})
    await sched.unlimit([])
    await sched.limit(["t1"], max_pending=1)
    assert (await board.post(f"{API}/jobs", jobs)).status == 200
    jobs["jobs"][0]["id"] = "t1/b"
    answer = await board.post(f"{API}/jobs", jobs)
    assert (answer.status, answer.json["facts"]["limit"]) == (429, 1)


async def test_scoped_events_are_listed_and_hide_their_numbers(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("lost", ("t1",))])
    async with sched.events():
        await sched.submit([spec("b", ("t2",)), spec("a", ("t1",), ("t2",))])
    begin = Seal(b"secret").hide(bytes(8), parameter="Last-Event-ID", scope=("t1",))
    answer = await board.stream("/events", lambda text: text.count("data:") > 1, last_event_id=begin)
    missed, event = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert missed == {"count": None}
    assert (event["id"], [claim["path"] for claim in event["claims"]]) == ("a", [["t1"]])
    assert not {"at", "number"} & event.keys()
    last = [line[4:] for line in answer.text.split("\n") if line.startswith("id: ")][-1]
    assert Seal(b"secret").reveal(last, parameter="Last-Event-ID", scope=("t1",)) == (3).to_bytes(8, "big")
    assert (await board.get("/events", last_event_id="3")).status == 400


async def test_openapi_description_lists_only_permitted_requests(board: WebClient) -> None:
    paths = (await board.get(f"{API}/openapi.json")).json["paths"]
    assert "/workers" not in paths
    assert {"get"} == paths["/limits"].keys()
    assert "/jobs/{id}/cancel" in paths


def reason(**more: Any) -> Reason:
    return Reason(job_id="a", state=JobState.QUEUED, kind=ReasonKind.PAUSED, detail="3 workers", **more)


def test_event_names_no_job_of_another_scope() -> None:
    cause = "dependency t2/x has failed"
    event = Event(at=1, at_ms=0, kind=EventKind.FAILED, id="a", number=1, old=None, new=None, cause=cause)
    assert pruned(event, T1).cause == "dependency has failed"
    for error_type, message in (("dependency_failed", "dependency has failed"), ("KeyError", cause)):
        found = pruned(attrs.evolve(event, error_type=error_type, error_message=cause), T1)
        assert found.error_message == message
    own = attrs.evolve(event, cause="dependency t1/x has failed")
    assert pruned(own, T1) == own
    assert pruned(event, Access()) == event


def test_reason_names_no_place_of_another_scope() -> None:
    for path, key in ((("t2",), None), (("t1", "x"), "t1:x"), ((), "root")):
        selection = RecordFilter(path=path, task="save")
        found = pruned(reason(path_key=":".join(path) or "root", selection=selection), T1)
        assert (found.path_key, found.detail) == (key, None)
        assert found.selection == (None if key is None else selection)
    assert pruned(reason(path_key="t2"), Access()).path_key == "t2"


def test_waiting_job_names_no_place_of_another_scope() -> None:
    for key, named in (("t2", None), ("root", None), ("t1:x", "t1:x")):
        job = op.PlacedJob(
            id="a", task="save", user=None, path_key=key, mode="shared", claims=2, enqueued_ms=0, reason=reason()
        )
        found = pruned(job, T1)
        assert (found.path_key, found.mode, found.reason.detail) == (named, named and "shared", None)
        assert pruned(job, Access()) == job


def test_answers_without_scope_stay_as_they_are() -> None:
    for answer in (op.Limits(()), op.Pauses(())):
        assert pruned(answer, Access()) is answer


def test_seal_hides_the_same_position_alike_and_others_otherwise() -> None:
    one, other = Seal(b"one"), Seal(b"other")
    at: dict[str, Any] = {"parameter": "at", "scope": ("t1",)}
    hidden = one.hide(b"7", **at)
    assert one.hide(b"7", **at) == hidden != one.hide(b"8", **at)
    assert (one.reveal(one.hide(b"", **at), **at), one.reveal(hidden, **at)) == (b"", b"7")
    with pytest.raises(InvalidJobError, match="at 'x' must be one that this board returned"):
        one.reveal("x", **at)
    for seal, asked in ((other, at), (one, at | {"parameter": "to"}), (one, at | {"scope": ("t2",)})):
        with pytest.raises(InvalidJobError):
            seal.reveal(hidden, **asked)


async def test_position_of_one_parameter_is_none_of_another(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec(f"{n}", ("t1",)) for n in range(2)])
    cursor = (await board.get(f"{API}/jobs?limit=1")).json["cursor"]
    event = (await board.stream("/events", lambda text: "\n\n" in text)).text.removeprefix("id: ").strip()
    for target, headers in ((f"/events?after={cursor}", {}), ("/events", {"last_event_id": cursor})):
        answer = await board.get(target, **headers)
        assert (answer.status, answer.json["detail"]) == (
            400,
            f"Last-Event-ID {cursor!r} must be one that this board returned",
        )
    assert (await board.get(f"{API}/jobs?limit=1&cursor={event}")).status == 400


async def test_counts_and_sweeps_in_a_scope_name_no_position(
    sched: Scheduler, board: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "RECORDS_COUNTED_MAX", 1)
    monkeypatch.setattr(questions, "COUNTED_MAX", 2)
    monkeypatch.setattr(orders, "TICKS_MAX", 0)
    await sched.submit([spec(f"{n}", ("t1",)) for n in range(1000)])
    counts = (await board.get(f"{API}/stats")).json
    assert (counts["total"], counts["complete"], "after" in counts) == (2, False, False)
    swept = (await board.post(f"{API}/places/t1/cancel")).json
    assert (swept["more"], "number" in swept) == (True, False)
    everything = WebClient(make_app(sched, auth=lambda _: Access()))
    assert (await everything.get(f"{API}/stats?path=t1")).json["after"] is not None


async def test_record_omits_names_of_jobs_of_another_scope(sched: Scheduler, board: WebClient) -> None:
    edges = [Dependency("other", when="done"), Dependency("own", when="done"), Dependency("signal:t1/s")]
    await sched.submit([spec("other", ("t2",)), spec("own", ("t1",)), spec("child", ("t1",), parent="other")])
    await sched.submit([spec("a", ("t1",), depends_on=tuple(edges)), spec("b", ("t1",), depends_on=tuple(edges[:1]))])
    for job_id, when in (("c", "failure"), ("d", "must")):
        await sched.submit([spec(job_id, ("t1",), depends_on=(Dependency("other", when=when),))])  # type: ignore[arg-type]
    await sched.handle("other").cancel()
    assert [edge["id"] for edge in (await board.get(f"{API}/jobs/a")).json["spec"]["depends_on"]] == [
        "own",
        "signal:t1/s",
    ]
    assert (await board.get(f"{API}/jobs/child")).json["spec"]["parent"] is None
    assert (await sched.get("c")).cause == "dependency other was canceled"
    job = (await board.get(f"{API}/jobs/c")).json
    assert (job["cause"], job["spec"]["depends_on"]) == ("dependency was canceled", [])
    (dead,) = (await board.get(f"{API}/dead")).json["groups"]
    assert (dead["error_type"], dead["message"], dead["ids"]) == ("dependency_failed", "dependency was canceled", ["d"])
    assert (await board.get(f"{API}/jobs/d")).json["errors"][0]["message"] == "dependency was canceled"
    assert "other" not in (await board.get(f"{API}/jobs")).text
    assert "other" in (await WebClient(make_app(sched, auth=lambda _: Access())).get(f"{API}/jobs")).text


async def test_wait_for_a_signal_of_the_scope_names_it(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", ("t1",), depends_on=(Dependency("signal:t1/s"),))])
    await sched.submit([spec("b", ("t1", "x"), depends_on=(Dependency("signal:all"),))])
    for job_id, named in (("a", ["signal:t1/s"]), ("b", [])):
        (reason,) = (await board.get(f"{API}/jobs/{job_id}/why")).json["reasons"]
        assert (reason["kind"], reason["jobs"]) == ("signal", named)


async def test_flow_of_several_scopes_ends_with_its_last_job(sched: Scheduler, board: WebClient) -> None:
    await sched.submit([spec("a", ("t1",), flow="f"), spec("b", ("t2",), flow="f")])
    for target in ("/jobs?flow=f&limit=1", "/flows/f?limit=1"):
        page = (await board.get(API + target)).json
        assert ([job["id"] for job in page["jobs"]], page["cursor"]) == (["a"], None)
    await sched.submit([spec("c", ("t1",), flow="f")])
    assert (await board.get(f"{API}/jobs?flow=f&limit=1")).json["cursor"] is not None


async def test_longest_lines_of_all_are_refused_in_a_scope(board: WebClient) -> None:
    answer = await board.get(f"{API}/lines?longest=true")
    assert (answer.status, answer.json["error"]) == (403, "out-of-scope")
    assert (await board.get(f"{API}/lines")).status == 200


async def test_dead_jobs_are_grouped_by_common_fields(sched: Scheduler) -> None:
    board = WebClient(make_app(sched, auth=lambda _: Access()))
    await sched.submit([spec(f"{n}", ("t1",), delay_ms=None) for n in range(4)])
    for message in ("no row 17", "no row 18", "no file", None):
        (grant,) = (await sched.backend.call(op.Exchange("w", limit=1))).grants
        error = None if message is None else JobError(type="KeyError", message=message)
        outcome = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FAILED, error=error, final=True)
        await sched.backend.call(op.Exchange("w", settle=(outcome,)))
    found = (await board.get(f"{API}/dead")).json
    groups = [(group["message"], group["count"], group["ids"]) for group in found["groups"]]
    assert groups[0] == ("no row 0", 2, ["1", "0"])
    assert {group[:2] for group in groups[1:]} == {("no file", 1), (None, 1)}
    assert found["complete"] is True
    assert found["groups"][0]["first_ms"] <= found["groups"][0]["last_ms"]
    assert (await board.get(f"{API}/dead?state=FAILED")).status == 400


async def test_more_dead_jobs_than_are_read_are_not_complete(sched: Scheduler) -> None:
    board = WebClient(make_app(sched, auth=lambda _: Access()))
    await sched.submit([spec(f"{n}") for n in range(1001)])
    grants = [
        grant for limit in (1000, 1) for grant in (await sched.backend.call(op.Exchange("w", limit=limit))).grants
    ]
    outcomes = [
        Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FAILED, final=True) for grant in grants
    ]
    for some in (outcomes[:1000], outcomes[1000:]):
        await sched.backend.call(op.Exchange("w", settle=tuple(some)))
    found = (await board.get(f"{API}/dead")).json
    assert (found["complete"], found["groups"][0]["count"]) == (False, 1000)


@attrs.frozen
class Loose:
    given: Any


@attrs.frozen
class Around:
    inner: tuple[Loose, ...]
    count: int = 0


def test_answers_with_fields_of_any_class_are_searched() -> None:
    assert scope._has_hidden(Around)
    assert not scope._has_hidden(TreeNode)
    assert scope._has_hidden(questions.Listed)
    assert scope._has_hidden(op.PathReasons)
