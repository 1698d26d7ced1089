"""Lists of jobs, dead jobs in groups, workers, schedules, limits, users and health."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from queuehint import operations as op
from queuehint.scheduler.records.queries import asked_for
from queuehint.values.record import JobState
from queuehint.values.record_filter import ALL_RECORDS, RecordFilter
from queuehint.values.report import Stats
from queuehint.web.pages import redriving
from queuehint.web.pages.asking import ask, counted_on, counts_of, edges_of, limits_of, pauses_of, workers_of
from queuehint.web.pages.rendering import links_of, render, self_url
from queuehint.web.pages.views import dead as of_dead
from queuehint.web.pages.views import health as of_health
from queuehint.web.pages.views import jobs as of_jobs
from queuehint.web.pages.views import standing, words
from queuehint.web.pages.views.acts import Act, act
from queuehint.web.questions import Listing, Selection

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from queuehint.web.board import Asker

OF_PAGES = frozenset({"live"})
"""Parameters of an address that are no conditions."""
COUNTED_USERS = 200


def query_of(request: Request) -> of_jobs.Query:
    """Return the list query of an address."""
    return of_jobs.read_query(
        [(name, value) for name, value in request.query_params.multi_items() if name not in OF_PAGES]
    )


async def jobs(asker: Asker, request: Request) -> Response:
    """Show the jobs that pass a filter, with their counts by state."""
    links, now_ms = links_of(asker, request), asker.scheduler.clock.now_ms()
    query = query_of(request)
    conditions = query.filter()
    wanted = asked_for(conditions)  # type: ignore[arg-type]
    page = await ask(
        asker,
        "by_time",
        Listing(filter=wanted, newest_first=query.newest_first, limit=of_jobs.PAGE_ROWS, cursor=query.cursor),
    )
    every = asked_for({name: value for name, value in conditions.items() if name != "state"})  # type: ignore[arg-type]
    is_all = every == ALL_RECORDS and not asker.access.scope
    counts = await (counts_of(asker) if is_all else ask(asker, "stats", Selection(filter=every)))
    if query.exact and isinstance(counts, op.Counts):
        counts = await counted_on(asker, every, counts)
    view = of_jobs.list_view(
        query,
        page.jobs,
        page.cursor,
        counts.states,
        now_ms,
        links,
        complete=_complete(counts),
        by_place=bool(asker.access.scope),
    )
    # A page that has counted all would count it again with each event.
    is_live = not query.exact
    bulk = of_jobs.bulk(view, query)
    return render(asker, request, "jobs.html", title="Jobs", page="jobs", list=view, bulk=bulk, live=is_live)


def _complete(counts: Stats | op.Counts) -> bool:
    return not isinstance(counts, op.Counts) or counts.complete


async def dead(asker: Asker, request: Request) -> Response:
    """Show the dead jobs in groups of one cause."""
    links, now_ms = links_of(asker, request), asker.scheduler.clock.now_ms()
    wanted = RecordFilter(states=(JobState.FAILED,))
    page = await ask(asker, "jobs", Listing(filter=wanted, newest_first=True, limit=of_dead.READ_MAX))
    counts: op.Counts = await ask(asker, "stats", Selection(filter=wanted))
    view = of_dead.dead_view(
        page.jobs,
        max(counts.states[JobState.FAILED], len(page.jobs)),
        now_ms,
        links,
        chosen=request.query_params.get("group") or None,
        is_cut=page.cursor is not None,
        complete=counts.complete,
    )
    found = redriving.current(asker)
    under_way = None if found is None else {"text": found.text, "acts": _stops(found)}
    return render(asker, request, "dead.html", title="Dead jobs", page="dead", dead=view, redriving=under_way)


def _stops(found: redriving.Redriving) -> list[Act]:
    return [act("stop-redrive", "Stop")] if found.ended is None else []


async def workers(asker: Asker, request: Request) -> Response:
    """Show the workers, and the jobs they run."""
    links = links_of(asker, request)
    found = await workers_of(asker)
    running = await ask(asker, "jobs", Listing(filter=RecordFilter(states=(JobState.STARTED,)), limit=op.LIST_MAX))
    view = standing.workers_view(found.workers, running.jobs, found.now_ms, links, is_cut=running.cursor is not None)
    return render(asker, request, "workers.html", title="Workers", page="workers", workers=view)


async def schedules(asker: Asker, request: Request) -> Response:
    """Show a page of schedules."""
    links = links_of(asker, request)
    found = await ask(asker, "schedules", op.ListSchedules(request.query_params.get("first", "")))
    lines = [standing.schedule_line(each, found.now_ms, links) for each in found.schedules]
    more = found.following is not None
    return render(
        asker,
        request,
        "schedules.html",
        title="Schedules",
        page="schedules",
        schedules=lines,
        count=words.counted(len(lines), "schedule") + (" on this page" if more else ""),
        next=self_url(request, first=found.following) if more else None,
        first=self_url(request, first=None) if request.query_params.get("first") else None,
        unreadable=found.unreadable,
    )


async def limits(asker: Asker, request: Request) -> Response:
    """Show the limits with their counts, and the pauses."""
    links, now_ms = links_of(asker, request), asker.scheduler.clock.now_ms()
    found = await limits_of(asker)
    pauses = await pauses_of(asker)
    view = standing.limits_view(found, pauses, now_ms, links)
    return render(asker, request, "limits.html", title="Limits", page="limits", limits=view)


async def users(asker: Asker, request: Request) -> Response:
    """Show the users with their weights and shares."""
    links = links_of(asker, request)
    weights = dict((await ask(asker, "weights", op.ListWeights())).users)
    lists = [
        await ask(asker, "jobs", Listing(filter=RecordFilter(states=(state,)), limit=COUNTED_USERS))
        for state in (JobState.STARTED, JobState.QUEUED)
    ]
    is_cut = any(page.cursor is not None for page in lists)
    view = standing.users_view(weights, lists[0].jobs, lists[1].jobs, (), links, is_cut=is_cut)
    return render(asker, request, "users.html", title="Users", page="users", users=view)


async def health(asker: Asker, request: Request) -> Response:
    """Show the state of the store, and its warnings."""
    links, begun_s = links_of(asker, request), time.perf_counter()
    stats = await ask(asker, "stats", Selection())
    edges = await edges_of(asker)
    workers = (await workers_of(asker)).workers
    took_ms = 1000 * (time.perf_counter() - begun_s)
    return render(
        asker,
        request,
        "health.html",
        title="Health",
        page="health",
        away=None,
        checks=of_health.checks(stats, edges, workers, took_ms, links),
        totals=of_health.totals(stats),
        facts=of_health.facts(asker.scheduler),
    )
