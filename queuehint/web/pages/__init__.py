"""
The HTML pages of a board: each a row of `PAGES`, and a function of an `Asker` and the request.

A page asks by `asking.ask`, by the name of a row of `queuehint.web.routes.ROUTES` or of the rows that only pages ask;
so rights, scope and bounds are those of the API. What comes back goes through a function of `views`, which makes plain
dicts of values, and `rendering.render` makes a page of these by a template. Templates are below ``templates``, files
that browsers load below ``static``; both are part of the wheel. Nothing may be inline: the Content-Security-Policy of
all answers forbids it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queuehint.web.pages import enqueue, lists, looks, orders
from queuehint.web.pages.files import STATIC, Files
from queuehint.web.pages.rendering import Page, guarded, links_of, refused, render, shared

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from queuehint.web.board import Asker

__all__ = ["PAGES", "STATIC", "Files", "namespaces", "refused"]


async def namespaces(asker: Asker, request: Request) -> Response:
    """Return the list of the namespaces."""
    asker.check_read()
    links = links_of(asker, request)
    names = [{"name": name, "url": links.at(f"{name}/")} for name in asker.board.stores]
    of_none: dict[str, Any] = {"namespace": None, "scope_key": None, "tasks_known": False, "nav": []}
    return render(asker, request, "namespaces.html", title="Namespaces", names=names, live=False, **of_none)


PAGES: Final[tuple[Page, ...]] = tuple(
    [
        Page(path=path, show=shared(guarded(show)))
        for path, show in (
            ("/", looks.now),
            ("/places", looks.places),
            ("/places/{key}", looks.places),
            ("/jobs", lists.jobs),
            ("/jobs/{id}", looks.job),
            ("/jobs/{id}/why", looks.why),
            ("/dead", lists.dead),
            ("/workers", lists.workers),
            ("/schedules", lists.schedules),
            ("/limits", lists.limits),
            ("/users", lists.users),
            ("/health", lists.health),
        )
    ]
    + [
        Page(path=path, show=guarded(show))
        for path, show in (
            ("/enqueue", enqueue.form),
            ("/confirm/{verb}", orders.confirm),
        )
    ]
    + [
        Page(path=path, show=guarded(show), method="POST")
        for path, show in (("/do/{verb}", orders.do), ("/enqueue", enqueue.enqueue))
    ]
)
"""All pages."""
