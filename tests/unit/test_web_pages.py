"""Pages of the board: what they show, how many operations they take, and what they hide or refuse."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote, urlencode

import pytest

import queuehint.web
from queuehint import Claim, JobSpec, JobState, Priority, Signal
from queuehint.errors import BackendFullError, BackendUnavailableError
from queuehint.values.record import AttemptOutcome
from queuehint.values.report import Reason, ReasonKind
from queuehint.web import Access, make_app, questions
from queuehint.web.app import POLICY
from queuehint.web.board import Asker
from queuehint.web.pages import asking, orders, redriving
from queuehint.web.pages.views import form as form_views
from queuehint.web.pages.views import job as job_views
from queuehint.web.pages.views import why as why_views
from queuehint.web.pages.views import words
from tests.web.world import World, failed, finished, seed
from tests.web_client import Answer, WebClient

PAGES = [
    "/",
    "/places",
    "/places/doc1",
    "/places/doc1?order=line",
    "/places/doc1:section1",
    "/jobs",
    "/jobs?state=queued&path=doc1",
    "/jobs?state=FAILED&task=send_mail&order=oldest",
    "/dead",
    "/jobs/{dead}",
    "/jobs/{dead}?arguments=1",
    "/jobs/{running}",
    "/jobs/{waiting}/why",
    "/workers",
    "/schedules",
    "/limits",
    "/users",
    "/health",
    "/enqueue",
    "/enqueue?task=edit",
    "/enqueue?copy={dead}",
    "/confirm/cancel?path=doc1",
    "/confirm/redrive?id={dead}",
    "/confirm/pause?path=doc1",
]
STATIC = Path(queuehint.web.__file__).parent / "static"


class Board:
    """A seeded world with its board, and a log of the operations that the store is asked."""

    def __init__(self, world: World, access: Access | None = None, **options: Any) -> None:
        self.world = world
        self.access = access or Access(name="ann", write=True, arguments=True)
        app: Any = make_app(world.sched, auth=lambda _: self.access, **options)
        self.board = app.board
        self.client = WebClient(app)
        self.asked: list[str] = []
        backend: Any = world.sched.backend
        call = backend.call

        async def logged(operation: Any) -> Any:
            self.asked.append(type(operation).__name__)
            return await call(operation)

        backend.call = logged

    async def get(self, target: str, **headers: str) -> Answer:
        self.asked.clear()
        return await self.client.get(target, **headers)

    async def post(self, target: str, fields: Any = (), **headers: str) -> Answer:
        self.asked.clear()
        body = urlencode(fields).encode()
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return await self.client.ask("POST", target, body, kind | headers)

    async def ids(self) -> dict[str, str]:
        """Return the ids that addresses of pages name."""
        records = await self.world.sched.records.list(limit=200)
        return {
            "dead": next(r.id for r in records if r.spec.task == "publish" and r.state is JobState.FAILED),
            "running": next(r.id for r in records if r.state is JobState.STARTED and r.progress),
            "waiting": next(r.id for r in records if r.queue_keys == ("doc1:section1",) and r.state is JobState.QUEUED),
        }


async def board(access: Access | None = None, **options: Any) -> Board:
    return Board(await seed(World()), access, **options)


def check_html(text: str) -> None:
    """Check that a page is valid, and has nothing inline that its policy forbids."""
    html5lib = pytest.importorskip("html5lib")
    tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
    for element in tree.iter():
        if isinstance(element.tag, str):
            names = set(element.attrib)
            assert "style" not in names, element.attrib
            assert not any(isinstance(name, str) and name.startswith("on") for name in names), element.attrib
            assert element.tag != "style"
            assert element.tag != "script" or (element.attrib.get("src") and not element.text)
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)), sorted(name for name in ids if ids.count(name) > 1)


@pytest.mark.slow
async def test_every_page_is_valid_html_without_anything_inline() -> None:
    for one in (await board(), Board(World())):
        ids = await one.ids() if one.world._count else {"dead": "x", "running": "x", "waiting": "x"}
        for target in PAGES:
            answer = await one.get(target.format(**ids))
            assert answer.status in ({200} if one.world._count else {200, 404}), (target, answer.text[:500])
            assert answer.headers["content-type"].startswith("text/html"), target
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["cache-control"] == "no-store"
            check_html(answer.text)


OPERATIONS = {
    "/": "7 List List Get ListPauses ListLines CountJobs ListWorkers",
    "/places/doc1": "7 Tree ListLimits ListPauses List List Why Get",
    "/places?order=line": "8 Tree ListLines ListLimits ListPauses List List Why Get",
    "/jobs?path=doc1": "2 List CountRecords",
    "/dead": "2 List CountRecords",
    "/jobs/{dead}": "3 Get List List",
    "/jobs/{running}": "5 Get Why List List List",
    "/jobs/{waiting}/why": "3 Why List Get",
    "/workers": "2 ListWorkers List",
    "/schedules": "1 ListSchedules",
    "/limits": "2 ListLimits ListPauses",
    "/users": "3 ListWeights List List",
    "/health": "3 CountJobs CountEdges ListWorkers",
    "/enqueue": "0",
    "/enqueue?copy={dead}": "1 Get",
}
"""How many operations a page takes, and which."""


async def test_waiting_permit_is_said_to_take_no_place() -> None:
    one = Board(World())
    sched = one.world.sched
    await sched.limit(["pdf"], 1)

    may_ask = asyncio.Event()

    async def wait() -> None:
        await may_ask.wait()
        async with sched.permit(["pdf"]):
            pass

    waiting = asyncio.create_task(wait())  # begun outside of the permit that it waits for
    async with sched.permit(["pdf"]) as held:
        may_ask.set()
        found: Any = ()
        while not found:
            await asyncio.sleep(0)
            found = await sched.records.list(state="QUEUED")
        answer = (await one.client.get(f"/jobs/{quote(found[0].id)}/why")).text
        assert "A permit, which takes no place; as many jobs run as the limit of pdf allows." in answer
        assert "Its way to the place" not in answer
        assert found[0].id != held.id
    await waiting


async def test_page_marks_permits_and_shared_places() -> None:
    one = Board(World())
    async with one.world.sched.permit(["pdf"]) as held, one.world.sched.exclusive(["doc"], mode="shared") as shared:
        for job_id, word in ((held.id, "permit"), (shared.id, "shared")):
            assert f'<small class="mark">{word}</small>' in (await one.get(f"/jobs/{job_id}")).text


async def test_a_page_takes_a_fixed_number_of_operations() -> None:
    one = await board()
    ids = await one.ids()
    for target, operations in OPERATIONS.items():
        assert (await one.get(target.format(**ids))).status == 200
        assert " ".join([str(len(one.asked)), *one.asked]) == operations, target
    for number in range(300):
        await one.world.enqueue(one.world.edit, "doc1", f"section{number}", "text")
    for target, operations in OPERATIONS.items():
        await one.get(target.format(**ids))
        assert " ".join([str(len(one.asked)), *one.asked]) == operations, target


# --- what pages show -------------------------------------------------------------------------------------------------


async def test_now_shows_numbers_causes_with_orders_and_pools_without_worker() -> None:
    text = (await (await board()).get("/")).text
    assert re.findall(r'class="label">([\w ]+)</span><span class="count">(\d+)', text) == [
        ("Running", "6"),
        ("Ready", "9"),
        ("In line", "25"),
        ("Not due", "4"),
        ("Stuck", "3"),
        ("Dead", "10"),
    ]
    assert "A dead job holds the place" in text
    assert 'action="/do/redrive"' in text
    assert "approved-doc6" in text
    assert "no worker" in text
    assert "queuehint worker MODULE:SCHEDULER --pools gpu" in text


async def test_empty_store_shows_that_nothing_needs_attention() -> None:
    text = (await Board(World()).get("/")).text
    assert "No action is needed" in text
    assert "No job waits in a line." in text


async def test_places_are_a_treegrid_with_counts_and_heat() -> None:
    one = await board()
    text = (await one.get("/places")).text
    assert 'role="treegrid"' in text
    row = text.partition('id="place-doc1"')[2].partition("</tr>")[0]
    assert 'aria-level="1"' in row
    assert "15 waiting" in row
    assert "heat-8" in row, "the longest line is the hottest"
    assert "heat-0" in text.partition('id="place-doc3"')[2].partition("</tr>")[0]
    text = (await one.get("/places?order=line")).text
    assert re.findall(r'<tr id="place-([^"]+)"', text) == ["doc1", "doc2", "doc5%3Apages"]
    text = (await one.get("/places/doc2")).text
    assert "publish" in text.partition(">Holders<")[2].partition(">Queue, in order<")[0]


async def test_place_of_signal_waits_alone_is_shown_with_their_number() -> None:
    one = Board(World())
    await one.world.enqueue(one.world.snapshot, "doc1", queue_hint=["docs", "a"], after=[Signal("go")])
    text = (await one.get("/places")).text
    for place in ("docs", "docs%3Aa"):
        assert "1 for a signal" in text.partition(f'id="place-{place}"')[2].partition("</tr>")[0]
    text = (await one.get("/places/docs")).text
    assert "1 waiting for a signal</a>, without a place" in text.partition(">Queue, in order<")[2]
    assert "for a signal" not in (await one.get("/places/other")).text


async def test_a_place_of_dots_or_slashes_has_an_address() -> None:
    one = Board(World())
    for name in ("..", ".", "-", "a/b", "a?b#c", "%2e"):
        await one.world.submit(JobSpec(id=one.world.id("a"), task="t", claims=(queuehint.Claim((name,)),)))
    text = (await one.get("/places")).text
    for url in re.findall(r'data-url="([^"]+)"', text):
        answer = await one.get(url.replace("&amp;", "&"))
        assert answer.status == 200
        assert "No job is queued here." not in answer.text, url


async def test_why_ends_in_the_root_cause_with_its_way_out() -> None:
    one = await board()
    records = await one.world.sched.records.list(path=["doc2"], task="snapshot", limit=1)
    text = (await one.get(f"/jobs/{records[0].id}/why")).text
    assert "publish failed for good of ConnectError and holds its place." in text
    assert "Redrive the dead job" in text
    assert "queuehint dead retry publish-" in text
    ids = await one.ids()
    text = (await one.get(f"/jobs/{ids['waiting']}/why")).text
    assert text.count('class="step"') == 3
    assert "runs on worker-1" in text
    assert "Root cause: ends by itself" in text


async def test_job_shows_attempts_with_traceback_facts_and_orders() -> None:
    one = await board()
    ids = await one.ids()
    text = (await one.get(f"/jobs/{ids['dead']}")).text
    assert "ConnectError" in text
    assert "raise ConnectError" in text
    assert "Redrive with what it canceled" in text
    assert 'href="/jobs?user=ben"' in text
    text = (await one.get(f"/jobs/{ids['running']}")).text
    assert "640 of 1\u202f000" in text
    assert "checked 640 paragraphs" in text


async def test_jobs_have_counts_by_state_chips_and_pages() -> None:
    one = await board()
    text = (await one.get("/jobs?path=doc1&state=queued")).text
    assert '<a href="/jobs?state=QUEUED&amp;path=doc1" aria-current="true"' in text
    assert re.search(r"queued <span class=\"n\">15<", text)
    assert 'aria-label="Remove place doc1"' in text
    text = (await one.get("/jobs")).text
    following = re.search(r'href="([^"]+)" rel="next"', text)
    assert following is not None
    second = (await one.get(following[1].replace("&amp;", "&"))).text
    shown = [set(re.findall(r'<tr id="job-([^"]+)"', each)) for each in (text, second)]
    assert len(shown[0]) == 50
    assert shown[0].isdisjoint(shown[1])
    assert len(shown[0] | shown[1]) == 66


async def test_jobs_below_a_place_come_in_order_of_time() -> None:
    one = await board()
    found = {}
    for order in ("", "&order=oldest"):
        text = (await one.get(f"/jobs?path=doc1{order}")).text
        found[order] = re.findall(r'<tr id="job-([\w-]+)"', text)
    records = await one.world.sched.records.list(path=["doc1"], order="time", limit=50)
    assert found["&order=oldest"] == [record.id for record in records]
    assert found[""] == found["&order=oldest"][::-1]
    text = (await one.get("/jobs?path=doc1")).text
    assert "Oldest first</a>" in text
    one.access = Access(scope=["doc1"])
    assert "First place first</a>" in (await one.get("/jobs")).text


async def test_counts_are_exact_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Board(World())
    for some in range(0, 1500, 500):
        await one.world.submit(
            *[JobSpec(id=f"a{number}", task="edit", claims=(Claim(("doc1",)),)) for number in range(some, some + 500)]
        )
    monkeypatch.setattr(questions, "COUNTED_MAX", 1)
    text = (await one.get("/jobs?path=doc1")).text
    assert "1\u202f024+ match" in text
    assert 'href="/jobs?path=doc1&amp;exact=1">count all' in text
    text = (await one.get("/jobs?path=doc1&exact=1")).text
    assert "1\u202f500 match" in text
    assert "count all" not in text
    assert 'data-hx-sse-connect="/live"' not in text, "it would count with each event"
    asked = "/confirm/cancel?path=doc1&state=queued"
    text = (await one.get(asked)).text
    assert "Cancel at least 1\u202f024 unfinished jobs?" in text
    assert "One order reaches 1\u202f000 of them" in text
    assert ">Cancel 1\u202f000 jobs<" in text
    monkeypatch.setattr(questions, "COUNTED_MAX", 10)
    assert "Cancel 1\u202f500 unfinished jobs?" in (await one.get(asked)).text
    text = (await one.post("/do/cancel", [("path", "doc1"), ("state", "queued")])).text
    assert "1\u202f000 jobs canceled." in text
    assert "500 jobs left: give the order again." in text
    text = (await one.get("/confirm/cancel?path=doc1")).text
    assert ">Cancel 500 jobs<" in text
    assert "One order reaches" not in text


async def test_counting_on_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Board(World())
    for some in range(0, 1500, 500):
        await one.world.submit(
            *[JobSpec(id=f"a{number}", task="edit", claims=(Claim(("doc1",)),)) for number in range(some, some + 500)]
        )
    monkeypatch.setattr(questions, "COUNTED_MAX", 1)
    monkeypatch.setattr(asking, "COUNTING_S", 0)
    text = (await one.get("/jobs?path=doc1&exact=1")).text
    assert "1\u202f024+ match" in text
    assert "count all" not in text


async def test_sweep_of_a_place_names_all_its_jobs() -> None:
    one = Board(World())
    for some in range(0, 1500, 500):
        await one.world.submit(
            *[JobSpec(id=f"a{number}", task="edit", claims=(Claim(("doc1",)),)) for number in range(some, some + 500)]
        )
    text = (await one.get("/confirm/cancel?path=doc1")).text
    assert ">Cancel 1\u202f500 jobs<" in text
    assert "One order reaches" not in text


async def test_filter_form_shows_the_times_of_its_address() -> None:
    text = (await (await board()).get("/jobs?since=2026-01-02T03:04:05-01:00")).text
    assert 'name="since" step="1" value="2026-01-02T04:04:05"' in text
    assert (await (await board()).get("/jobs?until=0001-01-01T00:00%2B10:00")).status == 400


async def test_a_condition_that_there_is_not_is_named() -> None:
    one = await board()
    answer = await one.get("/jobs?colour=red")
    assert answer.status == 400
    assert "jobs have no condition" in answer.text
    assert (await one.get("/jobs?state=lost")).status == 400
    assert (await one.get("/jobs?since=yesterday")).status == 400
    check_html(answer.text)


async def test_dead_jobs_are_grouped_with_numbers_masked() -> None:
    text = (await (await board()).get("/dead")).text
    assert "mail#.example.com:# refused the connection after # ms" in text
    assert len(re.findall(r'<section class="panel flush" id="group-', text)) == 3
    group = re.search(r'href="(/dead\?group=\w+)">1 more of this group', text)
    assert group is not None


async def test_missing_job_is_a_page_with_status_404() -> None:
    answer = await (await board()).get("/jobs/gone")
    assert answer.status == 404
    assert "Not found" in answer.text
    check_html(answer.text)


async def test_several_namespaces_have_a_page_that_lists_them() -> None:
    worlds = [World(namespace="a"), World(namespace="b.c")]
    access = Access(write=True)
    client = WebClient(make_app(*[world.sched for world in worlds], auth=lambda _: access))
    text = (await client.get("/")).text
    assert "/enqueue" not in text, "a job is enqueued in one of them"
    assert re.findall(r'href="(/[^"]+/)"><bdi>([^<]+)', text) == [("/a/", "a"), ("/b.c/", "b.c")]
    text = (await client.get("/b.c/")).text
    assert '<a href="/"><bdi>b.c</bdi></a>' in text
    assert 'href="/b.c/jobs"' in text
    assert 'href="/static/board.css?v=' in text
    check_html(text)
    access = Access(read=False)
    assert (await client.get("/")).status == 403


async def test_links_obey_the_prefix_of_a_mount() -> None:
    one = await board()
    client = WebClient(one.client.app, root="/ops/board")
    for target in ("/", "/places", "/jobs", "/dead", "/limits"):
        text = (await client.get(target)).text
        found = re.findall(r'(?:href|action|src|data-hx-get|data-hx-post|data-hx-sse-connect)="(/[^"]*)"', text)
        assert found
        assert [url for url in found if not url.startswith("/ops/board/")] == [], target


async def test_a_fragment_is_the_content_alone() -> None:
    text = (await (await board()).get("/", hx_request="true")).text
    assert text.lstrip().startswith('<main id="page"')
    assert "<html" not in text
    assert 'id="away"' in text


# --- what is made harmless, hidden or refused ------------------------------------------------------------------------

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egpj.exe\x00"


async def test_hostile_texts_are_escaped_with_control_characters_as_codes() -> None:
    one = Board(World())
    name = "<script>alert(1)</script>\u200f"
    path = tuple(["<b>" + "x" * 250 for _ in range(15)])
    spec = JobSpec(
        id="<script>alert(1)</script>",
        task=name,
        claims=(queuehint.Claim(path),),
        user=name,
        service=name,
        pool="default",
        tags=('"><img src=x onerror=alert(1)>',),
        arguments=json.dumps({"a": HOSTILE}).encode(),
    )
    await one.world.submit(spec)
    (grant,) = await one.world.claim(name, 1)
    await one.world.say(grant, 1, 2, HOSTILE, HOSTILE)
    await one.world.settle(name, failed(grant, HOSTILE, HOSTILE, HOSTILE))
    await one.world.announce("worker", 0, version_name=name)
    job = f"/jobs/{quote(spec.id, safe='')}"
    for target in ("/", "/places", "/jobs", "/dead", f"{job}?arguments=1", "/workers", "/users"):
        answer = await one.get(target)
        assert answer.status == 200
        assert "<script>alert" not in answer.text, target
        assert "<img" not in answer.text
        assert not OBEYED.search(answer.text), target
        check_html(answer.text)
    text = (await one.get(job)).text
    assert r"&lt;script&gt;alert(1)&lt;/script&gt;\x1b[31m\u202egpj.exe\x00" in text
    assert "<bdi>" in text


async def test_arguments_are_hidden_until_asked_for_and_allowed() -> None:
    one = await board()
    ids = await one.ids()
    assert "&#34;document&#34;" not in (await one.get(f"/jobs/{ids['dead']}")).text
    assert "&#34;document&#34;" in (await one.get(f"/jobs/{ids['dead']}?arguments=1")).text
    one.access = Access(write=True)
    text = (await one.get(f"/jobs/{ids['dead']}?arguments=1")).text
    assert "&#34;document&#34;" not in text
    assert "you may not see arguments" in text
    assert 'value="doc2"' not in (await one.get(f"/enqueue?copy={ids['dead']}")).text


@pytest.mark.parametrize("how", ["access", "board"])
async def test_read_only_hides_and_refuses_orders(how: str) -> None:
    one = await board(Access(arguments=True, write=how == "board"), read_only=how == "board")
    ids = await one.ids()
    for target in PAGES:
        if target.startswith(("/confirm", "/enqueue")):
            assert (await one.get(target.format(**ids))).status == 403, target
            continue
        text = (await one.get(target.format(**ids))).text
        assert 'method="post"' not in text, target
        assert "/confirm/" not in text.replace('action="/confirm/cancel"', ""), target
    for verb in ("cancel", "redrive", "pause", "limit"):
        answer = await one.post(f"/do/{verb}", [("path", "doc1")])
        assert answer.status == 403
        assert one.asked == []
    assert (await one.post("/enqueue", [("task", "edit")])).status == 403


async def test_an_order_of_another_site_is_refused() -> None:
    one = await board()
    assert (await one.post("/do/cancel", [("path", "doc1")], sec_fetch_site="cross-site")).status == 403
    assert one.asked == []


async def test_a_scope_sees_and_orders_nothing_of_another() -> None:
    one = await board(Access(write=True, arguments=True, scope=["doc1"]))
    ids = await one.ids()
    for target in (
        "/",
        "/places",
        "/jobs",
        "/dead",
        "/limits",
        f"/jobs/{ids['waiting']}/why",
        f"/jobs/{ids['running']}",
    ):
        answer = await one.get(target)
        assert answer.status == 200, target
        assert not re.search("doc[2-9]", answer.text), target
        check_html(answer.text)
    for target in ("/workers", "/users", "/health", "/schedules", "/places/doc2"):
        assert (await one.get(target)).status == 403
    assert (await one.get(f"/jobs/{ids['dead']}")).status == 404
    assert "0 jobs redriven" not in (await one.post("/do/redrive", [("id", ids["dead"])])).text
    assert (await one.world.sched.get(ids["dead"])).state is JobState.FAILED
    assert (await one.post("/do/pause", [("path", "doc2")])).status == 403


async def test_scope_is_offered_only_orders_it_may_give() -> None:
    world = World()
    sched = world.sched
    edit = world.edit.using(queue_hint=["tenants", "t1"])
    await edit.using(id="held").enqueue("a", "b", "c")
    await sched.pause(["tenants"])
    await edit.using(id="told", queue_hint=["tenants", "t1", "a"], after=[Signal("go")]).enqueue("a", "b", "c")
    own = edit.using(id="own", queue_hint=["tenants", "t1", "b"], after=[Signal("tenants:t1/go")])
    await own.enqueue("a", "b", "c")
    await sched.pause(["tenants", "t1"])
    await sched.limit(["tenants", "t1"], 3)
    one = Board(world, Access(write=True, scope=["tenants", "t1"]))
    texts = {target: (await one.get(target)).text for target in ("/", "/limits", "/places", "/jobs/held/why")}
    for target, text in texts.items():
        for found in re.finditer(r'<form method="post" action="(/do/[\w-]+)".*?</form>', text, re.DOTALL):
            fields = re.findall(r'name="(\w+)" value="([^"]*)"', found[0])
            answer = await Board(world, one.access).post(found[1], fields)
            assert answer.status == 200, (target, found[0])
    assert 'value="tenants:t1/go"' in texts["/"]
    assert 'value="go"' not in texts["/"]
    assert "Set a limit" not in texts["/limits"]
    assert "Lift" not in texts["/limits"]
    assert "at most 3 run at once" in texts["/limits"]
    # The pauses of this scope were resumed above; the one that is left is not the scope's.
    text = (await one.get("/jobs/held/why")).text
    assert "tenants is paused" in text
    assert 'action="/do/resume"' not in text


async def made(*, elsewhere: bool) -> World:
    """Return a world with jobs in one tenant, and perhaps in another one and at no place, in between."""
    world = World()
    sched = world.sched

    async def other(number: int) -> None:
        if elsewhere:
            for name, hint in (("place", ["t2", str(number)]), ("none", None)):
                edit = world.edit.using(id=f"t2-{number}-{name}", queue_hint=hint, user="eve")
                await edit.enqueue("a", "b", "secret")
            await sched.limit(["t2"], number + 1)
            await sched.pause(["t2", str(number)])

    await other(0)
    for number in range(6):
        edit = world.edit.using(id=f"a{number}", queue_hint=["t1", f"doc{number % 2}"], user="ann")
        await edit.enqueue("a", "b", "c")
        await other(number + 1)
    await world.publish.using(id="p", queue_hint=["t1", "doc2"], user="ann").enqueue("doc2")
    grants = await world.claim("w1", 2, user="ann")
    await world.settle("w1", failed(grants[0], "OSError", "gone"))
    await sched.limit(["t1"], 3)
    await other(9)
    if elsewhere:
        for grant in await world.claim("w2", 3, user="eve"):
            await world.settle("w2", failed(grant, "SecretError", "secret"))
    world.clock.advance(seconds=5)
    return world


async def test_scoped_pages_ignore_changes_elsewhere() -> None:
    access = Access(write=True, arguments=True, scope=["t1"])
    alone, both = [Board(await made(elsewhere=each), access) for each in (False, True)]
    targets = ["/", "/places", "/places/t1:doc0", "/jobs", "/jobs?state=queued&order=oldest", "/dead", "/limits"]
    targets += [f"/jobs/{name}{rest}" for name in ("a0", "a2", "p") for rest in ("", "/why", "?arguments=1")]
    targets += ["/confirm/cancel?path=t1", "/confirm/redrive?state=FAILED", "/jobs/t2-1-none", "/places/t2", "/workers"]
    for target in targets:
        for headers in ({}, {"hx_request": "true"}):
            mine, theirs = [await each.get(target, **headers) for each in (alone, both)]
            assert (mine.status, mine.text) == (theirs.status, theirs.text), target
            assert "secret" not in mine.text.lower()
    for verb, fields in (("cancel", [("path", "t1")]), ("redrive", [("id", "t2-1-none")]), ("pause", [("path", "t2")])):
        mine, theirs = [await each.post(f"/do/{verb}", fields) for each in (alone, both)]
        assert (mine.status, mine.text) == (theirs.status, theirs.text), verb


# --- the store is away -----------------------------------------------------------------------------------------------


async def board_without_a_store() -> Board:
    one = await board()

    async def away(operation: Any) -> Any:
        raise BackendUnavailableError("connection refused")

    backend: Any = one.world.sched.backend
    backend.call = away
    return one


async def test_unavailable_store_shows_a_page_with_advice() -> None:
    one = await board_without_a_store()
    answer = await one.get("/")
    assert answer.status == 503
    assert "The store does not answer" in answer.text
    assert "connection refused" in answer.text
    assert "queuehint doctor URL" in answer.text
    check_html(answer.text)
    part = await one.get("/", hx_request="true")
    assert part.status == 503
    assert part.headers["hx-retarget"] == "#away"
    assert "This page shows what was there before" in part.text


async def test_order_without_a_store_reports_it_and_keeps_the_page() -> None:
    one = await board_without_a_store()
    asked: list[tuple[Answer, bool]] = [
        (await one.post("/do/resume", [("path", "doc4")]), False),
        (await one.post("/do/resume", [("path", "doc4")], hx_request="true", hx_target="div#notice"), True),
        (await one.get("/confirm/pause?path=doc1", hx_request="true", hx_target="div#notice"), True),
    ]
    for answer, is_part in asked:
        assert answer.status == 503
        assert "connection refused. Nothing more was done." in answer.text
        assert "/do/resume" not in answer.text, "nobody asks for it again by GET"
        assert ("<html" in answer.text) is not is_part
        assert answer.headers.get("hx-retarget") is None
    assert "The store does not answer" in asked[0][0].text


async def test_store_error_is_not_reported_as_store_away() -> None:
    one = await board()

    async def full(operation: Any) -> Any:
        raise BackendFullError("out of memory")

    backend: Any = one.world.sched.backend
    backend.call = full
    text = (await one.get("/")).text
    assert "The store reports an error" in text
    assert "does not answer" not in text


# --- orders ----------------------------------------------------------------------------------------------------------


async def test_cancel_of_selected_rows_asks_then_reports_the_count() -> None:
    one = await board()
    records = await one.world.sched.records.list(path=["doc1"], state="QUEUED", limit=3)
    fields = [("id", record.id) for record in records] + [("back", "/jobs?path=doc1")]
    text = (await one.get(f"/confirm/cancel?{urlencode(fields)}")).text
    assert "Cancel 3 unfinished jobs?" in text
    assert text.count('<input type="hidden" name="id"') == 3
    answer = await one.post("/do/cancel", fields)
    assert "3 jobs canceled." in answer.text
    assert 'href="/jobs?path=doc1"' in answer.text
    for record in records:
        now = await one.world.sched.get(record.id)
        assert now.state is JobState.CANCELED
        assert now.cause == "canceled by ann on the board"
        assert now.logs == ("canceled by ann on the board",)
    assert "No unfinished job is among them." in (await one.get(f"/confirm/cancel?{urlencode(fields)}")).text
    assert "0 jobs canceled." in (await one.post("/do/cancel", fields)).text


async def test_cancel_by_filter_cancels_exactly_the_matching_jobs() -> None:
    one = await board()
    text = (await one.get("/confirm/cancel?user=cy&state=QUEUED")).text
    count = (await one.world.sched.records.count(user="cy", state="QUEUED")).total
    assert f"Cancel {count} unfinished jobs?" in text
    assert f"{count} jobs canceled." in (await one.post("/do/cancel", [("user", "cy"), ("state", "QUEUED")])).text
    counts = await one.world.sched.records.count(user="cy")
    assert (counts.states[JobState.QUEUED], counts.states[JobState.CANCELED]) == (0, count)
    assert counts.states[JobState.STARTED] == 2


async def test_cancel_of_nothing_that_is_said_is_refused() -> None:
    one = await board()
    assert (await one.post("/do/cancel")).status == 400
    assert (await one.get("/confirm/cancel")).status == 400
    assert (await one.get("/confirm/nothing")).status == 404
    assert (await one.post("/do/nothing")).status == 404


async def test_cancel_below_a_place_is_one_sweep() -> None:
    one = await board()
    text = (await one.post("/do/cancel", [("path", "doc1")])).text
    assert "19 jobs at or below doc1 canceled" in text
    assert one.asked[0].startswith("CancelP")


async def test_pause_is_undone_by_its_own_answer() -> None:
    one = await board()
    assert "It holds back 19 unfinished jobs" in (await one.get("/confirm/pause?path=doc1")).text
    text = (await one.post("/do/pause", [("path", "doc1"), ("for_min", "5")])).text
    assert "doc1 is paused for 5 min." in text
    assert 'action="/do/resume"' in text
    assert ">paused" in (await one.get("/places/doc1")).text
    assert "doc1 goes on." in (await one.post("/do/resume", [("path", "doc1")])).text
    assert "was not paused" in (await one.post("/do/resume", [("path", "doc1")])).text


async def test_close_and_reopen_a_place() -> None:
    one = await board()
    assert "doc1 is closed" in (await one.post("/do/close", [("path", "doc1")])).text
    assert (await one.world.sched.tree(["doc1"])).closed
    assert "doc1 takes new jobs." in (await one.post("/do/reopen", [("path", "doc1")])).text


async def test_redrive_and_discard_of_one_job() -> None:
    one = await board()
    ids = await one.ids()
    assert "1 job redriven." in (await one.post("/do/redrive", [("id", ids["dead"])])).text
    assert (await one.world.sched.get(ids["dead"])).state is JobState.QUEUED
    assert "No job was redriven" in (await one.post("/do/redrive", [("id", ids["dead"])])).text
    records = await one.world.sched.dead.list(limit=1)
    assert "1 job discarded." in (await one.post("/do/discard", [("id", records[0].id)])).text


async def test_guarded_redrive_follows_its_rate_and_stops_on_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TURN_S", "LOOK_S"):
        monkeypatch.setattr(redriving, name, 0.001)
    one = Board(World())
    for number in range(40):
        await one.world.enqueue(one.world.send_mail, str(number), "a")
    for grant in await one.world.claim("w", 40, ["mail"]):
        await one.world.settle("w", failed(grant, "OSError", "away"))
    group = re.search(r'href="/dead\?group=(\w+)"', (await one.get("/dead")).text)
    assert group is not None
    text = (await one.get(f"/confirm/redrive?group={group[1]}")).text
    assert "Redrive 40 dead jobs?" in text
    assert 'name="rate" value="50"' in text
    fields = [("group", group[1]), ("rate", "200")]
    assert "Redriving 40 jobs, 200 a second." in (await one.post("/do/redrive", fields)).text
    assert "Another redrive is under way" in (await one.post("/do/redrive", fields)).text
    for _ in range(1000):
        for grant in await one.world.claim("w", 1, ["mail"]):
            await one.world.settle("w", failed(grant, "OSError", "away"))
        await asyncio.sleep(0.001)
        said = (await one.get("/dead")).text
        if "It stopped by itself: more than 10 have failed again." in said:
            break
    else:
        pytest.fail("it has not stopped")
    counts = await one.world.sched.records.count(task="send_mail")
    assert counts.states[JobState.FAILED] >= 11
    assert "No redrive is under way." in (await one.post("/do/stop-redrive")).text


async def test_guarded_redrive_is_stopped_by_hand() -> None:
    one = await board()
    fields = [("task", "send_mail"), ("rate", "1")]
    text = (await one.post("/do/redrive", fields)).text
    assert "Redriving 9 jobs, 1 a second." in text
    assert 'action="/do/stop-redrive"' in text
    assert "The redrive was stopped." in (await one.post("/do/stop-redrive")).text
    assert "It was stopped." in (await one.get("/dead")).text


async def test_guarded_redrive_keeps_a_rate_below_one_job_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await board()
    dead = [record.id for record in await one.world.sched.dead.list(task="send_mail", limit=3)]
    turns = 0

    async def passes(delay_s: float) -> None:
        nonlocal turns
        if delay_s == redriving.TURN_S:
            turns += 1
            if turns == 2:
                await one.world.sched.dead.redrive([dead[1]])

    monkeypatch.setattr(redriving, "AFTER_S", 0)
    asker = Asker(board=one.board, namespace="default", access=one.access)
    assert redriving.start(asker, dead, rate=1, downstream=False)
    found = redriving.current(asker)
    assert found is not None
    assert found.task is not None
    monkeypatch.setattr(asyncio, "sleep", passes)
    await found.task
    assert turns == 11, "one at once, and one each five turns"
    assert found.text == "2 of 3 jobs redriven; 1 not dead any more. It has ended."


async def test_guarded_redrive_is_stopped_on_the_page_of_dead_jobs() -> None:
    one = await board()
    await one.post("/do/redrive", [("task", "send_mail"), ("rate", "1")])
    assert 'action="/do/stop-redrive"' in (await one.get("/dead")).text
    await one.post("/do/stop-redrive")
    assert 'action="/do/stop-redrive"' not in (await one.get("/dead")).text


async def test_dead_group_without_jobs_has_an_empty_page() -> None:
    assert "No dead job of this group is left." in (await (await board()).get("/dead?group=0123456789ab")).text


async def test_limits_and_weights_are_set_and_lifted() -> None:
    one = await board()
    fields = [("kind", "path"), ("name", "doc8"), ("most", "3"), ("rate_count", "10"), ("rate_s", "60")]
    assert "The limit of doc8 is set." in (await one.post("/do/limit", fields)).text
    assert "3 run at once; 10 starts in 1 min" in (await one.get("/limits")).text
    assert "doc8 is lifted" in (await one.post("/do/unlimit", [("path", "doc8")])).text
    assert "There was no such limit." in (await one.post("/do/unlimit", [("path", "doc8")])).text
    assert (await one.post("/do/limit", [("kind", "path"), ("name", "doc8")])).status == 400
    assert (await one.post("/do/limit", [("kind", "road"), ("name", "doc8"), ("most", "1")])).status == 400
    assert (await one.post("/do/limit", [("kind", "task"), ("name", "a"), ("most", "many")])).status == 400
    assert "ann: up to 5 starts a turn." in (await one.post("/do/weight", [("user", "ann"), ("weight", "5")])).text
    assert (await one.world.sched.weights())["ann"] == 5


async def test_schedules_are_paused_resumed_and_run() -> None:
    one = await board()
    assert "heartbeat is paused." in (await one.post("/do/pause-schedule", [("name", "heartbeat")])).text
    assert "heartbeat goes on." in (await one.post("/do/resume-schedule", [("name", "heartbeat")])).text
    assert "heartbeat has made job" in (await one.post("/do/run-schedule", [("name", "heartbeat")])).text
    assert (await one.post("/do/run-schedule", [("name", "gone")])).status == 404


async def test_a_signal_is_given_and_a_job_made_due() -> None:
    one = await board()
    assert "Signal approved-doc6 is given." in (await one.post("/do/signal", [("name", "approved-doc6")])).text
    (record,) = await one.world.sched.records.list(path=["doc6"])
    assert record.state is JobState.QUEUED
    (late, *_) = await one.world.sched.records.list(state="SCHEDULED")
    assert "1 job due now." in (await one.post("/do/run-now", [("id", late.id)])).text
    assert "The job waits for no time any more." in (await one.post("/do/run-now", [("id", late.id)])).text


async def test_back_of_a_form_leads_nowhere_else() -> None:
    one = await board()
    others = ("https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)")
    for back in (*others, ""):
        text = (await one.post("/do/resume", [("path", "doc4"), ("back", back)])).text
        assert 'class="btn small" href="/">Back' in text, back


async def test_a_form_that_is_none_is_refused() -> None:
    one = await board()
    answer = await one.client.ask("POST", "/do/cancel", b"{}", {"content-type": "application/json"})
    assert answer.status == 415
    answer = await one.client.ask(
        "POST", "/do/cancel", b"a=1&" * 5000, {"content-type": "application/x-www-form-urlencoded"}
    )
    assert answer.status == 400


async def test_answer_to_a_script_is_a_page_fragment() -> None:
    one = await board()
    answer = await one.post("/do/resume", [("path", "doc4")], hx_request="true", hx_target="div#notice")
    assert answer.text.lstrip().startswith('<div class="notice good">')
    assert answer.headers["hx-trigger"] == "done"
    answer = await one.get("/confirm/cancel?path=doc1", hx_request="true")
    assert "<html" not in answer.text
    assert "Cancel 19 jobs" in answer.text


# --- the form that enqueues ------------------------------------------------------------------------------------------


async def test_form_has_a_field_for_each_argument_by_its_type() -> None:
    text = (await (await board()).get("/enqueue?task=edit")).text
    assert 'name="arg.document" value=""' in text
    assert '<option value="insert" selected>' in text
    assert '<input type="checkbox" id="a-5" name="arg.notify">' in text
    text = (await (await board()).get("/enqueue?task=render")).text
    assert re.search(r'<input type="number" id="a-2" name="arg.page" value="" required>', text)
    assert re.search(r'name="arg.scale" value="1.0" step="any"', text)
    assert "<textarea" in (await (await board()).get("/enqueue?task=send_mail")).text


async def test_form_sent_twice_enqueues_one_job() -> None:
    one = await board()
    once = re.search(r'name="once" value="([^"]+)"', (await one.get("/enqueue?task=edit")).text)
    assert once is not None
    fields = [
        ("task", "edit"),
        ("once", once[1]),
        ("arg.document", "doc9"),
        ("arg.section", "s"),
        ("arg.text", "hello"),
        ("arg.mode", "replace"),
        ("arg.notify", "on"),
        ("user", "ann"),
        ("priority", "5"),
        ("delay", "60"),
        ("tags", "b, a"),
    ]
    assert f"edit is enqueued as {once[1]}." in (await one.post("/enqueue", fields)).text
    record = await one.world.sched.get(once[1])
    arguments = one.world.sched.records.arguments_of(record)
    assert arguments == {"document": "doc9", "section": "s", "text": "hello", "mode": "replace", "notify": True}
    assert record.queue_keys == ("doc9:s",)
    assert (record.spec.user, record.spec.priority, record.spec.tags) == ("ann", 5, ("a", "b"))
    assert record.state is JobState.SCHEDULED
    assert f"{once[1]} was enqueued before." in (await one.post("/enqueue", fields)).text


async def test_form_with_a_wrong_value_returns_with_its_input() -> None:
    one = await board()
    fields = [("task", "render"), ("once", "a"), ("arg.document", "doc9"), ("arg.page", "two")]
    answer = await one.post("/enqueue", fields)
    assert answer.status == 400
    assert "page must be a whole number, got" in answer.text
    assert 'name="arg.document" value="doc9"' in answer.text
    check_html(answer.text)
    for more in ([("priority", "7")], [("delay", "soon")], [("delay", "nan")], [("delay", "1e999")]):
        assert (await one.post("/enqueue", [*fields[:3], ("arg.page", "2"), *more])).status == 400
    assert (await one.get("/enqueue?task=nothing")).status == 400


async def test_copy_of_a_job_begins_with_its_arguments_and_options() -> None:
    one = await board()
    ids = await one.ids()
    text = (await one.get(f"/enqueue?copy={ids['dead']}")).text
    assert 'name="arg.document" value="doc2"' in text
    assert 'name="user" value="ben"' in text
    fields = [("copy", ids["dead"]), ("once", "copy-1"), ("arg.document", "doc9"), ("arg.channel", "print")]
    assert "publish is enqueued as copy-1." in (await one.post("/enqueue", fields)).text
    assert (await one.world.sched.get("copy-1")).queue_keys == ("doc9",)


@pytest.mark.parametrize(
    "hint, default, value, kind",
    [
        (str, ..., "plain", "text"),
        (str, ..., "", "text"),
        (str, ..., "two\nlines", "json"),
        (str, ..., "\u202eturned", "json"),
        (str, ..., 5, "json"),
        (str | None, None, None, "text"),
        (str | None, "a", None, "json"),
        (str, "a", "", "json"),
        (str, "a", "b", "text"),
        (int, ..., 5, "int"),
        (int, ..., True, "json"),
        (int, ..., 2**70, "int"),
        (float, ..., 0.5, "number"),
        (float, ..., 5, "number"),
        (float, ..., "x", "json"),
        (bool, ..., True, "bool"),
        (bool, True, False, "bool"),
        (bool | None, None, None, "json"),
        (bool, ..., 1, "json"),
        (Literal["a", "b"], ..., "b", "choice"),
        (Literal["a", "b"], ..., "c", "json"),
        (Literal[1, 2, "3"], ..., 2, "choice"),
        (Literal[1, 2, "3"], ..., "3", "choice"),
        (Literal[1, 2], ..., True, "json"),
        (Literal["a"] | None, None, None, "choice"),
        (dict[str, int], ..., {"a": 1}, "json"),
        (list[int], None, None, "json"),
        (Any, ..., None, "json"),
    ],
)
def test_copy_field_returns_its_value_with_its_type(hint: Any, default: Any, value: Any, kind: str) -> None:
    of_none = inspect.Parameter.empty
    default = of_none if default is ... else default
    field = form_views.field_of("name", hint, default, value)
    assert field["kind"] == kind
    sent = ("on" if field["value"] else None) if kind == "bool" else field["value"]
    found = form_views.read_argument(field, sent)
    found = default if found is of_none else found
    assert (type(found), found) == (type(value), value) or (kind == "number" and found == value)


async def test_copy_drops_emptied_options_and_may_be_critical() -> None:
    one = Board(World())
    options: dict[str, Any] = {"user": "ann", "pool": "gpu", "tags": ("x",), "priority": Priority.CRITICAL}
    await one.world.submit(JobSpec(id="a", task="elsewhere", arguments=b"{}", **options))
    assert '<option value="9" selected>9 critical</option>' in (await one.get("/enqueue?copy=a")).text
    for number, (given, expected) in enumerate(
        [
            ([("user", "ben"), ("priority", "9")], ("ben", "default", (), 9)),
            ([("pool", "gpu"), ("tags", "b, a"), ("priority", "")], (None, "gpu", ("a", "b"), 3)),
        ]
    ):
        fields = [("copy", "a"), ("once", f"copy{number}"), ("arg.arguments", "{}"), *given]
        assert (await one.post("/enqueue", fields)).status == 200
        spec = (await one.world.sched.get(f"copy{number}")).spec
        assert (spec.user, spec.pool, spec.tags, spec.priority) == expected
    for delay in ("nan", "inf", "-1", "1e13"):
        fields = [("copy", "a"), ("once", "late"), ("arg.arguments", "{}"), ("delay", delay)]
        assert (await one.post("/enqueue", fields)).status == 400, delay


async def test_refused_form_is_shown_again_with_its_fields() -> None:
    one = await board()
    await one.world.sched.limit(["doc9"], max_pending=1)
    await one.world.enqueue(one.world.snapshot, "doc9")
    await one.world.sched.close_path(["doc10"])
    for document, status in (("doc9", 429), ("doc10", 409), ("", 400), ("a" * 600, 400)):
        fields = [("task", "snapshot"), ("once", "b"), ("arg.document", document), ("user", "kept")]
        answer = await one.post("/enqueue", fields)
        assert answer.status == status, document
        assert 'name="user" value="kept"' in answer.text, document
        check_html(answer.text)


async def test_copy_of_an_unknown_task_keeps_places_and_policy() -> None:
    one = Board(World())
    spec = JobSpec(id="a", task="elsewhere", claims=(queuehint.Claim(("p",)),), arguments=b'{"n":1}', user="ann")
    await one.world.submit(spec)
    text = (await one.get("/enqueue?copy=a")).text
    assert "{&#34;n&#34;: 1}</textarea>" in text
    assert (
        "elsewhere is enqueued as b."
        in (
            await one.post(
                "/enqueue", [("copy", "a"), ("once", "b"), ("arg.arguments", '{"n": 2}'), ("pool", "default")]
            )
        ).text
    )
    record = await one.world.sched.get("b")
    assert (record.queue_keys, json.loads(record.spec.arguments)) == (("p",), {"n": 2})
    assert (await one.post("/enqueue", [("copy", "a"), ("once", "c"), ("arg.arguments", "[1]")])).status == 400


# --- files -----------------------------------------------------------------------------------------------------------


def test_vendored_files_equal_the_manifest() -> None:
    folder = STATIC / "vendor"
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))["files"]
    known = {"manifest.json"}
    for each in manifest:
        assert hashlib.sha256((folder / each["file"]).read_bytes()).hexdigest() == each["sha256"], each["file"]
        assert each["version"]
        assert each["license"]
        assert (folder / each["license_file"]).is_file()
        known |= {each["file"], each["license_file"]}
    assert {path.name for path in folder.iterdir()} == known


@pytest.mark.parametrize("root", ["", "/ops/board"])
async def test_files_are_kept_by_browsers_until_they_change(root: str) -> None:
    client = WebClient((await board()).client.app, root=root)
    text = (await client.get("/")).text
    addresses = re.findall(r'(?:href|src)="([^"]*/static/[^"]+)"', text)
    assert len(addresses) == 5
    for address in addresses:
        target = address.removeprefix(root)
        name, _, query = target.removeprefix("/static/").partition("?v=")
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest().startswith(query)
        answer = await client.get(target)
        assert (answer.status, len(query)) == (200, 12)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        # A process of another release has another file there: it is asked for anew each time, and may be the same.
        for other in (f"/static/{name}?v=0123456789ab", f"/static/{name}"):
            answer = await client.get(other)
            assert (answer.status, answer.headers["cache-control"]) == (200, "no-cache")
            again = await client.get(other, if_none_match=answer.headers["etag"])
            assert (again.status, again.headers["cache-control"]) == (304, "no-cache")


def test_files_of_a_page_weigh_less_than_150_kilobytes() -> None:
    assert sum(path.stat().st_size for path in STATIC.rglob("*") if path.suffix in {".css", ".js", ".svg"}) < 150_000


async def test_finished_job_shows_its_result_on_request() -> None:
    one = Board(World())
    await one.world.enqueue(one.world.snapshot, "doc1")
    (grant,) = await one.world.claim("w", 1)
    await one.world.settle("w", finished(grant, b'{"result":{"rows":[1,2]}}'))
    text = (await one.get(f"/jobs/{grant.spec.id}?arguments=1")).text
    assert "&#34;rows&#34;" in text
    assert "finished" in text


async def test_wait_for_a_signal_offers_its_order_on_the_chain() -> None:
    one = Board(World())
    handle = await one.world.enqueue(one.world.snapshot, "doc1", after=[Signal("go")])
    text = (await one.get(f"/jobs/{handle.id}/why")).text
    assert "Waits for the signal go." in text
    assert "Give signal go" in text


async def test_a_page_of_many_places_is_bounded_and_goes_on() -> None:
    one = Board(World())
    for number in range(60):
        for section in range(3):
            await one.world.enqueue(one.world.edit, f"doc{number:02}", f"s{section}", "text")
    answer = await one.get("/places")
    shown = re.findall(r'<tr id="place-([^"]+)"', answer.text)
    assert shown == [f"doc{number:02}" for number in range(50)]
    assert answer.text.count("more below") == 50
    assert len(answer.body) < 80_000
    following = re.search(r'href="([^"]+)">Next places', answer.text)
    assert following is not None
    text = (await one.get(following[1].replace("&amp;", "&"))).text
    assert [key for key in re.findall(r'<tr id="place-([^"]+)"', text) if "%3A" not in key] == [
        f"doc{number:02}" for number in range(50, 60)
    ]


async def test_refused_browser_gets_a_page_and_a_program_a_problem() -> None:
    closed = WebClient(make_app(World().sched))
    answer = await closed.get("/jobs", accept="text/html,*/*")
    assert (answer.status, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert "this board is closed: say who may use it" in answer.text
    assert answer.headers["content-security-policy"] == POLICY
    check_html(answer.text)
    assert (await closed.get("/jobs")).json["error"] == "closed"
    part = await closed.get("/jobs", accept="text/html", hx_request="true")
    assert (part.headers["hx-retarget"], "<html" in part.text) == ("#notice", False)
    one = Board(World())
    answer = await one.get("/nothing", accept="text/html")
    assert (answer.status, "Not found" in answer.text) == (404, True)
    assert (await one.get("/api/v1/nothing", accept="text/html")).json["error"] == "not-found"


async def test_numbers_of_now_have_sparklines_of_the_last_ten_minutes() -> None:
    one = Board(World())
    assert "<polyline" not in (await one.get("/")).text
    for _ in range(3):
        one.world.clock.advance(seconds=60)
        await one.world.enqueue(one.world.snapshot, "doc1")
        text = (await one.get("/")).text
    (found,) = re.findall(r'aria-label="In line in the last ten minutes"><polyline points="([^"]+)"', text)
    assert found == "70,19 80,19 90,10 100,1"
    check_html(text)
    one.world.clock.advance(seconds=700)
    await one.get("/")
    assert [len(samples) for samples in one.board.seen.values()] == [1]
    for number in range(100):
        one.access = Access(scope=[f"t{number}"])
        await one.get("/")
    assert len(one.board.seen) == 64


def test_every_state_reason_and_outcome_has_its_words() -> None:
    assert set(words.STATES) == set(words.STATE_HELP) == set(JobState)
    assert set(words.TITLES) == set(words.ENDS) == set(ReasonKind)
    assert set(job_views._OUTCOMES) == set(get_args(AttemptOutcome))
    for kind in ReasonKind:
        for jobs in ((), ("other",), ("signal:go",)):
            reason = Reason(job_id="a", state=JobState.QUEUED, kind=kind, jobs=jobs, stuck=True)
            assert why_views.sentence(reason, None, 0)
            for act in why_views.acts(reason):
                assert act.verb in orders.VERBS, act
                assert not act.asks or act.verb in orders.QUESTIONS, act


async def test_orders_of_two_at_once_are_carried_out_once() -> None:
    one = await board()
    ids = await one.ids()
    form = [("task", "snapshot"), ("once", "one"), ("arg.document", "doc9")]
    answers = await asyncio.gather(*[one.post("/enqueue", form) for _ in range(2)])
    assert sorted("is enqueued as one." in each.text for each in answers) == [False, True]
    assert sorted("one was enqueued before." in each.text for each in answers) == [False, True]
    answers = await asyncio.gather(*[one.post("/do/redrive", [("id", ids["dead"])]) for _ in range(2)])
    assert sorted("1 job redriven." in each.text for each in answers) == [False, True]
    group = [("task", "send_mail"), ("rate", "1")]
    answers = await asyncio.gather(*[one.post("/do/redrive", group) for _ in range(2)])
    assert sorted("Redriving 9 jobs" in each.text for each in answers) == [False, True]
    assert "The redrive was stopped." in (await one.post("/do/stop-redrive")).text
