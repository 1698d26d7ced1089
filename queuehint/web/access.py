"""Permissions of a board: `Access`, and the checks of a request before its answer."""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import re
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, urlsplit

import attrs

from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.checks import check_bool, check_items, check_str
from queuehint.values.hint import Path, is_prefix, parse_path, queue_key
from queuehint.web.problems import Refused

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

CLOSED = (
    "this board is closed: say who may use it, as in make_app(sched, auth=lambda request: Access(write=True)), "
    "where None refuses a request"
)


_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
HOST_LENGTH_MAX: Final = 253
HOSTS_MAX: Final = 1000


def _path(value: Any) -> Path:
    return parse_path(value, parameter="scope")


@attrs.frozen(kw_only=True)
class Access:
    """
    Permissions of a user of the board.

    Args:
        name: the user's, for the log of orders.
        read: may ask questions.
        write: may give orders.
        arguments: may see arguments, results and headers of jobs, and what was given with a signal.
        scope: every question and order is about jobs at or below this path; ``[]`` is the whole namespace, jobs without
            a place included.

    >>> Access(scope=["tenants", "t1"]).prefix
    'tenants:t1/'

    .. versionadded:: 1.0.0
    """

    name: str = attrs.field(default="", validator=lambda _, __, value: check_str(value, parameter="name"))
    read: bool = attrs.field(default=True, validator=lambda _, __, value: check_bool(value, parameter="read"))
    write: bool = attrs.field(default=False, validator=lambda _, __, value: check_bool(value, parameter="write"))
    arguments: bool = attrs.field(
        default=False, validator=lambda _, __, value: check_bool(value, parameter="arguments")
    )
    scope: Path = attrs.field(default=(), converter=_path)

    @property
    def prefix(self) -> str:
        """The prefix of ids, keys, flows and signals made in this scope, which no other scope uses."""
        return f"{quote(queue_key(self.scope), safe=':')}/" if self.scope else ""

    def holds(self, path: Path) -> bool:
        """Return whether a path is at or below the scope."""
        return is_prefix(self.scope, path)


Auth: TypeAlias = Callable[[Any], Access | Awaitable[Access | None] | None]
"""Takes a request of Starlette, and returns what its sender may do; None refuses it."""


class BasicAuth:
    """
    One user with a password for the login of browsers. Use TLS: the password travels in clear text.

    Args:
        user, password: what is asked for.
        access: what this user may do.
    """

    challenge = 'Basic realm="queuehint", charset="UTF-8"'

    def __init__(self, user: str, password: str, access: Access) -> None:
        self._expected = f"{user}:{password}".encode()
        self._access = access

    def __call__(self, request: HTTPConnection) -> Access | None:
        """Return the access of a request with the right password."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            said = base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            return None
        is_right = hmac.compare_digest(said, self._expected)
        return self._access if is_right and scheme.lower() == "basic" else None


async def admit(request: HTTPConnection, auth: Auth | None) -> Access:
    """
    Return the permissions of the sender of a request.

    Raises:
        Refused: nothing.
    """
    if auth is None:
        raise Refused(403, "closed", CLOSED)
    found = auth(request)
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        challenge = getattr(auth, "challenge", None)
        if challenge is None:
            raise Refused(403, "forbidden", "auth has refused this request")
        raise Refused(401, "unauthorized", "a user and a password are needed", {"WWW-Authenticate": challenge})
    if not isinstance(found, Access):
        raise InvalidJobTypeError(f"auth must return Access or None, got {type(found).__name__}: {shown(found)}")
    return found


def checked_hosts(hosts: object) -> frozenset[str] | None:
    """
    Return the host names that a board accepts, in the form of the Host header, None for any.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the one that no request could be for.

    >>> sorted(checked_hosts(["Board.Example.com", "[::1]", "10.0.0.7"]))
    ['10.0.0.7', '::1', 'board.example.com']
    """
    if hosts is None:
        return None
    found = [
        _checked_host(each, f"hosts[{at}]")
        for at, each in enumerate(check_items(hosts, parameter="hosts", most=HOSTS_MAX))
    ]
    if not found:
        raise InvalidJobError("hosts is empty: such a board would answer nobody; leave it out to answer for any host")
    return frozenset(found)


def _checked_host(value: object, parameter: str) -> str:
    name = check_str(value, parameter=parameter).lower()
    is_bracketed = name.startswith("[") and name.endswith("]")
    if (address := _shortest(name[1:-1] if is_bracketed else name)) is not None:
        return address
    if len(name) > HOST_LENGTH_MAX or not _HOST.fullmatch(name):
        raise InvalidJobError(
            f"{parameter} must be the name or the address of a host, without scheme and port, such as "
            f"board.example.com, got {shown(value)}"
        )
    return name


def check_host(request: HTTPConnection, hosts: frozenset[str] | None) -> None:
    """
    Refuse a request for another host: a page whose name leads here by DNS could else read as from the same origin.

    Raises:
        Refused: the host is none of *hosts*.
    """
    name = request.headers.get("host", "")
    if hosts is not None and _host(name) not in hosts:
        raise Refused(421, "misdirected", f"this board answers for {', '.join(sorted(hosts))}, not for {shown(name)}")


def _host(name: str) -> str:
    try:
        found = urlsplit(f"//{name}").hostname or ""
    except ValueError:
        return ""
    return _shortest(found) or found


def _shortest(text: str) -> str | None:
    """Return an address in its shortest form, None for any other text."""
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def check_origin(request: HTTPConnection) -> None:
    """
    Refuse an order that the page of another site has a browser send; programs other than browsers say no origin.

    Raises:
        Refused: the order comes from another site.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site == "same-origin"
    else:
        is_own = origin is None or origin.partition("://")[2] == request.headers.get("host")
    if not is_own:
        raise Refused(403, "cross-site", f"an order of another site is refused: {shown(site or origin)}")
