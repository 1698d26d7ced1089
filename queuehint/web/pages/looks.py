"""Overview pages: Now, places, why, and one job."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from queuehint import operations as op
from queuehint.scheduler.operating import TREE_DEPTH_MAX
from queuehint.values.hint import Path, parse_key, queue_key
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import Stats, TreeNode, WorkerInfo
from queuehint.web.pages.asking import ask, by_id, counts_of, limits_of, pauses_of, some_records, workers_of
from queuehint.web.pages.history import noted
from queuehint.web.pages.rendering import links_of, render, self_url
from queuehint.web.pages.views import job as of_job
from queuehint.web.pages.views import now as of_now
from queuehint.web.pages.views import places as of_places
from queuehint.web.pages.views import why as of_why
from queuehint.web.pages.views.acts import within
from queuehint.web.questions import Listing, One, Selection, Wait

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from queuehint.web.board import Asker

DEPENDENTS_SHOWN = 10


async def now(asker: Asker, request: Request) -> Response:
    """Show six numbers, the waits that need action, the longest lines, and pools."""
    links, scope, now_ms = links_of(asker, request), asker.access.scope, asker.scheduler.clock.now_ms()
    dead, deferred = [
        (await ask(asker, "jobs", Listing(filter=RecordFilter(states=(state,)), limit=of_now.LOOKED_AT))).jobs
        for state in (JobState.FAILED, JobState.DEFERRED)
    ]
    known = await by_id(asker, of_now.edge_ids(deferred))
    pauses = await pauses_of(asker)
    lines = await _longest(asker, (), of_now.HOT_PLACES)
    stats: Stats | None = None
    if scope:
        states = (await ask(asker, "stats", Selection(filter=RecordFilter(path=scope)))).states
        workers: tuple[WorkerInfo, ...] = ()
    else:
        stats = await counts_of(asker)
        states, workers = stats.states, (await workers_of(asker)).workers
    pools = [] if stats is None else of_now.pools(stats, workers, now_ms)
    unserved = [(pool["name"], stats.ready[pool["name"]]) for pool in pools if pool["unserved"] and stats is not None]
    causes = of_now.causes(dead, deferred, known, pauses, unserved, now_ms, links)
    for cause in causes:
        cause["acts"] = within(cause["acts"], asker.access)
    counts = {} if stats is None else stats.stuck
    tiles = of_now.tiles(
        states,
        links,
        ready=None if stats is None else stats.ready,
        oldest_ready_ms={} if stats is None else stats.oldest_ready_ms,
        stuck=max(sum(counts.values()), len(causes)),
        slots=sum(worker.slots for worker in workers),
        now_ms=now_ms,
    )
    samples = noted(asker, now_ms, of_now.numbers(tiles))
    return render(
        asker,
        request,
        "now.html",
        title="Now",
        page="now",
        tiles=of_now.with_sparks(tiles, samples, now_ms),
        known=any(states.values()),
        stuck=of_now.groups_of(causes, counts, links),
        hot=of_now.hot_places(_holder(lines), links),
        pools=None if scope else pools,
    )


async def _longest(asker: Asker, path: Path, most: int = of_places.TREE_ROWS) -> tuple[TreeNode, ...]:
    """Return the places with the longest lines, below a path at most those of one query."""
    is_whole = not path and not asker.access.scope
    asked = op.ListLines(path, depth=TREE_DEPTH_MAX, limit=most, longest=is_whole)
    found: tuple[TreeNode, ...] = (await ask(asker, "lines", asked)).places
    return found


def _holder(places: tuple[TreeNode, ...]) -> TreeNode:
    return TreeNode(
        path_key="root",
        started=0,
        started_below=0,
        waiting=0,
        granted=0,
        passing=0,
        paused=False,
        closed=False,
        children=places,
    )


def path_of(request: Request) -> Path:
    """
    Return the place in an address, the root by default.

    Raises:
        InvalidHintError: it names none that can be.
    """
    segment = unquote(request.path_params.get("key", ""))
    key = request.query_params.get("at", "") if segment in {"", "-"} else segment
    return parse_key(key) if key else ()


def id_of(request: Request) -> str:
    """Return the id that an address names."""
    segment = unquote(request.path_params["id"])
    return request.query_params.get("id", "") if segment == "-" else segment


async def places(asker: Asker, request: Request) -> Response:
    """Show the children of a place, its holders and its line."""
    links, scope, now_ms = links_of(asker, request), asker.access.scope, asker.scheduler.clock.now_ms()
    path = path_of(request) or scope
    query = request.query_params
    by_line = query.get("order") == "line"
    after = query.get("after") or None
    node = await ask(asker, "tree", op.Tree(path, 0 if by_line else 2, None if by_line else after, of_places.TREE_ROWS))
    lines = await _longest(asker, path) if by_line else ()
    limits = await limits_of(asker)
    pauses = await pauses_of(asker)
    # Without a path they are found by their state, whatever their number.
    within = path if path or scope else None
    running, queued = [
        await some_records(asker, RecordFilter(path=within, states=(state,)), of_places.LINE_SHOWN)
        for state in (JobState.STARTED, JobState.QUEUED)
    ]
    line = of_places.in_line(queued[0])
    head = (await ask(asker, "why", Wait(job_id=line[0].id))).reasons if line else ()
    ahead = await by_id(asker, of_why.named_jobs(head)[1:])
    place = of_places.place_view(
        path,
        node,
        running[0],
        line,
        ahead,
        limits,
        pauses,
        now_ms,
        links,
        is_cut=queued[1],
    )
    tree = {
        "rows": of_places.line_rows(lines, links, limits) if by_line else of_places.tree_rows(node, links, limits),
        "by_line": by_line,
        "order_url": self_url(request, order=None if by_line else "line", after=None),
        "next": self_url(request, after=node.after) if node.after and not by_line else None,
        "empty": _nothing_below(path, by_line=by_line),
    }
    title = f"{queue_key(path)} · Places" if path else "Places"
    crumbs = of_places.crumbs(path, links, scope)
    acts = of_places.acts(place, path)
    return render(
        asker,
        request,
        "places.html",
        title=title,
        page="places",
        live_path=path,
        place=place,
        tree=tree,
        crumbs=crumbs,
        acts=acts,
    )


def _nothing_below(path: Path, *, by_line: bool) -> str:
    if by_line:
        return "No job waits in a line here."
    return "No place below this one has a live job." if path else "No place has a live job now."


async def why(asker: Asker, request: Request) -> Response:
    """Show the chain of reasons of a job."""
    links, now_ms = links_of(asker, request), asker.scheduler.clock.now_ms()
    job_id = id_of(request)
    reasons = (await ask(asker, "why", Wait(job_id=job_id, limit=op.CHAIN_MAX))).reasons
    records = await by_id(asker, of_why.named_jobs(reasons))
    chain = of_why.chain_view(reasons, records, now_ms, links)
    for card in (chain["root"], *chain["cards"]):
        card["acts"] = within(card["acts"], asker.access)
    return render(asker, request, "why.html", title=f"Why {job_id} waits", page="jobs", chain=chain)


async def job(asker: Asker, request: Request) -> Response:
    """Show one job, with its arguments on request if the user may read them."""
    links, now_ms = links_of(asker, request), asker.scheduler.clock.now_ms()
    job_id = id_of(request)
    shows = asker.access.arguments and request.query_params.get("arguments") == "1"
    record = await ask(asker, "job", One(job_id=job_id, arguments=shows))
    reason = None if record.state.is_over else (await ask(asker, "why", Wait(job_id=job_id))).reasons[0]
    edges = await by_id(asker, of_job.edge_ids(record))
    waits, _ = await some_records(asker, RecordFilter(waits_for=job_id), DEPENDENTS_SHOWN)
    # A handler makes its jobs while it runs: they are looked for behind it.
    made, _ = await some_records(asker, RecordFilter(parent=job_id), DEPENDENTS_SHOWN, behind=record.number)
    view = of_job.job_view(
        record,
        reason,
        tuple(edges.values()),
        waits,
        made,
        now_ms,
        links,
        shows_payloads=shows,
    )
    return render(
        asker,
        request,
        "job.html",
        title=f"{record.spec.task} {job_id}",
        page="jobs",
        job=view,
        show_url=self_url(request, arguments="1"),
    )
