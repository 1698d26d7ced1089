"""
Rendering of pages from templates, and of errors as pages.

What a template writes is made harmless in one place, `parts.harmless`, whatever it is. `raw` is for what a form sends
back, and is only escaped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path as FilePath
from typing import Any, Final
from urllib.parse import quote

import attrs
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from queuehint.backends.masks import masked
from queuehint.errors import BackendError, OutcomeUnknownError, QueueFullError, QueueHintError
from queuehint.shown import plain_lines
from queuehint.values.hint import Path, queue_key
from queuehint.web.board import Asker
from queuehint.web.pages import parts
from queuehint.web.pages.views import health, words
from queuehint.web.pages.views.links import Links
from queuehint.web.problems import Refused, status_of

HERE: Final = FilePath(__file__).parents[1]
NAVIGATION: Final = (
    ("now", "", "Now"),
    ("places", "places", "Places"),
    ("jobs", "jobs", "Jobs"),
    ("dead", "dead", "Dead"),
    ("workers", "workers", "Workers"),
    ("schedules", "schedules", "Schedules"),
    ("limits", "limits", "Limits"),
    ("users", "users", "Users"),
    ("health", "health", "Health"),
)
OF_ALL: Final = frozenset({"workers", "schedules", "users", "health"})
"""Pages about the whole namespace, which a scope does not have."""
NOTICE: Final = "div#notice"
"""What a script asks for a part of a page that tells what came of something, or what an order touches."""
_TITLES: Final = {403: "Not allowed", 404: "Not found", 409: "Changed meanwhile"}
Show = Callable[[Asker, Request], Awaitable[Response]]


def _lines(text: str) -> Markup:
    """Return a text with its line breaks, each line `plain`."""
    return Markup("\n").join([escape(line) for line in plain_lines(text)])


def _raw(value: Any) -> Markup:
    """Return the unchanged value of a field, escaped."""
    return escape("" if value is None else value)


def _idref(text: str) -> Markup:
    """Return a text as a part of an id of an element, which has no white space."""
    return Markup(quote(text, safe=""))  # noqa: S704 - nothing is left that HTML would read


TEMPLATES: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    finalize=parts.harmless,
    undefined=StrictUndefined,
    auto_reload=False,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["parts"] = parts
TEMPLATES.filters.update({"lines": _lines, "raw": _raw, "idref": _idref, "n": words.number})


@attrs.frozen(kw_only=True)
class Page:
    """
    A page.

    Args:
        path: below the namespace, with parameters in braces; ``request.path_params`` has them encoded.
        show: returns the page.
        method: ``"POST"`` for what takes a form.
    """

    path: str
    show: Show
    method: str = "GET"


def links_of(asker: Asker, request: Request) -> Links:
    """Return the address builder: below the prefix of the application, and of the namespace if there are several."""
    scope = request.scope
    return Links(scope.get("root_path", ""), scope.get("app_root_path", scope.get("root_path", "")))


def self_url(request: Request, **changes: str | None) -> str:
    """Return the address of the current page, with some parameters of its query changed."""
    left = [(name, value) for name, value in request.query_params.multi_items() if name not in changes]
    query = "&".join(
        [f"{quote(name)}={quote(value)}" for name, value in [*left, *changes.items()] if value is not None]
    )
    path = str(request.scope["path"])
    return f"{path}?{query}" if query else path


def is_fragment(request: Request) -> bool:
    """Return whether a request is for the content of a page alone."""
    return request.headers.get("hx-request") == "true"


def render(
    asker: Asker,
    request: Request,
    template: str,
    *,
    title: str,
    page: str = "",
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    live: bool = True,
    live_path: Path = (),
    **context: Any,
) -> HTMLResponse:
    """
    Return a page made of a template.

    Args:
        page: which entry of the navigation it is.
        live: it follows what happens, *live_path* at or below which place.
    """
    links = links_of(asker, request)
    is_still = request.query_params.get("live") == "off"
    scope = asker.access.scope
    shown = [(name, path, label) for name, path, label in NAVIGATION if not scope or name not in OF_ALL]
    address = self_url(request)
    base = {
        "asker": asker,
        "board": asker.board,
        "root": links.root,
        "links": links,
        "title": title,
        "page": page,
        "nav": [{"name": name, "url": links.at(path), "label": label} for name, path, label in shown],
        "namespace": asker.namespace,
        "namespaces_url": f"{links.files}/" if len(asker.board.stores) > 1 else None,
        "scope_key": queue_key(scope) if scope else None,
        "may_order": asker.may_order,
        "may_set": asker.may_order and not scope,
        "may_see": asker.access.arguments,
        "tasks_known": bool(asker.scheduler.jobs),
        "live_url": _live_url(links, live_path) if live and not is_still else None,
        "still_url": self_url(request, live="off"),
        "moving_url": self_url(request, live=None) if live and is_still else None,
        "self_url": address,
        "is_asked": request.method == "GET",
        "fragment": is_fragment(request),
        "notice": None,
    }
    text = TEMPLATES.get_template(template).render(base | context)
    return HTMLResponse(text, status, {"Cache-Control": "no-store", "Vary": "HX-Request", **(headers or {})})


def _live_url(links: Links, path: Path) -> str:
    return links.at("live", path=queue_key(path) if path else None)


def refused(request: Request, error: Refused) -> HTMLResponse:
    """Return the error page of a request refused before its board is known."""
    root = request.scope.get("app_root_path", request.scope.get("root_path", ""))
    title = _TITLES.get(error.status, HTTPStatus(error.status).phrase)
    fragment = is_fragment(request)
    into = {"HX-Retarget": "#notice", "HX-Reswap": "innerHTML"} if fragment else {}
    text = TEMPLATES.get_template("refused.html").render(
        title=title, detail=error.detail, links=Links(root, root), fragment=fragment
    )
    return HTMLResponse(text, error.status, {"Cache-Control": "no-store", **into, **(error.headers or {})})


def guarded(show: Show) -> Show:
    """Return a page that renders refusals, and outages of the store, as pages."""

    async def shown(asker: Asker, request: Request) -> Response:
        try:
            return await show(asker, request)
        except Refused as error:
            return _said(asker, request, error.status, error.detail)
        except OutcomeUnknownError as error:
            text = f"{error}. To give it again changes nothing more, if it was carried out."
            return _said(asker, request, 504, text, title="Outcome unknown")
        except QueueFullError as error:
            return _said(asker, request, status_of(error), str(error))
        except BackendError as error:
            return _away(asker, request, error)
        except QueueHintError as error:
            return _said(asker, request, status_of(error), str(error))

    return shown


def shared(show: Show) -> Show:
    """Return a page whose fragments are shared by readers with the same rights."""

    async def shown(asker: Asker, request: Request) -> Response:
        if not is_fragment(request):
            return await show(asker, request)
        scope = request.scope
        names = ("app_root_path", "root_path", "path", "query_string")
        address = (*[scope.get(name) for name in names], request.headers.get("hx-target"))
        return await asker.board.fragments[asker.namespace].of(asker.access, address, lambda: show(asker, request))

    return shown


def _said(asker: Asker, request: Request, status: int, detail: str, title: str | None = None) -> Response:
    title = title or _TITLES.get(status, "Request refused")
    said: dict[str, Any] = {
        "level": "bad" if status != 404 else "warn",
        "title": None,
        "text": detail,
        "lines": [],
        "acts": [],
        "back": links_of(asker, request).at(""),
    }
    return notice(asker, request, said, title=title, status=status)


def notice(
    asker: Asker,
    request: Request,
    said: Mapping[str, Any],
    *,
    title: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an outcome: a part of a page for a script, else a page."""
    if is_fragment(request):
        target = request.headers.get("hx-target", "")
        into = {} if target == NOTICE else {"HX-Retarget": "#notice", "HX-Reswap": "innerHTML"}
        return render(
            asker,
            request,
            "notice_part.html",
            title=title,
            said={**said, "back": None},
            status=status,
            headers={**into, **(headers or {})},
            live=False,
        )
    return render(asker, request, "done.html", title=title, said=said, status=status, headers=headers, live=False)


def _away(asker: Asker, request: Request, error: BackendError) -> Response:
    """Say that the store does not answer: in place of a page, above one that is shown, or as what came of an order."""
    if request.method != "GET" or request.headers.get("hx-target") == NOTICE:
        return _said(asker, request, 503, f"{error}. Nothing more was done.", title="The store does not answer")
    if is_fragment(request):
        into = {"HX-Retarget": "#away", "HX-Reswap": "innerHTML"}
        return render(asker, request, "away_part.html", title="Store away", error=str(error), status=503, headers=into)
    away = health.away(error, masked(asker.scheduler.url))
    return render(asker, request, "health.html", title=away["head"], page="health", away=away, status=503, live=False)
