"""Options shared by all commands on jobs (store, JSON), and their exit codes."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from queuehint.backends.base import check_scheme
from queuehint.backends.masks import masked
from queuehint.cli.loading import TargetError, load_scheduler
from queuehint.cli.said import HINT, hidden, mentions_url, said
from queuehint.cli.stores import as_redis
from queuehint.errors import (
    BackendError,
    InvalidHintError,
    InvalidJobError,
    JobNotFoundError,
    QueueFullError,
    QueueHintError,
)
from queuehint.scheduler.scheduler import Scheduler
from queuehint.shown import plain
from queuehint.values.hint import Path, parse_key

if TYPE_CHECKING:
    from queuehint.backends.base import Backend
    from queuehint.backends.redis.outages import Outages

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_STORE = 3
EXIT_TIMEOUT = 124
"""As of `timeout`, the command."""
EXIT_INTERRUPTED = 130
SILENCE_S = 1.0
"""After so long without an answer of the server it is said that it is tried."""
LOOK_EVERY_S = 0.1
OTHERS_SHOWN = 10
"""So many other namespaces are named where one is empty."""

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="URL|MODULE:SCHEDULER",
        envvar=["QUEUEHINT_SCHEDULER", "QUEUEHINT_URL"],
        help="Where the jobs are: postgresql://host/app, redis://host:6379/0, sqlite:///jobs.db, or myapp.jobs:sched.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Of the jobs, with a URL; by default what the URL says, or `default`."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


_NO_TARGET = re.compile(r"[^/]*:\d+(/\d*)?|memory|[^:]+\.(db|sqlite3?)", re.IGNORECASE)
"""No module and its scheduler, but most likely a URL of which the scheme was left out."""


class UsageError(Exception):
    """A wrong combination of options. The text has the reason."""


@contextlib.contextmanager
def opened(target: str | None, namespace: str | None, *, as_json: bool) -> Iterator[Scheduler]:
    """
    Open the store of a command, and close it.

    What is raised inside ends the command: with 1 if it was refused or found nothing, with 2 if it makes no sense, with
    3 if the store cannot be asked, with 130 on Ctrl-C.
    """
    # Log messages of the library are no output of a command; an application that sets logging up still sees them.
    unheard = logging.NullHandler()
    logging.getLogger("queuehint").addHandler(unheard)
    try:
        scheduler = find(target, namespace)
        with trying_is_said(scheduler.backend, scheduler.url):
            try:
                yield scheduler
            except JobNotFoundError:
                if not as_json and is_empty(scheduler):
                    say_none(scheduler)
                raise
            finally:
                scheduler.close_sync()
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (TargetError, UsageError, InvalidHintError, InvalidJobError) as error:
        _end(error, EXIT_USAGE, as_json=as_json)
    except QueueFullError as error:
        _end(error, EXIT_REFUSED, as_json=as_json)
    except BackendError as error:
        _end(error, EXIT_STORE, as_json=as_json)
    except QueueHintError as error:
        _end(error, EXIT_REFUSED, as_json=as_json)
    finally:
        logging.getLogger("queuehint").removeHandler(unheard)


@contextlib.contextmanager
def trying_is_said(backend: Backend, url: str) -> Iterator[None]:
    """Report on standard error that the store is unreachable and is tried again. Log nothing else about it."""
    handler = _Trying(logging.WARNING)
    logger = logging.getLogger("queuehint.redis")
    logger.addHandler(handler)
    ended = threading.Event()
    if (redis := as_redis(backend)) is not None:
        args = (redis.session.outages, masked(url), ended)
        threading.Thread(target=_watch, args=args, name="queuehint-trying", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        logger.removeHandler(handler)


def _watch(outages: Outages, url: str, ended: threading.Event) -> None:
    """Report a request without a reply for a second, once. Return then, or when the command ends."""
    while not ended.wait(LOOK_EVERY_S):
        asked_s = outages.asked_s
        if asked_s is not None and time.monotonic() - asked_s >= SILENCE_S:
            typer.echo(f"queuehint: trying {plain(url)}: no answer for {SILENCE_S:g} s", err=True)
            return


class _Trying(logging.Handler):
    """Prints that a store is unreachable."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message."""
        if getattr(record, "event", None) == "redis.unreachable":
            typer.echo(f"queuehint: trying: {said(record.getMessage())}", err=True)


