"""URLs of PostgreSQL stores: of libpq, or in the style of SQLAlchemy, with options of ours."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args
from urllib.parse import unquote, unquote_plus, urlsplit

import attrs

from queuehint.backends.masks import masked, masked_name
from queuehint.errors import InvalidJobError

Durability = Literal["full", "process"]
DURABILITIES: Final[tuple[Durability, ...]] = get_args(Durability)
SCHEMES: Final = (
    "postgresql",
    "postgres",
    "postgresql+psycopg",
    "postgresql+psycopg2",
    "postgresql+asyncpg",
)
"""Every scheme; those with a driver are read as SQLAlchemy reads them."""
SCHEMA: Final = "queuehint"
"""The schema of the tables where a URL names none."""
APPLICATION: Final = "queuehint"

_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_PORT_MAX: Final = 65_535
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SESSIONS: Final = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
_NUMBERS: Final = (
    "connect_timeout",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "tcp_user_timeout",
)
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"sslmode": _SSL_MODES, "target_session_attrs": _SESSIONS}
_TEXTS: Final = (
    "application_name",
    "channel_binding",
    "dbname",
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "gsslib",
    "host",
    "hostaddr",
    "krbsrvname",
    "load_balance_hosts",
    "max_protocol_version",
    "min_protocol_version",
    "options",
    "passfile",
    "password",
    "port",
    "require_auth",
    "requirepeer",
    "service",
    "servicefile",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslcrldir",
    "sslkey",
    "sslkeylogfile",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "sslsni",
    "user",
)
KEYWORDS: Final = frozenset((*_NUMBERS, *_CHOICES, *_TEXTS))
"""Parameters of libpq that a URL may have. Those that would change what our statements mean are not among them."""
PORT_OPTIONS: Final = ("bind", "advertise", "certificate", "key")
"""Options of the port that a leader opens."""
_OURS: Final[tuple[str, ...]] = ("direct", "durability", "lead", "namespace", "pooled", "schema", *PORT_OPTIONS)
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")
_PATH_MAX: Final = 4096
_EXAMPLE: Final = "postgresql://user@host:5432/database"


@attrs.frozen(kw_only=True)
class PortOptions:
    """
    The port that a process opens for guests when it leads.

    Args:
        bind: the host and the port at which it listens; 0 for a free one.
        advertise: those by which guests reach it, None for the same.
        certificate, key: files of PEM; None for a key that is made for this lead.
    """

    bind: tuple[str, int]
    advertise: tuple[str, int] | None = None
    certificate: str | None = None
    key: str | None = None


@attrs.frozen(kw_only=True)
class Address:
    """
    Where a store is.

    Args:
        shown: what of the URL may be shown, see `queuehint.backends.masks.masked`.
        parameters: of libpq, for each connection.
        straight: the same for connections past a pooler; None if there is no other way.
        schema: that has the tables.
        may_lead: whether this process may lead the journal.
        durability: what has been answered survives ``"full"`` the end of the server, ``"process"`` that of the leading
            process, but maybe not that of the server.
        is_pooled: whether a pooler may give each transaction another session.
        port: that a leader opens for guests on other machines; None for none.
    """

    shown: str
    parameters: Mapping[str, str] = attrs.field(repr=False)
    straight: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    schema: str = SCHEMA
    may_lead: bool = True
    durability: Durability = "full"
    is_pooled: bool = False
    port: PortOptions | None = None

    @property
    def for_leading(self) -> Address:
        """The address for a leader: past the pooler if there is such a way."""
        if self.straight is None:
            return self
        return attrs.evolve(self, parameters=self.straight, straight=None, is_pooled=False)

    @property
    def place(self) -> tuple[str | None, ...]:
        """Which tables they are, as far as that can be told without a connection."""
        said = self.parameters
        return (*map(said.get, ("service", "host", "hostaddr", "port", "dbname")), self.schema)


def parse_url(url: str) -> Address:
    """
    Return the address of a URL; reads and writes nothing.

    Args:
        url: ``postgresql://[user[:password]@][host[:port],…][/database]`` or ``postgres://…``, ``%`` and two digits for
            ``/ ? # @ %`` in a part of it, with any parameter of a connection of libpq behind a ``?``; or with a driver
            of SQLAlchemy, ``postgresql+psycopg://…``. Of ours are ``namespace``, ``schema``, ``lead`` (``yes``,
            ``no``), ``durability`` (``full``, ``process``), ``pooled`` (``0``, ``1``), ``direct`` (a URL past the
            pooler), ``bind`` and ``advertise`` (``host:port``), ``certificate`` and ``key`` (files).

    Raises:
        InvalidJobError: a part is missing, wrong or unknown; passwords are never shown.

    >>> parse_url("postgresql://ann:secret@db/app?schema=jobs&durability=process").parameters["dbname"]
    'app'
    """
    said, query, parameters = _read(url)
    ours: dict[str, list[str]] = {name: query.pop(name) for name in _OURS if name in query}
    schema = _one(ours, "schema", SCHEMA, said)
    if not _SCHEMA.fullmatch(schema):
        raise InvalidJobError(
            f"url {said!r}: schema must be 1 to 63 of a-z 0-9 _, and begin neither with a digit nor with pg_"
        )
    durability = _choice(ours, "durability", DURABILITIES, said)
    lead = _choice(ours, "lead", ("yes", "no"), said)
    pooled = _choice(ours, "pooled", ("0", "1"), said)
    straight = None
    if "direct" in ours:
        straight = _straight(_one(ours, "direct", "", said), said)
        if pooled != "1":
            raise InvalidJobError(f"url {said!r}: direct requires pooled=1")
    parameters |= _known(query, said)
    _check(parameters, said)
    return Address(
        shown=said,
        parameters=parameters,
        straight=straight,
        schema=schema,
        may_lead=lead == "yes",
        durability="process" if durability == "process" else "full",
        is_pooled=pooled == "1",
        port=_port_options(ours, said),
    )


def _read(url: str) -> tuple[str, dict[str, list[str]], dict[str, str]]:
    """Return what may be shown of a URL, its options, and the parameters before them."""
    said = masked(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        # Its message may hold the password.
        raise InvalidJobError(f"url {said!r} is not a URL") from None
    if parts.scheme not in SCHEMES:
        raise InvalidJobError(f"url {said!r}: the scheme must be {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}")
    if not url.partition(":")[2].startswith("//"):
        raise InvalidJobError(f"url {said!r}: two slashes follow the scheme, as in {_EXAMPLE}")
    if parts.fragment or "@" in parts.path or ("@" in parts.query and ":" in parts.netloc and "@" not in parts.netloc):
        raise InvalidJobError(f"url {said!r}: write %2F, %3F, %23 and %40 for / ? # @ in a user or a password")
    if "\0" in unquote(url):
        raise InvalidJobError(f"url {said!r}: a parameter has no zero byte")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    found = {"user": unquote(user), "password": unquote(password), **_hosts(hosts.split(","), said)}
    database = parts.path.removeprefix("/")
    if "/" in database:
        raise InvalidJobError(f"url {said!r}: one database follows the host, %2F stands for a slash in its name")
    found["dbname"] = unquote(database)
    # libpq takes a plus for itself, SQLAlchemy for a space.
    plain: Callable[[str], str] = unquote_plus if "+" in parts.scheme else unquote
    query: dict[str, list[str]] = {}
    for option in filter(None, parts.query.split("&")):
        name, is_sign, value = option.partition("=")
        if not is_sign:
            raise InvalidJobError(f"url {said!r}: an option behind the ? has a name and a value, as schema=jobs")
        query.setdefault(plain(name), []).append(plain(value))
    return said, query, {name: value for name, value in found.items() if value}


def _hosts(items: list[str], said: str) -> dict[str, str]:
    """Return the parameters of libpq for hosts with ports: as many of each, one name for all that have none."""
    hosts, ports = [], []
    for number, item in enumerate(items, 1):
        host, bracket, port = item.partition("]") if item.startswith("[") else (item.partition(":")[0], "", "")
        rest = port if bracket else item[len(host) :]
        is_open = item.startswith("[") and not bracket
        if is_open or (rest and not (rest.startswith(":") and _is_port(rest[1:]))):
            raise InvalidJobError(f"url {said!r}: host {number} is not a host and port; a port is 1 to 65535")
        hosts.append(unquote(host.removeprefix("[")))
        ports.append(rest[1:])
    return {"host": _joined(hosts), "port": _joined(ports)}


def _joined(items: list[str]) -> str:
    return ",".join(items) if any(items) else ""


def _is_port(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and 1 <= int(text) <= _PORT_MAX


def _known(query: Mapping[str, list[str]], said: str) -> dict[str, str]:
    """Return the options that are parameters of libpq."""
    found: dict[str, str] = {}
    for name, values in query.items():
        if name == "host" and any(":" in value and not value.startswith("/") for value in values):
            found |= _hosts(values, said)  # SQLAlchemy's way to name several
        elif name == "ssl":  # that of asyncpg
            found["sslmode"] = _one(query, name, "", said)
        elif name in KEYWORDS:
            found[name] = ",".join(values) if name == "host" else _one(query, name, "", said)
        else:
            raise InvalidJobError(f"url {said!r}: unknown option {masked_name(name)!r}")
    return found


def _check(parameters: Mapping[str, str], said: str) -> None:
    """Check the values of parameters that have a fixed form; libpq would find them wrong at the first call."""
    for name in _NUMBERS:
        if name in parameters and not _NUMBER.fullmatch(parameters[name]):
            raise InvalidJobError(f"url {said!r}: {name} must be a number, 0 to 999999999")
    for name, choices in _CHOICES.items():
        if name in parameters and parameters[name] not in choices:
            raise InvalidJobError(f"url {said!r}: {name} must be {', '.join(choices[:-1])} or {choices[-1]}")
    ports = parameters.get("port", "").split(",")
    if not all(_is_port(port) for port in ports if port):
        raise InvalidJobError(f"url {said!r}: port must be 1 to 65535")
    if len(ports) > 1 and len(ports) != len(parameters.get("host", parameters.get("hostaddr", "")).split(",")):
        raise InvalidJobError(f"url {said!r}: there must be one port, or one for each host")


def _straight(url: str, said: str) -> dict[str, str]:
    """Return the parameters of the URL that is the value of ``direct``."""
    try:
        shown, query, parameters = _read(url)
        if unfit := [name for name in _OURS if name in query]:
            raise InvalidJobError(f"url {shown!r}: {unfit[0]} belongs to the URL around it")
        parameters |= _known(query, shown)
        _check(parameters, shown)
    except InvalidJobError as error:
        raise InvalidJobError(f"url {said!r}: direct must be a URL like {_EXAMPLE}: {error}") from None
    return parameters


def _port_options(query: Mapping[str, list[str]], said: str) -> PortOptions | None:
    """Return what is said of the port of a leader."""
    values = {name: _one(query, name, "", said) for name in PORT_OPTIONS if name in query}
    if not values:
        return None
    if "bind" not in values:
        raise InvalidJobError(f"url {said!r}: {next(iter(values))} requires bind")
    if ("certificate" in values) is not ("key" in values):
        raise InvalidJobError(f"url {said!r}: certificate and key must be given together")
    for name in ("certificate", "key"):
        if name in values and not 1 <= len(values[name]) <= _PATH_MAX:
            raise InvalidJobError(f"url {said!r}: {name} must be the path of a file, of 1 to {_PATH_MAX} characters")
    bind = _host_and_port("bind", values["bind"], 0, said)
    advertise = _host_and_port("advertise", values["advertise"], 1, said) if "advertise" in values else None
    if advertise is None and _is_everywhere(bind[0]):
        raise InvalidJobError(f"url {said!r}: bind={bind[0]} requires advertise, the address that guests connect to")
    if advertise is not None and _is_everywhere(advertise[0]):
        raise InvalidJobError(f"url {said!r}: advertise must be an address that guests can connect to")
    return PortOptions(bind=bind, advertise=advertise, certificate=values.get("certificate"), key=values.get("key"))


def _host_and_port(name: str, text: str, least: int, said: str) -> tuple[str, int]:
    """Return the host and the port of a text such as ``host:7777`` or ``[::1]:7777``."""
    host, colon, port = text.rpartition(":")
    is_fit = _HOST.fullmatch(host) is not None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        with contextlib.suppress(ValueError):
            is_fit = ipaddress.IPv6Address(host).version == 6
    if not (colon and is_fit and _NUMBER.fullmatch(port) and least <= int(port) <= _PORT_MAX):
        zero = ", 0 for a free one" if least == 0 else ""
        raise InvalidJobError(
            f"url {said!r}: {name} must be host:port, or [address]:port of IPv6; a port is {least} to {_PORT_MAX}{zero}"
        )
    return host, int(port)


def _is_everywhere(host: str) -> bool:
    """Return whether a host is each address of a machine, and none of it."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _choice(query: Mapping[str, list[str]], name: str, choices: tuple[str, ...], said: str) -> str:
    """Return the value of an option, by default the first choice."""
    value = _one(query, name, choices[0], said)
    if value not in choices:
        raise InvalidJobError(f"url {said!r}: {name} must be {' or '.join(choices)}")
    return value


def _one(query: Mapping[str, list[str]], name: str, otherwise: str, said: str) -> str:
    values = query.get(name, [otherwise])
    if len(values) > 1:
        raise InvalidJobError(f"url {said!r}: {name} must be given once")
    return values[0]
