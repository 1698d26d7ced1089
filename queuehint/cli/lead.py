"""``queuehint lead``: lead a journal for the processes that use it, or stand by to lead next."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, NoReturn
from urllib.parse import quote, urlencode

import typer

from queuehint.backends.base import BackendOptions, open_backend
from queuehint.backends.masks import masked
from queuehint.cli.logs import LogFormat, LogLevel, set_up
from queuehint.cli.opening import EXIT_USAGE, Namespace
from queuehint.cli.said import said
from queuehint.cli.stores import as_journal
from queuehint.errors import BackendError, InvalidJobError, MissingExtraError

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", envvar="QUEUEHINT_URL", help="Of the store: postgresql://user@host/database, or a file."
    ),
]


Bind = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Answer guests on other machines at this port too, by TLS; of PostgreSQL."),
]
Advertise = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="By what guests reach that port, if not by --bind.")
]
Certificate = Annotated[
    str | None, typer.Option(metavar="FILE", help="Of that port, as PEM; by default one is made for each lead.")
]
Key = Annotated[str | None, typer.Option(metavar="FILE", help="Of the certificate, as PEM without a password.")]


def lead(
    url: Url,
    namespace: Namespace = None,
    bind: Bind = None,
    advertise: Advertise = None,
    certificate: Certificate = None,
    key: Key = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(envvar="QUEUEHINT_LOG_FORMAT", help="Of log lines on standard error.")
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option(envvar="QUEUEHINT_LOG_LEVEL", help="The least to log.")] = None,
) -> None:
    """
    Lead a store in PostgreSQL or in a file, or stand by to lead next, until a signal says stop.

    It runs no jobs. While another process leads it follows the journal in memory of its own, so that it can lead within
    a moment when that one ends. Several of them may stand by.
    """
    set_up(log_format, log_level)
    port = {"bind": bind, "advertise": advertise, "certificate": certificate, "key": key}
    try:
        url = _with_port(url, {name: value for name, value in port.items() if value is not None})
        backend = open_backend(url, BackendOptions() if namespace is None else BackendOptions(namespace=namespace))
    except (InvalidJobError, MissingExtraError) as error:
        _refuse(error)
    journal = as_journal(backend)
    if journal is None:
        _refuse(InvalidJobError(f"{masked(url)} has no process that leads: take postgresql:// or sqlite:///"))
    from queuehint.backends.journal.lead.standing import Standby

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        Standby(journal).run(stop)
    finally:
        try:
            journal.close_sync()
        except BackendError as error:
            typer.echo(f"queuehint lead: {said(str(error))}", err=True)


def _with_port(url: str, port: dict[str, str]) -> str:
    """Return a URL completed by the options for the port of a leader."""
    if not port:
        return url
    if url.partition(":")[0].partition("+")[0] not in {"postgresql", "postgres"}:
        raise InvalidJobError(f"--{next(iter(port))} is for postgresql://: {masked(url)} has no other machines")
    options = urlencode(port, quote_via=quote, safe=":[]/")
    return f"{url}{'&' if '?' in url else '?'}{options}"


def _refuse(error: Exception) -> NoReturn:
    typer.echo(f"queuehint lead: {said(str(error))}", err=True)
    raise typer.Exit(EXIT_USAGE)
