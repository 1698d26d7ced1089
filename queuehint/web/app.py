"""
The ASGI application of a board: routing, headers, and error responses.

Order of what a request goes through: headers of the answer, the host, who asks, where an order comes from, the rights,
the scope, the store.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from queuehint import operations as op
from queuehint.backends.steps import Steps
from queuehint.errors import BackendError, InvalidJobError, InvalidJobTypeError, QueueHintError, shown
from queuehint.scheduler.scheduler import Scheduler
from queuehint.schema.checks import check_bool, check_callable, check_instance, check_name, check_str
from queuehint.web import pages
from queuehint.web.access import Auth, admit, check_host, check_origin, checked_hosts
from queuehint.web.board import ROUTES, Asker, Board, check_colour
from queuehint.web.events import events, live
from queuehint.web.forms import read, read_json, read_query, written
from queuehint.web.openapi import described
from queuehint.web.problems import Refused, failure, refusal
from queuehint.web.scope import Seal
from queuehint.web.store import BoundedStore
from queuehint.web.table import Route as Row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX: Final = 8 << 20
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # By plain HTTP browsers send no Sec-Fetch-Site, and under "no-referrer" the origin of a form is "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""
API: Final = "/api/v1"


def make_app(
    *schedulers: Scheduler,
    auth: Auth | None = None,
    read_only: bool = False,
    label: str | None = None,
    colour: str | None = None,
    hosts: Collection[str] | None = None,
    secret: str | None = None,
) -> ASGIApp:
    """
    Return the board of one or several namespaces as an ASGI application.

    ``app.mount("/queuehint", make_app(sched, auth=...))`` puts it into one of Starlette or FastAPI.

    Args:
        schedulers: whose jobs; of several each is below the name of its namespace, which no two may share.
        auth: takes a request of Starlette and returns an `Access`, or None to refuse; it may be asynchronous. Without
            it every request is refused.
        read_only: take no orders, whatever an `Access` says.
        label, colour: which environment it is, for people: a text, and red, orange, green, blue or grey.
        hosts: answer requests for these host names and addresses alone, on any port; None for any.
        secret: hides positions from users in a scope, so that they count nothing. Processes that serve one board need
            the same one; without it each has its own.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter and the value.

    .. versionadded:: 1.0.0
    """
    stores: dict[str, BoundedStore] = {}
    for scheduler in schedulers:
        name = check_instance(scheduler, Scheduler, parameter="schedulers").namespace
        if name in stores:
            raise InvalidJobError(f"schedulers: two of them have the namespace {name!r}")
        stores[name] = BoundedStore(scheduler)
    if not stores:
        raise InvalidJobTypeError("make_app() requires a scheduler")
    board = Board(
        stores=stores,
        auth=None if auth is None else check_callable(auth, parameter="auth"),
        read_only=check_bool(read_only, parameter="read_only"),
        label=None if label is None else check_name(label, parameter="label"),
        colour=check_colour(colour),
        hosts=checked_hosts(hosts),
        seal=Seal(token_bytes() if secret is None else check_name(secret, parameter="secret").encode()),
    )
    return _Guarded(Starlette(routes=_routes(board), exception_handlers=_HANDLERS), board)


def beside(app: ASGIApp, board: ASGIApp, *, at: str = "/queuehint") -> ASGIApp:
    """
    Return an application with a board mounted below a path, for frameworks without mounts, such as Django.

    ``application = beside(get_asgi_application(), make_app(sched, auth=...))`` goes into ``asgi.py``.

    Args:
        app: that answers all other paths.
        board: what `make_app` has returned.
        at: the path, such as ``"/queuehint"``.

    Raises:
        InvalidJobError, InvalidJobTypeError: the path does not begin with a slash, or ends with one.

    .. versionadded:: 1.0.0
    """
    if not check_str(at, parameter="at").startswith("/") or at.endswith("/"):
        raise InvalidJobError(f"at must begin with a slash and not end with one, got {shown(at)}")

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "") + at
        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{root}/"):
            await board({**scope, "root_path": root}, receive, send)
        else:
            await app(scope, receive, send)

    return application


# --- routing -------------------------------------------------------------------------------------------------------


def _routes(board: Board) -> list[Any]:
    names = list(board.stores)
    if len(names) == 1:
        shown: list[Any] = _routes_of(board, names[0])
    else:
        shown = [Mount(f"/{quote(name)}", routes=_routes_of(board, name)) for name in names]
        shown.append(Route("/", _asking(board, names[0], pages.namespaces)))
    return [
        Route("/healthz", _healthy),
        Route("/readyz", _readiness(board)),
        Route("/robots.txt", _robots),
        Mount("/static", pages.Files(directory=pages.STATIC), name="static"),
        *shown,
    ]


def _routes_of(board: Board, namespace: str) -> list[Any]:
    by_path: dict[str, dict[str, Row]] = {}
    for row in ROUTES:
        by_path.setdefault(row.path, {})[row.method] = row
    # One route for all methods of a path, so that what else is asked of it is told all of them.
    rows = [
        Route(API + path, _asking(board, namespace, _rows(of_path)), methods=list(of_path))
        for path, of_path in by_path.items()
    ]
    streams = [
        Route(path, _asking(board, namespace, show))
        for path, show in (("/events", events), ("/live", live), (f"{API}/openapi.json", _described))
    ]
    return (
        rows
        + streams
        + [Route(page.path, _asking(board, namespace, page.show), methods=[page.method]) for page in pages.PAGES]
    )


def _asking(
    board: Board, namespace: str, show: Callable[[Asker, Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that authenticates its callers."""

    async def endpoint(request: Request) -> Response:
        access = await admit(request, board.auth)
        asker = Asker(board=board, namespace=namespace, access=access)
        if request.method != "POST":
            return await show(asker, request)
        check_origin(request)
        try:
            return await show(asker, request)
        finally:
            asker.pulse.change()

    return endpoint