def find(target: str | None, namespace: str | None) -> Scheduler:
    """
    Return the scheduler of a command: of an application with its handlers, of a URL without any.

    Raises:
        TargetError, InvalidJobError: there is none, or its jobs live in one process.
    """
    if not target:
        raise TargetError("a store is required: --target redis://host:6379/0 or module:scheduler, or QUEUEHINT_URL")
    if ":/" in target:
        scheduler = Scheduler(target) if namespace is None else Scheduler(target, namespace=namespace)
    else:
        if _NO_TARGET.fullmatch(target):
            check_scheme(target)
        scheduler = load_scheduler(target)
    if not scheduler.backend.is_durable:
        raise TargetError(f"{masked(scheduler.url)} lives in one process, and no other process can open it")
    found = namespace_of(scheduler)
    if namespace not in {None, found}:
        raise TargetError(f"--namespace {namespace}: {masked(target)} is of namespace {found}")
    return scheduler


def namespace_of(scheduler: Scheduler) -> str:
    """Return the namespace of the jobs. The URL takes precedence over the scheduler."""
    backend: Any = scheduler.backend
    return str(getattr(getattr(backend, "session", backend), "namespace", scheduler.namespace))


def is_empty(scheduler: Scheduler) -> bool:
    """Return whether the namespace has no job, not even an ended one."""
    return not any(scheduler.stats_sync().states.values())


def say_none(scheduler: Scheduler, what: str = "jobs") -> None:
    """
    Report on standard error that nothing was found, with the namespace, which may be the wrong one.

    Of a namespace without any job, the others on its server are named, as far as they can be found at little cost.
    """
    others = name_others(scheduler) if is_empty(scheduler) else ""
    typer.echo(f"queuehint: no {what} in namespace {namespace_of(scheduler)}{others}", err=True)


def name_others(scheduler: Scheduler) -> str:
    """
    Return a clause with the other namespaces. Empty if there are none, or the user may not list them.

    A file has a single namespace, and is not opened by the name of another.
    """
    backend = as_redis(scheduler.backend)
    if backend is None:
        return ""
    from queuehint.backends.redis.namespaces import find_namespaces

    try:
        found = find_namespaces(backend)
    except BackendError:
        return ""
    others = [name for name in found.names if name != namespace_of(scheduler)]
    if not others:
        return ""
    named = ", ".join(others[:OTHERS_SHOWN])
    more = f" and {len(others) - OTHERS_SHOWN} more" if len(others) > OTHERS_SHOWN else ""
    return f"; there {'is' if len(others) == 1 else 'are'} {named}{more}" + ("" if found.is_whole else ", maybe others")


def place(key: str | None) -> Path:
    """
    Return the path of a queue key. No key is the root.

    Raises:
        InvalidHintError: no path has this key.
    """
    return () if key is None else parse_key(key)


def confirm(question: str, *, yes: bool) -> None:
    """
    Prompt for a confirmation. A refusal ends the command with 1.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask: pass --yes")
    if not typer.confirm(plain(question), err=True):
        raise typer.Exit(EXIT_REFUSED)


def _end(error: Exception, code: int, *, as_json: bool) -> NoReturn:
    message = str(error)
    if isinstance(error, UsageError) and mentions_url(message):
        message += HINT
    if as_json:
        typer.echo(json.dumps({"error": hidden(message)}))
    else:
        typer.echo(f"queuehint: {said(message)}", err=True)
    raise typer.Exit(code) from None
