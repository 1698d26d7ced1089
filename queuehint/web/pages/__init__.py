"""
The HTML pages of a board: each is a row of `PAGES`, and a function that is given an `Asker` and the request.

A page asks and orders by ``await asker.answer(name, asked)``, where *name* is that of a row of `QUESTIONS` or `ORDERS`
and *asked* a value of the class that the row asks: ``await asker.answer("tree", op.Tree(("doc1",), 2))``. So rights,
scope and bounds are those of the API. It returns what `render` makes of a template. Templates are below `templates`,
files that browsers load below `static`; both are part of the wheel. Nothing may be inline: the Content-Security-Policy
of all answers forbids it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from queuehint.web.board import Asker

HERE: Final = Path(__file__).parents[1]
STATIC: Final = HERE / "static"
TEMPLATES: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, auto_reload=False
)


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
    show: Callable[[Asker, Request], Awaitable[Response]]
    method: str = "GET"


def render(asker: Asker, request: Request, template: str, **context: Any) -> HTMLResponse:
    """
    Return a page made of a template.

    Templates get, besides *context*: ``asker``, ``board``, and ``root``, which links begin with.
    """
    root = request.scope.get("root_path", "")
    text = TEMPLATES.get_template(template).render(asker=asker, board=asker.board, root=root, **context)
    return HTMLResponse(text, headers={"Cache-Control": "no-store"})


async def index(asker: Asker, request: Request) -> Response:
    """Return the first page."""
    return render(asker, request, "index.html", names=[asker.namespace], is_one=True)


async def namespaces(asker: Asker, request: Request) -> Response:
    """Return the list of the namespaces."""
    return render(asker, request, "index.html", names=list(asker.board.stores), is_one=False)


PAGES: Final[tuple[Page, ...]] = (Page(path="/", show=index),)
"""All pages."""