def _rows(of_path: Mapping[str, Row]) -> Callable[[Asker, Request], Awaitable[Response]]:
    """Return an endpoint for the rows of one path, by method."""

    async def show(asker: Asker, request: Request) -> Response:
        row = of_path["GET" if request.method == "HEAD" else request.method]
        asker.check(row)
        bound = row.bound({name: unquote(value) for name, value in request.path_params.items()})
        if row.is_order:
            asked = read(row.asks, read_json(await _body(request)), **bound)
        else:
            asked = read_query(row.asks, request.query_params, set(request.query_params), **bound)
        answer = await asker.answer(row.name, asked)
        return JSONResponse(written(answer, in_scope=bool(asker.access.scope)), headers={"Cache-Control": "no-store"})

    return show


async def _body(request: Request) -> bytes:
    """Return the body of an order, which has to be JSON of a bounded size."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise Refused(413, "too-large", f"the body is more than {BODY_BYTES_MAX} bytes, the limit")
    if body and kind != "application/json":
        raise Refused(415, "unsupported", "the body must be JSON: Content-Type: application/json")
    return bytes(body)


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _described(asker: Asker, request: Request) -> Response:
    """Return the API description of the queries and orders that this user may use."""
    shown = [row for row in ROUTES if asker.may_order or not row.is_order]
    rows = tuple([row for row in shown if row.is_scoped or not asker.access.scope])
    return JSONResponse(described(rows, f"{request.scope['root_path']}{API}"))


def _readiness(board: Board) -> Callable[[Request], Awaitable[Response]]:
    # Anyone may ask: they wait for one another, and not for a turn of those who were let in.
    stores = [BoundedStore(store.scheduler) for store in board.stores.values()]

    async def ready(_request: Request) -> Response:
        """Answer 200 if every store answers, without saying more."""
        try:
            await asyncio.gather(*[store.run(_looked()) for store in stores])
        except BackendError:
            return PlainTextResponse("the store does not answer\n", 503)
        return PlainTextResponse("ok\n")

    return ready


def _looked() -> Steps[None]:
    yield op.Peek()


async def _robots(_request: Request) -> Response:
    return PlainTextResponse("User-agent: *\nDisallow: /\n")


# --- what is refused -----------------------------------------------------------------------------------------------


def _refusal(request: Request, error: Refused) -> Response:
    """Return an error as a page for browsers, and as a problem document for programs and in place of a stream."""
    accepted = request.headers.get("accept", "")
    is_page = "text/html" in accepted and "text/event-stream" not in accepted and f"{API}/" not in request.url.path
    return pages.refused(request, error) if is_page else refusal(error)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _refusal(request, error)


async def _failed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, QueueHintError)
    return failure(error)


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    word = HTTPStatus(error.status_code).name.lower().replace("_", "-")
    return _refusal(request, Refused(error.status_code, word, error.detail, dict(error.headers or {})))


async def _broken(request: Request, _error: Exception) -> Response:
    # The error itself goes on to the server, which logs it.
    return _refusal(request, Refused(500, "failed", "the request failed; the log of the server says why"))


_HANDLERS: Final[dict[Any, Any]] = {
    Refused: _refused,
    QueueHintError: _failed,
    HTTPException: _not_there,
    Exception: _broken,
}


class _Guarded:
    """The application behind the headers of all answers, and behind the check of the host."""

    def __init__(self, app: ASGIApp, board: Board) -> None:
        self._app = app
        self.board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        try:
            check_host(HTTPConnection(scope), self.board.hosts)
        except Refused as error:
            await refusal(error)(scope, receive, sent)
            return
        await self._app({**scope, **_encoded(scope)}, receive, sent)


def _encoded(scope: Scope) -> dict[str, str]:
    """
    Return the path of a request and the root of the application, encoded so that a slash in an id ends no segment.

    Servers decode the whole path; what they were sent is in ``raw_path``, which some leave out.
    """
    path: str = scope["path"]
    raw = scope.get("raw_path", b"").decode("latin-1")
    segments = [unquote(segment) for segment in raw.split("/")] if unquote(raw) == path else path.split("/")
    return {"path": "/".join(map(_quoted, segments)), "root_path": _quoted(scope.get("root_path", ""), "/")}


def _quoted(text: str, also: str = "") -> str:
    return quote(text, safe=f"{also}!$&'()*+,;=:@")
