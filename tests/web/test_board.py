"""The board in a browser: stories of an operator, and what must hold on every page."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuehint import Claim, JobSpec, JobState
from queuehint.web import Access, events
from tests.proxy import Proxy
from tests.servers import Server, find_servers, until, why_no_server
from tests.web import pictures
from tests.web.served import PLAIN_HOST, Served, axe
from tests.web.world import World, failed, seed

pytestmark = pytest.mark.slow

PAGES = {
    "now": "/",
    "places": "/places",
    "place": "/places/doc1",
    "held": "/places/doc2",
    "why": "/jobs/{waiting}/why",
    "job": "/jobs/{dead}?arguments=1",
    "running": "/jobs/{running}",
    "jobs": "/jobs",
    "filtered": "/jobs?state=queued&path=doc1",
    "dead": "/dead",
    "workers": "/workers",
    "schedules": "/schedules",
    "limits": "/limits",
    "users": "/users",
    "health": "/health",
    "enqueue": "/enqueue?task=edit",
    "tasks": "/enqueue",
    "copy": "/enqueue?copy={dead}",
    "confirm": "/confirm/cancel?path=doc1",
    "gone": "/jobs/gone",
}


async def seeded() -> World:
    return await seed(World())


async def empty() -> World:
    return World()


async def ids(world: World) -> dict[str, str]:
    records = await world.sched.records.list(limit=200)
    return {
        "dead": next(r.id for r in records if r.spec.task == "publish" and r.state is JobState.FAILED),
        "running": next(r.id for r in records if r.state is JobState.STARTED and r.progress),
        "waiting": next(r.id for r in records if r.queue_keys == ("doc1:section1",) and r.state is JobState.QUEUED),
        "behind": next(r.id for r in records if r.spec.task == "snapshot" and r.queue_keys == ("doc2",)),
    }


@contextlib.contextmanager
def page_of(browser: Any, served: Served, *, expected: tuple[str, ...] = (), **options: Any) -> Iterator[Any]:
    """Open a page, which must not log an error but those that are expected."""
    context = browser.new_context(**{"base_url": served.url, **options})
    page = context.new_page()
    page.set_default_timeout(30_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    yield page
    context.close()
    known = ("the server responded with a status of 404", "the server responded with a status of 503", *expected)
    assert [text for text in problems if not any(each in text for each in known)] == []


def text_of(page: Any, selector: str) -> str:
    return str(page.inner_text(selector))


def shows(page: Any, selector: str, text: str) -> None:
    """Wait until an element shows a text."""
    page.locator(selector, has_text=text).first.wait_for()


HIDE = """hidden => {
    Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event('visibilitychange'));
}"""
"""A browser says so of a tab that is behind another one; one without windows has none of these."""
FOLLOW = """() => {
    window.followed = {ids: [], jobs: [], missed: 0, begun: 0};
    const source = new EventSource("/events?kinds=enqueued");
    source.onopen = () => { followed.begun += 1; };
    source.onmessage = event => {
        followed.ids.push(Number(event.lastEventId));
        followed.jobs.push(JSON.parse(event.data).id);
    };
    source.addEventListener('missed', () => { followed.missed += 1; });
}"""
"""Follow the events as a page of an application does."""


def opened_tab(context: Any, *, is_shown: bool) -> Any:
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto("/")
    shows(page, "#live", "live")
    if not is_shown:
        page.evaluate(HIDE, True)
    return page


# --- what holds on every page ----------------------------------------------------------------------------------------


@pytest.mark.nightly  # In `make test-web` it runs too.
@pytest.mark.parametrize(
    "scheme, width, make",
    [
        ("light", 1280, seeded),
        ("light", 360, seeded),
        ("dark", 1280, seeded),
        ("dark", 360, seeded),
        ("light", 360, empty),
        ("dark", 1280, empty),
    ],
)
def test_pages_have_no_violation_of_axe_and_do_not_overflow(
    browser: Any, scheme: str, width: int, make: Callable[[], Any]
) -> None:
    source = axe()
    assert source is not None
    with Served(make) as served:
        named = served.run(ids) if make is seeded else {}
        with page_of(browser, served, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
            for name, target in PAGES.items():
                if "{" in target and not named:
                    continue
                page.goto(target.format(**named))
                page.evaluate(source.read_text("utf-8"))
                found = page.evaluate("axe.run()")["violations"]
                assert [(each["id"], each["nodes"][0]["html"]) for each in found] == [], name
                scrolled = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert scrolled <= 0, name


def test_hostile_texts_run_nothing_and_break_no_page(browser: Any) -> None:
    name = "<script>document.title='owned'</script>"
    hostile = f"{name}<img src=x onerror=document.title='owned'>\x1b[31m\u202e"

    async def made() -> World:
        world = World()
        path = tuple(["<b>" + "x" * 250 for _ in range(15)])
        specs = (
            JobSpec(id="<script>owned", task=name, claims=(Claim(path),), user=name, tags=('"><b>',)),
            JobSpec(id="..", task="\u05d0\u05d1\u05d2 \u0627\u0644", claims=(Claim(("..",)),), user="a/b?c#d"),
        )
        await world.submit(*specs)
        for grant in await world.claim(name, 2):
            await world.settle(name, failed(grant, hostile, hostile, hostile))
        return world

    with Served(made) as served, page_of(browser, served, viewport={"width": 360, "height": 800}) as page:
        for target in ("/", "/places", "/jobs", "/dead", "/users", "/workers", "/limits"):
            page.goto(target)
            assert "owned" not in page.title(), target
        page.goto("/jobs")
        for number in range(2):
            page.goto("/jobs")
            page.locator("tbody tr").nth(number).locator("th a").first.click()
            shows(page, "h2", "Attempts")
            assert r"\x1b[31m\u202e" in text_of(page, "main")
            assert "owned" not in page.title().replace(name, "").replace("<script>owned", "")


# --- stories ---------------------------------------------------------------------------------------------------------


def test_chain_leads_to_a_dead_job_and_redrive_frees_it(browser: Any) -> None:
    with Served(seeded) as served, page_of(browser, served) as page:
        named = served.run(ids)
        page.goto(f"/jobs/{named['behind']}/why")
        shows(page, "#root-head", "publish failed for good of ConnectError and holds its place.")
        page.get_by_role("button", name="Redrive the dead job").click()
        shows(page, "#notice", "1 job redriven.")
        # The page itself follows.
        page.locator("#root-head", has_text="publish failed").wait_for(state="detached")
        assert served.run(lambda world: world.sched.get(named["dead"])).state is JobState.QUEUED


def test_jobs_are_filtered_selected_and_canceled(browser: Any) -> None:
    with Served(seeded) as served, page_of(browser, served) as page:
        page.goto("/jobs")
        page.get_by_text("Filter", exact=True).click()
        page.get_by_label("User").fill("cy")
        page.get_by_role("button", name="Apply").click()
        page.get_by_role("link", name=re.compile("^queued")).click()
        before = page.locator("tbody tr").count()
        assert before == 18
        assert page.get_by_role("button", name="Cancel selected").is_disabled()
        for number in range(3):
            page.locator("tbody input[name=id]").nth(number).check()
        assert text_of(page, "#picked") == "3 selected"
        page.get_by_role("button", name="Cancel selected").click()
        shows(page, "#notice", "Cancel 3 unfinished jobs?")
        page.get_by_role("button", name="Cancel 3 jobs").click()
        shows(page, "#notice", "3 jobs canceled.")
        until(lambda: page.locator("tbody tr").count() == before - 3, "the list has followed")
        page.get_by_role("link", name="Cancel all that match").click()
        shows(page, "#notice", "Cancel 15 unfinished jobs?")
        page.get_by_role("button", name="Cancel 15 jobs").click()
        shows(page, "#notice", "15 jobs canceled.")
        shows(page, "main", "No job matches.")


def test_a_subtree_is_paused_while_it_runs_and_goes_on(browser: Any) -> None:
    with Served(seeded) as served, page_of(browser, served) as page:
        page.goto("/places/doc1")
        page.get_by_role("link", name=re.compile("^Pause$")).click()
        shows(page, "#notice", "It holds back 19 unfinished jobs")
        page.locator("#notice button").click()
        shows(page, "#notice", "doc1 is paused.")
        shows(page, "main .mark", "paused")

        async def settle(world: World) -> int:
            return len(await world.claim("worker-2", 50))

        served.run(settle)
        records = served.run(lambda world: world.sched.records.list(path=["doc1"], state="STARTED"))
        assert len(records) == 4, "nothing more has started there"
        page.locator("#notice").get_by_role("button", name=re.compile("^Resume$")).click()
        shows(page, "#notice", "doc1 goes on.")


def test_page_follows_events_and_keeps_open_parts(browser: Any) -> None:
    with Served(seeded) as served, page_of(browser, served) as page:
        page.goto("/places/doc1")
        shows(page, "#live", "live")
        page.locator("#below summary").click()

        async def more(world: World) -> None:
            await world.enqueue(world.edit, "doc1", "appendix", "text")

        before = page.locator(".queue li").count()
        served.run(more)
        page.locator("#later summary", has_text="and 6 more").wait_for()
        assert page.locator("#below").get_attribute("open") is not None
        assert page.locator(".queue li").count() == before + 1


def test_a_group_is_redriven_with_a_guard(browser: Any) -> None:
    with Served(seeded) as served, page_of(browser, served) as page:
        page.goto("/dead")
        page.get_by_role("link", name="Redrive group").first.click()
        shows(page, "#notice", "Redrive 6 dead jobs?")
        shows(page, "#notice", "It stops by itself when more than 10 of them have failed again.")
        page.locator("#notice button").click()
        shows(page, "#notice", "Redriving 6 jobs, 50 a second.")
        until(lambda: "6 of 6 jobs redriven" in (page.goto("/dead"), text_of(page, "main"))[1], "all are redriven")
        counts = served.run(lambda world: world.sched.records.count(task="send_mail", state="QUEUED"))
        assert counts.total == 6


def test_a_page_survives_its_store(browser: Any) -> None:
    if not find_servers():
        pytest.skip(why_no_server())
    with Server(appendonly="yes", appendfsync="always") as store:

        async def made() -> World:
            world = World(store.url, patience=0.5)
            await world.enqueue(world.snapshot, "doc1")
            return world

        with Served(made) as served, page_of(browser, served) as page:
            page.goto("/")
            shows(page, "#live", "live")
            store.kill()
            page.evaluate("htmx.trigger(document.body, 'done')")
            shows(page, "#away", "The store does not answer.")
            assert text_of(page, ".tile.ready .count") == "1", "what was there is there"
            page.goto("/jobs")
            shows(page, "h2", "The store does not answer")
            page.go_back()
            store.restart()
            page.goto("/")

            async def more(world: World) -> None:
                await world.enqueue(world.snapshot, "doc2")

            served.run(more)
            shows(page, ".tile.ready .count", "2")
            assert text_of(page, "#away") == ""


def test_eight_tabs_survive_their_store(browser: Any) -> None:
    if not find_servers():
        pytest.skip(why_no_server())
    with Server(appendonly="yes", appendfsync="always") as store:

        async def made() -> World:
            world = World(store.url, patience=0.5)
            await world.enqueue(world.snapshot, "doc1")
            return world

        async def more(world: World) -> None:
            await world.enqueue(world.snapshot, "doc2")

        with Served(made) as served:
            context = browser.new_context(base_url=served.url)
            tabs = [opened_tab(context, is_shown=number == 7) for number in range(8)]
            store.kill()
            for tab in tabs:
                tab.evaluate("htmx.trigger(document.body, 'done')")
            for tab in tabs:
                shows(tab, "#away", "The store does not answer.")
                assert text_of(tab, ".tile.ready .count") == "1", "what was there is there"
            store.restart()
            for tab in tabs:
                tab.locator("#away .notice").wait_for(state="detached")
                assert text_of(tab, ".tile.ready .count") == "1"
            shows(tabs[-1], "#live", "live")
            served.run(more)
            shows(tabs[-1], ".tile.ready .count", "2")
            for tab in tabs[:-1]:
                tab.evaluate(HIDE, False)
                shows(tab, ".tile.ready .count", "2")
                tab.evaluate(HIDE, True)
            context.close()


def test_cut_stream_goes_on_behind_its_last_event(browser: Any) -> None:
    made: list[str] = []

    async def more(world: World) -> None:
        made.append((await world.enqueue(world.send_mail, "someone", "News")).id)

    with Served(seeded) as served, Proxy(served.port) as proxy:
        known, address = ("net::ERR_", "htmx:sse:error"), f"http://127.0.0.1:{proxy.port}"
        with page_of(browser, served, expected=known, base_url=address) as page:
            begun: list[Any] = []
            page.on("request", lambda request: begun.append(request) if "/live" in request.url else None)
            page.goto("/")
            shows(page, "#live", "live")
            page.evaluate(FOLLOW)
            page.wait_for_function("followed.begun")
            for number in range(1, 3):
                served.run(more)
                page.wait_for_function("count => followed.ids.length >= count", arg=3 * number - 2)
                last = page.evaluate("followed.ids")[-1]
                proxy.refuse()
                proxy.rst()
                shows(page, "#live", "reconnecting")
                # What happens while there is no connection.
                served.run(more)
                served.run(more)
                proxy.heal()
                shows(page, "#live", "live")
                # A tick may not have come before the cut.
                assert 0 < int(begun[-1].headers["last-event-id"]) <= last
                page.wait_for_function("count => followed.ids.length >= count", arg=3 * number)
            ids = page.evaluate("followed.ids")
            assert page.evaluate("followed.jobs") == made, "none is missed, none is there twice"
            assert ids == [*range(ids[0], ids[0] + len(made))]
            assert page.evaluate("followed.missed") == 0
            assert page.evaluate("followed.begun") >= 3
            shows(page, ".tile.ready .count", str(9 + len(made)))


def test_a_page_goes_on_when_its_board_comes_back(browser: Any) -> None:
    with Served(seeded) as served:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{served.url}/")
        shows(page, "#live", "live")
    shows(page, "#live", "reconnecting")
    with Served(empty, port=served.port):
        shows(page, "#live", "live")
        shows(page, ".tile .count", "0")
    context.close()


def test_eight_tabs_are_open_at_once(browser: Any) -> None:
    with Served(seeded) as served:
        context = browser.new_context(base_url=served.url)
        tabs = [opened_tab(context, is_shown=number == 7) for number in range(8)]

        async def more(world: World) -> int:
            return len(await world.claim("worker-1", 4))

        running = 6 + served.run(more)
        assert running > 6
        shows(tabs[-1], ".tile.started .count", str(running))
        tabs[0].evaluate(HIDE, False)
        shows(tabs[0], ".tile.started .count", str(running))
        context.close()


def test_page_without_a_stream_says_so_and_asks_again(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STREAMS_MAX", 0)
    with Served(seeded) as served, page_of(browser, served) as page:
        page.goto("/")
        shows(page, "#live", "every 15 s")
        assert text_of(page, "#notice") == ""
        assert page.get_attribute("#live", "title") == "All streams of the board are in use."
        monkeypatch.setattr(events, "STREAMS_MAX", 256)
        page.evaluate("htmx.trigger(document.getElementById('live'), 'again')")  # as a minute later
        shows(page, "#live", "live")
        assert page.get_attribute("#live", "title") is None


def test_everything_is_reached_by_the_keyboard(browser: Any) -> None:
    with Served(seeded) as served, page_of(browser, served) as page:
        page.goto("/places")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "page"
        row = page.locator(".treegrid tbody tr").first
        row.focus()
        assert row.get_attribute("aria-expanded") == "true"
        page.keyboard.press("ArrowLeft")
        assert row.get_attribute("aria-expanded") == "false"
        assert not page.locator("[id='place-doc1%3Asection1']").is_visible()
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.id") == "place-doc2"
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
        assert page.locator("[id='place-doc1%3Asection1']").is_visible()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == "place-doc1%3Asection1"
        page.keyboard.press("Enter")
        page.wait_for_url("**/places/doc1:section1")
        page.goto("/jobs?state=queued&user=cy")
        box = page.locator("tbody input[name=id]").first
        box.focus()
        page.keyboard.press("Space")
        page.get_by_role("button", name="Cancel selected").focus()
        page.keyboard.press("Enter")
        shows(page, "#notice", "Cancel 1 unfinished job?")
        until(lambda: page.evaluate("document.activeElement.textContent") == "Cancel 1 job", "the order has the focus")
        page.keyboard.press("Enter")
        shows(page, "#notice", "1 job canceled.")


def test_all_works_without_a_script(browser: Any) -> None:
    with Served(seeded) as served, page_of(browser, served, java_script_enabled=False) as page:
        named = served.run(ids)
        page.goto("/jobs?user=cy&state=queued")
        page.locator("tbody input[name=id]").first.check()
        page.get_by_role("button", name="Cancel selected").click()
        shows(page, "main", "Cancel 1 unfinished job?")
        page.get_by_role("button", name="Cancel 1 job").click()
        shows(page, "main", "1 job canceled.")
        page.get_by_role("link", name="Back").click()
        shows(page, "h1", "Jobs")
        page.goto(f"/jobs/{named['behind']}/why")
        page.get_by_role("button", name="Redrive the dead job").click()
        shows(page, "main", "1 job redriven.")
        page.goto("/places/doc1")
        page.get_by_role("link", name=re.compile("^Pause$")).click()
        page.get_by_role("button", name="Pause it").click()
        shows(page, "main", "doc1 is paused.")
        page.get_by_role("button", name=re.compile("^Resume$")).click()
        shows(page, "main", "doc1 goes on.")
        page.goto("/enqueue?task=snapshot")
        page.get_by_label("document").fill("doc9")
        page.locator("form button.main").click()
        shows(page, "main", "snapshot is enqueued as")
        page.get_by_role("link", name="Back").click()
        shows(page, "h1", "snapshot")


def test_orders_without_a_script_are_taken_by_plain_http(browser: Any) -> None:
    # There browsers send no Sec-Fetch-Site, so the origin of the form counts.
    with Served(seeded) as served:
        address = f"http://{PLAIN_HOST}:{served.port}"
        known = ("The Cross-Origin-Opener-Policy header has been ignored",)
        with page_of(browser, served, expected=known, base_url=address, java_script_enabled=False) as page:
            sent: list[Any] = []
            page.on("request", lambda request: sent.append(request) if request.method == "POST" else None)
            page.goto("/limits")
            page.get_by_role("button", name=re.compile("^Resume$")).click()
            shows(page, "main", "doc4 goes on.")
            said = sent[0].all_headers()
            assert (said.get("sec-fetch-site"), said["origin"]) == (None, address)


def test_a_read_only_board_offers_nothing_that_changes_something(browser: Any) -> None:
    with Served(seeded, Access(arguments=True)) as served, page_of(browser, served) as page:
        named = served.run(ids)
        for target in PAGES.values():
            if target.startswith(("/enqueue", "/confirm")):
                continue
            page.goto(target.format(**named))
            assert page.locator("form[method=post]").count() == 0, target
            assert page.get_by_text("read only").count() == 1, target


# --- the pictures of the documentation -------------------------------------------------------------------------------


def test_documentation_pictures_show_the_page_of_today(browser: Any, tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        pictures.take(browser, folder)
    names = {path.name for path in folders[0].iterdir()}
    assert names == {f"board-{scheme}.png" for scheme in pictures.SCHEMES} | {pictures.TEXT}
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), "a seeded world, a fake clock"
        assert (pictures.FOLDER / name).exists()
    text = [(folder / pictures.TEXT).read_text("utf-8") for folder in (folders[0], pictures.FOLDER)]
    assert text[0] == text[1], "make pictures-web takes them again"
