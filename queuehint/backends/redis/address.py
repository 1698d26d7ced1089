"""
Addresses of Redis stores: URLs, and the node to send a request to.

All keys of a namespace lie in one slot, so a cluster is treated as one server that may answer with a redirection
(``MOVED``), and Sentinel as one server whose address is asked for first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, Final, Literal, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import attrs

from queuehint.backends.masks import masked, masked_name
from queuehint.errors import InvalidJobError

Node = tuple[str, int]
Kind = Literal["plain", "cluster", "sentinel"]
Functions = Literal["auto", "always", "never"]

FUNCTIONS: Functions = "auto"
"""The default for URLs that do not say how scripts are run."""
SCHEMES: Final[dict[str, tuple[Kind, bool]]] = {
    "redis": ("plain", False),
    "rediss": ("plain", True),
    "unix": ("plain", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
}
"""Every scheme: what is there, and whether by TLS."""

_EXAMPLES: Final = {
    "plain": "redis://host:6379/0 or unix:///run/redis.sock",
    "cluster": "redis+cluster://host:6379",
    "sentinel": "redis+sentinel://host:26379/service",
}
_PORT: Final = {"plain": 6379, "cluster": 6379, "sentinel": 26379}
LEARNED_MAX: Final = 32
PATIENCE_MIN_S: Final = 0.1
PATIENCE_MAX_S: Final = 86_400.0
_PATIENCE: Final = re.compile(r"[0-9]{1,5}(\.[0-9]{1,6})?")
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname", "ssl_cert_reqs")


@attrs.frozen(kw_only=True)
class Address:
    """
    Where a store is.

    Args:
        shown: what of the URL may be shown, see `queuehint.backends.base.masked`.
        nodes: one or more hosts and ports; of Sentinel, those of the sentinels.
        path: of a Unix socket, instead of nodes.
        service: the name of the primary that Sentinel watches.
        options: for each connection: user, password, database, TLS.
        sentinel_options: the same for connections to sentinels.
        functions: whether scripts are run as functions of a library: where the server takes one, else by EVALSHA.
        patience_s: how long a store that does not answer is tried; None for the usual time.

    Attributes:
        learned: other nodes of a cluster, as these have said: first the one that has the namespace, if it was named.
            They are tried too where a node fails, so that it may be the only one in the URL.
    """

    kind: Kind
    shown: str
    nodes: tuple[Node, ...] = attrs.field(default=(), repr=False)
    path: str | None = attrs.field(default=None, repr=False)
    service: str | None = attrs.field(default=None, repr=False)
    is_tls: bool = False
    options: dict[str, Any] = attrs.field(factory=dict, repr=False)
    sentinel_options: dict[str, Any] = attrs.field(factory=dict, repr=False)
    functions: Functions = "auto"
    patience_s: float | None = None
    learned: list[Node] = attrs.field(factory=list, init=False, eq=False, repr=False)

    @property
    def first(self) -> Node | None:
        """The first node to try, None for Sentinel and for a socket."""
        if self.kind == "sentinel" or not self.nodes:
            return None
        return next(iter(self.learned), self.nodes[0])

    def after(self, node: Node | None) -> Node:
        """Return the node of a cluster to try after a failed one."""
        known = list(dict.fromkeys((*self.nodes, *self.learned)))
        return known[(known.index(node) + 1) % len(known) if node in known else 0]

    def learn_owner(self, node: Node) -> None:
        """Record the cluster node that has the namespace."""
        if self.learned[:1] != [node]:
            self.learned[:] = list(dict.fromkeys((node, *self.learned)))[:LEARNED_MAX]

    def learn(self, nodes: Iterable[Node]) -> None:
        """Replace the known nodes of a cluster, except the first."""
        self.learned[:] = list(dict.fromkeys((*self.learned[:1], *nodes)))[:LEARNED_MAX]

    @property
    def is_remote_plaintext(self) -> bool:
        """True if the traffic can be read on the way."""
        return not self.is_tls and any(not _is_loopback(host) for host, _ in self.nodes)


def parse_url(url: str) -> Address:
    """
    Return the address of a URL.

    Args:
        url: ``redis://[[user]:password@]host[:port][/database]``, ``rediss://`` the same by TLS,
            ``unix://[[user]:password@]/path?db=0``, ``redis+cluster://host:port,host:port``,
            ``redis+sentinel://host:port,host:port/service[/database]``. Behind a ``?``: ``namespace``, ``username``,
            ``password``, ``db``, ``patience`` (seconds), ``functions`` (``auto``, ``always``, ``never``),
            ``ssl_ca_certs``, ``ssl_certfile``,
            ``ssl_keyfile``, ``ssl_cert_reqs`` (``required``, ``none``), ``ssl_check_hostname``,
            ``sentinel_username``, ``sentinel_password``.

    Raises:
        InvalidJobError: a part is missing, wrong or unknown; passwords are never shown.

    >>> parse_url("redis://localhost/2").nodes
    (('localhost', 6379),)
    """
    shown = masked(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        # Its message may hold the password.
        raise InvalidJobError(f"url {shown!r} is not a URL") from None
    kind, is_tls = SCHEMES[parts.scheme]
    if not url.partition(":")[2].startswith("//"):
        raise InvalidJobError(f"url {shown!r}: two slashes follow the scheme, as in {_EXAMPLES[kind]}")
    if parts.fragment or _ends_later(parts):
        raise InvalidJobError(f"url {shown!r}: write %2F, %3F, %23 and %40 for / ? # @ in a user or a password")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    query.pop("namespace", None)
    options: dict[str, Any] = {}
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    for name, value in (("username", unquote(username)), ("password", unquote(password))):
        if said := query.pop(name, value):
            options[name] = said
    sentinel_options = {
        name: query.pop(f"sentinel_{name}")
        for name in ("username", "password")
        if kind == "sentinel" and f"sentinel_{name}" in query
    }
    segments = [unquote(segment) for segment in parts.path.split("/") if segment]
    service = None
    if kind == "sentinel":
        if not segments:
            raise InvalidJobError(f"url {shown!r} names no service: redis+sentinel://host:26379/service")
        service = segments.pop(0)
    if parts.scheme == "unix":
        if not parts.path or hosts:
            raise InvalidJobError(f"url {shown!r} names no socket: unix:///run/redis.sock")
        segments = []
    database = query.pop("db", segments[0] if segments else "0")
    if len(segments) > 1 or not (database.isascii() and database.isdigit()):
        raise InvalidJobError(f"url {shown!r}: the database must be a number")
    if kind == "cluster" and int(database):
        raise InvalidJobError(f"url {shown!r}: a cluster has no database but 0")
    options["db"] = int(database)
    if is_tls:
        options |= _tls_options(query, shown)
    functions = query.pop("functions", FUNCTIONS)
    if functions not in {"auto", "always", "never"}:
        raise InvalidJobError(f"url {shown!r}: functions must be auto, always or never")
    patience = query.pop("patience", None)
    if patience is not None and not _PATIENCE.fullmatch(patience):
        raise InvalidJobError(f"url {shown!r}: patience must be seconds, 0.1 to 86400")
    if query:
        raise InvalidJobError(f"url {shown!r}: unknown option {masked_name(min(query))!r}")
    return Address(
        kind=kind,
        shown=shown,
        nodes=() if parts.scheme == "unix" else _nodes(hosts, parts, shown, _PORT[kind]),
        path=unquote(parts.path) if parts.scheme == "unix" else None,
        service=service,
        is_tls=is_tls,
        options=options,
        sentinel_options=sentinel_options,
        functions=cast("Functions", functions),
        patience_s=None if patience is None else min(max(float(patience), PATIENCE_MIN_S), PATIENCE_MAX_S),
    )


def _tls_options(query: dict[str, str], shown: str) -> dict[str, Any]:
    options: dict[str, Any] = {name: query.pop(name) for name in _TLS_OPTIONS if name in query}
    if (wanted := options.get("ssl_cert_reqs")) not in {None, "required", "none"}:
        raise InvalidJobError(f"url {shown!r}: ssl_cert_reqs must be required or none")
    hostname = options.get("ssl_check_hostname", "false" if wanted == "none" else "true").lower()
    if hostname not in {"true", "false", "1", "0"}:
        raise InvalidJobError(f"url {shown!r}: ssl_check_hostname must be true or false")
    options["ssl_check_hostname"] = hostname in {"true", "1"}
    return options


def _nodes(hosts: str, parts: SplitResult, shown: str, port: int) -> tuple[Node, ...]:
    nodes = []
    for number, item in enumerate((hosts or "localhost").split(","), 1):
        try:
            one = urlsplit(f"//{item}")
            found = (one.hostname or "localhost", port if one.port is None else one.port)
        except ValueError:
            # Its message may hold the password.
            found = ("", 0)
        if not found[1]:
            raise InvalidJobError(f"url {shown!r}: host {number} is not a host and port; a port is 1 to 65535")
        nodes.append(found)
    if len(nodes) > 1 and SCHEMES[parts.scheme][0] == "plain":
        raise InvalidJobError(f"url {shown!r} names several hosts; use redis+cluster:// or redis+sentinel://")
    return tuple(nodes)


def _ends_later(parts: SplitResult) -> bool:
    """Return whether user and password seem to go on behind where they end: behind a slash or a question mark."""
    if "@" in parts.path and parts.scheme != "unix":
        return True
    return "@" in parts.path + parts.query and ":" in parts.netloc and "@" not in parts.netloc


def _is_loopback(host: str) -> bool:
    """Return whether a host is this machine, going by its name alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
