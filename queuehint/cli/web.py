"""``queuehint web``: serve the board of one or several namespaces."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queuehint.cli.loading import TargetError, load_function
from queuehint.cli.opening import EXIT_USAGE, UsageError, find
from queuehint.cli.said import said
from queuehint.errors import BackendError, InvalidHintError, InvalidJobError, MissingExtraError
from queuehint.shown import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

    from queuehint.scheduler.scheduler import Scheduler

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
PORT: Final = 8400
STREAMS_END_S: Final = 2
"""Streams of events that are open when a signal says stop are ended after so long."""

Auth = Annotated[
    str | None, typer.Option(metavar="MODULE:FUNCTION", help="Says who may do what: see the page on HTTP.")
]
Namespaces = Annotated[
    list[str] | None, typer.Option("--namespace", "-n", help="Of the jobs, with a URL; may be given several times.")
]


def web(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="URL|MODULE:SCHEDULER",
            envvar=["QUEUEHINT_SCHEDULER", "QUEUEHINT_URL"],
            help="Where the jobs are: postgresql://host/app, redis://host/0, sqlite:///jobs.db, or myapp.jobs:sched.",
        ),
    ] = None,
    namespace: Namespaces = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at; 0 for any that is free.", min=0, max=65535)] = PORT,
    read_only: Annotated[bool, typer.Option("--read-only", help="Take no orders.")] = False,
    label: Annotated[str | None, typer.Option(help="Which environment it is, such as production.")] = None,
    colour: Annotated[str | None, typer.Option(help="Of the label: red, orange, green, blue or grey.")] = None,
    user: Annotated[str | None, typer.Option(help="The user to ask for, with --password-file.")] = None,
    password_file: Annotated[Path | None, typer.Option(help="The file whose first line is the password.")] = None,
    auth: Auth = None,
    is_open: Annotated[bool, typer.Option("--open", help="Let in everyone who can reach the address.")] = False,
) -> None:
    """
    Serve the HTTP API and the board of a store until a signal says stop.

    On a loopback address everyone of this machine may use it; at any other give --user and --password-file, --auth, or
    --open.
    """
    with ExitStack() as stack:
        try:
            who = _auth(host, user, password_file, auth, is_open)
            names: list[str | None] = [*namespace] if namespace else [None]
            schedulers = [find(target, name) for name in dict.fromkeys(names)]
            for scheduler in schedulers:
                stack.callback(scheduler.close_sync)
            # Where all may do all, by its own name alone: no page of another site gets here by a name that leads here.
            hosts = None if user or auth or is_open else LOOPBACK | {host}
            app = _app(schedulers, auth=who, read_only=read_only, label=label, colour=colour, hosts=hosts)
            listening = stack.enter_context(_listen(host, port))
        except (TargetError, UsageError, InvalidHintError, InvalidJobError, MissingExtraError, BackendError) as error:
            typer.echo(f"queuehint web: {said(str(error))}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
        import uvicorn

        at = f"[{host}]" if ":" in host else host
        typer.echo(f"queuehint web: http://{plain(at)}:{listening.getsockname()[1]}/")
        config = uvicorn.Config(
            app, log_level="warning", server_header=False, proxy_headers=False, timeout_graceful_shutdown=STREAMS_END_S
        )
        uvicorn.Server(config).run(sockets=[listening])


def _app(schedulers: list[Scheduler], **options: Any) -> ASGIApp:
    from queuehint.web import make_app

    return make_app(*schedulers, **options)


def _auth(
    host: str, user: str | None, password_file: Path | None, auth: str | None, is_open: bool
) -> Callable[..., Any]:
    """
    Return the authorization of users.

    Raises:
        UsageError: nothing is said, and others than this machine may reach it; or two things are.
    """
    from queuehint.web import Access, BasicAuth

    everything = Access(name=user or "", write=True, arguments=True)
    if (user is None) != (password_file is None):
        raise UsageError("--user and --password-file must be given together")
    if (user is not None) + (auth is not None) + is_open > 1:
        raise UsageError("--user, --auth and --open are mutually exclusive")
    if user is not None and password_file is not None:
        return BasicAuth(user, _password(password_file), everything)
    if auth is not None:
        try:
            return load_function(auth, example="myapp.auth:board")
        except TargetError as error:
            raise TargetError(f"--auth: {error}") from None
    if not is_open and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached by others: give --user and --password-file, or --auth module:function, or --open"
        )
    return lambda _request: everything


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"{host} port {port} cannot be listened at: {error.strerror}") from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _password(path: Path) -> str:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--password-file {path} cannot be read: {type(error).__name__}") from None
    if not lines or not lines[0]:
        raise UsageError(f"--password-file {path} has no password in its first line")
    return lines[0]
